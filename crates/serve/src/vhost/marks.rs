//! Marks of requests in flight, in memory that the client keeps when the server dies: the region of
//! `GET_INFLIGHT_FD`, as the protocol has it for split rings.
//!
//! A request is marked when it is taken from its ring. The mark goes after the request stands in the
//! used ring. So what was taken and not answered is marked whenever the server dies, and the next
//! server does it again: the same bytes at the same place, before the guest hears of the first
//! time. What was answered is not done again, since the guest may have written there since.
//!
//! Behind the marks of all queues there is a word of our own: whether the guest has answers to changes that
//! are not durable. A server that finds it set knows that the one before it was killed, and that the
//! guest may trust what is lost (see [`Owed`]).
//!
//! *Invariants.* The mark of a request is taken away only after the used ring has it. The client can
//! write to the region, so that nothing in it is trusted.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use onefold_core::Ticket;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::mmap::MmapRegion;
use vm_memory::{AtomicAccess, Bytes, VolatileMemory};

use super::memory;
use crate::client_fd::ClientFd;

/// Bytes before the marks of a queue: features 8, version 2, marks 2, head of the last batch 2, index
/// of the used ring 2.
const HEADER_BYTES: usize = 16;
/// Bytes of a mark: in flight 1, zeroes 5, next of the batch 2, order 8.
const MARK_BYTES: usize = 16;
/// Queues begin at multiples of this.
const ALIGNMENT: usize = 64;
const VERSION: u16 = 1;

const AT_VERSION: usize = 8;
const AT_MARKS: usize = 10;
const AT_LAST: usize = 12;
const AT_USED: usize = 14;

/// Bytes of a queue of so many places.
fn queue_bytes(places: u16) -> usize {
    (HEADER_BYTES + MARK_BYTES * usize::from(places)).next_multiple_of(ALIGNMENT)
}

/// The memory for the marks of all queues of a device.
pub(crate) struct Region {
    map: MmapRegion,
    queues: u16,
    places: u16,
}

/// Bytes of the marks of all queues, and of the word behind them.
fn region_bytes(queues: u16, places: u16) -> usize {
    owed_at(queues, places) + ALIGNMENT
}

/// Where that word is.
fn owed_at(queues: u16, places: u16) -> usize {
    usize::from(queues) * queue_bytes(places)
}

impl Region {
    /// Fresh memory, to be given to the client: its file and its bytes.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn create(queues: u16, places: u16) -> rustix::io::Result<(OwnedFd, u64)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("onefold in flight", flags)?;
        let bytes = region_bytes(queues, places) as u64;
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((file, bytes))
    }

    /// What a client kept.
    ///
    /// # Errors
    /// A sentence: the memory can't be used.
    pub(crate) fn of(
        file: ClientFd,
        offset: u64,
        bytes: u64,
        queues: u16,
        places: u16,
    ) -> Result<Region, String> {
        let needed = region_bytes(queues, places);
        if queues == 0 || places == 0 || bytes < needed as u64 {
            return Err("the region of requests in flight is too small".to_owned());
        }
        let map = memory::map(file, offset, needed as u64)?;
        Ok(Region { map, queues, places })
    }

    /// Whether the guest has answers to changes that were not durable when that was last said.
    fn owes(&self) -> bool {
        let at = owed_at(self.queues, self.places);
        self.map.as_volatile_slice().load::<u64>(at, Acquire).unwrap_or_default() != 0
    }

    fn say_owes(&self, owes: bool) {
        let at = owed_at(self.queues, self.places);
        let stored = self.map.as_volatile_slice().store(u64::from(owes), at, Release);
        debug_assert!(stored.is_ok(), "a place in the region");
    }
}

/// Changes that the guest has heard of and that are not durable yet.
///
/// A guest whose driver flushes hears of changes before they are durable. When the server is killed,
/// the client connects again, and the guest does not notice: its next flush would go to a server
/// that never had those changes, and succeed. So a region of which a killed server left this set makes
/// all requests fail, until the guest's driver starts anew, as it does when the guest is reset.
#[derive(Default)]
pub(crate) struct Owed(Mutex<State>);

#[derive(Default)]
struct State {
    region: Option<Arc<Region>>,
    /// The greatest ticket of them; nothing when all is durable.
    greatest: Option<Ticket>,
    lost: bool,
}

impl Owed {
    /// The region is this one from now on. True when changes may be lost of which the guest heard.
    pub(crate) fn stand_in(&self, region: Arc<Region>) -> bool {
        let mut state = self.0.lock();
        // What is owed to this client stays owed, whatever region it shows.
        let lost = state.greatest.is_none() && region.owes();
        if state.greatest.is_some() {
            region.say_owes(true);
        }
        (state.region, state.lost) = (Some(region), lost);
        lost
    }

