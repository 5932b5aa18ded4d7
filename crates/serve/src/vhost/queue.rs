//! A queue at work: takes requests from its ring, asks the volume, and answers.
//!
//! The requests that a guest has put into the ring are a batch: its writes go to the volume at once,
//! and its reads together. What has to be durable before its answer waits aside (see
//! [`durable`](super::durable)). While there is something to do the queue holds a working place of
//! the server, and with it its buffers, as a connection of NBD does; it gives the place back when
//! others wait, or when nothing more comes.
//!
//! *Invariants.* What a guest writes is copied, once, before the volume sees it; what it reads is
//! verified before it is copied. No answer comes before the volume has the change. *Threads:* one for
//! each ring that was started, and at most one helper; they end when the ring is stopped.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use onefold_core::block::{bytes, bytes_mut};
use onefold_core::{BLOCK_BYTES, Block, BlockRead, CpuContention, Lba, Ticket, Volume};
use parking_lot::Mutex;
use vm_memory::GuestMemoryMmap;

use super::bell;
use super::change::{Change, Parked, ROOM_LOOK, What};
use super::durable::{Answered, Durable, Waits};
use super::marks::Owed;
use super::request::{BUFFERS, ID_BYTES, Kind, REQUEST_BYTES, Ranges, Request};
use super::ring::{Answer, Due, Ring};
use super::trouble::Trouble;
use crate::batch::durable::{Answers, Outcome, Until, has_started};
use crate::nbd::buffers::{Borrower, Loan};
use crate::nbd::durations::{Begun, Ended};
use crate::nbd::limits::{LOOK, Limits};
use crate::nbd::session::{House, Seat, TURN_BYTES, TURN_TIME};
use crate::nbd::statistics::{Counters, add, sub};
use crate::nbd::turns::REQUEST_COST;
use crate::nbd::turns::{Presence, Turn};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of blocks that a queue at work is sure of. They are less than what a working place stands
/// for.
const SURE_BYTES: usize = 128 << 10;
/// Kicks in a row without a request that a queue answers at once. A guest kicks now and then for a
/// request that was taken already.
const EMPTY_KICKS: u32 = 64;
/// The longest that a queue rests after more of them, in milliseconds.
const KICK_REST: u32 = 20;

/// What the queues of a device have together.
pub(crate) struct Device<'a> {
    pub(crate) house: House<'a>,
    pub(crate) seat: &'a Seat,
    pub(crate) volume: &'a dyn Volume,
    /// The guest may change the volume.
    pub(crate) writes: bool,
    /// The name of the device.
    pub(crate) id: [u8; ID_BYTES],
    pub(crate) counters: &'a Counters,
    pub(crate) trouble: Trouble,
    /// Changes that the guest heard of and that are not durable.
    pub(crate) owed: Owed,
    /// Queues that hold a working place.
    pub(crate) working: AtomicUsize,
}

impl Device<'_> {
    /// What the helper of a queue answers with.
    pub(crate) fn durable<'a>(&'a self, ring: &'a Mutex<Ring>) -> Durable<'a> {
        let Device { counters, owed, trouble, .. } = self;
        Durable { ring, counters, owed, trouble, answered: Answered::default() }
    }
}

/// A queue that was started, for the device's thread.
pub(crate) struct Started<'scope> {
    pub(crate) ring: Arc<Mutex<Ring>>,
    stop: StopOnDrop,
    thread: ScopedJoinHandle<'scope, ()>,
}

struct Stop {
    asked: AtomicBool,
    bell: OwnedFd,
}

/// Stops the thread when its owner is gone, be it by a panic.
struct StopOnDrop(Arc<Stop>);

impl StopOnDrop {
    fn stop(&self) {
        self.0.asked.store(true, Relaxed);
        bell::ring(&self.0.bell);
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Ends the helper of a queue with its thread. A panic of that is told to the device's thread, which
/// ends the connection.
struct EndOnDrop<'a> {
    waits: &'a Waits,
    trouble: &'a Trouble,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.waits.close();
        if std::thread::panicking() {
            self.trouble.tell("what made the server fail");
        }
    }
}

