//! Two processes change an archive whose nodes are on other hosts, and whose connections break: each connection
//! carries the writes to a node and the locks there, which end with it.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Absent, Archive, Collection, Format, Ingest, NodeLabel, Nodes, Replacement, Settings, Spread,
    rebuild_chunk_index, replace_nodes as replace,
};
use onefold_backend::Directory;
use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::Mutex;
use support::noise;

const NODES: usize = 5;

/// One process's connection to a node: when it is cut, its calls fail and its locks end, and it never comes back.
#[derive(Clone)]
struct Line(Arc<Ends>);

struct Ends {
    files: Directory,
    is_cut: AtomicBool,
    /// The other end says that it has no locks, and no label.
    is_mute: AtomicBool,
    /// The other end says that each file is as long as a number can be.
    is_long: AtomicBool,
    /// What the other end answers to each change, if not that it was done.
    refuses: Mutex<Option<Kind>>,
    locks: Mutex<(u64, HashMap<u64, Box<dyn Lock>>)>,
    /// What happens before the importer's lock is asked for the next time.
    before_lock: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Line {
    fn cut(&self) {
        self.0.is_cut.store(true, Relaxed);
        self.0.locks.lock().1.clear();
    }

    fn there(&self) -> Result<&Directory> {
        match self.0.is_cut.load(Relaxed) {
            true => Err(Error::new(Kind::Io, "the connection ended")),
            false => Ok(&self.0.files),
        }
    }

    /// The directory, for a change.
    fn changed(&self) -> Result<&Directory> {
        match *self.0.refuses.lock() {
            Some(kind) => Err(Error::new(kind, "the other end refuses")),
            None => self.there(),
        }
    }

    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(LineFile(self.clone(), file))
    }
}

impl Files for Line {
    fn names(&self) -> Result<Vec<String>> {
        self.there()?.names()
    }
    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        self.changed()?.create(name).map(|file| self.wrap(file))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        if name == "node" && self.0.is_mute.load(Relaxed) {
            return Err(Error::new(Kind::Io, "no label is told"));
        }
        self.there()?.open(name).map(|file| self.wrap(file))
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.changed()?.remove(name)
    }
    fn sync_names(&self) -> Result<()> {
        self.there()?.sync_names()
    }
    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        let happens = self.0.before_lock.lock().take_if(|_| name == "lock-importer");
        if let Some(happens) = happens {
            happens();
        }
        let lock = self.there()?.lock(name, hold, wait)?;
        let locks = &mut *self.0.locks.lock();
        locks.0 += 1;
        locks.1.insert(locks.0, lock);
        Ok(Box::new(LineLock(self.clone(), locks.0)))
    }
}

struct LineLock(Line, u64);

impl Lock for LineLock {}

impl Drop for LineLock {
    fn drop(&mut self) {
        self.0.0.locks.lock().1.remove(&self.1);
    }
}

struct LineFile(Line, Arc<dyn File>);

impl LineFile {
    fn there(&self) -> Result<&dyn File> {
        self.0.there().map(|_| &*self.1)
    }

    fn changed(&self) -> Result<&dyn File> {
        self.0.changed().map(|_| &*self.1)
    }
}

impl File for LineFile {
    fn bytes(&self) -> Result<u64> {
        let bytes = self.there()?.bytes()?;
        Ok(if self.0.0.is_long.load(Relaxed) { u64::MAX } else { bytes })
    }
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.there()?.read_at(at, into)
    }
    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.changed()?.write_at(at, data)
    }
    fn sync(&self) -> Result<()> {
        self.there()?.sync()
    }
    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.changed()?.set_bytes(bytes)
    }
    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        self.changed()?.reserve(at, bytes)
    }
    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.changed()?.punch(at, bytes)
    }
}

/// Five hosts with a node each: the log on the first three, one may be lost.
struct Hosts(tempfile::TempDir);

/// What one process has.
struct Process {
    lines: Vec<Line>,
    nodes: Arc<Nodes>,
    archive: Arc<Archive>,
}

impl Hosts {
    fn new() -> Hosts {
        let dir = tempfile::Builder::new()
            .prefix("fences")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let path = |node: usize| dir.path().join(format!("n{node}"));
        let directories = (0..NODES)
            .map(|node| Arc::new(Directory::create(&path(node)).unwrap()) as Arc<dyn Files>);
        let mut format = Format::new([1; 16], [2; 32], [3; 16]);
        (format.reserve_bytes, format.segment_bytes) = (1 << 20, 256 << 10);
        let ids = (0..NODES).map(|node| [node as u8; 16]).collect();
        let spread = Spread { n: 3, k: 2, ids, listed: false };
        let nodes =
            Nodes::create(directories.collect(), &spread, format.id, format.secret).unwrap();
        Archive::create_on_nodes(&nodes, &format).unwrap();
        Hosts(dir)
    }

