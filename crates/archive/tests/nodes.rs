//! Archives on several nodes: what is lost, late, foreign or rotten.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use onefold_archive::{
    Absent, Archive, Collection, CollectionOptions, Format, Ingest, Nodes, Rebuilt, Replacement,
    Settings, Spread, check, repair_units as repair, replace_nodes as replace,
};
use onefold_backend::Directory;
use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use support::noise;

struct Desk {
    dir: tempfile::TempDir,
    count: usize,
}

impl Desk {
    fn new(count: usize, n: usize, k: usize) -> Desk {
        let dir = tempfile::Builder::new()
            .prefix("nodes")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let desk = Desk { dir, count };
        let directories = (0..count)
            .map(|node| Arc::new(Directory::create(&desk.path(node)).unwrap()) as Arc<dyn Files>)
            .collect();
        let mut format = Format::new([1; 16], [2; 32], [3; 16]);
        format.reserve_bytes = 1 << 20;
        let spread =
            Spread { n, k, ids: (0..count).map(|node| [node as u8; 16]).collect(), listed: false };
        let nodes = Nodes::create(directories, &spread, format.id, format.secret).unwrap();
        Archive::create_on_nodes(&nodes, &format).unwrap();
        desk
    }

    fn path(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("n{node}"))
    }

    fn lose(&self, node: usize) {
        fs::rename(self.path(node), self.dir.path().join(format!("lost{node}"))).unwrap();
    }

    fn bring_back(&self, node: usize) {
        let _ = fs::remove_dir_all(self.path(node));
        fs::rename(self.dir.path().join(format!("lost{node}")), self.path(node)).unwrap();
    }

    fn open(&self, degraded: bool) -> Result<(Arc<Nodes>, Arc<Archive>)> {
        let directory =
            |node| Some(Arc::new(Directory::open(&self.path(node), true).ok()?) as Arc<dyn Files>);
        let nodes = Arc::new(Nodes::open((0..self.count).map(directory).collect(), degraded)?);
        let archive = Arc::new(Archive::open_on_nodes(nodes.clone(), true, Settings::default())?);
        Ok((nodes, archive))
    }

    fn absent(&self) -> Vec<(usize, Absent)> {
        self.open(false).unwrap().0.absent()
    }

    fn try_put(&self, name: &str, bytes: &[u8], degraded: bool) -> Result<()> {
        support::put(&self.open(degraded)?.1, name, bytes).map(|_| ())
    }

    fn get(&self, name: &str) -> Result<Vec<u8>> {
        support::get(&self.open(false)?.1, name)
    }

    fn replace(&self, node: usize, to: &Path) -> Result<Rebuilt> {
        let (nodes, archive) = self.open(false)?;
        let files: Arc<dyn Files> = Arc::new(Directory::open(to, true)?);
        replace(
            &archive,
            &nodes,
            &Replacement { number: node, files, id: [77; 16] },
            &mut |_, _| {},
        )
    }

    fn repair(&self) -> Rebuilt {
        let (nodes, archive) = self.open(false).unwrap();
        repair(&archive, &nodes, true, &mut |_, _| {}).unwrap()
    }

    fn is_well(&self) -> bool {
        check(&self.open(false).unwrap().1, true, &mut |_, _, _| {}).unwrap().is_well()
    }
}

/// All choices of `lost` of `n`.
fn choices(n: usize, lost: usize) -> Vec<Vec<usize>> {
    let all = (0u32..1 << n).filter(|bits| bits.count_ones() as usize == lost);
    all.map(|bits| (0..n).filter(|column| bits >> column & 1 == 1).collect()).collect()
}

#[test]
fn every_choice_of_lost_nodes_is_read_and_one_more_is_told() {
    for (count, n, k) in [(3, 3, 2), (5, 5, 3), (6, 5, 3)] {
        let desk = Desk::new(count, n, k);
        let (one, two) = (noise(1, 3_000_000), noise(2, 9_000));
        desk.try_put("one", &one, false).unwrap();
        desk.try_put("two", &two, false).unwrap();
        for lost in choices(count, n - k) {
            lost.iter().for_each(|&node| desk.lose(node));
            assert!(
                desk.get("one").unwrap() == one && desk.get("two").unwrap() == two,
                "({n}, {k}) without {lost:?}"
            );
            assert!(desk.is_well());
            lost.iter().for_each(|&node| desk.bring_back(node));
        }
        (0..=n - k).for_each(|node| desk.lose(node));
        let error = desk.get("one").unwrap_err();
        assert!(matches!(error.kind(), Kind::Stopped | Kind::Corrupt), "{error:?}");
    }
}

