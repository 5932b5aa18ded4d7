//! Placement: which physical blocks new blocks get.

pub(crate) mod allocator;
mod longest;
pub(crate) mod zone_list;

pub(crate) use allocator::{Allocator, Extent, Lane, ZoneSource};
