//! Whole objects: put, got and removed by name.
//!
//! A put fills the pieces of a new number, and then changes the name by a comparing operation. A
//! piece ends where a chunk ends.

use std::io::{self, Read as Source};

use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, Read, ReadPart, Refusal, Write},
};

use crate::{
    chunk_map::{ChunkMap, assemble, map_parts, stamp_value},
    dirty_list::DirtyList,
    format::{
        BLOCK, CHUNK_MAX, ENTRIES_MAX, ObjectId,
        catalogue::{Cut, What},
        entry::Entry,
        key,
    },
    names::Names,
    replies::failed,
    sealing::hashing::Hashing,
    session::Session,
};

/// Pieces in flight together.
const FLIGHT: usize = 4;

/// Lengths of the chunks of `bytes`, of `average` bytes and `most` at most, in which at least `CHUNK_MAX` bytes
/// follow the last one, unless it is the end.
pub(crate) fn cut(
    bytes: &[u8],
    end: bool,
    (how, average, most): (Cut, u32, u32),
    hashing: &Hashing,
) -> Vec<u32> {
    let keep = if end { 0 } else { CHUNK_MAX as usize };
    let mut lengths = Vec::new();
    let mut at = 0;
    while at + keep < bytes.len() {
        let rest = &bytes[at..];
        let length = match how {
            Cut::Static => rest.len().min(average as usize),
            Cut::Content => {
                let most = (2 * average).min(CHUNK_MAX).min(most);
                hashing.first_of_stream(rest, average, most)
            }
        };
        lengths.push(length as u32);
        at += length;
    }
    lengths
}

impl Session {
    /// Stores the bytes of `source` under `name`, in place of an older object of this name; returns
    /// how many bytes.
    ///
    /// # Errors
    /// `Exists`: the name is a volume's. `Busy`: another session put it meanwhile. `NoSpace`: the
    /// store is full. Otherwise the errors of `source`.
    pub fn put(&self, name: &str, source: &mut dyn Source) -> Result<u64> {
        let volume = || Error::new(Kind::Exists, format!("'{}' is a volume", name.escape_debug()));
        if self.find(name)?.is_some_and(|named| named.what == What::Volume) {
            return Err(volume());
        }
        let record = Names::of(self.kernel()).begin(name, What::Put)?;
        let mut named = record.named;
        let refused =
            |refusal| failed(format_args!("'{}' can't be put", name.escape_debug()), refusal);
        let (mut buffer, mut end, mut batch) = (Vec::new(), false, Vec::new());
        while !end || !buffer.is_empty() {
            end = fill(
                &mut buffer,
                self.kernel().format().object_bytes as usize + 2 * CHUNK_MAX as usize,
                source,
                end,
            )?;
            let (format, hashing) = (self.kernel().format(), self.kernel().hashing());
            let how = (format.cut, format.chunk_bytes, format.object_bytes);
            let lengths = cut(&buffer, end, how, hashing);
            let mut piece: Vec<(u32, u32)> = Vec::new();
            let (mut bytes, mut at) = (0, 0);
            for length in lengths {
                if piece.len() == ENTRIES_MAX || at + length > self.kernel().format().object_bytes {
                    break;
                }
                piece.push((at, length));
                bytes += length;
                at += length;
                // Offsets are readable: those of a sealed store show lengths in steps of 4 KiB only.
                if self.kernel().is_sealed() {
                    at = at.next_multiple_of(BLOCK);
                }
            }
            if bytes == 0 {
                continue;
            }
            batch.push((
                ObjectId { volume: named.id, index: named.pieces },
                piece,
                buffer.drain(..bytes as usize).collect::<Vec<u8>>(),
            ));
            named.pieces += 1;
            named.bytes += u64::from(bytes);
            if batch.len() == FLIGHT {
                put_pieces(self, &std::mem::take(&mut batch)).map_err(refused)?;
                Names::of(self.kernel()).keep_filling(named.id).map_err(refused)?;
            }
        }
        put_pieces(self, &batch).map_err(refused)?;
        for _ in 0..16 {
            let old = Names::of(self.kernel()).find_finished(name)?;
            if old.is_some_and(|old| old.what == What::Volume) {
                return Err(volume());
            }
            match Names::of(self.kernel()).change(name, old.as_ref(), Some(&named)) {
                Ok(()) => {
                    Names::of(self.kernel()).unlock_filled(named.id);
                    return Ok(named.bytes);
                }
                Err(Refusal::Mismatch) => {}
                Err(refusal) => return Err(refused(refusal)),
            }
        }
        Err(refused(Refusal::Busy))
    }

