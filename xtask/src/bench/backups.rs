//! Backups beside restic, rustic and borg, each with its defaults: a large directory of small files
//! first, unchanged, changed and grown; what is restored of it; a mount; and a repository of many
//! nights, of which most are forgotten.
//!
//! All tools back up the same directory and take turns in each step, so that what the machine does
//! beside meets all of them. The repositories, and what is restored elsewhere, lie in memory where
//! there is enough of it; the directory lies on the disk, below `target/`: on tmpfs, whose times
//! miss changes of mapped pages, Onefold reads each file again.
//! Restic and rustic encrypt and can do nothing else; borg and Onefold do not.

mod tool;
pub(super) mod tree;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use self::{
    tool::{ALL, Kind, Tool},
    tree::Tree,
};
use super::{
    cost::{self, Cost, Place, taken},
    machine_facts, median,
};
use crate::{
    cleanup::Scratch,
    product::{Build, Onefold},
    program::{program, run as run_program, spawn},
};

const USAGE: &str = "cargo xtask bench backups [--quick] [--files N] [--nights N]";

/// Longest that one command may take.
const LIMIT: Duration = Duration::from_secs(1800);

/// How much there is to do.
struct Size {
    rounds: usize,
    /// Files of the large directory, and their mean size in bytes.
    files: usize,
    bytes: usize,
    /// Nights of the repository that is forgotten, and files of its directory.
    nights: usize,
    night_files: usize,
    night_bytes: usize,
}

const FULL: Size = Size {
    rounds: 3,
    files: 100_000,
    bytes: 2048,
    nights: 100,
    night_files: 20_000,
    night_bytes: 20_000,
};
const QUICK: Size = Size {
    rounds: 1,
    files: 10_000,
    bytes: 2048,
    nights: 20,
    night_files: 1_000,
    night_bytes: 20_000,
};

/// The night after which a repository's size is judged, or the middle of fewer.
const THIRTY: usize = 30;

/// What a row shows.
#[derive(Clone, Copy)]
enum Unit {
    Seconds,
    Mib,
}

/// A row: what was done, how many times better than the best of the others ours must be (a quotient
/// of theirs over ours, or with `at_most` ours over theirs), and figures of each tool.
struct Row {
    what: &'static str,
    unit: Unit,
    bar: Option<f64>,
    figures: Vec<(Kind, Vec<f64>)>,
}

/// All rows, in order of their first figure.
#[derive(Default)]
struct Table(Vec<Row>);

impl Table {
    fn add(&mut self, what: &'static str, unit: Unit, bar: Option<f64>, kind: Kind, figure: f64) {
        let at = self.0.iter().position(|row| row.what == what).unwrap_or_else(|| {
            self.0.push(Row { what, unit, bar, figures: Vec::new() });
            self.0.len() - 1
        });
        let row = &mut self.0[at];
        match row.figures.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, figures)) => figures.push(figure),
            None => row.figures.push((kind, vec![figure])),
        }
    }

    fn time(&mut self, what: &'static str, bar: Option<f64>, kind: Kind, cost: Cost) {
        self.add(what, Unit::Seconds, bar, kind, cost.wall);
    }

    /// Prints it; false when a bar is missed.
    fn show(&self, tools: &[Tool]) -> bool {
        print!("{:<44}", "");
        tools.iter().for_each(|tool| print!("{:>10}", tool.kind.to_string()));
        println!("{:>12} {:>8}", "best/ours", "aim");
        let mut reached = true;
        for row in &self.0 {
            let of = |kind: Kind| {
                row.figures.iter().find(|(other, _)| *other == kind).map(|(_, all)| median(all))
            };
            print!("{:<44}", row.what);
            for tool in tools {
                match of(tool.kind) {
                    Some(figure) => print!("{:>10}", row.unit.show(figure)),
                    None => print!("{:>10}", "-"),
                }
            }
            let best = row
                .figures
                .iter()
                .filter(|(kind, _)| *kind != Kind::Onefold)
                .map(|(_, all)| median(all))
                .min_by(f64::total_cmp);
            let ratio = best.zip(of(Kind::Onefold)).map(|(best, ours)| best / ours);
            let missed = row.bar.zip(ratio).is_some_and(|(bar, ratio)| ratio < bar);
            println!(
                "{:>12} {:>8}{}",
                ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
                row.bar.map_or("-".into(), |bar| format!("{bar:.2}")),
                if missed { "  MISSED" } else { "" }
            );
            reached &= !missed;
        }
        reached
    }
}

