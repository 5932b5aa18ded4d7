//! Domains of a sealed store come, and are erased, while nobody works on it; perhaps with a crash in the
//! middle. Volumes of one that was erased are told as such, give nothing, and go.

use std::{collections::BTreeSet, sync::Arc};

use onefold_core::{Block, BlockRead, Disk, Kind, Lba};
use onefold_testbed::Rng;

use super::keys::{STATES_OF_CHANGE, STATES_OF_OPENING, areas, breach, put};
use crate::{
    block::{
        keys::{OWNER, domain_name, domains_in},
        model::{Key, Verb},
        run::{Flow, Sim},
        subject::Subject,
    },
    checker::{Checker, Failure},
};

/// Blocks of a volume of an erased domain that are tried.
const TRIED: usize = 12;

/// Which domains the store has.
pub(crate) struct Tenants {
    rng: Rng,
    /// Those that were made.
    made: u32,
    erased: BTreeSet<u32>,
}

impl Tenants {
    pub(crate) fn new(seed: u64) -> Tenants {
        Tenants { rng: Rng::new(seed ^ 0x7465_6e61_6e74_7300), made: 0, erased: BTreeSet::new() }
    }
}

/// What is done to a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Create,
    Erase(u32),
}

impl<S: Subject> Sim<S> {
    /// The domains besides the first one that were not erased.
    pub(super) fn living_domains(&self) -> Vec<u32> {
        let living = |tenants: &Tenants| {
            let all = (1..=tenants.made).filter(|number| !tenants.erased.contains(number));
            all.collect()
        };
        self.tenants.as_ref().map(living).unwrap_or_default()
    }

    /// A domain comes or is erased, sometimes.
    pub(super) fn change_domains(&mut self) -> Result<(), Failure> {
        let most = self.params.options.domains;
        let Some(tenants) = &mut self.tenants else { return Ok(()) };
        let living: Vec<u32> =
            (1..=tenants.made).filter(|number| !tenants.erased.contains(number)).collect();
        let erased = tenants.rng.pick(&living).copied().filter(|_| tenants.rng.percent(35));
        let change = match erased {
            _ if tenants.rng.percent(35) => return Ok(()),
            Some(number) => Change::Erase(number),
            None if tenants.made < most => Change::Create,
            None => return Ok(()),
        };
        let within = match change {
            Change::Create => 9,
            // The store is opened and closed before.
            Change::Erase(_) => [9, 25, 80][tenants.rng.below(3) as usize],
        };
        let crash = tenants.rng.percent(45).then(|| tenants.rng.below(within));
        let next = tenants.made + 1;
        if let Some(secrets) = &mut self.secrets {
            secrets.untold(STATES_OF_CHANGE + STATES_OF_OPENING);
        }
        let before = areas(&self.disk.view());
        if let Some(calls) = crash {
            self.disk.arm_crash(calls);
        }
        let options = &self.params.options;
        let disk = Arc::clone(&self.disk);
        let done = match change {
            Change::Create => {
                S::create_domain(&*disk, options, &domain_name(next)).map(|number| number == next)
            }
            Change::Erase(number) => {
                let disk = disk as Arc<dyn Disk>;
                S::erase_domain(disk, Arc::clone(&self.clock) as _, options, number).map(|()| true)
            }
        };
        let cut_off = self.disk.is_down();
        self.disk.disarm_crash();
        self.say(|| format!("{change:?}: {done:?}, cut off: {cut_off}"));
        match done {
            _ if cut_off => {
                self.disk.power_cycle();
                self.reach.hit("crash: in a change of domains");
            }
            Ok(true) => {}
            Ok(false) => return Err(breach("a domain got a number that is not the next one")),
            Err(error) => {
                return Err(Failure::new(Checker::Unexplained, format!("domains: {error:?}")));
            }
        }
        if !cut_off && !self.disk.unflushed().is_empty() {
            return Err(breach("a change of domains was told as done, and is not durable"));
        }
        self.changed(change, cut_off, &before)
    }

