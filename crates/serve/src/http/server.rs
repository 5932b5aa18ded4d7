//! Clients: each has a thread, one request and a few seconds.
//!
//! *Invariants.* No peer keeps another one out, and nobody the operator: when all connections are
//! taken, one of a peer gives way that has more than half of them, or more than the newcomer's.
//! Where nobody has too many, the oldest gives way of those that have not sent their request, or
//! have their answer already, and one of the newcomer's own peer if it has any. None of the
//! operator's gives way to a stranger, and one of a stranger does to the operator, whatever it is
//! at. Handshakes of TLS have places beside these, those that were answered and those that were not yet likewise: who
//! only begins some cuts off none that is further, also behind one address. What they compute goes by turns. A page that panics ends its connection
//! alone.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    os::{fd::OwnedFd, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{SendFlags, Shutdown, send, shutdown},
};

use super::{
    Audience, Site,
    answer::Answer,
    head::{HEAD_BYTES, Head, Refusal},
    turns::Turns,
};
use crate::{
    audit::{Audit, Event, Who},
    client_fd::ClientFd,
    listener::{Descriptors, Listener, Reach},
    nbd::{Peer, Rights, too_many, wait_for_end},
    tls::{Credentials, Proof, TlsSession},
};

/// Connections at once, beside those whose handshakes are under way.
pub const CONNECTIONS: usize = 16;
/// Handshakes that were not answered yet, and as many of those that were.
const HANDSHAKES: usize = 64;
/// Time for a client to send its request and to receive the answer.
const REQUEST: Duration = Duration::from_secs(5);
/// Bytes behind a request that are thrown away. Otherwise the system would throw away the answer
/// when it closes the connection.
const BEHIND_BYTES: usize = 64 << 10;
/// How much longer than it took to make a page strangers get it again: however many ask, a fifth of
/// a processor is enough for them.
const KEPT: u32 = 4;
/// Pages that are kept at most.
const KEPT_PAGES: usize = 4;
/// Time for the thread that lets clients in to end.
const ACCEPTOR_END: Duration = Duration::from_secs(5);
/// Pause after the system refused a new connection: the reason will not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// By what clients over TCP prove who they are, and which of them may see the pages.
#[derive(Clone)]
struct Guard {
    credentials: Arc<Credentials>,
    rights: Arc<dyn Rights>,
    audit: Option<Arc<dyn Audit>>,
}

/// A server of pages. Add where it listens, then [`start`](Server::start). Dropping it ends it.
pub struct Server {
    hall: Arc<Hall>,
    doors: Vec<Door>,
    guard: Option<Guard>,
    acceptor: Option<Acceptor>,
}

struct Acceptor {
    thread: JoinHandle<()>,
    /// Closing it wakes the thread and ends it.
    alive: UnixStream,
}

/// A socket, and its clients.
struct Door {
    listener: Listener,
    audience: Audience,
    /// Only the user of the server and root may come in, whoever connects.
    own: bool,
    guard: Option<Guard>,
}

/// The state that all threads share.
struct Hall {
    site: Arc<dyn Site>,
    /// Names with dots by which clients call the server.
    names: Vec<String>,
    /// Held while a page is made: the pages that strangers saw last.
    making: Mutex<Vec<Kept>>,
    guests: Mutex<Vec<Guest>>,
    /// Something of one handshake is computed at a time.
    turns: Turns,
    /// From when on it counts time.
    begun: Instant,
}

/// A page that strangers get until a time.
struct Kept {
    path: String,
    until: Instant,
    answer: Answer,
}

/// How far a connection is. Each stage has its own places.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// Its handshake was not answered yet.
    Began,
    /// It was: only a client who reads goes on from here.
    Answered,
    /// There is no handshake, or it is over.
    In,
}

