//! Ranges of packs, through memory that is bounded.

use std::sync::Arc;

use onefold_core::{Error, Kind, Result};
use quick_cache::{Weighter, sync::Cache as Blocks};

use crate::{kept, log::Log, rules::Rule, state::Pack};

/// Blocks that are read at one time of a container, at most, for them to be its metadata.
const SHORT_BLOCKS: u64 = 4;

/// Most bytes of one request.
const REQUEST_MAX: u64 = 8 << 20;

/// Where the bytes of a range are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The object.
    pub(crate) name: String,
    pub(crate) at: u64,
    /// The first byte and the last one of the object that may be read with it, and its length if that is known.
    pub(crate) within: (u64, u64),
    pub(crate) total: Option<u64>,
    /// The number of the frame that the object is: its hash is compared.
    pub(crate) frame: Option<u64>,
    /// The BLAKE3 of the pack, which is what may be read.
    pub(crate) sum: Option<[u8; 32]>,
    /// The part of it that this host keeps.
    pub(crate) keeps: Keeps,
}

/// The part of a pack that a host keeps for its next process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// All that is read.
    All,
    /// Short pieces that are read, as metadata of containers: their data would drive out the rest.
    Short,
    /// Nothing: there are keys in it.
    Nothing,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<(String, u64), Arc<[u8]>> for ByBytes {
    fn weight(&self, _: &(String, u64), bytes: &Arc<[u8]>) -> u64 {
        bytes.len() as u64 + 128
    }
}

/// Blocks of packs in memory. Names are never given twice, so a block stays true.
pub(crate) struct Cache {
    blocks: Blocks<(String, u64), Arc<[u8]>, ByBytes>,
    /// Bytes of a block: a read of one byte fetches so many.
    block: u64,
}

impl Cache {
    pub(crate) fn new(bytes: u64, block: u64) -> Cache {
        let items = (bytes / block) as usize + 1;
        Cache { blocks: Blocks::with_weighter(items, bytes, ByBytes), block }
    }

    /// Fills `into` from an object.
    ///
    /// # Errors
    /// `Corrupt` when the object is gone or has another length; those of the store.
    pub(crate) fn read(&self, log: &Log, place: &Place, into: &mut [u8]) -> Result<()> {
        let end = place.at + into.len() as u64;
        let (first, last) = place.within;
        let block_of = |at: u64| (at - first) / self.block;
        let start_of = |block: u64| first + block * self.block;
        let mut at = place.at;
        while at < end {
            let block = block_of(at);
            let key = (place.name.clone(), start_of(block));
            let bytes = match self.blocks.get(&key).or_else(|| self.kept(log, place, block)) {
                Some(bytes) => bytes,
                None => {
                    // This block, and those behind it that are wanted too and are not here.
                    let wanted = block_of(end - 1);
                    let most = block + REQUEST_MAX / self.block - 1;
                    let mut to = block;
                    while to < wanted.min(most)
                        && self.blocks.peek(&(place.name.clone(), start_of(to + 1))).is_none()
                    {
                        to += 1;
                    }
                    self.fetch(log, place, start_of(block), start_of(to + 1).min(last))?
                }
            };
            let skip = (at - start_of(block)) as usize;
            let there = bytes.get(skip..).unwrap_or_default();
            let n = there.len().min((end - at) as usize);
            if n == 0 {
                return Err(Error::new(Kind::Corrupt, format!("{} is cut off", place.name)));
            }
            let to = (at - place.at) as usize;
            into[to..to + n].copy_from_slice(&there[..n]);
            at += n as u64;
        }
        Ok(())
    }

    /// Reads a run of blocks, keeps them, and returns the first one, with all behind it.
    fn fetch(&self, log: &Log, place: &Place, from: u64, to: u64) -> Result<Arc<[u8]>> {
        let is_whole = (from, to) == place.within && log.settings.keeps(Rule::PacksHashed);
        let bytes = match place.sum.filter(|_| is_whole) {
            Some(sum) => verified(&place.name, &sum, &mut || range(log, place, from, to))?,
            None => range(log, place, from, to)?,
        };
        let is_short = to - from <= SHORT_BLOCKS * self.block;
        let mut at = from;
        for block in bytes.chunks(self.block as usize) {
            self.blocks.insert((place.name.clone(), at), block.into());
            if let Some(part) = self.part(place, at).filter(|_| place.keeps.keeps(is_short)) {
                part.store(log.settings.keep.as_ref(), block);
            }
            at += block.len() as u64;
        }
        Ok(bytes.into())
    }

