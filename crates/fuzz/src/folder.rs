//! A folder of the cluster engine whose tables somebody else wrote: any bytes of the file of
//! `redb`, under a look and under an owner.
//!
//! An input is a list of changes to the file of a good folder.

use std::{fs, path::Path, sync::OnceLock};

use onefold_backend::EmbeddedStore;
use onefold_core::{
    Result,
    object::{Change, ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart, Refusal, Write},
};

use crate::reach;

/// Bytes of one change: where, how many, what.
const STEP_BYTES: usize = 12;

/// Most changes.
const STEPS_MAX: usize = 12;

/// Objects of the good folder, and those that are read of a changed one.
const OBJECTS: usize = 40;

const TABLES: &str = "objects.redb";
const DATA: &str = "data";

/// The files of a good folder: tables and data.
fn good() -> &'static (Vec<u8>, Vec<u8>) {
    static GOOD: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    GOOD.get_or_init(|| match try_good() {
        Ok(files) => files,
        Err(error) => panic!("the example folder can't be made: {error}"),
    })
}

fn try_good() -> Result<(Vec<u8>, Vec<u8>)> {
    let folder = tempfile::tempdir().map_err(|e| onefold_core::Error::from_io("no folder", e))?;
    let at = folder.path().join("store");
    let store = EmbeddedStore::create(&at, PoolKind::Replicated)?;
    let ops: Vec<Write> = (0..OBJECTS)
        .map(|n| {
            let changes = vec![
                Change::Full(vec![n as u8; n * 700]),
                Change::SetXattr("h", vec![n as u8; 20]),
                Change::SetOmap(
                    (0..n as u8 % 7).map(|key| (vec![key; 9], vec![key; 30])).collect(),
                ),
            ];
            Write { object: name(n), guards: Vec::new(), changes }
        })
        .collect();
    for result in store.session().write(&ops) {
        result.map_err(|refusal| {
            onefold_core::Error::new(onefold_core::Kind::Io, format!("{refusal:?}"))
        })?;
    }
    drop(store);
    let read = |file: &str| {
        fs::read(at.join(file)).map_err(|e| onefold_core::Error::from_io("no file", e))
    };
    Ok((read(TABLES)?, read(DATA)?))
}

fn name(n: usize) -> ObjectName {
    ObjectName::metadata(format!("object {n}"))
}

/// A folder with changed tables.
pub fn folder(data: &[u8]) {
    let (tables, blocks) = good();
    let mut tables = tables.clone();
    for step in data.chunks_exact(STEP_BYTES).take(STEPS_MAX) {
        // Most bytes of the file are free pages: every second change comes near its beginning.
        let at = u32::from_le_bytes([step[0], step[1], step[2], step[3] & 0x7f]) as usize
            % if step[3] & 0x80 == 0 { tables.len() } else { 1024 };
        let bytes = 1 + usize::from(step[4]) % (STEP_BYTES - 5);
        tables
            .iter_mut()
            .skip(at)
            .zip(&step[5..5 + bytes])
            .for_each(|(byte, value)| *byte = *value);
    }
    if data.len() % STEP_BYTES == 1 {
        tables.truncate(tables.len() * usize::from(data[data.len() - 1]) / 256);
    }
    let Ok(folder) = tempfile::tempdir() else { return };
    let well = fs::write(folder.path().join(TABLES), tables)
        .and_then(|()| fs::write(folder.path().join(DATA), blocks));
    if well.is_ok() {
        used(folder.path());
    }
}

fn used(folder: &Path) {
    if let Some(store) = reach::noted(EmbeddedStore::look(folder)) {
        read(&store);
    }
    if let Some(store) = reach::noted(EmbeddedStore::open(folder)) {
        read(&store);
        let change = Write {
            object: name(3),
            guards: Vec::new(),
            changes: vec![Change::Full(vec![1; 9000])],
        };
        store.session().write(&[change]).into_iter().for_each(noted);
        read(&store);
    }
}

fn read(store: &EmbeddedStore) {
    let session = store.session();
    let page = session.list(Pool::Metadata, None, OBJECTS);
    let names = page.as_ref().map(|page| page.names.clone()).unwrap_or_default();
    noted(page);
    let parts = vec![
        ReadPart::Stat,
        ReadPart::Xattr("h"),
        ReadPart::Data(0, 1 << 20),
        ReadPart::Page(Vec::new(), 100),
    ];
    for name in names {
        let read = Read { object: ObjectName::metadata(name), parts: parts.clone() };
        session.read(&[read]).into_iter().for_each(noted);
    }
    noted(session.space());
}

fn noted<T>(result: Result<T, Refusal>) {
    match result {
        Err(Refusal::Failed(error)) => reach::refused(&error),
        _ => reach::good(),
    }
}

/// As it is, and with a change at places all over the file.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let places = (0..32u32).map(|n| n * (good().0.len() as u32 / 32));
    let changed = places.map(|at| [&at.to_le_bytes()[..], &[3, 1, 0xff, 7, 0, 0, 0, 0]].concat());
    std::iter::once(Vec::new()).chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_49_a_good_folder_is_taken_for_good() {
        reach::taken();
        folder(&[]);
        let reached = reach::taken();
        assert!(reached.good > OBJECTS as u64 && reached.refused.is_empty(), "{reached:?}");
    }

    #[test]
    fn rule_49_no_change_of_the_tables_is_a_panic() {
        examples().iter().for_each(|example| folder(example));
    }
}
