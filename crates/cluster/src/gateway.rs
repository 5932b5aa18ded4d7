//! The server at work, where several stand by for each other.
//!
//! One object names that server, and counts its *beats*: about every second it writes a higher number.
//! The others read it twice a second. When the number has not changed for [`gateway_lease`] they show that a
//! write reaches the object, shut that server out, and one of them puts its own name in the place of the other's.
//! The last step compares the version of the object: no beat was applied since the number was seen last.
//!
//! A fence reaches a part of the store at the latest with the first operation that the fencer sends there.
//! Until then the server before may beat on, since the fence may take longer than the time for which it was
//! still. Such a beat changes the version, and the standby looks again.
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
//! | the store takes no writes for a while, or only reads are answered | no standby shuts anybody out |
//! | the server is continued while a standby shuts it out | its beat makes the standby look again; the store refuses it soon |
//! | a reply is lost | the next look shows whose name is there |
//! | a copy of a beat, or of a takeover, comes late | it compares a version, or a name that never comes back: each session has one of its own |
//! | a server takes over and can't serve, or is killed before it does, and the next one likewise | each waits longer than the one before: they count their takeovers in the object until one serves |
//! | the object names what is no session | nobody can be shut out by that: a repair removes it |
//! | a clock is set | nothing |
//!
//! [`gateway_lease`]: crate::Settings::gateway_lease

use std::{sync::Arc, time::Duration};

use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, ReadPart, Refusal, Version, Write},
};

