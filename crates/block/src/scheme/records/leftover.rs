//! The leftover table at an opening (`leftover = table`).
//!
//! | in a place of a page | what it is |
//! |---|---|
//! | eight sectors of one durable window | a version that counts; the newest of the two places is where the next one does not go |
//! | sectors of a newer window among others | a version that a crash tore: its records are believed one by one, like those of a carrier |
//! | sectors of a void window | the same, from an earlier crash |
//! | nothing newer than the last checkpoint, whole or not | nothing that counts |
//! | sectors of an older durable window, not all of them | rot; when no whole version is newer, durable records are lost |
//!
//! A version that was lost as a whole leaves the one before it, which is whole: that is not noticed
//! here.

use std::collections::BTreeSet;

use onefold_core::{Block, Error, Kind, Pba, Read, Result};

use super::leftover_table::LeftoverTable;
use crate::{
    format::{
        leftover::{self, SECTORS, Sector},
        record::{Record, WindowNumber},
        superblock::{Cut, State},
    },
    kernel::Kernel,
};

/// Pages read at once.
const PAGES: u32 = 128;

/// One page as it was read: its two places.
pub(crate) struct PageFound {
    number: u32,
    places: [[Option<Sector>; SECTORS]; 2],
}

/// The pages that hold anything newer than the last checkpoint.
#[derive(Default)]
pub(crate) struct LeftoverFound {
    pages: Vec<PageFound>,
}

/// The content of a place of a page.
pub(crate) enum Version {
    /// Nothing that counts.
    Nothing,
    /// A version that counts.
    Whole(WindowNumber),
    /// A version whose write was not durable when a crash came.
    Torn,
    /// The rest of a version that was durable.
    Rotten(WindowNumber),
}

/// True when a recovery made this window count for nothing.
fn is_void(window: WindowNumber, cuts: &[Cut]) -> bool {
    cuts.iter().any(|cut| cut.window < window && window < cut.resume)
}

/// The content of a place, when windows up to `durable` are durable.
pub(crate) fn version(
    sectors: &[Option<Sector>; SECTORS],
    State { committed, cuts, .. }: &State,
    durable: WindowNumber,
) -> Version {
    let newest = sectors
        .iter()
        .flatten()
        .map(|sector| sector.window)
        .max()
        .filter(|newest| newest > committed);
    let Some(newest) = newest else { return Version::Nothing };
    if newest > durable || is_void(newest, cuts) {
        Version::Torn
    } else if sectors
        .iter()
        .all(|sector| sector.as_ref().is_some_and(|sector| sector.window == newest))
    {
        Version::Whole(newest)
    } else {
        Version::Rotten(newest)
    }
}

impl LeftoverFound {
    /// Sectors that count, by what is known before the newest records are judged.
    fn sectors<'a>(&'a self, cuts: &'a [Cut]) -> impl Iterator<Item = &'a Sector> {
        let all = self.pages.iter().flat_map(|page| page.places.iter().flatten().flatten());
        all.filter(move |sector| !is_void(sector.window, cuts))
    }

    /// The highest window that is told to be durable.
    pub(super) fn durable(&self, cuts: &[Cut]) -> WindowNumber {
        self.sectors(cuts).map(|sector| sector.durable).max().unwrap_or_default()
    }

    /// Durable windows of which it is told that they have carriers.
    pub(super) fn carriers(&self, cuts: &[Cut], durable: WindowNumber) -> BTreeSet<WindowNumber> {
        self.sectors(cuts)
            .map(|sector| sector.carriers)
            .filter(|&window| window <= durable)
            .collect()
    }

    /// The highest window that wrote here, void or not.
    pub(super) fn seen(&self) -> WindowNumber {
        self.pages
            .iter()
            .flat_map(|page| page.places.iter().flatten().flatten())
            .map(|sector| sector.window)
            .max()
            .unwrap_or_default()
    }

