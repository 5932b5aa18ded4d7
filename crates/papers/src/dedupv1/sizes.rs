//! Figures 4.6 and 4.7: larger chunks, and an auxiliary index that holds little.

use super::{
    bars, counted,
    ingest::{Ingested, Setup, generations},
    judged,
    model::{Index, time},
    processed, table,
};
use crate::item::{Good, Item, Judgement, no_figure, nothing};

/// Statements about sizes.
pub(super) const ITEMS: [Item; 5] = [
    Item {
        id: "4.6",
        name: "Fig 4.6: throughput with chunks of 16 KiB",
        says: "209.4 and 250.5 MB/s, with chunks of 8 KB 167.2 and 160.3",
        band: "1.15 to 1.4 times as fast in the first generation, 1.4 to 1.7 in the second",
        fitted: true,
        calibrated: Some(
            "what requests do one after the other, and for each MB of new data, to these two \
             speeds",
        ),
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let (small, large) = (
                    generations(&Setup::base(extent.quick))?,
                    generations(&large_chunks(extent.quick))?,
                );
                processed(judgement, &[&large]);
                let speeds = |run: &[Ingested; 2]| {
                    [0, 1].map(|n: usize| time(&run[n], 4, Index::Ssds(4)).speed)
                };
                let (small, large) = (speeds(&small), speeds(&large));
                let bands = [(1.15..=1.4), (1.4..=1.7)];
                for (n, generation) in ["first", "second"].into_iter().enumerate() {
                    let ratio = large[n] / small[n];
                    let text = format!(
                        "{generation} generation {:.1} over {:.1} MB/s: {ratio:.2}",
                        large[n], small[n]
                    );
                    judgement.check(text, bands[n].contains(&ratio));
                }
                judgement.figures.push(bars(
                    "Throughput by chunk size",
                    "MB a second",
                    ["8 KiB", "16 KiB"].map(String::from).to_vec(),
                    vec![
                        ("first generation", vec![small[0], large[0]]),
                        ("second generation", vec![small[1], large[1]]),
                        ("paper, first", vec![167.2, 209.4]),
                        ("paper, second", vec![160.3, 250.5]),
                    ],
                    "Four SSDs.",
                ));
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "found",
        name: "Section 4.4: redundancy found with chunks of 8 KiB",
        says: "of 128 GB 32 and 89 % are found to be known",
        band: "32 and 89 %, each within 3 points",
        fitted: false,
        calibrated: Some("the lengths of stretches, to these two shares"),
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                found(judgement, &run, [0.32, 0.89]);
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "found-16",
        name: "Section 4.4: redundancy found with chunks of 16 KiB, predicted",
        says: "29 and 80 % of the same data",
        band: "29 and 80 %, each within 3 points; the data are made such that chunks of 8 KiB find \
               what the paper's found, and nothing is fitted to this",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let (small, large) = (
                    generations(&Setup::base(extent.quick))?,
                    generations(&large_chunks(extent.quick))?,
                );
                found(judgement, &large, [0.29, 0.80]);
                judgement.figures.push(counted(&[("8 KiB", &small), ("16 KiB", &large)]));
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "4.7",
        name: "Fig 4.7: a small auxiliary index, throughput",
        says: "with room for 16 K of all chunks 74.9 MB/s instead of 167.2, and 133.3 instead of \
               159.3: pages are written while clients write",
        band: "0.35 to 0.55 of the full one in the first generation, 0.75 to 0.95 in the second; \
               more is better; nothing is fitted to it",
        fitted: true,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let (full, small) = (
                    generations(&Setup::base(extent.quick))?,
                    generations(&small_auxiliary(extent.quick))?,
                );
                processed(judgement, &[&small]);
                let bands = [0.35..=0.55, 0.75..=0.95];
                let mut rows = Vec::new();
                for (n, generation) in ["first", "second"].into_iter().enumerate() {
                    let [whole, limited] =
                        [&full, &small].map(|run| time(&run[n], 4, Index::Ssds(4)).speed);
                    let ratio = limited / whole;
                    let writes = small[n].index;
                    let text = format!(
                        "{generation} generation {limited:.1} over {whole:.1} MB/s: {ratio:.2}"
                    );
                    judgement.band(text, ratio, bands[n].clone(), Good::More);
                    rows.push(vec![
                        generation.to_owned(),
                        writes.writes.to_string(),
                        writes.scattered_writes.to_string(),
                        format!("{:.1}", mib(writes.written_bytes)),
                        format!(
                            "{:.3} / {:.3}",
                            full[n].reads_per_chunk(),
                            small[n].reads_per_chunk()
                        ),
                    ]);
                }
                judgement.remark = "A full auxiliary index is written as a sorted run, in order, \
                                    and merged in order; the paper's goes into pages one by \
                                    one."
                    .into();
                let columns = [
                    "generation",
                    "writes of the index while clients write",
                    "out of order",
                    "MiB",
                    "pages read for each chunk: full / small",
                ];
                judgement.figures.push(table("A small auxiliary index", &columns, rows));
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "4.7-after",
        name: "Fig 4.7: a small auxiliary index, afterwards",
        says: "work after the clients are done falls from 60 to 2 minutes, and from 10 to 1.2 in \
               the second generation",
        band: "entries that are left to be written fall to a fifth or less",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let (full, small) = (
                    generations(&Setup::base(extent.quick))?,
                    generations(&small_auxiliary(extent.quick))?,
                );
                for (n, generation) in ["first", "second"].into_iter().enumerate() {
                    let [whole, limited] = [&full, &small].map(|run| run[n].left);
                    let text = format!("{generation} generation {whole} entries, then {limited}");
                    judgement.check(text, limited * 5 <= whole);
                }
                judgement.remark =
                    "Entries, and not time: where one more run is one too many, all \
                                    runs are merged into the index then, which is due now and then \
                                    with either."
                        .into();
                Ok(())
            })
        },
        draw: no_figure,
    },
];

/// Compares the share of known data in both generations with the paper's.
fn found(judgement: &mut Judgement, run: &[Ingested; 2], wanted: [f64; 2]) {
    for (n, wanted) in wanted.into_iter().enumerate() {
        let found = run[n].found();
        judgement.band(
            format!("{:.1} %", found * 100.0),
            found,
            wanted - 0.03..=wanted + 0.03,
            Good::Inside,
        );
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn large_chunks(quick: bool) -> Setup {
    Setup { chunking: "fastcdc:16K", ..Setup::base(quick) }
}

/// Room for one of 32 or, in a full run, 64 chunks of a generation, where the paper's is for one of
/// a thousand: containers are listed one by one here, and each has as many as 460.
fn small_auxiliary(quick: bool) -> Setup {
    Setup { auxiliary: Some((if quick { 768 } else { 2048 }, 4 << 20)), ..Setup::base(quick) }
}
