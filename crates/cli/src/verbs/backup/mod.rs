//! `onefold backup`: a snapshot of directories into an archive.

mod roots;
mod settled;
mod walk;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use clap::Args;
use onefold_archive::{
    Archive, BackupReport, BackupRequest, Completeness, Gauge, Ingest, Settings, Snapshot,
    SnapshotId, Tables, backup_on,
};
use onefold_backend::random::random_bytes;
use onefold_core::Kind;
use serde_json::json;

use self::walk::{Counts, Rules, Teller};
use super::{archive_at, exclude::Exclude, snapshots};
use onefold::parts::archive_dir::{ArchiveDir, now};
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
/// partial, and the exit status is 3. When the command succeeds, the snapshot is durable; a
/// repeated backup finds the chunks again that a killed one had stored.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold backup backups /etc /home --set web1\n  \
                  onefold backup backups / --set web1 --one-file-system \
                  --exclude-from /etc/onefold/ignore --tag nightly")]
pub(crate) struct Options {
    /// The archive
    store: PathBuf,

    /// Directories and files
    #[arg(required = true)]
    paths: Vec<PathBuf>,

    /// The set that the snapshot belongs to, which is how it is called; without it, the paths
    #[arg(long, value_name = "NAME")]
    set: Option<String>,

    /// The host's name; without it, that of this one
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// A word by which the snapshot is found
    #[arg(long = "tag", value_name = "WORD")]
    tags: Vec<String>,

    /// Leaves out what matches a pattern: a name or the end of a path; with a first / a path from
    /// the directory or from the root of the system; with a last / directories only. Patterns may
    /// have *, ?, [a-z] and **
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,

    /// Reads patterns from a file, one a line, without empty lines and lines that begin with #
    #[arg(long, value_name = "FILE")]
    exclude_from: Vec<PathBuf>,

    /// Leaves out the content of cache directories, which have a file CACHEDIR.TAG
    #[arg(long)]
    exclude_caches: bool,

    /// Stays on the file systems of the paths, and stores an empty directory for each mount point
    #[arg(long)]
    one_file_system: bool,

    /// Reads files although their times say that they did not change
    #[arg(long)]
    read_all: bool,

    /// Reads each unchanged file again after so many days, each path on a day of its own; 0 for
    /// never
    #[arg(long, default_value_t = 90, value_name = "DAYS")]
    reread: u64,

    /// Continues when nodes are absent, as long as one more is present than the data needs.
    /// Archives on several nodes only
    #[arg(long)]
    degraded: bool,

    /// Fails when a put or another backup is running, instead of waiting for it
    #[arg(long)]
    no_wait: bool,

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
    let directory = archive_at(&options.store, "it holds no directories")?;
    let roots = roots::sorted(&options.paths)?;
    let exclude =
        |root: &PathBuf| Exclude::new(root, &options.exclude, &options.exclude_from).map(Arc::new);
    let excludes = roots.iter().map(exclude).collect::<Result<_, _>>()?;
    let rules = Rules {
        roots,
        excludes,
        without_caches: options.exclude_caches,
        one_file_system: options.one_file_system,
        read_all: options.read_all,
        reread_days: options.reread,
    };
    let settings = Settings { level: options.level, ..Settings::default() };
    let (archive, _) = directory.open_nodes(settings, options.degraded)?;
    let ingest = begin(&directory, &archive, options)?;
    let begun = Instant::now();
    let mut request = request(options, &rules)?;
    let tables = archive.refresh()?;
    let parent = parent(&tables, &request).cloned();
    request.parent = parent.as_ref().map(|parent| parent.id);
    let gauge = Gauge::default();
    let total = parent.as_ref().map_or(0, |parent| parent.bytes);
    let ended = AtomicBool::new(false);
    let mut counts = Counts::default();
    let made = std::thread::scope(|scope| {
        let shown = scope.spawn(|| show(&gauge, total, &ended));
        let made = backup_on(&ingest, &request, &gauge, |feeder| {
            let mut teller = Teller::new(&rules, feeder, archive.label().identity());
            let told = teller.all();
            counts = teller.counts;
            told
        });
        ended.store(true, Relaxed);
        shown.thread().unpark();
        made
    })?;
    tell(options, &made, &counts, begun.elapsed())?;
    judge(&made.snapshot)
}

