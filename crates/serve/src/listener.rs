//! Sockets on which clients arrive: UNIX, TCP, or handed over by the service manager.
//!
//! *Invariants.* A UNIX socket is never open to a user whom its mode keeps out, not even for a
//! moment: it is made with its mode inside a directory that only we can enter, and moved to its
//! place. A socket on which a server answers is never replaced, and neither is a file that is not a
//! socket. Other users can't keep us from using a place: the lock for it is a file of our own.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onefold_core::{Error, Kind, Result};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, chownat, fchmod, flock,
    fremovexattr, fstat, mkdirat, open, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
    sockopt,
};

use crate::client_fd::ClientFd;
use crate::{farewell, system};

/// How long to wait for another server of ours that is taking the same place.
const PLACE_WAIT: Duration = Duration::from_secs(5);
/// The longest path that the address of a UNIX socket holds.
const SOCKET_PATH_BYTES: usize = 107;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// The users who may connect to a UNIX socket, set on the socket's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Permission bits; connecting needs that of writing.
    pub mode: u32,
    /// The group of the file, when it is not that of the process.
    pub group: Option<u32>,
}

impl Default for Reach {
    fn default() -> Reach {
        Reach { mode: 0o600, group: None }
    }
}

/// Whether clients of a UNIX socket send descriptors, as its protocol wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptors {
    Sent,
    /// The kernel refuses them, if it can.
    Refused,
}

/// A socket on which clients arrive. Accepting never blocks.
pub(crate) struct Listener {
    socket: OwnedFd,
    tcp: bool,
    /// The file to remove at the end.
    _file: Option<SocketFile>,
}

/// The file of a UNIX socket, and its identity: somebody else may have put another one there since.
struct SocketFile {
    directory: OwnedFd,
    name: OsString,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if look(&self.directory, &self.name).is_ok_and(|found| identity(&found) == self.identity) {
            // A file left over is replaced by the next server.
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

impl Listener {
    /// A UNIX socket at `path`, which those of `reach` can connect to.
    pub(crate) fn unix(path: &Path, reach: Reach, descriptors: Descriptors) -> Result<Listener> {
        farewell::prepare();
        let shown = path.display();
        let failed =
            |error: Errno| Error::from_io(format_args!("can't listen on {shown}"), error.into());
        let name = path
            .file_name()
            .ok_or_else(|| Error::new(Kind::InvalidInput, format!("{shown} is not a file name")))?;
        if path.as_os_str().as_bytes().len() > SOCKET_PATH_BYTES {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("{shown} is too long for the path of a socket"),
            ));
        }
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let directory =
            open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed)?;
        let private = PrivateDirectory::new(&directory).map_err(failed)?;
        let socket = private.listening(reach, descriptors).map_err(|errno| match reach.group {
            Some(group) if errno == Errno::PERM => Error::new(
                Kind::Denied,
                format!("can't listen on {shown}: this user is not in group {group}"),
            ),
            _ => failed(errno),
        })?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
        let identity = identity(&look(&private.inside, SOCKET_NAME).map_err(failed)?);

