//! Figures 4.3 to 4.5: where the index lies, what takes the time, and how many clients there are.

use super::{
    bars, counted,
    ingest::{Ingested, Setup, generations},
    judged,
    model::{Index, LINK, STAGES, Timed, time},
    processed,
};
use crate::item::{Good, Item, no_figure, nothing};

/// Statements about speed with the chunk index alone.
pub(super) const ITEMS: [Item; 10] = [
    Item {
        id: "4.3",
        name: "Fig 4.3: SSDs and disks",
        says: "four SSDs 167.2 and 160.3 MB/s in the two generations, everything on disks 12.9 and \
               13.3",
        band: "four SSDs 10 to 15 times as fast as disks, in either generation",
        fitted: true,
        calibrated: Some(
            "an SSD's reads a second and how many are under way, to these speeds of the SSDs",
        ),
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                processed(judgement, &[&run]);
                let at = |index| [0, 1].map(|n: usize| time(&run[n], 4, index).speed);
                let (ssds, disks) = (at(Index::Ssds(4)), at(Index::Array));
                for (n, generation) in ["first", "second"].into_iter().enumerate() {
                    let ratio = ssds[n] / disks[n];
                    let text = format!(
                        "{generation} generation {:.1} MB/s, on disks {:.1}: {ratio:.1} times",
                        ssds[n], disks[n]
                    );
                    judgement.check(text, (10.0..=15.0).contains(&ratio));
                }
                let all = PLACES.map(|(index, _)| at(index));
                let series = |n: usize| all.iter().map(|speeds| speeds[n]).collect();
                let paper = |n: usize| PLACES.iter().map(|(_, speeds)| speeds[n]).collect();
                judgement.figures.push(bars(
                    "Throughput by where the index lies",
                    "MB a second",
                    PLACES.iter().map(|(index, _)| index.name()).collect(),
                    vec![
                        ("first generation", series(0)),
                        ("second generation", series(1)),
                        ("paper, first", paper(0)),
                        ("paper, second", paper(1)),
                    ],
                    "Devices are fitted to the paper's text.",
                ));
                judgement.figures.push(counted(&[("base", &run)]));
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "4.3-disks",
        name: "Section 4.2: everything on disks, predicted",
        says: "12.9 and 13.3 MB/s with chunk index, block index and data on the 11 disks",
        band: "either generation within 15 % of the paper's MB/s; nothing is fitted to them: a \
               disk's reads follow from its mechanics",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                for (n, (generation, paper)) in
                    [("first", 12.9), ("second", 13.3)].into_iter().enumerate()
                {
                    let speed = time(&run[n], 4, Index::Array).speed;
                    let text = format!(
                        "{generation} generation {speed:.1} MB/s, {:+.0} %",
                        (speed / paper - 1.0) * 100.0
                    );
                    judgement.band(text, speed / paper, 0.85..=1.15, Good::Inside);
                }
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "4.3-ssds",
        name: "Fig 4.3: four, two and one SSD",
        says: "two SSDs 88.4 and 83.3 MB/s, one 87.8 and 82.3, since longer queues let it make \
               5,375 reads a second where others make 2,848",
        band: "four over two 1.7 to 2.1, two over one 0.9 to 1.2",
        fitted: true,
        calibrated: Some(
            "an SSD's reads a second and how many are under way on one, two and four, to these \
             speeds",
        ),
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                for (n, generation) in ["first", "second"].into_iter().enumerate() {
                    let [one, two, four] =
                        [1, 2, 4].map(|ssds| time(&run[n], 4, Index::Ssds(ssds)));
                    let (upper, lower) = (four.speed / two.speed, two.speed / one.speed);
                    let iops =
                        [one, two, four].map(|timed| format!("{:.0}", timed.iops)).join(", ");
                    let text = format!(
                        "{generation} generation {upper:.2} and {lower:.2}, at {iops} reads a \
                         second and SSD"
                    );
                    judgement
                        .check(text, (1.7..=2.1).contains(&upper) && (0.9..=1.2).contains(&lower));
                }
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "4.3-second",
        name: "Fig 4.3: the second generation on SSDs",
        says: "167.2 and 160.3 MB/s with four SSDs, 88.4 and 83.3 with two, 87.8 and 82.3 with \
               one: the second generation is slightly slower",
        band: "second generation 0.9 to 1.0 of the first",
        fitted: true,
        calibrated: Some(
            "an SSD's reads a second and the way of new chunks, to these speeds; the distance of \
             repeated data is ours",
        ),
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                let far =
                    generations(&Setup { distance_kib: 16 << 10, ..Setup::base(extent.quick) })?;
                processed(judgement, &[&far]);
                let reads = |run: &[Ingested; 2]| {
                    format!("{:.3} and {:.3}", run[0].reads_per_chunk(), run[1].reads_per_chunk())
                };
                for ssds in [4, 2, 1] {
                    let [first, second] =
                        [0, 1].map(|n: usize| time(&run[n], 4, Index::Ssds(ssds)).speed);
                    let ratio = second / first;
                    judgement.check(
                        format!("{}: {ratio:.3}", Index::Ssds(ssds).name()),
                        (0.9..=1.0).contains(&ratio),
                    );
                }
                let distant =
                    time(&far[1], 4, Index::Ssds(4)).speed / time(&far[0], 4, Index::Ssds(4)).speed;
                judgement.remark = format!(
                    "It hangs on how near repeated data are: the auxiliary index knows those of a \
                     first generation, in a second their pages have to be cached. {} pages are \
                     read for each chunk; with repetitions 16 MiB apart instead of 0.25 MB {}, and \
                     the second generation has {distant:.2} of the first's speed.",
                    reads(&run),
                    reads(&far)
                );
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "4.3-ram",
        name: "Fig 4.3: the index in memory",
        says: "162 and 242.7 MB/s; the block index on disks is the bottleneck",
        band: "second generation 1.3 to 1.7 of the first",
        fitted: true,
        calibrated: Some("the array's two constants, to these two speeds"),
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                let [first, second] = [0, 1].map(|n: usize| time(&run[n], 4, Index::Memory).speed);
                let text = format!("{first:.1} and {second:.1} MB/s: {:.2}", second / first);
                judgement.check(text, (1.3..=1.7).contains(&(second / first)));
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "reads",
        name: "Section 4.2: reads of the index",
        says: "caches, and the auxiliary index, which knows the 30 % that repeat, spare lookups; \
               the text's figures come to 0.50 to 0.56 reads for each chunk",
        band: "at most 0.6 pages read for each chunk of a first generation; the auxiliary index \
               answers 25 to 35 %",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                let reads = run[0].reads_per_chunk();
                judgement.check(format!("{reads:.3} pages for each chunk"), reads <= 0.6);
                let auxiliary = run[0].auxiliary as f64 / run[0].chunks as f64;
                let text = format!("the auxiliary index answers {:.1} %", auxiliary * 100.0);
                judgement.check(text, (0.25..=0.35).contains(&auxiliary));
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "writes",
        name: "Section 3.4: writes of the index",
        says: "no random write in the data path: what is new stays in the auxiliary index, and is \
               written when clients are done",
        band: "no write to the index while clients write; after that every page once, in order",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                for (generation, run) in ["first", "second"]
                    .into_iter()
                    .zip(generations(&Setup::base(extent.quick))?.iter())
                {
                    let text = format!(
                        "{generation} generation: {} writes of the index while clients write",
                        run.index.writes
                    );
                    judgement.check(text, run.index.writes == 0);
                    let after = run.index_after;
                    let text =
                        format!("{} after, {} out of order", after.writes, after.scattered_writes);
                    judgement.check(text, after.writes > 0 && after.scattered_writes == 0);
                }
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "4.4",
        name: "Fig 4.4: what takes the time",
        says: "cutting and hashing is never the bottleneck; with SSDs it is the chunk index, with \
               an index in memory the block index and the storage",
        band: "the same order",
        fitted: true,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                let (mut groups, mut shares) = (Vec::new(), Vec::new());
                for index in [Index::Ssds(4), Index::Ssds(2), Index::Ssds(1), Index::Memory] {
                    for (n, generation) in ["1st", "2nd"].into_iter().enumerate() {
                        let timed = time(&run[n], 4, index);
                        groups.push(format!("{}, {generation}", index.name()));
                        shares.push(server_shares(&timed));
                        let [_, chunking, chunk_index, block_index, _, storage] = timed.shares;
                        let name = format!("{}, {generation}", index.name());
                        if index == Index::Memory {
                            let text = format!(
                                "{name}: block index and storage {:.0} %, chunking {:.0} %",
                                (block_index + storage) * 100.0,
                                chunking * 100.0
                            );
                            judgement.check(
                                text,
                                block_index + storage > chunking
                                    && block_index + storage > chunk_index,
                            );
                        } else {
                            let most = timed.shares[1..].iter().copied().fold(0.0, f64::max);
                            let text = format!(
                                "{name}: chunk index {:.0} %, chunking {:.0} %",
                                chunk_index * 100.0,
                                chunking * 100.0
                            );
                            judgement.check(text, chunk_index >= most && chunking < chunk_index);
                        }
                    }
                }
                let series = |stage: usize| {
                    (STAGES[stage], shares.iter().map(|of: &[f64; 6]| of[stage] * 100.0).collect())
                };
                judgement.figures.push(bars(
                    "Time of requests on the server",
                    "% of the time",
                    groups,
                    (1..6).map(series).collect(),
                    "Waiting counts where it happens.",
                ));
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "4.5-single",
        name: "Section 4.3: one client with fewer SSDs, predicted",
        says: "for a single client even one or two SSDs would be fast enough",
        band: "with one and with two SSDs one client has at least 0.9 of its speed with four; \
               nothing is fitted to it",
        fitted: true,
        calibrated: None,
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                for (n, generation) in ["first", "second"].into_iter().enumerate() {
                    let [one, two, four] =
                        [1, 2, 4].map(|ssds| time(&run[n], 1, Index::Ssds(ssds)).speed);
                    let text = format!(
                        "{generation} generation {:.2} with one, {:.2} with two",
                        one / four,
                        two / four
                    );
                    judgement.check(text, one >= 0.9 * four && two >= 0.9 * four);
                }
                Ok(())
            })
        },
        draw: no_figure,
    },
    Item {
        id: "4.5",
        name: "Fig 4.5: clients",
        says: "one client 83.0 and 84.1 MB/s, two 145.0 and 148.7, four 16 and 8 % more",
        band: "one client 75 to 95 % of its link, two over one 1.6 to 1.9, four over two 1.05 to \
               1.25",
        fitted: true,
        calibrated: Some("requests that a client has under way, to what two and four clients gain"),
        cases: nothing,
        judge: |extent, _| {
            judged(|judgement| {
                let run = generations(&Setup::base(extent.quick))?;
                let mut speeds = Vec::new();
                for (n, generation) in ["first", "second"].into_iter().enumerate() {
                    let [one, two, four] =
                        [1, 2, 4].map(|clients| time(&run[n], clients, Index::Ssds(4)).speed);
                    let (link, twice, more) = (one * 1e6 / LINK, two / one, four / two);
                    let holds = (0.75..=0.95).contains(&link)
                        && (1.6..=1.9).contains(&twice)
                        && (1.05..=1.25).contains(&more);
                    judgement.check(
                        format!(
                            "{generation} generation: {:.0} % of the link, {twice:.2}, {more:.2}",
                            link * 100.0
                        ),
                        holds,
                    );
                    speeds.push(vec![one, two, four]);
                }
                let paper = [vec![83.0, 145.0, 167.2], vec![84.1, 148.7, 160.3]];
                let [first, second]: [Vec<f64>; 2] = [speeds[0].clone(), speeds[1].clone()];
                let [paper_first, paper_second] = paper;
                judgement.figures.push(bars(
                    "Throughput by clients",
                    "MB a second",
                    ["1 client", "2 clients", "4 clients"].map(String::from).to_vec(),
                    vec![
                        ("first generation", first),
                        ("second generation", second),
                        ("paper, first", paper_first),
                        ("paper, second", paper_second),
                    ],
                    "Four SSDs.",
                ));
                Ok(())
            })
        },
        draw: no_figure,
    },
];

/// Where the index lies, and the paper's two speeds.
const PLACES: [(Index, [f64; 2]); 5] = [
    (Index::Ssds(4), [167.2, 160.3]),
    (Index::Ssds(2), [88.4, 83.3]),
    (Index::Ssds(1), [87.8, 82.3]),
    (Index::Memory, [162.0, 242.7]),
    (Index::Array, [12.9, 13.3]),
];

/// Shares of the time that requests are on the server.
fn server_shares(timed: &Timed) -> [f64; 6] {
    let server = 1.0 - timed.shares[0];
    let mut shares = timed.shares.map(|share| share / server);
    shares[0] = 0.0;
    shares
}
