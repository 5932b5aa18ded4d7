//! Quotas: how many blocks clients may map in a volume.
//!
//! Pages of its map count as blocks where they are more than some that are free ([`map_pages`]).
//!
//! The tables have the number of mapped blocks of a map, as of the last checkpoint. Each write since then is
//! charged to its window, and the charge ends with the checkpoint that carries the window into the tables. As
//! long as a volume is far from its quota, the engine charges each written block as if its address had been a
//! hole, and looks nothing up. For a write that would pass the quota it looks up which addresses are mapped
//! already, and charges only the others. A window charges all pages on the way to a block that is new, each
//! once, as if none were there. Before a write is refused, a checkpoint makes the count exact: it
//! corrects charges that were too high, and applies trims that wait.
//!
//! *Invariant:* the blocks of a volume's map are never more than its count in the tables and all charges
//! together; nor are its pages. Count and charges are read and changed under the lock of the state, so that no two writes take
//! the same room.

use std::sync::Arc;

use onefold_core::{BLOCK_BYTES, Error, Kind, Lba, Result, VolumeId};

use super::admission::wait;
use crate::{
    coverage::Mark,
    engine::{domain_limits, map_pages, resolve::map_entries},
    format::{
        catalogue::{MapKind, QUOTA_MAX, Volume},
        page::{MapEntry, Table},
    },
    kernel::{Kernel, State, VolumeState, Where},
    overlay::Tables,
    rules::Rule,
    scheme::verbs::Scheme,
    window::{Charge, Found, Placed, charge_way},
};

/// Leaves of a map that are read together when its blocks are counted.
const LEAVES_TOGETHER: usize = 64;

/// The rest of a quota, in blocks.
struct Left {
    /// The quota itself.
    quota: u64,
    /// Blocks that are mapped, at most.
    mapped: u64,
    pages: Pages,
    /// True when a checkpoint that counts may find more room.
    loose: bool,
}

/// The pages of a map.
struct Pages {
    /// As of the last checkpoint.
    counted: u64,
    /// Those that may have been added since.
    added: u64,
    /// Those of a full map.
    most: u64,
    /// Those that the quota does not charge.
    free: u64,
    /// The levels that the map may have.
    depth: u8,
}

impl Pages {
    /// Of a map that may have so many blocks.
    fn of(kernel: &Kernel, quota: u64, blocks: u64) -> Pages {
        Pages {
            counted: 0,
            added: 0,
            most: map_pages::most(blocks),
            free: map_pages::free(kernel, quota),
            depth: map_pages::depth(blocks),
        }
    }

    /// The pages that are charged when so many more are added, at most.
    fn charged(&self, more: u64) -> u64 {
        let all = (self.counted + self.added + more).min(self.most).max(self.counted);
        all.saturating_sub(self.free)
    }
}

impl Left {
    /// True when there is room for so many more blocks and pages.
    fn has_room(&self, blocks: u64, pages: u64) -> bool {
        self.mapped.saturating_add(blocks).saturating_add(self.pages.charged(pages)) <= self.quota
    }

    /// The error of a write for which no block is left: `Busy`, with a checkpoint asked for, where that
    /// may find room, and else `NoSpace`.
    fn refuse(&self, kernel: &Kernel, state: &mut State) -> Error {
        if self.loose && kernel.keeps(Rule::QuotaCountedFirst) {
            kernel.coverage.hit(Mark::QuotaWaits);
            state.checkpoint_wanted = true;
            return wait();
        }
        kernel.coverage.hit(Mark::QuotaReached);
        kernel.coverage.add(Mark::QuotaOfPages, usize::from(self.pages.charged(0) > 0));
        let bytes = self.quota * BLOCK_BYTES as u64;
        let pages = self.pages.charged(0) * BLOCK_BYTES as u64;
        let spread = match pages {
            0 => String::new(),
            _ => {
                format!("; {pages} bytes of it are pages of its map, since its data lies far apart")
            }
        };
        let what = format!(
            "the volume has reached its quota of {bytes} bytes; trim or delete data in it, or give it \
             a higher one by `onefold volume set --quota`{spread}"
        );
        Error::new(Kind::NoSpace, what)
    }
}

