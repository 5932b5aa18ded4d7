//! Estimates what many metadata objects hold from a sample of them.
//!
//! The objects that volumes and streams may have are numbered by the catalogue, whether they are there or
//! not. A simple random sample of these numbers is unbiased in any object store, whatever order its listing
//! has. An object that is not there holds nothing.

use std::collections::BTreeSet;

use crate::format::{
    ObjectId,
    catalogue::{Named, What},
};

/// Standard errors to each side of an interval of 95 %.
const NINETY_FIVE: f64 = 1.96;

/// The objects that volumes and streams may have, in a row.
pub(super) struct Candidates {
    /// The number of the first object of each name in the row, and its volume.
    spans: Vec<(u64, u64)>,
    pub(super) count: u64,
}

impl Candidates {
    /// Those of all names, of which each object has `object_bytes` at most.
    pub(super) fn of<'a>(names: impl Iterator<Item = &'a Named>, object_bytes: u32) -> Candidates {
        let mut all = Candidates { spans: Vec::new(), count: 0 };
        for named in names {
            let objects = match named.what {
                What::Volume => named.bytes.div_ceil(u64::from(object_bytes)),
                What::Put => named.pieces,
            };
            if objects > 0 {
                all.spans.push((all.count, named.id));
                // A damaged catalogue may name more than there can be.
                all.count = all.count.saturating_add(objects);
            }
        }
        all
    }

    /// The object at a place in the row.
    fn at(&self, place: u64) -> ObjectId {
        let next = self.spans.partition_point(|(first, _)| *first <= place);
        let (first, volume) = self.spans[next.saturating_sub(1)];
        ObjectId { volume, index: place - first }
    }

    /// All of them.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = ObjectId> {
        (0..self.count).map(|place| self.at(place))
    }
}

/// Draws places of a row without drawing one twice.
pub(super) struct Draw<'a> {
    from: &'a Candidates,
    drawn: BTreeSet<u64>,
    state: u64,
}

impl<'a> Draw<'a> {
    pub(super) fn new(from: &'a Candidates, seed: u64) -> Draw<'a> {
        Draw { from, drawn: BTreeSet::new(), state: seed | 1 }
    }

    /// So many more, or what is left.
    pub(super) fn more(&mut self, count: usize) -> BTreeSet<ObjectId> {
        let mut found = BTreeSet::new();
        while found.len() < count && (self.drawn.len() as u64) < self.from.count {
            let place = self.next() % self.from.count;
            if self.drawn.insert(place) {
                found.insert(self.from.at(place));
            }
        }
        found
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// One sum over a sample.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    sum: f64,
    squares: f64,
}

impl Sum {
    pub(super) fn add(&mut self, value: u64) {
        self.sum += value as f64;
        self.squares += (value as f64).powi(2);
    }

    /// The sum over all `of` objects when `read` of them gave this one; and how much more or less it may be,
    /// with a probability of 95 %.
    pub(super) fn of_all(&self, read: u64, of: u64) -> (u64, u64) {
        if read == 0 {
            return (0, 0);
        }
        let (read, of) = (read as f64, of as f64);
        let mean = self.sum / read;
        let variance = (self.squares / read - mean * mean).max(0.0) * read / (read - 1.0).max(1.0);
        let left_out = (1.0 - read / of).max(0.0);
        let error = NINETY_FIVE * of * (variance / read * left_out).sqrt();
        ((mean * of) as u64, error as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(what: What, id: u64, bytes: u64, pieces: u64) -> Named {
        Named { what, id, bytes, pieces, moves: 0 }
    }

    #[test]
    fn candidates_are_the_objects_that_names_may_have() {
        let names = [
            named(What::Volume, 7, (8 << 20) + 1, 0),
            named(What::Put, 9, 100, 2),
            named(What::Volume, 3, 0, 0),
            named(What::Volume, 5, 4096, 4),
        ];
        let all = Candidates::of(names.iter(), 4 << 20);
        let found: Vec<(u64, u64)> =
            all.all().map(|object| (object.volume, object.index)).collect();
        assert_eq!(found, [(7, 0), (7, 1), (7, 2), (9, 0), (9, 1), (5, 0)]);
        let mut draw = Draw::new(&all, 1);
        let drawn = [draw.more(2), draw.more(2), draw.more(9), draw.more(1)];
        assert_eq!(drawn.each_ref().map(BTreeSet::len), [2, 2, 2, 0]);
        assert_eq!(drawn.into_iter().flatten().collect::<BTreeSet<_>>(), all.all().collect());
    }

    #[test]
    fn the_truth_lies_in_the_interval_in_about_19_of_20_samples() {
        let names = [named(What::Put, 1, 0, 50_000)];
        let all = Candidates::of(names.iter(), 4 << 20);
        let value = |object: &ObjectId| {
            (object.index * 7919) % 1000 * u64::from(!object.index.is_multiple_of(3))
        };
        let truth: u64 = all.all().map(|object| value(&object)).sum();
        let within = (0..200u64).filter(|seed| {
            let (mut draw, mut sum) = (Draw::new(&all, seed * 77), Sum::default());
            draw.more(500).iter().for_each(|object| sum.add(value(object)));
            let (middle, error) = sum.of_all(500, all.count);
            (middle - error..=middle + error).contains(&truth)
        });
        assert!((180..=199).contains(&within.count()));
    }

    #[test]
    fn a_sample_of_all_has_no_error() {
        let mut sum = Sum::default();
        [3, 5, 100].into_iter().for_each(|value| sum.add(value));
        assert_eq!((sum.of_all(3, 3), Sum::default().of_all(0, 0)), ((108, 0), (0, 0)));
    }
}
