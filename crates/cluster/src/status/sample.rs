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

/// How many objects a volume or stream may have, of `object_bytes` at most each.
pub(super) fn candidates(named: &Named, object_bytes: u32) -> u64 {
    match named.what {
        What::Volume => named.bytes.div_ceil(u64::from(object_bytes)),
        What::Put => named.pieces,
    }
}

/// Places that were drawn of the row of all objects that volumes and streams may have, on their way to
/// the objects there: the names are told one after the other, and none is held.
pub(super) struct Places {
    /// The places in their order, each with when it was drawn.
    drawn: Vec<(u64, usize)>,
    /// What stands at each, in the order of the draw.
    objects: Vec<Option<ObjectId>>,
    /// The next of `drawn`.
    next: usize,
    /// The place in the row at which the next name begins.
    at: u64,
}

impl Places {
    /// So many different places of a row of `of`, or all.
    pub(super) fn draw(of: u64, count: u64, seed: u64) -> Places {
        let mut chance = Chance(seed | 1);
        let (mut taken, mut drawn) = (BTreeSet::new(), Vec::new());
        while (drawn.len() as u64) < count.min(of) {
            let place = chance.next() % of;
            if taken.insert(place) {
                drawn.push((place, drawn.len()));
            }
        }
        drawn.sort_unstable();
        Places { objects: vec![None; drawn.len()], drawn, next: 0, at: 0 }
    }

    /// Begins anew.
    pub(super) fn anew(&mut self) {
        self.objects.fill(None);
        (self.next, self.at) = (0, 0);
    }

    /// The next name of the row has so many objects.
    pub(super) fn tell(&mut self, volume: u64, objects: u64) {
        let end = self.at.saturating_add(objects);
        while let Some((place, when)) = self.drawn.get(self.next).filter(|(place, _)| *place < end)
        {
            self.objects[*when] = Some(ObjectId { volume, index: place - self.at });
            self.next += 1;
        }
        self.at = end;
    }

    /// The objects in the order of the draw. Of names that went since the row was counted there is none.
    pub(super) fn objects(self) -> Vec<Option<ObjectId>> {
        self.objects
    }
}

/// Chance from a seed: SplitMix64.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// One sum over a sample.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Sum {
    pub(super) fn add(&mut self, value: u64) {
        self.count += 1;
        self.sum += value as f64;
        self.squares += (value as f64).powi(2);
    }

    /// The mean of what was added; and how much more or less that of all may be, with a probability of
    /// 95 %.
    pub(super) fn mean(&self) -> (f64, f64) {
        let count = self.count.max(1) as f64;
        let mean = self.sum / count;
        let variance =
            (self.squares / count - mean * mean).max(0.0) * count / (count - 1.0).max(1.0);
        (mean, NINETY_FIVE * (variance / count).sqrt())
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

    fn drawn(names: &[Named], count: u64, seed: u64) -> Vec<ObjectId> {
        let of = names.iter().map(|named| candidates(named, 4 << 20)).sum();
        let mut places = Places::draw(of, count, seed);
        for _ in 0..2 {
            places.anew();
            names.iter().for_each(|named| places.tell(named.id, candidates(named, 4 << 20)));
        }
        places.objects().into_iter().flatten().collect()
    }

    #[test]
    fn candidates_are_the_objects_that_names_may_have() {
        let names = [
            named(What::Volume, 7, (8 << 20) + 1, 0),
            named(What::Put, 9, 100, 2),
            named(What::Volume, 3, 0, 0),
            named(What::Volume, 5, 4096, 4),
        ];
        let all: BTreeSet<(u64, u64)> =
            drawn(&names, 9, 1).into_iter().map(|object| (object.volume, object.index)).collect();
        assert_eq!(all, [(7, 0), (7, 1), (7, 2), (9, 0), (9, 1), (5, 0)].into());
        let some = drawn(&names, 4, 3);
        assert_eq!((some.len(), some.iter().collect::<BTreeSet<_>>().len()), (4, 4));
    }

    #[test]
    fn the_truth_lies_in_the_interval_in_about_19_of_20_samples() {
        let names = [named(What::Put, 1, 0, 50_000)];
        let value = |object: &ObjectId| {
            (object.index * 7919) % 1000 * u64::from(!object.index.is_multiple_of(3))
        };
        let truth: u64 = (0..50_000).map(|index| value(&ObjectId { volume: 1, index })).sum();
        let within = (0..200u64).filter(|seed| {
            let mut sum = Sum::default();
            drawn(&names, 500, seed * 77).iter().for_each(|object| sum.add(value(object)));
            let (middle, error) = sum.of_all(500, 50_000);
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
