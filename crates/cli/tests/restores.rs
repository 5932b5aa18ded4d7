//! Restores: over what is there, killed and repeated, in small windows, with removals.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::ffi::OsStrExt,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, symlink},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use serde_json::Value;
use support::{Desk, noise, overwrite, unmount};

/// A user who owns nothing that the tests make.
const STRANGER: u32 = 61_234;

/// What is below a directory: mode, owner, time, and content.
fn listed(root: &Path) -> BTreeMap<String, (u32, u32, (i64, i64), Vec<u8>)> {
    let (mut all, mut wanted) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = wanted.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let content = if metadata.is_dir() {
            wanted.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if metadata.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else if metadata.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let time = (metadata.mtime(), metadata.mtime_nsec());
        all.insert(name, (metadata.mode(), metadata.uid(), time, content));
    }
    all
}

fn json(desk: &Desk, arguments: &str) -> Value {
    serde_json::from_str(&desk.ok(&format!("{arguments} --json"))).unwrap()
}

/// Where a restore below `out` puts what lay at `tree`.
fn below(desk: &Desk, out: &str) -> PathBuf {
    desk.path(out).join(desk.path("tree").strip_prefix("/").unwrap())
}

fn set_time(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

/// A tree with long and short files, holes, and a file with two names; stored as `t`.
fn stored(desk: &Desk) -> PathBuf {
    desk.ok("create archive a");
    let tree = desk.path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    for (n, name) in ["one", "two", "three", "sub/four"].into_iter().enumerate() {
        fs::write(tree.join(name), noise(n as u64 + 1, 1_500_000)).unwrap();
        set_time(&tree.join(name), 1_000_000 + n as u64);
    }
    fs::hard_link(tree.join("three"), tree.join("sub/again")).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    sparse.write_all_at(&noise(9, 200_000), 3 << 20).unwrap();
    sparse.write_all_at(&[0; 100_000], 5 << 20).unwrap();
    for n in 0..300 {
        fs::write(tree.join(format!("sub/{n:03}")), format!("file {n}")).unwrap();
    }
    fs::write(tree.join("empty"), b"").unwrap();
    symlink("one", tree.join("link")).unwrap();
    desk.ok("backup a tree --set t");
    tree
}

#[test]
fn small_windows_restore_the_same() {
    let desk = Desk::new();
    let tree = stored(&desk);
    // One chunk is many pages of maps: a file goes on from window to window.
    fs::write(tree.join("long"), noise(77, 24_000_000)).unwrap();
    desk.ok("backup a tree --set t");
    for (n, window) in ["1", "3K", "100K", "64M"].into_iter().enumerate() {
        desk.ok(&format!("restore a t -C out{n} --window {window}"));
        let out = below(&desk, &format!("out{n}"));
        assert_eq!(listed(&tree), listed(&out), "{window}");
        let inode = |name: &str| fs::metadata(out.join(name)).unwrap().ino();
        assert_eq!(inode("three"), inode("sub/again"));
        assert!(fs::metadata(out.join("sparse")).unwrap().blocks() < 1000, "holes stay holes");
    }
}

#[test]
fn in_place_only_what_differs_is_written() {
    let desk = Desk::new();
    let tree = stored(&desk);
    desk.ok("restore a t -C out");
    let out = below(&desk, "out");
    let whole = listed(&out);
    let of = |name: &str| fs::metadata(out.join(name)).unwrap();
    let before = ["one", "two", "three", "sub/four", "sparse"].map(|name| of(name).ino());
    let untouched = (of("sub/four").ctime(), of("sub/four").ctime_nsec());
    // The same length and time, another byte in the middle.
    overwrite(&out.join("one"), 700_000, b"!");
    set_time(&out.join("one"), 1_000_000);
    let two = fs::File::options().write(true).open(out.join("two")).unwrap();
    two.set_len(900_000).unwrap();
    overwrite(&out.join("three"), 1_500_000, &[7; 5000]);
    overwrite(&out.join("sparse"), 1 << 20, &[1; 70_000]);
    fs::remove_file(out.join("sub/007")).unwrap();
    fs::write(out.join("sub/more"), b"not of the tree").unwrap();
    let done = json(&desk, "restore a t -C out --in-place");
    let kept = done["bytes_there_before"].as_u64().unwrap();
    assert!(kept > 5_300_000, "{done}");
    assert!(kept < done["bytes"].as_u64().unwrap() - 600_000, "{done}");
    let mut found = listed(&out);
    found.remove("sub/more").unwrap();
    assert_eq!(found, whole);
    assert_eq!(found, listed(&tree));
    assert_eq!(before, ["one", "two", "three", "sub/four", "sparse"].map(|name| of(name).ino()));
    assert!(of("sparse").blocks() < 1000, "a hole is one again");
    assert_eq!(untouched, (of("sub/four").ctime(), of("sub/four").ctime_nsec()));
    // A repeat finds everything there.
    let again = json(&desk, "restore a t -C out --in-place");
    assert!(again["bytes_there_before"].as_u64().unwrap() > 6_100_000, "{again}");
    assert_eq!(untouched, (of("sub/four").ctime(), of("sub/four").ctime_nsec()));
}

#[test]
fn a_killed_restore_in_place_goes_on() {
    let desk = Desk::new();
    let tree = stored(&desk);
    for n in 0..10 {
        fs::write(tree.join(format!("large{n:02}")), noise(100 + n, 2_000_000)).unwrap();
        set_time(&tree.join(format!("large{n:02}")), 2_000_000);
        fs::set_permissions(tree.join(format!("large{n:02}")), fs::Permissions::from_mode(0o640))
            .unwrap();
    }
    desk.ok("backup a tree --set t");
    let expected = listed(&tree);
    let out = below(&desk, "out");
    let mut met = 0;
    for round in 0..8u64 {
        // Old files of the same names, with other bytes here and there.
        fs::create_dir_all(out.join("sub")).unwrap();
        for n in 0..10 {
            let mut bytes = noise(100 + n, 2_000_000);
            for at in (0..bytes.len()).step_by(90_000) {
                bytes[at + round as usize] ^= 1;
            }
            let path = out.join(format!("large{n:02}"));
            fs::write(&path, bytes).unwrap();
            set_time(&path, 3_000_000);
        }
        let mut killed = desk.command("restore a t -C out --in-place --window 40K");
        let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Some time after the first file is written to.
        let is_written = |n: u32| {
            fs::metadata(out.join(format!("large{n:02}"))).is_ok_and(|file| file.mtime() == 0)
        };
        while killed.try_wait().unwrap().is_none() && !(0..10).any(is_written) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(round * round));
        let _ = killed.kill();
        let ended = killed.wait().unwrap();
        for (name, (mode, _, time, content)) in listed(&out) {
            let Some(stored) = expected.get(&name).filter(|_| mode & 0o170_000 == 0o100_000) else {
                continue;
            };
            // A file that looks finished is the stored one; one that is written shows it.
            if (mode, time) == (stored.0, stored.2) {
                assert!(content == stored.3, "round {round}: {name} looks finished");
            }
            met += u32::from(!ended.success() && mode & 0o777 == 0o600 && time == (0, 0));
        }
    }
    assert!(met > 0, "no kill met a file that was being written");
    desk.ok("restore a t -C out --in-place --window 40K");
    assert_eq!(listed(&out), expected);
}

