//! `onefold mount`: the snapshots of an archive as a file system.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use onefold_backend::{signals::StopSignals, tree::Place};
use onefold_core::{Error, Kind};
use onefold_mount::{Choices, Mounted};

use super::{archive_at, snapshots};
use onefold_console::{failure::Failure, output, size::Size};

/// How long requests that came before a signal may still take.
const ENDS: Duration = Duration::from_secs(3);

/// Mounts the snapshots of an archive as a read-only file system
///
/// DIR has a directory for each set, with a directory for each of its snapshots, and a link `latest`
/// to the newest one; or, with --snapshot, what is in that snapshot. Each chunk is compared with its
/// fingerprint. A mount keeps no collection waiting: what `gc` has removed since can't be read any
/// more (ESTALE). The verb runs until it is interrupted or DIR is unmounted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold mount backups /mnt/all\n  \
                  onefold mount backups /mnt/web1 --snapshot web1~1")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// An empty directory
    directory: PathBuf,

    /// Only this snapshot: SET, SET~N for the Nth before the newest, SET@DATE, or digits of its id
    #[arg(long, value_name = "SNAPSHOT")]
    snapshot: Option<String>,

    /// Lets other users enter; owners and modes then say what each of them may read. Without it
    /// only the user who mounts may enter
    #[arg(long)]
    allow_other: bool,

    /// Memory for the archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,
}

/// Mounts them, until it is asked to stop.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let archive = archive_at(&options.store, snapshots::NONE)?.open_to_read(options.memory.0)?;
    let only = match &options.snapshot {
        None => None,
        Some(text) => Some(snapshots::named(&archive.tables(), text)?.id),
    };
    let mut signals = StopSignals::install_with_hangup()?;
    let choices = Choices { only, allow_other: options.allow_other };
    let at = &options.directory;
    let place = Place::of(at, true).map_err(|error| match error.kind() {
        Kind::NotFound => {
            let at = at.display();
            Error::new(
                Kind::NotFound,
                format!("there is no directory {at}: `mkdir -p {at}` makes it"),
            )
        }
        _ => error,
    });
    let mut mounted = Mounted::new(&archive, place??.into(), at, choices)?;
    let mut ender = mounted.ender();
    std::thread::spawn(move || {
        loop {
            signals.wait();
            match ender.end() {
                Ok(is_used) => {
                    if is_used {
                        tracing::warn!("somebody is in it, and gets errors from now on");
                    }
                    // Requests may take long, of a slow disk or of a hostile archive: who asked gets
                    // an error.
                    std::thread::sleep(ENDS);
                    std::process::exit(0);
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
    });
    output::line(format_args!(
        "mounted at {}; Ctrl-C, or `umount {0}`, ends it",
        options.directory.display()
    ));
    Ok(mounted.serve()?)
}
