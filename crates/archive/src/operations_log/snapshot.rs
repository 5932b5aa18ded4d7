//! Snapshots of the tables, written and read.

use std::sync::Arc;

use onefold_core::{Error, File, Files, Kind, Result, checksum};

use super::proofs::{self, Proofs};
use crate::{
    erasure::Redundancy,
    format::{
        Identity,
        bytes::{Reader, Writer, corrupt},
        label::Kinds,
        log_reader::PIECE_BYTES,
        names::{fresh, snapshot_name},
        sealing::What,
    },
    leaf_file::LeafReader,
    memory::{Drawn, with_room},
    settings::Settings,
    tables::{Care, LeafStore, Source, Tables, WriteCost, limit_leaves},
};

const SNAPSHOT_MAGIC: &[u8; 8] = b"ONEFSNAP";

/// The first bytes of the message of the tables, which manage signs.
const SIGNED: &[u8; 32] = b"onefold archive, signed tables.\n";

const WRITE_COST_MAGIC: &[u8; 8] = b"ONEFWORK";

const CARE_MAGIC: &[u8; 8] = b"ONEFCARE";

const SNAPSHOT_HEADER_BYTES: usize = 40;

/// A sealed archive's tables take a multiple of this.
const STEP_BYTES: usize = 4096;

pub(crate) fn write_snapshot(
    files: &dyn Files,
    identity: &Identity,
    number: u64,
    tables: &Tables,
) -> Result<()> {
    let mut body = tables.encode();
    if identity.sealing().is_some() {
        let mut w = Writer::default();
        w.u64(body.len() as u64);
        proofs::encode(tables, &mut w);
        w.raw(&body);
        if tables.heads {
            w.raw(&tables.head);
        }
        if let Some(roles) = identity.sealing().and_then(|sealing| sealing.roles()) {
            let signature =
                roles.sign(&signed_message(identity, number, tables.kind_bits(), &w.0))?;
            w.raw(&signature);
        }
        body = w.0;
        // Hides how long the tables are.
        body.resize((body.len() + identity.tail()).next_multiple_of(STEP_BYTES), 0);
    }
    let checksum = identity.seal(What::Snapshot, (number, 0), &[], &mut body)?;
    let mut w = Writer(Vec::with_capacity(SNAPSHOT_HEADER_BYTES + body.len()));
    w.raw(SNAPSHOT_MAGIC).u64(number).u64(body.len() as u64).u64(checksum);
    let checksum = identity.readable_checksum(&w.0);
    w.u64(checksum).raw(&body);
    // Behind what counts: programs that do not know it do not look at it.
    let mut part = Writer::default();
    tables.write_cost.encode(&mut part);
    write_part(&mut w, identity, number, WRITE_COST_MAGIC, part)?;
    let mut part = Writer::default();
    tables.care.encode(&mut part);
    write_part(&mut w, identity, number, CARE_MAGIC, part)?;
    let file = fresh(files, &snapshot_name(number))?;
    file.write_at(0, &w.0)?;
    file.sync()
}

/// The message that manage signs of the tables of a snapshot.
fn signed_message(identity: &Identity, number: u64, kinds: u64, body: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    w.raw(SIGNED).raw(&identity.id).u64(number).u64(kinds);
    w.raw(&checksum::chunk_name(&[0; 32], body));
    w.0
}

/// Writes a part behind the tables: its name, its bytes, and their checksum.
fn write_part(
    w: &mut Writer,
    identity: &Identity,
    number: u64,
    magic: &[u8; 8],
    mut part: Writer,
) -> Result<()> {
    part.0.resize(part.0.len() + identity.tail(), 0);
    let checksum = identity.seal(What::SnapshotPart, (number, 0), magic, &mut part.0)?;
    w.raw(magic).raw(&part.0).u64(checksum);
    Ok(())
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
        || r.u64()? != identity.readable_checksum(&header[..SNAPSHOT_HEADER_BYTES - 8])
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
    let mut body = read_body(&*file, length, drawn).map_err(whole)?;
    if !identity.open(What::Snapshot, (number, 0), &[], &mut body, sum) {
        return Err(damaged("it fails its checksum"));
    }
    let (proofs, tables, head) = match identity.sealing() {
        Some(sealing) => {
            let r = &mut Reader(&body, Some(drawn));
            let length = r.u64().map_err(whole)?;
            let proofs = Proofs::decode(r).map_err(whole)?;
            let parts =
                usize::try_from(length).ok().and_then(|length| r.0.split_at_checked(length));
            let (tables, behind) = parts.ok_or_else(|| damaged("its tables end too early"))?;
            let r = &mut Reader(behind, None);
            let head = if kinds.heads { r.array().map_err(whole)? } else { [0; 32] };
            if let Some(roles) = sealing.roles() {
                let signed = &body[..body.len() - r.0.len()];
                let message = signed_message(
                    identity,
                    number,
                    Tables::new(files.spread(), kinds).kind_bits(),
                    signed,
                );
                let signature = r.array().map_err(whole)?;
                if !roles.is_of_manage(&message, &signature) {
                    return Err(damaged("nobody signed it who manages the archive"));
                }
            }
            (Some(proofs), tables, head)
        }
        None => (None, &body[..], [0; 32]),
    };
    let reader = LeafReader::new(files, identity, settings);
    let leaves = &mut Source { reader, before, store, number };
    let read = Tables::decode_within(tables, files.spread(), kinds, drawn, Some(leaves));
    let read = read.and_then(|mut tables| {
        drop(body);
        tables.head = head;
        if let Some(proofs) = proofs {
            proofs.give(&mut tables);
        }
        limit_leaves(&mut tables, settings.leaf_entries);
        let cost = (end, WriteCost::BYTES);
        if let Some(bytes) = behind(&*file, identity, number, cost, WRITE_COST_MAGIC)? {
            tables.write_cost = WriteCost::decode(&mut Reader(&bytes, None))?;
        }
        let cost_bytes = (16 + WriteCost::BYTES + identity.tail()) as u64;
        let care = (end.saturating_add(cost_bytes), Care::BYTES);
        if let Some(bytes) = behind(&*file, identity, number, care, CARE_MAGIC)? {
            tables.care = Care::decode(&mut Reader(&bytes, None))?;
        }
        let before = before.map(|before| &before.volumes);
        tables.volumes.load_maps(files, identity, before, drawn)?;
        Ok(tables)
    });
    read.map_err(whole)
}

/// The tables of a snapshot, in pieces, once all are drawn and the system has the memory.
fn read_body(file: &dyn File, length: u64, drawn: &Drawn) -> Result<Vec<u8>> {
    drawn.more(length)?;
    let mut body = with_room(usize::try_from(length).unwrap_or(usize::MAX))?;
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
    number: u64,
    (at, n): (u64, usize),
    magic: &[u8; 8],
) -> Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; 16 + n + identity.tail()];
    let found = file.read_at(at, &mut bytes)?;
    let is_there = found == bytes.len() && bytes.starts_with(magic);
    let mut body = bytes.split_off(8);
    let mut checksum = [0; 8];
    checksum.copy_from_slice(&body.split_off(body.len() - 8));
    let checksum = u64::from_le_bytes(checksum);
    let place = (number, 0);
    let is_whole = is_there && identity.open(What::SnapshotPart, place, magic, &mut body, checksum);
    body.truncate(n);
    Ok(is_whole.then_some(body))
}
