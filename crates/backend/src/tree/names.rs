//! The names of a directory, in order and in bounded memory.
//!
//! A user chooses how many names a directory has and how long they are. Names that do not fit into
//! memory are sorted run by run, and the runs lie in a file without a name of its own, one for all
//! directories of a walk. A walk leaves the directories that it entered last first, so the file is a
//! stack, and shrinks as the walk leaves them.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    ffi::{OsStr, OsString},
    fs::File,
    os::unix::{ffi::OsStrExt, fs::FileExt},
};

use onefold_core::{Error, Result};

use crate::scratch::scratch;

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) name: OsString,
    /// It may be a directory: the listing said so, or nothing.
    pub(super) may_be_directory: bool,
}

/// This bit of a length says that the name may be one of a directory.
const DIRECTORY: u16 = 1 << 15;

/// Bytes of one name beside its letters: its length, and its place in a run.
const BESIDE: usize = 2 + 4;

/// Bytes of a run that are read at once. The longest name of Linux has 255.
const READ_BYTES: usize = 4 << 10;

/// Limits of the memory for the names of directories, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct NamesMemory {
    /// Names of a directory that are sorted in memory at once.
    pub run: usize,
    /// Names of all directories on the way to where a walk is that stay in memory.
    pub held: usize,
}

impl Default for NamesMemory {
    fn default() -> NamesMemory {
        NamesMemory { run: 16 << 20, held: 32 << 20 }
    }
}

/// The memory, and the file, for the names of all directories that a walk is in.
#[derive(Default)]
pub(super) struct Space {
    limits: NamesMemory,
    held: usize,
    file: Option<File>,
    /// Bytes of the file that count.
    end: u64,
}

/// The rest of the names of a directory.
pub(super) struct Names {
    rest: Rest,
    /// Bytes of memory that they count for.
    held: usize,
    /// Where the file ended before them.
    begin: u64,
}

enum Rest {
    Held(Run, usize),
    Spilled { runs: Vec<Spilled>, next: BinaryHeap<Reverse<(Name, usize)>> },
}

/// Names in memory, in order once they are sorted.
#[derive(Default)]
struct Run {
    /// Each name behind its length.
    bytes: Vec<u8>,
    places: Vec<u32>,
}

/// A sorted run in the file.
struct Spilled {
    at: u64,
    end: u64,
    read: Vec<u8>,
    used: usize,
}

impl Run {
    fn name(&self, n: usize) -> Option<(&[u8], bool)> {
        name_at(&self.bytes, *self.places.get(n)? as usize)
    }

    fn size(&self) -> usize {
        self.bytes.len() + 4 * self.places.len()
    }

    fn push(&mut self, name: &[u8], may_be_directory: bool) {
        self.places.push(self.bytes.len() as u32);
        encode(name, may_be_directory, &mut self.bytes);
    }

    /// Puts the names in order, each one once: a directory that is changed while it is listed may
    /// give one twice.
    fn sort(&mut self) {
        let Run { bytes, places } = self;
        let name = |at: u32| name_at(bytes, at as usize).map(|(name, _)| name);
        places.sort_unstable_by(|&one, &other| name(one).cmp(&name(other)));
        places.dedup_by(|later, before| name(*later) == name(*before));
    }
}

fn encode(name: &[u8], may_be_directory: bool, into: &mut Vec<u8>) {
    // Linux has no longer names.
    let name = &name[..name.len().min(usize::from(DIRECTORY - 1))];
    let bit = if may_be_directory { DIRECTORY } else { 0 };
    into.extend_from_slice(&(name.len() as u16 | bit).to_le_bytes());
    into.extend_from_slice(name);
}

/// The name behind its length at a place, and whether it may be one of a directory.
fn name_at(bytes: &[u8], at: usize) -> Option<(&[u8], bool)> {
    let (length, rest) = bytes.get(at..)?.split_first_chunk()?;
    let length = u16::from_le_bytes(*length);
    Some((rest.get(..usize::from(length & !DIRECTORY))?, length & DIRECTORY != 0))
}

fn owned((name, may_be_directory): (&[u8], bool)) -> Name {
    Name { name: OsStr::from_bytes(name).to_owned(), may_be_directory }
}

impl Space {
    pub(super) fn new(limits: NamesMemory) -> Space {
        Space { limits, ..Space::default() }
    }

