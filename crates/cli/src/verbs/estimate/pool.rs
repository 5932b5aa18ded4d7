//! `onefold estimate` of a pool of a Ceph cluster.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use onefold_backend::{
    RadosObjects,
    rados::{Connection, TIMEOUT},
};
use onefold_cluster::{Chunks, Estimate, Format};
use onefold_core::{
    Error, Kind,
    object::{ObjectName, ObjectStore, Pool, Read, ReadPart, ReadResult, Refusal, Seen},
};
use parking_lot::Mutex;
use serde_json::json;

use onefold::parts::cluster_store::Url;
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

/// Threads that read, cut and compress.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// Time between two looks at how far the threads are.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is read of a pool.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    /// Bytes a second at most.
    pub(super) rate: Option<u64>,
    /// The share of the pool's objects, of 1.
    pub(super) share: f64,
}

/// The names of a pool, in the order of their hashes, which has nothing to do with what is in them.
struct Names<'a> {
    store: &'a dyn ObjectStore,
    page: Vec<String>,
    from: Option<String>,
    ended: bool,
    /// Objects that are still to be read.
    left: u64,
}

impl Names<'_> {
    /// Some more; none at the end.
    fn next(&mut self) -> Result<Vec<String>, Refusal> {
        while self.page.is_empty() && !self.ended {
            let page = self.store.list(Pool::Chunks, self.from.as_deref(), PAGE)?;
            (self.page, self.ended, self.from) = (page.names, page.next.is_none(), page.next);
        }
        let most = TOGETHER.min(self.page.len()).min(self.left as usize);
        self.left -= most as u64;
        Ok(self.page.split_off(self.page.len() - most))
    }
}

/// Calls `each` with the content of objects, one after the other, without those that were removed
/// meanwhile. Their first pieces are read at one time. What else large ones have is read when it is their
/// turn, so that of one object alone more than a piece is held.
fn read_each(
    store: &dyn ObjectStore,
    names: &[String],
    each: &mut dyn FnMut(&[u8]),
) -> Result<(), Refusal> {
    let first = |name: &String| Read {
        object: ObjectName::chunk(name),
        parts: vec![ReadPart::Data(0, PIECE), ReadPart::Stat],
    };
    let firsts = store.read(&names.iter().map(first).collect::<Vec<_>>());
    for (name, first) in names.iter().zip(firsts) {
        let whole = first.and_then(|first| rest_of(store, name, first));
        match whole {
            Ok(data) => each(&data),
            Err(Refusal::Missing) => {}
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

/// Reads a pool in several threads, and counts what it holds.
fn count(
    store: &dyn ObjectStore,
    estimate: Estimate,
    budget: Budget,
    objects: Option<u64>,
) -> Result<Estimate, Refusal> {
    let left = match objects {
        Some(objects) if budget.share < 1.0 => (objects as f64 * budget.share).ceil() as u64,
        _ => u64::MAX,
    };
    let (how, chunk_bytes, compress) = estimate.form();
    let names = Names { store, page: Vec::new(), from: None, ended: false, left };
    let (names, estimate) = (Mutex::new(names), Mutex::new(estimate));
    let (begun, bytes) = (Instant::now(), AtomicU64::new(0));
    let work = || -> Result<(), Refusal> {
        loop {
            let some = names.lock().next()?;
            if some.is_empty() {
                return Ok(());
            }
            read_each(store, &some, &mut |data| {
                bytes.fetch_add(data.len() as u64, Relaxed);
                let mut chunks = Chunks::of(data, how, chunk_bytes);
                let new = estimate.lock().new_ones(&chunks);
                chunks.pack(data, &new, compress);
                estimate.lock().count(&chunks);
            })?;
            if let Some(rate) = budget.rate {
                let due = Duration::from_secs_f64(bytes.load(Relaxed) as f64 / rate.max(1) as f64);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
        }
    };
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .clamp(*THREADS.start(), *THREADS.end());
    let progress = Progress::new("reading");
    let of = objects.unwrap_or(0).min(left);
    let ended: Vec<Result<(), Refusal>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(LOOK_EVERY);
            progress.set(estimate.lock().seen_objects(), of);
        }
        let unknown = |_| Err(Refusal::Unknown);
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(unknown)).collect()
    });
    drop(progress);
    ended.into_iter().collect::<Result<(), Refusal>>()?;
    Ok(estimate.into_inner())
}

pub(super) fn estimate(
    url: &Url,
    pool: &str,
    format: &Format,
    budget: Budget,
    as_json: bool,
) -> Result<(), Failure> {
    let Url::Rados(_, location) = url else {
        return Err(Failure::usage("a pool is that of a Ceph cluster, rados:[CONF]"));
    };
    let connection = Connection::open(location.configuration.as_deref(), TIMEOUT)?;
    let pool = connection.pool(pool)?;
    let store = RadosObjects::reader(connection, &pool)?;
    let failed = |refusal: Refusal| match refusal {
        Refusal::Denied(error) => error,
        refusal => Error::new(Kind::Io, format!("pool '{}': {refusal}", pool.name.escape_debug())),
    };
    // Who may not ask for the counts may read the pool all the same.
    let held = store.held(Pool::Chunks).ok().flatten();
    if budget.share < 1.0 && held.is_none() {
        let why = "the cluster does not tell how many objects the pool has: leave --sample out";
        return Err(Failure::new(why));
    }
    let nothing = Estimate::new(format.chunk_bytes, format.cut, format.compress);
    let estimate = count(&store, nothing, budget, held.map(|held| held.objects)).map_err(failed)?;
    let found = estimate.result();
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
            "objects_of_pool": held.map(|held| held.objects), "read_share": budget.share,
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
    output::line(format_args!("saved       {saved:.1} %"));
    if budget.share < 1.0 {
        output::line(format_args!(
            "read        {} of {}: the whole pool is likely to save as much or more, since these may have \
             chunks in common with others",
            grouped(found.objects),
            counted(held.map_or(0, |held| held.objects), "object")
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use onefold_cluster::Cut;
    use onefold_core::checksum;
    use onefold_core::object::{Change, Held, Holder, Page, PoolKind, Space, Version, Write};
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
        read_each(&store, &names, &mut |data| {
            let name = &names[counted.len()];
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
        let nothing = || Estimate::new(32 << 10, Cut::Static, false);
        let all = Budget { rate: None, share: 1.0 };
        let found = count(&store, nothing(), all, Some(31)).unwrap().result();
        assert_eq!((found.objects, found.bytes), (30, lengths.iter().sum::<u64>() - lengths[3]));
        let half = Budget { rate: None, share: 0.5 };
        store.gone.clear();
        assert_eq!(count(&store, nothing(), half, Some(31)).unwrap().result().objects, 16);
    }
}
