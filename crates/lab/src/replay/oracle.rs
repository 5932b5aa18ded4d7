//! The content of every block, and the fewest blocks that could have been written: computed beside
//! the engine, from the requests alone.

use std::collections::HashMap;

use onefold_core::Lba;

use crate::{Content, request::What};

/// Trimmed addresses that are remembered, to be read again.
const DROPPED_MAX: usize = 10_000;

/// Live contents by address.
#[derive(Default)]
pub(super) struct Oracle {
    live: HashMap<u64, Content>,
    references: HashMap<[u8; 16], u32>,
    dropped: Vec<u64>,
    /// Blocks written so far.
    pub(super) client: u64,
    /// Blocks whose content was not live when they were written.
    pub(super) ideal: u64,
}

impl Oracle {
    /// Takes note of a request.
    pub(super) fn note(&mut self, what: &What) {
        match what {
            What::Write { first, blocks, .. } => {
                for (at, content) in (first.0..).zip(blocks) {
                    self.client += 1;
                    self.ideal += u64::from(!self.references.contains_key(&content.hash));
                    *self.references.entry(content.hash).or_default() += 1;
                    if let Some(old) = self.live.insert(at, *content) {
                        self.release(&old);
                    }
                }
            }
            What::Trim { first, blocks } | What::Zeroes { first, blocks } => {
                let range = first.0..first.0 + blocks;
                let gone: Vec<u64> = if *blocks > self.live.len() as u64 {
                    self.live.keys().copied().filter(|at| range.contains(at)).collect()
                } else {
                    range.filter(|at| self.live.contains_key(at)).collect()
                };
                for at in gone {
                    if let Some(old) = self.live.remove(&at) {
                        self.release(&old);
                    }
                    if self.dropped.len() < DROPPED_MAX {
                        self.dropped.push(at);
                    }
                }
            }
            What::Flush | What::Phase(_) => {}
        }
    }

    fn release(&mut self, content: &Content) {
        if let Some(references) = self.references.get_mut(&content.hash) {
            *references -= 1;
            if *references == 0 {
                self.references.remove(&content.hash);
            }
        }
    }

    /// Addresses that hold something.
    pub(super) fn live_blocks(&self) -> u64 {
        self.live.len() as u64
    }

    /// Different contents among them.
    pub(super) fn live_contents(&self) -> u64 {
        self.references.len() as u64
    }

    /// Up to `most` addresses with what they hold, spread evenly over all, and some that were
    /// dropped, which hold zeroes.
    pub(super) fn sample(&self, most: u64) -> Vec<(Lba, Content)> {
        let mut all: Vec<(Lba, Content)> =
            self.live.iter().map(|(&at, &content)| (Lba(at), content)).collect();
        all.sort_unstable();
        let step = (all.len() as u64).div_ceil(most.max(1)).max(1) as usize;
        let mut sample: Vec<(Lba, Content)> = all.into_iter().step_by(step).collect();
        sample.extend(
            self.dropped
                .iter()
                .filter(|at| !self.live.contains_key(at))
                .map(|&at| (Lba(at), Content::ZERO)),
        );
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(first: u64, numbers: &[u64]) -> What {
        What::Write {
            first: Lba(first),
            blocks: numbers.iter().map(|&n| Content::numbered(1, n, 4096)).collect(),
            fua: false,
        }
    }

    #[test]
    fn only_contents_that_are_not_live_are_counted() {
        let mut oracle = Oracle::default();
        oracle.note(&write(0, &[1, 2, 1]));
        assert_eq!((oracle.client, oracle.ideal), (3, 2));
        // The same again is live; what only the overwritten block held is not, afterwards.
        oracle.note(&write(1, &[2]));
        oracle.note(&write(1, &[3]));
        oracle.note(&write(9, &[2]));
        assert_eq!((oracle.client, oracle.ideal), (6, 4));
        oracle.note(&What::Trim { first: Lba(0), blocks: 1 << 40 });
        oracle.note(&write(5, &[1, 2, 3]));
        assert_eq!(
            (oracle.client, oracle.ideal, oracle.live_blocks(), oracle.live_contents()),
            (9, 7, 3, 3)
        );
        oracle.note(&What::Zeroes { first: Lba(5), blocks: 2 });
        let sample = oracle.sample(100);
        assert_eq!(sample[0], (Lba(7), Content::numbered(1, 3, 4096)));
        assert!(
            sample.contains(&(Lba(0), Content::ZERO)) && sample.contains(&(Lba(6), Content::ZERO))
        );
    }
}
