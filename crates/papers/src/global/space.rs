//! Table 2 and Figure 13: space.

use onefold_core::{BLOCK_BYTES, Result, object::PoolKind};

use super::{
    clones::{self, Image},
    site::{Site, blocks, in_blocks, metadata_bytes},
};
use crate::item::{Extent, Item, Judgement, Look, no_figure, nothing};
use onefold_lab::report::{Axis, Figure, Lines, Series, Table};
use onefold_testbed::SplitMix;

/// Space.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "table2",
        name: "Table 2: chunk sizes",
        says: "with chunks of 16, 32 and 64 KiB 46.4, 44.8 and 43.7 % are duplicates; 41.7, 42.4 \
               and 43.3 % are saved, since metadata takes 163, 82 and 41 GB",
        band: "metadata halves with each doubling (± 15 %); duplicates fall and what is saved \
               rises with the chunk",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _: &Look<'_>| judged(table2(extent)),
        draw: no_figure,
    },
    Item {
        id: "13",
        name: "Figure 13: images of virtual machines",
        says: "ten images of 8 GB: replication 160 GB, erasure code 120 GB, deduplication about \
               2.2 GB and 200 MB for each further one; with erasure code and compression best",
        band: "each further image adds ≤ 5 % of the first; replication > erasure code > \
               deduplication > with erasure code > with compression",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _: &Look<'_>| judged(figure13(extent)),
        draw: no_figure,
    },
];

fn judged(result: Result<Judgement>) -> Judgement {
    result.unwrap_or_else(|error| {
        let mut judgement = Judgement::default();
        judgement.check(error.to_string(), false);
        judgement
    })
}

/// Runs of blocks, half of which repeat an earlier one at a place like its own; 16 KiB is the unit
/// in which they end.
fn runs(bytes: u64) -> Vec<u64> {
    const UNIT: u64 = 4;
    const ALIGNED: u64 = 16;
    const UNITS_MAX: u64 = 512;
    let mut rng = SplitMix::new(3);
    let mut numbers: Vec<u64> = Vec::new();
    let mut kept: Vec<(usize, usize)> = Vec::new();
    let mut next = 0;
    while (numbers.len() as u64) < in_blocks(bytes) {
        // New content up to the next aligned place.
        while !(numbers.len() as u64).is_multiple_of(ALIGNED) {
            numbers.push(next);
            next += 1;
        }
        let from = numbers.len();
        if !kept.is_empty() && rng.chance(0.5) {
            let (start, length) = kept[rng.below(kept.len() as u64) as usize];
            numbers.extend_from_within(start..start + length);
        } else {
            let length = ((1 + rng.below(UNITS_MAX)) * UNIT) as usize;
            numbers.extend((0..length as u64).map(|n| next + n));
            next += length as u64;
            kept.push((from, length));
        }
    }
    numbers.truncate(in_blocks(bytes) as usize);
    numbers
}

fn table2(extent: &Extent) -> Result<Judgement> {
    let bytes: u64 = if extent.quick { 64 << 20 } else { 256 << 20 };
    let numbers = runs(bytes);
    let mut judgement = Judgement { blocks: 3 * in_blocks(bytes), ..Judgement::default() };
    let mut table = Table {
        title: "Chunk sizes".into(),
        columns: ["chunk", "duplicates, %", "chunks stored, MiB", "metadata, MiB", "saved, %"]
            .map(String::from)
            .to_vec(),
        rows: Vec::new(),
    };
    let mut found = Vec::new();
    for kib in [16u32, 32, 64] {
        let site = Site::new(kib << 10, false, PoolKind::Replicated)?;
        let mut source = numbers
            .chunks(1024)
            .flat_map(|part| blocks(part.iter().copied(), 4096))
            .collect::<std::collections::VecDeque<u8>>();
        site.session.put("data", &mut source)?;
        site.settle()?;
        let status = site.status()?;
        let metadata = metadata_bytes(&status);
        let per_cent = |stored: u64| 100.0 - 100.0 * stored as f64 / bytes as f64;
        let (ideal, actual) =
            (per_cent(status.chunk_bytes), per_cent(status.chunk_bytes + metadata));
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
        table.rows.push(vec![
            format!("{kib} KiB"),
            format!("{ideal:.1}"),
            mib(status.chunk_bytes),
            mib(metadata),
            format!("{actual:.1}"),
        ]);
        found.push((ideal, metadata as f64, actual));
    }
    let halves = found.windows(2).all(|pair| (0.425..=0.575).contains(&(pair[1].1 / pair[0].1)));
    let list = |of: fn(&(f64, f64, f64)) -> f64| {
        found.iter().map(|row| format!("{:.1}", of(row))).collect::<Vec<_>>().join(", ")
    };
    judgement.check(format!("metadata {} MiB", list(|row| row.1 / (1 << 20) as f64)), halves);
    judgement.check(
        format!("duplicates {} %", list(|row| row.0)),
        found.windows(2).all(|pair| pair[1].0 < pair[0].0),
    );
    judgement.check(
        format!("saved {} %", list(|row| row.2)),
        found.windows(2).all(|pair| pair[1].2 > pair[0].2),
    );
    judgement.remark =
        "Data: runs of up to 2 MiB, half of them repeated; they begin at multiples of 64 KiB and \
         end at multiples of 16."
            .into();
    judgement.figures = vec![Figure::Table(table)];
    Ok(judgement)
}

