//! A snapshot that is sent past damage of its map: leaf by leaf, up to the next page that can't be
//! read, and that page.

use onefold_core::{Error, Kind, Lba, Result, VolumeId};
use onefold_stream::{Piece, PieceKind, Pieces, is_damage};

use super::piece::add;
use crate::{
    engine::resolve::map_entries,
    format::{
        catalogue::Volume,
        page::{FANOUT, MapEntry, PageId, Table, pointer},
    },
    kernel::Kernel,
    overlay::Tables,
};

/// Leaves that one step looks at.
const LEAVES_A_STEP: usize = 1024;

/// The pieces from a block on, up to the end of the next page of the map that can't be read, or as many
/// leaves as a step looks at.
pub(super) fn past(
    kernel: &Kernel,
    base: Option<VolumeId>,
    of: VolumeId,
    from: u64,
) -> Result<Pieces> {
    let tables = kernel.tables();
    let map = |id: VolumeId| {
        let map = tables.volumes.get(&id).filter(|map| map.is_snapshot());
        map.ok_or_else(|| Error::new(Kind::NotFound, "there is no such snapshot any more"))
    };
    let (base, of) = (base.map(map).transpose()?, map(of)?);
    let per_leaf = Table::Map.per_leaf();
    let mut found = Pieces { pieces: Vec::new(), next: from };
    for _ in 0..LEAVES_A_STEP {
        let at = found.next;
        if at >= of.blocks {
            break;
        }
        let hidden = hidden_up_to(kernel, of, at)?;
        if hidden > at {
            found.pieces.push(Piece { first: at, blocks: hidden - at, kind: PieceKind::Hidden });
            found.next = hidden;
            break;
        }
        let end = ((at / per_leaf + 1) * per_leaf).min(of.blocks);
        let lbas: Vec<Lba> = (at..end).map(Lba).collect();
        match entries(kernel, &tables, of, &lbas)? {
            Some(now) => {
                let before = match base {
                    Some(base) => entries(kernel, &tables, base, &lbas)?,
                    None => Some(vec![MapEntry::Hole; lbas.len()]),
                };
                for (n, (lba, now)) in lbas.iter().zip(now).enumerate() {
                    if before.as_ref().is_none_or(|before| before[n] != now) {
                        add(&mut found.pieces, *lba, now);
                    }
                }
            }
            // An entry makes no sense, or the page has become unreadable just now.
            None => {
                let kind = PieceKind::Hidden;
                found.pieces.push(Piece { first: at, blocks: end - at, kind });
            }
        }
        found.next = end;
    }
    Ok(found)
}

/// What a map says of some blocks of one leaf; `None` when that can't be read.
fn entries(
    kernel: &Kernel,
    tables: &Tables,
    map: &Volume,
    lbas: &[Lba],
) -> Result<Option<Vec<MapEntry>>> {
    match map_entries(kernel, tables, map.id, lbas) {
        Err(error) if is_damage(&error) => Ok(None),
        found => found.map(Some),
    }
}

/// The end of the blocks that a page on the way to the block `at` hides since it can't be read; `at`
/// when all of them can be.
fn hidden_up_to(kernel: &Kernel, map: &Volume, at: u64) -> Result<u64> {
    let per_leaf = Table::Map.per_leaf();
    let mut page = map.map.page;
    for level in (0..map.map.height).rev() {
        let leaves = FANOUT.checked_pow(u32::from(level)).unwrap_or(u64::MAX);
        let index = at / per_leaf / leaves;
        if level + 1 == map.map.height && index > 0 {
            // The tree does not reach so far.
            return Ok(at);
        }
        let id = PageId { table: Table::Map, volume: map.family(), level, index };
        let read = match kernel.pages.get(id, &page) {
            Err(error) if is_damage(&error) => {
                let end = (index + 1).saturating_mul(leaves).saturating_mul(per_leaf);
                return Ok(end.min(map.blocks));
            }
            read => read?,
        };
        if level > 0 {
            page = pointer(&read, at / per_leaf / (leaves / FANOUT) % FANOUT);
            if page.is_none() {
                return Ok(at);
            }
        }
    }
    Ok(at)
}
