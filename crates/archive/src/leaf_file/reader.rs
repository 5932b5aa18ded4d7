//! Leaves read, each from the copy that is whole.

use std::sync::Arc;

use onefold_core::{File, Files, Kind, Result};

use super::{
    body::parse,
    place::{LEAVES, LeafPlace, PAGE_BYTES},
};
use crate::{
    format::{Identity, bytes::corrupt, log_reader::PIECE_BYTES, sealing::What},
    memory::Drawn,
    rules::Rule,
    settings::Settings,
};

/// Reads the leaves that a snapshot names.
pub(crate) struct LeafReader<'a> {
    files: &'a dyn Files,
    identity: &'a Identity,
    settings: &'a Settings,
    file: Option<Arc<dyn File>>,
    /// Only the simulator believes bytes with another checksum.
    believes: bool,
}

/// The bytes of a leaf that was read.
pub(crate) struct ReadLeaf {
    bytes: Vec<u8>,
    /// The first copy is whole.
    pub(crate) is_first: bool,
}

impl ReadLeaf {
    /// How many entries it says it has, and their bytes, with zeroes behind them.
    pub(crate) fn body(&self, place: LeafPlace, table: u8) -> Result<(usize, &[u8])> {
        parse(&self.bytes)
            .filter(|(found, of, ..)| *found == (place.page, place.pages) && *of == table)
            .map(|(_, _, count, entries)| (count, entries))
            .ok_or_else(|| corrupt("a leaf of the tables is another one"))
    }
}

impl<'a> LeafReader<'a> {
    pub(crate) fn new(
        files: &'a dyn Files,
        identity: &'a Identity,
        settings: &'a Settings,
    ) -> LeafReader<'a> {
        let believes = !settings.keeps(Rule::LeafChecksumsCompared);
        LeafReader { files, identity, settings, file: None, believes }
    }

    /// For leaves that are read when they are looked at.
    pub(crate) fn on_demand(
        files: &'a dyn Files,
        identity: &'a Identity,
        settings: &'a Settings,
    ) -> LeafReader<'a> {
        let reader = LeafReader::new(files, identity, settings);
        let believes = reader.believes || !settings.keeps(Rule::ReloadedLeavesCompared);
        LeafReader { believes, ..reader }
    }

    /// True when a leaf whose first copy is damaged is to be written again.
    pub(crate) fn rewrites(&self) -> bool {
        self.settings.keeps(Rule::DamagedLeavesRewritten)
    }

    /// Reads a leaf: the first copy, or the second one where that is damaged.
    pub(crate) fn read(&mut self, place: LeafPlace, drawn: &Drawn) -> Result<ReadLeaf> {
        for copy in 0..2 {
            if let Some(bytes) = self.copy(place, copy, drawn)? {
                return Ok(ReadLeaf { bytes, is_first: copy == 0 });
            }
        }
        Err(corrupt(format!(
            "both copies of the leaf at page {} of `{LEAVES}` are lost",
            place.page
        )))
    }

    /// The bytes of a copy; `None` when it is damaged.
    pub(crate) fn copy(
        &mut self,
        place: LeafPlace,
        copy: u32,
        drawn: &Drawn,
    ) -> Result<Option<Vec<u8>>> {
        let file = match &self.file {
            Some(file) => file,
            None => match self.files.open(LEAVES) {
                Err(error) if error.kind() == Kind::NotFound => return Ok(None),
                opened => self.file.insert(opened?),
            },
        };
        let wanted = place.pages as usize * PAGE_BYTES;
        let mut bytes = Vec::new();
        while bytes.len() < wanted {
            let (from, n) = (bytes.len(), (wanted - bytes.len()).min(PIECE_BYTES));
            if copy == 0 {
                drawn.more(n as u64)?;
            }
            bytes.resize(from + n, 0);
            match file.read_at(place.at(copy) + from as u64, &mut bytes[from..]) {
                Ok(read) if read == n => {}
                Err(error) if error.kind() != Kind::Io => return Err(error),
                _ => return Ok(None),
            }
        }
        let page = (0, u64::from(place.page));
        let is_whole = self.identity.open(What::Leaf, page, &[], &mut bytes, place.checksum);
        Ok((is_whole || self.believes).then_some(bytes))
    }
}

/// Makes a leaf's bytes as they are written at its place; gives their checksum.
pub(super) fn seal(identity: &Identity, place: LeafPlace, bytes: &mut [u8]) -> Result<u64> {
    identity.seal(What::Leaf, (0, u64::from(place.page)), &[], bytes)
}

/// Writes a copy of a leaf again, which is damaged, with the bytes of the other one; durable on
/// return. A crash leaves the other one.
pub(crate) fn rewrite_copy(
    files: &dyn Files,
    identity: &Identity,
    place: LeafPlace,
    copy: u32,
    mut bytes: Vec<u8>,
) -> Result<()> {
    let file = files.open(LEAVES)?;
    seal(identity, place, &mut bytes)?;
    file.write_at(place.at(copy), &bytes)?;
    file.sync()
}
