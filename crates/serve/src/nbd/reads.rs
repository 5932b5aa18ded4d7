//! READ: the reads of a batch go to the volume together, and their data is sent from where the
//! volume put it.
//!
//! The volume reads whole blocks; what a client asked for is a slice of them. Zeroes are sent as
//! holes where that is worth a chunk.

use std::ops::Range;

use onefold_core::block::{bytes, is_zero};
use onefold_core::{BLOCK_BYTES, Block, BlockRead, Lba, Result, Volume};

use super::buffers::Loan;
use super::limits::Limits;
use super::reply::{Of, Refusal, Replies};
use super::wire::{Dialect, Request, command_flag};

/// Zeroes inside a read that are worth a hole of their own: a chunk costs a client a system call or
/// two, about as much as copying this. A read of nothing but zeroes is always one hole.
const HOLE_BYTES: usize = 16 << 10;

/// Blocks whose bytes are the range `offset..offset + length`, with up to a block more at both
/// ends.
fn blocks_around(offset: u64, length: u64) -> Range<u64> {
    offset / BLOCK_BYTES as u64..(offset + length).div_ceil(BLOCK_BYTES as u64)
}

/// A piece of a client's read.
#[derive(Clone, Copy)]
struct Piece {
    of: Of,
    offset: u64,
    length: u32,
    /// One chunk only.
    whole: bool,
    /// The reply ends with this piece.
    last: bool,
}

impl Piece {
    fn blocks(&self) -> Range<u64> {
        blocks_around(self.offset, u64::from(self.length))
    }
}

/// How a read can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Together with those that wait.
    Beside,
    /// Once the batch is empty.
    Alone,
    /// In chunks, once the batch is empty.
    InChunks,
    /// Piece by piece in one reply, once the batch is empty.
    InPieces,
}

