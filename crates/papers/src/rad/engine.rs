//! Algorithm 1 in the archive engine beside the simulation, on the same manifests.
//!
//! A hash of the manifest becomes a chunk of 4 KiB with content of its own, so that the engine finds
//! the manifest's duplicates. The simulation's stripe has 12 chunks; a container of the engine is a
//! stripe, so for what breaks it has 12 chunks too, and for space its usual 4 MiB.
//! Both cut stripes at the borders of classes where breaking is compared.

use std::{collections::HashMap, sync::Arc};

use onefold_archive::{
    Address, Archive, Batch, Chunking, Class, Compression, ContainerId, ContainerKind, Cutting,
    Ended, Format, Nodes, Part, Rad, Reader, Session, Settings, Shape, Spread, StreamWriter,
    Writing,
};
use onefold_core::{Files, Result};
use onefold_lab::rad::{
    Deletion, Options, Placement, each_alone,
    manifest::{CHUNK_BYTES, Version},
    replay,
};
use onefold_testbed::SplitMix;

use super::{
    super::{
        dedupv1::files::MemoryFiles,
        item::{Extent, Judgement, Look},
    },
    manifests, table,
};

/// The paper's nodes and code.
const NODES: u8 = 16;
const CODE: (usize, usize) = (14, 12);

/// Engine and simulation differ by this at most.
const BAND: f64 = 0.02;

/// Chunks of a version in a quick run.
const QUICK_CHUNKS: usize = 3000;

/// The figures of both.
#[derive(Debug, Default)]
struct Figures {
    chunks: u64,
    /// Cold, between, hot.
    classes: [u64; 3],
    stripes: u64,
    broken: u64,
    reencoded: u64,
    written: u64,
}

/// Runs both and compares.
pub(super) fn judge(extent: &Extent, _: &Look<'_>) -> Judgement {
    let (mut judgement, mut rows) = (Judgement::default(), Vec::new());
    for (name, mut versions) in manifests(extent, false, &mut judgement) {
        if extent.quick {
            versions.iter_mut().for_each(|version| version.chunks.truncate(QUICK_CHUNKS));
        }
        for batch in [1, versions.len()] {
            let both = simulated(&versions, batch)
                .and_then(|simulated| Ok((simulated, stored(&versions, batch)?)));
            match both {
                Ok((simulated, stored)) => {
                    compare(&name, batch, &simulated, &stored, &mut judgement, &mut rows)
                }
                Err(error) => judgement.check(format!("{name}: {error}"), false),
            }
        }
    }
    let columns = ["manifest", "batch", "figure", "simulation", "engine", "engine more by %"];
    judgement.figures.push(table("Algorithm 1", &columns, rows));
    judgement.remark = "Space is that of containers of 4 MiB with their headers, fingerprints and \
                        the filling of their last rows, which the simulation does not have. The \
                        engine's stripes have chunks of one class each, and so have the \
                        simulation's where breaking is compared; else which chunks share a stripe \
                        at the border of two classes moves all behind it."
        .to_owned();
    judgement
}

fn compare(
    name: &str,
    batch: usize,
    simulated: &Figures,
    stored: &Figures,
    judgement: &mut Judgement,
    rows: &mut Vec<Vec<String>>,
) {
    let mut worst: (f64, &str) = (0.0, "nothing");
    let [cold, baseline, hot] = [0, 1, 2].map(|n| (simulated.classes[n], stored.classes[n]));
    for (what, (expected, found)) in [
        ("chunks", (simulated.chunks, stored.chunks)),
        ("cold chunks", cold),
        ("baseline chunks", baseline),
        ("hot chunks", hot),
        ("stripes", (simulated.stripes, stored.stripes)),
        ("stripes that break", (simulated.broken, stored.broken)),
        ("chunks in them that live", (simulated.reencoded, stored.reencoded)),
        ("bytes on nodes", (simulated.written, stored.written)),
    ] {
        let more = found as f64 / (expected.max(1)) as f64 - 1.0;
        let differs = if expected == 0 && found == 0 { 0.0 } else { more };
        if differs.abs() > worst.0 {
            worst = (differs.abs(), what);
        }
        let row = [name, &batch.to_string(), what, &expected.to_string(), &found.to_string()];
        let percent = format!("{:+.2}", differs * 100.0);
        rows.push(row.into_iter().map(str::to_owned).chain([percent]).collect());
    }
    judgement.check(
        format!("{name}, batches of {batch}: {} within {:.2} %", worst.1, worst.0 * 100.0),
        worst.0 <= BAND,
    );
}

fn sum(deletions: &[Deletion], of: fn(&Deletion) -> u64) -> u64 {
    deletions.iter().map(of).sum()
}

fn simulated(versions: &[Version], batch: usize) -> Result<Figures> {
    let (n, k) = CODE;
    let nodes = usize::from(NODES);
    let placement = Placement::Rad;
    let options = Options { n, k, nodes, batch, delay: 0, placement, by_class: false };
    let all = replay(versions, &options)?;
    let alone = each_alone(versions, &Options { by_class: true, ..options })?;
    Ok(Figures {
        chunks: all.unique_chunks,
        classes: all.classes,
        stripes: all.stripes,
        broken: sum(&alone, |one| one.broken_stripes),
        reencoded: sum(&alone, |one| one.reencoded_chunks),
        written: all.upload_bytes_written,
    })
}

/// The same of the engine: once with stripes of 12 chunks, once with its usual containers.
fn stored(versions: &[Version], batch: usize) -> Result<Figures> {
    let stripes = Filled::new(versions, batch, CODE.1 * CHUNK_BYTES as usize)?;
    let found = stripes.figures()?;
    let usual = Filled::new(versions, batch, Settings::default().container_bytes)?;
    Ok(Figures { written: usual.figures()?.written, ..found })
}

