//! `serve --vhost`: guests whose server is killed, resized and renamed volumes, all three engines.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
#[path = "../../serve/tests/vhost_driver/mod.rs"]
mod vhost_driver;

use std::{collections::BTreeMap, io::Read, os::unix::fs::PermissionsExt, time::Duration};

use rustix::fs::SealFlags;
use support::Desk;
use vhost::vhost_user::VhostUserFrontend;
use vhost_driver::*;

const MOMENT: Duration = Duration::from_millis(200);

/// The content of a block at its nth write.
fn content(block: u64, n: u64) -> Vec<u8> {
    let mut bytes = support::noise(block << 32 | n, 4096);
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

#[test]
fn a_guest_goes_on_whenever_its_server_is_killed() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let guest = Guest::new(SealFlags::SHRINK);
    let arguments = "a --persistence strong --vhost v=unix:v.sock";
    let mut serving = desk.serve(arguments);
    let socket = desk.path("v.sock");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut driver = Driver::start(&socket, &guest, Wants::default()).unwrap();
    // By slot what is under way, by block what was answered.
    let (mut under_way, mut written) = (BTreeMap::new(), BTreeMap::new());
    let (mut n, mut again) = (0u64, 0);
    for kill in 0..8 {
        let upto = n + 60 + kill * 13;
        while n < upto {
            let queue = &mut driver.queues[0];
            // 24 at one time, each of a block of its own, so that their order does not matter.
            while under_way.len() < 24 {
                n += 1;
                let block = n % 97;
                if n % 10 == 0 {
                    under_way.insert(queue.add(&guest, FLUSH, 0, &[], 0), None);
                } else if !under_way.values().any(|one| {
                    one == &Some((block, n)) || matches!(one, Some((of, _)) if *of == block)
                }) {
                    let slot = queue.add(&guest, OUT, block * 8, &content(block, n), 0);
                    under_way.insert(slot, Some((block, n)));
                }
            }
            queue.show(&guest);
            let (slot, status, _) = queue.wait(&guest);
            assert_eq!(status, OK);
            if let Some((block, n)) = under_way.remove(&slot).unwrap() {
                written.insert(block, n);
            }
        }
        serving.kill();
        again += under_way.len();
        serving = desk.serve(arguments);
        driver.again(&socket, &guest).unwrap();
        while let Some(slot) = under_way.keys().next().copied() {
            let (answered, status, _) = driver.queues[0].wait(&guest);
            assert_eq!(status, OK, "slot {slot} was under way");
            if let Some((block, n)) = under_way.remove(&answered).unwrap() {
                written.insert(block, n);
            }
        }
        for (block, n) in &written {
            let (status, found) = driver.queues[0].read(&guest, block * 8, 4096);
            assert!(status == OK && found == content(*block, *n), "block {block} after {kill}");
        }
        assert_eq!(driver.queues[0].wait_for(&guest, Duration::ZERO), None, "answered once");
    }
    assert!(again > 100, "{again} requests were under way at the kills");
    drop(driver);
    assert!(serving.terminate().0.success());
    desk.ok("check a");
}

#[test]
fn writes_that_a_guest_has_under_way_become_durable_together() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let guest = Guest::new(SealFlags::SHRINK);
    let arguments = "a --persistence strong --vhost v=unix:v.sock";
    let mut serving = desk.serve(arguments);
    let socket = desk.path("v.sock");
    let mut driver = Driver::start(&socket, &guest, Wants::default()).unwrap();
    let flushes = || {
        let writes = &desk.status("a")["server"]["writes"];
        writes["flushes"].as_u64().unwrap() + writes["durable_writes"].as_u64().unwrap()
    };
    let before = flushes();
    for round in 0..4 {
        for n in 0..64u64 {
            driver.queues[0].add(&guest, OUT, 8 * n, &content(n, round), 0);
        }
        driver.queues[0].show(&guest);
        for _ in 0..64 {
            assert_eq!(driver.queues[0].wait(&guest).1, OK);
        }
    }
    let flushes = flushes() - before;
    assert!((1..=64).contains(&flushes), "{flushes} flushes for four times 64 writes");
    serving.kill();
    serving = desk.serve(arguments);
    driver.again(&socket, &guest).unwrap();
    for n in 0..64 {
        let found = driver.queues[0].read(&guest, 8 * n, 4096);
        assert!(found == (OK, content(n, 3)), "block {n} was acknowledged");
    }
    drop(driver);
    assert!(serving.terminate().0.success());
}

#[test]
fn a_guest_that_was_told_of_what_is_lost_hears_of_it() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let guest = Guest::new(SealFlags::SHRINK);
    let arguments = "a --vhost v=unix:v.sock";
    let mut serving = desk.serve(arguments);
    let socket = desk.path("v.sock");
    let mut driver = Driver::start(&socket, &guest, Wants::default()).unwrap();
    assert_eq!(driver.queues[0].write(&guest, 0, &[1; 4096]), OK);
    assert_eq!(driver.queues[0].flush(&guest), OK);
    serving.kill();
    serving = desk.serve(arguments);
    driver.again(&socket, &guest).unwrap();
    assert_eq!(driver.queues[0].read(&guest, 0, 4096), (OK, vec![1; 4096]), "all was durable");
    assert_eq!(driver.queues[0].write(&guest, 8, &[2; 4096]), OK);
    serving.kill();
    serving = desk.serve(arguments);
    driver.again(&socket, &guest).unwrap();
    let queue = &mut driver.queues[0];
    assert_eq!(queue.flush(&guest), IOERR, "it would have hidden what is lost");
    assert_eq!(queue.read(&guest, 0, 4096).0, IOERR);
    assert_eq!(queue.write(&guest, 0, &[3; 4096]), IOERR);
    serving.wait_for("may have lost what its guest holds to be written");
    // Not even another server, in order, makes that good; a guest that begins anew does.

    assert!(serving.terminate().0.success());
    serving = desk.serve(arguments);
    driver.again(&socket, &guest).unwrap();
    assert_eq!(driver.queues[0].flush(&guest), IOERR);
    drop(driver);
    std::thread::sleep(MOMENT);
    let mut driver = Driver::start(&socket, &guest, Wants::default()).unwrap();
    assert_eq!(driver.queues[0].read(&guest, 0, 4096), (OK, vec![1; 4096]));
    // What was written and not flushed is kept by a server that ends in order.
    assert_eq!(driver.queues[0].write(&guest, 16, &[4; 4096]), OK);
    assert!(serving.terminate().0.success());
    let serving = desk.serve(arguments);
    driver.again(&socket, &guest).unwrap();
    assert_eq!(driver.queues[0].read(&guest, 16, 4096), (OK, vec![4; 4096]));
    drop(driver);
    assert!(serving.terminate().0.success());
    assert!(!socket.exists());
}

