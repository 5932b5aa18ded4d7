//! Copy-on-write trees (Dmdedup): each window is a transaction of its own.
//!
//! The window's data goes out, then the changed pages of all tables to new places, then the
//! superblock that names them, each behind a flush: a checkpoint for every window. There is nothing
//! to replay after a crash.

use super::{Records, Scheme};

/// Copy-on-write trees.
pub(crate) struct Cow;

impl Scheme for Cow {
    fn records(&self) -> Records {
        Records::ByCheckpoint
    }
}
