//! Steps that break a rule; only the simulator runs them.

use onefold_core::Pba;

use crate::format::{
    carrier::{Carrier, Header},
    record::Record,
};

/// Breaks `CarriersProven`: the header and records of a block that looks like a carrier.
pub(super) fn unproven(shape: &Carrier<'_>, at: Pba) -> (Header, Vec<Record>) {
    (Header { address: at, ..shape.header }, shape.records().flatten().collect())
}
