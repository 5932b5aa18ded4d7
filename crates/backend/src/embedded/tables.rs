//! The tables of `redb`: objects by pool and name; by the object's number its keys, its attributes,
//! and for each 64 KiB the places of its blocks.

use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt, sync::Arc, time::Duration};

use onefold_core::{
    BLOCK_BYTES, Error, Kind, Result, checksum,
    object::{
        Change, Guard, Page, Pool, PoolKind, Read, ReadPart, ReadResult, Refusal, Seen, Version,
        Write,
    },
};
use redb::{
    Database, Durability, ReadTransaction, ReadableTable, Table, TableDefinition, TableError,
    WriteTransaction,
};

use super::{
    blocks::Blocks,
    guard::{Guarded, failed, guarded},
    numbers::Numbers,
    opening,
    own::Own,
};
use crate::{file_disk::standing::Standing, random::random_bytes};

/// Pool and name → the object.
const OBJECTS: TableDefinition<(u8, &str), (u64, u64, u64, u64)> = TableDefinition::new("objects");
/// The object's number and key → value.
const KEYS: TableDefinition<(u64, &[u8]), &[u8]> = TableDefinition::new("keys");
/// The object's number and name → value.
const XATTRS: TableDefinition<(u64, &str), &[u8]> = TableDefinition::new("xattrs");
/// The object's number and which 64 KiB → places and checksums of its blocks.
const EXTENTS: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("extents");
/// Blocks that were let go, and are overwritten before they are used again.
const ERASING: TableDefinition<u32, ()> = TableDefinition::new("erasing");
/// Counters, and what the store is.
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// Blocks of an extent: 64 KiB.
const EXTENT: u32 = 16;

/// Bytes of a block in an extent: its place and one, 0 for zeroes, and its checksum.
const SLOT: usize = 8;

/// Bytes of an object's name, of a key and of a value, at most: those of the engine have a few hundred.
/// Others would take memory for what a file of holes only says that it has.
const LONGEST: usize = 1024;

/// The format of the folder.
const FORMAT: u64 = 1;

/// An object as its row has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Object {
    number: u64,
    version: u64,
    bytes: u64,
    changed: u64,
}

impl Object {
    fn row(self) -> (u64, u64, u64, u64) {
        (self.number, self.version, self.bytes, self.changed)
    }

    fn of((number, version, bytes, changed): (u64, u64, u64, u64)) -> Object {
        Object { number, version, bytes, changed }
    }
}

fn pool_number(pool: Pool) -> u8 {
    match pool {
        Pool::Metadata => 0,
        Pool::Chunks => 1,
    }
}

/// Blocks that an operation changes, by their number in the object; `None` for zeroes.
type Overlay = BTreeMap<u32, Option<Box<[u8; BLOCK_BYTES]>>>;

/// The database and the data file, for reading.
pub(super) struct Tables {
    database: Guarded,
    /// The file that the database is in.
    own: File,
    data: File,
    numbers: Numbers,
}

/// A transaction at work.
pub(super) struct Transaction {
    inner: WriteTransaction,
    version: u64,
    number: u64,
    data: File,
}

