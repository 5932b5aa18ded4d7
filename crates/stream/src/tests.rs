use onefold_core::{BLOCK_BYTES, Block, Kind, Result};

use super::{
    frames::{HEADER_BYTES, Of, PROOF_BYTES},
    *,
};

fn about() -> Begin {
    Begin {
        guid: [1; 16],
        base: [2; 16],
        made_ms: 5,
        volume: "vm1".into(),
        snapshot: "monday".into(),
        blocks: 1000,
        start: 3,
        no_dedup: NoDedup::new(vec![1..2, 5..9]).unwrap(),
    }
}

fn block(byte: u8) -> Block {
    let mut block = Block::zeroed();
    block.0.fill(byte);
    *block
}

fn stream(compress: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::begin(&mut bytes, &about(), compress).unwrap();
    writer.data(3, &[block(1), block(2)]).unwrap();
    writer.repeat(7, 2, 3).unwrap();
    writer.empty(9, 1, true).unwrap();
    writer.empty(20, 900, false).unwrap();
    writer.end(1000).unwrap();
    bytes
}

/// All frames, or the error.
fn read(bytes: &[u8]) -> Result<Vec<Frame>> {
    let mut reader = StreamReader::begin(bytes)?;
    let mut frames = Vec::new();
    loop {
        match reader.next_frame()? {
            Next::Frame(frame) => frames.push(frame),
            Next::Offer(_) => unreachable!("nobody negotiates"),
            Next::End(_) => return Ok(frames),
        }
    }
}

#[test]
fn a_stream_is_read_as_it_was_written() {
    for compress in [false, true] {
        let bytes = stream(compress);
        assert_eq!(bytes.len() > 8192, !compress);
        assert_eq!(StreamReader::begin(&bytes[..]).unwrap().about(), &about());
        let frames = read(&bytes).unwrap();
        let places: Vec<_> = frames.iter().map(|frame| (frame.first, frame.blocks)).collect();
        assert_eq!(places, [(3, 2), (7, 2), (9, 1), (20, 900)]);
        let data = [[1; BLOCK_BYTES], [2; BLOCK_BYTES]].concat();
        assert_eq!(frames[0].content, Content::Data(data));
        assert_eq!(frames[1].content, Content::Repeat(3));
        assert_eq!((&frames[2].content, &frames[3].content), (&Content::Zeroes, &Content::Hole));
    }
}

