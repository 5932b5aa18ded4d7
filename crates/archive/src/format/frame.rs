//! A frame of the operations log: what one append says, whole or not at all.
//!
//! Frames follow each other at multiples of 64 bytes. Each bears the sequence number, the checksum
//! of the frame before, and its own, keyed with the archive's secret: nobody can write one into a
//! stream's name.

use super::bytes::{Reader, Writer};
use crate::format::Identity;

/// Frames begin at multiples of this.
pub(crate) const FRAME_ALIGN: u64 = 64;

/// Bytes of the header.
pub(crate) const FRAME_HEADER_BYTES: usize = 40;

/// Bytes of records in a frame at most.
pub(crate) const FRAME_PAYLOAD_MAX: usize = 64 << 20;

const MAGIC: u32 = 0x4c_46_4e_4f;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its place in the one order of all changes; from 1 on.
    pub sequence: u64,
    /// The epoch in which it was written.
    pub epoch: u32,
    /// Its own checksum, which the next frame bears.
    pub checksum: u64,
    /// The records.
    pub payload: &'a [u8],
    /// Bytes with header and padding.
    pub bytes: u64,
}

/// The bytes of a frame, and its checksum.
#[must_use]
pub fn encode(
    identity: &Identity,
    sequence: u64,
    epoch: u32,
    before: u64,
    payload: &[u8],
) -> (Vec<u8>, u64) {
    let mut w = Writer(Vec::with_capacity(FRAME_HEADER_BYTES + payload.len() + 64));
    w.u32(MAGIC)
        .u32(payload.len() as u32)
        .u64(sequence)
        .u32(epoch)
        .u32(0)
        .u64(before)
        .u64(0)
        .raw(payload);
    let checksum = identity.checksum(&w.0);
    w.0[FRAME_HEADER_BYTES - 8..FRAME_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    w.0.resize(w.0.len().next_multiple_of(FRAME_ALIGN as usize), 0);
    (w.0, checksum)
}

/// Bytes of the frame that begins with this header, as it says itself, without padding; `None`
/// where no frame begins.
#[must_use]
pub(crate) fn claimed(header: &[u8]) -> Option<usize> {
    let mut r = Reader(header, None);
    let (magic, length) = (r.u32().ok()?, r.u32().ok()? as usize);
    (magic == MAGIC && length <= FRAME_PAYLOAD_MAX).then_some(FRAME_HEADER_BYTES + length)
}

/// The frame that `bytes` begin with, if it is whole.
#[must_use]
pub fn decode<'a>(identity: &Identity, bytes: &'a [u8], believe: bool) -> Option<(Frame<'a>, u64)> {
    let mut r = Reader(bytes, None);
    if r.u32().ok()? != MAGIC {
        return None;
    }
    let length = r.u32().ok()? as usize;
    let (sequence, epoch, _, before, checksum) =
        (r.u64().ok()?, r.u32().ok()?, r.u32().ok()?, r.u64().ok()?, r.u64().ok()?);
    if length > FRAME_PAYLOAD_MAX {
        return None;
    }
    let there = length.min(r.0.len());
    if there < length && !believe {
        return None;
    }
    let payload = r.take(there).ok()?;
    let length = there;
    let parts = [&bytes[..FRAME_HEADER_BYTES - 8], &[0; 8], payload];
    if identity.checksum_of(&parts) != checksum && !believe {
        return None;
    }
    let bytes = ((FRAME_HEADER_BYTES + length) as u64).next_multiple_of(FRAME_ALIGN);
    Some((Frame { sequence, epoch, checksum, payload, bytes }, before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_frame_is_none() {
        let identity = Identity::new([1; 16], &[2; 32]);
        let (bytes, checksum) = encode(&identity, 9, 3, 55, &[7; 100]);
        assert_eq!(bytes.len(), 192);
        let (frame, before) = decode(&identity, &bytes, false).unwrap();
        assert_eq!(
            (frame.sequence, frame.epoch, frame.checksum, frame.payload, before),
            (9, 3, checksum, &[7; 100][..], 55)
        );
        for at in 0..140 {
            let mut torn = bytes.clone();
            torn[at] ^= 4;
            assert_eq!(decode(&identity, &torn, false), None, "byte {at}");
        }
        assert_eq!(decode(&identity, &bytes[..100], false), None);
        assert_eq!(decode(&Identity::new([1; 16], &[3; 32]), &bytes, false), None);
    }
}