/// A connection, in order of arrival.
struct Guest {
    socket: Arc<ClientFd>,
    peer: Peer,
    audience: Audience,
    /// The request has arrived, and the answer is not sent yet; or it waits for our part of a
    /// handshake.
    at_work: Arc<AtomicBool>,
    /// When it said something, or came.
    heard: Arc<AtomicU64>,
    /// A [`Stage`].
    stage: AtomicU8,
    /// It gave way, and its thread is about to end.
    cut: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    /// A server that listens nowhere yet. Clients call it by an address, by a name without a dot
    /// or by one of `names`; by others a page of another site might.
    #[must_use]
    pub fn new(site: Arc<dyn Site>, names: Vec<String>) -> Server {
        let hall = Hall {
            site,
            names,
            making: Mutex::default(),
            guests: Mutex::default(),
            turns: Turns::default(),
            begun: Instant::now(),
        };
        Server { hall: Arc::new(hall), doors: Vec::new(), guard: None, acceptor: None }
    }

    /// TCP addresses that are added from now on speak HTTPS, with clients that show a certificate. Those
    /// whom `rights` lets see pages see all that the operator sees, and others nothing.
    pub fn secure(&mut self, credentials: Arc<Credentials>, rights: Arc<dyn Rights>) {
        self.guard = Some(Guard { credentials, rights, audit: None });
    }

    /// From now on `audit` hears of the clients of TCP addresses that are added, once the server is
    /// [secured](Server::secure).
    pub fn tell(&mut self, audit: Arc<dyn Audit>) {
        if let Some(guard) = &mut self.guard {
            guard.audit = Some(audit);
        }
    }

    /// Listens on a UNIX socket that those of `reach` can connect to. Unless that names a group or
    /// gives its own more rights, only this user and root are answered.
    ///
    /// # Errors
    /// `Denied` when every user could connect, and as
    /// [`nbd::Server::add_unix_for`](crate::nbd::Server::add_unix_for).
    pub fn add_unix(&mut self, path: &Path, reach: Reach) -> Result<()> {
        if reach.mode & 0o007 != 0 {
            return Err(Error::new(
                Kind::Denied,
                format!(
                    "{} would show every user of this machine what the store holds: take a mode \
                     like 0660, and a group",
                    path.display()
                ),
            ));
        }
        let listener = Listener::unix(path, reach, Descriptors::Refused)?;
        let own = reach.mode & 0o070 == 0;
        self.doors.push(Door { listener, audience: Audience::Operator, own, guard: None });
        Ok(())
    }

    /// Listens on a TCP address, and returns it with the port that it got. Unless the server is
    /// [secured](Server::secure) there is no authentication, so that each needs `insecure`.
    ///
    /// # Errors
    /// `Denied` without either, and those of the system.
    pub fn add_tcp(&mut self, addr: SocketAddr, insecure: bool) -> Result<SocketAddr> {
        let guard = self.guard.clone();
        let (listener, addr) = Listener::tcp(addr, insecure || guard.is_some())?;
        self.doors.push(Door { listener, audience: Audience::Anybody, own: false, guard });
        Ok(addr)
    }

    /// Starts to accept clients; does nothing when it listens nowhere.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(&mut self) -> Result<()> {
        if self.doors.is_empty() {
            return Ok(());
        }
        let failed = |error| Error::from_io("can't start the server of pages", error);
        let (alive, watched) = UnixStream::pair().map_err(failed)?;
        let (hall, doors) = (self.hall.clone(), std::mem::take(&mut self.doors));
        let accept = move || hall.accept_all(&doors, &watched);
        let thread =
            std::thread::Builder::new().name("http accept".into()).spawn(accept).map_err(failed)?;
        self.acceptor = Some(Acceptor { thread, alive });
        Ok(())
    }
}

impl Drop for Server {
    /// Cuts all connections, and waits until nobody looks at the site any more.
    fn drop(&mut self) {
        self.doors.clear();
        if let Some(Acceptor { thread, alive }) = self.acceptor.take() {
            drop(alive);
            // It has no page to make, and waits for nobody.
            let _ = wait_for_end(thread, ACCEPTOR_END);
        }
        // Not under the lock: a guest that shakes hands looks at it.
        let guests = std::mem::take(&mut *self.hall.guests.lock());
        for guest in guests {
            hang_up(&guest.socket);
            let _ = guest.thread.join();
        }
    }
}

