//! Joining, the lease, fencing, leaving: one process at a time writes.
//!
//! A process joins by a frame, and leaves by one. Where another one has joined and not left, the lease of that
//! one is watched: when it changes, somebody is at work, and joining is refused; when it stands still for the
//! patience of the settings, the frame by which this process joins shuts the other one out.
//!
//! *Crash argument:* the order in the log is what keeps writers apart. The other one's next frame has the name
//! of ours or of a later one, so it is never there. Clocks only wait.

use std::{sync::Arc, time::Duration};

use onefold_core::{Error, Kind, Result};

use crate::{
    files::BucketFiles,
    format::{Frame, Parts, Record, Writing, lease_name},
    log::{Appended, Log, TELL_EVERY},
    objects::Objects,
    pace::Pace,
    rules::Rule,
    settings::{Known, Settings},
    shared::{Role, Shared},
    state::{State, Writer},
    uploads, view,
};

/// How often one looks at another one's lease.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How often joining begins anew when others append meanwhile.
const RACES: usize = 64;

/// A bucket that this process has open.
pub struct Bucket {
    pub(crate) shared: Arc<Shared>,
}

fn empty() -> Error {
    Error::new(Kind::NotFound, "no archive")
}

impl Bucket {
    /// Looks at a bucket as it is now; it stays so for this process.
    ///
    /// # Errors
    /// `NotFound` when there is nothing, `Corrupt`, and those of the store.
    pub fn look(
        objects: Arc<dyn Objects>,
        pace: Arc<dyn Pace>,
        settings: Settings,
    ) -> Result<Bucket> {
        let log = Log::new(objects, pace, settings);
        let state = view::newest(&log)?.ok_or_else(empty)?;
        Ok(Bucket { shared: Arc::new(Shared::new(log, state, Role::Reads)) })
    }

    /// Joins as the one that writes.
    ///
    /// # Errors
    /// `NotFound` when there is nothing, `Busy` while another process writes, `Corrupt`, and those of the store.
    pub fn join(
        objects: Arc<dyn Objects>,
        pace: Arc<dyn Pace>,
        settings: Settings,
    ) -> Result<Bucket> {
        let log = Log::new(objects, pace, settings);
        let state = view::newest(&log)?.ok_or_else(empty)?;
        join(log, state)
    }

    /// The same after this process has looked: what it read of the log it does not read again.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_after(looked: &Bucket, settings: Settings) -> Result<Bucket> {
        let log = looked.shared.log.for_later(settings);
        let state = view::newest(&log)?.ok_or_else(empty)?;
        join(log, state)
    }

    /// Joins as the one that writes, in a place where there may be nothing yet.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn make(
        objects: Arc<dyn Objects>,
        pace: Arc<dyn Pace>,
        settings: Settings,
    ) -> Result<Bucket> {
        let log = Log::new(objects, pace, settings);
        let state = view::newest(&log)?.unwrap_or(State::empty());
        join(log, state)
    }

    /// Its files.
    #[must_use]
    pub fn files(&self) -> BucketFiles {
        BucketFiles(self.shared.clone())
    }

    /// The place in the log that this process has seen, for [`Settings::known`] of the next one.
    #[must_use]
    pub fn known(&self) -> Known {
        let core = self.shared.core.lock();
        Known { frame: core.state.at, sum: core.state.sum }
    }

    /// The bucket's id.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.shared.core.lock().state.id
    }

    /// The state that this process has.
    #[must_use]
    pub fn state(&self) -> State {
        self.shared.core.lock().state.clone()
    }

    /// Why this process writes no more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.shared.core.lock().failed.clone()
    }

    /// Says that this process is at work; called every 20 s by who owns the bucket.
    ///
    /// # Errors
    /// The store's. The work goes on: others may shut this process out.
    pub fn renew(&self) -> Result<()> {
        let writer = self.shared.core.lock().writer()?;
        put_lease(&self.shared.log, writer)
    }

    /// Makes all durable, and lets others write. A table is written when it is due.
    ///
    /// # Errors
    /// Why not all is durable.
    pub fn leave(&self) -> Result<()> {
        let writer = match self.shared.core.lock().role {
            Role::Writes(writer) => writer,
            Role::Reads | Role::Left => return Ok(()),
        };
        self.shared.table_if_due()?;
        self.shared.commit_with(&[Record::Leave])?;
        {
            let mut core = self.shared.core.lock();
            core.state.writer = None;
            core.role = Role::Left;
        }
        self.shared.changed.notify_all();
        // Without it a later collection deletes the lease.
        let _ = self.shared.log.objects.delete(&lease_name(writer));
        Ok(())
    }
}

/// The lease changes each time: by chance, and by the time of this host's clock, which is for people.
fn put_lease(log: &Log, writer: u64) -> Result<()> {
    let mut lease = Writing::default();
    lease.raw(b"ONEFLEA1").eight(log.pace.wall()).raw(&log.pace.nonce());
    log.objects.replace(&lease_name(writer), &lease.0)
}

