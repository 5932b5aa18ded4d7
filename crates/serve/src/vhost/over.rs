//! A ring in memory that the caller fills, for tests with hostile bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

use onefold_core::Volume;
use parking_lot::Mutex;

use super::change::Parked;
use super::durable::Waits;
use super::marks::Owed;
use super::memory::Memory;
use super::queue::{Device, Worker};
use super::request::ID_BYTES;
use super::ring::{Addresses, Ring, Start};
use super::trouble::Trouble;
use crate::nbd::limits::Limits;
use crate::nbd::session::{House, Seat, Shares};
use crate::nbd::statistics::Counters;

/// Places of the ring.
pub const PLACES: u16 = 16;
/// Where the ring of requests is that the guest offers; the table of buffers is at 0.
pub const AVAILABLE: u64 = 0x100;
/// Where the ring of answers is.
pub const USED: u64 = 0x200;

/// Answers the requests of a ring of [`PLACES`] in `memory`, which is all of a guest's memory, once;
/// says how many there were.
///
/// # Errors
/// A sentence: the ring can't be understood.
pub fn ring_over(volume: &dyn Volume, limits: &Limits, memory: &[u8]) -> Result<u16, &'static str> {
    let memory = Arc::new(Memory::of(memory).ok_or("there is no memory")?);
    let ring = Ring::start(Start {
        places: PLACES,
        addresses: Addresses { table: 0, available: AVAILABLE, used: USED },
        base: 0,
        event_index: false,
        memory: memory.clone(),
        in_flight: None,
        call: None,
    })?;
    let (shares, counters, seat) = (Shares::new(limits, 1), Counters::default(), Seat::default());
    let house = House {
        limits,
        shares: &shares,
        make_way: &|_, _| {},
        since: Instant::now(),
        stopping: &AtomicBool::new(false),
    };
    let device = Device {
        house,
        seat: &seat,
        volume,
        writes: true,
        id: [0; ID_BYTES],
        counters: &counters,
        trouble: Trouble::new().map_err(|_| "there is no event")?,
        owed: Owed::default(),
        working: AtomicUsize::new(0),
    };
    let (before, ring, waits) = (ring.answered(), Mutex::new(ring), Waits::new(usize::MAX));
    let parked = Parked::new().map_err(|_| "there is no event")?;
    let taken = Worker::new(&device, &ring, &waits, true, parked, || {}).batch();
    waits.close();
    waits.help(volume, device.durable(&ring));
    taken?;
    match device.trouble.take() {
        Some(reason) => Err(reason),
        None => Ok(ring.lock().answered().wrapping_sub(before)),
    }
}
