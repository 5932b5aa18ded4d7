//! The differences between two trees: what is equal is passed over by whole pages and directories.

use std::cmp::Ordering;

use onefold_core::{Error, Kind, Result};

use super::{
    reader::{Entries, PAGES_HELD, TreeReader},
    same_content::same_content,
};
use crate::format::{
    backup::Snapshot,
    listing::LEVELS_MAX,
    tree_node::{Top, TreeEntry, TreeWhat},
};

/// A difference at one path.
#[derive(Debug)]
pub enum Change {
    /// Only the second tree has it.
    Added(TreeEntry),
    /// Only the first tree has it.
    Removed(TreeEntry),
    /// Both have it; the kind or the content differs.
    Content(TreeEntry, TreeEntry),
    /// Both have it with the same content; mode, owner, times, attributes or names of a file with
    /// several differ.
    Told(TreeEntry, TreeEntry),
}

/// A directory that both trees have, or one of them.
struct Level {
    /// Bytes of its path.
    path: usize,
    sides: [Side; 2],
}

struct Side {
    entries: Entries,
    next: Option<TreeEntry>,
}

impl Side {
    fn new(top: Option<Top>) -> Side {
        Side { entries: Entries::new(top, None), next: None }
    }

    fn look(&mut self, reader: &mut TreeReader) -> Result<Option<&[u8]>> {
        if self.next.is_none() {
            self.next = self.entries.next(reader)?.map(|(entry, _)| entry);
        }
        Ok(self.next.as_ref().map(|entry| &entry.name[..]))
    }
}

impl Level {
    /// The next name, and what the two have of it; `None` behind the last.
    #[allow(clippy::type_complexity)]
    fn next(
        &mut self,
        reader: &mut TreeReader,
    ) -> Result<Option<(Option<TreeEntry>, Option<TreeEntry>)>> {
        let [one, other] = &mut self.sides;
        if one.next.is_none() && other.next.is_none() {
            one.entries.pass_equal(&mut other.entries, reader)?;
        }
        let first = match (one.look(reader)?, other.look(reader)?) {
            (None, None) => return Ok(None),
            (Some(one), Some(other)) => one.cmp(other),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
        };
        Ok(Some(match first {
            Ordering::Less => (one.next.take(), None),
            Ordering::Greater => (None, other.next.take()),
            Ordering::Equal => (one.next.take(), other.next.take()),
        }))
    }
}

/// Tells of each difference between two snapshots, in the order of paths; a directory comes before
/// what is in it. `looked` hears how many entries were looked at, of how many at most: what is equal by
/// whole pages and directories is passed over.
///
/// # Errors
/// `Corrupt` where a page is damaged, and those of `each` and of the system.
pub fn diff(
    reader: &mut TreeReader,
    one: &Snapshot,
    other: &Snapshot,
    looked: &mut dyn FnMut(u64, u64),
    each: &mut dyn FnMut(&[u8], Change) -> Result<()>,
) -> Result<()> {
    if one.domain != other.domain {
        let why = "the snapshots are of two domains, which have nothing in common by which they could be \
                   compared";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    let roots = [reader.root(one)?.directory, reader.root(other)?.directory];
    let mut open = vec![Level { path: 0, sides: roots.map(|root| Side::new(top(&root))) }];
    let mut path = Vec::new();
    // A tree that doubles at each level has more entries than its root says.
    let (mut seen, mut both, most) = (0, 0, one.entries.saturating_add(other.entries));
    while let Some(level) = open.last_mut() {
        let Some((before, after)) = level.next(reader)? else {
            open.pop();
            continue;
        };
        seen += 1;
        if seen > most || open.len() > LEVELS_MAX {
            return Err(Error::new(Kind::Corrupt, "a snapshot has more than its root says"));
        }
        both += u64::from(before.is_some()) + u64::from(after.is_some());
        looked(both, most);
        let Some(level) = open.last() else { break };
        let Some(name) = before.as_ref().or(after.as_ref()).map(|entry| &entry.name) else {
            continue;
        };
        path.truncate(level.path);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let tops = [&before, &after].map(|entry| entry.as_ref().and_then(top));
        if let Some(change) = change(reader, before, after)? {
            each(&path, change)?;
        }
        if tops[0].map(|top| top.node.fingerprint) != tops[1].map(|top| top.node.fingerprint) {
            open.push(Level { path: path.len(), sides: tops.map(Side::new) });
            let above = open.len().checked_sub(PAGES_HELD + 1).and_then(|n| open.get_mut(n));
            above
                .into_iter()
                .flat_map(|level| &mut level.sides)
                .for_each(|side| side.entries.rest());
        }
    }
    Ok(())
}

/// The pages of a directory.
fn top(entry: &TreeEntry) -> Option<Top> {
    match entry.what {
        TreeWhat::Directory(top) => top,
        _ => None,
    }
}

fn change(
    reader: &mut TreeReader,
    before: Option<TreeEntry>,
    after: Option<TreeEntry>,
) -> Result<Option<Change>> {
    Ok(match (before, after) {
        (None, None) => None,
        (Some(before), None) => Some(Change::Removed(before)),
        (None, Some(after)) => Some(Change::Added(after)),
        (Some(before), Some(after))
            if !same_kind_and_content(reader, &before.what, &after.what)? =>
        {
            Some(Change::Content(before, after))
        }
        (Some(before), Some(after)) => {
            let same = TreeEntry { what: after.what.clone(), ..before.clone() } == after;
            (!same).then_some(Change::Told(before, after))
        }
    })
}

fn same_kind_and_content(
    reader: &mut TreeReader,
    one: &TreeWhat,
    other: &TreeWhat,
) -> Result<bool> {
    Ok(match (one, other) {
        (TreeWhat::Directory(_), TreeWhat::Directory(_)) => true,
        (TreeWhat::File(bytes, map), TreeWhat::File(of_other, in_other)) => {
            bytes == of_other && (map == in_other || same_content(reader, *bytes, [map, in_other])?)
        }
        (one, other) => one == other,
    })
}