/// Where the blocks of a batch come from.
pub(crate) trait Source {
    /// Reads all of them.
    fn read(&self, reads: &mut [BlockRead<'_>]);
}

/// Reads that wait to be given to the volume, and the memory for their blocks.
pub(crate) struct ReadBatch<'a> {
    blocks: Vec<Block>,
    /// Blocks that there may be memory for now.
    room: usize,
    /// Blocks that a connection at work is sure of.
    sure: usize,
    /// Memory beyond what this connection is sure of.
    loan: Loan<'a>,
    /// Blocks read together, and in one chunk of a large read, at most.
    batch: usize,
    /// Blocks of a single read that must be answered in one piece, at most.
    whole: usize,
    used: usize,
    pieces: Vec<Piece>,
    dialect: Dialect,
}

impl<'a> ReadBatch<'a> {
    /// An empty batch. Memory is taken when it is needed.
    pub(crate) fn new(limits: &Limits, loan: Loan<'a>, dialect: Dialect) -> ReadBatch<'a> {
        // Two blocks at least: a piece of one block's length may touch two.
        let batch = (limits.read_batch_bytes / BLOCK_BYTES).max(2);
        let whole = (limits.whole_read_bytes / BLOCK_BYTES).max(batch);
        let room = (limits.read_sure() / BLOCK_BYTES).clamp(2, batch);
        ReadBatch {
            blocks: Vec::new(),
            room,
            sure: room,
            loan,
            batch,
            whole,
            used: 0,
            pieces: Vec::new(),
            dialect,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Gives all memory back until it is needed again; nothing waits in it.
    pub(crate) fn release(&mut self) {
        (self.blocks, self.pieces) = (Vec::new(), Vec::new());
        self.room = self.sure;
        self.loan.give_back();
    }

    /// True when more is lent to peer or volume than they may have beside others.
    pub(crate) fn has_too_much(&self) -> bool {
        self.loan.is_too_much()
    }

    /// True when there may be memory for so many blocks. More than were needed so far are taken at
    /// once, when they are left.
    fn has_room(&mut self, blocks: usize) -> bool {
        for wanted in [blocks.max(self.batch), blocks] {
            if blocks > self.room && self.loan.more((wanted - self.room) * BLOCK_BYTES) {
                self.room = wanted;
            }
        }
        blocks <= self.room
    }

    /// Bytes of the reads that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.used * BLOCK_BYTES
    }

    /// Answers all that wait with an error.
    pub(crate) fn refuse(&mut self, refusal: &Refusal, replies: &mut Replies) {
        for piece in self.pieces.drain(..) {
            replies.error(piece.of, refusal, Some(piece.offset));
        }
        self.used = 0;
    }

    /// How a read can be answered.
    pub(crate) fn fit(&mut self, request: &Request) -> Fit {
        let range = blocks_around(request.offset, request.length);
        let blocks = range.end - range.start;
        let unfragmented = self.dialect == Dialect::Simple || request.has(command_flag::DF);
        let most = if unfragmented { self.whole } else { self.batch } as u64;
        if blocks + self.used as u64 <= self.batch as u64
            && self.has_room(self.used + blocks as usize)
        {
            Fit::Beside
        } else if blocks <= most && self.has_room(blocks as usize) {
            Fit::Alone
        } else {
            // The pieces are as large as may be.
            self.has_room(self.batch);
            if unfragmented { Fit::InPieces } else { Fit::InChunks }
        }
    }

    /// Adds a read that fits.
    pub(crate) fn add(&mut self, request: &Request) {
        self.add_piece(request, request.offset, request.length, true);
    }

    /// Where the piece of a large read that starts at `offset` ends.
    fn part_end(&self, request: &Request, offset: u64) -> u64 {
        let room =
            (offset / BLOCK_BYTES as u64 + self.batch.min(self.room) as u64) * BLOCK_BYTES as u64;
        (request.offset + request.length).min(room)
    }

    /// Adds as much of a large read, from `offset` on, as fits into an empty batch; returns where
    /// the next piece starts.
    pub(crate) fn add_part(&mut self, request: &Request, offset: u64) -> u64 {
        let next = self.part_end(request, offset);
        self.add_piece(request, offset, next - offset, next == request.offset + request.length);
        next
    }

    fn add_piece(&mut self, request: &Request, offset: u64, length: u64, last: bool) {
        let piece = Piece {
            of: request.into(),
            offset,
            length: length as u32,
            whole: request.has(command_flag::DF),
            last,
        };
        let blocks = piece.blocks();
        self.used += (blocks.end - blocks.start) as usize;
        assert!(self.used <= self.room, "a read was added to a full batch");
        self.pieces.push(piece);
    }

    fn reserve(&mut self, blocks: usize) {
        if self.blocks.len() < blocks {
            self.blocks = Block::zeroed_vec(blocks.max(self.batch.min(self.room)));
        }
    }

    /// Reads the piece of a large read that starts at `offset`; returns where the next one starts,
    /// and where its bytes lie in [`data`](ReadBatch::data).
    pub(crate) fn read_piece(
        &mut self,
        volume: &dyn Volume,
        request: &Request,
        offset: u64,
    ) -> (u64, Result<Range<usize>>) {
        let next = self.part_end(request, offset);
        let range = blocks_around(offset, next - offset);
        let blocks = (range.end - range.start) as usize;
        self.reserve(blocks);
        let mut read = [BlockRead {
            first: Lba(range.start),
            into: &mut self.blocks[..blocks],
            result: Ok(()),
        }];
        volume.read(&mut read);
        let [BlockRead { result, .. }] = read;
        let start = (offset % BLOCK_BYTES as u64) as usize;
        (next, result.map(|()| start..start + (next - offset) as usize))
    }

    /// Reads all waiting ranges from the volume, or what was read ahead of it, and appends the replies. The data of the replies are
    /// [`data`](ReadBatch::data) until the next run. True when every read succeeded.
    pub(crate) fn run(&mut self, from: &dyn Source, replies: &mut Replies) -> bool {
        self.reserve(self.used);
        let mut free = &mut self.blocks[..];
        let mut reads = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            let blocks = piece.blocks();
            let (into, rest) = free.split_at_mut((blocks.end - blocks.start) as usize);
            reads.push(BlockRead { first: Lba(blocks.start), into, result: Ok(()) });
            free = rest;
        }
        from.read(&mut reads);
        let results: Vec<(usize, Result<()>)> =
            reads.into_iter().map(|read| (read.into.len(), read.result)).collect();

        let mut complete = true;
        let mut block = 0;
        for (piece, (blocks, result)) in self.pieces.iter().zip(results) {
            match result {
                Ok(()) => answer(piece, block * BLOCK_BYTES, bytes(&self.blocks), replies),
                Err(error) => {
                    complete = false;
                    replies.error(piece.of, &Refusal::from(error), Some(piece.offset));
                }
            }
            block += blocks;
        }
        self.pieces.clear();
        self.used = 0;
        complete
    }

    /// The data that the last run read.
    pub(crate) fn data(&self) -> &[u8] {
        bytes(&self.blocks)
    }
}

/// Appends the chunks for a piece whose first block lies at `at` in `data`.
fn answer(piece: &Piece, at: usize, data: &[u8], replies: &mut Replies) {
    let start = at + (piece.offset % BLOCK_BYTES as u64) as usize;
    let range = start..start + piece.length as usize;
    if replies.dialect() == Dialect::Simple || piece.whole {
        replies.data(piece.of, piece.offset, range, piece.last);
        return;
    }
    let offset_of = |position: usize| piece.offset + (position - start) as u64;
    let mut chunks = Chunks { data, range: range.clone() }.peekable();
    while let Some((zero, run)) = chunks.next() {
        let last = piece.last && chunks.peek().is_none();
        if zero {
            replies.hole(piece.of, offset_of(run.start), run.len() as u32, last);
        } else {
            replies.data(piece.of, offset_of(run.start), run, last);
        }
    }
}

/// Cuts a range of `data` into runs of data and of zeroes, the latter at least [`HOLE_BYTES`] long
/// unless there is nothing else.
struct Chunks<'a> {
    data: &'a [u8],
    range: Range<usize>,
}

impl Chunks<'_> {
    /// Where the run of blocks that starts at `from` and is zero, or not, ends.
    fn run_end(&self, from: usize, zero: bool) -> usize {
        let mut at = from;
        while at < self.range.end {
            let block_end = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            let end = block_end.min(self.range.end);
            if is_zero(&self.data[at..end]) != zero {
                break;
            }
            at = end;
        }
        at
    }
}

