//! Archives in object storage: all verbs by an address, on a directory that stands for a bucket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{collections::BTreeSet, fs, io::Write, os::unix::fs::PermissionsExt, process::Stdio};

use serde_json::Value;
use support::{Desk, noise};

/// All objects of a folder of the bucket.
fn objects(desk: &Desk, folder: &str) -> usize {
    fs::read_dir(desk.path("b").join(folder)).map_or(0, Iterator::count)
}

/// An address that leads to the desk's bucket.
fn address(desk: &Desk) -> String {
    format!("bucket:{}", desk.path("b").display())
}

#[test]
fn verbs_of_archives_work_in_a_bucket() {
    let desk = Desk::new();
    let far = address(&desk);
    fs::create_dir_all(desk.path("home/below")).unwrap();
    fs::write(desk.path("home/below/file"), noise(1, 3_000_000)).unwrap();
    fs::write(desk.path("home/letter"), "dear all").unwrap();
    fs::write(desk.path("image"), noise(2, 2_000_000)).unwrap();

    desk.fails(&format!("ls {far}"), 1, &[&far]);
    assert!(desk.ok(&format!("create archive {far}")).contains(&format!("created {far}")));
    let frames = objects(&desk, "log");
    desk.fails(&format!("create archive {far}"), 1, &[&far, "there is an archive"]);
    assert_eq!(objects(&desk, "log"), frames, "who was refused changed nothing");
    desk.ok(&format!("put {far} image image"));
    desk.ok(&format!("get {far} image --output image.back"));
    assert_eq!(fs::read(desk.path("image")).unwrap(), fs::read(desk.path("image.back")).unwrap());
    desk.ok(&format!("mv {far} image only"));
    assert!(desk.ok(&format!("ls {far}")).contains("only"));
    desk.ok(&format!("rm {far} only"));

    desk.ok(&format!("backup {far} home --set home"));
    fs::write(desk.path("home/letter"), "dear others").unwrap();
    desk.ok(&format!("backup {far} home --set home"));
    assert_eq!(
        desk.ok(&format!("snapshots {far}")).lines().filter(|l| l.contains("home")).count(),
        2
    );
    desk.ok(&format!("restore {far} home -C back"));
    let back = desk.path("back").join(desk.path("home").strip_prefix("/").unwrap());
    assert_eq!(fs::read(back.join("letter")).unwrap(), b"dear others");
    assert_eq!(fs::read(back.join("below/file")).unwrap(), noise(1, 3_000_000));
    let letter = desk.path("home/letter");
    assert_eq!(desk.ok(&format!("cat {far} home~1 {}", letter.display())), "dear all");
    assert!(desk.ok(&format!("diff {far} home~1 home")).contains("letter"));
    assert!(desk.ok(&format!("find {far} letter")).contains("letter"));
    desk.ok(&format!("forget {far} --keep-last 1 --set home"));
    let said = desk.ok(&format!("gc {far} --trash 0"));
    assert!(
        said.contains("freed") && said.contains("will be deleted by a gc after a day"),
        "{said}"
    );
    desk.ok(&format!("check {far}"));
    desk.ok(&format!("scrub {far}"));
    desk.ok(&format!("status {far}"));
    assert_eq!(objects(&desk, "writer"), 0, "who ended said so");
    desk.fails(&format!("serve {far} --nbd unix:s"), 1, &["object store"]);

    // Packs that are lost are damage.
    fs::rename(desk.path("b/data"), desk.path("kept")).unwrap();
    let said = desk.run(&format!("check {far}"));
    assert_eq!(said.status.code(), Some(1));
    assert!(said.err.contains("is lost") && said.err.contains("is damaged"), "{}", said.err);
    let said: Value = serde_json::from_str(&desk.run(&format!("check {far} --json")).out).unwrap();
    assert!(
        !said["lost_objects"].as_array().unwrap().is_empty() && said["well"] == false,
        "{said}"
    );
    fs::rename(desk.path("kept"), desk.path("b/data")).unwrap();
    let said: Value = serde_json::from_str(&desk.ok(&format!("check {far} --json"))).unwrap();
    assert!(said["lost_objects"].as_array().unwrap().is_empty() && said["well"] == true, "{said}");
    let said: Value = serde_json::from_str(&desk.ok(&format!("gc {far} --json"))).unwrap();
    let told = &said["objects"];
    assert!(told["waiting"].as_u64().unwrap() > 0 && told["damaged"] == 0, "{said}");
}

