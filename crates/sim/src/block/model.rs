//! The oracle: what every block of every volume may hold, now and after a crash.
//!
//! The model is plain: a map from block numbers to cells, each with a durable value and the
//! versions since. A version becomes durable when the store says so by its ticket; after a crash
//! any version since the durable one is right, and the first read of it pins which: from then on
//! only that one is.
//!
//! A change of the catalogue is durable before the next one begins, so that at most one is in doubt
//! after a crash ([`Model::begin`], [`Model::resolve`]); requests go on while it is.

mod cell;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{BLOCK_BYTES, VolumeId};
use onefold_testbed::content::{Content, Contents, ZEROES};

use crate::checker::{Checker, Failure};
use cell::{Cell, Standing};
use verbs::Doubt;
pub use verbs::Verb;

/// A block that is lost: a read of it is an error, whatever it held. It has no bytes.
pub const LOST: Content = Content(u32::MAX);

/// The model's own number of a volume.
pub type Key = u32;

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store took the change, with this ticket.
    Taken(u64),
    /// The change failed: all, some or nothing of it is there.
    Failed,
}

/// A volume in the model.
#[derive(Clone)]
pub struct Volume {
    /// Its id, once known.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its size in blocks.
    pub blocks: u64,
    /// Of a snapshot: its volume. It is never written.
    pub of: Option<Key>,
    /// Only a receive changes it.
    pub replica: bool,
    /// Blocks that it may map; 0 for any number.
    pub quota: u64,
    cells: BTreeMap<u64, Cell>,
}

/// All volumes, and what they may hold.
#[derive(Clone, Default)]
pub struct Model {
    /// All contents of the run.
    pub contents: Contents,
    volumes: BTreeMap<Key, Volume>,
    next_key: Key,
    used_ids: BTreeSet<VolumeId>,
    doubt: Doubt,
    /// Cells with versions of a ticket.
    undurable: BTreeMap<u64, Vec<(Key, u64)>>,
    durable: Option<u64>,
    highest: u64,
    settles: u64,
    /// Rollbacks that were performed.
    rollbacks: u64,
    /// Faults so far that may have cost data.
    pub damage: u64,
}

/// Windows that may be on their way at once: so many settles back, damage to the newest carriers
/// can't be told from a crash.
const TAIL_SETTLES: u64 = 6;

/// Addresses in a leaf of a map, and pages below an inner one, as the format has them.
const LEAF_ENTRIES: u64 = 288;
const FANOUT: u64 = 168;

/// The levels of a map of 2^44 blocks, the largest.
pub(crate) const LEVELS_MAX: u64 = 6;

/// The numbers of the pages that lead to an address, level by level.
fn numbers(lba: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(lba / LEAF_ENTRIES), |number| Some(number / FANOUT))
}

/// The levels of a map whose last leaf has this address.
fn levels(lba: u64) -> usize {
    1 + numbers(lba).take_while(|&number| number > 0).count()
}

/// The pages that lead to an address, by level and number.
fn way(lba: u64, levels: usize) -> impl Iterator<Item = (usize, u64)> {
    numbers(lba).take(levels).enumerate()
}

impl Model {
    /// The volumes, by the model's numbers.
    #[must_use]
    pub fn volumes(&self) -> &BTreeMap<Key, Volume> {
        &self.volumes
    }

    /// The volumes that can be written.
    #[must_use]
    pub fn writable(&self) -> Vec<Key> {
        let volumes =
            self.volumes.iter().filter(|(_, volume)| volume.of.is_none() && !volume.replica);
        volumes.map(|(key, _)| *key).collect()
    }

    /// The snapshots of a volume.
    #[must_use]
    pub fn snapshots(&self, of: Key) -> Vec<Key> {
        let all = self.volumes.iter().filter(|(_, volume)| volume.of == Some(of));
        all.map(|(key, _)| *key).collect()
    }

    /// The highest ticket so far.
    #[must_use]
    pub fn highest_ticket(&self) -> u64 {
        self.highest
    }

