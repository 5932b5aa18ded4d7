//! The Debian packages with the clients that the tests use.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{
    cleanup::Guard,
    machine,
    program::{program, run},
};

/// Longest that packages may take to be got and installed.
const LIMIT: Duration = Duration::from_secs(600);

/// What qemu loads for iSCSI.
const QEMU_ISCSI: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/qemu/block-iscsi.so"
} else {
    "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so"
};

/// A program of each package that we use, or a file that tells that it is there.
const WANTED: [(&str, &str); 24] = [
    ("chromium", "chromium"),
    ("curl", "curl"),
    ("fio", "fio"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdsh", "python3-libnbd"),
    ("nbdkit", "nbdkit"),
    ("openssl", "openssl"),
    ("ssh", "openssh-client"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("mkfs.xfs", "xfsprogs"),
    ("mke2fs", "e2fsprogs"),
    ("fusermount3", "fuse3"),
    ("strace", "strace"),
    ("systemd-analyze", "systemd"),
    ("setfattr", "attr"),
    ("setfacl", "acl"),
    ("setcap", "libcap2-bin"),
    ("rsync", "rsync"),
    ("tgt-admin", "tgt"),
    ("iscsi-test-cu", "libiscsi-bin"),
    (QEMU_ISCSI, "qemu-block-extra"),
];

/// The same for the step `guests`, but for the kernel and PostgreSQL's server.
const GUESTS: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("nbd-client", "nbd-client"),
    ("nbdfuse", "libnbd-bin"),
    ("fusermount3", "fuse3"),
    ("mke2fs", "e2fsprogs"),
];

/// A wanted program and its package.
type Wanted = (&'static str, &'static str);

/// The packages that are not there.
pub(crate) fn missing() -> Vec<&'static str> {
    missing_of(&WANTED)
}

fn missing_of(wanted: &[Wanted]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = wanted
        .iter()
        .filter(|(program, _)| machine::find(program).is_none())
        .map(|&(_, package)| package)
        .collect();
    packages.dedup();
    packages
}

/// Makes sure that all packages are there: the superuser gets them installed, others learn what to
/// type.
pub(crate) fn ensure() -> Result<String> {
    let done = ensure_of(&WANTED)?;
    ensure_sshd()?;
    Ok(done)
}

/// OpenSSH's server, for the tests of archives on other hosts. Where it is not installed it is unpacked
/// below `target/`: installing it would start it.
fn ensure_sshd() -> Result<()> {
    let tools = machine::root().join("target/tools");
    if machine::find("sshd").is_some() || tools.join("sshd").exists() {
        return Ok(());
    }
    let new = tools.join("sshd.new");
    let _ = fs::remove_dir_all(&new);
    if machine::is_root() {
        apt(&["update"])?;
    }
    for package in ["openssh-server", "libwrap0"] {
        unpack_one(package, &new)?;
    }
    fs::rename(&new, tools.join("sshd")).context("keeping OpenSSH's server")
}

/// The same for what runs virtual machines.
pub(crate) fn ensure_guests() -> Result<String> {
    ensure_of(&GUESTS)
}

fn ensure_of(wanted: &[Wanted]) -> Result<String> {
    let packages = missing_of(wanted);
    if packages.is_empty() {
        return Ok("all there".into());
    }
    let line = packages.join(" ");
    if machine::find("apt-get").is_none() {
        bail!("these programs are missing (Debian's packages: {line})");
    }
    if !machine::is_root() {
        bail!(
            "type this, then try again:\n    sudo apt-get install --no-install-recommends {line}"
        );
    }
    install(&packages)?;
    let still = missing_of(wanted);
    if !still.is_empty() {
        bail!("still missing after installation: {}", still.join(" "));
    }
    Ok(format!("installed {line}"))
}

/// Installs packages; the superuser may.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

/// Installs PostgreSQL's server where there is none. The package would make and start a database by
/// itself, and is told not to.
pub(crate) fn install_postgresql(package: &str) -> Result<()> {
    const SETTINGS: &str = "/etc/postgresql-common/createcluster.conf";
    install(&["postgresql-common"])?;
    let before = fs::read_to_string(SETTINGS).with_context(|| format!("reading {SETTINGS}"))?;
    fs::write(SETTINGS, format!("{before}\ncreate_main_cluster = false\n"))?;
    let _restored = Guard::new(move || {
        let _ = fs::write(SETTINGS, before);
    });
    install(&[package])
}

/// Unpacks a package, which the package `meta` depends on, without installing it, into the new
/// directory `into`. `begins` is how its name begins.
pub(crate) fn unpack(meta: &str, begins: &str, into: &Path) -> Result<()> {
    if machine::is_root() {
        apt(&["update"])?;
    }
    let mut command = program("apt-cache");
    command.args(["depends", meta]);
    let depends = run(command, LIMIT)?;
    let name = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with(begins))
        .with_context(|| format!("{meta} depends on no {begins}…:\n{depends}"))?;
    unpack_one(name, into)
}

/// Unpacks the package of this name.
fn unpack_one(name: &str, into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    let mut command = program("apt-get");
    command.args(["download", name]).current_dir(into);
    run(command, LIMIT)?;
    let package = fs::read_dir(into)?
        .flatten()
        .map(|entry| entry.path())
        .find(|file| file.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("{name} was not downloaded"))?;
    let mut command = program("dpkg-deb");
    command.arg("--extract").args([&package, into]);
    run(command, LIMIT)?;
    fs::remove_file(package).context("removing the package that was unpacked")
}

fn apt(arguments: &[&str]) -> Result<()> {
    let mut command = program("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    run(command, LIMIT).map(|_| ())
}
