//! Late encoding by reference counts: what stood replicated is settled, and survives the same
//! losses.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, Class, Collected, Collection, CollectionOptions as Options, Format, Nodes, PLACES_MAX,
    Place, PutReport as Report, Rad, Settings, Spread, check,
};
use onefold_backend::Directory;
use onefold_core::{Error, Files, Kind, Result};
use support::{Call, Watch, Watched, noise};

const RAD: Rad = Rad { delay: 1, batch: 2, classes: [4, 3, 2], gathers: 0 };

struct Desk {
    dir: tempfile::TempDir,
    settings: Settings,
}

/// How many writes and syncs are left before the process is as good as dead.
type Left = Arc<AtomicI64>;

impl Desk {
    /// Six nodes, the code (6, 4), and 5,3 and 4,2 for what is shared.
    fn new(late: Option<Rad>) -> Desk {
        let dir =
            tempfile::Builder::new().prefix("rad").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let settings =
            Settings { container_bytes: 64 << 10, count_slots: 40, ..Settings::default() };
        let desk = Desk { dir, settings };
        let directories = (0..6)
            .map(|node| Arc::new(Directory::create(&desk.path(node)).unwrap()) as Arc<dyn Files>)
            .collect();
        let mut format = Format::new([1; 16], [2; 32], [3; 16]);
        (format.reserve_bytes, format.late) = (1 << 20, late);
        let spread = Spread {
            n: 6,
            k: 4,
            ids: (0..6).map(|node| [node as u8; 16]).collect(),
            listed: false,
        };
        let nodes = Nodes::create(directories, &spread, format.id, format.secret).unwrap();
        Archive::create_on_nodes(&nodes, &format).unwrap();
        desk
    }

    fn path(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("n{node}"))
    }

    fn open_with(&self, wrap: &dyn Fn(Directory) -> Arc<dyn Files>) -> Result<Arc<Archive>> {
        let directory = |node| Some(wrap(Directory::open(&self.path(node), true).ok()?));
        let nodes = Arc::new(Nodes::open((0..6).map(directory).collect(), false)?);
        Ok(Arc::new(Archive::open_on_nodes(nodes, true, self.settings.clone())?))
    }

    fn open(&self) -> Arc<Archive> {
        self.open_with(&|directory| Arc::new(directory)).unwrap()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Report {
        support::put(&self.open(), name, bytes).unwrap()
    }

    fn get(&self, name: &str) -> Result<Vec<u8>> {
        support::get(&self.open(), name)
    }

    fn collect(&self, encode_all: bool) -> Collected {
        collect(&self.open(), encode_all).unwrap()
    }

    fn are_there(&self, versions: &[Vec<u8>]) {
        for (n, version) in versions.iter().enumerate() {
            assert!(self.get(&format!("v{n}")).unwrap() == *version, "version {n}");
        }
        let report = check(&self.open(), true, &mut |_, _, _| {}).unwrap();
        assert!(report.is_well(), "{:?}", report.problems);
    }

    /// Columns of data of all containers of a class.
    fn codes(&self, class: Class) -> Vec<u8> {
        let tables = self.open().tables();
        let all = tables.containers.iter();
        let all = all.map(|container| tables.class(&container.unwrap().stored.place));
        all.filter(|(of, _)| *of == class).map(|(_, data)| data).collect()
    }
}

fn collect(archive: &Arc<Archive>, encode_all: bool) -> Result<Collected> {
    let options = Options { encode_all, ..support::options(5_000) };
    Collection::begin(archive, options)?.run(&mut |_| {})
}

/// Versions that share a little with all, more with one other, and most with none.
fn versions(count: u64) -> Vec<Vec<u8>> {
    let one = |n: u64| {
        [noise(1, 60_000), noise(100 + n / 2, 200_000), noise(1_000 + n, 400_000)].concat()
    };
    (0..count).map(one).collect()
}

#[test]
fn every_choice_of_lost_nodes_is_read_after_settling() {
    let (desk, versions) = (Desk::new(Some(RAD)), versions(5));
    for (n, version) in versions.iter().enumerate() {
        desk.put(&format!("v{n}"), version);
        let done = desk.collect(false);
        // Two versions are settled together, when the next one left their counts as they were.
        assert_eq!(done.encoded > 0, n == 2 || n == 4, "{n}: {done:?}");
    }
    assert!(desk.open().tables().sums().replicated().0 > 0);
    desk.collect(true);
    let tables = desk.open().tables();
    assert_eq!(tables.sums().replicated(), (0, 0));
    for (class, data) in
        [(Class::Cold, 4), (Class::Baseline, 3), (Class::Hot, 2), (Class::Plain, 4)]
    {
        let codes = desk.codes(class);
        assert!(
            !codes.is_empty() && codes.iter().all(|&found| found == data),
            "{class}: {codes:?}"
        );
    }
    assert!(
        tables.moved_to.values().any(|places| places.len() > 1)
            && tables.moved_to.values().all(|places| places.len() <= PLACES_MAX)
    );
    assert_eq!(desk.put("again", &versions[2]).new_bytes, 0, "what was settled is found");
    for lost in (0u32..1 << 6).filter(|bits| bits.count_ones() == 2) {
        let lost: Vec<usize> = (0..6).filter(|node| lost >> node & 1 == 1).collect();
        let away = |node: usize| desk.dir.path().join(format!("lost{node}"));
        lost.iter().for_each(|&node| fs::rename(desk.path(node), away(node)).unwrap());
        desk.are_there(&versions);
        lost.iter().for_each(|&node| fs::rename(away(node), desk.path(node)).unwrap());
    }
    for n in 0..5 {
        desk.open().remove(&format!("v{n}")).unwrap();
    }
    desk.open().remove("again").unwrap();
    desk.collect(false);
    let tables = desk.open().tables();
    assert_eq!((tables.sums().all().bytes, tables.moved_to.len()), (0, 0));
}

