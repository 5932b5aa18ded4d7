//! Filling lost and replaced nodes, and making bad units anew.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, Files, Hold, Kind, Lock, Result};

use crate::{
    erasure::{Absent, CURSOR, NODE, NodeLabel, Nodes, Repaired, Segment, View, copy_all, lock_on},
    format::{
        bytes::{Reader, Writer},
        names::{COLLECTOR, IMPORTER, WRITER, segment_name},
        record::Place,
    },
    operations_log::{Archive, EpochGuard},
};

/// A directory that takes the place of a node.
pub struct Replacement {
    /// The node's number.
    pub number: usize,
    /// The directory.
    pub files: Arc<dyn Files>,
    /// Its new random id.
    pub id: [u8; 16],
}

/// Counts of a repair's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Nodes filled.
    pub nodes: u64,
    /// Units.
    pub units: Repaired,
    /// Containers of which something is lost.
    pub lost_containers: u64,
}

/// Called with the amounts done and in all.
pub(crate) type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// The places of all containers by their segments.
fn places(archive: &Archive) -> Result<BTreeMap<u32, Vec<Place>>> {
    let mut places: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
    for container in &archive.tables().containers {
        let place = container?.stored.place;
        places.entry(place.segment).or_default().push(place);
    }
    places.values_mut().for_each(|places| places.sort_unstable());
    Ok(places)
}

/// Looks at every unit of all containers, parity included; with `mends` makes bad ones anew on
/// nodes that are there, durably on return.
///
/// # Errors
/// Errors of the system; the report counts losses.
pub fn repair(
    archive: &Arc<Archive>,
    nodes: &Nodes,
    mends: bool,
    progress: &mut Progress<'_>,
) -> Result<Rebuilt> {
    // Nothing that is looked at moves away.
    let _guard = EpochGuard::enter(archive)?;
    let (places, mut done) = (places(archive)?, Rebuilt::default());
    let (total, mut looked) = (places.values().map(Vec::len).sum::<usize>() as u64, 0);
    for (segment, places) in places {
        let segment = Segment::of(nodes.shared(), &segment_name(segment))?;
        done.add(segment.repair_headers(mends)?);
        for place in places {
            done.add(segment.repair(place.at, u64::from(place.bytes), None, mends)?);
            looked += 1;
            progress(looked, total);
        }
    }
    Ok(done)
}

impl Rebuilt {
    fn add(&mut self, found: Repaired) {
        self.units.units += found.units;
        self.units.bad_units += found.bad_units;
        self.units.repaired_units += found.repaired_units;
        self.units.lost_rows += found.lost_rows;
        self.lost_containers += u64::from(found.lost_rows > 0);
    }
}

/// Fills a directory with all that node `number` must have, and makes it the node; durable on
/// return. No put and no collection runs meanwhile. A rebuild that was killed goes on behind the
/// last segment that was filled.
///
/// # Errors
/// `InvalidInput` when the directory is a current node, `Corrupt` when the other nodes lack data
/// that it needs, `NoSpace`, errors of the system.
pub fn replace(
    archive: &Arc<Archive>,
    nodes: &Nodes,
    replacement: &Replacement,
    progress: &mut Progress<'_>,
) -> Result<Rebuilt> {
    let (shared, &Replacement { number, ref files, id }) = (nodes.shared(), replacement);
    if number >= nodes.count() {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("there is no node {number}: the archive has {}, from 0 on", nodes.count()),
        ));
    }
    refuse_healthy(nodes, number)?;
    // Before anything is written: a directory that somebody named by mistake stays as it is.
    Target::look(nodes, &**files)?;
    let _locks = [WRITER, COLLECTOR, IMPORTER]
        .into_iter()
        .map(|name| archive.files.lock(name, Hold::Alone, true))
        .collect::<Result<Vec<_>>>()?;
    archive.refresh()?;
    refuse_healthy(nodes, number)?;
    let (_lock, cursor) = begin(nodes, &**files)?;
    let epoch = shared.state.lock().view.epoch;
    let (places, mut done) = (places(archive)?, Rebuilt { nodes: 1, ..Rebuilt::default() });
    let (total, mut filled) = (places.values().map(Vec::len).sum::<usize>() as u64, 0);
    for (segment, places) in places {
        let name = segment_name(segment);
        let columns = Segment::of(shared, &name)?;
        let Some(column) = columns.layout().column_of(number) else {
            filled += places.len() as u64;
            continue;
        };
        // Whole as far as the cursor says.
        if segment <= cursor && files.open(&name).is_ok() {
            filled += places.len() as u64;
            continue;
        }
        let file = columns.begin_column(column, &**files)?;
        for place in places {
            done.add(columns.repair(
                place.at,
                u64::from(place.bytes),
                Some((column, &*file)),
                true,
            )?);
            filled += 1;
            progress(filled, total);
        }
        file.sync()?;
        files.sync_names()?;
        Cursor { segment, epoch }.write(nodes, &**files)?;
    }
    if done.lost_containers > 0 {
        let why = format!(
            "{} containers can't be made from the nodes that are there",
            done.lost_containers
        );
        return Err(Error::new(Kind::Corrupt, why));
    }
    archive.exclusively(|| {
        if number < shared.copies() {
            let primary = shared.state.lock().primary;
            copy_all(&**shared.directory(primary)?, &**files)?;
        }
        let mut view: View = shared.state.lock().view.clone();
        view.ids[number] = id;
        // An absent member that missed nothing so far would stay one only if it got the new view:
        // it can't.
        let here = shared.here();
        view = View { epoch: view.epoch + 1, members: (view.members & here) | 1 << number, ..view };
        shared.change_view(view, Some((number, &**files)))
    })?;
    files.remove(CURSOR)?;
    files.sync_names()?;
    Ok(done)
}

