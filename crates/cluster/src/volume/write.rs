//! Foreground writes: one operation an object, as a [plan](super::plan) says. It compares every
//! entry that it changes with the value that the owner knows.
//!
//! After a mismatch the map is read, and the write is decided again. After a lost reply the map is
//! read as well: our stamp shows that the write was applied, the old one that it may be sent again
//! unchanged. A late copy of the operation finds another value, since no entry value ever comes
//! back, and does nothing.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use onefold_core::object::{Change, Guard, Refusal, Write};

use super::{
    inline::InlineWrites,
    long_discards::LongDiscards,
    objects::{Fill, Job, Known, Object, Objects, TURNS},
    plan::Plan,
};
use crate::{
    chunk_map::{ChunkMap, stamp_value},
    format::{
        ObjectId, Stamp, corrupt,
        entry::{self, Entry, Sums},
        key,
    },
    kernel::{Fate, Operation, Outcome},
    post_processing::flip::Deduplication,
    rules::Rule,
    settings::Dedup,
};

/// Writes to the objects of one volume.
pub(super) struct Writes {
    objects: Arc<Objects>,
    discards: Arc<LongDiscards>,
    /// There while writes are deduplicated as they come.
    inline: Option<InlineWrites>,
}

impl Writes {
    pub(super) fn new(
        objects: Arc<Objects>,
        discards: Arc<LongDiscards>,
        inline: Option<InlineWrites>,
    ) -> Writes {
        Writes { objects, discards, inline }
    }

    /// Makes a range of one object read as `fill`.
    pub(super) fn fill(
        &self,
        index: u64,
        range: Range<u32>,
        fill: Fill<'_>,
    ) -> Result<(), Refusal> {
        let object = self.objects.get(index);
        let mut object = object.lock();
        self.discard_first(index, &mut object)?;
        self.fill_object(index, &mut object, &[(range, fill)], None)?;
        self.flush_through(index, &mut object);
        Ok(())
    }

    /// Writes to locked objects, all in flight together; a result for each.
    pub(super) fn write_all(&self, jobs: &mut [Job<'_, '_>]) -> Vec<Result<(), Refusal>> {
        match &self.inline {
            Some(inline) => self.write_inline(inline, jobs),
            None => self.write_dirty(jobs),
        }
    }

    fn write_inline(
        &self,
        inline: &InlineWrites,
        jobs: &mut [Job<'_, '_>],
    ) -> Vec<Result<(), Refusal>> {
        let mut results: Vec<Result<(), Refusal>> =
            jobs.iter_mut().map(|(index, object, _)| self.discard_first(*index, object)).collect();
        let ready = jobs.iter_mut().zip(&results).filter(|(_, result)| result.is_ok());
        let mut ready: Vec<Job<'_, '_>> =
            ready.map(|((index, object, fills), _)| (*index, &mut **object, *fills)).collect();
        let mut done = inline.write_all(&mut ready, None).into_iter();
        results
            .iter_mut()
            .filter(|result| result.is_ok())
            .for_each(|result| *result = done.next().unwrap_or(Err(Refusal::Unknown)));
        results
    }

    fn write_dirty(&self, jobs: &mut [Job<'_, '_>]) -> Vec<Result<(), Refusal>> {
        let mut results = self.objects.learn_all(jobs);
        let (mut batch, mut sent) = (Vec::new(), Vec::new());
        for (n, (index, object, fills)) in jobs.iter_mut().enumerate() {
            let mut write = ObjectWrite::new(self, *index, object, fills, None);
            let reached =
                results[n].clone().and_then(|()| self.discard_first(*index, write.object));
            match reached.and_then(|()| write.plan()) {
                Ok(Some(op)) => {
                    batch.push((write, op));
                    sent.push(n);
                }
                Ok(None) => results[n] = self.objects.join_dirty_list(*index, write.object),
                Err(Refusal::Missing) => {
                    results[n] = self.fill_object(*index, write.object, fills, None)
                }
                Err(refusal) => results[n] = Err(refusal),
            }
        }
        let mut sent = sent.into_iter();
        self.objects.kernel().carry_out_all(batch, |write, outcome| {
            let ended = write.ended(outcome);
            sent.by_ref().take(1).for_each(|n| results[n] = ended.clone());
        });
        for ((index, object, _), _) in
            jobs.iter_mut().zip(&results).filter(|(_, result)| result.is_ok())
        {
            self.flush_through(*index, object);
        }
        results
    }

    /// Deduplicates an object at once, if the settings say so. The object is written and on the
    /// dirty list, so a worker does the rest if this fails.
    fn flush_through(&self, index: u64, object: &mut Object) {
        if self.objects.kernel().settings().dedup == Dedup::FlushThrough {
            object.forget();
            let _ = Deduplication::of(self.objects.session()).flush_through(self.objects.id(index));
        }
    }

