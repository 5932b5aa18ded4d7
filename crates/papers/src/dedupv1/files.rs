//! Files in memory that count what they are asked for, and remember it in the order in which it
//! came when that is wanted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::Mutex;

/// The requests to files of one kind. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
    /// Writes that did not begin where the file ended.
    pub(super) scattered_writes: u64,
    pub(super) syncs: u64,
}

impl Asked {
    /// The requests since `before`.
    pub(super) fn since(&self, before: &Asked) -> Asked {
        Asked {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            written_bytes: self.written_bytes - before.written_bytes,
            scattered_writes: self.scattered_writes - before.scattered_writes,
            syncs: self.syncs - before.syncs,
        }
    }
}

/// A change of the files, or what makes changes durable.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Name(String, Option<u64>),
    SyncNames,
    Write(u64, u64, Vec<u8>),
    Length(u64, u64),
    Punch(u64, u64, u64),
    Sync(u64),
}

/// Names and contents.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub(super) names: BTreeMap<String, u64>,
    pub(super) contents: BTreeMap<u64, Vec<u8>>,
}

type Content = Arc<Mutex<Arc<Vec<u8>>>>;

#[derive(Default)]
struct State {
    names: BTreeMap<String, u64>,
    contents: BTreeMap<u64, Content>,
    next: u64,
    locks: BTreeMap<String, Vec<(u64, Hold)>>,
    /// By what comes before the number in a name: `index`, `segment`, `log`.
    asked: BTreeMap<String, Asked>,
    journal: Option<Vec<Step>>,
}

/// Files in memory.
#[derive(Clone, Default)]
pub(crate) struct MemoryFiles(Arc<Mutex<State>>);

impl MemoryFiles {
    /// The same files, apart from now on. Contents are shared until they change.
    pub(super) fn fork(&self) -> MemoryFiles {
        let state = self.0.lock();
        let contents = state
            .contents
            .iter()
            .map(|(&id, content)| (id, Arc::new(Mutex::new(content.lock().clone()))));
        let forked = State {
            names: state.names.clone(),
            contents: contents.collect(),
            next: state.next,
            ..State::default()
        };
        MemoryFiles(Arc::new(Mutex::new(forked)))
    }

    /// Files as an image has them.
    pub(super) fn of(image: Image) -> MemoryFiles {
        let next = image.contents.keys().last().map_or(1, |last| last + 1);
        let contents = image
            .contents
            .into_iter()
            .map(|(id, bytes)| (id, Arc::new(Mutex::new(Arc::new(bytes)))));
        MemoryFiles(Arc::new(Mutex::new(State {
            names: image.names,
            contents: contents.collect(),
            next,
            ..State::default()
        })))
    }

    /// Remembers steps from now on.
    pub(super) fn remember(&self) {
        self.0.lock().journal = Some(Vec::new());
    }

    /// Steps remembered so far.
    pub(super) fn remembered(&self) -> usize {
        self.0.lock().journal.as_ref().map_or(0, Vec::len)
    }

    /// All steps that were remembered.
    pub(super) fn journal(&self) -> Vec<Step> {
        self.0.lock().journal.take().unwrap_or_default()
    }

    /// The requests to files whose names begin with `kind`.
    pub(super) fn asked(&self, kind: &str) -> Asked {
        self.0.lock().asked.get(kind).copied().unwrap_or_default()
    }

    fn file(&self, state: &State, name: &str) -> Result<Arc<dyn File>> {
        let not_there = || Error::new(Kind::NotFound, format!("{name} is not there"));
        let id = *state.names.get(name).ok_or_else(not_there)?;
        let content = state.contents.get(&id).ok_or_else(not_there)?.clone();
        let kind = name.split_once('-').map_or(name, |(kind, _)| kind).to_owned();
        Ok(Arc::new(MemoryFile { files: Arc::downgrade(&self.0), id, kind, content }))
    }
}

impl State {
    fn note(&mut self, step: impl FnOnce() -> Step) {
        if let Some(journal) = &mut self.journal {
            journal.push(step());
        }
    }
}

impl Files for MemoryFiles {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let mut state = self.0.lock();
        if state.names.contains_key(name) {
            return Err(Error::new(Kind::Exists, format!("{name} is there")));
        }
        let id = state.next;
        state.next += 1;
        state.names.insert(name.to_owned(), id);
        state.contents.insert(id, Arc::default());
        state.note(|| Step::Name(name.to_owned(), Some(id)));
        self.file(&state, name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.file(&self.0.lock(), name)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut state = self.0.lock();
        let id = state
            .names
            .remove(name)
            .ok_or_else(|| Error::new(Kind::NotFound, format!("{name} is not there")))?;
        state.contents.remove(&id);
        state.note(|| Step::Name(name.to_owned(), None));
        Ok(())
    }

    fn sync_names(&self) -> Result<()> {
        self.0.lock().note(|| Step::SyncNames);
        Ok(())
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        let mut state = self.0.lock();
        let id = state.next;
        state.next += 1;
        let holders = state.locks.entry(name.to_owned()).or_default();
        if !holders.iter().all(|(_, held)| hold == Hold::Shared && *held == Hold::Shared) {
            // One thread works here: it would wait for itself.
            let what = if wait { "is held by who waits for it" } else { "is locked" };
            return Err(Error::new(Kind::Busy, format!("{name} {what}")));
        }
        holders.push((id, hold));
        Ok(Box::new(MemoryLock { files: self.clone(), name: name.to_owned(), id }))
    }
}

