//! A file with a copy on each of the first `2f + 1` nodes: log, tables, index.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use onefold_core::{Error, File, Files, Kind, Result};
use parking_lot::Mutex;

use super::{
    label::{CURSOR, NODE},
    redundancy,
    shared::{FoundCopy, Reached, Shared, bits, too_few},
};
use crate::{
    format::{
        frame::Frame,
        label::find_label,
        log_reader::{Behind, LogReader},
        names::{LABEL, RESERVE, is_index, is_segment, log_name},
    },
    memory::Drawn,
};

/// Bytes copied at once.
const STEP: usize = 1 << 20;

/// Bytes that a disk can't read at once, at most, when one sector is bad.
const PAGE: usize = 4096;

/// Bytes that a file of the tables may have in holes; no program makes any.
const HOLES_MAX: u64 = 1 << 30;

/// Bytes for each that a file occupies, on a file system that compresses.
const EXPANDED_MAX: u64 = 16;

/// Makes the file on all copies.
///
/// # Errors
/// `Exists` when it is there on a copy on this host, or on more copies than hosts may lie; `NoSpace`; those of too few
/// copies.
pub(super) fn create(shared: &Arc<Shared>, name: &str) -> Result<Arc<dyn File>> {
    let (mut copies, mut taken) = (BTreeMap::new(), Vec::new());
    let (far, here): (Vec<usize>, Vec<usize>) =
        shared.writable_copies()?.into_iter().partition(|&n| shared.is_far(n));
    for n in here.into_iter().chain(far) {
        match shared.directory(n)?.create(name) {
            Ok(file) => drop(copies.insert(n, file)),
            Err(error) if error.kind() == Kind::Exists => {
                taken.push(n);
                if !shared.is_far(n) || taken.len() > shared.code.parity() {
                    return Err(error);
                }
            }
            Err(error) => drop(shared.failed(n, error)?),
        }
    }
    // A crash may have left it there alone, and what few other hosts say is there keeps no name.
    for n in taken {
        let files = shared.directory(n)?;
        match files.remove(name).and_then(|()| files.create(name)) {
            Ok(file) => drop(copies.insert(n, file)),
            Err(error) => drop(shared.failed(n, error)?),
        }
    }
    shared.writable_copies()?;
    Ok(Arc::new(Copies {
        shared: shared.clone(),
        name: name.to_owned(),
        copies: Mutex::new(copies),
    }))
}

/// Opens the file on the copy that is read; on others when they are written.
pub(super) fn open(shared: &Arc<Shared>, name: &str) -> Result<Arc<dyn File>> {
    let copies = Copies { shared: shared.clone(), name: name.to_owned(), copies: Mutex::default() };
    loop {
        let primary = shared.primary()?;
        match copies.copy(primary) {
            Err(error) if error.kind() != Kind::NotFound => shared.lose(primary),
            // A file that the primary does not have does not exist.
            opened => return opened.map(|_| Arc::new(copies) as Arc<dyn File>),
        }
    }
}

struct Copies {
    shared: Arc<Shared>,
    name: String,
    copies: Mutex<BTreeMap<usize, Arc<dyn File>>>,
}

impl Copies {
    /// The copy on a node.
    fn copy(&self, n: usize) -> Result<Arc<dyn File>> {
        if let Some(file) = self.copies.lock().get(&n) {
            return Ok(file.clone());
        }
        let file = self.shared.directory(n)?.open(&self.name)?;
        self.copies.lock().insert(n, file.clone());
        Ok(file)
    }

    /// Does it on all copies. A node that fails, or lost the file, is left out.
    fn all(&self, does: impl Fn(&dyn File) -> Result<()>) -> Result<()> {
        let (mut done, mut last) = (0, None);
        for n in self.shared.writable_copies()? {
            match self.copy(n).and_then(|file| does(&*file)) {
                Ok(()) => done += 1,
                Err(error) => last = Some(self.shared.failed(n, error)?),
            }
        }
        if done < self.shared.quorum() {
            return Err(last.unwrap_or_else(|| too_few(done, self.shared.quorum())));
        }
        Ok(())
    }

    /// Asks the primary; when that fails, the next one is.
    fn any<T>(&self, mut does: impl FnMut(&dyn File) -> Result<T>) -> Result<T> {
        loop {
            let primary = self.shared.primary()?;
            match self.copy(primary).and_then(|file| does(&*file)) {
                Ok(found) => return Ok(found),
                Err(_) => self.shared.lose(primary),
            }
        }
    }
}

impl File for Copies {
    fn bytes(&self) -> Result<u64> {
        self.any(|file| file.bytes())
    }

