//! The medium below a store, and the process above it: rules 15 and 17 to 20.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::support::{Desk, Serving, overwrite, qemu_io, try_qemu_io};

/// Writes and flushes one place after another, until `done` has been true for a few more of them.
/// Returns how many were acknowledged, and how many of these were begun after `done`.
fn write_until(uri: &str, written: &AtomicU64, done: &AtomicBool) -> u64 {
    let mut late = 0;
    for n in 0..400 {
        let after = done.load(Ordering::SeqCst);
        // Content that is stored nowhere else.
        let said =
            try_qemu_io(uri, &[&format!("write -f -P {} {}k 4k", 1 + n % 255, 4 * n), "flush"]);
        if said.out.contains("wrote 4096/4096")
            && !said.out.contains("failed")
            && !said.err.contains("failed")
        {
            written.fetch_add(1, Ordering::SeqCst);
            late += u64::from(after);
        }
        if after && late + 3 < n {
            break;
        }
    }
    late
}

/// Harms the store's file while a client writes. Nothing that was begun afterwards is acknowledged,
/// and the log says why in one sentence.
fn harmed_under_load(harm: impl FnOnce(&Path), says: &str) {
    let desk = Desk::new();
    desk.store_with_volume("a");
    harmed(&desk, harm, says);
}

/// The same for the folder of a cluster store. Its server fails in the end.
fn folder_harmed_under_load(harm: impl FnOnce(&Path), says: &str) {
    let desk = Desk::new();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 64M");
    let (status, log) = harmed(&desk, harm, says).terminate();
    assert!(!status.success(), "{log}");
}

fn harmed(desk: &Desk, harm: impl FnOnce(&Path), says: &str) -> Serving {
    let mut server = desk.serve("a");
    let (uri, written, done) = (desk.uri("a", "v"), AtomicU64::new(0), AtomicBool::new(false));
    let late = std::thread::scope(|scope| {
        let client = scope.spawn(|| write_until(&uri, &written, &done));
        while written.load(Ordering::SeqCst) < 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        harm(&desk.path("a"));
        done.store(true, Ordering::SeqCst);
        client.join().unwrap()
    });
    assert_eq!(late, 0, "acknowledged on a store that is gone: {}", server.log());
    server.wait_for(says);
    told_once(&server, says);
    server
}

fn told_once(server: &Serving, says: &str) {
    let log = server.log();
    assert_eq!(log.lines().filter(|line| line.contains(says)).count(), 1, "{log}");
    assert_eq!(
        log.lines().filter(|line| line.contains("the store takes no more writes")).count(),
        1,
        "{log}"
    );
}

#[test]
fn rule_17_nothing_is_acknowledged_on_a_truncated_store() {
    let cut =
        |path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
    harmed_under_load(cut, "was cut off");
}

#[test]
fn rule_17_nothing_is_acknowledged_on_a_removed_store() {
    harmed_under_load(|path| fs::remove_file(path).unwrap(), "was removed");
}

