//! `onefold volume`: the volumes of a store of any engine, served or not.

pub(super) mod archive;
pub(super) mod block;
pub(super) mod cluster;
pub(super) mod guard;
mod iscsi;
mod speed;

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use onefold_block::NoDedup;
use onefold_core::{Error, Kind, Result};

use super::{Found, refused};
use onefold::parts::control::{Request, Speed};
use onefold_console::{
    failure::Failure,
    output::Answer,
    size::{ByteRange, Size},
};

/// Creates, lists, resizes, limits, renames and deletes volumes
///
/// Clients use volumes over NBD (`onefold serve`). A volume shares equal data with all other
/// volumes of its store, and in an archive with the streams, too. The store may be served
/// meanwhile.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  \
                  onefold volume create disk.onefold vm1 --size 1T\n  \
                  onefold volume list disk.onefold")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Creates an empty volume, which takes no space before clients write to it
    #[command(after_help = "Examples:\n  \
                      onefold volume create disk.onefold vm1 --size 1T\n  \
                      onefold volume create disk.onefold vm2 --size 1T --quota 100G\n  \
                      onefold volume create disk.onefold vm7 --size 1T --domain customer-7")]
    Create {
        /// The store
        store: PathBuf,
        /// Name of the new volume, at most 255 bytes
        name: String,
        /// Size of the volume, rounded up to 4 KiB, in an archive to 128 KiB
        #[arg(long)]
        size: Option<Size>,
        /// Bytes that are not deduplicated, like 0-64K: start, and end, which is not part of the
        /// range; up to 12 ranges. Block stores only
        #[arg(long, value_name = "RANGE", value_delimiter = ',')]
        no_dedup: Vec<ByteRange>,
        /// The domain that the volume belongs to: it shares nothing with volumes of others, and is gone
        /// when its domain is erased. Without it, the one that each store begins with. Encrypted archives
        /// and block stores only
        #[arg(long, value_name = "NAME")]
        domain: Option<String>,
        /// Most bytes that clients may map in it, rounded up to 4 KiB: blocks that are neither zeroes nor
        /// holes, and pages of its map beyond 64 and a 64th of SIZE. A write that would pass it gets "no space
        /// left". Block stores only
        #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
        quota: Option<Size>,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        answer: Answer,
    },
    /// Lists all volumes with their sizes
    #[command(after_help = "Examples:\n  \
                      onefold volume list disk.onefold\n  \
                      onefold volume list disk.onefold --space\n  \
                      onefold volume list disk.onefold --json")]
    List {
        /// The store
        store: PathBuf,
        /// Of a block store: shows the content of each volume without zeroes and holes, too, and the
        /// space that deleting it would free at least
        ///
        /// This reads the maps of all volumes. While the store is served, it takes a tenth of the
        /// disk's time at most.
        #[arg(long)]
        space: bool,
        #[command(flatten)]
        answer: Answer,
    },
    /// Changes the size of a volume; data beyond a smaller size is lost, and its space becomes free
    #[command(after_help = "Examples:\n  \
                      onefold volume resize disk.onefold vm1 --size 2T\n  \
                      onefold volume resize disk.onefold vm1 --size 20G --force")]
    Resize {
        /// The store
        store: PathBuf,
        /// The volume
        name: String,
        /// Its new size, rounded up as at its creation
        #[arg(long)]
        size: Option<Size>,
        /// Also to a smaller size: what lies beyond it is lost
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        answer: Answer,
    },
    /// Sets which bytes of a volume are not deduplicated, how fast clients may use it, and how much
    /// they may map in it
    ///
    /// Block stores only. A file system keeps two copies of its most important blocks.
    /// Deduplicated, both would be one block on the disk, so --no-dedup names the bytes of one
    /// copy. Data that was written before stays deduplicated until a client writes it again.
    /// Settings that no option names stay as they are.
    ///
    /// --quota may be lower than what is mapped already: then nothing new is taken until clients have
    /// trimmed enough. Blocks that are mapped can be overwritten at any time. Snapshots count for
    /// nothing; clones get the quota of their origin, and count for themselves.
    #[command(after_help = "Examples:\n  \
                      onefold volume set disk.onefold vm1 --no-dedup 0-64K,128M-129M\n  \
                      onefold volume set disk.onefold vm1 --no-dedup none\n  \
                      onefold volume set disk.onefold vm1 --limit-iops 500 --limit-bytes 10M\n  \
                      onefold volume set disk.onefold vm1 --limit-iops none\n  \
                      onefold volume set disk.onefold vm1 --quota 100G")]
    Set {
        /// The store
        store: PathBuf,
        /// The volume
        name: String,
        /// All ranges of bytes that are not deduplicated, like 0-64K,128M-129M, instead of those
        /// before; or none
        #[arg(long, value_name = "RANGES", value_delimiter = ',')]
        no_dedup: Vec<String>,
        /// Most requests a second of all its clients together, or none
        #[arg(long, value_name = "NUMBER", value_parser = iops_or_none)]
        limit_iops: Option<u32>,
        /// Most bytes that its clients together read and write a second, like 10M, or none
        #[arg(long, value_name = "SIZE", value_parser = bytes_or_none)]
        limit_bytes: Option<Size>,
        /// Most bytes that clients may map in it, or none
        #[arg(long, value_name = "SIZE", value_parser = bytes_or_none)]
        quota: Option<Size>,
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
    /// Makes a volume that holds what another one holds, at once and without copying
    ///
    /// Both share their data and their maps until one of them is written to. What clients wrote
    /// before is in it, flushed or not. A volume of an archive that is --read-only is what a
    /// snapshot is elsewhere; a block store has snapshots (`onefold snapshot`).
    #[command(after_help = "Examples:\n  \
                      onefold volume clone backups disk1 disk1-monday --read-only\n  \
                      onefold volume clone disk.onefold golden vm7")]
    Clone {
        /// The store
        store: PathBuf,
        /// The volume
        name: String,
        /// The name of the new volume
        new_name: String,
        /// Nobody writes to the new volume, and nobody changes its size. Archives only
        #[arg(long)]
        read_only: bool,
        #[command(flatten)]
        answer: Answer,
    },
    /// Deletes volumes; the space of data that only they hold becomes free, in an archive by
    /// `onefold gc`
    ///
    /// They go one after the other, and the first that can't go ends it.
    #[command(after_help = "Examples:\n  onefold volume delete disk.onefold vm1")]
    Delete {
        /// The store
        store: PathBuf,
        /// The volumes
        #[arg(required = true)]
        names: Vec<String>,
        /// Also while clients have them open, whose requests fail from then on
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        answer: Answer,
    },
    /// Makes a replica, which only `onefold receive` changes, an ordinary volume. Block and cluster
    /// stores
    #[command(after_help = "Examples:\n  onefold volume promote disk.onefold vm1")]
    Promote {
        /// The store
        store: PathBuf,
        /// The replica
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Prints configuration with which tgt offers a volume to initiators of iSCSI
    ///
    /// Onefold speaks no iSCSI: nbdfuse shows the volume of a served store as a file, and tgt
    /// offers the file. Flushes and trims reach the volume.
    #[command(after_help = "Examples:\n  \
                      onefold volume iscsi backups disk1 > /etc/tgt/conf.d/disk1.conf\n  \
                      onefold volume iscsi backups disk1 --initiator 192.0.2.0/24")]
    Iscsi(iscsi::Options),
}

/// How fast clients may use a volume, all its connections together.
#[derive(Clone, Copy, Debug, Args)]
struct Limits {
    /// Most requests a second of all its clients together; flushes are not counted. Block stores
    /// only
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    limit_iops: Option<u32>,
    /// Most bytes that its clients together read and write a second, like 10M. Block stores only
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
pub(super) fn some_bytes(text: &str) -> Result<Size> {
    let size: Size = text.parse()?;
    if size.0 > 0 {
        Ok(size)
    } else {
        Err(Error::new(
            Kind::InvalidInput,
            "0 would refuse all that clients do: give a larger number, or none",
        ))
    }
}

/// A limit, or zero for none.
fn iops_or_none(text: &str) -> Result<u32, String> {
    if text == "none" {
        return Ok(0);
    }
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| "a number of requests, 1 at least, or none".to_owned())
}

/// A limit, or zero for none.
pub(super) fn bytes_or_none(text: &str) -> Result<Size> {
    if text == "none" { Ok(Size(0)) } else { some_bytes(text) }
}

/// Does what was asked for, and says so.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    match options.verb {
        Verb::List { store, space: true, answer } => {
            match Found::at(&store)? {
                Found::Block(file) => block::list_space(&file, answer),
                // Its list shows what is written in any case.
                Found::Archive(directory) => archive::list(&directory, answer),
                other => Err(refused(&store, &other, "onefold status shows what it holds")),
            }
        }
        Verb::List { store, space: false, answer } => list(&store, answer),
        Verb::Iscsi(options) => iscsi::run(&options),
        Verb::Create { store, name, size, no_dedup, domain, quota, limits, answer } => {
            let request = |found: &Found| {
                let bytes = rounded(found, size)?;
                let no_dedup = blocks_of(&no_dedup)?;
                let (limits, quota) = (limits.speed(), quota.map_or(0, |size| size.0));
                Ok(Request::VolumeCreate { name, bytes, no_dedup, limits, quota, domain })
            };
            change(&store, answer, request)
        }
        Verb::Resize { store, name, size, force, answer } => change(&store, answer, |found| {
            Ok(Request::VolumeResize { name, bytes: rounded(found, size)?, force })
        }),
        Verb::Rename { store, name, new_name, answer } => {
            change(&store, answer, |_| Ok(Request::VolumeRename { name, new_name }))
        }
        Verb::Clone { store, name, new_name, read_only, answer } => {
            change(&store, answer, |found| match found {
                Found::Archive(_) => {
                    Ok(Request::VolumeClone { of: name, name: new_name, read_only })
                }
                Found::Block(_) if read_only => Err(Failure::usage(format!(
                    "a block store has snapshots instead: onefold snapshot create {} '{}@NAME'",
                    store.display(),
                    name.escape_debug()
                ))),
                Found::Cluster(_) if read_only => Err(Failure::usage(format!(
                    "a cluster store has snapshots instead: onefold snapshot create {} '{}@NAME'",
                    store.display(),
                    name.escape_debug()
                ))),
                Found::Block(_) | Found::Cluster(_) => {
                    Ok(Request::SnapshotClone { of: name, name: new_name })
                }
            })
        }
        Verb::Delete { store, names, force, answer } => names.into_iter().try_for_each(|name| {
            change(&store, answer, |_| Ok(Request::VolumeDelete { name, force }))
        }),
        Verb::Promote { store, name, answer } => {
            let request = Request::VolumePromote { name };
            match Found::at(&store)? {
                Found::Block(file) => block::change(&file, &request)?,
                Found::Cluster(url) => cluster::change(&url, &request)?,
                other => return Err(refused(&store, &other, "it has no replicas")),
            }
            answer.tell(&done(&request), said(&request))
        }
        Verb::Set { store, name, no_dedup, limit_iops, limit_bytes, quota, answer } => {
            let limited = limit_iops.is_some() || limit_bytes.is_some();
            if no_dedup.is_empty() && !limited && quota.is_none() {
                return Err(Failure::usage(
                    "nothing to set: give --no-dedup, --limit-iops, --limit-bytes or --quota",
                ));
            }
            if let Some(Size(bytes)) = quota {
                let name = name.clone();
                change(&store, answer, |_| Ok(Request::VolumeQuota { name, bytes }))?;
            }
            if !no_dedup.is_empty() {
                let no_dedup = ranges(&no_dedup)?;
                let name = name.clone();
                change(&store, answer, |_| Ok(Request::VolumeNoDedup { name, no_dedup }))?;
            }
            if !limited {
                return Ok(());
            }
            change(&store, answer, |found| {
                let mut limits = limits_of(found, &name)?;
                limits.iops = limit_iops.unwrap_or(limits.iops);
                limits.bytes = limit_bytes.map_or(limits.bytes, |bytes| bytes.0);
                Ok(Request::VolumeLimit { name, limits })
            })
        }
    }
}

