//! What users mount, over directories and over files: nobody else waits for it.

use std::{
    fs,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use super::{
    actors::{STRANGER, Street},
    support::Desk,
};

/// A file system of a user's own (FUSE) over a directory or a file, which answers nothing, and lets
/// others ask or not; `None` where there is no FUSE.
pub(crate) struct Mounted {
    pub(crate) device: fs::File,
    at: PathBuf,
}

impl Mounted {
    pub(crate) fn new(at: PathBuf, options: &str) -> Option<Mounted> {
        let device = fs::File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let mode = if at.is_dir() { 40_000 } else { 100_000 };
        let data = format!(
            "fd={},rootmode={mode},user_id={STRANGER},group_id={STRANGER}{options}",
            device.as_raw_fd()
        );
        let data = std::ffi::CString::new(data).unwrap();
        let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
        rustix::mount::mount("own", &at, "fuse", flags, Some(&*data)).ok()?;
        Some(Mounted { device, at })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn rule_07_what_a_user_mounted_over_a_file_keeps_no_other_from_a_backup() {
    nobody_waits(&["plain/letter"]);
}

#[test]
#[ignore = "needs root"]
fn rule_07_what_a_user_mounted_over_files_of_patterns_keeps_no_other_from_a_backup() {
    nobody_waits(&["cache/CACHEDIR.TAG", "rules/.onefoldignore", "tagged/skip-me"]);
}

#[test]
#[ignore = "needs root"]
fn rule_07_what_a_user_mounted_over_his_home_keeps_no_other_from_a_backup_of_both() {
    let street = Street::new();
    let home = street.home("home", 0);
    let user = street.home("home/user", STRANGER);
    street.home("home/user/deep", STRANGER);
    street.home("home/zoe", 0);
    fs::write(home.join("zoe/letter"), "dear").unwrap();
    let made = street.onefold(0, "create archive roots").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    for (round, options) in ["", ",allow_other"].into_iter().enumerate() {
        let Some(_mounted) = Mounted::new(user.clone(), options) else {
            println!("NOT TESTED: there is no FUSE here");
            return;
        };
        for given in ["home/user", "home/user/deep"] {
            let set = format!("{}{round}", given.replace('/', "-"));
            let verb = format!("60 ./onefold backup roots {given} home/zoe --set {set}");
            let mut command = street.program(0, Path::new("timeout"));
            let output = command.args(verb.split(' ')).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(3), "{verb}{options}: {told}");
            assert!(told.contains(given) && told.contains("another user mounted"), "{told}");
            let all = street.onefold(0, &format!("ls roots {set}")).output().unwrap();
            let all = String::from_utf8_lossy(&all.stdout).into_owned();
            assert!(all.contains("zoe/letter"), "{verb}{options}: {all}");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn rule_07_one_file_system_leaves_out_no_path_that_was_named() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir_all(desk.path("top/home/ann")).unwrap();
    fs::create_dir_all(desk.path("top/srv")).unwrap();
    let mut mounted = Vec::new();
    for (at, inside) in [("top/home", "deep/letter"), ("top/srv", "web/page")] {
        mounted.push(Memory::new(desk.path(at)));
        let file = desk.path(at).join(inside);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "dear").unwrap();
    }
    let has = |paths: &str, path: &str| {
        desk.ok(&format!("backup a {paths} --set s --one-file-system"));
        desk.ok("ls a s").contains(path)
    };
    assert!(!has("top", "home/deep/letter") && !has("top", "srv/web/page"));
    assert!(has("top top/home", "home/deep/letter"), "a named file system is stored empty");
    assert!(!has("top top/home", "srv/web/page"), "one that was not named is stored");
    assert!(has("top/srv top/home top", "srv/web/page"));
    // Nobody names the file system on the way: the walk would not come there.
    let told = ["top/srv", "--one-file-system", "name that one, too"];
    desk.fails("backup a top top/srv/web --set s --one-file-system", 1, &told);
    assert!(has("top top/srv top/srv/web", "srv/web/page"));
}

/// A file system in memory, until this is dropped.
struct Memory(PathBuf);

impl Memory {
    fn new(at: PathBuf) -> Memory {
        rustix::mount::mount("none", &at, "tmpfs", rustix::mount::MountFlags::empty(), None)
            .unwrap();
        Memory(at)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// Who stores a tree where a user mounted something over these files names them, and stores the rest.
fn nobody_waits(files: &[&str]) {
    let street = Street::new();
    let home = street.home("home", 0);
    street.home("home/user", STRANGER);
    street.home("home/zoe", 0);
    fs::write(home.join("zoe/letter"), "dear").unwrap();
    for &name in files {
        let path = home.join("user").join(name);
        let directory = path.parent().unwrap();
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("other"), "also dear").unwrap();
        fs::write(&path, "x").unwrap();
        for path in [directory, &path] {
            std::os::unix::fs::chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
        }
    }
    let made = street.onefold(0, "create archive roots").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let tagged = "--exclude-caches --exclude-if-present skip-me --exclude-nodump";
    for (round, options) in ["", ",allow_other"].into_iter().enumerate() {
        let mut mounted = Vec::new();
        for &name in files {
            let Some(one) = Mounted::new(home.join("user").join(name), options) else {
                println!("NOT TESTED: there is no FUSE here");
                return;
            };
            mounted.push(one);
        }
        for verb in [
            format!("backup roots home --set h {tagged}"),
            "backup roots home --set h".to_owned(),
            format!("put roots stream-{round} -r home {tagged}"),
            "estimate home".to_owned(),
        ] {
            let mut command = street.program(0, Path::new("timeout"));
            let output = command.args(["60", "./onefold"]).args(verb.split(' ')).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            if verb.starts_with("estimate") {
                assert!(matches!(output.status.code(), Some(0 | 3)), "{verb}{options}: {told}");
                continue;
            }
            assert_eq!(output.status.code(), Some(3), "{verb}{options}: {told}");
            for &name in files {
                assert!(told.contains(name), "{verb}{options}: {told}");
            }
            let says_who = format!("user {STRANGER} mounted a file system of his own");
            assert!(options.is_empty() || told.contains(&says_who), "{verb}{options}: {told}");
        }
        let all = street.onefold(0, "ls roots h").output().unwrap();
        let all = String::from_utf8_lossy(&all.stdout).into_owned();
        let beside = |name: &&str| format!("{}/other", name.split_once('/').unwrap().0);
        for name in files.iter().map(beside).chain(["zoe/letter".to_owned()]) {
            assert!(all.contains(&name), "{name}{options}: {all}");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn rule_07_a_mount_of_a_user_is_not_asked_whether_it_is_to_be_dumped() {
    let street = Street::new();
    street.home("home", 0);
    let point = street.home("home/point", STRANGER);
    let made = street.onefold(0, "create archive roots").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let Some(_mounted) = Mounted::new(point, ",allow_other") else {
        println!("NOT TESTED: there is no FUSE here");
        return;
    };
    let mut command = street.program(0, Path::new("timeout"));
    let backup = "60 ./onefold backup roots home --set h --exclude-nodump";
    let output = command.args(backup.split(' ')).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn rule_07_a_mount_hides_nothing_that_is_in_its_directory() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir_all(desk.path("m/kept")).unwrap();
    let mut command = std::process::Command::new("timeout");
    let onefold = env!("CARGO_BIN_EXE_onefold");
    let output =
        command.args(["20", onefold, "mount", "a", "m"]).current_dir(desk.path(".")).output();
    let output = output.unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("m is not empty") && told.lines().count() == 1, "{told}");
    assert!(desk.path("m/kept").is_dir());
}
