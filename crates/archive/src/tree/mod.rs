//! Snapshots of directories: trees of nodes, built from what a walk finds, and read again.
//!
//! *Invariant:* the same input gives the same tree, whatever was stored before and however many
//! threads work. A page that is equal to one of the parent snapshot is named, not written; only the
//! parent's tree is searched for it.
//!
//! | module | what |
//! |---|---|
//! | [`borders`] | where pages end |
//! | [`levels`] | index pages above pages |
//! | [`links`] | first names of files that have several |
//! | [`file_map`] | the content of one file, as parts and pages |
//! | [`foreign`] | what another process tells of a walk, before it is believed |
//! | [`builder`] | the tree, from events and chunks in their order |
//! | [`reader`] | entries and content of a tree |
//! | [`restore`] | content on its way out, in the order of its places |
//! | [`compare`] | whether a file that is read again has the content that is stored |
//! | [`parent`] | the parent's tree, beside a walk |
//! | [`backup`] | a snapshot on its way in, with threads |
//! | [`copying`] | a snapshot of another archive, told as a walk |
//! | [`shrunk`] | whether the last snapshot had more data |
//! | [`commit`] | its record |
//! | [`diff`] | what differs between two trees |
//! | [`same_content`] | whether two files have the same content |
//! | [`catalogue`] | forgotten, undeleted, expired |
//! | [`judged`] | trees looked at, each node once, and what is wrong with them |
//! | [`whole`] | whether a snapshot of a put key is what it says |
//! | [`wire`] | events between two processes |

mod backup;
mod borders;
mod builder;
mod catalogue;
mod commit;
mod compare;
mod copying;
mod diff;
mod file_map;
mod foreign;
mod judged;
mod levels;
mod links;
mod parent;
mod reader;
mod restore;
mod same_content;
mod shrunk;
mod whole;
mod wire;

pub(crate) use self::catalogue::{Expiry, expire, expiry};
pub use self::{
    backup::{
        BackupReport, BackupRequest, CopiedFrom, TreeFeeder, TreeSink, backup, backup_elsewhere,
        backup_on, backup_trial,
    },
    builder::{Built, Event, Known, TreeBuilder},
    catalogue::{forget, is_clock_ahead, undelete},
    copying::{CopyCounts, CopyFailure, CopySink, Copying},
    diff::{Change, diff},
    parent::{Found as FoundInParent, Parents},
    reader::{DirectoryPages, Entries, PAGES_HELD, TreeReader, attributes_of, encode_attributes},
    restore::{RestoreTarget, RestoreWindow},
};
pub(crate) use self::{
    judged::{Judged, TreeSource, Trees},
    whole::{is_untrue, untrue},
};
