//! The archive engine: streams cut into chunks, each stored once, in containers (dedupv1), with
//! garbage collection.
//!
//! Modules import only modules that stand above them here:
//!
//! | module | what |
//! |---|---|
//! | `memory`, `format`, `rules`, `settings` | budgets and buffers; the bytes; the rules that steps keep; what is chosen when an archive is made or opened |
//! | `chunking` | cutting streams into chunks |
//! | `block_index` | where the mappings of a volume's blocks are |
//! | `leaf_file` | where the leaves of tables are |
//! | `erasure` | several directories as one, of which some may be lost |
//! | `own_files`, `additions` | which files of a directory are an archive's; the same for a client that may only add |
//! | `tables` | what the log says, applied |
//! | `operations_log` | label, frames, snapshots, epochs, locks |
//! | `container` | where containers are written and read |
//! | `chunk_index` | the auxiliary index in memory, the paged hash table with its runs and filters on the disk |
//! | `filter_chain` | is this chunk stored already? |
//! | `stream` | streams on their way in and out |
//! | `tree` | snapshots of directories: trees of nodes |
//! | `usage_counts` | how often each chunk is named |
//! | `volume` | backup volumes: writes in memory, written back into containers, and reads |
//! | `rad` | late encoding by reference counts |
//! | `gc` | condemning, merging, freeing |
//! | `background_replay` | what the log says, carried into index, counts and tables while nobody asks for anything |
//! | `repair` | damaged chunks and lost nodes made whole from what is left |
//! | `copy` | snapshots and streams of another archive |
//! | `check` | is all there, and whole? |
//!
//! *Invariant:* no file, clock or randomness but through the traits; no thread but in `stream::pipeline` and
//! `tree::restore::threads`. A process may end at any point, as after a power cut, and what was acknowledged
//! is there.

mod additions;
mod background_replay;
mod block_index;
mod check;
mod chunk_index;
mod chunking;
mod container;
mod copy;
mod erasure;
mod filter_chain;
mod format;
mod gc;
mod leaf_file;
mod memory;
mod operations_log;
mod own_files;
mod rad;
mod repair;
mod rules;
mod settings;
mod stream;
mod tables;
mod tree;
mod usage_counts;
mod volume;

pub use crate::{
    additions::{Additions, MAY_ADD_ONLY},
    background_replay::{BackgroundReplay, ReplayDue, ReplayStep, Replayed, gives_way, replay_due},
    check::{
        ErasedFound, Portion, Progress as CheckProgress, Report as CheckReport, ScrubRound, check,
        check_one, note_scrubbed,
    },
    chunk_index::{
        ChunkIndex, IndexMove, PAGE_BYTES as INDEX_PAGE_BYTES, lost_files as lost_index_files,
        make_whole as make_chunk_index_whole, not_found as not_found_in_chunk_index,
        rebuild as rebuild_chunk_index,
    },
    chunking::Cuts,
    container::Pace,
    copy::{
        CopyChoice, CopyPlan, CopyRequest, StreamPresence, copy_snapshot, copy_stream, may_copy,
        plan_copy, share_secret, stream_presence,
    },
    erasure::{Absent, IndexDirectory, NodeLabel, Nodes, Spread, View as NodesView, seal},
    filter_chain::Counts as FilterCounts,
    format::{
        Address, ContainerId, Identity,
        backup::{Completeness, Origin, Snapshot, SnapshotId, TEXTS_MAX},
        care::CareNote,
        class::{Class, GATHERS_MAX, Placement, Rad},
        container::{Chunk, ContainerKind, GroupSeal, Metadata, Packer},
        data_keys::Rotation,
        frame::{decode as decode_frame, encode as encode_frame},
        label::{Found as FoundLabel, Kinds, Label, Newer, find_label},
        listing::{
            ENTRY_BYTES_MAX, LEVELS_MAX, Links, Order, decode as decode_listing,
            encode as encode_entry,
        },
        parameters::{Chunking, Compression, VOLUME_BLOCK_BYTES},
        recipe::{Part, RecipeWriter, Summary, parts as recipe_parts},
        record::{IndexFile, Owner, Pieces, Place, Record, Shape, Stored, Stream},
        sealing::Role,
        tree_node::{
            ATTRIBUTES_INLINE, Attributes, FileMap, IndexEntry, Key, Named, Root, Stat, Top,
            TreeEntry, TreeNode, TreeNodeRef, TreeWhat,
        },
    },
    gc::{
        Collected, Collection, FreeBytes, Options as CollectionOptions,
        Patience as CollectionPatience, Survey, Trash, survey,
    },
    operations_log::{
        Archive, DataKeyListed, Domain, DomainListed, EpochGuard, Reserve, add_put_key,
        allow_data_keys, allow_domains, change_keys, create_domain, create_sealed, data_keys,
        domain_called, domains, erase_domain, erase_keys, features_to_come, head_of,
        is_erased as is_domain_erased, key_area, mend_leaves, read_key, remove_put_key, renew_log,
        renew_snapshot, rotate_data_key, upgrade, upgrade_telling,
    },
    own_files::{
        TURNS, is_archive_file, is_commit_lock, is_epoch_lock, is_node, is_unfinished, may_be_node,
    },
    repair::{
        Rebuilt, Replacement, Restored, record_damage, repair as repair_units,
        replace as replace_nodes, restore as restore_chunks,
    },
    settings::{FilterName, Format, GiveUp, KeySource, READER_BYTES, Settings},
    stream::{
        Batch, Content, Cutting, Ended, Feeder, Gauge, Growth, Ingest, Reader, Report as PutReport,
        Request as PutRequest, Session, StoredChunk, StreamWriter, Verify, Writing, put, put_on,
    },
    tables::{
        Care, Container, Containers, ContainersIter, Found as FoundContainer, PLACES_MAX, PutKey,
        Roles, Snapshots, Sums, Tables, Totals, Unproven, Volume, VolumeTable, WriteCost,
        decode_leaf, domain_has_older, is_under_older, valid_name,
    },
    tree::{
        BackupReport, BackupRequest, Built, Change, CopiedFrom, CopyCounts, CopyFailure, CopySink,
        Copying, DirectoryPages, Entries, Event, FoundInParent, Known, PAGES_HELD, Parents,
        RestoreTarget, RestoreWindow, TreeBuilder, TreeFeeder, TreeReader, TreeSink, attributes_of,
        backup, backup_elsewhere, backup_on, backup_trial, diff, encode_attributes, forget,
        is_clock_ahead, undelete,
    },
    usage_counts::{CountsFound, Miscounted},
    volume::{ArchiveExports, Loss, VolumeCounts, Volumes, create_volume_in, volume_bytes},
};
#[cfg(feature = "planted-bugs")]
pub use crate::{
    operations_log::{append_records, write_other_tables},
    rules::Rule,
    volume::containers_of_volume,
};
