//! Locks on open files: by `flock`, and where the file system is our own by range too.
//!
//! An NFS client's `flock` is a range at its server, where a `flock` of the server's own processes
//! never meets it; so on a local file system, which may be exported, both are taken. On others the
//! one is made of the other, or they would meet each other: there `flock` is all.
//!
//! A lock that only processes of the same user can hold is waited for as long as it takes. One that
//! others could hold is waited for half a minute.

use std::{
    fs,
    io::ErrorKind,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use onefold_core::{Error, Hold, Kind, Result};
use rustix::{
    fs::{FlockOperation, Stat},
    io::Errno,
};

use crate::locality::Locality;

/// How long a lock is waited for that other users could hold.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Characters of a command line that are shown.
const COMMAND_SHOWN: usize = 60;

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Until it is there.
    Wait,
    Once,
}

/// Locks an open file until all its descriptors are closed; `shown` is its name in errors. For
/// [`Hold::Alone`] it must be open for writing.
///
/// # Errors
/// `Busy`, with the process that holds it where that can be seen: at once unless `wait` is set,
/// else after [`PATIENCE`] when users other than our own could hold it. `Unsupported` where the
/// file system has no locks.
pub fn lock(file: &fs::File, shown: &str, hold: Hold, wait: bool) -> Result<()> {
    let local = Locality::of(file.as_fd()) == Ok(Locality::Local);
    if wait && !others_could_hold(file) {
        return take(file, hold, Ask::Wait, local).map_err(|errno| refused(shown, errno));
    }
    let begun = Instant::now();
    loop {
        match take(file, hold, Ask::Once, local) {
            Err(Errno::WOULDBLOCK) if wait && begun.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE)
            }
            Err(Errno::WOULDBLOCK) => return Err(busy(file, shown, wait)),
            done => return done.map_err(|errno| refused(shown, errno)),
        }
    }
}

fn refused(shown: &str, errno: Errno) -> Error {
    Error::new(
        Kind::Unsupported,
        format!("{shown} can't be locked against other processes ({errno})"),
    )
    .caused_by(std::io::Error::from(errno))
}

/// One sentence for a lock that somebody holds.
fn busy(file: &fs::File, shown: &str, waited: bool) -> Error {
    let by = holder(file).unwrap_or_else(|| "another process".into());
    let advice = match waited {
        true => format!(
            " for more than {} s; other users can open it, and `chmod go= {shown}` keeps them out",
            PATIENCE.as_secs()
        ),
        false => String::new(),
    };
    Error::new(Kind::Busy, format!("{shown} is locked by {by}{advice}"))
}

/// Takes the lock if nobody holds it otherwise, by range too when `by_range` is set; both or none.
pub(crate) fn once(file: &fs::File, hold: Hold, by_range: bool) -> rustix::io::Result<()> {
    take(file, hold, Ask::Once, by_range)
}

/// Takes both locks, or none.
fn take(file: &fs::File, hold: Hold, ask: Ask, local: bool) -> rustix::io::Result<()> {
    flock(file, hold, ask)?;
    if !local {
        return Ok(());
    }
    let taken = range(file, hold, ask);
    if taken.is_err() {
        rustix::fs::flock(file, FlockOperation::Unlock)?;
    }
    taken
}

fn flock(file: &fs::File, hold: Hold, ask: Ask) -> rustix::io::Result<()> {
    let operation = match (hold, ask) {
        (Hold::Shared, Ask::Wait) => FlockOperation::LockShared,
        (Hold::Shared, Ask::Once) => FlockOperation::NonBlockingLockShared,
        (Hold::Alone, Ask::Wait) => FlockOperation::LockExclusive,
        (Hold::Alone, Ask::Once) => FlockOperation::NonBlockingLockExclusive,
    };
    rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation))
}

