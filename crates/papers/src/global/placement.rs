//! Table 1 and Figure 3: what deduplication by each node alone finds, and what all together find.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use onefold_core::Result;

use super::clones;
use crate::item::{Extent, Item, Judgement, Look, no_figure, nothing};
use onefold_lab::{
    report::{Figure, Table},
    trace::{Op, Reader},
};
use onefold_testbed::SplitMix;

/// Where data lies, and what is found there.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "table1",
        name: "Table 1: fio with 50 % duplicates",
        says: "on 4, 8, 12 and 16 OSDs local deduplication saves 15.5, 8.1, 5.5 and 4.1 %, global \
               50 % each time",
        band: "global 50 ± 1; local times OSDs the same within 20 %; local within 5 points of the \
               paper on 4 OSDs, 2 on 16",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: table1,
        draw: no_figure,
    },
    Item {
        id: "3",
        name: "Figure 3: other data",
        says: "global deduplication finds far more than local, on a database and on a private \
               cloud",
        band: "a recorded trace (srcver) and ten clones of a virtual machine, on 16 nodes: global \
               ≥ 1.8 times local",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: figure3,
        draw: no_figure,
    },
];

const OSDS: [usize; 4] = [4, 8, 12, 16];

/// Per cent saved there by the paper.
const TEXT: [f64; 4] = [15.5, 8.1, 5.5, 4.1];

/// Chunks of an object: 4 MiB of 32 KiB.
const OBJECT_CHUNKS: usize = 128;

/// Per cent saved by nodes for themselves, and by all together, when each object goes to a node by
/// chance.
fn saved<T: Ord + Copy>(
    chunks: &[T],
    object_chunks: usize,
    nodes: usize,
    rng: &mut SplitMix,
) -> (f64, f64) {
    let mut local: Vec<BTreeSet<T>> = vec![BTreeSet::new(); nodes];
    let mut global: BTreeSet<T> = BTreeSet::new();
    for object in chunks.chunks(object_chunks) {
        let node = &mut local[rng.below(nodes as u64) as usize];
        node.extend(object);
        global.extend(object);
    }
    let per_cent = |different: usize| 100.0 - 100.0 * different as f64 / chunks.len().max(1) as f64;
    (per_cent(local.iter().map(BTreeSet::len).sum()), per_cent(global.len()))
}

/// Every chunk twice, in any order.
fn pairs(count: usize, rng: &mut SplitMix) -> Vec<u64> {
    let mut chunks: Vec<u64> = (0..count as u64).map(|n| n / 2).collect();
    for n in (1..count).rev() {
        chunks.swap(n, rng.below(n as u64 + 1) as usize);
    }
    chunks
}

/// Half of the chunks are new, each other one repeats one of these by chance.
fn repeats(count: usize, rng: &mut SplitMix) -> Vec<u64> {
    let mut different = 0;
    let next = |_| {
        if different == 0 || rng.chance(0.5) {
            different += 1;
            return different - 1;
        }
        rng.below(different)
    };
    (0..count).map(next).collect()
}

fn table1(extent: &Extent, _: &Look<'_>) -> Judgement {
    let count = if extent.quick { 100_000 } else { 400_000 };
    let mut judgement = Judgement { blocks: 8 * count as u64, ..Judgement::default() };
    let mut table = Table {
        title: "Saved by each OSD for itself, and by all together, %".into(),
        columns: ["data", "4 OSDs", "8 OSDs", "12 OSDs", "16 OSDs", "all together"]
            .map(String::from)
            .to_vec(),
        rows: vec![["paper", "15.5", "8.1", "5.5", "4.1", "50"].map(String::from).to_vec()],
    };
    let generators: [(&str, fn(usize, &mut SplitMix) -> Vec<u64>); 2] =
        [("pairs", pairs), ("repeats", repeats)];
    for (name, generator) in generators {
        let mut rng = SplitMix::new(1);
        let chunks = generator(count, &mut rng);
        let found = OSDS.map(|nodes| saved(&chunks, OBJECT_CHUNKS, nodes, &mut rng));
        let local = found.map(|(local, _)| local);
        let global = found[0].1;
        let products: Vec<f64> =
            local.iter().zip(OSDS).map(|(local, nodes)| local * nodes as f64).collect();
        let (least, most) =
            products.iter().fold((f64::INFINITY, 0f64), |(least, most), product| {
                (least.min(*product), most.max(*product))
            });
        let near = (local[0] - TEXT[0]).abs() <= 5.0 && (local[3] - TEXT[3]).abs() <= 2.0;
        let text = format!(
            "{name}: local {:.1}, {:.1}, {:.1}, {:.1} %, global {global:.1} %",
            local[0], local[1], local[2], local[3]
        );
        if name == "pairs" {
            judgement.check(text, (global - 50.0).abs() <= 1.0 && most <= 1.2 * least && near);
        } else {
            judgement.remark = format!("{text}. ");
        }
        let row = local.iter().chain([&global]).map(|value| format!("{value:.1}"));
        table.rows.push([name.to_owned()].into_iter().chain(row).collect());
    }
    judgement.remark += "The paper does not say how fio's duplicates are spread. Pairs: every \
                         chunk is there twice. Repeats: half of the chunks are new, the others \
                         repeat one of these by chance. The paper's figures lie between the two; \
                         it is judged by pairs.";
    judgement.figures = vec![Figure::Table(table)];
    judgement
}

