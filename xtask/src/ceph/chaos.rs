//! `cargo xtask ceph chaos`: disks, the monitor, workers and servers are killed and stopped by chance, the cluster gets
//! full and pools change, while clients write to four volumes and fio to four others. Nothing may be lost, and all is
//! clean in the end.
//!
//! Each block that a client writes tells its volume, its place and a version. A version that was flushed must be read later,
//! or something that was written since. A client whose server is gone connects again, as those of virtual machines do.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use rustix::process::Signal;

use super::{
    GIGABYTES, OSDS,
    cluster::{self, Cluster},
    proof::{LEASE, LIMIT, Site},
    rights, scratch,
};
use crate::{
    nbd::Client,
    packages,
    product::{Build, Onefold, Server, uri},
    program::{Running, program, run as run_program},
};

/// Volumes of each kind.
const VOLUMES: usize = 4;

/// Bytes of each.
const BYTES: u64 = 64 << 20;

/// Bytes of a block.
const BLOCK: usize = 4096;

/// Blocks of a write, at most.
const WRITE_BLOCKS: u64 = 64;

/// Different contents of one version; volumes share them.
const PLACES: u64 = 512;

/// Servers that stand by for each other.
const SERVERS: usize = 2;

/// How long clients of one kind are at work before those of the other kind are.
const ROUND: Duration = Duration::from_secs(60);

/// Longest that a client may be without a server.
const WITHOUT: Duration = Duration::from_secs(240);

/// Numbers by chance.
#[derive(Clone)]
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0) % end.max(1)
    }
}

fn mixed(of: u64) -> u64 {
    let of = (of ^ of >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let of = (of ^ of >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    of ^ of >> 31
}

/// The content of a block in a version; the first bytes of one in four say whose it is, so that it is there once.
fn content(volume: usize, block: u64, version: u32) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    let mut chance = Chance(mixed((block % PLACES) << 32 | u64::from(version)));
    bytes
        .chunks_mut(8)
        .for_each(|word| word.copy_from_slice(&chance.below(u64::MAX).to_le_bytes()));
    if mixed(block ^ u64::from(version)).is_multiple_of(4) {
        bytes[0] = volume as u8;
        bytes[8..16].copy_from_slice(&block.to_le_bytes());
    }
    bytes
}

/// The versions that the blocks of one volume may hold.
struct Model {
    volume: usize,
    /// The version that was flushed last; 0 for zeroes.
    flushed: Vec<u32>,
    /// The versions that were written since, or may have been: true when the write was answered.
    since: BTreeMap<u64, Vec<(u32, bool)>>,
    version: u32,
}

impl Model {
    fn new(volume: usize) -> Model {
        let blocks = (BYTES / BLOCK as u64) as usize;
        Model { volume, flushed: vec![0; blocks], since: BTreeMap::new(), version: 0 }
    }

    /// Blocks get new contents.
    fn write(&mut self, first: u64, count: u64) -> Vec<u8> {
        self.version += 1;
        let mut bytes = Vec::with_capacity(count as usize * BLOCK);
        for block in first..first + count {
            self.since.entry(block).or_default().push((self.version, false));
            bytes.extend_from_slice(&content(self.volume, block, self.version));
        }
        bytes
    }

    /// The last write to these blocks was answered.
    fn answered(&mut self, first: u64, count: u64) {
        let written = self.since.range_mut(first..first + count);
        written.filter_map(|(_, versions)| versions.last_mut()).for_each(|last| last.1 = true);
    }

    /// All that was answered is durable. A write without an answer may have been done, until a later one was.
    fn flush(&mut self) {
        let flushed = &mut self.flushed;
        self.since.retain(|block, versions| {
            if let Some(at) = versions.iter().rposition(|(_, is_answered)| *is_answered) {
                flushed[*block as usize] = versions[at].0;
                versions.drain(..=at);
            }
            !versions.is_empty()
        });
    }

    /// Errors when a block holds what it can't.
    fn check(&self, block: u64, bytes: &[u8]) -> Result<()> {
        let flushed = self.flushed[block as usize];
        let since = self.since.get(&block).into_iter().flatten().map(|(version, _)| *version);
        let may_be = std::iter::once(flushed).chain(since).any(|version| match version {
            0 => bytes.iter().all(|&byte| byte == 0),
            version => bytes == content(self.volume, block, version),
        });
        ensure!(
            may_be,
            "block {block} of volume v{} holds neither version {flushed}, which was flushed, nor what was written since: \
             {:x?}",
            self.volume,
            &bytes[..32]
        );
        Ok(())
    }

    fn check_range(&self, socket: &Path, first: u64, count: u64) -> Result<Result<()>> {
        let mut client = Client::connect(socket, &format!("v{}", self.volume))?;
        let mut found = Ok(());
        client.read_range(first * BLOCK as u64, count * BLOCK as u64, |at, bytes| {
            for (n, bytes) in bytes.chunks(BLOCK).enumerate() {
                if found.is_ok() {
                    found = self.check(at / BLOCK as u64 + n as u64, bytes);
                }
            }
            Ok(())
        })?;
        client.disconnect()?;
        Ok(found)
    }
}

/// The state that all threads see.
struct Stage<'a> {
    site: &'a Site<'a>,
    socket: std::path::PathBuf,
    /// The clients' time is over.
    is_over: AtomicBool,
    /// The first failure.
    failed: Mutex<Option<String>>,
}

