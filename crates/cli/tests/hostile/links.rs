//! Links of other users on the way to what root reads, restores or mounts: they lead nowhere.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{chown, lchown, symlink},
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use rustix::{
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{Pid, Signal, kill_process},
};

use super::{
    actors::{STRANGER, Street},
    mounts::Mounted,
};

/// A street with a home, a place of root's own, and an archive of root's.
fn street() -> Street {
    let street = Street::new();
    street.home("home", 0);
    street.home("home/user", STRANGER);
    street.home("home/zoe", 0);
    fs::write(street.path("home/zoe/letter"), "dear").unwrap();
    street.home("own", 0);
    fs::create_dir(street.path("own/deep")).unwrap();
    fs::write(street.path("own/deep/key"), "secret").unwrap();
    ok(&run(&street, "create archive roots"));
    street
}

/// A link of the stranger in his home.
fn link(street: &Street, target: &str, name: &str) -> PathBuf {
    let at = street.path("home/user").join(name);
    symlink(target, &at).unwrap();
    lchown(&at, Some(STRANGER), Some(STRANGER)).unwrap();
    at
}

/// The command, run by root, which must not wait for anybody.
fn run(street: &Street, arguments: &str) -> Output {
    let mut command = street.program(0, Path::new("timeout"));
    command.args(["60", "./onefold"]).args(arguments.split(' ')).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", told(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// It ends with a sentence about the link, and with this status.
fn refuses(output: &Output, status: i32) {
    assert_eq!(output.status.code(), Some(status), "{}", told(output));
    assert!(told(output).contains(&format!("a link of user {STRANGER}")), "{}", told(output));
}

#[test]
#[ignore = "needs root"]
fn rule_07_links_of_another_user_lead_no_backup_elsewhere() {
    let street = street();
    link(&street, "../../own", "x");
    link(&street, "../../own/deep/key", "file");
    for (set, given) in [("one", "home/user/x/deep"), ("two", "home/user/x/deep/key")] {
        refuses(&run(&street, &format!("backup roots {given} --set {set}")), 1);
        refuses(&run(&street, &format!("backup roots {given} home/zoe --set {set}")), 3);
        let all = ok(&run(&street, &format!("ls roots {set}")));
        assert!(!all.contains("key") && all.contains("zoe/letter"), "{all}");
    }
    refuses(&run(&street, "backup roots home/user/x/deep --as /etc --set three"), 1);
    refuses(&run(&street, "put roots stream -r home/user/x/deep"), 1);
    refuses(&run(&street, "estimate home/user/x/deep"), 1);
    refuses(&run(&street, "estimate home/user/file"), 1);
    // A link that is stored is no way to anywhere, and root's own lead where root likes.
    ok(&run(&street, "backup roots home/user/file --set four"));
    symlink("../../own", street.path("home/way")).unwrap();
    fs::rename(street.path("home/way"), street.path("home/zoe/way")).unwrap();
    ok(&run(&street, "backup roots home/zoe/way/deep --set five"));
    assert!(ok(&run(&street, "ls roots five")).contains("way/deep/key"));
}

#[test]
#[ignore = "needs root"]
fn rule_07_a_user_who_removes_his_directory_keeps_no_other_from_a_backup() {
    let street = street();
    fs::write(street.path("home/user/file"), "x").unwrap();
    for (set, given) in [("one", "home/user/gone"), ("two", "home/user/file/deep")] {
        let output = run(&street, &format!("backup roots {given} home/zoe --set {set}"));
        assert_eq!(output.status.code(), Some(3), "{}", told(&output));
        assert!(told(&output).contains(given), "{}", told(&output));
        assert!(ok(&run(&street, &format!("ls roots {set}"))).contains("zoe/letter"));
        let output = run(&street, &format!("backup roots {given} --set {set}"));
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    }
    // What nobody else could have removed was never there.
    let output = run(&street, "backup roots home/gone home/zoe --set three");
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
}

#[test]
#[ignore = "needs root"]
fn rule_05_links_of_another_user_lead_no_restore_elsewhere() {
    let street = street();
    ok(&run(&street, "backup roots home/zoe --set s"));
    ok(&run(&street, "put roots tree -r home/zoe"));
    ok(&run(&street, "put roots letter home/zoe/letter"));
    link(&street, "../../own", "x");
    for verb in [
        "restore roots s -C home/user/x",
        "restore roots s -C home/user/x/new",
        "restore roots s -C home/user/x/new --atomic",
        "restore roots s -C home/user/x/new/deep --atomic",
        "restore roots s -C home/user/x --in-place",
        "restore roots s -C home/user/x --in-place --delete --force",
        "restore roots s -C home/user/x --in-place --delete --force --dry-run",
        "get roots tree -C home/user/x",
        "get roots tree -C home/user/x/new --in-place",
        "get roots letter --output home/user/x/letter",
    ] {
        refuses(&run(&street, verb), 1);
        let own = street.path("own");
        let names: Vec<_> = fs::read_dir(&own).unwrap().map(|name| name.unwrap()).collect();
        assert_eq!(names.len(), 1, "{verb}: {names:?}");
        assert!(own.join("deep/key").exists(), "{verb}");
    }
    // A directory of his is taken as it is, and missing ones are made.
    ok(&run(&street, "get roots tree -C home/user/a/b"));
    assert!(street.path("home/user/a/b/letter").exists());
}

#[test]
#[ignore = "needs root"]
fn rule_07_what_a_user_mounted_is_not_asked_by_who_gives_its_path() {
    let street = street();
    let point = street.home("home/user/point", STRANGER);
    ok(&run(&street, "backup roots home/zoe --set s"));
    for options in ["", ",allow_other"] {
        let Some(_mounted) = Mounted::new(point.clone(), options) else {
            println!("NOT TESTED: there is no FUSE here");
            return;
        };
        for verb in [
            "estimate home/user/point",
            "estimate home/user/point/deep",
            "put roots stream -r home/user/point",
            "restore roots s -C home/user/point",
            "restore roots s -C home/user/point/deep --in-place",
            "restore roots s -C home/user/point/deep --atomic",
            "mount roots home/user/point",
        ] {
            let output = run(&street, verb);
            assert_eq!(output.status.code(), Some(1), "{verb}{options}: {}", told(&output));
            assert!(told(&output).contains("another user mounted"), "{verb}: {}", told(&output));
        }
    }
}

#[test]
#[ignore = "needs root"]
fn rule_06_a_mount_of_root_goes_where_it_was_told_and_ends_there() {
    let street = street();
    let target = street.path("own/target");
    fs::create_dir(&target).unwrap();
    link(&street, "../../own/target", "x");
    refuses(&run(&street, "mount roots home/user/x"), 1);
    let way = street.home("home/user/way", STRANGER);
    fs::create_dir(way.join("target")).unwrap();
    chown(way.join("target"), Some(STRANGER), Some(STRANGER)).unwrap();
    if !Path::new("/dev/fuse").exists() {
        println!("NOT TESTED: there is no FUSE here");
        return;
    }
    let mut command = street.onefold(0, "mount roots home/user/way/target");
    let mut mounted = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(mounted.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("mounted"), "{line}");
    // What root has mounted elsewhere, under the same name.
    mount("own", &target, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::rename(&way, street.path("home/user/gone")).unwrap();
    link(&street, "../../own", "way");
    kill_process(Pid::from_child(&mounted), Signal::TERM).unwrap();
    let ended = mounted.wait().unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_mounted = |path: &Path| table.contains(&format!(" {} ", path.display()));
    let is_kept = is_mounted(&target);
    let stays = is_mounted(&street.path("home/user/gone/target"));
    for (there, path) in [(is_kept, target), (stays, street.path("home/user/gone/target"))] {
        let _ = there.then(|| unmount(&path, UnmountFlags::DETACH));
    }
    assert!(ended.success() && is_kept && !stays, "{ended} {is_kept} {stays}");
}

#[test]
#[ignore = "needs root"]
fn rule_07_a_mount_on_the_way_to_a_path_below_another_stops_no_backup_of_one_file_system() {
    let street = street();
    let point = street.home("home/user/point", STRANGER);
    let Some(_mounted) = Mounted::new(point, ",allow_other") else {
        println!("NOT TESTED: there is no FUSE here");
        return;
    };
    let given = "home home/user/point/deep home/user/point/deep/deeper";
    let output = run(&street, &format!("backup roots {given} --one-file-system --set s"));
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", told(&output));
    assert!(ok(&run(&street, "ls roots s")).contains("zoe/letter"));
}