/// Names of chunks of so many blocks, by what their blocks hold.
fn named(blocks: impl Iterator<Item = (u64, [u8; 16])>, chunk_blocks: u64) -> Vec<[u8; 32]> {
    let mut chunks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (lba, hash) in blocks {
        let chunk = chunks.entry(lba / chunk_blocks).or_default();
        chunk.extend((lba % chunk_blocks).to_le_bytes());
        chunk.extend(hash);
    }
    chunks.into_values().map(|chunk| onefold_core::checksum::chunk_name(&[0; 32], &chunk)).collect()
}

/// Chunks of clones of a virtual machine, one image after the other.
fn cloned(path: &Path, chunk_blocks: u64) -> Result<Vec<[u8; 32]>> {
    let (images, _) = clones::images(path, usize::MAX)?;
    let of = |image: &clones::Image| {
        named(image.iter().map(|(lba, content)| (*lba, content.hash)), chunk_blocks)
    };
    Ok(images.iter().flat_map(of).collect())
}

/// The contents that a trace leaves, named by chunks of so many blocks.
fn leftover(path: &Path, chunk_blocks: u64) -> Result<Vec<[u8; 32]>> {
    let mut blocks: BTreeMap<u64, [u8; 16]> = BTreeMap::new();
    for record in Reader::open(path)? {
        match record?.op {
            Op::Write { lba, hash, .. } => {
                blocks.insert(lba.0, hash);
            }
            Op::Trim { first, blocks: count } | Op::Zeroes { first, blocks: count, .. } => {
                blocks.retain(|lba, _| !(first.0..first.0 + u64::from(count)).contains(lba));
            }
            Op::Flush | Op::Phase(_) => {}
        }
    }
    Ok(named(blocks.into_iter(), chunk_blocks))
}

fn figure3(extent: &Extent, _: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let srcver = extent.traces.iter().find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("srcver"))
    });
    let (Some(srcver), Some(images)) = (srcver, clones::trace(extent)) else {
        judgement.missing = true;
        judgement.remark = "It needs the recorded traces srcver and vmclones.".into();
        return judgement;
    };
    type Chunks = fn(&Path, u64) -> Result<Vec<[u8; 32]>>;
    for (name, path, chunks) in
        [("srcver", srcver.as_path(), leftover as Chunks), ("clones", images, cloned as Chunks)]
    {
        for (size, chunk_blocks) in [("4 KiB", 1), ("32 KiB", 8)] {
            match chunks(path, chunk_blocks) {
                Ok(chunks) => {
                    judgement.blocks += chunks.len() as u64 * chunk_blocks;
                    let (local, global) =
                        saved(&chunks, (1024 / chunk_blocks) as usize, 16, &mut SplitMix::new(2));
                    let text = format!(
                        "{name}, chunks of {size}: local {local:.1} %, global {global:.1} %"
                    );
                    judgement.check(text, global >= 1.8 * local && global > 0.0);
                }
                Err(error) => judgement.check(error.to_string(), false),
            }
        }
    }
    judgement.remark = "SPEC SFS and the private cloud's data are not to be had.".into();
    judgement
}
