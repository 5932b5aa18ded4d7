//! Certificates: how they are made, what a server refuses, and what SIGHUP changes.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{
    actors::{STRANGER, Street},
    support::{Desk, Serving, qemu_io, try_qemu_io},
};

/// An authority `ca` with a server and a client, and a file of rights.
fn desk_with_certificates() -> Desk {
    let desk = Desk::new();
    desk.store_with_volume("a");
    desk.ok("tls init ca");
    desk.ok("tls issue ca 127.0.0.1 --server --also localhost");
    assert!(desk.ok("tls issue ca own").contains("'client:own'"));
    fs::write(desk.path("access"), "client:own write *\n").unwrap();
    desk
}

const SERVE: &str = "a --nbd tcp:127.0.0.1:0 --tls ca/127.0.0.1 --access access";

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn give(path: &Path, mode: u32) {
    let file = fs::File::open(path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
}

/// The address of a server's URI.
fn address(serving: &Serving) -> String {
    let log = serving.log();
    let (_, behind) = log.split_once("nbds://").unwrap();
    behind.split('/').next().unwrap().to_owned()
}

#[test]
fn rule_38_an_authoritys_key_that_others_can_read_issues_nothing() {
    let desk = desk_with_certificates();
    give(&desk.path("ca/ca-key.pem"), 0o644);
    for verb in ["tls issue ca vm", "tls revoke ca own"] {
        desk.fails(verb, 1, &["ca-key.pem", "can be read by others", "chmod 600"]);
    }
    give(&desk.path("ca/ca-key.pem"), 0o600);
    let list = desk.path("ca/ca-crl.pem");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &list,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    desk.fails("tls revoke ca own", 1, &["ca-crl.pem", "no regular file"]);
    fs::remove_file(list).unwrap();
    desk.ok("tls issue ca vm");
    desk.ok("tls revoke ca own");
}

/// Each wrote the list as it had read it, and took away what another had added.
#[test]
fn rule_38_certificates_that_are_revoked_at_one_time_are_all_revoked() {
    let desk = Desk::new();
    desk.ok("tls init ca");
    let names: Vec<String> = (0..8).map(|n| format!("vm{n}")).collect();
    names.iter().for_each(|name| drop(desk.ok(&format!("tls issue ca {name}"))));
    let revoking = names.iter().map(|name| {
        let mut revoke = desk.command(&format!("tls revoke ca {name}"));
        revoke.stdout(Stdio::null()).spawn().unwrap()
    });
    let revoking: Vec<_> = revoking.collect();
    for mut one in revoking {
        assert!(one.wait().unwrap().success());
    }
    // Whoever is on the list already adds nothing to it. Signatures differ by a few bytes.
    let length = || fs::read(desk.path("ca/ca-crl.pem")).unwrap().len();
    let before = length();
    names.iter().for_each(|name| drop(desk.ok(&format!("tls revoke ca {name}"))));
    assert!(length() < before + 20, "{before} bytes, and {} with all", length());
}

#[test]
fn rule_38_what_tls_issue_makes_is_private_and_replaces_nothing() {
    let desk = desk_with_certificates();
    for directory in ["ca", "ca/own", "ca/127.0.0.1"] {
        assert_eq!(mode(&desk.path(directory)), 0o700, "{directory}");
        for entry in fs::read_dir(desk.path(directory)).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.is_dir() || mode(&path) == 0o600, "{}", path.display());
        }
    }
    let names = |directory: &str| {
        let entries = fs::read_dir(desk.path(directory)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names("ca/own"), ["ca-cert.pem", "client-cert.pem", "client-key.pem"]);
    assert_eq!(names("ca/127.0.0.1"), ["ca-cert.pem", "server-cert.pem", "server-key.pem"]);
    let key = fs::read(desk.path("ca/ca-key.pem")).unwrap();
    desk.fails("tls init ca", 1, &["ca is there already"]);
    desk.fails("tls issue ca own", 1, &["ca/own is there already"]);
    assert_eq!(fs::read(desk.path("ca/ca-key.pem")).unwrap(), key);
    for name in ["a/b", "..", "-x", "ä", "x y"] {
        let said = desk.command("tls issue ca").arg("--").arg(name).output().unwrap();
        let error = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.code() == Some(1) && error.contains("is no name for"), "{error}");
    }
    desk.fails("tls issue ca a/b --server", 1, &["is no name for a server"]);
    desk.fails("tls issue a own", 1, &["can't be read"]);
    fs::create_dir(desk.path("empty")).unwrap();
    desk.fails("tls issue empty own", 1, &["empty is no authority", "tls init"]);
    // The key of another authority.
    desk.ok("tls init other");
    fs::copy(desk.path("other/ca-cert.pem"), desk.path("ca/ca-cert.pem")).unwrap();
    desk.fails("tls issue ca next", 1, &["not a pair"]);
    assert!(!desk.path("ca/next").exists());
}

