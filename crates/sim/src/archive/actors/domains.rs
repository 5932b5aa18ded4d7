//! Domains of a sealed archive come, and go for good.
//!
//! Each name of a stream has a place, and each place a domain, so that equal content comes to several of
//! them. Snapshots are all in one. An erasure that was cut off is there or not, and once it was seen it is
//! there for ever: then all that was in the domain is gone, and nothing else. No copy of the key area has
//! the key of a domain whose erasure was acknowledged.

use std::{collections::BTreeSet, sync::Arc};

use onefold_archive::{
    Archive, Ingest, Kinds, Session, Tables, allow_domains, create_domain, domains, erase_domain,
};
use onefold_core::{Error, Kind};
use onefold_seal::AREA_BYTES;
use onefold_testbed::Rng;

use crate::{
    archive::run::{Flow, Sim},
    checker::{Checker, Failure},
};

/// The domains beside the first one.
pub(crate) struct Places {
    rng: Rng,
    /// The domain of each place; `None` where it was erased and no other one was made yet.
    domains: Vec<Option<u32>>,
    /// The place of the snapshots; `None` for the first domain.
    trees: Option<usize>,
    erased: BTreeSet<u32>,
    /// An erasure that was cut off.
    unsure: Option<Going>,
    /// How many were made.
    made: u32,
}

/// What goes with a domain.
#[derive(Clone)]
struct Going {
    place: usize,
    number: u32,
    streams: Vec<String>,
    snapshots: Vec<[u8; 16]>,
}

impl Places {
    pub(crate) fn new(seed: u64, count: u8) -> Places {
        let mut rng = Rng::new(seed ^ 0x646f_6d61_696e_732e);
        let count = usize::from(count);
        let trees = rng.percent(70).then(|| rng.below(count as u64) as usize);
        let (erased, unsure) = (BTreeSet::new(), None);
        Places { rng, domains: vec![None; count], trees, erased, unsure, made: 0 }
    }

    /// The domain of this place; the first one where there is none.
    fn at(&self, place: Option<usize>) -> u32 {
        place.and_then(|place| self.domains.get(place).copied().flatten()).unwrap_or(0)
    }
}

impl Sim {
    /// Makes the domains of a new archive.
    pub(crate) fn make_domains(&mut self) -> Flow {
        if self.places.is_none() {
            return Ok(());
        }
        let archive = self.open(true)?;
        allow_domains(&archive).map_err(|error| self.judge("domains", &error))?;
        self.upgraded.kinds = Kinds { domains: true, ..self.upgraded.kinds.upgraded(true) };
        for place in 0..self.places.as_ref().map_or(0, |places| places.domains.len()) {
            self.make_domain(place)?;
        }
        Ok(())
    }

    fn make_domain(&mut self, place: usize) -> Flow {
        let Some(places) = &mut self.places else { return Ok(()) };
        places.made += 1;
        // One that was made when its process died stays, and nobody uses it.
        let name = format!("d{}", places.made);
        let archive = self.open(true)?;
        let number =
            create_domain(&archive, &name).map_err(|error| self.judge("domain", &error))?;
        let Some(places) = &mut self.places else { return Ok(()) };
        if places.erased.contains(&number) {
            let message = format!("domain {number} was erased, and its number came again");
            return Err(Failure::new(Checker::Secrecy, message).into());
        }
        places.domains[place] = Some(number);
        Ok(())
    }

    /// The domains that there are.
    pub(crate) fn domains_now(&self) -> Vec<u32> {
        let others = self.places.iter().flat_map(|places| places.domains.iter().copied().flatten());
        std::iter::once(0).chain(others).collect()
    }

    /// The domain that a stream of this name goes to: that of the one before, or of the name's place.
    pub(crate) fn domain_of(&self, tables: &Tables, name: &str) -> u32 {
        let Some(places) = &self.places else { return 0 };
        let before = tables.streams.get(&name.to_owned()).map(|before| before.domain);
        let digit = name.bytes().last().map_or(0, |digit| usize::from(digit % 16));
        before.unwrap_or_else(|| places.at((digit % (places.domains.len() + 1)).checked_sub(1)))
    }

    /// The domain of snapshots.
    pub(crate) fn domain_of_trees(&self) -> u32 {
        self.places.as_ref().map_or(0, |places| places.at(places.trees))
    }

    /// The stream's session, in its own domain. What is left of a stream of this name whose domain was
    /// erased is removed first.
    pub(crate) fn session_for(
        &mut self,
        (archive, ingest): (&Arc<Archive>, &Arc<Ingest>),
        session: Session,
        name: &str,
    ) -> Result<Session, Error> {
        if self.places.is_none() {
            return Ok(session);
        }
        let tables = archive.refresh()?;
        let before = tables.streams.get(&name.to_owned());
        if before.is_some_and(|before| tables.domains.erased.contains_key(&before.domain)) {
            archive.remove(name)?;
            self.reach.hit("a stream of an erased domain was removed");
        }
        let domain = self.domain_of(&*archive.refresh()?, name);
        Session::in_domain(ingest, domain)
    }

