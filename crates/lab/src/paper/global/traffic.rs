//! Figure 5a and the budget: what a partial overwrite costs.

use onefold_core::{Result, object::PoolKind};

use super::site::{Site, blocks, in_blocks};
use crate::paper::item::{Extent, Item, Judgement, Look, no_figure, nothing};

/// Partial overwrites.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "5a",
        name: "Figure 5a: 16 KiB writes into chunks of 32 KiB",
        says: "inline deduplication pays for reading, modifying and writing whole chunks",
        band: "inline partial writes cost ≥ 2 times the bytes of post-processing in the foreground",
        fitted: false,
        cases: nothing,
        judge: |extent, _: &Look<'_>| judged(figure5a(extent)),
        draw: no_figure,
    },
    Item {
        id: "entry",
        name: "Bytes of an entry, a reference, and an overwrite",
        says: "150 bytes of chunk map entry; 28 KiB are read before a 4 KiB write",
        band: "entry ≤ 100 bytes with its key, reference ≤ 40; a 4 KiB overwrite of a deduplicated chunk reads no chunk and writes ≤ 4 KiB + 100 bytes",
        fitted: false,
        cases: nothing,
        judge: |_, _: &Look<'_>| judged(entry()),
        draw: no_figure,
    },
];

const CHUNK: u64 = 32 << 10;

fn judged(result: Result<Judgement>) -> Judgement {
    result.unwrap_or_else(|error| {
        let mut judgement = Judgement::default();
        judgement.check(error.to_string(), false);
        judgement
    })
}

/// A volume of which everything is deduplicated.
fn settled(chunks: u64) -> Result<(Site, onefold_cluster::Volume)> {
    let site = Site::new(CHUNK as u32, false, PoolKind::Replicated)?;
    let volume = site.volume("v", chunks * CHUNK)?;
    volume.write_at(0, &blocks(0..in_blocks(chunks * CHUNK), 4096))?;
    site.settle()?;
    Ok((site, volume))
}

fn figure5a(extent: &Extent) -> Result<Judgement> {
    const WRITE: u64 = 16 << 10;
    let chunks = if extent.quick { 512 } else { 2048 };
    let (site, volume) = settled(chunks)?;
    let before = site.asked();
    for chunk in 0..chunks {
        let fresh = blocks((0..in_blocks(WRITE)).map(|n| 1 << 32 | chunk << 8 | n), 4096);
        volume.write_at(chunk * CHUNK + (chunk % 2) * WRITE, &fresh)?;
    }
    let asked = site.asked().since(&before);
    // What an inline engine can't do without: the old chunk is read, the new one written.
    let inline = 2 * CHUNK;
    let each = (asked.written_bytes + asked.read_bytes) / chunks;
    let mut judgement = Judgement { blocks: chunks * in_blocks(WRITE), ..Judgement::default() };
    judgement.check(format!("{each} bytes read and written for each write, inline {inline} at least"), inline >= 2 * each);
    judgement.remark = "Counted on the real engine, maps and lists included. Inline is arithmetic: one chunk read, one written.".into();
    Ok(judgement)
}

fn entry() -> Result<Judgement> {
    let (site, volume) = settled(64)?;
    let status = site.status()?;
    let (entry, reference) = (status.map_bytes / status.entries, status.reference_bytes / status.entries);
    let mut judgement = Judgement { blocks: 64 * in_blocks(CHUNK), ..Judgement::default() };
    judgement.check(format!("an entry has {entry} bytes"), entry <= 100);
    judgement.check(format!("a reference {reference}"), reference <= 40);
    // The first write after deduplication puts the object on the dirty list again.
    volume.write_at(0, &blocks(1 << 40..(1 << 40) + 1, 4096))?;
    let before = site.asked();
    volume.write_at(CHUNK, &blocks(2 << 40..(2 << 40) + 1, 4096))?;
    let asked = site.asked().since(&before);
    let text =
        format!("an overwrite of 4 KiB writes {} bytes in {} operation, and reads {}", asked.written_bytes, asked.writes, asked.read_bytes);
    judgement.check(text, asked.written_bytes <= 4096 + 100 && asked.writes == 1 && asked.read_bytes == 0);
    Ok(judgement)
}
