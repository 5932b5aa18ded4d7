//! `onefold estimate` of a pool of a Ceph cluster.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_backend::{
    RadosObjects,
    rados::{Connection, TIMEOUT},
};
use onefold_cluster::{Chunks, Cut, Estimate, Format};
use onefold_core::{
    Error, Kind,
    object::{Held, ObjectName, ObjectStore, Pool, Read, ReadPart, ReadResult, Refusal, Seen},
};
use parking_lot::Mutex;
use serde_json::json;

use crate::verbs::portion::{self, Pace, Portion};
use onefold::parts::cluster_store::{Url, warn_of_untried};
use onefold_console::{
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, counted, grouped},
};

/// Names of a page when a pool is looked through.
const PAGE: usize = 256;

/// Objects that a thread reads at one time.
const TOGETHER: usize = 8;

/// Bytes of an object that are read at once.
const PIECE: u64 = 4 << 20;

/// Bytes of an object that are looked at: the object store's own limit is below it.
const OBJECT_MAX: u64 = 1 << 30;

/// Objects that a thread reads at one time where they are small.
const TOGETHER_MAX: u64 = 128;

/// Threads that read, cut and compress: with two for a core, some read while others compute.
const THREADS: std::ops::RangeInclusive<usize> = 4..=8;

/// Time between two looks at how far the threads are.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is read of a pool.
#[derive(Clone, Copy)]
pub(super) struct Budget<'a> {
    /// How fast, and where it goes on.
    pub(super) portion: &'a Portion,
    /// For how long.
    pub(super) time: Option<Duration>,
    /// The share of the pool's objects, of 1.
    pub(super) share: f64,
}

/// How far an estimate is: the names of a pool, in the order of their hashes, which has nothing to do with
/// what is in them, and what was counted.
struct State {
    /// Names that were listed and not taken yet.
    page: Vec<String>,
    /// Names of objects that are being read.
    taken: BTreeSet<String>,
    /// Where the next page begins.
    from: Option<String>,
    ended: bool,
    /// Objects that are still to be taken.
    left: u64,
    estimate: Estimate,
}

impl State {
    fn new(estimate: Estimate, left: u64) -> State {
        let (page, taken) = (Vec::new(), BTreeSet::new());
        State { page, taken, from: None, ended: false, left, estimate }
    }

    /// True when all was read that shall be.
    fn is_done(&self) -> bool {
        let none_waits = self.ended && self.page.is_empty() || self.left == 0;
        none_waits && self.taken.is_empty()
    }

    /// Some names, if there are.
    fn take(&mut self, most: usize) -> Vec<String> {
        let most = most.min(self.page.len()).min(self.left as usize);
        self.left -= most as u64;
        let some = self.page.split_off(self.page.len() - most);
        self.taken.extend(some.iter().cloned());
        some
    }

    /// The state for a later process. An object counts there or here: what is being read is read again.
    fn saved(&self, store: &dyn ObjectStore, pool: &str) -> Vec<u8> {
        let place = |from: &String| store.keep_place(Pool::Chunks, from);
        let names: Vec<&String> = self.page.iter().chain(&self.taken).collect();
        let left = self.left.saturating_add(self.taken.len() as u64);
        let head = json!({
            "estimate_of_pool": pool, "place": self.from.as_ref().and_then(place),
            "ended": self.ended, "left": left, "names": names,
        });
        let mut bytes = head.to_string().into_bytes();
        bytes.push(b'\n');
        bytes.extend(self.estimate.saved());
        bytes
    }

    /// The state that was [`saved`](Self::saved) for this pool.
    fn restored(bytes: &[u8], pool: &str, form: (Cut, u32, bool)) -> Option<State> {
        let (head, estimate) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n')?);
        let head: serde_json::Value = serde_json::from_slice(head).ok()?;
        let estimate = Estimate::restored(&estimate[1..]).ok()?;
        let page: Vec<String> = serde_json::from_value(head["names"].clone()).ok()?;
        let of_pool = head["estimate_of_pool"] == pool && estimate.form() == form;
        let (left, ended) = (head["left"].as_u64()?, head["ended"].as_bool()?);
        let from = head["place"].as_str().map(str::to_owned);
        of_pool.then_some(State { page, taken: BTreeSet::new(), from, ended, left, estimate })
    }
}

/// The threads' work.
struct Work<'a> {
    store: &'a dyn ObjectStore,
    state: Mutex<State>,
    /// One thread lists at one time, while others count.
    listing: Mutex<()>,
    /// Names that a thread takes.
    together: usize,
}

