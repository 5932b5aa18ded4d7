//! Entries on their way out: directories, links and devices are made as the walk meets them, files
//! by windows.

use std::{collections::HashMap, sync::Arc};

use onefold_archive::{
    Archive, Part, RestoreTarget, RestoreWindow, TreeEntry, TreeReader, TreeWhat, Verify,
};
use onefold_backend::tree::Restorer;
use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What},
};

use super::{
    gaps::{Gap, HOLE_BYTES},
    paths::{Name, Paths},
    sizes::AllNames,
    slots::{Slot, Slots},
    walk::{LINKED_MAX, Pending, Visitor, is_of_entry, plain},
};

/// Directories that a window remembers at most.
const DIRECTORIES_MAX: usize = 1 << 16;

/// Memory for a gap between ranges of a file.
const GAP_BYTES: usize = 24;

/// How files are written.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    pub(super) verify: Verify,
    pub(super) in_place: bool,
    /// Memory for a window.
    pub(super) memory: usize,
}

/// Writes what is wanted.
pub(super) struct Writing {
    pub(super) restorer: Restorer,
    pub(super) slots: Slots,
    window: RestoreWindow,
    in_place: bool,
    /// Directories that lead to what is wanted, and are not made yet.
    pending: Pending,
    /// The first restored name of a file with several.
    first: HashMap<u64, Name>,
    paths: Paths,
    /// Further names that wait for the first one: the directory's number, and the number of the
    /// file.
    links: Vec<(usize, u64, Entry)>,
    pub(super) entries: u64,
}

