//! The directory of the leaves: which ones a snapshot names, and what follows from leaves that are not
//! read by opening.

use std::{collections::HashMap, sync::Arc};

use onefold_core::Result;

use crate::{
    format::{
        ContainerId,
        backup::Snapshot,
        bytes::{Reader, Writer, corrupt},
        label::Kinds,
        record::{ID_MEMORY, Stream, id},
    },
    leaf_file::{LeafFile, LeafPlace, LeafReader, decode_places, encode_places, parse},
    memory::Drawn,
    tables::{
        container::Container,
        containers::{Containers, Entries, LeafStore, NamedLeaf},
        leaf_form::{Form, SNAPSHOTS, STREAMS, containers, out_of_order},
        not_imported::Listed,
        persistent::{Map, SharedLeaf},
        state::Tables,
        totals::Sums,
    },
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
pub(in crate::tables) struct InLeaves {
    pub(in crate::tables) streams: Map<String, Stream>,
    pub(in crate::tables) containers: Containers,
    pub(in crate::tables) snapshots: Map<u64, Snapshot>,
    pub(in crate::tables) file: LeafFile,
    /// What else is found by reading all containers, where they are read on demand.
    pub(in crate::tables) found: Option<FoundInAll>,
}

/// What would be found by reading all leaves of the container table.
pub(in crate::tables) struct FoundInAll {
    /// Where merged and late-encoded containers lie now.
    pub(in crate::tables) moved_to: Map<ContainerId, Vec<ContainerId>>,
    /// Containers that were listed since the last import: by which frame, and their numbers.
    pub(in crate::tables) not_imported: Listed,
    /// Sums over the containers of each class.
    pub(in crate::tables) sums: Sums,
}

impl<K: Ord + Clone, V: Clone> Form<K, V> {
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
    form: &Form<ContainerId, Container>,
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

pub(super) fn container_places(tables: &Tables) -> Vec<LeafPlace> {
    tables.containers.named().into_iter().map(|leaf| leaf.place).collect()
}

/// The places of all leaves, table by table.
pub(super) fn leaf_places(tables: &Tables) -> Vec<LeafPlace> {
    let mut all = places(&tables.streams);
    all.extend(container_places(tables));
    all.extend(places(&tables.snapshots.all));
    all
}

/// The directory of the leaves; all have been written.
pub(in crate::tables) fn encode_directory(tables: &Tables, w: &mut Writer) {
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
        tables.derived.not_imported.known().into_iter().flat_map(|known| known.keys()).collect();
    w.u32(recent.len() as u32);
    for (logged, id) in recent {
        w.u64(*logged).u64(id.0);
    }
    tables.derived.sums.encode(w);
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
    Ok((named, FoundInAll { moved_to, not_imported, sums: Sums::decode(r)? }))
}

/// Reads a directory, and the leaves that it names and that are not read on demand.
pub(in crate::tables) fn decode_directory(
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
