//! The archive: what is opened once, and how it is made.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, PendingSync, Result};
use parking_lot::{Mutex, MutexGuard};

use onefold_seal::{Keys, Random};

use super::{
    domain::Domain, heads, key_area, position::LogPosition, reserve::Reserve,
    snapshot::write_snapshot,
};
use crate::{
    chunking::Cuts,
    erasure::{IndexDirectory, Nodes, ONE_DIRECTORY, OneDirectory, Redundancy, WithIndex},
    format::{
        Identity,
        bytes::corrupt,
        label::{Label, Newer, find_label, look_for_label, look_for_proven},
        names::{COLLECTOR, COMMIT, EPOCHS, IMPORTER, LABEL, SYNCED, WRITER, fresh, log_name},
        parameters::Chunking,
        record::Record,
        sealing::{Flaws, Role, Sealing},
    },
    memory::{Budget, BufferPool, Drawn},
    rules::Rule,
    settings::{FilterName, Format, Settings},
    tables::{LeafStore, Tables},
};

/// An archive, in one directory or on nodes.
pub struct Archive {
    pub(crate) files: Arc<dyn Redundancy>,
    reserve: Reserve,
    pub(crate) settings: Settings,
    pub(crate) identity: Identity,
    /// The domain that it began with, by the key that it had first.
    pub(super) first: Arc<Domain>,
    /// Domains that were looked at.
    pub(super) others: Mutex<BTreeMap<u32, Arc<Domain>>>,
    pub(crate) label: Label,
    pub(super) writes: bool,
    position: Mutex<LogPosition>,
    /// The budget for structures whose sizes the medium states.
    pub(super) budget: Arc<Budget>,
    /// The budget for the filters of the chunk index.
    pub(super) filters: Arc<Budget>,
    /// Reads leaves of the tables when they are looked at.
    pub(super) leaves: Arc<LeafStore>,
    /// Memory of containers.
    pub(crate) buffers: Arc<BufferPool>,
}

impl Archive {
    /// Makes an archive in an empty directory; durable on return.
    ///
    /// # Errors
    /// `Exists` when there is one, `NoSpace`, and those of the system.
    pub fn create(files: &dyn Files, format: &Format) -> Result<()> {
        create_in(files, ONE_DIRECTORY, format, None)
    }

