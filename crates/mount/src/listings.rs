//! Directories that are being listed. Users choose how many, and for how long.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use onefold_archive::SnapshotId;

use super::{inodes::Node, trees::Walk};

/// Directories that one user lists at one time: each takes memory.
const LISTINGS_MAX: usize = 1024;

/// Directories that are being listed, by their handles.
#[derive(Default)]
pub(crate) struct Listings {
    /// The user, and the listing, unless that is at work.
    all: HashMap<u64, (u32, Option<Listing>)>,
    of_users: HashMap<u32, usize>,
    last: u64,
    /// The names that were listed last, which others share as long as they are the same.
    names: Weak<AllNames>,
}

impl Listings {
    /// Makes room for one; false when the user has too many.
    pub(crate) fn open(&mut self, user: u32) -> bool {
        let count = self.of_users.entry(user).or_default();
        // Root may have any number.
        let has_room = *count < LISTINGS_MAX || user == 0;
        *count += usize::from(has_room);
        has_room
    }

    /// Adds the one that [`open`](Self::open) made room for; gives its handle.
    pub(crate) fn add(&mut self, user: u32, listing: Listing) -> u64 {
        self.last += 1;
        self.all.insert(self.last, (user, Some(listing)));
        self.last
    }

    /// Takes one to work on it.
    pub(crate) fn take(&mut self, handle: u64) -> Option<Listing> {
        self.all.get_mut(&handle)?.1.take()
    }

    /// Gives it back.
    pub(crate) fn put(&mut self, handle: u64, listing: Listing) {
        if let Some((_, place)) = self.all.get_mut(&handle) {
            *place = Some(listing);
        }
    }

    /// These names, as another listing has them if they are the same.
    pub(crate) fn shared(&mut self, names: AllNames) -> Arc<AllNames> {
        match self.names.upgrade().filter(|last| **last == names) {
            Some(last) => last,
            None => {
                let names = Arc::new(names);
                self.names = Arc::downgrade(&names);
                names
            }
        }
    }

    /// Forgets one.
    pub(crate) fn close(&mut self, handle: u64) {
        if let Some((user, _)) = self.all.remove(&handle) {
            self.closed(user);
        }
    }

    /// One that was opened is not listed any more.
    pub(crate) fn closed(&mut self, user: u32) {
        if let Some(count) = self.of_users.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.of_users.remove(&user);
            }
        }
    }
}

/// Names of sets or snapshots.
pub(crate) type AllNames = Vec<(String, Node)>;

/// A directory that is being listed.
pub(crate) enum Listing {
    /// Names of sets or snapshots, as they were when it was opened.
    Names(Arc<AllNames>),
    /// Entries of a snapshot.
    Entries(Box<Entries>),
}

/// The walk through the entries of a directory of a snapshot.
pub(crate) struct Entries {
    pub(crate) snapshot: SnapshotId,
    pub(crate) walk: Walk,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_12_directories_that_a_user_lists_have_a_limit_and_are_given_back() {
        let mut listings = Listings::default();
        let mut add =
            |user| listings.open(user).then(|| listings.add(user, Listing::Names(Arc::default())));
        let handles: Vec<u64> = (0..LISTINGS_MAX).map(|_| add(7).unwrap()).collect();
        assert!(add(7).is_none() && add(8).is_some() && add(0).is_some());
        listings.close(handles[0]);
        listings.close(handles[0]);
        assert!(listings.open(7) && !listings.open(7));
        listings.closed(7);
        handles[1..].iter().for_each(|handle| listings.close(*handle));
        assert_eq!(listings.of_users.get(&7), None);
    }
}
