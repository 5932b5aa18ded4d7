//! References that come from trees of nodes.
//!
//! Counts belong to living nodes: a node that is named for the first time counts for its children,
//! and one that nobody names any more counts for them no longer. So the work follows what changed,
//! never the number of snapshots. Additions are counted first, so that what a new snapshot shares
//! with one that goes is not descended into twice.
//!
//! Counting goes in portions: a portion that has no room for more nodes leaves those that it did not
//! descend into *due*, and the next one goes on there. Nothing is condemned before none is left.
//!
//! A node that is damaged when it is named for the first time is *due*: its children are counted
//! when it is whole again, and it holds nothing up. An error of the disk ends the counting. Nothing is counted for one that goes while
//! it is due. One that can't be read when it goes leaves its children counted for good.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Kind, Result};

use super::counts_file::{CountsReader, MOST};
use crate::{
    container::Rewriter,
    format::{
        Address, ContainerId,
        container::ContainerKind,
        record::Pieces,
        tree_node::{Named, TreeNode},
    },
    rules::Rule,
    tables::{Tables, roots},
};

/// The changes by snapshots that came and went.
#[derive(Debug, Default)]
pub(crate) struct NodeChanges {
    /// Nodes that one snapshot more names.
    pub(super) added: Vec<Address>,
    /// Nodes that one snapshot less names.
    pub(super) removed: Vec<Address>,
    /// Nodes that count for their children from now on.
    pub(crate) rises: Vec<Address>,
    /// Nodes that no longer do.
    pub(crate) falls: Vec<Address>,
    /// Nodes that are named and can't be read, or that the portion has no room for.
    pub(super) due: Vec<Address>,
    /// The portion has no room for more: what went is not looked at yet.
    pub(super) is_cut: bool,
    /// Nodes that the portion has room for.
    room: usize,
}

/// The counts of nodes, as far as they are known.
type Counts = BTreeMap<ContainerId, Vec<u16>>;

impl NodeChanges {
    /// True when there are none.
    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.due.is_empty()
    }
}

impl Rewriter {
    /// Finds out what snapshots that came and went change; without `on` from all snapshots. Nodes
    /// that came beyond `room` are due. Of one snapshot that went all is looked at.
    pub(super) fn node_changes(
        &mut self,
        tables: &Tables,
        on: bool,
        room: usize,
    ) -> Result<NodeChanges> {
        let mut changes = NodeChanges { room, ..NodeChanges::default() };
        if on {
            for difference in tables.differences.iter().filter(|difference| difference.nodes) {
                let roots = difference.recipe.iter().map(root);
                match difference.added {
                    true => changes.added.extend(roots),
                    false => changes.removed.extend(roots),
                }
            }
            if self.archive.keeps(Rule::DueCountsKept) {
                changes.due.extend(tables.snapshots.due());
            }
        } else {
            let all = tables.snapshots.values().flat_map(roots);
            changes.added.extend(all.map(|pieces| root(&pieces)));
        }
        if changes.is_empty() {
            return Ok(changes);
        }
        let mut counts = if on { self.counts_of_nodes(tables)? } else { Counts::new() };
        let first = self.archive.keeps(Rule::AdditionsCountedFirst);
        if !first {
            self.remove(tables, &mut changes, &mut counts)?;
        }
        let (mut due, mut added) = (std::mem::take(&mut changes.due), changes.added.clone());
        added.reverse();
        while let Some(node) = added.pop() {
            let count = count(&mut counts, node);
            let counts_again = !on || self.archive.keeps(Rule::RevivedNodesCounted);
            let is_first =
                *count == 0 && counts_again || !self.archive.keeps(Rule::NodesCountedOnce);
            *count = count.saturating_add(1);
            if is_first {
                self.rise(tables, node, &mut changes, &mut due, &mut added)?;
            }
        }
        for node in std::mem::take(&mut due) {
            // A node that went while it was due has counted for nothing.
            if *count(&mut counts, node) > 0 {
                let mut children = Vec::new();
                self.rise(tables, node, &mut changes, &mut due, &mut children)?;
                while let Some(node) = children.pop() {
                    let count = count(&mut counts, node);
                    *count = count.saturating_add(1);
                    if *count == 1 {
                        self.rise(tables, node, &mut changes, &mut due, &mut children)?;
                    }
                }
            }
        }
        changes.due = due;
        if changes.is_cut {
            changes.removed.clear();
        } else if first {
            self.remove(tables, &mut changes, &mut counts)?;
        }
        Ok(changes)
    }

