//! `onefold volume` of a block store, served or not.

use std::sync::Arc;

use onefold_block::{
    Copies, DomainLimits, MEMORY_MIN, NewVolume, NoDedup, Settings, Store, domain_called,
};
use onefold_core::{Error, Kind, Result};

use super::{
    super::{receiving, served_or_not},
    guard, speed,
};
use crate::report::charged;
use onefold::parts::{
    control::{Request, VolumeLine, VolumeSpace},
    store_file::StoreFile,
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::Size,
};

/// Changes the catalogue, by the store's server where there is one.
pub(crate) fn change(file: &StoreFile, request: &Request) -> Result<(), Failure> {
    served_or_not(
        file,
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
pub(crate) fn apply(store: &Arc<Store>, request: &Request) -> Result<()> {
    guard::size(request, |name| {
        let volumes = store.status().volumes;
        volumes.iter().find(|volume| volume.name == name).map(|volume| VolumeLine::of(volume).bytes)
    })?;
    match request {
        Request::VolumeCreate { name, bytes, no_dedup, limits, quota, domain } => {
            let no_dedup = NoDedup::new(no_dedup.clone())?;
            let domain = domain_of(store, domain.as_deref())?.unwrap_or_default();
            let quota = quota.div_ceil(4096);
            let new = NewVolume { no_dedup, limits: (*limits).into(), quota, domain };
            store.create_volume_as(name, *bytes, &new).map(|_| ())
        }
        Request::VolumeLimit { name, limits } => store.set_limits(name, (*limits).into()),
        Request::VolumeQuota { name, bytes } => store.set_quota(name, *bytes),
        Request::DomainLimits { name, quota, reserve } => {
            let blocks = |bytes: u64| bytes.div_ceil(4096);
            let change = |before: DomainLimits| DomainLimits {
                quota: quota.map_or(before.quota, blocks),
                reserve: reserve.map_or(before.reserve, blocks),
            };
            store.set_domain(name, change).map(drop)
        }
        Request::VolumeNoDedup { name, no_dedup } => {
            store.set_no_dedup(name, &NoDedup::new(no_dedup.clone())?)
        }
        Request::VolumeResize { name, bytes, .. } => store.resize_volume(name, *bytes),
        Request::VolumeRename { name, new_name } => store.rename_volume(name, new_name),
        Request::VolumeDelete { name, .. } => store.delete_volume(name),
        Request::SnapshotDelete { name, force } => store.delete_snapshot(name, *force),
        Request::SnapshotRename { name, new_name } => store.rename_snapshot(name, new_name),
        Request::SnapshotRollback { name, keep, force } => {
            store.rollback(name, keep.as_deref(), *force)
        }
        Request::SnapshotClone { of, name } => store.clone_volume(of, name),
        Request::ReceiveAbort { volume } => Copies::of(store).abort_receive(volume),
        Request::VolumePromote { name } => Copies::of(store).promote(name),
        _ => Err(Error::new(Kind::Unsupported, "this is no change of volumes")),
    }
}

/// The number of the domain that was named.
pub(crate) fn domain_of(store: &Store, name: Option<&str>) -> Result<Option<u32>> {
    name.map(|name| domain_called(store.engine(), name)).transpose()
}

/// Names the domain of a volume, unless it is the one that each store begins with, and tells when it was
/// erased.
pub(crate) fn domain_mark(volume: &VolumeLine) -> String {
    match (volume.domain, volume.erased) {
        (0, _) => String::new(),
        (number, true) => format!("  (domain {number}, erased)"),
        (number, false) => {
            format!("  (domain {number}, '{}')", volume.domain_name.escape_debug())
        }
    }
}

/// All volumes, as the store's server says where there is one.
pub(crate) fn lines(file: &StoreFile) -> Result<Vec<VolumeLine>> {
    served_or_not(
        file,
        |server| server.ask(&Request::VolumeList),
        || {
            let status = StoreFile::look(file.path())?.open_unchanged()?.status();
            Ok(status.volumes.into_iter().map(|volume| VolumeLine::of(&volume)).collect())
        },
    )
}

/// How much of a volume is lost, if anything is.
fn lost(volume: &VolumeLine) -> String {
    if volume.lost_bytes == 0 {
        return String::new();
    }
    format!("  ({} lost)", Size(volume.lost_bytes))
}

/// The same with what volumes hold.
pub(super) fn list_space(file: &StoreFile, answer: Answer) -> Result<(), Failure> {
    let bar = Progress::new("looking through the volumes");
    let space: VolumeSpace = served_or_not(
        file,
        |server| server.ask_long(&Request::VolumeSpace, &mut |what, _, _| bar.stage(what)),
        || {
            let engine = StoreFile::look(file.path())?.open_unchanged()?;
            VolumeSpace::of(&engine, &mut |_| true)
                .ok_or_else(|| Error::new(Kind::Io, "nobody waits for the answer any more"))
        },
    )?;
    drop(bar);
    if answer.json {
        output::json(&space.volumes)?;
        return Ok(());
    }
    if space.volumes.is_empty() {
        output::line("no volumes");
    }
    let shown = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |bytes| Size(bytes).to_string());
    for volume in &space.volumes {
        output::line(format_args!(
            "{:>9}  {:>9} mapped  {:>9} alone  {}{}",
            Size(volume.bytes).to_string(),
            shown(volume.mapped_bytes),
            shown(volume.exclusive_bytes),
            volume.name.escape_debug(),
            domain_mark(volume) + &lost(volume)
        ));
    }
    if space.unread_pages > 0 {
        output::line(format_args!(
            "{} pages of tables can't be read, so that it may be more: run onefold check",
            space.unread_pages
        ));
    }
    Ok(())
}

pub(super) fn list(file: &StoreFile, answer: Answer) -> Result<(), Failure> {
    let volumes = lines(file)?;
    if answer.json {
        output::json(&volumes)?;
    } else if volumes.is_empty() {
        output::line("no volumes");
    } else {
        let counted = volumes.iter().any(|volume| volume.mapped_bytes.is_some());
        for volume in volumes {
            let shared_never: u64 =
                volume.no_dedup.iter().map(|range| range.end - range.start).sum();
            let no_dedup = if shared_never > 0 {
                format!("  ({} not deduplicated)", Size(shared_never))
            } else {
                String::new()
            };
            let limits = if volume.limits.is_any() {
                String::new()
            } else {
                format!("  ({})", speed::shown(&volume.limits))
            };
            let quota = charged(&volume).map_or(String::new(), |charged| format!("  ({charged})"));
            let replica = if volume.replica { "  (replica)" } else { "" };
            let mapped =
                volume.mapped_bytes.map_or("?".to_owned(), |bytes| Size(bytes).to_string());
            let mapped = if counted { format!("  {mapped:>9} mapped") } else { String::new() };
            output::line(format_args!(
                "{:>9}{mapped}  {}{no_dedup}{limits}{quota}{replica}{}",
                Size(volume.bytes).to_string(),
                volume.name.escape_debug(),
                domain_mark(&volume) + &lost(&volume)
            ));
        }
    }
    if !answer.json {
        receiving::show(file)?;
    }
    Ok(())
}