    fn line(&self, name: &str) -> Line {
        let files = Directory::open(&self.0.path().join(name), true).unwrap();
        let [is_cut, is_mute, is_long] = Default::default();
        let (refuses, locks, before_lock) = Default::default();
        Line(Arc::new(Ends { files, is_cut, is_mute, is_long, refuses, locks, before_lock }))
    }

    fn lines(&self) -> Vec<Line> {
        (0..NODES).map(|node| self.line(&format!("n{node}"))).collect()
    }

    fn process_on(lines: Vec<Line>, degraded: bool) -> Result<Process> {
        Hosts::process_far(lines, 0b11111, degraded)
    }

    /// One for which the nodes of `far` are on other hosts.
    fn process_far(lines: Vec<Line>, far: u64, degraded: bool) -> Result<Process> {
        let there = |line: &Line| Some(Arc::new(line.clone()) as Arc<dyn Files>);
        let nodes = Arc::new(Nodes::open_far(lines.iter().map(there).collect(), far, degraded)?);
        let settings = Settings { container_bytes: 64 << 10, ..Settings::default() };
        let archive = Arc::new(Archive::open_on_nodes(nodes.clone(), true, settings)?);
        Ok(Process { lines, nodes, archive })
    }

    fn process(&self) -> Process {
        Hosts::process_on(self.lines(), true).unwrap()
    }

    /// One that does not reach these nodes.
    fn process_without(&self, cut: &[usize]) -> Process {
        let lines = self.lines();
        cut.iter().for_each(|&node| lines[node].cut());
        Hosts::process_on(lines, true).unwrap()
    }
}

fn kind<T>(done: Result<T>) -> Option<Kind> {
    done.err().map(|error| error.kind())
}

#[test]
fn no_second_writer_begins_while_a_first_one_can_write_to_any_node() {
    let hosts = Hosts::new();
    let first = hosts.process();
    let held = Ingest::begin(&first.archive, false, false).unwrap();
    // The first one loses its locks on two of the three nodes with the log; the second one does not reach the third.
    [1, 2].into_iter().for_each(|node| first.lines[node].cut());
    let second = hosts.process_without(&[0]);
    let begun = Ingest::begin(&second.archive, false, false).map(drop);
    assert_eq!(kind(begun), Some(Kind::Busy), "nodes 3 and 4 would have two writers");
    [3, 4].into_iter().for_each(|node| first.lines[node].cut());
    drop(second);
    let second = hosts.process_without(&[0]);
    support::put(&second.archive, "second", &noise(2, 300_000)).unwrap();
    // The first one is done with, whatever it has left.
    drop(held);
    let put = support::put(&first.archive, "first", &noise(1, 300_000)).map(drop);
    assert_eq!(kind(put), Some(Kind::Stopped));
    assert_eq!(support::get(&second.archive, "second").unwrap(), noise(2, 300_000));
}

#[test]
fn no_second_collection_begins_while_a_first_one_can_free_on_any_node() {
    let hosts = Hosts::new();
    let first = hosts.process();
    support::put(&first.archive, "stream", &noise(1, 300_000)).unwrap();
    let _held = Collection::begin(&first.archive, support::options(2_000)).unwrap();
    [1, 2].into_iter().for_each(|node| first.lines[node].cut());
    let second = hosts.process_without(&[0]);
    let begun = Collection::begin(&second.archive, support::options(2_000)).map(drop);
    assert_eq!(kind(begun), Some(Kind::Busy));
}

#[test]
fn a_node_that_shows_itself_behind_the_lock_is_locked_or_left_alone() {
    let hosts = Hosts::new();
    let lines = hosts.lines();
    lines[2].0.is_mute.store(true, Relaxed);
    let first = Hosts::process_on(lines, true).unwrap();
    let held = Ingest::begin(&first.archive, false, false).unwrap();
    // It shows its label now, while another process has its lock.
    first.lines[2].0.is_mute.store(false, Relaxed);
    let other = hosts.line("n2");
    let others = other.lock("lock-writer", Hold::Alone, false).unwrap();
    first.archive.refresh().unwrap();
    let absent = first.nodes.absent();
    assert!(absent.iter().any(|(node, _)| *node == 2), "it counts without its lock: {absent:?}");
    drop(others);
    first.archive.refresh().unwrap();
    assert_eq!(first.nodes.absent(), []);
    let busy = other.lock("lock-writer", Hold::Alone, false).map(drop);
    assert_eq!(kind(busy), Some(Kind::Busy), "its lock was taken when it came");
    drop(held);
    drop(other.lock("lock-writer", Hold::Alone, false).unwrap());
}

