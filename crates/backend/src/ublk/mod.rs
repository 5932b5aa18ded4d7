//! Block devices of this host by Linux's ublk driver (since 6.0): the kernel hands requests to this process over io_uring,
//! and copies their data into and out of its buffers.
//!
//! | module | what |
//! |---|---|
//! | [`abi`] | the bytes that kernel and process exchange, as `linux/ublk_cmd.h` has them |
//! | [`control`] | devices are made, started, resized, taken over and removed |
//! | [`queue`] | the requests of one queue |
//!
//! *Durability.* A device has a volatile cache: programs hear of a write before it is durable, and of a flush behind it.
//! Where the device outlives its server (recovery), requests that the server had not answered are handed to the next
//! one; then a write is answered only when it is durable, since the kernel sends no answered one again.

mod abi;
mod control;
mod queue;

pub use control::{Parameters, UblkDevice};
