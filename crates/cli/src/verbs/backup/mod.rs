//! `onefold backup`: a snapshot of directories into an archive.

mod dry;
mod own;
mod reread;
mod roots;
pub(super) mod served;
mod settled;
mod stdin;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]
mod tests;
mod walk;

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use clap::{Args, builder::NonEmptyStringValueParser};
use onefold_archive::{
    Archive, BackupReport, BackupRequest, Gauge, Ingest, Role, Settings, Snapshot, SnapshotId,
    TEXTS_MAX, Tables, TreeFeeder, TreeReader, backup_elsewhere, backup_on, backup_trial,
    domain_called,
};
use onefold_backend::random::random_bytes;
use onefold_core::Kind;
use serde_json::{Value, json};

use self::{
    dry::DryRun,
    own::Own,
    roots::{Ends, Root},
    settled::Matching,
    walk::{Counts, Rules, Teller},
};
use super::{
    archive_at,
    exclude::{self, Exclude},
    snapshots::{self, SHOWN_DIGITS},
    waiting::{Patience, Waiting},
    with_advice,
};
use onefold::parts::{
    archive_dir::{ArchiveDir, now},
    control::{self, Client},
};
use onefold_console::{
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, counted, grouped, share},
};

/// Time between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Makes a snapshot of directories and files in an archive
///
/// A snapshot has names, kinds, modes, owners, times, links, holes, extended attributes and
/// contents. Files whose size, times and inode number are those of the set's last snapshot are
/// taken over from it unread. What can't be read is left out and named, the snapshot is marked as
/// partial, and the exit status is 3. So is it when a file that was read again has another content
/// although nothing says that it changed. When the command succeeds, the snapshot is durable; a
/// repeated backup goes on from the last checkpoint of a killed one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold backup backups /etc /home --set web1\n  \
                  onefold backup backups / --set web1 --one-file-system \
                  --exclude-from /etc/onefold/ignore --tag nightly\n  \
                  onefold backup backups --set shop --stdin shop.sql -- pg_dump shop")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// Directories and files
    #[arg(required_unless_present_any = ["stdin", "files_from", "files_from0"])]
    paths: Vec<PathBuf>,

    /// Reads more paths from a file, one a line and none of them a pattern, without empty lines and lines
    /// that begin with #; - stands for standard input. A list has 1 MiB at most, and a snapshot 1,024 paths:
    /// with more the whole backup is refused, with the exit status 2
    #[arg(long, value_name = "FILE", conflicts_with = "stdin")]
    files_from: Vec<PathBuf>,

    /// The same for a file in which each path ends with a zero byte, as `find -print0` writes them: a path
    /// may have any other byte. There are no remarks
    #[arg(long, value_name = "FILE", conflicts_with = "stdin")]
    files_from0: Vec<PathBuf>,

    /// Stores what a command writes to its standard output as a file of this name, or else what
    /// comes on standard input. When the command fails there is no snapshot
    #[arg(long, value_name = "NAME", conflicts_with = "paths")]
    stdin: Option<String>,

    /// The command of --stdin, with its arguments
    #[arg(last = true, requires = "stdin", value_name = "COMMAND")]
    command: Vec<OsString>,

    /// The set that the snapshot belongs to, which is how it is called; without it, the paths
    #[arg(long, value_name = "NAME")]
    set: Option<String>,

    /// The domain that the set belongs to: it shares nothing with sets of others, and is gone when its
    /// domain is erased. A set stays in its domain; without it, a new one belongs to the domain that each
    /// archive begins with. Encrypted archives only
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,

    /// The host's name; without it, that of this one. With a put key it is the key's name, and no other
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    host: Option<String>,

    /// A word by which the snapshot is found; several with commas between, or with the option again
    #[arg(
        long = "tag",
        value_name = "WORD",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    tags: Vec<String>,

    #[command(flatten)]
    selection: exclude::Options,

    /// Stores the path under another one: the directory or file that is mounted from a snapshot of a
    /// file system under the path that it has there
    #[arg(long = "as", value_name = "PATH", conflicts_with = "stdin")]
    stored_as: Option<PathBuf>,

    /// Reads files although their times say that they did not change
    #[arg(long)]
    read_all: bool,

    /// Reads each unchanged file again once in so many days, each path on a day of its own or with
    /// the first backup after it; 0 for never
    #[arg(long, default_value_t = 90, value_name = "DAYS")]
    reread: u64,

    /// On tmpfs, FUSE, FAT and SMB, where times of change and inode numbers may mean nothing, a file is
    /// taken over unread when these are the same: mtime,size and perhaps inode or ctime. Without it all
    /// files there are read
    #[arg(long = "match", value_name = "WHAT")]
    matching: Option<Matching>,

    /// Directories, and small files, that the disk is asked for at once when the system's cache does not
    /// have them; 0 asks for one after the other. The snapshot is the same
    #[arg(
        long,
        default_value_t = 4,
        value_name = "N",
        value_parser = clap::value_parser!(u8).range(..=64)
    )]
    readers: u8,

    /// Says that the set is smaller than half of the last snapshot on purpose: the new one is not
    /// marked as shrunk
    #[arg(long)]
    accept: bool,

    /// Minutes between two checkpoints: a backup that was killed is repeated from the last one
    #[arg(long, default_value_t = 10, value_name = "MINUTES")]
    checkpoint: u64,

    /// Stores nothing, and says how much would be read. Without =read it reads no file; with it, it reads,
    /// cuts and looks up as a backup does, and says by how much the archive would grow
    #[arg(
        short = 'n',
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "walk",
        conflicts_with = "stdin"
    )]
    dry_run: Option<DryRun>,

    /// Continues when nodes are absent, as long as one more is present than the data needs.
    /// Archives on several nodes only
    #[arg(long)]
    degraded: bool,

    #[command(flatten)]
    patience: Patience,

    /// Level of Zstandard for new chunks, in an archive with --compress zstd
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        value_parser = clap::value_parser!(i32).range(1..=19)
    )]
    level: i32,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// Makes the snapshot, and says what it took.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if options.stdin.is_none() && !options.command.is_empty() {
        return Err(Failure::usage("a command is stored with --stdin NAME -- COMMAND"));
    }
    let directory = archive_at(&options.store, "it holds no directories")?;
    let rules = rules(options, &directory)?;
    if let Some(how) = options.dry_run {
        let archive = directory.open_to_read(Settings::default().memory)?;
        return dry(options, how, &archive, &rules);
    }
    let (begun, mut counts) = (Instant::now(), Counts::default());
    let made = match directory.server()? {
        Some(server) => send(server, &directory, options, &rules, &mut counts)?,
        None => store(&directory, options, &rules, &mut counts)?,
    };
    tell(options, &made, &counts, begun.elapsed())?;
    judge(&made, &counts)
}

