//! Sockets on which clients arrive: UNIX, TCP, or handed over by the service manager.
//!
//! *Invariants.* A UNIX socket is never open to other users, not even for a moment: it is made inside a directory that only we can enter,
//! and moved to its place with mode 0600. A socket on which somebody answers is never replaced, nor is anything that is no socket.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onefold_core::{Error, Kind, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketFlags, accept_with, sockopt};

/// How long to wait for another server that is taking a place in the same directory.
const PLACE_WAIT: Duration = Duration::from_secs(5);
/// The longest path that the address of a UNIX socket holds.
const SOCKET_PATH_BYTES: usize = 107;

/// A socket on which clients arrive. It never blocks.
pub(crate) struct Listener {
    socket: OwnedFd,
    tcp: bool,
    /// The file to remove at the end.
    _file: Option<SocketFile>,
}

/// The file of a UNIX socket, and its identity: somebody else may have put another one there since.
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = |found: fs::Metadata| (found.dev(), found.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            // A file left over is replaced by the next server.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// A UNIX socket at `path` with mode 0600.
    #[allow(
        clippy::disallowed_methods,
        reason = "a socket has no descriptor to change its mode by; it lies in a directory that nobody else enters"
    )]
    pub(crate) fn unix(path: &Path) -> Result<Listener> {
        let failed = |error: io::Error| Error::from_io(format_args!("can't listen on {}", path.display()), error);
        let name = path.file_name().ok_or_else(|| Error::new(Kind::InvalidInput, format!("{} is not a file name", path.display())))?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let path = parent.join(name);
        let nursery = Nursery::new(parent).map_err(failed)?;
        let born = nursery.socket();
        if path.as_os_str().as_bytes().len().max(born.as_os_str().as_bytes().len()) > SOCKET_PATH_BYTES {
            let limit = format!("{} is too long for the path of a socket", path.display());
            return Err(Error::new(Kind::InvalidInput, limit));
        }
        let socket = UnixListener::bind(&born).map_err(failed)?;
        fs::set_permissions(&born, Permissions::from_mode(0o600)).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let metadata = fs::symlink_metadata(&born).map_err(failed)?;

        let place = Place::take(parent, &path)?;
        place.clear()?;
        fs::rename(&born, &path).map_err(failed)?;
        drop(place);
        let file = SocketFile { path, device: metadata.dev(), inode: metadata.ino() };
        Ok(Listener { socket: socket.into(), tcp: false, _file: Some(file) })
    }

    /// A TCP socket; beyond the loopback interface only when `insecure` says that everybody who can reach it may read and write.
    pub(crate) fn tcp(addr: SocketAddr, insecure: bool) -> Result<(Listener, SocketAddr)> {
        if !insecure && !addr.ip().is_loopback() {
            let text = format!("{addr} can be reached from other machines, and NBD without TLS lets anyone in: allow it explicitly");
            return Err(Error::new(Kind::Denied, text));
        }
        let failed = |error: io::Error| Error::from_io(format_args!("can't listen on {addr}"), error);
        let socket = TcpListener::bind(addr).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let addr = socket.local_addr().map_err(failed)?;
        Ok((Listener { socket: socket.into(), tcp: true, _file: None }, addr))
    }

    /// A stream socket that listens already.
    pub(crate) fn handed_over(socket: OwnedFd) -> Result<Listener> {
        let failed = |error: rustix::io::Errno| Error::from_io("the socket that was handed over can't be used", error.into());
        if !sockopt::socket_acceptconn(&socket).map_err(failed)? {
            return Err(Error::new(Kind::InvalidInput, "the socket that was handed over does not listen"));
        }
        let tcp = sockopt::socket_domain(&socket).map_err(failed)? != AddressFamily::UNIX;
        rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
        Ok(Listener { socket, tcp, _file: None })
    }

    /// The socket, to wait on.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The next client; `None` when there is none.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        use rustix::io::Errno;
        let socket = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            // The others: the client gave up before we came.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if self.tcp {
            // Replies are sent as whole batches already. A client whose machine is gone is found by keepalive.
            sockopt::set_tcp_nodelay(&socket, true)?;
            sockopt::set_socket_keepalive(&socket, true)?;
        }
        Ok(Some(socket))
    }
}

/// A fresh directory, closed to others, in which a socket is made; removed at the end.
struct Nursery(PathBuf);

impl Nursery {
    fn new(parent: &Path) -> io::Result<Nursery> {
        for attempt in 0.. {
            let path = parent.join(format!(".nbd{:x}.{attempt:x}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Nursery(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 64 => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn socket(&self) -> PathBuf {
        self.0.join("s")
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_dir(&self.0);
    }
}

/// The right to put a socket at a path: one server at a time in a directory.
struct Place<'a> {
    path: &'a Path,
    _lock: File,
}

impl<'a> Place<'a> {
    fn take(parent: &Path, path: &'a Path) -> Result<Place<'a>> {
        let failed = |error: io::Error| Error::from_io(format_args!("can't lock {}", parent.display()), error);
        let lock = File::open(parent).map_err(failed)?;
        let began = Instant::now();
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if began.elapsed() > PLACE_WAIT {
                return Err(failed(error.into()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Place { path, _lock: lock })
    }

    /// Removes a socket on which nobody answers.
    fn clear(&self) -> Result<()> {
        let path = self.path.display();
        let found = match fs::symlink_metadata(self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::from_io(format_args!("can't look at {path}"), error)),
        };
        if !found.file_type().is_socket() {
            return Err(Error::new(Kind::Exists, format!("{path} is there already, and is not a socket")));
        }
        match UnixStream::connect(self.path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Ok(_) => Err(Error::new(Kind::Busy, format!("another server answers on {path}"))),
            Err(error) => Err(Error::new(Kind::Busy, format!("{path} may belong to another server")).caused_by(error)),
        }
    }
}
