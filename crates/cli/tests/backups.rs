//! Snapshots of directories in archives, through the command: in, out, forgotten, killed, damaged.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{BufRead, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    process::Stdio,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use support::{Desk, noise, unmount};

/// The entries of a tree, by path: mode, owner, time, target or content.
type Listed = BTreeMap<String, (u32, u32, i64, Vec<u8>)>;

fn listed(root: &Path) -> Listed {
    let (mut all, mut wanted) = (Listed::new(), vec![root.to_owned()]);
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
        let told = (metadata.mode(), metadata.uid(), metadata.mtime_nsec(), content);
        all.insert(name, told);
    }
    all
}

/// Where a restore below `out` puts what lay at `path`.
fn restored(desk: &Desk, out: &str, path: &str) -> std::path::PathBuf {
    desk.path(out).join(desk.path(path).strip_prefix("/").unwrap())
}

/// A tree with some of everything.
fn plant(root: &Path) {
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("a"), b"hello").unwrap();
    fs::write(root.join("big"), noise(3, 2_000_000)).unwrap();
    fs::hard_link(root.join("a"), root.join("sub/again")).unwrap();
    symlink("../a", root.join("sub/link")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(20 << 20).unwrap();
    sparse.write_all_at(b"x", 7 << 20).unwrap();
    for n in 0..700 {
        fs::write(root.join(format!("sub/deep/{n:03}")), format!("file {n}")).unwrap();
    }
    fs::set_permissions(root.join("big"), fs::Permissions::from_mode(0o640)).unwrap();
    let file = fs::File::options().write(true).open(root.join("big")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
}

fn backup(desk: &Desk, arguments: &str) -> Value {
    serde_json::from_str(&desk.ok(&format!("backup a {arguments} --json"))).unwrap()
}

/// The snapshot of a tree with one more file: `name` with `content`, and most pages taken over. A file
/// whose times settle between two snapshots, because the clock has moved on by a minute, rewrites its
/// page, once: then the file changes again, and the next snapshot is looked at.
fn backup_of_one_more(desk: &Desk, name: &str, content: impl Fn(u8) -> Vec<u8>) -> Value {
    let mut made = Value::Null;
    for turn in 0..2 {
        fs::write(desk.path("tree").join(name), content(turn)).unwrap();
        made = backup(desk, "tree --set t");
        if made["pages_taken_over"].as_u64().unwrap() > made["pages_written"].as_u64().unwrap() {
            break;
        }
    }
    assert!(made["pages_taken_over"].as_u64().unwrap() > 5, "{made}");
    made
}

fn snapshots(desk: &Desk, arguments: &str) -> Vec<String> {
    let said: Value =
        serde_json::from_str(&desk.ok(&format!("snapshots a --json {arguments}"))).unwrap();
    let ids = said.as_array().unwrap().iter();
    ids.map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let tree = desk.path("tree");
    plant(&tree);
    let first = backup(&desk, "tree --set t");
    assert_eq!((first["state"].as_str(), first["left_out"].as_u64()), (Some("whole"), Some(0)));
    desk.ok("restore a t -C out");
    let out = restored(&desk, "out", "tree");
    assert_eq!(listed(&tree), listed(&out));
    let inode = |name: &str| fs::metadata(out.join(name)).unwrap().ino();
    assert_eq!(inode("a"), inode("sub/again"));
    assert!(fs::metadata(out.join("sparse")).unwrap().blocks() < 100, "holes stay holes");

    // Nothing changed: no page is written, and nothing is new.
    let second = backup(&desk, "tree --set t");
    assert_eq!(
        (second["new_bytes"].as_u64(), second["entries"].as_u64()),
        (Some(0), first["entries"].as_u64())
    );
    // One new name rewrites the way to it, and not the seven hundred beside it.
    let third = backup_of_one_more(&desk, "sub/deep/new", |turn| vec![turn; 3]);
    assert!(third["added_bytes"].as_u64().unwrap() < 20_000, "{third}");
    desk.ok("check a");
    desk.ok("scrub a");
    desk.ok("restore a t -C out3");
    assert_eq!(listed(&tree), listed(&restored(&desk, "out3", "tree")));
    // The older ones are as they were.
    let whole = tree.join("sub/deep/new");
    let id = first["id"].as_str().unwrap();
    desk.ok(&format!("restore a {id} -C out1"));
    assert!(!restored(&desk, "out1", "tree/sub/deep/new").exists() && whole.exists());
}

#[test]
fn files_that_did_not_change_are_not_read() {
    let desk = Desk::new();
    desk.ok("create archive a");
    // Sources are older than what was built of them.
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src/verbs");
    let file = fs::File::open(sources).unwrap();
    const TMPFS: u64 = 0x0102_1994;
    if rustix::fs::fstatfs(&file).unwrap().f_type as u64 == TMPFS {
        println!("NOT TESTED: times of tmpfs say nothing");
        return;
    }
    let first = backup(&desk, &format!("{sources} --set s --reread 0"));
    let second = backup(&desk, &format!("{sources} --set s --reread 0"));
    assert_eq!(second["files_read"].as_u64(), Some(0), "{second}");
    assert_eq!(second["files_unchanged"], first["files_read"]);
    assert_eq!(second["pages_written"].as_u64(), Some(0));
    // Each file has its day, and is read once on it, however many backups there are.
    let day = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_secs() / 86_400
    };
    let began = day();
    let again = backup(&desk, &format!("{sources} --set s --reread 1"));
    if day() == began {
        assert_eq!(again["files_read"].as_u64(), Some(0), "{again}");
    }
    assert_eq!(
        backup(&desk, &format!("{sources} --set s --read-all"))["files_read"],
        first["files_read"]
    );
    desk.ok("restore a s -C out");
    let out = desk.path("out").join(sources.strip_prefix('/').unwrap());
    assert_eq!(listed(Path::new(sources)), listed(&out));
}