/// Carries out a change of volumes, and tells what was done.
fn change(
    store: &Path,
    answer: Answer,
    request: impl FnOnce(&Found) -> Result<Request, Failure>,
) -> Result<(), Failure> {
    let found = Found::at(store)?;
    let request = request(&found)?;
    let sets = match &request {
        Request::VolumeCreate { no_dedup, limits, quota, .. } => {
            !no_dedup.is_empty() || !limits.is_any() || *quota > 0
        }
        Request::VolumeLimit { .. }
        | Request::VolumeQuota { .. }
        | Request::VolumeNoDedup { .. } => true,
        _ => false,
    };
    let has_domain = matches!(&request, Request::VolumeCreate { domain: Some(_), .. });
    match &found {
        Found::Block(file) => block::change(file, &request)?,
        Found::Cluster(_) if has_domain => {
            return Err(refused(store, &found, "its volumes all belong to one domain"));
        }
        other if sets => {
            return Err(refused(store, other, "its volumes have no limits, and share all blocks"));
        }
        Found::Archive(directory) => archive::change(directory, &request)?,
        Found::Cluster(url) => cluster::change(url, &request)?,
    }
    answer.tell(&done(&request), said(&request))
}

fn list(store: &Path, answer: Answer) -> Result<(), Failure> {
    match Found::at(store)? {
        Found::Block(file) => block::list(&file, answer),
        Found::Archive(directory) => archive::list(&directory, answer),
        Found::Cluster(url) => cluster::list(&url, answer),
    }
}

