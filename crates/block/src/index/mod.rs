//! The fingerprint index: a hint that leads from a fingerprint to physical blocks that may hold it.
//!
//! It is never believed: a candidate counts only when the fingerprint stored with the physical block agrees. It can be dropped at any
//! time and is rebuilt from the physical table.

mod memory;

pub(crate) use memory::MemoryIndex;
