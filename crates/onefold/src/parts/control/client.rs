//! A verb's side of the control socket.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use onefold_backend::peer;
use onefold_core::{Error, Kind, Result};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    LINE_MAX, Request, places,
    stream::{GONE, Outlet, Pieces, UNWRITTEN},
    told,
};
use crate::parts::store_file::StoreFile;

/// How long a server may be silent: it tells progress of long work, and a change of a full and busy
/// store may wait for checkpoints.
const SILENCE: Duration = Duration::from_secs(600);

/// How long a server may be silent that is asked for what it knows.
const SILENCE_OF_LISTS: Duration = Duration::from_secs(60);

/// How long a server may take to say its number.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Longest line of an answer but for lists and statuses, in bytes.
const SHORT_LINE_MAX: u64 = 64 << 10;

/// Bytes of a talk that are passed on at once.
const TALK_BYTES: usize = 256 << 10;

/// A line of an answer, read into the expected type and nothing else, so that a line costs no more
/// memory than it may hold.
#[derive(Deserialize)]
struct Heard<T> {
    answer: String,
    #[serde(default = "nothing")]
    value: Option<T>,
    #[serde(default)]
    what: String,
    #[serde(default)]
    done: u64,
    #[serde(default)]
    total: u64,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    message: String,
}

fn nothing<T>() -> Option<T> {
    None
}

/// A connection to the server of a store; each asks once.
pub struct Client {
    stream: UnixStream,
    /// How long the server may be silent that is asked for what it knows.
    silence_of_lists: Duration,
}

impl Client {
    /// Connects to the server that has the store open.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Denied` when it can't be trusted.
    pub fn connect(file: &StoreFile) -> Result<Client> {
        Client::connect_to(&file.control_name(), file.owner(), file.path())
    }

