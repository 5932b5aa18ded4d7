//! The leaves of maps that moving still has to look at: those that checkpoints changed, and the rest of a
//! walk through all maps.
//!
//! *Invariant:* each leaf that a checkpoint changed is looked at some time after it was left alone. When
//! more of them changed than are remembered, a walk passes all of them. A walk that is under way goes on
//! where it is and begins anew at its end: one that began anew at once would never come to the last maps.
//!
//! A walk waits until the forgotten leaves were left alone. Where that takes longer than it takes to change more
//! leaves than are remembered, it would wait for ever: packing forgets the leaves that changed longest ago, and
//! its walk goes on meanwhile.

use std::{collections::BTreeMap, time::Duration};

use onefold_core::VolumeId;

/// Leaves that are remembered. If there are more, all maps are looked through.
const LEAVES_MAX: usize = 1 << 16;

/// A leaf of a map.
type LeafOf = (VolumeId, u64);

/// Where a walk through all maps begins.
const FIRST: LeafOf = (VolumeId(0), 0);

/// The leaves that moving still has to look at.
pub(crate) struct Leaves {
    /// Leaves that checkpoints changed, and when the last one did.
    changed: BTreeMap<LeafOf, Duration>,
    /// None of them was changed last before this moment.
    oldest: Duration,
    /// Where the walk through all maps goes on, while there is one.
    walk: Option<LeafOf>,
    /// Behind the place of the walk more leaves changed than are remembered.
    begins_anew: bool,
    /// When more leaves had changed than are remembered, for the last time.
    overflowed: Duration,
    /// Only those are forgotten that changed longest ago, and no walk waits for them.
    forgets_oldest: bool,
}

impl Default for Leaves {
    /// Of a store that was opened just now: nobody has looked at its maps.
    fn default() -> Leaves {
        Leaves {
            changed: BTreeMap::new(),
            oldest: Duration::MAX,
            walk: Some(FIRST),
            begins_anew: false,
            overflowed: Duration::ZERO,
            forgets_oldest: false,
        }
    }
}

impl Leaves {
    /// Of a store that was opened now, whose leaves are to lie still for some time from now on. That time may be
    /// so long that more leaves change within it than are remembered.
    pub(crate) fn from_now(now: Duration) -> Leaves {
        let overflowed = now.max(Duration::from_nanos(1));
        Leaves { overflowed, forgets_oldest: true, ..Leaves::default() }
    }

    /// A checkpoint changed these leaves.
    pub(crate) fn note(&mut self, leaves: &[LeafOf], now: Duration) {
        let mut noted = leaves;
        if self.changed.len() + leaves.len() > LEAVES_MAX {
            self.begins_anew |= self.walk.is_some_and(|at| at > FIRST);
            self.walk.get_or_insert(FIRST);
            if self.forgets_oldest {
                self.forget_oldest();
                noted = &leaves[..leaves.len().min(LEAVES_MAX - self.changed.len())];
            } else {
                self.changed.clear();
                self.overflowed = now;
                noted = &[];
            }
        }
        if !noted.is_empty() {
            self.changed.extend(noted.iter().map(|&leaf| (leaf, now)));
            self.oldest = self.oldest.min(now);
        }
    }

    /// Forgets the half of the leaves that changed longest ago.
    fn forget_oldest(&mut self) {
        let mut times: Vec<Duration> = self.changed.values().copied().collect();
        let middle = times.len() / 2;
        if middle < times.len() {
            let (_, &mut middle, _) = times.select_nth_unstable(middle);
            self.changed.retain(|_, at| *at > middle);
        }
        self.oldest = self.changed.values().copied().min().unwrap_or(Duration::MAX);
    }

    /// A leaf is looked at again, whoever changed it.
    pub(crate) fn look_again(&mut self, leaf: LeafOf) {
        self.changed.insert(leaf, Duration::ZERO);
        self.oldest = Duration::ZERO;
    }

    /// A leaf is looked at again, as if it had changed now.
    pub(crate) fn look_later(&mut self, leaf: LeafOf, now: Duration) {
        self.changed.insert(leaf, now);
        self.oldest = self.oldest.min(now);
    }

    /// Takes a leaf out of those that changed; false when it was changed lately, and stays.
    pub(crate) fn take(&mut self, leaf: LeafOf, now: Duration, settled: Duration) -> bool {
        let waits = |&at: &Duration| now.saturating_sub(at) < settled;
        if self.changed.get(&leaf).is_some_and(waits) {
            return false;
        }
        self.changed.remove(&leaf);
        true
    }

    /// Takes the first leaf that nobody changed for so long. Neighbours come one after the other, so
    /// that their copies are neighbours.
    pub(crate) fn take_settled(&mut self, now: Duration, settled: Duration) -> Option<LeafOf> {
        // Else all of them would be looked through at each step of a store that clients write to.
        if now.saturating_sub(self.oldest) < settled {
            return None;
        }
        let mut all = self.changed.iter();
        let found = all.find(|&(_, &at)| now.saturating_sub(at) >= settled).map(|(&leaf, _)| leaf);
        match found {
            Some(leaf) => drop(self.changed.remove(&leaf)),
            None => self.oldest = self.changed.values().copied().min().unwrap_or(Duration::MAX),
        }
        found
    }

