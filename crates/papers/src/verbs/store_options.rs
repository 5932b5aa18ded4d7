//! Which store runs on which device: what `replay` and `sweep` have in common.

use std::time::Duration;

use clap::{Args, ValueEnum};
use onefold_block::{
    MEMORY_MIN, NoDedup, Persistence,
    format::superblock::{Layout, Leftover},
};
use onefold_lab::subject::{Choice, Scheme};

use onefold_console::{
    failure::Failure,
    size::{ByteRange, Size},
};

/// Most blocks of a window.
pub(super) const WINDOW_MAX: u64 = 256;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum PersistenceName {
    /// A write is answered when it is in memory
    Weak,
    /// A write is answered when it is durable
    Strong,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LeftoverName {
    /// One more block of the same write
    Log,
    /// Tables that are written in place
    Table,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LayoutName {
    /// Side by side in one run
    Run,
    /// In zones of their own
    Split,
}

/// How the store is made.
#[derive(Debug, Args)]
pub(super) struct StoreOptions {
    /// Where records go that find no room beside compressed data
    #[arg(long, value_enum, default_value = "log")]
    leftover: LeftoverName,

    /// Where blocks that hold records go
    #[arg(long, value_enum, default_value = "run")]
    layout: LayoutName,

    /// Memory for caches, index and uncommitted records together
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    memory: Size,

    /// With ordermerge: how long changes of tables that no client waits for may wait to be merged
    /// into others: 0, or seconds like 30s
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = delay)]
    delay: u16,

    /// Bytes of the volume that are never stored as duplicates, like 0-64K; up to 12 ranges
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    critical: Vec<ByteRange>,
}

/// Seconds.
fn delay(text: &str) -> Result<u16, String> {
    let seconds = text
        .strip_suffix('s')
        .or((text == "0").then_some("0"))
        .and_then(|seconds| seconds.parse().ok());
    seconds
        .filter(|&seconds| seconds <= 3600)
        .ok_or_else(|| "0, or seconds up to an hour, like 30s".to_owned())
}

impl StoreOptions {
    /// A store of a scheme.
    pub(super) fn choice(
        &self,
        scheme: Scheme,
        persistence: PersistenceName,
        window: Option<u64>,
    ) -> Result<Choice, Failure> {
        if self.memory.0 < MEMORY_MIN {
            return Err(Failure::usage(format!(
                "--memory {} is too little; a store needs at least {}",
                self.memory,
                Size(MEMORY_MIN)
            )));
        }
        let persistence = match persistence {
            PersistenceName::Weak => Persistence::Weak,
            PersistenceName::Strong => Persistence::Strong,
        };
        Ok(Choice {
            leftover: match self.leftover {
                LeftoverName::Log => Leftover::Log,
                LeftoverName::Table => Leftover::Table,
            },
            layout: match self.layout {
                LayoutName::Run => Layout::Run,
                LayoutName::Split => Layout::Split,
            },
            window_blocks: window.map(|blocks| blocks as usize),
            memory_bytes: self.memory.0,
            delay: Duration::from_secs(self.delay.into()),
            no_dedup: NoDedup::new(self.critical.iter().map(ByteRange::blocks).collect())
                .map_err(|e| Failure::usage(e.to_string()))?,
            ..Choice::new(scheme, persistence)
        })
    }
}
