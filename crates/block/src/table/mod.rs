//! The structured tables: shadow-paged trees of 4 KiB pages.
//!
//! Every table is an array addressed by number (a logical block, a physical block, a zone, a
//! volume), cut into leaves; inner pages hold pointers to pages. A checkpoint writes changed pages
//! to new places, leaves first, so that the old tree stays whole until the superblock names the new
//! one.
//!
//! With a scheme that writes in place, the leaves of maps, references and fingerprints are not
//! shadow-paged: they change between checkpoints (`held.rs`). Checkpoints make them, and drop them.
//!
//! *Invariant:* any other page that a reachable root names is never overwritten.

pub(crate) mod held;
pub(crate) mod pages;
pub(crate) mod rebuild;

pub(crate) use pages::Pages;
pub(crate) use rebuild::{PageSpace, rebuild};
