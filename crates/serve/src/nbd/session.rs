//! A connection after its handshake: requests in, replies out, a batch at a time.
//!
//! All requests found in the receive buffer are a batch: its writes go to the volume at once and in order, its reads together at the end,
//! and all replies are sent together. A client that waits for each reply gets its flush on this thread, without a switch to another;
//! one that pipelines gets it from a helper, while its later requests go on. Many bytes of reads go to helpers of their own.
//!
//! *Invariants.* Replies of a batch are sent before this thread waits for more bytes. The memory of a connection is its buffers, whose
//! sizes are limits: larger writes go to the volume, and larger reads to the client, piece by piece; how large the pieces are depends on what
//! all connections together may take (see [`buffers`](super::buffers)).
//! *Threads:* one for each connection, and at most three helpers (see [`durable`](super::durable) and [`aside`](super::aside)), which end with it.

use std::io::{self, Read, Write};
#[cfg(not(scheduled))]
use std::thread;

#[cfg(scheduled)]
use parking_lot::thread;

use onefold_core::{Exports, Result as VolumeResult, Ticket, Volume};

use super::aside::{self, Aside};
use super::buffers::{Buffers, Share};
use super::command::{Command, check};
use super::durable::{CloseOnDrop, LATE_HELPERS, Until, Waits};
use super::handshake::{Agreed, handshake};
use super::inbox::Inbox;
use super::limits::{Limits, REPLY_BYTES};
use super::reads::{Fit, ReadBatch};
use super::reply::{Code, Of, Outbox, Refusal, Replies};
use super::rights::{Everything, Offer, Peer};
use super::statistics::{Counters, add, sub};
use super::status;
use super::turns::Turns;
use super::wire::{Request, command_flag};

/// How a connection ended.
#[derive(Debug)]
pub enum Ending {
    /// The client left as the protocol wants it.
    Closed,
    /// The client broke the protocol so that its stream can't be understood any more; the text says how.
    Protocol(&'static str),
    /// The connection broke, or a time limit passed.
    Broken(io::Error),
}

impl From<io::Error> for Ending {
    fn from(error: io::Error) -> Ending {
        Ending::Broken(error)
    }
}

/// Serves one client over any pair of byte streams, from the greeting to the end.
///
/// Time limits are up to the streams; all other limits hold.
pub fn session_over<R: Read, W: Write + Send>(exports: &dyn Exports, limits: &Limits, reader: R, writer: W) -> Ending {
    let house = House { limits, buffers: &Buffers::new(limits), turns: &Turns::new(1) };
    let offer = Offer { exports, rights: &Everything, peer: Peer::Unknown };
    serve(offer, house, &Share::default(), &Counters::default(), reader, writer, |_| {})
}

/// What all connections of a server share.
#[derive(Clone, Copy)]
pub(crate) struct House<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) buffers: &'a Buffers,
    pub(crate) turns: &'a Turns,
}

/// As [`session_over`], with what connections of a server, and those of a peer, share. `established` is called on the reader when the handshake has
/// succeeded, before the client hears of that.
pub(crate) fn serve<R: Read, W: Write + Send>(
    offer: Offer<'_>,
    house: House<'_>,
    share: &Share,
    counters: &Counters,
    reader: R,
    writer: W,
    established: impl FnOnce(&mut R),
) -> Ending {
    let House { limits, buffers, turns } = house;
    let mut inbox = Inbox::new(reader, limits.receive_sure());
    let outbox = Outbox::new(writer);
    let agreed = match handshake(offer, limits, &mut inbox, &outbox, established) {
        Ok(agreed) => agreed,
        Err(ending) => return ending,
    };
    let mut loan = buffers.loan(share);
    if loan.more(limits.receive_bytes.saturating_sub(inbox.capacity())) {
        inbox.grow(limits.receive_bytes);
    }
    let waits = Waits::new(limits.waits);
    let aside = Aside::new(|| ReadBatch::new(limits, buffers.loan(share), agreed.dialect));
    thread::scope(|scope| {
        let (_close, _close_aside) = (CloseOnDrop(&waits), aside::CloseOnDrop(&aside));
        let (volume, dialect, waits, aside, outbox) = (&*agreed.volume, agreed.dialect, &waits, &aside, &outbox);
        let helpers = if volume.acknowledges_late() { LATE_HELPERS } else { 1 };
        let help = move || (0..helpers).for_each(|_| drop(scope.spawn(move || waits.help(volume, dialect, outbox, counters))));
        let read = || (0..aside::HELPERS).for_each(|_| drop(scope.spawn(move || aside.help(volume, dialect, outbox, counters))));
        Session {
            agreed: &agreed,
            limits,
            turns,
            peer: offer.peer,
            counters,
            outbox,
            waits,
            start_helper: Some(help),
            aside,
            start_reader: Some(read),
            reads: ReadBatch::new(limits, buffers.loan(share), dialect),
            replies: Replies::new(dialect),
            batch: 0,
            size: volume.size(),
        }
        .run(&mut inbox)
    })
}