#[test]
fn single_files_and_patterns_come_back() {
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    fs::write(desk.path("single"), b"alone").unwrap();
    backup(&desk, "single tree --set t --exclude empty --exclude *7");
    let at = |name: &str| desk.path(name).display().to_string();
    desk.ok(&format!("restore a t {} {}/sub/deep/*1 -C out", at("single"), at("tree")));
    let out = restored(&desk, "out", "tree");
    assert_eq!(fs::read(restored(&desk, "out", "single")).unwrap(), b"alone");
    let deep = listed(&out.join("sub/deep"));
    assert_eq!(deep.len(), 1 + 70);
    assert!(!out.join("a").exists() && !out.join("empty").exists());
    assert_eq!(desk.ok(&format!("cat a t {}", at("single"))), "alone");
    desk.fails(&format!("cat a t {}", at("tree")), 2, &["no file"]);
    assert_eq!(desk.ok(&format!("ls a t {}", at("tree"))).lines().count(), 4);
    assert!(desk.ok("ls a t").lines().count() > 600);
    desk.fails("restore a t /none -C out2", 1, &["nothing at '/none'"]);
    desk.fails("restore a other -C out2", 1, &["no snapshot 'other'"]);
    desk.fails(&format!("restore a t {} -C out", at("single")), 1, &["there already"]);
    desk.ok(&format!("restore a t {} -C out --in-place", at("single")));
    desk.fails("backup a none --set t", 1, &["none"]);
    assert_eq!(snapshots(&desk, "").len(), 1);
}

#[test]
fn rule_17_programs_hear_how_far_a_backup_is() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let content = noise(7, 3_000_000);
    for is_first in [true, false] {
        let mut backup = desk.command("backup a --set t --stdin data --json");
        let piped = backup.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut backup = piped.spawn().unwrap();
        let mut into = backup.stdin.take().unwrap();
        let mut lines = std::io::BufReader::new(backup.stderr.take().unwrap());
        // However long it takes, there is a line before the content ends.
        into.write_all(&content[..1_000_000]).unwrap();
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let told = &told["progress"];
        assert!(told["doing"].as_str().unwrap().starts_with("reading"), "{told}");
        assert!(told["done"].as_u64().unwrap() <= 1_000_000, "{told}");
        assert_eq!(told["unit"], "bytes", "{told}");
        // What is to come is known from the last snapshot.
        let total = if is_first { None } else { Some(3_000_000) };
        assert_eq!(told["total"].as_u64(), total, "{told}");
        assert!(told["per_second"].is_u64(), "{told}");
        assert!(is_first == told["seconds_left"].is_null(), "{told}");
        into.write_all(&content[1_000_000..]).unwrap();
        drop(into);
        let said = backup.wait_with_output().unwrap();
        assert!(said.status.success(), "{said:?}");
        let report: Value = serde_json::from_slice(&said.stdout).unwrap();
        assert_eq!(report["bytes"].as_u64(), Some(3_000_000), "{report}");
    }
}

/// What a command shows on a terminal; `None` where there is no program that makes one.
fn on_terminal(desk: &Desk, arguments: &str) -> Option<String> {
    let command = desk.command(arguments);
    let words = command.get_args().map(|word| word.to_str().unwrap());
    let line =
        format!("{} {}", command.get_program().display(), words.collect::<Vec<_>>().join(" "));
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(desk.path(""));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let Ok(said) = script.env("TERM", "xterm").stdin(Stdio::null()).output() else {
        println!("NOT TESTED: there is no program 'script'");
        return None;
    };
    assert!(said.status.success(), "{line}: {said:?}");
    Some(String::from_utf8_lossy(&said.stdout).into_owned())
}

#[test]
fn rule_17_find_and_diff_show_how_far_they_are() {
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    backup(&desk, "tree --set t");
    fs::write(desk.path("tree/a"), b"other").unwrap();
    backup(&desk, "tree --set t");
    let found = desk.ok("find a a");
    assert_eq!(found.lines().count(), 2, "{found}");
    let Some(shown) = on_terminal(&desk, "find a a") else { return };
    assert!(
        shown.contains("looking through the snapshots") && shown.contains(" left"),
        "{shown:?}"
    );
    // Each line of the answer is whole, and begins a line.
    let lines = |shown: &str, answer: &str| {
        let each = shown.split(['\n', '\r']).map(|line| line.trim_start_matches("\u{1b}[2K"));
        let each: Vec<&str> = each.collect();
        answer.lines().all(|line| each.contains(&line))
    };
    assert!(lines(&shown, &found), "{shown:?}");
    let differ = desk.ok("diff a t~1 t");
    let shown = on_terminal(&desk, "diff a t~1 t").unwrap();
    assert!(shown.contains("comparing") && lines(&shown, &differ), "{shown:?}");
    // A pager has the terminal for itself.
    let shown = on_terminal(&desk, "find a a | cat").unwrap();
    assert_eq!(shown.replace('\r', ""), found);
}

#[test]
fn rule_15_of_several_directories_a_missing_one_leaves_no_snapshot() {
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    backup(&desk, "tree --set t");
    let kept = snapshots(&desk, "");
    for roots in ["tree none", "none tree", "tree tree/none"] {
        desk.fails(&format!("backup a {roots} --set t"), 1, &["none"]);
    }
    assert_eq!(snapshots(&desk, ""), kept);
    desk.ok("check a");
}

#[test]
fn rule_14_what_is_left_out_may_have_names_that_are_no_text() {
    let desk = Desk::new();
    desk.ok("create archive a");
    // The directory that is stored has such a byte too.
    let name = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let root = desk.path("").join(name(b"tree\xfd"));
    fs::create_dir_all(root.join("sub")).unwrap();
    for one in [&b"typed\xff"[..], b"listed\xff", b"found\xff", b"kept\xff", b"kept\xfe", b"top"] {
        fs::write(root.join(name(one)), "x").unwrap();
        fs::write(root.join("sub").join(name(one)), "x").unwrap();
    }
    fs::write(root.join(".onefoldignore"), b"found\xff\nkept\xff\n").unwrap();
    fs::write(root.join("sub/.onefoldignore"), b"!kept\xff\n").unwrap();
    fs::write(desk.path("list"), b"# such names\nlisted\xff\n").unwrap();
    let mut backup = desk.command("backup a --set t --exclude-from list --exclude /top --exclude");
    let said = backup.arg(name(b"typed\xff")).arg(&root).output().unwrap();
    assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
    let listed = desk.ok("ls a t");
    let below = "tree\\xfd/";
    let mut stored: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_once(below).map(|(_, path)| path))
        .filter(|path| !path.ends_with(".onefoldignore"))
        .collect();
    stored.sort_unstable();
    let expected = ["kept\\xfe", "sub", "sub/kept\\xfe", "sub/kept\\xff", "sub/top"];
    assert_eq!(stored, expected, "{listed}");
    let mut backup = desk.command("backup a --set t --exclude");
    let typed = backup.arg(name(b"a//\xff")).arg(&root).output().unwrap();
    assert_eq!(typed.status.code(), Some(2), "{typed:?}");
    assert!(String::from_utf8_lossy(&typed.stderr).contains("'a//\\xff'"), "{typed:?}");
}

