//! The tables that are kept in leaves on the disk: catalogue, container table, and the list of
//! snapshots of directories. How the entries of a leaf are written, and which leaves a snapshot
//! writes and reads.

use std::collections::BTreeSet;

use onefold_core::{Files, Result};

use super::{
    leaf_entries::{
        COMPACT_BYTES, STREAM_BYTES, STREAM_MEMORY, decode_container, decode_stream,
        encode_container, encode_stream,
    },
    persistent::{LEAF_MAX, Map, SharedLeaf},
    snapshots::{SNAPSHOT_BYTES, SNAPSHOT_MEMORY, decode_one, encode_one},
    state::{Container, Tables},
};
use crate::{
    format::{
        ContainerId, Identity,
        backup::Snapshot,
        bytes::{Reader, Writer, corrupt},
        label::Kinds,
        record::{CONTAINER_MEMORY, Stream},
    },
    leaf_file::{
        LeafBody, LeafFile, LeafPlace, LeafReader, LeafWriter, decode_places, encode_places, parse,
    },
    memory::Drawn,
    rules::Rule,
    settings::Settings,
};

/// How the entries of a table are written and read.
struct Form<K, V> {
    /// The table's number in its leaves.
    table: u8,
    /// Bytes of an entry at least.
    least: usize,
    /// Memory of an entry, about.
    memory: usize,
    encode: fn(&mut Writer, &K, &V),
    decode: fn(&mut Reader<'_>) -> Result<(K, V)>,
}

const STREAMS: Form<String, Stream> = Form {
    table: 1,
    least: STREAM_BYTES,
    memory: STREAM_MEMORY,
    encode: encode_stream,
    decode: decode_stream,
};

const fn containers(late: bool) -> Form<ContainerId, Container> {
    Form {
        table: 2,
        least: COMPACT_BYTES,
        memory: CONTAINER_MEMORY,
        encode: if late { encode_container::<true> } else { encode_container::<false> },
        decode: if late { decode_container::<true> } else { decode_container::<false> },
    }
}

const SNAPSHOTS: Form<u64, Snapshot> = Form {
    table: 3,
    least: SNAPSHOT_BYTES,
    memory: SNAPSHOT_MEMORY,
    encode: encode_one,
    decode: decode_one,
};

/// Where the leaves come from that a directory names.
pub(crate) struct Source<'a> {
    pub(crate) reader: LeafReader<'a>,
    /// The tables that the process knew: leaves that they share are not read again.
    pub(crate) before: Option<&'a Tables>,
}

/// The tables that a snapshot has in leaves.
pub(super) struct InLeaves {
    pub(super) streams: Map<String, Stream>,
    pub(super) containers: Map<ContainerId, Container>,
    pub(super) snapshots: Map<u64, Snapshot>,
    pub(super) file: LeafFile,
}

impl<K: Ord + Clone, V: Clone> Form<K, V> {
    fn encoded(&self, entries: &[(K, V)]) -> Vec<u8> {
        let mut w = Writer::default();
        entries.iter().for_each(|(key, value)| (self.encode)(&mut w, key, value));
        w.0
    }

    /// Reads `count` entries, and zeroes behind them.
    fn decoded(&self, count: usize, bytes: &[u8], drawn: &Drawn) -> Result<Vec<(K, V)>> {
        if count > LEAF_MAX || count * self.least > bytes.len() {
            return Err(corrupt(format!("a leaf of the tables can't have {count} entries")));
        }
        drawn.more((count * self.memory) as u64)?;
        let r = &mut Reader(bytes, Some(drawn));
        let entries = (0..count).map(|_| (self.decode)(r)).collect::<Result<_>>()?;
        if r.0.iter().any(|byte| *byte != 0) {
            return Err(corrupt("a leaf of the tables has more than its entries"));
        }
        Ok(entries)
    }

    /// Writes the first copies of the leaves that changed.
    fn write(
        &self,
        map: &mut Map<K, V>,
        writer: &mut LeafWriter<'_>,
        settings: &Settings,
    ) -> Result<()> {
        let mut is_first = true;
        map.place_changed(|entries| {
            // Only the simulator leaves out the others.
            if !std::mem::take(&mut is_first) && !settings.keeps(Rule::ChangedLeavesWritten) {
                return Ok(None);
            }
            let bytes = self.encoded(entries);
            let body = LeafBody { table: self.table, count: entries.len(), entries: &bytes };
            writer.first_copy(&body).map(Some)
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
            let bytes = self.encoded(entries);
            let body = LeafBody { table: self.table, count: entries.len(), entries: &bytes };
            writer.first_copy(&body).map(Some).map_err(Some)
        });
        match placed {
            Err(Some(error)) => Err(error),
            Ok(()) | Err(None) => Ok(()),
        }
    }

