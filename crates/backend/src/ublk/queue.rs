//! The requests of one queue. Its thread alone gives commands for it, since the kernel takes those of the first thread.
#![allow(
    unsafe_code,
    reason = "the kernel fills and reads buffers by their addresses, and writes descriptions into a mapping"
)]

use std::{
    fs::{File, OpenOptions},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use io_uring::{IoUring, opcode, types};
use onefold_core::{
    Error, Kind, Result,
    host_device::{HOST_SECTOR, HostBell, HostFailure, HostOp, HostQueue, HostRequest},
};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use super::abi::{self, Description, Info};

/// The tag of the bell's entry in the ring.
const BELL: u64 = u64::MAX;

/// Bytes of memory pages.
const PAGE: usize = 4096;

/// How long the node of a new device may take to come.
const PATIENCE: Duration = Duration::from_secs(10);

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE]);

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// The kernel has its buffer.
    Kernel,
    /// This process answers it.
    Here(i32),
    /// The kernel has given it up.
    Over,
}

/// The descriptions of a queue, which the kernel writes.
struct Descriptions {
    first: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to the queue, which one thread has at a time.
unsafe impl Send for Descriptions {}

impl Descriptions {
    fn map(file: &File, queue: u16, depth: u16) -> Result<Descriptions> {
        let bytes = (usize::from(depth) * abi::DESCRIPTION_BYTES).next_multiple_of(PAGE);
        let room = (abi::DEPTH_MAX * abi::DESCRIPTION_BYTES as u64).next_multiple_of(PAGE as u64);
        let at = u64::from(queue) * room;
        // SAFETY: a new mapping where the kernel finds room.
        let mapped = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                file,
                at,
            )
        };
        let first = mapped
            .map_err(|e| Error::from_io("the requests of a device can't be mapped", e.into()))?;
        Ok(Descriptions { first: first.cast(), bytes })
    }

    /// The description of a request that the kernel has handed over, copied once.
    fn of(&self, tag: u16) -> Description {
        let mut copy = [0; abi::DESCRIPTION_BYTES];
        for (n, byte) in copy.iter_mut().enumerate() {
            // SAFETY: tags are below the depth for which it was mapped; the kernel wrote it before it handed the
            // request over.
            *byte = unsafe {
                self.first.add(usize::from(tag) * abi::DESCRIPTION_BYTES + n).read_volatile()
            };
        }
        Description::decode(&copy)
    }
}

impl Drop for Descriptions {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nobody reads it any more.
        let _ = unsafe { munmap(self.first.cast(), self.bytes) };
    }
}

/// One queue.
pub(super) struct Queue {
    number: u16,
    ring: IoUring,
    file: File,
    descriptions: Descriptions,
    bell: Arc<OwnedFd>,
    slots: Vec<Slot>,
    buffers: Vec<Box<[Page]>>,
    /// Answers, and the first requests for requests, that the kernel does not have yet.
    to_send: Vec<(u16, u32, i32)>,
    rings_bell: bool,
}

