//! Stores that nobody serves: created, looked at, changed, and what is no store.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::Stdio,
};

use support::{Desk, drain, overwrite};

#[test]
fn a_store_is_created_and_tells_what_it_is() {
    let desk = Desk::new();
    let made = desk.ok("create block a --size 64M");
    assert!(made.starts_with("created store a of 64.0 MiB\nit is not encrypted: "), "{made}");
    let metadata = fs::metadata(desk.path("a")).unwrap();
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (64 << 20, 0o600));
    assert!(metadata.blocks() * 512 >= 64 << 20);
    let status = desk.status("a");
    assert_eq!(status["created"]["fingerprint"], "blake3");
    assert_eq!(status["created"]["verify"], "hash");
    assert_eq!(status["clean"], true);
    assert!(status["server"].is_null() && status["stopped"].is_null());
    assert_eq!(status["space"]["mapped_bytes"], 0);
    assert!(desk.ok("status a").contains("not served; closed in order"));
    assert!(desk.ok("check a").ends_with("a is well\n"));
    assert!(desk.ok("scrub a").ends_with("all data of a is well\n"));
}

#[test]
fn a_store_gets_its_space_as_asked() {
    let desk = Desk::new();
    desk.ok("create block none --size 256M --preallocate none");
    desk.ok("create block full --size 64M --preallocate full");
    let taken = |name: &str| fs::metadata(desk.path(name)).unwrap().blocks() * 512;
    assert!(taken("none") < 32 << 20);
    assert!(taken("full") >= 64 << 20);
    assert_eq!(desk.status("none")["created"]["grows"], true);
    // Space that the host has not given yet is free all the same.
    assert!(desk.status("none")["space"]["free_bytes"].as_u64().unwrap() > 200 << 20);
    assert_eq!(desk.status("full")["created"]["grows"], false);
}

#[test]
fn a_store_that_is_given_up_while_it_is_made_is_removed() {
    use rustix::process::{Pid, Signal, kill_process};
    let desk = Desk::new();
    let mut child = desk
        .command("create block a --size 24G --preallocate full")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while child.try_wait().unwrap().is_none()
        && fs::metadata(desk.path("a")).map_or(0, |found| found.len()) == 0
    {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let _ = kill_process(Pid::from_child(&child), Signal::INT);
    let status = child.wait().unwrap();
    // A disk that has no room for it refuses at once.
    assert!(matches!(status.code(), Some(130 | 1)), "{status}");
    assert!(!desk.path("a").exists());
}

#[test]
fn every_fingerprint_can_be_chosen_and_broken_ones_need_bytes() {
    let desk = Desk::new();
    for name in ["sha256", "blake3"] {
        desk.ok(&format!("create block {name} --size 64M --preallocate none --fingerprint {name}"));
    }
    for name in ["md5", "sha1"] {
        let create =
            format!("create block {name} --size 64M --preallocate none --fingerprint {name}");
        desk.fails(&create, 2, &[name, "needs --verify bytes"]);
        assert!(!desk.path(name).exists());
        desk.ok(&format!("{create} --verify bytes"));
        assert_eq!(desk.status(name)["created"]["verify"], "bytes");
    }
}

#[test]
fn what_cannot_be_created_leaves_nothing_behind() {
    let desk = Desk::new();
    desk.fails("create block a", 2, &["a needs a size"]);
    desk.fails(
        "create block a --size 1M",
        1,
        &["a can't be a store of 1.00 MiB", "at least 36 MiB"],
    );
    desk.fails("create block a --size 8P", 1, &["4 PiB"]);
    desk.fails("create block a --size lots", 2, &["invalid value 'lots' for '--size"]);
    desk.fails(
        "create block a --size 64M --leftover tables",
        2,
        &["invalid value 'tables'", "log", "table"],
    );
    desk.fails("create block no/where --size 64M", 1, &["no directory"]);
    desk.fails("create block . --size 64M", 1, &["directory"]);
    desk.fails("create block a --size 8T", 1, &["free"]);
    assert_eq!(fs::read_dir(desk.path(".")).unwrap().count(), 0);
    fs::write(desk.path("full"), b"something").unwrap();
    desk.fails("create block full --size 64M", 1, &["full exists and is not empty"]);
    assert_eq!(fs::read(desk.path("full")).unwrap(), b"something");
    fs::write(desk.path("empty"), b"").unwrap();
    fs::set_permissions(desk.path("empty"), fs::Permissions::from_mode(0o600)).unwrap();
    desk.ok("create block empty --size 64M");
}

#[test]
fn rule_12_limits_of_a_volume_are_kept_with_it() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    desk.ok("volume create a v --size 1M --limit-iops 500 --limit-bytes 10M");
    assert_eq!(
        desk.ok("volume list a"),
        " 1.00 MiB  v  (at most 500 requests and 10.0 MiB a second)\n"
    );
    desk.ok("volume set a v --no-dedup 0-4K");
    desk.ok("volume rename a v w");
    assert_eq!(
        desk.status("a")["volumes"][0]["limits"],
        serde_json::json!({ "iops": 500, "bytes": 10 << 20 })
    );
    let serving = desk.serve("a --limit w=0,1G");
    desk.ok("volume set a w --limit-iops 7");
    assert_eq!(
        desk.status("a")["volumes"][0]["limits"],
        serde_json::json!({ "iops": 7, "bytes": 10 << 20 })
    );
    serving.kill();
    desk.serve("a").terminate();
    assert_eq!(desk.status("a")["volumes"][0]["limits"]["iops"], 7, "also after a crash");
    assert_eq!(
        desk.ok("volume set a w --limit-iops none --limit-bytes none"),
        "nothing limits the clients of volume 'w' any more\n"
    );
    desk.fails("volume set a w", 2, &["nothing to set"]);
    assert!(desk.status("a")["volumes"][0].get("limits").is_none());
    desk.fails("volume set a x --limit-iops 1", 1, &["no volume 'x'"]);
    desk.fails("volume set a w --limit-bytes 0", 2, &["--limit-bytes"]);
    desk.fails("serve a --limit w=fast", 2, &["VOLUME=IOPS,BYTES"]);
    desk.ok("check a");
}

