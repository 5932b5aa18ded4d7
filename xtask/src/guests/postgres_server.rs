//! PostgreSQL: its programs, a server on a UNIX socket that runs as a user without rights, and
//! questions to it.

use std::{
    fs::{self, File},
    os::unix::{fs::fchown, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    cleanup::Guard,
    packages,
    product::path,
    program::{Running, program, run, spawn},
};

/// Longest that it may take to recover and answer, to end, and to answer a question.
const LIMIT: Duration = Duration::from_secs(120);

/// Where Debian keeps the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The user that Debian's package makes.
const USER: &str = "postgres";

/// Where the programs are, and as whom they run.
pub(super) struct Programs {
    directory: PathBuf,
    user: u32,
    group: u32,
}

impl Programs {
    /// The newest version that is installed; installs one where there is none.
    pub(super) fn get() -> Result<Programs> {
        if newest().is_none() {
            packages::install_postgresql("postgresql")?;
        }
        let directory = newest().context("there is no PostgreSQL server")?;
        let users = fs::read_to_string("/etc/passwd")?;
        let user = users
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields[0] == USER && fields.len() > 3)
            .with_context(|| format!("there is no user {USER}"))?;
        Ok(Programs { directory, user: user[2].parse()?, group: user[3].parse()? })
    }

    /// A command of it, as its user.
    pub(super) fn command(&self, name: &str) -> Command {
        let mut command = program(path(&self.directory.join(name)));
        command.uid(self.user).gid(self.group).current_dir("/").env("LC_ALL", "C");
        command
    }

    /// Makes a directory that belongs to its user.
    pub(super) fn directory(&self, at: &Path) -> Result<()> {
        fs::create_dir_all(at)?;
        fchown(File::open(at)?, Some(self.user), Some(self.group)).context("fchown")
    }

    /// Makes a new database.
    pub(super) fn initialise(&self, data: &Path) -> Result<()> {
        self.directory(data)?;
        let mut command = self.command("initdb");
        command.args(["--pgdata", path(data), "--data-checksums", "--auth", "trust"]);
        run(command, LIMIT).map(|_| ())
    }

    /// Verifies the checksums of all pages of a database that is closed.
    pub(super) fn verify_checksums(&self, data: &Path) -> Result<()> {
        let mut command = self.command("pg_checksums");
        command.args(["--check", "--pgdata", path(data)]);
        run(command, LIMIT).map(|_| ())
    }
}

fn newest() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            let directory = entry.path().join("bin");
            ["initdb", "postgres", "psql", "pgbench"]
                .iter()
                .all(|name| directory.join(name).exists())
                .then_some((version, directory))
        })
        .collect();
    found.sort();
    found.pop().map(|(_, directory)| directory)
}

/// A server at work. Dropping it ends it at once, with all its processes.
pub(super) struct Database<'a> {
    _quit: Guard,
    running: Running,
    programs: &'a Programs,
    sockets: PathBuf,
    log: PathBuf,
}

impl<'a> Database<'a> {
    /// Starts a server on a database, which recovers it if need be. `home` is a directory of its
    /// user for the socket of this server alone; the log lies beside it.
    pub(super) fn start(programs: &'a Programs, data: &Path, home: &Path) -> Result<Database<'a>> {
        programs.directory(home)?;
        // The file of a server that was killed, or of the one that the snapshot was taken of.
        let _ = fs::remove_file(data.join("postmaster.pid"));
        let log = home.with_extension("log");
        let mut command = programs.command("postgres");
        command.args(["-D", path(data), "-k", path(home), "-c", "listen_addresses="]);
        // Checkpoints come often, so that kills and snapshots fall into them.
        command.args(["-c", "checkpoint_timeout=30s", "-c", "max_wal_size=64MB"]);
        command.args(["-c", "shared_buffers=32MB", "-c", "logging_collector=off"]);
        let file = File::options().create(true).append(true).open(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let running = spawn(&mut command)?;
        let id = running.id();
        let quit = Guard::new(move || end_at_once(id));
        let mut database =
            Database { _quit: quit, running, programs, sockets: home.to_owned(), log };
        let begun = Instant::now();
        while database.ask("select 1").is_err() {
            if let Some(status) = database.running.wait(Duration::ZERO)? {
                bail!("PostgreSQL ended ({status}):\n{}", database.said());
            }
            ensure!(begun.elapsed() < LIMIT, "PostgreSQL does not answer:\n{}", database.said());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(database)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A command of a client of this server.
    pub(super) fn client(&self, name: &str) -> Command {
        let mut command = self.programs.command(name);
        command.args(["-h", path(&self.sockets), "-U", USER]);
        command
    }

    /// The answer to a question, one row a line, with `|` between its fields.
    pub(super) fn ask(&self, question: &str) -> Result<String> {
        let mut command = self.client("psql");
        command.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", question, USER]);
        run(command, LIMIT).map(|answer| answer.trim().to_owned())
    }

    /// Verifies all tables with their indexes.
    pub(super) fn verify(&self) -> Result<()> {
        let mut command = self.client("pg_amcheck");
        command.args(["--install-missing", "--heapallindexed", USER]);
        run(command, LIMIT).map(|_| ())
    }

    /// Ends it cleanly.
    pub(super) fn stop(mut self) -> Result<()> {
        let id = Pid::from_raw(self.running.id() as i32).context("no process")?;
        kill_process(id, Signal::INT)?;
        match self.running.wait(LIMIT)? {
            Some(status) if status.success() => Ok(()),
            status => bail!("PostgreSQL does not end well ({status:?}):\n{}", self.said()),
        }
    }
}

/// The server's immediate shutdown, which ends its processes too: they are in groups of their own.
fn end_at_once(id: u32) {
    let Some(pid) = Pid::from_raw(id as i32) else { return };
    let alive = || {
        let state = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        state.contains("(postgres)") && !state.contains(") Z")
    };
    if alive() && kill_process(pid, Signal::QUIT).is_ok() {
        let begun = Instant::now();
        while alive() && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}
