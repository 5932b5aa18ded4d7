//! The difference between two snapshots, for those who send it.
//!
//! Both trees are walked together. Pages that both name by one pointer (address, birth, checksum)
//! are skipped, unless a range waits to be applied in either of them: there a page holds more than
//! the map shows. What is left is compared entry by entry. Each call looks at the tables once and
//! holds no version of them afterwards; a long walk goes on by address, and what changes between its
//! steps are the tables of other maps, as a snapshot holds the same for ever.

mod hidden;
mod piece;

use onefold_core::{Block, Error, ExtentKind, Fingerprint, Kind, Lba, Result, VolumeId};
pub(crate) use onefold_stream::is_damage;
pub use onefold_stream::{Piece, PieceKind, Pieces, Token};

use self::piece::add;
use crate::{
    Engine,
    engine::{offers, read, resolve::map_entries},
    format::{
        catalogue::Volume,
        page::{FANOUT, PageId, Pointer, Table, pointer},
    },
    kernel::Kernel,
    overlay::Tables,
    rules::Rule,
};

/// Pages of the maps that one step looks at.
const PAGES_A_STEP: usize = 4096;

/// Extents that one step asks for.
const EXTENTS_A_STEP: usize = 1024;

/// The pieces of an engine's snapshots that are to be sent.
pub struct Transfers<'e>(&'e Engine);

impl<'e> Transfers<'e> {
    /// The transfers of an engine.
    #[must_use]
    pub fn of(engine: &'e Engine) -> Transfers<'e> {
        Transfers(engine)
    }

    /// The pieces of a volume or a snapshot from the block `from` on: all that is no hole, or with
    /// a `base`, a snapshot like the other, what is not as there. A step of bounded length.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` and `Io` when a map can't be read.
    pub fn pieces(&self, base: Option<VolumeId>, of: VolumeId, from: u64) -> Result<Pieces> {
        let kernel = &self.0.kernel;
        match base {
            None => whole(kernel, of, from),
            Some(base) => changed(kernel, base, of, from, true),
        }
    }

    /// What a receive holds in the tables that is not as in its base, a snapshot: nobody writes to it
    /// meanwhile but for blocks that were told. A step of bounded length.
    ///
    /// # Errors
    /// As [`pieces`](Self::pieces).
    pub(crate) fn since_base(&self, base: VolumeId, of: VolumeId, from: u64) -> Result<Pieces> {
        changed(&self.0.kernel, base, of, from, false)
    }

    /// As [`pieces`](Self::pieces) of a snapshot, past pages of its map that can't be read: what these
    /// hide is told as such. Of blocks whose base can't be read all is told, holes too.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn pieces_past_damage(
        &self,
        base: Option<VolumeId>,
        of: VolumeId,
        from: u64,
    ) -> Result<Pieces> {
        match self.pieces(base, of, from) {
            Err(error) if is_damage(&error) => hidden::past(&self.0.kernel, base, of, from),
            found => found,
        }
    }

    /// The fingerprints of some blocks of a snapshot; none where nothing is stored, and where its
    /// tables can't be read. A step as long as the blocks are many.
    ///
    /// # Errors
    /// As [`pieces`](Self::pieces).
    pub(crate) fn fingerprints(
        &self,
        of: VolumeId,
        first: u64,
        blocks: u64,
    ) -> Result<Vec<Option<Fingerprint>>> {
        offers::fingerprints(&self.0.kernel, of, first, blocks)
    }

    /// The blocks that the store holds in a domain of those that have these fingerprints, read and
    /// compared.
    ///
    /// # Errors
    /// `Unsupported` in a store that compares bytes.
    pub(crate) fn contents(
        &self,
        domain: u32,
        wanted: &[Fingerprint],
    ) -> Result<Vec<Option<Block>>> {
        offers::contents(&self.0.kernel, domain, wanted)
    }
}

/// All pieces that are no holes.
fn whole(kernel: &Kernel, of: VolumeId, from: u64) -> Result<Pieces> {
    let end = kernel.state.lock().volumes.get(of)?.blocks;
    let mut found = Pieces { pieces: Vec::new(), next: from };
    if from >= end {
        return Ok(found);
    }
    for extent in read::extents(kernel, of, Lba(from), end - from, EXTENTS_A_STEP)? {
        let blocks = extent.bytes / 4096;
        if extent.kind != ExtentKind::Hole {
            found.pieces.push(Piece { first: found.next, blocks, kind: extent.kind.into() });
        }
        found.next += blocks;
    }
    Ok(found)
}

/// The pieces that are not as in the base, up to the end of the snapshot.
fn changed(
    kernel: &Kernel,
    base: VolumeId,
    of: VolumeId,
    from: u64,
    ended: bool,
) -> Result<Pieces> {
    let tables = kernel.state.lock().overlays.tables().clone();
    let map = |id: VolumeId, ended: bool| {
        let map = tables.volumes.get(&id).filter(|map| !ended || map.is_snapshot());
        map.ok_or_else(|| Error::new(Kind::NotFound, "there is no such snapshot any more"))
    };
    let (base, of) = (map(base, true)?, map(of, ended)?);
    let mut walk =
        Walk { kernel, tables: &tables, base, of, left: PAGES_A_STEP, leaves: Vec::new() };
    let next = walk.leaves(from)?.min(of.blocks);
    let per_leaf = Table::Map.per_leaf();
    let mut found = Pieces { pieces: Vec::new(), next };
    for leaf in std::mem::take(&mut walk.leaves) {
        let (start, end) = ((leaf * per_leaf).max(from), ((leaf + 1) * per_leaf).min(next));
        if start < end {
            walk.compare(start, end, &mut found.pieces)?;
        }
    }
    Ok(found)
}

