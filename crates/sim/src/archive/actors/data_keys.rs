//! Data keys of a sealed archive change, and older ones go when nothing is under them any more.
//!
//! The model knows which older keys were erased: no copy of the key area may have one again, and no container may be
//! under one. A change that was cut off is ended by whoever opens the archive to write. New chunks have
//! fingerprints by the newest key. What was stored before is compared with the model as ever.

use onefold_archive::{
    Collection, CollectionOptions as Options, Kinds, Tables, allow_data_keys, domain_has_older,
    rotate_data_key,
};
use onefold_core::Kind;
use onefold_seal::AREA_BYTES;
use onefold_testbed::Rng;

use crate::{
    archive::run::{Actors, Flow, Sim},
    checker::{Checker, Failure},
};

/// Changes of data keys, and collections that end them.
pub(crate) struct DataKeys {
    rng: Rng,
}

impl DataKeys {
    pub(crate) fn new(seed: u64) -> DataKeys {
        DataKeys { rng: Rng::new(seed ^ 0x6461_7461_5f6b_6579) }
    }
}

impl Sim {
    /// Lets the data keys of a new archive be changed.
    pub(crate) fn allow_data_keys(&mut self) -> Flow {
        if self.data_keys.is_none() {
            return Ok(());
        }
        let archive = self.open(true)?;
        let kinds = archive.label().kinds();
        allow_data_keys(&archive).map_err(|error| self.judge("data keys", &error))?;
        self.upgraded.kinds = Kinds { data_keys: true, ..kinds.upgraded(true) };
        Ok(())
    }

    /// Now and then a domain gets another data key.
    pub(crate) fn data_key_move(&mut self) -> Flow {
        let Some(keys) = &mut self.data_keys else { return Ok(()) };
        if !keys.rng.percent(if self.params.data_keys_often { 40 } else { 20 }) {
            return Ok(());
        }
        let (draw, reseals) = (keys.rng.next(), keys.rng.percent(50));
        let (kills, dies) = (keys.rng.percent(80), keys.rng.percent(12));
        let within = keys.rng.below(8);
        if kills && self.stores_or_collects() {
            // Who stores is waited for, or killed: what a put has listed stays.
            let readings = std::mem::take(&mut self.actors.readings);
            self.actors = Actors { readings, ..Actors::default() };
        }
        if dies {
            self.files.arm_crash(within);
        }
        if reseals && self.actors.collection.is_none() {
            return self.reseal_once();
        }
        let all = self.domains_now();
        let domain = all[(draw % all.len() as u64) as usize];
        let is_in_use = self.stores_or_collects();
        let archive = self.open(true)?;
        match rotate_data_key(&archive, domain) {
            Ok(generation) => {
                self.say(|| format!("domain {domain} has data key {generation}"));
                self.reach.hit("a data key was changed");
                Ok(())
            }
            Err(error) if error.kind() == Kind::Busy && is_in_use => {
                self.reach.hit("a change of a data key was refused beside others");
                Ok(())
            }
            Err(error)
                if error.kind() == Kind::InvalidInput
                    && domain_has_older(&archive.tables(), domain) =>
            {
                self.reach.hit("a third data key was refused");
                Ok(())
            }
            Err(error) => Err(self.judge("data key", &error)),
        }
    }

    /// A collection from its beginning to its end that writes again what is under older data keys.
    fn reseal_once(&mut self) -> Flow {
        let archive = self.open(true)?;
        let options = self.collection_options(self.params.keep_partial);
        let begun = Collection::begin(&archive, options);
        let mut collection = begun.map_err(|error| self.judge("gc", &error))?;
        collection.reseal(None);
        loop {
            match collection.step() {
                Ok(true) => {}
                Ok(false) => return self.look_at_resealed(&collection),
                Err(error) => return Err(self.judge("gc", &error)),
            }
        }
    }

    fn collection_options(&self, keep_partial: u64) -> Options {
        Options {
            now: self.now,
            keep_partial,
            trash: self.params.trash,
            wait: false,
            reserve_bytes: 256 << 10,
            encode_all: false,
            doubts_clock: false,
        }
    }

