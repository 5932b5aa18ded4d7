//! Snapshots of the tables, written and read.

use std::sync::Arc;

use onefold_core::{Error, File, Files, Kind, Result};

use crate::{
    block_index::{self, Named},
    erasure::Redundancy,
    format::{
        Identity,
        bytes::{Reader, Writer, corrupt},
        label::Kinds,
        log_reader::PIECE_BYTES,
        names::{fresh, snapshot_name},
    },
    leaf_file::LeafReader,
    memory::Drawn,
    settings::Settings,
    tables::{Care, LeafStore, Source, Tables, WriteCost, limit_leaves},
};

const SNAPSHOT_MAGIC: &[u8; 8] = b"ONEFSNAP";

const WRITE_COST_MAGIC: &[u8; 8] = b"ONEFWORK";

const CARE_MAGIC: &[u8; 8] = b"ONEFCARE";

const SNAPSHOT_HEADER_BYTES: usize = 40;

pub(crate) fn write_snapshot(
    files: &dyn Files,
    identity: &Identity,
    number: u64,
    tables: &Tables,
) -> Result<()> {
    let body = tables.encode();
    let mut w = Writer(Vec::with_capacity(SNAPSHOT_HEADER_BYTES + body.len()));
    w.raw(SNAPSHOT_MAGIC).u64(number).u64(body.len() as u64).u64(identity.checksum(&body));
    let checksum = identity.checksum(&w.0);
    w.u64(checksum).raw(&body);
    // Behind what counts: programs that do not know it do not look at it.
    let at = w.0.len();
    w.raw(WRITE_COST_MAGIC);
    tables.write_cost.encode(&mut w);
    let checksum = identity.checksum(&w.0[at..]);
    w.u64(checksum);
    let at = w.0.len();
    tables.care.encode(w.raw(CARE_MAGIC));
    let checksum = identity.checksum(&w.0[at..]);
    w.u64(checksum);
    let file = fresh(files, &snapshot_name(number))?;
    file.write_at(0, &w.0)?;
    file.sync()
}

pub(crate) fn read_snapshot(
    files: &dyn Redundancy,
    identity: &Identity,
    (number, kinds): (u64, Kinds),
    settings: &Settings,
    (before, store): (Option<&Tables>, &Arc<LeafStore>),
    drawn: &Drawn,
) -> Result<Tables> {
    let damaged = |why: &str| corrupt(format!("snapshot {number}: {why}"));
    let file = files
        .open(&snapshot_name(number))
        .map_err(|e| if e.kind() == Kind::NotFound { damaged("it is not there") } else { e })?;
    let mut header = [0; SNAPSHOT_HEADER_BYTES];
    if file.read_at(0, &mut header)? < SNAPSHOT_HEADER_BYTES {
        return Err(damaged("it ends too early"));
    }
    let mut r = Reader(&header, None);
    let (magic, found, length, sum) = (r.take(8)?, r.u64()?, r.u64()?, r.u64()?);
    if magic != SNAPSHOT_MAGIC
        || found != number
        || r.u64()? != identity.checksum(&header[..SNAPSHOT_HEADER_BYTES - 8])
    {
        return Err(damaged("its header is damaged"));
    }
    let end = length
        .checked_add(SNAPSHOT_HEADER_BYTES as u64)
        .filter(|&end| file.bytes().is_ok_and(|bytes| end <= bytes));
    let end = end.ok_or_else(|| damaged("it ends too early"))?;
    let whole = |e: Error| {
        if e.kind() == Kind::Memory { e } else { e.context(format!("snapshot {number}")) }
    };
    let body = read_body(&*file, length, drawn).map_err(whole)?;
    if identity.checksum(&body) != sum {
        return Err(damaged("it fails its checksum"));
    }
    let reader = LeafReader::new(files, identity, settings);
    let leaves = &mut Source { reader, before, store, number };
    let read = Tables::decode_within(&body, files.spread(), kinds, drawn, Some(leaves));
    let read = read.and_then(|mut tables| {
        drop(body);
        limit_leaves(&mut tables, settings.leaf_entries);
        let cost = (end, WriteCost::BYTES);
        if let Some(bytes) = behind(&*file, identity, cost, WRITE_COST_MAGIC)? {
            tables.write_cost = WriteCost::decode(&mut Reader(&bytes, None))?;
        }
        let care = (end.saturating_add(16 + WriteCost::BYTES as u64), Care::BYTES);
        if let Some(bytes) = behind(&*file, identity, care, CARE_MAGIC)? {
            tables.care = Care::decode(&mut Reader(&bytes, None))?;
        }
        load_block_indexes(files, identity, &mut tables, before, drawn)?;
        Ok(tables)
    });
    read.map_err(whole)
}

/// Reads the block indexes of all volumes.
fn load_block_indexes(
    files: &dyn Files,
    identity: &Identity,
    tables: &mut Tables,
    before: Option<&Tables>,
    drawn: &Drawn,
) -> Result<()> {
    let Tables { pages, volumes, .. } = tables;
    let named = volumes.iter().map(|(&id, volume)| Named {
        id,
        name: &volume.name,
        index: &volume.block_index,
        before: before
            .and_then(|before| before.volumes.get(&id))
            .map(|before| &*before.block_index),
    });
    for (id, index) in block_index::load(files, identity, pages, named, drawn)? {
        if let Some(volume) = volumes.get_mut(&id) {
            volume.block_index = index;
        }
    }
    Ok(())
}

/// Writes the leaves of all block indexes that changed, for snapshot `number`.
pub(crate) fn write_block_indexes(
    files: &dyn Files,
    identity: &Identity,
    number: u64,
    tables: &mut Tables,
    clones_keep: bool,
) -> Result<()> {
    let Tables { pages, volumes, .. } = tables;
    let indexes = volumes.iter().map(|(&id, volume)| (id, volume.block_index.clone())).collect();
    for (id, index) in block_index::write(files, identity, number, pages, indexes, clones_keep)? {
        if let Some(volume) = volumes.get_mut(&id) {
            volume.block_index = index;
        }
    }
    Ok(())
}

/// The tables of a snapshot, in pieces; each is drawn before memory is taken.
fn read_body(file: &dyn File, length: u64, drawn: &Drawn) -> Result<Vec<u8>> {
    drawn.more(length)?;
    let mut body = Vec::new();
    while (body.len() as u64) < length {
        let (from, n) = (body.len(), (length - body.len() as u64).min(PIECE_BYTES as u64) as usize);
        body.resize(from + n, 0);
        if file.read_at((SNAPSHOT_HEADER_BYTES + from) as u64, &mut body[from..])? < n {
            return Err(corrupt("it ends too early"));
        }
    }
    Ok(body)
}

/// Reads what lies behind the tables of a snapshot: its name, `n` bytes, and their checksum.
/// `None` when it is missing or damaged.
fn behind(
    file: &dyn File,
    identity: &Identity,
    (at, n): (u64, usize),
    magic: &[u8; 8],
) -> Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; 16 + n];
    let found = file.read_at(at, &mut bytes)?;
    let (body, checksum) = bytes.split_at(8 + n);
    let is_whole = found == bytes.len()
        && body.starts_with(magic)
        && identity.checksum(body).to_le_bytes() == *checksum;
    Ok(is_whole.then(|| body[8..].to_vec()))
}
