//! Volumes, pending discards, and the changes of the catalogue.

use onefold_core::{Block, Error, Kind, Result, VolumeId, VolumeLimits};
pub use onefold_stream::{NAME_MAX, NO_DEDUP_MAX, NoDedup, VOLUME_BLOCKS_MAX};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    FIRST_DOMAIN,
    page::{DISCARD_BYTES, MAP_BYTES, PageId, Pointer, Root, Table, VOLUME_BYTES, body, body_mut},
    record::WindowNumber,
};

/// Most volumes of a store, so that a hostile superblock costs bounded memory.
pub const VOLUMES_MAX: u32 = 65_536;

/// Most pending discards; when they are this many, new long ranges wait.
pub const DISCARDS_MAX: u32 = 65_536;

/// Largest quota of a volume, in blocks.
pub const QUOTA_MAX: u64 = VOLUME_BLOCKS_MAX - 1;

/// A volume in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its number, never used again.
    pub id: VolumeId,
    /// Its name; empty once it is deleted and only its blocks are still to be freed.
    pub name: String,
    /// Its size in blocks.
    pub blocks: u64,
    /// Its map.
    pub map: Root,
    /// Its blocks that are not deduplicated.
    pub no_dedup: NoDedup,
    /// How fast clients may use it. Programs that do not know of this keep it zero.
    pub limits: VolumeLimits,
    /// Blocks that it may map, at most [`QUOTA_MAX`]; 0 for any number. Only in stores whose maps share
    /// pages.
    pub quota: u64,
    /// The domain that its data belongs to. Only stores with domains have another one than 0.
    pub domain: u32,
    /// Its place among maps that share pages.
    pub sharing: Sharing,
}

/// The kind of a map of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MapKind {
    /// A volume.
    #[default]
    Volume,
    /// A snapshot of a volume; never written.
    Snapshot,
    /// The map of what was deleted, taken apart in the background. It has no name.
    Leaving,
    /// A snapshot that is being received. It is called as its volume and the snapshot will be, like
    /// `vm1@monday`, and no client sees it.
    Receiving,
}

/// How a map shares pages with others. Stores that share none have the default alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sharing {
    /// The number that its pages bear, if not its own: that of the volume where its family began.
    pub family: u32,
    /// Of a snapshot or a clone: the number of the map that it was made from. Of what is being
    /// received: the snapshot that it is based on, or 0. Of a replica: the snapshot that it holds.
    pub parent: u32,
    /// Addresses that have a block; `None` when nobody has counted them since the store began to
    /// share pages.
    pub mapped: Option<u64>,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: u64,
    /// Its moment: it holds exactly the windows up to this one of its origin.
    pub moment: WindowNumber,
    /// Tells it from any other snapshot, also of a store that went back to an older image.
    pub guid: [u8; 16],
    /// The kind.
    pub kind: MapKind,
    /// True for a volume that only a receive changes.
    pub replica: bool,
    /// Of a leaving map: the number of its top page on its level. Of what is being received: all
    /// blocks before this one are there.
    pub cursor: u64,
    /// Addresses that are known to be lost. Programs that do not know of this write zero, so there may
    /// be more; what a repair loses is added, so there may be less.
    pub lost: u64,
    /// Pages of its map, in memory alone; `None` when nobody has counted them since the store was opened.
    pub pages: Option<u64>,
}

/// In [`RawSharing::flags`]: a replica.
const REPLICA: u8 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawVolume {
    id: U32,
    height: u8,
    no_dedup_ranges: u8,
    name_bytes: U16,
    blocks: U64,
    map: [u8; Pointer::BYTES],
    name: [u8; 256],
    no_dedup: [u8; 16 * NO_DEDUP_MAX],
    limit_iops: U32,
    domain: U32,
    limit_bytes: U64,
}

const _: () = assert!(size_of::<RawVolume>() == VOLUME_BYTES);

/// What stands behind the first 488 bytes of [`RawVolume`] in a store that shares pages; its last
/// 16 bytes, the limits, come last.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawSharing {
    family: U32,
    parent: U32,
    mapped: U64,
    made_ms: U64,
    moment: U64,
    guid: [u8; 16],
    kind: u8,
    flags: u8,
    quota: [u8; 6],
    cursor: U64,
    lost: U64,
}

