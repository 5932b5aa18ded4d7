//! The state below the kernel's lock: windows on their way, published changes, space, volumes.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Block, Error, Kind, Lba, Result, VolumeId};

use super::{ration::Ration, volumes::VolumeState};
use crate::{
    fail_stop::FailStop,
    flushes::Flushes,
    format::{
        catalogue::{CatalogueChange, VOLUME_BLOCKS_MAX, check_name},
        page::MapEntry,
        superblock::Root,
    },
    overlay::{Overlays, created},
    space::Allocator,
    window::{Window, Windows},
};

/// The state that the lock protects.
pub(crate) struct State {
    pub(crate) windows: Windows,
    pub(crate) overlays: Overlays,
    /// The zone table of the last *released* checkpoint: in that of the snapshot, blocks may be
    /// free that a reader still needs.
    pub(crate) zone_table: Root,
    pub(crate) volumes: BTreeMap<VolumeId, VolumeState>,
    pub(crate) next_volume: u32,
    pub(crate) allocator: Allocator,
    pub(crate) epoch: u32,
    /// Blocks that the last checkpoint found free, but newer records name: the next one decides on
    /// them.
    pub(crate) deferred: usize,
    /// Pages set aside for writing the index.
    pub(crate) spilling_pages: u64,
    pub(crate) fail_stop: FailStop,
    /// A checkpoint should run although nothing forces it yet.
    pub(crate) checkpoint_wanted: bool,
    pub(crate) flushes: Flushes,
    /// A checkpoint is durable, and the blocks that it does not need are about to be freed.
    pub(crate) releasing: bool,
    /// With leaves in place: a window waits for leaves that do not exist.
    pub(crate) leaves_wanted: bool,
    /// How often blocks were freed: knowledge of a block from before may be wrong after.
    pub(crate) releases: u64,
    /// There when the volumes may be those of several tenants.
    pub(crate) ration: Option<Ration>,
}

impl State {
    /// Records that no checkpoint holds: gathered, in flight and published.
    pub(crate) fn uncommitted_records(&self) -> u64 {
        self.overlays.records() + self.windows.records() as u64
    }

    /// Fails when writes were stopped.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.fail_stop.check()
    }

    /// The volume, if it exists.
    pub(crate) fn volume(&self, id: VolumeId) -> Result<&VolumeState> {
        self.volumes
            .get(&id)
            .ok_or_else(|| Error::new(Kind::NotFound, "the volume does not exist any more"))
    }

    pub(crate) fn named(&self, name: &str) -> Option<VolumeId> {
        self.volumes.iter().find(|(_, volume)| volume.name == name).map(|(&id, _)| id)
    }

    pub(crate) fn check_new_name(&self, name: &str) -> Result<()> {
        check_name(name)?;
        match self.named(name) {
            Some(_) => Err(Error::new(Kind::Exists, format!("there is a volume '{name}' already"))),
            None => Ok(()),
        }
    }

    /// Entries that the catalogue has at most after the checkpoints of all that was gathered so
    /// far.
    pub(crate) fn volumes_ahead(&self) -> u64 {
        let gathered = self.windows.all().map(|window| created(&window.catalogue)).sum::<u64>();
        self.overlays.snapshot().volumes.len() as u64 + self.overlays.created() + gathered
    }

    /// All sizes together stay within 1 EiB.
    pub(crate) fn check_size(&self, blocks: u64, replacing: Option<VolumeId>) -> Result<()> {
        if blocks == 0 {
            return Err(Error::new(
                Kind::InvalidInput,
                "a volume needs at least one block of 4096 bytes",
            ));
        }
        let others: u64 = self
            .volumes
            .iter()
            .filter(|(id, _)| Some(**id) != replacing)
            .map(|(_, volume)| volume.blocks)
            .sum();
        if others.checked_add(blocks).is_none_or(|sum| sum > VOLUME_BLOCKS_MAX) {
            return Err(Error::new(
                Kind::InvalidInput,
                "all volumes together can't be larger than 1 EiB",
            ));
        }
        Ok(())
    }

    /// Memory of the open window for a block.
    pub(crate) fn put(&mut self, volume: VolumeId, lba: Lba, moved: bool) -> &mut Block {
        let no_dedup = self.volumes.get(&volume).is_some_and(|volume| volume.no_dedup.holds(lba));
        self.overlays.active_mut().touch_block(volume, lba);
        self.windows.put(volume, lba, moved, no_dedup)
    }

    /// Makes blocks of the open window read as zeroes.
    pub(crate) fn punch(&mut self, volume: VolumeId, start: u64, end: u64, keep: bool) {
        self.windows.punch(volume, start, end, keep);
        self.overlays.active_mut().touch_range(volume, start, end);
    }

    /// True when blocks were put off, and nothing on its way names them any more.
    pub(crate) fn deferred_alone(&self) -> bool {
        self.deferred > 0 && self.windows.is_empty()
    }

    /// True when a checkpoint could make blocks free, or is about to.
    pub(crate) fn can_reclaim(&self) -> bool {
        !self.overlays.is_empty()
            || !self.windows.is_empty()
            || !self.overlays.snapshot().discards.is_empty()
            || self.deferred > 0
            || self.releasing
    }

    /// True when no checkpoint holds a new size, given before `window`, of a volume that the window
    /// changes. A crash would leave its links beyond the end.
    pub(crate) fn resize_waits(&self, window: &Window) -> bool {
        let before = self.windows.changes_before(window.number);
        self.overlays.catalogue().chain(before).any(|change| match change {
            CatalogueChange::Resize { id, .. } => window.changes(*id),
            _ => false,
        })
    }

    /// Where an address is that the open window has no block of.
    pub(crate) fn locate(&self, volume: VolumeId, lba: Lba) -> Where {
        if let Some(keep) = self.windows.zeroes(volume, lba) {
            return Where::Zero { keep };
        }
        if let Some(window) = self.windows.find_closed(volume, lba) {
            return Where::Window(window.clone());
        }
        self.overlays.find(volume, lba).map_or(Where::Tables, Where::Overlay)
    }
}

/// Where an address is.
pub(crate) enum Where {
    /// In a closed window.
    Window(Arc<Window>),
    /// In a range of the open window.
    Zero { keep: bool },
    /// Published, not committed.
    Overlay(MapEntry),
    /// Whatever the tables say.
    Tables,
}
