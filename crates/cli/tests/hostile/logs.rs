//! Audit logs: nobody who may read one, and no disk that hangs, keeps an archive locked, and no client fills a disk.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    connections::{Client, DENIED, desk, named},
    holes::Locked,
    support::{Desk, try_qemu_io},
};

fn lines(log: &std::path::Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Who may read a log may keep its lock for ever, and a process that waits for it there keeps all that it has.
#[test]
fn rule_48_a_log_that_others_may_read_is_refused_with_the_command_that_mends_it() {
    let desk = desk();
    desk.store_with_volume("disk");
    let far = format!("ssh://vault{}", desk.path("a").display());
    let accept = format!(
        "export SSH_ORIGINAL_COMMAND=\"$last\"\nexec onefold accept {} --audit {}",
        desk.path("a").display(),
        desk.path("log").display()
    );
    let host = desk.by_ssh("host", &accept);
    fs::write(desk.path("log"), "").unwrap();
    for mode in [0o640, 0o604, 0o644] {
        fs::set_permissions(desk.path("log"), fs::Permissions::from_mode(mode)).unwrap();
        let mends = format!("chmod 600 {}", desk.path("log").display());
        desk.fails("serve disk --audit log", 1, &[&mends]);
        host.fails(&format!("ls {far}"), 1, &["the audit log of this host", &mends]);
    }
    fs::set_permissions(desk.path("log"), fs::Permissions::from_mode(0o600)).unwrap();
    host.ok(&format!("ls {far}"));
    assert!(desk.serve("disk --audit other").terminate().0.success());
    for made in ["log", "other", ".log.lock", ".other.lock"] {
        let mode = fs::metadata(desk.path(made)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{made}");
    }
}

/// The disk of the log hangs, here by root's own doing.
#[test]
#[ignore = "needs root"]
fn rule_48_a_line_that_hangs_keeps_no_lock_of_an_archive_behind_the_end_of_a_connection() {
    let desk = desk();
    let mut client = Client::new(&desk, "accept a --idle 8s --audit log --as host1");
    client.ask(6, &named(1, b"\x01", "lock-writer"));
    assert_eq!(client.answer().unwrap().0, None);
    desk.fails("put a other image --no-wait", 1, &["another process"]);
    let python = Command::new("/usr/bin/python3");
    let Some(locked) = Locked::by(python, desk.path("silent"), &[desk.path("log")]) else { return };
    // The client is silent, and its end is to be written.
    let begun = Instant::now();
    let mut is_free = false;
    while !is_free && begun.elapsed() < Duration::from_secs(40) {
        std::thread::sleep(Duration::from_millis(500));
        is_free = desk.run("put a other image --no-wait").status.success();
    }
    // The next connection is let in, whether or not its lines are written.
    let next = Client::new(&desk, "accept a --right read --audit log --as host2");
    drop(locked);
    next.ends();
    client.child.wait().unwrap();
    assert!(is_free, "the archive is locked still");
    desk.ok("check a");
}

/// People look at logs on terminals, some of which obey U+009B as they obey an escape.
#[test]
fn rule_48_names_that_clients_choose_bring_no_terminal_a_command() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a --nbd unix:s --audit log");
    let named = "%E2%80%AE%C2%9B2J";
    let uri = format!("nbd+unix:///{named}?socket={}", desk.path("s").display());
    assert!(!try_qemu_io(&uri, &["read 0 512"]).status.success());
    assert!(serving.terminate().0.success());
    let text = fs::read_to_string(desk.path("log")).unwrap();
    assert!(text.contains("\\u202e\\u009b2J") && !text.contains('\u{9b}'), "{text}");
    assert!(desk.ok("audit log").contains("each follows the one before"));
}

/// A key that may only read comes again and again, and asks for what it may not do.
#[test]
fn rule_48_a_client_fills_no_disk_by_many_connections() {
    let desk = desk();
    let begun = Instant::now();
    for _ in 0..100 {
        let mut client = Client::new(&desk, "accept a --right read --audit log --as host1");
        (0..70).for_each(|_| client.refused(4, b"label", DENIED));
        client.ends();
    }
    let most = 64 + begun.elapsed().as_secs() as usize + 1;
    Client::new(&desk, "accept a --right read --audit log --as host2").ends();
    let all = lines(&desk.path("log"));
    let of = |who: &str, events: &[&str]| {
        let is_one =
            |line: &&Value| line["who"] == who && events.iter().any(|e| line["event"] == **e);
        all.iter().filter(is_one).count()
    };
    let (refused, whole) = (of("host1", &["refused"]), of("host1", &["accepted", "ended"]));
    assert!((64..=most).contains(&refused), "{refused} of {most}");
    assert!((64..=most).contains(&whole), "{whole} of {most}");
    let unsaid: u64 = all.iter().filter_map(|line| line["unsaid"].as_u64()).sum();
    assert!(unsaid > 0 && unsaid + (refused + whole) as u64 <= 72 * 100, "{unsaid}");
    assert_eq!(of("host2", &["accepted", "ended"]), 2);
    assert!(desk.ok("audit log").contains("each follows the one before"));
}
