//! The shape of the trees in a file of `redb`. `redb` trusts its own file: it would descend for
//! ever into a page that lies below itself, and accept any number and length of regions and pages.
//! So this module checks a file that somebody else may have written before `redb` reads it.
//!
//! All leaves of a tree are equally deep, one page names another as its child, and a page is never
//! changed in place while anything names it. So each page that is read from the file must have the
//! height above the leaves that follows from the page that named it. No other page may name it.
//! Pages that this process wrote itself are not checked.
//!
//! `redb` opens a file that was not closed by reading every tree that a table names, some times
//! over, and many tables may name one tree. So what an opening reads is bounded by the file.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

/// Bytes of a page, if it is not a multiple of that.
const PAGE: u64 = 4096;

/// Pages of a whole region.
const REGION_PAGES: u32 = 1 << 20;

/// Pages before those of a region, at most; it has a few hundred.
const REGION_HEAD_MAX: u32 = 4096;

/// Bytes of length that the file may have beyond [`PER_BYTE`] for each byte that it occupies:
/// `redb` needs memory for all regions. `redb` makes a file at most twice as long as it needs.
const SPARSE: u64 = 64 << 30;

/// Bytes of length for each byte that the file occupies.
const PER_BYTE: u64 = 64;

/// How often an opening may read each byte of the file: `redb` goes through all trees three times,
/// once more when its last transaction is not whole, and looks at some pages besides.
const READ_TIMES: u64 = 16;

/// Bytes that an opening may read of any file.
const READ_LEAST: u64 = 64 << 20;

/// Bytes of a page at most: keys and values of objects have a few hundred kilobytes at most.
pub(super) const LONGEST: usize = 16 << 20;

/// Pages from a root to a leaf, at most. A whole disk of objects needs less than ten.
const HEIGHT_MAX: u8 = 24;

/// How a page begins that names others.
const BRANCH: u8 = 2;
/// How one begins with keys and values.
const LEAF: u8 = 1;

/// A page that this process wrote.
const OWN: u8 = u8::MAX;
/// The pages below it are known too.
const SEEN: u8 = 0x80;

/// Reads so many bytes from a place in the file.
type ReadAt<'a> = &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>;

/// The checked shape of the trees.
#[derive(Debug)]
pub(super) struct Trees {
    /// Bytes before the pages of a region, and of a whole region.
    region: (u64, u64),
    /// For each page of the file, by its place: one more than its height, or nothing yet.
    heights: Mutex<Vec<u8>>,
    /// Bytes that the opening may still read.
    left: AtomicU64,
    /// Some page was not where its tree has it.
    is_refused: AtomicBool,
}

