//! `onefold create`: an empty store of one of the three engines.

mod archive;
mod block;
mod cluster;
mod encryption;
mod placement;

use clap::{Args, Subcommand};

use onefold_console::failure::Failure;

pub(super) use self::cluster::{CutName, chunk_format};

/// Creates an empty store: block volumes, an archive, or a store of the cluster engine
///
/// The engine is block, archive or cluster. A block store is for disks of virtual machines and
/// databases, and stores each block of 4 KiB once. An archive is for backups: streams, directories
/// and backup volumes, cut by their content. The cluster engine deduplicates in the background, in
/// a folder or on Ceph. All other verbs find out which engine a store has.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  \
                  onefold create block disk.onefold --size 100G\n  \
                  onefold create archive backups\n  \
                  onefold create cluster pool")]
pub(crate) struct Options {
    #[command(subcommand)]
    engine: Engine,
}

#[derive(Debug, Subcommand)]
enum Engine {
    Block(block::Options),
    Archive(archive::Options),
    Cluster(cluster::Options),
}

/// Creates the store, and says what was made.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    match &options.engine {
        Engine::Block(options) => block::run(options),
        Engine::Archive(options) => archive::run(options),
        Engine::Cluster(options) => cluster::run(options),
    }
}
