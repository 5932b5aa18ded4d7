//! `onefold ls`: the streams of a store, or what is in a directory that an archive holds.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use onefold_archive::{Reader, Shape, is_domain_erased};
use onefold_cluster::What;
use serde::Serialize;

use super::{
    Found, VOLUMES_ONLY, cluster,
    get::listing::{self, Style},
    refused, restore,
    snapshots::{self, domain_mark},
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::{Size, counted},
};

/// Lists the streams of a store, or the entries of a directory that is stored in an archive
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold ls backups\n  \
                  onefold ls backups etc-monday\n  \
                  onefold ls backups web1~1 /etc -l\n  \
                  onefold ls backups web1 /etc --json\n  \
                  onefold ls backups web1 --left-out\n  \
                  onefold ls backups --json")]
pub(crate) struct Options {
    /// The store: an archive, or a store of the cluster engine
    store: PathBuf,

    /// A stored directory, or a snapshot (SET, SET~N, SET@DATE, or digits of its id), whose entries
    /// are listed
    name: Option<String>,

    /// A directory or a file of the snapshot; without it, all of the snapshot. Names may be written as this
    /// verb shows them, with \xff for a byte that is no text
    path: Option<OsString>,

    /// Shows when each was last changed, or when a stream was stored
    #[arg(short, long)]
    long: bool,

    /// Lists what could not be read and is not in the snapshot, and files that were noted as they changed
    #[arg(long, requires = "name", conflicts_with = "path")]
    left_out: bool,

    /// Memory for an archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// Prints JSON, whose keys are stable: of a directory a line for each entry
    #[arg(long)]
    json: bool,
}

/// A stream.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    /// bytes or tree.
    shape: &'static str,
    bytes: u64,
    chunks: u64,
    /// Bytes by which it let the archive grow when it was stored.
    added_bytes: u64,
    /// Seconds since 1970.
    created: u64,
    /// Something of the tree could not be read when it was stored.
    incomplete: bool,
    /// The number of its domain.
    domain: u32,
    /// That was erased: nobody can read it any more.
    erased: bool,
}

/// Lists.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let directory = match Found::at(&options.store)? {
        Found::Archive(directory) => directory,
        Found::Cluster(_) if options.long => {
            return Err(Failure::usage("--long is for archives"));
        }
        Found::Cluster(url) if options.name.is_none() => {
            return cluster::list(&url, What::Put, Answer { json: options.json });
        }
        other @ Found::Block(_) => return Err(refused(&options.store, &other, VOLUMES_ONLY)),
        other => return Err(refused(&options.store, &other, "it holds no directories")),
    };
    let archive = directory.open_to_read(options.memory.0)?;
    let mut reader = Reader::new(&archive)?;
    let style = match (options.json, options.long) {
        (true, _) => Style::Json,
        (false, true) => Style::Long,
        (false, false) => Style::Text,
    };
    if let Some(name) = &options.name {
        if options.left_out {
            return restore::problems(&archive, name, options.json);
        }
        let is_stream = reader.tables().streams.contains_key(name);
        if !is_stream && reader.tables().trees {
            return restore::list(&archive, name, options.path.as_deref(), style);
        }
        let stream = reader.stream(name)?;
        if stream.shape != Shape::Tree {
            return Err(Failure::usage(format!("'{name}' is no directory")));
        }
        return Ok(listing::pass(&mut reader, &stream, &mut |entries| {
            entries.iter().for_each(|entry| listing::show(entry, style));
            Ok(())
        })?);
    }
    let lines: Vec<Line> = reader
        .tables()
        .streams
        .iter()
        .map(|(name, stream)| Line {
            name: name.clone(),
            shape: if stream.shape == Shape::Tree { "tree" } else { "bytes" },
            bytes: stream.bytes,
            chunks: stream.chunks,
            added_bytes: stream.added,
            created: stream.created,
            incomplete: stream.is_incomplete(),
            domain: stream.domain,
            erased: is_domain_erased(&archive, stream.domain),
        })
        .collect();
    if options.json {
        output::json(&lines)?;
    } else if lines.is_empty() {
        match reader.tables().snapshots.listed().count() {
            0 => output::line("no streams"),
            n => output::line(format_args!(
                "no streams, but {} of directories: `onefold snapshots` lists them",
                counted(n as u64, "snapshot")
            )),
        }
    } else {
        for line in lines {
            let (bytes, added) = (Size(line.bytes).to_string(), Size(line.added_bytes).to_string());
            let mark = if line.incomplete { "  incomplete" } else { "" };
            let stored = match options.long {
                true => format!("{}  ", snapshots::shown(line.created)),
                false => String::new(),
            };
            output::line(format_args!(
                "{bytes:>9}  {added:>9} added  {:<5}  {stored}{}{mark}{}",
                line.shape,
                line.name.escape_debug(),
                domain_mark(&archive, line.domain)
            ));
        }
    }
    Ok(())
}
