//! What a collection tells, notes of the care that an archive got, and scrubs in rounds, on real
//! files.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, BackupRequest, Collection, CollectionOptions, Compression, EpochGuard, Event, FileMap,
    Format, Gauge, Known, Pace, ScrubRound, Settings, SnapshotId, Stat, Survey, TreeWhat, backup,
    check, forget, is_clock_ahead, survey,
};
use onefold_backend::Directory;
use onefold_core::{Error, Kind, Result};
use support::{Call, Watched, get, noise, put};

struct Desk(tempfile::TempDir);

const NOW: u64 = 2_000_000;

impl Desk {
    fn new() -> Desk {
        let dir = tempfile::Builder::new()
            .prefix("keeping")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let mut format = Format::new([1; 16], [2; 32], [3; 16]);
        (format.reserve_bytes, format.compression, format.trees) =
            (1 << 20, Compression::None, true);
        Archive::create(&Directory::create(&dir.path().join("a")).unwrap(), &format).unwrap();
        Desk(dir)
    }

    fn archive(&self) -> Arc<Archive> {
        self.counting(64 << 10)
    }

    /// The archive, counting so much at once.
    fn counting(&self, count_portion: usize) -> Arc<Archive> {
        let files = Directory::open(&self.0.path().join("a"), true).unwrap();
        // Small containers, so that there are several.
        let settings =
            Settings { container_bytes: 256 << 10, count_portion, ..Settings::default() };
        Arc::new(Archive::open(Arc::new(files), true, settings).unwrap())
    }

    fn backup(&self, id: u8, content: &[u8]) {
        let request = BackupRequest {
            id: SnapshotId([id; 16]),
            set: "s".into(),
            now: 1_000,
            ..BackupRequest::default()
        };
        let root = support::entry("", TreeWhat::Directory(None));
        let file = support::entry("file", TreeWhat::File(0, FileMap::default()));
        let told = backup(&self.archive(), &request, false, &Gauge::default(), |feeder| {
            feeder.event(Event::Enter(root.clone(), Stat::default(), Known::new()))?;
            feeder.bytes(content)?;
            feeder.event(Event::File(file.clone(), Stat::default(), None))?;
            feeder.event(Event::End(0))
        });
        told.unwrap();
    }

    fn gc(&self, options: CollectionOptions) -> onefold_archive::Collected {
        Collection::begin(&self.archive(), options).unwrap().run(&mut |_| {}).unwrap()
    }

    fn survey(&self, options: CollectionOptions) -> Survey {
        let sequence = self.archive().tables().sequence;
        let found = survey(&self.archive(), options).unwrap();
        assert_eq!(self.archive().tables().sequence, sequence, "a survey changed something");
        found
    }

    fn segments(&self) -> Vec<PathBuf> {
        let names = fs::read_dir(self.0.path().join("a")).unwrap();
        let all = names.map(|entry| entry.unwrap().path());
        all.filter(|path| path.to_str().unwrap().contains("segment-")).collect()
    }
}