#[test]
fn patterns_and_marks_leave_things_out() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let files = [
        "keep.c",
        "keep.o",
        "sub/a.o",
        "sub/b.log",
        "sub/deep/b.log",
        "sub/deep/keep.log",
        "build/out",
        "marked/.nobackup",
        "marked/data",
        "strange/.nobackup",
        "strange/data",
        "large",
    ];
    for file in files {
        let path = desk.path("tree").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    fs::write(desk.path("tree/large"), noise(1, 5_000)).unwrap();
    fs::write(desk.path("tree/.onefoldignore"), "# of the tree\n*.log\n/build/\n[\n").unwrap();
    fs::write(desk.path("tree/sub/deep/.onefoldignore"), "!keep.log\n").unwrap();
    // A mark that is no file of the directory's owner, or of root, counts for nothing.
    let mark = desk.path("tree/strange/.nobackup");
    fs::remove_file(&mark).unwrap();
    symlink("data", &mark).unwrap();
    let stored = |options: &str| -> Vec<String> {
        let stored = backup(&desk, &format!("tree --set t --accept {options}"));
        assert_eq!(stored["state"].as_str(), Some("whole"));
        let lines = desk.ok("ls a t");
        let tree = desk.path("tree").display().to_string();
        // The line of the link ends with what it leads to.
        let paths = lines.lines().map(|line| line.split_whitespace().last().unwrap());
        paths.filter_map(|path| path.strip_prefix(&format!("{tree}/"))).map(str::to_owned).collect()
    };
    let all = stored(
        "--exclude *.o --exclude !/keep.o --exclude-if-present .nobackup --exclude-larger 4K",
    );
    let expected = [
        ".onefoldignore",
        "keep.c",
        "keep.o",
        "marked",
        "marked/.nobackup",
        "strange",
        "strange/data",
        "sub",
        "sub/deep",
        "sub/deep/.onefoldignore",
        "sub/deep/keep.log",
    ];
    assert_eq!(all, expected);
    let all = stored("--no-ignore-files");
    assert_eq!(all.len(), files.len() + 2 + 5 - 1, "{all:?}");
}

#[test]
fn lines_of_a_directory_that_can_match_nothing_are_told_once() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir_all(desk.path("tree/cache")).unwrap();
    fs::write(desk.path("tree/.onefoldignore"), "./cache\n../x\na//b\n# ./c\n\n*.o\n").unwrap();
    let said = desk.run("backup a tree --set t");
    assert!(said.status.success(), "{said:?}");
    let told: Vec<&str> = said.err.lines().filter(|line| line.contains(".onefoldignore")).collect();
    assert_eq!(told.len(), 1, "{}", said.err);
    let says = |part: &str| assert!(told[0].contains(part), "no '{part}' in {}", told[0]);
    says("3 lines can't be used");
    says("'./cache': no path has a name '.'");
    says("'/cache' is the one in the directory itself");
    assert!(desk.ok("ls a t").contains("/cache"));
}

#[test]
fn a_mounted_copy_is_stored_under_its_own_path() {
    let desk = Desk::new();
    desk.ok("create archive a");
    for tree in ["real/tree", "mounted"] {
        fs::create_dir_all(desk.path(tree)).unwrap();
        fs::write(desk.path(tree).join("a"), tree).unwrap();
        fs::hard_link(desk.path(tree).join("a"), desk.path(tree).join("b")).unwrap();
    }
    let real = desk.path("real/tree").display().to_string();
    backup(&desk, "real/tree --set t");
    let second = backup(&desk, &format!("mounted --as {real} --set t"));
    assert_eq!(second["paths"][0].as_str(), Some(&*real), "{second}");
    assert_eq!(desk.ok(&format!("cat a t {real}/b")), "mounted");
    desk.ok("restore a t -C out");
    let out = restored(&desk, "out", "real/tree");
    let inode = |name: &str| fs::metadata(out.join(name)).unwrap().ino();
    assert_eq!(inode("a"), inode("b"));
    desk.ok("backup a mounted/a --as /srv/none/file --set single");
    assert_eq!(desk.ok("cat a single /srv/none/file"), "mounted");
    desk.fails("backup a mounted real --as /x", 2, &["--as"]);
}

#[test]
fn a_snapshot_that_is_much_smaller_is_marked() {
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    backup(&desk, "tree --set t");
    fs::remove_dir_all(desk.path("tree")).unwrap();
    fs::create_dir(desk.path("tree")).unwrap();
    desk.fails("backup a tree --set t", 3, &["less than half", "--accept"]);
    let said: Value = serde_json::from_str(&desk.ok("snapshots a --json")).unwrap();
    assert_eq!(said[1]["state"].as_str(), Some("shrunk"));
    // It counts for no retention, and does not go.
    let said: Value = serde_json::from_str(&desk.ok("forget a --keep-last 1 --json")).unwrap();
    assert_eq!(
        (said[0]["verdict"].as_str(), said[1]["verdict"].as_str()),
        (Some("kept"), Some("left_alone"))
    );
    let checked = desk.run("status a --check");
    assert!(!checked.status.success() && checked.out.contains("marked as shrunk"), "{checked:?}");
    // The whole one is young, and for how long is the operator's word.
    desk.ok("status a --check --max-age 1h");
    std::thread::sleep(Duration::from_millis(2100));
    desk.fails("status a --check --max-age 1s", 1, &["1 thing needs an operator"]);
    // It is so small on purpose.
    assert_eq!(backup(&desk, "tree --set t --accept")["state"].as_str(), Some("whole"));
}

