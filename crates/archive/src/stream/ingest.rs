//! The state that the streams of one ingesting process share: the filter chain, the ids, the
//! segment that is filled, and the importer's results.
//!
//! Each stream has a session of its own, in an epoch of its own, and fills its own containers.
//! Before one stream commits, the containers of all are synced: its chunks may be duplicates of
//! theirs.
//!
//! *Locks:* in the order `merging`, `lookup`, `pending`, the archive's, `auxiliary`. None is held
//! while a stream waits for its source.
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
    chunk_index::{
        Auxiliary, ChunkIndex, Importing, RunMerge, import, load_recent, lost_files, make_whole,
    },
    container::{Appender, ContainerReader, Ids, class_of},
    filter_chain::FilterChain,
    format::{
        ContainerId,
        container::{ContainerKind, Packed},
        names::WRITER,
        record::{Owner, Record, Stored},
    },
    operations_log::{Archive, EpochGuard, is_put, not_erased},
    settings::Settings,
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
    /// Held by whoever imports. Runs of the index that are being merged, in portions.
    pub(super) merging: Mutex<Option<RunMerge>>,
    /// Bytes of memory that all streams gathered.
    pub(super) gathered: Arc<AtomicU64>,
    sessions: AtomicU64,
    /// The ingest outlives its streams: space allocated ahead stays allocated between them.
    pub(super) lasting: bool,
}

/// The filter chain that looks chunks up, and the ids of new containers.
pub(crate) struct Lookup {
    pub(super) chain: FilterChain,
    pub(super) ids: Ids,
}

impl Lookup {
    /// The chain looks into these files of the index from now on.
    pub(super) fn take_index(&mut self, index: ChunkIndex) {
        self.chain.take_index(index);
    }
}

/// Containers between their write and their session's end.
pub(super) struct PendingContainers {
    pub(super) appender: Appender,
    /// Containers that are written and not in the log yet, in the order of their writes.
    pub(super) written: Vec<Written>,
    /// Bytes that the log lists of the streams that go on.
    listed_bytes: u64,
    /// Containers that the log lists as unfinished, with their sessions, which go on.
    pub(super) listed: Vec<(u64, ContainerId)>,
    /// How often writing failed.
    pub(super) failures: u64,
}

/// A container that is not in the log yet.
pub(super) struct Written {
    pub(super) session: u64,
    /// How many containers its appender had written with it.
    number: u64,
    pub(super) stored: Stored,
}

