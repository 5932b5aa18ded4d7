//! `cargo xtask test`: everything that CI runs, as steps with a summary.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{
    ceph, clients,
    demo::{self, Tools},
    docs, fuzz, guests, licences, machine, package, packages, pages, paper,
    product::{Build, TESTED},
    program::{cargo, run as run_program, show},
    s3, sim, structure, tests, threads,
};

/// Longest that any one step may take.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The findings of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Checks that passed.
    pub(crate) passed: usize,
    /// Checks that failed.
    pub(crate) failed: usize,
    /// A few words for the summary.
    pub(crate) note: String,
}

impl Tally {
    /// One check that passed.
    pub(crate) fn pass(note: impl Into<String>) -> Tally {
        Tally { passed: 1, failed: 0, note: note.into() }
    }

    /// One check that failed.
    pub(crate) fn fail(note: impl Into<String>) -> Tally {
        Tally { passed: 0, failed: 1, note: note.into() }
    }
}

/// A step: its name, what it is for, and how it is done.
struct Step {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<Tally>,
}

const STEPS: [Step; 33] = [
    Step { name: "format", about: "cargo fmt --check; lock files are whole", run: format },
    Step { name: "clippy", about: "clippy, warnings as errors", run: clippy },
    Step { name: "features", about: "no planted bug can be in the product", run: features },
    Step {
        name: "structure",
        about: "what makes the code hard to read has not become more",
        run: structure::step,
    },
    Step {
        name: "licences",
        about: "licences of all dependencies",
        run: || licences::check().map(Tally::pass),
    },
    Step {
        name: "packages",
        about: "the clients are installed",
        run: || packages::ensure().map(Tally::pass),
    },
    Step { name: "unit", about: "unit and integration tests of the product", run: unit },
    Step {
        name: "hostile",
        about: "what an attacker must not be able to do, rule by rule",
        run: hostile,
    },
    Step {
        name: "threads",
        about: "the store's and the server's threads under a scheduler that looks for races",
        run: || tests::counted(threads::command()),
    },
    Step { name: "device", about: "a loop device as a store's disk; root only", run: device },
    Step { name: "sim", about: "kept seeds, 2,000 seeds, the exhaustive case", run: simulation },
    Step { name: "bugs", about: "each planted bug is found", run: block_bugs },
    Step {
        name: "archive-sim",
        about: "the archive engine: kept seeds, 1,000 seeds",
        run: archive_simulation,
    },
    Step {
        name: "archive-bugs",
        about: "each bug planted in the archive engine is found",
        run: || bugs(&["archive", "--bugs"]),
    },
    Step {
        name: "cluster-sim",
        about: "the cluster engine: kept seeds, 1,000 seeds",
        run: cluster_simulation,
    },
    Step {
        name: "cluster-bugs",
        about: "each bug planted in the cluster engine is found",
        run: || bugs(&["cluster", "--bugs"]),
    },
    Step {
        name: "bucket-sim",
        about: "archives' files in object stores: kept seeds, 1,000 seeds",
        run: || simulate(Tally::default(), &["bucket"]),
    },
    Step {
        name: "bucket-bugs",
        about: "each bug planted in them is found",
        run: || bugs(&["bucket", "--bugs"]),
    },
    Step {
        name: "copies-sim",
        about: "snapshots copied between two archives: kept seeds, 1,000 seeds",
        run: || simulate(Tally::default(), &["copies"]),
    },
    Step {
        name: "copies-bugs",
        about: "each bug planted in copies is found",
        run: || bugs(&["copies", "--bugs"]),
    },
    Step { name: "s3", about: "archives in a bucket behind the protocol of S3", run: s3::step },
    Step {
        name: "ceph",
        about: "the object store and the cluster engine on a real Ceph cluster",
        run: ceph::step,
    },
    Step { name: "papers", about: "the short form of the papers' experiments", run: paper::short },
    Step {
        name: "pages",
        about: "their pages and that of a served store in a browser: all readable, with legends and units",
        run: pages::run,
    },
    Step { name: "fuzz", about: "every fuzz target for a short time", run: fuzz::smoke },
    Step {
        name: "demo",
        about: "the demonstration of the README",
        run: || demo::show(Build::Test, Tools::Installed).map(|()| Tally::pass("")),
    },
    Step {
        name: "bare",
        about: "the same without mke2fs, nbdcopy and qemu-img",
        run: || demo::show(Build::Test, Tools::None).map(|()| Tally::pass("")),
    },
    Step {
        name: "docs",
        about: "the examples, links, anchors and diagrams of the documents, and the reference",
        run: docs::run,
    },
    Step {
        name: "book",
        about: "mdBook makes the book; all its links lead somewhere",
        run: docs::make_book,
    },
    Step {
        name: "clients",
        about: "libnbd, qemu and fio on UNIX and TCP sockets, and on a served archive",
        run: clients::tools,
    },
    Step {
        name: "package",
        about: "the Debian package: installed, used and removed in a bare Debian 12; root only",
        run: package::step,
    },
    Step {
        name: "files",
        about: "ext4 and XFS over nbdfuse and a loop device, and iSCSI; server killed",
        run: clients::file_systems,
    },
    Step {
        name: "guests",
        about: "virtual machines and PostgreSQL on volumes, snapshots and clones, server killed; root only",
        run: guests::step,
    },
];

