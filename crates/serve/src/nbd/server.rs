//! The server: takes clients in, gives each a thread, and ends them all on request.
//!
//! *Invariants.* No client keeps another one out for longer than a handshake may last: when all places are taken, the oldest unfinished
//! handshake gives way. No peer keeps another peer out: when all are taken and it has more than half of them, its longest silent connection gives way. A
//! session that panics ends alone.
//! *Threads:* one that accepts, and those of the [sessions](super::session).

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onefold_core::{Error, Exports, Kind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};

use super::buffers::{Buffers, Share};
use super::limits::Limits;
use super::listener::{Listener, Reach};
use super::rights::{Everything, Offer, Peer, Rights};
use super::session::{House, serve};
use super::socket::{Heard, Receiver, Transmitter, hang_up, stop_receiving};
use super::statistics::{Counters, Statistics};
use super::turns::Turns;

/// Pause after the system refused a new connection (no more descriptors or memory): the reason will not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time for sessions to notice that their connection was cut. What a volume does then is not ours to hurry.
const CUT_GRACE: Duration = Duration::from_secs(5);

/// An NBD server for the volumes of [`Exports`].
///
/// Add where it listens, then [`start`](Server::start). Dropping it ends all connections at once.
pub struct Server {
    hall: Arc<Hall>,
    listeners: Vec<Listener>,
    acceptor: Option<Acceptor>,
}

struct Acceptor {
    thread: JoinHandle<()>,
    /// Closing it wakes the thread and ends it.
    alive: UnixStream,
}

/// What all threads share.
struct Hall {
    exports: Arc<dyn Exports>,
    rights: Arc<dyn Rights>,
    limits: Limits,
    buffers: Buffers,
    turns: Turns,
    /// What times count from.
    since: Instant,
    guests: Mutex<Guests>,
    left: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Guests {
    present: HashMap<u64, Guest>,
    next: u64,
    /// What is known of those who left, and of those who never got in.
    past: Statistics,
    /// Threads that have nothing more to do than to end.
    leaving: Vec<JoinHandle<()>>,
}

struct Guest {
    socket: Arc<OwnedFd>,
    peer: Peer,
    heard: Arc<Heard>,
    share: Arc<Share>,
    counters: Arc<Counters>,
    in_handshake: bool,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// A server that listens nowhere yet. Whoever reaches it may do everything.
    #[must_use]
    pub fn new(exports: Arc<dyn Exports>, limits: Limits) -> Server {
        Server::with_rights(exports, Arc::new(Everything), limits)
    }

    /// The same for peers of different rights.
    #[must_use]
    pub fn with_rights(exports: Arc<dyn Exports>, rights: Arc<dyn Rights>, limits: Limits) -> Server {
        let hall = Hall {
            exports,
            rights,
            buffers: Buffers::new(&limits),
            turns: Turns::new(std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2)),
            since: Instant::now(),
            limits,
            guests: Mutex::default(),
            left: Condvar::new(),
            stopping: AtomicBool::new(false),
        };
        Server { hall: Arc::new(hall), listeners: Vec::new(), acceptor: None }
    }

    /// Listens on a UNIX socket that this user alone can connect to. The file is removed when the server stops.
    ///
    /// # Errors
    /// As [`add_unix_for`](Server::add_unix_for).
    pub fn add_unix(&mut self, path: &Path) -> Result<()> {
        self.add_unix_for(path, Reach::default())
    }

    /// Listens on a UNIX socket that those of `reach` can connect to. The file is removed when the server stops.
    ///
    /// # Errors
    /// `Busy` when another server answers there, `Exists` when something else is there, `InvalidInput` when the path is too long, and
    /// those of the system.
    pub fn add_unix_for(&mut self, path: &Path, reach: Reach) -> Result<()> {
        self.listeners.push(Listener::unix(path, reach)?);
        Ok(())
    }

    /// Listens on a TCP address, and returns it with the port that it got. There is no authentication, not even of the users of this machine,
    /// so that each needs `insecure`.
    ///
    /// # Errors
    /// `Denied` without `insecure`, and those of the system.
    pub fn add_tcp(&mut self, addr: SocketAddr, insecure: bool) -> Result<SocketAddr> {
        let (listener, addr) = Listener::tcp(addr, insecure)?;
        self.listeners.push(listener);
        Ok(addr)
    }

