//! Requests of clients: the one form in which workloads and traces reach a replay.

use std::{cell::Cell, rc::Rc, time::Duration};

use onefold_core::{Lba, Result};

use crate::Content;

/// One request, and when it came, counted from the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it came.
    pub at: Duration,
    /// The request itself.
    pub what: What,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Writes of consecutive blocks.
    Write {
        /// The first block.
        first: Lba,
        /// The contents, one for each block.
        blocks: Vec<Content>,
        /// The answer comes when the write is durable.
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
    /// Set at the end when there should have been more.
    pub cut: Rc<Cell<bool>>,
}

impl Source {
    /// Only what came from the mark `name` on, as if it were the beginning.
    #[must_use]
    pub fn from_mark(self, name: &'static str) -> Source {
        let is_mark = move |item: &Result<(u64, Request)>| match item {
            Ok((_, Request { what: What::Phase(mark), .. })) => mark == name,
            _ => false,
        };
        let mut begun = None;
        let rest =
            self.requests.skip_while(move |item| item.is_ok() && !is_mark(item)).map(move |item| {
                item.map(|(done, Request { at, what })| {
                    let (before, first) = *begun.get_or_insert((done - 1, at));
                    (done - before, Request { at: at.saturating_sub(first), what })
                })
            });
        Source { requests: Box::new(rest), ..self }
    }

    /// Only what came within the first `steps` steps.
    #[must_use]
    pub fn first(self, steps: u64) -> Source {
        let requests = self
            .requests
            .take_while(move |item| item.as_ref().map_or(true, |&(done, _)| done <= steps));
        let known = if self.steps == 0 { steps } else { self.steps.min(steps) };
        Source { steps: known, requests: Box::new(requests), ..self }
    }
}

impl What {
    /// Blocks that it writes.
    #[must_use]
    pub fn written_blocks(&self) -> u64 {
        if let What::Write { blocks, .. } = self { blocks.len() as u64 } else { 0 }
    }
}
