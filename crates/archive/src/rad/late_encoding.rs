//! Late encoding (RAD): chunks that stood replicated, and whose counts have stood still, are sorted
//! by their counts into classes and encoded, each class with its own code.
//!
//! A batch is the containers that are encoded late together, in rounds of a few. Classes are
//! told apart by the counts of the whole batch. Counts may lag; only a chunk's place depends on
//! them.
//!
//! *Crash argument:* a round is one merge. Chunks that nobody needs were condemned and looked at
//! again before; all others are verified and copied, the new containers are synced, and one record
//! says where the old ones' chunks lie. Before it the copies are bytes behind a segment's end.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
};

use onefold_core::{Kind, Result};

use crate::{
    container::{Rewriter, pack},
    format::{
        Address, ContainerId,
        class::{Class, ClassBorder},
        container::{Chunk, ContainerKind, OpenContainer, Packed, Packer},
        parameters::SLOTS_MAX,
        record::{Record, Stored},
    },
    operations_log::Archive,
    rules::Rule,
    tables::{PLACES_MAX, Tables},
    usage_counts::{CountsReader, NodeChanges},
};

/// Containers that are encoded late together: 64 MiB of chunks in memory.
const ROUND: usize = 16;

/// A batch that is being encoded late.
#[derive(Default)]
struct Batch {
    /// Its containers whose counts are not read yet.
    rest: VecDeque<ContainerId>,
    /// The containers that come next.
    next: VecDeque<ContainerId>,
    /// Their counts.
    counts: BTreeMap<ContainerId, Vec<u16>>,
    border: ClassBorder,
}

/// A chunk on its way.
struct Moving {
    class: Class,
    count: u16,
    /// The container that it leaves, as a place in the round.
    from: usize,
    chunk: Chunk,
    bytes: Vec<u8>,
}

impl Batch {
    fn count(&self, address: Address) -> u16 {
        self.counts
            .get(&address.container)
            .and_then(|counts| counts.get(usize::from(address.slot)))
            .copied()
            .unwrap_or(0)
    }
}

/// Cuts sorted chunks into containers of one class each: where each begins.
fn containers(moving: &[Moving], capacity: usize) -> Vec<usize> {
    let (mut starts, mut bytes, mut chunks) = (Vec::new(), 0, 0);
    for (n, next) in moving.iter().enumerate() {
        let same = n > 0 && moving[n - 1].class == next.class;
        if !same || bytes + next.bytes.len() > capacity || chunks == SLOTS_MAX {
            starts.push(n);
            (bytes, chunks) = (0, 0);
        }
        (bytes, chunks) = (bytes + next.bytes.len(), chunks + 1);
    }
    starts
}

/// Late encoding in one collection.
pub(crate) struct LateEncoding {
    all: bool,
    partial: u64,
    /// The batch that is being encoded.
    batch: Option<Batch>,
    /// Containers that can't be encoded late, because a chunk is damaged.
    stays: BTreeSet<ContainerId>,
    is_full: bool,
    /// Containers that were encoded.
    pub(crate) encoded: u64,
    /// Containers that they became.
    pub(crate) encoded_into: u64,
    /// Containers that stay because a chunk of theirs is damaged.
    pub(crate) damaged: u64,
}

impl LateEncoding {
    /// With `all` delay and batch do not count. Containers that no recipe names yet wait when they
    /// were listed behind `partial`, in seconds since 1970.
    pub(crate) fn new(all: bool, partial: u64) -> LateEncoding {
        LateEncoding {
            all,
            partial,
            batch: None,
            stays: BTreeSet::new(),
            is_full: false,
            encoded: 0,
            encoded_into: 0,
            damaged: 0,
        }
    }

    /// A full disk has no room for it, nor for the counts by which chunks are sorted.
    pub(crate) fn no_room(&mut self) {
        self.is_full = true;
    }