    /// Rollbacks so far: when one has happened, what is known of a volume's blocks is that of
    /// another map.
    #[must_use]
    pub fn rollbacks(&self) -> u64 {
        self.rollbacks
    }

    /// The blocks of a volume that were ever touched.
    #[must_use]
    pub fn touched(&self, key: Key) -> Vec<u64> {
        self.volumes.get(&key).map_or(Vec::new(), |volume| {
            volume.cells.range(..volume.blocks).map(|(lba, _)| *lba).collect()
        })
    }

    /// The contents that a read of the block may return now.
    #[must_use]
    pub fn live(&self, key: Key, lba: u64) -> Vec<Content> {
        self.cell(key, lba).map_or(vec![ZEROES], Cell::live)
    }

    /// How many blocks of a volume are mapped: at least, and at most.
    #[must_use]
    pub fn mapped(&self, key: Key) -> (u64, u64) {
        let Some(volume) = self.volumes.get(&key) else { return (0, 0) };
        let (mut least, mut most) = (0, 0);
        for (_, cell) in volume.cells.range(..volume.blocks) {
            let live = cell.live();
            let mapped =
                live.iter().filter(|&&content| content != ZEROES && content != LOST).count();
            least += u64::from(mapped == live.len());
            most += u64::from(mapped > 0 || cell.zeroed_in_parts);
        }
        (least, most)
    }

    /// The pages of a volume's map: at least, its leaves alone, and at most, with as much as a map that grew
    /// taller has more. The address of the first block is `first`.
    #[must_use]
    pub fn map_pages(&self, key: Key, first: u64) -> (u64, u64) {
        let Some(volume) = self.volumes.get(&key) else { return (0, 0) };
        let (mut least, mut most) = (BTreeSet::new(), BTreeSet::new());
        let levels = volume.cells.keys().next_back().map_or(1, |last| levels(first + last));
        for (lba, cell) in volume.cells.range(..volume.blocks) {
            let (lba, live) = (first + lba, cell.live());
            if !live.contains(&ZEROES) {
                least.insert(lba / LEAF_ENTRIES);
            }
            if cell.zeroed_in_parts || live.iter().any(|&content| content != ZEROES) {
                most.extend(way(lba, levels));
            }
        }
        if !most.is_empty() {
            most.extend(way(0, levels).skip(1));
        }
        (least.len() as u64, most.len() as u64)
    }

    /// Different contents that may be live, the zeroes left out.
    #[must_use]
    pub fn distinct(&self) -> u64 {
        let cells = self.volumes.values().flat_map(|volume| volume.cells.values());
        cells
            .flat_map(Cell::live)
            .filter(|&content| content != ZEROES && content != LOST)
            .collect::<BTreeSet<_>>()
            .len() as u64
    }

    fn cell(&self, key: Key, lba: u64) -> Option<&Cell> {
        self.volumes.get(&key)?.cells.get(&lba)
    }

    /// A block was zeroed in parts: it may be stored as a block of zeroes.
    pub fn zeroed_in_parts(&mut self, key: Key, lba: u64) {
        let cells = self.volumes.get_mut(&key).map(|volume| &mut volume.cells);
        if let Some(cell) = cells.and_then(|cells| cells.get_mut(&lba)) {
            cell.zeroed_in_parts = true;
        }
    }

    /// True when a block is certainly not mapped.
    #[must_use]
    pub fn is_hole(&self, key: Key, lba: u64) -> bool {
        self.cell(key, lba).is_none_or(|cell| cell.is_clear() && !cell.zeroed_in_parts)
    }

    /// A block got new content.
    pub fn write(&mut self, key: Key, lba: u64, content: Content, outcome: Outcome) {
        let Some(volume) = self.volumes.get_mut(&key) else { return };
        let cell = volume.cells.entry(lba).or_default();
        match outcome {
            Outcome::Taken(ticket) => {
                cell.push(content, ticket, Standing::Sure);
                self.undurable.entry(ticket).or_default().push((key, lba));
                self.highest = self.highest.max(ticket);
            }
            Outcome::Failed => cell.push(content, u64::MAX, Standing::Maybe),
        }
    }

