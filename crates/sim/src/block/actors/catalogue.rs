//! Administrators work while clients write: volumes come, grow, shrink, change their names and go.

use onefold_core::{BLOCK_BYTES, Kind, Result, VolumeId};

use super::client::Change;
use crate::{
    block::{
        model::{Key, Verb, Volume},
        run::{Flow, STEP_LIMIT, Sim, Stop},
        subject::{Ack, Step, Subject},
    },
    checker::{Checker, Failure},
};

const BLOCK: u64 = BLOCK_BYTES as u64;

impl<S: Subject> Sim<S> {
    /// Makes one more volume.
    pub(crate) fn create_volume(&mut self) -> Flow<()> {
        let name = self.free_name('v');
        let blocks = self.params.volume_blocks;
        self.apply(Verb::Create(name, blocks))
    }

    /// A name that neither a volume nor a snapshot has, nor had when it was sent: of so many names
    /// that are drawn, some are drawn twice.
    pub(crate) fn free_name(&mut self, kind: char) -> String {
        loop {
            let name = format!("{kind}{:06x}", self.rng.next() & 0xff_ffff);
            let has = |volume: &Volume| volume.name == name;
            if !self.sent.contains_key(&name) && !self.model.volumes().values().any(has) {
                return name;
            }
        }
    }

    /// Any change of the catalogue.
    pub(crate) fn verb(&mut self) -> Flow<()> {
        let keys: Vec<Key> = self.model.writable();
        let Some(&key) = self.rng.pick(&keys) else { return self.create_volume() };
        if self.params.options.quotas && self.rng.percent(60) {
            let quota = self.draw_quota(key);
            return self.apply(Verb::Quota(key, quota));
        }
        if self.params.options.snapshots.is_some_and(|sharing| sharing.replicates)
            && self.rng.percent(60)
        {
            return self.replicate(key);
        }
        if self.params.options.snapshots.is_some() && self.rng.percent(70) {
            return self.act(key);
        }
        let blocks = self.params.volume_blocks;
        let crowded = self.params.options.tight.volumes.is_some() && self.rng.percent(60);
        let verb = match self.rng.below(8) {
            0..=3 if crowded => Verb::Delete(key),
            _ if crowded => return self.create_volume(),
            0 | 1 => Verb::Rename(key, self.free_name('v')),
            2 if !self.model.snapshots(key).is_empty() => return self.refused_delete(key),
            2 => Verb::Delete(key),
            3 if keys.len() < 6 => return self.create_volume(),
            4 => return self.taken_name(key),
            5 | 6 => Verb::Resize(key, blocks * 2),
            _ => Verb::Resize(key, self.rng.within(1, blocks)),
        };
        self.apply(verb)
    }

    /// A snapshot, a clone, a rollback, or the end or another name of a snapshot.
    fn act(&mut self, key: Key) -> Flow<()> {
        let volumes = self.model.writable();
        let snapshots = self.model.snapshots(key);
        let snapshot = self.rng.pick(&snapshots).copied();
        let verb = match (self.rng.below(12), snapshot) {
            (0..=3, _) => {
                let mut wanted = vec![(key, self.free_name('v'))];
                if self.rng.once_in(3) {
                    let others: Vec<Key> =
                        volumes.into_iter().filter(|&other| other != key).collect();
                    wanted.extend(others.into_iter().map(|other| (other, self.free_name('v'))));
                }
                Verb::Snapshot(wanted)
            }
            (4 | 5, _) if volumes.len() < 6 => {
                // What was received with losses is written, and sent on.
                let received = self.received();
                let of = received.or(snapshot).unwrap_or(key);
                Verb::Clone(of, self.free_name('v'))
            }
            (6 | 7, Some(to)) => {
                let keep = self.rng.percent(70).then(|| self.free_name('v'));
                Verb::Rollback(key, to, keep)
            }
            (8, Some(snapshot)) => Verb::Rename(snapshot, self.free_name('v')),
            (_, Some(snapshot)) => Verb::Delete(snapshot),
            (_, None) => Verb::Snapshot(vec![(key, self.free_name('v'))]),
        };
        self.apply(verb)
    }