    /// Somebody stores or collects.
    fn stores_or_collects(&self) -> bool {
        let actors = &self.actors;
        actors.putting.is_some()
            || actors.backing.is_some()
            || actors.serving.is_some()
            || actors.collection.is_some()
    }

    /// Every other collection writes again what is under older data keys.
    pub(crate) fn collects_older(&mut self, collection: &mut Collection) {
        if let Some(keys) = &mut self.data_keys
            && keys.rng.percent(50)
        {
            collection.reseal(None);
        }
    }

    /// A collection came to its end.
    pub(crate) fn look_at_resealed(&mut self, collection: &Collection) -> Flow {
        if collection.done.resealed > 0 {
            self.reach.hit("what was under an older data key was written again");
        }
        if collection.done.keys_erased > 0 {
            self.reach.hit("an older data key was erased");
            self.look_for_older_keys()?;
        }
        Ok(())
    }

    /// No copy of the key area has an older data key that was erased, and no container is under one.
    pub(crate) fn look_for_older_keys(&mut self) -> Flow {
        if self.data_keys.is_none() || self.files.is_down() {
            return Ok(());
        }
        let archive = self.open(false)?;
        let tables = archive.tables();
        let bytes = self.read_keys().map_err(|error| self.judge("keys", &error))?;
        let one_key = |domain: u32| {
            tables.data_keys.all().any(|(rotation, _)| rotation.domain == domain)
                && !domain_has_older(&tables, domain)
        };
        let mut all = tables.data_keys.all();
        if let Some((of, _)) = all.find(|(of, _)| tables.domains.erased.contains_key(&of.domain)) {
            let message =
                format!("something stays of the data keys of erased domain {}", of.domain);
            return Err(Failure::new(Checker::Secrecy, message).into());
        }
        for copy in bytes.chunks(AREA_BYTES) {
            let Some(keys) = Sim::opened_by_owner(copy) else { continue };
            let all = keys.domains().iter();
            if let Some(domain) =
                all.filter(|domain| domain.has_older()).find(|it| one_key(it.number()))
            {
                let message = format!(
                    "a copy of the key area has the older data key of domain {}",
                    domain.number()
                );
                return Err(Failure::new(Checker::Secrecy, message).into());
            }
        }
        look_at_containers(&tables).map_err(Into::into)
    }

    /// At the end: what is under older data keys is written again, and these go.
    pub(crate) fn reseal_all(&mut self) -> Flow {
        if self.data_keys.is_none() {
            return Ok(());
        }
        for _ in 0..3 {
            let archive = self.open(true)?;
            let options = self.collection_options(self.params.keep_partial);
            let collected = Collection::begin(&archive, options).and_then(|mut collection| {
                collection.reseal(None);
                collection.run(&mut |_| {})
            });
            collected.map_err(|error| self.judge("gc", &error))?;
        }
        let tables = self.open(true)?.tables();
        let left = self.domains_now().into_iter().find(|domain| domain_has_older(&tables, *domain));
        if let Some(domain) = left {
            let message = format!("domain {domain} has an older data key for ever");
            return Err(Failure::new(Checker::Progress, message).into());
        }
        self.look_for_older_keys()?;
        self.look()
    }
}

/// Every container is under a data key that its domain has.
fn look_at_containers(tables: &Tables) -> Result<(), Failure> {
    for container in tables.containers.iter().flatten() {
        let stored = &container.stored;
        let rotations = tables.data_keys.all().filter(|(one, _)| one.domain == stored.domain);
        let Some((newest, erased)) = rotations.last() else { continue };
        let under = tables.data_keys.generation_of(stored.domain, stored.id);
        let is_gone = tables.domains.erased.contains_key(&stored.domain);
        if erased && !is_gone && under != newest.generation {
            let message = format!("container {} is under a data key that was erased", stored.id);
            return Err(Failure::new(Checker::Secrecy, message));
        }
    }
    Ok(())
}
