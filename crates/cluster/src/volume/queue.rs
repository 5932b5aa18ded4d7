//! The queue of writes that wait, and the results of those that were sent.
//!
//! *Invariant:* each object has at most one write in flight, and no write overtakes another one to
//! the same object. So writes to one place are applied in the order in which they came.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Range, RangeInclusive},
};

use onefold_core::{Error, Kind, Result};

/// Most groups in flight together: each has a thread that waits for it.
const GROUPS_MAX: usize = 16;

/// Most failures that are kept until a client asks for them. Beyond that only the ticket of the
/// last forgotten one is kept, and tickets up to it count as failed.
const FAILED_MAX: usize = 4096;

/// A write that waits.
pub(super) struct Waiting {
    ticket: u64,
    offset: u64,
    data: Vec<u8>,
}

impl Waiting {
    pub(super) fn ticket(&self) -> u64 {
        self.ticket
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }

    fn objects(&self, object_bytes: u64) -> RangeInclusive<u64> {
        let last = self.offset + (self.data.len() as u64).max(1) - 1;
        self.offset / object_bytes..=last / object_bytes
    }
}

/// The tickets of writes, and the results of those that are over.
#[derive(Clone, Default)]
pub(super) struct Tickets {
    /// The ticket given last.
    last: u64,
    failed: BTreeMap<u64, Error>,
    /// The last ticket whose failure was forgotten.
    forgotten: u64,
}

impl Tickets {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Keeps errors until a client asks for them.
    fn keep(&mut self, failed: BTreeMap<u64, Error>) {
        self.failed.extend(failed);
        while self.failed.len() > FAILED_MAX {
            let first = self.failed.pop_first();
            self.forgotten = self.forgotten.max(first.map_or(0, |(ticket, _)| ticket));
        }
    }

    /// The result of a write that is over.
    pub(super) fn ended(&mut self, ticket: u64) -> Result<()> {
        match self.failed.remove(&ticket) {
            Some(error) => Err(error),
            // Ticket 0 stands for a write that was over when its ticket was asked for.
            None if (1..=self.forgotten).contains(&ticket) => Err(Error::new(
                Kind::Io,
                "too many writes failed to tell whether this is one of them",
            )),
            None => Ok(()),
        }
    }
}

/// Writes that wait, and the results of those that were sent.
#[derive(Default)]
pub(super) struct Queue {
    tickets: Tickets,
    waiting: Vec<Waiting>,
    /// Bytes of the writes that wait or are in flight.
    bytes: usize,
    /// Tickets and places of the writes in flight.
    flying: BTreeMap<u64, Range<u64>>,
    /// The objects that these writes change.
    busy: BTreeSet<u64>,
    groups: usize,
}

impl Queue {
    /// True while so many bytes more may wait or be in flight, of so many at most; a client that brings
    /// more lets them go first.
    pub(super) fn has_room(&self, bytes: usize, most: usize) -> bool {
        self.bytes + bytes <= most
    }

    /// Adds a write, and returns its ticket.
    pub(super) fn push(&mut self, offset: u64, data: &[u8]) -> u64 {
        let ticket = self.tickets.next();
        self.bytes += data.len();
        self.waiting.push(Waiting { ticket, offset, data: data.to_vec() });
        ticket
    }

    /// The tickets so far. All writes are over.
    pub(super) fn tickets(&self) -> Tickets {
        self.tickets.clone()
    }

    /// Goes on behind the tickets that a volume gave before. Nothing was queued yet.
    pub(super) fn go_on_behind(&mut self, tickets: Tickets) {
        self.tickets = tickets;
    }

    /// The ticket given last.
    pub(super) fn last(&self) -> u64 {
        self.tickets.last
    }

    /// True when a write that waits or is in flight changes bytes of a place.
    pub(super) fn meets(&self, place: &Range<u64>) -> bool {
        let meets = |other: &Range<u64>| other.start < place.end && place.start < other.end;
        self.flying.values().any(meets)
            || self.waiting.iter().any(|waiting| meets(&waiting.range()))
    }

