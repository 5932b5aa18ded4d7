//! References and fingerprints, built anew: counts from the maps, fingerprints from the old table,
//! or from the content where that can't tell.

use std::collections::BTreeMap;

use onefold_core::{Block, Fingerprint, Pba, Result};

use super::{
    build::Builder,
    named::content,
    once::{PageNames, each_map_leaf},
};
use crate::{
    block_set::BlockSet,
    check::{
        counts::Counts,
        packs::checksum_of,
        report::{Phase, Progress},
        tables::Checker,
        usage::{Named, Usage},
    },
    format::{
        domain_entry::DomainEntry,
        page::{self, Form, MapEntry, PageId, Pointer, ReferenceEntry, Table},
        superblock::Root,
    },
};

/// Leaves of old fingerprints that are looked at together.
const LEAVES: u64 = 64;

/// The content of the new tables.
pub(super) struct Rebuilt {
    pub(super) references: Root,
    pub(super) fingerprints: Root,
    /// The accounts of pages that several maps name.
    pub(super) shares: Root,
    pub(super) live: u64,
    pub(super) mapped: u64,
    /// Packs, and the addresses in them.
    pub(super) packs: u64,
    pub(super) fragments: u64,
    /// Blocks with references.
    pub(super) blocks: BlockSet,
    /// Domains with limits, and what they store.
    pub(super) domains: Vec<DomainEntry>,
}

/// Builds the tables from the maps of `checker.volumes`, whose pages are all on the disk.
pub(super) fn build(checker: &mut Checker<'_>, builder: &mut Builder<'_>) -> Result<Rebuilt> {
    let (mut references, mut fingerprints) =
        (Leaves::of(Table::References), Leaves::of(Table::Fingerprints));
    let (mut live, mut mapped, mut packs, mut fragments) = (0, 0, 0, 0);
    let mut names = PageNames::new(checker.geometry);
    let mut blocks = BlockSet::new(checker.geometry);
    let mut domains = Counts::of(checker.state, checker.geometry);
    let per_leaf = Table::Fingerprints.per_leaf();
    let stretches = checker.stretches.clone();
    for (n, stretch) in stretches.iter().enumerate() {
        (checker.progress)(Progress {
            what: Phase::Rebuild,
            done: n as u64,
            total: stretches.len() as u64,
        });
        let mut usage = Usage::counting(checker.geometry, stretch.clone(), &checker.dark);
        checker.load_blocks(&mut usage, |_, _, _| {});
        // Blocks of which the maps, proven by content, say something else than the old tables.
        let mut corrected: BTreeMap<Pba, (Form, u64)> = BTreeMap::new();
        let first = (n == 0).then_some(&mut names);
        let mut once = PageNames::new(checker.geometry);
        let counted = first.unwrap_or(&mut once);
        each_map_leaf(checker, Some(counted), &mut |checker, volume, _, at, page| {
            if n == 0 {
                domains.leaf(volume.domain, at.address, page, |pba| checker.may_hold(pba));
            }
            for slot in 0..Table::Map.per_leaf() {
                let Some(entry @ MapEntry::Block { pba, form, prefix }) = MapEntry::get(page, slot)
                else {
                    continue;
                };
                if !checker.may_hold(pba) {
                    continue;
                }
                mapped += u64::from(n == 0);
                fragments += u64::from(n == 0 && form.is_packed());
                if let Named::Differs(_) = usage.count(&entry) {
                    corrected.insert(pba, (form, prefix));
                }
            }
        });
        let starts =
            usage.zones.iter().map(|(&zone, facts)| (zone * checker.geometry.zone_blocks, facts));
        let named: Vec<(Pba, u32)> = starts
            .flat_map(|(start, facts)| (start..).zip(facts.blocks.iter()))
            .filter(|(_, fact)| fact.counted() > 0)
            .map(|(pba, fact)| (Pba(pba), fact.counted()))
            .collect();
        live += named.len() as u64;
        packs += usage.packs();
        for group in named
            .chunk_by(|one, other| one.0.0 / per_leaf / LEAVES == other.0.0 / per_leaf / LEAVES)
        {
            let mut old: BTreeMap<u64, Box<Block>> = BTreeMap::new();
            let first = group[0].0.0 / per_leaf / LEAVES * LEAVES;
            checker.walk(
                Table::Fingerprints,
                0,
                &checker.state.fingerprints,
                Some(first..first + LEAVES),
                &mut |_, id, _, page| {
                    old.insert(id.index, Box::new(page.clone()));
                },
            );
            for &(pba, counted) in group {
                let offset = checker.geometry.offset_of(pba);
                let fact = usage
                    .zones
                    .get(&checker.geometry.zone_of(pba).0)
                    .map(|zone| zone.blocks[offset])
                    .unwrap_or_default();
                let old = old
                    .get(&(pba.0 / per_leaf))
                    .filter(|_| fact.references() > 0)
                    .map(|page| page::fingerprint(page, pba.0 % per_leaf));
                // With leaves in place a crash may have taken it.
                let old = old.filter(|old| *old != Fingerprint::default());
                let (disk, identity) = (checker.walker.disk, checker.walker.identity);
                let of_pack = |form: Form| fact.is_pack() || form.is_packed();
                let whole = || checksum_of(disk, identity, pba);
                let proven = corrected.get(&pba).and_then(|&(form, prefix)| match of_pack(form) {
                    true => Some((true, whole()?)),
                    false => {
                        Some((form.is_compressed(), content(disk, identity, pba, form, prefix)?))
                    }
                });
                let (carried, fingerprint) = match (proven, old) {
                    (Some(proven), _) => proven,
                    // The maps name fragments, so that the table can only have the checksum.
                    (None, old) if fact.is_pack() => {
                        (true, whole().or(old).unwrap_or_else(|| cut(fact.prefix)))
                    }
                    (None, Some(old)) => (fact.carried(), old),
                    (None, None) => {
                        let form = Form::of(fact.carried());
                        let found = content(disk, identity, pba, form, fact.prefix);
                        (fact.carried(), found.unwrap_or_else(|| cut(fact.prefix)))
                    }
                };
                blocks.insert(pba);
                let references_of = counted.saturating_add(u32::from(checker.in_place));
                let entry = ReferenceEntry {
                    references: references_of.min(ReferenceEntry::SATURATED),
                    carried,
                };
                let (page, slot) = references.holding(builder, checker, pba)?;
                entry.set(page, slot);
                let (page, slot) = fingerprints.holding(builder, checker, pba)?;
                page::set_fingerprint(page, slot, &fingerprint);
            }
        }
    }
    let (references, fingerprints) =
        (references.tree(builder, checker)?, fingerprints.tree(builder, checker)?);
    let shares = match checker.state.shares_pages() {
        true => names.write(builder, checker.state.committed)?,
        false => Root::default(),
    };
    let counted = checker.state.domains.iter();
    let counted =
        counted.map(|entry| DomainEntry { stored: Some(domains.stored(entry.number)), ..*entry });
    let domains = counted.collect();
    Ok(Rebuilt {
        references,
        fingerprints,
        shares,
        live,
        mapped,
        packs,
        fragments,
        blocks,
        domains,
    })
}

