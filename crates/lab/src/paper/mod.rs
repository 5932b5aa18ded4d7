//! The papers' experiments: what each states, measured here and judged.
//!
//! A paper is a list of [`Item`]s, one for each thing that it states: which [`Case`]s it needs, when it counts as reproduced, and how its plot
//! is drawn. Cases that several items need are run once. Every figure comes from a [`replay`](crate::replay) of the real engine.

pub mod thindedup;

use std::{cell::RefCell, collections::BTreeSet, path::PathBuf};

use onefold_block::{
    Persistence,
    format::superblock::{Layout, Leftover},
};
use onefold_core::{Lba, Result};
use serde::{Deserialize, Serialize};

use crate::{
    device::DeviceKind,
    replay::{Anticipation, Clients, Outcome, Plan, Setting, Speed, replay},
    report::{Figure, Report, Section, Statement, Table, Verdict, number},
    request::{Request, Source, What},
    subject::{Choice, Scheme},
    trace::{self, Assumed},
    workload::Workload,
};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// No metadata is written.
    Ideal,
    /// Thin as its paper has it: zones of their own for records, what finds no room goes into the tables in place.
    Thin,
    /// Thin as the product has it: one run, what finds no room takes a block of the same write.
    ThinLog,
    /// Data, flush, metadata in place, flush.
    Ordered,
    /// Dmdedup's copy-on-write trees.
    Cow,
}

impl System {
    /// All of them.
    pub const ALL: [System; 5] = [System::Ideal, System::Thin, System::ThinLog, System::Ordered, System::Cow];

    /// The name in tables and legends.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            System::Ideal => "ideal",
            System::Thin => "thin",
            System::ThinLog => "thin, log",
            System::Ordered => "ordered",
            System::Cow => "cow",
        }
    }

    fn choice(self, window: usize) -> Choice {
        let (scheme, leftover, layout) = match self {
            System::Ideal => (Scheme::Ideal, Leftover::Table, Layout::Run),
            System::Thin => (Scheme::Thin, Leftover::Table, Layout::Split),
            System::ThinLog => (Scheme::Thin, Leftover::Log, Layout::Run),
            System::Ordered => (Scheme::Ordered, Leftover::Table, Layout::Run),
            System::Cow => (Scheme::Cow, Leftover::Table, Layout::Run),
        };
        Choice { leftover, layout, window_blocks: Some(window), ..Choice::new(scheme, Persistence::Strong) }
    }
}

/// What is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// Generated.
    Generated(Workload),
    /// The beginning of a recorded trace, as fast as answers come, each block a request.
    Recorded {
        /// Its file.
        path: PathBuf,
        /// So many records.
        records: u64,
    },
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What it is called: a pattern, a segment, a trace.
    pub name: String,
    /// What is written.
    pub load: Load,
    /// Blocks written before anything counts.
    pub warm_up: u64,
    /// On which device.
    pub device: DeviceKind,
    /// Blocks of a window. Windows are committed one after the other, each when it is full and the one before is durable.
    pub window: usize,
    /// On which system.
    pub system: System,
}

impl Case {
    fn steps(&self) -> u64 {
        match &self.load {
            Load::Generated(workload) => workload.blocks,
            Load::Recorded { records, .. } => *records,
        }
    }

    fn source(&self) -> Result<Source> {
        match &self.load {
            Load::Generated(workload) => Ok(workload.source()),
            Load::Recorded { path, records } => {
                Ok(one_by_one(trace::open(path, Assumed { compressible: 0.8, ratio: 1.25 })?.first(*records)))
            }
        }
    }

    fn run(&self, progress: &mut dyn FnMut(u64)) -> Result<Measured> {
        let plan = Plan {
            speed: Speed::Max,
            clients: Clients { in_flight: self.window, wait_for_flush: true },
            anticipation: Anticipation::None,
            warm_up_blocks: self.warm_up,
            verify: Some(500),
            ..Plan::new(self.system.choice(self.window), self.device.clone())
        };
        let outcome = replay(self.source()?, &plan, progress)?;
        let workload = match &self.load {
            Load::Generated(workload) => Some(workload.clone()),
            Load::Recorded { .. } => None,
        };
        let until_settled = outcome.virtual_seconds + outcome.settle_seconds;
        Ok(Measured {
            items: Vec::new(),
            system: self.system,
            workload,
            throughput: outcome.throughput(),
            throughput_with_checkpoints: outcome.client_blocks as f64 / until_settled.max(f64::MIN_POSITIVE),
            blocks_with_warm_up: outcome.client_blocks + self.warm_up,
            setting: plan.setting(self.name.clone()),
            outcome,
        })
    }
}