    fn occupied(&self) -> Result<u64> {
        self.any(|file| file.occupied())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.any(|file| file.read_at(at, into))
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.all(|file| file.write_at(at, data))
    }

    fn sync(&self) -> Result<()> {
        self.all(|file| file.sync())
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.all(|file| file.set_bytes(bytes))
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        self.all(|file| file.reserve(at, bytes))
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.all(|file| file.punch(at, bytes))
    }
}

/// Finds out how far each copy is after a crash, and reads the farthest that is believed from now
/// on. The commit lock is held.
///
/// A copy on another host may be forged. It is believed alone where no copy without damage is on this host; otherwise
/// only when more copies have its last change than hosts may lie. A change is acknowledged when every copy that
/// counts has it, so the copy that is read instead lacks none that was.
pub(super) fn compare(shared: &Shared) -> Result<()> {
    let mut found = Vec::new();
    for node in bits(shared.here() & shared.copies_mask()) {
        let files = shared.directory(node)?;
        let mut changes = HashMap::new();
        let mut keep = |frame: &Frame<'_>| {
            // Without other hosts copies need not be compared change by change.
            if shared.far != 0 {
                changes.insert(frame.sequence, frame.checksum);
            }
        };
        // Copies with a damaged label are behind all others, and no copy to believe.
        let told = how_far(shared, &**files, &mut keep);
        let (reached, is_damaged) = told.unwrap_or_else(|_| (Reached::default(), true));
        found.push((FoundCopy { node, reached, is_damaged }, changes));
    }
    let believed = believed(&found, shared.far, shared.code.parity());
    let mut copies: Vec<FoundCopy> = found.into_iter().map(|(copy, _)| copy).collect();
    // Of copies that reach equally far, one without damage lacks nothing.
    copies.sort_by_key(|copy| {
        let is_believed = believed >> copy.node & 1 == 1;
        (!is_believed, Reverse(copy.reached.0), copy.is_damaged)
    });
    let mut state = shared.state.lock();
    if let Some(first) = copies.first() {
        (state.primary, state.read_from) = (first.node, first.node);
        let ahead = copies.iter().filter(|copy| is_ahead(copy, first));
        state.ahead = ahead.fold(0, |mask, copy| mask | 1 << copy.node);
        state.missed |= state.ahead;
    }
    state.copies = copies;
    Ok(())
}

/// The copies that are read first: those on this host, and those that have the support of others; all of them where
/// none of these is without damage. The map has the checksum of each change that a copy's log has.
fn believed(found: &[(FoundCopy, HashMap<u64, u64>)], far: u64, parity: usize) -> u64 {
    let has = |other: &(FoundCopy, HashMap<u64, u64>), copy: &FoundCopy| {
        let ((_, last), (label, _, checksum)) = &copy.reached;
        other.0.reached.1.0 == *label && (*last == 0 || other.1.get(last) == Some(checksum))
    };
    let (mut all, mut some, mut is_whole) = (0, 0, false);
    for (copy, _) in found {
        let support = found.iter().filter(|other| has(other, copy)).count();
        all |= 1 << copy.node;
        if far >> copy.node & 1 == 0 || !copy.is_damaged && support > parity {
            some |= 1 << copy.node;
            is_whole |= !copy.is_damaged;
        }
    }
    if is_whole { some } else { all }
}

/// True when a copy has more before another one than a crash leaves there: one change, or one new
/// log. Nothing is written over it then, since the other one may be an old copy.
fn is_ahead(copy: &FoundCopy, of: &FoundCopy) -> bool {
    let ((log, last), (of_log, of_last)) = (copy.reached.0, of.reached.0);
    log > of_log.saturating_add(1) || log == of_log && last > of_last.saturating_add(1)
}