        let place = Place::take(&directory, name, path)?;
        place.clear()?;
        renameat(&private.inside, SOCKET_NAME, &directory, name).map_err(failed)?;
        drop((place, private));
        let file = SocketFile { directory, name: name.to_owned(), identity };
        Ok(Listener { socket, tcp: false, _file: Some(file) })
    }

    /// A TCP socket, when `open` says that everybody who can reach it may come in, or that its
    /// clients prove who they are.
    pub(crate) fn tcp(addr: SocketAddr, open: bool) -> Result<(Listener, SocketAddr)> {
        if !open {
            return Err(lets_anybody_in(addr));
        }
        let failed =
            |error: io::Error| Error::from_io(format_args!("can't listen on {addr}"), error);
        let socket = TcpListener::bind(addr).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let addr = socket.local_addr().map_err(failed)?;
        Ok((Listener { socket: socket.into(), tcp: true, _file: None }, addr))
    }

    /// A stream socket that listens already; one that is no UNIX socket only when `open`.
    pub(crate) fn handed_over(socket: OwnedFd, open: bool) -> Result<Listener> {
        let failed = |error: Errno| {
            Error::from_io("the socket that was handed over can't be used", error.into())
        };
        if !sockopt::socket_acceptconn(&socket).map_err(failed)? {
            return Err(Error::new(
                Kind::InvalidInput,
                "the socket that was handed over does not listen",
            ));
        }
        let tcp = sockopt::socket_domain(&socket).map_err(failed)? != AddressFamily::UNIX;
        if tcp && !open {
            return Err(lets_anybody_in("a socket that was handed over"));
        }
        if !tcp {
            farewell::prepare();
            system::refuse_descriptors(&socket);
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
        Ok(Listener { socket, tcp, _file: None })
    }

    /// True when clients come over a network, be it that of this machine alone.
    pub(crate) fn is_of_network(&self) -> bool {
        self.tcp
    }

    /// The socket, to wait on.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The next client; `None` when there is none.
    pub(crate) fn accept(&self) -> io::Result<Option<ClientFd>> {
        let socket = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => ClientFd::of_socket(socket, self.tcp),
            // The others: the client gave up before we came.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if self.tcp {
            // Replies are sent as whole batches already. A client whose machine is gone is found by
            // keepalive.
            sockopt::set_tcp_nodelay(&socket, true)?;
            sockopt::set_socket_keepalive(&socket, true)?;
        }
        Ok(Some(socket))
    }
}

/// On this machine every user reaches a TCP address, and of others all that are not kept out.
fn lets_anybody_in(what: impl std::fmt::Display) -> Error {
    Error::new(
        Kind::Denied,
        format!("{what} would let in everybody who can reach it: TCP has no authentication"),
    )
}

/// The metadata of a name in a directory; a link is not followed.
fn look(directory: &OwnedFd, name: impl rustix::path::Arg) -> rustix::io::Result<Stat> {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

/// The address of a name in a directory, whatever the directory is called by then.
fn address(directory: &impl AsFd, name: &OsStr) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(
        PathBuf::from(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())).join(name),
    )
}

/// The name of a socket in the directory in which it is made.
const SOCKET_NAME: &str = "s";

/// A fresh directory, closed to others, in which a socket is made; removed at the end.
struct PrivateDirectory<'a> {
    parent: &'a OwnedFd,
    name: String,
    inside: OwnedFd,
}

impl PrivateDirectory<'_> {
    fn new(parent: &OwnedFd) -> rustix::io::Result<PrivateDirectory<'_>> {
        for attempt in 0.. {
            let name = format!(".nbd{:x}.{attempt:x}", std::process::id());
            match mkdirat(parent, &name, Mode::RWXU) {
                Ok(()) => {
                    let inside = openat(
                        parent,
                        &name,
                        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                        Mode::empty(),
                    )?;
                    let found = fstat(&inside)?;
                    // A user who may write to the parent could have replaced the directory.
                    let ours = found.st_uid == rustix::process::geteuid().as_raw()
                        && found.st_mode & 0o077 == 0;
                    if !ours {
                        return Err(Errno::PERM);
                    }
                    // The list of rights that the parent hands down would be the socket's too.
                    match fremovexattr(&inside, "system.posix_acl_default") {
                        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                        Err(error) => return Err(error),
                    }
                    return Ok(PrivateDirectory { parent, name, inside });
                }
                Err(Errno::EXIST) if attempt < 64 => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// A socket that listens in here; its file gets the mode of the socket, and so has it from the
    /// first moment.
    #[allow(
        clippy::disallowed_methods,
        reason = "the file of a socket has no descriptor to change it by; nobody else enters this \
                  directory"
    )]
    fn listening(&self, reach: Reach, descriptors: Descriptors) -> rustix::io::Result<OwnedFd> {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        if descriptors == Descriptors::Refused {
            system::refuse_descriptors(&socket);
        }
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &address(&self.inside, SOCKET_NAME.as_ref())?)?;
        if let Some(group) = reach.group {
            chownat(
                &self.inside,
                SOCKET_NAME,
                None,
                Some(Gid::from_raw(group)),
                AtFlags::SYMLINK_NOFOLLOW,
            )?;
        }
        if reach != Reach::default() {
            // The mode is set whatever the mask of the process is; nobody else can enter the
            // directory.
            rustix::fs::chmodat(
                &self.inside,
                SOCKET_NAME,
                Mode::from_raw_mode(reach.mode),
                AtFlags::empty(),
            )?;
        }
        listen(&socket, BACKLOG)?;
        Ok(socket)
    }
}

