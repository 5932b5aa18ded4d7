//! The windows on their way: the open one, and the closed ones until their records are published.
//!
//! Clients *gather* changes in the open window. *Closing* it begins the next one. A closed window
//! is *prepared* (its blocks are placed, its records made), *written*, and *published*, which hands
//! it over to the overlays.
//!
//! *Invariants*, which only this file can break, since all fields are private:
//! - Windows have consecutive numbers: the published ones, then the closed ones in their order,
//!   then the open one.
//! - A stage only goes forward, and windows are prepared and begun to be written in their order.
//! - Windows are published in their order, each after it was written whole.
//! - No window is acknowledged that is not published.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use onefold_core::{Block, Lba, Pba, VolumeId};

use super::{Charge, Charged, Kept, PIECE_BLOCKS, Placed, Plan, Window};
use crate::format::{catalogue::CatalogueChange, record::WindowNumber};

/// How far a closed window has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Closed,
    Preparing,
    Prepared,
    Writing,
    Written,
}

/// A closed window whose records are not published.
struct ClosedWindow {
    window: Arc<Window>,
    plan: Option<Arc<Plan>>,
    stage: Stage,
}

/// The windows on their way, and how far they are durable.
pub(crate) struct Windows {
    open: Window,
    closed: VecDeque<ClosedWindow>,
    /// All windows up to this one are published.
    durable: WindowNumber,
    /// All windows up to this one are durable, whatever comes.
    acknowledged: WindowNumber,
    /// Blocks gathered but not placed, and changes of the catalogue.
    unplaced: u64,
    /// Memory of published windows, for the next ones.
    pool: Vec<Vec<Block>>,
}

/// Charges the open window with the pages that a block may add to the map of a volume with `depth` levels.
pub(crate) fn charge_way(
    windows: &mut Windows,
    charged: impl Into<Charged>,
    volume: VolumeId,
    leaf: u64,
    depth: u8,
) {
    windows.open.charges.add_way(charged.into(), volume, leaf, depth);
}

impl Windows {
    /// Windows after `last`, when those up to `durable` are in the tables or were recovered.
    pub(crate) fn after(last: WindowNumber, durable: WindowNumber) -> Windows {
        Windows {
            open: Window::new(last.next()),
            closed: VecDeque::new(),
            durable,
            acknowledged: durable,
            unplaced: 0,
            pool: Vec::new(),
        }
    }

    /// Recovery found windows up to `last`, and those up to `durable` count.
    pub(crate) fn recovered(&mut self, last: WindowNumber, durable: WindowNumber) {
        self.open = Window::new(last.next());
        (self.durable, self.acknowledged) = (durable, durable);
    }

    /// The open window.
    pub(crate) fn open(&self) -> &Window {
        &self.open
    }

    /// The last window that was closed, or written by a recovery.
    pub(crate) fn last_closed(&self) -> WindowNumber {
        WindowNumber(self.open.number.0 - 1)
    }

    /// The newest window that holds changes.
    pub(crate) fn newest(&self) -> WindowNumber {
        if self.open.is_empty() {
            self.closed.back().map_or(self.durable, |closed| closed.window.number)
        } else {
            self.open.number
        }
    }

    /// All windows up to this one are published: their records are durable, or a checkpoint has
    /// yet to make them so.
    pub(crate) fn durable(&self) -> WindowNumber {
        self.durable
    }

    /// All windows up to this one are durable, whatever comes.
    pub(crate) fn acknowledged(&self) -> WindowNumber {
        self.acknowledged
    }

    /// Acknowledges the windows up to `number`, which are published.
    pub(crate) fn acknowledge(&mut self, number: WindowNumber) {
        self.acknowledged = self.acknowledged.max(number);
    }

    /// Acknowledges all windows that are published.
    pub(crate) fn acknowledge_published(&mut self) {
        self.acknowledge(self.durable);
    }

