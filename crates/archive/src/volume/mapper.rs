//! Chunks to mappings: what is chunked across blocks is cut where a block ends, and each block gets
//! a piece of its own.

use std::collections::VecDeque;

use onefold_core::{Fingerprint, Result};

use super::{
    layer::BLOCK,
    mapped::{join, length},
};
use crate::{
    format::{
        Address,
        bytes::Writer,
        recipe::{Part, encode},
    },
    stream::{PieceWriter, Remap, Target},
};

/// A block whose bytes come.
pub(super) struct Expected {
    block: u64,
    /// The last frame that was known when it was written.
    since: u64,
    /// The parts of its mapping that it keeps, and where they begin, in order. The bytes between come.
    kept: VecDeque<(usize, Vec<Part>)>,
}

impl Expected {
    pub(super) fn new(block: u64, since: u64, kept: Vec<(usize, Vec<Part>)>) -> Expected {
        Expected { block, since, kept: kept.into() }
    }
}

/// Writes the mappings of blocks that come one after the other.
#[derive(Default)]
pub(crate) struct Mapper {
    /// The blocks whose bytes are on their way.
    blocks: VecDeque<Expected>,
    /// Bytes of the first of them that are mapped, and the parts that map them.
    at: usize,
    parts: Vec<Part>,
    done: Vec<Remap>,
}

impl Mapper {
    /// The bytes of this block come next.
    pub(super) fn expect(&mut self, block: Expected) {
        self.blocks.push_back(block);
    }

    /// All blocks that came.
    pub(super) fn done(self) -> Vec<Remap> {
        self.done
    }

    /// Bytes that come before the block ends, or something of its mapping stays.
    fn room(&mut self) -> usize {
        self.keep();
        let kept = self.blocks.front().and_then(|block| block.kept.front());
        kept.map_or(BLOCK, |(start, _)| *start) - self.at
    }

    /// Takes over what stays here.
    fn keep(&mut self) {
        while let Some(block) = self.blocks.front_mut()
            && block.kept.front().is_some_and(|(start, _)| *start == self.at)
            && let Some((_, parts)) = block.kept.pop_front()
        {
            parts.into_iter().for_each(|part| self.add(part));
        }
    }

    fn add(&mut self, part: Part) {
        self.at += length(&part) as usize;
        join(&mut self.parts, part);
    }

    fn part(&mut self, part: Part, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        self.add(part);
        self.keep();
        if self.at == BLOCK { self.end_block(write_piece) } else { Ok(()) }
    }

    fn end_block(&mut self, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        let parts = std::mem::take(&mut self.parts);
        self.at = 0;
        let Some(Expected { block, since, .. }) = self.blocks.pop_front() else { return Ok(()) };
        let new = if parts.iter().all(|part| matches!(part, Part::Zeroes(_))) {
            None
        } else {
            let mut w = Writer::default();
            parts.iter().for_each(|part| encode(part, &mut w));
            Some(write_piece(w.0)?)
        };
        self.done.push(Remap { block, since, new });
        Ok(())
    }
}

