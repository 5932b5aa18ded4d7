//! Usage counts in pages: a portion of counting writes those that it changed, and a directory.
//!
//! A file of counts is never written again. The directory of the newest one names the pages that count,
//! wherever they lie; a file goes when no page in it counts any more. So that old pages do not take more
//! room than those that count, and files stay few, a portion also carries pages over that it did not
//! change: those of the file of which the least counts. It carries about as many bytes as it changes.
//!
//! *Crash argument:* the file is durable before the frame that names it, and files that the directory
//! before names go after that frame. So a directory that a frame names finds all of its pages, or those
//! of which files were removed for a later frame: then nothing that it says counts, and all is counted
//! anew.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{File, Result};

use super::{
    directory::{
        Directory, Header, MAGIC, PagePlace, STEP_BYTES, decode_page, encode_page, expand,
        header_bytes, shortest, taken,
    },
    list::others,
    names::counts_name,
    proof::{Written, expected},
};
use crate::{
    container::Pace,
    format::{ContainerId, Identity, bytes::corrupt, log_reader::PIECE_BYTES, sealing::What},
    memory::Drawn,
    operations_log::{Archive, memory_of},
    rules::Rule,
    tables::NamedCounts,
};

/// Bytes of pages that are written at once.
const WRITE_BYTES: usize = 1 << 20;

