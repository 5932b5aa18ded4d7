//! A second reading of `docs/format.md`: what a store that was shut down cleanly holds, and whether
//! its metadata agrees with itself.
//!
//! The verifier was written from the document alone, and shares no code with the engine nor with
//! the
//! product's `check`: a mistake that these two share shows here. It is told which blocks of the
//! disk are damaged; what it can't know because of them it leaves out, and all else must be right.
//!
//! *Invariant:* nothing here uses `onefold-block`, and of `onefold-core` only the size of a block.

mod blocks;
mod layout;
mod sealed;
mod sharing;
mod tables;
mod tree;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::take,
};

use onefold_core::BLOCK_BYTES;
use onefold_testbed::disk::{Bytes, Image};

use layout::Superblock;
pub use sealed::Sealed;
use tree::Pointer;

/// The content of an address of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// Zeroes, or a hole.
    Zeroes,
    /// These bytes.
    Data(Bytes),
    /// Lost: an error to read.
    Lost,
    /// Unknown: something on the way to the content is damaged.
    Dark,
}

/// A volume as the tables have it.
#[derive(Debug)]
pub struct Volume {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its size in blocks.
    pub blocks: u64,
    held: BTreeMap<u64, Held>,
    dark: Vec<(u64, u64)>,
}

impl Volume {
    /// The content of the block at `lba`.
    #[must_use]
    pub fn held(&self, lba: u64) -> Held {
        if self.dark.iter().any(|&(first, end)| (first..end).contains(&lba)) {
            return Held::Dark;
        }
        self.held.get(&lba).cloned().unwrap_or(Held::Zeroes)
    }

    /// The addresses that hold more than zeroes, or of which that can't be told.
    pub fn mapped(&self) -> impl Iterator<Item = u64> + '_ {
        self.held.keys().copied()
    }
}

/// The findings of a second reading.
#[derive(Debug, Default)]
pub struct Reading {
    /// The store was shut down cleanly; of another one nothing else is read.
    pub clean: bool,
    /// All that is wrong and that no damaged block explains, a sentence each.
    pub problems: Vec<String>,
    /// The volumes; `None` when damage hides some.
    pub volumes: Option<Vec<Volume>>,
    /// Damaged blocks that something needs.
    pub hidden: BTreeSet<u64>,
}

impl Reading {
    /// The same with addresses that begin at block `first` of each volume.
    #[must_use]
    pub fn from(mut self, first: u64) -> Reading {
        for volume in self.volumes.iter_mut().flatten() {
            volume.blocks -= first;
            volume.held =
                take(&mut volume.held).into_iter().map(|(lba, held)| (lba - first, held)).collect();
            volume.dark.iter_mut().for_each(|(start, end)| {
                (*start, *end) = (start.saturating_sub(first), end.saturating_sub(first));
            });
        }
        self
    }
}

/// Reads the store on `image`, of which the blocks of `damaged` may hold anything. Fingerprints are
/// not compared when they are `weak`. A sealed store is opened by `sealed`.
#[must_use]
pub fn read(
    image: &Image,
    damaged: &BTreeSet<u64>,
    weak: bool,
    sealed: Option<&Sealed>,
) -> Reading {
    let mut reading = Reading::default();
    let superblock = match Superblock::choose(image, damaged, sealed) {
        Ok(Some(superblock)) => superblock,
        Ok(None) => return reading,
        Err(problem) => {
            reading.problems.push(problem);
            return reading;
        }
    };
    reading.clean = superblock.clean;
    if reading.clean {
        Reader::new(image, damaged, weak, superblock, sealed).run(&mut reading);
    }
    reading
}

/// What a store that was shut down cleanly still has of what it does not hold any more.
#[derive(Debug, Default)]
pub struct Forgotten {
    /// Free blocks that are not zero.
    pub blocks: Vec<u64>,
    /// Blocks without references that have a fingerprint.
    pub fingerprints: Vec<u64>,
}

/// Looks at what is free in the store on an image without damage; a crash may have torn one superblock. A sealed
/// store is opened by `sealed`.
///
/// # Errors
/// It has no superblock.
pub fn forgotten(image: &Image, sealed: Option<&Sealed>) -> Result<Forgotten, String> {
    let none = BTreeSet::new();
    let torn = layout::torn(image, sealed);
    let superblock = Superblock::choose(image, &torn, sealed)?.ok_or("no superblock")?;
    let mut reader = Reader::new(image, &none, true, superblock, sealed);
    let usage = reader.usage();
    reader.problems.first().map_or(Ok(()), |problem| Err(problem.clone()))?;
    Ok(reader.forgotten(&usage))
}

