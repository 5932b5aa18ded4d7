//! Recipes (dedupv1 3.5): the chunks that make a stream, with their fingerprints, by which `check`
//! names lost chunks and a repair finds copies of them.
//!
//! A recipe is parts one after the other, cut into pieces that are chunks of their own in
//! containers of recipes. No part spans pieces.

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::bytes::{Reader, Writer, corrupt};
use crate::format::{Address, ContainerId};

/// Bytes of a piece at most.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

const RUN: u8 = 1;

const ZEROES: u8 = 2;

const END: u8 = 3;

const SLICE: u8 = 4;

const HOLE: u8 = 5;

const RUN_HEADER_BYTES: usize = 14;

/// A part of a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Chunks of one container, slot after slot.
    Run {
        /// The address of the first.
        first: Address,
        /// Bytes of all.
        bytes: u32,
        /// Their fingerprints.
        fingerprints: Vec<Fingerprint>,
    },
    /// So many zero bytes.
    Zeroes(u64),
    /// A hole of so many bytes, which the file had: only file maps have them.
    Hole(u64),
    /// The end.
    End(End),
    /// A part of one chunk: of a block of a volume, where chunks go on from block to block.
    Slice {
        /// The chunk.
        chunk: Address,
        /// Its fingerprint.
        fingerprint: Fingerprint,
        /// Bytes of it that come before.
        skip: u32,
        /// Bytes.
        bytes: u32,
    },
}

impl Part {
    /// Bytes of content that it stands for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Part::Run { bytes, .. } | Part::Slice { bytes, .. } => u64::from(*bytes),
            Part::Zeroes(bytes) | Part::Hole(bytes) => *bytes,
            Part::End(_) => 0,
        }
    }
}

/// Bytes of a stream or a file at most, as systems have it.
pub(crate) const CONTENT_BYTES_MAX: u64 = i64::MAX as u64;

/// The totals and the digest at a recipe's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Bytes of content.
    pub bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// BLAKE3 of all fingerprints and runs of zeroes.
    pub digest: [u8; 32],
}

/// Sums up the parts of a recipe: the digest, and the counts.
#[derive(Clone, Default)]
pub struct Summary {
    hasher: blake3::Hasher,
    bytes: u64,
    chunks: u64,
}

impl Summary {
    /// Takes a part in.
    pub fn add(&mut self, part: &Part) {
        match part {
            Part::Run { bytes, fingerprints, .. } => {
                fingerprints.iter().for_each(|fingerprint| {
                    self.hasher.update(&fingerprint.0);
                });
                self.bytes = self.bytes.wrapping_add(u64::from(*bytes));
                self.chunks += fingerprints.len() as u64;
            }
            Part::Zeroes(bytes) => {
                self.hasher.update(&bytes.to_le_bytes());
                // A hostile recipe may name any number of bytes, so the sum may wrap.
                self.bytes = self.bytes.wrapping_add(*bytes);
            }
            Part::Slice { fingerprint, skip, bytes, .. } => {
                self.hasher
                    .update(&fingerprint.0)
                    .update(&skip.to_le_bytes())
                    .update(&bytes.to_le_bytes());
                self.bytes = self.bytes.wrapping_add(u64::from(*bytes));
                self.chunks += 1;
            }
            // No recipe has holes.
            Part::End(_) | Part::Hole(_) => {}
        }
    }

    /// The end that belongs to the parts so far.
    #[must_use]
    pub fn end(&self) -> End {
        End { bytes: self.bytes, chunks: self.chunks, digest: *self.hasher.finalize().as_bytes() }
    }
}

/// Gathers chunks into parts, and parts into pieces.
#[derive(Default)]
pub struct RecipeWriter {
    summary: Summary,
    run: Option<(Address, u32, Vec<Fingerprint>)>,
    zeroes: u64,
    piece: Writer,
}

