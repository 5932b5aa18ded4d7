//! The frames of a log applied one after the other: which files there are, where their bytes lie,
//! which objects nothing names any more, and who writes.
//!
//! *Invariant:* a pack that was dropped gets no extent again: extents are of packs that their own frame lists.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Error, Result};

use crate::format::{
    FILE_MAX, Frame, Id, PACK_MAX, Reading, Record, Sort, TABLE_MAX, Writing, damaged, is_name,
    pack_id, read_id, write_id,
};

/// Begins a table.
const TABLE_MAGIC: [u8; 8] = *b"ONEFTBL1";

/// Most bytes of what a writer says of itself.
const WHO_MAX: usize = 1024;

/// A range of a file, by where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    pub(crate) pack: (u64, u64),
    pub(crate) pack_at: u32,
}

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) extents: BTreeMap<u64, Extent>,
}

/// Bytes of files, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pack {
    pub(crate) bytes: u32,
    /// The BLAKE3 of these bytes.
    pub(crate) sum: [u8; 32],
    /// Bytes that files have of it.
    pub(crate) live: u64,
    /// It has keys that may have to go.
    pub(crate) secret: bool,
    /// The frame that has its bytes, and where in it; otherwise it is an object.
    pub(crate) inline: Option<(u64, u32)>,
}

impl Pack {
    /// The object that it is, unless its bytes are in a frame.
    pub(crate) fn id(&self, id: (u64, u64)) -> Id {
        pack_id(id, self.secret)
    }
}

/// An object that nothing names any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// The frame since which nothing does.
    pub(crate) frame: u64,
    pub(crate) bytes: u64,
    pub(crate) secret: bool,
}

/// The process that writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) id: u64,
    pub(crate) told: String,
    pub(crate) mark: String,
}

/// The table of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) id: Id,
    pub(crate) bytes: u64,
    pub(crate) sum: [u8; 32],
}

/// The files, packs and writer that the frames up to one of them leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The last frame.
    pub(crate) at: u64,
    /// Its hash.
    pub(crate) sum: [u8; 32],
    pub(crate) id: [u8; 16],
    pub(crate) names: BTreeMap<String, u64>,
    pub(crate) inodes: BTreeMap<u64, Inode>,
    pub(crate) next_inode: u64,
    pub(crate) packs: BTreeMap<(u64, u64), Pack>,
    pub(crate) dropped: BTreeMap<Id, Dropped>,
    pub(crate) writer: Option<Writer>,
    pub(crate) table: Option<Table>,
    /// The frame that names the table, or 0.
    pub(crate) table_frame: u64,
    /// Bytes of the frames since.
    pub(crate) since_table: u64,
    /// Packs of which the last byte may be gone.
    touched: BTreeSet<(u64, u64)>,
}

/// Bytes of memory, roughly, of a file without extents, and of anything else: an extent, a pack, an object that was dropped.
const INODE_BYTES: u64 = 512;
const ENTRY_BYTES: u64 = 160;

impl State {
    /// The state before the first frame.
    pub(crate) fn empty() -> State {
        State { next_inode: 1, ..State::default() }
    }

    /// Bytes of memory that it takes, roughly.
    pub(crate) fn weight(&self) -> u64 {
        let extents: usize = self.inodes.values().map(|inode| inode.extents.len()).sum();
        let entries = extents + self.packs.len() + self.dropped.len();
        self.inodes.len() as u64 * INODE_BYTES + entries as u64 * ENTRY_BYTES
    }

    /// Bytes of memory that it takes more, at most, when a frame was applied.
    pub(crate) fn growth(frame: &Frame) -> u64 {
        // Cutting an extent in two makes another one.
        let made = |record: &Record| match record {
            Record::Create { .. } => INODE_BYTES,
            _ => 2 * ENTRY_BYTES,
        };
        frame.records.iter().map(made).sum()
    }

