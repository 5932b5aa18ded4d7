//! `onefold scrub`: does all data still have the fingerprints that it had when it was written?

mod round;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use onefold_block::{
    Store,
    check::{self, MapScrub, Phase, ScrubReport, scrub_map, scrub_open},
};
use onefold_core::{BLOCK_BYTES, Result};
use serde::{Deserialize, Serialize};

use super::{
    Found,
    check::{archive, cluster, found_for, show},
    portion::Portion,
    refused, served_or_not,
};
use onefold::parts::archive_care::{Depth, Extent};
use onefold::parts::{
    control::{Request, Tell},
    store_file::StoreFile,
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::{Size, counted, grouped},
};

/// Verifies all data of a store, also while it is served, and names what is damaged
///
/// The verb reads each stored block or chunk and compares it with its fingerprint. Only
/// `onefold repair` mends. An archive records damaged chunks, so that no put takes one for a
/// duplicate. The exit status is 0 only when nothing is damaged. A folder of the cluster engine may
/// not be served meanwhile.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold scrub disk.onefold\n  onefold scrub disk.onefold --json\n  \
                  onefold scrub disk.onefold --only vm1@monday\n  \
                  onefold scrub backups --round 30d --for 2h\n  \
                  onefold scrub rados: --rate 100M --cursor /var/lib/onefold/scrub --for 6h"
)]
pub(crate) struct Options {
    /// The store, of any engine
    store: PathBuf,

    /// Only this stream or volume of an archive, or this volume or snapshot of a block store, like
    /// vm1@monday
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    /// Reads only what is due, so that all data of an archive is read once in this time, like 30d.
    /// Goes on where the last scrub ended, and reads at least a day's share ahead
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "only")]
    round: Option<Duration>,

    /// With --round or --cursor: ends after so long, like 2h; the next scrub goes on
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,

    #[command(flatten)]
    portion: Portion,

    /// Memory for an archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    #[command(flatten)]
    answer: Answer,
}

/// The result of a scrub, on its way from a server to a person.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Scrubbed {
    /// Blocks verified, bad ones included.
    blocks: u64,
    /// How many are bad; the first thousand are listed.
    bad_blocks: u64,
    /// How many of them are carriers whose data is whole.
    #[serde(default)]
    whole_blocks: u64,
    bad: Vec<Bad>,
    /// Table pages that could not be read, so that their blocks were not verified.
    unread_pages: Vec<String>,
    /// Blocks of a volume that were lost before: no new damage.
    #[serde(default)]
    known_lost_blocks: u64,
    /// Blocks of domains that were erased, which nobody can read: no damage.
    #[serde(default)]
    erased_blocks: u64,
    well: bool,
}

/// A bad block.
#[derive(Debug, Serialize, Deserialize)]
struct Bad {
    /// Its physical address; nothing when what a volume holds was read.
    block: Option<u64>,
    what: String,
    /// True when its data is whole all the same, so that no address loses any.
    #[serde(default)]
    data_is_whole: bool,
    /// How many addresses lose data; the first few are listed.
    addresses: u64,
    hit: Vec<Hit>,
}

/// Data that is lost.
#[derive(Debug, Serialize, Deserialize)]
struct Hit {
    volume: String,
    /// Where it is in the volume, in bytes, and how many these are.
    offset: u64,
    bytes: u64,
}

impl From<ScrubReport> for Scrubbed {
    fn from(report: ScrubReport) -> Scrubbed {
        let well = report.is_well();
        let bad = report.bad.into_iter().map(|bad| Bad {
            block: Some(bad.pba.0),
            what: bad.what,
            data_is_whole: bad.whole,
            addresses: bad.names_found,
            hit: bad
                .names
                .into_iter()
                .map(|(volume, lba)| Hit {
                    volume,
                    offset: lba.0 * BLOCK_BYTES as u64,
                    bytes: BLOCK_BYTES as u64,
                })
                .collect(),
        });
        Scrubbed {
            blocks: report.blocks,
            bad_blocks: report.bad_found,
            whole_blocks: report.whole_found,
            bad: bad.collect(),
            unread_pages: report.unread,
            known_lost_blocks: 0,
            erased_blocks: report.erased_blocks,
            well,
        }
    }
}

impl Scrubbed {
    /// What one volume or snapshot holds.
    fn of_map(name: &str, report: MapScrub) -> Scrubbed {
        let well = report.is_well();
        let block = BLOCK_BYTES as u64;
        let bad = report.lost.into_iter().map(|lost| Bad {
            block: None,
            what: lost.what,
            data_is_whole: false,
            addresses: lost.blocks,
            hit: vec![Hit {
                volume: name.to_owned(),
                offset: lost.first.0 * block,
                bytes: lost.blocks * block,
            }],
        });
        Scrubbed {
            blocks: report.blocks,
            bad_blocks: report.lost_blocks,
            whole_blocks: 0,
            bad: bad.collect(),
            unread_pages: Vec::new(),
            known_lost_blocks: report.known_lost_blocks,
            erased_blocks: 0,
            well,
        }
    }
}

