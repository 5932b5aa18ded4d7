//! A volume as its clients have it: it stays theirs while snapshots and clones are made of it.
//!
//! A snapshot makes a layer of the number that a volume has, and gives the volume another one
//! ([`snapshots`](crate::layers::snapshots)). Its clients see nothing of that but a delay: those who ask for
//! something meanwhile wait.
//!
//! *Invariant:* whoever makes a layer of the number has the volume alone. Each write that came before is over, and its
//! ticket keeps the result. Each that comes later goes to the new number.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use onefold_core::{BlockRead, Changes, Error, Extent, Kind, Result, Ticket, object::Refusal};
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::{
    Mode, Volume,
    attach::missing,
    header,
    long_discards::HeldBack,
    ownership::{Ownership, parse_owner},
    queue::Tickets,
    trims_first::{GoesOn, Wait, always},
};
use crate::{
    format::catalogue::Named,
    layers::snapshots::{Moved, Snapshots},
    replies::failed,
    rules::Rule,
    session::Session,
};

/// How long a step waits for requests that are under way. Clients that come later wait, too.
const REQUESTS: Duration = Duration::from_secs(3);

enum State {
    Open(Box<Volume>),
    /// It has another number by now, and could not be attached under that yet.
    Away(Away),
}

struct Away {
    /// The number that the volume's name stands for. `None` where nobody knows, as a step had no answer and may still come, and
    /// where another server may have written meanwhile.
    to: Option<Named>,
    name: String,
    id: u64,
    bytes: u64,
    error: Error,
    /// Has the results of the writes that came before.
    before: Mutex<Tickets>,
}

/// A volume that is attached, and perhaps snapshots are taken of it.
pub struct Attached {
    session: Arc<Session>,
    /// The name under which it was attached.
    name: String,
    state: RwLock<State>,
    /// Of all numbers that the volume has one after the other.
    changes: Arc<Changes>,
    /// No volume that is attached for reading comes to be written to, or the other way round.
    is_read_only: bool,
    /// Held by the one who waits for its trims, to take a snapshot.
    awaited: Mutex<()>,
    /// Uses by the server itself, which end soon.
    own_uses: Arc<AtomicUsize>,
}

/// A use by the server itself, for a step of its work: who wants the volume alone waits for it.
pub(super) struct OwnUse {
    /// Gone first, so that no use of a client is taken for one of these.
    volume: Option<Arc<Attached>>,
    count: Arc<AtomicUsize>,
}

impl OwnUse {
    pub(super) fn of(volume: &Arc<Attached>) -> OwnUse {
        let count = volume.own_uses.clone();
        count.fetch_add(1, SeqCst);
        OwnUse { volume: Some(volume.clone()), count }
    }

    pub(super) fn volume(&self) -> Option<&Arc<Attached>> {
        self.volume.as_ref()
    }
}

impl Drop for OwnUse {
    fn drop(&mut self) {
        drop(self.volume.take());
        self.count.fetch_sub(1, SeqCst);
    }
}

/// Long trims of a volume were waited for. Until it is dropped, further ones come one at a time.
pub(super) struct Awaited<'a> {
    _only: MutexGuard<'a, ()>,
    _held_back: HeldBack,
}

/// What a step over an attached volume asks and tells.
#[derive(Clone, Copy)]
pub(super) struct StepBy<'a> {
    pub(super) goes_on: GoesOn<'a>,
    /// Hears of the number that the volume gets, before others can find it.
    pub(super) entering: &'a dyn Fn(u64),
}

