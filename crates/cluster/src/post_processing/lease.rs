//! Leases on shards of the dirty list make it rare that two workers do the same work. Nothing else
//! depends on them.
//!
//! A worker leases its share of the shards with a list that is not empty, those that changed
//! longest ago first, and keeps them until their lists are empty. A lease ends by the store's
//! clock, and is renewed three times before.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use onefold_core::object::{Read, ReadPart, Refusal, Seen};

use crate::{dirty_list::shard_name, session::Session};

/// The lock of the worker that has a shard.
const LEASE: &str = "lease";

/// How often a lease is renewed before it would end.
const RENEWALS: u32 = 3;

/// The shards that a worker has, and when it took or renewed each.
#[derive(Default)]
pub(super) struct Leases {
    held: BTreeMap<u16, Duration>,
}

impl Leases {
    /// Finds the shards with work, gives back the others and those beyond our share, and leases
    /// more; returns our shards, in order.
    pub(super) fn acquire(
        &mut self,
        session: &Session,
        living: u64,
    ) -> Result<VecDeque<u16>, Refusal> {
        let found = shards(session)?;
        let share = (found.len() as u64).div_ceil(living.max(1)) as usize;
        let mut ours = VecDeque::new();
        for shard in found.iter().copied().filter(|shard| self.held.contains_key(shard)).take(share)
        {
            ours.push_back(shard);
        }
        let surplus: Vec<u16> =
            self.held.keys().copied().filter(|shard| !ours.contains(shard)).collect();
        surplus.into_iter().for_each(|shard| self.give_back(session, shard));
        for shard in found {
            if ours.len() < share && !ours.contains(&shard) && self.lock(session, shard)? {
                ours.push_back(shard);
            }
        }
        Ok(ours)
    }

    /// True while a shard is ours; the lease is renewed when it is time.
    pub(super) fn keep(&mut self, session: &Session, shard: u16) -> Result<bool, Refusal> {
        match self.held.get(&shard) {
            Some(since)
                if session.kernel().store().time()
                    < *since + session.kernel().settings().lease / RENEWALS =>
            {
                Ok(true)
            }
            Some(_) => self.lock(session, shard),
            None => Ok(false),
        }
    }

    /// Gives all back.
    pub(super) fn give_all_back(&mut self, session: &Session) {
        let held: Vec<u16> = self.held.keys().copied().collect();
        held.into_iter().for_each(|shard| self.give_back(session, shard));
    }

    fn lock(&mut self, session: &Session, shard: u16) -> Result<bool, Refusal> {
        // Before it is asked for: the store counts from later on.
        let now = session.kernel().store().time();
        match session.kernel().store().lock(
            &shard_name(shard),
            LEASE,
            &session.kernel().cookie(),
            Some(session.kernel().settings().lease),
        ) {
            Ok(()) => {
                self.held.insert(shard, now);
                Ok(true)
            }
            Err(Refusal::Busy | Refusal::Unknown) => {
                self.held.remove(&shard);
                Ok(false)
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn give_back(&mut self, session: &Session, shard: u16) {
        self.held.remove(&shard);
        // If unlocking fails, the lease ends by itself.
        let _ =
            session.kernel().store().unlock(&shard_name(shard), LEASE, &session.kernel().cookie());
    }
}

/// The shards that have something on their list: the one that changed longest ago first, and among
/// equal ones ours.
fn shards(session: &Session) -> Result<Vec<u16>, Refusal> {
    let count = session.kernel().format().shards;
    let own = (session.number() % u64::from(count)) as u16;
    let all: Vec<u16> = (own..count).chain(0..own).collect();
    let look = |shard: &u16| Read {
        object: shard_name(*shard),
        parts: vec![ReadPart::Page(Vec::new(), 1), ReadPart::Stat],
    };
    let answers = session.kernel().read_all(&all.iter().map(look).collect::<Vec<_>>());
    let mut found = Vec::new();
    for (shard, answer) in all.into_iter().zip(answers) {
        match answer {
            Ok(answer) if !answer.pairs(0).0.is_empty() => {
                let changed = if let Some(Seen::Stat { changed, .. }) = answer.seen.get(1) {
                    *changed
                } else {
                    Duration::ZERO
                };
                found.push((changed.as_secs(), shard));
            }
            Ok(_) | Err(Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    found.sort_by_key(|(changed, _)| *changed);
    Ok(found.into_iter().map(|(_, shard)| shard).collect())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use onefold_core::object::PoolKind;
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{Format, Settings, create};

    #[test]
    fn workers_share_the_shards_and_take_over_what_is_given_back() {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(
            &store,
            &Format { shards: 16, ..Format::new([1; 16], [2; 32], PoolKind::Replicated) },
        )
        .unwrap();
        let open =
            |name: &str| Session::open(Arc::new(store.session(name)), Settings::default()).unwrap();
        let (one, other) = (open("one"), open("other"));
        for n in 0..40 {
            one.put(&format!("p{n}"), &mut &b"something"[..]).unwrap();
        }
        let all: BTreeSet<u16> = shards(&one).unwrap().into_iter().collect();
        assert!(all.len() > 8);
        let (mut ours, mut theirs) = (Leases::default(), Leases::default());
        let first: BTreeSet<u16> = ours.acquire(&one, 2).unwrap().into_iter().collect();
        let second: BTreeSet<u16> = theirs.acquire(&other, 2).unwrap().into_iter().collect();
        assert_eq!((first.len(), first.len() + second.len()), (all.len().div_ceil(2), all.len()));
        assert!(first.is_disjoint(&second) && first.union(&second).eq(&all));
        // The shards stay ours in the next round, and no other worker gets them.
        assert!(ours.acquire(&one, 2).unwrap().into_iter().collect::<BTreeSet<u16>>() == first);
        assert_eq!(theirs.acquire(&other, 1).unwrap().len(), second.len());
        let lost = first.first().copied().unwrap();
        assert!(ours.keep(&one, lost).unwrap() && !theirs.keep(&other, lost).unwrap());
        // With three workers, the shards beyond our share are given back.
        assert_eq!(ours.acquire(&one, 3).unwrap().len(), all.len().div_ceil(3));
        ours.give_all_back(&one);
        assert_eq!(theirs.acquire(&other, 1).unwrap().len(), all.len());
        assert!(ours.acquire(&one, 1).unwrap().is_empty());
    }
}
