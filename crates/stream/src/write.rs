//! Writing a stream.

use std::io::Write;

use onefold_core::{Block, Error, Result};

use crate::{
    Begin, Form, Totals,
    frames::{COMPRESSED, FrameWriter, Of, first_proof, unwritten},
    offer::{HeldProof, Offer},
};

/// The level at which data is compressed: faster than most networks.
const LEVEL: i32 = 1;

/// Writes a stream.
pub struct StreamWriter<W: Write> {
    pub(crate) frames: FrameWriter<W>,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    /// For what was compressed.
    small: Vec<u8>,
    totals: Totals,
    form: Form,
}

impl<W: Write> StreamWriter<W> {
    /// One that begins; with `compress`, data is compressed.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn begin(out: W, begin: &Begin, compress: bool) -> Result<StreamWriter<W>> {
        StreamWriter::begin_as(out, false, begin, compress)
    }

    /// One that begins, and may have lost blocks when the sender `skips` damage.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn begin_as(
        mut out: W,
        skips: bool,
        begin: &Begin,
        compress: bool,
    ) -> Result<StreamWriter<W>> {
        let form = Form { negotiated: false, skips };
        let magic = form.magic();
        out.write_all(&magic).map_err(unwritten)?;
        StreamWriter::after(out, first_proof(&magic), form, begin, compress)
    }

    /// The frames of a sender that asks what is missing, with the key on which both sides agreed, and
    /// that may skip damage.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn begin_negotiated(
        out: W,
        key: [u8; 32],
        skips: bool,
        begin: &Begin,
        compress: bool,
    ) -> Result<StreamWriter<W>> {
        StreamWriter::after(out, key, Form { negotiated: true, skips }, begin, compress)
    }

    fn after(
        out: W,
        key: [u8; 32],
        form: Form,
        begin: &Begin,
        compress: bool,
    ) -> Result<StreamWriter<W>> {
        let compressor = if compress {
            let made = zstd::bulk::Compressor::new(LEVEL);
            Some(made.map_err(|e| Error::from_io("zstd can't be begun", e))?)
        } else {
            None
        };
        let frames = FrameWriter::new(out, key);
        let totals = Totals::default();
        let mut writer = StreamWriter { frames, compressor, small: Vec::new(), totals, form };
        let payload = begin.encode();
        writer.frames.put(Of::Begin, 0, begin.start, begin.blocks, &payload)?;
        Ok(writer)
    }

    /// Writes blocks that hold nothing, or zeroes that were written.
    ///
    /// # Errors
    /// Those of the output.
    pub fn empty(&mut self, first: u64, blocks: u64, zeroes: bool) -> Result<()> {
        let (kind, total) = if zeroes {
            (Of::Zeroes, &mut self.totals.zeroes)
        } else {
            (Of::Hole, &mut self.totals.holes)
        };
        *total += blocks;
        self.frames.put(kind, 0, first, blocks, &[])
    }

    /// Writes blocks with their data, at most [`DATA_BLOCKS_MAX`].
    ///
    /// # Errors
    /// Those of the output.
    pub fn data(&mut self, first: u64, data: &[Block]) -> Result<()> {
        let blocks = data.len() as u64;
        self.totals.data += blocks;
        let plain = onefold_core::block::bytes(data);
        if let Some(compressor) = &mut self.compressor {
            // What does not become smaller has no room.
            self.small.resize(plain.len() - 1, 0);
            if let Ok(bytes) = compressor.compress_to_buffer(plain, &mut self.small[..]) {
                let small = &self.small[..bytes];
                return self.frames.put(Of::Data, COMPRESSED, first, blocks, small);
            }
        }
        self.frames.put(Of::Data, 0, first, blocks, plain)
    }

    /// Writes blocks that hold what was sent for those from `as_at` on, at most [`DATA_BLOCKS_MAX`].
    ///
    /// # Errors
    /// Those of the output.
    pub fn repeat(&mut self, first: u64, blocks: u64, as_at: u64) -> Result<()> {
        self.totals.repeats += blocks;
        self.frames.put(Of::Repeat, 0, first, blocks, &as_at.to_le_bytes())
    }

    /// Writes that blocks could not be read; only a sender that skips damage does.
    ///
    /// # Errors
    /// Those of the output.
    pub fn lost(&mut self, first: u64, blocks: u64) -> Result<()> {
        self.totals.lost += blocks;
        self.frames.put(Of::Lost, 0, first, blocks, &[])
    }

    /// Offers blocks by their fingerprints, and sees to it that they go out: an answer is waited for.
    ///
    /// # Errors
    /// Those of the output.
    pub fn offer(&mut self, offer: &Offer) -> Result<()> {
        let first = offer.runs.first().map_or(0, |run| run.0);
        let payload = offer.encode();
        self.frames.put(Of::Offer, 0, first, offer.fingerprints.len() as u64, &payload)?;
        self.frames.flush()
    }

    /// Writes that blocks hold what was offered for them, which this is.
    ///
    /// # Errors
    /// Those of the output.
    pub fn held(&mut self, first: u64, data: &[Block]) -> Result<()> {
        let blocks = data.len() as u64;
        self.totals.held += blocks;
        let proof = HeldProof::of(self.frames.proof, onefold_core::block::bytes(data));
        self.frames.put(Of::Held, 0, first, blocks, &proof.digest)
    }

    /// Ends the stream of so many blocks, and gives what it held.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end(mut self, blocks: u64) -> Result<Totals> {
        let payload = self.totals.encode(self.form);
        self.frames.put(Of::End, 0, 0, blocks, &payload)?;
        self.frames.flush()?;
        Ok(self.totals)
    }
}
