//! Snapshots of one archive copied into another: what comes over, what is read for it, and what an archive that
//! lies can do.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::Arc;

use onefold_archive::{
    Archive, BackupRequest, Chunk, Collection, Completeness, Compression, ContainerId,
    ContainerKind, Content, CopyChoice, CopyFailure, CopyPlan, CopyRequest, CopySink, Event,
    FileMap, Format, Gauge, IndexEntry, Ingest, Key, Known, Metadata, Origin, Parents, Part,
    Settings, Snapshot, SnapshotId, Stat, StoredChunk, Top, TreeEntry, TreeFeeder, TreeNode,
    TreeNodeRef, TreeReader, TreeWhat, Verify, backup, backup_on, check, copy_snapshot, forget,
    may_copy, plan_copy,
};
use onefold_core::{Error, Files, Fingerprint, Kind};
use onefold_testbed::{Rng, VirtualFiles, files::Layout};
use support::{entry, names, noise, options, restored, store};

/// An archive of its own: numbers make ids and secrets.
fn archive(id: u8, secret: u8) -> Arc<Archive> {
    archive_in(&files(id), id, secret)
}

fn files(id: u8) -> VirtualFiles {
    VirtualFiles::new(Layout::default(), Rng::new(id.into()))
}

fn archive_in(files: &VirtualFiles, id: u8, secret: u8) -> Arc<Archive> {
    let mut format = Format::new([id; 16], [secret; 32], [id; 16]);
    (format.reserve_bytes, format.compression, format.trees) = (0, Compression::None, true);
    Archive::create(files, &format).unwrap();
    open(files)
}

fn open(files: &VirtualFiles) -> Arc<Archive> {
    Arc::new(Archive::open(Arc::new(files.clone()), true, Settings::default()).unwrap())
}

fn plan(from: &Arc<Archive>, to: &Arc<Archive>, choice: &CopyChoice) -> CopyPlan {
    from.refresh().unwrap();
    plan_copy(from, &to.refresh().unwrap(), choice, 1 << 40)
}

fn numbers(plan: &CopyPlan) -> Vec<u8> {
    plan.wanted.iter().map(|snapshot| snapshot.id.0[0]).collect()
}

/// Copies one, with checkpoints or without; gives the bytes that were read.
fn copy(from: &Arc<Archive>, to: &Arc<Archive>, number: u8, due: bool) -> Result<u64, CopyFailure> {
    let tables = from.refresh().unwrap();
    let snapshot = tables.snapshots.get(SnapshotId([number; 16])).unwrap();
    let ingest = Ingest::begin(to, false, false).unwrap();
    let copied = copy_snapshot(from, snapshot, (&ingest, None), &Gauge::default(), || due);
    copied.map(|(_, counts)| counts.read)
}

fn copy_all(from: &Arc<Archive>, to: &Arc<Archive>) -> Vec<u8> {
    let wanted = numbers(&plan(from, to, &CopyChoice::default()));
    for &number in &wanted {
        copy(from, to, number, false).unwrap();
    }
    wanted
}

fn is_well(archive: &Arc<Archive>) -> bool {
    check(archive, true, &mut |_, _, _| {}).unwrap().is_well()
}

/// A snapshot of several files, of which each has content of its own.
fn backup_files(archive: &Arc<Archive>, number: u8, files: &[(&str, Vec<u8>)]) {
    let request = BackupRequest {
        host: "host".into(),
        machine: [7; 16],
        paths: vec![b"/srv".to_vec()],
        tags: vec!["nightly".into()],
        ..support::request("set", number)
    };
    backup(archive, &request, false, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        let below = entry("below", TreeWhat::Directory(None));
        feeder.event(Event::Enter(below, Stat::default(), Known::new()))?;
        for (name, content) in files {
            feeder.bytes(content)?;
            let file = entry(name, TreeWhat::File(0, FileMap::default()));
            feeder.event(Event::File(file, Stat { inode: 5, ..Stat::default() }, None))?;
        }
        feeder.event(Event::Leave(false))?;
        feeder.event(Event::Other(entry("pipe", TreeWhat::Fifo), Stat::default()))?;
        feeder.bytes(b"/srv/secret: permission denied\n")?;
        feeder.event(Event::End(1))
    })
    .unwrap();
}

