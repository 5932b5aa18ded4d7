//! Long work: a bar with rate and remaining time on a terminal, a plain line every few seconds in a
//! log, or a line of JSON each second for programs.

use std::{
    fs::File,
    io::{IsTerminal, Write},
    os::{fd::AsFd, unix::fs::FileTypeExt},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    failure::one_line,
    size::{Size, duration, grouped, share},
};

/// Time between plain lines, and before the first: short work says nothing. Later a tenth of the time
/// that the work has taken: a night's work has some ninety lines.
const LINE_EVERY: Duration = Duration::from_secs(5);
const LINE_SHARE: u32 = 10;
const LINE_MOST: Duration = Duration::from_secs(600);

/// The same for programs.
const JSON_EVERY: Duration = Duration::from_secs(1);

/// Whether programs read it.
static AS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on, work that begins is told as lines of JSON on standard error, one a second: `progress`
/// with `doing`, `done`, `total` (`null` when nobody knows it), `unit`, `per_second` and
/// `seconds_left`.
pub fn as_json() {
    AS_JSON.store(true, Relaxed);
}

/// Redraws of the bar in a second.
const DRAWS: u8 = 10;

/// How far a piece of work is, in bytes or in things. Any thread may tell.
pub struct Progress {
    begun: Instant,
    stage: Mutex<Stage>,
    shown: Shown,
    /// The unit that is counted, when it is not bytes.
    unit: Option<&'static str>,
}

/// The work that is being done, and since when.
struct Stage {
    what: String,
    begun: Instant,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Mutex<Instant>),
    Json(Mutex<Instant>),
    Nothing,
}

/// The bar while the end is known, and while it is not.
const KNOWN: &str = "{msg}  {wide_bar}  {bytes} of {total_bytes}  {bytes_per_sec}, {eta} left";
const UNKNOWN: &str = "{msg}  {spinner}  {bytes}  {bytes_per_sec}";

/// The same for things that are not bytes.
const KNOWN_THINGS: &str = "{msg}  {wide_bar}  {human_pos} of {human_len}  {per_sec}, {eta} left";
const UNKNOWN_THINGS: &str = "{msg}  {spinner}  {human_pos}  {per_sec}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Progress {
    /// Work called `what`, like «writing zeroes», shown on standard error.
    pub fn new(what: impl Into<String>) -> Progress {
        Progress::counting(what, None)
    }

    /// The same in things of this name, like «requests».
    pub fn of(what: impl Into<String>, unit: &'static str) -> Progress {
        Progress::counting(what, Some(unit))
    }

    /// The same for a verb that answers line by line, by [`beside`](Self::beside). Where a program takes the
    /// lines from a pipe, like a pager, it has the terminal, and there is no bar.
    pub fn of_lines(what: impl Into<String>, unit: &'static str) -> Progress {
        let mut progress = Progress::of(what, unit);
        if matches!(progress.shown, Shown::Bar(_)) && is_pipe(&std::io::stdout()) {
            progress.shown = Shown::Nothing;
        }
        progress
    }

    fn counting(what: impl Into<String>, unit: Option<&'static str>) -> Progress {
        let (what, begun) = (what.into(), Instant::now());
        let shown = if AS_JSON.load(Relaxed) {
            Shown::Json(Mutex::new(begun))
        } else if std::io::stderr().is_terminal() {
            let bar =
                ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(DRAWS))
                    .with_message(what.clone());
            bar.set_style(style(if unit.is_none() { UNKNOWN } else { UNKNOWN_THINGS }));
            Shown::Bar(bar)
        } else {
            Shown::Lines(Mutex::new(begun))
        };
        Progress { begun, stage: Mutex::new(Stage { what, begun }), shown, unit }
    }

    /// From now on it is `what` that is being done, with its own rate.
    pub fn stage(&self, what: &str) {
        let what = &*one_line(what);
        let mut stage = self.stage.lock();
        if stage.what == what {
            return;
        }
        *stage = Stage { what: what.to_owned(), begun: Instant::now() };
        if let Shown::Bar(bar) = &self.shown {
            bar.set_message(what.to_owned());
            bar.reset();
        }
    }

    /// The same work, and something to say about it.
    pub fn note(&self, what: &str) {
        let what = &*one_line(what);
        what.clone_into(&mut self.stage.lock().what);
        if let Shown::Bar(bar) = &self.shown {
            bar.set_message(what.to_owned());
        }
    }

    /// `done` of `total` are done; nobody knows how many there are when `total` is 0.
    pub fn set(&self, done: u64, total: u64) {
        match &self.shown {
            Shown::Bar(bar) => {
                let known = (total > 0).then_some(total);
                if bar.length() != known {
                    bar.set_style(style(match (known.is_some(), self.unit.is_some()) {
                        (true, false) => KNOWN,
                        (false, false) => UNKNOWN,
                        (true, true) => KNOWN_THINGS,
                        (false, true) => UNKNOWN_THINGS,
                    }));
                    known.map_or_else(|| bar.unset_length(), |total| bar.set_length(total));
                }
                bar.set_position(if total > 0 { done.min(total) } else { done });
            }
            Shown::Lines(said) if is_time(said, self.between_lines()) => {
                let _ = writeln!(std::io::stderr(), "{}", self.line(done, total));
            }
            Shown::Json(said) if is_time(said, JSON_EVERY) => {
                let _ = writeln!(std::io::stderr(), "{}", self.json(done, total));
            }
            Shown::Lines(_) | Shown::Json(_) | Shown::Nothing => {}
        }
    }

    /// Prints lines of a verb's answer while the work goes on. On a terminal the bar gives way to them.
    pub fn beside(&self, print: impl FnOnce()) {
        match &self.shown {
            Shown::Bar(bar) if std::io::stdout().is_terminal() => bar.suspend(print),
            _ => print(),
        }
    }

    fn between_lines(&self) -> Duration {
        (self.begun.elapsed() / LINE_SHARE).clamp(LINE_EVERY, LINE_MOST)
    }

    fn json(&self, done: u64, total: u64) -> Value {
        let stage = self.stage.lock();
        let seconds = stage.begun.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
        let left = (total > 0 && rate > 0.0)
            .then(|| (total.saturating_sub(done) as f64 / rate).round() as u64);
        json!({ "progress": {
            "doing": stage.what,
            "done": done,
            "total": (total > 0).then_some(total),
            "unit": self.unit.unwrap_or("bytes"),
            "per_second": rate.round() as u64,
            "seconds_left": left,
        }})
    }

    fn line(&self, done: u64, total: u64) -> String {
        let stage = self.stage.lock();
        let seconds = stage.begun.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
        let amount = |n: u64| {
            self.unit.map_or_else(|| Size(n).to_string(), |unit| format!("{} {unit}", grouped(n)))
        };
        if total == 0 {
            return format!("{}: {}, {}/s", stage.what, amount(done), amount(rate as u64));
        }
        let left = if rate > 0.0 {
            duration((total.saturating_sub(done) as f64 / rate) as u64)
        } else {
            "unknown time".to_owned()
        };
        let (rate, done_of) = (
            amount(rate as u64),
            self.unit.map_or_else(|| Size(done).to_string(), |_| grouped(done)),
        );
        format!(
            "{}: {done_of} of {} ({}), {rate}/s, {left} left",
            stage.what,
            amount(total),
            share(done, total)
        )
    }
}

