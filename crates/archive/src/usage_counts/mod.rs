//! Usage counts (dedupv1 3.7): how often recipes and mappings name each chunk.

mod changed_pages;
mod counting;
mod counts_file;
mod directory;
mod gone;
mod list;
mod memory_file;
mod names;
mod pages;
mod proof;
mod recount;
mod tree_nodes;

pub use self::recount::{CountsFound, Miscounted};
pub(crate) use self::{
    counting::{Counted, IfUnproven, InMemory, counts_refused, weight},
    counts_file::{CountsReader, files_of_counts},
    gone::is_gone,
    names::{counts_number, highest_counts},
    tree_nodes::NodeChanges,
};
