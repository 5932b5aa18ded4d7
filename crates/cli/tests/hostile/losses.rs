//! Two clients with a volume of an archive each: what one of them loses, and the room that its data
//! lacks, are no matter of the other one.

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{Desk, noise, overwrite, qemu_io, try_qemu_io, unmount};

/// Runs a `qemu-io` command without a flush, and leaves.
fn unflushed(uri: &str, command: &str) -> std::process::Output {
    Command::new("qemu-io")
        .args(["-f", "raw", "-t", "unsafe", "-c", command, uri])
        .output()
        .unwrap()
}

fn archive_of_two(desk: &Desk, archive: &str) -> [String; 2] {
    desk.ok(&format!("create archive {archive}"));
    ["his", "other"].map(|name| {
        desk.ok(&format!("volume create {archive} {name} --size 1G"));
        desk.uri(archive, name)
    })
}

#[test]
fn rule_13_what_a_volume_lost_is_told_to_nobody_else() {
    let desk = Desk::new();
    let [his, other] = archive_of_two(&desk, "a");
    let data = noise(1, 128 << 10);
    fs::write(desk.path("data"), &data).unwrap();
    let serving = desk.serve("a");
    qemu_io(&his, &[&format!("write -s {} 0 128k", desk.path("data").display()), "flush"]);
    assert!(serving.terminate().0.success());
    let segment = desk.path("a").join("segment-00000001");
    let bytes = fs::read(&segment).unwrap();
    let at = bytes.windows(32).position(|part| *part == data[100_000..100_032]).unwrap();
    overwrite(&segment, at as u64 + 5, &[!bytes[at + 5]]);

    let serving = desk.serve("a");
    // More than half of the block, so that the rest of it is read. Its client stays, and flushes last; `qemu-io`
    // shows by its exit status alone that a flush failed.
    let stays = Command::new("qemu-io")
        .args(["-f", "raw", "-t", "none", "-c", "write -P 7 0 68k"])
        .args(["-c", "sleep 4000", "-c", "flush", &his])
        .stdout(Stdio::piped())
        .spawn();
    let mut stays = stays.unwrap();
    let mut lines = BufReader::new(stays.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("wrote 69632")));
    qemu_io(&other, &["write -P 1 0 4k", "flush"]);
    desk.ok("volume clone a other monday --read-only");
    assert!(!stays.wait().unwrap().success());
    let said = try_qemu_io(&his, &["read 0 4k"]);
    assert!(said.out.contains("Input/output error"), "{said:?}");
    qemu_io(&his, &["write -P 3 1M 4k", "flush", "read -P 3 1M 4k"]);
    qemu_io(&other, &["write -P 4 0 4k", "flush", "read -P 4 0 4k"]);
    let (status, log) = serving.terminate();
    assert!(status.success(), "{log}");
    assert_eq!(log.matches("block 0 of volume 'his'").count(), 1, "{log}");
}

/// A file system of 256 MiB.
struct Small<'a>(&'a Path);

impl Drop for Small<'_> {
    fn drop(&mut self) {
        unmount(self.0);
    }
}

#[test]
#[ignore = "needs root"]
fn rule_12_who_fills_the_disk_and_leaves_keeps_no_other_from_storing() {
    let desk = Desk::new();
    let place = desk.path("small");
    fs::create_dir(&place).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256m,mode=700", "none"]).arg(&place);
    assert!(mount.status().unwrap().success());
    let _small = Small(&place);
    let [his, other] = archive_of_two(&desk, "small/a");
    let serving = desk.serve("small/a");
    qemu_io(&other, &["write -P 1 0 4k", "flush"]);
    // All but 24 MiB are somebody else's.
    let mut filler = fs::File::create(place.join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    filler.set_len(filler.metadata().unwrap().len() - (24 << 20)).unwrap();
    for (n, at) in [(1, 0), (2, 32)] {
        fs::write(desk.path("data"), noise(n, 32 << 20)).unwrap();
        let data = desk.path("data");
        drop(unflushed(&his, &format!("write -s {} {at}M 32M", data.display())));
    }
    let waits = || desk.status("small/a")["server"]["dirty_bytes"].as_u64().unwrap();
    assert!(waits() > 24 << 20);
    qemu_io(&other, &["write -P 2 0 4k", "write -P 3 1M 4k", "flush", "read -P 2 0 4k"]);
    desk.ok("volume clone small/a other monday --read-only");
    assert!(waits() > 24 << 20);
    let said = try_qemu_io(&his, &["write -P 2 100M 4k", "flush"]);
    assert!(!said.status.success(), "{said:?}");
    // A file that is open keeps its space.
    drop(filler);
    fs::remove_file(place.join("filler")).unwrap();
    qemu_io(&his, &["write -P 2 100M 4k", "flush"]);
    assert_eq!(waits(), 0);
    let (status, log) = serving.terminate();
    assert!(status.success(), "{log}");
    desk.ok("check small/a");
}