#[test]
fn counts_that_change_put_settling_off_and_dead_chunks_are_left_behind() {
    let (desk, versions) = (Desk::new(Some(Rad { batch: 1, ..RAD })), versions(2));
    desk.put("v0", &versions[0]);
    assert_eq!(desk.collect(false).encoded, 0);
    // The same again: its counts change with this version, and with the removal before the next
    // one.
    desk.put("other", &versions[0]);
    assert_eq!(desk.collect(false).encoded, 0);
    desk.put("v1", &versions[1]);
    desk.open().remove("other").unwrap();
    assert_eq!(desk.collect(false).encoded, 0);
    let changed = desk.open().tables();
    assert_eq!(changed.versions, 3);
    desk.open().remove("v0").unwrap();
    desk.put("v0", &versions[1]);
    let before = desk.open().tables().write_cost;
    let done = desk.collect(true);
    let work = desk.open().tables().write_cost;
    assert!(
        done.encoded > 0 && done.encoded_chunk_bytes < 700_000,
        "only what lives is encoded: {done:?}"
    );
    assert_eq!(
        (work.encoded_chunks - before.encoded_chunks, work.encode_bytes - before.encode_bytes),
        (done.encoded_chunks, done.encode_bytes)
    );
    assert!(work.upload_bytes > 3 * 1_000_000, "three copies: {work:?}");
    desk.are_there(&[versions[1].clone(), versions[1].clone()]);
}

#[test]
fn a_settling_that_dies_at_any_write_loses_nothing() {
    let (desk, versions) = (Desk::new(Some(RAD)), versions(3));
    for (n, version) in versions.iter().enumerate() {
        desk.put(&format!("v{n}"), version);
    }
    let mut died = 0;
    // A prime, so that shards, their syncs, and the log are hit by turns.
    for writes in (0..).step_by(37) {
        let left: Left = Arc::new(AtomicI64::new(writes));
        let dying = |directory| {
            Arc::new(Watched { files: Arc::new(directory), watch: dying(&left) }) as Arc<dyn Files>
        };
        let done = desk.open_with(&dying).and_then(|archive| collect(&archive, true));
        if done.is_ok() && left.load(Relaxed) > 0 {
            break;
        }
        died += 1;
        desk.are_there(&versions);
    }
    assert!(died > 3, "{died}");
    desk.collect(true);
    assert_eq!(desk.open().tables().sums().replicated(), (0, 0));
    desk.are_there(&versions);
}

#[test]
fn a_damaged_container_stays_as_it_is_and_the_others_are_settled() {
    let (desk, versions) = (Desk::new(Some(RAD)), versions(2));
    for (n, version) in versions.iter().enumerate() {
        desk.put(&format!("v{n}"), version);
    }
    // One byte of the same unit in all copies.
    let (id, place) = {
        let tables = desk.open().tables();
        let full =
            |place: &Place| tables.class(place).0 == Class::Replicated && place.bytes > 32 << 10;
        let found = tables
            .containers
            .iter()
            .map(Result::unwrap)
            .filter(|container| full(&container.stored.place))
            .last()
            .unwrap();
        (found.stored.id, found.stored.place)
    };
    // Behind the metadata: its groups rot.
    let unit = (place.at + u64::from(place.meta_bytes)) / 4096 + 1;
    let at = 4096 + unit * 4104 + 7;
    for node in 0..6 {
        let path = desk.path(node).join(format!("segment-{:08}", place.segment));
        if let Ok(mut bytes) = fs::read(&path) {
            bytes[at as usize] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    }
    let done = desk.collect(true);
    assert!(done.damaged == 1 && done.encoded > 3, "{done:?}");
    let tables = desk.open().tables();
    assert_eq!(
        (
            tables.containers.get(&id).unwrap().map(|found| found.stored.place),
            tables.sums().replicated().1
        ),
        (Some(place), 1)
    );
    // The lost chunk is of the last version; those of the first one are whole.
    assert!(desk.get("v0").unwrap() == versions[0]);
    assert_eq!(desk.get("v1").unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn archives_with_round_robin_are_as_they_were() {
    let (desk, versions) = (Desk::new(None), versions(2));
    desk.put("v0", &versions[0]);
    assert_eq!(desk.collect(true).encoded, 0);
    assert_eq!(fs::read(desk.path(0).join("label")).unwrap()[4096 + 8], 1);
    let late = Desk::new(Some(RAD));
    assert_eq!(
        fs::read(late.path(0).join("label")).unwrap()[4096 + 8],
        2,
        "programs that do not know it refuse it"
    );
    assert!(desk.codes(Class::Replicated).is_empty() && !desk.codes(Class::Plain).is_empty());
}

/// A process that dies in the middle.
fn dying(left: &Left) -> Watch {
    let left = left.clone();
    Arc::new(move |_, call, does| {
        if matches!(call, Call::Change) {
            live(&left)?;
        }
        does()
    })
}

fn live(left: &Left) -> Result<()> {
    if left.fetch_sub(1, Relaxed) > 0 {
        Ok(())
    } else {
        Err(Error::new(Kind::Io, "the process is dead"))
    }
}
