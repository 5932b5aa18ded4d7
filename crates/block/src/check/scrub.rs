//! Verifying the data itself: every block with references is read, expanded, and compared with all
//! 128 bits of its fingerprint.
//!
//! A store at work goes on meanwhile. Leaves of references are taken batch by batch, each batch
//! from the newest checkpoint, which is held until its blocks are read: a block that it names is
//! not handed out again before, so whatever is found there must be the block that the
//! table describes. Between batches nothing is held, and a checkpoint waits for one batch at most.
//! Blocks written since the last checkpoint come with the next scrub; their reads are verified
//! anyway.
//!
//! Threads: the caller's; locks are held only to take the checkpoint.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Block, Disk, Fingerprint, Lba, Pba, Result, VolumeId};

use super::{
    batch::read_each,
    leaves::{self, Leaf, Leaves},
    overlay_disk::OverlayDisk,
    recovered::{OVERLAY_BYTES, Still},
    report::{Phase, Progress},
};
use crate::{
    engine::{Engine, resolve::entry_in},
    format::{
        carrier::Carrier,
        catalogue::Volume,
        page::{self, MapEntry, ReferenceEntry, Table},
    },
    kernel::Kernel,
    overlay::Tables,
    scheme::verbs::CountRule,
    settings::{KeySource, MEMORY_MIN, Settings},
};

/// Leaves of references whose blocks are read while one checkpoint is held: 2,016 blocks, some
/// milliseconds.
const LEAVES: usize = 2;

/// Leaves of a map that are looked through together.
const MAP_LEAVES: usize = 64;

/// Blocks whose fingerprints are computed together.
const HASHED: usize = 64;

/// Bad blocks that are named; more are counted.
pub const BAD_BLOCKS_MAX: usize = 1000;

/// Addresses that are named for each bad block; more are counted.
pub const NAMES_MAX: usize = 16;

/// Maps that are named for each bad block, once at least; addresses of more are counted.
const MAPS_MAX: usize = 4096;

/// The result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Blocks that were read and verified, bad ones included.
    pub blocks: u64,
    /// Blocks that are damaged or can't be read: the first [`BAD_BLOCKS_MAX`].
    pub bad: Vec<BadBlock>,
    /// How many there are.
    pub bad_found: u64,
    /// How many of them hold their data whole.
    pub whole_found: u64,
    /// Table pages that could not be read, so that their blocks were not verified.
    pub unread: Vec<String>,
    /// True when it was cancelled before its end.
    pub cancelled: bool,
}

/// A damaged block.
#[derive(Clone, Debug)]
pub struct BadBlock {
    /// Where it is.
    pub pba: Pba,
    /// The problem with it.
    pub what: String,
    /// True when only other bytes of a carrier are damaged, and the data in it has its fingerprint: reads
    /// give it, and nobody loses anything.
    pub whole: bool,
    /// The places that lose data: volume, or snapshot as in `vm1@monday`, and address. The first
    /// [`NAMES_MAX`], and the first one of each other map.
    pub names: Vec<(String, Lba)>,
    /// How many do.
    pub names_found: u64,
}

impl ScrubReport {
    /// True when all data was read, and it and the carriers that hold it are whole.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.bad_found == 0 && self.unread.is_empty() && !self.cancelled
    }
}

/// The account of blocks in the tables.
type Expected = BTreeMap<Pba, (Fingerprint, bool)>;

/// The problem with a carrier that gives no data.
const BAD_CARRIER: &str = "is a damaged carrier, or none";

/// A block whose fingerprint is to be computed.
struct Pending {
    pba: Pba,
    expected: Fingerprint,
    content: Block,
    /// False for what came from a carrier whose checksum differs.
    proven: bool,
}

/// Verifies all data as of the last checkpoint, and finds out whom damage hits. `cancel` is
/// asked now and then; when it is true the report says how far it came. Writes, reads and
/// checkpoints go on.
fn verify_all(
    kernel: &Kernel,
    rule: &dyn CountRule,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) -> ScrubReport {
    let mut report = ScrubReport::default();
    let mut leaves = Leaves::new(Table::References, 0);
    loop {
        let tables = kernel.tables();
        let total = tables.state.live_blocks;
        progress(Progress { what: Phase::Data, done: report.blocks.min(total), total });
        if cancel() {
            report.cancelled = true;
            break;
        }
        let Some(found) = leaves.next(kernel, &tables.state.references, LEAVES, &mut report.unread)
        else {
            break;
        };
        let expected = expected(kernel, rule, &tables, &found, &mut report.unread);
        report.blocks += expected.len() as u64;
        verify_blocks(kernel, &expected, &mut report);
        drop(tables);
    }
    name_bad(kernel, &mut report, progress, cancel);
    report
}

