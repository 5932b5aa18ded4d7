//! When the place up to which a receive is durable is noted.

use std::{ops::Range, time::Duration};

/// Blocks after which the cursor rises usually: 64 MiB.
pub const CURSOR_BLOCKS: u64 = 16_384;

/// Time after which it does.
const CURSOR_TIME: Duration = Duration::from_secs(10);

/// Time after which it is tried again where too much waited: each try goes through all lost blocks.
const RETRY_TIME: Duration = Duration::from_millis(20);

/// Lost blocks that are noted at most: then the receive waits for its cursor to rise.
const LOST_MAX: u64 = 65_536;

/// How far a receive is.
pub struct Cursor {
    /// The end of the last frame.
    pub at: u64,
    /// The block up to which the cursor was noted last, and the time of that.
    noted: u64,
    since: Duration,
    /// Blocks after which it rises.
    every: u64,
    /// When it may rise again, after too much had waited.
    not_before: Duration,
    /// Blocks before the end of the last frame that are lost, and that no cursor has noted.
    pub lost: Vec<Range<u64>>,
    /// The number of these.
    lost_blocks: u64,
}

impl Cursor {
    /// One that was noted at this block and time.
    #[must_use]
    pub fn new(at: u64, now: Duration) -> Cursor {
        Cursor {
            at,
            noted: at,
            since: now,
            every: CURSOR_BLOCKS,
            not_before: now,
            lost: Vec::new(),
            lost_blocks: 0,
        }
    }

    /// The same that rises after so many blocks.
    #[must_use]
    pub fn every(self, blocks: u64) -> Cursor {
        Cursor { every: blocks, ..self }
    }

    /// True when frames came since it was noted.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.at > self.noted
    }

    /// Too much waits at this time: it is tried again a little later.
    pub fn put_off(&mut self, now: Duration) {
        self.not_before = now + RETRY_TIME;
    }

    /// True when it is time for it to rise.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        let late = now.saturating_sub(self.since) >= CURSOR_TIME;
        (late || self.at - self.noted >= self.every) && now >= self.not_before
    }

    /// True when no more lost blocks can be noted here.
    #[must_use]
    pub fn must_rise(&self) -> bool {
        self.lost_blocks >= LOST_MAX
    }

    /// Notes blocks that the sender could not read.
    pub fn lose(&mut self, blocks: Range<u64>) {
        self.lost_blocks += blocks.end - blocks.start;
        match self.lost.last_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ => self.lost.push(blocks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_that_was_refused_is_not_tried_with_each_frame() {
        let mut cursor = Cursor::new(100, Duration::ZERO);
        assert!(!cursor.is_due(Duration::ZERO) && cursor.is_due(CURSOR_TIME));
        cursor.at += CURSOR_BLOCKS;
        assert!(cursor.is_due(Duration::ZERO));
        cursor.not_before = RETRY_TIME;
        assert!(!cursor.is_due(RETRY_TIME / 2) && cursor.is_due(RETRY_TIME));
        // It must rise before it has to note more than fits.
        for lba in 0..LOST_MAX {
            assert!(!cursor.must_rise());
            cursor.lose(2 * lba..2 * lba + 1);
        }
        assert!(cursor.must_rise());
    }
}
