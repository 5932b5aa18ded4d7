//! Answers whether a chunk is known to be damaged.

use super::state::Tables;
use crate::format::{ContainerId, damage::is_condemned};

/// True when a chunk of a container is known to be damaged.
pub(crate) fn is_damaged(tables: &Tables, home: ContainerId, n: usize) -> bool {
    tables.damaged.get(&home).is_some_and(|bits| is_condemned(bits, n))
}
