//! The store that is simulated, behind a trait, so that the same workloads, crashes and checks
//! serve every engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Cursor,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use onefold_block::{
    Begin, Frame, StreamReader,
    schedule::{Background, WriteBack},
};
use onefold_core::{
    Algorithm, Block, BlockRead, Clock, Disk, Error, Extent, Kind, Lba, Pba, Result, Ticket,
    VolumeId, VolumeInfo,
};
use onefold_seal::{DurableState, Keys, Random};
use onefold_testbed::{Rng, VirtualDisk};

use crate::block::checks::verifier::{Forgotten, Reading};

/// When blocks are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moving {
    /// A leaf is moved when it lies in more runs than one for each so many blocks.
    pub blocks_a_run: usize,
    /// And when nobody changed it for so long.
    pub settled_ms: u64,
    /// Blocks that a step copies, at most; `None` where the usual limit stays.
    pub step: Option<usize>,
    /// Now and then somebody reads all in order.
    pub readers: bool,
    /// Blocks of leaves that nobody changed for so long are packed.
    pub pack_ms: Option<u64>,
}

/// How a store is made and opened; drawn from the seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Blocks of the disk.
    pub disk_blocks: u64,
    /// Blocks of a zone.
    pub zone_blocks: u32,
    /// The store's id.
    pub id: [u8; 16],
    /// The secret that clients don't know.
    pub secret: [u8; 32],
    /// Fingerprint.
    pub fingerprint: Algorithm,
    /// Compare bytes before a block is taken for a duplicate.
    pub verify_bytes: bool,
    /// Fingerprints are cut so short that different blocks share one; only with `verify_bytes`.
    pub weak_fingerprint: bool,
    /// Carriers and raw blocks in zones of their own.
    pub layout_split: bool,
    /// Records that find no room go to tables in place.
    pub leftover_table: bool,
    /// How records become durable: 0 in the data, 1 in place after a flush of the data, 2 by
    /// copy-on-write trees, 3 by ordered changes of the tables themselves.
    pub scheme: usize,
    /// With the last: how long changes that nobody waits for wait to be merged.
    pub delay_ms: u64,
    /// Space is taken from the host zone by zone.
    pub grow: bool,
    /// Writes are acknowledged when they are durable.
    pub strong: bool,
    /// Bytes of memory.
    pub memory: u64,
    /// Blocks of a window.
    pub window_blocks: u32,
    /// Uncommitted records, at most.
    pub record_limit: u32,
    /// Uncommitted zones, at most.
    pub zone_limit: u32,
    /// Critical blocks of each volume, first and number: never stored as duplicates.
    pub critical: (u64, u64),
    /// Recovery finds no block to append records to, as on a store that is full and aged.
    pub no_room: bool,
    /// Ranges that a checkpoint leaves for later, and recoveries that a superblock remembers, at
    /// most; `None` where the format's own bound stays, which no run comes to.
    pub limits: [Option<u64>; 2],
    /// More limits that a run comes to.
    pub tight: Tight,
    /// Addresses in volumes and numbers of windows are near the largest ones.
    pub near_ends: bool,
    /// References from which on a count stays; `None` where that is the format's own number.
    pub references: Option<u32>,
    /// Maps are copied as snapshots and clones, with these limits.
    pub snapshots: Option<Sharing>,
    /// The store grows now and then.
    pub grows: bool,
    /// The store is sealed at rest.
    pub sealed: bool,
    /// Domains that are made in a sealed store, at most, besides the first one; some are erased.
    pub domains: u32,
    /// Domains get quotas and reserves.
    pub domain_limits: bool,
    /// The data keys of domains change.
    pub data_keys: bool,
    /// The domains whose data key was changed so far.
    pub generations: BTreeMap<u32, Generations>,
    /// Volumes get quotas, most of them so small that clients reach them.
    pub quotas: bool,
    /// Pages of the map of a volume with a quota that the quota does not charge, besides a 64th of it; `None`
    /// where the usual number stays.
    pub free_map_pages: Option<u64>,
    /// Blocks that lie scattered are moved by checkpoints.
    pub moves: Option<Moving>,
    /// Blocks that a step of a checkpoint releases, at most; `None` where the usual limit stays.
    pub released: Option<usize>,
    /// The index of the planted bug in [`Subject::BUGS`].
    pub bug: Option<usize>,
}

/// How it stands with the data key of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generations {
    /// The generations that it had after 0.
    pub all: Vec<u32>,
    /// The key of before the last change is still there.
    pub has_older: bool,
}

