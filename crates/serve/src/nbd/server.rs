//! The server: accepts clients, of NBD and of [devices](crate::vhost), gives each a thread, and ends
//! them all on request.
//!
//! *Invariants.* No unfinished handshake takes a connection from a client: there is room for some
//! beside, and when that is full the one that was silent longest gives way. Neither a peer nor, within a peer, a
//! volume keeps others out, nor do several together: when all connections are taken, and one has
//! more than half of them or more than the newcomer, that of it which was silent longest gives way.
//! A session that panics ends alone.
//! *Threads:* one that accepts, and those of the [sessions](super::session).

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onefold_core::{Error, Exports, Kind, Result, Volume};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{self, Timeout};

use super::buffers::Share;
use super::limited::Limited;
use super::limits::{HANDSHAKES_BESIDE, LOOK, Limits};
use super::line::Line;
use super::rights::{Everything, Offer, Peer, Right, Rights};
use super::session::{House, Seat, Shares, serve};
use super::shares::Holder;
use super::socket::{Activity, Receiver, Transmitter, hang_up, stop_receiving};
use super::statistics::{Counters, Statistics};
use crate::audit::{Audit, Event, Who};
use crate::client_fd::ClientFd;
use crate::listener::{Descriptors, Listener, Reach};
use crate::tls::{Credentials, Proof};
use crate::vhost::{self, DeviceSocket, Taken};

/// Pause after the system refused a new connection (no more descriptors or memory): the reason will
/// not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Clients that one listener lets in before the others are looked at.
const ACCEPTED_AT_ONCE: usize = 256;
/// Time for sessions to notice that their connection was cut. The server does not interrupt the
/// work of a volume.
const CUT_GRACE: Duration = Duration::from_secs(5);

/// How long a server that stops waits for a client to take a reply, or the next piece of it. A client
/// that takes none hears of nothing else either; what it wrote is in its volume, and stays there.
const UNTAKEN_GRACE: Duration = Duration::from_secs(2);

/// An NBD server for the volumes of [`Exports`].
///
/// Add where it listens, then [`start`](Server::start). Dropping it ends all connections at once.
pub struct Server {
    hall: Arc<Hall>,
    listeners: Vec<Entrance>,
    /// For the memory of the guests of all devices.
    room: Arc<vhost::Room>,
    acceptor: Option<Acceptor>,
}

/// Where clients come in.
struct Entrance {
    listener: Listener,
    /// The device behind it; nothing when it is one of NBD.
    device: Option<Arc<DeviceSocket>>,
}

impl From<Listener> for Entrance {
    fn from(listener: Listener) -> Entrance {
        Entrance { listener, device: None }
    }
}

/// What a client that came in speaks.
enum Dialog {
    Nbd(Arc<Line>),
    Device(Taken),
}

struct Acceptor {
    thread: JoinHandle<()>,
    /// Closing it wakes the thread and ends it.
    alive: UnixStream,
}

/// The state that all threads share.
struct Hall {
    exports: Arc<dyn Exports>,
    rights: Arc<dyn Rights>,
    /// By what clients over a network have to prove who they are.
    credentials: OnceLock<Arc<Credentials>>,
    audit: OnceLock<Arc<dyn Audit>>,
    limits: Limits,
    shares: Shares,
    /// The start of the server's times.
    since: Instant,
    guests: Mutex<Guests>,
    left: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Guests {
    present: HashMap<u64, Guest>,
    next: u64,
    /// Statistics of connections that have ended, and of those that were refused.
    past: Statistics,
    /// Threads that have nothing more to do than to end.
    leaving: Vec<(Peer, JoinHandle<()>)>,
    /// The volumes that clients have open, or had a moment ago, by the names under which they share
    /// limits and turns: numbers, and limits.
    volumes: HashMap<String, (u64, Arc<Limited>)>,
    next_volume: u64,
}

struct Guest {
    socket: Arc<ClientFd>,
    peer: Peer,
    activity: Arc<Activity>,
    /// Buffers lent to its peer.
    of_peer: Arc<Share>,
    /// The number of its volume, and buffers lent to its peer for it; nothing during the
    /// handshake.
    volume: Option<(u64, Arc<Share>)>,
    opened: Option<Opened>,
    /// It has to prove who it is.
    owes_proof: bool,
    /// By what it proved who it is, over TLS.
    proof: Option<Proof>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Guest {
    fn who(&self) -> Who {
        Who { peer: self.peer, certificate: self.proof.as_ref().map(Proof::name) }
    }
}

/// A volume as a client opened it.
struct Opened {
    /// Its name then.
    name: String,
    right: Right,
    volume: Weak<dyn Volume>,
}

impl Opened {
    /// The name that it has now.
    fn name(&self) -> String {
        let named = self.volume.upgrade().and_then(|volume| volume.current_name());
        named.unwrap_or_else(|| self.name.clone())
    }
}

impl Server {
    /// A server that listens nowhere yet. Every client that reaches it may do everything.
    #[must_use]
    pub fn new(exports: Arc<dyn Exports>, limits: Limits) -> Server {
        Server::with_rights(exports, Arc::new(Everything), limits)
    }

