//! `onefold volume` of an archive, served or not.
//!
//! A verb takes the commit lock, and is done in milliseconds, beside a server and beside puts.
//! Where the archive is served its server does it, so that it knows at once.

use onefold_archive::{Archive, Settings, Tables, create_volume_in, domain_called, find_label};
use onefold_core::{Error, Kind, Result};
use serde::Serialize;

use super::guard;

use onefold::parts::{
    archive_dir::{ArchiveDir, now},
    control::Request,
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::Size,
};

/// A volume, as lists show it.
#[derive(Debug, Serialize)]
pub(in crate::verbs) struct Line {
    pub(in crate::verbs) name: String,
    pub(in crate::verbs) bytes: u64,
    /// Bytes of its blocks that are no zeroes.
    pub(in crate::verbs) mapped_bytes: u64,
    /// Seconds since 1970.
    pub(in crate::verbs) created: u64,
    /// Nobody writes to it.
    pub(in crate::verbs) read_only: bool,
    /// The number of its domain.
    pub(in crate::verbs) domain: u32,
    /// Its domain was erased: nobody can read it any more.
    pub(in crate::verbs) erased: bool,
}

/// The volumes of an archive by their names.
pub(in crate::verbs) fn lines(tables: &Tables) -> Vec<Line> {
    let line = |volume: &onefold_archive::Volume| Line {
        name: volume.name.clone(),
        bytes: volume.bytes,
        mapped_bytes: volume.block_index.used() * onefold_archive::VOLUME_BLOCK_BYTES,
        created: volume.created,
        read_only: volume.read_only,
        domain: volume.domain,
        erased: tables.domains.erased.contains_key(&volume.domain),
    };
    let mut lines: Vec<Line> = tables.volumes.all().values().map(line).collect();
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    lines
}

/// Names the domain of a volume, unless it is the one that each archive begins with. Its name takes a key to
/// read: `onefold domain list` shows it.
fn domain_mark(domain: u32, erased: bool) -> String {
    match (domain, erased) {
        (0, _) => String::new(),
        (number, true) => format!("  (domain {number}, erased)"),
        (number, false) => format!("  (domain {number})"),
    }
}

/// Fails for an archive whose volumes have no domains. A server of before would make the volume all the same,
/// beside those of others: it can't have an archive open that says that it has such volumes.
fn has_volume_domains(directory: &ArchiveDir, domain: &str) -> Result<(), Failure> {
    let label = match directory.nodes(false, false)? {
        Some(_) => None,
        None => Some(find_label(&*directory.files()?)?),
    };
    match label {
        Some(label) if label.volume_domains => Ok(()),
        Some(label) if label.domains => Err(Failure::new(
            "the archive got its domains by a program that knew no volumes in them: `onefold upgrade` gives it these",
        )),
        Some(label) if label.sealed.is_none() => Err(Failure::new(
            "the archive is not encrypted, and domains are what keys separate: make an encrypted one",
        )),
        _ => Err(Failure::new(format!(
            "there is no domain '{}': `onefold domain create` makes one",
            domain.escape_debug()
        ))),
    }
}

/// Changes the catalogue, by the archive's server where there is one.
pub(in crate::verbs) fn change(directory: &ArchiveDir, request: &Request) -> Result<(), Failure> {
    if let Request::VolumeCreate { domain: Some(domain), .. } = request {
        has_volume_domains(directory, domain)?;
    }
    match directory.server()? {
        Some(mut server) => server.ask::<serde_json::Value>(request).map(|_| ())?,
        None => {
            // Clients have volumes open there, and it may be one that only adds. It alone has writes of its
            // clients that they did not flush.
            if let Some(server) = directory.unseen_server()?
                && (server.is_sure || matches!(request, Request::VolumeClone { .. }))
            {
                return Err(Failure::new(format!(
                    "{server}, and changes volumes itself: if it was started with --control DIR, \
                     say the same here, or else stop it"
                )));
            }
            apply(&*directory.open(Settings::default())?, request)?;
        }
    }
    Ok(())
}

/// Changes the catalogue; durable on return.
pub(in crate::verbs) fn apply(archive: &Archive, request: &Request) -> Result<()> {
    let tables = archive.refresh()?;
    guard::size(request, |name| tables.volumes.named(name).ok().map(|(_, volume)| volume.bytes))?;
    match request {
        Request::VolumeCreate { name, bytes, domain, .. } => {
            let domain = domain.as_deref().map(|domain| domain_called(archive, domain));
            create_volume_in(archive, domain.transpose()?.unwrap_or_default(), name, *bytes, now())
        }
        Request::VolumeResize { name, bytes, .. } => archive.resize_volume(name, *bytes),
        Request::VolumeRename { name, new_name } => archive.rename_volume(name, new_name),
        Request::VolumeDelete { name, .. } => archive.delete_volume(name),
        Request::VolumeClone { of, name, read_only } => {
            archive.clone_volume(of, name, *read_only, now())
        }
        _ => Err(Error::new(Kind::Unsupported, "the server of an archive does not do this")),
    }
}

pub(super) fn list(directory: &ArchiveDir, answer: Answer) -> Result<(), Failure> {
    let lines = lines(&directory.open_to_read(onefold_archive::READER_BYTES)?.tables());
    if answer.json {
        output::json(&lines)?;
    } else if lines.is_empty() {
        output::line("no volumes");
    } else {
        for line in lines {
            let (bytes, mapped) =
                (Size(line.bytes).to_string(), Size(line.mapped_bytes).to_string());
            output::line(format_args!(
                "{bytes:>9}  {mapped:>9} written  {}{}{}",
                line.name.escape_debug(),
                if line.read_only { "  read-only" } else { "" },
                domain_mark(line.domain, line.erased)
            ));
        }
    }
    Ok(())
}
