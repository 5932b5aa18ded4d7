//! Containers less than half full become one: their live chunks are verified, copied and synced,
//! then one record says where they lie. Containers under an older data key are
//! [written again](super::reseal) in the same way, however full they are.

use onefold_core::{Kind, Result};

use super::collection::Collection;
use crate::{
    container::pack,
    format::{
        ContainerId,
        class::Class,
        container::{Chunk, ContainerKind, OpenContainer, Packer},
        domain::FIRST_DOMAIN,
        parameters::SLOTS_MAX,
        record::Record,
    },
    rules::Rule,
    tables::Tables,
};

impl Collection {
    /// Copies the live chunks of some containers into a new one; false when there are no more
    /// candidates.
    pub(super) fn merge(&mut self) -> Result<bool> {
        let tables = self.archive.refresh()?;
        // Containers that wait for late encoding are not merged before it.
        let due_for_encoding = self.due_for_encoding(&tables)?;
        let live = |id: &ContainerId, bits: &Vec<u8>| -> Result<Option<_>> {
            let container = tables.containers.get(id)?;
            let Some(container) = container.filter(|_| !due_for_encoding.contains(id)) else {
                return Ok(None);
            };
            let dead = bits.iter().map(|byte| byte.count_ones()).sum::<u32>();
            let of = container.stored.domain;
            let kind = (
                container.stored.kind == ContainerKind::Recipes,
                tables.class(&container.stored.place).0,
                if self.archive.keeps(Rule::MergedInOneDomain) { of } else { FIRST_DOMAIN },
            );
            Ok(Some((kind, container.stored.chunks.saturating_sub(dead), *id)))
        };
        let candidates =
            tables.condemned.iter().filter_map(|(id, bits)| live(id, bits).transpose());
        let mut candidates: Vec<((bool, Class, u32), u32, ContainerId)> =
            candidates.collect::<Result<_>>()?;
        // The emptiest containers free the most space for each copied chunk.
        candidates.sort_unstable();
        let Some(&(kind, ..)) = candidates.first() else { return Ok(false) };
        let (mut from, mut chunks, mut bytes, mut domain) =
            (Vec::new(), Vec::new(), 0, FIRST_DOMAIN);
        for &(_, _, id) in candidates.iter().filter(|candidate| candidate.0 == kind) {
            let Some(container) = tables.containers.get(&id)? else { continue };
            domain = container.stored.domain;
            match self.rewriter.live_chunks(&tables, &container) {
                Ok(live) => {
                    let more: usize = live.iter().map(|(_, bytes)| bytes.len()).sum();
                    let full = bytes + more > self.archive.settings.container_bytes
                        || chunks.len() + live.len() > SLOTS_MAX;
                    if !chunks.is_empty() && full {
                        break;
                    }
                    bytes += more;
                    chunks.extend(live);
                    from.push(id);
                }
                Err(error) if error.kind() == Kind::Corrupt => {
                    // The container stays, with the chunks that can still be read.
                    self.done.damaged += 1;
                    self.archive.commit(true, |_| {
                        Ok(vec![Record::Dropped { containers: Vec::new(), spared: vec![id] }])
                    })?;
                    return Ok(true);
                }
                Err(error) => return Err(error),
            }
        }
        let condemned = |now: &Tables, id: &ContainerId| Ok(now.condemned.contains_key(id));
        let kind = (kind.0, kind.1, domain);
        match self.write_together(&tables, kind, &from, chunks, (true, &condemned))? {
            Together::NoRoom => return Ok(false),
            Together::Gone => return Ok(true),
            Together::Written { copied, freed, .. } => {
                self.done.merged += from.len() as u64;
                self.done.merged_bytes += freed;
                self.done.into += 1;
                self.done.copied_chunks += copied;
            }
        }
        Ok(true)
    }