    /// The writes of a group are over; those that failed have errors, by their tickets.
    pub(super) fn group_is_over(
        &mut self,
        group: &[Waiting],
        failed: BTreeMap<u64, Error>,
        object_bytes: u64,
    ) {
        self.tickets.keep(failed);
        for waiting in group {
            self.bytes -= waiting.data.len();
            self.flying.remove(&waiting.ticket);
            for object in waiting.objects(object_bytes) {
                self.busy.remove(&object);
            }
        }
        self.groups -= 1;
    }

    /// The result of a write that is over.
    pub(super) fn ended(&mut self, ticket: u64) -> Result<()> {
        self.tickets.ended(ticket)
    }

    /// True until all up to this ticket are over.
    pub(super) fn is_open(&self, ticket: u64) -> bool {
        self.flying.first_key_value().is_some_and(|(first, _)| *first <= ticket)
            || self.waiting.first().is_some_and(|waiting| waiting.ticket <= ticket)
    }

    /// True until this very one is over.
    pub(super) fn is_under_way(&self, ticket: u64) -> bool {
        self.flying.contains_key(&ticket)
            || self.waiting.iter().any(|waiting| waiting.ticket == ticket)
    }

    /// Removes from the queue the writes that may go: their objects are not busy, and no earlier
    /// write to one of these objects stays behind.
    pub(super) fn dequeue(&mut self, object_bytes: u64) -> Vec<Waiting> {
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
            self.flying.insert(waiting.ticket, waiting.range());
            self.busy.extend(waiting.objects(object_bytes));
        }
        self.groups += usize::from(!taken.is_empty());
        taken
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
        queue.tickets.keep(failed(1..10_001));
        assert!((1..10_001).all(|ticket| queue.ended(ticket).is_err()));
        assert!(
            queue.tickets.failed.is_empty()
                && queue.ended(10_001).is_ok()
                && queue.ended(0).is_ok()
                && Queue::default().ended(0).is_ok()
        );
    }

    #[test]
    fn writes_in_flight_take_room_until_they_are_over() {
        let mut queue = Queue::default();
        (0..4).for_each(|at| {
            queue.push(at * 1000, &[1; 100]);
        });
        let sent = queue.dequeue(1000);
        assert!(sent.len() == 4 && queue.has_room(100, 500) && !queue.has_room(101, 500));
        queue.push(9000, &[1; 100]);
        queue.group_is_over(&sent, BTreeMap::new(), 1000);
        assert!(queue.has_room(400, 500) && !queue.has_room(401, 500));
        // One that is larger than all the room goes when nothing else does.
        let rest = queue.dequeue(1000);
        queue.group_is_over(&rest, BTreeMap::new(), 1000);
        assert!(!queue.is_open(queue.last()) && !queue.has_room(501, 500));
        assert!(queue.push(0, &[1; 501]) == 6 && queue.dequeue(1000).len() == 1);
    }

    #[test]
    fn groups_share_no_object_and_nothing_overtakes() {
        let mut queue = Queue { bytes: 400, ..Queue::default() };
        queue.tickets.last = 4;
        queue.waiting = vec![waiting(1, 0, 100), waiting(2, 1000, 100)];
        let tickets =
            |taken: &[Waiting]| taken.iter().map(|waiting| waiting.ticket).collect::<Vec<_>>();
        assert_eq!(tickets(&queue.dequeue(1000)), [1, 2]);
        // The first overlaps a write in flight, and the second overlaps the first; the third is
        // free.
        queue.waiting = vec![waiting(3, 1950, 100), waiting(4, 2500, 50), waiting(5, 7000, 50)];
        assert_eq!(tickets(&queue.dequeue(1000)), [5]);
        assert_eq!((queue.groups, queue.busy.len()), (2, 3));
        assert!(queue.is_open(1) && queue.is_under_way(4) && !queue.is_under_way(6));
        queue.busy.remove(&1);
        assert_eq!(tickets(&queue.dequeue(1000)), [3, 4]);
        queue.waiting = vec![waiting(6, 9000, 0)];
        queue.groups = GROUPS_MAX;
        assert!(queue.dequeue(1000).is_empty());
    }
}
