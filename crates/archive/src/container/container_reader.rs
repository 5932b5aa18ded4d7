//! Containers read: their metadata, and groups of their chunks.

use std::{collections::HashMap, ops::Range, sync::Arc};

use onefold_core::{Error, File, Kind, Result};
use parking_lot::Mutex;

use super::pace::Pace;
use crate::{
    format::{
        Identity,
        container::{Group, META_BYTES_MAX, Metadata, domain_said},
        names::segment_name,
        record::{Place, Stored},
    },
    operations_log::{Archive, domain_of, is_erased, is_put, look_for_data_key},
    rules::Rule,
    tables::{Container, Tables},
};

/// A sealed archive's containers are read by multiples of this, at multiples of it.
const STEP_BYTES: u64 = 4096;

fn ends_early(segment: u32) -> Error {
    Error::new(Kind::Corrupt, format!("segment {segment} ends too early"))
}

/// Reads containers.
pub(crate) struct ContainerReader {
    archive: Arc<Archive>,
    open: Mutex<HashMap<u32, Arc<dyn File>>>,
    pace: Pace,
}

impl ContainerReader {
    pub(crate) fn new(archive: Arc<Archive>) -> ContainerReader {
        ContainerReader::paced(archive, Pace::default())
    }

    /// The same for background work.
    pub(crate) fn paced(archive: Arc<Archive>, pace: Pace) -> ContainerReader {
        ContainerReader { archive, open: Mutex::default(), pace }
    }

    fn file(&self, segment: u32) -> Result<Arc<dyn File>> {
        let mut open = self.open.lock();
        if let Some(file) = open.get(&segment) {
            return Ok(file.clone());
        }
        let file = self.archive.files.open(&segment_name(segment)).map_err(|error| match error
            .kind()
        {
            Kind::NotFound => Error::new(Kind::Corrupt, format!("segment {segment} is not there")),
            _ => error,
        })?;
        open.insert(segment, file.clone());
        Ok(file)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.archive.identity
    }

