//! Memory for the buffers of all connections together.
//!
//! Every connection is sure of small buffers, with which it can do everything. Larger ones, which make large requests faster, come out of what is
//! left. Nobody waits for it: a connection that gets none goes on with what it has, so clients can't keep each other waiting.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::limits::Limits;

/// What is left for larger buffers.
pub(crate) struct Buffers(AtomicUsize);

/// What a connection got of it, until it ends.
pub(crate) struct Loan<'a> {
    of: &'a Buffers,
    bytes: usize,
}

impl Buffers {
    /// All that `limits` allow beyond what connections are sure of.
    pub(crate) fn new(limits: &Limits) -> Buffers {
        Buffers(AtomicUsize::new(limits.buffer_bytes.saturating_sub(limits.connections * limits.sure_bytes())))
    }

    /// Nothing, at first.
    pub(crate) fn loan(&self) -> Loan<'_> {
        Loan { of: self, bytes: 0 }
    }
}

impl Loan<'_> {
    /// Takes so many bytes more; false when they are not left.
    pub(crate) fn more(&mut self, bytes: usize) -> bool {
        let taken = self.of.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.of.0.fetch_add(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_comes_back_and_nothing_is_lent_twice() {
        let limits = Limits { connections: 2, ..Limits::default() };
        let limits = Limits { buffer_bytes: 2 * limits.sure_bytes() + 100, ..limits };
        let buffers = Buffers::new(&limits);
        let (mut one, mut other) = (buffers.loan(), buffers.loan());
        assert!(one.more(60) && !other.more(41) && other.more(40) && !one.more(1));
        drop(one);
        assert!(other.more(60) && !other.more(1));
        assert!(!Buffers::new(&Limits { connections: 1 << 20, ..limits }).loan().more(1), "all of it is promised");
    }
}
