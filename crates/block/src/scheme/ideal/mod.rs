//! The ideal: deduplication without any metadata on the disk, which no real store can reach. It
//! loses everything at the first crash and is never served; the laboratory measures the others
//! against it.

use super::{Records, Scheme};

/// No metadata.
pub(crate) struct Ideal;

impl Scheme for Ideal {
    fn records(&self) -> Records {
        Records::Nowhere
    }
}
