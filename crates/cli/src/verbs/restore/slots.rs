//! The files of a window: made when something is to be written to them, and finished when all of it
//! is there. Few of them are open at a time.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_archive::RestoreTarget;
use onefold_backend::tree::{Files, Made, write_part};
use onefold_console::progress::Progress;
use onefold_core::{Error, Kind, Result, tree::Entry};
use parking_lot::{Mutex, RwLock};

use super::{
    gaps::{Gap, Known, are_gaps, clear, together},
    sizes::AllNames,
    tiny::{FILE_BYTES, TINY_BYTES, Tiny},
    walk::is_of_entry,
};

/// Files that stay open. With the directories, there are fewer than the 1,024 that a process may
/// have.
const OPEN: usize = 256;

/// A file of a window.
pub(super) struct Slot {
    /// The number of its directory.
    pub(super) directory: usize,
    pub(super) entry: Entry,
    pub(super) bytes: u64,
    /// The number of the file of which it is the first name; 0 for none.
    pub(super) link: u64,
    pub(super) is_in_part: bool,
    /// In place: zeroes and holes.
    pub(super) gaps: Vec<Gap>,
    /// Nothing is written at its end.
    pub(super) ends_in_gap: bool,
    pub(super) state: Mutex<State>,
    /// Ranges that wait to be written together; held alone while they are.
    pub(super) tiny: RwLock<Tiny>,
}

/// What there is of a file.
#[derive(Default)]
pub(super) struct State {
    made: Option<Made>,
    /// It was looked whether an old file is there.
    is_looked: bool,
    /// An old file is there, and stays.
    is_old: bool,
    /// Others have no rights to the old file any more.
    is_shut: bool,
    /// It can't be restored here; that was told.
    is_refused: bool,
    /// All of it is there.
    is_finished: bool,
}

impl Slot {
    /// Memory that it takes, beside what a window counts.
    pub(super) fn memory(entry: &Entry) -> usize {
        size_of::<Slot>() + entry.path.len() + entry.attributes_memory()
    }
}

/// Files that are open, by their numbers.
#[derive(Default)]
struct Open {
    files: HashMap<usize, Arc<File>>,
    order: VecDeque<usize>,
}

/// How many files came back in part only.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) bytes: AtomicU64,
    /// Bytes that were there already.
    pub(super) kept: AtomicU64,
    pub(super) damaged: AtomicU64,
    /// Entries that this file system or place can't have.
    pub(super) refused: AtomicU64,
    pub(super) in_part: AtomicU64,
}

/// Files by their numbers, from a number on.
pub(super) struct Slots {
    pub(super) files: Files,
    pub(super) counts: Counts,
    first: usize,
    slots: Vec<Slot>,
    open: Mutex<Open>,
    /// One old file of each file system that is to be written to.
    unsynced: Mutex<BTreeMap<u64, usize>>,
    /// In place: all names of files that have several.
    names: AllNames,
    /// Where files are that could not be restored whole, by the number of their names.
    pub(super) renamed: Mutex<HashMap<u64, Vec<u8>>>,
    /// Files with several names that could not be restored at all.
    pub(super) refused: Mutex<HashSet<u64>>,
    in_place: bool,
    bar: Progress,
    total: u64,
}

impl Slots {
    pub(super) fn new(files: Files, names: AllNames, total: u64, in_place: bool) -> Slots {
        Slots {
            files,
            counts: Counts::default(),
            first: 0,
            slots: Vec::new(),
            open: Mutex::default(),
            unsynced: Mutex::default(),
            names,
            renamed: Mutex::default(),
            refused: Mutex::default(),
            in_place,
            bar: Progress::new("restoring"),
            total,
        }
    }

