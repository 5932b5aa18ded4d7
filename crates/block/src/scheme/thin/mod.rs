//! The thin scheme (ThinDedup II-A): the records of a window hide in as few compressed blocks as
//! can hold them.
//!
//! Blocks that look compressible are tried first. A window gives up after four blocks that did not
//! compress: a client whose data is compressed already pays for little. Records that found no room
//! go into carriers of their own, one more block of the same run.

use std::collections::BTreeMap;

use onefold_core::{Block, Pba, Result, VolumeId, compress::Lz4};

use super::{
    records::{Records, Replay, recover},
    shadow,
    verbs::{
        Ahead, Arrangement, Chosen, CountRule, Decided, Durability, FoundAtOpening, Job, NewRoots,
        Progress, Scheme,
    },
    windows::{self, Flush, WriteOrder},
};
use crate::{
    format::{
        carrier::{HEADER_BYTES, Header, room_beside},
        catalogue::Volume,
        record,
        record::WindowNumber,
    },
    idleness::Idleness,
    kernel::{Kernel, State},
    overlay::Overlay,
    table_build::TableBuild,
    window::{Plan, Window},
};

/// ThinDedup.
#[derive(Default)]
pub(crate) struct Thin(Records);

impl Scheme for Thin {
    fn lay_out(&self, kernel: &Kernel, window: &Window, decided: &Decided<'_>) -> Arrangement {
        self.0.lay_out(kernel, window, decided, choose, WriteOrder::Together)
    }

    fn seal(
        &self,
        kernel: &Kernel,
        plan: &mut Plan,
        arrangement: &Arrangement,
        header: Header,
    ) -> Result<()> {
        self.0.seal(kernel, plan, arrangement, header)
    }

    fn write(&self, kernel: &Kernel, how: Durability) -> Result<Progress> {
        match how {
            Durability::Cached => windows::write_window(kernel, self, WriteOrder::Together),
            Durability::AtOnce => windows::write_window_durably(kernel, self),
        }
    }

    fn make_durable(&self, kernel: &Kernel) -> Result<Progress> {
        windows::flush_and_publish(kernel, self, Flush::Windows)
    }

    fn acknowledge(&self, _: &Kernel, state: &mut State) {
        state.windows.acknowledge_published();
    }

    fn end_change(&self, _: &mut State) {}

    fn reserve(&self, kernel: &Kernel, state: &State, overlay: &Overlay, more: u64) -> u64 {
        shadow::pages_of(kernel, state, overlay, more)
    }

    fn count_ahead(&self, state: &State) -> Option<Ahead> {
        Some(shadow::count_ahead(state))
    }

    fn checkpoint(
        &self,
        build: &mut TableBuild<'_>,
        volumes: &mut BTreeMap<VolumeId, Volume>,
        job: Job<'_>,
    ) -> Result<NewRoots> {
        shadow::checkpoint(self, build, volumes, job)
    }

    fn built(&self, state: &State, committed: WindowNumber) -> WindowNumber {
        state.windows.durable().max(committed)
    }

    /// The checkpoint itself writes the tables' entries of blocks.
    fn release(&self, _: &Kernel, _: &[Pba]) -> Result<()> {
        Ok(())
    }

    fn keep(&self, kernel: &Kernel, state: &State, freed: Vec<Pba>) -> (Vec<Pba>, Vec<Pba>) {
        shadow::keep(kernel, state, freed)
    }

    fn recover(&self, kernel: &Kernel, found: FoundAtOpening) -> Result<Progress> {
        let replay = Replay { scheme: self, records: &self.0, lists_zones: true };
        recover(kernel, &replay, found)
    }

    /// Writes down how far windows are durable, so that a carrier that rots later is missed.
    fn idle(&self, kernel: &Kernel, idleness: Idleness) -> Result<Progress> {
        if idleness < Idleness::Short {
            return Ok(Progress::Idle);
        }
        windows::note_durable(kernel, self)
    }

    fn counts(&self) -> &'static dyn CountRule {
        &shadow::LinksAlone
    }
}

/// Blocks of a window that may fail to compress before the rest is not tried.
const FAILED_TRIES_MAX: usize = 4;

/// Numbers of distinct bytes, of [`distinct_bytes`], from which on blocks are less and less likely
/// to compress: of noise there are 57.
const LIKELY: [u32; 4] = [16, 28, 40, 53];

/// A block becomes a carrier only for this many records, or for all that are left: fewer would not
/// pay for expanding it at each read.
const RECORDS_WORTH: usize = 8;

/// Blocks of a window that are looked at for their likelihood to compress.
const LOOKED_AT_MAX: usize = 64;

/// Chooses carriers among a window's new blocks for `records` records. Each takes `extra` bytes besides
/// what it compresses to.
pub(crate) fn choose(
    lz4: &mut Lz4,
    blocks: &[&Block],
    records: usize,
    extra: usize,
) -> Vec<Chosen> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    // Of blocks that look alike the first come first: a recovery then finds carriers next to each
    // other.
    order[..blocks.len().min(LOOKED_AT_MAX)].sort_by_cached_key(|&n| {
        LIKELY.partition_point(|&least| least <= distinct_bytes(blocks[n]))
    });
    let mut chosen = Vec::new();
    let (mut left, mut failed) = (records, 0);
    for n in order {
        if left == 0 || failed == FAILED_TRIES_MAX {
            break;
        }
        let worth = left.min(RECORDS_WORTH);
        let most = 4096 - HEADER_BYTES - worth * record::BYTES - extra;
        match lz4.compress(blocks[n], most) {
            Some(payload) => {
                let room = room_beside(payload.len() + extra);
                chosen.push(Chosen { block: n, payload: payload.to_vec(), room });
                left -= left.min(room);
            }
            None => failed += 1,
        }
    }
    chosen
}

/// How many different values a few bytes of the block have: blocks with few compress best.
fn distinct_bytes(block: &Block) -> u32 {
    let mut seen = [0u64; 4];
    for n in 0..64 {
        let byte = block.0[n * 64 + 13];
        seen[usize::from(byte / 64)] |= 1 << (byte % 64);
    }
    seen.iter().map(|word| word.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, zeroes: usize) -> Block {
        let mut state = seed;
        let mut block = Block([0; 4096]);
        for byte in &mut block.0[..4096 - zeroes] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        block
    }

    #[test]
    fn as_few_blocks_as_can_hold_the_records_become_carriers() {
        let blocks: Vec<Block> =
            (0..32).map(|n| noise(n + 1, if n % 5 == 0 { 0 } else { 819 })).collect();
        let refs: Vec<&Block> = blocks.iter().collect();
        let chosen = choose(&mut Lz4::default(), &refs, 32, 0);
        assert_eq!(chosen.len(), 2);
        assert!(chosen.iter().map(|chosen| chosen.room).sum::<usize>() >= 32);
        assert!(chosen.iter().all(|chosen| chosen.block % 5 != 0));
    }

    #[test]
    fn incompressible_windows_give_up_early() {
        let blocks: Vec<Block> = (0..32).map(|n| noise(n + 1, 0)).collect();
        let refs: Vec<&Block> = blocks.iter().collect();
        assert!(choose(&mut Lz4::default(), &refs, 32, 0).is_empty());
    }
}
