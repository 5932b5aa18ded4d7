//! The records of the log, applied.

use std::collections::BTreeSet;

use onefold_core::Result;

use super::{
    container::Container,
    data_key_records::rotate_data_key,
    persistent::List,
    segments::Segment,
    snapshots::roots,
    state::{Difference, IndexState, PLACE_ALIGN, Tables},
};
use crate::format::{
    ContainerId,
    backup::Snapshot,
    bytes::corrupt,
    class::Class,
    domain::FIRST_DOMAIN,
    record::{Place, Record, Stored, Stream},
};

impl Tables {
    /// Applies the records of a frame.
    ///
    /// # Errors
    /// `Corrupt` when they contradict what is there.
    pub fn apply(&mut self, sequence: u64, records: Vec<Record>) -> Result<()> {
        records.into_iter().try_for_each(|record| self.apply_one(sequence, record))?;
        self.sequence = sequence;
        Ok(())
    }

    fn apply_one(&mut self, sequence: u64, record: Record) -> Result<()> {
        match record {
            Record::Reserved { owner, first, count, segment, class: (class, data) } => {
                if class != Class::Plain && !self.late {
                    return Err(corrupt(
                        "the log has segments of classes, and the archive has none",
                    ));
                }
                self.next_id = self.next_id.max(first.0.saturating_add(count));
                if let Some(segment) = segment {
                    self.next_segment = self.next_segment.max(segment.saturating_add(1));
                    let data = if class == Class::Plain {
                        (self.align / PLACE_ALIGN).max(1) as u8
                    } else {
                        data
                    };
                    self.segments.insert(segment, Segment { owner, end: 0, used: 0, class, data });
                    self.derived.empty_segments.made(segment, owner, class);
                }
            }
            Record::Unfinished { containers, at } => {
                // Of the put that is under way.
                let born = self.versions.saturating_add(u64::from(self.late));
                for stored in containers {
                    self.unfinished.insert(stored.id, at);
                    upload(self, stored, sequence, born)?;
                }
            }
            Record::CareNoted(note) => self.care.note(note),
            Record::Put { name, stream, containers, finished } => {
                saw_domain(self, stream.domain)?;
                self.versions = self.versions.saturating_add(u64::from(self.late));
                finish(self, containers, &finished, sequence)?;
                let at = self.versions;
                self.differences.extend(stream.recipes().map(|recipe| Difference {
                    added: true,
                    recipe: recipe.clone(),
                    at,
                    nodes: false,
                }));
                if let Some(old) = self.streams.insert(name, stream) {
                    self.gone(&old);
                }
            }
            Record::Removed { name } => {
                let old = self
                    .streams
                    .remove(&name)
                    .ok_or_else(|| corrupt("the log removes a stream that is not there"))?;
                self.gone(&old);
            }
            Record::Renamed { from, to } => {
                let stream = self
                    .streams
                    .remove(&from)
                    .ok_or_else(|| corrupt("the log renames a stream that is not there"))?;
                if let Some(old) = self.streams.insert(to, stream) {
                    self.gone(&old);
                }
            }
            Record::Abandoned { containers } => {
                for id in containers {
                    self.unfinished.remove(&id);
                    // No reader ever knew them.
                    self.wait_to_be_freed(id, self.epoch.saturating_sub(1))?;
                }
            }
            Record::Imported { files, upto } => import(self, IndexState { files, upto }),
            Record::Counted { file, differences, upto, proof } => {
                let n = usize::try_from(differences).ok().filter(|&n| n <= self.differences.len());
                let n =
                    n.ok_or_else(|| corrupt("the log counts more differences than there are"))?;
                (self.counts, self.counts_proof, self.counted) = (file, proof, upto);
                self.differences.drop_first(n);
            }
            Record::Condemned { containers } => {
                // A put may have given up containers that it had listed.
                for (id, bits) in containers {
                    if self.containers.contains_key(&id)? {
                        self.condemned.insert(id, bits);
                    }
                }
                advance_epoch(self)?;
            }
            Record::Damaged { containers } => {
                for (id, bits) in containers {
                    if !self.containers.contains_key(&id)? {
                        continue;
                    }
                    self.damaged.change(id, |known| {
                        known.resize(known.len().max(bits.len()), 0);
                        known.iter_mut().zip(bits).for_each(|(known, bits)| *known |= bits);
                    });
                }
                // The epoch stays: only a collector advances it, which knows that nobody is in the
                // one before.
            }
            Record::Dropped { containers, spared } => {
                spared.iter().for_each(|id| {
                    self.condemned.remove(id);
                });
                // Readers that could have read them left their epoch before they were dropped.
                let before = self.epoch.saturating_sub(1);
                containers.into_iter().try_for_each(|id| self.wait_to_be_freed(id, before))?;
            }
            Record::Merged { from, to } => merge(self, from, to)?,
            Record::Freed { places } => free(self, places),
            Record::EpochAdvanced => advance_epoch(self)?,
            Record::Finished { containers, finished } => {
                finish(self, containers, &finished, sequence)?
            }
            Record::LateEncoded { from, to } => self.apply_late_encoded(&from, to)?,
            Record::Changed { containers } => {
                for (id, version) in containers {
                    self.containers.change(&id, |container| {
                        container.changed = container.changed.max(version);
                    })?;
                }
            }
            Record::SnapshotMade { snapshot, containers, finished } => {
                self.versions = self.versions.saturating_add(u64::from(self.late));
                finish(self, containers, &finished, sequence)?;
                if !self.trees {
                    return Err(corrupt("the log has a snapshot, and the archive has none"));
                }
                saw_domain(self, snapshot.domain)?;
                tree_root(self, true, &snapshot);
                self.snapshots.made(*snapshot)?;
            }
            of_snapshot @ (Record::Forgotten { .. }
            | Record::Undeleted { .. }
            | Record::ForgottenSeen { .. }
            | Record::Expired { .. }
            | Record::CountsDue { .. }) => {
                let gone = self.snapshots.apply(of_snapshot)?;
                for (gone, was_counted) in gone.iter().zip(self.uncount(&gone)) {
                    // Nobody reads its tree any more, and its containers go as they are.
                    if was_counted && !self.domains.erased.contains_key(&gone.domain) {
                        tree_root(self, false, gone);
                    }
                }
            }
            Record::DomainErased { number } => {
                if !self.has_domains {
                    return Err(no_domains());
                }
                self.domains.last = self.domains.last.max(number);
                self.domains.erased.insert(number, false);
                self.data_keys.forget(number);
            }
            Record::DomainFreed { number, containers, all } => {
                free_domain(self, number, containers, all)?
            }
            Record::DataKeyRotated(rotation) => rotate_data_key(self, rotation)?,
            Record::DataKeyKept { domain, generation, kept } => {
                self.data_keys.keep((domain, generation), kept)?
            }
            Record::DataKeyErased { domain, generation } => {
                self.data_keys.erase(domain, generation)?
            }
            of_roles @ (Record::PutKeyAdded { .. }
            | Record::PutKeyRemoved { .. }
            | Record::Proven { .. }) => self.apply_roles(of_roles)?,
            of_volume => apply_volume(self, sequence, of_volume)?,
        }
        Ok(())
    }

