//! `onefold-lab rad`: a manifest's versions uploaded and deleted, with chunks placed in stripes by
//! arrival or by reference counts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use onefold_lab::rad::{self, Outcome, manifest};

use onefold_console::{
    failure::Failure,
    output,
    size::{Size, grouped},
};

/// Replays a manifest of successive versions on an erasure-coded array, and counts what deletions
/// encode again
///
/// Versions are uploaded one after the other and deleted in the same order. A stripe that has dead
/// and living chunks is broken: what lives in it is encoded again. A manifest is text under zstd:
/// `V tag` begins a version, `F bytes h1 h2 …` is a file with the hash of each chunk of 4 KiB.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold-lab rad rocksdb.manifest.zst --placement rad --batch 2\n  \
                  onefold-lab rad rocksdb.manifest.zst --code 14,12 --placement rad --delay 2 \
                  --json")]
pub(crate) struct Options {
    /// The manifest
    manifest: PathBuf,

    /// Chunks of a stripe with and without parity
    #[arg(long, default_value = "14,12", value_name = "N,K", value_parser = code)]
    code: (usize, usize),

    /// Nodes
    #[arg(long, default_value_t = 16, value_name = "NODES")]
    nodes: usize,

    /// Versions whose new chunks are placed together
    #[arg(long, default_value_t = 1, value_name = "VERSIONS")]
    batch: usize,

    /// Versions for which counts must stand still before a chunk is encoded; until then it stands
    /// replicated
    #[arg(long, default_value_t = 0, value_name = "VERSIONS")]
    delay: usize,

    /// How chunks come into stripes
    #[arg(long, default_value = "rad")]
    placement: Placement,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Placement {
    /// As they arrive
    RoundRobin,
    /// Sorted by reference counts
    Rad,
}

/// The two numbers of a code.
fn code(text: &str) -> Result<(usize, usize), String> {
    let numbers = text
        .split_once(',')
        .and_then(|(n, k)| Some((n.trim().parse().ok()?, k.trim().parse().ok()?)));
    numbers.ok_or_else(|| {
        "a code is two numbers N,K: chunks of a stripe with and without parity".to_owned()
    })
}

/// Replays it and tells what came out.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let versions = manifest::read(&options.manifest)?;
    let placement = match options.placement {
        Placement::RoundRobin => rad::Placement::RoundRobin,
        Placement::Rad => rad::Placement::Rad,
    };
    let (n, k) = options.code;
    let &Options { nodes, batch, delay, .. } = options;
    let outcome = rad::replay(
        &versions,
        &rad::Options { n, k, nodes, batch, delay, placement, by_class: false },
    )?;
    if options.json {
        output::json(&outcome)?;
    } else {
        print(&outcome);
    }
    Ok(())
}

fn print(outcome: &Outcome) {
    output::line(format_args!(
        "{} chunks, {} different, {:.1} % of them with more than one reference; {} stripes",
        grouped(outcome.chunks),
        grouped(outcome.unique_chunks),
        outcome.alpha * 100.0,
        grouped(outcome.stripes)
    ));
    output::line(format_args!(
        "{:<24} {:>10} {:>12} {:>10} {:>12} {:>9}",
        "deleted", "dead", "reencoded", "broken", "written", "seconds"
    ));
    let row = |name: &str, dead: u64, reencoded: u64, broken: u64, bytes: u64, seconds: f64| {
        output::line(format_args!(
            "{name:<24} {:>10} {:>12} {:>10} {:>12} {seconds:>9.3}",
            grouped(dead),
            grouped(reencoded),
            grouped(broken),
            Size(bytes).to_string()
        ));
    };
    for one in &outcome.deletions {
        row(
            &one.version,
            one.dead_chunks,
            one.reencoded_chunks,
            one.broken_stripes,
            one.bytes_written,
            one.virtual_seconds,
        );
    }
    row(
        "all",
        outcome.unique_chunks,
        outcome.reencoded_chunks,
        outcome.broken_stripes,
        outcome.bytes_written,
        outcome.virtual_seconds,
    );
    output::line(format_args!(
        "written for the upload: {}; with the deletions: {}",
        Size(outcome.upload_bytes_written),
        Size(outcome.total_bytes_written)
    ));
}