    /// True unless the steps break this rule.
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.archive.keeps(rule)
    }

    /// True when this process may load the chunks of a container into its memory as duplicates. A put key may
    /// not where somebody else listed the container and nobody has proven it. Other processes load all, since
    /// the chunk index gets all, and ask [`Archive::may_share`] for each chunk that they find.
    pub(crate) fn may_share(&self, tables: &Tables, container: &Container) -> bool {
        !is_put(&self.archive)
            || self.archive.may_share(tables, container.stored.id, container.logged)
    }

    /// The metadata of a container.
    pub(crate) fn metadata(&self, container: &Container) -> Result<Metadata> {
        let stored = &container.stored;
        if stored.place.meta_bytes as usize > META_BYTES_MAX {
            return Err(Error::new(
                Kind::Corrupt,
                format!("container {}: its metadata can't be so long", stored.id),
            ));
        }
        if is_erased(&self.archive, stored.domain) {
            // Whoever reads snapshots, streams and volumes is refused before, but for a write-back that is under
            // way when the process learns of the erasure.
            return Err(Error::new(
                Kind::Corrupt,
                format!("container {}: its domain {} was erased", stored.id, stored.domain),
            ));
        }
        domain_of(&self.archive, stored.domain)?;
        self.pace.ask(u64::from(stored.place.meta_bytes))?;
        let mut bytes = vec![0; stored.place.meta_bytes as usize];
        let n = self.file(stored.place.segment)?.read_at(stored.place.at, &mut bytes)?;
        // The log proves the number of the domain. Another one in the header is damage, also where
        // this process has no key of it.
        if self.archive.identity.sealing().is_some()
            && let Some((found, generation)) = domain_said(&bytes[..n])
        {
            if found != stored.domain {
                return Err(in_another(stored, found));
            }
            is_of_generation(&self.archive, stored, generation)?;
            look_for_data_key(&self.archive, found, generation)?;
        }
        let metadata = Metadata::decode(&self.archive.identity, stored.id, &bytes[..n])?;
        if metadata.chunks.len() as u64 != u64::from(stored.chunks)
            || metadata.bytes != stored.place.bytes
        {
            return Err(Error::new(
                Kind::Corrupt,
                format!("container {} has other chunks than the log says", stored.id),
            ));
        }
        if metadata.domain() != stored.domain {
            return Err(in_another(stored, metadata.domain()));
        }
        Ok(metadata)
    }

    /// Neighbouring groups of a container as stored, in one read. Gives how many bytes of `into` lie
    /// before them.
    pub(crate) fn groups(
        &self,
        place: &Place,
        groups: &[Group],
        into: &mut Vec<u8>,
    ) -> Result<usize> {
        let (Some(first), Some(last)) = (groups.first(), groups.last()) else { return Ok(0) };
        let at = place.at.saturating_add(first.at.into());
        let bytes = u64::from((last.at + last.stored).saturating_sub(first.at));
        self.pace.ask(bytes)?;
        let read = self.steps_around(at..at.saturating_add(bytes));
        let before = (at - read.start) as usize;
        into.resize((read.end - read.start) as usize, 0);
        let n = self.file(place.segment)?.read_at(read.start, into)?;
        if n < before + bytes as usize {
            return Err(ends_early(place.segment));
        }
        Ok(before)
    }

    /// The bytes that are read for these bytes of a segment. Whoever holds a sealed archive's directory
    /// sees which bytes are read: not where a group begins and ends, only steps of 4 KiB.
    pub(crate) fn steps_around(&self, bytes: Range<u64>) -> Range<u64> {
        match self.archive.identity.sealing() {
            Some(_) if self.archive.keeps(Rule::SealedReadInSteps) => {
                let end = bytes.end.checked_next_multiple_of(STEP_BYTES).unwrap_or(bytes.end);
                bytes.start / STEP_BYTES * STEP_BYTES..end
            }
            _ => bytes,
        }
    }

    /// Bytes of a segment.
    pub(crate) fn bytes(&self, segment: u32, at: u64, into: &mut [u8]) -> Result<()> {
        let end = at.saturating_add(into.len() as u64);
        let read = self.steps_around(at..end);
        if read == (at..end) {
            let n = self.file(segment)?.read_at(at, into)?;
            return if n < into.len() { Err(ends_early(segment)) } else { Ok(()) };
        }
        let mut steps = vec![0; (read.end - read.start) as usize];
        let n = self.file(segment)?.read_at(read.start, &mut steps)?;
        let from = (at - read.start) as usize;
        match steps[..n].get(from..from + into.len()) {
            Some(bytes) => into.copy_from_slice(bytes),
            None => return Err(ends_early(segment)),
        }
        Ok(())
    }

    /// Frees the space of a place.
    pub(crate) fn free(&self, place: &Place) -> Result<()> {
        match self.file(place.segment) {
            Ok(file) => file.punch(place.at, self.archive.tables().taken(place)),
            // Removed by a collector that was killed before it could say so.
            Err(error) if error.kind() == Kind::Corrupt => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Errors when a container is not under the data key that the log says.
fn is_of_generation(archive: &Archive, stored: &Stored, found: u32) -> Result<()> {
    let Some(sealing) = archive.identity.sealing() else { return Ok(()) };
    let said = sealing.generation_of(stored.domain, stored.id.0);
    if found == said {
        return Ok(());
    }
    Err(Error::new(
        Kind::Corrupt,
        format!(
            "container {} is under data key {found} of its domain, and the log says {said}",
            stored.id
        ),
    ))
}

/// The error of a container whose header names another domain than the log.
fn in_another(stored: &Stored, found: u32) -> Error {
    let said = stored.domain;
    Error::new(
        Kind::Corrupt,
        format!("container {} is of domain {found}, and the log says {said}", stored.id),
    )
}