impl Stage<'_> {
    fn ends(&self) -> bool {
        self.is_over.load(Relaxed) || self.failed.lock().is_some()
    }

    fn fail(&self, error: &anyhow::Error) {
        self.failed.lock().get_or_insert_with(|| format!("{error:#}"));
    }

    /// Writes and reads until the time is over; connects again whenever its server is gone.
    fn client(&self, model: &mut Model, chance: &mut Chance) {
        let mut last = Instant::now();
        while !self.ends() {
            match self.visit(model, chance, &mut last) {
                Ok(Err(wrong)) => return self.fail(&wrong),
                Ok(Ok(())) => {}
                Err(error) if last.elapsed() > WITHOUT => {
                    return self
                        .fail(&error.context(format!("volume v{} is not served", model.volume)));
                }
                Err(_) => thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// One connection: an error of it, or one of what it read.
    fn visit(
        &self,
        model: &mut Model,
        chance: &mut Chance,
        last: &mut Instant,
    ) -> Result<Result<()>> {
        let mut client = Client::connect(&self.socket, &format!("v{}", model.volume))?;
        while !self.ends() {
            let blocks = BYTES / BLOCK as u64;
            let count = 1 + chance.below(WRITE_BLOCKS);
            let first = chance.below(blocks - count);
            if chance.below(4) == 0 {
                let read = model.check_range(&self.socket, first, count)?;
                if read.is_err() {
                    return Ok(read);
                }
            } else {
                let bytes = model.write(first, count);
                client.write_all([(first * BLOCK as u64, &bytes[..])].into_iter())?;
                model.answered(first, count);
                if chance.below(3) == 0 {
                    client.flush()?;
                    model.flush();
                }
            }
            *last = Instant::now();
            thread::sleep(Duration::from_millis(5));
        }
        client.flush()?;
        model.flush();
        client.disconnect()?;
        Ok(Ok(()))
    }
}

/// The events.
const EVENTS: [&str; 10] = [
    "a disk is killed",
    "a disk is stopped",
    "the monitor is killed",
    "the monitor is stopped",
    "a worker is killed",
    "a worker is stopped",
    "the cluster is nearly full",
    "a pool has other copies",
    "a server is killed",
    "a server is stopped",
];

/// The processes to which events happen, and which ones did.
struct Chaos<'a> {
    site: &'a Site<'a>,
    chance: Chance,
    servers: Vec<Server>,
    started: usize,
    worker: Running,
    counts: BTreeMap<&'static str, u64>,
}

impl Chaos<'_> {
    fn cluster(&self) -> &Cluster {
        self.site.cluster
    }

    /// Starts one more server that stands by.
    fn server(site: &Site<'_>, number: usize, socket: &Path) -> Result<Server> {
        let (at, log) =
            (format!("unix:{}", socket.display()), site.file(&format!("chaos-{number}.log")));
        let more = ["--workers", "0", "--standby", "--stand-by-again", "--nbd", &at];
        site.onefold.serve_to(&site.store, &log, &[], &more)
    }

    /// Lets something happen, and mends it. Servers stay alone when `serves_fio`.
    fn event(&mut self, socket: &Path, serves_fio: bool) -> Result<()> {
        let kinds = if serves_fio { 8 } else { EVENTS.len() as u64 };
        let kind = self.chance.below(kinds) as usize;
        let seconds = |chance: &mut Chance, least: u64, most: u64| {
            Duration::from_secs(least + chance.below(most - least + 1))
        };
        let disk = format!("osd.{}", self.chance.below(OSDS as u64));
        *self.counts.entry(EVENTS[kind]).or_default() += 1;
        match kind {
            0 | 2 => {
                let name = if kind == 0 { &*disk } else { "mon.a" };
                self.cluster().signal(name, Signal::KILL);
                thread::sleep(seconds(&mut self.chance, 1, 8));
                self.cluster().daemon(name)?;
            }
            1 | 3 => {
                let name = if kind == 1 { &*disk } else { "mon.a" };
                self.cluster().signal(name, Signal::STOP);
                thread::sleep(seconds(&mut self.chance, 1, 12));
                self.cluster().signal(name, Signal::CONT);
            }
            4 => {
                self.worker.kill();
                thread::sleep(seconds(&mut self.chance, 0, 3));
                self.worker = self.site.worker()?;
            }
            5 => {
                self.worker.signal(Signal::STOP);
                thread::sleep(seconds(&mut self.chance, 1, 15));
                self.worker.signal(Signal::CONT);
            }
            6 => {
                self.cluster().ceph(&["osd", "set-nearfull-ratio", "0.01"])?;
                if !serves_fio {
                    // Clients are refused for a while.
                    self.cluster().ceph(&["osd", "set-backfillfull-ratio", "0.01"])?;
                    self.cluster().ceph(&["osd", "set-full-ratio", "0.011"])?;
                }
                thread::sleep(seconds(&mut self.chance, 2, 8));
                self.room()?;
            }
            7 => {
                let pool = ["meta-2", "chunks-2"][self.chance.below(2) as usize];
                self.cluster().ceph(&["osd", "pool", "set", pool, "size", "3"])?;
                thread::sleep(seconds(&mut self.chance, 2, 8));
                self.cluster().ceph(&["osd", "pool", "set", pool, "size", "2"])?;
            }
            8 => {
                let n = self.chance.below(self.servers.len() as u64) as usize;
                self.servers.swap_remove(n).kill();
                self.started += 1;
                self.servers.push(Chaos::server(self.site, self.started, socket)?);
            }
            _ => {
                let n = self.chance.below(self.servers.len() as u64) as usize;
                self.servers[n].signal(Signal::STOP);
                thread::sleep(seconds(&mut self.chance, 2, 20));
                self.servers[n].signal(Signal::CONT);
            }
        }
        Ok(())
    }

    /// There is room again.
    fn room(&self) -> Result<()> {
        self.cluster().ceph(&["osd", "set-full-ratio", "0.95"])?;
        self.cluster().ceph(&["osd", "set-backfillfull-ratio", "0.9"])?;
        self.cluster().ceph(&["osd", "set-nearfull-ratio", "0.85"]).map(|_| ())
    }

    /// Events until `until`, with pauses; disks are whole before the next one.
    fn events(&mut self, stage: &Stage<'_>, serves_fio: bool, until: Instant) -> Result<()> {
        while Instant::now() < until && stage.failed.lock().is_none() {
            thread::sleep(Duration::from_millis(500 + self.chance.below(4_000)));
            self.event(&stage.socket, serves_fio)?;
            self.cluster().wait_clean()?;
        }
        Ok(())
    }
}

