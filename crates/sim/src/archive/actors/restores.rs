//! Snapshots restored in the order of places, killed, and repeated over what is there.

use std::{collections::BTreeMap, sync::Arc};

use onefold_archive::{
    Archive, Entries, RestoreTarget, RestoreWindow, Snapshot, SnapshotId, TreeReader, TreeWhat,
    Verify,
};
use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

use super::snapshots::Tree;
use crate::{
    archive::run::{Flow, Sim, Stop},
    checker::{Checker, Failure},
};

/// Files on the disk of a host: their content, and whether they look finished.
type Disk = BTreeMap<Vec<u8>, (Vec<u8>, bool)>;

/// A restore under way, on one thread.
struct Restoring<'a> {
    tree: &'a Tree,
    disk: Mutex<Disk>,
    /// The files by their numbers.
    paths: Mutex<Vec<Vec<u8>>>,
    /// Writes until it is killed.
    left: Mutex<u64>,
    kept: Mutex<u64>,
    lost: Mutex<Vec<Error>>,
    /// The first wrong thing that was seen.
    wrong: Mutex<Option<String>>,
}

impl Restoring<'_> {
    fn path(&self, file: usize) -> Vec<u8> {
        self.paths.lock().get(file).cloned().unwrap_or_default()
    }

    fn shown(&self, file: usize) -> String {
        String::from_utf8_lossy(&self.path(file)).into_owned()
    }

    fn is_wrong(&self, what: String) {
        self.wrong.lock().get_or_insert(what);
    }

    /// One step towards the kill.
    fn step(&self) -> Result<()> {
        let mut left = self.left.lock();
        *left = left.checked_sub(1).ok_or_else(|| Error::new(Kind::Stopped, "killed"))?;
        Ok(())
    }
}

impl RestoreTarget for Restoring<'_> {
    fn read(&self, file: usize, at: u64, into: &mut [u8]) -> Result<usize> {
        let disk = self.disk.lock();
        let old = disk.get(&self.path(file)).and_then(|(bytes, _)| bytes.get(at as usize..));
        let old = old.unwrap_or_default();
        let n = old.len().min(into.len());
        into[..n].copy_from_slice(&old[..n]);
        Ok(n)
    }

    fn stays(&self, _: usize, _: u64) {
        *self.kept.lock() += 1;
    }

    fn begin(&self, file: usize, is_written: bool) -> Result<()> {
        let path = self.path(file);
        if let Some((bytes, is_finished)) = self.disk.lock().get_mut(&path) {
            let length = self.tree.get(&path).map_or(0, |(_, content)| content.len());
            if is_written || bytes.len() != length {
                *is_finished = false;
            }
        }
        Ok(())
    }

    fn begun(&self) -> Result<()> {
        Ok(())
    }

    fn write(&self, file: usize, at: u64, bytes: &[u8]) -> Result<()> {
        self.step()?;
        let mut disk = self.disk.lock();
        let (content, is_finished) = disk.entry(self.path(file)).or_default();
        if *is_finished {
            self.is_wrong(format!("{} was finished before its last range", self.shown(file)));
        }
        let end = at as usize + bytes.len();
        content.resize(content.len().max(end), 0);
        content[at as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&self, file: usize, lost: Option<Error>) -> Result<()> {
        self.step()?;
        let path = self.path(file);
        let mut disk = self.disk.lock();
        let Some((_, expected)) = self.tree.get(&path) else {
            self.is_wrong("a file that nobody stored was restored".into());
            return Ok(());
        };
        if let Some(error) = lost {
            self.lost.lock().push(error);
            disk.remove(&path);
            return Ok(());
        }
        let (content, is_finished) = disk.entry(path).or_default();
        // Zeroes and holes are the caller's.
        content.resize(expected.len(), 0);
        *is_finished = true;
        if content[..] != expected[..] {
            self.is_wrong(format!("{} looks finished, and is another", self.shown(file)));
        }
        Ok(())
    }
}

