//! A driver of its own for vhost-user-blk: a guest's memory in a file, rings in it, and the client's
//! side of the protocol, whose messages the crate `vhost` makes.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    VolatileMemory, VolatileSlice,
};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const ZEROES: u32 = 13;

pub(crate) const OK: u8 = 0;
pub(crate) const IOERR: u8 = 1;
pub(crate) const UNSUPPORTED: u8 = 2;

pub(crate) const RO: u64 = 1 << 5;
pub(crate) const F_FLUSH: u64 = 1 << 9;
pub(crate) const INDIRECT: u64 = 1 << 28;
pub(crate) const EVENT_IDX: u64 = 1 << 29;
const PROTOCOL: u64 = 1 << 30;

/// Flags of a descriptor: another one follows; the device writes there; it names a table.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const TABLE: u16 = 4;

const MEMORY: usize = 64 << 20;
/// The memory of a queue: its rings, and then a slot for each request.
const QUEUE: u64 = 16 << 20;
const AVAILABLE: u64 = 0x1_0000;
const USED: u64 = 0x2_0000;
const SLOTS: u64 = 0x4_0000;
/// Bytes of a slot: a header and the answer in the first 4 KiB, a table behind them, then data.
pub(crate) const SLOT: u64 = 0x1_c000;
pub(crate) const DATA: u64 = 0x2000;

/// The memory of a guest, which outlives connections.
pub(crate) struct Guest {
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) file: File,
}

impl Guest {
    pub(crate) fn new(seals: SealFlags) -> Guest {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("guest", flags).unwrap();
        ftruncate(&file, MEMORY as u64).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        let file = File::from(file);
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let range = (GuestAddress(0), MEMORY, Some(offset));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        Guest { memory, file }
    }

    /// Bytes of the memory, which is in one part.
    fn piece(&self, at: u64, bytes: usize) -> VolatileSlice<'_> {
        let part = self.memory.iter().next().unwrap();
        VolatileMemory::get_slice(&**part, at as usize, bytes).unwrap()
    }

    pub(crate) fn put<T: vm_memory::ByteValued>(&self, value: T, at: u64) {
        self.piece(at, size_of::<T>()).copy_from(value.as_slice());
    }

    pub(crate) fn get<T: vm_memory::ByteValued>(&self, at: u64) -> T {
        let mut value = T::zeroed();
        self.piece(at, size_of::<T>()).copy_to(value.as_mut_slice());
        value
    }

    pub(crate) fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }
}

/// One ring, as its driver has it.
pub(crate) struct Queue {
    base: u64,
    pub(crate) size: u16,
    next: u16,
    used: u16,
    free: Vec<u16>,
    indirect: bool,
    event_index: bool,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    calls: Epoll,
    /// Times that the device was told of requests.
    pub(crate) kicks: u64,
}

impl Queue {
    fn new(number: u64, size: u16, features: u64) -> Queue {
        let indirect = features & INDIRECT != 0;
        let places = if indirect { size } else { size / 3 };
        let (call, calls) = (EventFd::new(nonblock()).unwrap(), Epoll::new().unwrap());
        let event = EpollEvent::new(EventSet::IN, 0);
        calls.ctl(ControlOperation::Add, call.as_raw_fd(), event).unwrap();
        Queue {
            base: number * QUEUE,
            size,
            next: 0,
            used: 0,
            free: (0..places.min(128)).rev().collect(),
            indirect,
            event_index: features & EVENT_IDX != 0,
            kick: EventFd::new(nonblock()).unwrap(),
            call,
            calls,
            kicks: 0,
        }
    }

    /// Takes a slot that the caller fills.
    pub(crate) fn reserve(&mut self, slot: u16) {
        self.free.retain(|free| *free != slot);
    }

    /// Where the request in this slot is.
    pub(crate) fn at(&self, slot: u16) -> u64 {
        self.base + SLOTS + u64::from(slot) * SLOT
    }

