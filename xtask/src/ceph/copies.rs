//! Copies of volumes on a real cluster: images of RBD in and out, and snapshots that go to other stores while a disk
//! and a receive are killed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;
use crate::{
    product::{Onefold, Server, path},
    program::{program, run, spawn},
};

/// Longest that one copy may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Until the lock of a killed receive has run out, and a little more.
const LOCK: Duration = Duration::from_secs(11);

/// The pool of RBD.
const POOL: &str = "images";

/// A store on the cluster, and where its copies lie.
pub(super) struct Copies<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) onefold: &'a Onefold,
    pub(super) store: &'a str,
    pub(super) folder: &'a Path,
}

impl Copies<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn rbd(&self, arguments: &[&str]) -> Command {
        let mut command = program("rbd");
        command.args(["-c", path(&self.cluster.configuration())]).args(arguments);
        command.env("CEPH_ARGS", "").env_remove("CEPH_CONF");
        command
    }

    /// Images go in and out by `rbd` through a pipe, and by qemu into a volume that is served.
    pub(super) fn of_rbd(
        &self,
        image: &str,
        serve: impl FnOnce() -> Result<(Server, PathBuf)>,
    ) -> Result<()> {
        if self.cluster.ceph(&["osd", "pool", "ls"])?.lines().all(|pool| pool != POOL) {
            self.cluster.replicated(POOL, 2)?;
        }
        let file = self.file(image);
        let (inside, back) = (format!("{POOL}/vm"), format!("{POOL}/back"));
        for name in [&inside, &back] {
            // Of an earlier store on this cluster.
            let _ = run(self.rbd(&["rm", "--no-progress", name]), LIMIT);
        }
        run(self.rbd(&["import", "--no-progress", path(&file), &inside]), LIMIT)?;
        piped(
            self.rbd(&["export", "--no-progress", &inside, "-"]),
            self.onefold.command(["import", self.store, "rbd", "-"]),
        )?;
        self.holds("rbd", &file)?;
        piped(
            self.onefold.command(["export", self.store, "rbd", "-"]),
            self.rbd(&["import", "--no-progress", "-", &back]),
        )?;
        let out = self.file("out");
        let _ = fs::remove_file(&out);
        run(self.rbd(&["export", "--no-progress", &back, path(&out)]), LIMIT)?;
        same(&out, &file)?;
        let bytes = fs::metadata(&file)?.len().to_string();
        self.onefold.verb(["volume", "create", self.store, "by-qemu", "--size", &bytes])?;
        let (server, socket) = serve()?;
        let mut qemu = program("qemu-img");
        let from = format!("rbd:{inside}:conf={}", path(&self.cluster.configuration()));
        let to = format!("nbd+unix:///by-qemu?socket={}", path(&socket));
        qemu.args(["convert", "-n", "-f", "raw", "-O", "raw", &from, &to]).env("CEPH_ARGS", "");
        run(qemu, LIMIT)?;
        server.stop()?;
        self.holds("by-qemu", &file)?;
        ["rbd", "by-qemu"].iter().try_for_each(|name| self.delete(name))
    }

    /// A snapshot goes to a block store and back, while a disk of the cluster is killed, and a receive.
    pub(super) fn of_snapshots(&self, old: &str, new: &str) -> Result<()> {
        let (old, new) = (self.file(old), self.file(new));
        let other = self.file("other.onefold");
        let _ = fs::remove_file(&other);
        let other = path(&other);
        let size = (4 * fs::metadata(&old)?.len()).to_string();
        self.onefold.verb(["create", "block", other, "--size", &size, "--preallocate", "none"])?;
        self.onefold.verb(["import", self.store, "sent", path(&old)])?;
        self.onefold.verb(["snapshot", "create", self.store, "sent@one"])?;
        thread::scope(|scope| {
            let sending = scope.spawn(|| {
                piped(
                    self.onefold.command(["send", self.store, "sent@one"]),
                    self.onefold.command(["receive", other]),
                )
            });
            thread::sleep(Duration::from_millis(300));
            self.cluster.kill_osd(1)?;
            thread::sleep(Duration::from_secs(2));
            self.cluster.start_osd(1)?;
            sending.join().ok().context("a thread panicked")?
        })?;
        // Back under another name, killed in the middle.
        let stream = self.file("stream");
        let _ = fs::remove_file(&stream);
        self.onefold.verb(["send", other, "sent@one", "--output", path(&stream)])?;
        let mut receive = self.onefold.command(["receive", self.store, "back"]);
        receive.stdin(fs::File::open(&stream)?);
        let mut killed = spawn(&mut receive)?;
        self.wait_for_some("back")?;
        killed.kill();
        thread::sleep(LOCK);
        let listed = self.onefold.verb(["volume", "list", self.store])?;
        if !listed.contains("back") {
            let token = self.onefold.verb(["receive", self.store, "back", "--token"])?;
            let token = token.lines().next().unwrap_or_default().to_owned();
            piped(
                self.onefold.command(["send", other, "sent@one", "--resume", &token]),
                self.onefold.command(["receive", self.store, "back"]),
            )?;
        }
        self.holds("back@one", &old)?;
        // And what changed since.
        let out = self.onefold.verb(["volume", "promote", other, "sent"])?;
        ensure!(out.contains("ordinary"), "{out}");
        let (server, socket) = {
            let (log, listener) = (self.file("other.log"), self.file("other.sock"));
            let _ = fs::remove_file(&listener);
            let shown = [format!("unix:{}", path(&listener))];
            (self.onefold.serve_to(other, &log, &shown, &[])?, listener)
        };
        let mut copy = program("nbdcopy");
        copy.args(["--flush", path(&new), &format!("nbd+unix:///sent?socket={}", path(&socket))]);
        run(copy, LIMIT)?;
        self.onefold.verb(["snapshot", "create", other, "sent@two"])?;
        piped(
            self.onefold.command(["send", other, "sent@two", "--from", "sent@one"]),
            self.onefold.command(["receive", self.store, "back"]),
        )?;
        server.stop()?;
        self.holds("back", &new)?;
        self.holds("back@one", &old)?;
        for snapshot in ["back@one", "back@two", "sent@one"] {
            self.onefold.verb(["snapshot", "delete", self.store, snapshot])?;
        }
        ["back", "sent"].iter().try_for_each(|name| self.delete(name))
    }

    /// Until something of a snapshot is durable, or all of it.
    fn wait_for_some(&self, volume: &str) -> Result<()> {
        for _ in 0..600 {
            let listed = self.onefold.verb(["receive", self.store, "--token", "--json"]);
            let some = listed.is_ok_and(|listed| listed.contains("\"received_bytes\""));
            if some || self.onefold.verb(["volume", "list", self.store])?.contains(volume) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        anyhow::bail!("nothing is received")
    }

    fn delete(&self, volume: &str) -> Result<()> {
        self.onefold.verb(["volume", "delete", self.store, volume]).map(|_| ())
    }

    /// A volume or snapshot holds what a file does.
    fn holds(&self, name: &str, file: &Path) -> Result<()> {
        let out = self.file("out");
        let _ = fs::remove_file(&out);
        self.onefold.verb(["export", self.store, name, path(&out)])?;
        same(&out, file)
    }
}

/// Compares two files.
fn same(one: &Path, other: &Path) -> Result<()> {
    let mut compare = program("cmp");
    compare.args([one, other]);
    run(compare, LIMIT).map(|_| ())
}

/// Runs two programs, the output of the first being the input of the second.
fn piped(mut from: Command, mut to: Command) -> Result<()> {
    let (reader, writer) = std::io::pipe().context("pipe")?;
    from.stdout(writer).stderr(Stdio::inherit());
    let mut source = spawn(&mut from)?;
    // Our end of the pipe goes with the command.
    drop(from);
    to.stdin(reader);
    run(to, LIMIT)?;
    let ended = source.wait(LIMIT)?.context("the first program of a pipe does not end")?;
    ensure!(ended.success(), "the first program of a pipe ended with {ended}");
    Ok(())
}
