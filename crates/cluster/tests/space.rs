//! The space that a store uses after a long life, beside a new store with the same content.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::{path::Path, sync::Arc, time::Duration};

use onefold_backend::EmbeddedStore;
use onefold_cluster::{
    Format, Mode, Session, Settings, Status, Volume, Watermarks, Worker, create,
};
use onefold_core::{Volume as _, object::PoolKind};

const MIB: usize = 1 << 20;
const BYTES: usize = 64 * MIB;

/// A store with one volume, in the hands of a server that may keep 1 MiB of hot chunks.
struct Site {
    session: Arc<Session>,
    volume: Volume,
    worker: Worker,
    _store: EmbeddedStore,
}

impl Site {
    fn new(folder: &Path) -> Site {
        let store = EmbeddedStore::create(folder, PoolKind::Replicated).unwrap();
        create(&store.session(), &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let settings = Settings {
            cold: Duration::ZERO,
            hit_count: 1,
            cache_bytes: MIB as u64,
            ..Settings::default()
        };
        let open = || Arc::new(Session::open(Arc::new(store.session()), settings.clone()).unwrap());
        let session = open();
        session.create_volume("v", BYTES as u64).unwrap();
        let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
        Site { worker: Worker::new(open(), Watermarks::NONE), session, volume, _store: store }
    }

    /// Until nothing is left to do, though what is hot waits for a while.
    fn drain(&mut self) -> Status {
        while self.session.backlog().unwrap() > 0 {
            self.worker.step().unwrap();
        }
        while self.volume.evict_step().unwrap() {}
        self.session.status().unwrap()
    }
}

/// Bytes that are new, or of 16 contents that come again.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = if seed.is_multiple_of(3) { seed % 16 } else { seed } ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| next()).collect()
}

#[test]
fn an_aged_store_takes_what_a_new_one_takes() {
    let folder = tempfile::tempdir().unwrap();
    let mut aged = Site::new(&folder.path().join("aged"));
    let mut expected = vec![0; BYTES];
    for piece in 0..BYTES / MIB {
        expected[piece * MIB..][..MIB].copy_from_slice(&content(piece as u64, MIB));
        aged.volume.write_at((piece * MIB) as u64, &expected[piece * MIB..][..MIB]).unwrap();
    }
    for round in 0..2u64 {
        aged.drain();
        for n in 0..100u64 {
            let number = round * 100 + n;
            let bytes = 4096 * (1 + number as usize % 16);
            let at = (number as usize * 7_919 % (BYTES / 4096 - 16)) * 4096;
            expected[at..at + bytes].copy_from_slice(&content(1000 + number, bytes));
            aged.volume.write_at(at as u64, &expected[at..at + bytes]).unwrap();
            let mut read = vec![0; 4096];
            aged.volume
                .read_at((number * 104_729 % (BYTES as u64 / 4096)) * 4096, &mut read)
                .unwrap();
        }
    }
    aged.drain();
    // All of it is hot then, and may be kept as far as there is room.
    let mut read = vec![0; BYTES];
    aged.volume.read_at(0, &mut read).unwrap();
    assert!(read == expected);
    let aged_status = aged.drain();

    let mut fresh = Site::new(&folder.path().join("fresh"));
    for piece in 0..BYTES / MIB {
        fresh.volume.write_at((piece * MIB) as u64, &expected[piece * MIB..][..MIB]).unwrap();
    }
    let fresh_status = fresh.drain();
    let taken = |status: &Status| {
        status.cached_bytes + status.chunk_bytes + status.map_bytes + status.reference_bytes
    };
    let of = |aged: u64, fresh: u64| aged as f64 / fresh as f64;
    let (sum, used) = (
        of(taken(&aged_status), taken(&fresh_status)),
        of(aged_status.space.used, fresh_status.space.used),
    );
    assert!(sum <= 1.05, "{sum:.3} of what a new store holds");
    assert!(used <= 1.05, "{used:.3} of the bytes that a new store takes");
}

#[test]
fn rule_12_what_a_huge_range_holds_is_told_in_parts() {
    const TIB: u64 = 1 << 40;
    let folder = tempfile::tempdir().unwrap();
    let site = Site::new(folder.path());
    site.session.create_volume("huge", 100 * TIB).unwrap();
    for mode in [Mode::Own, Mode::Read] {
        let volume = Volume::attach(&site.session, "huge", mode).unwrap();
        if matches!(mode, Mode::Own) {
            volume.write_at(0, &[7; 4096]).unwrap();
        }
        let extents = volume.extents(0, 100 * TIB, 2).unwrap();
        let told: u64 = extents.iter().map(|extent| extent.bytes).sum();
        assert_eq!(extents.len(), 2);
        assert!(told < TIB, "{told} bytes were looked at");
        volume.detach().unwrap();
    }
}
