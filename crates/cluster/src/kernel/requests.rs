//! Reads and writes, alone and in batches.
//!
//! A write that does the same when it is applied twice is sent again while its reply is lost; one
//! that may not be is an [`Operation`](super::operation::Operation).

use std::{ops::ControlFlow, sync::atomic::Ordering::Relaxed, time::Duration};

use onefold_core::object::{ObjectName, Read, ReadPart, ReadResult, Refusal, Version, Write};

use super::Kernel;
use crate::replies::{first_value, retry, until_answered};

/// Keys of a page.
const PAGE: usize = 1000;

/// Objects whose first pages are in flight together.
const TOGETHER: usize = 32;

impl Kernel {
    /// As [`retry`], with the tries of the settings.
    pub(crate) fn retry<T>(
        &self,
        ask: impl FnMut() -> Result<ControlFlow<T>, Refusal>,
    ) -> Result<T, Refusal> {
        retry(self.settings.tries, ask)
    }

    /// Sends one operation; its reply may be lost.
    pub(crate) fn write_one(&self, op: &Write) -> Result<Version, Refusal> {
        self.write_all(std::slice::from_ref(op)).pop().unwrap_or(Err(Refusal::Unknown))
    }

    /// As [`write_one`](Self::write_one) for a batch.
    pub(crate) fn write_all(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let results = self.store.write(batch);
        let unknown =
            results.iter().filter(|result| matches!(result, Err(Refusal::Unknown))).count();
        self.counts.unknown.fetch_add(unknown as u64, Relaxed);
        results
    }

    /// Sends an operation that does the same when it is applied twice: without a reply it is sent
    /// again.
    pub(crate) fn until_answered(&self, op: &Write) -> Result<Version, Refusal> {
        until_answered(self.settings.tries, || self.write_one(op))
    }

    /// As [`until_answered`](Self::until_answered) for a batch.
    pub(crate) fn all_until_answered(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let mut results = self.write_all(batch);
        for (op, result) in batch.iter().zip(&mut results) {
            if matches!(result, Err(Refusal::Unknown)) {
                *result = self.until_answered(op);
            }
        }
        results
    }

    /// As [`all_until_answered`](Self::all_until_answered), with the record of attempts in front of
    /// the batch, if there is one.
    pub(crate) fn behind_until_answered(
        &self,
        note: &mut Option<Write>,
        batch: &[Write],
    ) -> Result<Vec<Result<Version, Refusal>>, Refusal> {
        let noted = usize::from(note.is_some());
        let batch: Vec<Write> = note.take().into_iter().chain(batch.iter().cloned()).collect();
        let mut results = self.all_until_answered(&batch);
        let rest = results.split_off(noted);
        results.pop().transpose().map(|_| rest)
    }

    /// Acquires or renews a lock; without a reply it asks again.
    pub(crate) fn lock_until_answered(
        &self,
        object: &ObjectName,
        lock: &'static str,
        lease: Duration,
    ) -> Result<(), Refusal> {
        let cookie = self.cookie();
        until_answered(self.settings.tries, || self.store.lock(object, lock, &cookie, Some(lease)))
    }

    /// Reads one object; without a reply it is asked again.
    pub(crate) fn read_one(
        &self,
        object: &ObjectName,
        parts: Vec<ReadPart>,
    ) -> Result<ReadResult, Refusal> {
        self.read_all(&[Read { object: object.clone(), parts }])
            .pop()
            .unwrap_or(Err(Refusal::Unknown))
    }

    /// The value of one key; empty when the object does not have the key.
    pub(crate) fn read_value(&self, object: &ObjectName, key: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.read_one(object, vec![ReadPart::Keys(vec![key.to_vec()])])
            .map(|answer| first_value(&answer))
    }

    /// As [`read_one`](Self::read_one) for a batch.
    pub(crate) fn read_all(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let mut results = self.store.read(batch);
        for (op, result) in batch.iter().zip(&mut results) {
            let mut first = Some(std::mem::replace(result, Err(Refusal::Unknown)));
            *result = until_answered(self.settings.tries, || {
                first.take().unwrap_or_else(|| self.read_again(op))
            });
        }
        results
    }

    fn read_again(&self, op: &Read) -> Result<ReadResult, Refusal> {
        self.store.read(std::slice::from_ref(op)).pop().unwrap_or(Err(Refusal::Unknown))
    }

    /// All keys of an object after `after`, page by page; nothing when it is missing.
    #[cfg(test)]
    pub(crate) fn all_keys(
        &self,
        object: &ObjectName,
        after: Vec<u8>,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Refusal> {
        self.first_keys(object, after, usize::MAX).map(|(all, _)| all)
    }

    /// The keys of an object after `after`, page by page, up to the end of the page with which there
    /// are `most`; true when there are more. Nothing when it is missing.
    #[allow(clippy::type_complexity, reason = "keys with their values, and whether there are more")]
    pub(crate) fn first_keys(
        &self,
        object: &ObjectName,
        mut after: Vec<u8>,
        most: usize,
    ) -> Result<(Vec<(Vec<u8>, Vec<u8>)>, bool), Refusal> {
        let mut all = Vec::new();
        loop {
            let answer = match self.read_one(object, vec![ReadPart::Page(after, PAGE)]) {
                Err(Refusal::Missing) => return Ok((all, false)),
                other => other?,
            };
            let (pairs, more) = answer.pairs(0);
            all.extend_from_slice(pairs);
            match all.last() {
                Some(_) if more && all.len() >= most => return Ok((all, true)),
                Some((last, _)) if more => after = last.clone(),
                _ => return Ok((all, false)),
            }
        }
    }

    /// Gives all keys of many objects after `after` to `visit`, page by page, with the object's place
    /// among them; an object's pages come in order. However many keys there are, the first pages of
    /// [`TOGETHER`] objects are held at most.
    pub(crate) fn pages_of(
        &self,
        objects: &[ObjectName],
        after: &[u8],
        mut visit: impl FnMut(usize, &[(Vec<u8>, Vec<u8>)]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let read = |object: &ObjectName| Read {
            object: object.clone(),
            parts: vec![ReadPart::Page(after.to_vec(), PAGE)],
        };
        for (group, some) in objects.chunks(TOGETHER).enumerate() {
            let first = self.read_all(&some.iter().map(read).collect::<Vec<_>>());
            for (n, (object, mut answer)) in some.iter().zip(first).enumerate() {
                loop {
                    let page = match answer {
                        Err(Refusal::Missing) => break,
                        other => other?,
                    };
                    let (pairs, more) = page.pairs(0);
                    visit(group * TOGETHER + n, pairs)?;
                    let Some((last, _)) = pairs.last().filter(|_| more) else { break };
                    answer = self.read_one(object, vec![ReadPart::Page(last.clone(), PAGE)]);
                }
            }
        }
        Ok(())
    }
}
