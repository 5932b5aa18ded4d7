//! The papers' experiments: what each states, measured here and judged.
//!
//! A paper is a list of [`Item`]s, one for each thing that it states: which [`Case`]s it needs,
//! when it counts as reproduced, and how its plot is drawn. Cases that several items need are run
//! once. Every figure comes from a [`replay`](crate::replay) of the real engine, or from
//! [crashes](crate::crash) of it.
//!
//! | file | what is there |
//! |---|---|
//! | `case` | a run: what is written, how, on which system; what came out |
//! | `item` | a statement: its cases, its verdict, its plots |
//! | `crashes` | what power failures come to, for the statements about them |
//! | `run` | all items of a paper, into results and a page |
//! | [`thindedup`], [`ordermerge`], [`global`], [`dedupv1`], [`rad`] | the papers |

mod case;
mod crashes;
pub mod dedupv1;
pub mod global;
mod item;
pub mod ordermerge;
pub mod rad;
mod run;
pub mod thindedup;

pub use case::{Case, Load, Measured, Pace, System};
pub use item::{Extent, Item};
pub use run::Results;
