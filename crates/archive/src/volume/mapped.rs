//! A block as its mapping has it.

use std::ops::Range;

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::layer::BLOCK;
use crate::{
    container::{ChunkReader, ContainerReader},
    format::{
        Address,
        bytes::corrupt,
        container::Chunk,
        recipe::{Part, parts},
    },
    rules::Rule,
    tables::{Tables, Volume},
};

/// A block as its mapping has it.
pub(crate) struct Mapped<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) container_reader: &'a ContainerReader,
    pub(crate) volume: &'a Volume,
    pub(crate) block: u64,
}

impl Mapped<'_> {
    /// The parts of its mapping; none for zeroes.
    pub(crate) fn parts(&self, reader: &mut ChunkReader) -> Result<Vec<Part>> {
        let Some(address) = self.volume.block_index.get(self.block) else { return Ok(Vec::new()) };
        let all = reader
            .chunk(self.tables, self.container_reader, address)
            .and_then(parts)
            .map_err(|e| self.name(e))?;
        if all.iter().map(length).sum::<u64>() != BLOCK as u64 {
            return Err(self.name(corrupt("its mapping does not add up")));
        }
        Ok(all)
    }

    fn name(&self, error: Error) -> Error {
        match error.kind() {
            Kind::Corrupt => error.context(format!(
                "block {} of volume '{}'",
                self.block,
                self.volume.name.escape_debug()
            )),
            _ => error,
        }
    }

    /// The parts that stand for a range of it, without reading what they stand for. `all` are its parts.
    pub(super) fn parts_of(
        &self,
        reader: &mut ChunkReader,
        all: &[Part],
        range: &Range<usize>,
    ) -> Result<Vec<Part>> {
        if all.is_empty() {
            return Ok(vec![Part::Zeroes(range.len() as u64)]);
        }
        let mut parts = Vec::new();
        let mut at = 0;
        for part in all {
            let end = at + length(part) as usize;
            let (from, to) = (range.start.max(at), range.end.min(end));
            if from < to {
                self.cut(reader, part, from - at..to - at, &mut parts).map_err(|e| self.name(e))?;
            }
            at = end;
        }
        Ok(parts)
    }

    /// Adds the parts that stand for a range of a part.
    fn cut(
        &self,
        reader: &mut ChunkReader,
        part: &Part,
        range: Range<usize>,
        parts: &mut Vec<Part>,
    ) -> Result<()> {
        match part {
            _ if range == (0..length(part) as usize) => parts.push(part.clone()),
            Part::Run { first, fingerprints, bytes } => {
                let mut at = 0;
                let mut each = |n: usize, bytes: usize| {
                    let (from, to) = (range.start.max(at), range.end.min(at + bytes));
                    let chunk = Address { slot: first.slot + n as u16, ..*first };
                    let fingerprint = fingerprints[n];
                    match parts.last_mut() {
                        _ if from >= to => {}
                        Some(Part::Run { first, bytes: before, fingerprints })
                            if to - from == bytes
                                && first.container == chunk.container
                                && usize::from(first.slot) + fingerprints.len()
                                    == usize::from(chunk.slot) =>
                        {
                            *before += bytes as u32;
                            fingerprints.push(fingerprint);
                        }
                        _ if to - from == bytes => parts.push(Part::Run {
                            first: chunk,
                            bytes: bytes as u32,
                            fingerprints: vec![fingerprint],
                        }),
                        _ => parts.push(Part::Slice {
                            chunk,
                            fingerprint,
                            skip: self.skipped((from - at) as u32),
                            bytes: (to - from) as u32,
                        }),
                    }
                    at += bytes;
                };
                match fingerprints.len() {
                    1 => each(0, *bytes as usize),
                    all => reader
                        .lengths(self.tables, self.container_reader, *first, all)?
                        .into_iter()
                        .enumerate()
                        .for_each(|(n, bytes)| each(n, bytes as usize)),
                }
                if at == *bytes as usize {
                    Ok(())
                } else {
                    Err(corrupt("its chunks have other lengths than its mapping says"))
                }?;
            }
            Part::Slice { chunk, fingerprint, skip, .. } => parts.push(Part::Slice {
                chunk: *chunk,
                fingerprint: *fingerprint,
                skip: skip + self.skipped(range.start as u32),
                bytes: range.len() as u32,
            }),
            Part::Zeroes(_) | Part::Hole(_) => parts.push(Part::Zeroes(range.len() as u64)),
            Part::End(_) => {}
        }
        Ok(())
    }

    /// The bytes of a chunk before what a block keeps of it.
    fn skipped(&self, bytes: u32) -> u32 {
        if self.container_reader.keeps(Rule::KeptPartsCut) { bytes } else { 0 }
    }

    /// Reads a range of it.
    pub(super) fn read(
        &self,
        reader: &mut ChunkReader,
        range: Range<usize>,
        into: &mut [u8],
    ) -> Result<()> {
        into.fill(0);
        let mut at = 0;
        for part in self.parts(reader)? {
            let next = at + length(&part) as usize;
            if next > range.start && at < range.end {
                let mut copy = Copy { at, range: range.clone(), into: &mut *into };
                self.read_part(reader, &part, &mut copy).map_err(|e| self.name(e))?;
            }
            at = next;
        }
        Ok(())
    }

    fn read_part(&self, reader: &mut ChunkReader, part: &Part, copy: &mut Copy<'_>) -> Result<()> {
        let check = |chunk: &Chunk, expected: Option<&Fingerprint>| match expected {
            Some(fingerprint) if chunk.fingerprint == *fingerprint => Ok(()),
            _ => Err(corrupt(format!(
                "chunk {} of container {} is not the one that was stored",
                chunk.first.slot, chunk.first.container
            ))),
        };
        match part {
            Part::Run { first, bytes, fingerprints } => {
                let (mut expected, end) = (fingerprints.iter(), copy.at + *bytes as usize);
                reader.run(
                    self.tables,
                    self.container_reader,
                    *first,
                    fingerprints.len(),
                    &mut |chunk, bytes| {
                        check(chunk, expected.next())?;
                        copy.push(bytes);
                        Ok(())
                    },
                )?;
                if copy.at == end {
                    Ok(())
                } else {
                    Err(corrupt("its chunks have other lengths than its mapping says"))
                }
            }
            Part::Slice { chunk, fingerprint, skip, bytes } => {
                reader.run(self.tables, self.container_reader, *chunk, 1, &mut |chunk, all| {
                    check(chunk, Some(fingerprint))?;
                    let slice =
                        all.get(*skip as usize..).and_then(|rest| rest.get(..*bytes as usize));
                    copy.push(
                        slice.ok_or_else(|| corrupt("a chunk is shorter than its mapping says"))?,
                    );
                    Ok(())
                })
            }
            Part::Zeroes(_) | Part::Hole(_) | Part::End(_) => Ok(()),
        }
    }
}

