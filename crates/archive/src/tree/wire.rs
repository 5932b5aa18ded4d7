//! Events as bytes, for a walk in one process and an archive in another.
//!
//! | kind | what follows |
//! |---|---|
//! | 1 enter | an entry, a stat, known pages |
//! | 2 leave | whether something was left out (1) |
//! | 3 known | known pages |
//! | 4 discard, 5 attributes | nothing |
//! | 6 file | an entry, a stat; 0, or 1, bytes (8) and file map of what is taken over |
//! | 7 other, 8 link | an entry, a stat |
//! | 9 checkpoint | its id (16) |
//! | 10 end | how many were left out (8) |
//!
//! Chunks that are here already are named within a process alone: kind 11 is refused.
//!
//! Known pages are how many (4), and their references. Entries, stats and file maps are those of
//! tree nodes.

use onefold_core::Result;

use super::builder::{Event, Known};
use crate::format::{
    backup::SnapshotId,
    bytes::{Reader, Writer, corrupt},
    tree_node::{FileMap, Stat, TreeEntry, TreeNodeRef},
};

/// Bytes of a reference.
const REFERENCE: usize = 23;

impl Event {
    /// The event's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Event::Enter(entry, stat, known) => {
                told(w.u8(1), entry, stat);
                pages(&mut w, known);
            }
            Event::Leave(is_in_part) => {
                w.u8(2).u8(u8::from(*is_in_part));
            }
            Event::Known(known) => pages(w.u8(3), known),
            Event::Discard => {
                w.u8(4);
            }
            Event::Attributes => {
                w.u8(5);
            }
            Event::File(entry, stat, taken) => {
                told(w.u8(6), entry, stat);
                match taken {
                    None => {
                        w.u8(0);
                    }
                    Some((bytes, map)) => map.encode(w.u8(1).u64(*bytes)),
                }
            }
            Event::Other(entry, stat) => told(w.u8(7), entry, stat),
            Event::Link(entry, stat) => told(w.u8(8), entry, stat),
            Event::Checkpoint(id) => {
                w.u8(9).raw(&id.0);
            }
            Event::End(left_out) => {
                w.u8(10).u64(*left_out);
            }
            Event::Chunks(_) => {
                w.u8(11);
            }
        }
        w.0
    }

    /// Reads an event, whoever wrote it.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<Event> {
        let r = &mut Reader(bytes, None);
        let event = match r.u8()? {
            // The root has no name.
            1 => {
                let entry = TreeEntry::decode(r)?;
                Event::Enter(
                    if entry.name.is_empty() { entry } else { named(entry)? },
                    Stat::decode(r)?,
                    known(r)?,
                )
            }
            2 => Event::Leave(r.u8()? != 0),
            3 => Event::Known(known(r)?),
            4 => Event::Discard,
            5 => Event::Attributes,
            6 => {
                let (entry, stat) = (named(TreeEntry::decode(r)?)?, Stat::decode(r)?);
                let taken = match r.u8()? {
                    0 => None,
                    1 => Some((r.u64()?, FileMap::decode(r)?)),
                    _ => return Err(corrupt("a file is taken over in an unknown form")),
                };
                Event::File(entry, stat, taken)
            }
            7 => Event::Other(named(TreeEntry::decode(r)?)?, Stat::decode(r)?),
            8 => Event::Link(named(TreeEntry::decode(r)?)?, Stat::decode(r)?),
            9 => Event::Checkpoint(SnapshotId(r.array()?)),
            10 => Event::End(r.u64()?),
            _ => return Err(corrupt("an event of an unknown kind")),
        };
        r.end()?;
        Ok(event)
    }
}

/// An entry that a directory can have.
fn named(entry: TreeEntry) -> Result<TreeEntry> {
    match entry.refusal() {
        None => Ok(entry),
        Some(why) => Err(corrupt(format!("an entry of a walk can't be stored: {why}"))),
    }
}

fn told(w: &mut Writer, entry: &TreeEntry, stat: &Stat) {
    entry.encode(w);
    stat.encode(w);
}

fn pages(w: &mut Writer, known: &Known) {
    w.u32(known.len() as u32);
    for (&fingerprint, &address) in known {
        TreeNodeRef { address, fingerprint }.encode(w);
    }
}

fn known(r: &mut Reader<'_>) -> Result<Known> {
    let count = r.count(REFERENCE, 0)?;
    (0..count)
        .map(|_| TreeNodeRef::decode(r).map(|node| (node.fingerprint, node.address)))
        .collect()
}

#[cfg(test)]
mod tests {
    use onefold_core::Fingerprint;

    use super::*;
    use crate::format::{
        Address, ContainerId,
        tree_node::{Attributes, TreeWhat},
    };

    fn entry() -> TreeEntry {
        TreeEntry {
            name: b"a".to_vec(),
            what: TreeWhat::File(0, FileMap::default()),
            mode: 0o600,
            uid: 1,
            gid: 2,
            seconds: -3,
            nanoseconds: 4,
            link: 5,
            is_in_part: true,
            attributes: Attributes::default(),
        }
    }

    #[test]
    fn rule_07_no_client_gives_an_entry_that_can_t_be_stored() {
        let bad = [
            TreeEntry { name: b"a/b".to_vec(), ..entry() },
            TreeEntry { name: Vec::new(), ..entry() },
            TreeEntry { nanoseconds: 1_073_741_823, ..entry() },
            TreeEntry { what: TreeWhat::Symlink(Vec::new()), ..entry() },
        ];
        for bad in bad {
            let stat = Stat::default();
            for event in [
                Event::Enter(bad.clone(), stat, Known::new()),
                Event::File(bad.clone(), stat, None),
                Event::Other(bad.clone(), stat),
                Event::Link(bad.clone(), stat),
            ] {
                let is_root = bad.name.is_empty() && matches!(event, Event::Enter(..));
                assert_eq!(Event::decode(&event.encode()).is_err(), !is_root, "{event:?}");
            }
        }
    }

    #[test]
    fn events_are_read_as_they_were_written() {
        let entry = entry();
        let stat = Stat { inode: 6, ..Stat::default() };
        let address = Address { container: ContainerId(7), slot: 8 };
        let known = Known::from([(Fingerprint([9; 16]), address)]);
        let all = [
            Event::Enter(entry.clone(), stat, known.clone()),
            Event::Leave(true),
            Event::Known(known),
            Event::Discard,
            Event::Attributes,
            Event::File(entry.clone(), stat, None),
            Event::File(entry.clone(), stat, Some((0, FileMap::default()))),
            Event::Other(entry.clone(), stat),
            Event::Link(entry, stat),
            Event::Checkpoint(SnapshotId([1; 16])),
            Event::End(2),
        ];
        for event in all {
            let bytes = event.encode();
            let read = Event::decode(&bytes).unwrap();
            assert_eq!(format!("{read:?}"), format!("{event:?}"));
            for n in 0..bytes.len() {
                assert!(Event::decode(&bytes[..n]).is_err(), "{event:?} cut at {n}");
            }
        }
    }
}