#[test]
fn a_node_that_shows_itself_while_the_others_are_locked_is_locked_as_well() {
    let hosts = Hosts::new();
    let lines = hosts.lines();
    lines[2].0.is_mute.store(true, Relaxed);
    let first = Hosts::process_on(lines, true).unwrap();
    let (line, archive) = (first.lines[2].clone(), first.archive.clone());
    *first.lines[4].0.before_lock.lock() = Some(Box::new(move || {
        line.0.is_mute.store(false, Relaxed);
        archive.refresh().unwrap();
    }));
    // An import into the index does not look at the nodes again behind its lock.
    let held = first.nodes.lock("lock-importer", Hold::Alone, false).unwrap();
    assert_eq!(first.nodes.absent(), [], "it counts");
    let busy = hosts.line("n2").lock("lock-importer", Hold::Alone, false).map(drop);
    assert_eq!(kind(busy), Some(Kind::Busy), "so it is locked");
    drop(held);
    drop(hosts.line("n2").lock("lock-importer", Hold::Alone, false).unwrap());
}

#[test]
fn two_processes_do_not_fill_one_directory() {
    let hosts = Hosts::new();
    support::put(&hosts.process().archive, "stream", &noise(1, 300_000)).unwrap();
    let to = hosts.0.path().join("new");
    Directory::create(&to).unwrap();
    // One that lost its locks, and still has its connection to the directory that it fills.
    let other = hosts.line("new");
    other.create("lock-writer").unwrap();
    let others = other.lock("lock-writer", Hold::Alone, false).unwrap();
    let process = hosts.process_without(&[4]);
    let fill = || {
        let files = Arc::new(hosts.line("new"));
        let replacement = Replacement { number: 4, files, id: [77; 16] };
        replace(&process.archive, &process.nodes, &replacement, &mut |_, _| {})
    };
    assert_eq!(kind(fill()), Some(Kind::Busy));
    drop(others);
    fill().unwrap();
}

#[test]
fn a_healthy_node_is_not_filled_also_when_its_connection_is_lost() {
    let hosts = Hosts::new();
    support::put(&hosts.process().archive, "stream", &noise(1, 300_000)).unwrap();
    for (absent, to) in [(4, 4), (3, 4), (2, 2), (1, 0)] {
        // The connection to it may be lost as well, where the copies that are left are enough.
        let cut = [absent, to.max(3)];
        let process = hosts.process_without(if to < 3 { &cut[..1] } else { &cut });
        let before = hosts.line(&format!("n{to}")).names().unwrap();
        let files = Arc::new(hosts.line(&format!("n{to}")));
        let replacement = Replacement { number: absent, files, id: [77; 16] };
        let done = replace(&process.archive, &process.nodes, &replacement, &mut |_, _| {});
        assert_eq!(kind(done.map(drop)), Some(Kind::InvalidInput), "{absent} by {to}");
        let mut after = hosts.line(&format!("n{to}")).names().unwrap();
        after.retain(|name| !name.starts_with("lock-"));
        assert!(before.iter().filter(|name| !name.starts_with("lock-")).eq(after.iter()));
    }
    let process = hosts.process();
    assert_eq!(process.nodes.absent(), Vec::<(usize, Absent)>::new());
    assert_eq!(support::get(&process.archive, "stream").unwrap(), noise(1, 300_000));
}