/// Makes a request of each block that is written, so that windows are committed one after the other: a long request would fill several, which thin makes
/// durable together and which the paper doesn't have.
fn one_by_one(source: Source) -> Source {
    let Source { volume_blocks, steps, requests, cut } = source;
    let split = requests.flat_map(|item| match item {
        Ok((steps, Request { at, what: What::Write { first, blocks, fua } })) => {
            let last = (blocks.len() as u64).saturating_sub(1);
            let one = move |(number, content)| {
                let what = What::Write { first: Lba(first.0 + number), blocks: vec![content], fua: fua && number == last };
                Ok((steps, Request { at, what }))
            };
            (0..).zip(blocks).map(one).collect::<Vec<_>>()
        }
        other => vec![other],
    });
    Source { volume_blocks, steps, requests: Box::new(split), cut }
}

/// What came out of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The items that looked at it.
    pub items: Vec<String>,
    /// On which system.
    pub system: System,
    /// What was written, if it was generated.
    pub workload: Option<Workload>,
    /// Blocks a second until everything was answered and durable; checkpoints left out, but for schemes that commit by them.
    pub throughput: f64,
    /// Blocks a second until the last record was in the tables.
    pub throughput_with_checkpoints: f64,
    /// Blocks processed.
    pub blocks_with_warm_up: u64,
    /// How it was run.
    #[serde(flatten)]
    pub setting: Setting,
    /// What came out.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Measured {
    /// Share of the records that were hidden beside compressed data.
    #[must_use]
    pub fn hidden(&self) -> f64 {
        self.outcome.hidden_records as f64 / self.outcome.records.max(1) as f64
    }
}

/// How much is run.
#[derive(Clone, Debug)]
pub struct Extent {
    /// In at most a minute.
    pub quick: bool,
    /// Recorded traces, if there are any.
    pub traces: Vec<PathBuf>,
}

/// One thing that a paper states.
pub struct Item {
    /// Its short name, by which it is chosen: `3a`.
    pub id: &'static str,
    /// Its name in the paper.
    pub name: &'static str,
    /// What the paper says.
    pub says: &'static str,
    /// When it counts as reproduced.
    pub band: &'static str,
    /// It hangs on devices that were fitted to the paper.
    pub fitted: bool,
    cases: fn(&Extent) -> Vec<Case>,
    judge: fn(&Extent, &Look<'_>) -> Judgement,
    draw: fn(&Extent, &Look<'_>) -> Vec<Figure>,
}

/// What an item comes to.
#[derive(Default)]
struct Judgement {
    /// What is asked for, what was found, and whether it holds.
    checks: Vec<(String, bool)>,
    /// What to know besides.
    remark: String,
    out_of_scope: bool,
}

impl Judgement {
    fn check(&mut self, text: impl Into<String>, holds: bool) {
        self.checks.push((text.into(), holds));
    }
}

/// What was measured, for those who look at it; knows what they looked at.
struct Look<'a> {
    measured: &'a [(Case, Measured)],
    used: RefCell<BTreeSet<usize>>,
}

impl Look<'_> {
    fn at(&self, case: &Case) -> Option<&Measured> {
        let place = self.measured.iter().position(|(known, _)| known == case)?;
        self.used.borrow_mut().insert(place);
        Some(&self.measured[place].1)
    }

    /// A number of a case; one that was not measured is no number, and fails every comparison.
    fn value(&self, case: &Case, of: impl Fn(&Measured) -> f64) -> f64 {
        self.at(case).map_or(f64::NAN, of)
    }

    /// Blocks a second, checkpoints left out.
    fn speed(&self, case: &Case) -> f64 {
        self.value(case, |measured| measured.throughput)
    }

    /// Blocks a second, checkpoints included.
    fn speed_with_checkpoints(&self, case: &Case) -> f64 {
        self.value(case, |measured| measured.throughput_with_checkpoints)
    }

    /// One speed over another, checkpoints left out and included.
    fn ratio(&self, over: &Case, under: &Case) -> (f64, f64) {
        (self.speed(over) / self.speed(under), self.speed_with_checkpoints(over) / self.speed_with_checkpoints(under))
    }
}

/// Everything that came out of a paper's experiments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The paper.
    pub paper: String,
    /// The short form was run.
    pub quick: bool,
    /// Statements reproduced or better.
    pub reproduced: usize,
    /// Statements that could be looked at.
    pub possible: usize,
    /// Each statement beside what was found.
    pub statements: Vec<Statement>,
    /// Every run.
    pub points: Vec<Measured>,
    /// The page, as data.
    pub report: Report,
    /// Real seconds that all of it took.
    pub wall_seconds: f64,
}

