//! Traffic of backup generations (dedupv1 4.1): stretches of unique data (U), of data that repeat
//! inside a generation (IR), and of data of the generation before (TR).
//!
//! The paper takes the lengths of stretches and the chances of what follows from a trace, and
//! prints neither. Here lengths are exponential, and their means are [`Shape`]'s: ours. A stream is
//! a list of extents of numbered sources of noise, so that nothing has to be kept, and shares of
//! bytes are exact.

use std::collections::{BTreeMap, HashMap};

use onefold_testbed::rng::{SplitMix, mix};

/// Means and shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    /// Share of the first generation's bytes that repeat earlier ones of it (the paper: 0.325).
    pub(super) internal: f64,
    /// Share of a later generation's bytes that are not unique (the paper: 0.976).
    pub(super) temporal: f64,
    /// Mean stretch of unique data in the first generation, in bytes.
    pub(super) first_unique: f64,
    /// Mean distance from the end of what is repeated to its repetition, in bytes of one client's
    /// stream.
    pub(super) distance: f64,
    /// Mean stretch of unique data in a later generation, in bytes.
    pub(super) next_unique: f64,
    /// Mean stretch that repeats something of the same later generation, in bytes, and the share
    /// of stretches of old data that such a one follows.
    pub(super) next_internal: (f64, f64),
}

impl Shape {
    /// The shares of the paper. The lengths are chosen such that chunks of 8 KiB find what the
    /// paper's found in either generation; what chunks of 16 KiB find follows.
    pub(super) const PAPER: Shape = Shape {
        internal: 0.325,
        temporal: 0.976,
        first_unique: 1.0e6,
        distance: 0.25e6,
        next_unique: 4.3e3,
        next_internal: (16e3, 0.1),
    };
}

/// Bytes of a source of noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    source: u64,
    at: u64,
    bytes: u64,
}

/// The stream of one client in one generation.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    extents: Vec<Extent>,
    /// Where each extent begins.
    starts: Vec<u64>,
    bytes: u64,
}

impl Stream {
    fn push(&mut self, extent: Extent) {
        if extent.bytes > 0 {
            self.starts.push(self.bytes);
            self.bytes += extent.bytes;
            self.extents.push(extent);
        }
    }

    /// The extents of `bytes` bytes from `at` on.
    fn part(&self, at: u64, bytes: u64) -> Vec<Extent> {
        let end = (at + bytes).min(self.bytes);
        let mut found = Vec::new();
        let mut from = at;
        let mut n = self.starts.partition_point(|&start| start <= at).saturating_sub(1);
        while from < end {
            let Extent { source, at, bytes } = self.extents[n];
            let skipped = from - self.starts[n];
            let taken = (bytes - skipped).min(end - from);
            found.push(Extent { source, at: at + skipped, bytes: taken });
            (from, n) = (from + taken, n + 1);
        }
        found
    }

    fn cut(&mut self, bytes: u64) {
        let extents = self.part(0, bytes);
        *self = Stream::default();
        extents.into_iter().for_each(|extent| self.push(extent));
    }

    /// Bytes of the stream.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `into` with what the stream has from `at` on; returns how much there is.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let mut filled = 0;
        for Extent { source, at, bytes } in self.part(at, into.len() as u64) {
            noise(source, at, &mut into[filled..filled + bytes as usize]);
            filled += bytes as usize;
        }
        filled
    }
}

