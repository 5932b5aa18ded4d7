//! A server's side of the control socket.
//!
//! *Threads:* one accepts; each connection has one of its own, since some work takes long. *Invariant:* nobody who may connect can make it
//! take more than a line of memory and one of [`CONNECTIONS_MAX`] threads.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use onefold_backend::peer::{self, ControlListener};
use onefold_core::{Error, Kind, Result};

use super::{Answer, REQUEST_MAX, Request, Tell};

/// Connections at once; people and scripts need few.
const CONNECTIONS_MAX: usize = 16;

/// Time to send a request, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after the system refused a connection: the reason will not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time between two looks whether the server is stopping, while a stream is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Bytes of a stream read at once.
const STREAM_BYTES: usize = 256 << 10;

/// Time between two lines of progress.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// How long open connections may take to end when the server stops.
const END_WAIT: Duration = Duration::from_secs(10);

/// What answers requests.
pub(crate) trait Served: Send + Sync + 'static {
    /// Answers a request; `progress` tells how far long work is, and fails when it should be given up.
    ///
    /// # Errors
    /// What the client is told.
    fn answer(&self, request: Request, progress: &mut Tell<'_>) -> Result<serde_json::Value>;

    /// Answers a request that a stream follows.
    ///
    /// # Errors
    /// What the client is told.
    fn take(&self, request: Request, _input: &mut (dyn Read + Send), _progress: &mut Tell<'_>) -> Result<serde_json::Value> {
        Err(Error::new(Kind::Unsupported, format!("the server takes no stream for {request:?}")))
    }
}

/// Listens for commands until it is stopped.
pub(crate) struct Server {
    name: String,
    hall: Arc<Hall>,
    acceptor: Option<JoinHandle<()>>,
}

struct Hall {
    served: Box<dyn Served>,
    stopping: AtomicBool,
    connections: AtomicUsize,
}

impl Server {
    /// Listens under `name`.
    ///
    /// # Errors
    /// `Busy` when somebody listens there already.
    pub(crate) fn start(name: &str, served: impl Served) -> Result<Server> {
        let listener = ControlListener::bind(name)?;
        let hall = Arc::new(Hall { served: Box::new(served), stopping: AtomicBool::new(false), connections: AtomicUsize::new(0) });
        let inner = hall.clone();
        let acceptor = std::thread::Builder::new().name("control".to_owned()).spawn(move || inner.accept(&listener));
        let acceptor = acceptor.map_err(|e| Error::from_io("cannot start a thread for commands", e))?;
        Ok(Server { name: name.to_owned(), hall, acceptor: Some(acceptor) })
    }

