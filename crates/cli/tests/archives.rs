//! Archives through the command: streams and trees in and out, kills at many points, several
//! processes at once.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use support::{Desk, Serving, leaves_nothing_on_a_full_disk, noise, overwrite};

/// A put of `bytes` from standard input, which has all of them but is not closed.
fn start_put(desk: &Desk, arguments: &str, bytes: &[u8]) -> (Child, std::process::ChildStdin) {
    let mut child = desk
        .command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // A put that is killed meanwhile takes no more.
    let _ = input.write_all(bytes);
    (child, input)
}

fn get(desk: &Desk, name: &str) -> Vec<u8> {
    let said = desk.command(&format!("get a {name} --verify")).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    said.stdout
}

#[test]
fn streams_go_in_and_come_out_and_are_removed() {
    let desk = Desk::new();
    desk.ok("create archive a");
    desk.fails("create archive a", 1, &["not empty"]);
    let mut bytes = noise(1, 5_000_000);
    bytes[1_000_000..2_000_000].fill(0);
    fs::write(desk.path("file"), &bytes).unwrap();
    desk.ok("put a one file");
    let said: serde_json::Value = serde_json::from_str(&desk.ok("put a two file --json")).unwrap();
    assert_eq!((said["new_bytes"].as_u64(), said["bytes"].as_u64()), (Some(0), Some(5_000_000)));
    assert!(said["added_bytes"].as_u64().unwrap() < 100_000);
    assert!(get(&desk, "two") == bytes);
    desk.ok("get a one --output out");
    assert!(fs::read(desk.path("out")).unwrap() == bytes);
    assert!(fs::metadata(desk.path("out")).unwrap().blocks() * 512 < 4_200_000);
    let shown = desk.command("get a one --output -").output().unwrap();
    assert!(shown.stdout == bytes && !desk.path("-").exists());
    desk.fails("import a v file", 1, &["an archive", "take and give images over NBD"]);
    let list: serde_json::Value = serde_json::from_str(&desk.ok("ls a --json")).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    desk.ok("rm a one");
    desk.ok("mv a two three");
    desk.fails("get a two", 1, &["no stream 'two'"]);
    desk.fails("rm a one", 1, &["no stream 'one'"]);
    desk.ok("check a");
    desk.ok("scrub a --json");
    desk.ok("status a");
    desk.ok("rm a three");
    desk.ok("gc a");
    let stats: serde_json::Value = serde_json::from_str(&desk.ok("status a --json")).unwrap();
    assert_eq!((stats["stored_bytes"].as_u64(), stats["streams"].as_u64()), (Some(0), Some(0)));
    // The chain is the user's.
    for filters in
        ["chunk-index", "bloom,chunk-index", "container-cache,bloom,chunk-index,byte-compare"]
    {
        desk.ok(&format!("put a f file --filters {filters}"));
        assert!(get(&desk, "f") == bytes);
    }
    desk.fails("put a f file --filters bloom", 2, &["chunk-index"]);
    desk.fails("put a f missing", 1, &["missing"]);
    desk.fails("put a f .", 1, &["stored with -r ."]);
    desk.fails("ls missing", 1, &["missing"]);
    fs::create_dir(desk.path("empty")).unwrap();
    desk.fails("ls empty", 1, &["empty is a directory and no archive"]);
}

fn same(one: &Path, other: &Path) {
    let mut names: Vec<_> =
        fs::read_dir(one).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let mut others: Vec<_> =
        fs::read_dir(other).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    others.sort();
    assert_eq!(names, others, "{}", one.display());
    for name in names {
        let (a, b) = (one.join(&name), other.join(&name));
        let (x, y) = (fs::symlink_metadata(&a).unwrap(), fs::symlink_metadata(&b).unwrap());
        assert_eq!(
            (x.mode(), x.uid(), x.gid(), x.mtime(), x.mtime_nsec()),
            (y.mode(), y.uid(), y.gid(), y.mtime(), y.mtime_nsec()),
            "{a:?}"
        );
        if x.is_dir() {
            same(&a, &b);
        } else if x.is_symlink() {
            assert_eq!(fs::read_link(&a).unwrap(), fs::read_link(&b).unwrap());
        } else if x.is_file() {
            assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{a:?}");
            assert_eq!(x.nlink(), y.nlink(), "{a:?}");
        }
    }
}

