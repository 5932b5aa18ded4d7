//! A connection after its handshake: requests in, replies out, a batch at a time.
//!
//! All requests found in the receive buffer are a batch: its writes go to the volume at once and in
//! order, its reads together at the end, and all replies are sent together. A client that waits for
//! each reply gets its flush on this thread, without a switch to another; one that pipelines gets
//! it from a helper, while its later requests go on. Many bytes of reads go to helpers of their
//! own.
//!
//! A connection that only waits for its client has a small buffer. When something comes it waits
//! for a *working place*, with which go all other buffers, and gives it back when it is done and
//! somebody else waits, or when nothing more comes (see [`turns`](super::turns)).
//!
//! *Invariants.* Replies of a batch are sent before this thread waits for more bytes. The memory of
//! a connection is its buffers, whose sizes are limits: larger writes go to the volume, and larger
//! reads to the client, piece by piece; how large the pieces are depends on what all connections
//! together may take (see [`buffers`](super::buffers)). *Threads:* one for each connection, and at
//! most three helpers (see [`durable`](super::durable) and [`aside`](super::aside)), which end with
//! it.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
#[cfg(not(scheduled))]
use std::thread;
use std::time::{Duration, Instant};

#[cfg(scheduled)]
use parking_lot::thread;

use onefold_core::{BLOCK_BYTES, Exports, Result as VolumeResult, Ticket, Volume};

use super::ahead::{Ahead, PART_BLOCKS};
use super::aside::{self, Aside, WithAhead};
use super::buffers::{Borrower, Buffers, Loan, Share};
use super::command::{Command, check};
use super::durable::Durable;
use super::durations::Begun;
use super::ending::Ending;
use super::handshake::{Agreed, handshake};
use super::inbox::{Inbox, Plain, Source};
use super::limited::Limited;
use super::limits::{LOOK, Limits, REPLY_BYTES, WRITERS};
use super::reads::{Fit, ReadBatch};
use super::reply::{Code, Of, Outbox, Refusal, Replies};
use super::rights::{Everything, Offer, Peer};
use super::sequence::Sequence;
use super::shares::Holder;
use super::socket::Activity;
use super::statistics::{Counters, add, sub};
use super::status;
use super::turns::{Presence, REQUEST_COST, Turn, Turns};
use super::wire::{Dialect, Request, command_flag};
use crate::batch::durable::{CloseOnDrop, Until, Waits, has_started, helpers};
use crate::client_fd::ClientFd;

/// Serves one client over any pair of byte streams, from the greeting to the end.
///
/// Time limits are up to the streams; all other limits hold.
pub fn session_over<R: Read, W: Write + Send>(
    exports: &dyn Exports,
    limits: &Limits,
    reader: R,
    writer: W,
) -> Ending {
    let (shares, counters) = (Shares::new(limits, 1), Counters::default());
    let house = House {
        limits,
        shares: &shares,
        make_way: &|_, _| {},
        since: Instant::now(),
        stopping: &AtomicBool::new(false),
    };
    let offer = Offer { exports, rights: &Everything, peer: Peer::Unknown, refused: &|_| () };
    serve(offer, house, &counters, Plain(reader), writer, |_, _| Some(Seat::default()))
}

/// The buffers and places that the connections of a server share.
pub(crate) struct Shares {
    pub(crate) buffers: Buffers,
    /// To work at all: a connection holds more than its small buffer only with a place.
    pub(crate) places: Turns,
    /// To ask for the status of a range, by the microseconds that it takes.
    statuses: Turns,
    /// To change a volume, by bytes, where there are several.
    pub(crate) writers: Turns,
    /// To compute what a handshake of TLS takes, by microseconds.
    handshakes: Turns,
}

impl Shares {
    /// For a machine with so many cores.
    pub(crate) fn new(limits: &Limits, cores: usize) -> Shares {
        Shares {
            buffers: Buffers::new(limits),
            places: Turns::new(limits.places, REQUEST_COST as u32),
            statuses: Turns::new(cores / 2, TURN_MICROSECONDS),
            writers: Turns::new(WRITERS, REQUEST_COST as u32),
            handshakes: Turns::new(cores / 2, TURN_MICROSECONDS),
        }
    }

