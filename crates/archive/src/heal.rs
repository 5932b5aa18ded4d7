//! Chunks that were lost, and are stored a second time, become whole again.
//!
//! A chunk whose bytes are not what they were is named in the log ([`note`]), so that no put takes it for a duplicate: a put of the same bytes stores them
//! anew. [`heal`] writes the container of a lost chunk again, with the bytes of any other copy, and says with the record of a merge that it lies there now.
//! Nothing that names the chunk changes.
//!
//! *Crash argument:* that of a merge: the new container is durable before its record. A chunk that nobody has a copy of is left out, as it can't be read:
//! a later heal puts it back when there is one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use onefold_core::{Error, Fingerprint, Hold, Kind, Result};

use crate::{
    archive::{Archive, COLLECTOR},
    chain::is_condemned,
    check::is_damage,
    format::{
        Address, ContainerId,
        container::{Holds, Open, Packer},
        record::{Owner, Record},
    },
    get::ChunkReader,
    put,
    segments::{Appender, Ids, Shelves},
    tables::{Container, Tables},
};

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healed {
    /// Chunks that are whole again.
    pub chunks: u64,
    /// Containers that were written for them.
    pub containers: u64,
}

/// Names damaged chunks in the log: a bit for each chunk of a container. Durable on return.
///
/// # Errors
/// Those of the system.
pub fn note(archive: &Archive, rotten: &BTreeMap<ContainerId, Vec<u8>>) -> Result<()> {
    let new = |tables: &Tables| {
        let known = |id: &ContainerId, bits: &Vec<u8>| tables.damaged.get(id).is_some_and(|known| known == bits);
        let there = rotten.iter().filter(|(id, bits)| tables.containers.contains_key(id) && !known(id, bits));
        there.map(|(id, bits)| (*id, bits.clone())).collect::<Vec<_>>()
    };
    archive.commit(true, |tables| {
        let containers = new(tables);
        Ok(if containers.is_empty() { Vec::new() } else { vec![Record::Damaged { containers }] })
    })?;
    Ok(())
}

/// Makes lost chunks whole that are stored elsewhere too: their addresses, and what they were. `progress` is told containers.
///
/// # Errors
/// `Busy` while a gc runs, `NoSpace`, and those of the system.
pub fn heal(archive: &Arc<Archive>, lost: &BTreeMap<Address, Fingerprint>, progress: &mut dyn FnMut(u64, u64)) -> Result<Healed> {
    let mut healed = Healed::default();
    if lost.is_empty() {
        return Ok(healed);
    }
    let _lock = archive.files.lock(COLLECTOR, Hold::Alone, false).map_err(|error| match error.kind() {
        Kind::Busy => Error::new(Kind::Busy, "a gc is running"),
        _ => error,
    })?;
    let stay = archive.stay()?;
    let mut healing = Healing {
        archive,
        tables: &stay.tables,
        shelves: Shelves::new(archive.clone()),
        reader: ChunkReader::default(),
        ids: Ids::new(archive.clone(), Owner::Collector),
        appender: Appender::new(archive.clone(), Owner::Collector),
    };
    let copies = healing.copies(lost, progress)?;
    let mut by_home: BTreeMap<ContainerId, Vec<(Address, Fingerprint)>> = BTreeMap::new();
    for (&address, &fingerprint) in lost.iter().filter(|(_, fingerprint)| copies.contains_key(fingerprint)) {
        if let Some(home) = healing.home(address)? {
            by_home.entry(home).or_default().push((address, fingerprint));
        }
    }
    for (home, chunks) in &by_home {
        let Some(container) = stay.tables.containers.get(home) else { continue };
        if healing.rewrite(container, chunks, &copies, lost)? {
            healed.chunks += chunks.len() as u64;
            healed.containers += 1;
        }
    }
    healing.appender.trim()?;
    Ok(healed)
}

struct Healing<'a> {
    archive: &'a Arc<Archive>,
    tables: &'a Tables,
    shelves: Shelves,
    reader: ChunkReader,
    ids: Ids,
    appender: Appender,
}

