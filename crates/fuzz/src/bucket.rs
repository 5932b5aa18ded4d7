//! An archive's place in an object store where somebody else wrote frames and tables: read, verified, joined and
//! collected.
//!
//! An input is a list of changes to the objects of a good bucket. Hashes are mended afterwards, as who owns the store
//! would: the chain of the frames, and those of the tables.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_bucket::{Bucket, MemoryObjects, Objects, Pace, Settings};
use onefold_core::{Files, Result};

use crate::reach;

/// Bytes of one change: of what object, where, how many, what.
const STEP_BYTES: usize = 14;

/// Most changes.
const STEPS_MAX: usize = 12;

/// Bytes that are read of a file at each of a few places.
const READ_BYTES: usize = 64 << 10;

/// Bytes of a hash.
const SUM: usize = 32;

/// Bytes of a frame and of a table before the hash of the frame that they follow.
const FRAME_BEFORE: usize = 40;
const TABLE_BEFORE: usize = 16;

/// Time that passes when somebody sleeps, and chance that counts.
#[derive(Default)]
struct Quick(AtomicU64);

impl Pace for Quick {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed))
    }

    fn wall(&self) -> u64 {
        1_900_000_000 + self.0.load(Relaxed) / 1000
    }

    fn sleep(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64 + 1, Relaxed);
    }

    fn nonce(&self) -> [u8; 16] {
        u128::from(self.0.fetch_add(1, Relaxed)).to_le_bytes()
    }
}

/// Each writer has ended, and none has threads.
fn settings() -> Settings {
    let has_ended = Arc::new(|_: &str| true);
    Settings { has_ended, threads: 0, table_every: 4, large: 4096, ..Settings::default() }
}

fn opened<T>(
    objects: &Arc<MemoryObjects>,
    open: fn(Arc<dyn Objects>, Arc<dyn Pace>, Settings) -> Result<T>,
) -> Result<T> {
    open(objects.clone(), Arc::new(Quick::default()), settings())
}

/// The objects of a good bucket, by name.
type All = BTreeMap<String, Vec<u8>>;

fn good() -> &'static All {
    static GOOD: OnceLock<All> = OnceLock::new();
    GOOD.get_or_init(|| {
        let objects = Arc::new(MemoryObjects::default());
        if let Err(error) = fill(&objects) {
            panic!("the example bucket can't be made: {error}");
        }
        taken(&objects)
    })
}

fn fill(objects: &Arc<MemoryObjects>) -> Result<()> {
    for n in 0..9u8 {
        let bucket = opened(objects, Bucket::make)?;
        let files = bucket.files();
        for (name, bytes) in [("log-1", 90), ("keys", 10), ("data-1", 9000)] {
            let file = files.open(name).or_else(|_| files.create(name))?;
            file.write_at(u64::from(n) * 70, &vec![n; bytes])?;
        }
        files.open("data-1")?.punch(0, 50 * u64::from(n))?;
        if n % 3 == 1 {
            files.remove("log-1")?;
        }
        files.sync_names()?;
        bucket.leave()?;
    }
    Ok(())
}

fn taken(objects: &MemoryObjects) -> All {
    let names = objects.names().into_iter();
    names.filter_map(|name| Some((name.clone(), objects.bytes(&name)?))).collect()
}

/// A bucket with changed objects.
pub fn bucket(data: &[u8]) {
    let mut all = good().clone();
    let mut changed = BTreeMap::new();
    let names: Vec<String> = all.keys().cloned().collect();
    for step in data.chunks_exact(STEP_BYTES).take(STEPS_MAX) {
        let Some(object) = all.get_mut(&names[usize::from(step[0]) % names.len()]) else {
            continue;
        };
        // A number from the end on is one behind it.
        let at = usize::from(u16::from_le_bytes([step[1], step[2]])) % (object.len() + 1);
        let bytes = usize::from(step[3] & 7) + 1;
        let part = &step[4..4 + bytes];
        let end = (at + bytes).min(object.len());
        match step[3] >> 6 {
            0 | 1 => drop(object.splice(at..end, part.iter().copied().take(end - at))),
            2 => drop(object.splice(at..at, part.iter().copied())),
            _ => drop(object.splice(at..end, [])),
        }
    }
    // The last byte says whether hashes are mended.
    if data.len() % STEP_BYTES != 1 {
        mend(&mut all, &mut changed);
    }
    let objects = Arc::new(MemoryObjects::default());
    for (name, bytes) in &all {
        let _ = objects.create(name, bytes);
    }
    used(&objects);
}