    /// Takes the names of a directory, in any order, each with whether it may be one of a directory.
    ///
    /// # Errors
    /// The errors of `names`, and those of the file.
    pub(super) fn collect<E: From<Error>>(
        &mut self,
        mut each: impl FnMut() -> Option<std::result::Result<(Vec<u8>, bool), E>>,
    ) -> std::result::Result<Names, E> {
        let (mut run, mut runs, begin) = (Run::default(), Vec::new(), self.end);
        let taken = loop {
            let Some(name) = each() else { break Ok(()) };
            let (name, may_be_directory) = match name {
                Ok(name) => name,
                Err(error) => break Err(error),
            };
            if run.size() + name.len() + BESIDE > self.limits.run
                && !run.places.is_empty()
                && let Err(error) = self.spill(&mut run, &mut runs)
            {
                break Err(error.into());
            }
            run.push(&name, may_be_directory);
        };
        let made = taken.and_then(|()| Ok(self.end_names(run, runs, begin)?));
        if made.is_err() {
            self.end = begin;
        }
        made
    }

    fn end_names(&mut self, mut run: Run, mut runs: Vec<Spilled>, begin: u64) -> Result<Names> {
        run.sort();
        let held = run.size();
        if runs.is_empty() && self.held + held <= self.limits.held {
            run.bytes.shrink_to_fit();
            run.places.shrink_to_fit();
            self.held += held;
            return Ok(Names { rest: Rest::Held(run, 0), held, begin });
        }
        self.spill(&mut run, &mut runs)?;
        let mut next = BinaryHeap::new();
        for (n, run) in runs.iter_mut().enumerate() {
            if let Some(name) = run.next(self.file.as_ref())? {
                next.push(Reverse((name, n)));
            }
        }
        Ok(Names { rest: Rest::Spilled { runs, next }, held: 0, begin })
    }

    fn spill(&mut self, run: &mut Run, runs: &mut Vec<Spilled>) -> Result<()> {
        run.sort();
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(scratch().map_err(|e| {
                e.context(
                    "a file for the names of a large directory can't be made; TMPDIR says where",
                )
            })?),
        };
        let mut sorted = Vec::with_capacity(run.bytes.len());
        for n in 0..run.places.len() {
            let (name, may_be_directory) = run.name(n).unwrap_or_default();
            encode(name, may_be_directory, &mut sorted);
        }
        file.write_all_at(&sorted, self.end).map_err(unwritten)?;
        let (at, end) = (self.end, self.end + sorted.len() as u64);
        runs.push(Spilled { at, end, read: Vec::new(), used: 0 });
        self.end = end;
        *run = Run::default();
        Ok(())
    }

    /// The next name of a directory.
    ///
    /// # Errors
    /// Those of the file; the directory has no more names then.
    pub(super) fn next(&self, names: &mut Names) -> Result<Option<Name>> {
        match &mut names.rest {
            Rest::Held(run, at) => {
                let name = run.name(*at).map(owned);
                *at += 1;
                Ok(name)
            }
            Rest::Spilled { runs, next } => {
                let Some(Reverse((name, mut from))) = next.pop() else { return Ok(None) };
                loop {
                    match runs.get_mut(from).map(|run| run.next(self.file.as_ref())).transpose() {
                        Ok(Some(Some(following))) => next.push(Reverse((following, from))),
                        Ok(_) => {}
                        Err(error) => {
                            next.clear();
                            return Err(error);
                        }
                    }
                    // The same name in another run.
                    match next.peek() {
                        Some(Reverse((other, run))) if other.name == name.name => from = *run,
                        _ => return Ok(Some(name)),
                    }
                    next.pop();
                }
            }
        }
    }

    /// The walk leaves a directory, the one that it entered last.
    pub(super) fn leave(&mut self, names: &Names) {
        self.held -= names.held;
        if names.begin < self.end {
            self.end = names.begin;
            // Only space is at stake: what lies behind the end is written again.
            if let Some(file) = &self.file {
                let _ = file.set_len(self.end);
            }
        }
    }
}

