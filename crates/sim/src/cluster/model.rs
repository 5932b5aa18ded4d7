//! What every sector of every volume may hold, and what every name may stand for.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::params::Params;

/// Bytes of a sector.
pub(super) const SECTOR: usize = 512;

/// What was found, and by which checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The checker.
    pub checker: &'static str,
    /// What is wrong.
    pub message: String,
}

impl Finding {
    pub(super) fn new(checker: &'static str, message: impl Into<String>) -> Finding {
        Finding { checker, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.message)
    }
}

/// What a sector may hold.
#[derive(Clone, Debug, Default)]
struct Cell {
    /// One of these is there now.
    now: BTreeSet<u32>,
    /// These may still come: writes that failed without it being known what became of them.
    open: BTreeSet<u32>,
}

/// A volume as its clients know it.
pub(super) struct VolumeModel {
    cells: Vec<Cell>,
    /// The actor that owns it.
    pub(super) owner: Option<usize>,
}

/// What is known.
pub(super) struct Model {
    pub(super) volumes: Vec<VolumeModel>,
    /// What names of objects that are put may stand for; 0 for nothing.
    pub(super) puts: BTreeMap<String, BTreeSet<u32>>,
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
        let volume = || VolumeModel { cells: vec![zero.clone(); params.volume_bytes as usize / SECTOR], owner: None };
        Model { volumes: (0..params.volumes).map(|_| volume()).collect(), puts: BTreeMap::new(), tokens: 1 << 20 }
    }

    /// A token that no sector ever had.
    pub(super) fn token(&mut self) -> u32 {
        self.tokens += 1;
        self.tokens
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
    pub(super) fn acknowledge(&mut self, volume: usize, actor: usize, at: usize, tokens: &[u32]) -> bool {
        let volume = &mut self.volumes[volume];
        if volume.owner == Some(actor) {
            volume.cells[at..at + tokens.len()]
                .iter_mut()
                .zip(tokens)
                .for_each(|(cell, token)| *cell = Cell { now: [*token].into(), open: BTreeSet::new() });
        }
        volume.owner == Some(actor)
    }

    /// Compares what was read.
    pub(super) fn check(&mut self, volume: usize, actor: usize, at: usize, bytes: &[u8]) -> Option<Finding> {
        let name = volume;
        let volume = &mut self.volumes[volume];
        if volume.owner != Some(actor) {
            return None;
        }
        for (n, bytes) in bytes.chunks(SECTOR).enumerate() {
            let cell = &mut volume.cells[at + n];
            let found = cell.now.iter().chain(&cell.open).copied().find(|token| sector(*token) == *bytes);
            let Some(found) = found else {
                let token = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                let message = format!("volume {name}, sector {}: token {token}, not one of {:?} or {:?}", at + n, cell.now, cell.open);
                return Some(Finding::new("LastWrite", message));
            };
            cell.now = [found].into();
        }
        None
    }
}