    /// Takes over a stream socket that listens already, as service managers hand them over. One that is not a UNIX socket needs `insecure`.
    ///
    /// # Errors
    /// `InvalidInput` when it does not listen, `Denied` without `insecure`, and those of the system.
    pub fn add_listener(&mut self, socket: OwnedFd, insecure: bool) -> Result<()> {
        self.listeners.push(Listener::handed_over(socket, insecure)?);
        Ok(())
    }

    /// Starts to take clients in.
    ///
    /// # Errors
    /// `InvalidInput` when it listens nowhere or was started before, and those of the system.
    pub fn start(&mut self) -> Result<()> {
        if self.listeners.is_empty() {
            return Err(Error::new(Kind::InvalidInput, "the server has no socket to listen on, or was started before"));
        }
        let failed = |error| Error::from_io("can't start the server", error);
        let (alive, watched) = UnixStream::pair().map_err(failed)?;
        let hall = self.hall.clone();
        let listeners = std::mem::take(&mut self.listeners);
        let accept = move || hall.accept_all(&listeners, &watched);
        let thread = std::thread::Builder::new().name("nbd accept".into()).spawn(accept).map_err(failed)?;
        self.acceptor = Some(Acceptor { thread, alive });
        Ok(())
    }

    /// What the server has done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let guests = self.hall.guests.lock();
        let mut sum = guests.past;
        sum.connections = guests.present.len() as u64;
        for guest in guests.present.values() {
            guest.counters.add_to(&mut sum);
        }
        sum
    }

    /// Takes no more clients, answers the requests that have arrived, and closes. Connections that are not done after `grace` are cut.
    ///
    /// # Errors
    /// `Busy` when sessions still wait for their volume some seconds after they were cut; their threads go on.
    pub fn stop(mut self, grace: Duration) -> Result<()> {
        self.end(grace)
    }

    fn end(&mut self, grace: Duration) -> Result<()> {
        // Sockets, and their files, are closed with the acceptor.
        self.listeners.clear();
        if let Some(Acceptor { thread, alive }) = self.acceptor.take() {
            drop(alive);
            // Its panic, if any, was printed; what matters now is that it has ended.
            let _ = thread.join();
        }
        self.hall.stopping.store(true, Relaxed);
        let mut guests = self.hall.guests.lock();
        for guest in guests.present.values() {
            if guest.in_handshake {
                hang_up(&guest.socket);
            } else {
                stop_receiving(&guest.socket);
            }
        }
        self.hall.wait_until_empty(&mut guests, grace);
        for guest in guests.present.values() {
            hang_up(&guest.socket);
        }
        let cut = Instant::now();
        self.hall.wait_until_empty(&mut guests, CUT_GRACE);
        while !guests.leaving.is_empty() && cut.elapsed() < CUT_GRACE {
            guests.join_ended();
            MutexGuard::unlocked(&mut guests, || std::thread::sleep(Duration::from_micros(100)));
        }
        match guests.present.len() + guests.leaving.len() {
            0 => Ok(()),
            stuck => Err(Error::new(Kind::Busy, format!("{stuck} sessions still wait for their volume"))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Who wants to know how it ended calls `stop`.
        let _ = self.end(Duration::ZERO);
    }
}

impl Hall {
    fn wait_until_empty(&self, guests: &mut MutexGuard<'_, Guests>, timeout: Duration) {
        let end = Instant::now() + timeout;
        self.left.wait_while_until(guests, |guests| !guests.present.is_empty(), end);
    }

    /// Accepts until the other end of `watched` is closed.
    fn accept_all(self: &Arc<Hall>, listeners: &[Listener], watched: &UnixStream) {
        loop {
            let mut waited: Vec<PollFd<'_>> = vec![PollFd::new(watched, PollFlags::IN)];
            waited.extend(listeners.iter().map(|listener| PollFd::new(listener.socket(), PollFlags::IN)));
            let ready = match poll(&mut waited, None) {
                Ok(_) => waited.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>(),
                Err(_) => vec![false; waited.len()],
            };
            if ready[0] {
                return;
            }
            for listener in listeners.iter().zip(&ready[1..]).filter_map(|(listener, &ready)| ready.then_some(listener)) {
                match listener.accept() {
                    Ok(Some(socket)) => self.welcome(socket),
                    Ok(None) => {}
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        }
    }

    /// Gives a client a place and a thread, or closes its connection.
    fn welcome(self: &Arc<Hall>, socket: OwnedFd) {
        let mut guests = self.guests.lock();
        guests.join_ended();
        guests.past.accepted += 1;
        let peer = Peer::of(&socket);
        if guests.present.len() >= self.limits.connections {
            guests.past.refused += 1;
            let Some((id, guest)) = guests.who_gives_way(peer, self.limits.connections / 2) else { return };
            // Its place is free at once; its thread follows when it notices.
            hang_up(&guest.socket);
            guests.leave(id);
        }
        let share = guests.present.values().find(|guest| guest.peer == peer).map_or_else(Arc::default, |guest| guest.share.clone());
        let id = guests.next;
        guests.next += 1;
        let (socket, counters) = (Arc::new(socket), Arc::new(Counters::default()));
        let heard = Arc::new(Heard::new(self.since));
        let guest = Guest {
            socket: socket.clone(),
            peer,
            heard: heard.clone(),
            share: share.clone(),
            counters: counters.clone(),
            in_handshake: true,
            thread: None,
        };
        guests.present.insert(id, guest);
        self.buffers.peers.store(guests.peers(), Relaxed);
        let hall = self.clone();
        let attend = move || hall.attend(id, peer, socket, heard, &share, &counters);
        match std::thread::Builder::new().name(format!("nbd {id}")).spawn(attend) {
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
    fn attend(&self, id: u64, peer: Peer, socket: Arc<OwnedFd>, heard: Arc<Heard>, share: &Share, counters: &Counters) {
        let session = || -> io::Result<()> {
            let receiver = Receiver::new(socket.clone(), &self.limits, &self.stopping, heard);
            let transmitter = Transmitter::new(socket.clone(), self.limits.send)?;
            let offer = Offer { exports: &*self.exports, rights: &*self.rights, peer };
            let house = House { limits: &self.limits, buffers: &self.buffers, turns: &self.turns };
            serve(offer, house, share, counters, receiver, transmitter, |receiver| {
                receiver.lift_deadline();
                if let Some(guest) = self.guests.lock().present.get_mut(&id) {
                    guest.in_handshake = false;
                }
            });
            Ok(())
        };
        let ended = catch_unwind(AssertUnwindSafe(session));
        hang_up(&socket);
        let mut guests = self.guests.lock();
        guests.past.panics += u64::from(ended.is_err());
        guests.leave(id);
        self.buffers.peers.store(guests.peers(), Relaxed);
        drop(guests);
        self.left.notify_all();
    }
}

impl Guests {
    /// Joins the threads that have ended.
    fn join_ended(&mut self) {
        for ended in self.leaving.extract_if(.., |thread| thread.is_finished()) {
            // Panics of sessions were caught and counted.
            let _ = ended.join();
        }
    }

    /// How many peers are there.
    fn peers(&self) -> usize {
        self.present.values().map(|guest| guest.peer).collect::<HashSet<_>>().len()
    }

    /// Whose place a newcomer of `peer` takes when all are taken: of another peer that has more than `half` of them, an unfinished handshake or else the
    /// connection that was silent longest; else the oldest unfinished handshake.
    fn who_gives_way(&self, peer: Peer, half: usize) -> Option<(u64, &Guest)> {
        let mut places: HashMap<Peer, usize> = HashMap::new();
        self.present.values().for_each(|guest| *places.entry(guest.peer).or_default() += 1);
        let greedy = places.iter().find(|(other, places)| **other != peer && **places > half).map(|(other, _)| *other);
        let guests = self.present.iter().map(|(id, guest)| (*id, guest));
        match greedy {
            Some(greedy) => {
                guests.filter(|(_, guest)| guest.peer == greedy).min_by_key(|(id, guest)| (!guest.in_handshake, guest.heard.at(), *id))
            }
            None => guests.filter(|(_, guest)| guest.in_handshake).min_by_key(|(id, _)| *id),
        }
    }

    /// Forgets a guest but for what it did.
    fn leave(&mut self, id: u64) {
        if let Some(guest) = self.present.remove(&id) {
            guest.counters.add_to(&mut self.past);
            // What was under way when the connection broke will never be answered.
            self.past.in_flight = 0;
            self.leaving.extend(guest.thread);
        }
    }
}
