//! Cutting streams into chunks (dedupv1 3.1). Cuts depend on the bytes alone, never on how they
//! arrive.
//!
//! A run of zeroes of at least a largest chunk is no chunk: it becomes a part of the recipe, and
//! the chunk before it ends where it begins.

mod rabin;

use std::sync::Arc;

use fastcdc::v2020::{FastCDC, Normalization};

use self::rabin::Rabin;
use crate::format::parameters::Chunking;
pub(crate) use onefold_seal::Gear;

/// The next piece of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A chunk of so many bytes.
    Chunk(usize),
    /// So many zero bytes; the run may go on in the next piece.
    Zeroes(usize),
}

/// How the streams of an archive are cut.
#[derive(Clone)]
pub struct Cuts {
    chunking: Chunking,
    /// In a sealed archive.
    gear: Option<Arc<Gear>>,
}

impl Cuts {
    /// With a table of the archive's own.
    pub(crate) fn keyed(chunking: Chunking, gear: Gear) -> Cuts {
        Cuts { chunking, gear: Some(Arc::new(gear)) }
    }
}

impl From<Chunking> for Cuts {
    /// The cuts of plain archives.
    fn from(chunking: Chunking) -> Cuts {
        Cuts { chunking, gear: None }
    }
}

/// Cuts one stream.
pub(crate) struct Chunker {
    chunking: Chunking,
    gear: Option<Arc<Gear>>,
    rabin: Option<Box<Rabin>>,
    in_zeroes: bool,
}

impl Chunker {
    /// A cutter at the beginning of a stream.
    #[must_use]
    pub(crate) fn new(cuts: &Cuts) -> Chunker {
        let Cuts { chunking, gear } = cuts.clone();
        let rabin = matches!(chunking, Chunking::Rabin(_)).then(|| Box::new(Rabin::new()));
        Chunker { chunking, gear, rabin, in_zeroes: false }
    }

    /// Bytes that decide about the next piece, whatever they are.
    #[must_use]
    pub(crate) fn sees(&self) -> usize {
        2 * self.chunking.most()
    }

    /// The next piece of `bytes`, which go on where the last piece ended. `None` when more must be
    /// seen first; with `last` nothing follows.
    pub(crate) fn next(&mut self, bytes: &[u8], last: bool) -> Option<Piece> {
        if bytes.is_empty() {
            self.in_zeroes &= !last;
            return None;
        }
        if self.in_zeroes {
            match zeroes(bytes) {
                0 => self.in_zeroes = false,
                n => return Some(Piece::Zeroes(n)),
            }
        }
        let most = self.chunking.most();
        if bytes.len() < 2 * most && !last {
            return None;
        }
        let run = long_run(bytes, most);
        if let Some((0, n)) = run {
            self.in_zeroes = true;
            return Some(Piece::Zeroes(n));
        }
        let until = run.map_or(most, |(start, _)| start).min(bytes.len());
        Some(Piece::Chunk(self.cut(&bytes[..until])))
    }

    /// The length of the chunk that `bytes` begin with.
    fn cut(&self, bytes: &[u8]) -> usize {
        let (least, mean, most) =
            (self.chunking.least(), self.chunking.mean(), self.chunking.most());
        match (&self.chunking, &self.rabin) {
            (Chunking::Rabin(_), Some(rabin)) => rabin.cut(bytes, least, mean),
            (Chunking::FastCdc(_), _) if self.gear.is_some() => {
                let gear = self.gear.as_ref();
                gear.map_or(bytes.len(), |gear| gear.cut(bytes, least, normal(mean), mean))
            }
            (Chunking::FastCdc(_), _) => {
                FastCDC::with_level(bytes, least, normal(mean), most, Normalization::Level1)
                    .cut(0, bytes.len())
                    .1
            }
            _ => bytes.len(),
        }
    }
}

