//! `onefold snapshot`: snapshots of the volumes of a block store or a cluster store, and clones, served or
//! not.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    time::{Duration, Instant, UNIX_EPOCH},
};

use clap::{Args, Subcommand};
use onefold_backend::signals::StopSignals;
use onefold_block::{MEMORY_MIN, Settings};
use onefold_core::{Error, Kind, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    Found, block_store,
    copies::Place,
    receiving, served_or_not,
    volume::{block, cluster, done, said},
};
use onefold::parts::{
    control::{Request, SnapshotLine, SnapshotSpace},
    store_file::StoreFile,
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::Size,
};

/// How long guests stay frozen at most.
const FROZEN_MOST: Duration = Duration::from_secs(10);

/// How long the command that freezes guests may take: guests that froze must not wait for another
/// one that never answers.
const FREEZING_MOST: Duration = Duration::from_secs(120);

/// How long the command may take that lets them go on: one that never answers must not keep this
/// process, and who waits for it. It may be one for many guests, each with a time of its own.
const THAWING_MOST: Duration = Duration::from_secs(600);

/// Time between two looks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Exit status after a signal: what a shell shows for a process that SIGINT ended.
const INTERRUPTED_STATUS: i32 = 130;

/// Takes, lists, deletes and renames snapshots of volumes, and makes volumes of them
///
/// A snapshot holds exactly what was written to its volume before one moment, and can only be read.
/// Its name is that of its volume, @ and a name of its own, like vm1@monday; `onefold serve` offers
/// it by that name. It takes space only for what its volume changes afterwards. The store may be served
/// meanwhile; of a store of the cluster engine nobody may have the volume open. Not for archives.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  \
                  onefold snapshot create disk.onefold vm1@monday\n  \
                  onefold snapshot list disk.onefold")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Takes snapshots, all as of one moment
    ///
    /// With --freeze and --thaw, commands that stop the writing of guests and let it go on, the
    /// snapshots hold file systems as their guests have them at rest: --freeze runs before the
    /// moment, and --thaw as soon as the moment has begun, after a failure, or after 10 s. A
    /// --freeze that has not ended after 2 minutes is given up, and so is a --thaw after 10.
    #[command(after_help = "Examples:\n  \
                      onefold snapshot create disk.onefold vm1@monday\n  \
                      onefold snapshot create disk.onefold db@noon logs@noon\n  \
                      onefold snapshot create disk.onefold vm1@monday \
                      --freeze 'virsh domfsfreeze vm1' --thaw 'virsh domfsthaw vm1'")]
    Create {
        /// The store
        store: PathBuf,
        /// The snapshots, like vm1@monday
        #[arg(required = true)]
        snapshots: Vec<String>,
        /// Shell command that stops the writing of guests
        #[arg(long, value_name = "CMD", requires = "thaw")]
        freeze: Option<String>,
        /// Shell command that lets it go on
        #[arg(long, value_name = "CMD", requires = "freeze")]
        thaw: Option<String>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Lists all snapshots with their sizes and when they were made
    #[command(after_help = "Examples:\n  \
                      onefold snapshot list disk.onefold\n  \
                      onefold snapshot list disk.onefold --space --json")]
    List {
        /// The store
        store: PathBuf,
        /// Shows the space that deleting each one would free at least
        ///
        /// This reads the maps of all snapshots. While the store is served, it takes a tenth of the
        /// disk's time at most.
        #[arg(long)]
        space: bool,
        #[command(flatten)]
        answer: Answer,
    },
    /// Deletes snapshots; the space of what only they hold becomes free in the background
    ///
    /// They go one after the other, and the first that can't go ends it.
    #[command(after_help = "Examples:\n  \
                      onefold snapshot delete disk.onefold vm1@monday\n  \
                      onefold snapshot delete disk.onefold vm1@week-45 vm2@week-45")]
    Delete {
        /// The store
        store: PathBuf,
        /// The snapshots, like vm1@monday
        #[arg(required = true)]
        snapshots: Vec<String>,
        /// Deletes them although clients have them open, whose requests fail then
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        answer: Answer,
    },
    /// Gives a snapshot another name
    #[command(after_help = "Examples:\n  onefold snapshot rename disk.onefold vm1@monday week-47")]
    Rename {
        /// The store
        store: PathBuf,
        /// The snapshot, like vm1@monday
        snapshot: String,
        /// Its new name, with or without its volume's
        new_name: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Gives a volume what one of its snapshots holds; what the volume held since is lost
    ///
    /// The size and the ranges that are not deduplicated become those of the snapshot, too. All
    /// snapshots stay. Nobody may have the volume open.
    #[command(after_help = "Examples:\n  \
                      onefold snapshot rollback disk.onefold vm1@monday\n  \
                      onefold snapshot rollback disk.onefold vm1@monday --keep before-rollback")]
    Rollback {
        /// The store
        store: PathBuf,
        /// The snapshot, like vm1@monday
        snapshot: String,
        /// Takes a snapshot of what the volume holds first: a name, without the volume's
        #[arg(long, value_name = "NAME")]
        keep: Option<String>,
        /// Does it although clients have the volume open, whose requests fail then
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        answer: Answer,
    },
    /// Makes a volume that holds what a snapshot, or a volume, holds
    #[command(after_help = "Examples:\n  \
                      onefold snapshot clone disk.onefold template@1 vm9\n  \
                      onefold snapshot clone disk.onefold vm1 copy-of-vm1")]
    Clone {
        /// The store
        store: PathBuf,
        /// The snapshot, like template@1, or the volume
        of: String,
        /// Name of the new volume
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
}

/// Does what was asked for, and says so.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    match options.verb {
        Verb::List { store, space, answer } => match Found::at(&store)? {
            Found::Cluster(_) if space => {
                Err(Failure::new("what only a snapshot of a cluster store holds is not counted"))
            }
            Found::Cluster(url) => {
                show(&cluster::snapshots_at(&url)?, answer)?;
                if !answer.json {
                    receiving::tell(&Place::Cluster(url).receives()?);
                }
                Ok(())
            }
            _ if space => list_space(&*block_store(&store)?, answer),
            _ => list(&*block_store(&store)?, answer),
        },
        Verb::Create { store, snapshots, freeze, thaw, answer } => {
            if let Found::Cluster(_) = Found::at(&store)? {
                if freeze.is_some() {
                    return Err(Failure::new(
                        "a cluster store takes snapshots of volumes that nobody has open: there is nothing to freeze",
                    ));
                }
                return change(&store, answer, Request::SnapshotCreate { snapshots });
            }
            let file = block_store(&store)?;
            let request = Request::SnapshotCreate { snapshots };
            match freeze.zip(thaw) {
                None => create(&file, &request, &mut || {})?,
                Some((freeze, thaw)) => {
                    check_names(&file, &request)?;
                    frozen(&freeze, thaw, THAWING_MOST, |begun| create(&file, &request, begun))?
                }
            }
            answer.tell(&done(&request), said(&request))
        }
        Verb::Delete { store, snapshots, force, answer } => snapshots
            .into_iter()
            .try_for_each(|name| change(&store, answer, Request::SnapshotDelete { name, force })),
        Verb::Rename { store, snapshot, new_name, answer } => {
            let new_name = without_volume(&snapshot, new_name);
            change(&store, answer, Request::SnapshotRename { name: snapshot, new_name })
        }
        Verb::Rollback { store, snapshot, keep, force, answer } => {
            change(&store, answer, Request::SnapshotRollback { name: snapshot, keep, force })
        }
        Verb::Clone { store, of, name, answer } => {
            change(&store, answer, Request::SnapshotClone { of, name })
        }
    }
}

