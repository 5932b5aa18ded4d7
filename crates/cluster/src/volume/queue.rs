//! Writes that wait for each other: while some are on their way, those that come are gathered, and
//! go out together as one operation an object.
//!
//! A write is acknowledged when its ticket was waited for, and durable then. Whoever waits sends
//! what waits for all and may go (group commit), while other groups are on their way; who finds
//! nothing to send sleeps. A read of what waits, and every change that is not a write, lets it go
//! first.
//!
//! *Invariant:* of each object one write is on its way at a time, and none overtakes another one to
//! the same object: writes of one place land in the order in which they came.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Range, RangeInclusive},
};

use onefold_core::{
    Error, Kind, Result, Ticket,
    object::{Read, Refusal, Write},
};

use parking_lot::MutexGuard;

use super::{Known, Object, Volume, inline::Job, write::Fill};
use crate::{chunk_map::map_parts, session::Session, settings::PlantedBug};

/// Bytes that wait at most; who brings more sends them.
const WAITING_BYTES: usize = 32 << 20;

/// Groups on their way together, at most: each has a thread that waits for it.
const GROUPS_MAX: usize = 16;

/// Failures that nobody has asked for yet, at most; beyond that only the ticket of the last one
/// forgotten is kept, and those up to it count as failed.
const FAILED_MAX: usize = 4096;

/// A write that waits.
struct Waiting {
    ticket: u64,
    offset: u64,
    data: Vec<u8>,
}

impl Waiting {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }

    fn objects(&self, object_bytes: u64) -> RangeInclusive<u64> {
        let last = self.offset + (self.data.len() as u64).max(1) - 1;
        self.offset / object_bytes..=last / object_bytes
    }
}

/// Writes that wait, and what became of others.
#[derive(Default)]
pub(super) struct Queue {
    /// The ticket given last.
    last: u64,
    waiting: Vec<Waiting>,
    /// Bytes of those that wait.
    bytes: usize,
    /// Tickets and places of those that are on their way.
    flying: BTreeMap<u64, Range<u64>>,
    /// Objects that they are for.
    busy: BTreeSet<u64>,
    groups: usize,
    failed: BTreeMap<u64, Error>,
    /// The last ticket whose failure was forgotten.
    forgotten: u64,
}

impl Queue {
    /// Keeps what failed until somebody asks for it.
    fn keep(&mut self, failed: BTreeMap<u64, Error>) {
        self.failed.extend(failed);
        while self.failed.len() > FAILED_MAX {
            let first = self.failed.pop_first();
            self.forgotten = self.forgotten.max(first.map_or(0, |(ticket, _)| ticket));
        }
    }

    /// What became of a write that is over.
    fn ended(&mut self, ticket: u64) -> Result<()> {
        match self.failed.remove(&ticket) {
            Some(error) => Err(error),
            // Ticket 0 is that of what was over when it was asked for.
            None if (1..=self.forgotten).contains(&ticket) => Err(Error::new(
                Kind::Io,
                "too many writes failed to tell whether this is one of them",
            )),
            None => Ok(()),
        }
    }

    /// True until all up to this ticket are over.
    fn is_open(&self, ticket: u64) -> bool {
        self.flying.first_key_value().is_some_and(|(first, _)| *first <= ticket)
            || self.waiting.first().is_some_and(|waiting| waiting.ticket <= ticket)
    }

    /// True until this very one is over.
    fn is_under_way(&self, ticket: u64) -> bool {
        self.flying.contains_key(&ticket)
            || self.waiting.iter().any(|waiting| waiting.ticket == ticket)
    }