impl Tables {
    /// Makes the tables in an empty file.
    pub(super) fn create(own: File, chunks: PoolKind) -> Result<()> {
        let database = Database::builder().create_with_backend(Own::new(own)).map_err(failed)?;
        let transaction = database.begin_write().map_err(failed)?;
        {
            let mut meta = transaction.open_table(META).map_err(failed)?;
            for (key, value) in [
                ("format", FORMAT),
                ("erasure", u64::from(chunks == PoolKind::Erasure)),
                ("version", 0),
                ("number", 0),
            ] {
                meta.insert(key, value).map_err(failed)?;
            }
            transaction.open_table(OBJECTS).map_err(failed)?;
            transaction.open_table(KEYS).map_err(failed)?;
            transaction.open_table(XATTRS).map_err(failed)?;
            transaction.open_table(EXTENTS).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    /// Opens the tables in a file that we have locked; `data` has the blocks that they name.
    /// Nothing reaches the file but of its `owner`, who knows how long it must be.
    pub(super) fn open(
        own: File,
        data: File,
        owner: Option<&Arc<Standing>>,
    ) -> Result<(Tables, PoolKind)> {
        guarded(|| Tables::open_trusting(own, data, owner))
    }

    fn open_trusting(
        own: File,
        data: File,
        owner: Option<&Arc<Standing>>,
    ) -> Result<(Tables, PoolKind)> {
        let again = own.try_clone().map_err(|e| Error::from_io("the tables of the store", e))?;
        let database = opening::database(&own, owner)?;
        let numbers = Numbers::new(u64::from_le_bytes(random_bytes()?));
        let tables = Tables { database: Guarded::of(database), own: again, data, numbers };
        let reading = tables.database.get()?.begin_read().map_err(failed)?;
        let meta = reading.open_table(META).map_err(failed)?;
        let number = |key: &str| -> Result<u64> {
            Ok(meta.get(key).map_err(failed)?.map_or(0, |value| value.value()))
        };
        if number("format")? != FORMAT {
            return Err(Error::new(Kind::Unsupported, "the store was made by a newer version"));
        }
        let kind = if number("erasure")? == 1 { PoolKind::Erasure } else { PoolKind::Replicated };
        drop((meta, reading));
        Ok((tables, kind))
    }

    /// The blocks of the data file that are in use.
    pub(super) fn used_blocks(&self) -> Result<Vec<u32>> {
        guarded(|| {
            let reading = self.reading()?;
            let extents = reading.open_table(EXTENTS).map_err(failed)?;
            let mut used = Vec::new();
            for row in extents.iter().map_err(failed)? {
                let (_, value) = row.map_err(failed)?;
                if value.value().len() != EXTENT as usize * SLOT {
                    return Err(damaged("a row of blocks has another length"));
                }
                used.extend(slots(value.value()).filter_map(|(place, _)| place));
            }
            Ok(used)
        })
    }

    /// Blocks that were let go to be overwritten, and may not be.
    pub(super) fn erasing(&self) -> Result<Vec<u32>> {
        guarded(|| {
            let erasing = match self.reading()?.open_table(ERASING) {
                Ok(erasing) => erasing,
                Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                Err(error) => return Err(failed(error)),
            };
            let rows = erasing.iter().map_err(failed)?;
            rows.map(|row| Ok(row.map_err(failed)?.0.value())).collect()
        })
    }

    /// They are overwritten.
    pub(super) fn erased(&self) -> Result<()> {
        guarded(|| {
            let transaction = self.database.get()?.begin_write().map_err(failed)?;
            transaction.delete_table(ERASING).map_err(failed)?;
            transaction.commit().map_err(failed)
        })
    }

    fn reading(&self) -> Result<ReadTransaction> {
        self.database.get()?.begin_read().map_err(failed)
    }

    pub(super) fn file_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        self.own.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    pub(super) fn begin(&self) -> Result<Transaction> {
        let mut inner = self.database.get()?.begin_write().map_err(failed)?;
        inner.set_durability(Durability::Immediate);
        let (version, number) = {
            let meta = inner.open_table(META).map_err(failed)?;
            let of = |key: &str| -> Result<u64> {
                Ok(meta.get(key).map_err(failed)?.map_or(0, |value| value.value()))
            };
            (of("version")?, of("number")?)
        };
        let data =
            self.data.try_clone().map_err(|e| Error::from_io("the data file of the store", e))?;
        Ok(Transaction { inner, version, number, data })
    }

    pub(super) fn read(&self, op: &Read, chunks: PoolKind) -> Result<ReadResult, Refusal> {
        let omap = |part: &ReadPart| matches!(part, ReadPart::Keys(_) | ReadPart::Page(..));
        if op.object.pool == Pool::Chunks
            && chunks == PoolKind::Erasure
            && op.parts.iter().any(omap)
        {
            return Err(Refusal::Unsupported);
        }
        let seen = guarded(|| {
            let reading = self.reading()?;
            let objects = reading.open_table(OBJECTS).map_err(failed)?;
            let row = objects
                .get((pool_number(op.object.pool), op.object.name.as_str()))
                .map_err(failed)?;
            let Some(object) = row.map(|row| Object::of(row.value())) else { return Ok(None) };
            self.numbers.belongs(object.number, op.object.pool, &op.object.name)?;
            let seen = op
                .parts
                .iter()
                .map(|part| self.see(&reading, object, part))
                .collect::<Result<_>>()?;
            Ok(Some(ReadResult { version: Version(object.version), seen }))
        });
        seen.map_err(Refusal::Failed)?.ok_or(Refusal::Missing)
    }

    fn see(&self, reading: &ReadTransaction, object: Object, part: &ReadPart) -> Result<Seen> {
        Ok(match part {
            ReadPart::Stat => {
                Seen::Stat { bytes: object.bytes, changed: Duration::from_nanos(object.changed) }
            }
            ReadPart::Data(at, bytes) => {
                let extents = reading.open_table(EXTENTS).map_err(failed)?;
                let from = (*at).min(object.bytes);
                let to = at.saturating_add(*bytes).min(object.bytes);
                Seen::Data(read_data(&extents, &self.data, object.number, from, to)?)
            }
            ReadPart::Keys(wanted) => {
                let keys = reading.open_table(KEYS).map_err(failed)?;
                let mut found = BTreeMap::new();
                for key in wanted {
                    if let Some(value) =
                        keys.get((object.number, key.as_slice())).map_err(failed)?
                    {
                        is_short(value.value())?;
                        found.insert(key.clone(), value.value().to_vec());
                    }
                }
                Seen::Pairs { pairs: found.into_iter().collect(), more: false }
            }
            ReadPart::Page(after, most) => {
                let keys = reading.open_table(KEYS).map_err(failed)?;
                let (mut pairs, mut more) = (Vec::new(), false);
                for row in keys.range((object.number, after.as_slice())..).map_err(failed)? {
                    let (key, value) = row.map_err(failed)?;
                    let (number, key) = key.value();
                    if number != object.number {
                        break;
                    }
                    if key == after.as_slice() {
                        continue;
                    }
                    is_short(key).and(is_short(value.value()))?;
                    let last = pairs.last().map_or(after, |(key, _): &(Vec<u8>, Vec<u8>)| key);
                    rises(Some(last.as_slice()), key)?;
                    if pairs.len() == *most {
                        more = true;
                        break;
                    }
                    pairs.push((key.to_vec(), value.value().to_vec()));
                }
                Seen::Pairs { pairs, more }
            }
            ReadPart::Xattr(name) => {
                let xattrs = reading.open_table(XATTRS).map_err(failed)?;
                let found = xattrs.get((object.number, *name)).map_err(failed)?;
                found.iter().try_for_each(|value| is_short(value.value()))?;
                Seen::Xattr(found.map(|value| value.value().to_vec()))
            }
        })
    }

    pub(super) fn list(
        &self,
        pool: Pool,
        from: Option<&str>,
        most: usize,
    ) -> Result<Page, Refusal> {
        let list = || -> Result<Page> {
            let reading = self.reading()?;
            let objects = reading.open_table(OBJECTS).map_err(failed)?;
            let mut page = Page::default();
            for row in
                objects.range((pool_number(pool), from.unwrap_or_default())..).map_err(failed)?
            {
                let (key, _) = row.map_err(failed)?;
                let (there, name) = key.value();
                if there != pool_number(pool) {
                    break;
                }
                if Some(name) == from {
                    continue;
                }
                is_short(name.as_bytes())?;
                rises(page.names.last().map(String::as_str).or(from), name)?;
                if page.names.len() == most.max(1) {
                    page.next = page.names.last().cloned();
                    break;
                }
                page.names.push(name.to_owned());
            }
            Ok(page)
        };
        guarded(list).map_err(Refusal::Failed)
    }
}

/// Refuses keys that are not in order: a caller that continues from the last key, page by page,
/// would never end.
fn rises<K: PartialOrd + ?Sized>(last: Option<&K>, next: &K) -> Result<()> {
    if last.is_none_or(|last| last < next) { Ok(()) } else { Err(damaged("keys are out of order")) }
}

/// Refuses what is longer than the engine makes it.
fn is_short(bytes: &[u8]) -> Result<()> {
    if bytes.len() <= LONGEST { Ok(()) } else { Err(damaged("a name, key or value is too long")) }
}

fn damaged(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("the tables of the store are damaged: {what}"))
}

/// Places and checksums of an extent.
fn slots(value: &[u8]) -> impl Iterator<Item = (Option<u32>, u32)> + '_ {
    value.chunks_exact(SLOT).map(|slot| {
        let number =
            |at: usize| u32::from_le_bytes([slot[at], slot[at + 1], slot[at + 2], slot[at + 3]]);
        (number(0).checked_sub(1), number(4))
    })
}

