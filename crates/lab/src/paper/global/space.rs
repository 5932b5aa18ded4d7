//! Table 2 and Figure 13: space.

use onefold_core::{Result, object::PoolKind};

use super::site::{Site, blocks, in_blocks, metadata_bytes};
use crate::{
    paper::item::{Extent, Item, Judgement, Look, no_figure, nothing},
    report::{Axis, Figure, Lines, Series, Table},
    rng::Rng,
};

/// Space.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "table2",
        name: "Table 2: chunk sizes",
        says: "with chunks of 16, 32 and 64 KiB 46.4, 44.8 and 43.7 % are duplicates; 41.7, 42.4 and 43.3 % are saved, since metadata takes 163, 82 and 41 GB",
        band: "metadata halves with each doubling (± 15 %); duplicates fall and what is saved rises with the chunk",
        fitted: false,
        cases: nothing,
        judge: |extent, _: &Look<'_>| judged(table2(extent)),
        draw: no_figure,
    },
    Item {
        id: "13",
        name: "Figure 13: images of virtual machines",
        says: "ten images of 8 GB: replication 160 GB, erasure code 120 GB, deduplication about 2.2 GB and 200 MB for each further one; with erasure code and compression best",
        band: "each further image adds ≤ 5 % of the first; replication > erasure code > deduplication > with erasure code > with compression",
        fitted: false,
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

/// Runs of blocks, half of which repeat an earlier one at a place like its own; 16 KiB is the unit in which they end.
fn runs(bytes: u64) -> Vec<u64> {
    const UNIT: u64 = 4;
    const ALIGNED: u64 = 16;
    const UNITS_MAX: u64 = 512;
    let mut rng = Rng::new(3);
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
        columns: ["chunk", "duplicates, %", "chunks stored, MiB", "metadata, MiB", "saved, %"].map(String::from).to_vec(),
        rows: Vec::new(),
    };
    let mut found = Vec::new();
    for kib in [16u32, 32, 64] {
        let site = Site::new(kib << 10, false, PoolKind::Replicated)?;
        let mut source =
            numbers.chunks(1024).flat_map(|part| blocks(part.iter().copied(), 4096)).collect::<std::collections::VecDeque<u8>>();
        site.session.put("data", &mut source)?;
        site.settle()?;
        let status = site.status()?;
        let metadata = metadata_bytes(&status);
        let per_cent = |stored: u64| 100.0 - 100.0 * stored as f64 / bytes as f64;
        let (ideal, actual) = (per_cent(status.chunk_bytes), per_cent(status.chunk_bytes + metadata));
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
        table.rows.push(vec![format!("{kib} KiB"), format!("{ideal:.1}"), mib(status.chunk_bytes), mib(metadata), format!("{actual:.1}")]);
        found.push((ideal, metadata as f64, actual));
    }
    let halves = found.windows(2).all(|pair| (0.425..=0.575).contains(&(pair[1].1 / pair[0].1)));
    let list = |of: fn(&(f64, f64, f64)) -> f64| found.iter().map(|row| format!("{:.1}", of(row))).collect::<Vec<_>>().join(", ");
    judgement.check(format!("metadata {} MiB", list(|row| row.1 / (1 << 20) as f64)), halves);
    judgement.check(format!("duplicates {} %", list(|row| row.0)), found.windows(2).all(|pair| pair[1].0 < pair[0].0));
    judgement.check(format!("saved {} %", list(|row| row.2)), found.windows(2).all(|pair| pair[1].2 > pair[0].2));
    judgement.remark =
        "Data: runs of up to 2 MiB, half of them repeated; they begin at multiples of 64 KiB and end at multiples of 16.".into();
    judgement.figures = vec![Figure::Table(table)];
    Ok(judgement)
}

