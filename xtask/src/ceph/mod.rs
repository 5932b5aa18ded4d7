//! `cargo xtask ceph`: a real Ceph cluster on this host, and what Onefold must do on it.

mod chaos;
mod cluster;
mod copies;
mod own;
mod proof;
mod release;
mod rights;

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail};

use self::cluster::Cluster;
use crate::{
    cleanup::{self, Scratch},
    machine,
    product::{TESTED, path},
    program::show,
    test::Tally,
    tests::testing,
};

/// OSDs of a cluster: an erasure-coded pool 4+2 needs six.
const OSDS: usize = 6;

/// Size of each.
const GIGABYTES: usize = 4;

/// Minutes of chaos.
const CHAOS_MINUTES: u64 = 60;

/// Longest that the tests of the object store may take.
const LIMIT: Duration = Duration::from_secs(900);

/// Where the cluster is that `start` leaves running.
fn folder() -> PathBuf {
    machine::root().join("target").join("ceph")
}

/// A cluster for the paper's experiments, with the pools that they write to.
pub(crate) struct ForPaper {
    cluster: Cluster,
    scratch: Scratch,
}

impl ForPaper {
    /// Starts it: three OSDs, two copies.
    pub(crate) fn start() -> Result<ForPaper> {
        println!("    {}", cluster::ensure_installed()?);
        let scratch = scratch()?;
        let cluster = Cluster::create(&scratch.file("c"), 3, 2 * GIGABYTES)?;
        for pool in ["paper-meta", "paper-chunks"] {
            cluster.replicated(pool, 2)?;
        }
        cluster.wait_clean()?;
        rights::daily(&cluster, &["paper-meta"], &["paper-chunks"])?;
        Ok(ForPaper { cluster, scratch })
    }

    /// The variable that makes clients those who have the rights that are needed, and no more.
    pub(crate) fn user() -> (&'static str, String) {
        rights::arguments(rights::DAILY)
    }

    /// Says what Ceph's own deduplication comes to.
    pub(crate) fn show_own_deduplication(&self) {
        let said = own::deduplication(&self.cluster, self.scratch.path());
        println!(
            "{}",
            said.unwrap_or_else(|error| format!("Ceph's own deduplication was not run: {error:#}"))
        );
    }

    /// The configuration for clients.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.cluster.configuration()
    }
}

/// A folder for a cluster. Programs that a killed run left running are stopped before its folder
/// goes.
fn scratch() -> Result<Scratch> {
    let ended = cleanup::end_left_behind();
    if ended > 0 {
        println!("    ended {ended} processes that a killed run left");
    }
    for folder in Scratch::left_behind("ceph") {
        if let Ok(cluster) = Cluster::at(&folder.join("c")) {
            println!("    stopping the cluster that a killed run left in {}", folder.display());
            cluster.stop()?;
        }
    }
    Scratch::new("ceph")
}

/// Does what the command line says.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["start"] => {
            println!("{}", cluster::ensure_installed()?);
            let cluster = Cluster::create(&folder(), OSDS, GIGABYTES)?;
            cluster.replicated("meta", 2)?;
            cluster.replicated("chunks", 2)?;
            cluster.wait_clean()?;
            rights::daily(&cluster, &["meta"], &["chunks"])?;
            let configuration = cluster.configuration();
            println!(
                "a cluster with {OSDS} OSDs is up, with pools meta and chunks; try\n    export \
                 CEPH_CONF={}",
                configuration.display()
            );
            println!(
                "    onefold create cluster rados: --metadata-pool meta --chunk-pool chunks --force"
            );
            println!(
                "that was client.admin; the user of every day is\n    export CEPH_ARGS=\"--id {}\"",
                rights::DAILY
            );
            cluster.keep();
            Ok(true)
        }
        ["stop"] => {
            Cluster::at(&folder())?.stop()?;
            println!("stopped, and removed {}", folder().display());
            Ok(true)
        }
        ["status"] => {
            let cluster = Cluster::at(&folder())?;
            println!("{}", cluster.ceph(&["-s"])?);
            for (name, process) in cluster.daemons() {
                println!(
                    "{name:<8} {}",
                    process.map_or_else(
                        || "does not run".into(),
                        |process| format!("process {process}")
                    )
                );
            }
            Ok(true)
        }
        ["test"] => report(proof::LONG),
        ["test", "--short"] => report(proof::SHORT),
        ["chaos"] => chaos::run(CHAOS_MINUTES, 1),
        ["chaos", "--minutes", minutes] => chaos::run(minutes.parse()?, 1),
        ["chaos", "--minutes", minutes, "--seed", seed] => {
            chaos::run(minutes.parse()?, seed.parse()?)
        }
        ["test", "--release", release] => release::test(release, "test"),
        ["test", "--short", "--release", release] => release::test(release, "test --short"),
        _ => bail!(
            "cargo xtask ceph start|stop|status|test [--short] [--release 18]|chaos [--minutes N [--seed N]]"
        ),
    }
}

fn report(extent: proof::Extent) -> Result<bool> {
    let tally = test(extent)?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(tally.failed == 0)
}

/// The step of the tests: the short form.
pub(crate) fn step() -> Result<Tally> {
    test(proof::SHORT)
}

/// The contract of object stores on every kind of pool, then the proof of the engine; on a cluster
/// of its own.
fn test(extent: proof::Extent) -> Result<Tally> {
    println!("    {}", cluster::ensure_installed()?);
    let scratch = scratch()?;
    let cluster = Cluster::create(&scratch.file("c"), OSDS, GIGABYTES)?;
    let (metadata, chunks) =
        (["meta", "meta-2", "meta-ec"], ["chunks-2", "chunks-ec21", "chunks-ec42"]);
    for pool in metadata.into_iter().chain(["chunks-2"]) {
        cluster.replicated(pool, 2)?;
    }
    cluster.erasure("chunks-ec21", 2, 1)?;
    cluster.erasure("chunks-ec42", 4, 2)?;
    cluster.wait_clean()?;
    rights::users(&cluster, &metadata, &chunks)?;
    let mut tally = contract(&cluster)?;
    let proof = proof::run(&cluster, &scratch, extent)?;
    tally.passed += proof.passed;
    tally.failed += proof.failed;
    Ok(tally)
}

fn contract(cluster: &Cluster) -> Result<Tally> {
    let ours = ["--test", "rados", "--", "--ignored", "--test-threads", "1"];
    let mut command = testing(&[&TESTED[..], &ours].concat());
    let (variable, user) = rights::arguments(rights::DAILY);
    command.env("ONEFOLD_TEST_CEPH", path(&cluster.configuration())).env(variable, user);
    let ended = show(command, LIMIT)?;
    Ok(if ended.status.success() {
        Tally::pass("")
    } else {
        Tally::fail("the contract of object stores on RADOS")
    })
}
