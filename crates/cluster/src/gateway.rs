//! The server at work, where several stand by for each other.
//!
//! One object names that server, and counts its *beats*: about every second it writes a higher number.
//! The others read it twice a second. When the number has not changed for [`gateway_lease`] they shut that
//! server out, and one of them puts its own name in the place of the other's, by compare.
//!
//! Nobody compares clocks. A standby counts how long it saw one number, by a monotonic clock of its own, and
//! counts only what the store answered at once: while the store stands still, the beats do, too. A server
//! answers from its own memory only while its last beat is younger than two thirds of the lease; after
//! that it writes one first, and hears that it was shut out. All else it asks the store, which refuses.
//!
//! | what happens | what becomes of it |
//! |---|---|
//! | the server is killed, or cut off from the store | its beats stop, and a standby takes over |
//! | it is stopped, and continued after a takeover | the store refuses what it has on its way; its last beat is too old to answer without the store; it ends |
//! | it is stopped, and continued before | the next beat is seen, and the count begins anew |
//! | a standby is killed before it has named itself | the other server may be shut out already; the next standby sees the same number stand still |
//! | a standby is killed after it has named itself | the next one sees that its beats do not begin |
//! | a standby is stopped anywhere, and continued when another one has taken over | it shuts out again who was shut out, and its name finds another one than it compares |
//! | a reply is lost | the next look shows whose name is there |
//! | a copy of a beat, or of a takeover, comes late | it compares a name that never comes back: each session has one of its own |
//! | a clock is set | nothing |
//!
//! [`gateway_lease`]: crate::Settings::gateway_lease

use std::{sync::Arc, time::Duration};

use onefold_core::{
    Result,
    object::{Change, Guard, ReadPart, Refusal, Write},
};

use crate::{
    proof::{BEAT, NAME, Proof, object},
    replies::{failed, until_answered},
    rules::Rule,
    session::Session,
    volume::{owner, owners::written_by_another, parse_owner},
};

/// The part of the lease that two looks count at most, however far apart they lie; a look that took longer
/// counts nothing. So neither a store that stands still nor a standby that was stopped ends a server that
/// lives.
const STEPS: u32 = 9;

/// The part of a volume's lease after which the volumes of others are looked for again.
const LOOKS_FOR_OTHERS: u32 = 4;

/// The part of a volume's lease for which no volume may have been another server's: it renews its lock more
/// often, whatever the clock of the store did meanwhile.
const OTHERS_GONE: u32 = 2;

/// A session that waits until it may serve the store.
pub struct Standby {
    session: Arc<Session>,
    seen: Option<Seen>,
    /// Who was shut out last, or gave the work up: the one before, if the name is found to be ours.
    before: Option<String>,
    /// When another server's volume was last seen, and which; when they were last looked for.
    others: Option<(Duration, String)>,
    looked: Option<Duration>,
}

/// The state of the object, and for how long it was seen.
struct Seen {
    name: Vec<u8>,
    beat: Vec<u8>,
    /// When it was last seen, and first.
    last: Duration,
    first: Duration,
    still: Duration,
}

/// The result of a look.
pub enum Found {
    /// This session serves the store from now on.
    Mine(Gateway),
    /// Another session does; its beats stand still for so long.
    Serves(String, Duration),
    /// Another server, which others do not stand by for, writes this volume.
    Writes(String),
    /// Another session was faster, or this one was away: the next look tells more.
    LooksAgain,
}

impl Standby {
    /// Begins to wait.
    #[must_use]
    pub fn new(session: Arc<Session>) -> Standby {
        Standby { session, seen: None, before: None, others: None, looked: None }
    }

    /// Looks once, and takes over when it is time to; to be called twice a second.
    ///
    /// # Errors
    /// `Denied` when this session has no right to shut another one out; the store's.
    pub fn look(&mut self) -> Result<Found> {
        let session = self.session.clone();
        let (kernel, store) = (session.kernel(), session.store());
        let begun = store.monotonic();
        let read = kernel.read_one(&object(), vec![ReadPart::Keys(vec![NAME.into(), BEAT.into()])]);
        let read = match read {
            Err(Refusal::Missing) => None,
            other => {
                Some(other.map_err(|why| failed("the server at work can't be looked up", why))?)
            }
        };
        let ended = store.monotonic();
        let value = |key: &[u8]| {
            let pairs = read.as_ref().map_or(&[][..], |read| read.pairs(0).0);
            pairs
                .iter()
                .find(|(found, _)| found == key)
                .map_or(Vec::new(), |(_, value)| value.clone())
        };
        let (name, beat) = (value(NAME), value(BEAT));
        if name == owner(true, &store.identity()) {
            // An operation of ours without a reply was applied.
            return Ok(Found::Mine(self.mine(begun)));
        }
        let at_work = match parse_owner(&name) {
            Some((true, identity)) => Some(identity),
            _ => None,
        };
        let Some(identity) = at_work else { return self.succeed(&name, read.is_some(), None) };
        let still = self.count(name.clone(), beat, begun, ended);
        if still < kernel.settings().gateway_lease {
            return Ok(Found::Serves(identity, still));
        }
        if store.monotonic().saturating_sub(begun) > self.step() {
            // What was seen is old: the server may have begun to live again.
            return Ok(Found::LooksAgain);
        }
        self.succeed(&name, true, Some(identity))
    }

    fn step(&self) -> Duration {
        self.session.kernel().settings().gateway_lease / STEPS
    }