/// Locks bytes of a file, which it need not have, or asks who has them; for the open file and not for the
/// process: such a lock ends with the last descriptor, and does not with another one of the same file.
#[allow(
    unsafe_code,
    reason = "rustix knows the locks of processes only, which end when any descriptor of the file \
              is closed"
)]
fn bytes(
    file: &fs::File,
    command: libc::c_int,
    kind: libc::c_int,
    (first, count): (u64, u64),
) -> rustix::io::Result<libc::flock> {
    // The process must be 0.
    let mut asked = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: first as i64,
        l_len: count as i64,
        l_pid: 0,
    };
    rustix::io::retry_on_intr(|| {
        // SAFETY: the descriptor is open as long as `file` is borrowed, and `asked` is a whole
        // `flock`, which is ours alone.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut asked) };
        match done {
            -1 => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::ACCESS) => Err(Errno::WOULDBLOCK),
                Some(errno) => Err(errno),
                None => Err(Errno::IO),
            },
            _ => Ok(asked),
        }
    })
}

/// Whether another open file has a lock on this one, found without asking for one; `None` where that
/// can't be told, as on a file system that other machines reach.
pub(crate) fn is_held(file: &fs::File) -> Option<bool> {
    if Locality::of(file.as_fd()) != Ok(Locality::Local) {
        return None;
    }
    // Length 0 is all bytes.
    let found = bytes(file, libc::F_OFD_GETLK, libc::F_WRLCK, (0, 0)).ok()?;
    Some(found.l_type != libc::F_UNLCK as i16)
}

/// Locks all bytes that a file may ever have.
fn range(file: &fs::File, hold: Hold, ask: Ask) -> rustix::io::Result<()> {
    let kind = if hold == Hold::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
    let command = if ask == Ask::Wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    // Length 0 is all bytes.
    bytes(file, command, kind, (0, 0)).map(|_| ())
}

