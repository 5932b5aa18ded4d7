//! Block devices that the kernel of this host offers to its programs, and whose requests this process answers.
//!
//! The server takes requests from the queues of such a device without knowing how the kernel hands them over; tests
//! have a device without a kernel.

use std::{sync::Arc, time::Duration};

use crate::Result;

/// Bytes of the units in which the kernel counts.
pub const HOST_SECTOR: u64 = 512;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOp {
    /// Fill the request's buffer.
    Read,
    /// Store the request's buffer; durable before the answer when `durable`.
    Write {
        /// The kernel asked for it to be durable (FUA).
        durable: bool,
    },
    /// Make durable what was answered before.
    Flush,
    /// Drop a range: advice.
    Discard,
    /// Make a range zeroes, and keep its space when `keep`.
    Zeroes {
        /// The range may not become a hole.
        keep: bool,
    },
}

/// A request of the kernel. Its tag names it until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRequest {
    /// The place of the request in its queue, and that of its buffer.
    pub tag: u16,
    /// The operation.
    pub op: HostOp,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub bytes: u32,
}

/// Why a request failed, as programs on the host hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFailure {
    /// EIO.
    Io,
    /// ENOSPC: the store or the volume's quota is full.
    Full,
    /// EPERM: the volume is read-only.
    Denied,
    /// EOPNOTSUPP.
    Unknown,
}

/// Rings the bell of a queue: who waits in [`HostQueue::wait`] returns. From any thread, any number of times.
pub type HostBell = Arc<dyn Fn() + Send + Sync>;

/// One queue of a device. One thread, the first one that waits, uses it until its end.
pub trait HostQueue: Send {
    /// Waits until there are requests, somebody rings, or the time is over; adds the requests. False when the kernel
    /// gives no more: the device has stopped.
    ///
    /// # Errors
    /// Those of the system: the queue is of no more use.
    fn wait(&mut self, most: Option<Duration>, into: &mut Vec<HostRequest>) -> Result<bool>;

    /// The bytes of a request that was not answered yet: those to be written, or to be filled. A multiple of 512.
    fn data(&mut self, tag: u16, bytes: u32) -> &mut [u8];

    /// Answers a request. The kernel may hear of it only in the next [`wait`](Self::wait).
    fn answer(&mut self, tag: u16, done: std::result::Result<(), HostFailure>);

    /// Its bell.
    fn bell(&self) -> HostBell;
}

/// A block device of this host, and the queues that its requests come by.
pub trait HostDevice: Send {
    /// The queues, once; threads must wait on all of them before [`start`](Self::start) returns.
    fn queues(&mut self) -> Vec<Box<dyn HostQueue>>;

    /// Makes the device usable for programs. Requests come while it does.
    ///
    /// # Errors
    /// Those of the system.
    fn start(&mut self) -> Result<()>;

    /// Where programs find it, like `/dev/ublkb0`.
    fn path(&self) -> String;

    /// The volume has another size now.
    ///
    /// # Errors
    /// `Unsupported` where the kernel can't change it.
    fn resize(&mut self, bytes: u64) -> Result<()>;

    /// Ends it: requests that come are answered until the kernel gives no more. A device that programs have open stays
    /// for the next server where it can, and true is given then.
    ///
    /// # Errors
    /// Those of the system.
    fn end(&mut self) -> Result<bool>;
}
