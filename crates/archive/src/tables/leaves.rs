//! The tables that are kept in leaves on the disk: catalogue, container table, and the list of
//! snapshots of directories. How the entries of a leaf are written, and which leaves a snapshot
//! writes and reads.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use onefold_core::{Files, Result};

use super::{
    containers::{Containers, Entries, LeafStore, NamedLeaf},
    leaf_form::{Form, SNAPSHOTS, STREAMS, containers, out_of_order},
    persistent::{Map, SharedLeaf},
    state::Tables,
    totals::{self, ByClass},
};
use crate::{
    format::{
        ContainerId, Identity,
        backup::Snapshot,
        bytes::{Reader, Writer, corrupt},
        label::Kinds,
        record::{ID_MEMORY, Stream, id},
    },
    leaf_file::{
        LeafBody, LeafFile, LeafPlace, LeafReader, LeafWriter, decode_places, encode_places, parse,
    },
    memory::Drawn,
    rules::Rule,
    settings::Settings,
};

/// Where the leaves come from that a directory names.
pub(crate) struct Source<'a> {
    pub(crate) reader: LeafReader<'a>,
    /// The tables that the process knew: leaves that they share are not read again.
    pub(crate) before: Option<&'a Tables>,
    /// Reads those that are read when they are looked at.
    pub(crate) store: &'a Arc<LeafStore>,
    /// The snapshot's number.
    pub(crate) number: u64,
}

/// The tables that a snapshot has in leaves.
pub(super) struct InLeaves {
    pub(super) streams: Map<String, Stream>,
    pub(super) containers: Containers,
    pub(super) snapshots: Map<u64, Snapshot>,
    pub(super) file: LeafFile,
    /// What else is found by reading all containers, where they are read on demand.
    pub(super) found: Option<FoundInAll>,
}

/// What would be found by reading all leaves of the container table.
pub(super) struct FoundInAll {
    /// Where merged and late-encoded containers lie now.
    pub(super) moved_to: Map<ContainerId, Vec<ContainerId>>,
    /// Containers that were listed since the last import: by which frame, and their numbers.
    pub(super) not_imported: Map<(u64, ContainerId), ()>,
    /// Sums over the containers of each class.
    pub(super) totals: ByClass,
}

/// Writes the first copy of a leaf.
fn first_copy<K: Ord + Clone, V: Clone>(
    form: &Form<K, V>,
    entries: &[(K, V)],
    writer: &mut LeafWriter<'_>,
) -> Result<LeafPlace> {
    let bytes = form.encoded(entries);
    writer.first_copy(&LeafBody { table: form.table, count: entries.len(), entries: &bytes })
}

/// Writes the second copy of a leaf, if the first one was written for this snapshot.
fn second_copy<K: Ord + Clone, V: Clone>(
    form: &Form<K, V>,
    place: LeafPlace,
    entries: &[(K, V)],
    writer: &LeafWriter<'_>,
) -> Result<()> {
    if !writer.has_written(place) {
        return Ok(());
    }
    let bytes = form.encoded(entries);
    writer
        .second_copy(place, &LeafBody { table: form.table, count: entries.len(), entries: &bytes })
}

/// Tells which changed leaves are written: all. Only the simulator leaves out all but the first.
fn all_or_first(settings: &Settings) -> impl FnMut() -> bool {
    let (mut is_first, all) = (true, settings.keeps(Rule::ChangedLeavesWritten));
    move || std::mem::take(&mut is_first) || all
}

impl<K: Ord + Clone, V: Clone> Form<K, V> {
    /// Writes the first copies of the leaves that changed.
    fn write(
        &self,
        map: &mut Map<K, V>,
        writer: &mut LeafWriter<'_>,
        settings: &Settings,
    ) -> Result<()> {
        let mut is_written = all_or_first(settings);
        map.place_changed(|entries| {
            is_written().then(|| first_copy(self, entries, writer)).transpose()
        })
    }

