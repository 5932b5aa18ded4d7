//! Domains of an encrypted archive by the command: made, used, erased, and what each verb says of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{fs, process::Command};

use serde_json::Value;
use support::{Desk, noise, qemu_io, try_qemu_io};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// An encrypted archive with two domains beside the first one, and files to store.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.ok("create archive a --key key");
    desk.ok("domain create a one --key key");
    desk.ok("domain create a other --key key");
    fs::write(desk.path("stream"), noise(1, 400_000)).unwrap();
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/file"), noise(2, 300_000)).unwrap();
    fs::write(desk.path("tree/little"), b"a canary in a tree").unwrap();
    desk
}

#[test]
fn rule_25_customers_share_nothing_and_each_verb_works_in_their_domains() {
    let desk = desk();
    for (name, domain) in [("s0", ""), ("s1", "--domain one"), ("s2", "--domain other")] {
        let put = json(&desk.ok(&format!("put a {name} stream {domain} --key key --json")));
        assert_eq!(put["new_bytes"], 400_000, "{name}");
        let again = json(&desk.ok(&format!("put a {name}-again stream {domain} --key key --json")));
        assert_eq!(again["new_bytes"], 0, "{name}");
        let made =
            json(&desk.ok(&format!("backup a tree --set {name}-set {domain} --key key --json")));
        assert!(made["new_bytes"].as_u64().unwrap() >= 300_000, "{made}");
    }
    let listed = json(&desk.ok("domain list a --key key --json"));
    let rows = listed["domains"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["", "one", "other"]);
    for row in rows {
        assert_eq!((&row["streams"], &row["snapshots"]), (&2.into(), &1.into()), "{row}");
        assert!(row["bytes"].as_u64().unwrap() > 700_000 && row["erased"] == false, "{row}");
    }
    // A set and a stream stay where they are, also without a word of it.
    desk.fails("backup a tree --set s1-set --domain other --key key", 1, &["belongs to domain 1"]);
    desk.fails("put a s1 stream --domain other --key key", 1, &["belongs to domain 1"]);
    desk.fails("put a x stream --domain nobody --key key", 1, &["no domain 'nobody'"]);
    let again = json(&desk.ok("backup a tree --set s1-set --read-all --key key --json"));
    assert_eq!(again["new_bytes"], 0);
    for (name, n) in [("s0", 0), ("s1", 1), ("s2", 2)] {
        desk.ok(&format!("get a {name} --output got-{n} --key key"));
        assert!(fs::read(desk.path(&format!("got-{n}"))).unwrap() == noise(1, 400_000));
        desk.ok(&format!("restore a {name}-set -C restored-{n} --key key"));
        let found = fs::read_dir(desk.path(&format!("restored-{n}"))).unwrap().count();
        assert!(found > 0);
        desk.ok(&format!("ls a {name}-set --key key"));
    }
    assert!(desk.ok("find a little --key key").contains("s1-set"));
    desk.ok("diff a s1-set~1 s1-set --key key");
    desk.fails("diff a s1-set s2-set --key key", 1, &["two domains"]);
    assert!(desk.ok("snapshots a --key key").contains("domain 1"));
    let dry = desk.ok("backup a tree --set s2-set --dry-run=read --read-all --key key --json");
    assert_eq!(json(&dry)["new_bytes"], 0);
    desk.ok("check a --key key");
    desk.ok("scrub a --key key");
    desk.ok("gc a --key key");
}

