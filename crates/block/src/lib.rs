//! The block engine: inline deduplication of 4 KiB blocks in which every flush survives a crash.
//!
//! [`Engine`] is the engine without threads, whose steps the simulator schedules; [`Store`] is the
//! engine at work, with group commit and background checkpoints; [`StoreExports`] offers its
//! volumes to servers.

mod acts;
#[doc(hidden)]
pub mod bench_parts;
mod block_set;
pub mod check;
pub mod claim;
mod counters;
mod coverage;
pub mod engine;
mod fail_stop;
mod flushes;
pub mod format;
mod growth;
mod hash;
mod idleness;
mod index;
mod kernel;
mod moments;
mod moving;
mod overlay;
mod rules;
pub mod schedule;
mod scheme;
mod settings;
mod sharing;
pub mod space;
mod store;
mod table;
mod table_build;
mod traffic;
mod transfer;
mod window;

pub use acts::{Acts, Place, Receive, Times};
pub use counters::Counts;
pub use coverage::Mark;
pub use engine::{
    Asked, CheckpointStep, Engine, Filled, Idleness, NewVolume, Receiving, Setting, SnapshotOf,
    VolumeState,
};
pub use engine::{
    create::format_sealed,
    data_keys::{StillOlder, finish_data_key, rotate_data_key},
    domains::{
        DomainListed, check_domain_limits, create_domain, domain_called, domain_limits_durable,
        domains, domains_of, erase_domain, set_domain_limits,
    },
    durable_states::{durable_state, want_checkpoint},
    key_changes::{change_keys, erase_keys, identified, is_sealed},
};
pub use format::{
    catalogue::{NO_DEDUP_MAX, NoDedup},
    domain_entry::{DomainEntry, DomainLimits},
};
pub use growth::Growth;
pub use moving::Hindered;
pub use onefold_stream::{
    Begin, Content, Frame, HeldProof, Next, Offer, SendWhat, StreamReader, StreamWriter, Totals,
    negotiates,
};
#[cfg(feature = "planted-bugs")]
pub use rules::Rule;
pub use settings::{Format, KeySource, Limits, MEMORY_MIN, Persistence, Settings, Tidying};
pub use store::{
    BlockVolume, CheckpointTimes, Copies, DomainStatus, ReceiveState, Received, Status, Store,
    StoreExports, VolumeStatus, receives,
};
pub use traffic::Traffic;
pub use transfer::{Piece, PieceKind, Pieces, Token, Transfers};
