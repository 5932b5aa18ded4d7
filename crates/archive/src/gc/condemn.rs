//! Condemns chunks that no recipe names, checks them again when older puts have ended, and drops
//! them.

use std::collections::BTreeSet;

use onefold_core::{Kind, Result};

use super::{collection::Collection, dead_chunks::DeadChunks};
use crate::{
    container::Rewriter,
    format::{
        Address, ContainerId,
        damage::is_condemned,
        record::{Pieces, Record},
    },
    operations_log::await_earlier_epoch,
    rules::Rule,
    tables::{Difference, List, Tables, is_under_older},
    tree::Trees,
    usage_counts::{CountsReader, InMemory, is_gone},
};

/// How often what came since the counts were made is looked at while others go on.
const LOOKS_BESIDE_OTHERS: u32 = 3;

/// Tree nodes that are read in such a look while everybody waits for it, at most.
const NODES_WHILE_OTHERS_WAIT: usize = 4096;

/// The differences that were looked at, and the containers that they name.
#[derive(Clone, Default)]
struct NamedSince {
    /// The differences that were looked at.
    looked_at: List<Difference>,
    /// Containers that have a condemned chunk which is named.
    spared: BTreeSet<ContainerId>,
    /// Nodes of trees that came, of which it was looked at what they name.
    seen: BTreeSet<Address>,
    /// The same of trees that went.
    gone: BTreeSet<Address>,
}

/// Bytes of a condemned container in the log, beside a bit for each chunk.
const ID_BYTES: usize = 16;

impl Collection {
    /// Condemns dead chunks of containers that are less than half full or due for late encoding.
    /// False when there are none, and when somebody in an earlier epoch still holds them.
    pub(super) fn condemn(&mut self) -> Result<bool> {
        let tables = self.archive.tables();
        let pace = &self.rewriter.pace;
        let (mut counts, counted) = match &self.in_memory {
            Some(InMemory { file, named, upto }) => {
                (CountsReader::over(&self.archive, file.clone(), *named, pace)?, *upto)
            }
            None => {
                (CountsReader::open(&self.archive, tables.named_counts(), pace)?, tables.counted)
            }
        };
        let mut found =
            DeadChunks::new(&self.archive, &tables, self.options, self.rewriter.pace.clone());
        let reseals = self.resealing.wanted && self.archive.keeps(Rule::OlderKeyAsLongAsNeeded);
        found.reseals = reseals;
        while let Some((id, counts)) = counts.next()? {
            found.look(id, &counts)?;
        }
        let mut dead = found.dead;
        // Unfinished containers that were listed after the counts were made, and are old enough to
        // be a killed put's: no count is known, so all their chunks are condemned.
        for (id, at) in &tables.unfinished {
            let Some(container) =
                tables.containers.get(id)?.filter(|container| container.logged > counted)
            else {
                continue;
            };
            let is_lost = reseals && is_under_older(&tables, &container);
            if is_lost || !self.options.spare_unfinished(*at) {
                let chunks = container.stored.chunks;
                dead.entry(*id)
                    .or_insert_with(|| (chunks, vec![u8::MAX; (chunks as usize).div_ceil(8)]));
            }
        }
        // Late encoding leaves condemned chunks behind, so a container that is due for it is
        // condemned however full it is.
        let due_for_encoding = self.due_for_encoding(&tables)?;
        let (mut containers, mut bytes) = (Vec::new(), 0);
        for (id, (number, bits)) in dead {
            let container = tables.containers.get(&id)?;
            let live = container
                .as_ref()
                .map_or(0, |container| container.stored.chunks.saturating_sub(number));
            let all = number + live;
            let is_resealed = self.resealing.wanted
                && container.as_ref().is_some_and(|container| is_under_older(&tables, container));
            // A container that is half full or more is left alone: later puts may name its dead
            // chunks again.
            let is_due = is_resealed || due_for_encoding.contains(&id);
            let leaves = live * 2 < all || (number > 0 && is_due);
            if leaves && !tables.condemned.contains_key(&id) {
                bytes += bits.len() + ID_BYTES;
                if bytes > self.archive.settings.frame_bytes / 2 {
                    // The candidates go into one frame: the next collection condemns the rest.
                    break;
                }
                containers.push((id, bits));
            }
        }
        if containers.is_empty() {
            return Ok(false);
        }
        if !self.others_left(tables.epoch)? {
            self.done.waits = true;
            return Ok(false);
        }
        self.archive.commit(true, |_| Ok(vec![Record::Condemned { containers }]))?;
        Ok(true)
    }

