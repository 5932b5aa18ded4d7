//! Object stores.

pub(crate) mod directory;
pub(crate) mod memory;
#[cfg(feature = "s3")]
mod line;
#[cfg(feature = "s3")]
pub(crate) mod s3;