#[test]
fn rule_05_in_place_nothing_is_written_under_a_second_name() {
    let desk = Desk::new();
    let tree = stored(&desk);
    desk.ok("restore a t -C out");
    let out = below(&desk, "out");
    let outside = |name: &str| desk.path(&format!("outside-{name}"));
    // A second name outside; a link; a file that others may write to and perhaps have open.
    overwrite(&out.join("one"), 0, b"mine");
    fs::hard_link(out.join("one"), outside("one")).unwrap();
    fs::rename(out.join("two"), outside("two")).unwrap();
    overwrite(&outside("two"), 0, b"mine");
    symlink(outside("two"), out.join("two")).unwrap();
    overwrite(&out.join("sub/four"), 0, b"mine");
    fs::set_permissions(out.join("sub/four"), fs::Permissions::from_mode(0o666)).unwrap();
    let open = fs::File::open(out.join("sub/four")).unwrap();
    // One of two names is elsewhere now, and its inode has another one outside.
    overwrite(&out.join("three"), 0, b"mine");
    fs::remove_file(out.join("sub/again")).unwrap();
    fs::hard_link(out.join("three"), outside("three")).unwrap();
    desk.ok("restore a t -C out --in-place");
    assert_eq!(listed(&out), listed(&tree));
    for name in ["one", "two", "three"] {
        assert_eq!(fs::read(outside(name)).unwrap()[..4], *b"mine", "{name}");
    }
    let mut read = [0; 4];
    open.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, *b"mine");
    assert_eq!(fs::metadata(out.join("three")).unwrap().nlink(), 2);
    // Where all names are restored, the file stays.
    let inode = fs::metadata(out.join("three")).unwrap().ino();
    overwrite(&out.join("three"), 0, b"mine");
    desk.ok("restore a t -C out --in-place");
    assert_eq!(listed(&out), listed(&tree));
    assert_eq!(fs::metadata(out.join("sub/again")).unwrap().ino(), inode);
}

