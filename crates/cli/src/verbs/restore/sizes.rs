//! How much is wanted, and whether it fits.

use std::{collections::HashMap, path::Path};

use onefold_archive::{TreeEntry, TreeReader, TreeWhat};
use onefold_backend::room::room;
use onefold_core::{Error, Kind, Result};

use super::walk::{LINKED_MAX, Visitor};
use crate::verbs::get::space::fits;

/// How much is wanted.
pub(super) struct Sizes<'a> {
    directory: &'a Path,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    /// The most entries that there is room for.
    most: Option<u64>,
    /// Zeroes and holes of files do not count.
    exact: bool,
    /// In place: files are there already, and the names of those that have several are gathered.
    in_place: bool,
    pub(super) names: HashMap<u64, Vec<Vec<u8>>>,
    named: usize,
}

impl Sizes<'_> {
    pub(super) fn new(directory: &Path, in_place: bool, exact: bool) -> Sizes<'_> {
        let (names, named) = (HashMap::new(), 0);
        Sizes { directory, entries: 0, bytes: 0, most: None, exact, in_place, names, named }
    }

    /// Refuses what can't fit. What replaces files in place may fit in any case.
    pub(super) fn fit(&self) -> Result<()> {
        match self.in_place {
            true => Ok(()),
            false => fits(self.directory, self.bytes, self.entries),
        }
    }
}

impl Visitor for Sizes<'_> {
    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) -> Result<()> {
        self.entries += 1;
        if let TreeWhat::File(bytes, map) = &entry.what {
            let bytes = if self.exact { reader.data_bytes(map)? } else { *bytes };
            self.bytes = self.bytes.saturating_add(bytes);
        }
        if self.in_place && entry.link != 0 && self.named < LINKED_MAX {
            self.named += 1;
            self.names.entry(entry.link).or_default().push(path.to_vec());
        }
        if self.in_place {
            return Ok(());
        }
        // Few pages may stand for more entries than any disk has room for.
        let most = match self.most {
            Some(most) => most,
            None => *self.most.insert(room(self.directory)?.files.unwrap_or(u64::MAX)),
        };
        if self.entries > most { fits(self.directory, self.bytes, self.entries) } else { Ok(()) }
    }

    /// Who restores it tells of it.
    fn fails(&mut self, _: &[u8], error: Error) -> Result<()> {
        if error.kind() == Kind::Corrupt { Ok(()) } else { Err(error) }
    }
}
