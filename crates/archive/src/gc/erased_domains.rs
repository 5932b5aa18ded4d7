//! Containers of domains that were erased: all of them are freed as they are. No recipe and no page is read.
//! And older data keys under which nothing is any more: they are erased.
//!
//! *Crash argument:* each frame frees some of them, and the last one says that none is left. A collection
//! that ends in between leaves the rest to the next one.

use std::collections::BTreeMap;

use onefold_core::{Kind, Result};

use super::collection::Collection;
use crate::{
    chunk_index::make_anew_paced,
    format::{
        ContainerId, damage::is_damage, data_keys::Rotation, domain::FIRST_DOMAIN, record::Record,
    },
    operations_log::erase_older_data_key,
    rules::Rule,
    tables::{Tables, with_older},
};

/// Bytes of a container in a frame that frees it.
const ID_BYTES: usize = 8;

impl Collection {
    /// Drops all containers of domains that were erased. Their places are freed when whoever may still read
    /// them has left.
    pub(super) fn drop_erased(&mut self) -> Result<()> {
        let tables = self.archive.refresh()?;
        let (found, is_complete) = containers_of_erased(&tables)?;
        let at_once = (self.archive.settings.frame_bytes / 2 / ID_BYTES).max(1);
        for (number, all) in found {
            let mut parts: Vec<&[ContainerId]> = all.chunks(at_once).collect();
            let last = parts.pop().unwrap_or_default();
            for (part, is_last) in parts.into_iter().map(|part| (part, false)).chain([(last, true)])
            {
                let all = is_last && is_complete;
                let (mut gone, mut bytes) = (0, 0);
                self.archive.commit(true, |now| {
                    // A put that was under way may have given up some.
                    let mut containers = Vec::new();
                    for id in part {
                        if let Some(container) = now.containers.get(id)? {
                            containers.push(*id);
                            bytes += now.taken(&container.stored.place);
                        }
                    }
                    gone = containers.len() as u64;
                    let nothing = containers.is_empty() && !all;
                    let freed = Record::DomainFreed { number, containers, all };
                    Ok((!nothing).then_some(freed).into_iter().collect())
                })?;
                self.done.erased += gone;
                self.done.erased_bytes += bytes;
            }
        }
        Ok(())
    }

    /// Erases the older data keys under which nothing is any more, when nobody can read where it was.
    pub(super) fn erase_older_keys(&mut self) -> Result<()> {
        let tables = self.archive.refresh()?;
        let two: Vec<_> = with_older(&tables).cloned().collect();
        for rotation in two {
            let left = self.resealing.left_under(&tables, rotation.domain)?;
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
            let Rotation { domain, generation, .. } = rotation;
            self.done.keys_erased +=
                u64::from(erase_older_data_key(&self.archive, domain, generation)?);
        }
        Ok(())
    }
}

/// The containers of each erased domain of which something may be left, and whether all of the container
/// table could be looked at.
pub(super) fn containers_of_erased(
    tables: &Tables,
) -> Result<(BTreeMap<u32, Vec<ContainerId>>, bool)> {
    let waiting = tables.domains.erased.iter().filter(|(_, is_free)| !**is_free);
    let mut found: BTreeMap<u32, Vec<ContainerId>> =
        waiting.map(|(number, _)| (*number, Vec::new())).collect();
    let mut is_complete = true;
    if found.is_empty() {
        return Ok((found, is_complete));
    }
    for container in &tables.containers {
        match container {
            Err(error) if is_damage(&error) => is_complete = false,
            container => {
                let stored = container?.stored;
                if let Some(all) = found.get_mut(&stored.domain) {
                    all.push(stored.id);
                }
            }
        }
    }
    Ok((found, is_complete))
}