#[test]
#[ignore = "needs root"]
fn rule_02_an_authority_that_can_not_be_made_takes_no_other_ones_files_along() {
    let street = Street::new();
    let home = street.home("home", STRANGER);
    let ok = |said: std::process::Output| assert!(said.status.success(), "{said:?}");
    ok(street.onefold(0, "tls init mine").output().unwrap());
    let key = fs::read(street.path("mine/ca-key.pem")).unwrap();
    let (new, mine) = (home.join("new"), street.path("mine"));
    for n in 0..20 {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Whoever owns the directory above renames what is made in it.
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    if fs::rename(&new, home.join(format!("aside{n}"))).is_ok() {
                        let _ = std::os::unix::fs::symlink(&mine, &new);
                        return;
                    }
                }
            });
            let _ = street.onefold(0, "tls init home/new").output().unwrap();
            done.store(true, Relaxed);
        });
        assert_eq!(fs::read(mine.join("ca-key.pem")).unwrap(), key);
        assert_eq!(fs::read_dir(&mine).unwrap().count(), 2);
        let _ = fs::remove_file(&new);
        let _ = fs::remove_dir_all(&new);
    }
}

#[test]
fn rule_11_a_server_takes_one_of_tls_and_insecure() {
    let desk = desk_with_certificates();
    desk.fails(&format!("serve {SERVE} --insecure"), 2, &["--tls", "--insecure"]);
    desk.fails("serve a --nbd tcp:127.0.0.1:0 --tls ca/127.0.0.1", 2, &["--tls needs --access"]);
    desk.fails("serve a --tls ca/127.0.0.1 --access access", 2, &["there is none"]);
    desk.fails(
        &format!("serve {} ", SERVE.replace("ca/127.0.0.1", "ca/own")),
        1,
        &["server-cert.pem"],
    );
    assert!(desk.serve(SERVE).terminate().0.success());
}

#[test]
fn rule_38_a_key_that_others_can_read_is_refused() {
    let desk = desk_with_certificates();
    for wrong in [0o640, 0o604] {
        give(&desk.path("ca/127.0.0.1/server-key.pem"), wrong);
        desk.fails(&format!("serve {SERVE}"), 1, &["server-key.pem", "chmod 600"]);
    }
    give(&desk.path("ca/127.0.0.1/server-key.pem"), 0o600);
    let mut serving = desk.serve(SERVE);
    // What can't be read leaves all as it was.
    give(&desk.path("ca/127.0.0.1/server-key.pem"), 0o644);
    serving.signal(Signal::HUP);
    serving.wait_for("the rights stay as they were");
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_38_files_that_others_can_change_let_nobody_in() {
    let desk = desk_with_certificates();
    desk.ok("tls revoke ca own");
    fs::copy(desk.path("ca/ca-crl.pem"), desk.path("ca/127.0.0.1/ca-crl.pem")).unwrap();
    for name in ["ca-cert.pem", "server-cert.pem", "ca-crl.pem"] {
        let path = desk.path(&format!("ca/127.0.0.1/{name}"));
        give(&path, 0o664);
        desk.fails(&format!("serve {SERVE}"), 1, &[name, "can be changed by others"]);
        give(&path, 0o644);
    }
    let mut serving = desk.serve(SERVE);
    // Without the list, a certificate that was taken back would be good again.
    let list = desk.path("ca/127.0.0.1/ca-crl.pem");
    fs::rename(&list, desk.path("list")).unwrap();
    serving.signal(Signal::HUP);
    serving.wait_for("ca-crl.pem is gone");
    fs::rename(desk.path("list"), &list).unwrap();
    serving.signal(Signal::HUP);
    serving.wait_for("read the rights again");
    assert!(serving.terminate().0.success());
}

/// Settings say who may do what, and which programs are started.
#[test]
fn rule_38_settings_that_others_can_change_are_refused() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    fs::write(desk.path("access"), "user:root write v\n").unwrap();
    fs::write(desk.path("config"), "[status]\njson = true\n").unwrap();
    desk.ok("create archive b");
    fs::write(desk.path("policy"), "[[keep]]\ndaily = 7\n").unwrap();
    let uses = [
        ("access", "serve a --access access --nbd unix:s", 1),
        ("config", "status a --config config", 2),
        ("policy", "serve b --maintenance policy --nbd unix:s", 1),
        ("policy", "forget b --policy policy --dry-run", 1),
    ];
    for (name, command, status) in uses {
        for mode in [0o666, 0o664, 0o646] {
            give(&desk.path(name), mode);
            desk.fails(command, status, &[name, "can be changed by others"]);
        }
        give(&desk.path(name), 0o644);
    }
    desk.ok("status a --config config");
    desk.ok("forget b --policy policy --dry-run");
    assert!(desk.serve("a --access access --nbd unix:s").terminate().0.success());
}

