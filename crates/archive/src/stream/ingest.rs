//! The state that the streams of one ingesting process share: the filter chain, the ids, the
//! segment that is filled, and the importer's results.
//!
//! Each stream has a session of its own, in an epoch of its own, and fills its own containers.
//! Before one stream commits, the containers of all are synced: its chunks may be duplicates of
//! theirs.
//!
//! *Locks:* in the order `lookup`, `pending`, the archive's, `auxiliary`. None is held while a
//! stream waits for its source.
//!
//! *Failures:* when a sync fails, or a write for another reason than a full disk, containers that
//! were written and not listed count as lost: all sessions of that time end, and later ones write
//! anew, to other places.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_core::{Error, Hold, Kind, Lock, Result};
use parking_lot::Mutex;

use crate::{
    chunk_index::{Auxiliary, import, load_recent},
    container::{Appender, ContainerReader, Ids, class_of},
    filter_chain::FilterChain,
    format::{
        ContainerId,
        container::{ContainerKind, Packed},
        names::WRITER,
        record::{Owner, Record, Stored},
    },
    operations_log::Archive,
    tables::Tables,
};

/// Where an import left the index; the next session that looks something up takes it over.
pub(crate) type Imported = Arc<Mutex<Option<u64>>>;

/// The ingesting process of an archive. There is one at a time.
pub struct Ingest {
    pub(crate) archive: Arc<Archive>,
    _writer: Box<dyn Lock>,
    pub(crate) auxiliary: Arc<Mutex<Auxiliary>>,
    pub(super) lookup: Mutex<Lookup>,
    pub(super) pending: Mutex<PendingContainers>,
    pub(crate) imported: Imported,
    sessions: AtomicU64,
    /// The ingest outlives its streams: space allocated ahead stays allocated between them.
    pub(super) lasting: bool,
}

/// The filter chain that looks chunks up, and the ids of new containers.
pub(crate) struct Lookup {
    pub(super) chain: FilterChain,
    pub(super) ids: Ids,
}

/// Containers between their write and their session's end.
pub(super) struct PendingContainers {
    pub(super) appender: Appender,
    /// Containers that are written and not in the log yet, with their sessions.
    pub(super) written: Vec<(u64, Stored)>,
    written_bytes: u64,
    /// Containers that the log lists as unfinished, with their sessions, which go on.
    pub(super) listed: Vec<(u64, ContainerId)>,
    /// How often writing failed.
    pub(super) failures: u64,
}

impl Ingest {
    /// Becomes the ingesting process; waits for another one to end when `wait` is set. With
    /// `lasting` the process outlives its streams.
    ///
    /// # Errors
    /// `Busy`, and those of the system.
    pub fn begin(archive: &Arc<Archive>, wait: bool, lasting: bool) -> Result<Arc<Ingest>> {
        let writer =
            archive.files.lock(WRITER, Hold::Alone, wait).map_err(|error| match error.kind() {
                Kind::Busy => Error::new(
                    Kind::Busy,
                    "another put is running; wait for it, or leave out --no-wait",
                ),
                _ => error,
            })?;
        let guard = archive.guard_epoch()?;
        let container_reader = Arc::new(ContainerReader::new(archive.clone()));
        let mut auxiliary = Auxiliary::default();
        load_recent(&container_reader, &guard.tables, &mut auxiliary)?;
        let auxiliary = Arc::new(Mutex::new(auxiliary));
        let chain = FilterChain::new(
            archive.clone(),
            guard.tables.clone(),
            container_reader,
            auxiliary.clone(),
        )?;
        let lookup = Lookup { chain, ids: Ids::new(archive.clone(), Owner::Ingest) };
        let appender = Appender::new(archive.clone(), Owner::Ingest);
        let pending = PendingContainers {
            appender,
            written: Vec::new(),
            written_bytes: 0,
            listed: Vec::new(),
            failures: 0,
        };
        Ok(Arc::new(Ingest {
            archive: archive.clone(),
            _writer: writer,
            auxiliary,
            lookup: Mutex::new(lookup),
            pending: Mutex::new(pending),
            imported: Arc::default(),
            sessions: AtomicU64::new(0),
            lasting,
        }))
    }

    /// The number of a new session.
    pub(super) fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Relaxed) + 1
    }

    /// Ends a session, whether it committed or not.
    pub(super) fn end(&self, session: u64) {
        self.pending.lock().listed.retain(|(of, _)| *of != session);
        self.auxiliary.lock().end(session);
    }

    /// Lets the chain look into the index as the importer left it.
    pub(super) fn renew(&self, lookup: &mut Lookup) -> Result<()> {
        let Some(upto) = *self.imported.lock() else { return Ok(()) };
        lookup.chain.renew_index(&self.archive.tables())?;
        self.auxiliary.lock().forget_listed(upto);
        // Cleared last: an import that began earlier would write the same entries again.
        *self.imported.lock() = None;
        Ok(())
    }

    /// True when the auxiliary index has more listed entries than its limit.
    pub(crate) fn must_import(&self) -> bool {
        self.auxiliary.lock().listed_len() > self.archive.settings.auxiliary_entries
    }

    /// Imports the listed entries of the auxiliary index into the chunk index, few of them only
    /// with `all`. False when there was nothing to do, or when the chain has not taken over the
    /// import before.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn import(&self, all: bool) -> Result<bool> {
        if self.imported.lock().is_some() {
            return Ok(false);
        }
        let made = import(&self.archive, &self.auxiliary, all)?;
        let upto = made.map(|(_, upto)| upto);
        *self.imported.lock() = upto;
        Ok(upto.is_some())
    }

    /// Gives space back that was allocated ahead, and imports the auxiliary index unless it has few
    /// entries: the process ends.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn close(&self) -> Result<()> {
        self.pending.lock().appender.trim()?;
        self.import(false).map(|_| ())
    }
}

