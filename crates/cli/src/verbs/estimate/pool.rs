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
    object::{ObjectName, ObjectStore, Pool, Read, ReadPart, Refusal},
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
    store: &'a RadosObjects,
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

/// The content of objects, without those that were removed meanwhile.
fn read(store: &RadosObjects, names: &[String]) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut all: Vec<Vec<u8>> = vec![Vec::new(); names.len()];
    let mut going: Vec<usize> = (0..names.len()).collect();
    let mut gone = Vec::new();
    while !going.is_empty() {
        let one = |at: &usize| Read {
            object: ObjectName::chunk(&names[*at]),
            parts: vec![ReadPart::Data(all[*at].len() as u64, PIECE)],
        };
        let answers = store.read(&going.iter().map(one).collect::<Vec<_>>());
        let mut further = Vec::new();
        for (at, answer) in going.into_iter().zip(answers) {
            match answer {
                Ok(answer) => {
                    let data = answer.data(0);
                    all[at].extend_from_slice(data);
                    if data.len() as u64 == PIECE && (all[at].len() as u64) < OBJECT_MAX {
                        further.push(at);
                    }
                }
                Err(Refusal::Missing) => gone.push(at),
                Err(refusal) => return Err(refusal),
            }
        }
        going = further;
    }
    let kept = all.into_iter().enumerate().filter(|(at, _)| !gone.contains(at));
    Ok(kept.map(|(_, data)| data).collect())
}

/// Reads a pool in several threads, and counts what it holds.
fn count(
    store: &RadosObjects,
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
            for data in read(store, &some)? {
                bytes.fetch_add(data.len() as u64, Relaxed);
                let mut chunks = Chunks::of(&data, how, chunk_bytes);
                let new = estimate.lock().new_ones(&chunks);
                chunks.pack(&data, &new, compress);
                estimate.lock().count(&chunks);
            }
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
