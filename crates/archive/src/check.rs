//! Is all there, and whole? `check` looks at metadata, `scrub` at all data. Nothing here writes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use onefold_core::{Fingerprint, Kind, Result};

use crate::{
    archive::Archive,
    format::{
        Address, ContainerId,
        container::{Metadata, Packer},
    },
    get::{ChunkReader, Reader},
    segments::Shelves,
    tables::{Container, Tables},
    volume::{Mapped, chunks_of},
};

/// Problems that are listed; more are counted only.
pub const PROBLEMS_LISTED: usize = 1000;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Streams looked at.
    pub streams: u64,
    /// Containers looked at.
    pub containers: u64,
    /// Chunks stored.
    pub chunks: u64,
    /// Bytes of data read and verified.
    pub bytes: u64,
    /// What is wrong; the first thousand.
    pub problems: Vec<String>,
    /// How much is wrong.
    pub problems_found: u64,
    /// Streams that lost something.
    pub hit: BTreeSet<String>,
    /// Volumes looked at.
    pub volumes: u64,
    /// Their blocks that are no zeroes.
    pub blocks: u64,
    /// Volumes that lost something, and the first blocks of each that did.
    pub hit_volumes: BTreeMap<String, Vec<u64>>,
}

impl Report {
    /// True when nothing is wrong.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.problems_found == 0
    }

    fn problem(&mut self, what: impl Into<String>) {
        self.problems_found += 1;
        if self.problems.len() < PROBLEMS_LISTED {
            self.problems.push(what.into());
        }
    }
}

/// How far: what is done, of how much.
pub type Progress<'a> = dyn FnMut(&str, u64, u64) + 'a;

/// Verifies the metadata of all containers, and that each stream's chunks are in them; with `data` the bytes of all chunks too.
///
/// # Errors
/// Those of the system; damage is in the report.
pub fn check(archive: &Arc<Archive>, data: bool, progress: &mut Progress<'_>) -> Result<Report> {
    let mut report = Report::default();
    let mut reader = Reader::new(archive)?;
    let tables = reader.tables().clone();
    let shelves = Shelves::new(archive.clone());
    // The chunks that are whole, by home.
    let mut whole: HashMap<ContainerId, Metadata> = HashMap::new();
    let mut bad: BTreeMap<ContainerId, BTreeSet<Address>> = BTreeMap::new();
    let total: u64 = tables.containers.values().map(|container| u64::from(container.stored.place.bytes)).sum();
    let (mut done, mut packer) = (0, Packer::default());
    for (&id, container) in &tables.containers {
        report.containers += 1;
        report.chunks += u64::from(container.stored.chunks);
        match shelves.metadata(container) {
            Ok(metadata) => {
                if metadata.chunks.len() as u32 != container.stored.chunks {
                    report.problem(format!("container {id} has other chunks than the log says"));
                }
                if data {
                    let rotten = scrub_one(archive, &shelves, container, &metadata, &mut packer, &mut report)?;
                    bad.insert(id, rotten);
                }
                whole.insert(id, metadata);
            }
            Err(error) if error.kind() == Kind::Corrupt => report.problem(error.to_string()),
            Err(error) => return Err(error),
        }
        done += u64::from(container.stored.place.bytes);
        progress(if data { "data" } else { "containers" }, done, total);
    }
    let found = Found { tables: &tables, whole: &whole, bad: &bad };
    check_streams(&mut reader, &found, &mut report, progress)?;
    check_volumes(&shelves, &found, &mut report, progress)?;
    Ok(report)
}

/// What the containers have.
struct Found<'a> {
    tables: &'a Tables,
    whole: &'a HashMap<ContainerId, Metadata>,
    bad: &'a BTreeMap<ContainerId, BTreeSet<Address>>,
}

impl Found<'_> {
    /// True when the chunk is there and whole.
    fn has(&self, address: Address, fingerprint: &Fingerprint) -> bool {
        self.tables.places(address.container).any(|container| {
            let home = container.stored.id;
            let there =
                self.whole.get(&home).and_then(|metadata| metadata.find(address)).is_some_and(|chunk| chunk.fingerprint == *fingerprint);
            there && !self.bad.get(&home).is_some_and(|bad| bad.contains(&address))
        })
    }
}