impl Unit {
    fn show(self, figure: f64) -> String {
        match self {
            Unit::Seconds => format!("{figure:.2} s"),
            Unit::Mib => format!("{:.1} M", figure / f64::from(1 << 20)),
        }
    }
}

/// Runs it; `Ok(false)` when a full run misses a bar.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let mut size = if quick { QUICK } else { FULL };
    let mut rest = arguments.iter().filter(|argument| *argument != "--quick");
    while let Some(argument) = rest.next() {
        let mut number = || -> Result<usize> {
            rest.next()
                .and_then(|value| value.parse().ok())
                .filter(|value| *value >= 4)
                .with_context(|| format!("{argument} needs a number from 4 on"))
        };
        match argument.as_str() {
            "--files" => size.files = number()?,
            "--nights" => size.nights = number()?,
            _ => bail!("which?\n\n{USAGE}"),
        }
    }
    let onefold = Onefold::build(Build::Release)?;
    let place = Place::new(10 << 30)?;
    let source = Scratch::new("bench-backups")?;
    let trees = source.file("tree");
    println!("{}", machine_facts(source.path(), &["borg", "borg2", "rustic"]));
    let mut restic = program("restic");
    restic.arg("version");
    println!("{}", run_program(restic, LIMIT).unwrap_or("restic: not installed\n".into()).trim());
    let mut tools = Vec::new();
    for kind in ALL {
        if kind.is_here() {
            tools.push(Tool::new(kind, &onefold, &place.path));
        } else {
            println!("{kind}: NOT COMPARED: {}", kind.whence());
        }
    }
    println!(
        "\n{} files of {} bytes on average, rounds: {}; {} nights of {} files of {} bytes, of \
         which one in a hundred changes. Medians; figures of the clock unless said.\n",
        size.files, size.bytes, size.rounds, size.nights, size.night_files, size.night_bytes
    );
    let mut table = Table::default();
    for _ in 0..size.rounds {
        tools.rotate_left(1);
        files(&tools, &place.path, &trees, &size, &mut table)?;
    }
    tools.sort_by_key(|tool| ALL.iter().position(|kind| *kind == tool.kind));
    nights(&tools, &trees, &size, &mut table)?;
    Ok(table.show(&tools) || quick)
}

/// One round on the large directory.
fn files(tools: &[Tool], place: &Path, tree: &Path, size: &Size, table: &mut Table) -> Result<()> {
    let mut tree = Tree::new(tree.to_owned(), size.files, size.bytes)?;
    for tool in tools {
        cost::of(tool.create()?, LIMIT)?;
    }
    tree.settle();
    let mut night = 0;
    let mut backup = |tree: &Tree, what: &'static str, bar: f64, table: &mut Table| -> Result<()> {
        for tool in tools {
            // Some tools tell the kernel to forget what they have read.
            tree.warm()?;
            let spent = cost::of(tool.backup(&tree.path, night), LIMIT)?;
            table.time(what, Some(bar), tool.kind, spent);
        }
        night += 1;
        Ok(())
    };
    for tool in tools {
        tree.cool()?;
        let spent = cost::of(tool.backup(&tree.path, 0), LIMIT)?;
        table.time("first backup, files not in the cache", None, tool.kind, spent);
        cost::of(tool.create()?, LIMIT)?;
    }
    backup(&tree, "first backup", 3.0, table)?;
    backup(&tree, "unchanged", 3.0, table)?;
    tree.change()?;
    tree.settle();
    backup(&tree, "1 % of the files changed", 2.5, table)?;
    tree.add(size.files / 10)?;
    tree.settle();
    backup(&tree, "a tenth more files", 5.0, table)?;
    let newest = night - 1;
    for tool in tools {
        let to = place.join("restored");
        fs::create_dir(&to)?;
        let spent = cost::of(tool.restore(&tree.path, &to, newest), LIMIT)?;
        table.time("restore all", Some(3.0), tool.kind, spent);
        ensure!(count(&to)? == tree.files(), "{} did not restore all files", tool.kind);
        fs::remove_dir_all(&to)?;
        fs::create_dir(&to)?;
        let file = tree.file(tree.files() / 2);
        let spent = cost::of(tool.restore(&file, &to, newest), LIMIT)?;
        table.time("restore one file", Some(10.0), tool.kind, spent);
        ensure!(count(&to)? == 1, "{} did not restore one file", tool.kind);
        fs::remove_dir_all(&to)?;
    }
    for tool in tools {
        if let Some(spent) = mounted(tool, place, &tree, newest)? {
            table.time("mount and ls -lR", Some(5.0), tool.kind, spent);
            table.add("    its memory", Unit::Mib, None, tool.kind, spent.memory as f64);
        }
    }
    for tool in tools {
        let spent = cost::of(tool.check(), LIMIT)?;
        table.time("check without data", Some(3.0), tool.kind, spent);
        table.add("    its memory", Unit::Mib, Some(4.0), tool.kind, spent.memory as f64);
    }
    for tool in tools {
        tree.change()?;
        let spent = cost::of(tool.restore(&tree.path, Path::new("/"), newest), LIMIT)?;
        table.time("restore in place, 1 % of the files changed", Some(3.0), tool.kind, spent);
    }
    for tool in tools {
        fs::remove_dir_all(&tool.repository)?;
    }
    Ok(fs::remove_dir_all(&tree.path)?)
}