impl Hall {
    /// Microseconds since it was made.
    fn now(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// Accepts until the other end of `watched` is closed.
    fn accept_all(self: &Arc<Hall>, doors: &[Door], watched: &UnixStream) {
        loop {
            let mut waited = vec![PollFd::new(watched, PollFlags::IN)];
            waited.extend(
                doors.iter().map(|door| PollFd::new(door.listener.socket(), PollFlags::IN)),
            );
            if poll(&mut waited, None).is_err() {
                continue;
            }
            let ready: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return;
            }
            for (door, _) in doors.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                match door.listener.accept() {
                    Ok(Some(socket)) => self.welcome(door, socket),
                    Ok(None) => {}
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        }
    }

    /// Computes something of a handshake of a peer, when its turn comes. Anybody can begin one again and again: as for
    /// pages, a fifth of a processor is enough for that. `None` when the client does not wait any more.
    fn in_turn<T>(
        &self,
        (peer, stage): (Peer, Stage),
        waits: impl Fn() -> bool,
        compute: impl FnOnce() -> T,
    ) -> Option<T> {
        let _turn = self.turns.take(peer, stage != Stage::Began, waits)?;
        let begun = Instant::now();
        let computed = compute();
        std::thread::sleep(begun.elapsed() * KEPT);
        Some(computed)
    }

    /// Takes a place of a stage for `newcomer`, from another one where all are taken; false when there is none.
    fn make_room(guests: &[Guest], stage: Stage, newcomer: Held) -> bool {
        let present: Vec<&Guest> =
            guests.iter().filter(|guest| !guest.is_cut() && guest.is_at(stage)).collect();
        let held: Vec<Held> = present.iter().map(|guest| guest.held()).collect();
        let gives_way = match stage {
            Stage::In if held.len() >= CONNECTIONS => who_gives_way(&held, newcomer),
            Stage::Began | Stage::Answered if held.len() >= HANDSHAKES => {
                which_handshake_gives_way(&held, newcomer.peer)
            }
            _ => return true,
        };
        let Some(n) = gives_way else { return false };
        present[n].cut.store(true, Relaxed);
        hang_up(&present[n].socket);
        true
    }

    /// A connection comes to another stage; false when it was cut off, or finds no place there.
    fn goes_on(&self, socket: &Arc<ClientFd>, stage: Stage) -> bool {
        let guests = self.guests.lock();
        let own = guests.iter().find(|guest| Arc::ptr_eq(&guest.socket, socket));
        let Some(own) = own.filter(|own| !own.is_cut()) else { return false };
        let newcomer = Held { at_work: false, heard: u64::MAX, ..own.held() };
        let has_place = own.is_at(stage) || Hall::make_room(&guests, stage, newcomer);
        if has_place {
            own.stage.store(stage as u8, Relaxed);
        }
        has_place
    }

    /// Gives a client a thread, or closes its connection.
    fn welcome(self: &Arc<Hall>, door: &Door, socket: ClientFd) {
        let peer = Peer::of(&socket);
        if door.own && !is_own(peer) {
            return;
        }
        let mut guests = self.guests.lock();
        for gone in guests.extract_if(.., |guest| guest.thread.is_finished()) {
            let _ = gone.thread.join();
        }
        let (stage, most) = match door.guard {
            None => (Stage::In, CONNECTIONS),
            Some(_) => (Stage::Began, HANDSHAKES),
        };
        let leaves = |guest: &&Guest| guest.is_cut() && guest.peer == peer && guest.is_at(stage);
        if guests.iter().filter(leaves).count() >= most {
            // So many of this peer were cut and wait for the page that is being made.
            return;
        }
        let newcomer = Held { peer, audience: door.audience, at_work: false, heard: u64::MAX };
        if !Hall::make_room(&guests, stage, newcomer) {
            // All of them receive their answers: the newcomer has to try again.
            return;
        }
        let (socket, at_work) = (Arc::new(socket), Arc::new(AtomicBool::new(false)));
        let cut = Arc::new(AtomicBool::new(false));
        let heard = Arc::new(AtomicU64::new(self.now()));
        let mut visit = Visit {
            hall: self.clone(),
            peer,
            guard: door.guard.clone(),
            tls: None,
            sealed: Vec::new(),
            socket: socket.clone(),
            at_work: at_work.clone(),
            heard: heard.clone(),
            cut: cut.clone(),
            audience: door.audience,
            end: Instant::now() + REQUEST,
        };
        // Without a thread the connection closes here.
        if let Ok(thread) =
            std::thread::Builder::new().name("http".into()).spawn(move || visit.attend())
        {
            guests.push(Guest {
                socket,
                peer,
                audience: door.audience,
                at_work,
                heard,
                stage: AtomicU8::new(stage as u8),
                cut,
                thread,
            });
        }
    }
}

impl Guest {
    fn is_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }

