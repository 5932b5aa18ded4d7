//! `onefold repair`: the only verb that mends a store.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{
    Found,
    check::{COMPARING_BYTES, archive, block_repair, cluster, found_for},
};
use onefold::parts::{
    archive_care::{Depth, Extent},
    archive_dir::ArchiveDir,
};
use onefold_archive::{GiveUp, Role, Settings, renew_log};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::Size,
};

/// Restores what can be restored of a store, and names what is lost
///
/// Of a block store, which may not be served, the verb restores only what is certain from what is
/// left; lost blocks read as errors until a client writes them. Of an archive it reads all data,
/// restores chunks from other copies and shards from parity, and makes the chunk index anew. Of a
/// store of the cluster engine it makes maps and references agree, and reads all chunks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold repair disk.onefold\n  \
                  onefold repair backups --only monday\n  \
                  onefold repair backups --cut-log\n  \
                  onefold repair pool --json")]
pub(crate) struct Options {
    /// The store, of any engine
    store: PathBuf,

    /// Of a block store: memory for comparing blocks [default: 256M]; when it is too little for all
    /// of them, the maps are read several times. Of an archive: memory for its tables [default:
    /// 64M], besides an allowance that grows with the bytes that they occupy
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,

    /// Only this stream or volume of an archive, and the containers that it needs
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    /// Of an archive whose keys have roles, and that says that its operations log can't be read behind a
    /// change: gives up what is behind that change, if nobody can open it, as who took over a put key may
    /// leave it. `all` gives up changes that can be opened, too: then the disk damaged the log, and what
    /// hosts were told is stored may be among them
    #[arg(long, value_name = "WHAT", value_enum, num_args = 0..=1, require_equals = true,
          default_missing_value = "unreadable")]
    cut_log: Option<CutLog>,

    #[command(flatten)]
    answer: Answer,
}

/// What is given up of an operations log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CutLog {
    /// What nobody can open
    Unreadable,
    /// All that is behind the last change that can be read
    All,
}

/// Repairs, and tells what was done and what is left.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let only = options.only.as_deref();
    match found_for(&options.store, only)? {
        Found::Block(_) | Found::Cluster(_) if options.cut_log.is_some() => {
            Err(Failure::usage("only an archive has an operations log to cut off (--cut-log)"))
        }
        Found::Block(file) => {
            let memory = options.memory.map_or(COMPARING_BYTES, |memory| memory.0);
            block_repair::run(&file, memory, options.answer)
        }
        Found::Archive(directory) => {
            let memory = options.memory.map_or(onefold_archive::READER_BYTES, |memory| memory.0);
            if let Some(what) = options.cut_log {
                let last = cut_log(&directory, what)?;
                if !options.answer.json {
                    output::line(format_args!("the operations log ends with change {last} now"));
                }
            }
            let extent = Extent { depth: Depth::Repair, only, memory };
            archive::run(&directory, extent, options.answer.json)
        }
        Found::Cluster(url) => cluster::repair(&url, options.answer),
    }
}

/// Ends the operations log behind the last change that can be read; gives the number of that change.
fn cut_log(directory: &ArchiveDir, what: CutLog) -> Result<u64, Failure> {
    let give_up = match what {
        CutLog::Unreadable => GiveUp::Unreadable,
        CutLog::All => GiveUp::Later,
    };
    let settings = Settings { give_up, ..Settings::default() };
    let archive = directory.open(settings)?;
    if archive.role() != Some(Role::Manage) {
        let why = "--cut-log is for who manages an archive whose keys have roles: in others a log that can't be \
                   read is damaged, and is put back from a copy";
        return Err(Failure::new(why));
    }
    Ok(renew_log(&archive)?)
}
