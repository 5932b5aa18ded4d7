//! The state of a recovery.
use super::arrange::Records;
use crate::scheme::verbs::Scheme;

/// The state of a recovery.
pub(crate) struct Replay<'a> {
    pub(crate) scheme: &'a dyn Scheme,
    pub(crate) records: &'a Records,
    /// Zones must be listed before blocks of theirs are written.
    pub(crate) lists_zones: bool,
}