#[test]
fn volumes_come_change_and_go() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    assert_eq!(desk.ok("volume list a"), "no volumes\n");
    assert_eq!(desk.ok("volume create a one --size 1T"), "created volume 'one' of 1.00 TiB\n");
    desk.ok("volume create a two --size 4097");
    desk.fails("volume create a one --size 1G", 1, &["'one' already"]);
    desk.fails("volume create a three", 2, &["needs a size"]);
    desk.fails("volume create a three --size 0", 1, &["at least one block"]);
    desk.fails("volume create a three --size 2E", 1, &["1 EiB"]);
    desk.ok("volume resize a one --size 2T");
    desk.fails("volume resize a one --size 2G", 1, &["2.00 TiB", "beyond 2.00 GiB", "--force"]);
    desk.ok("volume rename a two drei");
    desk.fails("volume rename a drei one", 1, &["'one' already"]);
    assert_eq!(desk.ok("volume list a"), " 8.00 KiB  drei\n 2.00 TiB  one\n");
    let list: serde_json::Value = serde_json::from_str(&desk.ok("volume list a --json")).unwrap();
    let one = serde_json::json!({
        "name": "one", "bytes": 2_u64 << 40, "snapshots": 0, "lost_bytes": 0,
        "domain": 0, "erased": false,
    });
    assert_eq!(list[1], one);
    assert!(
        desk.ok("volume set a drei --no-dedup 0-4K,6K-8K").starts_with("8.00 KiB of volume 'drei'")
    );
    assert_eq!(
        desk.ok("volume list a"),
        " 8.00 KiB  drei  (8.00 KiB not deduplicated)\n 2.00 TiB  one\n"
    );
    let list: serde_json::Value = serde_json::from_str(&desk.ok("volume list a --json")).unwrap();
    assert_eq!(list[0]["no_dedup"], serde_json::json!([{ "start": 0, "end": 8192 }]));
    desk.fails("volume set a drei --no-dedup 4K", 2, &["a start and an end"]);
    desk.fails("volume set a four --no-dedup 0-4K", 1, &["no volume 'four'"]);
    desk.ok("volume set a drei --no-dedup none");
    assert_eq!(desk.ok("volume list a"), " 8.00 KiB  drei\n 2.00 TiB  one\n");
    desk.ok("volume delete a drei");
    desk.fails("volume delete a drei", 1, &["no volume 'drei'"]);
    desk.fails("volume resize a drei --size 1G", 1, &["no volume 'drei'"]);
    assert_eq!(desk.status("a")["volumes"].as_array().unwrap().len(), 1);
    desk.ok("check a");
}

