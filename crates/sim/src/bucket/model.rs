//! The states that may be there: of each commit that somebody began, the content of all files.

use std::collections::BTreeMap;

use crate::checker::{Checker, Failure};

/// The content of all files, by their names.
pub(super) type Contents = BTreeMap<String, Vec<u8>>;

/// The file with the number of the last commit.
pub(super) const STAMP: &str = "stamp";

/// The file with the numbers of all commits, one after the other.
pub(super) const HISTORY: &str = "history";

/// The file with keys, whose packs go at once.
pub(super) const KEYS: &str = "keys";

/// Commits that were begun.
#[derive(Default)]
pub(super) struct Model {
    begun: BTreeMap<u64, Contents>,
    /// The commits that were acknowledged, in their order.
    acknowledged: Vec<u64>,
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).filter_map(|n| n.try_into().ok()).map(u64::from_le_bytes).collect()
}

impl Model {
    /// The number of the next commit.
    pub(super) fn next(&self) -> u64 {
        self.begun.len() as u64 + 1
    }

    /// A commit begins, after which this is there.
    pub(super) fn begin(&mut self, number: u64, contents: Contents) {
        self.begun.insert(number, contents);
    }

    /// A commit was acknowledged.
    pub(super) fn acknowledge(&mut self, number: u64) {
        self.acknowledged.push(number);
    }

    /// Commits that were acknowledged until now.
    pub(super) fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// Compares what somebody sees with what may be there, when so many commits were acknowledged before.
    pub(super) fn compare(
        &self,
        found: &Contents,
        acknowledged: usize,
        with_keys: bool,
    ) -> Result<(), Failure> {
        let failed = |text: String| Err(Failure::new(Checker::Committed, text));
        let history = numbers(found.get(HISTORY).map_or(&[], Vec::as_slice));
        let mut sorted = history.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != history.len() {
            return failed(format!("a commit counts twice: {history:?}"));
        }
        let lost: Vec<_> =
            self.acknowledged[..acknowledged].iter().filter(|n| !history.contains(n)).collect();
        if !lost.is_empty() {
            return failed(format!("acknowledged, and not there: {lost:?} of {history:?}"));
        }
        let last = numbers(found.get(STAMP).map_or(&[], Vec::as_slice)).first().copied();
        let Some(last) = last else {
            return if found.is_empty() {
                Ok(())
            } else {
                failed(format!("files without a stamp: {:?}", found.keys()))
            };
        };
        let mut expected = self.begun.get(&last).cloned();
        if let Some(expected) = &mut expected
            && !with_keys
        {
            expected.remove(KEYS);
        }
        match &expected {
            None => failed(format!("commit {last} was never begun")),
            Some(expected) if expected == found => Ok(()),
            Some(expected) => {
                let other = |name: &&String| found.get(*name) != expected.get(*name);
                let names: Vec<_> = expected.keys().chain(found.keys()).filter(other).collect();
                failed(format!("commit {last} had other bytes in {names:?}"))
            }
        }
    }
}
