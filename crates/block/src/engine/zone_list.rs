//! The zone list as recovery finds it, and brings both copies of each page level.
//!
//! A zone has carriers only once both copies list it. So one good copy is enough, whichever it is:
//! what it may lack, because it is the older one, are zones without carriers. A copy that a crash
//! left torn, that rotted or can't be read, or that lacks a zone of the newer one, is written anew,
//! as the next version, and flushed before anything else is written: from here on every listed zone
//! may take carriers. A crash meanwhile leaves it torn again, and the other copy is not touched.

use std::collections::BTreeMap;

use onefold_core::{Block, BlockRef, Class, Error, Kind, Pba, Read, Result, Run, ZoneId};

use crate::{
    coverage::Mark,
    format::{
        geometry::Geometry,
        zone_list::{Entry, Page},
    },
    kernel::Kernel,
    rules::Rule,
};

/// The current version of every page of the zone list; both of its places tell of all zones in
/// it.
pub(crate) fn recover_zone_list(kernel: &Kernel) -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    let mut written = false;
    let (copies, failed) = read_zone_list(kernel);
    for (number, mut copies) in (0..).zip(copies) {
        copies.sort_by_key(|copy| copy.as_ref().map(|page| page.sequence));
        let [older, newer] = copies;
        let Some(mut page) = newer else {
            let error = Error::new(
                Kind::Corrupt,
                format!("both copies of page {number} of the zone list are damaged"),
            );
            return Err(failed.into_iter().fold(error, Error::caused_by));
        };
        let level = older
            .as_ref()
            .is_some_and(|older| lists(older, &page) || !kernel.keeps(Rule::ListedInBothCopies));
        if !level {
            kernel.coverage.hit(if older.is_some() {
                Mark::ListCopyBehind
            } else {
                Mark::ListCopyDamaged
            });
            page.sequence = page.sequence.wrapping_add(1);
            let at = kernel.geometry().list_page(number)[(page.sequence % 2) as usize];
            let block = page.encode(&kernel.identity, number, at.0)?;
            kernel
                .disk
                .write(&[Run { at, blocks: &[BlockRef { block: &block, class: Class::Table }] }])?;
            written = true;
        }
        pages.push(page);
    }
    if written {
        kernel.disk.flush()?;
    }
    Ok(pages)
}

/// Both copies of every page, as far as they are whole; and why one of them can't be read.
fn read_zone_list(kernel: &Kernel) -> (Vec<[Option<Page>; 2]>, Option<Error>) {
    let geometry = kernel.geometry();
    let first = geometry.list_page(0)[0];
    let mut buffer = Block::zeroed_vec(geometry.list_pages as usize * 2);
    let mut reads: Vec<Read<'_>> =
        buffer.chunks_mut(1).zip(first.0..).map(|(into, at)| Read::new(Pba(at), into)).collect();
    kernel.disk.read(&mut reads);
    let results: Vec<Result<()>> = reads.into_iter().map(|read| read.result).collect();
    let copy = |page: u32, place: usize| {
        let n = page as usize * 2 + place;
        results[n].is_ok().then(|| {
            Page::decode(&kernel.identity, &buffer[n], page, geometry.list_page(page)[place].0)
        })?
    };
    let copies = (0..geometry.list_pages).map(|page| [copy(page, 0), copy(page, 1)]).collect();
    (copies, results.into_iter().find_map(Result::err))
}

/// True when the older copy of a page lists every zone that the newer one does.
fn lists(older: &Page, newer: &Page) -> bool {
    let known = |entry: &Entry| {
        older
            .entries
            .iter()
            .flatten()
            .any(|old| (old.zone, old.generation) == (entry.zone, entry.generation))
    };
    newer.entries.iter().flatten().all(known)
}

/// Each listed zone once, with its highest generation.
pub(super) fn newest_entries(geometry: Geometry, pages: &[Page]) -> Result<Vec<Entry>> {
    let mut newest: BTreeMap<ZoneId, Entry> = BTreeMap::new();
    for entry in pages.iter().flat_map(|page| page.entries.iter().flatten()) {
        if !geometry.has_zone(entry.zone) {
            return Err(Error::new(
                Kind::Corrupt,
                format!("the zone list names zone {}, which there is not", entry.zone),
            ));
        }
        let known = newest.entry(entry.zone).or_insert(*entry);
        if entry.generation > known.generation {
            *known = *entry;
        }
    }
    let mut entries: Vec<Entry> = newest.into_values().collect();
    // In the order in which they were opened, so that the first to be filled is filled first.
    entries.sort_by_key(|entry| entry.generation);
    Ok(entries)
}
