//! The parent's tree, read beside a walk: which entries and pages it has where the walk is.

use std::sync::Arc;

use onefold_core::Result;

use super::{
    builder::{KNOWN_OF_ONE, Known},
    compare::Comparison,
    reader::{Entries, PAGES_HELD, Pages, TreeReader},
};
use crate::{
    format::{
        ContainerId,
        backup::Snapshot,
        damage::is_damage,
        recipe::Part,
        tree_node::{Attributes, FileMap, Stat, Top, TreeEntry, TreeNode, TreeNodeRef, TreeWhat},
    },
    operations_log::Archive,
    rules::Rule,
};

/// An entry of the parent's, at the same path.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The entry.
    pub entry: Option<TreeEntry>,
    /// Its stat.
    pub stat: Option<Stat>,
}

/// A directory of the parent's tree.
#[derive(Default)]
struct Level {
    entries: Entries,
    next: Option<(TreeEntry, Option<Stat>)>,
    /// Nothing is known of the rest: the parent has no such directory, or it can't be read.
    is_over: bool,
}

/// Follows a walk through several trees: that of a checkpoint, and that of the last snapshot for the
/// rest.
pub struct Parents(Vec<Parent>);

impl Parents {
    /// Follows a walk through these, the first one before the others.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(archive: &Arc<Archive>, snapshots: &[&Snapshot]) -> Result<Parents> {
        snapshots
            .iter()
            .map(|snapshot| Parent::new(archive, snapshot))
            .collect::<Result<_>>()
            .map(Parents)
    }

    /// The root directory as each of them has it, and the pages of the roots.
    pub fn take_root(&mut self) -> (Vec<Found>, Known) {
        let (mut all, mut pages) = (Vec::new(), Known::new());
        for parent in &mut self.0 {
            let (found, known) = parent.take_root();
            all.push(found);
            pages.extend(known);
        }
        (all, pages)
    }

    /// The walk enters a directory; `found` is what they have of it. Gives the pages that they have
    /// of it.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn enter(&mut self, found: &[Found]) -> Result<Known> {
        let mut known = Known::new();
        for (parent, found) in self.0.iter_mut().zip(found) {
            known.extend(parent.enter(found)?);
        }
        Ok(known)
    }

    /// The walk leaves the directory that it entered last.
    pub fn leave(&mut self) {
        self.0.iter_mut().for_each(Parent::leave);
    }

    /// Their entries of this name in the directory; names come in their order.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn find(&mut self, name: &[u8]) -> Result<Vec<Found>> {
        self.0.iter_mut().map(|parent| parent.find(name)).collect()
    }

    /// The pages that they have of a file's content.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn pages_of(&mut self, found: &[Found]) -> Result<Known> {
        let mut known = Known::new();
        for (parent, found) in self.0.iter_mut().zip(found) {
            if let Some(TreeEntry { what: TreeWhat::File(_, map), .. }) = &found.entry {
                known.extend(parent.pages_of(map)?);
            }
        }
        Ok(known)
    }

    /// The first entry that `is` the same, and of which all can be taken over unread: its content,
    /// and its attributes.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn first_sound(
        &mut self,
        found: &[Found],
        is: impl Fn(&TreeEntry, &Stat) -> bool,
    ) -> Result<Option<TreeEntry>> {
        for (parent, found) in self.0.iter_mut().zip(found) {
            let Found { entry: Some(entry), stat: Some(stat) } = found else { continue };
            let TreeWhat::File(_, map) = &entry.what else { continue };
            if !is(entry, stat) || !parent.is_sound(map)? {
                continue;
            }
            let attributes_are = match &entry.attributes {
                Attributes::Inline(_) => true,
                Attributes::Stored(_, map) => parent.is_sound(map)?,
            };
            if attributes_are {
                return Ok(Some(entry.clone()));
            }
        }
        Ok(None)
    }

    /// The content of the first entry that `is` the same and has all of its content, to be compared with
    /// that of a file that is read although it need not be.
    pub(super) fn comparison(
        &self,
        found: &[Found],
        is: impl Fn(&TreeEntry, &Stat) -> bool,
    ) -> Result<Option<(usize, Comparison)>> {
        for (n, (parent, found)) in self.0.iter().zip(found).enumerate() {
            let Found { entry: Some(entry), stat: Some(stat) } = found else { continue };
            let TreeWhat::File(_, map) = &entry.what else { continue };
            if !entry.is_in_part && is(entry, stat) {
                return Ok(Some((n, Comparison::new(parent.reader.domain()?, map))));
            }
        }
        Ok(None)
    }

    /// True when what a comparison knows of a parent is whole, and was stored before the data key of its domain was
    /// changed: the same content is not found there any more, and would be stored again.
    pub(super) fn is_found_no_more(
        &mut self,
        number: usize,
        comparison: &mut Comparison,
    ) -> Result<bool> {
        let Some(parent) = self.0.get_mut(number) else { return Ok(false) };
        let tables = parent.reader.tables().clone();
        let newest = tables.data_keys.newest(parent.reader.domain()?.number());
        let Some((newest, _)) = newest else { return Ok(false) };
        let first = comparison.first_chunk(&mut parent.reader)?;
        // Chunks keep the addresses that they had first.
        let is_older = first.is_some_and(|first| first.container < newest.from);
        Ok(is_older && parent.is_sound(comparison.map())?)
    }

    /// The reader of the parent of this number.
    pub(super) fn reader(&mut self, number: usize) -> Option<&mut TreeReader> {
        Some(&mut self.0.get_mut(number)?.reader)
    }
}

/// Follows a walk through the parent's tree. What can't be read there is not known: everything is
/// read and written anew, which is always right.
struct Parent {
    reader: TreeReader,
    levels: Vec<Level>,
    root: Option<(Found, Known)>,
}

