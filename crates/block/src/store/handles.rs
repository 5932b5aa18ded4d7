//! Who has which volume open.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use onefold_core::{Error, Kind, Result, VolumeId};

/// The volumes that are open.
#[derive(Default)]
pub(super) struct Handles(BTreeMap<VolumeId, Open>);

#[derive(Default)]
struct Open {
    count: usize,
    ended: Arc<AtomicBool>,
}

/// Says whether what was open was ended.
pub(super) struct Handle(Arc<AtomicBool>);

impl Handle {
    /// Fails once the volume was rolled back, or the snapshot deleted, under who has it open.
    pub(super) fn check(&self) -> Result<()> {
        if !self.0.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Stopped,
            "the volume was rolled back, or its snapshot deleted, while it was open: open it again",
        ))
    }
}

impl Handles {
    /// Somebody opens a volume.
    pub(super) fn open(&mut self, id: VolumeId) -> Handle {
        let open = self.0.entry(id).or_default();
        open.count += 1;
        Handle(open.ended.clone())
    }

    /// Somebody has closed it.
    pub(super) fn close(&mut self, id: VolumeId, handle: &Handle) {
        if let Some(open) = self.0.get_mut(&id)
            && Arc::ptr_eq(&open.ended, &handle.0)
        {
            open.count -= 1;
            if open.count == 0 {
                self.0.remove(&id);
            }
        }
    }

    /// Ends what is open, by `force`.
    ///
    /// # Errors
    /// `Busy` when something is, and it may not be ended.
    pub(super) fn end(&mut self, id: VolumeId, force: bool) -> Result<()> {
        let Some(open) = self.0.get(&id) else { return Ok(()) };
        if !force {
            return Err(Error::new(
                Kind::Busy,
                "somebody has it open: stop that first, or say --force, which makes their requests fail",
            ));
        }
        open.ended.store(true, Ordering::Relaxed);
        self.0.remove(&id);
        Ok(())
    }
}
