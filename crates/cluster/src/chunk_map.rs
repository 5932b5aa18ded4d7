//! The chunk map of a metadata object, and the object's place on the dirty list.
//!
//! The dirty bit in the entry is the truth; the list only saves a scan. An object is on the list
//! while its *listed* key holds the list stamp: each write compares it, and where it is absent sets
//! it. The insert into the list follows, and the acknowledgement waits for it. Who finds all
//! clean removes the listed key at the version at which that was seen, then exactly its key of the
//! list.

use std::{collections::BTreeMap, time::Duration};

use onefold_core::{
    Error,
    object::{Change, Guard, ObjectName, ReadPart, ReadResult, Refusal, Seen, Version, Write},
};

use crate::{
    format::{
        BLOCK, Chunk, ENTRIES_MAX, MAP_PAGE, ObjectId, Reference, Stamp, corrupt,
        entry::{self, Entry},
        key,
        recut::Recut,
    },
    session::Session,
    settings::PlantedBug,
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
    /// When it changed last.
    pub(crate) changed: Duration,
}

impl ChunkMap {
    /// True when a worker has nothing to do.
    pub(crate) fn has_no_work(&self) -> bool {
        let recuts = self.recut.as_ref().is_some_and(|recut| !recut.range.is_empty());
        self.pending.is_empty() && !recuts && self.entries.values().all(|entry| !entry.dirty)
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

/// What [`Session::read_map`] reads.
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
    (at < offset + entry.length).then_some((*offset, *entry))
}

/// The bytes of a chunk as its entry says: blocks of the mask from the object, the others from the
/// base, or zeroes.
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

impl Session {
    /// The map of an object, in one read; `None` when there is no such object.
    pub(crate) fn read_map(&self, object: ObjectId) -> Result<Option<ChunkMap>, Refusal> {
        let answer = self.read_one(&object.name(), map_parts());
        Self::parse_map(object, answer)
    }

    /// The map in an answer to a read that begins with [`map_parts`].
    pub(crate) fn parse_map(
        object: ObjectId,
        answer: Result<ReadResult, Refusal>,
    ) -> Result<Option<ChunkMap>, Refusal> {
        match answer {
            Ok(answer) => ChunkMap::parse(object, &answer, 0, 1).map(Some).map_err(Refusal::Failed),
            Err(Refusal::Missing) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// The shard of the dirty list that an object is on.
    pub(crate) fn shard_of(&self, object: ObjectId) -> ObjectName {
        let shard =
            onefold_core::checksum::fast(3, &object.bytes()) % u64::from(self.format.shards);
        shard_name(shard as u16)
    }

    /// The key of the list for an object with this list stamp.
    pub(crate) fn list_key(&self, object: ObjectId, stamp: Stamp) -> Vec<u8> {
        let stamp = if self.planted(PlantedBug::ListKeyWithoutStamp) { Stamp(0) } else { stamp };
        key::listed(object, stamp)
    }

    /// Puts an object on the dirty list.
    pub(crate) fn list_insert(&self, object: ObjectId, stamp: Stamp) -> Write {
        let pair = (self.list_key(object, stamp), Vec::new());
        Write {
            object: self.shard_of(object),
            guards: Vec::new(),
            changes: vec![Change::SetOmap(vec![pair])],
        }
    }

    /// Takes exactly this key off the list.
    pub(crate) fn list_remove(&self, shard: &ObjectName, key: Vec<u8>) -> Result<(), Refusal> {
        let op = Write {
            object: shard.clone(),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(vec![key])],
        };
        match self.until_answered(&op) {
            Ok(_) | Err(Refusal::Missing) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Makes sure that an object with work for a worker is on the list; true when it was not. One
    /// that says it is listed must be, also when nothing is to be done: the next write trusts
    /// it.
    pub(crate) fn list_again(&self, object: ObjectId, map: &ChunkMap) -> Result<bool, Refusal> {
        if map.has_no_work() && map.listed.is_none() {
            return Ok(false);
        }
        let stamp = match map.listed {
            Some(stamp) => stamp,
            None => {
                let stamp = self.stamp();
                let op = Write {
                    object: object.name(),
                    guards: vec![Guard::Exists, Guard::Omap(key::LISTED.to_vec(), Vec::new())],
                    changes: vec![Change::SetOmap(vec![(
                        key::LISTED.to_vec(),
                        stamp_value(stamp),
                    )])],
                };
                match self.until_answered(&op) {
                    Ok(_) => stamp,
                    // Somebody else put it there, or the reply was lost: it is looked at again.
                    Err(Refusal::Mismatch | Refusal::Missing) => {
                        return match self.read_map(object)? {
                            Some(again) if again.listed.is_some() => {
                                self.list_again(object, &again)
                            }
                            _ => Ok(false),
                        };
                    }
                    Err(refusal) => return Err(refusal),
                }
            }
        };
        let there = self.has_list_key(object, stamp)?;
        if !there {
            self.until_answered(&self.list_insert(object, stamp))?;
        }
        Ok(!there)
    }

    /// True when the object is on the list, or need not be.
    pub(crate) fn is_listed(&self, object: ObjectId, map: &ChunkMap) -> Result<bool, Refusal> {
        map.listed.map_or(Ok(map.has_no_work()), |stamp| self.has_list_key(object, stamp))
    }

    fn has_list_key(&self, object: ObjectId, stamp: Stamp) -> Result<bool, Refusal> {
        match self.read_one(
            &self.shard_of(object),
            vec![ReadPart::Keys(vec![self.list_key(object, stamp)])],
        ) {
            Ok(answer) => Ok(!answer.pairs(0).0.is_empty()),
            Err(Refusal::Missing) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }
}

/// The name of a shard of the dirty list.
pub(crate) fn shard_name(shard: u16) -> ObjectName {
    ObjectName::metadata(format!("d.{shard:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_from_object_base_or_nowhere() {
        let entry = Entry { length: 10_000, dirty: true, mask: 0b10, base: None, stamp: Stamp(1) };
        let (object, base) = (vec![1; 9_000], vec![2; 10_000]);
        let content = assemble(&entry, &object, Some(&base));
        assert!(
            content[..4096] == base[..4096]
                && content[4096..8192] == object[..4096]
                && content[8192..] == base[8192..]
        );
        let content = assemble(&Entry { mask: 0b111, ..entry }, &object, None);
        assert!(content[..9_000] == object && content[9_000..] == [0; 1_000]);
    }
}
