//! Where containers of an archive on several nodes go (RAD): in the order of arrival with one code,
//! or late, by how often their chunks are referenced.
//!
//! With [`Rad`] chunks of streams stand *replicated* first, `f + 1` times: a stripe with one column
//! of data, whose parity is a copy each. When their counts have stood still, collection sorts them
//! by reference counts into classes, and writes each class with its own code. All codes have the
//! same parity, so that as many nodes may be lost.
//!
//! With [`Rad::gathers`] a stream gathers its new chunks in memory instead, and writes them to
//! classes at once, by their counts among what it gathered (Algorithm 1).

use std::{collections::BTreeMap, fmt, str::FromStr};

use onefold_core::{Error, Kind, Result};

/// Columns of a stripe at most.
pub(crate) const COLUMNS_MAX: usize = 32;

/// The placement class that the containers of a segment share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The archive's code: all of an archive with round-robin, and recipes.
    Plain,
    /// Copies of chunks whose counts may still change.
    Replicated,
    /// Chunks with one reference.
    Cold,
    /// Chunks with more references than cold ones and fewer than hot ones.
    Baseline,
    /// Chunks with the most references.
    Hot,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 5] =
        [Class::Plain, Class::Replicated, Class::Cold, Class::Baseline, Class::Hot];

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.code() == code)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["plain", "replicated", "cold", "baseline", "hot"][usize::from(self.code())])
    }
}

/// How chunks are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// As they arrive, with the archive's code.
    #[default]
    RoundRobin,
    /// Late, by their reference counts.
    Rad,
}

impl FromStr for Placement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Placement, Error> {
        match text {
            "round-robin" => Ok(Placement::RoundRobin),
            "rad" => Ok(Placement::Rad),
            _ => Err(Error::new(Kind::InvalidInput, "a placement is round-robin or rad")),
        }
    }
}

/// Encoding by reference counts, late or at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rad {
    /// Puts for which the counts of a container must have stood still.
    pub delay: u32,
    /// Containers of at least so many versions are sorted together.
    pub batch: u32,
    /// Columns of data: of cold chunks, of the baseline, of hot chunks.
    pub classes: [u8; 3],
    /// KiB of memory that the streams of a process fill with new chunks before these are sorted and
    /// encoded at once; 0: chunks stand replicated first. Volumes' chunks do so in any case.
    pub gathers: u32,
}

/// Most memory for new chunks, in KiB: 16 GiB.
pub const GATHERS_MAX: u32 = 16 << 20;

/// Most versions to wait for.
const VERSIONS_MAX: u32 = 1_000_000;

impl Rad {
    /// True when an archive that spreads so can have it: its nodes, columns of data and of parity.
    ///
    /// # Errors
    /// `InvalidInput`, with what is wrong.
    pub fn check(&self, [nodes, data, parity]: [u8; 3]) -> Result<()> {
        let [cold, baseline, hot] = self.classes;
        let wrong = |why: String| Err(Error::new(Kind::InvalidInput, why));
        if parity == 0 {
            return wrong("the placement rad needs several nodes, and a code with parity".into());
        }
        if [data, cold, baseline, hot].into_iter().any(|data| data < 2) {
            return wrong("with the placement rad each code has at least two shards without parity: one alone is a copy".into());
        }
        let longest = usize::from(cold) + usize::from(parity);
        if cold < baseline
            || baseline < hot
            || longest > usize::from(nodes)
            || longest > COLUMNS_MAX
        {
            return wrong(format!(
                "the codes of cold, baseline and hot chunks may not get longer in this order, nor have more than the {nodes} nodes of shards"
            ));
        }
        if self.batch == 0 || self.batch > VERSIONS_MAX || self.delay > VERSIONS_MAX {
            return wrong(format!(
                "a batch has 1 to {VERSIONS_MAX} versions, and a delay up to as many"
            ));
        }
        if self.gathers > GATHERS_MAX {
            return wrong(format!("a batch in memory has {} GiB at most", GATHERS_MAX >> 20));
        }
        if self.gathers > 0 && (self.delay, self.batch) != (0, 1) {
            return wrong("what is encoded at once has no delay, and no batch of versions".into());
        }
        Ok(())
    }

