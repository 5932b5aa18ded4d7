//! Trims. A chunk that is trimmed whole becomes zeroes, and its base a pending drop, which a worker
//! does. In other chunks single blocks are punched. A long range is a [record in the
//! header](super::long_discards).

use std::sync::Arc;

use onefold_core::{Result, object::Refusal};

use super::{
    long_discards::{Discard, HeldBack, LongDiscards},
    objects::{Fill, Objects},
    write::Writes,
};
use crate::format::Stamp;

/// Trims of one volume.
pub(super) struct Trims {
    objects: Arc<Objects>,
    discards: Arc<LongDiscards>,
    writes: Arc<Writes>,
}

impl Trims {
    pub(super) fn new(
        objects: Arc<Objects>,
        discards: Arc<LongDiscards>,
        writes: Arc<Writes>,
    ) -> Trims {
        Trims { objects, discards, writes }
    }

    /// Makes a range read as zeroes; durable on return. No write may wait.
    pub(super) fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        let (object_bytes, end) = (self.objects.bytes(), offset + bytes);
        let whole = offset.div_ceil(object_bytes)..end / object_bytes;
        if whole.start < whole.end
            && whole.end - whole.start > self.objects.kernel().settings().direct_objects
        {
            self.make_room()?;
            self.zero(offset, whole.start * object_bytes)?;
            self.discards
                .record(whole.start, whole.end)
                .map_err(|refusal| self.objects.failed(whole.start, refusal))?;
            return self.zero(whole.end * object_bytes, end);
        }
        self.zero(offset, end)
    }

    /// Advances the long discards until there is room for one more.
    fn make_room(&self) -> Result<()> {
        self.discards.resolve().map_err(|refusal| self.objects.failed(0, refusal))?;
        while self.discards.are_full() {
            self.step()?;
        }
        Ok(())
    }

    /// Zeroes a range object by object. An object that does not exist reads as zeroes already.
    fn zero(&self, mut at: u64, end: u64) -> Result<()> {
        let object_bytes = self.objects.bytes();
        while at < end {
            let (index, within) = (at / object_bytes, (at % object_bytes) as u32);
            let bytes = (object_bytes - u64::from(within)).min(end - at) as u32;
            self.writes
                .fill(index, within..within + bytes, Fill::Zeroes)
                .map_err(|refusal| self.objects.failed(index, refusal))?;
            at += u64::from(bytes);
        }
        Ok(())
    }

    /// Applies long discards to one more object; false when there is none.
    pub(super) fn step(&self) -> Result<bool> {
        let Some(discard) = self.discards.oldest() else { return Ok(false) };
        self.advance(discard).map_err(|refusal| self.objects.failed(discard.cursor(), refusal))?;
        Ok(true)
    }

    /// The same for those up to a number; false when none of them is left.
    pub(super) fn step_up_to(&self, last: Stamp) -> Result<bool> {
        match self.discards.oldest() {
            Some(discard) if discard.number() <= last => self.step(),
            _ => Ok(false),
        }
    }

    /// The number of the newest long discard that has not reached all its objects.
    pub(super) fn last(&self) -> Option<Stamp> {
        self.discards.last()
    }

    /// Holds back long discards of clients while somebody waits for those that are there.
    pub(super) fn hold_back(&self) -> HeldBack {
        self.discards.hold_back()
    }

    fn advance(&self, discard: Discard) -> Result<(), Refusal> {
        if !discard.is_over() {
            let index = discard.cursor();
            let object = self.objects.get(index);
            self.writes.reach(index, &mut object.lock(), discard.number())?;
        }
        self.discards.advance(discard, self.objects.first_there(discard.rest()))
    }
}