/// The size in whole blocks of the engine.
fn rounded(found: &Found, size: Option<Size>) -> Result<u64, Failure> {
    let Some(Size(bytes)) = size else {
        return Err(Failure::usage("a volume needs a size, like --size 1T"));
    };
    if matches!(found, Found::Archive(_)) {
        return Ok(onefold_archive::volume_bytes(bytes)?);
    }
    bytes
        .checked_next_multiple_of(4096)
        .ok_or_else(|| Failure::new("all volumes together can't be larger than 1 EiB"))
}

/// The limits that a volume has; none where the engine has no limits, which refuses to change them.
fn limits_of(found: &Found, name: &str) -> Result<Speed, Failure> {
    let Found::Block(file) = found else { return Ok(Speed::default()) };
    let volume = block::lines(file)?.into_iter().find(|volume| volume.name == name);
    let missing = || Error::new(Kind::NotFound, format!("there is no volume '{name}'"));
    Ok(volume.ok_or_else(missing)?.limits)
}

/// Ranges as they are written; `none` alone for none.
fn ranges(words: &[String]) -> Result<Vec<Range<u64>>, Failure> {
    if words.len() == 1 && words[0] == "none" {
        return Ok(Vec::new());
    }
    let ranges = words.iter().map(|range| range.parse()).collect::<Result<Vec<ByteRange>>>();
    blocks_of(&ranges.map_err(|e| Failure::usage(e.to_string()))?)
}