#[test]
fn what_was_seen_of_a_bucket_counts_however_it_is_typed() {
    let desk = Desk::new();
    let far = address(&desk);
    fs::write(desk.path("letter"), "dear all").unwrap();
    desk.ok("create archive bucket:b --key key");
    desk.ok("put bucket:b letter letter --key key");
    // Somebody puts a plain archive there, which another user has made.
    let mut other = desk.command("create archive bucket:other");
    assert!(other.env("XDG_STATE_HOME", desk.path("theirs")).status().unwrap().success());
    fs::rename(desk.path("b"), desk.path("sealed")).unwrap();
    fs::rename(desk.path("other"), desk.path("b")).unwrap();
    let slash = format!("{far}/");
    let all = ["bucket:b", "bucket:b/", "bucket:./b", &far, &slash];
    for typed in all {
        desk.fails(&format!("ls {typed}"), 1, &["went back, or is another one"]);
    }
    for typed in all {
        desk.fails(&format!("ls {typed} --accept-older"), 1, &["encrypted"]);
    }
}

#[test]
fn an_encrypted_archive_in_a_bucket_is_nobodys_to_read() {
    let desk = Desk::new();
    let far = address(&desk);
    fs::write(desk.path("letter"), "a secret word".repeat(10_000)).unwrap();
    desk.ok(&format!("create archive {far} --key key"));
    desk.ok(&format!("put {far} letter letter --key key"));
    desk.ok(&format!("get {far} letter --output back --key key"));
    assert_eq!(fs::read(desk.path("letter")).unwrap(), fs::read(desk.path("back")).unwrap());
    desk.fails(&format!("ls {far}"), 1, &["encrypted"]);
    // Small content is in the log.
    let mut looked = BTreeSet::new();
    for folder in ["data", "keys", "log"] {
        for object in fs::read_dir(desk.path("b").join(folder)).into_iter().flatten() {
            let bytes = fs::read(object.unwrap().path()).unwrap();
            assert!(!bytes.windows(6).any(|part| part == b"secret" || part == b"letter"));
            looked.insert(folder);
        }
    }
    assert!(looked.contains("keys") && looked.contains("log"), "{looked:?}");
}

#[test]
fn a_bucket_that_went_back_is_refused() {
    let desk = Desk::new();
    let far = address(&desk);
    desk.ok(&format!("create archive {far}"));
    fs::write(desk.path("letter"), "one").unwrap();
    desk.ok(&format!("put {far} one letter"));
    let before: Vec<_> =
        fs::read_dir(desk.path("b/log")).unwrap().map(|e| e.unwrap().path()).collect();
    desk.ok(&format!("put {far} two letter"));
    for entry in fs::read_dir(desk.path("b/log")).unwrap() {
        let path = entry.unwrap().path();
        if !before.contains(&path) {
            fs::remove_file(path).unwrap();
        }
    }
    desk.fails(&format!("ls {far}"), 1, &["went back"]);
    let said = desk.ok(&format!("ls {far} --accept-older"));
    assert!(said.contains("one") && !said.contains("two"), "{said}");
}

#[test]
fn a_killed_process_is_followed_by_the_next_one() {
    let desk = Desk::new();
    let far = address(&desk);
    desk.ok(&format!("create archive {far}"));
    fs::write(desk.path("image"), noise(1, 30_000_000)).unwrap();
    // It waits for its input when it is killed.
    let mut child = desk.command(&format!("put {far} held")).stdin(Stdio::piped()).spawn().unwrap();
    while objects(&desk, "writer") == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // While it lives nobody else changes the archive, and all may read it.
    desk.ok(&format!("ls {far}"));
    child.kill().unwrap();
    child.wait().unwrap();
    desk.ok(&format!("put {far} image image"));
    let said = desk.ok(&format!("ls {far}"));
    assert!(said.contains("image") && !said.contains("held"), "{said}");
    desk.ok(&format!("gc {far} --trash 0"));
    desk.ok(&format!("check {far}"));
}

#[test]
fn addresses_and_stores_that_can_not_be_are_told() {
    let desk = Desk::new();
    desk.fails("ls bucket:none", 1, &["none"]);
    desk.fails(
        "ls s3://key:secret@backups/x",
        1,
        &["credentials and ports are in the environment"],
    );
    desk.fails("ls s3://B/x", 1, &["no address like s3://bucket/prefix"]);
    let far = address(&desk);
    desk.fails(&format!("create archive {far} --fast f"), 2, &["in a bucket"]);
}

