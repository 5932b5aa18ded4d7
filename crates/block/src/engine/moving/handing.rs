//! The content of blocks that are moved: what readers in order handed over, and what is read for it.

use onefold_core::{Block, BlockRead, Fingerprint, Lba, Result, VolumeId};

use super::looking::blocks_a_run;
use crate::{
    coverage::Mark,
    engine::read::{Wanted, read, read_stored},
    format::page::{MapEntry, Table},
    kernel::{Kernel, Plan},
    moving::{Found, HandedLeaf, Why},
    rules::Rule,
    scheme::verbs::Scheme,
    settings::Tidying,
    space::Extent,
};

/// A block that was read and proved.
pub(super) struct Copied {
    pub(super) lba: Lba,
    pub(super) from: MapEntry,
    /// By the newest key of its domain.
    pub(super) fingerprint: Fingerprint,
    pub(super) block: Block,
    /// It was written before the data key of its domain was changed.
    pub(super) is_older: bool,
    /// It is of a critical range: no other address shares it.
    pub(super) is_critical: bool,
}

/// Copies, and the places that they get.
pub(super) type Placed = Vec<(Extent, Vec<Copied>)>;

/// Reads for a client that reads in order. What lies in more pieces than blocks that are neighbours should
/// is handed over to moving.
pub(in crate::engine) fn read_in_order(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    reads: &mut [BlockRead<'_>],
) {
    let found = read(kernel, volume, reads);
    let blocks_a_run = blocks_a_run(kernel);
    let is_scattered = found.runs * blocks_a_run > found.blocks && found.blocks >= blocks_a_run;
    if kernel.settings.tidying != Tidying::Moves || scheme.begin_moment().is_err() {
        return;
    }
    let mut handed = kernel.handed.lock();
    for read in reads.iter().filter(|read| read.result.is_ok() && !read.into.is_empty()) {
        if is_scattered {
            handed.take_over(volume, read.first, read.into);
        } else {
            handed.pass(volume, read.first.plus(read.into.len() as u64 - 1));
        }
    }
}

/// The content of blocks, proved by their fingerprints: what a reader handed over, and what is read
/// now. What can't be read is left out.
pub(super) fn copies_of(
    kernel: &Kernel,
    domain: u32,
    blocks: &Found,
    (plan, handed): (&Plan, &mut Option<HandedLeaf>),
) -> Result<Vec<Copied>> {
    let leaf = blocks.first().map(|(lba, _)| lba.0 / Table::Map.per_leaf());
    let handed = handed.as_mut().filter(|handed| {
        (handed.volume, Some(handed.leaf)) == (plan.volume, leaf) && handed.is_planned
    });
    let given: Vec<Option<Block>> = match handed {
        Some(handed) => blocks.iter().map(|&(lba, _)| handed.take(lba)).collect(),
        None => vec![None; blocks.len()],
    };
    let of = (domain, plan.why);
    let mut all = proved(kernel, of, blocks, given, kernel.keeps(Rule::HandedBlocksProven))?;
    kernel.coverage.add(Mark::BlocksHanded, all.iter().flatten().count());
    let wanted: Vec<Option<Wanted>> = blocks
        .iter()
        .zip(&all)
        .map(|(&(_, entry), known)| match entry {
            MapEntry::Block { pba, form, prefix } if known.is_none() => {
                Some(Wanted { pba, form, prefix })
            }
            _ => None,
        })
        .collect();
    if wanted.iter().any(Option::is_some) {
        let read = read_stored(kernel, domain, &wanted);
        let read = proved(kernel, of, blocks, read, true)?;
        all = all.into_iter().zip(read).map(|(known, read)| known.or(read)).collect();
    }
    Ok(all.into_iter().flatten().collect())
}

/// The blocks whose content is what the map names.
fn proved(
    kernel: &Kernel,
    (domain, why): (u32, Why),
    blocks: &Found,
    content: Vec<Option<Block>>,
    compares: bool,
) -> Result<Vec<Option<Copied>>> {
    let all: Vec<&Block> = content.iter().flatten().collect();
    let fingerprints = kernel.identity.fingerprinter_of(domain)?.many(&all);
    let mut fingerprints = fingerprints.into_iter();
    let older = kernel.identity.older_fingerprinter_of(domain);
    let stays_older = why != Why::Resealing && !kernel.keeps(Rule::CopiesByNewestKey);
    let proved = blocks.iter().zip(content).map(|(&(lba, from), block)| {
        let block = block?;
        let of = fingerprints.next()?;
        let MapEntry::Block { prefix, .. } = from else { return None };
        // One that is not shared is known by the other of the two.
        let both = |of: Fingerprint| [of, of.unshared()];
        let known = both(of).into_iter().find(|of| of.prefix() == prefix);
        // A copy is under the newest key in any case.
        let before = older.filter(|_| known.is_none()).and_then(|older| {
            let mut found = both(older.one(&block)).into_iter().zip(both(of));
            let (older, of) = found.find(|(older, _)| older.prefix() == prefix)?;
            Some(if stays_older { older } else { of })
        });
        let fingerprint = known.or(before).or((!compares).then_some(of))?;
        let is_critical = fingerprint == of.unshared();
        let is_older = before.is_some();
        Some(Copied { lba, from, fingerprint, block, is_older, is_critical })
    });
    Ok(proved.collect())
}
