//! Releases: when blocks become free that a new version of the tables does not need.
//!
//! *Invariant*, which only this file can break: the zone table that the allocator reads is that of
//! the last checkpoint whose blocks were released, or are being released.

use crate::format::superblock::Root;

/// The releases so far, and what the next one has to decide on.
pub(crate) struct Releases {
    /// The zone table of the last checkpoint that is *released*, or is being released: by that of a newer
    /// one, blocks may be free that a reader still needs.
    zone_table: Root,
    /// Blocks that the last checkpoint found free, but newer records name: the next one decides on
    /// them.
    deferred: usize,
    /// A checkpoint is durable, and the blocks that it does not need are about to be freed.
    under_way: bool,
    /// How often blocks began to be freed.
    count: u64,
}

impl Releases {
    /// Of a store whose last checkpoint has this zone table.
    pub(crate) fn after(zone_table: Root) -> Releases {
        Releases { zone_table, deferred: 0, under_way: false, count: 0 }
    }

    /// The zone table of the last released checkpoint.
    pub(crate) fn zone_table(&self) -> Root {
        self.zone_table
    }

    /// How often blocks began to be freed: knowledge of a block from before may be wrong after.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Blocks that the last checkpoint found free, but newer records name.
    pub(crate) fn deferred(&self) -> usize {
        self.deferred
    }

    /// True when blocks are about to be freed, or a checkpoint may free some that were put off.
    pub(crate) fn may_follow(&self) -> bool {
        self.under_way || self.deferred > 0
    }

    /// A checkpoint is durable: its release follows.
    pub(crate) fn begin(&mut self) {
        self.under_way = true;
    }

    /// Nobody reads the version before a checkpoint with this zone table: the blocks that it does not need
    /// become free from now on, and nobody finds them any more.
    pub(crate) fn start(&mut self, zone_table: Root) {
        (self.zone_table, self.count) = (zone_table, self.count + 1);
    }

    /// The blocks that the checkpoint does not need are free, but for those that were put off.
    pub(crate) fn end(&mut self, deferred: usize) {
        (self.deferred, self.under_way) = (deferred, false);
    }

    /// Blocks lost their last links before a checkpoint: a lookup from before may have found one of
    /// them.
    pub(crate) fn unlinked(&mut self) {
        self.count += 1;
    }

    /// A recovery found so many free blocks that newer records name.
    pub(crate) fn recovered(&mut self, deferred: usize) {
        self.deferred = deferred;
    }
}
