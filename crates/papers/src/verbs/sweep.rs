//! `onefold-lab sweep`: generated workloads on a grid of stores and devices.

use std::path::PathBuf;

use clap::Args;
use onefold_lab::{
    device::DeviceKind,
    replay::{Anticipation, Speed},
    report::of_points,
    subject::Scheme,
    sweep::{Grid, Point, points, sweep},
    workload::{Named, Pattern, Workload},
};

use super::{
    replay::{ratio, write_page},
    store_options::{PersistenceName, StoreOptions, WINDOW_MAX},
};
use onefold_console::{failure::Failure, output, progress::Progress, size::Size};

/// Runs generated workloads on all combinations of schemes, devices, windows and duplicates
///
/// Options that take a list are the axes of the grid. As in the ThinDedup paper, windows are
/// committed one after the other, each when it is full and as soon as the one before is durable;
/// --in-flight and --persistence change that. Blocks written to the device are told apart from
/// those that carry records into the tables later, which the paper leaves out.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold-lab sweep --window 8,32,128 --device ssd-p,hdd-p --scheme \
                  ideal,thin,ordered,cow --report page.html\n  \
                  onefold-lab sweep --workload mail-2 --scheme thin,original --window 8 --json\n  \
                  onefold-lab sweep --workload sequential --dup 1,2,4 --persistence weak \
                  --flush-every 64 --in-flight 128")]
pub(crate) struct Options {
    /// Where blocks are written: random, sequential, web, homes, mail, or a segment of the paper
    /// with its own duplicates, like mail-2
    #[arg(long, value_delimiter = ',', default_value = "random", value_name = "NAMES")]
    workload: Vec<Named>,

    /// Schemes: original, ideal, ordered, cow, ordermerge, thin
    #[arg(long, value_delimiter = ',', default_value = "thin", value_name = "SCHEMES")]
    scheme: Vec<Scheme>,

    /// Devices: ssd-p, hdd-p, hdd-m, nvme-plp, real:PATH
    #[arg(long, value_delimiter = ',', default_value = "ssd-p", value_name = "DEVICES")]
    device: Vec<DeviceKind>,

    /// Blocks of a window
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "32",
        value_name = "BLOCKS",
        value_parser = clap::value_parser!(u64).range(1..=WINDOW_MAX)
    )]
    window: Vec<u64>,

    /// Blocks written before deduplication for each one written after it
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2",
        value_name = "RATIOS",
        value_parser = duplicates
    )]
    dup: Vec<f64>,

    /// Share of the contents that compress, in per cent
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "80",
        value_name = "PERCENT",
        value_parser = clap::value_parser!(u64).range(0..=100)
    )]
    compressible: Vec<u64>,

    /// How many times smaller the contents that compress become
    #[arg(long, default_value_t = 1.25, value_name = "RATIO", value_parser = ratio)]
    compression: f64,

    /// Blocks that each combination writes
    #[arg(
        long,
        default_value_t = 20_000,
        value_name = "BLOCKS",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    blocks: u64,

    /// Blocks that each writes before anything counts
    #[arg(long, default_value_t = 0, value_name = "BLOCKS")]
    warm_up: u64,

    /// Size of the volume [default: 120 GB as in the paper]
    #[arg(long, value_name = "SIZE")]
    volume: Option<Size>,

    /// Blocks of a request
    #[arg(
        long,
        default_value_t = 1,
        value_name = "BLOCKS",
        value_parser = clap::value_parser!(u64).range(1..=4096)
    )]
    request: u64,

    /// Requests between two flushes; 0 for none
    #[arg(long, default_value_t = 0, value_name = "REQUESTS")]
    flush_every: u64,

    /// Microseconds between two requests
    #[arg(long, default_value_t = 0, value_name = "TIME")]
    gap: u64,

    /// Requests that wait for their answers, at most [default: as many as fill a window]
    #[arg(
        long,
        value_name = "NUMBER",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    in_flight: Option<u64>,

    /// When a write is answered
    #[arg(long, value_enum, default_value = "strong")]
    persistence: PersistenceName,

    /// How long a commit waits for further writes: none, returning, or always a time like 1000us
    /// when requests are frequent
    #[arg(long, default_value = "none")]
    anticipation: Anticipation,

    #[command(flatten)]
    store: StoreOptions,

    /// Seed of all random choices
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,

    /// Prints JSON: a list with an object for each combination
    #[arg(long)]
    json: bool,

    /// Writes a page with plots into this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

