//! The hit set (the paper's): which chunks were read in which of the last seconds, by a Bloom filter for each.
//!
//! The owner of the volume writes the filters of seconds that are over into the header every [`KEPT_EVERY`]
//! seconds, in one operation, and the rest when it closes. So the next owner knows what is hot: without that, every
//! chunk would have to be read in as many seconds again after each restart. A server that is killed loses the
//! last ten seconds. All this is advice: who can't read a filter does without it.

use std::collections::{BTreeMap, VecDeque};

use onefold_core::checksum;

use super::header::HITS;
use crate::format::key;

/// Seconds that reads are remembered for.
pub(super) const SECONDS: u64 = 60;

/// Seconds between two writes of the filters into the header.
const KEPT_EVERY: u64 = 10;

/// Bits of a filter in memory: 64 KiB. A power of two, as those of all filters: so one can be folded.
const FILTER_BITS: usize = 64 * 1024 * 8;

/// Bits of a filter that was folded because too many are set: 16 KiB in the header.
const FOLDED_BITS: usize = 16 * 1024 * 8;

/// Most bits of a folded filter that may be set. Beyond that so many chunks that nobody read would be found in
/// one, or in a few of 60, that most of what is read once would count as hot: such a filter is not stored, and
/// what stands there is none.
const FOLDED_SET_MAX: usize = FOLDED_BITS / 8;

/// Most bytes of a filter in the header: all 60 have less than 1 MiB.
const STORED_MAX: usize = FOLDED_BITS / 8;

/// Bytes of a stored filter in one value: stores in folders take 1,024 bytes, sealing among them.
const PIECE: usize = 768;

/// Numbers of keys for the pieces of a second; it has 22 pieces at most.
const PIECES: u64 = 32;

/// The first byte of a stored filter: distances between set bits, or all bits of a folded one.
const DISTANCES: u8 = 0;
const FOLDED: u8 = 1;

/// How many bits are set.
fn set(words: &[u64]) -> usize {
    words.iter().map(|word| word.count_ones() as usize).sum()
}

/// The filter of one second, made when the first read comes.
struct Filter {
    second: u64,
    bits: Vec<u64>,
    /// The header does not have it as it is.
    unkept: bool,
}

impl Filter {
    fn new(second: u64, bits: usize) -> Filter {
        Filter { second, bits: vec![0; bits / 64], unkept: false }
    }

    /// Where a hash has its bits.
    fn places(&self, hash: u64) -> [usize; 2] {
        let bits = self.bits.len() * 64;
        [hash as usize % bits, (hash >> 32) as usize % bits]
    }

    fn add(&mut self, hash: u64) {
        for bit in self.places(hash) {
            let word = &mut self.bits[bit / 64];
            self.unkept |= *word >> (bit % 64) & 1 == 0;
            *word |= 1 << (bit % 64);
        }
    }

    fn has(&self, hash: u64) -> bool {
        self.places(hash).iter().all(|bit| self.bits[bit / 64] >> (bit % 64) & 1 == 1)
    }

    fn set_bits(&self) -> impl Iterator<Item = usize> {
        let bits = |(at, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        };
        self.bits.iter().enumerate().flat_map(bits)
    }

    /// The distances between the bits that are set, in sevens of bits; where that would be too long, the filter
    /// folded to a quarter, which has what the whole one has, and a little more. `None` where that is too full.
    fn encode(&self) -> Option<Vec<u8>> {
        let mut value = vec![DISTANCES];
        let mut next = 0;
        for bit in self.set_bits() {
            let mut distance = bit - next;
            next = bit + 1;
            while distance >= 0x80 {
                value.push(distance as u8 | 0x80);
                distance >>= 7;
            }
            value.push(distance as u8);
            if value.len() > 1 + STORED_MAX {
                return self.folded();
            }
        }
        Some(value)
    }

