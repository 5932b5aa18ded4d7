//! What users mount, over directories and over files: nobody else waits for it.

use std::{
    fs,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::{
    actors::{STRANGER, Street},
    support::Desk,
};

/// A file system of a user's own (FUSE) over a directory or a file, which answers nothing, and lets
/// others ask or not; `None` where there is no FUSE.
pub(crate) struct Mounted {
    device: fs::File,
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

/// A file of a user's own (FUSE), which opens, and never gives its bytes.
struct Silent {
    ends: Arc<AtomicBool>,
    server: Option<std::thread::JoinHandle<()>>,
    /// Who waits gets an error once its device is closed, here and by the thread.
    _mounted: Mounted,
}

impl Silent {
    fn new(at: PathBuf) -> Option<Silent> {
        let mounted = Mounted::new(at, ",allow_other")?;
        let device = mounted.device.try_clone().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let of_server = ends.clone();
        let server = std::thread::spawn(move || {
            while !of_server.load(Relaxed) {
                answer(&device);
            }
        });
        Some(Silent { ends, server: Some(server), _mounted: mounted })
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.server.take().unwrap().join().unwrap();
    }
}

/// Answers the next request of the kernel, if one comes soon, but no READ.
fn answer(mut device: &fs::File) {
    use std::io::{Read, Write};
    let mut polled = [PollFd::new(device, PollFlags::IN)];
    let soon = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    if rustix::event::poll(&mut polled, Some(&soon)) != Ok(1) {
        return;
    }
    let mut request = vec![0; 1 << 20];
    let Ok(_) = device.read(&mut request) else { return };
    let word = |at: usize| u32::from_ne_bytes(*request[at..].first_chunk().unwrap());
    let words = |all: &[u32]| all.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let (error, body) = match word(4) {
        // INIT: version 7.31, and lengths.
        26 => (0, words(&[7, 31, 65536, 0, 9 << 16 | 12, 65536, 1, 256, 0, 0, 0, 0, 0, 0, 0, 0])),
        // GETATTR: a file of a MiB.
        3 => {
            let times = [0; 9];
            let attributes = [&[1, 0, 1 << 20, 0, 8, 0][..], &times, &[0o100_666, 1]].concat();
            (
                0,
                words(
                    &[&[1000, 0, 0, 0][..], &attributes, &[STRANGER, STRANGER, 0, 4096, 0]]
                        .concat(),
                ),
            )
        }
        // OPEN: what the system has of it stays.
        14 => (0, words(&[7, 0, 2, 0])),
        // READ, and those that want no answer.
        15 | 2 | 36 | 42 => return,
        _ => (-38i32, Vec::new()),
    };
    let head = words(&[16 + body.len() as u32, error as u32, word(8), word(12)]);
    let _ = device.write(&[head, body].concat());
}

/// A user writes to a file of his own from memory that is never filled: the system keeps the file
/// locked.
#[test]
#[ignore = "needs root"]
fn rule_07_a_file_that_a_user_keeps_locked_holds_no_backup_up() {
    let street = Street::new();
    let home = street.home("home", STRANGER);
    street.home("home/zoe", 0);
    fs::write(home.join("zoe/letter"), "dear").unwrap();
    for name in ["plain", "sparse"] {
        fs::write(home.join(name), vec![1; 8192]).unwrap();
        std::os::unix::fs::chown(home.join(name), Some(STRANGER), Some(STRANGER)).unwrap();
    }
    let sparse = fs::OpenOptions::new().write(true).open(home.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    for archive in ["roots", "others"] {
        let made = street.onefold(0, &format!("create archive {archive}")).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    fs::write(street.path("silent"), "").unwrap();
    let Some(silent) = Silent::new(street.path("silent")) else {
        println!("NOT TESTED: there is no FUSE here");
        return;
    };
    let program = "import mmap, os, sys\n\
                   memory = mmap.mmap(os.open(sys.argv[1], 0), 4096, prot=mmap.PROT_READ)\n\
                   os.write(os.open(sys.argv[2], os.O_RDWR), memory)";
    let mut lockers: Vec<_> = ["plain", "sparse"]
        .into_iter()
        .map(|name| {
            let mut python = street.program(STRANGER, Path::new("python3"));
            python.args(["-c", program]).arg(street.path("silent")).arg(home.join(name));
            python.stderr(std::process::Stdio::null()).spawn()
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    let is_locked = |locker: &mut std::io::Result<std::process::Child>| {
        locker.as_mut().is_ok_and(|locker| matches!(locker.try_wait(), Ok(None)))
    };
    let are_locked = lockers.iter_mut().all(is_locked);
    let verbs = ["backup roots home --set h", "put others s -r home", "estimate home"];
    let began = verbs.map(|verb| {
        let mut command = street.program(0, Path::new("timeout"));
        command.args(["-k", "5", "60", "./onefold"]).args(verb.split(' '));
        let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output().unwrap()));
        (verb, ended)
    });
    let wait = Duration::from_secs(90);
    let told = began.map(|(verb, ended)| (verb, ended.recv_timeout(wait).ok()));
    drop(silent);
    let all = street.onefold(0, "ls roots h").output().unwrap();
    lockers.into_iter().flatten().for_each(|mut locker| drop(locker.wait()));
    if !are_locked {
        println!("NOT TESTED: nobody keeps a file locked here");
        return;
    }
    for (verb, output) in told {
        let output = output.expect(verb);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = if verb.starts_with("estimate") { 0 } else { 3 };
        assert_eq!(output.status.code(), Some(expected), "{verb}: {text}");
        assert!(text.contains("sparse") && !text.contains("plain"), "{verb}: {text}");
        assert!(text.contains(&format!("user {STRANGER}")), "{verb}: {text}");
    }
    let all = String::from_utf8_lossy(&all.stdout).into_owned();
    assert!(all.contains("zoe/letter") && all.contains("plain"), "{all}");
}
