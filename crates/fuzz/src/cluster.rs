//! The cluster engine: its values, keys and names, as they come and with their checksums mended;
//! and a folder whose tables somebody else wrote.

use onefold_cluster::format::{
    Chunk, ChunkId, ObjectId, Reference, Stamp,
    catalogue::{Format, Named, What},
    entry::{self, Base, Entry, Sums},
    key,
    moving::Moving,
    recut::Recut,
};
use onefold_core::{checksum, object::PoolKind};

use crate::reach;

/// Where the examples' entries lie.
const OBJECT: ObjectId = ObjectId { volume: 5, index: 6 };
const OFFSET: u32 = 32_768;

/// With the checksum of an entry or a pending drop at its end.
fn sealed(data: &[u8]) -> Vec<u8> {
    let mut value = data.to_vec();
    let Some(at) = value.len().checked_sub(4) else { return value };
    let object = [&OBJECT.volume.to_be_bytes()[3..], &OBJECT.index.to_be_bytes()[3..]].concat();
    let place = [&object[..], &OFFSET.to_be_bytes(), &value[..at]].concat();
    value[at..].copy_from_slice(&(checksum::fast(0, &place) as u32).to_le_bytes());
    value
}

/// Every decoder of the cluster engine; the first byte says which.
pub fn cluster(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 5 {
        0 => {
            if let Some(format) = reach::noted(Format::decode(data)) {
                assert!(
                    Format::decode(&format.encode()).is_ok_and(|again| again == format),
                    "a catalogue changes by being written"
                );
            }
        }
        1 => {
            if let Some(named) = reach::noted(Named::decode(data)) {
                assert!(
                    Named::decode(&named.encode()).is_ok_and(|again| again == named),
                    "a name changes by being written"
                );
            }
            if let Some(moving) = reach::noted(Moving::decode(data)) {
                assert!(
                    Moving::decode(&moving.encode()).is_ok_and(|again| again == moving),
                    "what is renamed changes by being written"
                );
            }
        }
        2 => {
            for value in [data.to_vec(), sealed(data)] {
                if let Some(entry) = reach::noted(Entry::decode(OBJECT, OFFSET, &value)) {
                    assert!(entry.mask & !Entry::full_mask(entry.length) == 0);
                    let again = Entry::decode(OBJECT, OFFSET, &entry.encode(OBJECT, OFFSET));
                    assert!(
                        again.is_ok_and(|again| again == entry),
                        "an entry changes by being written"
                    );
                }
                if let Some(chunk) = reach::noted(entry::decode_pending(OBJECT, OFFSET, &value)) {
                    assert!(
                        Chunk::parse(&chunk.name()) == Some(chunk),
                        "a chunk changes by being named"
                    );
                }
            }
        }
        3 => {
            if let Some(recut) = reach::noted(Recut::decode(data)) {
                assert!(
                    Recut::decode(&recut.encode()).is_ok_and(|again| again == recut),
                    "a re-cut changes by being written"
                );
            }
        }
        _ => names_and_keys(data),
    }
}

fn names_and_keys(data: &[u8]) {
    reach::is(key::offset(data), "no key of an entry");
    reach::is(key::parse_pending(data), "no key of a pending drop");
    reach::is(key::parse_reference(data), "no key of a reference");
    reach::is(key::parse_listed(data), "no key of the dirty list");
    let _ = key::parse_numbered(b'B', data);
    let name = String::from_utf8_lossy(data);
    if let Some(object) = reach::is(ObjectId::parse(&name), "no name of an object") {
        let _ = object.name();
    }
    if let Some(chunk) = reach::is(Chunk::parse(&name), "no name of a chunk") {
        assert!(Chunk::parse(&chunk.name()) == Some(chunk), "a chunk changes by being named");
    }
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    let chunk = Chunk { id: ChunkId { hash: [7; 32], length: 32_768 }, copy: 3 };
    let entry = Entry {
        length: 32_768,
        dirty: true,
        mask: 0x81,
        base: Some(Base { chunk, stamp: Stamp(9) }),
        stamp: Stamp(1 << 40),
        sums: Sums::NONE,
    };
    // As a sealed store has it, with the sums of its two blocks.
    let mut summed = entry.encode(OBJECT, OFFSET);
    summed[0] |= 4;
    summed.extend([9; 16]);
    let named = Named { what: What::Put, id: 5, bytes: 6, pieces: 7, moves: 8 };
    let reference = Reference { object: OBJECT, offset: OFFSET, stamp: Stamp(77) };
    [
        (0, Format::new([1; 16], [2; 32], PoolKind::Erasure).encode()),
        (1, named.encode()),
        (1, Moving { named, other: "old".into() }.encode()),
        (2, entry.encode(OBJECT, OFFSET)),
        (2, sealed(&summed)),
        (2, Entry { base: None, dirty: false, ..entry }.encode(OBJECT, OFFSET)),
        (2, entry::encode_pending(OBJECT, OFFSET, &chunk)),
        (3, Recut { range: 4096..8192, stamp: Stamp(5) }.encode()),
        (4, key::entry(OFFSET)),
        (4, key::pending(OFFSET, Stamp(9))),
        (4, key::reference(&reference)),
        (4, key::listed(OBJECT, Stamp(9))),
        (4, OBJECT.name().name.into_bytes()),
        (4, chunk.name().into_bytes()),
    ]
    .into_iter()
    .map(|(kind, value)| [&[kind][..], &value].concat())
    .collect()
}
