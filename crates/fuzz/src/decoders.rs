//! Each kind of metadata block: as it comes, and with its checksum repaired so that the bytes
//! behind it are looked at.

use onefold_block::{
    Format,
    format::{
        Identity, VERSION,
        carrier::{self, Carrier},
        catalogue::{CatalogueChange, Discard, Volume},
        claim::{self, Claim, Claimant, SECTOR},
        geometry::Geometry,
        pack::Pack,
        page::{self, MapEntry, PageId, Pointer, ReferenceEntry, Table, ZoneEntry},
        record::WindowNumber,
        share::Share,
        superblock::{self, Found, Superblock},
        zone_list::Page,
    },
};
use onefold_core::{Algorithm, Block, Pba};

use crate::{corrupt, reach};

/// The identity of all examples.
pub(crate) fn identity() -> Identity {
    Identity::new([1; 16], [2; 32], Algorithm::Blake3)
}

fn block(data: &[u8]) -> Box<Block> {
    let mut block = Block::zeroed();
    let n = data.len().min(block.0.len());
    block.0[..n].copy_from_slice(&data[..n]);
    block
}

/// A superblock that is accepted must be one that would be written.
pub fn superblock(data: &[u8]) {
    let mut block = block(data);
    look_at_superblock(&block);
    corrupt::repair_superblock(&mut block);
    look_at_superblock(&block);
}

fn look_at_superblock(block: &Block) {
    for place in [0, 1] {
        let found = Superblock::decode(block, place);
        if let Found::Good(superblock) = &found {
            reach::good();
            let again = superblock.encode(place);
            let Found::Good(again) = Superblock::decode(&again, place) else {
                panic!("an encoded superblock can't be read")
            };
            assert!(*again == **superblock, "a superblock changes by being written");
            let Geometry { zones, zone_blocks, .. } = superblock.fixed.geometry;
            assert!(zones * zone_blocks <= Pba::MAX.0, "addresses stay within 40 bits");
        }
        let _ = superblock::choose(found, Found::Foreign);
    }
}

pub(crate) fn superblock_examples() -> Vec<Vec<u8>> {
    corrupt::blocks_of_kind(b"ONEF")
}

/// A claim that is believed is one that would be written, and its host's name can be shown.
pub fn claim(data: &[u8]) {
    let mut block = block(data);
    look_at_claim(&block);
    claim::repair(&mut block);
    look_at_claim(&block);
}

fn look_at_claim(block: &Block) {
    if let Some(found) = reach::is(Claim::decode(block), "not a claim") {
        assert!(
            found.encode().0[..SECTOR] == block.0[..SECTOR],
            "a claim changes by being written"
        );
        assert!(!found.claimant.host.chars().any(char::is_control), "a name that a terminal obeys");
    }
}

pub(crate) fn claim_examples() -> Vec<Vec<u8>> {
    let claimant = Claimant {
        host: "host".to_owned(),
        machine: [1; 16],
        boot: [2; 16],
        pid: 3,
        device: 4,
        inode: 5,
    };
    let claim = |state| Claim { store: [6; 16], token: [7; 16], claimant: claimant.clone(), state };
    [claim::State::Free, claim::State::Held, claim::State::Wanted]
        .map(|state| claim(state).encode().0[..SECTOR].to_vec())
        .to_vec()
}

/// A page of the zone list.
pub fn zone_list(data: &[u8]) {
    let identity = identity();
    let mut block = block(data);
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| block.0[at + n]));
    // Where the page says that it is, so that this check is passed.
    let (page, address) = (number(4) as u32, number(32));
    let look = |block: &Block| {
        if let Some(found) = Page::decode(&identity, block, page, address) {
            reach::good();
            let again = found.encode(&identity, page, address).unwrap_or_else(|_| Block::zeroed());
            let again = Page::decode(&identity, &again, page, address);
            assert!(again == Some(found), "a zone list page changes by being written");
        }
    };
    look(&block);
    corrupt::repair(&identity, &mut block);
    look(&block);
}

pub(crate) fn zone_list_examples() -> Vec<Vec<u8>> {
    corrupt::blocks_of_kind(b"OFz1")
}

/// A carrier: its records and its compressed block. A pack: its fragments.
pub fn carrier(data: &[u8]) {
    let identity = identity();
    let mut block = block(data);
    let mut expanded = Block::zeroed();
    if let Some(pack) = Pack::shape(&identity, &block, Pba(0)) {
        assert!((1..=32).contains(&pack.len()), "a pack has as many fragments as it may");
        for fragment in 0..=u8::MAX {
            let _ = pack.expand(fragment, &mut expanded);
        }
    }
    if let Some(carrier) = Carrier::shape(&identity, &block, Pba(0)) {
        let _ = carrier.expand(0, 0, &mut expanded);
    }
    corrupt::repair(&identity, &mut block);
    let address = Pba(u64::from_le_bytes(std::array::from_fn(|n| block.0[32 + n])));
    let Some(found) = Carrier::proven(&identity, &block, address) else { return };
    reach::good();
    let _ = found.expand(0, 0, &mut expanded);
    let Some(records) = found.records().collect::<Option<Vec<_>>>() else { return };
    assert!(records.len() <= carrier::RECORDS_MAX, "a carrier holds too many records");
    for record in records {
        let again = onefold_block::format::record::Record::decode(&record.encode());
        assert!(again == Some(record), "a record changes by being written");
    }
}

