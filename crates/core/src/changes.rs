//! Which parts of a volume changed: so that what was read before a client asked is given to it only
//! when a read at that moment would give the same.

use std::ops::Range;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// Blocks that are counted together: 256 KiB, so that one block that is written spoils little of
/// what was read ahead elsewhere.
const PART_BLOCKS: u64 = 64;

/// The most counts of a volume, 16 bytes each. Those of a larger volume share them.
const PARTS: u64 = 1024;

/// The changes of one volume, whoever makes them, counted for each part of it: those that have
/// begun, and those that have ended.
///
/// Whoever changes the volume holds a [`Change`] from before anybody can see what changes until
/// everybody does. Whoever reads ahead [looks](Changes::look) first, reads, and uses what it read
/// only while [nothing changed](Changes::is_unchanged) since.
///
/// *Invariant:* what passes this test is what a read would have returned at the moment of the test:
/// no change was under way when the reading began, and none has begun since.
pub struct Changes(Box<[Part]>);

#[derive(Default)]
struct Part {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A change under way; it ends when this is dropped, whether or not it succeeded.
pub struct Change<'a> {
    of: &'a Changes,
    parts: Range<u64>,
}

/// What had changed when somebody began to read a range.
#[derive(Clone, Debug)]
pub struct Look {
    first_part: u64,
    begun: Vec<u64>,
}

impl Default for Changes {
    /// Nothing changed yet.
    fn default() -> Changes {
        Changes((0..PARTS).map(|_| Part::default()).collect())
    }
}

/// The parts that have a block of the range.
fn parts(blocks: &Range<u64>) -> Range<u64> {
    if blocks.is_empty() {
        return 0..0;
    }
    blocks.start / PART_BLOCKS..(blocks.end - 1) / PART_BLOCKS + 1
}

impl Changes {
    fn part(&self, part: u64) -> &Part {
        &self.0[(part % PARTS) as usize]
    }

    /// A change of these blocks begins.
    #[must_use]
    pub fn begin(&self, blocks: Range<u64>) -> Change<'_> {
        let mut parts = parts(&blocks);
        parts.end = parts.end.min(parts.start.saturating_add(PARTS));
        for part in parts.clone() {
            self.part(part).begun.fetch_add(1, Release);
        }
        Change { of: self, parts }
    }

    /// A change begins that may concern all blocks, as when the volume gets another size.
    #[must_use]
    pub fn begin_all(&self) -> Change<'_> {
        self.begin(0..u64::MAX)
    }

    /// What has changed so far, for who reads these blocks next; `None` while one of them is being
    /// changed.
    #[must_use]
    pub fn look(&self, blocks: Range<u64>) -> Option<Look> {
        let parts = parts(&blocks);
        let first_part = parts.start;
        let begun = parts.map(|part| {
            let part = self.part(part);
            // In this order: all that have begun by the second look had ended by the first.
            let ended = part.ended.load(Acquire);
            let begun = part.begun.load(Acquire);
            (begun == ended).then_some(begun)
        });
        begun.collect::<Option<_>>().map(|begun| Look { first_part, begun })
    }

    /// True when no change of these blocks, which are of those that were looked at, has begun since.
    #[must_use]
    pub fn is_unchanged(&self, look: &Look, blocks: Range<u64>) -> bool {
        parts(&blocks).all(|part| {
            let at = part.checked_sub(look.first_part);
            let begun = at.and_then(|at| look.begun.get(usize::try_from(at).ok()?));
            begun.is_some_and(|begun| self.part(part).begun.load(Acquire) == *begun)
        })
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        for part in self.parts.clone() {
            self.of.part(part).ended.fetch_add(1, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_noticed_from_its_begin_and_spoils_no_more_than_its_part() {
        let changes = Changes::default();
        let look = |blocks: Range<u64>| changes.look(blocks);
        let before = look(0..256).unwrap();
        assert!(changes.is_unchanged(&before, 0..256));
        let change = changes.begin(70..71);
        assert!(!changes.is_unchanged(&before, 64..65), "it may be seen already");
        assert!(changes.is_unchanged(&before, 0..64) && changes.is_unchanged(&before, 128..256));
        assert!(look(0..65).is_none(), "what is being changed is not read ahead");
        let beside = look(128..256).unwrap();
        drop(change);
        assert!(!changes.is_unchanged(&before, 64..128));
        assert!(changes.is_unchanged(&beside, 128..256));
        assert!(changes.is_unchanged(&look(0..256).unwrap(), 0..256));
    }

    #[test]
    fn of_two_changes_at_once_both_must_end() {
        let changes = Changes::default();
        let (one, other) = (changes.begin(0..1), changes.begin(5..9));
        drop(one);
        assert!(changes.look(0..1).is_none());
        drop(other);
        assert!(changes.look(0..1).is_some());
    }

    #[test]
    fn a_change_of_everything_concerns_every_block() {
        let changes = Changes::default();
        let far = 1 << 50;
        let before = [0, 63, 64, far].map(|at| (at, changes.look(at..at + 1).unwrap()));
        drop(changes.begin_all());
        for (at, look) in before {
            assert!(!changes.is_unchanged(&look, at..at + 1), "block {at}");
        }
        assert!(changes.look(far..far + 9).is_some());
        drop(changes.begin(0..0));
        let look = changes.look(0..1).unwrap();
        drop(changes.begin(7..7));
        assert!(changes.is_unchanged(&look, 0..1), "nothing was changed");
        assert!(!changes.is_unchanged(&look, 64..65), "it was not looked at");
    }
}
