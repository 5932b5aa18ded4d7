//! Figure 5a and the budget: what a partial overwrite costs.

use onefold_cluster::Dedup;
use onefold_core::{Result, object::PoolKind};

use super::site::{Site, blocks, in_blocks};
use crate::item::{Extent, Item, Judgement, Look, no_figure, nothing};
use onefold_lab::report::{Figure, Table};

/// Partial overwrites.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "5a",
        name: "Figure 5a: 16 KiB writes into chunks of 32 KiB",
        says: "inline deduplication pays for reading, modifying and writing whole chunks",
        band: "inline partial writes cost ≥ 2 times the bytes of post-processing, background \
               included",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _: &Look<'_>| judged(figure5a(extent)),
        draw: no_figure,
    },
    Item {
        id: "entry",
        name: "Bytes of an entry, a reference, and an overwrite",
        says: "150 bytes of chunk map entry; 28 KiB are read before a 4 KiB write",
        band: "entry ≤ 100 bytes with its key, reference ≤ 40; a 4 KiB overwrite of a deduplicated \
               chunk reads no chunk and writes ≤ 4 KiB + 100 bytes",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |_, _: &Look<'_>| judged(entry()),
        draw: no_figure,
    },
];

const CHUNK: u64 = 32 << 10;

/// Bytes of a partial write.
const WRITE: u64 = 16 << 10;

fn judged(result: Result<Judgement>) -> Judgement {
    result.unwrap_or_else(|error| {
        let mut judgement = Judgement::default();
        judgement.check(error.to_string(), false);
        judgement
    })
}

/// A volume of which everything is deduplicated.
fn settled(chunks: u64, dedup: Dedup) -> Result<(Site, onefold_cluster::Volume)> {
    let site = Site::of(CHUNK as u32, false, PoolKind::Replicated, dedup)?;
    let volume = site.volume("v", chunks * CHUNK)?;
    volume.write_at(0, &blocks(0..in_blocks(chunks * CHUNK), 4096))?;
    site.settle()?;
    Ok((site, volume))
}

/// Bytes that were read and written for each write of 16 KiB over a deduplicated volume: in the
/// foreground, and by workers until all is deduplicated again. Writes follow one another, or change
/// one half of each chunk.
fn overwritten(dedup: Dedup, chunks: u64, halves: u64) -> Result<[u64; 2]> {
    let (site, volume) = settled(chunks, dedup)?;
    let since = |before| {
        let asked = site.asked().since(&before);
        (asked.written_bytes + asked.read_bytes) / (chunks * halves)
    };
    let before = site.asked();
    for (chunk, half) in (0..chunks).flat_map(|chunk| (0..halves).map(move |half| (chunk, half))) {
        let fresh =
            blocks((0..in_blocks(WRITE)).map(|n| 1 << 32 | chunk << 8 | half << 4 | n), 4096);
        let half = if halves == 2 { half } else { chunk % 2 };
        volume.write_at(chunk * CHUNK + half * WRITE, &fresh)?;
    }
    let foreground = since(before);
    let before = site.asked();
    site.settle()?;
    Ok([foreground, since(before)])
}

fn figure5a(extent: &Extent) -> Result<Judgement> {
    let chunks = if extent.quick { 512 } else { 2048 };
    let mut judgement = Judgement { blocks: 6 * chunks * in_blocks(WRITE), ..Judgement::default() };
    let mut rows = Vec::new();
    for (name, halves) in [("one after the other", 2), ("one half of each chunk", 1)] {
        let [inline, later] = [
            overwritten(Dedup::Inline, chunks, halves)?,
            overwritten(Dedup::PostProcessing, chunks, halves)?,
        ];
        let sum = |of: [u64; 2]| of[0] + of[1];
        let ratio = sum(inline) as f64 / sum(later) as f64;
        let text = format!(
            "{name}: inline {} bytes for each write, post-processing {} and {} later: {ratio:.2}",
            sum(inline),
            later[0],
            later[1]
        );
        if halves == 2 {
            judgement.check(text, ratio >= 2.0);
            judgement.remark = format!(
                "In the foreground alone inline costs {:.2} times as much. ",
                inline[0] as f64 / later[0] as f64
            );
        } else {
            judgement.remark += &format!("Shown beside, {text}. ");
        }
        for (how, of) in [("inline", inline), ("post-processing", later)] {
            rows.push(
                [name, how]
                    .map(String::from)
                    .into_iter()
                    .chain(of.map(|bytes| bytes.to_string()))
                    .collect(),
            );
        }
    }
    judgement.remark += "Counted on the real engine in both modes, maps and lists included: a \
                         worker reads and writes the chunk, too.";
    let columns = ["writes", "deduplication", "foreground", "later"].map(String::from).to_vec();
    judgement.figures = vec![Figure::Table(Table {
        title: "Bytes read and written for each write of 16 KiB".into(),
        columns,
        rows,
    })];
    Ok(judgement)
}

fn entry() -> Result<Judgement> {
    let (site, volume) = settled(64, Dedup::PostProcessing)?;
    let status = site.status()?;
    let (entry, reference) =
        (status.map_bytes / status.entries, status.reference_bytes / status.entries);
    let mut judgement = Judgement { blocks: 64 * in_blocks(CHUNK), ..Judgement::default() };
    judgement.check(format!("an entry has {entry} bytes"), entry <= 100);
    judgement.check(format!("a reference {reference}"), reference <= 40);
    // The first write after deduplication puts the object on the dirty list again.
    volume.write_at(0, &blocks(1 << 40..(1 << 40) + 1, 4096))?;
    let before = site.asked();
    volume.write_at(CHUNK, &blocks(2 << 40..(2 << 40) + 1, 4096))?;
    let asked = site.asked().since(&before);
    let text = format!(
        "an overwrite of 4 KiB writes {} bytes in {} operation, and reads {}",
        asked.written_bytes, asked.writes, asked.read_bytes
    );
    judgement.check(
        text,
        asked.written_bytes <= 4096 + 100 && asked.writes == 1 && asked.read_bytes == 0,
    );
    Ok(judgement)
}
