//! Damage that is noted, and containers that are written again: nothing that can be read, now or
//! later, is given up.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use onefold_archive::{
    Archive, CheckReport as Report, Chunking, Collected, Collection, CollectionOptions as Options,
    Compression, ContainerId, Content, Cutting, Ended, Format, Nodes, Reader, Restored, Session,
    Settings, Shape, Spread, StreamWriter, Verify, Writing, check, record_damage, restore_chunks,
};
use onefold_backend::Directory;
use onefold_core::{Error, Files, Kind, Result};
use parking_lot::Mutex;
use support::{Call, Watch, Watched, noise};

/// Reads that fail: in a file, from a byte on, so many bytes; from [`UNWRITABLE`] on, changes fail.
type Bad = Arc<Mutex<Option<(String, u64, u64)>>>;

/// Beyond the end of any file.
const UNWRITABLE: u64 = u64::MAX;

struct Desk {
    dir: tempfile::TempDir,
    bad: Bad,
    nodes: usize,
}

impl Desk {
    /// Static chunks of 4 KiB, as they are, 60 in a container.
    fn new() -> Desk {
        let desk = Desk {
            dir: tempfile::Builder::new()
                .prefix("heal")
                .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
                .unwrap(),
            bad: Bad::default(),
            nodes: 0,
        };
        Archive::create(&Directory::create(&desk.path("a")).unwrap(), &Desk::format()).unwrap();
        desk
    }

    /// The same on six nodes, with the code (3, 2); log and tables lie on the first three.
    fn on_nodes() -> Desk {
        let desk = Desk { nodes: 6, ..Desk::new() };
        let directories = (0..6)
            .map(|n| {
                Arc::new(Directory::create(&desk.path(&format!("n{n}"))).unwrap()) as Arc<dyn Files>
            })
            .collect();
        // A segment for each stream, on three nodes each.
        let (format, spread) = (
            Format { segment_bytes: 300 << 10, ..Desk::format() },
            Spread { n: 3, k: 2, ids: (0..6).map(|n| [n; 16]).collect(), listed: false },
        );
        Archive::create_on_nodes(
            &Nodes::create(directories, &spread, format.id, format.secret).unwrap(),
            &format,
        )
        .unwrap();
        desk
    }

