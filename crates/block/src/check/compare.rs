//! Each physical block: its reference count, its bit in the zone table, its page, its carrier.

use onefold_core::{Block, Pba, ZoneId};

use super::{
    batch::read_each,
    report::{Phase, Place, Progress},
    tables::Checker,
    usage::Usage,
};
use crate::format::{carrier::Carrier, pack::Pack, page::ReferenceEntry};

/// A carrier or a pack: where it is, whether it is a pack by the maps that name it, if any does, and what the table
/// of fingerprints says of it. What once had many references is named by none.
type Compressed = (Pba, Option<bool>, Option<u64>);

/// Carriers between two reports of progress.
const CARRIERS: usize = 4096;

impl Checker<'_> {
    /// Compares the tables' entries for the blocks of a stretch with the counted ones.
    pub(crate) fn compare(&mut self, usage: &Usage, proven: &mut dyn FnMut(Pba) -> bool) {
        let mut carriers = Vec::new();
        for (&zone, facts) in &usage.zones {
            let pages = self.pages.zone(zone);
            let mut leaked = Vec::new();
            for (n, fact) in facts.blocks.iter().enumerate() {
                let pba = self.geometry.start_of(ZoneId(zone)).plus(n as u64);
                let place = Place::Block(pba);
                let (table, counted) = (fact.references(), fact.counted());
                if self.in_place {
                    self.compare_in_place(
                        usage,
                        pba,
                        facts.used.map(|used| used.get(n)),
                        pages.get(n),
                        (table, counted),
                        &mut leaked,
                    );
                    continue;
                }
                let is_data = table > 0 || counted > 0;
                if is_data && fact.carried() {
                    let is_known = counted > 0 && !usage.is_unknown(pba) && table > 0;
                    let form = (counted > 0).then(|| fact.is_pack());
                    carriers.push((pba, form, is_known.then_some(fact.prefix)));
                }
                if !usage.is_dark(pba) {
                    if counted > table && table < ReferenceEntry::SATURATED {
                        self.report.problem(
                            place.clone(),
                            format!("its count is {table}, too low: {counted} map entries name it"),
                        );
                    } else if counted < table
                        && table < ReferenceEntry::SATURATED
                        && !self.maps_dark
                        && !self.counts_too_high()
                    {
                        self.report.problem(
                            place.clone(),
                            format!(
                                "its count is {table}, too high: {counted} map entries name it"
                            ),
                        );
                    }
                }
                if pages.get(n) && is_data {
                    self.report.problem(
                        place.clone(),
                        "it holds a table page, but is named as data as well",
                    );
                }
                match facts.used.map(|used| used.get(n)) {
                    Some(true) if !is_data && !pages.get(n) => leaked.push(pba),
                    Some(false)
                        if is_data && table > 0
                            || facts.used.is_some_and(|used| pages.get(n) && !used.get(n)) =>
                    {
                        self.report.problem(place, "it is in use, but free in the zone table");
                    }
                    _ => {}
                }
            }
            leaked.retain(|&pba| !usage.is_dark(pba));
            if let Some(first) = leaked.first()
                && !self.maps_dark
                && !self.pages_dark
            {
                self.report.leaked_blocks += leaked.len() as u64;
                if self.in_place && self.inexact || self.counts_too_high() {
                    // A crash leaves such; the store finds them by itself. Pages that could not be
                    // read do as well.
                    continue;
                }
                let what = format!(
                    "nothing names {} of its blocks that are in use, block {first} first: they are leaked",
                    leaked.len()
                );
                self.report.problem(Place::Zone(ZoneId(zone)), what);
            }
        }
        self.stray_pages(usage);
        self.carriers(carriers, proven);
    }

    /// As [`compare`](Self::compare), for one block of a store whose leaves are written in place: a
    /// block in use counts one more than it has links; of a free one the count means nothing;
    /// and after a crash counts may be too high.
    fn compare_in_place(
        &mut self,
        usage: &Usage,
        pba: Pba,
        used: Option<bool>,
        page: bool,
        (table, counted): (u32, u32),
        leaked: &mut Vec<Pba>,
    ) {
        let place = Place::Block(pba);
        if page && (counted > 0 || table > 1) {
            self.report
                .problem(place.clone(), "it holds a table page, but is named as data as well");
        }
        if used == Some(false) && (counted > 0 || page) {
            self.report.problem(place.clone(), "it is in use, but free in the zone table");
        }
        if page || used == Some(false) || usage.is_dark(pba) {
            return;
        }
        if counted > 0 && table <= counted && table < ReferenceEntry::SATURATED {
            self.report.problem(place, format!("its count is {table}, too low: {counted} map entries name it, and its fingerprint"));
        } else if self.maps_dark || used.is_none() && !self.inexact {
        } else if counted == 0 && table == ReferenceEntry::SATURATED {
            // What once had many references is never freed.
        } else if counted == 0 && (used == Some(true) || table > 0) {
            leaked.push(pba);
        } else if table > counted + 1 && table < ReferenceEntry::SATURATED && !self.inexact {
            self.report.problem(place, format!("its count is {table}, too high: {counted} map entries name it, and its fingerprint"));
        }
    }

    /// Pages in zones that are free as a whole.
    fn stray_pages(&mut self, usage: &Usage) {
        let strays: Vec<Pba> = self
            .pages
            .zones(usage.stretch.clone())
            .filter(|(zone, _)| !usage.zones.contains_key(zone) && !usage.is_dark_zone(*zone))
            .flat_map(|(zone, pages)| pages.iter().map(move |n| (zone, n)))
            .map(|(zone, n)| self.geometry.start_of(ZoneId(zone)).plus(n as u64))
            .collect();
        for pba in strays {
            self.report
                .problem(Place::Block(pba), "it holds a table page, but is free in the zone table");
        }
    }

    /// Reads carriers and packs, and compares their checksums.
    fn carriers(&mut self, mut all: Vec<Compressed>, proven: &mut dyn FnMut(Pba) -> bool) {
        self.report.carriers +=
            all.iter().filter(|(_, is_pack, _)| *is_pack != Some(true)).count() as u64;
        all.retain(|&(pba, ..)| !proven(pba));
        let total = all.len();
        for (n, batch) in all.chunks(CARRIERS).enumerate() {
            (self.progress)(Progress {
                what: Phase::Carriers,
                done: (n * CARRIERS) as u64,
                total: total as u64,
            });
            let Checker { walker, report, damaged_carriers, .. } = self;
            let places: Vec<Pba> = batch.iter().map(|&(pba, ..)| pba).collect();
            read_each(walker.disk, &places, &mut |pba, block| {
                let at = places.partition_point(|place| *place < pba);
                let (_, is_pack, prefix) = batch[at];
                let name = if is_pack == Some(true) { "pack" } else { "carrier" };
                let is_whole = |block: &Block| {
                    let is_carrier = || Carrier::proven(walker.identity, block, pba).is_some();
                    let pack = || Pack::proven(walker.identity, block, pba);
                    let is_right = |pack: Pack<'_>| {
                        prefix.is_none_or(|prefix| pack.checksum().prefix() == prefix)
                    };
                    is_pack != Some(true) && is_carrier()
                        || is_pack != Some(false) && pack().is_some_and(is_right)
                };
                let what = match block {
                    Err(e) => format!("it is a {name}, but can't be read: {e}"),
                    Ok(block) if !is_whole(block) => {
                        format!("it should be a {name}, but is damaged or something else")
                    }
                    Ok(_) => return,
                };
                damaged_carriers.push(pba);
                report.problem(Place::Block(pba), what);
            });
        }
    }
}
