//! A ring: requests are taken from it, and answers go into it.
//!
//! *Invariants.* A request that the ring has handed out is not handed out again before it was
//! answered, so that no more requests are under way than the ring has places. What the guest wrote
//! there stops its device if it can't be understood, and never the server.
//! *Threads:* that of the queue, which takes, and it and its helper, which answer; the ring is locked
//! for moments only.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP};
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::bell;
use super::marks::{Marks, Region};
use super::memory::{self, Memory};
#[cfg(test)]
use super::planted;
use super::request::{Request, Table};

/// Most places of a ring: what hypervisors offer at most.
pub(crate) const PLACES: u16 = 1024;

/// Where the ring of requests has the index of the next one that the guest will offer.
const AT_INDEX: u64 = 2;
/// Where it has the places at which requests begin.
const AT_HEADS: u64 = 4;

/// Where the parts of a ring are, as the client knows them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) table: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Failed,
    Unsupported,
}

/// The answer that a request waits for: its place in the ring, where the guest takes the answer, and
/// the bytes of data before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) head: u16,
    pub(crate) at: GuestAddress,
    pub(crate) bytes: u32,
}

/// A ring that was started.
pub(crate) struct Ring {
    queue: Queue,
    addresses: Addresses,
    memory: Arc<Memory>,
    marks: Option<Marks>,
    /// Requests that a server before this one took.
    again: VecDeque<u16>,
    /// The places whose requests are under way.
    under_way: Vec<bool>,
    /// To wake the guest.
    call: Option<OwnedFd>,
    /// Answers went into the used ring that the guest was not told of.
    untold: bool,
}

/// Settings of a ring that is to start.
pub(crate) struct Start<'a> {
    pub(crate) places: u16,
    pub(crate) addresses: Addresses,
    /// The index of the next request, unless the region of requests in flight says more.
    pub(crate) base: u16,
    pub(crate) event_index: bool,
    pub(crate) memory: Arc<Memory>,
    /// The region, and the number of the queue.
    pub(crate) in_flight: Option<(&'a Arc<Region>, usize)>,
    pub(crate) call: Option<OwnedFd>,
}

const NOT_THERE: &str = "a ring outside the memory that the guest shares";

impl Ring {
    /// Starts a ring.
    ///
    /// # Errors
    /// A sentence: the ring is broken.
    pub(crate) fn start(start: Start<'_>) -> Result<Ring, &'static str> {
        let Start { places, addresses, base, event_index, memory, in_flight, call } = start;
        let mut queue = Queue::new(PLACES).map_err(|_| NOT_THERE)?;
        queue.try_set_size(places).map_err(|_| "a ring of an impossible size")?;
        queue.set_event_idx(event_index);
        queue.set_next_avail(base);
        let mut ring = Ring {
            queue,
            addresses,
            memory: memory.clone(),
            marks: None,
            again: VecDeque::new(),
            under_way: vec![false; usize::from(places)],
            call,
            untold: true,
        };
        ring.lie_in(memory)?;
        let used = ring.queue.used_idx(ring.memory.map_of_guest(), Acquire);
        let used = used.map_err(|_| NOT_THERE)?.0;
        ring.queue.set_next_used(used);
        if let Some((region, number)) = in_flight {
            let marks = Marks::of(region, number, places);
            let mut marks = marks.ok_or("a ring larger than its marks of requests in flight")?;
            let fresh = marks.is_fresh();
            ring.again.extend(marks.recover(used)?);
            if !fresh {
                // All that was taken is answered or marked.
                ring.queue.set_next_avail(used.wrapping_add(ring.again.len() as u16));
            }
            ring.marks = Some(marks);
        }
        Ok(ring)
    }

    /// The memory of the guest is another one, in which the ring has the same addresses of the
    /// client.
    ///
    /// # Errors
    /// A sentence: it does not have the ring.
    pub(crate) fn lie_in(&mut self, memory: Arc<Memory>) -> Result<(), &'static str> {
        let find = |user| memory.guest_address(user).ok_or(NOT_THERE);
        let Addresses { table, available, used } = self.addresses;
        let (table, available, used) = (find(table)?, find(available)?, find(used)?);
        let unaligned = |_| "a ring at an impossible address";
        self.queue.try_set_desc_table_address(table).map_err(unaligned)?;
        self.queue.try_set_avail_ring_address(available).map_err(unaligned)?;
        self.queue.try_set_used_ring_address(used).map_err(unaligned)?;
        self.queue.set_ready(true);
        if !self.queue.is_valid(memory.map_of_guest()) {
            return Err(NOT_THERE);
        }
        self.memory = memory;
        Ok(())
    }

    /// The guest's memory, as the ring lies in it now.
    pub(crate) fn memory(&self) -> Arc<Memory> {
        self.memory.clone()
    }