fn check(block: &[u8]) -> u32 {
    checksum::fast(6, block) as u32
}

/// Reads blocks that lie side by side, from `place` on, with these checksums.
fn read_blocks(
    data: &File,
    place: u32,
    expected: impl ExactSizeIterator<Item = u32>,
) -> Result<Vec<u8>> {
    let mut blocks = vec![0; expected.len() * BLOCK_BYTES];
    data.read_exact_at(&mut blocks, u64::from(place) * BLOCK_BYTES as u64)
        .map_err(|e| Error::from_io("the data file of the store", e))?;
    for (n, (block, expected)) in blocks.chunks(BLOCK_BYTES).zip(expected).enumerate() {
        if check(block) != expected {
            return Err(Error::new(
                Kind::Corrupt,
                format!("block {} of the store's data file is damaged", place as usize + n),
            ));
        }
    }
    Ok(blocks)
}

/// Reads one block where it lies.
fn read_block(data: &File, place: u32, expected: u32) -> Result<Box<[u8; BLOCK_BYTES]>> {
    let block = read_blocks(data, place, [expected].into_iter())?;
    block
        .into_boxed_slice()
        .try_into()
        .map_err(|_| Error::new(Kind::Io, "the data file of the store is short"))
}

fn read_data(
    extents: &impl ReadableTable<(u64, u32), &'static [u8]>,
    data: &File,
    number: u64,
    from: u64,
    to: u64,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; (to - from) as usize];
    if bytes.is_empty() {
        return Ok(bytes);
    }
    let block_bytes = BLOCK_BYTES as u64;
    let extent_bytes = block_bytes * u64::from(EXTENT);
    let range = (number, (from / extent_bytes) as u32)..=(number, ((to - 1) / extent_bytes) as u32);
    for row in extents.range(range).map_err(failed)? {
        let (key, value) = row.map_err(failed)?;
        let first = u64::from(key.value().1) * extent_bytes;
        let wanted: Vec<(u64, u32, u32)> = slots(value.value())
            .enumerate()
            .map(|(n, (place, sum))| (first + n as u64 * block_bytes, place, sum))
            .filter(|(start, ..)| *start < to && start + block_bytes > from)
            .filter_map(|(start, place, sum)| Some((start, place?, sum)))
            .collect();
        // Neighbours come together.
        for run in wanted.chunk_by(|one, next| next.0 == one.0 + block_bytes && next.1 == one.1 + 1)
        {
            let blocks = read_blocks(data, run[0].1, run.iter().map(|(_, _, sum)| *sum))?;
            let start = run[0].0;
            let (low, high) = (start.max(from), (start + blocks.len() as u64).min(to));
            bytes[(low - from) as usize..(high - from) as usize]
                .copy_from_slice(&blocks[(low - start) as usize..(high - start) as usize]);
        }
    }
    Ok(bytes)
}