const _: () = assert!(size_of::<RawVolume>() + size_of::<RawSharing>() == MAP_BYTES);

/// In [`RawSharing::mapped`]: nobody has counted.
const UNCOUNTED: u64 = u64::MAX;

impl Volume {
    /// The map of what was deleted, in the family `family`, whose top page is number `cursor` of its
    /// level. It names no domain.
    #[must_use]
    pub fn leaving(id: VolumeId, family: u32, cursor: u64, map: Root) -> Volume {
        Volume {
            id,
            name: String::new(),
            blocks: 0,
            map,
            no_dedup: NoDedup::default(),
            limits: VolumeLimits::default(),
            quota: 0,
            domain: FIRST_DOMAIN,
            sharing: Sharing { family, kind: MapKind::Leaving, cursor, ..Sharing::default() },
        }
    }

    /// The same, of a domain, if the store's leaving maps name theirs.
    pub(crate) fn of_domain(self, domain: Option<u32>) -> Volume {
        Volume { domain: domain.unwrap_or(self.domain), ..self }
    }

    /// The number that the pages of its map bear.
    #[must_use]
    pub fn family(&self) -> u32 {
        if self.sharing.family == 0 { self.id.0 } else { self.sharing.family }
    }

    /// The place of the top page of its map in the family, and that page; `None` for an empty map.
    #[must_use]
    pub fn top(&self) -> Option<(PageId, Pointer)> {
        let level = self.map.height.checked_sub(1)?;
        let (volume, index) = (self.family(), self.top_index());
        Some((PageId { table: Table::Map, volume, level, index }, self.map.page))
    }

    /// Addresses that have a block, where somebody has counted them.
    #[must_use]
    pub fn mapped(&self) -> Option<u64> {
        if self.map.height == 0 { Some(0) } else { self.sharing.mapped }
    }

    /// Pages of its map, where somebody has counted them.
    #[must_use]
    pub fn pages(&self) -> Option<u64> {
        if self.map.height == 0 { Some(0) } else { self.sharing.pages }
    }

    /// True for a volume that was made from a snapshot or another volume.
    #[must_use]
    pub fn is_clone(&self) -> bool {
        let Sharing { kind, parent, replica, .. } = self.sharing;
        kind == MapKind::Volume && parent != 0 && !replica
    }

