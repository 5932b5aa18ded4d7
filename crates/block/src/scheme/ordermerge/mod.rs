//! OrderMergeDedup: soft updates on leaves that are written in place, ordered, merged, and delayed
//! where nobody waits.
//!
//! The leaves of maps, references and fingerprints change in place between checkpoints; what lies
//! above them, zones, catalogue, index and superblock are shadow-paged as ever, and checkpoints are
//! rare. There are no records on the disk and nothing to replay: after a crash the tables are the
//! truth, except that counts may be too high and fingerprints may be missing.
//!
//! A count holds one reference more than there are links: the fingerprint's own. A block in use
//! counts `links + 1` from its allocation on; at 1 it has no link, can still be found as a
//! duplicate, and waits to be reclaimed.
//!
//! | step | what is written | why then |
//! |---|---|---|
//! | level 0 (`increments.rs`) | data; counts, merged over the windows that wait for a flush: one more for each new link, and for a new block its own | before anything names them |
//! | flush | | |
//! | level 1 (`link.rs`) | map leaves: the links of all windows that wait, merged leaf by leaf; ranges in the order of windows | |
//! | flush | | the windows are durable |
//! | later (`non_critical.rs`) | counts of blocks that lost a link, one less; fingerprints of new blocks | nobody waits for them: they go along when their leaf is written anyway, or alone after the delay |
//!
//! A count falls only when the unlinking is durable, and is held back until then: so a leaf that
//! holds the counts of both an old and a new block is never written in a circle. A window is sound
//! when a flush came after its level 0; the flush of one group's level 1 is also that of the next
//! group's level 0.
//!
//! Checkpoints (`checkpoint.rs`) make and drop leaves, carry out changes of the catalogue, and
//! reclaim blocks without links: their fingerprints go first, their space is free once the
//! superblock is true. A window whose map leaves do not exist waits for a checkpoint that makes
//! them. After a crash (`recovery.rs`) the counts of the zones that were listed tell which blocks
//! are in use; a recount in the background (`recount.rs`) finds counts that are too high.
//!
//! A torn leaf is some entries as they were and some as they shall be, which the order of entries
//! allows as well as it allows that the write is lost.
//!
//! *Invariant:* a count is never lower than the links on the disk, in whatever state a crash leaves
//! it, plus one.
//!
//! Threads: a thread that changes leaves holds the lock of
//! [`SoftUpdates`](soft_updates::SoftUpdates), also during a flush, so that no leaf is written
//! while one is under way.

#[cfg(feature = "planted-bugs")]
mod broken;
mod checkpoint;
mod increments;
mod leaves;
mod link;
mod non_critical;
mod recount;
mod recovery;
mod soft_updates;
mod tally;

use std::collections::BTreeMap;

use onefold_core::{Error, Fingerprint, Kind, Pba, Result, VolumeId};
pub(crate) use soft_updates::OrderMerge;

use super::{shadow::count_ahead, windows::lanes};
use crate::{
    coverage::Mark,
    format::{carrier::Header, catalogue::Volume, record::WindowNumber},
    idleness::Idleness,
    kernel::{Kernel, State},
    overlay::Overlay,
    rules::Rule,
    scheme::verbs::{
        Ahead, Arrangement, CountRule, Decided, Durability, FoundAtOpening, Job, NewRoots,
        Progress, Scheme,
    },
    table_build::TableBuild,
    window::{Plan, Window, ranges::Ranges},
};

impl Scheme for OrderMerge {
    fn lay_out(&self, kernel: &Kernel, _: &Window, decided: &Decided<'_>) -> Arrangement {
        let new = decided.new.len();
        // Until it is counted, a new block may have the count of an earlier life.
        let pinned = (0..new).collect();
        Arrangement { pinned, ..Arrangement::raw(new, lanes(kernel, new)) }
    }

    /// There are no records.
    fn seal(&self, _: &Kernel, _: &mut Plan, _: &Arrangement, _: Header) -> Result<()> {
        Ok(())
    }