    /// Containers that are to be encoded late now.
    pub(crate) fn due(&self, archive: &Archive, tables: &Tables) -> Result<Vec<ContainerId>> {
        if self.is_full {
            return Ok(Vec::new());
        }
        let mut found = tables.due_for_encoding(archive.label().late, self.all, self.partial)?;
        found.retain(|id| !self.stays.contains(id));
        Ok(found)
    }

    /// Encodes some containers; false when there are no more.
    pub(crate) fn step(&mut self, rewriter: &mut Rewriter) -> Result<bool> {
        let tables = rewriter.archive.refresh()?;
        let mut batch = match self.batch.take() {
            Some(batch) => batch,
            None => self.begin_batch(rewriter, &tables)?,
        };
        if batch.next.is_empty() {
            self.read_counts(rewriter, &tables, &mut batch)?;
        }
        if batch.next.is_empty() {
            return Ok(false);
        }
        let encoded = self.round(rewriter, &tables, &mut batch);
        self.batch = Some(batch);
        encoded
    }

    fn begin_batch(&mut self, rewriter: &mut Rewriter, tables: &Tables) -> Result<Batch> {
        let rest: VecDeque<ContainerId> = self.due(&rewriter.archive, tables)?.into();
        let mut chunks: BTreeMap<u16, u64> = BTreeMap::new();
        if !rest.is_empty() {
            let known = numbers(tables, rest.iter())?;
            let mut counts =
                CountsReader::open(&rewriter.archive, tables.named_counts(), &rewriter.pace)?;
            while let Some((id, counts)) = counts.next()? {
                if known.contains(&id) {
                    counts
                        .into_iter()
                        .filter(|&count| count > 0)
                        .for_each(|count| *chunks.entry(count).or_default() += 1);
                }
            }
        }
        Ok(Batch { rest, border: ClassBorder::of(&chunks), ..Batch::default() })
    }

    /// Reads the counts of the next containers, as many as may be in memory.
    fn read_counts(
        &mut self,
        rewriter: &mut Rewriter,
        tables: &Tables,
        batch: &mut Batch,
    ) -> Result<()> {
        let mut slots = 0;
        while let Some(id) = batch.rest.front().copied() {
            let container = tables.containers.get(&id)?;
            let chunks = container.map_or(0, |container| container.stored.chunks as usize);
            if slots > 0 && slots + chunks > rewriter.archive.settings.count_slots {
                break;
            }
            slots += chunks;
            batch.rest.pop_front();
            batch.next.push_back(id);
        }
        batch.counts.clear();
        if batch.next.is_empty() {
            return Ok(());
        }
        let known = numbers(tables, batch.next.iter())?;
        let mut counts =
            CountsReader::open(&rewriter.archive, tables.named_counts(), &rewriter.pace)?;
        while let Some((id, counts)) = counts.next()? {
            if known.contains(&id) {
                batch.counts.insert(id, counts);
            }
        }
        Ok(())
    }