    /// True for the map of what was deleted.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.sharing.kind == MapKind::Leaving
    }

    /// True for the map of what was deleted, as long as it has pages.
    pub(crate) fn has_pages_to_leave(&self) -> bool {
        self.is_leaving() && self.map.height > 0
    }

    /// The number of the top page of its map on its level.
    #[must_use]
    pub fn top_index(&self) -> u64 {
        if self.is_leaving() { self.sharing.cursor } else { 0 }
    }

    /// True for a map of this kind that was not deleted.
    #[must_use]
    pub fn is_named(&self, kind: MapKind) -> bool {
        self.sharing.kind == kind && !self.name.is_empty()
    }

    /// True for a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.sharing.kind == MapKind::Snapshot
    }

    /// Writes the entry number `slot` of a leaf of table 10.
    pub fn set_shared(&self, page: &mut Block, slot: u64) {
        let raw = RawSharing {
            family: U32::new(self.sharing.family),
            parent: U32::new(self.sharing.parent),
            mapped: U64::new(self.sharing.mapped.unwrap_or(UNCOUNTED)),
            made_ms: U64::new(self.sharing.made_ms),
            moment: U64::new(self.sharing.moment.0),
            guid: self.sharing.guid,
            kind: match self.sharing.kind {
                MapKind::Volume => 0,
                MapKind::Snapshot => 1,
                MapKind::Leaving => 2,
                MapKind::Receiving => 3,
            },
            flags: if self.sharing.replica { REPLICA } else { 0 },
            quota: super::record::low_bytes(self.quota),
            cursor: U64::new(self.sharing.cursor),
            lost: U64::new(self.sharing.lost),
        };
        let at = &mut body_mut(page)[slot as usize * MAP_BYTES..][..MAP_BYTES];
        at[..VOLUME_BYTES].copy_from_slice(self.raw().as_bytes());
        at[VOLUME_BYTES..].copy_from_slice(raw.as_bytes());
    }

    /// Makes place number `slot` of a leaf of table 10 free.
    pub fn clear_shared(page: &mut Block, slot: u64) {
        body_mut(page)[slot as usize * MAP_BYTES..][..MAP_BYTES].fill(0);
    }

    /// Reads the entry number `slot` of a leaf of table 10: `Some(None)` for a free place.
    #[must_use]
    pub fn get_shared(page: &super::page::Page, slot: u64) -> Option<Option<Volume>> {
        let at = &body(page)[slot as usize * MAP_BYTES..][..MAP_BYTES];
        if at.iter().all(|&byte| byte == 0) {
            return Some(None);
        }
        let mut volume = Volume::from_raw(RawVolume::read_from_bytes(&at[..VOLUME_BYTES]).ok()?)?;
        let raw = RawSharing::read_from_bytes(&at[VOLUME_BYTES..]).ok()?;
        let kind = match raw.kind {
            0 => MapKind::Volume,
            1 => MapKind::Snapshot,
            2 => MapKind::Leaving,
            3 => MapKind::Receiving,
            _ => return None,
        };
        let named = !volume.name.is_empty();
        let sound = volume.id.0 != 0
            && named == (kind != MapKind::Leaving)
            && raw.moment.get() <= WindowNumber::MAX.0
            && (raw.cursor.get() == 0 || matches!(kind, MapKind::Leaving | MapKind::Receiving))
            && raw.cursor.get() <= VOLUME_BLOCKS_MAX
            && (raw.mapped.get() <= VOLUME_BLOCKS_MAX || raw.mapped.get() == UNCOUNTED)
            && raw.lost.get() <= VOLUME_BLOCKS_MAX
            && (raw.flags == 0 || raw.flags == REPLICA && kind == MapKind::Volume);
        volume.quota = super::record::from_low_bytes(&raw.quota);
        let mapped = Some(raw.mapped.get()).filter(|&mapped| mapped != UNCOUNTED);
        volume.sharing = Sharing {
            family: raw.family.get(),
            parent: raw.parent.get(),
            mapped,
            made_ms: raw.made_ms.get(),
            moment: WindowNumber(raw.moment.get()),
            guid: raw.guid,
            kind,
            replica: raw.flags == REPLICA,
            cursor: raw.cursor.get(),
            lost: raw.lost.get(),
            pages: None,
        };
        sound.then_some(Some(volume))
    }
}

impl Volume {
    /// Writes the entry number `slot` of a leaf.
    pub fn set(&self, page: &mut Block, slot: u64) {
        body_mut(page)[slot as usize * VOLUME_BYTES..][..VOLUME_BYTES]
            .copy_from_slice(self.raw().as_bytes());
    }

    fn raw(&self) -> RawVolume {
        let mut name = [0; 256];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let mut no_dedup = [0; 16 * NO_DEDUP_MAX];
        let no_dedup_ranges = self.no_dedup.encode(&mut no_dedup);
        RawVolume {
            id: U32::new(self.id.0),
            height: self.map.height,
            no_dedup_ranges,
            name_bytes: U16::new(self.name.len() as u16),
            blocks: U64::new(self.blocks),
            map: self.map.page.encode(),
            name,
            no_dedup,
            limit_iops: U32::new(self.limits.iops),
            domain: U32::new(self.domain),
            limit_bytes: U64::new(self.limits.bytes),
        }
    }

    /// Reads the entry number `slot` of a leaf.
    #[must_use]
    pub fn get(page: &super::page::Page, slot: u64) -> Option<Volume> {
        let at = &body(page)[slot as usize * VOLUME_BYTES..][..VOLUME_BYTES];
        Volume::from_raw(RawVolume::read_from_bytes(at).ok()?)
    }

