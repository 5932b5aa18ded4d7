//! A second archive by `onefold copy`: what comes over and what does not, keys, damage, other places.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::Path,
    time::Duration,
};

use serde_json::Value;
use support::{Desk, noise};

fn plant(root: &Path) {
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    fs::write(root.join("a"), b"hello").unwrap();
    fs::write(root.join("big"), noise(3, 3_000_000)).unwrap();
    fs::hard_link(root.join("big"), root.join("sub/again")).unwrap();
    symlink("../a", root.join("sub/link")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(20 << 20).unwrap();
    sparse.write_all_at(b"x", 7 << 20).unwrap();
    for n in 0..300 {
        fs::write(root.join(format!("sub/deep/{n:03}")), format!("file {n}")).unwrap();
    }
}

/// The entries of a tree, by path: mode, time, inodes that are one, and content.
fn listed(root: &Path) -> BTreeMap<String, (u32, i64, u64, Vec<u8>)> {
    let (mut all, mut wanted) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = wanted.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let content = if metadata.is_dir() {
            wanted.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if metadata.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else {
            fs::read(&path).unwrap()
        };
        let links = if metadata.is_dir() { 0 } else { metadata.nlink() };
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        all.insert(name, (metadata.mode(), metadata.mtime_nsec(), links, content));
    }
    all
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn copy(desk: &Desk, arguments: &str) -> Value {
    json(&desk.ok(&format!("copy {arguments} --json")))
}

/// What snapshots of an archive say of themselves, but for what they are made of.
fn told(desk: &Desk, archive: &str) -> Vec<Value> {
    let mut all = json(&desk.ok(&format!("snapshots {archive} --json")));
    let all = all.as_array_mut().unwrap();
    for one in all.iter_mut() {
        for key in ["added_bytes", "parent", "copied", "domain", "erased"] {
            one.as_object_mut().unwrap().remove(key);
        }
    }
    all.clone()
}

/// An archive `a` with two snapshots of a tree, of which one file changed between them.
fn desk_with_two() -> Desk {
    let desk = Desk::new();
    desk.ok("create archive a --no-encryption");
    plant(&desk.path("tree"));
    desk.ok("backup a tree --set web --tag nightly");
    fs::write(desk.path("tree/a"), b"changed").unwrap();
    desk.ok("backup a tree --set web");
    desk
}

fn restored(desk: &Desk, archive: &str, snapshot: &str, out: &str) -> std::path::PathBuf {
    desk.ok(&format!("restore {archive} {snapshot} -C {out}"));
    desk.path(out).join(desk.path("tree").strip_prefix("/").unwrap())
}

#[test]
fn a_second_archive_has_what_the_first_one_has() {
    let desk = desk_with_two();
    desk.ok("create archive b --no-encryption");
    let would = copy(&desk, "a b --dry-run");
    assert_eq!(would["wanted"].as_array().unwrap().len(), 2);
    assert!(told(&desk, "b").is_empty());
    let done = copy(&desk, "a b");
    assert_eq!((done["copied"].as_array().unwrap().len(), done["present"].as_u64()), (2, Some(0)));
    // Of the second one only the file that changed is read.
    assert_eq!(done["copied"][1]["read_bytes"], 7);
    assert_eq!(told(&desk, "a"), told(&desk, "b"));
    for (archive, copied) in [("a", false), ("b", true)] {
        let all = json(&desk.ok(&format!("snapshots {archive} --json")));
        assert!(all.as_array().unwrap().iter().all(|one| one["copied"] == copied), "{all}");
    }
    assert_eq!(listed(&desk.path("tree")), listed(&restored(&desk, "b", "web", "out")));
    desk.ok("check b");
    desk.ok("scrub b");

    // Nothing is new.
    let done = copy(&desk, "a b");
    assert_eq!((done["copied"].as_array().unwrap().len(), done["present"].as_u64()), (0, Some(2)));
    assert!(desk.ok("copy a b").contains("0 snapshots copied, 2 there before"));

    // What was forgotten in the second archive does not come back, and what is new is copied.
    desk.ok("forget b web~1");
    desk.ok("gc b --trash 0");
    fs::write(desk.path("tree/new"), b"more").unwrap();
    desk.ok("backup a tree --set web");
    let said = desk.ok("copy a b");
    assert!(said.contains("1 snapshot copied, 1 there before"), "{said}");
    assert!(said.contains("1 not copied that FROM lists before"), "{said}");
    // It is told that it stands behind a newer one, unless both are of one second.
    let said = desk.run("copy a b --all --json");
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert_eq!(json(&said.out)["copied"].as_array().unwrap().len(), 1);
    desk.ok("check b");
}

#[test]
fn archives_of_one_secret_read_only_missing_chunks() {
    let desk = desk_with_two();
    desk.ok("create archive b --no-encryption");
    desk.ok("create archive c --like a");
    desk.fails("create archive d --like a --chunking static:4K", 2, &["--chunking"]);
    for to in ["b", "c"] {
        desk.ok(&format!("copy a {to}"));
    }
    let big = fs::File::options().write(true).open(desk.path("tree/big")).unwrap();
    big.write_all_at(b"other", 1_500_000).unwrap();
    desk.ok("backup a tree --set web");
    let read =
        |to: &str| copy(&desk, &format!("a {to}"))["copied"][0]["read_bytes"].as_u64().unwrap();
    let (by_file, by_chunk) = (read("b"), read("c"));
    assert!(by_file >= 3_000_000 && by_chunk < 150_000, "{by_file}, {by_chunk}");
    for (n, to) in ["b", "c"].iter().enumerate() {
        let out = restored(&desk, to, "web", &format!("out{n}"));
        assert_eq!(listed(&desk.path("tree")), listed(&out));
        desk.ok(&format!("check {to}"));
    }
}

#[test]
fn a_snapshot_that_is_damaged_is_left_out_and_named() {
    let desk = Desk::new();
    desk.ok("create archive a --no-encryption --compress none");
    fs::create_dir(desk.path("tree")).unwrap();
    let file = desk.path("tree/file");
    let mut ids = Vec::new();
    for n in 1..=3 {
        fs::write(&file, noise(n, 400_000)).unwrap();
        ids.push(
            json(&desk.ok("backup a tree --set web --json"))["id"].as_str().unwrap().to_owned(),
        );
    }
    desk.ok("create archive b --no-encryption");
    // A byte of the second one's content.
    let wanted = noise(2, 400_000);
    let segments = fs::read_dir(desk.path("a")).unwrap().map(|entry| entry.unwrap().path());
    let mut rotten = 0;
    for segment in segments.filter(|path| path.is_file()) {
        let bytes = fs::read(&segment).unwrap();
        let at = bytes.windows(64).position(|part| part == &wanted[200_000..200_064]);
        if let Some(at) = at {
            support::overwrite(&segment, at as u64, &[bytes[at] ^ 1]);
            rotten += 1;
        }
    }
    assert_eq!(rotten, 1);
    let said = desk.run("copy a b");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(said.err.contains(&ids[1][..8]) && said.err.contains("is not copied"), "{said:?}");
    let there: Vec<Value> = told(&desk, "b").iter().map(|one| one["id"].clone()).collect();
    assert_eq!(there, [ids[0].as_str(), ids[2].as_str()]);
    desk.ok("check b");
    // It is older than what was copied, and is copied by its name alone.
    assert!(desk.ok("copy a b").contains("1 not copied"));
    let said = desk.run(&format!("copy a b {}", ids[1]));
    assert_eq!(said.status.code(), Some(3), "{said:?}");
}

#[test]
fn keys_of_both_archives() {
    let desk = desk_with_two();
    fs::write(desk.path("letter"), b"dear all").unwrap();
    desk.ok("put a letter letter");
    desk.ok("create archive s --key key");
    desk.ok("create archive t --key other");
    desk.ok("create archive p --no-encryption");
    // To an encrypted one, whose key says nothing of the first.
    desk.ok("copy a s --key key --from-key none");
    assert_eq!(json(&desk.ok("snapshots s --key key --json")).as_array().unwrap().len(), 2);
    desk.fails("copy a s --key key", 1, &["a", "not encrypted"]);
    // Between two with keys of their own.
    desk.ok("copy s t --key other --from-key key");
    assert_eq!(json(&desk.ok("snapshots t --key other --json")).as_array().unwrap().len(), 2);
    desk.ok("check t --key other");
    // To one that everybody reads, on purpose alone.
    desk.fails("copy s p --from-key key", 1, &["s is encrypted", "--decrypt"]);
    desk.ok("copy s p --from-key key --decrypt");
    assert_eq!(listed(&desk.path("tree")), listed(&restored(&desk, "p", "web", "out")));
    desk.fails("create archive x --like s --key key", 2, &["--like"]);
    desk.fails("create archive x --like a --key key", 2, &["--like"]);
}

#[test]
fn streams_are_copied_where_that_is_asked_for() {
    let desk = Desk::new();
    desk.ok("create archive a --no-encryption");
    desk.ok("create archive b --no-encryption");
    fs::write(desk.path("image"), noise(1, 1_000_000)).unwrap();
    fs::write(desk.path("letter"), b"dear all").unwrap();
    desk.ok("put a image image");
    desk.ok("put a letter letter");
    assert!(desk.ok("copy a b").contains("--streams copies 2 streams, too"));
    assert_eq!(copy(&desk, "a b --streams")["streams"].as_array().unwrap().len(), 2);
    desk.ok("get b image --output back");
    assert_eq!(fs::read(desk.path("back")).unwrap(), noise(1, 1_000_000));
    assert_eq!(copy(&desk, "a b --streams")["streams_present"], 2);
    // What the second archive has is never replaced.
    fs::write(desk.path("letter"), b"dear others").unwrap();
    desk.ok("put a letter letter");
    desk.fails("copy a b --streams", 3, &["'letter'", "onefold mv"]);
    desk.ok("get b letter --output letter.back");
    assert_eq!(fs::read(desk.path("letter.back")).unwrap(), b"dear all");
}

#[test]
fn archives_elsewhere_are_copied_from_and_to() {
    let desk = Desk::new().by_ssh("ssh", "exec sh -c \"$last\"");
    desk.ok("create archive a --no-encryption");
    plant(&desk.path("tree"));
    desk.ok("backup a tree --set web");
    let far = format!("ssh://second{}", desk.path("far").display());
    desk.ok(&format!("create archive {far} --no-encryption"));
    desk.ok("create archive bucket:objects --no-encryption");
    desk.ok("create archive back --no-encryption");
    desk.ok(&format!("copy a {far}"));
    desk.ok(&format!("copy {far} bucket:objects"));
    desk.ok("copy bucket:objects back");
    assert_eq!(told(&desk, "a"), told(&desk, "back"));
    assert_eq!(listed(&desk.path("tree")), listed(&restored(&desk, "back", "web", "out")));
}

#[test]
fn a_set_with_backups_of_its_own_in_the_second_archive_is_told_of() {
    let desk = desk_with_two();
    desk.ok("create archive b --no-encryption");
    desk.ok("copy a b");
    desk.ok("backup a tree --set web");
    // The times of snapshots are whole seconds: this one ends no earlier.
    desk.ok("backup b tree --set web");
    let said = desk.run("copy a b");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(said.err.contains("TO has a snapshot of that set"), "{said:?}");
    assert_eq!(told(&desk, "b").len(), 3);
    // It says so until somebody decides.
    assert_eq!(desk.run("copy a b").status.code(), Some(3));
    // The copy stands behind one that is newer, unless both are of one second.
    assert_eq!(desk.run("copy a b --all").status.code(), Some(0));
    assert_eq!(told(&desk, "b").len(), 4);
}

#[test]
fn an_old_snapshot_that_is_copied_late_is_told_and_dates_name_the_newest() {
    let desk = Desk::new();
    desk.ok("create archive a --no-encryption");
    fs::create_dir(desk.path("tree")).unwrap();
    let backup = |content: &[u8]| {
        fs::write(desk.path("tree/file"), content).unwrap();
        json(&desk.ok("backup a tree --set web --json"))
    };
    let old = backup(b"old");
    // The times of snapshots are whole seconds.
    while backup(b"new")["ended"] == old["ended"] {}
    desk.ok("create archive b --no-encryption");
    desk.ok("copy a b web");
    let id = old["id"].as_str().unwrap();
    let said = desk.run(&format!("copy a b {id}"));
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(said.err.contains("TO has newer snapshots of 'web'"), "{said:?}");
    let out = restored(&desk, "b", "web@2099-01-01", "out");
    assert_eq!(fs::read(out.join("file")).unwrap(), b"new");
    desk.ok(&format!("forget b {id}"));
    let said = desk.ok(&format!("copy a b {id}"));
    assert!(said.contains("1 in the trash of TO") && said.contains("onefold undelete"), "{said}");
    assert_eq!(copy(&desk, &format!("a b {id}"))["present_forgotten"], 1);
}

#[test]
fn what_can_t_be_a_copy_is_refused() {
    let desk = desk_with_two();
    desk.fails("copy a a", 1, &["one archive"]);
    desk.fails("copy a missing", 1, &["missing"]);
    desk.ok("create block c --size 64M --preallocate none");
    desk.fails("copy a c", 1, &["block store"]);
    desk.ok("create archive b --no-encryption");
    desk.fails("copy a b none", 1, &["there is no snapshot 'none'"]);
    desk.fails("copy a b web --set web", 2, &["--set"]);
    desk.ok("copy a b web~1");
    assert_eq!(told(&desk, "b").len(), 1);
}

#[test]
fn a_server_stores_copies_and_one_that_only_adds_refuses_them() {
    let desk = desk_with_two();
    desk.ok("create archive b --no-encryption");
    let serving = desk.serve("b --nbd unix:b.sock");
    desk.ok("copy a b");
    assert!(desk.ok("copy a b").contains("0 snapshots copied, 2 there before"));
    // Only what changed is read, also by a server.
    fs::write(desk.path("tree/new"), b"more").unwrap();
    desk.ok("backup a tree --set web");
    assert_eq!(copy(&desk, "a b")["copied"][0]["read_bytes"], 4);
    assert_eq!(told(&desk, "a"), told(&desk, "b"));
    serving.terminate();
    assert_eq!(listed(&desk.path("tree")), listed(&restored(&desk, "b", "web", "out")));
    desk.ok("check b");
    desk.ok("create archive c --no-encryption");
    let serving = desk.serve("c --nbd unix:c.sock --append-only");
    desk.fails("copy a c", 1, &["--append-only"]);
    serving.terminate();
    assert!(told(&desk, "c").is_empty());
}

#[test]
fn a_copy_that_is_killed_again_and_again_ends() {
    let desk = desk_with_two();
    desk.ok("create archive b --no-encryption");
    for milliseconds in [5, 20, 40, 80, 120] {
        let mut child = desk.command("copy a b").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let _ = child.kill();
        child.wait().unwrap();
        desk.ok("check b");
    }
    desk.run("copy a b");
    assert_eq!(told(&desk, "a"), told(&desk, "b"));
    desk.ok("gc b");
    desk.ok("check b");
    assert_eq!(listed(&desk.path("tree")), listed(&restored(&desk, "b", "web", "out")));
}
