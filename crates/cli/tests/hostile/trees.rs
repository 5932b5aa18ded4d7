//! Directory trees, walked and made again: rules 4 to 8.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_archive::{Archive, Gauge, PutRequest as Request, Settings, Shape, encode_entry, put};
use onefold_backend::Directory;
use onefold_core::tree::{Entry, What};

use crate::{
    actors::{STRANGER, Street},
    support::{Desk, noise, overwrite, unmount},
};

/// An entry with nothing special.
fn entry(path: &str, what: What) -> Entry {
    let mode = if what == What::Directory { 0o755 } else { 0o644 };
    Entry {
        path: path.into(),
        what,
        mode,
        uid: 0,
        gid: 0,
        seconds: 7,
        nanoseconds: 0,
        attributes: Vec::new(),
    }
}

fn link(target: &str) -> What {
    What::Symlink { target: target.into() }
}

fn hard(target: &str) -> What {
    What::HardLink { target: target.into() }
}

/// Stores a tree with any listing and any data under a name, as its hostile author would.
fn forge(archive: &Path, name: &str, entries: &[Entry], data: &[u8]) {
    let files = Arc::new(Directory::open(archive, true).unwrap());
    let archive = Arc::new(Archive::open(files, true, Settings::default()).unwrap());
    let mut names = Vec::new();
    entries.iter().for_each(|entry| encode_entry(entry, &mut names));
    let request =
        Request { domain: None, name: name.into(), shape: Shape::Tree, now: 1, wait: true };
    let stored = put(&archive, request, &Gauge::default(), |feeder| {
        feeder.bytes(data)?;
        feeder.end_recipe()?;
        feeder.bytes(&names)
    });
    stored.unwrap();
}

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

#[test]
fn rule_05_a_path_that_comes_twice_changes_nothing_outside() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::write(desk.path("victim"), "secret").unwrap();
    fs::set_permissions(desk.path("victim"), fs::Permissions::from_mode(0o600)).unwrap();
    let pipe = Entry { mode: 0o4777, ..entry("x", What::Fifo) };
    let victim = desk.path("victim");
    let twice = [entry("", What::Directory), pipe, entry("x", link(victim.to_str().unwrap()))];
    forge(&desk.path("a"), "t", &twice, b"");
    desk.fails("get a t -C out", 1, &["'x'"]);
    assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(count(&desk.path("out")), 0);
}

#[test]
fn rule_05_a_listing_is_checked_before_anything_is_created() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let file = || What::File { bytes: 0, data: Vec::new() };
    let mut deep = vec![entry("a", What::Directory)];
    deep.extend((1..4_097).map(|depth| entry(&vec!["a"; depth + 1].join("/"), What::Directory)));
    let bad: Vec<(&str, Vec<Entry>)> = vec![
        ("order", vec![entry("b", file()), entry("a", file())]),
        (
            "twice",
            vec![entry("a", What::Directory), entry("a/b", file()), entry("a", What::Directory)],
        ),
        (
            "left",
            vec![
                entry("a", What::Directory),
                entry("a/b", file()),
                entry("c", file()),
                entry("a/d", file()),
            ],
        ),
        ("orphan", vec![entry("a", file()), entry("b/c", file())]),
        ("file", vec![entry("a", file()), entry("a/b", file())]),
        ("through", vec![entry("a", link("/")), entry("a/b", file())]),
        ("outside", vec![entry("a", file()), entry("../b", file())]),
        ("later", vec![entry("a", hard("b")), entry("b", file())]),
        ("nothing", vec![entry("a", file()), entry("b", hard("aa"))]),
        ("itself", vec![entry("a", file()), entry("b", hard("b"))]),
        ("directory", vec![entry("a", What::Directory), entry("b", hard("a"))]),
        ("root", vec![entry("a", file()), entry("b", hard(""))]),
        ("above", vec![entry("a", file()), entry("b", hard("../victim"))]),
        ("deep", deep),
    ];
    for (name, entries) in bad {
        let all: Vec<Entry> = std::iter::once(entry("", What::Directory)).chain(entries).collect();
        forge(&desk.path("a"), name, &all, b"");
        desk.fails(&format!("get a {name} -C {name}"), 1, &[]);
        assert_eq!(count(&desk.path(name)), 0, "{name}");
    }
    forge(&desk.path("a"), "rootless", &[entry("a", file())], b"");
    desk.fails("get a rootless -C rootless", 1, &[]);
}

