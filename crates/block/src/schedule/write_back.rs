//! When changes that nobody waits for are flushed.

use std::time::Duration;

use super::FLUSH_EVERY;

/// Changes that were taken and are not durable yet.
#[derive(Clone, Copy, Debug)]
pub struct Unflushed {
    /// The newest change, and the newest durable one, by any numbers that grow with changes.
    pub newest: u64,
    /// See there.
    pub durable: u64,
    /// Blocks that are gathered or written but not flushed.
    pub blocks: usize,
    /// Most such blocks; clients wait when there are more.
    pub most: usize,
    /// A client waits for room.
    pub pressure: bool,
}

/// Decides when the writer flushes.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteBack {
    /// A change that is not durable, and when it was seen first.
    oldest: Option<(u64, Duration)>,
}

impl WriteBack {
    /// When the writer flushes next, if nothing else happens; none while everything is durable.
    pub fn next(&mut self, now: Duration, unflushed: &Unflushed) -> Option<Duration> {
        if unflushed.newest <= unflushed.durable {
            self.oldest = None;
            return None;
        }
        let (_, since) = *match &mut self.oldest {
            Some(seen) if unflushed.durable < seen.0 => seen,
            oldest => oldest.insert((unflushed.newest, now)),
        };
        let crowded =
            unflushed.pressure && unflushed.blocks > 0 || unflushed.blocks * 2 > unflushed.most;
        Some(if crowded { now } else { since + FLUSH_EVERY })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn unflushed(newest: u64, durable: u64) -> Unflushed {
        Unflushed { newest, durable, blocks: 1, most: 100, pressure: false }
    }

    #[test]
    fn a_change_is_flushed_a_second_after_it_was_seen() {
        let mut writer = WriteBack::default();
        assert_eq!(writer.next(S, &unflushed(0, 0)), None);
        assert_eq!(writer.next(S * 5, &unflushed(3, 0)), Some(S * 6));
        assert_eq!(writer.next(S * 5 + S / 2, &unflushed(4, 0)), Some(S * 6));
        // A client's flush covered the change that was seen; newer ones have their own second.
        assert_eq!(writer.next(S * 6, &unflushed(7, 5)), Some(S * 7));
    }

    #[test]
    fn pressure_and_half_the_limit_flush_at_once() {
        let mut writer = WriteBack::default();
        let waits = Unflushed { pressure: true, ..unflushed(1, 0) };
        assert_eq!(writer.next(S, &waits), Some(S));
        let many = Unflushed { blocks: 51, ..unflushed(1, 0) };
        assert_eq!(writer.next(S, &many), Some(S));
    }
}
