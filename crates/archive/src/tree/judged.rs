//! Trees of snapshots judged: each node is looked at once, whatever number of snapshots share it.

use std::collections::HashMap;

use onefold_core::{Error, Fingerprint, Result};

use super::borders::{ends_page, of_name as hash_of_name};
use crate::format::{
    Address,
    backup::Snapshot,
    bytes::corrupt,
    tree_node::{
        Attributes, FileMap, IndexEntry, Key, NODE_BYTES, Named, Root, TreeEntry, TreeNode,
        TreeNodeRef, TreeWhat, content_bytes,
    },
};

/// Nodes above the one at hand that are held. Those above them are read again when their turn comes:
/// a hostile tree is as deep as it likes, with a full page at each level.
const NODES_HELD: usize = 32;

/// Bytes of a directory page's entry at most: a page with less room than this may end.
const ENTRY_BYTES: usize = 24 << 10;

/// What the pages of a tree are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Directory,
    File,
    Stats,
    Root,
}

/// The findings about a tree node and all below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judged {
    /// What its pages are of, and how many levels of index pages it has; `None` where something is lost.
    shape: Option<(Of, u8)>,
    /// Entries of directories.
    entries: u64,
    /// Bytes of files.
    bytes: u64,
    /// Of a directory's pages the first and the last name.
    names: Option<(Vec<u8>, Vec<u8>)>,
    /// A page may end here: at a border, or full.
    ends: bool,
    /// Chunks of it and of all below are not there; counted once for each time that they are named.
    pub(crate) lost: u64,
}

impl Judged {
    /// Errors unless this is the root of a tree with these totals, of which nothing is lost.
    pub(crate) fn is_root_of(&self, snapshot: &Snapshot) -> Result<()> {
        if self.shape != Some((Of::Root, 0)) {
            return Err(corrupt("the root of a snapshot is none"));
        }
        if (self.entries, self.bytes) != (snapshot.entries, snapshot.bytes) {
            return Err(corrupt("a snapshot has other totals than its tree"));
        }
        Ok(())
    }

    /// Errors unless these are stat pages with so many levels above them, of which nothing is lost.
    pub(crate) fn is_stats(&self, levels: u8) -> Result<()> {
        self.is(Of::Stats, levels)
    }

    fn is(&self, of: Of, levels: u8) -> Result<()> {
        match self.shape == Some((of, levels)) {
            true => Ok(()),
            false => Err(corrupt("a tree names a page of another kind than it says")),
        }
    }

    /// A node that can't be read.
    fn lost() -> Judged {
        Judged { lost: 1, ends: true, ..Judged::default() }
    }
}

/// A node whose children are looked at.
struct Frame {
    at: TreeNodeRef,
    /// Children that are judged.
    judged: usize,
    /// 1 when the node itself is noted as damaged.
    lost: u64,
    /// Nothing while it rests.
    held: Option<Held>,
}

/// A node, its children, and the findings about those that are judged.
struct Held {
    node: TreeNode,
    children: Vec<TreeNodeRef>,
    known: Vec<Judged>,
}

impl Held {
    fn new(node: TreeNode) -> Held {
        let mut children = Vec::new();
        node.named(&mut |named| {
            if let Named::TreeNode(child) = named {
                children.push(child);
            }
        });
        Held { node, children, known: Vec::new() }
    }
}

/// The findings about the tree nodes that were looked at. They stay true as long as nothing is dropped.
#[derive(Default)]
pub(crate) struct Trees(HashMap<TreeNodeRef, Judged>);

/// Where the nodes of a tree are read, and their chunks looked up.
pub(crate) trait TreeSource {
    /// Reads a node, and tells whether it is whole as far as that is known; `None` when it can't be read.
    ///
    /// # Errors
    /// Those that end the look at the tree.
    fn node(&mut self, at: &TreeNodeRef) -> Result<Option<(TreeNode, bool)>>;

    /// True when a chunk of a file is there, and whole as far as that is known.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    fn has(&mut self, at: Address, of: &Fingerprint) -> Result<bool>;

    /// The seed of the checksums by which pages end.
    ///
    /// # Errors
    /// Those of the domain.
    fn borders(&self) -> Result<u64>;
}

