//! The control socket of a running store: how the command reaches the server that has the store open.
//!
//! The socket is abstract, named by the store's id: it leaves no file behind, needs no directory, and goes with the server. An
//! abstract name has no permissions, so both sides ask the kernel who the other one is: the server serves only root and its own
//! user, and a client speaks only to a server that it can trust, since anybody may take a free name first.
//!
//! Abstract names belong to a network namespace: a container with a network of its own is not reached.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
};

use onefold_core::{Error, Kind, Result};
use rustix::net::sockopt::socket_peercred;

/// Longest store id, in hexadecimal digits; the name must fit the 107 bytes of an abstract address.
const ID_DIGITS_MAX: usize = 64;

/// The server's side.
#[derive(Debug)]
pub struct ControlListener {
    listener: UnixListener,
}

impl ControlListener {
    /// Listens for the store whose id is `store_id_hex`.
    ///
    /// # Errors
    /// [`Kind::Busy`] when somebody listens already; [`Kind::InvalidInput`] when the id is not hexadecimal.
    pub fn bind(store_id_hex: &str) -> Result<ControlListener> {
        let listener = UnixListener::bind_addr(&address(store_id_hex)?).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => {
                Error::new(Kind::Busy, format!("the control socket of store {store_id_hex} is in use by another process"))
            }
            _ => Error::from_io(format!("cannot listen for commands to store {store_id_hex}"), e),
        })?;
        Ok(ControlListener { listener })
    }

    /// Waits for a connection of root or of this process's user. Others are hung up on.
    ///
    /// # Errors
    /// When the system fails to accept, for instance for lack of descriptors; trying again after a pause may work.
    pub fn accept(&self) -> Result<UnixStream> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) if trusted(uid_of(&stream)?, &[own_uid()]) => return Ok(stream),
                Ok(_) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(e) => return Err(Error::from_io("cannot accept a control connection", e)),
            }
        }
    }
}

/// Connects to the server of the store whose id is `store_id_hex`, when root or this process's user runs it.
///
/// # Errors
/// [`Kind::NotFound`] when no server has the store open; [`Kind::Denied`] when another user's process listens there;
/// [`Kind::InvalidInput`] when the id is not hexadecimal.
pub fn connect(store_id_hex: &str) -> Result<UnixStream> {
    connect_to_user(store_id_hex, own_uid())
}

/// As [`connect`], and also when the user `server_uid` runs the server: root uses it for a server that runs as the owner of
/// the store's file.
///
/// # Errors
/// As [`connect`].
pub fn connect_to_user(store_id_hex: &str, server_uid: u32) -> Result<UnixStream> {
    let stream = UnixStream::connect_addr(&address(store_id_hex)?).map_err(|e| match e.kind() {
        io::ErrorKind::ConnectionRefused => Error::new(Kind::NotFound, format!("no server has store {store_id_hex} open")),
        _ => Error::from_io(format!("cannot connect to the server of store {store_id_hex}"), e),
    })?;
    let uid = uid_of(&stream)?;
    if !trusted(uid, &[own_uid(), server_uid]) {
        let message = format!("the control socket of store {store_id_hex} belongs to user {uid}, who does not run the store");
        return Err(Error::new(Kind::Denied, message));
    }
    Ok(stream)
}

fn address(store_id_hex: &str) -> Result<SocketAddr> {
    let hex = (1..=ID_DIGITS_MAX).contains(&store_id_hex.len()) && store_id_hex.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex {
        return Err(Error::new(Kind::InvalidInput, "a store id is 1 to 64 hexadecimal digits"));
    }
    let name = format!("onefold-control-{}", store_id_hex.to_ascii_lowercase());
    SocketAddr::from_abstract_name(name).map_err(|e| Error::from_io("cannot name a control socket", e))
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The user that the other side had when it connected or began to listen.
fn uid_of(stream: &UnixStream) -> Result<u32> {
    match socket_peercred(stream) {
        Ok(peer) => Ok(peer.uid.as_raw()),
        Err(errno) => Err(Error::from_io("cannot learn who is on the control socket", errno.into())),
    }
}

fn trusted(uid: u32, users: &[u32]) -> bool {
    uid == 0 || users.contains(&uid)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn id(test: &str) -> String {
        test.bytes().map(|b| format!("{b:02x}")).collect::<String>() + &format!("{:x}", std::process::id())
    }

    #[test]
    fn a_command_reaches_the_server_of_its_store() {
        let id = id("reach");
        let listener = ControlListener::bind(&id).unwrap();
        let mut client = connect(&id.to_uppercase()).unwrap();
        let mut server = listener.accept().unwrap();
        client.write_all(b"status").unwrap();
        let mut heard = [0; 6];
        server.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"status");
    }

    #[test]
    fn one_server_has_the_name_and_it_is_free_after_it() {
        let id = id("one");
        assert_eq!(connect(&id).unwrap_err().kind(), Kind::NotFound);
        let listener = ControlListener::bind(&id).unwrap();
        assert_eq!(ControlListener::bind(&id).unwrap_err().kind(), Kind::Busy);
        drop(listener);
        assert_eq!(connect(&id).unwrap_err().kind(), Kind::NotFound);
        ControlListener::bind(&id).unwrap();
    }

    #[test]
    fn ids_that_are_no_ids_are_refused() {
        for id in ["", "xyz", "../etc", "0\0", &"a".repeat(65), "ä"] {
            assert_eq!(ControlListener::bind(id).unwrap_err().kind(), Kind::InvalidInput);
            assert_eq!(connect(id).unwrap_err().kind(), Kind::InvalidInput);
        }
    }

    #[test]
    fn only_root_and_the_users_named_are_trusted() {
        assert!(trusted(0, &[1000]) && trusted(1000, &[1000]) && trusted(998, &[1000, 998]));
        assert!(!trusted(1001, &[1000]) && !trusted(65_534, &[0]));
    }

    /// Needs root to become somebody else; for others this machine has no second user to be.
    #[test]
    fn another_user_is_hung_up_on_and_not_spoken_to() {
        if own_uid() != 0 {
            return;
        }
        let id = id("foreign");
        let listener = ControlListener::bind(&id).unwrap();
        let as_nobody = |work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::spawn(move || {
                // The user of this thread alone.
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                work();
            });
            thread.join().unwrap();
        };
        let name = id.clone();
        as_nobody(Box::new(move || drop(connect(&name).unwrap())));
        let own = connect(&id).unwrap();
        // The stranger came first, and is not what is accepted.
        let mut accepted = listener.accept().unwrap();
        (&own).write_all(b"x").unwrap();
        accepted.read_exact(&mut [0]).unwrap();

        let squatted = id + "5";
        let name = squatted.clone();
        let (listening, bound) = std::sync::mpsc::channel();
        let (done, end) = std::sync::mpsc::channel::<()>();
        let squatter = std::thread::spawn(move || {
            as_nobody(Box::new(move || {
                let _listener = ControlListener::bind(&name).unwrap();
                listening.send(()).unwrap();
                let _ = end.recv();
            }));
        });
        bound.recv().unwrap();
        assert_eq!(connect(&squatted).unwrap_err().kind(), Kind::Denied);
        connect_to_user(&squatted, 65_534).unwrap();
        drop(done);
        squatter.join().unwrap();
    }
}