fn snapshot(archive: &Archive, number: u8) -> Snapshot {
    archive.tables().snapshots.get(SnapshotId([number; 16])).unwrap().clone()
}

#[test]
fn a_copy_says_of_itself_what_its_snapshot_says() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    let files = [("a", noise(1, 300_000)), ("b", b"hello".to_vec()), ("c", Vec::new())];
    backup_files(&from, 9, &files);
    let read = copy(&from, &to, 9, false).unwrap();
    assert!(read >= 300_005, "{read}");
    let (there, here) = (snapshot(&from, 9), snapshot(&to, 9));
    assert_eq!(there.completeness, Completeness::Partial);
    let as_there = Snapshot {
        root: there.root,
        stats: there.stats,
        added: there.added,
        origin: there.origin,
        ..here.clone()
    };
    assert_eq!(as_there, there);
    assert_eq!(here.origin, Origin::Copied(there.root.fingerprint));
    let mut readers = [TreeReader::new(&from).unwrap(), TreeReader::new(&to).unwrap()];
    let [one, other] = &mut readers;
    for (name, content) in &files {
        let path = format!("below/{name}");
        let find =
            |reader: &mut TreeReader, of: &Snapshot| reader.find(of, path.as_bytes()).unwrap();
        let (before, after) = (find(one, &there), find(other, &here));
        let plain = |of: &TreeEntry| TreeEntry { what: TreeWhat::Fifo, ..of.clone() };
        assert_eq!(plain(&before), plain(&after));
        let TreeWhat::File(bytes, _) = after.what else { panic!("it is a file") };
        assert_eq!(bytes, content.len() as u64);
    }
    let root = other.root(&here).unwrap();
    assert_eq!((root.left_out, root.list.0), (1, 31));
    assert!(is_well(&to));
}

#[test]
fn rule_50_no_backup_believes_the_stat_of_a_copy() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    let stat = Stat { inode: 5, changed_seconds: 6, is_settled: true, ..Stat::default() };
    backup(&from, &support::request("set", 1), false, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        feeder.bytes(b"of somebody else")?;
        let file = entry("f", TreeWhat::File(0, FileMap::default()));
        feeder.event(Event::File(file, stat, None))?;
        feeder.event(Event::End(0))
    })
    .unwrap();
    copy(&from, &to, 1, false).unwrap();
    let here = snapshot(&to, 1);
    let mut parents = Parents::new(&to, &[&here]).unwrap();
    let (root, _) = parents.take_root();
    parents.enter(&root).unwrap();
    let found = parents.find(b"f").unwrap();
    assert_eq!(found[0].stat, Some(Stat::default()));
}

#[test]
fn a_second_copy_reads_only_what_is_new() {
    for (secret, at_most) in [(2, 210_000), (1, 40_000)] {
        let (from, to) = (archive(1, 1), archive(2, secret));
        let (mut big, small) = (noise(1, 200_000), noise(2, 100_000));
        backup_files(&from, 1, &[("a", big.clone()), ("b", small.clone())]);
        assert_eq!(copy_all(&from, &to), [1]);
        assert!(copy_all(&from, &to).is_empty());
        big[100_000] ^= 1;
        backup_files(&from, 2, &[("a", big.clone()), ("b", small.clone())]);
        let read = copy(&from, &to, 2, false).unwrap();
        // Archives of one secret read a chunk or two; others the file that changed.
        assert!(read > 0 && read < at_most, "secret {secret}: {read} read");
        assert!(snapshot(&to, 2).added < 60_000, "only what is new was stored");
        assert!(is_well(&to));
    }
}

