//! A client's connection to a device: it shares the memory of its guest, says where the rings are,
//! and starts and stops them.
//!
//! *Invariants.* A message that the protocol does not have ends the connection. A ring that can't be
//! understood stops all queues of the device, which the guest's driver may start again. *Threads:*
//! one, beside those of the [queues](super::queue).

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::Scope;

use rustix::net::{AddressFamily, SocketAddrUnix, getpeername, sockopt};

use super::bell;
use super::features::{self, PROTOCOL_FEATURES, QUEUES, protocol};
use super::marks::Region;
use super::memory::{Memory, Part};
use super::queue::{CUT, Device, Started};
use super::ring::{Addresses, PLACES, Ring, Start};
use super::room::Share;
use super::wire::{self, Message, request, u16_at, u32_at, u64_at};
use crate::client_fd::ClientFd;

/// How often the thread looks whether the volume has grown.
const LOOK_MILLISECONDS: u32 = 500;
/// Bytes that describe a part of memory.
const PART_BYTES: usize = 32;
/// Bytes of a question for the configuration, before the bytes themselves.
const CONFIG_BYTES: usize = 12;

/// Why something is refused, as a sentence without a full stop.
type Refusal = Cow<'static, str>;

/// What goes back to the client.
enum Reply {
    /// That it succeeded, or not, if the client wants to know.
    Done,
    NotDone,
    Bytes(Vec<u8>),
    File(Vec<u8>, OwnedFd),
}

/// A queue as the client has set it up.
struct Slot<'scope> {
    places: u16,
    addresses: Option<Addresses>,
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    /// To say that the ring can't be understood.
    error: Option<OwnedFd>,
    enabled: bool,
    started: Option<Started<'scope>>,
}

impl Default for Slot<'_> {
    fn default() -> Self {
        Slot {
            places: PLACES,
            addresses: None,
            base: 0,
            kick: None,
            call: None,
            error: None,
            enabled: false,
            started: None,
        }
    }
}

struct Conversation<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    device: &'scope Device<'scope>,
    share: &'scope Arc<Share>,
    say: &'scope dyn Fn(&str),
    features: u64,
    protocol: u64,
    memory: Option<Arc<Memory>>,
    in_flight: Option<Arc<Region>>,
    slots: Vec<Slot<'scope>>,
    /// The client's other socket, for news.
    news: Option<ClientFd>,
    /// The size that the client knows.
    size: u64,
}

/// Serves a client until it leaves, or has to. `share` has room for its guest's memory. `say` takes sentences for the log, without the name of
/// the volume.
pub(crate) fn serve(
    device: &Device<'_>,
    share: &Arc<Share>,
    socket: &ClientFd,
    say: &dyn Fn(&str),
) {
    let ended = std::thread::scope(|scope| {
        let mut session = Conversation {
            scope,
            device,
            share,
            say,
            features: 0,
            protocol: 0,
            memory: None,
            in_flight: None,
            slots: Vec::new(),
            news: None,
            size: device.volume.size(),
        };
        session.slots.resize_with(usize::from(QUEUES), Slot::default);
        let ended = session.run(socket);
        session.stop_all();
        ended
    });
    // A client that comes again finds that all is well, and so does one of the next server.
    if let Some(heard) = device.owed.greatest()
        && device.volume.flush().is_ok()
    {
        device.owed.settle(Some(heard));
    }
    if let Err(refusal) = ended {
        say(&format!("the connection of a client was ended: {refusal}"));
    }
}

/// A client's socket for news. One that is connected to a server may be the client's end of this very
/// connection, whose end nobody would notice while it is here.
fn of_a_pair(socket: ClientFd) -> Result<ClientFd, Refusal> {
    let peer = match sockopt::socket_domain(&socket) {
        Ok(AddressFamily::UNIX) => getpeername(&socket).ok().flatten(),
        _ => None,
    };
    let peer = peer.and_then(|peer| SocketAddrUnix::try_from(peer).ok());
    let is_named = |peer: &SocketAddrUnix| {
        peer.path_bytes().is_some() || peer.abstract_name().is_some_and(|name| !name.is_empty())
    };
    match peer.is_some_and(|peer| !is_named(&peer)) {
        true => Ok(socket),
        false => Err("it wants news by what is no socket of a pair".into()),
    }
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    Cow::Owned(error.to_string())
}

