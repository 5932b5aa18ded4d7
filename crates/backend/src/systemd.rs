//! The service manager: sockets that it opened for us, and what we tell it.
//!
//! Both are handed over in environment variables, which are taken once, at the start of `main`, and
//! removed, so that no program started later believes that they are meant for it. Without a service
//! manager all of this does nothing.
//!
//! *Invariants:* a descriptor is taken into ownership once. The environment is changed only while
//! the process has a single thread, since other threads could be reading it.
#![allow(
    unsafe_code,
    reason = "taking ownership of inherited descriptors, and changing the environment, with checks \
              before both"
)]

use std::{
    collections::HashMap,
    env, fs, io,
    os::{
        fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::atomic::{AtomicBool, Ordering},
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::FileType,
    io::{FdFlags, fcntl_setfd},
};

/// First descriptor that a service manager hands over.
const FIRST_FD: RawFd = 3;

/// Most sockets taken; a larger number is a mistake in the environment, not a service.
const SOCKETS_MAX: RawFd = 64;

/// Variables of the protocol.
const VARIABLES: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET"];

/// Sockets and settings that the service manager gave to this process.
#[derive(Debug, Default)]
pub struct Service {
    /// Sockets that it opened, in its order.
    pub sockets: Vec<Socket>,
    /// Where to tell it about our state.
    pub notifier: Notifier,
}

/// A socket from the service manager.
#[derive(Debug)]
pub struct Socket {
    /// The socket's name in its unit (`FileDescriptorName=`), or empty.
    pub name: String,
    /// The socket, closed in programs started from here.
    pub fd: OwnedFd,
}

/// Tells the service manager how the service is; does nothing when there is none.
#[derive(Debug, Default)]
pub struct Notifier {
    address: Option<SocketAddr>,
}

impl Socket {
    /// True for a socket that other users, or machines, may reach by an address and not by a file.
    #[must_use]
    pub fn is_of_network(&self) -> bool {
        rustix::net::sockopt::socket_domain(&self.fd)
            .is_ok_and(|domain| domain != rustix::net::AddressFamily::UNIX)
    }
}

impl Service {
    /// Takes what the service manager gave, and removes its variables. To be called once, first in
    /// `main`: before threads are started, and before anything else is opened.
    ///
    /// # Errors
    /// [`Kind::InvalidInput`] when the variables make no sense or a descriptor is no socket;
    /// [`Kind::Busy`] when there is something to take and other threads run already, or it was
    /// taken before.
    pub fn take() -> Result<Service> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let variables: HashMap<&str, _> =
            VARIABLES.iter().filter_map(|&name| Some((name, env::var_os(name)?))).collect();
        if variables.is_empty() {
            return Ok(Service::default());
        }
        if threads()? != 1 || TAKEN.swap(true, Ordering::Relaxed) {
            return Err(Error::new(
                Kind::Busy,
                "what the service manager gave is taken once, before threads are started",
            ));
        }
        for name in VARIABLES {
            // SAFETY: this is the only thread, as just checked; only itself could start another.
            unsafe { env::remove_var(name) };
        }
        let text = |name: &str| variables.get(name).and_then(|value| value.to_str());
        let address =
            variables.get("NOTIFY_SOCKET").map(|path| address(path.as_bytes())).transpose()?;
        let for_us = text("LISTEN_PID").is_some_and(|pid| pid.parse() == Ok(std::process::id()));
        let count =
            text("LISTEN_FDS").filter(|_| for_us).map_or(Ok(0), |count| match count.parse() {
                Ok(count) if (0..=SOCKETS_MAX).contains(&count) => Ok(count),
                _ => Err(Error::new(
                    Kind::InvalidInput,
                    format!("LISTEN_FDS={count} is no number of sockets from 0 to {SOCKETS_MAX}"),
                )),
            })?;
        let mut names = text("LISTEN_FDNAMES").unwrap_or("").split(':');
        let sockets = (FIRST_FD..FIRST_FD + count)
            .map(|fd| Ok(Socket { name: names.next().unwrap_or("").to_owned(), fd: adopt(fd)? }))
            .collect::<Result<_>>()?;
        Ok(Service { sockets, notifier: Notifier { address } })
    }
}

