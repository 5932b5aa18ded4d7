//! The contents that every sector of every volume may hold, and the objects that every name may
//! stand for.

use std::collections::{BTreeMap, BTreeSet};

use super::params::Params;
use crate::checker::{Checker, Failure};

/// Bytes of a sector.
pub(super) const SECTOR: usize = 512;

/// The contents that a sector may hold.
#[derive(Clone, Debug, Default)]
struct Cell {
    /// One of these is there now.
    now: BTreeSet<u32>,
    /// These may still come: writes that failed without it being known what became of them.
    open: BTreeSet<u32>,
}

/// The objects that a name may stand for; 0 for none.
#[derive(Clone, Debug)]
struct Put {
    now: BTreeSet<u32>,
    /// These may still come: who put them has no answer, or died.
    open: BTreeSet<u32>,
    /// Actors that put under it now.
    flying: BTreeSet<usize>,
    /// Of those that are under way, or were since the last quiet moment, some were at the same
    /// time.
    together: bool,
}

impl Put {
    fn gone(&mut self, actor: usize) {
        self.flying.remove(&actor);
        self.together &= !self.flying.is_empty();
    }
}

/// A volume as its clients know it.
pub(super) struct VolumeModel {
    cells: Vec<Cell>,
    /// The actor that owns it.
    pub(super) owner: Option<usize>,
    /// Its number: a higher one is another volume of the same name.
    id: u64,
    /// Somebody cuts it off from this sector on, or began to: what lies there may be zeroes at any
    /// time.
    cut: Option<usize>,
}

/// The model's knowledge.
pub(super) struct Model {
    /// The last one is made as a clone.
    pub(super) volumes: Vec<VolumeModel>,
    /// What the layers hold, by their numbers.
    layers: BTreeMap<u64, Vec<Cell>>,
    /// The layers that volumes were made over.
    born: BTreeMap<u64, u64>,
    /// The layers of snapshots that were sent, by their numbers in streams.
    sent: BTreeMap<[u8; 16], u64>,
    /// Somebody may have promoted the replica since it was received last.
    pub(super) may_be_promoted: bool,
    /// Names of objects that are put.
    puts: BTreeMap<String, Put>,
    tokens: u32,
}

/// The bytes of a sector with this token.
pub(super) fn sector(token: u32) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if token != 0 {
        for (at, part) in bytes.chunks_mut(4).enumerate() {
            part.copy_from_slice(&token.wrapping_add((at as u32) << 24).to_le_bytes());
        }
    }
    bytes
}

/// The bytes of sectors with these tokens.
pub(super) fn content(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| sector(*token)).collect()
}

impl Model {
    pub(super) fn new(params: &Params) -> Model {
        let zero = Cell { now: [0].into(), open: BTreeSet::new() };
        let volume = || VolumeModel {
            cells: vec![zero.clone(); params.volume_bytes as usize / SECTOR],
            owner: None,
            id: 0,
            cut: None,
        };
        Model {
            volumes: (0..=params.volumes).map(|_| volume()).collect(),
            layers: BTreeMap::new(),
            born: BTreeMap::new(),
            sent: BTreeMap::new(),
            may_be_promoted: true,
            puts: BTreeMap::new(),
            tokens: 1 << 20,
        }
    }

    /// A token that no sector ever had.
    pub(super) fn token(&mut self) -> u32 {
        self.tokens += 1;
        self.tokens
    }

    /// An actor attached the volume with this number; false when that is no longer the one of its
    /// name.
    pub(super) fn attach(&mut self, volume: usize, actor: usize, id: u64) -> bool {
        let it = &mut self.volumes[volume];
        if id < it.id {
            return false;
        }
        if id > it.id {
            it.id = id;
            it.cut = None;
            it.cells
                .iter_mut()
                .for_each(|cell| *cell = Cell { now: [0].into(), open: BTreeSet::new() });
        }
        self.own(volume, actor);
        true
    }

    /// A volume was made over a layer, and has no name yet.
    pub(super) fn born(&mut self, id: u64, over: u64) {
        self.born.insert(id, over);
    }

    /// The name of a volume stands for another number from now on.
    pub(super) fn is_now(&mut self, volume: usize, id: u64) {
        let Some(over) = self.born.get(&id).copied() else { return };
        if self.volumes[volume].id == id {
            return;
        }
        let before = self.volumes.iter().find(|volume| volume.id == over);
        if let Some(before) = before {
            let mut cells = before.cells.clone();
            for cell in &mut cells {
                let open = std::mem::take(&mut cell.open);
                cell.now.extend(open);
            }
            self.layers.insert(over, cells);
        }
        let zero = Cell { now: [0].into(), open: BTreeSet::new() };
        let it = &mut self.volumes[volume];
        // A volume that nobody ever attached holds zeroes.
        let cells = self.layers.get(&over).cloned();
        it.cells = cells.unwrap_or_else(|| vec![zero; it.cells.len()]);
        self.layers.entry(over).or_insert_with(|| it.cells.clone());
        it.id = id;
        it.owner = None;
        it.cut = None;
    }

    /// A snapshot is sent.
    pub(super) fn sends(&mut self, guid: [u8; 16], layer: u64) {
        self.sent.insert(guid, layer);
    }

    /// The layer that a snapshot which was received is a copy of.
    pub(super) fn sent_from(&self, guid: [u8; 16]) -> Option<u64> {
        self.sent.get(&guid).copied()
    }