/// Puts the hashes right of frames and tables, and of what they name, one frame after the other.
fn mend(all: &mut All, changed: &mut BTreeMap<[u8; SUM], [u8; SUM]>) {
    let frames: Vec<String> = all.keys().filter(|name| name.starts_with("log/")).cloned().collect();
    let tables: Vec<String> =
        all.keys().filter(|name| name.starts_with("table/")).cloned().collect();
    let mut before = [0; SUM];
    for name in frames {
        let Some(frame) = all.get_mut(&name).filter(|frame| frame.len() >= FRAME_BEFORE + 2 * SUM)
        else {
            continue;
        };
        frame[FRAME_BEFORE..FRAME_BEFORE + SUM].copy_from_slice(&before);
        replace(frame, changed);
        let end = frame.len() - SUM;
        let old: [u8; SUM] = frame[end..].try_into().unwrap_or_default();
        before = *blake3::hash(&frame[..end]).as_bytes();
        frame[end..].copy_from_slice(&before);
        let number = frame[8..16].to_vec();
        changed.insert(old, before);
        for table in &tables {
            let Some(table) = all.get_mut(table).filter(|t| t.len() >= TABLE_BEFORE + SUM) else {
                continue;
            };
            if table[8..16] == number[..] {
                let old = original(table);
                table[TABLE_BEFORE..TABLE_BEFORE + SUM].copy_from_slice(&before);
                changed.insert(old, *blake3::hash(table).as_bytes());
            }
        }
    }
}

/// The hash that the good bucket's frames have of a table, found by its frame.
fn original(table: &[u8]) -> [u8; SUM] {
    let same = |(name, good): &(&String, &Vec<u8>)| {
        name.starts_with("table/") && good.get(8..16) == table.get(8..16)
    };
    let found = good().iter().find(same);
    found.map_or([0; SUM], |(_, good)| *blake3::hash(good).as_bytes())
}

fn replace(bytes: &mut [u8], changed: &BTreeMap<[u8; SUM], [u8; SUM]>) {
    for at in FRAME_BEFORE + SUM..bytes.len().saturating_sub(2 * SUM) {
        let old: [u8; SUM] = bytes[at..at + SUM].try_into().unwrap_or_default();
        if let Some(new) = changed.get(&old) {
            bytes[at..at + SUM].copy_from_slice(new);
        }
    }
}

fn used(objects: &Arc<MemoryObjects>) {
    if let Some(bucket) = reach::noted(opened(objects, Bucket::look)) {
        read(&bucket);
        let _ = reach::noted(bucket.differences());
        let _ = bucket.needed();
    }
    let foreign = objects.clone();
    let Some(bucket) = reach::noted(opened(&foreign, Bucket::join)) else { return };
    read(&bucket);
    let written = write(&bucket);
    if reach::noted(written).is_some() {
        let _ = reach::noted(bucket.collect());
    }
    let _ = reach::noted(bucket.leave());
    // Whatever stood there before, the next one reads what was made durable.
    if let Some(next) = reach::noted(opened(objects, Bucket::look)) {
        read(&next);
    }
}

/// Reads some of all files.
fn read(bucket: &Bucket) {
    let files = bucket.files();
    for name in reach::noted(files.names()).unwrap_or_default() {
        let Some(file) = reach::noted(files.open(&name)) else { continue };
        let bytes = reach::noted(file.bytes()).unwrap_or(0);
        let mut into = vec![0; READ_BYTES];
        for at in [0, bytes / 2, bytes.saturating_sub(5), u64::MAX - 7] {
            let _ = reach::noted(file.read_at(at, &mut into));
        }
        let _ = reach::noted(file.occupied());
    }
}

fn write(bucket: &Bucket) -> Result<()> {
    let files = bucket.files();
    for name in ["keys", "data-1", "new"] {
        let file = files.open(name).or_else(|_| files.create(name))?;
        let end = file.bytes()?;
        file.write_at(end.min(1 << 20), &[1; 6000])?;
        file.punch(3, end / 2)?;
        file.set_bytes(end.min(1 << 20) + 77)?;
        file.sync()?;
        let mut found = [0; 6];
        let n = file.read_at(end.min(1 << 20), &mut found)?;
        assert!(n == 6, "what was written is there");
    }
    files.remove("new")?;
    files.sync_names()
}

/// As it is, and with a change at places all over its objects.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let objects = good().len() as u8;
    let step = |object: u8, at: u16, kind: u8| {
        let mut step = vec![object];
        step.extend(at.to_le_bytes());
        step.push(kind << 6 | 7);
        step.extend([1, 0, 0, 0, 0, 0, 0, 0x80, 0, 0]);
        step
    };
    let places = (0..objects).flat_map(|object| [0u16, 8, 40, 88, 97, 120].map(|at| (object, at)));
    let changed = places.map(|(object, at)| step(object, at, (at % 4) as u8));
    std::iter::once(Vec::new()).chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_49_a_good_bucket_is_taken_for_good() {
        reach::taken();
        bucket(&[]);
        let reached = reach::taken();
        assert!(reached.good > 20 && reached.refused.is_empty(), "{reached:?}");
    }

    #[test]
    fn rule_49_no_change_of_objects_is_a_panic_and_mended_hashes_are_believed() {
        reach::taken();
        examples().iter().for_each(|example| bucket(example));
        let reached = reach::taken();
        assert!(reached.sentences.len() > 8, "{reached:?}");
    }
}
