//! A frame from what changed since the last one.
//!
//! Any sync of any file makes all durable that was written until then. So what a crash leaves is the state at
//! one moment, which is more than files promise.

use onefold_core::{Error, Kind, Result};

use crate::{
    files::PENDING_MAX,
    format::{
        FRAME_MAX, Frame, Id, Parts, RECORDS_MAX, Record, Sort, TABLE_MAX, damaged, frame_name,
        inline_at, records_bytes,
    },
    log::Appended,
    rules::Rule,
    shared::{Closed, Open, Shared},
    state::{State, Table},
    uploads::shut_out,
    verify::listed,
};

/// A state that takes no more bytes than this is written as often as there are frames enough; a larger one when
/// these have an eighth of its bytes.
const TABLE_BYTES: u64 = 256 << 10;

/// The changes that a commit takes along.
struct Taken {
    writer: u64,
    number: u64,
    before: [u8; 32],
    records: Vec<Record>,
    closed: Vec<Closed>,
    /// The pack whose bytes stand in the frame.
    inline: Option<(Open, [u8; 32])>,
    table_frame: u64,
    /// The bytes of a new table, with its number.
    table: Option<(u64, Vec<u8>)>,
    /// The state that the frame leaves, but for its number and hash, when a table of it is due.
    state: Option<State>,
}

impl Shared {
    /// Makes all durable that was written until now. Without changes nothing is asked of the store.
    ///
    /// # Errors
    /// Why this process writes no more; `Stopped` when another one took its place.
    pub(crate) fn commit(&self) -> Result<()> {
        self.commit_with(&[])
    }

