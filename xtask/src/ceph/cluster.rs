//! A real Ceph cluster on this host: one monitor, one manager, some OSDs, all on the loopback
//! address, with all they have below one folder.
//!
//! Debian's packages, no systemd, no containers. OSDs are small sparse files. Daemons are ended by
//! the process id that each wrote down, after a check that the process is ours by its
//! configuration.
//!
//! Everybody needs a key (cephx), as on a cluster that people use. The daemons' keys are in the
//! file `keyring`, in which the monitor finds all that it begins with; each client has a file of
//! its own, `client.NAME.keyring`. Ceph's own commands are `client.admin`.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    net::TcpListener,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    cleanup::{Guard, processes},
    machine,
    product::path,
    program::{program, run},
};

/// Longest that one command of Ceph may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Longest that the cluster may take to come up, or to get clean.
const UP: Duration = Duration::from_secs(300);

/// Longest that a daemon may take to end.
const END: Duration = Duration::from_secs(15);

/// Longest folder: the paths of UNIX sockets in it have 107 characters at most.
const FOLDER_MAX: usize = 80;

/// Programs of Ceph and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 4] = [
    ("ceph-mon", "ceph-mon"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-osd", "ceph-osd"),
    ("ceph", "ceph-common"),
];

/// The user that Ceph's commands are, unless they are told otherwise.
const ADMIN: &str = "client.admin";

/// A cluster.
pub(crate) struct Cluster {
    folder: PathBuf,
    /// Stops it; without one it stays.
    guard: Option<Guard>,
}

/// Sees to it that Ceph is installed: the superuser gets it from Debian, about 62 MB.
pub(crate) fn ensure_installed() -> Result<String> {
    let missing = || {
        PROGRAMS
            .iter()
            .filter(|(program, _)| machine::find(program).is_none())
            .map(|&(_, package)| package)
    };
    if missing().next().is_none() {
        return Ok("Ceph is installed".into());
    }
    let packages: Vec<&str> = missing().collect();
    ensure!(
        machine::is_root(),
        "Ceph is missing; type this, then try again:\n    sudo apt-get install \
         --no-install-recommends {}",
        packages.join(" ")
    );
    let apt = |arguments: &[&str]| {
        let mut command = program("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        run(command, Duration::from_secs(600)).map(|_| ())
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], &packages[..]].concat())?;
    ensure!(missing().next().is_none(), "Ceph is still missing after installation");
    Ok(format!("installed {}", packages.join(" ")))
}

impl Cluster {
    /// Makes a cluster with so many OSDs of `gigabytes` each in a folder that is empty or not
    /// there, and waits until it is up. Dropping the value stops the cluster, unless it is
    /// [kept](Self::keep).
    pub(crate) fn create(folder: &Path, osds: usize, gigabytes: usize) -> Result<Cluster> {
        ensure!(
            path(folder).len() <= FOLDER_MAX,
            "{} is too long for UNIX sockets in it: {FOLDER_MAX} characters at most",
            folder.display()
        );
        ensure!(
            !folder.exists() || fs::read_dir(folder)?.next().is_none(),
            "{} is not empty",
            folder.display()
        );
        for name in ["run", "log", "crash", "mon.a", "mgr.x"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let folder = folder.canonicalize()?;
        let stopped = folder.clone();
        let guard = Guard::new(move || {
            let _ = Cluster { folder: stopped, guard: None }.stop();
        });
        let cluster = Cluster { folder, guard: Some(guard) };
        cluster.start(osds, gigabytes).map_err(|error| {
            error.context(format!(
                "the cluster did not start; its logs are in {}",
                cluster.folder.join("log").display()
            ))
        })?;
        Ok(cluster)
    }

    /// A cluster that runs already.
    pub(crate) fn at(folder: &Path) -> Result<Cluster> {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        ensure!(folder.join("ceph.conf").exists(), "there is no cluster in {}", folder.display());
        Ok(Cluster { folder, guard: None })
    }

    /// Lets it run on after us.
    pub(crate) fn keep(mut self) {
        if let Some(guard) = self.guard.take() {
            std::mem::forget(guard);
        }
    }

    /// Its configuration, which clients need.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    fn start(&self, osds: usize, gigabytes: usize) -> Result<()> {
        let (port, fsid) = (free_port()?, uuid()?);
        fs::write(self.configuration(), configuration(&self.folder, &fsid, port, gigabytes))?;
        let map = self.folder.join("monmap");
        self.tool(
            "monmaptool",
            &[
                "--create",
                "--fsid",
                &fsid,
                "--addv",
                "a",
                &format!("[v2:127.0.0.1:{port}]"),
                path(&map),
            ],
        )?;
        self.make_keys(osds)?;
        self.tool(
            "ceph-mon",
            &[
                "-i",
                "a",
                "--mkfs",
                "--monmap",
                path(&map),
                "--keyring",
                path(&self.folder.join("keyring")),
            ],
        )?;
        self.daemon("mon.a")?;
        self.daemon("mgr.x")?;
        thread::scope(|scope| {
            let mut started = Vec::new();
            for id in 0..osds {
                let uuid = uuid()?;
                let given = self.ceph(&["osd", "new", &uuid])?;
                ensure!(given.trim() == id.to_string(), "osd new gave {given:?} instead of {id}");
                started.push(scope.spawn(move || {
                    self.make_osd(id, &uuid).and_then(|()| self.daemon(&format!("osd.{id}")))
                }));
            }
            started
                .into_iter()
                .try_for_each(|osd| osd.join().unwrap_or_else(|_| bail!("a thread panicked")))
        })?;
        self.wait("up", UP, |status| {
            let map = &status["osdmap"];
            let up = map["num_up_osds"].as_u64().or(map["osdmap"]["num_up_osds"].as_u64());
            up == Some(osds as u64) && status["mgrmap"]["available"] == true
        })
    }

