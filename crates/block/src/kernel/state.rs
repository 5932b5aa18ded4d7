//! The state below the kernel's lock: windows on their way, published changes, space, volumes.

use std::sync::Arc;

use onefold_core::{Block, Lba, Result, VolumeId};

use super::{act_turn::ActTurn, domains::Domains, ration::Ration, volumes::Volumes};
use crate::{
    fail_stop::FailStop,
    flushes::Flushes,
    format::{catalogue::CatalogueChange, geometry::Geometry, page::MapEntry},
    moments::{Act, Moment},
    overlay::{Overlay, Overlays, created},
    space::{Allocator, Releases},
    window::{Charge, Charged, Found, Window, Windows},
};

/// The state that the lock protects.
pub(crate) struct State {
    pub(crate) windows: Windows,
    pub(crate) overlays: Overlays,
    pub(crate) volumes: Volumes,
    pub(crate) domains: Domains,
    pub(crate) allocator: Allocator,
    pub(crate) releases: Releases,
    pub(crate) epoch: u32,
    /// Pages set aside for writing the index.
    pub(crate) spilling_pages: u64,
    pub(crate) fail_stop: FailStop,
    /// A checkpoint should run although nothing forces it yet.
    pub(crate) checkpoint_wanted: bool,
    pub(crate) flushes: Flushes,
    /// A closed window waits for what only a checkpoint makes.
    pub(crate) checkpoint_awaited: bool,
    /// There when the volumes may be those of several tenants.
    pub(crate) ration: Option<Ration>,
    /// The moment whose windows are not all published yet.
    pub(crate) moment: Option<Moment>,
    /// Who asks for acts, and what clients leave alone for them.
    pub(crate) act_turn: ActTurn,
    /// Moments that were asked for, and those whose acts are durable, since the store was opened.
    pub(crate) moments: (u64, u64),
    /// Whether checkpoints have maps to take apart, or pages to hand over.
    pub(crate) leftovers: Leftovers,
    /// Pieces of deleted maps that the last checkpoint worked through.
    pub(crate) pieces: u64,
    /// Blocks that the last step of moving was to copy.
    pub(crate) copied: usize,
    /// Blocks that the last step of a checkpoint was to release.
    pub(crate) released: usize,
    /// Pages that nothing counts for and that wait to be handed over, as far as is known.
    pub(crate) orphans: u64,
    /// The changes that the next checkpoint makes because blocks were moved, to count its pages.
    pub(crate) moving: Overlay,
    /// The sizes that the store is about to get.
    pub(crate) growth: Option<Geometry>,
    /// Growths that were asked for, and those that are durable, since the store was opened.
    pub(crate) growths: (u64, u64),
}

