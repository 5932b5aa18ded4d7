//! A backup volume by iSCSI beside the same by NBD: qemu-img copies an image in and reads it back.
//!
//! By iSCSI a request passes libiscsi, tgt, the kernel's FUSE and nbdfuse, which asks the server by NBD; by NBD
//! it goes there at once. Each round has content of its own, so that no volume finds duplicates.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use super::{machine_facts, median};
use crate::{
    cleanup::Scratch,
    clients::iscsi::Offered,
    machine,
    product::{Build, Onefold, path, uri},
    program::{program, run as run_program},
};

/// Longest that one copy may take.
const LIMIT: Duration = Duration::from_secs(300);

/// The bar: of NBD.
const OF_NBD: f64 = 0.6;

/// Runs the table.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let (rounds, mebibytes) = match arguments {
        [] => (5, 512_u64),
        [quick] if quick == "--quick" => (3, 128),
        _ => bail!("unknown arguments {arguments:?}"),
    };
    ensure!(machine::is_root(), "tgt needs root: run this bench as root");
    let bytes = mebibytes << 20;
    let onefold = Onefold::build(Build::Release)?;
    let scratch = Scratch::new("bench-iscsi")?;
    let (archive, socket) = (scratch.file("archive"), scratch.file("archive.sock"));
    onefold.verb(["create", "archive", path(&archive)])?;
    for volume in ["disk", "plain"] {
        onefold.verb([
            "volume",
            "create",
            path(&archive),
            volume,
            "--size",
            &format!("{mebibytes}M"),
        ])?;
    }
    println!("{}", machine_facts(scratch.path(), &["qemu-img", "tgtd", "nbdfuse"]));
    println!(
        "qemu-img convert of {mebibytes} MiB without duplicates into a backup volume and back; {rounds} rounds in \
         turns, medians.\n"
    );
    let server = onefold.serve(&archive, &[format!("unix:{}", socket.display())], &[])?;
    let offered = Offered::new(&onefold, &scratch, (&archive, &socket), bytes)?;
    let image = scratch.file("image.raw");
    let nowhere = format!("driver=null-co,size={bytes}");
    let mut figures = [const { Vec::new() }; 4];
    for round in 0..=rounds {
        for (which, url) in [offered.url.clone(), uri(&socket, "plain")].iter().enumerate() {
            noise(&image, bytes, 2 * round + which as u64)?;
            let begun = Instant::now();
            convert(&["-t", "writeback", "-n", "-O", "raw", path(&image), url])?;
            let wrote = begun.elapsed();
            let begun = Instant::now();
            convert(&["-n", "--target-image-opts", url, &nowhere])?;
            if round > 0 {
                figures[which].push(mebibytes as f64 / wrote.as_secs_f64());
                figures[which + 2].push(mebibytes as f64 / begun.elapsed().as_secs_f64());
            }
            compare(&image, url)?;
        }
    }
    drop(offered);
    server.stop()?;
    onefold.verb(["check", path(&archive)])?;
    let [wrote, wrote_nbd, read, read_nbd] = figures.map(|all| median(&all));
    println!("| MiB/s | iSCSI | NBD | iSCSI, times NBD |");
    println!("|---|---|---|---|");
    println!("| write | {wrote:.0} | {wrote_nbd:.0} | {:.2} |", wrote / wrote_nbd);
    println!("| read | {read:.0} | {read_nbd:.0} | {:.2} |\n", read / read_nbd);
    let mut reached = true;
    for (what, share) in [("written", wrote / wrote_nbd), ("read", read / read_nbd)] {
        let verdict = if share >= OF_NBD { "reached" } else { "MISSED" };
        println!("iSCSI, times NBD, {what}: {share:.2} (bar {OF_NBD}: {verdict})");
        reached &= share >= OF_NBD;
    }
    Ok(reached)
}

/// A file of bytes that nothing compresses and no other number repeats.
fn noise(file: &Path, bytes: u64, number: u64) -> Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * number + 1);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    for _ in 0..bytes / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.write_all(&state.to_le_bytes())?;
    }
    out.flush()?;
    Ok(())
}

fn convert(arguments: &[&str]) -> Result<()> {
    let mut command = program("qemu-img");
    command.args(["convert", "-f", "raw"]).args(arguments);
    run_program(command, LIMIT).map(drop)
}

fn compare(image: &Path, url: &str) -> Result<()> {
    let mut command = program("qemu-img");
    command.args(["compare", "-f", "raw", "-F", "raw", path(image), url]);
    run_program(command, LIMIT).map(drop)
}
