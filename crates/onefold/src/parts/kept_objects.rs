//! What this host keeps of objects in object stores, so that its next process does not ask for them again.
//!
//! Each part of an object is a file in `objects` below `$CACHE_DIRECTORY`, `$XDG_CACHE_HOME/onefold` or
//! `~/.cache/onefold`, for this user alone. The crate of buckets compares each one with its hash. All of it may be
//! lost at any time, and whatever is wrong with the directory costs requests and fails nothing. Where together they
//! have more than the limit, those go that nobody used for longest.
//!
//! Checking, scrubbing and repairing look at the store, and so use none of it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use onefold_bucket::Keep;
use parking_lot::Mutex;

use super::user_directory::user_directory;

/// Bytes that are kept when nobody says how many.
const LIMIT: u64 = 1 << 30;

/// Most bytes of one file.
const FILE_MAX: u64 = 128 << 20;

/// A file that was used says so once in this time.
const USED_EVERY: Duration = Duration::from_secs(24 * 3600);

/// A file without a name of its own is a killed process's after this time.
const UNFINISHED: Duration = Duration::from_secs(3600);

/// Programs that make backups leave a directory out that has this file.
const TAG: (&str, &str) = ("CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n");

/// Begins the names of files that are being written.
const WRITING: &str = "writing-";

static LIMIT_GIVEN: OnceLock<u64> = OnceLock::new();

/// Set while this process looks at stores themselves.
static STORES_ALONE: AtomicBool = AtomicBool::new(false);

/// Sets how many bytes this host keeps of objects in object stores; with 0 it keeps none. The command calls this once,
/// before it opens anything; later calls change nothing.
pub fn limit_to(bytes: u64) {
    let _ = LIMIT_GIVEN.set(bytes);
}

/// From now on this process reads all from the stores themselves, as who checks them.
pub(super) fn look_at_stores_alone() {
    STORES_ALONE.store(true, Relaxed);
}

/// The directory of this user, unless nothing is to be kept.
pub(super) fn of_this_user() -> Option<Arc<dyn Keep>> {
    let limit = *LIMIT_GIVEN.get().unwrap_or(&LIMIT);
    let places =
        [("CACHE_DIRECTORY", ""), ("XDG_CACHE_HOME", "onefold"), ("HOME", ".cache/onefold")];
    let at = user_directory(&places)?.join("objects");
    (limit > 0).then(|| Arc::new(KeptObjects::new(at, limit)) as Arc<dyn Keep>)
}

/// A directory of parts of objects.
struct KeptObjects {
    at: PathBuf,
    limit: u64,
    /// Bytes of all files, once they were counted.
    used: Mutex<Option<u64>>,
    written: AtomicU64,
    /// The directory takes nothing more.
    is_full: AtomicBool,
}

impl KeptObjects {
    fn new(at: PathBuf, limit: u64) -> KeptObjects {
        let (used, written, is_full) = Default::default();
        KeptObjects { at, limit, used, written, is_full }
    }

    fn read(&self, name: &str) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(self.at.join(name))?;
        let stat = file.metadata()?;
        if !stat.is_file() || stat.len() > FILE_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::with_capacity(stat.len() as usize);
        Read::by_ref(&mut file).take(FILE_MAX).read_to_end(&mut bytes)?;
        if stat.modified()?.elapsed().is_ok_and(|unused| unused > USED_EVERY) {
            // Somebody else's file system may refuse it: then it goes sooner.
            let _ = file.set_modified(SystemTime::now());
        }
        Ok(bytes)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let mut used = self.used.lock();
        let before = match *used {
            Some(before) => before,
            None => {
                DirBuilder::new().recursive(true).mode(0o700).create(&self.at)?;
                let tag = self.at.join(TAG.0);
                if !tag.exists() {
                    fs::write(tag, TAG.1)?;
                }
                files(&self.at)?.iter().map(|file| file.bytes).sum()
            }
        };
        let wanted = before + bytes.len() as u64;
        *used =
            Some(if wanted > self.limit { self.make_room(bytes.len() as u64)? } else { wanted });
        drop(used);
        let number = self.written.fetch_add(1, Relaxed);
        let unfinished = self.at.join(format!("{WRITING}{}-{number}", std::process::id()));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| fs::rename(&unfinished, self.at.join(name)));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    /// Removes the files that were not used for longest, until three quarters of the limit are left with `more` bytes.
    /// Returns what there is then.
    fn make_room(&self, more: u64) -> std::io::Result<u64> {
        let mut all = files(&self.at)?;
        all.sort_by_key(|file| file.used);
        let mut used = more + all.iter().map(|file| file.bytes).sum::<u64>();
        for file in all {
            let is_left =
                file.is_unfinished && file.used.elapsed().is_ok_and(|unused| unused > UNFINISHED);
            if is_left || !file.is_unfinished && used > self.limit / 4 * 3 {
                match fs::remove_file(&file.path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error);
                    }
                    _ => used -= file.bytes,
                }
            }
        }
        Ok(used)
    }
}

impl Keep for KeptObjects {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        if STORES_ALONE.load(Relaxed) { None } else { self.read(name).ok() }
    }

    fn store(&self, name: &str, bytes: &[u8]) {
        if self.is_full.load(Relaxed) || bytes.len() as u64 > FILE_MAX.min(self.limit / 4) {
            return;
        }
        if let Err(error) = self.write(name, bytes) {
            tracing::debug!("nothing more is kept in {}: {error}", self.at.display());
            self.is_full.store(true, Relaxed);
        }
    }
}

/// A file of the directory.
struct Kept {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
    is_unfinished: bool,
}

fn files(at: &Path) -> std::io::Result<Vec<Kept>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(at)? {
        let entry = entry?;
        let name = entry.file_name();
        // It may have gone since.
        let Ok(stat) = entry.metadata() else { continue };
        if stat.is_file() && name != TAG.0 {
            let is_unfinished = name.to_string_lossy().starts_with(WRITING);
            let (bytes, used) = (stat.len(), stat.modified()?);
            all.push(Kept { path: entry.path(), bytes, used, is_unfinished });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_43_what_is_kept_is_bounded_and_what_was_used_stays() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("objects");
        let kept = KeptObjects::new(at.clone(), 100_000);
        let long_ago = SystemTime::now() - 10 * USED_EVERY;
        for n in 0..10 {
            kept.store(&format!("{n:032x}"), &[n; 10_000]);
            let file = File::options().write(true).open(at.join(format!("{n:032x}"))).unwrap();
            file.set_modified(long_ago + Duration::from_secs(n.into())).unwrap();
        }
        assert_eq!(kept.load(&format!("{:032x}", 0)).unwrap(), [0; 10_000]);
        kept.store(&format!("{:032x}", 10), &[10; 10_000]);
        let there = |n: u8| kept.load(&format!("{n:032x}")).is_some();
        assert!(there(0) && there(10) && !there(1) && !there(3) && there(9));
        let bytes: u64 = files(&at).unwrap().iter().map(|file| file.bytes).sum();
        assert!(bytes <= 75_000, "{bytes}");
        // What takes more than a quarter is not kept.
        kept.store("ff", &[1; 25_001]);
        assert!(kept.load("ff").is_none());
    }

    #[test]
    fn rule_43_a_directory_that_can_not_be_written_fails_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("objects");
        fs::write(&at, "a file").unwrap();
        let kept = KeptObjects::new(at, 100_000);
        kept.store("00", &[1; 100]);
        assert!(kept.load("00").is_none());
    }
}
