//! Helpers: processes that look for holes in files, and may hang in this one's stead.
//!
//! Some file systems, as ext4, lock a file while they look for its holes. A user who may read a file can
//! keep that lock for ever, by a read or write whose memory a program of that user serves and never fills.
//! No signal ends the wait for the lock. A thread that waits keeps its process from ending, and the process
//! keeps the locks of an archive. So each thread that asks has a helper, a process without any lock, which
//! gets the file by its descriptor. The thread gives the helper up when it made no progress for a while
//! (decisions 78 and 82).

use std::{
    cell::RefCell,
    fs::{self, File},
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        linux::fs::MetadataExt,
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
};

use super::seeking::{Question, Stretch};
use crate::program::given_descriptors;

/// The name of a helper: its first argument, and its name in the list of processes.
const NAME: &str = "onefold-holes";

/// How often a helper that has not answered is looked at for progress.
const STEP: Duration = Duration::from_millis(250);

/// How long one answer may take, with progress.
const LONGEST: Duration = Duration::from_secs(600);

/// True in the command itself, which can be started again as a helper.
pub(super) static MAY_START: AtomicBool = AtomicBool::new(false);

thread_local! {
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
}

/// Called at the beginning of the command. In a helper it answers questions until nobody asks any more, and
/// returns true: the caller ends the process. In any other process it returns false, and helpers may be
/// started from then on.
#[must_use]
pub fn is_done() -> bool {
    let is_helper = std::env::args_os().next().is_some_and(|name| name == NAME);
    match is_helper {
        true => {
            let _ = rustix::thread::set_name(c"onefold-holes");
            close_given();
            while serve(rustix::stdio::stdin()).is_ok() {}
        }
        false => MAY_START.store(true, Relaxed),
    }
    is_helper
}

/// Closes the descriptors that a helper was given by the process that started it: a helper that hangs would
/// keep locks and pipes.
fn close_given() {
    // The list has the descriptor of its own directory, which is closed by now.
    let is_open = |descriptor: &BorrowedFd<'_>| rustix::io::fcntl_getfd(descriptor).is_ok();
    for descriptor in given_descriptors().unwrap_or_default().into_iter().filter(is_open) {
        #[allow(unsafe_code, reason = "what nobody here has opened is closed")]
        // SAFETY: the program begins here, and has opened nothing.
        unsafe {
            rustix::io::close(descriptor.as_raw_fd());
        }
    }
}

/// Time and bytes spent on files that another user may have open, of one owner or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// Helpers that were given up, each of which may hang still.
    pub(super) in_vain: u32,
    /// Time spent waiting for helpers that made no progress.
    pub(super) still: Duration,
    /// Time spent waiting for helpers.
    pub(super) time: Duration,
    /// Bytes of holes that were read, because nobody looked for them.
    pub(super) read: u64,
}

/// The outcome of asking a helper.
pub(super) enum Asked {
    /// The helper's answer.
    Answered(Result<Stretch, Errno>),
    /// The helper made no progress for too long, or took too long, and was given up.
    Late,
    /// No helper can be started, or two helpers ended without an answer.
    Nobody,
}

/// Asks the helper of this thread, and waits for it as long as it makes progress, up to ten minutes.
/// `patience` is how long it may make none. The time that this took is added to `spent`.
pub(super) fn ask_helper(
    file: &File,
    question: Question,
    patience: Duration,
    spent: &mut Spent,
) -> Asked {
    HELPER.with_borrow_mut(|helper| {
        // A helper that somebody ended is replaced once.
        for _ in 0..2 {
            if helper.is_none() {
                *helper = Helper::start(Command::new("/proc/self/exe"));
            }
            let Some(asked) = helper else { break };
            let begun = Instant::now();
            let answer = asked.ask(file, question, patience, spent);
            spent.time += begun.elapsed();
            match answer {
                Asked::Nobody => *helper = None,
                Asked::Late => {
                    spent.in_vain += 1;
                    asked.hangs = true;
                    *helper = None;
                    return Asked::Late;
                }
                answered => return answered,
            }
        }
        Asked::Nobody
    })
}

/// The owners of the files at which helpers of earlier commands still hang, one for each helper. Only helpers of
/// this process's user count: anybody can run this program under any name.
pub(super) fn earlier() -> Vec<u32> {
    let Some(own) = program("self") else { return Vec::new() };
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let hangs = |pid: &String| {
        let is_named = fs::read(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.strip_suffix(b"\n").unwrap_or(&name) == NAME.as_bytes());
        // A helper whose command goes on may be answering.
        is_named
            && is_own(pid)
            && program(pid) == Some(own)
            && parent(pid).is_some_and(|parent| program(&parent) != Some(own))
    };
    // The first descriptor of a helper behind the three standard ones is the file. A helper without it hangs
    // nowhere. This call asks no file system that a user serves.
    let owner = |pid: String| {
        let file = format!("/proc/{pid}/fd/3");
        let told = rustix::fs::statx(CWD, file, AtFlags::STATX_DONT_SYNC, StatxFlags::UID);
        told.ok().map(|told| told.stx_uid)
    };
    let pids = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    pids.filter(hangs).filter_map(owner).collect()
}

/// True for a process that is this user's in each respect. The owner of its directory below `/proc` says less: it
/// is root for a process that nobody may look into.
fn is_own(pid: &str) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let are_own = |uids: &str| {
        let all: Vec<&str> = uids.split_whitespace().collect();
        all.len() == 4 && all.iter().all(|uid| uid.parse() == Ok(own))
    };
    uids.is_some_and(are_own)
}

