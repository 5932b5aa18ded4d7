//! The real world behind Onefold's traits: disks, clock, randomness, signals, systemd and local
//! sockets.
//!
//! | module | what it gives |
//! |---|---|
//! | [`file_disk`] | [`FileDisk`]: a regular file or a block device, by io_uring or plain system calls |
//! | [`memory_disk`] | [`MemoryDisk`]: a disk in memory, for tests and for benches inside one process |
//! | [`embedded`] | [`EmbeddedStore`]: an object store in a folder |
//! | [`rados`] | [`RadosObjects`]: an object store in two pools of a Ceph cluster |
//! | [`metadata_disk`] | [`MetadataDisk`]: keeps metadata and drops payloads, to measure memory over large stores |
//! | [`directory`] | [`Directory`]: named files in a directory, for an archive |
//! | [`beneath`] | one name below an open directory, and nothing but a regular file |
//! | [`lock`], [`locality`] | locks on open files, and file systems where they hold |
//! | [`counted`] | what these two have in common |
//! | [`counters`] | what a disk was asked to do, by class of block |
//! | [`spared`] | large files read without leaving them in the system's cache |
//! | [`sparse`] | where a file has data, so that holes need not be read; asked of another process where a user could hold up the question |
//! | [`tree`] | directory trees: read for an archive, and made again from one |
//! | [`new_file`] | a file that has its name when it is whole |
//! | [`scratch`] | a file without a name, for what is too large for memory |
//! | [`clock`], [`random`] | time and random bytes of the operating system |
//! | [`secrets`] | key files, programs that give keys, and no core dumps |
//! | [`settings_file`] | the text of a file that nobody else may change |
//! | [`program`] | programs of the operator that answer a request, run where nobody else can put another one |
//! | [`audit`] | a log whose lines prove that none before them was changed |
//! | [`room`] | the free space of a file system |
//! | [`locked`] | memory for keys, which is neither swapped nor dumped |
//! | [`last_act`] | what a process does before a signal ends it |
//! | [`accounts`] | users and groups by their names |
//! | [`signals`], [`systemd`], [`peer`], [`process`] | what a server needs from the system around it |
//!
//! *Invariant:* this crate is the only home of `unsafe`, system calls and native libraries, but for a few
//! calls in `system` of the crate of servers, which knows no backend. It knows no engine and no protocol.
//! `unsafe` is allowed module by module, with the reason beside it.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "onefold-backend speaks to Linux: io_uring, flock, fallocate and the users at the other end of \
     sockets"
);

pub mod accounts;
pub mod audit;
pub mod beneath;
mod claim_file;
pub mod clock;
pub mod counted;
pub mod counters;
pub mod directory;
pub mod embedded;
pub mod file_disk;
pub mod last_act;
pub mod locality;
pub mod lock;
pub mod locked;
pub mod memory_disk;
pub mod metadata_disk;
pub mod new_file;
mod past_cache;
pub mod peer;
pub mod process;
pub mod program;
pub mod rados;
pub mod random;
mod range;
pub mod room;
pub mod scratch;
pub mod secrets;
mod settings_file;
pub mod signals;
pub mod spared;
pub mod sparse;
pub mod systemd;
pub mod tree;
pub mod ublk;

pub use beneath::{Stands, Word};
pub use claim_file::{CLAIM, claim_file, claim_is_held};
pub use clock::{BootClock, MonotonicClock};
pub use counters::{Counters, Counts};
pub use directory::{Directory, Making};
pub use embedded::{EmbeddedObjects, EmbeddedStore};
pub use file_disk::{Access, FileDisk, Io, Medium, Options, Preallocate, device_bytes, peek};
pub use locality::Locality;
pub use memory_disk::MemoryDisk;
pub use metadata_disk::MetadataDisk;
pub use rados::RadosObjects;
pub use settings_file::settings_file;
