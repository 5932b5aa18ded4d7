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
    /// The parts of its mapping; none for zeroes. What the reader reads from now on must be of the volume's
    /// domain.
    pub(crate) fn parts(&self, reader: &mut ChunkReader) -> Result<Vec<Part>> {
        reader.domain = Some(self.volume.domain);
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
        reader.domain = Some(self.volume.domain);
        let (mut parts, mut at) = (Vec::new(), 0);
        for part in all {
            let end = at + length(part) as usize;
            let (from, to) = (range.start.max(at), range.end.min(end));
            if from < to {
                let lengths =
                    |first, count| reader.lengths(self.tables, self.container_reader, first, count);
                cut(part, from - at..to - at, lengths, &mut parts).map_err(|e| self.name(e))?;
            }
            at = end;
        }
        if !self.container_reader.keeps(Rule::KeptPartsCut) {
            for part in &mut parts {
                if let Part::Slice { skip, .. } = part {
                    *skip = 0;
                }
            }
        }
        Ok(parts)
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

/// Adds the parts that stand for a range of a part. `lengths` gives the lengths of so many chunks from an
/// address on.
fn cut(
    part: &Part,
    range: Range<usize>,
    lengths: impl FnOnce(Address, usize) -> Result<Vec<u32>>,
    parts: &mut Vec<Part>,
) -> Result<()> {
    match part {
        _ if range == (0..length(part) as usize) => parts.push(part.clone()),
        Part::Run { first, fingerprints, bytes } => {
            let lengths = match fingerprints.len() {
                1 => vec![*bytes],
                count => lengths(*first, count)?,
            };
            if lengths.iter().map(|bytes| u64::from(*bytes)).sum::<u64>() != u64::from(*bytes) {
                return Err(corrupt("its chunks have other lengths than its mapping says"));
            }
            let mut at = 0;
            for (n, (&bytes, &fingerprint)) in lengths.iter().zip(fingerprints).enumerate() {
                let end = at + bytes as usize;
                let (from, to) = (range.start.max(at), range.end.min(end));
                let chunk = Address { slot: first.slot + n as u16, ..*first };
                if (from, to) == (at, end) {
                    let fingerprints = vec![fingerprint];
                    join(parts, Part::Run { first: chunk, bytes, fingerprints });
                } else if from < to {
                    let (skip, bytes) = ((from - at) as u32, (to - from) as u32);
                    parts.push(Part::Slice { chunk, fingerprint, skip, bytes });
                }
                at = end;
            }
        }
        Part::Slice { chunk, fingerprint, skip, .. } => {
            let skip = skip.checked_add(range.start as u32);
            parts.push(Part::Slice {
                chunk: *chunk,
                fingerprint: *fingerprint,
                skip: skip.ok_or_else(|| corrupt("no chunk is as long as its mapping says"))?,
                bytes: range.len() as u32,
            });
        }
        Part::Zeroes(_) | Part::Hole(_) => parts.push(Part::Zeroes(range.len() as u64)),
        Part::End(_) => {}
    }
    Ok(())
}

/// Adds a part; one with the last where it goes on.
pub(super) fn join(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
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
        (_, part) => parts.push(part),
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

/// The containers that the map of a volume names, and those of the chunks that its blocks are made of,
/// whatever domains they are of: for simulations.
///
/// # Errors
/// `Corrupt`, and errors of the system.
#[cfg(feature = "planted-bugs")]
pub fn containers_of_volume(
    archive: &std::sync::Arc<crate::operations_log::Archive>,
    tables: &Tables,
    id: u64,
) -> Result<std::collections::BTreeSet<crate::format::ContainerId>> {
    let mut all = std::collections::BTreeSet::new();
    let Some(volume) = tables.volumes.all().get(&id) else { return Ok(all) };
    let (container_reader, mut reader) =
        (ContainerReader::new(archive.clone()), ChunkReader::default());
    for (_, address) in volume.block_index.mapped(0..u64::MAX) {
        all.insert(address.container);
        let named = parts(reader.chunk(tables, &container_reader, address)?)?;
        all.extend(chunks_of(&named).map(|(_, address)| address.container));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ContainerId;

    fn at(slot: u16) -> Address {
        Address { container: ContainerId(1), slot }
    }

    fn print(n: u16) -> Fingerprint {
        Fingerprint([n as u8; 16])
    }

    fn run(first: u16, bytes: u32, prints: Range<u16>) -> Part {
        Part::Run { first: at(first), bytes, fingerprints: prints.map(print).collect() }
    }

    fn slice(slot: u16, skip: u32, bytes: u32) -> Part {
        Part::Slice { chunk: at(slot), fingerprint: print(slot), skip, bytes }
    }

    #[test]
    fn ranges_cut_the_chunks_at_their_ends_alone() {
        let cuts = |part: &Part, range| {
            let mut parts = Vec::new();
            let lengths = |first, count| {
                assert_eq!((first, count), (at(4), 4));
                Ok(vec![100, 200, 300, 400])
            };
            cut(part, range, lengths, &mut parts).map(|()| parts)
        };
        let all = run(4, 1000, 4..8);
        assert_eq!(cuts(&all, 0..1000).unwrap(), [run(4, 1000, 4..8)]);
        assert_eq!(
            cuts(&all, 50..700).unwrap(),
            [slice(4, 50, 50), run(5, 500, 5..7), slice(7, 0, 100)]
        );
        assert_eq!(cuts(&all, 350..400).unwrap(), [slice(6, 50, 50)]);
        assert_eq!(cuts(&run(9, 500, 9..10), 1..500).unwrap(), [slice(9, 1, 499)]);
        assert_eq!(cuts(&slice(9, 7, 500), 20..30).unwrap(), [slice(9, 27, 10)]);
        assert_eq!(cuts(&Part::Zeroes(500), 20..30).unwrap(), [Part::Zeroes(10)]);
    }

    #[test]
    fn rule_09_lengths_that_cant_be_true_are_damage() {
        let is_damage = |part: &Part| {
            let cut = cut(part, 1..9, |_, _| Ok(vec![5, u32::MAX]), &mut Vec::new());
            cut.is_err_and(|error| error.kind() == Kind::Corrupt)
        };
        assert!(is_damage(&run(0, 10, 0..2)));
        assert!(is_damage(&slice(0, u32::MAX, 10)));
    }
}
