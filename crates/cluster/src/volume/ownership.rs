//! The ownership of a volume: the store's exclusive lock, and fencing.
//!
//! The lock only informs a second server that another one is writing. The fence is what keeps away
//! a server that was stopped and wakes up again. Once our session owns the volume, the store
//! applies nothing more of the previous owner, whether its lock has expired or not.
//!
//! A session may attach a volume more than once, and the header names it by the same value each time. So the header
//! also has an *attachment*, a stamp.
//!
//! *Invariant:* no pair of owner and attachment comes a second time but by an operation that compares this very
//! pair. Each operation that changes the owner compares both, so that a late copy of one does nothing.

use std::{
    ops::ControlFlow::{Break, Continue},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::{
    Result,
    object::{Change, Guard, ObjectName, ReadPart, Refusal, Write},
};
use parking_lot::Mutex;

use super::header::{ATTACHMENT, INLINE, Inline, LOCK, OWNER, name};
use crate::{
    chunk_map::stamp_value,
    format::Stamp,
    kernel::{Fate, Kernel, Operation},
    proof::nanoseconds,
    replies::failed,
    rules::Rule,
    session::Session,
};

/// The owner as the header names it: `!` and its identity while it is at work, `=` and its identity
/// after it closed.
pub(crate) fn owner(at_work: bool, identity: &str) -> Vec<u8> {
    [if at_work { b"!" } else { b"=" }, identity.as_bytes()].concat()
}

/// The identity of an owner, and whether it is at work.
pub(crate) fn parse_owner(value: &[u8]) -> Option<(bool, String)> {
    let (first, identity) = value.split_first()?;
    Some((*first == b'!', String::from_utf8_lossy(identity).into_owned()))
}

/// The right of one session to write to a volume.
pub(super) struct Ownership {
    session: Arc<Session>,
    volume: u64,
    /// The name that the volume was attached by, for errors.
    name: String,
    /// The right to make references before their entries, where writes are deduplicated as they
    /// come.
    inline: Option<Arc<Inline>>,
    /// The attachment of this owner.
    stamp: Stamp,
    /// The value of the owner before.
    replaced: Mutex<Vec<u8>>,
    /// When the last request for the lock was sent that the store confirmed, in nanoseconds of the monotonic
    /// clock.
    locked: AtomicU64,
}

impl Ownership {
    pub(super) fn new(
        session: Arc<Session>,
        volume: u64,
        name: &str,
        inline: Option<Arc<Inline>>,
    ) -> Ownership {
        let (name, stamp) = (name.to_owned(), session.kernel().stamp());
        let (replaced, locked) = (Mutex::default(), AtomicU64::new(0));
        Ownership { session, volume, name, inline, stamp, replaced, locked }
    }

    fn kernel(&self) -> &Kernel {
        self.session.kernel()
    }

    fn me(&self) -> Vec<u8> {
        owner(true, &self.kernel().store().identity())
    }

    /// What an operation compares while this attachment is the owner.
    fn guards(&self) -> Vec<Guard> {
        Owned { owner: self.me(), attachment: stamp_value(self.stamp) }.guards()
    }

    /// Acquires the lock and becomes the owner; true when the previous owner closed in order.
    pub(super) fn acquire(&self, take_over: bool) -> Result<bool, Refusal> {
        let (kernel, header) = (self.kernel(), name(self.volume));
        let store = kernel.store();
        let mut busy = false;
        let locked = kernel.retry(|| {
            busy = false;
            match self.lock() {
                Err(Refusal::Busy) if take_over => {
                    if let Some(holder) = store.holder(&header, LOCK)? {
                        self.fence(&holder.identity)?;
                        store.break_lock(&header, LOCK, &holder)?;
                    }
                    busy = true;
                    Ok(Continue(()))
                }
                Err(Refusal::Busy) if !self.session.shut_out().lock().is_empty() => {
                    busy = true;
                    match store.holder(&header, LOCK)? {
                        Some(holder)
                            if !self.session.shut_out().lock().contains(&holder.identity) =>
                        {
                            Err(Refusal::Busy)
                        }
                        Some(holder) => {
                            store.break_lock(&header, LOCK, &holder).map(|()| Continue(()))
                        }
                        None => Ok(Continue(())),
                    }
                }
                Err(Refusal::Unknown) => Ok(Continue(())),
                other => other.map(Break),
            }
        });
        locked.map_err(|refusal| if busy { Refusal::Busy } else { refusal })?;
        let owned = self.succeed(&header);
        if matches!(owned, Err(Refusal::Denied(_))) {
            // This session may not fence, so it leaves the lock to a server that may. If unlocking
            // fails, the lock ends with its lease.
            let _ = store.unlock(&header, LOCK, &self.kernel().cookie());
        }
        owned
    }

    /// Fences the previous owner, and becomes the owner.
    fn succeed(&self, header: &ObjectName) -> Result<bool, Refusal> {
        let mut succession = Succession { ownership: self, header, before: Vec::new() };
        self.kernel().carry_out(&mut succession)?;
        Ok(parse_owner(&succession.before).is_none_or(|(at_work, _)| !at_work))
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        if identity == self.kernel().store().identity()
            || !self.kernel().keeps(Rule::TakeoverFences)
        {
            return Ok(());
        }
        self.kernel().store().fence(identity)
    }

    /// Asks for the lock, or for more time.
    fn lock(&self) -> Result<(), Refusal> {
        let kernel = self.kernel();
        let (store, lease) = (kernel.store(), kernel.settings().volume_lease);
        let sent = store.monotonic();
        store.lock(&name(self.volume), LOCK, &kernel.cookie(), Some(lease))?;
        self.locked.fetch_max(nanoseconds(sent), Relaxed);
        Ok(())
    }

    /// True while the lock keeps all others away that do not shut this session out, as far as the clock of this
    /// host tells.
    pub(super) fn is_locked(&self) -> bool {
        let kernel = self.kernel();
        let age = nanoseconds(kernel.store().monotonic()).saturating_sub(self.locked.load(Relaxed));
        age < nanoseconds(kernel.settings().volume_lease * 2 / 3)
    }

    /// True when another session owned the volume before, be it that it closed in order.
    pub(super) fn was_of_another(&self) -> bool {
        let identity = self.kernel().store().identity();
        parse_owner(&self.replaced.lock()).is_some_and(|(_, before)| before != identity)
    }

    /// Keeps the lock.
    pub(super) fn renew(&self) -> Result<()> {
        match self.lock() {
            // The server renews again soon, and the fence protects the data until then.
            Ok(()) | Err(Refusal::Unknown) => Ok(()),
            Err(refusal) => {
                self.locked.store(0, Relaxed);
                Err(failed(
                    format_args!("the lock of volume '{}' is lost", self.name.escape_debug()),
                    refusal,
                ))
            }
        }
    }

    /// Gives the ownership back before anything was written: the header names the owner before again, which was
    /// shut out, with an attachment that never was. If the store does not answer, the lock ends with its lease.
    pub(super) fn give_back(self) {
        let (kernel, header) = (self.kernel(), name(self.volume));
        let before = self.replaced.lock().clone();
        let mut drops = vec![INLINE.to_vec()];
        let mut pairs = vec![(ATTACHMENT.to_vec(), stamp_value(kernel.stamp()))];
        if before.is_empty() {
            drops.push(OWNER.to_vec());
        } else {
            pairs.push((OWNER.to_vec(), before));
        }
        let _ = kernel.until_answered(&Write {
            object: header.clone(),
            guards: self.guards(),
            changes: vec![Change::DropOmap(drops), Change::SetOmap(pairs)],
        });
        let _ = kernel.store().unlock(&header, LOCK, &kernel.cookie());
    }

    /// Gives the number up for good, as a layer that nobody attaches for writing any more: it has no owner whom its
    /// deletion would shut out. False where the store does not answer: then it is tried again.
    pub(super) fn resign(self) -> bool {
        let (mut guards, mut keys) = (self.guards(), vec![OWNER.to_vec()]);
        if let Some(inline) = self.inline.as_ref().filter(|inline| inline.is_certain()) {
            guards.push(Guard::Omap(INLINE.to_vec(), stamp_value(inline.stamp())));
            keys.push(INLINE.to_vec());
        }
        self.session.leaving().leave(self.kernel(), self.volume, (guards, keys))
    }

    /// Gives the ownership up. The header tells so where the header and the dirty list lack nothing
    /// about any object: then the next owner need not rescan the objects, and finds the `hits`, which are keys
    /// of the header with their values.
    pub(super) fn release(self, all_recorded: bool, hits: Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
        let failed = |refusal| {
            failed(format_args!("volume '{}' can't be closed", self.name.escape_debug()), refusal)
        };
        let (kernel, header) = (self.kernel(), name(self.volume));
        if all_recorded {
            let mut op = Write {
                object: header.clone(),
                guards: self.guards(),
                changes: vec![Change::SetOmap(vec![(
                    OWNER.to_vec(),
                    owner(false, &kernel.store().identity()),
                )])],
            };
            if let Some(inline) = self.inline.as_ref().filter(|inline| inline.is_certain()) {
                op.guards.push(Guard::Omap(INLINE.to_vec(), stamp_value(inline.stamp())));
                op.changes.push(Change::DropOmap(vec![INLINE.to_vec()]));
            }
            let without = op.clone();
            op.changes.extend((!hits.is_empty()).then_some(Change::SetOmap(hits)));
            let answer = match kernel.until_answered(&op) {
                // Advice may have no room where the end has.
                Err(Refusal::Full | Refusal::Failed(_)) => kernel.until_answered(&without),
                answer => answer,
            };
            match answer {
                // Our write was applied before, and its reply lost; or another server is the owner
                // now, and it rescanned the objects if need be.
                Ok(_) | Err(Refusal::Mismatch) => {}
                Err(refusal) => return Err(failed(refusal)),
            }
        }
        kernel.store().unlock(&header, LOCK, &kernel.cookie()).map_err(failed)
    }
}

/// What the header says of the owner.
struct Owned {
    owner: Vec<u8>,
    /// Empty in a header that only older versions attached.
    attachment: Vec<u8>,
}

impl Owned {
    fn guards(&self) -> Vec<Guard> {
        let guard = |key: &[u8], value: &Vec<u8>| Guard::Omap(key.to_vec(), value.clone());
        vec![Guard::Exists, guard(OWNER, &self.owner), guard(ATTACHMENT, &self.attachment)]
    }
}

/// The change of a volume's owner.
struct Succession<'a> {
    ownership: &'a Ownership,
    header: &'a ObjectName,
    /// The value of the owner key before the change.
    before: Vec<u8>,
}

