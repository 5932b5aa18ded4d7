//! All decoders of bytes that come from a store.

use crate::{
    format::{Frame, Id},
    state::State,
};

/// The decoders of bytes that come from a store, for fuzzing: each takes any bytes and does not panic.
#[must_use]
pub fn decoders() -> Vec<(&'static str, fn(&[u8]))> {
    let frame = |bytes: &[u8]| {
        let number = bytes.get(8..16).and_then(|n| n.try_into().ok()).map_or(0, u64::from_le_bytes);
        if let Ok(frame) = Frame::decode_checked(bytes, number, false) {
            let mut state = State::empty();
            let _ = state.apply(&frame);
        }
    };
    vec![
        ("frame of a bucket", frame),
        ("table of a bucket", |bytes| drop(State::decode(bytes))),
        ("name in a bucket", |bytes| {
            let _ = Id::parse(&String::from_utf8_lossy(bytes));
        }),
    ]
}
