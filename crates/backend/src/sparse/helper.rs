//! A process that looks for holes in files for this one, and may hang instead of it.
//!
//! Some file systems, as ext4, lock a file while they look for its holes. A user who may read a file can
//! keep that lock for ever, by a read or write whose memory a program of that user serves and never fills.
//! No signal ends the wait for it. A thread that waits keeps its process from ending, and the process keeps
//! the locks of an archive. So for each thread that asks a process without any lock waits, and is given up
//! after a while (decision 78).

use std::{
    cell::RefCell,
    fs::File,
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
};

use super::seeking::{Question, Stretch};

/// What the process is called.
const NAME: &str = "onefold-holes";

/// How long this process waits for the first locked file, and for each later one.
const PATIENCE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(1)];

/// Files that this process waits for in vain, each of which costs a helper. Behind them no file is asked
/// for its holes that another user may have open.
const IN_VAIN: usize = 64;

/// Only the command itself knows how to be such a process.
static MAY_START: AtomicBool = AtomicBool::new(false);

/// Files that this process waited for in vain.
static STUCK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
}

/// The beginning of the command: true when it was such a process, whose work is done. Else it may
/// start some.
#[must_use]
pub fn is_done() -> bool {
    let is_helper = std::env::args_os().next().is_some_and(|name| name == NAME);
    match is_helper {
        true => {
            let _ = rustix::thread::set_name(c"onefold-holes");
            while serve(rustix::stdio::stdin()).is_ok() {}
        }
        false => MAY_START.store(true, Relaxed),
    }
    is_helper
}

/// Answers a question about a file, by another process where there may be one and another user may
/// have the file open, which `owner` owns.
///
/// # Errors
/// `Busy` when somebody keeps the file locked, and those of the system.
pub(super) fn ask(file: &File, owner: Option<u32>, question: Question) -> Result<Stretch> {
    let wrong = |errno: Errno| Error::from_io("cannot look for holes", errno.into());
    let here = || question.answer(file.as_fd()).map_err(wrong);
    let Some(owner) = owner.filter(|_| MAY_START.load(Relaxed)) else { return here() };
    let in_vain = STUCK.load(Relaxed);
    if in_vain >= IN_VAIN {
        return Err(locked(owner));
    }
    HELPER.with_borrow_mut(|helper| {
        // One that somebody ended is replaced once.
        for _ in 0..2 {
            if helper.is_none() {
                *helper = Helper::start();
            }
            let Some(asked) = helper else {
                MAY_START.store(false, Relaxed);
                tracing::warn!(
                    "no process can be started that looks for holes: who keeps a file locked holds this one up"
                );
                break;
            };
            match asked.ask(file, question, PATIENCE[in_vain.min(1)]) {
                Ok(answer) => return answer.map_err(wrong),
                Err(is_late) => {
                    asked.hangs = is_late;
                    *helper = None;
                    if is_late {
                        STUCK.fetch_add(1, Relaxed);
                        return Err(locked(owner));
                    }
                }
            }
        }
        here()
    })
}

fn locked(owner: u32) -> Error {
    let why = format!(
        "its holes can't be found: a read or write that does not end keeps it locked (its owner is user \
         {owner})"
    );
    Error::new(Kind::Busy, why)
}

struct Helper {
    socket: OwnedFd,
    child: Child,
    hangs: bool,
}

impl Helper {
    fn start() -> Option<Helper> {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let (socket, its) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).ok()?;
        let child = Command::new("/proc/self/exe")
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

    /// An error says whether it came too late, or there is no such process.
    fn ask(
        &self,
        file: &File,
        question: Question,
        patience: Duration,
    ) -> Result<Result<Stretch, Errno>, bool> {
        let has_end = u64::from(question.end.is_some());
        let asked = [question.from, question.end.unwrap_or(u64::MAX), has_end];
        send(&self.socket, asked, Some(file.as_fd())).map_err(|_| false)?;
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
        while let Err(errno) = rustix::event::poll(&mut polled, Some(&patience)) {
            if errno != Errno::INTR {
                return Err(false);
            }
        }
        if polled[0].revents().is_empty() {
            return Err(true);
        }
        let ([start, stop, kind], _) = receive(self.socket.as_fd()).map_err(|_| false)?;
        Ok(match kind {
            0 => Ok(None),
            1 => Ok(Some((start, stop))),
            _ => Err(Errno::from_raw_os_error(start as i32)),
        })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        // One that waits for a question ends at once; one that hangs is nobody's to wait for.
        if !self.hangs {
            let _ = self.child.wait();
        }
    }
}

/// Answers one question.
fn serve(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let ([from, end, has_end], file) = receive(socket)?;
    let question = Question { from, end: (has_end == 1).then_some(end) };
    let answer = match question.answer(file.ok_or(Errno::BADF)?.as_fd()) {
        Ok(None) => [0; 3],
        Ok(Some((start, stop))) => [start, stop, 1],
        Err(errno) => [errno.raw_os_error() as u64, 0, 2],
    };
    send(socket, answer, None)
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
