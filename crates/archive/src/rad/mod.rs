//! Late encoding by reference counts (RAD): what stood replicated is sorted into classes.

#[cfg(feature = "planted-bugs")]
mod broken;
mod late_encoding;

pub(crate) use self::late_encoding::{LateEncoding, changed};
