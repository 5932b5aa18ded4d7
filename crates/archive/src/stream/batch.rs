//! A stream cut into batches of chunks with their fingerprints.

use std::sync::Arc;

use onefold_core::Fingerprint;

use crate::{
    chunking::{Chunker, Piece},
    filter_chain::BATCH_CHUNKS,
    format::parameters::Chunking,
    memory::{BufferPool, Pooled},
    operations_log::Archive,
};

/// Bytes of a batch, beside those that the chunker must see.
const BATCH_BYTES: usize = 2 << 20;

/// Buffers that are kept for use again: those of the containers on their way share batches, two of
/// each for four megabytes.
const KEPT_MAX: usize = 24;

/// Chunks with their fingerprints, in the order of the stream.
pub struct Batch {
    /// The chunks; bytes behind them do not count. Containers may share them.
    pub(super) bytes: Arc<Pooled>,
    pub(super) pieces: Vec<Next>,
    pub(super) fingerprints: Vec<Fingerprint>,
}

#[derive(Clone, Copy)]
pub(crate) enum Next {
    Chunk(usize),
    Zeroes(u64),
    /// A hole that nobody read.
    Hole(u64),
    /// The source says something here.
    Mark,
}

/// Cuts a stream into batches.
pub struct Cutting {
    chunking: Chunking,
    cutter: Chunker,
    /// The buffer, and how many of its bytes are filled.
    held: Vec<u8>,
    filled: usize,
    /// The end of the last chunk in the buffer.
    cut: usize,
    /// Bytes of chunks before `cut` that were zeroes are not in `held` any more.
    pieces: Vec<Next>,
    chunks: usize,
    buffers: Arc<BufferPool>,
}

impl Cutting {
    /// At the beginning of a stream.
    #[must_use]
    pub fn new(chunking: Chunking) -> Cutting {
        let cutter = Chunker::new(chunking);
        let held = vec![0; BATCH_BYTES + cutter.sees()];
        Cutting {
            chunking,
            cutter,
            held,
            filled: 0,
            cut: 0,
            pieces: Vec::new(),
            chunks: 0,
            buffers: Arc::new(BufferPool::keeping(KEPT_MAX)),
        }
    }

    /// Where the next bytes go; never empty.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.held[self.filled..]
    }

    /// `n` bytes are there. Gives a batch when there is enough for one.
    pub fn advance(&mut self, n: usize) -> Option<Batch> {
        self.filled += n;
        self.cut_on(false);
        (self.filled == self.held.len() || self.chunks >= BATCH_CHUNKS).then(|| self.take())
    }

    /// Adds zeroes that are known without reading. They end a chunk, as a border does.
    pub fn zeroes(&mut self, bytes: u64) -> Option<Batch> {
        self.border();
        if bytes > 0 {
            self.pieces.push(Next::Zeroes(bytes));
        }
        (self.pieces.len() >= BATCH_CHUNKS).then(|| self.take())
    }

    /// Adds a hole that stays one. It ends a chunk, as a border does.
    pub fn hole(&mut self, bytes: u64) -> Option<Batch> {
        self.border();
        if bytes > 0 {
            self.pieces.push(Next::Hole(bytes));
        }
        (self.pieces.len() >= BATCH_CHUNKS).then(|| self.take())
    }

    /// Ends a chunk, and marks the place for what the source says of it.
    pub fn mark(&mut self) -> Option<Batch> {
        self.border();
        self.pieces.push(Next::Mark);
        (self.pieces.len() >= BATCH_CHUNKS).then(|| self.take())
    }

    /// The next bytes begin a chunk, whatever they are.
    pub fn border(&mut self) {
        self.cut_on(true);
        self.cutter = Chunker::new(self.chunking);
    }

    /// The chunks that are cut so far.
    pub fn some(&mut self) -> Batch {
        self.take()
    }

    /// Ends the last chunk, and gives the chunks that are left.
    pub fn end(&mut self) -> Batch {
        self.border();
        self.take()
    }

    fn cut_on(&mut self, last: bool) {
        while let Some(piece) = self.cutter.next(&self.held[self.cut..self.filled], last) {
            match piece {
                Piece::Chunk(n) => {
                    self.pieces.push(Next::Chunk(n));
                    self.cut += n;
                    self.chunks += 1;
                }
                Piece::Zeroes(n) => {
                    // Zeroes are removed from the buffer, so that chunks lie one behind the other.
                    self.held.copy_within(self.cut + n..self.filled, self.cut);
                    self.filled -= n;
                    match self.pieces.last_mut() {
                        Some(Next::Zeroes(before)) => *before += n as u64,
                        _ => self.pieces.push(Next::Zeroes(n as u64)),
                    }
                }
            }
        }
    }

    fn take(&mut self) -> Batch {
        let mut rest = self.buffers.take();
        rest.resize(self.held.len(), 0);
        rest[..self.filled - self.cut].copy_from_slice(&self.held[self.cut..self.filled]);
        let bytes = std::mem::replace(&mut self.held, rest);
        (self.filled, self.cut, self.chunks) = (self.filled - self.cut, 0, 0);
        Batch {
            bytes: Arc::new(Pooled::new(bytes, self.buffers.clone())),
            pieces: std::mem::take(&mut self.pieces),
            fingerprints: Vec::new(),
        }
    }
}

impl Batch {
    /// Computes the fingerprints. Hashing is slow; any thread may do it.
    pub fn fingerprint(&mut self, archive: &Archive) {
        let mut at = 0;
        let chunks: Vec<&[u8]> = self
            .lengths()
            .map(|n| {
                at += n;
                &self.bytes.bytes()[at - n..at]
            })
            .collect();
        self.fingerprints = archive.fingerprinter.chunks(&chunks);
    }

    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().filter_map(|piece| match piece {
            Next::Chunk(n) => Some(*n),
            Next::Zeroes(_) | Next::Hole(_) | Next::Mark => None,
        })
    }
}
