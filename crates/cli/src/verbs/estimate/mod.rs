//! `onefold estimate`: what deduplication and compression would save on files, directories and
//! devices.
//!
//! Data flow: `walk` finds files, `pieces` cuts and reads them, threads fingerprint the blocks and
//! compress those that come first, `tally` knows which ones do.

mod pieces;
mod pool;
mod tally;
mod walk;

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use clap::Args;
use onefold_backend::random::random_bytes;
use onefold_core::{Algorithm, BLOCK_BYTES, Block, Fingerprinter, compress::Lz4};
use parking_lot::Mutex;
use serde::Serialize;

use self::{
    pieces::{PIECE_BYTES, Pieces},
    pool::Budget,
    tally::{Seen, Tally},
    walk::Walk,
};
use super::{
    create::{CutName, chunk_format},
    portion::Portion,
};
use onefold::parts::cluster_store::{Url, store_at};
use onefold_console::{
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, counted, share},
};

/// Threads that read, fingerprint and compress: with more, disks are the limit.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// Time between two looks at how far the threads are.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A block that compresses to this share has room for records, which then cost nothing.
const ROOMY_BYTES: usize = BLOCK_BYTES * 8 / 10;

/// Estimates what deduplication and compression would save on files, directories, devices and pools
///
/// The verb compares blocks of 4 KiB by keyed BLAKE3 fingerprints, as a block store does. With
/// `rados: POOL` it reads all objects of a pool of a Ceph cluster, and counts them as the cluster
/// engine would store them. Nothing is written.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold estimate /var/lib/libvirt/images\n  \
                  onefold estimate vm1.raw vm2.raw /dev/sdb\n  \
                  onefold estimate --json --memory 1G /srv\n  \
                  onefold estimate rados: rbd\n  \
                  onefold estimate rados:/etc/ceph/ceph.conf images --chunk 16K\n  \
                  onefold estimate rados: rbd --sample 5 --rate 200M\n  \
                  onefold estimate rados: rbd --cursor rbd.estimate --for 2h")]
pub(crate) struct Options {
    /// Files, directories (with all that is in them) and block devices; or rados:[CONF] and a pool
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Memory for fingerprints; when it is full, only a sample of the blocks is counted
    #[arg(long, default_value = "256M", value_name = "SIZE")]
    memory: Size,

    /// Size of a chunk of a pool's objects: 16K, 32K or 64K
    #[arg(long, default_value = "32K")]
    chunk: Size,

    /// How a pool's objects are cut into chunks
    #[arg(long, value_enum, default_value = "static")]
    cut: CutName,

    #[command(flatten)]
    portion: Portion,

    /// Reads so many percent of a pool's objects, and says between which bounds the saving of all of them lies
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    sample: Option<f64>,

    /// With --cursor: ends after so long, like 2h, with bounds from what was read; the next one goes on
    #[arg(long = "for", value_name = "TIME", requires = "cursor", value_parser = humantime::parse_duration)]
    time: Option<Duration>,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>().ok();
    number
        .filter(|number| *number > 0.0 && *number <= 100.0)
        .ok_or_else(|| "more than 0, and 100 at most".to_owned())
}

/// The estimate, in blocks of 4096 bytes.
#[derive(Debug, Serialize)]
struct Estimate {
    files: u64,
    bytes: u64,
    blocks: u64,
    /// Zeroes and holes, which are stored nowhere.
    zero_blocks: u64,
    /// Different blocks: what a store would hold.
    different_blocks: u64,
    duplicate_blocks: u64,
    /// The bytes that a store would hold.
    stored_bytes: u64,
    /// All bytes for each byte stored.
    ratio: f64,
    /// Size of the different blocks after LZ4, for each byte before.
    lz4_ratio: Option<f64>,
    /// Share of the different blocks that LZ4 makes small enough to hold records beside them.
    roomy_share: Option<f64>,
    /// One block of this many was looked at; 1 when all were.
    sampled_one_of: u64,
    /// Files and directories that could not be read.
    unreadable: u64,
}

/// The sums of the threads.
#[derive(Default)]
struct Sums {
    blocks: AtomicU64,
    zero_blocks: AtomicU64,
    compressed_blocks: AtomicU64,
    compressed_bytes: AtomicU64,
    roomy_blocks: AtomicU64,
}

/// Estimates, and prints what was found.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if let [url, pool] = &options.paths[..]
        && let Some(url @ Url::Rados(..)) = store_at(url)
    {
        let format = chunk_format(options.chunk, options.cut, true)?;
        let budget = Budget {
            portion: &options.portion,
            time: options.time,
            share: options.sample.unwrap_or(100.0) / 100.0,
        };
        return pool::estimate(&url, &pool.to_string_lossy(), &format, budget, options.json);
    }
    if options.portion.is_asked() || options.sample.is_some() {
        let why = "--rate, --sample and --cursor are for pools of a Ceph cluster";
        return Err(Failure::usage(why));
    }
    for path in &options.paths {
        walk::look(path)?;
    }
    let estimate = estimate(options)?;
    if options.json {
        output::json(&estimate)?;
    } else {
        print(&estimate);
    }
    if estimate.files == 0 && estimate.unreadable > 0 {
        return Err(Failure::new("nothing could be read"));
    }
    Ok(())
}