    /// Bytes of memory for new chunks that are encoded at once, if they are.
    #[must_use]
    pub(crate) fn gathered_bytes(&self) -> Option<u64> {
        (self.gathers > 0).then(|| u64::from(self.gathers) << 10)
    }

    /// Columns of data of a class that is encoded late.
    #[must_use]
    pub(crate) fn data(&self, class: Class) -> Option<u8> {
        match class {
            Class::Plain => None,
            Class::Replicated => Some(1),
            Class::Cold => Some(self.classes[0]),
            Class::Baseline => Some(self.classes[1]),
            Class::Hot => Some(self.classes[2]),
        }
    }
}

/// Hot chunks are at most one of so many.
const HOT_SHARE: u64 = 10;

/// References that a hot chunk has at least.
const HOT_LEAST: u16 = 3;

/// The classes of a batch of chunks, which its counts tell apart: *cold* chunks have one reference
/// (or none, when they lost it since they could last be condemned), *hot* ones at least three and as
/// many as no more than a tenth of the batch has, the *baseline* is all between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassBorder {
    /// References from which on a chunk is hot.
    hot: u32,
}

impl Default for ClassBorder {
    fn default() -> ClassBorder {
        ClassBorder { hot: u32::from(u16::MAX) + 1 }
    }
}

impl ClassBorder {
    /// The border of a batch in which so many chunks have each number of references.
    pub(crate) fn of(chunks: &BTreeMap<u16, u64>) -> ClassBorder {
        let all: u64 = chunks.values().sum();
        let (mut hot, mut border) = (0, ClassBorder::default());
        for (&count, &chunks) in chunks.iter().rev().take_while(|(count, _)| **count >= HOT_LEAST) {
            hot += chunks;
            if hot * HOT_SHARE > all {
                break;
            }
            border.hot = u32::from(count);
        }
        border
    }

    /// The class of a chunk with so many references.
    pub(crate) fn class(self, count: u16) -> Class {
        match count {
            0 | 1 => Class::Cold,
            _ if u32::from(count) >= self.hot => Class::Hot,
            _ => Class::Baseline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_do_not_fit_are_refused() {
        let rad = |classes| Rad { delay: 1, batch: 1, classes, gathers: 0 };
        for (classes, spread, fits) in [
            ([12, 8, 4], [14, 12, 2], true),
            ([8, 8, 8], [10, 8, 2], true),
            ([12, 8, 4], [13, 8, 2], false),
            ([4, 8, 12], [14, 12, 2], false),
            ([8, 4, 1], [14, 12, 2], false),
            ([8, 4, 2], [14, 1, 2], false),
            ([2, 2, 2], [1, 1, 0], false),
            ([40, 8, 4], [60, 12, 2], false),
        ] {
            assert_eq!(rad(classes).check(spread).is_ok(), fits, "{classes:?} on {spread:?}");
        }
        assert!(Rad { batch: 0, ..rad([2, 2, 2]) }.check([4, 2, 1]).is_err());
        assert!(Rad { gathers: 1, ..rad([2, 2, 2]) }.check([4, 2, 1]).is_err());
        assert!(Rad { gathers: 1, delay: 0, ..rad([2, 2, 2]) }.check([4, 2, 1]).is_ok());
        let more = Rad { gathers: GATHERS_MAX + 1, delay: 0, ..rad([2, 2, 2]) };
        assert!(more.check([4, 2, 1]).is_err());
    }

    #[test]
    fn at_most_a_tenth_is_hot() {
        let from = |counts: &[(u16, u64)]| ClassBorder::of(&counts.iter().copied().collect()).hot;
        assert_eq!(from(&[(1, 80), (2, 10), (3, 5), (9, 5)]), 3);
        assert_eq!(from(&[(1, 80), (2, 10), (3, 6), (9, 5)]), 9);
        // Two references are not many, and what all have is no more than others have.
        assert_eq!(from(&[(1, 95), (2, 5)]), 65_536);
        assert_eq!(from(&[(7, 100)]), 65_536);
        assert_eq!(from(&[]), 65_536);
    }
}