#[test]
fn rule_05_a_name_that_is_there_is_an_error_unless_it_may_be_replaced() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir_all(desk.path("tree/d")).unwrap();
    fs::write(desk.path("tree/d/file"), "stored").unwrap();
    fs::write(desk.path("tree/e"), "stored").unwrap();
    desk.ok("put a t -r tree");
    fs::create_dir_all(desk.path("out/other")).unwrap();
    fs::write(desk.path("out/e"), "there").unwrap();
    let said = desk.fails("get a t -C out", 1, &["out/e", "--in-place"]);
    assert!(said.err.contains("'e'"), "{}", said.err);
    assert_eq!(fs::read(desk.path("out/e")).unwrap(), b"there");
    fs::remove_dir_all(desk.path("out/d")).unwrap();
    // A link in the way is replaced, not followed; what the tree does not have stays.
    fs::remove_file(desk.path("out/e")).unwrap();
    fs::write(desk.path("victim"), "secret").unwrap();
    symlink(desk.path("victim"), desk.path("out/e")).unwrap();
    desk.ok("get a t -C out --in-place");
    desk.ok("get a t -C out --in-place");
    assert_eq!(fs::read(desk.path("out/e")).unwrap(), b"stored");
    assert_eq!(fs::read(desk.path("victim")).unwrap(), b"secret");
    assert!(desk.path("out/other").is_dir());
}

#[test]
#[ignore = "needs root"]
fn rule_05_who_renames_inside_the_destination_gets_nothing() {
    let street = Street::new();
    let run = |arguments: &str| street.onefold(0, arguments).output().unwrap();
    assert!(run("create archive a").status.success());
    for n in 0..40 {
        let directory = street.path(&format!("tree/d/{n:03}"));
        fs::create_dir_all(&directory).unwrap();
        (0..5).for_each(|file| {
            fs::write(directory.join(format!("f{file}")), noise(n * 5 + file, 5_000)).unwrap()
        });
    }
    assert!(run("put a t -r tree").status.success());
    let target = street.home("target", STRANGER);
    for n in 0..25 {
        let (out, done) = (street.home(&format!("out{n}"), STRANGER), AtomicBool::new(false));
        // Theirs from the beginning: a directory that root makes could be the restore's own.
        let other = street.home(&format!("other{n}"), STRANGER);
        (0..40).for_each(|n| fs::create_dir(other.join(format!("{n:03}"))).unwrap());
        let mut found = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (theirs, ours) = (out.join("d"), out.join("away"));
                while !done.load(Relaxed) {
                    if theirs.is_dir() && fs::rename(&theirs, &ours).is_ok() {
                        fs::rename(&other, &theirs).unwrap();
                        symlink(&target, out.join("e")).unwrap();
                        break;
                    }
                }
            });
            let _ = run(&format!("get a t -C out{n}")).status;
            done.store(true, Relaxed);
        });
        if out.join("away").exists() {
            (0..40).for_each(|n| found += count(&out.join(format!("d/{n:03}"))));
        }
        assert_eq!(found, 0, "round {n}");
        assert!(
            !out.join("away").exists() || fs::metadata(out.join("d")).unwrap().uid() == STRANGER,
            "round {n}: it was given away"
        );
    }
    assert_eq!(count(&target), 0);
}