    /// Keys of all daemons and of the administrator, with their rights; the monitor takes them over
    /// as it is made.
    fn make_keys(&self, osds: usize) -> Result<()> {
        let daemon = |kind: &str| {
            [
                ("mon", format!("allow profile {kind}")),
                ("mgr", format!("allow profile {kind}")),
                ("osd", "allow *".to_owned()),
            ]
        };
        let all = || ["mon", "mgr", "osd"].map(|whose| (whose, "allow *".to_owned()));
        let admin = self.make_key(ADMIN, &all())?;
        let mut keys = format!("{}{admin}", self.make_key("mon.", &all()[..1])?);
        keys += &self.make_key("mgr.x", &daemon("mgr"))?;
        for id in 0..osds {
            keys += &self.make_key(&format!("osd.{id}"), &daemon("osd"))?;
        }
        write_secret(&self.folder.join("keyring"), &keys)?;
        write_secret(&self.keyring(ADMIN), &admin)
    }

    /// A new key, as a keyring has it.
    fn make_key(&self, name: &str, rights: &[(&str, String)]) -> Result<String> {
        let key = self.tool("ceph-authtool", &["--gen-print-key"])?;
        let mut entry = format!("[{name}]\nkey = {}\n", key.trim());
        for (whose, right) in rights {
            writeln!(entry, "caps {whose} = \"{right}\"")?;
        }
        Ok(entry)
    }

    /// Where the key of a client is.
    pub(crate) fn keyring(&self, client: &str) -> PathBuf {
        self.folder.join(format!("{client}.keyring"))
    }

    /// Makes the user `client.NAME` with rights as `ceph auth` takes them, or gives it these
    /// instead of those that it had.
    pub(crate) fn user(&self, name: &str, rights: &[&str]) -> Result<()> {
        let client = format!("client.{name}");
        let key = self.ceph(&["auth", "get-or-create", &client])?;
        self.ceph(&[&["auth", "caps", &client], rights].concat())?;
        write_secret(&self.keyring(&client), &key)
    }

    /// A program of Ceph with our configuration.
    fn tool(&self, name: &str, arguments: &[&str]) -> Result<String> {
        run(self.command(name, arguments), LIMIT)
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = program(name);
        command
            .args(["-c", path(&self.configuration())])
            .args(arguments)
            .env("CEPH_ARGS", "")
            .env_remove("CEPH_CONF");
        command
    }

    /// The same, ended when it takes too long; its output is not read by us, or read apart.
    fn bounded(&self, name: &str, arguments: &[&str]) -> Command {
        let inner = self.command(name, arguments);
        let mut command = program("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg(inner.get_program()).args(inner.get_args());
        command.env("CEPH_ARGS", "").env_remove("CEPH_CONF");
        command
    }

    /// Asks the cluster.
    pub(crate) fn ceph(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.command("ceph", &["--connect-timeout", "20"]);
        command.args(arguments);
        run(command, LIMIT)
    }

    /// The same, in JSON.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = self.bounded("ceph", &["--connect-timeout", "20"]);
        command.args(arguments).args(["-f", "json"]).stderr(std::process::Stdio::null());
        let output = command.output().context("ceph")?;
        ensure!(output.status.success(), "ceph {} failed", arguments.join(" "));
        serde_json::from_slice(&output.stdout).context("ceph -f json")
    }