/// Takes part in a turn, which ends when all descriptors of the file are closed: waits until nobody takes
/// part in a turn with a smaller number any more. `turn` gives the number of the present one, which is
/// above 0 and rises. Each who takes part has opened the file for itself.
///
/// # Errors
/// `Busy` after `patience`, and those of the system. There are no turns where locks are not by range.
pub fn take_turn(
    file: &fs::File,
    shown: &str,
    turn: impl Fn() -> u64,
    patience: Duration,
) -> Result<()> {
    if Locality::of(file.as_fd()) != Ok(Locality::Local) {
        return Ok(());
    }
    let failed = |errno| refused(shown, errno);
    let begun = Instant::now();
    loop {
        // The byte with the number of the turn is locked by all who take part.
        let now = turn();
        let earlier = bytes(file, libc::F_OFD_GETLK, libc::F_WRLCK, (0, now)).map_err(failed)?;
        if earlier.l_type == libc::F_UNLCK as i16 {
            match bytes(file, libc::F_OFD_SETLK, libc::F_RDLCK, (now, 1)) {
                Ok(_) if turn() == now => return Ok(()),
                // This lock came too late, and would keep others waiting.
                Ok(_) => drop(bytes(file, libc::F_OFD_SETLK, libc::F_UNLCK, (now, 1))),
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        if begun.elapsed() >= patience {
            return Err(busy(file, shown, false));
        }
        std::thread::sleep(PAUSE);
    }
}

/// True when users other than the effective one could open the file, and so lock it.
fn others_could_hold(file: &fs::File) -> bool {
    let us = rustix::process::geteuid().as_raw();
    rustix::fs::fstat(file).map_or(true, |stat| stat.st_uid != us || stat.st_mode & 0o066 != 0)
}

/// Other processes that hold a lock on one of the files, as far as the system tells: each with its
/// number, and the first words of its command line.
#[must_use]
pub fn holders(paths: &[PathBuf]) -> Vec<(u32, String)> {
    let Ok(locks) = fs::read_to_string("/proc/locks") else { return Vec::new() };
    let places =
        paths.iter().filter_map(|path| rustix::fs::stat(path).ok()).map(|stat| place(&stat));
    let mut pids: Vec<u32> =
        places.flat_map(|place| all_holding(&locks, &place).collect::<Vec<_>>()).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|pid| *pid != std::process::id());
    pids.into_iter().map(|pid| (pid, command(pid))).collect()
}

/// The program of a process and its first argument, never empty; of another user's only whose it is. Reading
/// a command line reads memory of the process, which another user may have on a file system of his own that
/// never answers.
fn command(pid: u32) -> String {
    let user = fs::metadata(format!("/proc/{pid}")).map(|own| MetadataExt::uid(&own));
    match user {
        Ok(user) if user != 0 && user != rustix::process::geteuid().as_raw() => {
            return format!("of user {user}");
        }
        _ => {}
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    if program.is_empty() {
        // A process that ends has no command line any more.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name: String = name.trim_end().escape_debug().take(COMMAND_SHOWN).collect();
        return if name.is_empty() { "which has ended".into() } else { name };
    }
    let verb = words.next().filter(|word| !word.is_empty() && !word.starts_with('-'));
    let verb = verb.map_or_else(String::new, |verb| format!(" {verb}"));
    format!("{program}{verb}").escape_debug().take(COMMAND_SHOWN).collect()
}

/// True when this process holds a lock on the file at `path`, as far as the system tells.
#[must_use]
pub fn is_locked_here(path: &Path) -> bool {
    rustix::fs::stat(path).ok().and_then(|stat| holding_pid(&stat)) == Some(std::process::id())
}

/// The process that holds a lock on the file, according to `/proc/locks`.
fn holder(file: &fs::File) -> Option<String> {
    let pid = holding_pid(&rustix::fs::fstat(file).ok()?)?;
    match fs::metadata(format!("/proc/{pid}")) {
        Ok(process) => Some(format!("process {pid} of user {}", MetadataExt::uid(&process))),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            Some("a process that ended and left it to another".into())
        }
        Err(_) => Some(format!("process {pid}")),
    }
}

/// The process that holds a lock on a file, by its number.
fn holding_pid(stat: &Stat) -> Option<u32> {
    holding(&fs::read_to_string("/proc/locks").ok()?, &place(stat))
}

/// A file, as a list of locks names it.
fn place(stat: &Stat) -> String {
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    format!("{major:02x}:{minor:02x}:{}", stat.st_ino)
}

/// The first process in a list of locks that holds one on a place, and does not only wait for it.
fn holding(locks: &str, place: &str) -> Option<u32> {
    all_holding(locks, place).next()
}

fn all_holding(locks: &str, place: &str) -> impl Iterator<Item = u32> {
    locks.lines().filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, _, _, _, pid, at, ..] = words.as_slice() else { return None };
        if words.contains(&"->") || at != place {
            None
        } else {
            pid.parse().ok().filter(|pid| *pid > 0)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> fs::File {
        fs::File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    #[test]
    fn a_process_that_ends_has_its_name_still() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), ended).unwrap();
        assert_eq!(command(child.id()), "true");
        child.wait().unwrap();
        assert_eq!(command(child.id()), "which has ended");
    }

    #[test]
    fn rule_16_a_file_is_locked_by_flock_and_by_range() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let [one, other] = [open(&path), open(&path)];
        for hold in [Hold::Alone, Hold::Shared] {
            take(&one, hold, Ask::Once, true).unwrap();
            assert_eq!(flock(&other, Hold::Alone, Ask::Once), Err(Errno::WOULDBLOCK));
            assert_eq!(range(&other, Hold::Alone, Ask::Once), Err(Errno::WOULDBLOCK));
            let error = lock(&other, "lock", Hold::Alone, false).unwrap_err();
            assert_eq!(error.kind(), Kind::Busy);
            assert!(
                error.to_string().contains(&format!("process {} of user", std::process::id())),
                "{error}"
            );
            // A process that has only one of the two locks, such as another client of a server,
            // keeps us out too.
            rustix::fs::flock(&one, FlockOperation::Unlock).unwrap();
            assert_eq!(lock(&other, "lock", Hold::Alone, false).unwrap_err().kind(), Kind::Busy);
            flock(&other, Hold::Alone, Ask::Once).unwrap();
            rustix::fs::flock(&other, FlockOperation::Unlock).unwrap();
        }
        drop(one);
        // A process that another test just started has this test's files until it becomes its
        // program, and with them their locks.
        let begun = Instant::now();
        while let Err(error) = lock(&other, "lock", Hold::Alone, false) {
            assert!(error.kind() == Kind::Busy && begun.elapsed() < PATIENCE, "{error}");
            std::thread::sleep(PAUSE);
        }
    }

    #[test]
    fn a_look_tells_who_is_there_and_takes_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let [one, other] = [open(&path), open(&path)];
        assert_eq!(is_held(&other), Some(false));
        for hold in [Hold::Alone, Hold::Shared] {
            take(&one, hold, Ask::Once, true).unwrap();
            assert_eq!(is_held(&other), Some(true), "{hold:?}");
            assert_eq!(is_held(&fs::File::open(&path).unwrap()), Some(true), "{hold:?}");
        }
        drop(one);
        let begun = Instant::now();
        // Another test's process may have it for a moment, as above.
        while is_held(&other) != Some(false) {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(PAUSE);
        }
    }

    #[test]
    fn readers_share_both_locks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        drop(open(&path));
        let [one, other] = [fs::File::open(&path).unwrap(), fs::File::open(&path).unwrap()];
        lock(&one, "lock", Hold::Shared, true).unwrap();
        lock(&other, "lock", Hold::Shared, true).unwrap();
    }

    #[test]
    fn rule_46_a_turn_waits_for_the_earlier_ones_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("label");
        drop(open(&path));
        let take = |turn: u64| {
            let file = fs::File::open(&path).unwrap();
            take_turn(&file, "label", || turn, PATIENCE).map(|()| file)
        };
        let [one, other, same] = [7; 3].map(|turn| take(turn).unwrap());
        drop(one);
        let later = std::thread::scope(|scope| {
            let later = scope.spawn(|| (take(8).unwrap(), Instant::now()));
            std::thread::sleep(20 * PAUSE);
            drop(other);
            std::thread::sleep(20 * PAUSE);
            let released = Instant::now();
            drop(same);
            let (later, at) = later.join().unwrap();
            assert!(at >= released);
            later
        });
        // A clock that was set back makes nobody wait.
        drop((take(6).unwrap(), later));
    }

    #[test]
    fn who_waits_is_no_holder() {
        let list = "1: FLOCK  ADVISORY  WRITE 100 08:01:42 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 200 \
                    08:01:42 0 EOF\n2: OFDLCK ADVISORY  READ -1 08:01:43 0 EOF\n3: FLOCK  \
                    ADVISORY  READ 300 08:01:43 0 EOF\n";
        assert_eq!(holding(list, "08:01:42"), Some(100));
        assert_eq!(holding(list, "08:01:43"), Some(300));
        assert_eq!(holding(list, "08:01:44"), None);
    }

    #[test]
    fn other_processes_that_hold_a_lock_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let own = open(&path);
        take(&own, Hold::Shared, Ask::Once, false).unwrap();
        let mut other = std::process::Command::new("flock")
            .args(["--shared", "--no-fork"])
            .arg(&path)
            .args(["sleep", "60"])
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let mut found = Vec::new();
        let is_there =
            |found: &[(u32, String)]| found.iter().any(|(_, command)| command == "sleep 60");
        while !is_there(&found) && begun.elapsed() < PATIENCE {
            found = holders(std::slice::from_ref(&path));
            std::thread::sleep(PAUSE);
        }
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(found.iter().any(|(pid, command)| *pid == other.id() && command == "sleep 60"));
        assert!(found.iter().all(|(pid, _)| *pid != std::process::id()));
    }

    /// The command line of another user's process lies in memory that may never answer.
    #[test]
    #[ignore = "needs root"]
    fn rule_03_the_command_line_of_another_user_is_not_read() {
        use std::os::unix::process::CommandExt;
        let mut other = std::process::Command::new("sleep").arg("60").uid(61_234).spawn().unwrap();
        let told = command(other.id());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(told, "of user 61234");
    }
}
