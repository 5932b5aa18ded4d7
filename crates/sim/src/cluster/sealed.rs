//! Stores that are sealed at rest: the keys, the store as its host has it, and what the host must not
//! see.
//!
//! The world keeps two stores then: the one with sealed objects, on which operations are applied, and
//! beside it the same objects opened, which the checkers read. After each operation the object that it
//! changed is opened anew: what can't be opened is a failure at once.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use onefold_cluster::{
    Format, KeySource, Sealing, Volume,
    format::{Chunk, ObjectId, entry::Entry},
};
use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, ObjectName, ObjectStore, Refusal, Version, Write},
};
use onefold_seal::{Argon, KeyArea, Keys, Opener, Random, Secret, SlotKind, SlotSecret, observer};
use onefold_testbed::{Objects, Rng, objects::Object};
use parking_lot::Mutex;

use super::{
    model::content,
    params::Params,
    world::{Inner, World},
};
use crate::checker::{Checker, Failure};

/// The secret that opens the store.
const OWNER: [u8; 32] = [1; 32];

/// Chance from a seed.
struct Seeded(Mutex<Rng>);

impl Random for Seeded {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        self.0.lock().fill(into);
        Ok(())
    }
}

fn chance(params: &Params) -> Arc<dyn Random> {
    Arc::new(Seeded(Mutex::new(Rng::new(params.seed ^ 0x7365_616c_6564_2e63))))
}

struct Owner(Arc<dyn Random>);

impl Opener for Owner {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        let found = area.root(&SlotSecret::Key(Secret::take(&mut { OWNER })), 0)?;
        found.map(|(_, root)| root).ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))
    }

    fn random(&self) -> Arc<dyn Random> {
        self.0.clone()
    }
}

/// Who is asked for the key.
pub(super) fn source(params: &Params) -> KeySource {
    match params.sealed {
        true => KeySource::new(Arc::new(Owner(chance(params)))),
        false => KeySource::default(),
    }
}

/// The keys of the store of a run: the same each time.
fn keys(params: &Params, random: &dyn Random) -> Result<Keys> {
    let mut keys = Keys::create(params.format().id, random)?;
    let secret = SlotSecret::Key(Secret::take(&mut { OWNER }));
    keys.add_slot((SlotKind::File, ""), &secret, Argon::LEAST, (0, 0), random)?;
    Ok(keys)
}

/// Makes the store.
pub(super) fn create(store: &dyn ObjectStore, params: &Params) -> Result<()> {
    let format: Format = params.format();
    if !params.sealed {
        return onefold_cluster::create(store, &format);
    }
    let random = chance(params);
    onefold_cluster::create_sealed(store, &format, &mut keys(params, &*random)?, &*random)
}

/// The store as its host has it.
pub(super) struct Hidden {
    pub(super) objects: Objects,
    sealing: Sealing,
    /// What all threads of the run seal is noted together.
    record: observer::Record,
}

impl Hidden {
    /// That of a run, if it is sealed.
    pub(super) fn of(params: &Params) -> Option<Hidden> {
        if !params.sealed {
            return None;
        }
        observer::begin();
        let keys = keys(params, &*chance(params));
        let sealing = keys.and_then(|keys| Sealing::of(&keys, &params.settings()));
        sealing.ok().map(|sealing| Hidden {
            objects: Objects::new(params.chunks),
            sealing,
            record: observer::record(),
        })
    }

    fn name_out(&self, name: &ObjectName) -> ObjectName {
        ObjectName { pool: name.pool, name: self.sealing.open_name(&name.name) }
    }

    fn name_in(&self, name: &ObjectName) -> ObjectName {
        let sealed = self.sealing.seal_name(&name.name).unwrap_or_default();
        ObjectName { pool: name.pool, name: sealed }
    }

    /// The operation as the engine meant it; keys and values that can't be opened stay.
    fn open_write(&self, op: &Write) -> Write {
        let object = self.name_out(&op.object);
        let name = object.name.as_str();
        let pair = |key: &Vec<u8>, value: &Vec<u8>| {
            let pair = (key.clone(), value.clone());
            let opened = self.sealing.open_pairs(name, std::slice::from_ref(&pair));
            opened.ok().and_then(|mut opened| opened.pop()).unwrap_or(pair)
        };
        let key = |key: &Vec<u8>| pair(key, &Vec::new()).0;
        let guard = |guard: &Guard| match guard {
            Guard::Omap(key, value) => {
                let (key, value) = pair(key, value);
                Guard::Omap(key, value)
            }
            other => other.clone(),
        };
        let change = |change: &Change| match change {
            Change::SetOmap(pairs) => {
                Change::SetOmap(pairs.iter().map(|(key, value)| pair(key, value)).collect())
            }
            Change::DropOmap(keys) => Change::DropOmap(keys.iter().map(key).collect()),
            other => other.clone(),
        };
        Write {
            guards: op.guards.iter().map(guard).collect(),
            changes: op.changes.iter().map(change).collect(),
            object,
        }
    }

