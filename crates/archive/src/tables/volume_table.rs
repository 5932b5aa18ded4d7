//! The volumes by their numbers, the records that change them, and their part of a snapshot.
//!
//! *Invariant:* a number is given to one volume only, also when this one is gone: the next number is
//! above all that were ever named. The pages of the file of maps are those of these volumes' maps.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, Files, Kind, Result};

use super::{
    persistent::Map,
    volumes::{Changed, VOLUME_BYTES_MAX, Volume, change},
};
use crate::{
    block_index::{self, BlockIndex, LEAF_MEMORY, Named, PAGES_MAX, Pages},
    format::{
        Identity,
        bytes::{Reader, Writer, corrupt},
        domain::FIRST_DOMAIN,
        record::{Pieces, Record},
    },
    memory::Drawn,
    settings::{CHANGED_MAPS, Settings},
};

/// Memory that a volume takes without its name and map.
const VOLUME_MEMORY: usize = 320;

/// The volumes of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeTable {
    by_number: Map<u64, Volume>,
    /// The next number that no volume had; 0 where there never was a volume.
    next: u64,
    /// The file with their maps.
    pages: Pages,
}

impl VolumeTable {
    /// The volumes by their numbers.
    #[must_use]
    pub fn all(&self) -> &Map<u64, Volume> {
        &self.by_number
    }