#[test]
fn holes_of_one_user_do_not_make_a_snapshot_shrunk() {
    let desk = Desk::new();
    desk.ok("create archive a");
    for directory in ["tree", "tree/user", "tree/other"] {
        fs::create_dir(desk.path(directory)).unwrap();
    }
    for n in 0..6 {
        fs::write(desk.path(&format!("tree/other/{n}")), noise(n, 200_000)).unwrap();
    }
    let holes = desk.path("tree/user/holes");
    let file = fs::File::create(&holes).unwrap();
    file.set_len(4 << 40).unwrap();
    // A little data between them.
    for n in 0..200 {
        file.write_all_at(b"x", n << 34).unwrap();
    }
    drop(file);
    backup(&desk, "tree --set t");
    fs::remove_file(&holes).unwrap();
    let second = backup(&desk, "tree --set t");
    assert_eq!(second["state"].as_str(), Some("whole"), "{second}");
    // What is data is missed.
    for n in 0..4 {
        fs::remove_file(desk.path(&format!("tree/other/{n}"))).unwrap();
        fs::write(desk.path(&format!("tree/other/{n}")), "").unwrap();
    }
    desk.fails("backup a tree --set t", 3, &["less than half", "--accept"]);
}

#[test]
fn what_was_forgotten_comes_back_until_a_collection_removed_it() {
    let desk = Desk::new();
    desk.ok("create archive a");
    for n in 0..4 {
        fs::create_dir_all(desk.path("tree")).unwrap();
        fs::write(desk.path("tree").join(format!("{n}")), noise(n, 300_000)).unwrap();
        backup(&desk, "tree --set t");
    }
    let all = snapshots(&desk, "");
    desk.fails("forget a", 2, &["--keep-"]);
    desk.fails("forget a --keep-last 1", 1, &["3 of its 4", "--force"]);
    desk.ok("forget a --keep-last 2 --dry-run");
    assert_eq!(snapshots(&desk, ""), all);
    desk.ok("forget a --keep-last 2");
    assert_eq!(snapshots(&desk, ""), all[2..]);
    assert_eq!(snapshots(&desk, "--forgotten"), all[..2]);
    // A collection sees them, and they stay for the time of the trash.
    desk.ok("gc a");
    desk.ok(&format!("undelete a {}", &all[0][..8]));
    assert_eq!(snapshots(&desk, "").len(), 3);
    desk.ok(&format!("restore a {} -C out", &all[0][..8]));
    assert_eq!(fs::read(restored(&desk, "out", "tree/0")).unwrap(), noise(0, 300_000));
    desk.ok(&format!("forget a {}", &all[3]));
    // A budget of nothing does nothing, and says so.
    let said: Value = serde_json::from_str(&desk.ok("gc a --trash 0 --for 0s --json")).unwrap();
    assert_eq!((said["cut_short"].as_bool(), said["in_trash"].as_u64()), (Some(true), Some(2)));
    desk.ok("gc a --trash 0");
    assert!(snapshots(&desk, "--forgotten").is_empty());
    desk.fails(&format!("undelete a {}", &all[3]), 1, &["no forgotten snapshot"]);
    // The newest had a file of its own, and its space is free again.
    desk.ok("gc a --trash 0 --keep-partial 0");
    let stored = desk.status("a")["stored_bytes"].as_u64().unwrap();
    assert!((900_000..1_100_000).contains(&stored), "{stored}");
    desk.ok("check a");
    desk.fails("forget a t~1 t~0 --keep-last 1", 2, &["not both"]);
}

/// The length of a file that is cut off changes at once, and its times when the cut has ended.
#[test]
fn a_file_that_is_cut_off_while_it_is_read_is_read_again() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    fs::create_dir(desk.path("tree")).unwrap();
    let file = desk.path("tree/file");
    fs::write(&file, noise(3, 300_000_000)).unwrap();
    let mut made = desk.command("backup a tree --set t --json");
    let made = made.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let stored = || {
        let names = fs::read_dir(desk.path("a")).unwrap().map(|entry| entry.unwrap());
        let segments =
            names.filter(|entry| entry.file_name().to_string_lossy().contains("segment"));
        segments.map(|entry| entry.metadata().unwrap().len()).sum::<u64>()
    };
    let begun = std::time::Instant::now();
    while stored() < 16 << 20 {
        assert!(begun.elapsed().as_secs() < 60, "nothing is stored");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(1 << 20).unwrap();
    let ended = made.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    desk.ok("restore a t -C out");
    let shown = file.strip_prefix("/").unwrap();
    assert!(fs::read(desk.path("out").join(shown)).unwrap() == noise(3, 300_000_000)[..1 << 20]);
}

#[test]
fn a_killed_backup_leaves_what_was_there() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/one"), b"one").unwrap();
    backup(&desk, "tree --set t");
    fs::write(desk.path("tree/two"), noise(9, 60_000_000)).unwrap();
    for milliseconds in [5, 20, 60, 120, 250] {
        let mut killed = desk.command("backup a tree --set t");
        let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        killed.kill().unwrap();
        killed.wait().unwrap();
        desk.ok("check a");
    }
    let made = backup(&desk, "tree --set t");
    assert_eq!(made["state"].as_str(), Some("whole"));
    desk.ok("restore a t -C out");
    assert_eq!(listed(&desk.path("tree")), listed(&restored(&desk, "out", "tree")));
    desk.ok("gc a --keep-partial 0");
    desk.ok("check a");
    desk.ok("scrub a");
}

#[test]
fn a_lost_chunk_costs_one_file() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    fs::create_dir(desk.path("tree")).unwrap();
    for name in ["a", "b", "c"] {
        let seed = u64::from(name.as_bytes()[0]);
        fs::write(desk.path("tree").join(name), noise(seed, 3_000_000)).unwrap();
    }
    backup(&desk, "tree --set t");
    // A byte in the middle of b.
    let wanted = &noise(u64::from(b'b'), 3_000_000)[1_500_000..1_500_016];
    let segment = desk.path("a/segment-1");
    let segment = if segment.exists() {
        segment
    } else {
        let names = fs::read_dir(desk.path("a")).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.to_str().unwrap().contains("segment-")).min().unwrap()
    };
    let bytes = fs::read(&segment).unwrap();
    let at = bytes.windows(16).position(|window| window == wanted).unwrap();
    let file = fs::File::options().write(true).open(&segment).unwrap();
    file.write_all_at(&[!bytes[at]], at as u64).unwrap();
    let said = desk.run("restore a t -C out");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(said.err.contains("b.damaged"), "{said:?}");
    let out = restored(&desk, "out", "tree");
    for name in ["a", "c"] {
        assert_eq!(
            fs::read(out.join(name)).unwrap(),
            fs::read(desk.path("tree").join(name)).unwrap()
        );
    }
    assert!(out.join("b.damaged").exists() && !out.join("b").exists());
    // Scrub notes it; the next backup reads the file again, which heals it.
    let said = desk.run("scrub a");
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let made = backup(&desk, "tree --set t");
    assert!(made["new_bytes"].as_u64().unwrap() > 0, "{made}");
    desk.ok("restore a t -C out2");
    assert_eq!(listed(&desk.path("tree")), listed(&restored(&desk, "out2", "tree")));
}

