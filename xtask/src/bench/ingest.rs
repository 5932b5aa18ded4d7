//! Data on its way into an archive, ours alone: a put from disk to disk, the memory of a backup, a
//! volume that is written in order beside a put of the same data, and at random beside the block
//! engine.
//!
//! Sources are made here, and are not in the system's cache when they are read. What is compared takes
//! turns. Programs that are not installed leave their rows out, which says so.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use super::{
    archive::data,
    backups::tree::Tree,
    cost::{self, Cost},
    machine_facts, median, needs_space,
};
use crate::{
    cleanup::Scratch,
    machine,
    product::{Build, Onefold, path, uri},
    program::{program, run as run_program},
};

const USAGE: &str = "cargo xtask bench archive-writes [--quick] [--only put|memory|ordered|random]";

/// Longest that one command may take.
const LIMIT: Duration = Duration::from_secs(900);

/// Free space that a full run needs, and a first look.
const SPACE_BYTES: u64 = 8 << 30;
const SPACE_QUICK_BYTES: u64 = 2 << 30;

/// MB for each processor second of a put from disk to disk, uncompressed: first version, second.
const PUT: [f64; 2] = [1000.0, 1500.0];

/// The part of all processors that is in use while a put runs.
const SHARE: f64 = 0.9;

/// The speed of a volume that is written in order, of that of a put.
const ORDERED: f64 = 0.85;

/// The speed of random writes that are read again and compared, of that of the block engine.
const RANDOM: f64 = 0.3;

/// How much there is to do.
struct Size {
    quick: bool,
    rounds: usize,
    /// Small files of the directory of a backup.
    files: usize,
    /// MiB that are written at random.
    random_mib: u64,
}

const FULL: Size = Size { quick: false, rounds: 5, files: 20_000, random_mib: 256 };
const QUICK: Size = Size { quick: true, rounds: 1, files: 2000, random_mib: 32 };

/// Runs it; `Ok(false)` when a full run misses a bar.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let (mut size, mut only) = (FULL, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => size = QUICK,
            "--only" => only = rest.next().cloned(),
            _ => bail!("which?\n\n{USAGE}"),
        }
    }
    let onefold = Onefold::build(Build::Release)?;
    let scratch = Scratch::new("bench-archive-writes")?;
    needs_space(&scratch, if size.quick { SPACE_QUICK_BYTES } else { SPACE_BYTES })?;
    println!("{}", machine_facts(scratch.path(), &["fio", "nbdcopy"]));
    let bench =
        Bench { versions: data::stream(scratch.path(), size.quick)?, onefold, scratch, size };
    let bytes = fs::metadata(&bench.versions[0])?.len();
    println!(
        "Two versions of a stream with a third of repeats, {} MB each. Rounds: {}; medians.\n",
        bytes / 1_000_000,
        bench.size.rounds
    );
    println!("| what | | bar | |\n|---|---|---|---|");
    type Part = fn(&Bench) -> Result<bool>;
    let parts: [(&str, Part); 4] = [
        ("put", Bench::puts),
        ("memory", Bench::memory),
        ("ordered", Bench::ordered),
        ("random", Bench::random),
    ];
    let mut reached = true;
    for (name, part) in parts {
        if only.as_ref().is_none_or(|only| only == name) {
            reached &= part(&bench)?;
        }
    }
    Ok(reached || bench.size.quick)
}

struct Bench {
    onefold: Onefold,
    scratch: Scratch,
    size: Size,
    versions: [PathBuf; 2],
}

/// A row; false when it misses its bar.
fn row(what: &str, figure: f64, unit: &str, bar: Option<f64>) -> bool {
    let missed = bar.is_some_and(|bar| figure < bar);
    let verdict = match (bar, missed) {
        (None, _) => "",
        (Some(_), false) => "reached",
        (Some(_), true) => "MISSED",
    };
    let bar = bar.map_or(String::new(), |bar| bar.to_string());
    let digits = if figure < 10.0 { 2 } else { 0 };
    println!("| {what} | {figure:.digits$}{unit} | {bar} | {verdict} |");
    !missed
}