/// FastCDC's normal point, where its mask gets easier, for chunks of about `mean` bytes.
/// Normalization of level 1 finds its cuts again sooner after a change than level 3, which stores 4
/// % less of a changed stream, but makes larger chunks; at three quarters of the mean they average
/// 1.09 of it.
fn normal(mean: usize) -> usize {
    mean / 4 * 3
}

/// How many zero bytes `bytes` begin with.
fn zeroes(bytes: &[u8]) -> usize {
    let (lines, _) = bytes.as_chunks::<64>();
    let whole = lines.iter().take_while(|line| **line == [0; 64]).count() * 64;
    whole + bytes[whole..].iter().take_while(|&&byte| byte == 0).count()
}

/// The run of at least `most` zeroes that begins in the first `most` bytes: its start and the
/// length that is seen.
fn long_run(bytes: &[u8], most: usize) -> Option<(usize, usize)> {
    // Such a run covers this byte, wherever it begins.
    if *bytes.get(most - 1)? != 0 {
        return None;
    }
    let before = bytes[..most].iter().rev().take_while(|&&byte| byte == 0).count();
    let start = most - before;
    let n = before + zeroes(&bytes[most..]);
    (n >= most).then_some((start, n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, bytes: usize) -> Vec<u8> {
        let mut state = seed | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(next).take(bytes).collect()
    }

    /// Pieces of a stream that arrives in parts of `part` bytes; neighbouring runs of zeroes are
    /// one.
    fn pieces(chunking: Chunking, bytes: &[u8], part: usize) -> Vec<Piece> {
        pieces_by(&chunking.into(), bytes, part)
    }

    fn pieces_by(cuts: &Cuts, bytes: &[u8], part: usize) -> Vec<Piece> {
        let mut cutter = Chunker::new(cuts);
        let (mut held, mut all): (Vec<u8>, Vec<Piece>) = (Vec::new(), Vec::new());
        let mut parts = bytes.chunks(part).peekable();
        while let Some(part) = parts.next() {
            held.extend_from_slice(part);
            while let Some(piece) = cutter.next(&held, parts.peek().is_none()) {
                match (piece, all.last_mut()) {
                    (Piece::Zeroes(n), Some(Piece::Zeroes(before))) => *before += n,
                    _ => all.push(piece),
                }
                let (Piece::Chunk(n) | Piece::Zeroes(n)) = piece;
                held.drain(..n);
            }
        }
        assert!(held.is_empty());
        all
    }

    const ALL: [Chunking; 3] =
        [Chunking::Static(4096), Chunking::Rabin(8192), Chunking::FastCdc(8192)];

    #[test]
    fn cuts_depend_on_the_bytes_alone() {
        let mut bytes = noise(7, 700_000);
        bytes[100_001..100_001 + 70_000].fill(0);
        bytes[300_000..300_000 + 65_535].fill(0);
        bytes.extend(vec![0; 200_000]);
        for chunking in ALL {
            let whole = pieces(chunking, &bytes, bytes.len());
            for part in [1000, 4096, 65_536, 99_991] {
                assert_eq!(pieces(chunking, &bytes, part), whole, "{chunking} in parts of {part}");
            }
            let total: usize = whole
                .iter()
                .map(|piece| match piece {
                    Piece::Chunk(n) | Piece::Zeroes(n) => n,
                })
                .sum();
            assert_eq!(total, bytes.len());
            assert!(
                whole.iter().all(|piece| !matches!(piece, Piece::Chunk(n) if *n > chunking.most()))
            );
            assert!(
                whole.contains(&Piece::Zeroes(70_000))
                    && whole.last() == Some(&Piece::Zeroes(200_000)),
                "{chunking}"
            );
        }
    }

    #[test]
    fn golden_cuts_stay_as_they_are() {
        let bytes = noise(1, 200_000);
        let lengths = |chunking| -> Vec<usize> {
            pieces(chunking, &bytes, 200_000)
                .iter()
                .take(8)
                .map(|piece| match piece {
                    Piece::Chunk(n) | Piece::Zeroes(n) => *n,
                })
                .collect()
        };
        assert_eq!(lengths(Chunking::FastCdc(8192)), GOLDEN_FASTCDC);
        assert_eq!(lengths(Chunking::Rabin(8192)), GOLDEN_RABIN);
        assert_eq!(lengths(Chunking::Static(4096)), [4096; 8]);
    }

    fn keyed(byte: u8) -> Cuts {
        let key = onefold_seal::Secret::take(&mut [byte; 32]);
        Cuts::keyed(Chunking::FastCdc(8192), Gear::new(&key))
    }

    #[test]
    fn rule_34_a_sealed_archive_cuts_by_its_key() {
        let bytes = noise(9, 4_000_000);
        let lengths = |cuts: &Cuts, part| -> Vec<usize> {
            let length = |piece: &Piece| match piece {
                Piece::Chunk(n) | Piece::Zeroes(n) => *n,
            };
            pieces_by(cuts, &bytes, part).iter().map(length).collect()
        };
        let one = lengths(&keyed(1), bytes.len());
        assert_eq!(one, lengths(&keyed(1), 70_001), "however it arrives");
        assert_eq!(one.iter().sum::<usize>(), bytes.len());
        let mean = bytes.len() / one.len();
        assert!((7_000..11_000).contains(&mean), "{mean}");
        assert!(one.iter().all(|&n| n <= 65_536) && one.iter().filter(|&&n| n < 2048).count() <= 1);
        let ends = |lengths: &[usize]| -> std::collections::BTreeSet<usize> {
            lengths
                .iter()
                .scan(0, |at, n| {
                    Some({
                        *at += n;
                        *at
                    })
                })
                .collect()
        };
        for other in
            [lengths(&keyed(2), bytes.len()), lengths(&Chunking::FastCdc(8192).into(), bytes.len())]
        {
            let common = ends(&one).intersection(&ends(&other)).count();
            assert!(common <= 5, "{common} cuts of {} are the same", one.len());
        }
    }

    #[test]
    fn what_was_inserted_moves_few_cuts_of_a_sealed_archive() {
        let bytes = noise(3, 2_000_000);
        let mut other = bytes.clone();
        other.splice(500_000..500_000, noise(4, 777));
        let chunks = |bytes: &[u8]| {
            let mut at = 0;
            let mut set = std::collections::BTreeSet::new();
            for piece in pieces_by(&keyed(1), bytes, 1 << 20) {
                let (Piece::Chunk(n) | Piece::Zeroes(n)) = piece;
                set.insert(bytes[at..at + n].to_vec());
                at += n;
            }
            set
        };
        let (a, b) = (chunks(&bytes), chunks(&other));
        assert!(b.difference(&a).count() <= 12, "{} of {}", b.difference(&a).count(), a.len());
    }

    const GOLDEN_FASTCDC: [usize; 8] = [10187, 12862, 6444, 23478, 7085, 5543, 3150, 3964];
    const GOLDEN_RABIN: [usize; 8] = [6931, 7562, 4407, 2259, 13282, 6084, 16851, 3521];

    #[test]
    fn what_was_inserted_moves_few_cuts() {
        let bytes = noise(3, 2_000_000);
        let mut other = bytes.clone();
        other.splice(500_000..500_000, noise(4, 777));
        for chunking in [Chunking::Rabin(8192), Chunking::FastCdc(8192)] {
            let chunks = |bytes: &[u8]| {
                let mut at = 0;
                let mut set = std::collections::BTreeSet::new();
                for piece in pieces(chunking, bytes, 1 << 20) {
                    let (Piece::Chunk(n) | Piece::Zeroes(n)) = piece;
                    set.insert(bytes[at..at + n].to_vec());
                    at += n;
                }
                set
            };
            let (a, b) = (chunks(&bytes), chunks(&other));
            let changed = b.difference(&a).count();
            assert!(
                changed <= 12 && a.len() > 100 && a.len() < 400,
                "{chunking}: {changed} of {}",
                a.len()
            );
        }
    }
}