/// Bytes of a block that a part stands for.
pub(super) fn length(part: &Part) -> u64 {
    match part {
        Part::Run { bytes, .. } | Part::Slice { bytes, .. } => u64::from(*bytes),
        Part::Zeroes(bytes) | Part::Hole(bytes) => *bytes,
        Part::End(_) => 0,
    }
}

/// Copies what falls into a range.
struct Copy<'a> {
    at: usize,
    range: Range<usize>,
    into: &'a mut [u8],
}

impl Copy<'_> {
    fn push(&mut self, bytes: &[u8]) {
        let (from, to) =
            (self.at.max(self.range.start), (self.at + bytes.len()).min(self.range.end));
        if from < to {
            self.into[from - self.range.start..to - self.range.start]
                .copy_from_slice(&bytes[from - self.at..to - self.at]);
        }
        self.at += bytes.len();
    }
}

/// The chunks that a mapping names, and where they are.
pub(crate) fn chunks_of(parts: &[Part]) -> impl Iterator<Item = (Fingerprint, Address)> {
    parts.iter().flat_map(|part| {
        let (first, fingerprints): (Address, &[Fingerprint]) = match part {
            Part::Run { first, fingerprints, .. } => (*first, fingerprints),
            Part::Slice { chunk, fingerprint, .. } => (*chunk, std::slice::from_ref(fingerprint)),
            _ => (Address::default(), &[]),
        };
        fingerprints.iter().enumerate().map(move |(n, &fingerprint)| {
            (fingerprint, Address { slot: first.slot + n as u16, ..first })
        })
    })
}