impl Operation<Owned> for Succession<'_> {
    fn decisions(&self) -> u32 {
        self.ownership.kernel().settings().tries
    }

    fn look(&mut self) -> Result<Owned, Refusal> {
        let keys = vec![OWNER.to_vec(), ATTACHMENT.to_vec()];
        let answer = self.ownership.kernel().read_one(self.header, vec![ReadPart::Keys(keys)])?;
        let value = |key: &[u8]| {
            let found = answer.pairs(0).0.iter().find(|(name, _)| name == key);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        Ok(Owned { owner: value(OWNER), attachment: value(ATTACHMENT) })
    }

    /// Shuts out the owner before, also one that closed: a copy of its last operations may still
    /// come.
    fn decide(&mut self, before: &Owned) -> Result<Option<Write>, Refusal> {
        let me = self.ownership.me();
        let attachment = stamp_value(self.ownership.stamp);
        if let Some((_, identity)) = parse_owner(&before.owner)
            && before.owner != me
        {
            self.ownership.fence(&identity)?;
        }
        self.before.clone_from(&before.owner);
        // After a lost reply it is our own. Another one may have come and gone since the last decision, and left
        // its value: the next owner is to shut that one out.
        if before.owner != me || before.attachment != attachment {
            self.ownership.replaced.lock().clone_from(&before.owner);
        }
        let mut pairs = vec![(OWNER.to_vec(), me), (ATTACHMENT.to_vec(), attachment)];
        let changes = match &self.ownership.inline {
            Some(inline) => {
                pairs.push((INLINE.to_vec(), stamp_value(inline.stamp())));
                vec![Change::SetOmap(pairs)]
            }
            // The previous owner, which may have added references before their entries, is fenced.
            None => vec![Change::SetOmap(pairs), Change::DropOmap(vec![INLINE.to_vec()])],
        };
        Ok(Some(Write { object: self.header.clone(), guards: before.guards(), changes }))
    }

    /// After a lost reply the owner is written once more. Our own entry then looks like that of an
    /// owner that did not close, so attaching rescans all objects, which only costs time.
    fn resolve(&self, _: &Owned) -> Fate {
        Fate::Overtaken
    }

    /// Without the header nothing is left to decide from.
    fn looks_after(&self, refusal: &Refusal) -> bool {
        matches!(refusal, Refusal::Mismatch)
    }
}
