//! Events: counters of the kernel by which a client and the server's threads wake each other.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, preadv2, read, write};
use rustix::time::Timespec;

use crate::brief::briefly;
use crate::client_fd::ClientFd;

/// A new event, on which nobody waits.
pub(crate) fn new() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Takes a descriptor of a client that has to be an event: of anything else nobody knows how long
/// reading or writing takes.
///
/// # Errors
/// A sentence: it is no event.
pub(crate) fn of_client(event: ClientFd) -> Result<OwnedFd, &'static str> {
    let name = rustix::fs::readlink(format!("/proc/self/fd/{}", event.as_raw_fd()), Vec::new());
    if !name.is_ok_and(|name| name.as_bytes() == b"anon_inode:[eventfd]") {
        return Err("a descriptor that is no event");
    }
    let flags = fcntl_getfl(&event).unwrap_or(OFlags::empty());
    fcntl_setfl(&event, flags | OFlags::NONBLOCK).map_err(|_| "an event that can't be used")?;
    event.harmless().map_err(|_| "an event that can't be used")
}

/// Wakes who waits at an event of a client. One that was rung too often wakes as well.
///
/// # Errors
/// A sentence: the client keeps us waiting. It can take back that writing does not wait, and see to it
/// that the event takes no more.
pub(crate) fn ring_at_client(event: &OwnedFd) -> Result<(), &'static str> {
    match briefly(|| write(event, &1u64.to_ne_bytes())) {
        Err(Errno::INTR) => Err("an event that keeps whoever rings it waiting"),
        _ => Ok(()),
    }
}

/// Wakes who waits at an event of our own.
pub(crate) fn ring(event: &OwnedFd) {
    let _ = write(event, &1u64.to_ne_bytes());
}

/// Waits until one of the events was rung, or for so many milliseconds. Says which were; all, when
/// it can't tell.
pub(crate) fn wait<const N: usize>(events: [&OwnedFd; N], milliseconds: Option<u32>) -> [bool; N] {
    let mut waited = events.map(|event| PollFd::new(event, PollFlags::IN));
    let timeout = milliseconds.map(|milliseconds| Timespec {
        tv_sec: i64::from(milliseconds / 1000),
        tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
    });
    match poll(&mut waited, timeout.as_ref()) {
        Ok(_) => waited.map(|event| !event.revents().is_empty()),
        Err(_) => [true; N],
    }
}

/// Takes back all that was rung. Never waits: a client may have been faster.
pub(crate) fn quiet(event: &OwnedFd) {
    let mut count = [0; 8];
    // Where the event is now is all that an event has.
    let here = u64::MAX;
    let taken = preadv2(event, &mut [IoSliceMut::new(&mut count)], here, ReadWriteFlags::NOWAIT);
    if taken == Err(Errno::OPNOTSUPP) {
        let _ = briefly(|| read(event, &mut count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_ring_and_are_quiet() {
        let (one, other) = (new().unwrap(), new().unwrap());
        assert_eq!(wait([&one, &other], Some(1)), [false, false]);
        ring(&other);
        assert_eq!(wait([&one, &other], None), [false, true]);
        quiet(&other);
        quiet(&other);
        assert_eq!(wait([&one, &other], Some(0)), [false, false]);
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let blocking = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let event = of_client(ClientFd::brought(blocking)).unwrap();
        quiet(&event);
        write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert_eq!(ring_at_client(&event), Ok(()));
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(of_client(ClientFd::brought(pipe)).is_err());
        assert!(of_client(ClientFd::brought(tempfile::tempfile().unwrap().into())).is_err());
    }

    #[test]
    fn rule_47_an_event_that_lets_nobody_go_is_noticed() {
        let event = of_client(ClientFd::brought(new().unwrap())).unwrap();
        assert_eq!(ring_at_client(&event), Ok(()));
        fcntl_setfl(&event, OFlags::empty()).unwrap();
        assert_eq!(ring_at_client(&event), Ok(()), "it takes more");
        quiet(&event);
        write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(ring_at_client(&event).is_err());
    }
}
