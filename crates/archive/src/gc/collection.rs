//! One collection, step by step.

use std::{collections::BTreeSet, sync::Arc};

use onefold_core::{Error, Hold, Kind, Lock, Result};

use super::reseal::{FreeBytes, Resealing};
use crate::{
    container::{Pace, Rewriter},
    format::{
        ContainerId,
        care::CareNote,
        names::{COLLECTOR, segment_number},
        record::Record,
    },
    operations_log::{Archive, is_put},
    rad::{self, LateEncoding},
    rules::Rule,
    tables::{Tables, WriteCost},
    tree::{Trees, expire},
    usage_counts::{
        Counted, CountsFound, IfUnproven, InMemory, counts_number, files_of_counts, highest_counts,
    },
};

/// How collection is done.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Seconds since 1970.
    pub now: u64,
    /// Seconds that unfinished containers are spared.
    pub keep_partial: u64,
    /// Waits for puts and readers that began before; without, what they hold back is left to the
    /// next collection.
    pub wait: bool,
    /// Seconds that forgotten snapshots are kept, from the first collection that saw them.
    pub trash: u64,
    /// Bytes of the reserve when all is done.
    pub reserve_bytes: u64,
    /// Where encoding is late: encodes all that stands replicated, whatever delay and batch say.
    pub encode_all: bool,
    /// When the clock is more than 30 days ahead of all dates in the archive, forgotten snapshots stay whose time
    /// is not zero: see [`is_clock_ahead`](crate::is_clock_ahead). [`Collected::clock_ahead`] tells that it was so.
    pub doubts_clock: bool,
}

impl Options {
    /// True when these options spare a container that was listed as unfinished at `at`, by the clock of the
    /// process that listed it. A time that is further ahead than `keep_partial` counts as long past: a clock
    /// was wrong, or a put key says so to keep its containers for ever.
    pub(super) fn spare_unfinished(&self, at: u64) -> bool {
        at.saturating_add(self.keep_partial) > self.now
            && at <= self.now.saturating_add(self.keep_partial)
    }
}

/// Counts of a collection's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Forgotten snapshots that are gone for good.
    pub expired: u64,
    /// Containers of domains that were erased.
    pub erased: u64,
    /// Bytes of space that they took.
    pub erased_bytes: u64,
    /// The clock was far ahead of all dates in the archive, and was doubted: the trash stays.
    pub clock_ahead: bool,
    /// Containers without a live chunk that were dropped.
    pub dropped: u64,
    /// Bytes of space that they took.
    pub dropped_bytes: u64,
    /// Containers whose live chunks were copied together.
    pub merged: u64,
    /// Containers that they became.
    pub into: u64,
    /// Bytes of space that they took more than what they became.
    pub merged_bytes: u64,
    /// Chunks copied: encoded again.
    pub copied_chunks: u64,
    /// Their bytes, before compression.
    pub copied_chunk_bytes: u64,
    /// Bytes written for them, with copies and parity.
    pub merge_bytes: u64,
    /// Containers that stood replicated and were encoded.
    pub encoded: u64,
    /// Containers that they became.
    pub encoded_into: u64,
    /// Their chunks.
    pub encoded_chunks: u64,
    /// Bytes of these, before compression.
    pub encoded_chunk_bytes: u64,
    /// Bytes written for them, with parity.
    pub encode_bytes: u64,
    /// Bytes of space given back to the file system.
    pub freed_bytes: u64,
    /// Containers under an older data key that were written again.
    pub resealed: u64,
    /// Containers that they became.
    pub resealed_into: u64,
    /// Their chunks.
    pub resealed_chunks: u64,
    /// Bytes of these containers.
    pub resealed_bytes: u64,
    /// Containers that are left under an older data key, where they were to be written again.
    pub under_older: u64,
    /// Older data keys that were erased.
    pub keys_erased: u64,
    /// The collection had no room to write more again of what is under an older data key.
    pub no_room: bool,
    /// Containers that stay because a chunk of theirs is damaged.
    pub damaged: u64,
    /// Containers of put keys that were read, and are what they say.
    pub proven: u64,
    /// Containers of put keys that are not what they say: no process takes their chunks for duplicates.
    pub untrue: u64,
    /// Snapshots of put keys that were dropped, as they name what is not there.
    pub untrue_snapshots: u64,
    /// References of snapshots to pages that are not there, among those that this collection counted.
    pub absent: u64,
    /// Places that older readers hold back.
    pub held_back: u64,
    /// Puts that began before hold the rest back.
    pub waits: bool,
    /// Its budget ended before it was through; the next collection goes on.
    pub cut_short: bool,
}