    /// True when changes may be lost of which the guest heard.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.lock().lost
    }

    /// The guest is about to hear of a change that is not durable. False when nothing would be left
    /// of that if the server was killed: the guest then has to hear of it later.
    pub(crate) fn note(&self, ticket: Ticket) -> bool {
        let mut state = self.0.lock();
        let Some(region) = &state.region else { return false };
        if state.greatest.is_none() {
            region.say_owes(true);
        }
        state.greatest = state.greatest.max(Some(ticket));
        true
    }

    /// The greatest ticket that the guest heard of and that is not known to be durable.
    pub(crate) fn greatest(&self) -> Option<Ticket> {
        self.0.lock().greatest
    }

    /// Changes up to this ticket are durable.
    pub(crate) fn settle(&self, durable: Option<Ticket>) {
        let mut state = self.0.lock();
        if state.greatest.is_some() && state.greatest <= durable {
            state.greatest = None;
            if let Some(region) = state.region.as_ref().filter(|_| !state.lost) {
                region.say_owes(false);
            }
        }
    }
}

/// The marks of one queue.
pub(crate) struct Marks {
    region: Arc<Region>,
    base: usize,
    places: u16,
    /// The order of the next request.
    order: u64,
}

impl Marks {
    /// Those of queue `queue`, which has so many `places`; nothing when the region has no room for
    /// them.
    pub(crate) fn of(region: &Arc<Region>, queue: usize, places: u16) -> Option<Marks> {
        let fits = queue < usize::from(region.queues) && places <= region.places;
        let base = queue * queue_bytes(region.places);
        fits.then(|| Marks { region: region.clone(), base, places, order: 0 })
    }

    fn load<T: AtomicAccess + Default>(&self, at: usize) -> T {
        // The region has the place: it was measured when it was mapped.
        let all = self.region.map.as_volatile_slice();
        all.load(self.base + at, Acquire).unwrap_or_default()
    }

    fn store<T: AtomicAccess>(&self, at: usize, value: T) {
        let all = self.region.map.as_volatile_slice();
        let stored = all.store(value, self.base + at, Release);
        debug_assert!(stored.is_ok(), "a place in the region");
    }

    fn mark(head: u16) -> usize {
        HEADER_BYTES + MARK_BYTES * usize::from(head)
    }

    /// True when no server has used the marks.
    pub(crate) fn is_fresh(&self) -> bool {
        self.load::<u16>(AT_VERSION) == 0
    }

