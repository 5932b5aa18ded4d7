//! Layers: snapshots and clones of volumes.
//!
//! A volume that gets a snapshot gets a new number, and an empty map. Its old number, which nobody
//! writes to any more, is a *layer*: the snapshot, and what the volume reads where it has no object of
//! its own. A clone is a volume over the layer of a snapshot, and so is a volume after a rollback. One
//! operation gives the name to the new number and records that the layer stays.
//!
//! | module | what |
//! |---|---|
//! | [`below`] | which layers a volume reads |
//! | [`copy_up`] | an object that is inherited becomes the volume's own, before it is changed |
//! | [`erasure`] | a layer that goes hands its objects down |
//! | [`table`] | the snapshots of a volume, in its header |
//! | [`received`] | what is received from another store becomes a snapshot; replicas |
//! | [`snapshots`] | making, listing and deleting snapshots; clones and rollbacks |

pub(crate) mod below;
pub(crate) mod copy_up;
pub(crate) mod erasure;
pub(crate) mod received;
pub(crate) mod snapshots;
pub(crate) mod table;