/// Makes it here; waits for another ingesting process, or hands it to one that begins to serve
/// meanwhile.
fn store(
    directory: &ArchiveDir,
    options: &Options,
    rules: &Rules,
    counts: &mut Counts,
) -> Result<Value, Failure> {
    let settings = Settings { level: options.level, ..Settings::default() };
    let (mut archive, _) = directory.open_nodes(settings.clone(), options.degraded)?;
    takes_snapshots(options, &archive)?;
    directory.warn_of_lost_index(&archive);
    let (mut waiting, mut looked_at) =
        (Waiting::new(directory, options.patience), directory.clone());
    let ingest = loop {
        // Perhaps it was waited for the end of a move.
        if let Some(moved) = looked_at.after_move()? {
            (archive, _) = moved.open_nodes(settings.clone(), options.degraded)?;
            looked_at = moved;
        }
        match Ingest::begin(&archive, false, false) {
            Err(error) if error.kind() == Kind::Busy => {}
            begun => break begun?,
        }
        if let Some(server) = directory.server()? {
            drop(waiting);
            return send(server, directory, options, rules, counts);
        }
        waiting.go_on()?;
    };
    drop(waiting);
    let tables = archive.refresh()?;
    let request = request(options, rules, (&archive, &tables))?;
    let total = parents(&tables, &request).map(|parent| parent.bytes).max().unwrap_or(0);
    let made = shown("reading", total, |gauge| {
        let since = began(parents(&tables, &request));
        backup_on(&ingest, &request, gauge, |feeder| {
            feed(options, (rules, since), &archive, feeder, counts)
        })
    });
    Ok(report(&made.map_err(|error| with_advice(error, &options.store))?))
}

