//! Filling lost and replaced nodes, and making bad units anew.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, Files, Hold, Kind, Result};

use super::{
    Nodes, bits, copies,
    label::{NODE, NodeLabel, View},
    stripe::{Repaired, Segment},
};
use crate::{
    archive::{Archive, COLLECTOR, IMPORTER, WRITER, segment_name},
    format::record::Place,
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

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Nodes filled.
    pub nodes: u64,
    /// Units.
    pub units: Repaired,
    /// Containers of which something is lost.
    pub lost_containers: u64,
}

/// How far: what is done, of how much.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// The places of all containers by their segments.
fn places(archive: &Archive) -> BTreeMap<u32, Vec<Place>> {
    let mut places: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
    for container in archive.tables().containers.values() {
        places.entry(container.stored.place.segment).or_default().push(container.stored.place);
    }
    places.values_mut().for_each(|places| places.sort_unstable());
    places
}

/// Looks at every unit of all containers, parity included, and makes bad ones anew on nodes that are there; durable on return.
///
/// # Errors
/// Those of the system; what is lost is in the report.
pub fn repair(archive: &Arc<Archive>, nodes: &Nodes, progress: &mut Progress<'_>) -> Result<Rebuilt> {
    // Nothing that is looked at moves away.
    let _stay = archive.stay()?;
    let (places, mut done) = (places(archive), Rebuilt::default());
    let (total, mut looked) = (places.values().map(Vec::len).sum::<usize>() as u64, 0);
    for (segment, places) in places {
        let segment = Segment::of(nodes.shared(), &segment_name(segment))?;
        for place in places {
            done.add(segment.repair(place.at, u64::from(place.bytes), None)?);
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

/// Fills a directory with all that node `number` must have, and makes it the node; durable on return. No put and no collection runs meanwhile. A rebuild that
/// was killed goes on behind the last segment that was filled.
///
/// # Errors
/// `InvalidInput` when the directory is a node that counts, `Corrupt` when other nodes can't give what it needs, `NoSpace`, those of the system.
pub fn replace(archive: &Arc<Archive>, nodes: &Nodes, replacement: &Replacement, progress: &mut Progress<'_>) -> Result<Rebuilt> {
    let (shared, &Replacement { number, ref files, id }) = (nodes.shared(), replacement);
    if number >= nodes.count() {
        return Err(Error::new(Kind::InvalidInput, format!("there is no node {number}: the archive has {}, from 0 on", nodes.count())));
    }
    if shared.here() >> number & 1 == 1 {
        return Err(Error::new(Kind::InvalidInput, format!("node {number} is there, and whole: only a node that is absent is replaced")));
    }
    let cursor = begin(nodes, replacement)?;
    let _locks = [WRITER, COLLECTOR, IMPORTER].map(|name| archive.files.lock(name, Hold::Alone, true));
    if let Some(error) = _locks.iter().find_map(|lock| lock.as_ref().err()) {
        return Err(error.clone());
    }
    archive.refresh()?;
    let (places, mut done) = (places(archive), Rebuilt { nodes: 1, ..Rebuilt::default() });
    let (total, mut filled) = (places.values().map(Vec::len).sum::<usize>() as u64, 0);
    for (segment, places) in places {
        let name = segment_name(segment);
        let columns = Segment::of(shared, &name)?;
        let Some(column) = columns.layout().column_of(number) else {
            filled += places.len() as u64;
            continue;
        };
        // Whole as far as the cursor says.
        if cursor.is_some_and(|cursor| segment <= cursor) && files.open(&name).is_ok() {
            filled += places.len() as u64;
            continue;
        }
        let file = columns.begin_column(column, &**files)?;
        for place in places {
            done.add(columns.repair(place.at, u64::from(place.bytes), Some((column, &*file)))?);
            filled += 1;
            progress(filled, total);
        }
        file.sync()?;
        files.sync_names()?;
        remember(&**files, archive, segment)?;
    }
    if done.lost_containers > 0 {
        let why = format!("{} containers can't be made from the nodes that are there", done.lost_containers);
        return Err(Error::new(Kind::Corrupt, why));
    }
    archive.exclusively(|| {
        if number < shared.copies() {
            let primary = shared.state.lock().primary;
            copies::copy_all(&**shared.directory(primary)?, &**files)?;
        }
        forget(&**files)?;
        let mut view: View = shared.state.lock().view.clone();
        view.ids[number] = id;
        // Who is a member and absent, and missed nothing so far, stays one only if it gets the new view: it can't.
        let here = shared.here();
        view = View { epoch: view.epoch + 1, members: (view.members & here) | 1 << number, ids: view.ids };
        shared.change_view(view, Some((number, &**files)))
    })?;
    Ok(done)
}

/// How far a rebuild of this directory is: the last segment that is filled.
const CURSOR: &str = "rebuild";

/// Clears the directory, unless it was being filled already; gives how far it is.
fn begin(nodes: &Nodes, replacement: &Replacement) -> Result<Option<u32>> {
    let (shared, files) = (nodes.shared(), &replacement.files);
    if let Ok(label) = NodeLabel::read(&**files)
        && label.identity().key == shared.identity.key
        && bits(shared.here()).any(|n| usize::from(label.number) == n && shared.state.lock().view.ids[n] == label.view.ids[n])
    {
        return Err(Error::new(Kind::InvalidInput, format!("this directory is node {}, which counts", label.number)));
    }
    if let Ok(file) = files.open(CURSOR) {
        let mut bytes = [0; 28];
        let n = file.read_at(0, &mut bytes)?;
        let sum = shared.identity.checksum(&bytes[..20]).to_le_bytes();
        if n == bytes.len() && bytes[..16] == shared.identity.id && bytes[20..] == sum {
            let mut number = [0; 4];
            number.copy_from_slice(&bytes[16..20]);
            return Ok(Some(u32::from_le_bytes(number)));
        }
    }
    let names = files.names()?;
    let label = NodeLabel::read(&**files).ok();
    let ours = label.is_some_and(|label| label.identity().key == shared.identity.key);
    if !names.is_empty() && !ours && !names.iter().all(|name| name == CURSOR) {
        return Err(Error::new(Kind::Exists, "the directory is not empty, and no node of this archive"));
    }
    // The label goes first: what is half cleared is no node.
    for name in names.iter().filter(|name| *name == NODE).chain(names.iter().filter(|name| *name != NODE)) {
        files.remove(name)?;
        files.sync_names()?;
    }
    Ok(None)
}

fn remember(files: &dyn Files, archive: &Archive, segment: u32) -> Result<()> {
    let mut bytes = archive.identity.id.to_vec();
    bytes.extend(segment.to_le_bytes());
    bytes.extend(archive.identity.checksum(&bytes).to_le_bytes());
    let file = match files.open(CURSOR) {
        Err(error) if error.kind() == Kind::NotFound => files.create(CURSOR)?,
        opened => opened?,
    };
    file.write_at(0, &bytes)?;
    file.sync()?;
    files.sync_names()
}

fn forget(files: &dyn Files) -> Result<()> {
    match files.remove(CURSOR) {
        Err(error) if error.kind() != Kind::NotFound => Err(error),
        _ => files.sync_names(),
    }
}