/// Limits of tables and queues, each so low that a run comes to it; `None` where the usual one
/// stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tight {
    /// Entries of the catalogue; clients get half of them.
    pub volumes: Option<u64>,
    /// Carriers that wait for a checkpoint.
    pub carriers: Option<u64>,
    /// Windows on their way.
    pub flights: Option<usize>,
    /// Ranges of a window.
    pub ranges: Option<usize>,
}

/// A domain with limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedDomain {
    /// Its number.
    pub number: u32,
    /// So many blocks may be stored in it, or any number with 0.
    pub quota: u64,
    /// So many blocks are kept for it.
    pub reserve: u64,
    /// Blocks that it stores, as of the last checkpoint, if anybody knows.
    pub stored: Option<u64>,
}

/// Limits of stores whose maps share pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Snapshots of a volume.
    pub snapshots: u64,
    /// Moments that wait.
    pub moments: usize,
    /// Pieces of deleted maps that a checkpoint works through, besides one.
    pub leaving: u64,
    /// Checkpoints work through one leaf of ranges each, so that acts find ranges that wait.
    pub slow_ranges: bool,
    /// Clients trim whenever an act waits for room, as much as they can.
    pub crowds: bool,
    /// Few contents, written over and over: records name blocks whose last mapping has just gone.
    pub few_contents: bool,
    /// Snapshots are sent, and received in the same store as those of a replica.
    pub replicates: bool,
    /// What maps share rots while the power is off.
    pub rots: bool,
    /// Senders skip damage, and some blocks of snapshots that are sent can't be read.
    pub loses: bool,
}

/// Blocks that a sender takes for damaged: in groups, the same ones whenever it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skips {
    /// Chooses the groups.
    pub salt: u64,
    /// How many of a hundred groups.
    pub percent: u64,
}

impl Skips {
    /// Blocks of a group.
    const GROUP: u64 = 4;

    /// The group of a block, if it can't be read.
    #[must_use]
    pub fn group(&self, lba: u64) -> Option<Range<u64>> {
        let group = lba / Skips::GROUP;
        let first = group * Skips::GROUP;
        let hit = Rng::new(self.salt ^ group).percent(self.percent);
        hit.then(|| first..first + Skips::GROUP)
    }
}

/// The product's own schedule, which decides the steps in the scheduled profile.
#[derive(Debug, Default)]
pub struct Schedules {
    /// The writer thread's.
    pub write_back: WriteBack,
    /// The background thread's.
    pub background: Background,
}

/// A step of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Close the open window.
    Close,
    /// Fingerprint, look up and place the oldest closed window.
    Prepare,
    /// Write the oldest prepared window.
    Write,
    /// Write the oldest prepared window durably without a flush, when that can be done; else
    /// nothing.
    WriteDurably,
    /// Flush once; publish and acknowledge the written windows in order.
    Settle,
    /// A piece of a checkpoint.
    Checkpoint,
    /// A piece of idle work.
    Tidy,
}

impl Step {
    /// All of them, in the order in which a write meets them.
    pub const ALL: [Step; 7] = [
        Step::Close,
        Step::Prepare,
        Step::WriteDurably,
        Step::Write,
        Step::Settle,
        Step::Checkpoint,
        Step::Tidy,
    ];

    /// The steps that make what was written durable.
    pub const DURABLE: [Step; 4] = [Step::Close, Step::Prepare, Step::Write, Step::Settle];
}

/// When a change of the catalogue is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// The change was durable when the call returned.
    Durable,
    /// When this ticket is durable.
    Later(Ticket),
}

/// The report of a verifier of the whole store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All that is wrong, a sentence each.
    pub problems: Vec<String>,
    /// Blocks that are taken and that nothing reaches.
    pub leaked: u64,
}

fn no_copies() -> Error {
    Error::new(Kind::Unsupported, "this store copies no maps")
}

