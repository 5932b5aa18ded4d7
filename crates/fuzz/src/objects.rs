//! Stores of the cluster engine in which somebody else wrote any object: data, keys, values and
//! attributes, the heads of chunks among them, under all that reads, checks, deduplicates, scrubs
//! renames and deletes.
//!
//! An input is a list of changes to the objects of a good store. The checksums of entries and
//! pending drops are made right again over most of them.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_cluster::{
    ClusterExports, Dedup, Format, Mode, Scrub, Session, Settings, Volume, Watermarks, What,
    Worker, create,
    format::{ObjectId, key},
};
use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Exports, Lba, Result, Volume as _, checksum,
    object::{
        Change, Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadResult, Refusal,
        Space, Version, Write,
    },
};
use onefold_testbed::{Objects, objects::Object};
use parking_lot::Mutex;

use crate::{mutator::Random, reach};

/// Bytes of one change: how, which object, which part of it, where, what.
const STEP_BYTES: usize = 12;

/// Most changes.
const STEPS_MAX: usize = 12;

/// Steps after which work that still goes on never ends.
const WORK_MAX: usize = 20_000;

/// Bytes that a get may give.
const OUT_MAX: usize = 32 << 20;

/// Blocks of a volume that are read.
const READ_BLOCKS: u64 = 48;

const VOLUME_BYTES: u64 = 16 << 20;

/// Objects in memory. Its clock goes on by a quarter of a second with each look, so that whatever
/// waits comes to its end.
struct Store {
    objects: Mutex<Objects>,
    looks: AtomicU64,
}

impl Store {
    fn of(objects: Objects) -> Arc<Store> {
        Arc::new(Store { objects: Mutex::new(objects), looks: AtomicU64::new(4_000_000) })
    }

    fn me(cookie: &str) -> Holder {
        Holder { identity: "me".into(), cookie: cookie.into() }
    }
}