/// The rest of the quota of a volume; `None` when the volume has no quota.
fn left(kernel: &Kernel, state: &State, volume: VolumeId) -> Result<Option<Left>> {
    let VolumeState { quota, blocks, .. } = *state.volumes.get(volume)?;
    if quota == 0 {
        return Ok(None);
    }
    let tables = state.overlays.tables();
    let map = tables.volumes.get(&volume);
    let (mut pages, charge) = (Pages::of(kernel, quota, blocks), state.charge_of(volume));
    let counted = map.map_or(Some(0), Volume::pages).or((pages.most <= pages.free).then_some(0));
    let mapped = map.map_or(Some(0), Volume::mapped);
    let Some((mapped, counted)) = mapped.zip(counted) else {
        return Ok(Some(Left { quota, mapped: quota, pages, loose: true }));
    };
    // A map that grows taller keeps its top page at its lower end.
    let taller = pages.depth.saturating_sub(map.map_or(0, |map| map.map.height));
    (pages.counted, pages.added) = (counted, charge.pages() + u64::from(taller));
    let discards = tables.discards.meeting(volume, 0, u64::MAX).next().is_some();
    // A write is of two leaves at most.
    let may_fall = charge.pages() > 0 && pages.charged(2 * u64::from(pages.depth)) > 0;
    Ok(Some(Left {
        quota,
        mapped: mapped.saturating_add(charge.blocks()),
        pages,
        loose: charge.is_loose() || discards || may_fall,
    }))
}

/// The answer of the tables to which addresses of a write are mapped.
pub(super) struct Asked {
    /// The tables that were asked.
    tables: Arc<Tables>,
    /// For each address whether it maps a block; `None` when the map can't be read.
    mapped: Option<Vec<bool>>,
}

/// Asks the tables which of these addresses are mapped. This may read pages: the caller holds no lock.
pub(super) fn ask(
    kernel: &Kernel,
    tables: Arc<Tables>,
    volume: VolumeId,
    first: Lba,
    blocks: usize,
) -> Asked {
    let lbas: Vec<Lba> = (0..blocks as u64).map(|n| first.plus(n)).collect();
    let entries = map_entries(kernel, &tables, volume, &lbas);
    Asked { mapped: entries.ok().map(|all| all.iter().map(MapEntry::is_block).collect()), tables }
}

/// How quotas answer a write.
pub(super) enum Verdict {
    Take(Granted),
    /// The caller must ask these tables first ([`ask`]), without the lock.
    Ask(Arc<Tables>),
    /// The domain has reached its quota: the first block may be written if it is stored already.
    LookUp(domain_limits::Left),
}

/// The answers to questions that a write raised before.
#[derive(Default)]
pub(super) struct Answers {
    /// The answer of the tables.
    pub(super) mapped: Option<Asked>,
    /// Where the first block is stored, and what had been released then.
    pub(super) stored: Option<(Placed, u64)>,
}

/// The blocks of a write that a quota has room for.
#[derive(Clone, Copy)]
pub(super) struct Granted {
    /// How many blocks from the first one on, at least one.
    pub(super) blocks: usize,
    /// A bit for each block, the lowest for the first one: 1 if the block is charged.
    added: u64,
    /// True when some charged blocks may be mapped already.
    loose: bool,
    /// The levels that the map of the volume may have.
    depth: u8,
    /// The first one is a duplicate of this.
    pub(super) placed: Option<Placed>,
}

impl Granted {
    /// Charges block number `n` to the open window, into which it is put; `again` when that has it.
    pub(super) fn charge(
        self,
        kernel: &Kernel,
        state: &mut State,
        (volume, lba, again): (VolumeId, Lba, bool),
        n: usize,
    ) {
        if !again {
            domain_limits::charge(kernel, state, volume, lba);
        }
        if self.added >> n & 1 == 1 && kernel.keeps(Rule::QuotaCharged) {
            let charge = if self.loose { Charge::at_most(1) } else { Charge::exactly(1) };
            state.windows.charge(volume, charge);
            charge_way(&mut state.windows, volume, volume, map_pages::leaf_of(lba), self.depth);
        }
    }
}