/// Lets the server of the archive store what is found here.
fn send(
    mut server: Client,
    directory: &ArchiveDir,
    options: &Options,
    rules: &Rules,
    counts: &mut Counts,
) -> Result<Value, Failure> {
    let archive = directory.open_to_read(Settings::default().memory)?;
    takes_snapshots(options, &archive)?;
    // What the parents name is not freed before the server has named it.
    let kept = TreeReader::new(&archive)?;
    let tables = kept.tables().clone();
    let mut request = request(options, rules, (&archive, &tables))?;
    let mut own = only_adds(directory)?.then(|| Own::of(archive.label().id));
    if let Some(own) = &own {
        take_over_from(own, &tables, &mut request);
    }
    let parents: Vec<&Snapshot> = parents(&tables, &request).collect();
    let total = parents.iter().map(|parent| parent.bytes).max().unwrap_or(0);
    let since = began(parents.iter().copied());
    let asked = control::Request::Backup(Box::new(served::asked(&request)));
    let made = shown("reading", total, |gauge| {
        server.send(&asked, &mut |new, _| gauge.new.store(new, Relaxed), |outlet| {
            backup_elsewhere(&archive, &parents, gauge, Some(outlet), |feeder| {
                feed(options, (rules, since), &archive, feeder, counts)
            })
        })
    });
    let made = made.map_err(|error| with_advice(error, &options.store))?;
    drop(kept);
    if let Some(own) = &mut own {
        let tables = archive.refresh()?;
        let noted = tables.snapshots.get(request.id).and_then(|snapshot| own.note(snapshot));
        if let Err(error) = noted {
            tracing::warn!("the next backup reads all files again: {error}");
        }
    }
    Ok(made)
}

/// True when the server lets its clients add and do nothing else. It answers one question for each
/// connection.
fn only_adds(directory: &ArchiveDir) -> Result<bool, Failure> {
    // One that has gone meanwhile may come back as such a one.
    let Some(mut server) = directory.server()? else { return Ok(true) };
    let status: Value = server.ask(&control::Request::Status)?;
    Ok(status["append_only"] == true)
}

/// Takes over from the newest snapshot of the set that was made here, and from nobody else's.
fn take_over_from(own: &Own, tables: &Tables, request: &mut BackupRequest) {
    let of_set = || tables.snapshots.listed().rev().filter(|snapshot| snapshot.set == request.set);
    let parent = of_set().find(|snapshot| own.has(snapshot)).map(|snapshot| snapshot.id);
    if parent.is_none() && of_set().next().is_some() {
        tracing::info!(
            "the snapshots of '{}' were not made by this user here, as far as is known: all files \
             are read",
            request.set.escape_debug()
        );
    }
    (request.parent, request.checkpoint) = (parent, None);
}

/// Refuses an archive that was made before there were snapshots.
fn takes_snapshots(options: &Options, archive: &Archive) -> Result<(), Failure> {
    match archive.tables().trees {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "{}: it was made by a version without snapshots, and takes none: `onefold upgrade` \
             changes that, and `onefold put -r` stores directories in it as it is",
            options.store.display()
        ))),
    }
}

/// Tells of what is asked for.
fn feed(
    options: &Options,
    rules: (&Rules, u64),
    archive: &Archive,
    feeder: &mut TreeFeeder<'_>,
    counts: &mut Counts,
) -> onefold_core::Result<()> {
    match &options.stdin {
        Some(name) => stdin::tell(name, &options.command, feeder, counts),
        None => walk(rules, archive, feeder, counts),
    }
}

fn rules(options: &Options, archive: &ArchiveDir) -> Result<Rules, Failure> {
    let mut paths = options.paths.clone();
    for (files, ends) in [(&options.files_from, Ends::Line), (&options.files_from0, Ends::Zero)] {
        for file in files {
            paths.extend(roots::listed(file, ends)?);
        }
    }
    let roots =
        roots::sorted(&paths, options.stored_as.as_deref(), options.selection.one_file_system)?;
    if roots.len() > TEXTS_MAX {
        return Err(Failure::usage(format!(
            "{} are too many for a snapshot, which has {TEXTS_MAX} at most: name directories above them",
            counted(roots.len() as u64, "path")
        )));
    }
    let own = archive.identities();
    if let Some(root) = roots.iter().find(|root| root.is_one_of(&own)) {
        let shown = root.at.display();
        return Err(Failure::new(format!("{shown} is the archive, which does not store itself")));
    }
    let exclude = |root: &Root| -> Result<Exclude, Failure> {
        Ok(Exclude::new(&root.stored_as, &options.selection)?.without(archive))
    };
    let excludes = roots.iter().map(exclude).collect::<Result<_, _>>()?;
    Ok(Rules {
        roots,
        excludes,
        selection: options.selection.clone(),
        read_all: options.read_all,
        reread_days: options.reread,
        matching: options.matching,
        readers: usize::from(options.readers),
        checkpoint_every: Duration::from_secs(options.checkpoint.saturating_mul(60)),
        dry: options.dry_run.is_some(),
        reads: options.dry_run != Some(DryRun::Walk),
    })
}

