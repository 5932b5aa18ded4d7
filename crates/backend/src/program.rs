//! Programs of the operator that answer a request: some give keys, others are witnesses.
//!
//! The operator names a program by its whole path, and nobody but this user and root may be able to change
//! the program. This module starts the program without a shell, with an empty environment, in `/`, with no
//! descriptor but the standard ones, in a process group of its own. The program gets the request on standard
//! input, and answers on standard output within its time. Then this module ends the whole group.

use std::{
    io::{Read, Write},
    os::{
        fd::{BorrowedFd, RawFd},
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    io::{FdFlags, fcntl_getfd, fcntl_setfd},
    process::{Pid, Signal, kill_process_group},
};
use zeroize::Zeroizing;

use crate::tree::Place;

/// Bytes of a secret, and of an answer, at most.
const SECRET_BYTES_MAX: u64 = 4096;
/// Bytes of a program's standard error that are read at most.
const SAID_MAX: u64 = 4096;

/// The purpose of a program, as errors say it.
pub struct Role {
    /// The verb of the purpose, as in "the program that gives a key".
    pub does: &'static str,
    /// The noun for the program's output, as in "it gave no key".
    pub gives: &'static str,
    /// Time from the start of the program to its end, at most.
    pub wait: Duration,
}

impl Role {
    fn failed(&self, program: &Path, why: &str) -> Error {
        Error::new(Kind::Io, format!("{}: {why}", program.display()))
    }
}

/// The descriptors that this process has open beyond the three standard ones, and perhaps some that were
/// closed while they were listed.
///
/// # Errors
/// The errors of the system.
pub(crate) fn given_descriptors() -> Result<Vec<BorrowedFd<'static>>> {
    let listed = std::fs::read_dir("/proc/self/fd");
    let listed = listed.map_err(|e| Error::from_io("/proc/self/fd", e))?;
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let numbers = listed.filter_map(|entry| number(entry.ok()?)).filter(|number| *number > 2);
    #[allow(unsafe_code, reason = "a number that the kernel listed becomes a descriptor")]
    // SAFETY: it is used for calls of the kernel only, which refuse a number that is not open.
    Ok(numbers.map(|number| unsafe { BorrowedFd::borrow_raw(number) }).collect())
}

/// Has programs that this process starts from now on get none of the descriptors that this process was
/// given beyond the three standard ones. Files that this process opens itself bear the flag already.
///
/// # Errors
/// The errors of the system.
fn give_no_descriptors() -> Result<()> {
    for descriptor in given_descriptors()? {
        // Another thread may have closed it since, or opened another file, which bears the flag.
        if let Ok(flags) = fcntl_getfd(descriptor) {
            let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
        }
    }
    Ok(())
}

/// Finds where a program lies, and makes sure that it belongs to this user or root: no other user may write
/// to the program, or put another one in its place, by a link on the way or in any directory above it.
///
/// # Errors
/// `Denied`, with the path that another user may change; the errors of the system.
fn only_ours(program: &Path, role: &Role) -> Result<PathBuf> {
    let refused = |at: &Path, why: &str| {
        let (at, does) = (at.display(), role.does);
        Error::new(Kind::Denied, format!("the program that {does} is not started: {at}: {why}"))
    };
    let failed = |e| Error::from_io(program.display(), e);
    let place = Place::of(program, true)?.map_err(|error| refused(program, &error.to_string()))?;
    let lies_at = std::fs::read_link(place.path()).map_err(failed)?;
    // From the root on: what lies in a directory that nobody else can change stays there.
    let mut above: Vec<&Path> = lies_at.ancestors().collect();
    above.reverse();
    for at in above {
        let metadata = at.symlink_metadata().map_err(failed)?;
        if ![rustix::process::geteuid().as_raw(), 0].contains(&metadata.uid()) {
            return Err(refused(at, "it belongs to another user"));
        }
        // In a directory such as /tmp nobody replaces what another user has.
        let is_kept = metadata.is_dir() && metadata.mode() & 0o1000 != 0;
        if metadata.mode() & 0o022 != 0 && !is_kept {
            return Err(refused(at, "others may write to it: `chmod go-w` it"));
        }
        if at == lies_at && (metadata.dev(), metadata.ino()) != place.identity() {
            return Err(refused(at, "it was replaced while it was being looked at"));
        }
    }
    Ok(lies_at)
}