    /// Adds the next file.
    pub(super) fn push(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    /// The last file.
    pub(super) fn last(&mut self) -> Option<&mut Slot> {
        self.slots.last_mut()
    }

    /// Forgets the files before this number.
    pub(super) fn forget(&mut self, first: usize) {
        self.slots.drain(..(first - self.first).min(self.slots.len()));
        self.first = first;
    }

    /// Gives the directory of the file that goes on a number among those of the next window.
    pub(super) fn number_again(
        &mut self,
        number: &mut dyn FnMut(&Files, &Entry) -> Result<usize>,
    ) -> Result<()> {
        let Slots { slots, files, .. } = self;
        for slot in slots {
            slot.directory = number(files, &slot.entry)?;
        }
        Ok(())
    }

    /// So much of what was wanted is there.
    pub(super) fn went_on(&self, bytes: u64) {
        // Holes make this sum as large as anybody likes.
        let add = |done: u64| Some(done.saturating_add(bytes));
        let before = self.counts.bytes.fetch_update(Relaxed, Relaxed, add).unwrap_or_default();
        self.bar.set(before.saturating_add(bytes), self.total);
    }

    fn slot(&self, number: usize) -> Result<&Slot> {
        let slot = number.checked_sub(self.first).and_then(|n| self.slots.get(n));
        slot.ok_or_else(|| Error::new(Kind::InvalidInput, "a range of no file"))
    }

    /// Does something for a file. An error that concerns it alone is told, and the others go on.
    fn of_file(&self, number: usize, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let slot = self.slot(number)?;
        if slot.state.lock().is_refused {
            return Ok(());
        }
        let Err(error) = work() else { return Ok(()) };
        if !is_of_entry(&error, self.in_place) {
            return Err(error);
        }
        let was_refused = std::mem::replace(&mut slot.state.lock().is_refused, true);
        if !was_refused {
            self.refuse(&slot.entry, &error);
            self.refused.lock().insert(slot.link);
            self.set_aside(slot);
        }
        self.open.lock().files.remove(&number);
        Ok(())
    }

    /// What is there of a file that can't be restored whole does not keep its name.
    fn set_aside(&self, slot: &Slot) {
        if slot.state.lock().made.is_none() {
            return;
        }
        // What can't be renamed has mode 0600, as the message above tells that it is not restored.
        if let Ok(named) = self.files.damaged(slot.directory, &slot.entry) {
            let named = String::from_utf8_lossy(&named);
            tracing::warn!("what could be written of it is '{named}'");
        }
    }

    /// Removes the new files that are not whole: nothing more will be written.
    pub(super) fn give_up(&self) {
        for slot in &self.slots {
            let state = slot.state.lock();
            if let Some(made) = state.made
                && !state.is_old
                && !state.is_finished
                && !state.is_refused
            {
                self.files.remove(slot.directory, &slot.entry, made);
            }
        }
    }

    /// Tells of an entry that is not restored.
    pub(super) fn refuse(&self, entry: &Entry, error: &Error) {
        self.counts.refused.fetch_add(1, Relaxed);
        tracing::warn!("not restored: '{}': {error}", String::from_utf8_lossy(&entry.path));
    }

    fn names(&self, slot: &Slot) -> impl Fn(usize) -> Option<Vec<u8>> {
        move |n| self.names.path(slot.link, n)
    }

    /// Keeps a file open.
    fn keep(&self, number: usize, file: File) -> Arc<File> {
        let file = Arc::new(file);
        let mut open = self.open.lock();
        open.files.insert(number, file.clone());
        open.order.push_back(number);
        while open.order.len() > OPEN
            && let Some(old) = open.order.pop_front()
        {
            open.files.remove(&old);
        }
        file
    }

    /// A file, open for writing; it is made if it isn't there.
    fn file(&self, number: usize) -> Result<Arc<File>> {
        let slot = self.slot(number)?;
        let mut state = slot.state.lock();
        if let Some(file) = self.open.lock().files.get(&number) {
            return Ok(file.clone());
        }
        let file = match state.made {
            Some(made) => self.files.open_again(slot.directory, &slot.entry, made)?,
            None => {
                let (file, made) = self.files.make(slot.directory, &slot.entry)?;
                state.made = Some(made);
                file
            }
        };
        Ok(self.keep(number, file))
    }

    /// The old file that is there and stays, if there is one.
    fn old(&self, number: usize) -> Result<Option<Arc<File>>> {
        let slot = self.slot(number)?;
        let mut state = slot.state.lock();
        if !state.is_looked {
            state.is_looked = true;
            // One that goes on from the last window was made there.
            if state.made.is_none()
                && let Some((file, made)) =
                    self.files.old(slot.directory, &slot.entry, &self.names(slot))?
            {
                (state.made, state.is_old) = (Some(made), true);
                return Ok(Some(self.keep(number, file)));
            }
        }
        let is_old = state.is_old;
        drop(state);
        if is_old { self.file(number).map(Some) } else { Ok(None) }
    }
}

impl RestoreTarget for Slots {
    fn read(&self, number: usize, at: u64, into: &mut [u8]) -> Result<usize> {
        let mut old = None;
        self.of_file(number, || {
            old = self.old(number)?;
            Ok(())
        })?;
        let Some(file) = old else { return Ok(0) };
        loop {
            match file.read_at(into, at) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // What can't be read is written.
                read => return Ok(read.unwrap_or(0)),
            }
        }
    }

    fn stays(&self, _: usize, bytes: u64) {
        self.counts.kept.fetch_add(bytes, Relaxed);
        self.went_on(bytes);
    }

