//! All decoders of bytes that come from a store.

use crate::{
    format::{Frame, Id, Parts, Record},
    state::State,
};

/// The decoders of bytes that come from a store, for fuzzing: each takes any bytes and does not panic.
#[must_use]
pub fn decoders() -> Vec<(&'static str, fn(&[u8]))> {
    // A table, and a frame of the numbers and hashes that follow it.
    let both = |bytes: &[u8]| {
        if let Ok(mut state) = State::decode(bytes)
            && let Some(number) = state.at.checked_add(1)
        {
            let inode = state.next_inode;
            let records = [
                Record::Create { inode, name: "x".into() },
                Record::Size { inode, bytes: 1 << 20 },
                Record::Punch { inode, at: 5, bytes: u64::MAX },
                Record::Remove { inode },
            ];
            let (bytes, _) = Frame::encode(&Parts {
                number,
                writer: state.writer.as_ref().map_or(0, |writer| writer.id),
                nonce: [0; 16],
                before: state.sum,
                table_frame: state.table_frame,
                time: 0,
                records: &records,
                inline: &[],
            });
            if let Ok(frame) = Frame::decode(&bytes, number) {
                let _ = state.apply(&frame);
            }
        }
    };
    let frame = |bytes: &[u8]| {
        let number = bytes.get(8..16).and_then(|n| n.try_into().ok()).map_or(0, u64::from_le_bytes);
        if let Ok(frame) = Frame::decode_checked(bytes, number, false) {
            let mut state = State::empty();
            let _ = state.apply(&frame);
        }
    };
    vec![
        ("frame of a bucket", frame),
        ("table of a bucket", both),
        ("name in a bucket", |bytes| {
            let _ = Id::parse(&String::from_utf8_lossy(bytes));
        }),
    ]
}