    fn is_at(&self, stage: Stage) -> bool {
        self.stage.load(Relaxed) == stage as u8
    }

    fn held(&self) -> Held {
        let at_work = self.at_work.load(Relaxed);
        let heard = self.heard.load(Relaxed);
        Held { peer: self.peer, audience: self.audience, at_work, heard }
    }
}

/// A connection, as far as it matters for who gives way.
#[derive(Clone, Copy)]
struct Held {
    peer: Peer,
    audience: Audience,
    /// It asks for a page, or waits for our part of a handshake.
    at_work: bool,
    /// When it said something, or came.
    heard: u64,
}

/// The number of the connection that gives way to a newcomer when all are taken: of those that may be
/// cut, the one that was silent longest.
fn who_gives_way(held: &[Held], newcomer: Held) -> Option<usize> {
    let is_operator = newcomer.audience == Audience::Operator;
    let is_below = |one: &Held| is_operator || one.audience == Audience::Anybody;
    let below: Vec<(usize, &Held)> =
        held.iter().enumerate().filter(|(_, one)| is_below(one)).collect();
    let peers = below.iter().map(|(_, one)| one.peer);
    if let Some(greedy) = too_many(peers, newcomer.peer, CONNECTIONS / 2) {
        let of_greedy = below.iter().filter(|(_, one)| one.peer == greedy);
        return of_greedy.min_by_key(|(_, one)| (one.at_work, one.heard)).map(|(n, _)| *n);
    }
    let has_some = below.iter().any(|(_, one)| one.peer == newcomer.peer);
    let rests = |one: &Held| !one.at_work && (one.peer == newcomer.peer || !has_some);
    let stranger = |one: &Held| is_operator && !has_some && one.audience == Audience::Anybody;
    let silent = |gives_way: &dyn Fn(&Held) -> bool| {
        let such = below.iter().filter(|(_, one)| gives_way(one));
        such.min_by_key(|(_, one)| one.heard).map(|(n, _)| *n)
    };
    silent(&rests).or_else(|| silent(&stranger))
}

/// The number of the handshake of a stage that gives way to one more of `peer`: of another peer that has more than half
/// of them, or more than the newcomer's, or else of the newcomer's own, the one that was silent longest.
fn which_handshake_gives_way(held: &[Held], peer: Peer) -> Option<usize> {
    let peers = held.iter().map(|one| one.peer);
    let of = too_many(peers, peer, HANDSHAKES / 2).unwrap_or(peer);
    let order = |one: &Held| (one.peer != of, one.heard);
    held.iter().enumerate().min_by_key(|(_, one)| order(one)).map(|(n, _)| n)
}

/// The user of the server, or root.
fn is_own(peer: Peer) -> bool {
    let own = rustix::process::geteuid().as_raw();
    matches!(peer, Peer::User(user) if user == 0 || user == own)
}

/// What a certificate may do now.
enum Verdict {
    Allowed,
    Denied(String),
    /// It is not trusted any more.
    Over,
}

impl Guard {
    fn judge(&self, proof: &Proof) -> Verdict {
        if !proof.still_holds(&self.credentials) {
            Verdict::Over
        } else if self.rights.sees_pages(Peer::Certificate(proof.identity)) {
            Verdict::Allowed
        } else {
            Verdict::Denied(format!(
                "The certificate '{}' may not see this server's pages: they need a line of --access for \
                 it, like 'client:prometheus pages'.",
                proof.name().escape_debug()
            ))
        }
    }
}

