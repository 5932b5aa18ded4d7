//! A volume that passes everything on and takes note of what changes.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Error, Exports, Extent, ExtentKind, Kind, Lba, Result, Ticket,
    Volume, VolumeInfo, block,
    compress::{Lz4, WORST_BYTES},
};
use parking_lot::Mutex;

use super::client::Client;
use crate::trace::{Op, Record, Writer, blake2b_128};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Requests that may still get the flag FUA: clients send it with the request, and it is known here
/// a moment later.
const RECENT_MAX: usize = 256;

/// Both ends of the recording. Under one lock, so that the order of the trace is that in which the
/// server saw the changes.
struct Tape {
    client: Client,
    writer: Option<Writer>,
    lz4: Lz4,
    /// Begins with the first record.
    begun: Option<Instant>,
    last: Duration,
    /// The records of the latest requests, by ticket.
    recent: VecDeque<(u64, Vec<Record>)>,
    ticket: u64,
    /// Changes up to this ticket are durable.
    durable: u64,
    /// Why nothing is recorded any more.
    failed: Option<Error>,
}

/// The volume that clients write.
pub(super) struct Recorded {
    name: String,
    size: u64,
    tape: Mutex<Tape>,
}

impl Recorded {
    pub(super) fn new(name: &str, client: Client, writer: Writer) -> Recorded {
        let size = client.size();
        let tape = Tape {
            client,
            writer: Some(writer),
            lz4: Lz4::default(),
            begun: None,
            last: Duration::ZERO,
            recent: VecDeque::new(),
            ticket: 0,
            durable: 0,
            failed: None,
        };
        Recorded { name: name.to_owned(), size, tape: Mutex::new(tape) }
    }

    /// Lets everything that was recorded so far reach the file.
    pub(super) fn write_out(&self) {
        let mut tape = self.tape.lock();
        tape.settle(0);
        let written = tape.writer.as_mut().map_or(Ok(()), Writer::write_out);
        tape.keep(written);
    }

    /// Ends the trace; gives the number of its records.
    ///
    /// # Errors
    /// The first failure of the recording.
    pub(super) fn finish(&self) -> Result<u32> {
        let mut tape = self.tape.lock();
        tape.settle(0);
        let Some(writer) = tape.writer.take() else {
            return Err(Error::new(Kind::Stopped, "the recording is finished already"));
        };
        let records = writer.records();
        let finished = writer.finish();
        tape.keep(finished);
        tape.failed.take().map_or(Ok(records), Err)
    }
}