/// Errors when node `number` is there.
fn refuse_healthy(nodes: &Nodes, number: usize) -> Result<()> {
    if nodes.shared().here() >> number & 1 == 0 {
        return Ok(());
    }
    let why = format!("node {number} is there, and whole: only a node that is absent is replaced");
    Err(Error::new(Kind::InvalidInput, why))
}

/// What is in a directory that is to be filled.
struct Target {
    /// The label of a node of this archive.
    label: Option<NodeLabel>,
    cursor: Option<Cursor>,
    /// All names but that of the lock of who fills it.
    names: Vec<String>,
}

impl Target {
    /// Looks at it, and changes nothing.
    ///
    /// # Errors
    /// `InvalidInput` when it counts as a node, `Exists` when something else is in it, and those of the system.
    fn look(nodes: &Nodes, files: &dyn Files) -> Result<Target> {
        let shared = nodes.shared();
        let names: Vec<String> = files.names()?.into_iter().filter(|name| name != WRITER).collect();
        let label = match NodeLabel::read(files) {
            Ok(label) if label.identity().key == shared.identity.key => Some(label),
            // It may be a node, and whole.
            Err(Absent::Gone(why)) => return Err(Error::new(Kind::Io, why)),
            _ => None,
        };
        if let Some(label) = label.as_ref().filter(|label| shared.would_count(label)) {
            let why = format!("this directory is node {}, which counts", label.number);
            return Err(Error::new(Kind::InvalidInput, why));
        }
        let cursor = Cursor::read(nodes, files)?;
        if label.is_none() && cursor.is_none() && !names.is_empty() {
            return Err(Error::new(
                Kind::Exists,
                "the directory is not empty, and no node of this archive",
            ));
        }
        Ok(Target { label, cursor, names })
    }
}

/// Clears a directory unless it was being filled already; gives its lock, and the last segment that is filled.
///
/// The cursor is written before anything else, and names the epoch of the current view: under
/// another view the directory may lack shards.
fn begin(nodes: &Nodes, files: &dyn Files) -> Result<(Box<dyn Lock>, u32)> {
    let epoch = nodes.shared().state.lock().view.epoch;
    let target = Target::look(nodes, files)?;
    if target.label.is_none() && target.cursor.is_none() {
        Cursor { segment: 0, epoch }.write(nodes, files)?;
    }
    // The locks of the archive may end with their connections, and that to the directory live on: whoever has
    // them next would fill it as well.
    let lock = lock_on(files, WRITER, Hold::Alone, false).map_err(|error| match error.kind() {
        Kind::Busy => error.context("another process fills this directory"),
        _ => error,
    })?;
    let Target { label, cursor, names } = Target::look(nodes, files)?;
    if let Some(cursor) = &cursor
        && cursor.epoch == epoch
        && label.is_none()
    {
        // The process that wrote the cursor may have been killed before it was durable, and later
        // writes must not outlive it.
        Cursor::make_durable(files)?;
        return Ok((lock, cursor.segment));
    }
    Cursor { segment: 0, epoch }.write(nodes, files)?;
    // The label goes first: a half cleared directory is no node.
    let (first, rest): (Vec<&String>, Vec<&String>) =
        names.iter().filter(|name| *name != CURSOR).partition(|name| *name == NODE);
    for names in [first, rest] {
        names.into_iter().try_for_each(|name| files.remove(name))?;
        files.sync_names()?;
    }
    Ok((lock, 0))
}

/// How far the filling of a directory is.
struct Cursor {
    /// The last segment that is filled.
    segment: u32,
    /// Of the view when it began.
    epoch: u64,
}

impl Cursor {
    fn read(nodes: &Nodes, files: &dyn Files) -> Result<Option<Cursor>> {
        let Ok(file) = files.open(CURSOR) else { return Ok(None) };
        let mut bytes = [0; 36];
        let n = file.read_at(0, &mut bytes)?;
        let mut r = Reader(&bytes, None);
        let (id, segment, epoch, sum) = (r.array::<16>()?, r.u32()?, r.u64()?, r.u64()?);
        let identity = &nodes.shared().identity;
        // A torn cursor is still the sign of a directory that was being filled.
        let whole = n == bytes.len() && id == identity.id && sum == identity.checksum(&bytes[..28]);
        Ok(Some(if whole { Cursor { segment, epoch } } else { Cursor { segment: 0, epoch: 0 } }))
    }

    /// Makes the cursor in the directory durable.
    fn make_durable(files: &dyn Files) -> Result<()> {
        files.open(CURSOR)?.sync()?;
        files.sync_names()
    }

    /// Durable on return.
    fn write(&self, nodes: &Nodes, files: &dyn Files) -> Result<()> {
        let mut w = Writer::default();
        w.raw(&nodes.shared().identity.id).u32(self.segment).u64(self.epoch);
        let checksum = nodes.shared().identity.checksum(&w.0);
        w.u64(checksum);
        let file = match files.open(CURSOR) {
            Err(error) if error.kind() == Kind::NotFound => files.create(CURSOR)?,
            opened => opened?,
        };
        file.write_at(0, &w.0)?;
        Cursor::make_durable(files)
    }
}