/// True when the client has closed its connection, at least for sending.
fn has_gone(socket: &OwnedFd) -> bool {
    let mut looked = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut looked, Some(&at_once)), Ok(1..))
}

fn hang_up(socket: &OwnedFd) {
    // It fails when the connection is gone already.
    let _ = shutdown(socket, Shutdown::Both);
}

/// One connection.
struct Visit {
    hall: Arc<Hall>,
    peer: Peer,
    guard: Option<Guard>,
    /// Once hands were shaken.
    tls: Option<Box<TlsSession>>,
    /// Encrypted bytes that were received and not decrypted yet.
    sealed: Vec<u8>,
    socket: Arc<ClientFd>,
    at_work: Arc<AtomicBool>,
    heard: Arc<AtomicU64>,
    /// It gave way to others.
    cut: Arc<AtomicBool>,
    audience: Audience,
    /// When it is over, however far it is.
    end: Instant,
}

impl Visit {
    fn attend(&mut self) {
        let mut received = Vec::new();
        let secured = match self.guard.clone() {
            None => None,
            Some(guard) => match self.shake_hands(&guard) {
                Ok(proof) => Some((guard, proof)),
                // The client was told why, by TLS.
                Err(_) => return hang_up(&self.socket),
            },
        };
        let (answer, only_headers) = loop {
            match Head::parse(&received) {
                Ok(Some(head)) => {
                    self.at_work.store(true, Relaxed);
                    let only_headers = head.only_headers;
                    // What was true at the handshake may be no more, as after SIGHUP.
                    break match secured.as_ref().map(|(guard, proof)| guard.judge(proof)) {
                        Some(Verdict::Over) => return hang_up(&self.socket),
                        Some(Verdict::Denied(why)) => (Answer::Denied(why), only_headers),
                        Some(Verdict::Allowed) | None => (self.answer(&head), only_headers),
                    };
                }
                Ok(None) => {}
                Err(refusal) => break (Answer::Refused(refusal), false),
            }
            if !self.receive(&mut received) {
                if received.is_empty() {
                    return;
                }
                break (Answer::Refused(Refusal::Malformed), false);
            }
        };
        self.send(&answer.bytes(only_headers));
        self.say_end();
        self.at_work.store(false, Relaxed);
        if shutdown(&*self.socket, Shutdown::Write).is_ok() {
            let mut thrown_away = 0;
            while thrown_away < BEHIND_BYTES && {
                received.clear();
                self.receive(&mut received)
            } {
                thrown_away += received.len();
            }
        }
        hang_up(&self.socket);
    }

    /// Shakes hands with a client of TLS; gives what its certificate proved.
    fn shake_hands(&mut self, guard: &Guard) -> io::Result<Proof> {
        let mut session = Box::new(TlsSession::new(&guard.credentials)?);
        let (mut unsent, mut buffer) = (Vec::new(), [0; 2048]);
        let mut stage = Stage::Began;
        let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
        while session.is_handshaking() {
            let Some(bytes) = self.receive_socket(&mut buffer) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            self.sealed.extend_from_slice(&buffer[..bytes]);
            // Behind the handshake a request may have come already; it stays.
            let mut fed = Ok(0);
            while fed.is_ok() && session.is_handshaking() && !self.sealed.is_empty() {
                // It waits for us, and is not silent.
                self.at_work.store(true, Relaxed);
                let waits = || !self.cut.load(Relaxed) && !has_gone(&self.socket);
                fed = match self
                    .hall
                    .in_turn((self.peer, stage), waits, || session.feed(&self.sealed))
                {
                    Some(fed) => fed,
                    None => return Err(gone()),
                };
                self.heard.store(self.hall.now(), Relaxed);
                self.at_work.store(false, Relaxed);
                self.sealed.drain(..*fed.as_ref().unwrap_or(&0));
            }
            session.unsent(&mut unsent)?;
            if stage == Stage::Began && !unsent.is_empty() {
                stage = Stage::Answered;
                if fed.is_ok() && !self.hall.goes_on(&self.socket, stage) {
                    return Err(gone());
                }
            }
            self.send_socket(&std::mem::take(&mut unsent));
            fed?;
        }
        let proof = session.proof().ok_or(io::ErrorKind::InvalidData)?;
        if !self.hall.goes_on(&self.socket, Stage::In) {
            return Err(gone());
        }
        self.tls = Some(session);
        let peer = Peer::Certificate(proof.identity);
        let allowed = guard.rights.sees_pages(peer);
        if let Some(audit) = &guard.audit {
            let who = Who { peer, certificate: Some(proof.name()) };
            audit.hear(&who, Event::Pages { allowed });
        }
        if allowed {
            // Who shares its address, and proved nothing, does not cut it off.
            self.at_work.store(true, Relaxed);
            self.audience = Audience::Operator;
        }
        Ok(proof)
    }

