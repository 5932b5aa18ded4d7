//! PostgreSQL on ext4 on a volume: pgbench works while snapshots are taken and the server is
//! killed. It recovers, with every transaction that it acknowledged; so does a clone of each
//! snapshot, with a prefix of the transactions.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, ensure};

use super::{
    Extent,
    disk::{self, State},
    postgres_server::{Database, Programs},
};
use crate::{
    cleanup::Guard,
    clients::{Attached, Kind, Served},
    product::path,
    program::{Running, finish, program, run as run_program, spawn},
};

/// Clients of pgbench.
const CLIENTS: u32 = 4;

/// Accounts, of two branches.
const SCALE: u32 = 2;

/// Longest that making the tables, and the end of pgbench after a kill, may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Seconds that clocks of two programs may differ on one host.
const CLOCKS: f64 = 0.005;

/// Each transaction is one of TPC-B and tells who made it: the run of pgbench, the client, and the
/// how manieth of the client it is.
const TRANSACTION: &str = r"\set n :n + 1
\set aid random(1, 200000)
\set bid random(1, 2)
\set tid random(1, 20)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
INSERT INTO confirmed (run, client, n) VALUES (:run, :client_id, :n);
END;
";

/// Who made transactions: a run of pgbench, and one of its clients.
type Who = (u64, u32);

/// When the transactions of each client were acknowledged, in their order, in seconds since 1970.
type Log = BTreeMap<Who, Vec<f64>>;

/// A snapshot, and the time in which its moment was.
struct Snapshot {
    name: String,
    state: State,
    from: f64,
    to: f64,
}

impl Snapshot {
    /// What was written before it without a sync is in it when its file system was frozen.
    fn has_marker(&self, mount: &Path) -> Result<()> {
        let found = fs::read_to_string(marker(mount, &self.name)).unwrap_or_default();
        ensure!(
            self.state != State::AtRest || found == self.name,
            "a file that was written before freezing holds '{found}'"
        );
        Ok(())
    }
}

/// A file that is written before a snapshot, and not synced.
fn marker(mount: &Path, snapshot: &str) -> PathBuf {
    mount.join(format!("before-{snapshot}"))
}

/// The volume's file system, mounted. Dropping it lets a file system go that is frozen, and takes
/// all down.
struct Mounted {
    // In the order in which they are taken down.
    _thaw: Guard,
    _attached: Attached,
}

/// A database on a volume.
struct Proof<'a> {
    served: Served,
    programs: &'a Programs,
    place: Place,
    log: Log,
    snapshots: Vec<Snapshot>,
}

/// Runs it.
pub(super) fn run(programs: &Programs, extent: Extent) -> Result<()> {
    let mut proof = Proof {
        served: Served::new("postgres", "8G", &[], &[("db", "2G")])?,
        programs,
        place: Place::new()?,
        log: Log::new(),
        snapshots: Vec::new(),
    };
    proof.make()?;
    for kill in 1..=extent.database_kills {
        proof.work_and_kill(kill, extent)?;
    }
    proof.look_at_snapshots()?;
    proof.served.finish()
}

impl<'a> Proof<'a> {
    fn mount(&self) -> Result<Mounted> {
        let mut attached = Attached::below(&self.served.file("db"), &self.served.socket, "db")?;
        disk::replay_and_check(&mut attached, &self.place.file("mnt"))?;
        attached.mount(Kind::Ext4, &self.place.file("mnt"))?;
        let thawed = self.place.file("mnt");
        let thaw = Guard::new(move || {
            let mut command = program("fsfreeze");
            command.args(["--unfreeze", path(&thawed)]);
            // It says so when nothing is frozen.
            let _ = finish(command, Duration::from_secs(10), false);
        });
        Ok(Mounted { _thaw: thaw, _attached: attached })
    }

    fn data(&self) -> PathBuf {
        self.place.file("mnt").join("data")
    }

