//! `cargo xtask chroot-test`: a bare Debian 12 with Rust and git alone, in which a clone of this
//! commit runs its demonstration and its CI.
//!
//! Not part of CI: it needs root, debootstrap and the network. All mounts are made in a mount
//! namespace of their own and go with it, so that nothing of the machine can be below the directory
//! when that is removed.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Result, bail, ensure};

use crate::{
    cleanup::Guard,
    machine,
    product::path,
    program::{finish, program, run as run_program, show},
};

/// Packages that Rust needs, and git.
const PACKAGES: &str = "ca-certificates,gcc,git,libc6-dev";

/// Longest that a step may take.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs inside, as the superuser, before and after there are clients.
const INSIDE: &str = r#"set -euo pipefail
export HOME=/root PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/root/.cargo CI=true
cd /root/onefold
cargo xtask demo
.ci/run
"#;

/// The service that runs the script in a system that was started. The system ends with it, and with
/// its status. Its limit is below [`BOOT_LIMIT`], so that a script that hangs is told as a failure.
const SERVICE: &str = "[Unit]
After=multi-user.target
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
ExecStart=/bin/bash /root/inside
StandardOutput=append:/root/said
TimeoutStartSec=900
";

/// Longest that a system may run that was started.
const BOOT_LIMIT: Duration = Duration::from_secs(1000);

/// Debian's release whose packages everything is tested with.
const RELEASE: &str = "bookworm";

/// A bare Debian in a directory, removed when this is dropped.
pub(crate) struct Debian {
    place: PathBuf,
    _guard: Guard,
}

impl Debian {
    /// Makes Debian 12 with these packages, separated by commas.
    pub(crate) fn make(name: &str, packages: &str) -> Result<Debian> {
        Debian::of(RELEASE, name, packages)
    }

    /// The same with another release.
    pub(crate) fn of(release: &str, name: &str, packages: &str) -> Result<Debian> {
        if !machine::is_root() {
            bail!("a chroot needs root");
        }
        if machine::find("debootstrap").is_none() {
            bail!(
                "type this, then try again:\n    apt-get install --no-install-recommends \
                 debootstrap"
            );
        }
        let place = machine::root().join("target").join("chroot").join(name);
        remove(&place);
        fs::create_dir_all(&place)?;
        let guard = Guard::new({
            let place = place.clone();
            move || remove(&place)
        });
        let mut command = program("debootstrap");
        command.args([
            "--variant=minbase",
            &format!("--include={packages}"),
            release,
            path(&place),
        ]);
        run_program(command, LIMIT)?;
        let _ = fs::copy("/etc/resolv.conf", place.join("etc/resolv.conf"));
        Ok(Debian { place, _guard: guard })
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.place
    }

    /// Runs a script in it, as the superuser; returns whether that succeeded.
    pub(crate) fn run(&self, script: &str) -> Result<bool> {
        self.run_apart(script, &[], &[])
    }

    /// The same with directories of this machine, each at its own path. All processes that the script starts, also
    /// those that go to the background, end with it.
    pub(crate) fn run_with(&self, script: &str, shared: &[PathBuf]) -> Result<bool> {
        self.run_apart(script, shared, &["--pid", "--fork", "--kill-child"])
    }

    fn run_apart(&self, script: &str, shared: &[PathBuf], more: &[&str]) -> Result<bool> {
        fs::write(self.place.join("root/inside"), script)?;
        let place = path(&self.place);
        let mut outside = format!(
            "set -e; mount --rbind /dev '{place}/dev'; mount -t proc proc '{place}/proc'; mount -t sysfs \
             sysfs '{place}/sys'; "
        );
        for directory in shared.iter().map(|directory| path(directory)) {
            fs::create_dir_all(format!("{place}{directory}"))?;
            outside += &format!("mount --bind '{directory}' '{place}{directory}'; ");
        }
        outside += &format!("exec chroot '{place}' /bin/bash /root/inside");
        Ok(show(apart(more, &outside), LIMIT)?.status.success())
    }

    /// Starts it, with systemd as its first process and a network that leads nowhere, and runs a
    /// script in it as the superuser; returns whether that succeeded. The system ends with the
    /// script, also where this is cut off.
    ///
    /// # Errors
    /// When the system does not come as far as the script.
    pub(crate) fn boot(&self, script: &str) -> Result<bool> {
        let said = self.place.join("root/said");
        let _ = fs::remove_file(&said);
        fs::write(self.place.join("root/inside"), script)?;
        let units = self.place.join("etc/systemd/system");
        fs::write(units.join("inside.service"), SERVICE)?;
        let wants = units.join("graphical.target.wants");
        fs::create_dir_all(&wants)?;
        let _ = symlink("../inside.service", wants.join("inside.service"));
        // What systemd-nspawn leaves behind below /run goes with the mount. Services lock their keys
        // in memory.
        let outside = format!(
            "set -e; mkdir -p /run/systemd; mount -t tmpfs tmpfs /run/systemd; exec \
             systemd-nspawn --quiet --register=no --keep-unit --private-network --console=pipe \
             --capability=CAP_IPC_LOCK --directory='{}' --boot systemd.show_status=false",
            path(&self.place)
        );
        let processes = ["--pid", "--fork", "--kill-child", "--mount-proc"];
        let ended = finish(apart(&processes, &outside), BOOT_LIMIT, false)?;
        let Ok(said) = fs::read_to_string(said) else {
            bail!("systemd does not start in a container ({}):\n{}", ended.status, ended.output);
        };
        said.lines().for_each(|line| println!("    {line}"));
        Ok(ended.status.success())
    }
}

/// A line of the shell whose mounts, and with `more` other things, are its own and go with it.
fn apart(more: &[&str], line: &str) -> Command {
    let mut command = program("unshare");
    command.args(["--mount", "--propagation", "private"]).args(more).args(["bash", "-c", line]);
    command
}

/// Makes the system, runs everything, and removes it.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    ensure!(arguments.is_empty(), "chroot-test takes no arguments");
    println!("==> Debian 12 with {PACKAGES}");
    let debian = Debian::make("test", PACKAGES)?;
    let place = debian.path();

    println!("==> Rust, and a clone of HEAD");
    let mut command = program("rustc");
    command.args(["--print", "sysroot"]);
    let sysroot = run_program(command, LIMIT)?;
    fs::create_dir_all(place.join("opt"))?;
    copy(sysroot.trim().into(), place.join("opt/rust"))?;
    // Crates that cargo has fetched before need not be fetched again.
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    if let Some(registry) =
        cargo_home.map(|home| home.join("registry")).filter(|registry| registry.exists())
    {
        fs::create_dir_all(place.join("root/.cargo"))?;
        copy(registry, place.join("root/.cargo/registry"))?;
    }
    let mut command = program("git");
    command.args([
        "clone",
        "--quiet",
        "--no-hardlinks",
        path(&machine::root()),
        path(&place.join("root/onefold")),
    ]);
    run_program(command, LIMIT)?;

    println!("==> the demonstration without any client installed, then CI");
    debian.run(INSIDE)
}

fn copy(from: PathBuf, to: PathBuf) -> Result<()> {
    let mut command = program("cp");
    command.args(["--archive", path(&from), path(&to)]);
    run_program(command, LIMIT).map(|_| ())
}

/// Removes the system, but never what is mounted in it.
fn remove(place: &Path) {
    let mut command = program("rm");
    command.args(["-rf", "--one-file-system", path(place)]);
    let _ = run_program(command, LIMIT);
}
