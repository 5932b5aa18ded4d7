//! The content at each address of a workload, so that a live one can be drawn.

use std::collections::{BTreeMap, HashMap};

use onefold_testbed::SplitMix;

use crate::Content;

/// Live contents. Drawing takes the same time however many there are, and depends on the order of
/// writes alone.
#[derive(Default)]
pub(super) struct Live {
    at: HashMap<u64, Content>,
    contents: Vec<Content>,
    /// Of each content: its place in the list, and how many addresses hold it.
    known: BTreeMap<[u8; 16], (usize, u64)>,
}

impl Live {
    /// Any live content.
    pub(super) fn pick(&self, rng: &mut SplitMix) -> Option<Content> {
        self.contents.get(rng.below(self.contents.len() as u64) as usize).copied()
    }

    /// An address holds this content now.
    pub(super) fn write(&mut self, lba: u64, content: Content) {
        let end = self.contents.len();
        let known = self.known.entry(content.hash).or_insert((end, 0));
        known.1 += 1;
        if known.1 == 1 {
            self.contents.push(content);
        }
        if let Some(old) = self.at.insert(lba, content) {
            self.release(&old);
        }
    }

    fn release(&mut self, content: &Content) {
        let Some(known) = self.known.get_mut(&content.hash) else { return };
        known.1 -= 1;
        if known.1 == 0 {
            let (place, _) = *known;
            self.known.remove(&content.hash);
            self.contents.swap_remove(place);
            if let Some(moved) = self.contents.get(place)
                && let Some(known) = self.known.get_mut(&moved.hash)
            {
                known.0 = place;
            }
        }
    }
}