#[test]
#[ignore = "needs root"]
fn rule_06_in_place_files_of_others_and_foreign_rights_are_replaced() {
    let desk = Desk::new();
    let tree = stored(&desk);
    desk.ok("restore a t -C out");
    let out = below(&desk, "out");
    let inode = |name: &str| fs::metadata(out.join(name)).unwrap().ino();
    let before = ["one", "two", "three", "sub/four"].map(inode);
    chown(out.join("one"), Some(STRANGER), None).unwrap();
    let run = |program: &str, arguments: &[&str], name: &str| {
        let done = Command::new(program).args(arguments).arg(out.join(name)).status();
        assert!(done.is_ok_and(|done| done.success()), "{program}");
    };
    run("setfattr", &["-n", "user.mine", "-v", "yes"], "two");
    run("setcap", &["cap_net_raw+ep"], "three");
    run("setfacl", &["-m", "u:daemon:rw"], "sub/four");
    // Nothing new gets the number of a file that is open.
    let held = ["one", "two", "three", "sub/four"].map(|name| fs::File::open(out.join(name)));
    desk.ok("restore a t -C out --in-place");
    assert_eq!(listed(&out), listed(&tree));
    for (name, before) in ["one", "two", "three", "sub/four"].into_iter().zip(before) {
        assert_ne!(inode(name), before, "{name}");
        let mut names = [0; 512];
        let bytes = rustix::fs::listxattr(out.join(name), &mut names[..]).unwrap();
        let names = String::from_utf8_lossy(&names[..bytes]).into_owned();
        assert!(!names.contains("user.mine") && !names.contains("capability"), "{name}: {names}");
    }
    assert!(held.iter().all(Result::is_ok));
}

#[test]
fn rule_12_what_one_entry_can_not_have_costs_that_entry_alone() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let tree = desk.path("tree");
    for user in ["ann", "bob", "eve", "zoe"] {
        fs::create_dir_all(tree.join(user).join("letters")).unwrap();
        fs::write(tree.join(user).join("letters/one"), user).unwrap();
    }
    fs::write(tree.join("bob/file"), "bob").unwrap();
    fs::hard_link(tree.join("bob/file"), tree.join("bob/other")).unwrap();
    desk.ok("backup a tree --set t");
    desk.ok("restore a t -C out");
    // Two of them put other things where theirs was.
    let out = below(&desk, "out");
    fs::remove_dir_all(out.join("eve/letters")).unwrap();
    symlink("/tmp", out.join("eve/letters")).unwrap();
    fs::remove_file(out.join("bob/file")).unwrap();
    fs::create_dir(out.join("bob/file")).unwrap();
    fs::write(out.join("bob/file/mine"), "x").unwrap();
    for user in ["ann", "zoe"] {
        fs::write(out.join(user).join("letters/one"), "spoilt").unwrap();
    }
    let said = desk.run("restore a t -C out --in-place");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    for named in ["eve/letters", "bob/file", "bob/other", "3 paths"] {
        assert!(said.err.contains(named), "{named}: {said:?}");
    }
    for user in ["ann", "bob", "zoe"] {
        assert_eq!(fs::read_to_string(out.join(user).join("letters/one")).unwrap(), user);
    }
    assert!(out.join("eve/letters").is_symlink() && out.join("bob/file/mine").exists());
    let mode = |name: &str| fs::metadata(out.join(name)).unwrap().mode() & 0o777;
    assert_eq!(mode("zoe"), fs::metadata(tree.join("zoe")).unwrap().mode() & 0o777);
}

