//! The superblock: what is fixed for the store, and the roots of its last checkpoint. Two places,
//! written by turns.

use std::sync::Arc;

use onefold_core::{Algorithm, Block, Error, Kind, Result, checksum};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    Identity, VERSION, VERSION_FEATURES, VERSION_KEYED,
    domain_entry::{self, DOMAIN_ENTRIES, DomainEntry, RawDomain},
    geometry::{Geometry, list_pages_for},
    page::Pointer,
    record::WindowNumber,
    sealing::Sealing,
};
pub use super::{
    choices::{Layout, Leftover, SchemeName},
    page::Root,
};

const MAGIC: [u8; 8] = *b"ONEFOLD\0";

/// Recoveries that one superblock remembers; when it is full, recovery ends with a checkpoint.
pub const CUTS_MAX: usize = 32;

/// The highest sequence and the next generation at most: no store gets there by working.
pub const COUNT_MAX: u64 = u64::MAX / 2;

/// The highest epoch, which leaves room for one more opening.
pub const EPOCH_MAX: u32 = u32::MAX - 2;

/// Most addresses of all maps together that have a block, and most blocks: in bytes they are a number.
pub const MAPPED_MAX: u64 = u64::MAX / 4096;

/// The choices of a store's creation, which never change, and its sizes, which change when it
/// grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Id of the store; not secret.
    pub id: [u8; 16],
    /// Secret of the store, from which checksums and fingerprints are keyed.
    pub secret: [u8; 32],
    /// Sizes.
    pub geometry: Geometry,
    /// How fingerprints are made.
    pub algorithm: Algorithm,
    /// True when it was chosen that a duplicate is one only if its bytes agree;
    /// [`compares_bytes`](Fixed::compares_bytes) says whether it is so.
    pub verify_bytes: bool,
    /// True when zones are taken from the host's file system only when they are opened
    /// (`--preallocate none`).
    pub grow: bool,
    /// Where left-over records go.
    pub leftover: Leftover,
    /// How windows lie.
    pub layout: Layout,
    /// How records become durable.
    pub scheme: SchemeName,
}

impl Fixed {
    /// True when a duplicate is one only if its bytes agree: by choice, or because the fingerprint
    /// alone must not decide.
    #[must_use]
    pub fn compares_bytes(&self) -> bool {
        self.verify_bytes || self.algorithm.needs_bytes()
    }

    /// What makes the store's blocks differ from those of others.
    pub(crate) fn identity(&self, sealing: Option<Arc<Sealing>>) -> Identity {
        match sealing {
            Some(sealing) => Identity::sealed(self.id, sealing, self.algorithm),
            None => Identity::new(self.id, self.secret, self.algorithm),
        }
    }

    /// The version of the format that the store has without features: programs that do not know
    /// what it needs refuse it.
    #[must_use]
    fn version(&self) -> u32 {
        if self.algorithm == Algorithm::HmacSha256 { VERSION_KEYED } else { VERSION }
    }
}

/// Maps share pages: table 8 has their accounts, and table 10 is the catalogue.
pub const SHARING: u64 = 1;

/// Mappings name fragments of packs. Plain stores alone have them.
pub const PACKS: u64 = 2;

/// The zone list is not where it was when the store was made.
pub const MOVED_LIST: u64 = 4;

/// The store is sealed at rest.
pub const SEALED: u64 = 8;

/// The sealed store has more domains than the one that it began with, or had.
pub const DOMAINS: u64 = 16;

/// Domains have, or had, limits: the superblock has these and what each of the domains stores, and leaving
/// maps name their domain.
pub const DOMAIN_LIMITS: u64 = 32;

/// The data key of a domain of the sealed store was changed, or was to be: blocks may be under two keys.
pub const DATA_KEYS: u64 = 64;

/// The features that this program knows.
const FEATURES: u64 = SHARING | PACKS | MOVED_LIST | SEALED | DOMAINS | DOMAIN_LIMITS | DATA_KEYS;

/// What a sealed superblock hides, in two parts with the features between them.
const HIDDEN: [std::ops::Range<usize>; 2] = [104..1192, 1200..TAG_AT];

/// Where the tag of a sealed superblock is.
const TAG_AT: usize = 4080;

/// After this window, records of `epoch` are void: a recovery decided so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cut {
    /// The epoch.
    pub epoch: u32,
    /// Its last window that counts.
    pub window: WindowNumber,
    /// The first window after the recovery; those between the two are void.
    pub resume: WindowNumber,
}

