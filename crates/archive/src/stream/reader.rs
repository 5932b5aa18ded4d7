//! A stream on its way out: its recipe piece by piece, and the chunks that it names, group by
//! group.
//!
//! Each group is verified by its checksum as it is read. The fingerprint in the recipe is always
//! compared with the one that the container shows at the address; a chunk's bytes are compared with
//! it when [`Verify::Chunks`] asks for it.

use std::sync::Arc;

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::catalogue::no_stream;
use crate::{
    container::{ChunkReader, ContainerReader, addresses},
    format::{
        Address,
        damage::is_damage,
        domain::FIRST_DOMAIN,
        recipe::{Part, Summary, parts},
        record::{Pieces, Stream},
    },
    operations_log::{Archive, Domain, EpochGuard, domain_of, is_there},
    tables::Tables,
};

/// The checks that are made while a stream is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// The checksum of each group.
    Groups,
    /// The fingerprint of each chunk too.
    Chunks,
}

/// A piece of a stream's content.
pub enum Content<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// So many zeroes.
    Zeroes(u64),
    /// A hole of so many bytes, of a file that had it.
    Hole(u64),
}

/// Reads streams. Containers that it reads are not freed as long as this value lives.
pub struct Reader {
    archive: Arc<Archive>,
    guard: EpochGuard,
    container_reader: ContainerReader,
    reader: ChunkReader,
    /// The domain of what is read, once that is known.
    domain: Option<Arc<Domain>>,
}

