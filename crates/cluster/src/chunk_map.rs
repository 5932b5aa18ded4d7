//! The chunk map of a metadata object: the entries of its chunks, and the keys beside them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use onefold_core::{
    Error,
    object::{Read, ReadPart, ReadResult, Refusal, Seen, Version},
};

use crate::{
    format::{
        BLOCK, Chunk, ENTRIES_MAX, MAP_PAGE, ObjectId, Reference, Stamp, corrupt,
        entry::{self, Entry},
        key,
        recut::Recut,
    },
    kernel::Kernel,
    rules::Rule,
};

/// All keys of a metadata object.
#[derive(Clone, Debug)]
pub(crate) struct ChunkMap {
    /// The object's version.
    pub(crate) version: Version,
    /// Entries by their offset.
    pub(crate) entries: BTreeMap<u32, Entry>,
    /// Drops that are to be done.
    pub(crate) pending: Vec<(Chunk, Reference)>,
    /// The list stamp.
    pub(crate) listed: Option<Stamp>,
    /// The last long discard that reached it.
    pub(crate) discarded: Stamp,
    /// How its chunks are cut, where their content decides.
    pub(crate) recut: Option<Recut>,
    /// While its copy from the layer below is under way: the stamp of its references.
    pub(crate) copying: Option<Stamp>,
    /// It is being erased: what it held stands elsewhere.
    pub(crate) erasing: bool,
    /// When it changed last.
    pub(crate) changed: Duration,
}

impl ChunkMap {
    /// True when a worker has nothing to do.
    pub(crate) fn has_no_work(&self) -> bool {
        let recuts = self.recut.as_ref().is_some_and(|recut| !recut.range.is_empty());
        self.pending.is_empty() && !recuts && self.entries.values().all(|entry| !entry.dirty)
    }

    /// True for an object of a layer that may be read: its copy is over, and it is not being erased.
    pub(crate) fn holds_content(&self) -> bool {
        self.copying.is_none() && !self.erasing
    }

    /// The map of an object, in one read; `None` when there is no such object.
    pub(crate) fn read(kernel: &Kernel, object: ObjectId) -> Result<Option<ChunkMap>, Refusal> {
        ChunkMap::from_answer(object, kernel.read_one(&object.name(), map_parts()))
    }

