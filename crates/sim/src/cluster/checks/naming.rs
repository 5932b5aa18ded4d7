//! The checker of names. After every operation that changes a shard of names, it reads all names as
//! the format says, without the engine.
//!
//! *One name:* a volume or object that has a name has exactly one. The name goes only by a deletion
//! or a rename that an actor asked for, and that was not refused. A deleted volume or object never
//! has a name again. A rename that was acknowledged was done. A lookup finds what the name stood
//! for at some moment of the lookup.

use std::collections::{BTreeMap, BTreeSet};

use onefold_cluster::format::key;
use onefold_core::object::{Change, Write};
use onefold_testbed::Objects;

use crate::checker::{Checker, Failure};

/// Bytes of an arrival or departure in front of the other name.
const HEAD: usize = 33;

/// A request of an actor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asked {
    /// Give the volume or object of the first name the second one.
    Rename(String, String),
    /// Delete or replace the volume or object of this name.
    Delete(String),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// The store applied nothing, and never will.
    Refused,
    /// The store may have applied the request, or may still do so.
    Unknown,
    /// Perhaps nothing had to be done.
    Moot,
}

/// Equal requests.
#[derive(Default)]
struct Requests {
    /// Requests without an answer.
    open: u64,
    /// Requests whose end is not known.
    unknown: u64,
    /// Times that the change may still be done.
    left: u64,
    /// Times that the change was done.
    done: u64,
}

/// A request, how often an equal one was done before, and the number of changes when it came.
pub(crate) struct Ticket {
    asked: Asked,
    before: u64,
    then: u64,
}

/// What a name stood for, from which change on: the number of a volume or object, and whether it is
/// a volume; `None` for nothing.
type Times = Vec<(u64, Option<(u64, bool)>)>;

/// All names, what each stood for in the past, and the requests of actors.
#[derive(Default)]
pub(crate) struct Naming {
    /// True where some actor renames: the checker reads the names.
    watches: bool,
    /// Changes so far.
    now: u64,
    /// The name of each volume and object, by its number, and whether it is a volume.
    named: BTreeMap<u64, (String, bool)>,
    times: BTreeMap<String, Times>,
    deleted: BTreeSet<u64>,
    requests: BTreeMap<Asked, Requests>,
    /// The token of the object that each actor puts now.
    putting: BTreeMap<usize, u32>,
    /// Tokens of the objects that were put, by the numbers of the objects.
    tokens: BTreeMap<u64, u32>,
}

fn id_of(value: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(value.get(1..9)?.try_into().ok()?))
}

/// True when a name with this value stands for a volume or object, by its value, or by an arrival
/// and its departure.
pub(crate) fn has(objects: &Objects, name: &[u8], value: &[u8]) -> bool {
    match value.first() {
        Some(1 | 2) => true,
        Some(3 | 4) => {
            let departure = [&value[..HEAD.min(value.len())], name].concat();
            let key = id_of(value).map(|id| key::numbered(b'z', id)).unwrap_or_default();
            shards(objects).any(|shard| shard.get(&key) == Some(&departure))
        }
        _ => false,
    }
}

type Shard = BTreeMap<Vec<u8>, Vec<u8>>;

fn shards(objects: &Objects) -> impl Iterator<Item = &Shard> {
    objects.all().filter(|(name, _)| name.name.starts_with("n.")).map(|(_, object)| &object.omap)
}

/// A finding when a key or value of an unfinished rename exists; for moments when no actor works.
pub(crate) fn half_done(objects: &Objects) -> Option<Failure> {
    let half = |(key, value): (&Vec<u8>, &Vec<u8>)| {
        matches!(key.first(), Some(b'y' | b'z'))
            || key.first() == Some(&b'n') && !matches!(value.first(), Some(1 | 2))
    };
    let (key, _) = shards(objects).flatten().find(|pair| half(*pair))?;
    let message = format!("{:?} is left of a rename", String::from_utf8_lossy(key));
    Some(Failure::new(Checker::Renamed, message))
}

