//! Records of volumes, applied, and their part of a snapshot.

use std::sync::Arc;

use onefold_core::Result;

use super::{
    state::{Difference, Tables},
    volumes::{VOLUME_BYTES_MAX, Volume, change},
};
use crate::{
    block_index::{BlockIndex, LEAF_BLOCKS},
    format::{
        bytes::{Reader, Writer, corrupt},
        record::Record,
    },
};

/// Pages of the file of maps at most: 16 TiB.
const PAGES_MAX: u32 = 1 << 31;

/// Memory that a volume takes without its name and map.
const VOLUME_MEMORY: usize = 320;

impl Tables {
    pub(crate) fn apply_volume(&mut self, sequence: u64, record: Record) -> Result<()> {
        if let Record::VolumeCreated { bytes, .. } | Record::VolumeResized { bytes, .. } = record
            && bytes > VOLUME_BYTES_MAX
        {
            return Err(corrupt("a volume can't be so large"));
        }
        if let Record::VolumeCreated { id, name, bytes, created } = record {
            self.next_volume = self.next_volume.max(id.saturating_add(1));
            self.volumes.insert(
                id,
                Volume { name, bytes, created, cuts: Vec::new(), block_index: Arc::default() },
            );
            return Ok(());
        }
        let (Record::VolumeResized { id, .. }
        | Record::VolumeRenamed { id, .. }
        | Record::VolumeDeleted { id }
        | Record::Unmapped { id, .. }
        | Record::Mapped { id, .. }) = record
        else {
            return Err(corrupt("a record is of no volume"));
        };
        let mut volume = self
            .volumes
            .remove(&id)
            .ok_or_else(|| corrupt(format!("the log changes volume {id}, which is not there")))?;
        let changed = change(&mut volume, &mut self.pages, sequence, &record)?;
        if !matches!(record, Record::VolumeDeleted { .. }) {
            self.volumes.insert(id, volume);
        }
        for (added, recipe) in [(true, changed.came), (false, changed.went)] {
            if !recipe.is_empty() {
                self.differences.push(Difference {
                    added,
                    recipe,
                    at: self.versions,
                    nodes: false,
                });
            }
        }
        Ok(())
    }

    /// Leaves of maps that records make which are not there yet, or a few more.
    pub(crate) fn new_leaves(&self, records: &[Record]) -> u64 {
        let mapped = records.iter().filter_map(|record| match record {
            Record::Mapped { id, changes } => Some((self.volumes.get(id), changes)),
            _ => None,
        });
        let mut made = 0;
        for (volume, changes) in mapped {
            let mut last = None;
            for change in changes {
                let leaf = change.block / LEAF_BLOCKS as u64;
                if last.replace(leaf) != Some(leaf)
                    && volume.is_none_or(|volume| {
                        volume.block_index.next_leaf(change.block) != Some(change.block)
                    })
                {
                    made += 1;
                }
            }
        }
        made
    }

    /// Nothing where there never was a volume.
    pub(crate) fn encode_volumes(&self, w: &mut Writer) {
        if self.next_volume == 0 && !self.late && !self.trees && self.damaged.is_empty() {
            return;
        }
        w.u64(self.next_volume).u32(self.volumes.len() as u32);
        for (&id, volume) in &self.volumes {
            w.u64(id)
                .bytes(volume.name.as_bytes())
                .u64(volume.bytes)
                .u64(volume.created)
                .u32(volume.cuts.len() as u32);
            volume.cuts.iter().for_each(|&(sequence, blocks)| {
                w.u64(sequence).u64(blocks);
            });
            volume.block_index.encode(w);
        }
        w.u32(self.pages.count).u32(self.pages.replaced.len() as u32);
        self.pages.replaced.iter().for_each(|&page| {
            w.u32(page);
        });
    }

    pub(crate) fn decode_volumes(&mut self, r: &mut Reader<'_>) -> Result<()> {
        if r.0.is_empty() && !self.late {
            return Ok(());
        }
        self.next_volume = r.u64()?;
        for _ in 0..r.count(36, VOLUME_MEMORY)? {
            let (id, name, bytes, created) = (r.u64()?, r.text()?, r.u64()?, r.u64()?);
            if bytes > VOLUME_BYTES_MAX {
                return Err(corrupt("a volume can't be so large"));
            }
            let cuts =
                (0..r.count(16, 16)?).map(|_| Ok((r.u64()?, r.u64()?))).collect::<Result<_>>()?;
            self.volumes.insert(
                id,
                Volume {
                    name,
                    bytes,
                    created,
                    cuts,
                    block_index: Arc::new(BlockIndex::decode(r)?),
                },
            );
        }
        self.pages.count = r.u32()?;
        if self.pages.count > PAGES_MAX {
            return Err(corrupt("the file of maps can't be so long"));
        }
        self.pages.replaced = (0..r.count(4, 4)?).map(|_| r.u32()).collect::<Result<_>>()?;
        Ok(())
    }
}
