//! Placement: which physical blocks new blocks get.

mod account;
mod active_zone;
pub(crate) mod allocator;
mod data_zones;
mod idle_zones;
mod longest;
mod page_zones;
mod releases;
mod releasing;
pub(crate) mod zone_list;

pub(crate) use active_zone::Extent;
pub(crate) use allocator::Allocator;
pub(crate) use data_zones::Lane;
pub(crate) use idle_zones::ZoneSource;
pub(crate) use releases::Releases;
