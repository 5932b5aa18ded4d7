//! Late encoding by reference counts (RAD): what stood replicated is sorted into classes.

mod late_encoding;

pub(crate) use self::late_encoding::{LateEncoding, changed};
