//! Gathering: client changes join the open window.

use std::sync::atomic::Ordering::Relaxed;

use onefold_core::{BLOCK_BYTES, Block, Error, Kind, Lba, Result, Ticket, VolumeId, block};

use super::{
    Engine, State, Zones,
    admission::{Admission, Purpose, full, wait},
    resolve::Where,
};
use crate::{
    counters::add,
    format::{page::MapEntry, record::PER_WINDOW_MAX},
    window::{Found, Placed, Window},
};

/// Blocks that are admitted and copied while the lock is held once.
const PIECE: usize = 32;

/// Longest range that keeps zeroes instead of a hole: longer ones would fill the map with entries that say nothing.
const KEEP_BLOCKS_MAX: u64 = 8192;

/// Most ranges of a window, so that its records stay few.
const WINDOW_RANGES_MAX: usize = 1024;

impl Engine {
    /// Writes bytes of any alignment. Acknowledge it when it returns (weak persistence), or when its ticket is durable.
    ///
    /// # Errors
    /// `Busy` when steps must be run first: nothing of this call beyond what is in the window already was taken, and the same call may be
    /// made again. `NoSpace` when the store is full. `InvalidInput` beyond the end.
    pub fn write(&self, volume: VolumeId, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.check_range(volume, offset, data.len() as u64)?;
        let size = BLOCK_BYTES as u64;
        let head = ((size - offset % size) % size).min(data.len() as u64) as usize;
        let (head, rest) = data.split_at(head);
        let (whole, tail) = rest.split_at(rest.len() / BLOCK_BYTES * BLOCK_BYTES);
        let mut ticket = None;
        if !head.is_empty() {
            ticket = Some(self.edit(volume, offset, head)?);
        }
        let mut lba = Lba(offset.div_ceil(size));
        for piece in whole.chunks(PIECE * BLOCK_BYTES) {
            ticket = Some(self.write_blocks(volume, lba, piece)?);
            lba = lba.plus((piece.len() / BLOCK_BYTES) as u64);
        }
        if !tail.is_empty() {
            ticket = Some(self.edit(volume, lba.0 * size, tail)?);
        }
        add(&self.counters.client_blocks, (data.len() as u64).div_ceil(size));
        Ok(ticket.unwrap_or_else(|| self.newest()))
    }

