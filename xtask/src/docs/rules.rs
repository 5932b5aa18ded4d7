//! Rules for all documents.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::{
    REFERENCE,
    pages::{Page, SUMMARY},
    sequence,
};
use crate::machine;

/// A rule over all pages.
type Rule = fn(&[Page]) -> Result<()>;

/// The rules, with their names.
pub(super) const ALL: [(&str, Rule); 5] = [
    ("every document is in the summary once", summary),
    ("every link and anchor leads somewhere", links),
    ("every diagram can be drawn", diagrams),
    ("every option that is shown is there", options),
    ("byte tables have no gaps", offsets),
];

/// Options that documents show of programs that are not ours.
const FOREIGN: [&str; 25] = [
    "--cacert",
    "--cache",
    "--cert",
    "--errorwhenfull",
    "--fail",
    "--filter",
    "--flush",
    "--id",
    "--image-opts",
    "--key",
    "--locked",
    "--max-time",
    "--merge",
    "--now",
    "--object",
    "--path",
    "--paths-from-stdin",
    "--signal",
    "--silent",
    "--template",
    "--thin",
    "--tls-psk",
    "--type",
    "--unix-socket",
    "--update",
];

fn summary(pages: &[Page]) -> Result<()> {
    let summary = pages.iter().find(|page| page.path.ends_with(SUMMARY)).context(SUMMARY)?;
    let mut listed = BTreeSet::new();
    for link in summary.links() {
        ensure!(listed.insert(link.file.clone()), "{} is listed twice", link.file.display());
    }
    let inside = |page: &&Page| page.path.starts_with("docs") && !page.path.ends_with(SUMMARY);
    for page in pages.iter().filter(inside) {
        ensure!(listed.contains(&page.path), "{} is not in {SUMMARY}", page.path.display());
    }
    Ok(())
}

fn links(pages: &[Page]) -> Result<()> {
    let anchors: BTreeMap<_, _> = pages.iter().map(|page| (&page.path, page.anchors())).collect();
    let mut wrong = Vec::new();
    for page in pages {
        for link in page.links() {
            let target = &page.text[link.at];
            if !machine::root().join(&link.file).exists() {
                wrong.push(format!("{}: {target} leads nowhere", page.path.display()));
            } else if let Some(anchor) = link.anchor
                && !anchors.get(&link.file).is_some_and(|anchors| anchors.contains(&anchor))
            {
                wrong.push(format!("{}: {target} has no such heading", page.path.display()));
            }
        }
    }
    ensure!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    Ok(())
}

fn diagrams(pages: &[Page]) -> Result<()> {
    for page in pages {
        for (_, source) in page.fences("mermaid") {
            sequence::draw(source).with_context(|| page.path.display().to_string())?;
        }
    }
    Ok(())
}

/// Pages that tell users what to type show no option that the commands do not have.
fn options(pages: &[Page]) -> Result<()> {
    let is_reference = |page: &Page| REFERENCE.iter().any(|file| page.path.ends_with(file));
    let known: BTreeSet<String> = pages
        .iter()
        .filter(|page| is_reference(page))
        .flat_map(|page| options_in(&page.code()))
        .chain(FOREIGN.iter().map(|&option| option.to_owned()))
        .chain(options_in(crate::USAGE))
        .collect();
    ensure!(known.contains("--json"), "the reference shows no options; cargo xtask docs writes it");
    let mut wrong = Vec::new();
    for page in pages {
        let ours = page.path.starts_with("docs/how-to")
            || page.path.starts_with("docs/tutorial")
            || page.path.ends_with("README.md");
        if !ours {
            continue;
        }
        for option in options_in(&page.code()) {
            if !known.contains(&option) {
                wrong.push(format!("{}: no command has {option}", page.path.display()));
            }
        }
    }
    ensure!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    Ok(())
}

fn options_in(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (start, _) in code.match_indices("--") {
        let before = code[..start].chars().next_back();
        let rest = &code[start + 2..];
        if before.is_some_and(|c| c.is_alphanumeric() || c == '-')
            || !rest.starts_with(|c: char| c.is_ascii_lowercase())
        {
            continue;
        }
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        found.insert(format!("--{}", rest[..end.unwrap_or(rest.len())].trim_end_matches('-')));
    }
    found
}

fn offsets(pages: &[Page]) -> Result<()> {
    pages.iter().try_for_each(|page| {
        offsets_of(&page.text).with_context(|| page.path.display().to_string())
    })
}

/// In a table of bytes each row begins where the one before ended.
fn offsets_of(text: &str) -> Result<()> {
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

    fn page(path: &str, text: &str) -> Page {
        Page::new(path, text).unwrap()
    }

    #[test]
    fn a_document_that_is_not_in_the_summary_is_found() {
        let mut pages = vec![page(SUMMARY, "[a](a.md)\n"), page("docs/a.md", "# A\n")];
        assert!(summary(&pages).is_ok());
        pages.push(page("docs/b.md", "# B\n"));
        assert!(summary(&pages).unwrap_err().to_string().contains("docs/b.md"));
        pages[0] = page(SUMMARY, "[a](a.md) [b](b.md) [a](a.md)\n");
        assert!(summary(&pages).unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn a_link_to_no_file_or_heading_is_found() {
        let good = page("README.md", "# One\n[a](#one) [b](docs/SUMMARY.md) [c](xtask)\n");
        assert!(links(&[good]).is_ok());
        for wrong in ["[a](#two)", "[a](no/such/file.md)", "[a](xtask/Cargo.toml#dependencies)"] {
            assert!(links(&[page("README.md", &format!("# One\n{wrong}\n"))]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_option_that_no_command_has_is_found() {
        let reference = page(REFERENCE[0], "`--json` `--size SIZE`\n");
        let chapter =
            |text: &str| [page(REFERENCE[0], &reference.text), page("docs/how-to/x.md", text)];
        assert!(options(&chapter("`x --size=1`, -- and `a--b`\n```text\nx --json\n```\n")).is_ok());
        assert!(options(&chapter("`x --sizes 1`\n")).is_err());
    }

    #[test]
    fn byte_tables_must_have_no_gaps() {
        let table = |second: u64| {
            format!(
                "| offset | bytes | field |\n|---|---|---|\n| 0 | 4 | a |\n| {second} | 4 | b \
                 |\n\n| 9 | 1 |\n"
            )
        };
        assert!(offsets_of(&table(4)).is_ok());
        assert!(offsets_of(&table(5)).is_err());
    }
}
