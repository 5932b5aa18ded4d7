//! The header of a volume: keys of one object.
//!
//! | key | value |
//! |---|---|
//! | `o` | the owner: its identity for fencing, and whether it closed in order |
//! | `a` | the attachment: a stamp that each change of `o` by a server sets anew, and compares |
//! | `B` and a number | 512 bits: the objects that are there |
//! | `D` and a number | a long discard: first object, last object and one, cursor |
//! | `d` | the number of the last long discard, compared by the next |
//! | `i` | a stamp of the owner, while it may make references for entries that it has not written yet |
//! | `C` and a number | a stamp: an object and a chunk of it that is kept though it is clean |
//! | `H` and a number | a dirty chunk that is read often: until when it is not deduplicated |
//! | `R` and a number | which chunks were read in one of the last 60 seconds |
//! | `p`, `b`, `s`, `k`, `x` | those of [layers](crate::layers) |
//! | `g` | the snapshot that is being received here, or was ([`received`](crate::layers::received)) |
//! | `t` | how far that is |
//! | `q` | the volume is a replica: the number of the snapshot that it holds |

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use onefold_core::object::{Change, Guard, ObjectName, Read, ReadPart, Refusal, Write};

use crate::{
    format::{ObjectId, Stamp, catalogue::VOLUME_MAX, corrupt, key, ten_digits},
    kernel::Kernel,
};

pub(crate) const OWNER: &[u8] = b"o";
pub(crate) const INLINE: &[u8] = b"i";
pub(crate) const ATTACHMENT: &[u8] = b"a";
pub(crate) const RECEIVED: &[u8] = b"g";
pub(crate) const CURSOR: &[u8] = b"t";
pub(crate) const REPLICA: &[u8] = b"q";
pub(super) const LAST_DISCARD: &[u8] = b"d";
pub(super) const BITS: u8 = b'B';
pub(super) const DISCARD: u8 = b'D';
pub(super) const CACHED: u8 = b'C';
pub(super) const HOT: u8 = b'H';
pub(super) const HITS: u8 = b'R';

/// Objects of a key of the bitmap.
pub(crate) const GROUP: u64 = 512;

/// Bytes of the value of one group of bits.
const GROUP_BYTES: usize = GROUP as usize / 8;

/// Most chunks that the header records as kept.
pub(super) const CACHED_MAX: usize = 65_536;

/// Most dirty chunks of a volume that the header records as hot.
pub(super) const HOT_MAX: usize = 4096;

/// Keys that a header may have beside its bitmap: twice as many as it comes to.
const OTHERS_MAX: u64 = 2 * (CACHED_MAX + HOT_MAX + 4096) as u64;

/// Numbers of a volume's objects have 40 bits.
pub(super) const OBJECTS_MAX: u64 = 1 << 40;

/// The lock of the owner.
pub(crate) const LOCK: &str = "owner";

/// The name of a volume's header.
pub(crate) fn name(volume: u64) -> ObjectName {
    ObjectName::metadata(format!("v.{volume:010x}"))
}

/// The volume whose header has this name.
pub(crate) fn parse(name: &str) -> Option<u64> {
    ten_digits(name.strip_prefix("v.")?)
}