    /// True when nothing is gathered or on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.open.is_empty()
    }

    /// How many windows are closed.
    pub(crate) fn closed(&self) -> usize {
        self.closed.len()
    }

    /// Memory slots of closed windows.
    pub(crate) fn closed_slots(&self) -> usize {
        self.closed.iter().map(|closed| closed.window.slots()).sum()
    }

    /// Blocks of memory, used or not.
    pub(crate) fn memory_blocks(&self) -> usize {
        self.closed_slots() + self.open.slots() + self.pool.len() * PIECE_BLOCKS
    }

    /// Records that the windows will have.
    pub(crate) fn records(&self) -> usize {
        self.all().map(Window::records).sum()
    }

    /// All windows, the open one last.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Window> {
        self.closed.iter().map(|closed| &*closed.window).chain([&self.open])
    }

    /// Memory of the open window for a block.
    pub(crate) fn put(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        moved: bool,
        kept: Kept,
    ) -> &mut Block {
        let Windows { open, pool, unplaced, .. } = self;
        *unplaced += u64::from(!open.holds(volume, lba));
        let piece = || pool.pop().unwrap_or_else(|| Block::zeroed_vec(PIECE_BLOCKS));
        open.put(volume, lba, moved, kept, piece)
    }

    /// The block of an address in the open window, to be changed in place.
    pub(crate) fn edit(&mut self, volume: VolumeId, lba: Lba) -> Option<&mut Block> {
        self.open.get_mut(volume, lba)
    }

    /// Says that the block of an address in the open window is a duplicate.
    pub(crate) fn set_placed(&mut self, volume: VolumeId, lba: Lba, placed: Placed) {
        self.open.set_placed(volume, lba, placed);
    }

    /// Makes blocks of the open window read as zeroes.
    pub(crate) fn punch(&mut self, volume: VolumeId, start: u64, end: u64, keep: bool) {
        let dropped = self.open.punch(volume, start, end, keep);
        self.unplaced -= dropped as u64;
    }

    /// Charges the open window with what its blocks add to a volume or a domain with a quota.
    pub(crate) fn charge(&mut self, charged: impl Into<Charged>, charge: Charge) {
        self.open.charges.add(charged.into(), charge);
    }

    /// Puts a change of the catalogue into the open window.
    pub(crate) fn change_catalogue(&mut self, change: CatalogueChange) {
        self.open.catalogue.push(change);
        self.unplaced += 1;
    }

    /// Closes the open window, if it holds anything.
    pub(crate) fn close(&mut self) -> bool {
        if self.open.is_empty() {
            return false;
        }
        let next = Window::new(self.open.number.next());
        let window = Arc::new(std::mem::replace(&mut self.open, next));
        self.closed.push_back(ClosedWindow { window, plan: None, stage: Stage::Closed });
        true
    }

    /// True when a closed window waits to be prepared.
    pub(crate) fn wants_preparing(&self) -> bool {
        self.closed.back().is_some_and(|closed| closed.stage == Stage::Closed)
    }

    /// The oldest window that waits to be prepared: its preparation begins.
    pub(crate) fn begin_preparing(&mut self) -> Option<Arc<Window>> {
        let closed = self.closed.iter_mut().find(|closed| closed.stage == Stage::Closed)?;
        closed.stage = Stage::Preparing;
        Some(closed.window.clone())
    }

    /// The blocks of a window that is being prepared were placed. It is about to name `pins`, which
    /// must not become free before its records are published.
    pub(crate) fn placed(&mut self, number: WindowNumber, blocks: u64, pins: Vec<Pba>) {
        self.unplaced -= blocks;
        if let Some(closed) = self.closed_window(number) {
            closed.plan = Some(Arc::new(Plan { pins, ..Plan::default() }));
        }
    }

    /// A window is prepared.
    pub(crate) fn prepared(&mut self, number: WindowNumber, plan: Plan) {
        if let Some(closed) = self.closed_window(number) {
            (closed.plan, closed.stage) = (Some(Arc::new(plan)), Stage::Prepared);
        }
    }

    /// How many windows are not prepared, the open one included, and how many records they have.
    pub(crate) fn unprepared(&self) -> (usize, usize) {
        let unprepared = self.closed.iter().filter(|closed| closed.stage < Stage::Prepared);
        unprepared.fold((1, self.open.records()), |(windows, records), closed| {
            (windows + 1, records + closed.window.records())
        })
    }

    /// Blocks gathered but not placed, and changes of the catalogue.
    pub(crate) fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// The oldest window that is prepared and not being written.
    pub(crate) fn next_to_write(&self) -> Option<(Arc<Window>, Arc<Plan>)> {
        let closed = self.closed.iter().find(|closed| closed.stage == Stage::Prepared)?;
        Some((closed.window.clone(), closed.plan.clone()?))
    }

    /// A prepared window is being written from now on.
    pub(crate) fn begin_writing(&mut self, number: WindowNumber) {
        self.closed_window(number).into_iter().for_each(|closed| closed.stage = Stage::Writing);
    }

    /// True when a window is being written, or was and is not published.
    pub(crate) fn is_writing(&self) -> bool {
        self.closed.iter().any(|closed| closed.stage >= Stage::Writing)
    }

    /// A window was written.
    pub(crate) fn mark_written(&mut self, number: WindowNumber) {
        self.closed_window(number).into_iter().for_each(|closed| closed.stage = Stage::Written);
    }

    /// The windows that were written, as far as all before them were.
    pub(crate) fn written(&self) -> impl Iterator<Item = (&Arc<Window>, &Arc<Plan>)> {
        self.closed
            .iter()
            .take_while(|closed| closed.stage == Stage::Written)
            .filter_map(|closed| Some((&closed.window, closed.plan.as_ref()?)))
    }

    /// The oldest window, if it was written and its number is at most `target`: it is durable, and
    /// the caller publishes it.
    pub(crate) fn publish_next(
        &mut self,
        target: WindowNumber,
    ) -> Option<(Arc<Window>, Arc<Plan>)> {
        let closed = self.closed.front()?;
        if closed.window.number > target || closed.stage < Stage::Written {
            return None;
        }
        let ClosedWindow { window, plan, .. } = self.closed.pop_front()?;
        self.durable = self.durable.max(window.number);
        Some((window, plan?))
    }

    /// Keeps the memory of a published window for others, up to `pool_blocks`, unless a reader
    /// still looks into it.
    pub(crate) fn recycle(&mut self, window: Arc<Window>, pool_blocks: usize) {
        if let Some(window) = Arc::into_inner(window) {
            for piece in window.into_pieces() {
                if self.pool.len() * PIECE_BLOCKS < pool_blocks {
                    self.pool.push(piece);
                }
            }
        }
    }

    /// The newest closed window that changes an address.
    pub(crate) fn find_closed(&self, volume: VolumeId, lba: Lba) -> Option<&Arc<Window>> {
        let changes = |closed: &&ClosedWindow| closed.window.find(volume, lba).is_some();
        self.closed.iter().rev().find(changes).map(|closed| &closed.window)
    }

    /// The content of a physical block that a window on its way writes, and its domain if it is a block of
    /// a client as it is.
    pub(crate) fn content_of(&self, pba: Pba) -> Option<(&Block, Option<u32>)> {
        self.closed.iter().find_map(|closed| closed.plan.as_ref()?.written(&closed.window, pba))
    }

    /// Blocks stored before that windows are about to name.
    pub(crate) fn pinned(&self) -> BTreeSet<Pba> {
        let plans = self.closed.iter().filter_map(|closed| closed.plan.as_ref());
        let placed = self.all().flat_map(|window| &window.blocks).filter_map(|block| block.placed);
        let pins = plans.flat_map(|plan| plan.pins.iter().copied());
        pins.chain(placed.map(|placed| placed.pba)).collect()
    }

    /// A planted bug: windows up to `target` are told to be durable, whatever comes before them.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn pretend_durable(&mut self, target: WindowNumber) {
        self.durable = self.durable.max(target);
    }

    fn closed_window(&mut self, number: WindowNumber) -> Option<&mut ClosedWindow> {
        self.closed.iter_mut().find(|closed| closed.window.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(windows: &mut Windows, lba: u64) -> WindowNumber {
        windows.put(VolumeId(1), Lba(lba), false, Kept::default());
        windows.newest()
    }

    fn written(windows: &mut Windows) -> Option<WindowNumber> {
        let number = windows.begin_preparing()?.number;
        windows.placed(number, 1, Vec::new());
        windows.prepared(number, Plan::default());
        let next = windows.next_to_write()?.0.number;
        windows.begin_writing(next);
        windows.mark_written(next);
        Some(next)
    }

    #[test]
    fn windows_are_published_in_their_order_and_acknowledged_after_it() {
        let mut windows = Windows::after(WindowNumber(7), WindowNumber(5));
        let (first, second) = (gather(&mut windows, 1), {
            windows.close();
            gather(&mut windows, 2)
        });
        assert!(windows.close() && !windows.close(), "an empty window is not closed");
        assert_eq!((first, second), (WindowNumber(8), WindowNumber(9)));
        assert_eq!((windows.unplaced(), windows.unprepared()), (2, (3, 2)));
        // The first one is being written, while the second one was.
        let number = windows.begin_preparing().map(|window| window.number);
        windows.placed(first, 1, vec![Pba(3)]);
        assert_eq!((number, windows.pinned().len()), (Some(first), 1));
        windows.prepared(first, Plan::default());
        windows.begin_writing(first);
        assert_eq!(written(&mut windows), Some(second));
        assert!(windows.written().next().is_none() && windows.publish_next(second).is_none());
        windows.mark_written(first);
        assert_eq!(windows.written().count(), 2);
        assert!(windows.publish_next(first).is_some() && windows.publish_next(first).is_none());
        assert_eq!((windows.durable(), windows.acknowledged()), (first, WindowNumber(5)));
        windows.acknowledge_published();
        windows.acknowledge(WindowNumber(6));
        assert_eq!((windows.acknowledged(), windows.newest()), (first, second));
        assert!(windows.publish_next(second).is_some() && windows.is_empty());
        assert_eq!((windows.unplaced(), windows.newest()), (0, second));
    }

    #[test]
    fn a_published_window_leaves_its_memory_to_others_unless_it_is_read() {
        let mut windows = Windows::after(WindowNumber(0), WindowNumber(0));
        for read in [true, false] {
            gather(&mut windows, 1);
            windows.close();
            let target = written(&mut windows).unwrap();
            let reader = windows.find_closed(VolumeId(1), Lba(1)).filter(|_| read).cloned();
            let (window, _) = windows.publish_next(target).unwrap();
            windows.recycle(window, PIECE_BLOCKS);
            assert_eq!(windows.memory_blocks() == 0, reader.is_some());
        }
    }
}
