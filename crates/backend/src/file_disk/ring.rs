//! Batches by io_uring: many transfers in flight from one thread, with one or two system calls for
//! all of them.
//!
//! Each thread that makes a batch has a ring of its own, made at its first batch and dropped with
//! the thread; so no lock is taken, and a ring never sees a second submitter. Nothing is registered
//! with the kernel.
//!
//! *Invariant:* [`run`] does not return while the kernel may still touch a buffer. Every way out
//! passes through a state in which each submitted transfer has completed. A ring with entries that
//! were never submitted is dropped first. For this reason deferred task work is not used:
//! completions must arrive without a call that may fail.
#![allow(
    unsafe_code,
    reason = "the kernel is given pointers into borrowed buffers; only this module keeps them \
              alive for it"
)]

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    os::fd::{AsRawFd, BorrowedFd},
    thread,
    time::Duration,
};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

/// Transfers in flight from one thread: past this, disks gain nothing from depth, and rings of many
/// threads would add up.
pub(super) const RING_ENTRIES: u32 = 256;

/// Largest single transfer handed to the kernel, which itself stops a little below 2 GiB; the rest
/// is finished by system calls.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// Pause before asking again when the kernel is short of memory for requests.
const RETRY_PAUSE: Duration = Duration::from_micros(100);

/// Where the bytes of a transfer go or come from.
pub(super) enum Buffer<'a> {
    Into(&'a mut [u8]),
    From(&'a [IoSlice<'a>]),
}

/// One read or write at a byte offset.
pub(super) struct Transfer<'a> {
    pub(super) at: u64,
    pub(super) buffer: Buffer<'a>,
    /// Bytes moved, or the error. [`Errno::AGAIN`] until it ran.
    pub(super) result: Result<usize, Errno>,
}

impl<'a> Transfer<'a> {
    pub(super) fn new(at: u64, buffer: Buffer<'a>) -> Transfer<'a> {
        Transfer { at, buffer, result: Err(Errno::AGAIN) }
    }

    fn entry(&mut self, fd: BorrowedFd<'_>) -> squeue::Entry {
        let fd = types::Fd(fd.as_raw_fd());
        match &mut self.buffer {
            Buffer::Into(into) => {
                opcode::Read::new(fd, into.as_mut_ptr(), into.len().min(TRANSFER_BYTES_MAX) as u32)
                    .offset(self.at)
                    .build()
            }
            // `IoSlice` has the layout of `iovec` by its documentation.
            Buffer::From(from) => opcode::Writev::new(fd, from.as_ptr().cast(), from.len() as u32)
                .offset(self.at)
                .build(),
        }
    }
}

enum Slot {
    Untried,
    Open(Box<IoUring>),
    Refused,
}

thread_local! {
    static RING: RefCell<Slot> = const { RefCell::new(Slot::Untried) };
}

fn open() -> io::Result<IoUring> {
    // Kernels before 6.0 do not know these hints, which only save interrupts and locks.
    IoUring::builder()
        .setup_coop_taskrun()
        .setup_single_issuer()
        .build(RING_ENTRIES)
        .or_else(|_| IoUring::new(RING_ENTRIES))
}

/// Whether this thread has a ring; makes it when it was never tried. Containers often forbid
/// io_uring.
pub(super) fn available() -> bool {
    RING.try_with(|slot| {
        let mut slot = slot.borrow_mut();
        if matches!(*slot, Slot::Untried) {
            *slot = open().map_or(Slot::Refused, |ring| Slot::Open(Box::new(ring)));
        }
        matches!(*slot, Slot::Open(_))
    })
    .unwrap_or(false)
}

/// Runs all `transfers`, in any order. A transfer that did not run, because this thread has no ring
/// or the ring broke, keeps [`Errno::AGAIN`] as its result.
pub(super) fn run(fd: BorrowedFd<'_>, transfers: &mut [Transfer<'_>]) {
    if !available() {
        return;
    }
    // The slot is there: `available` has just used it.
    let _ = RING.try_with(|slot| {
        let mut slot = slot.borrow_mut();
        if let Slot::Open(ring) = &mut *slot
            && drive(ring, fd, transfers).is_err()
        {
            // The ring's queue still holds entries that point into `transfers`. Dropping the ring
            // drops them unsubmitted.
            *slot = Slot::Refused;
        }
    });
}