#[test]
fn no_byte_of_a_stream_changes_unseen_and_none_is_missed() {
    let bytes = stream(true);
    for at in 0..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 1 << (at % 8);
        assert!(read(&other).is_err(), "byte {at}");
        assert!(read(&bytes[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn frames_that_were_exchanged_left_out_or_repeated_are_refused() {
    let bytes = stream(false);
    let mut cuts = vec![MAGIC_BYTES];
    while let Some(header) = bytes.get(cuts[cuts.len() - 1]..).filter(|rest| !rest.is_empty()) {
        let payload = from_low_bytes(&header[4..8]) as usize;
        cuts.push(cuts[cuts.len() - 1] + HEADER_BYTES + payload + PROOF_BYTES);
    }
    let frames: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
    let with = |order: &[usize]| {
        let picked: Vec<u8> = order.iter().flat_map(|&n| frames[n].to_vec()).collect();
        read(&[&Form::default().magic()[..], &picked].concat())
    };
    assert!(with(&[0, 1, 2, 3, 4, 5]).is_ok());
    for order in [&[0, 2, 1, 3, 4, 5][..], &[0, 1, 3, 4, 5], &[0, 1, 1, 2, 3, 4, 5], &[1, 2], &[0]]
    {
        assert!(with(order).is_err(), "{order:?}");
    }
}

#[test]
fn frames_that_a_sender_proved_may_still_be_nonsense() {
    let with = |write: &dyn Fn(&mut StreamWriter<&mut Vec<u8>>)| {
        let mut bytes = Vec::new();
        let mut writer = StreamWriter::begin(&mut bytes, &about(), false).unwrap();
        write(&mut writer);
        writer.end(1000).unwrap();
        read(&bytes)
    };
    assert!(with(&|writer| writer.empty(3, 997, false).unwrap()).is_ok());
    // Beyond the end, before the start, empty, a sum that overflows.
    for (first, blocks) in [(3, 998), (2, 1), (3, 0), (u64::MAX, 2), (5, u64::MAX)] {
        assert!(with(&|writer| writer.empty(first, blocks, false).unwrap()).is_err());
    }
    // Two frames that meet.
    assert!(
        with(&|writer| {
            writer.empty(3, 5, false).unwrap();
            writer.empty(7, 5, true).unwrap();
        })
        .is_err()
    );
    // Repeats of themselves, and of what comes later.
    for (first, blocks, as_at) in [(10, 2, 9), (10, 1, 10), (10, 1, 20), (10, 3, u64::MAX)] {
        assert!(with(&|writer| writer.repeat(first, blocks, as_at).unwrap()).is_err());
    }
    // One that is longer than any data: no frame keeps who takes it from looking up.
    let again = |blocks| {
        with(&|writer| {
            writer.empty(3, 500, true).unwrap();
            writer.repeat(600, blocks, 10).unwrap();
        })
    };
    assert!(again(DATA_BLOCKS_MAX).is_ok());
    assert!(again(DATA_BLOCKS_MAX + 1).is_err());
    assert!(with(&|writer| writer.frames.put(Of::Data, 0, 3, 2, &[0; 4096]).unwrap()).is_err());
    assert!(with(&|writer| writer.frames.put(Of::Hole, 0, 3, 2, &[0]).unwrap()).is_err());
    assert!(with(&|writer| writer.frames.put(Of::Begin, 0, 3, 2, &[]).unwrap()).is_err());
    assert!(with(&|writer| writer.frames.put(Of::Hole, 1, 3, 2, &[]).unwrap()).is_err());
    assert!(
        with(&|writer| writer.frames.put(Of::Data, 1, 3, 1, &[0x28, 0xb5, 0x2f]).unwrap()).is_err()
    );
    // A bomb: more than the frame says.
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
    assert!(with(&|writer| writer.frames.put(Of::Data, 1, 3, 1, &bomb).unwrap()).is_err());
}

#[test]
fn lost_blocks_are_in_streams_of_senders_that_skip_damage_alone() {
    let with = |skips: bool, blocks: u64| {
        let mut bytes = Vec::new();
        let about = Begin { blocks: 100_000, ..about() };
        let mut writer = StreamWriter::begin_as(&mut bytes, skips, &about, false).unwrap();
        writer.data(3, &[block(1)]).unwrap();
        writer.lost(7, blocks).unwrap();
        assert_eq!(writer.end(100_000).unwrap().lost, blocks);
        bytes
    };
    let bytes = with(true, LOST_BLOCKS_MAX);
    let frames = read(&bytes).unwrap();
    assert_eq!((frames[1].blocks, &frames[1].content), (LOST_BLOCKS_MAX, &Content::Lost));
    assert!(read(&with(true, LOST_BLOCKS_MAX + 1)).is_err());
    assert!(read(&with(false, 1)).is_err());
    // A program that knows the first two versions refuses such a stream by its beginning, and one of
    // which somebody changed the version is no other stream.
    assert_eq!(bytes[15], 3);
    assert_eq!(Form { negotiated: true, skips: true }.magic()[15], 4);
    let mut other = bytes;
    other[15] = 1;
    assert!(read(&other).is_err());
}

#[test]
fn what_is_no_stream_is_said() {
    let mut newer = Form::default().magic();
    newer[15] = 5;
    assert_eq!(read(&newer).unwrap_err().kind(), Kind::Unsupported);
    assert_eq!(read(b"GIF89a..........").unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(read(b"one").unwrap_err().kind(), Kind::Io);
}
