//! A frame of the operations log: what one append says, whole or not at all.
//!
//! Frames follow each other at multiples of 64 bytes. Each bears the sequence number, the checksum
//! of the frame before, and its own, keyed with the archive's secret: nobody can write one into a
//! stream's name.

use std::borrow::Cow;

use onefold_core::Result;
use onefold_seal::SIGNATURE_BYTES;

use super::{
    bytes::{Reader, Writer},
    record::PUT_PAYLOAD_MAX,
    sealing::What,
};
use crate::format::Identity;

/// Frames begin at multiples of this.
pub(crate) const FRAME_ALIGN: u64 = 64;

/// Bytes of the header.
pub(crate) const FRAME_HEADER_BYTES: usize = 40;

/// Bytes of records in a frame at most.
pub(crate) const FRAME_PAYLOAD_MAX: usize = 64 << 20;

/// Bytes that a sealed frame has beside its records at most: their length, zeroes that hide it, and a
/// half of the tag.
pub(crate) const FRAME_SEALED_MAX: usize = 4 + SIGNED_BYTES + FRAME_ALIGN as usize + 8;

/// Bytes behind the records where keys have roles: who signed, and the signature.
const SIGNED_BYTES: usize = 4 + SIGNATURE_BYTES;

/// The first bytes of the message of a frame, which its writer signs.
const SIGNED: &[u8; 32] = b"onefold archive, a signed frame\n";

/// Bytes of a frame of a put key at most, with header and padding.
pub(crate) const PUT_FRAME_MAX: u64 = ((FRAME_HEADER_BYTES + PUT_PAYLOAD_MAX + FRAME_SEALED_MAX)
    as u64)
    .next_multiple_of(FRAME_ALIGN);

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
    pub payload: Cow<'a, [u8]>,
    /// The number of the key area as of this frame; 0 in a plain archive.
    pub keys: u32,
    /// Where keys have roles: the number of the key that signed, as the frame says it, and the signature.
    /// [`decode`] does not verify them.
    pub signed: Option<(u32, [u8; SIGNATURE_BYTES])>,
    /// Bytes with header and padding.
    pub bytes: u64,
}

/// The bytes of a frame, and its checksum.
///
/// # Errors
/// `Io`: what seals the frame refuses to.
pub fn encode(
    identity: &Identity,
    sequence: u64,
    epoch: u32,
    before: u64,
    payload: &[u8],
) -> Result<(Vec<u8>, u64)> {
    encode_behind(identity, (sequence, epoch), (before, &[0; 32]), payload)
}

/// The message of a frame that its writer signs: all that the frame says, and the head of all changes before.
pub(crate) fn signed_message(
    identity: &Identity,
    (number, sequence, epoch, keys): (u32, u64, u32, u32),
    head: &[u8; 32],
    payload: &[u8],
) -> Vec<u8> {
    let mut w = Writer(Vec::with_capacity(SIGNED.len() + 68 + payload.len()));
    w.raw(SIGNED).raw(&identity.id).u32(number).u64(sequence).u32(epoch).u32(keys);
    w.raw(head).raw(payload);
    w.0
}

/// The bytes of a frame behind these changes, the checksum of the last one and the head of all, and its own
/// checksum. Where keys have roles, this process signs the frame behind that head.
pub(crate) fn encode_behind(
    identity: &Identity,
    (sequence, epoch): (u64, u32),
    (before, head): (u64, &[u8; 32]),
    payload: &[u8],
) -> Result<(Vec<u8>, u64)> {
    let keys = identity.sealing().map_or(0, |sealing| sealing.keys() as u32);
    let mut body = Vec::with_capacity(payload.len() + FRAME_SEALED_MAX);
    if identity.sealing().is_some() {
        body.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    }
    body.extend_from_slice(payload);
    if let Some(roles) = identity.sealing().and_then(|sealing| sealing.roles()) {
        let number = roles.number();
        let message = signed_message(identity, (number, sequence, epoch, keys), head, payload);
        body.extend_from_slice(&number.to_le_bytes());
        body.extend_from_slice(&roles.sign(&message)?);
    }
    if identity.sealing().is_some() {
        // The length of the records is hidden in that of the frame.
        let all = FRAME_HEADER_BYTES + body.len() + identity.tail();
        body.resize(all.next_multiple_of(FRAME_ALIGN as usize) - FRAME_HEADER_BYTES, 0);
    }
    let mut w = Writer(Vec::with_capacity(FRAME_HEADER_BYTES + body.len() + 64));
    w.u32(MAGIC).u32(body.len() as u32).u64(sequence).u32(epoch).u32(keys).u64(before).u64(0);
    let checksum = identity.seal(What::Frame, (0, sequence), &w.0, &mut body)?;
    w.raw(&body);
    w.0[FRAME_HEADER_BYTES - 8..FRAME_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    w.0.resize(w.0.len().next_multiple_of(FRAME_ALIGN as usize), 0);
    Ok((w.0, checksum))
}

/// Bytes of the frame that begins with this header, as it says itself, without padding; `None`
/// where no frame begins.
#[must_use]
pub(crate) fn claimed(header: &[u8]) -> Option<usize> {
    let mut r = Reader(header, None);
    let (magic, length) = (r.u32().ok()?, r.u32().ok()? as usize);
    (magic == MAGIC && length <= FRAME_PAYLOAD_MAX + FRAME_SEALED_MAX)
        .then_some(FRAME_HEADER_BYTES + length)
}

/// The header of a frame as it stands there, which nobody proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    length: u32,
    sequence: u64,
    before: u64,
    checksum: u64,
}