/// By a clock that is more than 30 days ahead of all dates in the archive.
#[test]
fn a_clock_that_jumps_ahead_ends_no_time_of_the_trash() {
    const MONTH: u64 = 30 * 86_400;
    let desk = Desk::new();
    desk.backup(1, &noise(1, 1 << 20));
    desk.backup(2, &noise(2, 1 << 20));
    forget(&desk.archive(), &[SnapshotId([1; 16])], 5).unwrap();
    let gc = |now: u64, trash: u64, doubts_clock: bool| {
        let archive = desk.archive();
        let options = CollectionOptions { doubts_clock, ..options(now, trash) };
        let collection = Collection::begin(&archive, options).unwrap();
        let done = collection.run(&mut |_| {}).unwrap();
        (done.expired, done.clock_ahead)
    };
    let ended = desk.archive().tables().snapshots.values().map(|one| one.ended).max().unwrap();
    assert!(!is_clock_ahead(&desk.archive().tables(), ended + MONTH));
    assert_eq!(gc(ended + MONTH, 100, true), (0, false));
    // Its time in the trash began then.
    let seen = ended + MONTH;
    assert_eq!(desk.archive().tables().snapshots.forgotten().count(), 1);
    for _ in 0..2 {
        assert_eq!(gc(seen + MONTH + 1, 100, true), (0, true));
    }
    // Nor does a collection note the time of a wrong clock for a snapshot that is forgotten now.
    forget(&desk.archive(), &[SnapshotId([2; 16])], seen + MONTH + 1).unwrap();
    assert_eq!(gc(seen + MONTH + 1, 100, true), (0, true));
    assert!(is_clock_ahead(&desk.archive().tables(), seen + MONTH + 1));
    // A clock that is trusted counts, and no time needs no clock.
    assert_eq!(gc(seen + MONTH + 1, 100, false), (1, false));
    assert_eq!(gc(seen + 3 * MONTH, 0, true), (1, false));
}

fn options(now: u64, trash: u64) -> CollectionOptions {
    CollectionOptions { trash, ..support::options(now) }
}

#[test]
fn a_survey_says_what_a_collection_then_frees() {
    let desk = Desk::new();
    let content = noise(1, 4 << 20);
    put(&desk.archive(), "gone", &content).unwrap();
    put(&desk.archive(), "kept", &noise(2, 1 << 20)).unwrap();
    // Of the last stream a quarter stays.
    put(&desk.archive(), "quarter", &noise(3, 4 << 20)).unwrap();
    let quarter: Vec<u8> =
        noise(3, 4 << 20).chunks(256 << 10).flat_map(|part| part[..64 << 10].to_vec()).collect();
    put(&desk.archive(), "of it", &quarter).unwrap();
    assert_eq!(desk.survey(options(NOW, 0)).dead_bytes, 0);
    desk.archive().remove("gone").unwrap();
    desk.archive().remove("quarter").unwrap();
    let plan = desk.survey(options(NOW, 0));
    assert!(plan.droppable_bytes > 3 << 20, "{plan:?}");
    assert!(plan.mergeable_bytes > 1 << 20 && plan.merge_writes_bytes > 0, "{plan:?}");
    assert!(plan.dead_bytes >= plan.droppable_bytes + plan.mergeable_bytes, "{plan:?}");
    let done = desk.gc(options(NOW, 0));
    assert_eq!(done.dropped_bytes, plan.droppable_bytes);
    let near = |one: u64, other: u64| one.abs_diff(other) * 5 <= one.max(other);
    assert!(near(done.merged_bytes, plan.mergeable_bytes), "{done:?} {plan:?}");
    assert!(near(done.merge_bytes, plan.merge_writes_bytes), "{done:?} {plan:?}");
    let left = desk.survey(options(NOW, 0));
    assert_eq!((left.droppable_bytes, left.mergeable_bytes, left.waiting_bytes), (0, 0, 0));
    assert!(get(&desk.archive(), "of it").unwrap() == quarter);
}

#[test]
fn the_trash_is_told_apart_and_until_when() {
    let desk = Desk::new();
    desk.backup(1, &noise(1, 2 << 20));
    desk.backup(2, &noise(2, 1 << 20));
    forget(&desk.archive(), &[SnapshotId([1; 16])], 5).unwrap();
    // Nobody saw it yet: its time begins now.
    let found = desk.survey(options(NOW, 100));
    assert_eq!((found.dead_bytes, found.trash.snapshots), (0, 1));
    assert_eq!(found.trash.until, (NOW + 100, NOW + 100));
    assert!(((2 << 20)..(3 << 20)).contains(&found.trash.bytes), "{found:?}");
    desk.gc(options(NOW, 100));
    assert_eq!(desk.survey(options(NOW + 50, 100)).trash.until, (NOW + 100, NOW + 100));
    // Its time is over: it is dead, and no trash.
    let over = desk.survey(options(NOW + 100, 100));
    assert_eq!(over.trash.snapshots, 0);
    assert!(over.dead_bytes.abs_diff(found.trash.bytes) < 64 << 10, "{over:?} {found:?}");
    assert!(desk.gc(options(NOW + 100, 100)).freed_bytes >= over.droppable_bytes);
}

