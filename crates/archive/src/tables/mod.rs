//! The tables that the log's records make: the catalogue, the container table, and where collection
//! and import stand.
//!
//! | module | what |
//! |---|---|
//! | [`state`] | the tables, and what they are asked |
//! | [`apply`] | records of the log, applied |
//! | [`volumes`], [`volume_table`] | a volume; all of them, and the records that change them |
//! | [`snapshots`] | snapshots of directories, and the records that change them |
//! | [`roles`], [`role_records`] | put keys: what they listed, and what was proven of it; what they may do |
//! | [`unproven`] | snapshots of put keys that manage has not looked through |
//! | [`container`], [`containers`] | the container table: a directory of leaves, which are read when they are looked at |
//! | [`late_encoding`] | what is known for late encoding |
//! | [`totals`] | sums over the containers of each class |
//! | [`not_imported`] | containers that the chunk index does not know |
//! | [`segments`] | segments, and which of them hold nothing |
//! | [`moved_numbers`] | what replaying merges costs |
//! | [`write_cost`] | what writing cost |
//! | [`care`] | when it was collected and scrubbed |
//! | [`damage`] | which chunks are known to be damaged |
//! | [`encoding`] | the bytes of a snapshot |
//! | [`leaves`], [`leaf_form`], [`leaf_entries`] | the tables that are kept in leaves on the disk |
//! | [`persistent`] | maps and lists whose clones share what they have in common |

mod apply;
mod care;
mod container;
mod containers;
mod damage;
mod data_key_records;
mod data_keys;
mod encoding;
mod late_encoding;
mod leaf_entries;
mod leaf_form;
mod leaves;
mod moved_numbers;
mod not_imported;
mod persistent;
mod role_records;
mod roles;
mod segments;
mod snapshots;
mod state;
mod totals;
mod unproven;
mod volume_table;
mod volumes;
mod write_cost;

pub use self::{
    care::Care,
    container::Container,
    containers::{Containers, Found, Iter as ContainersIter},
    data_key_records::{domain_has_older, is_under_older},
    late_encoding::PLACES_MAX,
    leaves::decode_leaf,
    roles::{PutKey, Roles},
    snapshots::Snapshots,
    state::{Tables, valid_name},
    totals::{Sums, Totals},
    unproven::Unproven,
    volume_table::VolumeTable,
    volumes::Volume,
    write_cost::WriteCost,
};
pub(crate) use self::{
    containers::LeafStore,
    damage::is_damaged,
    data_key_records::{refuse_numbers_of_before, with_older},
    data_keys::CHANGES_MAX,
    leaves::{
        Source, changed_leaves, forget_leaves_ahead, limit_leaves, write_leaves, write_leaves_ahead,
    },
    persistent::{List, Map},
    role_records::refused,
    roles::{MANAGE, PUT_KEYS_MAX, SETS_MAX},
    snapshots::roots,
    state::{Difference, NamedCounts, PLACE_ALIGN},
    volumes::{VOLUME_BYTES_MAX, VOLUME_NAME_BYTES_MAX},
};
