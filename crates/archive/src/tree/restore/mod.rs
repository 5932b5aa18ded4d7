//! Content of files on its way out, in the order in which it lies in the archive.
//!
//! A walk through a snapshot gives files and the parts of their content to a [`RestoreWindow`],
//! until its memory is full. Then the chunks are looked up and sorted by their places; each group of
//! chunks is read once, several neighbours at a time, expanded and verified on all cores, and
//! written to wherever files want it.
//!
//! *Invariant:* a file is finished after its last range, and never before; a range goes to its own
//! file, and only when its bytes have the fingerprint that was stored.
//!
//! | module | what |
//! |---|---|
//! | [`target`] | the files, as they are asked for |
//! | [`ledger`] | what each file waits for |
//! | [`threads`] | pieces of work on several threads |
//! | [`plan`] | where the chunks lie |
//! | [`keep`] | what files have already, in place |
//! | [`spread`] | groups read, expanded, verified and written |
//! | [`window`] | one after the other |

mod keep;
mod ledger;
mod plan;
mod spread;
mod target;
mod threads;
mod window;

pub use self::{target::RestoreTarget, window::RestoreWindow};