    /// Compares what was read of a snapshot.
    pub(super) fn check_layer(&mut self, id: u64, bytes: &[u8]) -> Option<String> {
        let cells = self.layers.get_mut(&id)?;
        for (n, bytes) in bytes.chunks(SECTOR).enumerate() {
            let cell = &mut cells[n];
            let found = cell.now.iter().copied().find(|token| sector(*token) == *bytes);
            let Some(found) = found else {
                let token = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                return Some(format!("sector {n}: token {token}, not one of {:?}", cell.now));
            };
            cell.now = [found].into();
        }
        None
    }

    /// An actor's session was shut out: what it has not done by now it never does.
    pub(super) fn fenced(&mut self, actor: Option<usize>) {
        for volume in
            self.volumes.iter_mut().filter(|volume| actor.is_some() && volume.owner == actor)
        {
            volume.owner = None;
            for cell in &mut volume.cells {
                let open = std::mem::take(&mut cell.open);
                cell.now.extend(open);
            }
        }
    }

    /// Somebody begins to cut a volume off.
    pub(super) fn cut(&mut self, volume: usize, from: usize) {
        let cut = &mut self.volumes[volume].cut;
        *cut = Some(cut.map_or(from, |before| before.min(from)));
    }

    /// The cut was done: the sectors behind it are zeroes, and writes that began before it do
    /// nothing more.
    pub(super) fn was_cut(&mut self, volume: usize, from: usize) {
        let volume = &mut self.volumes[volume];
        if let Some(begun) = volume.cut.take() {
            volume.cells[begun..].iter_mut().for_each(|cell| cell.now.extend([0]));
        }
        volume.cells[from..]
            .iter_mut()
            .for_each(|cell| *cell = Cell { now: [0].into(), open: BTreeSet::new() });
    }

    fn name(&mut self, name: &str) -> &mut Put {
        self.puts.entry(name.into()).or_insert_with(|| Put {
            now: [0].into(),
            open: BTreeSet::new(),
            flying: BTreeSet::new(),
            together: false,
        })
    }

    /// An object with this token is put under a name, or what the name stands for is deleted (0).
    pub(super) fn begin_put(&mut self, name: &str, actor: usize, token: u32) {
        let put = self.name(name);
        put.open.insert(token);
        put.flying.insert(actor);
        put.together |= put.flying.len() > 1;
    }

    /// An actor is no more: what it began may still come.
    pub(super) fn died(&mut self, actor: usize) {
        self.puts.values_mut().for_each(|put| put.gone(actor));
    }

    /// The put was done, or it is not known whether it was.
    pub(super) fn end_put(&mut self, name: &str, actor: usize, token: u32, done: bool) {
        let put = self.name(name);
        if done {
            put.open.remove(&token);
            // Of those at the same time any may have been the last.
            if !put.together {
                put.now.clear();
            }
            put.now.insert(token);
        }
        put.gone(actor);
    }

    /// The objects that a name may stand for: those put last, and those that may still come.
    pub(super) fn may_be_put(&mut self, name: &str) -> BTreeSet<u32> {
        let put = self.name(name);
        put.now.union(&put.open).copied().collect()
    }

    /// A new owner begins: nothing comes any more from the one before.
    pub(super) fn own(&mut self, volume: usize, actor: usize) {
        let volume = &mut self.volumes[volume];
        volume.owner = Some(actor);
        for cell in &mut volume.cells {
            let open = std::mem::take(&mut cell.open);
            cell.now.extend(open);
        }
    }

    /// A write begins: its sectors may hold the new tokens from now on.
    pub(super) fn begin(&mut self, volume: usize, actor: usize, at: usize, tokens: &[u32]) {
        let volume = &mut self.volumes[volume];
        if volume.owner == Some(actor) {
            volume.cells[at..at + tokens.len()].iter_mut().zip(tokens).for_each(|(cell, token)| {
                cell.now.insert(*token);
                cell.open.insert(*token);
            });
        }
    }

    /// A write was acknowledged; false when somebody else owns the volume by now.
    pub(super) fn acknowledge(
        &mut self,
        volume: usize,
        actor: usize,
        at: usize,
        tokens: &[u32],
    ) -> bool {
        let volume = &mut self.volumes[volume];
        if volume.owner == Some(actor) {
            volume.cells[at..at + tokens.len()].iter_mut().zip(tokens).for_each(|(cell, token)| {
                *cell = Cell { now: [*token].into(), open: BTreeSet::new() }
            });
        }
        volume.owner == Some(actor)
    }

    /// Compares what was read.
    pub(super) fn check(
        &mut self,
        volume: usize,
        actor: usize,
        at: usize,
        bytes: &[u8],
    ) -> Option<Failure> {
        let name = volume;
        let volume = &mut self.volumes[volume];
        if volume.owner != Some(actor) {
            return None;
        }
        for (n, bytes) in bytes.chunks(SECTOR).enumerate() {
            let cell = &mut volume.cells[at + n];
            let found =
                cell.now.iter().chain(&cell.open).copied().find(|token| sector(*token) == *bytes);
            let zero = volume.cut.is_some_and(|from| at + n >= from) && sector(0) == *bytes;
            if zero && found.is_none_or(|found| found == 0) {
                continue;
            }
            let Some(found) = found else {
                let token = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                let message = format!(
                    "volume {name}, sector {}: token {token}, not one of {:?} or {:?}",
                    at + n,
                    cell.now,
                    cell.open
                );
                return Some(Failure::new(Checker::LastWrite, message));
            };
            cell.now = [found].into();
        }
        None
    }
}