    fn from_raw(raw: RawVolume) -> Option<Volume> {
        let name = std::str::from_utf8(raw.name.get(..usize::from(raw.name_bytes.get()))?)
            .ok()?
            .to_owned();
        let map = Root { page: Pointer::decode(&raw.map), height: raw.height };
        let sound = map.height <= 9
            && map.page.is_none() == (map.height == 0)
            && raw.blocks.get() <= VOLUME_BLOCKS_MAX
            // A volume that is being deleted has no name any more.
            && (name.is_empty() || check_name(&name).is_ok());
        let no_dedup = NoDedup::decode(raw.no_dedup_ranges, &raw.no_dedup)?;
        let limits = VolumeLimits { iops: raw.limit_iops.get(), bytes: raw.limit_bytes.get() };
        sound.then_some(Volume {
            id: VolumeId(raw.id.get()),
            name,
            blocks: raw.blocks.get(),
            map,
            no_dedup,
            limits,
            quota: 0,
            domain: raw.domain.get(),
            sharing: Sharing::default(),
        })
    }
}

/// A long range that is being applied to the map in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    /// The volume.
    pub volume: VolumeId,
    /// Zeroes that were written, or a hole.
    pub keep: bool,
    /// First address that is still to be applied.
    pub start: u64,
    /// End of the range.
    pub end: u64,
    /// The window of the range: map pages born in it or later contain it already.
    pub window: WindowNumber,
}

impl Discard {
    /// Writes the entry number `slot` of a leaf.
    pub fn set(&self, page: &mut Block, slot: u64) {
        let at = &mut body_mut(page)[slot as usize * DISCARD_BYTES..][..DISCARD_BYTES];
        at[..4].copy_from_slice(&self.volume.0.to_le_bytes());
        at[4] = u8::from(self.keep);
        at[8..16].copy_from_slice(&self.start.to_le_bytes());
        at[16..24].copy_from_slice(&self.end.to_le_bytes());
        at[24..].copy_from_slice(&self.window.0.to_le_bytes());
    }

    /// Reads the entry number `slot` of a leaf.
    #[must_use]
    pub fn get(page: &super::page::Page, slot: u64) -> Option<Discard> {
        let at = &body(page)[slot as usize * DISCARD_BYTES..][..DISCARD_BYTES];
        let number = |n: usize| super::record::from_low_bytes(&at[n..n + 8]);
        let volume = VolumeId(super::record::from_low_bytes(&at[..4]) as u32);
        let discard = Discard {
            volume,
            keep: at[4] == 1,
            start: number(8),
            end: number(16),
            window: WindowNumber(number(24)),
        };
        (discard.start < discard.end && discard.end <= VOLUME_BLOCKS_MAX).then_some(discard)
    }
}

/// A change of the catalogue; travels as the content of a carrier that a catalogue record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogueChange {
    /// A new volume.
    Create {
        /// Its number.
        id: VolumeId,
        /// Its name.
        name: String,
        /// Its size.
        blocks: u64,
        /// Its blocks that are not deduplicated.
        no_dedup: NoDedup,
        /// How fast clients may use it.
        limits: VolumeLimits,
        /// Blocks that it may map; 0 for any number.
        quota: u64,
        /// The domain that its data belongs to.
        domain: u32,
    },
    /// A new size. Blocks beyond it are dropped by a range record of the same window.
    Resize {
        /// Which.
        id: VolumeId,
        /// The size.
        blocks: u64,
    },
    /// A new name.
    Rename {
        /// Which.
        id: VolumeId,
        /// The name.
        name: String,
    },
    /// The volume is gone; its blocks are dropped by a range record of the same window.
    Delete {
        /// Which.
        id: VolumeId,
    },
    /// Other critical ranges, limits or quota; what was written before stays as it is.
    Settings {
        /// Which.
        id: VolumeId,
        /// All ranges.
        no_dedup: NoDedup,
        /// Both limits.
        limits: VolumeLimits,
        /// Blocks that it may map; 0 for any number.
        quota: u64,
    },
}

const CHANGE_MAGIC: u32 = 0x3176_464f; // "OFv1"

/// Where a change has its critical ranges: behind the longest name.
const CHANGE_NO_DEDUP: usize = 280;

/// Where it has its limits: behind the critical ranges.
const CHANGE_LIMITS: usize = CHANGE_NO_DEDUP + 16 * NO_DEDUP_MAX;