#[test]
fn what_the_snapshot_lacks_is_removed_when_asked_for() {
    let desk = Desk::new();
    let tree = stored(&desk);
    fs::create_dir_all(tree.join("cache/deep")).unwrap();
    fs::write(tree.join("cache/CACHEDIR.TAG"), "Signature: 8a477f597d28d172789f06886806bc55\n")
        .unwrap();
    fs::create_dir(tree.join("logs")).unwrap();
    fs::write(tree.join("logs/a.log"), b"left out").unwrap();
    fs::write(tree.join("logs/b"), b"stored").unwrap();
    desk.ok("backup a tree --set t --exclude *.log --exclude-caches");
    desk.ok("restore a t -C out");
    let out = below(&desk, "out");
    // What was excluded is there, too.
    fs::create_dir_all(out.join("cache/deep")).unwrap();
    fs::write(out.join("logs/a.log"), b"left out").unwrap();
    // Times of directories come back, too.
    let contents = |root: &Path| -> Vec<(String, Vec<u8>)> {
        listed(root).into_iter().map(|(name, (.., content))| (name, content)).collect()
    };
    let whole = contents(&out);
    fs::create_dir_all(out.join("new/deep/deeper")).unwrap();
    fs::write(out.join("new/deep/file"), b"new").unwrap();
    fs::write(out.join("sub/new"), b"new").unwrap();
    symlink(desk.path("tree"), out.join("new/way")).unwrap();
    desk.fails("restore a t -C out --delete", 2, &["--in-place"]);
    let shown = desk.ok("restore a t -C out --in-place --delete --dry-run");
    assert!(shown.contains("6 entries would be removed"), "{shown}");
    assert!(shown.contains("/new\n") && shown.contains("/sub/new\n"), "{shown}");
    assert!(out.join("new/deep/file").exists());
    let done = json(&desk, "restore a t -C out --in-place --delete");
    assert_eq!(done["removed"].as_u64(), Some(6), "{done}");
    assert_eq!(contents(&out), whole);
    assert!(tree.join("one").exists(), "a link is removed, not what it leads to");
    // The wrong directory.
    for n in 0..400 {
        fs::write(out.join(format!("sub/more{n}")), b"new").unwrap();
    }
    desk.fails("restore a t -C out --in-place --delete", 1, &["more than half", "--force"]);
    assert!(out.join("sub/more7").exists());
    desk.ok("restore a t -C out --in-place --delete --force");
    assert_eq!(contents(&out), whole);
}

#[test]
#[ignore = "needs root"]
fn rule_05_removals_stay_on_one_mount() {
    let desk = Desk::new();
    stored(&desk);
    desk.ok("restore a t -C out");
    let out = below(&desk, "out");
    fs::create_dir_all(desk.path("elsewhere/deep")).unwrap();
    fs::write(desk.path("elsewhere/deep/file"), b"not of the tree").unwrap();
    fs::create_dir_all(out.join("new/mount")).unwrap();
    fs::write(out.join("new/file"), b"new").unwrap();
    // A bind mount has the device of the destination.
    let bind = |verb: &[&str]| {
        let done = Command::new(verb[0]).args(&verb[1..]).status();
        assert!(done.is_ok_and(|done| done.success()), "{verb:?}");
    };
    let (from, to) = (desk.path("elsewhere"), out.join("new/mount"));
    bind(&["mount", "--bind", from.to_str().unwrap(), to.to_str().unwrap()]);
    let said = desk.run("restore a t -C out --in-place --delete");
    unmount(&to);
    assert!(said.status.success(), "{said:?}");
    assert!(said.err.contains("other mounts"), "{said:?}");
    assert!(desk.path("elsewhere/deep/file").exists());
    assert!(!out.join("new/file").exists() && to.exists());
}

#[test]
fn a_dry_run_changes_nothing() {
    let desk = Desk::new();
    stored(&desk);
    let would = json(&desk, "restore a t -C out --dry-run");
    assert_eq!(would["entries"], would["absent"], "{would}");
    assert!(!desk.path("out").exists());
    desk.ok("restore a t -C out");
    let out = below(&desk, "out");
    desk.fails("restore a t -C out --dry-run", 1, &["--in-place"]);
    overwrite(&out.join("one"), 0, b"other");
    fs::remove_file(out.join("two")).unwrap();
    let before = listed(&out);
    let would = json(&desk, "restore a t -C out --in-place --dry-run");
    let number = |key: &str| would[key].as_u64().unwrap();
    assert_eq!((number("absent"), number("files_that_differ")), (1, 1), "{would}");
    assert_eq!(number("bytes_absent_or_different"), 3_000_000, "{would}");
    assert_eq!(listed(&out), before);
}

#[test]
fn sockets_come_back() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    let _listener = UnixListener::bind(desk.path("tree/s")).unwrap();
    fs::hard_link(desk.path("tree/s"), desk.path("tree/z")).unwrap();
    fs::set_permissions(desk.path("tree/s"), fs::Permissions::from_mode(0o620)).unwrap();
    desk.ok("backup a tree --set t");
    desk.ok("put a p -r tree");
    desk.ok("restore a t -C out");
    desk.ok("get a p -C got");
    for out in [below(&desk, "out"), desk.path("got")] {
        let found = fs::symlink_metadata(out.join("s")).unwrap();
        assert!(found.file_type().is_socket() && found.mode() & 0o7777 == 0o620);
        assert_eq!(found.ino(), fs::symlink_metadata(out.join("z")).unwrap().ino());
    }
}