    /// Writes the object `name` to `sink`; returns how many bytes.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Busy` when it was replaced again and again meanwhile, and those of
    /// `sink`.
    pub fn get(&self, name: &str, sink: &mut dyn io::Write) -> Result<u64> {
        let Some(named) = self.find(name)?.filter(|named| named.what == What::Put) else {
            return Err(Error::new(
                Kind::NotFound,
                format!("there is no stream '{}'", name.escape_debug()),
            ));
        };
        let (mut bytes, mut any_holes) = (0, false);
        for index in 0..named.pieces {
            let piece = get_piece(self, ObjectId { volume: named.id, index });
            let (piece, holes) = piece.map_err(|refusal| match (refusal, self.find(name)) {
                (_, Ok(now)) if now.is_none_or(|now| now.id != named.id) => Error::new(
                    Kind::Busy,
                    format!("'{}' was replaced while it was read", name.escape_debug()),
                ),
                (Refusal::Missing, _) => crate::format::corrupt(format_args!(
                    "piece {index} of '{}' is missing",
                    name.escape_debug()
                )),
                (refusal, _) => {
                    failed(format_args!("piece {index} of '{}'", name.escape_debug()), refusal)
                }
            })?;
            any_holes |= holes;
            bytes += piece.len() as u64;
            sink.write_all(&piece)
                .map_err(|e| Error::from_io("what was got can't be written", e))?;
        }
        // A deletion makes holes of chunks before it removes the object: those of a stream that still has its
        // name are zeroes.
        if any_holes && self.find(name)?.is_none_or(|now| now.id != named.id) {
            return Err(Error::new(
                Kind::Busy,
                format!("'{}' was replaced or renamed while it was read", name.escape_debug()),
            ));
        }
        if bytes != named.bytes {
            return Err(crate::format::corrupt(format_args!(
                "'{}' has {} bytes, and its pieces have {bytes}",
                name.escape_debug(),
                named.bytes
            )));
        }
        Ok(bytes)
    }
}

