//! Attaching: one writer a volume, by the store's exclusive lock and by fencing.
//!
//! The lock tells a second server that it comes second. What keeps a server away that was stopped
//! and wakes up again is the fence: nothing of the session that owned the volume before is applied
//! any more once ours begins, whether its lock has expired or not.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, Holder, ObjectName, Refusal, Write},
};
use parking_lot::{Condvar, Mutex};

use super::{
    Volume,
    cache_manager::Cache,
    header::{Bits, Discard, INLINE, LAST_DISCARD, LOCK, OWNER, name},
};
use crate::{
    chunk_map::stamp_value,
    format::catalogue::{Cut, Named, What},
    session::{Session, failed},
    settings::{Dedup, PlantedBug},
};

/// How a volume is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For writing; `Busy` when somebody else does.
    Own,
    /// For writing; who else does is fenced.
    TakeOver,
    /// For reading only, whoever writes.
    Read,
}

/// The owner as the header names it: `!` and its identity while it is at work, `=` and its identity
/// after it closed.
fn owner(at_work: bool, identity: &str) -> Vec<u8> {
    [if at_work { b"!" } else { b"=" }, identity.as_bytes()].concat()
}

fn parse_owner(value: &[u8]) -> Option<(bool, String)> {
    let (first, identity) = value.split_first()?;
    Some((*first == b'!', String::from_utf8_lossy(identity).into_owned()))
}

impl Volume {
    /// Attaches the volume called `name`.
    ///
    /// # Errors
    /// `NotFound`, `Busy` when another server writes to it, `Denied` or `Unsupported` when its last
    /// owner can't be fenced.
    pub fn attach(session: &Arc<Session>, name: &str, mode: Mode) -> Result<Volume> {
        let named = session.find(name)?;
        let Some(named) = named.filter(|named| named.what == What::Volume) else {
            return Err(Error::new(Kind::NotFound, format!("there is no volume {name:?}")));
        };
        if session.settings.dedup == Dedup::Inline && session.format.volume_cut == Cut::Content {
            return Err(Error::new(
                Kind::Unsupported,
                "volumes that are cut by their content can't be deduplicated inline",
            ));
        }
        let volume = Volume {
            session: session.clone(),
            id: named.id,
            name: name.to_owned(),
            size: AtomicU64::new(named.bytes),
            read_only: mode == Mode::Read,
            objects: Mutex::default(),
            bits: Mutex::default(),
            discards: Mutex::default(),
            last_discard: Mutex::default(),
            cache: Mutex::default(),
            inline: (mode != Mode::Read && session.settings.dedup == Dedup::Inline)
                .then(|| session.stamp()),
            doubt: AtomicBool::new(false),
            queue: Mutex::default(),
            queue_changed: Condvar::new(),
        };
        if mode == Mode::Read {
            volume.load()?;
            return Ok(volume);
        }
        let clean = volume.own(mode == Mode::TakeOver).map_err(|refusal| match refusal {
            Refusal::Busy => Error::new(
                Kind::Busy,
                format!("volume {name:?} is being written by another server"),
            ),
            refusal => failed(format_args!("volume {name:?} can't be taken"), refusal),
        })?;
        volume.load()?;
        // The size may have changed until the lock was ours.
        let size = session.find(name)?.filter(|again| again.id == named.id);
        let Some(Named { bytes, .. }) = size else {
            return Err(Error::new(Kind::NotFound, format!("there is no volume {name:?}")));
        };
        volume.size.store(bytes, Relaxed);
        if !clean {
            (0..bytes.div_ceil(volume.object_bytes()))
                .try_for_each(|index| volume.rescan(index))?;
        }
        Ok(volume)
    }

    fn cookie(&self) -> String {
        format!("session {}", self.session.number())
    }

    fn me(&self) -> Vec<u8> {
        owner(true, &self.session.store.identity())
    }

    /// Takes the lock and becomes the owner; true when the owner before closed in order.
    fn own(&self, take_over: bool) -> Result<bool, Refusal> {
        let (store, header) = (&self.session.store, name(self.id));
        let mut result = Err(Refusal::Unknown);
        for _ in 0..self.session.settings.tries.max(1) {
            result = store.lock(&header, LOCK, &self.cookie(), Some(self.session.settings.lease));
            match &result {
                Ok(()) => break,
                Err(Refusal::Busy) if take_over => {
                    if let Some(holder) = store.holder(&header, LOCK)? {
                        self.fence(&holder.identity)?;
                        store.break_lock(&header, LOCK, &holder)?;
                    }
                }
                Err(Refusal::Unknown) => {}
                Err(_) => break,
            }
        }
        result?;
        let owned = self.succeed(&header);
        if matches!(owned, Err(Refusal::Denied(_))) {
            // Who has not the right to fence leaves the lock to those who have. Where that fails it
            // ends with the lease.
            let _ = store.unlock(&header, LOCK, &self.cookie());
        }
        owned
    }

