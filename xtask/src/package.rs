//! `cargo xtask package`: the Debian package, and a trial of it in a bare Debian 12, which is a step
//! of the tests, too. The long form starts that Debian, and tries the units.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    chroot::Debian,
    machine, packages,
    product::{Build, Onefold, path},
    program::{cargo, run as run_program},
    test::Tally,
};

/// Longest that packing may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Installs the package, inside, and those whose names follow.
const INSTALL: &str = "set -euo pipefail
export HOME=/root DEBIAN_FRONTEND=noninteractive
cd /root
apt-get update
apt-get install --yes --no-install-recommends /root/onefold.deb";

/// Uses and removes the installed package, inside.
const TRIAL: &str = r#"
echo "==> installed: user, manual, completions, units"
getent passwd onefold
zcat -f /usr/share/man/man1/onefold-serve.1* | grep -q onefold
bash -n /usr/share/bash-completion/completions/onefold
for unit in onefold onefold-nightly onefold-backup onefold-keep onefold-gateway onefold-worker; do
    program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "/usr/lib/systemd/system/$unit@.service")
    test -x "$program"
done
test -e /usr/lib/systemd/system/onefold-nightly@.timer
test -e /usr/lib/systemd/system/onefold-backup@.timer
test -e /usr/lib/systemd/system/onefold-keep@.timer
echo "==> used: an archive, and a block store that is served"
onefold create archive backups
onefold put backups docs -r /usr/share/doc/onefold
onefold get backups docs -C out
diff -r /usr/share/doc/onefold out
onefold check backups
for night in 1 2; do SET=host onefold-backup backups /usr/share/doc/onefold /etc; done
onefold-keep backups
onefold restore backups host /etc/debian_version -C out2
cmp /etc/debian_version out2/etc/debian_version
echo "==> the whole system: rsync finds no difference in what comes back"
onefold backup backups / --set root --one-file-system --exclude /root
mkdir out3
onefold restore backups root -C out3 --preserve-privileged
# The destination keeps its own time, and those of mount points are of what is mounted there.
rsync -aHAXni --delete --one-file-system --exclude=/root --exclude=/sys --exclude=/proc --exclude=/dev / out3/ >differs
test -z "$(grep -v ' \./$' differs | tee /dev/stderr)"
onefold create block disk --size 64M
onefold volume create disk v --size 1G
onefold serve disk --nbd unix:/root/socket &
for n in $(seq 100); do [ -S /root/socket ] && break; sleep 0.1; done
onefold status disk
echo "==> the snapshots of two nights, of the served store"
onefold-nightly disk v
onefold-nightly disk v
onefold snapshot list disk | grep -c " v@$(LC_ALL=C date +%a)$" | grep -qx 1
kill -TERM %1
wait %1
onefold-nightly disk v
onefold check disk
echo "==> removed; the user stays, since stores belong to it"
apt-get remove --yes onefold
test ! -e /usr/bin/onefold
test ! -e /usr/lib/systemd/system/onefold@.service
test ! -e /usr/lib/systemd/system/onefold-nightly@.timer
getent passwd onefold
"#;

/// Uses the units of the installed package in a system that was started, and looks at them when it
/// was started once more.
const BOOTED: [&str; 2] = [include_str!("package/boot.sh"), include_str!("package/again.sh")];

/// Makes the package; with `--try` of a build with assertions, which is then installed, used and
/// removed in a bare Debian 12; with `--boot` the same build under systemd.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    match arguments {
        [] => {
            let package = pack(Build::Release)?;
            println!("{} ({} KiB)", package.display(), fs::metadata(&package)?.len() / 1024);
            Ok(true)
        }
        [word] if word == "--try" => try_out(&pack(Build::Test)?, &debian()?),
        [word] if word == "--boot" => try_units(),
        _ => bail!("package takes --try, --boot or nothing"),
    }
}

