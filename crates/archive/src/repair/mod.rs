//! Making whole what was damaged.

pub mod lost_chunks;
