//! Pages of the structured tables: shadow-paged, each with its identity, its birth and a checksum
//! that its parent repeats.

use onefold_core::{Block, Error, Fingerprint, Kind, Pba, Result, checksum};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    Identity,
    record::{WindowNumber, from_low_bytes, low_bytes},
    sealing::What,
    zone_bitmap::ZoneBitmap,
};

const MAGIC: u32 = 0x3170_464f; // "OFp1"

/// Bytes of the header; the rest of the page is its body.
pub const HEADER_BYTES: usize = 64;

/// Bytes of the body.
pub const BODY_BYTES: usize = 4096 - HEADER_BYTES;

/// Pointers in an inner page.
pub const FANOUT: u64 = (BODY_BYTES / Pointer::BYTES) as u64;

/// Bits of a fingerprint that the index keeps: chance agreement of two of 2^28 blocks costs a page
/// read for one lookup in 256.
pub const HASH_BITS: u32 = 36;

/// Bytes of the entry of a volume.
pub const VOLUME_BYTES: usize = 504;

/// Bytes of the entry of a map in the catalogue of a store that shares pages.
pub const MAP_BYTES: usize = 576;

/// Bytes of the account of a shared page.
pub const SHARE_BYTES: usize = 32;

/// Bytes of the entry of a pending discard.
pub const DISCARD_BYTES: usize = 32;

/// Which table a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    /// Logical to physical addresses of one volume.
    Map = 1,
    /// Reference count of each physical block.
    References = 2,
    /// Fingerprint of each physical block.
    Fingerprints = 3,
    /// Allocation bitmap of each zone.
    Zones = 4,
    /// The volumes.
    Catalogue = 5,
    /// Long ranges that are still to be applied.
    Discards = 6,
    /// The part of the fingerprint index that is on disk.
    Index = 7,
    /// The accounts of map pages that several maps share.
    Shares = 8,
    /// The volumes, snapshots and leaving maps of a store that shares pages; 9 is left free for
    /// fragments.
    Maps = 10,
}

impl Table {
    /// All tables.
    pub const ALL: [Table; 9] = [
        Table::Map,
        Table::References,
        Table::Fingerprints,
        Table::Zones,
        Table::Catalogue,
        Table::Discards,
        Table::Index,
        Table::Shares,
        Table::Maps,
    ];

    /// Entries of a leaf.
    #[must_use]
    pub fn per_leaf(self) -> u64 {
        (BODY_BYTES / self.entry_bytes()) as u64
    }

    /// Bytes of an entry of a leaf.
    #[must_use]
    pub fn entry_bytes(self) -> usize {
        match self {
            Table::Map => MapEntry::BYTES,
            Table::References => ReferenceEntry::BYTES,
            Table::Fingerprints => size_of::<Fingerprint>(),
            Table::Zones => ZoneEntry::BYTES,
            Table::Catalogue => VOLUME_BYTES,
            Table::Discards => DISCARD_BYTES,
            // A page of a hash table: what lies in it is counted in it.
            Table::Index => BODY_BYTES,
            Table::Shares => SHARE_BYTES,
            Table::Maps => MAP_BYTES,
        }
    }
}

/// The identity of a page: its table, the volume when the table is a map, its level (0 for leaves)
/// and its number on that level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId {
    /// The table.
    pub table: Table,
    /// The volume of a map, else 0. The map of a volume keeps this number when it is shared by a
    /// clone.
    pub volume: u32,
    /// 0 for leaves.
    pub level: u8,
    /// Number on its level.
    pub index: u64,
}

/// Where a page is, since when, and its checksum: what a parent holds of its child. A lost write
/// leaves a page that does not agree.
///
/// Of a leaf that is written in place it tells which life of the leaf this is; what the leaf holds
/// changes without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pointer {
    /// Address of the page; 0 for none.
    pub address: Pba,
    /// True for a leaf that is written in place.
    pub in_place: bool,
    /// The last window that the page contains; of a leaf in place, that of the checkpoint that
    /// made it.
    pub birth: WindowNumber,
    /// Checksum of the page; of a leaf in place, 24 bits that differ from checkpoint to
    /// checkpoint.
    pub checksum: u64,
}

/// The root of a table: its top page and its height (0 when empty, 1 when the top page is a leaf).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Root {
    /// The top page.
    pub page: Pointer,
    /// Levels.
    pub height: u8,
}

/// Set in the encoded birth of a leaf that is written in place.
const IN_PLACE: u64 = 1 << 63;

impl Pointer {
    /// Bytes of an encoded pointer.
    pub const BYTES: usize = 24;

