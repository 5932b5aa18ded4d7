//! What a command costs: time by the clock and of the processor, memory, bytes that it writes, and
//! a directory to run in.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{cleanup::Guard, machine, program::spawn};

/// How often a running command is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// The cost of one command.
#[derive(Clone, Copy, Default)]
pub(super) struct Cost {
    /// Seconds by the clock.
    pub(super) wall: f64,
    /// Seconds of processor time, of all its threads and children.
    pub(super) cpu: f64,
    /// The most memory that it held, in bytes. It is looked up every 2 ms, so what a command takes
    /// just before its end may be missed. 0 for a command that ended before the first look.
    pub(super) memory: u64,
    /// Bytes that it handed to the kernel's write calls, to files and to pipes; looked up as the
    /// memory is.
    pub(super) written: u64,
}

/// Runs a command to its end, within `limit`; nobody reads what it prints on standard output.
///
/// # Errors
///
/// The command cannot be started, fails, or takes longer.
pub(super) fn of(command: Command, limit: Duration) -> Result<Cost> {
    of_any(command, limit, &[0])
}

/// The same for a command that may end with any of these statuses.
pub(super) fn of_any(mut command: Command, limit: Duration, good: &[i32]) -> Result<Cost> {
    let (before, begun) = (children_cpu()?, Instant::now());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let what = crate::program::describe(&command);
    let mut running = spawn(&mut command)?;
    let mut cost = Cost::default();
    let status = loop {
        cost.look(running.id());
        if let Some(status) = running.wait(Duration::ZERO)? {
            break status;
        }
        ensure!(begun.elapsed() < limit, "{what} took longer than {} s", limit.as_secs());
        thread::sleep(LOOK);
    };
    ensure!(status.code().is_some_and(|code| good.contains(&code)), "{what} failed ({status})");
    cost.wall = begun.elapsed().as_secs_f64();
    cost.cpu = children_cpu()? - before;
    Ok(cost)
}

impl Cost {
    /// Looks at a running process; one that has ended changes nothing.
    pub(super) fn look(&mut self, process: u32) {
        let number = |file: &str, name: &str| -> Option<u64> {
            let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let kib = number("status", "VmHWM:").unwrap_or(0);
        self.memory = self.memory.max(kib << 10);
        self.written = self.written.max(number("io", "wchar:").unwrap_or(0));
    }
}

/// Seconds of processor time of all children that ended.
fn children_cpu() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // Behind the name in parentheses: user and system time of children are the 14th and 15th.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |n: usize| {
        fields.get(n).and_then(|field| field.parse::<f64>().ok()).context("/proc/self/stat")
    };
    Ok((ticks(13)? + ticks(14)?) / rustix::param::clock_ticks_per_second() as f64)
}

/// Bytes that the files below a directory take from the file system.
pub(super) fn taken(directory: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut all = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        all += if metadata.is_dir() { taken(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(all)
}

/// A directory that goes with us: in memory where that has `bytes` free, else below `target/`.
pub(super) struct Place {
    pub(super) path: PathBuf,
    #[expect(dead_code, reason = "removes the directory")]
    guard: Guard,
}

impl Place {
    pub(super) fn new(bytes: u64) -> Result<Place> {
        let memory = Path::new("/dev/shm");
        let parent = if machine::free_bytes(memory).is_ok_and(|free| free > bytes) {
            memory.to_owned()
        } else {
            machine::root().join("target")
        };
        let path = parent.join(format!("onefold-bench-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        let gone = path.clone();
        let guard = Guard::new(move || {
            let _ = fs::remove_dir_all(gone);
        });
        Ok(Place { path, guard })
    }
}
