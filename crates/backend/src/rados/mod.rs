//! An object store in two pools of a Ceph cluster, through librados, which is found when the
//! program runs.
//!
//! | module | what |
//! |---|---|
//! | this one | sessions: each is a connection of its own, since Ceph shuts out whole clients |
//! | [`library`] | librados' functions |
//! | [`ceph_args`] | the user and the configuration from the environment |
//! | [`connection`] | monitors, locks, listings |
//! | [`operation`] | compound operations in flight |
//! | [`pool_info`] | a pool according to the cluster's map |
//! | [`release`] | the release of a cluster, and those that were tried |
//! | [`pools`] | the pools of a cluster, and the place of a store among them |
//!
//! How the trait's words are said to RADOS: [`Guard::Absent`](onefold_core::object::Guard) is an
//! exclusive create, a version is the object's user version as *assert-version* compares it, a
//! fence is an entry of the blocklist. A batch is sent whole before its first reply is waited for;
//! librados keeps the order of operations on one object. An operation without a reply for so long
//! as was said is [`Refusal::Unknown`].
//!
//! *Threads:* librados has its own; ours only wait.

mod ceph_args;
mod connection;
mod library;
mod operation;
mod pool_info;
mod pools;
mod release;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_core::{
    Clock, Error, Kind, Result,
    object::{
        Change, Held, Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadPart,
        ReadResult, Refusal, Space, Version, Write,
    },
};
use parking_lot::Mutex;

pub use connection::{Connection, last_reply};
pub use pool_info::PoolInfo;
pub use pools::{Location, TIMEOUT};
pub use release::TRIED;

use self::{
    connection::{Cursor, PoolIo},
    operation::Flight,
};
use crate::clock::{BootClock, wall_time};

/// Listings that can be continued, for each session; the oldest one is dropped.
const LISTINGS: usize = 64;

/// Bytes in flight that one batch has at most; the rest of it waits for replies. A worker has one
/// batch at a time: with [`FLIGHT`] these are its bounds.
const FLIGHT_BYTES: usize = 32 << 20;

/// Most operations of a batch in flight together.
const FLIGHT: usize = 32;

/// Batches of one client's writes on their way together: while one waits for its slowest disk, others go.
const BATCHES: usize = 4;

/// Most age of the answer about the free space.
const SPACE_AGE: Duration = Duration::from_secs(2);

/// Most age of the answer about recovery.
const RECOVERY_AGE: Duration = Duration::from_secs(5);

/// Clients' writes are refused when less is left: a hundredth of the cluster, and 1 GiB at least,
/// for what makes room.
const RESERVE: u64 = 1 << 30;

/// The last answer about the free space.
struct Free {
    at: Option<Instant>,
    enough: bool,
}

/// What the text of a place in a listing begins with that outlives its session.
const PLACE: &str = "hash ";

/// The places where listings continue.
#[derive(Default)]
struct Listings {
    next: u64,
    cursors: BTreeMap<u64, Arc<Mutex<Cursor>>>,
}

/// One session of a store in two pools.
pub struct RadosObjects {
    // Before the connection, which they keep.
    metadata: Arc<PoolIo>,
    chunks: Arc<PoolIo>,
    connection: Arc<Connection>,
    kind: PoolKind,
    names: [String; 2],
    identity: String,
    listings: Mutex<Listings>,
    free: Mutex<Free>,
    /// When the cluster was asked last whether it recovers, and what it said.
    recovers: Mutex<Option<(Instant, bool)>>,
}

impl RadosObjects {
    /// A session on two pools, with a connection of its own.
    ///
    /// # Errors
    /// `Unsupported` when a pool can't hold a store, and the cluster's.
    pub fn new(
        connection: Arc<Connection>,
        metadata: &PoolInfo,
        chunks: &PoolInfo,
    ) -> Result<RadosObjects> {
        if metadata.kind != PoolKind::Replicated {
            let what = format!(
                "the metadata pool '{}' is erasure-coded, and has no omap; it must be replicated",
                metadata.name.escape_debug()
            );
            return Err(Error::new(Kind::Unsupported, what));
        }
        Ok(RadosObjects {
            metadata: PoolIo::open(&connection, metadata)?,
            chunks: PoolIo::open(&connection, chunks)?,
            identity: connection.address()?,
            connection,
            kind: chunks.kind,
            names: [metadata.name.clone(), chunks.name.clone()],
            listings: Mutex::default(),
            free: Mutex::new(Free { at: None, enough: true }),
            recovers: Mutex::default(),
        })
    }

    /// A session that reads one pool only, of any content, as chunk pool.
    ///
    /// # Errors
    /// The cluster's.
    pub fn reader(connection: Arc<Connection>, pool: &PoolInfo) -> Result<RadosObjects> {
        RadosObjects::new(
            connection,
            &PoolInfo { kind: PoolKind::Replicated, ..pool.clone() },
            pool,
        )
    }