    /// Where the walk through all maps goes on: nowhere within so long after leaves were forgotten.
    pub(crate) fn walk(&self, now: Duration, settled: Duration) -> Option<LeafOf> {
        let opened = self.overflowed == Duration::ZERO;
        let is_settled = opened || now.saturating_sub(self.overflowed) >= settled;
        self.walk.filter(|_| is_settled)
    }

    /// The walk goes on there; with `None` it has passed all maps.
    pub(crate) fn walk_on(&mut self, next: Option<LeafOf>) {
        let anew = next.is_none() && std::mem::take(&mut self.begins_anew);
        self.walk = if anew { Some(FIRST) } else { next };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn leaf(n: u64) -> LeafOf {
        (VolumeId(7), n)
    }

    /// So many leaves that none is remembered.
    fn too_many() -> Vec<LeafOf> {
        (0..=LEAVES_MAX as u64).map(leaf).collect()
    }

    /// A store whose first walk is over.
    fn walked() -> Leaves {
        let mut leaves = Leaves::default();
        leaves.walk_on(None);
        leaves
    }

    #[test]
    fn a_leaf_comes_once_when_it_was_left_alone_for_long_enough() {
        let mut leaves = walked();
        leaves.note(&[leaf(5), leaf(3)], S);
        leaves.note(&[leaf(3)], S * 10);
        assert_eq!(leaves.take_settled(S * 30, S * 30), None);
        assert_eq!(leaves.take_settled(S * 31, S * 30), Some(leaf(5)));
        assert_eq!(leaves.take_settled(S * 31, S * 30), None);
        assert!(!leaves.take(leaf(3), S * 39, S * 30) && leaves.take(leaf(9), S * 39, S * 30));
        assert_eq!(leaves.take_settled(S * 40, S * 30), Some(leaf(3)));
        assert_eq!(leaves.take_settled(S * 99, S * 30), None);
        leaves.note(&[leaf(1)], S * 100);
        leaves.look_again(leaf(2));
        assert_eq!(leaves.take_settled(S * 100, S * 30), Some(leaf(2)));
        leaves.look_later(leaf(0), S * 101);
        assert_eq!(leaves.take_settled(S * 130, S * 30), Some(leaf(1)));
        assert_eq!(leaves.take_settled(S * 130, S * 30), None, "others come first");
    }

    #[test]
    fn when_nothing_is_settled_nothing_is_looked_through() {
        let mut leaves = walked();
        leaves.note(&[leaf(1)], S);
        leaves.note(&[leaf(2)], S * 20);
        assert!(leaves.take(leaf(1), S * 31, S * 30));
        // The oldest of them went meanwhile: one look finds out.
        assert_eq!((leaves.take_settled(S * 40, S * 30), leaves.oldest), (None, S * 20));
        leaves.take_settled(S * 50, S * 30);
        assert_eq!((leaves.take_settled(S * 60, S * 30), leaves.oldest), (None, Duration::MAX));
    }

    #[test]
    fn a_walk_comes_to_the_last_maps_however_often_leaves_are_forgotten() {
        let mut leaves = Leaves::default();
        assert_eq!(leaves.walk(S, S * 30), Some(FIRST), "of a store that was opened just now");
        let mut seen = 0;
        for n in 1..=6 {
            leaves.note(&too_many(), S * (60 * n));
            assert_eq!(leaves.walk(S * (60 * n), S * 30), None, "they are not left alone yet");
            let at = leaves.walk(S * (60 * n + 30), S * 30);
            let (volume, _) = at.unwrap_or_else(|| panic!("no walk, round {n}"));
            seen = seen.max(volume.0);
            leaves.walk_on((volume.0 < 3).then_some((VolumeId(volume.0 + 1), 0)));
        }
        assert_eq!(seen, 3, "the last map");
    }

    #[test]
    fn rule_20_a_walk_of_packing_goes_on_however_many_leaves_change() {
        let hour = S * 3600;
        let mut leaves = Leaves::from_now(S);
        let (mut walked, mut settled) = (0, 0);
        // 18 other ones each second, of a million.
        for second in 1..=3 * 3600 {
            let now = S * second;
            let changed: Vec<LeafOf> =
                (0..18).map(|n| leaf(u64::from(second * 18 + n) * 7919 % 1_000_000)).collect();
            leaves.note(&changed, now);
            assert!(!leaves.take(changed[3], now, hour), "it is hot");
            settled += u32::from(leaves.take_settled(now, hour).is_some());
            if leaves.walk(now, hour).is_some() {
                walked += 1;
                leaves.walk_on((second % 900 > 0).then_some(leaf(u64::from(second % 900))));
            }
        }
        assert!(walked > 3600, "{walked} steps of a walk, and {settled} that had settled");
    }

    #[test]
    fn a_walk_that_forgot_leaves_behind_it_begins_anew_once() {
        let mut leaves = Leaves::default();
        leaves.walk_on(Some((VolumeId(2), 9)));
        leaves.note(&too_many(), S);
        assert_eq!(leaves.walk(S * 40, S * 30), Some((VolumeId(2), 9)));
        leaves.walk_on(None);
        assert_eq!(leaves.walk(S * 40, S * 30), Some(FIRST));
        leaves.walk_on(None);
        assert_eq!(leaves.walk(S * 40, S * 30), None);
        leaves.note(&too_many(), S * 50);
        assert_eq!(leaves.walk(S * 90, S * 30), Some(FIRST));
    }
}