/// The new name of a snapshot without its volume's, which people like to write before it.
fn without_volume(snapshot: &str, new_name: String) -> String {
    let volume = snapshot.rsplit_once('@').map_or(snapshot, |(volume, _)| volume);
    match new_name.rsplit_once('@') {
        Some((other, name)) if other == volume => name.to_owned(),
        _ => new_name,
    }
}

fn change(store: &Path, answer: Answer, request: Request) -> Result<(), Failure> {
    match Found::at(store)? {
        Found::Cluster(url) => cluster::change(&url, &request)?,
        _ => block::change(&*block_store(store)?, &request)?,
    }
    answer.tell(&done(&request), said(&request))
}

/// Refuses names that can't be, before anything is frozen for them.
fn check_names(file: &StoreFile, request: &Request) -> Result<(), Failure> {
    let Request::SnapshotCreate { snapshots } = request else { return Ok(()) };
    let (volumes, taken) = (block::lines(file)?, lines(file)?);
    for name in snapshots {
        let shown = name.escape_debug();
        let Some((volume, _)) = name.rsplit_once('@') else {
            return Err(Failure::usage(format!("'{shown}' names no snapshot: write VOLUME@NAME")));
        };
        if !volumes.iter().any(|line| line.name == volume) {
            let volume = volume.escape_debug();
            return Err(Failure::new(format!("there is no volume '{volume}'; nothing was frozen")));
        }
        if taken.iter().any(|line| line.name == *name) {
            return Err(Failure::new(format!("'{shown}' exists already; nothing was frozen")));
        }
    }
    Ok(())
}

