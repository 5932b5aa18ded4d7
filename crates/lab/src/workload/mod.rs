//! Generated workloads: writes whose addresses, duplicates and compressibility follow from a few
//! numbers and a seed.
//!
//! A duplicate is a block whose content some address holds at that moment, chosen evenly among the
//! live contents; every other block has a content that never was. So the share of duplicates comes
//! out as asked for, measured among live contents. They come by chance, or evenly. Whether a
//! content compresses is drawn for each content, and its bytes are made like those of traces
//! ([`Content`]).

mod live;

use std::{fmt, rc::Rc, str::FromStr, time::Duration};

use onefold_core::{Error, Kind, Lba};
use onefold_testbed::SplitMix;
use serde::{Deserialize, Serialize};

use self::live::Live;
use crate::{
    Content,
    request::{Request, Source, What},
    trace::Assumed,
};

/// Blocks of the address space of ThinDedup's paper, 120 GB.
pub const PAPER_BLOCKS: u64 = 120_000_000_000 / 4096;

/// Microseconds between the requests of a burst, at most.
pub const BURST_GAP: u64 = 100;

/// Where blocks are written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Anywhere.
    Random,
    /// One after the other; from the beginning again at the end.
    Sequential,
    /// In runs, between jumps to somewhere new and to what was written before.
    Runs {
        /// Share of the writes that follow on the one before.
        sequential: f64,
        /// Share of the jumps that lead to an address written before.
        again: f64,
    },
}

/// The traces of FIU, by their shapes. Only small pieces of them are public; sequentiality is
/// measured on those (mail 74 %, homes 45 %), as is mail's share of addresses written before (19
/// %); the rest is assumed.
pub const WEB: Pattern = Pattern::Runs { sequential: 0.5, again: 0.6 };
/// See [`WEB`].
pub const HOMES: Pattern = Pattern::Runs { sequential: 0.45, again: 0.5 };
/// See [`WEB`].
pub const MAIL: Pattern = Pattern::Runs { sequential: 0.74, again: 0.6 };

/// The nine one-day segments of ThinDedup's Table I: trace and day, shape, ratio of blocks written
/// before and after deduplication.
pub const SEGMENTS: [(&str, Pattern, f64); 9] = [
    ("web-4", WEB, 1.60),
    ("web-8", WEB, 1.35),
    ("web-12", WEB, 1.16),
    ("homes-11", HOMES, 1.77),
    ("homes-12", HOMES, 2.80),
    ("homes-13", HOMES, 4.63),
    ("mail-1", MAIL, 5.43),
    ("mail-2", MAIL, 16.08),
    ("mail-5", MAIL, 9.73),
];

/// A name that stands for a pattern, and for a segment's ratio too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The addresses.
    pub pattern: Pattern,
    /// The ratio that belongs to it.
    pub ratio: Option<f64>,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Named {
    type Err = Error;

    fn from_str(name: &str) -> Result<Named, Error> {
        let plain = [
            ("random", Pattern::Random),
            ("sequential", Pattern::Sequential),
            ("web", WEB),
            ("homes", HOMES),
            ("mail", MAIL),
        ];
        let plain = plain.into_iter().map(|(name, pattern)| (name, pattern, None));
        let segments =
            SEGMENTS.into_iter().map(|(name, pattern, ratio)| (name, pattern, Some(ratio)));
        let mut all = plain.chain(segments);
        let (_, pattern, ratio) = all.find(|known| known.0 == name).ok_or_else(|| {
            let segments: Vec<&str> = SEGMENTS.iter().map(|segment| segment.0).collect();
            let message = format!(
                "no workload '{name}': one of random, sequential, web, homes, mail, or {}",
                segments.join(", ")
            );
            Error::new(Kind::InvalidInput, message)
        })?;
        Ok(Named { name: name.to_owned(), pattern, ratio })
    }
}

/// A generated workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Where blocks are written.
    pub pattern: Pattern,
    /// Blocks of the volume.
    pub volume_blocks: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Blocks of a request.
    pub request_blocks: u64,
    /// Blocks written before deduplication for each one written after it; 1 is no duplicates.
    pub ratio: f64,
    /// Duplicates come evenly, a new content after every `ratio` blocks; otherwise by chance.
    pub even: bool,
    /// Share of the contents that compress.
    pub compressible: f64,
    /// How many times smaller those become.
    pub compression: f64,
    /// Requests between two flushes; 0 for no flushes.
    pub flush_every: u64,
    /// Microseconds between two requests, on average; they count when requests come at recorded
    /// speed.
    pub gap_microseconds: u64,
    /// Requests that come together, at most [`BURST_GAP`] apart, with a pause before the next; 1
    /// for requests that come evenly.
    pub burst: u64,
    /// All chance follows from it.
    pub seed: u64,
}

