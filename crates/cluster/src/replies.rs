//! Replies of the object store: a lost one is asked for again, and a refusal becomes a sentence for a
//! person. The kernel uses this, and so does code that runs before there is a kernel: opening a store,
//! and its key area.

use std::ops::ControlFlow;

use onefold_core::{
    Error, Kind, Result,
    object::{ObjectName, ObjectStore, Read, ReadPart, ReadResult, Refusal},
};

use crate::format::catalogue::{CATALOGUE, FORMAT, Format};

/// Asks until `ask` has an end, at most `tries` times. No other loop of the crate sends an operation
/// again as it was because its reply was lost.
pub(crate) fn retry<T>(
    tries: u32,
    mut ask: impl FnMut() -> Result<ControlFlow<T>, Refusal>,
) -> Result<T, Refusal> {
    for _ in 0..tries.max(1) {
        if let ControlFlow::Break(end) = ask()? {
            return Ok(end);
        }
    }
    Err(Refusal::Unknown)
}

/// Repeats a request until there is a reply. Only for requests that may be applied twice.
pub(crate) fn until_answered<T>(
    tries: u32,
    mut ask: impl FnMut() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    retry(tries, || match ask() {
        Err(Refusal::Unknown) => Ok(ControlFlow::Continue(())),
        other => other.map(ControlFlow::Break),
    })
}

/// The value of the first key of the first part; empty when there is none.
pub(crate) fn first_value(answer: &ReadResult) -> Vec<u8> {
    answer.pairs(0).0.first().map(|(_, value)| value.clone()).unwrap_or_default()
}

/// Turns a refusal of the store into the sentence that a person reads.
pub(crate) fn failed(what: impl std::fmt::Display, refusal: Refusal) -> Error {
    let kind = match refusal {
        Refusal::Missing => Kind::NotFound,
        Refusal::Exists => Kind::Exists,
        Refusal::Mismatch | Refusal::Busy => Kind::Busy,
        Refusal::Full => Kind::NoSpace,
        Refusal::Fenced => Kind::Stopped,
        Refusal::Unknown => Kind::Io,
        Refusal::Unsupported => Kind::Unsupported,
        Refusal::Denied(error) | Refusal::Failed(error) => return error.context(what),
    };
    Error::new(kind, format!("{what}: {refusal}"))
}

/// Reads the format, which was chosen when the store was made.
pub(crate) fn read_format(store: &dyn ObjectStore, tries: u32) -> Result<Format> {
    let read = Read {
        object: ObjectName::metadata(CATALOGUE),
        parts: vec![ReadPart::Keys(vec![FORMAT.to_vec()])],
    };
    match until_answered(tries, || store.read(std::slice::from_ref(&read)).remove(0)) {
        Ok(answer) => Format::decode(&first_value(&answer)),
        Err(Refusal::Missing) => {
            Err(Error::new(Kind::NotFound, "there is no store; `onefold create cluster` makes one"))
        }
        Err(refusal) => Err(failed("the catalogue can't be read", refusal)),
    }
}
