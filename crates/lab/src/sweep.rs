//! A grid of generated workloads on stores and devices, as the figures of ThinDedup's paper ask
//! for.

use onefold_block::Persistence;
use onefold_core::Result;
use serde::{Deserialize, Serialize};

use crate::{
    device::DeviceKind,
    replay::{Anticipation, Clients, Outcome, Plan, Setting, Speed, replay},
    subject::{Choice, Scheme},
    workload::{Named, Workload},
};

/// The values of each axis; all combinations are run.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Where blocks are written; a name with a ratio of its own is run at that ratio alone.
    pub workloads: Vec<Named>,
    /// Schemes.
    pub schemes: Vec<Scheme>,
    /// Devices.
    pub devices: Vec<DeviceKind>,
    /// Blocks of a window.
    pub windows: Vec<usize>,
    /// Ratios of duplicates.
    pub ratios: Vec<f64>,
    /// Shares of compressible contents.
    pub compressible: Vec<f64>,
    /// The settings that all points share: blocks, compression, requests, flushes, gaps, seed.
    pub workload: Workload,
    /// The store, but for scheme and window.
    pub choice: Choice,
    /// Requests at once; none for as many as fill a window.
    pub in_flight: Option<usize>,
    /// How fast requests come.
    pub speed: Speed,
    /// How long commits wait for company.
    pub anticipation: Anticipation,
    /// Blocks written before anything counts.
    pub warm_up_blocks: u64,
    /// Blocks read and compared at the end of each point, at most.
    pub verify: u64,
}

impl Grid {
    /// Windows that are committed one after the other, each when it is full: ThinDedup's way of
    /// measuring.
    #[must_use]
    pub fn paper(workload: Workload) -> Grid {
        Grid {
            workloads: Vec::new(),
            schemes: vec![Scheme::Thin],
            devices: vec![DeviceKind::HddP],
            windows: vec![32],
            ratios: vec![workload.ratio],
            compressible: vec![workload.compressible],
            workload,
            choice: Choice::new(Scheme::Thin, Persistence::Strong),
            in_flight: None,
            speed: Speed::Max,
            anticipation: Anticipation::None,
            warm_up_blocks: 0,
            verify: 1000,
        }
    }
}

/// One combination, and what came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The workload of the point.
    pub workload: Workload,
    /// How it was replayed.
    #[serde(flatten)]
    pub setting: Setting,
    /// Blocks a second.
    pub throughput: f64,
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// All combinations, in the order in which they are run.
#[must_use]
pub fn points(grid: &Grid) -> Vec<(String, Workload, Plan)> {
    let mut all = Vec::new();
    for named in &grid.workloads {
        let ratios = named.ratio.map_or_else(|| grid.ratios.clone(), |ratio| vec![ratio]);
        for device in &grid.devices {
            for &ratio in &ratios {
                for &compressible in &grid.compressible {
                    for &window in &grid.windows {
                        for &scheme in &grid.schemes {
                            let workload = Workload {
                                pattern: named.pattern,
                                ratio,
                                compressible,
                                ..grid.workload.clone()
                            };
                            let workload = Workload {
                                blocks: workload.blocks + grid.warm_up_blocks,
                                ..workload
                            };
                            let choice = Choice {
                                scheme,
                                window_blocks: Some(window),
                                ..grid.choice.clone()
                            };
                            let clients = Clients {
                                in_flight: grid.in_flight.unwrap_or(window),
                                wait_for_flush: true,
                            };
                            let plan = Plan {
                                speed: grid.speed,
                                clients,
                                anticipation: grid.anticipation,
                                warm_up_blocks: grid.warm_up_blocks,
                                verify: Some(grid.verify),
                                ..Plan::new(choice, device.clone())
                            };
                            all.push((named.name.clone(), workload, plan));
                        }
                    }
                }
            }
        }
    }
    all
}

/// Runs a grid. `progress` hears of the blocks written and of how many there will be; `done` of
/// each point.
///
/// # Errors
/// The first of any replay.
pub fn sweep(
    grid: &Grid,
    progress: &mut dyn FnMut(u64, u64),
    done: &mut dyn FnMut(&Point),
) -> Result<Vec<Point>> {
    let points = points(grid);
    let total: u64 = points.iter().map(|(_, workload, _)| workload.blocks).sum();
    let mut before = 0;
    let mut results = Vec::new();
    for (name, workload, plan) in points {
        let outcome =
            replay(workload.source(), &plan, &mut |blocks| progress(before + blocks, total))?;
        before += workload.blocks;
        let point = Point {
            setting: plan.setting(name),
            throughput: outcome.throughput(),
            workload,
            outcome,
        };
        done(&point);
        results.push(point);
    }
    Ok(results)
}