    fn begin(&self, number: usize, is_written: bool) -> Result<()> {
        self.of_file(number, || self.begin_one(number, is_written))
    }

    fn begun(&self) -> Result<()> {
        // Else a power cut could leave new bytes under the old mode and time.
        for number in std::mem::take(&mut *self.unsynced.lock()).into_values() {
            self.files.sync(&self.slot(number)?.entry, &*self.file(number)?)?;
        }
        for number in self.first..self.first + self.slots.len() {
            self.of_file(number, || self.begun_one(number))?;
        }
        Ok(())
    }

    fn write(&self, number: usize, at: u64, bytes: &[u8]) -> Result<()> {
        self.of_file(number, || self.write_one(number, at, bytes))?;
        self.went_on(bytes.len() as u64);
        Ok(())
    }

    fn finish(&self, number: usize, lost: Option<Error>) -> Result<()> {
        self.of_file(number, || self.finish_one(number, lost))
    }
}

impl Slots {
    fn begin_one(&self, number: usize, is_written: bool) -> Result<()> {
        let Some(file) = self.old(number)? else { return Ok(()) };
        let slot = self.slot(number)?;
        let mut state = slot.state.lock();
        if state.is_shut {
            return Ok(());
        }
        let metadata = file.metadata().map_err(|e| wrong(&slot.entry, e))?;
        let mut changes = is_written || metadata.len() != slot.bytes;
        let mut known = Known::default();
        for gaps in together(&slot.gaps) {
            changes = changes || !are_gaps(&*file, metadata.len(), gaps, &mut known)?;
        }
        if changes {
            self.files.shut(&slot.entry, &file, &self.names(slot))?;
            state.is_shut = true;
            self.unsynced.lock().insert(metadata.dev(), number);
        }
        Ok(())
    }

    fn begun_one(&self, number: usize) -> Result<()> {
        let slot = self.slot(number)?;
        if !slot.state.lock().is_shut {
            return Ok(());
        }
        let file = self.file(number)?;
        let metadata = file.metadata().map_err(|e| wrong(&slot.entry, e))?;
        if metadata.len() != slot.bytes {
            file.set_len(slot.bytes).map_err(|e| wrong(&slot.entry, e))?;
        }
        let mut known = Known::default();
        for gaps in together(&slot.gaps) {
            if !are_gaps(&*file, slot.bytes, gaps, &mut known)? {
                clear(&*file, gaps)?;
            }
        }
        Ok(())
    }

    fn write_one(&self, number: usize, at: u64, bytes: &[u8]) -> Result<()> {
        let (slot, file) = (self.slot(number)?, self.file(number)?);
        if bytes.len() >= TINY_BYTES || slot.bytes < FILE_BYTES {
            let _no_tiny_ones = slot.tiny.read();
            return write_part(&file, at, bytes);
        }
        let mut tiny = slot.tiny.write();
        if tiny.take(at, bytes) { tiny.write(&*file) } else { Ok(()) }
    }

    fn finish_one(&self, number: usize, lost: Option<Error>) -> Result<()> {
        let (slot, file) = (self.slot(number)?, self.file(number)?);
        slot.tiny.write().write(&*file)?;
        let (is_old, is_shut) = {
            let state = slot.state.lock();
            (state.is_old, state.is_shut)
        };
        if !is_old && (slot.ends_in_gap || lost.is_some()) {
            file.set_len(slot.bytes).map_err(|e| wrong(&slot.entry, e))?;
        }
        let path = String::from_utf8_lossy(&slot.entry.path);
        match lost {
            Some(error) => {
                let named = self.files.damaged(slot.directory, &slot.entry)?;
                tracing::warn!("'{}' lacks what is lost: {error}", String::from_utf8_lossy(&named));
                self.counts.damaged.fetch_add(1, Relaxed);
                self.renamed.lock().insert(slot.link, named);
            }
            None => {
                if slot.is_in_part {
                    tracing::warn!("'{path}' could not be read to its end when it was stored");
                    self.counts.in_part.fetch_add(1, Relaxed);
                }
                // What is as it was keeps its time of change too.
                let is_same = is_old && !is_shut && self.files.is_finished(&slot.entry, &file);
                if !is_same {
                    self.files.finish(&slot.entry, &file, is_old && !is_shut)?;
                }
            }
        }
        slot.state.lock().is_finished = true;
        self.open.lock().files.remove(&number);
        Ok(())
    }
}

fn wrong(entry: &Entry, error: std::io::Error) -> Error {
    let path = String::from_utf8_lossy(&entry.path);
    Error::from_io(format_args!("the length of {} can't be set", path.escape_debug()), error)
}