/// Runs the steps named, or all.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    if arguments.iter().any(|argument| argument == "--list") {
        STEPS.iter().for_each(|step| println!("{:<12} {}", step.name, step.about));
        return Ok(true);
    }
    if let Some(unknown) =
        arguments.iter().find(|name| STEPS.iter().all(|step| step.name != **name))
    {
        bail!("there is no step '{unknown}'; `cargo xtask test --list` shows them");
    }
    let begun = Instant::now();
    let mut results = Vec::new();
    let wanted =
        |step: &&Step| arguments.is_empty() || arguments.iter().any(|name| name == step.name);
    for step in STEPS.iter().filter(wanted) {
        println!("==> {}: {}", step.name, step.about);
        let (started, worked) = (Instant::now(), machine::worked());
        let tally = (step.run)().unwrap_or_else(|error| {
            println!("{error:#}");
            Tally::fail(format!("{error:#}").lines().next().unwrap_or_default().to_owned())
        });
        results.push((step, tally, started.elapsed(), machine::worked().saturating_sub(worked)));
    }
    let (passed, failed) = results.iter().fold((0, 0), |(passed, failed), (_, tally, ..)| {
        (passed + tally.passed, failed + tally.failed)
    });
    println!(
        "\n{:<12} {:>6} {:>7} {:>7} {:>9}",
        "step", "passed", "failed", "seconds", "processor"
    );
    for (step, tally, took, worked) in &results {
        println!(
            "{:<12} {:>6} {:>7} {:>7.1} {:>9.1}  {}",
            step.name,
            tally.passed,
            tally.failed,
            took.as_secs_f64(),
            worked.as_secs_f64(),
            tally.note
        );
    }
    println!("{:<12} {:>6} {:>7} {:>7.1}\n", "all", passed, failed, begun.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

fn format() -> Result<Tally> {
    run_program(cargo(["fmt", "--all", "--check"]), LIMIT)?;
    // Crates outside of the workspace have lock files of their own.
    for folder in [".", "threads", "fuzz"] {
        let mut command = cargo(["metadata", "--format-version", "1", "--locked", "--quiet"]);
        command.current_dir(machine::root().join(folder));
        run_program(command, LIMIT).with_context(|| format!("Cargo.lock of {folder}"))?;
    }
    Ok(Tally::pass(""))
}

fn clippy() -> Result<Tally> {
    // With the simulator, and so with planted bugs in the engines: without them they are compiled by all
    // other steps.
    let all = [
        "clippy",
        "--quiet",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ];
    run_program(cargo(all), LIMIT)?;
    Ok(Tally::pass(""))
}

/// The engine knows planted bugs only under a feature that nothing in the product asks for, and the
/// product imports no crate of the workshop.
fn features() -> Result<Tally> {
    let tree = run_program(
        cargo([&["tree", "--quiet", "--edges", "features"], &TESTED[..]].concat()),
        LIMIT,
    )?;
    if let Some(line) = tree.lines().find(|line| line.contains("planted-bugs")) {
        bail!("the product would be built with planted bugs: {}", line.trim());
    }
    let product = ["tree", "--quiet", "--package", "onefold-cli", "--edges", "normal,build"];
    let tree = run_program(cargo(product), LIMIT)?;
    let workshop = ["onefold-testbed", "onefold-lab", "onefold-sim"];
    if let Some(line) = tree.lines().find(|line| workshop.iter().any(|name| line.contains(name))) {
        bail!("the product would be built with the workshop: {}", line.trim());
    }
    let tree = run_program(cargo([&product[..], &["--no-default-features"]].concat()), LIMIT)?;
    if let Some(line) =
        tree.lines().find(|line| ["object_store", "reqwest"].iter().any(|name| line.contains(name)))
    {
        bail!("without the feature s3 the product would be built with {}", line.trim());
    }
    Ok(Tally::pass(""))
}

/// The tests of the product; the examples in its documentation are a run of cargo's own.
fn unit() -> Result<Tally> {
    let mut tally = tests::side_by_side(&TESTED, &["--skip", "rule_"])?;
    let examples = tests::counted(tests::testing(&[&TESTED[..], &["--doc"]].concat()))?;
    tally.passed += examples.passed;
    tally.failed += examples.failed;
    Ok(tally)
}

/// The tests of the rules of SECURITY.md, which have a rule's number in their names. Some need
/// root: a second user, a mount namespace, a loop device.
fn hostile() -> Result<Tally> {
    // Most of these tests wait: for claims, leases and limits of time.
    let threads = (2 * machine::cores()).to_string();
    let mut arguments = vec!["rule_", "--test-threads", &threads];
    if machine::is_root() {
        arguments.push("--include-ignored");
    } else {
        println!("NOT TESTED: rules about other users need root (sudo cargo xtask test hostile)");
    }
    tests::side_by_side(&TESTED, &arguments)
}

/// The tests that need root, and are ignored without being asked for.
fn device() -> Result<Tally> {
    if !machine::is_root() {
        println!(
            "NOT TESTED: a block device as a store's disk needs root (sudo cargo xtask test device)"
        );
        return Ok(Tally { note: "not tested: needs root".into(), ..Tally::default() });
    }
    let disk = ["--test", "file_disk", "--", "--ignored"];
    tests::counted(tests::testing(&[&TESTED[..], &disk].concat()))
}

fn simulation() -> Result<Tally> {
    let named = sim::tests()?;
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let tally = simulate(tests::side_by_side(&named, &[])?, &[])?;
    simulate(tally, &["--scheduled", "--seeds", "0..500"])
}

fn archive_simulation() -> Result<Tally> {
    simulate(Tally::default(), &["archive"])
}

fn cluster_simulation() -> Result<Tally> {
    simulate(Tally::default(), &["cluster"])
}

fn simulate(mut tally: Tally, arguments: &[&str]) -> Result<Tally> {
    let ended = show(sim::command(arguments)?, LIMIT)?;
    let summary = ended.output.lines().find(|line| line.contains(" failed, ")).unwrap_or_default();
    tally.note = summary.to_owned();
    if ended.status.success() {
        tally.passed += 1;
    } else {
        tally.failed += 1;
    }
    Ok(tally)
}

/// Each bug in stores of all schemes, and in stores of each alone that keeps the rule which it
/// breaks.
fn block_bugs() -> Result<Tally> {
    let mut all = bugs(&["--bugs"])?;
    for scheme in ["thin", "ordered", "cow", "ordermerge"] {
        let one = bugs(&["--bugs", "--scheme", scheme])?;
        all.passed += one.passed;
        all.failed += one.failed;
        all.note += &format!("; {scheme}: {}", one.passed);
    }
    Ok(all)
}

fn bugs(arguments: &[&str]) -> Result<Tally> {
    let ended = show(sim::command(arguments)?, LIMIT)?;
    let missed = ended
        .output
        .lines()
        .filter(|line| line.contains("NOT FOUND") || line.contains("fails without the bug"))
        .count();
    let found =
        ended.output.lines().filter(|line| line.contains(" seed ")).count().saturating_sub(missed);
    if ended.status.success() && missed == 0 && found > 0 {
        return Ok(Tally { passed: found, failed: 0, note: format!("{found} planted bugs found") });
    }
    Ok(Tally {
        passed: found,
        failed: missed.max(1),
        note: format!("{found} planted bugs found, {missed} missed"),
    })
}