    /// The whole blocks of `first..end` became zeroes.
    pub fn clear(&mut self, key: Key, first: u64, end: u64, outcome: Outcome) {
        let Some(volume) = self.volumes.get(&key) else { return };
        let touched: Vec<u64> = volume
            .cells
            .range(first..end.max(first))
            .filter(|(_, cell)| !cell.is_clear())
            .map(|(lba, _)| *lba)
            .collect();
        touched.into_iter().for_each(|lba| self.write(key, lba, ZEROES, outcome));
        if let Outcome::Taken(ticket) = outcome {
            self.highest = self.highest.max(ticket);
        }
    }

    /// The store says that all with `ticket` or a lower one is durable.
    ///
    /// # Errors
    /// The store acknowledged a higher ticket before.
    pub fn durable(&mut self, ticket: u64) -> Result<(), Failure> {
        if let Some(before) = self.durable.filter(|&before| before > ticket) {
            return Err(Failure::new(
                Checker::Tickets,
                format!("the durable ticket went back from {before} to {ticket}"),
            ));
        }
        if self.durable != Some(ticket) {
            self.settles += 1;
        }
        self.durable = Some(ticket);
        let later = self.undurable.split_off(&ticket.saturating_add(1));
        for (key, lba) in std::mem::replace(&mut self.undurable, later).into_values().flatten() {
            let settles = self.settles;
            let volume = if self.volumes.contains_key(&key) {
                self.volumes.get_mut(&key)
            } else {
                self.deleted_in_doubt(key)
            };
            if let Some(cell) = volume.and_then(|volume| volume.cells.get_mut(&lba)) {
                cell.advance(ticket, settles);
            }
        }
        self.settle_verb(ticket);
        Ok(())
    }

    /// The store was opened again, after a crash or not.
    pub fn restart(&mut self) {
        self.settles += 1;
        self.undurable.clear();
        self.durable = None;
        self.highest = 0;
        let (settles, tail) = (self.settles, (self.damage > 0).then(|| self.tail()));
        let mut all: Vec<&mut Volume> = self.volumes.values_mut().collect();
        if let Doubt::Taken(_, verbs::Undo::Delete(_, volume)) = &mut self.doubt {
            all.push(volume);
        }
        all.into_iter()
            .flat_map(|volume| volume.cells.values_mut())
            .for_each(|cell| cell.restart(settles, tail));
    }

    /// A read returned these bytes; from now on it must return them again.
    ///
    /// # Errors
    /// They are wrong.
    pub fn observe(
        &mut self,
        key: Key,
        lba: u64,
        bytes: &[u8; BLOCK_BYTES],
    ) -> Result<(), Failure> {
        let content = self.judge(key, lba, bytes, &self.live(key, lba))?;
        if let Some(cell) = self.volumes.get_mut(&key).and_then(|volume| volume.cells.get_mut(&lba))
        {
            cell.pin(content);
        }
        Ok(())
    }

    /// True when a read of the block may say that it is lost.
    #[must_use]
    pub fn may_be_lost(&self, key: Key, lba: u64) -> bool {
        self.live(key, lba).contains(&LOST)
    }

    /// A read said that a block is lost, which it may be; from now on all reads must.
    pub fn observe_lost(&mut self, key: Key, lba: u64) {
        if let Some(cell) = self.volumes.get_mut(&key).and_then(|volume| volume.cells.get_mut(&lba))
        {
            cell.pin(LOST);
        }
    }

