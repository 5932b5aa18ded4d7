//! The part that the schemes with records share: carriers, the leftover table, and the opening that
//! verifies records one by one.

mod append;
mod arrange;
#[cfg(feature = "planted-bugs")]
mod broken;
pub(crate) mod leftover;
pub(crate) mod leftover_table;
mod loss;
mod recover;
mod replay;
mod scan;
mod space;
mod verify;

pub(crate) use arrange::Records;
pub(crate) use recover::recover;
pub(crate) use replay::Replay;
