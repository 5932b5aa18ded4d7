//! Object stores.

pub(crate) mod directory;
#[cfg(feature = "s3")]
mod line;
pub(crate) mod memory;
#[cfg(feature = "s3")]
pub(crate) mod s3;
