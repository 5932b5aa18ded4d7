//! `onefold-lab paper`: the experiments of a paper, measured on the real engine and judged.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{dedupv1, global, item::Extent, ordermerge, rad, run::Results, thindedup};
use clap::{Args, Subcommand};
use onefold_lab::report::Statement;

use super::replay::write_page;
use onefold_console::{failure::Failure, output, progress::Progress, size::grouped};

/// Runs a paper's experiments, and says for each of its statements whether it was reproduced
///
/// Every figure comes from the real engine, over modelled devices in virtual time.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  \
                  onefold-lab paper thindedup --quick\n  \
                  onefold-lab paper ordermerge --traces vm1.dtrace.zst --out figures --json")]
pub(crate) struct Options {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Debug, Subcommand)]
enum Paper {
    /// ThinDedup: metadata hidden in compressed data
    ///
    /// Ideal, thin, ordered writes and Dmdedup over windows, duplicates, compressibility and the
    /// shapes of FIU's traces; and power failures at every point of short workloads. A
    /// directory gets report.html, a page with the paper's plots drawn again, and thindedup.json
    /// with every figure.
    #[command(after_help = "Examples:\n  \
                      onefold-lab paper thindedup --quick\n  \
                      onefold-lab paper thindedup --only 3a,7 --json")]
    Thindedup {
        #[command(flatten)]
        options: PaperOptions,

        /// Only these: setup, 3a to 3d, 4, 5, abstract, 6, 7, 8, text, 9, 10, recovery
        #[arg(long, value_delimiter = ',', value_name = "ITEMS", value_parser = thindedup::NAMES)]
        only: Vec<String>,
    },
    /// OrderMergeDedup: metadata writes ordered, delayed and merged
    ///
    /// Its six workloads by their shapes, and recorded traces: write volume and time with weak and
    /// with strong persistence, on the original, Dmdedup, each of the paper's steps, and thin.
    /// A directory gets report.html and ordermerge.json.
    #[command(after_help = "Examples:\n  \
                      onefold-lab paper ordermerge --quick\n  \
                      onefold-lab paper ordermerge --traces vm1.dtrace.zst,mail.blkparse.zst \
                      --only 2a,2b")]
    Ordermerge {
        #[command(flatten)]
        options: PaperOptions,

        /// Only these: shares, 2a, 2b, 3a, 3b, space, energy, crash, target
        #[arg(long, value_delimiter = ',', value_name = "ITEMS", value_parser = ordermerge::NAMES)]
        only: Vec<String>,
    },
    /// Global deduplication on Ceph: double hashing, chunk maps, metadata and chunk pools
    ///
    /// Placement is simulated; bytes and operations are counted on the real cluster engine; speed
    /// is that of the paper's cluster in virtual time. A directory gets report.html and
    /// global.json.
    #[command(after_help = "Examples:\n  \
                      onefold-lab paper global --quick\n  \
                      onefold-lab paper global --only table1,13 --json")]
    Global {
        #[command(flatten)]
        options: PaperOptions,

        /// A configuration of Ceph whose cluster has pools paper-meta and paper-chunks, which are
        /// written to
        #[arg(long, value_name = "CONF")]
        cluster: Option<PathBuf>,

        /// Only these: table1, 3, 5a, entry, table2, 13, table3, 5b, 10, 11, marks, 12, plain,
        /// beside
        #[arg(long, value_delimiter = ',', value_name = "ITEMS", value_parser = global::NAMES)]
        only: Vec<String>,
    },
    /// dedupv1: content-defined chunks, a filter chain, containers, an index on SSDs
    ///
    /// Two backup generations of four clients go into the real archive engine over files in memory;
    /// reads and writes of its index are counted, and time is that of devices fitted to the
    /// paper's. A directory gets report.html and dedupv1.json.
    #[command(after_help = "Examples:\n  \
                      onefold-lab paper dedupv1 --quick\n  \
                      onefold-lab paper dedupv1 --only 4.3,reads,bloom --json")]
    Dedupv1 {
        #[command(flatten)]
        options: PaperOptions,

        /// Only these: 4.3, 4.3-ssds, 4.3-second, 4.3-ram, reads, writes, 4.4, 4.5, 4.6, found,
        /// 4.7, 4.7-after, bloom, block-index, byte-compare, crash
        #[arg(long, value_delimiter = ',', value_name = "ITEMS", value_parser = dedupv1::NAMES)]
        only: Vec<String>,
    },
    /// RAD: erasure-coded stripes filled by reference counts
    ///
    /// Manifests of releases are given as --traces; one whose name begins with `archives` has
    /// compressed files. A directory gets report.html and rad.json.
    #[command(after_help = "Examples:\n  \
                      onefold-lab paper rad --traces rocksdb.manifest.zst,archives.manifest.zst \
                      --only 7,8,10")]
    Rad {
        #[command(flatten)]
        options: PaperOptions,

        /// Only these: table1, 5, 7, 8, 10, alpha, engine
        #[arg(long, value_delimiter = ',', value_name = "ITEMS", value_parser = rad::NAMES)]
        only: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct PaperOptions {
    /// Runs shorter workloads, in less than a minute
    #[arg(long)]
    quick: bool,

    /// Directory for report.html and the figures [default: the paper's name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Recorded traces, which are replayed beside the generated workloads: .dtrace.zst, or text of
    /// blkparse
    #[arg(long, value_delimiter = ',', value_name = "FILES")]
    traces: Vec<PathBuf>,

    /// Prints the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the experiments, prints them and writes the files.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let cluster =
        if let Paper::Global { cluster, .. } = &options.paper { cluster.clone() } else { None };
    let (name, title, options, only, experiments): (_, _, _, _, Experiments) = match &options.paper
    {
        Paper::Thindedup { options, only } => {
            ("thindedup", "ThinDedup's experiments", options, only, thindedup::run)
        }
        Paper::Global { options, only, .. } => {
            ("global", "Global deduplication's experiments", options, only, global::run)
        }
        Paper::Ordermerge { options, only } => {
            ("ordermerge", "OrderMergeDedup's experiments", options, only, ordermerge::run)
        }
        Paper::Dedupv1 { options, only } => {
            ("dedupv1", "dedupv1's experiments", options, only, dedupv1::run)
        }
        Paper::Rad { options, only } => ("rad", "RAD's experiments", options, only, rad::run),
    };
    let out = options.out.clone().unwrap_or_else(|| name.into());
    make(&out)?;
    let bar = Progress::of(title, "blocks");
    let extent = Extent { quick: options.quick, traces: options.traces.clone(), cluster };
    let results = experiments(only, &extent, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    let text = serde_json::to_string_pretty(&results)
        .map_err(|e| Failure::new(format!("the figures can't be written as JSON: {e}")))?;
    let path = out.join(format!("{name}.json"));
    fs::write(&path, &text).map_err(|e| {
        Failure::new(format!("the figures can't be written into {}: {e}", path.display()))
    })?;
    let page = out.join("report.html");
    write_page(&page, &results.report)?;
    if options.json {
        output::line(text);
    } else {
        print(&results);
        output::line(format_args!("page: {}; figures: {}", page.display(), path.display()));
    }
    Ok(())
}

/// A paper's experiments.
type Experiments =
    fn(&[String], &Extent, &mut dyn FnMut(u64, u64)) -> onefold_core::Result<Results>;

fn make(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory).map_err(|e| {
        Failure::new(format!("the directory {} can't be made: {e}", directory.display()))
    })
}

fn print(results: &Results) {
    for statement in &results.statements {
        let Statement { item, says, found, band, verdict, remark, fitted, blocks, wall_seconds } =
            statement;
        let fitted = if *fitted { ", fitted device" } else { "" };
        output::line(format_args!(
            "{item}: {}{fitted}; {} blocks, {wall_seconds:.1} s",
            verdict.word().to_uppercase(),
            grouped(*blocks)
        ));
        for (label, text) in [("paper", says), ("here", found), ("band", band), ("note", remark)] {
            if !text.is_empty() {
                output::line(format_args!("  {label:<6}{text}"));
            }
        }
    }
    let Results { score, wall_seconds, .. } = results;
    let blocks: u64 = results.points.iter().map(|point| point.blocks_with_warm_up).sum();
    let runs = results.points.len();
    output::line(format_args!(
        "{score}; {runs} runs, {} blocks, {wall_seconds:.1} s",
        grouped(blocks)
    ));
}