/// Two maps that are walked together.
struct Walk<'a> {
    kernel: &'a Kernel,
    tables: &'a Tables,
    base: &'a Volume,
    of: &'a Volume,
    /// Pages that may still be looked at.
    left: usize,
    /// Leaves that may differ.
    leaves: Vec<u64>,
}

impl Walk<'_> {
    /// Finds leaves from that of the block `from` on which may differ; returns the block up to which
    /// all were found.
    fn leaves(&mut self, from: u64) -> Result<u64> {
        let height = self.base.map.height.max(self.of.map.height);
        let first = from / Table::Map.per_leaf();
        // Ranges that wait where neither map has a page change nothing.
        let Some(top) = height.checked_sub(1) else { return Ok(u64::MAX) };
        let at = |map: &Volume| (map.map.height == height).then_some(map.map.page);
        let (base, of) = (at(self.base), at(self.of));
        let stopped = self.below(top, 0, base, of, first)?;
        Ok(stopped.map_or(u64::MAX, |leaf| leaf.saturating_mul(Table::Map.per_leaf())))
    }

    /// The same below two pages at one place, either of which may be missing; returns the leaf at
    /// which it stopped, if it did.
    fn below(
        &mut self,
        level: u8,
        index: u64,
        base: Option<Pointer>,
        of: Option<Pointer>,
        first: u64,
    ) -> Result<Option<u64>> {
        let reach = FANOUT.checked_pow(u32::from(level)).unwrap_or(u64::MAX);
        let begins = index.saturating_mul(reach);
        if begins.saturating_add(reach) <= first {
            return Ok(None);
        }
        let (base, of) = (
            self.root_here(self.base, level, index, base),
            self.root_here(self.of, level, index, of),
        );
        if self.alike(level, index, base, of) && !self.ranges_wait(begins, reach) {
            return Ok(None);
        }
        // At least one leaf is found, so that each step goes on.
        if self.left == 0 && !self.leaves.is_empty() {
            return Ok(Some(begins.max(first)));
        }
        self.left = self.left.saturating_sub(1);
        if level == 0 {
            self.leaves.push(index);
            return Ok(None);
        }
        let (base_page, of_page) =
            (self.page(self.base, level, index, base)?, self.page(self.of, level, index, of)?);
        for slot in 0..FANOUT {
            let child = |page: &Option<_>| page.as_deref().map(|page| pointer(page, slot));
            let some = |child: Option<Pointer>| child.filter(|child| !child.is_none());
            let (base, of) = (some(child(&base_page)), some(child(&of_page)));
            if let Some(at) = self.below(level - 1, index * FANOUT + slot, base, of, first)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The page of a map at a place: what its parent says, or the root of the lower one of two
    /// trees.
    fn root_here(
        &self,
        map: &Volume,
        level: u8,
        index: u64,
        said: Option<Pointer>,
    ) -> Option<Pointer> {
        let is_root = map.map.height == level + 1 && index == 0;
        if is_root { Some(map.map.page) } else { said }
    }

    /// True when both have the same page, or none, and what lies below is known by that.
    fn alike(&self, level: u8, index: u64, base: Option<Pointer>, of: Option<Pointer>) -> bool {
        // The root of a lower tree lies below places where it has no page.
        let hidden = |map: &Volume| index == 0 && (1..=level).contains(&map.map.height);
        base == of && !hidden(self.base) && !hidden(self.of)
    }

    /// True when a range of either waits to be applied to leaves from `begins` on.
    fn ranges_wait(&self, begins: u64, leaves: u64) -> bool {
        let per_leaf = Table::Map.per_leaf();
        let (start, end) = (
            begins.saturating_mul(per_leaf),
            begins.saturating_add(leaves).saturating_mul(per_leaf),
        );
        let waits =
            |map: &Volume| self.tables.discards.meeting(map.id, start, end).next().is_some();
        self.kernel.keeps(Rule::RangesCompared) && (waits(self.base) || waits(self.of))
    }

    fn page(
        &self,
        map: &Volume,
        level: u8,
        index: u64,
        at: Option<Pointer>,
    ) -> Result<Option<std::sync::Arc<crate::format::page::Page>>> {
        let id = PageId { table: Table::Map, volume: map.family(), level, index };
        at.map(|at| self.kernel.pages.get(id, &at)).transpose()
    }

    /// Compares the entries of some blocks.
    fn compare(&self, start: u64, end: u64, pieces: &mut Vec<Piece>) -> Result<()> {
        let lbas: Vec<Lba> = (start..end).map(Lba).collect();
        let base = map_entries(self.kernel, self.tables, self.base.id, &lbas)?;
        let of = map_entries(self.kernel, self.tables, self.of.id, &lbas)?;
        for ((lba, base), of) in lbas.iter().zip(base).zip(of) {
            if base != of {
                add(pieces, *lba, of);
            }
        }
        Ok(())
    }
}
