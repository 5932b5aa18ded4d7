//! What is kept of an archive, and how it is looked after: the rules of `forget` and of `serve
//! --maintenance`.
//!
//! | module | what |
//! |---|---|
//! | [`clones`] | read-only clones of volumes as snapshots |
//! | [`policy`] | which snapshots of one set are kept |
//! | [`retention`] | the verdicts on all sets |
//! | [`period`](mod@period) | times for which something is kept |
//! | [`file`](mod@file) | the file of policies |

pub(super) mod clones;
pub(super) mod file;
pub(super) mod period;
pub(super) mod policy;
pub(super) mod retention;
