//! Quotas and reserves of domains: how many blocks a domain may store, and how many are kept for it.
//!
//! A checkpoint has the blocks that each domain with limits stores: those with references which its maps
//! name. What was written since is charged as if each block were new, to the window that it is in, and
//! goes with that into the tables. A write that would pass the quota waits for the checkpoint that counts
//! exactly. Then it is refused, unless its content is stored in the domain already.
//!
//! *A reserve* is kept by admission: others leave alone what is missing from it to what the domain had
//! stored at the last checkpoint. That is too much, and never too little, until the next one. Before others
//! are told that the store is full, a checkpoint has counted. A write within its domain's reserve is
//! admitted by that alone, and leaves alone what is missing from the reserves of others.
//!
//! *Invariants*, while the state is held. What a domain stores is never more than its count in the tables
//! and all charges together. Free blocks, and those that a checkpoint is about to release, are never fewer
//! than what all reserves miss, once they were that many.

use onefold_core::{Error, Kind, Lba, Result, VolumeId};

use super::{
    admission::wait,
    domain_room::{Stored, kept},
    map_pages,
    tenants::{WITHHELD_SHARE, takes_duplicates},
};
use crate::{
    coverage::Mark,
    format::{
        FIRST_DOMAIN,
        catalogue::{QUOTA_MAX, Volume},
        domain_entry::DomainLimits,
    },
    kernel::{Kernel, Leftovers, State, VolumeState, kept_for},
    rules::Rule,
    scheme::{
        room::{reserve, spare},
        verbs::Scheme,
    },
    window::{Charge, Charged, Placed, charge_way},
};

/// The rest of the quota of a domain.
pub(super) struct Left {
    domain: u32,
    quota: u64,
    /// At least so many blocks.
    pub(super) blocks: u64,
    stored: Stored,
    /// Nobody has counted the pages of the maps of the domain's volumes.
    has_unknown_pages: bool,
    /// A new page of a map may be charged.
    charges_pages: bool,
}

/// Most ways through a map that a write of 64 blocks at most adds pages on: to two leaves, and to the first
/// one where the map grows taller.
const WAYS: u64 = 3;

/// The rest of the quota of a volume's domain; `None` when the domain has none.
pub(super) fn left(kernel: &Kernel, state: &mut State, volume: VolumeId) -> Result<Option<Left>> {
    if state.domains.are_unlimited() {
        return Ok(None);
    }
    let VolumeState { domain, blocks, .. } = *state.volumes.get(volume)?;
    let quota = state.domains.limits(domain).quota;
    if quota == 0 {
        return Ok(None);
    }
    let withheld = withheld(kernel, state, domain, quota);
    let stored = Stored::of(state, domain);
    let charge = state.charge_of(Charged::Domain(domain));
    let pages = map_pages::of_domain(kernel, state, domain, quota);
    let more = charge.pages().saturating_add(WAYS * u64::from(map_pages::depth(blocks)));
    let charged = map_pages::charged(kernel, quota, pages.unwrap_or(u64::MAX).saturating_add(more));
    let all = [charge.blocks(), withheld, charged].into_iter();
    let all = all.fold(stored.at_most(), u64::saturating_add);
    Ok(Some(Left {
        domain,
        quota,
        blocks: quota.saturating_sub(all),
        stored,
        has_unknown_pages: pages.is_none(),
        charges_pages: charged > 0,
    }))
}

/// True when checkpoints to come may lower what a domain stores, or what it was charged.
fn may_fall(state: &State, domain: u32) -> bool {
    let tables = state.overlays.tables();
    let leaves = |volume: &Volume| {
        volume.is_leaving() && (volume.map.height > 0 || state.leftovers == Leftovers::Some)
    };
    let has_discards =
        |volume: &Volume| tables.discards.meeting(volume.id, 0, u64::MAX).next().is_some();
    state.charge_of(Charged::Domain(domain)).is_loose()
        || state.moments_ahead().next().is_some()
        || tables
            .volumes
            .values()
            .any(|volume| volume.domain == domain && (leaves(volume) || has_discards(volume)))
}

/// While tenants are kept apart, a domain's quota is reached earlier, by what is drawn anew each time: what
/// one of its volumes may write does not tell what another one holds.
fn withheld(kernel: &Kernel, state: &mut State, domain: u32, quota: u64) -> u64 {
    if takes_duplicates(state) {
        return 0;
    }
    let (share, now) = (quota / WITHHELD_SHARE, kernel.clock.now());
    let State { ration, domains, .. } = state;
    let Some(of_store) = ration else { return 0 };
    domains.ration(domain, || of_store.another(domain, share, now)).withheld(share, now)
}

impl Left {
    /// There may be more when a checkpoint has counted.
    fn is_loose(&self, kernel: &Kernel, state: &State) -> bool {
        match self.stored {
            Stored::Known(_) if self.has_unknown_pages => true,
            Stored::Known(_) => {
                kernel.keeps(Rule::DomainCountedFirst) && may_fall(state, self.domain)
            }
            Stored::Uncounted => true,
            Stored::Unread => false,
        }
    }

