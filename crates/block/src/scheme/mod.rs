//! Metadata schemes: how the records of a window reach the disk.

pub(crate) mod thin;