/// Where it has its quota: behind the limits.
const CHANGE_QUOTA: usize = CHANGE_LIMITS + 16;

impl CatalogueChange {
    /// The content of the carrier.
    #[must_use]
    pub fn encode(&self) -> Box<Block> {
        let none = (&NoDedup::default(), VolumeLimits::default(), 0);
        let domain = match self {
            CatalogueChange::Create { domain, .. } => *domain,
            _ => FIRST_DOMAIN,
        };
        let (kind, id, blocks, name, (no_dedup, limits, quota)) = match self {
            CatalogueChange::Create { id, name, blocks, no_dedup, limits, quota, .. } => {
                (1u8, id, *blocks, name.as_str(), (no_dedup, *limits, *quota))
            }
            CatalogueChange::Resize { id, blocks } => (2, id, *blocks, "", none),
            CatalogueChange::Rename { id, name } => (3, id, 0, name.as_str(), none),
            CatalogueChange::Delete { id } => (4, id, 0, "", none),
            CatalogueChange::Settings { id, no_dedup, limits, quota } => {
                (5, id, 0, "", (no_dedup, *limits, *quota))
            }
        };
        let mut block = Block::zeroed();
        block.0[..4].copy_from_slice(&CHANGE_MAGIC.to_le_bytes());
        block.0[4] = kind;
        block.0[6..8].copy_from_slice(&(name.len() as u16).to_le_bytes());
        block.0[8..12].copy_from_slice(&id.0.to_le_bytes());
        block.0[12..16].copy_from_slice(&domain.to_le_bytes());
        block.0[16..24].copy_from_slice(&blocks.to_le_bytes());
        block.0[24..24 + name.len()].copy_from_slice(name.as_bytes());
        block.0[5] = no_dedup.encode(&mut block.0[CHANGE_NO_DEDUP..CHANGE_LIMITS]);
        block.0[CHANGE_LIMITS..][..4].copy_from_slice(&limits.iops.to_le_bytes());
        block.0[CHANGE_LIMITS + 8..][..8].copy_from_slice(&limits.bytes.to_le_bytes());
        block.0[CHANGE_QUOTA..][..8].copy_from_slice(&quota.to_le_bytes());
        block
    }

    /// The change in a carrier's content.
    ///
    /// # Errors
    /// `Corrupt` when it is none.
    pub fn decode(block: &Block) -> Result<CatalogueChange> {
        let number = |from: usize, to: usize| super::record::from_low_bytes(&block.0[from..to]);
        let parse = || {
            let id = VolumeId(number(8, 12) as u32);
            let blocks = number(16, 24);
            let length = number(6, 8) as usize;
            let name = || {
                let name = std::str::from_utf8(block.0[24..].get(..length.min(NAME_MAX))?).ok()?;
                check_name(name).ok().map(|()| name.to_owned())
            };
            let quota = number(CHANGE_QUOTA, CHANGE_QUOTA + 8);
            let is_change = number(0, 4) == u64::from(CHANGE_MAGIC);
            if !is_change || blocks > VOLUME_BLOCKS_MAX || quota > QUOTA_MAX {
                return None;
            }
            let no_dedup = NoDedup::decode(block.0[5], &block.0[CHANGE_NO_DEDUP..CHANGE_LIMITS])?;
            let limits = VolumeLimits {
                iops: number(CHANGE_LIMITS, CHANGE_LIMITS + 4) as u32,
                bytes: number(CHANGE_LIMITS + 8, CHANGE_LIMITS + 16),
            };
            Some(match block.0[4] {
                1 => {
                    let domain = number(12, 16) as u32;
                    let name = name()?;
                    CatalogueChange::Create { id, name, blocks, no_dedup, limits, quota, domain }
                }
                2 => CatalogueChange::Resize { id, blocks },
                3 => CatalogueChange::Rename { id, name: name()? },
                4 => CatalogueChange::Delete { id },
                5 => CatalogueChange::Settings { id, no_dedup, limits, quota },
                _ => return None,
            })
        };
        parse().ok_or_else(|| Error::new(Kind::Corrupt, "a catalogue record can't be read"))
    }
}