#[test]
fn rule_50_what_was_forgotten_there_does_not_come_back() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    for number in 1..=4 {
        store(&from, "set", number, &noise(number.into(), 50_000)).unwrap();
    }
    // A set whose snapshots are not those of the other one.
    store(&from, "other", 20, &noise(20, 1_000)).unwrap();
    assert_eq!(copy_all(&from, &to), [1, 2, 3, 4, 20]);
    let gone = [1, 2, 3].map(|number| SnapshotId([number; 16]));
    forget(&to, &gone, 5_000).unwrap();
    let collect = || Collection::begin(&to, options(6_000)).unwrap().run(&mut |_| {}).unwrap();
    collect();
    assert_eq!(names(&to), [4, 20]);
    let planned = plan(&from, &to, &CopyChoice::default());
    assert_eq!((numbers(&planned), planned.present, planned.passed), (vec![], 2, 3));
    store(&from, "set", 5, &noise(5, 50_000)).unwrap();
    assert_eq!(copy_all(&from, &to), [5]);
    // Who asks for it gets it.
    let all = CopyChoice { all: true, ..CopyChoice::default() };
    assert_eq!(numbers(&plan(&from, &to, &all)), [1, 2, 3]);
    let named = CopyChoice { ids: Some(vec![SnapshotId([2; 16])]), ..CopyChoice::default() };
    assert_eq!(numbers(&plan(&from, &to, &named)), [2]);
    copy(&from, &to, 2, false).unwrap();
    assert_eq!(restored(&to, 2).unwrap(), noise(2, 50_000));
    // A policy there took all that both had: the newest date in the set counts.
    forget(&from, &[4, 5, 2, 1, 3].map(|number| SnapshotId([number; 16])), 7_000).unwrap();
    Collection::begin(&from, options(8_000)).unwrap().run(&mut |_| {}).unwrap();
    store(&from, "set", 6, &noise(6, 1_000)).unwrap();
    assert_eq!(copy_all(&from, &to), [6]);
    assert!(is_well(&to));
}

#[test]
fn what_the_first_archive_forgot_brings_nothing_back() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    for number in 1..=3 {
        store(&from, "set", number, &noise(number.into(), 20_000)).unwrap();
    }
    assert_eq!(copy_all(&from, &to), [1, 2, 3]);
    // The first archive keeps one a week, and the second one what is newest.
    for (archive, gone) in [(&from, 3), (&to, 2)] {
        forget(archive, &[SnapshotId([gone; 16])], 5_000).unwrap();
        Collection::begin(archive, options(6_000)).unwrap().run(&mut |_| {}).unwrap();
    }
    let planned = plan(&from, &to, &CopyChoice::default());
    assert_eq!((numbers(&planned), planned.present, planned.passed), (vec![], 1, 0));
    assert_eq!(planned.blocked.len(), 1, "whoever copies is told");
    store(&from, "set", 4, b"new").unwrap();
    assert_eq!(copy_all(&from, &to), [4]);
}

#[test]
fn rule_50_what_another_archive_says_of_a_set_keeps_nothing_out_silently() {
    let (from, other, to) = (archive(1, 1), archive(3, 3), archive(2, 2));
    store(&from, "set", 1, b"of the host").unwrap();
    copy_all(&from, &to);
    store(&from, "set", 2, b"of the host, too").unwrap();
    // It says that it is of the same host and set, and newer.
    store(&other, "set", 9, b"of another").unwrap();
    copy(&other, &to, 9, false).unwrap();
    let planned = plan(&from, &to, &CopyChoice::default());
    let blocked: Vec<u8> = planned.blocked.iter().map(|it| it.id.0[0]).collect();
    assert_eq!((numbers(&planned), planned.passed, blocked), (vec![], 0, vec![2]));
    let named = CopyChoice { ids: Some(vec![SnapshotId([2; 16])]), ..CopyChoice::default() };
    assert_eq!(numbers(&plan(&from, &to, &named)), [2]);
}

#[test]
fn an_erased_key_of_the_source_is_no_error_of_the_target() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    store(&from, "set", 1, b"content").unwrap();
    let there = Snapshot { domain: 77, ..snapshot(&from, 1) };
    let failure = CopyRequest::new(&from, &there, &to, None).err().unwrap();
    assert!(failure.at_source && !failure.is_gone, "{}", failure.error);
}