/// Bytes of a store after each of ten images: metadata and chunks apart.
fn images(image: u64, home: u64, compress: bool, chunks: PoolKind) -> Result<Vec<(u64, u64)>> {
    let site = Site::new(32 << 10, compress, chunks)?;
    let mut sizes = Vec::new();
    for n in 0..10u64 {
        let own = in_blocks(home);
        let numbers = (0..in_blocks(image)).map(|block| if block < own { 1 << 32 | n << 24 | block } else { block });
        // What systems are made of shrinks to three fifths.
        let bytes: Vec<u8> = blocks(numbers, 2458);
        let volume = site.volume(&format!("vm{n}"), image)?;
        for (at, part) in bytes.chunks(4 << 20).enumerate() {
            volume.write_at((at as u64) << 22, part)?;
        }
        site.settle()?;
        let status = site.status()?;
        sizes.push((metadata_bytes(&status) + status.cached_bytes, status.chunk_bytes));
    }
    Ok(sizes)
}

fn figure13(extent: &Extent) -> Result<Judgement> {
    let image: u64 = if extent.quick { 8 << 20 } else { 64 << 20 };
    let home = image / 40;
    let plain = images(image, home, false, PoolKind::Replicated)?;
    let coded = images(image, home, false, PoolKind::Erasure)?;
    let packed = images(image, home, true, PoolKind::Erasure)?;
    let all = 10.0 * image as f64;
    // Two copies; two data parts and one of parity. Metadata has two copies always.
    let of = |(metadata, chunks): (u64, u64), copies: f64| metadata as f64 * 2.0 + chunks as f64 * copies;
    let end = |sizes: &[(u64, u64)], copies: f64| of(sizes[9], copies);
    let sizes = [2.0 * all, 1.5 * all, end(&plain, 2.0), end(&coded, 1.5), end(&packed, 1.5)];
    let first = of(plain[0], 2.0);
    let most = plain.windows(2).map(|pair| of(pair[1], 2.0) - of(pair[0], 2.0)).fold(0.0, f64::max) / first * 100.0;
    let mib = |bytes: f64| format!("{:.1}", bytes / (1 << 20) as f64);
    let mut judgement = Judgement { blocks: 30 * in_blocks(image), ..Judgement::default() };
    judgement.check(format!("each further image adds at most {most:.1} % of the first"), most <= 5.0);
    judgement.check(format!("MiB: {}", sizes.map(mib).join(" > ")), sizes.windows(2).all(|pair| pair[0] > pair[1]));
    judgement.remark = "Ten images of a system with homes of their own, a fortieth of each. Two copies, or two parts and one of parity; metadata has two copies always.".into();
    let names = ["two copies", "erasure code", "deduplication, two copies", "deduplication, erasure code", "and compression"];
    // After each image: copies of whole images grow evenly.
    let growing: [Vec<f64>; 5] = [
        (1..=10).map(|n| 2.0 * (n * image) as f64).collect(),
        (1..=10).map(|n| 1.5 * (n * image) as f64).collect(),
        plain.iter().map(|&sizes| of(sizes, 2.0)).collect(),
        coded.iter().map(|&sizes| of(sizes, 1.5)).collect(),
        packed.iter().map(|&sizes| of(sizes, 1.5)).collect(),
    ];
    let points = |bytes: &Vec<f64>| (1..).map(f64::from).zip(bytes.iter().map(|bytes| bytes / (1 << 20) as f64)).collect();
    let series = names.iter().zip(&growing).map(|(name, bytes)| Series { name: (*name).to_owned(), points: points(bytes) }).collect();
    let lines = Figure::Lines(Lines {
        title: "Space of images of virtual machines".into(),
        x: Axis::linear("images"),
        y: Axis::logarithmic("space, MiB"),
        series,
        ..Lines::default()
    });
    let table = Figure::Table(Table {
        title: "Space of ten images, MiB".into(),
        columns: ["system", "space"].map(String::from).to_vec(),
        rows: names.iter().zip(sizes).map(|(name, size)| vec![(*name).to_owned(), mib(size)]).collect(),
    });
    judgement.figures = vec![lines, table];
    Ok(judgement)
}