    /// Whether the first block of a write may be taken although nothing is left: when it is stored
    /// already. `known` is where it was found, and what had been released then.
    ///
    /// # Errors
    /// `NoSpace` when it may not; `Busy` when a checkpoint must count first.
    pub(super) fn look_up(
        &self,
        kernel: &Kernel,
        state: &mut State,
        (volume, lba): (VolumeId, Lba),
        known: Option<(Placed, u64)>,
    ) -> Result<Option<Placed>> {
        let critical = state.volumes.get(volume)?.no_dedup.holds(lba);
        // A duplicate far from other blocks needs a page.
        let takes = takes_duplicates(state) && !self.charges_pages;
        if critical || !takes || self.is_loose(kernel, state) {
            return Err(self.refuse(kernel, state));
        }
        Ok(known.filter(|(_, releases)| *releases == state.releases.count()).map(|(at, _)| at))
    }

    /// Nothing is left for a block.
    pub(super) fn refuse(&self, kernel: &Kernel, state: &mut State) -> Error {
        if self.is_loose(kernel, state) {
            kernel.coverage.hit(Mark::DomainQuotaWaits);
            state.checkpoint_wanted = true;
            return wait();
        }
        kernel.coverage.hit(Mark::DomainQuotaReached);
        self.answered(kernel, state, true);
        self.reached(kernel)
    }

    /// The error that a refused client gets.
    pub(super) fn reached(&self, kernel: &Kernel) -> Error {
        let Left { domain, quota, stored, .. } = self;
        let name = kernel.domain_name(*domain).unwrap_or_default();
        let name = name.escape_debug();
        let what = if matches!(stored, Stored::Unread) {
            format!(
                "nobody knows how much domain '{name}', which has a quota, stores: a page can't be read; \
                 run `onefold repair`"
            )
        } else {
            let bytes = quota.saturating_mul(4096);
            format!(
                "domain '{name}' has reached its quota of {bytes} bytes; trim or delete data in it, or \
                 give it a higher one by `onefold domain set --quota`"
            )
        };
        Error::new(Kind::NoSpace, what)
    }

    /// Writes are refused by the quota from now on, or taken again.
    pub(super) fn answered(&self, kernel: &Kernel, state: &mut State, full: bool) {
        if takes_duplicates(state) {
            return;
        }
        let (share, now) = (self.quota / WITHHELD_SHARE, kernel.clock.now());
        let State { ration, domains, .. } = state;
        if let Some(of_store) = ration {
            let new = || of_store.another(self.domain, share, now);
            domains.ration(self.domain, new).answered(full, share, now);
        }
    }
}

/// Charges one block of a volume to its domain, in whose open window it is put, and the pages that the map
/// may need for it.
pub(super) fn charge(kernel: &Kernel, state: &mut State, volume: VolumeId, lba: Lba) {
    if state.domains.are_unlimited() || !kernel.keeps(Rule::DomainCharged) {
        return;
    }
    let Ok(&VolumeState { domain, blocks, .. }) = state.volumes.get(volume) else { return };
    if state.domains.limits(domain).are_none() {
        return;
    }
    state.windows.charge(Charged::Domain(domain), Charge::at_most(1));
    let depth = map_pages::depth(blocks);
    for leaf in [0, map_pages::leaf_of(lba)] {
        charge_way(&mut state.windows, Charged::Domain(domain), volume, leaf, depth);
    }
}

