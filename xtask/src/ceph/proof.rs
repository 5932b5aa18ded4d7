//! The proof on a real cluster: nothing is lost while disks, workers and servers are killed,
//! stopped and continued, and the cluster gets full.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::{
    cluster::Cluster,
    copies::Copies,
    rights::{self, Lacking},
};
use crate::{
    cleanup::Scratch,
    clients::{check, sample},
    nbd::{Client, REQUEST_BYTES},
    product::{Build, Onefold, Server, compare, path, uri},
    program::{Running, program, run as run_program, spawn},
    test::Tally,
};

/// How much is tried.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// Bytes of an image on a replicated pool; half of it is zeroes or repeats itself.
    image: usize,
    /// The same on an erasure-coded pool, where removals take longer.
    coded_image: usize,
    /// Servers are killed and taken over, and names change, on an erasure-coded pool, too.
    repeats: bool,
}

/// What CI does.
pub(super) const SHORT: Extent = Extent { image: 128 << 20, coded_image: 64 << 20, repeats: false };

/// What `cargo xtask ceph test` does.
pub(super) const LONG: Extent = Extent { image: 320 << 20, coded_image: 128 << 20, repeats: true };

/// Bytes that are written under takeover and kills.
const SMALL: usize = 96 << 20;

/// Most that a server keeps of what is hot, unless it is told otherwise.
const CACHE_BYTES: u64 = 64 << 20;

/// Longest that one client may take.
pub(super) const LIMIT: Duration = Duration::from_secs(480);

/// Longest until a standby writes for a client after the other server was killed.
const TAKEN_OVER: Duration = Duration::from_secs(15);

/// Longest until the next one does after an orderly end.
const HANDED_OVER: Duration = Duration::from_secs(8);

/// Longest that a full cluster may take to say so.
const FULL: Duration = Duration::from_secs(180);

/// Longest that the lock of a killed process on what it deletes stays, and a little more.
pub(super) const LEASE: Duration = Duration::from_secs(33);

/// Longest that one waits for what comes sooner or later.
const PATIENCE: Duration = Duration::from_secs(180);

/// A store on the cluster, and what is served of it.
pub(super) struct Site<'a> {
    pub(super) cluster: &'a Cluster,
    /// As a user who has the rights that are needed every day.
    pub(super) onefold: Onefold,
    /// As the user who makes stores.
    pub(super) maker: Onefold,
    pub(super) store: String,
    pub(super) folder: PathBuf,
    /// Bytes of the file `image`.
    pub(super) image: usize,
}

/// Runs the proof on a replicated chunk pool, and a shorter one on an erasure-coded pool.
pub(super) fn run(cluster: &Cluster, scratch: &Scratch, extent: Extent) -> Result<Tally> {
    let mut tally = Tally::default();
    let onefold = Onefold::build(Build::Test)?;
    sample(&scratch.file("old"), SMALL)?;
    let mut other = fs::read(scratch.file("old"))?;
    other.iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::write(scratch.file("new"), &other)?;
    check(&mut tally, "estimate of a plain pool", || estimate(cluster, &onefold, scratch));
    for (metadata, chunks, user, image) in [
        ("meta-2", "chunks-2", rights::DAILY, extent.image),
        ("meta-ec", "chunks-ec21", rights::BY_PROFILE, extent.coded_image),
    ] {
        sample(&scratch.file("image"), image)?;
        let store = format!("rados:{}#{metadata}", cluster.configuration().display());
        let folder = scratch.path().to_owned();
        let (daily, maker) =
            (rights::as_user(&onefold, user), rights::as_user(&onefold, rights::MAKER));
        let site = Site { cluster, onefold: daily, maker, store, folder, image };
        let mut step = |name: &str, run: &dyn Fn() -> Result<()>| {
            check(&mut tally, &format!("{chunks}: {name}"), run)
        };
        step("a store is made once", &|| site.create(metadata, chunks));
        if chunks == "chunks-2" {
            step("who lacks a right is told which one, and nothing changes", &|| {
                site.lack([metadata, chunks])
            });
        }
        step("images and fio while disk and worker are killed", &|| site.load());
        step("all is deduplicated, and scrubbed clean", &|| site.settle());
        if chunks == "chunks-2" {
            step("every byte is there after a disk was lost", &|| site.lose_disk());
        }
        if chunks == "chunks-2" || extent.repeats {
            step("a server is killed while it writes", &|| site.kill_server());
            step("a stopped server is taken over, and wakes up", &|| site.take_over());
            step("servers that stand by follow each other by themselves", &|| site.stand_by());
        }
        if chunks == "chunks-2" {
            step("a full cluster says so, and goes on when there is room", &|| site.full());
        }
        if chunks == "chunks-2" || extent.repeats {
            step("volumes and objects get another name and keep their bytes", &|| site.rename());
        }
        step("snapshots, clones and rollbacks hold what they should", &|| site.snapshots());
        step("images of RBD go in and out", &|| {
            site.copies().of_rbd("old", || site.serve("rbd", &[]))
        });
        step("snapshots go to a block store and back", &|| {
            site.copies().of_snapshots("old", "new")
        });
        step("what was deleted gives its space back", &|| site.delete());
    }
    Ok(tally)
}