#[test]
fn a_long_code_loses_its_two_nodes() {
    let desk = Desk::new(16, 14, 12);
    let one = noise(3, 6_000_000);
    desk.try_put("one", &one, false).unwrap();
    for lost in [[0, 1], [2, 9], [4, 15], [12, 13]] {
        lost.iter().for_each(|&node| desk.lose(node));
        assert!(desk.get("one").unwrap() == one, "without {lost:?}");
        lost.iter().for_each(|&node| desk.bring_back(node));
    }
}

#[test]
fn puts_use_other_nodes_or_say_that_they_can_not() {
    let desk = Desk::new(7, 5, 3);
    desk.try_put("one", &noise(1, 200_000), false).unwrap();
    [1, 5].iter().for_each(|&node| desk.lose(node));
    let two = noise(2, 2_000_000);
    desk.try_put("two", &two, false).unwrap();
    // Data written now survives the loss of two more nodes, as long as the log does.
    [0, 6].iter().for_each(|&node| desk.lose(node));
    assert!(desk.get("two").unwrap() == two);

    let desk = Desk::new(5, 5, 3);
    desk.lose(4);
    let error = desk.try_put("one", &two, false).unwrap_err();
    assert!(error.to_string().contains("--degraded"), "{error}");
    desk.try_put("one", &two, true).unwrap();
    assert!(desk.get("one").unwrap() == two);
    desk.lose(3);
    assert!(desk.try_put("two", &two, true).is_err(), "only k nodes are left");
    assert!(desk.get("one").unwrap() == two);
}

#[test]
fn a_node_that_missed_changes_does_not_count_when_it_comes_back() {
    let desk = Desk::new(5, 5, 3);
    desk.try_put("one", &noise(1, 100_000), false).unwrap();
    desk.try_put("two", &noise(2, 100_000), false).unwrap();
    desk.lose(0);
    desk.open(false).unwrap().1.remove("one").unwrap();
    desk.bring_back(0);
    assert_eq!(desk.absent(), [(0, Absent::Outdated)]);
    assert_eq!(desk.get("one").unwrap_err().kind(), Kind::NotFound);
    // Neither does it together with others that it could outvote.
    desk.lose(3);
    assert_eq!(desk.get("one").unwrap_err().kind(), Kind::NotFound);
    assert_eq!(desk.get("two").unwrap(), noise(2, 100_000));
    desk.bring_back(3);
    // A node that was away while nothing happened counts.
    desk.lose(2);
    assert_eq!(desk.get("two").unwrap(), noise(2, 100_000));
    desk.bring_back(2);
    assert_eq!(desk.absent(), [(0, Absent::Outdated)]);
}

#[test]
fn an_empty_mount_point_is_not_filled_and_no_foreign_directory_is_believed() {
    let desk = Desk::new(5, 5, 3);
    desk.try_put("one", &noise(1, 100_000), false).unwrap();
    desk.lose(1);
    fs::create_dir(desk.path(1)).unwrap();
    assert_eq!(desk.absent(), [(1, Absent::Unlabelled)]);
    desk.try_put("two", &noise(2, 100_000), true).unwrap();
    assert_eq!(fs::read_dir(desk.path(1)).unwrap().count(), 0);

    // A node of another archive, and another node of this one.
    let other = Desk::new(5, 5, 3);
    other.lose(1);
    fs::remove_dir(desk.path(1)).unwrap();
    fs::rename(desk.dir.path().join("lost1"), desk.dir.path().join("kept1")).unwrap();
    fs::create_dir(desk.path(1)).unwrap();
    for entry in fs::read_dir(desk.path(2)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), desk.path(1).join(entry.file_name())).unwrap();
    }
    assert_eq!(desk.absent(), [(1, Absent::Foreign)]);
    assert_eq!(desk.get("two").unwrap(), noise(2, 100_000));
}

