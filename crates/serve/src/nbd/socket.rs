//! Connected sockets, with the deadlines that keep a silent client from holding anything but its
//! own connection.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use onefold_core::CpuContention;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};

use super::inbox::Source;
use super::limits::{LOOK, Limits};
use super::line::{InTurn, Line, Received, Secrecy};
use super::rights::Peer;
use crate::client_fd::ClientFd;
use crate::tls::Proof;

/// Ends both directions; threads that wait on the socket return.
pub(crate) fn hang_up(socket: &OwnedFd) {
    // Shutting down fails only when the other side was faster.
    let _ = shutdown(socket, Shutdown::Both);
}

/// Stops receiving from the client; bytes that have arrived can still be read, and the client still
/// gets replies. TCP continues to receive all the same, which is why a [`Receiver`] has to know.
pub(crate) fn stop_receiving(socket: &OwnedFd) {
    let _ = shutdown(socket, Shutdown::Read);
}

/// The receiving half.
pub(crate) struct Receiver<'a> {
    socket: Arc<ClientFd>,
    deadline: Option<Instant>,
    /// The server stops: what has arrived is received once more, and then nothing.
    stopping: &'a AtomicBool,
    stopped: bool,
    /// How long to wait for the next bytes without sleeping.
    awake: Duration,
    /// The last bytes came within that time.
    brisk: bool,
    /// Others need the processor: the thread sleeps at once.
    crowd: CpuContention,
    /// The start of the times given to `crowd`.
    born: Instant,
    /// How long a client may be silent after its handshake.
    idle: Option<Duration>,
    /// When something last came.
    heard: Instant,
    /// The next bytes begin a request.
    between: bool,
    activity: Arc<Activity>,
    line: Arc<Line>,
    /// Encrypted bytes, on a line that has some.
    received: Received,
    /// Told who the client is once it has proved it; false when it has to go.
    known: &'a dyn Fn(Proof) -> bool,
    in_turn: &'a InTurn<'a>,
}

/// The state of a connection, for other threads to look at. Times are in milliseconds since the
/// server was made.
pub(crate) struct Activity {
    since: Instant,
    /// When the client was last heard.
    heard: AtomicU64,
    work: Mutex<Work>,
    /// When the reply was begun that the client is to take now, and one millisecond; 0 for none.
    sending: AtomicU64,
    /// The server ended the connection.
    cut: AtomicBool,
}

/// What a connection does with its working place.
#[derive(Default)]
struct Work {
    /// True while the connection has a working place.
    works: bool,
    /// When the server last did something that the client waited for: gave it the place, or began
    /// to send a reply.
    served: u64,
    /// How many of the connection's threads wait for the client to send or to receive.
    waits: usize,
    /// When the first of these began to wait.
    waits_since: u64,
    /// For how long the place was kept for nothing but the client, up to `waits_since`, since the
    /// last request came as a whole.
    kept: u64,
}

/// How a client keeps a working place with which the connection does nothing but wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Time since the client or the server last did something.
    pub(crate) still: Duration,
    /// Time that the connection has waited for its client in the request at hand.
    pub(crate) waited: Duration,
}

impl Activity {
    pub(crate) fn new(since: Instant) -> Activity {
        let heard = AtomicU64::new(since.elapsed().as_millis() as u64);
        let (sending, cut) = (AtomicU64::new(0), AtomicBool::new(false));
        Activity { since, heard, work: Mutex::default(), sending, cut }
    }

