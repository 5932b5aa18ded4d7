//! Stands in for the world: what engines reach through the traits of `onefold-core`, in memory, and
//! failing on demand.
//!
//! | module | what it gives |
//! |---|---|
//! | [`clock`] | [`VirtualClock`]: time that passes when a test says so |
//! | [`rng`] | chance from a seed: [`Rng`], and [`SplitMix`], whose whole state is one number |
//! | [`content`] | contents of blocks as small numbers |
//! | [`disk`] | [`VirtualDisk`]: a volatile cache over a durable image, crashes and [`Fault`]s |
//! | [`files`] | [`VirtualFiles`]: the same for named files |
//! | [`objects`] | [`Objects`]: what each operation of an object store means |
//! | [`memory_objects`] | [`MemoryObjects`]: an object store of them, for tests inside one process |
//! | [`contract`] | what every implementation of a trait must keep |
//! | [`reach`] | counts of what a run reached |
//!
//! *Invariant:* it imports `onefold-core` only, and the product imports it for its tests only.
//! Equal seeds and calls give equal results, but for the wall clock of [`MemoryObjects`].

pub mod clock;
pub mod content;
pub mod contract;
pub mod disk;
pub mod files;
pub mod memory_objects;
pub mod objects;
pub mod reach;
pub mod rng;

pub use clock::VirtualClock;
pub use disk::{Fault, VirtualDisk};
pub use files::VirtualFiles;
pub use memory_objects::MemoryObjects;
pub use objects::Objects;
pub use reach::Reach;
pub use rng::{Rng, SplitMix};