/// fio on a volume, with its own check of what it wrote.
fn fio(site: &Site<'_>, socket: &Path, volume: usize) -> Result<()> {
    let mut fio = program("fio");
    fio.args([
        "--name=chaos",
        "--ioengine=nbd",
        &format!("--uri={}", uri(socket, &format!("f{volume}"))),
    ]);
    fio.args([
        "--rw=randwrite",
        "--bsrange=4k-64k",
        "--bs_unaligned=0",
        "--size=64m",
        "--iodepth=8",
    ]);
    fio.args(["--rate=2m", "--dedupe_percentage=30", "--verify=crc32c", "--do_verify=1"]);
    fio.args(["--verify_fatal=1", "--output-format=terse"]).current_dir(&site.folder);
    run_program(fio, LIMIT).map(|_| ()).with_context(|| format!("fio on volume f{volume}"))
}

/// Runs it for so many minutes.
pub(super) fn run(minutes: u64, seed: u64) -> Result<bool> {
    println!("    {}", packages::ensure()?);
    println!("    {}", cluster::ensure_installed()?);
    let scratch = scratch()?;
    let cluster = Cluster::create(&scratch.file("c"), OSDS, GIGABYTES)?;
    for pool in ["meta-2", "chunks-2"] {
        cluster.replicated(pool, 2)?;
    }
    cluster.wait_clean()?;
    rights::users(&cluster, &["meta-2"], &["chunks-2"])?;
    let onefold = Onefold::build(Build::Test)?;
    let store = format!("rados:{}#meta-2", cluster.configuration().display());
    let site = Site {
        cluster: &cluster,
        onefold: rights::as_user(&onefold, rights::DAILY),
        maker: rights::as_user(&onefold, rights::MAKER),
        store,
        folder: scratch.path().to_owned(),
        image: BYTES as usize,
    };
    site.create("meta-2", "chunks-2")?;
    for n in 0..VOLUMES {
        for kind in ["v", "f"] {
            site.on_store(&["volume", "create"], &[&format!("{kind}{n}"), "--size", "64M"])?;
        }
    }
    let socket = site.file("chaos.sock");
    let servers =
        (0..SERVERS).map(|n| Chaos::server(&site, n, &socket)).collect::<Result<Vec<_>>>()?;
    let mut chaos = Chaos {
        site: &site,
        chance: Chance(seed),
        servers,
        started: SERVERS,
        worker: site.worker()?,
        counts: BTreeMap::new(),
    };
    let mut models: Vec<Model> = (0..VOLUMES).map(Model::new).collect();
    let (begun, end) = (Instant::now(), Duration::from_secs(minutes * 60));
    let mut round = 0;
    while begun.elapsed() < end {
        let (is_over, failed) = (AtomicBool::new(false), Mutex::new(None));
        let stage = Stage { site: &site, socket: socket.clone(), is_over, failed };
        let serves_fio = round % 2 == 1;
        thread::scope(|scope| {
            let stage = &stage;
            let work = |model: &'_ mut Model| {
                let mut chance = Chance(mixed(seed ^ round << 8 ^ model.volume as u64));
                match serves_fio {
                    true => {
                        let done = fio(stage.site, &stage.socket, model.volume);
                        done.unwrap_or_else(|error| stage.fail(&error));
                    }
                    false => stage.client(model, &mut chance),
                }
            };
            let clients: Vec<_> =
                models.iter_mut().map(|model| scope.spawn(move || work(model))).collect();
            let happened = chaos.events(stage, serves_fio, Instant::now() + ROUND);
            stage.is_over.store(true, Relaxed);
            let ended = clients.into_iter().all(|client| client.join().is_ok());
            happened?;
            ensure!(ended, "a client panicked");
            anyhow::Ok(())
        })?;
        let failed = stage.failed.lock().take();
        ensure!(failed.is_none(), "round {round}, seed {seed}: {}", failed.unwrap_or_default());
        round += 1;
    }
    chaos.room()?;
    cluster.wait_clean()?;
    for model in &models {
        let begun = Instant::now();
        while let Err(error) = model.check_range(&socket, 0, 1) {
            ensure!(begun.elapsed() < WITHOUT, "volume v{} is not served: {error:#}", model.volume);
            thread::sleep(Duration::from_millis(500));
        }
        model.check_range(&socket, 0, BYTES / BLOCK as u64)??;
    }
    let Chaos { servers, mut worker, counts, .. } = chaos;
    worker.signal(Signal::TERM);
    let ended = worker.wait(LIMIT)?.context("the worker does not end")?;
    ensure!(ended.success(), "the worker ended with {ended}");
    servers.into_iter().try_for_each(Server::stop)?;
    // Locks of killed processes end with their leases.
    thread::sleep(LEASE);
    site.clean()?;
    for (event, count) in counts {
        println!("    {count:>4} {event}");
    }
    println!(
        "chaos: {} s, {round} rounds, seed {seed}: nothing lost, all clean",
        begun.elapsed().as_secs()
    );
    Ok(true)
}