    fn time(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.since).as_millis() as u64
    }

    pub(crate) fn hears(&self, now: Instant) {
        self.heard.store(self.time(now), Relaxed);
    }

    /// When the client was last heard.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Relaxed)
    }

    /// Says that the connection has a working place from `now` on.
    pub(crate) fn works(&self, now: Instant) {
        let now = self.time(now);
        let mut work = self.work.lock();
        *work = Work { works: true, served: now, waits_since: now, kept: 0, waits: work.waits };
    }

    /// Says that the connection has no working place.
    pub(crate) fn rests(&self) {
        self.work.lock().works = false;
    }

    /// True when it has a working place.
    pub(crate) fn is_at_work(&self) -> bool {
        self.work.lock().works
    }

    /// The server ends the connection: its threads wait for nothing any more.
    pub(crate) fn cut(&self) {
        self.rests();
        self.cut.store(true, Relaxed);
    }

    /// A reply is on its way to the client from `begun` on; with `None` none is.
    fn sends(&self, begun: Option<Instant>) {
        self.sending.store(begun.map_or(0, |begun| self.time(begun) + 1), Relaxed);
    }

    /// For how long at `now`, counted from `from` on, the client has not taken the reply that is being
    /// sent; nothing while the server works for it.
    pub(crate) fn untaken(&self, from: Instant, now: Instant) -> Duration {
        match self.sending.load(Relaxed).checked_sub(1) {
            None => Duration::ZERO,
            Some(begun) => {
                let begun = begun.max(self.time(from));
                Duration::from_millis(self.time(now).saturating_sub(begun))
            }
        }
    }

    /// True when the server ended the connection.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }

    /// A thread of the connection begins to wait for the client; with `sends`, to take a reply.
    fn wait_begins(&self, now: Instant, sends: bool) {
        let now = self.time(now);
        let mut work = self.work.lock();
        if sends {
            work.served = now;
        }
        if work.waits == 0 {
            work.waits_since = now;
        }
        work.waits += 1;
    }

    /// The client is between two requests. It may be: a connection that others want gives its place
    /// back by itself.
    fn is_between(&self) {
        let mut work = self.work.lock();
        if work.waits == 0 {
            work.kept = 0;
        }
    }

    fn wait_ends(&self, now: Instant) {
        let now = self.time(now);
        let mut work = self.work.lock();
        work.waits -= 1;
        if work.waits == 0 {
            work.kept += now.saturating_sub(work.waits_since);
        }
    }

    /// How the client keeps a working place at `now`; `None` when the connection has none, or works
    /// with it. A client is not blamed for the time that it waited for the server.
    pub(crate) fn kept_by_its_client(&self, now: Instant) -> Option<Kept> {
        let now = self.time(now);
        let work = self.work.lock();
        (work.works && work.waits > 0).then(|| Kept {
            still: Duration::from_millis(now.saturating_sub(self.heard().max(work.served))),
            waited: Duration::from_millis(work.kept + now.saturating_sub(work.waits_since)),
        })
    }
}

impl<'a> Receiver<'a> {
    /// Receives until the handshake's time is over, or shortly after `stopping` is set. `known` is told
    /// who the client is once it has proved it on a `line` that asks for that; what that takes is
    /// computed within `in_turn`.
    pub(crate) fn new(
        socket: Arc<ClientFd>,
        limits: &Limits,
        stopping: &'a AtomicBool,
        activity: Arc<Activity>,
        line: Arc<Line>,
        (known, in_turn): (&'a dyn Fn(Proof) -> bool, &'a InTurn<'a>),
    ) -> Receiver<'a> {
        let born = Instant::now();
        let deadline = Some(born + limits.handshake);
        Receiver {
            socket,
            deadline,
            stopping,
            stopped: false,
            awake: limits.awake,
            brisk: false,
            crowd: CpuContention::default(),
            born,
            idle: limits.idle,
            heard: born,
            between: false,
            activity,
            line,
            received: Received::default(),
            known,
            in_turn,
        }
    }

    /// From now on a client may be silent as long as it likes, or as long as it may.
    pub(crate) fn lift_deadline(&mut self) {
        self.deadline = None;
        self.looks_around(false);
    }

    /// Something came.
    fn hear(&mut self, now: Instant) {
        self.heard = now;
        self.activity.hears(now);
    }

