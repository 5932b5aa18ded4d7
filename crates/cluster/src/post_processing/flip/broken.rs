//! Steps that break a rule; only the simulator runs them.

use onefold_core::object::{Guard, Refusal, Write};

use super::{Deduplication, Draft, GroupFlip, Wanted, each, punches};
use crate::{format::Chunk, rules::Rule};

impl Deduplication<'_> {
    /// Breaks `FlipBeforeDrop`, or `ReferenceBeforeFlip`: drops the old references, or flips the
    /// entries, before the new references are added.
    pub(super) fn flip_out_of_order(&self, drafts: &mut [Result<Draft, Refusal>]) {
        if !self.kernel.keeps(Rule::FlipBeforeDrop) {
            each(drafts, |draft| {
                draft.wanted.iter().try_for_each(|wanted| {
                    self.chunk_pool.drop_references(draft.flips[wanted.flip].dropped.as_slice())
                })
            });
        }
        if !self.kernel.keeps(Rule::ReferenceBeforeFlip) {
            each(drafts, |draft| {
                draft.refer(
                    &draft
                        .wanted
                        .iter()
                        .map(|wanted| Chunk { id: wanted.id, copy: 0 })
                        .collect::<Vec<_>>(),
                );
                let op = self.flip_op(draft);
                self.kernel.carry_out_decided(&mut GroupFlip { kernel: self.kernel, draft }, op)?;
                self.chunk_pool
                    .add_references(&draft.wanted.iter().map(Wanted::op).collect::<Vec<_>>())
                    .map(|_| ())
            });
        }
    }

    /// Breaks `PunchWithFlip`: punches the data out of the object in an operation of its own.
    pub(super) fn punch_apart(&self, draft: &Draft) -> Result<(), Refusal> {
        let punch = Write {
            object: draft.object.name(),
            guards: vec![Guard::Exists],
            changes: punches(&draft.flips),
        };
        self.kernel.until_answered(&punch).map(|_| ())
    }
}
