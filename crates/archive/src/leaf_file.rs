//! The leaves of the tables on the disk.
//!
//! The file `tables` has the leaves of the catalogue, the container table and the list of snapshots
//! of directories, in archives whose label says so. A leaf lies on pages of its own, twice, side by
//! side. The snapshot has a directory: for each leaf its pages and their checksum. So a checkpoint
//! writes the leaves that changed, and 16 bytes for each of the others.
//!
//! *Crash argument:* as with maps of volumes. A snapshot writes leaves to pages that neither the
//! last one nor the one before names; the label comes after their sync. Pages that it names no
//! longer are used again by the one after the next, so that the snapshot before can take the place
//! of one that rotted. The second copies are written when the first ones are durable, so that no
//! lost write costs both.
//!
//! *Leaves that are read on demand* are read without the commit lock, by whoever has tables that name
//! them. Their pages wait: who reads stays in an epoch, and a page is written again when the epoch in
//! which it was replaced has ended, and the one behind it has. Nobody is in them then, as the epoch
//! advances only when nobody is in the one before.
//!
//! *Invariant:* other leaves are read under the commit lock only, so that nobody reads pages of a
//! snapshot that two others have followed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{File, Files, Kind, Result};

use crate::{
    format::{
        Identity,
        bytes::{Reader, Writer, corrupt},
        log_reader::PIECE_BYTES,
        names::open_or_create,
    },
    memory::Drawn,
    rules::Rule,
    settings::Settings,
};

/// The file.
pub(crate) const LEAVES: &str = "tables";

const MAGIC: &[u8; 8] = b"ONEFROWS";

const PAGE_BYTES: usize = 4096;

const HEADER_BYTES: usize = 32;

/// Pages of the file at most: 8 TiB.
const PAGES_MAX: u32 = 1 << 31;

/// Bytes of a place in a directory.
const PLACE_BYTES: usize = 16;

/// Memory of a leaf besides its entries, and of its place.
const LEAF_MEMORY: usize = 256;

/// Where a leaf lies in the file, and what its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeafPlace {
    /// The first page.
    pub page: u32,
    /// Pages of one copy.
    pub pages: u32,
    /// The checksum of these pages.
    pub checksum: u64,
}

/// Pages that lie one behind the other: the first, and how many.
type Extent = (u32, u32);

impl LeafPlace {
    /// The pages of both copies.
    fn extent(self) -> Extent {
        (self.page, 2 * self.pages)
    }

    /// The first byte of a copy: 0 or 1.
    fn at(self, copy: u32) -> u64 {
        u64::from(self.page + copy * self.pages) * PAGE_BYTES as u64
    }
}

/// Pages of the file that must not be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeafFile {
    /// Leaves that the last snapshot names.
    named: Arc<BTreeSet<LeafPlace>>,
    /// Pages that the snapshot before the last names, and the last does not.
    replaced: Arc<BTreeSet<Extent>>,
    /// Those of the leaves that the last snapshot names which are read on demand.
    on_demand: Arc<BTreeSet<Extent>>,
    /// Pages of such leaves that were replaced, and the epoch whose readers may still look at them.
    waiting: Arc<BTreeMap<Extent, u32>>,
}

/// True when somebody may still read pages that were replaced in epoch `since`.
fn is_awaited(since: u32, epoch: u32) -> bool {
    since.saturating_add(2) > epoch
}

impl LeafFile {
    /// Behind the last page that a snapshot names.
    fn end(&self) -> u32 {
        let named = self.named.iter().map(|place| place.extent());
        let all = named.chain(self.replaced.iter().chain(self.waiting.keys()).copied());
        all.map(|(page, pages)| page + pages).max().unwrap_or(0)
    }

    /// The leaves that the last snapshot names.
    pub(crate) fn named(&self) -> Arc<BTreeSet<LeafPlace>> {
        self.named.clone()
    }