    /// Receives the bytes that have arrived; `None` when there are none.
    fn receive_now(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.socket.receive_now(buffer) {
            Ok(received) => Ok(Some(received)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives bytes, and waits for them if need be. A client that waits for each reply is back
    /// within microseconds, and falling asleep and being woken would cost more time than its
    /// request. So a thread whose client was brisk the last time stays awake for a moment, and lets
    /// others run meanwhile, unless the processor is crowded.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let began = Instant::now();
        if self.between {
            self.activity.is_between();
        }
        while self.brisk
            && !self.crowd.is_there(self.born.elapsed())
            && began.elapsed() < self.awake
        {
            if let Some(received) = self.receive_now(buffer)? {
                self.hear(began);
                return Ok(received);
            }
            let before = self.born.elapsed();
            std::thread::yield_now();
            self.crowd.yielded(before, self.born.elapsed());
        }
        if !self.between {
            self.activity.wait_begins(Instant::now(), false);
        }
        let received = self.socket.receive(buffer);
        let now = Instant::now();
        if !self.between {
            self.activity.wait_ends(now);
        }
        self.brisk = now - began < self.awake;
        match received {
            Ok(received) => {
                self.hear(now);
                Ok(received)
            }
            Err(Errno::AGAIN)
                if self.deadline.is_some()
                    || self.idle.is_some_and(|idle| now - self.heard >= idle) =>
            {
                Err(io::ErrorKind::TimedOut.into())
            }
            Err(Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Source for Receiver<'_> {
    fn between(&mut self, between: bool) {
        self.between = between;
    }

    fn looks_around(&mut self, looks: bool) {
        let left = self
            .idle
            .map(|idle| idle.saturating_sub(self.heard.elapsed()).max(Duration::from_millis(1)));
        let timeout =
            if looks { Some(self.idle.map_or(LOOK, |idle| idle.min(LOOK))) } else { left };
        // If that fails, the timeout of the last receive stays: the thread looks around more often,
        // or less.
        let _ = sockopt::set_socket_timeout(&self.socket, Timeout::Recv, timeout);
        if self.line.tls().is_some() {
            self.received.works(looks);
        }
    }

    fn secrecy(&self) -> Secrecy {
        self.line.secrecy()
    }

    fn start_tls(&mut self) -> io::Result<Peer> {
        let (line, socket) = (self.line.clone(), self.socket.clone());
        let mut received = std::mem::take(&mut self.received);
        let in_turn = self.in_turn;
        let proof = line.start_tls(&socket, &mut received, |into| self.read_socket(into), in_turn);
        self.received = received;
        let proof = proof?;
        let peer = Peer::Certificate(proof.identity);
        match (self.known)(proof) {
            true => Ok(peer),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

impl Read for Receiver<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.line.tls().is_none() {
            return self.read_socket(buffer);
        }
        let line = self.line.clone();
        while let Some(tls) = line.tls() {
            if let Some(opened) = tls.open(&self.socket, &mut self.received, buffer)? {
                return Ok(opened);
            }
            let mut received = std::mem::take(&mut self.received);
            let filled = received.fill(&mut |into: &mut [u8]| self.read_socket(into));
            self.received = received;
            if filled? == 0 {
                break;
            }
        }
        Ok(0)
    }
}

impl Receiver<'_> {
    /// Receives bytes as they are on the socket.
    fn read_socket(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sockopt::set_socket_timeout(
                &self.socket,
                Timeout::Recv,
                Some(left.max(Duration::from_millis(1))),
            )?;
        }
        if self.stopped {
            return Ok(0);
        }
        self.stopped = self.stopping.load(Relaxed);
        if self.stopped { Ok(self.receive_now(buffer)?.unwrap_or(0)) } else { self.receive(buffer) }
    }
}

/// The sending half. The client has `timeout` to take what is sent between two calls of `flush`;
/// the connection is ended when it does not.
pub(crate) struct Transmitter {
    socket: Arc<ClientFd>,
    timeout: Duration,
    /// When the client first kept us waiting.
    waiting_since: Option<Instant>,
    activity: Arc<Activity>,
    line: Arc<Line>,
}

impl Transmitter {
    /// Sends with `timeout`.
    ///
    /// # Errors
    /// When the system refuses the timeout.
    pub(crate) fn new(
        socket: Arc<ClientFd>,
        timeout: Duration,
        activity: Arc<Activity>,
        line: Arc<Line>,
    ) -> io::Result<Transmitter> {
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
        Ok(Transmitter { socket, timeout, waiting_since: None, activity, line })
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let begun = Instant::now();
        self.activity.wait_begins(begun, true);
        self.activity.sends(Some(begun));
        let sent = sendmsg(
            &*self.socket,
            slices,
            &mut SendAncillaryBuffer::default(),
            SendFlags::NOSIGNAL,
        );
        self.activity.sends(None);
        self.activity.wait_ends(Instant::now());
        let sent = match sent {
            Ok(sent) => sent,
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        };
        if sent < slices.iter().map(|slice| slice.len()).sum()
            && self.waiting_since.get_or_insert_with(Instant::now).elapsed() > self.timeout
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(sent)
    }
}

impl Transmitter {
    fn send_sealed(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let line = self.line.clone();
        let Some(tls) = line.tls() else { return Ok(0) };
        tls.send(slices, |sealed| self.send(&[IoSlice::new(sealed)]))
    }
}

impl Write for Transmitter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let sent = match self.line.tls() {
            None => self.send(slices),
            Some(_) => self.send_sealed(slices),
        };
        if sent.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
            hang_up(&self.socket);
        }
        sent
    }

    fn flush(&mut self) -> io::Result<()> {
        self.waiting_since = None;
        if let Some(tls) = self.line.tls() {
            tls.rest();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_not_said_to_leave_a_reply_that_nobody_sends() {
        let since = Instant::now();
        let at = |seconds| since + Duration::from_secs(seconds);
        let activity = Activity::new(since);
        let untaken = |from, now| activity.untaken(at(from), at(now)).as_secs();
        activity.works(at(0));
        assert_eq!(untaken(1, 9), 0, "the server works");
        activity.sends(Some(at(9)));
        assert_eq!((untaken(1, 9), untaken(1, 12), untaken(11, 12)), (0, 3, 1));
        activity.sends(Some(at(13)));
        assert_eq!(untaken(1, 14), 1, "it took a part");
        activity.sends(None);
        assert_eq!(untaken(1, 20), 0);
    }

    #[test]
    fn rule_12_no_client_is_blamed_for_time_that_it_waited_for_the_server() {
        let since = Instant::now();
        let at = |seconds| since + Duration::from_secs(seconds);
        let activity = Activity::new(since);
        let kept = |now| activity.kept_by_its_client(at(now)).map(|kept| (kept.still, kept.waited));
        let seconds =
            |still, waited| Some((Duration::from_secs(still), Duration::from_secs(waited)));
        // It asks at once, has a place after 5 s, and its answer after 9.
        activity.hears(at(0));
        activity.wait_begins(at(1), false);
        assert_eq!(kept(3), None, "it has no place");
        activity.wait_ends(at(3));
        activity.works(at(5));
        assert_eq!(kept(6), None, "the server works");
        activity.wait_begins(at(9), true);
        assert_eq!(kept(9), seconds(0, 0));
        assert_eq!(kept(11), seconds(2, 2), "it does not take its answer");
        activity.wait_begins(at(12), false);
        activity.wait_ends(at(13));
        assert_eq!(kept(14), seconds(5, 5));
        activity.wait_ends(at(14));
        assert_eq!(kept(15), None);
        // Its request came as a whole, and it may pause.
        activity.is_between();
        assert_eq!(kept(16), None);
        // It sends a byte now and then.
        activity.wait_begins(at(16), false);
        activity.hears(at(20));
        assert_eq!(kept(21), seconds(1, 5));
        activity.rests();
        assert_eq!(kept(22), None);
        activity.works(at(23));
        assert_eq!(kept(24), seconds(1, 1), "the place is another one");
    }
}