    /// Takes those that may go: whose objects are not busy, and not those of one that stays.
    fn dequeue(&mut self, object_bytes: u64) -> Vec<Waiting> {
        if self.groups >= GROUPS_MAX {
            return Vec::new();
        }
        let mut held = self.busy.clone();
        let goes = |waiting: &Waiting| {
            let objects = waiting.objects(object_bytes);
            let free = objects.clone().all(|object| !held.contains(&object));
            if !free {
                held.extend(objects);
            }
            free
        };
        let (taken, stay): (Vec<Waiting>, Vec<Waiting>) =
            std::mem::take(&mut self.waiting).into_iter().partition(goes);
        self.waiting = stay;
        for waiting in &taken {
            self.bytes -= waiting.data.len();
            self.flying.insert(waiting.ticket, waiting.range());
            self.busy.extend(waiting.objects(object_bytes));
        }
        self.groups += usize::from(!taken.is_empty());
        taken
    }
}

/// A part of a write that falls on one object.
struct Part<'a> {
    ticket: u64,
    range: Range<u32>,
    data: &'a [u8],
}

/// What a part makes of the object.
fn fills<'a>(parts: &[Part<'a>]) -> Vec<(Range<u32>, Fill<'a>)> {
    parts.iter().map(|part| (part.range.clone(), Fill::Bytes(part.data))).collect()
}

/// A group on its way; when it is over, also by a panic, others may go.
struct Group<'a> {
    volume: &'a Volume,
    taken: Vec<Waiting>,
    /// What failed; nothing is known before it was sent.
    failed: Option<BTreeMap<u64, Error>>,
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let panicked = || Error::new(Kind::Io, "the server failed while it wrote");
        let failed = self.failed.take().unwrap_or_else(|| {
            self.taken.iter().map(|waiting| (waiting.ticket, panicked())).collect()
        });
        let mut queue = self.volume.queue.lock();
        queue.keep(failed);
        for waiting in &self.taken {
            queue.flying.remove(&waiting.ticket);
            for object in waiting.objects(self.volume.object_bytes()) {
                queue.busy.remove(&object);
            }
        }
        queue.groups -= 1;
        drop(queue);
        self.volume.queue_changed.notify_all();
    }
}

impl Volume {
    /// Takes a write; it is acknowledged, and durable, after [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// `InvalidInput` beyond the end, `Denied` where the volume is attached for reading.
    pub fn write_later(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.writable()?;
        self.within(offset, data.len() as u64)?;
        self.foreground(data.len() as u64);
        if self.queue.lock().bytes + data.len() > WAITING_BYTES {
            self.drain();
        }
        let mut queue = self.queue.lock();
        queue.last += 1;
        let ticket = queue.last;
        queue.bytes += data.len();
        queue.waiting.push(Waiting { ticket, offset, data: data.to_vec() });
        Ok(Ticket(ticket))
    }

    /// Waits until a write is over.
    ///
    /// # Errors
    /// `NoSpace` when the store is full, `Stopped` when another server took the volume over.
    pub fn wait_for(&self, ticket: Ticket) -> Result<()> {
        self.over(|queue| queue.is_under_way(ticket.0));
        self.queue.lock().ended(ticket.0)
    }

    /// Waits until all writes that were taken are over, well or not.
    pub(super) fn drain(&self) {
        let last = self.queue.lock().last;
        self.over(|queue| queue.is_open(last));
    }

    /// Lets writes of a place go first.
    pub(super) fn drain_place(&self, place: Range<u64>) {
        let meets = |other: &Range<u64>| other.start < place.end && place.start < other.end;
        let meets = {
            let queue = self.queue.lock();
            queue.flying.values().any(meets)
                || queue.waiting.iter().any(|waiting| meets(&waiting.range()))
        };
        if meets {
            self.drain();
        }
    }

    /// Sends what may go, and waits, until it is no longer so.
    fn over(&self, open: impl Fn(&Queue) -> bool) {
        let mut queue = self.queue.lock();
        while open(&queue) {
            let taken = queue.dequeue(self.object_bytes());
            if taken.is_empty() {
                self.queue_changed.wait(&mut queue);
                continue;
            }
            drop(queue);
            let mut group = Group { volume: self, taken, failed: None };
            group.failed = Some(self.send_all(&group.taken));
            drop(group);
            queue = self.queue.lock();
        }
    }

