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
    batch::{read_each, read_one},
    leaves::{self, Leaf, Leaves},
    overlay_disk::OverlayDisk,
    recovered::{OVERLAY_BYTES, Still},
    report::{Phase, Progress},
};
use crate::{
    engine::{Engine, resolve::entry_in},
    format::{
        Identity,
        carrier::Carrier,
        catalogue::Volume,
        pack::{Pack, near_pack},
        page::{self, Form, MapEntry, ReferenceEntry, Table},
        stored::{self, Stored},
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
    /// Blocks that no domain opens that was not erased, and that no volume of one names: they belong to one
    /// that was erased, and become free when its volumes and snapshots are deleted. Their carriers are
    /// whole.
    pub erased_blocks: u64,
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

/// The problem with a pack of which a fragment gives no data.
const BAD_PACK: &str = "is a damaged pack";

/// The problem with data that is another.
const OTHER_FINGERPRINT: &str = "does not have the fingerprint that it should have";

/// Words of blocks that nobody opens, which are judged together: 2^25 blocks at most, of 128 GiB.
const UNKNOWN_MAX: usize = 1 << 19;

/// A block whose fingerprint is to be computed.
struct Pending {
    stored: Stored,
    expected: Fingerprint,
    content: Block,
    /// As it was read, where it may be of another domain than was tried.
    block: Option<Block>,
    /// False for what came from a carrier whose checksum differs.
    proven: bool,
}

/// Blocks that no domain opens that was not erased: 64 of each word.
#[derive(Default)]
struct Unknown(BTreeMap<u64, u64>);

impl Unknown {
    fn insert(&mut self, pba: Pba) {
        *self.0.entry(pba.0 / 64).or_default() |= 1 << (pba.0 % 64);
    }

    fn contains(&self, pba: Pba) -> bool {
        self.0.get(&(pba.0 / 64)).is_some_and(|word| word & 1 << (pba.0 % 64) != 0)
    }

    fn remove(&mut self, pba: Pba) {
        if let Some(word) = self.0.get_mut(&(pba.0 / 64)) {
            *word &= !(1 << (pba.0 % 64));
        }
    }

    fn count(&self) -> u64 {
        self.0.values().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// The blocks of one scrub.
#[derive(Default)]
struct Blocks {
    /// The domain of the block before: that of the next one, most likely.
    domain: u32,
    pending: Vec<Pending>,
    unknown: Unknown,
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
    let mut blocks = Blocks::default();
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
        verify_blocks(kernel, &expected, &mut blocks, &mut report);
        drop(tables);
        if blocks.unknown.0.len() >= UNKNOWN_MAX {
            settle(kernel, &mut blocks.unknown, &mut report, progress, cancel);
        }
    }
    settle(kernel, &mut blocks.unknown, &mut report, progress, cancel);
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
fn verify_blocks(
    kernel: &Kernel,
    expected: &Expected,
    blocks: &mut Blocks,
    report: &mut ScrubReport,
) {
    let places: Vec<Pba> = expected.keys().copied().collect();
    let identity = &kernel.identity;
    let several = identity.domains().count() > 1 || identity.has_older() || identity.has_erased();
    read_each(&*kernel.disk, &places, &mut |pba, block| {
        let (expected, carried) = expected[&pba];
        let stored = Stored { pba, form: Form::of(carried), prefix: expected.prefix() };
        let block = match block {
            Ok(block) => block,
            Err(e) => return report.add(pba, format!("can't be read: {e}"), false),
        };
        if carried
            && (Pack::shape(identity, block, pba).is_some() || near_pack(identity, block, pba))
        {
            if let Some((what, is_whole)) = wrong_with_pack(identity, pba, block, &expected) {
                report.add(pba, what.into(), is_whole);
            }
            return;
        }
        match content(kernel, blocks.domain, stored, block) {
            Ok((content, proven)) => {
                let block = several.then(|| block.clone());
                blocks.pending.push(Pending { stored, expected, content, block, proven });
            }
            Err(_) if several && is_elsewhere(kernel, stored, block, &expected, blocks) => {}
            Err(what) => report.add(pba, what, false),
        }
        if blocks.pending.len() == HASHED {
            compare_hashes(kernel, blocks, report);
        }
    });
    compare_hashes(kernel, blocks, report);
}

/// The problem with a pack that should have this checksum, and whether all its data is there nevertheless.
fn wrong_with_pack(
    identity: &Identity,
    pba: Pba,
    block: &Block,
    expected: &Fingerprint,
) -> Option<(&'static str, bool)> {
    let Some(pack) = Pack::shape(identity, block, pba) else { return Some((BAD_PACK, false)) };
    let proven = Pack::proven(identity, block, pba).is_some();
    if proven && pack.checksum() != *expected {
        return Some((OTHER_FINGERPRINT, false));
    }
    let mut content = Block::zeroed();
    let is_whole = (0..pack.len() as u8).all(|fragment| {
        pack.expand(fragment, &mut content).is_ok()
            && pack
                .fingerprint(fragment)
                .is_some_and(|kept| identity.fingerprinter.one(&content).agrees(&kept))
    });
    match (proven, is_whole) {
        (true, true) => None,
        (false, true) => Some(("is a damaged pack, but its data is whole", true)),
        (_, false) => Some((BAD_PACK, false)),
    }
}

/// The content of a block as its clients see it if it is of this domain, and whether all bytes of its
/// carrier are as they were written. A reader needs no more than the data.
fn content(
    kernel: &Kernel,
    domain: u32,
    stored: Stored,
    block: &Block,
) -> Result<(Block, bool), String> {
    let Stored { pba, form, prefix } = stored;
    let identity = &kernel.identity;
    if form == Form::Raw {
        let mut content = block.clone();
        identity.open_raw(domain, prefix, pba, &mut content).map_err(|e| e.to_string())?;
        return Ok((content, true));
    }
    let carrier = Carrier::shape(identity, block, pba)
        .filter(|carrier| carrier.header.address == pba)
        .ok_or(BAD_CARRIER)?;
    let mut expanded = Block::zeroed();
    carrier.expand(domain, prefix, &mut expanded).map_err(|e| format!("can't be expanded: {e}"))?;
    Ok((*expanded, Carrier::proven(identity, block, pba).is_some()))
}

/// True when a block is that of another domain, or may be of one that was erased. A carrier is whole in
/// any case.
fn is_elsewhere(
    kernel: &Kernel,
    stored: Stored,
    block: &Block,
    expected: &Fingerprint,
    blocks: &mut Blocks,
) -> bool {
    let identity = &kernel.identity;
    if stored.form == Form::Carried && Carrier::proven(identity, block, stored.pba).is_none() {
        return false;
    }
    let agrees = |found: &Fingerprint| found.agrees(expected);
    if let Some((domain, ..)) = stored::found(identity, stored, block, agrees) {
        blocks.domain = domain;
        return true;
    }
    let may_be_erased = identity.has_erased();
    if may_be_erased {
        blocks.unknown.insert(stored.pba);
    }
    may_be_erased
}

fn compare_hashes(kernel: &Kernel, blocks: &mut Blocks, report: &mut ScrubReport) {
    let pending = std::mem::take(&mut blocks.pending);
    let contents: Vec<&Block> = pending.iter().map(|one| &one.content).collect();
    // Those that wait were opened in one domain or another: what does not agree is tried in all.
    let found = kernel
        .identity
        .fingerprinter_of(blocks.domain)
        .unwrap_or(&kernel.identity.fingerprinter)
        .many(&contents);
    for (one, found) in pending.iter().zip(found) {
        let pba = one.stored.pba;
        let agrees =
            found.agrees(&one.expected) || is_by_older(&kernel.identity, blocks.domain, one);
        match (agrees, one.proven, &one.block) {
            (true, true, _) => {}
            (true, false, _) => {
                report.add(pba, "is a damaged carrier, but its data is whole".into(), true);
            }
            (false, _, Some(block))
                if is_elsewhere(kernel, one.stored, block, &one.expected, blocks) => {}
            (false, false, _) => report.add(pba, BAD_CARRIER.into(), false),
            (false, true, _) => report.add(pba, OTHER_FINGERPRINT.into(), false),
        }
    }
}

/// True when what a carrier carries was stored before the data key of a domain was changed.
fn is_by_older(identity: &Identity, domain: u32, one: &Pending) -> bool {
    let older =
        identity.older_fingerprinter_of(domain).filter(|_| one.stored.form == Form::Carried);
    older.is_some_and(|older| older.one(&one.content).agrees(&one.expected))
}

/// Tells which of the blocks that nobody opens are damage: those that a map of a domain names that was
/// not erased. The others belong to one that was.
fn settle(
    kernel: &Kernel,
    unknown: &mut Unknown,
    report: &mut ScrubReport,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) {
    if unknown.0.is_empty() {
        return;
    }
    let mut bad: Vec<Pba> = Vec::new();
    let mut look = |_: &Tables, volume: &Volume, _: Lba, pba: Pba, form: Form, prefix: u64| {
        if !unknown.contains(pba) || !kernel.identity.has_domain(volume.domain) {
            return;
        }
        // The place may hold something else by now, which is whole.
        let stored = Stored { pba, form, prefix };
        let is_it = |found: &Fingerprint| found.has_prefix(prefix);
        let whole = read_one(&*kernel.disk, pba)
            .is_ok_and(|block| stored::found(&kernel.identity, stored, &block, is_it).is_some());
        unknown.remove(pba);
        if !whole {
            bad.push(pba);
        }
    };
    let walked = each_mapping(kernel, &mut report.unread, progress, cancel, &mut look);
    report.cancelled |= !walked;
    bad.into_iter().for_each(|pba| report.add(pba, OTHER_FINGERPRINT.into(), false));
    report.erased_blocks += unknown.count();
    unknown.0.clear();
}

/// Sees a mapping to a block: the tables that have it, its map, its address, and what is mapped.
type SeesMapping<'f> = &'f mut dyn FnMut(&Tables, &Volume, Lba, Pba, Form, u64);

/// Looks at all mappings of maps that have names, some leaves at a time. False when it was cancelled.
fn each_mapping(
    kernel: &Kernel,
    unread: &mut Vec<String>,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
    sees: SeesMapping<'_>,
) -> bool {
    let volumes: Vec<VolumeId> = kernel.tables().volumes.keys().copied().collect();
    for (n, &id) in volumes.iter().enumerate() {
        let family = kernel.tables().volumes.get(&id).map_or(id.0, |volume| volume.family());
        let mut leaves = Leaves::new(Table::Map, family);
        loop {
            progress(Progress { what: Phase::Names, done: n as u64, total: volumes.len() as u64 });
            if cancel() {
                return false;
            }
            let tables = kernel.tables();
            let Some(volume) = tables.volumes.get(&id).filter(|volume| !volume.name.is_empty())
            else {
                break;
            };
            let Some(found) = leaves.next(kernel, &volume.map, MAP_LEAVES, unread) else {
                break;
            };
            for (leaf, pointer, page) in found {
                for slot in 0..Table::Map.per_leaf() {
                    let lba = Lba(leaf * Table::Map.per_leaf() + slot);
                    if let Some(MapEntry::Block { pba, form, prefix }) =
                        entry_in(&tables.discards, id, lba, Some((&pointer, &page)))
                    {
                        sees(&tables, volume, lba, pba, form, prefix);
                    }
                }
            }
        }
    }
    true
}

/// Finds the addresses that name bad blocks.
fn name_bad(
    kernel: &Kernel,
    report: &mut ScrubReport,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) {
    let lost = report.bad.iter().zip(0..).filter(|(bad, _)| !bad.whole);
    let at: BTreeMap<Pba, usize> = lost.map(|(bad, n)| (bad.pba, n)).collect();
    if at.is_empty() {
        return;
    }
    let ScrubReport { bad, unread, .. } = report;
    let mut name =
        |tables: &Tables, volume: &Volume, lba: Lba, pba: Pba, form: Form, prefix: u64| {
            let Some(&n) = at.get(&pba) else { return };
            // One fragment may be whole beside another that is not.
            let stored = Stored { pba, form, prefix };
            let is_it = |found: &Fingerprint| found.has_prefix(prefix);
            let is_whole = form.is_packed()
                && read_one(&*kernel.disk, pba).is_ok_and(|block| {
                    stored::found(&kernel.identity, stored, &block, is_it).is_some()
                });
            if is_whole {
                return;
            }
            let name = full_name(&tables.volumes, volume);
            let bad = &mut bad[n];
            bad.names_found += 1;
            // Every map that is hit is named, however often the others are.
            let is_first = bad.names.last().is_none_or(|(last, _)| *last != name);
            if bad.names.len() < NAMES_MAX || is_first && bad.names.len() < MAPS_MAX {
                bad.names.push((name, lba));
            }
        };
    let walked = each_mapping(kernel, unread, progress, cancel, &mut name);
    report.cancelled |= !walked;
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
