//! The decisions about a closed window: its records, and which block goes where.

use onefold_core::{Block, BlockRef, Class, Error, Fingerprint, Kind, Pba, Result, Run};

use super::Window;
use crate::{
    format::{
        record::{Change, Record},
        sealing::Sealing,
    },
    scheme::records::leftover_table::LeftoverPage,
    space::Extent,
};

/// The content of a physical block that is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The window's block number `.0`, as it is.
    Raw(u32),
    /// The carrier number `.0` of the plan.
    Carrier(u32),
}

/// By what the data of a block is sealed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SealedBy {
    /// Its domain.
    pub(crate) domain: u32,
    /// The prefix of its fingerprint as maps keep it; 0 where there is none.
    pub(crate) prefix: u64,
}

/// The raw blocks of a window as they are written.
pub(crate) enum RawBlocks {
    /// As the window has them: the store is plain.
    Plain,
    /// As [`Plan::seal_raw`] made them, in the order of the extents.
    Sealed(Vec<Block>),
}

fn unsealed() -> Error {
    let why = "a block that is not sealed would be written to an encrypted store";
    Error::new(Kind::Io, why)
}

/// The outcome of preparing a window.
#[derive(Default)]
pub(crate) struct Plan {
    /// In the order of their timestamps.
    pub(crate) records: Vec<Record>,
    /// The runs that are written.
    pub(crate) extents: Vec<Extent>,
    /// The contents of the blocks of the runs, one after the other.
    pub(crate) sources: Vec<Source>,
    /// The carriers.
    pub(crate) carriers: Vec<Box<Block>>,
    /// In a sealed store: by what each source is sealed.
    pub(crate) seals: Vec<SealedBy>,
    /// Generation of the zone of each carrier.
    pub(crate) generations: Vec<u64>,
    /// Pages of the leftover table that are written with the window.
    pub(crate) leftover: Vec<LeftoverPage>,
    /// Blocks stored before that records of this window name.
    pub(crate) pins: Vec<Pba>,
    /// Records that found room beside a compressed block.
    pub(crate) hidden: u64,
    /// Blocks that were duplicates.
    pub(crate) duplicates: u64,
}

impl Plan {
    /// The blocks that the window's links name, each as often as they do, with their fingerprints.
    pub(crate) fn links(&self) -> impl Iterator<Item = (Pba, Fingerprint)> {
        self.records.iter().filter_map(|record| match record.change {
            Change::Block { pba, fingerprint, .. } => Some((pba, fingerprint)),
            _ => None,
        })
    }

    /// Fills `sealed` with the raw blocks as they are written to a sealed store, in the order of the
    /// extents.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses, or a raw block has no address or no prefix. `Corrupt`: its
    /// domain was erased.
    pub(crate) fn seal_raw(
        &self,
        window: &Window,
        sealing: &Sealing,
        sealed: &mut Vec<Block>,
    ) -> Result<()> {
        let is_raw = |source: &Source| matches!(source, Source::Raw(_));
        sealed
            .resize(self.sources.iter().filter(|source| is_raw(source)).count(), Block([0; 4096]));
        let raw = self.sources.iter().filter_map(|source| match *source {
            Source::Raw(slot) => Some(slot as usize),
            _ => None,
        });
        // All copies come first: the cipher behind a copy would wait until that has left the processor's store buffer,
        // a microsecond for each block.
        raw.zip(sealed.iter_mut()).for_each(|(slot, block)| block.0 = window.data(slot).0);
        let mut copied = sealed.iter_mut();
        let mut addresses = self.addresses();
        let mut seals = self.seals.iter();
        for source in &self.sources {
            let (at, by) = (addresses.next(), seals.next());
            if is_raw(source) {
                let (Some(at), Some(by), Some(block)) = (at, by, copied.next()) else {
                    return Err(unsealed());
                };
                sealing.seal_raw(by.domain, by.prefix, at, block)?;
            }
        }
        Ok(())
    }