#[test]
fn rule_26_a_customer_is_erased_and_all_others_stay() {
    let desk = desk();
    for (name, domain) in [("s0", ""), ("s1", "--domain one"), ("s2", "--domain other")] {
        desk.ok(&format!("put a {name} stream {domain} --key key"));
        desk.ok(&format!("backup a tree --set {name}-set {domain} --key key"));
    }
    desk.fails(
        "domain erase a one --key key",
        1,
        &["--confirm", "1 snapshot, 1 stream and 0 volumes"],
    );
    let said = desk.fails("domain erase a one --confirm 00000000-1 --key key", 1, &["--confirm"]);
    let digits = said.err.split("--confirm ").nth(1).unwrap().trim().to_owned();
    desk.fails("domain erase a one --key other", 1, &["other"]);
    let said = desk.ok(&format!("domain erase a one --confirm {digits} --key key"));
    assert!(said.contains("is erased") && said.contains("gc frees its space"), "{said}");
    desk.fails("domain erase a one --key key", 1, &["no domain 'one'"]);
    for refused in [
        "get a s1 --output x",
        "restore a s1-set -C x",
        "ls a s1-set",
        "put a y stream --domain one",
        "put a s1 stream",
        "backup a tree --set s1-set",
        "diff a s1-set s0-set",
    ] {
        let said = desk.fails(&format!("{refused} --key key"), 1, &[]);
        assert!(
            said.err.contains("erased") || said.err.contains("domain"),
            "{refused}: {}",
            said.err
        );
    }
    // Lists say so, and nobody is alarmed.
    assert!(desk.ok("snapshots a --key key").contains("domain 1, erased"));
    assert!(desk.ok("ls a --key key").contains("domain 1, erased"));
    let snapshots = json(&desk.ok("snapshots a --json --key key"));
    let erased = |one: &&Value| one["erased"] == true;
    assert_eq!(snapshots.as_array().unwrap().iter().filter(erased).count(), 1);
    let listed = json(&desk.ok("domain list a --key key --json"));
    assert!(listed["domains"][1]["name"].is_null() && listed["domains"][1]["erased"] == true);
    let checked = desk.ok("check a --key key");
    assert!(checked.contains("is well") && checked.contains("of domain 1"), "{checked}");
    assert!(desk.ok("find a little --key key").contains("s0-set"));
    assert!(desk.ok("gc a --dry-run --key key").contains("of domains that were erased"));
    let freed = json(&desk.ok("gc a --json --key key"));
    assert!(freed["erased_containers"].as_u64().unwrap() > 0, "{freed}");
    assert!(freed["freed_bytes"].as_u64().unwrap() > 600_000, "{freed}");
    for name in ["s0", "s2"] {
        desk.ok(&format!("get a {name} --output got-{name} --key key"));
        desk.ok(&format!("restore a {name}-set -C restored-{name} --key key"));
    }
    desk.ok("forget a s1-set~0 --key key");
    desk.ok("rm a s1 --key key");
    desk.ok("gc a --trash 0 --key key");
    desk.ok("put a s1 stream --domain other --key key");
    desk.ok("backup a tree --set s1-set --domain other --key key");
    desk.ok("check a --key key");
    let made = json(&desk.ok("domain create a one --key key --json"));
    assert_eq!(made["number"], 3);
}

fn nbdcopy(from: &str, to: &str) {
    let copied =
        Command::new("timeout").args(["60", "nbdcopy", "--flush", from, to]).status().unwrap();
    assert!(copied.success(), "nbdcopy {from} {to}");
}