    fn pool(&self, pool: Pool) -> &Arc<PoolIo> {
        match pool {
            Pool::Metadata => &self.metadata,
            Pool::Chunks => &self.chunks,
        }
    }

    /// The pool of an operation, when it can do that.
    fn pool_for(
        &self,
        object: &ObjectName,
        omap: bool,
        partial: bool,
    ) -> Result<&Arc<PoolIo>, Refusal> {
        if (omap || partial) && self.kind(object.pool) == PoolKind::Erasure {
            return Err(Refusal::Unsupported);
        }
        Ok(self.pool(object.pool))
    }

    fn send(&self, op: &Write) -> Result<Flight, Refusal> {
        use onefold_core::object::Guard;
        let omap = op.guards.iter().any(|guard| matches!(guard, Guard::Omap(..)))
            || op
                .changes
                .iter()
                .any(|change| matches!(change, Change::SetOmap(_) | Change::DropOmap(_)));
        let partial =
            op.changes.iter().any(|change| matches!(change, Change::Write(..) | Change::Zero(..)));
        let pool = self.pool_for(&op.object, omap, partial)?;
        // Chunks are what makes room in the end.
        let grows = op.object.pool == Pool::Metadata && bytes(op) > 0;
        if grows && !self.has_space() {
            return Err(Refusal::Full);
        }
        Flight::write(pool, op)
    }

    fn ask(&self, op: &Read) -> Result<Flight, Refusal> {
        let omap =
            op.parts.iter().any(|part| matches!(part, ReadPart::Keys(_) | ReadPart::Page(..)));
        Flight::read(self.pool_for(&op.object, omap, false)?, op)
    }

    /// True while the cluster has more than the reserve.
    fn has_space(&self) -> bool {
        let mut free = self.free.lock();
        if free.at.is_none_or(|at| at.elapsed() >= SPACE_AGE) {
            free.at = Some(Instant::now());
            // Whether it is known or not: the cluster refuses by itself in the end.
            if let Ok(left) = self.connection.left(&self.names[0]) {
                free.enough = left.free > RESERVE.max(left.total / 100);
            }
        }
        free.enough
    }
}

/// Bytes of data that an operation writes.
fn bytes(op: &Write) -> usize {
    let of = |change: &Change| match change {
        Change::Write(_, bytes) | Change::Full(bytes) | Change::Overwrite(bytes) => bytes.len(),
        _ => 0,
    };
    op.changes.iter().map(of).sum()
}

/// Sends a batch, so much in flight together that the bounds hold, and collects the replies in
/// order: each reply makes room for the next operations.
fn fly<O, F, T>(
    batch: &[O],
    weight: impl Fn(&O) -> usize,
    send: impl Fn(&O) -> Result<F, Refusal>,
    end: impl Fn(F) -> Result<T, Refusal>,
) -> Vec<Result<T, Refusal>> {
    let mut results = Vec::with_capacity(batch.len());
    let (mut flights, mut bytes) = (VecDeque::with_capacity(FLIGHT), 0);
    for op in batch {
        // A read of a whole object may have any size, so it counts as the most and is sent alone.
        let heavy = weight(op).min(FLIGHT_BYTES);
        while flights.len() >= FLIGHT || bytes + heavy > FLIGHT_BYTES && !flights.is_empty() {
            land(&mut flights, &mut bytes, &mut results, &end);
        }
        bytes += heavy;
        flights.push_back((send(op), heavy));
    }
    while !flights.is_empty() {
        land(&mut flights, &mut bytes, &mut results, &end);
    }
    results
}

/// Waits for the operation that was sent first.
fn land<F, T>(
    flights: &mut VecDeque<(Result<F, Refusal>, usize)>,
    bytes: &mut usize,
    results: &mut Vec<Result<T, Refusal>>,
    end: impl Fn(F) -> Result<T, Refusal>,
) {
    if let Some((flight, heavy)) = flights.pop_front() {
        *bytes -= heavy;
        results.push(flight.and_then(end));
    }
}

impl RadosObjects {
    /// The cursor of a listing of this session.
    fn cursor(&self, from: &str) -> Option<Arc<Mutex<Cursor>>> {
        let token = from.parse::<u64>().ok()?;
        self.listings.lock().cursors.get(&token).cloned()
    }
}

