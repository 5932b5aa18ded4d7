//! Writes, trims and zeroes: into memory, as much as may be there.

use std::ops::Range;

use onefold_core::{BLOCK_BYTES, Error, Kind, Result, Ticket};

use super::{
    catalogue::writable,
    layer::{BLOCK, Layer, SECTOR},
    volumes::{Layers, Volumes, readable},
};
use crate::rules::Rule;

impl Volumes {
    pub(super) fn write(&self, id: u64, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.to_write(id, offset, data.len() as u64)?;
        // A large write goes part by part, so that each part finds room, also beside volumes that lack room.
        let most = (self.archive.settings.dirty_bytes / 64).max(2 * BLOCK as u64) as usize;
        let (mut at, mut ticket) = (0, Ticket(0));
        while at < data.len() || ticket.0 == 0 {
            let n = (data.len() - at).min(most);
            ticket = self.write_part(id, offset + at as u64, &data[at..at + n])?;
            at += n;
        }
        Ok(ticket)
    }

    /// As soon as there is room for it.
    fn write_part(&self, id: u64, offset: u64, data: &[u8]) -> Result<Ticket> {
        loop {
            if let Some(ticket) = self.try_write(id, offset, data)? {
                return Ok(ticket);
            }
            self.write_back().make_room(id, Layer::memory_of(data.len() + 2 * SECTOR))?;
        }
    }

    fn try_write(&self, id: u64, offset: u64, data: &[u8]) -> Result<Option<Ticket>> {
        let end = offset + data.len() as u64;
        let order = self.order(id);
        if offset.is_multiple_of(SECTOR as u64) && end.is_multiple_of(SECTOR as u64) {
            let _order = order.read();
            return self.put(id, offset, data);
        }
        let _order = order.write();
        // A write of part of a sector needs the rest of the sector.
        let (start, stop) =
            (offset / SECTOR as u64 * SECTOR as u64, end.next_multiple_of(SECTOR as u64));
        let mut whole = vec![0; (stop - start) as usize];
        self.read_bytes(id, start, &mut whole)?;
        whole[(offset - start) as usize..][..data.len()].copy_from_slice(data);
        self.put(id, start, &whole)
    }

    /// Whole sectors; `None` when there is no room.
    fn put(&self, id: u64, offset: u64, data: &[u8]) -> Result<Option<Ticket>> {
        let mut state = self.state.lock();
        Volumes::going(&state)?;
        let own = state.volumes.get(&id).map_or(0, Layers::memory);
        if !self.share().admits(state.bytes, own, Layer::memory_of(data.len())) {
            return Ok(None);
        }
        let tables = self.archive.tables();
        let volume = readable(&tables, id)?;
        let state = &mut *state;
        let layers = state.volumes.entry(id).or_default();
        let upper = &mut layers.upper;
        let before = upper.memory();
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let within = (at % BLOCK as u64) as usize;
            let (part, later) = rest.split_at(rest.len().min(BLOCK - within));
            upper.write(volume, at / BLOCK as u64, tables.sequence, within, part);
            (at, rest) = (at + part.len() as u64, later);
        }
        // A patch of what was cut since takes the place of one that may have taken more.
        let after = upper.memory();
        state.bytes = state.bytes + after - before;
        state.changes += 1;
        layers.changed(state.changes);
        if state.is_much(self.share()) {
            self.much.notify_one();
        }
        Ok(Some(Ticket(state.changes)))
    }

    pub(super) fn trim(&self, id: u64, offset: u64, bytes: u64) -> Result<Ticket> {
        self.to_write(id, offset, bytes)?;
        let block = BLOCK_BYTES as u64;
        let (start, end) = (offset.next_multiple_of(block), (offset + bytes) / block * block);
        if start < end { self.zero(id, start..end) } else { Ok(Ticket(self.state.lock().changes)) }
    }

    pub(super) fn write_zeroes(&self, id: u64, offset: u64, bytes: u64) -> Result<Ticket> {
        self.to_write(id, offset, bytes)?;
        self.zero(id, offset..offset + bytes)
    }

    /// Whole blocks at once, the rest as zero bytes.
    fn zero(&self, id: u64, bytes: Range<u64>) -> Result<Ticket> {
        let size = BLOCK as u64;
        let (first, last) = (bytes.start.next_multiple_of(size), bytes.end / size * size);
        let edges = if first <= last {
            [bytes.start..first, last..bytes.end]
        } else {
            [bytes.clone(), 0..0]
        };
        let mut ticket = Ticket(0);
        for edge in edges.iter().filter(|edge| edge.start < edge.end) {
            ticket = self.write(id, edge.start, &vec![0; (edge.end - edge.start) as usize])?;
        }
        if first < last {
            self.write_back_ranges(id)?;
            let order = self.order(id);
            let _order = order.read();
            let mut state = self.state.lock();
            Volumes::going(&state)?;
            let state = &mut *state;
            let layers = state.volumes.entry(id).or_default();
            let before = layers.upper.memory();
            layers.upper.zero(first / size..last / size);
            state.bytes -= before - layers.upper.memory();
            state.changes += 1;
            layers.changed(state.changes);
            ticket = Ticket(state.changes);
        }
        Ok(ticket)
    }

    /// Writes back when there are as many trimmed ranges as there may be: all those of volumes that are
    /// written back together go into one frame of the log. Trimmed ranges also leave where the disk has no
    /// room for anything else.
    fn write_back_ranges(&self, id: u64) -> Result<()> {
        let most = self.archive.settings.zeroed_ranges;
        if self.ranges(id) < most || !self.archive.keeps(Rule::TrimmedRangesLimited) {
            return Ok(());
        }
        let done = self.write_back().volume(id);
        if self.ranges(id) < most { Ok(()) } else { done }
    }

    /// Trimmed ranges that wait in the volumes that are written back together with this one.
    fn ranges(&self, id: u64) -> usize {
        let state = self.state.lock();
        let alone = state.volumes.get(&id).is_some_and(|layers| layers.lacks_room);
        let together = state.volumes.iter().filter(|(of, layers)| match alone {
            true => **of == id,
            false => !layers.lacks_room,
        });
        together.map(|(_, layers)| layers.upper.zeroed.len()).sum()
    }

    /// The size of a volume.
    pub(super) fn size(&self, id: u64) -> u64 {
        self.archive.tables().volumes.all().get(&id).map_or(0, |volume| volume.bytes)
    }

    /// True for a clone to which nobody writes.
    pub(super) fn is_read_only(&self, id: u64) -> bool {
        self.archive.tables().volumes.all().get(&id).is_some_and(|volume| volume.read_only)
    }

    /// The range can be written to.
    fn to_write(&self, id: u64, offset: u64, bytes: u64) -> Result<()> {
        self.archive.tables().volumes.all().get(&id).map_or(Ok(()), writable)?;
        self.within(id, offset, bytes)
    }

    pub(super) fn within(&self, id: u64, offset: u64, bytes: u64) -> Result<()> {
        let tables = self.archive.tables();
        let volume = readable(&tables, id)?;
        match offset.checked_add(bytes) {
            Some(end) if end <= volume.bytes => Ok(()),
            _ => Err(Error::new(Kind::InvalidInput, "the range is beyond the end of the volume")),
        }
    }
}
