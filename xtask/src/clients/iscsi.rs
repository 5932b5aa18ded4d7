//! A volume of an archive by iSCSI: nbdfuse shows it as a file, tgt offers the file as `onefold
//! volume iscsi` tells it to, and initiators of libiscsi and qemu use it. The server is killed
//! under writes.

use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{LIMIT, archive::Served, check, sample};
use crate::{
    cleanup::{Guard, Scratch},
    machine,
    product::{Onefold, path, uri},
    program::{Running, finish, program, run as run_program, spawn},
    test::Tally,
};

/// Bytes of the volume.
const VOLUME_BYTES: u64 = 64 << 20;

/// Bytes of the image that is copied.
const IMAGE_BYTES: usize = 24 << 20;

/// Longest until a helper answers.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long writes go on before the server is killed.
const WRITING: Duration = Duration::from_secs(3);

/// Bytes of a write of those.
const WRITE_BYTES: usize = 64 << 10;

/// Libiscsi's conformance tests that are for disks of this kind. Left out of the families is
/// `Unmap.ZeroBlocks`, which tgt 1.0.85 fails on any file.
const FAMILIES: [&str; 9] = [
    "SCSI.Read10",
    "SCSI.Read16",
    "SCSI.ReadCapacity16",
    "SCSI.Unmap.Simple",
    "SCSI.Unmap.VPD",
    "SCSI.Write10",
    "SCSI.Write16",
    "SCSI.Verify10",
    "SCSI.TestUnitReady",
];

/// Runs all checks.
pub(super) fn run(tally: &mut Tally) {
    if !machine::is_root() {
        println!("    iSCSI: FAILED: tgt needs root; run this step as root");
        tally.failed += 1;
        return;
    }
    check(tally, "iSCSI: qemu-img in and out, trims, conformance, a killed server", all);
}

fn all() -> Result<()> {
    let mut served = Served::new(&[])?;
    let image = served.scratch.file("image.raw");
    sample(&image, IMAGE_BYTES)?;
    File::options().write(true).open(&image)?.set_len(VOLUME_BYTES)?;
    let mapped = |served: &Served| -> Result<u64> {
        let list = served.onefold.verb(["volume", "list", path(&served.archive), "--json"])?;
        let list: serde_json::Value = serde_json::from_str(&list)?;
        let all = list.as_array().context("a list")?;
        let disk = all.iter().find(|volume| volume["name"] == "disk").context("the volume")?;
        disk["mapped_bytes"].as_u64().context("a number")
    };

    let offered = offer(&served)?;
    served.client(
        "qemu-img",
        &["convert", "-t", "writeback", "-n", "-f", "raw", "-O", "raw", path(&image), &offered.url],
    )?;
    served
        .client("qemu-img", &["compare", "-f", "raw", "-F", "raw", path(&image), &offered.url])?;
    let before = mapped(&served)?;
    served.client(
        "qemu-io",
        &["-f", "raw", "-d", "unmap", "-c", "discard 0 4M", "-c", "flush", &offered.url],
    )?;
    let after = mapped(&served)?;
    ensure!(after + (4 << 20) <= before, "4 MiB were trimmed: {before} bytes, then {after}");
    let tests = format!("--test={}", FAMILIES.join(","));
    // Its status does not tell of failures.
    let said = served.client("iscsi-test-cu", &["--dataloss", &tests, &offered.url])?;
    ensure!(said.contains("Run Summary") && !said.contains("FAILED"), "{said}");

    // Each write is flushed before it counts. The server dies while they go on.
    let url = offered.url.clone();
    let writer = thread::spawn(move || {
        let mut written = 0;
        while write(&url, written).is_ok() {
            written += 1;
        }
        written
    });
    thread::sleep(WRITING);
    served.kill()?;
    let written = writer.join().ok().context("the writer")?;
    drop(offered);
    ensure!(written > 3, "only {written} writes were flushed in {} s", WRITING.as_secs());
    served.start()?;
    let offered = offer(&served)?;
    for n in 0..written.min(VOLUME_BYTES as usize / WRITE_BYTES) {
        let (pattern, at) = place(n);
        let read = format!("read -P {pattern} {at} {WRITE_BYTES}");
        let said = served.client("qemu-io", &["-f", "raw", "-c", &read, &offered.url])?;
        ensure!(
            !said.contains("failed"),
            "write {n} of {written}, which was flushed, is not there"
        );
    }
    drop(offered);
    println!("    iSCSI: {written} writes flushed before the kill, all there");
    Ok(())
}

