//! `onefold volume`: the volumes of a store, served or not.

use std::{ops::Range, path::PathBuf};

use clap::{Args, Subcommand};
use onefold_block::{MEMORY_MIN, NoDedup, Settings, Store};
use onefold_core::{Error, Kind, Result};

use super::served_or_not;
use onefold::parts::{
    control::{Request, Speed, VolumeLine},
    store_file::StoreFile,
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::{ByteRange, Size},
};

/// Creates, lists, resizes, limits, renames and deletes volumes, also while the store is served
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(
    after_help = "Examples:\n  onefold volume create disk.onefold vm1 --size 1T\n  onefold volume list disk.onefold"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Creates an empty volume; it takes no space before it is written
    #[command(after_help = "Examples:\n  onefold volume create disk.onefold vm1 --size 1T")]
    Create {
        /// The store
        store: PathBuf,
        /// Name of the new volume, at most 255 bytes
        name: String,
        /// Size of the volume, rounded up to 4096 bytes
        #[arg(long)]
        size: Option<Size>,
        /// Bytes that are never stored as duplicates, like 0-64K; up to 12 ranges
        #[arg(long, value_name = "RANGE", value_delimiter = ',')]
        critical: Vec<ByteRange>,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        answer: Answer,
    },
    /// Lists all volumes with their sizes
    #[command(
        after_help = "Examples:\n  onefold volume list disk.onefold\n  onefold volume list disk.onefold --json"
    )]
    List {
        /// The store
        store: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
    /// Changes the size of a volume; what lies beyond a smaller size is lost and becomes free
    #[command(after_help = "Examples:\n  onefold volume resize disk.onefold vm1 --size 2T")]
    Resize {
        /// The store
        store: PathBuf,
        /// The volume
        name: String,
        /// Its new size, rounded up to 4096 bytes
        #[arg(long)]
        size: Option<Size>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Says which blocks of a volume get a place of their own, whatever else is stored; `none` ends
    /// it
    ///
    /// A file system keeps two copies of what it can't do without. As duplicates both would be one
    /// block on the disk. Ranges name the bytes of one of the copies. What was written before
    /// stays as it is until it is written again.
    #[command(
        after_help = "Examples:\n  onefold volume critical disk.onefold vm1 0-64K 128M-129M\n  onefold volume critical disk.onefold vm1 none"
    )]
    Critical {
        /// The store
        store: PathBuf,
        /// The volume
        name: String,
        /// All ranges, like 0-64K: start and end, which is not part of it; or `none`
        #[arg(required = true, value_name = "RANGE")]
        ranges: Vec<String>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Limits how fast clients may use a volume, from now on; without an option, nothing limits it
    #[command(
        after_help = "Examples:\n  onefold volume limit disk.onefold vm1 --limit-iops 500 --limit-bytes 10M\n  onefold volume limit disk.onefold vm1"
    )]
    Limit {
        /// The store
        store: PathBuf,
        /// The volume
        name: String,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        answer: Answer,
    },
    /// Gives a volume another name
    #[command(after_help = "Examples:\n  onefold volume rename disk.onefold vm1 database")]
    Rename {
        /// The store
        store: PathBuf,
        /// The volume
        name: String,
        /// Its new name
        new_name: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Deletes a volume; what only it holds becomes free
    #[command(after_help = "Examples:\n  onefold volume delete disk.onefold vm1")]
    Delete {
        /// The store
        store: PathBuf,
        /// The volume
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
}

/// How fast clients may use a volume, all its connections together.
#[derive(Clone, Copy, Debug, Args)]
struct Limits {
    /// Most requests a second of all its clients together; flushes are not counted
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    limit_iops: Option<u32>,
    /// Most bytes that its clients together read and write a second, like 10M
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    limit_bytes: Option<Size>,
}

impl Limits {
    fn speed(self) -> Speed {
        Speed {
            iops: self.limit_iops.unwrap_or(0),
            bytes: self.limit_bytes.map_or(0, |size| size.0),
        }
    }
}

/// A size that is not zero.
fn some_bytes(text: &str) -> Result<Size> {
    let size: Size = text.parse()?;
    if size.0 > 0 {
        Ok(size)
    } else {
        Err(Error::new(
            Kind::InvalidInput,
            "nothing a second is no limit that clients could live with",
        ))
    }
}

/// Does what was asked for, and says so.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    let (store, answer, request) = match options.verb {
        Verb::List { store, answer } => return list(&store, answer),
        Verb::Create { store, name, size, critical, limits, answer } => {
            let critical = blocks_of(&critical)?;
            (
                store,
                answer,
                Request::VolumeCreate {
                    name,
                    bytes: needed(size)?,
                    critical,
                    limits: limits.speed(),
                },
            )
        }
        Verb::Limit { store, name, limits, answer } => {
            (store, answer, Request::VolumeLimit { name, limits: limits.speed() })
        }
        Verb::Critical { store, name, ranges, answer } => {
            let none = ranges.len() == 1 && ranges[0] == "none";
            let ranges = if none {
                Ok(Vec::new())
            } else {
                ranges.iter().map(|range| range.parse()).collect::<Result<Vec<ByteRange>>>()
            };
            let critical = blocks_of(&ranges.map_err(|e| Failure::usage(e.to_string()))?)?;
            (store, answer, Request::VolumeCritical { name, critical })
        }
        Verb::Resize { store, name, size, answer } => {
            (store, answer, Request::VolumeResize { name, bytes: needed(size)? })
        }
        Verb::Rename { store, name, new_name, answer } => {
            (store, answer, Request::VolumeRename { name, new_name })
        }
        Verb::Delete { store, name, answer } => (store, answer, Request::VolumeDelete { name }),
    };
    change(&store, &request)?;
    answer.tell(&done(&request), said(&request))
}