    /// The next snapshot names these leaves, of which some are read on demand; `epoch` is the one
    /// in which it is made.
    pub(crate) fn turn(&mut self, places: &[LeafPlace], on_demand: &[LeafPlace], epoch: u32) {
        let on_demand: BTreeSet<Extent> = on_demand.iter().map(|place| place.extent()).collect();
        let mut waiting = BTreeMap::clone(&self.waiting);
        let gone = self.on_demand.difference(&on_demand);
        waiting.extend(gone.map(|extent| (*extent, epoch)));
        waiting.retain(|_, since| is_awaited(*since, epoch));
        (self.waiting, self.on_demand) = (Arc::new(waiting), Arc::new(on_demand));
        let named: BTreeSet<LeafPlace> = places.iter().copied().collect();
        let kept: BTreeSet<Extent> = named.iter().map(|place| place.extent()).collect();
        let before = self.named.iter().map(|place| place.extent());
        self.replaced = Arc::new(before.filter(|extent| !kept.contains(extent)).collect());
        self.named = Arc::new(named);
    }

    /// A snapshot that these tables do not know may have named any pages of the file, and readers may
    /// still look at them: all of them wait.
    pub(crate) fn await_all(&mut self, files: &dyn Files, epoch: u32) -> Result<()> {
        let bytes = match files.open(LEAVES) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            opened => opened?.bytes()?,
        };
        let pages = bytes.div_ceil(PAGE_BYTES as u64).min(u64::from(PAGES_MAX)) as u32;
        if pages > 0 {
            let mut waiting = BTreeMap::clone(&self.waiting);
            // Whatever waits already lies in it.
            waiting.retain(|(page, more), _| page.saturating_add(*more) > pages);
            waiting.insert((0, pages), epoch);
            self.waiting = Arc::new(waiting);
        }
        Ok(())
    }

    /// Gives the space back that a snapshot took which had no room to its end.
    pub(crate) fn cut(&self, files: &dyn Files) -> Result<()> {
        let end = u64::from(self.end()) * PAGE_BYTES as u64;
        match files.open(LEAVES) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            Ok(file) if file.bytes()? > end => file.set_bytes(end),
            opened => opened.map(|_| ()),
        }
    }
}

/// Writes the places of a table's leaves.
pub(crate) fn encode_places(w: &mut Writer, places: &[LeafPlace]) {
    w.u32(places.len() as u32);
    for place in places {
        w.u32(place.page).u32(place.pages).u64(place.checksum);
    }
}

/// Reads the places of a table's leaves.
pub(crate) fn decode_places(r: &mut Reader<'_>) -> Result<Vec<LeafPlace>> {
    let count = r.count(PLACE_BYTES, LEAF_MEMORY)?;
    let place = |_| {
        let place = LeafPlace { page: r.u32()?, pages: r.u32()?, checksum: r.u64()? };
        in_file(place.page, place.pages.saturating_mul(2))?;
        Ok(place)
    };
    (0..count).map(place).collect()
}

/// Errors unless the file can have these pages.
fn in_file(page: u32, pages: u32) -> Result<()> {
    match page.checked_add(pages).filter(|&end| pages > 0 && end <= PAGES_MAX) {
        Some(_) => Ok(()),
        None => Err(corrupt("a leaf of the tables can't lie there")),
    }
}

impl LeafFile {
    /// Writes what the places of leaves do not say.
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u32(self.replaced.len() as u32);
        self.replaced.iter().for_each(|&(page, pages)| {
            w.u32(page).u32(pages);
        });
    }

    /// Writes which pages wait for readers.
    pub(crate) fn encode_waiting(&self, w: &mut Writer) {
        w.u32(self.waiting.len() as u32);
        self.waiting.iter().for_each(|(&(page, pages), &since)| {
            w.u32(page).u32(pages).u32(since);
        });
    }

    /// Reads which pages wait for readers; these of the leaves are read on demand.
    pub(crate) fn decode_waiting(
        &mut self,
        r: &mut Reader<'_>,
        on_demand: &[LeafPlace],
    ) -> Result<()> {
        let count = r.count(12, 64)?;
        let one = |_| {
            let (page, pages) = (r.u32()?, r.u32()?);
            in_file(page, pages)?;
            Ok(((page, pages), r.u32()?))
        };
        self.waiting = Arc::new((0..count).map(one).collect::<Result<_>>()?);
        self.on_demand = Arc::new(on_demand.iter().map(|place| place.extent()).collect());
        Ok(())
    }

    /// The pages of a snapshot that names these leaves.
    pub(crate) fn decode(r: &mut Reader<'_>, places: &[LeafPlace]) -> Result<LeafFile> {
        let mut file = LeafFile::default();
        file.turn(places, &[], 0);
        let count = r.count(8, 64)?;
        let extent = |_| {
            let (page, pages) = (r.u32()?, r.u32()?);
            in_file(page, pages).map(|()| (page, pages))
        };
        let replaced = (0..count).map(extent).collect::<Result<_>>()?;
        Ok(LeafFile { replaced: Arc::new(replaced), ..file })
    }
}

