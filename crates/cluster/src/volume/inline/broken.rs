//! Steps that break a rule; only the simulator runs them.

use super::{Draft, InlineWrites};
use crate::{format::Reference, rules::Rule};

impl InlineWrites {
    /// Breaks `FlipBeforeDrop`: drops the old references before the entries are flipped.
    pub(super) fn drop_early(&self, drafts: &[Draft]) {
        if self.objects.kernel().keeps(Rule::FlipBeforeDrop) {
            return;
        }
        for draft in drafts {
            let _ = self.chunk_pool().drop_references(&draft.dropped);
        }
    }

    /// Breaks `ReferenceBeforeFlip`: adds the new references after the entries were flipped.
    pub(super) fn add_late(&self, drafts: &[Draft]) {
        if self.objects.kernel().keeps(Rule::ReferenceBeforeFlip) {
            return;
        }
        for draft in drafts {
            let content = |reference: &Reference| {
                let mut parts = draft.parts.iter();
                parts.find(|part| part.offset == reference.offset).map(|part| &part.content[..])
            };
            let wanted: Vec<_> = draft
                .added
                .iter()
                .filter_map(|(chunk, reference)| Some((chunk.id, content(reference)?, *reference)))
                .collect();
            let _ = self.chunk_pool().add_references(&wanted);
        }
    }
}
