//! Ceph's own deduplication (the manifests and tiers of its OSDs, by the command `rados`), on equal
//! objects of which each repeats itself: what it saves, and what one read makes of that.
//! `ceph-dedup-tool`, which would do it for a pool, is in none of the packages that a cluster of
//! Debian 12 needs, nor in `ceph-test`; others were not looked at.

use std::{fs, path::Path, thread, time::Duration};

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;
use crate::{
    clients::sample,
    machine,
    product::path,
    program::{program, run},
};

/// Bytes of an object.
const BYTES: usize = 4 << 20;

/// Objects.
const OBJECTS: usize = 4;

/// A pool's figures are a few seconds old.
const FIGURES: Duration = Duration::from_secs(8);

const LIMIT: Duration = Duration::from_secs(60);

/// Runs it, and says in a sentence what came out.
pub(super) fn deduplication(cluster: &Cluster, folder: &Path) -> Result<String> {
    let tool = if machine::find("ceph-dedup-tool").is_some() {
        "installed, not used here"
    } else {
        "not installed"
    };
    for pool in ["own", "own-chunks"] {
        cluster.replicated(pool, 2)?;
    }
    for (key, value) in [
        ("dedup_tier", "own-chunks"),
        ("fingerprint_algorithm", "sha1"),
        ("dedup_chunk_algorithm", "fastcdc"),
        ("dedup_cdc_chunk_size", "32768"),
    ] {
        cluster.ceph(&["osd", "pool", "set", "own", key, value])?;
    }
    let rados = |pool: &str, arguments: &[&str]| {
        let mut command = program("rados");
        command.args(["-c", path(&cluster.configuration()), "-p", pool]).args(arguments);
        run(command, LIMIT)
    };
    let file = folder.join("own");
    sample(&file, BYTES)?;
    for n in 0..OBJECTS {
        let (name, seed) = (format!("o{n}"), format!("seed{n}"));
        rados("own", &["put", &name, path(&file)])?;
        // An object has a manifest once one of its chunks was set by hand.
        rados("own-chunks", &["put", &seed, path(&file)])?;
        rados(
            "own",
            &[
                "set-chunk",
                &name,
                "0",
                "32768",
                "--target-pool",
                "own-chunks",
                &seed,
                "0",
                "--with-reference",
            ],
        )?;
        rados("own", &["tier-flush", &name])?;
        rados("own", &["tier-evict", &name])?;
        // Flushed, its chunks are others; without the reference it may be gone already.
        let _ = rados("own-chunks", &["rm", &seed]);
    }
    let evicted = stored(cluster)?;
    let mut wrong = 0;
    for n in 0..OBJECTS {
        let copy = folder.join("copy");
        rados("own", &["get", &format!("o{n}"), path(&copy)])?;
        wrong += usize::from(fs::read(&copy)? != fs::read(&file)?);
    }
    let read = stored(cluster)?;
    let all = (OBJECTS * BYTES) >> 20;
    Ok(format!(
        "Ceph's own deduplication: {all} MiB take {} MiB, and {} MiB after one read; {wrong} of \
         {OBJECTS} objects read back wrong; ceph-dedup-tool is {tool}",
        evicted >> 20,
        read >> 20
    ))
}

/// Bytes that are stored in both pools, before replication.
fn stored(cluster: &Cluster) -> Result<u64> {
    thread::sleep(FIGURES);
    let figures = cluster.ask(&["df"])?;
    let pools = figures["pools"].as_array().context("ceph df names no pools")?;
    let of = |name: &str| {
        pools
            .iter()
            .find(|pool| pool["name"] == name)
            .and_then(|pool| pool["stats"]["stored"].as_u64())
    };
    let found = [of("own"), of("own-chunks")];
    ensure!(found[0].is_some(), "ceph df does not name the pools");
    Ok(found.iter().flatten().sum())
}
