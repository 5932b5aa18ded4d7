//! Is all there, and whole? `check` looks at metadata, `scrub` at all data. Nothing here writes.

mod round;
mod trees;

pub use self::round::{Portion, ScrubRound, note_scrubbed};

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Error, Fingerprint, Kind, Result};

use crate::{
    container::{ChunkReader, ContainerReader, Rewriter, is_all_there},
    format::{
        Address, ContainerId,
        container::{Metadata, Packer},
        damage::{bits_of, is_condemned, is_damage},
        record::Stream,
    },
    operations_log::{Archive, domain_of, is_erased, look_at_leaves},
    stream::Reader,
    tables::{Container, Tables, Volume},
    tree::TreeReader,
    usage_counts::{CountsFound, counts_refused},
    volume::{Mapped, chunks_of},
};

/// Problems that are listed; more are counted only.
pub(crate) const PROBLEMS_LISTED: usize = 1000;

/// The findings of a check.
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
    /// The first thousand problems, each a sentence.
    pub problems: Vec<String>,
    /// How much is wrong.
    pub problems_found: u64,
    /// Streams that lost something.
    pub hit: BTreeSet<String>,
    /// Snapshots looked at.
    pub snapshots: u64,
    /// The first thousand snapshots of put keys that are not what they say and that manage has not looked
    /// through, a sentence each. They are no damage: a collection tells of them, or drops them.
    pub untrue: Vec<String>,
    /// How many of these there are.
    pub untrue_found: u64,
    /// The ids of those that lost something.
    pub hit_snapshots: BTreeSet<String>,
    /// Volumes looked at.
    pub volumes: u64,
    /// Their blocks that are no zeroes.
    pub blocks: u64,
    /// Volumes that lost something, and the first blocks of each that did.
    pub hit_volumes: BTreeMap<String, Vec<u64>>,
    /// Chunks that streams and volumes name and that are not whole: the first million.
    pub lost: BTreeMap<Address, Fingerprint>,
    /// Chunks whose bytes are not what they were, although no node that has them is absent: a bit
    /// for each chunk of the container.
    pub rotten: BTreeMap<ContainerId, Vec<u8>>,
    /// The usage counts beside a count from the roots; nothing where there are none yet. Counts that
    /// are too low are problems; those that are too high keep space, and are none.
    pub counts: Option<CountsFound>,
    /// What nobody can read any more, since its domain was erased; that is no problem.
    pub erased: ErasedFound,
}

/// What belongs to domains that were erased.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasedFound {
    /// The numbers of the domains.
    pub domains: BTreeSet<u32>,
    /// Streams.
    pub streams: u64,
    /// Snapshots, forgotten ones too.
    pub snapshots: u64,
    /// Volumes.
    pub volumes: u64,
    /// Containers that a collection frees.
    pub containers: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Report {
    /// True when nothing is wrong.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.problems_found == 0
    }

    fn untrue(&mut self, what: String) {
        self.untrue_found += 1;
        if self.untrue.len() < PROBLEMS_LISTED {
            self.untrue.push(what);
        }
    }

    fn problem(&mut self, what: impl Into<String>) {
        self.problems_found += 1;
        if self.problems.len() < PROBLEMS_LISTED {
            self.problems.push(what.into());
        }
    }
}

/// Called with the part at work, and the amounts done and in all.
pub type Progress<'a> = dyn FnMut(&str, u64, u64) + 'a;

/// Verifies the metadata of all containers, that each stream's chunks are in them, and that no usage
/// count is lower than what streams, volumes and snapshots name; with `data` the bytes of all chunks
/// too.
///
/// # Errors
/// Errors of the system; damage is in the report.
pub fn check(archive: &Arc<Archive>, data: bool, progress: &mut Progress<'_>) -> Result<Report> {
    let mut checking = Checking::new(archive)?;
    checking.found.leaves()?;
    checking.found.containers(None, data, progress)?;
    checking.streams(None, progress)?;
    checking.snapshots(progress)?;
    checking.volumes(None, progress)?;
    checking.counts(progress)?;
    Ok(checking.found.report)
}