    /// Makes bytes read as zeroes; the blocks that they fill become free. With `keep` they show as written zeroes, else as a hole.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_zeroes(&self, volume: VolumeId, offset: u64, bytes: u64, keep: bool) -> Result<Ticket> {
        self.check_range(volume, offset, bytes)?;
        let size = BLOCK_BYTES as u64;
        let zeroes = [0u8; BLOCK_BYTES];
        let (first, end) = (offset.div_ceil(size), (offset + bytes) / size);
        let mut ticket = None;
        if first > end || first * size > offset + bytes {
            // Inside one block.
            return self.edit(volume, offset, &zeroes[..bytes as usize]);
        }
        if first * size > offset {
            ticket = Some(self.edit(volume, offset, &zeroes[..(first * size - offset) as usize])?);
        }
        if first < end {
            ticket = Some(self.punch(volume, first, end, keep)?);
        }
        if end * size < offset + bytes {
            ticket = Some(self.edit(volume, end * size, &zeroes[..(offset + bytes - end * size) as usize])?);
        }
        Ok(ticket.unwrap_or_else(|| self.newest()))
    }

    /// Drops bytes. Blocks that are not filled by them are left as they are: trimming is advice.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn trim(&self, volume: VolumeId, offset: u64, bytes: u64) -> Result<Ticket> {
        self.check_range(volume, offset, bytes)?;
        let size = BLOCK_BYTES as u64;
        let (first, end) = (offset.div_ceil(size), (offset + bytes) / size);
        if first < end { self.punch(volume, first, end, false) } else { Ok(self.newest()) }
    }

    /// Refuses ranges that the volume does not have.
    pub(crate) fn check_range(&self, volume: VolumeId, offset: u64, bytes: u64) -> Result<()> {
        let state = self.state.lock();
        let size = state.volume(volume)?.blocks * BLOCK_BYTES as u64;
        if offset.checked_add(bytes).is_some_and(|end| end <= size) {
            return Ok(());
        }
        Err(Error::new(Kind::InvalidInput, format!("{bytes} bytes at {offset} reach beyond the end of the volume ({size} bytes)")))
    }

    /// Adds whole blocks to the open window.
    fn write_blocks(&self, volume: VolumeId, first: Lba, data: &[u8]) -> Result<Ticket> {
        let (blocks, _) = data.as_chunks::<BLOCK_BYTES>();
        let zero: [bool; PIECE] = std::array::from_fn(|n| blocks.get(n).is_some_and(|bytes| block::is_zero(bytes)));
        let new = blocks.len() - zero[..blocks.len()].iter().filter(|&&zero| zero).count();
        let mut state = self.state.lock();
        let placed = match self.admit(&mut state, new as u64, Purpose::Data)? {
            Admission::Granted => Vec::new(),
            Admission::Wait => return Err(wait()),
            Admission::Full => {
                drop(state);
                let placed = self.place_first(blocks)?;
                state = self.state.lock();
                match self.admit(&mut state, 0, Purpose::Relief)? {
                    Admission::Granted => placed,
                    Admission::Wait => return Err(wait()),
                    Admission::Full => return Err(full()),
                }
            }
        };
        state.volume(volume)?;
        let mut n = 0;
        while n < blocks.len() {
            let lba = first.plus(n as u64);
            self.make_room(&mut state);
            if zero[n] {
                let run = zero[n..blocks.len()].iter().take_while(|&&zero| zero).count();
                state.punch(volume, lba.0, lba.0 + run as u64, true);
                add(&self.counters.zero_blocks, run as u64);
                n += run;
                continue;
            }
            state.put(volume, lba, false).0.copy_from_slice(&blocks[n]);
            if let Some(Some(placed)) = placed.get(n) {
                state.open.set_placed(volume, lba, *placed);
            }
            n += 1;
        }
        self.opened(&mut state);
        Ok(Ticket(state.open.number.0))
    }

    /// Notes when the open window got its first change.
    pub(crate) fn opened(&self, state: &mut State) {
        if state.open.opened.is_none() {
            state.open.opened = Some(self.clock.now());
        }
    }

    /// Closes the open window when it is as large as windows get.
    pub(crate) fn make_room(&self, state: &mut State) {
        if state.open.slots() >= self.settings.window_blocks
            || state.open.ranges.len() >= WINDOW_RANGES_MAX
            || state.open.records() as u64 + 1 >= PER_WINDOW_MAX
        {
            state.close();
        }
    }

    /// With a full store: finds the blocks of a write that are stored already, before it is acknowledged.
    ///
    /// # Errors
    /// `NoSpace` when one is not.
    fn place_first(&self, blocks: &[[u8; BLOCK_BYTES]]) -> Result<Vec<Option<Placed>>> {
        let mut placed = Vec::with_capacity(blocks.len());
        let mut copy = Block::zeroed();
        for bytes in blocks {
            copy.0.copy_from_slice(bytes);
            if copy.is_zero() {
                placed.push(None);
                continue;
            }
            let fingerprint = self.identity.fingerprinter.one(&copy);
            placed.push(Some(self.stored(&fingerprint, &copy)?.ok_or_else(full)?));
        }
        Ok(placed)
    }

    /// Makes whole blocks read as zeroes.
    pub(crate) fn punch(&self, volume: VolumeId, start: u64, end: u64, keep: bool) -> Result<Ticket> {
        let mut state = self.state.lock();
        match self.admit(&mut state, 0, Purpose::Relief)? {
            Admission::Granted => {}
            Admission::Wait => return Err(wait()),
            Admission::Full => return Err(full()),
        }
        state.volume(volume)?;
        self.make_room(&mut state);
        state.punch(volume, start, end, keep && end - start <= KEEP_BLOCKS_MAX);
        self.opened(&mut state);
        Ok(Ticket(state.open.number.0))
    }

    /// Changes a part of one block: reads it, unless it is in memory, and writes it whole. A change of the same block by somebody else
    /// meanwhile is noticed, and the edit begins again.
    fn edit(&self, volume: VolumeId, offset: u64, bytes: &[u8]) -> Result<Ticket> {
        let lba = Lba(offset / BLOCK_BYTES as u64);
        let at = (offset % BLOCK_BYTES as u64) as usize;
        let mut block = Block::zeroed();
        loop {
            let (seen, snapshot) = {
                let mut state = self.state.lock();
                match self.admit(&mut state, 1, Purpose::Data)? {
                    Admission::Granted => {}
                    Admission::Wait => return Err(wait()),
                    Admission::Full => return Err(full()),
                }
                if let Some(open) = state.open.get_mut(volume, lba) {
                    open.0[at..at + bytes.len()].copy_from_slice(bytes);
                    return Ok(Ticket(state.open.number.0));
                }
                let seen = state.locate(volume, lba);
                if let Where::Window(window) = &seen {
                    match window.find(volume, lba) {
                        Some(Found::Block(found)) => block.0 = found.0,
                        _ => block.0.fill(0),
                    }
                }
                (seen, state.snapshot.clone())
            };
            let entry = match &seen {
                Where::Window(_) => None,
                Where::Zero { .. } => Some(MapEntry::Zero),
                Where::Overlay(entry) => Some(*entry),
                Where::Tables => Some(self.map_entry(&snapshot, volume, lba)?),
            };
            match entry {
                None => {}
                Some(MapEntry::Hole | MapEntry::Zero) => block.0.fill(0),
                Some(MapEntry::Lost) => return Err(super::read::lost(volume, lba)),
                Some(MapEntry::Block { pba, carried, prefix }) => self.read_block(volume, lba, pba, carried, prefix, &mut block)?,
            }
            block.0[at..at + bytes.len()].copy_from_slice(bytes);
            let mut state = self.state.lock();
            state.volume(volume)?;
            let same = match (&seen, state.locate(volume, lba)) {
                (Where::Window(then), Where::Window(now)) => std::sync::Arc::ptr_eq(then, &now),
                (Where::Overlay(then), Where::Overlay(now)) => *then == now,
                (Where::Tables, Where::Tables) => std::sync::Arc::ptr_eq(&snapshot, &state.snapshot),
                (Where::Zero { .. }, Where::Zero { .. }) => true,
                _ => false,
            };
            if !same || state.open.holds(volume, lba) {
                continue;
            }
            self.make_room(&mut state);
            if block.is_zero() {
                state.punch(volume, lba.0, lba.0 + 1, true);
            } else {
                state.put(volume, lba, false).0 = block.0;
            }
            self.opened(&mut state);
            return Ok(Ticket(state.open.number.0));
        }
    }

    /// Closes the open window, if it holds anything: the next step is [`prepare_window`](Self::prepare_window).
    pub fn close_window(&self) -> bool {
        self.state.lock().close()
    }

    /// Zones as of the released checkpoint, for the allocator.
    pub(crate) fn zones<'a>(&'a self, snapshot: &'a super::Snapshot) -> Zones<'a> {
        Zones { engine: self, snapshot }
    }

    /// How many changes the open window holds, and since when.
    #[must_use]
    pub fn gathered(&self) -> (usize, Option<std::time::Duration>) {
        let state = self.state.lock();
        (state.open.records(), state.open.opened)
    }

    /// What was counted since the store was opened.
    #[must_use]
    pub fn counts(&self) -> crate::counters::Counts {
        let _ = self.counters.client_blocks.load(Relaxed);
        self.counters.counts()
    }
}