    /// Writes the first copies of leaves that changed, `left` of them at most.
    fn write_some(
        &self,
        map: &mut Map<K, V>,
        writer: &mut LeafWriter<'_>,
        left: &mut usize,
    ) -> Result<()> {
        let placed = map.place_changed(|entries| {
            // Nothing is an error here but the end of the portion.
            *left = left.checked_sub(1).ok_or(None)?;
            first_copy(self, entries, writer).map(Some).map_err(Some)
        });
        match placed {
            Err(Some(error)) => Err(error),
            Ok(()) | Err(None) => Ok(()),
        }
    }

    /// Writes the second copies of what [`write`](Self::write) wrote.
    fn write_again(&self, map: &Map<K, V>, writer: &LeafWriter<'_>) -> Result<()> {
        let mut all = map.placed().into_iter();
        all.try_for_each(|(place, leaf)| second_copy(self, place, leaf.entries(), writer))
    }

    /// Reads the table whose leaves lie at these places.
    fn read(
        &self,
        places: &[LeafPlace],
        source: &mut Source<'_>,
        map: impl Fn(&Tables) -> &Map<K, V>,
        drawn: &Drawn,
    ) -> Result<Map<K, V>> {
        let known: HashMap<LeafPlace, SharedLeaf<K, V>> =
            source.before.map(|before| map(before).placed()).into_iter().flatten().collect();
        let mut leaves = Vec::with_capacity(places.len());
        for &place in places {
            if let Some(leaf) = known.get(&place) {
                drawn.more((leaf.entries().len() * self.memory) as u64)?;
                leaves.push(leaf.clone());
                continue;
            }
            let read = source.reader.read(place, drawn)?;
            let (count, bytes) = read.body(place, self.table)?;
            let entries = self.decoded(count, bytes, drawn)?;
            let rewrites = !read.is_first && source.reader.rewrites();
            let leaf = SharedLeaf::of(entries, (!rewrites).then_some(place));
            leaves.push(leaf.ok_or_else(out_of_order)?);
        }
        Map::of_leaves(leaves).ok_or_else(out_of_order)
    }
}

/// Reads the container table whose leaves lie at these places, all of it.
fn read_containers(
    form: &Form<ContainerId, super::Container>,
    places: &[LeafPlace],
    source: &mut Source<'_>,
    drawn: &Drawn,
) -> Result<Containers> {
    let known = source.before.map(|before| before.containers.placed()).into_iter().flatten();
    let known: HashMap<LeafPlace, &Arc<Entries>> = known.collect();
    let mut leaves = Vec::with_capacity(places.len());
    for &place in places {
        if let Some(entries) = known.get(&place) {
            drawn.more((entries.len() * form.memory) as u64)?;
            leaves.push((Some(place), Arc::clone(entries)));
            continue;
        }
        let read = source.reader.read(place, drawn)?;
        let (count, bytes) = read.body(place, form.table)?;
        let rewrites = !read.is_first && source.reader.rewrites();
        let entries = Arc::new(form.decoded(count, bytes, drawn)?);
        leaves.push(((!rewrites).then_some(place), entries));
    }
    Containers::in_memory(leaves).ok_or_else(out_of_order)
}

fn places<K, V>(map: &Map<K, V>) -> Vec<LeafPlace> {
    map.placed().into_iter().map(|(place, _)| place).collect()
}

/// Leaves of these tables have so many entries at most from now on.
pub(crate) fn limit_leaves(tables: &mut Tables, most: usize) {
    tables.streams.limit_leaves(most);
    tables.containers.limit_leaves(most);
    tables.snapshots.all.limit_leaves(most);
}

fn container_places(tables: &Tables) -> Vec<LeafPlace> {
    tables.containers.named().into_iter().map(|leaf| leaf.place).collect()
}

/// The places of all leaves, table by table.
fn leaf_places(tables: &Tables) -> Vec<LeafPlace> {
    let mut all = places(&tables.streams);
    all.extend(container_places(tables));
    all.extend(places(&tables.snapshots.all));
    all
}