use crate::{
    proof::{BEAT, NAME, Proof, SHUT_OUT, TAKEOVERS, WITNESS, object},
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

/// Sessions that were shut out one after the other, and are remembered in the object at most. The locks of those
/// before have run out.
const SHUT_OUT_MAX: usize = 16;

/// After the first takeover that failed those that stand by wait for so long as two looks count at most, after
/// each further one in a row twice as long, and this often at most.
const PAUSE_DOUBLES: u32 = 6;

/// A session that waits until it may serve the store.
pub struct Standby {
    session: Arc<Session>,
    /// It has the right to shut others out, as was seen when it began.
    may_fence: bool,
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

/// The object as one read found it.
struct State {
    version: Version,
    name: Vec<u8>,
    beat: Vec<u8>,
    /// Who was shut out, the last one at the end.
    shut_out: Vec<String>,
    /// Takeovers since one served.
    takeovers: u32,
}

impl State {
    /// True for what another look found the same.
    fn is(&self, seen: &Seen) -> bool {
        (&self.name, &self.beat) == (&seen.name, &seen.beat)
    }
}

/// The sessions that were shut out one after the other, as the object has them: each on a line.
fn parse_chain(value: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(value);
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The result of a look.
pub enum Found {
    /// This session serves the store from now on.
    Mine(Gateway),
    /// Another session does; its beats stand still for so long.
    Serves(String, Duration),
    /// Another server, which others do not stand by for, writes this volume.
    Writes(String),
    /// So many takeovers in a row have failed; this session waits for so long yet.
    Waits(u32, Duration),
    /// Another session was faster, or this one was away: the next look tells more.
    LooksAgain,
}

impl Standby {
    /// Begins to wait.
    #[must_use]
    pub fn new(session: Arc<Session>) -> Standby {
        Standby { session, may_fence: false, seen: None, before: None, others: None, looked: None }
    }

    /// Looks once, and takes over when it is time to; to be called twice a second.
    ///
    /// # Errors
    /// `Denied` when this session has no right to shut another one out, already at the first look. `Corrupt` when
    /// what is named as the server at work is none. The store's.
    pub fn look(&mut self) -> Result<Found> {
        let session = self.session.clone();
        let (kernel, store) = (session.kernel(), session.store());
        if !self.may_fence {
            // At the takeover it would be too late to learn that.
            until_answered(kernel.settings().tries, || store.may_fence())
                .map_err(|why| failed("this server can't stand by", why))?;
            self.may_fence = true;
        }
        let begun = store.monotonic();
        let state = self.read()?;
        let ended = store.monotonic();
        if state.name == owner(true, &store.identity()) {
            // An operation of ours without a reply was applied. Whether we were shut out since, a beat tells.
            let gateway = self.mine(Duration::ZERO);
            return gateway.beat().map(|()| Found::Mine(gateway));
        }
        let Some((true, identity)) = parse_owner(&state.name) else {
            // Nobody is to be shut out, so a server that others do not stand by for may be at work.
            if let Some(volume) = self.volume_of_others()? {
                return Ok(Found::Writes(volume));
            }
            let pause = self.pause(state.takeovers);
            if !pause.is_zero() {
                let still = self.count(&state, begun, ended);
                if still < pause {
                    return Ok(Found::Waits(state.takeovers, pause - still));
                }
            }
            return self.succeed(&state, state.version, None);
        };
        if !store.is_identity(&identity) {
            let what = format!(
                "'{}' is named as the server at work, and is no server that could be shut out; `onefold \
                 repair` removes that",
                identity.escape_debug()
            );
            return Err(Error::new(Kind::Corrupt, what));
        }
        let still = self.count(&state, begun, ended);
        if still < kernel.settings().gateway_lease + self.pause(state.takeovers) {
            return Ok(Found::Serves(identity, still));
        }
        match self.shut_out(&state, &identity)? {
            Some(version) => self.succeed(&state, version, Some(identity)),
            None => Ok(Found::LooksAgain),
        }
    }

    /// Reads the object, and makes it when it is missing: a store that gets full later takes changes of it.
    fn read(&self) -> Result<State> {
        let kernel = self.session.kernel();
        let keys = || {
            let keys = [NAME, BEAT, SHUT_OUT, TAKEOVERS];
            vec![ReadPart::Keys(keys.map(Into::into).into())]
        };
        let mut read = kernel.read_one(&object(), keys());
        if matches!(read, Err(Refusal::Missing)) {
            let op = Write { object: object(), guards: vec![Guard::Absent], changes: vec![] };
            match kernel.until_answered(&op) {
                Ok(_) | Err(Refusal::Exists) => {}
                Err(why) => return Err(failed("the server at work can't be named", why)),
            }
            read = kernel.read_one(&object(), keys());
        }
        let read = read.map_err(|why| failed("the server at work can't be looked up", why))?;
        let value = |key: &[u8]| {
            let found = read.pairs(0).0.iter().find(|(found, _)| found == key);
            found.map_or(Vec::new(), |(_, value)| value.clone())
        };
        Ok(State {
            version: read.version,
            name: value(NAME),
            beat: value(BEAT),
            shut_out: parse_chain(&value(SHUT_OUT)),
            takeovers: value(TAKEOVERS).try_into().map_or(0, u32::from_le_bytes),
        })
    }

    fn step(&self) -> Duration {
        self.session.kernel().settings().gateway_lease / STEPS
    }

    /// How long those that stand by wait after so many takeovers of which none served.
    fn pause(&self, takeovers: u32) -> Duration {
        match takeovers {
            1.. if self.session.kernel().keeps(Rule::FailedTakeoversPause) => {
                self.step() * (1 << (takeovers - 1).min(PAUSE_DOUBLES))
            }
            _ => Duration::ZERO,
        }
    }

    /// Counts for how long one state was seen.
    fn count(&mut self, state: &State, begun: Duration, ended: Duration) -> Duration {
        let (kernel, step) = (self.session.kernel(), self.step());
        match &mut self.seen {
            Some(seen) if state.is(seen) => {
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
                let (name, beat) = (state.name.clone(), state.beat.clone());
                *seen = Some(Seen { name, beat, last: ended, first, still: Duration::ZERO });
                Duration::ZERO
            }
        }
    }

    /// Shuts out the server of this state; gives the version of the object at which it was still. Nothing when
    /// the next look is to tell.
    fn shut_out(&self, state: &State, identity: &str) -> Result<Option<Version>> {
        let (session, kernel) = (&self.session, self.session.kernel());
        let store = kernel.store();
        if session.shut_out().lock().contains(identity) || !kernel.keeps(Rule::StandbyFences) {
            return Ok(Some(state.version));
        }
        // Where only reads are answered the beats may stand still because the store takes no writes. So a
        // write shows that it does, and that no beat came since the look. Neither it nor the fence is sent
        // again after a lost reply: the server may live again then.
        let sent = store.monotonic();
        let op = Write {
            object: object(),
            guards: vec![Guard::Exists, Guard::Version(state.version)],
            changes: vec![Change::SetOmap(vec![(WITNESS.to_vec(), store.identity().into_bytes())])],
        };
        let version = match store.write(&[op]).pop().unwrap_or(Err(Refusal::Unknown)) {
            Ok(version) => version,
            Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => return Ok(None),
            Err(why) => {
                return Err(failed("the server at work is still, and so is the store", why));
            }
        };
        if store.monotonic().saturating_sub(sent) > self.step() {
            // What was seen is old: the server may have begun to live again.
            return Ok(None);
        }
        match store.fence(identity) {
            Ok(()) => {}
            Err(Refusal::Unknown) => return Ok(None),
            Err(why) => {
                return Err(failed(
                    "the server that does not answer any more can't be shut out",
                    why,
                ));
            }
        }
        session.shut_out().lock().insert(identity.to_owned());
        Ok(Some(version))
    }

    /// Takes the place of `before`, which was shut out, or of nobody, in the state that has this version.
    fn succeed(
        &mut self,
        state: &State,
        version: Version,
        before: Option<String>,
    ) -> Result<Found> {
        let session = self.session.clone();
        let kernel = session.kernel();
        let mut guards = vec![Guard::Exists, Guard::Omap(NAME.to_vec(), state.name.clone())];
        if kernel.keeps(Rule::TakeoverComparesBeat) {
            guards.push(Guard::Version(version));
        }
        let mut chain = state.shut_out.clone();
        chain.retain(|identity| Some(identity) != before.as_ref());
        chain.extend(before.clone());
        chain.drain(..chain.len().saturating_sub(SHUT_OUT_MAX));
        let me = owner(true, &kernel.store().identity());
        let op = Write {
            object: object(),
            guards,
            changes: vec![Change::SetOmap(vec![
                (NAME.to_vec(), me),
                (BEAT.to_vec(), 0u64.to_le_bytes().to_vec()),
                (SHUT_OUT.to_vec(), chain.join("\n").into_bytes()),
                (TAKEOVERS.to_vec(), state.takeovers.saturating_add(1).to_le_bytes().to_vec()),
            ])],
        };
        self.before = before;
        // The locks of all who were shut out are no obstacle.
        session.shut_out().lock().extend(chain);
        let sent = kernel.store().monotonic();
        match kernel.until_answered(&op) {
            Ok(_) => Ok(Found::Mine(self.mine(sent))),
            // Another one was faster, the server before beat once more, or an earlier copy of ours was
            // applied: the next look tells.
            Err(Refusal::Mismatch | Refusal::Missing) => Ok(Found::LooksAgain),
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
    fn volume_of_others(&mut self) -> Result<Option<String>> {
        let now = self.session.store().monotonic();
        let lease = self.session.volume_lease();
        let lately = |at: Duration, part: u32| now.saturating_sub(at) < lease / part;
        if !self.looked.is_some_and(|looked| lately(looked, LOOKS_FOR_OTHERS)) {
            if let Some(volume) = written_by_another(&self.session)? {
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

    /// The sessions that were shut out one after the other until this one serves: volumes of each may be left.
    #[must_use]
    pub fn shut_out(&self) -> Vec<String> {
        self.session.shut_out().lock().iter().cloned().collect()
    }

    /// Shows that this session lives; to be called every second.
    ///
    /// # Errors
    /// `Stopped` when another session took over; the store's.
    pub fn beat(&self) -> Result<()> {
        let proof = self.session.proof().get();
        proof.map_or(Ok(()), |proof| proof.beat(self.session.store()))
    }

    /// Its clients are served: with the next beat takeovers before it that failed count no more.
    pub fn settle(&self) {
        if let Some(proof) = self.session.proof().get() {
            proof.settle();
        }
    }

    /// Lets another session take over at once, after an orderly end. All volumes must be closed.
    ///
    /// # Errors
    /// The store's.
    pub fn give_up(&self) -> Result<()> {
        self.leave(vec![Change::DropOmap(vec![TAKEOVERS.to_vec()])])
    }

    /// Lets another session take over, although this one had to end: when it never served, the next one waits
    /// for a while. All volumes must be closed.
    ///
    /// # Errors
    /// The store's.
    pub fn fail(&self) -> Result<()> {
        self.leave(Vec::new())
    }

    fn leave(&self, mut changes: Vec<Change>) -> Result<()> {
        let kernel = self.session.kernel();
        let identity = kernel.store().identity();
        changes.push(Change::SetOmap(vec![(NAME.to_vec(), owner(false, &identity))]));
        let op = Write {
            object: object(),
            guards: vec![Guard::Exists, Guard::Omap(NAME.to_vec(), owner(true, &identity))],
            changes,
        };
        match kernel.until_answered(&op) {
            // It was applied before, and its reply lost; or another session took over.
            Ok(_) | Err(Refusal::Mismatch) => Ok(()),
            Err(why) => Err(failed("this server can't tell that it ends", why)),
        }
    }
}
