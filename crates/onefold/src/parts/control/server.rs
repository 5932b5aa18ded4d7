//! A server's side of the control socket.
//!
//! *Threads:* one accepts; each connection has one of its own, since some work takes long.
//! *Invariant:* nobody who may connect can make it take more than a line of memory and a thread for each of
//! [`CONNECTIONS_MAX`] commands and [`UNSAID_MAX`] connections that have not said theirs.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use onefold_backend::peer::{ControlListener, uid_of};
use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

use super::{
    Answer, REQUEST_MAX, Request, Tell, places,
    stream::{Outlet, Pieces},
    streams::{GIVES_WAY, LOOK_EVERY, SILENT_MOST, StreamPlace, Streams},
};

/// Commands at once, streams among them; people and scripts need few.
const CONNECTIONS_MAX: usize = 16;

/// Connections whose commands have not come to their ends yet. One more cuts off the oldest of them, so
/// that none who says nothing, or one byte after the other, keeps others out.
const UNSAID_MAX: usize = 16;

/// Time to send a whole request, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after the system refused a connection: the reason will not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a stream read at once.
const STREAM_BYTES: usize = 256 << 10;

/// Time between two lines of progress.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// How long open connections may take to end when the server stops.
const END_WAIT: Duration = Duration::from_secs(10);

/// The handler of requests.
pub trait Served: Send + Sync + 'static {
    /// Answers a request; `progress` tells how far long work is, and fails when it should be given
    /// up.
    ///
    /// # Errors
    /// The answer to the client.
    fn answer(&self, request: Request, progress: &mut Tell<'_>) -> Result<serde_json::Value>;

    /// Answers a request that a stream follows.
    ///
    /// # Errors
    /// The answer to the client.
    fn take(
        &self,
        request: Request,
        _input: &mut (dyn Read + Send),
        _progress: &mut Tell<'_>,
    ) -> Result<serde_json::Value> {
        Err(Error::new(Kind::Unsupported, format!("the server takes no stream for {request:?}")))
    }

    /// Answers a request with a stream; what is returned follows it.
    ///
    /// # Errors
    /// The answer to the client, to whom the stream does not count then.
    fn give(&self, request: Request, _output: &mut dyn Write) -> Result<serde_json::Value> {
        Err(Error::new(Kind::Unsupported, format!("the server gives no stream for {request:?}")))
    }

    /// Answers a request in which both sides speak; what is returned follows.
    ///
    /// # Errors
    /// The answer to the client.
    fn talk(
        &self,
        request: Request,
        _input: &mut (dyn Read + Send),
        _output: &mut dyn Write,
    ) -> Result<serde_json::Value> {
        Err(Error::new(Kind::Unsupported, format!("the server takes no {request:?}")))
    }
}

/// Hears of each command, by which user it came, and how it ended.
pub type Heard = Arc<dyn Fn(Option<u32>, &Request, &Result<serde_json::Value>) + Send + Sync>;

/// Listens for commands until it is stopped.
pub struct Server {
    hall: Arc<Hall>,
    /// Where it listens, and the thread that does; without a place there is neither.
    at_work: Option<(Arc<ControlListener>, JoinHandle<()>)>,
}

struct Hall {
    served: Box<dyn Served>,
    heard: Option<Heard>,
    stopping: AtomicBool,
    /// Connections that have a thread.
    connections: AtomicUsize,
    /// Those whose commands have not come to their ends, the oldest first.
    unsaid: Mutex<VecDeque<Arc<UnixStream>>>,
    /// Commands under way.
    commands: AtomicUsize,
    /// Streams among them: the other places are for looks and changes.
    streams: Streams,
}

