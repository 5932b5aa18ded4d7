//! A segment file; and which segments hold nothing and may be dropped, which is known without a look
//! at all of them.

use std::collections::BTreeMap;

use super::{
    persistent::Map,
    roles::{MANAGE, Roles},
};
use crate::format::{class::Class, record::Owner};

/// A segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The part of the program that appends to it.
    pub owner: Owner,
    /// Behind the last container that was listed in it.
    pub end: u64,
    /// Bytes of containers, and of places that are to be freed.
    pub used: u64,
    /// The class of its containers.
    pub class: Class,
    /// Its columns of data.
    pub data: u8,
}

/// Segments in which nothing is used.
#[derive(Clone, Debug, Default)]
pub(super) struct EmptySegments {
    empty: Map<u32, ()>,
    /// The newest segment of each owner and class.
    newest: BTreeMap<(Owner, Class), u32>,
}

impl EmptySegments {
    /// Those among all segments.
    pub(super) fn among(segments: &Map<u32, Segment>) -> EmptySegments {
        let mut among = EmptySegments::default();
        for (&n, segment) in segments {
            if segment.used == 0 {
                among.empty.insert(n, ());
            }
            among.newest.insert((segment.owner, segment.class), n);
        }
        among
    }

    /// A segment is new.
    pub(super) fn made(&mut self, n: u32, owner: Owner, class: Class) {
        self.empty.insert(n, ());
        let newest = self.newest.entry((owner, class)).or_default();
        *newest = n.max(*newest);
    }

    /// So many bytes of a segment are used now.
    pub(super) fn uses(&mut self, n: u32, used: u64) {
        match used {
            0 => drop(self.empty.insert(n, ())),
            _ => drop(self.empty.remove(&n)),
        }
    }

    /// Takes out the segments that hold nothing, and to which nobody appends any more. Where keys have roles, each
    /// may be about to list containers in the newest of its own, whatever segments others took since.
    pub(super) fn take_done(
        &mut self,
        segments: &Map<u32, Segment>,
        roles: Option<&Roles>,
    ) -> Vec<u32> {
        let mut newest_of_keys: BTreeMap<(u32, Owner, Class), u32> = BTreeMap::new();
        if let Some(roles) = roles {
            newest_of_keys.extend(self.empty.keys().filter_map(|n| {
                let (key, segment) = (roles.owner_of_segment(*n), segments.get(n)?);
                let counts = key == MANAGE || roles.key(key).is_some();
                counts.then_some(((key, segment.owner, segment.class), *n))
            }));
        }
        let is_newest = |n: u32, segment: &Segment| {
            self.newest.get(&(segment.owner, segment.class)) == Some(&n)
                || newest_of_keys.values().any(|newest| *newest == n)
        };
        let empty = self.empty.keys().copied();
        let done: Vec<u32> = empty
            .filter(|n| segments.get(n).is_none_or(|segment| !is_newest(*n, segment)))
            .collect();
        for n in &done {
            self.empty.remove(n);
        }
        done
    }
}