/// All keys of the header of a volume with their values. One with more than the largest volume has is
/// damaged, and costs no more memory.
pub(super) fn keys(kernel: &Kernel, volume: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Refusal> {
    let objects = VOLUME_MAX / u64::from(kernel.format().object_bytes);
    let most = usize::try_from(objects / GROUP + OTHERS_MAX).unwrap_or(usize::MAX);
    match kernel.first_keys(&name(volume), Vec::new(), most)? {
        (keys, false) => Ok(keys),
        (_, true) => Err(Refusal::Failed(corrupt(format_args!(
            "the header of volume {volume:x} has too many keys"
        )))),
    }
}

/// The objects that exist. A set bit without an object is damage. A clear bit means nothing while
/// the volume is in use.
#[derive(Clone, Default)]
pub(crate) struct Bits(BTreeMap<u64, Vec<u8>>);

impl Bits {
    /// The bitmap of a volume.
    pub(crate) fn read(kernel: &Kernel, volume: u64) -> Result<Bits, Refusal> {
        Bits::load(&keys(kernel, volume)?)
    }

    /// The bitmap in the keys of the header of a volume.
    pub(super) fn load(header: &[(Vec<u8>, Vec<u8>)]) -> Result<Bits, Refusal> {
        let mut bits = Bits::default();
        header.iter().try_for_each(|(key, value)| bits.learn(key, value).map(drop))?;
        Ok(bits)
    }

    /// Sets or clears the bit of an object. The owner of the volume does, who deletes it, and who hands an object of a
    /// layer down to it.
    pub(crate) fn change(
        &mut self,
        kernel: &Kernel,
        volume: u64,
        index: u64,
        there: bool,
    ) -> Result<(), Refusal> {
        let (group, at) = (index / GROUP, (index % GROUP) as usize);
        let key = key::numbered(BITS, group);
        for _ in 0..8 {
            if self.has(index) == there {
                return Ok(());
            }
            let old = self.0.get(&group).cloned().unwrap_or_default();
            let mut new = if old.is_empty() { vec![0; GROUP_BYTES] } else { old.clone() };
            if there {
                new[at / 8] |= 1 << (at % 8);
            } else {
                new[at / 8] &= !(1 << (at % 8));
            }
            let op = Write {
                object: name(volume),
                guards: vec![Guard::Exists, Guard::Omap(key.clone(), old)],
                changes: vec![Change::SetOmap(vec![(key.clone(), new.clone())])],
            };
            match kernel.until_answered(&op) {
                Ok(_) => {
                    self.0.insert(group, new);
                }
                // Our own operation, whose reply was lost, or the header is another one.
                Err(Refusal::Mismatch) => {
                    let answer =
                        kernel.read_one(&name(volume), vec![ReadPart::Keys(vec![key.clone()])])?;
                    let value = answer.pairs(0).0.first().map(|(_, value)| value.clone());
                    if value.is_none() && !there {
                        // Another session deleted the volume, and a lock made the header anew.
                        self.0.remove(&group);
                    } else {
                        self.learn(&key, &value.unwrap_or_default())?;
                    }
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Unknown)
    }

    pub(crate) fn has(&self, index: u64) -> bool {
        let at = (index % GROUP) as usize;
        self.0.get(&(index / GROUP)).is_some_and(|group| group[at / 8] >> (at % 8) & 1 == 1)
    }

    /// True when the bit of an object is set, by one read.
    pub(crate) fn has_now(kernel: &Kernel, volume: u64, index: u64) -> Result<bool, Refusal> {
        let key = key::numbered(BITS, index / GROUP);
        let mut bits = Bits::default();
        match kernel.read_one(&name(volume), vec![ReadPart::Keys(vec![key])]) {
            Ok(answer) => {
                for (key, value) in answer.pairs(0).0 {
                    bits.learn(key, value)?;
                }
            }
            Err(Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(bits.has(index))
    }

    /// All objects whose bit is set.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> + '_ {
        self.from(0)
    }

    /// The first object of a range whose bit is set.
    pub(crate) fn first(&self, range: Range<u64>) -> Option<u64> {
        self.from(range.start)
            .find(|index| *index >= range.start)
            .filter(|index| *index < range.end)
    }

    /// All objects whose bit is set, from the group of `first` on.
    fn from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let of = |(group, bits): (&u64, &Vec<u8>)| {
            let (group, bits) = (*group, bits.clone());
            (0..GROUP)
                .filter(move |at| bits[*at as usize / 8] >> (at % 8) & 1 == 1)
                .map(move |at| group * GROUP + at)
        };
        self.0.range(first / GROUP..).flat_map(of)
    }

    /// Reads one key of the header; true when it is one of the bitmap.
    fn learn(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Refusal> {
        let Some(group) = key::parse_numbered(BITS, key) else { return Ok(false) };
        if value.len() != GROUP_BYTES || group >= OBJECTS_MAX / GROUP {
            return Err(Refusal::Failed(corrupt("the bitmap of a volume is damaged")));
        }
        self.0.insert(group, value.to_vec());
        Ok(true)
    }
}

/// True when a header has keys that stay as long as the volume: one of the bitmap, that of the owner, or that the volume
/// was born over a layer.
pub(super) fn lives(header: &[(Vec<u8>, Vec<u8>)], born: &[u8]) -> bool {
    header.iter().any(|(key, _)| key == born || key == OWNER || key.first() == Some(&BITS))
}

/// What a reader sees of a header when it finds no object.
pub(super) struct Seen {
    /// The object should be there.
    pub(super) has_bit: bool,
    /// The header has keys that stay as long as the volume.
    pub(super) lives: bool,
    /// The volume goes.
    pub(super) goes: bool,
}

impl Seen {
    /// Looks by one read; `None` without a header. The keys are that of a volume which goes, and that of one
    /// which was born over a layer.
    pub(super) fn read(
        kernel: &Kernel,
        volume: u64,
        index: u64,
        (goes, born): (&[u8], &[u8]),
    ) -> Result<Option<Seen>, Refusal> {
        let group = key::numbered(BITS, index / GROUP);
        let keys = vec![group, goes.to_vec(), born.to_vec(), OWNER.to_vec()];
        let parts = vec![ReadPart::Keys(keys), ReadPart::Page(vec![BITS], 1)];
        let answer = match kernel.read_one(&name(volume), parts) {
            Err(Refusal::Missing) => return Ok(None),
            other => other?,
        };
        let found = answer.pairs(0).0;
        let mut bits = Bits::default();
        for (key, value) in found {
            bits.learn(key, value)?;
        }
        let has = |wanted: &[u8]| found.iter().any(|(key, _)| key == wanted);
        Ok(Some(Seen {
            has_bit: bits.has(index),
            lives: lives(found, born) || lives(answer.pairs(1).0, born),
            goes: has(goes),
        }))
    }
}

/// By volume, the session that may make references before their entries. Callers read it after the
/// references and before the maps: a session that is not in it was fenced by then, or has not
/// begun.
pub(crate) fn inline_sessions(
    kernel: &Kernel,
    objects: &BTreeSet<ObjectId>,
) -> Result<BTreeMap<u64, u64>, Refusal> {
    let volumes: BTreeSet<u64> = objects.iter().map(|object| object.volume).collect();
    let look = |volume: &u64| Read {
        object: name(*volume),
        parts: vec![ReadPart::Keys(vec![INLINE.to_vec()])],
    };
    let answers = kernel.read_all(&volumes.iter().map(look).collect::<Vec<_>>());
    let mut sessions = BTreeMap::new();
    for (volume, answer) in volumes.into_iter().zip(answers) {
        let answer = match answer {
            // Objects that were put have no header.
            Err(Refusal::Missing) => continue,
            other => other?,
        };
        if let Some((_, value)) = answer.pairs(0).0.first() {
            let damaged = |_| {
                Refusal::Failed(corrupt(format_args!("the header of volume {volume:x} is damaged")))
            };
            let stamp = Stamp(u64::from_le_bytes(value.as_slice().try_into().map_err(damaged)?));
            sessions.insert(volume, stamp.session());
        }
    }
    Ok(sessions)
}

/// The right of an owner to make references before their entries.
pub(super) struct Inline {
    /// The stamp by which the header of the volume tells it.
    stamp: Stamp,
    /// True while an operation that names such a reference may still be applied.
    doubt: AtomicBool,
}

impl Inline {
    pub(super) fn new(stamp: Stamp) -> Inline {
        Inline { stamp, doubt: AtomicBool::new(false) }
    }

    pub(super) fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Records that an operation that names such a reference may still be applied.
    pub(super) fn doubt(&self) {
        self.doubt.store(true, Relaxed);
    }

    /// True when all references that were made have their entries, or are known to be stale.
    pub(super) fn is_certain(&self) -> bool {
        !self.doubt.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onefold_core::object::{ObjectStore, PoolKind};
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{Format, Session, Settings, create};

    #[test]
    fn bits_are_found_again() {
        let mut bits = Bits::default();
        let mut group = vec![0; GROUP_BYTES];
        group[1] = 0b100;
        assert!(bits.learn(&key::numbered(BITS, 3), &group).unwrap());
        assert!(
            !bits.learn(OWNER, b"x").unwrap() && bits.learn(&key::numbered(BITS, 3), b"x").is_err()
        );
        assert_eq!(bits.all().collect::<Vec<_>>(), [3 * GROUP + 10]);
        assert!(bits.has(3 * GROUP + 10) && !bits.has(10));
        let at = 3 * GROUP + 10;
        assert_eq!(
            [0..at + 1, at..at + 1, at + 1..at + 9, 0..at].map(|range| bits.first(range)),
            [Some(at), Some(at), None, None]
        );
    }

    #[test]
    fn a_header_that_a_lock_made_anew_has_no_bits_to_clear_and_takes_none() {
        let store = Arc::new(MemoryObjects::new(PoolKind::Replicated));
        create(&*store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let session = Session::open(store.clone(), Settings::default()).unwrap();
        let mut group = vec![0; GROUP_BYTES];
        group[0] = 0b11;
        for (there, index) in [(false, 1), (true, 2)] {
            store.lock(&name(7), LOCK, "another", None).unwrap();
            let mut bits = Bits::default();
            bits.learn(&key::numbered(BITS, 0), &group).unwrap();
            assert_eq!(bits.change(session.kernel(), 7, index, there).is_ok(), !there);
            assert_eq!(bits.has(0), there);
            store.unlock(&name(7), LOCK, "another").unwrap();
        }
    }

    #[test]
    fn rule_09_bits_of_objects_that_no_volume_has_are_damage() {
        let group = vec![0; GROUP_BYTES];
        assert!(Bits::default().learn(&key::numbered(BITS, u64::MAX), &group).is_err());
    }
}