    /// An object, opened.
    fn open_object(&self, name: &ObjectName, object: &Object) -> Result<Object> {
        let plain = self.name_out(name).name;
        // The key area is none of the checkers' business.
        if plain.starts_with("k.") {
            return Ok(object.clone());
        }
        let pairs: Vec<(Vec<u8>, Vec<u8>)> =
            object.omap.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let pairs = self.sealing.open_pairs(&plain, &pairs)?;
        let mut opened = Object { omap: pairs.iter().cloned().collect(), ..object.clone() };
        if let Some(id) = ObjectId::parse(&plain) {
            let entries = Sealing::entries(&plain, &pairs)?;
            let end = entries.iter().map(|(at, entry)| (at + entry.length) as usize).max();
            let there = opened.data.len().max(end.unwrap_or(0));
            opened.data.resize(there.next_multiple_of(4096), 0);
            self.sealing.open_data(id, &entries, 0, &mut opened.data)?;
        }
        if let (Some(chunk), Some(head)) = (Chunk::parse(&plain), object.xattrs.get("h")) {
            let (head, body) = self.sealing.open_chunk(&chunk, head, &object.data)?;
            opened.data = body;
            opened.xattrs.insert("h", head);
        }
        Ok(opened)
    }

    /// What the host sees of an object that it must not see.
    fn seen(&self, sealed: &Object, opened: &Object, name: &str) -> Option<String> {
        if name.starts_with("k.") {
            return None;
        }
        if Chunk::parse(name).is_some() && !sealed.data.len().is_multiple_of(4096) {
            return Some(format!("{name} has {} bytes", sealed.data.len()));
        }
        // What no entry has was not opened: it is left of what the object had before.
        let pairs: Vec<(Vec<u8>, Vec<u8>)> =
            opened.omap.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let entries = Sealing::entries(name, &pairs).unwrap_or_default();
        let stands = |at: u32| {
            entries.range(..=at).next_back().is_some_and(|(offset, entry)| {
                at < offset + entry.length && entry.mask >> ((at - offset) / 4096) & 1 == 1
            })
        };
        let is_whole = Chunk::parse(name).is_some();
        let begins: HashSet<&[u8]> = opened
            .data
            .chunks(512)
            .zip((0u32..).step_by(512))
            .filter(|(_, at)| is_whole || stands(*at))
            .filter_map(|(sector, _)| sector.get(..16))
            .filter(|begin| begin.iter().any(|byte| *byte != 0))
            .collect();
        if sealed.data.chunks(16).any(|part| begins.contains(part)) {
            return Some(format!("data of {name} is to be read"));
        }
        let is_readable = |key: &[u8]| name == "catalogue" && key == b"format";
        for (key, value) in opened.omap.iter().filter(|(key, _)| !is_readable(key)) {
            let is_name = name.starts_with("n.") && matches!(key.first(), Some(b'n' | b'y'));
            if is_name && sealed.omap.contains_key(key) {
                return Some(format!("a name in {name} is to be read"));
            }
            let same = |other: &Vec<u8>| !value.is_empty() && other == value;
            if sealed.omap.get(key).is_some_and(same) {
                return Some(format!("a value of {name} is to be read"));
            }
        }
        None
    }
}

impl Inner {
    /// The store on which operations are applied.
    pub(super) fn store(&mut self) -> &mut Objects {
        self.hidden.as_mut().map_or(&mut self.objects, |hidden| &mut hidden.objects)
    }

    /// An operation as the engine meant it.
    pub(super) fn meant(&self, op: &Write) -> Write {
        self.hidden.as_ref().map_or_else(|| op.clone(), |hidden| hidden.open_write(op))
    }

    /// The name under which the store has an object.
    pub(super) fn stored_name(&self, name: &ObjectName) -> ObjectName {
        self.hidden.as_ref().map_or_else(|| name.clone(), |hidden| hidden.name_in(name))
    }

    /// An object as the store has it.
    pub(super) fn stored(&mut self, name: &ObjectName) -> Option<Object> {
        let name = self.stored_name(name);
        self.store().get(&name).cloned()
    }

    /// Puts an object in the place of another one, as a medium does that rots, or a host.
    pub(super) fn put_stored(&mut self, name: &ObjectName, object: Object) {
        let name = self.stored_name(name);
        self.store().put_back(&name, object);
    }

    /// Where a metadata object has the second block of a chunk: trimmed alone, it has an entry.
    fn second_block(&self, name: &ObjectName) -> Option<usize> {
        let object = self.objects.get(name)?;
        let pairs: Vec<(Vec<u8>, Vec<u8>)> =
            object.omap.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let entries = Sealing::entries(&name.name, &pairs).ok()?;
        let of_two = |entry: &Entry| entry.base.is_some() && entry.length >= 2 * 4096;
        let (offset, _) = entries.iter().find(|(_, entry)| of_two(entry))?;
        Some(*offset as usize + 4096)
    }

    /// Loses an object.
    pub(super) fn lose_stored(&mut self, name: &ObjectName) {
        let stored = self.stored_name(name);
        self.store().lose(&stored);
        self.objects.lose(name);
    }