impl Naming {
    pub(crate) fn new(watches: bool) -> Naming {
        Naming { watches, ..Naming::default() }
    }

    /// An actor begins to put an object.
    pub(crate) fn puts(&mut self, actor: usize, token: u32) {
        self.putting.insert(actor, token);
    }

    /// Reads and checks the names after the store applied an operation.
    pub(crate) fn after(&mut self, objects: &Objects, actor: usize, op: &Write) -> Option<Failure> {
        if !self.watches || !op.object.name.starts_with("n.") {
            return None;
        }
        self.record_put(actor, op);
        let mut named: BTreeMap<u64, (String, bool)> = BTreeMap::new();
        for (key, value) in shards(objects).flatten() {
            let Some(name) = key.strip_prefix(b"n") else { continue };
            let (Some(id), true) = (id_of(value), has(objects, name, value)) else { continue };
            let name = String::from_utf8_lossy(name).into_owned();
            let volume = matches!(value.first(), Some(1 | 3));
            if let Some((other, _)) = named.insert(id, (name.clone(), volume)) {
                let message = format!("{id} is both {other:?} and {name:?}");
                return Some(Failure::new(Checker::OneName, message));
            }
        }
        if named == self.named {
            return None;
        }
        self.now += 1;
        let before = std::mem::replace(&mut self.named, named.clone());
        let gone = before.iter().filter(|(id, _)| !named.contains_key(*id));
        for (id, (name, volume)) in gone {
            let recorded = shards(objects).any(|shard| {
                shard.get(&key::numbered(b'x', *id)).is_some_and(|record| record.len() == 25)
            });
            if !recorded {
                return Some(Failure::new(
                    Checker::OneName,
                    format!("{id}, {name:?}, has no name"),
                ));
            }
            self.deleted.insert(*id);
            self.record(name, None, *volume);
            if let Some(finding) = self.was_done(&Asked::Delete(name.clone())) {
                return Some(finding);
            }
        }
        // The same operation may have given the name that was left to another volume or object.
        for (id, (name, volume)) in &before {
            if let Some((now, _)) = named.get(id).filter(|(now, _)| now != name) {
                self.record(name, None, *volume);
                if let Some(finding) = self.was_done(&Asked::Rename(name.clone(), now.clone())) {
                    return Some(finding);
                }
            }
        }
        for (id, (name, volume)) in
            named.iter().filter(|(id, is)| before.get(*id).is_none_or(|was| was != *is))
        {
            if self.deleted.contains(id) {
                let message = format!("{id} was deleted, and is {name:?} again");
                return Some(Failure::new(Checker::OneName, message));
            }
            self.record(name, Some(*id), *volume);
        }
        None
    }

    /// Records the number of an object that is put.
    fn record_put(&mut self, actor: usize, op: &Write) {
        let Some(token) = self.putting.get(&actor) else { return };
        for change in &op.changes {
            let Change::SetOmap(pairs) = change else { continue };
            for (key, value) in pairs.iter().filter(|(_, value)| value.len() > 25) {
                if let Some(id) = key::parse_numbered(b'x', key).filter(|_| value[0] == 2) {
                    self.tokens.insert(id, *token);
                }
            }
        }
    }

    /// Records that a name stands for another volume or object, or for nothing.
    fn record(&mut self, name: &str, id: Option<u64>, volume: bool) {
        let times = self.times.entry(name.into()).or_default();
        // One operation may remove a name and give it to another volume or object: one change.
        times.retain(|(at, _)| *at < self.now);
        times.push((self.now, id.map(|id| (id, volume))));
    }

    /// A change was done: some actor must have asked for it.
    fn was_done(&mut self, asked: &Asked) -> Option<Failure> {
        let requests = self.requests.entry(asked.clone()).or_default();
        requests.done += 1;
        if requests.left == 0 {
            return Some(Failure::new(
                Checker::Unasked,
                format!("{asked:?} was done, and nobody asked"),
            ));
        }
        requests.left -= 1;
        if requests.open == 0 {
            requests.unknown -= 1;
        }
        None
    }