#[test]
fn a_replaced_node_carries_its_share() {
    let desk = Desk::new(6, 5, 3);
    let (one, two) = (noise(1, 2_000_000), noise(2, 2_000_000));
    desk.try_put("one", &one, false).unwrap();
    for node in [0, 5, 3] {
        desk.lose(node);
        fs::create_dir(desk.path(node)).unwrap();
        let rebuilt = desk.replace(node, &desk.path(node)).unwrap();
        assert_eq!((rebuilt.nodes, rebuilt.lost_containers), (1, 0));
        assert_eq!(desk.absent(), []);
        fs::remove_dir_all(desk.dir.path().join(format!("lost{node}"))).unwrap();
    }
    desk.try_put("two", &two, false).unwrap();
    assert_eq!(desk.repair().units.bad_units, 0);
    for lost in choices(6, 2) {
        lost.iter().for_each(|&node| desk.lose(node));
        assert!(
            desk.get("one").unwrap() == one && desk.get("two").unwrap() == two,
            "without {lost:?}"
        );
        lost.iter().for_each(|&node| desk.bring_back(node));
    }
    // A node that counts is not replaced, and does not replace another one.
    let spare = desk.dir.path().join("spare");
    fs::create_dir(&spare).unwrap();
    assert_eq!(desk.replace(1, &spare).unwrap_err().kind(), Kind::InvalidInput);
    desk.lose(1);
    assert_eq!(desk.replace(1, &desk.path(2)).unwrap_err().kind(), Kind::InvalidInput);
    fs::write(spare.join("somebody's"), "data").unwrap();
    assert_eq!(desk.replace(1, &spare).unwrap_err().kind(), Kind::Exists);
}

#[test]
fn an_outdated_node_is_filled_again_when_that_is_asked_for() {
    let desk = Desk::new(3, 3, 2);
    let (one, two) = (noise(1, 500_000), noise(2, 500_000));
    desk.try_put("one", &one, false).unwrap();
    desk.lose(2);
    desk.open(false).unwrap().1.rename("one", "uno").unwrap();
    desk.bring_back(2);
    desk.replace(2, &desk.path(2)).unwrap();
    assert_eq!(desk.absent(), []);
    desk.try_put("two", &two, false).unwrap();
    desk.lose(0);
    assert!(desk.get("uno").unwrap() == one && desk.get("two").unwrap() == two);
}

#[test]
fn rot_is_read_around_and_mended() {
    let desk = Desk::new(5, 5, 3);
    let one = noise(1, 3_000_000);
    desk.try_put("one", &one, false).unwrap();
    let segment = |node: usize| desk.path(node).join("segment-00000001");
    // Never in the same row: with the third column gone, two of a row are all that may be lost.
    for (node, from, every) in [(0, 5_000, 50_000), (3, 30_000, 70_000)] {
        let mut bytes = fs::read(segment(node)).unwrap();
        (from..900_000).step_by(every).for_each(|at| bytes[at] ^= 0x40);
        fs::write(segment(node), bytes).unwrap();
    }
    fs::remove_file(segment(4)).unwrap();
    assert!(desk.get("one").unwrap() == one);
    let mended = desk.repair();
    assert!(mended.units.repaired_units > 100 && mended.lost_containers == 0, "{mended:?}");
    assert_eq!(desk.repair().units.bad_units, 0);
    for lost in choices(5, 2) {
        lost.iter().for_each(|&node| desk.lose(node));
        assert!(desk.get("one").unwrap() == one, "without {lost:?}");
        lost.iter().for_each(|&node| desk.bring_back(node));
    }
    // Log and tables have copies: damage in one of them is read around.
    for name in ["label", "snapshot-0000000001", "log-0000000001"] {
        fs::write(desk.path(0).join(name), [0x55; 9000]).unwrap();
        assert!(desk.get("one").unwrap() == one, "{name}");
    }
}

#[test]
fn a_rotten_copy_is_not_copied_over_whole_ones() {
    let desk = Desk::new(3, 3, 2);
    let bytes = noise(3, 300_000);
    desk.try_put("a", &bytes, false).unwrap();
    // A crash left the log of two copies one change behind that of the first, whose snapshot rots.
    let log = |node: usize| desk.path(node).join("log-0000000001");
    let before: Vec<Vec<u8>> = (0..3).map(|node| fs::read(log(node)).unwrap()).collect();
    desk.open(false).unwrap().1.rename("a", "b").unwrap();
    for node in [1, 2] {
        let vouched = desk.path(node).join("vouched");
        fs::write(log(node), &before[node]).unwrap();
        fs::write(vouched, []).unwrap();
    }
    let snapshot = desk.path(0).join("snapshot-0000000001");
    let mut rotten = fs::read(&snapshot).unwrap();
    rotten[50] ^= 1;
    fs::write(&snapshot, &rotten).unwrap();
    let (_, archive) = desk.open(false).unwrap();
    let name = archive.tables().streams.keys().next().unwrap().clone();
    assert_eq!(support::get(&archive, &name).unwrap(), bytes);
    drop(archive);
    // The rotten copy was written again from a whole one.
    for node in 0..3 {
        let copy = desk.path(node).join("snapshot-0000000001");
        assert_ne!(fs::read(copy).unwrap(), rotten, "node {node}");
    }
}

