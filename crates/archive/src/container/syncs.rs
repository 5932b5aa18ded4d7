//! Which of the containers that an appender wrote are durable.
//!
//! A sync is begun now and then, and goes on while more is written. One is under way at a time: the
//! system tells one of several of a failure, and the others nothing.
//!
//! *Crash argument:* a container counts as durable when a sync that began behind its write was
//! waited for, and none before has failed. A sync that was only begun says nothing.

use std::sync::Arc;

use onefold_core::{File, PendingSync, Result};

use crate::{operations_log::Archive, rules::Rule};

/// The syncs of one appender.
pub(super) struct Syncs {
    archive: Arc<Archive>,
    /// Containers written so far: the number of the last one.
    written: u64,
    /// Containers up to this number are durable.
    durable: u64,
    /// Files with containers that no sync covers, and how many bytes these have.
    dirty: Vec<Arc<dyn File>>,
    dirty_bytes: u64,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    syncs: Vec<(Arc<dyn File>, Box<dyn PendingSync>)>,
    /// The last container that they cover.
    upto: u64,
    bytes: u64,
}

impl Syncs {
    pub(super) fn new(archive: Arc<Archive>) -> Syncs {
        let (dirty, under_way) = (Vec::new(), None);
        Syncs { archive, written: 0, durable: 0, dirty, dirty_bytes: 0, under_way }
    }

    /// A container was written.
    pub(super) fn wrote(&mut self, file: &Arc<dyn File>, bytes: u64) {
        if self.dirty.iter().all(|dirty| !Arc::ptr_eq(dirty, file)) {
            self.dirty.push(file.clone());
        }
        self.dirty_bytes += bytes;
        self.written += 1;
    }

    /// The number of the last container that was written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// The number of the last container that is durable, with all before it.
    pub(super) fn durable(&self) -> u64 {
        match &self.under_way {
            Some(under_way) if !self.archive.keeps(Rule::ListedWhenDurable) => under_way.upto,
            _ => self.durable,
        }
    }

    /// Begins a sync when there is enough for one and none is under way. Waits only when more than
    /// the bound is not durable.
    pub(super) fn keep_up(&mut self) -> Result<()> {
        if self.under_way.as_ref().is_some_and(UnderWay::is_over) {
            self.wait()?;
        }
        let settings = &self.archive.settings;
        let (some, most) = (settings.sync_bytes, settings.unsynced_bytes);
        if self.unsynced() >= most && self.archive.keeps(Rule::UnsyncedBounded) {
            self.begin();
            self.wait()?;
        }
        if self.dirty_bytes >= some {
            self.begin();
        }
        Ok(())
    }

    /// Makes all containers durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.wait()?;
        if self.archive.keeps(Rule::ContainersBeforeRecord) {
            self.dirty.iter().try_for_each(|file| self.archive.sync(&**file))?;
        }
        self.forget();
        Ok(())
    }

    /// Nobody needs to know any more what is durable.
    pub(super) fn forget(&mut self) {
        (self.dirty_bytes, self.durable, self.under_way) = (0, self.written, None);
        self.dirty.clear();
    }

    /// Bytes of containers that are not known to be durable.
    fn unsynced(&self) -> u64 {
        self.dirty_bytes + self.under_way.as_ref().map_or(0, |under_way| under_way.bytes)
    }

    /// Begins a sync, unless one is under way or there is nothing to do.
    fn begin(&mut self) {
        if self.under_way.is_some() || self.dirty.is_empty() {
            return;
        }
        let files = std::mem::take(&mut self.dirty);
        let bytes = std::mem::take(&mut self.dirty_bytes);
        let syncs = files.into_iter().map(|file| {
            let begun = file.clone().begin_sync();
            (file, begun)
        });
        self.under_way = Some(UnderWay { syncs: syncs.collect(), upto: self.written, bytes });
    }

    /// Waits for the sync that is under way.
    fn wait(&mut self) -> Result<()> {
        let Some(UnderWay { syncs, upto, .. }) = self.under_way.take() else { return Ok(()) };
        for (file, begun) in syncs {
            self.archive.settle(&*file, begun)?;
        }
        self.durable = upto;
        Ok(())
    }
}

impl UnderWay {
    fn is_over(&self) -> bool {
        self.syncs.iter().all(|(_, begun)| begun.is_over())
    }
}
