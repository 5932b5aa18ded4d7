//! Tiny writes all over a thin volume of an archive: rules 0 and 9.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use crate::support::Desk;

/// Bytes of a volume that one leaf of its map names.
const LEAF: u64 = 64 << 20;

/// More than the leaves of maps that may have changed before a checkpoint.
const LEAVES: u64 = 4500;

/// A connection that is asked for volume `v`, with no flags of the options.
fn connect(socket: &Path) -> UnixStream {
    let mut client = UnixStream::connect(socket).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    // NBD_OPT_GO for a name of one byte, without requests for information.
    let go = [
        &3u32.to_be_bytes()[..],
        b"IHAVEOPT",
        &[0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0, 1],
        b"v",
        &[0; 2],
    ];
    client.write_all(&go.concat()).unwrap();
    loop {
        let mut reply = [0; 20];
        client.read_exact(&mut reply).unwrap();
        let number = |at: usize| u32::from_be_bytes(*reply[at..].first_chunk().unwrap());
        client.read_exact(&mut vec![0; number(16) as usize]).unwrap();
        match number(12) {
            1 => return client,
            kind => assert!(kind < 1 << 31, "refused: {kind:x}"),
        }
    }
}

/// Sends a request; gives the error of its reply.
fn ask(client: &mut UnixStream, command: u16, at: u64, bytes: &[u8]) -> u32 {
    let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
    request.extend([&[0; 2][..], &command.to_be_bytes(), &[0; 8], &at.to_be_bytes()].concat());
    request.extend((bytes.len() as u32).to_be_bytes());
    request.extend(bytes);
    client.write_all(&request).unwrap();
    let mut reply = [0; 16];
    client.read_exact(&mut reply).unwrap();
    u32::from_be_bytes(*reply[4..].first_chunk().unwrap())
}

/// KiB of memory that a process has.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn rule_09_tiny_writes_all_over_a_thin_volume_keep_nobody_from_the_archive() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    desk.ok(&format!("volume create a v --size {}M", (LEAVES * LEAF) >> 20));
    let serving = desk.serve(&format!("a --nbd unix:{}", desk.path("s").display()));
    let before = resident(serving.pid());
    let mut client = connect(&desk.path("s"));
    for leaf in 0..LEAVES {
        assert_eq!(ask(&mut client, 1, leaf * LEAF, &[7; 512]), 0);
    }
    assert_eq!(ask(&mut client, 3, 0, &[]), 0);
    println!("resident: {before} KiB before, {} KiB after", resident(serving.pid()));
    // The commit wrote a checkpoint, so that the log tells nothing of it any more.
    assert!(fs::metadata(desk.path("a/maps")).unwrap().len() >= LEAVES * 8192);
    assert!(desk.ok("ls a --memory 1M").contains("no streams"));
    drop(client);
    assert!(serving.terminate().0.success());
    assert!(desk.ok("check a --memory 1M").contains("1 volume with"));
}
