//! The cluster engine: global deduplication over an object store that is atomic on one object, and
//! on nothing more.
//!
//! Writes go to metadata objects. Workers move dirty chunks to chunk objects, which are named by
//! their content (double hashing). A client, worker or store may stop, hang or lose a reply at any
//! step. Data stay safe because every operation compares the values it was decided from, and no
//! entry value ever comes back.
//!
//! | module | what |
//! |---|---|
//! | [`kernel`] | the store, stamps, counters, requests, and operations that must be known to be applied or not |
//! | [`replies`] | what the store replied: asked for again while it is lost, told to a person when it is a refusal |
//! | [`session`] | a session: the kernel, and what the parts of the engine remember |
//! | [`chunk_map`], [`dirty_list`] | the chunk map of a metadata object, and which objects have work for a worker |
//! | [`attempts`] | references that are about to be added, and those that were left behind |
//! | [`chunk_pool`] | chunk objects and their references, on replicated and on erasure-coded pools |
//! | [`volume`] | volumes: attaching, foreground reads and writes, trims, hot chunks |
//! | [`layers`] | snapshots and clones: what volumes read below their own objects |
//! | [`copies`] | snapshots that are sent to other stores, and received from them; raw images |
//! | [`put`], [`names`], [`delete`] | whole objects, names and renaming, deleting |
//! | [`post_processing`] | deduplication in the background |
//! | [`gateway`], [`proof`] | which server is at work, where several stand by for each other; what that one may still answer |
//! | [`rate_control`] | how fast that may be beside the load that there is |
//! | [`presence`] | what sessions say of themselves, and who is gone |
//! | [`scrub`] | references, lists and bitmaps compared and repaired while all goes on |
//! | [`sealing`] | stores that are sealed at rest: keys, values and data on their way to the object store |
//! | [`status`], [`estimate`] | counts and sizes, and what deduplication would save elsewhere |
//!
//! *Invariant:* no thread, clock or randomness of its own: each step is a call that returns, made
//! of operations of the store.
//!
//! *Invariant:* an entry names a chunk only while that chunk has the entry's reference.

mod attempts;
mod cache_budget;
mod chunk_map;
mod chunk_pool;
mod copies;
mod delete;
mod dirty_list;
mod estimate;
pub mod format;
mod gateway;
mod kernel;
mod layers;
mod names;
mod post_processing;
mod presence;
mod proof;
mod put;
mod rate_control;
mod replies;
mod rules;
mod scrub;
#[cfg_attr(
    not(feature = "planted-bugs"),
    allow(unreachable_pub, reason = "the simulator opens what it finds in a store")
)]
mod sealing;
mod session;
mod settings;
mod status;
mod volume;

pub use copies::{Copies, Ending, ReceiveState, Received, Sending};
pub use delete::{delete_for, resize_volume_while};
pub use estimate::{Chunks, Estimate, Estimated, Whole};
pub use format::catalogue::{Cut, Format, Named, What};
pub use gateway::{Found, Gateway, Standby, server_at_work};
pub use kernel::{Counts, create, create_sealed, is_made};
pub use layers::{snapshots::Snapshots, table::Snapshot};
pub use names::NamesPage;
pub use post_processing::{Progress, Worker};
pub use presence::{Published, Sessions};
pub use rate_control::{Rate, Watermarks};
#[cfg(feature = "planted-bugs")]
pub use rules::Rule;
pub use scrub::{Place, Report, Scrub, Stage};
#[cfg(feature = "planted-bugs")]
pub use sealing::Sealing;
pub use sealing::keys::{change_keys, erase_keys, key_areas, open_keys};
pub use session::Session;
pub use settings::{Dedup, KeySource, Settings};
pub use status::{Look, Sampled, Status};
pub use volume::{Attached, ClusterExports, GoesOn, Mode, Volume};
