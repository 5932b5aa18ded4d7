//! Chunk objects: named by their content (double hashing), with the references that keep them.
//!
//! A reference may be false, but never missing. A session adds it before a map names the chunk, and
//! drops it after no map does. A chunk without references is removed at the version at which a read
//! found none. An add in between makes the removal fail, and a later one creates the chunk again.
//!
//! With a replicated pool the references are keys of the chunk object; with an erasure-coded one
//! they are in a replicated object of the same name, see [`erasure`].

mod drops;
mod erasure;
pub(crate) mod notes;
mod read;
mod replicated;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use onefold_core::{
    checksum, compress,
    object::{Change, Guard, ObjectName, PoolKind, Read, ReadPart, ReadResult, Refusal, Write},
};

use parking_lot::Mutex;

use self::notes::{Notes, Record};
use crate::{
    format::{BLOCK, Chunk, ChunkId, Reference, Stamp, key},
    kernel::Kernel,
    rules::Rule,
};

/// How often the copies of a chunk were doubled.
pub(crate) const SPREAD: &str = "n";

/// The copies of a chunk are doubled so often at most: to 256.
pub(crate) const SPREAD_MAX: u8 = 8;

/// Turns from one way of adding to the other until it is an error.
const TURNS: u32 = 8;

/// Keys of a page of references.
const PAGE: usize = 1000;

/// The copy of a chunk that gets a reference when the copies were doubled so often.
pub(crate) fn copy_for(id: ChunkId, reference: &Reference, spread: u8) -> Chunk {
    Chunk { id, copy: (checksum::fast(1, &key::reference(reference)) & ((1 << spread) - 1)) as u8 }
}

/// How often copies were doubled, by an answer whose first part is that.
pub(crate) fn spread_in(answer: &ReadResult) -> u8 {
    answer.xattr(0).and_then(|value| value.first().copied()).unwrap_or(0).min(SPREAD_MAX)
}

/// The state of a chunk of an erasure-coded pool whose data is there.
fn present() -> Vec<u8> {
    vec![2]
}

/// True when the keys say that the data is there.
fn is_present(pairs: &[(Vec<u8>, Vec<u8>)]) -> bool {
    pairs.iter().any(|(key, value)| key == key::STATE && *value == present())
}

/// The chunk pool, with a session's memory of it.
pub(crate) struct ChunkPool {
    kernel: Arc<Kernel>,
    /// How often the copies of a chunk were doubled, as far as it is known here; a hint.
    spreads: Mutex<BTreeMap<ChunkId, u8>>,
    notes: Notes,
    /// Most chunks of the last batch were new: assume the same of the next batch.
    mostly_new: AtomicBool,
}

impl ChunkPool {
    pub(crate) fn new(kernel: Arc<Kernel>) -> ChunkPool {
        ChunkPool {
            notes: Notes::new(kernel.clone()),
            kernel,
            spreads: Mutex::default(),
            mostly_new: AtomicBool::new(false),
        }
    }

    /// The name of a chunk with this content.
    pub(crate) fn chunk_id(&self, data: &[u8]) -> ChunkId {
        ChunkId {
            hash: checksum::chunk_name(self.kernel.hashing().chunk_secret(), data),
            length: data.len() as u32,
        }
    }

    /// The object with the references of a chunk.
    pub(crate) fn references(&self, chunk: &Chunk) -> ObjectName {
        match self.kernel.format().chunks {
            PoolKind::Replicated => ObjectName::chunk(chunk.name()),
            PoolKind::Erasure => ObjectName::metadata(chunk.name()),
        }
    }

    /// The key of a reference.
    pub(crate) fn reference_key(&self, reference: &Reference) -> Vec<u8> {
        let stamp =
            if self.kernel.keeps(Rule::ReferenceHasStamp) { reference.stamp } else { Stamp(0) };
        key::reference(&Reference { stamp, ..*reference })
    }