/// Takes the snapshots; `begun` is called when their moment has begun.
fn create(file: &StoreFile, request: &Request, begun: &mut dyn FnMut()) -> Result<(), Failure> {
    let Request::SnapshotCreate { snapshots } = request else { return Ok(()) };
    let begun = std::cell::RefCell::new(begun);
    served_or_not(
        file,
        |server| {
            server
                .ask_long::<serde_json::Value>(request, &mut |_, _, _| (begun.borrow_mut())())
                .map(|_| ())
        },
        || {
            let working = file.work(Settings::for_memory(MEMORY_MIN))?;
            let made = working.store().snapshot(snapshots, &mut || (begun.borrow_mut())());
            let closed = working.close();
            made.and(closed)
        },
    )
    .map_err(Failure::from)
}

/// A word to the thread that lets guests go on.
enum Word {
    /// The moment has begun.
    Begun,
    /// A signal asks this process to end.
    Stop,
}

/// Runs `snapshot` between two commands: the second one runs when the moment has begun, in any case
/// [`FROZEN_MOST`] after the first one has ended, also when a signal ends this process.
fn frozen(
    freeze: &str,
    thaw: String,
    thawing_most: Duration,
    snapshot: impl FnOnce(&mut dyn FnMut()) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (begun, moment) = mpsc::channel::<Word>();
    let mut signals = StopSignals::install_with_hangup()?;
    let stop = begun.clone();
    // It waits until this process ends.
    std::thread::spawn(move || {
        signals.wait();
        stop.send(Word::Stop).unwrap_or_default();
        // Kept, so that a second signal ends this process at once.
        std::thread::park();
    });
    let mut stopped = false;
    let frozen = shell_within(freeze, FREEZING_MOST, &mut || {
        stopped |= moment.try_recv().is_ok();
        stopped
    });
    if let Err(failed) = frozen {
        // It may have frozen a part.
        let _ = shell_within(&thaw, thawing_most, &mut || false);
        if stopped {
            end_interrupted();
        }
        return Err(Failure::from(failed.context("--freeze")));
    }
    let thawing = std::thread::spawn(move || {
        let word = moment.recv_timeout(FROZEN_MOST);
        let thawed = shell_within(&thaw, thawing_most, &mut || false);
        if matches!(word, Ok(Word::Stop)) {
            // The snapshot may be waiting for a server.
            end_interrupted();
        }
        (thawed, matches!(word, Ok(Word::Begun)))
    });
    // Nobody listens any more after the 10 s.
    let taken = snapshot(&mut || begun.send(Word::Begun).unwrap_or_default());
    if taken.is_err() {
        begun.send(Word::Begun).unwrap_or_default();
    }
    let (thawed, in_time) = thawing
        .join()
        .map_err(|_| Error::new(Kind::Io, "the thread that runs --thaw has failed"))?;
    taken?;
    thawed.map_err(|failed| failed.context("the snapshots are there, but --thaw failed"))?;
    if in_time {
        Ok(())
    } else {
        Err(Failure::new(
            "the snapshots are there, but the guests were let go on after 10 s, before their moment",
        ))
    }
}

