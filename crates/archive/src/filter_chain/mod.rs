//! The filter chain (dedupv1 3.2): is this chunk stored already?
//!
//! Each filter gives one of four answers, and the answer decides which filters are asked next:
//!
//! | answer | what is asked next |
//! |---|---|
//! | EXISTING | nothing more |
//! | STRONG-MAYBE | only filters that can say EXISTING |
//! | WEAK-MAYBE | all later filters |
//! | NON-EXISTING | nothing more; the chunk is new |
//!
//! Chunks that turn out to be new are shown to all filters a second time, so that they learn them.
//!
//! The chain works on a batch of chunks. A filter that reads the disk is asked in rounds, for a few
//! of the undecided chunks, spread evenly; after each round the containers that were found are
//! loaded into the container cache, and the filters before it are asked again: where chunks come
//! back in their old order, one index read and one metadata read answer for a whole container.
//!
//! *Invariant:* no answer becomes a reference before the container's metadata shows the fingerprint
//! at the address, unless this session made the container itself. A condemned chunk is no
//! duplicate.

mod block_index;
mod bloom;
mod byte_compare;
mod cache;
mod chain;
mod chunk_index;
mod container_cache;
mod filter;

pub use self::chain::Counts;
pub(crate) use self::{
    chain::{BATCH_CHUNKS, FilterChain},
    filter::{Answer, Query, address_of},
};