#[test]
fn only_a_snapshot_that_was_collected_is_gone() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    store(&from, "set", 1, b"content").unwrap();
    let there = snapshot(&from, 1);
    forget(&from, &[there.id], 5_000).unwrap();
    Collection::begin(&from, options(6_000)).unwrap().run(&mut |_| {}).unwrap();
    let ingest = Ingest::begin(&to, false, false).unwrap();
    let copied = copy_snapshot(&from, &there, (&ingest, None), &Gauge::default(), || false);
    assert!(copied.err().unwrap().is_gone);
}

/// A feeder of an archive in which each chunk is one byte longer than the other archive says.
struct Longer<'a, 'b>(&'a mut TreeFeeder<'b>);

impl CopySink for Longer<'_, '_> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.bytes(bytes)
    }

    fn zeroes(&mut self, bytes: u64) -> Result<(), Error> {
        self.0.zeroes(bytes)
    }

    fn hole(&mut self, bytes: u64) -> Result<(), Error> {
        self.0.hole(bytes)
    }

    fn event(&mut self, event: Event) -> Result<(), Error> {
        assert!(!matches!(event, Event::Chunks(_)), "a chunk of another length is named");
        self.0.event(event)
    }

    fn checkpoint(&mut self, id: SnapshotId) -> Result<(), Error> {
        self.0.checkpoint(id)
    }

    fn skip(&mut self, bytes: u64) {
        self.0.skip(bytes);
    }

    fn stored(&mut self, of: &[Fingerprint]) -> Result<Vec<Option<StoredChunk>>, Error> {
        let found = TreeFeeder::stored(self.0, of)?;
        assert!(found.iter().any(Option::is_some), "the archive has them");
        let longer = |it: Option<StoredChunk>| it.map(|(at, bytes)| (at, bytes + 1));
        Ok(found.into_iter().map(longer).collect())
    }

    fn parents(&mut self) -> &mut Parents {
        CopySink::parents(self.0)
    }
}

#[test]
fn rule_50_a_chunk_that_is_of_another_length_here_is_read() {
    let (from, to) = (archive(1, 1), archive(2, 1));
    let content = noise(1, 100_000);
    store(&to, "mine", 40, &content).unwrap();
    store(&from, "set", 1, &content).unwrap();
    let copying = CopyRequest::new(&from, &snapshot(&from, 1), &to, None).unwrap();
    let ingest = Ingest::begin(&to, false, false).unwrap();
    backup_on(&ingest, &copying.request, &Gauge::default(), |feeder| {
        let told = copying.tell(&mut Longer(feeder), &mut || false);
        let counts = told.map_err(|failure| failure.error)?;
        assert!(counts.read >= 100_000 && counts.taken_over == 0, "{counts:?}");
        Ok(())
    })
    .unwrap();
    drop(ingest);
    assert_eq!(restored(&to, 1).unwrap(), content);
    assert!(is_well(&to));
}

