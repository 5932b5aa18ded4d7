//! Content between its source and the cutter: the source fills blocks, and another thread cuts them,
//! so that reading goes on meanwhile.
//!
//! Where one block ends and the next begins moves no cut.

use std::sync::Arc;

use crate::{
    chunking::Chunker, filter_chain::BATCH_CHUNKS, format::parameters::Chunking, memory::BufferPool,
};

/// Bytes of a block, and of a batch beside those that the chunker must see.
pub(super) const BATCH_BYTES: usize = 2 << 20;

/// The content of a block begins at a multiple of this in memory. Memory that the system gives for a
/// large buffer begins 16 bytes behind a page: a copy of a page of its cache to there takes more than
/// twice as long, since the processor takes what it reads for what it just wrote, by the last 12 bits
/// of their addresses.
const PAGE_BYTES: usize = 4096;

/// Content, and where in it the source said something.
pub(crate) struct Block<T> {
    /// Before `begin` is room for what the block before leaves uncut.
    pub(super) buffer: Vec<u8>,
    pub(super) begin: usize,
    pub(super) end: usize,
    /// In their order, each behind so many bytes since the one before.
    pub(super) steps: Vec<(usize, Step)>,
    /// The last chunk ends with the block.
    pub(super) ends: bool,
    /// Told along with the chunks of the block.
    pub(super) told: Vec<T>,
}

/// Said by the source between two bytes. Each step ends a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Border,
    /// Zeroes that nobody read.
    Zeroes(u64),
    Hole(u64),
    /// Something that is told along goes here.
    Mark,
}

/// Fills blocks.
pub(crate) struct Filling<T> {
    buffers: Arc<BufferPool>,
    /// Bytes that the cutter may leave of a block.
    least: usize,
    begin: usize,
    buffer: Vec<u8>,
    filled: usize,
    /// The end of the content at the last step.
    stepped: usize,
    steps: Vec<(usize, Step)>,
    told: Vec<T>,
}

impl<T> Filling<T> {
    /// At the beginning of a stream; blocks come from `buffers`, and whoever is done with one gives it
    /// back there.
    pub(crate) fn new(chunking: Chunking, buffers: Arc<BufferPool>) -> Filling<T> {
        let least = Chunker::new(&chunking.into()).sees();
        let (buffer, begin) = another(&buffers, least);
        Filling {
            buffers,
            least,
            begin,
            buffer,
            filled: begin,
            stepped: begin,
            steps: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Where the next bytes go; never empty.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..self.begin + BATCH_BYTES]
    }

    /// `n` bytes are there. Gives the block when it is full.
    pub(crate) fn advance(&mut self, n: usize) -> Option<Block<T>> {
        self.filled += n;
        (self.filled == self.begin + BATCH_BYTES).then(|| self.take(false))
    }

    /// The next bytes begin a chunk, whatever they are.
    pub(crate) fn border(&mut self) -> Option<Block<T>> {
        self.step(Step::Border)
    }

    /// Zeroes that are known without reading. They end a chunk, as a border does.
    pub(crate) fn zeroes(&mut self, bytes: u64) -> Option<Block<T>> {
        self.step(Step::Zeroes(bytes))
    }

    /// A hole that stays one. It ends a chunk, as a border does.
    pub(crate) fn hole(&mut self, bytes: u64) -> Option<Block<T>> {
        self.step(Step::Hole(bytes))
    }

    /// Ends a chunk, and marks the place for what is [told](Self::tell) of it.
    pub(crate) fn mark(&mut self) -> Option<Block<T>> {
        self.step(Step::Mark)
    }

    /// Goes with the chunks of the block that is filled.
    pub(crate) fn tell(&mut self, told: T) {
        self.told.push(told);
    }

    /// The block as far as it is filled.
    pub(crate) fn some(&mut self) -> Block<T> {
        self.take(false)
    }

    /// The same; the last chunk ends.
    pub(crate) fn end(&mut self) -> Block<T> {
        self.take(true)
    }

    fn step(&mut self, step: Step) -> Option<Block<T>> {
        self.steps.push((self.filled - self.stepped, step));
        self.stepped = self.filled;
        (self.steps.len() >= BATCH_CHUNKS).then(|| self.take(false))
    }

    fn take(&mut self, ends: bool) -> Block<T> {
        let (another, next) = another(&self.buffers, self.least);
        let begin = std::mem::replace(&mut self.begin, next);
        let end = std::mem::replace(&mut self.filled, next);
        self.stepped = next;
        Block {
            buffer: std::mem::replace(&mut self.buffer, another),
            begin,
            end,
            steps: std::mem::take(&mut self.steps),
            ends,
            told: std::mem::take(&mut self.told),
        }
    }
}

/// A buffer, and where in it content may begin: behind `least` bytes or more, at a page.
fn another(buffers: &BufferPool, least: usize) -> (Vec<u8>, usize) {
    let (buffer, bytes) = (buffers.take(), least + PAGE_BYTES + BATCH_BYTES);
    // Zeroes from the system: memory that nothing is read into is never touched.
    let buffer = if buffer.len() < bytes { vec![0; bytes] } else { buffer };
    let page = buffer.get(least..).map_or(0, |rest| rest.as_ptr().align_offset(PAGE_BYTES));
    (buffer, least + page.min(PAGE_BYTES))
}
