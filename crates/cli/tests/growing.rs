//! Stores that get larger, served and not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use support::{Desk, qemu_io};

const MIB: u64 = 1 << 20;

fn usable(desk: &Desk, store: &str) -> u64 {
    let space = &desk.status(store)["space"];
    space["usable_bytes"].as_u64().unwrap()
}

#[test]
fn a_store_that_nobody_serves_grows_and_never_shrinks() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M");
    desk.ok("volume create a v --size 1G");
    let before = usable(&desk, "a");
    assert_eq!(desk.ok("grow a --size 96M"), "the store has 96.0 MiB now\n");
    assert_eq!(usable(&desk, "a"), before + 32 * MIB);
    // From here on the list of zones has moved.
    assert_eq!(desk.ok("grow a --size 1G"), "the store has 1.00 GiB now\n");
    let metadata = fs::metadata(desk.path("a")).unwrap();
    assert_eq!(metadata.len(), 1 << 30);
    assert!(metadata.blocks() * 512 >= 1 << 30, "its space is reserved");
    assert_eq!(usable(&desk, "a"), before + 960 * MIB - 4 * MIB, "one zone holds the list");
    assert!(desk.ok("check a").ends_with("a is well\n"));
    assert!(desk.ok("grow a --size 1G").contains("already: nothing was changed"));
    desk.fails("grow a --size 64M", 1, &["never made smaller", "copy the volumes"]);
    desk.fails("grow a --size 1P", 1, &["free: nothing was changed"]);
    assert_eq!(fs::metadata(desk.path("a")).unwrap().len(), 1 << 30);
    let grown: serde_json::Value =
        serde_json::from_str(&desk.ok("grow a --size 2G --json")).unwrap();
    assert_eq!(grown["bytes"], 2_u64 << 30);
    assert!(desk.ok("scrub a").ends_with("all data of a is well\n"));
    assert_eq!(desk.status("a")["clean"], true);
}

#[test]
fn a_store_takes_all_of_a_file_that_was_made_longer() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    assert!(desk.ok("grow a").contains("already: nothing was changed"));
    let file = fs::File::options().write(true).open(desk.path("a")).unwrap();
    file.set_len(512 * MIB + 5000).unwrap();
    assert_eq!(desk.ok("grow a"), "the store has 512 MiB now\n");
    assert!(fs::metadata(desk.path("a")).unwrap().blocks() * 512 < 64 * MIB, "zone by zone");
    assert!(desk.ok("check a").ends_with("a is well\n"));
}

#[test]
fn an_archive_has_no_size_to_grow() {
    let desk = Desk::new();
    desk.ok("create archive backups");
    desk.fails("grow backups --size 1G", 1, &["backups is an archive", "no size to grow"]);
}

#[test]
fn a_served_store_grows_while_a_client_writes() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    desk.ok("volume create a v --size 1G");
    let serving = desk.serve("a --nbd unix:a.sock");
    let uri = desk.uri("a", "v");
    let done = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut round = 0_u64;
            while !done.load(Ordering::Relaxed) || round < 3 {
                let commands: Vec<String> = (0..8)
                    .map(|n| format!("write -P {} {}M 1M", round * 8 % 200 + n + 1, n))
                    .chain(["flush".to_owned()])
                    .collect();
                qemu_io(&uri, &commands.iter().map(String::as_str).collect::<Vec<_>>());
                round += 1;
            }
            round - 1
        });
        for size in ["80M", "480M", "1G", "2G"] {
            assert!(desk.ok(&format!("grow a --size {size}")).contains("now"), "{size}");
        }
        done.store(true, Ordering::Relaxed);
        client.join().unwrap()
    });
    // More than the store had, and each byte of it is there after a kill.
    fs::write(desk.path("noise"), support::noise(1, 128 << 20)).unwrap();
    qemu_io(
        &uri,
        &[
            "write -s noise 64M 128M"
                .replace("noise", &desk.path("noise").display().to_string())
                .as_str(),
            "flush",
        ],
    );
    let said: serde_json::Value = desk.status("a");
    assert!(said["space"]["usable_bytes"].as_u64().unwrap() > 1900 * MIB, "{said}");
    serving.kill();
    let serving = desk.serve("a --nbd unix:a.sock");
    let commands: Vec<String> =
        (0..8).map(|n| format!("read -P {} {}M 1M", written * 8 % 200 + n + 1, n)).collect();
    qemu_io(&uri, &commands.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(serving.terminate().0.success());
    assert!(desk.ok("check a").ends_with("a is well\n"));
    assert!(desk.ok("scrub a").ends_with("all data of a is well\n"));
}