/// Says why a name can't be a volume's.
///
/// # Errors
/// `InvalidInput` with the reason.
pub fn check_name(name: &str) -> Result<()> {
    let wrong = if name.is_empty() {
        "is empty"
    } else if name.len() > NAME_MAX {
        "is longer than 255 bytes"
    } else if name.chars().any(char::is_control) {
        "has control characters"
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::InvalidInput, format!("the volume name {wrong}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_discards_and_changes_survive_their_encoding() {
        let mut page = Block::zeroed();
        let volume = Volume {
            id: VolumeId(7),
            name: "é".repeat(127),
            blocks: VOLUME_BLOCKS_MAX,
            map: Root {
                page: Pointer {
                    address: onefold_core::Pba(5),
                    birth: WindowNumber(6),
                    checksum: 7,
                    ..Pointer::default()
                },
                height: 3,
            },
            no_dedup: NoDedup::new((0..12).map(|n| n * 10..n * 10 + 9).collect()).unwrap(),
            limits: VolumeLimits { iops: u32::MAX, bytes: u64::MAX },
            quota: 0,
            domain: 7,
            sharing: Sharing::default(),
        };
        let limits = VolumeLimits { iops: 500, bytes: 10 << 20 };
        volume.set(&mut page, 7);
        assert_eq!(Volume::get(&page, 7), Some(volume.clone()));
        let volume = Volume { quota: QUOTA_MAX, ..volume };
        let mut page = Block::zeroed();
        volume.set_shared(&mut page, 6);
        assert_eq!(Volume::get_shared(&page, 6), Some(Some(volume)));
        let discard = Discard {
            volume: VolumeId(3),
            keep: true,
            start: 5,
            end: 1 << 48,
            window: WindowNumber(8),
        };
        discard.set(&mut page, 125);
        assert_eq!(Discard::get(&page, 125), Some(discard));
        let no_dedup = NoDedup::new(vec![7..9, 0..3, 3..5]).unwrap();
        assert_eq!(no_dedup.ranges(), [0..5, 7..9]);
        for change in [
            CatalogueChange::Create {
                id: VolumeId(1),
                name: "a".repeat(255),
                blocks: 12,
                no_dedup: NoDedup::default(),
                limits: VolumeLimits::default(),
                quota: 0,
                domain: 0,
            },
            CatalogueChange::Create {
                id: VolumeId(1),
                name: "a".repeat(255),
                blocks: 12,
                no_dedup: no_dedup.clone(),
                limits,
                quota: 9,
                domain: 65_535,
            },
            CatalogueChange::Settings {
                id: VolumeId(1),
                no_dedup: no_dedup.clone(),
                limits,
                quota: QUOTA_MAX,
            },
            CatalogueChange::Resize { id: VolumeId(1), blocks: 99 },
            CatalogueChange::Rename { id: VolumeId(1), name: "b".into() },
            CatalogueChange::Delete { id: VolumeId(1) },
        ] {
            assert_eq!(CatalogueChange::decode(&change.encode()).unwrap(), change);
        }
        assert!(CatalogueChange::decode(&Block::zeroed()).is_err());
    }

    #[test]
    fn a_name_that_no_client_can_give_is_damage() {
        for name in ["", "a\u{1b}[2J", "line\nline"] {
            let create = CatalogueChange::Create {
                id: VolumeId(1),
                name: name.into(),
                blocks: 1,
                no_dedup: NoDedup::default(),
                limits: VolumeLimits::default(),
                quota: 0,
                domain: 0,
            };
            assert!(CatalogueChange::decode(&create.encode()).is_err(), "{name:?}");
            let rename = CatalogueChange::Rename { id: VolumeId(1), name: name.into() };
            assert!(CatalogueChange::decode(&rename.encode()).is_err(), "{name:?}");
            let mut page = Block::zeroed();
            let volume = Volume {
                id: VolumeId(1),
                name: name.into(),
                blocks: 1,
                map: Root::default(),
                no_dedup: NoDedup::default(),
                limits: VolumeLimits::default(),
                quota: 0,
                domain: 0,
                sharing: Sharing::default(),
            };
            volume.set(&mut page, 0);
            assert_eq!(Volume::get(&page, 0).is_none(), !name.is_empty(), "{name:?}");
        }
    }
}
