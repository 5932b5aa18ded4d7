//! What clients ask for: the one form in which workloads and traces reach a replay.

use std::time::Duration;

use onefold_core::{Lba, Result};

use crate::Content;

/// One request, and when it came, counted from the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it came.
    pub at: Duration,
    /// What is asked for.
    pub what: What,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Writes of consecutive blocks.
    Write {
        /// The first block.
        first: Lba,
        /// What to write.
        blocks: Vec<Content>,
        /// It is answered when it is durable.
        fua: bool,
    },
    /// Everything that was answered is to be durable.
    Flush,
    /// Blocks that may be forgotten.
    Trim {
        /// The first block.
        first: Lba,
        /// How many.
        blocks: u64,
    },
    /// Blocks that read as zeroes from now on.
    Zeroes {
        /// The first block.
        first: Lba,
        /// How many.
        blocks: u64,
    },
    /// Not a request: from here on the client does something else.
    Phase(String),
}

/// Requests one after the other, and what is known of them beforehand.
pub struct Source {
    /// Blocks of the volume that is written.
    pub volume_blocks: u64,
    /// Steps that `requests` will take, for progress; 0 when nobody knows.
    pub steps: u64,
    /// The requests, each with the number of steps done when it came.
    pub requests: Box<dyn Iterator<Item = Result<(u64, Request)>>>,
}

impl What {
    /// Blocks that it writes.
    #[must_use]
    pub fn written_blocks(&self) -> u64 {
        if let What::Write { blocks, .. } = self { blocks.len() as u64 } else { 0 }
    }
}
