//! Programs of the operator that answer a request: they give keys, or are witnesses.
//!
//! Each is named by its whole path and is its user's or root's alone. It is started without a shell, with
//! an empty environment, in `/`, with no descriptor but the standard ones, in a process group of its own.
//! It gets the request on standard input, and answers on standard output within its time. Then all of the
//! group is ended.

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
/// Bytes of what a program says on standard error that are heard.
const SAID_MAX: u64 = 4096;

/// What a program is for, as errors say it.
pub struct Role {
    /// As in "the program that gives a key".
    pub does: &'static str,
    /// What its output is.
    pub gives: &'static str,
    /// How long it may take.
    pub wait: Duration,
}

impl Role {
    fn failed(&self, program: &Path, why: &str) -> Error {
        Error::new(Kind::Io, format!("{}: {why}", program.display()))
    }
}

/// What this process has open beyond its three standard descriptors, and some that it has not any more.
///
/// # Errors
/// Those of the system.
pub(crate) fn given_descriptors() -> Result<Vec<BorrowedFd<'static>>> {
    let listed = std::fs::read_dir("/proc/self/fd");
    let listed = listed.map_err(|e| Error::from_io("/proc/self/fd", e))?;
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let numbers = listed.filter_map(|entry| number(entry.ok()?)).filter(|number| *number > 2);
    #[allow(unsafe_code, reason = "a number that the kernel listed becomes a descriptor")]
    // SAFETY: it is used for calls of the kernel only, which refuse a number that is not open.
    Ok(numbers.map(|number| unsafe { BorrowedFd::borrow_raw(number) }).collect())
}

/// Closes what this process was given beyond its three standard descriptors in programs that it starts
/// from now on. What it opens itself is closed in them anyway.
///
/// # Errors
/// Those of the system.
fn give_no_descriptors() -> Result<()> {
    for descriptor in given_descriptors()? {
        // Another thread may have closed it since, or opened another file, which bears the flag.
        if let Ok(flags) = fcntl_getfd(descriptor) {
            let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
        }
    }
    Ok(())
}

/// Where a program lies, which is this user's or root's: no other user may write to it, or put another one
/// in its place, by a link on the way or in any directory above it.
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

/// The output of a program, which may have as many bytes as a key. What it says on standard error is this
/// process's.
///
/// # Errors
/// `InvalidInput`: the path is not a whole one. `NotFound`: it is not there. `Denied`: it can't be started,
/// or others may write to it or to a directory above it. `Io`: it failed, said too much, or took too long.
pub fn answer_of(program: &Path, request: &str, role: &Role) -> Result<Zeroizing<Vec<u8>>> {
    let mut child = start(program, Stdio::inherit(), role)?;
    ask(program, &mut child, request, role)
}

/// As [`answer_of`], of a program whose words may be those of another machine: what it says on standard
/// error goes nowhere but into the error, as far as it is heard, and may hold anything.
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
        // A program that reads no request does without.
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
    // Who says too much is cut off, and fails because of that.
    let answer = read
        .map_err(|_| role.failed(program, &format!("its {gives} is too long, or can't be read")))?;
    if !status.success() {
        let why = format!("it ended with a failure, and its {gives} is not used");
        return Err(role.failed(program, &why));
    }
    Ok(answer)
}

/// Waits until a child has ended, until then, or not at all; ends it and its group otherwise. `None` when
/// it had to be ended.
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
    // The group ends with all that the program started. Its number is not another one's before the child
    // was waited for.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait()?;
    Ok(None)
}

/// All of a short file or pipe.
pub(crate) fn read_short(file: impl Read, name: &str) -> Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX as usize + 1));
    let read = file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|e| Error::from_io(name, e))?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(Error::new(Kind::InvalidInput, format!("{name}: it is too long for a secret")));
    }
    Ok(bytes)
}