    /// Makes an archive on new nodes; durable on return.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_on_nodes(nodes: &Nodes, format: &Format) -> Result<()> {
        create_in(nodes, nodes.spread(), format, None)
    }

    /// Opens an archive; with `writes` what a killed process left at the log's end is made durable.
    ///
    /// # Errors
    /// `NotFound` when there is none, `Corrupt`, `Unsupported`, and those of the system.
    pub fn open(files: Arc<dyn Files>, writes: bool, settings: Settings) -> Result<Archive> {
        open_with(Arc::new(OneDirectory(files)), writes, settings)
    }

    /// Opens an archive of one directory whose chunk index is in others, likewise: it is looked for
    /// beside the data and then in all of them, the first one first, and new files of it are made in
    /// the last one that takes new files. What is wrong with these directories costs speed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_index(
        files: Arc<dyn Files>,
        directories: Vec<IndexDirectory>,
        writes: bool,
        settings: Settings,
    ) -> Result<Archive> {
        let mut all: Arc<dyn Redundancy> = Arc::new(OneDirectory(files));
        for index in directories {
            all = Arc::new(WithIndex { files: all, index, settings: settings.clone() });
        }
        open_with(all, writes, settings)
    }

    /// Opens an archive on nodes, likewise.
    ///
    /// # Errors
    /// As [`open`](Self::open); `Stopped`: too few nodes are there.
    pub fn open_on_nodes(nodes: Arc<Nodes>, writes: bool, settings: Settings) -> Result<Archive> {
        open_with(nodes, writes, settings)
    }

    /// True when it was opened for changes.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writes
    }

    /// The first failure of a directory that the chunk index is in, since the archive was opened: what
    /// is there may be stored again, until the archive is opened anew.
    #[must_use]
    pub fn index_failure(&self) -> Option<Error> {
        self.files.index_failure()
    }

    /// True when the steps keep this rule; the constant `true` in a product.
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.settings.keeps(rule)
    }

    /// Bytes of memory of the leaves of tables that were read when they were looked at, and are kept.
    #[must_use]
    pub fn leaf_bytes(&self) -> u64 {
        self.leaves.bytes()
    }

    /// The archive's label.
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// The archive as of the last look at the log.
    pub fn tables(&self) -> Arc<Tables> {
        self.position.lock().tables.clone()
    }

    /// The same, unless somebody looks at the log or writes it just now: this waits for no disk.
    pub fn tables_at_once(&self) -> Option<Arc<Tables>> {
        self.position.try_lock().map(|position| position.tables.clone())
    }

    /// The number of the snapshot that counts.
    #[cfg(feature = "planted-bugs")]
    pub(super) fn position_of_snapshot(&self) -> u64 {
        self.position.lock().snapshot
    }

    /// Where this process is in the log, and the tables there, unless somebody looks at the log or writes
    /// it just now.
    pub(super) fn position_at_once(&self) -> Option<(u64, Arc<Tables>)> {
        self.position.try_lock().map(|position| (position.end, position.tables.clone()))
    }

    /// True after a failed write or sync of this process: its last frame may be in the log or not,
    /// whatever the log shows now.
    pub(crate) fn has_stopped(&self) -> bool {
        self.position.lock().stopped.is_some()
    }

    /// Looks at the log, and gives the archive as of now.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn refresh(&self) -> Result<Arc<Tables>> {
        let (mut position, _lock) = self.locked()?;
        self.replay_new_frames(&mut position)?;
        Ok(position.tables.clone())
    }

    /// Does something while nobody else changes the archive: its log is read to the end.
    pub(crate) fn exclusively<T>(&self, does: impl FnOnce() -> Result<T>) -> Result<T> {
        let (mut position, _lock) = self.locked()?;
        self.replay_new_frames(&mut position)?;
        does()
    }

    pub(super) fn locked(&self) -> Result<(MutexGuard<'_, LogPosition>, Box<dyn Lock>)> {
        let position = self.position.lock();
        let lock =
            self.files.lock(COMMIT, if self.writes { Hold::Alone } else { Hold::Shared }, true)?;
        self.files.begin(self.writes)?;
        Ok((position, lock))
    }

    /// Makes a file durable, or fails for good: after a failed sync its data may be gone from
    /// memory, and the next one succeeds without them.
    pub(crate) fn sync(&self, file: &dyn File) -> Result<()> {
        judge_sync(self, file, file.sync())
    }

    /// Waits for a sync of a file that was begun, likewise.
    pub(crate) fn settle(&self, file: &dyn File, begun: Box<dyn PendingSync>) -> Result<()> {
        judge_sync(self, file, begun.wait())
    }

    /// The space that is held back for deletion on a full disk.
    #[must_use]
    pub fn reserve(&self) -> &Reserve {
        &self.reserve
    }
}

/// Makes a sealed archive in an empty directory, by new keys with a slot; durable on return.
///
/// # Errors
/// As [`create`](Archive::create); those of the source of chance.
pub fn create_sealed(
    files: &dyn Files,
    format: &Format,
    keys: &mut Keys,
    random: Arc<dyn Random>,
) -> Result<()> {
    create_in(files, ONE_DIRECTORY, format, Some((keys, random)))
}

impl From<&Archive> for Cuts {
    /// As the streams of the archive's first domain are cut; by the data key that it was opened with where the
    /// newest one can't be read, for then nothing is stored.
    fn from(archive: &Archive) -> Cuts {
        let domain = archive.first_domain();
        Cuts::from(domain.as_ref().map_or(&*archive.first, |domain| &**domain))
    }
}

impl From<&Arc<Archive>> for Cuts {
    fn from(archive: &Arc<Archive>) -> Cuts {
        Cuts::from(&**archive)
    }
}

/// The label, with the highest number of a key area that this process knows of.
pub(super) fn label_now(archive: &Archive) -> Label {
    let keys = archive.identity.sealing().map(|sealing| sealing.keys());
    Label { sealed: keys, ..archive.label.clone() }
}

