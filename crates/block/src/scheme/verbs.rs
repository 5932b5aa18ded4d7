//! The verbs of a scheme. Nobody else asks which scheme runs: methods are verbs, and none answers a
//! question about the scheme.

use std::collections::BTreeMap;

use onefold_core::{Block, Fingerprint, Pba, Result, VolumeId};

use crate::{
    format::{
        carrier::{Header, RECORDS_MAX},
        catalogue::Volume,
        record::WindowNumber,
        superblock::Root,
        zone_list::{Entry, Page},
    },
    idleness::Idleness,
    kernel::{Kernel, Reclaimed, State},
    moving::Moves,
    overlay::{Overlay, Tables},
    sharing::Orphan,
    space::Lane,
    table_build::TableBuild,
    window::{Plan, Window, ranges::Ranges},
};

/// Records of a carrier that holds nothing else.
pub(crate) const RECORDS_ALONE: usize = RECORDS_MAX;

/// Makes windows durable, and builds the tables of checkpoints.
pub(crate) trait Scheme: Send + Sync {
    /// Arranges the blocks that a window writes: their order, which of them are carriers, and which
    /// records go elsewhere.
    fn lay_out(&self, kernel: &Kernel, window: &Window, decided: &Decided<'_>) -> Arrangement;

    /// Writes the records of a window, whose blocks have addresses now, into its carriers.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    fn seal(
        &self,
        kernel: &Kernel,
        plan: &mut Plan,
        arrangement: &Arrangement,
        header: Header,
    ) -> Result<()>;

    /// Writes the oldest prepared window: into the disk's cache, or durably at once where that is
    /// possible. `Idle` when it did nothing.
    ///
    /// # Errors
    /// The first failed write stops all writes.
    fn write(&self, kernel: &Kernel, how: Durability) -> Result<Progress>;

    /// One flush; publishes what became durable by it, in order. `Idle` when nothing waited.
    ///
    /// # Errors
    /// A failed flush stops all writes; it is never tried again.
    fn make_durable(&self, kernel: &Kernel) -> Result<Progress>;

    /// Tells clients of the published windows that no crash takes any more.
    fn acknowledge(&self, kernel: &Kernel, state: &mut State);

    /// Says that a moment may begin: its acts make maps share pages.
    ///
    /// # Errors
    /// `Unsupported` when leaves change in place.
    fn begin_moment(&self) -> Result<()> {
        Ok(())
    }

    /// Closes the open window after a change of the catalogue when later changes must wait for it.
    fn end_change(&self, state: &mut State);

    /// Pages that a checkpoint of `overlay`, and of `more` records that are not published yet,
    /// writes at most; admission keeps as many free.
    fn reserve(&self, kernel: &Kernel, state: &State, overlay: &Overlay, more: u64) -> u64;

    /// Counts the entries that tables of bounded size get by the checkpoints of all that was
    /// gathered so far. `None` when there are no checkpoints.
    fn count_ahead(&self, state: &State) -> Option<Ahead>;

    /// Writes the tables of maps, references and fingerprints of a checkpoint of `frozen`.
    ///
    /// # Errors
    /// `Io` or `Corrupt`, which stop all writes.
    fn checkpoint(
        &self,
        build: &mut TableBuild<'_>,
        volumes: &mut BTreeMap<VolumeId, Volume>,
        job: Job<'_>,
    ) -> Result<NewRoots>;

    /// All pages of a checkpoint up to `committed` are written. Returns the window up to which its
    /// superblock calls all windows durable.
    fn built(&self, state: &State, committed: WindowNumber) -> WindowNumber;

    /// Removes the tables' entries of blocks that are about to hold pages, or are about to be free
    /// since no reader needs the old roots.
    ///
    /// # Errors
    /// `Io` or `Corrupt`, which stop all writes.
    fn release(&self, kernel: &Kernel, blocks: &[Pba]) -> Result<()>;

    /// Parts blocks that a checkpoint found free: those that newer records name, which stay in use,
    /// and the others.
    fn keep(&self, kernel: &Kernel, state: &State, freed: Vec<Pba>) -> (Vec<Pba>, Vec<Pba>);

    /// Brings back the changes that no checkpoint holds, and begins the next epoch. `Commit` when a
    /// checkpoint must do that.
    ///
    /// # Errors
    /// `Corrupt` when durable records are missing; `Io`.
    fn recover(&self, kernel: &Kernel, found: FoundAtOpening) -> Result<Progress>;

    /// Does one bounded piece of work that nobody waits for. `Idle` when there is none.
    ///
    /// # Errors
    /// The first failed write stops all writes.
    fn idle(&self, kernel: &Kernel, idleness: Idleness) -> Result<Progress>;

    /// Judges the counts that its tables store.
    fn counts(&self) -> &'static dyn CountRule;
}

/// Judges stored counts and fingerprints, for the verifier, the scrub and compaction.
pub(crate) trait CountRule: Sync {
    /// The links among the references of a block.
    fn links(&self, references: u32) -> u32;
    /// Whether a stored fingerprint is that of its block.
    fn is_known(&self, fingerprint: &Fingerprint) -> bool;
}