#[test]
fn a_node_that_fails_while_another_one_is_filled_from_it_leaves_no_hole_there() {
    let hosts = Hosts::new();
    let bytes = noise(1, 3_000_000);
    support::put(&hosts.process().archive, "stream", &bytes).unwrap();
    let to = hosts.0.path().join("new");
    Directory::create(&to).unwrap();
    std::fs::rename(hosts.0.path().join("n4"), hosts.0.path().join("old")).unwrap();
    std::fs::create_dir(hosts.0.path().join("n4")).unwrap();
    let fill = |behind: Option<u64>| {
        let process = hosts.process();
        let files = Arc::new(hosts.line("new"));
        let replacement = Replacement { number: 4, files, id: [77; 16] };
        replace(&process.archive, &process.nodes, &replacement, &mut |done, _| {
            if behind.is_some_and(|behind| done > behind) {
                process.lines[3].cut();
            }
        })
    };
    // Its connection ends behind so many containers.
    for behind in [0, 3, 9] {
        let done = fill(Some(behind)).unwrap_err();
        assert_eq!(done.kind(), Kind::Stopped, "{done}");
    }
    fill(None).unwrap();
    std::fs::remove_dir(hosts.0.path().join("n4")).unwrap();
    std::fs::rename(&to, hosts.0.path().join("n4")).unwrap();
    // All that node 4 has is whole.
    let process = hosts.process();
    assert_eq!(process.nodes.absent(), Vec::<(usize, Absent)>::new());
    let all =
        onefold_archive::repair_units(&process.archive, &process.nodes, false, &mut |_, _| {});
    let all = all.unwrap();
    assert_eq!((all.units.bad_units, all.lost_containers), (0, 0), "{all:?}");
}

#[test]
fn rule_02_a_host_that_forges_its_label_costs_its_node_and_nothing_else() {
    let hosts = Hosts::new();
    let bytes = noise(1, 300_000);
    support::put(&hosts.process().archive, "stream", &bytes).unwrap();
    let path = |node: usize| hosts.0.path().join(format!("n{node}/node"));
    for node in [4, 0] {
        let honest = std::fs::read(path(node)).unwrap();
        let known = [&honest[..4096], &honest[4096..]];
        let known = known.into_iter().find_map(|place| NodeLabel::decode(place).ok()?).unwrap();
        let forge = |change: &dyn Fn(&mut NodeLabel)| {
            let mut label = known.clone();
            change(&mut label);
            label.encode()
        };
        let own = 1 << node;
        let forged = [
            forge(&|label| (label.view.epoch, label.view.members) = (9, own)),
            forge(&|label| (label.view.epoch, label.view.members) = (u64::MAX / 4, own | 2)),
            forge(&|label| (label.view.members, label.settled) = (own, false)),
            forge(&|label| label.view.ids = vec![[9; 16]; NODES]),
            forge(&|label| label.view.ids.push([9; 16])),
            forge(&|label| label.view.ids.truncate(4)),
            forge(&|label| (label.n, label.k) = (5, 3)),
            forge(&|label| label.secret = [9; 32]),
            forge(&|label| label.archive = [9; 16]),
            forge(&|label| label.number = 3),
            vec![0xff; 4096],
            Vec::new(),
        ];
        for (n, lie) in forged.into_iter().enumerate() {
            std::fs::write(path(node), [&lie[..], &lie[..]].concat()).unwrap();
            let process = hosts.process();
            let absent: Vec<usize> = process.nodes.absent().iter().map(|(node, _)| *node).collect();
            assert_eq!(absent, [node], "lie {n} of node {node}");
            assert_eq!(support::get(&process.archive, "stream").unwrap(), bytes);
        }
        // All others go on, and leave it out.
        let process = hosts.process();
        support::put(&process.archive, &format!("more-{node}"), &bytes).unwrap();
        drop(process);
        // The host has another disk, which is filled: as if it had been lost.
        std::fs::remove_dir_all(hosts.0.path().join(format!("n{node}"))).unwrap();
        Directory::create(&hosts.0.path().join(format!("n{node}"))).unwrap();
        let process = hosts.process();
        let files = Arc::new(hosts.line(&format!("n{node}")));
        let replacement = Replacement { number: node, files, id: [77 + node as u8; 16] };
        replace(&process.archive, &process.nodes, &replacement, &mut |_, _| {}).unwrap();
        assert_eq!(hosts.process().nodes.absent(), []);
    }
}

#[test]
fn rule_02_no_length_that_a_host_tells_stops_the_others() {
    let hosts = Hosts::new();
    let bytes = noise(1, 900_000);
    support::put(&hosts.process().archive, "stream", &bytes).unwrap();
    // Node 0 and the others up to 2 have the log as well, which is judged as that of a hostile archive.
    for node in [3, 4] {
        let process = hosts.process();
        process.lines[node].0.is_long.store(true, Relaxed);
        let names = process.nodes.names().unwrap();
        for name in names.iter().filter(|name| name.starts_with("segment-")) {
            process.nodes.open(name).unwrap().bytes().unwrap();
        }
        assert_eq!(support::get(&process.archive, "stream").unwrap(), bytes);
        support::put(&process.archive, &format!("more-{node}"), &bytes).unwrap();
        let done = onefold_archive::check(&process.archive, true, &mut |_, _, _| {}).unwrap();
        assert!(done.is_well());
    }
}