    /// The same for whatever has a control socket of this name, and belongs to `owner`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_to(name: &str, owner: u32, path: &Path) -> Result<Client> {
        let stream = look(name, owner).map_err(|error| match error.kind() {
            Kind::Denied => Error::new(
                Kind::Denied,
                format!("a process that does not own {} listens for its commands", path.display()),
            ),
            _ => error,
        })?;
        stream.set_read_timeout(Some(SILENCE)).map_err(lost)?;
        stream.set_write_timeout(Some(SILENCE)).map_err(lost)?;
        Ok(Client { stream, silence_of_lists: SILENCE_OF_LISTS })
    }

    /// The number of the server's process.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn pid(&mut self) -> Result<u32> {
        self.stream.set_read_timeout(Some(AT_ONCE)).map_err(lost)?;
        self.say(&Request::Pid)?;
        self.hear(SHORT_LINE_MAX, &mut |_, _, _| {
            Err(Error::new(Kind::Unsupported, "the server of the store does not say its number"))
        })
    }

    /// Asks, and gives the answer.
    ///
    /// # Errors
    /// The server's, or `Io` when it goes away.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T> {
        self.ask_long(request, &mut |_, _, _| {})
    }

    /// As [`ask`](Self::ask); `progress` hears what is being done, bytes done and bytes in all.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_long<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<T> {
        if matches!(request, Request::Status | Request::VolumeList | Request::SnapshotList) {
            self.stream.set_read_timeout(Some(self.silence_of_lists)).map_err(lost)?;
        }
        self.say(request)?;
        let line_max = if matches!(
            request,
            Request::Status
                | Request::VolumeList
                | Request::SnapshotList
                | Request::SnapshotSpace
                | Request::VolumeSpace
        ) {
            LINE_MAX
        } else {
            SHORT_LINE_MAX
        };
        self.hear(line_max, &mut |what, done, total| {
            progress(what, done, total);
            Ok(())
        })
    }

    /// Asks with a stream, which `source` writes as soon as the server takes it; `progress` is as
    /// of [`ask_long`](Self::ask_long).
    ///
    /// # Errors
    /// The server's, or `source`, or `Io` when the server goes away.
    pub fn send<T: DeserializeOwned + Send>(
        &mut self,
        request: &Request,
        progress: &mut (dyn FnMut(u64, u64) + Send),
        source: impl FnOnce(&mut Outlet<&UnixStream>) -> Result<()>,
    ) -> Result<T> {
        self.say(request)?;
        // The client sends for as long as its source has something; the server says nothing while
        // nothing arrives.
        self.stream.set_read_timeout(None).map_err(lost)?;
        let (ready, may) = std::sync::mpsc::channel();
        let this = &*self;
        std::thread::scope(|scope| {
            let hearing = scope.spawn(move || {
                let mut ready = Some(ready);
                this.hear(SHORT_LINE_MAX, &mut |_, done, total| {
                    match ready.take() {
                        Some(ready) => drop(ready.send(())),
                        None => progress(done, total),
                    }
                    Ok(())
                })
            });
            let sent = match may.recv() {
                Ok(()) => {
                    let mut outlet = Outlet::new(&this.stream);
                    source(&mut outlet).and_then(|()| outlet.end())
                }
                // The server refused; its answer says why.
                Err(_) => Ok(()),
            };
            if sent.is_err() {
                // Without its end the stream does not count.
                let _ = this.stream.shutdown(std::net::Shutdown::Write);
            }
            let heard = hearing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (sent, heard) {
                // A source that failed is the reason; a server that went away said why.
                (Err(error), heard) if !is_gone(&error) || heard.is_ok() => Err(error),
                (_, heard) => heard,
            }
        })
    }

    /// Asks for a stream, which `into` reads to its end; then comes the answer.
    ///
    /// # Errors
    /// The server's, or that of `into`, or `Io` when the server goes away.
    pub fn fetch<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        into: impl FnOnce(&mut dyn Read) -> Result<()>,
    ) -> Result<T> {
        let mut answers = self.begin_stream::<T>(request)?;
        let mut pieces = Pieces::new(&mut answers);
        let read = into(&mut pieces);
        if read.is_ok() {
            // The end of the pieces.
            std::io::copy(&mut pieces, &mut std::io::sink()).map_err(lost)?;
        }
        if !pieces.has_ended() {
            return read.and_then(|()| Err(Error::new(Kind::Io, GONE)));
        }
        // A server that failed in the middle says why.
        let answer = hear_from(&mut answers, SHORT_LINE_MAX, &mut |_, _, _| Ok(()));
        answer.and_then(|value| read.map(|()| value))
    }

    /// Asks for a talk: what `source` has goes to the server until it ends, on a thread that is left
    /// alone when the server has said all; what the server says goes to `into`, each piece at once.
    /// Then comes the answer.
    ///
    /// # Errors
    /// The server's, or that of `into`, or `Io` when the server goes away.
    pub fn talk<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        source: impl Read + Send + 'static,
        into: &mut dyn Write,
    ) -> Result<T> {
        let mut answers = self.begin_stream::<T>(request)?;
        let own = self.stream.try_clone().map_err(lost)?;
        std::thread::Builder::new()
            .name("stream".to_owned())
            .spawn(move || {
                let mut outlet = Outlet::new(&own);
                let ended = pass_on(source, &mut outlet).and_then(|()| outlet.end());
                if ended.is_err() {
                    // Without its end the stream does not count.
                    let _ = own.shutdown(std::net::Shutdown::Write);
                }
            })
            .map_err(|e| Error::from_io("cannot start a thread for a stream", e))?;
        let mut pieces = Pieces::new(&mut answers);
        let passed = pass_on(&mut pieces, into);
        if !pieces.has_ended() {
            return passed.and_then(|()| Err(Error::new(Kind::Io, GONE)));
        }
        let answer = hear_from(&mut answers, SHORT_LINE_MAX, &mut |_, _, _| Ok(()));
        answer.and_then(|value| passed.map(|()| value))
    }

    /// Asks for a stream, and waits until it begins.
    fn begin_stream<T: DeserializeOwned>(
        &self,
        request: &Request,
    ) -> Result<BufReader<&UnixStream>> {
        self.say(request)?;
        // The server says nothing while it reads what is a hole, or while nobody takes the stream.
        self.stream.set_read_timeout(None).map_err(lost)?;
        let mut answers = BufReader::new(&self.stream);
        let mut line = String::new();
        answers.by_ref().take(SHORT_LINE_MAX).read_line(&mut line).map_err(lost)?;
        let first: Heard<T> = serde_json::from_str(&line).map_err(strange)?;
        if first.answer == "progress" {
            return Ok(answers);
        }
        Err(told(&first.kind, first.message))
    }

    fn say(&self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request).map_err(strange)?;
        line.push(b'\n');
        match (&self.stream).write_all(&line) {
            // Who hears next learns what the server said before it went, or that it went.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            said => said.map_err(lost),
        }
    }

    /// Reads lines of at most so many bytes, until one ends the answer; `progress` may give it up.
    fn hear<T: DeserializeOwned>(
        &self,
        line_max: u64,
        progress: &mut dyn FnMut(&str, u64, u64) -> Result<()>,
    ) -> Result<T> {
        hear_from(&mut BufReader::new(&self.stream), line_max, progress)
    }
}