    /// The same with more records.
    pub(crate) fn commit_with(&self, more: &[Record]) -> Result<()> {
        let _one = self.committing.lock();
        let Some(mut taken) = self.take(more)? else { return Ok(()) };
        match self.send(&taken) {
            Ok(sum) => {
                self.committed(&taken, sum);
                self.delete_secrets(&taken)?;
                let Some(mut state) = taken.state.take() else { return Ok(()) };
                (state.at, state.sum) = (taken.number, sum);
                self.write_table(state.at, sum, state.encode())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Takes what the next frame says.
    fn take(&self, more: &[Record]) -> Result<Option<Taken>> {
        let mut core = self.core.lock();
        if core.pending.is_empty() && core.closed.is_empty() && more.is_empty() {
            // A process that only reads has nothing to sync.
            return core.failed.clone().map_or(Ok(None), Err);
        }
        let writer = core.writer()?;
        let number = core.state.at + 1;
        let mut inline = None;
        for secret in [false, true] {
            let Some(open) = core.open[usize::from(secret)].take() else { continue };
            let closed = core.close(writer, &open, secret);
            let is_short = open.bytes.len() <= self.log.settings.inline_max;
            if is_short && !secret {
                core.fresh.insert((writer, open.number), open.bytes.clone().into());
                inline = Some((open, closed.sum));
            } else {
                core.closed.push(closed);
                core.enqueue((writer, open.number), secret, open.bytes);
            }
        }
        let mut records: Vec<Record> = Vec::new();
        let closed = std::mem::take(&mut core.closed);
        records.extend(closed.iter().map(|pack| Record::Pack {
            number: pack.number,
            bytes: pack.bytes,
            sum: pack.sum,
            secret: pack.secret,
            inline: None,
        }));
        if let Some((open, sum)) = &inline {
            let (number, bytes, sum) = (open.number, open.bytes.len() as u32, *sum);
            records.push(Record::Pack { number, bytes, sum, secret: false, inline: Some(0) });
        }
        records.append(&mut core.pending);
        records.extend_from_slice(more);
        let place = inline_at(records_bytes(&records)) as u32;
        for record in &mut records {
            if let Record::Pack { inline: Some(at), .. } = record {
                *at = place;
            }
        }
        if let Some((open, _)) = &inline
            && let Some(pack) = core.state.packs.get_mut(&(writer, open.number))
        {
            pack.inline = Some((number, place));
        }
        for (id, pack) in core.state.drop_dead(number) {
            core.past.insert(id, pack);
        }
        let (before, table_frame) = (core.state.sum, core.state.table_frame);
        // All that was written is in this frame, so the state is what it leaves. Others go on writing then.
        let is_due = more.is_empty() && number - table_frame >= self.log.settings.frames_max;
        let state = is_due.then(|| core.state.clone());
        Ok(Some(Taken {
            writer,
            number,
            before,
            records,
            closed,
            inline,
            table_frame,
            table: None,
            state,
        }))
    }

    /// Commits when so much waits for the next frame that it may not fit into one.
    pub(crate) fn commit_if_full(
        &self,
        core: parking_lot::MutexGuard<'_, crate::shared::Core>,
    ) -> Result<()> {
        let is_full = core.pending.len() > PENDING_MAX;
        drop(core);
        if is_full { self.commit() } else { Ok(()) }
    }

    /// Sends packs, table and frame, in this order; returns the frame's hash.
    fn send(&self, taken: &Taken) -> Result<[u8; 32]> {
        let packs: Vec<_> = taken.closed.iter().map(|pack| (taken.writer, pack.number)).collect();
        let ordered = self.log.settings.keeps(Rule::PacksBeforeFrame);
        if ordered {
            self.wait_for(&packs)?;
        }
        let table = || match &taken.table {
            Some((number, bytes)) => {
                let id = Id { sort: Sort::Table, writer: taken.writer, number: *number };
                self.log.create_own(&id.to_string(), bytes, TABLE_MAX)
            }
            None => Ok(()),
        };
        let table_first = self.log.settings.keeps(Rule::TableBeforeFrame);
        if table_first {
            table()?;
        }
        let (bytes, sum) = Frame::encode(&Parts {
            number: taken.number,
            writer: taken.writer,
            nonce: self.log.pace.nonce(),
            before: taken.before,
            table_frame: taken.table_frame,
            time: self.log.pace.wall(),
            records: &taken.records,
            inline: taken.inline.as_ref().map_or(&[], |(open, _)| &open.bytes),
        });
        let records = taken.records.len();
        let is_read = records <= RECORDS_MAX && bytes.len() as u64 <= FRAME_MAX;
        if !is_read {
            return Err(Error::new(Kind::NoSpace, "a change has too many parts for one frame"));
        }
        if self.log.settings.keeps(Rule::SyncWaitsForFrame) {
            self.append(taken.number, bytes)?;
        } else {
            // Broken: it is sent once, and nobody looks.
            let _ = self.log.objects.create(&frame_name(taken.number), &bytes);
        }
        if !table_first {
            table()?;
        }
        if !ordered {
            self.wait_for(&packs)?;
        }
        self.core.lock().state.since_table += bytes_of(taken);
        Ok(sum)
    }

    fn append(&self, number: u64, bytes: Vec<u8>) -> Result<()> {
        match self.log.append(number, &bytes)? {
            Appended::Ours => Ok(()),
            Appended::Others if !self.log.settings.keeps(Rule::UnknownIsSentAgain) => {
                self.behind(number, &bytes)
            }
            Appended::Others if !self.log.settings.keeps(Rule::OthersFramesRead) => {
                self.behind(number, &bytes)
            }
            Appended::Others => {
                let next = self.log.frame(number)?;
                let told = next.records.iter().find_map(|record| match record {
                    Record::Join { told, .. } => Some(told.as_str()),
                    _ => None,
                });
                Err(shut_out(told.unwrap_or_default()))
            }
        }
    }

    /// Broken: goes on behind what another one appended.
    fn behind(&self, mut number: u64, bytes: &[u8]) -> Result<()> {
        loop {
            let other = self.log.frame(number)?;
            number += 1;
            let mine =
                Frame::decode(bytes, number - 1).or_else(|_| Frame::decode(bytes, number))?;
            let (again, _) = Frame::encode(&Parts {
                number,
                writer: mine.writer,
                nonce: mine.nonce,
                before: other.sum,
                table_frame: other.table_frame,
                time: mine.time,
                records: &mine.records,
                inline: &[],
            });
            if self.log.append(number, &again)? == Appended::Ours {
                self.core.lock().state.at = number - 1;
                return Ok(());
            }
            if number > 1_000_000 {
                return Err(damaged("no end of the log"));
            }
        }
    }

    /// The frame is there, and with it all that it says.
    fn committed(&self, taken: &Taken, sum: [u8; 32]) {
        if let Some((open, _)) = &taken.inline {
            let from = inline_at(records_bytes(&taken.records)) as u64;
            self.cache.put(&frame_name(taken.number), from, &open.bytes);
        }
        let mut core = self.core.lock();
        core.state.at += 1;
        core.state.sum = sum;
        if let Some((open, _)) = &taken.inline {
            core.fresh.remove(&(taken.writer, open.number));
        }
        drop(core);
        self.changed.notify_all();
    }

    /// After a frame that changes keys: deletes all objects with keys that the state does not need. These are what
    /// was replaced, of which `Gone` stands in the next frame, and what this writer or one that had ended stored
    /// without a frame: it may have what was removed now.
    fn delete_secrets(&self, taken: &Taken) -> Result<()> {
        let due: Vec<Id> = {
            let core = self.core.lock();
            let dropped = core.state.dropped.iter();
            let dropped = dropped.filter(|(_, it)| it.secret && it.frame <= core.state.at);
            dropped.map(|(id, _)| *id).collect()
        };
        if due.is_empty() && !taken.closed.iter().any(|pack| pack.secret) {
            return Ok(());
        }
        // Before what was replaced: as long as the log has that, the next commit does all of this again.
        if self.log.settings.keeps(Rule::KeyOrphansGo) {
            self.delete_secret_orphans(taken.writer)?;
        }
        for id in due {
            self.log.ask(&mut || self.log.objects.delete(&id.to_string()))?;
            let mut core = self.core.lock();
            if core.state.dropped.remove(&id).is_some() {
                core.pending.push(Record::Gone { id });
            }
        }
        Ok(())
    }

    /// Deletes objects with keys that no frame names. Packs of this writer that are on their way are in its state.
    fn delete_secret_orphans(&self, writer: u64) -> Result<()> {
        for id in listed(&self.log, Sort::Keys.folder(), Id::parse)?.into_keys() {
            if id.writer <= writer && !self.core.lock().state.knows(&id) {
                self.log.ask(&mut || self.log.objects.delete(&id.to_string()))?;
            }
        }
        let is_due = |name: &str| {
            let id = Id::parse(name).filter(|id| id.sort == Sort::Keys && id.writer <= writer);
            id.is_some_and(|id| !self.core.lock().state.needs(&id))
        };
        self.log.ask(&mut || self.log.objects.drop_unfinished(&is_due))
    }

    /// Writes a table, if the frames since the last one are many.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub(crate) fn table_if_due(&self) -> Result<()> {
        self.commit()?;
        let _one = self.committing.lock();
        let (at, sum, bytes) = {
            let core = self.core.lock();
            core.writer()?;
            if !core.pending.is_empty() || !core.closed.is_empty() {
                return Ok(());
            }
            let state = &core.state;
            let frames = state.at - state.table_frame;
            let takes = (state.packs.len() * 96 + state.inodes.len() * 64) as u64;
            let many = frames >= self.log.settings.table_every
                && (takes <= TABLE_BYTES || state.since_table >= takes / 8);
            if !many && frames < self.log.settings.frames_max {
                return Ok(());
            }
            (state.at, state.sum, state.encode())
        };
        self.write_table(at, sum, bytes)
    }

    /// Writes a table of the state as of the last frame.
    fn write_table(&self, at: u64, before: [u8; 32], bytes: Vec<u8>) -> Result<()> {
        let taken = {
            let mut core = self.core.lock();
            let (writer, number) = (core.writer()?, at + 1);
            let table_number = core.number();
            let id = Id { sort: Sort::Table, writer, number: table_number };
            let sum = *blake3::hash(&bytes).as_bytes();
            let table = Table { id, bytes: bytes.len() as u64, sum };
            core.state.put_table(number, table)?;
            let record = Record::Table { number: table_number, bytes: table.bytes, sum };
            Taken {
                writer,
                number,
                before,
                records: vec![record],
                closed: Vec::new(),
                inline: None,
                table_frame: number,
                table: Some((table_number, bytes)),
                state: None,
            }
        };
        match self.send(&taken) {
            Ok(sum) => {
                self.committed(&taken, sum);
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }
}

/// Bytes of a frame, about.
fn bytes_of(taken: &Taken) -> u64 {
    (inline_at(records_bytes(&taken.records)) + 32) as u64
        + taken.inline.as_ref().map_or(0, |(open, _)| open.bytes.len() as u64)
}