/// Mounts, lists everything with attributes, and unmounts; `None` when the tool can't.
fn mounted(tool: &Tool, place: &Path, tree: &Tree, night: usize) -> Result<Option<Cost>> {
    let on = place.join("mounted");
    fs::create_dir_all(&on)?;
    let Some(mut command) = tool.mount(&on, night) else { return Ok(None) };
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let begun = Instant::now();
    let mut running = spawn(&mut command)?;
    // Borg 2 names its directory after it has mounted.
    let shown = || tool.in_mount(&on, &tree.path);
    while !shown().exists() {
        if running.wait(Duration::ZERO)?.is_some() || begun.elapsed() > LIMIT {
            println!("{}: NOT COMPARED in a mount: it could not mount", tool.kind);
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut list = program("ls");
    list.args(["-lR"]).arg(shown());
    cost::of(list, LIMIT)?;
    let mut spent = Cost { wall: begun.elapsed().as_secs_f64(), ..Cost::default() };
    spent.look(running.id());
    let mut end = program("fusermount");
    end.arg("-u").arg(&on);
    run_program(end, LIMIT)?;
    running.wait(LIMIT)?;
    Ok(Some(spent))
}

/// Many nights, each a backup of a directory of which one file in a hundred changed; then most of
/// them are forgotten.
fn nights(tools: &[Tool], tree: &Path, size: &Size, table: &mut Table) -> Result<()> {
    let mut tree = Tree::new(tree.to_owned(), size.night_files, size.night_bytes)?;
    for tool in tools {
        cost::of(tool.create()?, LIMIT)?;
    }
    let judged = THIRTY.min(size.nights / 2);
    for night in 0..size.nights {
        // After the judged night comes one without a change.
        if night != judged {
            tree.change()?;
        }
        if night + 1 == judged || night == judged {
            tree.settle();
        }
        for tool in tools {
            let before = taken(&tool.repository)? as f64;
            cost::of(tool.backup(&tree.path, night), LIMIT)?;
            let after = taken(&tool.repository)? as f64;
            if night + 1 == judged {
                let what = "repository after 30 nights";
                table.add(what, Unit::Mib, Some(1.0 / 0.9), tool.kind, after);
            }
            if night == judged {
                let what = "    growth in a night without changes";
                table.add(what, Unit::Mib, None, tool.kind, after - before);
            }
        }
    }
    let kept = (size.nights / 10).max(1);
    for tool in tools {
        let mut all = Cost::default();
        for command in tool.forget(size.nights - kept, kept) {
            let spent = cost::of(command, LIMIT)?;
            all.wall += spent.wall;
            all.cpu += spent.cpu;
            all.memory = all.memory.max(spent.memory);
            all.written += spent.written;
        }
        table.time("forget nine nights in ten, space given back", Some(3.0), tool.kind, all);
        table.add("    its peak of memory", Unit::Mib, Some(4.0), tool.kind, all.memory as f64);
        table.add("    bytes written by it", Unit::Mib, Some(2.0), tool.kind, all.written as f64);
        let left = taken(&tool.repository)? as f64;
        table.add("    repository afterwards", Unit::Mib, None, tool.kind, left);
    }
    for tool in tools {
        fs::remove_dir_all(&tool.repository)?;
    }
    Ok(fs::remove_dir_all(&tree.path)?)
}

/// Files below a directory.
fn count(directory: &Path) -> Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() { count(&entry.path())? } else { 1 };
    }
    Ok(files)
}
