//! A server looks after its archive when nobody asks for anything. Always it replays in the background
//! what the operations log says; with `serve --maintenance FILE` it forgets snapshots by policies,
//! frees space, and reads all data once in a while.
//!
//! One thread does one thing at a time. Whatever it does, a crash leaves it as puts and the commands
//! `forget`, `gc` and `scrub` leave it: each step begins from what the log says.

mod gate;
mod replay;

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use onefold_archive::{
    Archive, Collection, CollectionOptions, Format, Ingest, Pace, Portion, ScrubRound, forget,
};
use onefold_core::{Error, Kind, Result, clock::age};
use parking_lot::Mutex;

pub(super) use self::gate::{Activity, Working};
use self::{gate::Gate, replay::Replay};
use super::options::ReplayAfter;
use crate::{
    report::archive::ReplayLine,
    verbs::{
        gc::CLOCK_AHEAD,
        keeping::{
            file::{LoadRule, PolicyFile},
            policy::Terms,
            retention::Judged,
        },
    },
};
use onefold::parts::archive_dir::now;
use onefold_console::size::{Size, counted};

/// Between two looks for work that is due.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Until work that failed, or that was held back, is tried again.
const AGAIN: Duration = Duration::from_secs(600);

/// Until a collection that waited for puts and readers goes on.
const HELD_BACK: Duration = Duration::from_secs(60);

/// Between two portions of a round of scrubs.
const PORTIONS: Duration = Duration::from_secs(3600);

