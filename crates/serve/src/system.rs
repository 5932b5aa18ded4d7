//! System calls that rustix does not have. The only place of `unsafe` in this crate.

#![allow(unsafe_code, reason = "these calls of the system are in no library that we use")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Once;

/// Whether a UNIX socket takes descriptors, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// What ends a wait in the kernel. Its default is to do nothing, and of what it is for, urgent bytes of
/// a socket that has an owner, there is none here.
const INTERRUPT: libc::c_int = libc::SIGURG;

/// The number by which the kernel knows the calling thread.
pub(crate) fn this_thread() -> libc::pid_t {
    // SAFETY: it takes nothing, and always succeeds.
    unsafe { libc::gettid() }
}

extern "C" fn nothing(_: libc::c_int) {}

/// From now on an [`interrupt`] of this thread ends its wait.
pub(crate) fn catch_interrupts() {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: both structures are of numbers and an empty set, for which zeroes stand; the handler
        // does nothing. One that the program has installed stays.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(INTERRUPT, std::ptr::null(), &mut before) == 0;
            if known && matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
                let mut handler: libc::sigaction = std::mem::zeroed();
                // Without SA_RESTART.
                handler.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
                libc::sigaction(INTERRUPT, &handler, std::ptr::null_mut());
            }
        }
    });
    // SAFETY: the set is made before it is used. Whoever started the process may have blocked the signal.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, INTERRUPT);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// No handler of a signal runs in the calling thread, and in those that it starts, from now on: one that
/// writes to a descriptor finds another one, or none, in a table of their own.
pub(crate) fn block_signals() {
    // SAFETY: the set is made before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// Ends the wait of a thread of this process, as far as a signal can.
pub(crate) fn interrupt(thread: libc::pid_t) {
    // SAFETY: the arguments are numbers. A thread that is gone is not found, or is another one of this
    // process, which the signal does nothing to.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, INTERRUPT);
    }
}

/// From now on, descriptors are refused that others send to this socket, or to one that was accepted
/// from it since; older kernels can't do that.
pub(crate) fn refuse_descriptors(socket: &OwnedFd) {
    let off: libc::c_int = 0;
    let bytes = size_of_val(&off) as libc::socklen_t;
    // SAFETY: the system reads as many bytes as the number has.
    unsafe {
        let at = (&raw const off).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, at, bytes);
    }
}

/// False when no descriptor can have been sent to this socket.
pub(crate) fn may_have_descriptors(socket: &OwnedFd) -> bool {
    let mut passes: libc::c_int = 1;
    let mut bytes = size_of_val(&passes) as libc::socklen_t;
    // SAFETY: the system writes no more bytes than the number has.
    let asked = unsafe {
        let at = (&raw mut passes).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, at, &mut bytes)
    };
    asked != 0 || passes != 0
}

/// From now on the calling thread, and those that it starts, have a table of descriptors of their own:
/// copies of what they had, but of none from `first` on.
///
/// A thread with such a table must not use what others of the process open, and the other way round; so it
/// [blocks signals](block_signals) before.
///
/// # Errors
/// Those of the system: Linux can do that since 5.9.
pub(crate) fn part_descriptors(first: u32) -> io::Result<()> {
    close_range(first, u32::MAX, libc::CLOSE_RANGE_UNSHARE)
}

/// Closes descriptors of a table of one's own.
pub(crate) fn close_copies(first: u32, last: u32) -> io::Result<()> {
    close_range(first, last, 0)
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the arguments are numbers. With a flag only copies are closed; without, the caller has a
    // table of its own.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