    fn folded(&self) -> Option<Vec<u8>> {
        let mut words = vec![0u64; FOLDED_BITS / 64];
        for (at, word) in self.bits.iter().enumerate() {
            words[at % (FOLDED_BITS / 64)] |= word;
        }
        let mut value = vec![FOLDED];
        value.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        (set(&words) <= FOLDED_SET_MAX).then_some(value)
    }

    /// The keys of the header that have it, with their values: its second, the number of its pieces, and one of
    /// them. None for one that is too full.
    fn stored(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let value = self.encode().unwrap_or_default();
        let pieces: Vec<Vec<u8>> = value.chunks(PIECE).map(<[u8]>::to_vec).collect();
        let (second, count) = (self.second, pieces.len() as u8);
        (0..).zip(pieces).map(move |(n, piece)| {
            let value = [&second.to_le_bytes()[..], &[count], &piece].concat();
            (key::numbered(HITS, second % SECONDS * PIECES + n), value)
        })
    }

    /// `None` for bytes that are no filter.
    fn decode(second: u64, value: &[u8]) -> Option<Filter> {
        let (form, bytes) = value.split_first()?;
        match *form {
            DISTANCES if bytes.len() <= STORED_MAX => {
                let mut filter = Filter::new(second, FILTER_BITS);
                let (mut next, mut distance, mut shift) = (0, 0, 0);
                for byte in bytes {
                    distance |= usize::from(byte & 0x7f) << shift;
                    shift += 7;
                    if byte & 0x80 != 0 {
                        // A distance has three bytes at most.
                        if shift > 14 {
                            return None;
                        }
                        continue;
                    }
                    let bit = next + distance;
                    *filter.bits.get_mut(bit / 64)? |= 1 << (bit % 64);
                    (next, distance, shift) = (bit + 1, 0, 0);
                }
                (shift == 0).then_some(filter)
            }
            FOLDED if bytes.len() == FOLDED_BITS / 8 => {
                let mut filter = Filter::new(second, FOLDED_BITS);
                for (word, bytes) in filter.bits.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
                (set(&filter.bits) <= FOLDED_SET_MAX).then_some(filter)
            }
            _ => None,
        }
    }
}

/// A filter as keys of the header have it: its pieces by their numbers, of one second.
struct Stored<'a> {
    second: u64,
    count: u8,
    pieces: BTreeMap<u64, &'a [u8]>,
}

/// The filters in the keys of a header. What is cut off, or of several seconds, is none.
fn filters(header: &[(Vec<u8>, Vec<u8>)]) -> Vec<Filter> {
    let mut all: BTreeMap<u64, Stored<'_>> = BTreeMap::new();
    for (key, value) in header {
        let Some(number) = key::parse_numbered(HITS, key).filter(|n| *n < SECONDS * PIECES) else {
            continue;
        };
        let Some((second, [count, piece @ ..])) = value.split_first_chunk::<8>() else { continue };
        let (second, count) = (u64::from_le_bytes(*second), *count);
        let of =
            all.entry(number / PIECES).or_insert(Stored { second, count, pieces: BTreeMap::new() });
        if second > of.second {
            // Pieces of the minute before may be left behind those of a shorter filter.
            *of = Stored { second, count, pieces: BTreeMap::new() };
        }
        if (second, count) == (of.second, of.count) {
            of.pieces.insert(number % PIECES, piece);
        }
    }
    let whole = |of: &Stored<'_>| {
        let pieces = of.pieces.iter().take(of.count.into());
        let in_order = of.pieces.keys().take(of.count.into()).copied().eq(0..of.count.into());
        let bytes: Vec<u8> = pieces.flat_map(|(_, piece)| piece.iter().copied()).collect();
        in_order.then(|| Filter::decode(of.second, &bytes)).flatten()
    };
    let mut filters: Vec<Filter> = all.values().filter_map(whole).collect();
    filters.sort_by_key(|filter| filter.second);
    filters
}

/// The reads of one volume in the last minute.
#[derive(Default)]
pub(super) struct HitSet {
    /// In the order in which they were made.
    filters: VecDeque<Filter>,
    /// The second in which the header was last given filters.
    kept: u64,
}