    /// Sometimes a snapshot of a replica, where snapshots come with losses.
    fn received(&mut self) -> Option<Key> {
        let loses = self.params.options.snapshots.is_some_and(|sharing| sharing.loses);
        if !loses || !self.rng.percent(70) {
            return None;
        }
        let volumes = self.model.volumes();
        let of_replica = |of: Key| volumes.get(&of).is_some_and(|volume| volume.replica);
        let all = volumes.iter().filter(|(_, volume)| volume.of.is_some_and(of_replica));
        let all: Vec<Key> = all.map(|(key, _)| *key).collect();
        self.rng.pick(&all).copied()
    }

    /// A volume that has snapshots is not deleted.
    fn refused_delete(&mut self, key: Key) -> Flow<()> {
        let Some(id) = self.model.volumes().get(&key).map(|volume| volume.id) else {
            return Ok(());
        };
        let Some(store) = &self.store else { return Ok(()) };
        match store.delete_volume(id) {
            Err(error) if error.kind() == Kind::InvalidInput => Ok(()),
            Err(error) => Err(self.judge("deletion of a volume with snapshots", &error)),
            Ok(_) => {
                let message = "a volume with snapshots was deleted".to_owned();
                Err(Failure::new(Checker::Volumes, message).into())
            }
        }
    }

    /// All volumes and snapshots go, and nothing is left of them.
    pub(crate) fn all_goes(&mut self) -> Flow<()> {
        self.reach.hit("all volumes and snapshots deleted");
        self.drive_acts()?;
        self.give_up_transfer()?;
        for snapshots in [true, false] {
            let all = self.model.volumes().iter().filter(|(_, one)| one.of.is_some() == snapshots);
            for key in all.map(|(&key, _)| key).collect::<Vec<Key>>() {
                self.apply(Verb::Delete(key))?;
            }
        }
        if let Some(ticket) = self.model.pending_verb() {
            self.drive(ticket)?;
        }
        let Some(store) = &self.store else { return Ok(()) };
        if let Err(error) = store.flush(VolumeId::default()) {
            return Err(self.judge("flush", &error));
        }
        let mut left = (0, 0, true);
        for _ in 0..STEP_LIMIT {
            let Some(store) = &self.store else { return Ok(()) };
            left = store.left();
            if !left.2 {
                break;
            }
            for step in Step::ALL {
                self.step(step)?;
            }
        }
        // What once had many references is never freed.
        let many = self.params.options.references.is_some();
        let right = (if many { left.0 } else { 0 }, 0, false);
        if left != right && self.disk.damage() == 0 {
            let message = format!(
                "all was deleted, and blocks with references, mapped blocks and whether something is to be done are {left:?}"
            );
            return Err(Failure::new(Checker::ReferenceCounts, message).into());
        }
        Ok(())
    }

