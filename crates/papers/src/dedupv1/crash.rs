//! Power failures: the archive engine over files whose unsynced changes can be lost, at every point
//! of puts, a removal and collections.
//!
//! The files remember each change and each sync. For every prefix of those the archive is opened
//! from what a power failure leaves: nothing of what no sync covered, all of it, or any sectors of
//! it. The catalogue must be the one before or the one after what was under way, and every byte of
//! it must come back. The simulator does more of that.

use std::{collections::BTreeMap, sync::Arc};

use onefold_archive::{
    Archive, Collection, CollectionOptions as Options, Compression, Content, Cutting, Ended,
    FilterName, Format, Reader, Session, Settings, Shape, StreamWriter, Verify, Writing, check,
};
use onefold_core::Result;
use onefold_testbed::SplitMix;

use super::{
    files::{Image, MemoryFiles, Step},
    judged, table,
    traffic::{self, Stream},
};
use crate::item::{Extent, Item, Judgement, no_figure, nothing};

/// The statement about crashes.
pub(super) const ITEMS: [Item; 1] = [Item {
    id: "crash",
    name: "Section 3.6: crashes",
    says: "a replay of the operations log leaves a consistent state: no block names a chunk that \
           is not stored, no index entry a container that was not written",
    band: "power fails at every point: each archive opens, its metadata is whole, nothing \
           acknowledged is lost, nothing else is read",
    fitted: false,
    calibrated: None,
    cases: nothing,
    judge: |extent, _| judged(|judgement| crashes(extent, judgement)),
    draw: no_figure,
}];

/// Bytes that the disk writes as one.
const SECTOR: usize = 512;

/// Cuts after each of so many of which the archive is used on.
const GOES_ON: usize = 5;

/// Streams by name, and the catalogue as of so many steps.
type Catalogue = BTreeMap<String, Stream>;

fn settings() -> Settings {
    Settings {
        filters: vec![FilterName::ContainerCache, FilterName::Bloom, FilterName::ChunkIndex],
        auxiliary_entries: 12,
        container_bytes: 32 << 10,
        sync_bytes: 96 << 10,
        log_bytes: 6 << 10,
        log_ahead_bytes: 0,
        count_slots: 20,
        ahead_bytes: 64 << 10,
        ..Settings::default()
    }
}

fn open(files: &MemoryFiles) -> Result<Arc<Archive>> {
    Ok(Arc::new(Archive::open(Arc::new(files.clone()), true, settings())?))
}