    fn format() -> Format {
        let (chunking, compression) = (Chunking::Static(4096), Compression::None);
        Format {
            chunking,
            compression,
            reserve_bytes: 1 << 20,
            ..Format::new([1; 16], [2; 32], [3; 16])
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self) -> Arc<Archive> {
        let directory = |name: &str| {
            Directory::open(&self.path(name), true)
                .ok()
                .map(|files| Watched { files: Arc::new(files), watch: sick(&self.bad) })
        };
        let settings =
            Settings { container_bytes: 240 << 10, auxiliary_entries: 4000, ..Settings::default() };
        let archive = if self.nodes > 0 {
            let nodes = (0..self.nodes)
                .map(|n| Some(Arc::new(directory(&format!("n{n}"))?) as Arc<dyn Files>))
                .collect();
            let nodes = Arc::new(Nodes::open(nodes, false).unwrap());
            Archive::open_on_nodes(nodes, true, settings)
        } else {
            Archive::open(Arc::new(directory("a").unwrap()), true, settings)
        };
        Arc::new(archive.unwrap())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<u64> {
        support::put(&self.open(), name, bytes).map(|report| report.new_bytes)
    }

    fn get(&self, name: &str) -> Result<Vec<u8>> {
        support::get(&self.open(), name)
    }

    fn collect(&self) -> Collected {
        let options = Options { keep_partial: 86_400, ..support::options(5_000) };
        Collection::begin(&self.open(), options).unwrap().run(&mut |_| {}).unwrap()
    }

    /// As `onefold scrub` does it.
    fn scrub(&self) -> (Report, Result<Restored>) {
        let archive = self.open();
        let report = check(&archive, true, &mut |_, _, _| {}).unwrap();
        let healed = record_damage(&archive, &report.rotten)
            .and_then(|()| restore_chunks(&archive, &report.lost, &mut |_, _| {}));
        (report, healed)
    }

    /// The containers of chunks: number, place of the first byte, bytes of metadata.
    fn containers(&self) -> Vec<(ContainerId, u64, u64)> {
        let tables = self.open().tables();
        let data = tables
            .containers
            .iter()
            .map(Result::unwrap)
            .filter(|container| container.stored.kind == onefold_archive::ContainerKind::Data);
        data.map(|container| {
            (
                container.stored.id,
                container.stored.place.at,
                u64::from(container.stored.place.meta_bytes),
            )
        })
        .collect()
    }

    fn rot(&self, at: u64) {
        let path = self.path("a/segment-00000001");
        let mut bytes = fs::read(&path).unwrap();
        bytes[at as usize] ^= 0x10;
        fs::write(&path, bytes).unwrap();
    }

    fn fail(&self, bad: Option<(u64, u64)>) {
        *self.bad.lock() = bad.map(|(at, bytes)| ("segment-00000001".to_owned(), at, bytes));
    }
}

/// Some sectors can't be read.
fn sick(bad: &Bad) -> Watch {
    let bad = bad.clone();
    Arc::new(move |name, call, does| match (call, &*bad.lock()) {
        (Call::Read(at, bytes), Some((sick, from, sectors)))
            if sick == name && *at < from + sectors && *from < at + bytes =>
        {
            Err(Error::new(Kind::Io, "a sector can't be read"))
        }
        (Call::Change, Some((sick, UNWRITABLE, _))) if sick == name => {
            Err(Error::new(Kind::Io, "a sector can't be written"))
        }
        _ => does(),
    })
}

#[test]
fn a_note_of_damage_does_not_hide_a_put_from_collection() {
    let desk = Desk::new();
    let (bytes, other) = (noise(1, 240 << 10), noise(2, 240 << 10));
    desk.put("gone", &bytes).unwrap();
    let (id, ..) = desk.containers()[0];
    desk.put("other", &other).unwrap();
    let (rotten, ..) = *desk.containers().iter().find(|(other, ..)| *other != id).unwrap();
    desk.open().remove("gone").unwrap();
    // A put takes its chunks as duplicates, and goes on for long.
    let archive = desk.open();
    let mut session = Session::begin(&archive, false).unwrap();
    let mut writer = StreamWriter::new(&session, 1_000);
    let (mut cutting, mut writing) = (Cutting::new(&*archive), Writing::default());
    cutting.room()[..bytes.len()].copy_from_slice(&bytes);
    let mut batches: Vec<_> = cutting.advance(bytes.len()).into_iter().collect();
    batches.push(cutting.end());
    for mut batch in batches {
        batch.fingerprint(session.domain());
        session.add(&batch, &mut writing, &mut |open| writer.pack_and_write(open)).unwrap();
    }
    assert_eq!(session.new_bytes, 0);
    assert!(desk.collect().waits);
    record_damage(&desk.open(), &BTreeMap::from([(rotten, vec![1])])).unwrap();
    let done = desk.collect();
    assert!(done.waits && done.dropped == 0, "{done:?}");
    let data = session.end_recipe(writing, &mut |open| writer.pack_and_write(open)).unwrap();
    session.seal(&mut |open| writer.pack_and_write(open)).unwrap();
    writer
        .commit(Ended {
            name: "again".into(),
            shape: Shape::Bytes,
            created: 1_000,
            data,
            listing: Vec::new(),
        })
        .unwrap();
    drop((session, writer, archive));
    desk.collect();
    assert!(desk.get("again").unwrap() == bytes);
}

#[test]
fn a_note_of_damage_does_not_free_what_a_reader_reads() {
    let desk = Desk::new();
    // Less than half of each container stays, so that they are merged.
    let (keep, drop_) = (noise(3, 80 << 10), noise(4, 160 << 10));
    for n in 0..3 {
        let mut both = keep.clone();
        both[..4096].copy_from_slice(&noise(10 + n, 4096));
        both.extend_from_slice(&noise(20 + n, 160 << 10));
        desk.put(&format!("v{n}"), &both).unwrap();
    }
    desk.put("whole", &drop_).unwrap();
    let rotten = desk.containers().last().unwrap().0;
    let mut part = keep.clone();
    part[..4096].copy_from_slice(&noise(10, 4096));
    desk.put("part", &part).unwrap();
    (0..3).for_each(|n| desk.open().remove(&format!("v{n}")).unwrap());
    // Condemned and merged while somebody reads the old places.
    let reader = Reader::new(&desk.open()).unwrap();
    desk.collect();
    let mut reader2 = Reader::new(&desk.open()).unwrap();
    drop(reader);
    desk.collect();
    for bit in [1, 2, 4] {
        record_damage(&desk.open(), &BTreeMap::from([(rotten, vec![bit])])).unwrap();
    }
    let leaving = desk.open().tables().waiting_to_be_freed.len();
    let stream = reader2.stream("part").unwrap();
    desk.collect();
    let mut bytes = Vec::new();
    let read = reader2.read(&stream.recipe, Verify::Chunks, &mut |content| {
        if let Content::Bytes(part) = content {
            bytes.extend_from_slice(part);
        }
        Ok(())
    });
    assert!(read.is_ok() && bytes == part, "{read:?}, {leaving} places were to be freed");
}

#[test]
fn what_may_be_read_another_time_is_not_given_up() {
    let desk = Desk::new();
    let bytes = noise(5, 480 << 10);
    desk.put("s", &bytes).unwrap();
    let (id, at, meta) = desk.containers()[0];
    // Of the first container two groups: one rots, and one can't be read for a while.
    desk.rot(at + meta + 100);
    desk.fail(Some((at + meta + (130 << 10), 512)));
    let (report, healed) = desk.scrub();
    assert!(report.lost.len() > 40 && healed.unwrap().chunks == 0);
    // A rotten chunk is stored once more, one that can't be read is not.
    desk.put("t", &bytes[..64 << 10]).unwrap();
    let (_, healed) = desk.scrub();
    healed.unwrap();
    desk.fail(None);
    assert_eq!(
        desk.containers().iter().filter(|(there, ..)| *there == id).count(),
        1,
        "the container went with chunks that can be read"
    );
    // All is stored by now, or can be read again.
    desk.put("t", &bytes[..128 << 10]).unwrap();
    let (_, healed) = desk.scrub();
    assert!(healed.unwrap().chunks > 40);
    assert!(desk.get("s").unwrap() == bytes);
    let (report, _) = desk.scrub();
    assert!(report.is_well() && desk.open().tables().damaged.is_empty(), "{:?}", report.problems);
}

#[test]
fn metadata_that_can_not_be_read_is_not_given_up() {
    let desk = Desk::new();
    let bytes = noise(6, 240 << 10);
    desk.put("s", &bytes).unwrap();
    let (_, at, _) = desk.containers()[0];
    desk.fail(Some((at, 512)));
    // Nobody fails because of it: what can't be shown is stored anew.
    assert_eq!(desk.put("t", &bytes[..40 << 10]).unwrap(), 40 << 10);
    let (report, healed) = desk.scrub();
    assert_eq!(report.lost.len(), 60);
    assert_eq!(healed.unwrap().chunks, 0);
    desk.fail(None);
    assert!(desk.get("s").unwrap() == bytes);
    // When it stays so, and all of it is there once more, it is whole again.
    desk.fail(Some((at, 512)));
    desk.put("t", &bytes).unwrap();
    let (_, healed) = desk.scrub();
    assert_eq!(healed.unwrap().chunks, 60);
    assert!(desk.get("s").unwrap() == bytes);
}

#[test]
fn what_lies_on_nodes_that_are_absent_is_not_given_up() {
    let desk = Desk::on_nodes();
    let streams: Vec<(String, Vec<u8>)> =
        (0..6u64).map(|n| (format!("s{n}"), noise(30 + n, 240 << 10))).collect();
    for (name, bytes) in &streams {
        desk.put(name, bytes).unwrap();
    }
    let away = |node: usize| {
        fs::rename(desk.path(&format!("n{node}")), desk.path(&format!("away{node}"))).unwrap()
    };
    let back = |node: usize| {
        fs::rename(desk.path(&format!("away{node}")), desk.path(&format!("n{node}"))).unwrap()
    };
    // Two are not mounted: more than there is parity. Log and tables are all there.
    [3, 4].into_iter().for_each(away);
    let before = desk.open().tables().containers.clone();
    assert!(!desk.scrub().0.is_well(), "all nodes that matter were there");
    for (name, bytes) in &streams {
        // A part of each is put a second time.
        desk.put(&format!("{name}-again"), &bytes[..40 << 10]).unwrap();
    }
    desk.scrub().1.unwrap();
    [3, 4].into_iter().for_each(back);
    let gone: Vec<_> = before
        .iter()
        .map(|container| container.unwrap().stored.id)
        .filter(|id| !desk.open().tables().containers.contains_key(id).unwrap())
        .collect();
    assert!(gone.is_empty(), "{gone:?} were written again without what absent nodes have");
    for (name, bytes) in &streams {
        assert!(desk.get(name).unwrap() == *bytes, "{name}");
    }
    // And nothing says that they are damaged.
    assert!(check(&desk.open(), false, &mut |_, _, _| {}).unwrap().is_well());
}

#[test]
fn an_index_that_cannot_be_read_costs_duplicates_alone() {
    let desk = Desk::new();
    let bytes = noise(7, 32 << 20);
    desk.put("a", &bytes).unwrap();
    let file = desk.open().tables().index.files[0];
    let name = fs::read_dir(desk.path("a"))
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap());
    let name = name.into_iter().find(|name| name.starts_with("index-")).unwrap();
    *desk.bad.lock() = Some((name, 0, u64::from(file.pages) * 4096));
    desk.put("b", &bytes).unwrap();
    assert!(desk.get("b").unwrap() == bytes);
}

#[test]
fn a_put_says_why_it_failed_while_its_source_goes_on() {
    let desk = Desk::new();
    *desk.bad.lock() = Some(("segment-00000001".to_owned(), UNWRITABLE, 0));
    let error = desk.put("b", &noise(7, 32 << 20)).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().contains("a sector can't be written")),
        (Kind::Io, true),
        "{error}"
    );
}