impl Transaction {
    /// Applies an operation whole or not at all. The outer error breaks the store.
    pub(super) fn apply(
        &mut self,
        op: &Write,
        blocks: &mut Blocks,
        chunks: PoolKind,
        now: Duration,
        full: bool,
    ) -> Result<Result<Version, Refusal>> {
        let part = |change: &Change| {
            matches!(
                change,
                Change::SetOmap(_) | Change::DropOmap(_) | Change::Write(..) | Change::Zero(..)
            )
        };
        let erasure = op.object.pool == Pool::Chunks && chunks == PoolKind::Erasure;
        if !fits(op) {
            return Ok(Err(Refusal::Unsupported));
        }
        if erasure
            && (op.changes.iter().any(part)
                || op.guards.iter().any(|guard| matches!(guard, Guard::Omap(..))))
        {
            return Ok(Err(Refusal::Unsupported));
        }
        let row = (pool_number(op.object.pool), op.object.name.as_str());
        let mut objects = self.inner.open_table(OBJECTS).map_err(failed)?;
        let there = objects.get(row).map_err(failed)?.map(|object| Object::of(object.value()));
        let mut keys = self.inner.open_table(KEYS).map_err(failed)?;
        let mut xattrs = self.inner.open_table(XATTRS).map_err(failed)?;
        for guard in &op.guards {
            let Some(object) = there else {
                if *guard == Guard::Absent {
                    continue;
                }
                return Ok(Err(Refusal::Missing));
            };
            let holds = match guard {
                Guard::Absent => return Ok(Err(Refusal::Exists)),
                Guard::Exists => true,
                Guard::Version(version) => object.version == version.0,
                Guard::Omap(key, value) => keys
                    .get((object.number, key.as_slice()))
                    .map_err(failed)?
                    .map_or(value.is_empty(), |found| found.value() == value),
                Guard::Xattr(name, value) => xattrs
                    .get((object.number, *name))
                    .map_err(failed)?
                    .map_or(value.is_empty(), |found| found.value() == value),
            };
            if !holds {
                return Ok(Err(Refusal::Mismatch));
            }
        }
        let mut extents = self.inner.open_table(EXTENTS).map_err(failed)?;
        if op.changes.contains(&Change::Remove) {
            let Some(object) = there else { return Ok(Err(Refusal::Missing)) };
            objects.remove(row).map_err(failed)?;
            keys.retain_in((object.number, &[][..])..(object.number + 1, &[][..]), |_, _| false)
                .map_err(failed)?;
            xattrs
                .retain_in((object.number, "")..(object.number + 1, ""), |_, _| false)
                .map_err(failed)?;
            let whole = (object.number, 0)..(object.number + 1, 0);
            for row in extents.range(whole.clone()).map_err(failed)? {
                slots(row.map_err(failed)?.1.value())
                    .filter_map(|(place, _)| place)
                    .for_each(|place| blocks.let_go(place));
            }
            extents.retain_in(whole, |_, _| false).map_err(failed)?;
            self.version += 1;
            return Ok(Ok(Version(self.version)));
        }
        let grows = |change: &Change| !matches!(change, Change::DropOmap(_) | Change::Zero(..));
        if full && op.changes.iter().any(grows) {
            return Ok(Err(Refusal::Full));
        }
        let mut object = match there {
            Some(object) => object,
            None => {
                self.number += 1;
                Object { number: self.number, version: 0, bytes: 0, changed: 0 }
            }
        };
        if let Err(refusal) = write_data(&mut object, op, &mut extents, blocks, &self.data)? {
            return Ok(Err(refusal));
        }
        for change in &op.changes {
            match change {
                Change::SetOmap(pairs) => {
                    for (key, value) in pairs {
                        keys.insert((object.number, key.as_slice()), value.as_slice())
                            .map_err(failed)?;
                    }
                }
                Change::DropOmap(gone) => {
                    for key in gone {
                        keys.remove((object.number, key.as_slice())).map_err(failed)?;
                    }
                }
                Change::SetXattr(name, value) => {
                    xattrs.insert((object.number, *name), value.as_slice()).map_err(failed)?;
                }
                Change::Write(..)
                | Change::Full(_)
                | Change::Overwrite(_)
                | Change::Zero(..)
                | Change::Remove => {}
            }
        }
        self.version += 1;
        object.version = self.version;
        object.changed = now.as_nanos() as u64;
        objects.insert(row, object.row()).map_err(failed)?;
        Ok(Ok(Version(self.version)))
    }