    /// Writes the second copies of what [`write`](Self::write) wrote.
    fn write_again(&self, map: &Map<K, V>, writer: &LeafWriter<'_>) -> Result<()> {
        for (place, leaf) in map.placed().iter().filter(|(place, _)| writer.has_written(*place)) {
            let (entries, bytes) = (leaf.entries(), self.encoded(leaf.entries()));
            let body = LeafBody { table: self.table, count: entries.len(), entries: &bytes };
            writer.second_copy(*place, &body)?;
        }
        Ok(())
    }

    /// Reads the table whose leaves lie at these places.
    fn read(
        &self,
        places: &[LeafPlace],
        source: &mut Source<'_>,
        map: impl Fn(&Tables) -> &Map<K, V>,
        drawn: &Drawn,
    ) -> Result<Map<K, V>> {
        let known: std::collections::HashMap<LeafPlace, SharedLeaf<K, V>> =
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

fn out_of_order() -> onefold_core::Error {
    corrupt("the leaves of the tables are out of order")
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

/// The places of all leaves, table by table.
fn leaf_places(tables: &Tables) -> Vec<LeafPlace> {
    let mut all = places(&tables.streams);
    all.extend(places(&tables.containers));
    all.extend(places(&tables.snapshots.all));
    all
}

/// Leaves that changed since the last snapshot of the tables and were not written ahead.
pub(crate) fn changed_leaves(tables: &Tables) -> usize {
    let all = [&tables.containers as &dyn Changed, &tables.streams, &tables.snapshots.all];
    all.iter().map(|map| map.changed()).sum()
}

trait Changed {
    fn changed(&self) -> usize;
}

impl<K, V> Changed for Map<K, V> {
    fn changed(&self) -> usize {
        self.changed_leaves()
    }
}

/// Writes some leaves that changed ahead of snapshot `number`, `most` at most, to pages that no
/// snapshot names. Durable on return; the leaves know their places then, and no snapshot names them
/// before [`write_leaves`] looked whether they are still there.
pub(crate) fn write_leaves_ahead(
    files: &dyn Files,
    identity: &Identity,
    settings: &Settings,
    number: u64,
    tables: &mut Tables,
    most: usize,
) -> Result<()> {
    let containers = containers(tables.late);
    let (unchanged, mut left) = (leaf_places(tables), most);
    let mut writer =
        LeafWriter::new(files, identity, settings, number, &tables.leaf_file, &unchanged);
    containers.write_some(&mut tables.containers, &mut writer, &mut left)?;
    STREAMS.write_some(&mut tables.streams, &mut writer, &mut left)?;
    SNAPSHOTS.write_some(&mut tables.snapshots.all, &mut writer, &mut left)?;
    writer.sync()?;
    write_second_copies(tables, &writer)
}

/// Writes the second copies of what was written, and makes them durable.
fn write_second_copies(tables: &Tables, writer: &LeafWriter<'_>) -> Result<()> {
    STREAMS.write_again(&tables.streams, writer)?;
    containers(tables.late).write_again(&tables.containers, writer)?;
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
    tables.containers.forget_places(is_lost);
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
    let containers = containers(tables.late);
    let unchanged = leaf_places(tables);
    let mut writer =
        LeafWriter::new(files, identity, settings, number, &tables.leaf_file, &unchanged);
    STREAMS.write(&mut tables.streams, &mut writer, settings)?;
    containers.write(&mut tables.containers, &mut writer, settings)?;
    SNAPSHOTS.write(&mut tables.snapshots.all, &mut writer, settings)?;
    writer.sync()?;
    write_second_copies(tables, &writer)?;
    let all = leaf_places(tables);
    tables.leaf_file.turn(&all);
    Ok(())
}

/// The directory of the leaves; all have been written.
pub(super) fn encode_directory(tables: &Tables, w: &mut Writer) {
    encode_places(w, &places(&tables.streams));
    encode_places(w, &places(&tables.containers));
    encode_places(w, &places(&tables.snapshots.all));
    tables.leaf_file.encode(w);
}

/// Reads a directory, and the leaves that it names.
pub(super) fn decode_directory(
    r: &mut Reader<'_>,
    late: bool,
    source: Option<&mut Source<'_>>,
    drawn: &Drawn,
) -> Result<InLeaves> {
    let (streams, in_table, snapshots) = (decode_places(r)?, decode_places(r)?, decode_places(r)?);
    let all = [&streams[..], &in_table, &snapshots].concat();
    let file = LeafFile::decode(r, &all)?;
    let Some(source) = source else {
        let (streams, containers) = (Map::default(), Map::default());
        let none = InLeaves { streams, containers, snapshots: Map::default(), file };
        return all.is_empty().then_some(none).ok_or_else(|| corrupt("the leaves are elsewhere"));
    };
    Ok(InLeaves {
        streams: STREAMS.read(&streams, source, |tables| &tables.streams, drawn)?,
        containers: containers(late).read(&in_table, source, |tables| &tables.containers, drawn)?,
        snapshots: SNAPSHOTS.read(&snapshots, source, |tables| &tables.snapshots.all, drawn)?,
        file,
    })
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
