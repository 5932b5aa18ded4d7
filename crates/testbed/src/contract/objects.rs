//! The contract of every [`ObjectStore`], also of those on a real cluster.
//!
//! Names begin with a prefix of the caller's. A check removes the objects that it made.

use std::time::Duration;

use onefold_core::object::{
    Change, Guard, ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart, ReadResult, Refusal,
    Seen, Version, Write,
};

/// A check: its name, and the sentence of what went wrong.
type Check = (&'static str, fn(&Bench<'_>) -> Result<(), String>);

/// All checks.
const CHECKS: [Check; 13] = [
    ("an operation is applied whole or not at all", whole_or_nothing),
    ("creation is exclusive", exclusive),
    ("an absent key compares as empty", absent_key),
    ("guards find a missing object missing", missing),
    ("versions rise and never repeat, not even after removal", versions),
    ("a version that is not the last one is refused", stale_version),
    ("a read sees keys, data and version of one moment", one_moment),
    ("pages of keys follow each other in order", pages),
    ("zeroes read as zeroes and do not lengthen", zeroes),
    ("attributes can be set and compared", attributes),
    ("a pool lists what is in it", listing),
    ("a lock has one holder", locks),
    ("the chunk pool does what its kind says", chunk_pool),
];

/// Runs all checks; the name of each and what it found.
pub fn run(store: &dyn ObjectStore, prefix: &str) -> Vec<(&'static str, Result<(), String>)> {
    CHECKS.iter().map(|(name, check)| (*name, check(&Bench { store, prefix }))).collect()
}

/// As [`run`]; the first failure.
///
/// # Errors
/// A sentence with the name of the check.
pub fn hold(store: &dyn ObjectStore, prefix: &str) -> Result<(), String> {
    run(store, prefix)
        .into_iter()
        .try_for_each(|(name, result)| result.map_err(|what| format!("{name}: {what}")))
}

struct Bench<'a> {
    store: &'a dyn ObjectStore,
    prefix: &'a str,
}

impl Bench<'_> {
    /// An object that is not there yet.
    fn object(&self, name: &str) -> ObjectName {
        let object = ObjectName::metadata(format!("{}{name}", self.prefix));
        self.remove(&object);
        object
    }

    fn remove(&self, object: &ObjectName) {
        let _ = self.write(object, &[], &[Change::Remove]);
    }

    fn write(
        &self,
        object: &ObjectName,
        guards: &[Guard],
        changes: &[Change],
    ) -> Result<Version, Refusal> {
        let op =
            Write { object: object.clone(), guards: guards.to_vec(), changes: changes.to_vec() };
        self.store.write(&[op]).pop().unwrap_or(Err(Refusal::Unknown))
    }

    fn read(&self, object: &ObjectName, parts: &[ReadPart]) -> Result<ReadResult, Refusal> {
        self.store
            .read(&[Read { object: object.clone(), parts: parts.to_vec() }])
            .pop()
            .unwrap_or(Err(Refusal::Unknown))
    }
}

fn ok<T>(result: Result<T, Refusal>) -> Result<T, String> {
    result.map_err(|refusal| format!("refused: {refusal}"))
}

fn refused<T>(result: Result<T, Refusal>, by: &Refusal) -> Result<(), String> {
    match result {
        Err(refusal) if refusal.is(by) => Ok(()),
        Err(refusal) => Err(format!("refused by \"{refusal}\", not by \"{by}\"")),
        Ok(_) => Err(format!("taken, and not refused by \"{by}\"")),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}")) }
}

fn set(key: &[u8], value: &[u8]) -> Change {
    Change::SetOmap(vec![(key.to_vec(), value.to_vec())])
}

