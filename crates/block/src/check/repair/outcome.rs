//! The outcome of a repair.

use onefold_core::{Lba, VolumeId};

use crate::{check::report::Report, format::record::WindowNumber};

/// Lost addresses that are named; more are counted.
pub const LOST_MAX: usize = 1000;

/// The outcome of a repair, and the problems that are left.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// The restored parts, in sentences.
    pub restored: Vec<String>,
    /// The parts that could not be restored, in sentences: those given up, and every problem that
    /// a check still finds.
    pub left: Vec<String>,
    /// Addresses that read as errors from now on, until they are written: the first [`LOST_MAX`]
    /// ranges of blocks.
    pub lost: Vec<(VolumeId, Lba, u64)>,
    /// How many addresses do.
    pub lost_addresses: u64,
    /// Windows that were durable and whose records are lost: from, to.
    pub lost_windows: Vec<(WindowNumber, WindowNumber)>,
    /// The result of a check afterwards.
    pub after: Report,
}

impl Repaired {
    pub(super) fn lose(&mut self, volume: VolumeId, lba: Lba, blocks: u64) {
        self.lost_addresses += blocks;
        let room = self.lost.len() < LOST_MAX;
        match self.lost.last_mut() {
            Some((last, start, length)) if *last == volume && start.0 + *length == lba.0 => {
                *length += blocks
            }
            _ if room => self.lost.push((volume, lba, blocks)),
            _ => {}
        }
    }
}
