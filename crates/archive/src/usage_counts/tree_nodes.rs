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
//!
//! A reference to a container or a slot that is not there is damage, and stays so: it is told of, and
//! not counted.
//!
//! *Memory:* a few bytes for each node that is there, whatever hostile trees name and how often.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Error, Kind, Result};

use super::{
    counts_file::{CountsReader, pages},
    gone::is_gone,
    names::MOST,
    pages::PagesReader,
};
use crate::{
    container::Rewriter,
    format::{
        Address, ContainerId,
        backup::Snapshot,
        container::ContainerKind,
        record::Pieces,
        tree_node::{Named, TreeNode},
    },
    operations_log::is_erased,
    rules::Rule,
    tables::{Tables, roots},
    tree::is_untrue,
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
    /// References that came, to what is not there.
    pub(super) absent: u64,
    /// The first of them.
    pub(super) first_absent: Option<Address>,
    /// Nodes that the portion has room for.
    room: usize,
}

/// Slots of a container whose counts lie together in memory.
const TOGETHER: u16 = 32;

/// The counts of nodes, as far as they are known: memory for slots that are named, as a hostile tree
/// may name one slot in each of many containers.
#[derive(Default)]
struct Counts {
    known: BTreeMap<(ContainerId, u16), [u16; TOGETHER as usize]>,
    /// Where the counts of before are in pages: these, and which of them were looked at.
    before: Option<(PagesReader, BTreeSet<u64>)>,
}

impl Counts {
    /// Looks at the page that has the count of a node, before the first look at that count.
    fn look(&mut self, tables: &Tables, node: Address) -> Result<()> {
        let Some((before, looked_at)) = &mut self.before else { return Ok(()) };
        let page = before.page_of(node.container);
        if looked_at.insert(page) {
            for (id, of) in before.page(page)? {
                self.take(tables, id, &of)?;
            }
        }
        Ok(())
    }

    /// Takes the counts of a container, if nodes lie in it.
    fn take(&mut self, tables: &Tables, id: ContainerId, of: &[u16]) -> Result<()> {
        for home in tables.places(id) {
            if home?.stored.kind == ContainerKind::Recipes {
                self.insert(id, of);
                break;
            }
        }
        Ok(())
    }

    /// The count of a node.
    fn of(&mut self, node: Address) -> &mut u16 {
        let together = self.known.entry((node.container, node.slot / TOGETHER)).or_default();
        &mut together[usize::from(node.slot % TOGETHER)]
    }

    /// The count of a node; 0 for one of which nothing is known.
    fn known(&self, node: Address) -> u16 {
        let together = self.known.get(&(node.container, node.slot / TOGETHER));
        together.map_or(0, |together| together[usize::from(node.slot % TOGETHER)])
    }