impl Queue {
    pub(super) fn open(device: &Path, number: u16, info: &Info) -> Result<Queue> {
        let failed = |e| Error::from_io(device.display(), e);
        let begun = Instant::now();
        let file = loop {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_CLOEXEC)
                .open(device);
            match opened {
                Err(e)
                    if e.kind() == std::io::ErrorKind::NotFound && begun.elapsed() < PATIENCE =>
                {
                    thread::sleep(Duration::from_millis(20));
                }
                opened => break opened.map_err(failed)?,
            }
        };
        let depth = info.depth;
        if depth == 0 || u64::from(depth) > abi::DEPTH_MAX {
            return Err(Error::new(Kind::Unsupported, format!("a queue of {depth} requests")));
        }
        let ring = IoUring::new(u32::from(depth) * 2 + 2);
        let ring =
            ring.map_err(|e| Error::from_io("io_uring, which devices of this host need", e))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|e| Error::from_io("a bell", e.into()))?;
        let pages = (info.request_bytes as usize).div_ceil(PAGE);
        let buffer = || vec![Page([0; PAGE]); pages].into_boxed_slice();
        Ok(Queue {
            number,
            ring,
            descriptions: Descriptions::map(&file, number, depth)?,
            file,
            bell: Arc::new(bell),
            slots: vec![Slot::Kernel; usize::from(depth)],
            buffers: (0..depth).map(|_| buffer()).collect(),
            to_send: (0..depth).map(|tag| (tag, abi::FETCH, -1)).collect(),
            rings_bell: false,
        })
    }

    /// Puts what is to be sent into the ring.
    fn fill(&mut self) {
        if !self.rings_bell {
            let entry = opcode::PollAdd::new(types::Fd(self.bell.as_raw_fd()), libc::POLLIN as u32);
            // SAFETY: the descriptor lives as long as the ring.
            self.rings_bell =
                unsafe { self.ring.submission().push(&entry.build().user_data(BELL)) }.is_ok();
        }
        while let Some(&(tag, command, result)) = self.to_send.last() {
            let mut what = [0; 16];
            what[0..2].copy_from_slice(&self.number.to_le_bytes());
            what[2..4].copy_from_slice(&tag.to_le_bytes());
            what[4..8].copy_from_slice(&result.to_le_bytes());
            let address = self.buffers[usize::from(tag)].as_mut_ptr() as u64;
            what[8..16].copy_from_slice(&address.to_le_bytes());
            let entry =
                opcode::UringCmd16::new(types::Fd(self.file.as_raw_fd()), command).cmd(what);
            // SAFETY: the buffer stays where it is until the kernel gives the tag back: it is leaked otherwise.
            if unsafe { self.ring.submission().push(&entry.build().user_data(u64::from(tag))) }
                .is_err()
            {
                return;
            }
            self.slots[usize::from(tag)] = Slot::Kernel;
            self.to_send.pop();
        }
    }

    /// Takes what the kernel has handed over.
    fn take(&mut self, into: &mut Vec<HostRequest>) -> bool {
        let done: Vec<(u64, i32)> =
            self.ring.completion().map(|done| (done.user_data(), done.result())).collect();
        let found = !done.is_empty();
        for (tag, result) in done {
            if tag == BELL {
                self.rings_bell = false;
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.bell, &mut count);
                continue;
            }
            let Some(slot) = self.slots.get_mut(tag as usize) else { continue };
            if result < 0 {
                // The device stops, or its server is to be another one.
                *slot = Slot::Over;
                continue;
            }
            *slot = Slot::Here(0);
            self.understand(tag as u16, into);
        }
        found
    }

    fn understand(&mut self, tag: u16, into: &mut Vec<HostRequest>) {
        let found = self.descriptions.of(tag);
        let bytes = u64::from(found.sectors) * HOST_SECTOR;
        let room = (self.buffers[usize::from(tag)].len() * PAGE) as u64;
        let op = match found.op {
            abi::OP_READ if bytes <= room => Some(HostOp::Read),
            abi::OP_WRITE if bytes <= room => Some(HostOp::Write { durable: found.is_durable }),
            abi::OP_FLUSH => Some(HostOp::Flush),
            abi::OP_DISCARD => Some(HostOp::Discard),
            abi::OP_ZEROES => Some(HostOp::Zeroes { keep: found.keeps }),
            _ => None,
        };
        let bytes = u32::try_from(bytes)
            .ok()
            .filter(|_| op != Some(HostOp::Flush))
            .or((op == Some(HostOp::Flush)).then_some(0));
        match (op, bytes, found.first.checked_mul(HOST_SECTOR)) {
            (Some(op), Some(bytes), Some(offset)) => {
                if let Slot::Here(moved) = &mut self.slots[usize::from(tag)] {
                    *moved = i32::try_from(bytes).unwrap_or(i32::MAX);
                }
                into.push(HostRequest { tag, op, offset, bytes });
            }
            _ => self.answer(tag, Err(HostFailure::Unknown)),
        }
    }

    fn is_over(&self) -> bool {
        self.slots.iter().all(|slot| *slot == Slot::Over)
    }
}

impl HostQueue for Queue {
    fn wait(&mut self, most: Option<Duration>, into: &mut Vec<HostRequest>) -> Result<bool> {
        self.fill();
        let bound = most.map(types::Timespec::from);
        let entered = match &bound {
            Some(bound) => {
                let arguments = types::SubmitArgs::new().timespec(bound);
                self.ring.submitter().submit_with_args(1, &arguments)
            }
            None => self.ring.submit_and_wait(1),
        };
        match entered {
            Ok(_) => {}
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN)
                ) => {}
            Err(e) => return Err(Error::from_io("io_uring", e)),
        }
        self.take(into);
        Ok(!self.is_over())
    }

    fn data(&mut self, tag: u16, bytes: u32) -> &mut [u8] {
        let buffer = &mut self.buffers[usize::from(tag)];
        let bytes = (bytes as usize).min(buffer.len() * PAGE);
        // SAFETY: pages are bytes without padding, one behind the other, and the kernel does not have this buffer: its
        // request is here.
        unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), bytes) }
    }

    fn answer(&mut self, tag: u16, done: std::result::Result<(), HostFailure>) {
        let Slot::Here(moved) = self.slots[usize::from(tag)] else { return };
        let result = match done {
            Ok(()) => moved,
            Err(HostFailure::Io) => -Errno::IO.raw_os_error(),
            Err(HostFailure::Full) => -Errno::NOSPC.raw_os_error(),
            Err(HostFailure::Denied) => -Errno::PERM.raw_os_error(),
            Err(HostFailure::Unknown) => -Errno::OPNOTSUPP.raw_os_error(),
        };
        self.to_send.push((tag, abi::COMMIT_AND_FETCH, result));
    }

    fn bell(&self) -> HostBell {
        let bell = self.bell.clone();
        Arc::new(move || {
            // A bell that is full rings already.
            let _ = rustix::io::write(bell.as_fd(), &1_u64.to_ne_bytes());
        })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The kernel may still write to these.
        for (slot, buffer) in self.slots.iter().zip(self.buffers.drain(..)) {
            if *slot == Slot::Kernel {
                Box::leak(buffer);
            }
        }
    }
}
