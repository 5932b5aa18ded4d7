//! The examples run, and do what they say.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use onefold::{ArchiveFormat, BlockFormat, Store, create_archive, create_block};

/// An example as it was built with this test.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    let mut command = Command::new(folder.join("examples").join(name));
    command.stdin(Stdio::null());
    command
}

fn said(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn run(name: &str, arguments: &[&Path]) -> String {
    let mut command = example(name);
    command.args(arguments);
    said(command)
}

fn folder() -> (tempfile::TempDir, impl Fn(&str) -> PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, move |name: &str| path.join(name))
}

#[test]
fn a_store_is_served_until_input_ends() {
    let (_folder, at) = folder();
    create_block(at("disk"), &BlockFormat::of_bytes(64 << 20)).unwrap();
    let store = Store::open(at("disk")).unwrap();
    store.create_volume("vm1", 1 << 30).unwrap();
    store.close().unwrap();
    let told = run("serve_a_store", &[&at("disk"), &at("sock")]);
    assert!(told.contains("vm1?socket=") && told.contains("1073741824 bytes"), "{told}");
}

#[test]
fn a_stream_is_put_twice_and_read() {
    let (_folder, at) = folder();
    std::fs::write(at("file"), vec![9; 300_000]).unwrap();
    let told = run("put_and_get", &[&at("archive"), &at("file")]);
    assert!(told.contains("tuesday: 300000 bytes, 0 of them new"), "{told}");
    assert!(told.contains("read 300000 bytes back"), "{told}");
}

#[test]
fn a_volume_is_copied() {
    let (_folder, at) = folder();
    create_archive(at("archive"), &ArchiveFormat::default()).unwrap();
    let store = Store::open(at("archive")).unwrap();
    store.create_volume("disk1", 10 << 20).unwrap();
    let volume = store.volume("disk1").unwrap();
    volume.write_at(5 << 20, &[3; 4096]).unwrap();
    drop(volume);
    store.close().unwrap();
    run("read_a_volume", &[&at("archive"), Path::new("disk1"), &at("copy")]);
    let copy = std::fs::read(at("copy")).unwrap();
    let expected: Vec<u8> =
        (0..10 << 20).map(|n| if (n as u64 >> 12) == 5 << 8 { 3 } else { 0 }).collect();
    assert!(copy == expected);
}

#[test]
fn versions_are_kept_and_dropped() {
    let (_folder, at) = folder();
    run("embed_an_archive", &[&at("archive")]);
    let told = run("embed_an_archive", &[&at("archive")]);
    assert!(told.contains("version 10:") && told.contains("3 versions"), "{told}");
}

#[test]
fn a_put_tells_how_far_it_is_and_is_cancelled() {
    let (_folder, at) = folder();
    let told = run("progress_and_cancellation", &[&at("archive")]);
    assert!(told.contains("64 MiB read") && told.contains("not stored"), "{told}");
    assert!(told.contains("1 stream is there"), "{told}");
}