fn walk(
    (rules, since): (&Rules, u64),
    archive: &Archive,
    feeder: &mut TreeFeeder<'_>,
    counts: &mut Counts,
) -> onefold_core::Result<()> {
    let mut teller = Teller::new(rules, feeder, archive.label().identity(), since);
    let told = teller.all();
    *counts = teller.counts;
    told
}

/// Says what a backup would read, and what it would add.
fn dry(
    options: &Options,
    how: DryRun,
    archive: &Arc<Archive>,
    rules: &Rules,
) -> Result<(), Failure> {
    takes_snapshots(options, archive)?;
    let tables = archive.tables();
    let request = request(options, rules, (archive, &tables))?;
    let parents: Vec<&Snapshot> = parents(&tables, &request).collect();
    let (since, mut counts) = (began(parents.iter().copied()), Counts::default());
    let total = parents.iter().map(|parent| parent.bytes).max().unwrap_or(0);
    let growth = shown("reading", total, |gauge| {
        let walk = |feeder: &mut TreeFeeder<'_>| walk((rules, since), archive, feeder, &mut counts);
        match how {
            DryRun::Walk => backup_elsewhere(archive, &parents, gauge, None, walk).map(|()| None),
            DryRun::Read => backup_trial(archive, &request, &parents, gauge, walk).map(Some),
        }
    })?;
    dry::tell(&counts, growth, options.json)
}

/// Shows how far `work` is while it works, and what it does: `what`, like «reading».
pub(super) fn shown<T>(
    what: &str,
    total: u64,
    work: impl FnOnce(&Gauge) -> onefold_core::Result<T>,
) -> onefold_core::Result<T> {
    /// Ends the showing, also when the work panics.
    struct Ends<'a>(&'a AtomicBool, std::thread::Thread);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
            self.1.unpark();
        }
    }
    let (gauge, ended) = (Gauge::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let shown = scope.spawn(|| show(what, &gauge, total, &ended));
        let _ends = Ends(&ended, shown.thread().clone());
        work(&gauge)
    })
}

fn request(
    options: &Options,
    rules: &Rules,
    (archive, tables): (&Archive, &Tables),
) -> Result<BackupRequest, Failure> {
    let domain = options.domain.as_deref().map(|name| domain_called(archive, name)).transpose()?;
    let paths: Vec<Vec<u8>> = rules
        .roots
        .iter()
        .map(|root| root.stored_as.as_os_str().as_encoded_bytes().to_vec())
        .collect();
    let of_paths = || {
        let shown = rules.roots.iter().map(|root| root.stored_as.display().to_string());
        shown.collect::<Vec<_>>().join(",")
    };
    let set = options.set.clone().or_else(|| options.stdin.clone()).unwrap_or_else(of_paths);
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut request = BackupRequest {
        id: fresh_id(tables)?,
        set,
        domain,
        host: options.host.clone().or_else(|| host_of_key(archive, tables)).unwrap_or_else(host),
        machine: machine(),
        paths,
        tags: options.tags.clone(),
        now: now(),
        clock: Some(now),
        parent: None,
        checkpoint: None,
        accept: options.accept,
        copied: None,
    };
    request.domain = Some(request.domain_in(tables)?);
    let of_set = || tables.snapshots.listed().rev().filter(|snapshot| snapshot.set == request.set);
    let of_host = of_set().find(|snapshot| snapshot.host == request.host);
    let parent = of_host.or_else(|| of_set().next());
    if let Some(line) = parent.and_then(|parent| of_another_machine(parent, request.machine)) {
        tracing::warn!("{line}");
    }
    let parent = parent.map(|snapshot| snapshot.id);
    let mut checkpoints = tables.snapshots.checkpoints().rev();
    let checkpoint = checkpoints.find(|one| request.goes_on_from(one)).map(|one| one.id);
    (request.parent, request.checkpoint) = (parent, checkpoint);
    if matches!(archive.role(), Some(Role::Put(_))) {
        // It can't open what they name.
        (request.parent, request.checkpoint) = (None, None);
    }
    Ok(request)
}

/// A put key adds snapshots of the host of its own name alone.
fn host_of_key(archive: &Archive, tables: &Tables) -> Option<String> {
    let Some(Role::Put(number)) = archive.role() else { return None };
    Some(tables.roles.as_ref()?.keys.get(&number)?.name.clone())
}

/// An id for a snapshot, by chance, whose first digits no other one has.
fn fresh_id(tables: &Tables) -> onefold_core::Result<SnapshotId> {
    loop {
        let id = SnapshotId(random_bytes()?);
        if !tables.snapshots.has_digits_of(id) {
            return Ok(id);
        }
    }
}