pub(crate) fn carrier_examples() -> Vec<Vec<u8>> {
    corrupt::blocks_of_kind(b"OFc1")
}

/// A table page, read as each kind of table.
pub fn map_page(data: &[u8]) {
    let identity = identity();
    let mut block = block(data);
    let number =
        |block: &Block, at: usize| u64::from_le_bytes(std::array::from_fn(|n| block.0[at + n]));
    let (birth, checksum) = (WindowNumber(number(&block, 40)), number(&block, 48));
    let pointer =
        Pointer { address: Pba(number(&block, 32)), birth, checksum, ..Pointer::default() };
    let id = |block: &Block, table| PageId {
        table,
        volume: number(block, 8) as u32,
        level: block.0[5],
        index: number(block, 24),
    };
    for table in Table::ALL {
        let id = id(&block, table);
        let _ = page::verify(&identity, id, &pointer, &mut block.0);
    }
    if let Some(checksum) = corrupt::repair(&identity, &mut block) {
        let id = id(&block, Table::Map);
        let pointer = Pointer { checksum, ..pointer };
        let _ = reach::noted(page::verify(&identity, id, &pointer, &mut block.0));
    }
    for slot in 0..Table::Map.per_leaf() {
        if let Some(entry) = MapEntry::get(&block, slot) {
            let mut again = Block::zeroed();
            entry.set(&mut again, slot);
            assert!(
                MapEntry::get(&again, slot) == Some(entry),
                "a map entry changes by being written"
            );
        }
    }
    for slot in 0..Table::References.per_leaf() {
        let entry = ReferenceEntry::get(&block, slot);
        assert!(entry.references <= ReferenceEntry::SATURATED);
        let mut again = Block::zeroed();
        entry.set(&mut again, slot);
        assert!(ReferenceEntry::get(&again, slot) == entry, "references change by being written");
    }
    for slot in 0..Table::Fingerprints.per_leaf() {
        let _ = page::fingerprint(&block, slot);
    }
    for slot in 0..Table::Zones.per_leaf() {
        assert!(ZoneEntry::get(&block, slot).used.count() <= 1024);
    }
    for slot in 0..Table::Catalogue.per_leaf() {
        if let Some(volume) = Volume::get(&block, slot) {
            let mut again = Block::zeroed();
            volume.set(&mut again, slot);
            assert!(Volume::get(&again, slot) == Some(volume), "a volume changes by being written");
        }
    }
    for slot in 0..Table::Maps.per_leaf() {
        if let Some(Some(map)) = Volume::get_shared(&block, slot) {
            let mut again = Block::zeroed();
            map.set_shared(&mut again, slot);
            assert!(
                Volume::get_shared(&again, slot) == Some(Some(map)),
                "a map of the catalogue changes by being written"
            );
        }
    }
    for slot in 0..Table::Shares.per_leaf() {
        let share = Share::get(&block, slot);
        let mut again = Block::zeroed();
        share.set(&mut again, slot);
        assert!(Share::get(&again, slot) == share, "an account changes by being written");
    }
    for slot in 0..Table::Discards.per_leaf() {
        if let Some(discard) = Discard::get(&block, slot) {
            assert!(discard.start < discard.end);
        }
    }
    for slot in 0..page::FANOUT {
        let _ = page::pointer(&block, slot);
    }
    let _ = CatalogueChange::decode(&block);
}

pub(crate) fn page_examples() -> Vec<Vec<u8>> {
    let mut examples = corrupt::blocks_of_kind(b"OFp1");
    let change = CatalogueChange::Create {
        id: onefold_core::VolumeId(3),
        name: "volume".into(),
        blocks: 77,
        no_dedup: onefold_block::NoDedup::new(vec![2..5, 9..10]).unwrap_or_default(),
        limits: onefold_core::VolumeLimits { iops: 500, bytes: 10 << 20 },
        quota: 33,
        domain: 2,
    };
    examples.push(change.encode().0.to_vec());
    examples
}

/// The format of the example store.
pub(crate) fn format(blocks: u64) -> Format {
    Format { zone_blocks: 16, ..Format::new([1; 16], [2; 32], blocks) }
}

// The version is part of what a repaired checksum is made of.
const _: () = assert!(VERSION == 1, "look at what the fuzzer repairs when the format changes");
