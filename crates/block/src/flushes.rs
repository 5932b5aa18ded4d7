//! The flushes of an open store: who waits for one, and which have begun and succeeded.

/// Flushes, numbered from 1 on in the order in which they begin.
#[derive(Default)]
pub(crate) struct Flushes {
    /// Something besides windows waits for one.
    wanted: bool,
    begun: u64,
    done: u64,
}

impl Flushes {
    /// Asks for a flush, and gives the number of the last one that began too early for what was
    /// written just now.
    pub(crate) fn want(&mut self) -> u64 {
        self.wanted = true;
        self.begun
    }

    /// True when something besides windows waits for a flush.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// The number of the last flush that began.
    pub(crate) fn last_begun(&self) -> u64 {
        self.begun
    }

    /// The number of the last flush that succeeded.
    pub(crate) fn last_done(&self) -> u64 {
        self.done
    }

    /// True when a flush succeeded that began after number `before`; asks for one otherwise.
    pub(crate) fn has_followed(&mut self, before: u64) -> bool {
        self.wanted |= self.done <= before;
        self.done > before
    }

    /// A flush begins for all who wait. Returns its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.wanted = false;
        self.begun += 1;
        self.begun
    }

    /// The flush with this number has succeeded.
    pub(crate) fn succeeded(&mut self, number: u64) {
        self.done = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_waits_for_a_flush_that_begins_later() {
        let mut flushes = Flushes::default();
        let running = flushes.begin();
        let written_after = flushes.want();
        flushes.succeeded(running);
        assert!(!flushes.has_followed(written_after), "that flush began before the write");
        assert!(flushes.is_wanted());
        let later = flushes.begin();
        flushes.succeeded(later);
        assert!(flushes.has_followed(written_after) && !flushes.is_wanted());
    }
}
