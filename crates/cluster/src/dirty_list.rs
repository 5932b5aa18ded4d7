//! The dirty list: which metadata objects have work for a worker.
//!
//! The dirty bit of the entry is the truth; the list only saves a scan. An object is on the list
//! while its *listed* key holds the list stamp. Each write compares this key, and sets it where it
//! is absent. The insert into the list follows, and the acknowledgement waits for it. A worker that
//! finds all entries clean removes the listed key at the version that it read, and then removes
//! exactly that key from the list.

use onefold_core::{
    checksum,
    object::{Change, Guard, ObjectName, ReadPart, Refusal, Write},
};

use crate::{
    chunk_map::{ChunkMap, stamp_value},
    format::{ObjectId, Stamp, key},
    kernel::Kernel,
    rules::Rule,
};

/// The dirty list of a store.
pub(crate) struct DirtyList<'k> {
    kernel: &'k Kernel,
}

impl<'k> DirtyList<'k> {
    /// The list of the kernel's store.
    pub(crate) fn of(kernel: &'k Kernel) -> DirtyList<'k> {
        DirtyList { kernel }
    }

    /// The shard of the dirty list that an object is on.
    pub(crate) fn shard_of(&self, object: ObjectId) -> ObjectName {
        let shard = checksum::fast(3, &object.bytes()) % u64::from(self.kernel.format().shards);
        shard_name(shard as u16)
    }

    /// The key of the list for an object with this list stamp.
    pub(crate) fn key(&self, object: ObjectId, stamp: Stamp) -> Vec<u8> {
        let stamp = if self.kernel.keeps(Rule::ListKeyHasStamp) { stamp } else { Stamp(0) };
        key::listed(object, stamp)
    }

    /// Puts an object on the dirty list.
    pub(crate) fn insert(&self, object: ObjectId, stamp: Stamp) -> Write {
        let pair = (self.key(object, stamp), Vec::new());
        Write {
            object: self.shard_of(object),
            guards: Vec::new(),
            changes: vec![Change::SetOmap(vec![pair])],
        }
    }

    /// Removes exactly this key from the list.
    pub(crate) fn remove(&self, shard: &ObjectName, key: Vec<u8>) -> Result<(), Refusal> {
        let op = Write {
            object: shard.clone(),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(vec![key])],
        };
        match self.kernel.until_answered(&op) {
            Ok(_) | Err(Refusal::Missing) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Puts an object with work for a worker on the list; true when it was not there. An object
    /// with a *listed* key must be on the list even without work, because the next write trusts the
    /// key.
    pub(crate) fn list_again(&self, object: ObjectId, map: &ChunkMap) -> Result<bool, Refusal> {
        if map.has_no_work() && map.listed.is_none() {
            return Ok(false);
        }
        let stamp = match map.listed {
            Some(stamp) => stamp,
            None => {
                let stamp = self.kernel.stamp();
                let op = Write {
                    object: object.name(),
                    guards: vec![Guard::Exists, Guard::Omap(key::LISTED.to_vec(), Vec::new())],
                    changes: vec![Change::SetOmap(vec![(
                        key::LISTED.to_vec(),
                        stamp_value(stamp),
                    )])],
                };
                match self.kernel.until_answered(&op) {
                    Ok(_) => stamp,
                    // Somebody else put it there, or the reply was lost: it is looked at again.
                    Err(Refusal::Mismatch | Refusal::Missing) => {
                        return match ChunkMap::read(self.kernel, object)? {
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
        let there = self.has_key(object, stamp)?;
        if !there {
            self.kernel.until_answered(&self.insert(object, stamp))?;
        }
        Ok(!there)
    }

    /// True when the object is on the list, or need not be.
    pub(crate) fn is_listed(&self, object: ObjectId, map: &ChunkMap) -> Result<bool, Refusal> {
        map.listed.map_or(Ok(map.has_no_work()), |stamp| self.has_key(object, stamp))
    }

    fn has_key(&self, object: ObjectId, stamp: Stamp) -> Result<bool, Refusal> {
        match self
            .kernel
            .read_one(&self.shard_of(object), vec![ReadPart::Keys(vec![self.key(object, stamp)])])
        {
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
