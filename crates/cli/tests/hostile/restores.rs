//! Rules about restores over what other users have, and into file systems that are too small.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{
    actors::{STRANGER, Street},
    mounts::Mounted,
    support::{Desk, noise, unmount},
};

/// A directory below so many others with names of 250 bytes, and its path.
fn deep(top: &Path, levels: usize) -> rustix::fd::OwnedFd {
    let name = "d".repeat(250);
    let mut at = rustix::fs::open(top, rustix::fs::OFlags::PATH, 0.into()).unwrap();
    for _ in 0..levels {
        let _ = rustix::fs::mkdirat(&at, &name, 0o777.into());
        at = rustix::fs::openat(&at, &name, rustix::fs::OFlags::PATH, 0.into()).unwrap();
    }
    at
}

fn files(at: &rustix::fd::OwnedFd, prefix: &str, count: usize) {
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    for n in 0..count {
        rustix::fs::openat(at, format!("{prefix}{n}"), flags, 0o600.into()).unwrap();
    }
}

/// The command, after other words of a shell.
fn shell(desk: &Desk, before: &str, arguments: &str) -> Output {
    Command::new("sh")
        .args(["-c", &format!("{before}; exec \"$0\" {arguments}")])
        .arg(env!("CARGO_BIN_EXE_onefold"))
        .current_dir(desk.path("."))
        .output()
        .unwrap()
}

/// What lies at a path of the test, below `out`.
fn restored(desk: &Desk, path: &str) -> PathBuf {
    desk.path("out").join(desk.path(path).strip_prefix("/").unwrap())
}

/// Bytes of memory for data, in KiB: less than the paths of the files have.
const LITTLE: &str = "ulimit -d 180000";

#[test]
fn rule_05_names_of_a_user_take_no_more_memory_in_a_restore_than_they_have_bytes() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("home")).unwrap();
    // All paths together have 240 MB.
    let at = deep(&desk.path("home"), 60);
    files(&at, "f", 16_000);
    // Others may write to the directory, so that what is made in it is remembered.
    desk.ok("backup a home --set t");
    let said = shell(&desk, LITTLE, "restore a t -C / --in-place");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    files(&at, "g", 16_000);
    let said = shell(&desk, LITTLE, "restore a t -C / --in-place --delete --force");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let told = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(told.contains("16,000 entries removed"), "{told}");
}

/// Seconds of the processor: several times what the restore of so few files takes.
const SOON: &str = "ulimit -t 10";

/// A user's `ln` in a loop makes nobody's restore look larger than the disk.
#[test]
fn rule_05_a_file_with_many_names_counts_once_where_a_restore_is_to_fit() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("home")).unwrap();
    fs::write(desk.path("home/f"), noise(1, 1_000_000)).unwrap();
    fs::write(desk.path("home/other"), noise(2, 500_000)).unwrap();
    for n in 0..50 {
        fs::hard_link(desk.path("home/f"), desk.path("home").join(format!("n{n}"))).unwrap();
    }
    desk.ok("backup a home --set t");
    for manner in ["", "--in-place "] {
        let told = desk.ok(&format!("restore a t -C out {manner}--dry-run --json"));
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["bytes"], 1_500_000, "{told}");
    }
}

/// A map that a user made long, of a file with many names, is read once before a restore begins.
#[test]
fn rule_05_a_long_map_is_read_once_for_all_names_of_its_file() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("home")).unwrap();
    let many = fs::File::create(desk.path("home/f")).unwrap();
    for n in 0..10_000 {
        many.write_all_at(&[7; 4096], n * 12_288).unwrap();
    }
    for n in 0..3_000 {
        fs::hard_link(desk.path("home/f"), desk.path("home").join(format!("n{n}"))).unwrap();
    }
    // More than is free, so that holes are left out.
    fs::File::create(desk.path("home/giant")).unwrap().set_len(15 << 40).unwrap();
    desk.ok("backup a home --set t");
    let said = shell(&desk, SOON, "restore a t -C out");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(fs::metadata(restored(&desk, "home/n9")).unwrap().nlink(), 3_001);
}

