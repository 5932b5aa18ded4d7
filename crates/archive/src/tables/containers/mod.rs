//! The container table: a directory of leaves in memory, and leaves that are read when they are
//! looked at.
//!
//! The directory is a [persistent map](super::persistent) of leaves by the first number of each, so
//! that a clone is one pointer. A leaf that lies on the disk has its place; a leaf that changed has
//! its entries, until a checkpoint gives it a place. One that was written ahead of a checkpoint has
//! both, since others may write over its pages until a snapshot names them. In archives whose leaves
//! are not read on demand, and in those without leaves, all entries are in memory.
//!
//! *Invariant:* a leaf without entries in memory has a place. Each change of its entries takes the
//! place away, so that no change is only in the cache of leaves.
//!
//! *Invariant:* the number beside a leaf is not above its first one, and above all numbers of the leaf
//! before.
//!
//! | module | what |
//! |---|---|
//! | [`table`] | the table, and look-ups |
//! | [`changes`] | containers put in, changed, and taken out |
//! | [`checkpoints`] | leaves that get places, and leave memory when a snapshot names them |
//! | [`store`], [`cache`] | leaves read from the disk, and those of them that are kept |

#[cfg(feature = "planted-bugs")]
mod broken;
mod cache;
mod changes;
mod checkpoints;
mod store;
mod table;

pub use self::table::{Containers, Found, Iter};
pub(crate) use self::{cache::Entries, checkpoints::NamedLeaf, store::LeafStore};
