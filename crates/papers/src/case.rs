//! A run of a paper: what is written, how it comes, on which system and device; and what came out.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use onefold_block::{
    Persistence,
    format::superblock::{Layout, Leftover},
};
use onefold_core::{Lba, Result};
use serde::{Deserialize, Serialize};

use onefold_lab::{
    device::DeviceKind,
    replay::{Anticipation, Clients, Outcome, Plan, Setting, Speed, replay},
    request::{Request, Source, What},
    subject::{Choice, Scheme},
    trace::{self, Assumed},
    workload::Workload,
};

/// How long OrderMergeDedup leaves the device idle for company.
const ANTICIPATED: Duration = Duration::from_millis(1);

/// Requests at once.
const IN_FLIGHT: usize = 128;

/// A system that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum System {
    /// No deduplication.
    Original,
    /// No metadata is written.
    Ideal,
    /// Thin as its paper has it: zones of their own for records, what finds no room goes into the
    /// tables in place.
    Thin,
    /// Thin as the product has it: one run, what finds no room takes a block of the same write.
    ThinLog,
    /// Data, flush, metadata in place, flush.
    Ordered,
    /// Dmdedup's copy-on-write trees.
    Cow,
    /// The same, a transaction for each block of 4 KiB, as Dmdedup can be told to do.
    CowSingle,
    /// OrderMergeDedup's ordering of writes, and nothing else of it.
    Soft,
    /// The same, and updates that nobody waits for are delayed and merged.
    SoftDelayed,
    /// All of OrderMergeDedup: the device is left idle for a moment, too, when that is likely to
    /// merge more.
    OrderMerge,
}

impl System {
    /// The name in tables and legends.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Original => "original",
            System::Ideal => "ideal",
            System::Thin => "thin",
            System::ThinLog => "thin, log",
            System::Ordered => "ordered",
            System::Cow => "cow",
            System::CowSingle => "cow, block by block",
            System::Soft => "ordering",
            System::SoftDelayed => "+ delay",
            System::OrderMerge => "+ anticipation",
        }
    }

    /// How its store is made.
    pub(super) fn choice(self, persistence: Persistence) -> Choice {
        let (scheme, leftover, layout) = match self {
            System::Original => (Scheme::Original, Leftover::Log, Layout::Run),
            System::Ideal => (Scheme::Ideal, Leftover::Table, Layout::Run),
            System::Thin => (Scheme::Thin, Leftover::Table, Layout::Split),
            System::ThinLog => (Scheme::Thin, Leftover::Log, Layout::Run),
            System::Ordered => (Scheme::Ordered, Leftover::Table, Layout::Run),
            System::Cow | System::CowSingle => (Scheme::Cow, Leftover::Table, Layout::Run),
            System::Soft | System::SoftDelayed | System::OrderMerge => {
                (Scheme::OrderMerge, Leftover::Table, Layout::Run)
            }
        };
        let usual = Choice::new(scheme, persistence);
        let delay = if self == System::Soft { Duration::ZERO } else { usual.delay };
        Choice { leftover, layout, delay, ..usual }
    }

    /// With strong persistence each request is committed alone: Dmdedup's transaction of a single
    /// write. The others gather what comes while a commit is under way.
    fn commits_alone(self) -> bool {
        matches!(self, System::Cow | System::CowSingle)
    }

    /// How rounds wait for company when requests come at their times.
    fn anticipation(self) -> Anticipation {
        match self {
            System::OrderMerge => Anticipation::Idle(ANTICIPATED),
            System::ThinLog => Anticipation::Returning,
            _ => Anticipation::None,
        }
    }
}

/// The writes of a case.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Load {
    /// Generated.
    Generated(Workload),
    /// A recorded trace.
    Recorded {
        /// Its file.
        path: PathBuf,
        /// From this mark on; none for from its beginning.
        from: Option<&'static str>,
        /// So many records; none for all.
        records: Option<u64>,
    },
}

impl Load {
    /// The name of a trace's file, without what all of them end in.
    #[must_use]
    pub(crate) fn name_of(path: &Path) -> String {
        let name =
            path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        name.trim_end_matches(".zst")
            .trim_end_matches(".dtrace")
            .trim_end_matches(".blkparse")
            .to_owned()
    }

    /// Its requests.
    ///
    /// # Errors
    /// The trace's.
    pub(crate) fn source(&self) -> Result<Source> {
        match self {
            Load::Generated(workload) => Ok(workload.source()),
            Load::Recorded { path, from, records } => {
                let source = trace::open(path, Assumed::default())?;
                let source = if let Some(mark) = from { source.from_mark(mark) } else { source };
                Ok(if let Some(records) = records { source.first(*records) } else { source })
            }
        }
    }
}

/// How requests come, and when they are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Windows of so many blocks, committed one after the other, each when it is full and the one
    /// before is durable. Each block is a request, flushes are passed over, and there are no
    /// gaps: ThinDedup's way.
    Windows(usize),
    /// With their recorded gaps, and nothing after a flush before it is answered.
    Timed(Persistence),
    /// At their recorded times, whatever the device does.
    Open(Persistence),
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pace::Windows(blocks) => write!(f, "window {blocks}"),
            Pace::Timed(Persistence::Weak) | Pace::Open(Persistence::Weak) => f.write_str("weak"),
            Pace::Timed(Persistence::Strong) | Pace::Open(Persistence::Strong) => {
                f.write_str("strong")
            }
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    /// Its name: a pattern, a segment, a trace.
    pub(crate) name: String,
    /// The writes.
    pub(crate) load: Load,
    /// Blocks written before anything counts.
    pub(crate) warm_up: u64,
    /// On which device.
    pub(crate) device: DeviceKind,
    /// How requests come.
    pub(crate) pace: Pace,
    /// On which system.
    pub(crate) system: System,
}

