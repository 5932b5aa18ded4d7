//! How far inputs come in a target: what was taken for good, and the sentences by which the rest
//! was refused. A target that never gets past its header shows by it.

use std::{cell::RefCell, collections::BTreeMap};

use onefold_core::{Error, Kind};

/// Sentences that are told apart; damage has many places, and none has thousands.
const SENTENCES_MAX: usize = 4096;

/// How many inputs of a target were accepted, and how the others were refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Bytes that were taken for good.
    pub good: u64,
    /// Inputs that were refused, by the kind of the error.
    pub refused: BTreeMap<String, u64>,
    /// Sentences that it was refused with, numbers left out: each stands for a place in the code.
    pub sentences: BTreeMap<String, u64>,
}

thread_local! {
    /// Targets note on the thread that runs them.
    static REACHED: RefCell<Reached> = RefCell::default();
}

/// The counts of this thread since the last call.
pub fn taken() -> Reached {
    REACHED.take()
}

/// Sentences that came up since then.
pub(crate) fn sentences() -> usize {
    REACHED.with_borrow(|reached| reached.sentences.len())
}

/// Notes bytes that were taken for good.
pub(crate) fn good() {
    REACHED.with_borrow_mut(|reached| reached.good += 1);
}

/// Notes why bytes were refused.
pub(crate) fn refused(error: &Error) {
    let sentence: String = error
        .to_string()
        .chars()
        .filter(|c| c.is_ascii_alphabetic() || *c == ' ')
        .take(96)
        .collect();
    REACHED.with_borrow_mut(|reached| {
        *reached.refused.entry(format!("{:?}", error.kind())).or_default() += 1;
        if reached.sentences.len() < SENTENCES_MAX {
            *reached.sentences.entry(sentence).or_default() += 1;
        }
    });
}

/// Notes what became of an attempt, and gives what came out of it.
pub(crate) fn noted<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => {
            good();
            Some(value)
        }
        Err(error) => {
            refused(&error);
            None
        }
    }
}

/// The same of something that says no more than whether it is.
pub(crate) fn is<T>(found: Option<T>, what: &str) -> Option<T> {
    noted(found.ok_or_else(|| Error::new(Kind::Corrupt, what)))
}