#[test]
fn devices_of_volumes_that_are_not_there_are_refused() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    desk.fails("serve a --vhost w=unix:w.sock", 1, &["w"]);
    desk.fails("serve a --vhost v", 2, &["VOLUME=unix:PATH"]);
    std::fs::write(desk.path("v.sock"), "a file").unwrap();
    desk.fails("serve a --vhost v=unix:v.sock", 1, &["is not a socket"]);
    assert_eq!(std::fs::read(desk.path("v.sock")).unwrap(), b"a file");
    let serving = desk.serve("a --vhost v=unix:w.sock");
    desk.store_with_volume("b");
    desk.fails("serve b --vhost v=unix:w.sock", 1, &["another server answers on"]);
    serving.kill();
    // The socket of a server that was killed is replaced.
    let serving = desk.serve("b --vhost v=unix:w.sock");
    assert!(serving.terminate().0.success());
}

#[test]
fn a_volume_grows_and_is_renamed_under_its_guest_and_a_snapshot_is_read() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let guest = Guest::new(SealFlags::SHRINK);
    desk.ok("snapshot create a v@s");
    let serving = desk.serve("a --vhost v=unix:v.sock --vhost v@s=unix:s.sock");
    let socket = desk.path("v.sock");
    let mut driver = Driver::start(&socket, &guest, Wants::default()).unwrap();
    let (mut news, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    driver.frontend.set_backend_request_fd(&theirs).unwrap();
    assert_eq!(driver.queues[0].write(&guest, 0, &[1; 512]), OK);
    assert_eq!(driver.size(), 64 << 20);
    desk.ok("volume resize a v --size 128M");
    news.read_exact(&mut [0; 12]).unwrap();
    assert_eq!(driver.size(), 128 << 20);
    assert_eq!(driver.queues[0].write(&guest, (128 << 11) - 1, &[1; 512]), OK);
    let other = Guest::new(SealFlags::SHRINK);
    let mut snapshot = Driver::start(&desk.path("s.sock"), &other, Wants::default()).unwrap();
    desk.ok("volume rename a v w");
    let status = desk.status("a");
    assert_eq!(status["server"]["nbd"]["connections"], 2);
    drop(driver);
    std::thread::sleep(MOMENT);
    let mut driver = Driver::start(&socket, &guest, Wants::default()).unwrap();
    assert_eq!(driver.queues[0].read(&guest, 0, 512), (OK, vec![1; 512]), "by its new name");
    assert_ne!(snapshot.features & RO, 0);
    assert_eq!(snapshot.queues[0].read(&other, 0, 512), (OK, vec![0; 512]));
    assert_eq!(snapshot.queues[0].write(&other, 0, &[1; 512]), IOERR);
    drop((driver, snapshot));
    assert!(serving.terminate().0.success());
    desk.ok("check a");
}

#[test]
fn archives_clusters_and_encrypted_stores_have_devices_too() {
    let desk = Desk::new();
    std::fs::write(desk.path("key"), [7; 32]).unwrap();
    let key = std::fs::File::open(desk.path("key")).unwrap();
    key.set_permissions(PermissionsExt::from_mode(0o600)).unwrap();
    desk.ok("create archive archive");
    desk.ok("create cluster cluster");
    desk.ok("create block sealed --size 64M --preallocate none --key file:key");
    for store in ["archive", "cluster", "sealed"] {
        let key = if store == "sealed" { " --key file:key" } else { "" };
        desk.ok(&format!("volume create {store} v --size 16M{key}"));
        let guest = Guest::new(SealFlags::SHRINK);
        let arguments = format!("{store} --vhost v=unix:{store}.v.sock{key}");
        let serving = desk.serve(&arguments);
        let socket = desk.path(&format!("{store}.v.sock"));
        let mut driver = Driver::start(&socket, &guest, Wants::default()).unwrap();
        for (block, seed) in [(0, 1), (7, 2), (4095, 3)] {
            assert_eq!(driver.queues[0].write(&guest, block * 8, &content(seed, 1)), OK, "{store}");
        }
        assert_eq!(driver.queues[0].write(&guest, 9, &[9; 512]), OK);
        assert_eq!(driver.queues[0].flush(&guest), OK);
        assert!(serving.terminate().0.success());
        let serving = desk.serve(&arguments);
        driver.again(&socket, &guest).unwrap();
        for (block, seed) in [(0, 1), (7, 2), (4095, 3)] {
            let found = driver.queues[0].read(&guest, block * 8, 4096);
            assert!(found == (OK, content(seed, 1)), "{store}");
        }
        assert_eq!(driver.queues[0].read(&guest, 9, 512), (OK, vec![9; 512]));
        drop(driver);
        assert!(serving.terminate().0.success());
    }
}
