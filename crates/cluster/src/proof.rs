//! The right of a server to serve, as far as it knows, where others stand by for it: [`gateway`](crate::gateway) has
//! the protocol.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_core::{
    Error, Kind, Replaced, Result,
    object::{Change, Guard, ObjectName, ObjectStore, Refusal, Write},
};
use parking_lot::Mutex;

use crate::{
    replies::{failed, until_answered},
    rules::Rule,
    settings::Settings,
};

/// The keys of the object that names the server at work: its name, as in the header of a volume, the beats,
/// who was shut out before it, the standby that last showed that a write gets through, and how many
/// takeovers in a row came to nothing, the one under way among them.
pub(crate) const NAME: &[u8] = b"o";
pub(crate) const BEAT: &[u8] = b"b";
pub(crate) const SHUT_OUT: &[u8] = b"s";
pub(crate) const WITNESS: &[u8] = b"w";
pub(crate) const TAKEOVERS: &[u8] = b"t";

/// All of them.
pub(crate) const KEYS: [&[u8]; 5] = [NAME, BEAT, SHUT_OUT, WITNESS, TAKEOVERS];

/// That object.
pub(crate) fn object() -> ObjectName {
    ObjectName::metadata("gateway")
}

/// When a server last showed that nobody had shut it out.
pub(crate) struct Proof {
    me: Vec<u8>,
    settings: Settings,
    beats: AtomicU64,
    /// When the last beat was sent that the store applied, in nanoseconds of the monotonic clock.
    proven: AtomicU64,
    /// The store refused something because another server took over. No beat is young after that, also one that
    /// a part of the store applies which has not heard of it.
    replaced: AtomicBool,
    /// The takeover came to something, and the object does not say so yet.
    settles: AtomicBool,
    /// Held while a beat is on its way.
    beating: Mutex<()>,
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Proof {
    pub(crate) fn new(me: Vec<u8>, proven: Duration, settings: &Settings) -> Proof {
        Proof {
            me,
            settings: settings.clone(),
            beats: AtomicU64::new(0),
            proven: AtomicU64::new(nanoseconds(proven)),
            replaced: AtomicBool::new(false),
            settles: AtomicBool::new(false),
            beating: Mutex::new(()),
        }
    }

    /// Called before anything is answered to a client: an answer that the store has no part in needs a beat
    /// that is young enough.
    ///
    /// # Errors
    /// As [`beat`](Self::beat).
    pub(crate) fn holds(&self, store: &dyn ObjectStore) -> Result<()> {
        if self.is_young(store) || !self.settings.keeps(Rule::AnswersProven) {
            return Ok(());
        }
        let _beating = self.beating.lock();
        if self.is_young(store) { Ok(()) } else { self.send(store) }
    }

    /// Shows that this server lives.
    ///
    /// # Errors
    /// `Stopped` when another one took over; the store's.
    pub(crate) fn beat(&self, store: &dyn ObjectStore) -> Result<()> {
        let _beating = self.beating.lock();
        self.send(store)
    }

    /// The takeover came to something: the next beat says so.
    pub(crate) fn settle(&self) {
        self.settles.store(true, Relaxed);
    }

    /// The error for a client: where another server has taken over, or may have while the store did not
    /// reply to this one, that is its cause.
    pub(crate) fn for_client(&self, store: &dyn ObjectStore, error: Error) -> Error {
        let replaced = match error.kind() {
            Kind::Stopped => {
                self.replaced.store(true, Relaxed);
                true
            }
            Kind::Io => !self.is_young(store),
            _ => false,
        };
        if replaced { error.caused_by(Replaced) } else { error }
    }

    pub(crate) fn is_young(&self, store: &dyn ObjectStore) -> bool {
        if self.replaced.load(Relaxed) {
            return false;
        }
        let age = nanoseconds(store.monotonic()).saturating_sub(self.proven.load(Relaxed));
        age < nanoseconds(self.settings.gateway_lease * 2 / 3)
    }

    fn send(&self, store: &dyn ObjectStore) -> Result<()> {
        let replaced = || {
            Error::new(
                Kind::Stopped,
                "another server has taken over and shut this one out: nothing of it is applied any more",
            )
        };
        if self.replaced.load(Relaxed) {
            return Err(replaced());
        }
        let settles = self.settles.load(Relaxed);
        let mut sent = store.monotonic();
        let answer = until_answered(self.settings.tries, || {
            // A number of its own for each try: who stands by sees that this server lives.
            let beat = self.beats.fetch_add(1, Relaxed) + 1;
            let mut changes =
                vec![Change::SetOmap(vec![(BEAT.to_vec(), beat.to_le_bytes().to_vec())])];
            if settles {
                changes.push(Change::DropOmap(vec![TAKEOVERS.to_vec()]));
            }
            let op = Write {
                object: object(),
                guards: vec![Guard::Exists, Guard::Omap(NAME.to_vec(), self.me.clone())],
                changes,
            };
            sent = store.monotonic();
            store.write(&[op]).pop().unwrap_or(Err(Refusal::Unknown))
        });
        match answer {
            Ok(_) => {
                self.proven.fetch_max(nanoseconds(sent), Relaxed);
                if settles {
                    self.settles.store(false, Relaxed);
                }
                Ok(())
            }
            Err(Refusal::Mismatch | Refusal::Fenced) => {
                self.replaced.store(true, Relaxed);
                Err(replaced())
            }
            Err(Refusal::Missing) => {
                // Who stands by makes it anew, and shuts nobody out.
                self.replaced.store(true, Relaxed);
                Err(Error::new(
                    Kind::Stopped,
                    "the object that names the server at work was removed: another server may take over",
                ))
            }
            Err(why) => Err(failed("this server can't show that it lives", why)),
        }
    }
}