/// True for the first bytes of a file of counts in pages.
pub(super) fn has_pages(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Reads pages by the directory of a file.
pub(crate) struct PagesReader {
    archive: Arc<Archive>,
    pub(super) directory: Directory,
    /// The files that pages lie in. Who has opened them reads them also when they are removed.
    files: BTreeMap<u64, Arc<dyn File>>,
    /// Asked before each page is read.
    pace: Pace,
    /// Memory of the directory.
    _drawn: Drawn,
}

impl PagesReader {
    /// The pages that a file names.
    ///
    /// # Errors
    /// `Corrupt` when the directory is damaged, or another than the frame names, `Memory` when it takes more than there may be, `NotFound`
    /// when a file of pages is gone, and those of the system.
    pub(super) fn over(
        archive: &Arc<Archive>,
        file: Arc<dyn File>,
        counts: NamedCounts,
        pace: &Pace,
    ) -> Result<PagesReader> {
        let number = counts.number;
        let identity = &archive.identity;
        let mut head = vec![0; header_bytes(identity)];
        let n = file.read_at(0, &mut head)?;
        let (header, proof) = Header::decode(&head[..n], number, identity)?;
        if expected(archive, counts).is_some_and(|expected| expected != proof) {
            return Err(others());
        }
        // Holes of a file have as many bytes as a stranger likes.
        let drawn = memory_of(archive);
        drawn.more(u64::from(header.bytes) + 3 * u64::from(header.expanded))?;
        pace.ask(u64::from(header.bytes))?;
        let wanted = taken(identity, header.at, header.bytes);
        let mut stored = read_of(identity, &*file, header.at, wanted)?;
        let place = (number, header.at);
        if !identity.open(What::CountsDirectory, place, &[], &mut stored, header.checksum) {
            return Err(corrupt("the directory of the usage counts is damaged"));
        }
        stored.truncate(header.bytes as usize);
        let directory = Directory::decode(&expand(stored, header.expanded)?)?;
        let mut files = BTreeMap::new();
        for &other in directory.files.keys() {
            let opened = match other == number {
                true => file.clone(),
                false => archive.files.open(&counts_name(other))?,
            };
            files.insert(other, opened);
        }
        let (archive, pace) = (archive.clone(), pace.clone());
        Ok(PagesReader { archive, directory, files, pace, _drawn: drawn })
    }

    /// Containers of a page.
    fn all(&self) -> u64 {
        self.archive.settings.count_page
    }

    /// The page that has the counts of a container.
    pub(super) fn page_of(&self, id: ContainerId) -> u64 {
        id.0 / self.all()
    }

    /// True when there are counts of a container.
    pub(super) fn has(&self, id: ContainerId) -> bool {
        let place = self.directory.pages.get(&self.page_of(id));
        place.is_some_and(|place| place.has(id.0 % self.all()))
    }

    /// The counts in a page; none where there is no such page.
    ///
    /// # Errors
    /// `Corrupt` when it is damaged, and those of the system.
    pub(super) fn page(&self, page: u64) -> Result<Vec<(ContainerId, Vec<u16>)>> {
        let Some(place) = self.directory.pages.get(&page) else { return Ok(Vec::new()) };
        let bytes = expand(self.stored(place)?, place.expanded)?;
        decode_page(page, place, &bytes, self.all())
    }

    /// The bytes of a page as they are stored, but not sealed.
    fn stored(&self, place: &PagePlace) -> Result<Vec<u8>> {
        let damaged = || corrupt("a page of the usage counts is damaged");
        self.pace.ask(u64::from(place.bytes))?;
        let file = self.files.get(&place.file).ok_or_else(damaged)?;
        let (identity, bytes) = (&self.archive.identity, place.bytes as usize);
        let mut stored = read_of(identity, &**file, place.at, bytes + identity.tail())?;
        let at = (place.file, place.at);
        if !identity.open(What::CountsPage, at, &[], &mut stored, place.checksum) {
            return Err(damaged());
        }
        stored.truncate(bytes);
        Ok(stored)
    }

    /// Reads all pages, so that damage is known before anything is made of them.
    ///
    /// # Errors
    /// The errors of [`page`](Self::page).
    pub(super) fn look(&self) -> Result<()> {
        self.directory.pages.keys().try_for_each(|page| self.page(*page).map(|_| ()))
    }
}

/// So many bytes of a file of a sealed archive, or of a plain one. Of a sealed one whole steps are read, so
/// that nobody sees how long a page is.
fn read_of(identity: &Identity, file: &dyn File, at: u64, wanted: usize) -> Result<Vec<u8>> {
    if identity.sealing().is_none() {
        return read(file, at, wanted);
    }
    let start = at / STEP_BYTES * STEP_BYTES;
    let end = at.saturating_add(wanted as u64).next_multiple_of(STEP_BYTES);
    let mut bytes = read(file, start, (end - start) as usize)?;
    bytes.drain(..(at - start) as usize);
    bytes.truncate(wanted);
    Ok(bytes)
}

/// So many bytes of a file, from `at` on. A length that a stranger wrote takes no memory before there
/// are bytes.
fn read(file: &dyn File, at: u64, wanted: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < wanted {
        let (from, n) = (bytes.len(), (wanted - bytes.len()).min(PIECE_BYTES));
        bytes.resize(from + n, 0);
        if file.read_at(at + from as u64, &mut bytes[from..])? < n {
            return Err(corrupt("the file of usage counts ends too early"));
        }
    }
    Ok(bytes)
}

/// Writes a file of counts in pages.
pub(super) struct PagesWriter {
    archive: Arc<Archive>,
    file: Arc<dyn File>,
    number: u64,
    directory: Directory,
    /// Pages that are not written yet, and where the first of them lies.
    waiting: Vec<u8>,
    at: u64,
    /// The page that counts are pushed to, and these.
    pushed: (u64, Vec<(ContainerId, Vec<u16>)>),
}

impl PagesWriter {
    /// The first pages of an archive, or all of them anew.
    pub(super) fn over(archive: &Arc<Archive>, file: Arc<dyn File>, number: u64) -> PagesWriter {
        PagesWriter {
            archive: archive.clone(),
            file,
            number,
            directory: Directory::default(),
            waiting: Vec::new(),
            at: header_bytes(&archive.identity) as u64,
            pushed: (0, Vec::new()),
        }
    }

    /// Pages that go on from these: those that are not written stay where they are.
    pub(super) fn after(self, before: &PagesReader) -> PagesWriter {
        PagesWriter { directory: before.directory.clone(), ..self }
    }

    /// Counts of the next container, in the order of their numbers.
    pub(super) fn push(&mut self, id: ContainerId, counts: &[u16]) -> Result<()> {
        let page = id.0 / self.archive.settings.count_page;
        if page != self.pushed.0 {
            self.write_pushed()?;
            self.pushed.0 = page;
        }
        self.pushed.1.push((id, counts.to_vec()));
        Ok(())
    }

    fn write_pushed(&mut self) -> Result<()> {
        let (page, counts) = std::mem::take(&mut self.pushed);
        if counts.is_empty() {
            return Ok(());
        }
        self.page(page, counts.iter().map(|(id, counts)| (*id, &counts[..]))).map(|_| ())
    }

    /// A page with these counts, in the order of the containers' numbers; none for a page without any.
    /// Gives its bytes.
    pub(super) fn page<'a>(
        &mut self,
        page: u64,
        counts: impl Iterator<Item = (ContainerId, &'a [u16])>,
    ) -> Result<u64> {
        let (has, bytes) = encode_page(counts, self.archive.settings.count_page);
        if bytes.is_empty() {
            self.drop_page(page);
            return Ok(0);
        }
        let expanded = bytes.len() as u32;
        let stored = shortest(bytes);
        let written = stored.len() as u64;
        let place = PagePlace { file: 0, at: 0, bytes: 0, expanded, checksum: 0, has };
        self.append(page, place, stored)?;
        Ok(written)
    }

    /// A page that has no container any more.
    pub(super) fn drop_page(&mut self, page: u64) {
        self.directory.pages.remove(&page);
    }

    /// A page comes next, sealed for where it lies now.
    fn append(&mut self, page: u64, place: PagePlace, mut stored: Vec<u8>) -> Result<()> {
        let at = self.at + self.waiting.len() as u64;
        let (identity, bytes) = (&self.archive.identity, stored.len());
        stored.resize(bytes + identity.tail(), 0);
        let checksum = identity.seal(What::CountsPage, (self.number, at), &[], &mut stored)?;
        let place = PagePlace { file: self.number, at, bytes: bytes as u32, checksum, ..place };
        self.directory.pages.insert(page, place);
        *self.directory.files.entry(self.number).or_default() += bytes as u64;
        self.waiting.extend_from_slice(&stored);
        if self.waiting.len() < WRITE_BYTES { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<()> {
        if !self.waiting.is_empty() {
            self.file.write_at(self.at, &self.waiting)?;
            self.at += self.waiting.len() as u64;
            self.waiting.clear();
        }
        Ok(())
    }

    /// Carries pages over that others wrote, until files are few and most of their bytes count.
    pub(super) fn carry(&mut self, before: &PagesReader) -> Result<()> {
        loop {
            self.directory.forget_empty();
            let live = self.directory.live();
            let older = || live.iter().filter(|(file, _)| **file != self.number);
            let all: u64 = self.directory.files.values().sum();
            let counting: u64 = live.values().sum();
            let of = |file: &u64| self.directory.files.get(file).copied().unwrap_or(0).max(1);
            // The share of a file that counts, in 65,536ths.
            let share =
                |(file, live): &(&u64, &u64)| (u128::from(**live) << 16) / u128::from(of(file));
            let from = if older().count() >= self.archive.settings.count_files {
                older().min_by_key(|(_, live)| **live)
            } else if all > 2 * counting {
                older().min_by_key(share)
            } else {
                None
            };
            let Some(from) = from.map(|(file, _)| *file) else { return Ok(()) };
            let pages = match self.archive.keeps(Rule::NewestPagesCarried) {
                true => &self.directory.pages,
                false => &before.directory.pages,
            };
            let carried: Vec<(u64, PagePlace)> = pages
                .iter()
                .filter(|(_, place)| place.file == from)
                .map(|(page, place)| (*page, *place))
                .collect();
            for (page, place) in carried {
                let stored = before.stored(&place)?;
                before.pace.ask(stored.len() as u64)?;
                self.append(page, place, stored)?;
            }
        }
    }

    /// Ends the file, durable on return: the counts lie in the files that its directory names, and in
    /// itself.
    pub(super) fn finish(mut self) -> Result<Written> {
        self.write_pushed()?;
        self.write()?;
        self.directory.forget_empty();
        let bytes = self.directory.encode();
        let expanded = bytes.len() as u32;
        let mut stored = shortest(bytes);
        let (identity, bytes) = (&self.archive.identity, stored.len() as u32);
        stored.resize(taken(identity, self.at, bytes), 0);
        let place = (self.number, self.at);
        let checksum = identity.seal(What::CountsDirectory, place, &[], &mut stored)?;
        let header = Header { at: self.at, bytes, expanded, checksum };
        self.file.write_at(self.at, &stored)?;
        let (header, checksum) = header.encode(self.number, identity)?;
        let proof = identity.proof(checksum);
        self.file.write_at(0, &header)?;
        self.file.sync()?;
        self.archive.files.sync_names()?;
        let files = self.directory.files.into_keys().chain([self.number]).collect();
        Ok(Written { files, proof })
    }
}

#[cfg(test)]
mod tests {
    use onefold_backend::Directory;
    use onefold_core::Kind;

    use super::*;
    use crate::{Format, settings::Settings};

    #[test]
    fn rule_09_a_directory_of_holes_takes_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let format = Format { reserve_bytes: 1 << 20, ..Format::new([1; 16], [2; 32], [3; 16]) };
        Archive::create(&Directory::create(dir.path()).unwrap(), &format).unwrap();
        let settings = Settings { memory: 64 << 20, ..Settings::default() };
        let files = Arc::new(Directory::open(dir.path(), true).unwrap());
        let archive = Arc::new(Archive::open(files, true, settings).unwrap());
        let bytes = 1 << 30;
        let header = Header { at: 1 << 20, bytes, expanded: bytes, checksum: 0 };
        let file = archive.files.create(&counts_name(9)).unwrap();
        file.write_at(0, &header.encode(9, &archive.identity).unwrap().0).unwrap();
        std::fs::File::options()
            .write(true)
            .open(dir.path().join(counts_name(9)))
            .unwrap()
            .set_len(2 << 30)
            .unwrap();
        let read = PagesReader::over(
            &archive,
            file,
            NamedCounts { number: 9, proof: None },
            &Pace::default(),
        );
        assert_eq!(read.err().map(|error| error.kind()), Some(Kind::Memory));
    }
}