#[test]
fn notes_of_care_outlive_logs_and_snapshots() {
    let desk = Desk::new();
    assert_eq!(desk.archive().tables().care, onefold_archive::Care::default());
    desk.gc(options(NOW, 0));
    assert_eq!(desk.archive().tables().care.collected, NOW);
    // A reader is in the way of the next one, which is not through then.
    put(&desk.archive(), "a", &noise(1, 1 << 20)).unwrap();
    desk.archive().remove("a").unwrap();
    let reader = EpochGuard::enter(&desk.archive()).unwrap();
    let held = desk.gc(options(NOW + 5, 0));
    assert!(held.waits);
    assert_eq!(desk.archive().tables().care.collected, NOW);
    drop(reader);
    desk.gc(options(NOW + 6, 0));
    assert_eq!(desk.archive().tables().care.collected, NOW + 6);
    // Each change begins a new log with a snapshot.
    let files = Directory::open(&desk.0.path().join("a"), true).unwrap();
    let settings = Settings { log_bytes: 1, ..Settings::default() };
    let archive = Arc::new(Archive::open(Arc::new(files), true, settings).unwrap());
    let mut round = ScrubRound::begin(&archive, NOW + 7).unwrap();
    assert!(round.step(NOW + 7).unwrap().is_none());
    let care = desk.archive().tables().care;
    assert_eq!((care.collected, care.scrub_ended, care.scrub_began), (NOW + 6, NOW + 7, 0));
}

#[test]
fn a_round_that_a_wrong_clock_began_is_due_as_a_whole() {
    const DAYS: u64 = 30 * 86_400;
    let desk = Desk::new();
    put(&desk.archive(), "a", &noise(1, 3 << 20)).unwrap();
    let mut round = ScrubRound::begin(&desk.archive(), NOW + 1000 * 86_400).unwrap();
    let read = round.step(NOW + 1000 * 86_400).unwrap().unwrap();
    round.end(NOW + 1000 * 86_400).unwrap();
    let archive = desk.archive();
    let due = ScrubRound::begin(&archive, NOW).unwrap().due_bytes(NOW, DAYS).unwrap();
    assert_eq!(due, archive.tables().sums().all().bytes - read);
}

#[test]
fn a_round_goes_on_where_the_last_process_ended_and_notes_damage() {
    const DAYS: u64 = 30 * 86_400;
    let desk = Desk::new();
    put(&desk.archive(), "a", &noise(1, 3 << 20)).unwrap();
    let archive = desk.archive();
    let all = archive.tables().containers.len() as u64;
    assert!(all > 8);
    let mut round = ScrubRound::begin(&archive, NOW).unwrap();
    let due = round.due_bytes(NOW, DAYS).unwrap();
    let stored = archive.tables().sums().all().bytes;
    assert!(due >= stored / 30 - 1 && due <= stored / 29, "{due} of {stored}");
    for _ in 0..3 {
        assert!(round.step(NOW).unwrap().is_some());
    }
    assert_eq!(round.end(NOW).unwrap().containers, 3);
    // One that was killed costs a second look at what it read.
    let mut killed = ScrubRound::begin(&archive, NOW).unwrap();
    killed.step(NOW).unwrap();
    drop(killed);
    // The last container rots.
    let last = archive.tables().containers.last_id().unwrap().unwrap();
    let place = archive.tables().containers.get(&last).unwrap().unwrap().stored.place;
    let file = fs::File::options().read(true).write(true).open(&desk.segments()[0]).unwrap();
    let at = place.at + u64::from(place.bytes) - 9;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
    let archive = desk.archive();
    let mut round = ScrubRound::begin(&archive, NOW + DAYS).unwrap();
    assert!(round.due_bytes(NOW + DAYS, DAYS).unwrap() < stored);
    while round.step(NOW + DAYS).unwrap().is_some() {}
    let read = round.end(NOW + DAYS).unwrap();
    assert_eq!((read.containers, read.ended, read.problems_found), (all - 3, true, 1));
    let tables = desk.archive().tables();
    assert!(tables.damaged.contains_key(&last));
    assert_eq!((tables.care.scrub_ended, tables.care.scrub_began), (NOW + DAYS, 0));
}