    fn write(&self, kernel: &Kernel, how: Durability) -> Result<Progress> {
        match how {
            Durability::Cached => increments::write_counted(self, kernel).map(Progress::of),
            Durability::AtOnce => Ok(Progress::Idle),
        }
    }

    fn make_durable(&self, kernel: &Kernel) -> Result<Progress> {
        if !link::flush_and_link(self, kernel)? {
            return Ok(Progress::Idle);
        }
        let more = kernel.state.lock().windows.written().next().is_some();
        Ok(if more { Progress::Again } else { Progress::Advanced })
    }

    /// A change of the catalogue is durable by the checkpoint that carries it out.
    fn acknowledge(&self, kernel: &Kernel, state: &mut State) {
        let waits = state.overlays.catalogue().next().is_some();
        if !(waits && kernel.keeps(Rule::AcknowledgedByCheckpoint)) {
            state.windows.acknowledge_published();
        }
    }

    /// A later change needs the checkpoint that carries this one out: it goes into the next
    /// window.
    fn begin_moment(&self) -> Result<()> {
        Err(Error::new(
            Kind::Unsupported,
            "a store of the scheme ordermerge has no snapshots or clones, since its maps change in place",
        ))
    }

    fn end_change(&self, state: &mut State) {
        state.windows.close();
    }

    fn reserve(&self, kernel: &Kernel, state: &State, overlay: &Overlay, more: u64) -> u64 {
        leaves::pages_of(self, kernel, state, overlay, more)
    }

    /// Ranges are applied with their windows.
    fn count_ahead(&self, state: &State) -> Option<Ahead> {
        Some(Ahead { ranges: None, ..count_ahead(state) })
    }

    fn checkpoint(
        &self,
        build: &mut TableBuild<'_>,
        volumes: &mut BTreeMap<VolumeId, Volume>,
        job: Job<'_>,
    ) -> Result<NewRoots> {
        // Blocks that a recount found before are written with those that wait.
        let exact = self.ledger.lock().exact;
        let ((references, fingerprints), reclaimed) =
            build.in_place(self, job.frozen, volumes, job.deferred)?;
        let coverage = &build.kernel.coverage;
        coverage.add(Mark::LeavesMade, usize::from(job.checkpoint_awaited));
        coverage.add(Mark::BlocksReclaimed, reclaimed.blocks.len());
        Ok(NewRoots {
            sharing: None,
            references,
            fingerprints,
            pending: Ranges::default(),
            reclaimed,
            // Changes of leaves that only one superblock names could be lost with that one.
            superblocks: 2,
            inexact: build.old.state.inexact && !exact,
        })
    }

    fn built(&self, _: &State, committed: WindowNumber) -> WindowNumber {
        let mut ledger = self.ledger.lock();
        ledger.block_leaves = ledger.built_leaves;
        committed
    }

    fn release(&self, kernel: &Kernel, blocks: &[Pba]) -> Result<()> {
        checkpoint::forget_counts(self, kernel, blocks)
    }

    /// A block that a window names is not reclaimed in the first place.
    fn keep(&self, _: &Kernel, _: &State, freed: Vec<Pba>) -> (Vec<Pba>, Vec<Pba>) {
        (Vec::new(), freed)
    }

    fn recover(&self, kernel: &Kernel, found: FoundAtOpening) -> Result<Progress> {
        let FoundAtOpening { tables, pages, entries } = found;
        recovery::recover_in_place(self, kernel, &tables, pages, &entries)?;
        Ok(Progress::Advanced)
    }

    fn idle(&self, kernel: &Kernel, _: Idleness) -> Result<Progress> {
        let advanced =
            non_critical::write_delayed(self, kernel)? || recount::recount_step(self, kernel)?;
        Ok(Progress::of(advanced))
    }

    fn counts(&self) -> &'static dyn CountRule {
        &OwnReference
    }
}

/// A block in use counts one more than it has links: the reference of its fingerprint, which may be
/// missing after a crash.
struct OwnReference;

impl CountRule for OwnReference {
    fn links(&self, references: u32) -> u32 {
        references.saturating_sub(1)
    }

    fn is_known(&self, fingerprint: &Fingerprint) -> bool {
        *fingerprint != Fingerprint::default()
    }
}