struct Session<'a, 'b, W, H, R> {
    agreed: &'a Agreed,
    limits: &'a Limits,
    turns: &'a Turns,
    peer: Peer,
    counters: &'a Counters,
    outbox: &'a Outbox<W>,
    waits: &'a Waits,
    /// Starts the helper; gone once it runs.
    start_helper: Option<H>,
    aside: &'a Aside<'b>,
    /// Starts the helpers that read; gone once they run.
    start_reader: Option<R>,
    reads: ReadBatch<'b>,
    replies: Replies,
    /// Requests taken since the last replies were sent.
    batch: usize,
    /// The volume's size, as it was when the batch began.
    size: u64,
}

impl<W: Write, H: FnOnce(), S: FnOnce()> Session<'_, '_, W, H, S> {
    fn volume(&self) -> &dyn Volume {
        &*self.agreed.volume
    }

    fn run<R: Read>(&mut self, inbox: &mut Inbox<R>) -> Ending {
        let ending = loop {
            match self.batch(inbox) {
                Ok(()) => {}
                Err(ending) => break ending,
            }
        };
        // What was answered in the last batch is still sent, also when the client has said good-bye.
        match (ending, self.finish_batch()) {
            (Ending::Closed, Err(error)) => Ending::Broken(error),
            (ending, _) => ending,
        }
    }

    /// Takes all requests that have arrived, answers them, and waits for more bytes.
    fn batch<R: Read>(&mut self, inbox: &mut Inbox<R>) -> Result<(), Ending> {
        self.size = self.volume().size();
        while self.request(inbox)? {}
        self.finish_batch()?;
        if inbox.receive()? > 0 {
            Ok(())
        } else if inbox.unread().is_empty() {
            Err(Ending::Closed)
        } else {
            Err(Ending::Broken(io::ErrorKind::UnexpectedEof.into()))
        }
    }