/// Ranges that are not deduplicated, as blocks.
fn blocks_of(ranges: &[ByteRange]) -> Result<Vec<Range<u64>>, Failure> {
    let no_dedup = NoDedup::new(ranges.iter().map(ByteRange::blocks).collect())
        .map_err(|e| Failure::usage(e.to_string()))?;
    Ok(no_dedup.ranges().to_vec())
}

/// The outcome, for the person who asked and for the server's log.
pub(crate) fn said(request: &Request) -> String {
    match request {
        Request::VolumeCreate { name, bytes, .. } => {
            format!("created volume '{}' of {}", name.escape_debug(), Size(*bytes))
        }
        Request::VolumeResize { name, bytes, .. } => {
            format!("resized volume '{}' to {}", name.escape_debug(), Size(*bytes))
        }
        Request::VolumeNoDedup { name, no_dedup } if no_dedup.is_empty() => {
            format!("all of volume '{}' is deduplicated from now on", name.escape_debug())
        }
        Request::VolumeNoDedup { name, no_dedup } => {
            let blocks: u64 = no_dedup.iter().map(|range| range.end - range.start).sum();
            format!(
                "{} of volume '{}' will not be deduplicated",
                Size(blocks * 4096),
                name.escape_debug()
            )
        }
        Request::VolumeLimit { name, limits } if limits.is_any() => {
            format!("nothing limits the clients of volume '{}' any more", name.escape_debug())
        }
        Request::VolumeLimit { name, limits } => {
            format!("clients of volume '{}' have {}", name.escape_debug(), speed::shown(limits))
        }
        Request::VolumeQuota { name, bytes: 0 } => {
            format!("volume '{}' has no quota any more", name.escape_debug())
        }
        Request::VolumeQuota { name, bytes } => {
            format!("volume '{}' has a quota of {}", name.escape_debug(), Size(*bytes))
        }
        Request::DomainLimits { name, quota, reserve } => {
            let limit = |word: &str, bytes: &Option<u64>| match bytes {
                None => None,
                Some(0) => Some(format!("no {word}")),
                Some(bytes) => Some(format!("a {word} of {}", Size(*bytes))),
            };
            let limits = [limit("quota", quota), limit("reserve", reserve)];
            let limits: Vec<String> = limits.into_iter().flatten().collect();
            format!("domain '{}' has {}", name.escape_debug(), limits.join(" and "))
        }
        Request::VolumeRename { name, new_name } => {
            format!("renamed volume '{}' to '{}'", name.escape_debug(), new_name.escape_debug())
        }
        Request::VolumeClone { of, name, read_only } => {
            let kind = if *read_only { "read-only volume" } else { "volume" };
            format!("made {kind} '{}' of '{}'", name.escape_debug(), of.escape_debug())
        }
        Request::VolumeDelete { name, .. } => format!("deleted volume '{}'", name.escape_debug()),
        Request::SnapshotCreate { snapshots } => {
            let names: Vec<String> =
                snapshots.iter().map(|name| format!("'{}'", name.escape_debug())).collect();
            let what = if names.len() == 1 { "snapshot" } else { "snapshots" };
            format!("took {what} {}", names.join(", "))
        }
        Request::SnapshotDelete { name, .. } => {
            format!("deleted snapshot '{}'", name.escape_debug())
        }
        Request::SnapshotRename { name, new_name } => {
            format!("renamed snapshot '{}' to '{}'", name.escape_debug(), new_name.escape_debug())
        }
        Request::SnapshotRollback { name, .. } => {
            let volume = name.rsplit_once('@').map_or(name.as_str(), |(volume, _)| volume);
            let (volume, name) = (volume.escape_debug(), name.escape_debug());
            format!("volume '{volume}' holds what snapshot '{name}' holds")
        }
        Request::SnapshotClone { of, name } => {
            format!("made volume '{}' of '{}'", name.escape_debug(), of.escape_debug())
        }
        Request::ReceiveAbort { volume } => {
            format!("gave up what was being received for volume '{}'", volume.escape_debug())
        }
        Request::VolumePromote { name } => {
            format!("volume '{}' is an ordinary one from now on", name.escape_debug())
        }
        other => format!("{other:?}"),
    }
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
