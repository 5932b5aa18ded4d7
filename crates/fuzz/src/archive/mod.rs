//! The archive engine: whole hostile archives under the verbs that read and collect them, and each
//! of its decoders.
//!
//! An input for a whole archive is a list of changes to a good one, so that it stays small;
//! `docs/archive-format.md` says where the checksums are that are made right again behind them.

pub(crate) mod decoders;
mod files;
mod good;
mod mend;
pub(crate) mod nodes;
pub(crate) mod parts;

use std::sync::Arc;

use onefold_archive::{
    Archive, Collection, CollectionOptions as Options, Content, Format, Nodes, Order, READER_BYTES,
    Reader, Settings, Shape, Stream, Verify, check, decode_listing, rebuild_chunk_index,
    record_damage, restore_chunks,
};
use onefold_core::{Error, Kind, Result};

use self::files::MemoryFiles;
use crate::reach;

/// Bytes that a verb may give for one input: a short recipe can name a chunk a million times.
const OUT_MAX: u64 = 32 << 20;

/// Entries of a listing that are looked at.
const ENTRIES_MAX: usize = 100_000;

/// Bytes of one change: how, which file, where, and what.
const STEP_BYTES: usize = 14;

/// Most changes.
const STEPS_MAX: usize = 16;

/// A changed archive under `ls`, `get`, `check`, `scrub`, `repair` and `gc`, as their verbs
/// call the library.
pub fn archive(data: &[u8]) {
    all_verbs(&changed(data, ""));
}

/// All verbs that read an archive and, where it could be opened, those that change it.
fn all_verbs(files: &impl Place) {
    if looked_at(files).is_some() {
        reach::noted(healed(files));
        reach::noted(collected(files));
        reach::noted(index_made(files));
        looked_at(files);
    }
}

fn settings() -> Settings {
    Settings {
        memory: READER_BYTES,
        container_bytes: 16 << 10,
        count_slots: 4096,
        log_bytes: 4096,
        log_ahead_bytes: 0,
        ..Settings::default()
    }
}

/// Where an archive lies.
trait Place {
    fn make(&self, format: &Format) -> Result<()>;

    fn open(&self, writes: bool, settings: Settings) -> Result<Archive>;
}

impl Place for Arc<MemoryFiles> {
    fn make(&self, format: &Format) -> Result<()> {
        Archive::create(&**self, format)
    }

    fn open(&self, writes: bool, settings: Settings) -> Result<Archive> {
        Archive::open(self.clone(), writes, settings)
    }
}

impl Place for Arc<Nodes> {
    fn make(&self, format: &Format) -> Result<()> {
        Archive::create_on_nodes(self, format)
    }

    fn open(&self, writes: bool, settings: Settings) -> Result<Archive> {
        Archive::open_on_nodes(self.clone(), writes, settings)
    }
}

fn open(place: &impl Place, writes: bool) -> Result<Arc<Archive>> {
    place.open(writes, settings()).map(Arc::new)
}

/// Everything that only reads.
fn looked_at(files: &impl Place) -> Option<()> {
    let archive = reach::noted(open(files, false))?;
    let mut reader = reach::noted(Reader::new(&archive))?;
    let streams: Vec<Stream> = reader.tables().streams.values().take(16).cloned().collect();
    for stream in &streams {
        if stream.shape == Shape::Tree {
            reach::noted(listed(&mut reader, stream));
        }
        for verify in [Verify::Groups, Verify::Chunks] {
            reach::noted(read(&mut reader, stream, verify));
        }
    }
    for data in [false, true] {
        reach::noted(check(&archive, data, &mut |_, _, _| {}));
    }
    Some(())
}

fn listed(reader: &mut Reader, stream: &Stream) -> Result<()> {
    let (mut held, mut order, mut entries) = (Vec::new(), Order::default(), 0);
    reader.read(&stream.listing, Verify::Groups, &mut |content| {
        if let Content::Bytes(bytes) = content {
            held.extend_from_slice(bytes);
        }
        decode_listing(&mut held, &mut |entry| {
            entries += 1;
            if entries > ENTRIES_MAX {
                Err(Error::new(Kind::Stopped, "enough was seen"))
            } else {
                order.next(&entry)
            }
        })
    })
}

fn read(reader: &mut Reader, stream: &Stream, verify: Verify) -> Result<()> {
    reader.sizes(&stream.recipe)?;
    let mut out = 0u64;
    reader.read(&stream.recipe, verify, &mut |content| {
        if let Content::Bytes(bytes) = content {
            out += bytes.len() as u64;
        }
        if out > OUT_MAX { Err(Error::new(Kind::Stopped, "enough was seen")) } else { Ok(()) }
    })
}

fn healed(files: &impl Place) -> Result<()> {
    let archive = open(files, true)?;
    let report = check(&archive, true, &mut |_, _, _| {})?;
    if !report.rotten.is_empty() {
        record_damage(&archive, &report.rotten)?;
    }
    restore_chunks(&archive, &report.lost, &mut |_, _| {}).map(|_| ())
}