#[test]
fn rule_25_volumes_of_an_archive_belong_to_domains_and_go_with_them() {
    let desk = desk();
    // Served or not.
    desk.ok("volume create a v0 --size 1M --key key");
    desk.ok("volume create a v1 --size 1M --domain one --key key");
    desk.fails("volume create a x --size 1M --domain nobody --key key", 1, &["no domain 'nobody'"]);
    let server = desk.serve("a --key key");
    desk.ok("volume create a v2 --size 1M --domain other --key key");
    desk.fails("volume create a x --size 1M --domain nobody --key key", 1, &["no domain 'nobody'"]);
    let image = noise(3, 1 << 20);
    fs::write(desk.path("image"), &image).unwrap();
    for name in ["v0", "v1", "v2"] {
        nbdcopy(desk.path("image").to_str().unwrap(), &desk.uri("a", name));
    }
    desk.ok("volume clone a v1 v1@monday --read-only --key key");
    let row = |n: usize| json(&desk.ok("domain list a --key key --json"))["domains"][n].clone();
    for (n, volumes) in [(0, 1), (1, 2), (2, 1)] {
        assert_eq!(row(n)["volumes"], volumes, "{}", row(n));
        assert!(row(n)["bytes"].as_u64().unwrap() > 1 << 20, "nothing is shared: {}", row(n));
    }
    assert!(desk.ok("domain list a --key key").contains("2 volumes"));
    let listed = desk.ok("volume list a --key key");
    assert!(listed.contains("v1@monday  read-only  (domain 1)"), "{listed}");
    let listed = json(&desk.ok("volume list a --json --key key"));
    let of: Vec<u64> =
        listed.as_array().unwrap().iter().map(|one| one["domain"].as_u64().unwrap()).collect();
    assert_eq!(of, [0, 1, 1, 2]);
    desk.ok("check a --key key");
    let said = desk.fails("domain erase a one --key key", 1, &["--confirm", "and 2 volumes"]);
    let digits = said.err.split("--confirm ").nth(1).unwrap().trim().to_owned();
    desk.ok(&format!("domain erase a one --confirm {digits} --key key"));
    // The server refuses it from now on, and serves the others.
    for name in ["v1", "v1@monday"] {
        assert!(!try_qemu_io(&desk.uri("a", name), &["read 0 4096"]).status.success(), "{name}");
    }
    qemu_io(&desk.uri("a", "v0"), &["write -P 7 0 4096", "flush"]);
    let back = |name: &str| {
        let to = desk.path("back");
        let _ = fs::remove_file(&to);
        nbdcopy(&desk.uri("a", name), to.to_str().unwrap());
        fs::read(to).unwrap()
    };
    assert!(back("v2") == image && back("v0")[4096..] == image[4096..]);
    for refused in ["resize a v1 --size 2M", "clone a v1 x", "create a x --size 1M --domain one"] {
        let said = desk.fails(&format!("volume {refused} --key key"), 1, &[]);
        assert!(said.err.contains("erased") || said.err.contains("domain"), "{}", said.err);
    }
    assert!(desk.ok("volume list a --key key").contains("v1  (domain 1, erased)"));
    let checked = desk.ok("check a --key key");
    assert!(checked.contains("2 volumes of domain 1"), "{checked}");
    assert_eq!(json(&desk.ok("check a --json --key key"))["erased"]["volumes"], 2);
    assert!(server.terminate().0.success());
    desk.ok("scrub a --key key");
    let freed = json(&desk.ok("gc a --json --key key"));
    assert!(freed["erased_containers"].as_u64().unwrap() > 0, "{freed}");
    let server = desk.serve("a --key key");
    assert!(back("v2") == image);
    assert!(!try_qemu_io(&desk.uri("a", "v1"), &["read 0 4096"]).status.success());
    desk.ok("volume delete a v1 v1@monday --key key");
    desk.ok("volume create a v1 --size 1M --domain other --key key");
    assert!(back("v1") == vec![0; 1 << 20]);
    assert!(server.terminate().0.success());
    desk.ok("gc a --key key");
    desk.ok("check a --key key");
    desk.ok("scrub a --key key");
}

#[test]
fn rule_25_what_has_no_domains_says_so_in_a_sentence() {
    let desk = Desk::new();
    desk.ok("create archive plain");
    desk.fails("domain create plain one", 1, &["is not encrypted"]);
    desk.fails("domain list plain", 1, &["is not encrypted"]);
    desk.ok("create block disk --size 64M");
    desk.fails("domain create disk one", 1, &["is not encrypted"]);
    desk.fails("domain list disk", 1, &["is not encrypted"]);
    desk.fails("domain erase disk one", 1, &["is not encrypted"]);
    desk.fails("volume create disk v --size 1M --domain one", 1, &["is not encrypted"]);
    desk.ok("create cluster pool");
    desk.fails("domain create pool one", 1, &["can't have others yet"]);
    desk.fails("domain list pool", 1, &["can't have others yet"]);
    desk.fails("domain erase pool one", 1, &["can't have others yet"]);
    desk.fails("volume create pool v --size 1M --domain one", 1, &["belong to one domain"]);
    desk.fails("volume create plain v --size 1M --domain one", 1, &["is not encrypted"]);
    fs::write(desk.path("stream"), b"x").unwrap();
    desk.fails("put plain s stream --domain one", 1, &["is not encrypted"]);
    desk.fails("put pool s stream --domain one", 1, &["no domains"]);
    desk.ok("create archive a --key key");
    assert!(desk.ok("domain list a --key key").contains("(no name)"));
    desk.fails("domain erase a one --key key", 1, &["no domain 'one'"]);
    let long = "a-name-that-is-longer-than-thirty";
    desk.fails(&format!("domain create a {long} --key key"), 1, &["1 to 30 bytes"]);
    // Nothing was changed by what was refused.
    let version = fs::read(desk.path("a/label")).unwrap();
    assert_eq!(version[136] & 64, 0);
}

