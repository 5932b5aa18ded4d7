//! Events of a walk in another process, before they are believed. They name pages and chunks that
//! the archive has: each must be there, at its address, with its fingerprint. A name of what comes
//! later, or of what others have elsewhere, would be counted like any other, and would take from
//! their owners what it names when its snapshot goes.

use std::sync::Arc;

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::builder::Event;
use crate::{
    container::{ChunkReader, ContainerReader},
    format::{
        Address,
        container::ContainerKind,
        recipe::Part,
        tree_node::{
            Attributes, FileMap, Key, Stat, Top, TreeEntry, TreeNode, TreeWhat, content_bytes,
        },
    },
    operations_log::Archive,
    tables::Tables,
};

/// Looks at what is told by others.
pub(super) struct Judge {
    tables: Arc<Tables>,
    containers: ContainerReader,
    chunks: ChunkReader,
}

impl Judge {
    /// By the tables as they are now: what is named later was there before, in the domain of this number.
    pub(super) fn new(archive: &Arc<Archive>, tables: &Arc<Tables>, domain: u32) -> Judge {
        let mut chunks = ChunkReader::default();
        chunks.domain = Some(domain);
        let containers = ContainerReader::new(archive.clone());
        Judge { tables: tables.clone(), containers, chunks }
    }

    /// Looks at all that an event names.
    ///
    /// # Errors
    /// `InvalidInput` for what is not there, and for an entry of another kind than its event;
    /// errors of the system.
    pub(super) fn look(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Enter(entry, stat, known) => {
                self.entry(entry, stat, matches!(entry.what, TreeWhat::Directory(None)))?;
                known.iter().try_for_each(|(of, at)| self.page(*at, *of))
            }
            Event::Known(known) => known.iter().try_for_each(|(of, at)| self.page(*at, *of)),
            Event::File(entry, stat, taken) => {
                self.entry(entry, stat, is_bare_file(entry))?;
                match taken {
                    Some((bytes, map)) => self.map(*bytes, map),
                    None => Ok(()),
                }
            }
            Event::Other(entry, stat) => {
                let has_content = matches!(entry.what, TreeWhat::Directory(_) | TreeWhat::File(..));
                self.entry(entry, stat, !has_content)
            }
            Event::Link(entry, stat) => {
                let is_directory = matches!(entry.what, TreeWhat::Directory(_));
                let is_full = matches!(entry.what, TreeWhat::File(..)) && !is_bare_file(entry);
                self.entry(entry, stat, !is_directory && !is_full)
            }
            Event::Leave(_)
            | Event::Discard
            | Event::Attributes
            | Event::Checkpoint(_)
            | Event::End(_) => Ok(()),
        }
    }

    fn entry(&mut self, entry: &TreeEntry, stat: &Stat, is_of_kind: bool) -> Result<()> {
        // The stat pages of a directory come when it is left.
        if !is_of_kind || stat.pages.is_some() {
            return Err(refused("an entry has content that its event does not give"));
        }
        match &entry.attributes {
            Attributes::Stored(bytes, map) => self.map(*bytes, map),
            Attributes::Inline(_) => Ok(()),
        }
    }

    /// Looks at the content of a file of so many bytes.
    fn map(&mut self, bytes: u64, map: &FileMap) -> Result<()> {
        let parts = match map {
            FileMap::Pages(top) => return self.pages(bytes, top),
            FileMap::Inline(parts) => parts,
        };
        let mut sum = 0u64;
        for part in parts {
            sum = sum.saturating_add(part.bytes());
            match part {
                Part::Run { first, bytes, fingerprints } => {
                    let mut there = 0u64;
                    for (n, of) in fingerprints.iter().enumerate() {
                        let slot = u16::try_from(n).ok().and_then(|n| first.slot.checked_add(n));
                        let slot = slot.ok_or_else(missing)?;
                        let at = Address { slot, ..*first };
                        there += self.chunk(at, *of, ContainerKind::Data)?;
                    }
                    if there != u64::from(*bytes) {
                        return Err(missing());
                    }
                }
                Part::Zeroes(_) | Part::Hole(_) => {}
                Part::Slice { .. } | Part::End(_) => {
                    return Err(refused("the content of a file has a part that files have not"));
                }
            }
        }
        if sum == bytes {
            Ok(())
        } else {
            Err(refused("a file has another length than its content"))
        }
    }

    /// Looks at the topmost page of a file's content, which says how many bytes all below it have. A
    /// length of the client's choice would make the next honest snapshot of the set look shrunk.
    fn pages(&mut self, bytes: u64, top: &Top) -> Result<()> {
        let Top { levels, node } = *top;
        self.page(node.address, node.fingerprint)?;
        let read = self.chunks.chunk(&self.tables, &self.containers, node.address)?;
        let there = match TreeNode::decode(read)? {
            TreeNode::FileMap(parts) if levels == 0 => Some(content_bytes(&parts)),
            TreeNode::Index(level, entries) if level == levels => {
                entries.iter().try_fold(0u64, |all, entry| match entry.key {
                    Key::Sum(sum) => all.checked_add(sum),
                    Key::Name(_) => None,
                })
            }
            _ => None,
        };
        match there {
            Some(there) if there == bytes => Ok(()),
            Some(_) => Err(refused("a file has another length than its content")),
            None => Err(refused("the pages of a file are pages of something else")),
        }
    }

    /// Looks for a page of a tree: content that looks like one is none, as it lies among content.
    fn page(&mut self, at: Address, of: Fingerprint) -> Result<()> {
        self.chunk(at, of, ContainerKind::Recipes).map(drop)
    }

    /// The bytes of a chunk that is there with this fingerprint, in a container of this kind.
    fn chunk(&mut self, at: Address, of: Fingerprint, kind: ContainerKind) -> Result<u64> {
        let found = self.chunks.find(&self.tables, &self.containers, at)?;
        let (container, metadata, n) = found.ok_or_else(missing)?;
        if container.stored.kind != kind {
            return Err(missing());
        }
        match metadata.chunks.get(n) {
            Some(chunk) if chunk.fingerprint == of => Ok(u64::from(chunk.bytes)),
            _ => Err(missing()),
        }
    }
}

/// True for a file whose content comes with its event.
fn is_bare_file(entry: &TreeEntry) -> bool {
    match &entry.what {
        TreeWhat::File(_, map) => *map == FileMap::default(),
        _ => false,
    }
}

fn missing() -> Error {
    refused("it names data that the archive does not have")
}

fn refused(why: &str) -> Error {
    Error::new(Kind::InvalidInput, format!("the snapshot of a client is refused: {why}"))
}