fn whole_or_nothing(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("whole");
    ok(bench.write(&object, &[], &[Change::Write(0, b"one".to_vec()), set(b"a", b"1")]))?;
    let guards =
        [Guard::Omap(b"a".to_vec(), b"1".to_vec()), Guard::Omap(b"b".to_vec(), b"9".to_vec())];
    refused(
        bench.write(&object, &guards, &[Change::Write(0, b"two".to_vec()), set(b"a", b"2")]),
        &Refusal::Mismatch,
    )?;
    let answer =
        ok(bench.read(&object, &[ReadPart::Data(0, 10), ReadPart::Keys(vec![b"a".to_vec()])]))?;
    same(&answer.data(0), &&b"one"[..])?;
    same(&answer.pairs(1).0, &&[(b"a".to_vec(), b"1".to_vec())][..])?;
    ok(bench.write(
        &object,
        &guards[..1],
        &[Change::Write(0, b"two".to_vec()), set(b"a", b"2"), set(b"b", b"3")],
    ))?;
    let answer = ok(bench.read(&object, &[ReadPart::Data(0, 10)]))?;
    same(&answer.data(0), &&b"two"[..])?;
    bench.remove(&object);
    Ok(())
}

fn exclusive(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("exclusive");
    let create =
        || bench.write(&object, &[Guard::Absent], &[Change::Full(b"x".to_vec()), set(b"r", b"")]);
    ok(create())?;
    refused(create(), &Refusal::Exists)?;
    let answer = ok(bench.read(&object, &[ReadPart::Page(vec![], 10)]))?;
    same(&answer.pairs(0).0, &&[(b"r".to_vec(), vec![])][..])?;
    bench.remove(&object);
    ok(create())?;
    bench.remove(&object);
    Ok(())
}

fn absent_key(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("absent");
    ok(bench.write(&object, &[Guard::Absent], &[]))?;
    ok(bench.write(&object, &[Guard::Omap(b"k".to_vec(), vec![])], &[set(b"k", b"v")]))?;
    refused(
        bench.write(&object, &[Guard::Omap(b"k".to_vec(), vec![])], &[set(b"k", b"w")]),
        &Refusal::Mismatch,
    )?;
    ok(bench.write(
        &object,
        &[Guard::Omap(b"k".to_vec(), b"v".to_vec())],
        &[Change::DropOmap(vec![b"k".to_vec(), b"none".to_vec()])],
    ))?;
    ok(bench.write(&object, &[Guard::Omap(b"k".to_vec(), vec![])], &[]))?;
    bench.remove(&object);
    Ok(())
}

fn missing(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("missing");
    for guard in [Guard::Exists, Guard::Version(Version(1)), Guard::Omap(b"k".to_vec(), vec![])] {
        refused(bench.write(&object, &[guard], &[set(b"k", b"v")]), &Refusal::Missing)?;
    }
    refused(bench.write(&object, &[], &[Change::Remove]), &Refusal::Missing)?;
    refused(bench.read(&object, &[ReadPart::Stat]), &Refusal::Missing)?;
    ok(bench.write(&object, &[], &[set(b"k", b"v")]))?;
    ok(bench.read(&object, &[ReadPart::Stat]))?;
    bench.remove(&object);
    Ok(())
}

fn versions(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("versions");
    let mut last = None;
    for round in 0..6 {
        if round % 2 == 0 {
            bench.remove(&object);
        }
        let written = ok(bench.write(&object, &[], &[set(b"k", &[round])]))?;
        let read = ok(bench.read(&object, &[ReadPart::Stat]))?.version;
        same(&read, &written)?;
        if last.is_some_and(|last| written <= last) {
            return Err(format!("{written:?} follows {last:?}"));
        }
        last = Some(written);
    }
    bench.remove(&object);
    Ok(())
}

fn stale_version(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("stale");
    let first = ok(bench.write(&object, &[], &[set(b"k", b"1")]))?;
    let second = ok(bench.write(&object, &[Guard::Version(first)], &[set(b"k", b"2")]))?;
    refused(bench.write(&object, &[Guard::Version(first)], &[Change::Remove]), &Refusal::Mismatch)?;
    refused(
        bench.write(&object, &[Guard::Version(Version(second.0 + 1000))], &[Change::Remove]),
        &Refusal::Mismatch,
    )?;
    ok(bench.write(&object, &[Guard::Version(second)], &[Change::Remove]))?;
    refused(bench.read(&object, &[ReadPart::Stat]), &Refusal::Missing)
}