    fn round(
        &mut self,
        rewriter: &mut Rewriter,
        tables: &Tables,
        batch: &mut Batch,
    ) -> Result<bool> {
        let (mut from, mut moving) = (Vec::new(), Vec::new());
        while from.len() < ROUND
            && let Some(id) = batch.next.pop_front()
        {
            let Some(container) = tables.containers.get(&id)? else { continue };
            match rewriter.live_chunks(tables, &container) {
                Ok(live) => {
                    moving.extend(live.into_iter().filter_map(|(chunk, bytes)| {
                        let count = batch.count(chunk.first);
                        let moves = count > 0 || rewriter.archive.keeps(Rule::UnreferencedMovedToo);
                        moves.then(|| Moving {
                            class: batch.border.class(count),
                            count,
                            from: from.len(),
                            chunk,
                            bytes,
                        })
                    }));
                    from.push(id);
                }
                Err(error) if error.kind() == Kind::Corrupt => {
                    self.stays_damaged(rewriter, id, tables)?
                }
                Err(error) => return Err(error),
            }
        }
        if moving.is_empty() {
            return Ok(true);
        }
        moving.sort_unstable_by_key(|moving| {
            (moving.class, Reverse(moving.count), moving.chunk.first)
        });
        let mut starts = containers(&moving, rewriter.archive.settings.container_bytes);
        // The chunks of one container lie in few places: those of its round.
        while starts.len() > PLACES_MAX && from.len() > 1 {
            from.drain(from.len() / 2..).rev().for_each(|id| batch.next.push_front(id));
            moving.retain(|moving| moving.from < from.len());
            starts = containers(&moving, rewriter.archive.settings.container_bytes);
        }
        let mut packed = Vec::new();
        let mut known = Vec::new();
        let mut packer = Packer::new(rewriter.archive.settings.level);
        for start in starts.into_iter().rev() {
            let chunks = moving.split_off(start);
            let Some(class) = chunks.first().map(|moving| moving.class) else { continue };
            packed.push((class, self.pack(rewriter, chunks, &mut known, &mut packer)?));
        }
        let planned: Vec<_> =
            from.iter().map(|&id| (id, tables.condemned.get(&id).cloned())).collect();
        let Some(stored) = self.write_encoded(rewriter, &packed)? else { return Ok(false) };
        #[cfg(feature = "planted-bugs")]
        if !rewriter.archive.keeps(Rule::AllPlacesRecorded) {
            super::broken::forget_places(&mut known);
        }
        let (encoded, into) = (from.len() as u64, stored.len() as u64);
        let to: Vec<(Stored, Vec<ContainerId>)> = stored.into_iter().zip(known).collect();
        let mut gone = false;
        let committed = rewriter.archive.commit(true, |now| {
            // Only a collection changes these containers; one that changed all the same is left to
            // the next collection.
            for (id, bits) in &planned {
                gone |= !now.containers.contains_key(id)? || now.condemned.get(id) != bits.as_ref();
            }
            Ok(if gone { Vec::new() } else { vec![Record::LateEncoded { from, to }] })
        });
        match committed {
            // The log has no room, as the disk has none for the snapshot that it waits for.
            Err(error) if error.kind() == Kind::NoSpace => return Ok(false),
            committed => drop(committed?),
        }
        if !gone {
            self.encoded += encoded;
            self.encoded_into += into;
        }
        Ok(true)
    }

    /// Packs chunks of one class, and notes under which numbers they are known.
    fn pack(
        &mut self,
        rewriter: &mut Rewriter,
        mut chunks: Vec<Moving>,
        known: &mut Vec<Vec<ContainerId>>,
        packer: &mut Packer,
    ) -> Result<Packed> {
        chunks.sort_unstable_by_key(|moving| moving.chunk.first);
        let bytes = chunks.iter().map(|moving| moving.bytes.len()).sum();
        let mut open = OpenContainer::new(rewriter.ids.next()?, ContainerKind::Data, bytes);
        let mut ids: Vec<ContainerId> = Vec::new();
        for Moving { chunk, bytes, .. } in chunks {
            open.push_as(chunk.fingerprint, chunk.first, &bytes);
            if ids.last() != Some(&chunk.first.container) {
                ids.push(chunk.first.container);
            }
        }
        known.push(ids);
        pack(&rewriter.archive, open, packer)
    }

    /// Writes new containers, durable on return; `None` when the disk is full.
    fn write_encoded(
        &mut self,
        rewriter: &mut Rewriter,
        packed: &[(Class, Packed)],
    ) -> Result<Option<Vec<Stored>>> {
        loop {
            let written = self.try_write_encoded(rewriter, packed);
            match written {
                Err(error) if error.kind() == Kind::NoSpace => {
                    rewriter.appender.give_back()?;
                    if !rewriter.archive.reserve().spend()? {
                        self.is_full = true;
                        return Ok(None);
                    }
                }
                written => return written.map(Some),
            }
        }
    }