/// Writes the metadata of containers of content anew: `change` gets all chunks of each.
fn forge_metadata(files: &VirtualFiles, archive: &Archive, change: &dyn Fn(&mut Vec<Chunk>)) {
    let identity = archive.label().identity();
    let mut forged = 0;
    for name in files.names().unwrap().into_iter().filter(|name| name.starts_with("segment")) {
        let file = files.open(&name).unwrap();
        let mut bytes = vec![0; file.bytes().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        let begins = |&at: &usize| bytes[at..].starts_with(b"ONEFCONT");
        for at in (0..bytes.len()).step_by(4096).filter(begins) {
            let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let (id, end) = (number(at + 24).into(), at + number(at + 48) as usize);
            let mut read = Metadata::decode(&identity, ContainerId(id), &bytes[at..end]).unwrap();
            if read.kind == ContainerKind::Data {
                change(&mut read.chunks);
                file.write_at(at as u64, &read.encode(&identity).unwrap()).unwrap();
                forged += 1;
            }
        }
    }
    assert!(forged > 0, "there is content");
}

#[test]
fn rule_50_lengths_that_the_other_archive_forged_are_not_taken_over() {
    let content = noise(1, 100_000);
    // Chunks of a group tile it as before, and a run is as long as before.
    let moves_a_border = |chunks: &mut Vec<Chunk>| {
        assert!(chunks.len() > 2 && chunks[0].group == chunks[1].group);
        chunks[0].bytes -= 5;
        chunks[1].at -= 5;
        chunks[1].bytes += 5;
    };
    let swaps_the_prints = |chunks: &mut Vec<Chunk>| {
        assert_ne!(chunks[0].bytes, chunks[1].bytes);
        (chunks[0].fingerprint, chunks[1].fingerprint) =
            (chunks[1].fingerprint, chunks[0].fingerprint);
    };
    let changes: [&dyn Fn(&mut Vec<Chunk>); 2] = [&moves_a_border, &swaps_the_prints];
    for (change, has_all) in changes.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let (files, to) = (files(1), archive(2, 1));
        let from = archive_in(&files, 1, 1);
        store(&from, "set", 1, &content).unwrap();
        forge_metadata(&files, &from, change);
        drop(from);
        let from = open(&files);
        // Of what is here, the lengths are known.
        let bytes = if has_all { &content[..] } else { &content[..50_000] };
        store(&to, "mine", 40, bytes).unwrap();
        let failure = copy(&from, &to, 1, false).unwrap_err();
        assert!(failure.at_source, "{}", failure.error);
        assert_eq!(failure.error.kind(), Kind::Corrupt, "{}", failure.error);
        store(&from, "set", 2, b"honest").unwrap();
        assert_eq!(copy(&from, &to, 2, false).unwrap(), 6);
        assert_eq!(names(&to), [40, 2]);
        assert_eq!(restored(&to, 40).unwrap(), bytes);
        assert!(is_well(&to));
    }
}

#[test]
fn a_date_in_the_future_keeps_nothing_out() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    let request = BackupRequest { now: 1 << 50, ..support::request("set", 1) };
    backup(&from, &request, false, &Gauge::default(), |feeder| {
        support::feed_file(feeder, b"of 2099")?;
        feeder.event(Event::End(0))
    })
    .unwrap();
    store(&from, "set", 2, b"of today").unwrap();
    assert_eq!(copy_all(&from, &to), [1, 2]);
    store(&from, "set", 3, b"of tomorrow").unwrap();
    assert_eq!(copy_all(&from, &to), [3]);
}

#[test]
fn a_copy_goes_on_from_its_checkpoint() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    let files: Vec<(String, Vec<u8>)> =
        (0..8).map(|n| (format!("f{n}"), noise(n + 1, 100_000))).collect();
    let files: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, content)| (name.as_str(), content.clone())).collect();
    backup_files(&from, 1, &files);
    let there = snapshot(&from, 1);
    let ends = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let ingest = Ingest::begin(&to, false, false).unwrap();
        let mut asked = 0;
        // A checkpoint behind the directory and four files; the process ends behind the next ones.
        let due = || {
            asked += 1;
            assert!(asked < 7, "the process ends here");
            asked == 5
        };
        copy_snapshot(&from, &there, (&ingest, None), &Gauge::default(), due).map(|_| ())
    }));
    assert!(ends.is_err());
    let tables = to.refresh().unwrap();
    assert_eq!((tables.snapshots.listed().count(), tables.snapshots.checkpoints().count()), (0, 1));
    // It is the checkpoint of this copy alone.
    backup_files(&from, 2, &files);
    let read = copy(&from, &to, 1, false).unwrap();
    assert!(read <= 400_000 + 100, "four files were taken over: {read}");
    let tables = to.refresh().unwrap();
    assert_eq!((tables.snapshots.listed().count(), tables.snapshots.checkpoints().count()), (1, 0));
    assert!(is_well(&to));
}