    /// Gives the bytes that it took to write it.
    pub(crate) fn list(&mut self, stored: Stored, logged: u64, born: u64) -> Result<u64> {
        let (taken, written) = (self.taken(&stored.place), self.written(&stored.place));
        let segment = self.segments.get_mut(&stored.place.segment);
        let segment = segment
            .ok_or_else(|| corrupt(format!("container {} lies in no segment", stored.id)))?;
        segment.end = segment.end.max(stored.place.at + taken);
        segment.used = segment.used.saturating_add(taken);
        self.derived.empty_segments.uses(stored.place.segment, segment.used);
        self.next_id = self.next_id.max(stored.id.0 + 1);
        saw_domain(self, stored.domain)?;
        let id = stored.id;
        if logged > self.index.upto {
            self.derived.not_imported.listed(logged, id);
        }
        let (class, more) = self.sums_with(&stored);
        self.derived.sums.add(class, more);
        let container = Container { stored, merged: Vec::new(), logged, born, changed: born };
        if self.containers.insert(id, container)?.is_some() || self.moved_to.contains_key(&id) {
            return Err(corrupt(format!("the log lists container {id} twice")));
        }
        Ok(written)
    }

    /// Removes a container. Its place is freed when the readers of `epoch` have left.
    pub(crate) fn wait_to_be_freed(&mut self, id: ContainerId, epoch: u32) -> Result<()> {
        let gone = self
            .containers
            .remove(&id)?
            .ok_or_else(|| corrupt(format!("the log drops container {id}, which is not there")))?;
        self.derived.not_imported.removed(gone.logged, id);
        let (class, less) = self.sums_with(&gone.stored);
        self.derived.sums.take_away(class, less);
        self.unfinished.remove(&id);
        self.condemned.remove(&id);
        self.damaged.remove(&id);
        for number in &gone.merged {
            if let Some(places) = self.moved_to.get_mut(number) {
                places.retain(|place| *place != id);
                if places.is_empty() {
                    self.moved_to.remove(number);
                }
            }
        }
        self.waiting_to_be_freed.insert(gone.stored.place, epoch);
        Ok(())
    }