impl Work<'_> {
    /// Some names more; none at the end.
    fn next(&self) -> Result<Vec<String>, Refusal> {
        loop {
            let taken = || {
                let mut state = self.state.lock();
                let some = state.take(self.together);
                (!some.is_empty() || state.ended || state.left == 0).then_some(some)
            };
            if let Some(some) = taken() {
                return Ok(some);
            }
            let _one = self.listing.lock();
            if let Some(some) = taken() {
                return Ok(some);
            }
            let from = self.state.lock().from.clone();
            let page = self.store.list(Pool::Chunks, from.as_deref(), PAGE)?;
            let mut state = self.state.lock();
            (state.page, state.ended, state.from) = (page.names, page.next.is_none(), page.next);
        }
    }
}

/// Calls `each` with the names and the content of objects, one after the other; those that were removed
/// meanwhile have none. Their first pieces are read at one time. What else large ones have is read when it is their
/// turn, so that of one object alone more than a piece is held.
fn read_each(
    store: &dyn ObjectStore,
    names: &[String],
    each: &mut dyn FnMut(&str, Option<&[u8]>),
) -> Result<(), Refusal> {
    let first = |name: &String| Read {
        object: ObjectName::chunk(name),
        parts: vec![ReadPart::Data(0, PIECE), ReadPart::Stat],
    };
    let firsts = store.read(&names.iter().map(first).collect::<Vec<_>>());
    for (name, first) in names.iter().zip(firsts) {
        let whole = first.and_then(|first| rest_of(store, name, first));
        match whole {
            Ok(data) => each(name, Some(&data)),
            Err(Refusal::Missing) => each(name, None),
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}

/// All of an object of which the first piece was read.
fn rest_of(store: &dyn ObjectStore, name: &str, first: ReadResult) -> Result<Vec<u8>, Refusal> {
    let mut data = first.data(0).to_vec();
    let end = match first.seen.get(1) {
        Some(Seen::Stat { bytes, .. }) => (*bytes).min(OBJECT_MAX),
        _ => 0,
    };
    drop(first);
    // An object that became shorter meanwhile ends with a piece that is not whole.
    let mut whole = data.len() as u64 == PIECE;
    while whole && (data.len() as u64) < end {
        let from = data.len() as u64;
        let pieces = (from..end).step_by(PIECE as usize).take(TOGETHER).map(|at| Read {
            object: ObjectName::chunk(name),
            parts: vec![ReadPart::Data(at, PIECE.min(end - at))],
        });
        for piece in store.read(&pieces.collect::<Vec<_>>()) {
            let piece = piece?;
            if whole {
                data.extend_from_slice(piece.data(0));
            }
            whole &= piece.data(0).len() as u64 == PIECE;
        }
    }
    Ok(data)
}

/// Reads a pool in several threads, and counts what it holds, as far as the budget goes; `keep` gets the
/// state now and then.
fn count(
    store: &dyn ObjectStore,
    state: State,
    budget: Budget<'_>,
    held: Option<Held>,
    keep: &mut dyn FnMut(&State) -> Result<(), Failure>,
) -> Result<State, Failure> {
    let (how, chunk_bytes, compress) = state.estimate.form();
    let mean = held.map_or(PIECE, |held| held.bytes / held.objects.max(1)).max(1);
    let together = (TOGETHER as u64 * PIECE / mean).clamp(TOGETHER as u64, TOGETHER_MAX) as usize;
    let of = held.map_or(0, |held| held.objects).min(state.left);
    let work = Work { store, state: Mutex::new(state), listing: Mutex::new(()), together };
    let mut pace = Pace::begin(budget.portion, budget.time);
    let threads_pace = Pace::begin(budget.portion, budget.time);
    let (bytes, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let labour = || -> Result<(), Refusal> {
        loop {
            let some = work.next()?;
            if some.is_empty() {
                return Ok(());
            }
            read_each(store, &some, &mut |name, data| {
                let (there, data) = (data.is_some(), data.unwrap_or_default());
                bytes.fetch_add(data.len() as u64, Relaxed);
                let mut chunks = Chunks::of(data, how, chunk_bytes);
                let new = work.state.lock().estimate.new_ones(&chunks);
                chunks.pack(data, &new, compress);
                // At one moment, so that the state has the object either in the counts or to be read.
                let mut state = work.state.lock();
                if state.taken.remove(name) && there {
                    state.estimate.count(&chunks);
                }
            })?;
            if failed.load(Relaxed) || threads_pace.is_over() {
                return Ok(());
            }
            threads_pace.hold(bytes.load(Relaxed));
        }
    };
    let threads = std::thread::available_parallelism()
        .map_or(1, |cores| cores.get() * 2)
        .clamp(*THREADS.start(), *THREADS.end());
    let progress = Progress::new("reading");
    let mut kept = Ok(());
    let ended: Vec<Result<(), Refusal>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(labour)).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(LOOK_EVERY);
            progress.set(work.state.lock().estimate.seen_objects(), of);
            if kept.is_ok() && pace.keeps() {
                kept = keep(&work.state.lock());
                failed.store(kept.is_err(), Relaxed);
            }
        }
        let unknown = |_| Err(Refusal::Unknown);
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(unknown)).collect()
    });
    drop(progress);
    kept?;
    let state = work.state.into_inner();
    // Also after an error: the next one goes on there.
    if !state.is_done() {
        keep(&state)?;
    }
    ended.into_iter().collect::<Result<(), Refusal>>().map_err(|refusal| match refusal {
        Refusal::Denied(error) => error,
        refusal => Error::new(Kind::Io, format!("the pool can't be read to its end: {refusal}")),
    })?;
    Ok(state)
}

