//! Volumes for servers.

use std::sync::Arc;

use onefold_core::{
    BLOCK_BYTES, BlockRead, Exports, Extent, Result, Ticket, Volume, VolumeInfo, block::bytes_mut,
};

use super::volumes::{Heard, Volumes, is_not_erased};
use crate::operations_log::{domain_of, is_there};

/// One volume; implements the [`Volume`] that servers know.
pub(crate) struct ArchiveVolume {
    volumes: Arc<Volumes>,
    id: u64,
    heard: Heard,
}

impl Volume for ArchiveVolume {
    fn size(&self) -> u64 {
        self.volumes.size(self.id)
    }

    fn current_name(&self) -> Option<String> {
        self.volumes.archive.tables().volumes.all().get(&self.id).map(|volume| volume.name.clone())
    }

    fn is_read_only(&self) -> bool {
        self.volumes.is_read_only(self.id)
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        for read in reads {
            read.result = self.volumes.read_bytes(
                self.id,
                read.first.0 * BLOCK_BYTES as u64,
                bytes_mut(read.into),
            );
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.volumes.write(self.id, offset, data)
    }

    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket> {
        self.volumes.trim(self.id, offset, bytes)
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, _keep: bool) -> Result<Ticket> {
        self.volumes.write_zeroes(self.id, offset, bytes)
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.volumes.wait(self.id, ticket, &self.heard)?;
        is_not_erased(&self.volumes, self.id)
    }

    fn flush(&self) -> Result<()> {
        self.volumes.flush(self.id, &self.heard)?;
        is_not_erased(&self.volumes, self.id)
    }

    fn extents(&self, offset: u64, bytes: u64, limit: usize) -> Result<Vec<Extent>> {
        self.volumes.extents(self.id, offset, bytes, limit)
    }

    fn prefetch(&self, offset: u64, bytes: u64) -> Result<()> {
        self.volumes.within(self.id, offset, bytes)
    }
}

/// The volumes of an archive, for servers.
pub struct ArchiveExports(pub Arc<Volumes>);

impl Exports for ArchiveExports {
    fn list(&self) -> Vec<VolumeInfo> {
        // Another process may have made a volume a moment ago. When the log can't be read on, the
        // known tables are listed.
        let tables = self.0.archive.refresh().unwrap_or_else(|_| self.0.archive.tables());
        let mut volumes: Vec<VolumeInfo> = tables
            .volumes
            .all()
            .values()
            .map(|volume| VolumeInfo { name: volume.name.clone(), size: volume.bytes })
            .collect();
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        volumes
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>> {
        let tables = self.0.archive.refresh()?;
        let (id, volume) = tables.volumes.named(name)?;
        is_there(&tables, volume.domain)?;
        domain_of(&self.0.archive, volume.domain)?;
        let heard = self.0.heard_before(id);
        Ok(Arc::new(ArchiveVolume { volumes: self.0.clone(), id, heard }))
    }
}
