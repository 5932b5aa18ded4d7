//! Steps that break a rule; only the simulator runs them.

use onefold_core::object::{Read, ReadResult, Refusal};

use super::Reads;
use crate::rules::Rule;

impl Reads {
    /// Breaks `EntriesReadWithData`: reads the data of each object after its entries.
    pub(super) fn read_apart(&self, asked: &[Read]) -> Option<Vec<Result<ReadResult, Refusal>>> {
        let kernel = self.objects.kernel();
        if kernel.keeps(Rule::EntriesReadWithData) {
            return None;
        }
        let one = |read: &Read| {
            let mut answer = kernel.read_one(&read.object, read.parts[..2].to_vec())?;
            answer.seen.extend(kernel.read_one(&read.object, read.parts[2..].to_vec())?.seen);
            Ok(answer)
        };
        Some(asked.iter().map(one).collect())
    }
}