    /// By what the guest is woken from now on; it is, since the event before may have been no more
    /// listened to.
    ///
    /// # Errors
    /// As [`wake`](Ring::wake).
    pub(crate) fn call_by(&mut self, call: Option<OwnedFd>) -> Result<(), &'static str> {
        self.call = call;
        self.wake()
    }

    /// The index of the next request.
    pub(crate) fn next(&self) -> u16 {
        self.queue.next_avail()
    }

    /// The index of the next answer.
    pub(crate) fn answered(&self) -> u16 {
        self.queue.next_used()
    }

    /// Takes the next request, if there is one.
    ///
    /// # Errors
    /// A sentence: the ring is broken.
    pub(crate) fn take(&mut self) -> Result<Option<Request>, &'static str> {
        let memory = self.memory.clone();
        let map = memory.map_of_guest();
        let again = self.again.pop_front();
        let head = match again {
            Some(head) => head,
            None => match self.next_head(map)? {
                Some(head) => head,
                None => return Ok(None),
            },
        };
        match self.under_way.get_mut(usize::from(head)) {
            Some(under_way) if !*under_way => *under_way = true,
            Some(_) => return Err("a request that is under way already"),
            None => return Err("a request at a place that the ring lacks"),
        }
        if let (Some(marks), None) = (&mut self.marks, again) {
            marks.begin(head);
        }
        let at = GuestAddress(self.queue.desc_table());
        let table = Table { at, places: u32::from(self.queue.size()) };
        Request::read(map, table, head).map(Some)
    }

    /// The place of the next request that the guest offers, which counts as taken.
    fn next_head(&mut self, map: &GuestMemoryMmap) -> Result<Option<u16>, &'static str> {
        let (ring, next) = (self.queue.avail_ring(), self.queue.next_avail());
        let at = |offset: u64| ring.checked_add(offset).map(GuestAddress).ok_or(NOT_THERE);
        let load = |offset| memory::load(map, at(offset)?).map_err(|_| NOT_THERE);
        let offered = u16::from_le(load(AT_INDEX)?).wrapping_sub(next);
        if offered > self.queue.size() {
            return Err("a ring whose index went further than it has places");
        }
        if offered == 0 {
            return Ok(None);
        }
        let head = load(AT_HEADS + 2 * u64::from(next % self.queue.size()))?;
        self.queue.set_next_avail(next.wrapping_add(1));
        Ok(Some(u16::from_le(head)))
    }

    /// Answers a request, of which the guest took `bytes` bytes beside the answer itself. The guest
    /// is told by [`tell`](Ring::tell).
    ///
    /// # Errors
    /// A sentence: the ring is broken.
    pub(crate) fn answer(&mut self, due: Due, answer: Answer) -> Result<(), &'static str> {
        let Due { head, at, bytes } = due;
        let memory = self.memory.clone();
        let map = memory.map_of_guest();
        let (status, bytes) = match answer {
            Answer::Done => (VIRTIO_BLK_S_OK, bytes.saturating_add(1)),
            // What came before the answer was not written.
            Answer::Failed => (VIRTIO_BLK_S_IOERR, u32::from(bytes == 0)),
            Answer::Unsupported => (VIRTIO_BLK_S_UNSUPP, u32::from(bytes == 0)),
        };
        let answered = memory::write(map, &[status as u8], at);
        answered.map_err(|_| "an answer outside the guest's memory")?;
        if let Some(marks) = &mut self.marks {
            marks.ending(head);
            #[cfg(test)]
            if planted::is(planted::Bug::MarkGoesFirst) {
                marks.ended(head, self.queue.next_used());
            }
        }
        self.queue.add_used(map, head, bytes).map_err(|_| NOT_THERE)?;
        if let Some(marks) = &mut self.marks {
            marks.ended(head, self.queue.next_used());
        }
        if let Some(under_way) = self.under_way.get_mut(usize::from(head)) {
            *under_way = false;
        }
        self.untold = true;
        Ok(())
    }

    /// Tells the guest of answers, if it wants to be told.
    ///
    /// # Errors
    /// A sentence: the ring is broken.
    pub(crate) fn tell(&mut self) -> Result<(), &'static str> {
        if std::mem::take(&mut self.untold) {
            let map = self.memory.clone();
            if self.queue.needs_notification(map.map_of_guest()).map_err(|_| NOT_THERE)? {
                return self.wake();
            }
        }
        Ok(())
    }

    /// Wakes the guest. One that already has too many such calls gets none more.
    ///
    /// # Errors
    /// A sentence: the guest's client keeps us waiting.
    pub(crate) fn wake(&self) -> Result<(), &'static str> {
        self.call.as_ref().map_or(Ok(()), bell::ring_at_client)
    }

    /// The guest needs to say nothing when it adds requests.
    ///
    /// # Errors
    /// A sentence: the ring is broken.
    pub(crate) fn look(&mut self) -> Result<(), &'static str> {
        let memory = self.memory.clone();
        self.queue.disable_notification(memory.map_of_guest()).map_err(|_| NOT_THERE)
    }

    /// The guest has to say when it adds requests; true when it has added some meanwhile.
    ///
    /// # Errors
    /// A sentence: the ring is broken.
    pub(crate) fn listen(&mut self) -> Result<bool, &'static str> {
        let memory = self.memory.clone();
        self.queue.enable_notification(memory.map_of_guest()).map_err(|_| NOT_THERE)
    }

    /// True when there are requests to take that a server before this one took.
    pub(crate) fn owes_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// True when there is a request to take.
    pub(crate) fn has_more(&self) -> bool {
        let index = GuestAddress(self.queue.avail_ring().saturating_add(AT_INDEX));
        let index = memory::load(self.memory.map_of_guest(), index);
        let next = self.queue.next_avail();
        !self.again.is_empty() || index.is_ok_and(|index| u16::from_le(index) != next)
    }
}

