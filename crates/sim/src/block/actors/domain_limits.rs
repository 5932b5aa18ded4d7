//! Limits of domains: a domain stores no more than its quota, and is refused nothing before it does; and
//! what is missing from a reserve stays free.

use std::collections::BTreeMap;

use onefold_core::{BLOCK_BYTES, Error, Kind};
use onefold_testbed::Rng;

use super::client::Change;
use crate::{
    block::{
        model::{Key, LEVELS_MAX},
        run::{Flow, STEP_LIMIT, Sim},
        subject::{LimitedDomain, Step, Subject},
    },
    checker::{Checker, Failure},
};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks of a volume that are filled to press on a reserve.
const PRESSED: u64 = 320;

/// A quota and a reserve, in blocks.
type Pair = (u64, u64);

/// What is known of the limits of domains.
pub(crate) struct Bounds {
    rng: Rng,
    domains: BTreeMap<u32, Bound>,
}

/// The limits of a domain.
struct Bound {
    /// The store has one of these: the last one, but after a crash.
    limits: Vec<Pair>,
    /// So many blocks may be stored; `None` while nobody knows how many were when it got its quota.
    most: Option<u64>,
}

impl Bounds {
    pub(crate) fn new(seed: u64) -> Bounds {
        let rng = Rng::new(seed ^ 0x6c69_6d69_7473_0084);
        Bounds { rng, domains: BTreeMap::new() }
    }
}

fn fail<T>(what: String) -> Flow<T> {
    Err(Failure::new(Checker::DomainLimits, what).into())
}

/// Whether a domain has reached its quota, which says so in its words.
pub(super) fn is_of_domain(error: &Error) -> bool {
    error.kind() == Kind::NoSpace && error.to_string().contains("domain '")
}

impl<S: Subject> Sim<S> {
    /// A domain gets other limits, sometimes.
    pub(crate) fn limit_domains(&mut self) -> Flow<()> {
        let living: Vec<u32> = self.living_domains();
        let Some(bounds) = &mut self.bounds else { return Ok(()) };
        if !bounds.rng.once_in(15) {
            return Ok(());
        }
        let Some(&domain) = bounds.rng.pick(&living) else { return Ok(()) };
        let known = self.limits_of(domain).and_then(|found| found.stored);
        self.idle()?;
        let stored = self.limits_of(domain).and_then(|found| found.stored).or(known).unwrap_or(0);
        let share = self.params.options.disk_blocks / 4;
        let unused = self.store.as_ref().map_or(0, S::unused_blocks);
        let Some(bounds) = &mut self.bounds else { return Ok(()) };
        let rng = &mut bounds.rng;
        let quota = match rng.below(6) {
            0 | 1 => 0,
            2 => rng.within(1, stored.max(1)),
            _ => stored + rng.within(1, 12),
        };
        let quota = if rng.percent(60) { quota } else { 0 };
        let most = if quota > 0 { quota } else { u64::MAX };
        let reserve = match rng.below(7) {
            0 | 1 => 0,
            2 => rng.within(1, 12),
            3 => stored + rng.within(1, 20),
            4 => rng.within(1, share),
            // Nearly all that is free: others find little more.
            _ => {
                stored + unused.saturating_sub(unused / 40 + [80, 120, 200][rng.below(3) as usize])
            }
        };
        let presses = reserve > share && rng.percent(60);
        self.give_limits(domain, (quota, reserve.min(most)))?;
        if presses && self.limits_of(domain).is_some_and(|found| found.reserve > share) {
            self.press(domain)?;
        }
        Ok(())
    }

    /// Others take all that they get; then the domain takes what is kept for it.
    fn press(&mut self, domain: u32) -> Flow<()> {
        self.reach.hit("domain limits: others press on a reserve");
        let keys = self.model.writable();
        let own = |sim: &Self, key: &Key| sim.domain_of(*key) == Some(domain);
        let (mine, others): (Vec<Key>, Vec<Key>) = keys.into_iter().partition(|key| own(self, key));
        for key in others {
            self.fill_up(key, PRESSED)?;
        }
        self.idle()?;
        for key in mine {
            self.fill_up(key, PRESSED / 4)?;
        }
        self.idle()
    }

