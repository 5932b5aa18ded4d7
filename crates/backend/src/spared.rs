//! Reading large files without leaving them in the system's cache.
//!
//! A backup reads each file once. Read as usual, a large one drops from the cache what the host's
//! programs need. So the cache is asked first which parts of the file it has; the others are dropped
//! again behind the reading. The reads themselves are as usual: the system reads ahead, any file system
//! takes them, and no length or address has to be a multiple of anything.
//!
//! Where the system does not tell (before Linux 6.5, or of files that the user neither owns nor may
//! write), all stays in the cache, as before. Dropping is advice: what somebody changed or maps stays,
//! and a part that somebody else reads meanwhile may be dropped once, which costs him a read.

use std::{collections::VecDeque, fs::File, io::Result, os::unix::fs::FileExt};

use rustix::fs::{Advice, fadvise};

/// Shorter files are read as usual.
const LEAST: u64 = 8 << 20;

/// The cache is asked about so many bytes at a time, and drops as many. The system reads ahead in
/// pieces of this at most.
const PART: u64 = 2 << 20;

/// So far ahead of the reading the cache is asked: further than the system reads ahead.
const AHEAD: u64 = 16 << 20;

/// So far behind the reading parts are dropped, many at a time: pages that were just read can't be
/// dropped without asking all processors.
const BEHIND: u64 = 16 << 20;

/// The number of the system's call, which is the same on all kinds of processors that we know.
const CACHESTAT: libc::c_long = 451;

/// A file that is read once, from its beginning to its end.
#[derive(Debug)]
pub struct Spared<'a> {
    file: &'a File,
    bytes: u64,
    /// The cache was asked about all before this.
    asked: u64,
    /// Where parts begin that the cache did not have.
    absent: VecDeque<u64>,
    /// The end of what was read.
    read: u64,
}

impl Spared<'_> {
    /// For a file of so many bytes.
    #[must_use]
    pub fn new(file: &File, bytes: u64) -> Spared<'_> {
        let asked = if bytes < LEAST { bytes } else { 0 };
        Spared { file, bytes, asked, absent: VecDeque::new(), read: 0 }
    }

    /// Reads into `room` from byte `at` on, as the file itself does.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn read_at(&mut self, room: &mut [u8], at: u64) -> Result<usize> {
        self.ask(at, at.saturating_add(room.len() as u64).saturating_add(AHEAD));
        let n = self.file.read_at(room, at)?;
        self.read = self.read.max(at + n as u64);
        if self.absent.front().is_some_and(|part| part + PART + 2 * BEHIND <= self.read) {
            self.drop_to(self.read - BEHIND);
        }
        Ok(n)
    }

    /// Asks the cache what it has, from a part at or behind `at` up to `end`.
    fn ask(&mut self, at: u64, end: u64) {
        if self.asked < at {
            // A hole was passed over. What was read ahead before counts as there.
            self.asked = at.next_multiple_of(PART);
        }
        while self.asked < end.min(self.bytes) {
            match cached_pages(self.file, self.asked, PART) {
                Some(0) => self.absent.push_back(self.asked),
                Some(_) => {}
                // It will not tell of the rest either.
                None => self.bytes = self.asked,
            }
            self.asked += PART;
        }
    }

    /// Drops the parts that end at or before `end`, those that follow one another at once.
    fn drop_to(&mut self, end: u64) {
        let due = |part: &&u64| **part + PART <= end;
        while let Some(&first) = self.absent.front().filter(due) {
            self.absent.pop_front();
            let mut last = first;
            while let Some(&next) =
                self.absent.front().filter(due).filter(|part| **part == last + PART)
            {
                self.absent.pop_front();
                last = next;
            }
            let length = std::num::NonZeroU64::new(last + PART - first);
            // Advice only: what can't be dropped stays.
            let _ = fadvise(self.file, first, length, Advice::DontNeed);
        }
    }
}