    /// The same for peers of different rights.
    #[must_use]
    pub fn with_rights(
        exports: Arc<dyn Exports>,
        rights: Arc<dyn Rights>,
        limits: Limits,
    ) -> Server {
        let hall = Hall {
            exports,
            rights,
            credentials: OnceLock::new(),
            audit: OnceLock::new(),
            shares: Shares::new(
                &limits,
                std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            ),
            since: Instant::now(),
            limits,
            guests: Mutex::default(),
            left: Condvar::new(),
            stopping: AtomicBool::new(false),
        };
        let room = Arc::default();
        Server { hall: Arc::new(hall), listeners: Vec::new(), room, acceptor: None }
    }

    /// From now on clients that come over a network have to ask for TLS and to prove by a certificate
    /// who they are; call it before sockets are added. Clients of UNIX sockets are known by their users.
    pub fn secure(&mut self, credentials: Arc<Credentials>) {
        // The first ones stay: sockets may have been added for them.
        let _ = self.hall.credentials.set(credentials);
    }

    /// From now on `audit` hears what clients do.
    pub fn tell(&mut self, audit: Arc<dyn Audit>) {
        // The first one stays.
        let _ = self.hall.audit.set(audit);
    }

    /// Looks after the rights of those who are connected, for as long as the server is there.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.hall))
    }

    fn is_secured(&self) -> bool {
        self.hall.credentials.get().is_some()
    }

    /// Listens on a UNIX socket that this user alone can connect to. The file is removed when the
    /// server stops.
    ///
    /// # Errors
    /// As [`add_unix_for`](Server::add_unix_for).
    pub fn add_unix(&mut self, path: &Path) -> Result<()> {
        self.add_unix_for(path, Reach::default())
    }

    /// Listens on a UNIX socket that those of `reach` can connect to. The file is removed when the
    /// server stops.
    ///
    /// # Errors
    /// `Busy` when another server answers there, `Exists` when something else is there,
    /// `InvalidInput` when the path is too long, and those of the system.
    pub fn add_unix_for(&mut self, path: &Path, reach: Reach) -> Result<()> {
        self.listeners.push(Listener::unix(path, reach, Descriptors::Refused)?.into());
        Ok(())
    }

    /// Makes a vhost-user-blk device of a volume or snapshot, for one client at a time of a UNIX socket
    /// that this user alone can connect to. The file is removed when the server stops.
    ///
    /// A client shares the memory of its guest by files that can't be made shorter. What a server
    /// before this one took from the guest's rings and did not answer is done again. What a FLUSH
    /// answered is durable, as are all changes of a guest that does not flush.
    ///
    /// # Errors
    /// `NotFound` when there is no such volume, and as [`add_unix_for`](Server::add_unix_for).
    pub fn add_vhost(&mut self, volume: &str, path: &Path) -> Result<()> {
        self.hall.exports.open(volume)?;
        let listener = Listener::unix(path, Reach::default(), Descriptors::Sent)?;
        let device = Some(Arc::new(DeviceSocket::new(volume, self.room.share())));
        self.listeners.push(Entrance { listener, device });
        Ok(())
    }

    /// Listens on a TCP address, and returns it with the port that it got. Unless the server is
    /// [secured](Server::secure) there is no authentication, not even of the users of this machine, so
    /// that each needs `insecure`.
    ///
    /// # Errors
    /// `Denied` without either, and those of the system.
    pub fn add_tcp(&mut self, addr: SocketAddr, insecure: bool) -> Result<SocketAddr> {
        let (listener, addr) = Listener::tcp(addr, insecure || self.is_secured())?;
        self.listeners.push(listener.into());
        Ok(addr)
    }

    /// Takes over a stream socket that listens already, as service managers hand them over. One
    /// that is not a UNIX socket needs `insecure`, or that the server is [secured](Server::secure).
    ///
    /// # Errors
    /// `InvalidInput` when it does not listen, `Denied` without either, and those of the system.
    pub fn add_listener(&mut self, socket: OwnedFd, insecure: bool) -> Result<()> {
        let listener = Listener::handed_over(socket, insecure || self.is_secured())?;
        self.listeners.push(listener.into());
        Ok(())
    }