/// Lets the system forget what a file holds, durable as it is then.
fn cool(file: &Path) -> Result<()> {
    let file = fs::File::open(file)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

fn mb(file: &Path) -> Result<f64> {
    Ok(fs::metadata(file)?.len() as f64 / 1e6)
}

impl Bench {
    /// A new archive of this name.
    fn archive(&self, name: &str, compress: &str) -> Result<PathBuf> {
        let archive = self.scratch.file(name);
        if archive.exists() {
            fs::remove_dir_all(&archive)?;
        }
        self.onefold.verb(["create", "archive", path(&archive), "--compress", compress])?;
        Ok(archive)
    }

    fn put(&self, archive: &Path, name: &str, file: &Path) -> Result<Cost> {
        cost::of(self.onefold.command(["put", path(archive), name, path(file)]), LIMIT)
    }

    /// Puts from disk to disk.
    fn puts(&self) -> Result<bool> {
        let cores = std::thread::available_parallelism()?.get() as f64;
        let mut reached = true;
        for (compress, bars, share) in
            [("none", PUT.map(Some), Some(SHARE)), ("zstd", [None; 2], None)]
        {
            let (mut rates, mut shares) = ([vec![], vec![]], [vec![], vec![]]);
            for _ in 0..self.size.rounds {
                let archive = self.archive("put", compress)?;
                for (n, version) in self.versions.iter().enumerate() {
                    cool(version)?;
                    let cost = self.put(&archive, &n.to_string(), version)?;
                    rates[n].push(mb(version)? / cost.cpu);
                    shares[n].push(cost.cpu / cost.wall / cores);
                }
            }
            for (n, version) in ["first", "second"].iter().enumerate() {
                let what = format!("put, {compress}, {version} version: MB a processor second");
                reached &= row(&what, median(&rates[n]), "", bars[n]);
                let what = format!("part of {cores} processors");
                reached &= row(&what, median(&shares[n]), "", share);
            }
        }
        Ok(reached)
    }

    /// The memory of a backup of one large file and many small ones.
    fn memory(&self) -> Result<bool> {
        let directory = self.scratch.file("directory");
        let tree = Tree::new(directory.clone(), self.size.files, 2048)?;
        fs::copy(&self.versions[0], directory.join("large"))?;
        let archive = self.archive("memory", "zstd")?;
        let backup = |what: &str| -> Result<()> {
            let command =
                self.onefold.command(["backup", path(&archive), path(&directory), "--set", "all"]);
            let cost = cost::of(command, LIMIT)?;
            row(what, cost.memory as f64 / f64::from(1 << 20), " MiB", None);
            Ok(())
        };
        let files = tree.files();
        backup(&format!("memory of a backup of {files} small files and a large one"))?;
        fs::copy(&self.versions[1], directory.join("large"))?;
        backup("memory of the next, with a second version of the large one")?;
        fs::remove_dir_all(directory)?;
        Ok(true)
    }

    /// A volume that is written in order, beside a put of the same file into an archive of its own.
    fn ordered(&self) -> Result<bool> {
        if machine::find("nbdcopy").is_none() {
            println!("| volumes in order | NOT MEASURED: Debian's libnbd-bin has nbdcopy | | |");
            return Ok(true);
        }
        let mut ratios = [vec![], vec![]];
        for round in 0..self.size.rounds {
            let mut walls = [[0.0; 2]; 2];
            for side in [round % 2, 1 - round % 2] {
                walls[side] = if side == 0 { self.put_twice()? } else { self.copy_twice()? };
            }
            for n in 0..2 {
                ratios[n].push(walls[0][n] / walls[1][n]);
            }
        }
        let mut reached = true;
        for (n, version) in ["first", "second"].iter().enumerate() {
            let what = format!("volume in order beside a put, {version} version: times the speed");
            reached &= row(&what, median(&ratios[n]), "", Some(ORDERED));
        }
        Ok(reached)
    }

    /// Seconds of two puts.
    fn put_twice(&self) -> Result<[f64; 2]> {
        let archive = self.archive("beside", "none")?;
        let mut walls = [0.0; 2];
        for (n, version) in self.versions.iter().enumerate() {
            warm(version)?;
            walls[n] = self.put(&archive, &n.to_string(), version)?.wall;
        }
        Ok(walls)
    }

    /// Seconds of two copies over NBD, into two volumes of one archive.
    fn copy_twice(&self) -> Result<[f64; 2]> {
        let archive = self.archive("served", "none")?;
        let size = fs::metadata(&self.versions[0])?.len().next_multiple_of(128 << 10).to_string();
        for volume in ["v0", "v1"] {
            self.onefold.verb(["volume", "create", path(&archive), volume, "--size", &size])?;
        }
        let socket = self.scratch.file("served.sock");
        let listener = format!("unix:{}", socket.display());
        let server = self.onefold.serve(&archive, &[listener], &[])?;
        let mut walls = [0.0; 2];
        for (n, version) in self.versions.iter().enumerate() {
            warm(version)?;
            let mut command = program("nbdcopy");
            command.args(["--flush", path(version), &uri(&socket, &format!("v{n}"))]);
            walls[n] = cost::of(command, LIMIT)?.wall;
        }
        server.stop()?;
        self.onefold.check(&archive)?;
        Ok(walls)
    }

    /// Random 4 KiB writes that are read again and compared, beside a volume of the block engine.
    fn random(&self) -> Result<bool> {
        if machine::find("fio").is_none() {
            println!("| volumes at random | NOT MEASURED: Debian's fio has it | | |");
            return Ok(true);
        }
        let (mut ratios, size) = (vec![], format!("{}M", self.size.random_mib));
        for round in 0..self.size.rounds {
            let mut seconds = [0.0; 2];
            for side in [round % 2, 1 - round % 2] {
                let store = if side == 0 {
                    let store = self.scratch.file("random.store");
                    let _ = fs::remove_file(&store);
                    let bytes = format!("{}M", 4 * self.size.random_mib + 512);
                    self.onefold.create(&store, &bytes, &[], &[("v", size.clone())])?;
                    store
                } else {
                    let archive = self.archive("random", "zstd")?;
                    self.onefold.verb([
                        "volume",
                        "create",
                        path(&archive),
                        "v",
                        "--size",
                        &size,
                    ])?;
                    archive
                };
                let socket = self.scratch.file("random.sock");
                let listener = format!("unix:{}", socket.display());
                let server = self.onefold.serve(&store, &[listener], &[])?;
                seconds[side] = self.verified(&socket, round)?;
                server.stop()?;
                self.onefold.check(&store)?;
            }
            ratios.push(seconds[0] / seconds[1]);
        }
        let what = "random 4 KiB writes, read again and compared, beside a block store";
        Ok(row(&format!("{what}: times the speed"), median(&ratios), "", Some(RANDOM)))
    }

    /// Seconds until each block of the volume is written, in random order, and compared.
    fn verified(&self, socket: &Path, seed: usize) -> Result<f64> {
        let mut command = program("fio");
        command.current_dir(self.scratch.path()).stdout(Stdio::null()).args([
            "--name=verified",
            "--ioengine=nbd",
            "--rw=randwrite",
            "--bs=4096",
            "--iodepth=32",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--end_fsync=1",
        ]);
        command.args([
            format!("--uri={}", uri(socket, "v")),
            format!("--size={}m", self.size.random_mib),
            format!("--randseed={}", seed + 1),
        ]);
        let begun = Instant::now();
        let said = run_program(command, LIMIT)?;
        ensure!(!said.contains("verify:"), "fio found other bytes: {said}");
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Lets the system have a file in its cache.
fn warm(file: &Path) -> Result<()> {
    std::io::copy(&mut fs::File::open(file)?, &mut std::io::sink())?;
    Ok(())
}