#[test]
fn all_names_of_a_damaged_file_say_so() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    let tree = desk.path("tree");
    fs::create_dir(&tree).unwrap();
    for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
        fs::write(tree.join(name), noise(n as u64 + 50, 2_000_000)).unwrap();
    }
    fs::hard_link(tree.join("b"), tree.join("z")).unwrap();
    desk.ok("backup a tree --set t");
    desk.ok("restore a t -C out");
    let names = fs::read_dir(desk.path("a")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments = names.filter(|path| path.to_str().unwrap().contains("segment-"));
    let wanted = &noise(51, 2_000_000)[1_000_000..1_000_016];
    let found = segments.find_map(|path| {
        let bytes = fs::read(&path).unwrap();
        let at = bytes.windows(16).position(|window| window == wanted)?;
        Some((path, at as u64, !bytes[at]))
    });
    let (segment, at, byte) = found.unwrap();
    overwrite(&segment, at, &[byte]);
    let said = desk.run("restore a t -C lost");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    let lost = below(&desk, "lost");
    assert!(said.err.contains("b.damaged") && said.err.contains("z.damaged"), "{said:?}");
    let inode = |name: &str| fs::metadata(lost.join(name)).unwrap().ino();
    assert_eq!(inode("b.damaged"), inode("z.damaged"));
    // What is not lost is there.
    let (whole, damaged) =
        (fs::read(tree.join("b")).unwrap(), fs::read(lost.join("b.damaged")).unwrap());
    assert_eq!(whole.len(), damaged.len());
    let differ = whole.iter().zip(&damaged).filter(|(one, other)| one != other).count();
    assert!(differ > 0 && differ < 400_000, "{differ}");
    assert_eq!(fs::read(tree.join("c")).unwrap(), fs::read(lost.join("c")).unwrap());
    // In place what is there already is not lost.
    let done = desk.run("restore a t -C out --in-place");
    assert!(done.status.success(), "{done:?}");
}

#[test]
#[ignore = "needs root"]
fn rule_09_a_snapshot_with_more_entries_than_a_disk_takes_is_refused_first() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    for n in 0..200 {
        fs::write(desk.path("tree").join(n.to_string()), b"").unwrap();
    }
    desk.ok("backup a tree --set t");
    // A file system with few inodes, in a mount namespace of its own.
    let out = desk.path("out");
    fs::create_dir(&out).unwrap();
    let onefold = env!("CARGO_BIN_EXE_onefold");
    let script = format!(
        "mount -t tmpfs -o nr_inodes=50 none '{0}' && {onefold} restore a t -C '{0}'; s=$?; \
         ls -A '{0}'; exit $s",
        out.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let said = command.current_dir(desk.path("")).output().unwrap();
    let err = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{err}");
    assert!(err.contains("its file system takes no more"), "{err}");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "", "nothing was made");
}

#[test]
fn rule_21_in_place_what_is_as_it_was_stored_keeps_its_bits_and_what_leads_there_all() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let tree = desk.path("tree");
    for name in ["tree", "tree/shared", "tree/way", "tree/way/deep"] {
        fs::create_dir(desk.path(name)).unwrap();
    }
    let mode = |name: &str| fs::metadata(desk.path(name)).unwrap().mode() & 0o7777;
    let set = |name: &str, mode: u32| {
        fs::set_permissions(desk.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for name in ["tree/same", "tree/touched", "tree/changed", "tree/way/deep/file"] {
        fs::write(desk.path(name), noise(1, 5000)).unwrap();
    }
    for name in ["tree/same", "tree/touched", "tree/changed"] {
        set(name, 0o4755);
    }
    set("tree/shared", 0o1777);
    set("tree/way", 0o1777);
    let ping = desk.path("tree/ping");
    fs::write(&ping, noise(2, 100)).unwrap();
    // cap_net_raw=ep, where this user may set it.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let name = "security.capability";
    let flags = rustix::fs::XattrFlags::empty();
    let has_it = rustix::fs::setxattr(&ping, name, &capability, flags).is_ok();
    desk.ok("backup a tree --set t");
    set_time(&desk.path("tree/touched"), 1_000);
    overwrite(&desk.path("tree/changed"), 10, b"other");
    set("tree/changed", 0o4755);
    let changed = |name: &str| {
        let found = fs::metadata(desk.path(name)).unwrap();
        (found.ino(), found.ctime(), found.ctime_nsec())
    };
    let before = ["tree/same", "tree/ping"].map(changed);
    let shown = format!("restore a t {} -C / --in-place", tree.display());
    // It says that a file gets no set-id bit.
    assert!(desk.run(&shown).status.success());
    assert_eq!(["tree/same", "tree/ping"].map(changed), before, "nothing of them was changed");
    assert_eq!((mode("tree/same"), mode("tree/touched")), (0o4755, 0o4755));
    assert_eq!(mode("tree/changed"), 0o755, "content of the archive gets no set-id bit");
    assert_eq!((mode("tree/shared"), mode("tree/way")), (0o1777, 0o1777));
    if has_it {
        let mut there = [0; 32];
        let n = rustix::fs::getxattr(&ping, name, &mut there[..]).unwrap();
        assert_eq!(there[..n], capability);
    }
    // Bits that are not stored go.
    set("tree/way/deep/file", 0o4644);
    desk.ok(&shown);
    assert_eq!(mode("tree/way/deep/file"), 0o644);
    // A directory that only leads to what is restored stays as it is.
    set("tree/way", 0o1770);
    fs::remove_file(desk.path("tree/way/deep/file")).unwrap();
    let before = fs::metadata(&tree).unwrap().modified().unwrap();
    desk.ok(&format!("restore a t {}/way/deep/file -C / --in-place", tree.display()));
    assert_eq!((mode("tree/way"), mode("tree/way/deep/file")), (0o1770, 0o644));
    assert_eq!(fs::metadata(&tree).unwrap().modified().unwrap(), before);
    // One that is not there is made as it was, with its sticky bit.
    fs::remove_dir_all(desk.path("tree/way")).unwrap();
    desk.ok(&format!("restore a t {}/way/deep/file -C / --in-place", tree.display()));
    assert_eq!(mode("tree/way"), 0o1777);
}

/// Directories that a restore made aside.
fn asides(desk: &Desk) -> Vec<PathBuf> {
    let all = fs::read_dir(desk.path(".")).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.to_str().unwrap().contains(".restoring-")).collect()
}