#[test]
fn a_round_that_another_process_ended_moves_nobodys_place() {
    let desk = Desk::new();
    put(&desk.archive(), "a", &noise(1, 3 << 20)).unwrap();
    let [one, other] = [desk.archive(), desk.archive()];
    let mut slow = ScrubRound::begin(&one, NOW).unwrap();
    slow.step(NOW).unwrap();
    onefold_archive::note_scrubbed(&other, NOW + 1).unwrap();
    let begun = ScrubRound::begin(&other, NOW + 2).unwrap();
    slow.step(NOW).unwrap();
    slow.end(NOW + 3).unwrap();
    let care = desk.archive().tables().care;
    assert_eq!((care.scrub_began, care.scrubbed.0, care.scrub_ended), (NOW + 2, 0, NOW + 1));
    drop(begun);
}

#[test]
fn a_budget_ends_counting_within_a_portion_and_nothing_is_condemned_before_all_is_counted() {
    const COUNTS: &str = "counting references";
    let desk = Desk::new();
    let content = noise(1, 12 << 20);
    put(&desk.archive(), "a", &content).unwrap();
    put(&desk.archive(), "other", &noise(2, 1 << 20)).unwrap();
    desk.gc(options(NOW, 0));
    // The snapshot has the chunks of the stream, and soon has them alone.
    desk.backup(1, &content);
    desk.archive().remove("a").unwrap();
    desk.archive().remove("other").unwrap();
    let mut collections = 0;
    loop {
        let archive = desk.counting(1);
        let mut collection = Collection::begin(&archive, options(NOW, 0)).unwrap();
        while collection.doing() != COUNTS {
            assert!(collection.step().unwrap());
        }
        assert!(collection.step().unwrap());
        let is_through = collection.doing() != COUNTS;
        collection.cut_short();
        while collection.step().unwrap() {}
        let tables = desk.archive().tables();
        assert!(tables.condemned.is_empty() && collection.done.dropped == 0);
        assert_eq!(tables.care.collected, NOW);
        collections += 1;
        if is_through {
            break;
        }
    }
    // The snapshot's root, its page, and the pages of the file; then the streams.
    assert!(collections > 4, "{collections}");
    assert!(desk.archive().tables().differences.is_empty());
    assert!(desk.gc(options(NOW, 0)).dropped > 0);
    let report = check(&desk.archive(), true, &mut |_, _, _| {}).unwrap();
    assert!(report.is_well() && report.snapshots == 1, "{:?}", report.problems);
    assert_eq!(desk.survey(options(NOW, 0)).droppable_bytes, 0);
    // Without counts all is counted anew, in portions too.
    for entry in fs::read_dir(desk.0.path().join("a")).unwrap() {
        let path = entry.unwrap().path();
        if path.to_str().unwrap().contains("counts-") {
            fs::remove_file(path).unwrap();
        }
    }
    let again = Collection::begin(&desk.counting(1), options(NOW, 0)).unwrap();
    assert_eq!(again.run(&mut |_| {}).unwrap().dropped, 0);
    assert!(check(&desk.archive(), true, &mut |_, _, _| {}).unwrap().is_well());
}