/// A tree with all that needs privileges, made by root.
fn privileged_tree(root: &Path) {
    fs::create_dir_all(root.join("sticky")).unwrap();
    for (name, mode) in [("sticky", 0o1777), ("setuid", 0o4755), ("plain", 0o640)] {
        let path = root.join(name);
        if name != "sticky" {
            fs::write(&path, "content").unwrap();
        }
        std::os::unix::fs::chown(&path, Some(STRANGER), Some(STRANGER)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let run = |program: &str, arguments: &[&str]| {
        let done = Command::new(program).args(arguments).current_dir(root).status().unwrap();
        assert!(done.success(), "{program} {arguments:?}");
    };
    run("mknod", &["device", "c", "1", "3"]);
    run("mkfifo", &["-m", "0622", "pipe"]);
    run("ln", &["device", "device2"]);
    run("setfattr", &["-n", "user.mine", "-v", "yes", "plain"]);
    run("setfattr", &["-n", "trusted.theirs", "-v", "yes", "plain"]);
}

fn attribute(path: &Path, name: &str) -> bool {
    let mut value = [0; 64];
    rustix::fs::lgetxattr(path, name, &mut value[..]).is_ok()
}

#[test]
#[ignore = "needs root"]
fn rule_06_privileges_are_restored_only_when_asked_for() {
    let desk = Desk::new();
    desk.ok("create archive a");
    privileged_tree(&desk.path("tree"));
    fs::set_permissions(desk.path("tree"), fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::chown(desk.path("tree"), Some(STRANGER), Some(STRANGER)).unwrap();
    desk.ok("put a t -r tree");
    fs::create_dir(desk.path("out")).unwrap();
    fs::set_permissions(desk.path("out"), fs::Permissions::from_mode(0o700)).unwrap();
    let said = desk.run("get a t -C out --json");
    assert!(said.status.success(), "{said:?}");
    assert!(
        said.err.contains("--preserve-privileged") && said.err.lines().count() == 1,
        "{}",
        said.err
    );
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let left = &report["left_out"];
    assert_eq!(
        (left["special_bits"].as_u64(), left["devices"].as_u64()),
        (Some(1), Some(2)),
        "{report}"
    );
    assert_eq!(
        (left["attributes"].as_u64(), left["owners"].as_u64()),
        (Some(1), Some(0)),
        "{report}"
    );
    let look = |name: &str| fs::symlink_metadata(desk.path(name)).unwrap();
    let shown = |name: &str| (look(name).mode() & 0o7777, look(name).uid());
    assert_eq!(shown("out"), (0o700, 0), "the destination stays as it was");
    assert_eq!(
        (shown("out/setuid"), shown("out/sticky"), shown("out/plain")),
        ((0o755, STRANGER), (0o1777, STRANGER), (0o640, STRANGER))
    );
    assert_eq!(shown("out/pipe"), (0o622, 0));
    assert!(!desk.path("out/device").exists() && !desk.path("out/device2").exists());
    assert!(
        attribute(&desk.path("out/plain"), "user.mine")
            && !attribute(&desk.path("out/plain"), "trusted.theirs")
    );
    desk.ok("get a t -C all --preserve-privileged");
    assert_eq!(
        (shown("all/setuid"), shown("all/sticky")),
        ((0o4755, STRANGER), (0o1777, STRANGER))
    );
    assert!(
        look("all/device").file_type().is_char_device()
            && look("all/device").rdev() == look("all/device2").rdev()
    );
    assert!(attribute(&desk.path("all/plain"), "trusted.theirs"));
}

/// Lets a directory hand rights down to what is made in it; false where there are no such lists.
fn hands_rights_down(directory: &Path, user: u32) -> bool {
    let set = Command::new("setfacl")
        .args(["-d", "-m", &format!("u::rwx,u:{user}:rwx,g::rwx,o::rwx")])
        .arg(directory)
        .status();
    set.is_ok_and(|set| set.success())
}

/// A tree whose files others may not use, one of them with a list of rights of its own.
fn closed_tree(tree: &Path) {
    fs::create_dir_all(tree.join("d")).unwrap();
    for (name, mode) in [("f", 0o640), ("d/g", 0o660), ("listed", 0o640), ("d", 0o770)] {
        if name != "d" {
            fs::write(tree.join(name), "not for others").unwrap();
        }
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let made = Command::new("mkfifo").args(["-m", "660"]).arg(tree.join("pipe")).status().unwrap();
    assert!(made.success());
    let made = Command::new("mkfifo").arg(tree.join("listed-pipe")).status().unwrap();
    assert!(made.success());
    for name in ["listed", "listed-pipe"] {
        let set = Command::new("setfacl").args(["-m", "u:daemon:r"]).arg(tree.join(name)).status();
        assert!(set.unwrap().success());
    }
}

/// Restored files have the rights that were stored, and none that a directory hands down.
#[track_caller]
fn has_stored_rights(out: &Path) {
    for (name, mode) in [("f", 0o640), ("d", 0o770), ("d/g", 0o660), ("pipe", 0o660)] {
        let path = out.join(name);
        for list in ["system.posix_acl_access", "system.posix_acl_default"] {
            assert!(!attribute(&path, list), "{name} has {list}");
        }
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o7777, mode, "{name}");
    }
    for name in ["listed", "listed-pipe"] {
        let told = Command::new("getfacl").arg("-cp").arg(out.join(name)).output().unwrap();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let users: Vec<&str> = told.lines().filter(|line| line.starts_with("user:")).collect();
        assert_eq!((users.len(), users.get(1)), (2, Some(&"user:daemon:r--")), "{name}: {told}");
    }
}

#[test]
fn rule_06_a_directory_hands_no_rights_down_to_what_is_restored() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("out")).unwrap();
    if !hands_rights_down(&desk.path("out"), STRANGER) {
        println!("no default ACLs here: nothing to try");
        return;
    }
    closed_tree(&desk.path("tree"));
    desk.ok("put a t -r tree");
    desk.ok("get a t -C out");
    has_stored_rights(&desk.path("out"));
    // Neither does what was there before.
    fs::remove_dir_all(desk.path("out/d")).unwrap();
    fs::create_dir(desk.path("out/d")).unwrap();
    assert!(attribute(&desk.path("out/d"), "system.posix_acl_default"));
    desk.ok("get a t -C out --in-place");
    has_stored_rights(&desk.path("out"));
    assert!(attribute(&desk.path("out"), "system.posix_acl_default"), "the destination is its own");
}

#[test]
#[ignore = "needs root"]
fn rule_06_no_user_reads_what_root_restores_below_a_directory_of_that_user() {
    let street = Street::new();
    let home = street.home("home", STRANGER);
    let run = |arguments: &str| {
        let said = street.onefold(0, arguments).output().unwrap();
        assert!(said.status.success(), "{said:?}");
    };
    run("create archive a");
    if !hands_rights_down(&home, STRANGER) {
        println!("no default ACLs here: nothing to try");
        return;
    }
    closed_tree(&street.path("tree"));
    run("put a t -r tree");
    run("get a t -C home");
    has_stored_rights(&home);
    for name in ["home/f", "home/d/g"] {
        let read = street.program(STRANGER, Path::new("cat")).arg(street.path(name)).output();
        assert!(!read.unwrap().status.success(), "{name}");
    }
}

#[test]
#[ignore = "needs root"]
fn rule_06_a_user_gets_what_a_user_may_have() {
    let street = Street::new();
    let home = street.home("home", STRANGER);
    privileged_tree(&home.join("tree"));
    let run = |arguments: &str| street.onefold(STRANGER, arguments).output().unwrap();
    assert!(run("create archive home/a").status.success());
    assert!(run("put home/a t -r home/tree").status.success());
    let said = run("get home/a t -C home/out");
    assert!(said.status.success(), "{said:?}");
    let mode = |name: &str| fs::metadata(home.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("out/setuid"), mode("out/sticky"), mode("out/plain")), (0o755, 0o1777, 0o640));
    assert!(!home.join("out/device").exists() && !home.join("out/device2").exists());
    assert!(String::from_utf8_lossy(&said.stderr).contains("left out"), "{said:?}");
}