impl HitSet {
    /// What the header has of the minute before `second`.
    pub(super) fn load(header: &[(Vec<u8>, Vec<u8>)], second: u64) -> HitSet {
        let mut filters = filters(header);
        // A server whose clock is ahead may have written later ones: they would stay for too long.
        filters.retain(|filter| filter.second <= second);
        let mut hits = HitSet { filters: filters.into(), kept: second };
        hits.forget(second);
        hits
    }

    /// Forgets what is too old.
    pub(super) fn forget(&mut self, second: u64) {
        self.filters.retain(|filter| filter.second.saturating_add(SECONDS) > second);
    }

    /// Records a read of a chunk; returns in how many of the last seconds the chunk was read.
    pub(super) fn hit(&mut self, place: u64, second: u64) -> u32 {
        if self.filters.back().is_none_or(|filter| filter.second != second) {
            self.filters.push_back(Filter::new(second, FILTER_BITS));
        }
        self.forget(second);
        let hash = checksum::fast(4, &place.to_le_bytes());
        if let Some(filter) = self.filters.back_mut() {
            filter.add(hash);
        }
        self.filters.iter().filter(|filter| filter.has(hash)).count() as u32
    }

    /// The keys of the header that are to be written now, with their values: filters of seconds that are over,
    /// every ten seconds, or with `closing` all. They are due again later until [`kept`](Self::kept) is called.
    pub(super) fn due(&mut self, second: u64, closing: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.forget(second);
        // A clock that was set back delays nothing.
        if !closing && (self.kept..self.kept + KEPT_EVERY).contains(&second) {
            return Vec::new();
        }
        self.kept = second;
        let due = self
            .filters
            .iter()
            .filter(|filter| filter.unkept && (closing || filter.second != second));
        due.flat_map(Filter::stored).collect()
    }

