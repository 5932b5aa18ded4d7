//! An object store whose content follows from a rule, so that a cluster of hundreds of gigabytes takes no
//! memory. What is written is kept, and stands before what the rule says.
//!
//! The rule: half of the objects are the pieces of eight volumes, and each of the others is a stream. An
//! object has 128 entries, numbered over all objects; entry `e` names chunk `e`, and those behind the last
//! chunk begin with the first one again. Each hundredth object has a dirty chunk in place of its first
//! entry, and is on the dirty list.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_cluster::{
    Format, Named, What,
    format::{
        Chunk, ChunkId, ObjectId, Reference, Stamp,
        entry::{Base, Entry, Sums},
        key,
    },
};
use onefold_core::{
    checksum,
    object::{
        Change, Held, Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadResult,
        Refusal, Space, Version, Write,
    },
};
use onefold_testbed::{Objects, objects::Object};
use parking_lot::Mutex;

pub(super) const CHUNK: u64 = 32 << 10;
const OBJECT: u64 = 4 << 20;
const ENTRIES: u64 = OBJECT / CHUNK;
const VOLUMES: u64 = 8;
const SHARDS: u64 = 256;

/// The numbers of streams begin here.
const STREAMS: u64 = 1000;

/// One object of so many is dirty.
const DIRTY: u64 = 100;

/// The version of what nobody wrote; those of written objects are higher.
const VERSION: u64 = 1;

/// What was asked of the store.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) operations: AtomicU64,
    /// Batches: what is in one is in flight together.
    pub(super) rounds: AtomicU64,
}

pub(super) struct MadeUp {
    objects: u64,
    chunks: u64,
    /// The cluster counts its pools; a folder does not.
    counts_pools: bool,
    format: Format,
    written: Mutex<Written>,
    /// Streams by the shards of their names.
    streams: Vec<Vec<u32>>,
    /// Dirty objects by the shards of the list.
    dirty: Vec<Vec<u32>>,
    pub(super) counts: Counts,
}

struct Written {
    objects: Objects,
    gone: BTreeSet<ObjectName>,
}

/// Any bits, from a number.
pub(super) fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}

impl MadeUp {
    pub(super) fn new(chunks: u64, counts_pools: bool) -> MadeUp {
        let objects = chunks / 100;
        let mut made = MadeUp {
            objects,
            chunks,
            counts_pools,
            format: Format::new([1; 16], [2; 32], PoolKind::Replicated),
            written: Mutex::new(Written {
                objects: Objects::new(PoolKind::Replicated),
                gone: BTreeSet::new(),
            }),
            streams: vec![Vec::new(); SHARDS as usize],
            dirty: vec![Vec::new(); SHARDS as usize],
            counts: Counts::default(),
        };
        for k in 0..objects {
            if made.is_dirty(k) {
                let shard = checksum::fast(3, &bytes_of(made.id(k))) % SHARDS;
                made.dirty[shard as usize].push(k as u32);
            }
            if k >= objects / 2 {
                let shard = checksum::fast(5, stream_name(k).as_bytes()) % SHARDS;
                made.streams[shard as usize].push(k as u32);
            }
        }
        // Versions rise over those of the rule.
        let first = Write {
            object: ObjectName::metadata("first"),
            guards: Vec::new(),
            changes: vec![Change::Full(Vec::new())],
        };
        for _ in 0..=VERSION {
            drop(made.written.get_mut().objects.write(&first, Duration::ZERO, 0));
        }
        made
    }

    fn is_dirty(&self, k: u64) -> bool {
        k.is_multiple_of(DIRTY)
    }

    fn of_volume(&self) -> u64 {
        (self.objects / 2).div_ceil(VOLUMES)
    }

    fn id(&self, k: u64) -> ObjectId {
        match k < self.objects / 2 {
            true => ObjectId { volume: 1 + k / self.of_volume(), index: k % self.of_volume() },
            false => ObjectId { volume: STREAMS + k, index: 0 },
        }
    }

    fn number(&self, object: ObjectId) -> Option<u64> {
        let k = match object.volume {
            0 => return None,
            id if id <= VOLUMES => (id - 1) * self.of_volume() + object.index,
            id => id.checked_sub(STREAMS)?,
        };
        (k < self.objects && self.id(k) == object).then_some(k)
    }