#[test]
fn a_checkpoint_that_a_collection_took_is_no_other_snapshot() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    backup_files(&from, 1, &[("a", noise(1, 100_000)), ("b", noise(2, 100_000))]);
    copy(&from, &to, 1, false).unwrap();
    // The files have the lengths and times of the earlier ones.
    backup_files(&from, 2, &[("a", noise(3, 100_000)), ("b", noise(4, 100_000))]);
    let there = snapshot(&from, 2);
    let ends = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let ingest = Ingest::begin(&to, false, false).unwrap();
        let mut asked = 0;
        let due = || {
            asked += 1;
            assert!(asked < 4, "the process ends here");
            asked == 2
        };
        copy_snapshot(&from, &there, (&ingest, None), &Gauge::default(), due).map(|_| ())
    }));
    assert!(ends.is_err());
    let copying = CopyRequest::new(&from, &there, &to, None).unwrap();
    assert!(copying.request.checkpoint.is_some() && copying.request.parent.is_some());
    Collection::begin(&to, options(9_000)).unwrap().run(&mut |_| {}).unwrap();
    assert_eq!(to.tables().snapshots.checkpoints().count(), 0);
    let ingest = Ingest::begin(&to, false, false).unwrap();
    backup_on(&ingest, &copying.request, &Gauge::default(), |feeder| {
        copying.tell(feeder, &mut || false).map(drop).map_err(|failure| failure.error)
    })
    .unwrap();
    let mut reader = TreeReader::new(&to).unwrap();
    for (path, content) in [(b"below/a", 3), (b"below/b", 4)] {
        let found = reader.find(&snapshot(&to, 2), path).unwrap();
        let TreeWhat::File(bytes, map) = found.what else { panic!("it is a file") };
        let mut read = Vec::new();
        reader
            .read(bytes, &map, Verify::Chunks, &mut |part| {
                let Content::Bytes(part) = part else { panic!("it has no holes") };
                read.extend_from_slice(part);
                Ok(())
            })
            .unwrap();
        assert!(read == noise(content, 100_000), "{content} has other bytes");
    }
}

#[test]
fn rule_50_who_copies_other_content_under_the_same_id_first_gives_later_copies_nothing() {
    for (secret, is_killed) in [(1, false), (3, false), (1, true), (3, true)] {
        let (from, other, to) = (archive(1, 1), archive(3, secret), archive(2, 2));
        let (good, bad) = (noise(1, 100_000), noise(2, 100_000));
        store(&from, "set", 1, &good).unwrap();
        store(&other, "set", 1, &bad).unwrap();
        let (there, lies) = (snapshot(&from, 1), snapshot(&other, 1));
        let told = |of: &Snapshot| (of.id, of.host.clone(), of.began, of.ended, of.bytes);
        assert_eq!(told(&there), told(&lies), "nothing but the content tells them apart");
        let copying = CopyRequest::new(&other, &lies, &to, None).unwrap();
        let ingest = Ingest::begin(&to, false, false).unwrap();
        let copied = backup_on(&ingest, &copying.request, &Gauge::default(), |feeder| {
            copying.tell(feeder, &mut || true).map_err(|failure| failure.error)?;
            if is_killed { Err(Error::new(Kind::Io, "killed")) } else { Ok(()) }
        });
        assert_eq!(copied.is_err(), is_killed);
        drop(ingest);
        let request = CopyRequest::new(&from, &there, &to, None).unwrap().request;
        assert_eq!(request.checkpoint, None, "a checkpoint of other content is no beginning");
        store(&from, "set", 2, &good).unwrap();
        let planned = plan(&from, &to, &CopyChoice::default());
        if is_killed {
            assert_eq!((numbers(&planned), planned.others), (vec![1, 2], vec![]));
        } else {
            assert_eq!((numbers(&planned), planned.others), (vec![2], vec![there.id]));
        }
        copy_all(&from, &to);
        assert_eq!(restored(&to, 2).unwrap(), good, "secret {secret}, killed: {is_killed}");
        assert!(is_well(&to));
    }
}