impl Server {
    /// Listens under `name` in the [place](places::own) of this process; the caller holds the lock
    /// of what is served. `heard` is told of each command before its answer goes out. When there is no such place, and nobody asked for one, it warns and
    /// takes no commands.
    ///
    /// # Errors
    /// When the place that was asked for can't be had, or for lack of threads.
    pub fn start(name: &str, served: impl Served, heard: Option<Heard>) -> Result<Server> {
        let place = places::own().inspect(|place| places::prepare(place));
        match place.and_then(|place| ControlListener::bind(&place, name)) {
            Ok(listener) => Server::listen(
                listener,
                Hall::new(served, heard, Streams::new(SILENT_MOST, GIVES_WAY)),
            ),
            Err(error) if places::is_chosen() => Err(error),
            Err(error) => {
                tracing::warn!(
                    "{error}; the store takes no commands while it serves (--control DIR names a \
                     place)"
                );
                Ok(Server {
                    hall: Hall::new(served, heard, Streams::new(SILENT_MOST, GIVES_WAY)),
                    at_work: None,
                })
            }
        }
    }

    fn listen(listener: ControlListener, hall: Arc<Hall>) -> Result<Server> {
        let listener = Arc::new(listener);
        let (inner, socket) = (hall.clone(), listener.clone());
        let acceptor = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || inner.accept(&socket));
        let acceptor =
            acceptor.map_err(|e| Error::from_io("cannot start a thread for commands", e))?;
        Ok(Server { hall, at_work: Some((listener, acceptor)) })
    }

    /// Takes no more commands, and waits for those under way. False when some did not end in time.
    pub fn stop(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        self.hall.stopping.store(true, Ordering::SeqCst);
        if let Some((listener, acceptor)) = self.at_work.take() {
            listener.close();
            // Its panic, if any, was printed.
            let _ = acceptor.join();
        }
        // Connections that have not said their commands are not waited for.
        for unsaid in self.hall.unsaid.lock().drain(..) {
            let _ = unsaid.shutdown(Shutdown::Both);
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
    fn new(served: impl Served, heard: Option<Heard>, streams: Streams) -> Arc<Hall> {
        Arc::new(Hall {
            served: Box::new(served),
            heard,
            stopping: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            unsaid: Mutex::default(),
            commands: AtomicUsize::new(0),
            streams,
        })
    }

    fn accept(self: &Arc<Hall>, listener: &ControlListener) {
        let mut is_told = false;
        loop {
            match listener.accept() {
                Ok(None) => return,
                Ok(Some(stream)) => {
                    is_told = false;
                    self.attend(stream);
                }
                Err(error) => {
                    // It lasts: one line of the log is enough.
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!("{error}");
                    }
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn attend(self: &Arc<Hall>, stream: UnixStream) {
        // Those that were cut off end by themselves.
        while self.connections.load(Ordering::SeqCst) >= CONNECTIONS_MAX + 2 * UNSAID_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.connections.fetch_add(1, Ordering::SeqCst);
        let (place, stream) = (Place(self.clone()), Arc::new(stream));
        let mut unsaid = self.unsaid.lock();
        if unsaid.len() >= UNSAID_MAX
            && let Some(oldest) = unsaid.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        unsaid.push_back(stream.clone());
        drop(unsaid);
        let inner = stream.clone();
        let spawned = std::thread::Builder::new()
            .name("command".to_owned())
            .spawn(move || place.0.serve(&inner));
        if let Err(error) = spawned {
            self.is_said(&stream);
            tracing::warn!("cannot start a thread for a command: {error}");
        }
    }

    /// The command of this connection has come; false when the connection was cut off meanwhile.
    fn is_said(&self, stream: &Arc<UnixStream>) -> bool {
        let mut unsaid = self.unsaid.lock();
        let at = unsaid.iter().position(|one| Arc::ptr_eq(one, stream));
        at.and_then(|at| unsaid.remove(at)).is_some()
    }

    /// A stream, and its end; the answer follows.
    fn give(
        &self,
        request: Request,
        stream: &UnixStream,
        place: &StreamPlace<'_>,
    ) -> Result<serde_json::Value> {
        tell(stream, &Answer::Progress { what: "ready".to_owned(), done: 0, total: 0 })?;
        // Who takes it may take its time between two pieces.
        let _ = stream.set_write_timeout(Some(LOOK_EVERY));
        let mut pieces = Outlet::new(place.patient(stream));
        let answer = self.served.give(request, &mut pieces);
        let ended = pieces.end();
        let _ = stream.set_write_timeout(Some(PATIENCE));
        answer.and_then(|value| ended.map(|()| value))
    }

    /// Streams in both directions, and the end of that which goes out; the answer follows.
    fn talk(
        &self,
        request: Request,
        input: BufReader<&UnixStream>,
        stream: &UnixStream,
        place: &StreamPlace<'_>,
    ) -> Result<serde_json::Value> {
        tell(stream, &Answer::Progress { what: "ready".to_owned(), done: 0, total: 0 })?;
        // The other end of either may take its time.
        let _ = stream.set_read_timeout(Some(LOOK_EVERY));
        let _ = stream.set_write_timeout(Some(LOOK_EVERY));
        let mut input = Pieces::new(place.patient(input));
        let mut output = Outlet::new(place.patient(stream));
        let answer = self.served.talk(request, &mut input, &mut output);
        let ended = output.end();
        let _ = stream.set_write_timeout(Some(PATIENCE));
        answer.and_then(|value| ended.map(|()| value))
    }

    /// One request and its answer. A client that went away takes its answer with it.
    fn serve(&self, stream: &Arc<UnixStream>) {
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let mut input = BufReader::with_capacity(STREAM_BYTES, &**stream);
        let line = request_line(&mut input, stream);
        if !self.is_said(stream) {
            return;
        }
        let Some(line) = line else { return };
        let stream = &**stream;
        let _command = CommandPlace(&self.commands);
        if self.commands.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            let busy = Error::new(
                Kind::Busy,
                format!("the server answers {CONNECTIONS_MAX} commands already; try again"),
            );
            let _ = tell(stream, &Answer::from(&busy));
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
        let request = serde_json::from_str::<Request>(&line).map_err(|_| {
            Error::new(
                Kind::Unsupported,
                "the server of the store is of another version: it does not know this command",
            )
        });
        let asked = request.as_ref().ok().filter(|_| self.heard.is_some()).cloned();
        let answered = request.and_then(|request| {
            if !is_stream(&request) {
                return self.served.answer(request, &mut progress);
            }
            let place = self.streams.place(&self.stopping)?;
            self.stream(request, input, (stream, &place), &mut progress)
        });
        if let (Some(heard), Some(asked)) = (&self.heard, &asked) {
            heard(uid_of(stream).ok(), asked, &answered);
        }
        let answer = match answered {
            Ok(value) => Answer::Done { value },
            Err(error) => Answer::from(&error),
        };
        let _ = tell(stream, &answer);
    }

    /// A request that a stream goes with.
    fn stream(
        &self,
        request: Request,
        input: BufReader<&UnixStream>,
        (stream, place): (&UnixStream, &StreamPlace<'_>),
        progress: &mut Tell<'_>,
    ) -> Result<serde_json::Value> {
        match request {
            request @ (Request::Send { negotiates: true, .. }
            | Request::Receive { negotiates: true, .. }) => {
                self.talk(request, input, stream, place)
            }
            request @ (Request::Export { .. } | Request::Send { .. }) => {
                self.give(request, stream, place)
            }
            request => {
                // A source may take its time between two pieces.
                let _ = stream.set_read_timeout(Some(LOOK_EVERY));
                self.served.take(request, &mut place.patient(input), progress)
            }
        }
    }
}

fn is_stream(request: &Request) -> bool {
    matches!(
        request,
        Request::Send { .. }
            | Request::Receive { .. }
            | Request::Export { .. }
            | Request::Import { .. }
            | Request::Put { .. }
            | Request::Backup(_)
            | Request::Copy(_)
    )
}

/// The line of a request, or as much of it as may be read. `None` when it does not come in time, and when
/// the client goes away without a word.
fn request_line(input: &mut BufReader<&UnixStream>, stream: &UnixStream) -> Option<String> {
    let (begun, mut line) = (Instant::now(), Vec::new());
    while line.len() < REQUEST_MAX as usize && !line.ends_with(b"\n") {
        let left = PATIENCE.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        let came = match input.fill_buf() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            came => came.ok()?,
        };
        if came.is_empty() {
            break;
        }
        let most = came.len().min(REQUEST_MAX as usize - line.len());
        let end = came[..most].iter().position(|byte| *byte == b'\n').map_or(most, |at| at + 1);
        line.extend_from_slice(&came[..end]);
        input.consume(end);
    }
    String::from_utf8(line).ok().filter(|line| !line.is_empty())
}

/// A place among the commands, given back when it is dropped.
struct CommandPlace<'a>(&'a AtomicUsize);

impl Drop for CommandPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
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
    let mut line = serde_json::to_vec(answer)
        .map_err(|e| Error::new(Kind::Io, "an answer can't be written").caused_by(e))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(|e| Error::from_io("the client went away", e))
}

#[cfg(test)]
mod tests {
    use onefold_backend::peer;

    use super::{super::streams::STREAMS_MAX, *};

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

        fn take(
            &self,
            _: Request,
            input: &mut (dyn Read + Send),
            progress: &mut Tell<'_>,
        ) -> Result<serde_json::Value> {
            progress("ready", 0, 0)?;
            let read = input.read(&mut [0]).map_err(|e| Error::from_io("read", e))?;
            Ok(read.into())
        }

        fn give(&self, _: Request, output: &mut dyn Write) -> Result<serde_json::Value> {
            loop {
                let piece = vec![0; STREAM_BYTES];
                output.write_all(&piece).map_err(|e| Error::from_io("write", e))?;
            }
        }
    }

    /// A server in a directory of its own.
    fn server() -> (tempfile::TempDir, Server) {
        server_for(SILENT_MOST, GIVES_WAY)
    }

    fn server_for(silent_most: Duration, gives_way: Duration) -> (tempfile::TempDir, Server) {
        let room = tempfile::tempdir().unwrap();
        let listener = ControlListener::bind(&room.path().join("doors"), "1f").unwrap();
        (
            room,
            Server::listen(listener, Hall::new(Slow, None, Streams::new(silent_most, gives_way)))
                .unwrap(),
        )
    }

    fn connect(room: &tempfile::TempDir) -> Result<UnixStream> {
        peer::connect(&room.path().join("doors"), "1f", peer::own_uid())
    }

    fn ask(room: &tempfile::TempDir, line: &[u8]) -> BufReader<UnixStream> {
        let mut stream = connect(room).unwrap();
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
        let (room, server) = server();
        for line in [
            &b"\n"[..],
            b"{}\n",
            b"{\"ask\":\"frobnicate\"}\n",
            b"{\"ask\":\"volume-create\",\"name\":5}\n",
            // The rest fits into the socket's buffer: the server reads no more of it.
            &[b'x'; REQUEST_MAX as usize + 1],
        ] {
            assert!(answer(&mut ask(&room, line)).contains("\"kind\":\"unsupported\""));
        }
        drop(connect(&room).unwrap());
        drop(ask(&room, b"{\"ask\":\"scrub\"}\n"));
        assert_eq!(
            answer(&mut ask(&room, b"{\"ask\":\"pid\"}\n")),
            "{\"answer\":\"done\",\"value\":7}\n"
        );
        assert!(server.stop());
        assert!(connect(&room).is_err());
    }

    #[test]
    fn rule_12_clients_that_begin_streams_and_send_nothing_keep_no_look_waiting() {
        let (room, server) = server();
        let put = b"{\"ask\":\"put\",\"name\":\"x\",\"tree\":false}\n";
        let mut silent: Vec<_> = (0..STREAMS_MAX).map(|_| ask(&room, put)).collect();
        for one in &mut silent {
            assert!(answer(one).contains("\"answer\":\"progress\""));
        }
        assert!(answer(&mut ask(&room, put)).contains("\"kind\":\"busy\""));
        assert!(answer(&mut ask(&room, b"{\"ask\":\"pid\"}\n")).contains("\"value\":7"));
        // A place comes back with its client.
        drop(silent.pop());
        let begun = Instant::now();
        while answer(&mut ask(&room, put)).contains("\"kind\":\"busy\"") {
            assert!(begun.elapsed() < Duration::from_secs(30));
        }
        assert!(server.stop());
    }

    #[test]
    fn rule_12_commands_that_never_end_keep_nobody_out() {
        let (room, server) = server();
        let mut unsaid: Vec<_> = (0..UNSAID_MAX + 4).map(|_| ask(&room, b"{")).collect();
        assert!(answer(&mut ask(&room, b"{\"ask\":\"pid\"}\n")).contains("\"value\":7"));
        // The oldest went, and the others can still say theirs.
        for one in &mut unsaid[..5] {
            assert!(!one.read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0));
        }
        let last = unsaid.last_mut().unwrap();
        last.get_mut().write_all(b"\"ask\":\"pid\"}\n").unwrap();
        assert!(answer(last).contains("\"value\":7"));
        // Nor does the end wait for those that say nothing.
        let begun = Instant::now();
        assert!(server.stop() && begun.elapsed() < END_WAIT / 2);
    }

    #[test]
    fn rule_12_a_stream_in_which_nothing_moves_is_ended() {
        let (room, server) = server_for(Duration::from_millis(1200), GIVES_WAY);
        let put = b"{\"ask\":\"put\",\"name\":\"x\",\"tree\":false}\n";
        let mut slow = ask(&room, put);
        let mut silent: Vec<_> = (1..STREAMS_MAX).map(|_| ask(&room, put)).collect();
        // One takes what is given, and reads nothing of it.
        silent.pop();
        let idle = ask(&room, b"{\"ask\":\"export\",\"name\":\"x\"}\n");
        for one in silent.iter_mut().chain([&mut slow]) {
            assert!(answer(one).contains("\"answer\":\"progress\""));
        }
        std::thread::sleep(Duration::from_millis(300));
        slow.get_mut().write_all(b"x").unwrap();
        assert!(answer(&mut slow).contains("\"value\":1"));
        for one in &mut silent {
            assert!(answer(one).contains("was silent"));
        }
        let begun = Instant::now();
        while server.hall.streams.count() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(30), "places are kept");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop((silent, slow, idle));
        assert!(server.stop());
    }

    #[test]
    fn rule_12_a_silent_stream_gives_way_when_all_places_are_taken() {
        let (room, server) = server_for(SILENT_MOST, Duration::from_millis(100));
        let put = b"{\"ask\":\"put\",\"name\":\"x\",\"tree\":false}\n";
        let mut silent: Vec<_> = (0..STREAMS_MAX).map(|_| ask(&room, put)).collect();
        for one in &mut silent {
            assert!(answer(one).contains("\"answer\":\"progress\""));
        }
        std::thread::sleep(2 * LOOK_EVERY);
        let mut newcomers: Vec<_> = (0..3).map(|_| ask(&room, put)).collect();
        for one in &mut newcomers {
            let said = answer(one);
            assert!(said.contains("\"answer\":\"progress\""), "{said}");
        }
        let gave_way = silent.iter_mut().map(|one| {
            one.get_ref().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let mut line = String::new();
            one.read_line(&mut line).is_ok() && line.contains("needed its place")
        });
        assert!(gave_way.filter(|gave_way| *gave_way).count() >= 3);
        drop((silent, newcomers));
        assert!(server.stop());
    }

    #[test]
    fn too_many_wait_and_long_work_is_given_up_at_the_end() {
        let (room, server) = server();
        let mut busy: Vec<_> =
            (0..CONNECTIONS_MAX).map(|_| ask(&room, b"{\"ask\":\"scrub\"}\n")).collect();
        for one in &mut busy {
            assert!(answer(one).contains("\"answer\":\"progress\""));
        }
        assert!(answer(&mut ask(&room, b"{\"ask\":\"pid\"}\n")).contains("\"kind\":\"busy\""));
        assert!(server.stop());
        for mut one in busy {
            let mut last = String::new();
            one.read_to_string(&mut last).unwrap();
            assert!(last.trim_end().ends_with("\"message\":\"the server is stopping\"}"), "{last}");
        }
    }
}
