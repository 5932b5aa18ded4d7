//! Chunks that a server kept in the objects of a volume, which is a layer by now: no server's budget counts them,
//! and no owner evicts them. Whoever deletes also gives their space back.

use onefold_core::object::{Change, Guard, ReadPart, Refusal, Write};

use super::{
    cache_manager::parse,
    header::{CACHED, name},
};
use crate::{
    chunk_map::ChunkMap,
    format::{
        ObjectId,
        entry::{Entry, Sums},
        key,
    },
    session::Session,
};

/// Chunks of a step.
const TOGETHER: usize = 64;

/// Gives back some of the chunks that are kept in a layer; false when there is none left.
///
/// # Errors
/// The store's.
pub(crate) fn give_back(session: &Session, layer: u64) -> Result<bool, Refusal> {
    let part = ReadPart::Page(vec![CACHED], TOGETHER);
    let answer = match session.kernel().read_one(&name(layer), vec![part]) {
        Err(Refusal::Missing) => return Ok(false),
        other => other?,
    };
    let mut any = false;
    for (key, value) in answer.pairs(0).0 {
        let Some(place) = key::parse_numbered(CACHED, key) else { break };
        any = true;
        let (index, offset) = parse(place);
        if !evict(session, ObjectId { volume: layer, index }, offset)? {
            continue;
        }
        match session.kernel().until_answered(&Write {
            object: name(layer),
            guards: vec![Guard::Exists, Guard::Omap(key.clone(), value.clone())],
            changes: vec![Change::DropOmap(vec![key.clone()])],
        }) {
            Ok(_) | Err(Refusal::Mismatch | Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(any)
}

/// Takes the blocks of a clean chunk out of its object; false when the chunk was changed meanwhile, and is looked at
/// again.
fn evict(session: &Session, object: ObjectId, offset: u32) -> Result<bool, Refusal> {
    let Some(map) = ChunkMap::read(session.kernel(), object)? else { return Ok(true) };
    let kept = |entry: &&Entry| !entry.dirty && entry.mask != 0 && entry.base.is_some();
    let Some(entry) = map.entries.get(&offset).filter(kept) else { return Ok(true) };
    let stamp = session.kernel().stamp();
    let new = Entry { mask: 0, sums: Sums::NONE, stamp, ..entry.clone() };
    match session.kernel().until_answered(&Write {
        object: object.name(),
        guards: vec![Guard::Omap(key::entry(offset), entry.encode(object, offset))],
        changes: vec![
            Change::Zero(offset.into(), entry.length.into()),
            Change::SetOmap(vec![(key::entry(offset), new.encode(object, offset))]),
        ],
    }) {
        Ok(_) => Ok(true),
        Err(Refusal::Mismatch | Refusal::Missing) => Ok(false),
        Err(refusal) => Err(refusal),
    }
}
