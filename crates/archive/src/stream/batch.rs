//! A stream cut into batches of chunks with their fingerprints.

use std::{ops::Range, sync::Arc};

use onefold_core::Fingerprint;

use super::filling::{BATCH_BYTES, Block, Step};
use crate::{
    chunking::{Chunker, Cuts, Piece},
    filter_chain::BATCH_CHUNKS,
    memory::{BufferPool, Pooled},
    operations_log::Domain,
};

/// Buffers that are kept for use again: those of the containers on their way share batches, two of
/// each for four megabytes.
pub(super) const KEPT_MAX: usize = 24;

/// Chunks with their fingerprints, in the order of the stream.
pub struct Batch {
    /// The chunks; bytes before and behind them do not count. Containers may share them.
    pub(super) bytes: Arc<Pooled>,
    begin: usize,
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
    cuts: Cuts,
    cutter: Chunker,
    /// The buffer, and how many of its bytes are filled.
    held: Vec<u8>,
    filled: usize,
    /// The end of what is there: of a block more may be filled than is looked at yet.
    there: usize,
    /// The end of the last chunk in the buffer.
    cut: usize,
    /// Bytes that the last block left uncut.
    left: Option<(Arc<Pooled>, Range<usize>)>,
    /// Bytes of chunks before `cut` that were zeroes are not in `held` any more.
    pieces: Vec<Next>,
    chunks: usize,
    buffers: Arc<BufferPool>,
}

impl Cutting {
    /// At the beginning of a stream.
    #[must_use]
    pub fn new(cuts: impl Into<Cuts>) -> Cutting {
        let mut cutting = Cutting::of_blocks(cuts, Arc::new(BufferPool::keeping(KEPT_MAX)));
        cutting.held = vec![0; BATCH_BYTES + cutting.cutter.sees()];
        cutting
    }

    /// The same for a stream that comes in [blocks](Self::block), and in nothing else.
    pub(crate) fn of_blocks(cuts: impl Into<Cuts>, buffers: Arc<BufferPool>) -> Cutting {
        let cuts = cuts.into();
        Cutting {
            cutter: Chunker::new(&cuts),
            cuts,
            held: Vec::new(),
            filled: 0,
            there: 0,
            cut: 0,
            left: None,
            pieces: Vec::new(),
            chunks: 0,
            buffers,
        }
    }

    /// Cuts a block, which goes on where the last one ended. Gives the chunks that end in it, and what
    /// goes with them.
    pub(crate) fn block<T>(&mut self, block: Block<T>) -> (Batch, Vec<T>) {
        let Block { mut buffer, mut begin, end, steps, ends, told } = block;
        self.filled = begin;
        if let Some((of, range)) = self.left.take() {
            begin -= range.len();
            buffer[begin..self.filled].copy_from_slice(&of.bytes()[range]);
        }
        (self.held, self.cut, self.there) = (buffer, begin, end);
        for (bytes, step) in steps {
            self.filled += bytes;
            self.border();
            match step {
                Step::Zeroes(0) | Step::Hole(0) | Step::Border => {}
                Step::Zeroes(bytes) => self.pieces.push(Next::Zeroes(bytes)),
                Step::Hole(bytes) => self.pieces.push(Next::Hole(bytes)),
                Step::Mark => self.pieces.push(Next::Mark),
            }
        }
        self.filled = self.there;
        if ends {
            self.border()
        } else {
            self.cut_on(false)
        }
        let bytes = Arc::new(Pooled::new(std::mem::take(&mut self.held), self.buffers.clone()));
        self.left = (self.cut < self.filled).then(|| (bytes.clone(), self.cut..self.filled));
        self.chunks = 0;
        let (pieces, fingerprints) = (std::mem::take(&mut self.pieces), Vec::new());
        (Batch { bytes, begin, pieces, fingerprints }, told)
    }