/// Copies a directory with its files.
fn copy_directory(from: &std::path::Path, to: &std::path::Path) {
    let _ = std::fs::remove_dir_all(to);
    Directory::create(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn rule_02_a_log_that_one_host_forges_is_not_written_over_those_of_others() {
    // With all nodes on other hosts, and with that one alone.
    for (far, forged) in [(0b11111, 2), (0b11111, 0), (0b00100, 2), (0b00001, 0), (0b11110, 1)] {
        let hosts = Hosts::new();
        let bytes = noise(1, 300_000);
        support::put(&hosts.process().archive, "stream", &bytes).unwrap();
        let path = |node: usize| hosts.0.path().join(format!("n{node}"));
        let old = |node: usize| hosts.0.path().join(format!("old{node}"));
        (0..NODES).for_each(|node| copy_directory(&path(node), &old(node)));
        // No forgery is better than changes that were made: the other nodes forget them.
        for n in 0..3 {
            support::put(&hosts.process().archive, &format!("forged-{n}"), &noise(7, 9_000))
                .unwrap();
        }
        for node in (0..NODES).filter(|node| *node != forged) {
            copy_directory(&old(node), &path(node));
        }
        let log = |node: usize| {
            let names = std::fs::read_dir(path(node)).unwrap().map(|entry| entry.unwrap().path());
            let mut all: Vec<_> = names
                .filter(|name| !name.to_string_lossy().contains("lock-"))
                .map(|name| (name.clone(), std::fs::read(name).unwrap()))
                .collect();
            all.sort();
            all
        };
        let before = log(forged);
        let process = Hosts::process_far(hosts.lines(), far, true).unwrap();
        let absent = process.nodes.absent();
        assert!(
            absent.iter().any(|(node, why)| *node == forged && *why == Absent::Ahead),
            "node {forged}, far {far:b}: {absent:?}"
        );
        assert_eq!(support::get(&process.archive, "stream").unwrap(), bytes);
        assert!(support::get(&process.archive, "forged-0").is_err());
        support::put(&process.archive, "more", &noise(3, 300_000)).unwrap();
        drop(process);
        let process = Hosts::process_far(hosts.lines(), far, true).unwrap();
        let absent: Vec<usize> = process.nodes.absent().iter().map(|(node, _)| *node).collect();
        assert_eq!(absent, [forged], "it is left out");
        let after = log(forged);
        assert!(before == after, "nothing was written there");
        assert_eq!(support::get(&process.archive, "more").unwrap(), noise(3, 300_000));
        assert!(support::get(&process.archive, "forged-0").is_err());
    }
}

#[test]
fn rule_02_what_one_host_refuses_stops_the_others_for_no_longer_than_they_want() {
    let hosts = Hosts::new();
    let bytes = noise(1, 300_000);
    support::put(&hosts.process().archive, "stream", &bytes).unwrap();
    for node in [1, 4] {
        for refused in [Kind::NoSpace, Kind::Exists, Kind::Io, Kind::Denied] {
            let lines = hosts.lines();
            *lines[node].0.refuses.lock() = Some(refused);
            let process = Hosts::process_on(lines, false).unwrap();
            let name = format!("{node}-{refused:?}");
            let put = support::put(
                &process.archive,
                &name,
                &noise(10 * node as u64 + refused as u64, 1_500_000),
            )
            .map(drop);
            if refused == Kind::NoSpace {
                let error = put.unwrap_err().to_string();
                assert!(error.contains(&format!("node {node}, on another host")), "{error}");
                assert!(error.contains("--degraded"), "{error}");
            }
            drop(process);
            let lines = hosts.lines();
            *lines[node].0.refuses.lock() = Some(refused);
            let process = Hosts::process_on(lines, true).unwrap();
            // A segment that was begun on it ends the put, and the next one makes others.
            let again = |_| support::put(&process.archive, &name, &noise(3, 400_000));
            support::put(&process.archive, &name, &noise(3, 400_000)).or_else(again).unwrap();
            drop(process);
            let process = hosts.process();
            assert_eq!(support::get(&process.archive, &name).unwrap(), noise(3, 400_000));
            let absent: Vec<usize> = process.nodes.absent().iter().map(|(node, _)| *node).collect();
            assert_eq!(absent, [node], "{refused:?}");
            // The host has another disk.
            let path = hosts.0.path().join(format!("n{node}"));
            std::fs::remove_dir_all(&path).unwrap();
            Directory::create(&path).unwrap();
            let files = Arc::new(hosts.line(&format!("n{node}")));
            let replacement = Replacement { number: node, files, id: [refused as u8 + 77; 16] };
            replace(&process.archive, &process.nodes, &replacement, &mut |_, _| {}).unwrap();
        }
    }
}

#[test]
fn rule_02_a_column_that_one_host_forges_moves_those_of_others_nowhere() {
    let hosts = Hosts::new();
    let bytes = noise(1, 900_000);
    support::put(&hosts.process().archive, "stream", &bytes).unwrap();
    for node in 0..NODES {
        let path = hosts.0.path().join(format!("n{node}"));
        // A header that is whole, and was written for other places: that of another node's column, with its number.
        let segments = |node: usize| {
            let path = hosts.0.path().join(format!("n{node}"));
            let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
            let names = names.map(|name| name.into_string().unwrap());
            names.filter(|name| name.starts_with("segment-")).collect::<Vec<_>>()
        };
        let mut before = Vec::new();
        for name in segments(node) {
            let stored = std::fs::read(path.join(&name)).unwrap();
            let mut header = stored[..4096].to_vec();
            // Columns by turns: the nodes behind byte 32 of a header.
            header[32..35].rotate_left(1);
            let label = NodeLabel::decode(&std::fs::read(path.join("node")).unwrap()[..4096])
                .unwrap()
                .or_else(|| {
                    NodeLabel::decode(&std::fs::read(path.join("node")).unwrap()[4096..]).unwrap()
                })
                .unwrap();
            let sum = label.identity().checksum(&header[..4088]);
            header[4088..].copy_from_slice(&sum.to_le_bytes());
            std::fs::write(path.join(&name), [&header, &stored[4096..]].concat()).unwrap();
            before.push((name, stored));
        }
        let process = hosts.process();
        assert_eq!(support::get(&process.archive, "stream").unwrap(), bytes, "node {node}");
        let done =
            onefold_archive::repair_units(&process.archive, &process.nodes, true, &mut |_, _| {});
        let done = done.unwrap();
        assert_eq!((done.units.lost_rows, done.lost_containers), (0, 0), "{done:?}");
        for (name, stored) in before {
            assert_eq!(std::fs::read(path.join(name)).unwrap(), stored, "node {node}");
        }
    }
}

#[test]
fn a_lock_of_another_host_is_asked_for_until_it_is_free() {
    let hosts = Hosts::new();
    let (process, other) = (hosts.process(), hosts.process());
    let held = process.lines[1].lock("lock-importer", Hold::Alone, false).unwrap();
    let at_once = other.nodes.lock("lock-importer", Hold::Alone, false).map(drop).unwrap_err();
    assert_eq!(at_once.kind(), Kind::Busy);
    assert!(at_once.to_string().contains("node 1"), "{at_once}");
    let has_it = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let lock = other.nodes.lock("lock-importer", Hold::Alone, true);
            has_it.store(true, Relaxed);
            lock.map(drop)
        });
        for _ in 0..20 {
            assert!(!has_it.load(Relaxed), "another process has it");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        drop(held);
        waits.join().unwrap().unwrap();
    });
    assert_eq!(other.nodes.absent(), []);
}

#[test]
fn rule_02_no_name_that_a_host_tells_uses_up_the_numbers_of_index_files() {
    let hosts = Hosts::new();
    let bytes = noise(1, 300_000);
    support::put(&hosts.process().archive, "stream", &bytes).unwrap();
    for number in [u64::MAX, u64::MAX - 1, 1 << 60] {
        std::fs::write(hosts.0.path().join(format!("n1/index-{number}")), b"").unwrap();
    }
    let process = hosts.process();
    for n in 0..3 {
        rebuild_chunk_index(&process.archive, &mut |_, _| {}).unwrap();
        let names = process.nodes.names().unwrap();
        let number = |name: &String| name.strip_prefix("index-")?.parse::<u64>().ok();
        let numbers: Vec<u64> = names.iter().filter_map(number).filter(|n| *n < 1 << 32).collect();
        assert_eq!(numbers.len(), 1, "{names:?}");
        support::put(&process.archive, &format!("more-{n}"), &noise(2 + n, 300_000)).unwrap();
    }
    assert_eq!(support::get(&process.archive, "stream").unwrap(), bytes);
}
