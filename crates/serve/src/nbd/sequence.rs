//! Sequential readers: who asks for one range after the other will ask for the next one.
//!
//! *Invariant:* a pure decision, without threads or clocks: the [session](super::session) tells what
//! was asked for, and has read ahead what this wants.

use std::ops::Range;

use onefold_core::BLOCK_BYTES;

/// Requests in a row that make a sequential reader.
const IN_A_ROW: u32 = 3;
/// The same, at most, of a client that goes elsewhere again and again before it asked for what was
/// read ahead.
const IN_A_ROW_MOST: u32 = 48;
/// Blocks read ahead at first: 256 KiB.
const FIRST: u64 = 64;
/// Parts of the blocks read ahead: one that the client is being given, one that waits for it, and two
/// that are being read.
const PARTS: u64 = 4;
/// Requests for something else that come between without ending a row: a client may follow a file
/// and look at other places now and then.
const STRAYS: u32 = 8;

/// The row of requests of a connection.
pub(crate) struct Sequence {
    /// Where the row goes on, in bytes.
    next: u64,
    in_a_row: u32,
    strays: u32,
    /// Requests in a row that are enough.
    enough: u32,
    /// Blocks to have read ahead.
    window: u64,
    /// The most of it.
    most: u64,
    /// What was read ahead in this row.
    ahead: Range<u64>,
    /// Bytes that were read ahead, whose cost is counted, and which nobody has asked for.
    counted: u64,
}

impl Sequence {
    /// Before the first request; at most so many bytes are read ahead.
    pub(crate) fn new(most_bytes: usize) -> Sequence {
        Sequence {
            next: 0,
            in_a_row: 0,
            strays: 0,
            enough: IN_A_ROW,
            window: 0,
            most: (most_bytes / BLOCK_BYTES) as u64,
            ahead: 0..0,
            counted: 0,
        }
    }

    /// Blocks read ahead at most.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// The client asks for these bytes.
    pub(crate) fn asked(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        let ahead = self.ahead.start * BLOCK_BYTES as u64..self.ahead.end * BLOCK_BYTES as u64;
        if offset == self.next {
            (self.in_a_row, self.strays) = (self.in_a_row.saturating_add(1), 0);
            self.next = end;
            self.window = match self.in_a_row {
                row if row <= self.enough => FIRST,
                _ => self.window * 2,
            };
            self.window = self.window.min(self.most);
        } else if self.is_row() && ahead.contains(&offset) {
            // Requests under way may come in another order.
            self.next = self.next.max(end);
        } else if self.is_row() && self.strays < STRAYS {
            self.strays += 1;
        } else {
            self.begin(end);
        }
    }

    /// A row of one request begins.
    fn begin(&mut self, end: u64) {
        let (read, next) = (self.ahead.end - self.ahead.start, self.next / BLOCK_BYTES as u64);
        let in_vain = self.ahead.end.saturating_sub(next.max(self.ahead.start));
        if read > 0 {
            let more = (self.enough * 2).min(IN_A_ROW_MOST);
            self.enough = if in_vain * 2 > read { more } else { IN_A_ROW };
        }
        (self.next, self.in_a_row, self.strays, self.window) = (end, 1, 0, 0);
        self.ahead = 0..0;
    }

    fn is_row(&self) -> bool {
        self.in_a_row >= self.enough
    }

    /// True when the client is about to ask for what was read ahead.
    pub(crate) fn is_ahead(&self) -> bool {
        self.is_row() && self.ahead.end * BLOCK_BYTES as u64 > self.next
    }

    /// The blocks that are worth keeping: those which the client will ask for, or has asked for and
    /// was not given yet.
    pub(crate) fn coming(&self) -> Range<u64> {
        let next = self.next / BLOCK_BYTES as u64;
        next.saturating_sub(self.most)..self.ahead.end.max(next)
    }

    /// Blocks to be read ahead next, of a volume of `size` blocks.
    pub(crate) fn wants(&mut self, size: u64) -> Option<Range<u64>> {
        let next = self.next.div_ceil(BLOCK_BYTES as u64);
        if !self.is_row() || self.window == 0 {
            return None;
        }
        if self.ahead.end < next {
            self.ahead = next..next;
        }
        let part = (self.window / PARTS).max(1);
        let end = (self.ahead.end + part).min(size);
        (self.ahead.end < end && self.ahead.end + part <= next + self.window)
            .then_some(self.ahead.end..end)
    }