/// Lines of JSON.
fn lines(said: &str) -> Vec<Value> {
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_a_command_writes_is_a_snapshot_unless_it_fails() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let script = desk.path("dump");
    fs::write(&script, "#!/bin/sh\nseq 1 200000\nexit $1\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let script = script.display();
    desk.ok(&format!("backup a --set shop --stdin shop.sql -- {script} 0"));
    desk.fails(
        &format!("backup a --set shop --stdin shop.sql -- {script} 5"),
        1,
        &["dump failed", "5", "no snapshot"],
    );
    assert_eq!(snapshots(&desk, "--set shop").len(), 1);
    let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(desk.ok("cat a shop shop.sql"), expected);
    desk.fails("backup a --stdin a/b -- true", 1, &["can't be a file's name"]);
    desk.fails("backup a tree -- true", 2, &["--stdin"]);
}

#[test]
fn a_served_archive_takes_snapshots() {
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    backup(&desk, "tree --set t");
    let server = desk.serve("a");
    let made = backup_of_one_more(&desk, "new", |turn| noise(8 + u64::from(turn), 700_000));
    assert_eq!((made["state"].as_str(), made["parent"].is_string()), (Some("whole"), true));
    let new = made["new_bytes"].as_u64().unwrap();
    assert!((700_000..800_000).contains(&new), "{made}");
    let there = snapshots(&desk, "").len();
    desk.fails("backup a --set d --stdin x -- false", 1, &["false failed"]);
    assert_eq!(snapshots(&desk, "").len(), there);
    desk.ok("restore a t -C out");
    assert_eq!(listed(&desk.path("tree")), listed(&restored(&desk, "out", "tree")));
    drop(server);
    desk.ok("check a");
}

/// Names of the large directory: with their letters they take more memory than the limit leaves.
const MANY_NAMES: u32 = 300_000;

#[test]
fn rule_18_a_directory_with_more_names_than_memory_has_room_for_is_walked() {
    let desk = Desk::new();
    desk.ok("create archive a");
    // In memory, if there is such a place: the tree's own disk has no part in this.
    let place = tempfile::Builder::new().prefix("o").tempdir_in("/dev/shm");
    let place = place.or_else(|_| tempfile::tempdir_in(desk.path(""))).unwrap();
    let at = |name: &str| place.path().join(name);
    for name in ["few", "many"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("few/file"), b"").unwrap();
    let mut first = at("many/first");
    fs::write(&first, b"").unwrap();
    for n in 1..MANY_NAMES {
        // In no order. A name has 250 letters.
        let name = at("many").join(format!("{:08x}-{:x<241}", n.wrapping_mul(0x9e37_79b1), ""));
        if n % 1000 == 0 {
            // File systems bound the names of a file.
            fs::write(&name, b"").unwrap();
            first = name;
        } else {
            fs::hard_link(&first, name).unwrap();
        }
    }
    // A walk with so much address space, in MiB.
    let walk = |name: &str, room: u64| {
        let walks = desk.command("backup a --set s --dry-run --json");
        let mut command = desk.command("");
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", "ulimit -v $0 && exec \"$@\"", &(room << 10).to_string()]);
        limited.arg(walks.get_program()).args(walks.get_args()).arg(at(name));
        limited.current_dir(desk.path(""));
        for (name, value) in command.env("TMPDIR", desk.path("")).get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        let output = limited.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(serde_json::from_slice::<Value>(&output.stdout).unwrap()),
            false => Err(text(&output.stderr)),
        }
    };
    // What the program, its threads and a small directory need, and 56 MiB.
    let least = (24..1024).step_by(8).find(|&room| walk("few", room).is_ok()).unwrap();
    let few = walk("few", least + 56).unwrap()["entries"].as_u64().unwrap();
    let many = walk("many", least + 56).unwrap();
    assert_eq!(many["entries"].as_u64().unwrap(), few - 1 + u64::from(MANY_NAMES), "{many}");
    assert_eq!(many["left_out"], 0, "{many}");
    assert_eq!(many["files_to_read"].as_u64().unwrap(), u64::from(MANY_NAMES).div_ceil(1000));
}

#[test]
fn a_dry_run_tells_what_would_be_read_and_stores_nothing() {
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    let before = desk.status("a")["stored_bytes"].clone();
    let said = backup(&desk, "tree --set t --dry-run");
    let made = backup(&desk, "tree --set t");
    let agree = |said: &Value, made: &Value| {
        for key in ["entries", "bytes", "left_out", "excluded", "files_unchanged"] {
            assert_eq!(said[key], made[key], "{key}");
        }
        assert_eq!(said["files_to_read"], made["files_read"]);
        assert_eq!(said["bytes_to_read"], made["bytes_read"]);
    };
    agree(&said, &made);
    assert_eq!(snapshots(&desk, "").len(), 1);
    // A file with several names is read once, and counts once for each; so it does below two roots.
    for name in ["twice", "thrice"] {
        fs::hard_link(desk.path("tree/big"), desk.path("tree/sub").join(name)).unwrap();
    }
    for options in ["tree --set t", "tree/empty tree/sub tree/big --set u"] {
        for how in ["--dry-run", "--dry-run=read"] {
            let said = backup(&desk, &format!("{options} {how}"));
            agree(&said, &backup(&desk, options));
            assert!(said["bytes"].as_u64() > Some(6_000_000), "{said}");
        }
    }
    assert!(before.as_u64() < desk.status("a")["stored_bytes"].as_u64());
}

