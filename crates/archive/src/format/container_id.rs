//! Numbers of containers.

use std::fmt;

/// Number of a container, 40 bits; never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ContainerId(pub u64);

impl ContainerId {
    /// Numbers end here: 40 bits.
    pub const END: u64 = 1 << 40;
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContainerId({})", self.0)
    }
}