/// All names of a file lie in one directory, which is not read once more for each of them.
#[test]
fn rule_05_many_names_of_a_file_in_one_directory_hold_no_restore_in_place_up() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("home")).unwrap();
    fs::write(desk.path("home/f"), "x").unwrap();
    for n in 0..12_000 {
        fs::hard_link(desk.path("home/f"), desk.path(&format!("home/n{n}"))).unwrap();
    }
    desk.ok("backup a home --set t");
    let said = shell(&desk, SOON, "restore a t -C / --in-place");
    assert!(said.status.success(), "{} {}", said.status, String::from_utf8_lossy(&said.stderr));
    assert_eq!(fs::metadata(desk.path("home/n7")).unwrap().nlink(), 12_001);
}

/// A user's file of many holes that became data is not looked through to its end at each of them.
#[test]
fn rule_05_holes_that_are_data_now_are_not_searched_for_to_the_end_of_the_file() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("home")).unwrap();
    let many = fs::File::create(desk.path("home/f")).unwrap();
    for n in 0..50_000 {
        many.write_all_at(&[7; 4096], n * 12_288).unwrap();
    }
    // So that its pieces lie apart on the disk.
    many.sync_all().unwrap();
    desk.ok("backup a home --set t");
    for n in 0..50_000 {
        many.write_all_at(&[8; 8192], n * 12_288 + 4096).unwrap();
    }
    many.sync_all().unwrap();
    let said = shell(&desk, SOON, "restore a t -C / --in-place");
    assert!(said.status.success(), "{} {}", said.status, String::from_utf8_lossy(&said.stderr));
    let mut found = [1; 8192];
    let many = fs::File::open(desk.path("home/f")).unwrap();
    many.read_exact_at(&mut found, 40_000 * 12_288 + 4096).unwrap();
    assert_eq!(found, [0; 8192]);
}

/// Files deep in the tree, each in a directory of its own, have their second names elsewhere. The way to
/// them is not gone from its beginning for each.
#[test]
fn rule_05_second_names_of_files_deep_in_a_tree_hold_no_restore_up() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir_all(desk.path("home/z")).unwrap();
    let open = |at: &rustix::fd::OwnedFd, name: &str| {
        rustix::fs::mkdirat(at, name, 0o700.into()).unwrap();
        rustix::fs::openat(at, name, rustix::fs::OFlags::PATH, 0.into()).unwrap()
    };
    let place =
        |name: &str| rustix::fs::open(desk.path(name), rustix::fs::OFlags::PATH, 0.into()).unwrap();
    let (elsewhere, mut at) = (place("home/z"), place("home"));
    for _ in 0..1_500 {
        at = open(&at, "d");
    }
    for n in 0..3_000 {
        let own = open(&at, &format!("s{n}"));
        files(&own, "f", 1);
        let none = rustix::fs::AtFlags::empty();
        rustix::fs::linkat(&own, "f0", &elsewhere, format!("n{n}"), none).unwrap();
    }
    desk.ok("backup a home --set t");
    let said = shell(&desk, SOON, "restore a t -C out");
    assert!(said.status.success(), "{} {}", said.status, String::from_utf8_lossy(&said.stderr));
    assert_eq!(fs::metadata(restored(&desk, "home/z/n7")).unwrap().nlink(), 2);
}

#[test]
fn rule_05_second_names_below_long_paths_take_no_more_memory_than_they_have_bytes() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("home")).unwrap();
    let at = deep(&desk.path("home"), 60);
    files(&at, "f", 16_000);
    for n in 0..16_000 {
        let flags = rustix::fs::AtFlags::empty();
        rustix::fs::linkat(&at, format!("f{n}"), &at, format!("g{n}"), flags).unwrap();
    }
    desk.ok("backup a home --set t");
    let said = shell(&desk, LITTLE, "restore a t -C out");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let mut at = rustix::fs::open(restored(&desk, "home"), rustix::fs::OFlags::PATH, 0.into());
    for _ in 0..60 {
        at = rustix::fs::openat(at.unwrap(), "d".repeat(250), rustix::fs::OFlags::PATH, 0.into());
    }
    let flags = rustix::fs::AtFlags::empty();
    assert_eq!(rustix::fs::statat(at.unwrap(), "g15999", flags).unwrap().st_nlink, 2);
}