#[test]
fn trees_come_back_with_all_that_belongs_to_them() {
    let desk = Desk::new();
    desk.ok("create archive a --compress lz4");
    let root = desk.path("tree");
    fs::create_dir_all(root.join("deep/er")).unwrap();
    fs::write(root.join("deep/file"), noise(2, 300_000)).unwrap();
    fs::write(root.join("deep/er/empty"), "").unwrap();
    fs::write(root.join("läßt\nsich"), "x").unwrap();
    fs::hard_link(root.join("deep/file"), root.join("other name")).unwrap();
    symlink("/nowhere", root.join("link")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    drop(sparse);
    overwrite(&root.join("sparse"), 20 << 20, &noise(3, 100_000));
    fs::set_permissions(root.join("deep/file"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(root.join("deep/er"), fs::Permissions::from_mode(0o555)).unwrap();
    desk.ok("put a t -r tree");
    desk.ok("get a t -C back");
    same(&root, &desk.path("back"));
    assert!(fs::metadata(desk.path("back/sparse")).unwrap().blocks() * 512 < 1 << 20);
    // Over what is there, and a link in the way is not followed.
    fs::remove_dir_all(desk.path("back/deep/er")).ok();
    fs::remove_file(desk.path("back/sparse")).unwrap();
    fs::create_dir(desk.path("outside")).unwrap();
    desk.fails("get a t -C back", 1, &["there already", "--in-place"]);
    desk.ok("get a t -C back --in-place");
    same(&root, &desk.path("back"));
    fs::remove_dir_all(desk.path("back/deep")).unwrap();
    symlink(desk.path("outside"), desk.path("back/deep")).unwrap();
    desk.fails("get a t -C back --in-place", 1, &["deep"]);
    assert_eq!(fs::read_dir(desk.path("outside")).unwrap().count(), 0);
    assert!(desk.ok("ls a t").contains("link -> /nowhere"));
    desk.fails("get a t", 2, &["-C"]);
}

#[test]
fn a_put_that_is_killed_leaves_nothing_but_what_its_repeat_finds() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    let old = noise(4, 3_000_000);
    fs::write(desk.path("old"), &old).unwrap();
    desk.ok("put a s old");
    let bytes = noise(5, 160_000_000);
    for part in [1_000_000, 30_000_000, 100_000_000, bytes.len() / 10 * 9] {
        let (mut child, mut input) = start_put(&desk, "put a s", &bytes[..part]);
        // A put that has seen so much has listed all but its last 64 MiB, when its disk had time
        // for it. It looks at what is durable when more comes, so a little more comes all the time.
        let mut more = bytes[part..].chunks(64 << 10);
        let listed = (part as u64).saturating_sub(64 << 20);
        let stored = || {
            serde_json::from_str::<serde_json::Value>(&desk.ok("status a \
                --json"))
            .unwrap()["stored_bytes"]
                .as_u64()
        };
        for _ in 0..if listed > 0 { 1_000 } else { 1 } {
            if stored() > Some(listed) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            input.write_all(more.next().unwrap_or_default()).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        drop(input);
        assert!(get(&desk, "s") == old, "killed at {part}");
        desk.ok("check a");
    }
    // At most the last 64 MiB before the kill, and what had not come, is written.
    fs::write(desk.path("new"), &bytes).unwrap();
    let said: serde_json::Value = serde_json::from_str(&desk.ok("put a s new --json")).unwrap();
    assert!(said["new_bytes"].as_u64().unwrap() <= (64 << 20) + bytes.len() as u64 / 10, "{said}");
    assert!(get(&desk, "s") == bytes);
    desk.ok("gc a --keep-partial 0");
    assert!(get(&desk, "s") == bytes);
    let stats: serde_json::Value = serde_json::from_str(&desk.ok("status a --json")).unwrap();
    assert!(stats["stored_bytes"].as_u64().unwrap() < 164_000_000, "{stats}");
    desk.ok("scrub a");
}

#[test]
fn gc_that_is_killed_at_many_points_loses_nothing() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    let versions: Vec<Vec<u8>> = (0..4u64)
        .map(|n| {
            let mut version = noise(7, 12_000_000);
            for part in 0..60 {
                let at = part * 200_000 + n as usize * 37_000;
                version[at..at + 30_000]
                    .copy_from_slice(&noise(100 + n * 100 + part as u64, 30_000));
            }
            version
        })
        .collect();
    for (n, version) in versions.iter().enumerate() {
        fs::write(desk.path("file"), version).unwrap();
        desk.ok(&format!("put a v{n} file"));
    }
    for n in 0..3 {
        desk.ok(&format!("rm a v{n}"));
        for delay in [0, 2, 4, 7, 11, 16, 25] {
            let mut child =
                desk.command("gc a").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(delay));
            let _ = child.kill();
            child.wait().unwrap();
            desk.ok("check a");
        }
        desk.ok("gc a");
        for (left, version) in versions.iter().enumerate().skip(n + 1) {
            assert!(get(&desk, &format!("v{left}")) == *version, "v{left} after v{n}");
        }
    }
    desk.ok("scrub a");
}

#[test]
fn readers_a_put_and_removals_work_at_the_same_time_and_a_second_put_waits() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let old = noise(8, 2_000_000);
    fs::write(desk.path("old"), &old).unwrap();
    desk.ok("put a old old");
    desk.ok("put a gone old");
    let bytes = noise(9, 5_000_000);
    let (mut child, mut input) = start_put(&desk, "put a new", &bytes);
    desk.fails("put a other old --no-wait", 1, &["another process stores into the archive"]);
    assert!(get(&desk, "old") == old);
    desk.ok("rm a gone");
    desk.ok("rm a old");
    // Chunks that the put could still take are held back, and nothing waits.
    desk.ok("gc a --no-wait");
    // The put takes chunks that were removed meanwhile.
    input.write_all(&old).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
    desk.ok("gc a");
    let expected: Vec<u8> = bytes.iter().chain(&old).copied().collect();
    assert!(get(&desk, "new") == expected);
    desk.ok("scrub a");
}