/// How often a collection looks through what put keys added until nothing is added meanwhile. From then on it
/// counts what came before the first snapshot that it has not looked through: whoever has a put key can add one
/// at any moment.
const PROOFS_AWAITED: u32 = 3;

/// How often it looks in all, where counts are made from the roots up, beside which nothing else may come.
const PROOFS_MAX: u32 = 16;

/// Places that one frame of the log frees, at most: 25 bytes each.
const FREED_MAX: usize = 1 << 20;

/// Lets a moment pass while puts and readers that began before are waited for; false when they are not
/// waited for any longer.
pub type Patience = Box<dyn FnMut() -> bool + Send>;

/// One collection, step by step.
pub struct Collection {
    pub(super) archive: Arc<Archive>,
    _lock: Box<dyn Lock>,
    pub(super) options: Options,
    pub(super) rewriter: Rewriter,
    late_encoding: LateEncoding,
    step: Step,
    /// Counts that found no room on the disk, and the place in the log up to which they count.
    pub(super) in_memory: Option<InMemory>,
    /// Asked while somebody is waited for.
    pub(super) patience: Option<Patience>,
    /// The write cost before this collection.
    before: WriteCost,
    /// Snapshots whose time was over are gone.
    has_expired: bool,
    /// Dead chunks were looked for in this collection, not only taken over.
    looked: bool,
    /// All references are to be counted anew.
    recounts: bool,
    /// Containers under older data keys, which are to be written again.
    pub(super) resealing: Resealing,
    /// Counts that could not be read were made anew.
    counted_anew: bool,
    /// Snapshots of put keys that name what is not there are dropped.
    pub(super) drops_untrue: bool,
    /// Nodes of snapshots of put keys that were found whole, until something is dropped.
    pub(super) whole: Trees,
    /// How often what put keys stored was read.
    pub(super) proofs: u32,
    /// The counts that were wrong, once all references were counted anew.
    pub recounted: Option<CountsFound>,
    /// Counts of the work so far.
    pub done: Collected,
}

/// The step that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Free,
    Erased,
    Prove,
    Recheck,
    Merge,
    Count,
    Recount,
    Condemn,
    LateEncoding,
    Reseal,
    Last,
    EraseKeys,
    Over,
}

impl Collection {
    /// Becomes the collector.
    ///
    /// # Errors
    /// `Busy` when another one is at work, `Denied` for a put key, and those of the system.
    pub fn begin(archive: &Arc<Archive>, options: Options) -> Result<Collection> {
        Collection::begin_paced(archive, options, Pace::default())
    }