/// The pattern and place of a write; those of the first 1024 are apart.
fn place(n: usize) -> (usize, usize) {
    (1 + n % 255, n * WRITE_BYTES % VOLUME_BYTES as usize)
}

/// Writes and flushes.
fn write(url: &str, n: usize) -> Result<()> {
    let (pattern, at) = place(n);
    let mut command = program("qemu-io");
    command.args(["-f", "raw", "-c", &format!("write -P {pattern} {at} {WRITE_BYTES}")]);
    command.args(["-c", "flush", url]);
    let said = run_program(command, LIMIT)?;
    ensure!(!said.contains("failed"), "{said}");
    Ok(())
}

fn offer(served: &Served) -> Result<Offered> {
    Offered::new(&served.onefold, &served.scratch, (&served.archive, &served.socket), VOLUME_BYTES)
}

/// The volume `disk`, offered. Dropping it takes all of it down, also when the server is gone.
pub(crate) struct Offered {
    /// Its address.
    pub(crate) url: String,
    // In the order in which they are taken down.
    _tgt: Running,
    _fuse: Guard,
    _nbdfuse: Running,
}

impl Offered {
    /// Of an archive that is served on this socket; the volume has so many bytes.
    pub(crate) fn new(
        onefold: &Onefold,
        scratch: &Scratch,
        (archive, socket): (&Path, &Path),
        bytes: u64,
    ) -> Result<Offered> {
        let place = scratch.file("iscsi");
        fs::create_dir_all(&place)?;
        let file: PathBuf = place.join("volume");
        let mut command = program("nbdfuse");
        command.args([path(&file), &uri(socket, "disk")]);
        let log = File::create(scratch.file("nbdfuse.log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        let nbdfuse = spawn(&mut command)?;
        let fuse = Guard::new({
            let place = place.clone();
            move || quietly("fusermount3", &["-u", "-z", path(&place)])
        });
        until("nbdfuse shows no file", || file.exists())?;

        let configuration = scratch.file("tgt.conf");
        let text =
            onefold.verb(["volume", "iscsi", path(archive), "disk", "--file", path(&file)])?;
        fs::write(&configuration, &text)?;
        let target = text
            .lines()
            .find_map(|line| line.strip_prefix("<target ")?.strip_suffix('>'))
            .context("the configuration names no target")?
            .to_owned();
        // A port that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        // The number of tgt's control socket has 15 bits.
        let control = (1 + std::process::id() % 32_000).to_string();
        let mut command = program("tgtd");
        command.args(["-f", "-C", &control, "--iscsi", &format!("portal={address}")]);
        let log = File::create(scratch.file("tgtd.log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        let tgt = spawn(&mut command)?;
        until("tgtd does not listen", || TcpStream::connect(address).is_ok())?;
        let mut command = program("tgt-admin");
        command.args(["--execute", "--conf", path(&configuration), "--control-port", &control]);
        run_program(command, LIMIT)?;
        let url = format!("iscsi://{address}/{target}/1");
        let mut command: Command = program("iscsi-readcapacity16");
        command.arg(&url);
        let said = run_program(command, LIMIT)?;
        ensure!(said.contains(&format!("Total size:{bytes}")), "{said}");
        Ok(Offered { url, _tgt: tgt, _fuse: fuse, _nbdfuse: nbdfuse })
    }
}

fn until(what: &str, is: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is() {
        ensure!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn quietly(name: &str, arguments: &[&str]) {
    let mut command = program(name);
    command.args(arguments);
    let _ = finish(command, PATIENCE, false);
}