    fn try_write_encoded(
        &mut self,
        rewriter: &mut Rewriter,
        packed: &[(Class, Packed)],
    ) -> Result<Vec<Stored>> {
        for class in [Class::Cold, Class::Baseline, Class::Hot] {
            rewriter.appender.make_room(packed, class)?;
        }
        let stored = packed
            .iter()
            .map(|(class, packed)| rewriter.appender.append(packed, *class))
            .collect::<Result<_>>()?;
        if rewriter.archive.keeps(Rule::EncodedBeforeFrame) {
            rewriter.appender.sync()?;
        }
        Ok(stored)
    }

    /// A container of which a chunk is damaged stays as it is.
    fn stays_damaged(
        &mut self,
        rewriter: &mut Rewriter,
        id: ContainerId,
        tables: &Tables,
    ) -> Result<()> {
        self.damaged += 1;
        self.stays.insert(id);
        if !tables.condemned.contains_key(&id) {
            return Ok(());
        }
        rewriter
            .archive
            .commit(true, |_| {
                Ok(vec![Record::Dropped { containers: Vec::new(), spared: vec![id] }])
            })
            .map(|_| ())
    }
}

/// When the counts of containers that stand replicated changed last, as the differences say
/// that are about to be counted.
pub(crate) fn changed(
    rewriter: &mut Rewriter,
    tables: &Tables,
    nodes: &NodeChanges,
) -> Result<Vec<(ContainerId, u64)>> {
    let mut changed = BTreeMap::new();
    if !tables.late {
        return Ok(Vec::new());
    }
    let mut looked_up = Ok(());
    let mut touch = |first: Address, at: u64| {
        for home in tables.places(first.container) {
            match home {
                Ok(home) if home.changed < at => {
                    if tables.class(&home.stored.place).0 == Class::Replicated {
                        changed.insert(home.stored.id, at);
                    }
                }
                Ok(_) => {}
                Err(error) => looked_up = Err(error),
            }
        }
    };
    rewriter.named_by(tables, &nodes.rises, &mut |first, _| touch(first, tables.versions))?;
    rewriter.named_by(tables, &nodes.falls, &mut |first, _| touch(first, tables.versions))?;
    for difference in tables.differences.iter().filter(|difference| !difference.nodes) {
        let walked =
            rewriter.walk(tables, &difference.recipe, &mut |first, _| touch(first, difference.at));
        match walked {
            Err(error) if error.kind() == Kind::Corrupt => {}
            other => other?,
        }
    }
    looked_up?;
    Ok(changed.into_iter().collect())
}

/// The numbers under which the chunks of containers are known.
fn numbers<'a>(
    tables: &Tables,
    containers: impl Iterator<Item = &'a ContainerId>,
) -> Result<BTreeSet<ContainerId>> {
    let mut known = BTreeSet::new();
    for id in containers {
        known.extend(tables.containers.get(id)?.iter().flat_map(|container| container.numbers()));
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use onefold_core::Fingerprint;

    use super::*;

    #[test]
    fn containers_have_one_class_and_no_more_than_they_can() {
        let moving = |class, bytes| Moving {
            class,
            count: 1,
            from: 0,
            chunk: Chunk {
                fingerprint: Fingerprint([0; 16]),
                first: Address { container: ContainerId(1), slot: 0 },
                group: 0,
                at: 0,
                bytes: 0,
            },
            bytes: vec![0; bytes],
        };
        let all = [
            moving(Class::Cold, 60),
            moving(Class::Cold, 60),
            moving(Class::Cold, 40),
            moving(Class::Hot, 1),
            moving(Class::Hot, 200),
        ];
        assert_eq!(containers(&all, 100), [0, 1, 3, 4]);
        let tiny: Vec<Moving> = (0..SLOTS_MAX * 2 + 1).map(|_| moving(Class::Cold, 0)).collect();
        assert_eq!(containers(&tiny, 100), [0, SLOTS_MAX, SLOTS_MAX * 2]);
    }
}