/// Says how many blocks of a write from `first` on, 64 at most, the quotas of the volume and of its domain
/// have room for: those of zeroes take none. `answers` is what was said when something was asked.
///
/// # Errors
/// `NoSpace` when not even the first block may be written; `Busy` when a checkpoint must count first.
pub(super) fn grant(
    kernel: &Kernel,
    state: &mut State,
    volume: VolumeId,
    first: Lba,
    mut zero: &[bool],
    answers: &Answers,
) -> Result<Verdict> {
    let mut placed = None;
    if let Some(left) = domain_limits::left(kernel, state, volume)? {
        let open = state.windows.open();
        let is_new = |n: usize| !zero[n] && !open.holds(volume, first.plus(n as u64));
        let mut new = (0..zero.len()).filter(|&n| is_new(n));
        let room = usize::try_from(left.blocks).unwrap_or(usize::MAX);
        match new.nth(room) {
            None => left.answered(kernel, state, false),
            Some(0) => {
                placed = left.look_up(kernel, state, (volume, first), answers.stored)?;
                if placed.is_none() {
                    return Ok(Verdict::LookUp(left));
                }
                zero = &zero[..1];
            }
            Some(beyond) => zero = &zero[..beyond],
        }
    }
    let mut granted = Granted { blocks: zero.len(), added: 0, loose: true, depth: 0, placed };
    let Some(left) = left(kernel, state, volume)? else { return Ok(Verdict::Take(granted)) };
    let depth = left.pages.depth;
    granted.depth = depth;
    for n in (0..zero.len()).filter(|&n| !zero[n]) {
        let again = state.windows.open().holds(volume, first.plus(n as u64));
        granted.added |= u64::from(!again) << n;
    }
    let added = (0..zero.len()).filter(|n| granted.added >> n & 1 == 1);
    let pages = map_pages::added(state, volume, volume, depth, added.map(|n| first.plus(n as u64)));
    if left.has_room(u64::from(granted.added.count_ones()), pages) {
        return Ok(Verdict::Take(granted));
    }
    let asked = answers.mapped.as_ref();
    let Some(asked) = asked.filter(|asked| Arc::ptr_eq(&asked.tables, state.overlays.tables()))
    else {
        return Ok(Verdict::Ask(state.overlays.tables().clone()));
    };
    granted = Granted { blocks: 0, added: 0, loose: asked.mapped.is_none(), depth, placed };
    for (n, &zero) in zero.iter().enumerate() {
        let in_tables = || asked.mapped.as_ref().is_some_and(|mapped| mapped[n]);
        let mapped = || is_mapped(state, volume, first.plus(n as u64), in_tables);
        let free = zero || kernel.keeps(Rule::OverwritesAreFree) && mapped();
        if !free {
            let added = granted.added | 1 << n;
            let lbas = (0..=n).filter(|n| added >> n & 1 == 1).map(|n| first.plus(n as u64));
            let pages = map_pages::added(state, volume, volume, depth, lbas);
            if !left.has_room(u64::from(added.count_ones()), pages) {
                break;
            }
            granted.added = added;
        }
        granted.blocks += 1;
    }
    match granted.blocks {
        0 => Err(left.refuse(kernel, state)),
        _ => Ok(Verdict::Take(granted)),
    }
}

/// Charges one block of a volume, which was `mapped` before or not, to the open window.
///
/// # Errors
/// As [`grant`].
pub(super) fn charge_one(
    kernel: &Kernel,
    state: &mut State,
    (volume, lba): (VolumeId, Lba),
    mapped: bool,
) -> Result<()> {
    domain_limits::admit_one(kernel, state, volume)?;
    let left = if mapped { None } else { left(kernel, state, volume)? };
    if let Some(left) = &left {
        let pages = map_pages::added(state, volume, volume, left.pages.depth, std::iter::once(lba));
        if !left.has_room(1, pages) {
            return Err(left.refuse(kernel, state));
        }
    }
    let (added, depth) = (u64::from(left.is_some()), left.map_or(0, |left| left.pages.depth));
    let granted = Granted { blocks: 1, added, loose: false, depth, placed: None };
    granted.charge(kernel, state, (volume, lba, false), 0);
    Ok(())
}

/// Whether an address maps a block now.
fn is_mapped(state: &State, volume: VolumeId, lba: Lba, in_tables: impl FnOnce() -> bool) -> bool {
    if state.windows.open().holds(volume, lba) {
        return true;
    }
    match state.locate(volume, lba) {
        Where::Zero { .. } => false,
        Where::Window(window) => matches!(window.find(volume, lba), Some(Found::Block(_))),
        Where::Overlay(entry) => entry.is_block(),
        Where::Tables => in_tables(),
    }
}

