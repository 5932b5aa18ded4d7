//! The volumes of an archive, as the log tells them: names, sizes, mappings.

use std::sync::Arc;

use onefold_core::{Error, Kind, Result};

use crate::{
    archive::Archive,
    block_index::{BlockIndex, LEAF_BLOCKS, Pages},
    format::{
        Address,
        bytes::{Reader, Writer, corrupt},
        record::{Pieces, Record},
    },
    settings::VOLUME_BLOCK_BYTES,
    tables::{Difference, Tables},
};

/// Pages of the file of maps at most: 16 TiB.
const PAGES_MAX: u32 = 1 << 31;

/// Memory that a volume takes without its name and map.
const VOLUME_MEMORY: usize = 320;

/// Longest name of a volume: what NBD clients can ask for.
pub const VOLUME_NAME_BYTES_MAX: usize = 255;

/// Largest volume: 64 PiB.
pub const VOLUME_BYTES_MAX: u64 = 1 << 56;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its size, a multiple of [`VOLUME_BLOCK_BYTES`].
    pub bytes: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// Where it was cut: by which frame, and from which block on. A later cut that is as low says
    /// it for those before.
    pub cuts: Vec<(u64, u64)>,
    /// Where the mappings of its blocks are.
    pub block_index: Arc<BlockIndex>,
}

impl Volume {
    /// Its size in blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.bytes / VOLUME_BLOCK_BYTES
    }

    /// True when `block` was beyond the volume's end at some time after the frame `since`: what was
    /// written before is gone.
    #[must_use]
    pub fn was_cut(&self, block: u64, since: u64) -> bool {
        block >= self.blocks()
            || self.cuts.iter().any(|&(sequence, blocks)| sequence > since && blocks <= block)
    }

    /// Its mappings as a recipe.
    pub(crate) fn recipe(&self) -> Vec<Pieces> {
        gather(self.block_index.mapped(0..u64::MAX).map(|(_, address)| address))
    }
}

/// Addresses as pieces; neighbours are one.
pub(crate) fn gather(addresses: impl Iterator<Item = Address>) -> Vec<Pieces> {
    let mut all: Vec<Pieces> = Vec::new();
    for address in addresses {
        match all.last_mut() {
            Some(last)
                if last.container == address.container
                    && last.first.checked_add(last.count) == Some(address.slot) =>
            {
                last.count += 1
            }
            _ => all.push(Pieces { container: address.container, first: address.slot, count: 1 }),
        }
    }
    all
}