#[test]
fn rule_08_a_restored_file_that_can_not_be_written_to_its_end_does_not_keep_its_name() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/large"), noise(1, 3_000_000)).unwrap();
    fs::write(desk.path("tree/small"), b"dear").unwrap();
    fs::hard_link(desk.path("tree/large"), desk.path("tree/other")).unwrap();
    desk.ok("backup a tree --set t");
    // No file longer than a MiB, as on a file system that has no longer ones.
    let said = shell(&desk, "ulimit -f 2048", "restore a t -C out");
    let told = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(3), "{told}");
    assert!(told.contains("large.damaged"), "{told}");
    assert_eq!(fs::read(restored(&desk, "tree/small")).unwrap(), b"dear");
    let there = |name: &str| restored(&desk, name).exists();
    assert!(!there("tree/large") && !there("tree/other") && there("tree/large.damaged"), "{told}");
}

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).status();
    assert!(done.is_ok_and(|done| done.success()), "{program} {arguments:?}");
}

#[test]
#[ignore = "needs root"]
fn rule_08_a_restore_that_a_full_disk_ends_leaves_no_part_of_a_file_under_its_name() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    for n in 0..8 {
        fs::write(desk.path(&format!("tree/{n}")), noise(n, 1_000_000)).unwrap();
    }
    desk.ok("backup a tree --set t");
    fs::create_dir(desk.path("out")).unwrap();
    let out = desk.path("out");
    run("mount", &["-t", "tmpfs", "-o", "size=3M", "none", out.to_str().unwrap()]);
    let said = desk.run("restore a t -C out --in-place");
    let sound = |n: u64| match fs::read(restored(&desk, &format!("tree/{n}"))) {
        Ok(bytes) => bytes == noise(n, 1_000_000),
        Err(_) => true,
    };
    let sound: Vec<bool> = (0..8).map(sound).collect();
    unmount(&out);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert_eq!(sound, [true; 8]);
}

/// A restore of eight files whose second write in each thread fails with this error; gives its exit
/// status, and how many of the files are there and whole, which all must be that are there.
fn failing(street: &Street, user: u32, error: &str) -> (Option<i32>, usize) {
    let out = street.home(&format!("out-{user}-{error}"), user);
    let mut command = street.program(user, Path::new("strace"));
    let inject = format!("inject=pwrite64:error={error}:when=2");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", &inject]);
    let words = format!("./onefold restore archive-{user} t -C {}", out.display());
    let said = command.args(words.split(' ')).output().unwrap();
    let tree = out.join(street.path("tree").strip_prefix("/").unwrap());
    let mut whole = 0;
    for n in 0..8 {
        if let Ok(bytes) = fs::read(tree.join(n.to_string())) {
            assert!(bytes == noise(n, 3_000_000), "{error}: {n} is not whole");
            whole += 1;
        }
    }
    (said.status.code(), whole)
}

/// A quota is the limit of one user, and one file that root restores; it is all of what a user
/// restores. A device that is gone ends everybody's restore.
#[test]
#[ignore = "needs root"]
fn rule_08_a_quota_costs_root_its_owners_files_and_a_lost_device_all() {
    let street = Street::new();
    let tree = street.home("tree", STRANGER);
    for n in 0..8 {
        fs::write(tree.join(n.to_string()), noise(n, 3_000_000)).unwrap();
    }
    for user in [0, STRANGER] {
        street.home(&format!("archive-{user}"), user);
        for arguments in [
            format!("create archive archive-{user}"),
            format!("backup archive-{user} tree --set t"),
        ] {
            let output = street.onefold(user, &arguments).output().unwrap();
            assert!(output.status.success(), "{arguments}: {output:?}");
        }
    }
    let (code, whole) = failing(&street, 0, "EDQUOT");
    assert!(code == Some(3) && (1..8).contains(&whole), "{code:?} {whole}");
    assert_eq!(failing(&street, STRANGER, "EDQUOT").0, Some(1));
    for user in [0, STRANGER] {
        assert_eq!(failing(&street, user, "ENXIO").0, Some(1), "{user}");
    }
}