pub(super) fn estimate(
    url: &Url,
    pool: &str,
    format: &Format,
    budget: Budget<'_>,
    as_json: bool,
) -> Result<(), Failure> {
    let Url::Rados(_, location) = url else {
        return Err(Failure::usage("a pool is that of a Ceph cluster, rados:[CONF]"));
    };
    let connection = Connection::open(location.configuration.as_deref(), TIMEOUT)?;
    warn_of_untried(&connection);
    let pool = connection.pool(pool)?;
    let store = RadosObjects::reader(connection, &pool)?;
    // Who may not ask for the counts may read the pool all the same.
    let held = store.held(Pool::Chunks).ok().flatten();
    if (budget.share < 1.0 || budget.time.is_some()) && held.is_none() {
        let why =
            "the cluster does not tell how many objects the pool has: leave --sample and --for out";
        return Err(Failure::new(why));
    }
    let left = match held {
        Some(held) if budget.share < 1.0 => (held.objects as f64 * budget.share).ceil() as u64,
        _ => u64::MAX,
    };
    let nothing = Estimate::new(format.chunk_bytes, format.cut, format.compress);
    let mut state = State::new(nothing, left);
    let file = budget.portion.cursor.as_deref();
    if let Some(file) = file
        && let Some(bytes) = portion::read(file)?
    {
        let form = state.estimate.form();
        let restored = State::restored(&bytes, &pool.name, form);
        state = restored.ok_or_else(|| portion::is_none(file))?;
    }
    let keep = &mut |state: &State| match file {
        Some(file) => portion::write(file, &state.saved(&store, &pool.name)),
        None => Ok(()),
    };
    let state = count(&store, state, budget, held, keep)?;
    if let Some(file) = file.filter(|_| state.is_done()) {
        portion::remove(file)?;
    }
    let (found, done) = (state.estimate.result(), state.is_done());
    // A pool that was read to its end has the bytes that were read, also when clients write meanwhile.
    let is_part = !done || budget.share < 1.0;
    let whole = state.estimate.whole(held.filter(|_| is_part).map_or(0, |held| held.bytes));
    let copies = pool.copies();
    let (now, then) = (found.bytes as f64 * copies, found.stored(copies, copies) as f64);
    let (low, different, high) = found.different_bytes;
    let saved = if now == 0.0 { 0.0 } else { 100.0 - 100.0 * then / now };
    if as_json {
        output::json_line(&json!({
            "objects": found.objects, "bytes": found.bytes, "zero_bytes": found.zero_bytes,
            "chunks": found.chunks, "different_chunks": found.different,
            "different_bytes": different, "different_bytes_low": low, "different_bytes_high": high,
            "packed_bytes": found.packed_bytes,
            "metadata_bytes": found.metadata_bytes, "copies": copies, "stored_bytes": then,
            "saved_percent": saved, "sampled_one_of": found.one_of,
            "objects_of_pool": held.map(|held| held.objects), "read_share": whole.read_share,
            "pool_bytes": whole.bytes, "pool_different_bytes_low": whole.different_bytes.0,
            "pool_different_bytes_high": whole.different_bytes.1,
            "pool_saved_percent_low": whole.saved_percent.0,
            "pool_saved_percent_high": whole.saved_percent.1, "ended": done,
        }));
        return Ok(());
    }
    output::line(format_args!(
        "content     {} in {}, {} of it zeroes",
        Size(found.bytes),
        counted(found.objects, "object"),
        Size(found.zero_bytes)
    ));
    match found.one_of {
        1 => output::line(format_args!(
            "different   {} of {}, {}",
            grouped(found.different),
            counted(found.chunks, "chunk"),
            Size(different)
        )),
        n => output::line(format_args!(
            "different   {}, between {} and {} (95 %); one of {n} chunk names was counted",
            Size(different),
            Size(low),
            Size(high)
        )),
    }
    output::line(format_args!("compressed  {}", Size(found.packed_bytes)));
    output::line(format_args!("metadata    {}", Size(found.metadata_bytes)));
    output::line(format_args!(
        "space       {} instead of {}, with {copies} copies",
        Size(then as u64),
        Size(now as u64)
    ));
    let (least, most) = whole.saved_percent;
    match found.one_of {
        1 => output::line(format_args!("saved       {saved:.1} %")),
        _ if is_part => output::line(format_args!("saved       about {saved:.1} %")),
        _ => output::line(format_args!(
            "saved       {saved:.1} %, between {least:.1} % and {most:.1} % (95 %)"
        )),
    }
    if is_part {
        output::line(format_args!(
            "whole pool  {} of {} were read; of all, {} to {} are different, and {least:.1} % to {most:.1} % \
             are saved (95 %)",
            Size(found.bytes),
            Size(whole.bytes),
            Size(whole.different_bytes.0),
            Size(whole.different_bytes.1)
        ));
    }
    if !done {
        output::line("the time is over: the same command goes on");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use onefold_core::checksum;
    use onefold_core::object::{Change, Holder, Page, PoolKind, Space, Version, Write};
    use onefold_testbed::{MemoryObjects, Rng};

    use super::*;

    /// A store that notes what is read behind first pieces, of which objects, in the order of the reads.
    struct Watched {
        store: MemoryObjects,
        behind: Mutex<Vec<BTreeSet<String>>>,
        /// A name that is listed, and gone when it is read.
        gone: String,
    }

    /// A pool of objects of these lengths, each of noise of its own.
    fn pool(lengths: &[u64]) -> (Watched, Vec<String>) {
        let store = MemoryObjects::new(PoolKind::Replicated);
        let names: Vec<String> = (0..lengths.len()).map(|n| format!("object-{n}")).collect();
        for (name, length) in names.iter().zip(lengths) {
            let changes = vec![Change::Full(content(name, *length))];
            let object = ObjectName::chunk(name);
            assert!(store.write(&[Write { object, guards: vec![], changes }])[0].is_ok());
        }
        (Watched { store, behind: Mutex::default(), gone: String::new() }, names)
    }

    fn content(name: &str, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        Rng::new(checksum::fast(7, name.as_bytes())).fill(&mut bytes);
        bytes
    }

    impl ObjectStore for Watched {
        fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
            let behind = batch.iter().filter(|read| !matches!(read.parts[0], ReadPart::Data(0, _)));
            let objects: BTreeSet<String> = behind.map(|read| read.object.name.clone()).collect();
            if !objects.is_empty() {
                self.behind.lock().push(objects);
            }
            let answers = self.store.read(batch).into_iter().zip(batch);
            answers
                .map(|(answer, read)| match read.object.name == self.gone {
                    true => Err(Refusal::Missing),
                    false => answer,
                })
                .collect()
        }

        fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
            self.store.list(pool, from, most)
        }

        fn held(&self, pool: Pool) -> Result<Option<Held>, Refusal> {
            self.store.held(pool)
        }

        fn kind(&self, pool: Pool) -> PoolKind {
            self.store.kind(pool)
        }

        fn identity(&self) -> String {
            self.store.identity()
        }

        fn time(&self) -> Duration {
            self.store.time()
        }

        fn monotonic(&self) -> Duration {
            self.store.monotonic()
        }

        fn space(&self) -> Result<Space, Refusal> {
            self.store.space()
        }

        fn write(&self, _: &[Write]) -> Vec<Result<Version, Refusal>> {
            unreachable!("an estimate changes nothing")
        }

        fn lock(
            &self,
            _: &ObjectName,
            _: &'static str,
            _: &str,
            _: Option<Duration>,
        ) -> Result<(), Refusal> {
            unreachable!("an estimate locks nothing")
        }

        fn unlock(&self, _: &ObjectName, _: &'static str, _: &str) -> Result<(), Refusal> {
            unreachable!("an estimate locks nothing")
        }

        fn holder(&self, _: &ObjectName, _: &'static str) -> Result<Option<Holder>, Refusal> {
            unreachable!("an estimate locks nothing")
        }

        fn break_lock(&self, _: &ObjectName, _: &'static str, _: &Holder) -> Result<(), Refusal> {
            unreachable!("an estimate locks nothing")
        }

        fn fence(&self, _: &str) -> Result<(), Refusal> {
            unreachable!("an estimate fences nobody")
        }
    }

    #[test]
    fn rule_09_one_large_object_is_held_at_one_time() {
        let lengths = [3 * PIECE + 5, 100, 9 * PIECE, PIECE, 0, PIECE + 1];
        let (store, names) = pool(&lengths);
        let large = ["object-0", "object-2", "object-5"];
        let mut counted = Vec::new();
        read_each(&store, &names, &mut |name, data| {
            assert_eq!(name, names[counted.len()]);
            let name = &names[counted.len()];
            let data = data.unwrap();
            assert!(data == content(name, lengths[counted.len()]), "{name}");
            counted.push(name.clone());
            // Nothing of a later object was read yet, but for its first piece.
            for objects in &*store.behind.lock() {
                assert!(objects.iter().all(|object| counted.contains(object)), "{objects:?}");
            }
        })
        .unwrap();
        assert_eq!(counted, names);
        let behind = store.behind.into_inner();
        assert!(behind.iter().all(|objects| objects.len() == 1), "{behind:?}");
        let read: BTreeSet<String> = behind.into_iter().flatten().collect();
        assert!(read.iter().eq(large), "no read is made behind the end of an object: {read:?}");
    }

    #[test]
    fn what_is_counted_is_what_the_pool_has_without_what_went_meanwhile() {
        let lengths: Vec<u64> = (0..30).map(|n| 50_000 + n).chain([PIECE + 4096]).collect();
        let (mut store, names) = pool(&lengths);
        store.gone = names[3].clone();
        let held = store.held(Pool::Chunks).unwrap();
        let at = |rate| Portion { rate, cursor: None };
        let (all, slow) = (at(None), at(Some(Size(40 << 20))));
        let found = |store: &Watched, portion, left| {
            let budget = Budget { portion, time: None, share: 1.0 };
            let state = State::new(Estimate::new(32 << 10, Cut::Static, false), left);
            let state = count(store, state, budget, held, &mut |_| unreachable!()).unwrap();
            assert!(state.is_done());
            state.estimate.result()
        };
        let whole = found(&store, &all, u64::MAX);
        assert_eq!((whole.objects, whole.bytes), (30, lengths.iter().sum::<u64>() - lengths[3]));
        store.gone.clear();
        assert_eq!(found(&store, &slow, 16).objects, 16);
    }

    #[test]
    fn an_estimate_that_goes_on_counts_each_object_once() {
        let lengths: Vec<u64> = (0..900).map(|n| 4096 * (n % 3 + 1)).collect();
        let (store, _) = pool(&lengths);
        let held = store.held(Pool::Chunks).unwrap();
        let portion = Portion { rate: None, cursor: None };
        let nothing = || Estimate::new(4 << 10, Cut::Static, false);
        let form = nothing().form();
        let budget = |time| Budget { portion: &portion, time, share: 1.0 };
        let whole = State::new(nothing(), u64::MAX);
        let whole = count(&store, whole, budget(None), held, &mut |_| Ok(())).unwrap();
        let (mut state, mut calls) = (State::new(nothing(), u64::MAX), 0);
        while !state.is_done() {
            let mut kept = None;
            let keep = &mut |state: &State| {
                kept = Some(state.saved(&store, "rbd"));
                Ok(())
            };
            let ended = count(&store, state, budget(Some(Duration::ZERO)), held, keep).unwrap();
            calls += 1;
            if let Some(kept) = kept {
                assert!(State::restored(&kept, "other", form).is_none());
                assert!(State::restored(&kept, "rbd", (Cut::Content, 4 << 10, false)).is_none());
                state = State::restored(&kept, "rbd", form).unwrap();
            } else {
                state = ended;
            }
        }
        assert!(calls > 1, "{calls}");
        assert_eq!(state.estimate.result(), whole.estimate.result());
        assert_eq!(whole.estimate.result().objects, 900);
    }

    /// A process that is killed leaves a state in which objects are being read: they are read again.
    #[test]
    fn a_state_has_what_was_being_read() {
        let (store, names) = pool(&[4096; 40]);
        let nothing = Estimate::new(4 << 10, Cut::Static, false);
        let form = nothing.form();
        let work = Work {
            store: &store,
            state: Mutex::new(State::new(nothing, 30)),
            listing: Mutex::new(()),
            together: 8,
        };
        assert_eq!(work.next().unwrap().len(), 8);
        let saved = work.state.lock().saved(&store, "rbd");
        let state = State::restored(&saved, "rbd", form).unwrap();
        assert_eq!((state.page.len(), state.left, state.ended), (40, 30, true));
        assert!(names.iter().all(|name| state.page.contains(name)));
    }
}