/// Makes the package of one build, with its manual pages and completions.
fn pack(build: Build) -> Result<PathBuf> {
    ensure!(
        machine::find("cargo-deb").is_some(),
        "type this, then try again:\n    cargo install --locked cargo-deb"
    );
    let onefold = Onefold::build(build)?;
    let made = machine::root().join("target").join("package");
    let _ = fs::remove_dir_all(&made);
    fs::create_dir_all(made.join("completions"))?;
    onefold.verb(["man", path(&made.join("man"))])?;
    for (shell, name) in [("bash", "onefold.bash"), ("zsh", "_onefold"), ("fish", "onefold.fish")] {
        let script = onefold.verb(["completions", shell])?;
        fs::write(made.join("completions").join(name), script)?;
    }
    let profile = if build == Build::Release { "release" } else { "dev" };
    let output = made.join("onefold.deb");
    run_program(
        cargo([
            "deb",
            "--quiet",
            "--locked",
            "--no-build",
            "--package",
            "onefold-cli",
            "--profile",
            profile,
            "--output",
            path(&output),
        ]),
        LIMIT,
    )?;
    ensure!(output.exists(), "{} was not made", output.display());
    Ok(output)
}

/// The step of the tests: the package of the build that they test, tried in a bare Debian 12. Where
/// that can't be made, the step says so.
pub(crate) fn step() -> Result<Tally> {
    let ready = tools(&[DEBOOTSTRAP]).and_then(|()| debian());
    let debian = match ready {
        Ok(debian) => debian,
        Err(why) => {
            println!("NOT TESTED: a bare Debian 12 could not be made: {why:#}");
            return Ok(Tally { note: "not tested: no bare Debian 12".into(), ..Tally::default() });
        }
    };
    if try_out(&pack(Build::Test)?, &debian)? {
        return Ok(Tally::pass("installed, used, removed"));
    }
    Ok(Tally::fail("the package does not do what it should"))
}

/// A program, and the Debian package that has it.
type Wanted = (&'static str, &'static str);
const DEBOOTSTRAP: Wanted = ("debootstrap", "debootstrap");
const NSPAWN: Wanted = ("systemd-nspawn", "systemd-container");

/// Installs what makes the package and the system, as far as it is not there.
fn tools(wanted: &[Wanted]) -> Result<()> {
    ensure!(machine::is_root(), "a chroot needs root");
    for (program, package) in wanted {
        if machine::find(program).is_none() {
            packages::install(&[package])?;
        }
    }
    if machine::find("cargo-deb").is_none() {
        // Unoptimised: it is built faster than it would pack faster.
        let mut command = cargo(["install", "--quiet", "--locked", "--debug", "cargo-deb"]);
        command.env("CARGO_PROFILE_DEV_DEBUG", "0");
        run_program(command, LIMIT)?;
    }
    Ok(())
}

fn debian() -> Result<Debian> {
    println!("    Debian 12, from its packages");
    Debian::make("package", "ca-certificates")
}

fn try_out(package: &Path, debian: &Debian) -> Result<bool> {
    install(package, debian, "rsync", TRIAL)
}

/// Installs the package and others, and goes on with a script.
fn install(package: &Path, debian: &Debian, others: &str, then: &str) -> Result<bool> {
    fs::copy(package, debian.path().join("root/onefold.deb"))
        .context("copying the package into the bare system")?;
    debian.run(&format!("{INSTALL} {others}\n{then}"))
}

/// The units, in a Debian 12 that is started. Where that can't be, it says so.
fn try_units() -> Result<bool> {
    let not_tested = |why: anyhow::Error| {
        println!("NOT TESTED: the units under systemd: {why:#}");
        Ok(true)
    };
    println!("    Debian 12 with systemd, from its packages");
    let made = tools(&[DEBOOTSTRAP, NSPAWN])
        .and_then(|()| Debian::make("boot", "ca-certificates,systemd,systemd-sysv,dbus"));
    let debian = match made.and_then(|debian| debian.boot("true").map(|_| debian)) {
        Ok(debian) => debian,
        Err(why) => return not_tested(why),
    };
    if !install(&pack(Build::Test)?, &debian, "curl libnbd-bin openssh-client openssh-server", "")?
    {
        return Ok(false);
    }
    for script in BOOTED {
        if !debian.boot(script)? {
            return Ok(false);
        }
    }
    Ok(true)
}
