//! The contract of every [`Files`] that one process has for itself.
#![allow(clippy::unwrap_used, reason = "a check fails by panicking")]

use onefold_core::{File, Files, Hold, Kind, Result};

/// Runs all checks in a directory that is empty, and leaves it so.
///
/// # Panics
/// When the files break their contract.
pub fn hold(files: &dyn Files) {
    names(files);
    contents(files);
    large(files);
    locks(files);
    assert!(files.names().unwrap().is_empty());
}

fn kind<T>(result: Result<T>) -> Option<Kind> {
    result.err().map(|error| error.kind())
}

fn names(files: &dyn Files) {
    for name in ["b", "c", "a"] {
        files.create(name).unwrap();
    }
    files.sync_names().unwrap();
    assert_eq!(files.names().unwrap(), ["a", "b", "c"]);
    assert_eq!(kind(files.create("a")), Some(Kind::Exists));
    let held = files.open("a").unwrap();
    held.write_at(0, b"held").unwrap();
    for name in ["b", "c", "a"] {
        files.remove(name).unwrap();
    }
    assert_eq!(kind(files.open("a")), Some(Kind::NotFound));
    assert_eq!(kind(files.remove("a")), Some(Kind::NotFound));
    assert_eq!(read(&*held, 0, 10), b"held", "who has a file open can use it after its removal");
}

fn read(file: &dyn File, at: u64, bytes: usize) -> Vec<u8> {
    let mut into = vec![0xee; bytes];
    let n = file.read_at(at, &mut into).unwrap();
    into.truncate(n);
    into
}

fn contents(files: &dyn Files) {
    let file = files.create("a").unwrap();
    file.reserve(0, 1 << 20).unwrap();
    assert_eq!(file.bytes().unwrap(), 0, "reserved space is no length");
    file.write_at(10, &[7; 100_000]).unwrap();
    assert_eq!(file.bytes().unwrap(), 100_010);
    assert_eq!(read(&*file, 0, 12), [[0; 10].as_slice(), &[7; 2]].concat());
    assert_eq!(read(&*file, 100_000, 20), [7; 10]);
    assert!(read(&*file, 200_000, 20).is_empty());
    file.punch(4096, 8192).unwrap();
    assert_eq!(read(&*file, 4095, 8194), [&[7][..], &[0; 8192], &[7]].concat());
    file.punch(98_304, 8192).unwrap();
    assert_eq!(file.bytes().unwrap(), 100_010, "a punched range changes no length");
    file.set_bytes(5000).unwrap();
    file.set_bytes(6000).unwrap();
    assert_eq!(read(&*file, 4000, 3000), [vec![7; 96], vec![0; 1904]].concat());
    file.write_parts(6000, &[b"one", b"", b"two"]).unwrap();
    file.sync().unwrap();
    let again = files.open("a").unwrap();
    assert_eq!(read(&*again, 6000, 10), b"onetwo");
    assert!(again.keeps(6000, b"onetwo").unwrap());
    assert!(!again.keeps(6000, b"onetw?").unwrap());
    files.remove("a").unwrap();
}

/// Large writes, and what may go past the system's cache, are read as all others.
fn large(files: &dyn Files) {
    files.create("a").unwrap();
    let (file, other) = (files.open_large("a").unwrap(), files.open("a").unwrap());
    file.reserve(0, 1 << 20).unwrap();
    assert!(read(&*other, 8192, 100).is_empty());
    file.write_parts(8192, &[&[1; 100], b"", &[2; 200_000]]).unwrap();
    let begun = file.clone().begin_sync();
    file.write_parts(8192 + 204_800, &[&[3; 9_000_000]]).unwrap();
    begun.wait().unwrap();
    file.write_at(5, b"short").unwrap();
    assert_eq!(read(&*other, 0, 12), b"\0\0\0\0\0short\0\0");
    assert_eq!(read(&*other, 8190, 104), [&[0; 2][..], &[1; 100], &[2; 2]].concat());
    let rest = read(&*other, 8192 + 200_090, 5000);
    assert_eq!(rest, [&[2; 10][..], &[0; 4700], &[3; 290]].concat());
    assert_eq!(read(&*other, 8192 + 204_800 + 8_999_990, 10), [3; 10]);
    // Where nothing is aligned it is written all the same.
    file.write_parts(8193, &[&[4; 300_000]]).unwrap();
    assert_eq!(read(&*other, 8192, 3), [1, 4, 4]);
    file.clone().begin_sync().wait().unwrap();
    file.sync().unwrap();
    files.remove("a").unwrap();
}

fn locks(files: &dyn Files) {
    files.create("a").unwrap();
    let one = files.lock("a", Hold::Shared, false).unwrap();
    let two = files.lock("a", Hold::Shared, false).unwrap();
    assert_eq!(kind(files.lock("a", Hold::Alone, false)), Some(Kind::Busy));
    drop((one, two));
    let alone = files.lock("a", Hold::Alone, false).unwrap();
    assert_eq!(kind(files.lock("a", Hold::Shared, false)), Some(Kind::Busy));
    drop(alone);
    files.lock("a", Hold::Shared, true).unwrap();
    files.remove("a").unwrap();
}
