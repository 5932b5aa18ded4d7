//! Invariants that hold after every single operation, and those that hold once all is quiet.

pub(super) mod decay;
pub(super) mod double;
pub(super) mod end;
pub(super) mod naming;
pub(super) mod serving;

use std::collections::{BTreeMap, BTreeSet};

use onefold_cluster::format::{Chunk, ObjectId, Reference, Stamp, entry, entry::Entry, key};
use onefold_core::object::{Change, ObjectName, Pool, PoolKind, Write};
use onefold_testbed::{Objects, objects::Object};

use crate::checker::{Checker, Failure};

/// Entries and pending drops of a metadata object.
pub(crate) struct Map {
    pub(crate) entries: BTreeMap<u32, Entry>,
    pub(crate) pending: Vec<(Chunk, Reference)>,
    pub(crate) listed: Option<Stamp>,
}

pub(crate) fn parse(id: ObjectId, object: &Object) -> Result<Map, Failure> {
    let damaged = |error: onefold_core::Error| Failure::new(Checker::Format, error.to_string());
    let mut map = Map { entries: BTreeMap::new(), pending: Vec::new(), listed: None };
    for (key, value) in &object.omap {
        if let Some(offset) = key::offset(key) {
            map.entries.insert(offset, Entry::decode(id, offset, value).map_err(damaged)?);
        } else if let Some((offset, stamp)) = key::parse_pending(key) {
            let chunk = entry::decode_pending(id, offset, value).map_err(damaged)?;
            map.pending.push((chunk, Reference { object: id, offset, stamp }));
        } else if key == key::LISTED {
            map.listed =
                value.as_slice().try_into().ok().map(|bytes| Stamp(u64::from_le_bytes(bytes)));
        }
    }
    Ok(map)
}

fn references(objects: &Objects, chunk: &Chunk) -> ObjectName {
    match objects.kind(Pool::Chunks) {
        PoolKind::Replicated => ObjectName::chunk(chunk.name()),
        PoolKind::Erasure => ObjectName::metadata(chunk.name()),
    }
}

/// True when a chunk has its data and the reference. A reference without a stamp counts, so that it
/// takes a lost chunk to find that one.
fn is_kept(objects: &Objects, chunk: &Chunk, reference: &Reference) -> bool {
    let has = objects.get(&references(objects, chunk)).is_some_and(|object| {
        let without = Reference { stamp: Stamp(0), ..*reference };
        object.omap.contains_key(&key::reference(reference))
            || object.omap.contains_key(&key::reference(&without))
    });
    has && objects.get(&ObjectName::chunk(chunk.name())).is_some()
}

/// False for an object that was deleted, or is about to be, and that a late copy of the operation
/// that made it brought back: nobody reads it, and who deletes it, or a scrub, removes it.
fn belongs(objects: &Objects, id: ObjectId) -> bool {
    let shards = objects.all().filter(|(name, _)| name.name.starts_with("n."));
    let of = |value: &Vec<u8>| value.get(1..9) == Some(&id.volume.to_le_bytes()[..]);
    // A record without the identity of who fills it is of something that is being deleted.
    let stays = |key: &[u8], value: &[u8]| {
        key.strip_prefix(b"n").is_some_and(|name| naming::has(objects, name, value))
            || key.first() == Some(&b'x') && value.len() > 25
    };
    shards
        .into_iter()
        .any(|(_, object)| object.omap.iter().any(|(key, value)| stays(key, value) && of(value)))
}

/// Every entry of an object names a chunk that is there and has the reference.
fn maps_hold(objects: &Objects, id: ObjectId, object: &Object) -> Option<Failure> {
    let map = match parse(id, object) {
        Ok(map) => map,
        Err(finding) => return Some(finding),
    };
    for (offset, entry) in &map.entries {
        if let Some((chunk, reference)) = entry.reference(id, *offset)
            && !is_kept(objects, &chunk, &reference)
            && belongs(objects, id)
        {
            let message = format!(
                "object {id}, offset {offset} names {:?} without a reference (stamp {:x})",
                chunk.id, reference.stamp.0
            );
            return Some(Failure::new(Checker::NoChunkLost, message));
        }
    }
    let mut end = 0;
    for (offset, entry) in &map.entries {
        if *offset < end {
            return Some(Failure::new(
                Checker::Overlap,
                format!("object {id}, offset {offset} lies in the chunk before"),
            ));
        }
        end = offset + entry.length;
    }
    (object.omap.len() > 520).then(|| {
        Failure::new(Checker::Bounds, format!("object {id} has {} keys", object.omap.len()))
    })
}