/// The file that a process runs.
fn program(pid: &str) -> Option<(u64, u64)> {
    let metadata = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((metadata.st_dev(), metadata.st_ino()))
}

fn parent(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which is in brackets and may have some: the state, and the parent.
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(1).map(String::from)
}

/// Counters that grow while a process runs or reads from a disk; those that this system lacks are empty.
fn progress(pid: u32) -> [Vec<u8>; 2] {
    ["schedstat", "io"].map(|name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default())
}

struct Helper {
    /// The way to the process, which has the other end as its standard input.
    socket: OwnedFd,
    child: Child,
    /// True once the helper was given up: nobody waits for its end.
    hangs: bool,
}

impl Helper {
    fn start(mut program: Command) -> Option<Helper> {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let (socket, its) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).ok()?;
        let child = program
            .arg0(NAME)
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(its))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.ok().map(|child| Helper { socket, child, hangs: false })
    }

    fn ask(&self, file: &File, question: Question, patience: Duration, spent: &mut Spent) -> Asked {
        let has_end = u64::from(question.end.is_some());
        let asked = [question.from, question.end.unwrap_or(u64::MAX), has_end];
        if send(&self.socket, asked, Some(file.as_fd())).is_err() {
            return Asked::Nobody;
        }
        match self.waits(patience, spent) {
            Ok(true) => {}
            Ok(false) => return Asked::Late,
            Err(_) => return Asked::Nobody,
        }
        match receive(self.socket.as_fd()) {
            Ok(([_, _, 0], _)) => Asked::Answered(Ok(None)),
            Ok(([start, stop, 1], _)) => Asked::Answered(Ok(Some((start, stop)))),
            Ok(([errno, ..], _)) => Asked::Answered(Err(Errno::from_raw_os_error(errno as i32))),
            Err(_) => Asked::Nobody,
        }
    }

    /// Waits for an answer; false when the helper made no progress for `patience`, or took ten minutes.
    fn waits(&self, patience: Duration, spent: &mut Spent) -> Result<bool, Errno> {
        let (begun, mut still, mut before) = (Instant::now(), Duration::ZERO, None);
        let step = Timespec { tv_sec: 0, tv_nsec: STEP.as_nanos() as i64 };
        loop {
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            match rustix::event::poll(&mut polled, Some(&step)) {
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
                Ok(0) => {}
                Ok(_) => return Ok(true),
            }
            let now = Some(progress(self.child.id()));
            if now == before {
                (still, spent.still) = (still + STEP, spent.still + STEP);
            } else {
                (still, before) = (Duration::ZERO, now);
            }
            if still >= patience || begun.elapsed() >= LONGEST {
                return Ok(false);
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        // A helper that waits for a question ends at once. A helper that hangs ends whenever it can.
        let _ = match self.hangs {
            true => self.child.kill(),
            false => self.child.wait().map(drop),
        };
    }
}

/// Answers one question.
fn serve(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let ([from, end, has_end], file) = receive(socket)?;
    let question = Question { from, end: (has_end == 1).then_some(end) };
    let file = file.ok_or(Errno::BADF)?;
    // The file that came stays open until the answer is sent: `earlier` looks for it.
    let answer = match own(&file).and_then(|own| question.answer(own)) {
        Ok(None) => [0; 3],
        Ok(Some((start, stop))) => [start, stop, 1],
        Err(errno) => [errno.raw_os_error() as u64, 0, 2],
    };
    send(socket, answer, None)
}

/// Opens a file that came from the command once more. What came is the command's own description. A seek keeps
/// a lock of its description, and the command would wait for that behind a seek that hangs.
fn own(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let calm = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, calm, Mode::empty())
}

fn send(to: impl AsFd, numbers: [u64; 3], file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let bytes = numbers.map(u64::to_ne_bytes).concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

fn receive(from: BorrowedFd<'_>) -> Result<([u64; 3], Option<OwnedFd>), Errno> {
    let mut bytes = [0; 24];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let came = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(from, into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if came.bytes != 24 {
        return Err(Errno::PIPE);
    }
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.flatten().next();
    let number =
        |at: usize| bytes[at * 8..].first_chunk().map_or(0, |number| u64::from_ne_bytes(*number));
    Ok(([number(0), number(1), number(2)], file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    /// Asks a shell that runs this script, and answers nothing, in the place of a helper.
    fn asked(program: &str) -> (Asked, Spent, Duration) {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", program]);
        let mut helper = Helper::start(shell).unwrap();
        helper.hangs = true;
        let (mut spent, begun) = (Spent::default(), Instant::now());
        let file = File::open("/proc/self/exe").unwrap();
        let question = Question { from: 0, end: None };
        let asked = helper.ask(&file, question, PATIENCE, &mut spent);
        drop(helper.child.kill());
        drop(helper.child.wait());
        (asked, spent, begun.elapsed())
    }

    #[test]
    fn rule_07_a_look_that_makes_progress_is_waited_for() {
        // It ends by itself, after more than the patience.
        let busy = "end=$(($(date +%s) + 4)); while [ $(date +%s) -lt $end ]; do :; done";
        let (told, spent, took) = asked(busy);
        assert!(matches!(told, Asked::Nobody) && took > 2 * PATIENCE, "{took:?}");
        assert!(spent.still < PATIENCE, "{spent:?}");
        let (told, spent, _) = asked("exec sleep 100");
        assert!(matches!(told, Asked::Late) && spent.still >= PATIENCE, "{spent:?}");
    }
}