/// Whether anything is left of maps that were deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// Nothing.
    None,
    /// A checkpoint would free something.
    Some,
    /// Nobody has looked since the store was opened.
    Unknown,
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

    /// Entries that the catalogue has at most after the checkpoints of all that was gathered so
    /// far.
    pub(crate) fn volumes_ahead(&self) -> u64 {
        let gathered = self.windows.all().map(|window| created(&window.catalogue)).sum::<u64>();
        let acts = self.acts_ahead().count() as u64;
        self.overlays.tables().volumes.len() as u64 + self.overlays.created() + gathered + acts
    }

    /// Moments whose acts no checkpoint has made durable.
    pub(crate) fn moments_ahead(&self) -> impl Iterator<Item = &Moment> {
        self.overlays.moments().chain(&self.moment)
    }

    /// Acts that no checkpoint has made durable.
    pub(crate) fn acts_ahead(&self) -> impl Iterator<Item = &Act> {
        self.moments_ahead().flat_map(|moment| &moment.acts)
    }

    /// True when maps share pages, or are about to.
    pub(crate) fn shares_pages(&self) -> bool {
        self.overlays.tables().state.shares_pages()
            || self.moments_ahead().next().is_some()
            || self.volumes.have_quotas()
            || !self.domains.are_unlimited()
    }

    /// Seals the overlay of the moment that was asked for, once all its windows are published. The
    /// caller does it after each window that it publishes.
    pub(crate) fn seal_moment(&mut self, at_once: bool) {
        if !at_once && self.windows.closed() > 0 {
            return;
        }
        let all = self.windows.closed() == 0;
        let durable = self.windows.durable();
        if let Some(moment) = self.moment.take_if(|moment| all || moment.window <= durable) {
            self.overlays.seal(&self.windows, moment);
        }
    }

    /// Memory of the open window for a block.
    pub(crate) fn put(&mut self, volume: VolumeId, lba: Lba, moved: bool) -> &mut Block {
        let kept = self.volumes.kept(volume, lba);
        self.overlays.active_mut().touch_block(volume, lba);
        self.windows.put(volume, lba, moved, kept)
    }

    /// The charge for all that was written since the last checkpoint, of a volume or a domain with a quota.
    pub(crate) fn charge_of(&self, charged: impl Into<Charged>) -> Charge {
        let charged = charged.into();
        let windows = self.windows.all().map(|window| window.charges().of(charged));
        let overlays = self.overlays.all().map(|overlay| overlay.charge_of(charged));
        let before = match charged {
            Charged::Volume(_) => Charge::default(),
            Charged::Domain(domain) => {
                self.domains.charge_of(domain, self.overlays.tables().state.committed)
            }
        };
        windows.chain(overlays).fold(before, Charge::and)
    }

    /// Blocks of a volume that were written since the last checkpoint, as many or fewer.
    pub(crate) fn changed_blocks(&self, volume: VolumeId) -> u64 {
        let windows = self.windows.all().map(|window| window.blocks_of(volume));
        windows.chain(self.overlays.all().map(|overlay| overlay.changed_in(volume))).sum()
    }

    /// Makes blocks of the open window read as zeroes. How many of a volume with a quota that unmaps
    /// a checkpoint counts.
    pub(crate) fn punch(&mut self, volume: VolumeId, start: u64, end: u64, keep: bool) {
        if self.volumes.get(volume).is_ok_and(|volume| volume.quota > 0) {
            self.windows.charge(volume, Charge::at_most(0));
        }
        if !self.domains.are_unlimited()
            && let Ok(volume) = self.volumes.get(volume)
        {
            self.lets_go(volume.domain);
        }
        self.windows.punch(volume, start, end, keep);
        self.overlays.active_mut().touch_range(volume, start, end);
    }

    /// Notes that a domain may store less from the checkpoint of the open window on.
    pub(crate) fn lets_go(&mut self, domain: u32) {
        if !self.domains.limits(domain).are_none() {
            self.windows.charge(Charged::Domain(domain), Charge::at_most(0));
        }
    }

    /// True when blocks were put off, and nothing on its way names them any more.
    pub(crate) fn deferred_alone(&self) -> bool {
        self.releases.deferred() > 0 && self.windows.is_empty()
    }

    /// True when a checkpoint could make blocks free, or is about to.
    pub(crate) fn can_reclaim(&self) -> bool {
        !self.overlays.is_empty()
            || !self.windows.is_empty()
            || !self.overlays.tables().discards.is_empty()
            || self.leftovers != Leftovers::None
            || self.domains.wait_for_checkpoint()
            || self.releases.may_follow()
            // Copies wait for a checkpoint, which frees what they replace.
            || self.moving.records() > 0
    }

    /// True when no checkpoint holds a new size, given before `window`, of a volume that the window
    /// changes. A crash would leave its links beyond the end.
    pub(crate) fn resize_waits(&self, window: &Window) -> bool {
        let before = self.windows.all().take_while(|earlier| earlier.number < window.number);
        self.overlays.catalogue().chain(before.flat_map(|earlier| &earlier.catalogue)).any(
            |change| match change {
                CatalogueChange::Resize { id, .. } => window.changes(*id),
                _ => false,
            },
        )
    }

    /// Where an address is that the open window has no block of.
    pub(crate) fn locate(&self, volume: VolumeId, lba: Lba) -> Where {
        if let Some(Found::Zero { keep }) = self.windows.open().find(volume, lba) {
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
