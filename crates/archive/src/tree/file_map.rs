//! The content of one file: chunks, zeroes and holes in their order. Few of them stand in the
//! directory page; more fill pages of their own.

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::{
    borders,
    levels::{Levels, Store},
};
use crate::format::{
    Address,
    recipe::{CONTENT_BYTES_MAX, Part},
    tree_node::{FileMap, INLINE_CHUNKS, INLINE_PARTS, Key, TreeNode},
};

/// Bytes of a part that is no run, or of a run's beginning.
const PART_BYTES: usize = 14;

#[derive(Clone, Copy)]
enum Item {
    Chunk(Address, Fingerprint, u32),
    Zeroes(u64),
    Hole(u64),
}

/// Gathers the content of a file.
#[derive(Default)]
pub(super) struct FileMapWriter {
    /// The first items, as long as they may stand in the directory page.
    held: Vec<Item>,
    chunks: usize,
    /// Bytes of the file so far.
    bytes: u64,
    pages: Option<MapPages>,
}

#[derive(Default)]
struct MapPages {
    parts: Vec<Part>,
    /// Bytes of the parts, encoded.
    encoded: usize,
    /// Bytes of the file in this page.
    bytes: u64,
    hash: Option<u64>,
    levels: Levels,
}

impl FileMapWriter {
    /// The next chunk.
    pub(super) fn chunk(
        &mut self,
        address: Address,
        fingerprint: Fingerprint,
        bytes: u32,
        store: &mut Store<'_>,
    ) -> Result<()> {
        self.chunks += 1;
        self.item(Item::Chunk(address, fingerprint, bytes), store)
    }

    /// The next zeroes.
    pub(super) fn zeroes(&mut self, bytes: u64, store: &mut Store<'_>) -> Result<()> {
        self.item(Item::Zeroes(bytes), store)
    }

    /// The next hole.
    pub(super) fn hole(&mut self, bytes: u64, store: &mut Store<'_>) -> Result<()> {
        self.item(Item::Hole(bytes), store)
    }

    fn item(&mut self, item: Item, store: &mut Store<'_>) -> Result<()> {
        self.bytes = self.bytes.saturating_add(item.bytes());
        if self.bytes > CONTENT_BYTES_MAX {
            return Err(Error::new(Kind::InvalidInput, "a file is longer than files can be"));
        }
        if let Some(pages) = &mut self.pages {
            return pages.item(item, store);
        }
        self.held.push(item);
        if self.chunks > INLINE_CHUNKS || self.held.len() > INLINE_PARTS {
            let pages = self.pages.insert(MapPages::default());
            for item in std::mem::take(&mut self.held) {
                pages.item(item, store)?;
            }
        }
        Ok(())
    }

    /// The end of the file: its bytes, and its content.
    pub(super) fn end(self, store: &mut Store<'_>) -> Result<(u64, FileMap)> {
        let map = match self.pages {
            None => {
                let mut parts = Vec::new();
                self.held.into_iter().for_each(|item| item.push_to(&mut parts));
                FileMap::Inline(parts)
            }
            Some(mut pages) => {
                pages.close(store)?;
                pages.levels.end(store)?.map_or_else(FileMap::default, FileMap::Pages)
            }
        };
        Ok((self.bytes, map))
    }
}

impl Item {
    fn bytes(self) -> u64 {
        match self {
            Item::Chunk(_, _, bytes) => u64::from(bytes),
            Item::Zeroes(bytes) | Item::Hole(bytes) => bytes,
        }
    }

    /// Appends it to parts: a run goes on, and neighbours are one.
    fn push_to(self, parts: &mut Vec<Part>) {
        match (self, parts.last_mut()) {
            (
                Item::Chunk(address, fingerprint, more),
                Some(Part::Run { first, bytes, fingerprints }),
            ) if first.container == address.container
                && usize::from(first.slot) + fingerprints.len() == usize::from(address.slot)
                && bytes.checked_add(more).is_some() =>
            {
                *bytes += more;
                fingerprints.push(fingerprint);
            }
            (Item::Chunk(first, fingerprint, bytes), _) => {
                parts.push(Part::Run { first, bytes, fingerprints: vec![fingerprint] });
            }
            (Item::Zeroes(more), Some(Part::Zeroes(bytes)))
            | (Item::Hole(more), Some(Part::Hole(bytes))) => *bytes = bytes.saturating_add(more),
            (Item::Zeroes(bytes), _) => parts.push(Part::Zeroes(bytes)),
            (Item::Hole(bytes), _) => parts.push(Part::Hole(bytes)),
        }
    }
}

impl MapPages {
    fn item(&mut self, item: Item, store: &mut Store<'_>) -> Result<()> {
        // A run's beginning and one fingerprint, although the run may go on.
        let most = PART_BYTES + 16;
        if borders::is_full(self.encoded + 1, most) {
            self.close(store)?;
        }
        let parts = self.parts.len();
        self.bytes = self.bytes.saturating_add(item.bytes());
        item.push_to(&mut self.parts);
        self.encoded += match item {
            Item::Chunk(..) if self.parts.len() == parts => 16,
            _ => most,
        };
        let Item::Chunk(_, fingerprint, _) = item else { return Ok(()) };
        let hash = borders::of_chunk(&fingerprint);
        self.hash.get_or_insert(hash);
        if borders::ends(hash, 0) { self.close(store) } else { Ok(()) }
    }

    fn close(&mut self, store: &mut Store<'_>) -> Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let node = store(TreeNode::FileMap(std::mem::take(&mut self.parts)).encode())?;
        let (bytes, hash) = (std::mem::take(&mut self.bytes), self.hash.take());
        self.encoded = 0;
        // A page of holes alone begins with no chunk: it ends no index page.
        self.levels.push(node, Key::Sum(bytes), hash.unwrap_or(u64::MAX), store)
    }
}