    /// Commits what was applied. These blocks are overwritten afterwards.
    pub(super) fn commit(self, to_erase: &[u32]) -> Result<()> {
        if !to_erase.is_empty() {
            let mut erasing = self.inner.open_table(ERASING).map_err(failed)?;
            to_erase
                .iter()
                .try_for_each(|block| erasing.insert(block, ()).map(drop))
                .map_err(failed)?;
        }
        {
            let mut meta = self.inner.open_table(META).map_err(failed)?;
            meta.insert("version", self.version).map_err(failed)?;
            meta.insert("number", self.number).map_err(failed)?;
        }
        self.inner.commit().map_err(failed)
    }
}

/// True when what the operation names and sets would be read again.
fn fits(op: &Write) -> bool {
    let short = |bytes: &[u8]| bytes.len() <= LONGEST;
    let fits = |change: &Change| match change {
        Change::SetOmap(pairs) => pairs.iter().all(|(key, value)| short(key) && short(value)),
        Change::SetXattr(_, value) => short(value),
        _ => true,
    };
    short(op.object.name.as_bytes()) && op.changes.iter().all(fits)
}

/// Does the changes of data: into free blocks, all of them or none.
fn write_data(
    object: &mut Object,
    op: &Write,
    extents: &mut Table<'_, (u64, u32), &'static [u8]>,
    blocks: &mut Blocks,
    data: &File,
) -> Result<Result<(), Refusal>> {
    let mut overlay = Overlay::new();
    let mut bytes = object.bytes;
    for change in &op.changes {
        let (at, fill, length) = match change {
            Change::Write(at, fill) => (*at, Some(fill.as_slice()), fill.len() as u64),
            Change::Full(fill) | Change::Overwrite(fill) => {
                // The old content is removed: what there is of it, whatever size its row says.
                overlay.clear();
                for row in
                    extents.range((object.number, 0)..=(object.number, u32::MAX)).map_err(failed)?
                {
                    let (key, _) = row.map_err(failed)?;
                    let first = key.value().1.saturating_mul(EXTENT);
                    (first..first.saturating_add(EXTENT))
                        .for_each(|block| drop(overlay.insert(block, None)));
                }
                bytes = 0;
                (0, Some(fill.as_slice()), fill.len() as u64)
            }
            Change::Zero(at, length) => (*at, None, (*at + *length).min(bytes).saturating_sub(*at)),
            _ => continue,
        };
        bytes = bytes.max(at + if fill.is_some() { length } else { 0 });
        overlay_range(&mut overlay, extents, data, object.number, at, length, fill)?;
    }
    if overlay.is_empty() {
        object.bytes = bytes;
        return Ok(Ok(()));
    }
    let contents: Vec<(u32, &[u8])> = overlay
        .iter()
        .filter_map(|(block, content)| Some((*block, &content.as_ref()?[..])))
        .filter(|(_, content)| !onefold_core::block::is_zero(content))
        .collect();
    let places =
        match blocks.write(&contents.iter().map(|(_, content)| *content).collect::<Vec<_>>()) {
            Ok(places) => places,
            Err(Refusal::Failed(error)) => return Err(error),
            Err(refusal) => return Ok(Err(refusal)),
        };
    let written: BTreeMap<u32, (u32, u32)> = contents
        .iter()
        .zip(places)
        .map(|((block, content), place)| (*block, (place, check(content))))
        .collect();
    let erases = op.changes.iter().any(|change| matches!(change, Change::Overwrite(_)));
    let mut touched: Vec<u32> = overlay.keys().map(|block| block / EXTENT).collect();
    touched.dedup();
    for extent in touched {
        let old: Vec<u8> = extents
            .get((object.number, extent))
            .map_err(failed)?
            .map_or_else(Vec::new, |value| value.value().to_vec());
        let mut new = old.clone();
        new.resize(EXTENT as usize * SLOT, 0);
        for (block, _) in overlay.range(extent * EXTENT..(extent + 1) * EXTENT) {
            let at = (block % EXTENT) as usize * SLOT;
            if let Some(place) = slots(&new[at..at + SLOT]).next().and_then(|(place, _)| place) {
                if erases { blocks.let_go_erased(place) } else { blocks.let_go(place) }
            }
            let (place, sum) = written.get(block).map_or((0, 0), |(place, sum)| (place + 1, *sum));
            new[at..at + 4].copy_from_slice(&place.to_le_bytes());
            new[at + 4..at + SLOT].copy_from_slice(&sum.to_le_bytes());
        }
        if slots(&new).all(|(place, _)| place.is_none()) {
            extents.remove((object.number, extent)).map_err(failed)?;
        } else {
            extents.insert((object.number, extent), new.as_slice()).map_err(failed)?;
        }
    }
    object.bytes = bytes;
    Ok(Ok(()))
}