#[test]
fn looking_changes_nothing() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let before = fs::read(desk.path("a")).unwrap();
    for verb in ["status", "volume list", "check", "scrub"] {
        desk.ok(&format!("{verb} a"));
    }
    assert!(before == fs::read(desk.path("a")).unwrap());
}

#[test]
fn what_is_no_store_gets_one_sentence() {
    let desk = Desk::new();
    desk.ok("create block good --size 64M --preallocate none");
    let good = fs::read(desk.path("good")).unwrap();
    fs::write(desk.path("foreign"), vec![b'x'; 1 << 20]).unwrap();
    fs::write(desk.path("short"), b"ONEFOLD").unwrap();
    fs::write(desk.path("empty"), b"").unwrap();
    fs::write(desk.path("cut"), &good[..32 << 20]).unwrap();
    for name in ["damaged", "newer", "flipped"] {
        fs::write(desk.path(name), &good).unwrap();
    }
    for place in [0, 8 * 4096] {
        overwrite(&desk.path("damaged"), place + 100, b"rot");
        // A superblock of a version to come, with the checksum that belongs to it.
        let mut newer = good[place as usize..][..4096].to_vec();
        newer[8..12].copy_from_slice(&9_u32.to_le_bytes());
        newer[16..24].fill(0);
        let checksum = onefold_core::checksum::fast(9, &newer);
        newer[16..24].copy_from_slice(&checksum.to_le_bytes());
        overwrite(&desk.path("newer"), place, &newer);
        // A bit of the version flipped in the first one.
        overwrite(&desk.path("flipped"), 8, &257_u32.to_le_bytes());
    }
    let verbs = [
        "status X",
        "serve X",
        "volume list X",
        "volume create X v --size 1G",
        "check X",
        "scrub X",
    ];
    for (name, says) in [
        ("missing", "there is nothing at missing"),
        (".", "is a directory"),
        ("/dev/null", "neither a regular file nor a block device"),
        ("foreign", "foreign: this is not a Onefold store"),
        ("short", "short: this is not a Onefold store"),
        ("empty", "empty: this is not a Onefold store"),
        ("cut", "cut off"),
        ("damaged", "both superblocks are damaged"),
        ("newer", "format version 9"),
    ] {
        for verb in verbs {
            desk.fails(&verb.replace('X', name), 1, &[says]);
        }
    }
    desk.ok("volume create flipped v --size 16M");
}

#[test]
fn a_store_of_somebody_else_is_denied() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    fs::set_permissions(desk.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    // Nobody may not even enter some build directories, and gets the same answer there.
    let output = desk.command("status a").uid(65_534).gid(65_534).output();
    let Ok(output) = output else { return };
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("no permission to open a for reading"), "{said}");
}

#[test]
fn every_part_of_a_store_can_be_looked_at() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    assert!(desk.ok("inspect a").contains("superblock 1 at block 8: whole"));
    assert!(desk.ok("inspect a superblock 0").starts_with("superblock 0 at block 0: whole"));
    assert!(desk.ok("inspect a zone-list").contains("zone list page 0, block 17"));
    assert!(desk.ok("inspect a zone 1").starts_with("zone 1: blocks 1024..2048"));
    assert!(desk.ok("inspect a block 0").contains("block 0"));
    assert!(desk.ok("inspect a physical 5000").contains("no references"));
    assert!(desk.ok("inspect a volume v").contains("16384 blocks of 4096 bytes"));
    assert!(desk.ok("inspect a address v 1M").contains("block 256"));
    desk.fails("inspect a volume w", 1, &["no volume 'w'"]);
    desk.fails("inspect a block 999999999", 1, &["a: "]);
    desk.fails("inspect a superblock 2", 2, &["0..=1"]);
    desk.fails("inspect a address v far", 2, &["a number of bytes"]);
    desk.fails("inspect missing", 1, &["there is nothing at missing"]);
}

