//! Chunks to mappings: what is chunked across blocks is cut where a block ends, and each block gets
//! a piece of its own.

use std::collections::VecDeque;

use onefold_core::{Fingerprint, Result};

use super::layer::BLOCK;
use crate::{
    format::{
        Address,
        bytes::Writer,
        recipe::{Part, encode},
    },
    stream::{PieceWriter, Remap, Target},
};

/// Writes the mappings of blocks that come one after the other.
#[derive(Default)]
pub(crate) struct Mapper {
    /// The blocks whose bytes are on their way, and the last frame that was known when each was
    /// written.
    blocks: VecDeque<(u64, u64)>,
    /// Bytes of the first of them that are mapped, and the parts that map them.
    at: usize,
    parts: Vec<Part>,
    done: Vec<Remap>,
}

impl Mapper {
    /// The bytes of this block come next.
    pub(super) fn expect(&mut self, block: u64, since: u64) {
        self.blocks.push_back((block, since));
    }

    /// All blocks that came.
    pub(super) fn done(self) -> Vec<Remap> {
        self.done
    }

    fn part(&mut self, part: Part, bytes: usize, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        match (self.parts.last_mut(), part) {
            (Some(Part::Zeroes(before)), Part::Zeroes(more)) => *before += more,
            (
                Some(Part::Run { first, bytes, fingerprints }),
                Part::Run { first: next, bytes: more, fingerprints: new },
            ) if first.container == next.container
                && usize::from(first.slot) + fingerprints.len() == usize::from(next.slot) =>
            {
                *bytes += more;
                fingerprints.extend(new);
            }
            (_, part) => self.parts.push(part),
        }
        self.at += bytes;
        if self.at == BLOCK { self.end_block(write_piece) } else { Ok(()) }
    }

    fn end_block(&mut self, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        let parts = std::mem::take(&mut self.parts);
        self.at = 0;
        let Some((block, since)) = self.blocks.pop_front() else { return Ok(()) };
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
            let n = (bytes - skip).min((BLOCK - self.at) as u32);
            let part = if n == bytes {
                Part::Run { first: address, bytes, fingerprints: vec![fingerprint] }
            } else {
                Part::Slice { chunk: address, fingerprint, skip, bytes: n }
            };
            self.part(part, n as usize, write_piece)?;
            skip += n;
        }
        Ok(())
    }

    fn zeroes(&mut self, mut bytes: u64, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        while bytes > 0 {
            let n = bytes.min((BLOCK - self.at) as u64);
            self.part(Part::Zeroes(n), n as usize, write_piece)?;
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
        (10..14).for_each(|block| mapper.expect(block, 3));
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
}