    /// Adds a reference to a chunk with this content, which is made where it is not there. Returns
    /// the copy that has the reference.
    ///
    /// # Errors
    /// The store's; the reference may be there all the same.
    pub(crate) fn add_reference(
        &self,
        id: ChunkId,
        data: &[u8],
        reference: &Reference,
    ) -> Result<Chunk, Refusal> {
        for _ in 0..TURNS {
            let spread = self.spreads.lock().get(&id).copied().unwrap_or(0);
            let key = key::reference(reference);
            let chunk = copy_for(id, reference, spread);
            let added = match self.kernel.format().chunks {
                PoolKind::Replicated => self.add_replicated(&chunk, data, reference, spread),
                PoolKind::Erasure => self.add_erasure(&chunk, data, reference, spread),
            };
            match added {
                Ok(new) => {
                    let counter = if new {
                        &self.kernel.counts().chunks_new
                    } else {
                        &self.kernel.counts().chunks_found
                    };
                    counter.fetch_add(1, Relaxed);
                    if !new
                        && checksum::fast(2, &key)
                            .is_multiple_of(self.kernel.settings().count_one_in.max(1))
                    {
                        self.spread_out(&chunk, spread)?;
                    }
                    return Ok(chunk);
                }
                // The number of copies is another one.
                Err(Refusal::Mismatch) => self.learn_spread(id)?,
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Mismatch)
    }

    /// Adds many references, in flight together: first to chunks that exist, then with new chunks,
    /// and the remaining ones one by one. Their attempts are recorded first, in an operation of
    /// their own.
    ///
    /// # Errors
    /// As [`add_reference`](Self::add_reference) for each.
    pub(crate) fn add_references(
        &self,
        wanted: &[(ChunkId, &[u8], Reference)],
    ) -> Result<Vec<Chunk>, Refusal> {
        self.notes.record(wanted)?;
        self.add_or_note_again(wanted, None)
    }

    /// As [`add_references`](Self::add_references), where a client waits. The record of the
    /// attempts goes in front of the first batch, so that it costs no round trip of its own.
    pub(crate) fn add_references_at_once(
        &self,
        wanted: &[(ChunkId, &[u8], Reference)],
    ) -> Result<Vec<Chunk>, Refusal> {
        self.add_or_note_again(wanted, self.notes.record_op(wanted))
    }

    /// Adds references to chunks that others refer to, without their contents: those are read only where a
    /// chunk has several copies. `None` for a chunk that is gone.
    ///
    /// # Errors
    /// As [`add_reference`](Self::add_reference) for each.
    pub(crate) fn refer_again(
        &self,
        named: &[(Chunk, Reference)],
    ) -> Result<Vec<Option<Chunk>>, Refusal> {
        let wanted: Vec<(ChunkId, &[u8], Reference)> =
            named.iter().map(|(chunk, reference)| (chunk.id, &[][..], *reference)).collect();
        self.notes.record(&wanted)?;
        let added = self.refer_noted(named, &wanted);
        if added.as_ref().map_or(true, |added| added.contains(&None)) {
            self.notes.are_open(wanted.iter().map(|(id, _, reference)| (*id, *reference)));
        }
        added
    }

    fn refer_noted(
        &self,
        named: &[(Chunk, Reference)],
        wanted: &[(ChunkId, &[u8], Reference)],
    ) -> Result<Vec<Option<Chunk>>, Refusal> {
        // None of them counts the others: a chunk that cannot be read gets its reference all the same.
        let plain = |n: &usize| !self.spreads.lock().contains_key(&wanted[*n].0);
        let open: Vec<usize> = (0..wanted.len()).filter(plain).collect();
        let some: Vec<_> = open.iter().map(|n| wanted[*n]).collect();
        let results = match self.kernel.format().chunks {
            PoolKind::Replicated => self.add_all_replicated(&some, false, &mut None),
            PoolKind::Erasure => self.add_all_present(&some, &mut None),
        }?;
        let mut added: Vec<Option<Chunk>> = vec![None; wanted.len()];
        for (n, result) in open.into_iter().zip(results) {
            match result {
                Ok(_) => added[n] = Some(Chunk { id: wanted[n].0, copy: 0 }),
                Err(Refusal::Missing | Refusal::Exists | Refusal::Mismatch) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        let rest: Vec<usize> = (0..wanted.len()).filter(|n| added[*n].is_none()).collect();
        let chunks: Vec<Chunk> = rest.iter().map(|n| named[*n].0).collect();
        for (n, content) in rest.into_iter().zip(self.read_chunks(&chunks)) {
            let content = match content {
                Err(Refusal::Missing) => continue,
                other => other?,
            };
            added[n] = Some(self.add_reference(wanted[n].0, &content, &wanted[n].2)?);
        }
        Ok(added)
    }

    /// Where the step fails, some of the references may be there, and others may come late. The record
    /// in front of the step may have failed too: what it was to set again stays open.
    fn add_or_note_again(
        &self,
        wanted: &[(ChunkId, &[u8], Reference)],
        record: Option<Record>,
    ) -> Result<Vec<Chunk>, Refusal> {
        let (note, again) = record.map(|record| (record.op, record.again)).unzip();
        self.add_noted(wanted, note).inspect_err(|_| {
            self.notes.failed(again.unwrap_or_default());
            self.notes.are_open(wanted.iter().map(|(id, _, reference)| (*id, *reference)));
        })
    }

    fn add_noted(
        &self,
        wanted: &[(ChunkId, &[u8], Reference)],
        mut note: Option<Write>,
    ) -> Result<Vec<Chunk>, Refusal> {
        let mut added: Vec<Option<Chunk>> = vec![None; wanted.len()];
        let first = self.mostly_new.load(Relaxed);
        let mut made = 0;
        for new in [first, !first] {
            // A chunk with several copies is added one by one, and so is a reference that counts
            // the others.
            let plain = |n: &usize| {
                let (id, _, reference) = &wanted[*n];
                let counts = checksum::fast(2, &key::reference(reference))
                    .is_multiple_of(self.kernel.settings().count_one_in.max(1));
                added[*n].is_none() && !self.spreads.lock().contains_key(id) && (new || !counts)
            };
            let open: Vec<usize> = (0..wanted.len()).filter(plain).collect();
            let some: Vec<_> = open.iter().map(|n| wanted[*n]).collect();
            let results = match (self.kernel.format().chunks, new) {
                (PoolKind::Replicated, _) => self.add_all_replicated(&some, new, &mut note),
                (PoolKind::Erasure, false) => self.add_all_present(&some, &mut note),
                (PoolKind::Erasure, true) => self.add_all_new(&some, &mut note),
            }?;
            for (n, result) in open.into_iter().zip(results) {
                match result {
                    Ok(_) => {
                        added[n] = Some(Chunk { id: wanted[n].0, copy: 0 });
                        let counter = if new {
                            &self.kernel.counts().chunks_new
                        } else {
                            &self.kernel.counts().chunks_found
                        };
                        counter.fetch_add(1, Relaxed);
                        made += usize::from(new);
                    }
                    Err(Refusal::Missing | Refusal::Exists | Refusal::Mismatch) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
        }
        // A wrong guess that a chunk is new costs its bytes once more, the other one a turn.
        self.mostly_new.store(4 * made >= 3 * wanted.len(), Relaxed);
        self.kernel.behind_until_answered(&mut note, &[])?;
        let rest = |(n, chunk): (usize, Option<Chunk>)| match chunk {
            Some(chunk) => Ok(chunk),
            None => self.add_reference(wanted[n].0, wanted[n].1, &wanted[n].2),
        };
        added.into_iter().enumerate().map(rest).collect()
    }

    /// The attempts at these references are over: the references are in use, or were dropped.
    /// Attempts at a chunk whose copies were doubled stay for workers, because an earlier try may
    /// have added the same reference to another copy.
    pub(crate) fn attempts_are_over(&self, added: impl IntoIterator<Item = (Chunk, Reference)>) {
        let spreads = self.spreads.lock();
        let over = added.into_iter().filter(|(chunk, _)| !spreads.contains_key(&chunk.id));
        self.notes.are_over(over.map(|(_, reference)| reference));
    }

    /// A step failed behind these references: the next record of attempts has them again.
    pub(crate) fn attempts_are_open(&self, added: impl IntoIterator<Item = (Chunk, Reference)>) {
        self.notes.are_open(added.into_iter().map(|(chunk, reference)| (chunk.id, reference)));
    }

    /// At an orderly end: removes the attempts that are over, and notes those that a failed step left.
    pub(crate) fn settle_attempts(&self) {
        self.notes.settle();
    }

    /// The guard that finds out that the number of copies is another one.
    fn spread_guard(chunk: &Chunk, spread: u8) -> Option<Guard> {
        (chunk.copy == 0).then(|| Guard::Xattr(SPREAD, vec![spread]))
    }

    fn learn_spread(&self, id: ChunkId) -> Result<(), Refusal> {
        let first = self.references(&Chunk { id, copy: 0 });
        let spread = match self.kernel.read_one(&first, vec![ReadPart::Xattr(SPREAD)]) {
            Ok(answer) => spread_in(&answer),
            Err(Refusal::Missing) => 0,
            Err(refusal) => return Err(refusal),
        };
        self.spreads.lock().insert(id, spread);
        Ok(())
    }

    /// Doubles the copies of a chunk of which one has too many references.
    fn spread_out(&self, chunk: &Chunk, spread: u8) -> Result<(), Refusal> {
        let (object, mut after, mut count) = (self.references(chunk), Vec::new(), 0);
        while count < self.kernel.settings().spread_at {
            let answer = match self.kernel.read_one(&object, vec![ReadPart::Page(after, PAGE)]) {
                Err(Refusal::Missing) => return Ok(()),
                other => other?,
            };
            let (pairs, more) = answer.pairs(0);
            count += pairs.len();
            match pairs.last() {
                Some((last, _)) if more => after = last.clone(),
                _ => break,
            }
        }
        if count < self.kernel.settings().spread_at || spread >= SPREAD_MAX {
            return Ok(());
        }
        let object = self.references(&Chunk { id: chunk.id, copy: 0 });
        let guards = vec![Guard::Xattr(SPREAD, vec![spread])];
        match self.kernel.until_answered(&Write {
            object,
            guards,
            changes: vec![Change::SetXattr(SPREAD, vec![spread + 1])],
        }) {
            // The number is a hint.
            Ok(_) | Err(Refusal::Mismatch | Refusal::Missing | Refusal::Full) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// The operation that drops exactly this reference; one that is not there is no error.
    pub(crate) fn drop_op(&self, chunk: &Chunk, reference: &Reference) -> Write {
        let keys = vec![self.reference_key(reference)];
        Write {
            object: self.references(chunk),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(keys)],
        }
    }

    /// Removes those of the chunks to which nothing refers; returns how many.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn collect_all(
        &self,
        chunks: impl IntoIterator<Item = Chunk>,
    ) -> Result<u64, Refusal> {
        let chunks: BTreeSet<Chunk> = chunks.into_iter().collect();
        let chunks: Vec<Chunk> = chunks.into_iter().collect();
        let mut removed = 0;
        match self.kernel.format().chunks {
            PoolKind::Replicated => removed = self.collect_replicated(&chunks)?,
            PoolKind::Erasure => {
                for chunk in &chunks {
                    removed += u64::from(self.collect_erasure(chunk)?);
                }
            }
        }
        self.kernel.counts().collected.fetch_add(removed, Relaxed);
        Ok(removed)
    }

    /// True when the chunk has this reference and its data.
    ///
    /// # Errors
    /// `Missing` when there is no such chunk, and the store's.
    pub(crate) fn has_reference(
        &self,
        chunk: &Chunk,
        reference: &Reference,
    ) -> Result<bool, Refusal> {
        let key = self.reference_key(reference);
        let answer = self.kernel.read_one(
            &self.references(chunk),
            vec![ReadPart::Keys(vec![key, key::STATE.to_vec()])],
        )?;
        let (pairs, _) = answer.pairs(0);
        if self.kernel.format().chunks == PoolKind::Erasure && !is_present(pairs) {
            return Err(Refusal::Missing);
        }
        Ok(pairs.iter().any(|(key, _)| key != key::STATE))
    }

    /// For each chunk, whether it has its reference, by one read.
    pub(crate) fn have_references(&self, named: &[(Chunk, Reference)]) -> Vec<bool> {
        let look = |(chunk, reference): &(Chunk, Reference)| Read {
            object: self.references(chunk),
            parts: vec![ReadPart::Keys(vec![self.reference_key(reference), key::STATE.to_vec()])],
        };
        let answers = self.kernel.read_all(&named.iter().map(look).collect::<Vec<_>>());
        let has = |answer: Result<ReadResult, Refusal>| {
            answer.is_ok_and(|answer| {
                let (pairs, _) = answer.pairs(0);
                let present =
                    self.kernel.format().chunks == PoolKind::Replicated || is_present(pairs);
                present && pairs.iter().any(|(key, _)| key != key::STATE)
            })
        };
        answers.into_iter().map(has).collect()
    }

    /// Data and attribute of a chunk object: compressed where that saves a block of the store.
    fn body(&self, data: &[u8]) -> Vec<Change> {
        let blocks = |bytes: usize| bytes.div_ceil(BLOCK as usize);
        let packed = self
            .kernel
            .format()
            .compress
            .then(|| compress::pack(data))
            .filter(|packed| blocks(packed.len()) < blocks(data.len()));
        let mut head = vec![u8::from(packed.is_some())];
        head.extend((data.len() as u32).to_le_bytes());
        vec![
            Change::Full(packed.unwrap_or_else(|| data.to_vec())),
            Change::SetXattr(key::HEAD, head),
        ]
    }
}

#[cfg(test)]
mod tests {
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{Format, Session, Settings, create, format::ObjectId};

    /// Keys in one omap at most: more stop the recovery of the object.
    const OMAP_MAX: usize = 100_000;

    #[test]
    fn a_million_references_to_one_chunk_keep_every_omap_small() {
        const REFERENCES: u64 = 1_000_000;
        let store = Arc::new(MemoryObjects::new(PoolKind::Replicated));
        create(&*store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let session = Session::open(store, Settings::default()).unwrap();
        let data = vec![7; BLOCK as usize];
        let id = session.chunk_pool().chunk_id(&data);
        let reference = |n: u64| {
            let object = ObjectId { volume: 1, index: n / 128 };
            Reference { object, offset: (n % 128) as u32 * (32 << 10), stamp: Stamp(n + 1) }
        };
        let mut samples = Vec::new();
        let references: Vec<Reference> = (0..REFERENCES).map(reference).collect();
        for group in references.chunks(64) {
            let wanted: Vec<(ChunkId, &[u8], Reference)> =
                group.iter().map(|reference| (id, data.as_slice(), *reference)).collect();
            let chunks = session.chunk_pool().add_noted(&wanted, None).unwrap();
            samples.push((chunks[0], group[0]));
        }
        let mut all = 0;
        let copies: BTreeSet<Chunk> = samples.iter().map(|(chunk, _)| *chunk).collect();
        for chunk in &copies {
            let keys = session
                .kernel()
                .all_keys(&session.chunk_pool().references(chunk), Vec::new())
                .unwrap()
                .len();
            assert!((1..OMAP_MAX).contains(&keys), "copy {} has {keys} references", chunk.copy);
            assert_eq!(session.chunk_pool().read_chunks(&[*chunk]).remove(0).unwrap(), data);
            all += keys as u64;
        }
        assert_eq!((all, copies.len()), (REFERENCES, 1 << SPREAD_MAX));
        assert!(samples.iter().all(|(chunk, reference)| {
            session.chunk_pool().has_reference(chunk, reference).unwrap()
        }));
    }
}
