//! Repairs damage: lost chunks from their copies, nodes from the other nodes.

mod lost_chunks;
mod nodes;

pub use self::{
    lost_chunks::{Restored, record_damage, restore},
    nodes::{Rebuilt, Replacement, repair, replace},
};