#[test]
fn a_restore_aside_has_its_name_when_all_of_it_is_there() {
    let desk = Desk::new();
    let tree = stored(&desk);
    let mut killed = desk.command("restore a t -C out --atomic");
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // A half would be seen while it is made.
    let ended = loop {
        let begun = asides(&desk).iter().any(|aside| fs::read_dir(aside).unwrap().count() > 0);
        let ended = killed.try_wait().unwrap().is_some();
        if ended || begun || desk.path("out").exists() {
            break ended;
        }
    };
    killed.kill().unwrap();
    killed.wait().unwrap();
    match desk.path("out").exists() {
        // It was too fast to be killed in its middle.
        true => assert_eq!(listed(&tree), listed(&below(&desk, "out"))),
        false => assert!(!ended && asides(&desk).len() == 1, "it is killed, and left one aside"),
    }
    for aside in asides(&desk) {
        fs::remove_dir_all(aside).unwrap();
    }
    let _ = fs::remove_dir_all(desk.path("out"));

    desk.ok("restore a t -C new/out --atomic");
    assert_eq!(listed(&tree), listed(&below(&desk, "new/out")));
    assert_eq!(fs::metadata(desk.path("new/out")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::read_dir(desk.path("new")).unwrap().count(), 1, "nothing stays aside");
    desk.fails("restore a t -C new/out --atomic", 1, &["there already"]);
    desk.fails("restore a t -C new/out --atomic --in-place", 2, &["--in-place"]);
    desk.fails("restore a t -C .. --atomic", 2, &["a name at its end"]);
}

#[test]
fn what_is_not_whole_gets_no_name_from_a_restore_aside() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/one"), noise(1, 2_000_000)).unwrap();
    fs::write(desk.path("tree/two"), noise(2, 2_000_000)).unwrap();
    desk.ok("backup a tree --set t");
    let wanted = &noise(2, 2_000_000)[1_000_000..1_000_016];
    let files = fs::read_dir(desk.path("a")).unwrap().map(|entry| entry.unwrap().path());
    let found = files.filter(|path| path.is_file()).find_map(|path| {
        let bytes = fs::read(&path).unwrap();
        Some((path, bytes.windows(16).position(|part| part == wanted)?))
    });
    let (segment, at) = found.unwrap();
    overwrite(&segment, at as u64, &[!wanted[0]]);
    let said = desk.run("restore a t -C out --atomic");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    let aside = asides(&desk);
    assert!(!desk.path("out").exists() && aside.len() == 1, "{said:?}");
    assert!(said.err.contains("was not made") && said.err.contains(".restoring-"), "{said:?}");
    let one = aside[0].join(desk.path("tree/one").strip_prefix("/").unwrap());
    assert_eq!(fs::read(one).unwrap(), noise(1, 2_000_000));
}