/// An archive with all versions.
struct Filled {
    archive: Arc<Archive>,
    /// The chunks of each version, where they lie.
    chunks_of: Vec<Vec<Address>>,
}

impl Filled {
    /// Puts `batch` versions as one stream each time.
    fn new(versions: &[Version], batch: usize, container_bytes: usize) -> Result<Filled> {
        let archive = create(container_bytes)?;
        let mut chunks_of = Vec::new();
        for (n, together) in versions.chunks(batch).enumerate() {
            let name = format!("v{n}");
            put(&archive, &name, together)?;
            let mut addresses = addresses(&archive, &name)?.into_iter();
            for version in together {
                chunks_of.push(addresses.by_ref().take(version.chunks.len()).collect());
            }
        }
        Ok(Filled { archive, chunks_of })
    }

    fn figures(&self) -> Result<Figures> {
        let tables = self.archive.tables();
        let mut figures = Figures::default();
        for container in &tables.containers {
            let stored = container?.stored;
            if stored.kind != ContainerKind::Data {
                continue;
            }
            figures.stripes += 1;
            figures.chunks += u64::from(stored.chunks);
            figures.written += tables.written(&stored.place);
            let class = match tables.class(&stored.place).0 {
                Class::Cold => 0,
                Class::Baseline => 1,
                Class::Hot => 2,
                // No chunk may be there.
                Class::Plain | Class::Replicated => continue,
            };
            figures.classes[class] += u64::from(stored.chunks);
        }
        let mut references: HashMap<Address, u64> = HashMap::new();
        for &address in self.chunks_of.iter().flatten() {
            *references.entry(address).or_default() += 1;
        }
        for chunks in &self.chunks_of {
            let mut left = references.clone();
            chunks.iter().for_each(|address| *left.entry(*address).or_default() -= 1);
            // Of each container, chunks that die and chunks that live.
            let mut containers: HashMap<ContainerId, (u64, u64)> = HashMap::new();
            for (address, count) in left {
                let (dead, living) = containers.entry(address.container).or_default();
                *(if count == 0 { dead } else { living }) += 1;
            }
            let broken = containers.values().filter(|(dead, living)| *dead > 0 && *living > 0);
            figures.broken += broken.clone().count() as u64;
            figures.reencoded += broken.map(|(_, living)| living).sum::<u64>();
        }
        Ok(figures)
    }
}

fn create(container_bytes: usize) -> Result<Arc<Archive>> {
    let (n, k) = CODE;
    let directories: Vec<Arc<dyn Files>> =
        (0..NODES).map(|_| Arc::new(MemoryFiles::default()) as Arc<dyn Files>).collect();
    let spread = Spread { n, k, ids: (0..NODES).map(|node| [node; 16]).collect(), listed: false };
    let format = Format {
        chunking: Chunking::Static(CHUNK_BYTES as u32),
        compression: Compression::None,
        reserve_bytes: 1 << 20,
        // More than a manifest has: a put is one batch.
        late: Some(Rad { delay: 0, batch: 1, classes: [k as u8; 3], gathers: 4 << 20 }),
        ..Format::new([1; 16], [2; 32], [3; 16])
    };
    let nodes = Arc::new(Nodes::create(directories, &spread, format.id, format.secret)?);
    Archive::create_on_nodes(&nodes, &format)?;
    let settings = Settings { container_bytes, ..Settings::default() };
    Ok(Arc::new(Archive::open_on_nodes(nodes, true, settings)?))
}

/// Puts versions as one stream.
fn put(archive: &Arc<Archive>, name: &str, versions: &[Version]) -> Result<()> {
    let mut session = Session::begin(archive, false)?;
    let mut writer = StreamWriter::new(&session, 0);
    let (mut writing, mut cutting) = (Writing::default(), Cutting::new(archive));
    let mut add = |mut batch: Batch| {
        batch.fingerprint(session.domain());
        session.add(&batch, &mut writing, &mut |open| writer.pack_and_write(open))
    };
    for &hash in versions.iter().flat_map(|version| &version.chunks) {
        let chunk = content(hash);
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            let room = cutting.room();
            let n = room.len().min(rest.len());
            room[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            cutting.advance(n).map_or(Ok(()), &mut add)?;
        }
    }
    add(cutting.end())?;
    let data = session.end_recipe(writing, &mut |open| writer.pack_and_write(open))?;
    session.seal(&mut |open| writer.pack_and_write(open))?;
    writer.commit(Ended {
        name: name.to_owned(),
        shape: Shape::Bytes,
        created: 0,
        data,
        listing: Vec::new(),
    })?;
    writer.close()
}

/// A chunk that no other hash has.
fn content(hash: u64) -> Vec<u8> {
    let mut rng = SplitMix::new(hash);
    let words = (0..CHUNK_BYTES / 8).map(|n| if n == 0 { hash | 1 << 63 } else { rng.next() });
    words.flat_map(u64::to_le_bytes).collect()
}

/// Where the chunks of a stream lie, in their order.
fn addresses(archive: &Arc<Archive>, name: &str) -> Result<Vec<Address>> {
    let mut reader = Reader::new(archive)?;
    let stream = reader.stream(name)?;
    let mut all = Vec::new();
    reader.parts(&stream.recipe, &mut |_, part| {
        if let Part::Run { first, fingerprints, .. } = part {
            let slots = first.slot..first.slot + fingerprints.len() as u16;
            all.extend(slots.map(|slot| Address { slot, ..first }));
        }
        Ok(())
    })?;
    Ok(all)
}