impl Target for Mapper {
    fn chunk(
        &mut self,
        address: Address,
        fingerprint: Fingerprint,
        bytes: u32,
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<()> {
        let mut skip = 0;
        while skip < bytes {
            let n = (bytes - skip).min(self.room() as u32);
            let part = if n == bytes {
                Part::Run { first: address, bytes, fingerprints: vec![fingerprint] }
            } else {
                Part::Slice { chunk: address, fingerprint, skip, bytes: n }
            };
            self.part(part, write_piece)?;
            skip += n;
        }
        Ok(())
    }

    fn zeroes(&mut self, mut bytes: u64, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        while bytes > 0 {
            let n = bytes.min(self.room() as u64);
            self.part(Part::Zeroes(n), write_piece)?;
            bytes -= n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ContainerId, recipe::parts};

    #[test]
    fn chunks_are_cut_where_blocks_end_and_zeroes_have_no_mapping() {
        let mut mapper = Mapper::default();
        (10..14).for_each(|block| mapper.expect(Expected::new(block, 3, Vec::new())));
        let mut pieces = Vec::new();
        let mut write_piece = |piece: Vec<u8>| {
            pieces.push(piece);
            Ok(Address { container: ContainerId(7), slot: pieces.len() as u16 - 1 })
        };
        let at = |slot| Address { container: ContainerId(1), slot };
        let print = |n: u8| Fingerprint([n; 16]);
        let size = BLOCK as u32;
        mapper.chunk(at(0), print(0), 1000, &mut write_piece).unwrap();
        mapper.chunk(at(1), print(1), size - 1500, &mut write_piece).unwrap();
        mapper.chunk(at(2), print(2), 700, &mut write_piece).unwrap();
        mapper.zeroes(2 * BLOCK as u64 - 200, &mut write_piece).unwrap();
        mapper.chunk(at(3), print(3), size, &mut write_piece).unwrap();
        let done: Vec<_> = mapper
            .done()
            .iter()
            .map(|remap| (remap.block, remap.since, remap.new.map(|at| at.slot)))
            .collect();
        assert_eq!(done, [(10, 3, Some(0)), (11, 3, Some(1)), (12, 3, None), (13, 3, Some(2))]);
        let run = |first, bytes, prints: &[u8]| Part::Run {
            first,
            bytes,
            fingerprints: prints.iter().map(|&n| print(n)).collect(),
        };
        let slice = |skip, bytes| Part::Slice { chunk: at(2), fingerprint: print(2), skip, bytes };
        assert_eq!(parts(&pieces[0]).unwrap(), [run(at(0), size - 500, &[0, 1]), slice(0, 500)]);
        assert_eq!(
            parts(&pieces[1]).unwrap(),
            [slice(500, 200), Part::Zeroes(u64::from(size) - 200)]
        );
        assert_eq!(parts(&pieces[2]).unwrap(), [run(at(3), size, &[3])]);
    }

    #[test]
    fn a_block_keeps_what_was_not_written() {
        let at = |slot| Address { container: ContainerId(1), slot };
        let slice = |slot: u16, skip, bytes: usize| Part::Slice {
            chunk: at(slot),
            fingerprint: Fingerprint([slot as u8; 16]),
            skip,
            bytes: bytes as u32,
        };
        let mut mapper = Mapper::default();
        let kept = vec![
            (0, vec![slice(1, 0, 1000)]),
            (3000, vec![slice(2, 7, 500), Part::Zeroes(500)]),
            (6000, vec![Part::Zeroes(BLOCK as u64 - 6000)]),
        ];
        mapper.expect(Expected::new(4, 3, kept));
        // All of it is zero then, and the next block keeps its end.
        mapper.expect(Expected::new(9, 3, vec![(512, vec![Part::Zeroes(BLOCK as u64 - 512)])]));
        mapper.expect(Expected::new(10, 3, vec![(512, vec![slice(3, 0, BLOCK - 512)])]));
        let mut pieces = Vec::new();
        let mut write_piece = |piece: Vec<u8>| {
            pieces.push(piece);
            Ok(at(pieces.len() as u16 - 1))
        };
        mapper.chunk(at(8), Fingerprint([8; 16]), 2000, &mut write_piece).unwrap();
        // The end of the first block's bytes, all of the next one's, and of the third one's.
        mapper.zeroes(2000 + 512 + 512, &mut write_piece).unwrap();
        let done: Vec<_> =
            mapper.done().iter().map(|remap| (remap.block, remap.new.map(|at| at.slot))).collect();
        assert_eq!(done, [(4, Some(0)), (9, None), (10, Some(1))]);
        let new = Part::Run { first: at(8), bytes: 2000, fingerprints: vec![Fingerprint([8; 16])] };
        let rest = BLOCK as u64 - 3500;
        assert_eq!(
            parts(&pieces[0]).unwrap(),
            [slice(1, 0, 1000), new, slice(2, 7, 500), Part::Zeroes(rest)]
        );
        assert_eq!(parts(&pieces[1]).unwrap(), [Part::Zeroes(512), slice(3, 0, BLOCK - 512)]);
    }
}
