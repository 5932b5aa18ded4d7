//! Where leaves of the container table come from that are not in memory.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

use super::cache::{Cache, Entries};
use crate::{
    erasure::Redundancy,
    format::{ContainerId, Identity, bytes::corrupt, label::find_label},
    leaf_file::{LeafPlace, LeafReader},
    memory::{Budget, Drawn},
    settings::Settings,
    tables::leaf_form::{containers, out_of_order},
};

/// Reads leaves of the container table, and keeps those that were looked at last. All tables of an
/// opened archive share one.
///
/// A leaf is known by its place: where it lies, and the checksum of its bytes. So what one snapshot
/// of the tables had read serves the others that name the same leaf.
pub(crate) struct LeafStore {
    files: Arc<dyn Redundancy>,
    identity: Identity,
    settings: Settings,
    late: bool,
    budget: Arc<Budget>,
    cache: Mutex<Cache>,
    /// Leaves whose first copy was found damaged: the next snapshot writes them again.
    damaged: Mutex<BTreeSet<LeafPlace>>,
    /// The archive is open: a copy of the tables that turns out to be damaged is left out.
    is_open: AtomicBool,
}

/// What the directory says of a leaf.
pub(super) struct Named {
    pub(super) place: LeafPlace,
    /// Not above the first number in it.
    pub(super) first: ContainerId,
    /// Above the last number in it.
    pub(super) end: Option<ContainerId>,
    pub(super) count: usize,
    /// The snapshot that names it.
    pub(super) snapshot: u64,
}

impl Named {
    fn check(&self, entries: &Entries) -> Result<()> {
        let fits = entries.len() == self.count
            && entries.first().is_some_and(|(id, _)| *id >= self.first)
            && entries.last().is_some_and(|(id, _)| self.end.is_none_or(|end| *id < end));
        fits.then_some(()).ok_or_else(|| corrupt("a leaf of the tables is another one"))
    }
}

impl fmt::Debug for LeafStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeafStore").finish_non_exhaustive()
    }
}

impl LeafStore {
    pub(crate) fn new(
        files: Arc<dyn Redundancy>,
        identity: Identity,
        settings: &Settings,
        late: bool,
        budget: Arc<Budget>,
    ) -> Arc<LeafStore> {
        Arc::new(LeafStore {
            files,
            identity,
            settings: settings.clone(),
            late,
            budget,
            cache: Mutex::new(Cache::new(settings.leaf_bytes)),
            damaged: Mutex::default(),
            is_open: AtomicBool::new(false),
        })
    }

    /// From now on a copy of the tables that is damaged is left out where there are others.
    pub(crate) fn opened(&self) {
        self.is_open.store(true, Relaxed);
    }

    /// Bytes of memory of the leaves that it keeps.
    pub(crate) fn bytes(&self) -> u64 {
        self.cache.lock().bytes()
    }

    #[cfg(feature = "planted-bugs")]
    pub(super) fn keeps(&self, rule: crate::rules::Rule) -> bool {
        self.settings.keeps(rule)
    }

    /// True when the next snapshot writes this leaf again, as its first copy is damaged.
    pub(super) fn is_damaged(&self, place: &LeafPlace) -> bool {
        self.damaged.lock().contains(place)
    }

    /// Keeps a leaf that was just written.
    pub(super) fn keep(&self, place: LeafPlace, entries: Arc<Entries>) {
        self.cache.lock().put(place, entries, Drawn::default());
    }

    /// The entries of a leaf, from memory or from the disk.
    ///
    /// # Errors
    /// `Corrupt` when both copies are lost; `Busy` when its pages were written again, since
    /// snapshots followed the one that names it; errors of the system.
    pub(super) fn load(&self, named: &Named) -> Result<Arc<Entries>> {
        let known = self.cache.lock().get(&named.place);
        if let Some(entries) = known {
            return named.check(&entries).map(|()| entries);
        }
        loop {
            match self.read(named) {
                Err(error) if error.kind() == Kind::Corrupt => {
                    self.still_named(named)?;
                    if !self.is_open.load(Relaxed) || !self.files.leave_damaged_copy() {
                        return Err(error);
                    }
                }
                read => return read,
            }
        }
    }

    fn read(&self, named: &Named) -> Result<Arc<Entries>> {
        let (place, form) = (named.place, containers(self.late));
        let drawn = Drawn::from(&self.budget);
        let mut reader = LeafReader::on_demand(&*self.files, &self.identity, &self.settings);
        // A stranger's directory may say any length. The bytes go when the entries are there.
        let bytes_drawn = Drawn::from(&self.budget);
        let read = reader.read(place, &bytes_drawn)?;
        let (count, bytes) = read.body(place, form.table)?;
        let entries = form.decoded(count, bytes, &drawn)?;
        if !entries.windows(2).all(|two| two[0].0 < two[1].0) {
            return Err(out_of_order());
        }
        named.check(&entries)?;
        if !read.is_first && reader.rewrites() {
            self.damaged.lock().insert(place);
        }
        let entries = Arc::new(entries);
        self.cache.lock().put(place, entries.clone(), drawn);
        Ok(entries)
    }

    /// Errors when other leaves may lie where this one was: pages that a snapshot names are not
    /// written before two others have followed it.
    fn still_named(&self, named: &Named) -> Result<()> {
        let newest = find_label(&*self.files)?.snapshot;
        if newest < named.snapshot.saturating_add(2) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Busy,
            "the archive changed while its tables were read, and they have moved on; try again",
        ))
    }
}