fn put(files: &MemoryFiles, name: &str, stream: &Stream) -> Result<()> {
    let archive = open(files)?;
    let mut session = Session::begin(&archive, false)?;
    let mut writer = StreamWriter::new(&session, 0);
    let (mut cutting, mut writing) = (Cutting::new(&*archive), Writing::default());
    let mut at = 0;
    while at < stream.bytes() {
        let n = stream.read(at, &mut cutting.room()[..64 << 10]);
        at += n as u64;
        cutting.advance(n);
        let mut batch = if at < stream.bytes() { cutting.some() } else { cutting.end() };
        batch.fingerprint(session.domain());
        session.add(&batch, &mut writing, &mut |open| writer.pack_and_write(open))?;
        if writer.must_import() {
            writer.import(true)?;
        }
    }
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

fn collect(files: &MemoryFiles) -> Result<()> {
    let options = Options {
        now: 10,
        keep_partial: 0,
        trash: 0,
        wait: false,
        reserve_bytes: 64 << 10,
        encode_all: false,
        doubts_clock: false,
    };
    Collection::begin(&open(files)?, options)?.run(&mut |_| {}).map(drop)
}

/// True when an archive has exactly these streams, byte by byte.
fn is(archive: &Arc<Archive>, wanted: &Catalogue) -> Result<bool> {
    let mut reader = Reader::new(archive)?;
    if !reader.tables().streams.keys().eq(wanted.keys()) {
        return Ok(false);
    }
    for (name, stream) in wanted {
        let mut bytes = Vec::new();
        let stored = reader.stream(name)?;
        if stored.bytes != stream.bytes() {
            return Ok(false);
        }
        reader.read(&stored.recipe, Verify::Chunks, &mut |content| {
            match content {
                Content::Bytes(part) => bytes.extend_from_slice(part),
                Content::Zeroes(n) | Content::Hole(n) => bytes.resize(bytes.len() + n as usize, 0),
            }
            Ok(())
        })?;
        let mut expected = vec![0; bytes.len()];
        if stream.read(0, &mut expected) != bytes.len() || expected != bytes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The workload: the steps, and the catalogue after so many of them.
fn workload(generations: u64) -> Result<(Image, Vec<Step>, Vec<(usize, Catalogue)>)> {
    let files = MemoryFiles::default();
    let format = Format {
        compression: Compression::Lz4,
        segment_bytes: 256 << 10,
        reserve_bytes: 64 << 10,
        ..Format::new([1; 16], [2; 32], [3; 16])
    };
    Archive::create(&files, &format)?;
    let base = Image::from(&files);
    files.remember();
    let shape = traffic::Shape {
        first_unique: 30e3,
        distance: 20e3,
        temporal: 0.8,
        ..traffic::Shape::PAPER
    };
    let mut rng = SplitMix::new(5);
    let mut generation = traffic::Generation::first(1, 200_000, &shape, &mut rng);
    let mut catalogue = Catalogue::new();
    let mut marks = vec![(0, catalogue.clone())];
    let mut mark = |catalogue: &Catalogue| marks.push((files.remembered(), catalogue.clone()));
    for n in 0..generations {
        let name = format!("stream-{}", n % 3);
        put(&files, &name, &generation.streams[0])?;
        catalogue.insert(name, generation.streams[0].clone());
        mark(&catalogue);
        if n % 2 == 1 {
            let gone = format!("stream-{}", (n - 1) % 3);
            open(&files)?.remove(&gone)?;
            catalogue.remove(&gone);
            mark(&catalogue);
            collect(&files)?;
            mark(&catalogue);
        }
        generation = generation.next(&shape, &mut rng);
    }
    Ok((base, files.journal(), marks))
}

/// The part of the unsynced writes that a power failure leaves.
#[derive(Clone, Copy)]
enum Left {
    Nothing,
    Everything,
    Some,
}

fn left(durable: &Image, pending: &[Step], left: Left, rng: &mut SplitMix) -> Image {
    let mut image = durable.clone();
    for step in pending {
        match (left, step) {
            (Left::Nothing, _) => {}
            (Left::Some, Step::Write(id, at, data)) => {
                for (n, part) in data.chunks(SECTOR).enumerate() {
                    if rng.chance(0.5) {
                        image.write(*id, at + (n * SECTOR) as u64, part);
                    }
                }
            }
            (Left::Some, step) if rng.chance(0.5) => image.apply(step),
            (Left::Some, _) => {}
            (Left::Everything, step) => image.apply(step),
        }
    }
    let named: Vec<u64> = image.names.values().copied().collect();
    image.contents.retain(|id, _| named.contains(id));
    image
}

/// A step, which may make earlier ones durable.
fn go(durable: &mut Image, pending: &mut Vec<Step>, step: &Step) {
    let covers = |other: &Step| match (step, other) {
        (Step::Sync(synced), Step::Write(id, ..) | Step::Length(id, _) | Step::Punch(id, ..)) => {
            synced == id
        }
        (Step::SyncNames, Step::Name(..)) => true,
        _ => false,
    };
    match step {
        Step::Sync(_) | Step::SyncNames => {
            pending.iter().filter(|other| covers(other)).for_each(|other| durable.apply(other));
            pending.retain(|other| !covers(other));
        }
        step => pending.push(step.clone()),
    }
}

#[derive(Default)]
struct Found {
    opened: u64,
    lost: u64,
    broken: u64,
    went_on: u64,
    first: Option<String>,
}

impl Found {
    /// Opens what was left, and looks at it.
    fn look(
        &mut self,
        image: Image,
        before: &Catalogue,
        after: &Catalogue,
        goes_on: bool,
        what: &str,
    ) {
        self.opened += 1;
        let files = MemoryFiles::of(image);
        let looked = (|| -> Result<(bool, bool)> {
            let archive = open(&files)?;
            let well = check(&archive, true, &mut |_, _, _| {})?.is_well();
            let (older, newer) = (is(&archive, before)?, is(&archive, after)?);
            drop(archive);
            if !goes_on || !(older || newer) {
                return Ok((well, older || newer));
            }
            let mut now = if newer { after.clone() } else { before.clone() };
            collect(&files)?;
            let more = traffic::Generation::first(
                1,
                100_000,
                &traffic::Shape::PAPER,
                &mut SplitMix::new(77),
            )
            .streams
            .remove(0);
            put(&files, "more", &more)?;
            now.insert("more".to_owned(), more);
            self.went_on += 1;
            let archive = open(&files)?;
            Ok((well && check(&archive, true, &mut |_, _, _| {})?.is_well(), is(&archive, &now)?))
        })();
        let told = match looked {
            Ok((true, true)) => return,
            Ok((well, there)) => {
                self.broken += u64::from(!well);
                self.lost += u64::from(!there);
                format!("{what}: whole {well}, all there {there}")
            }
            Err(error) => {
                self.broken += 1;
                format!("{what}: {error}")
            }
        };
        self.first.get_or_insert(told);
    }
}

fn crashes(extent: &Extent, judgement: &mut Judgement) -> Result<()> {
    let (base, steps, marks) = workload(if extent.quick { 4 } else { 12 })?;
    let (mut durable, mut pending) = (base, Vec::new());
    let (mut rng, mut found, mut mark) = (SplitMix::new(11), Found::default(), 0);
    for (cut, step) in steps.iter().enumerate() {
        go(&mut durable, &mut pending, step);
        while marks.get(mark + 1).is_some_and(|next| next.0 <= cut + 1) {
            mark += 1;
        }
        let (before, after) = (&marks[mark].1, &marks.get(mark + 1).unwrap_or(&marks[mark]).1);
        let shapes = [
            (Left::Nothing, "nothing left"),
            (Left::Everything, "everything left"),
            (Left::Some, "some left"),
        ];
        for (n, (shape, name)) in shapes.into_iter().enumerate() {
            if pending.is_empty() && n > 0 {
                continue;
            }
            let image = left(&durable, &pending, shape, &mut rng);
            found.look(
                image,
                before,
                after,
                (cut + n) % GOES_ON == 0,
                &format!("after step {cut}, {name}"),
            );
        }
    }
    let text = format!(
        "power failed at all {} points, {} archives opened, {} of them used on: {} lost something, \
         {} damaged",
        steps.len(),
        found.opened,
        found.went_on,
        found.lost,
        found.broken
    );
    judgement.check(text, found.lost + found.broken == 0 && !steps.is_empty());
    if let Some(first) = found.first {
        judgement.check(first, false);
    }
    let kinds: [(&str, fn(&Step) -> bool); 4] = [
        ("writes", |step| matches!(step, Step::Write(..))),
        ("lengths and holes", |step| matches!(step, Step::Length(..) | Step::Punch(..))),
        ("names made and removed", |step| matches!(step, Step::Name(..))),
        ("syncs", |step| matches!(step, Step::Sync(_) | Step::SyncNames)),
    ];
    let rows = kinds.iter().map(|(name, is)| {
        vec![(*name).to_owned(), steps.iter().filter(|step| is(step)).count().to_string()]
    });
    judgement.figures.push(table(
        "Points at which the power failed",
        &["after", "points"],
        rows.collect(),
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_that_is_left_out_is_found() {
        let (base, steps, marks) = workload(2).unwrap();
        let look = |steps: &[Step]| {
            let (mut durable, mut pending) = (base.clone(), Vec::new());
            steps.iter().for_each(|step| go(&mut durable, &mut pending, step));
            let mut found = Found::default();
            let end = &marks[marks.len() - 1].1;
            found.look(
                left(&durable, &pending, Left::Nothing, &mut SplitMix::new(1)),
                end,
                end,
                false,
                "at the end",
            );
            found.lost + found.broken
        };
        assert_eq!(look(&steps), 0);
        // The disk forgets what it was asked to keep.
        let forgetful: Vec<Step> =
            steps.into_iter().filter(|step| !matches!(step, Step::Sync(_))).collect();
        assert_eq!(look(&forgetful), 1);
    }
}
