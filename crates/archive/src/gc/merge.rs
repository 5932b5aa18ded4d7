//! Containers less than half full become one: their live chunks are verified, copied and synced,
//! then one record says where they lie.

use onefold_core::{Kind, Result};

use super::collection::Collection;
use crate::{
    container::pack,
    format::{
        ContainerId,
        class::Class,
        container::{ContainerKind, OpenContainer, Packer},
        domain::FIRST_DOMAIN,
        parameters::SLOTS_MAX,
        record::Record,
    },
    rules::Rule,
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
        chunks.sort_unstable_by_key(|(chunk, _)| chunk.first);
        let id = self.rewriter.ids.next()?;
        let open = OpenContainer::new(
            id,
            if kind.0 { ContainerKind::Recipes } else { ContainerKind::Data },
            bytes,
        );
        let mut open = open.of_domain(domain);
        chunks
            .iter()
            .for_each(|(chunk, bytes)| open.push_as(chunk.fingerprint, chunk.first, bytes));
        let packed = pack(&self.archive, open, &mut Packer::new(self.archive.settings.level))?;
        let stored = loop {
            match self.rewriter.appender.write(&packed, kind.1) {
                Err(error) if error.kind() == Kind::NoSpace => {
                    if !self.archive.reserve().spend()? {
                        // There is no room to copy; dead containers are freed already.
                        return Ok(false);
                    }
                }
                written => break written?,
            }
        };
        self.rewriter.appender.sync()?;
        let (merged, copied) = (from.len() as u64, chunks.len() as u64);
        let mut taken = 0;
        for id in &from {
            let container = tables.containers.get(id)?;
            taken += container.map_or(0, |container| tables.taken(&container.stored.place));
        }
        let freed = taken.saturating_sub(u64::from(stored.place.bytes));
        let mut gone = false;
        let committed = self.archive.commit(true, |now| {
            // A put may have given up containers that it had listed: then the copy is garbage
            // behind the segment's end.
            gone = from.iter().any(|id| !now.condemned.contains_key(id));
            Ok(if gone { Vec::new() } else { vec![Record::Merged { from, to: stored }] })
        });
        match committed {
            // Nor is there for a snapshot, which a log with many merges waits for.
            Err(error) if error.kind() == Kind::NoSpace => return Ok(false),
            committed => drop(committed?),
        }
        if gone {
            return Ok(true);
        }
        self.done.merged += merged;
        self.done.merged_bytes += freed;
        self.done.into += 1;
        self.done.copied_chunks += copied;
        Ok(true)
    }
}