    fn start(&self) -> Result<Database<'a>> {
        Database::start(self.programs, &self.data(), &self.place.file("s"))
    }

    /// Makes file system, database and tables.
    fn make(&self) -> Result<()> {
        let attached = Attached::below(&self.served.file("db"), &self.served.socket, "db")?;
        Kind::Ext4.make(&attached.device)?;
        drop(attached);
        let _mounted = self.mount()?;
        self.programs.initialise(&self.data())?;
        let database = self.start()?;
        let mut tables = database.client("pgbench");
        tables.args(["-i", "-q", "-s", &SCALE.to_string(), "postgres"]);
        run_program(tables, LIMIT)?;
        database.ask(
            "create table confirmed (run bigint, client int, n bigint, primary key (run, client, n))",
        )?;
        fs::write(self.place.file("transaction.sql"), TRANSACTION)?;
        database.stop()
    }

    /// One run of pgbench with snapshots, a kill, and what must be there afterwards.
    fn work_and_kill(&mut self, run: u64, extent: Extent) -> Result<()> {
        let mounted = self.mount()?;
        let database = self.start()?;
        let mut bench = self.bench(&database, run, extent.seconds)?;
        let taken = self.take_snapshots(run, extent);
        let at_work = disk::kill_at_work(&mut self.served)?;
        let ended = bench.wait(LIMIT)?;
        drop(database);
        drop(mounted);
        self.snapshots.extend(taken?);
        ensure!(
            ended.is_some_and(|status| !status.success()),
            "pgbench did not notice that the server was killed"
        );
        self.read_log(run)?;

        self.served.start()?;
        let _mounted = self.mount()?;
        let database = self.start()?;
        let state = self.consistent(&database, f64::INFINITY, f64::INFINITY)?;
        let requests = if at_work { "requests" } else { "no request" };
        println!("    kill {run}, {requests} under way: {state}");
        database.stop()?;
        self.programs.verify_checksums(&self.data())
    }

    /// Starts pgbench, which goes on longer than the server.
    fn bench(&self, database: &Database, run: u64, seconds: u64) -> Result<Running> {
        let logs = self.place.file("s").join(format!("run{run}"));
        let mut command = database.client("pgbench");
        command.args(["-n", "-c", &CLIENTS.to_string(), "-T", &(seconds + 600).to_string()]);
        command.args(["-f", path(&self.place.file("transaction.sql"))]);
        command.args(["-D", "n=0", "-D", &format!("run={run}")]);
        command.args(["-l", "--log-prefix", path(&logs), "postgres"]);
        let said = fs::File::create(self.place.file("pgbench.log"))?;
        command.stdout(said.try_clone()?).stderr(said);
        spawn(&mut command)
    }

    /// Takes snapshots until the time is over, every second one of a frozen file system.
    fn take_snapshots(&self, run: u64, extent: Extent) -> Result<Vec<Snapshot>> {
        let begun = Instant::now();
        let end = Duration::from_secs(extent.seconds);
        let mut taken = Vec::new();
        for n in 1.. {
            let next = extent.between_snapshots * n;
            if next >= end {
                break;
            }
            thread::sleep(next.saturating_sub(begun.elapsed()));
            let state = if n % 2 == 0 { State::AtRest } else { State::AsAfterACrash };
            taken.push(self.take_snapshot(&format!("db@run{run}-{n}"), state)?);
        }
        thread::sleep(end.saturating_sub(begun.elapsed()));
        Ok(taken)
    }

    fn take_snapshot(&self, name: &str, state: State) -> Result<Snapshot> {
        let mount = self.place.file("mnt");
        let (freeze, thaw) = (
            format!("fsfreeze --freeze {}", path(&mount)),
            format!("fsfreeze --unfreeze {}", path(&mount)),
        );
        let mut arguments = vec!["snapshot", "create", path(&self.served.store), name];
        if state == State::AtRest {
            arguments.extend(["--freeze", &freeze, "--thaw", &thaw]);
        }
        fs::write(marker(&mount, name), name)?;
        let from = now()?;
        self.served.onefold.verb(arguments)?;
        Ok(Snapshot { name: name.to_owned(), state, from, to: now()? })
    }

    /// pgbench's own log of what was acknowledged to it.
    fn read_log(&mut self, run: u64) -> Result<()> {
        for client in 0..CLIENTS {
            self.log.insert((run, client), Vec::new());
        }
        let begin = format!("run{run}.");
        let files = fs::read_dir(self.place.file("s"))?.flatten();
        for file in files.filter(|entry| entry.file_name().to_string_lossy().starts_with(&begin)) {
            for line in fs::read_to_string(file.path())?.lines() {
                let fields: Vec<&str> = line.split(' ').collect();
                ensure!(fields.len() >= 6, "pgbench wrote '{line}'");
                let at = format!("{}.{:0>6}", fields[4], fields[5]).parse()?;
                self.log.entry((run, fields[0].parse()?)).or_default().push(at);
            }
        }
        ensure!(
            self.log.range((run, 0)..).any(|(_, times)| !times.is_empty()),
            "no transaction was acknowledged to pgbench:\n{}",
            fs::read_to_string(self.place.file("pgbench.log")).unwrap_or_default()
        );
        Ok(())
    }

    /// A clone of each snapshot recovers, too.
    fn look_at_snapshots(&self) -> Result<()> {
        for snapshot in &self.snapshots {
            if snapshot.state == State::AtRest {
                let mount_point = self.place.file("clone");
                let look = |mount: &Path| snapshot.has_marker(mount);
                disk::look_at_frozen(&self.served, &snapshot.name, &mount_point, look)
                    .with_context(|| format!("{} itself", snapshot.name))?;
            }
            disk::look_at_clone(
                &self.served,
                &snapshot.name,
                snapshot.state,
                &self.place.file("clone"),
                |mount| {
                    snapshot.has_marker(mount)?;
                    let data = mount.join("data");
                    let database =
                        Database::start(self.programs, &data, &self.place.file("clone-s"))?;
                    let state = self.consistent(&database, snapshot.from, snapshot.to)?;
                    let (name, kind) = (&snapshot.name, snapshot.state);
                    println!("    {name} ({kind:?}): {state}");
                    database.stop()?;
                    self.programs.verify_checksums(&data)
                },
            )
            .with_context(|| format!("a clone of {}", snapshot.name))?;
        }
        Ok(())
    }

    /// The database has all transactions that were acknowledged before `from`, none that was begun
    /// after `to`, none without those that were acknowledged before it was begun, and the sums of
    /// TPC-B.
    fn consistent(&self, database: &Database, from: f64, to: f64) -> Result<String> {
        let present = transactions(database)?;
        let has = |who: &Who| present.get(who).copied().unwrap_or(0);
        // The latest time at which a transaction that is there was begun: that of the one before.
        let mut newest_begin = f64::NEG_INFINITY;
        let mut transactions = 0;
        for (who, times) in &self.log {
            let (run, client) = who;
            let there = has(who);
            let needed = before(times, from - CLOCKS);
            let begun = before(times, to + CLOCKS) + 1;
            ensure!(
                there >= needed,
                "run {run}, client {client}: {needed} transactions were acknowledged, {there} are \
                 there"
            );
            ensure!(
                there <= begun,
                "run {run}, client {client}: {begun} transactions were begun, {there} are there"
            );
            if there >= 2 {
                newest_begin = newest_begin.max(times[there - 2]);
            }
            transactions += there;
        }
        for (who, times) in &self.log {
            let needed = before(times, newest_begin);
            ensure!(
                has(who) >= needed,
                "{who:?}: a transaction is there that was begun after {needed} of this client were \
                 acknowledged, of which {} are there",
                has(who)
            );
        }
        let known = |who: &Who| self.log.contains_key(who);
        ensure!(present.keys().all(known), "transactions that no client made are there");
        sums(database)?;
        database.verify()?;
        let acknowledged: usize = self.log.values().map(|times| before(times, from)).sum();
        Ok(format!("{transactions} transactions there, {acknowledged} acknowledged"))
    }
}

