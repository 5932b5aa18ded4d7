//! The copies of what the last snapshot of the tables names, looked at, and written again where one is
//! damaged: the tables' leaves, and the pages of volumes' maps. A snapshot that can't be read is
//! replaced by a new one.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, File, Kind, Result};

use super::{archive::Archive, next_log::NextLog};
use crate::{
    block_index::{self, MAPS, Page},
    leaf_file::{LeafReader, rewrite_copy},
    memory::Drawn,
    rules::Rule,
    tables::Tables,
};

/// Leaves that are looked at while the commit lock is held.
const PORTION: usize = 64;

/// Pages of maps, likewise.
const PAGES_PORTION: usize = 1024;

/// Things of which there are two copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopiesFound {
    /// First pages of those with one whole copy left.
    pub(crate) with_one_copy: Vec<u32>,
    /// First pages of those with none.
    pub(crate) lost: Vec<u32>,
    /// Copies that were written again.
    pub(crate) mended: u64,
}

/// The state of the last snapshot of the tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeavesFound {
    /// Leaves of the tables. Those without a whole copy are not here that are read when they are
    /// looked at.
    pub(crate) leaves: CopiesFound,
    /// Pages of the volumes' maps.
    pub(crate) pages: CopiesFound,
    /// Why it can't be read; the one before took its place.
    pub(crate) snapshot_lost: Option<Error>,
}

/// Writes a copy again, the first or the second one.
type Mend<'a> = dyn Fn(usize, &[u8]) -> Result<()> + 'a;

impl CopiesFound {
    /// Takes account of the copies of what lies from a page on; `mend` writes one again.
    fn note(
        &mut self,
        page: u32,
        copies: [Option<Vec<u8>>; 2],
        mend: Option<&Mend<'_>>,
    ) -> Result<()> {
        let (copy, bytes) = match copies {
            [Some(_), Some(_)] => return Ok(()),
            [None, Some(bytes)] => (0, bytes),
            [Some(bytes), None] => (1, bytes),
            [None, None] => {
                self.lost.push(page);
                return Ok(());
            }
        };
        match mend {
            Some(mend) => {
                mend(copy, &bytes)?;
                self.mended += 1;
            }
            None => self.with_one_copy.push(page),
        }
        Ok(())
    }
}

/// Reads both copies of all leaves and pages that the last snapshot of the tables names; with
/// `mends` writes damaged ones again, durably on return.
///
/// # Errors
/// As [`open`](Archive::open); damage is in what it gives.
pub(crate) fn look_at_leaves(archive: &Archive, mends: bool) -> Result<LeavesFound> {
    let mends = mends && archive.writes;
    let mut found = CopiesFound::default();
    let all = archive.refresh()?.leaf_file.named().iter().copied().collect::<Vec<_>>();
    for places in all.chunks(PORTION) {
        let (mut position, _lock) = archive.locked()?;
        archive.replay_new_frames(&mut position)?;
        let mut reader = LeafReader::new(&*archive.files, &archive.identity, &archive.settings);
        let named = position.tables.leaf_file.named();
        // A snapshot that came meanwhile may have given other content to what it does not name.
        for &place in places.iter().filter(|place| named.contains(place)) {
            let copies =
                [reader.copy(place, 0, Drawn::free())?, reader.copy(place, 1, Drawn::free())?];
            // Told by who looks at the containers in it.
            if copies == [None, None] && position.tables.leaf_file.is_on_demand(place) {
                continue;
            }
            let mend: &Mend<'_> = &|copy, bytes| {
                let bytes = bytes.to_vec();
                rewrite_copy(&*archive.files, &archive.identity, place, copy as u32, bytes)?;
                archive.files.confirm()
            };
            found.note(place.page, copies, mends.then_some(mend))?;
        }
    }
    let pages = look_at_pages(archive, mends && archive.keeps(Rule::MapPagesMended))?;
    let snapshot_lost = snapshot_lost(archive)?;
    Ok(LeavesFound { leaves: found, pages, snapshot_lost })
}