    pub(crate) fn data_at(&self, slot: u16) -> u64 {
        self.at(slot) + DATA
    }

    fn descriptor(&self, guest: &Guest, table: u64, place: u16, one: (u64, u32, u16, u16)) {
        let (address, length, flags, next) = one;
        let at = table + 16 * u64::from(place);
        guest.put(address, at);
        guest.put(length, at + 8);
        guest.put(flags, at + 12);
        guest.put(next, at + 14);
    }

    /// Writes a descriptor of the ring.
    pub(crate) fn describe(&self, guest: &Guest, place: u16, one: (u64, u32, u16, u16)) {
        self.descriptor(guest, self.base, place, one);
    }

    /// Puts a request into a free slot, without telling the device; `data` is what it gives, `wants`
    /// how many bytes it takes.
    pub(crate) fn add(
        &mut self,
        guest: &Guest,
        kind: u32,
        sector: u64,
        data: &[u8],
        wants: u32,
    ) -> u16 {
        let slot = self.free.pop().unwrap();
        let at = self.at(slot);
        guest.put(kind, at);
        guest.put(0u32, at + 4);
        guest.put(sector, at + 8);
        guest.put(0xffu8, at + 16);
        if !data.is_empty() {
            guest.piece(at + DATA, data.len()).copy_from(data);
        }
        let (table, first) = match self.indirect {
            true => (at + 0x1000, 0),
            false => (self.base, slot * 3),
        };
        let middle = match (data.len() as u32, wants) {
            (0, 0) => None,
            (0, wants) => Some((wants, WRITE)),
            (gives, _) => Some((gives, 0)),
        };
        let answer = first + 1 + u16::from(middle.is_some());
        self.descriptor(guest, table, first, (at, 16, NEXT, first + 1));
        if let Some((length, flags)) = middle {
            self.descriptor(guest, table, first + 1, (at + DATA, length, flags | NEXT, answer));
        }
        self.descriptor(guest, table, answer, (at + 16, 1, WRITE, 0));
        let head = match self.indirect {
            true => {
                let bytes = 16 * u32::from(answer + 1);
                self.descriptor(guest, self.base, slot, (table, bytes, TABLE, 0));
                slot
            }
            false => first,
        };
        self.offer(guest, head);
        slot
    }