/// Gives the copies what they lack of the one that is read. Its tables were read before, so damage
/// of one copy is never written over others. The commit lock is held.
pub(super) fn level(shared: &Shared) -> Result<()> {
    let (best, others) = {
        let state = shared.state.lock();
        let from = state.read_from;
        if state.primary != from || state.readable() >> from & 1 == 0 {
            let why = format!("node {from} failed while its tables were read");
            return Err(Error::new(Kind::Corrupt, why));
        }
        // They stay until all are level: on a full disk this is tried again.
        // One that is further than those that are believed stays as it is.
        let is_kept = |copy: &&FoundCopy| state.ahead >> copy.node & 1 == 1;
        let (mut best, others): (Vec<FoundCopy>, Vec<FoundCopy>) = state
            .copies
            .iter()
            .filter(|copy| !is_kept(copy))
            .cloned()
            .partition(|copy| copy.node == from);
        let Some(best) = best.pop() else { return Ok(()) };
        (best, others)
    };
    let source = &**shared.directory(best.node)?;
    let behind = |copy: &&FoundCopy| copy.is_damaged || copy.reached != best.reached;
    let behind: Vec<&FoundCopy> = others.iter().filter(behind).collect();
    if !behind.is_empty() {
        // A source that fails half way would leave a copy that is neither the old nor the new one.
        read_all(source).map_err(|error| unreadable(best.node, &error))?;
    }
    for copy in behind {
        match copy_all(source, &**shared.directory(copy.node)?) {
            Err(Failed::Target(error)) => drop(shared.failed(copy.node, error)?),
            Err(Failed::Source(error)) => {
                shared.lose(copy.node);
                return Err(unreadable(best.node, &error));
            }
            Ok(()) => {}
        }
    }
    shared.leave_out_missed()?;
    shared.state.lock().copies.clear();
    Ok(())
}

/// How far a copy reaches, and whether later changes lie behind a damaged one.
fn how_far(
    shared: &Shared,
    files: &dyn Files,
    keep: &mut dyn FnMut(&Frame<'_>),
) -> Result<(Reached, bool)> {
    let label = find_label(files)?;
    let log = files.open(&log_name(label.snapshot))?;
    let mut frames = LogReader::new(&*log, 0, Drawn::free())?;
    let (mut end, mut chain) = (0, None);
    while let Some((frame, before)) = frames.frame(&shared.identity, true)? {
        if chain.is_some_and(|(sequence, checksum): (u64, u64)| {
            (sequence.checked_add(1), checksum) != (Some(frame.sequence), before)
        }) {
            break;
        }
        keep(&frame);
        chain = Some((frame.sequence, frame.checksum));
        let bytes = frame.bytes;
        end += bytes;
        frames.pass(bytes);
    }
    let (last, checksum) = chain.unwrap_or_default();
    let is_damaged = frames.behind(&shared.identity, last)? != Behind::End;
    Ok((((label.generation, last), (label.encode(&shared.identity)?, end, checksum)), is_damaged))
}

/// Makes bytes of a file durable on all copies that have them; true when a change needs no more
/// copies than these, or no more are there.
pub(super) fn keeps(shared: &Shared, name: &str, at: u64, bytes: &[u8]) -> Result<bool> {
    let here: Vec<usize> = bits(shared.here() & shared.copies_mask()).collect();
    let mut keeping = 0;
    for &n in &here {
        keeping += u32::from({
            let file = shared.directory(n)?.open(name);
            file.and_then(|file| file.keeps(at, bytes)).unwrap_or(false)
        });
    }
    Ok(keeping >= shared.quorum().min(here.len() as u32))
}

/// True when as many copies as a change needs have these bytes, which were just written; the others
/// lost the write, and are left out.
pub(super) fn reads_back(shared: &Shared, name: &str, at: u64, bytes: &[u8]) -> Result<bool> {
    let copies = shared.writable_copies()?;
    let whole = |n: usize| -> Result<bool> {
        redundancy::has(&*shared.directory(n)?.open(name)?, at, bytes)
    };
    let (have, lack): (Vec<usize>, Vec<usize>) =
        copies.into_iter().partition(|&n| whole(n).unwrap_or(false));
    if (have.len() as u32) < shared.quorum() {
        return Ok(false);
    }
    lack.into_iter().for_each(|n| shared.lose(n));
    Ok(true)
}

/// True for files that processes only lock.
fn is_lock(name: &str) -> bool {
    name.starts_with("lock-") || name.starts_with("epoch-")
}

/// True for files whose damaged pages cost no data: readers of chunk index and usage counts see by
/// the checksum that a page is none, and make the content anew; nobody reads the reserve.
fn is_derived(name: &str) -> bool {
    is_index(name) || name.starts_with("counts-") || name == RESERVE
}

/// True for log and tables, and for the files that are locks.
fn has_copies(name: &str) -> bool {
    !is_segment(name) && name != NODE && name != CURSOR
}

fn unreadable(node: usize, error: &Error) -> Error {
    Error::new(Kind::Corrupt, format!("node {node}: its copy of the log or the tables: {error}"))
}

/// Reads all that [`copy_all`] must be able to read.
fn read_all(from: &dyn Files) -> Result<()> {
    let mut buffer = vec![0; STEP];
    for name in from.names()?.into_iter().filter(|name| has_copies(name) && !is_lock(name)) {
        let file = from.open(&name)?;
        let (bytes, mut at) = (copied_bytes(&*file)?, 0);
        while at < bytes && !is_derived(&name) {
            match file.read_at(at, &mut buffer)? {
                0 => break,
                n => at += n as u64,
            }
        }
    }
    Ok(())
}

/// The side that failed while a copy was made.
#[derive(Debug)]
pub(crate) enum Failed {
    Source(Error),
    Target(Error),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        match failed {
            Failed::Source(error) | Failed::Target(error) => error,
        }
    }
}

