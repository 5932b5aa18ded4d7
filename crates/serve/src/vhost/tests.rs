//! A queue without its thread, step by step: changes that wait for room, and the mistakes that tests
//! must find.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Poll, Waker};

use onefold_core::{Attempt, BLOCK_BYTES, BlockRead, Error, Extent, Kind, Result, Ticket, Volume};
use parking_lot::Mutex;
use vm_memory::{Bytes, GuestAddress};

use super::bell;
use super::change::Parked;
use super::durable::Waits;
use super::memory::Memory;
use super::over::with_device;
use super::planted::{self, Bug};
use super::queue::Worker;
use super::ring::{Addresses, Ring, Start};
use crate::nbd::limits::Limits;

const PLACES: u16 = 16;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
/// Headers of requests and bytes for their answers.
const HEADERS: u64 = 0x1000;
/// What the guest writes.
const DATA: u64 = 0x4000;
const MEMORY_BYTES: usize = 0x2_0000;

/// A volume with room for so many blocks.
#[derive(Default)]
struct Tight(Mutex<State>);

#[derive(Default)]
struct State {
    room: usize,
    blocks: BTreeMap<u64, [u8; BLOCK_BYTES]>,
    wakers: Vec<Waker>,
    full: bool,
}

impl Tight {
    fn with_room(blocks: usize) -> Tight {
        Tight(Mutex::new(State { room: blocks, ..State::default() }))
    }

    fn make_room(&self, blocks: usize) {
        let mut state = self.0.lock();
        state.room += blocks;
        std::mem::take(&mut state.wakers).into_iter().for_each(Waker::wake);
    }

    /// The first byte of a block, where there is one.
    fn first(&self, block: u64) -> Option<u8> {
        self.0.lock().blocks.get(&block).map(|bytes| bytes[0])
    }

    fn clear(&self, offset: u64, bytes: u64) -> Poll<Ticket> {
        let mut state = self.0.lock();
        if state.room == 0 {
            return Poll::Pending;
        }
        state.room -= 1;
        let block = BLOCK_BYTES as u64;
        for at in offset / block..(offset + bytes) / block {
            state.blocks.remove(&at);
        }
        Poll::Ready(Ticket(1))
    }
}

