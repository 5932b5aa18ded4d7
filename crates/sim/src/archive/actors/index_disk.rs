//! The chunk index on a disk of its own, which goes, comes back, is full, takes no writes, is replaced
//! by an empty one, or by an older copy of itself. Whatever it does, nothing is lost and nobody hears of
//! an error; what was stored is found again by the next ingesting process.

use std::{collections::BTreeSet, sync::Arc};

use onefold_archive::{Archive, IndexDirectory, lost_index_files, make_chunk_index_whole};
use onefold_core::{Error, Files, Kind};
use onefold_testbed::{
    Rng, VirtualFiles,
    files::{Mount, MountCopy},
};

use crate::archive::run::{Flow, Sim};

/// The directory among all files.
pub(crate) const NAME: &str = "fast";

/// The disk of the chunk index.
pub(crate) struct IndexDisk {
    pub(crate) mount: Mount,
    rng: Rng,
    /// What it had once.
    copy: Option<MountCopy>,
}

impl IndexDisk {
    pub(crate) fn new(files: &VirtualFiles, seed: u64) -> IndexDisk {
        let rng = Rng::new(seed ^ 0x696e_6465_785f_6f66);
        IndexDisk { mount: Mount::new(files, NAME), rng, copy: None }
    }

    /// The directory, for who opens the archive; nothing where it is not there to be opened. A
    /// directory may also go between a look at it and its first use.
    pub(crate) fn directories(&mut self) -> Vec<IndexDirectory> {
        if self.mount.is_gone() && self.rng.percent(50) {
            return Vec::new();
        }
        vec![IndexDirectory::new(Arc::new(self.mount.clone()), |_: &Error| {})]
    }
}

impl Sim {
    /// Now and then something happens to the disk of the index, whatever is under way.
    pub(crate) fn index_disk_move(&mut self) {
        let Some(disk) = &mut self.index_disk else { return };
        if !disk.rng.percent(6) {
            return;
        }
        let on = disk.rng.percent(60);
        let what = match disk.rng.below(4) {
            0 | 1 => {
                disk.mount.set_gone(on);
                "the disk of the index went"
            }
            2 => {
                disk.mount.set_full(on);
                "the disk of the index was full"
            }
            _ => {
                disk.mount.set_read_only(on);
                "the disk of the index took no writes"
            }
        };
        self.say(|| format!("{what}: {on}"));
        if on {
            self.reach.hit(what);
        }
    }

    /// No process is there: the disk works again in most cases, and may be another one.
    pub(crate) fn change_index_disk(&mut self) {
        let Some(disk) = &mut self.index_disk else { return };
        if disk.rng.percent(75) {
            disk.work();
        }
        let what = match disk.rng.below(10) {
            0 | 1 => {
                disk.mount.put_back(&MountCopy::default());
                "an empty disk of the index"
            }
            2 | 3 => {
                let Some(copy) = &disk.copy else { return };
                disk.mount.put_back(copy);
                "an older disk of the index"
            }
            _ => return,
        };
        self.say(|| what.into());
        self.reach.hit(what);
    }

    /// The disk works as it should, until the end.
    pub(crate) fn mend_index_disk(&mut self) {
        if let Some(disk) = &mut self.index_disk {
            disk.work();
        }
    }

    /// Whoever ingests next makes a lost index anew, and then nothing of it is lost.
    pub(crate) fn make_index_whole(&mut self, archive: &Arc<Archive>) -> Flow {
        if self.index_disk.is_none() || self.actors.serving.is_some() {
            return Ok(());
        }
        match make_chunk_index_whole(archive, &mut |_, _| {}) {
            Ok(None) => {}
            Ok(Some(_)) => self.reach.hit("a lost index was made anew"),
            // A disk without room for an index.
            Err(error) if error.kind() == Kind::NoSpace => return Ok(()),
            Err(error) => return Err(self.judge("make the index anew", &error)),
        }
        match lost_index_files(archive) {
            Ok(0) => self.copy_index_disk(archive),
            Ok(_) => {}
            Err(error) => return Err(self.judge("look for the index", &error)),
        }
        Ok(())
    }

    /// Now and then a copy is kept, of nothing but what the tables name.
    fn copy_index_disk(&mut self, archive: &Arc<Archive>) {
        let Some(disk) = &mut self.index_disk else { return };
        if !disk.rng.percent(30) {
            return;
        }
        let named: BTreeSet<String> = archive
            .tables()
            .index
            .files
            .iter()
            .map(|file| format!("index-{:010}", file.number))
            .collect();
        let all_named = disk
            .mount
            .names()
            .is_ok_and(|names| !names.is_empty() && names.iter().all(|name| named.contains(name)));
        if all_named {
            disk.copy = Some(disk.mount.copy());
        }
    }
}

impl IndexDisk {
    fn work(&self) {
        self.mount.set_gone(false);
        self.mount.set_full(false);
        self.mount.set_read_only(false);
    }
}
