//! Undoes what must not stay, however a run ends: on return, on failure, and on Ctrl-C or SIGTERM.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The variable by which programs that we start, and theirs, are known: it holds [`this_run`].
pub(crate) const RUN: &str = "ONEFOLD_XTASK_RUN";

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
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
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

/// Ends with SIGKILL the programs that runs left which were killed themselves; how many there were.
pub(crate) fn end_left_behind() -> usize {
    let mark = format!("{RUN}=");
    let left = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let run = environment
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(mark.as_bytes()));
        run.and_then(|run| std::str::from_utf8(run).ok()?.parse().ok())
            .is_some_and(|run: Run| !run.goes_on())
    };
    processes()
        .filter(|pid| left(*pid))
        .filter_map(Pid::from_raw)
        .filter(|pid| kill_process(*pid, Signal::KILL).is_ok())
        .count()
}

/// All processes of this host.
pub(crate) fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A run of this program: its process id, and when that process began, since numbers of processes
/// come again. The name of the program says nothing: a copy of it may have another one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run {
    pid: u32,
    began: u64,
}

impl Run {
    /// The process that has the number now.
    fn of(pid: u32) -> Option<Run> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Fields are counted behind the name, which may hold anything; the start is the 22nd.
        let began = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        Some(Run { pid, began })
    }

    fn goes_on(self) -> bool {
        Run::of(self.pid) == Some(self)
    }
}

impl FromStr for Run {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Run> {
        let (pid, began) = text.split_once('.').context("no run")?;
        Ok(Run { pid: pid.parse()?, began: began.parse()? })
    }
}

/// True for the process id of a run that goes on, of any tree. Another program may have got the
/// number of one that was killed.
fn is_run(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"xtask")
}

/// What marks the programs of this run.
pub(crate) fn this_run() -> String {
    let pid = std::process::id();
    let began = Run::of(pid).map_or(0, |run| run.began);
    format!("{pid}.{began}")
}

/// A directory under `target/` that is removed with all that is in it.
pub(crate) struct Scratch {
    path: PathBuf,
    _guard: Guard,
}

impl Scratch {
    /// A new directory whose name begins with `name`. First, programs that killed runs left running
    /// are ended, and their directories are removed.
    pub(crate) fn new(name: &str) -> Result<Scratch> {
        end_left_behind();
        let parent = crate::machine::root().join("target").join("scratch");
        fs::create_dir_all(&parent).with_context(|| format!("creating {}", parent.display()))?;
        // A directory with a cluster in it stays: the next run of `ceph` stops its daemons first,
        // by the process ids in it.
        for left in Scratch::left_behind("")
            .into_iter()
            .filter(|left| name == "ceph" || !left.join("c/ceph.conf").exists())
        {
            let _ = fs::remove_dir_all(left);
        }
        // A short name: paths of sockets have 107 bytes.
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
            let pid = file
                .to_str()
                .filter(|file| file.starts_with(name))
                .and_then(|file| file.rsplit_once('-')?.1.parse::<u32>().ok());
            pid.is_some_and(|pid| !is_run(pid))
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