impl Attached {
    /// A volume that clients will use.
    #[must_use]
    pub fn new(session: Arc<Session>, volume: Volume) -> Attached {
        let changes = volume.changes.clone();
        let name = volume.name().to_owned();
        let is_read_only = volume.ownership.is_none();
        Attached {
            session,
            name,
            state: RwLock::new(State::Open(Box::new(volume))),
            changes,
            is_read_only,
            awaited: Mutex::default(),
            own_uses: Arc::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Does something with the volume under the number that it has now.
    ///
    /// # Errors
    /// The errors of `does`, and of attaching the volume where a snapshot left that undone.
    pub fn with<T>(&self, does: impl FnOnce(&Volume) -> Result<T>) -> Result<T> {
        loop {
            if let State::Open(volume) = &*self.state.read() {
                return does(volume);
            }
            self.come_back()?;
        }
    }

    /// The same, unless a snapshot is being taken, or left the volume away: then it is done another time.
    pub(super) fn if_open<T>(&self, does: impl FnOnce(&Volume) -> T) -> Option<T> {
        match &*self.state.try_read()? {
            State::Open(volume) => Some(does(volume)),
            State::Away(_) => None,
        }
    }

    /// False when a snapshot was taken, and the volume is not attached under its next number.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(&*self.state.read(), State::Open(_))
    }

    /// True when its clients can't go on: whoever asks for the volume gets it anew.
    pub(super) fn is_lost(&self) -> bool {
        let Some(state) = self.state.try_read() else { return false };
        matches!(&*state, State::Away(Away { to: None, .. }))
    }

    /// The number that it has now.
    #[must_use]
    pub fn id(&self) -> u64 {
        match &*self.state.read() {
            State::Open(volume) => volume.id(),
            State::Away(away) => away.to.as_ref().map_or(away.id, |to| to.id),
        }
    }

    /// Closes it in order.
    ///
    /// # Errors
    /// As [`Volume::detach`].
    pub fn detach(self) -> Result<()> {
        match self.state.into_inner() {
            State::Open(volume) => volume.detach(),
            State::Away(_) => Ok(()),
        }
    }

    /// Uses of the server itself at this moment.
    pub(super) fn own_uses(&self) -> usize {
        self.own_uses.load(SeqCst)
    }

    /// Takes a snapshot, `vm1@monday`, of this volume, `vm1`, whose clients wait meanwhile. It holds all that was
    /// acknowledged before, and is durable on return. What clients wrote without waiting for it is in it, too.
    ///
    /// # Errors
    /// As [`Snapshots::take`]; `Busy` also when a change of a client failed and may still come, or when its long
    /// trims take long.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        let _awaited = self.wait_for_trims(&always)?;
        self.snapshot_by(name, StepBy { goes_on: &always, entering: &|_| {} })
    }

    /// Makes a volume that holds what this one, called `of`, holds at one moment; its clients wait meanwhile.
    ///
    /// # Errors
    /// As [`Snapshots::clone_volume`]; `Busy` as for a [`snapshot`](Self::snapshot).
    pub fn clone_volume(&self, of: &str, new_name: &str) -> Result<()> {
        let _awaited = self.wait_for_trims(&always)?;
        self.clone_by(of, new_name, StepBy { goes_on: &always, entering: &|_| {} })
    }

    /// A snapshot of a volume whose long trims were [waited for](Self::wait_for_trims).
    pub(super) fn snapshot_by(&self, name: &str, by: StepBy<'_>) -> Result<()> {
        let of = name.rsplit_once('@').map_or(name, |(of, _)| of);
        self.over(of, by, |snapshots, volume| snapshots.take_of(volume, name))
    }

    /// A clone, likewise.
    pub(super) fn clone_by(&self, of: &str, new_name: &str, by: StepBy<'_>) -> Result<()> {
        self.over(of, by, |snapshots, volume| snapshots.clone_of(volume, of, new_name))
    }