impl<'scope> Conversation<'scope, '_> {
    fn run(&mut self, socket: &ClientFd) -> Result<(), Refusal> {
        loop {
            let Device { trouble, seat, volume, .. } = self.device;
            let [came, troubled] = bell::wait([socket, &trouble.bell], Some(LOOK_MILLISECONDS));
            if seat.activity.is_cut() {
                return Ok(());
            }
            if troubled && let Some(reason) = trouble.take() {
                self.halt(reason);
            }
            if came {
                match wire::receive(socket) {
                    Ok(Some(message)) => self.message(message, socket)?,
                    Ok(None) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                    Err(error) => return Err(failed(error)),
                }
            }
            self.device.owed.settle(volume.durable());
            let size = volume.size();
            if size != self.size && self.news.as_ref().is_none_or(wire::tell_of_change) {
                self.size = size;
            }
        }
    }

    fn message(&mut self, message: Message, socket: &OwnedFd) -> Result<(), Refusal> {
        let (request, wants) = (message.request, message.wants_reply);
        let acknowledges = wants && self.protocol & protocol::REPLY_ACK != 0;
        let handled = self.handle(message);
        let sent = match &handled {
            Ok(Reply::Bytes(bytes)) => wire::answer(socket, request, bytes, None),
            Ok(Reply::File(bytes, file)) => {
                wire::answer(socket, request, bytes, Some(file.as_fd()))
            }
            done if acknowledges => {
                let refused = u64::from(!matches!(done, Ok(Reply::Done)));
                wire::answer(socket, request, &refused.to_le_bytes(), None)
            }
            _ => Ok(()),
        };
        handled?;
        sent.map_err(|_| Cow::Borrowed("it takes no answers"))
    }

    fn handle(&mut self, mut message: Message) -> Result<Reply, Refusal> {
        let number = |number: u64| Ok(Reply::Bytes(number.to_le_bytes().to_vec()));
        match message.request {
            request::GET_FEATURES => return number(features::offered(self.device.writes)),
            request::GET_PROTOCOL_FEATURES => return number(protocol::OFFERED),
            request::GET_QUEUE_NUM => return number(QUEUES.into()),
            request::SET_FEATURES => self.agree(message.number()?)?,
            request::SET_PROTOCOL_FEATURES => {
                let wanted = message.number()?;
                if wanted & !protocol::OFFERED != 0 {
                    return Err("it wants features that were not offered".into());
                }
                self.protocol = wanted;
            }
            // A connection has one owner anyway.
            request::SET_OWNER => {}
            request::RESET_OWNER | request::RESET_DEVICE => {
                self.stop_all();
                self.features = 0;
                self.slots.fill_with(Slot::default);
            }
            request::SET_MEM_TABLE => self.share(message)?,
            request::SET_VRING_NUM => {
                let (queue, places) = message.state()?;
                let places = u16::try_from(places)
                    .ok()
                    .filter(|places| places.is_power_of_two() && *places <= PLACES);
                let places = places.ok_or("a ring of an impossible size")?;
                self.still(queue)?.places = places;
            }
            request::SET_VRING_ADDR => {
                let body: &[u8; 40] = message.exactly()?;
                let at = |offset| u64_at(body, offset);
                let addresses = Addresses { table: at(8), used: at(16), available: at(24) };
                self.still(u32_at(body, 0))?.addresses = Some(addresses);
                self.settle(u32_at(body, 0) as usize)?;
            }
            request::SET_VRING_BASE => {
                let (queue, base) = message.state()?;
                let base = u16::try_from(base).map_err(|_| "a ring with an impossible index")?;
                self.still(queue)?.base = base;
            }
            request::GET_VRING_BASE => {
                let (queue, _) = message.state()?;
                let slot = self.slot(queue.into())?;
                slot.kick = None;
                if let Some(started) = slot.started.take() {
                    slot.base = started.join().lock().next();
                }
                let state = [queue, slot.base.into()].map(u32::to_le_bytes);
                return Ok(Reply::Bytes(state.concat()));
            }
            request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
                self.event(message)?;
            }
            request::SET_VRING_ENABLE => {
                let (queue, enable) = message.state()?;
                self.slot(queue.into())?.enabled = enable != 0;
                self.settle(queue as usize)?;
            }
            request::SET_BACKEND_REQ_FD => self.news = Some(of_a_pair(message.file()?)?),
            request::GET_CONFIG => return self.config(&message),
            // Nothing in the configuration is the guest's to choose.
            request::SET_CONFIG => return Ok(Reply::NotDone),
            request::GET_INFLIGHT_FD => return Conversation::make_marks(&message),
            request::SET_INFLIGHT_FD => self.take_marks(message)?,
            _ => return Err("it asks for something that was not offered".into()),
        }
        Ok(Reply::Done)
    }

    /// The client chooses features.
    fn agree(&mut self, wanted: u64) -> Result<(), Refusal> {
        if wanted & !features::offered(self.device.writes) != 0 {
            return Err("it wants features that were not offered".into());
        }
        let running = self.slots.iter().any(|slot| slot.started.is_some());
        if running && wanted != self.features {
            return Err("it changes features while rings run".into());
        }
        self.features = wanted;
        Ok(())
    }

    fn slot(&mut self, queue: u64) -> Result<&mut Slot<'scope>, Refusal> {
        let queue = usize::try_from(queue).unwrap_or(usize::MAX);
        self.slots.get_mut(queue).ok_or_else(|| "it speaks of a queue that is not there".into())
    }

    /// A queue whose ring does not run.
    fn still(&mut self, queue: u32) -> Result<&mut Slot<'scope>, Refusal> {
        let slot = self.slot(queue.into())?;
        match slot.started {
            None => Ok(slot),
            Some(_) => Err("it changes a ring that runs".into()),
        }
    }

    /// Another memory, for rings that run as well.
    fn share(&mut self, message: Message) -> Result<(), Refusal> {
        let body = message.body();
        let parts: Vec<Part> = body
            .get(8..)
            .unwrap_or_default()
            .chunks_exact(PART_BYTES)
            .map(|part| Part {
                guest: u64_at(part, 0),
                bytes: u64_at(part, 8),
                user: u64_at(part, 16),
                offset: u64_at(part, 24),
            })
            .collect();
        let whole = body.len() == 8 + parts.len() * PART_BYTES;
        if parts.is_empty() || !whole || u32_at(body, 0) as usize != parts.len() {
            return Err("a table of memory that is none".into());
        }
        if parts.len() != message.files.len() {
            return Err("a table of memory without its files".into());
        }
        let memory = Arc::new(Memory::map(parts, message.files, self.share)?);
        self.memory = Some(memory.clone());
        let started = self.slots.iter().filter_map(|slot| slot.started.as_ref());
        let moved = started
            .map(|started| started.ring.lock().lie_in(memory.clone()))
            .collect::<Result<Vec<()>, _>>();
        match moved {
            Ok(_) => self.settle_all(),
            Err(reason) => {
                self.halt(reason);
                Ok(())
            }
        }
    }

    /// An event by which one side wakes the other.
    fn event(&mut self, mut message: Message) -> Result<(), Refusal> {
        let (which, request) = (message.number()?, message.request);
        let (queue, none) = (which & 0xff, which & 0x100 != 0);
        let event = match none {
            true => None,
            false => Some(bell::of_client(message.file()?)?),
        };
        let slot = self.slot(queue)?;
        match request {
            request::SET_VRING_KICK => {
                let event = event.ok_or("it wants its rings to be looked at all the time")?;
                slot.kick = Some(event);
                if let Some(started) = slot.started.take() {
                    slot.base = started.join().lock().next();
                }
                self.settle(queue as usize)
            }
            request::SET_VRING_CALL => {
                let mut woken = Ok(());
                if let Some(started) = &slot.started {
                    let event = event.as_ref().map(OwnedFd::try_clone).transpose();
                    woken = started.ring.lock().call_by(event.map_err(failed)?);
                }
                slot.call = event;
                if let Err(reason) = woken {
                    self.halt(reason);
                }
                Ok(())
            }
            _ => {
                slot.error = event;
                Ok(())
            }
        }
    }

    fn config(&self, message: &Message) -> Result<Reply, Refusal> {
        let body = message.body();
        let (offset, bytes) = (u32_at(body, 0), u32_at(body, 4));
        if body.len() < CONFIG_BYTES || body.len() - CONFIG_BYTES != bytes as usize {
            return Err("a question for the configuration that is none".into());
        }
        // What is not there is answered with no bytes.
        let config = features::config(self.device.volume.size(), offset, bytes);
        let config = config.unwrap_or_default();
        let head = [offset, config.len() as u32, u32_at(body, 8)].map(u32::to_le_bytes).concat();
        Ok(Reply::Bytes([head, config].concat()))
    }

    /// The numbers of a message about the region of requests in flight: bytes, offset, queues,
    /// places.
    fn about_marks(message: &Message) -> Result<(u64, u64, u16, u16), Refusal> {
        let body = message.body();
        let (queues, places) = (u16_at(body, 16), u16_at(body, 18));
        let good = (1..=QUEUES).contains(&queues) && (1..=PLACES).contains(&places);
        if !(20..=24).contains(&body.len()) || !good {
            return Err("a region of requests in flight that is none".into());
        }
        Ok((u64_at(body, 0), u64_at(body, 8), queues, places))
    }

    /// A new region of requests in flight.
    fn make_marks(message: &Message) -> Result<Reply, Refusal> {
        let (_, _, queues, places) = Conversation::about_marks(message)?;
        let (file, bytes) = Region::create(queues, places).map_err(failed)?;
        let mut body = vec![0; message.body().len()];
        body[..8].copy_from_slice(&bytes.to_le_bytes());
        body[16..18].copy_from_slice(&queues.to_le_bytes());
        body[18..20].copy_from_slice(&places.to_le_bytes());
        Ok(Reply::File(body, file))
    }

    /// The region that the client has kept.
    fn take_marks(&mut self, mut message: Message) -> Result<(), Refusal> {
        let (bytes, offset, queues, places) = Conversation::about_marks(&message)?;
        if self.slots.iter().any(|slot| slot.started.is_some()) {
            return Err("it changes the region of requests in flight while rings run".into());
        }
        let region = Region::of(message.file()?, offset, bytes, queues, places)?;
        let region = Arc::new(region);
        self.in_flight = Some(region.clone());
        if self.device.owed.stand_in(region) {
            (self.say)(
                "the server before this one was killed, and may have lost what its guest holds \
                 to be written: all requests fail until the guest is reset. With --persistence \
                 strong, or a disk without a write cache, nothing is lost and the guest goes on",
            );
        }
        Ok(())
    }

    fn settle_all(&mut self) -> Result<(), Refusal> {
        (0..self.slots.len()).try_for_each(|queue| self.settle(queue))
    }

    /// Starts or stops a ring, as it was set up.
    fn settle(&mut self, queue: usize) -> Result<(), Refusal> {
        let Some(slot) = self.slots.get_mut(queue) else { return Ok(()) };
        let enabled = slot.enabled || self.features & PROTOCOL_FEATURES == 0;
        let (Some(memory), Some(addresses), Some(kick), true) =
            (&self.memory, slot.addresses, &slot.kick, enabled)
        else {
            if let Some(started) = slot.started.take() {
                slot.base = started.join().lock().next();
            }
            return Ok(());
        };
        if slot.started.is_some() {
            return Ok(());
        }
        let ring = Ring::start(Start {
            places: slot.places,
            addresses,
            base: slot.base,
            event_index: features::event_index(self.features),
            memory: memory.clone(),
            in_flight: self.in_flight.as_ref().map(|region| (region, queue)),
            call: slot.call.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?,
        });
        match ring {
            Ok(ring) => {
                let kick = kick.try_clone().map_err(failed)?;
                let flushes = features::flushes(self.features);
                let started = Started::new(self.scope, self.device, ring, kick, flushes);
                slot.started = Some(started.map_err(failed)?);
            }
            Err(reason) => self.halt(reason),
        }
        Ok(())
    }

    /// A ring can't be understood: stops all queues until the guest's driver starts them again.
    fn halt(&mut self, reason: &'static str) {
        self.stop_all();
        // What the queues found while they stopped is the same trouble.
        self.device.trouble.take();
        for slot in &mut self.slots {
            slot.kick = None;
        }
        // A client that keeps us waiting at one of them hears of no more.
        let mut errors = self.slots.iter().filter_map(|slot| slot.error.as_ref());
        let _ = errors.try_for_each(bell::ring_at_client);
        if reason != CUT {
            (self.say)(&format!("the device was stopped, since its guest offers {reason}"));
        }
    }

    /// Stops all rings, once what they took is answered.
    fn stop_all(&mut self) {
        self.slots.iter().filter_map(|slot| slot.started.as_ref()).for_each(Started::stop);
        for slot in &mut self.slots {
            if let Some(started) = slot.started.take() {
                slot.base = started.join().lock().next();
            }
        }
    }
}