    pub(crate) fn gone(&mut self, stream: &Stream) {
        // Nobody reads its recipe any more, and its containers go as they are.
        if self.domains.erased.contains_key(&stream.domain) {
            return;
        }
        let at = self.versions;
        self.differences.extend(stream.recipes().map(|recipe| Difference {
            added: false,
            recipe: recipe.clone(),
            at,
            nodes: false,
        }));
    }
}

/// Something in the log belongs to this domain.
fn saw_domain(tables: &mut Tables, number: u32) -> Result<()> {
    if number != FIRST_DOMAIN && !tables.has_domains {
        return Err(no_domains());
    }
    tables.domains.last = tables.domains.last.max(number);
    Ok(())
}

fn no_domains() -> onefold_core::Error {
    corrupt("the log names a domain, and the archive has one only")
}

/// Takes over an import into the chunk index.
fn import(tables: &mut Tables, index: IndexState) {
    let is_older = index.upto < tables.index.upto;
    tables.index = index;
    tables.derived.not_imported.imported(tables.index.upto, is_older);
}

/// Containers were merged into one: it answers to all numbers that they answered to.
fn merge(tables: &mut Tables, from: Vec<ContainerId>, to: Stored) -> Result<()> {
    let (home, mut merged, mut logged, mut born, mut changed) = (to.id, Vec::new(), 0, 0, 0);
    for id in from {
        // What it answers to, the container where it goes does from now on.
        let take = |old: &mut Container| {
            (std::mem::take(&mut old.merged), old.logged, old.born, old.changed)
        };
        let old = tables
            .containers
            .change(&id, take)?
            .ok_or_else(|| corrupt(format!("the log merges container {id}, which is not there")))?;
        let numbers = old.0;
        (logged, born, changed) = (logged.max(old.1), born.max(old.2), changed.max(old.3));
        tables.wait_to_be_freed(id, tables.epoch)?;
        for number in &numbers {
            tables.moved_to.change(*number, |places| {
                places.retain(|place| *place != id);
                if places.last() != Some(&home) {
                    places.push(home);
                }
            });
        }
        tables.moved_to.change(id, |places| places.push(home));
        merged.extend(numbers);
        merged.push(id);
    }
    // Chunks that were not imported yet are found in their new place.
    let write_cost = &mut tables.write_cost;
    write_cost.reencoded_chunks = write_cost.reencoded_chunks.saturating_add(u64::from(to.chunks));
    write_cost.reencoded_chunk_bytes =
        write_cost.reencoded_chunk_bytes.saturating_add(u64::from(to.raw_bytes));
    let written = tables.list(to, logged, born)?;
    tables.write_cost.merge_bytes = tables.write_cost.merge_bytes.saturating_add(written);
    merged.sort_unstable();
    merged.dedup();
    tables.derived.moved.add(merged.len())?;
    tables.containers.change(&home, |container| {
        (container.merged, container.changed) = (merged, changed);
    })?;
    Ok(())
}

/// Nobody reads these places any more.
fn free(tables: &mut Tables, places: Vec<Place>) {
    for place in places {
        tables.waiting_to_be_freed.remove(&place);
        let taken = tables.taken(&place);
        if let Some(segment) = tables.segments.get_mut(&place.segment) {
            segment.used = segment.used.saturating_sub(taken);
            tables.derived.empty_segments.uses(place.segment, segment.used);
        }
    }
    drop_empty_segments(tables);
}