/// Runs items. `progress` hears of the blocks written and how many there will be; `done` of each statement.
///
/// # Errors
/// The first of any replay; `Corrupt` when a block reads back wrong.
fn run(paper: &str, about: &[String], items: &[Item], extent: &Extent, progress: &mut dyn FnMut(u64, u64)) -> Result<Results> {
    let begun = std::time::Instant::now();
    let mut cases: Vec<Case> = Vec::new();
    for case in items.iter().flat_map(|item| (item.cases)(extent)) {
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    let total: u64 = cases.iter().map(Case::steps).sum();
    let mut before = 0;
    let mut measured = Vec::with_capacity(cases.len());
    for case in cases {
        let outcome = case.run(&mut |steps| progress(before + steps, total))?;
        before += case.steps();
        measured.push((case, outcome));
    }
    let (mut statements, mut sections) = (Vec::new(), Vec::new());
    let mut items_of: Vec<Vec<String>> = vec![Vec::new(); measured.len()];
    for item in items {
        let look = Look { measured: &measured, used: RefCell::default() };
        let began = std::time::Instant::now();
        let judgement = (item.judge)(extent, &look);
        let figures = (item.draw)(extent, &look);
        let used = look.used.into_inner();
        let own = began.elapsed().as_secs_f64();
        used.iter().for_each(|&place| items_of[place].push(item.id.to_owned()));
        let statement = stated(item, judgement, used.iter().map(|&place| &measured[place].1), own);
        let line =
            format!("The paper: {} — Here: {} — Band: {} — {}.", statement.says, statement.found, statement.band, word(statement.verdict));
        let mut figures = figures;
        if !used.is_empty() {
            figures.push(Figure::Table(table(used.iter().map(|&place| &measured[place].1))));
        }
        sections.push(Section {
            title: item.name.to_owned(),
            about: [line, statement.remark.clone()].into_iter().filter(|text| !text.is_empty()).collect(),
            figures,
        });
        statements.push(statement);
    }
    let points = measured.into_iter().zip(items_of).map(|((_, measured), items)| Measured { items, ..measured }).collect();
    let report = Report { title: paper.to_owned(), about: about.to_vec(), statements: statements.clone(), sections };
    let (reproduced, possible) = report.score();
    let wall_seconds = begun.elapsed().as_secs_f64();
    Ok(Results { paper: paper.to_owned(), quick: extent.quick, reproduced, possible, statements, points, report, wall_seconds })
}

/// The verdict in words.
#[must_use]
pub fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "reproduced",
        Verdict::Better => "better",
        Verdict::NotReproduced => "not reproduced",
        Verdict::OutOfScope => "out of scope",
    }
}

fn stated<'a>(item: &Item, judgement: Judgement, used: impl Iterator<Item = &'a Measured>, own: f64) -> Statement {
    let missed: Vec<&str> = judgement.checks.iter().filter(|check| !check.1).map(|check| check.0.as_str()).collect();
    let verdict = match missed.len() {
        _ if judgement.out_of_scope => Verdict::OutOfScope,
        0 => Verdict::Reproduced,
        _ => Verdict::NotReproduced,
    };
    let mut remark = String::new();
    if verdict == Verdict::NotReproduced {
        remark = format!("Missed: {}. ", missed.join("; "));
    }
    remark.push_str(&judgement.remark);
    let (mut blocks, mut wall_seconds) = (0, own);
    for measured in used {
        blocks += measured.blocks_with_warm_up;
        wall_seconds += measured.outcome.wall_seconds;
    }
    Statement {
        item: item.name.to_owned(),
        says: item.says.to_owned(),
        found: judgement.checks.into_iter().map(|check| check.0).collect::<Vec<_>>().join("; "),
        band: item.band.to_owned(),
        verdict,
        remark: remark.trim_end().to_owned(),
        fitted: item.fitted,
        blocks,
        wall_seconds,
    }
}

fn table<'a>(of: impl Iterator<Item = &'a Measured>) -> Table {
    let columns = [
        "workload",
        "device",
        "window",
        "dup ratio",
        "comp %",
        "system",
        "blocks/s",
        "with checkpoints",
        "p50 ms",
        "p80 ms",
        "ideal blocks",
        "to device",
        "with checkpoints",
        "hidden %",
        "blocks",
        "wall s",
    ];
    let rows = of.map(|measured| {
        let Measured { outcome, setting, workload, .. } = measured;
        let of_workload = |of: fn(&Workload) -> f64| workload.as_ref().map_or("recorded".to_owned(), |workload| number(of(workload)));
        // What the copy-on-write trees write is how they commit, and never left out.
        let left_out = if measured.system == System::Cow { 0 } else { outcome.checkpoint_blocks };
        vec![
            setting.source.clone(),
            setting.device.clone(),
            setting.window_blocks.to_string(),
            of_workload(|workload| workload.ratio),
            of_workload(|workload| workload.compressible * 100.0),
            measured.system.name().to_owned(),
            number(measured.throughput),
            number(measured.throughput_with_checkpoints),
            format!("{:.2}", outcome.write_latency.p50_ms),
            format!("{:.2}", outcome.write_latency.p80_ms),
            number(outcome.ideal_blocks as f64),
            number((outcome.device_blocks - left_out) as f64),
            number(outcome.device_blocks as f64),
            format!("{:.1}", measured.hidden() * 100.0),
            number(measured.blocks_with_warm_up as f64),
            format!("{:.2}", outcome.wall_seconds),
        ]
    });
    Table { title: "In numbers".to_owned(), columns: columns.map(str::to_owned).to_vec(), rows: rows.collect() }
}