/// Ends this process after a signal.
fn end_interrupted() -> ! {
    let _ = Failure::new("interrupted: --thaw has run, and the snapshots may be there or not")
        .tell("onefold");
    std::process::exit(INTERRUPTED_STATUS);
}

/// Runs a command of the user's, for so long at most and until `stops`: then it is killed, with all
/// that it began. A part of a --freeze that went on alone would freeze guests that nobody thaws.
fn shell_within(command: &str, most: Duration, stops: &mut dyn FnMut() -> bool) -> Result<()> {
    let not_run = |e| Error::new(Kind::Io, "sh can't be run").caused_by(e);
    let mut child = Command::new("sh").args(["-c", command]).spawn().map_err(not_run)?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(not_run)? {
            if status.success() {
                return Ok(());
            }
            let why = format!("the command '{command}' ended with {status}");
            return Err(Error::new(Kind::Io, why));
        }
        let stopped = stops();
        if stopped || begun.elapsed() > most {
            // It may have ended meanwhile; its number is nobody else's until it is waited for.
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            pid.into_iter().for_each(kill_all);
            let _ = child.wait();
            let why = if stopped {
                format!("the command '{command}' was interrupted")
            } else {
                format!("the command '{command}' did not end within {} s", most.as_secs())
            };
            return Err(Error::new(Kind::Io, why));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Kills a process and those that it began, which it can't end or replace meanwhile. They stay in our
/// process group, so that they can ask at the terminal for a password.
fn kill_all(process: Pid) {
    // One that ended meanwhile is no loss.
    let _ = kill_process(process, Signal::STOP);
    let number = process.as_raw_nonzero();
    let began = std::fs::read_to_string(format!("/proc/{number}/task/{number}/children"));
    let began = began.unwrap_or_default();
    let began = began.split_whitespace().filter_map(|number| number.parse().ok());
    began.filter_map(Pid::from_raw).for_each(kill_all);
    let _ = kill_process(process, Signal::KILL);
}

/// All snapshots, as the store's server says where there is one.
fn lines(file: &StoreFile) -> onefold_core::Result<Vec<SnapshotLine>> {
    served_or_not(
        file,
        |server| server.ask(&Request::SnapshotList),
        || {
            let engine = StoreFile::look(file.path())?.open_unchanged()?;
            Ok(SnapshotLine::all(&engine))
        },
    )
}

fn list(file: &StoreFile, answer: Answer) -> Result<(), Failure> {
    show(&lines(file)?, answer)?;
    if !answer.json {
        receiving::show(file)?;
    }
    Ok(())
}

/// Shows a list of snapshots.
fn show(snapshots: &[SnapshotLine], answer: Answer) -> Result<(), Failure> {
    if answer.json {
        output::json(&snapshots)?;
    } else if snapshots.is_empty() {
        output::line("no snapshots");
    } else {
        for snapshot in snapshots {
            output::line(format_args!(
                "{:>9}  {}  {}",
                Size(snapshot.bytes).to_string(),
                shown_time(snapshot.created_ms),
                snapshot.name.escape_debug()
            ));
        }
    }
    Ok(())
}

fn list_space(file: &StoreFile, answer: Answer) -> Result<(), Failure> {
    let bar = Progress::new("looking through the snapshots");
    let space: SnapshotSpace = served_or_not(
        file,
        |server| {
            server.ask_long(&Request::SnapshotSpace, &mut |what, done, total| {
                bar.stage(what);
                bar.set(done, total);
            })
        },
        || {
            let engine = StoreFile::look(file.path())?.open_unchanged()?;
            SnapshotSpace::of(&engine, &mut |_| true)
                .ok_or_else(|| Error::new(Kind::Io, "nobody waits for the answer any more"))
        },
    )?;
    drop(bar);
    if answer.json {
        output::json(&space.snapshots)?;
        return Ok(());
    }
    if space.snapshots.is_empty() {
        output::line("no snapshots");
    }
    for snapshot in &space.snapshots {
        let alone =
            snapshot.exclusive_bytes.map_or("?".to_owned(), |bytes| Size(bytes).to_string());
        output::line(format_args!(
            "{:>9}  {alone:>9}  {}  {}",
            Size(snapshot.bytes).to_string(),
            shown_time(snapshot.created_ms),
            snapshot.name.escape_debug()
        ));
    }
    let held = space.leaving_bytes + space.orphan_bytes;
    if held > 0 {
        output::line(format_args!("deleted volumes and snapshots still hold {}", Size(held)));
    }
    if space.unread_pages > 0 {
        output::line(format_args!(
            "{} pages of tables can't be read, so that it may be more: run onefold check",
            space.unread_pages
        ));
    }
    Ok(())
}

/// The last second that has a time of four digits for its year: the end of 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time in UTC, like 2026-11-24T15:40:05Z. A later one than the last of the year 9999 is shown as
/// that: whoever sent a snapshot says when it was made.
fn shown_time(ms: u64) -> String {
    let since = Duration::from_secs((ms / 1000).min(LAST_SECOND));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_12_a_guest_that_never_freezes_keeps_no_other_one_frozen() {
        let begun = Instant::now();
        let most = Duration::from_millis(300);
        let error = shell_within("exec sleep 600", most, &mut || false).unwrap_err().to_string();
        assert!(error.contains("did not end within"), "{error}");
        let mut looks = 0;
        let stopped = shell_within("exec sleep 600", Duration::MAX, &mut || {
            looks += 1;
            looks > 3
        });
        assert!(stopped.unwrap_err().to_string().contains("interrupted"));
        assert!(begun.elapsed() < Duration::from_secs(60));
        let shell = |command: &str| shell_within(command, Duration::MAX, &mut || false);
        assert!(shell("exit 3").unwrap_err().to_string().contains("exit status: 3"));
        assert!(shell("exit 0").is_ok());
    }

    #[test]
    fn rule_12_a_guest_that_never_thaws_keeps_nobody_waiting_and_nothing_freezes_later() {
        let begun = Instant::now();
        let directory = tempfile::tempdir().unwrap();
        let late = directory.path().join("late");
        let command = format!("(sleep 2; touch {0}) & sleep 600; touch {0}", late.display());
        let most = Duration::from_millis(300);
        let error = shell_within(&command, most, &mut || false).unwrap_err().to_string();
        assert!(error.contains("did not end within"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!late.exists());
        assert!(THAWING_MOST < Duration::from_secs(3600));
    }

    #[test]
    fn rule_12_a_thaw_that_never_ends_is_given_up_after_the_snapshots_and_after_a_failure() {
        let begun = Instant::now();
        let most = Duration::from_millis(300);
        let thaw = || "exec sleep 600".to_owned();
        let taken = frozen("true", thaw(), most, |begun| {
            begun();
            Ok(())
        });
        let told = format!("{:?}", taken.unwrap_err());
        assert!(told.contains("--thaw failed") && told.contains("did not end within"), "{told}");
        let failed = frozen("true", thaw(), most, |_| Err(Failure::new("no snapshot")));
        assert!(format!("{:?}", failed.unwrap_err()).contains("no snapshot"));
        let never = frozen("false", thaw(), most, |_| Ok(()));
        assert!(format!("{:?}", never.unwrap_err()).contains("--freeze"));
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}