    fn make_osd(&self, id: usize, uuid: &str) -> Result<()> {
        let folder = self.folder.join(format!("osd.{id}"));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder)?;
        fs::write(folder.join("uuid"), uuid)?;
        self.tool("ceph-osd", &["-i", &id.to_string(), "--mkfs", "--osd-uuid", uuid]).map(|_| ())
    }

    /// Starts a daemon unless it runs; it goes to the background by itself.
    pub(crate) fn daemon(&self, name: &str) -> Result<()> {
        if self.process(name).is_some() {
            return Ok(());
        }
        let (kind, id) = name.split_once('.').context("a daemon is called KIND.ID")?;
        let mut command = self.bounded(&format!("ceph-{kind}"), &["-i", id]);
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("log/start.log"))?;
        // Debian's Ceph 18 looks for its classes of objects from here on.
        command.current_dir("/").stdout(log.try_clone()?).stderr(log);
        let status = command.status().with_context(|| format!("starting {name}"))?;
        ensure!(status.success(), "{name} did not start ({status})");
        Ok(())
    }

    /// The process of a daemon, when it runs and is ours.
    fn process(&self, name: &str) -> Option<Pid> {
        let pid: i32 = fs::read_to_string(self.folder.join(format!("run/{name}.pid")))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        self.is_ours(pid).then(|| Pid::from_raw(pid)).flatten()
    }

    /// True for a daemon that was given our configuration.
    fn is_ours(&self, pid: i32) -> bool {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        let daemon = words
            .next()
            .and_then(|word| word.rsplit(|byte| *byte == b'/').next())
            .is_some_and(|name| name.starts_with(b"ceph-"));
        daemon && words.any(|word| word == path(&self.configuration()).as_bytes())
    }

    /// Signals a daemon and waits until it has gone.
    fn end(&self, name: &str, signal: Signal) {
        let Some(process) = self.process(name) else { return };
        let _ = kill_process(process, signal);
        let begun = Instant::now();
        while self.process(name).is_some() {
            if begun.elapsed() > END {
                let _ = kill_process(process, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a daemon a signal; waits for its end when that kills it.
    pub(crate) fn signal(&self, name: &str, signal: Signal) {
        match signal {
            Signal::KILL => self.end(name, signal),
            _ => drop(self.process(name).map(|process| kill_process(process, signal))),
        }
    }

    fn osds(&self) -> Vec<usize> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut osds: Vec<usize> = entries
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("osd.")?.parse().ok())
            .collect();
        osds.sort_unstable();
        osds
    }

    /// Stops every daemon and removes everything.
    pub(crate) fn stop(&self) -> Result<()> {
        thread::scope(|scope| {
            for id in self.osds() {
                // Their data is removed anyway, so nothing need be written back.
                scope.spawn(move || self.end(&format!("osd.{id}"), Signal::KILL));
            }
        });
        self.end("mgr.x", Signal::KILL);
        self.end("mon.a", Signal::KILL);
        // One that was just starting has not written its process id yet.
        for process in processes().filter(|pid| self.is_ours(*pid)).filter_map(Pid::from_raw) {
            let _ = kill_process(process, Signal::KILL);
        }
        fs::remove_dir_all(&self.folder)
            .with_context(|| format!("removing {}", self.folder.display()))
    }

    /// Which daemons run, with their processes.
    pub(crate) fn daemons(&self) -> Vec<(String, Option<Pid>)> {
        let osds = self.osds().into_iter().map(|id| format!("osd.{id}"));
        ["mon.a".to_owned(), "mgr.x".to_owned()]
            .into_iter()
            .chain(osds)
            .map(|name| (name.clone(), self.process(&name)))
            .collect()
    }

    fn wait(&self, what: &str, limit: Duration, done: impl Fn(&Value) -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            if self.ask(&["status"]).is_ok_and(|status| done(&status)) {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < limit,
                "the cluster is not {what} after {} s:\n{}",
                limit.as_secs(),
                self.ceph(&["-s"]).unwrap_or_default()
            );
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// Waits until every placement group has all its copies.
    pub(crate) fn wait_clean(&self) -> Result<()> {
        self.wait("clean", UP, |status| {
            let map = &status["pgmap"];
            let states = map["pgs_by_state"].as_array().into_iter().flatten();
            let clean = states.filter(|state| {
                state["state_name"].as_str().is_some_and(|name| name.starts_with("active+clean"))
            });
            map["num_pgs"].as_u64() == Some(clean.filter_map(|state| state["count"].as_u64()).sum())
        })
    }

    /// Makes a replicated pool that goes on with one copy.
    pub(crate) fn replicated(&self, name: &str, copies: usize) -> Result<()> {
        self.ceph(&["osd", "pool", "create", name, "8", "8", "replicated"])?;
        self.ceph(&["osd", "pool", "set", name, "size", &copies.to_string()])?;
        self.ceph(&["osd", "pool", "set", name, "min_size", "1"]).map(|_| ())
    }

    /// Makes an erasure-coded pool with `data` and `parity` parts.
    pub(crate) fn erasure(&self, name: &str, data: usize, parity: usize) -> Result<()> {
        let profile = format!("ec-{data}-{parity}");
        let parts = [format!("k={data}"), format!("m={parity}")];
        self.ceph(&[
            "osd",
            "erasure-code-profile",
            "set",
            &profile,
            &parts[0],
            &parts[1],
            "crush-failure-domain=osd",
        ])?;
        self.ceph(&["osd", "pool", "create", name, "8", "8", "erasure", &profile]).map(|_| ())
    }

    /// Kills an OSD and waits until the monitor knows.
    pub(crate) fn kill_osd(&self, id: usize) -> Result<()> {
        self.end(&format!("osd.{id}"), Signal::KILL);
        self.wait_osd(id, 0)
    }

    /// Starts an OSD again, and waits until it is up.
    pub(crate) fn start_osd(&self, id: usize) -> Result<()> {
        self.daemon(&format!("osd.{id}"))?;
        self.wait_osd(id, 1)
    }

    /// The disk of an OSD is lost and replaced by an empty one.
    pub(crate) fn lose_osd(&self, id: usize) -> Result<()> {
        let uuid = fs::read_to_string(self.folder.join(format!("osd.{id}/uuid")))?;
        self.kill_osd(id)?;
        self.make_osd(id, &uuid)?;
        self.start_osd(id)
    }

    fn wait_osd(&self, id: usize, up: u64) -> Result<()> {
        let begun = Instant::now();
        loop {
            let map = self.ask(&["osd", "dump"])?;
            let mut osds = map["osds"].as_array().into_iter().flatten();
            if osds.any(|osd| osd["osd"] == id && osd["up"] == up) {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < UP,
                "osd.{id} does not get {}",
                if up == 1 { "up" } else { "down" }
            );
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Writes a file that its owner alone may read.
fn write_secret(file: &Path, text: &str) -> Result<()> {
    let mut file =
        fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(file)?;
    Ok(file.write_all(text.as_bytes())?)
}

/// A port of the loopback address that nobody listens on.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn uuid() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

/// The configuration of daemons and clients. Failures are seen soon and repaired fast: Ceph takes a
/// sparse file for a slow disk, and would rest between two objects.
fn configuration(folder: &Path, fsid: &str, port: u16, gigabytes: usize) -> String {
    let folder = path(folder);
    format!(
        "[global]
fsid = {fsid}
mon_host = v2:127.0.0.1:{port}
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
public_network = 127.0.0.0/8
cluster_network = 127.0.0.0/8
ms_bind_msgr1 = false
ms_bind_ipv6 = false
run_dir = {folder}/run
crash_dir = {folder}/crash
keyring = {folder}/keyring
mon_data = {folder}/mon.$id
mgr_data = {folder}/mgr.$id
osd_data = {folder}/osd.$id
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
[client]
keyring = {folder}/$name.keyring
[mon]
admin_socket = {folder}/run/$name.asok
pid_file = {folder}/run/$name.pid
log_file = {folder}/log/$name.log
public_addr = v2:127.0.0.1:{port}
mon_allow_pool_delete = true
mon_max_pg_per_osd = 2000
mon_data_avail_warn = 1
mon_data_avail_crit = 1
mon_osd_min_down_reporters = 1
mon_osd_reporter_subtree_level = osd
mon_osd_down_out_interval = 3600
mon_warn_on_pool_no_redundancy = false
mgr_initial_modules =
[mgr]
admin_socket = {folder}/run/$name.asok
pid_file = {folder}/run/$name.pid
log_file = {folder}/log/$name.log
public_addr = 127.0.0.1
mgr_stats_period = 1
[osd]
admin_socket = {folder}/run/$name.asok
pid_file = {folder}/run/$name.pid
log_file = {folder}/log/$name.log
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
osd_memory_target = 1G
osd_heartbeat_interval = 1
osd_heartbeat_grace = 5
osd_class_load_list = *
osd_class_default_list = *
osd_mclock_skip_benchmark = true
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 2
osd_recovery_sleep_hdd = 0
osd_recovery_sleep_hybrid = 0
osd_recovery_max_active = 16
osd_delete_sleep_hdd = 0
osd_max_backfills = 4
bluestore_block_size = {gigabytes}G
bluestore_block_wal_create = false
bluestore_block_db_create = false
bluestore_cache_autotune = false
bluestore_cache_size = 64M
"
    )
}