impl Restoring<'_> {
    /// Restores all files of a snapshot.
    fn all(
        &self,
        archive: &Arc<Archive>,
        reader: &mut TreeReader,
        snapshot: &Snapshot,
        (memory, in_place): (usize, bool),
    ) -> Result<()> {
        let tables = reader.tables().clone();
        let manner = (Verify::Chunks, in_place);
        let root = reader.root(snapshot)?;
        let of = (&tables, &reader.domain()?);
        let mut window = RestoreWindow::new(archive, of, manner, memory, 1);
        let mut wanted = vec![(Vec::new(), root.directory)];
        while let Some((path, directory)) = wanted.pop() {
            let TreeWhat::Directory(top) = directory.what else { continue };
            let mut entries = Entries::new(top, None);
            while let Some((entry, _)) = entries.next(reader)? {
                let mut path = path.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&entry.name);
                let TreeWhat::File(bytes, map) = &entry.what else {
                    wanted.push((path, entry));
                    continue;
                };
                self.paths.lock().push(path.clone());
                window.file(0);
                let mut failed = None;
                let read = reader.map_pages(*bytes, map, &mut |_, parts| {
                    for (at, part) in parts {
                        self.gap(&path, at, &part);
                        window.part(at, part);
                    }
                    if window.is_full()
                        && let Err(error) = window.write(self)
                    {
                        failed = Some(error);
                        return Err(Error::new(Kind::Stopped, "killed"));
                    }
                    Ok(())
                });
                match (read, failed) {
                    (_, Some(error)) => return Err(error),
                    (Err(error), _) if error.kind() == Kind::Corrupt => window.lose(error),
                    (read, _) => read?,
                }
                window.end_file();
                if window.is_full() {
                    window.write(self)?;
                }
            }
        }
        window.write(self)
    }

    /// Zeroes and holes of a file that is there already.
    fn gap(&self, path: &[u8], at: u64, part: &onefold_archive::Part) {
        use onefold_archive::Part;
        let (Part::Zeroes(n) | Part::Hole(n)) = part else { return };
        if let Some((content, is_finished)) = self.disk.lock().get_mut(path) {
            let end = content.len().min((at + n) as usize);
            if let Some(gap) = content.get_mut(at as usize..end)
                && gap.iter().any(|&byte| byte != 0)
            {
                *is_finished = false;
                gap.fill(0);
            }
        }
    }
}

impl Sim {
    /// Restores a snapshot, perhaps killed; then somebody changes what is there, and it is repeated
    /// in place.
    pub(crate) fn restore_move(&mut self) -> Flow {
        let ids: Vec<[u8; 16]> = self.kept.keys().copied().collect();
        let Some(&id) = self.restores_rng.pick(&ids) else { return Ok(()) };
        let Some(kept) = self.kept.get(&id).cloned() else { return Ok(()) };
        let archive = self.open(false)?;
        let mut reader = TreeReader::new(&archive).map_err(|e| self.judge("reader", &e))?;
        let tables = reader.tables().clone();
        // One that is gone is looked at elsewhere.
        let Ok(snapshot) = tables.snapshots.get(SnapshotId(id)) else { return Ok(()) };
        let mut disk = Disk::new();
        for in_place in [false, true, true] {
            let memory = [1, 700, 5_000, 1 << 20][self.restores_rng.below(4) as usize];
            let left = match self.restores_rng.percent(40) {
                true => self.restores_rng.below(12),
                false => u64::MAX,
            };
            let restoring = Restoring {
                tree: &kept.tree,
                disk: Mutex::new(std::mem::take(&mut disk)),
                paths: Mutex::default(),
                left: Mutex::new(left),
                kept: Mutex::default(),
                lost: Mutex::default(),
                wrong: Mutex::default(),
            };
            let done = restoring.all(&archive, &mut reader, snapshot, (memory, in_place));
            if self.files.is_down() {
                return Err(Stop::Down);
            }
            if let Some(wrong) = restoring.wrong.into_inner() {
                return Err(Failure::new(Checker::NeverWrong, wrong).into());
            }
            if let Some(error) = restoring.lost.into_inner().first() {
                if !self.damaged {
                    let message = format!("a restore of snapshot {}: {error:?}", snapshot.id);
                    return Err(Failure::new(Checker::DurableSurvives, message).into());
                }
                self.reach.hit("a restore lost a file");
            }
            if *restoring.kept.lock() > 0 {
                self.reach.hit("a restore in place kept what was there");
            }
            disk = restoring.disk.into_inner();
            match done {
                Ok(()) if !self.damaged => {
                    let is_finished = |path| disk.get(path).is_some_and(|(_, finished)| *finished);
                    if let Some(path) = kept.tree.keys().find(|path| !is_finished(*path)) {
                        let path = String::from_utf8_lossy(path);
                        let message = format!("{path} was not restored");
                        return Err(Failure::new(Checker::DurableSurvives, message).into());
                    }
                }
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Stopped && left != u64::MAX => {
                    self.reach.hit("a restore was killed");
                }
                Err(error) if error.kind() == Kind::Corrupt && self.damaged => return Ok(()),
                Err(error) => {
                    let message = format!("a restore of snapshot {}: {error:?}", snapshot.id);
                    return Err(Failure::new(Checker::DurableSurvives, message).into());
                }
            }
            self.change_disk(&mut disk);
        }
        Ok(())
    }

    /// Somebody writes to restored files, cuts them, or removes them.
    fn change_disk(&mut self, disk: &mut Disk) {
        let paths: Vec<Vec<u8>> = disk.keys().cloned().collect();
        for _ in 0..self.restores_rng.below(3) {
            let Some(path) = self.restores_rng.pick(&paths).cloned() else { return };
            let Some((bytes, _)) = disk.get_mut(&path) else { continue };
            match self.restores_rng.below(4) {
                0 => drop(disk.remove(&path)),
                1 => bytes.truncate(self.restores_rng.below(bytes.len() as u64 + 1) as usize),
                2 => bytes.extend([7; 33]),
                _ if !bytes.is_empty() => {
                    let at = self.restores_rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1;
                }
                _ => {}
            }
        }
    }
}