    /// Checks, without pinning, that a block may be lost.
    ///
    /// # Errors
    /// It may not.
    pub fn check_lost(&self, key: Key, lba: u64) -> Result<(), Failure> {
        if self.may_be_lost(key, lba) {
            return Ok(());
        }
        let name = self.volumes.get(&key).map_or("?", |volume| &volume.name);
        let message = format!("block {lba} of volume '{name}' is lost, and nothing lost it");
        Err(Failure::new(Checker::DurableSurvives, message))
    }

    /// Checks, without pinning, what a read of the block gives.
    ///
    /// # Errors
    /// The content is none of those that the block may hold.
    pub fn check_now(&self, key: Key, lba: u64, bytes: &[u8; BLOCK_BYTES]) -> Result<(), Failure> {
        self.judge(key, lba, bytes, &self.live(key, lba)).map(|_| ())
    }

    /// Checks, without pinning, what a read after a crash at this moment returned.
    ///
    /// # Errors
    /// The content is none of those that the block may hold.
    pub fn check_after_crash(
        &self,
        key: Key,
        lba: u64,
        bytes: &[u8; BLOCK_BYTES],
    ) -> Result<(), Failure> {
        let right = self.cell(key, lba).map_or(vec![ZEROES], Cell::after_crash);
        self.judge(key, lba, bytes, &right).map(|_| ())
    }

    /// The first settle whose changes may be lost with the newest carriers, when these are damaged.
    fn tail(&self) -> u64 {
        self.settles.saturating_sub(TAIL_SETTLES + self.damage)
    }

    /// Which of `right` the bytes are, or which older version that damage to the newest carriers
    /// brought back.
    fn judge(
        &self,
        key: Key,
        lba: u64,
        bytes: &[u8; BLOCK_BYTES],
        right: &[Content],
    ) -> Result<Content, Failure> {
        let is = |content: &&Content| **content != LOST && self.contents.is(**content, bytes);
        if let Some(&content) = right.iter().find(is) {
            return Ok(content);
        }
        let found = self.contents.find(bytes);
        let cell = self.cell(key, lba);
        let old = found
            .is_some_and(|content| cell.is_some_and(|cell| cell.was(content) || content == ZEROES));
        let recent = cell.is_some_and(|cell| cell.in_tail || cell.settled >= self.tail());
        if let Some(content) = found.filter(|_| old && recent && self.damage > 0) {
            return Ok(content);
        }
        let recovered = cell.is_some_and(|cell| cell.recoveries > 1);
        let rejected =
            found.is_some_and(|content| cell.is_some_and(|cell| cell.was_rejected(content)));
        let checker = match found {
            _ if right == [LOST] => Checker::NeverWrong,
            _ if right == [ZEROES] => Checker::ZeroesReadZero,
            Some(_) if rejected => Checker::RecoveryTwice,
            Some(_) if old && recovered => Checker::OldStaysOld,
            Some(_) if old => Checker::DurableSurvives,
            Some(_) => Checker::SafeReuse,
            None => Checker::NeverWrong,
        };
        let name = self.volumes.get(&key).map_or("?", |volume| &volume.name);
        let what = match found {
            Some(content) if old => format!("its older content {}", content.0),
            Some(content) => format!("content {}, never written there", content.0),
            None => format!("bytes that nobody wrote{}", self.resemblance(bytes, right)),
        };
        let right: Vec<u32> = right.iter().map(|content| content.0).collect();
        Err(Failure::new(
            checker,
            format!("block {lba} of volume '{name}' reads as {what}; right is any of {right:?}"),
        ))
    }

    /// Which sectors agree with which of the right contents, for the report.
    fn resemblance(&self, bytes: &[u8; BLOCK_BYTES], right: &[Content]) -> String {
        let agreeing = |content: &Content| {
            let mine = self.contents.bytes(*content).chunks(512);
            bytes
                .chunks(512)
                .zip(mine)
                .map(|(a, b)| if a == b { '=' } else { '.' })
                .collect::<String>()
        };
        let right = right.iter().filter(|content| **content != LOST);
        right.map(|content| format!(" [{}: {}]", content.0, agreeing(content))).collect()
    }
}
