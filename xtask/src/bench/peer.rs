//! The peer: qemu-nbd on a raw file, uncached, in each of its ways of I/O.

use std::{
    fs::{self, File},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    cleanup::Scratch,
    product::path,
    program::{Running, program, spawn},
};

/// Its ways of I/O.
pub(super) const MODES: [&str; 3] = ["native", "io_uring", "threads"];

/// qemu-nbd at work.
pub(super) struct Peer {
    running: Running,
    socket: PathBuf,
    /// Its way of I/O.
    pub(super) mode: &'static str,
}

/// Makes a raw file of `mebibytes`, whose space is reserved; the first fill writes it.
pub(super) fn create(file: &Path, mebibytes: u64) -> Result<()> {
    let file = File::create(file)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, mebibytes << 20)
        .context("space for the raw file")
}

impl Peer {
    /// Serves a raw file in a mode; fails where the kernel has no such mode.
    pub(super) fn start(scratch: &Scratch, file: &Path, mode: &'static str) -> Result<Peer> {
        let socket = scratch.file("peer.sock");
        let _ = fs::remove_file(&socket);
        let mut command = program("qemu-nbd");
        command.args([
            "-t",
            "-e",
            "64",
            "--cache=none",
            &format!("--aio={mode}"),
            "-f",
            "raw",
            "-k",
            path(&socket),
            path(file),
        ]);
        let log = File::create(scratch.file("peer.log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        let mut running = spawn(&mut command)?;
        let begun = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            let ended = running.wait(Duration::ZERO)?;
            ensure!(
                ended.is_none() && begun.elapsed() < Duration::from_secs(10),
                "qemu-nbd --aio={mode} does not start"
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Peer { running, socket, mode })
    }

    /// Where it is reached.
    pub(super) fn uri(&self) -> String {
        crate::product::uri(&self.socket, "")
    }

    /// Its process.
    pub(super) fn id(&self) -> u32 {
        self.running.id()
    }
}