/// Fails unless a volume may have this quota.
///
/// # Errors
/// `InvalidInput`; `Unsupported` where maps are not counted.
pub(super) fn check(scheme: &dyn Scheme, quota: u64) -> Result<()> {
    if quota > QUOTA_MAX {
        return Err(Error::new(Kind::InvalidInput, "a quota is smaller than 1 EiB"));
    }
    if quota > 0 {
        scheme.begin_moment().map_err(|_| {
            let what = "a store of this scheme has no quotas, since it does not count what each volume maps";
            Error::new(Kind::Unsupported, what)
        })?;
    }
    Ok(())
}

/// Charges a volume that gets a quota with all that was written since the last checkpoint, which nobody
/// charged before.
pub(super) fn begin(kernel: &Kernel, state: &mut State, volume: VolumeId) {
    if kernel.keeps(Rule::QuotaCountsBefore) {
        let charge = map_pages::charge_of_changes(state, volume);
        state.windows.charge(volume, charge);
    }
}

/// Charges the volumes that have quotas with the changes that a recovery brought back.
pub(super) fn charge_recovered(kernel: &Kernel) {
    let mut state = kernel.state.lock();
    if state.overlays.is_empty() {
        return;
    }
    domain_limits::charge_recovered(kernel, &mut state);
    if !kernel.keeps(Rule::QuotaRecovered) {
        return;
    }
    let with_quota = state.volumes.iter().filter(|(_, volume)| volume.quota > 0);
    let all: Vec<VolumeId> = with_quota.map(|(id, _)| *id).collect();
    for id in all {
        let charge = map_pages::charge_of_changes(&state, id);
        state.overlays.active_mut().charge(id, charge);
    }
}

/// True when the next checkpoint must count the blocks or the pages of a volume, since nobody has, and it has
/// a quota, or its domain one `of_domain`.
pub(crate) fn wants_counting(kernel: &Kernel, volume: &Volume, of_domain: u64) -> bool {
    let wants_pages = || map_pages::wants_counting(kernel, volume, of_domain);
    volume.sharing.kind == MapKind::Volume && (wants_blocks(volume) || wants_pages())
}

fn wants_blocks(volume: &Volume) -> bool {
    volume.quota > 0 && volume.mapped().is_none()
}

/// Counts the blocks and the pages of the map of a volume, where that must be done.
pub(crate) fn count(kernel: &Kernel, volume: &mut Volume, of_domain: u64) {
    let wanted = wants_counting(kernel, volume, of_domain);
    let blocks = (wanted && wants_blocks(volume)).then(|| count_blocks(kernel, volume));
    volume.sharing.mapped = volume.mapped().or(blocks);
    let wants_pages = wanted && map_pages::wants_counting(kernel, volume, of_domain);
    let pages = wants_pages.then(|| map_pages::count(kernel, volume));
    volume.sharing.pages = volume.pages().or(pages);
}

/// Blocks that a quota charges to a volume; `None` where nobody has counted them.
pub(super) fn charged_blocks(kernel: &Kernel, quota: u64, volume: &Volume) -> Option<u64> {
    let pages = volume.pages().unwrap_or_default();
    Some(volume.mapped()?.saturating_add(map_pages::charged(kernel, quota, pages)))
}

/// Counts the blocks of a map. A map with a page that can't be read, nor when the map is walked once more,
/// counts as full, until a repair.
fn count_blocks(kernel: &Kernel, volume: &Volume) -> u64 {
    kernel.coverage.hit(Mark::MapCounted);
    let blocks = count_leaves(kernel, volume).or_else(|_| count_leaves(kernel, volume));
    blocks.unwrap_or(volume.blocks)
}

fn count_leaves(kernel: &Kernel, volume: &Volume) -> Result<u64> {
    let (mut at, mut blocks) = (0, 0);
    loop {
        let mut leaves = Vec::with_capacity(LEAVES_TOGETHER);
        while leaves.len() < LEAVES_TOGETHER {
            let next = kernel.pages.next_leaf(Table::Map, volume.family(), &volume.map, at)?;
            let Some(leaf) = next else { break };
            leaves.push(leaf);
            at = leaf + 1;
        }
        if leaves.is_empty() {
            return Ok(blocks);
        }
        let pages =
            kernel.pages.leaves(Table::Map, volume.family(), &volume.map, &leaves, false)?;
        for (_, page) in pages.iter().flatten() {
            let entries = (0..Table::Map.per_leaf()).filter_map(|slot| MapEntry::get(page, slot));
            blocks += entries.filter(MapEntry::is_block).count() as u64;
        }
    }
}