/// Verifies all data as of the last checkpoint, and finds out whom damage hits. `cancel` is
/// asked now and then; when it is true the report says how far it came. Writes, reads and
/// checkpoints go on.
pub fn scrub_open(
    engine: &Engine,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) -> ScrubReport {
    verify_all(&engine.kernel, engine.scheme.counts(), progress, cancel)
}

/// The contents that the blocks of some leaves of references must have, for those with references.
fn expected(
    kernel: &Kernel,
    rule: &dyn CountRule,
    tables: &Tables,
    references: &[Leaf],
    unread: &mut Vec<String>,
) -> Expected {
    let mut carried: BTreeMap<Pba, bool> = BTreeMap::new();
    for (leaf, _, page) in references {
        for slot in 0..Table::References.per_leaf() {
            let (pba, entry) =
                (Pba(leaf * Table::References.per_leaf() + slot), ReferenceEntry::get(page, slot));
            if entry.references > 0 && kernel.geometry().holds(pba) {
                carried.insert(pba, entry.carried);
            }
        }
    }
    let per_leaf = Table::Fingerprints.per_leaf();
    let mut wanted: Vec<u64> = carried.keys().map(|pba| pba.0 / per_leaf).collect();
    wanted.dedup();
    let mut expected = Expected::new();
    for (leaf, _, page) in
        leaves::read(kernel, Table::Fingerprints, 0, &tables.state.fingerprints, &wanted, unread)
    {
        let blocks = carried.range(Pba(leaf * per_leaf)..Pba((leaf + 1) * per_leaf));
        let known = blocks
            .map(|(&pba, &carried)| (pba, (page::fingerprint(&page, pba.0 % per_leaf), carried)));
        // In place, a fingerprint may not be written yet, or may have been lost in a crash:
        // reads compare what the map holds of it.
        expected.extend(known.filter(|(_, (fingerprint, _))| rule.is_known(fingerprint)));
    }
    expected
}

/// Reads the blocks and compares them.
fn verify_blocks(kernel: &Kernel, expected: &Expected, report: &mut ScrubReport) {
    let places: Vec<Pba> = expected.keys().copied().collect();
    let mut pending: Vec<Pending> = Vec::with_capacity(HASHED);
    read_each(&*kernel.disk, &places, &mut |pba, block| {
        let (expected, carried) = expected[&pba];
        let read = block.map_err(|e| format!("can't be read: {e}"));
        let content = read.and_then(|block| match carried {
            false => opened(kernel, block, pba, &expected).map(|block| (block, true)),
            true => carried_by(kernel, block, pba, &expected),
        });
        match content {
            Ok((content, proven)) => pending.push(Pending { pba, expected, content, proven }),
            Err(what) => report.add(pba, what, false),
        }
        if pending.len() == HASHED {
            compare_hashes(kernel, &mut pending, report);
        }
    });
    compare_hashes(kernel, &mut pending, report);
}

/// A raw block as clients see it.
fn opened(
    kernel: &Kernel,
    block: &Block,
    pba: Pba,
    fingerprint: &Fingerprint,
) -> Result<Block, String> {
    let mut block = block.clone();
    if let Some(sealing) = &kernel.identity.sealing {
        let prefix = fingerprint.prefix();
        sealing.open_raw(prefix, pba, &mut block).map_err(|e| e.to_string())?;
    }
    Ok(block)
}

/// The data in a carrier, and whether all bytes of the carrier are as they were written. A reader
/// needs no more than the data.
fn carried_by(
    kernel: &Kernel,
    block: &Block,
    pba: Pba,
    fingerprint: &Fingerprint,
) -> Result<(Block, bool), String> {
    let carrier = Carrier::shape(&kernel.identity, block, pba)
        .filter(|carrier| carrier.header.address == pba)
        .ok_or(BAD_CARRIER)?;
    let mut expanded = Block::zeroed();
    carrier
        .expand(fingerprint.prefix(), &mut expanded)
        .map_err(|e| format!("can't be expanded: {e}"))?;
    Ok((*expanded, Carrier::proven(&kernel.identity, block, pba).is_some()))
}