    /// So many blocks, wanted or asked for in advance, are being read; the row's are up to `end`.
    pub(crate) fn reads(&mut self, blocks: u64, end: Option<u64>) {
        self.counted += blocks * BLOCK_BYTES as u64;
        self.ahead.end = end.unwrap_or(self.ahead.end);
    }

    /// The bytes of a request whose cost is not counted yet.
    pub(crate) fn uncounted(&mut self, length: u64) -> u64 {
        let counted = self.counted.min(length);
        self.counted -= counted;
        length - counted
    }

    /// What was read ahead is gone.
    pub(crate) fn forget(&mut self) {
        (self.ahead, self.counted) = (0..0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;
    const SIZE: u64 = 1 << 20;

    /// Bytes that are read ahead after a request.
    fn ask(row: &mut Sequence, offset: u64, length: u64) -> u64 {
        row.asked(offset, length);
        let mut bytes = 0;
        while let Some(blocks) = row.wants(SIZE) {
            bytes += (blocks.end - blocks.start) * BLOCK_BYTES as u64;
            row.reads(blocks.end - blocks.start, Some(blocks.end));
        }
        bytes
    }

    #[test]
    fn from_the_third_request_on_ever_more_is_read_ahead_up_to_the_limit() {
        let mut row = Sequence::new(2 << 20);
        let read: Vec<u64> = (0..9).map(|n| ask(&mut row, n * 128 * K, 128 * K) / K).collect();
        assert_eq!(read[..3], [0, 0, 256]);
        let mut ahead = 0;
        for n in 3..9 {
            ahead = read[..=n].iter().sum::<u64>() - 128 * (n as u64 - 2);
            assert!(ahead <= 2048, "{read:?}");
        }
        assert!(ahead > 1500 && row.is_ahead(), "{read:?}");
    }

    #[test]
    fn random_reads_want_nothing_and_the_end_of_the_volume_is_the_end() {
        let mut row = Sequence::new(2 << 20);
        assert!((0..99).all(|n| ask(&mut row, (n * 7919) % 1000 * 64 * K, 4 * K) == 0));
        let mut last = Sequence::new(2 << 20);
        let begin = SIZE * 4 * K - 20 * 4 * K;
        let read: u64 = (0..20).map(|n| ask(&mut last, begin + n * 4 * K, 4 * K)).sum();
        assert_eq!(read, 17 * 4 * K);
    }

    #[test]
    fn who_leaves_again_and_again_needs_longer_rows_until_a_row_is_read_to_its_end() {
        let mut row = Sequence::new(2 << 20);
        let short_row = |row: &mut Sequence, begin: u64, requests: u64| {
            (0..requests).map(|n| ask(row, begin + n * 4 * K, 4 * K)).sum::<u64>()
        };
        let read: Vec<u64> = (1..40).map(|n| short_row(&mut row, n * 4096 * K, 14)).collect();
        assert!(read[0] > 0 && read[20..].iter().all(|read| *read == 0), "{read:?}");
        assert!(short_row(&mut row, 999 * 4096 * K, 500) > 0, "a long row is a row");
        short_row(&mut row, 5 * 4096 * K, STRAYS.into());
        short_row(&mut row, 7 * 4096 * K, 2);
        assert!(short_row(&mut row, 3 * 4096 * K, 4) > 0, "it was read to its end");
    }

    #[test]
    fn strays_and_another_order_do_not_end_a_row() {
        let mut row = Sequence::new(2 << 20);
        for n in 0..4 {
            ask(&mut row, n * 128 * K, 128 * K);
        }
        ask(&mut row, 1 << 30, 4 * K);
        ask(&mut row, 5 * 128 * K, 128 * K);
        ask(&mut row, 4 * 128 * K, 128 * K);
        assert!(ask(&mut row, 6 * 128 * K, 128 * K) > 0);
        for n in 0..=STRAYS {
            ask(&mut row, (1 << 30) + u64::from(n) * 8 * K, 4 * K);
        }
        assert!(!row.is_ahead());
    }

    #[test]
    fn what_was_read_ahead_is_counted_once() {
        let mut row = Sequence::new(2 << 20);
        row.reads(3, None);
        assert_eq!((row.uncounted(4096), row.uncounted(16384), row.uncounted(5)), (0, 8192, 5));
    }
}
