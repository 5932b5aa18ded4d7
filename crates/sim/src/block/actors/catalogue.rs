//! Administrators work while clients write: volumes come, grow, shrink, change their names and go.

use onefold_core::{BLOCK_BYTES, Kind, Result, VolumeId};

use super::client::Change;
use crate::{
    block::{
        model::{Key, Verb},
        run::{Flow, Sim, Stop},
        subject::{Ack, Step, Subject},
    },
    checker::{Checker, Failure},
};

const BLOCK: u64 = BLOCK_BYTES as u64;

impl<S: Subject> Sim<S> {
    /// Makes one more volume.
    pub(crate) fn create_volume(&mut self) -> Flow<()> {
        let name = self.free_name();
        let blocks = self.params.volume_blocks;
        self.apply(Verb::Create(name, blocks))
    }

    fn free_name(&mut self) -> String {
        format!("v{:06x}", self.rng.next() & 0xff_ffff)
    }

    /// Any change of the catalogue.
    pub(crate) fn verb(&mut self) -> Flow<()> {
        let keys: Vec<Key> = self.model.volumes().keys().copied().collect();
        let Some(&key) = self.rng.pick(&keys) else { return self.create_volume() };
        let blocks = self.params.volume_blocks;
        let crowded = self.params.options.tight.volumes.is_some() && self.rng.percent(60);
        let verb = match self.rng.below(8) {
            0..=3 if crowded => Verb::Delete(key),
            _ if crowded => return self.create_volume(),
            0 | 1 => Verb::Rename(key, self.free_name()),
            2 => Verb::Delete(key),
            3 if keys.len() < 6 => return self.create_volume(),
            4 => return self.taken_name(key),
            5 | 6 => Verb::Resize(key, blocks * 2),
            _ => Verb::Resize(key, self.rng.within(1, blocks)),
        };
        self.apply(verb)
    }

    /// Does `verb` when the one before is durable, tells the model, and sometimes waits.
    fn apply(&mut self, verb: Verb) -> Flow<()> {
        if let Some(ticket) = self.model.pending_verb() {
            self.drive(ticket)?;
        }
        let id =
            |key: &Key| self.model.volumes().get(key).map(|volume| volume.id).unwrap_or_default();
        let id = match &verb {
            Verb::Create(..) => VolumeId::default(),
            Verb::Resize(key, _) | Verb::Rename(key, _) | Verb::Delete(key) => id(key),
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
                Verb::Delete(_) => store.delete_volume(id).map(|ack| (id, ack)),
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
