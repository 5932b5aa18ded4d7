//! An archive that an older program made is upgraded, by a process of its own.
//!
//! The model knows the kinds of tables that the archive has. An upgrade that was cut off is there or
//! not, as any opened archive shows. One that ended stays, whatever the medium loses.

use onefold_archive::{Kinds, upgrade};
use onefold_core::{Error, Kind};

use crate::{
    archive::{
        params::Profile,
        run::{Flow, Sim},
    },
    checker::{Checker, Failure},
};

/// How far the upgrade of an archive is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upgraded {
    /// The kinds of tables that the archive showed last.
    pub(crate) kinds: Kinds,
    /// An upgrade was cut off: its kinds may be there or not.
    is_unsure: bool,
    /// Of this life: damage may hit what it wrote.
    is_fresh: bool,
    /// The idle process that administers the archive opened it before.
    pub(crate) knows_old: bool,
}

impl Upgraded {
    pub(crate) fn of(kinds: Kinds) -> Upgraded {
        Upgraded { kinds, is_unsure: false, is_fresh: false, knows_old: false }
    }
}

impl Sim {
    /// The first move of a life often upgrades an older archive, later ones seldom.
    pub(crate) fn upgrade_move(&mut self, is_first: bool) -> Flow {
        self.upgraded.is_fresh &= !is_first;
        let is_due = self.params.older.is_some()
            && (self.upgraded.is_unsure || self.upgraded.kinds != self.newest_kinds());
        if !is_due || !self.upgrade_rng.percent(if is_first { 50 } else { 4 }) {
            return Ok(());
        }
        if !self.is_in_use() && self.upgrade_rng.percent(60) {
            // It is idle, and knows the archive as it was.
            self.admin()?;
        }
        self.upgrade()
    }

    fn newest_kinds(&self) -> Kinds {
        self.upgraded.kinds.upgraded(self.params.sealed)
    }

    /// Somebody holds a lock for longer than a change.
    fn is_in_use(&self) -> bool {
        let actors = &self.actors;
        actors.putting.is_some()
            || actors.backing.is_some()
            || actors.serving.is_some()
            || actors.collection.is_some()
            || !actors.readings.is_empty()
    }

    fn upgrade(&mut self) -> Flow {
        let archive = self.open(true)?;
        let in_use = self.is_in_use();
        match upgrade(&archive) {
            Ok(true) if in_use => {
                let message = "an archive was upgraded while others were at work";
                Err(Failure::new(Checker::Unexplained, message).into())
            }
            Ok(is_new) => {
                self.say(|| "upgraded".into());
                self.reach.hit(if is_new { "upgraded" } else { "an upgrade was completed" });
                let kinds = archive.label().kinds().upgraded(self.params.sealed);
                let knows_old = is_new && self.actors.admin.is_some();
                self.upgraded = Upgraded { kinds, is_unsure: false, is_fresh: true, knows_old };
                Ok(())
            }
            Err(error) if error.kind() == Kind::Busy && in_use => {
                self.reach.hit("an upgrade was refused");
                Ok(())
            }
            Err(error)
                if error.kind() == Kind::NoSpace
                    && self.params.profile == Profile::FullDisk
                    && !self.files.is_down() =>
            {
                self.reach.hit("an upgrade met a full disk");
                Ok(())
            }
            Err(error) => {
                self.reach.hit("an upgrade was cut off");
                self.upgraded.is_unsure = true;
                self.upgraded.knows_old = self.actors.admin.is_some();
                Err(self.judge("upgrade", &error))
            }
        }
    }

    /// When nothing fails, an older archive is upgraded.
    pub(crate) fn upgrade_at_last(&mut self) -> Flow {
        if self.params.older.is_none() {
            return Ok(());
        }
        self.upgrade()?;
        self.actors.admin = None;
        self.open(true)?;
        if self.upgraded.kinds == self.newest_kinds() {
            return Ok(());
        }
        let message = format!("after an upgrade {:?}", self.upgraded.kinds);
        Err(Failure::new(Checker::Progress, message).into())
    }

    /// An archive was opened that has these kinds of tables.
    pub(crate) fn look_at_kinds(&mut self, kinds: Kinds) -> Flow {
        if kinds != self.upgraded.kinds && !self.upgraded.is_unsure {
            let message = format!("{kinds:?} instead of {:?}", self.upgraded.kinds);
            return Err(Failure::new(Checker::DurableSurvives, message).into());
        }
        self.upgraded.kinds = kinds;
        Ok(())
    }

    /// True for the error of a process that knows the archive as it was before an upgrade, or as it
    /// was before the medium lost one that had not come to its end.
    pub(crate) fn is_outdated(&mut self, error: &Error) -> bool {
        let lost = self.upgraded.is_unsure && self.files.is_hurt();
        // It asks its own label first whether there may be clones or snapshots.
        if (lost || self.upgraded.knows_old) && error.kind() == Kind::Unsupported {
            return true;
        }
        let is_told = error.to_string().contains("was upgraded meanwhile");
        if is_told && self.upgraded.knows_old {
            self.reach.hit("an open process was told of an upgrade");
        }
        is_told && (self.upgraded.knows_old || lost)
    }

    /// True when damage is to hit the label: an upgrade has just written it.
    pub(crate) fn hits_label(&mut self) -> bool {
        self.upgraded.is_fresh && self.upgrade_rng.percent(60)
    }
}