impl ObjectStore for RadosObjects {
    fn kind(&self, pool: Pool) -> PoolKind {
        if pool == Pool::Metadata { PoolKind::Replicated } else { self.kind }
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        fly(batch, bytes, |op| self.send(op), Flight::written)
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let wanted =
            |part: &ReadPart| if let ReadPart::Data(_, bytes) = part { *bytes as usize } else { 0 };
        let weight = |op: &Read| op.parts.iter().map(wanted).fold(0, usize::saturating_add);
        fly(batch, weight, |op| self.ask(op), Flight::seen)
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        let begin = from.map(|from| {
            if let Some(place) = from.strip_prefix(PLACE) {
                let place = u32::from_str_radix(place, 16).ok();
                let cursor = place.map(|place| self.pool(pool).cursor_at(place));
                return cursor.map(|cursor| Arc::new(Mutex::new(cursor))).ok_or_else(|| {
                    Refusal::Failed(Error::new(
                        Kind::InvalidInput,
                        "that is no place of a listing of Ceph's",
                    ))
                });
            }
            self.cursor(from).ok_or_else(|| {
                Refusal::Failed(Error::new(
                    Kind::NotFound,
                    "the listing was given up, and must begin anew",
                ))
            })
        });
        let begin = begin.transpose()?;
        let (names, next) = match &begin {
            Some(cursor) => self.pool(pool).list(Some(&*cursor.lock()), most)?,
            None => self.pool(pool).list(None, most)?,
        };
        let next = next.map(|cursor| {
            let mut listings = self.listings.lock();
            listings.next += 1;
            let token = listings.next;
            listings.cursors.insert(token, Arc::new(Mutex::new(cursor)));
            while listings.cursors.len() > LISTINGS {
                listings.cursors.pop_first();
            }
            token.to_string()
        });
        Ok(Page { names, next })
    }

    fn keep_place(&self, pool: Pool, from: &str) -> Option<String> {
        if from.starts_with(PLACE) {
            return Some(from.to_owned());
        }
        let place = self.pool(pool).place_of(&self.cursor(from)?.lock());
        Some(format!("{PLACE}{place:08x}"))
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.pool(object.pool).lock(&object.name, lock, cookie, lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        match self.pool(object.pool).unlock(&object.name, lock, cookie) {
            Err(Refusal::Missing) => Ok(()),
            other => other,
        }
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        match self.pool(object.pool).locker(&object.name, lock) {
            Err(Refusal::Missing) => Ok(None),
            other => other.map(|locker| locker.map(|(holder, _)| holder)),
        }
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        let pool = self.pool(object.pool);
        let locker = match pool.locker(&object.name, lock) {
            Err(Refusal::Missing) => None,
            other => other?,
        };
        let Some((_, client)) = locker.filter(|(now, _)| now == holder) else { return Ok(()) };
        match pool.break_lock(&object.name, lock, &client, &holder.cookie) {
            Err(Refusal::Missing) => Ok(()),
            other => other,
        }
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.connection.fence(identity)
    }

    fn may_fence(&self) -> Result<(), Refusal> {
        self.connection.may_fence()
    }

    fn is_identity(&self, text: &str) -> bool {
        connection::is_one_client(text)
    }

    fn time(&self) -> Duration {
        wall_time()
    }

    fn monotonic(&self) -> Duration {
        BootClock.now()
    }

    fn batches(&self) -> usize {
        BATCHES
    }

    fn recovers(&self) -> bool {
        let mut known = self.recovers.lock();
        if known.is_none_or(|(at, _)| at.elapsed() >= RECOVERY_AGE) {
            // The answer is advice: without the right to ask, assume that nothing recovers.
            *known = Some((Instant::now(), self.connection.recovers().unwrap_or(false)));
        }
        known.is_some_and(|(_, recovers)| recovers)
    }

    fn held(&self, pool: Pool) -> Result<Option<Held>, Refusal> {
        let [metadata, chunks] = &self.names;
        let name = if pool == Pool::Metadata { metadata } else { chunks };
        self.connection.held(name).map_err(Refusal::Failed)
    }

    fn space(&self) -> Result<Space, Refusal> {
        self.connection.space(&self.names).map_err(Refusal::Failed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_batch_keeps_its_bounds_and_its_order() {
        // (size, refused); the second half weighs too much for 32 of them.
        let ops: Vec<(usize, bool)> =
            (0..200).map(|n| (if n < 100 { 10 } else { 3 << 20 }, n % 50 == 7)).collect();
        let (now, seen) = (RefCell::new(VecDeque::new()), RefCell::new((0, 0)));
        let send = |op: &(usize, bool)| {
            if op.1 {
                return Err(Refusal::Missing);
            }
            now.borrow_mut().push_back(op.0);
            let (count, bytes) = (now.borrow().len(), now.borrow().iter().sum::<usize>());
            let most = *seen.borrow();
            *seen.borrow_mut() = (most.0.max(count), most.1.max(bytes));
            Ok(op.0)
        };
        let end = |size: usize| {
            assert_eq!(now.borrow_mut().pop_front(), Some(size));
            Ok(size)
        };
        let results = fly(&ops, |op| op.0, send, end);
        let expected: Vec<_> = ops.iter().map(|op| (!op.1).then_some(op.0)).collect();
        assert_eq!(results.into_iter().map(Result::ok).collect::<Vec<_>>(), expected);
        assert_eq!(*seen.borrow(), (FLIGHT, 10 * (3 << 20)));
        // An operation that is too large by itself is sent alone.
        let large = fly(
            &[(1, false), (usize::MAX, false), (FLIGHT_BYTES + 1, false)],
            |op| op.0,
            |op| Ok(op.0),
            Ok,
        );
        assert!(matches!(large[..], [Ok(_), Ok(_), Ok(_)]));
    }
}
