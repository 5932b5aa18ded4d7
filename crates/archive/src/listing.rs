//! The listing of a tree, entry by entry: never more of it in memory than one entry, one chunk and one piece of its recipe.

use std::vec;

use onefold_core::{Error, Fingerprint, Kind, Result, tree::Entry};

use crate::{
    format::{
        Address,
        listing::{self, ENTRY_BYTES_MAX},
        recipe::{Part, Summary},
        record::{Pieces, Stream},
    },
    get::{Content, Reader, Verify, addresses},
};

/// Reads a listing once, from its first entry to its last.
pub struct Listing {
    reader: Reader,
    /// Pieces that were not read yet.
    pieces: vec::IntoIter<Result<Address>>,
    recipe: vec::IntoIter<Pieces>,
    /// Parts of the piece that is being read.
    parts: vec::IntoIter<Part>,
    /// Chunks of the run that is being read.
    run: Option<(Address, vec::IntoIter<Fingerprint>)>,
    summary: Summary,
    ended: bool,
    held: Vec<u8>,
    /// Bytes of it that were given.
    taken: usize,
}

impl Listing {
    /// The listing of a stream that this reader sees.
    #[must_use]
    pub fn of(reader: &Reader, stream: &Stream) -> Listing {
        Listing {
            reader: reader.another(),
            pieces: Vec::new().into_iter(),
            recipe: stream.listing.clone().into_iter(),
            parts: Vec::new().into_iter(),
            run: None,
            summary: Summary::default(),
            ended: false,
            held: Vec::new(),
            taken: 0,
        }
    }

    /// The next entry; `None` behind the last.
    ///
    /// # Errors
    /// `Corrupt`, and those of the system.
    pub fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some((entry, bytes)) = listing::first(&self.held[self.taken..])? {
                self.taken += bytes;
                return Ok(Some(entry));
            }
            self.held.drain(..self.taken);
            self.taken = 0;
            if !self.more()? {
                let whole = self.held.is_empty() && self.ended;
                return if whole { Ok(None) } else { Err(Error::new(Kind::Corrupt, "the listing of a tree ends too early")) };
            }
        }
    }

    /// Holds a little more of it; false when there is no more.
    fn more(&mut self) -> Result<bool> {
        if let Some((at, rest)) = &mut self.run
            && let Some(fingerprint) = rest.next()
        {
            let address = *at;
            at.slot = at.slot.wrapping_add(1);
            self.chunk(address, fingerprint)?;
        } else if let Some(part) = self.parts.next() {
            self.part(part)?;
        } else if let Some(address) = self.pieces.next() {
            self.parts = self.reader.piece(address?)?.into_iter();
        } else if let Some(pieces) = self.recipe.next() {
            self.pieces = addresses(&pieces).collect::<Vec<_>>().into_iter();
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn part(&mut self, part: Part) -> Result<()> {
        self.summary.add(&part);
        match part {
            Part::Run { first, fingerprints, .. } => self.run = Some((first, fingerprints.into_iter())),
            Part::Zeroes(n) => {
                let n = usize::try_from(n).ok().filter(|&n| n <= ENTRY_BYTES_MAX);
                let n = n.ok_or_else(|| Error::new(Kind::Corrupt, "the listing of a tree can't be zeroes"))?;
                self.held.resize(self.held.len() + n, 0);
            }
            Part::End(end) if end == self.summary.end() => self.ended = true,
            Part::End(_) => return Err(Error::new(Kind::Corrupt, "the recipe of a listing does not add up")),
            Part::Slice { .. } => return Err(Error::new(Kind::Corrupt, "the recipe has a part that only mappings of volumes have")),
        }
        Ok(())
    }

    fn chunk(&mut self, address: Address, fingerprint: Fingerprint) -> Result<()> {
        let Listing { reader, held, .. } = self;
        reader.run(address, None, &[fingerprint], Verify::Groups, &mut |content| {
            if let Content::Bytes(bytes) = content {
                held.extend_from_slice(bytes);
            }
            Ok(())
        })
    }
}