impl Trees {
    /// Looks at a node and all below it.
    pub(crate) fn look(
        &mut self,
        source: &mut impl TreeSource,
        top: TreeNodeRef,
    ) -> Result<Judged> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut next = Some(top);
        loop {
            let known = match next {
                Some(at) => match self.0.get(&at) {
                    Some(known) => known.clone(),
                    None => match source.node(&at)? {
                        Some((node, is_whole)) => {
                            let held = Some(Held::new(node));
                            frames.push(Frame { at, judged: 0, lost: u64::from(!is_whole), held });
                            let above = frames.len().checked_sub(NODES_HELD + 1);
                            if let Some(above) = above.and_then(|n| frames.get_mut(n)) {
                                above.held = None;
                            }
                            next = descend(&frames);
                            continue;
                        }
                        None => Judged::lost(),
                    },
                },
                None => self.finish(source, &mut frames)?,
            };
            let Some(frame) = frames.last_mut() else { return Ok(known) };
            let mut held = match frame.held.take() {
                Some(held) => held,
                None => self.again(source, frame)?,
            };
            held.known.push(known);
            frame.judged += 1;
            frame.held = Some(held);
            next = descend(&frames);
        }
    }

    /// Reads a node that rested.
    fn again(&self, source: &mut impl TreeSource, frame: &Frame) -> Result<Held> {
        let gone = || corrupt("a node that was read can't be read again");
        let mut held = Held::new(source.node(&frame.at)?.ok_or_else(gone)?.0);
        let known = |child| self.0.get(child).cloned().unwrap_or_else(Judged::lost);
        held.known = held.children.iter().take(frame.judged).map(known).collect();
        Ok(held)
    }

    /// Judges the node whose children are all known.
    fn finish(&mut self, source: &mut impl TreeSource, frames: &mut Vec<Frame>) -> Result<Judged> {
        let Some(Frame { at, lost: own, held: Some(held), .. }) = frames.pop() else {
            return Err(corrupt("a tree has no node"));
        };
        let Held { node, known, .. } = held;
        // A tree that doubles at each level names a lost chunk more often than a number says.
        let below = known.iter().map(|child| child.lost).fold(0, u64::saturating_add);
        let (mut lost, mut looked) = (below.saturating_add(own), Ok(()));
        node.named(&mut |named| {
            let Named::Chunks(first, fingerprints) = named else { return };
            for (n, fingerprint) in fingerprints.iter().enumerate() {
                let slot = u16::try_from(n).ok().and_then(|n| first.slot.checked_add(n));
                let has = match slot {
                    Some(slot) => source.has(Address { slot, ..first }, fingerprint),
                    None => Ok(false),
                };
                match has {
                    Ok(there) => lost = lost.saturating_add(u64::from(!there)),
                    Err(error) => looked = Err(error),
                }
            }
        });
        looked?;
        let seed = source.borders()?;
        let judged = if lost > 0 {
            // Sums of what is not there can't be told.
            Judged { lost, ends: true, ..Judged::default() }
        } else {
            judge(seed, &node, &known)?
        };
        self.0.insert(at, judged.clone());
        Ok(judged)
    }
}

/// The child of the last frame that comes next.
fn descend(frames: &[Frame]) -> Option<TreeNodeRef> {
    let held = frames.last()?.held.as_ref()?;
    held.children.get(held.known.len()).copied()
}

/// Compares a node with what is known of its children.
fn judge(seed: u64, node: &TreeNode, children: &[Judged]) -> Result<Judged> {
    let mut children = children.iter();
    match node {
        TreeNode::Directory(entries) => {
            let mut known = Judged::default();
            for (n, entry) in entries.iter().enumerate() {
                let (inner, bytes) = of_entry(entry, &mut children)?;
                known.entries = known.entries.saturating_add(inner).saturating_add(1);
                known.bytes = known.bytes.saturating_add(bytes);
                let ends = ends_page(hash_of_name(seed, &entry.name));
                if ends && n + 1 < entries.len() {
                    return Err(corrupt("a page of a directory goes on behind its border"));
                }
                known.ends = ends;
            }
            known.ends |= node.encode().len() + ENTRY_BYTES > NODE_BYTES;
            known.shape = Some((Of::Directory, 0));
            let names = entries.first().zip(entries.last());
            known.names = names.map(|(first, last)| (first.name.clone(), last.name.clone()));
            Ok(known)
        }
        TreeNode::FileMap(parts) => {
            let shape = Some((Of::File, 0));
            Ok(Judged { shape, bytes: content_bytes(parts), ends: true, ..Judged::default() })
        }
        TreeNode::Stats(stats) => {
            for top in stats.iter().filter_map(|stat| stat.pages) {
                children.next().ok_or_else(missing)?.is(Of::Stats, top.levels)?;
            }
            let (shape, entries) = (Some((Of::Stats, 0)), stats.len() as u64);
            Ok(Judged { shape, entries, ends: true, ..Judged::default() })
        }
        TreeNode::Index(level, entries) => index(*level, entries, children),
        TreeNode::Root(root) => of_root(root, &mut children),
    }
}