/// Bytes of a source: eight from each number.
fn noise(source: u64, at: u64, into: &mut [u8]) {
    let word =
        |n: u64| mix(mix(source).wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes();
    let head = ((8 - at % 8) % 8).min(into.len() as u64) as usize;
    let (first, rest) = into.split_at_mut(head);
    let from = (at % 8) as usize;
    first.copy_from_slice(&word(at / 8)[from..from + head]);
    let begin = at.div_ceil(8);
    let (words, tail) = rest.as_chunks_mut::<8>();
    for (n, bytes) in (begin..).zip(words.iter_mut()) {
        *bytes = word(n);
    }
    let last = word(begin + words.len() as u64);
    tail.copy_from_slice(&last[..tail.len()]);
}

/// A length of this mean, at least one.
fn length(rng: &mut SplitMix, mean: f64) -> u64 {
    (-mean * (1.0 - rng.unit()).ln()).max(1.0) as u64
}

/// The streams of as many clients, and what number the next source has.
#[derive(Clone, Debug)]
pub(super) struct Generation {
    pub(super) streams: Vec<Stream>,
    next_source: u64,
}

impl Generation {
    /// A first generation of `bytes` bytes for each client.
    pub(super) fn first(
        clients: usize,
        bytes: u64,
        shape: &Shape,
        rng: &mut SplitMix,
    ) -> Generation {
        let mut generation = Generation { streams: Vec::new(), next_source: 0 };
        let per_unique = shape.internal / (1.0 - shape.internal);
        for _ in 0..clients {
            let (mut stream, mut unique) = (Stream::default(), 0);
            while stream.bytes < bytes {
                let n = length(rng, shape.first_unique);
                generation.unique(&mut stream, n);
                unique += n;
                // Repeats make up what the share lacks so far, so that short streams reach it too.
                let missing = unique as f64 * per_unique - (stream.bytes - unique) as f64;
                if missing > 0.0 {
                    repeat(&mut stream, length(rng, missing), shape.distance, rng);
                }
            }
            stream.cut(bytes);
            generation.streams.push(stream);
        }
        generation
    }

    /// The generation after this one: as much data, nearly all of it old.
    pub(super) fn next(&self, shape: &Shape, rng: &mut SplitMix) -> Generation {
        let mut generation = Generation { streams: Vec::new(), next_source: self.next_source };
        let (internal, share) = shape.next_internal;
        let unique = shape.next_unique * (1.0 - share);
        // Old data, so that the unique are as rare as they are to be.
        let old_run = unique / (1.0 - shape.temporal) - unique - internal * share;
        for old in &self.streams {
            let (mut stream, mut at) = (Stream::default(), 0);
            while stream.bytes < old.bytes && at < old.bytes {
                let kept = length(rng, old_run);
                old.part(at, kept).into_iter().for_each(|extent| stream.push(extent));
                let before = stream.bytes;
                if rng.chance(share) {
                    repeat(&mut stream, length(rng, internal), shape.distance, rng);
                } else {
                    let n = length(rng, shape.next_unique);
                    generation.unique(&mut stream, n);
                }
                // A changed range may grow or shrink.
                at += kept + rng.below(2 * (stream.bytes - before) + 1);
            }
            // Where the old stream is used up, the rest is unique.
            let missing = old.bytes.saturating_sub(stream.bytes);
            generation.unique(&mut stream, missing);
            stream.cut(old.bytes);
            generation.streams.push(stream);
        }
        generation
    }

    fn unique(&mut self, stream: &mut Stream, bytes: u64) {
        stream.push(Extent { source: self.next_source, at: 0, bytes });
        self.next_source += 1;
    }

    /// Bytes of all streams.
    pub(super) fn bytes(&self) -> u64 {
        self.streams.iter().map(Stream::bytes).sum()
    }

    /// The share of bytes that repeat earlier ones of this generation, and the share that repeat
    /// those or bytes of `before`.
    pub(super) fn redundancy(&self, before: Option<&Generation>) -> (f64, f64) {
        let mut own = Covered::default();
        let mut all = Covered::default();
        before
            .iter()
            .flat_map(|before| &before.streams)
            .flat_map(|stream| &stream.extents)
            .for_each(|extent| {
                all.cover(extent);
            });
        let mut fresh = (0, 0);
        for extent in self.streams.iter().flat_map(|stream| &stream.extents) {
            fresh = (fresh.0 + own.cover(extent), fresh.1 + all.cover(extent));
        }
        let share = |fresh: u64| 1.0 - fresh as f64 / self.bytes().max(1) as f64;
        (share(fresh.0), share(fresh.1))
    }
}

/// Repeats a stretch of the stream that ends some way back.
fn repeat(stream: &mut Stream, bytes: u64, distance: f64, rng: &mut SplitMix) {
    let bytes = bytes.min(stream.bytes);
    let start = (stream.bytes - bytes).saturating_sub(length(rng, distance));
    stream.part(start, bytes).into_iter().for_each(|extent| stream.push(extent));
}

/// Which bytes of which source were seen: ends by beginnings, which do not touch.
#[derive(Default)]
struct Covered(HashMap<u64, BTreeMap<u64, u64>>);

impl Covered {
    /// Covers an extent, and returns how many of its bytes were not.
    fn cover(&mut self, extent: &Extent) -> u64 {
        let ranges = self.0.entry(extent.source).or_default();
        let (mut from, mut to) = (extent.at, extent.at + extent.bytes);
        let mut fresh = extent.bytes;
        while let Some((&start, &end)) =
            ranges.range(..=to).next_back().filter(|&(_, &end)| end >= from)
        {
            fresh -= end.min(extent.at + extent.bytes).saturating_sub(start.max(extent.at));
            ranges.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        ranges.insert(from, to);
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_paper() {
        let mut rng = SplitMix::new(1);
        let first = Generation::first(4, 64 << 20, &Shape::PAPER, &mut rng);
        let second = first.next(&Shape::PAPER, &mut rng);
        assert_eq!((first.bytes(), second.bytes()), (256 << 20, 256 << 20));
        let (internal, _) = first.redundancy(None);
        assert!((internal - 0.325).abs() < 0.02, "{internal}");
        let (internal, temporal) = second.redundancy(Some(&first));
        assert!(
            (internal - 0.325).abs() < 0.03 && (temporal - 0.976).abs() < 0.004,
            "{internal} {temporal}"
        );
    }

    #[test]
    fn bytes_do_not_depend_on_how_they_are_read() {
        let generation = Generation::first(1, 3_000_000, &Shape::PAPER, &mut SplitMix::new(2));
        let stream = &generation.streams[0];
        let mut whole = vec![0; 3_000_000];
        assert_eq!(stream.read(0, &mut whole), whole.len());
        for (at, n) in [(1, 7), (12_345, 100_001), (2_999_999, 5), (7, 1), (479_993, 131_072)] {
            let mut part = vec![0; n];
            let read = stream.read(at, &mut part);
            assert!(
                part[..read] == whole[at as usize..at as usize + read]
                    && (read == n || at as usize + read == whole.len()),
                "{at}"
            );
        }
    }

    #[test]
    fn what_is_covered_twice_counts_once() {
        let mut covered = Covered::default();
        let mut fresh = |at, bytes| covered.cover(&Extent { source: 1, at, bytes });
        assert_eq!(
            [fresh(10, 10), fresh(30, 10), fresh(15, 20), fresh(0, 50), fresh(20, 5)],
            [10, 10, 10, 20, 0]
        );
    }
}