fn is_pipe(output: &impl AsFd) -> bool {
    let file = output.as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|file| file.metadata()).is_ok_and(|told| told.file_type().is_fifo())
}

/// True when so long has passed since the last line; the next one is counted from now.
fn is_time(said: &Mutex<Instant>, every: Duration) -> bool {
    let mut said = said.lock();
    let is_time = said.elapsed() >= every;
    if is_time {
        *said = Instant::now();
    }
    is_time
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
        let stage = Stage { what: "checking".into(), begun };
        let mut progress = Progress {
            begun,
            stage: Mutex::new(stage),
            shown: Shown::Lines(Mutex::new(begun)),
            unit: None,
        };
        let line = progress.line(1 << 30, 4 << 30);
        assert!(line.starts_with("checking: 1.00 GiB of 4.00 GiB (25 %), 102 MiB/s, "), "{line}");
        assert!(progress.line(0, 10).ends_with("unknown time left"));
        assert!(progress.line(1 << 30, 0).starts_with("checking: 1.00 GiB, 102 MiB/s"));
        progress.unit = Some("requests");
        let line = progress.line(25_000, 100_000);
        assert!(
            line.starts_with("checking: 25,000 of 100,000 requests (25 %), 2,5")
                || line.starts_with("checking: 25,000 of 100,000 requests (25 %), 2,4"),
            "{line}"
        );
        let told = progress.json(25_000, 100_000);
        assert_eq!(told["progress"]["doing"], "checking");
        assert_eq!(told["progress"]["unit"], "requests");
        assert!((29..=30).contains(&told["progress"]["seconds_left"].as_u64().unwrap()), "{told}");
        assert!(progress.json(25_000, 0)["progress"]["seconds_left"].is_null());
        progress.unit = None;
        progress.stage("mending");
        assert!(progress.line(0, 0).starts_with("mending: 0 bytes, "));
        Progress::new("in a test there is no terminal").set(1, 2);
    }
}
