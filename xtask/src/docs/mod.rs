//! The documents: their examples run as they stand, their links and anchors lead somewhere, each is
//! in the book's summary, and the reference says what the commands say of themselves.
//!
//! A fence marked `console` holds a session: each line that begins with `$ ` is typed, in order, in
//! one shell for each document, in an empty directory, with `onefold` and `onefold-lab` in the
//! search path.
//!
//! | module | what it has |
//! |---|---|
//! | [`pages`] | the documents as text, without code, with their links and anchors |
//! | [`rules`] | what must hold of all pages |
//! | [`sequence`] | Mermaid's sequence diagrams drawn as SVG |
//! | [`book`] | the mdBook |
//! | [`keys`] | the keys of `status --json` |

mod book;
mod keys;
mod pages;
mod rules;
mod sequence;

use std::{fs, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail, ensure};

use self::pages::Page;
use crate::{
    cleanup::Scratch,
    clients::check,
    machine,
    product::{Build, Onefold},
    program::{program, run as run_program},
    test::Tally,
};

/// Pages that the commands write of themselves, `onefold` the first and the last.
const REFERENCE: [&str; 3] =
    ["docs/reference/onefold.md", "docs/reference/onefold-lab.md", "docs/reference/metrics.md"];

/// The verb: writes the reference and holds all pages to the rules, or builds the book with
/// `--book`.
pub(crate) fn command(arguments: &[String]) -> Result<bool> {
    match arguments {
        [] => {
            for (file, text) in reference(&commands()?)? {
                fs::write(machine::root().join(file), text).context(file)?;
                println!("{file} is written");
            }
            let (mut tally, pages) = (Tally::default(), pages::all()?);
            rules::ALL.iter().for_each(|(name, rule)| check(&mut tally, name, || rule(&pages)));
            check(&mut tally, "the reference tells of all keys of status", || {
                keys::compare(&Onefold::build(Build::Test)?, &pages)
            });
            Ok(tally.failed == 0)
        }
        [word] if word == "--book" => book::build(&pages::all()?).map(|_| true),
        _ => bail!("docs takes --book or nothing"),
    }
}

/// The step: mdBook makes the book, and all its links lead somewhere.
pub(crate) fn make_book() -> Result<Tally> {
    let made = book::build(&pages::all()?)?;
    Ok(Tally { passed: made, failed: 0, note: "pages in target/book/html".into() })
}

/// The step of the tests: runs all sessions, and holds all pages to the rules.
pub(crate) fn run() -> Result<Tally> {
    let mut tally = Tally::default();
    let commands = commands()?;
    let pages = pages::all()?;
    for page in pages.iter().filter(|page| has_session(page)) {
        check(&mut tally, &format!("the examples of {}", page.path.display()), || {
            session(&commands, page)
        });
    }
    for (name, rule) in rules::ALL {
        check(&mut tally, name, || rule(&pages));
    }
    check(&mut tally, "the reference is what the commands say", || {
        for (file, text) in reference(&commands)? {
            let written = fs::read_to_string(machine::root().join(file)).unwrap_or_default();
            ensure!(written == text, "{file} is out of date; cargo xtask docs writes it");
        }
        Ok(())
    });
    check(&mut tally, "the reference tells of all keys of status", || {
        keys::compare(&commands[0], &pages)
    });
    Ok(tally)
}

/// The two commands, `onefold` first.
fn commands() -> Result<[Onefold; 2]> {
    Ok([Onefold::build(Build::Test)?, Onefold::laboratory(Build::Test)?])
}

/// Each page of the reference, with the text that it should have.
fn reference(commands: &[Onefold; 2]) -> Result<Vec<(&'static str, String)>> {
    let [onefold, laboratory] = commands;
    let texts = [
        onefold.verb(["man", "--markdown"])?,
        laboratory.verb(["man", "--markdown"])?,
        onefold.verb(["metrics"])?,
    ];
    Ok(REFERENCE.into_iter().zip(texts).collect())
}

/// Every page of the README and of `docs` with a session is run. CONTRIBUTING.md has some too, of
/// the workshop itself.
fn has_session(page: &Page) -> bool {
    let ours = page.path.starts_with("docs") || page.path.ends_with("README.md");
    ours && !typed(&page.text).is_empty()
}

/// Types the session of a document, with these commands in the search path.
fn session(commands: &[Onefold], page: &Page) -> Result<()> {
    let lines = typed(&page.text);
    let scratch = Scratch::new("docs")?;
    // A program in the background begins before the next line needs it.
    let script = lines.iter().fold("set -euo pipefail\nset -m\n".to_owned(), |script, line| {
        let wait = if line.ends_with('&') { "sleep 1; kill -0 %1\n" } else { "" };
        format!("{script}{line}\n{wait}")
    });
    let script = format!("{script}if kill -TERM %1 2>/dev/null; then wait; fi\n");
    let mut command = program("bash");
    let path = std::env::var("PATH").unwrap_or_default();
    let places = commands.iter().filter_map(|command| command.binary().parent());
    let places: Vec<String> = places.map(|place| place.display().to_string()).collect();
    command
        .args(["-c", &script])
        .current_dir(scratch.path())
        .env("PATH", format!("{}:{path}", places.join(":")))
        .stdin(Stdio::null());
    command.env("RUNTIME_DIRECTORY", scratch.file("run"));
    run_program(command, Duration::from_secs(120)).map(|_| ())
}

/// The lines that are typed in the sessions of a document.
fn typed(text: &str) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_what_is_typed_in_console_fences() {
        let text = "```text\n$ no\n```\n```console\n$ one\noutput\n$ two &\n```\n$ no\n";
        assert_eq!(typed(text), ["one", "two &"]);
    }
}