#[test]
fn a_kill_in_the_midst_of_a_growth_leaves_the_old_size_or_the_new_one() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    desk.ok("volume create a v --size 64M");
    let mut before = usable(&desk, "a");
    for (n, size) in ["128M", "256M", "512M", "1G", "2G", "4G"].into_iter().enumerate() {
        let serving = desk.serve("a --nbd unix:a.sock");
        qemu_io(&desk.uri("a", "v"), &[&format!("write -P {} 0 4M", n + 1), "flush"]);
        let mut growing = desk
            .command(&format!("grow a --size {size}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(12 * n as u64));
        serving.kill();
        growing.wait().unwrap();
        let serving = desk.serve("a --nbd unix:a.sock");
        qemu_io(&desk.uri("a", "v"), &[&format!("read -P {} 0 4M", n + 1)]);
        let after = usable(&desk, "a");
        assert!(after >= before, "{after} {before}");
        desk.ok(&format!("grow a --size {size}"));
        assert!(serving.terminate().0.success());
        assert!(desk.ok("check a").ends_with("a is well\n"), "{size}");
        assert!(usable(&desk, "a") >= after);
        before = usable(&desk, "a");
    }
}

/// Runs a command with a file as its standard input.
fn from_input(desk: &Desk, arguments: &str, file: &str) -> std::process::Output {
    desk.command(arguments).stdin(fs::File::open(desk.path(file)).unwrap()).output().unwrap()
}

#[test]
fn an_image_of_another_format_is_not_taken_as_it_is() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M");
    fs::write(desk.path("disk.qcow2"), [b"QFI\xfb".as_slice(), &[7; 8188]].concat()).unwrap();
    desk.fails("import a v disk.qcow2", 1, &["is a qcow2 image", "qemu-img convert", "--raw"]);
    assert_eq!(desk.ok("volume list a"), "no volumes\n");
    for (format, begin) in [
        ("qcow2", &b"QFI\xfb"[..]),
        ("QED", b"QED\0"),
        ("VMDK", b"COWD"),
        ("VMDK", b"# Disk DescriptorFile\nversion=1\n"),
        ("Parallels", b"WithoutFreeSpace"),
        ("Parallels", b"WithouFreSpacExt"),
        ("VHDX", b"vhdxfile"),
    ] {
        fs::write(desk.path("disk.other"), [begin, &[7; 8192]].concat()).unwrap();
        desk.fails("import a v disk.other", 1, &[&format!("is a {format} image"), "--raw"]);
        let piped = from_input(&desk, "import a v -", "disk.other");
        let says = format!("standard input is a {format} image");
        assert!(!piped.status.success(), "{piped:?}");
        assert!(String::from_utf8_lossy(&piped.stderr).contains(&says), "{piped:?}");
    }
    assert_eq!(desk.ok("volume list a"), "no volumes\n");
    assert!(from_input(&desk, "import a piped - --raw", "disk.other").status.success());
    desk.ok("export a piped piped.raw");
    let taken = fs::read(desk.path("piped.raw")).unwrap();
    let given = fs::read(desk.path("disk.other")).unwrap();
    assert!(taken.starts_with(&given), "the bytes that were looked at belong to the image");
    desk.ok("volume delete a piped");
    desk.ok("import a v disk.qcow2 --raw");
    fs::write(desk.path("short"), "QFI").unwrap();
    desk.ok("import a w short");
    desk.ok("volume delete a v w");
    assert_eq!(desk.ok("volume list a"), "no volumes\n");
}

#[test]
fn nothing_is_frozen_for_names_that_cannot_be() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M");
    desk.ok("volume create a v --size 1M");
    desk.ok("snapshot create a v@1 v@2");
    for (names, why) in [
        (["v@3", "w@1"], "there is no volume 'w'"),
        (["v@3", "v@1"], "'v@1' exists already"),
        (["v@3", "v"], "'v' names no snapshot"),
    ] {
        let mut taking = desk.command("snapshot create a");
        taking.args(names).args(["--freeze", "touch frozen", "--thaw", "true"]);
        let out = taking.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains(why), "{said}");
        assert!(!desk.path("frozen").exists(), "{why}");
    }
    desk.ok("snapshot delete a v@1 v@2");
    assert_eq!(desk.ok("snapshot list a"), "no snapshots\n");
}
