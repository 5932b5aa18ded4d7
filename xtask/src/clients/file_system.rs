//! A real file system: nbdfuse, a loop device, ext4 and XFS. Files are copied and synced, the
//! server is killed while they are written, and afterwards the file system must be clean and every
//! file that was synced must be whole.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{LIMIT, SCHEMES, Served, check};
use crate::{
    cleanup::Guard,
    machine,
    product::{path, uri},
    program::{Running, program, run as run_program, spawn},
    test::Tally,
};

/// Synced files that must be there before the server is killed.
const FILES_MIN: usize = 40;

/// Longest that writing them may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Least time that files are written before the server is killed: long enough for flushes of its
/// own in between.
const WRITING: Duration = Duration::from_secs(3);

/// Runs all checks.
pub(super) fn run() -> Result<Tally> {
    let mut tally = Tally::default();
    if !machine::is_root() {
        println!(
            "    file systems: FAILED: loop devices and mounting need root; run this step as root"
        );
        return Ok(Tally {
            passed: 0,
            failed: 2 + SCHEMES.len(),
            note: "needs root (loop devices, mount)".into(),
        });
    }
    for kind in [Kind::Ext4, Kind::Xfs] {
        check(&mut tally, &format!("{kind:?}: copied, synced, killed, checked"), || {
            survive(kind, &[])
        });
    }
    for (scheme, options) in SCHEMES {
        check(&mut tally, &format!("{scheme}: ext4: copied, synced, killed, checked"), || {
            survive(Kind::Ext4, options)
        });
    }
    Ok(tally)
}

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl Kind {
    /// Makes it on a device.
    pub(crate) fn make(self, device: &str) -> Result<()> {
        match self {
            Kind::Ext4 => root("mkfs.ext4", &["-q", "-E", "nodiscard", device]),
            Kind::Xfs => root("mkfs.xfs", &["-q", "-f", device]),
        }
    }

    /// Fails unless everything is in order. The journal must have been replayed by a mount before.
    pub(crate) fn check(self, device: &str) -> Result<()> {
        match self {
            Kind::Ext4 => root("e2fsck", &["-f", "-n", device]),
            Kind::Xfs => root("xfs_repair", &["-n", device]),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
        }
    }
}

fn root(name: &str, arguments: &[&str]) -> Result<()> {
    let mut command = program(name);
    command.args(arguments);
    run_program(command, LIMIT).map(|_| ())
}

/// A volume as a block device. Dropping it takes all of it down, also when the server is gone.
pub(crate) struct Attached {
    /// The loop device.
    pub(crate) device: String,
    // In the order in which they are taken down.
    mount: Option<Guard>,
    _loop: Guard,
    _fuse: Guard,
    _nbdfuse: Running,
}

impl Attached {
    fn new(served: &Served) -> Result<Attached> {
        Attached::below(served.scratch.path(), &served.socket, "disk")
    }