    /// Applies the long trims that are there, while clients go on: they take most of the time of a step. Further ones
    /// come one at a time until the step is over. One at a time waits for them.
    ///
    /// # Errors
    /// `Busy` when another one waits, or when it takes too long; those of the volume.
    pub(super) fn wait_for_trims(&self, goes_on: GoesOn<'_>) -> Result<Awaited<'_>> {
        let only = self.awaited.try_lock().ok_or_else(|| busy(&self.name))?;
        let (last, held_back) = self.with(|volume| {
            volume.writable()?;
            Ok((volume.trims.last(), volume.trims.hold_back()))
        })?;
        if let Some(last) = last {
            let time = || self.session.kernel().store().time();
            Wait::served(goes_on)
                .each(&self.name, time, || self.with(|volume| volume.trims.step_up_to(last)))?;
        }
        Ok(Awaited { _only: only, _held_back: held_back })
    }

    /// Makes a layer of the number that the volume has, and goes on with the next one.
    fn over(
        &self,
        name: &str,
        by: StepBy<'_>,
        step: impl for<'s> FnOnce(Snapshots<'s>, &'s Volume) -> Moved,
    ) -> Result<()> {
        let Some(mut state) = self.state.try_write_for(REQUESTS) else {
            let what = format!(
                "requests to volume '{}' that came before its snapshot are still at work: try again later",
                name.escape_debug()
            );
            return Err(Error::new(Kind::Busy, what));
        };
        let State::Open(volume) = &*state else {
            drop(state);
            return self.come_back().and_then(|()| Err(busy(name)));
        };
        volume.writable()?;
        let Moved { to, done } =
            step(Snapshots::of(&self.session).alone(by.goes_on, by.entering), volume);
        let id = volume.id();
        if to.is_none() && !self.session.leaving().may_be_left().lock().contains(&id) {
            return done;
        }
        let away = Away {
            error: done.clone().err().unwrap_or_else(|| busy(name)),
            name: name.to_owned(),
            id,
            bytes: volume.bytes(),
            before: Mutex::new(volume.group_commit.tickets()),
            to,
        };
        let was_moved = away.to.is_some();
        if let State::Open(volume) = std::mem::replace(&mut *state, State::Away(away)) {
            match was_moved {
                true => Snapshots::of(&self.session).leave_live(*volume),
                // It may be a layer by now.
                false => drop(volume.detach()),
            }
        }
        if was_moved {
            // Where this fails, the next one who asks for something tries again.
            let _ = self.attach_anew(&mut state);
        }
        done
    }

    /// Attaches the volume under its next number.
    fn come_back(&self) -> Result<()> {
        self.attach_anew(&mut self.state.write())
    }

    fn attach_anew(&self, state: &mut State) -> Result<()> {
        let State::Away(away) = state else { return Ok(()) };
        let Some(to) = &away.to else { return Err(away.error.clone()) };
        let mut volume = match attach_next(&self.session, &away.name, to) {
            Err(error) if error.kind() == Kind::NotFound => {
                // Whoever comes anew takes what the name stands for then.
                (away.to, away.error) = (None, error.clone());
                return Err(error);
            }
            attached => attached?,
        };
        volume.changes = self.changes.clone();
        if self.session.kernel().keeps(Rule::TicketsGoOn) {
            volume.group_commit.go_on_behind(away.before.lock().clone());
        }
        *state = State::Open(Box::new(volume));
        Ok(())
    }
}

/// Attaches the next number of a volume. `NotFound`: the name stands for another one by now, or another session had
/// it, and may have written.
fn attach_next(session: &Arc<Session>, name: &str, to: &Named) -> Result<Volume> {
    if session.find(name)?.is_none_or(|now| now.id != to.id) {
        return Err(missing(name));
    }
    // An attempt before this one may have come to own it without an answer: another owner is looked for first.
    if owner_of(session, to.id)?.is_some_and(|owner| owner != session.store().identity()) {
        return Err(taken(name));
    }
    let volume = Volume::attach_named(session, name, to, Mode::Own)?;
    if volume.ownership.as_ref().is_some_and(Ownership::was_of_another) {
        // If it can't be given back, its lock ends with its lease.
        let _ = volume.detach();
        return Err(taken(name));
    }
    Ok(volume)
}

/// The session that owns a number, or owned it last.
fn owner_of(session: &Session, id: u64) -> Result<Option<String>> {
    match session.kernel().read_value(&header::name(id), header::OWNER) {
        Err(Refusal::Missing) => Ok(None),
        read => {
            let read =
                read.map_err(|why| failed("the owner of a volume can't be looked up", why))?;
            Ok(parse_owner(&read).map(|(_, identity)| identity))
        }
    }
}

fn taken(name: &str) -> Error {
    let name = name.escape_debug();
    let what = format!(
        "another server had volume '{name}' while a snapshot of it was taken: connect again"
    );
    Error::new(Kind::NotFound, what)
}

fn busy(name: &str) -> Error {
    let what = format!("a snapshot of volume '{}' is being taken", name.escape_debug());
    Error::new(Kind::Busy, what)
}

impl onefold_core::Volume for Attached {
    fn size(&self) -> u64 {
        match &*self.state.read() {
            State::Open(volume) => volume.size(),
            State::Away(away) => away.bytes,
        }
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        let done = self.with(|volume| {
            onefold_core::Volume::read(volume, reads);
            Ok(())
        });
        if let Err(error) = done {
            reads.iter_mut().for_each(|read| read.result = Err(error.clone()));
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.with(|volume| volume.write(offset, data))
    }

    fn acknowledges_late(&self) -> bool {
        true
    }

    fn waits_beside(&self) -> usize {
        self.session.kernel().store().batches()
    }

    fn changes(&self) -> Option<&Changes> {
        let is_alone = self.if_open(Volume::is_alone).unwrap_or(false);
        is_alone.then_some(&self.changes)
    }

    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket> {
        self.with(|volume| volume.trim(offset, bytes))
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, keep: bool) -> Result<Ticket> {
        self.with(|volume| volume.write_zeroes(offset, bytes, keep))
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        match &*self.state.read() {
            State::Open(volume) => volume.wait(ticket),
            State::Away(away) => away.before.lock().ended(ticket.0),
        }
    }

    fn flush(&self) -> Result<()> {
        self.with(onefold_core::Volume::flush)
    }

    fn extents(&self, offset: u64, bytes: u64, limit: usize) -> Result<Vec<Extent>> {
        self.with(|volume| volume.extents(offset, bytes, limit))
    }

    fn prefetch(&self, offset: u64, bytes: u64) -> Result<()> {
        self.with(|volume| volume.prefetch(offset, bytes))
    }
}