impl Healing<'_> {
    /// The container to write again for a chunk: of those where chunks of its number lie the one that shows it, or that shows nothing any more.
    fn home(&self, address: Address) -> Result<Option<ContainerId>> {
        let mut first = None;
        for container in self.tables.places(address.container) {
            let id = container.stored.id;
            match self.shelves.metadata(container) {
                Ok(metadata) if metadata.find(address).is_none() => first = first.or(Some(id)),
                Err(error) if !is_damage(&error) => return Err(error),
                _ => return Ok(Some(id)),
            }
        }
        Ok(first)
    }

    /// Whole copies of lost chunks.
    fn copies(
        &mut self,
        lost: &BTreeMap<Address, Fingerprint>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<HashMap<Fingerprint, Address>> {
        let mut copies: HashMap<Fingerprint, Address> = HashMap::new();
        let wanted: std::collections::HashSet<Fingerprint> = lost.values().copied().collect();
        let total = self.tables.containers.len() as u64;
        for (n, container) in self.tables.containers.values().enumerate() {
            progress(n as u64, total);
            if copies.len() == wanted.len() {
                break;
            }
            let metadata = match self.shelves.metadata(container) {
                Err(error) if is_damage(&error) => continue,
                metadata => metadata?,
            };
            for chunk in &metadata.chunks {
                let new = wanted.contains(&chunk.fingerprint) && !copies.contains_key(&chunk.fingerprint);
                if !new || lost.contains_key(&chunk.first) {
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
        match self.reader.chunk(self.tables, &self.shelves, address) {
            Ok(bytes) => Ok((self.archive.fingerprinter.bytes(bytes) == *fingerprint).then(|| bytes.to_vec())),
            Err(error) if error.kind() == Kind::Corrupt => Ok(None),
            // Perhaps it can be read another time.
            Err(error) => Err(error),
        }
    }

    /// Writes a container again: what is whole of it, and copies of `chunks`. False when it is gone meanwhile.
    fn rewrite(
        &mut self,
        container: &Container,
        chunks: &[(Address, Fingerprint)],
        copies: &HashMap<Fingerprint, Address>,
        lost: &BTreeMap<Address, Fingerprint>,
    ) -> Result<bool> {
        let old = &container.stored;
        let metadata = match self.shelves.metadata(container) {
            Err(error) if is_damage(&error) => None,
            metadata => Some(metadata?),
        };
        let mut all: BTreeMap<Address, (Fingerprint, Vec<u8>)> = BTreeMap::new();
        for chunk in metadata.iter().flat_map(|metadata| &metadata.chunks).filter(|chunk| !lost.contains_key(&chunk.first)) {
            if let Some(bytes) = self.whole(chunk.first, &chunk.fingerprint)? {
                all.insert(chunk.first, (chunk.fingerprint, bytes));
            }
        }
        for (address, fingerprint) in chunks {
            if let Some(&copy) = copies.get(fingerprint)
                && let Some(bytes) = self.whole(copy, fingerprint)?
            {
                all.insert(*address, (*fingerprint, bytes));
            }
        }
        let bytes = all.values().map(|(_, bytes)| bytes.len()).sum();
        let mut open = Open::new(self.ids.next()?, Holds::Data, bytes);
        all.iter().for_each(|(first, (fingerprint, bytes))| {
            open.push_as(*fingerprint, *first, bytes);
        });
        let packed = put::pack(self.archive, open, &mut Packer::default());
        let to = self.appender.write(&packed, self.tables.class(&old.place).0)?;
        self.appender.sync()?;
        let mut done = false;
        self.archive.commit(true, |now| {
            done = now.containers.get(&old.id).is_some_and(|now| now.stored == *old);
            Ok(if done { vec![Record::Merged { from: vec![old.id], to }] } else { Vec::new() })
        })?;
        Ok(done)
    }
}

/// True when a chunk of a container is known to be damaged.
pub(crate) fn is_damaged(tables: &Tables, home: ContainerId, n: usize) -> bool {
    tables.damaged.get(&home).is_some_and(|bits| is_condemned(bits, n))
}