/// Stops a process, or lets it go on.
fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

#[test]
fn who_is_stopped_holds_up_nobody_but_the_freeing_of_what_it_reads() {
    use rustix::process::Signal;
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    let (old, other) = (noise(30, 24_000_000), noise(31, 12_000_000));
    fs::write(desk.path("old"), &old).unwrap();
    fs::write(desk.path("other"), &other).unwrap();
    desk.ok("put a old old");
    desk.ok("put a other other");
    // A reader that is stopped in the middle of what is removed beside it.
    let mut reader =
        desk.command("get a old").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = reader.stdout.take().unwrap();
    let mut read = vec![0; 1_000_000];
    std::io::Read::read_exact(&mut output, &mut read).unwrap();
    signal(&reader, Signal::STOP);
    // A put that is stopped in the middle.
    let new = noise(32, 100_000_000);
    let (mut put, input) = start_put(&desk, "put a new", &new);
    signal(&put, Signal::STOP);
    desk.ok("rm a old");
    desk.ok("mv a other another");
    desk.ok("volume create a v --size 1G");
    desk.fails("put a more other --no-wait", 1, &["another process stores into the archive"]);
    let said: serde_json::Value = serde_json::from_str(&desk.ok("gc a --no-wait --json")).unwrap();
    assert_eq!(said["held_back"], true, "{said}");
    // Nor does a stopped process hold up who waits, for longer than was said; 30 s when nothing was.
    let begun = std::time::Instant::now();
    let said = desk.run("gc a --wait 5s");
    assert!(said.status.success(), "{said:?}");
    assert!(said.out.contains("another gc frees it when they have ended"), "{said:?}");
    assert!(said.err.contains("waiting at most") && said.err.contains("--wait"), "{said:?}");
    assert!((5..25).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    let said = desk.run("gc a");
    assert!(said.status.success() && said.out.contains("another gc frees it"), "{said:?}");
    assert!((30..60).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert!(get(&desk, "another") == other);
    desk.ok("check a");
    // They go on, and nothing is missing.
    signal(&reader, Signal::CONT);
    std::io::Read::read_to_end(&mut output, &mut read).unwrap();
    assert!(reader.wait().unwrap().success() && read == old);
    signal(&put, Signal::CONT);
    drop(input);
    assert!(put.wait().unwrap().success());
    assert!(get(&desk, "new") == new);
    let stored = || {
        serde_json::from_str::<serde_json::Value>(&desk.ok("status a \
            --json"))
        .unwrap()["stored_bytes"]
            .as_u64()
            .unwrap()
    };
    desk.ok("gc a");
    assert!(stored() < 115_000_000, "{}", stored());
    // A collection that is stopped at many points.
    desk.ok("rm a another");
    for delay in [0, 3, 6, 10, 15] {
        let mut gc =
            desk.command("gc a").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        signal(&gc, Signal::STOP);
        // Verbs that are done in milliseconds wait for it only where it holds the commit lock; then
        // it is let go.
        let mut rm = desk
            .command("mv a new newer")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(get_beside(&desk, "new", "newer", &gc) == new);
        signal(&gc, Signal::CONT);
        assert!(rm.wait().unwrap().success() && gc.wait().unwrap().success());
        desk.ok("mv a newer new");
    }
    desk.ok("scrub a");
}

/// A stream under the one or the other name.
/// Somebody may have waited for a collection that was stopped: then it goes on.
fn get_beside(desk: &Desk, one: &str, other: &str, gc: &Child) -> Vec<u8> {
    let _ = fs::remove_file(desk.path("beside"));
    let mut reader = desk
        .command(&format!("get a {one} --output beside"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The holder of the commit lock is writing frames that a reader must wait for.
    for _ in 0..100 {
        if reader.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    signal(gc, rustix::process::Signal::CONT);
    if reader.wait().unwrap().success() {
        fs::read(desk.path("beside")).unwrap()
    } else {
        get(desk, other)
    }
}

#[test]
fn rot_is_told_and_repaired_by_the_same_bytes() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    let bytes = noise(10, 1_000_000);
    fs::write(desk.path("file"), &bytes).unwrap();
    desk.ok("put a s file");
    overwrite(&desk.path("a/segment-00000001"), 500_000, &[1, 2, 3]);
    desk.ok("check a");
    desk.fails("get a s --output out", 1, &["container", "checksum"]);
    let said = desk.fails("scrub a", 1, &["damaged"]);
    assert!(
        said.out.contains("stream 's' lost") && said.out.contains("a put of the same content"),
        "{}",
        said.out
    );
    // From now on it is known: also to who reads no data.
    desk.fails("check a", 1, &["damaged"]);
    // The index can be made anew, and lost files of it are no harm.
    for entry in fs::read_dir(desk.path("a")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("index-") {
            fs::remove_file(path).unwrap();
        }
    }
    desk.fails("repair a", 1, &["damaged"]);
    // The same bytes are stored anew, not taken for duplicates of what is damaged.
    let said: serde_json::Value = serde_json::from_str(&desk.ok("put a t file --json")).unwrap();
    let again = said["new_bytes"].as_u64().unwrap();
    assert!((8_000..200_000).contains(&again), "{said}");
    assert!(get(&desk, "t") == bytes);
    desk.fails("get a s --output out2", 1, &["container"]);
    desk.ok("check a --only t");
    desk.fails("check a --only s", 1, &["'s' of a is damaged"]);
    desk.fails("check a --only u", 1, &["no stream and no volume 'u'"]);
    // And who named them has them again.
    let said: serde_json::Value =
        serde_json::from_str(&desk.ok("repair a --only s --json")).unwrap();
    assert!(said["restored_chunks"].as_u64() > Some(0) && said["well"] == true, "{said}");
    assert!(get(&desk, "s") == bytes);
    desk.ok("rm a t");
    desk.ok("gc a");
    assert!(get(&desk, "s") == bytes);
    desk.ok("scrub a");
    desk.ok("put a t file --filters container-cache,bloom,chunk-index,byte-compare");
    assert!(get(&desk, "t") == bytes);
}

#[test]
fn an_archive_on_several_nodes_survives_what_its_code_says() {
    let desk = Desk::new();
    let nodes = "n0,n1,n2,n3,n4";
    desk.fails(&format!("create archive a --nodes {nodes}"), 2, &["--code"]);
    desk.fails("create archive a --nodes n0,n1 --code 2,1", 1, &["3 for the log alone"]);
    // What failed leaves no directories.
    assert!(["a", "n0", "n1"].iter().all(|name| !desk.path(name).exists()));
    assert!(
        desk.ok(&format!("create archive a --nodes {nodes} --code 5,3"))
            .contains("on 5 nodes of which 2 may be lost")
    );
    let bytes = noise(7, 3_000_000);
    fs::write(desk.path("file"), &bytes).unwrap();
    desk.ok("put a one file");
    let stats = |desk: &Desk| -> serde_json::Value {
        serde_json::from_str(&desk.ok("status a --json")).unwrap()
    };
    assert_eq!(
        (
            &stats(&desk)["nodes"],
            &stats(&desk)["code"][1],
            stats(&desk)["absent"].as_array().unwrap().len()
        ),
        (&5.into(), &3.into(), 0)
    );
    // One node alone is no archive.
    desk.fails("ls n0", 1, &["one node of an archive"]);

    for (one, other) in [("n0", "n4"), ("n1", "n2")] {
        [one, other].iter().for_each(|name| {
            fs::rename(desk.path(name), desk.path(&format!("{name}-away"))).unwrap()
        });
        assert!(get(&desk, "one") == bytes);
        [one, other].iter().for_each(|name| {
            fs::rename(desk.path(&format!("{name}-away")), desk.path(name)).unwrap()
        });
    }

    // A node is lost; an empty directory in its place is not filled, a put asks before it goes on,
    // and the node is replaced elsewhere.
    fs::rename(desk.path("n3"), desk.path("n3-lost")).unwrap();
    fs::create_dir(desk.path("n3")).unwrap();
    desk.fails("put a two file", 1, &["--degraded"]);
    assert!(desk.ok("put a two file --degraded").contains("note: node 3"));
    assert_eq!(fs::read_dir(desk.path("n3")).unwrap().count(), 0);
    assert_eq!(stats(&desk)["absent"][0]["node"], 3);
    desk.fails("node replace a 7 new", 1, &["there is no node 7"]);
    desk.ok("node replace a 3 new");
    assert_eq!(stats(&desk)["absent"].as_array().unwrap().len(), 0);
    desk.ok("put a three file");

    // Rot is found by scrub, and mended by repair.
    let segment = desk.path("n1").join("segment-00000001");
    let mut rotten = fs::read(&segment).unwrap();
    rotten[10_000] ^= 1;
    fs::write(&segment, &rotten).unwrap();
    for (verb, repaired) in [("scrub", 0), ("repair", 1)] {
        let said = desk.command(&format!("{verb} a --json")).output().unwrap();
        assert_eq!(said.status.success(), verb == "repair");
        let found: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        assert_eq!(
            (&found["bad_units"], &found["repaired_units"], &found["well"]),
            (&1.into(), &repaired.into(), &(repaired == 1).into())
        );
    }
    assert!(desk.ok("node rebuild a").contains(": 0 bad"));
    ["n0", "n2"].iter().for_each(|name| fs::remove_dir_all(desk.path(name)).unwrap());
    assert!(["one", "two", "three"].iter().all(|name| get(&desk, name) == bytes));

    // The archive's own directory only tells where the nodes are.
    fs::remove_dir_all(desk.path("a")).unwrap();
    desk.ok("node attach a --nodes n0,n1,n2,new,n4");
    desk.ok("rm a two");
    desk.ok("gc a");
    assert!(get(&desk, "three") == bytes);
}

#[test]
fn late_encoding_settles_by_reference_counts_and_survives_lost_nodes() {
    let desk = Desk::new();
    let nodes = "--nodes n0,n1,n2,n3,n4,n5 --code 6,4";
    for (wrong, why) in [
        (format!("{nodes} --placement rad --class-codes 6,5:5,3:4,2"), "the same parity"),
        (format!("{nodes} --placement rad --class-codes 4,2:5,3:6,4"), "may not get longer"),
        (format!("{nodes} --placement rad --class-codes 7,5:5,3:4,2"), "the 6 nodes"),
        (format!("{nodes} --delay 2"), "go with --placement rad"),
        ("--placement rad".to_owned(), "needs --nodes"),
    ] {
        desk.fails(&format!("create archive a {wrong}"), 1, &[why]);
        assert!(!desk.path("a").exists() && !desk.path("n0").exists(), "{wrong}");
    }
    desk.ok(&format!(
        "create archive a {nodes} --placement rad --delay 1 --batch 1 --class-codes \
                      6,4:5,3:4,2 --chunking static:4K"
    ));
    let json = |verb: &str| -> serde_json::Value { serde_json::from_str(&desk.ok(verb)).unwrap() };
    let number = |value: &serde_json::Value, key: &str| value[key].as_u64().unwrap();
    let versions: Vec<Vec<u8>> = (0..4u64)
        .map(|n| [noise(1, 40_960), noise(10 + n / 2, 409_600), noise(100 + n, 819_200)].concat())
        .collect();
    for (n, version) in versions.iter().enumerate() {
        fs::write(desk.path("file"), version).unwrap();
        desk.ok(&format!("put a v{n} file"));
        // A version is one container. The first one's counts change with each version, the second
        // one's not with the third.
        let done = json("gc a --json");
        assert_eq!(number(&done, "encoded_containers"), u64::from(n == 2), "{n}: {done}");
    }
    let stats = json("status a --json");
    assert!(number(&stats, "replicated_bytes") > 0 && stats["placement"] == "rad", "{stats}");
    assert!(number(&json("gc a --encode --json"), "encoded_chunks") > 0);
    let stats = json("status a --json");
    assert_eq!(number(&stats, "replicated_bytes"), 0);
    let classes: Vec<(String, String)> = stats["classes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| (line["class"].to_string(), line["code"].to_string()))
        .collect();
    let expected = [("plain", "[6,4]"), ("cold", "[6,4]"), ("baseline", "[5,3]"), ("hot", "[4,2]")];
    assert_eq!(classes, expected.map(|(class, code)| (format!("\"{class}\""), code.to_owned())));
    assert!(
        number(&stats["work"], "upload_written_bytes")
            > 3 * number(&stats["work"], "encoded_chunk_bytes")
    );
    desk.ok("status a");
    desk.ok("rm a v1");
    desk.ok("gc a");
    fs::remove_dir_all(desk.path("n1")).unwrap();
    fs::remove_dir_all(desk.path("n4")).unwrap();
    for n in [0, 2, 3] {
        assert!(get(&desk, &format!("v{n}")) == versions[n], "v{n}");
    }
    desk.ok("node replace a 1 n7");
    desk.ok("node replace a 4 n8");
    desk.ok("scrub a");
    desk.ok("check a");
    desk.ok("create archive plain");
    desk.fails("gc plain --encode", 1, &["nothing stands replicated"]);
}

#[test]
fn rule_65_with_a_delay_of_0_chunks_are_encoded_at_once() {
    let desk = Desk::new();
    let rad = "--nodes n0,n1,n2,n3,n4,n5 --code 6,4 --placement rad";
    for (wrong, why) in [
        ("--delay 0 --batch 2", "memory from 1M to 16G"),
        ("--delay 0 --batch 1T", "memory from 1M to 16G"),
        ("--delay 0 --batch much", "a size is a number"),
        ("--delay 1 --batch 256M", "a number of versions"),
    ] {
        desk.fails(&format!("create archive a {rad} {wrong}"), 1, &[why]);
        assert!(!desk.path("a").exists() && !desk.path("n0").exists(), "{wrong}");
    }
    desk.ok(&format!("create archive a {rad} --delay 0 --batch 1M --chunking static:4K"));
    let json = |verb: &str| -> serde_json::Value { serde_json::from_str(&desk.ok(verb)).unwrap() };
    // More than a batch, and in each a part that comes twice.
    let part = |n: u64| noise(n, 98 * 4096).repeat(2);
    let bytes = [1, 2, 3].map(part).concat();
    fs::create_dir(desk.path("dir")).unwrap();
    fs::write(desk.path("dir/one"), &bytes).unwrap();
    fs::write(desk.path("dir/two"), noise(9, 100_000)).unwrap();
    desk.ok("backup a dir --set t");
    desk.ok("put a one dir/one");
    assert!(get(&desk, "one") == bytes);
    let stats = json("status a --json");
    assert_eq!((&stats["batch_bytes"], &stats["replicated_bytes"]), (&(1 << 20).into(), &0.into()));
    let of: Vec<_> =
        stats["classes"].as_array().unwrap().iter().map(|line| &line["class"]).collect();
    assert_eq!(of, ["plain", "cold", "baseline"], "{stats}");
    let text = desk.ok("status a");
    assert!(text.contains("encoded at once, 1.00 MiB at a time"), "{text}");
    assert_eq!(json("gc a --encode --json")["encoded_containers"], 0);
    fs::remove_dir_all(desk.path("n1")).unwrap();
    fs::remove_dir_all(desk.path("n4")).unwrap();
    assert!(get(&desk, "one") == bytes);
    desk.ok("restore a t -C out");
    let out = desk.path("out").join(desk.path("dir").strip_prefix("/").unwrap());
    assert!(fs::read(out.join("one")).unwrap() == bytes);
}

#[test]
#[ignore = "needs root"]
fn rule_08_an_archive_that_a_full_disk_ended_leaves_nothing() {
    for create in ["create archive a", "create archive a --nodes n0,n1,n2 --code 3,2"] {
        let err = leaves_nothing_on_a_full_disk(env!("CARGO_BIN_EXE_onefold"), create);
        assert_eq!(err.lines().filter(|line| line.contains("No space left")).count(), 1, "{err}");
    }
}

#[test]
fn a_signal_ends_whoever_waits_for_another_put_and_says_so() {
    use std::os::unix::process::ExitStatusExt;

    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    let (mut put, input) = start_put(&desk, "put a slow", b"some");
    while desk.run("put a probe /dev/null --no-wait").status.success() {}
    for (verb, signal) in [
        ("put a other /dev/null", rustix::process::Signal::TERM),
        ("backup a tree --set t", rustix::process::Signal::INT),
        ("backup a tree --set t --wait 1h", rustix::process::Signal::HUP),
    ] {
        let waits = Serving::start_saying(&mut desk.command(verb), "waiting for it");
        waits.signal(signal);
        let (status, said) = waits.end();
        assert_eq!(status.signal(), Some(signal.as_raw()), "{verb}: {said}");
        assert!(
            said.ends_with("while it waited for another process: nothing is stored\n"),
            "{said}"
        );
    }
    drop(input);
    assert!(put.wait().unwrap().success());
    // Who waited to the end is not told so later.
    let (mut put, input) = start_put(&desk, "put a slow", b"more");
    while desk.run("put a probe /dev/null --no-wait").status.success() {}
    let waits = Serving::start_saying(&mut desk.command("backup a tree --set t"), "waiting for it");
    drop(input);
    assert!(put.wait().unwrap().success());
    let (status, said) = waits.end();
    assert!(status.success() && said.lines().count() == 1, "{said}");
}

#[test]
#[ignore = "needs root"]
fn a_full_disk_is_named_with_what_is_kept_and_what_makes_room() {
    let desk = Desk::new();
    for name in ["small", "tree"] {
        fs::create_dir(desk.path(name)).unwrap();
    }
    fs::write(desk.path("tree/large"), noise(1, 40 << 20)).unwrap();
    fs::write(desk.path("tree/small"), b"small").unwrap();
    // In a mount namespace of its own.
    let script = format!(
        "mount -t tmpfs -o size=8m none small || exit 9
         {0} create archive small/a && exit 8
         mount -o remount,size=40m small && {0} create archive small/a --no-encryption >/dev/null
         {0} put small/a kept tree/small --json >/dev/null || exit 7
         {0} put small/a large tree/large && exit 6
         {0} backup small/a tree --set t && exit 5
         {0} get small/a kept && {0} check small/a --json >/dev/null",
        env!("CARGO_BIN_EXE_onefold")
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let said = command.current_dir(desk.path("")).output().unwrap();
    assert_eq!((said.status.code(), &said.stdout[..]), (Some(0), &b"small"[..]), "{said:?}");
    let err = String::from_utf8(said.stderr).unwrap();
    let [create, put, backup] = err.lines().collect::<Vec<_>>()[..] else { panic!("{err}") };
    assert!(create.contains("a new archive takes 12 MiB, and 16 MiB more for its log"), "{create}");
    for line in [put, backup] {
        for says in [
            "the disk of small/a is full",
            "has all that it had before",
            "`onefold gc small/a --trash 0`",
            "16 MiB ahead for its log",
        ] {
            assert!(line.contains(says), "{line}");
        }
    }
}
