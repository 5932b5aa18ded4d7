//! Containers read: their metadata, and groups of their chunks.

use std::{collections::HashMap, sync::Arc};

use onefold_core::{Error, File, Kind, Result};
use parking_lot::Mutex;

use super::pace::Pace;
use crate::{
    format::{
        Identity,
        container::{Group, META_BYTES_MAX, Metadata},
        names::segment_name,
        record::Place,
    },
    operations_log::Archive,
    rules::Rule,
    tables::Container,
};

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

    /// The metadata of a container.
    pub(crate) fn metadata(&self, container: &Container) -> Result<Metadata> {
        let stored = &container.stored;
        if stored.place.meta_bytes as usize > META_BYTES_MAX {
            return Err(Error::new(
                Kind::Corrupt,
                format!("container {}: its metadata can't be so long", stored.id),
            ));
        }
        self.pace.ask(u64::from(stored.place.meta_bytes))?;
        let mut bytes = vec![0; stored.place.meta_bytes as usize];
        let n = self.file(stored.place.segment)?.read_at(stored.place.at, &mut bytes)?;
        let metadata = Metadata::decode(&self.archive.identity, stored.id, &bytes[..n])?;
        if metadata.chunks.len() as u64 != u64::from(stored.chunks)
            || metadata.bytes != stored.place.bytes
        {
            return Err(Error::new(
                Kind::Corrupt,
                format!("container {} has other chunks than the log says", stored.id),
            ));
        }
        Ok(metadata)
    }

    /// Neighbouring groups of a container as stored, in one read.
    pub(crate) fn groups(&self, place: &Place, groups: &[Group], into: &mut Vec<u8>) -> Result<()> {
        let (Some(first), Some(last)) = (groups.first(), groups.last()) else { return Ok(()) };
        let bytes = (last.at + last.stored).saturating_sub(first.at) as usize;
        self.pace.ask(bytes as u64)?;
        into.resize(bytes, 0);
        let n = self.file(place.segment)?.read_at(place.at + u64::from(first.at), into)?;
        if n < bytes {
            return Err(Error::new(
                Kind::Corrupt,
                format!("segment {} ends too early", place.segment),
            ));
        }
        Ok(())
    }

    /// Bytes of a segment.
    pub(crate) fn bytes(&self, segment: u32, at: u64, into: &mut [u8]) -> Result<()> {
        if self.file(segment)?.read_at(at, into)? < into.len() {
            return Err(Error::new(Kind::Corrupt, format!("segment {segment} ends too early")));
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
