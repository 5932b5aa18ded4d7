//! A verb's side of the control socket.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use onefold_backend::peer;
use onefold_core::{Error, Kind, Result};
use serde::de::DeserializeOwned;

use super::{
    Answer, LINE_MAX, Request, places,
    stream::{GONE, Outlet},
    told,
};
use crate::store_file::StoreFile;

/// How long a server may be silent: it tells progress of long work, and a change of a full and busy store may wait for checkpoints.
const SILENCE: Duration = Duration::from_secs(600);

/// A connection to the server of a store; each asks once.
pub(crate) struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to the server that has the store open.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Denied` when it can't be trusted.
    pub(crate) fn connect(file: &StoreFile) -> Result<Client> {
        Client::connect_to(&file.control_name(), file.owner(), file.path())
    }

    /// The same for whatever has a control socket of this name, and belongs to `owner`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(crate) fn connect_to(name: &str, owner: u32, path: &Path) -> Result<Client> {
        let stream = look(name, owner).map_err(|error| match error.kind() {
            Kind::Denied => Error::new(Kind::Denied, format!("a process that does not own {} listens for its commands", path.display())),
            _ => error,
        })?;
        stream.set_read_timeout(Some(SILENCE)).map_err(lost)?;
        stream.set_write_timeout(Some(SILENCE)).map_err(lost)?;
        Ok(Client { stream })
    }

    /// The number of the server's process.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(crate) fn pid(&mut self) -> Result<u32> {
        self.ask(&Request::Pid)
    }

    /// Asks, and gives the answer.
    ///
    /// # Errors
    /// What the server says, or `Io` when it goes away.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T> {
        self.ask_long(request, &mut |_, _, _| {})
    }

    /// As [`ask`](Self::ask); `progress` hears what is being done, bytes done and bytes in all.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(crate) fn ask_long<T: DeserializeOwned>(&mut self, request: &Request, progress: &mut dyn FnMut(&str, u64, u64)) -> Result<T> {
        self.say(request)?;
        self.hear(progress)
    }

    /// Asks with a stream, which `source` writes as soon as the server takes it; `progress` is as of [`ask_long`](Self::ask_long).
    ///
    /// # Errors
    /// What the server says, or `source`, or `Io` when the server goes away.
    pub(crate) fn send<T: DeserializeOwned + Send>(
        &mut self,
        request: &Request,
        progress: &mut (dyn FnMut(u64, u64) + Send),
        source: impl FnOnce(&mut Outlet<&UnixStream>) -> Result<()>,
    ) -> Result<T> {
        self.say(request)?;
        // It sends for as long as its source has something; the server says nothing meanwhile when nothing comes.
        self.stream.set_read_timeout(None).map_err(lost)?;
        let (ready, may) = std::sync::mpsc::channel();
        let this = &*self;
        std::thread::scope(|scope| {
            let hearing = scope.spawn(move || {
                let mut ready = Some(ready);
                this.hear(&mut |_, done, total| match ready.take() {
                    Some(ready) => drop(ready.send(())),
                    None => progress(done, total),
                })
            });
            let sent = match may.recv() {
                Ok(()) => {
                    let mut outlet = Outlet::new(&this.stream);
                    source(&mut outlet).and_then(|()| outlet.end())
                }
                // It was refused; the answer says why.
                Err(_) => Ok(()),
            };
            if sent.is_err() {
                // Without its end the stream does not count.
                let _ = this.stream.shutdown(std::net::Shutdown::Write);
            }
            let heard = hearing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (sent, heard) {
                // A source that failed is the reason; a server that went away said why.
                (Err(error), heard) if !error.to_string().starts_with(GONE) || heard.is_ok() => Err(error),
                (_, heard) => heard,
            }
        })
    }

    fn say(&self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request).map_err(strange)?;
        line.push(b'\n');
        (&self.stream).write_all(&line).map_err(lost)
    }

    fn hear<T: DeserializeOwned>(&self, progress: &mut dyn FnMut(&str, u64, u64)) -> Result<T> {
        let mut answers = BufReader::new(&self.stream);
        loop {
            let mut line = String::new();
            answers.by_ref().take(LINE_MAX).read_line(&mut line).map_err(lost)?;
            if line.is_empty() {
                return Err(Error::new(Kind::Io, "the server of the store went away before it answered"));
            }
            match serde_json::from_str(&line).map_err(strange)? {
                Answer::Progress { what, done, total } => progress(&what, done, total),
                Answer::Done { value } => return serde_json::from_value(value).map_err(strange),
                Answer::Failed { kind, message } => return Err(told(&kind, message)),
            }
        }
    }
}

/// Looks in all places; what is wrong with a socket in one of them is told when no other has the server.
fn look(name: &str, owner: u32) -> Result<UnixStream> {
    let mut wrong = Error::new(Kind::NotFound, "no server listens for commands");
    for place in places::all(owner) {
        match peer::connect(&place, name, owner) {
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => wrong = error,
            found => return found,
        }
    }
    Err(wrong)
}

fn lost(error: std::io::Error) -> Error {
    Error::from_io("cannot speak to the server of the store", error)
}

fn strange(error: serde_json::Error) -> Error {
    Error::new(Kind::Unsupported, "the server of the store is of another version: it can't be understood").caused_by(error)
}
