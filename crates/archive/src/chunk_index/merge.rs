//! Files of the chunk index read together and written as one, some entries at a time.

use std::{iter::Peekable, sync::Arc};

use onefold_core::{Error, File, Kind, Result};

use super::file::{Entry, PAGE_BYTES, WRITE_PAGES, Writer, entries, index_name, open, read_pages};
use crate::{
    format::{Address, damage::is_damage, record::IndexFile},
    operations_log::Archive,
    rules::Rule,
    tables::Tables,
};

/// All entries of a file, page after page; damaged pages are left out.
struct Scan {
    archive: Arc<Archive>,
    named: IndexFile,
    file: Option<Arc<dyn File>>,
    next_page: u32,
    /// Entries read and not taken, the next one last.
    held: Vec<Entry>,
    /// Pages were left out.
    left_out: bool,
}

impl Scan {
    fn peek(&mut self) -> Result<Option<Entry>> {
        while self.held.is_empty() && self.next_page < self.named.pages {
            let Some(file) = &self.file else {
                self.left_out = true;
                break;
            };
            let mut bytes =
                vec![0; WRITE_PAGES.min((self.named.pages - self.next_page) as usize) * PAGE_BYTES];
            read_pages(&**file, self.next_page, &mut bytes)?;
            for page in bytes.chunks_mut(PAGE_BYTES) {
                if open(&self.archive.identity, self.named.number, self.next_page, page) {
                    self.held.extend(entries(page));
                } else {
                    self.left_out = true;
                }
                self.next_page += 1;
            }
            // Entries that went on to the next page are in order too: pages are filled in order.
            self.held.reverse();
        }
        Ok(self.held.last().copied())
    }
}

/// The entries of files, and new ones, on their way into one file: sorted, the newest of each
/// fingerprint, without those of containers that are gone.
pub(super) struct Merge {
    archive: Arc<Archive>,
    scans: Vec<Scan>,
    new: Peekable<std::vec::IntoIter<Entry>>,
    writer: Writer,
    /// Entries with one prefix, the newest first.
    same: Vec<Entry>,
    known: Known,
    has_all: bool,
    /// Files are in an index directory.
    elsewhere: bool,
}

impl Merge {
    /// Begins the file `number` of these files, the oldest first, and of new entries in the order of
    /// their prefixes.
    pub(super) fn new(
        archive: &Arc<Archive>,
        number: u64,
        files: &[IndexFile],
        new: Vec<Entry>,
    ) -> Result<Merge> {
        let count =
            files.iter().fold(new.len() as u64, |sum, file| sum.saturating_add(file.entries));
        let scan = |named: &IndexFile| Scan {
            archive: archive.clone(),
            named: *named,
            file: archive.files.open(&index_name(named.number)).ok(),
            next_page: 0,
            held: Vec::new(),
            left_out: false,
        };
        Ok(Merge {
            archive: archive.clone(),
            scans: files.iter().map(scan).collect(),
            new: new.into_iter().peekable(),
            writer: Writer::create(archive, number, count)?,
            same: Vec::new(),
            known: Known::default(),
            has_all: false,
            elsewhere: !files.iter().all(|file| archive.files.is_beside(&index_name(file.number))),
        })
    }

    /// The number of the file.
    pub(super) fn number(&self) -> u64 {
        self.writer.number()
    }

    /// Takes about `most` entries on, or writes as much behind them; false when all is written, but
    /// not synced.
    pub(super) fn step(&mut self, tables: &Tables, most: usize) -> Result<bool> {
        if self.has_all {
            let pages = u32::try_from(most.div_ceil(ENTRIES_A_PAGE)).unwrap_or(u32::MAX);
            return self.writer.end_some(pages);
        }
        let mut taken = 0;
        while taken < most {
            let mut least = self.new.peek().map(|entry| entry.0.prefix());
            for scan in &mut self.scans {
                let prefix = scan.peek()?.map(|entry| entry.0.prefix());
                least = [least, prefix].into_iter().flatten().min();
            }
            let Some(prefix) = least else {
                self.has_all = true;
                break;
            };
            taken += self.take(prefix, tables)?;
        }
        Ok(true)
    }

    /// Takes all entries with this prefix; gives how many there were.
    fn take(&mut self, prefix: u64, tables: &Tables) -> Result<usize> {
        // The newest first.
        self.same.clear();
        while let Some(entry) = self.new.next_if(|entry| entry.0.prefix() == prefix) {
            self.same.push(entry);
        }
        for scan in self.scans.iter_mut().rev() {
            while let Some(entry) = scan.peek()?.filter(|entry| entry.0.prefix() == prefix) {
                scan.held.pop();
                self.same.push(entry);
            }
        }
        for n in 0..self.same.len() {
            let (fingerprint, address) = self.same[n];
            let first = !self.same[..n].iter().any(|(other, _)| *other == fingerprint);
            let is_new = address.container.0 >= tables.next_id;
            if first && (is_new || self.known.may_be_there(tables, address)?) {
                self.writer.push(&(fingerprint, address))?;
            }
        }
        Ok(self.same.len())
    }

    /// Syncs what was written when it is more than a sync may make anybody wait for.
    pub(super) fn keep_up(&mut self) -> Result<()> {
        self.writer.keep_up()
    }

    /// The file, durable, when [`step`](Self::step) gave false.
    ///
    /// # Errors
    /// `NoSpace` when the index directory failed and did not give all entries: the files that have
    /// them stay. Otherwise the errors of the system.
    pub(super) fn finish(self) -> Result<IndexFile> {
        let left_out = self.scans.iter().any(|scan| scan.left_out);
        if left_out
            && self.elsewhere
            && self.archive.keeps(Rule::LostFilesNotMerged)
            && let Some(error) = self.archive.index_failure()
        {
            let why = format!("the index directory failed, so its files are not merged: {error}");
            return Err(Error::new(Kind::NoSpace, why));
        }
        self.writer.finish()
    }
}

/// Which containers are there, as far as they were looked up. A merge meets a container as often as it
/// has chunks, in no order, and its leaf may have to be read each time.
#[derive(Default)]
struct Known {
    /// Two bits for each number: it was looked up, and it is there.
    bits: Vec<u8>,
}

/// Containers whose numbers are higher are looked up each time.
const KNOWN_MAX: u64 = 1 << 28;

impl Known {
    /// True unless no container has the chunk any more. Which are gone never come back, and an entry
    /// too many costs nothing, so what was found once is good enough.
    fn may_be_there(&mut self, tables: &Tables, address: Address) -> Result<bool> {
        let number = address.container.0;
        let (at, shift) = ((number / 4) as usize, 2 * (number % 4));
        let known = self.bits.get(at).map_or(0, |bits| bits >> shift & 3);
        if known != 0 {
            return Ok(known == 3);
        }
        let is_there = match tables.has_place(address.container) {
            Err(error) if is_damage(&error) => true,
            found => found?,
        };
        if number < tables.next_id.min(KNOWN_MAX) {
            if at >= self.bits.len() {
                self.bits.resize(at + 1, 0);
            }
            self.bits[at] |= (1 | u8::from(is_there) << 1) << shift;
        }
        Ok(is_there)
    }
}

/// Entries that take the space of a page, about.
const ENTRIES_A_PAGE: usize = 128;