/// Compares an index page with the pages below it.
fn index<'a>(
    level: u8,
    entries: &[IndexEntry],
    children: impl Iterator<Item = &'a Judged>,
) -> Result<Judged> {
    let mut known = Judged::default();
    for (n, (entry, child)) in entries.iter().zip(children).enumerate() {
        let shape = child.shape.map(|(of, below)| (of, below.saturating_add(1)));
        let is_first_or_same = n == 0 || shape == known.shape;
        if shape.is_none_or(|(of, above)| of == Of::Root || above != level) || !is_first_or_same {
            return Err(corrupt("an index page names a page of another kind than it says"));
        }
        known.shape = shape;
        match (&entry.key, &child.names) {
            (Key::Name(first), Some((begins, ends))) => {
                if first != begins {
                    return Err(corrupt("an index page has another name than its page"));
                }
                if !child.ends && n + 1 < entries.len() {
                    return Err(corrupt("a page of a directory ends where no border is"));
                }
                match &mut known.names {
                    None => known.names = Some((begins.clone(), ends.clone())),
                    Some((_, last)) if *last < *begins => last.clone_from(ends),
                    Some(_) => return Err(corrupt("pages of a directory are out of order")),
                }
                known.ends = child.ends;
            }
            (Key::Sum(sum), None) if *sum == child.bytes || *sum == child.entries => {
                known.ends = true;
            }
            _ => return Err(corrupt("an index page has a sum that is not that of its page")),
        }
        known.entries = known.entries.saturating_add(child.entries);
        known.bytes = known.bytes.saturating_add(child.bytes);
    }
    Ok(known)
}

/// Entries below an entry, and bytes of it and of all below.
fn of_entry<'a>(
    entry: &TreeEntry,
    children: &mut impl Iterator<Item = &'a Judged>,
) -> Result<(u64, u64)> {
    if let Attributes::Stored(bytes, map) = &entry.attributes {
        of_map(*bytes, map, children)?;
    }
    match &entry.what {
        TreeWhat::Directory(Some(top)) => {
            let child = children.next().ok_or_else(missing)?;
            child.is(Of::Directory, top.levels)?;
            Ok((child.entries, child.bytes))
        }
        TreeWhat::File(bytes, map) => Ok((0, of_map(*bytes, map, children)?)),
        _ => Ok((0, 0)),
    }
}

/// The bytes of a file, which its content has.
fn of_map<'a>(
    bytes: u64,
    map: &FileMap,
    children: &mut impl Iterator<Item = &'a Judged>,
) -> Result<u64> {
    let found = match map {
        FileMap::Inline(parts) => content_bytes(parts),
        FileMap::Pages(top) => {
            let child = children.next().ok_or_else(missing)?;
            child.is(Of::File, top.levels)?;
            child.bytes
        }
    };
    if found == bytes {
        Ok(bytes)
    } else {
        Err(corrupt(format!("a file has {found} bytes of content, and should have {bytes}")))
    }
}

fn of_root<'a>(root: &Root, children: &mut impl Iterator<Item = &'a Judged>) -> Result<Judged> {
    let (entries, bytes) = of_entry(&root.directory, children)?;
    of_map(root.list.0, &root.list.1, children)?;
    if (entries.saturating_add(1), bytes) != (root.entries, root.bytes) {
        return Err(corrupt("a snapshot has other totals than its tree"));
    }
    let shape = Some((Of::Root, 0));
    Ok(Judged { shape, entries: root.entries, bytes: root.bytes, ends: true, ..Judged::default() })
}

fn missing() -> Error {
    corrupt("a node has fewer children than it names")
}
