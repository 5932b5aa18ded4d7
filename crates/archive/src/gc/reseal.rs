//! Containers under an older data key are written again under the newest one of their domain, and the older key
//! is erased when nothing is under it any more. Here is how far a collection is with it; the writing stands
//! beside merging, and the erasure beside that of domains.
//!
//! Chunks keep their addresses and their fingerprints, so what names them goes on naming them. A container of
//! which a chunk is damaged stays, and with it the older key: its other chunks are read by it.
//!
//! The places of containers that were written again are freed in steps, while nobody reads in the epoch before.
//! So the work takes little room, and where somebody does read, as much as it writes. It takes nothing from the
//! reserve, by which space is freed on a full disk, and ends before.
//!
//! *Crash argument:* each frame moves some containers, and the next collection that reseals takes those that are
//! left, by what the log says. Containers under the older key only become less, since new ones have numbers
//! from the change on. So when none is left, and nobody can read where they were, none comes back.

use std::{collections::VecDeque, sync::Arc};

use onefold_core::Result;

use crate::{
    format::{ContainerId, class::Class, container::ContainerKind, damage::is_damage},
    operations_log::Archive,
    rules::Rule,
    tables::{Tables, is_under_older, with_older},
};

/// Containers, when they are full, that are written again before the places of those are freed which they were
/// copied from.
const FREED_EACH: u64 = 16;

/// Tells how many bytes are free in the file system.
pub type FreeBytes = Box<dyn Fn() -> Result<u64> + Send>;

/// Containers that are to be written again, with what those have in common that come into one: chunks of
/// recipes, their class, their domain.
pub(super) type Older = VecDeque<((bool, Class, u32), ContainerId)>;

/// How far a collection is with writing again.
pub(super) struct Resealing {
    archive: Arc<Archive>,
    /// Containers under older data keys are to be written again.
    pub(super) wanted: bool,
    /// Those that are left, once they were looked for.
    pub(super) older: Option<Older>,
    /// Bytes that were written again since the places of what they were copied from were freed.
    pub(super) since: u64,
    /// Free bytes of the file system, where somebody looks.
    pub(super) free_bytes: Option<FreeBytes>,
}

impl Resealing {
    /// Nothing is to be written again.
    pub(super) fn none(archive: &Arc<Archive>) -> Resealing {
        let archive = archive.clone();
        Resealing { archive, wanted: false, older: None, since: 0, free_bytes: None }
    }

    /// Bytes of containers that are written again before space is freed.
    fn freed_each(&self) -> u64 {
        FREED_EACH.saturating_mul(self.archive.settings.container_bytes as u64)
    }

    /// True when so much was written again that space is to be freed first.
    pub(super) fn is_due_to_free(&self) -> bool {
        self.since >= self.freed_each()
    }

    /// True when there is room to write more again, beside the reserve.
    pub(super) fn has_room(&self, reserve_bytes: u64) -> Result<bool> {
        let Some(free_bytes) = &self.free_bytes else { return Ok(true) };
        Ok(free_bytes()? >= reserve_bytes.saturating_add(self.freed_each()))
    }

    /// Containers that are left to be written again, as far as is known.
    pub(super) fn left(&self) -> Option<u64> {
        self.older.as_ref().map(|older| older.len() as u64)
    }

    /// The containers that are to be written again, in the order in which they are.
    pub(super) fn look(&self, tables: &Tables) -> Result<Older> {
        let mut all = Vec::new();
        if with_older(tables).next().is_none() {
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
            if is_under_older(tables, &container) && !is_condemned && !is_left_out {
                let is_recipes = stored.kind == ContainerKind::Recipes;
                all.push(((is_recipes, tables.class(&stored.place).0, stored.domain), stored.id));
            }
        }
        all.sort_unstable();
        Ok(all.into())
    }

    /// Containers of a domain that are under its older key. What can't be looked at may be.
    pub(super) fn left_under(&self, tables: &Tables, domain: u32) -> Result<u64> {
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
            let is_under = container.stored.domain == domain && is_under_older(tables, &container);
            left += u64::from(counts && is_under);
        }
        Ok(left)
    }
}
