//! The cost of TLS: nbdcopy with 16 requests of 128 KiB under way, by TLS and by plain TCP, beside
//! qemu-nbd on a raw file with the same.
//!
//! Both servers read what was written once, so that the page cache or the store's own gives it; the
//! figure is the connection's.

use std::{
    fs::File,
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use super::{machine_facts, median};
use crate::{
    cleanup::Scratch,
    product::{Build, Onefold, path},
    program::{Running, program, run as run_program, spawn},
};

/// Longest that one copy may take.
const LIMIT: Duration = Duration::from_secs(300);

/// The bars: of qemu-nbd with TLS, and of our own plain TCP.
const OF_PEER: f64 = 1.0;
const OF_PLAIN: f64 = 0.5;

/// Runs the table.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let (rounds, mebibytes) = match arguments {
        [] => (5, 1024_usize),
        [quick] if quick == "--quick" => (3, 256),
        _ => bail!("unknown arguments {arguments:?}"),
    };
    let onefold = Onefold::build(Build::Release)?;
    let scratch = Scratch::new("bench-tls")?;
    let (ca, raw, access) = (scratch.file("ca"), scratch.file("raw"), scratch.file("access"));
    onefold.verb(["tls", "init", path(&ca)])?;
    onefold.verb(["tls", "issue", path(&ca), "127.0.0.1", "--server"])?;
    onefold.verb(["tls", "issue", path(&ca), "own"])?;
    std::fs::write(&access, "client:own write *\n")?;
    crate::clients::sample(&raw, mebibytes << 20)?;
    let store = scratch.file("store");
    let volumes = [("disk", format!("{mebibytes}M"))];
    onefold.create(&store, &format!("{}M", 2 * mebibytes), &["--preallocate", "none"], &volumes)?;
    let (server, client) = (scratch.file("ca/127.0.0.1"), scratch.file("ca/own"));

    println!("{}", machine_facts(scratch.path(), &["qemu-nbd", "nbdcopy"]));
    println!(
        "nbdcopy to nowhere of {mebibytes} MiB, one connection, 16 requests of 128 KiB; {rounds} rounds \
         in turns, medians.\n"
    );
    let certificates = format!("?tls-certificates={}", path(&client));
    let (plain_at, tls_at, peer_plain_at, peer_tls_at) = (port()?, port()?, port()?, port()?);
    let log = scratch.file("peer.log");
    let peers = [
        peer(&raw, &peer_plain_at, &log, &[])?,
        peer(
            &raw,
            &peer_tls_at,
            &log,
            &[
                "--object",
                &format!(
                    "tls-creds-x509,id=tls0,endpoint=server,verify-peer=on,dir={}",
                    path(&server)
                ),
                "--tls-creds",
                "tls0",
            ],
        )?,
    ];
    let mut figures = [const { Vec::new() }; 4];
    let uris = [
        format!("nbds://{tls_at}/disk{certificates}"),
        format!("nbd://{plain_at}/disk"),
        format!("nbds://{peer_tls_at}/{certificates}"),
        format!("nbd://{peer_plain_at}/"),
    ];
    // A store has one server, which serves TCP in one of the two ways.
    let secured = ["--tls", path(&server), "--access", path(&access)];
    let serve = |tls: bool| match tls {
        true => onefold.serve(&store, &[format!("tcp:{tls_at}")], &secured),
        false => onefold.serve(&store, &[format!("tcp:{plain_at}")], &[]),
    };
    let filling = serve(false)?;
    copy(&["--flush", path(&raw), &uris[1]])?;
    filling.stop()?;
    for round in 0..=rounds {
        for tls in [true, false] {
            let serving = serve(tls)?;
            let own = usize::from(!tls);
            for which in [own, own + 2] {
                // Once to have it in memory.
                copy(&[&uris[which], "null:"])?;
                let begun = Instant::now();
                copy(&[&uris[which], "null:"])?;
                if round > 0 {
                    figures[which].push(mebibytes as f64 / begun.elapsed().as_secs_f64());
                }
            }
            serving.stop()?;
        }
    }
    drop(peers);
    onefold.check(&store)?;
    let [own_tls, own_plain, peer_tls, peer_plain] = figures.map(|all| median(&all));
    println!("| MiB/s | TLS | plain TCP | TLS, times plain |");
    println!("|---|---|---|---|");
    println!("| Onefold | {own_tls:.0} | {own_plain:.0} | {:.2} |", own_tls / own_plain);
    println!("| qemu-nbd | {peer_tls:.0} | {peer_plain:.0} | {:.2} |\n", peer_tls / peer_plain);
    let (of_peer, of_plain) = (own_tls / peer_tls, own_tls / own_plain);
    let verdict = |reached| if reached { "reached" } else { "MISSED" };
    println!(
        "TLS, times qemu-nbd's: {of_peer:.2} (bar {OF_PEER}: {})",
        verdict(of_peer >= OF_PEER)
    );
    println!(
        "TLS, times plain TCP: {of_plain:.2} (aim {OF_PLAIN}: {})",
        verdict(of_plain >= OF_PLAIN)
    );
    Ok(of_peer >= OF_PEER && of_plain >= OF_PLAIN)
}

/// An address that was free a moment ago.
fn port() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn copy(arguments: &[&str]) -> Result<()> {
    let mut command = program("nbdcopy");
    command.args(["--connections=1", "--requests=16", "--request-size=131072"]).args(arguments);
    run_program(command, LIMIT).map(drop)
}

/// qemu-nbd on a raw file, at an address.
fn peer(raw: &Path, address: &str, log: &Path, more: &[&str]) -> Result<Running> {
    let (host, port) = address.rsplit_once(':').unwrap_or_default();
    let mut command = program("qemu-nbd");
    command.args(["-t", "-e", "8", "-r", "-f", "raw", "-b", host, "-p", port]).args(more).arg(raw);
    let log = File::options().create(true).append(true).open(log)?;
    command.stdout(log.try_clone()?).stderr(log);
    let mut running = spawn(&mut command)?;
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        let ended = running.wait(Duration::ZERO)?;
        ensure!(
            ended.is_none() && begun.elapsed() < Duration::from_secs(10),
            "qemu-nbd does not start"
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(running)
}