/// An encrypted block store with two domains, and the same data in a volume of each and of the first one.
fn block_desk() -> Desk {
    let desk = Desk::new();
    desk.ok("create block disk --size 64M --preallocate none --key key");
    desk.ok("domain create disk one --key key");
    let made = json(&desk.ok("domain create disk other --key key --json"));
    assert_eq!(made["number"], 2);
    fs::write(desk.path("image"), noise(3, 2 << 20)).unwrap();
    desk.ok("import disk v0 image --key key");
    desk.ok("import disk v1 image --domain one --key key");
    desk.ok("import disk v2 image --domain other --key key");
    desk
}

fn stored(desk: &Desk) -> u64 {
    let status = json(&desk.ok("status disk --json --key key"));
    status["space"]["stored_bytes"].as_u64().unwrap()
}

/// The volumes of the store, each with the number of its domain and whether that was erased.
fn volumes(desk: &Desk) -> Vec<(String, u64, bool)> {
    let listed = json(&desk.ok("volume list disk --json --key key"));
    let of = |one: &Value| {
        let name = one["name"].as_str().unwrap().to_owned();
        (name, one["domain"].as_u64().unwrap(), one["erased"].as_bool().unwrap())
    };
    listed.as_array().unwrap().iter().map(of).collect()
}

