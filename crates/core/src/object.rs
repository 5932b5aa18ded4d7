//! The object store, as the cluster engine sees it: compound operations, atomic on one object and
//! on nothing more.

use std::{fmt, time::Duration};

use crate::Error;

/// One of the two pools of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// Metadata objects, lists, catalogue: replicated, with omap.
    Metadata,
    /// Chunk objects: replicated or erasure-coded, as the user made it.
    Chunks,
}

/// The operations that a pool allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Everything.
    Replicated,
    /// No omap and no partial overwrite.
    Erasure,
}

/// Names an object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The pool that the object is in.
    pub pool: Pool,
    /// The object's name in the pool.
    pub name: String,
}

impl ObjectName {
    /// `name` in the metadata pool.
    pub fn metadata(name: impl Into<String>) -> ObjectName {
        ObjectName { pool: Pool::Metadata, name: name.into() }
    }

    /// `name` in the chunk pool.
    pub fn chunk(name: impl Into<String>) -> ObjectName {
        ObjectName { pool: Pool::Chunks, name: name.into() }
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}", self.pool, self.name)
    }
}

/// Counts the changes of an object: the number increases with each change, by any step, and never
/// repeats under one name, not even after removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A condition under which an operation is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The object does not exist; else [`Refusal::Exists`]. The operation creates it.
    Absent,
    /// The object exists; else [`Refusal::Missing`].
    Exists,
    /// The object has this version; else [`Refusal::Mismatch`].
    Version(Version),
    /// The key has this value; an absent key has the empty one.
    Omap(Vec<u8>, Vec<u8>),
    /// The attribute has this value; an absent one has the empty one.
    Xattr(&'static str, Vec<u8>),
}

/// A change that an operation makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes at an offset.
    Write(u64, Vec<u8>),
    /// The whole data.
    Full(Vec<u8>),
    /// The whole data. Where the store places data by itself, the bytes that the object had before are
    /// overwritten where they lie before the operation is acknowledged, also after a crash: for keys.
    Overwrite(Vec<u8>),
    /// So many bytes at an offset read as zeroes and take no space; the object grows no longer by
    /// it.
    Zero(u64, u64),
    /// Keys and their values.
    SetOmap(Vec<(Vec<u8>, Vec<u8>)>),
    /// Keys that go; those that are not there are no error.
    DropOmap(Vec<Vec<u8>>),
    /// An attribute.
    SetXattr(&'static str, Vec<u8>),
    /// Removes the object with all of its content. The only change of its operation.
    Remove,
}

/// A compound change of one object: all guards hold and all changes are made, or nothing is.
/// Durable when it is acknowledged.
///
/// Without [`Guard::Absent`] or [`Guard::Exists`] an object that is not there is created, but any
/// other guard finds it missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The object.
    pub object: ObjectName,
    /// Conditions; the operation is applied only if all hold.
    pub guards: Vec<Guard>,
    /// Changes, applied in this order.
    pub changes: Vec<Change>,
}

/// One part of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPart {
    /// So many bytes at an offset; fewer at the end of the object.
    Data(u64, u64),
    /// The values of these keys; those that are not there are left out.
    Keys(Vec<Vec<u8>>),
    /// Keys after this one in the order of their bytes, at most so many.
    Page(Vec<u8>, usize),
    /// An attribute.
    Xattr(&'static str),
    /// Length and time of the last change.
    Stat,
}

/// A compound read of one object, all of it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The object.
    pub object: ObjectName,
    /// The parts that are read.
    pub parts: Vec<ReadPart>,
}

/// The result of one part of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// For [`ReadPart::Data`].
    Data(Vec<u8>),
    /// For [`ReadPart::Keys`] and [`ReadPart::Page`]; `more` tells that keys follow. A page may be
    /// shorter than was asked for.
    Pairs {
        /// In the order of the keys.
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
        /// Keys follow.
        more: bool,
    },
    /// For [`ReadPart::Xattr`].
    Xattr(Option<Vec<u8>>),
    /// For [`ReadPart::Stat`].
    Stat {
        /// Length of the data.
        bytes: u64,
        /// Time of the last change, by the store's clock, since 1970.
        changed: Duration,
    },
}

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResult {
    /// The version of the object at that moment.
    pub version: Version,
    /// In the order of the parts.
    pub seen: Vec<Seen>,
}

impl ReadResult {
    /// The bytes of part `n`; empty when that read something else.
    #[must_use]
    pub fn data(&self, n: usize) -> &[u8] {
        match self.seen.get(n) {
            Some(Seen::Data(bytes)) => bytes,
            _ => &[],
        }
    }

    /// The keys of part `n`, and whether more follow.
    #[must_use]
    pub fn pairs(&self, n: usize) -> (&[(Vec<u8>, Vec<u8>)], bool) {
        match self.seen.get(n) {
            Some(Seen::Pairs { pairs, more }) => (pairs, *more),
            _ => (&[], false),
        }
    }

    /// The attribute of part `n`.
    #[must_use]
    pub fn xattr(&self, n: usize) -> Option<&[u8]> {
        match self.seen.get(n) {
            Some(Seen::Xattr(value)) => value.as_deref(),
            _ => None,
        }
    }
}

