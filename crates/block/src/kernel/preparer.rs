//! What preparing keeps between windows.

use onefold_core::compress::Lz4;

use crate::{format::record::WindowNumber, scheme::leftover_table::LeftoverTable};

/// What preparing keeps between windows.
#[derive(Default)]
pub(crate) struct Preparer {
    pub(crate) lz4: Lz4,
    pub(crate) leftover: LeftoverTable,
    /// The last window that had carriers.
    pub(crate) carriers_through: WindowNumber,
}
