//! Streams of snapshots, as a stranger may send them: as they come, and with their proofs repaired so
//! that what the frames say is looked at.

use onefold_block::{Begin, Content, Next, NoDedup, Offer, StreamReader, StreamWriter};
use onefold_core::{BLOCK_BYTES, Block, Fingerprint, checksum};

use crate::reach;

const MAGIC_BYTES: usize = 16;
const HEADER_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;

/// The version of the stream of a sender that skips damage.
const SKIPPING: u8 = 3;

/// Frames that are accepted rise, lie within the size, and hold as much as they say.
pub fn stream(data: &[u8]) {
    look(StreamReader::begin(data));
    let proven = proven(data);
    look(StreamReader::begin(&proven[..]));
    // The same of a sender that asks, behind the proofs of the secret.
    let rest = proven.get(MAGIC_BYTES..).unwrap_or_default();
    let key = key(&proven);
    for skips in [false, true] {
        look(StreamReader::begin_negotiated(rest, key, skips));
    }
}

fn look(begun: onefold_core::Result<StreamReader<&[u8]>>) {
    let Ok(mut reader) = begun else { return };
    let size = reader.about().blocks;
    let mut at = reader.about().start;
    assert!(at <= size, "it goes on beyond its end");
    loop {
        match reader.next_frame() {
            Err(_) => return,
            Ok(Next::End(blocks)) => {
                assert!(blocks >= at && (size == 0 || size == blocks), "it ends elsewhere");
                reach::good();
                return;
            }
            Ok(Next::Offer(offer)) => {
                let mut next = at;
                for &(first, blocks) in &offer.runs {
                    assert!(first >= next && blocks > 0, "runs meet");
                    next = first + blocks;
                    assert!(size == 0 || next <= size, "a run lies beyond");
                }
                let offered: u64 = offer.runs.iter().map(|run| run.1).sum();
                assert!(offered == offer.fingerprints.len() as u64 && offered <= 65_536);
                assert!(!offer.runs.is_empty() && offer.runs.len() <= 4096, "too many runs");
            }
            Ok(Next::Frame(frame)) => {
                assert!(frame.first >= at && frame.blocks > 0, "frames meet");
                let end = frame.first.checked_add(frame.blocks);
                assert!(end.is_some_and(|end| size == 0 || end <= size), "a frame lies beyond");
                match &frame.content {
                    Content::Data(data) => {
                        assert!(data.len() as u64 == frame.blocks * BLOCK_BYTES as u64);
                        assert!(data.len() <= 1 << 20, "a frame is too large");
                    }
                    Content::Repeat(as_at) => {
                        assert!(as_at + frame.blocks <= frame.first, "it repeats what is to come");
                    }
                    Content::Held(proof) => {
                        assert!(frame.blocks <= 256 && !proof.proves(b"something else"));
                    }
                    Content::Lost => assert!(frame.blocks <= 8192, "too many are lost"),
                    Content::Hole | Content::Zeroes => {}
                }
                at = frame.first + frame.blocks;
            }
        }
    }
}

/// The same with numbers and proofs as they should be.
fn proven(data: &[u8]) -> Vec<u8> {
    let mut all = data.to_vec();
    let good = &examples()[0];
    if all.len() < MAGIC_BYTES {
        return all;
    }
    // Of a sender that skips damage, or of one that does not.
    let version = all[MAGIC_BYTES - 1];
    all[..MAGIC_BYTES].copy_from_slice(&good[..MAGIC_BYTES]);
    if version == SKIPPING {
        all[MAGIC_BYTES - 1] = SKIPPING;
    }
    let mut proof = key(&all);
    let mut at = MAGIC_BYTES;
    for sequence in 0u64.. {
        let Some(length) = all.get(at + 4..at + 8) else { break };
        let payload = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let end = at + HEADER_BYTES + payload;
        if payload > 2 << 20 || all.len() < end + PROOF_BYTES {
            break;
        }
        all[at + 8..at + 16].copy_from_slice(&sequence.to_le_bytes());
        proof = checksum::chunk_name(&proof, &all[at..end]);
        all[end..end + PROOF_BYTES].copy_from_slice(&proof);
        at = end + PROOF_BYTES;
    }
    all
}

/// The key of the first frame; zeroes when there is none.
fn key(good: &[u8]) -> [u8; PROOF_BYTES] {
    let mut key = [0; PROOF_BYTES];
    if good.len() < MAGIC_BYTES {
        return key;
    }
    key[..16].copy_from_slice(&good[..16]);
    key[16..].copy_from_slice(&good[..16]);
    key
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    let all = [true, false].map(|compress| {
        let mut bytes = Vec::new();
        example(&mut bytes, compress).map(|()| bytes)
    });
    let skipping = {
        let mut bytes = Vec::new();
        skipping(&mut bytes).map(|()| bytes)
    };
    let mut all: Vec<Vec<u8>> = all.into_iter().flatten().collect();
    all.extend(negotiated(&all[0]));
    all.extend(skipping);
    all
}

/// One of a sender that skips damage.
fn skipping(bytes: &mut Vec<u8>) -> onefold_core::Result<()> {
    let begin = Begin { guid: [1; 16], volume: "vm1".to_owned(), blocks: 5000, ..Begin::default() };
    let mut writer = StreamWriter::begin_as(bytes, true, &begin, false)?;
    writer.data(1, &Block::zeroed_vec(2))?;
    writer.lost(5, 300)?;
    writer.empty(400, 7, false)?;
    writer.lost(407, 1)?;
    writer.end(5000).map(drop)
}

/// One of a sender that asks, with the same key as the others.
fn negotiated(other: &[u8]) -> onefold_core::Result<Vec<u8>> {
    let mut bytes = other[..MAGIC_BYTES].to_vec();
    let begin = Begin { guid: [1; 16], volume: "vm1".to_owned(), blocks: 5000, ..Begin::default() };
    let mut writer = StreamWriter::begin_negotiated(&mut bytes, key(other), false, &begin, false)?;
    writer.offer(&Offer {
        runs: vec![(5, 2), (9, 1)],
        fingerprints: vec![Fingerprint([1; 16]), Fingerprint([2; 16]), Fingerprint([0; 16])],
    })?;
    writer.held(5, &Block::zeroed_vec(2))?;
    writer.empty(9, 1, true)?;
    writer.end(5000)?;
    Ok(bytes)
}

fn example(bytes: &mut Vec<u8>, compress: bool) -> onefold_core::Result<()> {
    let begin = Begin {
        guid: [1; 16],
        base: [2; 16],
        made_ms: 3,
        volume: "vm1".to_owned(),
        snapshot: "monday".to_owned(),
        blocks: 5000,
        start: 1,
        no_dedup: NoDedup::new(vec![1..2, 7..9])?,
    };
    let mut writer = StreamWriter::begin(bytes, &begin, compress)?;
    let mut blocks = Block::zeroed_vec(3);
    blocks.iter_mut().zip(1..).for_each(|(block, n)| block.0[100] = n);
    writer.data(1, &blocks)?;
    writer.repeat(10, 2, 1)?;
    writer.empty(20, 1000, false)?;
    writer.empty(1020, 5, true)?;
    writer.end(5000).map(drop)
}