    /// Makes ranges of one locked object read as their fills, in their order. `discarded` is the
    /// number of the long discard that the fills belong to; the object records it.
    fn fill_object(
        &self,
        index: u64,
        object: &mut Object,
        fills: &[(Range<u32>, Fill<'_>)],
        discarded: Option<Stamp>,
    ) -> Result<(), Refusal> {
        if let Some(inline) = &self.inline {
            return inline.write_all(&mut [(index, object, fills)], discarded).remove(0);
        }
        let mut write = ObjectWrite::new(self, index, object, fills, discarded);
        let outcome = match write.decide_from_known()? {
            Some(op) => self.objects.kernel().carry_out_decided(&mut write, op),
            None => Ok(Outcome::GivenUp),
        };
        write.ended(outcome)
    }

    /// Before a write into an object: long discards reach it.
    fn discard_first(&self, index: u64, object: &mut Object) -> Result<(), Refusal> {
        self.discards.resolve()?;
        self.objects.make_own(index, object)?;
        let Some(number) = self.discards.newest(index) else { return Ok(()) };
        if !self.objects.kernel().keeps(Rule::DiscardBeforeWrite) {
            return Ok(());
        }
        self.reach(index, object, number)
    }

    /// Makes an object zeroes, unless this long discard or a later one was there.
    pub(super) fn reach(
        &self,
        index: u64,
        object: &mut Object,
        number: Stamp,
    ) -> Result<(), Refusal> {
        self.objects.make_own(index, object)?;
        let known = self.objects.known(index, object)?;
        let is_there = known.exists || !object.in_doubt().is_empty();
        if !is_there || known.discarded >= number {
            return Ok(());
        }
        let whole = 0..self.objects.kernel().format().object_bytes;
        self.fill_object(index, object, &[(whole, Fill::Zeroes)], Some(number))
    }

    /// Turns chunks that the range covers whole into zeroes, and their bases into pending drops.
    /// The operation compares the object's version: only then there is certainly room for the
    /// drops, and a late copy does nothing.
    fn let_go(&self, index: u64, object: &mut Object, range: &Range<u32>) -> Result<(), Refusal> {
        let covered = |at: u32, entry: &Entry| {
            entry.base.is_some() && range.start <= at && at + entry.length <= range.end
        };
        let objects = &self.objects;
        for _ in 0..TURNS {
            let known = objects.known(index, object)?;
            if !known.entries.iter().any(|(at, entry)| covered(*at, entry)) {
                return Ok(());
            }
            let id = objects.id(index);
            let Some(map) = ChunkMap::read(objects.kernel(), id)? else {
                return Err(objects.lost(index));
            };
            object.forget();
            let chunks: Vec<(u32, Entry)> = map
                .entries
                .iter()
                .filter(|(at, entry)| covered(**at, entry))
                .map(|(at, entry)| (*at, entry.clone()))
                .collect();
            if !objects.kernel().may_leave_drops(map.pending.len(), chunks.len()) {
                objects.session().chunk_pool().finish_drops(&map.pending)?;
                continue;
            }
            let (op, listed) = let_go_op(&map, id, &chunks, objects.kernel().stamp());
            object.expect_listing(listed);
            match objects.kernel().write_one(&op) {
                Ok(_) => return objects.join_dirty_list(index, object),
                Err(Refusal::Mismatch | Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Mismatch)
    }
}

/// The operation of [`let_go`](Writes::let_go), and the list stamp that it sets.
fn let_go_op(
    map: &ChunkMap,
    id: ObjectId,
    chunks: &[(u32, Entry)],
    stamp: Stamp,
) -> (Write, Option<Stamp>) {
    let listed = map.listed.is_none().then_some(stamp);
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> =
        listed.iter().map(|stamp| (key::LISTED.to_vec(), stamp_value(*stamp))).collect();
    let mut changes = Vec::new();
    for (at, old) in chunks {
        let new = Entry {
            dirty: false,
            mask: 0,
            base: None,
            stamp,
            sums: Sums::NONE,
            length: old.length,
        };
        pairs.push((key::entry(*at), new.encode(id, *at)));
        if let Some((chunk, reference)) = old.reference(id, *at) {
            pairs
                .push((key::pending(*at, reference.stamp), entry::encode_pending(id, *at, &chunk)));
        }
        if old.mask != 0 {
            changes.push(Change::Zero((*at).into(), old.length.into()));
        }
    }
    changes.push(Change::SetOmap(pairs));
    (Write { object: id.name(), guards: vec![Guard::Version(map.version)], changes }, listed)
}

/// A write to one object, which is locked.
struct ObjectWrite<'a, 'f> {
    writes: &'a Writes,
    index: u64,
    object: &'a mut Object,
    fills: &'a [(Range<u32>, Fill<'f>)],
    /// The long discard that it is part of.
    discarded: Option<Stamp>,
    /// The map, and the plan that was decided from it.
    decided: Option<(Known, Plan)>,
    /// The map that named a chunk which was gone.
    gone: Option<BTreeMap<u32, Entry>>,
    /// A copy of the operation that was decided last may be on its way.
    looked: bool,
}

impl<'a, 'f> ObjectWrite<'a, 'f> {
    fn new(
        writes: &'a Writes,
        index: u64,
        object: &'a mut Object,
        fills: &'a [(Range<u32>, Fill<'f>)],
        discarded: Option<Stamp>,
    ) -> ObjectWrite<'a, 'f> {
        ObjectWrite {
            writes,
            index,
            object,
            fills,
            discarded,
            decided: None,
            gone: None,
            looked: false,
        }
    }

