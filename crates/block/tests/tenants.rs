//! What a full store's answers tell one tenant about another.

#![allow(clippy::unwrap_used)]

mod support;

use std::{sync::Arc, time::Duration};

use onefold_backend::MemoryDisk;
use onefold_block::{Engine, Format, Setting, Settings, StoreExports};
use onefold_core::{Clock, Exports, ExtentKind, Kind, Lba, VolumeId};
use support::formatted;

const BLOCKS: u64 = 4096;

/// Time stands still: no draw ends because of it.
struct Noon;

impl Clock for Noon {
    fn now(&self) -> Duration {
        Duration::from_secs(12 * 3600)
    }
}

/// A page of which everything but a number of four digits is known.
fn page(pin: u32) -> [u8; 4096] {
    let mut page = [b'.'; 4096];
    page[..16].copy_from_slice(format!("the PIN is  {pin:04}").as_bytes());
    page
}

/// A block that no other `seed` gives.
fn noise(seed: u64) -> [u8; 4096] {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
}

/// Writes a block; the answer, when all that would make room is done.
fn write(engine: &Engine, volume: VolumeId, lba: u64, block: &[u8]) -> Result<(), Kind> {
    loop {
        match engine.write(volume, lba * 4096, block) {
            Err(error) if error.kind() == Kind::Busy => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            answer => return answer.map(|_| ()).map_err(|error| error.kind()),
        }
    }
}

/// A victim's volume with the page of a PIN, and that of an attacker.
fn two_tenants(pin: u32) -> (Engine, VolumeId) {
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    Engine::format(&*disk, &Format { zone_blocks: 64, ..Format::new([1; 16], [2; 32], BLOCKS) })
        .unwrap();
    let settings =
        Settings { window_blocks: 32, unflushed_blocks: 256, ..Settings::for_memory(32 << 20) };
    let engine = Engine::open(disk, Arc::new(Noon), settings).unwrap();
    let (victim, _) = engine.create_volume("victim", BLOCKS).unwrap();
    let (attacker, _) = engine.create_volume("attacker", 16 * BLOCKS).unwrap();
    write(&engine, victim, 0, &page(pin)).unwrap();
    engine.flush().unwrap();
    (engine, attacker)
}

/// Writes new blocks from `lba` on until one is refused; says where that was.
fn fill(engine: &Engine, volume: VolumeId, mut lba: u64) -> u64 {
    while write(engine, volume, lba, &noise(lba)).is_ok() {
        lba += 1;
    }
    lba
}

#[test]
fn rule_14_ten_thousand_guesses_on_a_full_store_are_answered_alike() {
    let (engine, attacker) = two_tenants(4711);
    engine.keep_tenants_apart([9; 32]);
    let end = fill(&engine, attacker, 0);
    for pin in 0..10_000 {
        assert_eq!(write(&engine, attacker, end, &page(pin)), Err(Kind::NoSpace), "{pin}");
        assert_eq!(
            write(&engine, attacker, end + 1, &noise(1 << 40 | u64::from(pin))),
            Err(Kind::NoSpace),
            "{pin}"
        );
    }
}

#[test]
fn rule_14_how_much_fits_beside_a_guess_does_not_tell_whether_it_was_right() {
    // With the right guess one more new block would fit, each time, if writes were refused at the
    // same free space.
    let fits = |guess: u32, secret: u8| {
        let (engine, attacker) = two_tenants(4711);
        engine.keep_tenants_apart([secret; 32]);
        write(&engine, attacker, 0, &page(guess)).unwrap();
        fill(&engine, attacker, 1)
    };
    let (mut right, mut wrong): (Vec<u64>, Vec<u64>) =
        (0..8).map(|n| (fits(4711, n), fits(17, n + 8))).unzip();
    right.sort_unstable();
    wrong.sort_unstable();
    assert!(right[0] < wrong[7] && wrong[0] < right[7], "{right:?} {wrong:?}");
    let spread = right[7] - right[0];
    assert!(spread > 8 && spread <= BLOCKS / 64, "{right:?}");
}

/// Zeroes that are to be kept become a hole when there is no room for them, and a client can ask
/// which they are.
#[test]
fn rule_14_zeroes_are_kept_no_longer_than_writes_are_taken() {
    let mut seen = 0;
    for secret in 0..8 {
        let (engine, attacker) = two_tenants(4711);
        engine.keep_tenants_apart([secret; 32]);
        let end = fill(&engine, attacker, 0);
        engine.write_zeroes(attacker, end * 4096, 4096, true, &mut 0).unwrap();
        let kind = engine.extents(attacker, Lba(end), 1, 1).unwrap()[0].kind;
        seen += u32::from(kind == ExtentKind::Hole);
    }
    assert_eq!(seen, 8, "they are kept although writes are refused");
}