/// Scrubs, and tells what was found.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let only = options.only.as_deref();
    let found = match Found::at(&options.store)? {
        block @ Found::Block(_) => block,
        _ => found_for(&options.store, only)?,
    };
    if options.time.is_some() && options.round.is_none() && options.portion.cursor.is_none() {
        return Err(Failure::usage(
            "--for needs --round or --cursor, by which the next scrub goes on",
        ));
    }
    if options.portion.is_asked() {
        let Found::Cluster(url) = found else {
            let why = "--rate and --cursor are for stores of the cluster engine";
            return Err(refused(&options.store, &found, why));
        };
        return cluster::look_on(&url, &options.portion, options.time, options.answer);
    }
    if let Some(round) = options.round {
        let Found::Archive(directory) = found else {
            return Err(refused(&options.store, &found, "--round is for archives"));
        };
        let times = (round, options.time);
        return round::run(&directory, options.memory.0, times, options.answer.json);
    }
    let file = match found {
        Found::Block(file) => file,
        Found::Archive(directory) => {
            let extent = Extent { depth: Depth::Scrub, only, memory: options.memory.0 };
            return archive::run(&directory, extent, options.answer.json);
        }
        Found::Cluster(url) => return cluster::look(&url, true, options.answer),
    };
    let bar = Progress::new("scrubbing");
    let scrubbed: Scrubbed = served_or_not(
        &file,
        |server| {
            let only = || options.only.clone();
            let request = only().map_or(Request::Scrub, |name| Request::ScrubOnly { name });
            server.ask_long(&request, &mut |what, done, total| {
                bar.stage(what);
                bar.set(done, total);
            })
        },
        || {
            let (disk, keys) = (file.open_for_reading()?, file.keys());
            let show = &mut |progress| show(&bar, "scrubbing", &progress);
            match only {
                None => Ok(check::scrub_with(&disk, &keys, show, &mut || false)?.into()),
                Some(name) => {
                    let report = check::scrub_only_with(&disk, &keys, name, show, &mut || false)?;
                    Ok(Scrubbed::of_map(name, report))
                }
            }
        },
    )?;
    drop(bar);
    tell(&file, only, &scrubbed, options.answer.json)
}

/// Scrubs a store that is being served, until `tell` fails.
pub(crate) fn served(store: &Store, tell: &mut Tell<'_>) -> Result<Scrubbed> {
    until_given_up(tell, |show, cancel| Ok(scrub_open(store.engine(), show, cancel).into()))
}

/// The same of what a volume or a snapshot holds.
pub(crate) fn served_only(store: &Store, name: &str, tell: &mut Tell<'_>) -> Result<Scrubbed> {
    until_given_up(tell, |show, cancel| {
        Ok(Scrubbed::of_map(name, scrub_map(store.engine(), name, show, cancel)?))
    })
}

fn until_given_up(
    tell: &mut Tell<'_>,
    scrub: impl FnOnce(&mut dyn FnMut(check::Progress), &mut dyn FnMut() -> bool) -> Result<Scrubbed>,
) -> Result<Scrubbed> {
    // Both callbacks are needed at once, and one of them tells the other.
    let given_up = std::cell::RefCell::new(None);
    let scrubbed = scrub(
        &mut |progress| {
            let bytes = |blocks: u64| {
                if progress.what == Phase::Names {
                    0
                } else {
                    blocks.saturating_mul(BLOCK_BYTES as u64)
                }
            };
            if let Err(error) = tell(
                &format!("scrubbing {}", progress.what),
                bytes(progress.done),
                bytes(progress.total),
            ) {
                *given_up.borrow_mut() = Some(error);
            }
        },
        &mut || given_up.borrow().is_some(),
    );
    match given_up.into_inner() {
        Some(error) => Err(error),
        None => scrubbed,
    }
}

fn tell(
    file: &StoreFile,
    only: Option<&str>,
    scrubbed: &Scrubbed,
    json: bool,
) -> Result<(), Failure> {
    let shown = match only {
        Some(name) => format!("'{}' in {}", name.escape_debug(), file.path().display()),
        None => file.path().display().to_string(),
    };
    if json {
        output::json(scrubbed)?;
    } else {
        output::line(format_args!(
            "{} of data were read",
            Size(scrubbed.blocks * BLOCK_BYTES as u64)
        ));
        for bad in &scrubbed.bad {
            match bad.block {
                Some(block) => {
                    output::line(format_args!("problem: physical block {block} {}", bad.what));
                }
                None => output::line(format_args!("problem: {}", bad.what)),
            }
            for hit in &bad.hit {
                output::line(format_args!(
                    "  lost: volume '{}', {} bytes at {}",
                    hit.volume.escape_debug(),
                    hit.bytes,
                    hit.offset
                ));
            }
            let named: u64 = bad.hit.iter().map(|hit| hit.bytes / BLOCK_BYTES as u64).sum();
            let unnamed = bad.addresses.saturating_sub(named);
            if unnamed > 0 {
                output::line(format_args!("  lost: {} addresses more", grouped(unnamed)));
            }
        }
        if scrubbed.known_lost_blocks > 0 {
            output::line(format_args!(
                "note: {} lost before: they read as errors until they are written or trimmed",
                counted(scrubbed.known_lost_blocks, "block")
            ));
        }
        if scrubbed.erased_blocks > 0 {
            output::line(format_args!(
                "note: {} of domains that were erased: deleting their volumes frees them",
                counted(scrubbed.erased_blocks, "block")
            ));
        }
        scrubbed.unread_pages.iter().for_each(|page| output::line(format_args!("problem: {page}")));
    }
    if scrubbed.well {
        if !json {
            let rest =
                if scrubbed.known_lost_blocks > 0 { " that was not lost before" } else { "" };
            output::line(format_args!("all data of {shown}{rest} is well"));
        }
        return Ok(());
    }
    let damaged = [
        (scrubbed.bad_blocks.saturating_sub(scrubbed.whole_blocks), "block", " of its data"),
        (scrubbed.whole_blocks, "carrier", " whose data is whole"),
        (scrubbed.unread_pages.len() as u64, "table page", " that can't be read"),
    ];
    let damaged = damaged.into_iter().filter(|(n, ..)| *n > 0);
    let damaged: Vec<String> = damaged.map(|(n, what, which)| counted(n, what) + which).collect();
    Err(Failure::new(format!("{shown} is damaged: {}", damaged.join(", "))))
}
