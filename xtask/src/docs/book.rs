//! The book: all documents as mdBook makes them, with links that lead somewhere when it is read.
//!
//! mdBook knows one folder of sources. So the pages are copied to `target/book/source`, those of
//! the repository's root among them; links between pages lead from copy to copy, links to code lead
//! into the repository, and diagrams are drawn.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{
    pages::{Page, SUMMARY},
    sequence,
};
use crate::{
    machine,
    product::path,
    program::{cargo, program, run as run_program},
};

/// The version of mdBook that the book's style is made for.
const VERSION: &str = "0.5.1";

/// Longest that installing mdBook may take, and making the book.
const INSTALL_LIMIT: Duration = Duration::from_secs(1200);
const BUILD_LIMIT: Duration = Duration::from_secs(120);

/// Folders between the repository's root and the made book.
const DEPTH: usize = 3;

/// Makes the book, and follows all links in it; gives the number of its pages.
pub(super) fn build(pages: &[Page]) -> Result<usize> {
    let mdbook = mdbook()?;
    let book = machine::root().join("target").join("book");
    let _ = fs::remove_dir_all(&book);
    copy(pages, &book.join("source"))?;
    let mut command = program(path(&mdbook));
    command.arg("build").current_dir(machine::root());
    run_program(command, BUILD_LIMIT)?;
    let html = book.join("html");
    let made = follow(&html)?;
    println!("{made} pages, all links lead somewhere: {}", html.join("index.html").display());
    Ok(made)
}

/// The program, which is installed below `target` when it is not there.
fn mdbook() -> Result<PathBuf> {
    if let Some(found) = machine::find("mdbook") {
        return Ok(found);
    }
    let tools = machine::root().join("target").join("tools");
    let mdbook = tools.join("bin").join("mdbook");
    if !mdbook.exists() {
        println!("installing mdbook {VERSION} into {}", tools.display());
        // Unoptimised: it is built in less time than it saves.
        let arguments = ["install", "--quiet", "--locked", "--debug", "--no-default-features"];
        let features =
            ["--features", "search", "--version", VERSION, "--root", path(&tools), "mdbook"];
        let mut command = cargo(arguments.into_iter().chain(features));
        command.current_dir(std::env::temp_dir()).env("CARGO_PROFILE_DEV_DEBUG", "0");
        run_program(command, INSTALL_LIMIT)?;
    }
    Ok(mdbook)
}

/// Where a page of the repository is in the book's source; nothing for what is not in the book.
fn place(file: &Path, listed: &BTreeSet<PathBuf>) -> Option<PathBuf> {
    if !listed.contains(file) && !file.starts_with("docs") {
        return None;
    }
    let inside = file.strip_prefix("docs").unwrap_or(file);
    // mdBook makes an index of a README by itself, but leaves the links to it as they were.
    match inside.file_name() {
        Some(name) if name == "README.md" => Some(inside.with_file_name("index.md")),
        _ => Some(inside.to_owned()),
    }
}

/// Copies the pages that the summary lists, and the pictures.
fn copy(pages: &[Page], source: &Path) -> Result<()> {
    let summary = pages.iter().find(|page| page.path.ends_with(SUMMARY)).context(SUMMARY)?;
    let mut listed: BTreeSet<PathBuf> = summary.links().into_iter().map(|link| link.file).collect();
    listed.insert(summary.path.clone());
    for page in pages {
        let Some(place) = place(&page.path, &listed) else { continue };
        write(&source.join(&place), copied(page, &place, &listed)?.as_bytes())?;
    }
    let pictures = machine::root().join("docs").join("pictures");
    for entry in fs::read_dir(&pictures)?.flatten() {
        write(&source.join("pictures").join(entry.file_name()), &fs::read(entry.path())?)?;
    }
    Ok(())
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
    fs::write(file, bytes).with_context(|| file.display().to_string())
}