/// A directory of which one file can't be read.
struct Unreadable {
    directory: Directory,
    prefix: &'static str,
}

impl Files for Unreadable {
    fn names(&self) -> Result<Vec<String>> {
        self.directory.names()
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        self.directory.create(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        let file = self.directory.open(name)?;
        Ok(if name.starts_with(self.prefix) { Arc::new(BadSectors(file)) } else { file })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.directory.remove(name)
    }

    fn sync_names(&self) -> Result<()> {
        self.directory.sync_names()
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        self.directory.lock(name, hold, wait)
    }
}

struct BadSectors(Arc<dyn File>);

impl File for BadSectors {
    fn bytes(&self) -> Result<u64> {
        self.0.bytes()
    }

    fn occupied(&self) -> Result<u64> {
        self.0.occupied()
    }

    fn read_at(&self, _at: u64, _into: &mut [u8]) -> Result<usize> {
        Err(Error::new(Kind::Io, "a sector can't be read"))
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.0.write_at(at, data)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.0.set_bytes(bytes)
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        self.0.reserve(at, bytes)
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.0.punch(at, bytes)
    }
}

#[test]
fn nodes_that_are_written_are_not_blamed_for_one_that_can_not_be_read() {
    for prefix in ["index-", "counts-", "snapshot-", "vouched", "reserve"] {
        let desk = Desk::new(4, 3, 2);
        let bytes = noise(3, 300_000);
        desk.try_put("a", &bytes, false).unwrap();
        let archive = desk.open(false).unwrap().1;
        Ingest::begin(&archive, false, false).unwrap().import(true).unwrap();
        let options = CollectionOptions { wait: true, ..support::options(1000) };
        Collection::begin(&archive, options).unwrap().run(&mut |_| {}).unwrap();
        drop(archive);
        let names = Directory::open(&desk.path(0), true).unwrap().names().unwrap();
        assert!(names.iter().any(|name| name.starts_with(prefix)), "{prefix}: {names:?}");
        let newest = Directory::open(&desk.path(0), true).unwrap().names().unwrap();
        let newest = newest.into_iter().filter(|name| name.starts_with("log-")).max().unwrap();
        let log = |node: usize| desk.path(node).join(&newest);
        let before: Vec<Vec<u8>> = (0..3).map(|node| fs::read(log(node)).unwrap()).collect();
        desk.open(false).unwrap().1.rename("a", "b").unwrap();
        for node in [1, 2] {
            fs::write(log(node), &before[node]).unwrap();
            fs::write(desk.path(node).join("vouched"), []).unwrap();
        }
        let directories = (0..4).map(|node| {
            let directory = Directory::open(&desk.path(node), true).unwrap();
            let prefix = if node == 0 { prefix } else { "none" };
            Some(Arc::new(Unreadable { directory, prefix }) as Arc<dyn Files>)
        });
        // The node itself is left out as soon as somebody reads the file: one of four can go.
        let nodes = Arc::new(Nodes::open(directories.collect(), false).unwrap());
        let archive = Archive::open_on_nodes(nodes.clone(), true, Settings::default());
        let archive = Arc::new(archive.unwrap_or_else(|error| panic!("{prefix}: {error}")));
        let name = archive.tables().streams.keys().next().unwrap().clone();
        assert_eq!(support::get(&archive, &name).unwrap(), bytes, "{prefix}");
        support::put(&archive, "more", &noise(4, 300_000)).unwrap();
        drop((archive, nodes));
        let absent = desk.absent();
        assert!(absent.iter().all(|(node, _)| *node == 0), "{prefix}: {absent:?}");
        assert_eq!(desk.get(&name).unwrap(), bytes, "{prefix}");
    }
}