    /// Sends writes, those of one object in one operation; the tickets of those that failed.
    fn send_all(&self, taken: &[Waiting]) -> BTreeMap<u64, Error> {
        let mut parts: BTreeMap<u64, Vec<Part<'_>>> = BTreeMap::new();
        for waiting in taken {
            let mut done = 0;
            while done < waiting.data.len() {
                let at = waiting.offset + done as u64;
                let within = at % self.object_bytes();
                let bytes =
                    (self.object_bytes() - within).min((waiting.data.len() - done) as u64) as usize;
                let range = within as u32..within as u32 + bytes as u32;
                let part =
                    Part { ticket: waiting.ticket, range, data: &waiting.data[done..done + bytes] };
                parts.entry(at / self.object_bytes()).or_default().push(part);
                done += bytes;
            }
        }
        let objects: Vec<_> = parts.keys().map(|index| self.object(*index)).collect();
        // In the order of their places: whoever else holds one waits for no other.
        let mut held: Vec<_> = objects.iter().map(|object| object.lock()).collect();
        let results = if self.inline.is_some() {
            self.send_inline(&parts, &mut held)
        } else {
            self.send_dirty(&parts, &mut held)
        };
        let mut failed = BTreeMap::new();
        for ((index, parts), result) in parts.iter().zip(results) {
            if let Err(refusal) = result {
                let error = self.failed(*index, refusal);
                failed.extend(parts.iter().map(|part| (part.ticket, error.clone())));
            }
        }
        failed
    }