fn collected(files: &impl Place) -> Result<()> {
    let options = Options {
        now: 5_000_000,
        keep_partial: 0,
        trash: 0,
        wait: false,
        reserve_bytes: 4096,
        encode_all: false,
        doubts_clock: false,
    };
    let mut collection = Collection::begin(&open(files, true)?, options)?;
    for _ in 0..1000 {
        if !collection.step()? {
            return Ok(());
        }
    }
    panic!("a collection that never ends");
}

fn index_made(files: &impl Place) -> Result<()> {
    rebuild_chunk_index(&open(files, true)?, &mut |_, _| {}).map(|_| ())
}

/// The good archive that an input begins from, with its changes to the files whose names begin so.
fn changed(data: &[u8], kind: &str) -> Arc<MemoryFiles> {
    let (first, steps) = data.split_first().unwrap_or((&0, &[]));
    let all = good::archives();
    let good = &all[usize::from(*first) % all.len()];
    let files = MemoryFiles::of(good);
    change_files(&files, kind, steps);
    // Most inputs are to get behind the checksums.
    if first & 0x80 == 0 {
        mend::all(&files);
    }
    Arc::new(files)
}

/// Changes files, without those that are empty and only locked.
fn change_files(files: &MemoryFiles, kind: &str, steps: &[u8]) {
    let empty = |name: &str| name.starts_with("lock-") || name.starts_with("epoch-");
    let names: Vec<String> =
        files.all().into_keys().filter(|name| !empty(name) && name.starts_with(kind)).collect();
    if names.is_empty() {
        return;
    }
    for step in steps.chunks_exact(STEP_BYTES).take(STEPS_MAX) {
        let name = &names[usize::from(step[1]) % names.len()];
        let at = u32::from_le_bytes([step[2], step[3], step[4], 0]) as usize;
        files.change(name, |bytes| {
            change(
                bytes,
                step[0],
                at,
                u64::from_le_bytes(std::array::from_fn(|n| step[6 + n])),
                step[5],
            )
        });
    }
}

/// One change of a file.
fn change(bytes: &mut Vec<u8>, how: u8, at: usize, value: u64, other: u8) {
    if bytes.is_empty() {
        return;
    }
    // The beginning of a container, a page or a label is worth more than what lies behind it.
    let at = if how & 8 == 0 {
        at % bytes.len()
    } else {
        (at >> 8) * 4096 % bytes.len() / 4096 * 4096 + (at & 0xff) * 2
    };
    let put = |bytes: &mut Vec<u8>, value: &[u8]| {
        bytes.iter_mut().skip(at).zip(value).for_each(|(byte, value)| *byte = *value);
    };
    match how & 7 {
        0 => put(bytes, &value.to_le_bytes()[..1]),
        1 => put(bytes, &value.to_le_bytes()[..2]),
        2 => put(bytes, &value.to_le_bytes()[..4]),
        3 => put(bytes, &value.to_le_bytes()),
        4 => put(bytes, &vec![value as u8; usize::from(other)]),
        5 => {
            let from = (value as usize) % bytes.len();
            let part = bytes[from..(from + usize::from(other)).min(bytes.len())].to_vec();
            put(bytes, &part);
        }
        6 => {
            let from = (value as usize) % bytes.len();
            let part = bytes[from..(from + usize::from(other)).min(bytes.len())].to_vec();
            let at = at.min(bytes.len());
            bytes.splice(at..at, part);
        }
        _ => bytes.truncate(at.max(1)),
    }
}

/// Archives without a change, and with one in each of their files.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let mut examples = Vec::new();
    for (n, good) in good::archives().iter().enumerate() {
        examples.push(vec![n as u8]);
        for file in 0..good.len() as u8 {
            examples.push([&[n as u8, 3, file, 40, 0, 0, 9][..], &7u64.to_le_bytes()].concat());
        }
    }
    examples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_49_good_archives_are_well_and_mending_changes_nothing() {
        for (n, good) in good::archives().iter().enumerate() {
            let files = changed(&[n as u8], "");
            assert!(files.all() == *good, "archive {n}");
            let archive = open(&files, false).unwrap();
            assert!(
                !archive.tables().streams.is_empty() && !archive.tables().volumes.all().is_empty()
            );
            let report = check(&archive, true, &mut |_, _, _| {}).unwrap();
            assert!(report.is_well() && report.blocks > 0, "{report:?}");
        }
    }

    #[test]
    fn rule_49_what_is_changed_is_believed() {
        // The last stream's bytes, in the snapshot and the log: a checksum that was not mended
        // would say so.
        let mut refused = 0;
        for example in examples() {
            refused += u32::from(open(&changed(&example, ""), false).is_err());
        }
        assert!((refused as usize) < examples().len() / 2, "{refused} of {}", examples().len());
    }
}
