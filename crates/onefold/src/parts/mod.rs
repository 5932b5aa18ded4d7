//! The parts that open stores: files, folders, claims, control sockets. The command uses it where
//! this library has no call yet; nothing of it is stable.

pub mod address;
pub mod archive_care;
pub mod archive_dir;
pub mod archive_work;
pub mod away;
pub mod bucket;
pub mod cluster_store;
pub mod cluster_work;
pub mod control;
pub mod far;
mod heads_before;
pub mod index_move;
mod index_place;
pub mod keeper;
pub mod kept_objects;
pub mod keys;
mod node_list;
pub mod operator;
pub mod sealed_before;
mod standing;
pub mod store_file;
pub mod user_directory;
pub mod witness;

pub use crate::locate::{Found, foreign};
