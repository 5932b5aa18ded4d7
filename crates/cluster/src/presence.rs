//! Sessions publish what they do in one object of the store, with a key for each. Servers publish
//! the load of their clients, by which workers keep their rate; workers publish that they are
//! alive.
//!
//! The published values are only advice. A session that stops publishing is presumed gone, and the
//! others remove its key. One that was only suspended publishes again.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed, time::Duration};

use onefold_core::{
    Result,
    object::{Change, Guard, ObjectName, Refusal, Write},
};

use crate::{format::key, kernel::Kernel, replies::failed, session::Session};

/// A session that published nothing for so long is presumed gone: leases last as long.
const SILENT: Duration = Duration::from_secs(30);

/// One that was never seen to publish is not counted after this: it may have died long ago.
const UNSEEN: Duration = Duration::from_secs(5);

/// The object in which sessions publish what they did.
const SERVERS: &str = "servers";

/// Counters of a session since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Client operations.
    pub(crate) operations: u64,
    /// Bytes that clients read and wrote.
    pub(crate) bytes: u64,
    /// True for a session that deduplicates.
    pub(crate) works: bool,
    /// How often the session published: an increasing number shows that it is alive.
    pub(crate) beat: u64,
    /// Operations whose reply was lost.
    pub(crate) unknown: u64,
}

impl Load {
    fn encode(self) -> Vec<u8> {
        let mut value = vec![u8::from(self.works)];
        value.extend(self.operations.to_le_bytes());
        [self.bytes, self.beat, self.unknown]
            .iter()
            .for_each(|number| value.extend(number.to_le_bytes()));
        value
    }

    fn decode(value: &[u8]) -> Option<Load> {
        let number = |at: usize| Some(u64::from_le_bytes(value.get(at..at + 8)?.try_into().ok()?));
        // Values of older sessions end here.
        let later = |at: usize| number(at).unwrap_or(0);
        Some(Load {
            operations: number(1)?,
            bytes: number(9)?,
            works: *value.first()? != 0,
            beat: later(17),
            unknown: later(25),
        })
    }
}

/// Most sessions whose values are looked at together.
const PUBLISHED_MAX: usize = 16_384;

/// The values that all sessions had published at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published(BTreeMap<Vec<u8>, Load>);

/// Servers and workers that publish, and what they did in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    /// Servers.
    pub servers: u64,
    /// Workers.
    pub workers: u64,
    /// Sessions that published nothing in that time.
    pub silent: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Bytes that clients read and wrote.
    pub bytes: u64,
    /// Operations whose reply was lost, since each session began: whether they were applied was
    /// looked up, or is before the next write to the same place.
    pub unknown: u64,
}

impl Published {
    /// True when no session publishes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The changes since `before`.
    #[must_use]
    pub fn since(&self, before: &Published) -> Sessions {
        let mut sessions = Sessions::default();
        for (session, load) in &self.0 {
            let then = before.0.get(session);
            let count = match then {
                Some(then) if then == load => &mut sessions.silent,
                _ if load.works => &mut sessions.workers,
                _ => &mut sessions.servers,
            };
            *count += 1;
            let then = then.copied().unwrap_or(*load);
            sessions.operations =
                sessions.operations.saturating_add(load.operations.saturating_sub(then.operations));
            sessions.bytes = sessions.bytes.saturating_add(load.bytes.saturating_sub(then.bytes));
            sessions.unknown = sessions.unknown.saturating_add(load.unknown);
        }
        sessions
    }
}

/// One session's observations of all others.
#[derive(Default)]
pub(crate) struct Presence {
    seen: BTreeMap<Vec<u8>, Other>,
}

#[derive(Clone, Copy)]
struct Other {
    load: Load,
    /// When this was seen first.
    since: Duration,
    /// True when its value changed since it was first seen.
    published: bool,
}

/// Changes since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Operations of clients, and their bytes.
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    /// Servers and workers that are alive.
    pub(crate) servers: u64,
    pub(crate) workers: u64,
    /// Values of sessions that are presumed gone.
    pub(crate) gone: Vec<(Vec<u8>, Load)>,
}

impl Presence {
    /// Compares all published values with those of the last look.
    pub(crate) fn look(&mut self, now: Duration, published: &Published) -> Growth {
        let mut growth = Growth::default();
        self.seen.retain(|session, _| published.0.contains_key(session));
        for (session, load) in &published.0 {
            let other = self.seen.entry(session.clone()).or_insert(Other {
                load: *load,
                since: now,
                published: false,
            });
            growth.operations = growth
                .operations
                .saturating_add(load.operations.saturating_sub(other.load.operations));
            growth.bytes = growth.bytes.saturating_add(load.bytes.saturating_sub(other.load.bytes));
            if *load != other.load {
                *other = Other { load: *load, since: now, published: true };
            }
            let quiet = now.saturating_sub(other.since);
            if quiet < if other.published { SILENT } else { UNSEEN } {
                *(if load.works { &mut growth.workers } else { &mut growth.servers }) += 1;
            }
            if quiet >= SILENT {
                growth.gone.push((session.clone(), *load));
            }
        }
        growth
    }

    /// Reads all published values, and removes those of sessions that are presumed gone.
    pub(crate) fn look_at(&mut self, kernel: &Kernel, now: Duration) -> Result<Growth> {
        let growth = self.look(now, &published(kernel)?);
        for (session, load) in &growth.gone {
            // Fails if the session publishes right now; the next look tries again.
            let _ = publish_as(
                kernel,
                vec![Guard::Omap(session.clone(), load.encode())],
                Change::DropOmap(vec![session.clone()]),
            );
        }
        Ok(growth)
    }
}