    /// Where the next bytes go; never empty.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.held[self.filled..]
    }

    /// `n` bytes are there. Gives a batch when there is enough for one.
    pub fn advance(&mut self, n: usize) -> Option<Batch> {
        self.filled += n;
        self.there = self.filled;
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
        self.cutter = Chunker::new(&self.cuts);
    }

    /// The chunks that are cut so far.
    pub fn some(&mut self) -> Batch {
        self.take()
    }

    /// Ends the last chunk, and gives the chunks that are left. Nothing may come behind them: the buffer
    /// goes along.
    pub fn end(&mut self) -> Batch {
        self.border();
        let bytes = std::mem::take(&mut self.held);
        self.batch(bytes)
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
                    self.held.copy_within(self.cut + n..self.there, self.cut);
                    self.filled -= n;
                    self.there -= n;
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
        self.there = self.filled;
        self.batch(bytes)
    }

    /// The pieces so far, whose chunks lie at the beginning of `bytes`.
    fn batch(&mut self, bytes: Vec<u8>) -> Batch {
        Batch {
            bytes: Arc::new(Pooled::new(bytes, self.buffers.clone())),
            begin: 0,
            pieces: std::mem::take(&mut self.pieces),
            fingerprints: Vec::new(),
        }
    }
}

impl Batch {
    /// Computes the fingerprints of a domain. Hashing is slow; any thread may do it.
    pub fn fingerprint(&mut self, domain: &Domain) {
        let bytes = self.bytes.bytes();
        let chunks: Vec<&[u8]> = self.chunks().map(|chunk| &bytes[chunk]).collect();
        self.fingerprints = domain.fingerprinter.chunks(&chunks);
    }