fn create_in(
    files: &dyn Files,
    spread: [u8; 3],
    format: &Format,
    keys: Option<(&mut Keys, Arc<dyn Random>)>,
) -> Result<()> {
    format.late.map_or(Ok(()), |rad| rad.check(spread))?;
    if format.fingerprint.needs_bytes() {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("chunks of an archive are not fingerprinted by {}", format.fingerprint),
        ));
    }
    if find_label(files).is_ok() {
        return Err(Error::new(Kind::Exists, "there is an archive already"));
    }
    let is_sealed = keys.is_some();
    if format.roles {
        let is_fit = is_sealed && format.trees && format.heads && !format.leaves;
        if !is_fit || format.late.is_some() || spread != ONE_DIRECTORY {
            let why = "keys have roles in an encrypted archive in one directory, which encodes nothing late";
            return Err(Error::new(Kind::InvalidInput, why));
        }
    }
    if is_sealed && matches!(format.chunking, Chunking::Rabin(_)) {
        let why =
            "an encrypted archive cuts by fastcdc or static: Rabin's cuts would tell what is in it";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    if format.pads && !is_sealed {
        let why = "only containers of an encrypted archive are padded: others can be read";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    let label = Label {
        id: format.id,
        secret: if is_sealed { [0; 32] } else { format.secret },
        node: format.node,
        chunking: format.chunking,
        compression: format.compression,
        segment_bytes: format.segment_bytes,
        generation: 1,
        snapshot: 1,
        spread,
        late: format.late,
        trees: format.trees,
        clones: format.clones,
        fingerprint: format.fingerprint,
        leaves: format.leaves,
        on_demand: format.leaves && format.on_demand,
        counts_in_pages: format.counts_in_pages,
        domains: false,
        heads: format.heads && is_sealed,
        roles: format.roles && is_sealed,
        data_keys: false,
        volume_domains: false,
        pads: format.pads,
        sealed: is_sealed.then_some(1),
        newer: Newer::default(),
    };
    let identity = match keys {
        Some((keys, random)) => {
            key_area::write_new(files, keys, &*random)?;
            let sealing = match label.roles {
                true => Sealing::managing(keys, random, Flaws::default())?,
                false => Sealing::new(keys, random, Flaws::default())?,
            };
            Identity::sealed(label.id, Arc::new(sealing))
        }
        None => label.identity(),
    };
    for name in [SYNCED, COMMIT, WRITER, COLLECTOR, IMPORTER, EPOCHS[0], EPOCHS[1]] {
        fresh(files, name)?;
    }
    Reserve::create(files, format.reserve_bytes)?;
    let tables = Tables::new(spread, label.kinds());
    let head = if label.heads { heads::beginning(&identity, 0, 0) } else { tables.head };
    let tables = Tables { next_id: 1, next_segment: 1, epoch: 1, head, ..tables };
    write_snapshot(files, &identity, 1, &tables)?;
    fresh(files, &log_name(1))?.sync()?;
    files.sync_names()?;
    // The label comes last: without it there is no archive.
    let file = fresh(files, LABEL)?;
    // Both places say the same, so that each of them can be lost.
    for generation in 0..=label.generation {
        let label = Label { generation, ..label.clone() };
        file.write_at(label.place(), &label.encode(&identity)?)?;
    }
    file.sync()?;
    files.sync_names()
}

fn open_with(files: Arc<dyn Redundancy>, writes: bool, settings: Settings) -> Result<Archive> {
    // Nobody waits for a lock while somebody is asked for a key.
    if files.spread() == ONE_DIRECTORY
        && let Ok(label) = find_label(&*files)
        && let Err(error) = key_area::unlock(&*files, &label, false, &settings)
        && error.kind() == Kind::Denied
    {
        return Err(error);
    }
    loop {
        match try_open(&files, writes, &settings) {
            // Data that is damaged in one copy may be whole in another.
            Err(error) if error.kind() == Kind::Corrupt && files.another_copy() => {}
            Ok(archive) if writes => {
                end_erasures(&archive)?;
                archive.end_key_changes()?;
                return Ok(archive);
            }
            opened => return opened,
        }
    }
}

fn try_open(files: &Arc<dyn Redundancy>, writes: bool, settings: &Settings) -> Result<Archive> {
    if files.spread() == ONE_DIRECTORY {
        find_label(&**files)?;
    }
    let _lock = files.lock(COMMIT, if writes { Hold::Alone } else { Hold::Shared }, true)?;
    files.begin(false)?;
    let (label, _) = look_for_label(&**files, settings.keeps(Rule::OneLabelPlaceEnough))?;
    if label.spread != files.spread() {
        let what = if label.spread[0] > 1 {
            "this is one node of an archive; name the archive, or give all nodes"
        } else {
            "this archive has one node"
        };
        return Err(Error::new(Kind::Unsupported, what));
    }
    if writes {
        label.may_be_changed()?;
    }
    let unlocked = key_area::unlock(&**files, &label, writes, settings)?;
    let opened = unlocked.as_ref().and_then(|(_, number)| *number);
    let identity = match unlocked {
        Some((sealing, _)) => Identity::sealed(label.id, Arc::new(sealing)),
        None => label.identity(),
    };
    if label.sealed.is_some() && look_for_proven(&**files, &identity, true)?.0 != label {
        return Err(corrupt("the label is another one each time it is read"));
    }
    let (memory, is_all) = (settings.memory, settings.memory_is_all);
    let (budget, filters) = (Budget::of_tables(memory, is_all), Budget::of_filters(memory, is_all));
    let late = label.late.is_some();
    let leaves = LeafStore::new(files.clone(), identity.clone(), settings, late, budget.clone());
    let from = (&budget, &leaves);
    let mut position = LogPosition::load_newest(files, &identity, &label, settings, None, from)?;
    if let (Some(_), Some(opener)) = (label.sealed, settings.opener.of())
        && let Some(seen) = opener.head_seen(&label.id).filter(|_| !opener.accepts_older())
    {
        position.must_pass(&**files, &label.id, settings, seen)?;
    }
    if writes {
        if files.spread() != ONE_DIRECTORY {
            position.read_log(&identity, settings, &budget)?;
        }
        // The copy that was read is whole: the others may be made like it.
        files.begin(true)?;
    }
    let mut settings = settings.clone();
    if matches!(identity.sealing().and_then(|sealing| sealing.role()), Some(Role::Put(_))) {
        // It can't read bytes to compare them, and takes away nothing, not even a checkpoint.
        settings.filters.retain(|filter| *filter != FilterName::ByteCompare);
        settings.append_only = true;
    }
    let archive = Archive {
        first: Arc::new(Domain::first(&label, &identity)?),
        others: Mutex::default(),
        identity,
        label,
        writes,
        settings,
        files: files.clone(),
        reserve: Reserve::among(files),
        position: Mutex::new(position),
        budget,
        filters,
        leaves,
        buffers: Arc::default(),
    };
    archive.replay_new_frames(&mut archive.position.lock())?;
    archive.leaves.opened();
    if let (Some(sealing), Some(opened)) = (archive.identity.sealing(), opened) {
        key_area::is_newest(sealing, opened, &archive.settings)?;
        if writes {
            key_area::make_equal(&*archive.files, &archive.label, &archive.settings)?;
        }
    }
    Ok(archive)
}

/// Ends erasures of domains that a crash cut off: both copies of the key area are as they should be, and the
/// log says which domains the key area has no more.
pub(crate) fn end_erasures(archive: &Archive) -> Result<()> {
    let Some(sealing) = archive.identity.sealing().filter(|_| archive.label.domains) else {
        return Ok(());
    };
    let unsaid = |tables: &Tables| -> Vec<Record> {
        let gone = sealing.erased_domains().into_iter();
        let unsaid = gone.filter(|number| !tables.domains.erased.contains_key(number));
        unsaid.map(|number| Record::DomainErased { number }).collect()
    };
    if unsaid(&archive.tables()).is_empty() {
        return Ok(());
    }
    archive.commit(true, |tables| Ok(unsaid(tables))).map(|_| ())
}

/// Draws from the memory for structures whose sizes the medium states.
pub(crate) fn memory_of(archive: &Archive) -> Drawn {
    Drawn::from(&archive.budget)
}

/// Draws from the memory for filters of the chunk index.
pub(crate) fn memory_of_filters(archive: &Archive) -> Drawn {
    Drawn::from(&archive.filters)
}

fn judge_sync(archive: &Archive, file: &dyn File, synced: Result<()>) -> Result<()> {
    match synced {
        Err(_) if !archive.keeps(Rule::FailedSyncNotRepeated) => file.sync(),
        synced => synced,
    }
}
