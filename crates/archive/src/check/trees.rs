//! Trees of snapshots: each node is looked at once, whatever number of snapshots share it.

use std::collections::HashMap;

use onefold_core::{Error, Result};

use super::{Checking, Progress};
use crate::{
    format::{
        bytes::corrupt,
        damage::is_damage,
        tree_node::{
            Attributes, FileMap, IndexEntry, Key, NODE_BYTES, Named, Root, TreeEntry, TreeNode,
            TreeNodeRef, TreeWhat, content_bytes,
        },
    },
    operations_log::is_erased,
    tree::{ends_page, hash_of_name},
};

/// Nodes above the one at hand that are held. Those above them are read again when their turn comes:
/// a hostile tree is as deep as it likes, with a full page at each level.
const NODES_HELD: usize = 32;

/// Bytes of a directory page's entry at most: a page with less room than this may end.
const ENTRY_BYTES: usize = 24 << 10;

/// The findings about a tree node and all below it.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Entries of directories.
    entries: u64,
    /// Bytes of files.
    bytes: u64,
    /// Of a directory's pages the first and the last name.
    names: Option<(Vec<u8>, Vec<u8>)>,
    /// A page may end here: at a border, or full.
    ends: bool,
    /// Chunks of it and of all below are not there; counted once for each time that they are named.
    lost: u64,
}

impl Known {
    /// A node that can't be read.
    fn lost() -> Known {
        Known { lost: 1, ends: true, ..Known::default() }
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
    known: Vec<Known>,
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

/// The findings about the tree nodes that were looked at.
#[derive(Default)]
pub(super) struct Trees(HashMap<TreeNodeRef, Known>);

impl Checking {
    /// Looks at the trees of all snapshots, listed and forgotten.
    pub(super) fn snapshots(&mut self, progress: &mut Progress<'_>) -> Result<()> {
        let tables = self.found.tables.clone();
        let (total, mut trees) = (tables.snapshots.len() as u64, Trees::default());
        for snapshot in tables.snapshots.values() {
            if is_erased(&self.found.archive, snapshot.domain) {
                self.found.report.erased.snapshots += 1;
                self.found.report.erased.domains.insert(snapshot.domain);
                continue;
            }
            self.trees.enter(snapshot)?;
            self.found.report.snapshots += 1;
            let name = format!("snapshot {} of set '{}'", snapshot.id, snapshot.set.escape_debug());
            match self.tree(&mut trees, snapshot.root).and_then(|known| {
                if let Some(stats) = &snapshot.stats {
                    // Lost stat pages cost no content: the next backup reads the files again.
                    let stats = self.tree(&mut trees, stats.node)?;
                    let lost = known.lost.saturating_add(stats.lost);
                    return Ok(Known { lost, ..known });
                }
                Ok(known)
            }) {
                Ok(Known { lost: 0, entries, bytes, .. })
                    if (entries, bytes) == (snapshot.entries, snapshot.bytes) => {}
                Ok(Known { lost: 0, .. }) => {
                    self.found.report.problem(format!("{name} has other totals than its tree"));
                }
                Ok(Known { lost, .. }) => {
                    self.found.report.hit_snapshots.insert(snapshot.id.to_string());
                    self.found.report.problem(format!("{name} lost {lost} chunks or pages"));
                }
                Err(error) if is_damage(&error) => {
                    self.found.report.hit_snapshots.insert(snapshot.id.to_string());
                    self.found.report.problem(format!("{name}: {error}"));
                }
                Err(error) => return Err(error),
            }
            progress("snapshots", self.found.report.snapshots, total);
        }
        Ok(())
    }

    /// Looks at a node and all below it.
    fn tree(&mut self, trees: &mut Trees, top: TreeNodeRef) -> Result<Known> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut next = Some(top);
        loop {
            let known = match next {
                Some(at) => match trees.0.get(&at) {
                    Some(known) => known.clone(),
                    None => match self.frame(at)? {
                        Some(frame) => {
                            frames.push(frame);
                            let above = frames.len().checked_sub(NODES_HELD + 1);
                            if let Some(above) = above.and_then(|n| frames.get_mut(n)) {
                                above.held = None;
                            }
                            next = descend(&frames);
                            continue;
                        }
                        None => Known::lost(),
                    },
                },
                None => self.finish(trees, &mut frames)?,
            };
            let Some(frame) = frames.last_mut() else { return Ok(known) };
            let mut held = match frame.held.take() {
                Some(held) => held,
                None => self.again(trees, frame)?,
            };
            held.known.push(known);
            frame.judged += 1;
            frame.held = Some(held);
            next = descend(&frames);
        }
    }

    /// Reads a node that rested.
    fn again(&mut self, trees: &Trees, frame: &Frame) -> Result<Held> {
        let mut held = Held::new(self.trees.node(&frame.at)?);
        let known = |child| trees.0.get(child).cloned().unwrap_or_else(Known::lost);
        held.known = held.children.iter().take(frame.judged).map(known).collect();
        Ok(held)
    }

    /// Reads a node; `None` when it is lost.
    fn frame(&mut self, at: TreeNodeRef) -> Result<Option<Frame>> {
        // A node that is noted as damaged may be readable, and then its children are looked at.
        let lost = u64::from(!self.found.has(at.address, &at.fingerprint)?);
        let node = match self.trees.node(&at) {
            Err(error) if is_damage(&error) => return Ok(None),
            node => node?,
        };
        Ok(Some(Frame { at, judged: 0, lost, held: Some(Held::new(node)) }))
    }

    /// Judges the node whose children are all known.
    fn finish(&mut self, trees: &mut Trees, frames: &mut Vec<Frame>) -> Result<Known> {
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
                let address = crate::format::Address { slot: first.slot + n as u16, ..first };
                match self.found.has(address, fingerprint) {
                    Ok(there) => lost = lost.saturating_add(u64::from(!there)),
                    Err(error) => looked = Err(error),
                }
            }
        });
        looked?;
        let seed = self.trees.borders();
        let judged = if lost > 0 {
            // Sums of what is not there can't be told.
            Known { lost, ends: true, ..Known::default() }
        } else {
            judge(seed, &node, &known)?
        };
        trees.0.insert(at, judged.clone());
        Ok(judged)
    }
}