    /// The same for work in the background, which gives way before each read, also within a step.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_paced(archive: &Arc<Archive>, options: Options, pace: Pace) -> Result<Collection> {
        if is_put(archive) {
            let why =
                "this is a put key, which takes nothing away: who manages the archive collects";
            return Err(Error::new(Kind::Denied, why));
        }
        let lock =
            archive.files.lock(COLLECTOR, Hold::Alone, false).map_err(|error| {
                match error.kind() {
                    Kind::Busy => Error::new(Kind::Busy, "another gc is running"),
                    _ => error,
                }
            })?;
        let collection = Collection {
            rewriter: Rewriter::paced(archive, pace),
            late_encoding: LateEncoding::new(
                options.encode_all,
                options.now.saturating_sub(options.keep_partial),
            ),
            archive: archive.clone(),
            _lock: lock,
            options,
            step: Step::Free,
            in_memory: None,
            patience: None,
            before: archive.refresh()?.write_cost,
            has_expired: false,
            looked: false,
            recounts: false,
            resealing: Resealing::none(archive),
            counted_anew: false,
            drops_untrue: false,
            whole: Trees::default(),
            proofs: 0,
            recounted: None,
            done: Collected::default(),
        };
        collection.remove_orphans()?;
        Ok(collection)
    }

    /// All references are counted anew, from streams, volumes and snapshots, before dead chunks are
    /// looked for, and the counts that this gives take the place of those that there are. What was
    /// condemned by these is spared until then. [`recounted`](Self::recounted) tells what was wrong.
    ///
    /// The step fails with `Corrupt` when something that names chunks can't be read, and leaves the
    /// counts as they are.
    pub fn recount(&mut self) {
        self.recounts = true;
    }

    /// Snapshots of put keys that name what is not there, or what can't be read, are dropped. Without this
    /// word the collection ends where it meets one.
    pub fn drop_untrue(&mut self) {
        self.drops_untrue = true;
    }

    /// Where the options say that puts and readers are waited for, they are waited for as long as
    /// `patience` says, and not longer in later steps. Without it they are waited for until they end.
    pub fn wait_with(&mut self, patience: Patience) {
        self.patience = Some(patience);
    }

    /// Does all of it.
    ///
    /// # Errors
    /// Errors of the system; finished steps stay done.
    pub fn run(mut self, progress: &mut dyn FnMut(&str)) -> Result<Collected> {
        progress(self.doing());
        while self.step()? {
            progress(self.doing());
        }
        Ok(self.done)
    }

    /// Names the present step for the user.
    #[must_use]
    pub fn doing(&self) -> &'static str {
        match self.step {
            Step::Free | Step::Erased | Step::Last | Step::Over => "freeing space",
            Step::Prove => "reading what put keys stored",
            Step::Recheck => "rechecking candidates, after older puts and readers",
            Step::Count => "counting references",
            Step::Recount => "counting all references anew",
            Step::Condemn => "looking for dead chunks",
            Step::Merge => "merging containers",
            Step::LateEncoding => "encoding what stood replicated",
            Step::Reseal => "writing again what is under an older data key",
            Step::EraseKeys => "erasing older data keys",
        }
    }

    /// The rest of the present step, as far as is known: changes to count, containers to look at
    /// again or to merge.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        let tables = self.archive.tables();
        match self.step {
            Step::Count => Some(tables.differences.len() as u64),
            Step::Recheck | Step::Merge => Some(tables.condemned.len() as u64),
            Step::LateEncoding => Some(tables.sums().replicated().1),
            Step::Reseal => self.resealing.left(),
            Step::Prove => tables.roles.as_ref().map(|roles| roles.unread().count() as u64),
            Step::Free | Step::Erased | Step::Recount | Step::Condemn => None,
            Step::Last | Step::EraseKeys | Step::Over => None,
        }
    }

    /// Containers under an older data key are written again under the newest one of their domain, when all else is
    /// done. An older key under which nothing is left is erased then. Dead chunks in such containers are
    /// collected however few they are, and so is what killed puts left there: no put finds it any more.
    /// The work ends when `free_bytes` tells of fewer than the reserve has, and 16 full containers.
    pub fn reseal(&mut self, free_bytes: Option<FreeBytes>) {
        self.resealing.wanted = self.archive.label().data_keys;
        self.resealing.free_bytes = free_bytes;
    }

    /// The time goes on: seconds since 1970. Forgotten snapshots stay from the step that sees them.
    pub fn tick(&mut self, now: u64) {
        self.options.now = self.options.now.max(now);
    }

    /// Bytes that merging and encoding have written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        let now = self.archive.tables().write_cost;
        let merged = now.merge_bytes.saturating_sub(self.before.merge_bytes);
        merged + now.encode_bytes.saturating_sub(self.before.encode_bytes)
    }

    /// The budget is spent: only what can be freed at once is freed yet. What was condemned and not
    /// looked at again is looked at by the next collection.
    pub fn cut_short(&mut self) {
        if !matches!(self.step, Step::Last | Step::EraseKeys | Step::Over) {
            self.done.cut_short = true;
            self.step = Step::Last;
        }
    }

    /// What comes when all is freed that nobody has to be asked for.
    fn freed(&mut self) -> Result<Step> {
        if self.recounts && self.archive.keeps(Rule::CondemnedSparedFirst) {
            self.spare_condemned()?;
        }
        let is_over = self.archive.tables().condemned.is_empty() || self.recounts;
        Ok(if is_over { Step::Count } else { Step::Recheck })
    }

    /// Does the next step; false when there is none.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn step(&mut self) -> Result<bool> {
        self.step = match self.step {
            // Space that an earlier collector left to be freed comes first.
            Step::Free => {
                self.free()?;
                match (self.archive.label().domains, self.archive.label().roles) {
                    (true, _) => Step::Erased,
                    (_, true) => Step::Prove,
                    _ => self.freed()?,
                }
            }
            Step::Prove => {
                self.prove()?;
                self.freed()?
            }
            Step::Erased => {
                self.drop_erased()?;
                self.freed()?
            }
            Step::Recheck => {
                if self.recheck()? {
                    self.free()?;
                    Step::Merge
                } else {
                    self.done.waits = true;
                    self.after_all()
                }
            }
            Step::Merge => {
                let has_merged = self.merge()?;
                if has_merged {
                    // Nodes that were whole may be gone.
                    self.whole = Trees::default();
                }
                match (has_merged, self.looked) {
                    (true, _) => Step::Merge,
                    (false, true) => Step::LateEncoding,
                    (false, false) => Step::Count,
                }
            }
            Step::Count => {
                if self.archive.tables().trees && !std::mem::replace(&mut self.has_expired, true) {
                    let Options { now, trash, keep_partial, doubts_clock, .. } = self.options;
                    let times = (trash, keep_partial);
                    let (gone, is_ahead) = expire(&self.archive, now, times, doubts_clock)?;
                    self.done.expired += gone;
                    self.done.clock_ahead = is_ahead;
                }
                let if_unproven = match self.proofs {
                    0..PROOFS_AWAITED => IfUnproven::Waits,
                    _ => IfUnproven::CountsBefore,
                };
                let counted = self.rewriter.count(true, if_unproven, rad::changed)?;
                self.done.absent = self.rewriter.absent;
                match counted {
                    Counted::Portion if !self.archive.keeps(Rule::AllCountedFirst) => {
                        self.looked = self.condemn()?;
                        if self.looked { Step::Recheck } else { Step::Count }
                    }
                    Counted::Portion => Step::Count,
                    Counted::Unproven if self.proofs < PROOFS_MAX => Step::Prove,
                    Counted::Unproven => {
                        let why = "put keys add snapshots faster than all references are counted: try again";
                        return Err(Error::new(Kind::Busy, why));
                    }
                    Counted::All if !self.counted_anew && !self.rewriter.trusts_counts()? => {
                        self.counted_anew = true;
                        Step::Count
                    }
                    Counted::All if self.recounts => Step::Recount,
                    Counted::All => Step::Condemn,
                    Counted::InMemory(_) if self.recounts => {
                        return Err(Error::new(
                            Kind::NoSpace,
                            "a recount needs room for the usage counts, and the disk has none",
                        ));
                    }
                    Counted::InMemory(counts) => {
                        self.in_memory = Some(counts);
                        self.late_encoding.no_room();
                        Step::Condemn
                    }
                }
            }
            Step::Recount => {
                self.recounted = Some(self.rewriter.recount()?);
                self.recounts = false;
                Step::Condemn
            }
            Step::Condemn => {
                self.looked = true;
                match (self.condemn()?, self.done.waits) {
                    (true, _) => Step::Recheck,
                    (false, true) => self.after_all(),
                    (false, false) => Step::LateEncoding,
                }
            }
            Step::LateEncoding => {
                if self.encode_late()? {
                    Step::LateEncoding
                } else {
                    self.after_all()
                }
            }
            Step::Reseal => {
                if self.reseal_some()? {
                    Step::Reseal
                } else {
                    Step::Last
                }
            }
            Step::Last => {
                self.last()?;
                if self.resealing.wanted { Step::EraseKeys } else { Step::Over }
            }
            Step::EraseKeys => {
                self.erase_older_keys()?;
                Step::Over
            }
            Step::Over => return Ok(false),
        };
        Ok(self.step != Step::Over)
    }

    /// The step that comes when nothing is left to be collected.
    fn after_all(&self) -> Step {
        if self.resealing.wanted { Step::Reseal } else { Step::Last }
    }

    /// Nothing is condemned any more, until dead chunks are looked for again.
    fn spare_condemned(&self) -> Result<()> {
        self.archive.commit(true, |now| {
            let spared: Vec<ContainerId> = now.condemned.keys().copied().collect();
            let spares = Record::Dropped { containers: Vec::new(), spared };
            Ok((!now.condemned.is_empty()).then_some(spares).into_iter().collect())
        })?;
        Ok(())
    }

    /// Containers that are to be encoded late now.
    pub(super) fn due_for_encoding(&self, tables: &Tables) -> Result<BTreeSet<ContainerId>> {
        Ok(self.late_encoding.due(&self.archive, tables)?.into_iter().collect())
    }

    /// Encodes some containers late; false when there are no more.
    fn encode_late(&mut self) -> Result<bool> {
        let before = self.late_encoding.damaged;
        let done = self.late_encoding.step(&mut self.rewriter);
        self.done.damaged += self.late_encoding.damaged - before;
        self.done.encoded = self.late_encoding.encoded;
        self.done.encoded_into = self.late_encoding.encoded_into;
        done
    }

    /// Frees places that nobody can read any more.
    pub(super) fn free(&mut self) -> Result<()> {
        let tables = self.archive.refresh()?;
        if tables.waiting_to_be_freed.is_empty() {
            return Ok(());
        }
        let waits = self.archive.keeps(Rule::FreedAfterReaders);
        let newest = tables.waiting_to_be_freed.values().copied().max().unwrap_or(0);
        // The epoch advanced only when nobody stayed in the one before the last. In the last one
        // somebody may.
        let all = newest.saturating_add(1) < tables.epoch || self.others_left(tables.epoch)?;
        let limit = if all { tables.epoch } else { tables.epoch.saturating_sub(1) };
        let places: Vec<_> = tables
            .waiting_to_be_freed
            .iter()
            .filter(|&(_, &epoch)| !waits || epoch < limit)
            .map(|(&place, _)| place)
            .collect();
        if places.is_empty() {
            return Ok(());
        }
        for some in places.chunks(FREED_MAX) {
            for place in some {
                self.rewriter.container_reader.free(place)?;
                self.done.freed_bytes += tables.taken(place);
            }
            self.archive.commit(true, |_| Ok(vec![Record::Freed { places: some.to_vec() }]))?;
        }
        self.remove_orphans()
    }

    /// Advances the epoch if something waits in it, once nobody is in the one before.
    pub(super) fn advance(&mut self) -> Result<()> {
        let tables = self.archive.refresh()?;
        let fresh = tables.waiting_to_be_freed.values().any(|epoch| *epoch >= tables.epoch);
        if fresh && self.others_left(tables.epoch)? {
            self.archive.commit(true, |_| Ok(vec![Record::EpochAdvanced]))?;
        }
        Ok(())
    }

    /// Waits for readers of what was merged, frees it, and takes the reserve again.
    fn last(&mut self) -> Result<()> {
        self.advance()?;
        self.free()?;
        self.rewriter.appender.trim()?;
        self.note()?;
        let (now, before) = (self.archive.tables().write_cost, self.before);
        self.done.merge_bytes = now.merge_bytes.saturating_sub(before.merge_bytes);
        self.done.copied_chunk_bytes =
            now.reencoded_chunk_bytes.saturating_sub(before.reencoded_chunk_bytes);
        self.done.encoded_chunks = now.encoded_chunks.saturating_sub(before.encoded_chunks);
        self.done.encoded_chunk_bytes =
            now.encoded_chunk_bytes.saturating_sub(before.encoded_chunk_bytes);
        self.done.encode_bytes = now.encode_bytes.saturating_sub(before.encode_bytes);
        self.done.held_back = self.archive.tables().waiting_to_be_freed.len() as u64;
        self.archive.reserve().restore(self.options.reserve_bytes)
    }

    /// Takes note that a collection went through, for who watches over the archive.
    fn note(&self) -> Result<()> {
        if self.done.cut_short || self.done.waits {
            return Ok(());
        }
        let note = Record::CareNoted(CareNote::Collected(self.options.now));
        match self.archive.commit(true, |_| Ok(vec![note])) {
            // The space is free already; a note is no reason to fail.
            Err(error) if error.kind() == Kind::NoSpace => Ok(()),
            noted => noted.map(drop),
        }
    }

    /// Removes files that nothing names.
    fn remove_orphans(&self) -> Result<()> {
        // Listed before the log is read: a segment is recorded before its file is made.
        let names = self.archive.files.names()?;
        let tables = self.archive.refresh()?;
        let mut removed = false;
        // New counts get a higher number than a file has that a lost frame may name.
        let highest = highest_counts(&names);
        // Where their directory can't be read, nobody knows which files it names.
        let counted = files_of_counts(&self.archive, tables.named_counts());
        let is_named = |n: &u64| counted.as_ref().map_or(true, |files| files.contains(n));
        for name in names {
            let counts = counts_number(&name);
            let orphan = segment_number(&name).is_some_and(|n| !tables.segments.contains_key(&n))
                || counts.is_some_and(|n| !is_named(&n) && n != highest.max(tables.counts));
            if orphan {
                self.archive.files.remove(&name)?;
                removed = true;
            }
        }
        if removed { self.archive.files.sync_names() } else { Ok(()) }
    }
}