#[test]
fn counting_in_the_background_asks_before_each_read_and_can_be_ended() {
    let desk = Desk::new();
    put(&desk.archive(), "a", &noise(1, 3 << 20)).unwrap();
    desk.backup(1, &noise(2, 1 << 20));
    let asked = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = asked.clone();
    let pace = Pace::new(move |_| match count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => Ok(()),
        _ => Err(Error::new(Kind::Stopped, "the server stops")),
    });
    let archive = desk.archive();
    let collection = Collection::begin_paced(&archive, options(NOW, 0), pace).unwrap();
    assert_eq!(collection.run(&mut |_| {}).unwrap_err().kind(), Kind::Stopped);
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 2);
    // The next one does all.
    desk.gc(options(NOW, 0));
    assert_eq!(desk.archive().tables().care.collected, NOW);
}

/// A collection that has no room for its counts makes them in memory, and the next one counts again from
/// those on the disk: what the first one dropped must not be what the second one reads.
#[test]
fn what_a_collection_counted_in_memory_alone_stays_to_be_counted_again() {
    let desk = Desk::new();
    let is_full = Arc::new(AtomicU64::new(0));
    let full = is_full.clone();
    let watch: support::Watch = Arc::new(move |name, call, does| {
        let is_new = matches!(call, Call::Change) && name.starts_with("counts-");
        match is_new && full.load(Relaxed) > 0 {
            true => Err(Error::new(Kind::NoSpace, "no room")),
            false => does(),
        }
    });
    let files = Arc::new(Directory::open(&desk.0.path().join("a"), true).unwrap());
    let settings = Settings { container_bytes: 256 << 10, ..Settings::default() };
    let archive =
        Arc::new(Archive::open(Arc::new(Watched { files, watch }), true, settings).unwrap());
    let collect =
        || Collection::begin(&archive, options(NOW, 0)).unwrap().run(&mut |_| {}).unwrap();
    let content = noise(1, 4 << 20);
    put(&archive, "one", &content).unwrap();
    // On the disk chunks of both streams are counted twice, until the recipe of the first is read again.
    put(&archive, "other", &content[..1 << 20]).unwrap();
    collect();
    archive.remove("one").unwrap();
    is_full.store(1, Relaxed);
    assert!(collect().dropped > 0);
    is_full.store(0, Relaxed);
    collect();
    archive.remove("other").unwrap();
    collect();
    collect();
    let checked = check(&archive, true, &mut |_, _, _| {}).unwrap();
    assert!(checked.is_well(), "{checked:?}");
    assert_eq!(archive.tables().containers.iter().count(), 0);
}