impl Header {
    /// The header that `bytes` begin with; `None` where no frame begins.
    #[must_use]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Header> {
        claimed(bytes)?;
        let mut r = Reader(bytes, None);
        let (_, length, sequence, _) = (r.u32().ok()?, r.u32().ok()?, r.u64().ok()?, r.u64().ok()?);
        Some(Header { length, sequence, before: r.u64().ok()?, checksum: r.u64().ok()? })
    }

    /// Bytes of the frame with header and padding.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        (FRAME_HEADER_BYTES as u64 + u64::from(self.length)).next_multiple_of(FRAME_ALIGN)
    }

    /// True when this frame comes next after the other one.
    #[must_use]
    pub(crate) fn follows(&self, other: &Header) -> bool {
        Some(self.sequence) == other.sequence.checked_add(1) && self.before == other.checksum
    }

    /// True when this frame has a higher number than the other one.
    #[must_use]
    pub(crate) fn is_later(&self, other: &Header) -> bool {
        self.sequence > other.sequence
    }
}

/// The number of the frame that begins with this header, as it says itself; 0 where it is not whole.
#[must_use]
pub(crate) fn claimed_sequence(header: &[u8]) -> u64 {
    header.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The frame that `bytes` begin with, if it is whole.
#[must_use]
pub fn decode<'a>(identity: &Identity, bytes: &'a [u8], believe: bool) -> Option<(Frame<'a>, u64)> {
    let mut r = Reader(bytes, None);
    if r.u32().ok()? != MAGIC {
        return None;
    }
    let length = r.u32().ok()? as usize;
    let (sequence, epoch, keys, before, checksum) =
        (r.u64().ok()?, r.u32().ok()?, r.u32().ok()?, r.u64().ok()?, r.u64().ok()?);
    let is_sealed = identity.sealing().is_some();
    if length > FRAME_PAYLOAD_MAX + if is_sealed { FRAME_SEALED_MAX } else { 0 } {
        return None;
    }
    let there = length.min(r.0.len());
    if there < length && !believe {
        return None;
    }
    let payload = r.take(there).ok()?;
    let length = there;
    let beside = &[&bytes[..FRAME_HEADER_BYTES - 8], &[0; 8]].concat()[..];
    let mut signed = None;
    let payload = if is_sealed {
        let mut body = payload.to_vec();
        if !identity.open(What::Frame, (0, sequence), beside, &mut body, checksum) {
            return None;
        }
        let records = u32::from_le_bytes(*body.first_chunk()?) as usize;
        body.drain(..4);
        if records > body.len() {
            return None;
        }
        if identity.sealing().is_some_and(|sealing| sealing.roles().is_some()) {
            let (number, rest) = body.get(records..)?.split_first_chunk()?;
            signed = Some((u32::from_le_bytes(*number), *rest.first_chunk()?));
        }
        body.truncate(records);
        Cow::Owned(body)
    } else {
        if identity.checksum_of(&[beside, payload]) != checksum && !believe {
            return None;
        }
        Cow::Borrowed(payload)
    };
    let bytes = ((FRAME_HEADER_BYTES + length) as u64).next_multiple_of(FRAME_ALIGN);
    Some((Frame { sequence, epoch, checksum, payload, keys, signed, bytes }, before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_frame_is_none() {
        let identity = Identity::new([1; 16], &[2; 32]);
        let (bytes, checksum) = encode(&identity, 9, 3, 55, &[7; 100]).unwrap();
        assert_eq!(bytes.len(), 192);
        let (frame, before) = decode(&identity, &bytes, false).unwrap();
        assert_eq!(
            (frame.sequence, frame.epoch, frame.checksum, &*frame.payload, before),
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