/// The text of a page as it is in the book.
fn copied(page: &Page, place: &Path, listed: &BTreeSet<PathBuf>) -> Result<String> {
    let mut changes: BTreeMap<usize, (usize, String)> = BTreeMap::new();
    for link in page.links() {
        let anchor = link.anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
        let target = match self::place(&link.file, listed) {
            Some(target) => relative(place, &target),
            None => format!("{}{}", up(place, DEPTH), path(&link.file)),
        };
        changes.insert(link.at.start, (link.at.end, target + &anchor));
    }
    for (at, diagram) in page.fences("mermaid") {
        changes.insert(at.start, (at.end, sequence::draw(diagram)?));
    }
    let (mut text, mut done) = (String::new(), 0);
    for (start, (end, instead)) in changes {
        text += &page.text[done..start];
        text += &instead;
        done = end;
    }
    Ok(text + &page.text[done..])
}

/// The way from a page up to the book's folder, and `further` ones.
fn up(place: &Path, further: usize) -> String {
    "../".repeat(place.components().count() - 1 + further)
}

fn relative(from: &Path, to: &Path) -> String {
    format!("{}{}", up(from, 0), path(to))
}

/// Follows the links of all pages that were made; gives their number.
fn follow(html: &Path) -> Result<usize> {
    let mut folders = vec![html.to_owned()];
    let mut pages: BTreeMap<PathBuf, String> = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for file in fs::read_dir(&folder)?.flatten().map(|entry| entry.path()) {
            if file.is_dir() {
                folders.push(file);
            } else if file.extension().is_some_and(|extension| extension == "html") {
                pages.insert(file.clone(), fs::read_to_string(&file)?);
            }
        }
    }
    let mut wrong = Vec::new();
    for (file, text) in &pages {
        // All pages in one, whose links lead to the pages; and one that is shown at any address.
        if ["print.html", "404.html"].iter().any(|name| file.ends_with(name)) {
            continue;
        }
        ensure!(!text.contains("language-mermaid"), "{}: a diagram is not drawn", file.display());
        for target in attributes(text, "href").chain(attributes(text, "src")) {
            let (name, anchor) = target.split_once('#').unwrap_or((target, ""));
            if target.contains(':') || target.starts_with("//") {
                continue;
            }
            let folder = file.parent().unwrap_or(html);
            let leads = if name.is_empty() { file.clone() } else { folder.join(name) };
            let Ok(leads) = leads.canonicalize() else {
                wrong.push(format!("{}: {target} leads nowhere", file.display()));
                continue;
            };
            let id = format!("id=\"{anchor}\"");
            if !anchor.is_empty() && !pages.get(&leads).is_some_and(|text| text.contains(&id)) {
                wrong.push(format!("{}: {target} has no such heading", file.display()));
            }
        }
    }
    ensure!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    Ok(pages.len())
}

/// The values of an attribute.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let parts: Vec<&str> = html.split(&format!(" {name}=\"")).skip(1).collect();
    parts.into_iter().filter_map(|part| part.split_once('"').map(|(value, _)| value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_copy_to_copy_and_into_the_repository() {
        let listed = ["README.md", "SECURITY.md"].map(PathBuf::from).into();
        let page = Page::new(
            "docs/how-to/a.md",
            "[b](b.md#x) [c](../../SECURITY.md) [d](../../README.md#y) [e](../../xtask/src) \
             [f](#z) `[g](h)`\n",
        )
        .unwrap();
        let place = place(&page.path, &listed).unwrap();
        assert_eq!(
            copied(&page, &place, &listed).unwrap(),
            "[b](../how-to/b.md#x) [c](../SECURITY.md) [d](../index.md#y) \
             [e](../../../../xtask/src) [f](../how-to/a.md#z) `[g](h)`\n"
        );
    }

    #[test]
    fn diagrams_are_drawn() {
        let text = "a\n```mermaid\nsequenceDiagram\nparticipant A\nA->>A: b\n```\nc\n";
        let page = Page::new("docs/a.md", text).unwrap();
        let copied = copied(&page, Path::new("a.md"), &BTreeSet::new()).unwrap();
        assert!(copied.starts_with("a\n<div") && copied.ends_with("</div>\nc\n"));
    }
}