impl Site<'_> {
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn copies(&self) -> Copies<'_> {
        let Site { cluster, onefold, store, folder, .. } = self;
        Copies { cluster, onefold, store, folder }
    }

    pub(super) fn on_store(&self, verb: &[&str], more: &[&str]) -> Result<String> {
        let arguments = [verb, &[&self.store], more].concat();
        self.onefold.verb(arguments)
    }

    pub(super) fn create(&self, metadata: &str, chunks: &str) -> Result<()> {
        let store = self.store.split('#').next().unwrap_or_default();
        let pools =
            ["create", "cluster", store, "--metadata-pool", metadata, "--chunk-pool", chunks];
        let careful = self.maker.verb(pools);
        ensure!(
            careful.is_err_and(|error| format!("{error:#}").contains("--force")),
            "a pool with min_size 1 was taken without --force"
        );
        let forced = [&pools[..], &["--force"]].concat();
        rights::refused(
            &self.onefold,
            &forced,
            &["osd pool application enable", "it needs the right mon 'allow command"],
        )?;
        self.maker.verb(&forced)?;
        let again = self.maker.verb(&forced);
        ensure!(
            again.is_err_and(|error| format!("{error:#}").contains("there is a store already")),
            "a second store was made over the first"
        );
        let image = format!("{}M", self.image >> 20);
        for (name, size) in [("one", &*image), ("two", &image), ("load", "128M"), ("small", "96M")]
        {
            self.on_store(&["volume", "create"], &[name, "--size", size])?;
        }
        Ok(())
    }

    fn lack(&self, pools: [&str; 2]) -> Result<()> {
        Lacking {
            cluster: self.cluster,
            onefold: &self.onefold,
            store: &self.store,
            pools,
            folder: &self.folder,
        }
        .run()
    }

    /// A server of its own socket.
    fn serve(&self, name: &str, more: &[&str]) -> Result<(Server, PathBuf)> {
        let socket = self.file(&format!("{name}.sock"));
        let _ = fs::remove_file(&socket);
        let listeners = [format!("unix:{}", socket.display())];
        let more = [&["--workers", "0"], more].concat();
        Ok((
            self.onefold.serve_to(
                &self.store,
                &self.file(&format!("{name}.log")),
                &listeners,
                &more,
            )?,
            socket,
        ))
    }

    /// A worker that load does not slow down.
    pub(super) fn worker(&self) -> Result<Running> {
        let fast = ["--cold", "1", "--low-iops", "1000000", "--low-bytes", "100G"];
        let mut command = self.onefold.command([&["worker", &self.store], &fast[..]].concat());
        let log = fs::OpenOptions::new().create(true).append(true).open(self.file("worker.log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        spawn(&mut command)
    }

    fn status(&self) -> Result<Value> {
        let output = self.onefold.command(["status", &self.store, "--exact", "--json"]).output()?;
        ensure!(output.status.success(), "status failed");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn load(&self) -> Result<()> {
        let (server, socket) = self.serve("load", &[])?;
        let mut workers = [self.worker()?, self.worker()?];
        let mut fio = program("fio");
        let target = format!("--uri={}", uri(&socket, "load"));
        fio.args([
            "--name=load",
            "--ioengine=nbd",
            &target,
            "--rw=randwrite",
            "--bsrange=4k-64k",
            "--bs_unaligned=0",
            "--size=128m",
        ]);
        fio.args([
            "--iodepth=8",
            "--loops=2",
            "--rate=12m",
            "--dedupe_percentage=30",
            "--verify=crc32c",
            "--do_verify=1",
        ]);
        fio.args(["--verify_fatal=1", "--output-format=terse"]).current_dir(&self.folder);
        thread::scope(|scope| {
            let fio = scope.spawn(|| run_program(fio, LIMIT));
            self.wait_for_load()?;
            let copies: Vec<_> = ["one", "two"]
                .map(|name| scope.spawn(|| self.copy_in("image", &uri(&socket, name))))
                .into_iter()
                .collect();
            thread::sleep(Duration::from_secs(4));
            self.cluster.kill_osd(1)?;
            workers[0].kill();
            workers[0] = self.worker()?;
            thread::sleep(Duration::from_secs(2));
            self.cluster.start_osd(1)?;
            for copy in copies {
                copy.join().ok().context("a thread panicked")??;
            }
            fio.join().ok().context("a thread panicked")??;
            anyhow::Ok(())
        })?;
        self.same(&socket, &["one", "two"], "image")?;
        for mut worker in workers {
            worker.signal(Signal::TERM);
            let ended = worker.wait(PATIENCE)?.context("a worker does not end")?;
            ensure!(
                ended.success(),
                "a worker ended with {ended}:\n{}",
                fs::read_to_string(self.file("worker.log"))?
            );
        }
        server.stop()
    }

    /// Until the status knows who is at work.
    fn wait_for_load(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let status = self.status()?;
            let all = status["servers"] == 1 && status["workers"] == 2;
            if all && status["operations_per_second"].as_f64() > Some(1.0) {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "one server, two workers and their clients are not in {status}"
            );
            thread::sleep(Duration::from_millis(500));
        }
    }

    fn copy_in(&self, file: &str, uri: &str) -> Result<()> {
        let mut command = program("nbdcopy");
        command.args(["--flush", "--requests=16", path(&self.file(file)), uri]);
        run_program(command, LIMIT).map(|_| ())
    }

    fn same(&self, socket: &Path, volumes: &[&str], file: &str) -> Result<()> {
        volumes.iter().try_for_each(|volume| compare(socket, volume, &self.file(file)))
    }

    /// Nothing is dirty any more, and a second repair finds nothing to do. Gives the status.
    pub(super) fn clean(&self) -> Result<Value> {
        self.cluster.wait_clean()?;
        self.on_store(&["worker"], &["--once", "--cold", "0"])?;
        // Killed servers and workers may have left references that nobody has a use for.
        self.on_store(&["repair"], &[])?;
        let report = self.on_store(&["repair"], &[])?;
        let quiet = "0 stale and 0 missing references, 0 unused chunks, 0 restored chunks, 0 \
                     unlisted objects, 0 orphans";
        ensure!(report.contains(quiet), "the second repair had something to do:\n{report}");
        let status = self.status()?;
        ensure!(
            status["dirty_bytes"] == 0 && status["backlog"] == 0,
            "something is left to do: {status}"
        );
        Ok(status)
    }

    /// Everything is deduplicated.
    fn settle(&self) -> Result<()> {
        let status = self.clean()?;
        let number = |key: &str| status[key].as_u64().unwrap_or(u64::MAX);
        // One half of the image is stored once, for both volumes; what fio wrote stands for itself.
        let most = (self.image / 2 + (128 << 20)) as u64 * 105 / 100;
        let (stored, cached) = (number("chunk_bytes"), number("cached_bytes"));
        ensure!(stored <= most, "{stored} bytes are stored, more than {most}");
        // Chunks that were read again and again are kept beside their metadata.
        ensure!(cached <= CACHE_BYTES, "{cached} bytes are cached, more than {CACHE_BYTES}");
        println!(
            "        {} MiB of content in {} MiB of chunks, {} MiB cached",
            number("logical_bytes") >> 20,
            stored >> 20,
            cached >> 20
        );
        Ok(())
    }

    fn lose_disk(&self) -> Result<()> {
        self.cluster.lose_osd(2)?;
        self.cluster.wait_clean()?;
        let (server, socket) = self.serve("lost", &[])?;
        self.same(&socket, &["one", "two"], "image")?;
        server.stop()?;
        let report = self.on_store(&["repair"], &[])?;
        ensure!(
            report.contains(" 0 stale and 0 missing references"),
            "the scrub after a disk was lost:\n{report}"
        );
        Ok(())
    }

    /// Flushed data is there after SIGKILL; of writes on their way each block is there or not.
    fn kill_server(&self) -> Result<()> {
        let (old, new) = (fs::read(self.file("old"))?, fs::read(self.file("new"))?);
        let (server, socket) = self.serve("killed", &[])?;
        write(&socket, &old, 0..SMALL)?;
        let worker = self.worker()?;
        write(&socket, &new, 0..SMALL / 4)?;
        thread::scope(|scope| {
            let rest = scope.spawn(|| write(&socket, &new, SMALL / 4..SMALL));
            thread::sleep(Duration::from_millis(400));
            server.kill();
            // The write fails, or ended before the kill.
            let _ = rest.join();
        });
        drop(worker);
        let (server, socket) = self.serve("again", &["--take-over"])?;
        let mut found = vec![0; SMALL];
        let mut client = Client::connect(&socket, "small")?;
        client.read_all(SMALL as u64, |at, bytes| {
            found[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        })?;
        client.disconnect()?;
        ensure!(found[..SMALL / 4] == new[..SMALL / 4], "something that was flushed is lost");
        for (n, block) in found.chunks(4096).enumerate() {
            let range = n * 4096..n * 4096 + block.len();
            ensure!(
                block == &old[range.clone()] || block == &new[range],
                "block {n} is neither old nor new"
            );
        }
        server.stop()
    }

    /// A server that was stopped in the middle of writes is taken over; when it goes on, nothing of
    /// it is applied, and it ends by itself.
    fn take_over(&self) -> Result<()> {
        let (old, new) = (fs::read(self.file("old"))?, fs::read(self.file("new"))?);
        let (mut first, socket) = self.serve("first", &[])?;
        write(&socket, &old, 0..SMALL / 4)?;
        thread::scope(|scope| {
            let queued = scope.spawn(|| write(&socket, &old, 0..SMALL));
            thread::sleep(Duration::from_millis(300));
            first.signal(Signal::STOP);
            let (second, other) = self.serve("second", &["--take-over"])?;
            write(&other, &new, 0..SMALL)?;
            first.signal(Signal::CONT);
            let ended = first.ended(PATIENCE);
            if ended.is_err() {
                first.signal(Signal::KILL);
            }
            let _ = queued.join();
            let status = ended?;
            ensure!(
                !status.success() && first.said().contains("fenced"),
                "the first server does not say that it was fenced:\n{}",
                first.said()
            );
            self.same(&other, &["small"], "new")?;
            second.stop()
        })
    }

    /// Servers of one store that stand by for each other: killed, ended in order, and stopped while another one
    /// takes over.
    fn stand_by(&self) -> Result<()> {
        let (old, new) = (fs::read(self.file("old"))?, fs::read(self.file("new"))?);
        let (first, socket) = self.serve("pair", &["--standby"])?;
        write(&socket, &old, 0..SMALL / 4)?;
        let mut others = [self.stands_by("second", &socket)?, self.stands_by("third", &socket)?];
        thread::scope(|scope| {
            let busy = scope.spawn(|| write(&socket, &old, 0..SMALL));
            thread::sleep(Duration::from_millis(500));
            first.kill();
            let took = writes_again(&socket, &new)?;
            // It fails, since its server is gone.
            let _ = busy.join();
            ensure!(took < TAKEN_OVER, "the standby took over after {:.1} s", took.as_secs_f64());
            println!("    the standby writes {:.1} s after the kill", took.as_secs_f64());
            Ok(())
        })?;
        write(&socket, &new, 0..SMALL)?;
        others.sort_by_key(|other| !other.said().contains("shut it out"));
        let [second, third] = others;
        ensure!(second.said().contains("shut it out"), "it does not say so:\n{}", second.said());
        ensure!(!third.said().contains("serving "), "both took over:\n{}", third.said());
        second.stop()?;
        let took = writes_again(&socket, &new)?;
        ensure!(took < HANDED_OVER, "the next one serves after {:.1} s", took.as_secs_f64());
        println!("    the next one writes {:.1} s after an orderly end", took.as_secs_f64());
        self.same(&socket, &["small"], "new")?;

        let elsewhere = self.file("elsewhere.sock");
        let fourth = self.stands_by("fourth", &elsewhere)?;
        third.signal(Signal::STOP);
        let took = writes_again(&elsewhere, &old)?;
        third.signal(Signal::CONT);
        ensure!(took < TAKEN_OVER, "the standby took over after {:.1} s", took.as_secs_f64());
        write(&elsewhere, &old, 0..SMALL)?;
        says(&third, "standing by again")?;
        self.same(&elsewhere, &["small"], "old")?;
        says(&third, "standing by: server")?;
        fourth.stop()?;
        writes_again(&socket, &new)?;
        third.stop()
    }

    /// A server that waits for another one, and then listens there.
    fn stands_by(&self, name: &str, socket: &Path) -> Result<Server> {
        let (at, log) = (format!("unix:{}", socket.display()), self.file(&format!("{name}.log")));
        let _ = fs::remove_file(&log);
        let more = ["--workers", "0", "--standby", "--stand-by-again", "--nbd", &at];
        let server = self.onefold.serve_to(&self.store, &log, &[], &more)?;
        says(&server, "standing by: server")?;
        Ok(server)
    }

    fn full(&self) -> Result<()> {
        let set = |full: &str, rest: &str| {
            self.cluster.ceph(&["osd", "set-nearfull-ratio", rest])?;
            self.cluster.ceph(&["osd", "set-backfillfull-ratio", rest])?;
            self.cluster.ceph(&["osd", "set-full-ratio", full])
        };
        let (server, socket) = self.serve("full", &["--take-over"])?;
        let new = fs::read(self.file("new"))?;
        write(&socket, &new, 0..REQUEST_BYTES)?;
        set("0.011", "0.01")?;
        let begun = Instant::now();
        let mut told = None;
        while told.is_none() && begun.elapsed() < FULL {
            told = write(&socket, &new, 0..1 << 20).err();
        }
        // Room again, whatever was found.
        self.cluster.ceph(&["osd", "set-full-ratio", "0.95"])?;
        set("0.95", "0.9")?;
        let told = told.context("writes to a full cluster are taken")?;
        ensure!(
            format!("{told:#}").contains("ENOSPC"),
            "a full cluster gives another error: {told:#}"
        );
        let begun = Instant::now();
        while let Err(error) = write(&socket, &new, 0..1 << 20) {
            ensure!(
                begun.elapsed() < FULL,
                "the cluster has room again, and writes still fail: {error:#}"
            );
            thread::sleep(Duration::from_millis(500));
        }
        server.stop()
    }

    fn rename(&self) -> Result<()> {
        let (put, got) = (self.file("new"), self.file("renamed"));
        self.on_store(&["put"], &["first", path(&put)])?;
        // Names lie in shards: some of these are in the same one as the name before, most are not.
        let names = ["first", "second", "third", "fourth", "fifth", "sixth"];
        for pair in names.windows(2) {
            self.on_store(&["mv"], pair)?;
        }
        for name in ["one", "uno", "eins", "un"].windows(2) {
            self.on_store(&["volume", "rename"], name)?;
        }
        ensure!(self.on_store(&["volume", "rename"], &["two", "un"]).is_err(), "a name was taken");
        self.on_store(&["volume", "rename"], &["un", "one"])?;
        let listed = self.on_store(&["volume", "list"], &[])?;
        ensure!(listed.contains("one") && !listed.contains("uno"), "volumes are {listed}");
        self.on_store(&["get"], &["sixth", "--output", path(&got)])?;
        ensure!(fs::read(&got)? == fs::read(&put)?, "a renamed object has other bytes");
        // `get` replaces no file, and the same is done with another pool.
        fs::remove_file(&got)?;
        self.on_store(&["rm"], &["sixth"]).map(drop)
    }

    /// A snapshot, clones and a rollback, while a disk, a worker, a server and the deletion are killed.
    fn snapshots(&self) -> Result<()> {
        let (old, new) = (fs::read(self.file("old"))?, fs::read(self.file("new"))?);
        let half = SMALL / 2;
        fs::write(self.file("mixed"), [&new[..half], &old[half..]].concat())?;
        let (server, socket) = self.serve("before", &[])?;
        write(&socket, &old, 0..SMALL)?;
        // A verb that does not find the server may take none.
        let nowhere = self.file("nowhere");
        fs::create_dir_all(&nowhere)?;
        let elsewhere = ["small@before", "--control", path(&nowhere)];
        let taken = self.on_store(&["snapshot", "create"], &elsewhere);
        ensure!(taken.is_err(), "a volume that a server has got a snapshot elsewhere");
        thread::scope(|scope| {
            let writes = scope.spawn(|| write(&socket, &old, 0..SMALL));
            thread::sleep(Duration::from_millis(300));
            self.on_store(&["snapshot", "create"], &["small@before"])?;
            self.on_store(&["volume", "clone"], &["small", "live"])?;
            writes.join().ok().context("a thread panicked")?
        })?;
        self.same(&socket, &["small", "small@before", "live"], "old")?;
        self.on_store(&["volume", "delete"], &["live"])?;
        self.on_store(&["snapshot", "clone"], &["small@before", "copy"])?;
        server.stop()?;
        let (server, socket) = self.serve("snapshots", &[])?;
        let worker = self.worker()?;
        thread::scope(|scope| {
            // The first write to each object makes it the volume's own.
            let writes = scope.spawn(|| write(&socket, &new, 0..half));
            thread::sleep(Duration::from_millis(300));
            self.cluster.kill_osd(1)?;
            drop(worker);
            thread::sleep(Duration::from_secs(2));
            self.cluster.start_osd(1)?;
            writes.join().ok().context("a thread panicked")?
        })?;
        server.kill();
        let (server, socket) = self.serve("heir", &["--take-over"])?;
        self.same(&socket, &["small"], "mixed")?;
        self.same(&socket, &["small@before", "copy"], "old")?;
        server.stop()?;
        ensure!(
            self.on_store(&["volume", "delete"], &["small"]).is_err(),
            "a volume with a snapshot was deleted"
        );
        self.on_store(&["volume", "clone"], &["small", "twin"])?;
        self.on_store(&["snapshot", "rollback"], &["small@before"])?;
        let arguments = ["snapshot", "delete", &self.store, "small@before"];
        let mut deletion = spawn(&mut self.onefold.command(arguments))?;
        thread::sleep(Duration::from_millis(700));
        // It was handing down what the snapshot had, or had not come to it.
        deletion.kill();
        let killed = Instant::now();
        let again = self.on_store(&["snapshot", "delete"], &["small@before"]);
        if let Err(error) = again {
            let said = format!("{error:#}");
            ensure!(said.contains("there is no snapshot"), "the second deletion: {said}");
        }
        let (server, socket) = self.serve("last", &[])?;
        let all = || {
            self.same(&socket, &["small", "copy"], "old")?;
            self.same(&socket, &["twin"], "mixed")
        };
        all()?;
        // Others go on with it when its lock has ended. What was copied last may be on no list until then.
        thread::sleep(LEASE.saturating_sub(killed.elapsed()));
        self.on_store(&["worker"], &["--once", "--cold", "0"])?;
        self.clean()?;
        all()?;
        server.stop()?;
        let listed = self.on_store(&["snapshot", "list"], &[])?;
        ensure!(listed.contains("no snapshots"), "a snapshot is left: {listed}");
        for name in ["copy", "twin"] {
            self.on_store(&["volume", "delete"], &[name])?;
        }
        Ok(())
    }

    fn delete(&self) -> Result<()> {
        for name in ["one", "two", "load", "small"] {
            self.on_store(&["volume", "delete"], &[name])?;
        }
        self.on_store(&["worker"], &["--once", "--cold", "0"])?;
        self.on_store(&["repair"], &[])?;
        let status = self.status()?;
        ensure!(status["chunks"] == 0 && status["objects"] == 0, "something is left: {status}");
        Ok(())
    }
}

/// Writes at the beginning, as soon as a server at this socket takes it; gives how long that took.
fn writes_again(socket: &Path, bytes: &[u8]) -> Result<Duration> {
    let begun = Instant::now();
    while let Err(error) = write(socket, bytes, 0..REQUEST_BYTES) {
        ensure!(begun.elapsed() < PATIENCE, "no server takes over: {error:#}");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(begun.elapsed())
}

/// Waits until a server says something.
fn says(server: &Server, text: &str) -> Result<()> {
    let begun = Instant::now();
    while !server.said().contains(text) {
        ensure!(begun.elapsed() < PATIENCE, "it does not say '{text}':\n{}", server.said());
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Two equal objects, each half zeroes or repeated, put by Ceph's own tool.
fn estimate(cluster: &Cluster, onefold: &Onefold, scratch: &Scratch) -> Result<()> {
    const BYTES: u64 = 16 << 20;
    let file = scratch.file("object");
    sample(&file, BYTES as usize)?;
    cluster.replicated("plain", 2)?;
    for name in ["a", "b"] {
        let mut put = program("rados");
        put.args(["-c", path(&cluster.configuration()), "-p", "plain", "put", name, path(&file)]);
        run_program(put, LIMIT)?;
    }
    let store = format!("rados:{}", cluster.configuration().display());
    // Rights on another pool are none on this one.
    let parts = ["may not read pool 'plain'", "osd 'allow r pool=plain'"];
    rights::refused(
        &rights::looker(cluster, onefold, "meta")?,
        &["estimate", &store, "plain"],
        &parts,
    )?;
    let onefold = rights::looker(cluster, onefold, "plain")?;
    let output = onefold.command(["estimate", &store, "plain", "--json"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout)?;
    for (key, value) in [
        ("bytes", 2 * BYTES),
        ("zero_bytes", BYTES / 2),
        ("different_bytes", BYTES / 2),
        ("packed_bytes", BYTES / 2),
    ] {
        ensure!(found[key] == value, "{key} is not {value} in {found}");
    }
    ensure!(found["copies"] == 2.0, "{found}");
    // The counts of the pool are told every few seconds.
    let begun = Instant::now();
    loop {
        let half = ["estimate", &store, "plain", "--json", "--sample", "50", "--rate", "1G"];
        let output = onefold.command(half).output()?;
        let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if found["objects"] == 1 && found["bytes"] == BYTES && found["objects_of_pool"] == 2 {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(begun.elapsed() < PATIENCE, "half of the pool is {found}: {said}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// Writes a range of `data` to where it belongs in volume `small`, and flushes.
fn write(socket: &Path, data: &[u8], range: std::ops::Range<usize>) -> Result<()> {
    let mut client = Client::connect(socket, "small")?;
    let start = range.start as u64;
    let pieces = data[range]
        .chunks(REQUEST_BYTES)
        .enumerate()
        .map(|(n, piece)| (start + (n * REQUEST_BYTES) as u64, piece));
    client.write_all(pieces)?;
    client.flush()?;
    client.disconnect()
}