    /// Writes blocks that nobody has, as many as a volume has at most, until one is refused.
    fn fill_up(&mut self, key: Key, most: u64) -> Flow<()> {
        let blocks = self.model.volumes().get(&key).map_or(0, |volume| volume.blocks);
        for first in (0..blocks.min(most)).step_by(16) {
            let Some(bounds) = &mut self.bounds else { return Ok(()) };
            let mut data = vec![0; (16.min(blocks - first) * BLOCK) as usize];
            bounds.rng.fill(&mut data);
            if self.change(key, first * BLOCK, Change::Write(&data))?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Gives a domain limits, and waits until they are durable.
    fn give_limits(&mut self, domain: u32, pair: Pair) -> Flow<()> {
        let mut tries = 0;
        let number = loop {
            let Some(store) = &self.store else { return Ok(()) };
            let asked = store.set_domain_limits(domain, pair.0, pair.1);
            self.say(|| format!("limits {pair:?} of domain {domain}: {asked:?}"));
            match asked {
                Ok(number) => break number,
                Err(error) if error.kind() == Kind::Busy && !self.disk.is_down() => {
                    tries += 1;
                    self.make_room(tries)?;
                }
                Err(error)
                    if pair.1 > 0
                        && matches!(error.kind(), Kind::NoSpace | Kind::InvalidInput)
                        && !self.disk.has_failed() =>
                {
                    self.reach.hit("domain limits: a reserve that does not fit is refused");
                    return Ok(());
                }
                Err(error) => return Err(self.judge("limits of a domain", &error)),
            }
        };
        let Some(bounds) = &mut self.bounds else { return Ok(()) };
        let bound = bounds.domains.entry(domain);
        let bound = bound.or_insert(Bound { limits: vec![(0, 0)], most: None });
        bound.limits.push(pair);
        bound.most = None;
        for round in 0.. {
            if self.store.as_ref().is_none_or(|store| store.domain_limits_durable() >= number) {
                break;
            }
            if round > STEP_LIMIT {
                return fail(format!("the limits of domain {domain} never become durable"));
            }
            for step in Step::DURABLE.into_iter().chain([Step::Checkpoint]) {
                self.step(step)?;
            }
        }
        if let Some(bound) = self.bounds.as_mut().and_then(|all| all.domains.get_mut(&domain)) {
            bound.limits = vec![pair];
        }
        self.reach.hit("domain limits: a domain got some");
        self.idle()
    }

    fn limits_of(&self, domain: u32) -> Option<LimitedDomain> {
        let all = self.store.as_ref()?.limited_domains();
        all.into_iter().find(|one| one.number == domain)
    }

    /// After a recovery each domain has limits that it was given; those of erased ones are gone.
    pub(crate) fn resolve_limits(&mut self) -> Result<(), Failure> {
        let living = self.living_domains();
        let Some(store) = &self.store else { return Ok(()) };
        let found = store.limited_domains();
        let Some(bounds) = &mut self.bounds else { return Ok(()) };
        bounds.domains.retain(|number, _| living.contains(number));
        let unknown = |one: &&LimitedDomain| !bounds.domains.contains_key(&one.number);
        if let Some(one) = found.iter().find(unknown) {
            let what = format!("domain {} has limits that nobody gave it", one.number);
            return Err(Failure::new(Checker::DomainLimits, what));
        }
        for (number, bound) in &mut bounds.domains {
            let found = found.iter().find(|one| one.number == *number);
            let pair = found.map_or((0, 0), |one| (one.quota, one.reserve));
            if !bound.limits.contains(&pair) {
                let what =
                    format!("domain {number} has limits {pair:?}; right is {:?}", bound.limits);
                return Err(Failure::new(Checker::DomainLimits, what));
            }
            if bound.limits.len() > 1 {
                (bound.limits, bound.most) = (vec![pair], None);
            }
        }
        Ok(())
    }

    /// After idle work no domain stores more than its quota allows, and as much is free as reserves miss.
    pub(crate) fn count_domains(&mut self) -> Flow<()> {
        let Some(store) = self.store.as_ref().filter(|_| self.bounds.is_some()) else {
            return Ok(());
        };
        let (found, unused) = (store.limited_domains(), store.unused_blocks());
        let Some(bounds) = &mut self.bounds else { return Ok(()) };
        let mut missing = 0;
        for LimitedDomain { number, quota, reserve, stored } in found {
            let Some(stored) = stored else {
                return fail(format!("nobody knows what domain {number} stores"));
            };
            missing += reserve.saturating_sub(stored);
            let Some(bound) = bounds.domains.get_mut(&number) else { continue };
            let quota = if quota == 0 { u64::MAX } else { quota };
            let most = bound.most.unwrap_or(stored).max(quota);
            if stored > most {
                return fail(format!("domain {number} stores {stored} blocks of {most}"));
            }
            // What was there before there was a quota may stay, and goes for good.
            bound.most = Some(stored.max(quota).min(most));
        }
        if missing > unused {
            return fail(format!("reserves miss {missing} blocks, and only {unused} are unused"));
        }
        Ok(())
    }

    /// A change was refused by the quota of a domain: was it reached, and needed?
    pub(super) fn refused_by_domain(
        &mut self,
        key: Key,
        offset: u64,
        change: Change<'_>,
    ) -> Flow<()> {
        // The edges of zeroes are parts of blocks, which are written anew.
        let is_aligned = offset.is_multiple_of(BLOCK) && change.bytes().is_multiple_of(BLOCK);
        let is_zero = match change {
            Change::Write(data) => data.iter().all(|&byte| byte == 0),
            Change::Trim(_) => return fail("the quota of a domain refuses a trim".to_owned()),
            Change::Zeroes(..) => true,
        };
        if is_zero && is_aligned {
            return fail(format!("the quota of a domain refuses what needs no block: {change:?}"));
        }
        let Some(found) = self.domain_of(key).and_then(|domain| self.limits_of(domain)) else {
            return fail(format!("volume {key} is refused by a quota that its domain has not"));
        };
        let LimitedDomain { number, quota, stored, .. } = found;
        // Each write may need a few pages more.
        let mine = |key: &Key| self.domain_of(*key) == Some(number);
        let maps = self.model.volumes().iter().filter(|(key, one)| one.of.is_none() && mine(key));
        let pages: u64 = maps.map(|(&key, _)| self.map_pages(key).1 + 2 * LEVELS_MAX).sum();
        let charged = (pages + 3 * LEVELS_MAX).saturating_sub(self.free_map_pages(quota));
        if quota == 0 || stored.is_none_or(|stored| stored + charged < quota) {
            return fail(format!(
                "domain {number} stores {stored:?} blocks of {quota}, and refuses a write with {pages} \
                 pages of maps"
            ));
        }
        self.reach.hit("domain limits: a write refused by a quota");
        Ok(())
    }

    /// A write was refused since the store is full: not within a reserve.
    pub(super) fn not_reserved(&mut self, key: Key) -> Flow<()> {
        let Some(found) = self.domain_of(key).and_then(|domain| self.limits_of(domain)) else {
            return Ok(());
        };
        let LimitedDomain { number, reserve, stored, .. } = found;
        if stored.is_some_and(|stored| stored < reserve) {
            return fail(format!(
                "domain {number} stores {stored:?} of {reserve} blocks that are kept for it, and is \
                 told that the store is full"
            ));
        }
        self.reach.hit("domain limits: store full beyond a reserve");
        Ok(())
    }

    fn domain_of(&self, key: Key) -> Option<u32> {
        let id = self.model.volumes().get(&key)?.id;
        Some(self.store.as_ref()?.domain_of(id))
    }
}