    /// True for the error of whoever stores into a domain that is erased meanwhile.
    pub(crate) fn is_of_erased(&mut self, error: &Error, domain: u32) -> bool {
        let Some(places) = &self.places else { return false };
        let is = error.kind() == Kind::Denied && places.erased.contains(&domain);
        if is {
            self.reach.hit("what was on its way into an erased domain was refused");
        }
        is
    }

    /// True when the archive shows that it belongs to a domain that was erased.
    pub(crate) fn is_gone(tables: &Tables, domain: u32) -> bool {
        tables.domains.erased.contains_key(&domain)
    }

    /// Now and then a domain goes, or another one comes in its place.
    pub(crate) fn domain_move(&mut self) -> Flow {
        let Some(places) = &mut self.places else { return Ok(()) };
        if !places.rng.percent(6) || places.unsure.is_some() {
            return Ok(());
        }
        let place = places.rng.below(places.domains.len() as u64) as usize;
        match places.domains[place] {
            None => self.make_domain(place),
            Some(number) => self.erase(place, number),
        }
    }

    fn erase(&mut self, place: usize, number: u32) -> Flow {
        let archive = self.open(true)?;
        let tables = archive.refresh().map_err(|error| self.judge("domain", &error))?;
        let streams = tables.streams.iter().filter(|(_, stream)| stream.domain == number);
        let snapshots = tables.snapshots.values().filter(|one| one.domain == number);
        let going = Going {
            place,
            number,
            streams: streams.map(|(name, _)| name.clone()).collect(),
            snapshots: snapshots.map(|one| one.id.0).collect(),
        };
        if let Some(places) = &mut self.places {
            places.unsure = Some(going.clone());
        }
        erase_domain(&archive, number).map_err(|error| self.judge("erase a domain", &error))?;
        self.is_erased(going);
        self.reach.hit("a domain was erased");
        self.look_for_its_key(number)
    }

    /// The model knows that a domain is gone.
    fn is_erased(&mut self, going: Going) {
        self.say(|| format!("domain {} is erased", going.number));
        let Some(places) = &mut self.places else { return };
        places.domains[going.place] = None;
        places.erased.insert(going.number);
        places.unsure = None;
        going.streams.iter().for_each(|name| drop(self.streams.remove(name)));
        going.snapshots.iter().for_each(|id| drop(self.kept.remove(id)));
        let gone = |name: &String| going.streams.contains(name);
        self.actors.readings.retain(|reading| !gone(&reading.name));
    }

    /// No copy of the key area has the key of an erased domain.
    fn look_for_its_key(&mut self, number: u32) -> Flow {
        if self.files.is_down() {
            return Ok(());
        }
        let bytes = self.read_keys().map_err(|error| self.judge("keys", &error))?;
        for copy in bytes.chunks(AREA_BYTES) {
            let opened = Sim::opened_by_owner(copy);
            if opened.is_some_and(|keys| keys.domain(number).is_some()) {
                let message =
                    format!("a copy of the key area has the key of erased domain {number}");
                return Err(Failure::new(Checker::Secrecy, message).into());
            }
        }
        Ok(())
    }

    /// After a crash, an erasure that was under way is there or not. The archive was opened to write.
    pub(crate) fn settle_domains(&mut self, archive: &Archive) -> Flow {
        let Some(places) = &self.places else { return Ok(()) };
        if let Some(going) = places.unsure.clone() {
            let all = domains(archive).map_err(|error| self.judge("domains", &error))?;
            let is_there =
                |number| all.iter().any(|one| one.number == number && one.name.is_some());
            if is_there(going.number) {
                self.places.as_mut().map(|places| places.unsure.take());
            } else {
                self.reach.hit("an erasure of a domain that was cut off was ended");
                let number = going.number;
                self.is_erased(going);
                self.look_for_its_key(number)?;
            }
        }
        let Some(places) = &self.places else { return Ok(()) };
        let tables = archive.tables();
        if let Some(number) =
            places.erased.iter().find(|number| !tables.domains.erased.contains_key(number))
        {
            let message = format!("domain {number} was erased, and the archive has it again");
            return Err(Failure::new(Checker::Secrecy, message).into());
        }
        Ok(())
    }

    /// At the end: what is left of erased domains in the catalogue is removed.
    pub(crate) fn remove_erased(&mut self) -> Flow {
        if self.places.is_none() {
            return Ok(());
        }
        let archive = self.open(true)?;
        let tables = archive.tables();
        for (name, stream) in &tables.streams {
            if Sim::is_gone(&tables, stream.domain) {
                archive.remove(name).map_err(|error| self.judge("remove", &error))?;
            }
        }
        Ok(())
    }
}