/// Leaves that changed since the last snapshot of the tables and were not written ahead.
pub(crate) fn changed_leaves(tables: &Tables) -> usize {
    tables.containers.changed()
        + tables.streams.changed_leaves()
        + tables.snapshots.all.changed_leaves()
}

/// Writes some leaves that changed ahead of snapshot `number`, `most` at most, to pages that no
/// snapshot names and that no reader waits for. Durable on return; the leaves know their places then,
/// and no snapshot names them before [`write_leaves`] looked whether they are still there. Until then
/// all of them stay in memory: other processes may write over these pages.
pub(crate) fn write_leaves_ahead(
    files: &dyn Files,
    identity: &Identity,
    settings: &Settings,
    number: u64,
    tables: &mut Tables,
    most: usize,
) -> Result<()> {
    let (form, moment) = (containers(tables.late), (number, tables.epoch));
    let (unchanged, mut left) = (leaf_places(tables), most);
    let mut writer =
        LeafWriter::new(files, identity, settings, moment, &tables.leaf_file, &unchanged);
    tables.containers.place_ahead(&mut left, |entries| first_copy(&form, entries, &mut writer))?;
    STREAMS.write_some(&mut tables.streams, &mut writer, &mut left)?;
    SNAPSHOTS.write_some(&mut tables.snapshots.all, &mut writer, &mut left)?;
    writer.sync()?;
    write_second_copies(tables, &writer)
}

/// Writes the second copies of what was written, and makes them durable.
fn write_second_copies(tables: &Tables, writer: &LeafWriter<'_>) -> Result<()> {
    STREAMS.write_again(&tables.streams, writer)?;
    let form = containers(tables.late);
    let mut placed = tables.containers.placed();
    placed.try_for_each(|(place, entries)| second_copy(&form, place, entries, writer))?;
    SNAPSHOTS.write_again(&tables.snapshots.all, writer)?;
    writer.sync()
}

/// Leaves that were written ahead count as changed, where another process has written over a copy of
/// them since, or cut it off: it did not know of them.
fn forget_lost_leaves(
    files: &dyn Files,
    identity: &Identity,
    settings: &Settings,
    tables: &mut Tables,
) -> Result<()> {
    let named = tables.leaf_file.named();
    let mut reader = LeafReader::new(files, identity, settings);
    let mut lost = BTreeSet::new();
    for place in leaf_places(tables).into_iter().filter(|place| !named.contains(place)) {
        let is_there = reader.copy(place, 0, Drawn::free())?.is_some()
            && reader.copy(place, 1, Drawn::free())?.is_some();
        if !is_there {
            lost.insert(place);
        }
    }
    forget_leaves(tables, &|place| lost.contains(&place));
    Ok(())
}

/// Leaves that were written ahead count as changed.
pub(crate) fn forget_leaves_ahead(tables: &mut Tables) {
    let named = tables.leaf_file.named();
    forget_leaves(tables, &|place| !named.contains(&place));
}

fn forget_leaves(tables: &mut Tables, is_lost: &dyn Fn(LeafPlace) -> bool) {
    tables.streams.forget_places(is_lost);
    tables.containers.forget_ahead(is_lost);
    tables.snapshots.all.forget_places(is_lost);
}