    /// Starts to accept clients.
    ///
    /// # Errors
    /// `InvalidInput` when it listens nowhere or was started before, and those of the system.
    pub fn start(&mut self) -> Result<()> {
        if self.listeners.is_empty() {
            return Err(Error::new(
                Kind::InvalidInput,
                "the server has no socket to listen on, or was started before",
            ));
        }
        let failed = |error| Error::from_io("can't start the server", error);
        let (alive, watched) = UnixStream::pair().map_err(failed)?;
        let hall = self.hall.clone();
        let listeners = std::mem::take(&mut self.listeners);
        let accept = move || hall.accept_all(&listeners, &watched);
        let thread =
            std::thread::Builder::new().name("nbd accept".into()).spawn(accept).map_err(failed)?;
        self.acceptor = Some(Acceptor { thread, alive });
        Ok(())
    }

    /// Counts of the server's work so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let guests = self.hall.guests.lock();
        let mut sum = guests.past;
        sum.connections = guests.present.len() as u64;
        sum.working =
            guests.present.values().filter(|guest| guest.activity.is_at_work()).count() as u64;
        for guest in guests.present.values() {
            guest.counters.add_to(&mut sum);
        }
        sum
    }

    /// How many connections have the volume open that has this name now. A snapshot counts by itself.
    #[must_use]
    pub fn clients_of(&self, volume: &str) -> usize {
        let guests = self.hall.guests.lock();
        let opened = guests.present.values().filter_map(|guest| guest.opened.as_ref());
        opened.filter(|opened| opened.name() == volume).count()
    }

    /// Asks the volumes that clients have open for their names and limits again, which may have
    /// changed.
    pub fn volumes_changed(&self) {
        let mut guests = self.hall.guests.lock();
        let mut names = HashMap::new();
        for guest in guests.present.values() {
            if let (Some((number, _)), Some(name)) = (&guest.volume, self.hall.shared_name(guest)) {
                names.insert(*number, name);
            }
        }
        let before = std::mem::take(&mut guests.volumes).into_iter();
        // What is open has its name, whatever else had that before.
        let (open, closed): (Vec<_>, Vec<_>) =
            before.partition(|(_, (number, _))| names.contains_key(number));
        for (name, (number, limited)) in closed.into_iter().chain(open) {
            let name = names.remove(&number).unwrap_or(name);
            if let Some(limits) = self.hall.exports.limits(&name) {
                limited.set(limits);
            }
            guests.volumes.insert(name, (number, limited));
        }
    }

    /// Takes no more clients, answers the requests that have arrived, and closes. Connections that
    /// are not done after `grace` are cut, and those sooner whose client takes nothing of a reply for
    /// 2 s.
    ///
    /// # Errors
    /// `Busy` when sessions still wait for their volume some seconds after they were cut; their
    /// threads go on.
    pub fn stop(mut self, grace: Duration) -> Result<()> {
        self.end(grace)
    }

    fn end(&mut self, grace: Duration) -> Result<()> {
        // Sockets, and their files, are closed with the acceptor.
        self.listeners.clear();
        let mut accepts = None;
        if let Some(Acceptor { thread, alive }) = self.acceptor.take() {
            drop(alive);
            accepts = wait_for_end(thread, CUT_GRACE).err();
        }
        self.hall.stopping.store(true, Relaxed);
        let mut guests = self.hall.guests.lock();
        for guest in guests.present.values() {
            if guest.volume.is_none() {
                hang_up(&guest.socket);
            } else {
                stop_receiving(&guest.socket);
            }
        }
        let began = Instant::now();
        while !guests.present.is_empty() && began.elapsed() < grace {
            let left = grace.saturating_sub(began.elapsed());
            self.hall.wait_until_empty(&mut guests, left.min(LOOK));
            let now = Instant::now();
            for guest in guests.present.values() {
                if guest.activity.untaken(began, now) >= UNTAKEN_GRACE {
                    guest.activity.cut();
                    hang_up(&guest.socket);
                }
            }
        }
        for guest in guests.present.values() {
            guest.activity.cut();
            hang_up(&guest.socket);
        }
        let cut = Instant::now();
        self.hall.wait_until_empty(&mut guests, CUT_GRACE);
        while !guests.leaving.is_empty() && cut.elapsed() < CUT_GRACE {
            guests.join_ended();
            MutexGuard::unlocked(&mut guests, || std::thread::sleep(Duration::from_micros(100)));
        }
        match guests.present.len() + guests.leaving.len() {
            0 if accepts.is_some() => {
                Err(Error::new(Kind::Busy, "the thread that lets clients in does not end"))
            }
            0 => Ok(()),
            stuck => {
                Err(Error::new(Kind::Busy, format!("{stuck} sessions still wait for their volume")))
            }
        }
    }
}