    /// True when nobody is in an earlier epoch any more; waits for that if the options say so.
    pub(super) fn others_left(&mut self, epoch: u32) -> Result<bool> {
        let blocks = self.options.wait && self.patience.is_none();
        loop {
            match await_earlier_epoch(&self.archive, epoch, blocks) {
                Err(error) if error.kind() == Kind::Busy => {}
                done => return done.map(|()| true),
            }
            let Some(patience) = self.patience.as_mut().filter(|_| self.options.wait) else {
                return Ok(false);
            };
            if !patience() {
                self.options.wait = false;
                return Ok(false);
            }
        }
    }

    /// When all that began before have left: spares containers whose condemned chunks were named
    /// meanwhile, and drops those that are dead. False when somebody is still there.
    pub(super) fn recheck(&mut self) -> Result<bool> {
        if !self.others_left(self.archive.refresh()?.epoch)? {
            return Ok(false);
        }
        let archive = self.archive.clone();
        let mut named = NamedSince::default();
        for round in 0.. {
            let tables = archive.refresh()?;
            self.look_at_differences(&tables, &mut named)?;
            if self.droppable(&tables, &named)?.0.is_empty() && named.spared.is_empty() {
                return Ok(true);
            }
            let (mut again, mut done) = (false, (0, 0));
            archive.commit(true, |now| {
                // Streams came or went meanwhile, or a put gave up containers that it had listed. Whoever has
                // a put key adds something at any moment, so the last look is one beside which nobody does.
                if round + 1 >= LOOKS_BESIDE_OTHERS && archive.label().roles {
                    self.look_while_others_wait(now, &mut named)?;
                }
                again = now.differences != named.looked_at;
                if again {
                    return Ok(Vec::new());
                }
                let (containers, bytes) = self.droppable(now, &named)?;
                done = (containers.len() as u64, bytes);
                let spared = named.spared.iter().copied().collect();
                Ok(vec![Record::Dropped { containers, spared }])
            })?;
            if !again {
                self.done.dropped += done.0;
                self.done.dropped_bytes += done.1;
                // Nodes that were whole may be gone.
                self.whole = Trees::default();
                break;
            }
        }
        Ok(true)
    }

    /// Condemned containers of which all chunks are condemned and nothing names one, and the bytes that they
    /// take.
    fn droppable(&self, tables: &Tables, named: &NamedSince) -> Result<(Vec<ContainerId>, u64)> {
        let (mut containers, mut bytes) = (Vec::<ContainerId>::new(), 0);
        for (id, bits) in &tables.condemned {
            if named.spared.contains(id) {
                continue;
            }
            let container = tables.containers.get(id)?;
            let stored = container.map(|container| container.stored);
            let chunks = stored.map_or(0, |stored| stored.chunks as usize);
            if (0..chunks).all(|n| is_condemned(bits, n)) {
                containers.push(*id);
                bytes += stored.map_or(0, |stored| tables.taken(&stored.place));
            }
        }
        Ok((containers, bytes))
    }

    /// Looks at what came last under the lock of the log: at no background work's pace, which waits for others,
    /// and not for long. What takes longer is looked at beside others, once more.
    fn look_while_others_wait(&mut self, tables: &Tables, named: &mut NamedSince) -> Result<()> {
        let mut beside = Rewriter::new(&self.archive);
        beside.nodes_left = Some(NODES_WHILE_OTHERS_WAIT);
        std::mem::swap(&mut self.rewriter, &mut beside);
        let mut further = named.clone();
        let looked = self.look_at_differences(tables, &mut further);
        std::mem::swap(&mut self.rewriter, &mut beside);
        match looked {
            Err(error) if error.kind() == Kind::Busy => Ok(()),
            looked => {
                *named = further;
                looked
            }
        }
    }