    /// Writes chunks of some containers into one new container, which takes their place while all of them are
    /// as they were. It takes from the reserve only if `spends`.
    pub(super) fn write_together(
        &mut self,
        tables: &Tables,
        (is_recipes, class, domain): (bool, Class, u32),
        from: &[ContainerId],
        mut chunks: Vec<(Chunk, Vec<u8>)>,
        (spends, is_as_it_was): (bool, &dyn Fn(&Tables, &ContainerId) -> Result<bool>),
    ) -> Result<Together> {
        let bytes = chunks.iter().map(|(_, bytes)| bytes.len()).sum();
        chunks.sort_unstable_by_key(|(chunk, _)| chunk.first);
        let id = self.rewriter.ids.next()?;
        let open = OpenContainer::new(
            id,
            if is_recipes { ContainerKind::Recipes } else { ContainerKind::Data },
            bytes,
        );
        let mut open = open.of_domain(domain);
        chunks
            .iter()
            .for_each(|(chunk, bytes)| open.push_as(chunk.fingerprint, chunk.first, bytes));
        let packed = pack(&self.archive, open, &mut Packer::new(self.archive.settings.level))?;
        let stored = loop {
            match self.rewriter.appender.write(&packed, class) {
                Err(error) if error.kind() == Kind::NoSpace => {
                    if !spends || !self.archive.reserve().spend()? {
                        // There is no room to copy; dead containers are freed already.
                        return Ok(Together::NoRoom);
                    }
                }
                written => break written?,
            }
        };
        self.rewriter.appender.sync()?;
        let copied = chunks.len() as u64;
        let mut taken = 0;
        for id in from {
            let container = tables.containers.get(id)?;
            taken += container.map_or(0, |container| tables.taken(&container.stored.place));
        }
        let written = u64::from(stored.place.bytes);
        let mut gone = false;
        let committed = self.archive.commit(spends, |now| {
            // A put may have given up containers that it had listed: then the copy is garbage
            // behind the segment's end.
            for id in from {
                gone |= !is_as_it_was(now, id)?;
            }
            let merged = || vec![Record::Merged { from: from.to_vec(), to: stored }];
            Ok(if gone { Vec::new() } else { merged() })
        });
        match committed {
            // Nor is there for a snapshot, which a log with many merges waits for.
            Err(error) if error.kind() == Kind::NoSpace => return Ok(Together::NoRoom),
            committed => drop(committed?),
        }
        Ok(match gone {
            true => Together::Gone,
            false => Together::Written { copied, written, freed: taken.saturating_sub(written) },
        })
    }

    /// Writes some containers again; false when there are no more.
    pub(super) fn reseal_some(&mut self) -> Result<bool> {
        if self.resealing.is_due_to_free() {
            self.free_resealed()?;
        }
        if !self.resealing.has_room(self.options.reserve_bytes)? {
            self.free_resealed()?;
            if !self.resealing.has_room(self.options.reserve_bytes)? {
                self.done.no_room |= !self.resealing.look(&*self.archive.refresh()?)?.is_empty();
                return Ok(false);
            }
        }
        let tables = self.archive.refresh()?;
        let mut older = match self.resealing.older.take() {
            Some(older) => older,
            None => self.resealing.look(&tables)?,
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
                    self.resealing.older = Some(older);
                    return Err(error);
                }
            }
            older.pop_front();
        }
        self.resealing.older = Some(older);
        let Some(kind) = of else { return Ok(false) };
        let is_there = |now: &Tables, id: &ContainerId| {
            Ok(now.containers.contains_key(id)? && !now.condemned.contains_key(id))
        };
        let written = match self.write_together(&tables, kind, &from, chunks, (false, &is_there)) {
            Err(error) if error.kind() == Kind::NoSpace => Together::NoRoom,
            written => written?,
        };
        match written {
            // The next collection goes on with the rest.
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
                self.resealing.since += written;
            }
        }
        Ok(true)
    }

    /// Frees what was written again, as far as nobody has to be waited for.
    fn free_resealed(&mut self) -> Result<()> {
        self.resealing.since = 0;
        let waits = std::mem::replace(&mut self.options.wait, false);
        let freed = self.advance().and_then(|()| self.free());
        self.options.wait = waits;
        match freed {
            // The frame that says so may find no room: what it would free waits.
            Err(error) if error.kind() == Kind::NoSpace => Ok(()),
            freed => freed,
        }
    }
}

/// The fate of chunks that were to be written together.
pub(super) enum Together {
    /// There is no room for the copy, or for the frame that names it.
    NoRoom,
    /// Some of the containers are not as they were: the copy is garbage behind the segment's end.
    Gone,
    /// The new container is in their place.
    Written {
        /// Chunks.
        copied: u64,
        /// Bytes of the new container.
        written: u64,
        /// Bytes that the containers took more.
        freed: u64,
    },
}