    /// True for no page.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.address.0 == 0
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let birth = if self.in_place { self.birth.0 | IN_PLACE } else { self.birth.0 };
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.address.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&birth.to_le_bytes());
        bytes[16..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// The pointer in its bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Pointer {
        let birth = from_low_bytes(&bytes[8..16]);
        Pointer {
            address: Pba(from_low_bytes(&bytes[..8])),
            in_place: birth & IN_PLACE != 0,
            birth: WindowNumber(birth & !IN_PLACE),
            checksum: from_low_bytes(&bytes[16..24]),
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: U32,
    table: u8,
    level: u8,
    reserved: U16,
    volume: U32,
    generation: U32,
    store: U64,
    index: U64,
    address: U64,
    birth: U64,
    checksum: U64,
    reserved_three: U64,
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);

/// The bytes of a page. In memory pages lie close together; only what is read or written directly
/// must lie on a boundary, as a [`Block`] does.
pub type Page = [u8; 4096];

/// Where a leaf of a map says under which data key its blocks are.
const GENERATION_AT: usize = 12;

/// The generation of its domain's data key that all blocks of a leaf of a map have at least: that of the newest
/// key when the leaf was looked through. 0 in all other pages.
#[must_use]
pub fn generation(page: &Page) -> u32 {
    from_low_bytes(&page[GENERATION_AT..GENERATION_AT + 4]) as u32
}

/// Notes of a leaf of a map that no block which it names is under an older data key than this. New versions of
/// the leaf keep it.
pub fn set_generation(page: &mut Page, generation: u32) {
    page[GENERATION_AT..GENERATION_AT + 4].copy_from_slice(&generation.to_le_bytes());
}

/// Where the tag of a sealed page is; a pointer keeps its first 8 bytes, in place of the checksum.
const TAG_AT: usize = 48;

/// Completes the header of a page whose body is filled, and gives the pointer to it. What
/// [`set_generation`] noted stays. In a sealed store the page is sealed then.
///
/// # Errors
/// `Io`: the library of ciphers refuses.
pub fn seal(
    identity: &Identity,
    id: PageId,
    address: Pba,
    birth: WindowNumber,
    page: &mut Block,
) -> Result<Pointer> {
    let mut raw = Raw {
        magic: U32::new(MAGIC),
        table: id.table as u8,
        level: id.level,
        reserved: U16::new(0),
        volume: U32::new(id.volume),
        generation: U32::new(generation(&page.0)),
        store: U64::new(identity.id),
        index: U64::new(id.index),
        address: U64::new(address.0),
        birth: U64::new(birth.0),
        checksum: U64::new(0),
        reserved_three: U64::new(0),
    };
    page.0[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    if let Some(sealing) = &identity.sealing {
        let tag = sealing.seal_block(What::Page, address, TAG_AT, &mut page.0)?;
        let checksum = from_low_bytes(&tag[..8]);
        return Ok(Pointer { address, in_place: false, birth, checksum });
    }
    let checksum = checksum::fast(identity.key, &page.0);
    raw.checksum = U64::new(checksum);
    page.0[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    Ok(Pointer { address, in_place: false, birth, checksum })
}

/// Opens a page of a sealed store that was read at `at`; the tag stays where it is. False when it is
/// none. A plain page stays as it is.
#[must_use]
pub fn open(identity: &Identity, at: Pba, page: &mut Page) -> bool {
    let sealing = identity.sealing.as_ref();
    sealing.is_none_or(|sealing| sealing.open_block(What::Page, at, TAG_AT, page))
}

/// Compares a page that was read with what its parent says of it. One of a sealed store is opened.
///
/// # Errors
/// `Corrupt` with what differs.
pub fn verify(identity: &Identity, id: PageId, pointer: &Pointer, page: &mut Page) -> Result<()> {
    match differs(identity, id, pointer, page) {
        None => Ok(()),
        Some(what) => Err(Error::new(
            Kind::Corrupt,
            format!("table page at block {} ({id:?}): {what}", pointer.address),
        )),
    }
}

/// The first difference of a page that was read from its parent's account of it. `None` without
/// one. A page of a sealed store is opened.
#[must_use]
pub fn differs(
    identity: &Identity,
    id: PageId,
    pointer: &Pointer,
    page: &mut Page,
) -> Option<&'static str> {
    const OTHER: &str =
        "is not the version that its parent names; a write was lost or went elsewhere";
    let tag = from_low_bytes(&page[TAG_AT..TAG_AT + 8]);
    if identity.sealing.is_some() && tag != pointer.checksum {
        return Some(OTHER);
    }
    if !open(identity, pointer.address, page) {
        return Some("its tag differs: it was changed, or is another block");
    }
    let Ok((raw, _)) = Raw::read_from_prefix(page.as_slice()) else { return Some("too short") };
    if raw.magic.get() != MAGIC || raw.store.get() != identity.id {
        return Some("is not a page of this store");
    }
    if raw.checksum.get() != pointer.checksum || raw.birth.get() != pointer.birth.0 {
        return Some(OTHER);
    }
    if raw.table != id.table as u8
        || raw.level != id.level
        || raw.volume.get() != id.volume
        || raw.index.get() != id.index
        || raw.address.get() != pointer.address.0
    {
        return Some("belongs elsewhere");
    }
    (identity.sealing.is_none() && checksum_of(identity, raw, page) != pointer.checksum)
        .then_some("its checksum differs")
}

fn checksum_of(identity: &Identity, mut raw: Raw, page: &Page) -> u64 {
    raw.checksum = U64::new(0);
    let mut copy = *page;
    copy[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    checksum::fast(identity.key, &copy)
}

/// The header of a page that was read at `at` and whose own checksum agrees; whether it is still the
/// current one only its parent knows. A page of a sealed store is opened.
#[must_use]
pub fn header(identity: &Identity, at: Pba, page: &mut Page) -> Option<(PageId, Pointer)> {
    if !open(identity, at, page) {
        return None;
    }
    let (raw, _) = Raw::read_from_prefix(page.as_slice()).ok()?;
    let table = Table::ALL.into_iter().find(|&table| table as u8 == raw.table)?;
    let ours = raw.magic.get() == MAGIC
        && raw.store.get() == identity.id
        && raw.birth.get() <= WindowNumber::MAX.0;
    let id = PageId { table, volume: raw.volume.get(), level: raw.level, index: raw.index.get() };
    let (birth, checksum) = (WindowNumber(raw.birth.get()), raw.checksum.get());
    let pointer = Pointer { address: Pba(raw.address.get()), in_place: false, birth, checksum };
    let proven = identity.sealing.is_some() || checksum_of(identity, raw, page) == pointer.checksum;
    (ours && raw.level < 9 && proven).then_some((id, pointer))
}

/// The body of a page.
#[must_use]
pub fn body(page: &Page) -> &[u8] {
    &page[HEADER_BYTES..]
}

/// The body of a page, writable.
pub fn body_mut(page: &mut Page) -> &mut [u8] {
    &mut page[HEADER_BYTES..]
}

/// Pointer number `slot` of an inner page.
#[must_use]
pub fn pointer(page: &Page, slot: u64) -> Pointer {
    Pointer::decode(&body(page)[slot as usize * Pointer::BYTES..])
}

/// Sets pointer number `slot` of an inner page.
pub fn set_pointer(page: &mut Page, slot: u64, pointer: &Pointer) {
    body_mut(page)[slot as usize * Pointer::BYTES..][..Pointer::BYTES]
        .copy_from_slice(&pointer.encode());
}

/// How a physical block holds what an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Form {
    /// As it is.
    #[default]
    Raw,
    /// Compressed in a carrier.
    Carried,
    /// Compressed in a pack, as the fragment of this number in its table, below [`FRAGMENTS_MAX`].
    Packed(u8),
}

/// Fragments of a pack: a kind of mapping names one by its low five bits.
pub const FRAGMENTS_MAX: usize = 32;

/// The kind of a mapping to the first fragment of a pack; those of the others follow.
const FIRST_FRAGMENT: u8 = 128;

const LAST_FRAGMENT: u8 = FIRST_FRAGMENT + FRAGMENTS_MAX as u8 - 1;

impl Form {
    /// The form of a block that is compressed in a carrier, or raw.
    #[must_use]
    pub fn of(carried: bool) -> Form {
        if carried { Form::Carried } else { Form::Raw }
    }

    /// True unless a block is stored as it is.
    #[must_use]
    pub fn is_compressed(self) -> bool {
        self != Form::Raw
    }

    /// True for a fragment of a pack.
    #[must_use]
    pub fn is_packed(self) -> bool {
        matches!(self, Form::Packed(_))
    }
}

/// Where a logical address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MapEntry {
    /// Never written, or trimmed: zeroes.
    #[default]
    Hole,
    /// Zeroes that were written.
    Zero,
    /// Data that is lost: a repair could not find out what was there, or the store from which it was
    /// sent could not read it. An error to read, until it is
    /// written or dropped.
    Lost,
    /// A physical block.
    Block {
        /// Where.
        pba: Pba,
        /// How it lies there.
        form: Form,
        /// First 64 bits of the fingerprint: enough to verify a read without a second table.
        prefix: u64,
    },
}

impl MapEntry {
    /// Bytes of an entry.
    pub const BYTES: usize = 14;

    /// True for a physical block.
    #[must_use]
    pub fn is_block(&self) -> bool {
        matches!(self, MapEntry::Block { .. })
    }

    /// Entry number `slot` of a leaf. Unknown kinds read as damage.
    #[must_use]
    pub fn get(page: &Page, slot: u64) -> Option<MapEntry> {
        let bytes = &body(page)[slot as usize * Self::BYTES..][..Self::BYTES];
        let block = |form| MapEntry::Block {
            pba: Pba(from_low_bytes(&bytes[1..6])),
            form,
            prefix: from_low_bytes(&bytes[6..]),
        };
        Some(match bytes[0] {
            0 => MapEntry::Hole,
            1 => block(Form::Raw),
            2 => block(Form::Carried),
            3 => MapEntry::Zero,
            4 => MapEntry::Lost,
            kind @ FIRST_FRAGMENT..=LAST_FRAGMENT => block(Form::Packed(kind - FIRST_FRAGMENT)),
            _ => return None,
        })
    }

    /// Sets entry number `slot` of a leaf.
    pub fn set(self, page: &mut Page, slot: u64) {
        let bytes = &mut body_mut(page)[slot as usize * Self::BYTES..][..Self::BYTES];
        bytes.fill(0);
        match self {
            MapEntry::Hole => {}
            MapEntry::Zero => bytes[0] = 3,
            MapEntry::Lost => bytes[0] = 4,
            MapEntry::Block { pba, form, prefix } => {
                bytes[0] = match form {
                    Form::Raw => 1,
                    Form::Carried => 2,
                    Form::Packed(fragment) => FIRST_FRAGMENT + fragment % FRAGMENTS_MAX as u8,
                };
                bytes[1..6].copy_from_slice(&low_bytes::<5>(pba.0));
                bytes[6..].copy_from_slice(&prefix.to_le_bytes());
            }
        }
    }
}

/// How many need a physical block, and how it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReferenceEntry {
    /// Logical addresses that name it. At [`Self::SATURATED`] it never falls again.
    pub references: u32,
    /// True when the block is a carrier, or a pack.
    pub carried: bool,
}

