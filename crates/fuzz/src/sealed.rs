//! Blocks of a sealed block store: by somebody who has no key, and by somebody who has.

use std::sync::{Mutex, OnceLock};

use onefold_block::format::{
    Identity,
    carrier::Carrier,
    page::{self, Table},
    record::WindowNumber,
    superblock::{Found, Superblock},
    zone_list::Page,
};
use onefold_core::{Algorithm, Block, Pba, Result, checksum};
use onefold_seal::{Keys, Place, Random, SivKey, Use};
use onefold_testbed::Rng;

use crate::{decoders, reach};

const ID: [u8; 16] = [1; 16];

/// Where all blocks are.
const AT: Pba = Pba(9);

/// Bytes of a tag.
const TAG: usize = 16;

/// Chance from a seed.
struct Seeded(Mutex<Rng>);

impl Random for Seeded {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).fill(into);
        Ok(())
    }
}

/// The identity of all examples, and what seals their metadata.
fn sealed() -> Option<&'static (Identity, SivKey)> {
    static SEALED: OnceLock<Option<(Identity, SivKey)>> = OnceLock::new();
    let make = || {
        let keys = Keys::create(ID, &Seeded(Mutex::new(Rng::new(5)))).ok()?;
        let identity = Identity::by_keys(&keys, Algorithm::Blake3).ok()?;
        Some((identity, SivKey::new(&keys.store_key(Use::BLOCK_STORE)).ok()?))
    };
    SEALED.get_or_init(make).as_ref()
}

/// A block as somebody with the key seals it for [`AT`].
fn resealed(key: &SivKey, kind: u8, tag_at: usize, plain: &Block) -> Block {
    let mut rest = [&plain.0[..tag_at], &plain.0[tag_at + TAG..]].concat();
    let place = Place { kind, file: 0, number: AT.0 };
    let tag = key.seal(place, &[], &mut rest).unwrap_or_default();
    let mut block = plain.clone();
    block.0[..tag_at].copy_from_slice(&rest[..tag_at]);
    block.0[tag_at..tag_at + TAG].copy_from_slice(&tag);
    block.0[tag_at + TAG..].copy_from_slice(&rest[tag_at..]);
    block
}

/// A superblock as somebody with the key seals it for place 0.
fn resealed_superblock(key: &SivKey, plain: &Block) -> Block {
    let mut block = plain.clone();
    block.0[..8].copy_from_slice(b"ONEFOLD\0");
    block.0[8..16].copy_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0]);
    block.0[16..24].fill(0);
    block.0[1192..1200].copy_from_slice(&8_u64.to_le_bytes());
    let mut sequence = [0; 8];
    sequence.copy_from_slice(&block.0[96..104]);
    let place = Place { kind: 1, file: 0, number: u64::from_le_bytes(sequence) };
    let shown = [&block.0[..104], &block.0[1192..1200]].concat();
    let mut hidden = [&block.0[104..1192], &block.0[1200..4080]].concat();
    let tag = key.seal(place, &shown, &mut hidden).unwrap_or_default();
    block.0[104..1192].copy_from_slice(&hidden[..1088]);
    block.0[1200..4080].copy_from_slice(&hidden[1088..]);
    block.0[4080..].copy_from_slice(&tag);
    let sum = checksum::fast(3, &block.0);
    block.0[16..24].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Whatever a block of a sealed store holds, it is read or refused.
pub fn sealed_block(data: &[u8]) {
    let Some((identity, key)) = sealed() else { return };
    let mut plain = Block::zeroed();
    let n = data.len().min(plain.0.len());
    plain.0[..n].copy_from_slice(&data[..n]);
    for block in [(*plain).clone(), resealed_superblock(key, &plain)] {
        match Superblock::opened(&block, 0, identity) {
            Found::Good(_) => reach::good(),
            Found::Sealed(_) => panic!("a key opens it, or it is damaged"),
            _ => {}
        }
        let _ = Superblock::decode(&block, 0);
    }
    for block in [(*plain).clone(), resealed(key, 2, 48, &plain)] {
        if Page::decode(identity, &block, 0, AT.0).is_some() {
            reach::good();
        }
    }
    for block in [(*plain).clone(), resealed(key, 3, 48, &plain)] {
        let mut opened = block.clone();
        if let Some((id, pointer)) = page::header(identity, AT, &mut opened.0) {
            reach::good();
            assert!(
                Table::ALL.contains(&id.table) && pointer.birth <= WindowNumber::MAX,
                "a header"
            );
        }
    }
    for block in [(*plain).clone(), resealed(key, 4, 64, &plain)] {
        let Some(carrier) = Carrier::proven(identity, &block, AT) else { continue };
        reach::good();
        let mut expanded = Block::zeroed();
        let _ = carrier.expand(0, 7, &mut expanded);
        assert!(carrier.records().count() <= 100, "a carrier holds too many records");
    }
}

/// Blocks of plain stores, which somebody with the key seals.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let all = [
        decoders::superblock_examples(),
        decoders::zone_list_examples(),
        decoders::carrier_examples(),
        decoders::page_examples(),
    ];
    let mut blocks: Vec<Vec<u8>> = all.into_iter().flatten().collect();
    for block in blocks.iter_mut().filter(|block| block.len() == 4096) {
        // The store's id in each kind of block, and the address.
        for at in [8, 16] {
            block[at..at + 8].copy_from_slice(&[1; 8]);
        }
        block[32..40].copy_from_slice(&AT.0.to_le_bytes());
    }
    blocks
}
