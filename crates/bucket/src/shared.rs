//! The state of an open bucket, which all its files and locks share.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use onefold_core::{Error, Hold, Kind, Result};
use parking_lot::{Condvar, Mutex};

use crate::{
    format::Record,
    log::Log,
    reads::Cache,
    state::{Inode, Pack, State},
};

/// Files with keys: their bytes never stand in a frame, which stays for ever, and go at once when they are replaced.
const SECRET: [&str; 1] = ["keys"];

/// The rights of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It sees the state as of when it looked.
    Reads,
    /// It has joined, by the frame of this number.
    Writes(u64),
    /// It has left.
    Left,
}

/// A pack that grows until the next commit.
#[derive(Default)]
pub(crate) struct Open {
    /// The pack's own number.
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
}

/// A pack that the next frame lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) number: u64,
    pub(crate) bytes: u32,
    pub(crate) sum: [u8; 32],
    pub(crate) secret: bool,
}

/// All that changes, under one lock that is never held while the store is asked.
pub(crate) struct Core {
    pub(crate) role: Role,
    /// The state with all that was written; only what a frame has is durable.
    pub(crate) state: State,
    /// Files that were removed while somebody may have them open.
    pub(crate) unlinked: HashMap<u64, Inode>,
    /// Where bytes of packs are that nothing names any more and a frame has.
    pub(crate) past: HashMap<(u64, u64), Pack>,
    /// Changes that no frame has yet.
    pub(crate) pending: Vec<Record>,
    /// The pack of short writes, and the same for files with keys.
    pub(crate) open: [Option<Open>; 2],
    /// Packs that no frame lists.
    pub(crate) closed: Vec<Closed>,
    pub(crate) next_number: u64,
    /// Packs that are not in the store yet.
    pub(crate) fresh: HashMap<(u64, u64), Arc<Vec<u8>>>,
    pub(crate) fresh_bytes: usize,
    /// Packs that wait for a thread; true for those with keys.
    pub(crate) queue: VecDeque<((u64, u64), bool)>,
    /// Why nothing is written any more.
    pub(crate) failed: Option<Error>,
}

/// How locks of one file are held.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) shared: usize,
    pub(crate) alone: bool,
}

impl Held {
    pub(crate) fn allows(&self, hold: Hold) -> bool {
        !self.alone && (hold == Hold::Shared || self.shared == 0)
    }
}

/// An open bucket.
pub(crate) struct Shared {
    pub(crate) log: Log,
    pub(crate) core: Mutex<Core>,
    /// Something of the core changed that others wait for.
    pub(crate) changed: Condvar,
    /// Held by who makes a frame.
    pub(crate) committing: Mutex<()>,
    pub(crate) cache: Cache,
    pub(crate) locks: Mutex<HashMap<String, Held>>,
    pub(crate) unlocked: Condvar,
}

impl Shared {
    pub(crate) fn new(log: Log, state: State, role: Role) -> Shared {
        let cache = Cache::new(log.settings.cache_bytes, log.settings.block_bytes);
        let core = Core {
            role,
            state,
            unlinked: HashMap::new(),
            past: HashMap::new(),
            pending: Vec::new(),
            open: [None, None],
            closed: Vec::new(),
            next_number: 1,
            fresh: HashMap::new(),
            fresh_bytes: 0,
            queue: VecDeque::new(),
            failed: None,
        };
        Shared {
            log,
            core: Mutex::new(core),
            changed: Condvar::new(),
            committing: Mutex::new(()),
            cache,
            locks: Mutex::default(),
            unlocked: Condvar::new(),
        }
    }

    /// Nothing is written any more; returns why.
    pub(crate) fn fail(&self, error: Error) -> Error {
        let mut core = self.core.lock();
        let first = core.failed.get_or_insert(error).clone();
        drop(core);
        self.changed.notify_all();
        first
    }
}

impl Core {
    /// The number by which this process joined.
    ///
    /// # Errors
    /// `Denied` when it only reads or has left, and why it failed earlier.
    pub(crate) fn writer(&self) -> Result<u64> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match self.role {
            Role::Writes(writer) => Ok(writer),
            Role::Reads => Err(Error::new(Kind::Denied, "the bucket is open for reading only")),
            Role::Left => Err(Error::new(Kind::Denied, "this process has left the bucket")),
        }
    }

    pub(crate) fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// True when the file has keys.
    pub(crate) fn is_secret(&self, inode: u64) -> bool {
        self.state.inodes.get(&inode).is_some_and(|inode| SECRET.contains(&inode.name.as_str()))
    }

    /// The file, which may be removed.
    pub(crate) fn inode(&self, inode: u64) -> Result<&Inode> {
        let found = self.state.inodes.get(&inode).or_else(|| self.unlinked.get(&inode));
        found.ok_or_else(removed)
    }

    /// Errors when the file was removed: nobody reads what is written to it.
    pub(crate) fn must_be_there(&self, inode: u64) -> Result<()> {
        self.state.inodes.get(&inode).map(drop).ok_or_else(removed)
    }
}

fn removed() -> Error {
    Error::new(Kind::NotFound, "the file was removed")
}
