//! The examples of the documents, run as they stand, and the links between them.
//!
//! A fence marked `console` holds a session: each line that begins with `$ ` is typed, in order, in
//! one shell for each document, in an empty directory, with `onefold` and `onefold-lab` in the search path.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    cleanup::Scratch,
    clients::check,
    machine,
    product::{Build, Onefold},
    program::{program, run as run_program},
    test::Tally,
};

/// Documents with sessions.
const SESSIONS: [&str; 6] = [
    "README.md",
    "docs/tutorial/block.md",
    "docs/tutorial/archive.md",
    "docs/tutorial/cluster.md",
    "docs/operating.md",
    "docs/laboratory.md",
];

/// Runs all sessions and follows all links.
pub(crate) fn run() -> Result<Tally> {
    let mut tally = Tally::default();
    let onefold = Onefold::build(Build::Test)?;
    let laboratory = Onefold::laboratory(Build::Test)?;
    for document in SESSIONS {
        check(&mut tally, &format!("the examples of {document}"), || {
            session(&[&onefold, &laboratory], document)
        });
    }
    check(&mut tally, "links and offsets of all documents", || {
        documents()?.iter().try_for_each(|document| {
            let text = fs::read_to_string(document)?;
            links(document, &text)
                .and_then(|()| offsets(&text))
                .with_context(|| document.display().to_string())
        })
    });
    Ok(tally)
}

/// Types the session of a document, with these commands in the search path.
fn session(commands_of: &[&Onefold], document: &str) -> Result<()> {
    let text = fs::read_to_string(machine::root().join(document))?;
    let lines = commands(&text);
    ensure!(!lines.is_empty(), "no examples");
    let scratch = Scratch::new("docs")?;
    // What runs in the background begins before the next line needs it.
    let script = lines.iter().fold("set -euo pipefail\nset -m\n".to_owned(), |script, line| {
        let wait = if line.ends_with('&') { "sleep 1; kill -0 %1\n" } else { "" };
        format!("{script}{line}\n{wait}")
    });
    let script = format!("{script}if kill -TERM %1 2>/dev/null; then wait; fi\n");
    let mut command = program("bash");
    let path = std::env::var("PATH").unwrap_or_default();
    let places = commands_of.iter().filter_map(|command| command.binary().parent());
    let places: Vec<String> = places.map(|place| place.display().to_string()).collect();
    command
        .args(["-c", &script])
        .current_dir(scratch.path())
        .env("PATH", format!("{}:{path}", places.join(":")))
        .stdin(Stdio::null());
    command.env("RUNTIME_DIRECTORY", scratch.file("run"));
    run_program(command, Duration::from_secs(120)).map(|_| ())
}

/// What is typed in the sessions of a document.
fn commands(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line.trim_end() == "```console";
        } else if inside && let Some(typed) = line.strip_prefix("$ ") {
            lines.push(typed.trim().to_owned());
        }
    }
    lines
}

fn documents() -> Result<Vec<PathBuf>> {
    let root = machine::root();
    let mut found = Vec::new();
    for directory in
        [root.clone(), root.join("docs"), root.join("docs/decisions"), root.join("docs/tutorial")]
    {
        for entry in fs::read_dir(&directory)?.flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "md") {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Every link to a file leads to one.
fn links(document: &Path, text: &str) -> Result<()> {
    let directory = document.parent().unwrap_or(Path::new("."));
    for part in text.split("](").skip(1) {
        let Some((target, _)) = part.split_once(')') else { continue };
        let file = target.split('#').next().unwrap_or_default();
        if file.is_empty() || file.contains("://") {
            continue;
        }
        ensure!(directory.join(file).exists(), "the link to {target} leads nowhere");
    }
    Ok(())
}

/// In a table of bytes each row begins where the one before ended.
fn offsets(text: &str) -> Result<()> {
    let mut next: Option<u64> = None;
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells.first() == Some(&"offset") {
            next = Some(0);
            continue;
        }
        let (Some(expected), Some(&offset)) = (next, cells.first()) else { continue };
        if !line.starts_with('|') {
            next = None;
        } else if let Ok(offset) = offset.parse::<u64>() {
            ensure!(
                offset == expected,
                "a row begins at {offset}, but the one before ends at {expected}: {line}"
            );
            // A row whose length is not a number ends what can be added up.
            next = cells
                .get(1)
                .and_then(|bytes| bytes.parse::<u64>().ok())
                .map(|bytes| offset + bytes);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_what_is_typed_in_console_fences() {
        let text = "```text\n$ no\n```\n```console\n$ one\noutput\n$ two &\n```\n$ no\n";
        assert_eq!(commands(text), ["one", "two &"]);
    }

    #[test]
    fn byte_tables_must_have_no_gaps() {
        let table = |second: u64| {
            format!(
                "| offset | bytes | field |\n|---|---|---|\n| 0 | 4 | a |\n| {second} | 4 | b |\n\n| 9 | 1 |\n"
            )
        };
        assert!(offsets(&table(4)).is_ok());
        assert!(offsets(&table(5)).is_err());
    }
}
