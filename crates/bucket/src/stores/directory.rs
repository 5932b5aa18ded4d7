//! Objects as files of a directory: on a disk, or on a file system of the network that has hard links.
//!
//! An object is written under a name of its own, synced, and linked to its name: linking fails when that is
//! there, on NFS too.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_core::{Error, Kind, Result};
use rustix::fs::OFlags;

use crate::{
    format::{Id, Sort, is_chance},
    objects::{Body, Created, Listed, Objects},
};

/// Files that are not objects yet.
const UNFINISHED: &str = "unfinished";

/// Objects of one page of a listing.
const PAGE: usize = 1000;

/// How old a file is that no process is writing any more: nobody writes one for so long.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// Objects as files of a directory.
pub struct DirectoryObjects {
    path: PathBuf,
    /// Begins the names of files that are not objects yet.
    own: String,
    next: AtomicU64,
}

impl DirectoryObjects {
    /// The objects in a directory that is there. `nonce` is chance that no other process draws.
    ///
    /// # Errors
    /// `NotFound` when there is no such directory, and those of the system.
    pub fn open(path: &Path, nonce: [u8; 16]) -> Result<DirectoryObjects> {
        let shown = path.display();
        let metadata = fs::metadata(path).map_err(|error| Error::from_io(path.display(), error))?;
        if !metadata.is_dir() {
            let why = format!("{shown} is no directory");
            return Err(Error::new(Kind::InvalidInput, why));
        }
        let own = onefold_core::hex_digits(nonce);
        Ok(DirectoryObjects { path: path.to_owned(), own, next: AtomicU64::new(0) })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn failed(&self, name: &str, error: std::io::Error) -> Error {
        Error::from_io(self.at(name).display(), error)
    }

    fn folder(&self, name: &str) -> std::io::Result<PathBuf> {
        let folder = match name.rsplit_once('/') {
            Some((folder, _)) => self.path.join(folder),
            None => self.path.clone(),
        };
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => File::open(&self.path)?.sync_all()?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(folder)
    }

    /// A file with these bytes, durable, that is not yet the object of this name.
    fn unfinished(&self, name: &str, bytes: &[u8]) -> std::io::Result<PathBuf> {
        let folder = self.folder(&format!("{UNFINISHED}/x"))?;
        let mut own = format!("{}-{}", self.own, self.next.fetch_add(1, Relaxed));
        // Who was killed and left keys in it is found by its name.
        if has_keys(name) {
            own = format!("{own}-{}", name.replace('/', "-"));
        }
        let path = folder.join(own);
        let mut options = File::options();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        match written {
            Ok(()) => Ok(path),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }
}

/// True for the name of an object with keys.
fn has_keys(name: &str) -> bool {
    Id::parse(name).is_some_and(|id| id.sort == Sort::Keys)
}

/// What a name says that [`DirectoryObjects::unfinished`] gives: the object with keys that it is to be, if that
/// is so; `None` for others' names.
fn unfinished_of(name: &str) -> Option<Option<Id>> {
    let (chance, rest) = name.split_once('-')?;
    let (number, of) = match rest.split_once('-') {
        Some((number, of)) => (number, Some(of)),
        None => (rest, None),
    };
    let parsed = number.parse::<u64>().ok().filter(|parsed| parsed.to_string() == number);
    parsed.filter(|_| is_chance(chance))?;
    match of.map(|of| of.replacen('-', "/", 1)) {
        Some(of) => has_keys(&of).then(|| Id::parse(&of)),
        None => Some(None),
    }
}

impl Objects for DirectoryObjects {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        let read = || {
            let mut options = File::options();
            // A pipe would hold up who opens it.
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let file = options.read(true).custom_flags(flags.bits() as i32).open(self.at(name))?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(std::io::Error::new(ErrorKind::InvalidData, "it is no file"));
            }
            let total = metadata.len();
            let there = total.saturating_sub(at).min(bytes);
            let mut into = vec![0; there as usize];
            file.read_exact_at(&mut into, at)?;
            let modified = u64::try_from(metadata.mtime()).unwrap_or(0);
            Ok(Body { bytes: into, total, modified })
        };
        read().map_err(|error| self.failed(name, error))
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        let unknown = |error| {
            let error = self.failed(name, error);
            // Nothing was made, and sending it again would not help.
            Created::Unknown(error)
        };
        let made = match self.unfinished(name, bytes) {
            Ok(made) => made,
            Err(error) => return unknown(error),
        };
        let linked = self.folder(name).and_then(|folder| {
            let linked = fs::hard_link(&made, self.at(name));
            // Another process may have linked it and not synced it yet: what is there must stay there.
            match &linked {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {}
                _ => File::open(folder)?.sync_all()?,
            }
            linked
        });
        let _ = fs::remove_file(&made);
        match linked {
            Ok(()) => Created::New,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Created::Exists,
            Err(error) => unknown(error),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let replaced = self.unfinished(name, bytes).and_then(|made| {
            let folder = self.folder(name)?;
            fs::rename(&made, self.at(name))?;
            File::open(folder)?.sync_all()
        });
        replaced.map_err(|error| self.failed(name, error))
    }

    fn delete(&self, name: &str) -> Result<()> {
        let removed = match fs::remove_file(self.at(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ if has_keys(name) => self.folder(name).and_then(|f| File::open(f)?.sync_all()),
            _ => Ok(()),
        };
        removed.map_err(|error| self.failed(name, error))
    }

    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>> {
        let entries = match fs::read_dir(self.at(folder)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.failed(folder, error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| self.failed(folder, error))?.file_name();
            let name = OsStr::as_bytes(&name);
            if let Ok(name) = std::str::from_utf8(name) {
                names.push(format!("{folder}{name}"));
            }
        }
        names.retain(|name| name.as_str() > after);
        names.sort_unstable();
        let mut listed = Vec::new();
        for name in names {
            match fs::symlink_metadata(self.at(&name)) {
                Ok(metadata) if !metadata.is_file() => {}
                Ok(metadata) => listed.push(Listed { name, bytes: metadata.len() }),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(self.failed(&name, error)),
            }
            if listed.len() == PAGE {
                break;
            }
        }
        Ok(listed)
    }

    fn drop_unfinished(&self, is_due: &dyn Fn(&str) -> bool) -> Result<()> {
        let drop = || -> std::io::Result<()> {
            let folder = self.folder(&format!("{UNFINISHED}/x"))?;
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let of = entry.file_name().to_str().and_then(unfinished_of).flatten();
                if of.is_some_and(|id| is_due(&id.to_string())) {
                    match fs::remove_file(entry.path()) {
                        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                }
            }
            // What creations removed there comes back with a power cut until then.
            File::open(folder)?.sync_all()
        };
        drop().map_err(|error| self.failed(UNFINISHED, error))
    }

    fn sweep(&self) -> Result<u64> {
        let failed = |error| self.failed(UNFINISHED, error);
        // The clock of the file system, which a host of the network may have.
        let own = self.unfinished("", b"now").map_err(failed)?;
        let now = fs::symlink_metadata(&own).and_then(|own| own.modified());
        fs::remove_file(&own).map_err(failed)?;
        let now = now.map_err(failed)?;
        let mut swept = 0;
        for entry in fs::read_dir(self.at(UNFINISHED)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let is_ours =
                entry.file_name().to_str().is_some_and(|name| unfinished_of(name).is_some());
            let left = fs::symlink_metadata(&path).ok().filter(|left| is_ours && left.is_file());
            let age = left.and_then(|left| now.duration_since(left.modified().ok()?).ok());
            if age.is_some_and(|age| age >= LEFT) && fs::remove_file(&path).is_ok() {
                swept += 1;
            }
        }
        Ok(swept)
    }
}
