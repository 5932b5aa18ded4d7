//! Renaming: a volume or object arrives at its new name, and then leaves the old one. The two names
//! may lie in two shards, and no operation changes two shards.
//!
//! | step | shard of | what |
//! |---|---|---|
//! | arrive | the new name | the name was free, and gets the *arrival*: value and old name |
//! | leave | the old name | the name had the old value, and is free now: the *departure* says so |
//! | complete | the new name | the arrival becomes the value |
//! | forget | the old name | the departure is removed |
//!
//! The second step is the rename: until then the old name stands for the volume or object, and from
//! then on the new one does, by its arrival and the departure. A session that may write and meets
//! an arrival does the next step. A session that only reads looks for the departure. An arrival was
//! *overtaken* when it has no departure, and the old name has another value: another session
//! deleted, resized or renamed the volume or object. The session that finds this out withdraws the
//! arrival.
//!
//! *No step is applied twice:* each compares the value that it replaces. Values never come back,
//! since each rename counts in them, and so neither do arrivals and departures. The first step
//! finds a free name, and an absent value does come back. So that step also compares how many steps
//! of renames the shard counted, and counts itself.
//!
//! When both names are in one shard, one operation does all steps.

use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, ObjectName, Refusal, Write},
};

use super::shard::{
    STEPS, arriving_key, left_key, name_key, name_value, one_more, shard_of, valid, value_of,
    values,
};
use crate::{
    format::{
        catalogue::{Named, What},
        moving::Moving,
    },
    kernel::{Fate, Kernel, Operation, Outcome},
    replies::failed,
    rules::Rule,
};

/// Most decisions about one step, or looks at one name; after them the session reports an error.
const DECISIONS: u32 = 100;

/// Most beginnings of a rename; each after the first follows another session's change of a name.
const ROUNDS: u32 = 16;

/// How far a rename has come whose arrival a session has met.
enum Stage {
    /// The old name still has its value. Contains how many steps its shard counted.
    Waiting(Vec<u8>),
    /// The old name was left.
    Left,
    /// The old name has another value, and was not left for this new name. The rename will never
    /// happen.
    Overtaken,
    /// The new name has another value by now.
    Changed(Option<Vec<u8>>),
}

/// The effect of a step.
enum Advance {
    /// The old name was left.
    Left,
    /// All steps are done.
    Arrived,
    /// The arrival was withdrawn.
    Withdrawn,
    /// The operation found another value: another session was faster, or an earlier copy of the
    /// operation was applied and its reply lost.
    Again,
    /// The new name has another value by now.
    Changed(Option<Vec<u8>>),
}

/// The first step of a rename, decided from the values of both names.
struct Arrival<'a> {
    kernel: &'a Kernel,
    from: &'a str,
    to: &'a str,
    /// The value of the old name.
    old: Named,
    moving: Moving,
    /// The count of steps that the last arrival compares; `None` while none was sent.
    sent: Option<Vec<u8>>,
    /// The write that was sent last only counts a step, so that copies of arrivals do nothing.
    refused: bool,
    /// The old name has another value, and this rename may be the reason.
    unsure: bool,
}

/// The values of both names.
struct SeenNames {
    /// The shard of the new name exists.
    exists: bool,
    steps: Vec<u8>,
    new: Option<Vec<u8>>,
    old: Option<Vec<u8>>,
}

