//! Containers under an older data key are written again under the newest one of their domain, and the older key
//! is erased when nothing is under it any more.
//!
//! Chunks keep their addresses and their fingerprints, so what names them goes on naming them. A container of
//! which a chunk is damaged stays, and with it the older key: its other chunks are read by it.
//!
//! What was written again is freed in steps, while nobody reads in the epoch before. So it takes little room, and
//! where somebody does read, all of it. It never takes from the reserve, by which space is freed on a full disk: it
//! ends before.
//!
//! *Crash argument:* each frame moves some containers, and the next collection that reseals takes those that are
//! left, by what the log says. Containers under the older key only become less, since new ones have numbers
//! from the change on. So when none is left, and nobody can read where they were, none comes back.

use onefold_core::{Kind, Result};

use super::{
    collection::{Collection, Older},
    merge::Together,
};
use crate::{
    chunk_index::make_anew_paced,
    format::{
        ContainerId, container::ContainerKind, damage::is_damage, domain::FIRST_DOMAIN,
        parameters::SLOTS_MAX,
    },
    operations_log::erase_older_data_key,
    rules::Rule,
    tables::Tables,
};

/// Containers, when they are full, that are written again before the places of those are freed which they were
/// copied from.
const FREED_EACH: u64 = 16;

/// Tells how many bytes are free in the file system.
pub type FreeBytes = Box<dyn Fn() -> Result<u64> + Send>;

impl Collection {
    /// What is written again ends when fewer bytes are free than the reserve has, and 16 full containers.
    pub fn watch_room(&mut self, free_bytes: FreeBytes) {
        self.free_bytes = Some(free_bytes);
    }

    /// Bytes of containers that are written again before space is freed.
    fn freed_each(&self) -> u64 {
        FREED_EACH.saturating_mul(self.archive.settings.container_bytes as u64)
    }

    /// True when there is room to write more again.
    fn has_room(&self) -> Result<bool> {
        let Some(free_bytes) = &self.free_bytes else { return Ok(true) };
        let least = self.options.reserve_bytes.saturating_add(self.freed_each());
        Ok(free_bytes()? >= least)
    }

    /// Frees what was written again, as far as nobody has to be waited for.
    fn free_resealed(&mut self) -> Result<()> {
        self.resealed_since = 0;
        let waits = std::mem::replace(&mut self.options.wait, false);
        let freed = self.advance().and_then(|()| self.free());
        self.options.wait = waits;
        match freed {
            // The frame that says so may find no room: what it would free waits.
            Err(error) if error.kind() == Kind::NoSpace => Ok(()),
            freed => freed,
        }
    }

    /// What is under an older data key is written again under the newest one of its domain, when all else is
    /// done. An older key under which nothing is left is erased then. Dead chunks in such containers are
    /// collected however few they are, and so is what killed puts left there: no put finds it any more.
    pub fn reseal(&mut self) {
        self.reseals = self.archive.label().data_keys;
    }

    /// The containers that are to be written again, in the order in which they are.
    fn older(&self, tables: &Tables) -> Result<Older> {
        let mut all = Vec::new();
        if tables.with_older().next().is_none() {
            return Ok(Older::new());
        }
        for container in &tables.containers {
            let container = match container {
                // The older key stays as long as a part of the table can't be read.
                Err(error) if is_damage(&error) => continue,
                found => found?,
            };
            let stored = &container.stored;
            let is_left_out = tables.unfinished.contains_key(&stored.id)
                && !self.archive.keeps(Rule::OlderKeyAsLongAsNeeded);
            let is_condemned = tables.condemned.contains_key(&stored.id);
            if tables.is_under_older(&container) && !is_condemned && !is_left_out {
                let is_recipes = stored.kind == ContainerKind::Recipes;
                all.push(((is_recipes, tables.class(&stored.place).0, stored.domain), stored.id));
            }
        }
        all.sort_unstable();
        Ok(all.into())
    }

    /// Containers that are left to be written again, as far as is known.
    pub(super) fn left_to_reseal(&self) -> Option<u64> {
        self.older.as_ref().map(|older| older.len() as u64)
    }