/// Makes directories in each other, deeper than any path can say.
fn dig(root: &Path, levels: usize) {
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    let mut at = rustix::fs::open(root, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
        at = openat(&at, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let file =
        openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o600)).unwrap();
    rustix::io::write(&file, &noise(1, 5_000)).unwrap();
}

/// A directory that is too deep for what removes the others.
struct Deep(std::path::PathBuf);

impl Drop for Deep {
    fn drop(&mut self) {
        let _ = Command::new("rm").arg("-rf").arg(&self.0).status();
    }
}

#[test]
fn rule_04_twenty_thousand_levels_are_walked() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let _removed = (Deep(desk.path("deep")), Deep(desk.path("out")));
    fs::create_dir_all(desk.path("deep/z")).unwrap();
    fs::write(desk.path("deep/z/last"), "seen").unwrap();
    dig(&desk.path("deep"), 20_000);
    // Where a machine is slow it tells how far it is.
    let found: serde_json::Value =
        serde_json::from_str(&desk.run("estimate --json deep").out).unwrap();
    assert_eq!((found["files"].as_u64(), found["unreadable"].as_u64()), (Some(2), Some(0)));
    // Entries deeper than a get would go are left out, and named.
    let said = desk.run("put a t -r deep");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(said.err.contains("4096 levels"), "{}", said.err);
    fs::create_dir(desk.path("out")).unwrap();
    let said = desk.run("get a t -C out");
    assert!(said.status.success() && desk.path("out/z/last").exists(), "{said:?}");
}

