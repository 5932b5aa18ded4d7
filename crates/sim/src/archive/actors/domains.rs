//! Domains of a sealed archive come, and go for good.
//!
//! Each name of a stream has a place, and each place a domain, so that equal content comes to several of
//! them. Snapshots are all in one. A volume comes to the domain of any place, and its clones to that of the
//! volume: all that it names must lie in containers of this domain. An erasure that was cut off is there or not, and once it was seen it is
//! there for ever: then all that was in the domain is gone, and nothing else. No copy of the key area has
//! the key of a domain whose erasure was acknowledged.

use std::{collections::BTreeSet, sync::Arc};

use onefold_archive::{
    Archive, ArchiveExports, Ingest, Kinds, Session, Tables, allow_domains, containers_of_volume,
    create_domain, domains, erase_domain,
};
use onefold_core::{Error, Exports, Kind};
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
    volumes: Vec<String>,
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
        self.upgraded.kinds = Kinds { domains: true, ..self.upgraded.kinds }.upgraded(true);
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

    /// The domain of a new volume.
    pub(crate) fn domain_of_volume(&mut self) -> u32 {
        let Some(places) = self.places.as_mut().filter(|_| self.params.volume_domains) else {
            return 0;
        };
        let place = places.rng.below(places.domains.len() as u64 + 1).checked_sub(1);
        places.at(place.map(|place| place as usize))
    }

    /// Before a volume gets a name: what is left of a volume of this name whose domain was erased is removed.
    pub(crate) fn make_way_for_volume(&mut self, archive: &Archive, name: &str) -> Flow {
        if self.places.is_none() {
            return Ok(());
        }
        let tables = archive.refresh().map_err(|error| self.judge("refresh", &error))?;
        let before = tables.volumes.named(name);
        if before.is_ok_and(|(_, before)| Sim::is_gone(&tables, before.domain)) {
            archive.delete_volume(name).map_err(|error| self.judge("delete", &error))?;
            self.reach.hit("a volume of an erased domain was deleted");
        }
        Ok(())
    }

    /// All that volumes name lies in containers of their own domains, and nobody opens what is left of
    /// volumes of erased ones. The archive is not served.
    pub(crate) fn look_at_domains_of_volumes(&mut self, archive: &Arc<Archive>) -> Flow {
        if self.places.is_none() {
            return Ok(());
        }
        let tables = archive.tables();
        for (id, volume) in tables.volumes.all() {
            if Sim::is_gone(&tables, volume.domain) {
                continue;
            }
            let name = &volume.name;
            let known = self.disks.get(name).map(|disk| disk.domain);
            if known != Some(volume.domain) {
                let of = volume.domain;
                let message = format!("volume {name} is of domain {of}, and was made in {known:?}");
                return Err(Failure::new(Checker::Secrecy, message).into());
            }
            let named = containers_of_volume(archive, &tables, *id);
            for container in named.map_err(|error| self.judge("map", &error))? {
                let homes = tables.places(container).collect::<Result<Vec<_>, _>>();
                for home in homes.map_err(|error| self.judge("container", &error))? {
                    let (of, is) = (volume.domain, home.stored.domain);
                    if of != is {
                        let message = format!(
                            "volume {name} of domain {of} names container {container} of domain {is}"
                        );
                        return Err(Failure::new(Checker::Secrecy, message).into());
                    }
                    if of > 0 {
                        self.reach.hit("a volume of a domain names containers of the domain");
                    }
                }
            }
        }
        Ok(())
    }

    /// Nobody opens what is left of volumes of erased domains.
    pub(crate) fn look_at_erased_volumes(&mut self, exports: &ArchiveExports) -> Flow {
        if self.places.is_none() {
            return Ok(());
        }
        let archive = exports.0.archive().clone();
        let tables = archive.refresh().map_err(|error| self.judge("refresh", &error))?;
        for volume in tables.volumes.all().values() {
            if !Sim::is_gone(&tables, volume.domain) {
                continue;
            }
            match exports.open(&volume.name) {
                Err(error) if error.kind() == Kind::Denied => {
                    self.reach.hit("a volume of an erased domain was refused");
                }
                Err(error) => return Err(self.judge("export", &error)),
                Ok(_) => {
                    let (name, of) = (&volume.name, volume.domain);
                    let message = format!("volume {name} opens, and domain {of} was erased");
                    return Err(Failure::new(Checker::Secrecy, message).into());
                }
            }
        }
        Ok(())
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
            volumes: self.volumes_of(number),
        };
        let held = self.hold_volume(&going.volumes);
        if let Some(places) = &mut self.places {
            places.unsure = Some(going.clone());
        }
        erase_domain(&archive, number).map_err(|error| self.judge("erase a domain", &error))?;
        self.is_erased(going);
        self.reach.hit("a domain was erased");
        self.look_for_its_key(number)?;
        self.look_at_held(held)
    }

    /// The volumes of a domain.
    fn volumes_of(&self, number: u32) -> Vec<String> {
        let of = self.disks.iter().filter(|(_, disk)| disk.domain == number);
        of.map(|(name, _)| name.clone()).collect()
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
        going.volumes.iter().for_each(|name| drop(self.disks.remove(name)));
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
        for volume in tables.volumes.all().values() {
            if Sim::is_gone(&tables, volume.domain) {
                archive
                    .delete_volume(&volume.name)
                    .map_err(|error| self.judge("delete", &error))?;
            }
        }
        Ok(())
    }
}