impl Volume for Tight {
    fn size(&self) -> u64 {
        1 << 20
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        let state = self.0.lock();
        for read in reads {
            for (at, into) in (read.first.0..).zip(read.into.iter_mut()) {
                into.0 = state.blocks.get(&at).copied().unwrap_or([0; BLOCK_BYTES]);
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.make_room(data.len() / BLOCK_BYTES);
        let written = self.try_write(offset, data, &mut Attempt::default())?;
        assert!(written.is_ready());
        Ok(Ticket(1))
    }

    fn try_write(&self, offset: u64, data: &[u8], attempt: &mut Attempt) -> Result<Poll<Ticket>> {
        let mut state = self.0.lock();
        if state.full {
            return Err(Error::new(Kind::NoSpace, "the store is full"));
        }
        for block in data.chunks_exact(BLOCK_BYTES).skip(attempt.taken as usize / BLOCK_BYTES) {
            if state.room == 0 {
                return Ok(Poll::Pending);
            }
            state.room -= 1;
            let bytes = block.try_into().map_err(|_| Error::new(Kind::InvalidInput, "a part"))?;
            state.blocks.insert((offset + attempt.taken) / BLOCK_BYTES as u64, bytes);
            attempt.taken += BLOCK_BYTES as u64;
        }
        Ok(Poll::Ready(Ticket(1)))
    }

    fn try_trim(&self, offset: u64, bytes: u64, _: &mut Attempt) -> Result<Poll<Ticket>> {
        Ok(self.clear(offset, bytes))
    }

    fn try_zeroes(
        &self,
        offset: u64,
        bytes: u64,
        _keep: bool,
        _: &mut Attempt,
    ) -> Result<Poll<Ticket>> {
        Ok(self.clear(offset, bytes))
    }

    fn on_progress(&self, waker: &Waker) {
        self.0.lock().wakers.push(waker.clone());
    }

    fn durable(&self) -> Option<Ticket> {
        Some(Ticket(1))
    }

    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket> {
        self.make_room(1);
        let cleared = self.clear(offset, bytes);
        assert!(cleared.is_ready());
        Ok(Ticket(1))
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, _keep: bool) -> Result<Ticket> {
        self.trim(offset, bytes)
    }

    fn wait(&self, _: Ticket) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn extents(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>> {
        Ok(Vec::new())
    }

    fn prefetch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

/// A guest, with the ring that it fills.
struct Guest {
    memory: Arc<Memory>,
    offered: u16,
    call: OwnedFd,
}

impl Guest {
    fn new() -> Guest {
        let memory = Arc::new(Memory::of(&[0; MEMORY_BYTES]).unwrap());
        Guest { memory, offered: 0, call: bell::new().unwrap() }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.map_of_guest().write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.map_of_guest().read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    /// Offers a request with this data, or room for it; the place where it begins.
    fn offer(&mut self, kind: u32, sector: u64, (data, bytes): (u64, u32)) -> u16 {
        let (head, flags) = (self.offered * 3, if kind == 0 { 3 } else { 1 });
        let at = HEADERS + 32 * u64::from(self.offered);
        self.put(at, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes(), &[0xff]].concat());
        let middle = if bytes > 0 { head + 1 } else { head + 2 };
        let chain = [(at, 16, 1, middle), (data, bytes, flags, head + 2), (at + 16, 1, 2, 0u16)];
        for (place, (address, bytes, flags, next)) in (u64::from(head)..).zip(chain) {
            let end = [u16::to_le_bytes(flags), u16::to_le_bytes(next)].concat();
            let start = [&u64::to_le_bytes(address)[..], &u32::to_le_bytes(bytes)].concat();
            self.put(16 * place, &[start, end].concat());
        }
        self.put(AVAILABLE + 4 + 2 * u64::from(self.offered), &head.to_le_bytes());
        self.offered += 1;
        self.put(AVAILABLE + 2, &self.offered.to_le_bytes());
        head
    }

    /// The places of the requests that were answered, with the answers.
    fn answers(&self) -> Vec<(u16, u8)> {
        let count = u16::from_le_bytes(self.get(USED + 2));
        let head = |n| u32::from_le_bytes(self.get(USED + 4 + 8 * u64::from(n))) as u16;
        (0..count)
            .map(head)
            .map(|head| (head, self.get::<1>(HEADERS + 32 * u64::from(head / 3) + 16)[0]))
            .collect()
    }

    fn was_called(&self) -> bool {
        let [called] = bell::wait([&self.call], Some(0));
        bell::quiet(&self.call);
        called
    }
}

/// Lets a queue of the guest's ring do something.
fn with_queue<T>(
    guest: &Guest,
    volume: &Tight,
    act: impl FnOnce(&mut Worker<'_, fn() -> bool>, &dyn Fn()) -> T,
) -> T {
    with_queue_whose_helper(|| true, guest, volume, act)
}

/// The same, with a helper that starts or not.
fn with_queue_whose_helper<T>(
    starts: fn() -> bool,
    guest: &Guest,
    volume: &Tight,
    act: impl FnOnce(&mut Worker<'_, fn() -> bool>, &dyn Fn()) -> T,
) -> T {
    let ring = Ring::start(Start {
        places: PLACES,
        addresses: Addresses { table: 0, available: AVAILABLE, used: USED },
        base: 0,
        event_index: false,
        memory: guest.memory.clone(),
        in_flight: None,
        call: Some(guest.call.try_clone().unwrap()),
    });
    let (ring, waits) = (Mutex::new(ring.unwrap()), Waits::new(usize::MAX));
    with_device(volume, &Limits::default(), |device| {
        let parked = Parked::new().unwrap();
        let mut worker = Worker::new(device, &ring, &waits, true, parked, starts);
        // The helper answers what waits, and ends.
        let help = || {
            waits.close();
            waits.help(volume, device.durable(&ring));
        };
        let done = act(&mut worker, &help);
        assert!(device.trouble.take().is_none());
        done
    })
    .unwrap()
}

const OUT: u32 = 1;
const TWO_BLOCKS: (u64, u32) = (DATA, 8192);

/// A write for which there is room in part, and a guest that changes its memory before there is room
/// for the rest: what is wrong about it.
fn a_write_in_two_steps() -> Vec<&'static str> {
    let (mut guest, volume) = (Guest::new(), Tight::with_room(1));
    guest.put(DATA, &[0x11; 8192]);
    let write = guest.offer(OUT, 8, TWO_BLOCKS);
    let mut wrong = Vec::new();
    with_queue(&guest, &volume, |queue, _| {
        queue.batch().unwrap();
        assert_eq!((guest.answers(), volume.first(1), volume.first(2)), (vec![], Some(0x11), None));
        guest.put(DATA, &[0x22; 8192]);
        volume.make_room(8);
        if !queue.is_called_for() {
            wrong.push("nobody told the queue that there is room");
        }
        queue.again(false).unwrap();
        assert_eq!(guest.answers(), [(write, 0)]);
        assert_eq!(volume.first(2), Some(0x22), "it was not looked at before");
        if volume.first(1) != Some(0x11) {
            wrong.push("what the volume had taken was taken again");
        }
    });
    wrong
}

/// A flush that is answered aside: what is wrong about it.
fn a_flush_aside() -> Vec<&'static str> {
    let (mut guest, volume) = (Guest::new(), Tight::default());
    let flush = guest.offer(4, 0, (0, 0));
    with_queue(&guest, &volume, |queue, help| {
        queue.batch().unwrap();
        assert_eq!((guest.answers(), guest.was_called()), (vec![], true), "as at each beginning");
        help();
        assert_eq!(guest.answers(), [(flush, 0)]);
        if guest.was_called() { vec![] } else { vec!["nobody woke the guest"] }
    })
}

#[test]
fn planted_mistakes_are_found() {
    assert!(a_write_in_two_steps().is_empty() && a_flush_aside().is_empty());
    assert!(!super::ring::loses_a_request());
    let twice = planted::with(Bug::ReadTwice, a_write_in_two_steps);
    assert_eq!(twice, ["what the volume had taken was taken again"]);
    let asleep = planted::with(Bug::NobodyIsWoken, a_write_in_two_steps);
    assert_eq!(asleep, ["nobody told the queue that there is room"]);
    assert_eq!(planted::with(Bug::GuestNotTold, a_flush_aside), ["nobody woke the guest"]);
    assert!(planted::with(Bug::MarkGoesFirst, super::ring::loses_a_request));
}

#[test]
fn a_queue_answers_by_itself_where_the_host_gives_no_thread() {
    let (mut guest, volume) = (Guest::new(), Tight::with_room(8));
    guest.put(DATA, &[0x11; 8192]);
    let write = guest.offer(OUT, 8, TWO_BLOCKS);
    let flushes = [guest.offer(4, 0, (0, 0)), guest.offer(4, 0, (0, 0))];
    with_queue_whose_helper(
        || false,
        &guest,
        &volume,
        |queue, _| {
            queue.batch().unwrap();
            assert_eq!(guest.answers(), [(write, 0), (flushes[0], 0), (flushes[1], 0)]);
            assert!(guest.was_called());
        },
    );
}

#[test]
fn reads_and_flushes_go_on_while_changes_wait_for_room() {
    let (mut guest, volume) = (Guest::new(), Tight::with_room(2));
    guest.put(DATA, &[0x33; 8192]);
    let first = guest.offer(OUT, 0, TWO_BLOCKS);
    let waiting = guest.offer(OUT, 16, TWO_BLOCKS);
    let read = guest.offer(0, 0, (DATA + 0x4000, 4096));
    let flush = guest.offer(4, 0, (0, 0));
    with_queue(&guest, &volume, |queue, help| {
        queue.batch().unwrap();
        help();
        assert_eq!(guest.answers(), [(first, 0), (read, 0), (flush, 0)]);
        assert_eq!(guest.get::<1>(DATA + 0x4000), [0x33]);
        // There is room for one of its blocks.
        volume.make_room(1);
        queue.again(false).unwrap();
        assert_eq!(guest.answers().len(), 3);
        volume.make_room(1);
        queue.again(false).unwrap();
        assert_eq!(guest.answers().last(), Some(&(waiting, 0)));
    });
}

#[test]
fn changes_go_in_their_order_and_all_are_made_when_a_ring_stops() {
    let (mut guest, volume) = (Guest::new(), Tight::default());
    let range = [&16u64.to_le_bytes()[..], &8u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
    guest.put(DATA, &[0x44; 8192]);
    guest.put(DATA + 0x4000, &range);
    let heads = [
        guest.offer(OUT, 8, TWO_BLOCKS),
        guest.offer(11, 0, (DATA + 0x4000, 16)),
        guest.offer(13, 0, (DATA + 0x4000, 16)),
    ];
    with_queue(&guest, &volume, |queue, _| {
        queue.batch().unwrap();
        assert_eq!(guest.answers(), []);
        volume.make_room(2);
        queue.again(false).unwrap();
        assert_eq!((guest.answers(), volume.first(2)), (vec![(heads[0], 0)], Some(0x44)));
        queue.again(true).unwrap();
        assert_eq!(guest.answers(), heads.map(|head| (head, 0)));
        assert_eq!((volume.first(1), volume.first(2)), (Some(0x44), None));
    });
}

#[test]
fn a_store_that_is_full_after_all_is_an_error_of_what_waited() {
    let (mut guest, volume) = (Guest::new(), Tight::default());
    let heads = [guest.offer(OUT, 8, TWO_BLOCKS), guest.offer(OUT, 32, TWO_BLOCKS)];
    with_queue(&guest, &volume, |queue, _| {
        queue.batch().unwrap();
        assert_eq!(guest.answers(), []);
        volume.0.lock().full = true;
        queue.again(false).unwrap();
        assert_eq!(guest.answers(), heads.map(|head| (head, 1)));
    });
}
