//! Steps that break a rule; only the simulator runs them.

use onefold_core::Result;
use onefold_seal::KeyArea;

use super::lookup::{Sought, look_up};
use crate::{
    format::{geometry::Geometry, page::MapEntry},
    kernel::{Kernel, State},
    overlay::Tables,
    rules::Rule,
    window::{Placed, Window},
};

/// Breaks `ReuseAfterRelease`: the blocks that the window overwrites may be handed out at once.
pub(super) fn reuse_early(state: &mut State, window: &Window, slots: &[usize]) {
    for &slot in slots {
        let block = &window.blocks[slot];
        if let Some(MapEntry::Block { pba, .. }) =
            state.overlays.active().find(block.volume, block.lba)
        {
            state.allocator.reuse_early(pba);
        }
    }
}

/// Breaks `DuplicatesWithinDomain`: what is not stored in its own domain is looked for in the others.
pub(super) fn look_elsewhere(
    kernel: &Kernel,
    tables: &Tables,
    wanted: &[Option<Sought<'_>>],
    stored: &mut [Option<Placed>],
) -> Result<()> {
    let identity = &kernel.identity;
    for (wanted, stored) in wanted.iter().zip(stored) {
        let Some(Sought { domain: own, block: Some(block), .. }) = *wanted else { continue };
        for domain in identity.domains().filter(|&domain| domain != own) {
            if stored.is_none() {
                let fingerprint = &identity.fingerprinter_of(domain)?.one(block);
                let sought = Sought { domain, fingerprint, block: Some(block) };
                *stored = look_up(kernel, tables, &[Some(sought)])?.pop().flatten();
            }
        }
    }
    Ok(())
}

/// Breaks `DuplicatesByNewestKey`: what is not stored under the newest data key is looked for under the older.
pub(super) fn look_before(
    kernel: &Kernel,
    tables: &Tables,
    wanted: &[Option<Sought<'_>>],
    stored: &mut [Option<Placed>],
) -> Result<()> {
    for (wanted, stored) in wanted.iter().zip(stored) {
        let Some(Sought { domain, block: Some(block), .. }) = *wanted else { continue };
        let Some(older) = kernel.identity.older_fingerprinter_of(domain) else { continue };
        if stored.is_none() {
            let fingerprint = &older.one(block);
            let sought = Sought { domain, fingerprint, block: Some(block) };
            *stored = look_up(kernel, tables, &[Some(sought)])?.pop().flatten();
        }
    }
    Ok(())
}

/// Breaks `ListPagesFollowMove` or `ListZonesKept`, when the zone list has moved.
pub(super) fn forget_move(kernel: &Kernel, state: &mut State, before: Geometry) {
    if !kernel.keeps(Rule::ListPagesFollowMove) {
        state.allocator.list.stay_at(before);
    }
    if !kernel.keeps(Rule::ListZonesKept) {
        state.allocator.hand_out_list();
    }
}

/// Breaks `CodeBeforeCopying`: the higher copy of the key area replaces the other one, whoever made it.
/// Gives both, and which of them is to be written.
pub(super) fn copied(mut copies: [Vec<u8>; 2]) -> ([Vec<u8>; 2], [bool; 2]) {
    let numbers = [&copies[0], &copies[1]]
        .map(|bytes| KeyArea::decode(bytes).map_or(0, |area| area.sequence()));
    let from = usize::from(numbers[1] > numbers[0]);
    if numbers[from] == 0 || copies[0] == copies[1] {
        return (copies, [false; 2]);
    }
    copies[1 - from] = copies[from].clone();
    (copies, [from == 1, from == 0])
}
