//! Waiting for another process that stores into an archive.
//!
//! A put or a backup is waited for until it ends, or for the time of `--wait`. A server takes what is
//! to be stored, so that it is waited for only until its control socket is there: one that has it
//! elsewhere would be waited for as long as it runs.

use std::time::{Duration, Instant};

use clap::Args;
use onefold::parts::{
    archive_dir::{ArchiveDir, UnseenServer},
    operator::warn,
};
use onefold_backend::last_act::LastAct;
use onefold_console::size::duration;
use onefold_core::{Error, Kind, Result};

/// Time between two tries.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// Time between two looks at who it is.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a server may take to begin or to end.
const UNSEEN_MOST: Duration = Duration::from_secs(60);

/// Said when a signal ends the wait.
const ENDED: &str =
    "onefold: it was ended by a signal while it waited for another process: nothing is stored";

/// How long it is waited for.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Patience {
    /// Fails when another process stores into the archive, as a put or a backup does, instead of
    /// waiting for it
    #[arg(long)]
    no_wait: bool,

    /// Waits at most so long, like 30m, for another process that stores into the archive. Without it, a
    /// put or a backup is waited for until it ends, and for a minute a server that takes no commands
    /// where this looks for it
    #[arg(
        long,
        value_name = "TIME",
        value_parser = humantime::parse_duration,
        conflicts_with = "no_wait"
    )]
    wait: Option<Duration>,
}

impl Patience {
    /// True when something was said about it.
    pub(super) fn is_given(&self) -> bool {
        self.no_wait || self.wait.is_some()
    }
}

/// Another process stores into the archive.
enum Other {
    /// A server that can't be asked to store it.
    Server(UnseenServer),
    /// A put or a backup, or a server that is about to begin.
    Put(Option<(u32, String)>),
}

impl Other {
    fn of(directory: &ArchiveDir) -> Result<Other> {
        let writers = directory.writers();
        let server = directory.unseen_server()?;
        // A server may itself wait for a put. Processes of other containers are not seen.
        let has_it = |server: &UnseenServer| {
            writers.is_empty() || writers.iter().any(|(pid, _)| *pid == server.pid)
        };
        Ok(match server.filter(has_it) {
            Some(server) => Other::Server(server),
            None => Other::Put(writers.into_iter().next()),
        })
    }

    /// The fact, as a sentence without its end.
    fn told(&self) -> String {
        match self {
            Other::Server(server) => server.to_string(),
            Other::Put(who) => storing(who.as_ref()),
        }
    }

    /// The help for it.
    fn advice(&self) -> &'static str {
        match self {
            Other::Server(_) => {
                "; if it was started with --control DIR, say the same here, or else stop it"
            }
            Other::Put(_) => "",
        }
    }
}

/// A process that stores, as a sentence without its end.
pub(super) fn storing(who: Option<&(u32, String)>) -> String {
    let who = who.map(|(pid, command)| format!(" ({command}, process {pid})")).unwrap_or_default();
    format!("another process stores into the archive{who}")
}

/// The wait of one put or backup.
pub(super) struct Waiting<'a> {
    directory: &'a ArchiveDir,
    patience: Patience,
    begun: Instant,
    looked: Option<(Instant, Other)>,
    /// Since when it is a server.
    server_since: Option<Instant>,
    told: String,
    /// The end by a signal is told from the first moment that passes until this is dropped.
    last: Option<LastAct>,
}

impl Waiting<'_> {
    pub(super) fn new(directory: &ArchiveDir, patience: Patience) -> Waiting<'_> {
        let (begun, told) = (Instant::now(), String::new());
        Waiting { directory, patience, begun, looked: None, server_since: None, told, last: None }
    }

    /// Lets a moment pass, and says once who is waited for.
    ///
    /// # Errors
    /// `Busy` when it was waited for long enough; the error of looking at the archive.
    pub(super) fn go_on(&mut self) -> Result<()> {
        self.last.get_or_insert_with(|| LastAct::of_words(ENDED));
        let now = Instant::now();
        let other = match self.looked.take() {
            Some((at, other)) if now.duration_since(at) < LOOK_EVERY => {
                self.looked.insert((at, other))
            }
            _ => self.looked.insert((now, Other::of(self.directory)?)),
        };
        let other = &other.1;
        let is_server = matches!(other, Other::Server(_));
        self.server_since = is_server.then(|| self.server_since.unwrap_or(now));
        let by_server = self.server_since.map(|since| now.duration_since(since));
        if let Some(waited) = over(self.patience, now.duration_since(self.begun), by_server) {
            let (told, advice) = (other.told(), other.advice());
            let still = match waited {
                Duration::ZERO => String::new(),
                time => format!(", still after {}", duration(time.as_secs())),
            };
            return Err(Error::new(
                Kind::Busy,
                format!("{told}{still}: nothing is stored{advice}"),
            ));
        }
        let until = match self.patience.wait.or(is_server.then_some(UNSEEN_MOST)) {
            Some(most) => format!("for at most {}", duration(most.as_secs())),
            None => "to end (--no-wait does not)".to_owned(),
        };
        let told = format!("{}: waiting for it {until}{}", other.told(), other.advice());
        if told != self.told {
            warn(&told);
            self.told = told;
        }
        std::thread::sleep(TRY_EVERY);
        Ok(())
    }
}

/// The time that is over, if it is: after so long in all, and so long for a server.
fn over(patience: Patience, waited: Duration, by_server: Option<Duration>) -> Option<Duration> {
    match (patience.no_wait, patience.wait) {
        (true, _) => Some(Duration::ZERO),
        (false, Some(most)) => (waited >= most).then_some(most),
        (false, None) => by_server.is_some_and(|time| time >= UNSEEN_MOST).then_some(UNSEEN_MOST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_waited_for_without_end_and_a_server_out_of_sight_for_a_minute() {
        let day = Duration::from_secs(86_400);
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let usual = Patience { no_wait: false, wait: None };
        assert_eq!(over(usual, day, None), None);
        assert_eq!(over(usual, day, Some(second)), None, "the server began just now");
        assert_eq!(over(usual, minute, Some(minute)), Some(minute));
        let short = Patience { wait: Some(second), ..usual };
        assert_eq!(over(short, Duration::ZERO, None), None);
        assert_eq!(over(short, second, None), Some(second));
        let none = Patience { no_wait: true, ..usual };
        assert_eq!(over(none, Duration::ZERO, None), Some(Duration::ZERO));
    }
}