    /// Looks at what came and went since the counts were made, and was not looked at yet: spares what it names.
    fn look_at_differences(&mut self, tables: &Tables, named: &mut NamedSince) -> Result<()> {
        let looks = self.archive.keeps(Rule::CondemnedRechecked);
        let both = named.looked_at.iter().zip(tables.differences.iter());
        let from = both.take_while(|(before, now)| before == now).count();
        let all = tables.differences.len();
        let unproven: BTreeSet<usize> =
            tables.uncounted().into_iter().map(|from_last| all - 1 - from_last).collect();
        let new = || tables.differences.iter().enumerate().skip(from);
        let mut spared = Vec::new();
        for (n, difference) in new().filter(|(_, difference)| difference.added && looks) {
            if is_gone(&self.archive, tables, &difference.recipe)? {
                continue;
            }
            let mut runs = Vec::new();
            let each = &mut |first, count| runs.push((first, count));
            if difference.nodes {
                // All the way down: what it shares with one that went since may be dead.
                let seen = &mut named.seen;
                let of = (&difference.recipe[..], !unproven.contains(&n));
                self.rewriter.walk_tree(tables, of, seen, each)?;
            } else {
                self.rewriter.walk(tables, &difference.recipe, each)?;
            }
            self.spare(tables, &runs, &mut spared)?;
        }
        // A stream that was removed since the counts on the disk were made was subtracted in
        // memory only. The next counting reads its recipe again, so the chunks that hold the
        // recipe are spared.
        let spares_removed = self.archive.keeps(Rule::RemovedSpared);
        for (_, difference) in new().filter(|(_, one)| !one.added && spares_removed) {
            if is_gone(&self.archive, tables, &difference.recipe)? {
                continue;
            }
            let own = |pieces: &Pieces| {
                (
                    Address { container: pieces.container, slot: pieces.first },
                    usize::from(pieces.count),
                )
            };
            let mut runs: Vec<_> = difference.recipe.iter().map(own).collect();
            if difference.nodes {
                let of = (&difference.recipe[..], true);
                let each = &mut |first, count| runs.push((first, count));
                self.rewriter.walk_tree(tables, of, &mut named.gone, each)?;
            }
            match self.spare(tables, &runs, &mut spared) {
                // A recipe that can't be read can't be counted later either.
                Err(error) if error.kind() == Kind::Corrupt => {}
                other => other?,
            }
        }
        named.spared.extend(spared);
        named.looked_at = tables.differences.clone();
        Ok(())
    }

    /// Adds each container that has a condemned chunk in these runs to `spared`.
    fn spare(
        &mut self,
        tables: &Tables,
        runs: &[(Address, usize)],
        spared: &mut Vec<ContainerId>,
    ) -> Result<()> {
        for &(first, count) in runs {
            let slots = usize::from(first.slot)..usize::from(first.slot) + count;
            for home in tables.places(first.container) {
                let home = home?;
                let Some(bits) = tables.condemned.get(&home.stored.id) else { continue };
                let needed = if home.merged.is_empty() {
                    slots.clone().any(|slot| is_condemned(bits, slot))
                } else {
                    let metadata = self
                        .rewriter
                        .chunk_reader
                        .metadata(&self.rewriter.container_reader, &home)?;
                    let place = |slot| {
                        metadata
                            .chunks
                            .binary_search_by_key(&Address { slot, ..first }, |chunk| chunk.first)
                    };
                    let needed = |slot: usize| {
                        u16::try_from(slot)
                            .is_ok_and(|slot| place(slot).is_ok_and(|n| is_condemned(bits, n)))
                    };
                    slots.clone().any(needed)
                };
                if needed {
                    spared.push(home.stored.id);
                }
            }
        }
        Ok(())
    }
}