    /// A volume behind a socket; what it needs lies below `place`.
    pub(crate) fn below(place: &Path, socket: &Path, volume: &str) -> Result<Attached> {
        let point = place.join("fuse");
        fs::create_dir_all(&point)?;
        let mut command = program("nbdfuse");
        command.args([&format!("{}/disk", path(&point)), &uri(socket, volume)]);
        // nbdfuse complains when its server is killed.
        let log = File::create(place.join("nbdfuse.log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        let nbdfuse = spawn(&mut command)?;
        let fuse = Guard::new({
            let point = point.clone();
            move || quietly("fusermount3", &["-u", "-z", path(&point)])
        });
        let file = point.join("disk");
        let begun = Instant::now();
        while !file.exists() {
            ensure!(begun.elapsed() < PATIENCE, "nbdfuse shows no file");
            thread::sleep(Duration::from_millis(5));
        }
        let mut command = program("losetup");
        command.args(["--find", "--show", path(&file)]);
        let device = run_program(command, LIMIT)
            .context("a loop device (is /dev/loop-control there?)")?
            .trim()
            .to_owned();
        let detach = Guard::new({
            let device = device.clone();
            move || quietly("losetup", &["--detach", &device])
        });
        Ok(Attached { device, mount: None, _loop: detach, _fuse: fuse, _nbdfuse: nbdfuse })
    }

    /// Mounts it; a file system that was not unmounted is brought in order by its journal.
    pub(crate) fn mount(&mut self, kind: Kind, at: &Path) -> Result<()> {
        fs::create_dir_all(at)?;
        root("mount", &["-t", kind.name(), &self.device, path(at)])?;
        let point = at.to_path_buf();
        self.mount = Some(Guard::new(move || {
            // A file system whose device fails refuses to be unmounted politely.
            if !succeeds("umount", &[path(&point)]) {
                quietly("umount", &["-l", path(&point)]);
            }
        }));
        Ok(())
    }

    /// Unmounts it.
    pub(crate) fn unmount(&mut self, at: &Path) -> Result<()> {
        root("umount", &[path(at)])?;
        self.mount = None;
        Ok(())
    }
}

fn quietly(name: &str, arguments: &[&str]) {
    succeeds(name, arguments);
}

fn succeeds(name: &str, arguments: &[&str]) -> bool {
    let mut command = program(name);
    command.args(arguments);
    crate::program::finish(command, Duration::from_secs(30), false)
        .is_ok_and(|ended| ended.status.success())
}

fn survive(kind: Kind, options: &[&str]) -> Result<()> {
    let mut served = Served::new("file-system", "2G", options, &[("disk", "1G")])?;
    served.onefold.verb(["volume", "set", path(&served.store), "disk", "--no-dedup", "0-64K"])?;
    let mount_point = served.file("mnt");
    let mut attached = Attached::new(&served)?;
    kind.make(&attached.device)?;
    attached.mount(kind, &mount_point)?;

    // Files of this machine, synced together; then unmounted and checked while all is well.
    let copied = copy_files(&mount_point.join("copied"))?;
    root("sync", &["-f", path(&mount_point)])?;
    root("fstrim", &[path(&mount_point)])?;
    attached.unmount(&mount_point)?;
    kind.check(&attached.device)?;
    attached.mount(kind, &mount_point)?;

    let synced = write_until_killed(&mut served, &mount_point)?;
    drop(attached);

    served.start()?;
    let mut attached = Attached::new(&served)?;
    // Mounting replays the journal.
    attached.mount(kind, &mount_point)?;
    attached.unmount(&mount_point)?;
    kind.check(&attached.device)?;
    attached.mount(kind, &mount_point)?;
    for (file, original) in &copied {
        ensure!(
            fs::read(file).ok() == fs::read(original).ok(),
            "{} differs from {}",
            file.display(),
            original.display()
        );
    }
    for (file, &bytes) in &synced {
        let found = fs::read(file)
            .with_context(|| format!("a synced file is missing: {}", file.display()))?;
        ensure!(found == content(file, bytes), "the synced file {} is damaged", file.display());
    }
    attached.unmount(&mount_point)?;
    drop(attached);
    println!(
        "    {kind:?}: {} files copied, {} synced before the kill",
        copied.len(),
        synced.len()
    );
    served.finish()
}

/// Makes a file system on a volume, copies files, removes half of them, trims it and checks it.
pub(crate) fn churn(place: &Path, socket: &Path, volume: &str) -> Result<()> {
    let mount_point = place.join("mnt");
    let mut attached = Attached::below(place, socket, volume)?;
    Kind::Ext4.make(&attached.device)?;
    attached.mount(Kind::Ext4, &mount_point)?;
    let copied = copy_files(&mount_point.join("copied"))?;
    copied.keys().step_by(2).try_for_each(fs::remove_file)?;
    root("sync", &["-f", path(&mount_point)])?;
    root("fstrim", &[path(&mount_point)])?;
    attached.unmount(&mount_point)?;
    attached.mount(Kind::Ext4, &mount_point)?;
    for (file, original) in copied.iter().skip(1).step_by(2) {
        ensure!(
            fs::read(file).ok() == fs::read(original).ok(),
            "{} differs from {}",
            file.display(),
            original.display()
        );
    }
    attached.unmount(&mount_point)?;
    Kind::Ext4.check(&attached.device)
}

/// Copies some files of this machine; returns copies and originals.
fn copy_files(into: &Path) -> Result<BTreeMap<PathBuf, PathBuf>> {
    fs::create_dir_all(into)?;
    let mut copied = BTreeMap::new();
    let mut left: u64 = 48 << 20;
    let mut entries: Vec<PathBuf> =
        fs::read_dir("/usr/bin")?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for original in entries {
        let Ok(meta) = fs::symlink_metadata(&original) else { continue };
        if !meta.is_file() || meta.len() > left {
            continue;
        }
        let copy = into.join(original.file_name().unwrap_or_default());
        fs::copy(&original, &copy).with_context(|| format!("copying {}", original.display()))?;
        left -= meta.len();
        copied.insert(copy, original);
    }
    ensure!(copied.len() > 20, "too few files to copy in /usr/bin");
    Ok(copied)
}

/// Writes and syncs files, one after the other, until the server is killed; returns those whose
/// sync was answered, with their lengths.
fn write_until_killed(served: &mut Served, mount_point: &Path) -> Result<BTreeMap<PathBuf, usize>> {
    let synced: Arc<Mutex<BTreeMap<PathBuf, usize>>> = Arc::default();
    let directory = mount_point.join("synced");
    fs::create_dir(&directory)?;
    File::open(&directory)?.sync_all()?;
    File::open(mount_point)?.sync_all()?;
    let writer = thread::spawn({
        let synced = synced.clone();
        move || -> std::io::Result<()> {
            for n in 0.. {
                let file = directory.join(format!("file-{n}"));
                let bytes = 1 + n * 7919 % 300_000;
                let mut out = File::create(&file)?;
                out.write_all(&content(&file, bytes))?;
                out.sync_all()?;
                // A name is durable only when its directory is synced too.
                File::open(&directory)?.sync_all()?;
                synced.lock().unwrap_or_else(PoisonError::into_inner).insert(file, bytes);
            }
            Ok(())
        }
    });
    let count = || synced.lock().unwrap_or_else(PoisonError::into_inner).len();
    let begun = Instant::now();
    while count() < FILES_MIN || begun.elapsed() < WRITING {
        if begun.elapsed() > PATIENCE || writer.is_finished() {
            bail!("only {} files were synced in {} s", count(), begun.elapsed().as_secs());
        }
        thread::sleep(Duration::from_millis(1));
    }
    served.kill()?;
    let ended = writer.join();
    ensure!(matches!(ended, Ok(Err(_))), "writing went on without a server");
    Ok(std::mem::take(&mut *synced.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// The content of a file, which follows from its name.
fn content(file: &Path, bytes: usize) -> Vec<u8> {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    let mut state = name.iter().fold(0xcbf2_9ce4_8422_2325u64, |state, &byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }) | 1;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(bytes);
    content
}
