//! A file of the chunk index: pages of entries in the order of their fingerprints' prefixes, and
//! behind them the pages of a Bloom filter.
//!
//! A page is chosen by the prefix, so that all pages together are sorted, and files are merged by
//! reading them once. An entry whose page is full goes to the next page, and the full page says
//! so.

use std::sync::Arc;

use onefold_core::{File, Fingerprint, Kind, Result};

use crate::{
    container::Pace,
    format::{
        Address, ContainerId, Identity, bytes::corrupt, names::fresh, record::IndexFile,
        sealing::What,
    },
    memory::{Drawn, with_room},
    operations_log::{Archive, memory_of_filters},
    rules::Rule,
};

/// A fingerprint and where the chunk is.
pub(crate) type Entry = (Fingerprint, Address);

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Entries of a page.
pub(crate) const PAGE_ENTRIES: usize = 170;

const HEADER_BYTES: usize = 16;

/// Entries of a page on the average: two thirds.
const FILL: u64 = 114;

/// Pages that an entry may be away from its own.
const REACH: u32 = 4;

/// Bits of the filter for an entry.
const FILTER_BITS: u64 = 10;

/// Bits that a fingerprint sets.
const FILTER_HASHES: u32 = 5;

/// Memory that a filter may take in any case.
const FILTER_ALWAYS: u64 = 16 << 20;

/// Bytes of a filter that a log may state where a budget alone decides whether there is memory for it.
const STATED_MAX: u64 = 1 << 50;

/// Entries of a page, of which a sealed archive's has room for a half of the tag.
fn page_entries(identity: &Identity) -> usize {
    PAGE_ENTRIES - usize::from(identity.tail() > 0)
}

/// Words of a filter in a page.
fn filter_page_words(identity: &Identity) -> usize {
    (PAGE_BYTES - HEADER_BYTES - identity.tail()) / 8
}

/// The share of cached pages that those hold which were read again.
const PAGES_HOT: f64 = 0.25;

/// Bytes that are written between two syncs of a file that is made in portions.
const SYNC_BYTES: u64 = 16 << 20;

/// Pages written at once.
pub(super) const WRITE_PAGES: usize = 256;

pub(crate) fn index_name(number: u64) -> String {
    format!("index-{number:010}")
}

/// The page of a prefix among `pages`.
fn page_of(prefix: u64, pages: u32) -> u32 {
    ((u128::from(prefix) * u128::from(pages)) >> 64) as u32
}

/// A Bloom filter whose bits for one fingerprint lie in one line of 64 bytes.
pub(crate) struct Filter {
    lines: Vec<[u64; 8]>,
    /// Words of it in a page of the file.
    page_words: usize,
    /// Its memory.
    _drawn: Drawn,
}

impl Filter {
    /// One for so many entries, without any of them.
    ///
    /// # Errors
    /// `Memory`: it takes more than `drawn` has, or than the system has.
    fn new(identity: &Identity, entries: u64, drawn: Drawn) -> Result<Filter> {
        let lines = Filter::lines_for(entries);
        drawn.more(lines.saturating_mul(64))?;
        let count = usize::try_from(lines).unwrap_or(usize::MAX);
        let mut lines = with_room(count)?;
        lines.resize(count, [0; 8]);
        Ok(Filter { lines, page_words: filter_page_words(identity), _drawn: drawn })
    }

    fn lines_for(entries: u64) -> u64 {
        entries.saturating_mul(FILTER_BITS).div_ceil(512).max(1)
    }

    /// Pages of a file that the filter of so many entries takes.
    fn pages_for(identity: &Identity, entries: u64) -> u32 {
        (Filter::lines_for(entries) * 8).div_ceil(filter_page_words(identity) as u64) as u32
    }

    /// The line, and the bits in it, from the part of the fingerprint that chooses no page.
    fn places(&self, fingerprint: &Fingerprint) -> (usize, u64) {
        let mut high = [0; 8];
        high.copy_from_slice(&fingerprint.0[8..]);
        let line = (u128::from(fingerprint.prefix()) * self.lines.len() as u128) >> 64;
        (line as usize, u64::from_le_bytes(high))
    }