    /// Makes a head available.
    pub(crate) fn offer(&mut self, guest: &Guest, head: u16) {
        let available = self.base + AVAILABLE;
        guest.put(head, available + 4 + 2 * u64::from(self.next % self.size));
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the device what was added, and wakes it if it wants that.
    pub(crate) fn show(&mut self, guest: &Guest) {
        let at = GuestAddress(self.base + AVAILABLE + 2);
        let before: u16 = guest.memory.load(at, Acquire).unwrap();
        guest.memory.store(self.next, at, Release).unwrap();
        std::sync::atomic::fence(SeqCst);
        let wakes = match self.event_index {
            true => {
                let event = self.base + USED + 4 + 8 * u64::from(self.size);
                let event: u16 = guest.memory.load(GuestAddress(event), Acquire).unwrap();
                self.next.wrapping_sub(event).wrapping_sub(1) < self.next.wrapping_sub(before)
            }
            false => {
                let flags: u16 =
                    guest.memory.load(GuestAddress(self.base + USED), Acquire).unwrap();
                flags & 1 == 0
            }
        };
        if wakes {
            self.kicks += 1;
            self.kick.write(1).unwrap();
        }
    }

    /// The index of the available ring, as a hostile guest sets it.
    pub(crate) fn jump(&mut self, guest: &Guest, by: u16) {
        self.next = self.next.wrapping_add(by);
        self.show(guest);
    }

    /// The slot of the next answer and its bytes, if there is one.
    pub(crate) fn answered(&mut self, guest: &Guest) -> Option<(u16, u32)> {
        let ring = self.base + USED;
        let index: u16 = guest.memory.load(GuestAddress(ring + 2), Acquire).unwrap();
        if index == self.used {
            return None;
        }
        let at = ring + 4 + 8 * u64::from(self.used % self.size);
        let (head, bytes): (u32, u32) = (guest.get(at), guest.get(at + 4));
        self.used = self.used.wrapping_add(1);
        let slot = if self.indirect { head } else { head / 3 } as u16;
        self.free.push(slot);
        Some((slot, bytes))
    }

    /// Waits for the next answer: its slot, its status, and how many bytes the device wrote.
    pub(crate) fn wait(&mut self, guest: &Guest) -> (u16, u8, u32) {
        self.wait_for(guest, Duration::from_secs(20)).unwrap()
    }

    pub(crate) fn wait_for(&mut self, guest: &Guest, most: Duration) -> Option<(u16, u8, u32)> {
        let began = Instant::now();
        loop {
            if let Some((slot, bytes)) = self.answered(guest) {
                return Some((slot, guest.get(self.at(slot) + 16), bytes));
            }
            if self.event_index {
                // Wake me at the next answer; look once more, since it may have come before that.
                let event = self.base + AVAILABLE + 4 + 2 * u64::from(self.size);
                guest.memory.store(self.used, GuestAddress(event), Release).unwrap();
                std::sync::atomic::fence(SeqCst);
                let index = GuestAddress(self.base + USED + 2);
                let index: u16 = guest.memory.load(index, Acquire).unwrap();
                if index != self.used {
                    continue;
                }
            }
            let left = most.checked_sub(began.elapsed())?;
            let mut events = [EpollEvent::default()];
            let milliseconds = left.as_millis() as i32 + 1;
            if self.calls.wait(milliseconds, &mut events).unwrap_or(0) > 0 {
                let _ = self.call.read();
            }
        }
    }

    /// One request, and its status.
    pub(crate) fn act(
        &mut self,
        guest: &Guest,
        kind: u32,
        sector: u64,
        data: &[u8],
        wants: u32,
    ) -> (u8, Vec<u8>) {
        let slot = self.add(guest, kind, sector, data, wants);
        self.show(guest);
        let (answered, status, _) = self.wait(guest);
        assert_eq!(slot, answered);
        (status, guest.bytes(self.data_at(slot), wants as usize))
    }

    pub(crate) fn write(&mut self, guest: &Guest, sector: u64, data: &[u8]) -> u8 {
        self.act(guest, OUT, sector, data, 0).0
    }

    pub(crate) fn read(&mut self, guest: &Guest, sector: u64, bytes: u32) -> (u8, Vec<u8>) {
        self.act(guest, IN, sector, &[], bytes)
    }

    pub(crate) fn flush(&mut self, guest: &Guest) -> u8 {
        self.act(guest, FLUSH, 0, &[], 0).0
    }
}

fn nonblock() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits() as i32
}

/// A connection to a device.
pub(crate) struct Driver {
    pub(crate) frontend: Frontend,
    pub(crate) queues: Vec<Queue>,
    pub(crate) features: u64,
    /// The region of requests in flight, which outlives connections.
    pub(crate) in_flight: Option<(VhostUserInflight, File)>,
}

/// Features and rings that a driver wants.
#[derive(Clone, Copy)]
pub(crate) struct Wants {
    /// Of what is offered, not these.
    pub(crate) not: u64,
    pub(crate) queues: u64,
    pub(crate) size: u16,
    /// A region of requests in flight.
    pub(crate) marks: bool,
}

impl Default for Wants {
    fn default() -> Wants {
        Wants { not: 0, queues: 1, size: 128, marks: true }
    }
}

/// The device's answer when something was refused.
pub(crate) type Refused = Box<dyn std::error::Error>;