/// The known part of the fingerprint of a block whose content is damaged. No block that is written
/// later can be taken for its duplicate.
fn cut(prefix: u64) -> Fingerprint {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&prefix.to_le_bytes());
    Fingerprint(bytes)
}

/// The leaves of a table, in rising order; the last one may still get entries.
struct Leaves {
    table: Table,
    pending: Option<(u64, Box<Block>)>,
    written: Vec<(u64, Pointer)>,
}

impl Leaves {
    fn of(table: Table) -> Leaves {
        Leaves { table, pending: None, written: Vec::new() }
    }

    /// The leaf with the entry of a block, and its place there.
    fn holding(
        &mut self,
        builder: &mut Builder<'_>,
        checker: &Checker<'_>,
        pba: Pba,
    ) -> Result<(&mut Block, u64)> {
        let (leaf, slot) = (pba.0 / self.table.per_leaf(), pba.0 % self.table.per_leaf());
        if self.pending.as_ref().is_some_and(|(at, _)| *at != leaf) {
            self.finish(builder, checker)?;
        }
        // With leaves in place these two tables have no gaps.
        let next = self.written.last().map_or(0, |(last, _)| last + 1);
        let gap = if checker.in_place && self.pending.is_none() { next..leaf } else { 0..0 };
        for index in gap {
            let id = PageId { table: self.table, volume: 0, level: 0, index };
            self.written.push((
                index,
                builder.page_even_empty(id, checker.state.committed, Block::zeroed())?,
            ));
        }
        Ok((&mut self.pending.get_or_insert_with(|| (leaf, Block::zeroed())).1, slot))
    }

    fn finish(&mut self, builder: &mut Builder<'_>, checker: &Checker<'_>) -> Result<()> {
        let Some((index, page)) = self.pending.take() else { return Ok(()) };
        let id = PageId { table: self.table, volume: 0, level: 0, index };
        self.written.push((index, builder.page(id, checker.state.committed, page)?));
        Ok(())
    }

    fn tree(mut self, builder: &mut Builder<'_>, checker: &Checker<'_>) -> Result<Root> {
        self.finish(builder, checker)?;
        builder.tree(self.table, checker.state.committed, self.written)
    }
}