#[test]
fn rule_17_nothing_is_acknowledged_on_a_store_whose_name_is_another_file() {
    let replace = |path: &Path| {
        let other = path.with_extension("other");
        fs::copy(path, &other).unwrap();
        fs::hard_link(path, path.with_extension("kept")).unwrap();
        fs::rename(other, path).unwrap();
    };
    harmed_under_load(replace, "is another file now");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn rule_17_nothing_is_acknowledged_on_a_removed_folder() {
    folder_harmed_under_load(|path| fs::remove_dir_all(path).unwrap(), "was removed");
}

#[test]
fn rule_17_nothing_is_acknowledged_on_a_folder_that_was_moved_or_replaced() {
    let moved = |path: &Path| fs::rename(path, path.with_extension("old")).unwrap();
    folder_harmed_under_load(moved, "is not at its path any more");
    let replaced = |path: &Path| {
        let old = path.with_extension("old");
        copy(path, &path.with_extension("new"));
        fs::rename(path, old).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    };
    folder_harmed_under_load(replaced, "it was moved");
}

#[test]
fn rule_17_a_worker_ends_when_its_folder_is_gone() {
    let desk = Desk::new();
    desk.ok("create cluster c --no-encryption");
    let mut worker = desk.command("worker c --cold 0");
    let mut worker = worker.stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(worker.try_wait().unwrap().is_none());
    fs::rename(desk.path("c"), desk.path("old")).unwrap();
    let begun = std::time::Instant::now();
    while worker.try_wait().unwrap().is_none() {
        if begun.elapsed().as_secs() > 30 {
            worker.kill().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let ended = worker.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(
        ended.status.code() == Some(1) && said.contains("is not at its path any more"),
        "{said}"
    );
}

#[test]
fn rule_17_nothing_is_acknowledged_on_a_folder_with_other_files() {
    for name in ["objects.redb", "data", "claim"] {
        let replace = |path: &Path| {
            let other = path.with_extension("other");
            fs::copy(path.join(name), &other).unwrap();
            fs::rename(other, path.join(name)).unwrap();
        };
        folder_harmed_under_load(replace, &format!("{name} was removed while it was open"));
    }
}

#[test]
fn rule_17_nothing_is_acknowledged_on_a_folder_whose_files_were_cut_off() {
    for name in ["objects.redb", "data"] {
        let cut = |path: &Path| {
            let file = fs::File::options().write(true).open(path.join(name)).unwrap();
            file.set_len(4096).unwrap();
        };
        // The tables may be missed by whoever reads them first.
        folder_harmed_under_load(cut, "the store takes no more writes");
    }
}

/// A loop device, detached when it is forgotten.
struct Loop(PathBuf);

impl Loop {
    fn on(file: &Path) -> Loop {
        let said = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        Loop(String::from_utf8(said.stdout).unwrap().trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
#[ignore = "needs root"]
fn rule_15_a_file_and_the_loop_device_over_it_are_not_served_both() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let device = Loop::on(&desk.path("a"));
    let shown = device.0.display();
    let by_file = desk.serve("a");
    desk.fails(
        &format!("serve {shown} --nbd unix:{}", desk.path("s").display()),
        1,
        &["is in use by another process"],
    );
    assert!(by_file.terminate().0.success());
    let by_device = desk.serve(&format!("{shown} --nbd unix:{}", desk.path("s").display()));
    desk.fails("serve a", 1, &["in use by"]);
    desk.fails("volume create a w --size 1M", 1, &["in use by"]);
    assert!(by_device.terminate().0.success());
}

/// A socket outside of the desk's directory.
fn socket(desk: &Desk) -> PathBuf {
    Path::new("/tmp")
        .join(desk.path("x").parent().unwrap().file_name().unwrap())
        .with_extension("sock")
}

/// The command where the desk's files have no names, so that no lock on them keeps it away: the
/// claim alone does.
fn elsewhere(desk: &Desk, arguments: &str) -> Command {
    let script = format!(
        "mount -t tmpfs none '{}' && exec {} {arguments}",
        desk.path("a").parent().unwrap().display(),
        env!("CARGO_BIN_EXE_onefold")
    );
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", &script])
        .envs(desk.command("").get_envs().filter_map(|(k, v)| Some((k, v?))));
    command
}

#[test]
#[ignore = "needs root"]
fn rule_15_a_device_whose_store_is_served_elsewhere_is_not_made_another_store() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let device = Loop::on(&desk.path("a"));
    let server = desk.serve("a");
    qemu_io(&desk.uri("a", "v"), &["write -P 1 0 64k", "flush"]);
    for more in ["", " --preallocate full"] {
        let said = elsewhere(&desk, &format!("create block {} --force{more}", device.0.display()))
            .output()
            .unwrap();
        let says = String::from_utf8_lossy(&said.stderr);
        assert!(
            !said.status.success() && says.contains(&format!("in use by process {}", server.pid())),
            "{says}"
        );
    }
    qemu_io(&desk.uri("a", "v"), &["read -P 1 0 64k", "write -P 2 0 64k", "flush"]);
    assert!(server.terminate().0.success());
    desk.ok("check a");
    // Once it is given up, it is taken.
    let said =
        elsewhere(&desk, &format!("create block {} --force", device.0.display())).output().unwrap();
    assert!(said.status.success(), "{said:?}");
}

/// One that wants the claim sleeps in the middle of its waits. When it wakes up, long after it
/// would have been the holder, it finds that the holder renewed its claim.
#[test]
#[ignore = "needs root"]
fn rule_15_a_taker_that_slept_takes_nothing() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let device = Loop::on(&desk.path("a"));
    let (first, door) = (desk.serve("a"), socket(&desk));
    let mut command =
        elsewhere(&desk, &format!("serve {} --nbd unix:{}", device.0.display(), door.display()));
    first.signal(Signal::STOP);
    let taker = Serving::start_saying(&mut command, "waiting for 27 s");
    std::thread::sleep(Duration::from_secs(3));
    taker.signal(Signal::STOP);
    first.signal(Signal::CONT);
    qemu_io(&desk.uri("a", "v"), &["write -P 1 0 64k", "flush"]);
    std::thread::sleep(Duration::from_secs(25));
    taker.signal(Signal::CONT);
    let (status, log) = taker.end();
    assert!(
        !status.success() && log.contains(&format!("in use by process {}", first.pid())),
        "{log}"
    );
    qemu_io(&desk.uri("a", "v"), &["read -P 1 0 64k", "write -P 2 0 64k", "flush"]);
    assert!(first.terminate().0.success());
    desk.ok("check a");
}

/// Bytes of somebody else in the claim of a folder that is served: nothing is acknowledged any
/// more.
fn folder_is_lost(desk: &Desk) {
    let mut server = desk.serve("a");
    qemu_io(&desk.uri("a", "v"), &["write -P 1 0 64k", "flush"]);
    overwrite(&desk.path("a/claim"), 4 * 4096, &[7; 512]);
    server.wait_for("overwritten by another program");
    let said = try_qemu_io(&desk.uri("a", "v"), &["write -f -P 3 0 64k", "flush"]);
    assert!(!said.out.contains("wrote 65536/65536"), "{said:?}");
    drop(server);
    let server = desk.serve("a");
    qemu_io(&desk.uri("a", "v"), &["read -P 1 0 64k"]);
    assert!(server.terminate().0.success());
    desk.ok("check a");
}

#[test]
fn rule_15_bytes_that_are_not_its_own_stop_the_server_of_an_archive() {
    let desk = Desk::new();
    desk.ok("create archive a");
    desk.ok("volume create a v --size 64M");
    folder_is_lost(&desk);
}

/// Opening may take long: recovery of a large store, or, as here, the wait for a claim.
#[test]
#[ignore = "needs root"]
fn rule_15_a_server_that_still_opens_its_store_ends_when_it_is_asked() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let device = Loop::on(&desk.path("a"));
    let first = desk.serve("a");
    let mut command = elsewhere(
        &desk,
        &format!("serve {} --nbd unix:{}", device.0.display(), socket(&desk).display()),
    );
    first.signal(Signal::STOP);
    let taker = Serving::start_saying(&mut command, "waiting for 27 s");
    let asked = Instant::now();
    taker.signal(Signal::TERM);
    taker.end();
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    first.signal(Signal::CONT);
    qemu_io(&desk.uri("a", "v"), &["write -P 1 0 64k", "flush"]);
    assert!(first.terminate().0.success());
}

#[test]
fn rule_02_a_claim_that_is_a_link_is_not_followed() {
    let desk = Desk::new();
    fs::write(desk.path("victim"), "mine").unwrap();
    for create in ["create archive a", "create cluster b"] {
        desk.ok(create);
        let (_, name) = create.rsplit_once(' ').unwrap();
        std::os::unix::fs::symlink("../victim", desk.path(name).join("claim")).unwrap();
        desk.fails(&format!("serve {name}"), 1, &["claim is no regular file"]);
    }
    assert_eq!(fs::read(desk.path("victim")).unwrap(), b"mine");
}

#[test]
fn rule_15_bytes_that_are_not_its_own_stop_the_server_of_a_cluster_folder() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 64M");
    folder_is_lost(&desk);
}

/// A server by the loop device that cannot reach the file's name, so that no lock keeps it away:
/// the claim alone does. While the first server sleeps the second one takes over, by the waits of
/// the rule; when the first one wakes up it writes and acknowledges nothing.
#[test]
#[ignore = "needs root"]
fn rule_15_a_server_that_slept_while_another_took_over_acknowledges_nothing() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let device = Loop::on(&desk.path("a"));
    let mut first = desk.serve("a");
    qemu_io(&desk.uri("a", "v"), &["write -P 1 0 64k", "flush"]);
    let socket = socket(&desk);
    let command = || {
        elsewhere(&desk, &format!("serve {} --nbd unix:{}", device.0.display(), socket.display()))
    };
    let refused = command().output().unwrap();
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && says.contains(&format!("in use by process {}", first.pid())),
        "{says}"
    );

    first.signal(Signal::STOP);
    let second = Serving::start_saying(&mut command(), "waiting for 27 s");
    let begun = Instant::now();
    while !second.log().contains("serving ") {
        assert!(begun.elapsed() < Duration::from_secs(90), "{}", second.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    let uri = format!("nbd+unix:///v?socket={}", socket.display());
    qemu_io(&uri, &["read -P 1 0 64k", "write -P 2 0 64k", "flush"]);
    first.signal(Signal::CONT);
    let late = try_qemu_io(&desk.uri("a", "v"), &["write -f -P 3 0 64k"]);
    assert!(!late.out.contains("wrote 65536/65536"), "{late:?} {}", first.log());
    first.wait_for("taken over by process");
    qemu_io(&uri, &["read -P 2 0 64k"]);
    drop(first);
    assert!(second.terminate().0.success());
    let _ = fs::remove_file(&socket);
    desk.ok("check a");
}

#[test]
fn rule_15_bytes_that_are_not_its_own_stop_a_server_for_good() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let mut server = desk.serve("a");
    overwrite(&desk.path("a"), 4 * 4096, &[7; 512]);
    server.wait_for("overwritten by another program");
    let said = try_qemu_io(&desk.uri("a", "v"), &["write -f -P 3 0 64k"]);
    assert!(!said.out.contains("wrote 65536/65536"), "{said:?}");
    drop(server);
    desk.ok("check a");
}

#[test]
fn rule_15_a_store_is_opened_at_once_after_its_server_was_killed() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    desk.serve("a").kill();
    let begun = Instant::now();
    let server = desk.serve("a");
    assert!(!server.log().contains("waiting for"), "{}", server.log());
    assert!(begun.elapsed() < Duration::from_secs(15));
    assert!(server.terminate().0.success());
}