impl<'scope> Started<'scope> {
    /// Starts the thread of a ring.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn new(
        scope: &'scope Scope<'scope, '_>,
        device: &'scope Device<'scope>,
        ring: Ring,
        kick: OwnedFd,
        flushes: bool,
    ) -> std::io::Result<Started<'scope>> {
        let ring = Arc::new(Mutex::new(ring));
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), bell: bell::new()? });
        let parked = Parked::new()?;
        let (its_ring, its_stop) = (ring.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("vhost queue".into()).spawn_scoped(
            scope,
            move || {
                let waits = Arc::new(Waits::new(usize::MAX));
                let mut helper = None;
                let (helps, helps_ring) = (waits.clone(), its_ring.clone());
                let help = || {
                    let (helps, helps_ring) = (helps.clone(), helps_ring.clone());
                    let named = std::thread::Builder::new().name("vhost durable".into());
                    let work = move || helps.help(device.volume, device.durable(&helps_ring));
                    helper = named.spawn_scoped(scope, work).ok();
                    helper.is_some()
                };
                let ends = EndOnDrop { waits: &waits, trouble: &device.trouble };
                let mut queue = Worker::new(device, &its_ring, &waits, flushes, parked, help);
                if let Err(reason) = queue.run(&kick, &its_stop) {
                    device.trouble.tell(reason);
                }
                drop(queue);
                drop(ends);
                // A panic of the helper is one of the session.
                if let Some(Err(panic)) = helper.map(ScopedJoinHandle::join) {
                    device.trouble.tell("what made the server fail");
                    std::panic::resume_unwind(panic);
                }
            },
        )?;
        Ok(Started { ring, stop: StopOnDrop(stop), thread })
    }

    /// Stops taking requests. Those that were taken are still answered.
    pub(crate) fn stop(&self) {
        self.stop.stop();
    }

    /// Waits until all are answered; gives the ring.
    ///
    /// # Panics
    /// When the thread did.
    pub(crate) fn join(self) -> Arc<Mutex<Ring>> {
        self.stop();
        match self.thread.join() {
            Ok(()) => self.ring,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A read that waits for its batch.
struct Waiting {
    request: Request,
    offset: u64,
    length: u64,
    begun: Option<Begun>,
}

/// Blocks whose bytes are the range, with up to a block more at both ends.
fn blocks_around(offset: u64, length: u64) -> std::ops::Range<u64> {
    offset / BLOCK..(offset + length).div_ceil(BLOCK)
}

/// The thread of a queue.
pub(crate) struct Worker<'a, H> {
    device: &'a Device<'a>,
    ring: &'a Mutex<Ring>,
    waits: &'a Waits,
    /// Starts the helper, and is false where the host gives no thread; gone once it runs.
    start_helper: Option<H>,
    /// The guest flushes when it wants something durable.
    flushes: bool,
    place: Option<Turn<'a>>,
    _present: [Presence<'a>; 3],
    loan: Loan<'a>,
    /// Memory for what is read and written, while there is a place.
    blocks: Vec<Block>,
    /// Reads that wait, and how many blocks they have.
    reads: Vec<Waiting>,
    reads_blocks: usize,
    /// The guest's buffers for them.
    reads_parts: usize,
    /// Changes that wait for room.
    parked: Parked,
    cost: u64,
    since: Instant,
    size: u64,
    ended: Ended,
    crowd: CpuContention,
    brisk: bool,
}

impl<'a, H: FnMut() -> bool> Worker<'a, H> {
    pub(crate) fn new(
        device: &'a Device<'a>,
        ring: &'a Mutex<Ring>,
        waits: &'a Waits,
        flushes: bool,
        parked: Parked,
        start_helper: H,
    ) -> Worker<'a, H> {
        let Device { house, seat, .. } = device;
        let (places, writers) = (&house.shares.places, &house.shares.writers);
        let borrower = Borrower { peer: &seat.of_peer, volume: &seat.of_volume };
        Worker {
            device,
            ring,
            waits,
            start_helper: Some(start_helper),
            flushes,
            place: None,
            _present: [places, writers, &seat.limited.turns].map(|turns| turns.join(seat.holder)),
            loan: house.shares.buffers.loan(borrower),
            blocks: Vec::new(),
            reads: Vec::new(),
            reads_blocks: 0,
            reads_parts: 0,
            parked,
            cost: 0,
            since: Instant::now(),
            size: 0,
            ended: Ended::default(),
            crowd: CpuContention::default(),
            brisk: false,
        }
    }

    fn limits(&self) -> &'a Limits {
        self.device.house.limits
    }

    /// Answers requests until it is asked to stop, or the connection is cut.
    fn run(&mut self, kick: &OwnedFd, stop: &Stop) -> Result<(), &'static str> {
        // What a server before this one answered, the guest may not have heard of.
        self.ring.lock().wake()?;
        let (mut silent, mut empty, mut room) = (Duration::ZERO, 0_u32, false);
        while !self.is_cut() {
            let stops = stop.asked.load(Relaxed);
            if stops && !self.parked.is_empty() || self.parked.is_due(room) {
                room = false;
                self.again(stops)?;
            }
            let more = if stops { self.ring.lock().owes_again() } else { self.has_more() };
            if more {
                (silent, empty) = (Duration::ZERO, 0);
                self.ring.lock().look()?;
                self.batch()?;
                continue;
            }
            if stops && self.parked.is_empty() {
                break;
            }
            if self.ring.lock().listen()? {
                continue;
            }
            if self.place.is_some() && (self.rests(silent)) {
                self.leave_place();
            }
            let working = self.place.is_some();
            let began = Instant::now();
            let look = if self.parked.is_empty() { LOOK } else { ROOM_LOOK };
            let waits = working || !self.parked.is_empty();
            let timeout = waits.then_some(look.as_millis() as u32);
            // An event can be made so that it is rung for ever, at no cost to who made it.
            let rest = empty.saturating_sub(EMPTY_KICKS).min(KICK_REST);
            if rest > 0 {
                bell::wait([&stop.bell], Some(rest));
            }
            let [kicked, _, rung] = bell::wait([kick, &stop.bell, self.parked.bell()], timeout);
            if rung {
                bell::quiet(self.parked.bell());
                room = true;
            }
            self.brisk = rest == 0 && began.elapsed() < self.limits().awake;
            if kicked {
                bell::quiet(kick);
                empty = empty.saturating_add(1);
            }
            if kicked && rest == 0 {
                self.device.seat.activity.hears(Instant::now());
            } else {
                silent += began.elapsed();
            }
        }
        self.leave_place();
        Ok(())
    }

    fn is_cut(&self) -> bool {
        self.device.seat.activity.is_cut()
    }

    /// True when there is a request. A guest that waits for each answer is back within
    /// microseconds, so that a thread whose guest was brisk stays awake for a moment, and lets
    /// others run meanwhile, unless the processor is crowded.
    fn has_more(&mut self) -> bool {
        if self.ring.lock().has_more() {
            return true;
        }
        let (began, since) = (Instant::now(), self.device.house.since);
        while self.brisk
            && self.place.is_some()
            && !self.crowd.is_there(since.elapsed())
            && began.elapsed() < self.limits().awake
        {
            let before = since.elapsed();
            std::thread::yield_now();
            self.crowd.yielded(before, since.elapsed());
            if self.ring.lock().has_more() {
                return true;
            }
        }
        false
    }

    /// True when the place should be given back while nothing comes.
    fn rests(&self, silent: Duration) -> bool {
        self.is_wanted() || self.loan.is_too_much() || silent >= self.limits().rest
    }

    /// True when somebody else waits for the working place.
    fn is_wanted(&self) -> bool {
        self.place.as_ref().is_some_and(Turn::is_wanted)
    }

    /// Takes a working place, and the buffers that go with it; false when the connection is cut.
    fn work(&mut self) -> bool {
        if self.place.is_some() {
            return true;
        }
        let Device { house, seat, working, .. } = self.device;
        let place = house.shares.places.take_unless(seat.holder, |waited| {
            (house.make_way)(seat.holder, waited);
            self.is_cut()
        });
        if place.is_none() {
            return false;
        }
        self.place = place;
        self.since = Instant::now();
        if working.fetch_add(1, Relaxed) == 0 {
            seat.activity.works(self.since);
        }
        let large = self.limits().read_batch_bytes.max(BLOCK_BYTES);
        let sure = SURE_BYTES.min(large);
        let bytes = if self.loan.keep(large - sure) { large } else { sure };
        self.blocks = Block::zeroed_vec(bytes / BLOCK_BYTES);
        true
    }

    /// Gives the working place back, and all buffers.
    fn leave_place(&mut self) {
        let Some(mut place) = self.place.take() else { return };
        place.cost = std::mem::take(&mut self.cost);
        self.blocks = Vec::new();
        self.reads.shrink_to(0);
        self.loan.give_back();
        if self.device.working.fetch_sub(1, Relaxed) == 1 {
            self.device.seat.activity.rests();
        }
    }

    /// True when the volume says that there may be room.
    #[cfg(test)]
    pub(crate) fn is_called_for(&self) -> bool {
        bell::wait([self.parked.bell()], Some(0)) == [true]
    }

    /// Tries changes again that wait for room; if the ring is to be stopped, until they are made.
    pub(crate) fn again(&mut self, stops: bool) -> Result<(), &'static str> {
        if !self.work() {
            return Ok(());
        }
        let memory = self.ring.lock().memory();
        self.try_parked(memory.map_of_guest(), stops)?;
        self.finish(memory.map_of_guest())
    }

    /// Answers the requests that the ring has.
    pub(crate) fn batch(&mut self) -> Result<(), &'static str> {
        self.size = self.device.volume.size();
        if !self.is_wanted() {
            self.cost = 0;
        }
        self.since = Instant::now();
        if !self.work() {
            return Ok(());
        }
        let memory = self.ring.lock().memory();
        loop {
            let Some(request) = self.ring.lock().take()? else { break };
            add(&self.device.counters.in_flight, 1);
            self.execute(request, memory.map_of_guest())?;
            // Reads wait for the end, and so do changes without room: it comes also when nobody wants the place.
            let is_long = self.since.elapsed() >= TURN_TIME;
            let is_much = self.cost >= u64::from(TURN_BYTES) && self.is_wanted();
            if is_long || is_much || self.is_cut() {
                break;
            }
        }
        let wanted = self.is_wanted();
        self.finish(memory.map_of_guest())?;
        if wanted {
            self.leave_place();
        }
        Ok(())
    }

    /// Runs the reads that wait, and tells the guest of all answers.
    fn finish(&mut self, memory: &GuestMemoryMmap) -> Result<(), &'static str> {
        self.run_reads(memory)?;
        self.ended.count(&self.device.counters.durations);
        self.ring.lock().tell()
    }

    /// Waits until the volume's limits allow a request. Finished answers are given first, and others
    /// have the working place meanwhile.
    fn keep_pace(&mut self, bytes: u64, memory: &GuestMemoryMmap) -> Result<(), &'static str> {
        let Device { house, seat, .. } = self.device;
        let (limited, holder, since) = (&seat.limited, seat.holder, house.since);
        if !limited.is_limited() || limited.lets_through(holder, since, bytes) {
            return Ok(());
        }
        self.finish(memory)?;
        self.leave_place();
        let gives_up = || self.is_cut() || house.stopping.load(Relaxed);
        limited.wait(holder, since, bytes, &gives_up);
        // Whoever was cut is not answered, and the request stays marked.
        if self.work() { Ok(()) } else { Err(CUT) }
    }

    /// Waits for a turn to change the volume by so many bytes, if other peers or volumes are
    /// connected.
    fn turn_to_write(&self, bytes: u64) -> Result<Option<Turn<'a>>, &'static str> {
        let writers = &self.device.house.shares.writers;
        if writers.alone() {
            return Ok(None);
        }
        let turn = writers.take_unless(self.device.seat.holder, |_| self.is_cut());
        let mut turn = turn.ok_or(CUT)?;
        turn.cost = bytes + REQUEST_COST;
        Ok(Some(turn))
    }

    fn execute(&mut self, request: Request, memory: &GuestMemoryMmap) -> Result<(), &'static str> {
        let counters = self.device.counters;
        let bytes = match request.kind {
            Kind::Read => request.wanted.bytes(),
            Kind::Write => request.given.bytes(),
            _ => 0,
        };
        self.cost += bytes + REQUEST_COST;
        let begun = Begun::now(number(request.kind));
        if !matches!(request.kind, Kind::Flush | Kind::Identify | Kind::Other) {
            self.keep_pace(bytes, memory)?;
        }
        let due = Due { head: request.head, at: request.answer, bytes: 0 };
        if self.device.owed.is_lost() || bytes > REQUEST_BYTES {
            let bytes = request.wanted.bytes() as u32;
            return self.answer(Due { bytes, ..due }, Answer::Failed, begun);
        }
        match request.kind {
            Kind::Read => {
                add(&counters.reads, 1);
                let Some((offset, length)) = request.range(bytes, self.size) else {
                    return self.answer(Due { bytes: bytes as u32, ..due }, Answer::Failed, begun);
                };
                add(&counters.read_bytes, length);
                self.read(Waiting { request, offset, length, begun }, memory)
            }
            Kind::Write => {
                add(&counters.writes, 1);
                let range = request.range(bytes, self.size).filter(|_| self.device.writes);
                let Some((offset, length)) = range else {
                    return self.answer(due, Answer::Failed, begun);
                };
                add(&counters.written_bytes, length);
                self.change(Change::new(What::Write(offset), request, due, begun), memory)
            }
            Kind::Discard | Kind::Zeroes => {
                let counter =
                    if request.kind == Kind::Zeroes { &counters.zeroes } else { &counters.trims };
                add(counter, 1);
                match request.ranges(memory, self.size)? {
                    Ranges::Unsupported => self.answer(due, Answer::Unsupported, begun),
                    Ranges::All(ranges) if self.device.writes => {
                        let zeroes = request.kind == Kind::Zeroes;
                        let what =
                            if zeroes { What::Zeroes(ranges) } else { What::Discard(ranges) };
                        self.change(Change::new(what, request, due, begun), memory)
                    }
                    Ranges::All(_) | Ranges::Wrong => self.answer(due, Answer::Failed, begun),
                }
            }
            Kind::Flush => {
                add(&counters.flushes, 1);
                self.answer_when(Until::Flushed, due, begun);
                Ok(())
            }
            Kind::Identify => {
                let length = (request.wanted.bytes() as usize).min(ID_BYTES);
                request.wanted.copy_to(memory, 0, &self.device.id[..length])?;
                self.answer(Due { bytes: length as u32, ..due }, Answer::Done, begun)
            }
            Kind::Other => self.answer(due, Answer::Unsupported, begun),
        }
    }

    fn answer(
        &mut self,
        due: Due,
        answer: Answer,
        begun: Option<Begun>,
    ) -> Result<(), &'static str> {
        let counters = self.device.counters;
        self.ended.push(begun);
        sub(&counters.in_flight, 1);
        add(&counters.errors, u64::from(answer != Answer::Done));
        self.ring.lock().answer(due, answer)
    }

    /// Answers a change: when it is durable, if the guest does not flush, or the volume wants that, or
    /// nobody would know later that it was not.
    fn changed(
        &mut self,
        changed: onefold_core::Result<Ticket>,
        due: Due,
        begun: Option<Begun>,
    ) -> Result<(), &'static str> {
        match changed {
            Ok(ticket) => {
                let Device { volume, owed, .. } = self.device;
                let late = !self.flushes || volume.acknowledges_late();
                let durable = || volume.durable().is_some_and(|durable| durable >= ticket);
                if late || !(durable() || owed.note(ticket)) {
                    self.answer_when(Until::Ticket(ticket), due, begun);
                    return Ok(());
                }
                self.answer(due, Answer::Done, begun)
            }
            Err(_) => self.answer(due, Answer::Failed, begun),
        }
    }

    /// Answers when something is durable: aside, where there is a helper.
    fn answer_when(&mut self, until: Until, due: Due, begun: Option<Begun>) {
        if !has_started(&mut self.start_helper) {
            let mut answers = self.device.durable(self.ring);
            answers.begin();
            let outcome =
                until.wait(self.device.volume).map_or_else(Outcome::Refused, |()| Outcome::Durable);
            return answers.answer(until, &[(until, (due, begun))], outcome);
        }
        let took = self.waits.push(until, (due, begun));
        debug_assert!(took, "no more requests wait than the ring has places");
    }

    /// Makes a change, or has it wait for room, behind those that wait already.
    fn change(&mut self, mut change: Change, memory: &GuestMemoryMmap) -> Result<(), &'static str> {
        let waits = !self.parked.takes(&change);
        if waits {
            self.try_parked(memory, true)?;
        }
        if self.parked.is_empty() {
            if self.make(&mut change, memory, waits)? {
                return Ok(());
            }
            // Room may have come before anybody would have said so.
            self.parked.ask(self.device.volume);
            if self.make(&mut change, memory, waits)? {
                return Ok(());
            }
        }
        self.parked.push(change);
        Ok(())
    }

    /// Tries the changes that wait for room, and waits for it if they have to be made now.
    fn try_parked(&mut self, memory: &GuestMemoryMmap, waits: bool) -> Result<(), &'static str> {
        if self.parked.is_empty() {
            return Ok(());
        }
        self.parked.ask(self.device.volume);
        while let Some(mut change) = self.parked.pop() {
            if self.is_cut() {
                return Err(CUT);
            }
            if !self.make(&mut change, memory, waits)? {
                self.parked.put_back(change);
                break;
            }
        }
        Ok(())
    }

    /// Makes what is left of a change, and answers it; false when there is no room.
    fn make(
        &mut self,
        change: &mut Change,
        memory: &GuestMemoryMmap,
        waits: bool,
    ) -> Result<bool, &'static str> {
        let made = match change.what {
            What::Write(offset) => self.write(change, offset, memory, waits)?,
            What::Discard(_) | What::Zeroes(_) => {
                let turn = self.turn_to_write(0)?;
                let cleared = change.clear(self.device.volume, waits);
                drop(turn);
                cleared
            }
        };
        match made {
            Ok(false) => return Ok(false),
            Ok(true) => self.changed(Ok(change.ticket), change.due, change.begun)?,
            Err(error) => self.changed(Err(error), change.due, change.begun)?,
        }
        Ok(true)
    }

    /// Copies what the guest gives, piece by piece, each once, and writes it; false when there is no
    /// room for all.
    fn write(
        &mut self,
        change: &mut Change,
        start: u64,
        memory: &GuestMemoryMmap,
        waits: bool,
    ) -> Result<onefold_core::Result<bool>, &'static str> {
        let end = start + change.request.given.bytes();
        // The memory for reads that wait is what the write needs.
        if end - start - change.done as u64 > self.free_bytes() as u64 && !self.reads.is_empty() {
            self.run_reads(memory)?;
        }
        while start + (change.done as u64) < end {
            let (from, offset) = (change.done as u64, start + change.done as u64);
            let free = self.reads_blocks;
            let room = self.free_bytes() as u64;
            // Pieces end where blocks end, so that no block is written twice.
            let next = ((offset + room) & !(BLOCK - 1)).clamp(offset + 1, end);
            let piece = &mut bytes_mut(&mut self.blocks[free..])[..(next - offset) as usize];
            change.request.given.copy_from(memory, from, piece)?;
            let turn = self.turn_to_write(next - offset)?;
            let piece = &bytes(&self.blocks[free..])[..(next - offset) as usize];
            let written = change.write(self.device.volume, offset, piece, waits);
            drop(turn);
            match written {
                // Pieces have tickets of their own, and each may tell of its own failure.
                Ok(true) if next < end && self.device.volume.acknowledges_late() => {
                    if let Err(error) = self.device.volume.wait(change.ticket) {
                        return Ok(Err(error));
                    }
                }
                Ok(true) => {}
                none => return Ok(none),
            }
        }
        Ok(Ok(true))
    }

    /// Bytes of the buffer that no waiting read needs.
    fn free_bytes(&self) -> usize {
        (self.blocks.len() - self.reads_blocks) * BLOCK_BYTES
    }

    fn read(&mut self, one: Waiting, memory: &GuestMemoryMmap) -> Result<(), &'static str> {
        let range = blocks_around(one.offset, one.length);
        let blocks = range.end - range.start;
        let parts = one.request.wanted.parts();
        if blocks > (self.blocks.len() - self.reads_blocks) as u64
            || self.reads_parts + parts > BUFFERS
        {
            self.run_reads(memory)?;
        }
        if blocks > self.blocks.len() as u64 {
            return self.read_pieces(one, memory);
        }
        self.reads_blocks += blocks as usize;
        self.reads_parts += parts;
        self.reads.push(one);
        Ok(())
    }

    /// A read larger than the buffer, piece by piece.
    fn read_pieces(&mut self, one: Waiting, memory: &GuestMemoryMmap) -> Result<(), &'static str> {
        let Waiting { request, offset: start, length, begun } = one;
        let due =
            Due { head: request.head, at: request.answer, bytes: request.wanted.bytes() as u32 };
        let (mut offset, end, room) = (start, start + length, self.blocks.len() as u64);
        while offset < end {
            let next = ((offset / BLOCK + room) * BLOCK).min(end);
            let range = blocks_around(offset, next - offset);
            let into = &mut self.blocks[..(range.end - range.start) as usize];
            let mut read = [BlockRead { first: Lba(range.start), into, result: Ok(()) }];
            self.device.volume.read(&mut read);
            let [BlockRead { result, .. }] = read;
            if result.is_err() {
                return self.answer(due, Answer::Failed, begun);
            }
            let at = (offset % BLOCK) as usize;
            let data = &bytes(&self.blocks)[at..at + (next - offset) as usize];
            request.wanted.copy_to(memory, offset - start, data)?;
            offset = next;
        }
        self.answer(due, Answer::Done, begun)
    }

    /// Reads all that waits, and answers.
    fn run_reads(&mut self, memory: &GuestMemoryMmap) -> Result<(), &'static str> {
        if self.reads.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.reads);
        (self.reads_blocks, self.reads_parts) = (0, 0);
        let mut free = &mut self.blocks[..];
        let mut reads = Vec::with_capacity(waiting.len());
        for one in &waiting {
            let range = blocks_around(one.offset, one.length);
            let (into, rest) = free.split_at_mut((range.end - range.start) as usize);
            reads.push(BlockRead { first: Lba(range.start), into, result: Ok(()) });
            free = rest;
        }
        self.device.volume.read(&mut reads);
        let results: Vec<(usize, bool)> =
            reads.into_iter().map(|read| (read.into.len(), read.result.is_ok())).collect();
        let mut block = 0;
        for (one, (blocks, good)) in waiting.iter().zip(results) {
            let Waiting { request, offset, length, begun } = one;
            let due = Due { head: request.head, at: request.answer, bytes: *length as u32 };
            if good {
                let at = block * BLOCK_BYTES + (offset % BLOCK) as usize;
                let data = &bytes(&self.blocks)[at..at + *length as usize];
                request.wanted.copy_to(memory, 0, data)?;
            }
            self.answer(due, if good { Answer::Done } else { Answer::Failed }, *begun)?;
            block += blocks;
        }
        self.reads = waiting;
        self.reads.clear();
        Ok(())
    }
}

impl<H> Drop for Worker<'_, H> {
    fn drop(&mut self) {
        if let Some(mut place) = self.place.take() {
            place.cost = self.cost;
            if self.device.working.fetch_sub(1, Relaxed) == 1 {
                self.device.seat.activity.rests();
            }
        }
    }
}

/// The server ended the connection; nobody is to blame.
pub(crate) const CUT: &str = "the server ended the connection";

/// The number of NBD's request of this kind, by which times are counted.
fn number(kind: Kind) -> u16 {
    match kind {
        Kind::Read => 0,
        Kind::Write => 1,
        Kind::Flush => 3,
        Kind::Discard => 4,
        Kind::Zeroes => 6,
        Kind::Identify | Kind::Other => u16::MAX,
    }
}
