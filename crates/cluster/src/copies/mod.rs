//! Copies of volumes: snapshots sent to other stores and received from them, of any engine; raw images.
//!
//! | module | what |
//! |---|---|
//! | [`walk`] | which blocks are sent: object by object, those that are not as in another snapshot |
//! | [`send`] | a snapshot, or a volume, as a stream |
//! | [`images`] | a stream of raw data becomes a volume |
//! | [`receive`] | a stream becomes a snapshot, and its volume holds it |
//!
//! *Invariant:* what is copied has no name until all of it is durable. What was imported in part is deleted by
//! workers; what was received in part waits for its sender.

mod images;
mod receive;
mod send;
mod walk;

use std::{collections::VecDeque, ops::Range, sync::Arc};

use onefold_core::{Error, Kind, Result, Ticket};

pub use self::{
    receive::{Ending, Received},
    send::Sending,
};
use crate::{
    kernel::Kernel,
    layers::{received, snapshots::Snapshots},
    session::Session,
    volume::Volume,
};

/// Bytes of writes of a copy that may wait for their answers.
const WAITING_BYTES: usize = 16 << 20;

/// A snapshot that is being received, or of which the sender went away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveState {
    /// The snapshot as it will be called, like `vm1@monday`. Where that is damaged `@` and a number.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes from the beginning that are there.
    pub received_bytes: u64,
    /// When it began, or more of these bytes came last, in milliseconds since 1970.
    pub heard_ms: u64,
    /// Somebody sends it right now.
    pub at_work: bool,
    /// By which the sender goes on. Of one that is damaged nothing.
    pub token: onefold_stream::Token,
    /// What is damaged of it: nobody goes on with it, and it can only be given up.
    pub damage: Option<String>,
}

/// The copies of a store.
pub struct Copies<'s>(&'s Arc<Session>);

impl<'s> Copies<'s> {
    /// The copies of the session's store.
    #[must_use]
    pub fn of(session: &'s Arc<Session>) -> Copies<'s> {
        Copies(session)
    }

    fn kernel(&self) -> &'s Kernel {
        self.0.kernel()
    }

    /// The receives that are under way or were cut off, and behind them those that are damaged.
    ///
    /// # Errors
    /// The store's.
    pub fn receives(&self) -> Result<Vec<ReceiveState>> {
        let all = received::receives(self.kernel())?;
        let whole = all.whole.iter().map(|receive| {
            let (coming, progress) = (&receive.coming, &receive.progress);
            let name = coming.full_name();
            Ok(ReceiveState {
                bytes: coming.blocks * 4096,
                received_bytes: progress.cursor * 4096,
                heard_ms: progress.heard_ms,
                at_work: received::is_at_work(self.kernel(), &name, receive.id())?,
                token: onefold_stream::Token {
                    guid: coming.guid,
                    base: coming.base,
                    cursor: progress.cursor,
                },
                name,
                damage: None,
            })
        });
        let damaged = all.damaged.iter().map(|damaged| {
            let name = damaged.full_name();
            Ok(ReceiveState {
                bytes: damaged.bytes(),
                at_work: received::is_at_work(self.kernel(), &name, damaged.id())?,
                damage: Some(damaged.why.to_string()),
                name,
                ..ReceiveState::default()
            })
        });
        whole.chain(damaged).collect()
    }

    /// Gives up what is being received for a volume. Workers free what it holds.
    ///
    /// # Errors
    /// `NotFound`; `Busy` while somebody sends it, or while a change of this session that failed may still come to
    /// it; the store's.
    pub fn abort_receive(&self, volume: &str) -> Result<()> {
        let mut all = received::receives(self.kernel())?;
        all.whole.retain(|receive| receive.coming.volume == volume);
        all.damaged.retain(|one| one.coming.as_ref().is_some_and(|one| one.volume == volume));
        if all.whole.is_empty() && all.damaged.is_empty() {
            let what =
                format!("nothing is being received for a volume '{}'", volume.escape_debug());
            return Err(Error::new(Kind::NotFound, what));
        }
        all.whole.iter().try_for_each(|receive| received::give_up(self.0, receive))?;
        all.damaged.iter().try_for_each(|damaged| received::give_up_damaged(self.0, damaged))
    }