/// Joins a thread that is about to end; gives it back when it does not in this time.
pub(crate) fn wait_for_end(
    thread: JoinHandle<()>,
    most: Duration,
) -> std::result::Result<(), JoinHandle<()>> {
    let began = Instant::now();
    while !thread.is_finished() {
        if began.elapsed() >= most {
            return Err(thread);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    // A panic of the thread was printed; here it only matters that the thread has ended.
    let _ = thread.join();
    Ok(())
}

/// Looks after the rights of those who are connected to a [`Server`], and does not keep it.
#[derive(Clone)]
pub struct Watch(Weak<Hall>);

impl Watch {
    /// Ends the connections of clients that would not be let in now, after the credentials or the
    /// rights have changed.
    pub fn look_again(&self) {
        if let Some(hall) = self.0.upgrade() {
            hall.look_again();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A caller that needs the result calls `stop`.
        let _ = self.end(Duration::ZERO);
    }
}

impl Hall {
    fn wait_until_empty(&self, guests: &mut MutexGuard<'_, Guests>, timeout: Duration) {
        let end = Instant::now() + timeout;
        self.left.wait_while_until(guests, |guests| !guests.present.is_empty(), end);
    }

    /// Accepts until the other end of `watched` is closed.
    fn accept_all(self: &Arc<Hall>, entrances: &[Entrance], watched: &UnixStream) {
        loop {
            let mut waited: Vec<PollFd<'_>> = vec![PollFd::new(watched, PollFlags::IN)];
            waited.extend(
                entrances.iter().map(|one| PollFd::new(one.listener.socket(), PollFlags::IN)),
            );
            let ready = match poll(&mut waited, None) {
                Ok(_) => waited.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>(),
                Err(_) => vec![false; waited.len()],
            };
            if ready[0] {
                return;
            }
            for entrance in entrances
                .iter()
                .zip(&ready[1..])
                .filter_map(|(entrance, &ready)| ready.then_some(entrance))
            {
                // All that wait: who connects in a loop does not fill the queue of the socket.
                for _ in 0..ACCEPTED_AT_ONCE {
                    match entrance.listener.accept() {
                        Ok(Some(socket)) => self.welcome(socket, entrance),
                        Ok(None) => break,
                        Err(_) => {
                            std::thread::sleep(ACCEPT_PAUSE);
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Gives a client a place and a thread, or closes its connection.
    fn welcome(self: &Arc<Hall>, socket: ClientFd, entrance: &Entrance) {
        let mut guests = self.guests.lock();
        guests.join_ended();
        guests.past.accepted += 1;
        let peer = Peer::of(&socket);
        let of_network = entrance.listener.is_of_network();
        let credentials = self.credentials.get().filter(|_| of_network).cloned();
        let taken = entrance.device.as_ref().map(DeviceSocket::take);
        if matches!(taken, Some(None)) {
            guests.past.refused += 1;
            return;
        }
        // Who has no right to any volume costs no thread.
        let away = if credentials.is_none() && !self.rights.knows(peer) {
            Some("it has a right to no volume")
        } else if guests.too_many_leave(peer, self.limits.connections) {
            Some("too many of its connections have not ended yet")
        } else {
            None
        };
        if let Some(why) = away {
            guests.past.refused += 1;
            drop(guests);
            return self.hears(&Who::of(peer), Event::SentAway { why });
        }
        if guests.present.len() >= self.limits.connections + HANDSHAKES_BESIDE
            && let Some(id) = guests.which_handshake_gives_way(peer, self.limits.connections / 2)
        {
            guests.cut(id);
        }
        let of_peer = guests
            .present
            .values()
            .find(|guest| guest.peer == peer)
            .map_or_else(Arc::default, |guest| guest.of_peer.clone());
        let id = guests.next;
        guests.next += 1;
        let (socket, counters) = (Arc::new(socket), Arc::new(Counters::default()));
        let activity = Arc::new(Activity::new(self.since));
        let guest = Guest {
            socket: socket.clone(),
            peer,
            activity: activity.clone(),
            of_peer,
            volume: None,
            opened: None,
            owes_proof: credentials.is_some(),
            proof: None,
            counters: counters.clone(),
            thread: None,
        };
        guests.present.insert(id, guest);
        self.count(&guests);
        let hall = self.clone();
        let line = || Arc::new(credentials.map(Line::secured_by).unwrap_or_default());
        let (dialog, protocol) = match taken.flatten() {
            Some(taken) => (Dialog::Device(taken), "vhost"),
            None => (Dialog::Nbd(line()), "nbd"),
        };
        let attend = move || hall.attend(id, peer, socket, activity, dialog, &counters);
        match std::thread::Builder::new().name(format!("{protocol} {id}")).spawn(attend) {
            // The thread can't leave before we unlock.
            Ok(thread) => {
                guests.present.entry(id).and_modify(|guest| guest.thread = Some(thread));
            }
            Err(_) => {
                guests.past.refused += 1;
                guests.leave(id);
            }
        }
    }

    /// The life of a connection's thread.
    fn attend(
        &self,
        id: u64,
        peer: Peer,
        socket: Arc<ClientFd>,
        activity: Arc<Activity>,
        dialog: Dialog,
        counters: &Counters,
    ) {
        let ended = catch_unwind(AssertUnwindSafe(|| match dialog {
            Dialog::Nbd(line) => {
                // Whatever it is, the client sees that its connection ends.
                let _ = self.attend_session(id, peer, &socket, activity, line, counters);
            }
            Dialog::Device(device) => self.attend_device(id, peer, &socket, &device, counters),
        }));
        hang_up(&socket);
        let mut guests = self.guests.lock();
        guests.past.panics += u64::from(ended.is_err());
        let gone = guests.present.get(&id).map(|guest| {
            let volume = guest.opened.as_ref().map(Opened::name);
            let unproved = guest.owes_proof && guest.proof.is_none();
            (guest.who(), volume, guest.activity.is_cut(), unproved)
        });
        guests.leave(id);
        self.count(&guests);
        drop(guests);
        match gone {
            Some((who, Some(volume), cut, _)) => {
                self.hears(&who, Event::Closed { connection: id, volume: &volume, cut });
            }
            Some((who, None, _, true)) => {
                let why = "it did not prove by a certificate who it is";
                self.hears(&who, Event::SentAway { why });
            }
            _ => {}
        }
        self.left.notify_all();
    }

    /// Tells the audit, if there is one. No lock is held: it may write to a disk.
    fn hears(&self, who: &Who, event: Event<'_>) {
        if let Some(audit) = self.audit.get() {
            audit.hear(who, event);
        }
    }

    /// Who has a connection; `peer`, if that has just ended.
    fn who(&self, id: u64, peer: Peer) -> Who {
        let guests = self.guests.lock();
        guests.present.get(&id).map_or_else(|| Who::of(peer), Guest::who)
    }

    /// The seat of a client, of which the audit hears.
    fn seat_of(
        &self,
        id: u64,
        peer: Peer,
        volume: &str,
        writes: bool,
        opened: &Arc<dyn Volume>,
    ) -> Option<Seat> {
        let seat = self.seat(id, volume, writes, opened);
        let right = if writes { Right::Write } else { Right::Read };
        let event = match &seat {
            Some(_) => Event::Opened { connection: id, volume, right },
            None => Event::SentAway { why: "there are too many connections, or it lost its right" },
        };
        self.hears(&self.who(id, peer), event);
        seat
    }

    fn attend_session(
        &self,
        id: u64,
        peer: Peer,
        socket: &Arc<ClientFd>,
        activity: Arc<Activity>,
        line: Arc<Line>,
        counters: &Counters,
    ) -> io::Result<()> {
        let known = |proof| self.is_known(id, proof);
        let late = Instant::now() + self.limits.handshake;
        let own = activity.clone();
        let gives_up = || own.is_cut() || Instant::now() >= late;
        let in_turn = |compute: &mut dyn FnMut()| {
            self.shares.shake(peer, &gives_up, compute);
            // It was the server that kept the client waiting.
            own.hears(Instant::now());
        };
        let (receiver, transmitter) = (
            Receiver::new(
                socket.clone(),
                &self.limits,
                &self.stopping,
                activity.clone(),
                line.clone(),
                (&known, &in_turn),
            ),
            Transmitter::new(socket.clone(), self.limits.send, activity, line)?,
        );
        let refused = |volume: &str| self.hears(&self.who(id, peer), Event::Refused { volume });
        let (exports, rights) = (&*self.exports, &*self.rights);
        let offer = Offer { exports, rights, peer, refused: &refused };
        let make_way = |holder, waited| self.make_way(holder, waited);
        serve(offer, self.house(&make_way), counters, receiver, transmitter, |receiver, agreed| {
            receiver.lift_deadline();
            self.seat_of(id, peer, &agreed.name, agreed.writes, &agreed.volume)
        });
        Ok(())
    }

    fn house<'a>(&'a self, make_way: &'a (dyn Fn(Holder, Duration) + Sync)) -> House<'a> {
        House {
            limits: &self.limits,
            shares: &self.shares,
            make_way,
            since: self.since,
            stopping: &self.stopping,
        }
    }

    /// Serves the only client of a device.
    fn attend_device(
        &self,
        id: u64,
        peer: Peer,
        socket: &ClientFd,
        device: &Taken,
        counters: &Counters,
    ) {
        let name = device.name();
        let refused = |volume: &str| self.hears(&self.who(id, peer), Event::Refused { volume });
        let (exports, rights) = (&*self.exports, &*self.rights);
        let offer = Offer { exports, rights, peer, refused: &refused };
        let (volume, writes) = match offer.open(&name) {
            Ok(opened) => opened,
            Err(error) => return device.say(&format!("a client was refused: {error}")),
        };
        let writes = writes && !volume.is_read_only();
        let Some(seat) = self.seat_of(id, peer, &name, writes, &volume) else {
            return device.say("a client was refused: there are too many connections");
        };
        let trouble = match vhost::Trouble::new() {
            Ok(trouble) => trouble,
            Err(error) => return device.say(&format!("a client was refused: {error}")),
        };
        // If that fails, a client that takes no answers keeps its thread until it is gone.
        let _ = sockopt::set_socket_timeout(socket, Timeout::Send, Some(self.limits.send));
        let mut its_id = [0; vhost::ID_BYTES];
        its_id.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        let make_way = |holder, waited| self.make_way(holder, waited);
        let served = vhost::Device {
            house: self.house(&make_way),
            seat: &seat,
            volume: &*volume,
            writes,
            id: its_id,
            counters,
            trouble,
            owed: vhost::Owed::default(),
            working: AtomicUsize::new(0),
        };
        vhost::serve(&served, device.share(), socket, &|sentence| device.say(sentence));
        device.follow(&*volume);
    }

    /// A client has proved who it is: from now on it shares with others of this certificate, and no
    /// more with those of its address. False when its certificate was taken back meanwhile.
    fn is_known(&self, id: u64, proof: Proof) -> bool {
        let peer = Peer::Certificate(proof.identity);
        let mut guests = self.guests.lock();
        let holds = self.credentials.get().is_some_and(|now| proof.still_holds(now));
        let beside = guests.present.values().find(|guest| guest.peer == peer);
        let of_peer = beside.map_or_else(Arc::default, |guest| guest.of_peer.clone());
        let Some(guest) = guests.present.get_mut(&id).filter(|_| holds) else { return false };
        (guest.peer, guest.of_peer, guest.proof) = (peer, of_peer, Some(proof));
        self.count(&guests);
        true
    }

    /// Ends the connections of those who would not be let in now: their certificate was taken back or
    /// has expired, or they have less right to their volume than they had.
    fn look_again(&self) {
        let mut guests = self.guests.lock();
        let gone = |guest: &Guest| {
            let unproved = guest.proof.as_ref().is_some_and(|proof| {
                self.credentials.get().is_none_or(|now| !proof.still_holds(now))
            });
            let less =
                |opened: &Opened| self.rights.right(guest.peer, &opened.name()) < opened.right;
            unproved || guest.opened.as_ref().is_some_and(less)
        };
        let gone: Vec<u64> =
            guests.present.iter().filter(|(_, guest)| gone(guest)).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| guests.cut(id));
        self.count(&guests);
    }

    /// The name under which a client shares limits and turns, as its volume is called now; `None` during
    /// the handshake.
    fn shared_name(&self, guest: &Guest) -> Option<String> {
        guest.opened.as_ref().map(|opened| self.exports.shared_name(&opened.name()))
    }

    /// The seat of a client whose handshake has succeeded; nothing when there are too many
    /// connections, and none gives way, or when it lost its right meanwhile.
    fn seat(&self, id: u64, name: &str, writes: bool, volume: &Arc<dyn Volume>) -> Option<Seat> {
        let right = if writes { Right::Write } else { Right::Read };
        let opened = Opened { name: name.to_owned(), right, volume: Arc::downgrade(volume) };
        let name = opened.name();
        let volume = self.exports.shared_name(&name);
        let mut guests = self.guests.lock();
        if self.rights.right(guests.present.get(&id)?.peer, &name) < right {
            return None;
        }
        let (number, limited) = guests.open(&volume, self.since);
        if let Some(limits) = self.exports.limits(&volume) {
            limited.set(limits);
        }
        let peer = guests.present.get(&id)?.peer;
        if guests.present.values().filter(|guest| guest.volume.is_some()).count()
            >= self.limits.connections
        {
            match guests.who_gives_way(peer, number, self.limits.connections / 2) {
                Some(other) => guests.cut(other),
                None => {
                    guests.past.refused += 1;
                    return None;
                }
            }
        }
        let beside = guests
            .present
            .values()
            .filter(|guest| guest.peer == peer)
            .find_map(|guest| guest.volume.as_ref().filter(|(of, _)| *of == number));
        let of_volume = beside.map_or_else(Arc::default, |(_, share)| share.clone());
        let guest = guests.present.get_mut(&id)?;
        guest.volume = Some((number, of_volume.clone()));
        guest.opened = Some(opened);
        let (of_peer, activity) = (guest.of_peer.clone(), guest.activity.clone());
        let socket = Some(guest.socket.clone());
        self.count(&guests);
        Some(Seat {
            holder: Holder { peer, volume: number },
            of_peer,
            of_volume,
            limited,
            activity,
            socket,
        })
    }

    /// Tells the buffers how many share them.
    fn count(&self, guests: &Guests) {
        let mut volumes: HashMap<Peer, HashSet<u64>> = HashMap::new();
        for guest in guests.present.values() {
            volumes
                .entry(guest.peer)
                .or_default()
                .extend(guest.volume.as_ref().map(|(number, _)| *number));
        }
        self.shares.buffers.peers.store(volumes.len(), Relaxed);
        for guest in guests.present.values() {
            guest.of_peer.volumes.store(volumes[&guest.peer].len(), Relaxed);
        }
    }

    /// Cuts a client off that keeps a working place for which `holder` has waited so long, and
    /// stands still in the middle of a request: one that holds one of too many, or has stood
    /// still for longer than any may rest. One of too many that sends a byte now and then is cut
    /// off when `holder` has waited as long, and one of not too many when its connection has waited
    /// for it twice as long, and `holder` for the place: otherwise several could keep all places
    /// together.
    fn make_way(&self, holder: Holder, waited: Duration) {
        let Limits { patience, rest, .. } = self.limits;
        if waited < patience {
            return;
        }
        let (long, now) = (rest.max(2 * patience), Instant::now());
        let guests = self.guests.lock();
        let in_the_way = guests.present.values().filter(|guest| {
            let Some((volume, _)) = &guest.volume else { return false };
            let of = Holder { peer: guest.peer, volume: *volume };
            let Some(kept) = guest.activity.kept_by_its_client(now) else { return false };
            let too_many = || {
                self.shares.places.holds_too_many(of)
                    && (kept.still >= patience || waited >= long && kept.waited >= patience)
            };
            of != holder
                && (waited >= long && kept.still >= long
                    || waited >= 2 * long && kept.waited >= 2 * long
                    || too_many())
        });
        if let Some(guest) = in_the_way.min_by_key(|guest| guest.activity.heard()) {
            guest.activity.cut();
            hang_up(&guest.socket);
        }
    }
}

impl Guests {
    /// Joins the threads that have ended.
    fn join_ended(&mut self) {
        for (_, ended) in self.leaving.extract_if(.., |(_, thread)| thread.is_finished()) {
            // Panics of sessions were caught and counted.
            let _ = ended.join();
        }
    }

    /// True when threads of cut connections that still wait for their volume are as many as
    /// connections may be, or those of a peer half as many: then one more would make threads
    /// without a bound.
    fn too_many_leave(&self, peer: Peer, connections: usize) -> bool {
        let of_peer = self.leaving.iter().filter(|(of, _)| *of == peer).count();
        self.leaving.len() >= connections || of_peer > connections / 2
    }

    /// The number and the limits of a volume while clients have it open, and until all that they
    /// asked for is paid for. `since` is when times begin.
    fn open(&mut self, volume: &str, since: Instant) -> (u64, Arc<Limited>) {
        if let Some((number, limited)) = self.volumes.get(volume) {
            return (*number, limited.clone());
        }
        let open: HashSet<u64> =
            self.present.values().filter_map(|guest| Some(guest.volume.as_ref()?.0)).collect();
        // A client that goes and comes again still pays for what it asked for.
        self.volumes
            .retain(|_, (number, limited)| open.contains(number) || !limited.is_rested(since));
        self.next_volume += 1;
        let new = (self.next_volume, Arc::<Limited>::default());
        self.volumes.insert(volume.to_owned(), new.clone());
        new
    }

    /// The handshake that ends when there are too many connections and another one comes from
    /// `peer`: of another peer that has more than `half` of all connections, or else of one that has
    /// more handshakes than the newcomer with the one that comes, or else of the newcomer's own. Of
    /// these it is the one that was silent longest. So who holds handshakes and says nothing, or comes
    /// again and again, cuts off none that goes on, also of the same peer.
    fn which_handshake_gives_way(&self, peer: Peer, half: usize) -> Option<u64> {
        let handshakes = || self.present.iter().filter(|(_, guest)| guest.volume.is_none());
        let has_some = |peer: &Peer| handshakes().any(|(_, guest)| guest.peer == *peer);
        let of = self
            .greedy(peer, half)
            .filter(has_some)
            .or_else(|| too_many(handshakes().map(|(_, guest)| guest.peer), peer, usize::MAX))
            .unwrap_or(peer);
        handshakes()
            .min_by_key(|(id, guest)| (guest.peer != of, guest.activity.heard(), **id))
            .map(|(id, _)| *id)
    }

    /// The connection that gives way when all are taken and `peer` comes for `volume`: of another
    /// peer that has too many, or else of another volume that has too many of the peer's, the one
    /// that was silent longest.
    fn who_gives_way(&self, peer: Peer, volume: u64, half: usize) -> Option<u64> {
        let silent_longest = |of: &dyn Fn(Peer, u64) -> bool| {
            let guests = self.present.iter().filter(|(_, guest)| {
                guest.volume.as_ref().is_some_and(|(number, _)| of(guest.peer, *number))
            });
            guests.min_by_key(|(id, guest)| (guest.activity.heard(), **id)).map(|(id, _)| *id)
        };
        let seated = self.present.values().filter(|guest| guest.volume.is_some());
        if let Some(greedy) = too_many(seated.map(|guest| guest.peer), peer, half) {
            return silent_longest(&|of, _| of == greedy);
        }
        let own = self.present.values().filter(|guest| guest.peer == peer);
        let volumes: Vec<u64> =
            own.filter_map(|guest| guest.volume.as_ref()).map(|(number, _)| *number).collect();
        let half = volumes.len() / 2;
        let greedy = too_many(volumes.into_iter(), volume, half)?;
        silent_longest(&|of, number| of == peer && number == greedy)
    }

    /// Another peer than `peer` that has more than `half` of the connections.
    fn greedy(&self, peer: Peer, half: usize) -> Option<Peer> {
        let mut connections: HashMap<Peer, usize> = HashMap::new();
        self.present.values().for_each(|guest| *connections.entry(guest.peer).or_default() += 1);
        connections
            .into_iter()
            .find(|(other, connections)| *other != peer && *connections > half)
            .map(|(other, _)| other)
    }

    /// Ends a connection, whose place is free at once.
    fn cut(&mut self, id: u64) {
        self.past.refused += 1;
        if let Some(guest) = self.present.get(&id) {
            guest.activity.cut();
            hang_up(&guest.socket);
        }
        self.leave(id);
    }

    /// Removes a guest, and keeps its counts.
    fn leave(&mut self, id: u64) {
        if let Some(guest) = self.present.remove(&id) {
            guest.counters.add_to(&mut self.past);
            // Requests in flight when the connection broke will never be answered.
            self.past.in_flight = 0;
            self.leaving.extend(guest.thread.map(|thread| (guest.peer, thread)));
        }
    }
}

/// Who has too many connections for `newcomer` to be kept out: of all others the one that has most,
/// if these are more than `half`, or more than the newcomer has with the one that comes. So several
/// can't keep another one out together, and those who have equally many cut off nobody.
pub(crate) fn too_many<K: Copy + Eq + Hash>(
    connections: impl Iterator<Item = K>,
    newcomer: K,
    half: usize,
) -> Option<K> {
    let mut counts: HashMap<K, usize> = HashMap::new();
    connections.for_each(|of| *counts.entry(of).or_default() += 1);
    let with_it = counts.remove(&newcomer).unwrap_or_default() + 1;
    let (greedy, most) = counts.into_iter().max_by_key(|(_, connections)| *connections)?;
    (most > half || most > with_it).then_some(greedy)
}