    /// Computes something of a handshake when it is its turn, unless `gives_up` says so before. While
    /// connections work, the turn lasts longer than that took, as with the status of a range: strangers
    /// who come again and again would keep the processors busy otherwise.
    pub(crate) fn shake(&self, peer: Peer, gives_up: &dyn Fn() -> bool, compute: &mut dyn FnMut()) {
        let holder = Holder { peer, volume: 0 };
        let _present = self.handshakes.join(holder);
        let Some(mut turn) = self.handshakes.take_unless(holder, |_| gives_up()) else { return };
        let began = Instant::now();
        compute();
        let took = began.elapsed();
        turn.cost = took.as_micros() as u64;
        if self.places.is_held() {
            std::thread::sleep((took * TURN_REST).min(LOOK));
        }
    }
}

/// The cost of one turn in bytes: a request of usual size.
pub(crate) const TURN_BYTES: u32 = 64 << 10;
/// The cost of one turn at the status of a range: the status of a few thousand blocks.
const TURN_MICROSECONDS: u32 = 100;
/// How much longer than it took the status of a range, or a part of a handshake, keeps its turn while
/// others work: with one turn at a time, it takes a ninth of a core from them.
const TURN_REST: u32 = 8;
/// How long a connection keeps a working place that others want, if its requests cost less than a
/// turn: some take long, or wait for something else.
pub(crate) const TURN_TIME: Duration = Duration::from_millis(20);

/// The state that all connections of a server share.
#[derive(Clone, Copy)]
pub(crate) struct House<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) shares: &'a Shares,
    /// Told now and then for whom, and for how long, a connection has waited for its working
    /// place.
    pub(crate) make_way: &'a (dyn Fn(Holder, Duration) + Sync),
    /// The start of the server's times.
    pub(crate) since: Instant,
    /// Set when the server stops.
    pub(crate) stopping: &'a AtomicBool,
}

/// The state that a connection shares with others of its peer and of its volume.
pub(crate) struct Seat {
    pub(crate) holder: Holder,
    /// Buffers lent to the peer.
    pub(crate) of_peer: Arc<Share>,
    /// Buffers lent to the peer for this volume.
    pub(crate) of_volume: Arc<Share>,
    pub(crate) limited: Arc<Limited>,
    pub(crate) activity: Arc<Activity>,
    /// The client's socket, where there is one.
    pub(crate) socket: Option<Arc<ClientFd>>,
}

impl Default for Seat {
    fn default() -> Seat {
        let (holder, activity) =
            (Holder { peer: Peer::Unknown, volume: 0 }, Arc::new(Activity::new(Instant::now())));
        Seat {
            holder,
            of_peer: Arc::default(),
            of_volume: Arc::default(),
            limited: Arc::default(),
            activity,
            socket: None,
        }
    }
}