#[test]
fn rule_37_a_server_with_tls_tells_a_plain_client_nothing() {
    let desk = desk_with_certificates();
    let serving = desk.serve(&format!("{SERVE} --http tcp:127.0.0.1:0"));
    let said = try_qemu_io(&format!("nbd://{}/v", address(&serving)), &["read 0 4k"]);
    assert!(said.err.contains("TLS"), "{said:?}");
    let log = serving.log();
    let pages = log.split_once("https://").unwrap().1.split('/').next().unwrap().to_owned();
    let mut stream = TcpStream::connect(pages).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("onefold"), "{answer:?}");
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_38_sighup_reads_the_rights_again_and_ends_what_they_no_longer_give() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    fs::write(desk.path("access"), "user:root write v\n").unwrap();
    let mut serving = desk.serve("a --access access --nbd unix:s");
    let uri = format!("nbd+unix:///v?socket={}", desk.path("s").display());
    qemu_io(&uri, &["write -P 1 0 4k", "flush"]);
    // A client that stays, as a virtual machine does.
    let mut client = std::process::Command::new("qemu-io")
        .args(["-f", "raw", "-t", "none", &uri])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let connections =
        |n: u64| desk.status("a")["server"]["nbd"]["connections"].as_u64().unwrap() == n;
    let wait = |n| {
        let begun = Instant::now();
        while !connections(n) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{}", desk.status("a"));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(1);
    serving.signal(Signal::HUP);
    serving.wait_for("read the rights again");
    assert!(connections(1), "nothing has changed");
    fs::write(desk.path("access"), "user:root read v\n").unwrap();
    serving.signal(Signal::HUP);
    wait(0);
    let said = try_qemu_io(&uri, &["write -P 2 0 4k"]);
    assert!(said.err.contains("Permission denied"), "{said:?}");
    let _ = (client.kill(), client.wait());
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_38_pages_are_judged_again_when_they_are_asked_for() {
    let desk = desk_with_certificates();
    fs::write(desk.path("access"), "client:own write *\nclient:own pages\n").unwrap();
    let mut serving = desk.serve(&format!("{SERVE} --http tcp:127.0.0.1:0"));
    let log = serving.log();
    let at = log.split_once("https://").unwrap().1.split('/').next().unwrap().to_owned();
    // Hands are shaken, and nothing is asked for yet.
    let mut client = std::process::Command::new("openssl")
        .args(["s_client", "-connect", &at, "-CAfile", "ca/ca-cert.pem"])
        .args(["-cert", "ca/own/client-cert.pem", "-key", "ca/own/client-key.pem"])
        .current_dir(desk.path(""))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("Verify return code: 0") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "no handshake");
    }
    fs::write(desk.path("access"), "client:own write *\n").unwrap();
    serving.signal(Signal::HUP);
    serving.wait_for("read the rights again");
    let mut stdin = client.stdin.take().unwrap();
    stdin.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = said.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("may not see") && !answer.contains("onefold_"), "{answer}");
    let _ = (client.kill(), client.wait());
    assert!(serving.terminate().0.success());
}