/// How a window is to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Into the disk's cache: a flush makes it durable.
    Cached,
    /// Durably in one go.
    AtOnce,
}

/// The progress of a step of a scheme.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There was nothing to do.
    Idle,
    /// It did something.
    Advanced,
    /// It did something, and windows wait for the same step once more.
    Again,
    /// Published windows wait for a checkpoint.
    Commit,
}

impl Progress {
    /// `Advanced`, or `Idle`.
    pub(crate) fn of(advanced: bool) -> Progress {
        if advanced { Progress::Advanced } else { Progress::Idle }
    }

    /// True when it did something.
    pub(crate) fn advanced(self) -> bool {
        self != Progress::Idle
    }
}

/// The decisions about a window before its blocks are arranged.
pub(crate) struct Decided<'a> {
    /// The live blocks of the window, by slot.
    pub(crate) slots: &'a [usize],
    /// The blocks that are stored nowhere yet.
    pub(crate) new: Vec<&'a Block>,
}

/// A block that becomes a carrier.
pub(crate) struct Chosen {
    /// Which of the window's new blocks.
    pub(crate) block: usize,
    /// Its compressed content.
    pub(crate) payload: Vec<u8>,
    /// Records that fit beside it.
    pub(crate) room: usize,
}

/// The kind of a block that is written.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// A client's block as it is.
    Raw,
    /// The chosen carrier number `.0`.
    Carrier(usize),
    /// A carrier without a compressed block.
    RecordsAlone,
}

/// How the blocks that a window writes are arranged.
#[derive(Default)]
pub(crate) struct Arrangement {
    /// Fingerprints of the changes of the catalogue that are written with the window.
    pub(crate) changes: Vec<Fingerprint>,
    pub(crate) chosen: Vec<Chosen>,
    /// For each block that is written: the new ones, then changes of the catalogue, then carriers
    /// alone.
    pub(crate) roles: Vec<Role>,
    /// The order in which they lie on the disk.
    pub(crate) order: Vec<usize>,
    /// Where they go, in that order.
    pub(crate) lanes: Vec<(Lane, u64)>,
    /// Blocks among them that may not become free before the window is published.
    pub(crate) pinned: Vec<usize>,
    /// Records beside compressed blocks.
    pub(crate) hidden: usize,
    /// Carriers that hold records alone.
    pub(crate) alone: usize,
    /// The records that go to the leftover table; the others go into the carriers, in their order.
    pub(crate) in_table: Vec<usize>,
}

impl Arrangement {
    /// Of `new` blocks alone, as they are.
    pub(crate) fn raw(new: usize, lanes: Vec<(Lane, u64)>) -> Arrangement {
        Arrangement {
            roles: vec![Role::Raw; new],
            order: (0..new).collect(),
            lanes,
            ..Arrangement::default()
        }
    }

    /// Physical blocks that the window takes.
    pub(crate) fn needed(&self) -> u64 {
        self.roles.len() as u64
    }
}

/// Entries that tables of bounded size will have.
pub(crate) struct Ahead {
    /// Ranges that wait to be applied; `None` when none wait.
    pub(crate) ranges: Option<u64>,
    /// Volumes, deleted ones included.
    pub(crate) volumes: u64,
}

/// The changes that a checkpoint has to carry into the tables.
pub(crate) struct Job<'a> {
    /// The published changes.
    pub(crate) frozen: &'a Overlay,
    /// Blocks that the last checkpoint put off.
    pub(crate) deferred: Vec<Pba>,
    /// A closed window waits for what only a checkpoint makes.
    pub(crate) checkpoint_awaited: bool,
    /// Pages of maps that nothing counts for.
    pub(crate) orphans: Vec<Orphan>,
    /// Copies of blocks to be put into the maps.
    pub(crate) moves: &'a Moves,
}

/// The result of a scheme's part of a checkpoint.
pub(crate) struct NewRoots {
    pub(crate) references: Root,
    pub(crate) fingerprints: Root,
    /// Ranges that are left to be applied.
    pub(crate) pending: Ranges,
    pub(crate) reclaimed: Reclaimed,
    /// Superblocks that must name the checkpoint durably before readers may use it.
    pub(crate) superblocks: u8,
    /// Counts may be too high still.
    pub(crate) inexact: bool,
    /// There when maps share pages.
    pub(crate) sharing: Option<NewSharing>,
}

/// The sharing of pages as a checkpoint leaves it.
pub(crate) struct NewSharing {
    /// The accounts.
    pub(crate) shares: Root,
    /// Pages that nothing counts for.
    pub(crate) orphans: Vec<Orphan>,
    /// How many of them no checkpoint can hand over before a repair.
    pub(crate) stuck: usize,
}

/// The parts that an opening has read before the scheme takes over.
pub(crate) struct FoundAtOpening {
    pub(crate) tables: std::sync::Arc<Tables>,
    /// The zone list.
    pub(crate) pages: Vec<Page>,
    /// Its zones that no checkpoint holds.
    pub(crate) entries: Vec<Entry>,
}