/// Pages of the volumes' maps by their numbers, with the leaf that lies there where it did not change
/// since.
fn named_pages(tables: &Tables) -> BTreeMap<u32, Option<(u32, Page)>> {
    let gone = tables.volumes.pages().gone.iter().map(|&number| (number, None));
    let known = tables.volumes.all().values().flat_map(|volume| volume.block_index.pages());
    gone.chain(known.map(|(leaf, page)| (page.number, Some((leaf, page))))).collect()
}

/// Reads both copies of all pages of the volumes' maps, likewise.
fn look_at_pages(archive: &Archive, mends: bool) -> Result<CopiesFound> {
    let mut found = CopiesFound::default();
    let mut tables = archive.refresh()?;
    let mut named = named_pages(&tables);
    let numbers: Vec<u32> = named.keys().copied().collect();
    let mut file: Option<Arc<dyn File>> = None;
    for portion in numbers.chunks(PAGES_PORTION) {
        let (mut position, _lock) = archive.locked()?;
        archive.replay_new_frames(&mut position)?;
        if !Arc::ptr_eq(&tables, &position.tables) {
            tables = position.tables.clone();
            named = named_pages(&tables);
        }
        let file = match &file {
            Some(file) => file,
            None => file.insert(archive.files.open(MAPS)?),
        };
        for (&number, &expected) in portion.iter().filter_map(|number| named.get_key_value(number))
        {
            let copies = block_index::whole_copies(&**file, &archive.identity, number, expected)?;
            let mend: &Mend<'_> = &|copy, bytes| {
                let bytes = bytes.to_vec();
                block_index::rewrite_copy(&**file, &archive.identity, number, copy, bytes)?;
                archive.files.confirm()
            };
            found.note(number, copies, mends.then_some(mend))?;
        }
    }
    Ok(found)
}

/// Why the last snapshot of the tables can't be read, when the one before took its place.
fn snapshot_lost(archive: &Archive) -> Result<Option<Error>> {
    let (mut position, _lock) = archive.locked()?;
    archive.replay_new_frames(&mut position)?;
    Ok(position.snapshot_lost.clone())
}

/// Writes damaged copies of the tables' leaves and of the volumes' maps again where the other one is
/// whole; gives how many. Durable on return.
///
/// # Errors
/// As [`open`](Archive::open).
pub fn mend_leaves(archive: &Archive) -> Result<u64> {
    let found = look_at_leaves(archive, true)?;
    Ok(found.leaves.mended + found.pages.mended)
}

/// Writes new snapshots of the tables where the last one can't be read, so that the archive does not
/// depend on the one before; true when it did. Durable on return.
///
/// # Errors
/// `NoSpace`, and as [`open`](Archive::open).
pub fn renew_snapshot(archive: &Archive) -> Result<bool> {
    if !archive.writes || snapshot_lost(archive)?.is_none() {
        return Ok(false);
    }
    let (mut position, _lock) = archive.locked()?;
    archive.replay_new_frames(&mut position)?;
    // The second one makes the first the one before: both can be read.
    for _ in 0..2 {
        let number = position.snapshot;
        NextLog::of(archive, &mut position).begin(true)?;
        if position.snapshot == number {
            let why = "the disk has no room for a new snapshot of the tables";
            return Err(Error::new(Kind::NoSpace, why));
        }
    }
    Ok(true)
}

/// Begins a new log behind the last change that can be read, so that nothing behind it counts any more; gives
/// the number of that change. Durable on return.
///
/// # Errors
/// `NoSpace`, and as [`open`](Archive::open).
pub fn renew_log(archive: &Archive) -> Result<u64> {
    let (mut position, _lock) = archive.locked()?;
    archive.replay_new_frames(&mut position)?;
    let number = position.snapshot;
    NextLog::of(archive, &mut position).begin(true)?;
    match position.snapshot > number {
        true => Ok(position.tables.sequence),
        false => Err(Error::new(Kind::NoSpace, "the disk has no room for a new operations log")),
    }
}
