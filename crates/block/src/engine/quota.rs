//! Quotas: how many blocks clients may map in a volume.
//!
//! The tables have the number of mapped blocks of a map, as of the last checkpoint. Each write since then is
//! charged to its window, and the charge ends with the checkpoint that carries the window into the tables. As
//! long as a volume is far from its quota, the engine charges each written block as if its address had been a
//! hole, and looks nothing up. For a write that would pass the quota it looks up which addresses are mapped
//! already, and charges only the others. Before a write is refused, a checkpoint makes the count exact: it
//! corrects charges that were too high, and applies trims that wait.
//!
//! *Invariant:* the blocks of a volume's map are never more than its count in the tables and all charges
//! together. Count and charges are read and changed under the lock of the state, so that no two writes take
//! the same room.

use std::sync::Arc;

use onefold_core::{BLOCK_BYTES, Error, Kind, Lba, Result, VolumeId};

use super::admission::wait;
use crate::{
    coverage::Mark,
    engine::{domain_limits, resolve::map_entries},
    format::{
        catalogue::{MapKind, QUOTA_MAX, Volume},
        page::{MapEntry, Table},
    },
    kernel::{Kernel, State, Where},
    overlay::Tables,
    rules::Rule,
    scheme::verbs::Scheme,
    window::{Charge, Found, Placed},
};

/// Leaves of a map that are read together when its blocks are counted.
const LEAVES_TOGETHER: usize = 64;

/// The rest of a quota, in blocks.
struct Left {
    /// The quota itself.
    quota: u64,
    /// Blocks that may still be mapped, at least.
    blocks: u64,
    /// True when a checkpoint that counts may find more room.
    loose: bool,
}

impl Left {
    /// The error of a write for which no block is left: `Busy`, with a checkpoint asked for, where that
    /// may find room, and else `NoSpace`.
    fn refuse(&self, kernel: &Kernel, state: &mut State) -> Error {
        if self.loose && kernel.keeps(Rule::QuotaCountedFirst) {
            kernel.coverage.hit(Mark::QuotaWaits);
            state.checkpoint_wanted = true;
            return wait();
        }
        kernel.coverage.hit(Mark::QuotaReached);
        let bytes = self.quota * BLOCK_BYTES as u64;
        let what = format!(
            "the volume has reached its quota of {bytes} bytes; trim or delete data in it, or give it \
             a higher one by `onefold volume set --quota`"
        );
        Error::new(Kind::NoSpace, what)
    }
}

/// The rest of the quota of a volume; `None` when the volume has no quota.
fn left(state: &State, volume: VolumeId) -> Result<Option<Left>> {
    let quota = state.volumes.get(volume)?.quota;
    if quota == 0 {
        return Ok(None);
    }
    let tables = state.overlays.tables();
    let Some(mapped) = tables.volumes.get(&volume).map_or(Some(0), Volume::mapped) else {
        return Ok(Some(Left { quota, blocks: 0, loose: true }));
    };
    let charge = state.charge_of(volume);
    let discards = tables.discards.meeting(volume, 0, u64::MAX).next().is_some();
    Ok(Some(Left {
        quota,
        blocks: quota.saturating_sub(mapped.saturating_add(charge.blocks())),
        loose: charge.is_loose() || discards,
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
    /// The first one is a duplicate of this.
    pub(super) placed: Option<Placed>,
}

impl Granted {
    /// Charges block number `n` to the open window, into which it is put; `again` when that has it.
    pub(super) fn charge(
        self,
        kernel: &Kernel,
        state: &mut State,
        (volume, again): (VolumeId, bool),
        n: usize,
    ) {
        if !again {
            domain_limits::charge(kernel, state, volume);
        }
        if self.added >> n & 1 == 1 && kernel.keeps(Rule::QuotaCharged) {
            let charge = if self.loose { Charge::at_most(1) } else { Charge::exactly(1) };
            state.windows.charge(volume, charge);
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
    let mut granted = Granted { blocks: zero.len(), added: 0, loose: true, placed };
    let Some(left) = left(state, volume)? else { return Ok(Verdict::Take(granted)) };
    for n in (0..zero.len()).filter(|&n| !zero[n]) {
        let again = state.windows.open().holds(volume, first.plus(n as u64));
        granted.added |= u64::from(!again) << n;
    }
    if u64::from(granted.added.count_ones()) <= left.blocks {
        return Ok(Verdict::Take(granted));
    }
    let asked = answers.mapped.as_ref();
    let Some(asked) = asked.filter(|asked| Arc::ptr_eq(&asked.tables, state.overlays.tables()))
    else {
        return Ok(Verdict::Ask(state.overlays.tables().clone()));
    };
    granted = Granted { blocks: 0, added: 0, loose: asked.mapped.is_none(), placed };
    for (n, &zero) in zero.iter().enumerate() {
        let in_tables = || asked.mapped.as_ref().is_some_and(|mapped| mapped[n]);
        let mapped = || is_mapped(state, volume, first.plus(n as u64), in_tables);
        let free = zero || kernel.keeps(Rule::OverwritesAreFree) && mapped();
        if !free {
            if u64::from(granted.added.count_ones()) == left.blocks {
                break;
            }
            granted.added |= 1 << n;
        }
        granted.blocks += 1;
    }
    match granted.blocks {
        0 => Err(left.refuse(kernel, state)),
        _ => Ok(Verdict::Take(granted)),
    }
}

/// Charges one block, which was `mapped` before or not, to the open window.
///
/// # Errors
/// As [`grant`].
pub(super) fn charge_one(
    kernel: &Kernel,
    state: &mut State,
    volume: VolumeId,
    mapped: bool,
) -> Result<()> {
    domain_limits::admit_one(kernel, state, volume)?;
    let left = if mapped { None } else { left(state, volume)? };
    if let Some(left) = left.as_ref().filter(|left| left.blocks == 0) {
        return Err(left.refuse(kernel, state));
    }
    let added = u64::from(left.is_some());
    let granted = Granted { blocks: 1, added, loose: false, placed: None };
    granted.charge(kernel, state, (volume, false), 0);
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
        let charge = Charge::at_most(state.changed_blocks(volume));
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
        let charge = Charge::at_most(state.changed_blocks(id));
        state.overlays.active_mut().charge(id, charge);
    }
}

/// True when the next checkpoint must count the blocks of a volume, since it has a quota and no count.
pub(crate) fn wants_counting(volume: &Volume) -> bool {
    volume.quota > 0 && volume.sharing.kind == MapKind::Volume && volume.mapped().is_none()
}

/// Counts the blocks of a map. A map with a page that can't be read, nor when the map is walked once more,
/// counts as full, until a repair.
pub(crate) fn count(kernel: &Kernel, volume: &Volume) -> u64 {
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