#[cfg(test)]
pub(super) use tests::loses_a_request;

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;
    use crate::client_fd::ClientFd;

    const AVAILABLE: u64 = 0x100;
    const USED: u64 = 0x200;
    const REQUEST: u64 = 0x400;

    /// Memory with a flush in place 3 of a ring of 8.
    fn memory() -> Arc<Memory> {
        let memory = Memory::of(&[0; 4096]).unwrap();
        let map = memory.map_of_guest();
        let put = |at: u64, bytes: &[u8]| map.write_slice(bytes, GuestAddress(at)).unwrap();
        put(REQUEST, &4u32.to_le_bytes());
        for (place, at, bytes, flags) in [(3, REQUEST, 16, 1u16), (4, REQUEST + 16, 1, 2)] {
            put(16 * place, &u64::to_le_bytes(at));
            put(16 * place + 8, &u32::to_le_bytes(bytes));
            put(16 * place + 12, &flags.to_le_bytes());
            put(16 * place + 14, &4u16.to_le_bytes());
        }
        put(AVAILABLE + 4, &3u16.to_le_bytes());
        put(AVAILABLE + 2, &1u16.to_le_bytes());
        Arc::new(memory)
    }

    fn started(memory: &Arc<Memory>, region: &Arc<Region>) -> Ring {
        Ring::start(Start {
            places: 8,
            addresses: Addresses { table: 0, available: AVAILABLE, used: USED },
            base: 0,
            event_index: false,
            memory: memory.clone(),
            in_flight: Some((region, 0)),
            call: None,
        })
        .unwrap()
    }

    fn region() -> Arc<Region> {
        let (file, bytes) = Region::create(1, 8).unwrap();
        Arc::new(Region::of(ClientFd::brought(file), 0, bytes, 1, 8).unwrap())
    }

    fn due(request: &Request) -> Due {
        Due { head: request.head, at: request.answer, bytes: 0 }
    }

    /// A server that is killed where it would write the used ring: whether the next one knows nothing
    /// of the request.
    pub(in super::super) fn loses_a_request() -> bool {
        let (memory, region) = (memory(), region());
        let mut ring = started(&memory, &region);
        let request = ring.take().unwrap().unwrap();
        assert!(ring.take().unwrap().is_none());
        // The used ring is not there any more.
        ring.queue.try_set_used_ring_address(GuestAddress(1 << 40)).unwrap();
        assert!(ring.answer(due(&request), Answer::Done).is_err());
        drop(ring);
        let mut ring = started(&memory, &region);
        if !ring.owes_again() {
            return true;
        }
        assert_eq!(ring.next(), 1);
        let again = ring.take().unwrap().unwrap();
        assert_eq!(again.head, 3);
        ring.answer(due(&again), Answer::Done).unwrap();
        let mut ring = started(&memory, &region);
        assert!(!ring.owes_again() && ring.next() == 1 && ring.take().unwrap().is_none());
        false
    }

    #[test]
    fn a_mark_goes_after_the_used_ring_was_written() {
        assert!(!loses_a_request());
    }

    #[test]
    fn rule_47_rings_that_lie_nowhere_are_refused() {
        let (memory, region) = (memory(), region());
        let start = |addresses, places| {
            let memory = memory.clone();
            let start = Start {
                places,
                addresses,
                base: 0,
                event_index: true,
                memory,
                in_flight: Some((&region, 0)),
                call: None,
            };
            Ring::start(start).err()
        };
        let good = Addresses { table: 0, available: AVAILABLE, used: USED };
        assert_eq!(start(good, 8), None);
        assert!(start(good, 7).is_some() && start(good, 16).is_some(), "size; no marks");
        assert!(start(Addresses { table: 4096, ..good }, 8).is_some());
        assert!(start(Addresses { table: 4000, ..good }, 8).is_some());
        assert!(start(Addresses { used: 4090, ..good }, 8).is_some());
        assert!(start(Addresses { available: 0x101, ..good }, 8).is_some());
        assert!(start(Addresses { available: u64::MAX, ..good }, 8).is_some());
    }
}