#[test]
fn rule_31_a_collection_asks_again_before_more_than_a_container_is_read_or_written() {
    const CONTAINER: u64 = 256 << 10;
    let desk = Desk::new();
    let archive = desk.archive();
    let (one, other) = (noise(1, 4 << 20), noise(2, 4 << 20));
    put(&archive, "one", &one).unwrap();
    put(&archive, "other", &other).unwrap();
    desk.backup(1, &noise(3, 1 << 20));
    desk.gc(options(NOW, 0));
    // Containers die whole, and of others a few chunks stay.
    let some: Vec<u8> = other.chunks(256 << 10).flat_map(|part| &part[..40_000]).copied().collect();
    put(&archive, "some", &some).unwrap();
    archive.remove("one").unwrap();
    archive.remove("other").unwrap();
    desk.backup(2, &one[..1 << 20]);
    drop(archive);
    // A client that begins waits for these: reads and writes of containers since somebody was asked.
    let since = Arc::new(AtomicU64::new(0));
    let (asked, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (sum, top) = (since.clone(), most.clone());
    let watch: support::Watch = Arc::new(move |name, call, does| {
        if name.starts_with("segment-") {
            let bytes = match call {
                Call::Read(_, bytes) => *bytes,
                Call::Change | Call::Lock => 1,
            };
            let now = sum.fetch_add(bytes, Relaxed) + bytes;
            top.fetch_max(now, Relaxed);
        }
        does()
    });
    let (count, sum) = (asked.clone(), since.clone());
    let pace = Pace::new(move |_| {
        count.fetch_add(1, Relaxed);
        sum.store(0, Relaxed);
        Ok(())
    });
    let files = Arc::new(Directory::open(&desk.0.path().join("a"), true).unwrap());
    let settings = Settings { container_bytes: CONTAINER as usize, ..Settings::default() };
    let archive =
        Arc::new(Archive::open(Arc::new(Watched { files, watch }), true, settings).unwrap());
    let collection = Collection::begin_paced(&archive, options(NOW, 0), pace).unwrap();
    let done = collection.run(&mut |_| {}).unwrap();
    assert!(done.dropped > 5 && done.copied_chunks > 20 && done.merged > 5, "{done:?}");
    let (asked, most) = (asked.load(Relaxed), most.load(Relaxed));
    assert!(asked > 50 && most <= CONTAINER, "asked {asked} times, {most} bytes between");
    assert!(get(&desk.archive(), "some").unwrap() == some);
}

/// A server's collection waits while clients are at work, and they wait for the log: it never asks while it
/// holds the log's lock, however often streams come while it looks at what it condemned.
#[test]
fn a_collection_asks_its_pace_without_the_lock_of_the_log() {
    let desk = Desk::new();
    for (name, seed) in [("x", 1), ("y", 2)] {
        put(&desk.archive(), name, &noise(seed, 600_000)).unwrap();
    }
    desk.gc(options(NOW, 0));
    desk.archive().remove("x").unwrap();
    let archive = desk.archive();
    let (looked_at, other) = (archive.clone(), desk.archive());
    let left = Arc::new(AtomicU64::new(40));
    let count = left.clone();
    let pace = Pace::new(move |_| {
        let tables = looked_at.tables_at_once().expect("the log is locked");
        if !tables.condemned.is_empty()
            && let Ok(n) = count.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
        {
            put(&other, &format!("came-{n}"), &noise(100 + n, 20_000))?;
        }
        Ok(())
    });
    let mut collection = Collection::begin_paced(&archive, options(NOW, 0), pace).unwrap();
    while archive.tables().condemned.is_empty() {
        assert!(collection.step().unwrap(), "nothing was condemned");
    }
    // Named since then: the collection reads it, and another one comes at each of its questions.
    put(&desk.archive(), "first", &noise(90, 20_000)).unwrap();
    while collection.step().unwrap() {}
    assert!(collection.done.dropped > 0 && left.load(Relaxed) < 30);
    assert!(get(&desk.archive(), "y").unwrap() == noise(2, 600_000));
    assert!(check(&desk.archive(), true, &mut |_, _, _| {}).unwrap().is_well());
}

/// A process dies with the frame of its counts on the way, and the medium shows that frame only when
/// another process, which counted more, has died before its own.
#[test]
fn a_lost_frame_of_counts_that_comes_back_finds_what_it_counted() {
    let desk = Desk::new();
    for (name, seed) in [("x", 1), ("y", 2), ("w", 2)] {
        put(&desk.archive(), name, &noise(seed, 600_000)).unwrap();
    }
    desk.gc(options(NOW, 0));
    for name in ["x", "w"] {
        desk.archive().remove(name).unwrap();
    }
    let path = |name: &str| desk.0.path().join("a").join(name);
    let mut names: Vec<String> = fs::read_dir(path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| ["log-", "counts-", "vouched"].iter().any(|kind| name.starts_with(kind)))
        .collect();
    names.sort();
    let log = names.iter().rfind(|name| name.starts_with("log-")).unwrap().clone();
    let before: Vec<Vec<u8>> = names.iter().map(|name| fs::read(path(name)).unwrap()).collect();
    let count = |archive: &Arc<Archive>| {
        let counts = archive.tables().counts;
        let mut collection = Collection::begin(archive, options(NOW, 0))?;
        while archive.tables().counts == counts && collection.step()? {}
        Ok::<_, Error>(())
    };
    count(&desk.counting(1)).unwrap();
    let frame = fs::read(path(&log)).unwrap();
    for (name, bytes) in names.iter().zip(before) {
        fs::write(path(name), bytes).unwrap();
    }
    // The other one counts all that went.
    let has_counted = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let watch: support::Watch = {
        Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            let counted = has_counted.load(std::sync::atomic::Ordering::SeqCst);
            if matches!(call, Call::Change) && counted && name.starts_with("log-") {
                return Err(Error::new(Kind::Io, "it dies"));
            }
            let counts = matches!(call, Call::Change) && name.starts_with("counts-");
            has_counted.fetch_or(counts, std::sync::atomic::Ordering::SeqCst);
            does()
        })
    };
    let files = Arc::new(Directory::open(&path(""), true).unwrap());
    let files = Arc::new(Watched { files, watch });
    let settings = Settings { container_bytes: 256 << 10, ..Settings::default() };
    let archive = Arc::new(Archive::open(files, true, settings).unwrap());
    count(&archive).unwrap_err();
    drop(archive);
    fs::write(path(&log), frame).unwrap();
    for _ in 0..3 {
        desk.gc(options(NOW, 0));
    }
    assert!(get(&desk.archive(), "y").unwrap() == noise(2, 600_000));
    let report = check(&desk.archive(), true, &mut |_, _, _| {}).unwrap();
    assert!(report.is_well(), "{:?}", report.problems);
    // What killed processes left goes.
    let counts = fs::read_dir(path("")).unwrap().filter(|entry| {
        entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("counts-")
    });
    assert_eq!(counts.count(), 1);
}