    /// The number of the last frame.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.at
    }

    /// The hash of the last frame.
    #[must_use]
    pub fn last_sum(&self) -> [u8; 32] {
        self.sum
    }

    /// Applies the next frame.
    ///
    /// # Errors
    /// `Corrupt`, when it is not what can follow.
    pub fn apply(&mut self, frame: &Frame) -> Result<()> {
        if frame.number.checked_sub(1) != Some(self.at) || frame.before != self.sum {
            return Err(damaged("it does not follow the one before"));
        }
        let joins = frame.joins().is_some();
        let writer = self.writer.as_ref().map(|writer| writer.id);
        if joins != (frame.writer == frame.number) || !joins && writer != Some(frame.writer) {
            return Err(damaged("its writer has not joined"));
        }
        self.since_table += frame.bytes;
        for record in &frame.records {
            self.record(frame.number, frame.writer, record)?;
        }
        if frame.table_frame != self.table_frame {
            return Err(damaged("it names another table"));
        }
        self.drop_dead(frame.number);
        (self.at, self.sum) = (frame.number, frame.sum);
        Ok(())
    }

    fn record(&mut self, frame: u64, writer: u64, record: &Record) -> Result<()> {
        match record {
            Record::Made { id } => {
                if frame != 1 {
                    return Err(damaged("a log begins in its middle"));
                }
                self.id = *id;
            }
            Record::Join { fences, told, mark } => {
                let before = self.writer.as_ref().map_or(0, |writer| writer.id);
                if before != *fences || frame != writer {
                    return Err(damaged("a writer joins beside another one"));
                }
                let (told, mark) = (told.clone(), mark.clone());
                self.writer = Some(Writer { id: writer, told, mark });
            }
            Record::Leave => self.writer = None,
            Record::Pack { number, bytes, sum, secret, inline } => {
                let inline = inline.map(|at| (frame, at));
                let pack = Pack { bytes: *bytes, sum: *sum, live: 0, secret: *secret, inline };
                self.add_pack((writer, *number), pack)?;
            }
            Record::Create { inode, name } => self.create(*inode, name)?,
            Record::Remove { inode } => drop(self.remove(*inode)?),
            Record::Size { inode, bytes } => self.resize(*inode, *bytes)?,
            Record::Punch { inode, at, bytes } => self.punch(*inode, *at, *bytes)?,
            Record::Extent { inode, at, bytes, pack, pack_at } => {
                let pack = (writer, *pack);
                let end = u64::from(*pack_at) + u64::from(*bytes);
                let there = self.packs.get(&pack).map_or(0, |pack| u64::from(pack.bytes));
                if end > there || *bytes == 0 {
                    return Err(damaged("a file has bytes that its pack lacks"));
                }
                let extent = Extent { bytes: u64::from(*bytes), pack, pack_at: *pack_at };
                self.put(*inode, *at, extent)?;
            }
            Record::Table { number, bytes, sum } => {
                let id = Id { sort: Sort::Table, writer, number: *number };
                self.put_table(frame, Table { id, bytes: *bytes, sum: *sum })?;
            }
            Record::Gone { id } => {
                if self.dropped.remove(id).is_none() {
                    return Err(damaged("what was deleted is needed"));
                }
            }
        }
        Ok(())
    }

    /// A pack is there.
    pub(crate) fn add_pack(&mut self, id: (u64, u64), pack: Pack) -> Result<()> {
        if pack.bytes as usize > PACK_MAX || self.packs.insert(id, pack).is_some() {
            return Err(damaged("a pack is there twice, or too large"));
        }
        self.touched.insert(id);
        Ok(())
    }

    pub(crate) fn create(&mut self, inode: u64, name: &str) -> Result<()> {
        if inode != self.next_inode || !is_name(name) || self.names.contains_key(name) {
            return Err(damaged("a file is there twice"));
        }
        let next = inode.checked_add(1).ok_or_else(|| damaged("files have no numbers left"))?;
        self.next_inode = next;
        self.names.insert(name.to_owned(), inode);
        self.inodes.insert(inode, Inode { name: name.to_owned(), ..Inode::default() });
        Ok(())
    }

    /// A file is gone; returns what it was.
    pub(crate) fn remove(&mut self, inode: u64) -> Result<Inode> {
        let gone = self.inodes.remove(&inode).ok_or_else(no_file)?;
        self.names.remove(&gone.name);
        for extent in gone.extents.values() {
            self.release(extent.pack, extent.bytes);
        }
        Ok(gone)
    }

    pub(crate) fn resize(&mut self, inode: u64, bytes: u64) -> Result<()> {
        if bytes > FILE_MAX {
            return Err(damaged("a file is too long"));
        }
        self.clear(inode, bytes, FILE_MAX)?;
        self.inodes.get_mut(&inode).ok_or_else(no_file)?.bytes = bytes;
        Ok(())
    }

    pub(crate) fn punch(&mut self, inode: u64, at: u64, bytes: u64) -> Result<()> {
        self.clear(inode, at, at.saturating_add(bytes))
    }

    /// A range of a file has other bytes.
    pub(crate) fn put(&mut self, inode: u64, at: u64, extent: Extent) -> Result<()> {
        let end = at.checked_add(extent.bytes).filter(|end| *end <= FILE_MAX);
        let end = end.ok_or_else(|| damaged("a file is too long"))?;
        self.clear(inode, at, end)?;
        let file = self.inodes.get_mut(&inode).ok_or_else(no_file)?;
        file.bytes = file.bytes.max(end);
        // One extent for what follows in the file and in its pack.
        let joined = file.extents.range_mut(..at).next_back().filter(|(start, before)| {
            **start + before.bytes == at
                && before.pack == extent.pack
                && u64::from(before.pack_at) + before.bytes == u64::from(extent.pack_at)
        });
        match joined {
            Some((_, before)) => before.bytes += extent.bytes,
            None => drop(file.extents.insert(at, extent)),
        }
        if let Some(pack) = self.packs.get_mut(&extent.pack) {
            pack.live += extent.bytes;
        }
        Ok(())
    }

    /// Takes a range out of a file.
    fn clear(&mut self, inode: u64, at: u64, end: u64) -> Result<()> {
        let file = self.inodes.get_mut(&inode).ok_or_else(no_file)?;
        if at >= end {
            return Ok(());
        }
        let mut released = Vec::new();
        let before = file.extents.range(..at).next_back();
        if let Some((&start, &extent)) = before.filter(|(start, e)| **start + e.bytes > at) {
            let rest = start + extent.bytes - at;
            if let Some(kept) = file.extents.get_mut(&start) {
                kept.bytes -= rest;
            }
            let tail = rest.saturating_sub(end - at);
            if tail > 0 {
                let pack_at = extent.pack_at + (end - start) as u32;
                file.extents.insert(end, Extent { bytes: tail, pack_at, ..extent });
            }
            released.push((extent.pack, rest - tail));
        }
        while let Some((&start, &extent)) = file.extents.range(at..end).next() {
            file.extents.remove(&start);
            let cut = extent.bytes.min(end - start);
            if cut < extent.bytes {
                let (bytes, pack_at) = (extent.bytes - cut, extent.pack_at + cut as u32);
                file.extents.insert(end, Extent { bytes, pack_at, ..extent });
            }
            released.push((extent.pack, cut));
        }
        released.into_iter().for_each(|(pack, bytes)| self.release(pack, bytes));
        Ok(())
    }

    fn release(&mut self, id: (u64, u64), bytes: u64) {
        if let Some(pack) = self.packs.get_mut(&id) {
            pack.live = pack.live.saturating_sub(bytes);
            if pack.live == 0 {
                self.touched.insert(id);
            }
        }
    }

    /// A table has the state before this frame.
    pub(crate) fn put_table(&mut self, frame: u64, table: Table) -> Result<()> {
        if table.bytes > TABLE_MAX {
            return Err(damaged("a table is too large"));
        }
        if let Some(before) = self.table.replace(table) {
            let dropped = Dropped { frame, bytes: before.bytes, secret: false };
            self.dropped.insert(before.id, dropped);
        }
        (self.table_frame, self.since_table) = (frame, 0);
        Ok(())
    }

    /// Packs without a byte that a file has are dropped by this frame. Returns those whose bytes are in frames.
    pub(crate) fn drop_dead(&mut self, frame: u64) -> Vec<((u64, u64), Pack)> {
        let mut inline = Vec::new();
        for id in std::mem::take(&mut self.touched) {
            let Some(pack) = self.packs.get(&id).copied().filter(|pack| pack.live == 0) else {
                continue;
            };
            self.packs.remove(&id);
            match pack.inline {
                Some(_) => inline.push((id, pack)),
                None => {
                    let (bytes, secret) = (u64::from(pack.bytes), pack.secret);
                    self.dropped.insert(pack.id(id), Dropped { frame, bytes, secret });
                }
            }
        }
        inline
    }

    /// True when the object is needed, or waits to be deleted.
    pub(crate) fn knows(&self, id: &Id) -> bool {
        self.needs(id) || self.dropped.contains_key(id)
    }

    /// True when the object is needed.
    pub(crate) fn needs(&self, id: &Id) -> bool {
        let number = (id.writer, id.number);
        let is_pack = self.packs.get(&number).is_some_and(|pack| pack.id(number) == *id);
        is_pack || self.table.is_some_and(|table| table.id == *id)
    }

    /// The bytes of a table of this state.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writing::default();
        to.raw(&TABLE_MAGIC).eight(self.at).raw(&self.sum).raw(&self.id).eight(self.next_inode);
        let writer = self.writer.clone().unwrap_or_default();
        to.eight(writer.id).text(&writer.told).text(&writer.mark);
        to.eight(self.packs.len() as u64);
        for ((writer, number), pack) in &self.packs {
            to.eight(*writer).eight(*number).four(pack.bytes).raw(&pack.sum);
            to.byte(u8::from(pack.secret));
            let (frame, at) = pack.inline.unwrap_or_default();
            to.eight(frame).four(at);
        }
        to.eight(self.inodes.len() as u64);
        for (number, inode) in &self.inodes {
            to.eight(*number).text(&inode.name).eight(inode.bytes);
            to.eight(inode.extents.len() as u64);
            for (at, extent) in &inode.extents {
                to.eight(*at).four(extent.bytes as u32);
                to.eight(extent.pack.0).eight(extent.pack.1).four(extent.pack_at);
            }
        }
        to.eight(self.dropped.len() as u64);
        for (id, dropped) in &self.dropped {
            write_id(&mut to, id).eight(dropped.frame).eight(dropped.bytes);
            to.byte(u8::from(dropped.secret));
        }
        to.byte(u8::from(self.table.is_some()));
        if let Some(table) = self.table {
            write_id(&mut to, &table.id).eight(table.bytes).raw(&table.sum);
        }
        to.eight(self.table_frame);
        to.0
    }

    /// The state that a table has.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<State> {
        let mut from = Reading(bytes);
        if from.array()? != TABLE_MAGIC {
            return Err(damaged("it does not begin as a table"));
        }
        let mut state = State { at: from.eight()?, sum: from.array()?, ..State::default() };
        (state.id, state.next_inode) = (from.array()?, from.eight()?);
        let writer =
            Writer { id: from.eight()?, told: from.text(WHO_MAX)?, mark: from.text(WHO_MAX)? };
        state.writer = (writer.id > 0).then_some(writer);
        for _ in 0..from.eight()? {
            let id = (from.eight()?, from.eight()?);
            let (bytes, sum, secret) = (from.four()?, from.array()?, from.truth()?);
            let inline = Some((from.eight()?, from.four()?)).filter(|(frame, _)| *frame > 0);
            state.add_pack(id, Pack { bytes, sum, live: 0, secret, inline })?;
        }
        for _ in 0..from.eight()? {
            let (number, name) = (from.eight()?, from.name()?);
            let mut inode = Inode { name, bytes: from.eight()?, ..Inode::default() };
            let mut end = 0;
            for _ in 0..from.eight()? {
                let (at, bytes) = (from.eight()?, u64::from(from.four()?));
                let (pack, pack_at) = ((from.eight()?, from.eight()?), from.four()?);
                let there = state.packs.get_mut(&pack).ok_or_else(no_pack)?;
                let outside = u64::from(pack_at) + bytes > u64::from(there.bytes);
                if at < end || bytes == 0 || outside || at > FILE_MAX {
                    return Err(damaged("a file has bytes that its pack lacks"));
                }
                there.live += bytes;
                end = at + bytes;
                inode.extents.insert(at, Extent { bytes, pack, pack_at });
            }
            let is_new = state.names.insert(inode.name.clone(), number).is_none();
            if end > inode.bytes || inode.bytes > FILE_MAX || !is_new || number >= state.next_inode
            {
                return Err(damaged("a file is there twice, or has another length"));
            }
            state.inodes.insert(number, inode);
        }
        for _ in 0..from.eight()? {
            let id = read_id(&mut from)?;
            let (frame, bytes, secret) = (from.eight()?, from.eight()?, from.truth()?);
            if secret != (id.sort == Sort::Keys) {
                return Err(damaged("keys lie beside the objects of keys"));
            }
            state.dropped.insert(id, Dropped { frame, bytes, secret });
        }
        if from.truth()? {
            let table = Table { id: read_id(&mut from)?, bytes: from.eight()?, sum: from.array()? };
            state.table = Some(table);
        }
        state.table_frame = from.eight()?;
        state.touched.clear();
        match from.is_over() && state.packs.values().all(|pack| pack.live > 0) {
            true => Ok(state),
            false => Err(damaged("it is no table")),
        }
    }
}