    /// The maps of objects, without those that can't be read.
    pub(crate) fn read_each(
        kernel: &Kernel,
        objects: &BTreeSet<ObjectId>,
    ) -> Result<BTreeMap<ObjectId, Option<ChunkMap>>, Refusal> {
        let read = |object: &ObjectId| Read { object: object.name(), parts: map_parts() };
        let answers = kernel.read_all(&objects.iter().map(read).collect::<Vec<_>>());
        let mut maps = BTreeMap::new();
        for (object, answer) in objects.iter().zip(answers) {
            match ChunkMap::from_answer(*object, answer) {
                Ok(map) => drop(maps.insert(*object, map)),
                // A map that can't be read may need its references.
                Err(Refusal::Failed(_)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(maps)
    }

    /// The map in an answer to a read that begins with [`map_parts`].
    pub(crate) fn from_answer(
        object: ObjectId,
        answer: Result<ReadResult, Refusal>,
    ) -> Result<Option<ChunkMap>, Refusal> {
        match answer {
            Ok(answer) => ChunkMap::parse(object, &answer, 0, 1).map(Some).map_err(Refusal::Failed),
            Err(Refusal::Missing) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    fn parse(
        object: ObjectId,
        answer: &ReadResult,
        keys: usize,
        stat: usize,
    ) -> Result<ChunkMap, Error> {
        let mut map = ChunkMap {
            version: answer.version,
            entries: BTreeMap::new(),
            pending: Vec::new(),
            listed: None,
            discarded: Stamp(0),
            recut: None,
            copying: None,
            erasing: false,
            changed: match answer.seen.get(stat) {
                Some(Seen::Stat { changed, .. }) => *changed,
                _ => Duration::ZERO,
            },
        };
        let (pairs, more) = answer.pairs(keys);
        let bad = || corrupt(format_args!("the map of object {object} is damaged"));
        for (key, value) in pairs {
            let stamp = || Ok(Stamp(u64::from_le_bytes(value[..].try_into().map_err(|_| bad())?)));
            if let Some(offset) = key::offset(key) {
                map.entries.insert(offset, Entry::decode(object, offset, value)?);
            } else if key == key::LISTED {
                map.listed = Some(stamp()?);
            } else if key == key::DISCARDED {
                map.discarded = stamp()?;
            } else if key == key::COPYING {
                map.copying = Some(stamp()?);
            } else if key == key::ERASED {
                map.erasing = true;
            } else if key == key::RECUT {
                map.recut = Some(Recut::decode(value)?);
            } else if let Some((offset, stamp)) = key::parse_pending(key) {
                map.pending.push((
                    entry::decode_pending(object, offset, value)?,
                    Reference { object, offset, stamp },
                ));
            } else {
                return Err(bad());
            }
        }
        let mut neighbours = map.entries.iter().zip(map.entries.keys().skip(1));
        let overlap = neighbours.any(|((offset, entry), next)| offset + entry.length > *next);
        if more || overlap || map.entries.len() > ENTRIES_MAX {
            return Err(bad());
        }
        Ok(map)
    }
}

/// The parts that [`ChunkMap::read`] reads.
pub(crate) fn map_parts() -> Vec<ReadPart> {
    vec![ReadPart::Page(Vec::new(), MAP_PAGE), ReadPart::Stat]
}

/// The value of a stamp.
pub(crate) fn stamp_value(stamp: Stamp) -> Vec<u8> {
    stamp.0.to_le_bytes().to_vec()
}

/// The chunk that a byte is in, as entries say: its offset and entry.
pub(crate) fn covering(entries: &BTreeMap<u32, Entry>, at: u32) -> Option<(u32, Entry)> {
    let (offset, entry) = entries.range(..=at).next_back()?;
    (at < offset + entry.length).then(|| (*offset, entry.clone()))
}

/// The bytes of a chunk according to its entry: blocks of the mask from the object, the others from
/// the base, or zeroes.
pub(crate) fn assemble(entry: &Entry, object: &[u8], base: Option<&[u8]>) -> Vec<u8> {
    let mut content = base.map_or_else(|| vec![0; entry.length as usize], <[u8]>::to_vec);
    content.resize(entry.length as usize, 0);
    for (block, into) in content.chunks_mut(BLOCK as usize).enumerate() {
        if entry.mask >> block & 1 == 1 {
            let at = (block * BLOCK as usize).min(object.len());
            let there = &object[at..(at + into.len()).min(object.len())];
            into[..there.len()].copy_from_slice(there);
            into[there.len()..].fill(0);
        }
    }
    content
}

/// True when the entry names the chunk with this very reference.
pub(crate) fn is_named(map: Option<&ChunkMap>, chunk: &Chunk, reference: &Reference) -> bool {
    let base = map.and_then(|map| map.entries.get(&reference.offset)).and_then(|entry| entry.base);
    base.is_some_and(|base| base.chunk == *chunk && base.stamp == reference.stamp)
}

/// True for a reference that nobody has a use for, nor ever will: its entry, read after it,
/// does not name it, and neither that, nor the re-cut or the copy under way, has its very stamp.
pub(crate) fn is_stale(
    kernel: &Kernel,
    map: Option<&ChunkMap>,
    chunk: &Chunk,
    reference: &Reference,
) -> bool {
    let Some(map) = map else { return true };
    let recut = map.recut.as_ref().is_some_and(|recut| {
        recut.stamp == reference.stamp && recut.range.contains(&reference.offset)
    });
    if recut && kernel.keeps(Rule::RecutReferencesSpared) {
        return false;
    }
    if map.copying == Some(reference.stamp) && kernel.keeps(Rule::CopyReferencesSpared) {
        return false;
    }
    let Some(entry) = map.entries.get(&reference.offset) else { return true };
    let named =
        entry.base.is_some_and(|base| base.chunk == *chunk && base.stamp == reference.stamp);
    let coming = entry.dirty && entry.stamp == reference.stamp;
    !named && !coming
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry::Sums;

    #[test]
    fn blocks_come_from_object_base_or_nowhere() {
        let entry = Entry {
            length: 10_000,
            dirty: true,
            mask: 0b10,
            base: None,
            stamp: Stamp(1),
            sums: Sums::NONE,
        };
        let (object, base) = (vec![1; 9_000], vec![2; 10_000]);
        let content = assemble(&entry, &object, Some(&base));
        assert!(
            content[..4096] == base[..4096]
                && content[4096..8192] == object[..4096]
                && content[8192..] == base[8192..]
        );
        let content = assemble(&Entry { mask: 0b111, ..entry.clone() }, &object, None);
        assert!(content[..9_000] == object && content[9_000..] == [0; 1_000]);
    }
}