/// Puts `fill`, or zeroes, over a range of blocks; those that it covers in part are read first.
fn overlay_range(
    overlay: &mut Overlay,
    extents: &Table<'_, (u64, u32), &'static [u8]>,
    data: &File,
    number: u64,
    at: u64,
    length: u64,
    fill: Option<&[u8]>,
) -> Result<()> {
    let block_bytes = BLOCK_BYTES as u64;
    let mut done = 0;
    while done < length {
        let position = at + done;
        let (block, within) = ((position / block_bytes) as u32, (position % block_bytes) as usize);
        let part = ((block_bytes - within as u64).min(length - done)) as usize;
        if fill.is_none() && part == BLOCK_BYTES {
            overlay.insert(block, None);
        } else {
            let mut content = match overlay.remove(&block) {
                Some(content) => content.unwrap_or_else(|| Box::new([0; BLOCK_BYTES])),
                None if part == BLOCK_BYTES => Box::new([0; BLOCK_BYTES]),
                None => stored(extents, data, number, block)?,
            };
            match fill {
                Some(fill) => content[within..within + part]
                    .copy_from_slice(&fill[done as usize..done as usize + part]),
                None => content[within..within + part].fill(0),
            }
            overlay.insert(block, Some(content));
        }
        done += part as u64;
    }
    Ok(())
}

/// A block as the object has it.
fn stored(
    extents: &Table<'_, (u64, u32), &'static [u8]>,
    data: &File,
    number: u64,
    block: u32,
) -> Result<Box<[u8; BLOCK_BYTES]>> {
    let row = extents.get((number, block / EXTENT)).map_err(failed)?;
    let slot = row.and_then(|value| slots(value.value()).nth((block % EXTENT) as usize));
    match slot {
        Some((Some(place), sum)) => read_block(data, place, sum),
        _ => Ok(Box::new([0; BLOCK_BYTES])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_tell_places_from_zeroes() {
        let value = [[1, 0, 0, 0, 9, 0, 0, 0], [0; 8], [0, 1, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(slots(&value).collect::<Vec<_>>(), [(Some(0), 9), (None, 0), (Some(255), 0)]);
    }
}