#[test]
fn no_restore_touches_the_archive_that_it_reads() {
    let desk = Desk::new();
    fs::create_dir(desk.path("t")).unwrap();
    for n in 0..30 {
        fs::write(desk.path("t").join(n.to_string()), "file").unwrap();
    }
    desk.ok("create archive a");
    desk.ok("backup a t --set t");
    fs::create_dir(desk.path("t/deep")).unwrap();
    fs::write(desk.path("t/deep/other"), "not in the snapshot").unwrap();
    fs::rename(desk.path("a"), desk.path("t/deep/a")).unwrap();
    let t = desk.path("t").display().to_string();
    // What else is not in the snapshot goes; the archive stays, and so do the directories that lead
    // to it.
    let said = desk.run(&format!("restore t/deep/a t {t} -C / --in-place --delete"));
    assert!(said.status.success() && said.err.contains("the archive itself"), "{}", said.err);
    assert!(!desk.path("t/deep/other").exists());
    desk.ok("check t/deep/a");
    // Nor is anything made in it, or over its files.
    desk.ok("backup t/deep/a --set l --stdin label -- echo overwritten");
    for directory in ["t/deep/a", "t/deep/a/below"] {
        let command = format!("restore t/deep/a l -C {directory} --in-place");
        desk.fails(&command, 1, &["the archive that is restored from"]);
    }
    desk.ok("check t/deep/a");
    desk.ok("cat t/deep/a l label");
}

/// Runs the command with one more argument of any bytes.
fn with(desk: &Desk, arguments: &str, last: &[u8], more: &str) -> std::process::Output {
    let mut command = desk.command(arguments);
    command.arg(std::ffi::OsStr::from_bytes(last)).args(more.split_whitespace());
    command.output().unwrap()
}

/// The names in the directory `s` below one, if it is there.
fn names(out: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(out.join("s")).into_iter().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_encoded_bytes()).collect();
    names.sort();
    names
}

#[test]
fn every_name_can_be_asked_for_whatever_signs_and_bytes_it_has() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let all: [&[u8]; 9] = [
        b"a1",
        b"a[1]",
        b"b*",
        b"bb",
        b"c?",
        b"{x,y}",
        b"back\\slash",
        b"no\xff\xfetext",
        b"two\nlines \xe4",
    ];
    fs::create_dir(desk.path("tree")).unwrap();
    for name in all {
        let path = desk.path("tree").join(std::ffi::OsStr::from_bytes(name));
        fs::write(path, noise(name.len() as u64, 1000)).unwrap();
    }
    desk.ok("backup a tree --set t --as /s");
    let restored = |path: &[u8], more: &str| {
        let said = with(&desk, "restore a t", path, &format!("-C out {more}"));
        let found = names(&desk.path("out"));
        drop(fs::remove_dir_all(desk.path("out")));
        assert_eq!(said.status.success(), !found.is_empty(), "{said:?}");
        found
    };
    for name in all {
        for before in ["/s/", "s/", "./s/", "//s///"] {
            let path = [before.as_bytes(), name].concat();
            assert_eq!(restored(&path, ""), [name], "{before}");
            assert_eq!(restored(&path, "--exact"), [name], "{before}");
        }
    }
    // Another one is a pattern, unless it shall be none.
    let both: [&[u8]; 2] = [b"b*", b"bb"];
    assert_eq!(restored(b"/s/b[*b]", ""), both);
    assert!(restored(b"/s/b[*b]", "--exact").is_empty());
    assert_eq!(restored(b"/s/a\\[1]", ""), [b"a[1]"]);
    assert_eq!(restored(b"/s/", "").len(), all.len());

    // The text that `ls` and `find` show of a name leads to it.
    let shown = desk.ok("ls a t /s");
    let shown: Vec<&str> = shown.lines().map(|line| line.split("  /s/").last().unwrap()).collect();
    assert_eq!(shown.len(), all.len());
    for text in &shown {
        let [found] = &restored(format!("/s/{text}").as_bytes(), "")[..] else { panic!("{text}") };
        let said = with(&desk, "cat a t", format!("/s/{text}").as_bytes(), "");
        assert_eq!(said.stdout, noise(found.len() as u64, 1000), "{text}");
    }
    assert!(
        shown.contains(&"no\\xff\\xfetext") && shown.contains(&"two\\nlines \\xe4"),
        "{shown:?}"
    );
    let lines = desk.ok("ls a t /s --json");
    let escaped = lines.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["escaped"].as_str().map(str::to_owned)
    });
    assert_eq!(escaped.collect::<Vec<_>>(), ["/s/no\\xff\\xfetext", "/s/two\\nlines \\xe4"]);

    let found = |name: &[u8], more: &str| {
        let said = with(&desk, "find a", name, more);
        let text = String::from_utf8(said.stdout).unwrap();
        text.lines().map(|line| line.split("  /s/").last().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found(b"a[1]", ""), ["a1", "a[1]"], "the pattern, and its very name");
    assert_eq!(found(b"a[1]", "--exact"), ["a[1]"]);
    for name in [
        &b"no\xff\xfetext"[..],
        b"no\\xff\\xfetext",
        b"/s/no\xff\xfetext",
        b".//s/no\\xff\\xfetext",
    ] {
        assert_eq!(found(name, ""), ["no\\xff\\xfetext"]);
    }
}