fn one_moment(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("moment");
    let version = ok(bench.write(
        &object,
        &[],
        &[Change::Write(4096, vec![7; 100]), set(b"a", b"1"), set(b"b", b"2")],
    ))?;
    let parts = [
        ReadPart::Data(4000, 196),
        ReadPart::Data(4190, 100),
        ReadPart::Data(9000, 10),
        ReadPart::Page(b"a".to_vec(), 5),
        ReadPart::Stat,
    ];
    let answer = ok(bench.read(&object, &parts))?;
    same(&answer.version, &version)?;
    same(&answer.data(0), &&[&[0; 96][..], &[7; 100][..]].concat()[..])?;
    same(&answer.data(1), &&[7; 6][..])?;
    same(&answer.data(2), &&[][..])?;
    same(&answer.pairs(3), &(&[(b"b".to_vec(), b"2".to_vec())][..], false))?;
    if !matches!(answer.seen[4], Seen::Stat { bytes: 4196, .. }) {
        return Err(format!("{:?} for an object of 4196 bytes", answer.seen[4]));
    }
    bench.remove(&object);
    Ok(())
}

fn pages(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("pages");
    let keys: Vec<Vec<u8>> = (1..=60u8).map(|n| vec![b'k', n, 0x80 + n]).collect();
    ok(bench.write(
        &object,
        &[],
        &[Change::SetOmap(keys.iter().map(|key| (key.clone(), vec![1])).collect())],
    ))?;
    let (mut found, mut after) = (Vec::new(), Vec::new());
    loop {
        let answer = ok(bench.read(&object, &[ReadPart::Page(after.clone(), 7)]))?;
        let (pairs, more) = answer.pairs(0);
        found.extend(pairs.iter().map(|(key, _)| key.clone()));
        if pairs.len() > 7 {
            return Err(format!("{} keys in a page of 7", pairs.len()));
        }
        match pairs.last() {
            Some((key, _)) if more => after.clone_from(key),
            _ => break,
        }
    }
    same(&found, &keys)?;
    bench.remove(&object);
    Ok(())
}

fn zeroes(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("zeroes");
    ok(bench.write(&object, &[], &[Change::Write(0, vec![5; 12288])]))?;
    ok(bench.write(&object, &[], &[Change::Zero(4096, 4096), Change::Zero(8192, 1)]))?;
    let answer = ok(bench.read(&object, &[ReadPart::Data(0, 99999)]))?;
    same(&answer.data(0), &&[&[5; 4096][..], &[0; 4097][..], &[5; 4095][..]].concat()[..])?;
    ok(bench.write(&object, &[], &[Change::Full(vec![6; 10])]))?;
    same(&ok(bench.read(&object, &[ReadPart::Data(0, 99999)]))?.data(0), &&[6; 10][..])?;
    bench.remove(&object);
    Ok(())
}

fn attributes(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("attributes");
    ok(bench.write(&object, &[], &[Change::SetXattr("h", vec![1, 0, 2])]))?;
    let answer = ok(bench.read(&object, &[ReadPart::Xattr("h"), ReadPart::Xattr("none")]))?;
    same(&(answer.xattr(0), answer.xattr(1)), &(Some(&[1, 0, 2][..]), None))?;
    ok(bench.write(
        &object,
        &[Guard::Xattr("h", vec![1, 0, 2])],
        &[Change::SetXattr("h", vec![3])],
    ))?;
    refused(bench.write(&object, &[Guard::Xattr("h", vec![1, 0, 2])], &[]), &Refusal::Mismatch)?;
    bench.remove(&object);
    Ok(())
}