impl ReferenceEntry {
    /// Bytes of an entry.
    pub const BYTES: usize = 4;

    /// The count that stands for "this many or more".
    pub const SATURATED: u32 = (1 << 31) - 1;

    /// Entry number `slot` of a leaf.
    #[must_use]
    pub fn get(page: &Page, slot: u64) -> ReferenceEntry {
        let count =
            from_low_bytes(&body(page)[slot as usize * Self::BYTES..][..Self::BYTES]) as u32;
        ReferenceEntry { references: count & Self::SATURATED, carried: count >> 31 != 0 }
    }

    /// Sets entry number `slot` of a leaf.
    pub fn set(self, page: &mut Page, slot: u64) {
        let count = self.references | u32::from(self.carried) << 31;
        body_mut(page)[slot as usize * Self::BYTES..][..Self::BYTES]
            .copy_from_slice(&count.to_le_bytes());
    }
}

/// Fingerprint number `slot` of a leaf: of the block's content. Of a free block it means nothing.
#[must_use]
pub fn fingerprint(page: &Page, slot: u64) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.0.copy_from_slice(
        &body(page)[slot as usize * size_of::<Fingerprint>()..][..size_of::<Fingerprint>()],
    );
    fingerprint
}

/// Sets fingerprint number `slot` of a leaf.
pub fn set_fingerprint(page: &mut Page, slot: u64, fingerprint: &Fingerprint) {
    body_mut(page)[slot as usize * size_of::<Fingerprint>()..][..size_of::<Fingerprint>()]
        .copy_from_slice(&fingerprint.0);
}

