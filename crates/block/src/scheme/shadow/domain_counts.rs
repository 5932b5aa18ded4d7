//! The blocks that each domain with limits stores, as a checkpoint changes them.
//!
//! All maps of a family are of one domain, and no block is named from two. So whoever raises the count of
//! a block from 0 or lowers it to 0 says by the map that it works on whose the block is: that of a volume
//! or a snapshot, one that is leaving, or, of a page that nothing counts for, one of its family. Leaving
//! maps keep their domain from the first limit of a store on. An entry without pages keeps that of a family
//! of which nothing else is left but such pages.
//!
//! A domain that gets its first limits is counted once, in the tables before the checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Error, Kind, Result, VolumeId};

use super::deltas::Slot;
use crate::{
    block_set::BlockSet,
    coverage::Mark,
    format::{
        catalogue::Volume,
        domain_entry::{DomainEntry, DomainLimits},
        page::{FANOUT, MapEntry, PageId, Pointer, Table, pointer},
        superblock,
    },
    kernel::Kernel,
    overlay::Tables,
    rules::Rule,
    sharing::{Orphan, child_id},
};

/// Pages that are read together.
const PAGES_TOGETHER: usize = 64;

/// The counts of a checkpoint.
#[derive(Default)]
pub(crate) struct DomainCounts {
    /// The domains that have limits from this checkpoint on.
    entries: Vec<DomainEntry>,
    /// Leaving maps name their domain.
    named: bool,
    /// The change of limits up to which the entries have all.
    number: u64,
}

/// Limits as they are when a checkpoint begins.
pub(crate) struct LimitsAtFreeze {
    pub(crate) limits: BTreeMap<u32, DomainLimits>,
    /// The number of the last change of them.
    pub(crate) number: u64,
}

impl DomainCounts {
    /// Of a checkpoint that begins, after `old`. Domains that get their first limits are counted; before
    /// the first one of all, what was deleted must have gone, since nobody knows its domain.
    pub(crate) fn begin(
        kernel: &Kernel,
        old: &Tables,
        at_freeze: LimitsAtFreeze,
        orphans: &[Orphan],
    ) -> DomainCounts {
        let LimitsAtFreeze { limits, number } = at_freeze;
        let before = &old.state;
        if limits.is_empty() && !before.limits_domains() {
            return DomainCounts { number, ..DomainCounts::default() };
        }
        let leaves = old.volumes.values().any(Volume::is_leaving);
        let known = before.limits_domains() || !leaves && (orphans.is_empty() || before.inexact);
        if !known {
            return DomainCounts::default();
        }
        let mut entries = Vec::with_capacity(limits.len());
        for (number, limits) in limits {
            let counted = before.domains.iter().find(|entry| entry.number == number);
            let stored = match counted {
                Some(entry) => entry.stored,
                None if !kernel.keeps(Rule::DomainCountedAtLimits) => Some(0),
                None => count(kernel, old, orphans, number).ok(),
            };
            entries.push(DomainEntry { number, limits, stored });
        }
        let named = before.limits_domains() || !entries.is_empty();
        DomainCounts { entries, named, number }
    }

    /// True when leaving maps name their domain.
    pub(super) fn are_named(&self) -> bool {
        self.named
    }

    /// The domain that a leaving map names.
    pub(super) fn of_leaving(&self, domain: u32) -> Option<u32> {
        self.named.then_some(domain)
    }

    /// The quota of a domain, in blocks; 0 for none.
    pub(super) fn quota(&self, domain: u32) -> u64 {
        let found = self.entries.iter().find(|entry| entry.number == domain);
        found.map_or(0, |entry| entry.limits.quota)
    }

    /// The place of a domain among those with limits.
    pub(super) fn slot(&self, domain: u32) -> Slot {
        self.entries.iter().position(|entry| entry.number == domain).map_or(Slot::NONE, Slot::of)
    }

