//! Long work: a bar with rate and remaining time on a terminal, a plain line every few seconds in a log.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use crate::size::{Size, duration, share};

/// Time between plain lines, and before the first: short work says nothing.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Redraws of the bar in a second.
const DRAWS: u8 = 10;

/// How far a piece of work is, in bytes. Any thread may tell.
pub(crate) struct Progress {
    what: String,
    begun: Instant,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Mutex<Instant>),
}

impl Progress {
    /// Work called `what`, like «writing zeroes», shown on standard error.
    pub(crate) fn new(what: impl Into<String>) -> Progress {
        let (what, begun) = (what.into(), Instant::now());
        if !std::io::stderr().is_terminal() {
            return Progress { what, begun, shown: Shown::Lines(Mutex::new(begun)) };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(DRAWS)).with_message(what.clone());
        let template = "{msg}  {wide_bar}  {bytes} of {total_bytes}  {bytes_per_sec}, {eta} left";
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { what, begun, shown: Shown::Bar(bar) }
    }

    /// `done` of `total` bytes are done.
    pub(crate) fn set(&self, done: u64, total: u64) {
        match &self.shown {
            Shown::Bar(bar) => {
                if bar.length() != Some(total) {
                    bar.set_length(total);
                }
                bar.set_position(done.min(total));
            }
            Shown::Lines(said) => {
                let mut said = said.lock();
                if said.elapsed() >= LINE_EVERY {
                    *said = Instant::now();
                    let _ = writeln!(std::io::stderr(), "{}", self.line(done, total));
                }
            }
        }
    }

    fn line(&self, done: u64, total: u64) -> String {
        let seconds = self.begun.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
        let left = if rate > 0.0 { duration((total.saturating_sub(done) as f64 / rate) as u64) } else { "unknown time".to_owned() };
        let (what, rate) = (&self.what, Size(rate as u64));
        format!("{what}: {} of {} ({}), {rate}/s, {left} left", Size(done), Size(total), share(done, total))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long() {
        let begun = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let progress = Progress { what: "checking".into(), begun, shown: Shown::Lines(Mutex::new(begun)) };
        let line = progress.line(1 << 30, 4 << 30);
        assert!(line.starts_with("checking: 1.00 GiB of 4.00 GiB (25 %), 102 MiB/s, "), "{line}");
        assert!(progress.line(0, 0).ends_with("unknown time left"));
    }
}
