//! The log: lines on standard error, for a person or for the journal.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::failure::Failure;

/// The level of the log when nobody says otherwise.
const DEFAULT: &str = "info";

/// Starts the log. The level comes from `given` (`--log`), else from `RUST_LOG`: a level, or levels
/// by module, like `info,onefold=debug`.
pub fn start(given: Option<&str>) -> Result<(), Failure> {
    let named = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let text = given.map(str::to_owned).or(named).unwrap_or_else(|| DEFAULT.to_owned());
    let filter: Targets = text.parse().map_err(|_| {
        Failure::usage(format!(
            "'{text}' is no level for the log: one of off, error, warn, info, debug, trace"
        ))
    })?;
    let lines = fmt::layer()
        .with_writer(|| Lines)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    // The journal has its own clock.
    let in_journal =
        std::env::var_os("JOURNAL_STREAM").is_some() && !std::io::stderr().is_terminal();
    let registry = tracing_subscriber::registry().with(filter);
    // A second start would keep the first log, which is as good.
    let _ = if in_journal {
        registry.with(lines.without_time()).try_init()
    } else {
        registry.with(lines).try_init()
    };
    Ok(())
}

/// Standard error, an event a line: what an event quotes, like the name of a file, may have ends of
/// lines of its own.
struct Lines;

impl Write for Lines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(&on_one_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// An event with spaces for the ends of lines in it; its own end stays.
fn on_one_line(event: &[u8]) -> Vec<u8> {
    let own_end = event.iter().rposition(|byte| *byte != b'\n').map_or(0, |last| last + 1);
    let byte = |(at, byte): (usize, &u8)| {
        if at < own_end && matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }
    };
    event.iter().enumerate().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_is_no_line_of_its_own() {
        assert_eq!(
            on_one_line(b"WARN left out: a\nINFO all is well\r: no\n"),
            b"WARN left out: a INFO all is well : no\n"
        );
        assert_eq!((on_one_line(b"\n"), on_one_line(b"")), (b"\n".to_vec(), Vec::new()));
    }
}