#[test]
fn a_dry_run_that_reads_tells_by_how_much_the_archive_would_grow() {
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    fs::write(desk.path("tree/big2"), noise(3, 2_000_000)).unwrap();
    let agrees = || {
        let before = desk.status("a")["stored_bytes"].clone();
        let said = backup(&desk, "tree --set t --dry-run=read");
        assert_eq!(desk.status("a")["stored_bytes"], before, "nothing is stored");
        let made = backup(&desk, "tree --set t");
        assert_eq!(said["new_bytes"], made["new_bytes"]);
        assert_eq!(said["files_to_read"], made["files_read"]);
        let bytes = |report: &Value| report["added_bytes"].as_u64().unwrap();
        let (said, made) = (bytes(&said), bytes(&made));
        // Directories on the way, in which others may be at work, may change between the two.
        assert!(said.abs_diff(made) <= made / 50 + 8_192, "{said} said, and {made} made");
        made
    };
    assert!(agrees() > 2_000_000);
    // What is stored is found, and so are pages of the last snapshot.
    assert!(agrees() < 50_000);
    fs::write(desk.path("tree/big3"), noise(5, 700_000)).unwrap();
    assert!((700_000..800_000).contains(&agrees()));
    let said = desk.ok("backup a tree --set t --dry-run=read");
    assert!(said.contains("the archive would grow by"), "{said}");

    // It waits for nobody who stores.
    let mut writer = desk.command("put a stream").stdin(Stdio::piped()).spawn().unwrap();
    let begun = std::time::Instant::now();
    while desk.run("put a probe tree/a --no-wait").status.success() {
        assert!(begun.elapsed().as_secs() < 60, "nobody stores");
        std::thread::sleep(Duration::from_millis(50));
    }
    backup(&desk, "tree --set t --dry-run=read");
    drop(writer.stdin.take());
    assert!(writer.wait().unwrap().success());
    desk.ok("check a");
}

#[test]
fn differences_and_versions_are_found() {
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    backup(&desk, "tree --set t");
    fs::write(desk.path("tree/a"), b"other").unwrap();
    fs::write(desk.path("tree/sub/deep/350"), b"changed").unwrap();
    fs::write(desk.path("tree/sub/deep/new"), b"12345").unwrap();
    fs::remove_dir(desk.path("tree/empty")).unwrap();
    fs::set_permissions(desk.path("tree/big"), fs::Permissions::from_mode(0o600)).unwrap();
    backup(&desk, "tree --set t");
    let mut said = lines(&desk.ok("diff a t~1 t --json"));
    let sums = said.pop().unwrap();
    let tree = desk.path("tree");
    let tree = tree.to_str().unwrap();
    let found: Vec<(String, String)> = said
        .iter()
        .map(|line| {
            let path = line["path"].as_str().unwrap();
            (line["change"].as_str().unwrap().into(), path.replace(tree, "T"))
        })
        // Other tests make and remove what lies above.
        .filter(|(_, path): &(String, String)| path.starts_with('T'))
        .collect();
    let has = |change: &str, path: &str| {
        assert!(found.contains(&(change.into(), path.into())), "{change} {path}: {found:?}");
    };
    has("content", "T/a");
    has("content", "T/sub/again");
    has("attributes", "T/big");
    has("removed", "T/empty");
    has("content", "T/sub/deep/350");
    has("added", "T/sub/deep/new");
    has("attributes", "T/sub/deep");
    assert_eq!(found.len(), 8, "and the directory itself: {found:?}");
    assert_eq!((sums["added"].as_u64(), sums["added_bytes"].as_u64()), (Some(1), Some(5)));
    assert!(lines(&desk.ok("diff a t t --json")).len() == 1, "nothing differs");

    let found = lines(&desk.ok("find a 350 deep/351 --json"));
    let versions: Vec<u64> = found.iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
    assert_eq!(versions, [7, 8, 8], "the newest first, and what did not change once");
    assert_eq!(lines(&desk.ok("find a empty/ --json")).len(), 1);
    desk.fails("find a nothing", 1, &["no snapshot has it"]);
}

