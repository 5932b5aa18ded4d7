//! Streams of snapshots, as a stranger may send them: as they come, and with their proofs repaired so
//! that what the frames say is looked at.

use onefold_block::{Begin, Content, Next, NoDedup, StreamReader, StreamWriter};
use onefold_core::{BLOCK_BYTES, Block, checksum};

use crate::reach;

const MAGIC_BYTES: usize = 16;
const HEADER_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;

/// Frames that are accepted rise, lie within the size, and hold as much as they say.
pub fn stream(data: &[u8]) {
    look(data);
    look(&proven(data));
}

fn look(bytes: &[u8]) {
    let Ok(mut reader) = StreamReader::begin(bytes) else { return };
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
    all[..MAGIC_BYTES].copy_from_slice(&good[..MAGIC_BYTES]);
    let mut proof = [0; PROOF_BYTES];
    proof[..16].copy_from_slice(&good[..16]);
    proof[16..].copy_from_slice(&good[..16]);
    let mut at = MAGIC_BYTES;
    for sequence in 0u64.. {
        let Some(length) = all.get(at + 4..at + 8) else { break };
        let payload = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let end = at + HEADER_BYTES + payload;
        if payload > 1 << 20 || all.len() < end + PROOF_BYTES {
            break;
        }
        all[at + 8..at + 16].copy_from_slice(&sequence.to_le_bytes());
        proof = checksum::chunk_name(&proof, &all[at..end]);
        all[end..end + PROOF_BYTES].copy_from_slice(&proof);
        at = end + PROOF_BYTES;
    }
    all
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    let all = [true, false].map(|compress| {
        let mut bytes = Vec::new();
        example(&mut bytes, compress).map(|()| bytes)
    });
    all.into_iter().flatten().collect()
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