impl RecipeWriter {
    /// The next chunk.
    pub fn chunk(
        &mut self,
        address: Address,
        fingerprint: Fingerprint,
        bytes: u32,
        full: &mut impl FnMut(Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        if self.zeroes > 0 {
            self.close(full)?;
        }
        self.may_grow(u64::from(bytes))?;
        if let Some((first, length, fingerprints)) = &mut self.run {
            let next = usize::from(first.slot) + fingerprints.len();
            let room = PIECE_BYTES.saturating_sub(self.piece.0.len() + RUN_HEADER_BYTES) / 16;
            let follows = first.container == address.container
                && next == usize::from(address.slot)
                && fingerprints.len() < room;
            if follows && length.checked_add(bytes).is_some() {
                *length += bytes;
                fingerprints.push(fingerprint);
                return Ok(());
            }
            self.close(full)?;
        }
        self.run = Some((address, bytes, vec![fingerprint]));
        Ok(())
    }

    /// The next run of zeroes; neighbours are one.
    pub fn zeroes(
        &mut self,
        bytes: u64,
        full: &mut impl FnMut(Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        if self.run.is_some() {
            self.close(full)?;
        }
        self.may_grow(bytes)?;
        self.zeroes += bytes;
        Ok(())
    }

    /// Errors when so many more bytes are too many.
    fn may_grow(&self, bytes: u64) -> Result<()> {
        match self.bytes().checked_add(bytes).filter(|all| *all <= CONTENT_BYTES_MAX) {
            Some(_) => Ok(()),
            None => Err(Error::new(Kind::InvalidInput, "a stream is longer than files can be")),
        }
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.summary.bytes + self.zeroes + self.run.as_ref().map_or(0, |run| u64::from(run.1))
    }

    /// Writes the end; gives what it says.
    pub fn end(mut self, full: &mut impl FnMut(Vec<u8>) -> Result<()>) -> Result<End> {
        self.close(full)?;
        let end = self.summary.end();
        self.part(&Part::End(end), full)?;
        full(std::mem::take(&mut self.piece.0))?;
        Ok(end)
    }

    fn close(&mut self, full: &mut impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        if let Some((first, bytes, fingerprints)) = self.run.take() {
            self.part(&Part::Run { first, bytes, fingerprints }, full)?;
        }
        if self.zeroes > 0 {
            let zeroes = std::mem::take(&mut self.zeroes);
            self.part(&Part::Zeroes(zeroes), full)?;
        }
        Ok(())
    }

    fn part(&mut self, part: &Part, full: &mut impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        self.summary.add(part);
        let needed = match part {
            Part::Run { fingerprints, .. } => RUN_HEADER_BYTES + 16 * fingerprints.len(),
            _ => PART_BYTES_MAX,
        };
        if !self.piece.0.is_empty() && self.piece.0.len() + needed > PIECE_BYTES {
            full(std::mem::take(&mut self.piece.0))?;
        }
        encode(part, &mut self.piece);
        Ok(())
    }
}

/// Bytes of a part that is no run.
const PART_BYTES_MAX: usize = 49;

/// Appends the bytes of a part.
pub(crate) fn encode(part: &Part, w: &mut Writer) {
    let address = |w: &mut Writer, address: &Address| {
        w.raw(&address.container.0.to_le_bytes()[..5]).u16(address.slot);
    };
    match part {
        Part::Run { first, bytes, fingerprints } => {
            address(w.u8(RUN), first);
            w.u16(fingerprints.len() as u16).u32(*bytes);
            fingerprints.iter().for_each(|fingerprint| {
                w.raw(&fingerprint.0);
            });
        }
        Part::Zeroes(bytes) => {
            w.u8(ZEROES).u64(*bytes);
        }
        Part::Hole(bytes) => {
            w.u8(HOLE).u64(*bytes);
        }
        Part::End(end) => {
            w.u8(END).u64(end.bytes).u64(end.chunks).raw(&end.digest);
        }
        Part::Slice { chunk, fingerprint, skip, bytes } => {
            address(w.u8(SLICE), chunk);
            w.u32(*skip).u32(*bytes).raw(&fingerprint.0);
        }
    }
}

/// The parts of a piece.
///
/// # Errors
/// `Corrupt`.
pub fn parts(piece: &[u8]) -> Result<Vec<Part>> {
    if piece.len() > PIECE_BYTES {
        return Err(corrupt("a piece of a recipe can't be so long"));
    }
    let mut r = Reader(piece, None);
    let mut parts = Vec::new();
    while !r.0.is_empty() {
        match next_part(&mut r)? {
            Part::Hole(_) => return Err(corrupt("a recipe has a part that only files have")),
            part => parts.push(part),
        }
    }
    Ok(parts)
}

/// The next part.
pub(crate) fn next_part(r: &mut Reader<'_>) -> Result<Part> {
    let address = |r: &mut Reader<'_>| -> Result<Address> {
        let mut number = [0; 8];
        number[..5].copy_from_slice(r.take(5)?);
        Ok(Address { container: ContainerId(u64::from_le_bytes(number)), slot: r.u16()? })
    };
    Ok(match r.u8()? {
        RUN => {
            let first = address(r)?;
            let (count, bytes) = (r.u16()?, r.u32()?);
            if u32::from(first.slot) + u32::from(count) > 1 << 16 {
                return Err(corrupt("a run of chunks is too long"));
            }
            let (fingerprints, _) = r.take(16 * usize::from(count))?.as_chunks::<16>();
            Part::Run {
                first,
                bytes,
                fingerprints: fingerprints.iter().map(|bytes| Fingerprint(*bytes)).collect(),
            }
        }
        SLICE => {
            let (chunk, skip, bytes) = (address(r)?, r.u32()?, r.u32()?);
            Part::Slice { chunk, fingerprint: Fingerprint(r.array()?), skip, bytes }
        }
        ZEROES => Part::Zeroes(r.u64()?),
        HOLE => Part::Hole(r.u64()?),
        END => Part::End(End { bytes: r.u64()?, chunks: r.u64()?, digest: r.array()? }),
        other => return Err(corrupt(format!("a recipe has a part of unknown kind {other}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_read_as_it_was_written() {
        let mut writer = RecipeWriter::default();
        let mut pieces = Vec::new();
        let mut full = |piece: Vec<u8>| {
            pieces.push(piece);
            Ok(())
        };
        let mut expected = Vec::new();
        for n in 0..20_000u64 {
            let address = Address { container: ContainerId(n / 300), slot: (n % 300) as u16 };
            if n % 700 == 0 {
                writer.zeroes(n, &mut full).unwrap();
                writer.zeroes(5, &mut full).unwrap();
            }
            let mut fingerprint = Fingerprint::default();
            fingerprint.0[..8].copy_from_slice(&n.to_le_bytes());
            writer.chunk(address, fingerprint, 1000, &mut full).unwrap();
            expected.push((address, fingerprint));
        }
        assert_eq!(
            writer.bytes(),
            20_000_000 + (0..20_000u64).filter(|n| n % 700 == 0).map(|n| n + 5).sum::<u64>()
        );
        let end = writer.end(&mut full).unwrap();
        assert!(pieces.len() > 4 && pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
        let (mut summary, mut found, mut ended) = (Summary::default(), Vec::new(), None);
        for part in pieces.iter().flat_map(|piece| parts(piece).unwrap()) {
            summary.add(&part);
            match part {
                Part::Run { first, fingerprints, .. } => found.extend(
                    fingerprints
                        .into_iter()
                        .enumerate()
                        .map(|(n, f)| (Address { slot: first.slot + n as u16, ..first }, f)),
                ),
                Part::Zeroes(_) | Part::Hole(_) | Part::Slice { .. } => {}
                Part::End(end) => ended = Some(end),
            }
        }
        assert_eq!(found, expected);
        assert_eq!(ended, Some(end));
        assert_eq!(summary.end(), end);
    }
}
