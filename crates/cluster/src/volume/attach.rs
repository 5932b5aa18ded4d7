//! Attaching: one writer a volume, by the store's exclusive lock and by fencing.
//!
//! The lock only informs a second server that another one is writing. The fence is what keeps away
//! a server that was stopped and wakes up again. Once our session owns the volume, the store
//! applies nothing more of the previous owner, whether its lock has expired or not.

use std::{
    collections::BTreeMap,
    ops::ControlFlow::{Break, Continue},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, Holder, ObjectName, Refusal, Write},
};
use parking_lot::{Condvar, Mutex};

use super::{
    Volume,
    cache_manager::CacheManager,
    header::{Bits, Discard, INLINE, Inline, LAST_DISCARD, LOCK, OWNER, name},
};
use crate::{
    chunk_map::stamp_value,
    format::catalogue::{Cut, Named, What},
    kernel::{Fate, Operation, failed},
    session::Session,
    settings::{Dedup, PlantedBug},
};

/// How a volume is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For writing; `Busy` when another server writes.
    Own,
    /// For writing; the server that writes now is fenced.
    TakeOver,
    /// For reading only, also while a server writes.
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
        if session.kernel().settings().dedup == Dedup::Inline
            && session.kernel().format().volume_cut == Cut::Content
        {
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
            cache: CacheManager::new(session.clone()),
            inline: (mode != Mode::Read && session.kernel().settings().dedup == Dedup::Inline)
                .then(|| Inline::new(session.kernel().stamp())),
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

    fn me(&self) -> Vec<u8> {
        owner(true, &self.session.kernel().store().identity())
    }

    /// Acquires the lock and becomes the owner; true when the previous owner closed in order.
    fn own(&self, take_over: bool) -> Result<bool, Refusal> {
        let (kernel, header) = (self.session.kernel(), name(self.id));
        let (store, lease) = (kernel.store(), kernel.settings().lease);
        let mut busy = false;
        let taken = kernel.retry(|| {
            busy = false;
            match store.lock(&header, LOCK, &kernel.cookie(), Some(lease)) {
                Err(Refusal::Busy) if take_over => {
                    if let Some(holder) = store.holder(&header, LOCK)? {
                        self.fence(&holder.identity)?;
                        store.break_lock(&header, LOCK, &holder)?;
                    }
                    busy = true;
                    Ok(Continue(()))
                }
                Err(Refusal::Unknown) => Ok(Continue(())),
                other => other.map(Break),
            }
        });
        taken.map_err(|refusal| if busy { Refusal::Busy } else { refusal })?;
        let owned = self.succeed(&header);
        if matches!(owned, Err(Refusal::Denied(_))) {
            // This session may not fence, so it leaves the lock to a server that may. If unlocking
            // fails, the lock ends with its lease.
            let _ = store.unlock(&header, LOCK, &self.session.kernel().cookie());
        }
        owned
    }

    /// Fences the previous owner, and becomes the owner.
    fn succeed(&self, header: &ObjectName) -> Result<bool, Refusal> {
        let mut succession = Succession { volume: self, header, before: Vec::new() };
        self.session.kernel().carry_out(&mut succession)?;
        Ok(parse_owner(&succession.before).is_none_or(|(at_work, _)| !at_work))
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        if identity == self.session.kernel().store().identity()
            || self.session.kernel().planted(PlantedBug::TakeoverWithoutFence)
        {
            return Ok(());
        }
        self.session.kernel().store().fence(identity)
    }

    /// Reads the header.
    fn load(&self) -> Result<()> {
        let failed = |refusal| {
            failed(format_args!("the header of volume {:?} can't be read", self.name), refusal)
        };
        let (mut bits, mut discards) = (Bits::default(), BTreeMap::new());
        let header = self.session.kernel().all_keys(&name(self.id), Vec::new()).map_err(failed)?;
        for (key, value) in &header {
            if bits.learn(key, value).map_err(failed)? {
                continue;
            }
            if let Some(discard) = Discard::decode(key, value).map_err(failed)? {
                discards.insert(discard.stamp, discard);
            } else if key == LAST_DISCARD {
                self.last_discard.lock().number =
                    value.as_slice().try_into().map_or(0, u64::from_le_bytes);
            }
        }
        *self.bits.lock() = bits;
        *self.discards.lock() = discards.into_values().collect();
        self.cache.load(&header);
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
        let lease = Some(self.session.kernel().settings().lease);
        match self.session.kernel().store().lock(
            &name(self.id),
            LOCK,
            &self.session.kernel().cookie(),
            lease,
        ) {
            // The server renews again soon, and the fence protects the data until then.
            Ok(()) | Err(Refusal::Unknown) => Ok(()),
            Err(refusal) => {
                Err(failed(format_args!("the lock of volume {:?} is lost", self.name), refusal))
            }
        }
    }

    /// Closes in order: all writes are in the store, and the next owner need not rescan the
    /// objects.
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
                    owner(false, &self.session.kernel().store().identity()),
                )])],
            };
            if let Some(inline) = self.inline.as_ref().filter(|inline| inline.is_settled()) {
                op.guards.push(Guard::Omap(INLINE.to_vec(), stamp_value(inline.stamp())));
                op.changes.push(Change::DropOmap(vec![INLINE.to_vec()]));
            }
            match self.session.kernel().until_answered(&op) {
                // Our write was applied before, and its reply lost; or another server is the owner
                // now, and it rescanned the objects if need be.
                Ok(_) | Err(Refusal::Mismatch) => {}
                Err(refusal) => return Err(failed(refusal)),
            }
        }
        let me = Holder {
            identity: self.session.kernel().store().identity(),
            cookie: self.session.kernel().cookie(),
        };
        self.session.kernel().store().unlock(&name(self.id), LOCK, &me.cookie).map_err(failed)
    }

    /// Sets the size of a volume that is attached for writing. The objects beyond the size stay.
    pub(crate) fn set_size(&self, bytes: u64) {
        self.size.store(bytes, Relaxed);
    }
}

