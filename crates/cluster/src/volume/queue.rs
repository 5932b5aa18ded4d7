//! Writes that wait for each other: while some are on their way, those that come are gathered, and go out together as one operation an object.
//!
//! A write is acknowledged when its ticket was waited for, and durable then. Whoever waits first sends what waits for all (group commit); the others
//! sleep. A read of what waits, and every change that is not a write, lets it go first.
//!
//! *Invariant:* one group is on its way at a time, so that writes of one place land in the order in which they came.

use std::{collections::BTreeMap, ops::Range};

use onefold_core::{
    Error, Result, Ticket,
    object::{Read, Refusal, Write},
};

use parking_lot::MutexGuard;

use super::{Known, Object, Volume, inline::Job, write::Fill};
use crate::{map::map_looks, session::Session, settings::PlantedBug};

/// Bytes that wait at most; who brings more sends them.
const WAITING_BYTES: usize = 32 << 20;

/// Failures that nobody has asked for yet, at most; the oldest is forgotten.
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
}

/// Writes that wait, and what became of others.
#[derive(Default)]
pub(super) struct Queue {
    /// The ticket given last.
    last: u64,
    /// Those up to this one are over.
    done: u64,
    waiting: Vec<Waiting>,
    bytes: usize,
    /// Places that are on their way.
    flying: Vec<Range<u64>>,
    leading: bool,
    failed: BTreeMap<u64, Error>,
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

/// Lets somebody else lead, also after a panic.
struct Lead<'a> {
    volume: &'a Volume,
    last: u64,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut queue = self.volume.queue.lock();
        queue.leading = false;
        queue.done = self.last;
        queue.flying.clear();
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
        self.over(ticket.0);
        self.queue.lock().failed.remove(&ticket.0).map_or(Ok(()), Err)
    }

    /// Waits until all writes that were taken are over, well or not.
    pub(super) fn drain(&self) {
        let last = self.queue.lock().last;
        self.over(last);
    }

    /// Lets writes of a place go first.
    pub(super) fn drain_place(&self, place: Range<u64>) {
        let meets = |other: &Range<u64>| other.start < place.end && place.start < other.end;
        let meets = {
            let queue = self.queue.lock();
            queue.flying.iter().any(meets) || queue.waiting.iter().any(|waiting| meets(&waiting.range()))
        };
        if meets {
            self.drain();
        }
    }

    fn over(&self, ticket: u64) {
        let mut queue = self.queue.lock();
        while queue.done < ticket {
            if queue.leading {
                self.queue_changed.wait(&mut queue);
                continue;
            }
            let taken = std::mem::take(&mut queue.waiting);
            queue.leading = true;
            queue.bytes = 0;
            queue.flying = taken.iter().map(Waiting::range).collect();
            let lead = Lead { volume: self, last: queue.last };
            drop(queue);
            let failed = self.send_all(&taken);
            queue = self.queue.lock();
            queue.failed.extend(failed);
            while queue.failed.len() > FAILED_MAX {
                queue.failed.pop_first();
            }
            drop(queue);
            drop(lead);
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
                let bytes = (self.object_bytes() - within).min((waiting.data.len() - done) as u64) as usize;
                let range = within as u32..within as u32 + bytes as u32;
                let part = Part { ticket: waiting.ticket, range, data: &waiting.data[done..done + bytes] };
                parts.entry(at / self.object_bytes()).or_default().push(part);
                done += bytes;
            }
        }
        let objects: Vec<_> = parts.keys().map(|index| self.object(*index)).collect();
        // In the order of their places: whoever else holds one waits for no other.
        let mut held: Vec<_> = objects.iter().map(|object| object.lock()).collect();
        let results = if self.inline.is_some() { self.send_inline(&parts, &mut held) } else { self.send_dirty(&parts, &mut held) };
        let mut failed = BTreeMap::new();
        for ((index, parts), result) in parts.iter().zip(results) {
            if let Err(refusal) = result {
                let error = self.failed(*index, refusal);
                failed.extend(parts.iter().map(|part| (part.ticket, error.clone())));
            }
        }
        failed
    }

    fn send_inline(&self, parts: &BTreeMap<u64, Vec<Part<'_>>>, held: &mut [MutexGuard<'_, Object>]) -> Vec<Result<(), Refusal>> {
        let reached = parts.keys().zip(held.iter_mut()).map(|(index, object)| self.discard_first(*index, object));
        let mut results: Vec<Result<(), Refusal>> = reached.collect();
        let fills: Vec<Vec<(Range<u32>, Fill<'_>)>> = parts.values().map(|parts| fills(parts)).collect();
        let objects = parts.keys().zip(held.iter_mut()).zip(&fills).zip(&results);
        let ready = objects.filter(|(_, result)| result.is_ok());
        let mut jobs: Vec<Job<'_, '_>> = ready.map(|(((index, object), fills), _)| (*index, &mut **object, fills.as_slice())).collect();
        let mut done = self.inline_all(&mut jobs, None).into_iter();
        results.iter_mut().filter(|result| result.is_ok()).for_each(|result| *result = done.next().unwrap_or(Err(Refusal::Unknown)));
        results
    }

    fn send_dirty(&self, parts: &BTreeMap<u64, Vec<Part<'_>>>, held: &mut [MutexGuard<'_, Object>]) -> Vec<Result<(), Refusal>> {
        let mut results: Vec<Result<(), Refusal>> = self.learn_all(parts.keys().copied(), held.iter_mut().map(|object| &mut **object));
        let mut plans = Vec::new();
        for (n, (index, parts)) in parts.iter().enumerate() {
            let fills = fills(parts);
            let planned = results[n].clone().and_then(|()| {
                self.discard_first(*index, &mut held[n])?;
                let known = self.known(*index, &mut held[n])?;
                let plan = self.plan(*index, &known, &fills, None)?;
                held[n].owed.extend(plan.as_ref().and_then(|plan| plan.listed));
                Ok(plan.map(|plan| (n, *index, known, plan)))
            });
            match planned {
                Ok(Some(plan)) => plans.push((plan, fills)),
                Ok(None) => results[n] = self.settle(*index, &mut held[n]),
                Err(refusal) => results[n] = Err(refusal),
            }
        }
        let ops: Vec<Write> = plans.iter().map(|((.., plan), _)| plan.op.clone()).collect();
        let first = self.session.write_all(&ops);
        for (((n, index, known, plan), fills), first) in plans.into_iter().zip(first) {
            let object = &mut held[n];
            results[n] = match self.conclude(index, object, known, &plan, first) {
                Ok(true) => self.settle(index, object),
                Ok(false) => self.fill_object(index, object, &fills, None),
                Err(refusal) => Err(refusal),
            };
        }
        for ((index, object), _) in parts.keys().zip(held).zip(&results).filter(|(_, result)| result.is_ok()) {
            self.flush_through(*index, object);
        }
        results
    }

    /// Reads the maps that are not remembered, in flight together.
    fn learn_all<'a>(&self, indexes: impl Iterator<Item = u64>, objects: impl Iterator<Item = &'a mut Object>) -> Vec<Result<(), Refusal>> {
        let mut results = Vec::new();
        let mut unknown = Vec::new();
        for (n, (index, object)) in indexes.zip(objects).enumerate() {
            results.push(Ok(()));
            if object.known.is_none() {
                unknown.push((n, index, object));
            }
        }
        let reads: Vec<Read> =
            unknown.iter().map(|(_, index, _)| Read { object: self.object_id(*index).name(), looks: map_looks() }).collect();
        for ((n, index, object), sight) in unknown.into_iter().zip(self.session.read_all(&reads)) {
            results[n] = Session::parse_map(self.object_id(index), sight).and_then(|map| {
                if map.is_none() && self.bits.lock().has(index) && !self.session.planted(PlantedBug::MissingAsZeroes) {
                    return Err(self.lost(index));
                }
                object.learn(Some(Known::of(map)));
                Ok(())
            });
        }
        results
    }
}
