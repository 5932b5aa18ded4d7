//! What is known of the new blocks of a data zone until a checkpoint holds them: which are
//! carriers, and the fingerprints of clients' blocks.

use onefold_core::Fingerprint;

use crate::format::{record::WindowNumber, zone_bitmap::ZoneBitmap};

/// The account of the new blocks of a data zone.
#[derive(Default)]
pub(super) struct Account {
    /// Where carriers of this generation are.
    carriers: ZoneBitmap,
    /// The last window that placed a block here.
    last_window: WindowNumber,
    /// Blocks placed since the zone was opened, whose fingerprint is known here.
    fresh: ZoneBitmap,
    /// Those of them that are in a carrier.
    carried: ZoneBitmap,
    /// Their fingerprints: none, or one for each block of the zone.
    fingerprints: Vec<Fingerprint>,
}

impl Account {
    /// Where carriers of this generation are.
    pub(super) fn carriers(&self) -> ZoneBitmap {
        self.carriers
    }

    /// The last window that placed a block here.
    pub(super) fn last_window(&self) -> WindowNumber {
        self.last_window
    }

    /// A window placed a block: a client's block with its fingerprint, in a carrier or not, or a
    /// carrier alone. The zone has `blocks` blocks.
    pub(super) fn placed(
        &mut self,
        offset: usize,
        window: WindowNumber,
        carrier: bool,
        fingerprint: Option<Fingerprint>,
        blocks: u64,
    ) {
        self.last_window = self.last_window.max(window);
        if carrier {
            self.carriers.set(offset);
        } else {
            self.carriers.clear(offset);
        }
        let Some(fingerprint) = fingerprint else {
            self.fresh.clear(offset);
            return;
        };
        self.know(offset, fingerprint, blocks);
        if carrier {
            self.carried.set(offset);
        } else {
            self.carried.clear(offset);
        }
    }

    /// Recovery found a block to be new. The zone has `blocks` blocks.
    pub(super) fn recovered(
        &mut self,
        offset: usize,
        window: WindowNumber,
        carried: bool,
        fingerprint: Fingerprint,
        blocks: u64,
    ) {
        self.last_window = self.last_window.max(window);
        self.know(offset, fingerprint, blocks);
        if carried {
            self.carried.set(offset);
        }
    }

    fn know(&mut self, offset: usize, fingerprint: Fingerprint, blocks: u64) {
        if self.fingerprints.is_empty() {
            self.fingerprints = vec![Fingerprint::default(); blocks as usize];
        }
        self.fingerprints[offset] = fingerprint;
        self.fresh.set(offset);
    }

    /// The fingerprint of a new block, and whether it is in a carrier.
    pub(super) fn fresh(&self, offset: usize) -> Option<(Fingerprint, bool)> {
        self.fresh.get(offset).then(|| (self.fingerprints[offset], self.carried.get(offset)))
    }

    /// Forgets the content of a block.
    pub(super) fn forget(&mut self, offset: usize) {
        self.fresh.clear(offset);
    }
}