    /// Takes one request; false when it has not arrived as a whole.
    fn request<R: Read>(&mut self, inbox: &mut Inbox<R>) -> Result<bool, Ending> {
        let dialect = self.agreed.dialect;
        let parsed = Request::parse(inbox.unread(), dialect);
        let Some(request) = parsed.map_err(|_| Ending::Protocol("no request where one should start"))? else { return Ok(false) };
        let header = dialect.request_bytes();
        let payload = request.payload_bytes(dialect);
        let checked = check(&request, dialect, self.size, self.limits).and_then(|command| self.allowed(command));
        let fits = payload <= (inbox.capacity() - header) as u64;
        if checked.is_ok() && fits && (inbox.unread().len() as u64) < header as u64 + payload {
            return Ok(false);
        }
        if self.replies.small_bytes() > REPLY_BYTES {
            self.finish_batch()?;
        }
        self.batch += 1;
        add(&self.counters.in_flight, 1);
        match checked {
            Err(refusal) => {
                inbox.consume(header);
                self.refuse(&request, payload, refusal, inbox)?;
            }
            Ok(command) if fits => {
                let end = header + payload as usize;
                let more = inbox.unread().len() > end;
                self.execute(command, &request, &inbox.unread()[header..end], more)?;
                inbox.consume(end);
            }
            Ok(Command::Write) => {
                inbox.consume(header);
                self.write_pieces(&request, inbox)?;
            }
            Ok(_) => {
                inbox.consume(header);
                self.refuse(&request, payload, Refusal::new(Code::Invalid, "the payload is too long"), inbox)?;
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
    fn refuse<R: Read>(&mut self, request: &Request, payload: u64, refusal: Refusal, inbox: &mut Inbox<R>) -> Result<(), Ending> {
        if payload > 2 * u64::from(self.limits.payload_bytes) {
            self.replies.error(request.into(), &refusal, None);
            return Err(Ending::Protocol("the client announced a payload far beyond the limit"));
        }
        if payload > inbox.unread().len() as u64 {
            self.finish_batch()?;
        }
        inbox.skip(payload)?;
        self.replies.error(request.into(), &refusal, None);
        Ok(())
    }

    /// Carries out a request that was checked. `more` says that bytes of another one have arrived.
    fn execute(&mut self, command: Command, request: &Request, payload: &[u8], more: bool) -> Result<(), Ending> {
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
                let result = self.volume().write(offset, payload);
                self.changed(request, result, more)?;
            }
            Command::Trim => {
                add(&counters.trims, 1);
                let result = self.volume().trim(offset, length);
                self.changed(request, result, more)?;
            }
            Command::WriteZeroes => {
                add(&counters.zeroes, 1);
                let result = self.volume().write_zeroes(offset, length, request.has(command_flag::NO_HOLE));
                self.changed(request, result, more)?;
            }
            Command::Flush => {
                add(&counters.flushes, 1);
                self.answer_when(Until::Flushed, request.into(), more)?;
            }
            Command::Cache => {
                add(&counters.caches, 1);
                let result = self.volume().prefetch(offset, length);
                self.answer(request.into(), result);
            }
            Command::BlockStatus => {
                add(&counters.statuses, 1);
                if self.agreed.allocation {
                    let _turn = self.turns.take(self.peer);
                    status::answer(&*self.agreed.volume, request, payload, self.size, self.limits, &mut self.replies);
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
        match fit {
            Fit::Beside | Fit::Alone => {
                self.reads.add(request);
                if more && self.reads.bytes() >= aside::WORTH_BYTES {
                    if let Some(start) = self.start_reader.take() {
                        start();
                    }
                    self.aside.give(&mut self.reads);
                }
                Ok(())
            }
            Fit::InChunks => self.read_chunks(request),
            Fit::InPieces => self.read_pieces(request),
        }
    }

    /// A read too large for a batch: chunks are sent as they are read.
    fn read_chunks(&mut self, request: &Request) -> Result<(), Ending> {
        let mut offset = request.offset;
        let mut complete = true;
        while complete && offset < request.offset + request.length {
            offset = self.reads.add_part(request, offset);
            complete = self.reads.run(&*self.agreed.volume, &mut self.replies);
            self.send()?;
        }
        Ok(())
    }

    /// A read too large to be held, of which the client wants to hear either an error or all the data: it is read once to know that it can
    /// be, and once more to be sent.
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
            // Its good reply has begun.
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
    fn write_pieces<R: Read>(&mut self, request: &Request, inbox: &mut Inbox<R>) -> Result<(), Ending> {
        add(&self.counters.writes, 1);
        add(&self.counters.written_bytes, request.length);
        self.finish_batch()?;
        self.batch = 1;
        let (mut offset, end) = (request.offset, request.offset + request.length);
        let piece = inbox.capacity() as u64 / 2;
        let late = self.volume().acknowledges_late();
        let mut result = Ok(Ticket(0));
        while result.is_ok() && offset < end {
            // Pieces end where blocks end, so that no block is written twice.
            let next = ((offset + piece) & !(onefold_core::BLOCK_BYTES as u64 - 1)).clamp(offset + 1, end);
            let bytes = (next - offset) as usize;
            inbox.need(bytes)?;
            result = self.volume().write(offset, &inbox.unread()[..bytes]);
            if late && let Ok(ticket) = result {
                result = self.volume().wait(ticket).map(|()| ticket);
            }
            inbox.consume(bytes);
            offset = next;
        }
        inbox.skip(end - offset)?;
        let more = !inbox.unread().is_empty();
        match result {
            // The pieces may have different tickets; a flush covers them all.
            Ok(_) if request.has(command_flag::FUA) => self.answer_when(Until::Flushed, request.into(), more)?,
            other => self.answer(request.into(), other.map(drop)),
        }
        Ok(())
    }

    /// Answers a change, with FUA when it is durable.
    fn changed(&mut self, request: &Request, result: VolumeResult<Ticket>, more: bool) -> Result<(), Ending> {
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

    /// Answers when data is durable: here when the client waits for just this, aside when it has more requests under way.
    fn answer_when(&mut self, until: Until, of: Of, more: bool) -> Result<(), Ending> {
        let alone = self.batch == 1 && !more && self.waits.idle();
        if !alone {
            if let Some(start) = self.start_helper.take() {
                start();
            }
            if self.waits.push(until, of) {
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
            self.reads.run(&*self.agreed.volume, &mut self.replies);
        }
        self.batch = 0;
        self.send()
    }

    /// Sends all replies.
    fn send(&mut self) -> io::Result<()> {
        self.count_answered();
        self.replies.send(self.outbox, self.reads.data())
    }

    fn count_answered(&self) {
        let (answered, errors) = self.replies.answered();
        sub(&self.counters.in_flight, answered);
        add(&self.counters.errors, errors);
    }
}