#[test]
fn rule_25_volumes_of_two_customers_share_nothing() {
    let desk = block_desk();
    assert_eq!(stored(&desk), 6 << 20);
    desk.ok("import disk again image --domain one --key key");
    assert_eq!(stored(&desk), 6 << 20);
    desk.ok("volume create disk empty --size 1M --domain other --key key");
    desk.fails(
        "volume create disk x --size 1M --domain nobody --key key",
        1,
        &["no domain 'nobody'"],
    );
    desk.ok("snapshot create disk v1@monday --key key");
    desk.ok("volume clone disk v1@monday copy --key key");
    let named = |name: &str, domain| (name.to_owned(), domain, false);
    let right = [
        named("again", 1),
        named("copy", 1),
        named("empty", 2),
        named("v0", 0),
        named("v1", 1),
        named("v2", 2),
    ];
    assert_eq!(volumes(&desk), right);
    assert!(desk.ok("volume list disk --key key").contains("(domain 1, 'one')"));
    let status = json(&desk.ok("status disk --json --key key"));
    assert_eq!(status["volumes"][1]["domain_name"], "one");
    let listed = json(&desk.ok("domain list disk --key key --json"));
    let rows = listed["domains"].as_array().unwrap();
    let found: Vec<(&str, u64, u64)> = rows
        .iter()
        .map(|row| {
            let number = |key: &str| row[key].as_u64().unwrap();
            (row["name"].as_str().unwrap(), number("volumes"), number("snapshots"))
        })
        .collect();
    assert_eq!(found, [("", 1, 0), ("one", 3, 1), ("other", 2, 0)]);
    // A snapshot from elsewhere goes where it is said.
    desk.ok("send disk v1@monday --output stream --key key");
    let receive = |arguments: &str| {
        let mut command = desk.command(&format!("receive disk {arguments} --key key"));
        let output = command.stdin(fs::File::open(desk.path("stream")).unwrap()).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (went, said) = receive("received --domain other");
    assert!(went, "{said}");
    assert!(volumes(&desk).contains(&named("received", 2)));
    let (went, said) = receive("x --domain nobody");
    assert!(!went && said.contains("no domain 'nobody'"), "{said}");
    desk.ok("check disk --key key");
    desk.ok("scrub disk --key key");
    for name in ["v0", "v1", "v2", "copy", "received"] {
        desk.ok(&format!("export disk {name} got-{name} --key key"));
        assert!(
            fs::read(desk.path(&format!("got-{name}"))).unwrap() == noise(3, 2 << 20),
            "{name}"
        );
    }
}

/// A guest gets "no space left" when its domain has reached its quota, and only there. What is reserved for a
/// domain is there when all others are told that the store is full.
#[test]
fn rule_14_a_domain_has_its_quota_and_finds_its_reserve() {
    let desk = block_desk();
    let made = desk.ok("domain create disk third --quota 5M --reserve 4M --key key");
    assert!(
        made.contains("number 3; domain 'third' has a quota of 5.00 MiB and a reserve of 4"),
        "{made}"
    );
    desk.ok("volume create disk v3 --size 64M --domain third --key key");
    fs::write(desk.path("data"), noise(5, 8 << 20)).unwrap();
    fs::write(desk.path("more"), noise(6, 64 << 20)).unwrap();
    let write = |file: &str, at: &str, bytes: &str| {
        format!("write -s {} {at} {bytes}", desk.path(file).display())
    };
    let serving = desk.serve("disk --one-tenant --key key");
    let (v1, v2, v3) = (desk.uri("disk", "v1"), desk.uri("disk", "v2"), desk.uri("disk", "v3"));
    desk.ok("volume resize disk v2 --size 128M --key key");
    let full = |uri: &str, command: &str| {
        let said = try_qemu_io(uri, &[command]);
        assert!((said.out.clone() + &said.err).contains("No space left"), "{command}: {said:?}");
    };
    // While it is served. The domain has 2 MiB.
    let set = desk.ok("domain set disk one --quota 3M --key key");
    assert_eq!(set, "domain 'one' has a quota of 3.00 MiB\n");
    desk.ok("volume resize disk v1 --size 64M --key key");
    qemu_io(&v1, &[&write("data", "8M", "1M"), "flush"]);
    full(&v1, &write("more", "10M", "64k"));
    qemu_io(&v1, &["discard 0 512k", "write -z 0 4M", "flush"]);
    qemu_io(&v1, &[&write("more", "4M", "512k"), "flush"]);
    // The other one takes all that is kept for nobody.
    full(&v2, &write("more", "8M", "64M"));
    desk.fails("domain set disk other --reserve 64M --key key", 1, &["all reserves together"]);
    desk.fails("domain set disk other --reserve 20M --key key", 1, &["free and kept for nobody"]);
    qemu_io(&v3, &[&write("data", "0", "4M"), "flush"]);
    let status = &desk.status("disk --key key");
    let third = &status["domains"][1];
    assert_eq!((&third["name"], &third["quota_bytes"]), (&Value::from("third"), &(5 << 20).into()));
    let shown = desk.ok("status disk --key key");
    assert!(shown.contains("'third' stores") && shown.contains("4.00 MiB are reserved"), "{shown}");
    serving.kill();
    let listed = json(&desk.ok("domain list disk --key key --json"));
    let row = &listed["domains"][3];
    assert_eq!(row["reserve_bytes"], 4 << 20, "{listed}");
    desk.ok("check disk --key key");
    // What a crash left is counted.
    desk.ok("volume rename disk v3 third --key key");
    let listed = json(&desk.ok("domain list disk --key key --json"));
    assert_eq!(listed["domains"][3]["stored_bytes"], 4 << 20, "{listed}");
    assert!(desk.ok("domain list disk --key key").contains("4.00 MiB stored, quota 5.00 MiB"));
    desk.fails("domain set disk third --key key", 2, &["nothing to set"]);
    desk.fails("domain set disk third --quota 1M --reserve 2M --key key", 1, &["not larger"]);
    desk.fails("domain create disk more --reserve 1G --key key", 1, &["all reserves together"]);
    assert_eq!(json(&desk.ok("domain list disk --key key --json"))["domains"][4], Value::Null);
    desk.ok("domain set disk third --quota none --reserve none --key key");
    desk.ok("create archive a --key key2");
    desk.fails("domain create a one --quota 1M --key key2", 1, &["its domains have no limits"]);
    desk.ok("check disk --key key");
}

#[test]
fn rule_26_a_customers_volumes_are_erased_and_all_others_stay() {
    let desk = block_desk();
    desk.ok("snapshot create disk v1@monday --key key");
    // Nobody serves the store meanwhile; its list can be seen.
    let serving = desk.serve("disk --key key");
    desk.fails("domain create disk third --key key", 1, &["is served"]);
    desk.fails("domain erase disk one --key key", 1, &["is served"]);
    assert!(desk.ok("domain list disk --key key").contains("other"));
    desk.ok("volume create disk served --size 1M --domain one --key key");
    serving.terminate();
    let said = desk.fails("domain erase disk one --key key", 1, &["--confirm", "2 volumes"]);
    let digits = said.err.split("--confirm ").nth(1).unwrap().trim().to_owned();
    desk.fails("domain erase disk nobody --key key", 1, &["no domain 'nobody'"]);
    desk.fails("domain erase disk one --confirm 00000000-1 --key key", 1, &["--confirm"]);
    assert_eq!(volumes(&desk)[2], ("v1".to_owned(), 1, false));
    let said = desk.ok(&format!("domain erase disk one --confirm {digits} --key key"));
    assert!(said.contains("is erased") && said.contains("deleting its volumes"), "{said}");
    desk.fails("domain erase disk one --key key", 1, &["no domain 'one'"]);
    assert_eq!(volumes(&desk)[2], ("v1".to_owned(), 1, true));
    assert!(desk.ok("volume list disk --key key").contains("(domain 1, erased)"));
    let listed = json(&desk.ok("domain list disk --key key --json"));
    assert!(listed["domains"][1]["name"].is_null() && listed["domains"][1]["erased"] == true);
    for refused in [
        "export disk v1 x",
        "send disk v1@monday --output x",
        "volume resize disk v1 --size 4M",
        "volume clone disk v1 c",
        "snapshot create disk v1@tuesday",
        "snapshot rollback disk v1@monday",
    ] {
        desk.fails(&format!("{refused} --key key"), 1, &["was erased"]);
    }
    desk.ok("check disk --key key");
    assert!(desk.ok("scrub disk --key key").contains("512 blocks of domains that were erased"));
    desk.fails("scrub disk --only v1 --key key", 1, &["was erased"]);
    assert!(desk.ok("status disk --key key").contains("'v1' can't be read"));
    let before = stored(&desk);
    // It serves on: clients of others see nothing of it.
    let serving = desk.serve("disk --key key");
    qemu_io(&desk.uri("disk", "v2"), &["read 0 2M"]);
    let refused = try_qemu_io(&desk.uri("disk", "v1"), &["read 0 4k"]);
    assert!(!refused.status.success() || refused.out.contains("failed"), "{refused:?}");
    desk.ok("snapshot delete disk v1@monday --key key");
    desk.ok("volume delete disk v1 served --key key");
    serving.terminate();
    desk.ok("check disk --key key");
    assert_eq!(stored(&desk), before - (2 << 20));
    for name in ["v0", "v2"] {
        desk.ok(&format!("export disk {name} got-{name} --key key"));
        assert!(
            fs::read(desk.path(&format!("got-{name}"))).unwrap() == noise(3, 2 << 20),
            "{name}"
        );
    }
    let made = json(&desk.ok("domain create disk one --key key --json"));
    assert_eq!(made["number"], 3);
}