/// Writes the leaves that changed, for snapshot `number`, where the archive keeps tables in leaves.
/// Durable on return, and named when the snapshot is.
pub(crate) fn write_leaves(
    files: &dyn Files,
    identity: &Identity,
    settings: &Settings,
    number: u64,
    tables: &mut Tables,
) -> Result<()> {
    if !tables.leaves {
        return Ok(());
    }
    if settings.keeps(Rule::LeavesAheadLookedAt) {
        forget_lost_leaves(files, identity, settings, tables)?;
    }
    if tables.on_demand {
        tables.derive_not_imported()?;
    }
    let (form, moment) = (containers(tables.late), (number, tables.epoch));
    let unchanged = leaf_places(tables);
    let mut writer =
        LeafWriter::new(files, identity, settings, moment, &tables.leaf_file, &unchanged);
    STREAMS.write(&mut tables.streams, &mut writer, settings)?;
    let mut is_written = all_or_first(settings);
    tables.containers.place_changed(|entries| {
        is_written().then(|| first_copy(&form, entries, &mut writer)).transpose()
    })?;
    SNAPSHOTS.write(&mut tables.snapshots.all, &mut writer, settings)?;
    writer.sync()?;
    write_second_copies(tables, &writer)?;
    tables.containers.let_go(number);
    let (all, in_table) = (leaf_places(tables), container_places(tables));
    let on_demand = if tables.on_demand { &in_table[..] } else { &[] };
    tables.leaf_file.turn(&all, on_demand, tables.epoch);
    Ok(())
}

/// The directory of the leaves; all have been written.
pub(super) fn encode_directory(tables: &Tables, w: &mut Writer) {
    encode_places(w, &places(&tables.streams));
    encode_places(w, &container_places(tables));
    encode_places(w, &places(&tables.snapshots.all));
    tables.leaf_file.encode(w);
    if !tables.on_demand {
        return;
    }
    for leaf in tables.containers.named() {
        w.u64(leaf.first.0).u32(leaf.count as u32);
    }
    tables.leaf_file.encode_waiting(w);
    w.u32(tables.moved_to.len() as u32);
    for (number, places) in &tables.moved_to {
        w.u64(number.0).u32(places.len() as u32);
        places.iter().for_each(|place| {
            w.u64(place.0);
        });
    }
    let recent: Vec<_> =
        tables.derived.not_imported.0.iter().flat_map(|known| known.keys()).collect();
    w.u32(recent.len() as u32);
    for (logged, id) in recent {
        w.u64(*logged).u64(id.0);
    }
    totals::encode(&tables.derived.totals, w);
}

/// The part of a directory that only leaves on demand have.
fn decode_on_demand(
    r: &mut Reader<'_>,
    places: &[LeafPlace],
    file: &mut LeafFile,
) -> Result<(Vec<NamedLeaf>, FoundInAll)> {
    let named =
        |&place: &LeafPlace| Ok(NamedLeaf { place, first: id(r)?, count: r.u32()? as usize });
    let named = places.iter().map(named).collect::<Result<Vec<_>>>()?;
    file.decode_waiting(r, places)?;
    let (mut moved_to, mut not_imported) = (Map::default(), Map::default());
    for _ in 0..r.count(12, 2 * ID_MEMORY)? {
        let number = id(r)?;
        let homes = (0..r.count(8, ID_MEMORY)?).map(|_| id(r)).collect::<Result<_>>()?;
        moved_to.insert(number, homes);
    }
    for _ in 0..r.count(16, ID_MEMORY)? {
        not_imported.insert((r.u64()?, id(r)?), ());
    }
    Ok((named, FoundInAll { moved_to, not_imported, totals: totals::decode(r)? }))
}

/// Reads a directory, and the leaves that it names and that are not read on demand.
pub(super) fn decode_directory(
    r: &mut Reader<'_>,
    kinds: Kinds,
    source: Option<&mut Source<'_>>,
    drawn: &Drawn,
) -> Result<InLeaves> {
    let (streams, in_table, snapshots) = (decode_places(r)?, decode_places(r)?, decode_places(r)?);
    let all = [&streams[..], &in_table, &snapshots].concat();
    let mut file = LeafFile::decode(r, &all)?;
    let on_demand =
        kinds.on_demand.then(|| decode_on_demand(r, &in_table, &mut file)).transpose()?;
    let Some(source) = source else {
        let found = on_demand.map(|(_, found)| found);
        let (streams, containers) = (Map::default(), Containers::default());
        let none = InLeaves { streams, containers, snapshots: Map::default(), file, found };
        return all.is_empty().then_some(none).ok_or_else(|| corrupt("the leaves are elsewhere"));
    };
    let streams = STREAMS.read(&streams, source, |tables| &tables.streams, drawn)?;
    let (containers, found) = match on_demand {
        Some((named, found)) => {
            let table = Containers::on_demand(&named, source.store, source.number);
            (table.ok_or_else(out_of_order)?, Some(found))
        }
        None => (read_containers(&containers(kinds.late), &in_table, source, drawn)?, None),
    };
    let snapshots = SNAPSHOTS.read(&snapshots, source, |tables| &tables.snapshots.all, drawn)?;
    Ok(InLeaves { streams, containers, snapshots, file, found })
}

