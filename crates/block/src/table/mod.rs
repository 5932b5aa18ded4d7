//! The structured tables: shadow-paged trees of 4 KiB pages.
//!
//! Every table is an array addressed by number (a logical block, a physical block, a zone, a volume), cut into leaves; inner pages hold
//! pointers to pages. A checkpoint writes changed pages to new places, leaves first, so that the old tree stays whole until the
//! superblock names the new one.
//!
//! *Invariant:* a page that a reachable root names is never overwritten.

pub(crate) mod pages;
pub(crate) mod rebuild;

pub(crate) use pages::Pages;
pub(crate) use rebuild::{PageSpace, rebuild};