    /// Writes some containers again; false when there are no more.
    pub(super) fn reseal_some(&mut self) -> Result<bool> {
        if self.resealed_since >= self.freed_each() {
            self.free_resealed()?;
        }
        if !self.has_room()? {
            self.free_resealed()?;
            if !self.has_room()? {
                self.done.no_room |= !self.older(&*self.archive.refresh()?)?.is_empty();
                return Ok(false);
            }
        }
        let tables = self.archive.refresh()?;
        let mut older = match self.older.take() {
            Some(older) => older,
            None => self.older(&tables)?,
        };
        let (mut from, mut chunks, mut bytes, mut of) = (Vec::new(), Vec::new(), 0, None);
        while let Some(&(kind, id)) = older.front() {
            if of.is_some_and(|of| of != kind) {
                break;
            }
            let container = tables.containers.get(&id)?;
            // It went meanwhile, or is to go.
            let Some(container) = container.filter(|_| !tables.condemned.contains_key(&id)) else {
                older.pop_front();
                continue;
            };
            match self.rewriter.live_chunks(&tables, &container) {
                Ok(live) => {
                    let more: usize = live.iter().map(|(_, bytes)| bytes.len()).sum();
                    let full = bytes + more > self.archive.settings.container_bytes
                        || chunks.len() + live.len() > SLOTS_MAX;
                    if !from.is_empty() && full {
                        break;
                    }
                    bytes += more;
                    chunks.extend(live);
                    from.push(id);
                    of = Some(kind);
                }
                Err(error) if error.kind() == Kind::Corrupt => self.done.damaged += 1,
                Err(error) => {
                    self.older = Some(older);
                    return Err(error);
                }
            }
            older.pop_front();
        }
        self.older = Some(older);
        let Some(kind) = of else { return Ok(false) };
        let is_there = |now: &Tables, id: &ContainerId| {
            Ok(now.containers.contains_key(id)? && !now.condemned.contains_key(id))
        };
        let written = match self.write_together(&tables, kind, &from, chunks, (false, &is_there)) {
            Err(error) if error.kind() == Kind::NoSpace => Together::NoRoom,
            written => written?,
        };
        match written {
            // What is left is for the next one.
            Together::NoRoom => {
                self.done.no_room = true;
                return Ok(false);
            }
            Together::Gone => {}
            Together::Written { copied, written, .. } => {
                self.done.resealed += from.len() as u64;
                self.done.resealed_into += 1;
                self.done.resealed_chunks += copied;
                self.done.resealed_bytes += written;
                self.resealed_since += written;
            }
        }
        Ok(true)
    }

    /// Erases the older data keys under which nothing is any more, when nobody can read where it was.
    pub(super) fn erase_older_keys(&mut self) -> Result<()> {
        let tables = self.archive.refresh()?;
        let two: Vec<_> = tables.with_older().cloned().collect();
        for rotation in two {
            let left = self.left_under(&tables, rotation.domain)?;
            self.done.under_older += left;
            let waits = !tables.waiting_to_be_freed.is_empty();
            if left > 0 || (waits && self.archive.keeps(Rule::OlderKeyAsLongAsNeeded)) {
                continue;
            }
            // Pages of the index are under the key of the first domain.
            let pages = |tables: &Tables| {
                tables.index.files.iter().any(|file| file.number <= rotation.index)
            };
            if rotation.domain == FIRST_DOMAIN && pages(&tables) {
                match make_anew_paced(&self.archive, &self.rewriter.pace) {
                    Err(error) if error.kind() == Kind::NoSpace => continue,
                    made => drop(made?),
                }
                if pages(&*self.archive.refresh()?) {
                    // Somebody else writes it just now.
                    continue;
                }
            }
            erase_older_data_key(&self.archive, rotation.domain, rotation.generation)?;
            self.done.keys_erased += 1;
        }
        Ok(())
    }

    /// Containers of a domain that are under its older key. What can't be looked at may be.
    fn left_under(&self, tables: &Tables, domain: u32) -> Result<u64> {
        let mut left = 0;
        for container in &tables.containers {
            let container = match container {
                Err(error) if is_damage(&error) => {
                    left += 1;
                    continue;
                }
                found => found?,
            };
            let id = &container.stored.id;
            let is_named =
                !tables.unfinished.contains_key(id) && !tables.condemned.contains_key(id);
            let counts = is_named || self.archive.keeps(Rule::OlderKeyAsLongAsNeeded);
            let is_under = container.stored.domain == domain && tables.is_under_older(&container);
            left += u64::from(counts && is_under);
        }
        Ok(left)
    }
}