impl Drop for Spared<'_> {
    fn drop(&mut self) {
        self.drop_to(self.read.next_multiple_of(PART));
    }
}

/// True when the system would have to ask the disk for the first byte of a file. Where it does not tell,
/// it says no.
#[must_use]
pub fn is_cold(file: &File) -> bool {
    let mut byte = [0];
    let room = &mut [std::io::IoSliceMut::new(&mut byte)];
    rustix::io::preadv2(file, room, 0, rustix::io::ReadWriteFlags::NOWAIT)
        .is_err_and(|errno| errno == rustix::io::Errno::AGAIN)
}

/// How many pages of a part of a file the cache has; `None` when the system does not tell.
#[allow(unsafe_code, reason = "the system's call is in no library that we use")]
fn cached_pages(file: &File, at: u64, bytes: u64) -> Option<u64> {
    use std::os::fd::AsRawFd;

    #[repr(C)]
    struct Range {
        at: u64,
        bytes: u64,
    }

    #[repr(C)]
    #[derive(Default)]
    struct Found {
        cached: u64,
        dirty: u64,
        under_way: u64,
        evicted: u64,
        recently_evicted: u64,
    }

    let (range, mut found) = (Range { at, bytes }, Found::default());
    // SAFETY: the descriptor is open while `file` is borrowed; both structures have the layout of
    // the system's and outlive the call, which reads the one and writes the other.
    let done = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut found,
            0 as libc::c_uint,
        )
    };
    (done == 0).then_some(found.cached)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// How many pages of a file the cache has.
    fn cached(file: &File, from: u64, to: u64) -> Option<u64> {
        cached_pages(file, from, to - from)
    }

    /// A durable file, none of which is in the cache; `None` where the system does not tell, or drops
    /// nothing, as in memory.
    fn cold(bytes: u64) -> Option<File> {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for at in (0..bytes).step_by(MIB as usize) {
            let n = (bytes - at).min(MIB) as usize;
            file.write_all_at(&vec![(at / MIB) as u8 + 1; n], at).unwrap();
        }
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        (cached(&file, 0, bytes) == Some(0)).then_some(file)
    }

    fn read_all(file: &File, bytes: u64) -> u64 {
        let (mut spared, mut at) = (Spared::new(file, bytes), 0);
        let mut room = vec![0; 300_000];
        loop {
            let n = spared.read_at(&mut room, at).unwrap();
            if n == 0 {
                return at;
            }
            assert!(room[0] == (at / MIB) as u8 + 1, "at {at}");
            at += n as u64;
        }
    }

    #[test]
    fn what_the_cache_lacked_is_dropped_again_and_what_it_had_stays() {
        let bytes = 50 * MIB + 12_345;
        let Some(file) = cold(bytes) else { return };
        // Others read the middle before.
        let mut middle = vec![0; 4 * MIB as usize];
        file.read_exact_at(&mut middle, 20 * MIB).unwrap();
        let before = cached(&file, 20 * MIB, 24 * MIB).unwrap();
        assert!(before > 0);
        assert_eq!(read_all(&file, bytes), bytes);
        assert_eq!(cached(&file, 20 * MIB, 24 * MIB), Some(before));
        assert_eq!(
            (cached(&file, 0, 16 * MIB), cached(&file, 28 * MIB, bytes)),
            (Some(0), Some(0))
        );
    }

    #[test]
    fn a_short_file_stays_and_one_that_is_cut_off_ends() {
        let Some(file) = cold(4 * MIB) else { return };
        assert_eq!(read_all(&file, 4 * MIB), 4 * MIB);
        assert!(cached(&file, 0, 4 * MIB) > Some(0));
        let Some(file) = cold(20 * MIB) else { return };
        file.set_len(9 * MIB).unwrap();
        assert_eq!(read_all(&file, 20 * MIB), 9 * MIB);
        assert_eq!(cached(&file, 0, 9 * MIB), Some(0));
    }
}