fn estimate(options: &Options) -> Result<Estimate, Failure> {
    // Once for the sizes, once for the content.
    let bytes: u64 = Walk::new(&options.paths, true)
        .flatten()
        .fold(0, |sum: u64, found| sum.saturating_add(found.bytes));
    let pieces = Pieces::new(Walk::new(&options.paths, false));
    let tally = Mutex::new(Tally::new(options.memory.0));
    let sums = Sums::default();
    let printer = Fingerprinter::new(Algorithm::Blake3, &random_bytes()?);
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .clamp(*THREADS.start(), *THREADS.end());
    let progress = Progress::new("reading");
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| work(&pieces, &printer, &tally, &sums))).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            // Small ones are done before anybody would look.
            let pause = if pieces.done.load(Relaxed) == 0 { LOOK_EVERY / 50 } else { LOOK_EVERY };
            std::thread::sleep(pause);
            progress.set(pieces.done.load(Relaxed), bytes);
        }
    });
    drop(progress);
    let tally = tally.into_inner();
    // Holes make these sums as large as anybody likes.
    let holes = pieces.hole_blocks.load(Relaxed);
    let zero_blocks = sums.zero_blocks.load(Relaxed).saturating_add(holes);
    let blocks = sums.blocks.load(Relaxed).saturating_add(holes);
    let different_blocks = tally.different().min(blocks - zero_blocks);
    let compressed = sums.compressed_blocks.load(Relaxed);
    let of_compressed =
        |part: u64, unit: u64| (compressed > 0).then(|| part as f64 / (compressed * unit) as f64);
    Ok(Estimate {
        files: pieces.files.load(Relaxed),
        bytes: pieces.done.load(Relaxed),
        blocks,
        zero_blocks,
        different_blocks,
        duplicate_blocks: blocks - zero_blocks - different_blocks,
        stored_bytes: different_blocks * BLOCK_BYTES as u64,
        ratio: blocks as f64 / different_blocks.max(1) as f64,
        lz4_ratio: of_compressed(sums.compressed_bytes.load(Relaxed), BLOCK_BYTES as u64),
        roomy_share: of_compressed(sums.roomy_blocks.load(Relaxed), 1),
        sampled_one_of: tally.one_of(),
        unreadable: pieces.unreadable.load(Relaxed),
    })
}

/// The life of a thread: pieces until there are none.
fn work(pieces: &Pieces, printer: &Fingerprinter, tally: &Mutex<Tally>, sums: &Sums) {
    let mut buffer = Block::zeroed_vec(PIECE_BYTES / BLOCK_BYTES);
    let mut lz4 = Lz4::default();
    while let Some(piece) = pieces.next() {
        let all = pieces.read(&piece, &mut buffer);
        let blocks: Vec<&Block> = all.iter().filter(|block| !block.is_zero()).collect();
        sums.blocks.fetch_add(all.len() as u64, Relaxed);
        sums.zero_blocks.fetch_add((all.len() - blocks.len()) as u64, Relaxed);
        let fingerprints = printer.many(&blocks);
        let first: Vec<&Block> = {
            let mut tally = tally.lock();
            blocks
                .iter()
                .zip(&fingerprints)
                .filter(|(_, fingerprint)| tally.note(fingerprint) == Seen::First)
                .map(|(b, _)| *b)
                .collect()
        };
        let (mut bytes, mut roomy) = (0, 0);
        for block in &first {
            let size = lz4.compress(block, BLOCK_BYTES).map_or(BLOCK_BYTES, <[u8]>::len);
            bytes += size as u64;
            roomy += u64::from(size <= ROOMY_BYTES);
        }
        sums.compressed_blocks.fetch_add(first.len() as u64, Relaxed);
        sums.compressed_bytes.fetch_add(bytes, Relaxed);
        sums.roomy_blocks.fetch_add(roomy, Relaxed);
    }
}

fn print(estimate: &Estimate) {
    let size = |blocks: u64| Size(blocks.saturating_mul(BLOCK_BYTES as u64));
    let row = |label: &str, size: Size, text: String| {
        output::line(format_args!("{label:<12}{size:>10}  {text}"))
    };
    let all = estimate.blocks;
    row("read", Size(estimate.bytes), format!("in {}", counted(estimate.files, "file")));
    row(
        "zeroes",
        size(estimate.zero_blocks),
        format!("{:>6}  stored nowhere", share(estimate.zero_blocks, all)),
    );
    row(
        "duplicates",
        size(estimate.duplicate_blocks),
        format!("{:>6}  stored once", share(estimate.duplicate_blocks, all)),
    );
    row(
        "to store",
        Size(estimate.stored_bytes),
        format!("{:>6}  {:.2} times less", share(estimate.different_blocks, all), estimate.ratio),
    );
    if let (Some(lz4), Some(roomy)) = (estimate.lz4_ratio, estimate.roomy_share) {
        let compressed = Size((estimate.stored_bytes as f64 * lz4) as u64);
        let roomy = format!(
            "{:.0} % of the blocks have room for records, which then cost no writes",
            roomy * 100.0
        );
        row("LZ4", compressed, format!("{lz4:>6.2}  of what is to store; {roomy}"));
    }
    if estimate.sampled_one_of > 1 {
        output::line(format_args!(
            "note: the fingerprints did not fit into --memory; duplicates are estimated from one \
             block in {}",
            estimate.sampled_one_of
        ));
    }
    if estimate.unreadable > 0 {
        output::line(format_args!(
            "note: {} could not be read",
            counted(estimate.unreadable, "path")
        ));
    }
}