/// Overlayfs copies a directory up when something is made in it, and shows another time of birth then.
#[test]
#[ignore = "needs root"]
fn rule_05_a_restore_in_place_knows_directories_of_overlayfs_again() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let script = r#"
        mkdir lower lower/docs upper work m || exit 7
        # More directories than a restore keeps open.
        for n in $(seq 200); do mkdir lower/docs/$n && echo two >lower/docs/$n/two || exit 7; done
        chown -R 61777:61777 lower
        "$0" backup a lower/docs --as /docs --set o >/dev/null || exit 8
        rm lower/docs/*/two && chmod 700 lower/docs/*
        mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work m || exit 9
        "$0" restore a o / --in-place -C m || exit 6
        stat -c '%u %a' m/docs/* | sort | uniq -c && cat m/docs/*/two | sort | uniq -c
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.arg(env!("CARGO_BIN_EXE_onefold"));
    let said = command.current_dir(desk.path("")).output().unwrap();
    if said.status.code() == Some(9) {
        return println!("NOT TESTED: no overlayfs is to be had here");
    }
    let out = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success() && out.ends_with(" 200 61777 755\n    200 two\n"), "{said:?}");
}

#[test]
#[ignore = "needs root"]
fn rule_05_what_a_user_mounted_keeps_no_other_from_a_restore_in_place() {
    let street = Street::new();
    let home = street.home("home", 0);
    for name in ["home/user", "home/user/old", "home/zoe"] {
        street.home(name, if name.ends_with("zoe") { 0 } else { STRANGER });
    }
    fs::write(home.join("zoe/letter"), "dear").unwrap();
    for arguments in ["create archive roots", "backup roots home --set h"] {
        let output = street.onefold(0, arguments).output().unwrap();
        assert!(output.status.success(), "{arguments}: {output:?}");
    }
    for point in ["old", "new", "new/deep"] {
        for options in ["", ",allow_other"] {
            let at = street.path(&format!("home/user/{point}"));
            fs::create_dir_all(&at).unwrap();
            fs::remove_file(home.join("zoe/letter")).unwrap();
            let Some(mounted) = Mounted::new(at.clone(), options) else {
                println!("NOT TESTED: there is no FUSE here");
                return;
            };
            for how in ["--dry-run", ""] {
                let restore = format!(
                    "60 ./onefold restore roots h {} -C / --in-place --delete --force {how}",
                    home.display()
                );
                let mut command = street.program(0, Path::new("timeout"));
                let output = command.args(restore.split_whitespace()).output().unwrap();
                let told = String::from_utf8_lossy(&output.stderr).into_owned();
                let restores = point == "old" && how.is_empty();
                let expected = if restores { 3 } else { 0 };
                assert_eq!(output.status.code(), Some(expected), "{point}{options} {how}: {told}");
            }
            drop(mounted);
            assert_eq!(fs::read(home.join("zoe/letter")).unwrap(), b"dear", "{point}{options}");
            assert_eq!(fs::metadata(home.join("user")).unwrap().uid(), STRANGER);
            assert!(at.exists(), "{point}{options}");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn rule_05_what_a_user_mounted_on_the_name_of_a_new_file_or_directory_keeps_nobody_waiting() {
    let street = Street::new();
    let home = street.home("home", STRANGER);
    street.home("home/out", STRANGER);
    fs::write(home.join("file"), "x").unwrap();
    fs::write(street.path("letter"), "dear").unwrap();
    for arguments in
        ["create archive roots", "put roots letter letter", "backup roots letter --set h"]
    {
        let output = street.onefold(0, arguments).output().unwrap();
        assert!(output.status.success(), "{arguments}: {output:?}");
    }
    for options in ["", ",allow_other"] {
        let mounted = ["out", "file"].map(|name| Mounted::new(home.join(name), options));
        if mounted.iter().any(Option::is_none) {
            println!("NOT TESTED: there is no FUSE here");
            return;
        }
        for verb in ["restore roots h --atomic -C home/out", "get roots letter --output home/file"]
        {
            let mut command = street.program(0, Path::new("timeout"));
            let output = command.args(["20", "./onefold"]).args(verb.split(' ')).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{verb}{options}: {told}");
            assert!(told.to_lowercase().contains("exists") || told.contains("is there"), "{told}");
        }
    }
}
