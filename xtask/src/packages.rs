//! The Debian packages with the clients that the tests use.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{
    machine,
    program::{program, run},
};

/// A program of each package that we use, or a file that tells that it is there.
const WANTED: [(&str, &str); 18] = [
    ("chromium", "chromium"),
    ("curl", "curl"),
    ("fio", "fio"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdsh", "python3-libnbd"),
    ("nbdkit", "nbdkit"),
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
];

/// The packages that are not there.
pub(crate) fn missing() -> Vec<&'static str> {
    let mut packages: Vec<&str> = WANTED
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
    let packages = missing();
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
    let still = missing();
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

fn apt(arguments: &[&str]) -> Result<()> {
    let mut command = program("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    run(command, Duration::from_secs(600)).map(|_| ())
}