    /// A block of a pack, of whose content the hash is known.
    fn part(&self, place: &Place, from: u64) -> Option<kept::Part> {
        let bytes = (from + self.block).min(place.within.1) - from;
        place.sum.map(|of| kept::Part { of, from: from - place.within.0, bytes })
    }

    /// A block that this host has kept.
    fn kept(&self, log: &Log, place: &Place, block: u64) -> Option<Arc<[u8]>> {
        let from = place.within.0 + block * self.block;
        let part = self.part(place, from).filter(|_| place.keeps != Keeps::Nothing)?;
        let bytes: Arc<[u8]> = log.settings.kept(&part)?.into();
        self.blocks.insert((place.name.clone(), from), bytes.clone());
        Some(bytes)
    }

    /// A pack that this process has just stored: nobody asks for it again.
    pub(crate) fn put(&self, name: &str, from: u64, bytes: &[u8]) {
        for (n, block) in (0..).zip(bytes.chunks(self.block as usize)) {
            self.blocks.insert((name.to_owned(), from + n * self.block), block.into());
        }
    }
}

impl Keeps {
    fn keeps(self, is_short: bool) -> bool {
        match self {
            Keeps::All => true,
            Keeps::Short => is_short,
            Keeps::Nothing => false,
        }
    }
}

/// Bytes of an object.
fn range(log: &Log, place: &Place, from: u64, to: u64) -> Result<Vec<u8>> {
    let read = match place.frame {
        Some(number) => log
            .frame_and_bytes(number)
            .map(|(_, bytes)| bytes.get(from as usize..to as usize).unwrap_or_default().to_vec()),
        None => log.get(&place.name, from, to - from, place.total).map(|body| body.bytes),
    };
    let mut bytes = read.map_err(|error| lost(&place.name, error))?;
    if !log.settings.keeps(Rule::BodiesWhole) {
        bytes.resize((to - from) as usize, 0);
    }
    if (bytes.len() as u64) < to - from {
        return Err(Error::new(Kind::Corrupt, format!("{} is cut off", place.name)));
    }
    Ok(bytes)
}

/// A whole pack, read until it has its hash: a body that was mixed up on its way may be right the next time.
fn verified(
    name: &str,
    sum: &[u8; 32],
    read: &mut dyn FnMut() -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    for _ in 0..3 {
        let bytes = read()?;
        if blake3::hash(&bytes).as_bytes() == sum {
            return Ok(bytes);
        }
    }
    Err(Error::new(Kind::Corrupt, format!("{name} has other bytes: its hash is another one")))
}

/// All bytes of a pack that is an object, verified, of which a part is to be written again.
///
/// # Errors
/// `Corrupt` when it has not the length or the hash that was stored, `Io` when it is gone, and those of the store.
pub(crate) fn whole_pack(log: &Log, id: (u64, u64), pack: &Pack) -> Result<Vec<u8>> {
    let bytes = u64::from(pack.bytes);
    let (name, within) = (pack.id(id).to_string(), (0, bytes));
    let (sum, keeps) = (Some(pack.sum), Keeps::Nothing);
    let place = Place { name, at: 0, within, total: Some(bytes), frame: None, sum, keeps };
    let mut read = || range(log, &place, 0, bytes);
    match log.settings.keeps(Rule::CopiesVerified) {
        true => verified(&place.name, &pack.sum, &mut read),
        false => read(),
    }
}

/// An object that a file needs can't be had.
fn lost(name: &str, error: Error) -> Error {
    match error.kind() {
        Kind::NotFound => {
            let why = format!(
                "{name} is not in the bucket: it is lost, unless this process has been reading for a day \
                 and more, and a collection has deleted it since"
            );
            Error::new(Kind::Io, why)
        }
        _ => error,
    }
}