#[test]
fn rule_50_a_fingerprint_of_another_archive_is_claimed_by_whoever_has_what_it_is_of() {
    for secret in [1, 3] {
        let (from, other, to) = (archive(1, 1), archive(3, secret), archive(2, 2));
        store(&from, "set", 1, &noise(1, 50_000)).unwrap();
        store(&other, "set", 1, &noise(2, 50_000)).unwrap();
        let root = TreeNodeRef {
            fingerprint: snapshot(&from, 1).root.fingerprint,
            ..snapshot(&other, 1).root
        };
        let lie = Snapshot { root, ..snapshot(&other, 1) };
        let ingest = Ingest::begin(&to, false, false).unwrap();
        let copied = copy_snapshot(&other, &lie, (&ingest, None), &Gauge::default(), || true);
        assert!(copied.unwrap_err().at_source);
        drop(ingest);
        assert_eq!(to.refresh().unwrap().snapshots.values().count(), 0);
        assert_eq!(copy_all(&from, &to), [1]);
        assert_eq!(restored(&to, 1).unwrap(), noise(1, 50_000));
    }
}

#[test]
fn rule_50_a_copy_whose_words_differ_is_another_one() {
    let (from, to) = (archive(1, 1), archive(2, 2));
    backup_files(&from, 1, &[("a", noise(1, 10_000))]);
    let there = snapshot(&from, 1);
    let lies = [
        Snapshot { tags: vec!["keep".into()], ..there.clone() },
        Snapshot { paths: vec![b"/etc".to_vec()], ..there.clone() },
        Snapshot { machine: [8; 16], ..there.clone() },
        Snapshot { completeness: Completeness::Shrunk, ..there.clone() },
    ];
    for lie in lies {
        let to = archive(2, 2);
        let ingest = Ingest::begin(&to, false, false).unwrap();
        copy_snapshot(&from, &lie, (&ingest, None), &Gauge::default(), || false).unwrap();
        drop(ingest);
        let planned = plan(&from, &to, &CopyChoice::default());
        assert_eq!((planned.present, planned.others), (0, vec![there.id]), "{lie:?}");
    }
    copy(&from, &to, 1, false).unwrap();
    assert_eq!(plan(&from, &to, &CopyChoice::default()).present, 1);
}

/// A node stored as the content of a file: where it lies makes no difference to readers.
fn forge(archive: &Arc<Archive>, number: u8, node: &TreeNode) -> TreeNodeRef {
    store(archive, "nodes", number, &node.encode()).unwrap();
    let mut reader = TreeReader::new(archive).unwrap();
    let tables = reader.tables().clone();
    let found = reader.find(tables.snapshots.get(SnapshotId([number; 16])).unwrap(), b"file");
    match found.unwrap().what {
        TreeWhat::File(_, FileMap::Inline(parts)) => match &parts[..] {
            [Part::Run { first, fingerprints, .. }] if fingerprints.len() == 1 => {
                TreeNodeRef { address: *first, fingerprint: fingerprints[0] }
            }
            _ => panic!("the node is several chunks"),
        },
        _ => panic!("the node is no file"),
    }
}

/// A snapshot of one entry that nobody judges.
fn forged(archive: &Arc<Archive>, number: u8, event: Event) {
    let request = support::request("set", number);
    backup(archive, &request, false, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        feeder.event(event)?;
        feeder.event(Event::End(0))
    })
    .unwrap();
}