    /// Takes no more commands, and waits for those under way. False when some did not end in time.
    pub(crate) fn stop(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        self.hall.stopping.store(true, Ordering::SeqCst);
        if let Some(acceptor) = self.acceptor.take() {
            // It waits for a connection, so here is one.
            drop(peer::connect(&self.name));
            let _ = acceptor.join();
        }
        let begun = Instant::now();
        while self.hall.connections.load(Ordering::SeqCst) > 0 {
            if begun.elapsed() > END_WAIT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Hall {
    fn accept(self: &Arc<Hall>, listener: &ControlListener) {
        loop {
            let accepted = listener.accept();
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            match accepted {
                Ok(stream) => self.attend(stream),
                Err(error) => {
                    tracing::warn!("{error}");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn attend(self: &Arc<Hall>, stream: UnixStream) {
        if self.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            let busy = Error::new(Kind::Busy, format!("the server answers {CONNECTIONS_MAX} commands already; try again"));
            let _ = tell(&stream, &Answer::from(&busy));
            self.connections.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let place = Place(self.clone());
        let spawned = std::thread::Builder::new().name("command".to_owned()).spawn(move || place.0.serve(&stream));
        if let Err(error) = spawned {
            tracing::warn!("cannot start a thread for a command: {error}");
        }
    }

    /// One request and its answer. A client that went away takes its answer with it.
    fn serve(&self, stream: &UnixStream) {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let mut line = String::new();
        let mut input = BufReader::with_capacity(STREAM_BYTES, stream);
        if input.by_ref().take(REQUEST_MAX).read_line(&mut line).is_err() || line.is_empty() {
            return;
        }
        let mut told: Option<Instant> = None;
        let mut progress = |what: &str, done, total| {
            if self.stopping.load(Ordering::SeqCst) {
                return Err(Error::new(Kind::Stopped, "the server is stopping"));
            }
            if told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
                return Ok(());
            }
            told = Some(Instant::now());
            tell(stream, &Answer::Progress { what: what.to_owned(), done, total })
        };
        let request = serde_json::from_str(&line)
            .map_err(|_| Error::new(Kind::Unsupported, "the server of the store is of another version: it does not know this command"));
        let answered = request.and_then(|request| match request {
            Request::Put { .. } => {
                // A source may take its time between two pieces.
                let _ = stream.set_read_timeout(Some(LOOK_EVERY));
                self.served.take(request, &mut Patient { input, stopping: &self.stopping }, &mut progress)
            }
            request => self.served.answer(request, &mut progress),
        });
        let answer = match answered {
            Ok(value) => Answer::Done { value },
            Err(error) => Answer::from(&error),
        };
        let _ = tell(stream, &answer);
    }
}

/// Waits for a client as long as the server runs.
struct Patient<'a> {
    input: BufReader<&'a UnixStream>,
    stopping: &'a AtomicBool,
}

impl Read for Patient<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.input.read(into) {
                Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                    if self.stopping.load(Ordering::SeqCst) {
                        return Err(std::io::Error::other("the server is stopping"));
                    }
                }
                read => return read,
            }
        }
    }
}

/// A connection's place, given back also when its thread panics.
struct Place(Arc<Hall>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

fn tell(mut stream: &UnixStream, answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_vec(answer).map_err(|e| Error::new(Kind::Io, "an answer can't be written").caused_by(e))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(|e| Error::from_io("the client went away", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers `pid` at once, and anything else only when it is told to stop.
    struct Slow;

    impl Served for Slow {
        fn answer(&self, request: Request, progress: &mut Tell<'_>) -> Result<serde_json::Value> {
            if matches!(request, Request::Pid) {
                return Ok(7.into());
            }
            for n in 0.. {
                progress("slow", n, 0)?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(serde_json::Value::Null)
        }
    }

    fn name(test: &str) -> String {
        test.bytes().map(|byte| format!("{byte:02x}")).collect::<String>() + &format!("{:x}", std::process::id())
    }

    fn ask(name: &str, line: &[u8]) -> BufReader<UnixStream> {
        let mut stream = peer::connect(name).unwrap();
        stream.write_all(line).unwrap();
        BufReader::new(stream)
    }

    fn answer(from: &mut BufReader<UnixStream>) -> String {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn what_makes_no_sense_is_answered_and_costs_its_connection_alone() {
        let name = name("sense");
        let server = Server::start(&name, Slow).unwrap();
        for line in [&b"\n"[..], b"{}\n", b"{\"ask\":\"frobnicate\"}\n", b"{\"ask\":\"volume-create\",\"name\":5}\n", &[b'x'; 10_000]] {
            assert!(answer(&mut ask(&name, line)).contains("\"kind\":\"unsupported\""));
        }
        drop(peer::connect(&name).unwrap());
        drop(ask(&name, b"{\"ask\":\"scrub\"}\n"));
        assert_eq!(answer(&mut ask(&name, b"{\"ask\":\"pid\"}\n")), "{\"answer\":\"done\",\"value\":7}\n");
        assert!(server.stop());
        assert!(peer::connect(&name).is_err());
    }

    #[test]
    fn too_many_wait_and_long_work_is_given_up_at_the_end() {
        let name = name("many");
        let server = Server::start(&name, Slow).unwrap();
        let mut busy: Vec<_> = (0..CONNECTIONS_MAX).map(|_| ask(&name, b"{\"ask\":\"scrub\"}\n")).collect();
        for one in &mut busy {
            assert!(answer(one).contains("\"answer\":\"progress\""));
        }
        let mut refused = BufReader::new(peer::connect(&name).unwrap());
        assert!(answer(&mut refused).contains("\"kind\":\"busy\""));
        assert!(server.stop());
        for mut one in busy {
            let mut last = String::new();
            one.read_to_string(&mut last).unwrap();
            assert!(last.trim_end().ends_with("\"message\":\"the server is stopping\"}"), "{last}");
        }
    }
}