    /// The volume called `name`, and its number.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn named(&self, name: &str) -> Result<(u64, &Volume)> {
        let mut all = self.by_number.iter().map(|(&id, volume)| (id, volume));
        all.find(|(_, volume)| volume.name == name).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("there is no volume '{}'", name.escape_debug()))
        })
    }

    /// The number of the next volume.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.max(1)
    }

    /// True where there never was a volume.
    pub(super) fn is_new(&self) -> bool {
        self.next == 0
    }

    /// The file with the volumes' maps.
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Applies a record of a volume; gives the mappings that came and went. `clones` says whether
    /// the archive can have clones.
    ///
    /// # Errors
    /// `Corrupt` when it contradicts what is there, and for a record of no volume.
    pub(super) fn apply(&mut self, sequence: u64, record: Record, clones: bool) -> Result<Changed> {
        match record {
            Record::VolumeCreated { bytes, .. } | Record::VolumeResized { bytes, .. }
                if bytes > VOLUME_BYTES_MAX =>
            {
                Err(corrupt("a volume can't be so large"))
            }
            Record::VolumeCreated { id, name, bytes, created, domain } => {
                let (cuts, block_index) = (Vec::new(), Arc::default());
                let read_only = false;
                self.add(id, Volume { name, bytes, created, domain, read_only, cuts, block_index });
                Ok(Changed { domain, ..Changed::default() })
            }
            Record::VolumeCloned { .. } if !clones => {
                Err(corrupt("the log has a clone, which the label does not announce"))
            }
            Record::VolumeCloned { id, of, name, created, read_only } => {
                self.add_clone((id, of), name, created, read_only)
            }
            Record::VolumeResized { id, .. }
            | Record::VolumeRenamed { id, .. }
            | Record::VolumeDeleted { id }
            | Record::Unmapped { id, .. }
            | Record::Mapped { id, .. } => self.change(id, sequence, &record),
            _ => Err(corrupt("a record is of no volume")),
        }
    }

    fn add(&mut self, id: u64, volume: Volume) {
        self.next = self.next.max(id.saturating_add(1));
        self.by_number.insert(id, volume);
    }

    /// Adds a volume that shares all leaves with another one. Each mapping came once more.
    fn add_clone(
        &mut self,
        (id, of): (u64, u64),
        name: String,
        created: u64,
        read_only: bool,
    ) -> Result<Changed> {
        let Some(source) = self.by_number.get(&of) else {
            return Err(corrupt(format!("the log clones volume {of}, which is not there")));
        };
        if self.by_number.contains_key(&id) {
            return Err(corrupt(format!("the log makes volume {id} twice")));
        }
        // Of the source it has no more than its size and map, however often that was cut.
        let (bytes, domain, block_index) =
            (source.bytes, source.domain, source.block_index.clone());
        let cuts = Vec::new();
        let clone = Volume { name, bytes, created, domain, read_only, cuts, block_index };
        let came = clone.recipe();
        self.add(id, clone);
        Ok(Changed { came, went: Vec::new(), domain })
    }

    fn change(&mut self, id: u64, sequence: u64, record: &Record) -> Result<Changed> {
        let mut volume = self
            .by_number
            .remove(&id)
            .ok_or_else(|| corrupt(format!("the log changes volume {id}, which is not there")))?;
        let changed = change(&mut volume, &mut self.pages, sequence, record)?;
        if !matches!(record, Record::VolumeDeleted { .. }) {
            self.by_number.insert(id, volume);
        }
        Ok(changed)
    }

    /// Reads the maps that a snapshot names; leaves that `before` has stay those.
    ///
    /// # Errors
    /// `Corrupt`, `Memory`, and those of the system.
    pub(crate) fn load_maps(
        &mut self,
        files: &dyn Files,
        identity: &Identity,
        before: Option<&VolumeTable>,
        drawn: &Drawn,
    ) -> Result<()> {
        let named = self.by_number.iter().map(|(&id, volume)| Named {
            id,
            name: &volume.name,
            index: &volume.block_index,
            before: before
                .and_then(|before| before.by_number.get(&id))
                .map(|before| &*before.block_index),
        });
        let loaded = block_index::load(files, identity, &mut self.pages, named, drawn)?;
        self.set_maps(loaded);
        Ok(())
    }

    /// Writes the leaves of all maps that changed, for snapshot `number`. Durable on return, and named
    /// when the snapshot is.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn write_maps(
        &mut self,
        files: &dyn Files,
        identity: &Identity,
        number: u64,
        settings: &Settings,
    ) -> Result<()> {
        let all = self.by_number.iter();
        let maps = all.map(|(&id, volume)| (id, volume.block_index.clone())).collect();
        let written = block_index::write(files, identity, number, &mut self.pages, maps, settings)?;
        self.set_maps(written);
        Ok(())
    }

    /// Writes some leaves of maps that changed ahead of snapshot `number`, `most` at most. Durable on return;
    /// no snapshot names them before [`write_maps`](Self::write_maps) looked whether they are still there.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn write_maps_ahead(
        &mut self,
        files: &dyn Files,
        identity: &Identity,
        number: u64,
        settings: &Settings,
        most: usize,
    ) -> Result<()> {
        let all = self.by_number.iter();
        let maps = all.map(|(&id, volume)| (id, volume.block_index.clone())).collect();
        let moment = (number, most);
        let written =
            block_index::write_ahead(files, identity, moment, &self.pages, maps, settings)?;
        self.set_maps(written);
        Ok(())
    }

    /// Leaves of maps that were written ahead count as not written.
    pub(crate) fn forget_maps_ahead(&mut self) {
        let all = self.by_number.iter().map(|(&id, volume)| (id, volume.block_index.clone()));
        let mut maps: Vec<_> = all.collect();
        maps.iter_mut().for_each(|(_, map)| block_index::forget_ahead(map));
        self.set_maps(maps);
    }

    /// Leaves of maps that changed since the last snapshot, those that were written ahead too.
    #[must_use]
    pub fn changed_leaves(&self) -> usize {
        self.by_number.values().map(|volume| volume.block_index.changed_leaves()).sum()
    }

    /// Leaves of maps that changed and were not written ahead.
    pub(crate) fn unwritten_leaves(&self) -> usize {
        self.by_number.values().map(|volume| volume.block_index.unwritten_leaves()).sum()
    }

    /// Leaves of maps that may have changed before a checkpoint: `least`, or as many as their file has
    /// pages, in proportion to the usual `least`. Who opens the archive is allowed far more for a page than
    /// a changed leaf takes, and so an archive that grows writes its directory of leaves seldom.
    #[must_use]
    pub fn changed_leaves_allowed(&self, least: usize) -> usize {
        let pages = self.pages.count as usize;
        least.max(pages.saturating_mul(least) / CHANGED_MAPS)
    }

    fn set_maps(&mut self, maps: impl IntoIterator<Item = (u64, Arc<BlockIndex>)>) {
        for (id, map) in maps {
            if let Some(volume) = self.by_number.get_mut(&id) {
                volume.block_index = map;
            }
        }
    }

    /// The proofs of all pages of maps, in the order of the volumes and their leaves.
    pub(crate) fn proofs(&self) -> impl Iterator<Item = u64> {
        let pages = self.by_number.values().flat_map(|volume| volume.block_index.pages());
        pages.map(|(_, page)| page.proof)
    }

    /// Gives the pages of maps their proofs, in the order of [`proofs`](Self::proofs).
    pub(crate) fn set_proofs(&mut self, proofs: Vec<u64>) {
        let mut proofs = proofs.into_iter();
        let ids: Vec<u64> = self.by_number.keys().copied().collect();
        for id in ids {
            if let Some(volume) = self.by_number.get_mut(&id) {
                Arc::make_mut(&mut volume.block_index).set_proofs(&mut proofs);
            }
        }
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
                    let source = self.by_number.get(of);
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

    /// Writes the part of a snapshot; `clones` and `domains` say whether the archive can have clones, and
    /// volumes of domains beside the first one.
    pub(super) fn encode(&self, w: &mut Writer, clones: bool, domains: bool) {
        w.u64(self.next).u32(self.by_number.len() as u32);
        for (&id, volume) in &self.by_number {
            w.u64(id)
                .bytes(volume.name.as_bytes())
                .u64(volume.bytes)
                .u64(volume.created)
                .u32(volume.cuts.len() as u32);
            volume.cuts.iter().for_each(|&(sequence, blocks)| {
                w.u64(sequence).u64(blocks);
            });
            volume.block_index.encode(w, clones);
            if clones {
                w.u8(u8::from(volume.read_only));
            }
            if domains {
                w.u16(volume.domain as u16);
            }
        }
        w.u32(self.pages.count).u32(self.pages.replaced.len() as u32);
        self.pages.replaced.iter().for_each(|&page| {
            w.u32(page);
        });
    }

    /// Reads the part of a snapshot.
    ///
    /// # Errors
    /// `Corrupt`; `Memory` when it takes more than the reader may.
    pub(super) fn decode(r: &mut Reader<'_>, clones: bool, domains: bool) -> Result<VolumeTable> {
        let (next, mut by_number, mut pages) = (r.u64()?, Map::default(), Pages::default());
        for _ in 0..r.count(36, VOLUME_MEMORY)? {
            let (id, name, bytes, created) = (r.u64()?, r.text()?, r.u64()?, r.u64()?);
            if bytes > VOLUME_BYTES_MAX {
                return Err(corrupt("a volume can't be so large"));
            }
            let cuts =
                (0..r.count(16, 16)?).map(|_| Ok((r.u64()?, r.u64()?))).collect::<Result<_>>()?;
            let block_index = Arc::new(BlockIndex::decode(r, id, clones)?);
            let read_only = clones && r.u8()? != 0;
            let domain = if domains { u32::from(r.u16()?) } else { FIRST_DOMAIN };
            let volume = Volume { name, bytes, created, domain, read_only, cuts, block_index };
            by_number.insert(id, volume);
        }
        pages.count = r.u32()?;
        if pages.count > PAGES_MAX {
            return Err(corrupt("the file of maps can't be so long"));
        }
        pages.replaced = (0..r.count(4, 4)?).map(|_| r.u32()).collect::<Result<_>>()?;
        Ok(VolumeTable { by_number, next, pages })
    }
}