/// As [`session_over`], with what connections of a server share. `established` is called with the
/// reader and what was agreed when the handshake has succeeded, before the client hears of
/// that, and gives the client a seat.
pub(crate) fn serve<R: Source, W: Write + Send>(
    offer: Offer<'_>,
    house: House<'_>,
    counters: &Counters,
    reader: R,
    writer: W,
    established: impl FnOnce(&mut R, &Agreed) -> Option<Seat>,
) -> Ending {
    let House { limits, shares, .. } = house;
    let mut inbox = Inbox::new(reader, limits.receive_idle());
    let outbox = Outbox::new(writer);
    let (agreed, seat) = match handshake(offer, limits, &mut inbox, &outbox, established) {
        Ok(agreed) => agreed,
        Err(ending) => return ending,
    };
    if let Some(socket) = &seat.socket {
        outbox.hangs_up(socket.clone());
    }
    let _present: [Presence<'_>; 4] =
        [&shares.places, &shares.statuses, &shares.writers, &seat.limited.turns]
            .map(|turns| turns.join(seat.holder));
    let borrower = Borrower { peer: &seat.of_peer, volume: &seat.of_volume };
    let reads = || ReadBatch::new(limits, shares.buffers.loan(borrower), agreed.dialect);
    let waits = Waits::new(limits.waits);
    let ahead = Ahead::new(limits.read_ahead_bytes, shares.buffers.loan(borrower));
    let aside = Aside::new(agreed.dialect, reads, ahead);
    thread::scope(|scope| {
        let (_close, _close_aside) = (CloseOnDrop(&waits), aside::CloseOnDrop(&aside));
        let (volume, dialect, waits, aside, outbox) =
            (&*agreed.volume, agreed.dialect, &waits, &aside, &outbox);
        let helpers = helpers(volume);
        // True when at least one of them runs: the others would make it faster only.
        let help = || {
            let start = |_: &usize| {
                let answers = Durable::new(dialect, outbox, counters);
                let named = thread::Builder::new().name("nbd durable".into());
                named.spawn_scoped(scope, move || waits.help(volume, answers)).is_ok()
            };
            (0..helpers).filter(start).count() > 0
        };
        let read = || {
            let start = |_: &usize| {
                let named = thread::Builder::new().name("nbd reads".into());
                named.spawn_scoped(scope, move || aside.help(volume, outbox, counters)).is_ok()
            };
            (0..aside::HELPERS).filter(start).count() > 0
        };
        Session {
            agreed: &agreed,
            limits,
            house,
            seat: &seat,
            place: None,
            since: Instant::now(),
            loan: shares.buffers.loan(borrower),
            silent: Duration::ZERO,
            counters,
            outbox,
            waits,
            start_helper: Some(help),
            aside,
            start_reader: Some(read),
            reads: reads(),
            sequence: Sequence::new(limits.read_ahead_bytes),
            replies: Replies::new(dialect),
            batch: 0,
            cost: 0,
            paid: false,
            tight: false,
            size: volume.size(),
        }
        .run(&mut inbox)
    })
}

struct Session<'a, 'b, W, H, R> {
    agreed: &'a Agreed,
    limits: &'a Limits,
    house: House<'b>,
    seat: &'b Seat,
    /// A working place, while there is something to do.
    place: Option<Turn<'b>>,
    /// When it was taken, or the requests came that are answered now.
    since: Instant,
    /// For a receive buffer larger than a connection at work is sure of.
    loan: Loan<'b>,
    /// For how long nothing came, as far as it was noticed.
    silent: Duration,
    counters: &'a Counters,
    outbox: &'a Outbox<W>,
    waits: &'a Waits<Of>,
    /// Starts the helpers that wait, and is false where the host gives no thread; gone once one runs.
    start_helper: Option<H>,
    aside: &'a Aside<'b>,
    /// Starts the helpers that read, as above.
    start_reader: Option<R>,
    reads: ReadBatch<'b>,
    sequence: Sequence,
    replies: Replies,
    /// Requests taken since the last replies were sent.
    batch: usize,
    /// The cost of what was done with the working place since others want it, or in this batch.
    cost: u64,
    /// The volume's pace was kept for the request that comes next.
    paid: bool,
    /// There was no memory for a large receive buffer.
    tight: bool,
    /// The volume's size, as it was when the batch began.
    size: u64,
}

impl<'b, W: Write, H: Fn() -> bool, S: Fn() -> bool> Session<'_, 'b, W, H, S> {
    fn volume(&self) -> &dyn Volume {
        &*self.agreed.volume
    }

    fn run<R: Source>(&mut self, inbox: &mut Inbox<R>) -> Ending {
        let ending = loop {
            match self.batch(inbox) {
                Ok(()) => {}
                Err(ending) => break ending,
            }
        };
        self.seat.activity.rests();
        if let Some(place) = &mut self.place {
            place.cost = self.cost;
        }
        // Replies of the last batch are still sent, also when the client has disconnected in order.
        match (ending, self.finish_batch()) {
            (Ending::Closed, Err(error)) => Ending::Broken(error),
            (ending, _) => ending,
        }
    }

    /// Takes all requests that have arrived, answers them, and waits for more bytes.
    fn batch<R: Source>(&mut self, inbox: &mut Inbox<R>) -> Result<(), Ending> {
        self.size = self.volume().size();
        if !self.is_wanted() {
            self.cost = 0;
        }
        if !inbox.unread().is_empty() {
            self.since = Instant::now();
            self.work(inbox)?;
            while self.request(inbox)? {
                if (self.cost >= u64::from(TURN_BYTES) || self.since.elapsed() >= TURN_TIME)
                    && self.is_wanted()
                {
                    self.finish_batch()?;
                    if self.leave_place(inbox) {
                        self.work(inbox)?;
                    }
                }
            }
            self.finish_batch()?;
        }
        let part_since = Instant::now();
        loop {
            let most = self.rest(inbox, part_since);
            let between = inbox.unread().is_empty();
            inbox.reader().between(between);
            let received = inbox.receive(most);
            inbox.reader().between(false);
            match received {
                Ok(0) if inbox.unread().is_empty() => return Err(Ending::Closed),
                Ok(0) => return Err(Ending::Broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.silent += LOOK,
                Err(error) => return Err(error.into()),
            }
        }
        self.silent = Duration::ZERO;
        Ok(())
    }

    /// True when somebody else waits for the working place.
    fn is_wanted(&self) -> bool {
        self.place.as_ref().is_some_and(Turn::is_wanted)
    }

    /// Takes a working place, and the buffers that go with it.
    fn work<R: Source>(&mut self, inbox: &mut Inbox<R>) -> Result<(), Ending> {
        self.work_within(inbox, Duration::MAX).map(drop)
    }

    /// The same; false when it took longer than `most`.
    fn work_within<R: Source>(
        &mut self,
        inbox: &mut Inbox<R>,
        most: Duration,
    ) -> Result<bool, Ending> {
        if self.place.is_some() {
            return Ok(true);
        }
        let holder = self.seat.holder;
        let place = self.house.shares.places.take_unless(holder, |waited| {
            (self.house.make_way)(holder, waited);
            self.seat.activity.is_cut() || waited >= most
        });
        if place.is_none() && !self.seat.activity.is_cut() {
            return Ok(false);
        }
        self.place = Some(place.ok_or_else(was_cut)?);
        self.since = Instant::now();
        self.seat.activity.works(Instant::now());
        inbox.reader().looks_around(true);
        let (sure, large) = (self.limits.receive_sure(), self.limits.receive_bytes);
        // As much as unread bytes take when the place is given back in the middle of a batch.
        self.tight = large <= sure || !self.loan.keep(large - self.limits.receive_idle());
        if self.tight {
            self.loan.keep(inbox.unread().len().saturating_sub(sure));
        }
        inbox.resize(if self.tight { sure } else { large });
        Ok(true)
    }

    /// Gives the working place back, and all buffers but for what holds the unread bytes; false,
    /// having done nothing, when there is no memory for these.
    fn leave_place<R: Source>(&mut self, inbox: &mut Inbox<R>) -> bool {
        let idle = self.limits.receive_idle();
        if !self.loan.keep(inbox.unread().len().saturating_sub(idle)) {
            return false;
        }
        // The helpers' buffers belong to the place too.
        self.aside.release();
        self.sequence.forget();
        self.reads.release();
        self.replies.release();
        inbox.resize(idle);
        self.seat.activity.rests();
        if let Some(mut place) = self.place.take() {
            place.cost = std::mem::take(&mut self.cost);
        }
        inbox.reader().looks_around(false);
        true
    }

    /// How much to receive at most so that the place can be given back at any time: where memory
    /// is short, and on a volume with limits, little more than one request is unread.
    fn most<R: Source>(&self, inbox: &Inbox<R>) -> usize {
        let bounded = self.tight && !self.house.shares.places.alone();
        if !bounded && !self.seat.limited.is_limited() {
            return usize::MAX;
        }
        let idle = self.limits.receive_idle();
        match missing(inbox.unread(), self.agreed.dialect) {
            usize::MAX => idle,
            rest => rest.max(idle.saturating_sub(inbox.unread().len())),
        }
    }

    /// Gives the working place back when another connection wants it, or when the client sends
    /// nothing. A request that has arrived in part is finished first, but none behind it. If the
    /// rest of it does not come at once, and the small buffer holds the part, the place is given
    /// back. Returns how much to receive at most.
    fn rest<R: Source>(&mut self, inbox: &mut Inbox<R>, part_since: Instant) -> usize {
        if self.place.is_none() {
            return usize::MAX;
        }
        let wanted = self.is_wanted()
            || self.loan.is_too_much()
            || self.reads.has_too_much()
            || self.aside.has_too_much();
        if !wanted && self.silent < self.limits.rest {
            return self.most(inbox);
        }
        let part = inbox.unread().len();
        let soon = self.silent.is_zero() && part_since.elapsed() < LOOK;
        if part > self.limits.receive_idle() / 2 || (part > 0 && soon) {
            return missing(inbox.unread(), self.agreed.dialect);
        }
        self.leave_place(inbox);
        usize::MAX
    }

    /// Waits until the volume's limits allow a request. Finished replies are sent first, and others
    /// have the working place meanwhile.
    fn keep_pace<R: Source>(
        &mut self,
        command: Command,
        length: u64,
        inbox: &mut Inbox<R>,
    ) -> Result<(), Ending> {
        let bytes = match command {
            Command::Flush | Command::Disconnect => return Ok(()),
            Command::Read | Command::Write => length,
            _ => 0,
        };
        let Seat { limited, activity, holder, .. } = self.seat;
        let since = self.house.since;
        if !limited.is_limited() || limited.lets_through(*holder, since, bytes) {
            return Ok(());
        }
        self.finish_batch()?;
        self.leave_place(inbox);
        let gives_up = || activity.is_cut() || self.house.stopping.load(Relaxed);
        limited.wait(*holder, since, bytes, &gives_up);
        self.work(inbox)
    }

    /// Answers the status of a range, in its turn. While others work, the turn lasts longer than
    /// the answer took, and leaves the processor to them in the rest. Otherwise a client could keep
    /// the processor busy with such requests, since each is pure computing.
    fn status(&mut self, request: &Request, payload: &[u8], turn: &mut Turn<'_>) {
        let places = &self.house.shares.places;
        let began = Instant::now();
        status::answer(
            &*self.agreed.volume,
            request,
            payload,
            self.size,
            self.limits,
            &mut self.replies,
        );
        let took = began.elapsed();
        turn.cost = took.as_micros() as u64;
        if places.others_hold(self.seat.holder) {
            std::thread::sleep((took * TURN_REST).min(LOOK));
        }
    }

    /// Waits for the turn to ask what a range holds. Meanwhile others have the working place: clients
    /// with many such requests, of several peers, would keep all places together otherwise.
    fn turn_of_status<R: Source>(&mut self, inbox: &mut Inbox<R>) -> Result<Turn<'b>, Ending> {
        let statuses = &self.house.shares.statuses;
        if let Some(turn) = statuses.take_at_once(self.seat.holder) {
            return Ok(turn);
        }
        self.finish_batch()?;
        if self.leave_place(inbox) {
            let turn = self.turn(statuses)?;
            // Those who could not leave their places wait for this turn.
            if self.work_within(inbox, LOOK)? {
                return Ok(turn);
            }
            drop(turn);
            self.work(inbox)?;
        }
        self.turn(statuses)
    }

    /// Waits for a turn until the server ends the connection.
    fn turn<'t>(&self, turns: &'t Turns) -> Result<Turn<'t>, Ending> {
        turns.take_unless(self.seat.holder, |_| self.seat.activity.is_cut()).ok_or_else(was_cut)
    }

    /// Waits for a turn to change the volume by so many bytes, if other peers or volumes are
    /// connected.
    fn turn_to_write(&self, bytes: u64) -> Result<Option<Turn<'_>>, Ending> {
        let writers = &self.house.shares.writers;
        if writers.alone() {
            return Ok(None);
        }
        let mut turn = self.turn(writers)?;
        turn.cost = bytes + REQUEST_COST;
        Ok(Some(turn))
    }

    /// Handles one request; false when it has not arrived as a whole. Of a connection that the
    /// server ended, no request is begun any more: nobody hears the answer.
    fn request<R: Source>(&mut self, inbox: &mut Inbox<R>) -> Result<bool, Ending> {
        if self.seat.activity.is_cut() {
            return Err(was_cut());
        }
        let dialect = self.agreed.dialect;
        let parsed = Request::parse(inbox.unread(), dialect);
        let Some(mut request) =
            parsed.map_err(|_| Ending::Protocol("no request where one should start"))?
        else {
            return Ok(false);
        };
        let header = dialect.request_bytes();
        let payload = request.payload_bytes(dialect);
        let checked = check(&request, dialect, self.size, self.limits)
            .and_then(|command| self.allowed(command));
        if let (Ok(command), false) = (&checked, self.paid) {
            self.keep_pace(*command, request.length, inbox)?;
            self.paid = true;
        }
        let fits = payload <= (inbox.capacity() - header) as u64;
        if checked.is_ok() && fits && (inbox.unread().len() as u64) < header as u64 + payload {
            return Ok(false);
        }
        let asks_status = matches!(checked, Ok(Command::BlockStatus));
        let mut turn = match asks_status && fits && self.agreed.allocation {
            true => Some(self.turn_of_status(inbox)?),
            false => None,
        };
        if self.replies.small_bytes() > REPLY_BYTES {
            self.finish_batch()?;
        }
        self.paid = false;
        request.begun = Begun::now(request.command);
        self.batch += 1;
        self.cost += REQUEST_COST
            + match checked {
                Ok(Command::Read) => self.sequence.uncounted(request.length),
                Ok(Command::Write) => request.length,
                _ => 0,
            };
        add(&self.counters.in_flight, 1);
        match checked {
            Err(refusal) => {
                inbox.consume(header);
                self.refuse(&request, payload, refusal, inbox)?;
            }
            Ok(command) if fits => {
                let end = header + payload as usize;
                let more = inbox.unread().len() > end;
                self.execute(command, &request, &inbox.unread()[header..end], more, turn.as_mut())?;
                inbox.consume(end);
            }
            Ok(Command::Write) => {
                inbox.consume(header);
                self.write_pieces(&request, inbox)?;
            }
            Ok(_) => {
                inbox.consume(header);
                self.refuse(
                    &request,
                    payload,
                    Refusal::new(Code::Invalid, "the payload is too long"),
                    inbox,
                )?;
            }
        }
        Ok(true)
    }

    /// Refuses changes of a client that may only read.
    fn allowed(&self, command: Command) -> Result<Command, Refusal> {
        if self.agreed.writes || !command.changes() {
            return Ok(command);
        }
        Err(Refusal::new(Code::NotPermitted, "you may read this volume, and not change it"))
    }

    /// Answers with an error, after throwing away the payload: the next request starts behind it.
    fn refuse<R: Source>(
        &mut self,
        request: &Request,
        payload: u64,
        refusal: Refusal,
        inbox: &mut Inbox<R>,
    ) -> Result<(), Ending> {
        if payload > 2 * u64::from(self.limits.payload_bytes) {
            self.replies.error(request.into(), &refusal, None);
            return Err(Ending::Protocol("the client announced a payload far beyond the limit"));
        }
        if payload > inbox.unread().len() as u64 {
            self.finish_batch()?;
        }
        self.skip(payload, inbox)?;
        self.replies.error(request.into(), &refusal, None);
        Ok(())
    }

    /// Carries out a request that was checked. `more` says that bytes of another one have arrived;
    /// `turn` is that of a client who may ask for the status of a range.
    fn execute(
        &mut self,
        command: Command,
        request: &Request,
        payload: &[u8],
        more: bool,
        turn: Option<&mut Turn<'_>>,
    ) -> Result<(), Ending> {
        let counters = self.counters;
        let (offset, length) = (request.offset, request.length);
        match command {
            Command::Read => {
                add(&counters.reads, 1);
                add(&counters.read_bytes, length);
                self.read(request, more)?;
            }
            Command::Write => {
                add(&counters.writes, 1);
                add(&counters.written_bytes, length);
                let turn = self.turn_to_write(length)?;
                let result = self.volume().write(offset, payload);
                drop(turn);
                self.changed(request, result, more)?;
            }
            Command::Trim => {
                add(&counters.trims, 1);
                let turn = self.turn_to_write(0)?;
                let result = self.volume().trim(offset, length);
                drop(turn);
                self.changed(request, result, more)?;
            }
            Command::WriteZeroes => {
                add(&counters.zeroes, 1);
                let turn = self.turn_to_write(0)?;
                let result =
                    self.volume().write_zeroes(offset, length, request.has(command_flag::NO_HOLE));
                drop(turn);
                self.changed(request, result, more)?;
            }
            Command::Flush => {
                add(&counters.flushes, 1);
                self.answer_when(Until::Flushed, request.into(), more)?;
            }
            Command::Cache => {
                add(&counters.caches, 1);
                let result = self.volume().prefetch(offset, length);
                if result.is_ok() {
                    self.prefetch(offset, length);
                }
                self.answer(request.into(), result);
            }
            Command::BlockStatus => {
                add(&counters.statuses, 1);
                if let Some(turn) = turn {
                    self.status(request, payload, turn);
                } else {
                    let refusal = Refusal::new(Code::Invalid, "no metadata context was negotiated");
                    self.replies.error(request.into(), &refusal, None);
                }
            }
            Command::Disconnect => {
                sub(&counters.in_flight, 1);
                return Err(Ending::Closed);
            }
        }
        Ok(())
    }

    fn read(&mut self, request: &Request, more: bool) -> Result<(), Ending> {
        if request.length == 0 {
            self.replies.nothing_read(request.into());
            return Ok(());
        }
        let fit = self.reads.fit(request);
        if fit != Fit::Beside {
            self.finish_batch()?;
            self.batch = 1;
        }
        self.sequence.asked(request.offset, request.length);
        self.read_ahead();
        match fit {
            Fit::Beside | Fit::Alone => {
                self.reads.add(request);
                if more && self.reads.bytes() >= aside::WORTH_BYTES {
                    // The helpers have other blocks to read, and these are there soon.
                    if self.sequence.is_ahead() {
                        return Ok(self.finish_batch()?);
                    }
                    if has_started(&mut self.start_reader) {
                        self.aside.give(&mut self.reads);
                    }
                }
                Ok(())
            }
            Fit::InChunks => self.read_chunks(request),
            Fit::InPieces => self.read_pieces(request),
        }
    }

    /// True when the volume tells what changes, and who asks for much need not wait for its pace.
    fn may_read_ahead(&self) -> bool {
        self.volume().changes().is_some() && !self.seat.limited.is_limited()
    }

    /// Has the helpers read what a sequential reader will ask for next.
    fn read_ahead(&mut self) {
        let size = self.size / BLOCK_BYTES as u64;
        while let Some(blocks) = self.sequence.wants(size) {
            let end = blocks.end;
            let wanted = match self.may_read_ahead() && has_started(&mut self.start_reader) {
                true => self.aside.want(blocks, &self.sequence.coming()),
                false => None,
            };
            let Some(wanted) = wanted else { return };
            self.sequence.reads(wanted, Some(end));
            self.cost += wanted * BLOCK_BYTES as u64;
        }
    }

    /// Has the helpers read what the client says it will ask for: as much of it as is read ahead at
    /// most.
    fn prefetch(&mut self, offset: u64, length: u64) {
        let block = BLOCK_BYTES as u64;
        let (mut at, end) = (offset / block, (offset + length).div_ceil(block));
        let keep = at..end.min(at + self.sequence.most());
        while at < keep.end && self.may_read_ahead() && has_started(&mut self.start_reader) {
            let next = keep.end.min(at + PART_BLOCKS);
            let Some(wanted) = self.aside.want(at..next, &keep) else { return };
            self.sequence.reads(wanted, None);
            self.cost += wanted * block;
            at = next;
        }
    }

    /// A read too large for a batch: chunks are sent as they are read.
    fn read_chunks(&mut self, request: &Request) -> Result<(), Ending> {
        let mut offset = request.offset;
        let mut complete = true;
        while complete && offset < request.offset + request.length {
            offset = self.reads.add_part(request, offset);
            let from = WithAhead(self.aside, &*self.agreed.volume);
            complete = self.reads.run(&from, &mut self.replies);
            self.send()?;
        }
        Ok(())
    }

    /// A read too large to be held, of which the client wants to hear either an error or all the
    /// data: it is read once to know that it can be, and once more to be sent.
    fn read_pieces(&mut self, request: &Request) -> Result<(), Ending> {
        let end = request.offset + request.length;
        let mut offset = request.offset;
        while offset < end {
            let (next, read) = self.reads.read_piece(&*self.agreed.volume, request, offset);
            if let Err(error) = read {
                self.replies.error(request.into(), &Refusal::from(error), Some(offset));
                return Ok(());
            }
            offset = next;
        }
        offset = request.offset;
        self.replies.data_header(request.into(), offset, request.length, true);
        let mut held = self.outbox.hold();
        while offset < end {
            let (next, read) = self.reads.read_piece(&*self.agreed.volume, request, offset);
            // The first part of a good reply has been sent already.
            let data = read.map_err(|error| {
                held.give_up();
                Ending::Broken(io::Error::other(error))
            })?;
            self.replies.data_part(data);
            self.count_answered();
            self.replies.send_held(&mut held, self.reads.data())?;
            offset = next;
            #[cfg(scheduled)]
            if parking_lot::planted("a reply in pieces lets others between") {
                drop(held);
                held = self.outbox.hold();
            }
        }
        Ok(())
    }

    /// A write too large for the receive buffer: its pieces go to the volume as they arrive.
    fn write_pieces<R: Source>(
        &mut self,
        request: &Request,
        inbox: &mut Inbox<R>,
    ) -> Result<(), Ending> {
        add(&self.counters.writes, 1);
        add(&self.counters.written_bytes, request.length);
        self.finish_batch()?;
        self.batch = 1;
        let (mut offset, end) = (request.offset, request.offset + request.length);
        let late = self.volume().acknowledges_late();
        let mut result = Ok(Ticket(0));
        while result.is_ok() && offset < end {
            // Pieces end where blocks end, so that no block is written twice.
            let piece = inbox.capacity() as u64 / 2;
            let next =
                ((offset + piece) & !(onefold_core::BLOCK_BYTES as u64 - 1)).clamp(offset + 1, end);
            let bytes = (next - offset) as usize;
            if !self.need(bytes, inbox)? {
                continue;
            }
            let turn = self.turn_to_write(bytes as u64)?;
            result = self.volume().write(offset, &inbox.unread()[..bytes]);
            drop(turn);
            if late && let Ok(ticket) = result {
                result = self.volume().wait(ticket).map(|()| ticket);
            }
            inbox.consume(bytes);
            offset = next;
        }
        self.skip(end - offset, inbox)?;
        let more = !inbox.unread().is_empty();
        match result {
            // The pieces may have different tickets; a flush covers them all.
            Ok(_) if request.has(command_flag::FUA) => {
                self.answer_when(Until::Flushed, request.into(), more)?
            }
            other => self.answer(request.into(), other.map(drop)),
        }
        Ok(())
    }

    /// Receives until so many bytes of a payload are unread. While they are slow to come, others have
    /// the working place, and the client fills the small buffer; then the buffer may be another one,
    /// and this returns false.
    fn need<R: Source>(&mut self, bytes: usize, inbox: &mut Inbox<R>) -> Result<bool, Ending> {
        let (since, idle) = (Instant::now(), self.limits.receive_idle());
        while inbox.unread().len() < bytes {
            let slow = since.elapsed() >= LOOK && inbox.unread().len() <= idle / 2;
            if slow && self.is_wanted() && self.leave_place(inbox) {
                let enough = bytes.min(idle);
                while inbox.unread().len() < enough {
                    receive_some(inbox, enough - inbox.unread().len())?;
                }
                self.work(inbox)?;
                return Ok(false);
            }
            receive_some(inbox, usize::MAX)?;
        }
        Ok(true)
    }

    /// Throws away so many bytes of a payload. While they are slow to come, others have the working
    /// place.
    fn skip<R: Source>(&mut self, mut bytes: u64, inbox: &mut Inbox<R>) -> Result<(), Ending> {
        let since = Instant::now();
        loop {
            let now = usize::try_from(bytes).unwrap_or(usize::MAX).min(inbox.unread().len());
            inbox.consume(now);
            bytes -= now as u64;
            if bytes == 0 {
                return self.work(inbox);
            }
            if since.elapsed() >= LOOK && self.is_wanted() {
                self.leave_place(inbox);
            }
            // Nothing behind the payload: it would be unread when the place is left.
            receive_some(inbox, usize::try_from(bytes).unwrap_or(usize::MAX))?;
        }
    }

    /// Answers a change, with FUA when it is durable.
    fn changed(
        &mut self,
        request: &Request,
        result: VolumeResult<Ticket>,
        more: bool,
    ) -> Result<(), Ending> {
        match result {
            Ok(ticket) if request.has(command_flag::FUA) || self.volume().acknowledges_late() => {
                self.answer_when(Until::Ticket(ticket), request.into(), more)
            }
            other => {
                self.answer(request.into(), other.map(drop));
                Ok(())
            }
        }
    }

    fn answer(&mut self, of: Of, result: VolumeResult<()>) {
        match result {
            Ok(()) => self.replies.done(of),
            Err(error) => self.replies.error(of, &Refusal::from(error), None),
        }
    }

    /// Answers when data is durable: here when the client waits for just this, aside when it has
    /// more requests under way.
    fn answer_when(&mut self, until: Until, of: Of, more: bool) -> Result<(), Ending> {
        let alone = self.batch == 1 && !more && self.waits.idle();
        if !alone {
            if has_started(&mut self.start_helper) && self.waits.push(until, of) {
                return Ok(());
            }
            self.finish_batch()?;
        }
        let result = until.wait(self.volume());
        self.answer(of, result);
        Ok(())
    }

    /// Runs the reads that wait, and sends all replies.
    fn finish_batch(&mut self) -> io::Result<()> {
        if !self.reads.is_empty() {
            let from = WithAhead(self.aside, &*self.agreed.volume);
            self.reads.run(&from, &mut self.replies);
        }
        self.batch = 0;
        self.send()
    }

    /// Sends all replies.
    fn send(&mut self) -> io::Result<()> {
        self.count_answered();
        self.replies.send(self.outbox, self.reads.data())
    }

    fn count_answered(&mut self) {
        self.replies.count_durations(self.counters);
        let (answered, errors) = self.replies.answered();
        sub(&self.counters.in_flight, answered);
        add(&self.counters.errors, errors);
    }
}

/// Receives some bytes of a payload, if any come before it is time to look around.
fn receive_some<R: Source>(inbox: &mut Inbox<R>, most: usize) -> Result<(), Ending> {
    match inbox.receive(most) {
        Ok(0) => Err(Ending::Broken(io::ErrorKind::UnexpectedEof.into())),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The server ended the connection.
fn was_cut() -> Ending {
    Ending::Broken(io::ErrorKind::ConnectionAborted.into())
}

/// Bytes up to the end of the request of which a part is there.
fn missing(unread: &[u8], dialect: Dialect) -> usize {
    match Request::parse(unread, dialect) {
        Ok(Some(request)) => {
            let end = dialect.request_bytes() as u64 + request.payload_bytes(dialect);
            usize::try_from(end).unwrap_or(usize::MAX).saturating_sub(unread.len()).max(1)
        }
        _ => usize::MAX,
    }
}
