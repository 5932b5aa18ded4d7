//! [`FileDisk`]: a regular file or a block device as a [`Disk`].
//!
//! Place in the data flow: below the engines, above the kernel. `open` gets the descriptor, `locks`
//! locks it, `ring` and `transfer` move bytes, and `disk` decides which of them does what:
//!
//! | request | how |
//! |---|---|
//! | one read | `pread` |
//! | one run | `pwritev`, in pieces of `IOV_MAX` blocks |
//! | a batch of either | io_uring, each request on its own; where the kernel refuses io_uring, system calls on a few threads |
//! | a durable run | `pwritev2` with `RWF_DSYNC`, once; a run that it does not write whole, or of more than `IOV_MAX` blocks, is written as one run, then `fdatasync` |
//! | a flush | `fdatasync`, once |
//!
//! *Invariants:* the descriptor that does the I/O holds the lock, so that nobody else's lock can be
//! released by closing another descriptor. No request reaches past the size found when the disk was
//! opened, or extended (`longer`). A flush or a durable write succeeds only while the file is whole and has its name
//! (`standing`). A failed flush is never retried: the kernel reports a lost write once and then
//! calls the pages clean, so a second `fdatasync` would succeed over lost data. Remembering the
//! first failure is left to the engine, which stops at it.
//!
//! Threads: any number at once; the only shared state is the descriptor and the counters.

mod disk;
mod handle;
mod locks;
mod longer;
mod medium;
mod open;
mod ring;
pub(crate) mod standing;
pub(crate) mod transfer;

pub use disk::FileDisk;
pub(crate) use disk::gather;
pub use handle::Access;
pub(crate) use handle::explain_errno;
pub use medium::Medium;
pub use open::{Io, Options, Preallocate, device_bytes, peek};
