//! `onefold-lab replay`: a trace on a store, over a device in virtual time.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use onefold_lab::{
    device::DeviceKind,
    replay::{Anticipation, Clients, Outcome, Plan, Setting, Speed, replay},
    report::{Report, of_replays},
    subject::Scheme,
    trace::{self, Assumed},
};
use serde::Serialize;

use super::store_options::{PersistenceName, StoreOptions, WINDOW_MAX};
use onefold_console::{
    failure::Failure,
    output,
    progress::Progress,
    size::{counted, grouped},
};

/// Replays a trace on a store, and tells what was written and how long it took
///
/// The trace is a .dtrace.zst, or text of blkparse with an MD5 of each page or sector, plain or
/// compressed by zstd. The replay makes blocks from their hashes, with the compressibility that was
/// recorded. At the end a checkpoint carries all records into the tables, and the replay reads the
/// blocks back.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        onefold-lab replay disk.dtrace.zst\n  \
                        onefold-lab replay disk.dtrace.zst --scheme original --persistence strong \
                        --device nvme-plp --json\n  \
                        onefold-lab replay disk.dtrace.zst --scheme original,ordered,cow,thin \
                        --persistence weak,strong --report page.html\n  \
                        onefold-lab replay mail.blkparse.zst --speed max --window 8 --in-flight 8 \
                        --device hdd-p")]
pub(crate) struct Options {
    /// The trace
    trace: PathBuf,

    /// How metadata is kept: original (no deduplication), ideal, ordered, cow, ordermerge, thin;
    /// several are compared
    #[arg(long, value_delimiter = ',', default_value = "thin", value_name = "SCHEMES")]
    scheme: Vec<Scheme>,

    /// When a write is answered
    #[arg(long, value_enum, value_delimiter = ',', default_value = "weak")]
    persistence: Vec<PersistenceName>,

    #[command(flatten)]
    store: StoreOptions,

    /// Most blocks of a window [default: the product's]
    #[arg(
        long,
        value_name = "BLOCKS",
        value_parser = clap::value_parser!(u64).range(1..=WINDOW_MAX)
    )]
    window: Option<u64>,

    /// The device: ssd-p, hdd-p, hdd-m, nvme-plp, or real:PATH for a new file that vanishes
    /// afterwards
    #[arg(long, default_value = "ssd-p")]
    device: DeviceKind,

    /// How fast requests come: recorded, max, or a factor like x10
    #[arg(long, default_value = "recorded")]
    speed: Speed,

    /// Behaviour of clients after a flush
    #[arg(long, value_enum, default_value = "wait")]
    clients: ClientsName,

    /// Requests that wait for their answers, at most; further ones come later
    #[arg(
        long,
        default_value_t = 128,
        value_name = "NUMBER",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    in_flight: u64,

    /// How long a commit waits for further writes: none (or 0), returning (the product's), or
    /// always a time like 1ms or 1000us when requests are frequent
    #[arg(long, default_value = "returning")]
    anticipation: Anticipation,

    /// Replays only so many records from the beginning
    #[arg(long, value_name = "NUMBER")]
    records: Option<u64>,

    /// Blocks that are written before anything counts
    #[arg(long, default_value_t = 0, value_name = "BLOCKS")]
    warm_up: u64,

    /// Blocks that are read and compared at the end, at most; 0 for none [default: 250000]
    #[arg(long, value_name = "BLOCKS")]
    verify: Option<u64>,

    /// Share of the contents that compress, for a trace that does not say it, in per cent
    #[arg(
        long,
        default_value_t = 80,
        value_name = "PERCENT",
        value_parser = clap::value_parser!(u64).range(0..=100)
    )]
    compressible: u64,

    /// How many times smaller the contents that compress become
    #[arg(long, default_value_t = 1.25, value_name = "RATIO", value_parser = ratio)]
    compression: f64,

    /// Prints JSON, whose keys are stable: one object, or a list when several stores are compared
    #[arg(long)]
    json: bool,

    /// Writes a page with plots into this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// With the distributions of latencies in it
    #[arg(long, requires = "json")]
    curves: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ClientsName {
    /// No request comes before the flush is answered, and the recorded gap is kept after it
    Wait,
    /// Requests come at their recorded times, whatever the flush does
    Open,
}

pub(super) fn ratio(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|ratio| (1.0..=64.0).contains(ratio))
        .ok_or_else(|| "a number from 1 to 64".to_owned())
}

