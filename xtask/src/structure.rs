//! `cargo xtask structure`: counts what makes the code hard to read, from its syntax: circles of
//! files, questions about the scheme, methods of a type and their files, retry loops, public
//! modules, and files that a flush passes, by the table of [`FLUSH_TABLE`]. The figures of
//! [`LIMITS`] may not grow.
//!
//! An import is a path in code, outside tests, that leads into another file of the same crate; a
//! re-export counts as the file that it leads to, and `pub use` itself is no import: it gives
//! names, and needs nothing.

mod files;
mod graph;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};

use self::files::{Crate, Method};
use crate::{machine, test::Tally};

/// Crates of the product.
const CRATES: [&str; 13] = [
    "core", "seal", "stream", "block", "archive", "cluster", "backend", "bucket", "serve", "mount",
    "console", "onefold", "cli",
];

/// Longest line of code.
const WIDTH: usize = 100;

/// A type with so many methods has many.
const MANY: usize = 30;

/// Figures that may not grow, and how much there is of each.
const LIMITS: [(&str, usize); 8] = [
    ("circles of files", 0),
    ("files in circles", 0),
    ("questions about the scheme", 0),
    ("methods of the type that has most", 40),
    ("files with methods of a type that has many", 5),
    ("public modules of the archive engine", 0),
    ("retry loops of the cluster engine", 1),
    ("files that a flushed write passes from socket to disk", 14),
];

/// The page, and the heading in it, with the table of the files that a flushed write passes.
const FLUSH_TABLE: (&str, &str) = ("docs/how-it-works.md", "### The flush, file by file");

/// One figure: its name and how much there is.
type Figure = (&'static str, usize);

/// Prints all figures, with what they are made of.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let (crates, flush) = read()?;
    for (name, count) in figures(&crates, &flush) {
        println!("{count:>6}  {name}");
    }
    if arguments.iter().any(|argument| argument == "--all") {
        crates.iter().for_each(tell);
        println!("\na flushed write passes");
        flush.iter().for_each(|file| println!("  {file}"));
    }
    Ok(risen(&crates, &flush).is_empty())
}

/// The step of the tests: nothing has risen.
pub(crate) fn step() -> Result<Tally> {
    let (crates, flush) = read()?;
    let risen = risen(&crates, &flush);
    risen.iter().for_each(|(name, count, limit)| {
        println!("{name}: {count}, and {limit} before; cargo xtask structure --all shows them")
    });
    Ok(Tally { passed: LIMITS.len() - risen.len(), failed: risen.len(), note: String::new() })
}

/// The crates, and the files that a flushed write passes.
fn read() -> Result<(Vec<Crate>, BTreeSet<String>)> {
    let crates: Result<Vec<Crate>> = CRATES
        .iter()
        .map(|name| Crate::read(name, &machine::root().join("crates").join(name).join("src")))
        .collect();
    let (page, heading) = FLUSH_TABLE;
    let text = fs::read_to_string(machine::root().join(page)).context(page)?;
    let flush = files_in_table(&text, heading);
    ensure!(!flush.is_empty(), "{page} has no table of files below «{heading}»");
    Ok((crates?, flush))
}

/// The source files that the first table below a heading links to.
fn files_in_table(text: &str, heading: &str) -> BTreeSet<String> {
    let below = text.lines().skip_while(|line| *line != heading);
    let rows =
        below.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| row.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.trim_start_matches("../").to_owned())
        .filter(|target| target.ends_with(".rs"))
        .collect()
}

fn risen(crates: &[Crate], flush: &BTreeSet<String>) -> Vec<(&'static str, usize, usize)> {
    let figures = figures(crates, flush);
    let now = |name: &str| {
        figures.iter().find(|figure| figure.0 == name).map_or(usize::MAX, |figure| figure.1)
    };
    LIMITS
        .iter()
        .map(|(name, limit)| (*name, now(name), *limit))
        .filter(|(_, now, limit)| now > limit)
        .collect()
}

fn figures(crates: &[Crate], flush: &BTreeSet<String>) -> Vec<Figure> {
    let of = |name: &'static str| crates.iter().filter(move |one| one.name == name);
    let types = types(crates);
    let methods = types.values().map(Vec::len).max().unwrap_or(0);
    let many = types.values().filter(|methods| methods.len() >= MANY);
    let spread = many.map(|methods| files_of(methods)).max().unwrap_or(0);
    vec![
        ("circles of files", crates.iter().map(|one| graph::circles(one).len()).sum()),
        (
            "files in circles",
            crates.iter().flat_map(graph::circles).map(|circle| circle.len()).sum(),
        ),
        ("questions about the scheme", of("block").map(|block| questions(block).len()).sum()),
        ("methods of the type that has most", methods),
        ("files with methods of a type that has many", spread),
        (
            "retry loops of the cluster engine",
            of("cluster").map(|cluster| cluster.lines(is_retry, |_| true).len()).sum(),
        ),
        (
            "public modules of the archive engine",
            of("archive").map(|archive| archive.public_modules).sum(),
        ),
        ("files that a flushed write passes from socket to disk", flush.len()),
        ("fields that a whole crate may write", crates.iter().map(|one| one.open_fields).sum()),
        (
            "lines of code beyond 100 columns",
            crates
                .iter()
                .map(|one| one.lines(|line| line.chars().count() > WIDTH, |_| true).len())
                .sum(),
        ),
        ("examples in documentation", crates.iter().map(|one| one.examples).sum()),
    ]
}

/// Lines of the block engine outside the schemes' folder that ask which scheme runs.
fn questions(block: &Crate) -> Vec<String> {
    let asks = |line: &str| {
        let asks = ["Records::", "SchemeName::", "in_place()", "ordermerge::"]
            .iter()
            .any(|word| line.contains(word));
        asks && !line.trim_start().starts_with("//")
    };
    block.lines(asks, |file| !file.starts_with("scheme"))
}

fn is_retry(line: &str) -> bool {
    line.trim_start().starts_with("for ") && line.contains(".tries")
}

/// The methods of each type, by crate and type.
fn types(crates: &[Crate]) -> BTreeMap<(String, String), Vec<&Method>> {
    let mut types: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for one in crates {
        for method in &one.methods {
            types.entry((one.name.clone(), method.of.clone())).or_default().push(method);
        }
    }
    types
}

fn files_of(methods: &[&Method]) -> usize {
    let mut files: Vec<&Path> = methods.iter().map(|method| method.file.as_path()).collect();
    files.sort_unstable();
    files.dedup();
    files.len()
}

/// Tells what the figures of a crate are made of.
fn tell(one: &Crate) {
    println!("\n{}", one.name);
    let imports = graph::imports(one);
    for circle in graph::circles(one) {
        println!("  circle of {}:", circle.len());
        for file in &circle {
            let inside = imports.get(file).into_iter().flatten().filter(|to| circle.contains(to));
            println!(
                "    {} imports {}",
                file.display(),
                inside.map(|to| to.display().to_string()).collect::<Vec<_>>().join(", ")
            );
        }
    }
    if one.name == "block" {
        questions(one).iter().for_each(|line| println!("  asks for the scheme: {line}"));
    }
    let types = types(std::slice::from_ref(one));
    let mut types: Vec<_> =
        types.iter().map(|((_, name), methods)| (methods.len(), files_of(methods), name)).collect();
    types.sort_unstable_by(|a, b| b.cmp(a));
    types.iter().take(5).for_each(|(methods, files, name)| {
        println!("  {name}: {methods} methods in {files} files")
    });
}
