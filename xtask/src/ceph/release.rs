//! The same tests with another release of Ceph: its packages come from another release of Debian, in a root of its
//! own, in which this program runs once more. Daemons, commands and librados are those of that root.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::{
    chroot::Debian,
    machine,
    product::path,
    program::{program, run},
};

/// Releases of Ceph, and those of Debian that have them.
const RELEASES: [(&str, &str); 1] = [("18", "trixie")];

/// The packages that the root begins with.
const BEGINNING: &str = "ca-certificates,gcc,libc6-dev";

/// All that the tests use there beside.
const PACKAGES: &str = "ceph-mon ceph-mgr ceph-osd ceph-common librados2 fio libnbd-bin qemu-utils qemu-block-extra procps";

/// Longest that a program may take to say where something is.
const SOON: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs `cargo xtask ceph ARGUMENTS` with that release. The programs that were built here are used there.
pub(super) fn test(release: &str, arguments: &str) -> Result<bool> {
    let Some((_, debian)) = RELEASES.iter().find(|(known, _)| *known == release) else {
        let known = RELEASES.map(|(known, _)| known).join(", ");
        bail!("Debian's packages of Ceph {release} are not known here, but those of {known} are");
    };
    println!("==> Debian's release {debian} with Ceph {release}");
    let root = Debian::of(debian, &format!("ceph-{release}"), BEGINNING)?;
    let shared = shared()?;
    let tools = path(&shared.tools).to_owned();
    let script = format!(
        "set -euo pipefail
export HOME=/root PATH={tools}/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME='{}' CARGO_NET_OFFLINE=true
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
apt-get install --quiet=2 --yes --no-install-recommends {PACKAGES} >/dev/null
ceph --version | tee /dev/stderr | grep --quiet 'version {release}\\.'
cd '{}'
exec cargo xtask ceph {arguments}
",
        path(&shared.cargo_home),
        path(&machine::root()),
    );
    root.run_with(&script, &[shared.tools, shared.cargo_home, machine::root()])
}

/// The directories of this machine that are used inside.
struct Shared {
    /// Rust's own.
    tools: PathBuf,
    /// The crates that were fetched.
    cargo_home: PathBuf,
}

fn shared() -> Result<Shared> {
    let mut command = program("rustc");
    command.args(["--print", "sysroot"]);
    let tools = PathBuf::from(run(command, SOON)?.trim());
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = set.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let cargo_home = cargo_home.filter(|home| home.exists()).context("cargo has no directory")?;
    Ok(Shared { tools, cargo_home })
}