    /// Looks what became of a change.
    fn changed(
        &mut self,
        change: Change,
        cut_off: bool,
        before: &[Vec<u8>; 2],
    ) -> Result<(), Failure> {
        let copy = self.copy_of_disk();
        if !self.opens(&copy, OWNER)? {
            return Err(breach("the owner can't open after a change of domains"));
        }
        let now = areas(&copy.view());
        if now[0] != now[1] || !cut_off && areas(&self.disk.view()) != now {
            return Err(breach("a change of domains left two different copies"));
        }
        let found = domains_in(&now[0]).map_err(|error| breach(format!("{error:?}")))?;
        let Some(tenants) = &mut self.tenants else { return Ok(()) };
        let happened = match change {
            Change::Create => found.contains(&(tenants.made + 1)),
            Change::Erase(number) => !found.contains(&number),
        };
        if !happened && !cut_off {
            return Err(breach(format!("{change:?} was told as done, and is not")));
        }
        match change {
            _ if !happened => self.reach.hit("domains: a change that was cut off changed nothing"),
            Change::Create => {
                tenants.made += 1;
                self.reach.hit("domains: one was made");
            }
            Change::Erase(number) => {
                tenants.erased.insert(number);
                self.reach.hit("domains: one was erased");
            }
        }
        if let Change::Erase(_) = change
            && !cut_off
        {
            // Whoever holds the disk puts the old key area back.
            let done = put(&copy, 0, &before[0]).and_then(|()| put(&copy, 1, &before[0]));
            done.map_err(|error| breach(format!("{error:?}")))?;
            if self.opens(&copy, OWNER)? {
                return Err(breach("an erased domain is back by an old key area"));
            }
            self.reach.hit("domains: an old key area was refused");
        }
        Ok(())
    }

    /// What belongs to domains that were erased gives nothing and takes nothing, and is deleted.
    pub(crate) fn bury(&mut self) -> Flow<()> {
        let (Some(store), Some(tenants)) = (&self.store, &self.tenants) else { return Ok(()) };
        if store.erased_domains() != tenants.erased {
            let (told, right) = (store.erased_domains(), &tenants.erased);
            return Err(
                breach(format!("erased domains are {right:?}; the store says {told:?}")).into()
            );
        }
        let gone = |id| tenants.erased.contains(&store.domain_of(id));
        let volumes = self.model.volumes().iter().filter(|(_, volume)| gone(volume.id));
        let mut volumes: Vec<(bool, Key)> =
            volumes.map(|(key, volume)| (volume.of.is_none(), *key)).collect();
        if store.receiving().iter().any(|(id, _)| gone(*id)) {
            self.give_up_transfer()?;
        }
        if volumes.is_empty() {
            return Ok(());
        }
        self.give_up_transfer()?;
        self.reach.hit("domains: volumes of one that was erased");
        for (_, key) in &volumes {
            self.gives_nothing(*key)?;
        }
        // Snapshots first.
        volumes.sort_unstable();
        for (_, key) in volumes {
            self.apply(Verb::Delete(key))?;
        }
        match self.model.pending_verb() {
            Some(ticket) => self.drive(ticket),
            None => Ok(()),
        }
    }

    fn gives_nothing(&mut self, key: Key) -> Flow<()> {
        let touched = self.model.touched(key);
        let (Some(store), Some(volume)) = (&self.store, self.model.volumes().get(&key)) else {
            return Ok(());
        };
        for lba in touched.into_iter().chain([0]).take(TRIED) {
            let mut block = Block::zeroed_vec(1);
            let mut reads = [BlockRead { first: Lba(lba), into: &mut block, result: Ok(()) }];
            store.read(volume.id, &mut reads);
            let [read] = reads;
            let wrote = store.write(volume.id, lba * 4096, &[1; 4096], &mut 0).map(drop);
            for (what, result) in [("read", read.result), ("write", wrote)] {
                match result {
                    Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Denied) => {}
                    other => {
                        let what = format!("{what} of an erased domain's volume: {other:?}");
                        return Err(breach(what).into());
                    }
                }
            }
        }
        Ok(())
    }
}
