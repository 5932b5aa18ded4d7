//! `serve --http`: who learns how a store is doing (rules 10, 11 and 14).

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::Command,
};

use super::{
    actors::{STRANGER, Street},
    support::{Desk, Serving},
};

/// The status line and the body that a client gets.
fn get(mut stream: impl Read + Write, path: &str, host: &str) -> (String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    // A server that lets nobody in may have closed the connection already.
    let _ = stream.write_all(request.as_bytes());
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

/// The TCP address at which a server shows figures.
fn address(serving: &Serving) -> String {
    let log = serving.log();
    log.split_once("figures at http://").unwrap().1.split('/').next().unwrap().to_owned()
}

/// The page of figures, as another user asks for it.
fn asked_by(street: &Street, user: u32, socket: &Path) -> std::process::Output {
    let mut command = street.program(user, Path::new("curl"));
    command.args(["--silent", "--show-error", "--max-time", "20", "--unix-socket"]);
    command.arg(socket).arg("http://localhost/metrics").output().unwrap()
}

#[test]
fn rule_10_the_socket_of_figures_is_closed_to_others_whatever_the_umask() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let mut command = Command::new("sh");
    let serve = "umask 000; exec \"$0\" serve a --http unix:http.sock";
    command.args(["-c", serve, env!("CARGO_BIN_EXE_onefold")]).current_dir(desk.path("."));
    let serving = Serving::start(command.env("RUNTIME_DIRECTORY", desk.runtime()));
    let socket = desk.path("http.sock");
    assert_eq!(fs::symlink_metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let stream = UnixStream::connect(&socket).unwrap();
    assert_eq!(get(stream, "/", "localhost").0, "HTTP/1.1 200 OK");
    assert!(serving.terminate().0.success());
    assert!(!socket.exists());
}

#[test]
fn rule_10_no_socket_of_figures_is_open_to_every_user_or_takes_a_place() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    desk.fails("serve a --http unix:http.sock,mode=0666", 1, &["every user", "mode like 0660"]);
    fs::write(desk.path("file"), "mine").unwrap();
    desk.fails("serve a --http unix:file", 1, &["file", "not a socket"]);
    assert_eq!(fs::read(desk.path("file")).unwrap(), b"mine");
    std::os::unix::fs::symlink(desk.path("file"), desk.path("link")).unwrap();
    desk.fails("serve a --http unix:link", 1, &["link", "not a socket"]);
    let _other = UnixListener::bind(desk.path("taken")).unwrap();
    desk.fails("serve a --http unix:taken", 1, &["another server answers"]);
    // The store was closed in order each time.
    assert_eq!(desk.status("a")["clean"], true);
}

#[test]
#[ignore = "needs a second user"]
fn rule_10_a_stranger_gets_no_figures_even_from_a_socket_that_was_opened_later() {
    let (desk, street) = (Desk::new(), Street::new());
    desk.store_with_volume("a");
    let socket = street.path("http.sock");
    let serving = desk.serve(&format!("a --http unix:{}", socket.display()));
    assert!(asked_by(&street, 0, &socket).status.success());
    assert!(!asked_by(&street, STRANGER, &socket).status.success());
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let asked = asked_by(&street, STRANGER, &socket);
    assert!(!asked.status.success() && asked.stdout.is_empty(), "{asked:?}");
    assert!(serving.terminate().0.success());
    // Those whom the operator names get them.
    let serving =
        desk.serve(&format!("a --http unix:{},mode=0660,group={STRANGER}", socket.display()));
    assert!(asked_by(&street, STRANGER, &socket).status.success());
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_11_no_tcp_address_shows_figures_without_being_insisted_on() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    for address in ["tcp:127.0.0.1:0", "tcp:[::1]:0", "tcp:0.0.0.0:0"] {
        let arguments = format!("serve a --http {address}");
        desk.fails(&arguments, 2, &["--insecure", "--tls", "unix:"]);
    }
}

#[test]
fn rule_14_over_tcp_nobody_learns_what_the_store_holds() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a --http tcp:127.0.0.1:0 --insecure");
    let at = address(&serving);
    let ask = |path, host: &str| get(TcpStream::connect(&at).unwrap(), path, host);
    let (status, figures) = ask("/metrics", &at);
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(figures.contains("onefold_client_written_bytes_total 0\n"), "{figures}");
    for secret in ["store_", "device", "dedup", "checkpoint", "uncommitted", "volume="] {
        let told = figures.lines().any(|line| !line.starts_with('#') && line.contains(secret));
        assert!(!told, "{secret}: {figures}");
    }
    for path in ["/", "/status.json"] {
        let (status, body) = ask(path, &at);
        assert_eq!(status, "HTTP/1.1 403 Forbidden");
        assert!(body.contains("--one-tenant") && body.lines().count() == 1, "{body}");
    }
    assert!(serving.terminate().0.success());
    let serving = desk.serve("a --http tcp:127.0.0.1:0 --insecure --one-tenant");
    let at = address(&serving);
    let ask = |host: &str| get(TcpStream::connect(&at).unwrap(), "/status.json", host).0;
    assert_eq!(ask(&at), "HTTP/1.1 200 OK");
    // A page of another site, whose name leads here, runs in the operator's browser.
    assert_eq!(ask("evil.example"), "HTTP/1.1 403 Forbidden");
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_14_pages_of_other_sites_read_no_figures_by_names_that_only_browsers_take() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a --http tcp:127.0.0.1:0 --insecure --http-name nas.lan");
    let at = address(&serving);
    for (host, status) in [
        ("a!b.evil.example", "HTTP/1.1 403 Forbidden"),
        ("[evil.example]:80", "HTTP/1.1 403 Forbidden"),
        ("nas.lan:9400", "HTTP/1.1 200 OK"),
        ("nas", "HTTP/1.1 200 OK"),
    ] {
        let answer = get(TcpStream::connect(&at).unwrap(), "/metrics", host).0;
        assert_eq!(answer, status, "{host}");
    }
    assert!(serving.terminate().0.success());
}

/// The address is that of a machine without a network.
#[test]
#[ignore = "needs root"]
fn rule_14_pages_of_other_sites_read_no_figures_from_other_machines() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let script = "
        set -e
        ip link set lo up
        ip address add 10.9.8.7/32 dev lo
        \"$1\" serve a --http tcp:10.9.8.7:9400 --insecure --http-name nas.lan 2> log &
        trap 'kill $!' EXIT
        for host in 10.9.8.7:9400 nas nas.lan evil.example nas.lan.evil.example; do
            curl --silent --retry 20 --retry-connrefused --retry-delay 1 --output body \
                --write-out '%{http_code} ' --header \"Host: $host\" http://10.9.8.7:9400/metrics
        done";
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_onefold")]);
    let output = command.current_dir(desk.path(".")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "200 200 200 403 403 ", "{output:?}");
}
