//! The log: lines on standard error, for a person or for the journal.

use std::io::{self, IsTerminal, Write};

use onefold_core::letters::is_order;
use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::failure::{Failure, shortened};

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
        let bytes = event.len();
        let event = on_one_line(&String::from_utf8_lossy(event));
        io::stderr().lock().write_all(event.as_bytes())?;
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// An event with spaces for the ends of lines and for other characters that a terminal obeys, and without its middle
/// when it is long: the journal would make a second entry of the rest. Its own end stays, and the beginnings
/// of colours, which the log quotes of nobody.
fn on_one_line(event: &str) -> String {
    let text = event.trim_end_matches('\n');
    let is_own = |c: char| c == '\t' || c == '\u{1b}';
    let letter = |c: char| if is_order(c) && !is_own(c) { ' ' } else { c };
    let line: String = shortened(text).chars().map(letter).collect();
    line + &event[text.len()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_is_no_line_of_its_own() {
        assert_eq!(
            on_one_line("WARN left out: a\nINFO all is well\r: no\n"),
            "WARN left out: a INFO all is well : no\n"
        );
        assert_eq!((on_one_line("\n"), on_one_line("")), ("\n".to_owned(), String::new()));
    }

    #[test]
    fn rule_07_no_name_is_so_long_that_the_journal_makes_an_entry_of_its_end() {
        // Systemd begins another entry after 48 KiB, and obeys `<2>` at its beginning.
        let name = format!("{}<2>onefold: all is well", "\u{fffd}".repeat(20_000));
        let line = on_one_line(&format!("\u{1b}[33m WARN\u{1b}[0m left out: {name}\u{202e}, no\n"));
        assert!(line.len() < 10 << 10, "{}", line.len());
        assert!(line.starts_with("\u{1b}[33m WARN\u{1b}[0m left out: \u{fffd}"), "{line}");
        assert!(line.ends_with("all is well , no\n") && line.contains('…'), "{line}");
    }
}