    fn chunk(&self, n: u64) -> Chunk {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(n * (u64::MAX / self.chunks)).to_be_bytes());
        hash[8..16].copy_from_slice(&mixed(n).to_be_bytes());
        hash[24..].copy_from_slice(&n.to_be_bytes());
        Chunk { id: ChunkId { hash, length: CHUNK as u32 }, copy: 0 }
    }

    fn chunk_number(&self, name: &str) -> Option<u64> {
        let chunk = Chunk::parse(name)?;
        let n = u64::from_be_bytes(chunk.id.hash[24..].try_into().ok()?);
        (n < self.chunks && self.chunk(n) == chunk && !self.references(n).is_empty()).then_some(n)
    }

    fn reference(&self, e: u64) -> Reference {
        let (object, offset) = (self.id(e / ENTRIES), (e % ENTRIES * CHUNK) as u32);
        Reference { object, offset, stamp: Stamp((1 << 40) + e + 1) }
    }

    /// The references of a chunk: of its entries, without those that are dirty.
    fn references(&self, n: u64) -> Vec<Reference> {
        let entries = [n, n + self.chunks].into_iter().filter(|e| *e < self.objects * ENTRIES);
        let clean = entries.filter(|e| !(e % ENTRIES == 0 && self.is_dirty(e / ENTRIES)));
        clean.map(|e| self.reference(e)).collect()
    }

    fn map(&self, k: u64) -> Object {
        let (id, mut made) = (self.id(k), Object { version: VERSION, ..Object::default() });
        for at in 0..ENTRIES {
            let (e, offset) = (k * ENTRIES + at, (at * CHUNK) as u32);
            let dirty = at == 0 && self.is_dirty(k);
            let base = Base { chunk: self.chunk(e % self.chunks), stamp: self.reference(e).stamp };
            let entry = Entry {
                length: CHUNK as u32,
                dirty,
                mask: if dirty { Entry::full_mask(CHUNK as u32) } else { 0 },
                base: (!dirty).then_some(base),
                stamp: Stamp((2 << 40) + e + 1),
                sums: Sums::NONE,
            };
            made.omap.insert(key::entry(offset), entry.encode(id, offset));
        }
        if self.is_dirty(k) {
            made.omap.insert(key::LISTED.to_vec(), ((3u64 << 40) + k + 1).to_le_bytes().to_vec());
            made.data = data(k);
        }
        made
    }

    /// What the rule says of an object.
    fn made(&self, name: &ObjectName) -> Option<Object> {
        let mut object = Object { version: VERSION, ..Object::default() };
        if name.pool == Pool::Chunks {
            for reference in self.references(self.chunk_number(&name.name)?) {
                object.omap.insert(key::reference(&reference), Vec::new());
            }
            object.data = vec![0; CHUNK as usize];
            return Some(object);
        }
        if let Some(id) = ObjectId::parse(&name.name) {
            return self.number(id).map(|k| self.map(k));
        }
        if name.name == "catalogue" {
            let number = |n: u64| n.to_le_bytes().to_vec();
            object.omap.insert(b"format".to_vec(), self.format.encode());
            object.omap.insert(b"sessions".to_vec(), number(10));
            object.omap.insert(b"ids".to_vec(), number(2 * STREAMS + self.objects));
            return Some(object);
        }
        let (kind, number) = name.name.split_once('.')?;
        let number = u64::from_str_radix(number, 16).ok()?;
        match kind {
            "n" => self.names(number, &mut object),
            "d" => {
                for k in self.dirty.get(number as usize)? {
                    let k = u64::from(*k);
                    object
                        .omap
                        .insert(key::listed(self.id(k), Stamp((3 << 40) + k + 1)), Vec::new());
                }
            }
            "v" if (1..=VOLUMES).contains(&number) => {
                let last = self.volume_objects(number);
                for group in 0..last.div_ceil(512) {
                    let mut bits = vec![0; 64];
                    for at in (0..512).filter(|at| group * 512 + at < last) {
                        bits[at as usize / 8] |= 1 << (at % 8);
                    }
                    object.omap.insert(key::numbered(b'B', group), bits);
                }
            }
            _ => return None,
        }
        Some(object)
    }

    fn volume_objects(&self, id: u64) -> u64 {
        (self.objects / 2).saturating_sub((id - 1) * self.of_volume()).min(self.of_volume())
    }

    fn names(&self, shard: u64, object: &mut Object) {
        for k in self.streams.get(shard as usize).into_iter().flatten() {
            let k = u64::from(*k);
            let (id, name) = (self.id(k).volume, stream_name(k));
            let named = Named { what: What::Put, id, bytes: OBJECT, pieces: 1, moves: 0 };
            object.omap.insert([b"n", name.as_bytes()].concat(), named.encode());
        }
        for id in 1..=VOLUMES {
            let name = format!("volume {id}");
            if checksum::fast(5, name.as_bytes()) % SHARDS == shard {
                let bytes = self.volume_objects(id) * OBJECT;
                let named = Named { what: What::Volume, id, bytes, pieces: 0, moves: 0 };
                object.omap.insert([b"n", name.as_bytes()].concat(), named.encode());
            }
        }
    }

    fn read_one(&self, read: &Read) -> Result<ReadResult, Refusal> {
        {
            let written = self.written.lock();
            if written.objects.get(&read.object).is_some() {
                return written.objects.read(read);
            }
            if written.gone.contains(&read.object) {
                return Err(Refusal::Missing);
            }
        }
        let mut alone = Objects::new(PoolKind::Replicated);
        if let Some(object) = self.made(&read.object) {
            alone.put_back(&read.object, object);
        }
        alone.read(read)
    }

    /// Lets an object be what the rule says, before it changes.
    fn make_real(&self, written: &mut Written, name: &ObjectName) {
        if written.objects.get(name).is_none()
            && !written.gone.contains(name)
            && let Some(object) = self.made(name)
        {
            written.objects.put_back(name, object);
        }
    }

    fn me(cookie: &str) -> Holder {
        Holder { identity: "bench".into(), cookie: cookie.into() }
    }

    fn count(&self, operations: usize) {
        self.counts.operations.fetch_add(operations as u64, Relaxed);
        self.counts.rounds.fetch_add(1, Relaxed);
    }

    fn list_metadata(&self, from: Option<&str>, most: u64) -> Page {
        let from = from.and_then(|from| from.parse::<u64>().ok()).unwrap_or(0);
        let end = self.objects + VOLUMES;
        let name = |at: u64| match at < self.objects {
            true => self.id(at).name().name,
            false => format!("v.{:010x}", at - self.objects + 1),
        };
        let next = (from + most).min(end);
        Page {
            names: (from..next).map(name).collect(),
            next: (next < end).then(|| next.to_string()),
        }
    }

    fn list_chunks(&self, from: Option<&str>, most: u64) -> Page {
        let step = u64::MAX / self.chunks;
        let after = from.and_then(|from| {
            let place = u64::from_str_radix(from.strip_prefix("c.0.")?.get(..16)?, 16).ok()?;
            Some(if from.len() > 20 { place / step + 1 } else { place.div_ceil(step) })
        });
        let from = after.unwrap_or(0).min(self.chunks);
        let next = (from + most).min(self.chunks);
        let there = (from..next).filter(|n| !self.references(*n).is_empty());
        let names: Vec<String> = there.map(|n| self.chunk(n).name()).collect();
        Page { names, next: (next < self.chunks).then(|| self.chunk(next - 1).name()) }
    }
}