#[test]
fn snapshots_are_mounted() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("NOT TESTED: mounting needs /dev/fuse and root");
        return;
    }
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    backup(&desk, "tree --set t");
    fs::write(desk.path("tree/a"), b"other").unwrap();
    backup(&desk, "tree --set t");
    backup(&desk, "tree/sub --set un/usual");
    fs::create_dir(desk.path("m")).unwrap();
    let mut mount = desk.command("mount a m").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(mount.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.contains("mounted at"), "{line}");
    let at = |set: &str, path: &str| {
        let tree = desk.path(path);
        desk.path("m").join(set).join("latest").join(tree.strip_prefix("/").unwrap())
    };
    assert_eq!(listed(&desk.path("tree")), listed(&at("t", "tree")));
    assert_eq!(listed(&desk.path("tree/sub")), listed(&at("un_usual", "tree/sub")));
    let metadata = |name: &str| fs::metadata(at("t", "tree").join(name)).unwrap();
    assert_eq!(metadata("a").ino(), metadata("sub/again").ino());
    assert_eq!(metadata("big").mode() & 0o7777, 0o640);
    let mut sets: Vec<String> = fs::read_dir(desk.path("m"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    sets.sort();
    assert_eq!(sets, ["t", "un_usual"]);
    assert_eq!(fs::read_dir(desk.path("m/t")).unwrap().count(), 3, "two, and the link");
    assert!(fs::write(at("t", "tree").join("x"), b"x").is_err());
    // A part of a file.
    let mut part = [0; 1000];
    let file = fs::File::open(at("t", "tree").join("big")).unwrap();
    file.read_exact_at(&mut part, 1_234_567).unwrap();
    assert_eq!(part[..], noise(3, 2_000_000)[1_234_567..][..1000]);
    drop(file);
    // The kernel keeps where a link leads, but not where `latest` led before.
    let led = fs::read_link(desk.path("m/t/latest")).unwrap();
    fs::write(desk.path("tree/a"), b"the newest").unwrap();
    backup(&desk, "tree --set t");
    let begun = std::time::Instant::now();
    while fs::read_link(desk.path("m/t/latest")).unwrap() == led {
        assert!(begun.elapsed().as_secs() < 60, "it leads to {}", led.display());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(fs::read(at("t", "tree").join("a")).unwrap(), b"the newest");
    desk.ok("forget a t~0");
    // Collections don't wait for it, and what they removed is gone.
    desk.ok("forget a t~0");
    desk.ok("forget a t~0");
    desk.ok("gc a --trash 0");
    assert!(fs::read_dir(desk.path("m/t")).is_err() || !at("t", "tree").exists());
    unmount(&desk.path("m"));
    assert!(mount.wait().unwrap().success());
}

#[test]
fn a_mount_supports_labels_of_selinux_from_the_first_that_it_meets() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("NOT TESTED: mounting needs /dev/fuse and root");
        return;
    }
    let desk = Desk::new();
    desk.ok("create archive a");
    for name in ["plain", "labelled"] {
        fs::create_dir(desk.path(name)).unwrap();
        fs::write(desk.path(name).join("one"), b"1").unwrap();
        fs::write(desk.path(name).join("two"), b"2").unwrap();
    }
    const LABEL: &str = "security.selinux";
    let (label, flags) = (b"system_u:object_r:etc_t:s0", rustix::fs::XattrFlags::empty());
    if rustix::fs::setxattr(desk.path("labelled/one"), LABEL, label, flags).is_err() {
        println!("NOT TESTED: the file system takes no labels");
        return;
    }
    ["plain", "labelled"].iter().for_each(|set| {
        backup(&desk, &format!("{set} --set {set}"));
    });
    fs::create_dir(desk.path("m")).unwrap();
    let mut mount = desk.command("mount a m").stdout(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(mount.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
    let asked = |path: &str, name: &str| {
        let set = path.split('/').next().unwrap();
        let below = desk.path(path);
        let at = desk.path("m").join(set).join("latest").join(below.strip_prefix("/").unwrap());
        rustix::fs::getxattr(at, name, &mut [0; 100]).map_err(|errno| errno.raw_os_error())
    };
    let (none, no) = (rustix::io::Errno::NODATA, rustix::io::Errno::OPNOTSUPP);
    assert_eq!(asked("plain/one", "user.x"), Err(none.raw_os_error()));
    assert_eq!(asked("plain/one", LABEL), Err(no.raw_os_error()));
    assert_eq!(asked("labelled/one", LABEL), Ok(label.len()));
    assert_eq!(asked("labelled/two", LABEL), Err(none.raw_os_error()));
    assert_eq!(asked("plain/two", LABEL), Err(none.raw_os_error()));
    unmount(&desk.path("m"));
    assert!(mount.wait().unwrap().success());
}

#[test]
fn a_mount_ends_while_somebody_is_in_it() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("NOT TESTED: mounting needs /dev/fuse and root");
        return;
    }
    let desk = Desk::new();
    desk.ok("create archive a");
    plant(&desk.path("tree"));
    backup(&desk, "tree --set t");
    fs::create_dir(desk.path("m")).unwrap();
    let mut mount = desk.command("mount a m").stdout(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(mount.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
    let held = fs::File::open(desk.path("m/t")).unwrap();
    let process = rustix::process::Pid::from_child(&mount);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(mount.wait().unwrap().success());
    drop(held);
    assert_eq!(fs::read_dir(desk.path("m")).unwrap().count(), 0, "nothing is mounted there");
}

#[test]
fn rule_09_find_holds_one_path_whatever_lies_below_it() {
    let desk = Desk::new();
    desk.ok("create archive a");
    // Directories below 12 KB of path: all paths together have 120 MB.
    let (top, name) = (desk.path("tree"), "d".repeat(250));
    fs::create_dir(&top).unwrap();
    let mut at = rustix::fs::open(&top, rustix::fs::OFlags::PATH, 0.into()).unwrap();
    for n in 0..10_048 {
        let inner = if n < 48 { name.clone() } else { n.to_string() };
        rustix::fs::mkdirat(&at, &inner, 0o700.into()).unwrap();
        if n < 48 {
            at = rustix::fs::openat(&at, &inner, rustix::fs::OFlags::PATH, 0.into()).unwrap();
        }
    }
    backup(&desk, "tree --set t");
    // Data in KiB, the stacks of threads apart.
    let limited = "ulimit -d 120000; exec \"$0\" find a letter 9999";
    let found = std::process::Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_onefold")])
        .current_dir(desk.path("."))
        .output()
        .unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    assert_eq!(String::from_utf8_lossy(&found.stdout).lines().count(), 1);
}

#[test]
fn thirty_nights_come_back_and_those_that_a_policy_keeps() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let tree = desk.path("tree");
    for n in 0..300u64 {
        let file = tree.join(format!("{}/{n}", n % 7));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, noise(n, 2_000 + 40 * n as usize)).unwrap();
    }
    let mut nights: Vec<(String, Listed)> = Vec::new();
    for night in 0..30u64 {
        // One file in a hundred changes, one comes, and one goes.
        for n in (0..3).map(|n| (night * 37 + n * 100) % 300) {
            let _ = fs::write(
                tree.join(format!("{}/{n}", n % 7)),
                noise(1_000 + night * 10 + n, 9_000),
            );
        }
        fs::write(tree.join(format!("3/new-{night}")), noise(5_000 + night, 4_000)).unwrap();
        let _ = fs::remove_file(tree.join(format!("{}/{}", night * 11 % 7, night * 11)));
        let made = backup(&desk, "tree --set t");
        nights.push((made["id"].as_str().unwrap().to_owned(), listed(&tree)));
    }
    let all_come_back = |nights: &[(String, Listed)]| {
        for (id, expected) in nights {
            desk.ok(&format!("restore a {id} -C out"));
            assert!(listed(&restored(&desk, "out", "tree")) == *expected, "{id}");
            fs::remove_dir_all(desk.path("out")).unwrap();
        }
    };
    all_come_back(&nights);
    desk.ok("forget a --keep-last 5 --force");
    desk.ok("gc a --trash 0 --keep-partial 0");
    desk.ok("gc a --trash 0 --keep-partial 0");
    all_come_back(&nights[25..]);
    desk.fails(&format!("restore a {} -C out", nights[0].0), 1, &["no snapshot"]);
    desk.ok("check a");
    desk.ok("scrub a");
}