/// The state of a store as of its last checkpoint or recovery.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct State {
    /// Raised by each superblock write; the higher of the two is the current one.
    pub sequence: u64,
    /// Raised by each recovery.
    pub epoch: u32,
    /// True after a clean shutdown, when nothing is uncommitted.
    pub clean: bool,
    /// The tables hold exactly the records up to this window.
    pub committed: WindowNumber,
    /// Windows up to this one are durable.
    pub durable: WindowNumber,
    /// The highest window number that was ever given.
    pub last_window: WindowNumber,
    /// Number of the next new volume.
    pub next_volume: u32,
    /// Zones below this one were used at some time.
    pub high_water: u64,
    /// Blocks in use, by data and tables.
    pub used_blocks: u64,
    /// Generations of zones below this one were given.
    pub next_generation: u64,
    /// Zones of generations below this one hold no carrier that the tables do not.
    pub oldest_generation: u64,
    /// Physical blocks with references.
    pub live_blocks: u64,
    /// Logical blocks mapped to physical ones.
    pub mapped_blocks: u64,
    /// Packs that mappings name.
    pub packs: u64,
    /// Logical blocks that are mapped to a fragment of one.
    pub fragments: u64,
    /// Entries of the catalogue table. Of a store that shares pages, its places, free ones too.
    pub volumes: u32,
    /// Entries of the table of pending discards.
    pub discards: u32,
    /// Table of references.
    pub references: Root,
    /// Table of fingerprints.
    pub fingerprints: Root,
    /// Zone table.
    pub zones: Root,
    /// Catalogue.
    pub catalogue: Root,
    /// Pending discards.
    pub pending: Root,
    /// Fingerprint index, the part that is on disk.
    pub index: Root,
    /// First bits of a hash that name a page of it.
    pub index_bits: u32,
    /// Entries of it.
    pub index_entries: u64,
    /// The index on disk holds every block of pages of fingerprints that are not younger than this
    /// window.
    pub index_birth: WindowNumber,
    /// With leaves in place: a crash may have left counts that are too high, which no recount has
    /// found yet.
    pub inexact: bool,
    /// Features that a reader must know; 0 for a store of version 1 or 2.
    pub features: u64,
    /// Accounts of shared pages.
    pub shares: Root,
    /// The number of the key area of a sealed store, once both its copies are durable; else 0.
    pub keys: u64,
    /// Of a store with domains: the number that the next one gets; else 0.
    pub next_domain: u32,
    /// The highest generation that a data key of the sealed store ever had; 0 unless one was changed.
    pub data_generation: u32,
    /// The domains that have limits, by number.
    pub domains: Vec<DomainEntry>,
    /// Cuts of earlier epochs whose carriers may still lie in listed zones.
    pub cuts: Vec<Cut>,
}

impl State {
    /// True when maps share pages.
    #[must_use]
    pub fn shares_pages(&self) -> bool {
        self.features & SHARING != 0
    }

    /// True when the store is sealed at rest.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.features & SEALED != 0
    }

    /// True when domains have limits, or had: leaving maps name their domain.
    #[must_use]
    pub fn limits_domains(&self) -> bool {
        self.features & DOMAIN_LIMITS != 0
    }

    /// Notes the number that the next domain gets. Once one was made besides the first, programs from before
    /// domains refuse the store.
    pub(crate) fn saw_domains(&mut self, next: u32) {
        if next > 1 {
            self.features |= DOMAINS;
            self.next_domain = self.next_domain.max(next);
        }
    }

    /// Notes the highest generation of a data key. Once one was changed, programs that know one key of each
    /// domain refuse the store.
    pub(crate) fn saw_data_keys(&mut self, generation: u32) {
        if generation > 0 {
            self.features |= DATA_KEYS;
            self.data_generation = self.data_generation.max(generation);
        }
    }
}

/// A superblock: the fixed part and the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The fixed part.
    pub fixed: Fixed,
    /// The state.
    pub state: State,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRoot {
    page: [u8; Pointer::BYTES],
    height: U64,
}

impl From<Root> for RawRoot {
    fn from(root: Root) -> RawRoot {
        RawRoot { page: root.page.encode(), height: U64::new(u64::from(root.height)) }
    }
}

