//! Background replay (dedupv1 3.6): what the operations log says, carried into the structures beside
//! it while no client is at work, so that neither clients nor the next process wait for it.
//!
//! | step | what | lock of other processes |
//! |---|---|---|
//! | [`Import`](ReplayStep::Import) | chunks of listed containers, from the auxiliary index into the chunk index; an index whose directory failed is made anew, all at once | the importer's |
//! | [`Count`](ReplayStep::Count) | usage counts of what came and went | the collector's |
//! | [`Merge`](ReplayStep::Merge) | runs of the chunk index | the importer's, from the first portion to the last |
//! | [`Checkpoint`](ReplayStep::Checkpoint) | the tables as of the log's end, and a new log | that of commits |
//!
//! A value of [`BackgroundReplay`] belongs to the ingesting process. Each [`step`](BackgroundReplay::step)
//! is one portion, and returns when it is done; the pace is asked before a portion reads or writes,
//! and decides whether it may. No lock that a put or a commit waits for is held meanwhile, and none of
//! a portion for longer than some megabytes take.
//!
//! Small archives are replayed to the end. What would write much for little waits: counts of a large
//! archive are made anew for a full portion of differences, or once a day; a checkpoint for a log of a
//! sixteenth of its limit, or for half the leaves that may have changed; runs for as many entries as
//! make them worth it.
//!
//! *Crash argument:* each portion ends with one frame, or with the label for a checkpoint, and leaves
//! what the same work leaves when a put, a collection or a commit does it: all or nothing of the portion,
//! and files and pages that nothing names.

mod due;

use std::{collections::BTreeSet, sync::Arc};

use onefold_core::{Error, Hold, Kind, Lock, Result};

pub use self::due::{ReplayDue, replay_due};
use crate::{
    container::{Pace, Rewriter},
    format::{Address, names::COLLECTOR},
    operations_log::{Archive, Checkpointed, checkpoint_some, log_bytes_at_once},
    rad,
    rules::Rule,
    stream::{Ingest, Ported},
    tables::Tables,
    usage_counts::{Counted, IfUnproven, weight},
};

/// Bytes of counts that are made anew for any difference.
const COUNTS_CHEAP: u64 = 64 << 20;

/// Seconds after which larger ones are made anew for few differences.
const DAY: u64 = 86_400;

/// Seconds until work is tried again that another process does, or that found no room.
const LATER: u64 = 60;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplayStep {
    /// Containers are imported into the chunk index.
    Import,
    /// Usage is counted.
    Count,
    /// Runs of the chunk index become one.
    Merge,
    /// The tables are written, and a new log begins.
    Checkpoint,
}

impl ReplayStep {
    /// All of them, in the order in which they are done.
    pub const ALL: [ReplayStep; 4] =
        [ReplayStep::Import, ReplayStep::Count, ReplayStep::Merge, ReplayStep::Checkpoint];

    /// The kind of work at hand, in words for the user.
    #[must_use]
    pub fn doing(self) -> &'static str {
        match self {
            ReplayStep::Import => "importing containers into the chunk index",
            ReplayStep::Count => "counting usage",
            ReplayStep::Merge => "merging runs of the chunk index",
            ReplayStep::Checkpoint => "writing a checkpoint of the tables",
        }
    }
}

/// Counts of the work since the value was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Portions of imports.
    pub imports: u64,
    /// Portions of counting.
    pub counts: u64,
    /// Files of the chunk index that became others.
    pub merged_files: u64,
    /// Checkpoints of the tables.
    pub checkpoints: u64,
    /// Chunk indexes that were made anew, since their directory failed.
    pub indexes: u64,
}

/// The background replay of an ingesting process.
pub struct BackgroundReplay {
    ingest: Arc<Ingest>,
    pace: Pace,
    /// When each kind of work is looked at again, in seconds since 1970.
    later: [u64; 4],
    /// Nodes of trees that could not be read when they were counted last.
    damaged: BTreeSet<Address>,
    /// When counts were made last, in seconds since 1970.
    counted: u64,
    /// Counts of the work so far.
    pub done: Replayed,
}

/// The result of looking at one kind of work.
enum Came {
    Nothing,
    Later,
    Some,
}

impl From<Ported> for Came {
    fn from(ported: Ported) -> Came {
        match ported {
            Ported::Nothing => Came::Nothing,
            Ported::Later => Came::Later,
            Ported::Some | Ported::Merged(_) => Came::Some,
        }
    }
}

impl BackgroundReplay {
    /// Of the archive that `ingest` writes to, as fast as `pace` lets it; `now` is in seconds since
    /// 1970.
    #[must_use]
    pub fn new(ingest: &Arc<Ingest>, now: u64, pace: Pace) -> BackgroundReplay {
        BackgroundReplay {
            ingest: ingest.clone(),
            pace,
            later: [0; 4],
            damaged: BTreeSet::new(),
            counted: now,
            done: Replayed::default(),
        }
    }

