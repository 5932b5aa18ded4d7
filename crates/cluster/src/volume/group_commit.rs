//! Group commit: while some writes are in flight, later ones are gathered, and sent together as one
//! operation an object.
//!
//! A write is durable, and may be acknowledged, once a client waited for its ticket. A thread that
//! waits sends all writes that may go, while other groups are in flight. A thread that finds
//! nothing to send sleeps. A read of a range with waiting writes, and every change that is not a
//! write, sends the waiting writes first.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Kind, Result, Ticket};
use parking_lot::{Condvar, Mutex};

use super::{
    objects::{Fill, Job, Objects},
    queue::{Queue, Tickets, Waiting},
    write::Writes,
};
use crate::rules::Rule;

/// The parts of a group's writes that fall on one object: the ticket of each, and its new content.
#[derive(Default)]
struct Parts<'a> {
    tickets: Vec<u64>,
    fills: Vec<(Range<u32>, Fill<'a>)>,
}

/// A group on its way; when it is over, also by a panic, others may go.
struct Group<'a> {
    commit: &'a GroupCommit,
    writes: Vec<Waiting>,
    /// Errors by ticket; `None` until the group was sent.
    failed: Option<BTreeMap<u64, Error>>,
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let panicked = || Error::new(Kind::Io, "the server failed while it wrote");
        let failed = self.failed.take().unwrap_or_else(|| {
            self.writes.iter().map(|waiting| (waiting.ticket(), panicked())).collect()
        });
        if failed.values().any(|error| self.commit.may_come(error)) {
            self.commit.failed.store(true, Relaxed);
        }
        let object_bytes = self.commit.objects.bytes();
        self.commit.queue.lock().group_is_over(&self.writes, failed, object_bytes);
        self.commit.group_over.notify_all();
    }
}

/// The writes of one volume that wait or are in flight.
pub(super) struct GroupCommit {
    objects: Arc<Objects>,
    writes: Arc<Writes>,
    queue: Mutex<Queue>,
    /// A group of writes is over.
    group_over: Condvar,
    /// A write failed and may still come.
    failed: AtomicBool,
}

impl GroupCommit {
    pub(super) fn new(objects: Arc<Objects>, writes: Arc<Writes>) -> GroupCommit {
        GroupCommit {
            objects,
            writes,
            queue: Mutex::default(),
            group_over: Condvar::new(),
            failed: AtomicBool::new(false),
        }
    }

    /// The tickets so far. All writes are over.
    pub(super) fn tickets(&self) -> Tickets {
        self.queue.lock().tickets()
    }

    /// Goes on behind the tickets that a volume gave before. Nothing was queued yet.
    pub(super) fn go_on_behind(&self, tickets: Tickets) {
        self.queue.lock().go_on_behind(tickets);
    }

    /// True when a write that failed may still come. What the store refused does not, unless it was sent before
    /// and had no reply.
    pub(super) fn may_come(&self, error: &Error) -> bool {
        let refused = matches!(error.kind(), Kind::NoSpace | Kind::Denied);
        !refused || self.objects.kernel().counts().unknown.load(Relaxed) > 0
    }

    /// True when a write failed since the volume was attached, and may still come.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Queues a write. The write is acknowledged, and durable, after [`wait_for`](Self::wait_for).
    pub(super) fn write_later(&self, offset: u64, data: &[u8]) -> Ticket {
        let kernel = self.objects.kernel();
        let has_room = self.queue.lock().has_room(data.len(), kernel.settings().waiting_bytes);
        if !has_room && kernel.keeps(Rule::WaitingBytesLimited) {
            self.drain();
        }
        Ticket(self.queue.lock().push(offset, data))
    }

    /// Waits until a write is over, and returns its result.
    pub(super) fn wait_for(&self, ticket: Ticket) -> Result<()> {
        self.over(|queue| queue.is_under_way(ticket.0));
        self.queue.lock().ended(ticket.0)
    }

    /// Waits until all queued writes are over, whether they succeeded or failed.
    pub(super) fn drain(&self) {
        let last = self.queue.lock().last();
        self.over(|queue| queue.is_open(last));
    }

    /// Lets writes of a place go first.
    pub(super) fn drain_place(&self, place: Range<u64>) {
        let meets = self.queue.lock().meets(&place);
        if meets {
            self.drain();
        }
    }

    /// Sends writes that may go, or waits for other groups, as long as `open` holds.
    fn over(&self, open: impl Fn(&Queue) -> bool) {
        let mut queue = self.queue.lock();
        while open(&queue) {
            let writes = queue.dequeue(self.objects.bytes());
            if writes.is_empty() {
                self.group_over.wait(&mut queue);
                continue;
            }
            drop(queue);
            let mut group = Group { commit: self, writes, failed: None };
            group.failed = Some(group.send());
            drop(group);
            queue = self.queue.lock();
        }
    }
}

impl Group<'_> {
    /// Sends its writes, one operation for each object; returns the tickets of the writes that
    /// failed.
    fn send(&self) -> BTreeMap<u64, Error> {
        let GroupCommit { objects, writes, .. } = self.commit;
        let parts = self.parts();
        let memories: Vec<_> = parts.keys().map(|index| objects.get(*index)).collect();
        // Locks are acquired in the order of the objects, so that two groups can't wait for each
        // other.
        let mut held: Vec<_> = memories.iter().map(|object| object.lock()).collect();
        let mut jobs: Vec<Job<'_, '_>> = parts
            .iter()
            .zip(&mut held)
            .map(|((index, parts), object)| (*index, &mut **object, parts.fills.as_slice()))
            .collect();
        let results = writes.write_all(&mut jobs);
        let mut failed = BTreeMap::new();
        for ((index, parts), result) in parts.iter().zip(results) {
            if let Err(refusal) = result {
                let error = objects.failed(*index, refusal);
                failed.extend(parts.tickets.iter().map(|ticket| (*ticket, error.clone())));
            }
        }
        failed
    }

    /// What its writes change, by object.
    fn parts(&self) -> BTreeMap<u64, Parts<'_>> {
        let object_bytes = self.commit.objects.bytes();
        let mut parts: BTreeMap<u64, Parts<'_>> = BTreeMap::new();
        for waiting in &self.writes {
            let (mut at, mut rest) = (waiting.offset(), waiting.data());
            while !rest.is_empty() {
                let within = at % object_bytes;
                let bytes = (object_bytes - within).min(rest.len() as u64);
                let (data, behind) = rest.split_at(bytes as usize);
                let of = parts.entry(at / object_bytes).or_default();
                of.tickets.push(waiting.ticket());
                of.fills.push((within as u32..(within + bytes) as u32, Fill::Bytes(data)));
                (at, rest) = (at + bytes, behind);
            }
        }
        parts
    }
}
