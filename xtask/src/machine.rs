//! Where we are: the repository, the user, the programs and the facts that a measurement must
//! state.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// Processors that can be used.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Does a job for each of `of`, as many at a time as there are processors; the results are in their
/// order. For jobs of one thread that measure no time.
pub(crate) fn side_by_side<T: Sync, R: Send>(of: &[T], job: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..cores().min(of.len()) {
            scope.spawn(|| {
                while let Some((at, one)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    of.get(at).map(|one| (at, one))
                } {
                    let result = job(one);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|&(at, _)| at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Processor time of the programs that we started and that have ended; zero where `/proc` does not
/// tell.
pub(crate) fn worked() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is our name in brackets; of those after it, the 14th and 15th are the ticks
    // of children in user space and in the kernel.
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        after.split_whitespace().skip(13).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64)
}

/// True for the superuser, who can mount.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where a program is, in the search path or where Debian keeps administrators' programs.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.starts_with('/') {
        return Some(PathBuf::from(program)).filter(|file| file.is_file());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let directories =
        env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Free bytes of the file system that a path is on.
pub(crate) fn free_bytes(path: &Path) -> anyhow::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail * stat.f_frsize)
}
