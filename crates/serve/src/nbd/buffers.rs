//! Memory for the buffers of all connections together.
//!
//! Every connection has a small buffer, with which it waits for its client. One that works has a
//! working place, and buffers that are enough for every request. Larger buffers, which make large
//! requests faster, come from the remaining memory. No connection waits for this memory: one that
//! gets none works with the buffers that it has, so clients can't block each other.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::limits::Limits;

/// The memory that remains for larger buffers.
pub(crate) struct Buffers {
    left: AtomicUsize,
    /// The memory at the start.
    all: usize,
    /// Peers that are there now; with more than one, none gets more than half.
    pub(crate) peers: AtomicUsize,
}

/// The memory lent to the connections of one peer, or of one volume of a peer.
#[derive(Default)]
pub(crate) struct Share {
    bytes: AtomicUsize,
    /// The volumes that a peer has open now; with more than one, none gets more than half of what
    /// the peer may have.
    pub(crate) volumes: AtomicUsize,
}

/// Whom buffers are lent to.
#[derive(Clone, Copy)]
pub(crate) struct Borrower<'a> {
    pub(crate) peer: &'a Share,
    pub(crate) volume: &'a Share,
}

/// The memory lent to a connection, until the connection ends.
pub(crate) struct Loan<'a> {
    of: &'a Buffers,
    to: Borrower<'a>,
    bytes: usize,
}

impl Buffers {
    /// All that `limits` allow beyond what connections are sure of.
    pub(crate) fn new(limits: &Limits) -> Buffers {
        let all = limits.buffer_bytes.saturating_sub(limits.needed_bytes());
        Buffers { left: AtomicUsize::new(all), all, peers: AtomicUsize::new(1) }
    }

    /// Nothing, at first.
    pub(crate) fn loan<'a>(&'a self, to: Borrower<'a>) -> Loan<'a> {
        Loan { of: self, to, bytes: 0 }
    }

    /// The most memory that one peer, and one of its volumes, may have.
    fn most(&self, peer: &Share) -> (usize, usize) {
        let of_peer = if self.peers.load(Relaxed) > 1 { self.all / 2 } else { self.all };
        (of_peer, if peer.volumes.load(Relaxed) > 1 { of_peer / 2 } else { of_peer })
    }
}

impl Share {
    /// Borrows bytes, up to `most`.
    fn take(&self, bytes: usize, most: usize) -> bool {
        let add = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= most);
        self.bytes.fetch_update(Relaxed, Relaxed, add).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

impl Loan<'_> {
    /// Borrows so many bytes more; false when there are too few left.
    pub(crate) fn more(&mut self, bytes: usize) -> bool {
        let (of_peer, of_volume) = self.of.most(self.to.peer);
        if !self.to.peer.take(bytes, of_peer) {
            return false;
        }
        if !self.to.volume.take(bytes, of_volume) {
            self.to.peer.give(bytes);
            return false;
        }
        let taken =
            self.of.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok();
        self.bytes += bytes;
        if !taken {
            self.bytes -= bytes;
            self.to.peer.give(bytes);
            self.to.volume.give(bytes);
        }
        taken
    }

    /// Borrows so many bytes in all, or gives back what is more; false, having done nothing, when
    /// there are too few left.
    pub(crate) fn keep(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes {
            return self.more(bytes - self.bytes);
        }
        let back = std::mem::replace(&mut self.bytes, bytes) - bytes;
        self.of.left.fetch_add(back, Relaxed);
        self.to.peer.give(back);
        self.to.volume.give(back);
        true
    }

    /// True when peer or volume have more than they may beside others: they got it while nobody
    /// else was there.
    pub(crate) fn is_too_much(&self) -> bool {
        let (of_peer, of_volume) = self.of.most(self.to.peer);
        self.bytes > 0
            && (self.to.peer.bytes.load(Relaxed) > of_peer
                || self.to.volume.bytes.load(Relaxed) > of_volume)
    }

    /// Gives all of it back.
    pub(crate) fn give_back(&mut self) {
        self.keep(0);
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `bytes` to lend.
    fn buffers(bytes: usize) -> Buffers {
        let limits = Limits { connections: 2, places: 2, ..Limits::default() };
        Buffers::new(&Limits { buffer_bytes: limits.needed_bytes() + bytes, ..limits })
    }

    #[test]
    fn what_is_lent_comes_back_and_nothing_is_lent_twice() {
        let (buffers, share) = (buffers(100), [Share::default(), Share::default()]);
        let to = Borrower { peer: &share[0], volume: &share[1] };
        let (mut one, mut other) = (buffers.loan(to), buffers.loan(to));
        assert!(one.more(60) && !other.more(41) && other.more(40) && !one.more(1));
        drop(one);
        assert!(other.more(60) && !other.more(1));
        other.give_back();
        assert!(other.more(100));
        assert!(
            !Buffers::new(&Limits { connections: 1 << 20, ..Limits::default() }).loan(to).more(1),
            "all of it is promised"
        );
    }

    #[test]
    fn rule_12_neither_peer_nor_volume_gets_more_than_half_beside_another() {
        let (buffers, share) = (buffers(100), [(); 5].map(|()| Share::default()));
        let [here, first, second, there, third] = &share;
        let to = |peer, volume| Borrower { peer, volume };
        let mut early = buffers.loan(to(here, first));
        assert!(early.more(80) && !early.is_too_much());
        buffers.peers.store(2, Relaxed);
        assert!(early.is_too_much(), "somebody else has come");
        early.give_back();
        let (mut one, mut more, mut other) = (
            buffers.loan(to(here, first)),
            buffers.loan(to(here, first)),
            buffers.loan(to(there, third)),
        );
        assert!(
            one.more(40) && !more.more(11) && more.more(10) && other.more(50) && !other.more(1)
        );
        drop(one);
        assert!(!other.more(1) && more.more(40));
        more.give_back();
        here.volumes.store(2, Relaxed);
        let mut beside = buffers.loan(to(here, second));
        assert!(!more.more(26) && more.more(25) && !beside.more(26) && beside.more(25));
    }
}