/// Copies log and tables to another node; durable on return. The label comes last. What can't be
/// read of [derived](is_derived) files is zeroes in the copy.
pub(crate) fn copy_all(from: &dyn Files, to: &dyn Files) -> std::result::Result<(), Failed> {
    let wanted = |name: &String| has_copies(name);
    let mut names: Vec<String> =
        from.names().map_err(Failed::Source)?.into_iter().filter(wanted).collect();
    let old: Vec<String> = to.names().map_err(Failed::Target)?.into_iter().filter(wanted).collect();
    names.sort_by_key(|name| (name == LABEL, name.clone()));
    for name in old.iter().filter(|name| !names.contains(name)) {
        to.remove(name).map_err(Failed::Target)?;
    }
    for name in &names {
        let target = match to.open(name) {
            Err(error) if error.kind() == Kind::NotFound => to.create(name),
            opened => opened,
        };
        let target = target.map_err(Failed::Target)?;
        if !is_lock(name) {
            if name == LABEL {
                to.sync_names().map_err(Failed::Target)?;
            }
            let source = from.open(name).map_err(Failed::Source)?;
            copy(&*source, &*target, is_derived(name))?;
        }
    }
    to.sync_names().map_err(Failed::Target)
}

/// The bytes of a file that is to be copied. Holes would be written as zeroes, until the other disk
/// is full.
fn copied_bytes(file: &dyn File) -> Result<u64> {
    let bytes = file.bytes()?;
    if bytes > HOLES_MAX && bytes - HOLES_MAX > file.occupied()?.saturating_mul(EXPANDED_MAX) {
        let why = format!("a file of the tables has {bytes} bytes, nearly all of them holes");
        return Err(Error::new(Kind::Corrupt, why));
    }
    Ok(bytes)
}

/// Copies a file; durable on return. With `holes`, pages that can't be read become zeroes.
fn copy(from: &dyn File, to: &dyn File, holes: bool) -> std::result::Result<(), Failed> {
    let bytes = copied_bytes(from).map_err(Failed::Source)?;
    let (mut at, mut buffer) = (0, vec![0; STEP]);
    to.set_bytes(bytes).map_err(Failed::Target)?;
    while at < bytes {
        let n = match from.read_at(at, &mut buffer) {
            Err(error) if holes && error.kind() == Kind::Io => {
                let length = (bytes - at).min(STEP as u64) as usize;
                read_pages(from, at, &mut buffer[..length])
            }
            read => read,
        };
        let n = n.map_err(Failed::Source)?;
        if n == 0 {
            break;
        }
        to.write_at(at, &buffer[..n]).map_err(Failed::Target)?;
        at += n as u64;
    }
    to.sync().map_err(Failed::Target)
}

/// Reads page by page; those that can't be read are zeroes.
fn read_pages(from: &dyn File, at: u64, into: &mut [u8]) -> Result<usize> {
    for (n, page) in into.chunks_mut(PAGE).enumerate() {
        match from.read_at(at + (n * PAGE) as u64, page) {
            Err(error) if error.kind() == Kind::Io => page.fill(0),
            read => drop(read?),
        }
    }
    Ok(into.len())
}

#[cfg(test)]
mod tests {
    use onefold_backend::Directory;

    use super::*;

    #[test]
    fn rule_09_a_file_of_holes_is_not_copied_to_another_node() {
        let dir = tempfile::tempdir().unwrap();
        let node = |name: &str| Directory::create(&dir.path().join(name)).unwrap();
        let (from, to) = (node("from"), node("to"));
        from.create("counts-0000000001").unwrap().write_at(0, &[7; 10_000]).unwrap();
        copy_all(&from, &to).unwrap();
        assert_eq!(to.open("counts-0000000001").unwrap().bytes().unwrap(), 10_000);
        from.create("index-0000000001").unwrap().set_bytes(8 << 40).unwrap();
        let unread = read_all(&from).unwrap_err();
        assert_eq!(unread.kind(), Kind::Corrupt, "found out before anything is copied: {unread}");
        let error = Error::from(copy_all(&from, &to).unwrap_err());
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert!(to.open("index-0000000001").unwrap().bytes().unwrap() == 0);
    }
}