/// The ring broke; every submitted transfer has completed, others may still lie in its queue.
struct Broken;

fn drive(
    ring: &mut IoUring,
    fd: BorrowedFd<'_>,
    transfers: &mut [Transfer<'_>],
) -> Result<(), Broken> {
    let (mut queued, mut submitted, mut completed) = (0, 0, 0);
    while completed < transfers.len() {
        let mut queue = ring.submission();
        while queued < transfers.len() && queued - completed < RING_ENTRIES as usize {
            let entry = transfers[queued].entry(fd).user_data(queued as u64);
            // SAFETY: the entry points into buffers borrowed by `transfers` for longer than this
            // call, which returns only after the entry completed, or could no longer be
            // submitted. The completion queue is twice as large as what
            // can be in flight.
            if unsafe { queue.push(&entry) }.is_err() {
                break;
            }
            queued += 1;
        }
        drop(queue);
        // While more wait for room, wake up when half are done, to keep the disk busy.
        let in_flight = queued - completed;
        let wanted = if queued < transfers.len() { in_flight.div_ceil(2) } else { in_flight };
        let outcome = ring.submit_and_wait(wanted);
        let broken = match outcome {
            Ok(n) => {
                submitted += n;
                false
            }
            Err(e) => match Errno::from_io_error(&e) {
                Some(Errno::INTR) => false,
                Some(Errno::AGAIN | Errno::BUSY) => {
                    thread::sleep(RETRY_PAUSE);
                    false
                }
                _ => true,
            },
        };
        completed += reap(ring, transfers);
        if broken {
            while completed < submitted {
                thread::sleep(RETRY_PAUSE);
                completed += reap(ring, transfers);
            }
            return Err(Broken);
        }
    }
    Ok(())
}

/// Removes completions from the ring; returns how many.
fn reap(ring: &mut IoUring, transfers: &mut [Transfer<'_>]) -> usize {
    let mut reaped = 0;
    for completion in ring.completion() {
        let result = completion.result();
        transfers[completion.user_data() as usize].result =
            usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        reaped += 1;
    }
    reaped
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd};

    use super::*;

    #[test]
    fn each_transfer_of_a_batch_tells_its_own_end() {
        assert!(available(), "this machine refuses io_uring");
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        let mut buffers = vec![[1_u8; 4096]; RING_ENTRIES as usize * 3 + 1];
        let mut transfers: Vec<_> =
            buffers.iter_mut().map(|b| Transfer::new(0, Buffer::Into(b))).collect();
        run(zero.as_fd(), &mut transfers);
        assert!(transfers.iter().all(|t| t.result == Ok(4096)));
        drop(transfers);
        assert!(buffers.iter().flatten().all(|&byte| byte == 0));

        let full = File::options().write(true).open("/dev/full").unwrap();
        let slices: Vec<_> = buffers.iter().map(|b| IoSlice::new(b)).collect();
        let mut transfers: Vec<_> =
            slices.chunks(1).map(|s| Transfer::new(0, Buffer::From(s))).collect();
        run(full.as_fd(), &mut transfers);
        assert!(transfers.iter().all(|t| t.result == Err(Errno::NOSPC)));
    }

    #[test]
    fn threads_that_end_leave_no_ring_behind() {
        let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let zero = File::open("/dev/zero").unwrap();
        let before = open_files();
        for _ in 0..100 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut buffer = [1; 4096];
                    let mut transfers = [Transfer::new(0, Buffer::Into(&mut buffer))];
                    run(zero.as_fd(), &mut transfers);
                    assert_eq!(transfers[0].result, Ok(4096));
                });
            });
        }
        // Other tests of this process open a few at the same time.
        assert!(open_files() < before + 50);
    }
}