/// Becomes the ingesting process, and waits for another one.
fn begin(
    directory: &ArchiveDir,
    archive: &Arc<Archive>,
    options: &Options,
) -> Result<Arc<Ingest>, Failure> {
    if !archive.tables().trees {
        return Err(Failure::new(format!(
            "{}: it was made by a version without snapshots, and takes none; `onefold put -r` \
             stores directories in it",
            options.store.display()
        )));
    }
    loop {
        match Ingest::begin(archive, false, false) {
            Err(error) if error.kind() == Kind::Busy && !options.no_wait => {}
            begun => return Ok(begun?),
        }
        if directory.server()?.is_some() {
            return Err(Failure::new(format!(
                "{} is served: stop its server for the time of the backup",
                options.store.display()
            )));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn request(options: &Options, rules: &Rules) -> Result<BackupRequest, Failure> {
    let paths: Vec<Vec<u8>> =
        rules.roots.iter().map(|root| root.as_os_str().as_encoded_bytes().to_vec()).collect();
    let shown: Vec<String> = rules.roots.iter().map(|root| root.display().to_string()).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(BackupRequest {
        id: SnapshotId(random_bytes()?),
        set: options.set.clone().unwrap_or_else(|| shown.join(",")),
        host: options.host.clone().unwrap_or(host),
        machine: machine(),
        paths,
        tags: options.tags.clone(),
        now: now(),
        parent: None,
    })
}

/// The id of this machine; zero when it has none.
fn machine() -> [u8; 16] {
    let text = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    u128::from_str_radix(text.trim(), 16).unwrap_or_default().to_be_bytes()
}

/// The newest snapshot of the set on this host, or else of the set.
fn parent<'a>(tables: &'a Tables, request: &BackupRequest) -> Option<&'a Snapshot> {
    let of_set = || tables.snapshots.listed().rev().filter(|snapshot| snapshot.set == request.set);
    of_set().find(|snapshot| snapshot.host == request.host).or_else(|| of_set().next())
}

/// Shows how far it is until it ends; who ends it wakes this thread.
fn show(gauge: &Gauge, total: u64, ended: &AtomicBool) {
    let bar = Progress::new("reading");
    while !ended.load(Relaxed) {
        std::thread::park_timeout(LOOK_EVERY);
        let (read, new) = (gauge.read.load(Relaxed), gauge.new.load(Relaxed));
        if read > 0 {
            bar.note(&format!("reading, {} new", share(new, read)));
        }
        bar.set(read, total);
    }
}

fn tell(
    options: &Options,
    made: &BackupReport,
    counts: &Counts,
    took: Duration,
) -> Result<(), Failure> {
    let snapshot = &made.snapshot;
    if options.json {
        let mut report = snapshots::json(snapshot);
        report["new_bytes"] = made.new_bytes.into();
        report["pages_written"] = made.pages.0.into();
        report["pages_taken_over"] = made.pages.1.into();
        report["files_read"] = counts.read.into();
        report["files_unchanged"] = counts.unchanged.into();
        report["excluded"] = counts.excluded.into();
        report["restless"] = counts.restless.into();
        report["seconds"] = json!(took.as_secs_f64());
        output::json(&report)?;
        return Ok(());
    }
    output::line(format_args!(
        "snapshot {} of '{}': {}, {}; {} read, {} unchanged; the archive grew by {}",
        snapshots::short(snapshot.id),
        snapshot.set.escape_debug(),
        format_args!("{} entries", grouped(snapshot.entries)),
        Size(snapshot.bytes),
        counted(counts.read, "file"),
        grouped(counts.unchanged),
        Size(snapshot.added)
    ));
    Ok(())
}

/// The exit status.
fn judge(snapshot: &Snapshot) -> Result<(), Failure> {
    match snapshot.completeness {
        Completeness::Whole => Ok(()),
        Completeness::Partial => Err(Failure::in_part(format!(
            "the snapshot is partial: the messages above name {} that could not be read",
            counted(snapshot.left_out, "path")
        ))),
        Completeness::Shrunk => Err(Failure::in_part(
            "the snapshot has less than half of what the last whole one of its set has: is \
             everything mounted? It is marked as shrunk, and counts for no retention",
        )),
    }
}