/// Pages that may be written.
struct Free {
    /// Between pages that may not, in order.
    gaps: Vec<Extent>,
    /// Behind them all.
    end: u32,
}

impl Free {
    fn between(busy: &BTreeSet<Extent>) -> Free {
        let mut free = Free { gaps: Vec::new(), end: 0 };
        for &(page, pages) in busy {
            if page > free.end {
                free.gaps.push((free.end, page - free.end));
            }
            free.end = free.end.max(page + pages);
        }
        free
    }

    /// So many pages, from the first gap that has them.
    fn take(&mut self, pages: u32) -> Result<u32> {
        if let Some(n) = self.gaps.iter().position(|gap| gap.1 >= pages) {
            let (page, left) = self.gaps[n];
            if left == pages {
                self.gaps.remove(n);
            } else {
                self.gaps[n] = (page + pages, left - pages);
            }
            return Ok(page);
        }
        let page = self.end;
        let end = page.checked_add(pages).filter(|&end| end <= PAGES_MAX);
        self.end = end.ok_or_else(|| {
            onefold_core::Error::new(Kind::NoSpace, "the file of tables can't be longer")
        })?;
        Ok(page)
    }
}

/// Which leaf it is, and its entries.
pub(crate) struct LeafBody<'a> {
    /// The table.
    pub(crate) table: u8,
    /// How many entries.
    pub(crate) count: usize,
    /// The bytes of the entries.
    pub(crate) entries: &'a [u8],
}

/// Writes the leaves of a snapshot.
pub(crate) struct LeafWriter<'a> {
    files: &'a dyn Files,
    identity: &'a Identity,
    settings: &'a Settings,
    /// The snapshot's number.
    number: u64,
    /// No snapshot names a leaf, and none was written ahead of one.
    is_first: bool,
    free: Free,
    file: Option<Arc<dyn File>>,
    /// First pages of the leaves that were written.
    written: BTreeSet<u32>,
}

impl<'a> LeafWriter<'a> {
    /// For snapshot `number`, which is made in `epoch` and comes after the one that `state` is of;
    /// `unchanged` are the leaves that both name.
    pub(crate) fn new(
        files: &'a dyn Files,
        identity: &'a Identity,
        settings: &'a Settings,
        (number, epoch): (u64, u32),
        state: &LeafFile,
        unchanged: &[LeafPlace],
    ) -> LeafWriter<'a> {
        let mut busy: BTreeSet<Extent> = unchanged.iter().map(|place| place.extent()).collect();
        if settings.keeps(Rule::LastLeavesSpared) {
            busy.extend(state.named.iter().map(|place| place.extent()));
        }
        if settings.keeps(Rule::EarlierLeavesSpared) {
            busy.extend(state.replaced.iter());
        }
        if settings.keeps(Rule::LeafPagesWait) {
            let waiting = state.waiting.iter().filter(|(_, since)| is_awaited(**since, epoch));
            busy.extend(waiting.map(|(extent, _)| *extent));
        }
        LeafWriter {
            files,
            identity,
            settings,
            number,
            is_first: state.end() == 0 && unchanged.is_empty(),
            free: Free::between(&busy),
            file: None,
            written: BTreeSet::new(),
        }
    }

    /// Writes the first copy of a leaf.
    pub(crate) fn first_copy(&mut self, body: &LeafBody<'_>) -> Result<LeafPlace> {
        let pages = (HEADER_BYTES + body.entries.len()).div_ceil(PAGE_BYTES);
        // A leaf of 512 entries, each of a frame at most, has fewer.
        let pages = u32::try_from(pages).unwrap_or(PAGES_MAX).min(PAGES_MAX / 2);
        let page = self.free.take(2 * pages)?;
        let place = LeafPlace { page, pages, checksum: 0 };
        let bytes = self.encode(place, body);
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(open_or_create(self.files, LEAVES, self.is_first)?),
        };
        file.write_at(place.at(0), &bytes)?;
        self.written.insert(page);
        Ok(LeafPlace { checksum: self.identity.checksum(&bytes), ..place })
    }

    /// Writes the second copy of a leaf, if the first one was written for this snapshot.
    pub(crate) fn second_copy(&self, place: LeafPlace, body: &LeafBody<'_>) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.written.contains(&place.page)) else {
            return Ok(());
        };
        file.write_at(place.at(1), &self.encode(place, body))
    }

    /// True when the leaf was written for this snapshot.
    pub(crate) fn has_written(&self, place: LeafPlace) -> bool {
        self.written.contains(&place.page)
    }

    /// Makes what was written durable.
    pub(crate) fn sync(&self) -> Result<()> {
        match &self.file {
            Some(file) if self.settings.keeps(Rule::LeavesBeforeDirectory) => file.sync(),
            _ => Ok(()),
        }
    }

    fn encode(&self, place: LeafPlace, body: &LeafBody<'_>) -> Vec<u8> {
        let bytes = place.pages as usize * PAGE_BYTES;
        let mut w = Writer(Vec::with_capacity(bytes));
        w.raw(MAGIC).u64(self.number).u32(place.page).u32(place.pages);
        w.u32(u32::from(body.table)).u32(body.count as u32).raw(body.entries);
        w.0.resize(bytes, 0);
        w.0
    }
}