/// A store under simulation. Thread-free: all work happens inside the calls, and only there.
///
/// A write that answers [`Kind::Busy`](onefold_core::Kind::Busy) asks for steps first.
pub trait Subject: Sized {
    /// Names of the bugs that can be planted by [`StoreOptions::bug`].
    const BUGS: &'static [&'static str];

    /// Names of the schemes that [`StoreOptions::scheme`] chooses from.
    const SCHEMES: &'static [&'static str] = &[];

    /// False for a store that does not promise to notice damage: it is spared the faults that need
    /// it.
    const NOTICES_DAMAGE: bool = true;

    /// True for a store whose maps are copied: snapshots, clones, rollbacks.
    const COPIES_MAPS: bool = false;

    /// True for a store that can be made larger.
    const GROWS: bool = false;

    /// True for a store that can be sealed at rest.
    const SEALS: bool = false;

    /// True when a trim zeroes the blocks that it covers in part, too; false when it leaves them as
    /// they are.
    const TRIMS_EDGES: bool = true;

    /// Volumes may have quotas.
    const HAS_QUOTAS: bool = false;

    /// True when the bug with this index of [`BUGS`](Subject::BUGS) breaks a rule that this scheme
    /// keeps.
    #[must_use]
    fn applies(bug: usize, scheme: usize) -> bool {
        let _ = (bug, scheme);
        true
    }

    /// Makes a store, whatever the disk holds.
    ///
    /// # Errors
    /// The disk's.
    fn format(disk: &dyn Disk, options: &StoreOptions) -> Result<()>;

    /// Opens it, with recovery.
    ///
    /// # Errors
    /// The disk's, or damage.
    fn open(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, options: &StoreOptions) -> Result<Self>;

    /// The volumes and their ids.
    ///
    /// # Errors
    /// The catalogue can't be read.
    fn volumes(&self) -> Result<Vec<(VolumeId, VolumeInfo)>>;

    /// Makes a volume of `size` bytes.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, `Stopped`.
    fn create_volume(&self, name: &str, size: u64) -> Result<(VolumeId, Ack)>;

    /// Changes the size of a volume; what lies beyond it is gone.
    ///
    /// # Errors
    /// As [`create_volume`](Subject::create_volume).
    fn resize_volume(&self, volume: VolumeId, size: u64) -> Result<Ack>;

    /// Gives a volume another name.
    ///
    /// # Errors
    /// As [`create_volume`](Subject::create_volume).
    fn rename_volume(&self, volume: VolumeId, name: &str) -> Result<Ack>;

    /// Deletes a volume.
    ///
    /// # Errors
    /// As [`create_volume`](Subject::create_volume).
    fn delete_volume(&self, volume: VolumeId) -> Result<Ack>;

    /// Gives a volume a quota of so many blocks, or none with 0.
    ///
    /// # Errors
    /// As the engine's.
    fn set_quota(&self, _volume: VolumeId, _blocks: u64) -> Result<Ack> {
        Err(Error::new(Kind::Unsupported, "this store has no quotas"))
    }

    /// The quota of a volume in blocks, 0 for none; and how many blocks it maps, as of the last checkpoint,
    /// if somebody has counted them.
    fn quota(&self, _volume: VolumeId) -> (u64, Option<u64>) {
        (0, None)
    }

    /// The pages of the map of a volume, as of the last checkpoint, if somebody has counted them.
    fn map_pages(&self, _volume: VolumeId) -> Option<u64> {
        None
    }

    /// Asks for snapshots of volumes as of this moment; gives their ids and the number that
    /// [`acts_done`](Subject::acts_done) has when they are there.
    ///
    /// # Errors
    /// As [`create_volume`](Subject::create_volume).
    fn snapshot(&self, wanted: &[(VolumeId, String)]) -> Result<(Vec<VolumeId>, u64)> {
        let _ = wanted;
        Err(no_copies())
    }

    /// Asks for a volume that holds what another volume or a snapshot holds now.
    ///
    /// # Errors
    /// As [`create_volume`](Subject::create_volume).
    fn clone_volume(&self, of: VolumeId, name: &str) -> Result<(VolumeId, u64)> {
        let _ = (of, name);
        Err(no_copies())
    }

    /// Asks that a volume holds what its snapshot `to` holds; a snapshot `keep` gets what it held.
    ///
    /// # Errors
    /// As [`create_volume`](Subject::create_volume).
    fn rollback(
        &self,
        volume: VolumeId,
        to: VolumeId,
        keep: Option<&str>,
    ) -> Result<(Option<VolumeId>, u64)> {
        let _ = (volume, to, keep);
        Err(no_copies())
    }

    /// Somebody asks for acts from now on, until each is admitted or given up: whoever else wants the
    /// room that an act waits for takes turns with it.
    fn take_place(&self) {}

    /// Nobody asks for acts any more.
    fn give_place_back(&self) {}

    /// The number of the last acts that are durable.
    fn acts_done(&self) -> u64 {
        0
    }

    /// The snapshot `of`, or what changed since `base`, as a stream that begins at a block. The store
    /// is looked at in steps, between which nothing happens here. With `skips`, what can't be read is
    /// lost, and so are some other blocks.
    ///
    /// # Errors
    /// As a read.
    fn stream(
        &self,
        of: VolumeId,
        base: Option<VolumeId>,
        start: u64,
        skips: Option<Skips>,
    ) -> Result<Vec<u8>> {
        let _ = (of, base, start, skips);
        Err(no_copies())
    }

    /// Reads a stream.
    ///
    /// # Errors
    /// It is damaged.
    fn read_stream(&self, bytes: Vec<u8>) -> Result<StreamReader<Cursor<Vec<u8>>>> {
        StreamReader::begin(Cursor::new(bytes))
    }

    /// Asks that the snapshot of a stream begins to be received as one of the volume `volume`; `base`
    /// is the snapshot there to which it is to be applied.
    ///
    /// # Errors
    /// As [`create_volume`](Subject::create_volume); `InvalidInput` for another base.
    fn receive(
        &self,
        about: &Begin,
        base: Option<VolumeId>,
        volume: &str,
        name: &str,
    ) -> Result<(VolumeId, u64)> {
        let _ = (about, base, volume, name);
        Err(no_copies())
    }

    /// What is being received, and up to which block all is there.
    fn receiving(&self) -> Vec<(VolumeId, u64)> {
        Vec::new()
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// As [`write`](Subject::write).
    fn apply(&self, id: VolumeId, frame: &Frame, taken: &mut u64) -> Result<()> {
        let _ = (id, frame, taken);
        Err(no_copies())
    }

    /// Notes that all blocks before `cursor` were written, or are `lost`: all since the last cursor.
    ///
    /// # Errors
    /// As [`create_volume`](Subject::create_volume).
    fn note_cursor(&self, id: VolumeId, cursor: u64, lost: &[Range<u64>]) -> Result<()> {
        let _ = (id, cursor, lost);
        Err(no_copies())
    }

    /// Drops what the base of a receive has behind so many blocks, before
    /// [`received`](Subject::received) is asked for.
    ///
    /// # Errors
    /// As a trim.
    fn cut_received(&self, id: VolumeId, blocks: u64) -> Result<()> {
        let _ = (id, blocks);
        Err(no_copies())
    }

    /// Asks that what was received, so many blocks large of which some are lost since the last cursor,
    /// becomes the snapshot that its volume holds; gives the volume's id, and the number of the act.
    ///
    /// # Errors
    /// As [`create_volume`](Subject::create_volume).
    fn received(&self, id: VolumeId, blocks: u64, lost: &[Range<u64>]) -> Result<(VolumeId, u64)> {
        let _ = (id, blocks, lost);
        Err(no_copies())
    }

    /// Asks that the store has so many blocks of the disk, with the number that
    /// [`grown`](Subject::grown) has when it is so, durably.
    ///
    /// # Errors
    /// `InvalidInput` when it would be smaller, or gain nothing; `NoSpace`, `Busy`, the disk's.
    fn grow(&self, blocks: u64) -> Result<u64> {
        let _ = blocks;
        Err(Error::new(Kind::Unsupported, "this store does not grow"))
    }

    /// The number of the last growth that is durable.
    fn grown(&self) -> u64 {
        0
    }

    /// Blocks of the store.
    fn size(&self, options: &StoreOptions) -> u64 {
        options.disk_blocks
    }

    /// Blocks with references, mapped blocks, and whether something is left of deleted maps.
    fn left(&self) -> (u64, u64, bool) {
        (0, 0, false)
    }

    /// As [`Volume::write`](onefold_core::Volume::write). `taken`, at first 0, is what a call that
    /// was `Busy` leaves for the next try.
    ///
    /// # Errors
    /// As there, and `Busy`.
    fn write(&self, volume: VolumeId, offset: u64, data: &[u8], taken: &mut u64) -> Result<Ticket>;

    /// As [`Volume::trim`](onefold_core::Volume::trim).
    ///
    /// # Errors
    /// As there, and `Busy`.
    fn trim(&self, volume: VolumeId, offset: u64, bytes: u64) -> Result<Ticket>;

    /// As [`Volume::write_zeroes`](onefold_core::Volume::write_zeroes); `taken` as in
    /// [`write`](Subject::write).
    ///
    /// # Errors
    /// As there, and `Busy`.
    fn write_zeroes(
        &self,
        volume: VolumeId,
        offset: u64,
        bytes: u64,
        keep: bool,
        taken: &mut u64,
    ) -> Result<Ticket>;

    /// As [`Volume::read`](onefold_core::Volume::read).
    fn read(&self, volume: VolumeId, reads: &mut [BlockRead<'_>]);

    /// As [`Volume::extents`](onefold_core::Volume::extents).
    ///
    /// # Errors
    /// As there.
    fn extents(
        &self,
        volume: VolumeId,
        offset: u64,
        bytes: u64,
        limit: usize,
    ) -> Result<Vec<Extent>>;

    /// Names a table that is fuller than its limit.
    fn overfull(&self, options: &StoreOptions) -> Option<String> {
        let _ = options;
        None
    }

    /// Does one step; false when there was nothing to do.
    ///
    /// # Errors
    /// The disk's; never `NoSpace`.
    fn step(&self, step: Step) -> Result<bool>;

    /// Does what the product's threads would do now, up to one step of its background work; false
    /// when they would wait. With `pressure` a client waits for room. A subject without a schedule does
    /// each step.
    ///
    /// # Errors
    /// As [`step`](Subject::step).
    fn scheduled_step(
        &self,
        schedules: &mut Schedules,
        now: Duration,
        pressure: bool,
    ) -> Result<bool> {
        let _ = (schedules, now, pressure);
        let mut moved = false;
        for step in Step::ALL {
            moved |= self.step(step)?;
        }
        Ok(moved)
    }

    /// Every change with this ticket or a lower one is durable.
    fn durable(&self) -> Ticket;

    /// Makes all that was written durable.
    ///
    /// # Errors
    /// The disk's; never `NoSpace`.
    fn flush(&self, volume: VolumeId) -> Result<()>;

    /// Ends in an orderly way.
    ///
    /// # Errors
    /// The disk's.
    fn close(self) -> Result<()>;

    /// Verifies the whole store, which is closed.
    ///
    /// # Errors
    /// The store could not be verified.
    fn check(disk: &Arc<VirtualDisk>, options: &StoreOptions) -> Result<Report>;

    /// True when the tables on the disk must hold after any crash, before anything is recovered:
    /// then [`truth`](Subject::truth) looks at them.
    fn tables_hold_at_any_time(options: &StoreOptions) -> bool {
        let _ = options;
        false
    }

    /// Verifies the tables of a store that was not closed, as they lie there.
    ///
    /// # Errors
    /// They could not be verified.
    fn truth(disk: &Arc<VirtualDisk>, options: &StoreOptions) -> Result<Report> {
        Self::check(disk, options)
    }

    /// A block that a client could make to be taken for one of the store's own, knowing all but the
    /// secret: it may claim that `lba` of `volume` holds something else. The client is lucky
    /// enough to guess everything that it can't know.
    fn forge(
        disk: &Arc<VirtualDisk>,
        options: &StoreOptions,
        volume: VolumeId,
        lba: Lba,
        rng: &mut Rng,
    ) -> Option<Box<Block>> {
        let _ = (disk, options, volume, lba, rng);
        None
    }

    /// Blocks of a disk of which another place has a whole copy: when one of them rots, that must
    /// cost nothing. With what they are.
    fn copies(disk: &Arc<VirtualDisk>, options: &StoreOptions) -> Vec<(Pba, &'static str)> {
        let _ = (disk, options);
        Vec::new()
    }

    /// Live pages that only a store has whose maps share pages, with what they are.
    fn shared_pages(disk: &VirtualDisk, options: &StoreOptions) -> Vec<(Pba, &'static str)> {
        let _ = (disk, options);
        Vec::new()
    }

    /// True when the secret `byte` opens a sealed store, for work, of which its holder may have seen the
    /// this state.
    ///
    /// # Errors
    /// Those of opening that have nothing to do with keys.
    fn opens(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: &StoreOptions,
        (byte, seen): (u8, Option<DurableState>),
    ) -> Result<bool> {
        let _ = (disk, clock, options, byte, seen);
        Ok(false)
    }

    /// The newest state of a sealed store that is durable.
    ///
    /// # Errors
    /// Those of sealing its superblock.
    fn durable_state(&self) -> Result<DurableState> {
        Ok(DurableState::default())
    }

    /// Changes the keys of a sealed store on which nobody works.
    ///
    /// # Errors
    /// Those of the disk and of `change`.
    fn change_keys(
        disk: &dyn Disk,
        options: &StoreOptions,
        change: &mut dyn FnMut(&mut Keys, &dyn Random) -> Result<()>,
    ) -> Result<()> {
        let _ = (disk, options, change);
        Err(Error::new(Kind::Unsupported, "this store is never sealed"))
    }

    /// Destroys the keys of a sealed store on which nobody works.
    ///
    /// # Errors
    /// Those of the disk.
    fn erase_keys(disk: &dyn Disk, options: &StoreOptions) -> Result<()> {
        let _ = (disk, options);
        Err(Error::new(Kind::Unsupported, "this store is never sealed"))
    }

    /// Makes a domain in a sealed store on which nobody works; gives its number.
    ///
    /// # Errors
    /// Those of the disk.
    fn create_domain(disk: &dyn Disk, options: &StoreOptions, name: &str) -> Result<u32> {
        let _ = (disk, options, name);
        Err(Error::new(Kind::Unsupported, "this store is never sealed"))
    }

    /// Destroys the key of a domain of a sealed store on which nobody works.
    ///
    /// # Errors
    /// Those of the disk.
    fn erase_domain(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: &StoreOptions,
        number: u32,
    ) -> Result<()> {
        let _ = (disk, clock, options, number);
        Err(Error::new(Kind::Unsupported, "this store is never sealed"))
    }

    /// Gives a domain of a sealed store on which nobody works another data key.
    ///
    /// # Errors
    /// Those of the disk.
    fn rotate_data_key(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: &StoreOptions,
        number: u32,
    ) -> Result<()> {
        let _ = (disk, clock, options, number);
        Err(Error::new(Kind::Unsupported, "this store is never sealed"))
    }

    /// Writes again what is under the older data key of a domain, and erases the key when nothing is left;
    /// gives what is left.
    ///
    /// # Errors
    /// Those of the disk.
    fn finish_data_key(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: &StoreOptions,
        number: u32,
    ) -> Result<u64> {
        let _ = (disk, clock, options, number);
        Err(Error::new(Kind::Unsupported, "this store is never sealed"))
    }

    /// The domains that were erased.
    fn erased_domains(&self) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// Gives a domain a quota and a reserve, in blocks; gives the number of the change.
    ///
    /// # Errors
    /// `Busy`, `NoSpace`, `InvalidInput`, the disk's.
    fn set_domain_limits(&self, domain: u32, quota: u64, reserve: u64) -> Result<u64> {
        let _ = (domain, quota, reserve);
        Err(Error::new(Kind::Unsupported, "this store has no limits of domains"))
    }

    /// The number of the last change of limits that is durable.
    fn domain_limits_durable(&self) -> u64 {
        0
    }

    /// The domains that have limits.
    fn limited_domains(&self) -> Vec<LimitedDomain> {
        Vec::new()
    }

    /// Blocks that nothing holds.
    fn unused_blocks(&self) -> u64 {
        0
    }

    /// The domain of a volume or snapshot.
    fn domain_of(&self, volume: VolumeId) -> u32 {
        let _ = volume;
        0
    }

    /// Reads a store that was closed without the engine, by the document of its format alone.
    fn read_again(disk: &VirtualDisk, options: &StoreOptions) -> Option<Reading> {
        let _ = (disk, options);
        None
    }

    /// Free blocks that hold something, and blocks without references that have a fingerprint, in a store that
    /// was closed on a disk without damage; by the document of its format alone.
    ///
    /// # Errors
    /// It can't be read.
    fn forgotten(
        disk: &VirtualDisk,
        options: &StoreOptions,
    ) -> std::result::Result<Forgotten, String> {
        let _ = (disk, options);
        Ok(Forgotten::default())
    }

    /// True when a block of metadata has a copy elsewhere that is whole.
    fn has_copy(disk: &VirtualDisk, options: &StoreOptions, at: u64) -> bool {
        let _ = (disk, options, at);
        false
    }

    /// Names of all branches that [`reached`](Subject::reached) may give: an ordinary run must
    /// reach each of them.
    fn branches() -> Vec<&'static str> {
        Vec::new()
    }

    /// Branches that were reached since it was opened, of recovery above all.
    fn reached(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Blocks that opening may read, at most (invariant 7).
    fn recovery_bound(options: &StoreOptions) -> u64 {
        let _ = options;
        u64::MAX
    }

    /// Different blocks that must always fit; none where blocks stay that nothing names, or where a
    /// content may be stored once for each domain.
    fn roomy(options: &StoreOptions) -> u64 {
        let more = options.references.is_some() || options.domains > 0;
        if more { 0 } else { options.disk_blocks / 8 }
    }

    /// Leaked blocks that are within the promise.
    fn leak_bound(options: &StoreOptions) -> u64 {
        options.disk_blocks
    }
}
