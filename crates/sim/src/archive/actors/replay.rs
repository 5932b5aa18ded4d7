//! The background replay of a served archive, a portion at a time between the moves of all others.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_archive::{
    Archive, BackgroundReplay, Ingest, Pace, ReplayStep, gives_way, lost_index_files,
    not_found_in_chunk_index, replay_due,
};
use onefold_core::Kind;

use crate::{
    archive::{
        params::Profile,
        run::{Flow, Sim},
    },
    checker::{Checker, Failure},
};

/// Portions after which nothing may be due any more.
const PORTIONS_MAX: u64 = 20_000;

/// The replay of a server, and how often its pace lets it go on before clients come.
pub(crate) struct Replaying {
    replay: BackgroundReplay,
    asks: Arc<AtomicU64>,
}

impl Replaying {
    pub(super) fn new(ingest: &Arc<Ingest>, now: u64) -> Replaying {
        let asks = Arc::new(AtomicU64::new(0));
        let left = asks.clone();
        let pace = Pace::new(move |_| match left.load(Relaxed) {
            0 => Err(gives_way()),
            n => {
                left.store(n - 1, Relaxed);
                Ok(())
            }
        });
        Replaying { replay: BackgroundReplay::new(ingest, now, pace), asks }
    }
}

impl Sim {
    /// Now and then a portion, when there is a server that replays.
    pub(crate) fn replay_move(&mut self) -> Flow {
        if !self.params.replays || self.actors.serving.is_none() {
            return Ok(());
        }
        if !self.replay_rng.percent(35) {
            return Ok(());
        }
        let asks = if self.replay_rng.percent(15) { self.replay_rng.below(6) } else { u64::MAX };
        // Work that somebody else did is looked at again.
        let later = if self.replay_rng.percent(50) { 10_000 } else { 0 };
        self.portion(asks, self.now + later).map(|_| ())
    }

    /// A portion, or as much of it as so many questions let through; false when nothing is due.
    fn portion(&mut self, asks: u64, now: u64) -> Result<bool, crate::archive::run::Stop> {
        let rests = self.replay_rng.percent(50);
        let Some(serving) = &mut self.actors.serving else { return Ok(false) };
        let Replaying { replay, asks: left } = &mut serving.replaying;
        left.store(asks, Relaxed);
        let before = replay.done;
        let mut stepped = replay.step(now);
        let done = replay.done;
        let gave_way = stepped.as_ref().is_err_and(|error| error.kind() == Kind::Busy);
        if gave_way {
            stepped = if rests { replay.rest().map(|()| None) } else { Ok(None) };
        }
        match stepped {
            Ok(step) => {
                self.say(|| format!("replayed: {step:?}"));
                for (what, is_so) in [
                    ("replay: imported", step == Some(ReplayStep::Import)),
                    ("replay: counted", step == Some(ReplayStep::Count)),
                    ("replay: merged runs", done.merged_files > before.merged_files),
                    ("replay: a checkpoint", done.checkpoints > before.checkpoints),
                    (
                        "replay: leaves ahead of a checkpoint",
                        step == Some(ReplayStep::Checkpoint)
                            && done.checkpoints == before.checkpoints,
                    ),
                    ("replay: gave way", gave_way),
                    ("replay: made a lost index anew", done.indexes > before.indexes),
                ] {
                    if is_so {
                        self.reach.hit(what);
                    }
                }
                Ok(step.is_some())
            }
            Err(error) => Err(self.judge("replay", &error)),
        }
    }

    /// Where the index is with the data and nothing is damaged, a crash leaves each file of it as long as
    /// the tables say. A process that found one lost would make the index anew, and hide that.
    pub(crate) fn no_index_file_lost(&mut self, archive: &Archive) -> Flow {
        if self.params.index_disk
            || self.params.profile != Profile::Crashes
            || self.params.medium.damages()
        {
            return Ok(());
        }
        match lost_index_files(archive) {
            Ok(0) => Ok(()),
            Ok(n) => {
                let what = format!("{n} files of the index are lost after a crash");
                Err(Failure::new(Checker::DuplicatesFound, what).into())
            }
            Err(error) => Err(self.judge("index", &error)),
        }
    }

    /// Where nothing is collected or damaged, the index finds each chunk of an imported container.
    pub(crate) fn look_at_index(&mut self, archive: &Arc<Archive>) -> Flow {
        let simple = !self.params.collects
            && (self.params.replays || self.params.index_disk)
            && self.params.profile == Profile::Crashes
            && !self.params.medium.damages();
        if !simple {
            return Ok(());
        }
        match not_found_in_chunk_index(archive) {
            Ok(0) => Ok(()),
            Ok(n) => {
                let what = format!("the index does not find {n} chunks that were imported");
                Err(Failure::new(Checker::DuplicatesFound, what).into())
            }
            Err(error) => Err(self.judge("index", &error)),
        }
    }

    /// When nothing fails, the replay comes to an end, and leaves nothing to import, count or merge
    /// to who opens the archive next.
    pub(crate) fn replay_all(&mut self) -> Flow {
        if !self.params.replays || self.actors.serving.is_none() {
            return Ok(());
        }
        self.actors.collection = None;
        let mut idle = 0;
        for n in 0..PORTIONS_MAX {
            // Nothing waits for its minute.
            idle = if self.portion(u64::MAX, self.now + 20_000 + 100 * n)? { 0 } else { idle + 1 };
            if idle == 2 {
                break;
            }
        }
        let archive = self.open(false)?;
        let due = match replay_due(&archive, &archive.tables()) {
            Ok(due) => due,
            Err(error) => return Err(self.judge("replay", &error)),
        };
        // What a killed collection condemned, the next one looks at before it counts.
        let counts = archive.tables().condemned.is_empty();
        let counts = if counts { due.differences + due.nodes } else { 0 };
        let left = due.containers + counts + due.files;
        if idle < 2 || (!self.damaged && left > 0) {
            let what = format!("after a background replay {due:?} are due");
            return Err(Failure::new(Checker::Progress, what).into());
        }
        self.reach.hit("replay: nothing was left");
        self.look_at_index(&archive)
    }
}