/// Every reference that a map had is still named by it, or pending; and what was pending is until
/// it was dropped.
fn drops_are_known(
    objects: &Objects,
    id: ObjectId,
    before: &Object,
    object: &Object,
    dropped: &Dropped,
) -> Option<Failure> {
    let (Ok(old), Ok(new)) = (parse(id, before), parse(id, object)) else { return None };
    let has = |chunk: &Chunk, reference: &Reference| {
        let named = new
            .entries
            .get(&reference.offset)
            .and_then(|entry| entry.reference(id, reference.offset));
        named == Some((*chunk, *reference)) || new.pending.contains(&(*chunk, *reference))
    };
    let named = old.entries.iter().filter_map(|(offset, entry)| entry.reference(id, *offset));
    let forgotten =
        named.into_iter().find(|(chunk, reference)| !has(chunk, reference)).or_else(|| {
            let undone = |(chunk, reference): &&(Chunk, Reference)| {
                let (holder, key) = (references(objects, chunk), key::reference(reference));
                let kept =
                    objects.get(&holder).is_some_and(|object| object.omap.contains_key(&key));
                !has(chunk, reference) && kept && !dropped.contains(&(holder, key))
            };
            old.pending.iter().find(undone).copied()
        });
    forgotten.map(|(chunk, reference)| {
        Failure::new(
            Checker::DropForgotten,
            format!(
                "object {id}, offset {}: nobody knows that {:?} is to be dropped",
                reference.offset, chunk.id
            ),
        )
    })
}

/// A clean chunk that stands in its object, too, is on the list of kept chunks.
fn is_noted(objects: &Objects, id: ObjectId, map: &Map) -> Option<Failure> {
    let kept =
        |(_, entry): &(&u32, &Entry)| !entry.dirty && entry.mask != 0 && entry.base.is_some();
    let header = objects.get(&ObjectName::metadata(format!("v.{:010x}", id.volume)))?;
    // Chunks of an object are numbered by blocks, of 4 MiB whatever its size.
    let place = |offset: u32| id.index * 1024 + u64::from(offset / 4096);
    let unknown = map
        .entries
        .iter()
        .filter(kept)
        .find(|(offset, _)| !header.omap.contains_key(&key::numbered(b'C', place(**offset))))?;
    Some(Failure::new(
        Checker::CacheListed,
        format!("object {id}, offset {} is kept, and on no list", unknown.0),
    ))
}

/// Long trims that are under way in a volume, when this is its header.
pub(crate) fn discards(objects: &Objects, name: &ObjectName) -> Option<usize> {
    let header = objects.get(name).filter(|_| name.name.starts_with("v."))?;
    Some(header.omap.keys().filter(|key| key::parse_numbered(b'D', key).is_some()).count())
}

/// References that were dropped at some time, by their chunk's object.
pub(crate) type Dropped = BTreeSet<(ObjectName, Vec<u8>)>;

/// Checks what an operation that was applied may have broken.
pub(crate) fn after(
    objects: &Objects,
    name: &ObjectName,
    before: Option<&Object>,
    op: &Write,
    dropped: &Dropped,
) -> Option<Failure> {
    if let Some(id) = ObjectId::parse(&name.name) {
        if op.changes.contains(&Change::Remove) {
            let map = parse(id, before?).ok()?;
            let named =
                map.entries.values().any(|entry| entry.base.is_some()) || !map.pending.is_empty();
            return named.then(|| {
                Failure::new(
                    Checker::NoReferenceLeaked,
                    format!("object {id} went while it names chunks"),
                )
            });
        }
        let object = objects.get(name)?;
        let forgotten =
            before.and_then(|before| drops_are_known(objects, id, before, object, dropped));
        let noted = || parse(id, object).ok().and_then(|map| is_noted(objects, id, &map));
        return maps_hold(objects, id, object).or(forgotten).or_else(noted);
    }
    let takes_away =
        op.changes.iter().any(|change| matches!(change, Change::Remove | Change::DropOmap(_)));
    if takes_away && Chunk::parse(&name.name).is_some() {
        return objects
            .all()
            .find_map(|(name, object)| maps_hold(objects, ObjectId::parse(&name.name)?, object));
    }
    None
}

/// An object that was written and acknowledged is on the dirty list, while it has something to do.
pub(crate) fn is_listed(objects: &Objects, id: ObjectId) -> Option<Failure> {
    let object = objects.get(&id.name())?;
    let map = parse(id, object).ok()?;
    if map.pending.is_empty() && map.entries.values().all(|entry| !entry.dirty) {
        return None;
    }
    let keys: BTreeSet<(ObjectId, Stamp)> = objects
        .all()
        .filter(|(name, _)| name.name.starts_with("d."))
        .flat_map(|(_, object)| object.omap.keys().filter_map(|key| key::parse_listed(key)))
        .collect();
    let listed = map
        .listed
        .is_some_and(|stamp| keys.contains(&(id, stamp)) || keys.contains(&(id, Stamp(0))));
    (!listed)
        .then(|| Failure::new(Checker::Listed, format!("object {id} is dirty, and on no list")))
}