    fn answer(&self, head: &Head<'_>) -> Answer {
        if head.may_be_a_foreign_page(&self.hall.names) {
            return Answer::Denied(
                "This server is asked by a name that may be another site's: ask it by its address, \
                 or have it know the name by --http-name."
                    .to_owned(),
            );
        }
        let mut kept = self.hall.making.lock();
        if self.cut.load(Relaxed) {
            // Nobody hears it.
            return Answer::Missing;
        }
        let begun = Instant::now();
        kept.retain(|page| page.until > begun);
        let is_kept = |page: &&Kept| page.path == head.path && self.audience == Audience::Anybody;
        if let Some(page) = kept.iter().find(is_kept) {
            return page.answer.clone();
        }
        let site = &self.hall.site;
        let made = catch_unwind(AssertUnwindSafe(|| site.answer(head.path, self.audience)));
        let answer = made
            .unwrap_or_else(|_| Answer::Failed("The server failed to make this page.".to_owned()));
        if self.audience == Audience::Anybody
            && matches!(answer, Answer::Page(_))
            && kept.len() < KEPT_PAGES
        {
            let until = begun + begun.elapsed() * (1 + KEPT);
            kept.push(Kept { path: head.path.to_owned(), until, answer: answer.clone() });
        }
        answer
    }

    /// Receives more bytes, up to a head at most; false when nothing comes any more.
    fn receive(&mut self, received: &mut Vec<u8>) -> bool {
        let mut buffer = [0; 2048];
        let room = (HEAD_BYTES - received.len()).min(buffer.len());
        let bytes = match self.tls.take() {
            None => self.receive_socket(&mut buffer[..room]),
            Some(mut session) => {
                let bytes = self.receive_sealed(&mut session, &mut buffer[..room]);
                self.tls = Some(session);
                bytes
            }
        };
        received.extend_from_slice(&buffer[..bytes.unwrap_or(0)]);
        bytes.is_some()
    }

    /// Receives content of TLS; `None` when none comes any more.
    fn receive_sealed(&mut self, session: &mut TlsSession, into: &mut [u8]) -> Option<usize> {
        loop {
            match session.take(into).ok()? {
                Some(0) => return None,
                Some(bytes) => return Some(bytes),
                None => {}
            }
            if self.sealed.is_empty() {
                let mut buffer = [0; 2048];
                let bytes = self.receive_socket(&mut buffer)?;
                self.sealed.extend_from_slice(&buffer[..bytes]);
            }
            let fed = session.feed(&self.sealed).ok()?;
            self.sealed.drain(..fed);
        }
    }

