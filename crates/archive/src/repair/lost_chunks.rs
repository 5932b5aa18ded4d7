//! Chunks that were lost, and are stored a second time, become whole again.
//!
//! A chunk whose bytes are not what they were is named in the log ([`record_damage`]), so that no
//! put takes it for a duplicate: a put of the same bytes stores them anew. [`restore`] writes the
//! container of a lost chunk again, with the bytes of any other copy, and says with the record of a
//! merge that it lies there now. Nothing that names the chunk changes.
//!
//! A chunk of which nobody has a copy is left out, and put back by a later repair when there is
//! one; but only when it is certain that its bytes are not what they were. A chunk that could not
//! be read, or has a part on a node that is absent, may be read another time: then the container
//! stays as it is, unless there is a copy of all that would be missing. A chunk that was recorded
//! as damaged but verifies now replaces itself.
//!
//! *Crash argument:* that of a merge: the new container is durable before its record.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use onefold_core::{Error, Fingerprint, Hold, Kind, Result};

use crate::{
    container::{Rewriter, is_all_there, pack},
    format::{
        Address, ContainerId,
        container::{OpenContainer, Packer},
        damage::is_damage,
        names::COLLECTOR,
        parameters::SLOTS_MAX,
        record::Record,
    },
    operations_log::{Archive, EpochGuard, domain_of, is_erased},
    rules::Rule,
    tables::{Container, Tables},
};

/// Counts of a restoration's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Chunks that are whole again.
    pub chunks: u64,
    /// Containers that were written for them.
    pub containers: u64,
}

/// Names damaged chunks in the log: a bit for each chunk of a container. Durable on return.
///
/// # Errors
/// Errors of the system.
pub fn record_damage(archive: &Archive, rotten: &BTreeMap<ContainerId, Vec<u8>>) -> Result<()> {
    let new = |tables: &Tables| -> Result<Vec<_>> {
        let in_it = |known: &Vec<u8>, bits: &[u8]| {
            bits.iter().enumerate().all(|(n, bits)| bits & !known.get(n).unwrap_or(&0) == 0)
        };
        let known = |id: &ContainerId, bits: &Vec<u8>| {
            tables.damaged.get(id).is_some_and(|known| in_it(known, bits))
        };
        let mut there = Vec::new();
        for (id, bits) in rotten.iter().filter(|(id, bits)| !known(id, bits)) {
            if tables.containers.contains_key(id)? {
                there.push((*id, bits.clone()));
            }
        }
        Ok(there)
    };
    archive.commit(true, |tables| {
        let containers = new(tables)?;
        if containers.is_empty() {
            return Ok(Vec::new());
        }
        let mut records = vec![Record::Damaged { containers }];
        if !archive.keeps(Rule::EpochAdvancesWhenDrained) {
            records.push(Record::EpochAdvanced);
        }
        Ok(records)
    })?;
    Ok(())
}

/// Makes lost chunks whole that are stored elsewhere too: their addresses, and what they were.
/// `progress` counts containers.
///
/// # Errors
/// `Busy` while a gc runs, `NoSpace`, and errors of the system.
pub fn restore(
    archive: &Arc<Archive>,
    lost: &BTreeMap<Address, Fingerprint>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Restored> {
    if lost.is_empty() {
        return Ok(Restored::default());
    }
    let _lock =
        archive.files.lock(COLLECTOR, Hold::Alone, false).map_err(|error| match error.kind() {
            Kind::Busy => Error::new(Kind::Busy, "a gc is running"),
            _ => error,
        })?;
    let guard = EpochGuard::enter(archive)?;
    let mut restoration =
        Restoration { archive, tables: &guard.tables, rewriter: Rewriter::new(archive) };
    let done = restoration.all(lost, progress);
    // Space for containers that are not listed is given back.
    let ended = if done.is_ok() {
        restoration.rewriter.appender.trim()
    } else {
        restoration.rewriter.appender.give_back()
    };
    done.and_then(|restored| ended.map(|()| restored))
}

struct Restoration<'a> {
    archive: &'a Arc<Archive>,
    tables: &'a Tables,
    rewriter: Rewriter,
}

