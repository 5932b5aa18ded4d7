//! Cold blocks of a served store are packed, and every verb goes on with them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    fs,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use support::{Desk, noise};

const MIB: usize = 1 << 20;

/// Blocks that differ and shrink to some 700 bytes; the last MiB does not shrink.
fn image(seed: u64, mib: usize) -> Vec<u8> {
    let noise = noise(seed, mib * MIB);
    let mut image = noise.clone();
    for block in image[..(mib - 1) * MIB].chunks_mut(4096) {
        block[640..].fill(0x33);
    }
    image
}

/// A space of a store in bytes.
fn space(desk: &Desk, what: &str) -> u64 {
    desk.status("a")["space"][what].as_u64().unwrap()
}

/// Waits until a served store has packed so much.
fn packed(desk: &Desk, least: u64) {
    let until = Instant::now() + Duration::from_secs(120);
    while space(desk, "packed_bytes") < least {
        assert!(Instant::now() < until, "{}", desk.status("a"));
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_served_store_packs_what_lies_still() {
    let desk = Desk::new();
    desk.ok("create block a --size 128M");
    fs::write(desk.path("image"), image(1, 16)).unwrap();
    desk.ok("import a v image");
    desk.ok("snapshot create a v@first");
    let before = space(&desk, "stored_bytes");
    assert_eq!((space(&desk, "packed_bytes"), space(&desk, "pack_bytes")), (0, 0));

    let serving = desk.serve("a --nbd unix:a.sock --pack-after 1");
    packed(&desk, 14 * MIB as u64);
    let said = desk.status("a");
    let (content, packs) = (&said["space"]["packed_bytes"], &said["space"]["pack_bytes"]);
    assert!(packs.as_u64().unwrap() * 4 < content.as_u64().unwrap(), "{said}");
    assert!(said["space"]["stored_bytes"].as_u64().unwrap() < before / 2, "{said}");
    assert!(said["server"]["writes"]["packed_blocks"].as_u64().unwrap() > 3000, "{said}");
    let text = desk.ok("status a");
    assert!(text.contains("that lay still are packed into"), "{text}");
    desk.ok("snapshot clone a v@first w");
    assert!(serving.terminate().0.success());

    assert!(desk.ok("check a").contains("packed together"));
    assert!(desk.ok("scrub a").ends_with("all data of a is well\n"));
    let whole = |of: &str| {
        let _ = fs::remove_file(desk.path("out"));
        desk.ok(&format!("export a {of} out"));
        fs::read(desk.path("out")).unwrap() == image(1, 16)
    };
    assert!(whole("v") && whole("v@first") && whole("w"));

    // What is sent is content, and the receiver has it without packs.
    desk.ok("create block b --size 128M");
    let mut send = desk.command("send a v@first");
    let mut send = send.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut receive = desk.command("receive b");
    receive.stdin(send.stdout.take().unwrap()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(receive.status().unwrap().success() && send.wait().unwrap().success());
    desk.ok("export b v@first sent");
    assert!(fs::read(desk.path("sent")).unwrap() == fs::read(desk.path("out")).unwrap());

    // All packs are free once nobody names a fragment.
    for map in ["snapshot delete a v@first", "volume delete a w", "volume delete a v"] {
        desk.ok(map);
    }
    let serving = desk.serve("a --nbd unix:a.sock");
    let until = Instant::now() + Duration::from_secs(60);
    while space(&desk, "pack_bytes") > 0 || space(&desk, "stored_bytes") > 0 {
        assert!(Instant::now() < until, "{}", desk.status("a"));
        thread::sleep(Duration::from_millis(200));
    }
    assert!(serving.terminate().0.success());
    assert!(desk.ok("check a").ends_with("a is well\n"));
}

#[test]
fn packs_survive_a_kill() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M");
    fs::write(desk.path("image"), image(2, 8)).unwrap();
    desk.ok("import a v image");
    for least in [1, 2 * MIB as u64, 6 * MIB as u64] {
        let serving = desk.serve("a --nbd unix:a.sock --pack-after 1");
        packed(&desk, least);
        serving.kill();
        let _ = fs::remove_file(desk.path("out"));
        desk.ok("export a v out");
        assert!(fs::read(desk.path("out")).unwrap() == image(2, 8));
    }
    assert!(desk.ok("check a").ends_with("a is well\n"));
    assert!(desk.ok("scrub a").ends_with("all data of a is well\n"));
}

#[test]
fn who_can_not_pack_says_so() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M");
    let serve = |store: &str, more: &str| format!("serve {store} --nbd unix:a.sock {more}");
    desk.fails(&serve("a", "--pack-after 1 --moving off"), 2, &["--moving pauses"]);
    desk.fails(&serve("a", "--pack-after 0"), 2, &["--pack-after"]);
    desk.ok("create block still --size 64M --scheme ordermerge");
    desk.fails(&serve("still", "--pack-after 1"), 1, &["in place", "can't be packed"]);
    desk.ok("create block sealed --size 64M --key key");
    let sealed = serve("sealed", "--pack-after 1 --key key");
    desk.fails(&sealed, 1, &["encrypted", "can't be packed yet"]);
    desk.ok("create archive backups");
    desk.fails(&serve("backups", "--pack-after 1"), 2, &["--pack-after is for block stores"]);
}