impl RawRoot {
    fn root(&self) -> Option<Root> {
        let height = u8::try_from(self.height.get()).ok()?;
        let page = Pointer::decode(&self.page);
        // Nine levels of 168 pointers reach beyond 2^48 leaves.
        (height <= 9 && page.is_none() == (height == 0)).then_some(Root { page, height })
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawCut {
    epoch: U64,
    window: U64,
    resume: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    place: U32,
    checksum: U64,
    id: [u8; 16],
    secret: [u8; 32],
    zones: U64,
    zone_blocks: U32,
    list_pages: U32,
    algorithm: u8,
    verify_bytes: u8,
    grow: u8,
    leftover: u8,
    layout: u8,
    clean: u8,
    cuts: U16,
    sequence: U64,
    epoch: U32,
    next_volume: U32,
    committed: U64,
    durable: U64,
    last_window: U64,
    high_water: U64,
    used_blocks: U64,
    next_generation: U64,
    live_blocks: U64,
    mapped_blocks: U64,
    volumes: U32,
    discards: U32,
    references: RawRoot,
    fingerprints: RawRoot,
    zone_table: RawRoot,
    catalogue: RawRoot,
    pending: RawRoot,
    index: RawRoot,
    index_entries: U64,
    index_birth: U64,
    index_bits: U32,
    leftover_pages: U32,
    cut: [RawCut; CUTS_MAX],
    scheme: U64,
    oldest_generation: U64,
    inexact: U64,
    features: U64,
    zone_list: U64,
    shares: RawRoot,
    next_domain: U32,
    data_generation: U32,
    packs: U64,
    fragments: U64,
    reserved: [u8; 8],
    keys: U64,
    domains: [RawDomain; DOMAIN_ENTRIES],
}

const _: () = assert!(std::mem::offset_of!(Raw, features) == 1192);
const _: () = assert!(std::mem::offset_of!(Raw, next_domain) == 1240);
const _: () = assert!(std::mem::offset_of!(Raw, packs) == 1248);
const _: () = assert!(std::mem::offset_of!(Raw, keys) == 1272);
const _: () = assert!(std::mem::offset_of!(Raw, domains) == 1280);
const _: () = assert!(size_of::<Raw>() <= TAG_AT);

/// The block that was found at a superblock's place.
#[derive(Debug)]
pub enum Found {
    /// A superblock.
    Good(Box<Superblock>),
    /// A superblock of a sealed store, whose checksum agrees: what can be read of it without the key,
    /// and of which nothing is proven.
    Sealed(Box<Superblock>),
    /// A superblock of another version of the format, whose checksum agrees.
    OtherVersion(u32),
    /// A superblock whose checksum agrees, with features that this program does not know.
    OtherFeatures(u64),
    /// A superblock whose checksum differs or whose fields are impossible.
    Damaged,
    /// Something else.
    Foreign,
}

impl Superblock {
    /// The version of the format that the store has.
    #[must_use]
    pub fn version(&self) -> u32 {
        if self.state.features == 0 { self.fixed.version() } else { VERSION_FEATURES }
    }

    /// Its block as it is written to the place number `place`, sealed if the store is.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub(crate) fn written(&self, place: u32, sealing: Option<&Sealing>) -> Result<Box<Block>> {
        let mut block = self.encode(place);
        let Some(sealing) = sealing else { return Ok(block) };
        block.0[16..24].fill(0);
        let mut hidden = hidden(&block);
        let at = (place, self.state.sequence);
        let tag = sealing.seal_superblock(at, &shown(&block), &mut hidden)?;
        put_hidden(&mut block, &hidden);
        block.0[TAG_AT..].copy_from_slice(&tag);
        let sum = checksum::fast(u64::from(self.version()), &block.0);
        block.0[16..24].copy_from_slice(&sum.to_le_bytes());
        Ok(block)
    }

    /// As [`decode`](Self::decode), of a store with this identity, which may be sealed.
    #[must_use]
    pub fn opened(block: &Block, place: u32, identity: &Identity) -> Found {
        Superblock::open(block, place, identity.sealing.as_deref())
    }

    /// As [`decode`](Self::decode), by the key of a sealed store.
    #[must_use]
    pub(crate) fn open(block: &Block, place: u32, sealing: Option<&Sealing>) -> Found {
        let (sealed, sealing) = match (Superblock::decode(block, place), sealing) {
            (Found::Sealed(sealed), Some(sealing)) => (sealed, sealing),
            // Who has a key takes no plain superblock for one of the store.
            (Found::Good(_), Some(_)) => return Found::Damaged,
            (found, _) => return found,
        };
        let mut opened = block.clone();
        let mut tag = [0; 16];
        tag.copy_from_slice(&block.0[TAG_AT..]);
        opened.0[16..24].fill(0);
        let mut hidden = hidden(&opened);
        let at = (place, sealed.state.sequence);
        if !sealing.open_superblock(at, &shown(&opened), &mut hidden, &tag) {
            return Found::Damaged;
        }
        put_hidden(&mut opened, &hidden);
        opened.0[TAG_AT..].fill(0);
        let raw = Raw::read_from_prefix(&opened.0).ok();
        match raw.and_then(|(raw, _)| raw.superblock()) {
            Some(superblock) => Found::Good(Box::new(superblock)),
            None => Found::Damaged,
        }
    }

    /// Its block, for the place number `place`; of a sealed store before it is sealed.
    #[must_use]
    pub fn encode(&self, place: u32) -> Box<Block> {
        let Superblock { fixed, state } = self;
        assert!(state.cuts.len() <= CUTS_MAX, "recovery keeps the cuts few");
        let mut cut =
            [RawCut { epoch: U64::new(0), window: U64::new(0), resume: U64::new(0) }; CUTS_MAX];
        for (raw, cut) in cut.iter_mut().zip(&state.cuts) {
            *raw = RawCut {
                epoch: U64::new(u64::from(cut.epoch)),
                window: U64::new(cut.window.0),
                resume: U64::new(cut.resume.0),
            };
        }
        let mut raw = Raw {
            magic: MAGIC,
            version: U32::new(self.version()),
            place: U32::new(place),
            checksum: U64::new(0),
            id: fixed.id,
            secret: fixed.secret,
            zones: U64::new(fixed.geometry.zones),
            zone_blocks: U32::new(fixed.geometry.zone_blocks as u32),
            list_pages: U32::new(fixed.geometry.first_list_pages),
            algorithm: fixed.algorithm.code(),
            verify_bytes: u8::from(fixed.verify_bytes),
            grow: u8::from(fixed.grow),
            leftover: u8::from(fixed.leftover == Leftover::Table),
            layout: u8::from(fixed.layout == Layout::Split),
            clean: u8::from(state.clean),
            cuts: U16::new(state.cuts.len() as u16),
            sequence: U64::new(state.sequence),
            epoch: U32::new(state.epoch),
            next_volume: U32::new(state.next_volume),
            committed: U64::new(state.committed.0),
            durable: U64::new(state.durable.0),
            last_window: U64::new(state.last_window.0),
            high_water: U64::new(state.high_water),
            used_blocks: U64::new(state.used_blocks),
            next_generation: U64::new(state.next_generation),
            live_blocks: U64::new(state.live_blocks),
            mapped_blocks: U64::new(state.mapped_blocks),
            volumes: U32::new(state.volumes),
            discards: U32::new(state.discards),
            references: state.references.into(),
            fingerprints: state.fingerprints.into(),
            zone_table: state.zones.into(),
            catalogue: state.catalogue.into(),
            pending: state.pending.into(),
            index: state.index.into(),
            index_entries: U64::new(state.index_entries),
            index_birth: U64::new(state.index_birth.0),
            index_bits: U32::new(state.index_bits),
            leftover_pages: U32::new(fixed.geometry.leftover_pages),
            cut,
            scheme: U64::new(fixed.scheme as u64),
            oldest_generation: U64::new(state.oldest_generation),
            inexact: U64::new(u64::from(state.inexact)),
            features: U64::new(state.features),
            zone_list: U64::new(fixed.geometry.moved_list),
            shares: state.shares.into(),
            next_domain: U32::new(state.next_domain),
            data_generation: U32::new(state.data_generation),
            packs: U64::new(state.packs),
            fragments: U64::new(state.fragments),
            reserved: [0; 8],
            keys: U64::new(state.keys),
            domains: domain_entry::encode(&state.domains),
        };
        let mut block = Block::zeroed();
        block.0[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        raw.checksum = U64::new(checksum::fast(u64::from(self.version()), &block.0));
        block.0[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        block
    }

    /// Decodes the block read at place number `place`.
    #[must_use]
    pub fn decode(block: &Block, place: u32) -> Found {
        let Ok((mut raw, _)) = Raw::read_from_prefix(&block.0) else { return Found::Foreign };
        if raw.magic != MAGIC {
            return Found::Foreign;
        }
        let version = raw.version.get();
        let found = std::mem::take(&mut raw.checksum);
        let mut zeroed = block.clone();
        zeroed.0[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        if checksum::fast(u64::from(version), &zeroed.0) != found.get() {
            return Found::Damaged;
        }
        if !(VERSION..=VERSION_FEATURES).contains(&version) {
            return Found::OtherVersion(version);
        }
        if raw.place.get() != place {
            return Found::Damaged;
        }
        if version == VERSION_FEATURES && raw.features.get() & !FEATURES != 0 {
            return Found::OtherFeatures(raw.features.get() & !FEATURES);
        }
        // Nobody has defined how a pack is sealed.
        if version == VERSION_FEATURES && raw.features.get() & (SEALED | PACKS) == SEALED | PACKS {
            return Found::OtherFeatures(PACKS);
        }
        if version == VERSION_FEATURES && raw.features.get() & SEALED != 0 {
            return raw.outline().map_or(Found::Damaged, |sealed| Found::Sealed(Box::new(sealed)));
        }
        match raw.superblock() {
            Some(superblock) if superblock.version() == version => {
                Found::Good(Box::new(superblock))
            }
            _ => Found::Damaged,
        }
    }
}

/// What a sealed superblock hides, in one piece.
fn hidden(block: &Block) -> Vec<u8> {
    HIDDEN.map(|part| &block.0[part]).concat()
}

fn put_hidden(block: &mut Block, hidden: &[u8]) {
    let [first, second] = HIDDEN;
    let (one, other) = hidden.split_at(first.len());
    block.0[first].copy_from_slice(one);
    block.0[second].copy_from_slice(other);
}

/// What a sealed superblock shows, and its tag proves.
fn shown(block: &Block) -> Vec<u8> {
    let [first, second] = HIDDEN;
    [&block.0[..first.start], &block.0[first.end..second.start]].concat()
}

impl Fixed {
    /// True when all that never changes agrees with another superblock of the store, and the store
    /// may have grown from this one to the other.
    #[must_use]
    pub(crate) fn grew_into(&self, other: &Fixed) -> bool {
        let Geometry { zones, list_pages, moved_list, .. } = other.geometry;
        let geometry = Geometry { zones, list_pages, moved_list, ..self.geometry };
        zones > self.geometry.zones && Fixed { geometry, ..self.clone() } == *other
    }
}

impl Superblock {
    /// True for the same version, which is written twice: all but the number agrees.
    #[must_use]
    pub(crate) fn is_twin_of(&self, other: &Superblock) -> bool {
        self.fixed == other.fixed
            && State { sequence: other.state.sequence, ..self.state.clone() } == other.state
    }

    /// True for the version before `newer` when only the keys changed between the two, or what they need: a
    /// change of keys that was killed leaves such a pair.
    #[must_use]
    pub(crate) fn has_keys_before(&self, newer: &Superblock) -> bool {
        let mut with_them = self.clone();
        with_them.state.keys = newer.state.keys;
        with_them.state.saw_domains(newer.state.next_domain);
        with_them.state.saw_data_keys(newer.state.data_generation);
        with_them.state.features |= newer.state.features & DATA_KEYS;
        let of = |state: &State| (state.keys, state.features & DATA_KEYS);
        of(&self.state) < of(&newer.state)
            && self.state.sequence.wrapping_add(1) == newer.state.sequence
            && with_them.is_twin_of(newer)
    }

    /// True for the version before `newer` when `newer` is the last one of a store that was shut down, and
    /// its twin is missing: a shutdown that was cut off between the two leaves such a pair.
    #[must_use]
    pub(crate) fn is_before_shutdown(&self, newer: &Superblock) -> bool {
        let (old, new) = (&self.state, &newer.state);
        let rises = |state: &State| {
            (
                [state.committed, state.durable, state.last_window],
                [u64::from(state.epoch), state.next_generation, state.keys],
            )
        };
        let ((windows, numbers), (new_windows, new_numbers)) = (rises(old), rises(new));
        self.fixed == newer.fixed
            && old.sequence.wrapping_add(1) == new.sequence
            && !old.clean
            && new.clean
            && old.features & !new.features == 0
            && windows.iter().zip(&new_windows).all(|(old, new)| old <= new)
            && numbers.iter().zip(&new_numbers).all(|(old, new)| old <= new)
    }

    /// True when a block that is no superblock may be a mixture of the sectors of two of this
    /// store, as a torn write leaves it: what never changes is there, and nothing is behind the
    /// end.
    #[must_use]
    pub(crate) fn explains_tear(&self, block: &Block, place: u32) -> bool {
        use std::mem::offset_of;
        // Of what is sealed nobody can tell.
        let end = if self.state.is_sealed() { block.0.len() } else { offset_of!(Raw, domains) };
        let whole = self.encode(place);
        let same = |from: usize, to: usize| block.0[from..to] == whole.0[from..to];
        // The version rises when maps begin to share pages, and the zones when the store grows.
        same(0, offset_of!(Raw, version))
            && same(offset_of!(Raw, place), offset_of!(Raw, checksum))
            && same(offset_of!(Raw, id), offset_of!(Raw, zones))
            && same(offset_of!(Raw, zone_blocks), offset_of!(Raw, clean))
            && same(end, block.0.len())
    }
}

impl Raw {
    /// The superblock of a sealed store as whoever has no key sees it.
    fn outline(&self) -> Option<Superblock> {
        let mut shown = Raw::read_from_bytes(&[0; size_of::<Raw>()][..]).ok()?;
        let to = HIDDEN[0].start;
        let bytes = shown.as_mut_bytes();
        bytes[..to].copy_from_slice(&self.as_bytes()[..to]);
        shown.cuts = U16::new(0);
        shown.features = U64::new(SEALED);
        shown.superblock()
    }

    /// Only a sealed store with domains, whose maps share pages, has limits of domains; only a sealed one has
    /// data keys.
    fn has_what_domains_need(&self) -> bool {
        const NEEDED: u64 = SHARING | SEALED | DOMAINS;
        let features = self.features.get();
        (features & DOMAIN_LIMITS == 0 || features & NEEDED == NEEDED)
            && features & (SEALED | DATA_KEYS) != DATA_KEYS
    }

    /// A number of packs, or of what names them: without that feature there are none.
    fn packed(&self, raw: U64) -> Option<u64> {
        let has_packs = self.features.get() & PACKS != 0;
        (raw.get() == 0 || has_packs && raw.get() <= MAPPED_MAX).then_some(raw.get())
    }

    fn superblock(&self) -> Option<Superblock> {
        let flag = |raw: u8| (raw <= 1).then_some(raw == 1);
        let blocks = self.zones.get().checked_mul(u64::from(self.zone_blocks.get()))?;
        let (zone_blocks, zones, first_list_pages) =
            (u64::from(self.zone_blocks.get()), self.zones.get(), self.list_pages.get());
        let leftover = if flag(self.leftover)? { Leftover::Table } else { Leftover::Log };
        Geometry::new(blocks, self.zone_blocks.get(), leftover).ok()?;
        let leftover_pages = self.leftover_pages.get();
        if leftover_pages > super::geometry::LEFTOVER_PAGES_MAX
            || (leftover_pages > 0) != (leftover == Leftover::Table)
        {
            return None;
        }
        let moved_list = self.zone_list.get();
        let list_pages = if moved_list == 0 { first_list_pages } else { list_pages_for(zones) };
        let geometry = Geometry {
            zone_blocks,
            zones,
            list_pages,
            first_list_pages,
            moved_list,
            leftover_pages,
        }
        .checked(blocks)
        .ok()?;
        if first_list_pages == 0
            || first_list_pages > super::geometry::LIST_PAGES_MAX
            || usize::from(self.cuts.get()) > CUTS_MAX
            || (moved_list != 0) != (self.features.get() & MOVED_LIST != 0)
            || moved_list != 0 && !geometry.list_is_within()
        {
            return None;
        }
        let window =
            |raw: U64| (raw.get() <= WindowNumber::MAX.0).then_some(WindowNumber(raw.get()));
        let cuts = self.cut[..usize::from(self.cuts.get())].iter();
        Some(Superblock {
            fixed: Fixed {
                id: self.id,
                secret: self.secret,
                geometry,
                algorithm: Algorithm::from_code(self.algorithm)?,
                verify_bytes: flag(self.verify_bytes)?,
                grow: flag(self.grow)?,
                leftover,
                layout: if flag(self.layout)? { Layout::Split } else { Layout::Run },
                scheme: self.scheme.get().try_into().ok()?,
            },
            state: State {
                sequence: (self.sequence.get() <= COUNT_MAX).then_some(self.sequence.get())?,
                epoch: (self.epoch.get() <= EPOCH_MAX).then_some(self.epoch.get())?,
                clean: flag(self.clean)?,
                committed: window(self.committed)?,
                durable: window(self.durable)?,
                last_window: window(self.last_window)?,
                next_volume: self.next_volume.get(),
                high_water: (self.high_water.get() <= zones).then_some(self.high_water.get())?,
                used_blocks: (self.used_blocks.get() <= blocks)
                    .then_some(self.used_blocks.get())?,
                next_generation: (self.next_generation.get() <= COUNT_MAX)
                    .then_some(self.next_generation.get())?,
                oldest_generation: self.oldest_generation.get(),
                inexact: self.inexact.get() != 0,
                features: (self.features.get() & !FEATURES == 0 && self.has_what_domains_need())
                    .then_some(self.features.get())?,
                shares: self.shares.root()?,
                keys: ((self.keys.get() != 0) == (self.features.get() & SEALED != 0)
                    || self.keys.get() == 0)
                    .then_some(self.keys.get())?,
                next_domain: ((self.next_domain.get() > 1) == (self.features.get() & DOMAINS != 0)
                    && self.features.get() & (SEALED | DOMAINS) != DOMAINS)
                    .then_some(self.next_domain.get())?,
                data_generation: (self.data_generation.get() == 0
                    || self.features.get() & DATA_KEYS != 0)
                    .then_some(self.data_generation.get())?,
                domains: domain_entry::decode(&self.domains)
                    .filter(|all| all.is_empty() || self.features.get() & DOMAIN_LIMITS != 0)?,
                // With leaves in place it is a guess, which crashes may raise above what there is.
                live_blocks: (self.live_blocks.get() <= MAPPED_MAX)
                    .then_some(self.live_blocks.get())?,
                mapped_blocks: (self.mapped_blocks.get() <= MAPPED_MAX)
                    .then_some(self.mapped_blocks.get())?,
                packs: self.packed(self.packs)?,
                fragments: self.packed(self.fragments)?,
                volumes: (self.volumes.get() <= super::catalogue::VOLUMES_MAX)
                    .then_some(self.volumes.get())?,
                discards: (self.discards.get() <= super::catalogue::DISCARDS_MAX)
                    .then_some(self.discards.get())?,
                references: self.references.root()?,
                fingerprints: self.fingerprints.root()?,
                zones: self.zone_table.root()?,
                catalogue: self.catalogue.root()?,
                pending: self.pending.root()?,
                index: self.index.root()?,
                index_entries: (self.index_entries.get() <= 4 * blocks)
                    .then_some(self.index_entries.get())?,
                index_birth: window(self.index_birth)?,
                index_bits: (self.index_bits.get() <= super::page::HASH_BITS)
                    .then_some(self.index_bits.get())?,
                cuts: cuts
                    .map(|raw| {
                        Some(Cut {
                            epoch: u32::try_from(raw.epoch.get()).ok()?,
                            window: window(raw.window)?,
                            resume: window(raw.resume)?,
                        })
                    })
                    .collect::<Option<_>>()?,
            },
        })
    }
}

/// The newer of the two superblocks, as whoever has no key sees it: of a sealed store nothing is
/// proven, and only id, sizes and choices are there.
///
/// # Errors
/// As [`choose`].
pub fn seen(first: Found, second: Found) -> Result<Superblock> {
    let shown = |found| match found {
        Found::Sealed(superblock) => Found::Good(superblock),
        found => found,
    };
    choose(shown(first), shown(second))
}

/// The newer of the two superblocks.
///
/// # Errors
/// One sentence that says why there is none: foreign, too new, or damaged.
pub fn choose(first: Found, second: Found) -> Result<Superblock> {
    let mut best: Option<Superblock> = None;
    let (mut damaged, mut other, mut unknown, mut sealed) = (false, None, None, false);
    for found in [first, second] {
        match found {
            Found::Good(superblock)
                if best
                    .as_ref()
                    .is_none_or(|best| superblock.state.sequence > best.state.sequence) =>
            {
                best = Some(*superblock);
            }
            Found::Good(_) | Found::Foreign => {}
            Found::Sealed(_) => sealed = true,
            Found::OtherVersion(version) => other = Some(version),
            Found::OtherFeatures(features) => unknown = Some(features),
            Found::Damaged => damaged = true,
        }
    }
    if let Some(features) = unknown {
        return Err(Error::new(
            Kind::Unsupported,
            format!(
                "the store has features that this program does not know ({features:#x}); use a newer one"
            ),
        ));
    }
    if sealed {
        return Err(Error::new(
            Kind::Denied,
            "the store is encrypted: say where its key is with --key",
        ));
    }
    match (best, other, damaged) {
        (Some(superblock), None, _) => Ok(superblock),
        (_, Some(version), _) => Err(Error::new(
            Kind::Unsupported,
            format!(
                "the store has format version {version}; this program knows versions {VERSION} to {VERSION_FEATURES}"
            ),
        )),
        (None, None, true) => Err(Error::new(
            Kind::Corrupt,
            "both superblocks are damaged; `onefold repair` can't help without one",
        )),
        (None, None, false) => Err(Error::new(Kind::InvalidInput, "this is not a Onefold store")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn example() -> Superblock {
        Superblock {
            fixed: Fixed {
                id: [1; 16],
                secret: [2; 32],
                geometry: Geometry::new(1 << 18, 1024, Leftover::Table).unwrap(),
                algorithm: Algorithm::Md5,
                verify_bytes: true,
                grow: true,
                leftover: Leftover::Table,
                layout: Layout::Split,
                scheme: SchemeName::Ordered,
            },
            state: State {
                sequence: 5,
                epoch: 3,
                committed: WindowNumber(17),
                cuts: vec![Cut { epoch: 2, window: WindowNumber(11), resume: WindowNumber(13) }],
                ..State::default()
            },
        }
    }

    #[test]
    fn a_superblock_survives_its_encoding_at_its_place_only() {
        let superblock = example();
        let block = superblock.encode(1);
        assert!(
            matches!(Superblock::decode(&block, 1), Found::Good(found) if *found == superblock)
        );
        assert!(matches!(Superblock::decode(&block, 0), Found::Damaged));
    }

    #[test]
    fn any_flipped_bit_is_damage_and_never_another_version() {
        let mut block = example().encode(0);
        for bit in 0..4096 * 8 {
            block.0[bit / 8] ^= 1 << (bit % 8);
            assert!(
                matches!(Superblock::decode(&block, 0), Found::Damaged | Found::Foreign),
                "bit {bit}"
            );
            block.0[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_moved_list_needs_its_feature_and_its_place() {
        let mut superblock = example();
        superblock.fixed.geometry = superblock.fixed.geometry.grown(1 << 20).unwrap();
        assert!(superblock.fixed.geometry.moved_list > 0);
        assert!(matches!(Superblock::decode(&superblock.encode(1), 1), Found::Damaged));
        superblock.state.features = MOVED_LIST;
        let block = superblock.encode(1);
        assert_eq!(block.0[8], 3, "older programs refuse it");
        assert!(
            matches!(Superblock::decode(&block, 1), Found::Good(found) if *found == superblock)
        );
        assert!(example().fixed.grew_into(&superblock.fixed));
        assert!(!superblock.fixed.grew_into(&example().fixed));
        superblock.fixed.geometry.moved_list += 1;
        assert!(matches!(Superblock::decode(&superblock.encode(1), 1), Found::Damaged));
    }

    #[test]
    fn a_store_that_grew_without_moving_its_list_keeps_its_version() {
        let mut superblock = example();
        let zones = superblock.fixed.geometry.zones + 1;
        superblock.fixed.geometry = superblock.fixed.geometry.grown(zones * 1024).unwrap();
        let block = superblock.encode(1);
        assert_eq!(block.0[8], 1);
        assert!(
            matches!(Superblock::decode(&block, 1), Found::Good(found) if *found == superblock)
        );
        assert!(superblock.explains_tear(&example().encode(1), 1));
    }

    #[test]
    fn another_version_is_one_only_with_its_checksum() {
        let mut block = example().encode(0);
        block.0[8..12].copy_from_slice(&9_u32.to_le_bytes());
        assert!(matches!(Superblock::decode(&block, 0), Found::Damaged));
        block.0[16..24].fill(0);
        let checksum = checksum::fast(9, &block.0);
        block.0[16..24].copy_from_slice(&checksum.to_le_bytes());
        assert!(matches!(Superblock::decode(&block, 0), Found::OtherVersion(9)));
    }

    #[test]
    fn rule_18_a_store_that_older_programs_would_misread_is_of_another_version() {
        for (algorithm, code, _) in Algorithm::ALL {
            let superblock =
                Superblock { fixed: Fixed { algorithm, ..example().fixed }, ..example() };
            let mut block = superblock.encode(0);
            let version = if code == 5 { 2 } else { 1 };
            assert_eq!((block.0[8], block.0[88]), (version, code));
            assert!(
                matches!(Superblock::decode(&block, 0), Found::Good(found) if *found == superblock)
            );
            // The other version does not go with it.
            block.0[8] = 3 - version;
            block.0[16..24].fill(0);
            let checksum = checksum::fast(u64::from(3 - version), &block.0);
            block.0[16..24].copy_from_slice(&checksum.to_le_bytes());
            assert!(matches!(Superblock::decode(&block, 0), Found::Damaged));
        }
    }

    #[test]
    fn the_newer_one_wins_and_the_rest_is_a_sentence() {
        let older = example();
        let mut newer = example();
        newer.state.sequence = 6;
        let decode =
            |superblock: &Superblock, place| Superblock::decode(&superblock.encode(place), place);
        assert_eq!(choose(decode(&newer, 0), decode(&older, 1)).unwrap().state.sequence, 6);
        assert_eq!(choose(Found::Damaged, decode(&older, 1)).unwrap().state.sequence, 5);
        assert_eq!(choose(Found::Foreign, Found::Foreign).unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(choose(Found::Damaged, Found::Foreign).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(
            choose(Found::OtherVersion(9), decode(&older, 1)).unwrap_err().kind(),
            Kind::Unsupported
        );
    }

    #[test]
    fn rule_22_a_sealed_superblock_shows_only_what_says_which_store_it_is() {
        let sealing = crate::format::sealing::tests::sealing();
        let mut superblock = example();
        superblock.fixed = Fixed {
            secret: [0; 32],
            geometry: Geometry::new(1 << 18, 1024, Leftover::Log).unwrap(),
            leftover: Leftover::Log,
            scheme: SchemeName::Thin,
            ..superblock.fixed
        };
        superblock.state.features = SEALED;
        superblock.state.keys = 7;
        superblock.state.saw_domains(3);
        let block = superblock.written(1, Some(&sealing)).unwrap();
        let found = |block: &Block, place| Superblock::open(block, place, Some(&sealing));
        assert!(matches!(found(&block, 1), Found::Good(found) if *found == superblock));
        assert!(matches!(found(&block, 0), Found::Damaged));
        let Found::Sealed(seen) = Superblock::decode(&block, 1) else { panic!("it is sealed") };
        assert_eq!((seen.fixed.id, seen.state.sequence), (superblock.fixed.id, 5));
        assert_eq!(choose(Found::Sealed(seen), Found::Foreign).unwrap_err().kind(), Kind::Denied);
        let plain = superblock.encode(1);
        assert!(HIDDEN.iter().all(|part| block.0[part.clone()] != plain.0[part.clone()]));
        // What is shown is proven, too, by whoever mends the checksum.
        for bit in (0..4096 * 8).step_by(5) {
            let mut turned = block.clone();
            turned.0[bit / 8] ^= 1 << (bit % 8);
            turned.0[16..24].fill(0);
            let version = u32::from_le_bytes(turned.0[8..12].try_into().unwrap());
            let sum = checksum::fast(u64::from(version), &turned.0);
            turned.0[16..24].copy_from_slice(&sum.to_le_bytes());
            let in_checksum = (16..24).contains(&(bit / 8));
            assert!(in_checksum || !matches!(found(&turned, 1), Found::Good(_)), "bit {bit}");
        }
        // A plain one with the same id.
        let mut plain = example();
        plain.state.sequence = 9;
        assert!(matches!(found(&plain.encode(1), 1), Found::Damaged));
    }
}
