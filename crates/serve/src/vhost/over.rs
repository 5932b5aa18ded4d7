//! A ring in memory that the caller fills, and messages that it sends, for tests with hostile bytes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use onefold_core::Volume;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair,
};

use super::bell;
use super::change::Parked;
use super::durable::Waits;
use super::marks::Owed;
use super::memory::Memory;
use super::queue::{Device, Worker};
use super::request::ID_BYTES;
use super::ring::{Addresses, Ring, Start};
use super::room::Room;
use super::session::serve;
use super::trouble::Trouble;
use super::wire;
use crate::client_fd::ClientFd;
use crate::nbd::limits::Limits;
use crate::nbd::session::{House, Seat, Shares};
use crate::nbd::statistics::Counters;

/// Places of the ring.
pub const PLACES: u16 = 16;
/// Where the ring of requests is that the guest offers; the table of buffers is at 0.
pub const AVAILABLE: u64 = 0x100;
/// Where the ring of answers is.
pub const USED: u64 = 0x200;

const NO_EVENT: &str = "there is no event";

/// Does something with a device that stands alone in its server.
pub(super) fn with_device<T>(
    volume: &dyn Volume,
    limits: &Limits,
    does: impl FnOnce(&Device<'_>) -> T,
) -> Result<T, &'static str> {
    let (shares, counters, seat) = (Shares::new(limits, 1), Counters::default(), Seat::default());
    let house = House {
        limits,
        shares: &shares,
        make_way: &|_, _| {},
        since: Instant::now(),
        stopping: &AtomicBool::new(false),
    };
    Ok(does(&Device {
        house,
        seat: &seat,
        volume,
        writes: true,
        id: [0; ID_BYTES],
        counters: &counters,
        trouble: Trouble::new().map_err(|_| NO_EVENT)?,
        owed: Owed::default(),
        working: AtomicUsize::new(0),
    }))
}

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
    with_device(volume, limits, |device| {
        let (before, ring, waits) = (ring.answered(), Mutex::new(ring), Waits::new(usize::MAX));
        let parked = Parked::new().map_err(|_| NO_EVENT)?;
        let taken = Worker::new(device, &ring, &waits, true, parked, || true).batch();
        waits.close();
        waits.help(volume, device.durable(&ring));
        taken?;
        match device.trouble.take() {
            Some(reason) => Err(reason),
            None => Ok(ring.lock().answered().wrapping_sub(before)),
        }
    })?
}

/// Bytes of the memory that a client of [`messages_over`] shares.
const SHARED_BYTES: u64 = 64 << 10;

/// Descriptors that go with a message, as a client has them: its guest's memory begins with `bytes`.
fn descriptors(request: u32, body: &[u8], bytes: &[u8]) -> rustix::io::Result<Vec<OwnedFd>> {
    use wire::request::{
        SET_BACKEND_REQ_FD, SET_INFLIGHT_FD, SET_MEM_TABLE, SET_VRING_CALL, SET_VRING_ERR,
        SET_VRING_KICK,
    };
    let memory = || {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("onefold guest", flags)?;
        ftruncate(&file, SHARED_BYTES)?;
        rustix::io::pwrite(&file, bytes, 0)?;
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        Ok(file)
    };
    match request {
        SET_MEM_TABLE => (0..wire::u32_at(body, 0).min(8)).map(|_| memory()).collect(),
        SET_INFLIGHT_FD => Ok(vec![memory()?]),
        SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR if wire::u64_at(body, 0) & 0x100 == 0 => {
            Ok(vec![bell::new()?])
        }
        SET_BACKEND_REQ_FD => {
            let [one, _] = pair()?;
            Ok(vec![one])
        }
        _ => Ok(Vec::new()),
    }
}

/// The two ends of a connection.
fn pair() -> rustix::io::Result<[OwnedFd; 2]> {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok([one, other])
}

/// Serves a client that sends `bytes`, each message with the descriptors that belong to it, and
/// leaves. Its guest's memory begins with the same bytes. Answers are given up after a second.
///
/// # Errors
/// A sentence of the log, or one of the system: the connection was ended, or the device stopped.
pub fn messages_over(volume: &dyn Volume, limits: &Limits, bytes: &[u8]) -> Result<(), String> {
    let failed = |error: rustix::io::Errno| error.to_string();
    let [client, server] = pair().map_err(failed)?;
    let timeout = Some(Duration::from_secs(1));
    set_socket_timeout(&server, Timeout::Send, timeout).map_err(failed)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = wire::HEADER_BYTES + wire::u32_at(rest, 8) as usize;
        let (message, later) = rest.split_at(end.min(rest.len()));
        let body = message.get(wire::HEADER_BYTES..).unwrap_or_default();
        let files = descriptors(wire::u32_at(message, 0), body, bytes).map_err(failed)?;
        // What does not fit into the socket is not sent.
        if wire::send(&client, message, &files, SendFlags::DONTWAIT).is_err() {
            break;
        }
        rest = later;
    }
    shutdown(&client, Shutdown::Write).map_err(failed)?;
    let (share, said) = (Arc::new(Room::default()).share(), Mutex::new(None));
    let say = |sentence: &str| {
        said.lock().get_or_insert_with(|| sentence.to_owned());
    };
    let client = ClientFd::of_socket(server, false);
    with_device(volume, limits, |device| serve(device, &share, &client, &say))?;
    said.into_inner().map_or(Ok(()), Err)
}