impl Case {
    /// The same on another system.
    #[must_use]
    pub(crate) fn on(&self, system: System) -> Case {
        Case { system, ..self.clone() }
    }

    pub(super) fn steps(&self) -> Result<u64> {
        match &self.load {
            Load::Generated(workload) => Ok(workload.blocks),
            Load::Recorded { .. } => Ok(self.load.source()?.steps),
        }
    }

    fn plan(&self) -> Plan {
        let plan = |choice| Plan {
            warm_up_blocks: self.warm_up,
            verify: Some(500),
            ..Plan::new(choice, self.device.clone())
        };
        match self.pace {
            Pace::Windows(window) => Plan {
                speed: Speed::Max,
                clients: Clients { in_flight: window, wait_for_flush: true },
                anticipation: Anticipation::None,
                ..plan(Choice {
                    window_blocks: Some(window),
                    ..self.system.choice(Persistence::Strong)
                })
            },
            Pace::Timed(persistence) | Pace::Open(persistence) => Plan {
                clients: Clients {
                    in_flight: if persistence == Persistence::Strong && self.system.commits_alone()
                    {
                        1
                    } else {
                        IN_FLIGHT
                    },
                    wait_for_flush: matches!(self.pace, Pace::Timed(_)),
                },
                anticipation: self.system.anticipation(),
                ..plan(self.system.choice(persistence))
            },
        }
    }

    /// Runs it. `progress` hears of the steps done.
    ///
    /// # Errors
    /// The replay's.
    pub(super) fn run(&self, progress: &mut dyn FnMut(u64)) -> Result<Measured> {
        let plan = self.plan();
        let source = self.load.source()?;
        let single = matches!(self.pace, Pace::Windows(_)) || self.system == System::CowSingle;
        let source = if single { one_by_one(source) } else { source };
        let outcome = replay(source, &plan, progress)?;
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
            throughput_with_checkpoints: outcome.client_blocks as f64
                / until_settled.max(f64::MIN_POSITIVE),
            blocks_with_warm_up: outcome.client_blocks + self.warm_up,
            setting: plan.setting(self.name.clone()),
            outcome,
        })
    }
}

/// Makes a request of each block that is written, so that windows, or transactions, are committed
/// one after the other: a long request would fill several, which thin makes durable together and
/// which the papers don't have.
fn one_by_one(source: Source) -> Source {
    let Source { volume_blocks, steps, requests, cut } = source;
    let split = requests.flat_map(|item| match item {
        Ok((steps, Request { at, what: What::Write { first, blocks, fua } })) => {
            let last = (blocks.len() as u64).saturating_sub(1);
            let one = move |(number, content)| {
                let what = What::Write {
                    first: Lba(first.0 + number),
                    blocks: vec![content],
                    fua: fua && number == last,
                };
                Ok((steps, Request { at, what }))
            };
            (0..).zip(blocks).map(one).collect::<Vec<_>>()
        }
        other => vec![other],
    });
    Source { volume_blocks, steps, requests: Box::new(split), cut }
}

/// The result of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The items that looked at it.
    pub(crate) items: Vec<String>,
    /// On which system.
    pub(crate) system: System,
    /// The workload, if it was generated.
    pub(crate) workload: Option<Workload>,
    /// Blocks a second until everything was answered and durable; checkpoints left out, but for
    /// schemes that commit by them.
    pub(crate) throughput: f64,
    /// Blocks a second until the last record was in the tables.
    pub(crate) throughput_with_checkpoints: f64,
    /// Blocks processed.
    pub(crate) blocks_with_warm_up: u64,
    /// How it was run.
    #[serde(flatten)]
    pub(crate) setting: Setting,
    /// The figures of the replay.
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

impl Measured {
    /// Share of the records that were hidden beside compressed data.
    #[must_use]
    pub(crate) fn hidden(&self) -> f64 {
        self.outcome.hidden_records as f64 / self.outcome.records.max(1) as f64
    }

    /// Blocks that a paper leaves out: those that carry records into the tables. Copy-on-write
    /// trees commit by their writes, and none of these is left out.
    #[must_use]
    pub(crate) fn left_out(&self) -> u64 {
        if matches!(self.system, System::Cow | System::CowSingle) {
            0
        } else {
            self.outcome.checkpoint_blocks
        }
    }

    /// Blocks written for each block of a client, checkpoints left out.
    #[must_use]
    pub(crate) fn volume(&self) -> f64 {
        (self.outcome.device_blocks - self.left_out()) as f64
            / self.outcome.client_blocks.max(1) as f64
    }

    /// The same, checkpoints included.
    #[must_use]
    pub(crate) fn volume_with_checkpoints(&self) -> f64 {
        self.outcome.volume()
    }
}