impl Workload {
    /// ThinDedup's usual: single blocks over 120 GB, every second a duplicate, four fifths
    /// compressible by a fifth.
    #[must_use]
    pub fn paper(pattern: Pattern, blocks: u64) -> Workload {
        Workload {
            pattern,
            volume_blocks: PAPER_BLOCKS,
            blocks,
            request_blocks: 1,
            ratio: 2.0,
            even: false,
            compressible: 0.8,
            compression: 1.25,
            flush_every: 0,
            gap_microseconds: 0,
            burst: 1,
            seed: 1,
        }
    }

    /// When a request comes.
    fn time_of(&self, request: u64) -> Duration {
        let (gap, burst) = (self.gap_microseconds, self.burst.max(1));
        Duration::from_micros(request / burst * burst * gap + request % burst * gap.min(BURST_GAP))
    }

    /// Its requests.
    #[must_use]
    pub fn source(&self) -> Source {
        Source {
            volume_blocks: self.volume_blocks,
            steps: self.blocks,
            requests: Box::new(Writes::new(self.clone()).map(Ok)),
            cut: Rc::default(),
        }
    }
}

/// Generates requests.
struct Writes {
    workload: Workload,
    rng: SplitMix,
    live: Live,
    /// Blocks written, and those whose content was chosen.
    done: u64,
    blocks: u64,
    /// Requests since the last flush.
    unflushed: u64,
    requests: u64,
    /// Where the last request ended.
    end: u64,
    /// Contents that there were.
    numbers: u64,
    /// Addresses of jumps, to come back to.
    places: Vec<u64>,
}

impl Writes {
    fn new(workload: Workload) -> Writes {
        let rng = SplitMix::new(workload.seed);
        Writes {
            workload,
            rng,
            live: Live::default(),
            done: 0,
            blocks: 0,
            unflushed: 0,
            requests: 0,
            end: 0,
            numbers: 0,
            places: Vec::new(),
        }
    }

    /// Where the next request of `blocks` blocks goes.
    fn place(&mut self, blocks: u64) -> u64 {
        let room = self.workload.volume_blocks - blocks + 1;
        match self.workload.pattern {
            Pattern::Random => self.rng.below(room),
            Pattern::Sequential if self.end < room => self.end,
            Pattern::Sequential => 0,
            Pattern::Runs { sequential, again } => {
                if self.requests > 0 && self.end < room && self.rng.chance(sequential) {
                    return self.end;
                }
                if !self.places.is_empty() && self.rng.chance(again) {
                    return self.places[self.rng.below(self.places.len() as u64) as usize];
                }
                let place = self.rng.below(room);
                self.places.push(place);
                place
            }
        }
    }

    fn content(&mut self) -> Content {
        let Workload { ratio, even, compressible, compression, seed, .. } = self.workload;
        let blocks = self.blocks as f64;
        self.blocks += 1;
        let new = if even {
            (blocks / ratio).floor() != ((blocks - 1.0) / ratio).floor()
        } else {
            !self.rng.chance(1.0 - 1.0 / ratio)
        };
        if !new && let Some(content) = self.live.pick(&mut self.rng) {
            return content;
        }
        self.numbers += 1;
        let lz4 = Assumed { compressible, ratio: compression }.lz4(self.rng.next());
        Content::numbered(seed, self.numbers, lz4)
    }
}

impl Iterator for Writes {
    type Item = (u64, Request);