/// An object that was put and acknowledged is on the dirty list with all its pieces.
pub(crate) fn put_is_listed(objects: &Objects, name: &str) -> Option<Failure> {
    let key = [b"n", name.as_bytes()].concat();
    let value = objects
        .all()
        .filter(|(name, _)| name.name.starts_with("n."))
        .find_map(|(_, object)| object.omap.get(&key))?;
    let volume = u64::from_le_bytes(value.get(1..9)?.try_into().ok()?);
    let pieces = objects
        .all()
        .filter_map(|(name, _)| ObjectId::parse(&name.name))
        .filter(|id| id.volume == volume);
    pieces.into_iter().find_map(|id| is_listed(objects, id))
}

/// Once workers were idle for a while, and before any scrub: no reference is false, but for those
/// that late copies of operations made, those that entries wait for in an object that a late copy made again
/// (its key here is empty), and those that were never noted, since their note was lost on its way.
pub(crate) fn left_behind(
    objects: &Objects,
    made_late: &Dropped,
    unnoted: &BTreeSet<Reference>,
) -> Option<Failure> {
    let named = |chunk: &Chunk, reference: &Reference| {
        let name = reference.object.name();
        let object = objects.get(&name)?;
        let entry =
            parse(reference.object, object).ok()?.entries.get(&reference.offset).cloned()?;
        let comes = entry.dirty
            && entry.stamp == reference.stamp
            && made_late.contains(&(name, Vec::new()));
        (comes || entry.reference(reference.object, reference.offset) == Some((*chunk, *reference)))
            .then_some(())
    };
    for (name, object) in objects.all() {
        let Some(chunk) =
            Chunk::parse(&name.name).filter(|chunk| *name == references(objects, chunk))
        else {
            continue;
        };
        for key in
            object.omap.keys().filter(|key| !made_late.contains(&(name.clone(), (*key).clone())))
        {
            let is_false = |reference: &Reference| {
                !unnoted.contains(reference) && named(&chunk, reference).is_none()
            };
            if let Some(reference) = key::parse_reference(key).filter(is_false) {
                let message = format!(
                    "{:?} has a reference of {}, offset {}, stamp {:x}",
                    chunk.id, reference.object, reference.offset, reference.stamp.0
                );
                return Some(Failure::new(Checker::LeftBehind, message));
            }
        }
    }
    None
}

/// Once all is quiet: everything is clean, and references are exactly the truth.
pub(crate) fn quiet(objects: &Objects) -> Result<(), Failure> {
    if let Some(finding) = naming::half_done(objects) {
        return Err(finding);
    }
    let mut truth: BTreeSet<(Chunk, Reference)> = BTreeSet::new();
    for (name, object) in objects.all() {
        let Some(id) = ObjectId::parse(&name.name) else { continue };
        let map = parse(id, object)?;
        for (offset, entry) in &map.entries {
            if entry.dirty {
                return Err(Failure::new(
                    Checker::Progress,
                    format!("object {id}, offset {offset} is still dirty"),
                ));
            }
            truth.extend(entry.reference(id, *offset));
            let block = |n: usize| object.data.iter().skip(*offset as usize + n * 4096).take(4096);
            let left = (0..entry.length.div_ceil(4096) as usize)
                .find(|n| entry.mask >> n & 1 == 0 && block(*n).any(|byte| *byte != 0));
            if let Some(n) = left {
                return Err(Failure::new(
                    Checker::Space,
                    format!(
                        "object {id}, offset {offset} has bytes in block {n}, which its mask does not name"
                    ),
                ));
            }
        }
        if !map.pending.is_empty() || map.listed.is_some() {
            return Err(Failure::new(
                Checker::Progress,
                format!("object {id} has pending drops, or is listed"),
            ));
        }
    }
    let mut found = BTreeSet::new();
    for (name, object) in objects.all() {
        let Some(chunk) = Chunk::parse(&name.name) else { continue };
        if *name == references(objects, &chunk) {
            let keys = object.omap.keys().filter_map(|key| key::parse_reference(key));
            let before = found.len();
            found.extend(keys.map(|reference| (chunk, reference)));
            if found.len() == before {
                return Err(Failure::new(
                    Checker::Collected,
                    format!("{:?} has no reference, and is there", chunk.id),
                ));
            }
        } else if objects.get(&references(objects, &chunk)).is_none() {
            return Err(Failure::new(Checker::Collected, format!("{:?} has data alone", chunk.id)));
        }
    }
    if let Some((chunk, reference)) = found.difference(&truth).next() {
        return Err(Failure::new(
            Checker::ReferencesConverge,
            format!("{:?} has a false reference of {}", chunk.id, reference.object),
        ));
    }
    match truth.difference(&found).next() {
        Some((chunk, reference)) => Err(Failure::new(
            Checker::NoChunkLost,
            format!("{:?} lacks the reference of {}", chunk.id, reference.object),
        )),
        None => Ok(()),
    }
}