/// Passes bytes on as they come, to the end.
fn pass_on(mut from: impl Read, to: &mut dyn Write) -> Result<()> {
    let mut buffer = vec![0; TALK_BYTES];
    loop {
        let n = match from.read(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.map_err(|e| Error::from_io("the stream can't be read", e))?,
        };
        if n == 0 {
            return Ok(());
        }
        let passed = to.write_all(&buffer[..n]).and_then(|()| to.flush());
        passed.map_err(|e| Error::from_io(UNWRITTEN, e))?;
    }
}

/// As [`Client::hear`], of somebody who read some of it before.
fn hear_from<T: DeserializeOwned>(
    answers: &mut impl BufRead,
    line_max: u64,
    progress: &mut dyn FnMut(&str, u64, u64) -> Result<()>,
) -> Result<T> {
    loop {
        let mut line = String::new();
        answers.by_ref().take(line_max).read_line(&mut line).map_err(lost)?;
        if line.is_empty() {
            return Err(Error::new(
                Kind::Io,
                "the server of the store went away before it answered",
            ));
        }
        let heard: Heard<T> = serde_json::from_str(&line).map_err(strange)?;
        match heard.answer.as_str() {
            "progress" => progress(&heard.what, heard.done, heard.total)?,
            "done" => {
                return heard.value.map_or_else(
                    || serde_json::from_value(serde_json::Value::Null).map_err(strange),
                    Ok,
                );
            }
            "failed" => return Err(told(&heard.kind, heard.message)),
            _ => return Err(strange(serde::de::Error::custom("an answer of another kind"))),
        }
    }
}

/// Looks in all places. An error of a socket in one of them is told when no other place has the
/// server.
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

/// True when a source could not pass its stream on, as the server takes no more of it.
fn is_gone(error: &Error) -> bool {
    let error = error.to_string();
    error.starts_with(GONE) || error.starts_with(UNWRITTEN)
}

fn lost(error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::WouldBlock {
        let silent = "the server of the store does not answer: its process may be stopped";
        return Error::new(Kind::Io, silent);
    }
    Error::from_io("cannot speak to the server of the store", error)
}

fn strange(error: serde_json::Error) -> Error {
    Error::new(
        Kind::Unsupported,
        "the server of the store is of another version: it can't be understood",
    )
    .caused_by(error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

    use super::*;

    #[test]
    fn a_server_that_does_not_answer_is_told_of_and_for_lists_soon() {
        let silence = Duration::from_millis(40);
        let silence_of_lists = Duration::from_millis(20);
        for (request, expected) in [
            (Request::Status, silence_of_lists),
            (Request::VolumeList, silence_of_lists),
            (Request::SnapshotList, silence_of_lists),
            (Request::SnapshotSpace, silence),
        ] {
            // A stopped process: its socket takes what comes, and nobody reads it.
            let (stream, _server) = UnixStream::pair().unwrap();
            stream.set_read_timeout(Some(silence)).unwrap();
            let mut client = Client { stream, silence_of_lists };
            let error = client.ask::<serde_json::Value>(&request).unwrap_err();
            assert_eq!(error.kind(), Kind::Io);
            assert!(error.to_string().contains("its process may be stopped"), "{error}");
            assert_eq!(client.stream.read_timeout().unwrap(), Some(expected), "{request:?}");
        }
    }
}