fn check_streams(reader: &mut Reader, found: &Found<'_>, report: &mut Report, progress: &mut Progress<'_>) -> Result<()> {
    let streams = found.tables.streams.len() as u64;
    for (name, stream) in &found.tables.streams {
        report.streams += 1;
        let mut lost = 0;
        for recipe in stream.recipes() {
            let walked = reader.parts(recipe, &mut |_, part| {
                let parts = [part];
                lost += chunks_of(&parts).filter(|(fingerprint, address)| !found.has(*address, fingerprint)).count();
                Ok(())
            });
            match walked {
                Err(error) if error.kind() == Kind::Corrupt => {
                    report.hit.insert(name.clone());
                    report.problem(format!("stream '{}': its recipe can't be read: {error}", name.escape_debug()));
                }
                other => other?,
            }
        }
        if lost > 0 {
            report.hit.insert(name.clone());
            report.problem(format!("stream '{}' lost {lost} of its {} chunks", name.escape_debug(), stream.chunks));
        }
        progress("streams", report.streams, streams);
    }
    Ok(())
}

/// Blocks of a volume that are listed as lost; more are counted only.
const BLOCKS_LISTED: usize = 1000;

fn check_volumes(shelves: &Shelves, found: &Found<'_>, report: &mut Report, progress: &mut Progress<'_>) -> Result<()> {
    let mut reader = ChunkReader::default();
    let total: u64 = found.tables.volumes.values().map(|volume| volume.map.used()).sum();
    for volume in found.tables.volumes.values() {
        report.volumes += 1;
        let (mut lost, mut listed) = (0u64, Vec::new());
        for (block, _) in volume.map.mapped(0..u64::MAX) {
            report.blocks += 1;
            let mapped = Mapped { tables: found.tables, shelves, volume, block };
            let well = match mapped.parts(&mut reader) {
                Ok(parts) => chunks_of(&parts).all(|(fingerprint, address)| found.has(address, &fingerprint)),
                Err(error) if error.kind() == Kind::Corrupt => false,
                Err(error) => return Err(error),
            };
            if !well {
                lost += 1;
                if listed.len() < BLOCKS_LISTED {
                    listed.push(block);
                }
            }
            if report.blocks.is_multiple_of(1024) {
                progress("volumes", report.blocks, total);
            }
        }
        if lost > 0 {
            report.problem(format!("volume '{}' lost {lost} of its {} blocks", volume.name.escape_debug(), volume.map.used()));
            report.hit_volumes.insert(volume.name.clone(), listed);
        }
    }
    Ok(())
}

/// Verifies all groups and chunks of a container; gives the chunks that are damaged.
fn scrub_one(
    archive: &Archive,
    shelves: &Shelves,
    container: &Container,
    metadata: &Metadata,
    packer: &mut Packer,
    report: &mut Report,
) -> Result<BTreeSet<Address>> {
    let (mut stored, mut raw, mut rotten) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut chunks = metadata.chunks.iter().collect::<Vec<_>>();
    chunks.sort_by_key(|chunk| chunk.group);
    let mut rest = &chunks[..];
    for (n, group) in metadata.groups.iter().enumerate() {
        let here = rest.iter().take_while(|chunk| usize::from(chunk.group) == n).count();
        let (chunks, later) = rest.split_at(here);
        rest = later;
        let read = shelves.groups(&container.stored.place, std::slice::from_ref(group), &mut stored);
        let expanded = read.and_then(|()| packer.expand(&archive.identity, group, &stored, &mut raw));
        match expanded {
            Ok(()) => {
                report.bytes += raw.len() as u64;
                let bytes: Vec<&[u8]> = chunks.iter().map(|chunk| &raw[chunk.at as usize..][..chunk.bytes as usize]).collect();
                for (chunk, found) in chunks.iter().zip(archive.fingerprinter.chunks(&bytes)) {
                    if found != chunk.fingerprint {
                        rotten.insert(chunk.first);
                        report.problem(format!("container {}: chunk {} does not have its fingerprint", metadata.id, chunk.first.slot));
                    }
                }
            }
            Err(error) if error.kind() == Kind::Corrupt => {
                rotten.extend(chunks.iter().map(|chunk| chunk.first));
                report.problem(format!("container {}, group {n} with {} chunks: {error}", metadata.id, chunks.len()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(rotten)
}