/// Says so when the last snapshot of a set came from another machine: two may have one name, as a
/// virtual machine and its copy.
fn of_another_machine(last: &Snapshot, here: [u8; 16]) -> Option<String> {
    let known = |id: [u8; 16]| id != [0; 16];
    (known(last.machine) && known(here) && last.machine != here).then(|| {
        format!(
            "the last snapshot of '{}', {}, was made on another machine, which has the host name '{}' and \
             the machine id {}",
            last.set.escape_debug(),
            snapshots::short(last.id),
            last.host.escape_debug(),
            SnapshotId(last.machine),
        )
    })
}

/// What the snapshot takes over from: a checkpoint before the last snapshot.
fn parents<'a>(tables: &'a Tables, request: &BackupRequest) -> impl Iterator<Item = &'a Snapshot> {
    let both = [request.checkpoint, request.parent];
    both.into_iter().flatten().filter_map(|id| tables.snapshots.get(id).ok())
}

/// When the first of the parents began; what was due by then they have read again.
fn began<'a>(parents: impl Iterator<Item = &'a Snapshot>) -> u64 {
    parents.map(|parent| parent.began).min().unwrap_or(0)
}

/// The id of this machine; zero when it has none.
fn machine() -> [u8; 16] {
    let text = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    u128::from_str_radix(text.trim(), 16).unwrap_or_default().to_be_bytes()
}

/// Shows how far it is until it ends; who ends it wakes this thread.
fn show(what: &str, gauge: &Gauge, total: u64, ended: &AtomicBool) {
    let bar = Progress::new(what);
    while !ended.load(Relaxed) {
        std::thread::park_timeout(LOOK_EVERY);
        let (read, new) = (gauge.read.load(Relaxed), gauge.new.load(Relaxed));
        if read > 0 {
            // With what stands for the files, more may be new than was read.
            bar.note(&format!("{what}, {} new", share(new.min(read), read)));
        }
        bar.set(read, total);
    }
}

/// What programs are told of a snapshot that was made.
pub(super) fn report(made: &BackupReport) -> Value {
    let mut report = snapshots::json(&made.snapshot);
    report["new_bytes"] = made.new_bytes.into();
    report["pages_written"] = made.pages.0.into();
    report["pages_taken_over"] = made.pages.1.into();
    report
}

fn tell(options: &Options, made: &Value, counts: &Counts, took: Duration) -> Result<(), Failure> {
    if options.json {
        let mut report = made.clone();
        report["files_read"] = counts.read.into();
        report["bytes_read"] = counts.read_bytes.into();
        report["files_unchanged"] = counts.unchanged.into();
        report["excluded"] = counts.excluded.into();
        report["vanished"] = counts.vanished.into();
        report["restless"] = counts.restless.into();
        report["silent_changes"] = counts.silent.into();
        report["seconds"] = json!(took.as_secs_f64());
        return output::json(&report);
    }
    let (text, number) = (
        |key: &str| made[key].as_str().unwrap_or_default(),
        |key: &str| made[key].as_u64().unwrap_or_default(),
    );
    output::line(format_args!(
        "snapshot {} of '{}': {}, {}; {} read, {} unchanged{}; the archive grew by {}",
        &text("id")[..SHOWN_DIGITS.min(text("id").len())],
        text("set").escape_debug(),
        counted(number("entries"), "entry"),
        Size(number("bytes")),
        counted(counts.read, "file"),
        grouped(counts.unchanged),
        noted(counts),
        Size(number("added_bytes"))
    ));
    Ok(())
}

/// What else is told of a walk, if there is anything.
fn noted(counts: &Counts) -> String {
    let told = [
        (counts.vanished, "vanished meanwhile"),
        (counts.restless, "changed while read"),
        (counts.silent, "changed without a trace in the times"),
    ];
    let told = told.iter().filter(|(n, _)| *n > 0);
    told.map(|(n, what)| format!(", {} {what}", grouped(*n))).collect()
}

/// The exit status.
fn judge(made: &Value, counts: &Counts) -> Result<(), Failure> {
    match made["state"].as_str() {
        Some("partial") => Err(Failure::in_part(format!(
            "the snapshot is partial: the messages above name {} that could not be read",
            counted(made["left_out"].as_u64().unwrap_or_default(), "path")
        ))),
        Some("shrunk") => Err(Failure::in_part(
            "the snapshot has less than half of what the last whole one of its set has: is \
             everything mounted? It is marked as shrunk, and counts for no retention; a set that is \
             smaller on purpose is told so by --accept",
        )),
        _ if counts.silent > 0 => Err(Failure::in_part(counts.silent_changes())),
        _ => Ok(()),
    }
}