/// Runs a program with a request, and returns its output, of 4096 bytes at most. The program shares this
/// process's standard error.
///
/// # Errors
/// `InvalidInput`: the path does not begin with `/`. `NotFound`: the program is not there. `Denied`: the
/// program can't be started, or others may write to it or to a directory above it. `Io`: the program failed,
/// said too much, or took too long.
pub fn answer_of(program: &Path, request: &str, role: &Role) -> Result<Zeroizing<Vec<u8>>> {
    let mut child = start(program, Stdio::inherit(), role)?;
    ask(program, &mut child, request, role)
}

/// As [`answer_of`], for a program whose words may come from another machine. The first 4096 bytes that the
/// program writes on standard error go into the error and nowhere else. They may hold anything: the caller
/// makes them fit for a terminal.
///
/// # Errors
/// As [`answer_of`].
pub fn answer_heard(program: &Path, request: &str, role: &Role) -> Result<Zeroizing<Vec<u8>>> {
    let mut child = start(program, Stdio::piped(), role)?;
    let (tell, told) = mpsc::channel();
    if let Some(errors) = child.stderr.take() {
        std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = errors.take(SAID_MAX).read_to_end(&mut said);
            tell.send(said)
        });
    }
    ask(program, &mut child, request, role).map_err(|error| {
        // The program has ended, and all that it started.
        let said = told.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        match String::from_utf8_lossy(&said).trim() {
            "" => error,
            said => Error::new(error.kind(), format!("{error}: {said}")),
        }
    })
}

fn start(program: &Path, errors: Stdio, role: &Role) -> Result<Child> {
    let name = program.display();
    if !program.is_absolute() {
        // Whoever chooses where the command is started, or what PATH is, would choose the program.
        let does = role.does;
        let why = format!("a program that {does} is named by its whole path, which begins with /");
        return Err(Error::new(Kind::InvalidInput, format!("{name}: {why}")));
    }
    let lies_at = only_ours(program, role)?;
    give_no_descriptors()?;
    Command::new(lies_at)
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .map_err(|e| Error::from_io(name, e))
}

fn ask(
    program: &Path,
    child: &mut Child,
    request: &str,
    role: &Role,
) -> Result<Zeroizing<Vec<u8>>> {
    if let Some(mut input) = child.stdin.take() {
        // A program may answer without reading the request.
        let _ = input.write_all(request.as_bytes());
    }
    let until = Instant::now() + role.wait;
    let output = child.stdout.take().ok_or_else(|| role.failed(program, "it has no output"))?;
    let (told, result) = mpsc::channel();
    let of = program.display().to_string();
    let reading = std::thread::spawn(move || told.send(read_short(output, &of)));
    let read = result.recv_timeout(role.wait).ok();
    let ended = ended(child, read.is_some().then_some(until));
    let status = ended.map_err(|e| Error::from_io(program.display(), e))?;
    let gives = role.gives;
    let (Some(read), Some(status)) = (read, status) else {
        let seconds = role.wait.as_secs();
        let why = format!("it gave no {gives} and ended within {seconds} s");
        return Err(role.failed(program, &why));
    };
    let _ = reading.join();
    // A program that says too much is cut off, and fails.
    let answer = read
        .map_err(|_| role.failed(program, &format!("its {gives} is too long, or can't be read")))?;
    if !status.success() {
        let why = format!("it ended with a failure, and its {gives} is not used");
        return Err(role.failed(program, &why));
    }
    Ok(answer)
}

/// Waits for the end of a child up to a time; without a time it does not wait. A child that is still there
/// is ended with its group, and the result is `None`.
fn ended(child: &mut Child, until: Option<Instant>) -> std::io::Result<Option<ExitStatus>> {
    while let Some(until) = until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // All that the program started is in the group. No other group gets this number before the child was
    // waited for.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait()?;
    Ok(None)
}

/// Reads all of a short file or pipe, of 4096 bytes at most.
pub(crate) fn read_short(file: impl Read, name: &str) -> Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX as usize + 1));
    let read = file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|e| Error::from_io(name, e))?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(Error::new(Kind::InvalidInput, format!("{name}: it is too long for a secret")));
    }
    Ok(bytes)
}
