//! The hot parts one by one, for `benches/hot.rs` alone: no part of the product, and nothing that
//! anybody else may use.

use onefold_core::{Algorithm, Block, Fingerprint, Lba, Pba, VolumeId, compress::Lz4};

use crate::{
    format::{
        Identity,
        carrier::{Header, Payload, encode, room_beside},
        record::{Change, Record, WindowNumber},
    },
    index::{Index, hash_of},
    scheme::{
        thin::choose,
        verbs::{Chosen, RECORDS_ALONE},
    },
};

/// The index in memory.
pub struct Lookups(Index);

impl Lookups {
    /// An empty one within `memory` bytes.
    #[must_use]
    pub fn new(memory: u64) -> Lookups {
        Lookups(Index::new(memory, 0))
    }

    /// Adds a block.
    pub fn insert(&mut self, fingerprint: &Fingerprint, pba: Pba) {
        self.0.insert(hash_of(fingerprint.prefix()), pba);
    }

    /// How many blocks may hold one of these.
    #[must_use]
    pub fn find(&self, wanted: &[Fingerprint], found: &mut Vec<Pba>) -> usize {
        found.clear();
        for fingerprint in wanted {
            self.0.candidates(hash_of(fingerprint.prefix()), found);
        }
        found.len()
    }
}

/// Building the carriers of a window.
pub struct Carriers {
    identity: Identity,
    lz4: Lz4,
    blocks: Vec<Block>,
}

impl Default for Carriers {
    fn default() -> Carriers {
        Carriers {
            identity: Identity::new([3; 16], [9; 32], Algorithm::Blake3),
            lz4: Lz4::default(),
            blocks: Vec::new(),
        }
    }
}

impl Carriers {
    /// Hides a record for each of the window's new blocks, and of `duplicates` others, in carriers.
    /// Returns how many there are.
    pub fn build(&mut self, new: &[&Block], duplicates: usize) -> usize {
        let window = WindowNumber(1);
        let change =
            Change::Block { pba: Pba(7), carried: false, fingerprint: Fingerprint::default() };
        let record =
            |n| Record { volume: VolumeId(1), lba: Lba(n), change, timestamp: window.timestamp(n) };
        let records: Vec<Record> = (0..(new.len() + duplicates) as u64).map(record).collect();
        let mut carriers = choose(&mut self.lz4, new, records.len(), 0);
        let room: usize = carriers.iter().map(|chosen| chosen.room).sum();
        let alone = records.len().saturating_sub(room).div_ceil(RECORDS_ALONE);
        carriers.extend((0..alone).map(|_| Chosen {
            block: 0,
            payload: Vec::new(),
            room: room_beside(0),
        }));
        self.blocks.resize_with(carriers.len().max(self.blocks.len()), || Block([0; 4096]));
        let count = carriers.len() as u16;
        let mut rest = &records[..];
        for ((chosen, block), position) in carriers.iter().zip(&mut self.blocks).zip(0..) {
            let (mine, others) = rest.split_at(chosen.room.min(rest.len()));
            rest = others;
            let header = Header {
                epoch: 1,
                generation: 1,
                address: Pba(9),
                window,
                before: WindowNumber(0),
                position,
                carriers: count,
                durable: WindowNumber(0),
            };
            // A plain carrier is always made.
            drop(encode(
                &self.identity,
                &header,
                mine,
                Payload { bytes: &chosen.payload, ..Payload::NONE },
                block,
            ));
        }
        carriers.len()
    }
}
