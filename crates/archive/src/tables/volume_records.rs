//! Records of volumes, applied, and their part of a snapshot.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::Result;

use super::{
    state::{Difference, Tables},
    volumes::{VOLUME_BYTES_MAX, Volume, change},
};
use crate::{
    block_index::{BlockIndex, LEAF_MEMORY},
    format::{
        bytes::{Reader, Writer, corrupt},
        record::{Pieces, Record},
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
                Volume {
                    name,
                    bytes,
                    created,
                    read_only: false,
                    cuts: Vec::new(),
                    block_index: Arc::default(),
                },
            );
            return Ok(());
        }
        if let Record::VolumeCloned { id, of, name, created, read_only } = record {
            return clone_volume(self, id, of, name, created, read_only);
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

    /// Memory that clones take, in leaves: of a map, and of what is to be counted. A source may be
    /// made, and get mappings, by the same records. Leaves that they make or copy are drawn as they do.
    pub(crate) fn clones_take(&self, records: &[Record]) -> u64 {
        const PIECES: u64 = LEAF_MEMORY / size_of::<Pieces>() as u64;
        let mut made: BTreeMap<u64, u64> = BTreeMap::new();
        let mut all = 0;
        for record in records {
            let (id, takes) = match record {
                Record::Mapped { id, changes } => (*id, (changes.len() as u64).div_ceil(PIECES)),
                Record::VolumeCloned { id, of, .. } => {
                    let source = self.volumes.get(of);
                    let known = source.map_or(0, |source| {
                        let pieces = source.recipe().len() as u64;
                        source.block_index.leaves().div_ceil(32) + pieces.div_ceil(PIECES)
                    });
                    let takes = known + made.get(of).copied().unwrap_or(0);
                    all += takes;
                    (*id, takes)
                }
                _ => continue,
            };
            *made.entry(id).or_default() += takes;
        }
        all
    }

    /// Nothing where there never was a volume.
    pub(crate) fn encode_volumes(&self, w: &mut Writer) {
        let part = self.late || self.trees || self.clones;
        if self.next_volume == 0 && !part && self.damaged.is_empty() {
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
            volume.block_index.encode(w, self.clones);
            if self.clones {
                w.u8(u8::from(volume.read_only));
            }
        }
        w.u32(self.pages.count).u32(self.pages.replaced.len() as u32);
        self.pages.replaced.iter().for_each(|&page| {
            w.u32(page);
        });
    }

    pub(crate) fn decode_volumes(&mut self, r: &mut Reader<'_>) -> Result<()> {
        if r.0.is_empty() && !self.late && !self.clones {
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
            let block_index = Arc::new(BlockIndex::decode(r, id, self.clones)?);
            let read_only = self.clones && r.u8()? != 0;
            self.volumes.insert(id, Volume { name, bytes, created, read_only, cuts, block_index });
        }
        self.pages.count = r.u32()?;
        if self.pages.count > PAGES_MAX {
            return Err(corrupt("the file of maps can't be so long"));
        }
        self.pages.replaced = (0..r.count(4, 4)?).map(|_| r.u32()).collect::<Result<_>>()?;
        Ok(())
    }
}

/// A volume that shares all leaves with another one. Each mapping is counted once more.
fn clone_volume(
    tables: &mut Tables,
    id: u64,
    of: u64,
    name: String,
    created: u64,
    read_only: bool,
) -> Result<()> {
    if !tables.clones {
        return Err(corrupt("the log has a clone, which the label does not announce"));
    }
    let Some(source) = tables.volumes.get(&of) else {
        return Err(corrupt(format!("the log clones volume {of}, which is not there")));
    };
    if tables.volumes.contains_key(&id) {
        return Err(corrupt(format!("the log makes volume {id} twice")));
    }
    // Of the source it has no more than its size and map, however often that was cut.
    let (bytes, block_index) = (source.bytes, source.block_index.clone());
    let clone = Volume { name, bytes, created, read_only, cuts: Vec::new(), block_index };
    let recipe = clone.recipe();
    #[cfg(feature = "planted-bugs")]
    let recipe = if tables.derived.clones_uncounted { Vec::new() } else { recipe };
    tables.next_volume = tables.next_volume.max(id.saturating_add(1));
    tables.volumes.insert(id, clone);
    if !recipe.is_empty() {
        let at = tables.versions;
        tables.differences.push(Difference { added: true, recipe, at, nodes: false });
    }
    Ok(())
}