    /// The requests that a server before this one took and did not answer, in the order in which it
    /// took them. `used` is the index of the used ring.
    ///
    /// # Errors
    /// A sentence: the region is not what a server left.
    pub(crate) fn recover(&mut self, used: u16) -> Result<Vec<u16>, &'static str> {
        match self.load::<u16>(AT_VERSION).to_le() {
            0 => {
                self.store(AT_MARKS, self.places.to_le());
                self.store(AT_LAST, 0u16);
                self.store(AT_USED, used.to_le());
                self.store(AT_VERSION, VERSION.to_le());
                return Ok(Vec::new());
            }
            VERSION if self.load::<u16>(AT_MARKS).to_le() >= self.places => {}
            _ => return Err("the region of requests in flight is of another kind"),
        }
        let answered = used.wrapping_sub(self.load::<u16>(AT_USED).to_le());
        if answered > self.places {
            return Err("the region of requests in flight is of another ring");
        }
        // These were put into the used ring, and the server died before it took their marks away.
        let mut head = self.load::<u16>(AT_LAST).to_le();
        for _ in 0..answered {
            if head >= self.places {
                return Err("the region of requests in flight names a place that the ring lacks");
            }
            self.store(Marks::mark(head), 0u8);
            head = self.load::<u16>(Marks::mark(head) + 6).to_le();
        }
        self.store(AT_USED, used.to_le());
        let mut waiting: Vec<(u64, u16)> = (0..self.places)
            .filter(|head| self.load::<u8>(Marks::mark(*head)) == 1)
            .map(|head| (self.load::<u64>(Marks::mark(head) + 8).to_le(), head))
            .collect();
        waiting.sort_unstable();
        self.order = waiting.last().map_or(0, |(order, _)| order.wrapping_add(1));
        Ok(waiting.into_iter().map(|(_, head)| head).collect())
    }

    /// A request is taken from its ring.
    pub(crate) fn begin(&mut self, head: u16) {
        self.store(Marks::mark(head) + 8, self.order.to_le());
        self.order = self.order.wrapping_add(1);
        self.store(Marks::mark(head), 1u8);
    }

    /// A request is about to be put into the used ring.
    pub(crate) fn ending(&mut self, head: u16) {
        self.store(Marks::mark(head) + 6, self.load::<u16>(AT_LAST));
        self.store(AT_LAST, head.to_le());
    }

    /// The used ring has it, and now this index.
    pub(crate) fn ended(&mut self, head: u16, used: u16) {
        self.store(Marks::mark(head), 0u8);
        self.store(AT_USED, used.to_le());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn region(queues: u16, places: u16) -> (Arc<Region>, File) {
        let (file, bytes) = Region::create(queues, places).unwrap();
        let kept = File::from(file.try_clone().unwrap());
        let region = Region::of(ClientFd::brought(file), 0, bytes, queues, places);
        (Arc::new(region.unwrap()), kept)
    }

    #[test]
    fn what_was_taken_and_not_answered_comes_again_in_order() {
        let (region, _file) = region(2, 8);
        let mut marks = Marks::of(&region, 1, 8).unwrap();
        assert_eq!(marks.recover(65_535), Ok(vec![]));
        for head in [5, 3, 7, 0] {
            marks.begin(head);
        }
        marks.ending(3);
        marks.ended(3, 0);
        // The server dies, and another one comes.
        let mut marks = Marks::of(&region, 1, 8).unwrap();
        assert_eq!(marks.recover(0), Ok(vec![5, 7, 0]));
        marks.begin(3);
        assert_eq!(Marks::of(&region, 1, 8).unwrap().recover(0), Ok(vec![5, 7, 0, 3]));
        assert_eq!(Marks::of(&region, 0, 8).unwrap().recover(9), Ok(vec![]), "another queue");
        assert!(Marks::of(&region, 2, 8).is_none() && Marks::of(&region, 0, 16).is_none());
    }

    #[test]
    fn what_the_used_ring_has_does_not_come_again() {
        let (region, _file) = region(1, 8);
        let mut marks = Marks::of(&region, 0, 8).unwrap();
        marks.recover(0).unwrap();
        marks.begin(1);
        marks.begin(2);
        marks.ending(2);
        // Died before the used ring was written: it comes again.
        assert_eq!(Marks::of(&region, 0, 8).unwrap().recover(0), Ok(vec![1, 2]));
        // Died after that, and before the mark went.
        assert_eq!(Marks::of(&region, 0, 8).unwrap().recover(1), Ok(vec![1]));
        // A server that answers several at once, and died before it took their marks away.
        marks.ending(2);
        marks.ending(1);
        assert_eq!(Marks::of(&region, 0, 8).unwrap().recover(3), Ok(vec![]));
    }

    #[test]
    fn answers_that_are_not_durable_are_remembered() {
        let (region, _file) = region(1, 4);
        let owed = Owed::default();
        assert!(!owed.note(Ticket(1)), "nobody would remember");
        assert!(!owed.stand_in(region.clone()) && owed.note(Ticket(5)) && owed.note(Ticket(4)));
        assert_eq!(owed.greatest(), Some(Ticket(5)));
        owed.settle(Some(Ticket(4)));
        assert!(region.owes());
        assert!(!owed.stand_in(region.clone()), "of this server nothing is lost");
        owed.settle(Some(Ticket(5)));
        assert!(!region.owes() && owed.note(Ticket(6)));
        // The server is killed.
        let owed = Owed::default();
        assert!(owed.stand_in(region.clone()) && owed.is_lost());
        assert!(owed.note(Ticket(1)));
        owed.settle(Some(Ticket(1)));
        assert!(region.owes(), "what was lost stays lost");
        let (fresh, _file) = super::tests::region(1, 4);
        assert!(!owed.stand_in(fresh) && !owed.is_lost(), "the guest was reset");
    }

    #[test]
    fn what_a_client_writes_there_is_not_trusted() {
        let (region, file) = region(1, 4);
        let marks = || Marks::of(&region, 0, 4).unwrap();
        let write = |at: u64, bytes: &[u8]| file.write_all_at(bytes, at).unwrap();
        write(8, &9u16.to_le_bytes());
        assert!(marks().recover(0).is_err(), "another version");
        write(8, &1u16.to_le_bytes());
        assert!(marks().recover(0).is_err(), "too few marks");
        write(10, &4u16.to_le_bytes());
        assert_eq!(marks().recover(0), Ok(vec![]));
        write(12, &[0xff; 2]);
        assert!(marks().recover(1).is_err(), "a head beyond the end");
        assert!(marks().recover(5).is_err(), "more answers than places");
        write(12, &[0; 4]);
        write(16 + 6, &[0; 2]);
        assert_eq!(marks().recover(4), Ok(vec![]), "a circle");
        write(16, &[1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
        let mut at_the_end = marks();
        assert_eq!(at_the_end.recover(4), Ok(vec![0]));
        at_the_end.begin(1);
        let created = || ClientFd::brought(Region::create(1, 4).unwrap().0);
        assert!(Region::of(created(), 0, 1 << 20, 1, 16).is_err());
        assert!(Region::of(created(), 64, 128, 1, 4).is_err());
    }
}