    /// Does `verb` when the one before is durable, tells the model, and sometimes waits.
    pub(crate) fn apply(&mut self, verb: Verb) -> Flow<()> {
        if let Some(ticket) = self.model.pending_verb() {
            self.drive(ticket)?;
        }
        self.drive_acts()?;
        // Acts that were on their way may have made a snapshot of it.
        if let Verb::Delete(key) = &verb
            && !self.model.snapshots(*key).is_empty()
        {
            return Ok(());
        }
        if verb.is_act() {
            return self.ask(verb);
        }
        let id =
            |key: &Key| self.model.volumes().get(key).map(|volume| volume.id).unwrap_or_default();
        let id = match &verb {
            Verb::Create(..)
            | Verb::Snapshot(_)
            | Verb::Clone(..)
            | Verb::Rollback(..)
            | Verb::Received { .. } => VolumeId::default(),
            Verb::Resize(key, _)
            | Verb::Rename(key, _)
            | Verb::Quota(key, _)
            | Verb::Delete(key) => id(key),
        };
        self.model.begin(verb.clone());
        let mut tries = 0;
        loop {
            let Some(store) = &self.store else { return Ok(()) };
            let result: Result<(VolumeId, Ack)> = match &verb {
                Verb::Create(name, blocks) => store.create_volume(name, blocks * BLOCK),
                Verb::Resize(_, blocks) => {
                    store.resize_volume(id, blocks * BLOCK).map(|ack| (id, ack))
                }
                Verb::Rename(_, name) => store.rename_volume(id, name).map(|ack| (id, ack)),
                Verb::Quota(_, blocks) => store.set_quota(id, *blocks).map(|ack| (id, ack)),
                Verb::Delete(_) => store.delete_volume(id).map(|ack| (id, ack)),
                Verb::Snapshot(_)
                | Verb::Clone(..)
                | Verb::Rollback(..)
                | Verb::Received { .. } => return Ok(()),
            };
            self.say(|| format!("{verb:?}: {result:?}"));
            match result {
                Ok((id, ack)) => {
                    let ticket = match ack {
                        Ack::Durable => None,
                        Ack::Later(ticket) => Some(ticket.0),
                    };
                    match self.model.taken(id, ticket) {
                        // The volume that had the number before was lost with the damaged record
                        // that made it.
                        Err(_) if self.disk.damage() > 0 => return Err(Stop::Ended),
                        taken => taken?,
                    }
                    self.note_durable()?;
                    return match ticket {
                        Some(ticket) if self.rng.percent(50) => self.drive(ticket),
                        _ => self.use_new_end(&verb),
                    };
                }
                Err(error) if error.kind() == Kind::Busy && !self.disk.is_down() => {
                    tries += 1;
                    self.make_room(tries)?;
                }
                Err(error)
                    if error.kind() == Kind::NoSpace
                        && !self.disk.is_down()
                        && !self.disk.has_failed() =>
                {
                    self.reach.hit("store full: volume verb refused");
                    return self.look(false);
                }
                Err(error) if error.kind() == Kind::InvalidInput && self.no_more_volumes(&verb) => {
                    self.reach.hit("limit: a volume is refused, since there are as many as may be");
                    return self.look(false);
                }
                Err(error) => return Err(self.judge("volume verb", &error)),
            }
        }
    }

    /// True when clients trim whenever an act waits for room.
    pub(crate) fn crowds(&self) -> bool {
        self.params.options.snapshots.is_some_and(|sharing| sharing.crowds)
    }

    /// Asks for an act until it is admitted or given up.
    fn ask(&mut self, verb: Verb) -> Flow<()> {
        self.store.iter().for_each(S::take_place);
        let asked = self.ask_in_place(verb);
        self.store.iter().for_each(S::give_place_back);
        asked
    }

