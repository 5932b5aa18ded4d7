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
        for entry in fs::read_dir(&parent)?.flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.rsplit_once('-')?.1.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = parent.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        let removed = path.clone();
        let guard = Guard::new(move || {
            let _ = fs::remove_dir_all(removed);
        });
        Ok(Scratch { path, _guard: guard })
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