    /// Receives some bytes; `None` when none come any more.
    fn receive_socket(&self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            match self.socket.receive_now(buffer) {
                Ok(0) => return None,
                Ok(bytes) => {
                    self.heard.store(self.hall.now(), Relaxed);
                    return Some(bytes);
                }
                Err(Errno::AGAIN) if self.wait(PollFlags::IN) => {}
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    fn send(&mut self, mut bytes: &[u8]) {
        let Some(session) = &mut self.tls else { return self.send_socket(bytes) };
        let mut sealed = Vec::new();
        while !bytes.is_empty() {
            match session.seal(&[IoSlice::new(bytes)], &mut sealed) {
                Ok(taken @ 1..) => bytes = &bytes[taken..],
                _ => return,
            }
        }
        self.send_socket(&sealed);
    }

    /// Tells a client of TLS that the answer has ended: nobody cut it off.
    fn say_end(&mut self) {
        let Some(session) = &mut self.tls else { return };
        let mut sealed = Vec::new();
        session.close();
        if session.unsent(&mut sealed).is_ok() {
            self.send_socket(&sealed);
        }
    }

    fn send_socket(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match send(&*self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) if self.wait(PollFlags::OUT) => {}
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Waits until the socket is ready; false when the time is over.
    fn wait(&self, what: PollFlags) -> bool {
        let left = self.end.saturating_duration_since(Instant::now());
        let Ok(timeout) = Timespec::try_from(left) else { return false };
        let mut waited = [PollFd::new(&*self.socket, what)];
        !left.is_zero() && matches!(poll(&mut waited, Some(&timeout)), Ok(1..) | Err(Errno::INTR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(user: u32, audience: Audience, at_work: bool) -> Held {
        Held { peer: Peer::User(user), audience, at_work, heard: 0 }
    }

    #[test]
    fn rule_12_the_one_that_was_silent_longest_gives_way() {
        let mut all = vec![held(1, Audience::Anybody, false); CONNECTIONS];
        (0..).zip(&mut all).for_each(|(n, one)| one.heard = 100 + n);
        all[0].heard = 200;
        let newcomer = held(1, Audience::Anybody, false);
        assert_eq!(who_gives_way(&all, newcomer), Some(1));
        all[1].at_work = true;
        assert_eq!(who_gives_way(&all, newcomer), Some(2));
        assert_eq!(who_gives_way(&all, held(2, Audience::Anybody, false)), Some(2));
    }

    struct Nothing;

    impl Site for Nothing {
        fn answer(&self, _: &str, _: Audience) -> Answer {
            Answer::Missing
        }
    }

    #[test]
    fn rule_41_handshakes_take_a_fifth_of_a_processor() {
        let hall = Server::new(Arc::new(Nothing), Vec::new()).hall.clone();
        let (took, begun) = (Duration::from_millis(20), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    hall.in_turn(
                        (Peer::Unknown, Stage::Began),
                        || true,
                        || std::thread::sleep(took),
                    )
                });
            }
        });
        assert!(begun.elapsed() >= 3 * 5 * took, "{:?}", begun.elapsed());
    }

    #[test]
    fn rule_12_no_peer_keeps_another_one_out_and_nobody_the_operator() {
        use Audience::{Anybody, Operator};
        let newcomer = |user, audience| held(user, audience, false);
        // One peer has all of them, at work or not.
        let mut all = vec![held(1, Anybody, true); CONNECTIONS];
        assert_eq!(who_gives_way(&all, newcomer(2, Anybody)), Some(0));
        assert_eq!(who_gives_way(&all, newcomer(1, Anybody)), None);
        all[7].at_work = false;
        assert_eq!(who_gives_way(&all, newcomer(2, Anybody)), Some(7));
        assert_eq!(who_gives_way(&all, newcomer(1, Anybody)), Some(7));
        // Nor do those who come again and again end what another one has.
        all[3] = held(2, Anybody, false);
        assert_eq!(who_gives_way(&all, newcomer(1, Anybody)), Some(7));
        all[7].at_work = true;
        assert_eq!(who_gives_way(&all, newcomer(1, Anybody)), None);
        // Many peers with one each have it against each other only.
        let mut many: Vec<Held> =
            (0..CONNECTIONS).map(|n| held(100 + n as u32, Anybody, true)).collect();
        assert_eq!(who_gives_way(&many, newcomer(1, Anybody)), None);
        assert_eq!(who_gives_way(&many, newcomer(1, Operator)), Some(0));
        many[5] = held(1, Operator, false);
        assert_eq!(who_gives_way(&many, newcomer(200, Anybody)), None);
        many[6].at_work = false;
        assert_eq!(who_gives_way(&many, newcomer(200, Anybody)), Some(6));
        let own = vec![held(1, Operator, false); CONNECTIONS];
        assert_eq!(who_gives_way(&own, newcomer(2, Anybody)), None);
        assert_eq!(who_gives_way(&own, newcomer(1, Operator)), Some(0));
    }
}