    /// Asks for an act, and sometimes waits for it.
    fn ask_in_place(&mut self, verb: Verb) -> Flow<()> {
        let id =
            |key: &Key| self.model.volumes().get(key).map(|volume| volume.id).unwrap_or_default();
        let limit = self.params.options.snapshots.map_or(u64::MAX, |sharing| sharing.snapshots);
        let many = |key: &Key| self.model.snapshots(*key).len() as u64 >= limit;
        let too_many = match &verb {
            Verb::Snapshot(wanted) => wanted.iter().any(|(of, _)| many(of)),
            Verb::Rollback(volume, _, keep) => keep.is_some() && many(volume),
            _ => false,
        };
        let ids: Vec<VolumeId> = match &verb {
            Verb::Snapshot(wanted) => wanted.iter().map(|(of, _)| id(of)).collect(),
            Verb::Clone(of, _) => vec![id(of)],
            Verb::Rollback(volume, to, _) => vec![id(volume), id(to)],
            _ => Vec::new(),
        };
        let crowds = self.crowds();
        let patience =
            if crowds && self.rng.percent(30) { self.rng.within(1, 8) } else { u64::MAX };
        let mut tries = 0;
        loop {
            let Some(store) = &self.store else { return Ok(()) };
            self.model.begin(verb.clone());
            let asked = match &verb {
                Verb::Snapshot(wanted) => {
                    let names = wanted.iter().map(|(_, name)| name.clone());
                    let wanted: Vec<_> = ids.iter().copied().zip(names).collect();
                    store.snapshot(&wanted)
                }
                Verb::Clone(_, name) => {
                    store.clone_volume(ids[0], name).map(|(id, number)| (vec![id], number))
                }
                Verb::Rollback(_, _, keep) => store
                    .rollback(ids[0], ids[1], keep.as_deref())
                    .map(|(kept, number)| (kept.into_iter().collect(), number)),
                _ => return Ok(()),
            };
            self.say(|| format!("{verb:?}: {asked:?}"));
            match asked {
                Ok(_) if too_many => {
                    let message = format!("more than {limit} snapshots of a volume");
                    return Err(Failure::new(Checker::Limits, message).into());
                }
                Ok((ids, number)) => {
                    self.asked = Some((number, ids));
                    self.note_durable()?;
                    let few =
                        self.params.options.snapshots.is_some_and(|sharing| sharing.few_contents);
                    let waits = self.rng.percent(if few { 5 } else { 40 });
                    return if waits { self.drive_acts() } else { Ok(()) };
                }
                Err(error) if error.kind() == Kind::Busy && !self.disk.is_down() => {
                    self.model.refused();
                    tries += 1;
                    self.make_room(tries)?;
                    if crowds {
                        self.trim_what_is_admitted()?;
                    }
                    if tries >= patience {
                        self.reach.hit("an act is given up while it waits");
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == Kind::InvalidInput && too_many => {
                    self.model.refused();
                    self.reach
                        .hit("limit: a snapshot is refused, since there are as many as may be");
                    return Ok(());
                }
                Err(error)
                    if error.kind() == Kind::NoSpace
                        && !self.disk.is_down()
                        && !self.disk.has_failed() =>
                {
                    self.model.refused();
                    self.reach.hit("store full: act refused");
                    return Ok(());
                }
                Err(error) => return Err(self.judge("act", &error)),
            }
        }
    }

    /// True when there are as many volumes as there may be.
    fn no_more_volumes(&self, verb: &Verb) -> bool {
        let most = self.params.options.tight.volumes.map(|volumes| volumes / 2);
        matches!(verb, Verb::Create(..))
            && most.is_some_and(|most| self.model.volumes().len() as u64 >= most)
    }

    /// A volume that has just grown, not durably yet, is sometimes used up to its new end.
    fn use_new_end(&mut self, verb: &Verb) -> Flow<()> {
        let Verb::Resize(key, blocks) = *verb else { return Ok(()) };
        if self.rng.percent(40) {
            return Ok(());
        }
        // In a window of its own, and both written and not flushed: a crash may take the one and
        // leave the other.
        self.step(Step::Close)?;
        let first = self.rng.below(blocks);
        self.change(key, first * BLOCK, Change::Trim((blocks - first) * BLOCK))?;
        for step in [Step::Close, Step::Prepare, Step::Prepare, Step::Write, Step::Write] {
            self.step(step)?;
        }
        if self.rng.percent(50) {
            self.disk.hasten_crash();
            self.step(Step::Settle)?;
        }
        Ok(())
    }

    /// Compares the list of volumes; `answered` when no verb has just failed.
    fn look(&mut self, answered: bool) -> Flow<()> {
        let Some(store) = &self.store else { return Ok(()) };
        if self.params.options.quotas {
            self.model.resolve_quotas(|id| store.quota(id).0)?;
        }
        match store.volumes() {
            Ok(volumes) if answered => Ok(self.model.compare(&volumes)?),
            Ok(volumes) => Ok(self.model.resolve(&volumes)?),
            Err(error) => Err(self.judge("list of volumes", &error)),
        }
    }

    /// A name that is taken is refused.
    fn taken_name(&mut self, key: Key) -> Flow<()> {
        let Some(name) = self.model.volumes().get(&key).map(|volume| volume.name.clone()) else {
            return Ok(());
        };
        let Some(store) = &self.store else { return Ok(()) };
        match store.create_volume(&name, BLOCK) {
            Err(error) if error.kind() == Kind::Exists => self.look(true),
            Err(error) => Err(self.judge("volume of a name that is taken", &error)),
            Ok(_) => {
                Err(Failure::new(Checker::Volumes, format!("two volumes are called '{name}'"))
                    .into())
            }
        }
    }
}