impl<'a> Arrival<'a> {
    fn new(kernel: &'a Kernel, from: &'a str, to: &'a str, old: Named) -> Result<Arrival<'a>> {
        let moving = Moving { named: old.counted()?, other: from.to_owned() };
        Ok(Arrival { kernel, from, to, old, moving, sent: None, refused: false, unsure: false })
    }

    fn shard(&self) -> ObjectName {
        shard_of(self.kernel, self.to)
    }

    /// True when both names are in one shard.
    fn is_whole(&self) -> bool {
        self.shard() == shard_of(self.kernel, self.from)
    }

    /// True while the old name has the value that is renamed. An arrival that was applied stays
    /// as long.
    fn is_there(&self, seen: &SeenNames) -> bool {
        seen.old == Some(self.old.encode())
    }

    /// True when the store had applied no copy of an arrival when both names were read.
    fn is_unapplied(&self, seen: &SeenNames) -> bool {
        self.sent.as_ref().is_none_or(|steps| *steps == seen.steps)
    }

    fn counted(&self, seen: &SeenNames) -> (Vec<u8>, Vec<u8>) {
        (STEPS.to_vec(), one_more(&seen.steps))
    }

    /// Only counts a step, so that the store no longer applies an arrival that was sent before.
    fn refusal(&mut self, seen: &SeenNames) -> Write {
        self.refused = true;
        Write {
            object: self.shard(),
            guards: vec![Guard::Exists, Guard::Omap(STEPS.to_vec(), seen.steps.clone())],
            changes: vec![Change::SetOmap(vec![self.counted(seen)])],
        }
    }

    fn arrival(&mut self, seen: &SeenNames) -> Write {
        (self.refused, self.sent) = (false, Some(seen.steps.clone()));
        let mut guards = vec![if seen.exists { Guard::Exists } else { Guard::Absent }];
        if seen.exists && self.kernel.keeps(Rule::NewNameCompared) {
            guards.push(Guard::Omap(name_key(self.to), Vec::new()));
        }
        if seen.exists && self.kernel.keeps(Rule::RenameStepsCompared) {
            guards.push(Guard::Omap(STEPS.to_vec(), seen.steps.clone()));
        }
        let mut pairs = vec![self.counted(seen)];
        let mut changes = Vec::new();
        if self.is_whole() {
            guards.push(Guard::Omap(name_key(self.from), self.old.encode()));
            pairs.push((name_key(self.to), self.moving.named.encode()));
            changes.push(Change::DropOmap(vec![name_key(self.from)]));
        } else {
            pairs.push((name_key(self.to), self.moving.encode()));
            pairs.push((arriving_key(self.to), vec![1]));
        }
        changes.push(Change::SetOmap(pairs));
        Write { object: self.shard(), guards, changes }
    }
}

impl Operation<SeenNames> for Arrival<'_> {
    fn decisions(&self) -> u32 {
        DECISIONS
    }

    /// Reads the new name first. An arrival stays as long as the old name has its value. So where
    /// the old name then still has it, no arrival had been applied that was not seen. Where it has
    /// not, an arrival may have been applied between the two, and the steps are read again.
    fn look(&mut self) -> Result<SeenNames, Refusal> {
        let (to, from) = (name_key(self.to), name_key(self.from));
        let keys = vec![STEPS.to_vec(), to.clone(), from.clone()];
        let pairs = values(self.kernel, &self.shard(), keys)?;
        let (exists, pairs) = (pairs.is_some(), pairs.unwrap_or_default());
        let old = if self.is_whole() {
            value_of(&pairs, &from)
        } else {
            name_value(self.kernel, self.from)?
        };
        let new = value_of(&pairs, &to);
        let mut seen =
            SeenNames { exists, steps: value_of(&pairs, STEPS).unwrap_or_default(), new, old };
        if !self.is_whole() && !self.is_there(&seen) && self.sent.is_some() {
            let again = values(self.kernel, &self.shard(), vec![STEPS.to_vec()])?;
            seen.steps = value_of(&again.unwrap_or_default(), STEPS).unwrap_or_default();
        }
        Ok(seen)
    }

    fn decide(&mut self, seen: &SeenNames) -> Result<Option<Write>, Refusal> {
        if !self.is_there(seen) {
            self.unsure = !self.is_unapplied(seen);
            return Ok(None);
        }
        if seen.new.is_none() || !self.kernel.keeps(Rule::NewNameCompared) {
            return Ok(Some(self.arrival(seen)));
        }
        // The new name is in use, and the caller is told so. When the name is free again, a late
        // copy must do nothing.
        let copies = self.sent.is_some() && self.is_unapplied(seen);
        Ok(copies.then(|| self.refusal(seen)))
    }

