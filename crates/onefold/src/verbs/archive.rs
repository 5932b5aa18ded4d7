//! `onefold archive`: makes archives, and what is rarely done to them.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use onefold_archive::{Archive, Chunking, Compression, Format, Settings};
use onefold_backend::{Directory, random::random_bytes};

use crate::{
    archive_dir::{ArchiveDir, name_archive},
    failure::Failure,
    output,
};

/// Makes archives: streams and directories, cut by their content, each chunk stored once
///
/// An archive is a directory. Any number of readers, one `put` and one `gc` work on it at the same time, and a kill at any point loses nothing that
/// was acknowledged.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  onefold archive create backups\n  onefold archive rename backups monday tuesday")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Makes an empty archive in a new or empty directory
    #[command(
        after_help = "Examples:\n  onefold archive create backups\n  onefold archive create images --chunking static:4K --compress lz4"
    )]
    Create {
        /// The directory
        archive: PathBuf,
        /// How streams are cut, and the mean size of a chunk: fastcdc:8K, rabin:8K or static:4K; any power of two from 1K to 256K
        #[arg(long, default_value = "fastcdc:8K", value_name = "KIND:SIZE")]
        chunking: Chunking,
        /// How chunks are compressed: zstd, lz4 or none
        #[arg(long, default_value = "zstd", value_name = "KIND")]
        compress: Compression,
    },
    /// Gives a stream another name
    #[command(after_help = "Examples:\n  onefold archive rename backups monday tuesday")]
    Rename {
        /// The archive
        archive: PathBuf,
        /// The stream
        name: String,
        /// Its new name
        new_name: String,
    },
}

/// Does what was asked for, and says so.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    match options.verb {
        Verb::Create { archive, chunking, compress } => {
            let files = Directory::create(&archive)?;
            let format = Format { chunking, compression: compress, ..Format::new(random_bytes()?, random_bytes()?, random_bytes()?) };
            Archive::create(&files, &format).map_err(|e| name_archive(&archive, e))?;
            output::line(format_args!("created {}: chunks by {chunking}, compressed by {compress}", archive.display()));
        }
        Verb::Rename { archive, name, new_name } => {
            ArchiveDir::look(&archive)?.open(Settings::default())?.rename(&name, &new_name)?;
            output::line(format_args!("renamed {name:?} to {new_name:?}"));
        }
    }
    Ok(())
}