/// Values that all sessions have published: of more than [`PUBLISHED_MAX`], those of the oldest. As
/// sessions that are silent are removed, the others come with time.
fn published(kernel: &Kernel) -> Result<Published> {
    let (keys, _) = kernel
        .first_keys(&ObjectName::metadata(SERVERS), Vec::new(), PUBLISHED_MAX)
        .map_err(|refusal| failed("the load can't be read", refusal))?;
    Ok(Published(
        keys.into_iter().filter_map(|(key, value)| Some((key, Load::decode(&value)?))).collect(),
    ))
}

fn publish_as(kernel: &Kernel, guards: Vec<Guard>, change: Change) -> Result<(), Refusal> {
    kernel
        .write_one(&Write { object: ObjectName::metadata(SERVERS), guards, changes: vec![change] })
        .map(|_| ())
}

impl Session {
    /// Values that all sessions have published.
    ///
    /// # Errors
    /// The store's.
    pub fn published(&self) -> Result<Published> {
        published(self.kernel())
    }

    /// Publishes the counters of this session; nothing, when it only reads.
    ///
    /// # Errors
    /// The store's.
    pub fn publish(&self, works: bool) -> Result<(), Refusal> {
        if self.looks_only() {
            return Ok(());
        }
        let counts = &self.counts();
        let load = Load {
            operations: counts.foreground.load(Relaxed),
            bytes: counts.foreground_bytes.load(Relaxed),
            works,
            beat: self.next_beat(),
            unknown: counts.unknown.load(Relaxed),
        };
        publish_as(
            self.kernel(),
            Vec::new(),
            Change::SetOmap(vec![(key::numbered(b's', self.number()), load.encode())]),
        )
    }

    /// Removes the published value of this session.
    ///
    /// # Errors
    /// The store's.
    pub fn unpublish(&self) -> Result<(), Refusal> {
        if self.looks_only() {
            return Ok(());
        }
        publish_as(
            self.kernel(),
            Vec::new(),
            Change::DropOmap(vec![key::numbered(b's', self.number())]),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onefold_core::object::PoolKind;
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{Format, Settings, create};

    #[test]
    fn rule_09_figures_that_somebody_else_published_add_up_to_no_panic() {
        let most = Load {
            operations: u64::MAX,
            bytes: u64::MAX,
            unknown: u64::MAX,
            beat: 1,
            works: false,
        };
        let all = |load: Load| Published((0..2).map(|n| (vec![n], load)).collect());
        let sessions = all(most).since(&all(Load::default()));
        assert_eq!((sessions.operations, sessions.unknown), (u64::MAX, u64::MAX));
        let mut presence = Presence::default();
        presence.look(Duration::ZERO, &all(Load::default()));
        assert_eq!(presence.look(Duration::ZERO, &all(most)).bytes, u64::MAX);
    }

    #[test]
    fn the_dead_lose_their_share_and_the_living_keep_it() {
        let (mut presence, mut shares, mut gone) = (Presence::default(), Vec::new(), Vec::new());
        for second in 0..120 {
            // A server; one worker publishes all the time, one until a minute is over, one never
            // did since we began.
            let beats = [(false, second), (true, second), (true, second.min(60)), (true, 7)];
            let load =
                |(n, (works, beat))| (vec![n as u8], Load { works, beat, ..Load::default() });
            let growth = presence.look(
                Duration::from_secs(second),
                &Published(beats.into_iter().enumerate().map(load).collect()),
            );
            assert_eq!(growth.servers, 1);
            shares.push(growth.workers);
            gone.push(growth.gone.len());
        }
        let at = |second: usize| (shares[second], gone[second]);
        let expected = [(3, 0), (3, 0), (2, 0), (2, 0), (2, 1), (2, 1), (2, 1), (1, 2), (1, 2)];
        assert_eq!([1, 4, 5, 29, 30, 60, 89, 90, 119].map(at), expected);
    }

    #[test]
    fn what_the_dead_published_is_removed_and_comes_back_when_they_wake() {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let open =
            |name: &str| Session::open(Arc::new(store.session(name)), Settings::default()).unwrap();
        let (living, sleeper) = (open("living"), open("sleeper"));
        let mut presence = Presence::default();
        let mut look = |second: u64| {
            living.publish(false).unwrap();
            presence.look_at(living.kernel(), Duration::from_secs(second)).unwrap()
        };
        sleeper.publish(true).unwrap();
        let before = living.published().unwrap();
        assert_eq!((look(0).workers, look(4).workers, look(29).workers), (1, 1, 0));
        assert_eq!(
            living.published().unwrap().since(&before),
            Sessions { servers: 1, silent: 1, ..Sessions::default() }
        );
        assert_eq!(look(30).gone.len(), 1);
        assert_eq!(
            living.published().unwrap().since(&before),
            Sessions { servers: 1, ..Sessions::default() }
        );
        sleeper.publish(true).unwrap();
        assert_eq!((look(31).workers, look(32).gone.len()), (1, 0));
    }

    #[test]
    fn a_load_comes_back_also_an_older_one() {
        let load = Load { operations: 1, bytes: 2, works: true, beat: 3, unknown: 4 };
        let value = load.encode();
        assert_eq!(Load::decode(&value), Some(load));
        assert_eq!(Load::decode(&value[..17]), Some(Load { beat: 0, unknown: 0, ..load }));
        assert_eq!(Load::decode(&value[..16]), None);
    }
}