impl Names {
    /// So many of the names that follow in memory, from the one after `skipped` others on, and
    /// whether each may be one of a directory.
    pub(super) fn following(
        &self,
        skipped: usize,
        most: usize,
    ) -> impl Iterator<Item = (&OsStr, bool)> {
        let (run, from) = match &self.rest {
            Rest::Held(run, at) => (Some(run), at + skipped),
            Rest::Spilled { .. } => (None, 0),
        };
        let all =
            run.into_iter().flat_map(move |run| (from..from + most).map_while(|n| run.name(n)));
        all.map(|(name, may_be_directory)| (OsStr::from_bytes(name), may_be_directory))
    }

    /// Nothing is left of them.
    pub(super) fn clear(&mut self) {
        self.rest = Rest::Held(Run::default(), 0);
    }

    /// One name is left of them.
    pub(super) fn only(&mut self, name: &[u8]) {
        let mut run = Run::default();
        run.push(name, true);
        self.rest = Rest::Held(run, 0);
    }
}

impl Spilled {
    fn next(&mut self, file: Option<&File>) -> Result<Option<Name>> {
        loop {
            if let Some(name) = name_at(&self.read, self.used) {
                self.used += 2 + name.0.len();
                return Ok(Some(owned(name)));
            }
            let Some(file) = file.filter(|_| self.at < self.end) else { return Ok(None) };
            self.read.drain(..self.used);
            self.used = 0;
            let most = READ_BYTES.min(usize::try_from(self.end - self.at).unwrap_or(READ_BYTES));
            let held = self.read.len();
            self.read.resize(held + most, 0);
            file.read_exact_at(&mut self.read[held..], self.at).map_err(unwritten)?;
            self.at += most as u64;
        }
    }
}

fn unwritten(error: std::io::Error) -> Error {
    Error::from_io("the names of a large directory can't be kept in a file", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(space: &mut Space, all: &[String]) -> Names {
        let all = all.iter().chain(all.iter().take(1));
        let mut all =
            all.map(|name| Ok::<_, Error>((name.clone().into_bytes(), name.len() % 2 == 0)));
        space.collect(|| all.next()).unwrap()
    }

    fn rest(space: &Space, names: &mut Names) -> Vec<String> {
        std::iter::from_fn(|| space.next(names).unwrap())
            .map(|one| {
                assert_eq!(one.may_be_directory, one.name.len() % 2 == 0);
                one.name.into_string().unwrap()
            })
            .collect()
    }

    #[test]
    fn names_come_in_order_from_memory_and_from_the_file() {
        for limits in [
            NamesMemory::default(),
            NamesMemory { run: 300, held: 1 << 20 },
            NamesMemory { run: 40_000, held: 0 },
            NamesMemory { run: 1, held: 0 },
        ] {
            let mut space = Space::new(limits);
            let all: Vec<String> = (0..700u64)
                .map(|n| format!("{:x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
                .collect();
            let mut sorted = all.clone();
            sorted.sort();
            let mut outer = taken(&mut space, &all);
            assert_eq!(space.next(&mut outer).unwrap().unwrap().name, OsString::from(&sorted[0]));
            let following: Vec<_> = outer.following(2, 3).map(|(name, _)| name.to_str()).collect();
            assert!(
                following.is_empty()
                    || following
                        .into_iter()
                        .eq(sorted[3..6].iter().map(|name| Some(name.as_str())))
            );
            assert!(outer.following(698, 3).count() <= 1 && outer.following(699, 3).count() == 0);
            let mut inner = taken(&mut space, &all[..350]);
            assert_eq!(rest(&space, &mut inner).len(), 350);
            space.leave(&inner);
            assert_eq!(rest(&space, &mut outer), sorted[1..]);
            space.leave(&outer);
            assert_eq!((space.held, space.end), (0, 0));
            assert!(space.file.is_none_or(|file| file.metadata().unwrap().len() == 0));
        }
    }

    #[test]
    fn directories_on_the_way_share_the_memory() {
        let mut space = Space::new(NamesMemory { run: 1 << 20, held: 10_000 });
        let all: Vec<String> = (0..500).map(|n| format!("{n:04}")).collect();
        let (one, other) = (taken(&mut space, &all), taken(&mut space, &all));
        let (third, mut fourth) = (taken(&mut space, &all), taken(&mut space, &[]));
        assert!(space.held <= 10_000 && space.end > 0);
        assert_eq!(rest(&space, &mut fourth), Vec::<String>::new());
        for names in [fourth, third, other, one] {
            space.leave(&names);
        }
        assert_eq!((space.held, space.end), (0, 0));
    }
}
