//! The physical table, built anew: counts from the maps, fingerprints from the old table, or from the content where that can't tell.

use std::collections::BTreeMap;

use onefold_core::{Block, Fingerprint, Pba, Result};

use super::{build::Builder, named::content, place_of};
use crate::{
    check::{
        report::{Phase, Progress},
        tables::Checker,
        usage::{BlockSet, Named, Usage},
    },
    format::{
        page::{MapEntry, PageId, PhysicalEntry, Pointer, Table},
        superblock::Root,
    },
};

/// Leaves of the old table that are looked at together.
const LEAVES: u64 = 64;

/// What the new table holds.
pub(super) struct Physical {
    pub(super) root: Root,
    pub(super) live: u64,
    pub(super) mapped: u64,
    /// Blocks with references.
    pub(super) blocks: BlockSet,
}

/// Builds the table from the maps of `checker.volumes`, whose pages are all on the disk.
pub(super) fn build(checker: &mut Checker<'_>, builder: &mut Builder<'_>) -> Result<Physical> {
    let mut leaves = Leaves { pending: None, written: Vec::new() };
    let (mut live, mut mapped) = (0, 0);
    let mut blocks = BlockSet::new(checker.geometry);
    let per_leaf = Table::Physical.per_leaf();
    let stretches = checker.stretches.clone();
    for (n, stretch) in stretches.iter().enumerate() {
        (checker.progress)(Progress { what: Phase::Rebuild, done: n as u64, total: stretches.len() as u64 });
        let mut usage = Usage::counting(checker.geometry, stretch.clone());
        checker.load_physical(&mut usage);
        // Blocks of which the maps, proven by content, say something else than the old table.
        let mut corrected: BTreeMap<Pba, (bool, u64)> = BTreeMap::new();
        for v in 0..checker.volumes.len() {
            let (volume, map) = (checker.volumes[v].id, checker.volumes[v].map);
            checker.walk(Table::Map, volume.0, &map, Some(0..u64::MAX), &mut |checker, _, _, page| {
                for slot in 0..Table::Map.per_leaf() {
                    let Some(entry @ MapEntry::Block { pba, carried, prefix }) = MapEntry::get(page, slot) else { continue };
                    if !checker.geometry.holds(pba) || checker.geometry.zone_of(pba).0 >= checker.state.high_water {
                        continue;
                    }
                    mapped += u64::from(n == 0);
                    if let Named::Differs(_) = usage.count(&entry) {
                        corrected.insert(pba, (carried, prefix));
                    }
                }
            });
        }
        let starts = usage.zones.iter().map(|(&zone, facts)| (zone * checker.geometry.zone_blocks, facts));
        let named: Vec<(Pba, u32)> = starts
            .flat_map(|(start, facts)| (start..).zip(facts.blocks.iter()))
            .filter(|(_, fact)| fact.counted > 0)
            .map(|(pba, fact)| (Pba(pba), fact.counted))
            .collect();
        live += named.len() as u64;
        for group in named.chunk_by(|one, other| one.0.0 / per_leaf / LEAVES == other.0.0 / per_leaf / LEAVES) {
            let mut old: BTreeMap<u64, Box<Block>> = BTreeMap::new();
            let first = group[0].0.0 / per_leaf / LEAVES * LEAVES;
            checker.walk(Table::Physical, 0, &checker.state.physical, Some(first..first + LEAVES), &mut |_, id, _, page| {
                old.insert(id.index, Box::new(page.clone()));
            });
            for &(pba, counted) in group {
                let (leaf, slot) = place_of(pba, per_leaf);
                let old = old.get(&leaf).map_or_else(PhysicalEntry::default, |page| PhysicalEntry::get(page, slot));
                let offset = checker.geometry.offset_of(pba);
                let fact = usage.zones.get(&checker.geometry.zone_of(pba).0).map(|zone| zone.blocks[offset]).unwrap_or_default();
                let (disk, identity) = (checker.walker.disk, checker.walker.identity);
                let proven =
                    corrected.get(&pba).and_then(|&(carried, prefix)| Some((carried, content(disk, identity, pba, carried, prefix)?)));
                let (carried, fingerprint) = match proven {
                    Some(proven) => proven,
                    None if old.references > 0 => (old.carried, old.fingerprint),
                    None => {
                        let found = content(disk, identity, pba, fact.carried(), fact.prefix);
                        (fact.carried(), found.unwrap_or_else(|| cut(fact.prefix)))
                    }
                };
                blocks.insert(pba);
                let references = counted.min(PhysicalEntry::SATURATED);
                leaves.page(builder, checker, leaf)?;
                if let Some((_, page)) = &mut leaves.pending {
                    PhysicalEntry { fingerprint, references, carried }.set(page, slot);
                }
            }
        }
    }
    leaves.finish(builder, checker)?;
    let root = builder.tree(Table::Physical, checker.state.committed, leaves.written)?;
    Ok(Physical { root, live, mapped, blocks })
}

/// What is known of the fingerprint of a block whose content is damaged. Nothing that is written later can be taken for its duplicate.
fn cut(prefix: u64) -> Fingerprint {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&prefix.to_le_bytes());
    Fingerprint(bytes)
}

/// The leaves, in rising order; the last one may still get entries.
struct Leaves {
    pending: Option<(u64, Box<Block>)>,
    written: Vec<(u64, Pointer)>,
}

impl Leaves {
    /// Goes on to a leaf.
    fn page(&mut self, builder: &mut Builder<'_>, checker: &Checker<'_>, leaf: u64) -> Result<()> {
        if self.pending.as_ref().is_none_or(|(at, _)| *at != leaf) {
            self.finish(builder, checker)?;
            self.pending = Some((leaf, Block::zeroed()));
        }
        Ok(())
    }

    fn finish(&mut self, builder: &mut Builder<'_>, checker: &Checker<'_>) -> Result<()> {
        let Some((index, page)) = self.pending.take() else { return Ok(()) };
        let id = PageId { table: Table::Physical, volume: 0, level: 0, index };
        self.written.push((index, builder.page(id, checker.state.committed, page)?));
        Ok(())
    }
}
