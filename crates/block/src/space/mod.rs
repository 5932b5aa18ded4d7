//! Placement: which physical blocks new blocks get.

pub(crate) mod allocator;
mod longest;
mod releases;
pub(crate) mod zone_list;

pub(crate) use allocator::{Allocator, Extent, Lane, ZoneSource};
pub(crate) use releases::Releases;
