//! Clients of a sealed archive remember the last head that they saw, and whoever holds its files puts the
//! whole archive back as it was, or shows one client what another one did to that.
//!
//! One client sees each change, as all processes of the simulation are its own. Another one comes seldom, so
//! that checkpoints lie between its visits. What they remember is on other machines, and no crash takes it.
//! No honest crash may leave an archive that they refuse.

use std::sync::Arc;

use onefold_archive::{Archive, KeySource, Settings, VOLUME_BLOCK_BYTES};
use onefold_core::Kind;
use onefold_seal::Head;
use onefold_testbed::{
    Rng,
    files::{Mount, MountCopy},
};
use parking_lot::Mutex;

use super::keys::Sealed;
use crate::archive::run::{Flow, Sim};

/// A fork takes so many changes at most.
const CHANGES_MAX: u64 = 300;

/// The last head that a client saw.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Option<Head>>>);

impl Memory {
    pub(super) fn head(&self) -> Option<Head> {
        *self.0.lock()
    }

    pub(super) fn saw(&self, head: &Head) {
        let mut known = self.0.lock();
        if known.is_none_or(|known| known.number <= head.number) {
            *known = Some(*head);
        }
    }
}

/// The clients, and what was taken.
pub(crate) struct Heads {
    rng: Rng,
    always: Memory,
    seldom: Memory,
    /// The whole archive as it was, and its head then.
    older: Option<(Head, MountCopy)>,
}

impl Heads {
    pub(crate) fn new(seed: u64) -> Heads {
        let rng = Rng::new(seed ^ 0x6865_6164_735f_6f66);
        Heads { rng, always: Memory::default(), seldom: Memory::default(), older: None }
    }

    /// Who opens the archive as the client that sees each change.
    pub(crate) fn opener(&self) -> KeySource {
        Sealed::opener(Some(self.always.clone()))
    }
}

impl Sim {
    /// Between two lives.
    pub(crate) fn put_whole_back(&mut self) -> Flow {
        let is_quiet = !self.damaged && !self.refused && !self.files.is_hurt();
        if !is_quiet || !self.params.puts_back || !self.params.attacks_heads() {
            return Ok(());
        }
        // The client that sees each change knows the last one now.
        self.open(false)?;
        let Some(heads) = &mut self.heads else { return Ok(()) };
        let (visits, attacks, takes) =
            (heads.rng.percent(40), heads.rng.percent(60), heads.rng.percent(40));
        let seldom = heads.seldom.clone();
        let now = heads.always.head();
        if visits {
            let comes_back = seldom.head();
            self.open_by(Some(seldom), false, None).map_err(|error| self.judge("open", &error))?;
            if comes_back.zip(now).is_some_and(|(then, now)| then.number < now.number) {
                self.reach.hit("a client that came seldom found its head");
            }
        }
        let Some(heads) = &mut self.heads else { return Ok(()) };
        if attacks
            && let Some((then, copy)) = heads.older.take()
            && let Some(now) = now.filter(|now| then.number < now.number)
        {
            self.attack_heads(&copy, now)?;
        }
        let Some(heads) = &mut self.heads else { return Ok(()) };
        if let Some(now) = now.filter(|_| takes || heads.older.is_none()) {
            heads.older = Some((now, Mount::of_all(&self.files).copy()));
        }
        Ok(())
    }

    /// The archive is put back as it was, then another client goes on with that.
    fn attack_heads(&mut self, copy: &MountCopy, now: Head) -> Flow {
        let all = Mount::of_all(&self.files);
        let good = all.copy();
        all.put_back(copy);
        self.is_refused("an older archive that was put back was taken")?;
        self.reach.hit("an older archive was refused");
        if self.upgraded.kinds.heads && self.fork(now)? {
            self.is_refused("a fork of the archive was taken")?;
            self.reach.hit("a fork of the archive was refused");
        }
        all.put_back(&good);
        Ok(())
    }

    /// A client that never saw the archive changes it until it has more changes than this head; false when
    /// these would be too many.
    fn fork(&mut self, now: Head) -> Result<bool, crate::archive::run::Stop> {
        let Some(heads) = &mut self.heads else { return Ok(false) };
        // With and without checkpoints since.
        let log_bytes = *heads.rng.pick(&[1, 1000, 64 << 10]).unwrap_or(&1);
        let last = now.number + heads.rng.below(8);
        let forked = self.open_by(None, true, Some(log_bytes));
        let archive = forked.map_err(|error| self.judge("open", &error))?;
        if last > archive.tables().sequence + CHANGES_MAX {
            return Ok(false);
        }
        while archive.tables().sequence < last {
            let made = archive.create_volume("fork", VOLUME_BLOCK_BYTES, self.now);
            made.and_then(|_| archive.delete_volume("fork"))
                .map_err(|error| self.judge("fork", &error))?;
        }
        Ok(true)
    }

    fn open_by(
        &self,
        memory: Option<Memory>,
        writes: bool,
        log_bytes: Option<u64>,
    ) -> onefold_core::Result<Archive> {
        let settings = self.settings();
        let log_bytes = log_bytes.unwrap_or(settings.log_bytes);
        let settings = Settings { opener: Sealed::opener(memory), log_bytes, ..settings };
        Archive::open(Arc::new(self.files.clone()), writes, settings)
    }

    /// The client that sees each change refuses the archive as it is.
    fn is_refused(&mut self, otherwise: &str) -> Flow {
        let always = self.heads.as_ref().map(|heads| heads.always.clone());
        for writes in [false, true] {
            match self.open_by(always.clone(), writes, None) {
                Ok(_) => return Err(Sim::breach(otherwise)),
                Err(error) if error.kind() == Kind::Denied => {}
                Err(error) => return Err(self.judge("open", &error)),
            }
        }
        Ok(())
    }
}
