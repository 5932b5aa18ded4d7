//! The blocks that domains have stored, and those that are kept for their reserves, as admission sees them.

use crate::{
    format::domain_entry::DomainEntry,
    kernel::{Kernel, State, kept_for},
    rules::Rule,
    window::Charged,
};

/// How much a domain stores, as far as the last checkpoint knows.
#[derive(Clone, Copy)]
pub(super) enum Stored {
    /// Exactly so many blocks.
    Known(u64),
    /// The next checkpoint counts.
    Uncounted,
    /// A page can't be read: until a repair nobody knows.
    Unread,
}

impl Stored {
    pub(super) fn of(state: &State, domain: u32) -> Stored {
        let entries = &state.overlays.tables().state.domains;
        match entries.iter().find(|entry| entry.number == domain) {
            None => Stored::Uncounted,
            Some(DomainEntry { stored: None, .. }) => Stored::Unread,
            Some(DomainEntry { stored: Some(blocks), .. }) => Stored::Known(*blocks),
        }
    }

    pub(super) fn at_least(self) -> u64 {
        if let Stored::Known(blocks) = self { blocks } else { 0 }
    }

    pub(super) fn at_most(self) -> u64 {
        if let Stored::Known(blocks) = self { blocks } else { u64::MAX }
    }
}

/// The blocks that are kept for reserves, but for that of `own`.
pub(crate) fn kept(kernel: &Kernel, state: &State, own: Option<u32>) -> u64 {
    if state.domains.are_unlimited() || !kernel.keeps(Rule::ReserveKept) {
        return 0;
    }
    let all = state.domains.all().iter().filter(|(domain, _)| Some(**domain) != own);
    let missing = all.map(|(&domain, limits)| {
        let stored = Stored::of(state, domain).at_least();
        kept_for(limits.reserve.saturating_sub(stored))
    });
    missing.fold(0, u64::saturating_add)
}

/// True when a domain may store `blocks` more within its reserve, whatever they hold.
pub(super) fn is_reserved(state: &State, domain: u32, blocks: u64) -> bool {
    let kept = state.domains.limits(domain).reserve;
    let stored = Stored::of(state, domain);
    if let Stored::Unread = stored {
        return kept > 0;
    }
    let charged = state.charge_of(Charged::Domain(domain)).blocks();
    kept > 0 && stored.at_most().saturating_add(charged).saturating_add(blocks) <= kept
}