impl State {
    /// Memory of the open window for a block.
    pub(crate) fn put(&mut self, volume: VolumeId, lba: Lba, moved: bool) -> &mut Block {
        let before = self.open.live();
        let State { open, pool, unplaced, active, .. } = self;
        active.dirty.touch(volume, lba);
        let window: &mut Window = open;
        let slots = window.holds(volume, lba);
        if !slots {
            *unplaced += 1;
        }
        debug_assert!(before <= window.slots());
        window.put(volume, lba, moved, || State::piece(pool))
    }

    /// Makes blocks of the open window read as zeroes.
    pub(crate) fn punch(&mut self, volume: VolumeId, start: u64, end: u64, keep: bool) {
        let dropped = self.open.punch(volume, start, end, keep);
        self.unplaced -= dropped as u64;
        self.active.dirty.touch(volume, Lba(start));
        self.active.dirty.touch(volume, Lba(end - 1));
    }

    /// Closes the open window, if it holds anything.
    pub(crate) fn close(&mut self) -> bool {
        if self.open.is_empty() {
            return false;
        }
        let next = Window::new(self.open.number.next());
        let window = std::sync::Arc::new(std::mem::replace(&mut self.open, next));
        self.flights.push_back(super::Flight { window, plan: None, stage: super::Stage::Closed });
        true
    }
}