    fn send_inline(
        &self,
        parts: &BTreeMap<u64, Vec<Part<'_>>>,
        held: &mut [MutexGuard<'_, Object>],
    ) -> Vec<Result<(), Refusal>> {
        let reached = parts
            .keys()
            .zip(held.iter_mut())
            .map(|(index, object)| self.discard_first(*index, object));
        let mut results: Vec<Result<(), Refusal>> = reached.collect();
        let fills: Vec<Vec<(Range<u32>, Fill<'_>)>> =
            parts.values().map(|parts| fills(parts)).collect();
        let objects = parts.keys().zip(held.iter_mut()).zip(&fills).zip(&results);
        let ready = objects.filter(|(_, result)| result.is_ok());
        let mut jobs: Vec<Job<'_, '_>> = ready
            .map(|(((index, object), fills), _)| (*index, &mut **object, fills.as_slice()))
            .collect();
        let mut done = self.inline_all(&mut jobs, None).into_iter();
        results
            .iter_mut()
            .filter(|result| result.is_ok())
            .for_each(|result| *result = done.next().unwrap_or(Err(Refusal::Unknown)));
        results
    }

    fn send_dirty(
        &self,
        parts: &BTreeMap<u64, Vec<Part<'_>>>,
        held: &mut [MutexGuard<'_, Object>],
    ) -> Vec<Result<(), Refusal>> {
        let mut results: Vec<Result<(), Refusal>> =
            self.learn_all(parts.keys().copied(), held.iter_mut().map(|object| &mut **object));
        let mut plans = Vec::new();
        for (n, (index, parts)) in parts.iter().enumerate() {
            let fills = fills(parts);
            let planned = results[n].clone().and_then(|()| {
                self.discard_first(*index, &mut held[n])?;
                let known = self.known(*index, &mut held[n])?;
                let plan = self.plan(*index, &known, &fills, None)?;
                held[n].not_yet_listed.extend(plan.as_ref().and_then(|plan| plan.listed));
                Ok(plan.map(|plan| (n, *index, known, plan)))
            });
            match planned {
                Ok(Some(plan)) => plans.push((plan, fills)),
                Ok(None) => results[n] = self.join_dirty_list(*index, &mut held[n]),
                Err(Refusal::Missing) => {
                    results[n] = self.fill_object(*index, &mut held[n], &fills, None)
                }
                Err(refusal) => results[n] = Err(refusal),
            }
        }
        let ops: Vec<Write> = plans.iter().map(|((.., plan), _)| plan.op.clone()).collect();
        let first = self.session.write_all(&ops);
        for (((n, index, known, plan), fills), first) in plans.into_iter().zip(first) {
            let object = &mut held[n];
            results[n] = match self.resolve(index, object, known, &plan, first) {
                Ok(true) => self.join_dirty_list(index, object),
                Ok(false) => self.fill_object(index, object, &fills, None),
                Err(refusal) => Err(refusal),
            };
        }
        for ((index, object), _) in
            parts.keys().zip(held).zip(&results).filter(|(_, result)| result.is_ok())
        {
            self.flush_through(*index, object);
        }
        results
    }

    /// Reads the maps that are not remembered, in flight together.
    fn learn_all<'a>(
        &self,
        indexes: impl Iterator<Item = u64>,
        objects: impl Iterator<Item = &'a mut Object>,
    ) -> Vec<Result<(), Refusal>> {
        let mut results = Vec::new();
        let mut unknown = Vec::new();
        for (n, (index, object)) in indexes.zip(objects).enumerate() {
            results.push(Ok(()));
            if object.known.is_none() {
                unknown.push((n, index, object));
            }
        }
        let reads: Vec<Read> = unknown
            .iter()
            .map(|(_, index, _)| Read { object: self.object_id(*index).name(), parts: map_parts() })
            .collect();
        for ((n, index, object), answer) in unknown.into_iter().zip(self.session.read_all(&reads)) {
            results[n] = Session::parse_map(self.object_id(index), answer).and_then(|map| {
                if map.is_none()
                    && self.bits.lock().has(index)
                    && !self.session.planted(PlantedBug::MissingAsZeroes)
                {
                    return Err(self.lost(index));
                }
                object.learn(Some(Known::of(map)));
                Ok(())
            });
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(ticket: u64, offset: u64, bytes: usize) -> Waiting {
        Waiting { ticket, offset, data: vec![0; bytes] }
    }

    #[test]
    fn rule_00_no_failed_write_is_told_to_have_gone_well() {
        let mut queue = Queue::default();
        let failed = |tickets: Range<u64>| {
            tickets.map(|ticket| (ticket, Error::new(Kind::NoSpace, "full"))).collect()
        };
        queue.keep(failed(1..10_001));
        assert!((1..10_001).all(|ticket| queue.ended(ticket).is_err()));
        assert!(
            queue.failed.is_empty()
                && queue.ended(10_001).is_ok()
                && queue.ended(0).is_ok()
                && Queue::default().ended(0).is_ok()
        );
    }

    #[test]
    fn groups_share_no_object_and_nothing_overtakes() {
        let mut queue = Queue { last: 4, bytes: 400, ..Queue::default() };
        queue.waiting = vec![waiting(1, 0, 100), waiting(2, 1000, 100)];
        let tickets =
            |taken: &[Waiting]| taken.iter().map(|waiting| waiting.ticket).collect::<Vec<_>>();
        assert_eq!(tickets(&queue.dequeue(1000)), [1, 2]);
        // The first meets what is on its way, the second the first; the third is free.
        queue.waiting = vec![waiting(3, 1950, 100), waiting(4, 2500, 50), waiting(5, 7000, 50)];
        assert_eq!(tickets(&queue.dequeue(1000)), [5]);
        assert_eq!((queue.groups, queue.bytes, queue.busy.len()), (2, 150, 3));
        assert!(queue.is_open(1) && queue.is_under_way(4) && !queue.is_under_way(6));
        queue.busy.remove(&1);
        assert_eq!(tickets(&queue.dequeue(1000)), [3, 4]);
        queue.waiting = vec![waiting(6, 9000, 0)];
        queue.groups = GROUPS_MAX;
        assert!(queue.dequeue(1000).is_empty());
    }
}
