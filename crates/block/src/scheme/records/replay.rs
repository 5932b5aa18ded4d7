//! What a recovery works for.
use super::arrange::Records;
use crate::scheme::verbs::Scheme;

/// What a recovery works for.
pub(crate) struct Replay<'a> {
    pub(crate) scheme: &'a dyn Scheme,
    pub(crate) records: &'a Records,
    /// Zones must be listed before blocks of theirs are written.
    pub(crate) lists_zones: bool,
}
