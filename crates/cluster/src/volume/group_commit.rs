//! Group commit: while some writes are in flight, later ones are gathered, and sent together as one
//! operation an object.
//!
//! A write is durable, and may be acknowledged, once a client waited for its ticket. A thread that
//! waits sends all writes that may go, while other groups are in flight. A thread that finds
//! nothing to send sleeps. A read of a range with waiting writes, and every change that is not a
//! write, sends the waiting writes first.

use std::{collections::BTreeMap, ops::Range};

use onefold_core::{
    Error, Kind, Result, Ticket,
    object::{Read, Refusal},
};
use parking_lot::MutexGuard;

use super::{
    Volume,
    header::Inline,
    inline::{InlineWrites, Job},
    object::{Fill, Known, Object},
    queue::{Queue, WAITING_BYTES, Waiting},
    write::ObjectWrite,
};
use crate::{
    chunk_map::{ChunkMap, map_parts},
    settings::PlantedBug,
};

/// A part of a write that falls on one object.
struct Part<'a> {
    ticket: u64,
    range: Range<u32>,
    data: &'a [u8],
}

/// The ranges of the object with the data that the parts write to them.
fn fills<'a>(parts: &[Part<'a>]) -> Vec<(Range<u32>, Fill<'a>)> {
    parts.iter().map(|part| (part.range.clone(), Fill::Bytes(part.data))).collect()
}

/// A group on its way; when it is over, also by a panic, others may go.
struct Group<'a> {
    volume: &'a Volume,
    taken: Vec<Waiting>,
    /// Errors by ticket; `None` until the group was sent.
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
    /// Queues a write. The write is acknowledged, and durable, after [`wait_for`](Self::wait_for).
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

    /// Waits until all queued writes are over, whether they succeeded or failed.
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

    /// Sends writes that may go, or waits for other groups, as long as `open` holds.
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
            group.failed = Some(group.send_all());
            drop(group);
            queue = self.queue.lock();
        }
    }
}

impl Group<'_> {
    /// Sends its writes, one operation for each object; returns the tickets of the writes that failed.
    fn send_all(&self) -> BTreeMap<u64, Error> {
        let mut parts: BTreeMap<u64, Vec<Part<'_>>> = BTreeMap::new();
        for waiting in &self.taken {
            let mut done = 0;
            while done < waiting.data.len() {
                let at = waiting.offset + done as u64;
                let within = at % self.volume.object_bytes();
                let bytes = (self.volume.object_bytes() - within)
                    .min((waiting.data.len() - done) as u64) as usize;
                let range = within as u32..within as u32 + bytes as u32;
                let part =
                    Part { ticket: waiting.ticket, range, data: &waiting.data[done..done + bytes] };
                parts.entry(at / self.volume.object_bytes()).or_default().push(part);
                done += bytes;
            }
        }
        let objects: Vec<_> = parts.keys().map(|index| self.volume.object(*index)).collect();
        // Locks are acquired in the order of the objects, so that two groups can't wait for each
        // other.
        let mut held: Vec<_> = objects.iter().map(|object| object.lock()).collect();
        let results = match &self.volume.inline {
            Some(inline) => self.send_inline(inline, &parts, &mut held),
            None => self.send_dirty(&parts, &mut held),
        };
        let mut failed = BTreeMap::new();
        for ((index, parts), result) in parts.iter().zip(results) {
            if let Err(refusal) = result {
                let error = self.volume.failed(*index, refusal);
                failed.extend(parts.iter().map(|part| (part.ticket, error.clone())));
            }
        }
        failed
    }

    fn send_inline(
        &self,
        inline: &Inline,
        parts: &BTreeMap<u64, Vec<Part<'_>>>,
        held: &mut [MutexGuard<'_, Object>],
    ) -> Vec<Result<(), Refusal>> {
        let reached = parts
            .keys()
            .zip(held.iter_mut())
            .map(|(index, object)| self.volume.discard_first(*index, object));
        let mut results: Vec<Result<(), Refusal>> = reached.collect();
        let fills: Vec<Vec<(Range<u32>, Fill<'_>)>> =
            parts.values().map(|parts| fills(parts)).collect();
        let objects = parts.keys().zip(held.iter_mut()).zip(&fills).zip(&results);
        let ready = objects.filter(|(_, result)| result.is_ok());
        let mut jobs: Vec<Job<'_, '_>> = ready
            .map(|(((index, object), fills), _)| (*index, &mut **object, fills.as_slice()))
            .collect();
        let writes = InlineWrites::of(self.volume, inline);
        let mut done = writes.write_all(&mut jobs, None).into_iter();
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
        let fills: Vec<Vec<(Range<u32>, Fill<'_>)>> =
            parts.values().map(|parts| fills(parts)).collect();
        let (mut batch, mut sent) = (Vec::new(), Vec::new());
        for (n, ((index, object), fills)) in
            parts.keys().zip(held.iter_mut()).zip(&fills).enumerate()
        {
            let mut write = ObjectWrite::new(self.volume, *index, object, fills, None);
            let reached =
                results[n].clone().and_then(|()| self.volume.discard_first(*index, write.object));
            match reached.and_then(|()| write.plan()) {
                Ok(Some(op)) => {
                    batch.push((write, op));
                    sent.push(n);
                }
                Ok(None) => results[n] = self.volume.join_dirty_list(*index, write.object),
                Err(Refusal::Missing) => {
                    results[n] = self.volume.fill_object(*index, write.object, fills, None)
                }
                Err(refusal) => results[n] = Err(refusal),
            }
        }
        let mut sent = sent.into_iter();
        self.volume.session.kernel().carry_out_all(batch, |write, outcome| {
            let ended = outcome.and_then(|outcome| write.ended(outcome));
            sent.by_ref().take(1).for_each(|n| results[n] = ended.clone());
        });
        for ((index, object), _) in
            parts.keys().zip(held).zip(&results).filter(|(_, result)| result.is_ok())
        {
            self.volume.flush_through(*index, object);
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
            .map(|(_, index, _)| Read {
                object: self.volume.object_id(*index).name(),
                parts: map_parts(),
            })
            .collect();
        for ((n, index, object), answer) in
            unknown.into_iter().zip(self.volume.session.kernel().read_all(&reads))
        {
            results[n] =
                ChunkMap::from_answer(self.volume.object_id(index), answer).and_then(|map| {
                    if map.is_none()
                        && self.volume.bits.lock().has(index)
                        && !self.volume.session.kernel().planted(PlantedBug::MissingAsZeroes)
                    {
                        return Err(self.volume.lost(index));
                    }
                    object.learn(Some(Known::of(map)));
                    Ok(())
                });
        }
        results
    }
}