    /// The blocks to be written, in the order of the extents.
    ///
    /// # Errors
    /// `Io`: a raw block was not sealed, and the store is: nothing of it may be written.
    pub(crate) fn blocks<'a>(
        &'a self,
        window: &'a Window,
        raw: &'a RawBlocks,
    ) -> Result<Vec<BlockRef<'a>>> {
        let mut sealed = match raw {
            RawBlocks::Plain => None,
            RawBlocks::Sealed(sealed) => Some(sealed.iter()),
        };
        let written = |source: &Source| {
            Ok(match *source {
                Source::Raw(slot) => {
                    let block = match &mut sealed {
                        None => window.data(slot as usize),
                        Some(sealed) => sealed.next().ok_or_else(unsealed)?,
                    };
                    BlockRef { block, class: Class::Data }
                }
                Source::Carrier(n) => {
                    BlockRef { block: &self.carriers[n as usize], class: Class::Carrier }
                }
            })
        };
        self.sources.iter().map(written).collect()
    }

    /// The addresses of the blocks, in the order of the extents.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Pba> {
        self.extents.iter().flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n)))
    }

    /// True when the window is one contiguous write.
    pub(crate) fn is_one_run(&self) -> bool {
        self.extents.len() == 1 && self.leftover.is_empty()
    }

    /// The runs over `blocks`, which [`blocks`](Self::blocks) gave.
    pub(crate) fn runs<'a>(&self, blocks: &'a [BlockRef<'a>]) -> Vec<Run<'a>> {
        let mut rest = blocks;
        self.extents
            .iter()
            .map(|extent| {
                let (run, others) = rest.split_at(extent.blocks as usize);
                rest = others;
                Run { at: extent.at, blocks: run }
            })
            .collect()
    }

    /// The runs of those of `blocks`, which [`blocks`](Self::blocks) gave, that are (or are not)
    /// clients' data as it is.
    pub(crate) fn runs_of<'a>(&self, blocks: &'a [BlockRef<'a>], data: bool) -> Vec<Run<'a>> {
        let of_class = |run: &Run<'a>| -> Vec<Run<'a>> {
            let parts =
                run.blocks.chunk_by(|a, b| (a.class == Class::Data) == (b.class == Class::Data));
            let mut at = run.at;
            let placed = parts.map(|blocks| {
                let run = Run { at, blocks };
                at = at.plus(blocks.len() as u64);
                run
            });
            placed.filter(|run| (run.blocks[0].class == Class::Data) == data).collect()
        };
        self.runs(blocks).iter().flat_map(of_class).collect()
    }

    /// The content that goes to `pba`, when this window writes it; and its domain if it is a block of a
    /// client as it is.
    pub(crate) fn written<'a>(
        &'a self,
        window: &'a Window,
        pba: Pba,
    ) -> Option<(&'a Block, Option<u32>)> {
        let mut before = 0;
        for extent in &self.extents {
            if (extent.at..extent.at.plus(extent.blocks)).contains(&pba) {
                return Some(match self.sources[(before + (pba.0 - extent.at.0)) as usize] {
                    Source::Raw(slot) => {
                        let slot = slot as usize;
                        (window.data(slot), Some(window.blocks[slot].kept.domain))
                    }
                    Source::Carrier(n) => (&*self.carriers[n as usize], None),
                });
            }
            before += extent.blocks;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::{Lba, VolumeId};
    use onefold_seal::{Keys, Random};

    use super::{
        super::{Kept, PIECE_BLOCKS},
        *,
    };
    use crate::format::{record::WindowNumber, sealing::Flaws};

    struct Fixed;

    impl Random for Fixed {
        fn fill(&self, into: &mut [u8]) -> Result<()> {
            into.fill(7);
            Ok(())
        }
    }

    /// A window of two blocks, and a plan that writes both as they are.
    fn two_raw() -> (Window, Plan) {
        let mut window = Window::new(WindowNumber(1));
        for at in 0..2 {
            let piece = || Block::zeroed_vec(PIECE_BLOCKS);
            window.put(VolumeId(1), Lba(at), false, Kept::default(), piece).0 = [3; 4096];
        }
        let sources = vec![Source::Raw(0), Source::Raw(1)];
        let extents = vec![Extent { at: Pba(40), blocks: 2 }];
        (window, Plan { sources, extents, ..Plan::default() })
    }

    #[test]
    fn rule_32_a_block_whose_sealed_form_is_missing_is_an_error_and_never_written_as_it_is() {
        let (window, mut plan) = two_raw();
        let plain = plan.blocks(&window, &RawBlocks::Plain).unwrap();
        assert!(plain.iter().all(|block| block.block.0 == [3; 4096]));
        // Room of a window before: nothing of it stands in for what was not sealed.
        let sealing = Sealing::new(&Keys::create([1; 16], &Fixed).unwrap(), Flaws::default());
        let sealing = sealing.unwrap();
        let mut sealed = Block::zeroed_vec(8);
        let by = |prefix| SealedBy { domain: 0, prefix };
        for seals in [vec![], vec![by(5)]] {
            plan.seals = seals;
            assert_eq!(plan.seal_raw(&window, &sealing, &mut sealed).unwrap_err().kind(), Kind::Io);
        }
        plan.seals = vec![by(5), by(6)];
        plan.seal_raw(&window, &sealing, &mut sealed).unwrap();
        let mut raw = RawBlocks::Sealed(sealed);
        let written = plan.blocks(&window, &raw).unwrap();
        assert!(written.iter().all(|block| block.block.0 != [3; 4096]));
        for _ in 0..2 {
            let RawBlocks::Sealed(sealed) = &mut raw else { panic!("it is sealed") };
            sealed.pop();
            assert_eq!(plan.blocks(&window, &raw).err().unwrap().kind(), Kind::Io);
        }
    }
}