fn join(log: Log, mut state: State) -> Result<Bucket> {
    let mut waiting = Waiting { begun: log.pace.now(), told: None };
    let mut races = 0;
    while races < RACES {
        let is_free = match state.writer.clone() {
            None => true,
            Some(other) => match watch(&log, &state, &other) {
                Err(error) if error.kind() == Kind::Busy && waiting.goes_on(&log, &other) => false,
                watched => watched.map(|()| true)?,
            },
        };
        // Others that come and go use the time up, and nothing else.
        races += usize::from(is_free && waiting.is_over(&log));
        // Others may have appended meanwhile.
        let end = log.end(state.at)?;
        if end > state.at {
            view::follow(&log, &mut state, end, None)?;
            continue;
        }
        if !is_free && log.settings.keeps(Rule::WaitersDoNotJoin) {
            continue;
        }
        whole_to_its_end(&log, state.at)?;
        if let Some(joined) = try_join(&log, &mut state)? {
            let _ = put_lease(&log, joined);
            let shared = Arc::new(Shared::new(log, state, Role::Writes(joined)));
            uploads::spawn(&shared)?;
            return Ok(Bucket { shared });
        }
    }
    Err(Error::new(Kind::Busy, "others write to the bucket all the time"))
}

/// Appends the frame by which this process joins; `None` when another one was faster.
fn try_join(log: &Log, state: &mut State) -> Result<Option<u64>> {
    let number = state.at + 1;
    let who = log.settings.who.clone();
    let fences = state.writer.as_ref().map_or(0, |writer| writer.id);
    let mut records = vec![Record::Join { fences, told: who.told, mark: who.mark }];
    if number == 1 {
        records.insert(0, Record::Made { id: log.pace.nonce() });
    }
    let (bytes, _) = Frame::encode(&Parts {
        number,
        writer: number,
        nonce: log.pace.nonce(),
        before: state.sum,
        table_frame: state.table_frame,
        time: log.pace.wall(),
        records: &records,
        inline: &[],
    });
    if log.append(number, &bytes)? == Appended::Others {
        return Ok(None);
    }
    state.apply(&Frame::decode(&bytes, number)?)?;
    Ok(Some(number))
}

/// Errors when frames lie behind the last one that can be read: the store lost one between.
fn whole_to_its_end(log: &Log, last: u64) -> Result<()> {
    let Some(beyond) = log.beyond(last)? else { return Ok(()) };
    match log.frame(last + 1) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == Kind::NotFound => {
            let lost = crate::format::frame_name(last + 1);
            Err(Error::new(Kind::Corrupt, format!("{lost} is lost, and {beyond} is there")))
        }
        Err(error) => Err(error),
    }
}

/// A wait for others who are at work.
struct Waiting {
    begun: Duration,
    /// When somebody was told last.
    told: Option<Duration>,
}

impl Waiting {
    /// True when the time that the settings give is over.
    fn is_over(&self, log: &Log) -> bool {
        log.pace.now().saturating_sub(self.begun) >= log.settings.wait
    }

    /// False when it is over; tells each minute for whom it waits.
    fn goes_on(&mut self, log: &Log, other: &Writer) -> bool {
        let now = log.pace.now();
        let waited = now.saturating_sub(self.begun);
        if waited >= log.settings.wait {
            return false;
        }
        if self.told.is_none_or(|told| now.saturating_sub(told) >= TELL_EVERY) {
            self.told = Some(now);
            let (who, left) =
                (told(other), log.settings.wait.saturating_sub(waited).as_secs().max(1));
            (log.settings.tell)(&format!(
                "waiting for at most {left} s: {who} is changing the archive"
            ));
        }
        true
    }
}

/// Returns when the other writer may be shut out, or has appended something.
///
/// # Errors
/// `Busy` when it is at work.
fn watch(log: &Log, state: &State, other: &Writer) -> Result<()> {
    if (log.settings.has_ended)(&other.mark) {
        return Ok(());
    }
    let name = lease_name(other.id);
    let lease = || match log.get(&name, 0, 64, None) {
        Ok(body) => Ok(Some(body.bytes)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let (begun, first) = (log.pace.now(), lease()?);
    if !log.settings.keeps(Rule::LeaseWatched) {
        let date = first.as_ref().and_then(|bytes| bytes.get(8..16)?.try_into().ok());
        let date = date.map_or(0, u64::from_le_bytes);
        if log.pace.wall().saturating_sub(date) >= log.settings.patience.as_secs() {
            return Ok(());
        }
    }
    let mut due = LOOK_EVERY;
    while log.pace.now().saturating_sub(begun) < log.settings.patience {
        let waited = log.pace.now().saturating_sub(begun);
        if waited >= due {
            let left = log.settings.patience.saturating_sub(waited).as_secs().max(1);
            let who = told(other);
            let text =
                format!("looking for at most {left} s whether {who} still changes the archive");
            (log.settings.tell)(&text);
            due = waited + TELL_EVERY;
        }
        log.pace.sleep(LOOK_EVERY.min(log.settings.patience));
        if log.end(state.at)? > state.at {
            let next = log.frame(state.at + 1)?;
            if next.leaves() || next.joins().is_some() {
                return Ok(());
            }
            return Err(busy(other));
        }
        if lease()? != first {
            return Err(busy(other));
        }
    }
    Ok(())
}

fn told(other: &Writer) -> &str {
    if other.told.is_empty() { "another process" } else { &other.told }
}

fn busy(other: &Writer) -> Error {
    let who = told(other);
    Error::new(Kind::Busy, format!("{who} is changing the archive; one process at a time does"))
}
