//! How much is wanted, and whether it fits.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use onefold_archive::{TreeEntry, TreeReader, TreeWhat};
use onefold_backend::room::room;
use onefold_core::{Error, Kind, Result};

use super::{
    paths::{Name, Paths},
    walk::{LINKED_MAX, Visitor},
};
use crate::verbs::get::space::fits;

/// All restored names of files that have several, by the numbers of the files.
#[derive(Default)]
pub(super) struct AllNames {
    paths: Paths,
    all: HashMap<u64, Vec<Name>>,
}

impl AllNames {
    fn add(&mut self, link: u64, path: &[u8]) {
        // An old file of which a name is not known here is replaced.
        if let Some(name) = self.paths.add(path) {
            self.all.entry(link).or_default().push(name);
        }
    }

    /// The path of one of the names of a file, from 0 on.
    pub(super) fn path(&self, link: u64, n: usize) -> Option<Vec<u8>> {
        Some(self.paths.path(self.all.get(&link)?.get(n)?))
    }
}

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
    pub(super) names: AllNames,
    named: usize,
    /// Files with several names that were counted, by their numbers: they have their bytes once, and
    /// their maps are read once.
    counted: HashSet<u64>,
}

impl Sizes<'_> {
    pub(super) fn new(directory: &Path, in_place: bool, exact: bool) -> Sizes<'_> {
        let (names, named, counted) = (AllNames::default(), 0, HashSet::new());
        Sizes {
            directory,
            entries: 0,
            bytes: 0,
            most: None,
            exact,
            in_place,
            names,
            named,
            counted,
        }
    }

    /// True for the first name of a file. Beyond what is remembered each name is a file, as it is when
    /// it is written.
    fn is_first(&mut self, link: u64) -> bool {
        match link == 0 || (self.counted.len() >= LINKED_MAX && !self.counted.contains(&link)) {
            true => true,
            false => self.counted.insert(link),
        }
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
        if let TreeWhat::File(bytes, map) = &entry.what
            && self.is_first(entry.link)
        {
            let bytes = if self.exact { reader.data_bytes(map)? } else { *bytes };
            self.bytes = self.bytes.saturating_add(bytes);
        }
        if self.in_place && entry.link != 0 && self.named < LINKED_MAX {
            self.named += 1;
            self.names.add(entry.link, path);
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