/// A listing says the whole path of each entry: long names that lie in each other make it as large
/// as their user likes, and readers take no entry of any size.
#[test]
fn rule_07_what_a_listing_can_not_hold_is_left_out_and_named() {
    use rustix::fs::{AtFlags, Mode, OFlags, linkat, mkdirat, openat};
    const FILES: usize = 700;
    let desk = Desk::new();
    desk.ok("create archive a");
    let _removed = (Deep(desk.path("deep")), Deep(desk.path("out")));
    fs::create_dir(desk.path("deep")).unwrap();
    fs::write(desk.path("deep/a file"), "seen").unwrap();
    let (name, mode) = ("n".repeat(255), Mode::from_raw_mode(0o700));
    let mut at = rustix::fs::open(desk.path("deep"), OFlags::DIRECTORY, Mode::empty()).unwrap();
    // Here its path has 16 KiB, and below more.
    for level in 0..68 {
        if level == 60 {
            for n in (0..FILES).step_by(2) {
                let one = format!("file {n:04}");
                openat(&at, &one, OFlags::CREATE | OFlags::WRONLY, mode).unwrap();
                linkat(&at, &one, &at, format!("file {n:04} again"), AtFlags::empty()).unwrap();
            }
        }
        mkdirat(&at, &name, mode).unwrap();
        at = openat(&at, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let said = desk.run("put a t -r deep");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(said.err.contains("a path of more than 16384 bytes"), "{}", said.err);
    fs::create_dir(desk.path("out")).unwrap();
    let said = desk.run("get a t -C out");
    assert!(said.status.success() && desk.path("out/a file").exists(), "{said:?}");
    let entries = desk.run("ls a t").out.matches("file 0").count();
    assert!(entries >= FILES, "{entries}");
    // What could never be read again is not stored in the first place.
    desk.ok("check a");
}

#[test]
#[ignore = "needs root"]
fn rule_07_what_cannot_be_read_is_named_and_the_rest_is_stored() {
    let street = Street::new();
    let home = street.home("home", STRANGER);
    fs::create_dir_all(home.join("tree/closed")).unwrap();
    fs::write(home.join("tree/closed/inside"), "x").unwrap();
    (0..1_000).for_each(|n| fs::write(home.join(format!("tree/f{n:04}")), noise(n, 100)).unwrap());
    for name in ["tree/f0500", "tree/closed"] {
        fs::set_permissions(home.join(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let run = |arguments: &str| street.onefold(STRANGER, arguments).output().unwrap();
    assert!(run("create archive home/a").status.success());
    let strict = run("put home/a t -r home/tree --strict");
    assert_eq!(strict.status.code(), Some(1), "{strict:?}");
    assert_eq!(run("ls home/a").stdout, b"no streams\n");
    let said = run("put home/a t -r home/tree --json");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    let told = String::from_utf8_lossy(&said.stderr);
    assert!(told.contains("f0500") && told.contains("closed"), "{told}");
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(
        (report["incomplete"].as_bool(), report["skipped"].as_u64()),
        (Some(true), Some(2)),
        "{report}"
    );
    let list: serde_json::Value = serde_json::from_slice(&run("ls home/a --json").stdout).unwrap();
    assert_eq!(list[0]["incomplete"], true);
    assert!(String::from_utf8_lossy(&run("ls home/a").stdout).contains("incomplete"));
    let back = run("get home/a t -C home/out");
    assert!(back.status.success(), "{back:?}");
    // All files but one, and the directory that nobody could look into.
    assert_eq!(count(&home.join("out")), 1_000);
    // A collection finds nothing strange about the archive, and a whole tree replaces the
    // incomplete one.
    assert!(run("gc home/a").status.success() && run("check home/a").status.success());
    for name in ["tree/f0500", "tree/closed"] {
        fs::set_permissions(home.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert!(run("put home/a t -r home/tree").status.success());
    let list: serde_json::Value = serde_json::from_slice(&run("ls home/a --json").stdout).unwrap();
    assert_eq!(list[0]["incomplete"], false);
}

/// A small file system on a loop device over a file, mounted while this lives.
struct Mounted {
    image: std::path::PathBuf,
    at: std::path::PathBuf,
}

impl Mounted {
    fn new(image: &Path, at: &Path, bytes: u64) -> Mounted {
        fs::File::create(image).unwrap().set_len(bytes).unwrap();
        fs::create_dir_all(at).unwrap();
        assert!(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-O", "^has_journal"])
                .arg(image)
                .status()
                .unwrap()
                .success()
        );
        let mounted = Mounted { image: image.to_owned(), at: at.to_owned() };
        mounted.mount("loop");
        mounted
    }

    fn mount(&self, options: &str) {
        assert!(
            Command::new("mount")
                .args(["-o", options])
                .arg(&self.image)
                .arg(&self.at)
                .status()
                .unwrap()
                .success()
        );
    }

    fn unmount(&self) {
        unmount(&self.at);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.unmount();
        } else {
            let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn rule_07_a_file_that_fails_in_its_middle_does_not_claim_to_be_whole() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/z"), "after it").unwrap();
    let mounted = Mounted::new(&desk.path("image"), &desk.path("tree/fs"), 64 << 20);
    fs::write(desk.path("tree/fs/big"), noise(1, 40 << 20)).unwrap();
    mounted.unmount();
    mounted.mount("loop,ro");
    fs::File::options().write(true).open(desk.path("image")).unwrap().set_len(24 << 20).unwrap();
    desk.fails("put a t -r tree --strict", 1, &["fs/big"]);
    let said = desk.run("put a t -r tree");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(said.err.contains("fs/big"), "{}", said.err);
    drop(mounted);
    let said = desk.run("get a t -C out --json");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(said.err.contains("fs/big"), "{}", said.err);
    assert_eq!(fs::read(desk.path("out/z")).unwrap(), b"after it");
    assert!(
        desk.ok("ls a t").lines().any(|line| line.contains("fs/big") && line.contains("in part"))
    );
}

#[test]
fn rule_07_patterns_leave_out_what_they_name() {
    let desk = Desk::new();
    desk.ok("create archive a");
    for path in [
        "keep/x.o",
        "keep/y.c",
        "node_modules/z",
        "deep/node_modules/z",
        "only/sub/f",
        "deep/only/sub/f",
        "cache/data",
        "cache2/data",
    ] {
        let path = desk.path("tree").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    fs::write(
        desk.path("tree/cache/CACHEDIR.TAG"),
        "Signature: 8a477f597d28d172789f06886806bc55\n# a cache",
    )
    .unwrap();
    fs::write(desk.path("tree/cache2/CACHEDIR.TAG"), "something else").unwrap();
    fs::write(desk.path("patterns"), "# objects\n*.o\n\n").unwrap();
    let listed = |options: &str| -> Vec<String> {
        desk.ok(&format!("put a t -r tree {options}"));
        let lines = desk.ok("ls a t");
        lines.lines().map(|line| line.split_whitespace().last().unwrap().to_owned()).collect()
    };
    let has = |all: &[String], path: &str| all.iter().any(|found| found == path);
    let all = listed(
        "--exclude-from patterns --exclude node_modules/ --exclude /only --exclude-caches \
         --one-file-system",
    );
    assert!(!has(&all, "keep/x.o") && has(&all, "keep/y.c"), "{all:?}");
    assert!(!has(&all, "node_modules") && !has(&all, "deep/node_modules"), "{all:?}");
    assert!(!has(&all, "only") && has(&all, "deep/only/sub/f"), "{all:?}");
    assert!(
        !has(&all, "cache/data") && has(&all, "cache/CACHEDIR.TAG") && has(&all, "cache2/data"),
        "{all:?}"
    );
    let all = listed("--exclude only/*/f --exclude k*p/**");
    assert!(
        has(&all, "only/sub") && !has(&all, "only/sub/f") && !has(&all, "deep/only/sub/f"),
        "{all:?}"
    );
    assert!(has(&all, "keep") && !has(&all, "keep/y.c"), "{all:?}");
    let absolute = desk.path("tree/keep");
    let all = listed(&format!("--exclude {}", absolute.display()));
    assert!(!has(&all, "keep") && has(&all, "cache"), "{all:?}");
    desk.fails("put a t -r tree --exclude {a", 2, &["{a"]);
    let all = listed("--exclude *.c --exclude !keep/y.c --exclude-larger 1");
    assert!(has(&all, "keep/y.c"), "{all:?}");
    desk.fails("put a t patterns --exclude x", 2, &["--recursive"]);
    desk.fails("put a t -r tree --exclude-from missing", 1, &["missing"]);
    desk.fails("get a t --output file --in-place", 2, &["-C"]);
}

#[test]
#[ignore = "needs root"]
fn rule_07_a_put_through_the_server_is_incomplete_too() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let _removed = Deep(desk.path("tree"));
    fs::create_dir_all(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/a"), "x").unwrap();
    dig(&desk.path("tree"), 5_000);
    let serving = desk.serve("a --nbd unix:a.sock");
    desk.fails("put a t -r tree --strict", 1, &["4096 levels"]);
    let said = desk.run("put a t -r tree --json");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    let list: serde_json::Value = serde_json::from_str(&desk.ok("ls a --json")).unwrap();
    assert_eq!(
        (list.as_array().unwrap().len(), &list[0]["incomplete"]),
        (1, &serde_json::Value::Bool(true))
    );
    serving.terminate();
}

#[test]
fn rule_08_an_output_that_fails_leaves_nothing() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    fs::write(desk.path("file"), noise(10, 3_000_000)).unwrap();
    desk.ok("put a s file");
    fs::create_dir(desk.path("to")).unwrap();
    fs::write(desk.path("to/there"), "kept").unwrap();
    desk.fails("get a s --output to/there", 1, &["to/there"]);
    assert_eq!(fs::read(desk.path("to/there")).unwrap(), b"kept");
    desk.ok("get a s --output to/whole");
    assert_eq!(fs::metadata(desk.path("to/whole")).unwrap().mode() & 0o7777, 0o600);
    assert!(fs::read(desk.path("to/whole")).unwrap() == noise(10, 3_000_000));
    overwrite(&desk.path("a/segment-00000001"), 2_900_000, &[1, 2, 3]);
    desk.fails("get a s --output to/out", 1, &["container", "checksum"]);
    assert_eq!(count(&desk.path("to")), 2, "neither a file nor a part of one");
}

/// The system calls of a verb that matter here, in their order.
fn traced(desk: &Desk, arguments: &str, calls: &str) -> String {
    let log = desk.path("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-e", calls, "-o"]).arg(&log).arg(env!("CARGO_BIN_EXE_onefold"));
    let done =
        command.args(arguments.split_whitespace()).current_dir(desk.path("")).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    fs::read_to_string(log).unwrap()
}

#[test]
fn rule_08_what_was_restored_is_synced_before_it_is_reported() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/file"), "content").unwrap();
    desk.ok("put a t -r tree");
    desk.ok("put a s tree/file");
    let calls = traced(&desk, "get a t -C out --json", "trace=syncfs,fsync,write,utimensat");
    let place = |call: &str| {
        calls
            .lines()
            .position(|line| line.contains(call))
            .unwrap_or_else(|| panic!("no {call}: {calls}"))
    };
    let last_time =
        calls.lines().enumerate().filter(|(_, line)| line.contains("utimensat")).last().unwrap().0;
    assert!(last_time < place("syncfs("), "{calls}");
    assert!(place("syncfs(") < place("fsync(") && place("fsync(") < place("write(1"), "{calls}");
    let calls = traced(&desk, "get a s --output new", "trace=linkat,renameat2,fsync");
    let lines: Vec<&str> = calls
        .lines()
        .filter(|line| {
            line.contains("linkat") || line.contains("fsync") || line.contains("renameat2")
        })
        .collect();
    let linked = lines.iter().position(|line| line.contains("\"new\"")).unwrap();
    assert!(
        lines[..linked].iter().any(|line| line.contains("fsync"))
            && lines[linked..].iter().any(|line| line.contains("fsync")),
        "{calls}"
    );
}

#[test]
#[ignore = "needs root"]
fn rule_07_what_a_user_mounted_is_not_entered() {
    let helper =
        ["/usr/bin/fusermount3", "/bin/fusermount3"].into_iter().find(|at| Path::new(at).exists());
    let (Some(helper), true) = (helper, Path::new("/dev/fuse").exists()) else {
        println!("NOT TESTED: users mount nothing here, for want of /dev/fuse or fusermount3");
        return;
    };
    let street = Street::new();
    let home = street.home("home", STRANGER);
    let said = |mut command: Command| {
        let output = command.output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{:?}: {err}", output.status);
        err + &String::from_utf8_lossy(&output.stdout)
    };
    for name in ["mine", "tree", "point"] {
        let path = street.home(&format!("home/{name}"), STRANGER);
        fs::write(path.join("file"), "x").unwrap();
    }
    fs::remove_file(home.join("point/file")).unwrap();
    fs::remove_dir_all(home.join("mine")).unwrap();
    said(street.onefold(STRANGER, "create archive home/mine"));
    said(street.onefold(STRANGER, "backup home/mine home/tree --set t"));
    let mut mount = street
        .onefold(STRANGER, "mount home/mine home/point")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_mounted = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(home.join("point").to_str().unwrap())
    };
    for _ in 0..200 {
        if is_mounted() || mount.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    if !is_mounted() {
        println!("NOT TESTED: a user may not mount anything here");
        return;
    }
    said(street.onefold(0, "create archive roots"));
    let told = said(street.onefold(0, "backup roots home --set h"));
    assert!(told.contains("mounted a file system of his own"), "{told}");
    let told = said(street.onefold(0, "put roots stream -r home"));
    assert!(told.contains("mounted a file system of his own"), "{told}");
    let all = said(street.onefold(0, "ls roots h"));
    let below = |name: &str| all.lines().any(|line| line.contains(name));
    assert!(below("home/point") && !below("home/point/") && below("home/tree/file"), "{all}");
    // Who mounted it has it in a backup of his own.
    said(street.onefold(STRANGER, "backup home/mine home/point --set p"));
    let unmounted = Command::new(helper).arg("-u").arg(home.join("point")).status();
    assert!(unmounted.unwrap().success());
    mount.wait().unwrap();
}

#[test]
fn rule_07_an_archive_within_what_is_stored_is_left_out_of_itself() {
    let desk = Desk::new();
    fs::create_dir_all(desk.path("home/deep")).unwrap();
    fs::write(desk.path("home/letter"), "dear").unwrap();
    desk.ok("create archive home/deep/a");
    let said = desk.run("backup home/deep/a home --set h");
    assert!(said.status.success(), "{said:?}");
    let line = format!("{}: the archive itself is left out", desk.path("home/deep/a").display());
    assert_eq!(said.err.matches(&line).count(), 1, "{said:?}");
    let said = desk.run("put home/deep/a stream -r home");
    assert!(said.status.success() && said.err.contains(&line), "{said:?}");
    for listed in ["ls home/deep/a h", "ls home/deep/a stream"] {
        let all = desk.ok(listed);
        assert!(all.contains("letter") && all.contains("deep") && !all.contains("deep/a"), "{all}");
    }
    let said = desk.run("backup home/deep/a home/deep/a");
    assert!(
        said.status.code() == Some(1) && said.err.contains("does not store itself"),
        "{said:?}"
    );
    // A restore with removals takes nothing away that was left out.
    desk.ok("restore home/deep/a h -C / --in-place --delete --force");
    desk.ok("check home/deep/a");
}
