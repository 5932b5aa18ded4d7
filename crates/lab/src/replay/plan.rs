//! How a trace is replayed: on what, how fast, for whom.

use std::{fmt, str::FromStr};

use onefold_block::{
    Persistence, Settings,
    format::superblock::{Layout, Leftover},
    schedule::Anticipation,
};
use onefold_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::{
    device::DeviceKind,
    subject::{Choice, Scheme},
};

/// How fast requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// With the gaps of the trace, divided by this.
    Times(f64),
    /// Without gaps.
    Max,
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Speed::Max => f.write_str("max"),
            Speed::Times(1.0) => f.write_str("recorded"),
            Speed::Times(times) => write!(f, "x{times}"),
        }
    }
}

impl FromStr for Speed {
    type Err = Error;

    fn from_str(text: &str) -> Result<Speed> {
        let wrong = || {
            Error::new(Kind::InvalidInput, "a speed is recorded, max, or a factor like x10 or x0.5")
        };
        match text {
            "max" => Ok(Speed::Max),
            "recorded" => Ok(Speed::Times(1.0)),
            _ => {
                let times = text.strip_prefix('x').and_then(|times| times.parse::<f64>().ok());
                times
                    .filter(|times| (1e-6..=1e6).contains(times))
                    .map(Speed::Times)
                    .ok_or_else(wrong)
            }
        }
    }
}

/// When clients wait before they send their next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients {
    /// Requests that are not answered at once, at most; further ones wait.
    pub in_flight: usize,
    /// Nothing comes after a flush before it is answered. Otherwise requests come at their
    /// recorded times whatever the flush does, as from clients that do not know of each other.
    pub wait_for_flush: bool,
}

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// On which store.
    pub choice: Choice,
    /// On which device.
    pub device: DeviceKind,
    /// How fast.
    pub speed: Speed,
    /// For whom.
    pub clients: Clients,
    /// With how much patience.
    pub anticipation: Anticipation,
    /// Blocks that clients write before anything counts.
    pub warm_up_blocks: u64,
    /// Addresses that are read and compared at the end, at most; none for the usual number.
    pub verify: Option<u64>,
}

impl Plan {
    /// The product as it is, on a device.
    #[must_use]
    pub fn new(choice: Choice, device: DeviceKind) -> Plan {
        let clients = Clients { in_flight: 128, wait_for_flush: true };
        let anticipation = Anticipation::Returning;
        Plan {
            choice,
            device,
            speed: Speed::Times(1.0),
            clients,
            anticipation,
            warm_up_blocks: 0,
            verify: None,
        }
    }
}

/// How a replay was made, for those who read its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The trace or workload that was replayed.
    pub source: String,
    /// On which scheme.
    pub scheme: Scheme,
    /// `weak` or `strong`.
    pub persistence: String,
    /// `log` or `table`.
    pub leftover: String,
    /// `run` or `split`.
    pub layout: String,
    /// Blocks of a window, at most.
    pub window_blocks: usize,
    /// On which device.
    pub device: String,
    /// The device's times were fitted to a paper's figures.
    pub device_is_fitted: bool,
    /// How fast requests came.
    pub speed: String,
    /// Requests at once, at most.
    pub in_flight: usize,
    /// Nothing came after a flush before it was answered.
    pub wait_for_flush: bool,
    /// How long rounds waited for company.
    pub anticipation: String,
    /// Blocks written before anything counted.
    pub warm_up_blocks: u64,
    /// With ordermerge: how long changes that nobody waited for waited to be merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<f64>,
}

impl Plan {
    /// Describes the plan for `source`.
    #[must_use]
    pub fn setting(&self, source: impl Into<String>) -> Setting {
        let choice = &self.choice;
        Setting {
            source: source.into(),
            scheme: choice.scheme,
            persistence: if choice.persistence == Persistence::Weak { "weak" } else { "strong" }
                .to_owned(),
            leftover: if choice.leftover == Leftover::Log { "log" } else { "table" }.to_owned(),
            layout: if choice.layout == Layout::Run { "run" } else { "split" }.to_owned(),
            window_blocks: choice
                .window_blocks
                .unwrap_or_else(|| Settings::for_memory(choice.memory_bytes).window_blocks),
            device: self.device.to_string(),
            device_is_fitted: self.device.is_fitted(),
            speed: self.speed.to_string(),
            in_flight: self.clients.in_flight,
            wait_for_flush: self.clients.wait_for_flush,
            anticipation: self.anticipation.to_string(),
            warm_up_blocks: self.warm_up_blocks,
            delay_seconds: (choice.scheme == Scheme::OrderMerge)
                .then_some(choice.delay.as_secs_f64()),
        }
    }
}