    fn bits(hash: u64) -> impl Iterator<Item = (usize, u64)> {
        (0..FILTER_HASHES).map(move |n| {
            let bit = hash >> (9 * n) & 511;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    fn insert(&mut self, fingerprint: &Fingerprint) {
        let (line, hash) = self.places(fingerprint);
        Filter::bits(hash).for_each(|(word, bit)| self.lines[line][word] |= bit);
    }

    /// True unless the fingerprint was never put in.
    #[must_use]
    pub(crate) fn may_hold(&self, fingerprint: &Fingerprint) -> bool {
        let (line, hash) = self.places(fingerprint);
        Filter::bits(hash).all(|(word, bit)| self.lines[line][word] & bit != 0)
    }

    /// Memory.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.lines.len() as u64 * 64
    }

    fn pages(&self) -> u32 {
        (self.bytes() / 8).div_ceil(self.page_words as u64) as u32
    }

    /// Bytes of its page `page` on the disk; the last is short.
    fn page_bytes(&self, page: u32, into: &mut [u8]) {
        let words = self.lines.as_flattened().iter().skip(page as usize * self.page_words);
        words
            .take(self.page_words)
            .zip(into.as_chunks_mut::<8>().0)
            .for_each(|(word, bytes)| *bytes = word.to_le_bytes());
    }

    /// Takes them.
    fn set_page(&mut self, page: u32, bytes: &[u8]) {
        let words = self.lines.as_flattened_mut().iter_mut().skip(page as usize * self.page_words);
        words
            .take(self.page_words)
            .zip(bytes.as_chunks::<8>().0)
            .for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    }
}

/// The value that a page's checksum is combined with: a tag of a sealed archive proves the file as it is.
fn turned(identity: &Identity, file: u64) -> u64 {
    if identity.sealing().is_some() { 0 } else { file.rotate_left(32) }
}

/// Closes a page: its checksum covers the file's and its own number.
fn close(identity: &Identity, file: u64, number: u32, page: &mut [u8]) -> Result<()> {
    page[8..12].copy_from_slice(&number.to_le_bytes());
    let place = (file, u64::from(number));
    let checksum = identity.seal(What::IndexPage, place, &[], &mut page[8..])?;
    page[..8].copy_from_slice(&(checksum ^ turned(identity, file)).to_le_bytes());
    Ok(())
}

/// Reads pages from `first` on; those that can't be read are zeroes, which no page is.
pub(super) fn read_pages(file: &dyn File, first: u32, into: &mut [u8]) -> Result<()> {
    let at = |n: usize| (u64::from(first) + n as u64) * PAGE_BYTES as u64;
    match file.read_at(at(0), into) {
        Err(error) if error.kind() == Kind::Io => {}
        read => return read.map(|_| ()),
    }
    for (n, page) in into.chunks_mut(PAGE_BYTES).enumerate() {
        match file.read_at(at(n), page) {
            Err(error) if error.kind() == Kind::Io => page.fill(0),
            read => drop(read?),
        }
    }
    Ok(())
}

/// Opens a page that was closed so; false when it is another one or damaged.
pub(super) fn open(identity: &Identity, file: u64, number: u32, page: &mut [u8]) -> bool {
    let Some((checksum, body)) = page.split_first_chunk_mut() else { return false };
    let checksum = u64::from_le_bytes(*checksum) ^ turned(identity, file);
    let place = (file, u64::from(number));
    body.len() == PAGE_BYTES - 8
        && identity.open(What::IndexPage, place, &[], body, checksum)
        && body[..4] == number.to_le_bytes()
}

/// The entries of an open page, and whether some went on to the next.
pub(super) fn entries(page: &[u8]) -> impl Iterator<Item = Entry> {
    let count = usize::from(page[12]).min(PAGE_ENTRIES);
    page[HEADER_BYTES..].chunks_exact(24).take(count).map(|bytes| {
        let (mut fingerprint, mut number) = ([0; 16], [0; 8]);
        fingerprint.copy_from_slice(&bytes[..16]);
        number[..5].copy_from_slice(&bytes[16..21]);
        let slot = u16::from_le_bytes([bytes[21], bytes[22]]);
        (
            Fingerprint(fingerprint),
            Address { container: ContainerId(u64::from_le_bytes(number)), slot },
        )
    })
}

/// A cache that gives most of its room to what was read lately: fingerprints spread evenly over the
/// pages, so that none is read more often than others, but data that repeat soon ask for the same
/// ones.
fn page_cache(pages: usize) -> quick_cache::unsync::Cache<u32, Arc<[u8]>> {
    let mut options = quick_cache::OptionsBuilder::new();
    options.estimated_items_capacity(pages).weight_capacity(pages as u64).hot_allocation(PAGES_HOT);
    match options.build() {
        Ok(options) => {
            let (weighter, hasher) =
                (quick_cache::UnitWeighter, quick_cache::DefaultHashBuilder::default());
            quick_cache::unsync::Cache::with_options(
                options,
                weighter,
                hasher,
                quick_cache::unsync::DefaultLifecycle::default(),
            )
        }
        Err(_) => quick_cache::unsync::Cache::new(pages),
    }
}

/// True when a file can have the entries and pages that the log says it has. What a log claims of a
/// file of holes would only cost memory and time. A page on the medium takes more than a sixty-fourth
/// of the memory for its entries' filter, also where the file system compresses it.
pub(super) fn is_possible(archive: &Archive, named: &IndexFile, file: &dyn File) -> Result<bool> {
    let Some(bits) = named.entries.checked_mul(FILTER_BITS) else { return Ok(false) };
    // Where the medium may say anything of the file, the filter is drawn from a budget alone.
    let memory = match archive.settings.memory_is_all {
        true => STATED_MAX,
        false => file.occupied()?.saturating_mul(64).saturating_add(FILTER_ALWAYS),
    };
    let identity = &archive.identity;
    Ok(bits / 8 <= memory
        && named.pages > 0
        && u64::from(named.pages) <= named.entries.div_ceil(FILL).max(1)
        && named.pages.checked_add(named.filter_pages).is_some()
        && named.filter_pages >= Filter::pages_for(identity, named.entries))
}

/// A file of the index, open for reading.
pub(crate) struct OpenIndex {
    named: IndexFile,
    file: Arc<dyn File>,
    pub(super) filter: Filter,
    /// Pages read lately, by number.
    cached: quick_cache::unsync::Cache<u32, Arc<[u8]>>,
}

impl OpenIndex {
    /// Opens it with its filter; up to `cache` bytes of its pages are kept.
    pub(super) fn open(
        archive: &Archive,
        named: &IndexFile,
        cache: u64,
        pace: &Pace,
    ) -> Result<OpenIndex> {
        let file = archive.files.open(&index_name(named.number))?;
        if !is_possible(archive, named, &*file)? {
            return Err(corrupt("an index file's sizes can't be true"));
        }
        let filter = OpenIndex::read_filter(archive, &*file, named, pace)?;
        let pages = (cache / PAGE_BYTES as u64).max(1) as usize;
        Ok(OpenIndex { named: *named, file, filter, cached: page_cache(pages) })
    }

    fn read_filter(
        archive: &Archive,
        file: &dyn File,
        named: &IndexFile,
        pace: &Pace,
    ) -> Result<Filter> {
        let mut filter = Filter::new(&archive.identity, named.entries, memory_of_filters(archive))?;
        let mut pages = vec![0; WRITE_PAGES * PAGE_BYTES];
        for first in (0..filter.pages()).step_by(WRITE_PAGES) {
            let count = WRITE_PAGES.min((filter.pages() - first) as usize);
            let at = named.pages + first;
            pace.ask((count * PAGE_BYTES) as u64)?;
            read_pages(file, at, &mut pages[..count * PAGE_BYTES])?;
            for (n, page) in (0..).zip(pages[..count * PAGE_BYTES].chunks_mut(PAGE_BYTES)) {
                if !open(&archive.identity, named.number, at + n, page) {
                    // A damaged page of the filter lets everything through.
                    page.fill(u8::MAX);
                }
                filter.set_page(first + n, &page[HEADER_BYTES..]);
            }
        }
        Ok(filter)
    }

    fn page(
        &mut self,
        archive: &Archive,
        number: u32,
        reads: &mut u64,
    ) -> Result<Option<Arc<[u8]>>> {
        if let Some(page) = self.cached.get(&number) {
            return Ok(Some(page.clone()));
        }
        *reads += 1;
        let mut page = vec![0; PAGE_BYTES];
        read_pages(&*self.file, number, &mut page)?;
        if !open(&archive.identity, self.named.number, number, &mut page) {
            return Ok(None);
        }
        let page: Arc<[u8]> = page.into();
        self.cached.insert(number, page.clone());
        Ok(Some(page))
    }

    pub(super) fn look_up(
        &mut self,
        archive: &Archive,
        fingerprint: &Fingerprint,
        reads: &mut u64,
    ) -> Result<Option<Address>> {
        let own = page_of(fingerprint.prefix(), self.named.pages);
        for number in own..(own + REACH).min(self.named.pages) {
            let Some(page) = self.page(archive, number, reads)? else { return Ok(None) };
            if let Some((_, address)) = entries(&page).find(|(found, _)| found == fingerprint) {
                return Ok(Some(address));
            }
            if page[13] == 0 {
                break;
            }
        }
        Ok(None)
    }
}

/// Writes a file, from entries in the order of their prefixes.
pub(crate) struct Writer {
    archive: Arc<Archive>,
    number: u64,
    pages: u32,
    file: Arc<dyn File>,
    filter: Filter,
    out: Vec<u8>,
    /// The page that is being filled.
    page: Vec<u8>,
    at: u32,
    written: u32,
    entries: u64,
    expected: u64,
    /// Bytes that were written since the last sync.
    unsynced: u64,
}

impl Writer {
    pub(super) fn create(archive: &Arc<Archive>, number: u64, entries: u64) -> Result<Writer> {
        let pages = u32::try_from(entries.div_ceil(FILL).max(1))
            .map_err(|_| corrupt("the chunk index is too large"))?;
        let filter = Filter::new(&archive.identity, entries, memory_of_filters(archive))?;
        let file = fresh(&*archive.files, &index_name(number))?;
        let archive = archive.clone();
        let page = vec![0; PAGE_BYTES];
        Ok(Writer {
            archive,
            number,
            pages,
            file,
            filter,
            out: Vec::new(),
            page,
            at: 0,
            written: 0,
            entries: 0,
            expected: entries,
            unsynced: 0,
        })
    }

    pub(super) fn push(&mut self, (fingerprint, address): &Entry) -> Result<()> {
        let own = page_of(fingerprint.prefix(), self.pages);
        while self.at < own {
            self.next_page()?;
        }
        while usize::from(self.page[12]) == page_entries(&self.archive.identity) {
            if self.at + 1 >= self.pages || self.at + 1 >= own + REACH {
                // So crowded a place is never met by chance. The entry is lost, which costs a
                // duplicate.
                return Ok(());
            }
            self.page[13] = 1;
            self.next_page()?;
        }
        let n = usize::from(self.page[12]);
        let entry = &mut self.page[HEADER_BYTES + n * 24..][..24];
        entry[..16].copy_from_slice(&fingerprint.0);
        entry[16..21].copy_from_slice(&address.container.0.to_le_bytes()[..5]);
        entry[21..23].copy_from_slice(&address.slot.to_le_bytes());
        self.page[12] = n as u8 + 1;
        self.filter.insert(fingerprint);
        self.entries += 1;
        Ok(())
    }

    fn next_page(&mut self) -> Result<()> {
        close(&self.archive.identity, self.number, self.at, &mut self.page)?;
        self.out.extend_from_slice(&self.page);
        self.page.fill(0);
        self.at += 1;
        if self.out.len() >= WRITE_PAGES * PAGE_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        self.file.write_at(u64::from(self.written) * PAGE_BYTES as u64, &self.out)?;
        self.written += (self.out.len() / PAGE_BYTES) as u32;
        self.unsynced += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// The number of the file.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Syncs what was written when it is more than a sync may make anybody wait for.
    pub(super) fn keep_up(&mut self) -> Result<()> {
        let is_due = self.unsynced >= SYNC_BYTES;
        if is_due && self.archive.keeps(Rule::PagesBeforeImportPosition) {
            self.file.sync()?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Writes up to `most` of the pages that follow the last entry; false when all are written.
    pub(super) fn end_some(&mut self, most: u32) -> Result<bool> {
        let end = self.pages + self.filter.pages();
        for _ in 0..most {
            if self.at >= end {
                break;
            }
            if let Some(page) = self.at.checked_sub(self.pages) {
                if page == 0 && !self.archive.keeps(Rule::FilterCoversIndex) {
                    self.filter.lines.iter_mut().take(1).for_each(|line| *line = [0; 8]);
                }
                self.filter.page_bytes(page, &mut self.page[HEADER_BYTES..]);
            }
            self.next_page()?;
        }
        Ok(self.at < end)
    }

    /// Durable on return.
    pub(super) fn finish(mut self) -> Result<IndexFile> {
        while self.end_some(u32::MAX)? {}
        self.write_out()?;
        if self.archive.keeps(Rule::PagesBeforeImportPosition) {
            self.file.sync()?;
            self.archive.files.sync_names()?;
        }
        Ok(IndexFile {
            number: self.number,
            pages: self.pages,
            filter_pages: self.filter.pages(),
            entries: self.expected,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_lets_in_what_was_put_in_and_little_else() {
        let print = |n: u64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(
                &n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .rotate_left(29)
                    .wrapping_mul(0xbf58_476d_1ce4_e5b9)
                    .to_le_bytes(),
            );
            bytes[8..].copy_from_slice(
                &n.wrapping_mul(0x94d0_49bb_1331_11eb)
                    .rotate_left(31)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .to_le_bytes(),
            );
            Fingerprint(bytes)
        };
        let identity = Identity::new([1; 16], &[2; 32]);
        let mut filter = Filter::new(&identity, 10_000, Drawn::default()).unwrap();
        (0..10_000).for_each(|n| filter.insert(&print(n)));
        assert!((0..10_000).all(|n| filter.may_hold(&print(n))));
        let wrong = (10_000..30_000).filter(|&n| filter.may_hold(&print(n))).count();
        assert!(wrong < 500, "{wrong} of 20,000");
        let mut again = Filter::new(&identity, 10_000, Drawn::default()).unwrap();
        for page in 0..filter.pages() {
            let mut bytes = [0; PAGE_BYTES - HEADER_BYTES];
            filter.page_bytes(page, &mut bytes);
            again.set_page(page, &bytes);
        }
        assert!(again.lines == filter.lines && filter.pages() > 2);
        assert!((0..10_000).all(|n| again.may_hold(&print(n))));
    }
}