    /// Does the next portion; gives which work it was of, or nothing when none is due.
    ///
    /// # Errors
    /// Those of the pace, and of the system; that kind of work is tried again after a minute. A full
    /// disk is none.
    pub fn step(&mut self, now: u64) -> Result<Option<ReplayStep>> {
        for (n, step) in ReplayStep::ALL.into_iter().enumerate() {
            if self.later[n] > now {
                continue;
            }
            let came = match step {
                ReplayStep::Import => self.import(),
                ReplayStep::Count => self.count(now),
                ReplayStep::Merge => self.merge(),
                ReplayStep::Checkpoint => self.checkpoint(),
            };
            match came {
                Ok(Came::Some) => return Ok(Some(step)),
                Ok(Came::Nothing) => {}
                Ok(Came::Later) => self.later[n] = now.saturating_add(LATER),
                Err(error) => {
                    self.later[n] = now.saturating_add(LATER);
                    if error.kind() != Kind::NoSpace {
                        return Err(error);
                    }
                }
            }
        }
        Ok(None)
    }

    /// True when something is held between two portions: a merge is half done, and has the importer's
    /// lock.
    #[must_use]
    pub fn is_amid(&self) -> bool {
        self.ingest.is_merging()
    }

    /// Lets go of what is held between two portions: a merge that is half done begins again. For who
    /// waits long for the next portion.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn rest(&mut self) -> Result<()> {
        self.ingest.give_up_merge()
    }

    fn archive(&self) -> &Arc<Archive> {
        &self.ingest.archive
    }

    fn import(&mut self) -> Result<Came> {
        if self.ingest.make_whole_beside(&self.pace)? {
            self.done.indexes += 1;
            return Ok(Came::Some);
        }
        let came = self.ingest.import_some(&self.pace)?;
        self.done.imports += u64::from(came == Ported::Some);
        if came == Ported::Nothing {
            // Nobody may look anything up for long.
            self.ingest.renew_beside(&self.pace)?;
        }
        Ok(came.into())
    }

    fn merge(&mut self) -> Result<Came> {
        let came = self.ingest.merge_some(&self.pace)?;
        if let Ported::Merged(files) = came {
            self.done.merged_files += files;
            self.ingest.renew_beside(&self.pace)?;
        }
        Ok(came.into())
    }

    fn count(&mut self, now: u64) -> Result<Came> {
        let tables = self.archive().tables();
        if tables.differences.is_empty() && !self.has_undamaged_due(&tables) {
            return Ok(Came::Nothing);
        }
        self.pace.ask(0)?;
        let Some(_lock) = self.become_collector()? else { return Ok(Came::Later) };
        let mut rewriter = Rewriter::paced(self.archive(), self.pace.clone());
        let tables = self.archive().refresh()?;
        // A collection that was killed, or waits for older puts, looks at what came since the counts
        // before it drops anything.
        if !tables.condemned.is_empty() && self.archive().keeps(Rule::RecheckedBeforeCounted) {
            return Ok(Came::Later);
        }
        if !self.are_worth(rewriter.bytes_of_counts(&tables)?, &tables, now) {
            return Ok(Came::Later);
        }
        let counted = rewriter.count(false, IfUnproven::Waits, rad::changed)?;
        if matches!(counted, Counted::Unproven) {
            // A collection looks through what put keys added.
            return Ok(Came::Later);
        }
        self.done.counts += 1;
        if let Counted::All = counted {
            // The rest could not be read.
            self.damaged = self.archive().tables().snapshots.due().copied().collect();
            self.counted = now;
        }
        Ok(Came::Some)
    }

    fn has_undamaged_due(&self, tables: &Tables) -> bool {
        tables.snapshots.due().any(|node| !self.damaged.contains(node))
    }

    /// True when what came and went is worth so many bytes of counts.
    fn are_worth(&self, bytes: u64, tables: &Tables, now: u64) -> bool {
        let portion = self.archive().settings.count_portion;
        bytes <= COUNTS_CHEAP
            || now.saturating_sub(self.counted) >= DAY
            || tables.differences.iter().map(weight).sum::<usize>() >= portion
    }

    /// The collector's lock, for this portion; `None` when somebody collects.
    fn become_collector(&self) -> Result<Option<Box<dyn Lock>>> {
        match self.archive().files.lock(COLLECTOR, Hold::Alone, false) {
            Err(error) if error.kind() == Kind::Busy => {
                let counts_anyway = !self.archive().keeps(Rule::CountedAlone);
                Ok(counts_anyway.then(|| Box::new(NoLock) as Box<dyn Lock>))
            }
            locked => locked.map(Some),
        }
    }

    fn checkpoint(&mut self) -> Result<Came> {
        let is_due = |(_, is_due)| is_due;
        if !log_bytes_at_once(self.archive()).is_none_or(is_due) {
            return Ok(Came::Nothing);
        }
        self.pace.ask(4 << 20)?;
        Ok(match checkpoint_some(self.archive())? {
            Checkpointed::Nothing => Came::Nothing,
            Checkpointed::Later => Came::Later,
            Checkpointed::Some => Came::Some,
            Checkpointed::All => {
                self.done.checkpoints += 1;
                Came::Some
            }
        })
    }
}

/// For the planted bug that counts without the collector's lock.
struct NoLock;

impl Lock for NoLock {}

/// The error with which a pace ends a portion because clients are at work.
#[must_use]
pub fn gives_way() -> Error {
    Error::new(Kind::Busy, "clients are at work")
}
