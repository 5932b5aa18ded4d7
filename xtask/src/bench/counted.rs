//! Figures that are counted and not timed: three parts in process, by the bench of the engine's
//! crate, and the server's memory through NBD.

use anyhow::{Result, ensure};

use super::{
    fio::{self, Data, Length, Pattern},
    in_crate, machine_facts, needs_space,
};
use crate::{
    cleanup::Scratch,
    product::{Build, Onefold, path, uri},
};

/// The parts; all but the last are those of the bench.
const PARTS: [&str; 4] = ["writes", "memory", "open", "nbd"];

/// Free space that `open` and `nbd` need, one after the other, and for a first look.
const SPACE_BYTES: u64 = 34 << 30;
const SPACE_QUICK_BYTES: u64 = 4 << 30;

/// Memory that a process may take beside `--memory`.
const BESIDE_MIB: u64 = 64;

/// Runs the parts named, or all.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let named: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|&argument| argument != "--quick").collect();
    if let Some(other) = named.iter().find(|part| !PARTS.contains(part)) {
        anyhow::bail!("unknown argument '{other}'; the parts are {}", PARTS.join(", "));
    }
    let scratch = Scratch::new("bench-counted")?;
    needs_space(&scratch, if quick { SPACE_QUICK_BYTES } else { SPACE_BYTES })?;
    println!("{}", machine_facts(scratch.path(), &["fio"]));
    let file = scratch.file("counted");
    let mut reached = true;
    for part in PARTS.into_iter().filter(|part| named.is_empty() || named.contains(part)) {
        println!();
        reached &= if part == "nbd" {
            through_nbd(&scratch, quick)?
        } else {
            let quick = quick.then_some("--quick");
            in_crate(
                "onefold-block",
                "counted",
                &[part, "--file", path(&file)].into_iter().chain(quick).collect::<Vec<_>>(),
            )?
        };
    }
    Ok(reached)
}

/// The server's memory after unique blocks at random places.
fn through_nbd(scratch: &Scratch, quick: bool) -> Result<bool> {
    let (gib, memory) = if quick { (1, 32) } else { (16, 512) };
    let onefold = Onefold::build(Build::Release)?;
    let (store, socket) = (scratch.file("nbd.store"), scratch.file("nbd.sock"));
    onefold.create(
        &store,
        &format!("{}G", gib * 2),
        &["--preallocate", "none"],
        &[("random", format!("{gib}G"))],
    )?;
    let server = onefold.serve(
        &store,
        &[format!("unix:{}", socket.display())],
        &["--memory", &format!("{memory}M")],
    )?;
    let pattern = Pattern {
        rw: "randwrite",
        request: 128 << 10,
        depth: 8,
        clients: 1,
        flush_every: 256,
        data: Data::Compressible,
    };
    let written = fio::run(
        scratch,
        &uri(&socket, "random"),
        gib << 10,
        &pattern,
        Length::Mebibytes(gib << 10),
        77,
    )?;
    let status = &onefold.status(&store)?["server"];
    server.stop()?;
    let mib = |name: &str| status["memory"][name].as_u64().unwrap_or(u64::MAX) >> 20;
    let bar = memory + BESIDE_MIB;
    let reached = mib("peak_bytes") <= bar;
    ensure!(status["writes"]["duplicate_blocks"] == 0, "what was written is not unique");
    println!(
        "Through NBD, {:.1} GiB of unique data at random places, --memory {memory}M: resident {} \
         MiB, {} MiB at most, counted by the engine {} MiB; bar {bar} MiB; {}.",
        written.bytes as f64 / f64::from(1 << 30),
        mib("resident_bytes"),
        mib("peak_bytes"),
        mib("engine_bytes"),
        if reached { "reached" } else { "MISSED" },
    );
    let _ = std::fs::remove_file(&store);
    Ok(reached)
}