impl Trees {
    /// Looks at the head of a file, and how long it is.
    ///
    /// # Errors
    /// `Corrupt` when `redb` would take memory for more than there is.
    pub(super) fn of(file: &File, head: &[u8]) -> Result<Trees> {
        let number = |at: usize| {
            let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_le_bytes)
        };
        let (page, before, pages) = (number(12), number(16), number(20));
        let metadata = file.metadata().map_err(|e| Error::from_io("the tables of the store", e))?;
        let most = metadata.blocks().saturating_mul(512 * PER_BYTE).saturating_add(SPARSE);
        if u64::from(page) != PAGE
            || pages != REGION_PAGES
            || before > REGION_HEAD_MAX
            || metadata.len() > most
        {
            let why = "the tables of the store are damaged: their sizes can't be true";
            return Err(Error::new(Kind::Corrupt, why));
        }
        let before = u64::from(before) * PAGE;
        let region = (before, before + u64::from(pages) * PAGE);
        let there = metadata.len().min(metadata.blocks().saturating_mul(512 * PER_BYTE));
        let left = AtomicU64::new(there.saturating_mul(READ_TIMES).saturating_add(READ_LEAST));
        Ok(Trees { region, heights: Mutex::default(), left, is_refused: AtomicBool::new(false) })
    }

    /// The opening is over: what is read from now on is asked for.
    pub(super) fn opened(&self) {
        self.left.store(u64::MAX, SeqCst);
    }

    /// True when a page was refused.
    pub(super) fn has_refused(&self) -> bool {
        self.is_refused.load(SeqCst)
    }

    /// Draws what is read from what an opening may read.
    fn draw(&self, bytes: usize) -> io::Result<()> {
        let left =
            |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(bytes as u64) };
        match self.left.fetch_update(Relaxed, Relaxed, left) {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its trees are read again and again",
            )),
        }
    }

    /// Records that this process writes a range of the file, which needs no check.
    pub(super) fn write(&self, at: u64, bytes: usize) {
        let mut heights = self.heights.lock();
        let (from, to) = ((at / PAGE) as usize, (at + bytes as u64).div_ceil(PAGE) as usize);
        if heights.len() < to {
            heights.resize(to, 0);
        }
        heights[from..to].fill(OWN);
    }

    /// Checks a page that was read from a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// `InvalidData` when it is not where its tree has it, or when an opening reads too much.
    pub(super) fn read(
        &self,
        at: u64,
        page: &[u8],
        file_bytes: u64,
        read: ReadAt<'_>,
    ) -> io::Result<()> {
        self.draw(page.len())?;
        self.has_its_place(at, page, file_bytes, read)
            .inspect_err(|_| self.is_refused.store(true, SeqCst))
    }

    fn has_its_place(
        &self,
        at: u64,
        page: &[u8],
        file_bytes: u64,
        read: ReadAt<'_>,
    ) -> io::Result<()> {
        if !at.is_multiple_of(PAGE) || (page.len() as u64) < PAGE {
            return Ok(());
        }
        let mut heights = self.heights.lock();
        let number = (at / PAGE) as usize;
        if heights.len() <= number {
            heights.resize(number + 1, 0);
        }
        let height = match (heights[number], page[0]) {
            (OWN, _) => return Ok(()),
            // The page may not belong to a tree at all.
            (0, first) if first != BRANCH => return Ok(()),
            (0, _) => self.height(page, file_bytes, read)?,
            (known, _) => (known & !SEEN) - 1,
        };
        if height == 0 {
            // One without keys would not be there.
            return if page[0] == LEAF && page[2..4] != [0, 0] { Ok(()) } else { Err(wrong()) };
        }
        if page[0] != BRANCH {
            return Err(wrong());
        }
        if heights[number] & SEEN != 0 {
            return Ok(());
        }
        heights[number] = (height + 1) | SEEN;
        for child in self.children(page)? {
            let child = (self.within(child, file_bytes)? / PAGE) as usize;
            if heights.len() <= child {
                heights.resize(child + 1, 0);
            }
            match heights[child] {
                OWN => {}
                0 => heights[child] = height,
                _ => return Err(wrong()),
            }
        }
        Ok(())
    }

    /// How high a root stands, by its first leaf.
    fn height(&self, root: &[u8], file_bytes: u64, read: ReadAt<'_>) -> io::Result<u8> {
        let mut child = *self.children(root)?.first().ok_or_else(wrong)?;
        for height in 1..=HEIGHT_MAX {
            let at = self.within(child, file_bytes)?;
            let mut head = [0; 4];
            read(at, &mut head)?;
            if head[0] != BRANCH {
                return Ok(height);
            }
            let mut first = [0; 8];
            read(at + 8 + 16 * children_of(&head), &mut first)?;
            child = u64::from_le_bytes(first);
        }
        Err(wrong())
    }

    /// The children that a page names.
    fn children(&self, page: &[u8]) -> io::Result<Vec<u64>> {
        let count = children_of(page) as usize;
        let numbers = page.get(8 + 16 * count..8 + 24 * count).ok_or_else(wrong)?;
        Ok(numbers.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect())
    }

    /// Where a page is that has this number: 20 bits of its place in its region, counted in pages
    /// of its length, 20 bits of the region, and in the highest five how often 4 KiB is doubled.
    fn within(&self, number: u64, file_bytes: u64) -> io::Result<u64> {
        let order = number >> 59;
        let (index, region) = (number & (0xf_ffff >> order), (number >> 20) & 0xf_ffff);
        let (before, whole) = self.region;
        let at = PAGE + region * whole + before + index * (PAGE << order);
        if at + (PAGE << order) <= file_bytes { Ok(at) } else { Err(wrong()) }
    }
}

fn children_of(page: &[u8]) -> u64 {
    u64::from(u16::from_le_bytes([page[2], page[3]])) + 1
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a page is not where its tree has it")
}
