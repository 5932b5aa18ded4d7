//! The tables that are kept in leaves on the disk: catalogue, container table, and the list of
//! snapshots of directories.
//!
//! | module | what |
//! |---|---|
//! | [`directory`] | which leaves a snapshot names, and the tables read from it |
//! | [`writing`] | which leaves a snapshot writes, and those that are written ahead of it |

mod directory;
#[cfg(test)]
mod tests;
mod writing;

pub use self::directory::decode_leaf;
pub(super) use self::directory::{InLeaves, decode_directory, encode_directory};
pub(crate) use self::{
    directory::Source,
    writing::{
        changed_leaves, forget_leaves_ahead, limit_leaves, write_leaves, write_leaves_ahead,
    },
};