fn listing(bench: &Bench<'_>) -> Result<(), String> {
    let objects: Vec<ObjectName> = (0..9).map(|n| bench.object(&format!("listed{n}"))).collect();
    for object in &objects {
        ok(bench.write(object, &[], &[set(b"k", b"v")]))?;
    }
    for later in [false, true] {
        let (mut found, mut from) = (Vec::new(), None);
        loop {
            let page = ok(bench.store.list(Pool::Metadata, from.as_deref(), 4))?;
            let listed = format!("{}listed", bench.prefix);
            found.extend(page.names.into_iter().filter(|name| name.starts_with(&listed)));
            // A session that comes later takes the listing up in these words.
            let place = |next: &String| bench.store.keep_place(Pool::Metadata, next);
            from = if later { page.next.as_ref().and_then(place) } else { page.next.clone() };
            if from.is_none() {
                if page.next.is_some() {
                    return Err("the place of a listing is not kept".into());
                }
                break;
            }
        }
        found.sort();
        found.dedup();
        same(&found, &objects.iter().map(|object| object.name.clone()).collect())?;
    }
    objects.iter().for_each(|object| bench.remove(object));
    Ok(())
}

fn locks(bench: &Bench<'_>) -> Result<(), String> {
    let object = bench.object("locked");
    let store = bench.store;
    ok(store.lock(&object, "owner", "a", None))?;
    ok(store.lock(&object, "owner", "a", Some(Duration::from_secs(60))))?;
    refused(store.lock(&object, "owner", "b", None), &Refusal::Busy)?;
    let holder = ok(store.holder(&object, "owner"))?.ok_or("nobody holds a lock that was taken")?;
    same(&(holder.cookie.as_str(), &holder.identity), &("a", &store.identity()))?;
    ok(store.unlock(&object, "owner", "a"))?;
    same(&ok(store.holder(&object, "owner"))?, &None)?;
    ok(store.lock(&object, "owner", "b", None))?;
    let holder = ok(store.holder(&object, "owner"))?.ok_or("nobody holds a lock that was taken")?;
    ok(store.break_lock(&object, "owner", &holder))?;
    ok(store.lock(&object, "owner", "c", None))?;
    ok(store.break_lock(&object, "owner", &holder))?;
    refused(store.lock(&object, "owner", "b", None), &Refusal::Busy)?;
    ok(store.unlock(&object, "owner", "c"))?;
    bench.remove(&object);
    Ok(())
}

fn chunk_pool(bench: &Bench<'_>) -> Result<(), String> {
    let object = ObjectName::chunk(format!("{}chunk", bench.prefix));
    bench.remove(&object);
    ok(bench.write(
        &object,
        &[Guard::Absent],
        &[Change::Full(vec![9; 5000]), Change::SetXattr("h", vec![1])],
    ))?;
    let answer = ok(bench.read(&object, &[ReadPart::Data(0, 9999), ReadPart::Xattr("h")]))?;
    same(&answer.data(0), &&[9; 5000][..])?;
    let keys = bench.write(&object, &[Guard::Exists], &[set(b"k", b"v")]);
    let page = bench.read(&object, &[ReadPart::Page(vec![], 5)]);
    match bench.store.kind(Pool::Chunks) {
        PoolKind::Replicated => {
            ok(keys)?;
            ok(page)?;
        }
        PoolKind::Erasure => {
            refused(keys, &Refusal::Unsupported)?;
            refused(page, &Refusal::Unsupported)?;
        }
    }
    let version = ok(bench.read(&object, &[ReadPart::Stat]))?.version;
    let later = ok(bench.write(&object, &[], &[Change::Full(vec![8; 10])]))?;
    refused(
        bench.write(&object, &[Guard::Version(version)], &[Change::Remove]),
        &Refusal::Mismatch,
    )?;
    ok(bench.write(&object, &[Guard::Version(later)], &[Change::Remove]))?;
    refused(bench.read(&object, &[ReadPart::Stat]), &Refusal::Missing)?;
    let again = ok(bench.write(&object, &[Guard::Absent], &[Change::Full(vec![7; 10])]))?;
    if again <= later {
        return Err(format!("{again:?} follows {later:?} after a removal"));
    }
    bench.remove(&object);
    Ok(())
}