impl Reader {
    /// A reader of the archive as of now.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(archive: &Arc<Archive>) -> Result<Reader> {
        let guard = EpochGuard::enter(archive)?;
        Ok(Reader {
            archive: archive.clone(),
            guard,
            container_reader: ContainerReader::new(archive.clone()),
            reader: ChunkReader::default(),
            domain: None,
        })
    }

    /// The archive as of the beginning.
    #[must_use]
    pub fn tables(&self) -> &Arc<Tables> {
        &self.guard.tables
    }

    /// A stream of the catalogue.
    ///
    /// # Errors
    /// `NotFound`; `Denied`: its domain was erased.
    pub fn stream(&self, name: &str) -> Result<Stream> {
        let stream = self.guard.tables.streams.get(name).cloned();
        let stream = stream.ok_or_else(|| no_stream(name))?;
        is_there(&self.guard.tables, stream.domain)?;
        domain_of(&self.archive, stream.domain)?;
        Ok(stream)
    }

    /// From now on all that is read must be of this domain.
    ///
    /// # Errors
    /// `Denied`: it was erased, or its key is not there.
    pub(crate) fn enter(&mut self, domain: u32) -> Result<()> {
        if self.domain.as_ref().is_none_or(|before| before.number() != domain) {
            is_there(&self.guard.tables, domain)?;
            self.domain = Some(domain_of(&self.archive, domain)?);
            self.reader.domain = Some(domain);
        }
        Ok(())
    }

    /// The domain that was entered last; else the first one.
    ///
    /// # Errors
    /// The errors of reading the key area. `Denied`: the key area and the log are not of one time.
    pub(crate) fn domain(&self) -> Result<Arc<Domain>> {
        match &self.domain {
            Some(domain) => Ok(domain.clone()),
            None => self.archive.first_domain(),
        }
    }

    /// The domain by which what lies at an address is proven.
    pub(crate) fn domain_at(&self, address: Address) -> Result<Arc<Domain>> {
        if let Some(domain) = &self.domain {
            return Ok(domain.clone());
        }
        let home = self.guard.tables.places(address.container).next().transpose()?;
        domain_of(&self.archive, home.map_or(FIRST_DOMAIN, |home| home.stored.domain))
    }

    /// Enters the domain of a recipe, which all of its pieces are of.
    fn enter_recipe(&mut self, recipe: &[Pieces]) -> Result<()> {
        let first = recipe.first().map(|pieces| self.guard.tables.places(pieces.container).next());
        match first.flatten().transpose() {
            Ok(Some(home)) => self.enter(home.stored.domain),
            // It is told of where the piece is read.
            Ok(None) => Ok(()),
            Err(error) if is_damage(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The bytes of a piece, or of a node.
    pub(crate) fn piece(&mut self, address: Address) -> Result<&[u8]> {
        self.reader.chunk(&self.guard.tables, &self.container_reader, address)
    }

    /// The chunks of a run, slot after slot, with their lengths. No content is read.
    ///
    /// # Errors
    /// `Corrupt` when one of them is not there, or another one, and errors of the system.
    pub(crate) fn chunks_of(
        &mut self,
        first: Address,
        fingerprints: &[Fingerprint],
    ) -> Result<Vec<(Fingerprint, u32)>> {
        let mut all = Vec::with_capacity(fingerprints.len());
        while let Some(expected) = fingerprints.get(all.len()) {
            let not_there = || {
                let (slot, container) = (usize::from(first.slot) + all.len(), first.container);
                let what =
                    format!("chunk {slot} of container {container} is not the one that was stored");
                Error::new(Kind::Corrupt, what)
            };
            let slot = u16::try_from(all.len()).ok().and_then(|n| first.slot.checked_add(n));
            let address = Address { slot: slot.ok_or_else(not_there)?, ..first };
            let tables = &self.guard.tables;
            let found = self.reader.find(tables, &self.container_reader, address)?;
            let (_, metadata, at) = found.ok_or_else(not_there)?;
            let chunk = metadata.chunks.get(at).filter(|chunk| chunk.fingerprint == *expected);
            all.push((*expected, chunk.ok_or_else(not_there)?.bytes));
        }
        Ok(all)
    }

    /// The archive that it reads.
    pub(crate) fn archive(&self) -> &Archive {
        &self.archive
    }

    /// The pieces of a recipe, one after the other.
    ///
    /// # Errors
    /// `Corrupt`: the recipe or its end is damaged. Errors of `each` and of the system.
    pub fn parts(
        &mut self,
        recipe: &[Pieces],
        each: &mut dyn FnMut(&mut Reader, Part) -> Result<()>,
    ) -> Result<()> {
        self.enter_recipe(recipe)?;
        let tables = self.guard.tables.clone();
        let (mut summary, mut ended) = (Summary::default(), None);
        for pieces in recipe {
            for address in addresses(pieces) {
                let address = address?;
                for part in parts(self.reader.chunk(&tables, &self.container_reader, address)?)? {
                    summary.add(&part);
                    if let Part::End(end) = &part {
                        ended = Some(*end);
                    }
                    each(self, part)?;
                }
            }
        }
        match ended {
            Some(end) if end == summary.end() => Ok(()),
            Some(_) => Err(Error::new(Kind::Corrupt, "the recipe does not add up")),
            None => Err(Error::new(Kind::Corrupt, "the recipe has no end")),
        }
    }

    /// Bytes of content according to a recipe, with and without zeroes.
    ///
    /// # Errors
    /// As [`parts`](Self::parts).
    pub fn sizes(&mut self, recipe: &[Pieces]) -> Result<(u64, u64)> {
        let (mut all, mut data) = (0u64, 0u64);
        self.parts(recipe, &mut |_, part| {
            match part {
                Part::Run { bytes, .. } => {
                    all = all.saturating_add(u64::from(bytes));
                    data = data.saturating_add(u64::from(bytes));
                }
                Part::Zeroes(bytes) => all = all.saturating_add(bytes),
                _ => {}
            }
            Ok(())
        })?;
        Ok((all, data))
    }

    /// All content of a recipe, in order.
    ///
    /// # Errors
    /// `Corrupt` where data is damaged, and those of `each` and the system.
    pub fn read(
        &mut self,
        recipe: &[Pieces],
        verify: Verify,
        each: &mut dyn FnMut(Content<'_>) -> Result<()>,
    ) -> Result<()> {
        self.parts(recipe, &mut |reader, part| match part {
            Part::Run { first, bytes, fingerprints } => {
                reader.run(first, bytes, &fingerprints, verify, each)
            }
            Part::Zeroes(bytes) => each(Content::Zeroes(bytes)),
            Part::End(_) => Ok(()),
            Part::Slice { .. } | Part::Hole(_) => {
                Err(Error::new(Kind::Corrupt, "the recipe has a part that streams don't have"))
            }
        })
    }

    /// Gives the chunks of a run, slot after slot; they must have `bytes` bytes in sum.
    pub(crate) fn run(
        &mut self,
        first: Address,
        bytes: u32,
        fingerprints: &[Fingerprint],
        verify: Verify,
        each: &mut dyn FnMut(Content<'_>) -> Result<()>,
    ) -> Result<()> {
        let (tables, domain) = (self.guard.tables.clone(), self.domain_at(first)?);
        let (mut expected, mut found) = (fingerprints.iter(), 0);
        let read = self.reader.run(
            &tables,
            &self.container_reader,
            first,
            fingerprints.len(),
            &mut |chunk, bytes| {
                let whole = expected.next() == Some(&chunk.fingerprint)
                    && (verify == Verify::Groups || domain.is_of(bytes, &chunk.fingerprint));
                if !whole {
                    let message = format!(
                        "chunk {} of container {} is not the one that was stored",
                        chunk.first.slot, chunk.first.container
                    );
                    return Err(Error::new(Kind::Corrupt, message));
                }
                found += bytes.len() as u64;
                each(Content::Bytes(bytes))
            },
        );
        // The recipe's length was checked before the restore, so its chunks must agree with it.
        read.and_then(|()| match found == u64::from(bytes) {
            true => Ok(()),
            false => Err(Error::new(Kind::Corrupt, "the recipe has other bytes than its chunks")),
        })
    }
}