    /// A node is named for the first time: its children are named once more.
    fn rise(
        &mut self,
        tables: &Tables,
        node: Address,
        changes: &mut NodeChanges,
        due: &mut Vec<Address>,
        children: &mut Vec<Address>,
    ) -> Result<()> {
        if changes.rises.len() >= changes.room {
            changes.is_cut = true;
            due.push(node);
            return Ok(());
        }
        match self.children(tables, node) {
            Ok(found) => {
                changes.rises.push(node);
                children.extend(found);
            }
            Err(error) if error.kind() == Kind::Corrupt => due.push(node),
            // Perhaps it can be read another time: nothing is counted without it.
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn remove(
        &mut self,
        tables: &Tables,
        changes: &mut NodeChanges,
        counts: &mut Counts,
    ) -> Result<()> {
        let mut removed = changes.removed.clone();
        while let Some(node) = removed.pop() {
            let count = count(counts, node);
            // A saturated count may stand for more references, and one of 0 is damage.
            if *count == MOST || *count == 0 {
                continue;
            }
            *count -= 1;
            if *count > 0 {
                continue;
            }
            if let Some(n) = changes.due.iter().position(|due| *due == node) {
                changes.due.swap_remove(n);
                continue;
            }
            match self.children(tables, node) {
                Ok(found) => {
                    changes.falls.push(node);
                    removed.extend(found);
                }
                Err(error) if error.kind() == Kind::Corrupt => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The nodes that a node names.
    fn children(&mut self, tables: &Tables, node: Address) -> Result<Vec<Address>> {
        let mut children = Vec::new();
        self.node(tables, node)?.named(&mut |named| {
            if let Named::TreeNode(child) = named {
                children.push(child.address);
            }
        });
        Ok(children)
    }

    fn node(&mut self, tables: &Tables, node: Address) -> Result<TreeNode> {
        TreeNode::decode(self.chunk_reader.chunk(tables, &self.container_reader, node)?)
    }

    /// Tells of all that nodes name: each run of chunks, and each node.
    pub(crate) fn named_by(
        &mut self,
        tables: &Tables,
        nodes: &[Address],
        each: &mut dyn FnMut(Address, usize),
    ) -> Result<()> {
        for &node in nodes {
            self.node(tables, node)?.named(&mut |named| match named {
                Named::TreeNode(child) => each(child.address, 1),
                Named::Chunks(first, all) => each(first, all.len()),
            });
        }
        Ok(())
    }

    /// Tells of all that a tree names, all the way down, once for each node: its roots too. What is
    /// damaged names nothing.
    pub(crate) fn walk_tree(
        &mut self,
        tables: &Tables,
        roots: &[Pieces],
        each: &mut dyn FnMut(Address, usize),
    ) -> Result<()> {
        let mut wanted: Vec<Address> = roots.iter().map(root).collect();
        let mut seen = BTreeSet::new();
        while let Some(node) = wanted.pop() {
            if !seen.insert(node) {
                continue;
            }
            each(node, 1);
            let read = match self.node(tables, node) {
                Err(error) if error.kind() == Kind::Corrupt => continue,
                read => read?,
            };
            read.named(&mut |named| match named {
                Named::TreeNode(child) => wanted.push(child.address),
                Named::Chunks(first, all) => each(first, all.len()),
            });
        }
        Ok(())
    }

    /// The counts of all chunks in containers of recipes, where the nodes are.
    fn counts_of_nodes(&mut self, tables: &Tables) -> Result<Counts> {
        let mut counts = Counts::new();
        let mut reader = CountsReader::open(&self.archive, tables.counts, &self.pace)?;
        while let Some((id, of)) = reader.next()? {
            for home in tables.places(id) {
                if home?.stored.kind == ContainerKind::Recipes {
                    counts.insert(id, of);
                    break;
                }
            }
        }
        Ok(counts)
    }
}

/// The count of a node.
fn count(counts: &mut Counts, node: Address) -> &mut u16 {
    let of = counts.entry(node.container).or_default();
    let slot = usize::from(node.slot);
    if of.len() <= slot {
        of.resize(slot + 1, 0);
    }
    &mut of[slot]
}

/// The address of a root.
fn root(pieces: &Pieces) -> Address {
    Address { container: pieces.container, slot: pieces.first }
}
