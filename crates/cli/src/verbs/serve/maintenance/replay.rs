//! Background replay of a served archive: its portions, one behind the other, while nobody asks for
//! anything.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_archive::{Archive, BackgroundReplay, Ingest, Pace};
use onefold_core::Kind;
use parking_lot::Mutex;

use super::gate::Gate;
use crate::report::archive::ReplayLine;
use onefold::parts::archive_dir::now;

/// How long a portion waits for clients while it holds what other processes may need.
const PATIENCE: Duration = Duration::from_secs(30);

/// Until it is looked again whether something is due, when nothing changed.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The portions of a server, and what it tells of them.
pub(super) struct Replay {
    archive: Arc<Archive>,
    replay: BackgroundReplay,
    gate: Arc<Gate>,
    told: Arc<Mutex<ReplayLine>>,
    /// The last change of the archive for which nothing was due, and when that was found.
    nothing_since: Option<(u64, Instant)>,
}

impl Replay {
    pub(super) fn new(ingest: &Arc<Ingest>, archive: &Arc<Archive>, gate: &Arc<Gate>) -> Replay {
        let asked = gate.clone();
        let pace = Pace::new(move |bytes| asked.pass_within(bytes, PATIENCE));
        let told = ReplayLine { idle_seconds: gate.idle_seconds(), ..ReplayLine::default() };
        Replay {
            archive: archive.clone(),
            replay: BackgroundReplay::new(ingest, now(), pace),
            gate: gate.clone(),
            told: Arc::new(Mutex::new(told)),
            nothing_since: None,
        }
    }

    /// What it tells of itself.
    pub(super) fn told(&self) -> Arc<Mutex<ReplayLine>> {
        self.told.clone()
    }

    /// Does all that is due, as long as no client comes.
    pub(super) fn run(&mut self) {
        while self.gate.is_open() && !self.gate.has_ended() && self.portion() {}
        self.tell(None);
    }

    /// Tells what is done, and what is being done.
    fn tell(&self, doing: Option<&str>) {
        let (mut told, done) = (self.told.lock(), self.replay.done);
        told.doing = doing.map(str::to_owned);
        (told.imports, told.counts) = (done.imports, done.counts);
        (told.merged_files, told.checkpoints) = (done.merged_files, done.checkpoints);
    }

    /// Does a portion; false when nothing is due, or clients came.
    fn portion(&mut self) -> bool {
        let change = self.archive.tables().sequence;
        let is_new = self
            .nothing_since
            .is_none_or(|(at, since)| at != change || since.elapsed() >= LOOK_AGAIN);
        if !is_new {
            return false;
        }
        match self.replay.step(now()) {
            Ok(Some(step)) => {
                self.tell(Some(step.doing()));
                true
            }
            Ok(None) => {
                self.nothing_since = Some((self.archive.tables().sequence, Instant::now()));
                false
            }
            Err(error) => {
                if error.kind() == Kind::Busy {
                    self.told.lock().gave_way += 1;
                } else if !self.gate.has_ended() {
                    tracing::warn!("background replay: {error}");
                }
                // Nobody waits for what is half done.
                if let Err(error) = self.replay.rest() {
                    tracing::debug!("background replay: {error}");
                }
                false
            }
        }
    }
}
