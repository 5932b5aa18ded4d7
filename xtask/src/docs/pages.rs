//! The documents as text: what is prose in them and what is code, where they link to, and which
//! anchors they have.

use std::{
    collections::BTreeSet,
    fs,
    ops::Range,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::machine;

/// The table of contents of the book.
pub(super) const SUMMARY: &str = "docs/SUMMARY.md";

/// A document.
pub(super) struct Page {
    /// Path from the root of the repository.
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// The text with all code blanked, byte for byte.
    prose: String,
}

/// A link of a page.
pub(super) struct Link {
    /// Bytes of the target in the text.
    pub(super) at: Range<usize>,
    /// The file that it leads to, from the root of the repository; of an anchor alone, the page.
    pub(super) file: PathBuf,
    /// The anchor, if it has one.
    pub(super) anchor: Option<String>,
}

impl Page {
    /// A page of this text, whose code ends where it should.
    pub(super) fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Result<Page> {
        let (path, text) = (path.into(), text.into());
        let prose = prose(&text).with_context(|| path.display().to_string())?;
        Ok(Page { path, text, prose })
    }

    /// Links to files and anchors; those to the network are left out.
    pub(super) fn links(&self) -> Vec<Link> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let mut links = Vec::new();
        for (start, _) in self.prose.match_indices("](") {
            let start = start + 2;
            let Some(length) = self.text[start..].find(')') else { continue };
            let target = &self.text[start..start + length];
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = match target.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor.to_owned())),
                None => (target, None),
            };
            let file = if file.is_empty() { self.path.clone() } else { plain(&folder.join(file)) };
            links.push(Link { at: start..start + length, file, anchor });
        }
        links
    }

    /// The anchors of its headings, as GitHub and mdBook make them.
    pub(super) fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        // Code in a heading is part of its anchor, so the text counts; where it is a heading is
        // seen in the prose.
        for (line, seen) in self.text.lines().zip(self.prose.lines()) {
            let title = seen.trim_start_matches('#');
            if title.len() == seen.len() || !title.starts_with(' ') {
                continue;
            }
            let base = anchor_of(line.trim_start_matches('#').trim());
            let mut anchor = base.clone();
            let mut copies = 0;
            while !anchors.insert(anchor.clone()) {
                copies += 1;
                anchor = format!("{base}-{copies}");
            }
        }
        anchors
    }

    /// The content of each fence of this kind, and the bytes of the whole fence.
    pub(super) fn fences(&self, kind: &str) -> Vec<(Range<usize>, &str)> {
        let mut found = Vec::new();
        let (mut at, mut open): (usize, Option<(usize, usize, bool)>) = (0, None);
        for line in self.text.split_inclusive('\n') {
            let end = at + line.len();
            if let Some(info) = line.trim().strip_prefix("```") {
                match open.take() {
                    None => open = Some((at, end, info == kind)),
                    Some((start, inside, true)) => {
                        found.push((start..end, &self.text[inside..at]));
                    }
                    Some(_) => {}
                }
            }
            at = end;
        }
        found
    }

    /// The code, in fences and in lines; everything else is blank.
    pub(super) fn code(&self) -> String {
        let bytes = self.text.bytes().zip(self.prose.bytes());
        let kept = bytes.map(|(text, prose)| if prose == BLANK { text } else { b' ' });
        String::from_utf8_lossy(&kept.collect::<Vec<u8>>()).into_owned()
    }
}

/// Stands for a byte of code.
const BLANK: u8 = 0;

/// The text with fences, and what is between backquotes, blanked.
fn prose(text: &str) -> Result<String> {
    let mut bytes = text.as_bytes().to_vec();
    let (mut at, mut fence) = (0, None);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let end = at + line.len();
        let marks = line.trim_start().starts_with("```");
        if marks {
            fence = if fence.is_some() { None } else { Some(number + 1) };
        }
        if marks || fence.is_some() {
            blank(&mut bytes[at..end]);
        }
        at = end;
    }
    ensure!(fence.is_none(), "the fence of line {} is not closed", fence.unwrap_or_default());
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'`') {
        let start = at + found;
        let marks = bytes[start..].iter().take_while(|byte| **byte == b'`').count();
        let inside = start + marks;
        let run = "`".repeat(marks);
        let rest = String::from_utf8_lossy(&bytes[inside..]).into_owned();
        let paragraph = rest.find("\n\n").unwrap_or(rest.len());
        let Some(length) = rest[..paragraph].find(&run) else {
            at = inside;
            continue;
        };
        let end = inside + length + marks;
        blank(&mut bytes[start..end]);
        at = end;
    }
    Ok(String::from_utf8(bytes)?)
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = BLANK);
}

/// All documents of the repository's root and of `docs`, in order of their paths.
pub(super) fn all() -> Result<Vec<Page>> {
    let root = machine::root();
    let mut paths: Vec<PathBuf> = markdown_in(&root)?;
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        paths.extend(markdown_in(&folder)?);
        let below = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
        folders.extend(below.filter(|path| path.is_dir()));
    }
    paths.sort();
    let page = |path: PathBuf| {
        let text = fs::read_to_string(&path)?;
        Page::new(path.strip_prefix(&root)?, text)
    };
    paths.into_iter().map(page).collect()
}

fn markdown_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect())
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if plain.file_name().is_some() => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// The anchor of a heading.
fn anchor_of(title: &str) -> String {
    // Of a link only the text counts.
    let mut text = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    let kept = text.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page::new("docs/how-to/page.md", text).unwrap()
    }

    #[test]
    fn links_in_code_are_none() {
        let page =
            page("[a](b.md#c) `[no](x.md)`\n```text\n[no](x.md)\n```\n[d](../e.md) [f](#g)\n");
        let links: Vec<_> = page.links();
        let told: Vec<(&str, Option<&str>)> = links
            .iter()
            .map(|link| (link.file.to_str().unwrap(), link.anchor.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                ("docs/how-to/b.md", Some("c")),
                ("docs/e.md", None),
                ("docs/how-to/page.md", Some("g"))
            ]
        );
        assert_eq!(&page.text[links[1].at.clone()], "../e.md");
        assert!(page.code().contains("[no](x.md)") && !page.code().contains("e.md"));
    }

    #[test]
    fn anchors_are_those_of_github() {
        let page =
            page("# One, two\n## `code --it` & [link](x)\n```\n# no\n```\n# One, two\n#no\n");
        let anchors: Vec<String> = page.anchors().into_iter().collect();
        assert_eq!(anchors, ["code---it--link", "one-two", "one-two-1"]);
    }

    #[test]
    fn a_fence_must_be_closed() {
        let error = Page::new("page.md", "text\n```mermaid\nsequenceDiagram\n").err().unwrap();
        assert!(format!("{error:#}").contains("line 2"));
    }

    #[test]
    fn fences_are_found_by_their_kind() {
        let page = page("```a\n1\n```\n```b\n2\n```\n");
        let found = page.fences("b");
        assert_eq!(found[0].1, "2\n");
        assert_eq!(&page.text[found[0].0.clone()], "```b\n2\n```\n");
    }
}