/// A list of access rights (POSIX ACL) of entries: tag, permissions, id.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, may, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(may.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Gives a path such a list: its owner and one user may do all, the owning group nothing.
fn give_list(path: &Path) -> bool {
    let none = u32::MAX;
    let list =
        list(&[(1, 7, none), (2, 7, 12_346), (4, 0, none), (0x10, 7, none), (0x20, 0, none)]);
    let set = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "system.posix_acl_access", &list, set).is_ok()
}

#[test]
fn rule_06_nobody_gets_more_by_a_restore_or_a_mount_than_a_list_of_rights_gave() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir_all(desk.path("way/root")).unwrap();
    fs::write(desk.path("way/root/file"), b"").unwrap();
    let fifo = desk.path("way/root/fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let all = [desk.path("way"), desk.path("way/root/file"), fifo];
    if !all.iter().all(|path| give_list(path)) {
        println!("NOT TESTED: the file system has no lists of access rights");
        return;
    }
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&all[2]), 0o770, "the bits of the group are the mask");
    backup(&desk, "way/root --set t");
    // Everybody gets those of files, directories and pipes.
    desk.ok("restore a t -C out");
    let out = |path: &str| restored(&desk, "out", path);
    for path in ["way", "way/root/file", "way/root/fifo"] {
        let mut room = [0; 100];
        let found = rustix::fs::getxattr(out(path), "system.posix_acl_access", &mut room);
        assert!(found.is_ok(), "{path} has its list");
        assert_eq!(mode(&out(path)), 0o770, "{path}");
    }
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("NOT TESTED: mounting needs /dev/fuse and root");
        return;
    }
    // On a file system without lists the mode gives nobody more than the list gave.
    fs::create_dir(desk.path("bare")).unwrap();
    let script = format!(
        "mount -t ramfs none bare && {} restore a t -C bare >&2 && cd bare{} && stat -c %a . root/*",
        env!("CARGO_BIN_EXE_onefold"),
        desk.path("way").display()
    );
    let mut bare = std::process::Command::new("unshare");
    bare.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let said = bare.current_dir(desk.path("")).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&said.stdout), "700\n700\n700\n", "{said:?}");
    assert!(text(&said.stderr).contains("left out: 3 attributes"), "{said:?}");
    fs::create_dir(desk.path("m")).unwrap();
    let mut mount = desk
        .command("mount a m --snapshot t --allow-other")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(mount.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
    for path in ["way", "way/root/file", "way/root/fifo"] {
        let inside = desk.path("m").join(desk.path(path).strip_prefix("/").unwrap());
        assert_eq!(mode(&inside), 0o700, "{path}");
    }
    unmount(&desk.path("m"));
    assert!(mount.wait().unwrap().success());
}

#[test]
fn rule_09_what_one_user_makes_keeps_no_other_from_a_restore() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("home")).unwrap();
    fs::write(desk.path("home/letter"), b"dear").unwrap();
    // More levels than a snapshot has.
    let mut at = rustix::fs::openat(
        rustix::fs::CWD,
        desk.path("home"),
        rustix::fs::OFlags::DIRECTORY,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    for _ in 0..4_200 {
        rustix::fs::mkdirat(&at, "d", 0o700.into()).unwrap();
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty())
            .unwrap();
    }
    // And more bytes than any disk.
    let huge = fs::File::create(desk.path("home/huge")).unwrap();
    let is_huge = huge.set_len(15 << 40).is_ok();
    let said = desk.run("backup a home --set t");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(desk.ok("ls a t").contains("letter"));
    desk.ok("find a letter");
    desk.ok("diff a t t");
    let said = desk.run("restore a t -C out");
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert_eq!(fs::read(restored(&desk, "out", "home/letter")).unwrap(), b"dear");
    let length = fs::metadata(restored(&desk, "out", "home/huge")).unwrap().len();
    assert_eq!(length, if is_huge { 15 << 40 } else { 0 });
}

#[test]
fn rule_12_files_of_holes_end_no_backup() {
    let Ok(shared) = tempfile::tempdir_in("/dev/shm") else {
        println!("NOT TESTED: there is no /dev/shm");
        return;
    };
    for name in ["a", "b", "c"] {
        let file = fs::File::create(shared.path().join(name)).unwrap();
        if file.set_len(i64::MAX as u64).is_err() {
            println!("NOT TESTED: no file can be so long");
            return;
        }
    }
    fs::write(shared.path().join("d"), b"1234").unwrap();
    let desk = Desk::new();
    desk.ok("create archive a");
    let tree = shared.path().display();
    desk.ok(&format!("backup a {tree} --set t --dry-run"));
    desk.ok(&format!("backup a {tree} --set t"));
    desk.ok(&format!("cat a t {tree}/d"));
    desk.status("a");
    desk.ok("check a");
    // A restore to where such files can be.
    let out = format!("restore a t -C {tree}/out");
    let said = desk.run(&out);
    assert!(said.status.success(), "{said:?}");
}

#[test]
fn a_set_that_several_hosts_have_is_this_ones() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    let here = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    for (host, content) in [("web1", "of web1"), (&*here, "of this"), ("web2", "of web2")] {
        for round in ["old", "new"] {
            fs::write(desk.path("tree/file"), format!("{round} {content}")).unwrap();
            desk.ok(&format!("backup a tree --set s --host {host}"));
        }
    }
    let file = desk.path("tree/file");
    let cat = |name: &str| desk.ok(&format!("cat a {name} {}", file.display()));
    assert_eq!((cat("s"), cat("s~1")), ("new of this".into(), "old of this".into()));
    assert_eq!((cat("web1:s"), cat("web2:s~1")), ("new of web1".into(), "old of web2".into()));
    desk.fails("ls a s~2", 1, &["no snapshot 's~2'"]);
    desk.fails("ls a web3:s", 1, &["no snapshot 'web3:s'"]);
    // Elsewhere it is not guessed.
    let ids = |host: &str| -> Vec<String> {
        let all: Value = serde_json::from_str(&desk.ok("snapshots a --json")).unwrap();
        let all = all.as_array().unwrap().iter().filter(|one| one["host"] == host);
        all.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    for id in ids(&here) {
        desk.ok(&format!("forget a {id} --force"));
    }
    desk.fails("ls a s", 1, &["several hosts", "web1, web2"]);
}