impl Ingest {
    /// Becomes the ingesting process; waits for another one to end when `wait` is set. With
    /// `lasting` the process outlives its streams. Where files of the chunk index are lost, this makes
    /// the index anew, which reads the metadata of all containers.
    ///
    /// # Errors
    /// `Busy`, and those of the system.
    pub fn begin(archive: &Arc<Archive>, wait: bool, lasting: bool) -> Result<Arc<Ingest>> {
        let writer =
            archive.files.lock(WRITER, Hold::Alone, wait).map_err(|error| match error.kind() {
                Kind::Busy => Error::new(
                    Kind::Busy,
                    "another process stores into the archive; wait for it, or leave out --no-wait",
                ),
                _ => error,
            })?;
        not_erased(archive)?;
        let mut guard = EpochGuard::enter(archive)?;
        // A put key writes no chunk index.
        if !is_put(archive) && lost_files(archive)? > 0 {
            drop(guard);
            match make_whole(archive, &mut |_, _| {}) {
                // Without room for an index chunks are stored again; so are they when another process,
                // which no lock holds, wrote an index meanwhile.
                Err(error) if matches!(error.kind(), Kind::NoSpace | Kind::Busy) => {}
                made => drop(made?),
            }
            guard = EpochGuard::enter(archive)?;
        }
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
            listed_bytes: 0,
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
            merging: Mutex::default(),
            gathered: Arc::default(),
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
        if is_put(&self.archive) {
            return Ok(false);
        }
        // Whoever imports just now does no more than a portion of it: a later look imports the rest.
        let Some(merging) = self.merging.try_lock() else { return Ok(false) };
        if self.imported.lock().is_some() {
            return Ok(false);
        }
        let number = merging.as_ref().map(RunMerge::number);
        let Some(importing) = Importing::begin(&self.archive, number)? else { return Ok(false) };
        let made = import(&self.archive, &self.auxiliary, all, &importing)?;
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

    /// Writes a container. Before it begins a segment all written containers are made durable and
    /// listed; else syncs go on beside the writing, and what they made durable is listed now and
    /// then.
    pub(super) fn write(
        &mut self,
        ingest: &Ingest,
        session: u64,
        packed: &Packed,
        now: u64,
    ) -> Result<u64> {
        let class = packed.class.unwrap_or_else(|| class_of(&ingest.archive, packed.kind));
        if self.appender.begins_segment(packed, class) && !self.written.is_empty() {
            self.sync(ingest)?;
            self.list(ingest, u64::MAX, now)?;
        }
        let stored = self.appender.write(packed, class);
        let stored = self.judge(ingest, stored)?;
        let bytes = u64::from(stored.place.bytes);
        ingest.auxiliary.lock().written(stored.id);
        self.written.push(Written { session, number: self.appender.written(), stored });
        let kept_up = self.appender.keep_up();
        self.judge_sync(ingest, kept_up)?;
        let Settings { sync_bytes, list_bytes, .. } = ingest.archive.settings;
        if self.listable_bytes() >= self.listed_bytes.min(list_bytes).max(sync_bytes) {
            self.list(ingest, self.appender.durable(), now)?;
        }
        Ok(bytes)
    }

    /// Bytes of the containers that are durable and not in the log.
    fn listable_bytes(&self) -> u64 {
        let durable = self.appender.durable();
        let there = self.written.iter().take_while(|written| written.number <= durable);
        there.map(|written| u64::from(written.stored.place.bytes)).sum()
    }

    /// Makes all written containers durable.
    pub(super) fn sync(&mut self, ingest: &Ingest) -> Result<()> {
        let synced = self.appender.sync();
        self.judge_sync(ingest, synced)
    }

    /// A sync that fails for want of space has lost written data, so it counts as `Io`.
    fn judge_sync(&mut self, ingest: &Ingest, synced: Result<()>) -> Result<()> {
        let synced = synced.map_err(|error| match error.kind() {
            Kind::NoSpace => Error::new(Kind::Io, error.to_string()),
            _ => error,
        });
        self.judge(ingest, synced)
    }

    fn judge<T>(&mut self, ingest: &Ingest, done: Result<T>) -> Result<T> {
        if done.as_ref().is_err_and(|error| error.kind() != Kind::NoSpace) {
            self.failures += 1;
            self.appender = Appender::new(ingest.archive.clone(), Owner::Ingest);
            self.written.clear();
            ingest.auxiliary.lock().lose();
        }
        done
    }

    /// Lists the written containers up to a number as unfinished. They are durable.
    fn list(&mut self, ingest: &Ingest, upto: u64, now: u64) -> Result<()> {
        let before = self.listed_bytes;
        let bytes: u64 = self.upto(upto).map(|of| u64::from(of.stored.place.bytes)).sum();
        self.commit_upto(ingest, upto, (0, now), &mut |_, _, _| Ok(Vec::new()))?;
        self.listed_bytes = before + bytes;
        Ok(())
    }

    fn upto(&self, number: u64) -> impl Iterator<Item = &Written> {
        self.written.iter().take_while(move |written| written.number <= number)
    }

    /// Appends the records that `decide` returns as one frame. `decide` gets the tables, and this
    /// session's containers: first those that are not in the log, then those that are. The same
    /// frame lists the written containers of other sessions as unfinished, so that it may name
    /// them. The caller has synced all of them.
    pub(super) fn commit(
        &mut self,
        ingest: &Ingest,
        session: u64,
        now: u64,
        decide: &mut Decide<'_>,
    ) -> Result<Arc<Tables>> {
        self.commit_upto(ingest, u64::MAX, (session, now), decide)
    }

    /// The same with the containers up to a number only.
    fn commit_upto(
        &mut self,
        ingest: &Ingest,
        upto: u64,
        (session, now): (u64, u64),
        decide: &mut Decide<'_>,
    ) -> Result<Arc<Tables>> {
        let of = |own: bool| {
            self.upto(upto)
                .filter(move |written| (written.session == session) == own)
                .map(|written| written.stored)
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
        self.listed_bytes = 0;
        let count = self.upto(upto).count();
        let written: Vec<Written> = self.written.drain(..count).collect();
        let all: Vec<Stored> = written.iter().map(|written| written.stored).collect();
        self.listed.extend(
            written
                .into_iter()
                .filter(|written| written.session != session)
                .map(|written| (written.session, written.stored.id)),
        );
        ingest.auxiliary.lock().list(data_of(&all), tables.sequence);
        Ok(tables)
    }
}

/// Says what a frame changes, by the tables and the containers of one session: those that the log
/// does not have, and those that it has.
pub(super) type Decide<'a> =
    dyn FnMut(&Tables, &[Stored], &[ContainerId]) -> Result<Vec<Record>> + 'a;

/// The containers of chunks, as the auxiliary index wants them.
pub(super) fn data_of(containers: &[Stored]) -> impl Iterator<Item = (ContainerId, u32)> {
    containers
        .iter()
        .filter(|stored| stored.kind == ContainerKind::Data)
        .map(|stored| (stored.id, stored.chunks))
}