    /// A block of a domain is stored from now on, or no longer.
    pub(super) fn change(&mut self, slot: Slot, stored: bool) {
        let Some(entry) = slot.place().and_then(|place| self.entries.get_mut(place)) else {
            return;
        };
        if let Some(blocks) = &mut entry.stored {
            *blocks = if stored { *blocks + 1 } else { blocks.saturating_sub(1) };
        }
    }

    /// The features that a superblock with these has more.
    pub(crate) fn features(&self) -> u64 {
        if self.named { superblock::DOMAIN_LIMITS } else { 0 }
    }

    /// The entries, and the number of the last change of limits that they have.
    pub(crate) fn finish(self) -> (Vec<DomainEntry>, u64) {
        (self.entries, self.number)
    }
}

/// The domains of families of maps.
pub(super) fn families(volumes: &BTreeMap<VolumeId, Volume>) -> BTreeMap<u32, u32> {
    volumes.values().map(|volume| (volume.family(), volume.domain)).collect()
}

/// Lets go of entries that keep the domain of a family without pages, unless pages of the family wait for
/// which nothing counts.
pub(super) fn forget_families(volumes: &mut BTreeMap<VolumeId, Volume>, orphans: &[Orphan]) {
    let mut wanted: BTreeSet<u32> = orphans.iter().map(|orphan| orphan.id.volume).collect();
    let has_more = |volume: &Volume| !volume.is_leaving() || volume.map.height > 0;
    for volume in volumes.values().filter(|volume| has_more(volume)) {
        wanted.remove(&volume.family());
    }
    volumes.retain(|_, volume| has_more(volume) || wanted.remove(&volume.family()));
}

/// Counts the blocks of a domain in the tables of a checkpoint.
fn count(kernel: &Kernel, old: &Tables, orphans: &[Orphan], domain: u32) -> Result<u64> {
    kernel.coverage.hit(Mark::DomainCounted);
    let mut counting = Counting::new(kernel);
    for volume in old.volumes.values().filter(|volume| volume.domain == domain) {
        let Some(top) = volume.top() else { continue };
        counting.below(vec![top])?;
    }
    if old.state.limits_domains() {
        let families = families(&old.volumes);
        let of_domain = |orphan: &&Orphan| families.get(&orphan.id.volume) == Some(&domain);
        for orphan in orphans.iter().filter(of_domain) {
            counting.below(vec![(orphan.id, orphan.page)])?;
        }
    }
    Ok(counting.found)
}

/// Blocks that maps name, each once.
struct Counting<'k> {
    kernel: &'k Kernel,
    pages: BlockSet,
    blocks: BlockSet,
    found: u64,
}

impl<'k> Counting<'k> {
    fn new(kernel: &'k Kernel) -> Counting<'k> {
        let geometry = kernel.geometry();
        let (pages, blocks) = (BlockSet::new(geometry), BlockSet::new(geometry));
        Counting { kernel, pages, blocks, found: 0 }
    }

    /// Counts below these pages of one level.
    fn below(&mut self, mut pages: Vec<(PageId, Pointer)>) -> Result<()> {
        let end = self.kernel.geometry().blocks();
        pages.retain(|(_, page)| page.address.0 < end && self.pages.insert(page.address));
        for batch in pages.chunks(PAGES_TOGETHER) {
            let mut wanted: Vec<_> = batch.iter().map(|&(id, page)| (id, page, None)).collect();
            self.kernel.pages.load(&mut wanted, batch[0].0.level > 0)?;
            for (id, _, page) in wanted {
                let page = page.ok_or_else(|| Error::new(Kind::Io, "a page of a map vanished"))?;
                if id.level > 0 {
                    let children =
                        (0..FANOUT).map(|slot| (child_id(id, slot), pointer(&page, slot)));
                    self.below(children.filter(|(_, child)| !child.is_none()).collect())?;
                    continue;
                }
                for slot in 0..Table::Map.per_leaf() {
                    if let Some(MapEntry::Block { pba, .. }) = MapEntry::get(&page, slot) {
                        let is_new = pba.0 < end && self.blocks.insert(pba);
                        self.found += u64::from(is_new);
                    }
                }
            }
        }
        Ok(())
    }
}
