//! Figures of when the archive was collected and read.

use onefold_core::Result;

use crate::format::{
    ContainerId,
    bytes::{Reader, Writer},
    care::CareNote,
};

/// The care that the archive got. Times are seconds since 1970, and 0 for never. An archive that
/// older programs changed meanwhile knows less: they keep no notes over a snapshot of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Care {
    /// When a collection went through to its end last.
    pub collected: u64,
    /// When the round of scrubs began that is under way; 0 for none.
    pub scrub_began: u64,
    /// That round has read all containers up to this number.
    pub scrubbed: ContainerId,
    /// When a round of scrubs had read all data last.
    pub scrub_ended: u64,
}

impl Care {
    pub(crate) const BYTES: usize = 32;

    pub(super) fn note(&mut self, note: CareNote) {
        match note {
            CareNote::Collected(at) => self.collected = at,
            CareNote::ScrubBegan(at) => (self.scrub_began, self.scrubbed) = (at, ContainerId(0)),
            CareNote::Scrubbed(upto) => self.scrubbed = self.scrubbed.max(upto),
            CareNote::ScrubEnded(at) => {
                (self.scrub_ended, self.scrub_began, self.scrubbed) = (at, 0, ContainerId(0));
            }
        }
    }

    pub(crate) fn encode(self, w: &mut Writer) {
        w.u64(self.collected).u64(self.scrub_began).u64(self.scrubbed.0).u64(self.scrub_ended);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Care> {
        Ok(Care {
            collected: r.u64()?,
            scrub_began: r.u64()?,
            scrubbed: ContainerId(r.u64()?),
            scrub_ended: r.u64()?,
        })
    }
}