/// Bytes that a collection reads of containers, and what it did.
fn read_by(desk: &Desk) -> (u64, onefold_archive::Collected) {
    let read = Arc::new(AtomicU64::new(0));
    let sum = read.clone();
    let watch: support::Watch = Arc::new(move |name, call, does| {
        if let (true, Call::Read(_, bytes)) = (name.starts_with("segment-"), call) {
            sum.fetch_add(*bytes, Relaxed);
        }
        does()
    });
    let files = Arc::new(Directory::open(&desk.0.path().join("a"), true).unwrap());
    let settings = Settings { container_bytes: 256 << 10, ..Settings::default() };
    let archive = Archive::open(Arc::new(Watched { files, watch }), true, settings).unwrap();
    let collection = Collection::begin(&Arc::new(archive), options(NOW, 0)).unwrap();
    let done = collection.run(&mut |_| {}).unwrap();
    (read.load(Relaxed), done)
}

#[test]
fn a_collection_reads_no_content_but_that_of_containers_that_it_merges() {
    let desk = Desk::new();
    let archive = desk.archive();
    let (one, other) = (noise(1, 6_000_000), noise(2, 6_000_000));
    put(&archive, "one", &one).unwrap();
    put(&archive, "other", &other).unwrap();
    desk.backup(1, &noise(3, 6_000_000));
    desk.backup(2, &noise(4, 6_000_000));
    // Most containers die whole.
    archive.remove("one").unwrap();
    forget(&archive, &[SnapshotId([1; 16])], NOW).unwrap();
    drop(archive);
    let (read, done) = read_by(&desk);
    assert!(done.dropped > 20 && done.copied_chunks == 0, "{done:?}");
    assert!(read < 200_000, "{read} bytes of 24,000,000: {done:?}");

    // A few chunks of many containers stay, and are copied.
    let archive = desk.archive();
    let some: Vec<u8> = other.chunks(256 << 10).flat_map(|part| &part[..40_000]).copied().collect();
    put(&archive, "some", &some).unwrap();
    archive.remove("other").unwrap();
    drop(archive);
    let (read, done) = read_by(&desk);
    assert!(done.copied_chunk_bytes > 100_000, "{done:?}");
    // Chunks are read by groups.
    let of_merged = done.merged_bytes + done.merge_bytes;
    assert!(read < of_merged, "{read} bytes: {done:?}");
}