/// The same for one stream or volume, and the containers that it needs.
///
/// # Errors
/// `NotFound`, and as [`check`].
pub fn check_one(
    archive: &Arc<Archive>,
    name: &str,
    data: bool,
    progress: &mut Progress<'_>,
) -> Result<Report> {
    let mut checking = Checking::new(archive)?;
    let tables = checking.found.tables.clone();
    let volume = tables.volumes.all().values().find(|volume| volume.name == name);
    if volume.is_none() && !tables.streams.contains_key(name) {
        return Err(Error::new(
            Kind::NotFound,
            format!("there is no stream and no volume '{}'", name.escape_debug()),
        ));
    }
    if let Some(stream) = tables.streams.get(name) {
        domain_of(archive, stream.domain)?;
    }
    if let Some(volume) = volume {
        domain_of(archive, volume.domain)?;
    }
    let needed = checking.needed(tables.streams.get(name), volume)?;
    checking.found.containers(Some(&needed), data, progress)?;
    checking.streams(Some(name), progress)?;
    checking.volumes(Some(name), progress)?;
    Ok(checking.found.report)
}

/// Bytes of containers' metadata that are kept.
const METADATA_BYTES_KEPT: u64 = 32 << 20;

/// Containers of usual chunks whose metadata has so many bytes.
const METADATA_KEPT: usize = 1024;

/// Metadata by its bytes.
#[derive(Clone)]
struct ByBytes;

impl quick_cache::Weighter<ContainerId, Option<Arc<Metadata>>> for ByBytes {
    fn weight(&self, _: &ContainerId, metadata: &Option<Arc<Metadata>>) -> u64 {
        metadata.as_ref().map_or(0, |metadata| metadata.memory() as u64)
            + size_of::<(ContainerId, Option<Arc<Metadata>>)>() as u64
    }
}

/// Blocks of a volume that are listed as lost; more are counted only.
const BLOCKS_LISTED: usize = 1000;

/// Lost chunks that are listed; after those are restored, more are found.
const LOST_LISTED: usize = 1 << 20;

/// The state of a running check.
struct Found {
    archive: Arc<Archive>,
    tables: Arc<Tables>,
    container_reader: ContainerReader,
    /// Metadata of containers; `None` where it is damaged.
    metadata: quick_cache::unsync::Cache<ContainerId, Option<Arc<Metadata>>, ByBytes>,
    report: Report,
}

/// Looks at containers first, then at the streams and volumes that name their chunks.
struct Checking {
    reader: Reader,
    trees: TreeReader,
    chunks: ChunkReader,
    found: Found,
}

impl Checking {
    fn new(archive: &Arc<Archive>) -> Result<Checking> {
        let reader = Reader::new(archive)?;
        let found = Found {
            archive: archive.clone(),
            tables: reader.tables().clone(),
            container_reader: ContainerReader::new(archive.clone()),
            metadata: quick_cache::unsync::Cache::with_weighter(
                METADATA_KEPT,
                METADATA_BYTES_KEPT,
                ByBytes,
            ),
            report: Report::default(),
        };
        let trees = TreeReader::new(archive)?;
        Ok(Checking { reader, trees, chunks: ChunkReader::default(), found })
    }