    /// The header has what was [due](Self::due) at that second.
    pub(super) fn kept(&mut self, second: u64) {
        // Reads went on meanwhile.
        let over = self.filters.iter_mut().filter(|filter| filter.second < second);
        over.for_each(|filter| filter.unkept = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks read in one second whose filter is folded, and not too full.
    const FOLDS: u64 = 8600;

    /// The set as the next owner finds it.
    fn again(hits: &mut HitSet, second: u64) -> HitSet {
        HitSet::load(&hits.due(second, true), second)
    }

    #[test]
    fn hits_are_counted_by_seconds_and_forgotten_after_a_minute() {
        let mut hits = HitSet::default();
        assert_eq!(
            (hits.hit(7, 10), hits.hit(7, 10), hits.hit(7, 11), hits.hit(8, 11)),
            (1, 1, 2, 1)
        );
        assert_eq!(hits.hit(7, 69), 3);
        assert_eq!(hits.hit(7, 200), 1);
    }

    #[test]
    fn hits_are_known_to_the_next_owner_until_they_are_a_minute_old() {
        let mut hits = HitSet::default();
        (100..110).for_each(|second| {
            hits.hit(7, second);
        });
        let header = hits.due(110, true);
        let counts =
            [110, 165, 169, 170].map(|second| HitSet::load(&header, second).hit(7, second));
        assert_eq!(counts, [11, 5, 1, 1]);
        assert_eq!(HitSet::load(&header, 110).hit(8, 110), 1);
        // The clock of this one is behind: what lies ahead is not believed.
        assert_eq!(HitSet::load(&header, 104).hit(7, 104), 5);
    }

    #[test]
    fn filters_are_written_every_ten_seconds_and_each_once() {
        let mut hits = HitSet::load(&[], 100);
        let mut written = Vec::new();
        for second in 100..130 {
            hits.hit(second, second);
            hits.hit(7, second);
            written.push(hits.due(second, false).len());
            // The first write fails.
            if second == 120 {
                hits.kept(second);
            }
        }
        let mut right = vec![0; 30];
        (right[10], right[20]) = (10, 20);
        assert_eq!(written, right);
        assert_eq!(hits.due(130, true).len(), 10);
        assert_eq!(hits.due(200, true).len(), 0);
    }

    #[test]
    fn a_filter_with_too_many_bits_is_folded_and_a_full_one_is_none() {
        for chunks in [0, 1, 5000, FOLDS, 28_000, 60_000, 400_000u64] {
            let mut hits = HitSet::default();
            (0..chunks).for_each(|chunk| {
                hits.hit(chunk, 5);
            });
            let header = hits.due(5, true);
            assert!(header.iter().all(|(_, value)| value.len() <= 9 + PIECE), "{chunks}");
            assert!(header.len() <= 22, "{chunks}");
            let mut next = HitSet::load(&header, 6);
            let seen = |hits: &mut HitSet, chunk| hits.hit(chunk, 6) == 2;
            let all = (0..chunks).step_by(97).all(|chunk| seen(&mut next, chunk));
            assert_eq!(all, chunks <= FOLDS, "{chunks}");
            let others = (1u64 << 40..).take(1000).filter(|chunk| seen(&mut next, *chunk)).count();
            assert!(others < 30, "{others} of 1000 that nobody read, with {chunks}");
        }
    }

    #[test]
    fn rule_09_a_value_that_is_no_filter_is_none_and_costs_no_more() {
        let with = |form: u8, bytes: &[u8]| Filter::decode(5, &[&[form], bytes].concat());
        assert!(Filter::decode(5, &[]).is_none() && with(DISTANCES, &[]).is_some());
        assert!(with(DISTANCES, &[0x80]).is_none(), "a distance is cut off");
        assert!(with(DISTANCES, &[0xff, 0xff, 0xff, 1]).is_none(), "a distance is too long");
        assert!(with(DISTANCES, &[0xff, 0xff, 0x1f]).is_some());
        assert!(with(DISTANCES, &[0xff, 0xff, 0x20]).is_none());
        assert!(
            with(DISTANCES, &[0xff, 0xff, 0x1f, 0]).is_none(),
            "a bit lies behind the last one"
        );
        assert!(with(DISTANCES, &vec![0; STORED_MAX + 1]).is_none());
        assert!(with(FOLDED, &[]).is_none() && with(2, &[]).is_none());
        let all = vec![0xff; FOLDED_BITS / 8];
        assert!(with(FOLDED, &all).is_none(), "each chunk would be in it");

        let mut hits = HitSet::default();
        (0..FOLDS).for_each(|chunk| {
            hits.hit(chunk, 100);
        });
        let header = hits.due(100, true);
        let knows = |header: &[(Vec<u8>, Vec<u8>)]| HitSet::load(header, 101).hit(7, 101) == 2;
        assert!(knows(&header) && header.len() == 22);
        // One piece is missing, of another second, longer, or says another number of pieces.
        assert!(!knows(&header[1..]) && !knows(&header[..21]));
        for spoil in [
            |value: &mut Vec<u8>| value[0] -= 1,
            |value: &mut Vec<u8>| value[0] += 1,
            |value: &mut Vec<u8>| value.push(0),
            |value: &mut Vec<u8>| value[8] += 1,
            |value: &mut Vec<u8>| value[8] = 0,
            |value: &mut Vec<u8>| value.clear(),
        ] {
            let mut other = header.clone();
            spoil(&mut other[3].1);
            assert!(!knows(&other));
        }
        // A shorter one of a later minute has the first of these keys.
        hits.hit(7, 160);
        let later = hits.due(160, true);
        let both = [&later[..], &header[later.len()..]].concat();
        assert_eq!(HitSet::load(&both, 161).hit(7, 161), 2);
        let huge = (key::numbered(HITS, 3), [&u64::MAX.to_le_bytes()[..], &[1, 0]].concat());
        assert_eq!(HitSet::load(&[huge], 100).hit(7, 100), 1);
        // The same of a set that is none.
        assert_eq!(again(&mut HitSet::default(), 3).hit(7, 3), 1);
    }
}