impl Writing {
    pub(super) fn new(
        archive: &Arc<Archive>,
        reader: &TreeReader,
        restorer: Restorer,
        manner: Manner,
        (names, total): (AllNames, u64),
    ) -> Result<Writing> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let Manner { verify, in_place, memory } = manner;
        let of = (reader.tables(), &reader.domain()?);
        Ok(Writing {
            slots: Slots::new(restorer.files(), names, total, in_place),
            window: RestoreWindow::new(archive, of, (verify, in_place), memory, threads),
            restorer,
            in_place,
            pending: Pending::default(),
            first: HashMap::new(),
            paths: Paths::default(),
            links: Vec::new(),
            entries: 0,
        })
    }

    /// Writes the window, then the further names of its files.
    pub(super) fn write(&mut self) -> Result<()> {
        self.window.write(&self.slots as &dyn RestoreTarget)?;
        let mut links = std::mem::take(&mut self.links);
        // Those whose first names lie beside each other, deep in the tree, follow each other.
        links.sort_by_key(|(_, link, _)| self.first.get(link).map(Name::directory));
        for (directory, link, mut entry) in links {
            let damaged = self.slots.renamed.lock().get(&link).cloned();
            let first = || self.first.get(&link).map(|first| self.paths.path(first));
            let Some(target) = damaged.clone().or_else(first) else { continue };
            let target = &target;
            // A note of it knows it as a name of another file.
            entry.what = What::HardLink { target: Vec::new() };
            if self.slots.refused.lock().contains(&link) {
                let why = Error::new(Kind::Unsupported, "its first name was not restored");
                self.slots.refuse(&entry, &why);
                continue;
            }
            match self.slots.files.link(directory, &entry, target) {
                Err(error) if is_of_entry(&error, self.in_place) => {
                    self.slots.refuse(&entry, &error);
                    continue;
                }
                linked => linked?,
            }
            if damaged.is_some() {
                let named = self.slots.files.damaged(directory, &entry)?;
                let [named, target] = [&named, target].map(|name| String::from_utf8_lossy(name));
                tracing::warn!("'{named}' lacks what is lost: it is another name of '{target}'");
                self.slots.counts.damaged.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        self.slots.files.forget_directories();
        self.slots.forget(self.window.files().start);
        let Writing { slots, restorer, .. } = self;
        slots.number_again(&mut |files, entry| restorer.number(files, entry))
    }

    fn is_full(&self) -> bool {
        self.window.is_full() || self.slots.files.directories() >= DIRECTORIES_MAX
    }

    fn file(&mut self, reader: &mut TreeReader, entry: Entry, node: &TreeEntry) -> Result<()> {
        let TreeWhat::File(bytes, map) = &node.what else { return Ok(()) };
        let directory = self.restorer.number(&self.slots.files, &entry)?;
        self.window.file(Slot::memory(&entry));
        self.slots.push(Slot {
            directory,
            entry,
            bytes: *bytes,
            link: node.link,
            is_in_part: node.is_in_part,
            gaps: Vec::new(),
            ends_in_gap: false,
            state: Default::default(),
            tiny: Default::default(),
        });
        let mut failed = None;
        let read = reader.map_pages(*bytes, map, &mut |_, parts| {
            parts.into_iter().for_each(|(at, part)| self.part(at, part));
            if self.is_full()
                && let Err(error) = self.write()
            {
                failed = Some(error);
                return Err(Error::new(Kind::Stopped, "the window could not be written"));
            }
            Ok(())
        });
        match (read, failed) {
            (_, Some(error)) => return Err(error),
            (Err(error), _) if error.kind() == Kind::Corrupt => self.window.lose(error),
            (read, _) => read?,
        }
        self.window.end_file();
        if self.is_full() { self.write() } else { Ok(()) }
    }

    fn part(&mut self, at: u64, part: Part) {
        let gap = match &part {
            Part::Zeroes(bytes) => Some((at, *bytes, false)),
            Part::Hole(bytes) => Some((at, *bytes, true)),
            _ => None,
        };
        if let Some(slot) = self.slots.last() {
            slot.ends_in_gap = gap.is_some();
            if self.in_place
                && let Some(gap) = gap
                && !goes_on(&mut slot.gaps, gap)
            {
                slot.gaps.push(gap);
                self.window.hold(GAP_BYTES);
            }
        }
        match gap {
            // A new file has a hole there already.
            Some((_, bytes, _)) => self.slots.went_on(bytes),
            None => self.window.part(at, part),
        }
    }
}

/// Makes the last gap longer by one that follows it, where that changes nothing: both are of one kind, or
/// one is too short for a hole.
fn goes_on(gaps: &mut [Gap], (at, bytes, is_hole): Gap) -> bool {
    let Some(last) = gaps.last_mut() else { return false };
    let is_next = last.0.saturating_add(last.1) == at;
    let is_one = last.2 == is_hole || last.1.min(bytes) < HOLE_BYTES;
    if is_next && is_one {
        (last.1, last.2) = (last.1.saturating_add(bytes), last.2 && is_hole);
    }
    is_next && is_one
}

impl Visitor for Writing {
    fn fails(&mut self, path: &[u8], error: Error) -> Result<()> {
        if !is_of_entry(&error, self.in_place) {
            return Err(error);
        }
        self.slots.counts.refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tracing::warn!("not restored: '{}': {error}", String::from_utf8_lossy(path));
        Ok(())
    }

    fn way(&mut self, _: &mut TreeReader, path: &[u8], entry: &TreeEntry) {
        self.pending.push(path, entry);
    }

    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], node: &TreeEntry) -> Result<()> {
        let (above, all) = self.pending.leading(path);
        for (length, node) in all {
            self.restorer.lead(&plain(reader, &above[..length], &node)?)?;
        }
        let entry = plain(reader, path, node)?;
        self.entries += 1;
        if node.link != 0 {
            match self.first.get(&node.link) {
                Some(_) => {
                    let directory = self.restorer.number(&self.slots.files, &entry)?;
                    self.window.hold(Slot::memory(&entry));
                    self.links.push((directory, node.link, entry));
                    return if self.is_full() { self.write() } else { Ok(()) };
                }
                None if self.first.len() < LINKED_MAX => {
                    // Where there is no room for it, further names are files of their own.
                    if let Some(name) = self.paths.add(path) {
                        self.first.insert(node.link, name);
                    }
                }
                None => {}
            }
        }
        match node.what {
            TreeWhat::File(..) => self.file(reader, entry, node),
            _ => self.restorer.make(&entry).map(|_| ()),
        }
    }
}
