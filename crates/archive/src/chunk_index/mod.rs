//! The chunk index (dedupv1 3.4): fingerprint → address, larger than memory.
//!
//! New entries are in the *auxiliary index* in memory. At its limit, and at the end of a put, those
//! whose containers are listed are written as a *run*: one sequential file, a hash table of its own
//! with its Bloom filter. The importer merges index and runs into a new file, sequentially too.
//! No page is ever written twice.
//!
//! *Invariant:* it advises. An entry may be stale, so its container is looked into before it is
//! used. A lost or damaged page costs duplicates. A lost file costs time: the next ingesting process
//! makes the index anew.
//!
//! *Crash argument:* a file is synced, its name too, before the record that names it. Containers
//! that were listed after that record's place in the log come back into the auxiliary index from
//! their metadata.
//!
//! | module | what |
//! |---|---|
//! | [`auxiliary_index`] | new entries, in memory |
//! | [`file`](mod@file) | one file: pages, Bloom filter, merging |
//! | [`index`] | look-ups in all files |
//! | [`merge`] | files read together and written as one |
//! | [`import`](mod@import) | new entries written to files |
//! | [`run_merge`] | runs merged beside puts, in portions |
//! | [`rebuild`](mod@rebuild) | the index made anew, or written again elsewhere |

mod auxiliary_index;
mod file;
mod import;
mod index;
mod merge;
mod rebuild;
mod run_merge;

pub(crate) use self::{
    auxiliary_index::{Auxiliary, ByFingerprint},
    file::Entry,
    import::{Importing, import, load_recent, write_run},
    rebuild::{make_anew_paced, make_whole_paced},
    run_merge::{RunMerge, first_to_merge},
};
pub use self::{
    file::PAGE_BYTES,
    index::{ChunkIndex, not_found},
    rebuild::{IndexMove, lost_files, make_whole, rebuild},
};
