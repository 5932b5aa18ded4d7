//! Foreground reads: entries and data of an object in one operation, the rest from chunks in parallel.
//!
//! The owner remembers maps: a chunk that is not cached, as it remembers, is read at once, since a name is its content. When the chunk is gone the
//! entry is read again; an entry that still names it is damage.

use onefold_core::{
    Result,
    object::{Look, Refusal},
};

use super::{Known, Volume};
use crate::{
    format::{CHUNK_MAX, Chunk, OBJECT_MAX, Stamp, catalogue::Cut, corrupt, entry::Entry, key},
    map::{assemble, covering, map_looks},
    session::Session,
    settings::PlantedBug,
};

/// Times that an entry is read again because its chunk was gone.
const TURNS: u32 = 20;

/// A chunk of an object that is read: its offset, its entry, and its blocks that stand in the object.
struct Part {
    offset: u32,
    entry: Entry,
    cached: Vec<u8>,
}

impl Volume {
    /// Reads bytes at `offset`.
    ///
    /// # Errors
    /// `Corrupt` for what is damaged or missing.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.within(offset, into.len() as u64)?;
        self.foreground(into.len() as u64);
        self.drain_place(offset..offset + into.len() as u64);
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let (index, within) = (at / self.object_bytes(), (at % self.object_bytes()) as u32);
            let bytes = (self.object_bytes() - u64::from(within)).min((into.len() - done) as u64) as usize;
            let part = &mut into[done..done + bytes];
            self.read_object(index, within, part).map_err(|refusal| self.failed(index, refusal))?;
            done += bytes;
        }
        Ok(())
    }

    fn read_object(&self, index: u64, at: u32, into: &mut [u8]) -> Result<(), Refusal> {
        into.fill(0);
        let mut gone: Option<(u32, Chunk)> = None;
        for _ in 0..TURNS {
            let Some(parts) = self.look(index, at, into.len() as u32, gone.is_some())? else { return Ok(()) };
            let needed: Vec<(usize, Chunk)> = parts
                .iter()
                .enumerate()
                .filter(|(_, part)| !part.entry.is_cached())
                .filter_map(|(n, part)| part.entry.base.map(|base| (n, base.chunk)))
                .collect();
            let chunks: Vec<Chunk> = needed.iter().map(|(_, chunk)| *chunk).collect();
            let contents = self.session.read_chunks(&chunks);
            let missing = contents.iter().position(|content| matches!(content, Err(Refusal::Missing)));
            if let Some(n) = missing {
                let (part, chunk) = (parts[needed[n].0].offset, chunks[n]);
                if gone == Some((part, chunk)) {
                    return Err(Refusal::Failed(corrupt(format_args!("chunk {} is missing", chunk.name()))));
                }
                gone = Some((part, chunk));
                continue;
            }
            let mut bases: Vec<Option<Vec<u8>>> = parts.iter().map(|_| None).collect();
            for ((n, _), content) in needed.into_iter().zip(contents) {
                bases[n] = Some(content?);
            }
            for (part, base) in parts.iter().zip(&bases) {
                let content = assemble(&part.entry, &part.cached, base.as_deref());
                copy(&content, part.offset, into, at);
            }
            self.warm(index, &parts.iter().map(|part| (part.offset, part.entry)).collect::<Vec<_>>(), &bases);
            return Ok(());
        }
        Err(Refusal::Mismatch)
    }

    /// The chunks of a range and what the object holds of them, at one moment; `None` when all of it is zeroes.
    fn look(&self, index: u64, at: u32, bytes: u32, again: bool) -> Result<Option<Vec<Part>>, Refusal> {
        let object = self.object(index);
        let (known, turn) = {
            let object = object.lock();
            (object.known.clone().filter(|_| !again && !self.read_only), object.turn)
        };
        if let Some(known) = &known {
            if self.is_discarded(index, known.discarded) {
                return Ok(None);
            }
            let parts = in_range(known, at, bytes);
            if !known.exists || parts.iter().all(|part| part.entry.mask == 0 && !part.entry.dirty) {
                return Ok(Some(parts));
            }
        }
        let id = self.object_id(index);
        let (start, end) = self.window(known.as_ref(), at, bytes);
        let data = Look::Data(start.into(), (end - start).into());
        let name = id.name();
        let sight = if self.session.planted(PlantedBug::ReadApart) {
            match self.session.read_one(&name, map_looks()) {
                Ok(mut sight) => {
                    sight.seen.extend(self.session.read_one(&name, vec![data])?.seen);
                    Ok(sight)
                }
                other => other,
            }
        } else {
            self.session.read_one(&name, [map_looks(), vec![data]].concat())
        };
        let cached = sight.as_ref().map(|sight| sight.data(2).to_vec()).unwrap_or_default();
        let map = Session::parse_map(id, sight)?;
        if map.is_none() && self.has_bit(index)? && !self.session.planted(PlantedBug::MissingAsZeroes) {
            return Err(self.lost(index));
        }
        let known = Known::of(map);
        let mut parts = in_range(&known, at, bytes);
        let within = |part: &Part| part.entry.mask == 0 || part.offset >= start && part.offset + part.entry.length <= end;
        if !parts.iter().all(within) {
            // The cuts were moved since.
            return self.look(index, at, bytes, true);
        }
        for part in &mut parts {
            let from = (part.offset.saturating_sub(start) as usize).min(cached.len());
            part.cached = cached[from..(from + part.entry.length as usize).min(cached.len())].to_vec();
        }
        let discarded = self.is_discarded(index, known.discarded);
        let mut object = object.lock();
        if object.turn == turn && !self.read_only {
            object.learn(Some(known));
        }
        Ok((!discarded).then_some(parts))
    }

    /// Bytes of the object that the chunks of a range may stand in.
    fn window(&self, known: Option<&Known>, at: u32, bytes: u32) -> (u32, u32) {
        let (chunk, last) = (self.chunk_bytes(), at + bytes.max(1) - 1);
        match known {
            _ if self.session.format.volume_cut == Cut::Static => (at / chunk * chunk, (last / chunk + 1) * chunk),
            Some(known) => {
                let (offset, length) = known.place(last, chunk);
                (known.place(at, chunk).0, offset + length)
            }
            None => (at.saturating_sub(CHUNK_MAX), (at + bytes + CHUNK_MAX).min(OBJECT_MAX)),
        }
    }

    /// True when the object should be there. Who does not own the volume asks the header.
    fn has_bit(&self, index: u64) -> Result<bool, Refusal> {
        if !self.read_only {
            return Ok(self.bits.lock().has(index));
        }
        let bits = self.session.read_bits(self.id)?;
        Ok(bits.has(index))
    }

    /// True when a long discard has not reached the object yet.
    pub(super) fn is_discarded(&self, index: u64, discarded: Stamp) -> bool {
        self.discards.lock().iter().any(|discard| discard.covers(index, discarded))
    }
}

/// The known chunks of a range.
fn in_range(known: &Known, at: u32, bytes: u32) -> Vec<Part> {
    let (start, end) = (covering(&known.entries, at).map_or(at, |(offset, _)| offset), at + bytes);
    known.entries.range(start..end).map(|(offset, entry)| Part { offset: *offset, entry: *entry, cached: Vec::new() }).collect()
}

/// Copies what two ranges have in common: `content` at `offset` into `into` at `at`.
fn copy(content: &[u8], offset: u32, into: &mut [u8], at: u32) {
    let start = offset.max(at);
    let end = (offset + content.len() as u32).min(at + into.len() as u32);
    if start < end {
        into[(start - at) as usize..(end - at) as usize].copy_from_slice(&content[(start - offset) as usize..(end - offset) as usize]);
    }
}

/// The key of an entry, for those who compare it.
pub(super) fn entry_key(offset: u32) -> Vec<u8> {
    key::entry(offset)
}