/// The thread that looks after an archive.
pub(super) struct Maintenance {
    gate: Arc<Gate>,
    doing: Option<Arc<Mutex<String>>>,
    replay: Option<Arc<Mutex<ReplayLine>>>,
    held_back: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Maintenance {
    /// Begins to look after the archive of `ingest`; replays after so long without clients, or as the
    /// policies say.
    ///
    /// # Errors
    /// `InvalidInput` for a policy that `append_only` refuses; `Io` when no thread can be started.
    pub(super) fn start(
        ingest: &Arc<Ingest>,
        archive: &Arc<Archive>,
        policies: Option<PolicyFile>,
        append_only: bool,
        replay_after: Option<ReplayAfter>,
        activity: Arc<Activity>,
    ) -> Result<Maintenance> {
        let said = policies.as_ref().is_some_and(|policies| policies.append_only);
        // Put keys only add, and so does whoever took one.
        let append_only = append_only || said || archive.label().roles;
        if append_only {
            policies.as_ref().map_or(Ok(()), PolicyFile::check_append_only)?;
        }
        let load = match (&policies, replay_after) {
            (Some(policies), _) => policies.load,
            (None, Some(ReplayAfter::Idle(idle))) => LoadRule { idle, ..LoadRule::default() },
            (None, _) => LoadRule::default(),
        };
        let gate = Arc::new(Gate::new(activity, &load));
        let replays = replay_after != Some(ReplayAfter::Never);
        let replay = replays.then(|| Replay::new(ingest, archive, &gate));
        let told = replay.as_ref().map(Replay::told);
        let doing = Arc::new(Mutex::new("nothing is due".to_owned()));
        let held_back = Arc::new(Mutex::default());
        let keeper = Keeper {
            held_back: held_back.clone(),
            archive: archive.clone(),
            append_only,
            gate: gate.clone(),
            doing: doing.clone(),
            replay: replay.map(Mutex::new),
        };
        let doing = policies.is_some().then_some(doing);
        let thread = std::thread::Builder::new().name("maintenance".into());
        let thread = thread
            .spawn(move || keeper.run(policies.as_ref()))
            .map_err(|e| Error::from_io("cannot start a thread for maintenance", e))?;
        Ok(Maintenance { gate, doing, replay: told, held_back, thread: Some(thread) })
    }

    /// What it does by its policies, or that nothing is due; `None` without policies.
    pub(super) fn doing(&self) -> Option<String> {
        self.doing.as_ref().map(|doing| doing.lock().clone())
    }

    /// The background replay so far; `None` when there is none.
    pub(super) fn replay(&self) -> Option<ReplayLine> {
        self.replay.as_ref().map(|replay| replay.lock().clone())
    }

    /// The sets that its policies would take too much from, a sentence each, when it forgot last.
    pub(super) fn held_back(&self) -> Vec<String> {
        self.held_back.lock().clone()
    }

    /// Ends the work at hand, which goes on when the archive is served again.
    pub(super) fn stop(&mut self) {
        self.gate.end();
        // Its panic, if any, was printed.
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Keeper {
    held_back: Arc<Mutex<Vec<String>>>,
    archive: Arc<Archive>,
    append_only: bool,
    gate: Arc<Gate>,
    doing: Arc<Mutex<String>>,
    replay: Option<Mutex<Replay>>,
}

impl Keeper {
    fn run(&self, policies: Option<&PolicyFile>) {
        let begun = Instant::now();
        let (mut next_gc, mut next_scrub) = (begun, begun);
        while !self.gate.has_ended() {
            std::thread::sleep(LOOK_EVERY);
            self.replay();
            let Some(policies) = policies else { continue };
            if Instant::now() >= next_gc && self.gc_is_due(policies) {
                next_gc = Instant::now() + self.told("gc", self.keep(policies));
            } else if Instant::now() >= next_scrub {
                next_scrub = Instant::now() + self.told("scrub", self.scrub(policies));
            }
            self.say("nothing is due");
        }
    }

    /// Replays what is due, if nobody asks for anything.
    fn replay(&self) {
        if let Some(replay) = &self.replay {
            replay.lock().run();
        }
    }

    fn say(&self, what: &str) {
        let mut doing = self.doing.lock();
        if *doing != what {
            what.clone_into(&mut doing);
        }
    }

    /// Tells why something failed; gives when to try again.
    fn told(&self, what: &str, done: Result<Duration>) -> Duration {
        match done {
            Ok(again) => again,
            Err(_) if self.gate.has_ended() => AGAIN,
            // Somebody collects by hand.
            Err(error) if error.kind() == Kind::Busy => AGAIN,
            Err(error) => {
                tracing::warn!("maintenance, {what}: {error}");
                AGAIN
            }
        }
    }

    fn gc_is_due(&self, policies: &PolicyFile) -> bool {
        let last = Duration::from_secs(self.archive.tables().care.collected);
        // Of a gc that a wrong clock dated in the future nobody knows when it was.
        age(last, Duration::from_secs(now())).is_none_or(|age| age >= policies.gc.every)
    }

    /// Forgets by the policies, and frees space.
    fn keep(&self, policies: &PolicyFile) -> Result<Duration> {
        self.say("forgetting snapshots");
        self.gate.pass(0)?;
        self.forget(policies)?;
        let options = CollectionOptions {
            now: now(),
            keep_partial: policies.gc.keep_partial.as_secs(),
            trash: policies.gc.trash.as_secs(),
            // Who puts or reads is not waited for: the server may have to stop before they end.
            wait: false,
            reserve_bytes: Format::new([0; 16], [0; 32], [0; 16]).reserve_bytes,
            encode_all: false,
            doubts_clock: true,
        };
        let gate = self.gate.clone();
        let pace = Pace::new(move |bytes| gate.pass(bytes));
        let mut collection = Collection::begin_paced(&self.archive, options, pace)?;
        let mut written = 0;
        loop {
            self.say(&format!("gc: {}", collection.doing()));
            let more = collection.step()?;
            collection.tick(now());
            // Reads asked before; this is for what merging wrote.
            self.gate.pass(collection.written().saturating_sub(written))?;
            written = collection.written();
            if !more {
                break;
            }
        }
        let done = collection.done;
        tracing::info!(
            "gc freed {}: {} dropped, {} merged into {}",
            Size(done.freed_bytes),
            counted(done.dropped, "container"),
            done.merged,
            done.into
        );
        if done.clock_ahead {
            tracing::warn!("gc keeps the trash: {CLOCK_AHEAD}");
        }
        Ok(if done.waits { HELD_BACK } else { Duration::ZERO })
    }

    fn forget(&self, policies: &PolicyFile) -> Result<()> {
        let tables = self.archive.refresh()?;
        let zone = policies.zone.clone();
        let terms = Terms { now: now(), zone, append_only: self.append_only };
        let policy_of = |host: &str, set: &str| policies.policy(host, set);
        let judged = Judged::new(&tables, &|_| true, &policy_of, &terms, false);
        judged.guarded.iter().for_each(|why| tracing::warn!("{why}"));
        let gone = judged.gone();
        *self.held_back.lock() = judged.guarded;
        if !gone.is_empty() {
            forget(&self.archive, &gone, now())?;
            tracing::info!("forgot {}", counted(gone.len() as u64, "snapshot"));
        }
        Ok(())
    }

    /// Reads what is due of the round.
    fn scrub(&self, policies: &PolicyFile) -> Result<Duration> {
        let round = policies.scrub.round.as_secs();
        if round == 0 {
            return Ok(PORTIONS);
        }
        self.gate.pass(0)?;
        self.say("scrub");
        let mut scrub = ScrubRound::begin(&self.archive, now())?;
        let (due, mut read) = (scrub.due_bytes(now(), round)?, 0);
        let mut last = 0;
        while read < due {
            if !self.gate.is_open() {
                scrub.rest();
            }
            if self.gate.pass(last).is_err() {
                break;
            }
            let Some(bytes) = scrub.step(now())? else { break };
            (read, last) = (read + bytes, bytes);
            // A round's portion may take hours, and so may what is replayed between.
            if self.replay.as_ref().is_some_and(|replay| replay.lock().may_be_due()) {
                scrub.rest();
                self.replay();
            }
        }
        let Portion { problems, problems_found, ended, bytes, .. } = scrub.end(now())?;
        problems.iter().for_each(|problem| tracing::warn!("scrub: {problem}"));
        if problems_found > 0 {
            tracing::warn!("scrub found {}", counted(problems_found, "problem"));
        }
        tracing::debug!("scrub read {}", Size(bytes));
        if ended {
            tracing::info!("all data has been read in this round of scrubs");
        }
        Ok(PORTIONS)
    }
}