fn no_file() -> Error {
    damaged("a file that changes is not there")
}

fn no_pack() -> Error {
    damaged("a file has bytes of a pack that is not there")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use onefold_testbed::Rng;

    use super::*;

    /// A file as plain bytes, by which extents are judged: for each byte the pack and the place in it.
    type Model = Vec<Option<(u64, u32)>>;

    #[test]
    fn extents_are_what_was_written_last() {
        let mut rng = Rng::new(3);
        let (mut state, mut model) = (State { next_inode: 1, ..State::default() }, Model::new());
        state.create(1, "a").unwrap();
        for number in 0..2000 {
            let (at, bytes) = (rng.below(300), rng.within(1, 60));
            match rng.below(6) {
                0 => {
                    state.punch(1, at, bytes).unwrap();
                    model.iter_mut().skip(at as usize).take(bytes as usize).for_each(|b| *b = None);
                }
                1 if rng.percent(30) => {
                    state.resize(1, at).unwrap();
                    model.resize(at as usize, None);
                }
                _ => {
                    let pack = Pack { bytes: bytes as u32, sum: [9; 32], ..Pack::default() };
                    state.add_pack((1, number), pack).unwrap();
                    let extent = Extent { bytes, pack: (1, number), pack_at: 0 };
                    state.put(1, at, extent).unwrap();
                    model.resize(model.len().max((at + bytes) as usize), None);
                    (0..bytes).for_each(|n| model[(at + n) as usize] = Some((number, n as u32)));
                }
            }
            state.drop_dead(number + 1);
            let mut found = vec![None; model.len()];
            for (at, extent) in &state.inodes[&1].extents {
                for n in 0..extent.bytes {
                    found[(at + n) as usize] = Some((extent.pack.1, extent.pack_at + n as u32));
                }
            }
            assert_eq!((found, state.inodes[&1].bytes), (model.clone(), model.len() as u64));
            let live: u64 = state.packs.values().map(|pack| pack.live).sum();
            assert_eq!(live, model.iter().flatten().count() as u64);
            let again = State::decode(&state.encode()).unwrap();
            assert_eq!(again, state);
        }
        assert!(!state.dropped.is_empty());
    }
}
