//! Numbers of what the kernel knows.

use std::collections::HashMap;

use onefold_archive::SnapshotId;

use super::trees::Place;

/// The number of the root.
pub(crate) const ROOT: u64 = 1;

/// What a number stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// The directory of all sets.
    Sets,
    /// The directory of a set's snapshots.
    Set(String),
    /// The link to the newest snapshot of a set, as long as that is this one: the kernel keeps what a
    /// number links to.
    Latest(String, SnapshotId),
    /// The root directory of a snapshot.
    Snapshot(SnapshotId),
    /// An entry of a snapshot.
    Entry(SnapshotId, Place),
}

/// By what a number is found again. A directory has one for each path, since the kernel moves a
/// directory that has two; a file one for each page that has it, and a file with several names one
/// in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Named(Node),
    Directory(u64, Place),
    File(Place),
    Link(SnapshotId, u64),
}

/// The kind of an entry, as far as numbers go.
#[derive(Clone, Copy)]
pub(crate) enum Is {
    Directory,
    File,
    /// One of several names of a file, by its number in the snapshot.
    Link(u64),
}

struct Inode {
    node: Node,
    key: Key,
    /// It is an entry without extended attributes.
    bare: bool,
    /// How often the kernel was told of it, and has not forgotten it.
    lookups: u64,
}

/// The numbers that are in use.
pub(crate) struct Inodes {
    all: HashMap<u64, Inode>,
    by_key: HashMap<Key, u64>,
    next: u64,
}

impl Inodes {
    pub(crate) fn new(root: Node) -> Inodes {
        let key = Key::Named(root.clone());
        let inode = Inode { node: root, key: key.clone(), bare: false, lookups: 1 };
        Inodes {
            all: HashMap::from([(ROOT, inode)]),
            by_key: HashMap::from([(key, ROOT)]),
            next: ROOT + 1,
        }
    }

    pub(crate) fn node(&self, number: u64) -> Option<Node> {
        self.all.get(&number).map(|inode| inode.node.clone())
    }

    /// True for an entry that was told to have no extended attributes.
    pub(crate) fn is_bare(&self, number: u64) -> bool {
        self.all.get(&number).is_some_and(|inode| inode.bare)
    }

    /// The number of a set, of its link, or of a snapshot; the kernel is told of it.
    pub(crate) fn tell(&mut self, node: Node) -> u64 {
        self.number(Key::Named(node.clone()), node, false)
    }

    /// The number of an entry of the directory `above`, which has no extended attributes when it is
    /// `bare`; the kernel is told of it.
    pub(crate) fn tell_entry(
        &mut self,
        above: u64,
        snapshot: SnapshotId,
        place: Place,
        is: Is,
        bare: bool,
    ) -> u64 {
        let key = match is {
            Is::Directory => Key::Directory(above, place),
            Is::File => Key::File(place),
            Is::Link(link) => Key::Link(snapshot, link),
        };
        self.number(key, Node::Entry(snapshot, place), bare)
    }

    fn number(&mut self, key: Key, node: Node, bare: bool) -> u64 {
        if let Some(number) = self.by_key.get(&key)
            && let Some(inode) = self.all.get_mut(number)
        {
            inode.lookups += 1;
            return *number;
        }
        let number = self.next;
        self.next += 1;
        self.by_key.insert(key.clone(), number);
        self.all.insert(number, Inode { node, key, bare, lookups: 1 });
        number
    }

    /// The kernel forgets that it was told so often.
    pub(crate) fn forget(&mut self, number: u64, lookups: u64) {
        let Some(inode) = self.all.get_mut(&number) else { return };
        inode.lookups = inode.lookups.saturating_sub(lookups);
        if inode.lookups == 0
            && number != ROOT
            && let Some(inode) = self.all.remove(&number)
        {
            self.by_key.remove(&inode.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_used_again() {
        let mut inodes = Inodes::new(Node::Sets);
        let one = inodes.tell(Node::Set("a".into()));
        assert_eq!(inodes.tell(Node::Set("a".into())), one);
        inodes.forget(one, 1);
        assert_eq!(inodes.node(one), Some(Node::Set("a".into())));
        inodes.forget(one, 1);
        assert_eq!(inodes.node(one), None);
        assert!(inodes.tell(Node::Set("a".into())) > one);
        inodes.forget(ROOT, 5);
        assert_eq!(inodes.node(ROOT), Some(Node::Sets), "the root stays");
    }
}