#[test]
fn rule_50_a_snapshot_that_lies_is_left_out_and_the_others_are_copied() {
    let (from, to) = (archive(1, 1), archive(2, 1));
    let real = forge(&from, 100, &TreeNode::FileMap(vec![Part::Hole(9)]));
    let file = |bytes, map| {
        let of = entry("f", TreeWhat::File(0, FileMap::default()));
        Event::File(of, Stat::default(), Some((bytes, map)))
    };
    let run = |fingerprint: u8, slot| Part::Run {
        first: onefold_archive::Address { slot, ..real.address },
        bytes: 10,
        fingerprints: vec![onefold_core::Fingerprint([fingerprint; 16])],
    };
    let directory = |node, levels| {
        let top = Some(Top { levels, node });
        Event::Other(entry("d", TreeWhat::Directory(top)), Stat::default())
    };
    let page = |name: &str| TreeNode::Directory(vec![entry(name, TreeWhat::Fifo)]);
    let up = forge(&from, 101, &page(".."));
    let down = forge(&from, 102, &page("a/b"));
    let twice = forge(&from, 103, &page("x"));
    let key = |name: &str| IndexEntry { node: twice, key: Key::Name(name.into()) };
    let doubled = forge(&from, 104, &TreeNode::Index(1, vec![key("x"), key("y")]));
    let full = forge(&from, 105, &TreeNode::Directory(vec![entry("a", TreeWhat::Fifo); 1]));
    let lies = [
        file(10, FileMap::Inline(vec![Part::Hole(5)])),
        file(10, FileMap::Inline(vec![Part::Hole(u64::MAX), Part::Hole(11)])),
        file(10, FileMap::Inline(vec![run(9, real.address.slot)])),
        file(10, FileMap::Inline(vec![run(9, u16::MAX)])),
        file(10, FileMap::Pages(Top { levels: 3, node: real })),
        directory(up, 0),
        directory(down, 0),
        directory(doubled, 1),
        // Its entries are more than the root says.
        directory(full, 0),
    ];
    for (n, lie) in (1..).zip(lies) {
        let shown = format!("{n}: {lie:?}");
        forged(&from, n, lie);
        let failure = copy(&from, &to, n, false).expect_err(&shown);
        assert!(failure.at_source, "{shown}: {}", failure.error);
        assert_eq!(failure.error.kind(), Kind::Corrupt, "{shown}: {}", failure.error);
    }
    store(&from, "set", 90, b"honest").unwrap();
    copy(&from, &to, 90, false).unwrap();
    assert_eq!(names(&to), [90]);
    assert_eq!(restored(&to, 90).unwrap(), b"honest");
    assert!(is_well(&to));
}

#[test]
fn two_snapshots_of_one_id_are_told() {
    let (from, to) = (archive(1, 1), archive(2, 1));
    store(&from, "set", 1, b"there").unwrap();
    store(&to, "mine", 1, b"here").unwrap();
    let planned = plan(&from, &to, &CopyChoice { all: true, ..CopyChoice::default() });
    assert_eq!((numbers(&planned), planned.others), (vec![], vec![SnapshotId([1; 16])]));
}

#[test]
fn a_collection_beside_a_copy_takes_nothing_of_it() {
    let (from, to) = (archive(1, 1), archive(2, 1));
    let content = noise(1, 300_000);
    backup_files(&from, 1, &[("a", content.clone()), ("b", noise(2, 50_000))]);
    // What nobody names any more is there, and the copy names it again.
    backup_files(&to, 40, &[("a", content.clone())]);
    forget(&to, &[SnapshotId([40; 16])], 2_000).unwrap();
    let there = snapshot(&from, 1);
    let ingest = Ingest::begin(&to, false, false).unwrap();
    let mut asked = 0;
    let due = || {
        // Behind the first file.
        asked += 1;
        if asked == 2 {
            let begun = Collection::begin(&to, options(3_000)).unwrap();
            let _: Result<_, Error> = begun.run(&mut |_| {});
        }
        false
    };
    let (_, counts) =
        copy_snapshot(&from, &there, (&ingest, None), &Gauge::default(), due).unwrap();
    assert!(counts.read < 60_000, "{counts:?}");
    drop(ingest);
    for now in [4_000, 5_000, 6_000] {
        Collection::begin(&to, options(now)).unwrap().run(&mut |_| {}).unwrap();
    }
    assert!(is_well(&to));
}

#[test]
fn nothing_is_copied_between_an_archive_and_itself() {
    let (from, to) = (archive(1, 1), archive(1, 2));
    assert_eq!(may_copy(&from, &to).unwrap_err().kind(), Kind::InvalidInput);
    may_copy(&from, &archive(2, 1)).unwrap();
}