    /// Counts for how long one state was seen.
    fn count(
        &mut self,
        name: Vec<u8>,
        beat: Vec<u8>,
        begun: Duration,
        ended: Duration,
    ) -> Duration {
        let (kernel, step) = (self.session.kernel(), self.step());
        match &mut self.seen {
            Some(seen) if seen.name == name && seen.beat == beat => {
                if ended.saturating_sub(begun) <= step {
                    seen.still += begun.saturating_sub(seen.last).min(step);
                }
                seen.last = ended;
                if !kernel.keeps(Rule::StillByOwnClock) {
                    seen.still = kernel.store().time().saturating_sub(seen.first);
                }
                seen.still
            }
            seen => {
                let first = kernel.store().time();
                *seen = Some(Seen { name, beat, last: ended, first, still: Duration::ZERO });
                Duration::ZERO
            }
        }
    }

    /// Takes the place of `before`, which is shut out first.
    fn succeed(&mut self, name: &[u8], there: bool, before: Option<String>) -> Result<Found> {
        let session = self.session.clone();
        let kernel = session.kernel();
        if let Some(identity) = &before
            && !session.shut_out().lock().contains(identity)
            && kernel.keeps(Rule::StandbyFences)
        {
            let fenced = until_answered(kernel.settings().tries, || kernel.store().fence(identity));
            fenced.map_err(|why| {
                failed("the server that does not answer any more can't be shut out", why)
            })?;
            session.shut_out().lock().insert(identity.clone());
        }
        if let Some(volume) = self.volume_of_others(before.as_deref())? {
            return Ok(Found::Writes(volume));
        }
        let guards = match there {
            true => vec![Guard::Exists, Guard::Omap(NAME.to_vec(), name.to_vec())],
            false => vec![Guard::Absent],
        };
        let me = owner(true, &kernel.store().identity());
        let op = Write {
            object: object(),
            guards,
            changes: vec![Change::SetOmap(vec![
                (NAME.to_vec(), me),
                (BEAT.to_vec(), 0u64.to_le_bytes().to_vec()),
            ])],
        };
        self.before = before;
        let sent = kernel.store().monotonic();
        match kernel.until_answered(&op) {
            Ok(_) => Ok(Found::Mine(self.mine(sent))),
            // Another one was faster, or an earlier copy of ours was applied: the next look tells.
            Err(Refusal::Mismatch | Refusal::Exists | Refusal::Missing) => Ok(Found::LooksAgain),
            Err(why) => Err(failed("this server can't take over", why)),
        }
    }

    fn mine(&mut self, proven: Duration) -> Gateway {
        let kernel = self.session.kernel();
        // Of two calls the first one counts.
        let me = owner(true, &kernel.store().identity());
        let _ = self.session.proof().set(Proof::new(me, proven, kernel.settings()));
        Gateway { session: self.session.clone(), before: self.before.take() }
    }

    /// A volume that another server writes which does not stand by: one is seen, or one was until lately.
    fn volume_of_others(&mut self, before: Option<&str>) -> Result<Option<String>> {
        let now = self.session.store().monotonic();
        let lease = self.session.volume_lease();
        let lately = |at: Duration, part: u32| now.saturating_sub(at) < lease / part;
        if !self.looked.is_some_and(|looked| lately(looked, LOOKS_FOR_OTHERS)) {
            if let Some(volume) = written_by_another(&self.session, before)? {
                self.others = Some((now, volume));
            }
            self.looked = Some(now);
        }
        let others = self.others.as_ref().filter(|(seen, _)| lately(*seen, OTHERS_GONE));
        Ok(others.map(|(_, volume)| volume.clone()))
    }
}

/// The server at work that others may stand by for, by the name under which it would be shut out.
///
/// # Errors
/// The store's.
pub fn server_at_work(session: &Session) -> Result<Option<String>> {
    let value = match session.kernel().read_value(&object(), NAME) {
        Err(Refusal::Missing) => return Ok(None),
        other => other.map_err(|why| failed("the server at work can't be looked up", why))?,
    };
    Ok(parse_owner(&value).and_then(|(at_work, identity)| at_work.then_some(identity)))
}

/// The right of a session to serve the store. Dropped without [`give_up`](Self::give_up) it stays until
/// another session takes over.
pub struct Gateway {
    session: Arc<Session>,
    before: Option<String>,
}

impl Gateway {
    /// The session that was shut out, when the one before did not give up.
    #[must_use]
    pub fn before(&self) -> Option<&str> {
        self.before.as_deref()
    }

    /// Shows that this session lives; to be called every second.
    ///
    /// # Errors
    /// `Stopped` when another session took over; the store's.
    pub fn beat(&self) -> Result<()> {
        let proof = self.session.proof().get();
        proof.map_or(Ok(()), |proof| proof.beat(self.session.store()))
    }

    /// Lets another session take over at once. All volumes must be closed.
    ///
    /// # Errors
    /// The store's.
    pub fn give_up(&self) -> Result<()> {
        let kernel = self.session.kernel();
        let identity = kernel.store().identity();
        let op = Write {
            object: object(),
            guards: vec![Guard::Exists, Guard::Omap(NAME.to_vec(), owner(true, &identity))],
            changes: vec![Change::SetOmap(vec![(NAME.to_vec(), owner(false, &identity))])],
        };
        match kernel.until_answered(&op) {
            // It was applied before, and its reply lost; or another session took over.
            Ok(_) | Err(Refusal::Mismatch) => Ok(()),
            Err(why) => Err(failed("this server can't tell that it ends", why)),
        }
    }
}
