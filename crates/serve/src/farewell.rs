//! Sockets of clients are closed where nobody waits.
//!
//! A client may have queued descriptors in its socket, of which the server has the last reference then:
//! one of a TCP socket that lingers keeps whoever closes it waiting, for as long as that one's owner
//! likes. It does not keep a thread waiting that ends, in whose table of descriptors the last reference
//! was. So a thread that has a table of its own, with nothing else in it, is sent what is to be closed,
//! starts a thread with a copy of that table, and closes what it has itself. The other one ends when the
//! owner has closed it, too.
//!
//! *Threads:* one that waits for sockets, and short ones, each of which ends with some.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    sockopt::{self, Timeout},
};

use crate::brief::briefly;
use crate::system;

/// Sockets that one thread ends with.
const AT_ONCE: usize = 64;
/// How long a thread waits for one that closes to take more.
const PATIENCE: Duration = Duration::from_millis(50);
/// These threads do next to nothing.
const STACK_BYTES: usize = 128 << 10;
/// Standard input, output and error, which every table keeps.
const STANDARD: u32 = 3;

/// The way to the thread that closes; nothing where the system can't do that.
static DOOR: OnceLock<Option<Mutex<Door>>> = OnceLock::new();

/// Where sockets go that are to be closed, and, in the same order, what tells that their owners have
/// closed them.
struct Door {
    sockets: OwnedFd,
    owners: Sender<Receiver<()>>,
}

/// Held by the owner of a socket that was handed over, until the owner has closed it.
pub(crate) struct Closes(#[allow(dead_code, reason = "its end is what tells")] SyncSender<()>);

/// Starts the thread that waits for sockets. It has to be there before the first client is: what is open
/// now may be copied and closed without a wait.
pub(crate) fn prepare() {
    DOOR.get_or_init(start);
}

/// Sees to it that the caller's reference is not the last one, but that of a thread that ends, for as
/// long as the result is held. Nothing when that can't be done.
pub(crate) fn take_over(socket: &OwnedFd) -> Option<Closes> {
    let door = DOOR.get().and_then(Option::as_ref)?.lock();
    let descriptors = [socket.as_fd()];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        match sendmsg(&door.sockets, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    let (closes, closed) = sync_channel(0);
    // Who receives it is there as long as the process is.
    let _ = door.owners.send(closed);
    Some(Closes(closes))
}

fn start() -> Option<Mutex<Door>> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (sockets, inside) = socketpair(AddressFamily::UNIX, kind, flags, None).ok()?;
    sockopt::set_socket_timeout(&sockets, Timeout::Send, Some(PATIENCE)).ok()?;
    // Both tables have it, for as long as the process is there.
    let inside: &OwnedFd = Box::leak(Box::new(inside));
    let (owners, closed) = channel();
    let (tell, told) = sync_channel(1);
    let receive = move || {
        let alone = part_from_others(inside);
        // Whoever started us waits for it.
        let _ = tell.send(alone);
        while alone && take_some(inside, &closed) {}
    };
    thread("farewell").spawn(receive).ok()?;
    told.recv().unwrap_or(false).then(|| Mutex::new(Door { sockets, owners }))
}

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES)
}

/// Gives this thread a table with `inside` alone. A signal that ends the server has to come to another
/// thread, which has what its handler writes to.
fn part_from_others(inside: &OwnedFd) -> bool {
    let Ok(number) = u32::try_from(inside.as_raw_fd()) else { return false };
    system::block_signals();
    system::part_descriptors(number + 1).is_ok()
        && (number <= STANDARD || system::close_copies(STANDARD, number - 1).is_ok())
}

/// Waits for sockets, and closes them; false when none come any more.
fn take_some(inside: &OwnedFd, closed: &Receiver<Receiver<()>>) -> bool {
    let (mut sockets, mut owners) = (Vec::new(), Vec::new());
    let mut flags = RecvFlags::empty();
    while owners.len() < AT_ONCE && receive(inside, &mut sockets, flags) {
        flags = RecvFlags::DONTWAIT;
        owners.extend(closed.recv());
    }
    let some = !owners.is_empty();
    if some {
        close(sockets, owners);
    }
    some
}

/// Receives a socket; false when there is none.
fn receive(inside: &OwnedFd, sockets: &mut Vec<OwnedFd>, flags: RecvFlags) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = loop {
        let mut slices = [IoSliceMut::new(&mut byte)];
        match recvmsg(inside, &mut slices, &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            sockets.extend(came);
        }
    }
    received.is_ok_and(|received| received.bytes > 0)
}

/// Closes sockets, the last reference to each with a thread that ends.
fn close(sockets: Vec<OwnedFd>, owners: Vec<Receiver<()>>) {
    let (tell, told) = sync_channel(1);
    let (hold, held) = sync_channel(1);
    let end = move || {
        // The table has nothing but what is to be closed: all of it is copied.
        let copied = system::part_descriptors(u32::MAX).is_ok();
        let _ = tell.send(copied);
        // Until neither the other table nor those who sent the sockets have them.
        wait_for(held.recv().unwrap_or_default());
    };
    if thread("farewell end").spawn(end).is_ok() && told.recv().unwrap_or(false) {
        drop(sockets);
        let _ = hold.send(owners);
    } else {
        // There is no thread to be had. One after the other, each wait is cut short here.
        wait_for(owners);
        sockets.into_iter().for_each(|socket| briefly(|| drop(socket)));
    }
}

/// Waits until those who sent sockets have closed them.
fn wait_for(owners: Vec<Receiver<()>>) {
    for closed in owners {
        // Nothing is sent: it ends.
        let _ = closed.recv();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rule_12_no_handler_of_a_signal_runs_where_other_descriptors_are() {
        prepare();
        if DOOR.get().and_then(Option::as_ref).is_none() {
            return;
        }
        let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let named = |task: &std::path::PathBuf| {
            fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "farewell\n")
        };
        let task = tasks.into_iter().find(named).unwrap();
        let status = fs::read_to_string(task.join("status")).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
            assert!(blocked & 1 << (signal - 1) != 0, "{signal} of {blocked:x}");
        }
    }
}