/// Reads the leaves that a snapshot names.
pub(crate) struct LeafReader<'a> {
    files: &'a dyn Files,
    identity: &'a Identity,
    settings: &'a Settings,
    file: Option<Arc<dyn File>>,
    /// Only the simulator believes bytes with another checksum.
    believes: bool,
}

/// The bytes of a leaf that was read.
pub(crate) struct ReadLeaf {
    bytes: Vec<u8>,
    /// The first copy is whole.
    pub(crate) is_first: bool,
}

impl ReadLeaf {
    /// How many entries it says it has, and their bytes, with zeroes behind them.
    pub(crate) fn body(&self, place: LeafPlace, table: u8) -> Result<(usize, &[u8])> {
        parse(&self.bytes)
            .filter(|(found, of, ..)| *found == (place.page, place.pages) && *of == table)
            .map(|(_, _, count, entries)| (count, entries))
            .ok_or_else(|| corrupt("a leaf of the tables is another one"))
    }
}

/// The pages that a leaf says it lies on, its table, how many entries it has, and their bytes.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Extent, u8, usize, &[u8])> {
    let r = &mut Reader(bytes, None);
    let is_leaf = r.take(8).ok()? == MAGIC;
    let (_, pages, table, count) =
        (r.u64().ok()?, (r.u32().ok()?, r.u32().ok()?), r.u32().ok()?, r.u32().ok()?);
    let table = u8::try_from(table).ok().filter(|_| is_leaf)?;
    Some((pages, table, count as usize, r.0))
}

impl<'a> LeafReader<'a> {
    pub(crate) fn new(
        files: &'a dyn Files,
        identity: &'a Identity,
        settings: &'a Settings,
    ) -> LeafReader<'a> {
        let believes = !settings.keeps(Rule::LeafChecksumsCompared);
        LeafReader { files, identity, settings, file: None, believes }
    }

    /// For leaves that are read when they are looked at.
    pub(crate) fn on_demand(
        files: &'a dyn Files,
        identity: &'a Identity,
        settings: &'a Settings,
    ) -> LeafReader<'a> {
        let reader = LeafReader::new(files, identity, settings);
        let believes = reader.believes || !settings.keeps(Rule::ReloadedLeavesCompared);
        LeafReader { believes, ..reader }
    }

    /// True when a leaf whose first copy is damaged is to be written again.
    pub(crate) fn rewrites(&self) -> bool {
        self.settings.keeps(Rule::DamagedLeavesRewritten)
    }

    /// Reads a leaf: the first copy, or the second one where that is damaged.
    pub(crate) fn read(&mut self, place: LeafPlace, drawn: &Drawn) -> Result<ReadLeaf> {
        for copy in 0..2 {
            if let Some(bytes) = self.copy(place, copy, drawn)? {
                return Ok(ReadLeaf { bytes, is_first: copy == 0 });
            }
        }
        Err(corrupt(format!(
            "both copies of the leaf at page {} of `{LEAVES}` are lost",
            place.page
        )))
    }

    /// The bytes of a copy; `None` when it is damaged.
    pub(crate) fn copy(
        &mut self,
        place: LeafPlace,
        copy: u32,
        drawn: &Drawn,
    ) -> Result<Option<Vec<u8>>> {
        let file = match &self.file {
            Some(file) => file,
            None => match self.files.open(LEAVES) {
                Err(error) if error.kind() == Kind::NotFound => return Ok(None),
                opened => self.file.insert(opened?),
            },
        };
        let wanted = place.pages as usize * PAGE_BYTES;
        let mut bytes = Vec::new();
        while bytes.len() < wanted {
            let (from, n) = (bytes.len(), (wanted - bytes.len()).min(PIECE_BYTES));
            if copy == 0 {
                drawn.more(n as u64)?;
            }
            bytes.resize(from + n, 0);
            match file.read_at(place.at(copy) + from as u64, &mut bytes[from..]) {
                Ok(read) if read == n => {}
                Err(error) if error.kind() != Kind::Io => return Err(error),
                _ => return Ok(None),
            }
        }
        let is_whole = self.believes || self.identity.checksum(&bytes) == place.checksum;
        Ok(is_whole.then_some(bytes))
    }
}