    /// Decides from the map as it is remembered. [`Refusal::Missing`] when a chunk is gone that it
    /// names.
    fn plan(&mut self) -> Result<Option<Write>, Refusal> {
        let Writes { objects, discards, .. } = self.writes;
        let known = objects.known(self.index, self.object)?;
        if known.copying {
            // Another session copies it: the write is decided again once it is the volume's own.
            return Err(Refusal::Missing);
        }
        let seen = (&known, self.object.in_doubt());
        let plan = Plan::decide(objects, discards, self.index, seen, self.fills, self.discarded)?;
        let Some(plan) = plan else { return Ok(None) };
        self.object.expect_listing(plan.listed());
        let op = plan.op().clone();
        self.decided = Some((known, plan));
        Ok(Some(op))
    }

    /// The same, after whole chunks that become zeroes let go of their bases; a chunk that is gone
    /// is looked for in the map as it is now.
    fn decide_from_known(&mut self) -> Result<Option<Write>, Refusal> {
        for _ in 0..TURNS {
            self.writes.objects.make_own(self.index, self.object)?;
            for (range, _) in self.fills.iter().filter(|(_, fill)| matches!(fill, Fill::Zeroes)) {
                self.writes.let_go(self.index, self.object, range)?;
            }
            match self.plan() {
                Err(Refusal::Missing) => self.look_again()?,
                planned => return planned,
            }
        }
        Err(Refusal::Mismatch)
    }

    /// A chunk is gone that the map names as it is remembered: a worker may have put another one in
    /// its place. When the map still names it, it is damage.
    fn look_again(&mut self) -> Result<(), Refusal> {
        if !self.writes.objects.kernel().keeps(Rule::GoneBaseReadAgain) {
            return Err(Refusal::Missing);
        }
        let named = self.object.known().map(|known| known.entries.clone());
        if self.gone.is_some() && self.gone == named {
            let id = self.writes.objects.id(self.index);
            let text = format_args!("a chunk of object {id} is missing");
            return Err(Refusal::Failed(corrupt(text)));
        }
        self.gone = named;
        self.object.forget();
        Ok(())
    }

    /// Completes the write before it is acknowledged.
    fn ended(self, outcome: Result<Outcome, Refusal>) -> Result<(), Refusal> {
        let outcome = match (outcome, &self.decided) {
            (Err(refusal), decided) => {
                if let Some((_, plan)) = decided
                    && self.looked
                {
                    self.object.doubt(plan.chunks());
                }
                return Err(refusal);
            }
            (Ok(outcome), Some((_, plan))) => {
                if outcome != Outcome::GivenUp {
                    self.object.overtake(plan.chunks());
                }
                outcome
            }
            (Ok(outcome), None) => outcome,
        };
        match (outcome, self.decided) {
            (Outcome::Applied, Some((known, plan))) => self.object.learn(plan.after(known)),
            // An earlier write may have failed on its way to the list.
            (Outcome::GivenUp, _)
                if self.object.is_listed()
                    || !self.object.known().is_some_and(|known| known.exists) =>
            {
                return Ok(());
            }
            _ => {}
        }
        self.writes.objects.join_dirty_list(self.index, self.object)
    }
}

impl Operation<Known> for ObjectWrite<'_, '_> {
    fn decisions(&self) -> u32 {
        TURNS
    }

    fn look(&mut self) -> Result<Known, Refusal> {
        self.looked = true;
        self.object.forget();
        self.writes.objects.known(self.index, self.object)
    }

    fn decide(&mut self, _: &Known) -> Result<Option<Write>, Refusal> {
        // The write that was decided before will never be applied.
        if let Some((_, plan)) = self.decided.take() {
            self.object.withdraw_listing(plan.listed());
        }
        self.looked = false;
        self.decide_from_known()
    }

    /// Our stamp shows that the write was applied. Otherwise the same operation may be sent again,
    /// since it compares the values it was decided from.
    fn resolve(&self, now: &Known) -> Fate {
        let Some((_, plan)) = &self.decided else { return Fate::Overtaken };
        if !self.writes.objects.kernel().keeps(Rule::RetryKeepsStamp) {
            Fate::Overtaken
        } else if plan.is_applied(now) {
            Fate::Applied
        } else {
            Fate::Unchanged
        }
    }
}