/// So do zeroes that are written. Answers that end no draw would tell how much is free to the block, and
/// by that whether a trim of a guess freed anything.
#[test]
fn rule_14_zeroes_that_are_written_end_a_draw_as_blocks_do() {
    let mut seen = 0;
    for secret in 0..16 {
        let (engine, attacker) = two_tenants(4711);
        engine.keep_tenants_apart([secret; 32]);
        let end = fill(&engine, attacker, 0);
        let kept = || {
            write(&engine, attacker, end, &[0; 4096]).unwrap();
            engine.extents(attacker, Lba(end), 1, 1).unwrap()[0].kind == ExtentKind::Zero
        };
        let mut trimmed = 0;
        while !kept() {
            engine.trim(attacker, trimmed * 4096, 4096).unwrap();
            engine.flush().unwrap();
            engine.checkpoint().unwrap();
            trimmed += 1;
            assert!(trimmed < 512, "they are never kept again");
        }
        // A refusal was an answer: the next one is given at another free space.
        seen += u32::from(!kept());
    }
    assert!(seen > 0, "all answers are given at one free space");
}

#[test]
fn rule_14_a_store_that_was_full_takes_again_at_another_free_space() {
    let (engine, attacker) = two_tenants(4711);
    engine.keep_tenants_apart([3; 32]);
    let mut end = fill(&engine, attacker, 0);
    let mut needed = Vec::new();
    for round in 0..6 {
        // Blocks are trimmed one by one until a write is taken; then it is filled up again.
        let before = end;
        let mut trimmed = 0;
        while write(&engine, attacker, end, &noise(1 << 41 | end)).is_err() {
            engine.trim(attacker, (round * 512 + trimmed) * 4096, 4096).unwrap();
            engine.flush().unwrap();
            trimmed += 1;
            assert!(trimmed < 512, "it never takes anything again");
        }
        end = fill(&engine, attacker, end + 1);
        needed.push((trimmed, end - before));
    }
    needed.sort_unstable();
    needed.dedup();
    assert!(needed.len() > 3, "{needed:?}");
}

#[test]
fn rule_14_one_tenant_or_one_volume_writes_duplicates_to_a_full_store() {
    let (engine, attacker) = two_tenants(4711);
    let end = fill(&engine, attacker, 0);
    assert_eq!(write(&engine, attacker, end, &page(17)), Err(Kind::NoSpace));
    assert_eq!(write(&engine, attacker, end, &page(4711)), Ok(()));
    engine.keep_tenants_apart([9; 32]);
    assert_eq!(write(&engine, attacker, end + 1, &page(4711)), Err(Kind::NoSpace));
    engine.delete_volume(engine.find_volume("victim").unwrap()).unwrap();
    assert_eq!(write(&engine, attacker, end + 1, &page(4711)), Ok(()));
}

/// Every block that is new to a volume counts against its quota, and none that is mapped there, whatever
/// the store holds. So a guess, and the block after it, are answered alike.
#[test]
fn rule_14_a_quota_answers_alike_whatever_others_hold() {
    let (engine, attacker) = two_tenants(4711);
    engine.set(attacker, Setting::Quota(64)).unwrap();
    assert_eq!(fill(&engine, attacker, 0), 64);
    for pin in (4700..4720).chain(0..200) {
        assert_eq!(write(&engine, attacker, 64, &page(pin)), Err(Kind::NoSpace), "{pin}");
        // One block is free, and the guess takes it, be it right or wrong.
        engine.trim(attacker, 4096 * 63, 4096).unwrap();
        assert_eq!(write(&engine, attacker, 63, &page(pin)), Ok(()), "{pin}");
        let new = noise(1 << 40 | u64::from(pin));
        assert_eq!(write(&engine, attacker, 64, &new), Err(Kind::NoSpace), "{pin}");
    }
    let victim = engine.find_volume("victim").unwrap();
    assert_eq!(fill(&engine, victim, 1).min(1000), 1000, "nobody else is refused");
}

/// All of them, and all snapshots, were copied while the requests of others waited.
#[test]
fn rule_12_a_list_of_many_volumes_is_made_in_parts_and_is_whole() {
    let site = formatted(&Format::new([1; 16], [1; 32], 65_536));
    let mut names: Vec<String> = (0..600).map(|n| format!("vm{:03}", (n * 7) % 600)).collect();
    for name in &names {
        site.store.create_volume(name, 4096).unwrap();
    }
    names.sort();
    let listed = StoreExports(site.store.clone()).list().into_iter();
    assert_eq!(listed.map(|one| one.name).collect::<Vec<_>>(), names);
    site.end();
}