/// Containers of an erased domain go; with `all` nothing of it is left.
fn free_domain(
    tables: &mut Tables,
    number: u32,
    containers: Vec<ContainerId>,
    all: bool,
) -> Result<()> {
    if !tables.domains.erased.contains_key(&number) {
        return Err(corrupt("the log frees a domain that was not erased"));
    }
    // With the numbers that they had before merges: an older difference names those.
    let mut gone: BTreeSet<ContainerId> = containers.iter().copied().collect();
    for id in &containers {
        match tables.containers.get(id)? {
            Some(container) if container.stored.domain == number => {
                gone.extend(&container.merged);
            }
            _ => return Err(corrupt("the log frees a container of another domain")),
        }
    }
    let is_of = |one: &Difference| one.recipe.iter().any(|of| gone.contains(&of.container));
    if tables.differences.iter().any(is_of) {
        // Nobody could count them.
        let mut left = List::default();
        left.extend(tables.differences.iter().filter(|one| !is_of(one)).cloned());
        tables.differences = left;
    }
    // Readers that began before the erasure may be there.
    let mut all_of_them = containers.into_iter();
    all_of_them.try_for_each(|id| tables.wait_to_be_freed(id, tables.epoch))?;
    tables.domains.erased.insert(number, all);
    Ok(())
}

fn advance_epoch(tables: &mut Tables) -> Result<()> {
    tables.epoch =
        tables.epoch.checked_add(1).ok_or_else(|| corrupt("the log turns the epoch too often"))?;
    Ok(())
}

/// A segment that holds nothing, and to which nobody appends any more, is gone.
pub(super) fn drop_empty_segments(tables: &mut Tables) {
    let Tables { segments, derived, roles, .. } = tables;
    for n in derived.empty_segments.take_done(segments, roles.as_ref()) {
        segments.remove(&n);
        if let Some(roles) = roles {
            roles.segments.remove(&n);
        }
    }
}

/// Lists containers that something names from now on, and those that were listed before.
fn finish(
    tables: &mut Tables,
    containers: Vec<Stored>,
    finished: &[ContainerId],
    sequence: u64,
) -> Result<()> {
    let version = tables.versions;
    containers.into_iter().try_for_each(|stored| upload(tables, stored, sequence, version))?;
    for id in finished {
        tables.unfinished.remove(id);
        if tables.late {
            tables.containers.change(id, |container| {
                (container.born, container.changed) = (version, version);
            })?;
        }
    }
    Ok(())
}

fn upload(tables: &mut Tables, stored: Stored, sequence: u64, born: u64) -> Result<()> {
    let written = tables.list(stored, sequence, born)?;
    tables.write_cost.upload_bytes = tables.write_cost.upload_bytes.saturating_add(written);
    Ok(())
}

/// A record of a volume: the mappings that come and go are counted later.
fn apply_volume(tables: &mut Tables, sequence: u64, record: Record) -> Result<()> {
    #[cfg(feature = "planted-bugs")]
    let is_uncounted =
        tables.derived.clones_uncounted && matches!(record, Record::VolumeCloned { .. });
    if let Record::VolumeCreated { domain, .. } = &record {
        if *domain != FIRST_DOMAIN && !tables.has_volume_domains {
            return Err(corrupt(
                "the log has a volume of a domain, which the label does not announce",
            ));
        }
        saw_domain(tables, *domain)?;
    }
    let changed = tables.volumes.apply(sequence, record, tables.clones)?;
    // Nobody reads what it mapped any more, and its containers go as they are.
    if tables.domains.erased.contains_key(&changed.domain) {
        return Ok(());
    }
    #[cfg(feature = "planted-bugs")]
    let changed = if is_uncounted { Default::default() } else { changed };
    for (added, recipe) in [(true, changed.came), (false, changed.went)] {
        if !recipe.is_empty() {
            let at = tables.versions;
            tables.differences.push(Difference { added, recipe, at, nodes: false });
        }
    }
    Ok(())
}

/// The roots of a snapshot came or went.
fn tree_root(tables: &mut Tables, added: bool, snapshot: &Snapshot) {
    let (recipe, at) = (roots(snapshot), tables.versions);
    tables.differences.push(Difference { added, recipe, at, nodes: true });
}