    fn resolve(&self, now: &SeenNames) -> Fate {
        let arrived = [self.moving.encode(), self.moving.named.encode()];
        if now.new.as_ref().is_some_and(|new| arrived.contains(new)) {
            Fate::Applied
        } else if self.is_there(now) && self.is_unapplied(now) && now.new.is_none() {
            Fate::Unchanged
        } else {
            Fate::Overtaken
        }
    }
}

/// Renames of a store.
pub(super) struct Renames<'k> {
    kernel: &'k Kernel,
}

impl<'k> Renames<'k> {
    pub(super) fn of(kernel: &'k Kernel) -> Renames<'k> {
        Renames { kernel }
    }

    /// Finds out what a name with this value stands for, and changes nothing.
    pub(super) fn resolve(
        &self,
        name: &str,
        mut value: Option<Vec<u8>>,
    ) -> Result<Option<Named>, Refusal> {
        for _ in 0..DECISIONS {
            let Some(bytes) = value else { return Ok(None) };
            let Some(arrival) = moving(&bytes)? else { return named(&bytes).map(Some) };
            if !self.kernel.keeps(Rule::ArrivalNeedsDeparture) {
                return Ok(Some(arrival.named));
            }
            value = match self.stage(name, &arrival)? {
                Stage::Left => return Ok(Some(arrival.named)),
                Stage::Waiting(_) | Stage::Overtaken => return Ok(None),
                Stage::Changed(now) => now,
            };
        }
        Err(Refusal::Busy)
    }

    /// Finishes a rename to this name, and returns what the name stands for then.
    pub(super) fn finish(&self, name: &str) -> Result<Option<Named>, Refusal> {
        for _ in 0..DECISIONS {
            let Some(value) = name_value(self.kernel, name)? else { return Ok(None) };
            let Some(arrival) = moving(&value)? else { return named(&value).map(Some) };
            self.advance(name, &arrival)?;
        }
        Err(Refusal::Busy)
    }

    /// Gives a volume or an object another name.
    ///
    /// # Errors
    /// `NotFound`: there is no such name. `Exists`: the new name is taken. `InvalidInput`: it is
    /// no name. `Busy`: another session changed the names meanwhile; the rename may be done or not.
    pub(super) fn rename(&self, what: What, from: &str, to: &str) -> Result<()> {
        valid(to)?;
        let kind = if what == What::Volume { "volume" } else { "stream" };
        let cannot = |refusal| {
            failed(format_args!("{kind} '{}' can't be renamed", from.escape_debug()), refusal)
        };
        for _ in 0..ROUNDS {
            let old = self.finish(from).map_err(cannot)?;
            let Some(old) = old.filter(|named| named.what == what) else {
                return Err(Error::new(
                    Kind::NotFound,
                    format!("there is no {kind} '{}'", from.escape_debug()),
                ));
            };
            if from == to || self.finish(to).map_err(cannot)?.is_some() {
                return Err(Error::new(
                    Kind::Exists,
                    format!("'{}' is there already", to.escape_debug()),
                ));
            }
            self.kernel.record_renames().map_err(cannot)?;
            let mut arrival = Arrival::new(self.kernel, from, to, old)?;
            let began = self.kernel.carry_out(&mut arrival).map_err(cannot)?;
            let arrived = if began == Outcome::GivenUp || arrival.refused {
                (!arrival.unsure).then_some(false)
            } else if arrival.is_whole() {
                Some(true)
            } else {
                self.arrive(to, &arrival.moving).map_err(|refusal| {
                    let begun = "is being renamed, and the next use of the new name finishes it";
                    failed(format_args!("{kind} '{}' {begun}", from.escape_debug()), refusal)
                })?
            };
            match arrived {
                Some(true) => return Ok(()),
                Some(false) => {}
                None => break,
            }
        }
        Err(cannot(Refusal::Busy))
    }

    /// Does the steps after an arrival; false when it was overtaken. `None` when another session
    /// ended the rename, and it is not known how.
    fn arrive(&self, to: &str, arrival: &Moving) -> Result<Option<bool>, Refusal> {
        let mut left = false;
        for _ in 0..DECISIONS {
            match self.advance(to, arrival)? {
                Advance::Left => left = true,
                Advance::Arrived => return Ok(Some(true)),
                Advance::Withdrawn => return Ok(Some(false)),
                Advance::Again => {}
                Advance::Changed(now) => {
                    let arrived = left || now == Some(arrival.named.encode());
                    return Ok(arrived.then_some(true));
                }
            }
        }
        Err(Refusal::Busy)
    }

    /// Does the next step of a rename.
    fn advance(&self, to: &str, arrival: &Moving) -> Result<Advance, Refusal> {
        match self.stage(to, arrival)? {
            Stage::Waiting(steps) => self.leave(to, arrival, &steps),
            Stage::Overtaken if self.kernel.keeps(Rule::OvertakenWithdrawn) => {
                self.withdraw(to, arrival)
            }
            Stage::Left | Stage::Overtaken => {
                self.complete(to, arrival)?;
                self.forget(&shard_of(self.kernel, &arrival.other), &departure(to, arrival))?;
                Ok(Advance::Arrived)
            }
            Stage::Changed(now) => Ok(Advance::Changed(now)),
        }
    }

    /// Finds out how far a rename has come. Without a departure, and with another value under the
    /// old name, it reads the new name again: sessions remove the departure after the arrival.
    fn stage(&self, to: &str, arrival: &Moving) -> Result<Stage, Refusal> {
        let (name, left) = (name_key(&arrival.other), left_key(arrival.named.id));
        let keys = vec![STEPS.to_vec(), name.clone(), left.clone()];
        let shard = shard_of(self.kernel, &arrival.other);
        let pairs = values(self.kernel, &shard, keys)?.unwrap_or_default();
        if value_of(&pairs, &left) == Some(departure(to, arrival).encode()) {
            return Ok(Stage::Left);
        }
        let before = arrival.before().map(|named| named.encode());
        if before.is_some() && value_of(&pairs, &name) == before {
            return Ok(Stage::Waiting(value_of(&pairs, STEPS).unwrap_or_default()));
        }
        let now = name_value(self.kernel, to)?;
        let stands = now == Some(arrival.encode());
        Ok(if stands { Stage::Overtaken } else { Stage::Changed(now) })
    }

    /// Leaves the old name. From then on the new name stands for the volume or object.
    fn leave(&self, to: &str, arrival: &Moving, steps: &[u8]) -> Result<Advance, Refusal> {
        let name = name_key(&arrival.other);
        let before = arrival.before().map(|named| named.encode()).unwrap_or_default();
        let mut pairs = vec![(STEPS.to_vec(), one_more(steps))];
        if self.kernel.keeps(Rule::DepartureRecorded) {
            pairs.push((left_key(arrival.named.id), departure(to, arrival).encode()));
        }
        let left = self.compared(Write {
            object: shard_of(self.kernel, &arrival.other),
            guards: vec![
                Guard::Exists,
                Guard::Omap(name.clone(), before),
                Guard::Omap(STEPS.to_vec(), steps.to_vec()),
            ],
            changes: vec![Change::DropOmap(vec![name]), Change::SetOmap(pairs)],
        })?;
        Ok(if left { Advance::Left } else { Advance::Again })
    }

    /// Makes the arrival the value of the name.
    fn complete(&self, to: &str, arrival: &Moving) -> Result<bool, Refusal> {
        let name = name_key(to);
        let mut guards = vec![Guard::Exists];
        if self.kernel.keeps(Rule::ArrivalCompared) {
            guards.push(Guard::Omap(name.clone(), arrival.encode()));
        }
        self.compared(Write {
            object: shard_of(self.kernel, to),
            guards,
            changes: vec![
                Change::DropOmap(vec![arriving_key(to)]),
                Change::SetOmap(vec![(name, arrival.named.encode())]),
            ],
        })
    }

    /// Withdraws an arrival that was overtaken.
    fn withdraw(&self, to: &str, arrival: &Moving) -> Result<Advance, Refusal> {
        let name = name_key(to);
        let withdrawn = self.compared(Write {
            object: shard_of(self.kernel, to),
            guards: vec![Guard::Exists, Guard::Omap(name.clone(), arrival.encode())],
            changes: vec![Change::DropOmap(vec![name, arriving_key(to)])],
        })?;
        Ok(if withdrawn { Advance::Withdrawn } else { Advance::Again })
    }

    /// Removes a departure, once its arrival has become the value of the new name.
    fn forget(&self, shard: &ObjectName, departure: &Moving) -> Result<bool, Refusal> {
        let key = left_key(departure.named.id);
        self.compared(Write {
            object: shard.clone(),
            guards: vec![Guard::Exists, Guard::Omap(key.clone(), departure.encode())],
            changes: vec![Change::DropOmap(vec![key])],
        })
    }

    /// Finishes the rename that left a departure.
    pub(super) fn finish_departure(
        &self,
        shard: &ObjectName,
        departure: &Moving,
    ) -> Result<bool, Refusal> {
        self.finish(&departure.other)?;
        self.forget(shard, departure)
    }

    /// Finishes the rename to a name that has an arrival.
    pub(super) fn finish_arrival(&self, name: &str) -> Result<bool, Refusal> {
        self.finish(name)?;
        // The step that completes a rename also removes the key of the arrival. Without an arrival
        // the key stands for nothing, and is removed here.
        let value = name_value(self.kernel, name)?;
        if value.as_ref().is_some_and(|value| Moving::is_one(value)) {
            return Ok(true);
        }
        self.compared(Write {
            object: shard_of(self.kernel, name),
            guards: vec![Guard::Exists, Guard::Omap(name_key(name), value.unwrap_or_default())],
            changes: vec![Change::DropOmap(vec![arriving_key(name)])],
        })
    }

    /// Sends an operation that compares what it replaces. False when the store has another value,
    /// perhaps because an earlier copy of the operation was applied and its reply lost.
    fn compared(&self, write: Write) -> Result<bool, Refusal> {
        match self.kernel.until_answered(&write) {
            Ok(_) => Ok(true),
            Err(Refusal::Mismatch) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }
}

/// The departure that the shard of the old name has once the name is left.
fn departure(to: &str, arrival: &Moving) -> Moving {
    Moving { named: arrival.named, other: to.to_owned() }
}

fn named(value: &[u8]) -> Result<Named, Refusal> {
    Named::decode(value).map_err(Refusal::Failed)
}

/// The arrival, where the value of a name is one.
fn moving(value: &[u8]) -> Result<Option<Moving>, Refusal> {
    if !Moving::is_one(value) {
        return Ok(None);
    }
    Moving::decode(value).map(Some).map_err(Refusal::Failed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onefold_core::{Exports, object::PoolKind};
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{ClusterExports, Format, Mode, Session, Settings, Volume, create};

    const OLD: &str = "old";

    fn made() -> MemoryObjects {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        store
    }

    fn open(store: &MemoryObjects, name: &str) -> Arc<Session> {
        Arc::new(Session::open(Arc::new(store.session(name)), Settings::default()).unwrap())
    }

    fn make(session: &Session, what: What, name: &str) {
        match what {
            What::Put => assert_eq!(session.put(name, &mut &b"abc"[..]).unwrap(), 3),
            What::Volume => session.create_volume(name, 1 << 20).unwrap(),
        }
    }

    /// A name in another shard than the old one, or in the same.
    fn new_name(session: &Session, whole: bool) -> String {
        let shard = |name: &str| shard_of(session.kernel(), name);
        let mut names = (0..).map(|n| format!("new {n}"));
        names.find(|name| (shard(name) == shard(OLD)) == whole).unwrap()
    }

    /// The first steps of a rename by a session that dies then.
    fn do_steps(session: &Session, to: &str, steps: u32) {
        let kernel = session.kernel();
        let renames = Renames::of(kernel);
        kernel.record_renames().unwrap();
        let old = renames.finish(OLD).unwrap().unwrap();
        let mut arrival = Arrival::new(kernel, OLD, to, old).unwrap();
        if steps > 0 {
            assert_eq!(kernel.carry_out(&mut arrival).unwrap(), Outcome::Applied);
        }
        if steps > 1 {
            assert!(matches!(renames.advance(to, &arrival.moving).unwrap(), Advance::Left));
        }
        if steps > 2 {
            assert!(renames.complete(to, &arrival.moving).unwrap());
        }
        if steps > 3 {
            let departure = departure(to, &arrival.moving);
            assert!(renames.forget(&shard_of(kernel, OLD), &departure).unwrap());
        }
    }

    fn names(session: &Session) -> Vec<String> {
        session.names().unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn after_each_step_one_name_stands_and_anybody_goes_on() {
        for (what, steps, finisher) in [What::Put, What::Volume]
            .into_iter()
            .flat_map(|what| (0..5).flat_map(move |n| (0..4).map(move |by| (what, n, by))))
        {
            let store = made();
            let first = open(&store, "first");
            make(&first, what, OLD);
            let to = new_name(&first, false);
            do_steps(&first, &to, steps);
            let looking =
                Session::look(Arc::new(store.session("looking")), Settings::default()).unwrap();
            let now = if steps < 2 { OLD } else { &to };
            assert_eq!(names(&looking), [now], "{what:?} after {steps}");
            assert_eq!(looking.find(OLD).unwrap().is_some(), steps < 2);
            assert_eq!(looking.find(&to).unwrap().is_some(), steps > 1);
            let other = open(&store, "other");
            let after = match finisher {
                // Workers.
                0 => {
                    while other.delete_step().unwrap() {}
                    if steps == 0 { OLD.to_owned() } else { to.clone() }
                }
                // A session that wants the new name.
                1 if steps > 0 => {
                    let taken = other.create_volume(&to, 4096).unwrap_err();
                    assert_eq!(taken.kind(), Kind::Exists);
                    to.clone()
                }
                // A session that renames again: to a third name, and back to the first one.
                2 if steps > 1 => {
                    other.rename(what, &to, "third").unwrap();
                    other.rename(what, "third", OLD).unwrap();
                    OLD.to_owned()
                }
                _ => {
                    other.delete(now, what).unwrap();
                    String::new()
                }
            };
            while other.delete_step().unwrap() {}
            let left: Vec<String> =
                Some(after).filter(|name| !name.is_empty()).into_iter().collect();
            assert_eq!(names(&other), left, "{what:?} after {steps}, {finisher}");
            // Nothing of the rename is left.
            let unfinished = crate::names::Names::of(other.kernel()).unfinished().unwrap();
            assert!(unfinished.records.is_empty());
            assert!(unfinished.arrivals.is_empty() && unfinished.departures.is_empty());
        }
    }

    #[test]
    fn a_name_that_is_taken_or_was_overtaken_changes_nothing() {
        for whole in [false, true] {
            let store = made();
            let session = open(&store, "one");
            let to = new_name(&session, whole);
            make(&session, What::Put, OLD);
            make(&session, What::Volume, &to);
            let before = session.names().unwrap();
            for (what, from, to, kind) in [
                (What::Put, OLD, &*to, Kind::Exists),
                (What::Put, OLD, OLD, Kind::Exists),
                (What::Volume, OLD, "free", Kind::NotFound),
                (What::Put, "free", &*to, Kind::NotFound),
                (What::Put, OLD, "", Kind::InvalidInput),
                (What::Put, OLD, &*"x".repeat(256), Kind::InvalidInput),
            ] {
                assert_eq!(session.rename(what, from, to).unwrap_err().kind(), kind);
            }
            assert_eq!(session.names().unwrap(), before);
            session.delete(&to, What::Volume).unwrap();
            session.rename(What::Put, OLD, &to).unwrap();
            let mut bytes = Vec::new();
            assert_eq!(session.get(&to, &mut bytes).unwrap(), 3);
            make(&session, What::Put, OLD);
            session.delete(OLD, What::Put).unwrap();
            assert_eq!(names(&session), [&*to]);
        }
        let store = made();
        let session = open(&store, "one");
        let to = new_name(&session, false);
        make(&session, What::Put, OLD);
        do_steps(&session, &to, 1);
        session.put(OLD, &mut &b"another"[..]).unwrap();
        make(&session, What::Volume, &to);
        assert_eq!(session.get(OLD, &mut Vec::new()).unwrap(), 7);
    }

    /// Adds a pair to a shard, whatever it is.
    fn add(session: &Session, shard: &ObjectName, key: Vec<u8>, value: Vec<u8>) {
        let changes = vec![Change::SetOmap(vec![(key, value)])];
        let write = Write { object: shard.clone(), guards: Vec::new(), changes };
        session.kernel().until_answered(&write).unwrap();
    }

    /// What stands in another shard could never be removed, and workers would try it for ever.
    #[test]
    fn rule_09_a_name_in_the_shard_of_others_is_damage() {
        for arrives in [false, true] {
            let store = made();
            let session = open(&store, "one");
            make(&session, What::Put, OLD);
            let to = new_name(&session, false);
            make(&session, What::Put, &to);
            let old = session.find(OLD).unwrap().unwrap();
            let (key, value) = match arrives {
                true => (arriving_key(OLD), vec![1]),
                false => (name_key(OLD), old.encode()),
            };
            add(&session, &shard_of(session.kernel(), &to), key, value);
            // Deletions that were begun before are ended.
            let steps =
                (0..100).map(|_| session.delete_step()).find(|step| !matches!(step, Ok(true)));
            let found = if arrives { steps.unwrap().err() } else { session.names().err() };
            assert_eq!(found.map(|error| error.kind()), Some(Kind::Corrupt));
        }
    }

    #[test]
    fn a_volume_that_is_attached_goes_on_and_only_the_first_rename_changes_the_format() {
        let store = made();
        let recorded = || {
            let session = Session::look(Arc::new(store.session("look")), Settings::default());
            session.unwrap().format().renames
        };
        let session = open(&store, "one");
        make(&session, What::Volume, OLD);
        let volume = Volume::attach(&session, OLD, Mode::Own).unwrap();
        volume.write_at(0, &[1; 4096]).unwrap();
        assert!(!recorded());
        let to = new_name(&session, false);
        open(&store, "two").rename(What::Volume, OLD, &to).unwrap();
        assert!(recorded());
        volume.write_at(4096, &[2; 4096]).unwrap();
        volume.renew().unwrap();
        volume.detach().unwrap();
        let volume = Volume::attach(&session, &to, Mode::Own).unwrap();
        let mut bytes = [0; 8192];
        volume.read_at(0, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[8191]), (1, 2));
        volume.detach().unwrap();
        // A server attaches the volume once, whatever its name is.
        let exports = ClusterExports::new(session.clone(), Mode::Own);
        let served = exports.open(&to).unwrap();
        session.rename(What::Volume, &to, "third").unwrap();
        assert!(Arc::ptr_eq(&served, &exports.open("third").unwrap()));
        assert_eq!(exports.open(&to).map(|_| ()).unwrap_err().kind(), Kind::NotFound);
        session.rename(What::Volume, "third", &to).unwrap();
        drop(served);
        exports.close().unwrap();
        session.resize_volume(&to, 1 << 19).unwrap();
        session.rename(What::Volume, &to, OLD).unwrap();
        assert_eq!(session.find(OLD).unwrap().unwrap().bytes, 1 << 19);
    }
}