#[test]
fn ls_shows_times_when_it_is_asked_for_them() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/file"), b"content").unwrap();
    set_time(&desk.path("tree/file"), 1_000_000_000);
    desk.ok("backup a tree --set t --as /s");
    desk.ok("put a s tree/file");
    let ls = |arguments: &str| {
        let mut command = desk.command(arguments);
        let said = command.env("TZ", "UTC").output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    assert!(
        ls("ls a t /s -l").ends_with("  2001-09-09 01:46  /s/file\n"),
        "{}",
        ls("ls a t /s -l")
    );
    assert!(ls("ls a t -l").contains("  2001-09-09 01:46  /s/file\n"));
    assert!(ls("ls a t /s/file --long").contains("2001-09-09"));
    assert!(!ls("ls a t /s").contains("2001"));
    assert!(ls("ls a -l").contains("bytes  20"), "{}", ls("ls a -l"));
}

#[test]
fn what_needs_an_option_is_named_with_it_behind_the_result() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    let program = desk.path("tree/program");
    fs::write(&program, b"content").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    desk.ok("backup a tree --set t --as /s");
    let mode = |out: &str| {
        let found = fs::metadata(desk.path(out).join("s/program")).unwrap();
        found.permissions().mode() & 0o7777
    };
    for (out, level) in [("out", "info"), ("other", "error")] {
        let said = desk.run(&format!("restore a t -C {out} --log {level}"));
        assert_eq!((said.status.code(), mode(out)), (Some(0), 0o755), "{said:?}");
        let told = "onefold: warning: left out: 1 set-id or sticky bit; ";
        assert!(said.err.starts_with(told) && said.err.lines().count() == 1, "{said:?}");
        assert!(said.err.contains("--preserve-privileged"), "{said:?}");
    }
    desk.ok("restore a t -C out --in-place --preserve-privileged");
    assert_eq!(mode("out"), 0o4755);
}

#[test]
fn who_finds_nothing_by_a_pattern_is_told_how_patterns_are_matched() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir_all(desk.path("tree/sub")).unwrap();
    fs::write(desk.path("tree/sub/notes.odt"), b"content").unwrap();
    desk.ok("backup a tree --set t --as /s");
    desk.fails("restore a t *.odt -C out", 1, &["nothing at '*.odt'", "whole paths", "'**/*.odt'"]);
    desk.fails("restore a t notes.odt -C out", 1, &["a path is a whole one", "'**/NAME'"]);
    desk.ok("restore a t **/*.odt -C out");
    desk.fails("find a /*.odt", 1, &["no snapshot has it", "a whole path", "'*.odt'"]);
    desk.fails("find a s/*.odt", 1, &["no snapshot has it", "* stands for no /"]);
    desk.fails("find a notes", 1, &["no snapshot has it", "'*note*'"]);
    assert!(desk.ok("find a *note*").ends_with("  /s/sub/notes.odt\n"));
}

#[test]
fn paths_of_snapshots_are_told_in_one_form() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    desk.ok("backup a tree --set t --as /s");
    fs::write(desk.path("tree/new"), b"content").unwrap();
    desk.ok("backup a tree --set t --as /s");
    for (verb, all) in [
        ("ls a t", &["/s", "/s/new"][..]),
        ("ls a t /", &["/s"]),
        ("ls a t s", &["/s/new"]),
        ("ls a t s/new", &["/s/new"]),
        ("find a new", &["/s/new"]),
        ("diff a t~1 t", &["/s", "/s/new"]),
    ] {
        let text = desk.ok(verb);
        let shown = text.lines().filter(|line| line.contains(" /"));
        let shown: Vec<&str> = shown.map(|line| line.split(' ').next_back().unwrap()).collect();
        assert_eq!(shown, all, "{verb}: {text}");
        let lines = desk.ok(&format!("{verb} --json"));
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let paths = lines.filter_map(|line| line["path"].as_str().map(str::to_owned));
        assert_eq!(paths.collect::<Vec<_>>(), all, "{verb}");
    }
}