    fn next(&mut self) -> Option<(u64, Request)> {
        let at = self.workload.time_of(self.requests);
        if self.workload.flush_every > 0 && self.unflushed == self.workload.flush_every {
            self.unflushed = 0;
            // With its burst, not with the next.
            let at = self.workload.time_of(self.requests - 1)
                + Duration::from_micros(BURST_GAP.min(self.workload.gap_microseconds));
            return Some((self.done, Request { at, what: What::Flush }));
        }
        let n = self
            .workload
            .request_blocks
            .clamp(1, self.workload.volume_blocks)
            .min(self.workload.blocks - self.done);
        if n == 0 {
            return None;
        }
        let first = self.place(n);
        let mut blocks = Vec::with_capacity(n as usize);
        for lba in first..first + n {
            let content = self.content();
            self.live.write(lba, content);
            blocks.push(content);
        }
        self.end = first + n;
        self.done += n;
        self.requests += 1;
        self.unflushed += 1;
        Some((
            self.done,
            Request { at, what: What::Write { first: Lba(first), blocks, fua: false } },
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    /// Share of duplicates among live contents, in points; share of compressible contents;
    /// addresses.
    fn measure(workload: &Workload) -> (f64, f64, Vec<u64>) {
        let mut live: HashMap<u64, Content> = HashMap::new();
        let mut references: HashMap<Content, u64> = HashMap::new();
        let mut seen = HashSet::new();
        let (mut duplicates, mut addresses) = (0u64, Vec::new());
        for item in workload.source().requests {
            let What::Write { first, blocks, .. } = item.unwrap().1.what else { continue };
            for (lba, content) in (first.0..).zip(blocks) {
                let known = references.get(&content).copied().unwrap_or(0) > 0;
                duplicates += u64::from(known);
                // A content that is not live never was.
                assert!(seen.insert(content) != known);
                *references.entry(content).or_default() += 1;
                if let Some(old) = live.insert(lba, content) {
                    *references.get_mut(&old).unwrap() -= 1;
                }
                addresses.push(lba);
            }
        }
        let compressible =
            seen.iter().filter(|content| content.lz4 < 4096).count() as f64 / seen.len() as f64;
        (duplicates as f64 * 100.0 / addresses.len() as f64, compressible, addresses)
    }

    #[test]
    fn duplicates_come_out_as_asked_for() {
        for (_, pattern, ratio) in SEGMENTS {
            let (points, compressible, _) =
                measure(&Workload { ratio, ..Workload::paper(pattern, 30_000) });
            assert!(
                (points - (1.0 - 1.0 / ratio) * 100.0).abs() < 1.0,
                "{pattern:?} {ratio}: {points}"
            );
            assert!((compressible - 0.8).abs() < 0.03, "{compressible}");
        }
        let even = Workload { ratio: 8.0, even: true, ..Workload::paper(Pattern::Random, 8000) };
        let (points, ..) = measure(&even);
        assert!((points - 87.5).abs() < 0.1, "{points}");
        // Also where everything is overwritten all the time.
        for pattern in [Pattern::Random, Pattern::Sequential] {
            let small =
                Workload { volume_blocks: 500, ratio: 3.0, ..Workload::paper(pattern, 30_000) };
            let (points, ..) = measure(&small);
            assert!((points - 66.7).abs() < 1.0, "{pattern:?}: {points}");
        }
    }

    #[test]
    fn the_six_workloads_of_ordermergededup_have_their_shares() {
        for share in [23.0, 30.0, 73.0, 27.0, 55.0, 24.0] {
            let (points, ..) = measure(&Workload {
                ratio: 100.0 / (100.0 - share),
                ..Workload::paper(Pattern::Random, 30_000)
            });
            assert!((points - share).abs() < 1.0, "{share}: {points}");
        }
    }

    #[test]
    fn addresses_follow_the_pattern() {
        let addresses = |pattern, volume_blocks| {
            measure(&Workload { volume_blocks, ..Workload::paper(pattern, 20_000) }).2
        };
        let sequential = addresses(Pattern::Sequential, 7000);
        assert!(sequential.iter().enumerate().all(|(n, &lba)| lba == n as u64 % 7000));
        let random = addresses(Pattern::Random, PAPER_BLOCKS);
        assert!(
            random.iter().all(|&lba| lba < PAPER_BLOCKS)
                && random.iter().collect::<HashSet<_>>().len() > 19_900
        );
        let mail = addresses(MAIL, PAPER_BLOCKS);
        let follow =
            mail.windows(2).filter(|two| two[1] == two[0] + 1).count() as f64 / mail.len() as f64;
        assert!((follow - 0.74).abs() < 0.02, "{follow}");
    }

    #[test]
    fn a_seed_is_one_workload() {
        let workload = Workload {
            request_blocks: 3,
            flush_every: 2,
            gap_microseconds: 10,
            ..Workload::paper(WEB, 100)
        };
        let all = |workload: &Workload| {
            workload.source().requests.map(|item| item.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(all(&workload), all(&workload));
        assert_ne!(all(&workload), all(&Workload { seed: 2, ..workload.clone() }));
        let requests = all(&workload);
        assert_eq!(requests.iter().filter(|(_, request)| request.what == What::Flush).count(), 17);
        assert_eq!(
            requests.iter().map(|(_, request)| request.what.written_blocks()).sum::<u64>(),
            100
        );
        let bursts = Workload { burst: 4, ..workload };
        let times: Vec<u128> = (0..9).map(|n| bursts.time_of(n).as_micros()).collect();
        assert_eq!(times, [0, 10, 20, 30, 40, 50, 60, 70, 80]);
        let paused = Workload { gap_microseconds: 1000, ..bursts };
        assert_eq!(
            (0..6).map(|n| paused.time_of(n).as_micros()).collect::<Vec<_>>(),
            [0, 100, 200, 300, 4000, 4100]
        );
        assert!(
            "mail-2".parse::<Named>().unwrap().ratio == Some(16.08)
                && "mail-3".parse::<Named>().is_err()
        );
    }
}