impl Tape {
    /// Keeps the first failure: clients go on without being recorded.
    fn keep(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    /// Gives all but the latest `most` requests to the writer.
    fn settle(&mut self, most: usize) {
        while self.recent.len() > most
            && let Some((_, records)) = self.recent.pop_front()
        {
            if self.failed.is_some() {
                continue;
            }
            let written = self
                .writer
                .as_mut()
                .map_or(Ok(()), |writer| records.iter().try_for_each(|record| writer.push(record)));
            self.keep(written);
        }
    }

    /// The time of a record made now.
    fn time(&mut self) -> u64 {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        self.last = self.last.max(begun.elapsed());
        self.last.as_micros() as u64
    }

    /// Notes the records of one request.
    fn note(&mut self, ops: Vec<Op>, microseconds: u64) -> Ticket {
        self.ticket += 1;
        if !ops.is_empty() {
            self.recent.push_back((
                self.ticket,
                ops.into_iter().map(|op| Record { microseconds, op }).collect(),
            ));
            self.settle(RECENT_MAX);
        }
        Ticket(self.ticket)
    }

    /// The records of a write of whole blocks.
    fn written(&mut self, first: u64, data: &[u8], begins: bool) -> Vec<Op> {
        let mut copy = Block::zeroed();
        let (blocks, _) = data.as_chunks::<BLOCK_BYTES>();
        let mut ops = Vec::with_capacity(blocks.len());
        for (n, bytes) in blocks.iter().enumerate() {
            copy.0 = *bytes;
            ops.push(self.describe(first + n as u64, &copy, begins && n == 0, false));
        }
        ops
    }

    fn describe(&mut self, lba: u64, block: &Block, first: bool, unaligned: bool) -> Op {
        let lz4 =
            self.lz4.compress(block, WORST_BYTES).map_or(BLOCK_BYTES, <[u8]>::len).min(BLOCK_BYTES)
                as u16;
        Op::Write { lba: Lba(lba), hash: blake2b_128(&block.0), lz4, fua: false, first, unaligned }
    }

    /// The records of a write that covers some blocks in part: each block is read back whole.
    fn reread(&mut self, offset: u64, bytes: u64) -> Result<Vec<Op>> {
        let (first, end) = (offset / BLOCK, (offset + bytes).div_ceil(BLOCK));
        let mut blocks = Block::zeroed_vec((end - first) as usize);
        self.client.read(first * BLOCK, block::bytes_mut(&mut blocks))?;
        Ok(blocks
            .iter()
            .zip(first..)
            .map(|(block, lba)| self.describe(lba, block, lba == first, true))
            .collect())
    }
}

impl Volume for Recorded {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        let mut tape = self.tape.lock();
        for read in reads {
            read.result = tape.client.read(read.first.0 * BLOCK, block::bytes_mut(read.into));
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        let mut tape = self.tape.lock();
        let time = tape.time();
        tape.client.write(offset, data)?;
        let whole = offset.is_multiple_of(BLOCK) && data.len().is_multiple_of(BLOCK_BYTES);
        let ops = if whole {
            tape.written(offset / BLOCK, data, true)
        } else {
            tape.reread(offset, data.len() as u64)?
        };
        Ok(tape.note(ops, time))
    }

    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket> {
        let mut tape = self.tape.lock();
        let time = tape.time();
        tape.client.trim(offset, bytes)?;
        let ops = ranges(offset, bytes).map(|(first, blocks)| Op::Trim { first, blocks }).collect();
        Ok(tape.note(ops, time))
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, keep: bool) -> Result<Ticket> {
        let mut tape = self.tape.lock();
        let time = tape.time();
        tape.client.write_zeroes(offset, bytes, keep)?;
        let end = offset + bytes;
        let (start, stop) =
            (offset.next_multiple_of(BLOCK).min(end), (end / BLOCK * BLOCK).max(offset));
        let mut ops: Vec<Op> = ranges(offset, bytes)
            .map(|(first, blocks)| Op::Zeroes { first, blocks, fua: false })
            .collect();
        // The edges are blocks of which a part was written.
        if start > offset {
            ops.extend(tape.reread(offset, start - offset)?);
        }
        if stop < end && stop >= start {
            ops.extend(tape.reread(stop, end - stop)?);
        }
        Ok(tape.note(ops, time))
    }

    /// A request with FUA: its records get the flag, when they are still at hand; else it is a
    /// flush.
    fn wait(&self, ticket: Ticket) -> Result<()> {
        let mut tape = self.tape.lock();
        if ticket.0 <= tape.durable {
            return Ok(());
        }
        let time = tape.time();
        tape.client.flush()?;
        tape.durable = tape.ticket;
        let Some((_, records)) = tape.recent.iter_mut().find(|(known, _)| *known == ticket.0)
        else {
            tape.note(vec![Op::Flush], time);
            return Ok(());
        };
        for record in records {
            match &mut record.op {
                Op::Write { fua, .. } | Op::Zeroes { fua, .. } => *fua = true,
                // A trim has no such flag.
                Op::Trim { .. } | Op::Flush | Op::Phase(_) => {}
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut tape = self.tape.lock();
        let time = tape.time();
        tape.client.flush()?;
        tape.note(vec![Op::Flush], time);
        tape.durable = tape.ticket;
        Ok(())
    }

    /// Everything is data: the server's own answer is not asked for.
    fn extents(&self, _: u64, bytes: u64, _: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent { bytes, kind: ExtentKind::Data }])
    }

    fn prefetch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

/// The whole blocks of a range, in pieces that a record can hold.
fn ranges(offset: u64, bytes: u64) -> impl Iterator<Item = (Lba, u32)> {
    let (first, end) = (offset.div_ceil(BLOCK), (offset + bytes) / BLOCK);
    (first..end)
        .step_by(u32::MAX as usize)
        .map(move |at| (Lba(at), (end - at).min(u64::from(u32::MAX)) as u32))
}

/// The one volume that the recorder offers.
pub(super) struct OneVolume(pub(super) Arc<Recorded>);

impl Exports for OneVolume {
    fn list(&self) -> Vec<VolumeInfo> {
        vec![VolumeInfo { name: self.0.name.clone(), size: self.0.size }]
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>> {
        if name == self.0.name || name.is_empty() {
            return Ok(self.0.clone());
        }
        Err(Error::new(
            Kind::NotFound,
            format!("there is no volume '{name}'; this recorder has '{}'", self.0.name),
        ))
    }
}
