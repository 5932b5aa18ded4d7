//! The limits of domains as they are in force: those of the last checkpoint, and those that were given
//! since.

use std::collections::BTreeMap;

use super::Ration;
use crate::{
    format::{
        domain_entry::{DomainEntry, DomainLimits},
        record::WindowNumber,
    },
    window::Charge,
};

/// Blocks of a reserve for each of which one more is kept, for pages of maps.
const BLOCKS_A_PAGE: u64 = 64;

/// The limits of domains.
#[derive(Default)]
pub(crate) struct Domains {
    limits: BTreeMap<u32, DomainLimits>,
    /// Changes that were asked for, and those that are durable, since the store was opened.
    asked: u64,
    durable: u64,
    /// Of domains that got limits: blocks that were written before, and the last window with some.
    before: BTreeMap<u32, (WindowNumber, Charge)>,
    /// Draws of the blocks that are withheld near a quota while tenants are kept apart.
    rations: BTreeMap<u32, Ration>,
}

impl Domains {
    /// The limits that a checkpoint has, of domains that were not erased since.
    pub(crate) fn of(entries: &[DomainEntry], living: &[u32]) -> Domains {
        let living = entries.iter().filter(|entry| living.contains(&entry.number));
        let limits = living.map(|entry| (entry.number, entry.limits)).collect();
        Domains { limits, ..Domains::default() }
    }

    /// True when no domain has limits.
    pub(crate) fn are_unlimited(&self) -> bool {
        self.limits.is_empty()
    }

    /// The limits of a domain, which has none if nobody gave it any.
    pub(crate) fn limits(&self, domain: u32) -> DomainLimits {
        self.limits.get(&domain).copied().unwrap_or_default()
    }

    /// The domains that have limits.
    pub(crate) fn all(&self) -> &BTreeMap<u32, DomainLimits> {
        &self.limits
    }

    /// A domain has other limits from now on. Returns the number of the change.
    pub(crate) fn set(&mut self, domain: u32, limits: DomainLimits) -> u64 {
        match limits.are_none() {
            true => drop(self.limits.remove(&domain)),
            false => drop(self.limits.insert(domain, limits)),
        }
        self.asked += 1;
        self.asked
    }

    /// Windows up to this one may add so much to a domain, which was charged nothing for them.
    pub(crate) fn charge_before(&mut self, domain: u32, window: WindowNumber, charge: Charge) {
        self.before.insert(domain, (window, charge));
    }

    /// The blocks that windows which no checkpoint up to `committed` holds may add to a domain, from before it had
    /// limits.
    pub(crate) fn charge_of(&self, domain: u32, committed: WindowNumber) -> Charge {
        match self.before.get(&domain) {
            Some((window, charge)) if *window > committed => *charge,
            _ => Charge::default(),
        }
    }

    /// The number of the last change that was asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.asked
    }

    /// The number of the last change that is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// A checkpoint has the changes up to this one.
    pub(crate) fn made_durable(&mut self, number: u64) {
        self.durable = self.durable.max(number);
    }

    /// True when no checkpoint has the last change.
    pub(crate) fn wait_for_checkpoint(&self) -> bool {
        self.durable < self.asked
    }

    /// The draw of a domain, begun by `new`.
    pub(crate) fn ration(&mut self, domain: u32, new: impl FnOnce() -> Ration) -> &mut Ration {
        self.rations.entry(domain).or_insert_with(new)
    }
}

/// Blocks that are kept for what is missing from a reserve: for its data, and for pages that name them.
pub(crate) fn kept_for(missing: u64) -> u64 {
    missing.saturating_add(missing.div_ceil(BLOCKS_A_PAGE))
}