/// The bytes that the entries of a leaf have, as they would be written again.
///
/// # Errors
/// `Corrupt` when the bytes are no leaf.
pub fn decode_leaf(bytes: &[u8], kinds: Kinds) -> Result<Vec<u8>> {
    fn again<K: Ord + Clone, V: Clone>(
        form: &Form<K, V>,
        count: usize,
        bytes: &[u8],
    ) -> Result<Vec<u8>> {
        let entries = form.decoded(count, bytes, Drawn::free())?;
        let leaf = SharedLeaf::of(entries, None).ok_or_else(out_of_order)?;
        Ok(form.encoded(leaf.entries()))
    }
    match parse(bytes) {
        Some((_, 1, count, entries)) => again(&STREAMS, count, entries),
        Some((_, 2, count, entries)) => again(&containers(kinds.late), count, entries),
        Some((_, 3, count, entries)) => again(&SNAPSHOTS, count, entries),
        _ => Err(corrupt("no leaf of a table")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use onefold_testbed::{Rng, VirtualFiles, files::Layout};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        erasure::OneDirectory,
        format::{
            container::ContainerKind,
            record::{Place, Stored},
        },
        memory::Budget,
        tables::Container,
    };

    const KINDS: Kinds =
        Kinds { late: false, trees: true, leaves: true, on_demand: true, clones: false };

    /// An archive's files, and the snapshot that was written last.
    struct Desk {
        files: VirtualFiles,
        identity: Identity,
        number: u64,
        snapshot: Vec<u8>,
        settings: Settings,
    }

    impl Desk {
        fn new(leaf_bytes: u64) -> Desk {
            let settings = Settings { leaf_bytes, ..Settings::default() };
            let identity = Identity::new([1; 16], &[2; 32]);
            let files = VirtualFiles::new(Layout::default(), Rng::new(1));
            let mut desk = Desk { files, identity, number: 0, snapshot: Vec::new(), settings };
            desk.write(&mut Tables::new([1, 1, 0], KINDS));
            desk
        }

        fn write(&mut self, tables: &mut Tables) {
            self.number += 1;
            write_leaves(&self.files, &self.identity, &self.settings, self.number, tables).unwrap();
            self.snapshot = tables.encode();
        }

        /// Writes leaves ahead of the next snapshot.
        fn write_ahead(&self, tables: &mut Tables, most: usize) {
            let next = self.number + 1;
            write_leaves_ahead(&self.files, &self.identity, &self.settings, next, tables, most)
                .unwrap();
        }

        /// The tables of the last snapshot, as a process has them that comes new.
        fn open(&self) -> (Tables, Arc<LeafStore>) {
            let files = Arc::new(OneDirectory(Arc::new(self.files.clone())));
            let budget = Budget::new(u64::MAX);
            let store = LeafStore::new(files, self.identity, &self.settings, false, budget);
            let reader = LeafReader::new(&self.files, &self.identity, &self.settings);
            let number = self.number;
            let mut source = Source { reader, before: None, store: &store, number };
            let drawn = Drawn::free();
            let read =
                Tables::decode_within(&self.snapshot, [1, 1, 0], KINDS, drawn, Some(&mut source));
            (read.unwrap(), store)
        }
    }

    fn container(id: u64, logged: u64) -> Container {
        let place = Place { segment: 1, at: id * 4096, bytes: 4096, meta_bytes: 200 };
        let id = ContainerId(id);
        let stored = Stored { id, kind: ContainerKind::Data, chunks: 1, raw_bytes: 9, place };
        Container { stored, merged: Vec::new(), logged, born: 0, changed: 0 }
    }

    type Model = BTreeMap<u64, u64>;

    fn is_same(tables: &Tables, model: &Model) {
        let all = tables.containers.iter().map(Result::unwrap);
        let all: Vec<_> = all.map(|found| (found.stored.id.0, found.logged)).collect();
        assert_eq!(all, model.iter().map(|(&id, &logged)| (id, logged)).collect::<Vec<_>>());
        assert_eq!(tables.containers.len(), model.len());
        let last = tables.containers.last_id().unwrap().map(|id| id.0);
        assert_eq!(last, model.keys().next_back().copied());
        for id in 0..130 {
            let found = tables.containers.get(&ContainerId(id)).unwrap();
            assert_eq!(found.map(|found| found.logged), model.get(&id).copied());
            let from = tables.containers.iter_from(ContainerId(id)).unwrap().next();
            let from = from.map(|found| found.unwrap().stored.id.0);
            assert_eq!(from, model.range(id..).next().map(|(id, _)| *id));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        #[test]
        fn containers_are_what_a_plain_map_has_however_few_leaves_are_kept(
            most in 2..9usize,
            kept in prop_oneof![Just(0u64), Just(1500), Just(u64::MAX)],
            rounds in proptest::collection::vec(
                (
                    proptest::collection::vec((1..120u64, 0..5u8, 0..1000u64), 0..40),
                    0..6usize,
                    any::<bool>(),
                ),
                1..7)
        ) {
            let (mut desk, mut model) = (Desk::new(kept), Model::new());
            let (mut tables, mut store) = desk.open();
            for (n, (changes, ahead, is_cut)) in rounds.into_iter().enumerate() {
                limit_leaves(&mut tables, most);
                let (before, model_before) = (tables.clone(), model.clone());
                let half = changes.len() / 2;
                for (at, (id, how, logged)) in changes.into_iter().enumerate() {
                    if at == half {
                        let changed = tables.containers.changed();
                        desk.write_ahead(&mut tables, ahead);
                        assert_eq!(tables.containers.changed(), changed.saturating_sub(ahead));
                        if is_cut {
                            // Another process had no room for the next snapshot.
                            before.leaf_file.cut(&desk.files).unwrap();
                        }
                        is_same(&tables, &model);
                    }
                    let key = ContainerId(id);
                    let old = match how {
                        0 | 1 => {
                            let gone = tables.containers.remove(&key).unwrap();
                            assert_eq!(gone.map(|gone| gone.logged), model.remove(&id));
                            continue;
                        }
                        2 => {
                            let set = |found: &mut Container| {
                                std::mem::replace(&mut found.logged, logged)
                            };
                            tables.containers.change(&key, set).unwrap()
                        }
                        _ => {
                            let old = tables.containers.insert(key, container(id, logged));
                            old.unwrap().map(|old| old.logged)
                        }
                    };
                    assert_eq!(old, model.get(&id).copied());
                    if how > 2 || old.is_some() {
                        model.insert(id, logged);
                    }
                }
                is_same(&tables, &model);
                is_same(&before, &model_before);
                let changed = tables.containers.named().len() + tables.containers.changed();
                assert_eq!(changed, tables.containers.leaf_count());
                let held = tables.containers.placed().count() + tables.containers.changed();
                assert_eq!(tables.containers.held_leaves(), held);
                desk.write(&mut tables);
                is_same(&tables, &model);
                assert!(store.bytes() <= kept && tables.containers.changed() == 0);
                assert_eq!(tables.containers.held_leaves(), 0);
                // Every other time a process comes that has nothing in memory.
                if n % 2 == 0 {
                    (tables, store) = desk.open();
                    assert_eq!(store.bytes(), 0);
                    is_same(&tables, &model);
                }
            }
        }
    }

    #[test]
    fn leaves_are_not_written_ahead_over_pages_that_readers_await() {
        let mut desk = Desk::new(0);
        let (mut tables, _) = desk.open();
        tables.epoch = 5;
        let change = |tables: &mut Tables, logged: u64| {
            for id in 1..40 {
                tables.containers.insert(ContainerId(id), container(id, logged)).unwrap();
            }
        };
        change(&mut tables, 1);
        desk.write(&mut tables);
        let (known, _) = desk.open();
        let reads = || {
            let mut all = known.containers.iter();
            all.all(|found| found.is_ok_and(|found| found.logged == 1))
        };
        // Neither the last snapshot nor the one before names the pages that the reader knows.
        for logged in 2..4 {
            change(&mut tables, logged);
            desk.write(&mut tables);
        }
        for epoch in 5..7 {
            (tables.epoch, _) = (epoch, change(&mut tables, 4));
            desk.write_ahead(&mut tables, usize::MAX);
            assert!(tables.containers.changed() == 0 && reads(), "in epoch {epoch}");
        }
        // Who read in epoch 5 has left.
        (tables.epoch, _) = (7, change(&mut tables, 5));
        desk.write_ahead(&mut tables, usize::MAX);
        assert!(!reads(), "these pages are written again some time");
        desk.write(&mut tables);
        let (read, _) = desk.open();
        assert!(read.containers.iter().all(|found| found.is_ok_and(|found| found.logged == 5)));
    }

    #[test]
    fn a_directory_that_says_other_things_than_its_leaves_is_damage() {
        let mut desk = Desk::new(u64::MAX);
        let (mut tables, _) = desk.open();
        for id in 1..40 {
            tables.containers.insert(ContainerId(id), container(id, 1)).unwrap();
        }
        desk.write(&mut tables);
        let named = tables.containers.named();
        assert!(named.len() > 4);
        let read = |change: &dyn Fn(&mut Vec<NamedLeaf>)| {
            let (mut named, (_, store)) = (named.clone(), desk.open());
            change(&mut named);
            let table = Containers::on_demand(&named, &store, desk.number)?;
            Some(table.iter().collect::<Result<Vec<_>>>().map(|all| all.len()))
        };
        assert!(matches!(read(&|_| {}), Some(Ok(39))));
        assert!(matches!(read(&|all| all[1].count -= 1), Some(Err(_))));
        assert!(matches!(read(&|all| all[1].first.0 += 1), Some(Err(_))));
        assert!(matches!(read(&|all| all[2].first.0 -= 1), Some(Err(_))));
        assert!(read(&|all| all[1].count = 0).is_none());
        assert!(read(&|all| all.swap(0, 1)).is_none());
    }

    #[test]
    fn a_leaf_whose_first_copy_is_damaged_is_read_and_written_again() {
        let mut desk = Desk::new(0);
        let (mut tables, _) = desk.open();
        for id in 1..40 {
            tables.containers.insert(ContainerId(id), container(id, 1)).unwrap();
        }
        desk.write(&mut tables);
        let place = tables.containers.named()[1].place;
        let file = desk.files.open(crate::leaf_file::LEAVES).unwrap();
        file.write_at(u64::from(place.page) * 4096 + 50, b"rot").unwrap();
        let (mut tables, _) = desk.open();
        desk.write(&mut tables);
        assert_eq!(tables.containers.named()[1].place, place, "nobody looked at it");
        assert_eq!(tables.containers.iter().filter(|found| found.is_ok()).count(), 39);
        desk.write(&mut tables);
        assert_ne!(tables.containers.named()[1].place, place);
        // Both copies are lost.
        let place = tables.containers.named()[2].place;
        for copy in 0..2 {
            let page = u64::from(place.page + copy * place.pages);
            file.write_at(page * 4096 + 50, b"rot").unwrap();
        }
        let count = tables.containers.named()[2].count;
        let (found, lost): (Vec<_>, Vec<_>) = tables.containers.iter().partition(Result::is_ok);
        assert_eq!((found.len(), lost.len()), (39 - count, 1));
    }
}