/// Writes a copy of a leaf again, which is damaged, with the bytes of the other one; durable on
/// return. A crash leaves the other one.
pub(crate) fn rewrite_copy(
    files: &dyn Files,
    place: LeafPlace,
    copy: u32,
    bytes: &[u8],
) -> Result<()> {
    let file = files.open(LEAVES)?;
    file.write_at(place.at(copy), bytes)?;
    file.sync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_first_and_the_end_grows() {
        let mut free = Free::between(&BTreeSet::from([(2, 4), (10, 2), (11, 3)]));
        let taken: Vec<_> = [4, 2, 2, 4, 2].map(|pages| free.take(pages).unwrap()).into();
        assert_eq!(taken, [6, 0, 14, 16, 20]);
        assert_eq!(Free::between(&BTreeSet::new()).take(7).unwrap(), 0);
        assert!(free.take(PAGES_MAX).is_err());
    }

    #[test]
    fn pages_of_two_snapshots_are_spared() {
        let place = |page| LeafPlace { page, pages: 1, checksum: 0 };
        let mut state = LeafFile::default();
        state.turn(&[place(0), place(2)], &[], 1);
        state.turn(&[place(2), place(4)], &[], 1);
        assert_eq!((state.end(), state.replaced.len(), state.named().len()), (6, 1, 2));
        let (mut w, places) = (Writer::default(), [place(2), place(4)]);
        encode_places(&mut w, &places);
        state.encode(&mut w);
        let r = &mut Reader(&w.0, None);
        let read = decode_places(r).unwrap();
        assert_eq!(read, places);
        assert_eq!(LeafFile::decode(r, &read).unwrap(), state);
        state.turn(&[place(2)], &[], 1);
        assert_eq!((state.end(), state.replaced.iter().copied().collect()), (6, vec![(4, 2)]));
    }

    #[test]
    fn pages_of_leaves_on_demand_wait_for_two_epochs() {
        let place = |page| LeafPlace { page, pages: 1, checksum: 0 };
        let mut state = LeafFile::default();
        state.turn(&[place(0), place(2)], &[place(0)], 5);
        for epoch in [5, 5, 6, 6, 6] {
            state.turn(&[place(4)], &[], epoch);
            assert_eq!(*state.waiting, BTreeMap::from([((0, 2), 5)]));
        }
        let mut w = Writer::default();
        state.encode(&mut w);
        state.encode_waiting(&mut w);
        let r = &mut Reader(&w.0, None);
        let mut read = LeafFile::decode(r, &[place(4)]).unwrap();
        read.decode_waiting(r, &[]).unwrap();
        assert_eq!((&read, r.0.len()), (&state, 0));
        state.turn(&[place(4)], &[], 7);
        assert!(state.waiting.is_empty());
    }

    #[test]
    fn places_that_can_not_be_true_are_refused() {
        for (page, pages) in [(0, 0), (u32::MAX, 1), (0, u32::MAX), (PAGES_MAX, 1), (1, 1 << 31)] {
            let mut w = Writer::default();
            encode_places(&mut w, &[LeafPlace { page, pages, checksum: 7 }]);
            assert!(decode_places(&mut Reader(&w.0, None)).is_err(), "{page} {pages}");
        }
        assert!(decode_places(&mut Reader(&[255; 64], None)).is_err());
    }
}
