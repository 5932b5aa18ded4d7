//! The options of `onefold restore`.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use onefold_console::size::Size;

/// Restores files and directories of a snapshot below a directory
///
/// Paths are those in the snapshot, and patterns with *, ?, [a-z] and **; without one, all of it is
/// restored. Each file comes back below DIR with its whole path. Each chunk is compared with its
/// fingerprint. A file of which a chunk is lost gets the end `.damaged`, the rest is restored, and
/// the exit status is 3. At the end the verb counts what only --preserve-privileged restores; that alone
/// is no reason for a status of 3. The verb writes nothing outside DIR, and goes through no symbolic
/// link.
/// When it ends, everything that it restored is durable. Chunks are read in the order in which they
/// lie in the archive, each once for a window of files.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold restore backups web1 -C out\n  \
                  onefold restore backups web1~1 /etc/fstab '/home/**/*.odt' -C out\n  \
                  onefold restore backups web1 '/srv/photo[1].jpg' --exact -C out\n  \
                  onefold restore backups web1@2026-11-22 / -C /mnt/new --preserve-privileged\n  \
                  onefold restore backups web1 /srv -C /srv/yesterday --atomic\n  \
                  onefold restore backups web1 /srv -C / --in-place --delete --dry-run")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    pub(super) store: PathBuf,

    /// The snapshot: SET, SET~N for the Nth before the newest, SET@DATE, or digits of its id
    pub(super) snapshot: String,

    /// Paths and patterns, which are matched with whole paths: '**/*.odt' takes all such files. A path that
    /// the snapshot has is no pattern. Names may be written as `ls` shows
    /// them, with \xff for a byte that is no text
    pub(super) paths: Vec<OsString>,

    /// Takes paths as they are: none is a pattern
    #[arg(long)]
    pub(super) exact: bool,

    /// The directory below which they are restored
    #[arg(short = 'C', long, value_name = "DIR")]
    pub(super) directory: PathBuf,

    /// Changes files that have the name of a restored one to what is stored, and restores into
    /// directories that exist. What is as it was stored is not written, so a repeat goes on where a
    /// killed restore was. Without it, a name that exists is an error
    #[arg(long)]
    pub(super) in_place: bool,

    /// Restores into a directory beside DIR, which gets the name DIR when all of it is there and durable.
    /// DIR must not be there before. What is not whole does not get the name, and stays where it is, which
    /// is told
    #[arg(long, conflicts_with_all = ["in_place", "dry_run"])]
    pub(super) atomic: bool,

    /// Removes what the restored directories have beyond what is stored. Stays on one mount, and
    /// removes nothing from directories of which the snapshot lacks something that was there, as it
    /// was excluded or could not be read: an excluded directory stays, and nothing beside it is
    /// removed
    #[arg(long, requires = "in_place")]
    pub(super) delete: bool,

    /// Lets --delete remove more than half of what is there
    #[arg(long, requires = "delete")]
    pub(super) force: bool,

    /// Changes nothing: says what would be restored, and what --delete would remove
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,

    /// Restores set-id bits, sticky bits of files, devices, and the attributes of the system (security.*,
    /// trusted.*) too
    #[arg(long)]
    pub(super) preserve_privileged: bool,

    /// Compares groups of chunks with their checksums only
    #[arg(long)]
    pub(super) no_verify: bool,

    /// Memory for the archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub(super) memory: Size,

    /// Memory for the chunks of a window of files, which are sorted by where they lie: about 70
    /// bytes for each chunk. The restore reads each part of the archive once in a window
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub(super) window: Size,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    pub(super) json: bool,
}