fn duplicates(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|ratio| (1.0..=1000.0).contains(ratio))
        .ok_or_else(|| "a number from 1 to 1000".to_owned())
}

impl Options {
    fn grid(&self) -> Result<Grid, Failure> {
        let mut workload = Workload {
            compression: self.compression,
            request_blocks: self.request,
            flush_every: self.flush_every,
            gap_microseconds: self.gap,
            seed: self.seed,
            ..Workload::paper(Pattern::Random, self.blocks)
        };
        if let Some(size) = self.volume {
            workload.volume_blocks = size.0 / 4096;
            if workload.volume_blocks < self.request {
                return Err(Failure::usage(format!("--volume {size} is smaller than a request")));
            }
        }
        let speed = if self.gap > 0 { Speed::Times(1.0) } else { Speed::Max };
        Ok(Grid {
            workloads: self.workload.clone(),
            schemes: self.scheme.clone(),
            devices: self.device.clone(),
            windows: self.window.iter().map(|&blocks| blocks as usize).collect(),
            ratios: self.dup.clone(),
            compressible: self.compressible.iter().map(|&percent| percent as f64 / 100.0).collect(),
            choice: self.store.choice(Scheme::Thin, self.persistence, None)?,
            in_flight: self.in_flight.map(|n| n as usize),
            speed,
            anticipation: self.anticipation,
            warm_up_blocks: self.warm_up,
            ..Grid::paper(workload)
        })
    }
}

/// Runs the grid and prints it.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let grid = options.grid()?;
    let combinations = points(&grid).len();
    let bar = Progress::of(format!("{combinations} combinations"), "blocks");
    if !options.json {
        output::line(format_args!(
            "{:<11}{:<11}{:<10}{:>6}{:>7}{:>6}{:>11}{:>9}{:>9}{:>10}{:>8}{:>8}",
            "workload",
            "scheme",
            "device",
            "window",
            "dup",
            "comp",
            "blocks/s",
            "p50 ms",
            "ideal",
            "to device",
            "tables",
            "hidden"
        ));
    }
    let points = sweep(&grid, &mut |done, total| bar.set(done, total), &mut |point| {
        if !options.json {
            print(point);
        }
    })?;
    drop(bar);
    if let Some(path) = &options.report {
        write_page(path, &of_points(&points))?;
    }
    if options.json {
        let text = serde_json::to_string_pretty(&points);
        output::line(
            text.map_err(|e| Failure::new(format!("the figures can't be written as JSON: {e}")))?,
        );
    }
    Ok(())
}

fn print(point: &Point) {
    let Point { workload, setting, throughput, outcome } = point;
    let of = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    let blocks = outcome.client_blocks;
    output::line(format_args!(
        "{:<11}{:<11}{:<10}{:>6}{:>7.2}{:>5.0}%{throughput:>11.0}{:>9.3}{:>8.1}%{:>9.1}%{:>7.1}%{:>7.1}%",
        setting.source,
        setting.scheme.to_string(),
        setting.device,
        setting.window_blocks,
        workload.ratio,
        workload.compressible * 100.0,
        outcome.write_latency.p50_ms,
        of(outcome.ideal_blocks, blocks),
        of(outcome.device_blocks - outcome.checkpoint_blocks, blocks),
        of(outcome.checkpoint_blocks, blocks),
        of(outcome.hidden_records, outcome.records),
    ));
}
