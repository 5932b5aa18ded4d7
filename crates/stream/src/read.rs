//! Reading a stream.

use std::io::Read;

use onefold_core::{BLOCK_BYTES, Error, Kind, Result};

use crate::{
    Begin, Content, DATA_BLOCKS_MAX, Form, Frame, LOST_BLOCKS_MAX, MAGIC_BYTES, Totals,
    frames::{COMPRESSED, FrameReader, Header, Of, bad, fill, first_proof},
    offer::{HeldProof, Offer},
};
use crate::{VOLUME_BLOCKS_MAX, from_low_bytes};

/// Reads a stream from somebody who is not trusted: every frame is proven before it is looked at,
/// and costs at most 2 MiB.
pub struct StreamReader<R: Read> {
    frames: FrameReader<R>,
    begin: Begin,
    /// The end of the last frame, in blocks.
    at: u64,
    totals: Totals,
    unpacker: zstd::bulk::Decompressor<'static>,
    form: Form,
}

/// The next of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A frame.
    Frame(Frame),
    /// Blocks that the sender would send: it waits to hear which of them are missing.
    Offer(Offer),
    /// The end, with the size in blocks.
    End(u64),
}

impl<R: Read> StreamReader<R> {
    /// Reads the beginning of a stream.
    ///
    /// # Errors
    /// `Corrupt` for what is no stream, `Unsupported` for one of a newer version, `Io`.
    pub fn begin(mut input: R) -> Result<StreamReader<R>> {
        let mut magic = [0; MAGIC_BYTES];
        fill(&mut input, &mut magic)?;
        let (kind, message) = match Form::of(&magic) {
            Some(form) if !form.negotiated => {
                return StreamReader::after(input, first_proof(&magic), form);
            }
            Some(_) => {
                let message = "the sender asks what is missing (--negotiate), which only a receive \
                               that it has started itself can tell it";
                (Kind::InvalidInput, message)
            }
            None if magic[..15] == Form::default().magic()[..15] => {
                (Kind::Unsupported, "the stream is of a newer version of onefold send")
            }
            None => (Kind::Corrupt, "this is no stream of onefold send"),
        };
        Err(Error::new(kind, message))
    }

    /// That of a sender that asks what is missing, from its first frame on, with the key on which both
    /// sides agreed; its beginning says whether it `skips` damage.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn begin_negotiated(input: R, key: [u8; 32], skips: bool) -> Result<StreamReader<R>> {
        StreamReader::after(input, key, Form { negotiated: true, skips })
    }

    fn after(input: R, key: [u8; 32], form: Form) -> Result<StreamReader<R>> {
        let unpacker = zstd::bulk::Decompressor::new();
        let mut reader = StreamReader {
            frames: FrameReader::new(input, key),
            begin: Begin::default(),
            at: 0,
            totals: Totals::default(),
            unpacker: unpacker.map_err(|e| Error::from_io("zstd can't be begun", e))?,
            form,
        };
        let (header, payload) = reader.frames.raw()?;
        let begin = Begin::decode(header.first, header.blocks, &payload);
        reader.begin =
            begin.filter(|_| header.kind == Of::Begin).ok_or_else(|| bad("beginning"))?;
        reader.at = reader.begin.start;
        Ok(reader)
    }

    /// A planted bug: frames are taken in any order, and not missed.
    #[cfg(feature = "planted-bugs")]
    pub fn in_any_order(&mut self) {
        self.frames.keeps_order = false;
    }

    /// The beginning of the stream: its snapshot and size.
    #[must_use]
    pub fn about(&self) -> &Begin {
        &self.begin
    }

    /// The sums of the blocks that came so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The next frame, or the end.
    ///
    /// # Errors
    /// `Corrupt` for a frame that is damaged, out of order, or cut off.
    pub fn next_frame(&mut self) -> Result<Next> {
        let key = self.frames.proof;
        let (header, payload) = self.frames.raw()?;
        if header.kind == Of::Offer && self.form.negotiated {
            let offer = Offer::decode(&payload).filter(|offer| {
                let whole = offer.fingerprints.len() as u64 == header.blocks;
                whole && offer.first() == header.first && offer.lies_in(self.at, self.most())
            });
            return Ok(Next::Offer(offer.ok_or_else(|| bad("offer"))?));
        }
        if header.kind == Of::End {
            let size = [0, header.blocks].contains(&self.begin.blocks);
            let whole = header.blocks >= self.at && header.blocks <= VOLUME_BLOCKS_MAX && size;
            let missed = payload != self.totals.encode(self.form) && self.frames.keeps_order;
            if !whole || header.first != 0 || missed {
                return Err(bad("end"));
            }
            return Ok(Next::End(header.blocks));
        }
        let end = header.first.checked_add(header.blocks).filter(|&end| end <= self.most());
        let end = end.filter(|_| header.blocks > 0).ok_or_else(|| bad("range"))?;
        if self.frames.keeps_order && header.first < self.at {
            return Err(bad("order of frames"));
        }
        let content = self.content(&header, payload, key)?;
        self.at = end;
        Ok(Next::Frame(Frame { first: header.first, blocks: header.blocks, content }))
    }

    /// The size as far as it is known.
    fn most(&self) -> u64 {
        if self.begin.blocks == 0 { VOLUME_BLOCKS_MAX } else { self.begin.blocks }
    }

    fn content(&mut self, header: &Header, payload: Vec<u8>, key: [u8; 32]) -> Result<Content> {
        let bytes =
            usize::try_from(header.blocks).unwrap_or(usize::MAX).saturating_mul(BLOCK_BYTES);
        let (content, total) = match header.kind {
            Of::Hole if payload.is_empty() => (Content::Hole, &mut self.totals.holes),
            Of::Zeroes if payload.is_empty() => (Content::Zeroes, &mut self.totals.zeroes),
            Of::Data if header.blocks <= DATA_BLOCKS_MAX => {
                let data = if header.flags == COMPRESSED {
                    let unpacked = self.unpacker.decompress(&payload, bytes);
                    unpacked.map_err(|e| bad("compressed data").caused_by(e))?
                } else {
                    payload
                };
                if data.len() != bytes {
                    return Err(bad("data"));
                }
                (Content::Data(data), &mut self.totals.data)
            }
            Of::Repeat if payload.len() == 8 && header.blocks <= DATA_BLOCKS_MAX => {
                let as_at: u64 = from_low_bytes(&payload);
                let end = as_at.checked_add(header.blocks);
                // Blocks before the start were sent by the stream that this one goes on with.
                if end.is_none_or(|end| end > self.at.min(header.first)) {
                    return Err(bad("repeat"));
                }
                (Content::Repeat(as_at), &mut self.totals.repeats)
            }
            Of::Held if self.form.negotiated && header.blocks <= DATA_BLOCKS_MAX => {
                let digest = payload.try_into().map_err(|_| bad("digest"))?;
                (Content::Held(HeldProof { key, digest }), &mut self.totals.held)
            }
            Of::Lost
                if self.form.skips && payload.is_empty() && header.blocks <= LOST_BLOCKS_MAX =>
            {
                (Content::Lost, &mut self.totals.lost)
            }
            _ => return Err(bad("kind of frame")),
        };
        *total = total.checked_add(header.blocks).ok_or_else(|| bad("range"))?;
        Ok(content)
    }
}