impl Restoration<'_> {
    fn all(
        &mut self,
        lost: &BTreeMap<Address, Fingerprint>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Restored> {
        let mut restored = Restored::default();
        let copies = self.copies(lost, progress)?;
        let mut by_home: BTreeMap<ContainerId, Vec<(Address, Fingerprint)>> = BTreeMap::new();
        for (&address, &fingerprint) in
            lost.iter().filter(|(_, fingerprint)| copies.contains_key(fingerprint))
        {
            if let Some(home) = self.home(address)? {
                by_home.entry(home).or_default().push((address, fingerprint));
            }
        }
        for (home, chunks) in &by_home {
            let Some(container) = self.tables.containers.get(home)? else { continue };
            if is_erased(self.archive, container.stored.domain) {
                continue;
            }
            let chunks = self.rewrite(&container, chunks, &copies)?;
            restored.chunks += chunks;
            restored.containers += u64::from(chunks > 0);
        }
        Ok(restored)
    }

    /// The container to write again for a chunk: of those where chunks of its number lie the one
    /// that shows it, or that shows nothing any more, or the smallest. Those that can't be looked up
    /// are left as they are.
    fn home(&self, address: Address) -> Result<Option<ContainerId>> {
        let (mut dark, mut smallest) = (None, None);
        for container in self.tables.places(address.container) {
            let container = match container {
                Err(error) if is_damage(&error) => continue,
                found => found?,
            };
            let id = container.stored.id;
            match self.rewriter.container_reader.metadata(&container) {
                Ok(metadata) if metadata.find(address).is_some() => return Ok(Some(id)),
                Ok(metadata) => {
                    smallest = smallest.into_iter().chain([(metadata.chunks.len(), id)]).min()
                }
                Err(error) if is_damage(&error) => dark = dark.or(Some(id)),
                Err(error) => return Err(error),
            }
        }
        Ok(dark.or(smallest.map(|(_, id)| id)))
    }

    /// Whole copies of lost chunks.
    fn copies(
        &mut self,
        lost: &BTreeMap<Address, Fingerprint>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<HashMap<Fingerprint, Address>> {
        let mut copies: HashMap<Fingerprint, Address> = HashMap::new();
        let wanted: HashSet<Fingerprint> = lost.values().copied().collect();
        let total = self.tables.containers.len() as u64;
        for (n, container) in self.tables.containers.iter().enumerate() {
            progress(n as u64, total);
            if copies.len() == wanted.len() {
                break;
            }
            let container = match container {
                Err(error) if is_damage(&error) => continue,
                found => found?,
            };
            let metadata = match self.rewriter.container_reader.metadata(&container) {
                Err(error) if is_damage(&error) => continue,
                metadata => metadata?,
            };
            for chunk in &metadata.chunks {
                if !wanted.contains(&chunk.fingerprint) || copies.contains_key(&chunk.fingerprint) {
                    continue;
                }
                match self.whole(chunk.first, &chunk.fingerprint) {
                    Ok(Some(_)) => drop(copies.insert(chunk.fingerprint, chunk.first)),
                    Err(error) if !is_damage(&error) => return Err(error),
                    _ => {}
                }
            }
        }
        progress(total, total);
        Ok(copies)
    }

    /// The bytes of a chunk, when they are what they were.
    fn whole(&mut self, address: Address, fingerprint: &Fingerprint) -> Result<Option<Vec<u8>>> {
        let home = self.tables.places(address.container).next().transpose()?;
        let Some(home) = home.filter(|home| !is_erased(self.archive, home.stored.domain)) else {
            return Ok(None);
        };
        let domain = domain_of(self.archive, home.stored.domain)?;
        match self.rewriter.chunk_reader.chunk(
            self.tables,
            &self.rewriter.container_reader,
            address,
        ) {
            Ok(bytes) => Ok(domain.is_of(bytes, fingerprint).then(|| bytes.to_vec())),
            Err(error) if error.kind() == Kind::Corrupt => Ok(None),
            // Perhaps it can be read another time.
            Err(error) => Err(error),
        }
    }

    /// Writes a container again: what is whole of it, and copies of `chunks`. Tells how many of
    /// these it has then: none when it stays as it is.
    fn rewrite(
        &mut self,
        container: &Container,
        chunks: &[(Address, Fingerprint)],
        copies: &HashMap<Fingerprint, Address>,
    ) -> Result<u64> {
        let old = &container.stored;
        // Damage that is not `Corrupt` may be readable another time: the loss is uncertain.
        let mut certain = true;
        let metadata = match self.rewriter.container_reader.metadata(container) {
            Err(error) if is_damage(&error) => {
                certain = error.kind() == Kind::Corrupt;
                None
            }
            metadata => Some(metadata?),
        };
        let mut all: BTreeMap<Address, (Fingerprint, Vec<u8>)> = BTreeMap::new();
        let mut missing: HashSet<Address> = HashSet::new();
        for chunk in metadata.iter().flat_map(|metadata| &metadata.chunks) {
            match self.whole(chunk.first, &chunk.fingerprint) {
                Ok(Some(bytes)) => drop(all.insert(chunk.first, (chunk.fingerprint, bytes))),
                Ok(None) => drop(missing.insert(chunk.first)),
                Err(error) if is_damage(&error) => {
                    certain = false;
                    missing.insert(chunk.first);
                }
                Err(error) => return Err(error),
            }
        }
        let capacity = self.archive.settings.container_bytes.max(old.raw_bytes as usize);
        let (mut filled, mut restored) =
            (all.values().map(|(_, bytes)| bytes.len()).sum::<usize>(), 0);
        for (address, fingerprint) in chunks {
            if !all.contains_key(address) {
                let Some(&copy) = copies.get(fingerprint) else { continue };
                let bytes = match self.whole(copy, fingerprint) {
                    Ok(Some(bytes)) => bytes,
                    Err(error) if !is_damage(&error) => return Err(error),
                    _ => continue,
                };
                // A chunk that was left out of another container before finds room here or nowhere.
                let fits = missing.remove(address)
                    || metadata.is_none()
                    || (all.len() + missing.len() < SLOTS_MAX && filled + bytes.len() <= capacity);
                if !fits {
                    continue;
                }
                filled += bytes.len();
                all.insert(*address, (*fingerprint, bytes));
            }
            restored += 1;
        }
        let complete = if metadata.is_some() {
            missing.is_empty()
        } else {
            all.len() as u64 >= u64::from(old.chunks)
        };
        if restored == 0
            || all.len() > SLOTS_MAX
            || !(complete || (certain && is_all_there(self.archive, &old.place)))
        {
            return Ok(0);
        }
        let open = OpenContainer::new(self.rewriter.ids.next()?, old.kind, filled);
        let mut open = open.of_domain(old.domain);
        all.iter().for_each(|(first, (fingerprint, bytes))| {
            open.push_as(*fingerprint, *first, bytes);
        });
        let packed = pack(self.archive, open, &mut Packer::default())?;
        let to = self.rewriter.appender.write(&packed, self.tables.class(&old.place).0)?;
        self.rewriter.appender.sync()?;
        let mut done = false;
        self.archive.commit(true, |now| {
            done = now.containers.get(&old.id)?.is_some_and(|now| now.stored == *old);
            Ok(if done { vec![Record::Merged { from: vec![old.id], to }] } else { Vec::new() })
        })?;
        Ok(if done { restored } else { 0 })
    }
}