impl Tables {
    /// The volume called `name`, and its number.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn volume(&self, name: &str) -> Result<(u64, &Volume)> {
        let found = self
            .volumes
            .iter()
            .find(|(_, volume)| volume.name == name)
            .map(|(&id, volume)| (id, volume));
        found.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("there is no volume '{}'", name.escape_debug()))
        })
    }

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
                self.differences.push(Difference { added, recipe, at: self.versions });
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
        if self.next_volume == 0 && !self.late && self.damaged.is_empty() {
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

/// Mappings that a record added and removed.
#[derive(Default)]
struct Changed {
    came: Vec<Pieces>,
    went: Vec<Pieces>,
}

fn change(
    volume: &mut Volume,
    pages: &mut Pages,
    sequence: u64,
    record: &Record,
) -> Result<Changed> {
    let mut changed = Changed::default();
    match record {
        Record::VolumeResized { bytes, .. } => {
            let blocks = bytes / VOLUME_BLOCK_BYTES;
            if *bytes < volume.bytes {
                changed.went = unmap(volume, pages, blocks..u64::MAX);
                volume.cuts.retain(|&(_, lower)| lower < blocks);
                volume.cuts.push((sequence, blocks));
            }
            volume.bytes = *bytes;
        }
        Record::VolumeRenamed { name, .. } => volume.name.clone_from(name),
        Record::VolumeDeleted { .. } => changed.went = unmap(volume, pages, 0..u64::MAX),
        Record::Unmapped { first, count, .. } => {
            changed.went = unmap(volume, pages, *first..first.saturating_add(*count))
        }
        Record::Mapped { changes, .. } => {
            let (blocks, block_index) = (volume.blocks(), Arc::make_mut(&mut volume.block_index));
            for remapped in changes {
                if remapped.block >= blocks
                    || block_index.set(remapped.block, remapped.new, pages) != remapped.old
                {
                    return Err(corrupt(format!(
                        "block {} of volume '{}' had another mapping than the log says",
                        remapped.block, volume.name
                    )));
                }
            }
            changed.came = gather(changes.iter().filter_map(|remapped| remapped.new));
            changed.went = gather(changes.iter().filter_map(|remapped| remapped.old));
        }
        _ => {}
    }
    Ok(changed)
}

fn unmap(volume: &mut Volume, pages: &mut Pages, blocks: std::ops::Range<u64>) -> Vec<Pieces> {
    let mapped: Vec<(u64, Address)> = volume.block_index.mapped(blocks).collect();
    if !mapped.is_empty() {
        let block_index = Arc::make_mut(&mut volume.block_index);
        mapped.iter().for_each(|&(block, _)| {
            block_index.set(block, None, pages);
        });
    }
    gather(mapped.into_iter().map(|(_, address)| address))
}

/// The size that a volume gets when somebody asks for `bytes`: whole blocks.
///
/// # Errors
/// `InvalidInput` for nothing, and for more than [`VOLUME_BYTES_MAX`].
pub fn volume_bytes(bytes: u64) -> Result<u64> {
    match bytes.checked_next_multiple_of(VOLUME_BLOCK_BYTES) {
        Some(whole) if whole > 0 && whole <= VOLUME_BYTES_MAX => Ok(whole),
        Some(0) => Err(Error::new(Kind::InvalidInput, "a volume has at least one byte")),
        _ => Err(Error::new(Kind::InvalidInput, "a volume can't be larger than 64 PiB")),
    }
}

fn valid_volume_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > VOLUME_NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let message = format!(
            "a volume's name has 1 to {VOLUME_NAME_BYTES_MAX} bytes and no control characters"
        );
        return Err(Error::new(Kind::InvalidInput, message));
    }
    Ok(())
}

/// Volume verbs: each takes the commit lock only, and is durable on return.
impl Archive {
    /// Makes a volume of `bytes` bytes, rounded up to whole blocks, all zeroes. `now` is in seconds
    /// since 1970.
    ///
    /// # Errors
    /// `Exists`, `InvalidInput`, and as for every change.
    pub fn create_volume(&self, name: &str, bytes: u64, now: u64) -> Result<()> {
        valid_volume_name(name)?;
        let bytes = volume_bytes(bytes)?;
        let decide = |tables: &Tables| {
            free_name(tables, name)?;
            Ok(vec![Record::VolumeCreated {
                id: tables.next_volume.max(1),
                name: name.to_owned(),
                bytes,
                created: now,
            }])
        };
        self.commit(false, decide).map(|_| ())
    }

    /// Changes the size of a volume. What lies beyond a smaller size is gone.
    ///
    /// # Errors
    /// `NotFound`, `InvalidInput`, and as for every change.
    pub fn resize_volume(&self, name: &str, bytes: u64) -> Result<()> {
        let bytes = volume_bytes(bytes)?;
        self.commit(true, |tables| {
            Ok(vec![Record::VolumeResized { id: tables.volume(name)?.0, bytes }])
        })
        .map(|_| ())
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `InvalidInput`, and as for every change.
    pub fn rename_volume(&self, from: &str, to: &str) -> Result<()> {
        valid_volume_name(to)?;
        let decide = |tables: &Tables| {
            let (id, _) = tables.volume(from)?;
            free_name(tables, to)?;
            Ok(vec![Record::VolumeRenamed { id, name: to.to_owned() }])
        };
        self.commit(true, decide).map(|_| ())
    }

    /// Deletes a volume; its space comes back with garbage collection.
    ///
    /// # Errors
    /// `NotFound`, and as for every change.
    pub fn delete_volume(&self, name: &str) -> Result<()> {
        self.commit(true, |tables| Ok(vec![Record::VolumeDeleted { id: tables.volume(name)?.0 }]))
            .map(|_| ())
    }
}

fn free_name(tables: &Tables, name: &str) -> Result<()> {
    match tables.volume(name) {
        Ok(_) => Err(Error::new(
            Kind::Exists,
            format!("there is a volume '{}' already", name.escape_debug()),
        )),
        Err(_) => Ok(()),
    }
}