    /// The records that no checkpoint holds.
    pub(super) fn records<'a>(&'a self, state: &'a State) -> impl Iterator<Item = Record> + 'a {
        self.sectors(&state.cuts).flat_map(|sector| sector.records.iter().copied()).filter(
            |record| {
                let window = WindowNumber::of(record.timestamp);
                window > state.committed && !is_void(window, &state.cuts)
            },
        )
    }

    /// Hands the durable versions to the table, and fails when one is rotten and nothing is newer,
    /// unless loss is accepted.
    pub(super) fn hand_over(
        &self,
        state: &State,
        durable: WindowNumber,
        accept_loss: bool,
        table: &mut LeftoverTable,
    ) -> Result<()> {
        for page in &self.pages {
            let mut best: Option<(WindowNumber, usize)> = None;
            let mut rotten: Option<(WindowNumber, usize)> = None;
            for (place, sectors) in page.places.iter().enumerate() {
                match version(sectors, state, durable) {
                    Version::Whole(window) => best = best.max(Some((window, place))),
                    Version::Rotten(window) => rotten = rotten.max(Some((window, place))),
                    Version::Torn | Version::Nothing => {}
                }
            }
            if rotten > best {
                if !accept_loss {
                    let number = page.number;
                    let message = format!(
                        "page {number} of the leftover table, durable before, is damaged; `onefold repair` opens the store without it"
                    );
                    return Err(Error::new(Kind::Corrupt, message));
                }
                best = rotten;
            }
            let Some((window, place)) = best else { continue };
            let records: Vec<Record> = page.places[place]
                .iter()
                .flatten()
                .flat_map(|sector| &sector.records)
                .filter(|record| {
                    let written = WindowNumber::of(record.timestamp);
                    written > state.committed
                        && written <= durable
                        && !is_void(written, &state.cuts)
                })
                .copied()
                .collect();
            if !records.is_empty() {
                table.recovered(page.number, place, window, records);
            }
        }
        Ok(())
    }
}

/// Reads the leftover table; of a store that was closed cleanly nothing in it counts.
pub(crate) fn read_leftover(kernel: &Kernel, state: &State) -> Result<LeftoverFound> {
    let mut found = LeftoverFound::default();
    if state.clean {
        return Ok(found);
    }
    each_leftover_page(kernel, &mut |number, places| {
        let places = places.map_err(|e| e.context("the leftover table"))?;
        if places.iter().flatten().flatten().any(|sector| sector.window > state.committed) {
            found.pages.push(PageFound { number, places });
        }
        Ok(())
    })?;
    Ok(found)
}

/// Reads each page of the leftover table, both places.
pub(crate) fn each_leftover_page(
    kernel: &Kernel,
    each: &mut dyn FnMut(u32, Result<[[Option<Sector>; SECTORS]; 2]>) -> Result<()>,
) -> Result<()> {
    let geometry = kernel.geometry();
    let mut buffer = Block::zeroed_vec(2 * PAGES.min(geometry.leftover_pages) as usize);
    for first in (0..geometry.leftover_pages).step_by(PAGES as usize) {
        let pages = PAGES.min(geometry.leftover_pages - first);
        let mut reads: Vec<Read<'_>> = (first..first + pages)
            .zip(buffer.chunks_mut(2))
            .map(|(page, into)| Read::new(geometry.leftover_page(page)[0], into))
            .collect();
        kernel.disk.read(&mut reads);
        let results: Vec<Result<()>> = reads.into_iter().map(|read| read.result).collect();
        for ((number, result), blocks) in (first..).zip(results).zip(buffer.chunks(2)) {
            let [a, b] = geometry.leftover_page(number);
            let decoded = |at: Pba, n: usize| leftover::decode(&kernel.identity, at, &blocks[n]);
            each(number, result.map(|()| [decoded(a, 0), decoded(b, 1)]))?;
        }
    }
    Ok(())
}