/// One reading under way.
struct Reader<'a> {
    image: &'a Image,
    damaged: &'a BTreeSet<u64>,
    weak: bool,
    superblock: Superblock,
    sealed: Option<&'a Sealed>,
    problems: Vec<String>,
    hidden: BTreeSet<u64>,
    /// Blocks that hold pages, and which.
    pages: BTreeMap<u64, String>,
    /// Map entries that name a block: how many, whether they say that it is in a carrier, and the
    /// prefix that they have.
    links: BTreeMap<u64, Link>,
    /// A page of a map, or of the catalogue, is hidden: there may be more links, and more pages.
    maps_hidden: bool,
    /// Any page is hidden: there may be more pages.
    pages_hidden: bool,
    /// Contents of the blocks that were looked at, and their domains, each with the number of the data key that
    /// opened the block, the newest first.
    /// By their places, and the kind of entry that names them.
    contents: BTreeMap<(u64, u8), (Held, (u64, usize))>,
    /// Domains with limits: the number, the blocks that the superblock says, and those that its
    /// families name.
    domains: Vec<(u64, u64, u64)>,
}

#[derive(Clone, Debug)]
struct Link {
    count: u64,
    /// Of entries that name fragments 128, whichever they name.
    kind: u8,
    prefix: u64,
    critical: bool,
}

impl<'a> Reader<'a> {
    fn new(
        image: &'a Image,
        damaged: &'a BTreeSet<u64>,
        weak: bool,
        superblock: Superblock,
        sealed: Option<&'a Sealed>,
    ) -> Reader<'a> {
        Reader {
            image,
            damaged,
            weak,
            superblock,
            sealed,
            problems: Vec::new(),
            domains: Vec::new(),
            hidden: BTreeSet::new(),
            pages: BTreeMap::new(),
            links: BTreeMap::new(),
            maps_hidden: false,
            pages_hidden: false,
            contents: BTreeMap::new(),
        }
    }

    fn run(mut self, reading: &mut Reading) {
        self.superblock.plausible().into_iter().for_each(|problem| self.problems.push(problem));
        let listed = self.zone_list();
        self.nothing_uncommitted(&listed);
        let discards = self.discards();
        reading.volumes = if self.superblock.sharing {
            self.sharing_volumes(&discards)
        } else {
            self.volumes(&discards)
        };
        self.index();
        let usage = self.usage();
        self.compare(&usage, &listed);
        reading.problems = self.problems;
        reading.hidden = self.hidden;
    }

    /// The block at `at`; blocks that were never written hold zeroes.
    fn block(&self, at: u64) -> [u8; BLOCK_BYTES] {
        self.image.get(at).map_or([0; BLOCK_BYTES], |bytes| **bytes)
    }

    /// The block of metadata at `at`, opened if the store is sealed; zeroes when it is not what was
    /// sealed there.
    fn metadata(&self, what: (u8, usize), at: u64) -> [u8; BLOCK_BYTES] {
        let block = self.block(at);
        self.sealed
            .map_or(block, |sealed| sealed.metadata(what, at, &block).unwrap_or([0; BLOCK_BYTES]))
    }

    /// The block at `at` is not what it must be: a problem, or what its damage explains.
    fn wrong(&mut self, at: u64, what: impl FnOnce() -> String) {
        if self.damaged.contains(&at) {
            self.hidden.insert(at);
        } else {
            self.problems.push(format!("block {at}: {}", what()));
        }
    }

    fn problem(&mut self, what: String) {
        self.problems.push(what);
    }

    /// The pointer at the place of a root in the superblock, and the height of its tree.
    fn root(&self, root: usize) -> (Pointer, u64) {
        self.superblock.roots[root]
    }
}

/// A number of `N` bytes, little-endian.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(wide)
}

fn zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// XXH3-64 of `bytes` with the eight bytes at `at` zero.
fn checksum(seed: u64, bytes: &[u8], at: usize) -> u64 {
    let mut copy = bytes.to_vec();
    copy[at..at + 8].fill(0);
    twox_hash::XxHash3_64::oneshot_with_seed(seed, &copy)
}
