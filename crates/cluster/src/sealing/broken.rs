//! Steps that break a rule; only the simulator runs them.

use onefold_core::{
    Error,
    object::{Change, ObjectStore, Refusal, Version, Write},
};

/// Breaks `SumsSetWithTheirBlocks`: writes the blocks in an operation of their own, after the one that
/// sets their sums.
pub(super) fn write_apart(
    store: &dyn ObjectStore,
    batch: &[Result<Write, Error>],
) -> Vec<Result<Version, Refusal>> {
    let one = |op: &Result<Write, Error>| {
        let op = op.as_ref().map_err(|error| Refusal::Failed(error.clone()))?;
        let (data, rest): (Vec<Change>, Vec<Change>) =
            op.changes.iter().cloned().partition(|change| matches!(change, Change::Write(..)));
        let first = store.write(&[Write { changes: rest, ..op.clone() }]).remove(0)?;
        if data.is_empty() {
            return Ok(first);
        }
        store.write(&[Write { guards: Vec::new(), changes: data, ..op.clone() }]).remove(0)
    };
    batch.iter().map(one).collect()
}