    /// Shuts out the owner before, and becomes the owner.
    fn succeed(&self, header: &ObjectName) -> Result<bool, Refusal> {
        for _ in 0..self.session.settings.tries.max(1) {
            let keys = vec![onefold_core::object::ReadPart::Keys(vec![OWNER.to_vec()])];
            let answer = self.session.read_one(header, keys)?;
            let before =
                answer.pairs(0).0.first().map(|(_, value)| value.clone()).unwrap_or_default();
            let parsed = parse_owner(&before);
            // Also one that closed: a copy of its last operations may still come.
            if let Some((_, identity)) = &parsed
                && before != self.me()
            {
                self.fence(identity)?;
            }
            let op = Write {
                object: header.clone(),
                guards: vec![Guard::Exists, Guard::Omap(OWNER.to_vec(), before)],
                changes: match self.inline {
                    Some(stamp) => vec![Change::SetOmap(vec![
                        (OWNER.to_vec(), self.me()),
                        (INLINE.to_vec(), stamp_value(stamp)),
                    ])],
                    // Whoever made references before their entries was fenced.
                    None => vec![
                        Change::SetOmap(vec![(OWNER.to_vec(), self.me())]),
                        Change::DropOmap(vec![INLINE.to_vec()]),
                    ],
                },
            };
            match self.session.write_one(&op) {
                Ok(_) => return Ok(parsed.is_none_or(|(at_work, _)| !at_work)),
                // Then all is looked at: it costs time only.
                Err(Refusal::Unknown | Refusal::Mismatch) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Unknown)
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        if identity == self.session.store.identity()
            || self.session.planted(PlantedBug::TakeoverWithoutFence)
        {
            return Ok(());
        }
        self.session.store.fence(identity)
    }

    /// Reads the header.
    fn load(&self) -> Result<()> {
        let failed = |refusal| {
            failed(format_args!("the header of volume {:?} can't be read", self.name), refusal)
        };
        let (mut bits, mut discards, mut cache) =
            (Bits::default(), BTreeMap::new(), Cache::default());
        for (key, value) in self.session.all_keys(&name(self.id), Vec::new()).map_err(failed)? {
            if bits.learn(&key, &value).map_err(failed)? {
                continue;
            }
            if let Some(discard) = Discard::decode(&key, &value).map_err(failed)? {
                discards.insert(discard.stamp, discard);
            } else if key == LAST_DISCARD {
                self.last_discard.lock().number =
                    value.as_slice().try_into().map_or(0, u64::from_le_bytes);
            } else {
                cache.learn(&key, &value, self.kept_bytes());
            }
        }
        *self.bits.lock() = bits;
        *self.discards.lock() = discards.into_values().collect();
        self.session.kept.fetch_add(cache.bytes(), Relaxed);
        *self.cache.lock() = cache;
        Ok(())
    }

    /// Keeps the lock; to be called three times a lease.
    ///
    /// # Errors
    /// `Busy` when another server has it.
    pub fn renew(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let lease = Some(self.session.settings.lease);
        match self.session.store.lock(&name(self.id), LOCK, &self.cookie(), lease) {
            // It is asked again soon, and the fence decides.
            Ok(()) | Err(Refusal::Unknown) => Ok(()),
            Err(refusal) => {
                Err(failed(format_args!("the lock of volume {:?} is lost", self.name), refusal))
            }
        }
    }

    /// Closes in order: what was written is there, and the next owner need not look for it.
    ///
    /// # Errors
    /// `Stopped` when another server took the volume over.
    pub fn detach(self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let failed =
            |refusal| failed(format_args!("volume {:?} can't be closed", self.name), refusal);
        self.drain();
        let not_yet_recorded =
            self.objects.lock().values().any(|object| object.lock().is_not_yet_recorded());
        if !not_yet_recorded {
            let mut op = Write {
                object: name(self.id),
                guards: vec![Guard::Exists, Guard::Omap(OWNER.to_vec(), self.me())],
                changes: vec![Change::SetOmap(vec![(
                    OWNER.to_vec(),
                    owner(false, &self.session.store.identity()),
                )])],
            };
            if let Some(stamp) = self.inline.filter(|_| !self.doubt.load(Relaxed)) {
                op.guards.push(Guard::Omap(INLINE.to_vec(), stamp_value(stamp)));
                op.changes.push(Change::DropOmap(vec![INLINE.to_vec()]));
            }
            match self.session.until_answered(&op) {
                // Applied before, with the reply lost; or somebody else's: then they looked.
                Ok(_) | Err(Refusal::Mismatch) => {}
                Err(refusal) => return Err(failed(refusal)),
            }
        }
        let me = Holder { identity: self.session.store.identity(), cookie: self.cookie() };
        self.session.store.unlock(&name(self.id), LOCK, &me.cookie).map_err(failed)
    }

    /// Changes the size of a volume that is attached for writing, without touching what lies beyond
    /// it.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn set_size(&self, bytes: u64) {
        self.size.store(bytes, Relaxed);
    }
}