/// The report that is printed as JSON.
#[derive(Serialize)]
struct Replayed {
    #[serde(flatten)]
    setting: Setting,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Options {
    fn plan(&self, scheme: Scheme, persistence: PersistenceName) -> Result<Plan, Failure> {
        let choice = self.store.choice(scheme, persistence, self.window)?;
        let clients = Clients {
            in_flight: self.in_flight as usize,
            wait_for_flush: matches!(self.clients, ClientsName::Wait),
        };
        Ok(Plan {
            speed: self.speed,
            clients,
            anticipation: self.anticipation,
            warm_up_blocks: self.warm_up,
            verify: self.verify,
            ..Plan::new(choice, self.device.clone())
        })
    }
}

/// Replays and prints.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let assumed =
        Assumed { compressible: options.compressible as f64 / 100.0, ratio: options.compression };
    let name = options.trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut plans = Vec::new();
    for &scheme in &options.scheme {
        for &persistence in &options.persistence {
            plans.push(options.plan(scheme, persistence)?);
        }
    }
    let bar = Progress::of(format!("replaying {name}"), "records");
    let mut results: Vec<(Setting, Outcome)> = Vec::new();
    for (n, plan) in plans.iter().enumerate() {
        let source = trace::open(&options.trace, assumed)?;
        let source =
            if let Some(records) = options.records { source.first(records) } else { source };
        let steps = source.steps;
        let outcome = replay(source, plan, &mut |done| {
            bar.set(n as u64 * steps + done, plans.len() as u64 * steps)
        })?;
        results.push((plan.setting(name.clone()), outcome));
    }
    drop(bar);
    if let Some(path) = &options.report {
        write_page(path, &of_replays(&results))?;
    }
    if options.json {
        print_json(options, results)
    } else {
        for (n, (setting, outcome)) in results.iter().enumerate() {
            if n > 0 {
                output::line("");
            }
            print(setting, outcome);
        }
        Ok(())
    }
}

fn print_json(options: &Options, results: Vec<(Setting, Outcome)>) -> Result<(), Failure> {
    let mut objects: Vec<Replayed> =
        results.into_iter().map(|(setting, outcome)| Replayed { setting, outcome }).collect();
    if !options.curves {
        for Replayed { outcome, .. } in &mut objects {
            outcome.write_latency.curve.clear();
            outcome.flush_latency.curve.clear();
        }
    }
    let text = match &objects[..] {
        [one] => serde_json::to_string_pretty(one),
        all => serde_json::to_string_pretty(all),
    };
    output::line(
        text.map_err(|e| Failure::new(format!("the figures can't be written as JSON: {e}")))?,
    );
    Ok(())
}

/// Writes a page, also over an older one.
pub(crate) fn write_page(path: &Path, report: &Report) -> Result<(), Failure> {
    fs::write(path, report.html()).map_err(|e| {
        Failure::new(format!("the page can't be written into {}: {e}", path.display()))
    })
}

fn print(setting: &Setting, outcome: &Outcome) {
    let row = |label: &str, number: u64, text: String| {
        output::line(format_args!("{label:<12}{:>12}  {text}", grouped(number)))
    };
    let of_client = |blocks: u64| {
        format!("{:.1} %", blocks as f64 * 100.0 / outcome.client_blocks.max(1) as f64)
    };
    let Setting { source, scheme, persistence, device, speed, .. } = setting;
    output::line(format_args!(
        "{source} on {scheme}, persistence {persistence}, device {device}, speed {speed}"
    ));
    row("written", outcome.client_blocks, "blocks of 4 KiB by clients".to_owned());
    row(
        "ideal",
        outcome.ideal_blocks,
        format!("{:>7}  without any metadata", of_client(outcome.ideal_blocks)),
    );
    let above = outcome.points_above_ideal();
    row(
        "to device",
        outcome.device_blocks,
        format!("{:>7}  {above:+.2} points from the ideal", of_client(outcome.device_blocks)),
    );
    let tables = format!(
        "{:>7}  of it metadata alone, {} for the tables",
        of_client(outcome.metadata_blocks),
        grouped(outcome.checkpoint_blocks)
    );
    row("metadata", outcome.metadata_blocks, tables);
    row(
        "duplicates",
        outcome.duplicate_blocks,
        format!(
            "{:>7}  and {} of zeroes",
            of_client(outcome.duplicate_blocks),
            grouped(outcome.zero_blocks)
        ),
    );
    if outcome.records > 0 {
        let share = outcome.hidden_records as f64 * 100.0 / outcome.records as f64;
        row(
            "records",
            outcome.records,
            format!("{share:>5.1} %  hidden in {}", counted(outcome.windows, "window")),
        );
    }
    row(
        "flushes",
        outcome.flushes,
        format!(
            "{:.2} blocks written between two",
            outcome.device_blocks as f64 / outcome.flushes.max(1) as f64
        ),
    );
    let time = |label: &str, latency: &onefold_lab::replay::Latency| {
        if latency.requests > 0 {
            let onefold_lab::replay::Latency { p50_ms, p90_ms, p99_ms, max_ms, .. } = latency;
            row(
                label,
                latency.requests,
                format!(
                    "took {p50_ms:.2} ms (half), {p90_ms:.2} (90 %), {p99_ms:.2} (99 %), \
                     {max_ms:.2} at most"
                ),
            );
        }
    };
    time("writes", &outcome.write_latency);
    time("flushed", &outcome.flush_latency);
    output::line(format_args!(
        "virtual time {:.3} s, and {:.3} s until all was in the tables; verified {}",
        outcome.virtual_seconds,
        outcome.settle_seconds,
        counted(outcome.verified_blocks, "block")
    ));
    if outcome.cut_off {
        output::line(
            "note: the trace is cut off, or its recording was not finished; this is what is there",
        );
    }
    if setting.device_is_fitted {
        output::line("note: the device's times are fitted to a paper's figures");
    }
}