/// The child of the last frame that comes next.
fn descend(frames: &[Frame]) -> Option<TreeNodeRef> {
    let held = frames.last()?.held.as_ref()?;
    held.children.get(held.known.len()).copied()
}

/// Compares a node with what is known of its children.
fn judge(seed: u64, node: &TreeNode, children: &[Known]) -> Result<Known> {
    let mut children = children.iter();
    match node {
        TreeNode::Directory(entries) => {
            let mut known = Known::default();
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
            let names = entries.first().zip(entries.last());
            known.names = names.map(|(first, last)| (first.name.clone(), last.name.clone()));
            Ok(known)
        }
        TreeNode::FileMap(parts) => {
            Ok(Known { bytes: content_bytes(parts), ends: true, ..Known::default() })
        }
        TreeNode::Stats(stats) => {
            Ok(Known { entries: stats.len() as u64, ends: true, ..Known::default() })
        }
        TreeNode::Index(_, entries) => index(entries, children),
        TreeNode::Root(root) => of_root(root, &mut children),
    }
}

/// Compares an index page with the pages below it.
fn index<'a>(entries: &[IndexEntry], children: impl Iterator<Item = &'a Known>) -> Result<Known> {
    let mut known = Known::default();
    for (n, (entry, child)) in entries.iter().zip(children).enumerate() {
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
    children: &mut impl Iterator<Item = &'a Known>,
) -> Result<(u64, u64)> {
    if let Attributes::Stored(bytes, map) = &entry.attributes {
        of_map(*bytes, map, children)?;
    }
    match &entry.what {
        TreeWhat::Directory(Some(_)) => {
            let child = children.next().ok_or_else(missing)?;
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
    children: &mut impl Iterator<Item = &'a Known>,
) -> Result<u64> {
    let found = match map {
        FileMap::Inline(parts) => content_bytes(parts),
        FileMap::Pages(_) => children.next().ok_or_else(missing)?.bytes,
    };
    if found == bytes {
        Ok(bytes)
    } else {
        Err(corrupt(format!("a file has {found} bytes of content, and should have {bytes}")))
    }
}

fn of_root<'a>(root: &Root, children: &mut impl Iterator<Item = &'a Known>) -> Result<Known> {
    let (entries, bytes) = of_entry(&root.directory, children)?;
    of_map(root.list.0, &root.list.1, children)?;
    if (entries.saturating_add(1), bytes) != (root.entries, root.bytes) {
        return Err(corrupt("a snapshot has other totals than its tree"));
    }
    Ok(Known { entries: root.entries, bytes: root.bytes, ends: true, ..Known::default() })
}

fn missing() -> Error {
    corrupt("a node has fewer children than it names")
}