    /// The counts of a container.
    fn insert(&mut self, id: ContainerId, of: &[u16]) {
        for (n, some) in (0..).zip(of.chunks(usize::from(TOGETHER))) {
            if some.iter().any(|count| *count > 0) {
                let together = self.known.entry((id, n)).or_default();
                together[..some.len()].copy_from_slice(some);
            }
        }
    }
}

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
                if is_gone(&self.archive, tables, &difference.recipe)? {
                    continue;
                }
                let roots = difference.recipe.iter().map(root);
                match difference.added {
                    true => changes.added.extend(roots),
                    false => changes.removed.extend(roots),
                }
            }
            if self.archive.keeps(Rule::DueCountsKept) {
                for node in tables.snapshots.due() {
                    let piece = Pieces { container: node.container, first: node.slot, count: 1 };
                    if !is_gone(&self.archive, tables, &[piece])? {
                        changes.due.push(*node);
                    }
                }
            }
        } else {
            let there = |one: &&Snapshot| !is_erased(&self.archive, one.domain);
            let all = tables.snapshots.values().filter(there).flat_map(roots);
            changes.added.extend(all.map(|pieces| root(&pieces)));
        }
        if changes.is_empty() {
            return Ok(changes);
        }
        let mut counts = if on { self.counts_of_nodes(tables)? } else { Counts::default() };
        let first = self.archive.keeps(Rule::AdditionsCountedFirst);
        if !first {
            self.remove(tables, &mut changes, &mut counts)?;
        }
        let (mut due, added) = (std::mem::take(&mut changes.due), changes.added.clone());
        let again = !on || self.archive.keeps(Rule::RevivedNodesCounted);
        for node in added {
            let mut rising = Vec::new();
            self.name(tables, (node, again), &mut changes, &mut counts, &mut rising)?;
            self.rise_all(tables, again, &mut changes, &mut counts, &mut due, rising)?;
        }
        for node in std::mem::take(&mut due) {
            // A node that went while it was due has counted for nothing.
            counts.look(tables, node)?;
            if counts.known(node) > 0 {
                self.rise_all(tables, true, &mut changes, &mut counts, &mut due, vec![node])?;
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

    /// A node is named once more. When that is the first time, it joins those that rise, unless nothing
    /// is there.
    fn name(
        &self,
        tables: &Tables,
        (node, again): (Address, bool),
        changes: &mut NodeChanges,
        counts: &mut Counts,
        rising: &mut Vec<Address>,
    ) -> Result<()> {
        if !is_there(tables, node)? {
            changes.absent += 1;
            changes.first_absent = changes.first_absent.or(Some(node));
            return Ok(());
        }
        counts.look(tables, node)?;
        let count = counts.of(node);
        let is_first = *count == 0 && again || !self.archive.keeps(Rule::NodesCountedOnce);
        *count = count.saturating_add(1);
        if is_first {
            rising.push(node);
        }
        Ok(())
    }

    /// Nodes are named for the first time: their children are named once more. No node is in memory
    /// twice, however often others name it.
    fn rise_all(
        &mut self,
        tables: &Tables,
        again: bool,
        changes: &mut NodeChanges,
        counts: &mut Counts,
        due: &mut Vec<Address>,
        mut rising: Vec<Address>,
    ) -> Result<()> {
        while let Some(node) = rising.pop() {
            if changes.rises.len() >= changes.room {
                changes.is_cut = true;
                due.push(node);
                continue;
            }
            match self.children(tables, node) {
                Ok(children) => {
                    changes.rises.push(node);
                    for child in children {
                        self.name(tables, (child, again), changes, counts, &mut rising)?;
                    }
                }
                Err(error) if error.kind() == Kind::Corrupt => due.push(node),
                // Perhaps it can be read another time: nothing is counted without it.
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn remove(
        &mut self,
        tables: &Tables,
        changes: &mut NodeChanges,
        counts: &mut Counts,
    ) -> Result<()> {
        let mut falling = Vec::new();
        for node in changes.removed.clone() {
            lower(tables, counts, node, &mut falling)?;
        }
        let due = std::mem::take(&mut changes.due);
        let (fallen, due) =
            fall(falling, due, |node, falling| match self.children(tables, node) {
                Ok(children) => {
                    let mut children = children.into_iter();
                    children.try_for_each(|child| lower(tables, counts, child, falling))?;
                    Ok(true)
                }
                Err(error) if error.kind() == Kind::Corrupt => Ok(false),
                Err(error) => Err(error),
            })?;
        changes.falls.extend(fallen);
        changes.due = due;
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
    /// damaged names nothing, and neither does what can't be read, where a put key says it and nobody
    /// `believed` it yet. `seen` has the nodes that were told of before, which are left out.
    pub(crate) fn walk_tree(
        &mut self,
        tables: &Tables,
        (roots, believed): (&[Pieces], bool),
        seen: &mut BTreeSet<Address>,
        each: &mut dyn FnMut(Address, usize),
    ) -> Result<()> {
        let mut wanted = Vec::new();
        for node in roots.iter().map(root) {
            if !seen.contains(&node) && is_there(tables, node)? {
                seen.insert(node);
                wanted.push(node);
            }
        }
        while let Some(node) = wanted.pop() {
            if let Some(left) = &mut self.nodes_left {
                *left = left.checked_sub(1).ok_or_else(|| Error::new(Kind::Busy, "others wait"))?;
            }
            each(node, 1);
            let read = match self.node(tables, node) {
                Err(error) if error.kind() == Kind::Corrupt => continue,
                Err(error) if !believed && is_untrue(&error) => continue,
                read => read?,
            };
            let mut named = Vec::new();
            read.named(&mut |one| match one {
                Named::TreeNode(child) => named.push(child.address),
                Named::Chunks(first, all) => each(first, all.len()),
            });
            for child in named {
                if !seen.contains(&child) && is_there(tables, child)? {
                    seen.insert(child);
                    wanted.push(child);
                }
            }
        }
        Ok(())
    }

    /// The counts of chunks in containers of recipes, where the nodes are: of all of them, or from their
    /// pages as they are asked for.
    fn counts_of_nodes(&mut self, tables: &Tables) -> Result<Counts> {
        let mut counts = Counts::default();
        if self.archive.label().counts_in_pages
            && let Some(before) = pages(&self.archive, tables.named_counts(), &self.pace)?
        {
            counts.before = Some((before, BTreeSet::new()));
            return Ok(counts);
        }
        let mut reader = CountsReader::open(&self.archive, tables.named_counts(), &self.pace)?;
        while let Some((id, of)) = reader.next()? {
            counts.take(tables, id, &of)?;
        }
        Ok(counts)
    }
}

/// A node is named once less. When nothing names it any more, it joins those that fall.
fn lower(
    tables: &Tables,
    counts: &mut Counts,
    node: Address,
    falling: &mut Vec<Address>,
) -> Result<()> {
    counts.look(tables, node)?;
    // A saturated count may stand for more references, and one of 0 is damage.
    if matches!(counts.known(node), 0 | MOST) {
        return Ok(());
    }
    let count = counts.of(node);
    *count -= 1;
    if *count == 0 {
        falling.push(node);
    }
    Ok(())
}

/// Follows nodes that nobody names any more to all that fall with them. `lower_children` adds nodes
/// that fall to the list, and gives false when the node is damaged. A node that is due has counted for
/// nothing, and is due no longer. Gives the nodes that were read, and those that are still due.
fn fall<N: Copy + Ord>(
    mut falling: Vec<N>,
    due: Vec<N>,
    mut lower_children: impl FnMut(N, &mut Vec<N>) -> Result<bool>,
) -> Result<(Vec<N>, Vec<N>)> {
    let (mut due, mut fallen) = (due.into_iter().collect::<BTreeSet<N>>(), Vec::new());
    while let Some(node) = falling.pop() {
        if !due.remove(&node) && lower_children(node, &mut falling)? {
            fallen.push(node);
        }
    }
    Ok((fallen, due.into_iter().collect()))
}

/// True when an archive has a slot of this address, or may have it: of a container that was merged
/// others have the slots, and a part of the tables that is damaged says nothing.
fn is_there(tables: &Tables, node: Address) -> Result<bool> {
    for home in tables.places(node.container) {
        match home {
            Ok(home) if home.stored.id != node.container || !home.merged.is_empty() => {
                return Ok(true);
            }
            Ok(home) if u32::from(node.slot) < home.stored.chunks => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == Kind::Corrupt => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// The address of a root.
fn root(pieces: &Pieces) -> Address {
    Address { container: pieces.container, slot: pieces.first }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

    use std::{cell::Cell, cmp::Ordering};

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    /// A node whose comparisons are counted.
    #[derive(Clone, Copy, Debug)]
    struct Counted(u32);

    impl Ord for Counted {
        fn cmp(&self, other: &Counted) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Counted) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Counted) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Counted {}

    #[test]
    fn a_wide_tree_whose_nodes_are_due_falls_without_a_look_at_all_of_them_for_each() {
        const WIDE: u32 = 10_000;
        // Every second child of the root is damaged, and due; others that are due stay so.
        let due = (1..=WIDE).filter(|n| n % 2 == 0).chain(WIDE + 1..2 * WIDE).map(Counted);
        let due: Vec<Counted> = due.collect();
        let mut read = 0;
        let (fallen, left) = fall(vec![Counted(0)], due, |node, falling| {
            read += 1;
            if node.0 == 0 {
                falling.extend((1..=WIDE).map(Counted));
            }
            // The first child is damaged too, and was never due.
            Ok(node.0 != 1)
        })
        .unwrap();
        let compared = COMPARISONS.get();
        assert_eq!((read, fallen.len()), (1 + WIDE / 2, (WIDE / 2) as usize));
        assert!(fallen.iter().all(|node| node.0 == 0 || node.0 % 2 == 1 && node.0 > 1));
        assert!(left.iter().map(|node| node.0).eq(WIDE + 1..2 * WIDE));
        assert!(compared < 100 * u64::from(WIDE), "{compared} comparisons");
    }
}