/// Connects, and agrees on features; nothing is shared yet.
pub(crate) fn connect(path: &Path, wants: Wants) -> Result<(Frontend, u64), Refused> {
    let mut frontend = Frontend::connect(path, 100)?;
    let offered = frontend.get_features()?;
    frontend.set_owner()?;
    let features = offered & !wants.not;
    frontend.set_features(features)?;
    if features & PROTOCOL != 0 {
        let all = frontend.get_protocol_features()?;
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        assert_eq!(all, wanted);
        frontend.set_protocol_features(wanted)?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    Ok((frontend, features))
}

/// Shares the guest's memory.
pub(crate) fn share(frontend: &Frontend, guest: &Guest) -> Result<(), Refused> {
    let region = guest.memory.iter().next().unwrap();
    assert_eq!(region.start_addr(), GuestAddress(0));
    let region = VhostUserMemoryRegionInfo::from_guest_region(region)?;
    frontend.set_mem_table(&[region])?;
    Ok(())
}

impl Driver {
    /// Connects, shares the memory and starts fresh rings.
    pub(crate) fn start(path: &Path, guest: &Guest, wants: Wants) -> Result<Driver, Refused> {
        let (frontend, features) = connect(path, wants)?;
        let queues: Vec<Queue> =
            (0..wants.queues).map(|number| Queue::new(number, wants.size, features)).collect();
        for queue in &queues {
            let zeroes = vec![0; SLOTS as usize];
            guest.memory.write_slice(&zeroes, GuestAddress(queue.base)).unwrap();
        }
        let asked = VhostUserInflight::new(0, 0, wants.queues as u16, wants.size);
        let mut again = Frontend::clone(&frontend);
        let in_flight = wants.marks.then(|| again.get_inflight_fd(&asked)).transpose()?;
        let mut driver = Driver { frontend, queues, features, in_flight };
        driver.run(guest)?;
        Ok(driver)
    }

    /// Connects again, after the server is gone, with the rings as they are.
    pub(crate) fn again(&mut self, path: &Path, guest: &Guest) -> Result<(), Refused> {
        let offered = Wants::default();
        (self.frontend, self.features) = connect(path, offered)?;
        self.run(guest)
    }

    pub(crate) fn run(&mut self, guest: &Guest) -> Result<(), Refused> {
        let frontend = &mut self.frontend;
        share(frontend, guest)?;
        if let Some((about, file)) = &self.in_flight {
            frontend.set_inflight_fd(about, file.as_raw_fd())?;
        }
        for number in 0..self.queues.len() {
            self.set_up(guest, number)?;
        }
        Ok(())
    }

    /// Says where a ring is, and starts it.
    pub(crate) fn set_up(&mut self, guest: &Guest, number: usize) -> Result<(), Refused> {
        let (frontend, queue) = (&mut self.frontend, &self.queues[number]);
        let host = guest.memory.get_host_address(GuestAddress(queue.base)).unwrap() as u64;
        frontend.set_vring_num(number, queue.size)?;
        // As hypervisors do when the server was killed: all that was used, and no more.
        frontend.set_vring_base(number, queue.used)?;
        let config = VringConfigData {
            queue_max_size: queue.size,
            queue_size: queue.size,
            flags: 0,
            desc_table_addr: host,
            used_ring_addr: host + USED,
            avail_ring_addr: host + AVAILABLE,
            log_addr: None,
        };
        frontend.set_vring_addr(number, &config)?;
        frontend.set_vring_kick(number, &queue.kick)?;
        frontend.set_vring_call(number, &queue.call)?;
        if self.features & PROTOCOL != 0 {
            frontend.set_vring_enable(number, true)?;
        }
        Ok(())
    }

    /// The size of the device in bytes.
    pub(crate) fn size(&mut self) -> u64 {
        let flags = VhostUserConfigFlags::empty();
        let (_, config) = self.frontend.get_config(0, 8, flags, &[0; 8]).unwrap();
        u64::from_le_bytes(config.try_into().unwrap()) * 512
    }
}