    /// An actor sends a request.
    pub(crate) fn ask(&mut self, asked: Asked) -> Ticket {
        let requests = self.requests.entry(asked.clone()).or_default();
        requests.open += 1;
        requests.left += 1;
        Ticket { asked, before: requests.done, then: self.now }
    }

    /// The answer to a request: a finding when it says what is not so.
    pub(crate) fn answer(&mut self, ticket: &Ticket, end: End) -> Option<Failure> {
        let deleted = self.is_deleted(ticket);
        let requests = self.requests.entry(ticket.asked.clone()).or_default();
        requests.open -= 1;
        let wrong = match end {
            End::Done => requests.done == ticket.before && !deleted,
            End::Refused => requests.left == 0,
            End::Unknown | End::Moot => false,
        };
        match end {
            End::Unknown => requests.unknown += 1,
            End::Refused => requests.left = requests.left.saturating_sub(1),
            End::Done | End::Moot => {}
        }
        requests.left = requests.left.min(requests.open + requests.unknown);
        (wrong && self.watches).then(|| {
            Failure::new(Checker::Answer, format!("{:?} was {end:?}, and was not", ticket.asked))
        })
    }

    /// True when the volume or object that was to be deleted was, perhaps under another name.
    fn is_deleted(&self, ticket: &Ticket) -> bool {
        let Asked::Delete(name) = &ticket.asked else { return false };
        self.since(name, ticket.then).iter().flatten().any(|(id, _)| self.deleted.contains(id))
    }

    /// The number of changes of names so far.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// What a name stood for at any moment since change `then`; `None` for nothing.
    pub(crate) fn since(&self, name: &str, then: u64) -> BTreeSet<Option<(u64, bool)>> {
        let times = self.times.get(name).map_or(&[][..], Vec::as_slice);
        let first = times.iter().rev().find(|(at, _)| *at <= then).and_then(|(_, what)| *what);
        let later = times.iter().filter(|(at, _)| *at > then).map(|(_, what)| *what);
        later.chain([first]).collect()
    }

    /// The tokens of the objects that a name stood for at any moment since change `then`.
    pub(crate) fn tokens_since(&self, name: &str, then: u64) -> BTreeSet<Option<u32>> {
        let token = |what: Option<(u64, bool)>| {
            what.filter(|(_, volume)| !volume).and_then(|(id, _)| self.tokens.get(&id).copied())
        };
        self.since(name, then).into_iter().map(token).collect()
    }

    /// Checks a listing that began at change `then`. Each volume and object that had a name all the
    /// time must be in it, once, and under a name that it had.
    pub(crate) fn listed(&self, names: &[(String, u64)], then: u64) -> Option<Failure> {
        let twice = names.iter().map(|(_, id)| id).collect::<BTreeSet<_>>().len() < names.len();
        let wrong = names.iter().find(|(name, id)| {
            !self.since(name, then).iter().flatten().any(|(named, _)| named == id)
        });
        // A volume or object that was made or deleted meanwhile may be missing.
        let made = |id: &u64| {
            let of = |times: &Times| {
                times.iter().find(|(_, what)| what.is_some_and(|it| it.0 == *id)).map(|(at, _)| *at)
            };
            self.times.values().filter_map(of).min().is_some_and(|first| first <= then)
        };
        let missing = self
            .named
            .keys()
            .filter(|id| made(id))
            .find(|id| names.iter().all(|(_, listed)| listed != *id));
        if !twice && wrong.is_none() && missing.is_none() {
            return None;
        }
        let named = missing.map(|id| (id, &self.named[id]));
        let message = format!("twice {twice}, wrong {wrong:?}, missing {named:?} of {names:?}");
        Some(Failure::new(Checker::Listing, message))
    }
}