/// Runs where `ONEFOLD_S3` names a bucket; `cargo xtask test s3` makes one.
#[test]
fn verbs_of_archives_work_in_s3() {
    let Ok(bucket) = std::env::var("ONEFOLD_S3") else {
        println!("skipped: ONEFOLD_S3 names no bucket");
        return;
    };
    let desk = Desk::new();
    let far = format!("s3://{bucket}/cli/a");
    fs::create_dir_all(desk.path("home")).unwrap();
    fs::write(desk.path("home/file"), noise(1, 9_000_000)).unwrap();
    desk.fails(&format!("ls {far}"), 1, &[&far, "there is no archive"]);
    desk.fails("ls s3://no-such-bucket-here/x", 1, &["there is no bucket of that name"]);
    desk.ok(&format!("create archive {far} --key key"));
    desk.ok(&format!("backup {far} home --set home --key key"));
    fs::write(desk.path("home/more"), noise(2, 1_000_000)).unwrap();
    desk.ok(&format!("backup {far} home --set home --key key"));
    desk.ok(&format!("restore {far} home -C back --key key"));
    let back = desk.path("back").join(desk.path("home").strip_prefix("/").unwrap());
    assert_eq!(fs::read(back.join("file")).unwrap(), noise(1, 9_000_000));
    desk.ok(&format!("forget {far} --keep-last 1 --set home --key key"));
    desk.ok(&format!("gc {far} --trash 0 --key key"));
    desk.ok(&format!("check {far} --key key"));
    let offline = desk
        .command(&format!("ls {far} --key key"))
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&offline.stderr);
    assert!(!offline.status.success() && said.contains("can't be reached"), "{said}");
}

#[test]
fn rule_43_what_this_host_keeps_of_a_bucket_is_its_users_alone_and_is_not_asked_when_a_store_is_checked()
 {
    let desk = Desk::new();
    let far = address(&desk);
    fs::create_dir(desk.path("home")).unwrap();
    for n in 0..200 {
        fs::write(desk.path(&format!("home/file {n}")), noise(n, 5_000)).unwrap();
    }
    desk.ok(&format!("create archive {far} --cache-limit 0"));
    desk.ok(&format!("backup {far} home --set home --cache-limit 0"));
    desk.ok(&format!("ls {far} home --cache-limit 0"));
    assert!(!desk.path("cache").exists(), "who keeps nothing makes nothing");
    let listed = desk.ok(&format!("ls {far} home"));
    let cache = desk.path("cache/onefold/objects");
    let mode = fs::metadata(&cache).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);
    let parts = || -> Vec<_> { fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path()).collect() };
    assert!(cache.join("CACHEDIR.TAG").exists() && parts().len() > 1);
    // It is not needed, and what changed in it is not believed.
    for part in parts() {
        let mut bytes = fs::read(&part).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&part, bytes).unwrap();
    }
    assert_eq!(desk.ok(&format!("ls {far} home")), listed);
    // A store that lost something is not well, whatever this host has.
    desk.ok(&format!("ls {far} home"));
    fs::rename(desk.path("b/data"), desk.path("gone")).unwrap();
    fs::create_dir(desk.path("b/data")).unwrap();
    for verb in ["check", "scrub"] {
        assert_eq!(desk.run(&format!("{verb} {far}")).status.code(), Some(1), "{verb}");
    }
}

#[test]
fn an_empty_machine_restores_from_the_bucket_by_the_recovery_key() {
    let desk = Desk::new();
    let far = address(&desk);
    fs::create_dir(desk.path("home")).unwrap();
    fs::write(desk.path("home/letter"), "dear all").unwrap();
    fs::write(desk.path("home/image"), noise(3, 2_000_000)).unwrap();
    desk.ok(&format!("create archive {far} --key key"));
    let made = desk.ok(&format!("key add {far} --new recovery --key key"));
    let words = made.trim_end().lines().last().unwrap();
    desk.ok(&format!("backup {far} home --set home --key key"));
    let home = desk.path("home").strip_prefix("/").unwrap().to_owned();
    // Nothing is left of the machine: neither its key nor what it remembered, nor what it kept.
    for gone in ["key", "state", "cache", "home"] {
        let path = desk.path(gone);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }
    desk.fails(&format!("ls {far}"), 1, &["encrypted"]);
    for verb in ["check", "snapshots", "restore"] {
        let more = if verb == "restore" { " home -C back" } else { "" };
        let line = format!("{verb} {far}{more} --key recovery --passphrase-fd 0");
        let mut child = desk.command(&line).stdin(Stdio::piped()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "{words}").unwrap();
        assert!(child.wait().unwrap().success(), "{line}");
    }
    let back = desk.path("back").join(home);
    assert_eq!(fs::read(back.join("letter")).unwrap(), b"dear all");
    assert_eq!(fs::read(back.join("image")).unwrap(), noise(3, 2_000_000));
}
