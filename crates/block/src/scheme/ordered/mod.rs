//! Ordered writes (the rival that ThinDedup measures): the data, a flush, then the records in
//! place, and a flush.
//!
//! A record goes to the page of its address in the table of left-over records; several of a window
//! may share a page. What finds its page waiting for a flush, or full, goes into a block of
//! records, as changes of ranges and volumes do. The table is read back at recovery, and
//! checkpoints carry it into the structured tables as they do for every scheme.

use super::{Records, Scheme};

/// Ordered writes.
pub(crate) struct Ordered;

impl Scheme for Ordered {
    fn records(&self) -> Records {
        Records::AfterData
    }
}