/// Bytes of a store after each image: metadata and chunks apart.
fn stored(
    images: &[Image],
    bytes: u64,
    compress: bool,
    chunks: PoolKind,
) -> Result<Vec<(u64, u64)>> {
    let site = Site::new(32 << 10, compress, chunks)?;
    let mut sizes = Vec::new();
    for (n, image) in images.iter().enumerate() {
        let volume = site.volume(&format!("vm{n}"), bytes)?;
        for (at, run) in clones::runs(image, RUN_BLOCKS) {
            volume.write_at(at, &run)?;
        }
        site.settle()?;
        let status = site.status()?;
        sizes.push((metadata_bytes(&status) + status.cached_bytes, status.chunk_bytes));
    }
    Ok(sizes)
}

/// The most that is written of an image at once.
const RUN_BLOCKS: usize = 1024;

/// MiB of files in the home of each clone of the trace.
const HOME_MIB: u64 = 4;

/// The space that so many copies of the images take, after each image.
fn growing_images(images: &[f64], copies: f64) -> Vec<f64> {
    let sum = |taken: &mut f64, image: &f64| {
        *taken += copies * image;
        Some(*taken)
    };
    images.iter().scan(0.0, sum).collect()
}

fn figure13(extent: &Extent) -> Result<Judgement> {
    let Some(path) = clones::trace(extent) else {
        let remark = "It needs the recorded trace vmclones.".to_owned();
        return Ok(Judgement { missing: true, remark, ..Judgement::default() });
    };
    let (images, bytes) = clones::images(path, if extent.quick { 3 } else { 10 })?;
    let plain = stored(&images, bytes, false, PoolKind::Replicated)?;
    let coded = stored(&images, bytes, false, PoolKind::Erasure)?;
    let packed = stored(&images, bytes, true, PoolKind::Erasure)?;
    // Images without their holes.
    let of_images: Vec<f64> =
        images.iter().map(|image| (image.len() * BLOCK_BYTES) as f64).collect();
    let all = of_images.iter().sum::<f64>();
    // Two copies; two data parts and one of parity. Metadata has two copies always.
    let of = |(metadata, chunks): (u64, u64), copies: f64| {
        metadata as f64 * 2.0 + chunks as f64 * copies
    };
    let end =
        |sizes: &[(u64, u64)], copies: f64| sizes.last().map_or(0.0, |&last| of(last, copies));
    let sizes = [2.0 * all, 1.5 * all, end(&plain, 2.0), end(&coded, 1.5), end(&packed, 1.5)];
    let first = of(plain[0], 2.0);
    let most = plain.windows(2).map(|pair| of(pair[1], 2.0) - of(pair[0], 2.0)).fold(0.0, f64::max)
        / first
        * 100.0;
    let mib = |bytes: f64| format!("{:.1}", bytes / (1 << 20) as f64);
    let mut judgement = Judgement { blocks: 3 * in_blocks(all as u64), ..Judgement::default() };
    judgement
        .check(format!("each further image adds at most {most:.1} % of the first"), most <= 5.0);
    judgement.check(
        format!("MiB: {}", sizes.map(mib).join(" > ")),
        sizes.windows(2).all(|pair| pair[0] > pair[1]),
    );
    judgement.remark = format!(
        "{} clones of a Debian system on ext4, {} MiB of files each; what each further one adds \
         has {} MiB of its own home in it, in two copies. Two copies, or two parts and one of \
         parity; metadata has two copies always. Holes of the images count nowhere.",
        images.len(),
        mib(of_images[0]),
        HOME_MIB
    );
    let names = [
        "two copies",
        "erasure code",
        "deduplication, two copies",
        "deduplication, erasure code",
        "and compression",
    ];
    let growing: [Vec<f64>; 5] = [
        growing_images(&of_images, 2.0),
        growing_images(&of_images, 1.5),
        plain.iter().map(|&sizes| of(sizes, 2.0)).collect(),
        coded.iter().map(|&sizes| of(sizes, 1.5)).collect(),
        packed.iter().map(|&sizes| of(sizes, 1.5)).collect(),
    ];
    let points = |bytes: &Vec<f64>| {
        (1..).map(f64::from).zip(bytes.iter().map(|bytes| bytes / (1 << 20) as f64)).collect()
    };
    let series = names
        .iter()
        .zip(&growing)
        .map(|(name, bytes)| Series { name: (*name).to_owned(), points: points(bytes) })
        .collect();
    let lines = Figure::Lines(Lines {
        title: "Space of images of virtual machines".into(),
        x: Axis::linear("images"),
        y: Axis::logarithmic("space, MiB"),
        series,
        ..Lines::default()
    });
    let table = Figure::Table(Table {
        title: "Space of all images, MiB".into(),
        columns: ["system", "space"].map(String::from).to_vec(),
        rows: names
            .iter()
            .zip(sizes)
            .map(|(name, size)| vec![(*name).to_owned(), mib(size)])
            .collect(),
    });
    judgement.figures = vec![lines, table];
    Ok(judgement)
}