/// The account of a zone: which of its blocks are in use, by data or by tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneEntry {
    /// One bit a block.
    pub used: ZoneBitmap,
}

impl ZoneEntry {
    /// Bytes of an entry.
    pub const BYTES: usize = 128;

    /// Entry number `slot` of a leaf.
    #[must_use]
    pub fn get(page: &Page, slot: u64) -> ZoneEntry {
        let bytes = &body(page)[slot as usize * Self::BYTES..][..Self::BYTES];
        ZoneEntry { used: ZoneBitmap::from_bytes(bytes) }
    }

    /// Sets entry number `slot` of a leaf.
    pub fn set(self, page: &mut Page, slot: u64) {
        body_mut(page)[slot as usize * Self::BYTES..][..Self::BYTES]
            .copy_from_slice(&self.used.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::Algorithm;

    use super::*;

    #[test]
    fn entries_survive_their_encoding() {
        let mut page = Block::zeroed();
        assert_eq!(MapEntry::get(&page, 287), Some(MapEntry::Hole));
        let entries = [
            MapEntry::Zero,
            MapEntry::Lost,
            MapEntry::Block { pba: Pba::MAX, form: Form::Carried, prefix: u64::MAX },
            MapEntry::Block { pba: Pba(7), form: Form::Packed(0), prefix: 3 },
            MapEntry::Block { pba: Pba::MAX, form: Form::Packed(31), prefix: u64::MAX },
            MapEntry::Hole,
        ];
        for entry in entries {
            entry.set(&mut page, 287);
            assert_eq!(MapEntry::get(&page, 287), Some(entry));
        }
        let entry = ReferenceEntry { references: ReferenceEntry::SATURATED, carried: true };
        entry.set(&mut page, 1007);
        assert_eq!(ReferenceEntry::get(&page, 1007), entry);
        set_fingerprint(&mut page, 250, &Fingerprint([5; 16]));
        assert_eq!(
            (fingerprint(&page, 250), fingerprint(&page, 249)),
            (Fingerprint([5; 16]), Fingerprint::default())
        );
        assert_eq!(Table::Map.per_leaf(), 288);
        assert_eq!((Table::References.per_leaf(), Table::Fingerprints.per_leaf()), (4 * 252, 252));
        assert_eq!(FANOUT, 168);
    }

    #[test]
    fn a_page_is_believed_only_as_its_parent_knows_it() {
        let identity = Identity::new([3; 16], [9; 32], Algorithm::Blake3);
        let id = PageId { table: Table::Map, volume: 4, level: 0, index: 17 };
        let mut page = Block::zeroed();
        MapEntry::Zero.set(&mut page, 3);
        let pointer = seal(&identity, id, Pba(99), WindowNumber(5), &mut page).unwrap();
        verify(&identity, id, &pointer, &mut page).unwrap();
        for bit in 0..4096 * 8 {
            page.0[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&identity, id, &pointer, &mut page).is_err(), "bit {bit}");
            page.0[bit / 8] ^= 1 << (bit % 8);
        }
        let mut older = page.clone();
        seal(&identity, id, Pba(99), WindowNumber(4), &mut older).unwrap();
        assert!(verify(&identity, id, &pointer, &mut older).is_err());
        assert!(verify(&identity, PageId { index: 18, ..id }, &pointer, &mut page).is_err());
    }

    #[test]
    fn rule_29_a_sealed_page_is_believed_only_as_its_parent_knows_it() {
        let identity = crate::format::sealing::tests::identity();
        let id = PageId { table: Table::Map, volume: 4, level: 0, index: 17 };
        let mut plain = Block::zeroed();
        MapEntry::Zero.set(&mut plain, 3);
        let sealed = |at, birth| {
            let mut page = plain.clone();
            let pointer = seal(&identity, id, Pba(at), WindowNumber(birth), &mut page).unwrap();
            (pointer, page)
        };
        let (pointer, page) = sealed(99, 5);
        let believed = |id, pointer: &Pointer, page: &Page| {
            let mut copy = *page;
            verify(&identity, id, pointer, &mut copy).is_ok() && body(&copy) == body(&plain.0)
        };
        assert!(body(&page.0) != body(&plain.0));
        assert!(believed(id, &pointer, &page.0));
        let mut turned = page.clone();
        for bit in (0..4096 * 8).step_by(61).chain(48 * 8..64 * 8) {
            turned.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!believed(id, &pointer, &turned.0), "bit {bit}");
            turned.0[bit / 8] ^= 1 << (bit % 8);
        }
        // An older version with a good tag; and this one, put elsewhere.
        let (older, old_page) = sealed(99, 4);
        assert!(believed(id, &older, &old_page.0) && !believed(id, &pointer, &old_page.0));
        assert!(!believed(PageId { index: 18, ..id }, &pointer, &page.0));
        assert!(!believed(id, &Pointer { address: Pba(98), ..pointer }, &page.0));
        let mut copy = page.0;
        assert_eq!(header(&identity, Pba(99), &mut copy), Some((id, pointer)));
        let mut copy = page.0;
        assert_eq!(header(&identity, Pba(98), &mut copy), None);
    }
}