/// Looks whether the quota of a volume's domain has room for the block that a client's edit makes.
///
/// # Errors
/// `NoSpace`; `Busy` when a checkpoint must count first.
pub(super) fn admit_one(kernel: &Kernel, state: &mut State, volume: VolumeId) -> Result<()> {
    match left(kernel, state, volume)? {
        Some(left) if left.blocks == 0 => Err(left.refuse(kernel, state)),
        Some(left) => {
            left.answered(kernel, state, false);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Charges what was written since the last checkpoint to a domain that gets limits.
fn charge_before(state: &mut State, domain: u32) {
    let of_domain = state.volumes.iter().filter(|(_, volume)| volume.domain == domain);
    let charges = of_domain.map(|(id, _)| map_pages::charge_of_changes(state, *id));
    let charge = charges.fold(Charge::default(), Charge::and);
    state.windows.close();
    state.domains.charge_before(domain, state.windows.last_closed(), charge);
}

/// Charges the domains that have limits with the changes that a recovery brought back.
pub(super) fn charge_recovered(kernel: &Kernel, state: &mut State) {
    if state.domains.are_unlimited() || !kernel.keeps(Rule::DomainRecovered) {
        return;
    }
    let all: Vec<(VolumeId, u32)> =
        state.volumes.iter().map(|(id, volume)| (*id, volume.domain)).collect();
    for (id, domain) in all {
        if !state.domains.limits(domain).are_none() {
            let charge = map_pages::charge_of_changes(state, id);
            state.overlays.active_mut().charge(Charged::Domain(domain), charge);
        }
    }
    // Volumes that were deleted are there no more: what they let go of is counted by the checkpoint.
    let limited: Vec<u32> = state.domains.all().keys().copied().collect();
    for domain in limited {
        state.overlays.active_mut().charge(Charged::Domain(domain), Charge::at_most(0));
    }
}

/// Gives a domain other limits. They are in force at once, and durable when the number that is returned
/// is: a checkpoint leads there.
///
/// # Errors
/// `InvalidInput`, `NotFound`, `NoSpace`, `Unsupported`; `Corrupt`: a repair must count first; `Busy`: a
/// checkpoint may make room.
pub(crate) fn set(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    domain: u32,
    limits: DomainLimits,
) -> Result<u64> {
    let mut state = kernel.state.lock();
    state.check_running()?;
    if domain == FIRST_DOMAIN {
        let what = "the domain that each store begins with has neither quota nor reserve: give the others some";
        return Err(Error::new(Kind::InvalidInput, what));
    }
    state.volumes.check_domain(domain)?;
    check(kernel, scheme, &state, Some(domain), limits)?;
    let before = state.domains.limits(domain);
    if before == limits {
        return Ok(state.domains.durable().max(state.domains.asked()));
    }
    let stored = Stored::of(&state, domain).at_least();
    let missing = |limits: DomainLimits| kept_for(limits.reserve.saturating_sub(stored));
    let more = missing(limits).saturating_sub(missing(before));
    has_free(kernel, scheme, &mut state, more)?;
    let number = state.domains.set(domain, limits);
    if before.are_none() {
        charge_before(&mut state, domain);
    }
    kernel.coverage.hit(Mark::DomainLimitsSet);
    state.checkpoint_wanted = true;
    Ok(number)
}

/// Fails unless a domain that is about to be made may have these limits.
///
/// # Errors
/// As [`set`].
pub(crate) fn check_new(kernel: &Kernel, scheme: &dyn Scheme, limits: DomainLimits) -> Result<()> {
    let mut state = kernel.state.lock();
    check(kernel, scheme, &state, None, limits)?;
    has_free(kernel, scheme, &mut state, kept_for(limits.reserve))
}

/// Fails unless so many blocks are free that are kept for nobody.
fn has_free(kernel: &Kernel, scheme: &dyn Scheme, state: &mut State, blocks: u64) -> Result<()> {
    let free = spare(kernel, scheme, state) + state.allocator.idle.growable();
    let kept = kept(kernel, state, None) + reserve(&kernel.geometry());
    let left = free.saturating_sub(kept);
    if blocks <= left {
        return Ok(());
    }
    if state.can_reclaim() {
        state.checkpoint_wanted = true;
        return Err(wait());
    }
    let (more, left) = (blocks.saturating_mul(4096), left.saturating_mul(4096));
    let what = format!(
        "the reserve needs {more} bytes, and only {left} are free and kept for nobody: delete data of other \
         domains, or make the store larger"
    );
    Err(Error::new(Kind::NoSpace, what))
}

/// Fails unless a domain, which is there or about to be made, may have these limits.
fn check(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    state: &State,
    domain: Option<u32>,
    limits: DomainLimits,
) -> Result<()> {
    let wrong = |what: String| Err(Error::new(Kind::InvalidInput, what));
    let DomainLimits { quota, reserve: kept } = limits;
    if quota > QUOTA_MAX || kept > QUOTA_MAX {
        return wrong("a quota or a reserve is smaller than 1 EiB".to_owned());
    }
    if quota > 0 && kept > quota {
        return wrong("a reserve is not larger than the quota of its domain".to_owned());
    }
    let others = state.domains.all().iter().filter(|(number, _)| Some(**number) != domain);
    let all = others.map(|(_, limits)| kept_for(limits.reserve)).sum::<u64>() + kept_for(kept);
    let geometry = kernel.geometry();
    let most = geometry.usable_blocks().saturating_sub(reserve(&geometry));
    if kept > 0 && all > most {
        return wrong(format!(
            "all reserves together need {} bytes, with what their maps take, and the store has room for {}",
            all.saturating_mul(4096),
            most.saturating_mul(4096)
        ));
    }
    scheme.begin_moment().map_err(|_| {
        let what = "a store of this scheme has no limits of domains, since it does not count what each of them stores";
        Error::new(Kind::Unsupported, what)
    })?;
    let tables = &state.overlays.tables().state;
    if !limits.are_none() && tables.inexact && !tables.limits_domains() {
        let what = "a page of an old snapshot could not be read, so that counts may be too high: run \
                    `onefold repair` before you give limits to domains";
        return Err(Error::new(Kind::Corrupt, what));
    }
    Ok(())
}
