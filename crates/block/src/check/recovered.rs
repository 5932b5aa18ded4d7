//! The changes of a store that no checkpoint holds: what an opening would make of them.
//!
//! The engine itself recovers the store and makes one checkpoint of it, over a disk that keeps
//! every write in memory; the result is verified like any checkpoint. So whatever recovery misses
//! (a carrier below the durable window, a record that names nothing) is found by the very code that
//! would meet it, and whatever it would do wrong is found as well.
//!
//! A carrier that was acknowledged but not yet told durable by a later one can't be missed by
//! recovery: it looks like one that was torn. One flipped bit in it is not a tear, though, and is
//! found here.

use std::{sync::Arc, time::Duration};

use onefold_core::{Block, Clock, Disk, Pba};

use super::{
    batch::read_each,
    leftover::rotten_pages,
    overlay_disk::OverlayDisk,
    places,
    report::{Phase, Place, Progress, Report},
    rot,
    tables::Checker,
};
use crate::{
    block_set::BlockSet,
    engine::Engine,
    format::{
        Identity,
        carrier::{Carrier, near_carrier},
        superblock::Superblock,
    },
    settings::{KeySource, MEMORY_MIN, Settings},
};

/// Bytes that recovery and its checkpoint may write to memory; with more, the checkpoint is left
/// out.
pub(crate) const OVERLAY_BYTES: u64 = 1 << 30;

/// Damaged carriers that are tried for a flipped bit: each takes some 50 ms.
const SUSPECTS_MAX: usize = 64;

/// A clock that stands still: nothing that is looked at here depends on time.
pub(crate) struct Still;

impl Clock for Still {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

/// The store that is judged.
pub(crate) struct Of<'a> {
    pub(crate) keys: &'a KeySource,
    pub(crate) superblock: &'a Superblock,
    pub(crate) identity: &'a Identity,
}

/// Judges what an opening would make of an unclean store. Carriers in `proven` were read before.
pub(crate) fn check(
    disk: &Arc<dyn Disk>,
    &Of { keys, superblock, identity }: &Of<'_>,
    memory: u64,
    proven: &BlockSet,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) {
    progress(Progress { what: Phase::Recovery, done: 0, total: 0 });
    for (pba, bit, _) in rotten_carriers(&**disk, superblock, identity) {
        report.problem(
            Place::Block(pba),
            format!("it is a carrier, but damaged: bit {bit} is flipped"),
        );
    }
    for (pba, bit, _) in rotten_pages(&**disk, superblock, identity) {
        report.problem(
            Place::Block(pba),
            format!("it is a page of the leftover table, but damaged: bit {bit} is flipped"),
        );
    }
    let overlay = Arc::new(OverlayDisk::new(disk.clone(), OVERLAY_BYTES));
    let settings = Settings { keys: keys.clone(), ..Settings::for_memory(MEMORY_MIN) };
    let opened = Engine::open(overlay.clone(), Arc::new(Still), settings);
    let engine = match opened {
        Ok(engine) => engine,
        Err(_) if overlay.overflowed() => {
            return report.note("recovery would write more than fits in memory here: the changes since the last checkpoint were not tried");
        }
        Err(e) => return report.problem(Place::Store, format!("it can't be opened: {e}")),
    };
    match engine.checkpoint() {
        Ok(()) => {}
        Err(_) if overlay.overflowed() => {
            return report.note("the changes since the last checkpoint are too many to try a checkpoint of them in memory");
        }
        Err(e) => {
            return report.problem(
                Place::Store,
                format!("after its recovery no checkpoint can be made: {e}"),
            );
        }
    }
    drop(engine);
    match crate::engine::opening::read_superblock(&*overlay, identity.sealing.as_deref()) {
        Err(e) => report.problem(Place::Store, format!("after its recovery: {e}")),
        Ok(after) => {
            let leaked = report.leaked_blocks;
            let whole = report.is_well();
            Checker::new(&*overlay, identity, &after, report, progress)
                .run(memory, &mut |pba| proven.contains(pba) && !overlay.is_written(pba));
            if !whole {
                // Damage may keep leaks from being judged afterwards.
                report.leaked_blocks = report.leaked_blocks.max(leaked);
            }
        }
    }
}

/// Carriers in the listed zones that one flipped bit damaged: where, which bit, and as they were.
pub(crate) fn rotten_carriers(
    disk: &dyn Disk,
    superblock: &Superblock,
    identity: &Identity,
) -> Vec<(Pba, usize, Box<Block>)> {
    let geometry = superblock.fixed.geometry;
    // Where a sealed store has its carriers, only the zone list tells.
    let sealed = identity.sealing.is_some();
    let mut suspects: Vec<(Pba, u64, Box<Block>)> = Vec::new();
    for entry in places::listed(disk, identity, superblock) {
        let start = geometry.start_of(entry.zone);
        let all = (0..geometry.zone_blocks)
            .filter(|&n| entry.carriers.is_none_or(|carriers| carriers.get(n as usize)));
        let blocks: Vec<Pba> = all.map(|n| start.plus(n)).collect();
        read_each(disk, &blocks, &mut |pba, block| {
            if let Ok(block) = block
                && suspects.len() < SUSPECTS_MAX
                && (near_carrier(identity, block, pba) || sealed && entry.carriers.is_some())
                && Carrier::proven(identity, block, pba).is_none()
            {
                suspects.push((pba, entry.generation, Box::new(block.clone())));
            }
        });
    }
    let committed = superblock.state.committed;
    let restored = suspects.into_iter().filter_map(|(pba, generation, mut block)| {
        // Carriers of earlier lives of a zone, and those that a checkpoint holds, mean nothing any
        // more.
        let whole = |block: &Block| {
            let header = Carrier::proven(identity, block, pba).map(|carrier| carrier.header);
            header
                .is_some_and(|header| header.generation == generation && header.window > committed)
        };
        rot::restore_copy(&mut block, whole).map(|bit| (pba, bit, block))
    });
    restored.collect()
}
