//! What must be undone however a run ends: on return, on failure, and on Ctrl-C or SIGTERM.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

type Action = Box<dyn FnOnce() + Send>;

static PENDING: Mutex<BTreeMap<u64, Action>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Undoes something when it is dropped, or when a signal ends the run.
#[must_use]
pub(crate) struct Guard(u64);

impl Guard {
    /// A guard that runs `action` once.
    pub(crate) fn new(action: impl FnOnce() + Send + 'static) -> Guard {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        pending().insert(number, Box::new(action));
        Guard(number)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let action = pending().remove(&self.0);
        if let Some(action) = action {
            action();
        }
    }
}

fn pending() -> std::sync::MutexGuard<'static, BTreeMap<u64, Action>> {
    PENDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// From now on signals undo what is pending, the newest first, and end the process.
pub(crate) fn on_signals() -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("xtask: interrupted, cleaning up");
            loop {
                let newest = pending().pop_last();
                match newest {
                    Some((_, action)) => action(),
                    None => std::process::exit(128 + signal),
                }
            }
        }
    });
    Ok(())
}

/// A directory under `target/` that is removed with all that is in it.
pub(crate) struct Scratch {
    path: PathBuf,
    _guard: Guard,
}

impl Scratch {
    /// A new directory whose name begins with `name`. Directories that a killed run left behind are removed first.
    pub(crate) fn new(name: &str) -> Result<Scratch> {
        let parent = crate::machine::root().join("target").join("scratch");
        fs::create_dir_all(&parent).with_context(|| format!("creating {}", parent.display()))?;
        // Who runs a cluster stops it first, by its process ids there.
        for left in Scratch::left_behind("").into_iter().filter(|left| name == "ceph" || !left.join("c/ceph.conf").exists()) {
            let _ = fs::remove_dir_all(left);
        }
        let path = parent.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        let removed = path.clone();
        let guard = Guard::new(move || {
            let _ = fs::remove_dir_all(removed);
        });
        Ok(Scratch { path, _guard: guard })
    }

    /// Directories of runs that were killed, of those whose name begins so.
    pub(crate) fn left_behind(name: &str) -> Vec<PathBuf> {
        let parent = crate::machine::root().join("target").join("scratch");
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let is_left = |entry: &fs::DirEntry| {
            let file = entry.file_name();
            let pid = file.to_str().filter(|file| file.starts_with(name)).and_then(|file| file.rsplit_once('-')?.1.parse::<u32>().ok());
            pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
        };
        entries.filter(is_left).map(|entry| entry.path()).collect()
    }

    /// A path in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