/// Why an operation was not applied, or is not known to be.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// There is no such object.
    Missing,
    /// [`Guard::Absent`] found one.
    Exists,
    /// Another guard does not hold.
    Mismatch,
    /// Somebody else holds the lock.
    Busy,
    /// The store is full; it still accepts removals.
    Full,
    /// This session was fenced: the store accepts no more operations of it.
    Fenced,
    /// No reply: the operation was applied, will be applied, or never will be.
    Unknown,
    /// The pool can't do that.
    Unsupported,
    /// Whom this session works for has not the right to; the sentence says which one. Nothing was
    /// applied.
    Denied(Error),
    /// The store failed otherwise; nothing was applied.
    Failed(Error),
}

impl Refusal {
    /// True for two of a kind.
    #[must_use]
    pub fn is(&self, other: &Refusal) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Missing => "there is no such object",
            Refusal::Exists => "the object is there already",
            Refusal::Mismatch => "the object is not as it was expected",
            Refusal::Busy => "somebody else holds the lock",
            Refusal::Full => "the object store is full",
            Refusal::Fenced => "this session was fenced by another one",
            Refusal::Unknown => "the object store did not reply",
            Refusal::Unsupported => "the pool can't do that",
            Refusal::Denied(error) | Refusal::Failed(error) => return error.fmt(f),
        })
    }
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The session, as [`ObjectStore::identity`] gave it there.
    pub identity: String,
    /// The cookie that the holder gave.
    pub cookie: String,
}

/// A page of a pool's listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Names, in no order. Objects that come or go meanwhile may be there or not.
    pub names: Vec<String>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
}

/// Space of the store, before replication is taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that it has.
    pub total: u64,
    /// Bytes in use.
    pub used: u64,
}

/// What a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Objects.
    pub objects: u64,
    /// Bytes of their data, each once, without keys and attributes.
    pub bytes: u64,
}

/// A store of objects in two pools. A value is one *session*: once the session is fenced, the store
/// applies none of its operations any more.
///
/// All methods may be called from many threads at once. Operations of one session on one object are
/// applied in the order in which they were sent; once [`Refusal::Unknown`] was given, that
/// operation may still be applied at any later time, also more than once, until the session is
/// fenced.
pub trait ObjectStore: Send + Sync {
    /// The kind of the pool.
    fn kind(&self, pool: Pool) -> PoolKind;

    /// Applies each of a batch, all in flight together; operations of one batch on one object in
    /// their order.
    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>>;

    /// Reads each of a batch, all in flight together.
    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>>;

    /// A page of the names in a pool.
    ///
    /// # Errors
    /// As operations.
    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal>;

    /// True when [`list`](Self::list) gives names in their order, and takes any text as `from`: the page has
    /// the names behind it.
    fn lists_by_name(&self) -> bool {
        false
    }

    /// Where a page ended, for [`list`](Self::list) of a later session, also in another process. The page
    /// that begins there may have some of the last names again. `None`: the listing can't be taken up later.
    fn keep_place(&self, _pool: Pool, from: &str) -> Option<String> {
        Some(from.to_owned())
    }

    /// Acquires an exclusive lock, or renews it; it ends after `lease` by the store's clock, or
    /// never.
    /// The object is created.
    ///
    /// # Errors
    /// `Busy` when somebody else holds it.
    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal>;

    /// Gives a lock back; no error when it is not held.
    ///
    /// # Errors
    /// As operations.
    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal>;

    /// The holder of a lock at this moment.
    ///
    /// # Errors
    /// As operations.
    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal>;

    /// Breaks a holder's lock; no error when this holder does not have it any more.
    ///
    /// # Errors
    /// As operations.
    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal>;

    /// The name of this session for [`fence`](ObjectStore::fence); no other one ever has it.
    fn identity(&self) -> String;

    /// Fences a session for good. After the return the store applies none of its operations any
    /// more, even those that were in flight.
    ///
    /// # Errors
    /// `Denied`: this session has no right to fence.
    fn fence(&self, identity: &str) -> Result<(), Refusal>;

    /// Shows that this session has the right to [`fence`](Self::fence), without fencing anybody.
    ///
    /// # Errors
    /// `Denied`: it has not. Otherwise as operations.
    fn may_fence(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// False for a text that can't be the [`identity`](Self::identity) of a session: nobody is called so, and
    /// nobody could be fenced by it.
    fn is_identity(&self, _text: &str) -> bool {
        true
    }

    /// The time by the clock of this host, since 1970.
    fn time(&self) -> Duration;

    /// Time since an arbitrary moment by a clock of this host that nobody sets, and that goes on while the
    /// host sleeps or the process is stopped.
    fn monotonic(&self) -> Duration;

    /// True when one process has the whole store: nobody else changes anything while it does.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Batches that one client's changes should be on their way in together: more hide the time that each
    /// takes, where the store works on many at once; a store that makes changes durable together takes one.
    fn batches(&self) -> usize {
        1
    }

    /// True while the store recovers lost copies: background work then slows down.
    fn recovers(&self) -> bool {
        false
    }

    /// What a pool holds, where the store knows it without a look at each object; it may be some seconds
    /// old. `None` where it does not.
    ///
    /// # Errors
    /// As operations.
    fn held(&self, _pool: Pool) -> Result<Option<Held>, Refusal> {
        Ok(None)
    }

    /// Space of both pools together.
    ///
    /// # Errors
    /// As operations.
    fn space(&self) -> Result<Space, Refusal>;
}
