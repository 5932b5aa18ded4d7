//! The entries by which an object of a volume is read, for who sends or exports it.

use std::collections::BTreeMap;

use onefold_core::{Result, object::Refusal};

use super::Volume;
use crate::{
    chunk_map::ChunkMap,
    format::{ObjectId, entry::Entry},
    layers::below::missing,
};

/// Looks at one object; each after the first follows a layer that went meanwhile.
const LOOKS: u32 = 100;

/// An object as a volume reads it.
pub(crate) struct Held {
    /// The object that has it, of the volume or of a layer below.
    pub(crate) holder: ObjectId,
    /// Its entries by their offset.
    pub(crate) entries: BTreeMap<u32, Entry>,
}

/// What a volume that is attached for reading reads an object by: its own object, or that of the nearest layer below
/// that has one. `None` where all is zeroes.
///
/// # Errors
/// `NotFound` when the volume or snapshot was deleted; `Corrupt` when the object is missing or damaged.
pub(crate) fn entries_of(volume: &Volume, index: u64) -> Result<Option<Held>> {
    look(volume, index).map_err(|refusal| volume.objects.failed(index, refusal))
}

/// The objects that a volume may have, here or in layers below, as it knows since it was attached.
pub(crate) fn objects_of(volume: &Volume) -> Vec<u64> {
    volume.objects.all_there()
}

fn look(volume: &Volume, index: u64) -> Result<Option<Held>, Refusal> {
    let objects = &volume.objects;
    let mut lost = None;
    for _ in 0..LOOKS {
        // The layers of before the look: what one of them handed down meanwhile is missing there, and is looked for
        // again.
        let below = objects.below();
        let map = ChunkMap::read(objects.kernel(), objects.id(index))?;
        if !objects.is_as_expected(index, map.as_ref())? {
            if lost.replace(objects.id(index)) == Some(objects.id(index)) {
                return Err(objects.lost(index));
            }
            continue;
        }
        if let Some(map) = map.filter(|map| map.copying.is_none()) {
            return Ok(Some(Held { holder: objects.id(index), entries: map.entries }));
        }
        let Some(holder) = below.sources(index).next() else { return Ok(None) };
        match ChunkMap::read(objects.kernel(), holder)?.filter(ChunkMap::holds_content) {
            Some(map) => return Ok(Some(Held { holder, entries: map.entries })),
            None if lost == Some(holder) => return Err(missing(holder)),
            None => {
                lost = Some(holder);
                objects.look_below_again()?;
            }
        }
    }
    Err(Refusal::Mismatch)
}
