//! The control socket of a running store: how the command reaches the server that has the store
//! open.
//!
//! The socket is a file `ID.ctl` in a directory that its server's user alone can enter. Both sides
//! also ask the kernel who the other one is: the server serves root and its own user, and a client
//! speaks only to a server that it can trust. So neither another user, nor root of a container that
//! shares no directory with us, reaches a server or passes for one (rule 10 of SECURITY.md).
//!
//! Directories are opened once and looked at through their descriptors; sockets are named through
//! `/proc/self/fd`, so that nobody can put another directory in between, and so that its path may
//! be longer than an address of a socket.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, mkdir, open, statat, unlinkat},
    io::Errno,
    net::{
        AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, listen, shutdown,
        socket_with, sockopt::socket_peercred,
    },
};

/// Longest id, in hexadecimal digits; the name must fit the 107 bytes of an address beside
/// `/proc/self/fd/N`.
const ID_DIGITS_MAX: usize = 64;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The user as which every user of another user namespace appears: it says nothing about who
/// somebody is.
const OVERFLOW_UID: u32 = 65_534;

/// The server's side. Dropping it removes the socket.
#[derive(Debug)]
pub struct ControlListener {
    listener: UnixListener,
    directory: OwnedFd,
    name: CString,
    /// Device and inode of the socket.
    identity: (u64, u64),
    closed: AtomicBool,
}

impl ControlListener {
    /// Listens in `directory` for the store whose id is `id`; a directory that is missing is made.
    /// A socket that is there already is replaced: the caller holds the lock of the store, so
    /// that no other server of it is alive.
    ///
    /// # Errors
    /// [`Kind::Denied`] when the directory belongs to somebody else or others can enter it;
    /// [`Kind::Exists`] when something else than a socket has the name; [`Kind::InvalidInput`]
    /// when the id is not hexadecimal; and those of the system.
    pub fn bind(directory: &Path, id: &str) -> Result<ControlListener> {
        let name = name_of(id)?;
        let shown = directory.display();
        let failed = |errno: Errno| {
            Error::from_io(format!("cannot listen for commands in {shown}"), errno.into())
        };
        let directory = own_directory(directory)?;
        clear(&directory, &name)?;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        // The file gets the mode of the socket, and so is never open to others.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        bind(&socket, &address(&directory, &name).map_err(failed)?).map_err(failed)?;
        let found = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(failed)?;
        Ok(ControlListener {
            listener: socket.into(),
            directory,
            name,
            identity: identity(&found),
            closed: AtomicBool::new(false),
        })
    }

    /// Waits for a connection of root or of this process's user; `None` once it is closed. Others
    /// are hung up on.
    ///
    /// # Errors
    /// When the system fails to accept, for instance for lack of descriptors; trying again after a
    /// pause may work.
    pub fn accept(&self) -> Result<Option<UnixStream>> {
        loop {
            let accepted = self.listener.accept();
            if self.closed.load(Ordering::SeqCst) {
                return Ok(None);
            }
            match accepted {
                Ok((stream, _)) if trusted(uid_of(&stream)?, &[own_uid()]) => {
                    return Ok(Some(stream));
                }
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(e) => return Err(Error::from_io("cannot accept a control connection", e)),
            }
        }
    }

