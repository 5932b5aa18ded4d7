//! The leftover table in memory: what its pages hold, and which of their places comes next.
//!
//! *Invariant:* a page has at most one version that is not durable, and that one is never in the
//! place of the last durable version. So a page whose newest version still waits for a flush takes
//! no more; records for it go into a carrier, as with `leftover = log`.

use onefold_core::{Block, Lba, Pba, VolumeId};

use crate::{
    format::{
        Identity,
        geometry::Geometry,
        leftover::{self, Header, PER_PAGE},
        record::{Record, WindowNumber},
    },
    hash::MixMap,
};

/// One page: its records that no checkpoint holds, and its newest version.
struct Page {
    records: Vec<Record>,
    /// The place of the newest version.
    place: usize,
    /// The window that wrote it.
    window: WindowNumber,
}

/// A version of a page that is about to be written.
pub(crate) struct LeftoverPage {
    pub(crate) at: Pba,
    pub(crate) block: Box<Block>,
}

/// The leftover table. It belongs to the step that prepares windows.
#[derive(Default)]
pub(crate) struct LeftoverTable {
    pages: MixMap<u32, Page>,
    /// Records up to this window were dropped: a durable checkpoint holds them.
    forgotten: WindowNumber,
}

impl LeftoverTable {
    /// Drops the records that a durable checkpoint holds.
    pub(crate) fn forget(&mut self, committed: WindowNumber) {
        if self.forgotten < committed {
            self.forgotten = committed;
            self.pages.retain(|_, page| {
                page.records.retain(|record| WindowNumber::of(record.timestamp) > committed);
                !page.records.is_empty()
            });
        }
    }

    /// For each address: whether its record may go to its page now.
    pub(crate) fn accepts(
        &self,
        geometry: &Geometry,
        durable: WindowNumber,
        addresses: &[(VolumeId, Lba)],
    ) -> Vec<bool> {
        let mut added: MixMap<u32, usize> = MixMap::default();
        addresses
            .iter()
            .map(|&(volume, lba)| {
                let number = leftover::page_of(volume, lba, geometry.leftover_pages);
                let (held, busy) = self
                    .pages
                    .get(&number)
                    .map_or((0, false), |page| (page.records.len(), page.window > durable));
                let added = added.entry(number).or_default();
                let room = !busy && held + *added < PER_PAGE;
                *added += usize::from(room);
                room
            })
            .collect()
    }

    /// Takes the records that [`accepts`](Self::accepts) said may come, as a window's. Returns the
    /// pages to be written with it. Without `turns` a version goes where the one before is;
    /// only the simulator does that.
    pub(crate) fn add(
        &mut self,
        identity: &Identity,
        geometry: &Geometry,
        header: &Header,
        records: &[Record],
        turns: bool,
    ) -> Vec<LeftoverPage> {
        let mut touched = Vec::new();
        for record in records {
            let number = leftover::page_of(record.volume, record.lba, geometry.leftover_pages);
            let page = self.pages.entry(number).or_insert(Page {
                records: Vec::new(),
                place: 1,
                window: WindowNumber(0),
            });
            if page.window != header.window {
                (page.place, page.window) =
                    (if turns { 1 - page.place } else { page.place }, header.window);
                touched.push(number);
            }
            match page
                .records
                .iter_mut()
                .find(|known| (known.volume, known.lba) == (record.volume, record.lba))
            {
                Some(known) => *known = *record,
                None => page.records.push(*record),
            }
        }
        touched
            .into_iter()
            .filter_map(|number| {
                let page = self.pages.get(&number)?;
                let at = geometry.leftover_page(number)[page.place];
                Some(LeftoverPage {
                    at,
                    block: leftover::encode(identity, at, header, &page.records),
                })
            })
            .collect()
    }

    /// A page as recovery found it: the place of its last durable version, and what that holds.
    pub(crate) fn recovered(
        &mut self,
        number: u32,
        place: usize,
        window: WindowNumber,
        records: Vec<Record>,
    ) {
        self.pages.insert(number, Page { records, place, window });
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::{Algorithm, Fingerprint};

    use super::*;
    use crate::format::{record::Change, superblock::Leftover};

    fn record(lba: u64, window: u64) -> Record {
        let change = Change::Block {
            pba: Pba(5000 + window),
            carried: false,
            fingerprint: Fingerprint([1; 16]),
        };
        Record {
            volume: VolumeId(1),
            lba: Lba(lba),
            change,
            timestamp: WindowNumber(window).timestamp(lba),
        }
    }

    #[test]
    fn versions_take_turns_and_wait_for_the_flush() {
        let geometry = Geometry::new(1 << 18, 1024, Leftover::Table).unwrap();
        let identity = Identity::new([1; 16], [2; 32], Algorithm::Blake3);
        let mut table = LeftoverTable::default();
        let here = [(VolumeId(1), Lba(7))];
        let add = |table: &mut LeftoverTable, window: u64, durable: u64| {
            let pages = {
                let header = Header {
                    window: WindowNumber(window),
                    durable: WindowNumber(durable),
                    carriers: WindowNumber(0),
                };
                table.add(&identity, &geometry, &header, &[record(7, window)], true)
            };
            assert_eq!(pages.len(), 1);
            geometry.leftover_place(pages[0].at).unwrap()
        };
        let (page, first) = add(&mut table, 3, 2);
        assert_eq!(
            table.accepts(&geometry, WindowNumber(2), &here),
            [false],
            "its version is not durable"
        );
        assert_eq!(table.accepts(&geometry, WindowNumber(3), &here), [true]);
        assert_eq!(add(&mut table, 4, 3), (page, 1 - first), "the durable version stays");
        assert_eq!(add(&mut table, 5, 4), (page, first));
        table.forget(WindowNumber(5));
        assert!(table.pages.is_empty());
    }

    #[test]
    fn a_full_page_takes_no_more() {
        let geometry = Geometry {
            leftover_pages: 1,
            ..Geometry::new(1 << 18, 1024, Leftover::Table).unwrap()
        };
        let addresses: Vec<(VolumeId, Lba)> = (0..100).map(|n| (VolumeId(1), Lba(n))).collect();
        let accepted = LeftoverTable::default().accepts(&geometry, WindowNumber(0), &addresses);
        assert_eq!(accepted.iter().filter(|&&accepted| accepted).count(), PER_PAGE);
    }
}