impl Parent {
    fn new(archive: &Arc<Archive>, snapshot: &Snapshot) -> Result<Parent> {
        let mut parent =
            Parent { reader: TreeReader::new(archive)?, levels: Vec::new(), root: None };
        // Whoever collected it since it was chosen took its pages.
        if parent.reader.tables().snapshots.get(snapshot.id).is_err() {
            return Ok(parent);
        }
        match parent.reader.root(snapshot) {
            Ok(root) => {
                let stat = Stat { pages: snapshot.stats, ..Stat::default() };
                let found = Found { entry: Some(root.directory), stat: Some(stat) };
                let known = parent.known([snapshot.root].iter());
                parent.root = Some((found, known));
            }
            Err(error) if is_damage(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(parent)
    }

    /// The root directory, and the root.
    fn take_root(&mut self) -> (Found, Known) {
        self.root.take().unwrap_or_default()
    }

    /// The walk enters a directory; `found` is what the parent has of it. Gives the pages that the
    /// parent has of it.
    fn enter(&mut self, found: &Found) -> Result<Known> {
        let top = match &found.entry {
            Some(TreeEntry { what: TreeWhat::Directory(top), .. }) => *top,
            _ => None,
        };
        let stats = found.stat.and_then(|stat| stat.pages);
        let mut known = Known::new();
        // Its pages are read twice: now, to know that they are whole, and again beside the walk.
        for pages in [top, stats] {
            self.know_pages(pages, &mut known)?;
        }
        let is_over = top.is_none();
        self.levels.push(Level { entries: Entries::new(top, stats), next: None, is_over });
        let above =
            self.levels.len().checked_sub(PAGES_HELD + 1).and_then(|n| self.levels.get_mut(n));
        above.into_iter().for_each(|level| level.entries.rest());
        Ok(known)
    }

    fn leave(&mut self) {
        self.levels.pop();
    }

    /// The parent's entry of this name in the directory; names come in their order.
    fn find(&mut self, name: &[u8]) -> Result<Found> {
        let Parent { reader, levels, .. } = self;
        let Some(level) = levels.last_mut().filter(|level| !level.is_over) else {
            return Ok(Found::default());
        };
        loop {
            if level.next.is_none() {
                level.next = match level.entries.next(reader) {
                    Ok(next) => next,
                    Err(error) if is_damage(&error) => None,
                    Err(error) => return Err(error),
                };
                level.is_over = level.next.is_none();
            }
            let Some((entry, _)) = &level.next else { return Ok(Found::default()) };
            match entry.name.as_slice().cmp(name) {
                std::cmp::Ordering::Less => level.next = None,
                std::cmp::Ordering::Greater => return Ok(Found::default()),
                std::cmp::Ordering::Equal => {
                    let (entry, stat) = level.next.take().unzip();
                    return Ok(Found { entry, stat: stat.flatten() });
                }
            }
        }
    }

    /// The pages that the parent has of a file's content.
    fn pages_of(&mut self, map: &FileMap) -> Result<Known> {
        let mut known = Known::new();
        if let FileMap::Pages(top) = map {
            self.know_pages(Some(*top), &mut known)?;
        }
        Ok(known)
    }

    /// Adds the pages below `top` that can be read, and index pages; not more than are remembered.
    fn know_pages(&mut self, top: Option<Top>, known: &mut Known) -> Result<()> {
        let mut pages = Pages::once(top);
        while known.len() < KNOWN_OF_ONE {
            match pages.next_readable(&mut self.reader) {
                Ok(Some(node)) => known.extend(self.known([node].iter())),
                Ok(None) => return Ok(()),
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// True when all of a file's content can be taken over unread: nothing of it is noted as
    /// damaged, and all of its containers are there.
    fn is_sound(&mut self, map: &FileMap) -> Result<bool> {
        match map {
            FileMap::Inline(parts) => Ok(self.are_sound(parts)),
            FileMap::Pages(top) => {
                let mut pages = Pages::once(Some(*top));
                loop {
                    let node = match pages.next(&mut self.reader) {
                        Ok(Some(node)) => node,
                        Ok(None) => return Ok(true),
                        Err(error) if is_damage(&error) => return Ok(false),
                        Err(error) => return Err(error),
                    };
                    match self.reader.node(&node) {
                        Ok(TreeNode::FileMap(parts)) => {
                            if !self.are_sound(&parts) || !self.is_whole(&node) {
                                return Ok(false);
                            }
                        }
                        Ok(_) => return Ok(false),
                        Err(error) if is_damage(&error) => return Ok(false),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    fn are_sound(&self, parts: &[Part]) -> bool {
        parts.iter().all(|part| match part {
            Part::Run { first, .. } => self.is_noted_whole(first.container),
            _ => true,
        })
    }

    /// No chunk of the containers that answer to this number is noted as damaged, or as dead. When
    /// they can't be looked up, nothing is known.
    fn is_noted_whole(&self, id: ContainerId) -> bool {
        let tables = self.reader.tables();
        let mut places = tables.places(id).peekable();
        places.peek().is_some()
            && places.all(|home| {
                let Ok(home) = home else { return false };
                let id = home.stored.id;
                if !self.reader.archive().keeps(Rule::DamagedNotTakenOver) {
                    return true;
                }
                !tables.damaged.contains_key(&id) && !tables.condemned.contains_key(&id)
            })
    }

    fn is_whole(&self, node: &TreeNodeRef) -> bool {
        self.is_noted_whole(node.address.container)
    }

    fn known<'a>(&self, nodes: impl Iterator<Item = &'a TreeNodeRef>) -> Known {
        nodes
            .filter(|node| self.is_whole(node))
            .map(|node| (node.fingerprint, node.address))
            .collect()
    }
}