fn compare_hashes(kernel: &Kernel, pending: &mut Vec<Pending>, report: &mut ScrubReport) {
    let blocks: Vec<&Block> = pending.iter().map(|block| &block.content).collect();
    let found = kernel.identity.fingerprinter.many(&blocks);
    for (block, found) in pending.iter().zip(found) {
        match (found.agrees(&block.expected), block.proven) {
            (true, true) => {}
            (true, false) => {
                report.add(block.pba, "is a damaged carrier, but its data is whole".into(), true);
            }
            (false, false) => report.add(block.pba, BAD_CARRIER.into(), false),
            (false, true) => {
                let what = "does not have the fingerprint that it should have";
                report.add(block.pba, what.into(), false);
            }
        }
    }
    pending.clear();
}

/// Finds the addresses that name bad blocks.
fn name_bad(
    kernel: &Kernel,
    report: &mut ScrubReport,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) {
    let lost = report.bad.iter().zip(0..).filter(|(bad, _)| !bad.whole);
    let bad: BTreeMap<Pba, usize> = lost.map(|(bad, n)| (bad.pba, n)).collect();
    if bad.is_empty() {
        return;
    }
    let volumes: Vec<VolumeId> = kernel.tables().volumes.keys().copied().collect();
    for (n, &id) in volumes.iter().enumerate() {
        let family = kernel.tables().volumes.get(&id).map_or(id.0, |volume| volume.family());
        let mut leaves = Leaves::new(Table::Map, family);
        loop {
            progress(Progress { what: Phase::Names, done: n as u64, total: volumes.len() as u64 });
            if cancel() {
                report.cancelled = true;
                return;
            }
            let tables = kernel.tables();
            let Some(volume) = tables.volumes.get(&id).filter(|volume| !volume.name.is_empty())
            else {
                break;
            };
            let name = full_name(&tables.volumes, volume);
            let Some(found) = leaves.next(kernel, &volume.map, MAP_LEAVES, &mut report.unread)
            else {
                break;
            };
            for (leaf, pointer, page) in found {
                for slot in 0..Table::Map.per_leaf() {
                    let lba = Lba(leaf * Table::Map.per_leaf() + slot);
                    if let Some(MapEntry::Block { pba, .. }) =
                        entry_in(&tables.discards, id, lba, Some((&pointer, &page)))
                        && let Some(&n) = bad.get(&pba)
                    {
                        let bad = &mut report.bad[n];
                        bad.names_found += 1;
                        // Every map that is hit is named, however often the others are.
                        let is_first = bad.names.last().is_none_or(|(last, _)| *last != name);
                        if bad.names.len() < NAMES_MAX || is_first && bad.names.len() < MAPS_MAX {
                            bad.names.push((name.clone(), lba));
                        }
                    }
                }
            }
        }
    }
}

/// The name of a map as clients use it: of a snapshot `vm1@monday`.
pub(super) fn full_name(volumes: &BTreeMap<VolumeId, Volume>, map: &Volume) -> String {
    let origin = volumes.get(&VolumeId(map.sharing.parent)).filter(|_| map.is_snapshot());
    origin.map_or_else(|| map.name.clone(), |origin| format!("{}@{}", origin.name, map.name))
}

impl ScrubReport {
    fn add(&mut self, pba: Pba, what: String, whole: bool) {
        self.bad_found += 1;
        self.whole_found += u64::from(whole);
        if self.bad.len() < BAD_BLOCKS_MAX {
            self.bad.push(BadBlock { pba, what, whole, names: Vec::new(), names_found: 0 });
        }
    }
}

/// Verifies all data of a store that nobody serves; nothing is written. Windows that no checkpoint
/// holds are recovered in memory first.
///
/// # Errors
/// As opening the store.
pub fn scrub(
    disk: &Arc<dyn Disk>,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) -> Result<ScrubReport> {
    scrub_with(disk, &KeySource::default(), progress, cancel)
}

/// As [`scrub`], of a store that may be sealed: `keys` is asked for its key.
///
/// # Errors
/// As opening the store.
pub fn scrub_with(
    disk: &Arc<dyn Disk>,
    keys: &KeySource,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) -> Result<ScrubReport> {
    Ok(scrub_open(&over_a_copy(disk, keys)?, progress, cancel))
}

/// A store that nobody serves, with what no checkpoint holds recovered in memory.
pub(super) fn over_a_copy(disk: &Arc<dyn Disk>, keys: &KeySource) -> Result<Engine> {
    let overlay = Arc::new(OverlayDisk::new(disk.clone(), OVERLAY_BYTES));
    let settings = Settings { keys: keys.clone(), ..Settings::for_memory(MEMORY_MIN) };
    let engine = Engine::open(overlay.clone(), Arc::new(Still), settings)?;
    match engine.checkpoint() {
        Err(e) if !overlay.overflowed() => Err(e),
        _ => Ok(engine),
    }
}