#[test]
fn damage_is_found_named_and_repaired() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    // One of the two superblocks: the other one still opens the store.
    overwrite(&desk.path("a"), 60, b"rot");
    let said = desk.fails("check a", 1, &["a is damaged: 1 problem;", "onefold repair"]);
    assert!(said.out.contains("problem: superblock 0"), "{}", said.out);
    let out = desk.ok("repair a");
    assert!(out.contains("restored: ") && out.ends_with("a is well\n"), "{out}");
    assert!(desk.ok("check a").ends_with("a is well\n"));
    assert_eq!(desk.ok("volume list a"), " 64.0 MiB  v\n");
}

#[test]
fn a_wrong_command_line_is_one_sentence_and_status_two() {
    let desk = Desk::new();
    desk.fails("", 2, &["--help"]);
    desk.fails("frobnicate", 2, &["frobnicate"]);
    desk.fails("status", 2, &["STORE is missing", "`onefold status STORE`"]);
    desk.fails("status a b", 2, &["unexpected argument 'b'"]);
    desk.fails("status a --jsno", 2, &["unexpected argument '--jsno'", "--json"]);
    desk.fails("volume", 2, &["--help"]);
    desk.fails("serve a --memory 1M", 2, &["--memory 1.00 MiB is too little"]);
    desk.fails("serve a --nbd udp:1", 2, &["an address is unix:PATH", "or tcp:ADDRESS:PORT"]);
    desk.fails("serve a --max-connections 0", 2, &["1 to 65536"]);
    desk.fails(
        "serve a --memory 64M --max-connections 1000",
        2,
        &["--max-connections 1000 needs --memory 129 MiB"],
    );
    desk.fails("serve a --max-request 1G", 2, &["--max-request"]);
    desk.fails("serve a --log verbose=all=1", 2, &["no level for the log"]);
}

#[test]
fn help_and_version_are_on_standard_output() {
    let desk = Desk::new();
    assert!(desk.ok("--version").starts_with("onefold 0."));
    for verb in
        ["create", "volume", "volume create", "serve", "status", "check", "scrub", "estimate"]
    {
        let help = desk.ok(&format!("{verb} --help"));
        assert_eq!(desk.ok(&format!("help {verb}")), help);
        assert!(help.contains("Examples:\n  onefold "), "{verb}: {help}");
    }
}

#[test]
fn shells_take_the_completions() {
    let desk = Desk::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = desk.ok(&format!("completions {shell}"));
        assert!(text.contains("onefold"));
        assert!(["repair", "worker", "no-dedup"].iter().all(|word| text.contains(word)), "{shell}");
    }
    fs::write(desk.path("bash"), desk.ok("completions bash")).unwrap();
    let status = std::process::Command::new("bash").arg("-n").arg(desk.path("bash")).status();
    assert!(status.unwrap().success());
}

#[test]
fn options_can_stand_in_a_file() {
    let desk = Desk::new();
    fs::write(
        desk.path("c.toml"),
        "[create.block]\nsize = '64M'\npreallocate = 'none'\nfingerprint = 'sha256'\n",
    )
    .unwrap();
    desk.ok("create block a --config c.toml");
    assert_eq!(desk.status("a")["created"]["fingerprint"], "hmac-sha256");
    desk.ok("create block b --config c.toml --fingerprint blake3");
    assert_eq!(desk.status("b")["created"]["fingerprint"], "blake3");
    fs::write(desk.path("d.toml"), "[create.block]\nsize = '64M'\nspeed = 'high'\n").unwrap();
    desk.fails(
        "create block c --config d.toml",
        2,
        &["configuration d.toml", "unknown key 'speed' in section [create.block]"],
    );
    desk.fails("create block c --config e.toml", 2, &["e.toml", "No such file"]);
    assert!(!desk.path("c").exists());
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    for verb in ["status a", "status a --json", "check a", "--help", "estimate ."] {
        let mut child =
            desk.command(verb).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let said = drain(child.stderr.take().unwrap());
        let status = child.wait().unwrap();
        assert!(!said.contains("panicked") && status.success(), "{verb}: {status} {said}");
    }
    // A full disk is not a reader that went away.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = desk.command("status a").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("output can't be written"));
}

#[test]
fn manual_pages_are_made_for_every_verb() {
    let desk = Desk::new();
    desk.ok("man pages");
    for page in ["onefold.1", "onefold-serve.1", "onefold-volume-create.1"] {
        let text = fs::read_to_string(desk.path("pages").join(page)).unwrap();
        assert!(text.contains(".SH"), "{page}");
    }
}