/// Acknowledgements before a time.
fn before(times: &[f64], end: f64) -> usize {
    times.partition_point(|time| *time < end)
}

/// Transactions of each client, which must be all from the first one on.
fn transactions(database: &Database) -> Result<BTreeMap<Who, usize>> {
    let rows = database
        .ask("select run, client, count(*), min(n), max(n) from confirmed group by run, client")?;
    rows.lines()
        .map(|row| {
            let fields: Vec<u64> =
                row.split('|').map(str::parse).collect::<Result<_, _>>().context(row.to_owned())?;
            ensure!(
                fields.len() == 5 && fields[3] == 1 && fields[4] == fields[2],
                "transactions are missing in between: run, client, count, first, last are {row}"
            );
            Ok(((fields[0], fields[1] as u32), fields[2] as usize))
        })
        .collect()
}

/// All sums of TPC-B are the same.
fn sums(database: &Database) -> Result<()> {
    let sums = database.ask(
        "select coalesce(sum(delta), 0), (select sum(abalance) from pgbench_accounts),
         (select sum(tbalance) from pgbench_tellers), (select sum(bbalance) from pgbench_branches)
         from pgbench_history",
    )?;
    let fields: Vec<&str> = sums.split('|').collect();
    ensure!(
        fields.len() == 4 && fields.iter().all(|sum| *sum == fields[0]),
        "history, accounts, tellers and branches have different sums: {sums}"
    );
    let counts = database
        .ask("select (select count(*) from pgbench_history) = (select count(*) from confirmed)")?;
    ensure!(counts == "t", "the history has other transactions");
    Ok(())
}

/// A directory that PostgreSQL's user reaches, which it may not below `target/`.
struct Place {
    path: PathBuf,
    _guard: Guard,
}

impl Place {
    fn new() -> Result<Place> {
        let path = std::env::temp_dir().join(format!("onefold-guests-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        let removed = path.clone();
        let guard = Guard::new(move || remove(&removed));
        Ok(Place { path, _guard: guard })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Removes the directory, and nothing that is still mounted in it.
fn remove(path: &Path) {
    for mount_point in ["mnt", "clone"] {
        let _ = fs::remove_dir(path.join(mount_point));
    }
    if !path.join("mnt").exists() && !path.join("clone").exists() {
        let _ = fs::remove_dir_all(path);
    }
}

/// Seconds since 1970.
fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64())
}
