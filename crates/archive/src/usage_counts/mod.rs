//! Usage counts (dedupv1 3.7): how often recipes and mappings name each chunk.

mod counting;
mod counts_file;
mod recount;
mod tree_nodes;

pub use self::recount::{CountsFound, Miscounted};
pub(crate) use self::{
    counting::{Counted, InMemory, weight},
    counts_file::{CountsReader, counts_number, highest_counts},
    tree_nodes::NodeChanges,
};