struct MemoryLock {
    files: MemoryFiles,
    name: String,
    id: u64,
}

impl Lock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        if let Some(holders) = self.files.0.lock().locks.get_mut(&self.name) {
            holders.retain(|(id, _)| *id != self.id);
        }
    }
}

struct MemoryFile {
    files: Weak<Mutex<State>>,
    id: u64,
    kind: String,
    content: Content,
}

impl MemoryFile {
    fn count(&self, counts: impl FnOnce(&mut Asked), step: impl FnOnce() -> Option<Step>) {
        let Some(files) = self.files.upgrade() else { return };
        let mut state = files.lock();
        if !state.asked.contains_key(&self.kind) {
            state.asked.insert(self.kind.clone(), Asked::default());
        }
        if let Some(asked) = state.asked.get_mut(&self.kind) {
            counts(asked);
        }
        if let Some(journal) = &mut state.journal {
            journal.extend(step());
        }
    }
}

impl File for MemoryFile {
    fn bytes(&self) -> Result<u64> {
        Ok(self.content.lock().len() as u64)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let content = self.content.lock().clone();
        let from = content.get(at as usize..).unwrap_or_default();
        let n = from.len().min(into.len());
        into[..n].copy_from_slice(&from[..n]);
        self.count(
            |asked| {
                asked.reads += 1;
                asked.read_bytes += n as u64;
            },
            || None,
        );
        Ok(n)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        let scattered = {
            let mut content = self.content.lock();
            let content = Arc::make_mut(&mut content);
            let (at, end) = (at as usize, at as usize + data.len());
            let scattered = at != content.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[at..end].copy_from_slice(data);
            scattered
        };
        self.count(
            |asked| {
                asked.writes += 1;
                asked.written_bytes += data.len() as u64;
                asked.scattered_writes += u64::from(scattered);
            },
            || Some(Step::Write(self.id, at, data.to_vec())),
        );
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.count(|asked| asked.syncs += 1, || Some(Step::Sync(self.id)));
        Ok(())
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        Arc::make_mut(&mut self.content.lock()).resize(bytes as usize, 0);
        self.count(|_| {}, || Some(Step::Length(self.id, bytes)));
        Ok(())
    }

    fn reserve(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        punch(Arc::<Vec<u8>>::make_mut(&mut self.content.lock()), at, bytes);
        self.count(|_| {}, || Some(Step::Punch(self.id, at, bytes)));
        Ok(())
    }
}

fn punch(content: &mut [u8], at: u64, bytes: u64) {
    let end = ((at + bytes) as usize).min(content.len());
    if (at as usize) < end {
        content[at as usize..end].fill(0);
    }
}

impl Image {
    /// Does a step. A sync changes nothing.
    pub(super) fn apply(&mut self, step: &Step) {
        match step {
            Step::Name(name, Some(id)) => {
                self.names.insert(name.clone(), *id);
                self.contents.entry(*id).or_default();
            }
            Step::Name(name, None) => {
                self.names.remove(name);
            }
            Step::Write(id, at, data) => self.write(*id, *at, data),
            Step::Length(id, bytes) => {
                self.contents.entry(*id).or_default().resize(*bytes as usize, 0)
            }
            Step::Punch(id, at, bytes) => punch(self.contents.entry(*id).or_default(), *at, *bytes),
            Step::Sync(_) | Step::SyncNames => {}
        }
    }

    /// Writes a part of a file.
    pub(super) fn write(&mut self, id: u64, at: u64, data: &[u8]) {
        let content = self.contents.entry(id).or_default();
        let end = at as usize + data.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[at as usize..end].copy_from_slice(data);
    }
}

impl From<&MemoryFiles> for Image {
    fn from(files: &MemoryFiles) -> Image {
        let state = files.0.lock();
        let contents =
            state.contents.iter().map(|(&id, content)| (id, content.lock().as_ref().clone()));
        Image { names: state.names.clone(), contents: contents.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_of_files_holds() {
        onefold_testbed::contract::files::hold(&MemoryFiles::default());
    }

    #[test]
    fn what_is_asked_is_counted_and_remembered() {
        let files = MemoryFiles::default();
        files.remember();
        let file = files.create("index-7").unwrap();
        file.write_at(0, &[1; 10]).unwrap();
        file.write_at(10, &[2; 10]).unwrap();
        file.write_at(5, &[3; 2]).unwrap();
        file.sync().unwrap();
        let mut bytes = [0; 30];
        assert_eq!(file.read_at(4, &mut bytes).unwrap(), 16);
        let asked = files.asked("index");
        assert_eq!(
            asked,
            Asked {
                reads: 1,
                read_bytes: 16,
                writes: 3,
                written_bytes: 22,
                scattered_writes: 1,
                syncs: 1
            }
        );
        let fork = files.fork();
        fork.open("index-7").unwrap().write_at(0, &[9]).unwrap();
        assert_eq!((file.read_at(0, &mut bytes[..1]).unwrap(), bytes[0]), (1, 1));
        let mut again = Image::default();
        files.journal().iter().for_each(|step| again.apply(step));
        assert_eq!(again.contents, Image::from(&files).contents);
    }
}