impl Iterator for Chunks<'_> {
    type Item = (bool, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let (start, end) = (self.range.start, self.range.end);
        if start == end {
            return None;
        }
        let zeroes = self.run_end(start, true);
        if zeroes - start >= HOLE_BYTES || zeroes == end {
            self.range.start = zeroes;
            return Some((true, start..zeroes));
        }
        // Data goes on until zeroes that are worth a hole.
        let mut at = zeroes;
        while at < end {
            let data_end = self.run_end(at, false);
            let zero_end = self.run_end(data_end, true);
            if zero_end - data_end >= HOLE_BYTES {
                at = data_end;
                break;
            }
            at = zero_end;
        }
        self.range.start = at;
        Some((false, start..at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(blocks: &[bool], start: usize, end: usize) -> Vec<(bool, Range<usize>)> {
        let data: Vec<u8> = blocks.iter().flat_map(|&data| [u8::from(data); BLOCK_BYTES]).collect();
        Chunks { data: &data, range: start..end }.collect()
    }

    #[test]
    fn zeroes_become_holes_only_where_that_is_worthwhile() {
        const B: usize = BLOCK_BYTES;
        assert_eq!(chunks(&[false], 100, 200), [(true, 100..200)]);
        assert_eq!(chunks(&[true], 100, 200), [(false, 100..200)]);
        assert_eq!(chunks(&[true, false, true], 0, 3 * B), [(false, 0..3 * B)]);
        let mut long = [true; 10];
        long[2..8].fill(false);
        assert_eq!(
            chunks(&long, 5, 10 * B),
            [(false, 5..2 * B), (true, 2 * B..8 * B), (false, 8 * B..10 * B)]
        );
        assert_eq!(chunks(&long, 2 * B, 9 * B), [(true, 2 * B..8 * B), (false, 8 * B..9 * B)]);
        assert_eq!(chunks(&long, 7 * B, 9 * B), [(false, 7 * B..9 * B)]);
    }
}