    /// Gives up all receives for which nothing has come for so many days, and that nobody sends right now; those that
    /// are damaged in any case, as nobody can go on with them. Gives the names of their snapshots.
    ///
    /// # Errors
    /// The store's.
    pub fn expire_receives(&self, days: u32) -> Result<Vec<String>> {
        let most_ms = u128::from(days) * 24 * 3600 * 1000;
        let now = self.kernel().store().time().as_millis();
        let mut all = received::receives(self.kernel())?;
        all.whole
            .retain(|receive| now.saturating_sub(u128::from(receive.progress.heard_ms)) >= most_ms);
        let whole = all
            .whole
            .iter()
            .map(|receive| (receive.coming.full_name(), received::give_up(self.0, receive)));
        let damaged = all
            .damaged
            .iter()
            .map(|damaged| (damaged.full_name(), received::give_up_damaged(self.0, damaged)));
        let mut gone = Vec::new();
        for (name, given_up) in whole.chain(damaged) {
            match given_up {
                Ok(()) => gone.push(name),
                Err(busy) if busy.kind() == Kind::Busy => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    /// Makes a replica an ordinary volume.
    ///
    /// # Errors
    /// `NotFound`, `InvalidInput` when it is no replica, or while a snapshot of it is received.
    pub fn promote(&self, volume: &str) -> Result<()> {
        received::promote(self.0, volume)
    }

    /// The number that tells a snapshot from any other, which its copies in other stores have, too.
    ///
    /// # Errors
    /// `NotFound`; the store's.
    pub fn guid(&self, snapshot: &str) -> Result<[u8; 16]> {
        received::guid(self.kernel(), &Snapshots::of(self.0).find(snapshot)?)
    }
}

/// Ranges that are to become zeroes, at most, before they do: each time all writes before are waited for.
const ZEROES: usize = 256;

/// Writes to a volume that is filled, some of which wait for their answers. No two of them, between two times that all is
/// settled, are of one place.
struct Filling<'v> {
    volume: &'v Volume,
    waiting: VecDeque<(Ticket, usize)>,
    bytes: usize,
    /// What is to become zeroes.
    zeroes: Vec<Range<u64>>,
}

impl<'v> Filling<'v> {
    fn new(volume: &'v Volume) -> Filling<'v> {
        Filling { volume, waiting: VecDeque::new(), bytes: 0, zeroes: Vec::new() }
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        while !self.waiting.is_empty() && self.bytes + data.len() > WAITING_BYTES {
            self.wait_for_one()?;
        }
        let ticket = self.volume.write_later(offset, data)?;
        self.waiting.push_back((ticket, data.len()));
        self.bytes += data.len();
        Ok(())
    }

    /// Makes a range zeroes, with others together: a trim waits for all writes before it.
    fn zero(&mut self, range: Range<u64>) -> Result<()> {
        match self.zeroes.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.zeroes.push(range),
        }
        if self.zeroes.len() < ZEROES { Ok(()) } else { self.settle() }
    }

    /// Reads what a range holds by now.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset + into.len() as u64;
        if self.zeroes.iter().any(|range| range.start < end && offset < range.end) {
            self.settle()?;
        }
        self.volume.read_at(offset, into)
    }

    fn wait_for_one(&mut self) -> Result<()> {
        let Some((ticket, bytes)) = self.waiting.pop_front() else { return Ok(()) };
        self.bytes -= bytes;
        self.volume.wait_for(ticket)
    }

    /// Waits until all is durable.
    fn settle(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            self.wait_for_one()?;
        }
        // One that fails is tried again, and counts until then.
        while let Some(range) = self.zeroes.last() {
            self.volume.discard(range.start, range.end - range.start)?;
            self.zeroes.pop();
        }
        Ok(())
    }
}