impl ObjectStore for Store {
    fn kind(&self, pool: Pool) -> PoolKind {
        self.objects.lock().kind(pool)
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let now = self.time();
        let mut objects = self.objects.lock();
        batch.iter().map(|op| objects.write(op, now, 0)).collect()
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let objects = self.objects.lock();
        batch.iter().map(|op| objects.read(op)).collect()
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        Ok(self.objects.lock().list(pool, from, most))
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        let now = self.time();
        self.objects.lock().lock(object, lock, Store::me(cookie), now, lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.break_lock(object, lock, &Store::me(cookie))
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        let now = self.time();
        Ok(self.objects.lock().holder(object, lock, now))
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.objects.lock().break_lock(object, lock, holder);
        Ok(())
    }

    fn identity(&self) -> String {
        "me".into()
    }

    fn fence(&self, _: &str) -> Result<(), Refusal> {
        Ok(())
    }

    fn time(&self) -> Duration {
        Duration::from_millis(250 * self.looks.fetch_add(1, Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.time()
    }

    fn space(&self) -> Result<Space, Refusal> {
        Ok(Space { total: u64::MAX, used: self.objects.lock().bytes() })
    }
}

fn settings(dedup: Dedup) -> Settings {
    Settings { dedup, cold: Duration::ZERO, ..Settings::default() }
}

fn session(store: &Arc<Store>) -> Result<Arc<Session>> {
    Session::open(store.clone(), settings(Dedup::PostProcessing)).map(Arc::new)
}

/// A changed store under everything.
pub fn objects(data: &[u8]) {
    let store = Store::of(changed(data));
    let Some(looking) = reach::noted(Session::look(store.clone(), settings(Dedup::PostProcessing)))
    else {
        return;
    };
    let looking = Arc::new(looking);
    reach::noted(looking.status());
    reach::noted(Scrub::look(looking.clone(), true).and_then(scrubbed));
    let names = reach::noted(looking.names()).unwrap_or_default();
    for (name, named) in names.iter().take(8) {
        match named.what {
            What::Put => drop(reach::noted(looking.get(name, &mut Sink(0)))),
            _ => drop(reach::noted(volume_used(&looking, name, Mode::Read))),
        }
    }
    let Some(session) = reach::noted(session(&store)) else { return };
    for (name, _) in names.iter().take(8).filter(|(_, named)| named.what != What::Put) {
        reach::noted(volume_used(&session, name, Mode::TakeOver));
    }
    reach::noted(worked(&session, 40));
    reach::noted(Scrub::new(session.clone(), true).and_then(scrubbed));
    for (n, (name, named)) in names.iter().take(8).enumerate() {
        let new_name = format!("renamed {n}");
        let renamed = reach::noted(session.rename(named.what, name, &new_name)).is_some();
        let now = if renamed { &new_name } else { name };
        reach::noted(session.delete(now, named.what));
    }
    reach::noted(deleted(&session));
}

/// Takes what is got, up to a limit.
struct Sink(usize);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        if self.0 > OUT_MAX { Err(io::Error::other("enough was seen")) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn scrubbed(mut scrub: Scrub) -> Result<()> {
    for _ in 0..WORK_MAX {
        if !scrub.step()? {
            return Ok(());
        }
    }
    panic!("a scrub that never ends");
}

fn deleted(session: &Session) -> Result<()> {
    for _ in 0..WORK_MAX {
        if !session.delete_step()? {
            return Ok(());
        }
    }
    panic!("deleting that never ends");
}

/// So many steps of a worker; what fails is left for later, as by a worker of a server.
fn worked(session: &Arc<Session>, steps: usize) -> Result<()> {
    let mut worker = Worker::new(session.clone(), Watermarks::default());
    for n in 0..steps as u64 {
        let _ = worker.allowance(Duration::from_secs(n))?;
        reach::noted(worker.step());
    }
    worker.release();
    Ok(())
}

/// Reads a volume; with a right to it changes it, too.
fn volume_used(session: &Arc<Session>, name: &str, mode: Mode) -> Result<()> {
    let exports = ClusterExports::new(session.clone(), mode);
    let disk = exports.open(name)?;
    let blocks = disk.size() / BLOCK_BYTES as u64;
    for n in 0..READ_BLOCKS.min(blocks) {
        let mut into = Block::zeroed_vec(1);
        let mut reads = [BlockRead {
            first: Lba(n * (blocks / READ_BLOCKS).max(1)),
            into: &mut into,
            result: Ok(()),
        }];
        disk.read(&mut reads);
        let [read] = reads;
        reach::noted(read.result);
    }
    reach::noted(disk.extents(0, disk.size().min(1 << 30), 100));
    if !matches!(mode, Mode::Read) && blocks > 16 {
        reach::noted(disk.write(4096, &[7; 8192]).and_then(|ticket| disk.wait(ticket)));
        reach::noted(disk.trim(0, disk.size().min(64 << 20)).and_then(|ticket| disk.wait(ticket)));
        reach::noted(disk.flush());
        for _ in 0..50 {
            if !exports.tend()? {
                break;
            }
        }
    }
    drop(disk);
    exports.close()
}

/// Good stores: on replicated and on erasure-coded chunks.
fn good() -> &'static [Objects; 2] {
    static GOOD: OnceLock<[Objects; 2]> = OnceLock::new();
    GOOD.get_or_init(|| {
        [PoolKind::Replicated, PoolKind::Erasure].map(|kind| match try_good(kind) {
            Ok(objects) => objects,
            Err(error) => panic!("the example store can't be made: {error}"),
        })
    })
}

/// Some of it compresses, some comes twice.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..bytes)
        .map(|n| if n / 50_000 % 2 == 0 { random.next() as u8 } else { (n / 900) as u8 })
        .collect()
}

fn try_good(kind: PoolKind) -> Result<Objects> {
    let store = Store::of(Objects::new(kind));
    create(&*store, &Format { compress: true, ..Format::new([1; 16], [2; 32], kind) })?;
    let first = session(&store)?;
    first.create_volume("disk", VOLUME_BYTES)?;
    let write = |session: &Arc<Session>, seed: u64| -> Result<()> {
        let disk = Volume::attach(session, "disk", Mode::Own)?;
        for n in 0..3 {
            disk.wait(disk.write(n * (4 << 20) + 8192, &content(seed % 2, 100_000))?)?;
        }
        disk.wait(disk.trim(20_000, 12_000)?)?;
        disk.detach()
    };
    write(&first, 1)?;
    first.put("file", &mut &content(1, 200_000)[..])?;
    first.put("other", &mut &content(3, 70_000)[..])?;
    worked(&first, 1200)?;
    write(&first, 2)?;
    first.put("last", &mut &content(4, 40_000)[..])?;
    first.delete("other", What::Put)?;
    drop(first);
    Ok(store.objects.lock().clone())
}

/// A good store with the changes of an input.
fn changed(data: &[u8]) -> Objects {
    let (first, steps) = data.split_first().unwrap_or((&0, &[]));
    let mut objects = good()[usize::from(first & 1)].clone();
    let names: Vec<ObjectName> = objects.all().map(|(name, _)| name.clone()).collect();
    for step in steps.chunks_exact(STEP_BYTES).take(STEPS_MAX) {
        let name = &names[usize::from(u16::from_le_bytes([step[1], step[2]])) % names.len()];
        let Some(object) = objects.get(name).cloned() else { continue };
        for change in change(name, &object, step, first & 0x80 == 0) {
            // The model refuses what no object store takes.
            let _ = objects.write(
                &Write { object: name.clone(), guards: Vec::new(), changes: vec![change] },
                Duration::ZERO,
                0,
            );
        }
    }
    objects
}

/// The changes that a step makes to an object.
fn change(name: &ObjectName, object: &Object, step: &[u8], mended: bool) -> Vec<Change> {
    let (part, at) = (usize::from(step[3]), usize::from(step[4]));
    let edit = |bytes: &[u8]| {
        let (mut bytes, value, width) =
            (bytes.to_vec(), &step[5..], [1, 2, 4, 7][usize::from(step[0] >> 6)]);
        match step[0] >> 3 & 7 {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_slice(&value[..width]),
            _ => {
                let at = if bytes.is_empty() { 0 } else { at % bytes.len() };
                bytes
                    .iter_mut()
                    .skip(at)
                    .zip(&value[..width])
                    .for_each(|(byte, value)| *byte = *value);
            }
        }
        bytes
    };
    let pair = object.omap.iter().nth(part % object.omap.len().max(1));
    match (step[0] & 7, pair, object.xattrs.iter().nth(part % object.xattrs.len().max(1))) {
        (0..=2, Some((key, value)), _) => {
            let value = edit(value);
            vec![Change::SetOmap(vec![(
                key.clone(),
                if mended { sealed(name, key, value) } else { value },
            )])]
        }
        (3, Some((key, value)), _) => vec![
            Change::DropOmap(vec![key.clone()]),
            Change::SetOmap(vec![(edit(key), value.clone())]),
        ],
        (4, Some((key, _)), _) => vec![Change::DropOmap(vec![key.clone()])],
        (5 | 6, _, Some((name, value))) => vec![Change::SetXattr(name, edit(value))],
        (7, ..) if at == 0 => vec![Change::Remove],
        _ => vec![Change::Full(edit(&object.data))],
    }
}

/// The value of an entry or a pending drop with its checksum.
fn sealed(name: &ObjectName, key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let offset = key::offset(key).or_else(|| key::parse_pending(key).map(|(offset, _)| offset));
    if let (Some(object), Some(offset), Some(at)) =
        (ObjectId::parse(&name.name), offset, value.len().checked_sub(4))
    {
        let object = [&object.volume.to_be_bytes()[3..], &object.index.to_be_bytes()[3..]].concat();
        let place = [&object[..], &offset.to_be_bytes(), &value[..at]].concat();
        value[at..].copy_from_slice(&(checksum::fast(0, &place) as u32).to_le_bytes());
    }
    value
}

/// Without a change, and with one in each object.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let mut examples = Vec::new();
    for (n, objects) in (0u8..).zip(good()) {
        examples.push(vec![n]);
        for object in 0..objects.all().count() as u16 {
            for how in [0b11_010_000, 0b00_010_101, 0b01_011_011] {
                let [low, high] = object.to_le_bytes();
                examples.push(vec![n, how, low, high, object as u8, 1, 9, 0, 0, 0, 1, 0, 0]);
            }
        }
    }
    examples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_49_a_good_store_is_taken_for_good_and_its_checksums_are_those_that_are_mended() {
        for (n, good) in (0u8..).zip(good()) {
            let (mut entries, mut heads) = (0, 0);
            for (name, object) in good.all() {
                heads += usize::from(object.xattrs.contains_key("h"));
                for (key, value) in &object.omap {
                    entries += usize::from(key::offset(key).is_some());
                    assert_eq!(sealed(name, key, value.clone()), *value);
                }
            }
            assert!(entries > 5 && heads > 2, "{entries} entries and {heads} chunks");
            reach::taken();
            objects(&[n]);
            let reached = reach::taken();
            assert!(reached.good > 50 && reached.refused.is_empty(), "{reached:?}");
        }
    }
}