/// The change of a volume's owner.
struct Succession<'a> {
    volume: &'a Volume,
    header: &'a ObjectName,
    /// The value of the owner key before the change.
    before: Vec<u8>,
}

impl Operation<Vec<u8>> for Succession<'_> {
    fn decisions(&self) -> u32 {
        self.volume.session.kernel().settings().tries
    }

    fn look(&mut self) -> Result<Vec<u8>, Refusal> {
        self.volume.session.kernel().read_value(self.header, OWNER)
    }

    /// Shuts out the owner before, also one that closed: a copy of its last operations may still
    /// come.
    fn decide(&mut self, before: &Vec<u8>) -> Result<Option<Write>, Refusal> {
        let me = self.volume.me();
        if let Some((_, identity)) = parse_owner(before)
            && *before != me
        {
            self.volume.fence(&identity)?;
        }
        self.before.clone_from(before);
        let changes = match &self.volume.inline {
            Some(inline) => vec![Change::SetOmap(vec![
                (OWNER.to_vec(), me),
                (INLINE.to_vec(), stamp_value(inline.stamp())),
            ])],
            // The previous owner, which may have added references before their entries, is fenced.
            None => vec![
                Change::SetOmap(vec![(OWNER.to_vec(), me)]),
                Change::DropOmap(vec![INLINE.to_vec()]),
            ],
        };
        let guards = vec![Guard::Exists, Guard::Omap(OWNER.to_vec(), before.clone())];
        Ok(Some(Write { object: self.header.clone(), guards, changes }))
    }

    /// After a lost reply the owner is written once more. Our own entry then looks like that of an
    /// owner that did not close, so attaching rescans all objects, which only costs time.
    fn resolve(&self, _: &Vec<u8>) -> Fate {
        Fate::Overtaken
    }

    /// Without the header nothing is left to decide from.
    fn looks_after(&self, refusal: &Refusal) -> bool {
        matches!(refusal, Refusal::Mismatch)
    }
}
