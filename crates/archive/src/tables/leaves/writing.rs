//! Leaves written: those that changed, for a snapshot or ahead of one.

use std::collections::BTreeSet;

use onefold_core::{Files, Result};

use super::directory::{container_places, leaf_places};
use crate::{
    format::Identity,
    leaf_file::{LeafBody, LeafPlace, LeafReader, LeafWriter},
    memory::Drawn,
    rules::Rule,
    settings::Settings,
    tables::{
        leaf_form::{Form, SNAPSHOTS, STREAMS, containers},
        persistent::Map,
        state::Tables,
    },
};

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
}

/// Leaves of these tables have so many entries at most from now on.
pub(crate) fn limit_leaves(tables: &mut Tables, most: usize) {
    tables.streams.limit_leaves(most);
    tables.containers.limit_leaves(most);
    tables.snapshots.all.limit_leaves(most);
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
    write_second_copies(tables, &writer, &mut |_| ())
}

/// Writes the second copies of what was written, and makes them durable.
fn write_second_copies(
    tables: &Tables,
    writer: &LeafWriter<'_>,
    wrote: &mut dyn FnMut(usize),
) -> Result<()> {
    STREAMS.write_again(&tables.streams, writer)?;
    let form = containers(tables.late);
    let mut placed = tables.containers.placed();
    placed.try_for_each(|(place, entries)| {
        wrote(entries.len());
        second_copy(&form, place, entries, writer)
    })?;
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
    told: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    if !tables.leaves {
        return Ok(());
    }
    let (mut done, most) = (0, 2 * tables.containers.len() as u64);
    let mut wrote = |containers: usize| {
        done += containers as u64;
        told(done, most);
    };
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
        wrote(entries.len());
        is_written().then(|| first_copy(&form, entries, &mut writer)).transpose()
    })?;
    SNAPSHOTS.write(&mut tables.snapshots.all, &mut writer, settings)?;
    writer.sync()?;
    write_second_copies(tables, &writer, &mut wrote)?;
    tables.containers.let_go(number);
    let (all, in_table) = (leaf_places(tables), container_places(tables));
    let on_demand = if tables.on_demand { &in_table[..] } else { &[] };
    tables.leaf_file.turn(&all, on_demand, tables.epoch);
    Ok(())
}
