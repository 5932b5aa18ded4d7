//! The lookups that filters of the chain save (dedupv1 3.2; the paper gives no numbers).

use super::{
    clones::{Rewritten, rewritten},
    counted,
    ingest::{Setup, generations},
    judged, processed,
};
use crate::item::{Item, no_figure, nothing};

/// Statements about filters.
pub(super) const ITEMS: [Item; 3] = [
    Item {
        id: "bloom",
        name: "Section 3.2: Bloom filter and container cache",
        says: "the Bloom filter answers for new chunks; where data come back in their order, the \
               container cache spares lookups; no numbers",
        band: "the Bloom filter spares at least 60 % of a first generation's index reads; with the \
               container cache at most 0.1 are left for each chunk of a second",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let base = Setup::base(extent.quick);
                let with = |filters: &[&'static str]| {
                    generations(&Setup { filters: filters.to_vec(), ..base.clone() })
                };
                let alone = generations(&base)?;
                let (bloom, chain) = (
                    with(&["bloom", "chunk-index"])?,
                    with(&["container-cache", "bloom", "chunk-index"])?,
                );
                processed(judgement, &[&bloom, &chain]);
                let spared = 1.0 - bloom[0].page_reads as f64 / alone[0].page_reads as f64;
                let text = format!(
                    "the Bloom filter spares {:.1} % of {} reads",
                    spared * 100.0,
                    alone[0].page_reads
                );
                judgement.check(text, spared >= 0.6);
                let left = chain[1].reads_per_chunk();
                judgement.check(
                    format!(
                        "with the container cache {left:.4} for each chunk of the second generation"
                    ),
                    left <= 0.1,
                );
                judgement.check(
                    format!(
                        "all find the same: {:.2} and {:.2} %",
                        alone[0].found() * 100.0,
                        alone[1].found() * 100.0
                    ),
                    [&bloom, &chain]
                        .iter()
                        .all(|run| (0..2).all(|n| run[n].new_bytes == alone[n].new_bytes)),
                );
                judgement.figures.push(counted(&[
                    ("chunk index", &alone),
                    ("and Bloom filter", &bloom),
                    ("and container cache", &chain),
                ]));
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "block-index",
        name: "Section 3.2: block index filter",
        says: "a block that is written again into a clone of its volume finds its chunks in the \
               block's old mapping; no numbers",
        band: "at least 80 % of the index reads of a cloned second generation are spared",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let with = |filters: &[&'static str]| {
                    rewritten(&Setup { filters: filters.to_vec(), ..Setup::base(extent.quick) })
                };
                let (alone, filtered) =
                    (with(&["chunk-index"])?, with(&["block-index", "chunk-index"])?);
                judgement.blocks += 6 * (alone.bytes >> 12);
                let spared = |of: fn(&Rewritten) -> u64| {
                    100.0 - of(&filtered) as f64 * 100.0 / of(&alone).max(1) as f64
                };
                let (clone, next) =
                    (spared(|run| run.clone.page_reads), spared(|run| run.next.page_reads));
                judgement.check(
                    format!("{clone:.1} % of {} reads are spared", alone.clone.page_reads),
                    alone.clone.page_reads > 0 && clone >= 80.0,
                );
                judgement.check(
                    "all of it is found",
                    filtered.clone.new_bytes == 0 && alone.clone.new_bytes == 0,
                );
                judgement.remark = format!(
                    "When the next generation is written over the volumes instead, {next:.1} % of \
                     {} are.",
                    alone.next.page_reads
                );
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "byte-compare",
        name: "Section 3.2: byte compare filter",
        says: "an exact comparison with the stored chunk leaves no collision unnoticed, and loads \
               the storage; no numbers",
        band: "it finds the same duplicates as fingerprints alone, and reads the containers for it",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let mut base = Setup::base(extent.quick);
                // Every duplicate is read: a sixteenth of the data is enough.
                (base.bytes, base.filler) = (base.bytes / 16, base.filler / 16);
                let alone = generations(&base)?;
                let compared =
                    generations(&Setup { filters: vec!["chunk-index", "byte-compare"], ..base })?;
                processed(judgement, &[&alone, &compared]);
                let same = (0..2).all(|n| alone[n].new_bytes == compared[n].new_bytes);
                judgement.check(
                    format!("{} and {} new bytes", alone[1].new_bytes, compared[1].new_bytes),
                    same,
                );
                let read = [&alone, &compared].map(|run| run[1].containers.read_bytes);
                let text = format!(
                    "second generation: {} bytes of containers read, without it {}",
                    read[1], read[0]
                );
                judgement.check(text, read[1] > compared[1].bytes / 2 && read[1] > read[0]);
                Ok(())
            })
        },
        draw: no_figure,
    },
];