impl Drop for PrivateDirectory<'_> {
    fn drop(&mut self) {
        let _ = unlinkat(&self.inside, SOCKET_NAME, AtFlags::empty());
        let _ = unlinkat(self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

/// The right to put a socket at a path: one server of ours at a time. Removed at the end.
struct Place<'a> {
    directory: &'a OwnedFd,
    name: &'a OsStr,
    path: &'a Path,
    lock: OsString,
    _held: OwnedFd,
}

impl<'a> Place<'a> {
    /// Locks a file of our own beside the socket, which nobody else can open: a lock of the
    /// directory, others could hold for ever.
    fn take(directory: &'a OwnedFd, name: &'a OsStr, path: &'a Path) -> Result<Place<'a>> {
        let mut lock = OsString::from(".");
        lock.push(name);
        lock.push(".lock");
        let failed = |error: Errno| {
            Error::from_io(format_args!("can't lock the place of {}", path.display()), error.into())
        };
        let began = Instant::now();
        loop {
            let flags = OFlags::RDWR
                | OFlags::CREATE
                | OFlags::NOFOLLOW
                | OFlags::NONBLOCK
                | OFlags::CLOEXEC;
            let held = openat(directory, &lock, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
            let found = fstat(&held).map_err(failed)?;
            if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
                let text = format!(
                    "the lock {} beside {} is another user's or open to others; remove it",
                    lock.display(),
                    path.display()
                );
                return Err(Error::new(Kind::Denied, text));
            }
            let locked = flock(&held, FlockOperation::NonBlockingLockExclusive);
            // The process that had the lock before may have removed the file.
            let still_there =
                look(directory, &lock).is_ok_and(|there| identity(&there) == identity(&found));
            match locked {
                Ok(()) if still_there => {
                    return Ok(Place { directory, name, path, lock, _held: held });
                }
                Err(error) if began.elapsed() > PLACE_WAIT => return Err(failed(error)),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Removes a socket on which nobody answers.
    fn clear(&self) -> Result<()> {
        let path = self.path.display();
        let found = match look(self.directory, self.name) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => {
                return Err(Error::from_io(format_args!("can't look at {path}"), error.into()));
            }
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            return Err(Error::new(
                Kind::Exists,
                format!("{path} is there already, and is not a socket"),
            ));
        }
        let answers = || Err(Error::new(Kind::Busy, format!("another server answers on {path}")));
        match self.knock() {
            Err(Errno::CONNREFUSED) => Ok(()),
            // A server that listens and has no room for one more is there, too.
            Ok(()) | Err(Errno::AGAIN) => answers(),
            Err(error) => {
                Err(Error::new(Kind::Busy, format!("{path} may belong to another server"))
                    .caused_by(io::Error::from(error)))
            }
        }
    }

    /// Connects without waiting: another user may listen there, and never accept.
    fn knock(&self) -> rustix::io::Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(self.path)?)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // The file is still locked, so no other process has it.
        let _ = unlinkat(self.directory, &self.lock, AtFlags::empty());
    }
}
