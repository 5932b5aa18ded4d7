//! `accept --audit`: who used an archive from another host, and what they did, in a chain of lines.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{fs, path::Path};

use serde_json::Value;
use support::{Desk, noise};

/// A desk whose addresses lead back to it by a forced command, for a host with this name.
fn forced(desk: &Desk, name: &str, options: &str) -> Desk {
    let script = format!(
        "export SSH_ORIGINAL_COMMAND=\"$last\" SSH_CONNECTION='192.0.2.7 50000 192.0.2.1 22'\n\
         exec onefold accept a --audit log --as {name} {options}"
    );
    desk.by_ssh(name, &script)
}

fn lines(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn rule_48_accept_writes_who_came_and_what_they_did() {
    let plain = Desk::new();
    fs::write(plain.path("image"), noise(3, 300_000)).unwrap();
    let far = format!("ssh://vault{}", plain.path("a").display());
    let (maker, reader) =
        (forced(&plain, "host1", "--new"), forced(&plain, "host2", "--right read"));
    maker.ok(&format!("create archive {far}"));
    maker.ok(&format!("put {far} a-secret-name image"));
    maker.ok(&format!("rm {far} a-secret-name"));
    maker.ok(&format!("gc {far} --trash 0"));
    reader.ok(&format!("check {far}"));
    reader.fails(&format!("ls {far}-else"), 1, &["this key is for"]);
    let log = plain.path("log");
    let all = lines(&log);
    let of = |who: &str, event: &str| -> Vec<&Value> {
        all.iter().filter(|line| line["who"] == who && line["event"] == event).collect()
    };
    assert_eq!(of("host1", "accepted").len(), 4);
    assert_eq!(of("host1", "accepted").len(), of("host1", "ended").len());
    assert_eq!(
        (&of("host1", "accepted")[0]["right"], &of("host1", "accepted")[0]["new"]),
        (&"manage".into(), &true.into())
    );
    let made = of("host1", "created");
    assert!(made.iter().any(|line| line["file"].as_str().unwrap().starts_with("segment-")));
    let sum = |field: &str| -> u64 {
        of("host1", "ended").iter().map(|line| line[field].as_u64().unwrap()).sum()
    };
    assert!(sum("written_bytes") >= 300_000 && sum("freed_bytes") >= 300_000, "{all:?}");
    assert_eq!(of("host2", "accepted")[0]["right"], "read");
    let ended = of("host2", "ended")[0];
    assert_eq!((&ended["created"], &ended["written_bytes"]), (&0.into(), &0.into()));
    assert!(of("host2", "sent-away")[0]["why"].as_str().unwrap().contains("this key is for"));
    assert!(all.iter().all(|line| line["address"] == "192.0.2.7:50000"));
    assert!(!fs::read_to_string(&log).unwrap().contains("secret-name"));
    assert!(plain.ok("audit log").contains("each follows the one before"));
}

#[test]
fn rule_48_connections_at_the_same_time_write_one_chain() {
    let plain = Desk::new();
    fs::write(plain.path("image"), noise(4, 100_000)).unwrap();
    let far = format!("ssh://vault{}", plain.path("a").display());
    plain.ok("create archive a");
    let hosts: Vec<Desk> = (0..4).map(|n| forced(&plain, &format!("host{n}"), "")).collect();
    std::thread::scope(|scope| {
        for (n, host) in hosts.iter().enumerate() {
            let far = &far;
            scope.spawn(move || {
                for round in 0..3 {
                    assert!(host.run(&format!("put {far} s{n}-{round} image")).status.success());
                    assert!(host.run(&format!("ls {far}")).status.success());
                }
            });
        }
    });
    let all = lines(&plain.path("log"));
    assert_eq!(all.iter().filter(|line| line["event"] == "accepted").count(), 24);
    assert_eq!(all.iter().filter(|line| line["event"] == "ended").count(), 24);
    assert!(plain.ok("audit log").contains("each follows the one before"));
    // A log that is not there for us lets nobody in.
    fs::remove_file(plain.path("log")).unwrap();
    fs::create_dir(plain.path("log")).unwrap();
    hosts[0].fails(&format!("ls {far}"), 1, &["the audit log of this host"]);
}