impl PendingContainers {
    /// Sessions that began before a failure end with it.
    pub(super) fn since(&self, failures: u64) -> Result<()> {
        if self.failures == failures {
            return Ok(());
        }
        Err(Error::new(
            Kind::Stopped,
            "a write to the archive failed, of this stream or of another one",
        ))
    }

    /// Writes a container. Before it begins a segment, and after `sync_bytes` bytes, all written
    /// containers are listed.
    pub(super) fn write(
        &mut self,
        ingest: &Ingest,
        session: u64,
        packed: &Packed,
        now: u64,
    ) -> Result<u64> {
        let class = class_of(&ingest.archive, packed.kind);
        if self.appender.begins_segment(packed, class) {
            self.list(ingest, now)?;
        }
        let stored = self.appender.write(packed, class);
        let stored = self.judge(ingest, stored)?;
        let bytes = u64::from(stored.place.bytes);
        self.written_bytes += bytes;
        ingest.auxiliary.lock().written(stored.id);
        self.written.push((session, stored));
        if self.written_bytes >= ingest.archive.settings.sync_bytes {
            self.list(ingest, now)?;
        }
        Ok(bytes)
    }

    /// Makes all written containers durable.
    pub(super) fn sync(&mut self, ingest: &Ingest) -> Result<()> {
        let synced = match self.appender.sync() {
            // A sync that fails for want of space has lost written data, so it counts as `Io`.
            Err(error) if error.kind() == Kind::NoSpace => {
                Err(Error::new(Kind::Io, error.to_string()))
            }
            synced => synced,
        };
        self.judge(ingest, synced)
    }

    fn judge<T>(&mut self, ingest: &Ingest, done: Result<T>) -> Result<T> {
        if done.as_ref().is_err_and(|error| error.kind() != Kind::NoSpace) {
            self.failures += 1;
            self.appender = Appender::new(ingest.archive.clone(), Owner::Ingest);
            self.written.clear();
            self.written_bytes = 0;
            ingest.auxiliary.lock().lose();
        }
        done
    }

    /// Makes all written containers durable, and lists them as unfinished.
    pub(super) fn list(&mut self, ingest: &Ingest, now: u64) -> Result<()> {
        if self.written.is_empty() {
            return Ok(());
        }
        self.sync(ingest)?;
        self.commit(ingest, 0, now, &mut |_, _, _| Ok(Vec::new())).map(|_| ())
    }

    /// Appends the records that `decide` returns as one frame. `decide` gets the tables, and this
    /// session's containers: first those that are not in the log, then those that are. The same
    /// frame lists the written containers of other sessions as unfinished, so that it may name
    /// them. The caller has synced all of them.
    #[allow(clippy::type_complexity)]
    pub(super) fn commit(
        &mut self,
        ingest: &Ingest,
        session: u64,
        now: u64,
        decide: &mut dyn FnMut(&Tables, &[Stored], &[ContainerId]) -> Result<Vec<Record>>,
    ) -> Result<Arc<Tables>> {
        let of = |own: bool| {
            self.written
                .iter()
                .filter(move |(of, _)| (*of == session) == own)
                .map(|(_, stored)| stored.clone())
        };
        let (own, others): (Vec<Stored>, Vec<Stored>) = (of(true).collect(), of(false).collect());
        let finished: Vec<ContainerId> =
            self.listed.iter().filter(|(of, _)| *of == session).map(|(_, id)| *id).collect();
        // A commit without containers frees some: it may use the reserve.
        let may_use_reserve = self.written.is_empty() && session > 0 && finished.is_empty();
        let tables = ingest.archive.commit(may_use_reserve, |tables| {
            let mut records = Vec::new();
            if !others.is_empty() {
                records.push(Record::Unfinished { containers: others.clone(), at: now });
            }
            records.extend(decide(tables, &own, &finished)?);
            Ok(records)
        })?;
        self.listed.retain(|(of, _)| *of != session);
        let written = std::mem::take(&mut self.written);
        self.written_bytes = 0;
        let all: Vec<Stored> = written.iter().map(|(_, stored)| stored.clone()).collect();
        self.listed.extend(
            written
                .into_iter()
                .filter(|(of, _)| *of != session)
                .map(|(of, stored)| (of, stored.id)),
        );
        ingest.auxiliary.lock().list(data_of(&all), tables.sequence);
        Ok(tables)
    }
}

/// The containers of chunks, as the auxiliary index wants them.
pub(super) fn data_of(containers: &[Stored]) -> impl Iterator<Item = (ContainerId, u32)> {
    containers
        .iter()
        .filter(|stored| stored.kind == ContainerKind::Data)
        .map(|stored| (stored.id, stored.chunks))
}