    /// Accepts no more connections, and wakes the thread that waits for one.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // A socket that listens is shut down whatever its state is.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

impl Drop for ControlListener {
    fn drop(&mut self) {
        let ours = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| identity(&found) == self.identity);
        if ours {
            // A file left over is replaced by the next server.
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Connects to the server of the store whose id is `id`, which listens in `directory`, when root,
/// this process's user or the user `server_uid` runs it: the owner of the store.
///
/// # Errors
/// [`Kind::NotFound`] when nobody listens there, or the directory is another user's or open for
/// writing to others, so that no server of ours is there; [`Kind::Denied`] when a process of
/// another user listens in a directory that is right; [`Kind::InvalidInput`] when the id is not
/// hexadecimal.
pub fn connect(directory: &Path, id: &str, server_uid: u32) -> Result<UnixStream> {
    let name = name_of(id)?;
    let shown = directory.display();
    let nobody =
        || Error::new(Kind::NotFound, format!("no server of ours listens for commands in {shown}"));
    let failed = |errno: Errno| match errno {
        Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS => nobody(),
        _ => Error::from_io(format!("cannot connect to the server in {shown}"), errno.into()),
    };
    let users = [own_uid(), server_uid];
    let directory = open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(failed)?;
    let found = fstat(&directory).map_err(failed)?;
    if !trusted(found.st_uid, &users) || found.st_mode & 0o022 != 0 {
        return Err(nobody());
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    rustix::net::connect(&socket, &address(&directory, &name).map_err(failed)?).map_err(failed)?;
    let stream = UnixStream::from(socket);
    let uid = uid_of(&stream)?;
    if !trusted(uid, &users) {
        return Err(Error::new(
            Kind::Denied,
            format!(
                "the control socket in {shown} belongs to user {uid}, who does not own the store"
            ),
        ));
    }
    Ok(stream)
}

/// The directory, which is made when it is missing, as our own and closed to others.
fn own_directory(path: &Path) -> Result<OwnedFd> {
    let shown = path.display();
    let failed =
        |errno: Errno| Error::from_io(format!("cannot take commands in {shown}"), errno.into());
    match mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let directory = open(
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(failed)?;
    let found = fstat(&directory).map_err(failed)?;
    if found.st_uid != own_uid() {
        return Err(Error::new(
            Kind::Denied,
            format!(
                "{shown} belongs to user {}: commands are taken in a directory of our own only",
                found.st_uid
            ),
        ));
    }
    if found.st_mode & 0o077 != 0 {
        return Err(Error::new(
            Kind::Denied,
            format!(
                "other users may enter {shown}, where commands would be taken; `chmod 700 {shown}` \
                 closes it"
            ),
        ));
    }
    Ok(directory)
}

/// Removes a socket of a server that is gone.
fn clear(directory: &OwnedFd, name: &CString) -> Result<()> {
    let failed =
        |errno: Errno| Error::from_io("cannot replace an old control socket", errno.into());
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => {
            unlinkat(directory, name, AtFlags::empty()).map_err(failed)
        }
        Ok(_) => Err(Error::new(
            Kind::Exists,
            format!("{} is there already, and is not a socket", name.to_string_lossy()),
        )),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// The address of a name in a directory, however long its path is.
fn address(directory: &impl AsFd, name: &CString) -> rustix::io::Result<SocketAddrUnix> {
    let directory = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    SocketAddrUnix::new(PathBuf::from(directory).join(name.to_string_lossy().as_ref()))
}

fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

fn name_of(id: &str) -> Result<CString> {
    let hex = (1..=ID_DIGITS_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_hexdigit());
    let name = hex.then(|| CString::new(format!("{}.ctl", id.to_ascii_lowercase())).ok()).flatten();
    name.ok_or_else(|| Error::new(Kind::InvalidInput, "a store id is 1 to 64 hexadecimal digits"))
}

/// The user as whom this process acts.
#[must_use]
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The user that the other side had when it connected or began to listen.
///
/// # Errors
/// Those of the system.
pub fn uid_of(stream: &UnixStream) -> Result<u32> {
    match socket_peercred(stream) {
        Ok(peer) => Ok(peer.uid.as_raw()),
        Err(errno) => {
            Err(Error::from_io("cannot learn who is on the control socket", errno.into()))
        }
    }
}

fn trusted(uid: u32, users: &[u32]) -> bool {
    uid != OVERFLOW_UID && (uid == 0 || users.contains(&uid))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test makes what others would make, by its path")]
mod tests {
    use std::{
        fs,
        io::{Read, Write},
        os::unix::fs::PermissionsExt,
    };

    use super::*;

    const ID: &str = "1f";

    fn room() -> (tempfile::TempDir, PathBuf) {
        let room = tempfile::tempdir().unwrap();
        let doors = room.path().join("doors");
        (room, doors)
    }

    #[test]
    fn a_command_reaches_the_server_of_its_store() {
        let (_room, doors) = room();
        let listener = ControlListener::bind(&doors, ID).unwrap();
        let mut client = connect(&doors, &ID.to_uppercase(), own_uid()).unwrap();
        let mut server = listener.accept().unwrap().unwrap();
        client.write_all(b"status").unwrap();
        let mut heard = [0; 6];
        server.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"status");
        assert_eq!(connect(&doors, "2f", own_uid()).unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn the_socket_goes_with_its_server_and_one_left_over_is_replaced() {
        let (_room, doors) = room();
        assert_eq!(connect(&doors, ID, own_uid()).unwrap_err().kind(), Kind::NotFound);
        let old = ControlListener::bind(&doors, ID).unwrap();
        let new = ControlListener::bind(&doors, ID).unwrap();
        // The older one leaves the file of the newer one.
        drop(old);
        connect(&doors, ID, own_uid()).unwrap();
        drop(new);
        assert_eq!(fs::read_dir(&doors).unwrap().count(), 0);
        fs::write(doors.join("1f.ctl"), "not ours").unwrap();
        assert_eq!(ControlListener::bind(&doors, ID).unwrap_err().kind(), Kind::Exists);
    }

    #[test]
    fn who_waits_for_a_connection_is_woken_at_the_end() {
        let (_room, doors) = room();
        let listener = ControlListener::bind(&doors, ID).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| listener.accept().unwrap().is_none());
            std::thread::sleep(std::time::Duration::from_millis(20));
            fs::remove_file(doors.join("1f.ctl")).unwrap();
            listener.close();
            assert!(waiting.join().unwrap());
        });
        assert!(listener.accept().unwrap().is_none());
    }

    #[test]
    fn ids_that_are_no_ids_are_refused() {
        let (_room, doors) = room();
        for id in ["", "xyz", "../etc", "0\0", &"a".repeat(65), "ä"] {
            assert_eq!(ControlListener::bind(&doors, id).unwrap_err().kind(), Kind::InvalidInput);
            assert_eq!(connect(&doors, id, own_uid()).unwrap_err().kind(), Kind::InvalidInput);
        }
    }

    #[test]
    fn rule_10_only_root_and_the_users_named_are_trusted() {
        assert!(trusted(0, &[1000]) && trusted(1000, &[1000]) && trusted(998, &[1000, 998]));
        assert!(!trusted(1001, &[1000]) && !trusted(65_534, &[0]) && !trusted(65_534, &[65_534]));
    }

    #[test]
    fn rule_10_directories_that_others_can_enter_or_write_to_are_refused() {
        let (_room, doors) = room();
        fs::create_dir(&doors).unwrap();
        for (mode, spoken_to) in [(0o755, true), (0o770, false)] {
            fs::set_permissions(&doors, fs::Permissions::from_mode(0o700)).unwrap();
            let _listener = ControlListener::bind(&doors, ID).unwrap();
            fs::set_permissions(&doors, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(ControlListener::bind(&doors, ID).unwrap_err().kind(), Kind::Denied);
            assert_eq!(connect(&doors, ID, own_uid()).is_ok(), spoken_to);
        }
        std::os::unix::fs::symlink(&doors, doors.with_extension("link")).unwrap();
        assert!(ControlListener::bind(&doors.with_extension("link"), ID).is_err());
    }

    /// Needs root to become somebody else; others have no second user to be.
    #[test]
    fn rule_10_another_user_is_hung_up_on_and_not_spoken_to() {
        if own_uid() != 0 {
            return;
        }
        let (_room, doors) = room();
        let listener = ControlListener::bind(&doors, ID).unwrap();
        // A socket may be moved to where a stranger reaches it: he is hung up on all the same.
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        open(&doors.join("1f.ctl"), 0o666);
        open(&doors, 0o711);
        open(doors.parent().unwrap(), 0o711);
        let path = doors.join("1f.ctl");
        as_stranger(move || drop(UnixStream::connect(path).unwrap()));
        let own = connect(&doors, ID, 0).unwrap();
        // The stranger came first, and is not what is accepted.
        let mut accepted = listener.accept().unwrap().unwrap();
        (&own).write_all(b"x").unwrap();
        accepted.read_exact(&mut [0]).unwrap();

        open(doors.parent().unwrap(), 0o777);
        let squatted = doors.parent().unwrap().join("his");
        let (his, (listening, bound)) = (squatted.clone(), std::sync::mpsc::channel());
        let (done, end) = std::sync::mpsc::channel::<()>();
        let squatter = std::thread::spawn(move || {
            as_stranger(move || {
                let _listener = ControlListener::bind(&his, ID).unwrap();
                listening.send(()).unwrap();
                let _ = end.recv();
            });
        });
        bound.recv().unwrap();
        assert_eq!(connect(&squatted, ID, 0).unwrap_err().kind(), Kind::NotFound);
        assert_eq!(ControlListener::bind(&squatted, ID).unwrap_err().kind(), Kind::Denied);
        connect(&squatted, ID, STRANGER).unwrap();
        std::os::unix::fs::chown(&squatted, Some(0), Some(0)).unwrap();
        assert_eq!(connect(&squatted, ID, 0).unwrap_err().kind(), Kind::Denied);
        drop(done);
        squatter.join().unwrap();
    }

    const STRANGER: u32 = 61_234;

    /// Does something on a thread that is another user.
    fn as_stranger(work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(move || {
            let stranger = rustix::process::Uid::from_raw(STRANGER);
            rustix::thread::set_thread_res_uid(stranger, stranger, stranger).unwrap();
            work();
        });
        thread.join().unwrap();
    }
}