    /// Applies a change to the store.
    pub(super) fn change(&mut self, op: &Write, gap: u64) -> Result<Version, Refusal> {
        let now = self.now;
        let result = self.store().write(op, now, gap);
        if result.is_ok() {
            self.reopen(&op.object);
        }
        result
    }

    /// Opens an object of the store anew, after it was changed.
    pub(super) fn reopen(&mut self, name: &ObjectName) {
        let Some(hidden) = &self.hidden else { return };
        let plain = hidden.name_out(name);
        let Some(object) = hidden.objects.get(name) else {
            self.objects.lose(&plain);
            return;
        };
        let failure = match hidden.open_object(name, object) {
            Ok(opened) => {
                let seen = hidden.seen(object, &opened, &plain.name);
                self.objects.put_back(&plain, opened);
                seen
            }
            Err(error) => Some(format!("after an operation {name:?} can't be opened: {error}")),
        };
        if let Some(what) = failure {
            self.fail(Failure::new(Checker::Secrecy, what));
        }
    }

    /// The record of what is sealed, for a thread of the run.
    pub(super) fn record(&self) -> Option<observer::Record> {
        self.hidden.as_ref().map(|hidden| hidden.record.clone())
    }
}

/// What must be true of a sealed store in the end: no two things in it are equal, and no counter of a
/// key sealed two contents.
pub(super) fn nothing_shows(inner: &mut Inner) {
    let Some(hidden) = &inner.hidden else { return };
    let mut places: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    let mut twice = None;
    for (name, object) in hidden.objects.all() {
        let values = object.omap.values().filter(|value| value.len() >= 16).cloned();
        let stands = ObjectId::parse(&name.name).is_some();
        let blocks =
            object.data.chunks(4096).filter(|block| stands && block.iter().any(|b| *b != 0));
        for bytes in values.chain(blocks.map(<[u8]>::to_vec)) {
            if let Some(other) = places.insert(bytes, name.name.clone()) {
                twice = Some(format!("{other} and {} show equal bytes", name.name));
            }
        }
    }
    let sealed = observer::seen();
    match sealed {
        Ok(_) => inner.reach.hit("a sealed store is looked at by its host"),
        Err(why) => twice = Some(why),
    }
    if let Some(what) = twice {
        inner.fail(Failure::new(Checker::Secrecy, what));
    }
}

/// The host turns a bit of a block that stands in a metadata object, and exchanges two values: reads of
/// it fail until all is as it was.
pub(super) fn tampered(world: &Arc<World>, volumes: &[Volume], actor: usize) -> Result<()> {
    let Some((n, volume)) = volumes.iter().enumerate().next_back() else { return Ok(()) };
    if !world.inner().params.sealed {
        return Ok(());
    }
    let token = world.inner().model.token();
    let tokens = vec![token; 8];
    world.inner().model.begin(n, actor, 0, &tokens);
    volume.write_at(0, &content(&tokens))?;
    world.inner().model.acknowledge(n, actor, 0, &tokens);
    let name = ObjectId { volume: volume.id(), index: 0 }.name();
    let Some(before) = world.inner().stored(&name) else { return Ok(()) };
    let reads = |changed: Object, what: &str| {
        world.inner().put_stored(&name, changed);
        let mut sector = [0xaa; 512];
        let read = volume.read_at(0, &mut sector);
        world.inner().put_stored(&name, before.clone());
        if read.is_ok() && sector != content(&tokens)[..512] {
            let what = format!("{what}, and a read gives other bytes");
            world.inner().fail(Failure::new(Checker::Secrecy, what));
        }
    };
    let mut turned = before.clone();
    if let Some(byte) = turned.data.get_mut(100) {
        *byte ^= 1;
        reads(turned, "the host turned a bit of a block");
    }
    let mut values = before.clone();
    let keys: Vec<Vec<u8>> = values.omap.keys().cloned().collect();
    if let [first, .., last] = &keys[..] {
        let (one, other) = (values.omap[first].clone(), values.omap[last].clone());
        values.omap.insert(first.clone(), other);
        values.omap.insert(last.clone(), one);
        reads(values, "the host exchanged two values");
    }
    world.inner().reach.hit("the host of a sealed store changes it");
    let Some(at) = world.inner().second_block(&name) else { return Ok(()) };
    let tokens = vec![0; 8];
    world.inner().model.begin(n, actor, at / 512, &tokens);
    volume.discard(at as u64, 4096)?;
    world.inner().model.acknowledge(n, actor, at / 512, &tokens);
    let Some(before) = world.inner().stored(&name) else { return Ok(()) };
    let mut filled = before.clone();
    filled.data.resize(filled.data.len().max(at + 4096), 0);
    filled.data[at..at + 4096].fill(0xee);
    world.inner().put_stored(&name, filled);
    let mut block = [0xaa; 4096];
    let read = volume.read_at(at as u64, &mut block);
    world.inner().put_stored(&name, before);
    if read.is_ok() && block.iter().any(|byte| *byte != 0) {
        let what = "the host filled a trimmed block, and a read gives what it put there";
        world.inner().fail(Failure::new(Checker::Secrecy, what.to_owned()));
    }
    world.inner().reach.hit("the host of a sealed store fills a trimmed block");
    Ok(())
}
