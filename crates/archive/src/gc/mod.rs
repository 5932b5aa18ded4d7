//! Garbage collection (dedupv1 3.7): counts from what came and went, chunks condemned, rechecked,
//! dropped; containers merged; space freed.
//!
//! The order is in `docs/decisions/0013`, with what a crash between two steps leaves: each step
//! begins from what the log says, so that the next collector goes on where one was killed.
//!
//! *Invariants.* A count is never lower than the truth. A chunk is dropped only when no recipe of
//! the log names it and nobody who could name it is under way. A removed recipe is dropped only
//! when counts without it are durable: until then it says what they must lose. Space is freed when
//! nobody reads there any more. A chunk that fails its check is not copied, and its container
//! stays.
//!
//! Memory: counts of one range of containers at a time, two bytes a chunk.

mod collection;
mod condemn;
mod dead_chunks;
mod erased_domains;
mod merge;
mod proof;
mod reseal;
mod survey;

pub use self::{
    collection::{Collected, Collection, Options, Patience},
    reseal::FreeBytes,
    survey::{Survey, Trash, survey},
};
