//! Memory for the buffers of all connections together.
//!
//! Every connection is sure of small buffers, with which it can do everything. Larger ones, which make large requests faster, come out of what is
//! left. Nobody waits for it: a connection that gets none goes on with what it has, so clients can't keep each other waiting.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::limits::Limits;

/// What is left for larger buffers.
pub(crate) struct Buffers {
    left: AtomicUsize,
    /// All that there is.
    all: usize,
    /// Peers that are there now; with more than one, none gets more than half.
    pub(crate) peers: AtomicUsize,
}

/// What the connections of one peer have of it.
#[derive(Default)]
pub(crate) struct Share(AtomicUsize);

/// What a connection got of it, until it ends.
pub(crate) struct Loan<'a> {
    of: &'a Buffers,
    share: &'a Share,
    bytes: usize,
}

impl Buffers {
    /// All that `limits` allow beyond what connections are sure of.
    pub(crate) fn new(limits: &Limits) -> Buffers {
        let all = limits.buffer_bytes.saturating_sub(limits.connections * limits.sure_bytes());
        Buffers { left: AtomicUsize::new(all), all, peers: AtomicUsize::new(1) }
    }

    /// Nothing, at first.
    pub(crate) fn loan<'a>(&'a self, share: &'a Share) -> Loan<'a> {
        Loan { of: self, share, bytes: 0 }
    }

    /// What one peer may have.
    fn most(&self) -> usize {
        if self.peers.load(Relaxed) > 1 { self.all / 2 } else { self.all }
    }
}

impl Loan<'_> {
    /// Takes so many bytes more; false when they are not left.
    pub(crate) fn more(&mut self, bytes: usize) -> bool {
        let most = self.of.most();
        let add = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= most);
        if self.share.0.fetch_update(Relaxed, Relaxed, add).is_err() {
            return false;
        }
        let taken = self.of.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok();
        match taken {
            true => self.bytes += bytes,
            false => drop(self.share.0.fetch_sub(bytes, Relaxed)),
        }
        taken
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.of.left.fetch_add(self.bytes, Relaxed);
        self.share.0.fetch_sub(self.bytes, Relaxed);
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
        let share = Share::default();
        let (mut one, mut other) = (buffers.loan(&share), buffers.loan(&share));
        assert!(one.more(60) && !other.more(41) && other.more(40) && !one.more(1));
        drop(one);
        assert!(other.more(60) && !other.more(1));
        assert!(!Buffers::new(&Limits { connections: 1 << 20, ..limits }).loan(&share).more(1), "all of it is promised");
    }

    #[test]
    fn rule_12_none_of_two_peers_gets_more_than_half() {
        let limits = Limits { connections: 2, ..Limits::default() };
        let buffers = Buffers::new(&Limits { buffer_bytes: 2 * limits.sure_bytes() + 100, ..limits });
        let (here, there) = (Share::default(), Share::default());
        buffers.peers.store(2, Relaxed);
        let (mut one, mut more, mut other) = (buffers.loan(&here), buffers.loan(&here), buffers.loan(&there));
        assert!(one.more(40) && !more.more(11) && more.more(10) && other.more(50) && !other.more(1));
        drop(one);
        assert!(!other.more(1) && more.more(40));
    }
}