/// What was done, for the person who asked and for the server's log.
pub(crate) fn said(request: &Request) -> String {
    match request {
        Request::VolumeCreate { name, bytes, .. } => {
            format!("created volume {name:?} of {}", Size(*bytes))
        }
        Request::VolumeResize { name, bytes } => {
            format!("resized volume {name:?} to {}", Size(*bytes))
        }
        Request::VolumeCritical { name, critical } if critical.is_empty() => {
            format!("volume {name:?} has no critical ranges any more")
        }
        Request::VolumeCritical { name, critical } => {
            let blocks: u64 = critical.iter().map(|range| range.end - range.start).sum();
            format!("{} of volume {name:?} will not be deduplicated", Size(blocks * 4096))
        }
        Request::VolumeLimit { name, limits } if limits.is_any() => {
            format!("nothing limits the clients of volume {name:?} any more")
        }
        Request::VolumeLimit { name, limits } => {
            format!("clients of volume {name:?} have {}", speed(limits))
        }
        Request::VolumeRename { name, new_name } => {
            format!("renamed volume {name:?} to {new_name:?}")
        }
        Request::VolumeDelete { name } => format!("deleted volume {name:?}"),
        other => format!("{other:?}"),
    }
}

/// Limits for people.
fn speed(limits: &Speed) -> String {
    let iops = (limits.iops > 0).then(|| format!("{} requests", limits.iops));
    let bytes = (limits.bytes > 0).then(|| Size(limits.bytes).to_string());
    format!(
        "at most {} a second",
        [iops, bytes].into_iter().flatten().collect::<Vec<_>>().join(" and ")
    )
}

/// The same as JSON: the verb, and what it was given.
pub(crate) fn done(request: &Request) -> serde_json::Value {
    let mut report = serde_json::json!(request);
    if let Some(of) = report.as_object_mut()
        && let Some(serde_json::Value::String(ask)) = of.remove("ask")
    {
        of.insert("done".to_owned(), ask.trim_start_matches("volume-").into());
    }
    report
}

/// Critical ranges as blocks.
fn blocks_of(ranges: &[ByteRange]) -> Result<Vec<Range<u64>>, Failure> {
    let critical = NoDedup::new(ranges.iter().map(ByteRange::blocks).collect())
        .map_err(|e| Failure::usage(e.to_string()))?;
    Ok(critical.ranges().to_vec())
}

/// The size as whole blocks.
fn needed(size: Option<Size>) -> Result<u64, Failure> {
    let Some(Size(bytes)) = size else {
        return Err(Failure::usage("a volume needs a size, like --size 1T"));
    };
    bytes
        .checked_next_multiple_of(4096)
        .ok_or_else(|| Failure::new("all volumes together can't be larger than 1 EiB"))
}

fn change(path: &std::path::Path, request: &Request) -> Result<(), Failure> {
    let file = StoreFile::look(path)?;
    served_or_not(
        &file,
        |server| server.ask::<serde_json::Value>(request).map(|_| ()),
        || {
            let working = file.work(Settings::for_memory(MEMORY_MIN))?;
            let changed = apply(working.store(), request);
            // A refused change leaves a good store, which is closed in order all the same.
            let closed = working.close();
            changed.and(closed)
        },
    )
    .map_err(Failure::from)
}

/// A change of the catalogue; durable on return.
pub(crate) fn apply(store: &Store, request: &Request) -> Result<()> {
    match request {
        Request::VolumeCreate { name, bytes, critical, limits } => store
            .create_volume_limited(name, *bytes, &NoDedup::new(critical.clone())?, (*limits).into())
            .map(|_| ()),
        Request::VolumeLimit { name, limits } => store.set_limits(name, (*limits).into()),
        Request::VolumeCritical { name, critical } => {
            store.set_no_dedup(name, &NoDedup::new(critical.clone())?)
        }
        Request::VolumeResize { name, bytes } => store.resize_volume(name, *bytes),
        Request::VolumeRename { name, new_name } => store.rename_volume(name, new_name),
        Request::VolumeDelete { name } => store.delete_volume(name),
        _ => Err(Error::new(Kind::Unsupported, "this is no change of volumes")),
    }
}

fn list(path: &std::path::Path, answer: Answer) -> Result<(), Failure> {
    let file = StoreFile::look(path)?;
    let volumes: Vec<VolumeLine> = served_or_not(
        &file,
        |server| server.ask(&Request::VolumeList),
        || {
            let status = StoreFile::look(path)?.open_unchanged()?.status();
            Ok(status.volumes.into_iter().map(|volume| VolumeLine::of(&volume)).collect())
        },
    )?;
    if answer.json {
        output::json(&volumes)?;
    } else if volumes.is_empty() {
        output::line("no volumes");
    } else {
        for volume in volumes {
            let critical: u64 = volume.critical.iter().map(|range| range.end - range.start).sum();
            let critical = if critical > 0 {
                format!("  ({} not deduplicated)", Size(critical))
            } else {
                String::new()
            };
            let limits = if volume.limits.is_any() {
                String::new()
            } else {
                format!("  ({})", speed(&volume.limits))
            };
            output::line(format_args!(
                "{:>9}  {}{critical}{limits}",
                Size(volume.bytes).to_string(),
                volume.name.escape_debug()
            ));
        }
    }
    Ok(())
}