    /// True when a chunk of it has a fingerprint by a data key that was before the one of now: for simulations.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn is_by_older(&self, domain: &Domain) -> bool {
        let mut all = self.chunks().zip(&self.fingerprints);
        let bytes = self.bytes.bytes();
        all.any(|(range, fingerprint)| domain.is_of_older(&bytes[range], fingerprint))
    }

    /// Where each chunk is among the bytes.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let mut at = self.begin;
        self.pieces.iter().filter_map(move |piece| match piece {
            Next::Chunk(n) => {
                at += n;
                Some(at - n..at)
            }
            Next::Zeroes(_) | Next::Hole(_) | Next::Mark => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::parameters::Chunking;
    use crate::stream::filling::Filling;

    #[derive(Clone, Copy, Debug)]
    enum Act {
        /// From a byte of the content on, so many.
        Bytes(usize, usize),
        ZeroBytes(usize),
        Border,
        Zeroes(u64),
        Hole(u64),
        Mark,
        /// A block ends here.
        Some,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            6 => (0..NOISE / 2, 0..NOISE / 2).prop_map(|(from, n)| Act::Bytes(from, n)),
            2 => (0..5000usize).prop_map(|n| Act::Bytes(n, n)),
            2 => (0..300_000usize).prop_map(Act::ZeroBytes),
            1 => Just(Act::Border),
            1 => (0..200_000u64).prop_map(Act::Zeroes),
            1 => (0..200_000u64).prop_map(Act::Hole),
            1 => Just(Act::Mark),
            4 => Just(Act::Some),
        ]
    }

    const NOISE: usize = 1 << 20;

    /// Pieces with the bytes of chunks; zeroes that follow each other are one piece.
    #[derive(Default)]
    struct Pieces(Vec<(u8, u64, Vec<u8>)>);

    impl Pieces {
        fn add(&mut self, batch: &Batch) {
            let mut chunks = batch.chunks();
            for piece in &batch.pieces {
                let (kind, n) = match *piece {
                    Next::Chunk(n) => {
                        let bytes = &batch.bytes.bytes()[chunks.next().unwrap()];
                        assert_eq!(bytes.len(), n);
                        self.0.push((0, 0, bytes.to_vec()));
                        continue;
                    }
                    Next::Zeroes(n) => (1, n),
                    Next::Hole(n) => (2, n),
                    Next::Mark => (3, 0),
                };
                match self.0.last_mut() {
                    Some((1, before, _)) if kind == 1 => *before += n,
                    _ => self.0.push((kind, n, Vec::new())),
                }
            }
        }
    }

    /// The chunks of a stream that arrives `part` bytes at a time, without blocks.
    fn cut_at_once(chunking: Chunking, content: &[u8], acts: &[Act], part: usize) -> Pieces {
        let (mut cutting, mut pieces) = (Cutting::new(chunking), Pieces::default());
        for act in acts {
            let batch = match *act {
                Act::Bytes(..) | Act::ZeroBytes(_) => {
                    let bytes = bytes_of(content, act);
                    for part in bytes.chunks(part) {
                        let mut rest = part;
                        while !rest.is_empty() {
                            let room = cutting.room();
                            let n = rest.len().min(room.len());
                            room[..n].copy_from_slice(&rest[..n]);
                            cutting.advance(n).iter().for_each(|batch| pieces.add(batch));
                            rest = &rest[n..];
                        }
                    }
                    None
                }
                Act::Border => {
                    cutting.border();
                    None
                }
                Act::Zeroes(n) => cutting.zeroes(n),
                Act::Hole(n) => cutting.hole(n),
                Act::Mark => cutting.mark(),
                Act::Some => None,
            };
            batch.iter().for_each(|batch| pieces.add(batch));
        }
        pieces.add(&cutting.end());
        pieces
    }

    fn bytes_of<'a>(content: &'a [u8], act: &Act) -> &'a [u8] {
        static ZEROES: [u8; 300_000] = [0; 300_000];
        match *act {
            Act::Bytes(from, n) => &content[from..from + n],
            Act::ZeroBytes(n) => &ZEROES[..n],
            _ => &[],
        }
    }

    fn cut_in_blocks(chunking: Chunking, content: &[u8], acts: &[Act]) -> Pieces {
        let buffers = Arc::new(BufferPool::keeping(KEPT_MAX));
        let mut filling = Filling::<usize>::new(chunking, buffers.clone());
        let (mut cutting, mut pieces) = (Cutting::of_blocks(chunking, buffers), Pieces::default());
        let (mut told, mut heard) = (0, 0);
        let mut take = |block: Option<Block<usize>>, marks: usize| {
            let Some(block) = block else { return };
            let (batch, all) = cutting.block(block);
            all.into_iter().for_each(|n| {
                assert_eq!(n, heard);
                heard += 1;
            });
            assert_eq!(heard, marks);
            pieces.add(&batch);
        };
        for act in acts {
            let block = match *act {
                Act::Bytes(..) | Act::ZeroBytes(_) => {
                    let mut rest = bytes_of(content, act);
                    while !rest.is_empty() {
                        let room = filling.room();
                        let n = rest.len().min(room.len());
                        room[..n].copy_from_slice(&rest[..n]);
                        take(filling.advance(n), told);
                        rest = &rest[n..];
                    }
                    None
                }
                Act::Border => filling.border(),
                Act::Zeroes(n) => filling.zeroes(n),
                Act::Hole(n) => filling.hole(n),
                Act::Mark => {
                    filling.tell(told);
                    told += 1;
                    filling.mark()
                }
                Act::Some => Some(filling.some()),
            };
            take(block, told);
        }
        take(Some(filling.end()), told);
        pieces
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

        /// Blocks of any size move no cut, and what is told comes with its block.
        #[test]
        fn blocks_move_no_cut(acts in prop::collection::vec(act(), 0..40), part in 1000..400_000usize) {
            let mut state = 9u64;
            let next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            };
            let content: Vec<u8> = std::iter::repeat_with(next).take(NOISE).collect();
            let all = [Chunking::FastCdc(8192), Chunking::Rabin(8192), Chunking::Static(4096)];
            for chunking in all {
                let blocks = cut_in_blocks(chunking, &content, &acts);
                let at_once = cut_at_once(chunking, &content, &acts, part);
                prop_assert!(blocks.0 == at_once.0, "{chunking}");
            }
        }
    }
}
