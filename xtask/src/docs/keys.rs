//! The keys of `onefold status --json` and `onefold key list --json`, compared with their page of the reference.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::pages::Page;
use crate::{
    cleanup::Scratch,
    product::{Onefold, path},
};

/// The page.
const PAGE: &str = "docs/reference/json.md";

/// Compares the keys of a store of each engine with the page's tables.
pub(super) fn compare(onefold: &Onefold, pages: &[Page]) -> Result<()> {
    let page = pages.iter().find(|page| page.path.ends_with(PAGE)).context(PAGE)?;
    let parts: Vec<&str> = page.text.split("\n## ").skip(1).collect();
    let scratch = Scratch::new("keys")?;
    for (name, status) in [
        ("A block store", block(onefold, &scratch)?),
        ("An archive", archive(onefold, &scratch)?),
        ("A store of the cluster engine", cluster(onefold, &scratch)?),
        ("`key list`", key_list(onefold, &scratch)?),
    ] {
        let part = parts.iter().find(|part| part.starts_with(name)).context(name)?;
        let (told, mut found) = (documented(part), BTreeSet::new());
        match &status {
            Value::Array(all) => all.iter().for_each(|one| keys(one, String::new(), &mut found)),
            one => keys(one, String::new(), &mut found),
        }
        let missing: Vec<_> = found.difference(&told).collect();
        let gone: Vec<_> = told.difference(&found).collect();
        ensure!(missing.is_empty(), "{name}: {PAGE} does not tell of {missing:?}");
        ensure!(gone.is_empty(), "{name}: {PAGE} tells of {gone:?}, which are not there");
    }
    Ok(())
}

/// The status of a served block store whose volume has everything that a volume may have.
fn block(onefold: &Onefold, scratch: &Scratch) -> Result<Value> {
    let store = scratch.file("disk");
    onefold.create(&store, "64M", &[], &[])?;
    let volume = ["volume", "create", path(&store), "v", "--size", "1M"];
    onefold.verb(volume.into_iter().chain([
        "--no-dedup",
        "0-64K",
        "--limit-iops",
        "1000",
        "--quota",
        "512K",
    ]))?;
    onefold.verb(["snapshot", "create", path(&store), "v@monday"])?;
    cut_off(onefold, scratch, &store)?;
    let witness = scratch.file("witness");
    let mut open = fs::OpenOptions::new();
    let file = open.write(true).create(true).mode(0o700).open(&witness)?;
    (&file).write_all(b"#!/bin/sh\necho none\n")?;
    drop(file);
    let address = format!("unix:{}", scratch.file("d").display());
    let server = onefold.serve(&store, &[address], &["--witness", path(&witness)])?;
    served(onefold, &store)?;
    onefold.verb(["snapshot", "list", path(&store), "--space"])?;
    let status = served(onefold, &store)?;
    server.stop()?;
    Ok(status)
}

/// A snapshot begins to be received, and its stream is cut off.
fn cut_off(onefold: &Onefold, scratch: &Scratch, store: &Path) -> Result<()> {
    let stream = scratch.file("stream");
    onefold.verb(["send", path(store), "v@monday", "--output", path(&stream)])?;
    let bytes = fs::read(&stream)?;
    fs::write(&stream, &bytes[..bytes.len() - 10])?;
    let mut receive = onefold.command(["receive", path(store), "w"]);
    let ended = receive.stdin(File::open(&stream)?).stderr(Stdio::null()).status()?;
    ensure!(!ended.success(), "a stream that was cut off was received");
    Ok(())
}

/// The status, once the server answers verbs: it takes clients' connections a moment earlier.
fn served(onefold: &Onefold, store: &Path) -> Result<Value> {
    for _ in 0..100 {
        let status = onefold.status(store)?;
        if status["server"].is_object() {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("the server of {} does not answer", store.display())
}

/// The status of a served archive, one of whose nodes is lost.
fn archive(onefold: &Onefold, scratch: &Scratch) -> Result<Value> {
    let (store, lost) = (scratch.file("safe"), scratch.file("n4"));
    let nodes: Vec<String> =
        (0..5).map(|n| scratch.file(&format!("n{n}")).display().to_string()).collect();
    let create = ["create", "archive", path(&store), "--nodes", &nodes.join(","), "--code", "3,2"];
    onefold.verb(create)?;
    onefold.verb(["put", path(&store), "passwd", "/etc/passwd"])?;
    onefold.verb(["backup", path(&store), "/etc/passwd", "--set", "passwd"])?;
    onefold.verb(["volume", "create", path(&store), "v", "--size", "1M"])?;
    std::fs::remove_dir_all(lost)?;
    let server = onefold.serve(&store, &[format!("unix:{}", scratch.file("s").display())], &[])?;
    let status = served(onefold, &store)?;
    server.stop()?;
    Ok(status)
}

fn cluster(onefold: &Onefold, scratch: &Scratch) -> Result<Value> {
    let store = scratch.file("pool");
    onefold.verb(["create", "cluster", path(&store)])?;
    onefold.status(&store)
}

/// What `key list` says of a block store and of an archive that have two data keys.
fn key_list(onefold: &Onefold, scratch: &Scratch) -> Result<Value> {
    let (disk, safe, key) = (scratch.file("sealed"), scratch.file("vault"), scratch.file("key"));
    let key = path(&key);
    onefold.verb(["create", "block", path(&disk), "--size", "64M", "--key", key])?;
    onefold.verb(["create", "archive", path(&safe), "--key", key])?;
    onefold.verb(["put", path(&safe), "passwd", "/etc/passwd", "--key", key])?;
    let listed = [&disk, &safe].map(|store| {
        onefold.verb(["key", "rotate", path(store), "--data", "--key", key])?;
        let said = onefold.verb(["key", "list", path(store), "--key", key, "--json"])?;
        serde_json::from_str(&said).context("onefold key list --json")
    });
    Ok(Value::Array(listed.into_iter().collect::<Result<_>>()?))
}

/// The keys in the first column of the tables.
fn documented(part: &str) -> BTreeSet<String> {
    let cells = part.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    cells.flat_map(|cell| cell.split(", ").map(|key| key.trim_matches('`').to_owned())).collect()
}

/// The paths of all values that are no objects and no lists.
fn keys(value: &Value, at: String, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if at.is_empty() { "" } else { "." };
                keys(value, format!("{at}{dot}{name}"), found);
            }
        }
        Value::Array(values) => {
            values.iter().for_each(|value| keys(value, format!("{at}[]"), found));
        }
        _ => {
            found.insert(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths_through_objects_and_lists() {
        let value = serde_json::json!({ "a": 1, "b": { "c": [{ "d": null }, { "e": 2 }] } });
        let mut found = BTreeSet::new();
        keys(&value, String::new(), &mut found);
        assert_eq!(found, documented("x\n| `a`, `b.c[].d` | one |\n| `b.c[].e` | `two` |\n"));
    }
}