    /// The containers that a stream and a volume need. Recipes that can't be read now are found
    /// to be damaged later.
    fn needed(
        &mut self,
        stream: Option<&Stream>,
        volume: Option<&Volume>,
    ) -> Result<BTreeSet<ContainerId>> {
        let Checking { reader, chunks, found: Found { tables, container_reader, .. }, .. } = self;
        let mut needed = BTreeSet::new();
        let mut need = |id: ContainerId| {
            tables.places(id).try_for_each(|container| {
                match container {
                    // Told where all containers are looked at.
                    Err(error) if is_damage(&error) => {}
                    found => drop(needed.insert(found?.stored.id)),
                }
                Ok::<_, Error>(())
            })
        };
        for recipe in stream.iter().flat_map(|stream| stream.recipes()) {
            recipe.iter().try_for_each(|pieces| need(pieces.container))?;
            let walked = reader.parts(recipe, &mut |_, part| {
                chunks_of(&[part]).try_for_each(|(_, address)| need(address.container))
            });
            walked.or_else(|error| if is_damage(&error) { Ok(()) } else { Err(error) })?;
        }
        let Some(volume) = volume else { return Ok(needed) };
        for (block, mapping) in volume.block_index.mapped(0..u64::MAX) {
            need(mapping.container)?;
            match (Mapped { tables, container_reader, volume, block }).parts(chunks) {
                Ok(parts) => {
                    chunks_of(&parts).try_for_each(|(_, address)| need(address.container))?;
                }
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(needed)
    }

    fn streams(&mut self, only: Option<&str>, progress: &mut Progress<'_>) -> Result<()> {
        let Checking { reader, found, .. } = self;
        let tables = found.tables.clone();
        let total = tables.streams.len() as u64;
        for (name, stream) in
            tables.streams.iter().filter(|(name, _)| only.is_none_or(|only| only == *name))
        {
            if is_erased(&found.archive, stream.domain) {
                found.report.erased.streams += 1;
                found.report.erased.domains.insert(stream.domain);
                continue;
            }
            found.report.streams += 1;
            let mut lost = 0;
            for recipe in stream.recipes() {
                let walked = reader.parts(recipe, &mut |_, part| {
                    for (fingerprint, address) in chunks_of(&[part]) {
                        lost += u64::from(!found.has(address, &fingerprint)?);
                    }
                    Ok(())
                });
                match walked {
                    Err(error) if is_damage(&error) => {
                        found.report.hit.insert(name.clone());
                        found.report.problem(format!(
                            "stream '{}': its recipe can't be read: {error}",
                            name.escape_debug()
                        ));
                    }
                    other => other?,
                }
            }
            if lost > 0 {
                found.report.hit.insert(name.clone());
                found.report.problem(format!(
                    "stream '{}' lost {lost} of its {} chunks",
                    name.escape_debug(),
                    stream.chunks
                ));
            }
            progress("streams", found.report.streams, total);
        }
        Ok(())
    }

    fn volumes(&mut self, only: Option<&str>, progress: &mut Progress<'_>) -> Result<()> {
        let Checking { chunks, found, .. } = self;
        let tables = found.tables.clone();
        let wanted = || {
            tables
                .volumes
                .all()
                .values()
                .filter(|volume| only.is_none_or(|only| only == volume.name))
        };
        let total: u64 = wanted().map(|volume| volume.block_index.used()).sum();
        for volume in wanted() {
            if is_erased(&found.archive, volume.domain) {
                found.report.erased.volumes += 1;
                found.report.erased.domains.insert(volume.domain);
                continue;
            }
            found.report.volumes += 1;
            let (mut lost, mut listed) = (0u64, Vec::new());
            for (block, _) in volume.block_index.mapped(0..u64::MAX) {
                found.report.blocks += 1;
                let mut well = true;
                match (Mapped {
                    tables: &tables,
                    container_reader: &found.container_reader,
                    volume,
                    block,
                })
                .parts(chunks)
                {
                    Ok(parts) => {
                        for (fingerprint, address) in chunks_of(&parts) {
                            well &= found.has(address, &fingerprint)?
                                && found.is_of(address, volume.domain)?;
                        }
                    }
                    Err(error) if is_damage(&error) => well = false,
                    Err(error) => return Err(error),
                }
                if !well {
                    lost += 1;
                    if listed.len() < BLOCKS_LISTED {
                        listed.push(block);
                    }
                }
                if found.report.blocks.is_multiple_of(1024) {
                    progress("volumes", found.report.blocks, total);
                }
            }
            if lost > 0 {
                let (name, used) = (volume.name.escape_debug(), volume.block_index.used());
                found.report.problem(format!("volume '{name}' lost {lost} of its {used} blocks"));
                found.report.hit_volumes.insert(volume.name.clone(), listed);
            }
        }
        Ok(())
    }
}

impl Checking {
    /// Compares the usage counts with all that streams, volumes and snapshots name.
    fn counts(&mut self, progress: &mut Progress<'_>) -> Result<()> {
        let Found { archive, tables, report, .. } = &mut self.found;
        progress("usage counts", 0, 1);
        report.counts = Rewriter::new(archive).check_counts(tables)?;
        progress("usage counts", 1, 1);
        if report.counts.is_none()
            && let Some(error) = counts_refused(archive, tables)?
        {
            report.problem(format!("{error}; the next gc counts all anew"));
        }
        let Some(CountsFound { too_low, .. }) = report.counts.clone() else { return Ok(()) };
        for (id, chunks) in &too_low.containers {
            report.problem(format!(
                "container {id}: more names {chunks} of its chunks than their usage counts say, and gc \
                 may free them; `onefold gc --recount` counts all anew"
            ));
        }
        report.problems_found += too_low.in_containers - too_low.containers.len() as u64;
        Ok(())
    }
}

impl Found {
    /// Looks at the last snapshot of the tables, and at both copies of its leaves and of the pages of
    /// the volumes' maps.
    fn leaves(&mut self) -> Result<()> {
        let found = look_at_leaves(&self.archive, false)?;
        if let Some(why) = found.snapshot_lost {
            self.report.problem(format!(
                "the last snapshot of the tables can't be read, and the archive needs the one before: \
                 {why}; `onefold repair` writes a new one"
            ));
        }
        for (what, file, found) in [("leaf", "tables", found.leaves), ("map", "maps", found.pages)]
        {
            for page in found.with_one_copy {
                self.report.problem(format!(
                    "one of two copies of the {what} at page {page} of `{file}` is damaged; `onefold \
                     repair` writes it again"
                ));
            }
            for page in found.lost {
                self.report.problem(format!(
                    "both copies of the {what} at page {page} of `{file}` are damaged: the archive can \
                     be opened only as long as its last but one snapshot of the tables is whole"
                ));
            }
        }
        Ok(())
    }

    /// Looks at all containers, or those that are needed; with `data` at all of their bytes.
    fn containers(
        &mut self,
        needed: Option<&BTreeSet<ContainerId>>,
        data: bool,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let tables = self.tables.clone();
        let is_wanted = |id: &ContainerId| needed.is_none_or(|needed| needed.contains(id));
        let mut total = 0;
        // A container that can't be looked up is told of below.
        for container in tables.containers.iter().flatten() {
            let stored = container.stored;
            total += if is_wanted(&stored.id) { u64::from(stored.place.bytes) } else { 0 };
        }
        let (mut done, mut packer) = (0, Packer::default());
        for container in &tables.containers {
            let container = match container {
                Err(error) if is_damage(&error) => {
                    self.report.problem(format!(
                        "{error}: its containers, and what lies in them, can't be found"
                    ));
                    continue;
                }
                found => found?,
            };
            let id = container.stored.id;
            if !is_wanted(&id) {
                continue;
            }
            if is_erased(&self.archive, container.stored.domain) {
                let erased = &mut self.report.erased;
                erased.containers += 1;
                erased.bytes += u64::from(container.stored.place.bytes);
                erased.domains.insert(container.stored.domain);
                continue;
            }
            self.report.containers += 1;
            self.report.chunks += u64::from(container.stored.chunks);
            match self.container_reader.metadata(&container) {
                Ok(metadata) => {
                    if data {
                        let rotten = scrub_one(
                            &self.archive,
                            &self.container_reader,
                            &container,
                            &metadata,
                            &mut packer,
                            &mut self.report,
                        )?;
                        // Columns on absent nodes are not lost.
                        if !rotten.is_empty()
                            && is_all_there(&self.archive, &container.stored.place)
                        {
                            self.report.rotten.insert(id, bits_of(&rotten, metadata.chunks.len()));
                        }
                    }
                    self.metadata.insert(id, Some(Arc::new(metadata)));
                }
                Err(error) if is_damage(&error) => {
                    self.report.problem(error.to_string());
                    self.metadata.insert(id, None);
                }
                Err(error) => return Err(error),
            }
            done += u64::from(container.stored.place.bytes);
            progress(if data { "data" } else { "containers" }, done, total);
        }
        Ok(())
    }

    /// True when the chunk is there and whole, as far as it is known; otherwise it is listed as
    /// lost.
    fn has(&mut self, address: Address, fingerprint: &Fingerprint) -> Result<bool> {
        let there = self.is_there(address, fingerprint)?;
        if !there && self.report.lost.len() < LOST_LISTED {
            self.report.lost.insert(address, *fingerprint);
        }
        Ok(there)
    }

    /// True unless what lies at an address is of another domain.
    fn is_of(&self, address: Address, domain: u32) -> Result<bool> {
        for container in self.tables.places(address.container) {
            match container {
                // Told where all containers are looked at.
                Err(error) if is_damage(&error) => {}
                found => {
                    if found?.stored.domain != domain {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    fn is_there(&mut self, address: Address, fingerprint: &Fingerprint) -> Result<bool> {
        let tables = self.tables.clone();
        for container in tables.places(address.container) {
            let container = match container {
                // Told where all containers are looked at.
                Err(error) if is_damage(&error) => continue,
                found => found?,
            };
            let home = container.stored.id;
            let Some(metadata) = self.metadata(&container)? else { continue };
            let Ok(n) = metadata.chunks.binary_search_by_key(&address, |chunk| chunk.first) else {
                continue;
            };
            let bad = |bits: Option<&Vec<u8>>| bits.is_some_and(|bits| is_condemned(bits, n));
            return Ok(metadata.chunks[n].fingerprint == *fingerprint
                && !bad(tables.damaged.get(&home))
                && !bad(self.report.rotten.get(&home)));
        }
        Ok(false)
    }

    fn metadata(&mut self, container: &Container) -> Result<Option<Arc<Metadata>>> {
        let id = container.stored.id;
        if let Some(metadata) = self.metadata.get(&id) {
            return Ok(metadata.clone());
        }
        let read = match self.container_reader.metadata(container) {
            Ok(metadata) => Some(Arc::new(metadata)),
            Err(error) if is_damage(&error) => None,
            Err(error) => return Err(error),
        };
        self.metadata.insert(id, read.clone());
        Ok(read)
    }
}

/// Verifies all groups and chunks of a container; gives the places of the chunks that are damaged.
fn scrub_one(
    archive: &Archive,
    container_reader: &ContainerReader,
    container: &Container,
    metadata: &Metadata,
    packer: &mut Packer,
    report: &mut Report,
) -> Result<BTreeSet<usize>> {
    let (mut stored, mut raw, mut rotten) = (Vec::new(), Vec::new(), BTreeSet::new());
    let domain = domain_of(archive, metadata.domain())?;
    let mut chunks = metadata.chunks.iter().enumerate().collect::<Vec<_>>();
    chunks.sort_by_key(|(_, chunk)| chunk.group);
    let mut rest = &chunks[..];
    for (n, group) in metadata.groups.iter().enumerate() {
        let here = rest.iter().take_while(|(_, chunk)| usize::from(chunk.group) == n).count();
        let (chunks, later) = rest.split_at(here);
        rest = later;
        let read = container_reader.groups(
            &container.stored.place,
            std::slice::from_ref(group),
            &mut stored,
        );
        let seal = metadata.group_seal(n);
        let expanded = read.and_then(|before| {
            let stored = &mut stored[before..][..group.stored as usize];
            packer.expand(&archive.identity, seal, group, stored, &mut raw)
        });
        match expanded {
            Ok(()) => {
                report.bytes += raw.len() as u64;
                let bytes: Vec<&[u8]> = chunks
                    .iter()
                    .map(|(_, chunk)| &raw[chunk.at as usize..][..chunk.bytes as usize])
                    .collect();
                let found = domain.fingerprinter.chunks(&bytes);
                for ((place, chunk), (found, bytes)) in chunks.iter().zip(found.iter().zip(&bytes))
                {
                    if *found != chunk.fingerprint && !domain.is_of_older(bytes, &chunk.fingerprint)
                    {
                        rotten.insert(*place);
                        report.problem(format!(
                            "container {}: chunk {} does not have its fingerprint",
                            metadata.id, chunk.first.slot
                        ));
                    }
                }
            }
            Err(error) if is_damage(&error) => {
                rotten.extend(chunks.iter().map(|(place, _)| *place));
                report.problem(format!(
                    "container {}, group {n} with {} chunks: {error}",
                    metadata.id,
                    chunks.len()
                ));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(rotten)
}
