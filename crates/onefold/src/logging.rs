//! The log: lines on standard error, for a person or for the journal.

use std::io::IsTerminal;

use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::failure::Failure;

/// What is logged when nobody says otherwise.
const DEFAULT: &str = "info";

/// Starts the log. The level comes from `given` (`--log`), else from `RUST_LOG`: a level, or levels by module, like `info,onefold=debug`.
pub(crate) fn start(given: Option<&str>) -> Result<(), Failure> {
    let named = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let text = given.map(str::to_owned).or(named).unwrap_or_else(|| DEFAULT.to_owned());
    let filter: Targets = text
        .parse()
        .map_err(|_| Failure::usage(format!("'{text}' is no level for the log: one of off, error, warn, info, debug, trace")))?;
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(std::io::stderr().is_terminal());
    // The journal has its own clock.
    let in_journal = std::env::var_os("JOURNAL_STREAM").is_some() && !std::io::stderr().is_terminal();
    let registry = tracing_subscriber::registry().with(filter);
    // A second start would keep the first log, which is as good.
    let _ = if in_journal { registry.with(lines.without_time()).try_init() } else { registry.with(lines).try_init() };
    Ok(())
}