fn stream_name(k: u64) -> String {
    format!("stream {k}")
}

fn bytes_of(id: ObjectId) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..5].copy_from_slice(&id.volume.to_be_bytes()[3..]);
    bytes[5..].copy_from_slice(&id.index.to_be_bytes()[3..]);
    bytes
}

/// A chunk's bytes.
pub(super) fn data(n: u64) -> Vec<u8> {
    mixed(n + 1).to_le_bytes().repeat(CHUNK as usize / 8)
}

impl ObjectStore for MadeUp {
    fn kind(&self, _: Pool) -> PoolKind {
        PoolKind::Replicated
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        self.count(batch.len());
        let mut written = self.written.lock();
        let mut one = |op: &Write| {
            self.make_real(&mut written, &op.object);
            let result = written.objects.write(op, self.time(), 0);
            if result.is_ok() {
                match op.changes.contains(&Change::Remove) {
                    true => written.gone.insert(op.object.clone()),
                    false => written.gone.remove(&op.object),
                };
            }
            result
        };
        batch.iter().map(&mut one).collect()
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        self.count(batch.len());
        batch.iter().map(|read| self.read_one(read)).collect()
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        self.count(1);
        Ok(match pool {
            Pool::Metadata => self.list_metadata(from, most as u64),
            Pool::Chunks => self.list_chunks(from, most as u64),
        })
    }

    fn lists_by_name(&self) -> bool {
        !self.counts_pools
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.count(1);
        let mut written = self.written.lock();
        self.make_real(&mut written, object);
        written.objects.lock(object, lock, MadeUp::me(cookie), self.time(), lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.break_lock(object, lock, &MadeUp::me(cookie))
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        self.count(1);
        Ok(self.written.lock().objects.holder(object, lock, self.time()))
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.count(1);
        self.written.lock().objects.break_lock(object, lock, holder);
        Ok(())
    }

    fn identity(&self) -> String {
        "bench".into()
    }

    fn fence(&self, _: &str) -> Result<(), Refusal> {
        Ok(())
    }

    fn time(&self) -> Duration {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
    }

    fn monotonic(&self) -> Duration {
        self.time()
    }

    fn held(&self, pool: Pool) -> Result<Option<Held>, Refusal> {
        let objects = if pool == Pool::Chunks { self.chunks } else { self.objects };
        Ok(self.counts_pools.then_some(Held { objects, bytes: objects * CHUNK }))
    }

    fn space(&self) -> Result<Space, Refusal> {
        Ok(Space { total: 1 << 50, used: self.chunks * CHUNK })
    }
}