/// Takes ownership of an inherited descriptor, when it is an open socket.
fn adopt(fd: RawFd) -> Result<OwnedFd> {
    let failed = |e: io::Error| {
        Error::new(Kind::InvalidInput, format!("the service manager gave no socket as {fd}: {e}"))
            .caused_by(e)
    };
    // SAFETY: only asked for its kind; a descriptor that is not open gives an error.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(borrowed).map_err(|errno| failed(errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(failed(io::Error::from(io::ErrorKind::InvalidInput)));
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    // SAFETY: it is open, the environment says that it was opened for this very process to own, and
    // the caller takes each once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Number of threads of this process.
fn threads() -> Result<usize> {
    let tasks = fs::read_dir("/proc/self/task")
        .map_err(|e| Error::from_io("cannot count the threads of this process", e))?;
    Ok(tasks.count())
}

/// A socket's address as the service manager writes it: a path, or `@` and an abstract name.
fn address(text: &[u8]) -> Result<SocketAddr> {
    let address = match text {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(text)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    address.map_err(|e| {
        Error::new(Kind::InvalidInput, "NOTIFY_SOCKET is neither a path nor an abstract socket")
            .caused_by(e)
    })
}

impl Notifier {
    /// True in a service: a service manager listens.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.address.is_some()
    }

    /// Says that the service is ready to serve, with a line for its status.
    ///
    /// # Errors
    /// When the service manager cannot be reached; worth a line in the log, no reason to stop.
    pub fn ready(&self, status: &str) -> Result<()> {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)))
    }

    /// Says that the service has begun to stop.
    ///
    /// # Errors
    /// As [`ready`](Notifier::ready).
    pub fn stopping(&self) -> Result<()> {
        self.send("STOPPING=1")
    }

    /// Gives a line for the service's status.
    ///
    /// # Errors
    /// As [`ready`](Notifier::ready).
    pub fn status(&self, status: &str) -> Result<()> {
        self.send(&format!("STATUS={}", one_line(status)))
    }

    /// Gives a line for the status of a service that begins, which may take so many seconds more from
    /// now on, however long it was allowed to take.
    ///
    /// # Errors
    /// As [`ready`](Notifier::ready).
    pub fn takes_longer(&self, status: &str, seconds: u32) -> Result<()> {
        let micros = u64::from(seconds) * 1_000_000;
        self.send(&format!("EXTEND_TIMEOUT_USEC={micros}\nSTATUS={}", one_line(status)))
    }

    fn send(&self, message: &str) -> Result<()> {
        let Some(address) = &self.address else { return Ok(()) };
        UnixDatagram::unbound()
            .and_then(|socket| socket.send_to_addr(message.as_bytes(), address))
            .map(|_| ())
            .map_err(|e| Error::from_io("cannot tell the service manager", e))
    }
}

/// A line break would begin another message of the protocol.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_service_manager_nothing_happens() {
        let service = Service::take().unwrap();
        assert!(service.sockets.is_empty());
        service.notifier.ready("serving").unwrap();
        service.notifier.stopping().unwrap();
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(one_line("a\nREADY=1\r\n"), "a READY=1  ");
    }

    #[test]
    fn addresses_are_paths_or_abstract_names() {
        assert!(address(b"/run/notify").unwrap().as_pathname().is_some());
        assert_eq!(address(b"@notify").unwrap().as_abstract_name(), Some(&b"notify"[..]));
        for wrong in [&b""[..], b"run/notify", b"vsock:2:9", &[b'/'; 200]] {
            assert_eq!(address(wrong).unwrap_err().kind(), Kind::InvalidInput);
        }
    }
}