/// Makes pieces, dirty, and puts them on the list. Each has its number, the offsets and lengths of its
/// chunks, and their bytes.
fn put_pieces(
    session: &Session,
    pieces: &[(ObjectId, Vec<(u32, u32)>, Vec<u8>)],
) -> Result<(), Refusal> {
    let stamp = session.kernel().stamp();
    let ops: Vec<Write> = pieces
        .iter()
        .map(|(id, chunks, bytes)| {
            let mut pairs = vec![(key::LISTED.to_vec(), stamp_value(stamp))];
            let (mut data, mut rest) = (Vec::with_capacity(bytes.len()), bytes.as_slice());
            for (offset, length) in chunks {
                let (content, behind) = rest.split_at(*length as usize);
                let (content, sums) = session.kernel().hashing().standing(*id, *offset, content);
                data.extend(content);
                rest = behind;
                let entry = Entry {
                    length: *length,
                    dirty: true,
                    mask: Entry::full_mask(*length),
                    base: None,
                    stamp,
                    sums,
                };
                pairs.push((key::entry(*offset), entry.encode(*id, *offset)));
            }
            Write {
                object: id.name(),
                guards: vec![Guard::Absent],
                changes: vec![Change::Full(data), Change::SetOmap(pairs)],
            }
        })
        .collect();
    for result in session.kernel().all_until_answered(&ops) {
        match result {
            // Only this session uses the number, so an existing piece is from our own operation,
            // whose reply was lost.
            Ok(_) | Err(Refusal::Exists) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let inserts: Vec<Write> =
        pieces.iter().map(|(id, ..)| DirtyList::of(session.kernel()).insert(*id, stamp)).collect();
    session
        .kernel()
        .all_until_answered(&inserts)
        .into_iter()
        .try_for_each(|result| result.map(|_| ()))
}

/// The bytes of a piece, and whether some of its chunks are holes.
fn get_piece(session: &Session, id: ObjectId) -> Result<(Vec<u8>, bool), Refusal> {
    let parts =
        [map_parts(), vec![ReadPart::Data(0, session.kernel().format().object_bytes.into())]]
            .concat();
    let mut gone = None;
    for _ in 0..20 {
        let answer = session
            .kernel()
            .read_all(&[Read { object: id.name(), parts: parts.clone() }])
            .remove(0);
        let data = answer.as_ref().map(|answer| answer.data(2).to_vec()).unwrap_or_default();
        let map = ChunkMap::from_answer(id, answer)?.ok_or(Refusal::Missing)?;
        let needed: Vec<_> = map
            .entries
            .values()
            .filter(|entry| !entry.is_cached())
            .filter_map(|entry| Some(entry.base?.chunk))
            .collect();
        let contents = session.chunk_pool().read_chunks(&needed);
        if let Some(n) =
            contents.iter().position(|content| matches!(content, Err(Refusal::Missing)))
        {
            if gone == Some(needed[n]) {
                return Err(Refusal::Failed(crate::format::corrupt(format_args!(
                    "chunk {} is missing",
                    needed[n].name()
                ))));
            }
            gone = Some(needed[n]);
            continue;
        }
        let mut contents = contents.into_iter();
        let mut piece = Vec::new();
        for (offset, entry) in &map.entries {
            let from = (*offset as usize).min(data.len());
            let cached = &data[from..(from + entry.length as usize).min(data.len())];
            let base = if !entry.is_cached() && entry.base.is_some() {
                contents.next().transpose()?
            } else {
                None
            };
            piece.extend(assemble(entry, cached, base.as_deref()));
        }
        let holes = map.entries.values().any(|entry| entry.base.is_none() && entry.mask == 0);
        return Ok((piece, holes));
    }
    Err(Refusal::Mismatch)
}

/// Reads until the buffer has `most` bytes; true at the end.
fn fill(buffer: &mut Vec<u8>, most: usize, source: &mut dyn Source, end: bool) -> Result<bool> {
    let mut part = vec![0; 16 * BLOCK as usize];
    while !end && buffer.len() < most {
        match source.read(&mut part) {
            Ok(0) => return Ok(true),
            Ok(n) => buffer.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::from_io("what is to be put can't be read", e)),
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use onefold_core::object::PoolKind;
    use onefold_seal::{Keys, Random};

    use super::*;
    use crate::{format::catalogue::Format, sealing::Sealing, settings::Settings};

    struct Filled(u8);

    impl Random for Filled {
        fn fill(&self, bytes: &mut [u8]) -> Result<()> {
            bytes.fill(self.0);
            Ok(())
        }
    }

    fn sealed(key: u8) -> Sealing {
        Sealing::new(&Keys::create([1; 16], &Filled(key)).unwrap(), &Settings::default()).unwrap()
    }

    #[test]
    fn a_stream_is_cut_the_same_however_it_arrives() {
        let mut state = 7u64;
        let bytes: Vec<u8> = (0..600_000)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let format = Format::new([1; 16], [2; 32], PoolKind::Replicated);
        let mut all = Vec::new();
        for (how, key) in [
            (Cut::Content, None),
            (Cut::Content, Some(1)),
            (Cut::Content, Some(2)),
            (Cut::Static, None),
        ] {
            let hashing = Hashing::new(&format, key.map(|key| Arc::new(sealed(key))));
            let how = (how, 32 << 10, 4 << 20);
            let whole = cut(&bytes, true, how, &hashing);
            assert_eq!(whole.iter().sum::<u32>() as usize, bytes.len());
            assert!(whole.iter().all(|length| *length <= CHUNK_MAX));
            let first = cut(&bytes[..400_000], false, how, &hashing);
            assert!(!first.is_empty() && whole.starts_with(&first));
            let mean = bytes.len() / whole.len();
            assert!((24 << 10..48 << 10).contains(&mean), "{how:?}: {mean}");
            all.push(whole);
        }
        // Each key has cuts of its own.
        let ends = |lengths: &[u32]| -> BTreeSet<u32> {
            lengths
                .iter()
                .scan(0, |at, length| Some(*at + length).inspect(|end| *at = *end))
                .collect()
        };
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let (one, other) = (ends(&all[one]), ends(&all[other]));
            assert!(one.intersection(&other).count() < 3, "the end, and one by chance");
        }
    }
}
