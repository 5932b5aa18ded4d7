//! Sockets: who reaches a server, and whom a verb speaks to.

use std::{
    fs,
    io::Read,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{MetadataExt, PermissionsExt, chown},
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    actors::{STRANGER, Street},
    support::{Desk, Serving, noise, qemu_io, try_qemu_io},
};

/// The sockets for commands in a directory.
fn control_sockets(directory: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(directory).into_iter().flatten();
    names
        .map(|name| name.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "ctl"))
        .collect()
}

/// The name of the control socket of a store that is a file, without its ending.
fn control_name(desk: &Desk, store: &str) -> String {
    let id = desk.status(store)["id"].as_str().unwrap().replace('-', "");
    let file = fs::metadata(desk.path(store)).unwrap();
    format!("{id}{:016x}{:016x}", file.dev(), file.ino())
}

#[test]
fn rule_10_a_control_socket_is_closed_to_others_and_goes_with_its_server() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let name = control_name(&desk, "a");
    let serving = desk.serve("a --control doors");
    let doors = desk.path("doors");
    assert_eq!(fs::metadata(&doors).unwrap().permissions().mode() & 0o777, 0o700);
    let sockets = control_sockets(&doors);
    assert_eq!(sockets, [doors.join(format!("{name}.ctl"))]);
    assert_eq!(fs::symlink_metadata(&sockets[0]).unwrap().permissions().mode() & 0o777, 0o600);
    desk.ok("volume create a w --size 1M --control doors");
    // A verb that does not know the place says where it looked, and what to do.
    desk.fails(
        "volume create a x --size 1M",
        1,
        &["a is in use by another process", "no control socket", "--control DIR"],
    );
    assert!(serving.terminate().0.success());
    assert_eq!(control_sockets(&doors), [] as [PathBuf; 0]);
    // The socket of a killed server is replaced by the next one.
    desk.serve("a --control doors").kill();
    assert_eq!(control_sockets(&doors).len(), 1);
    let serving = desk.serve("a --control doors");
    assert_eq!(desk.ok("volume list a --control doors").lines().count(), 2);
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_10_a_put_that_does_not_see_the_server_of_its_archive_says_so() {
    let desk = Desk::new();
    fs::write(desk.path("content"), noise(1, 100_000)).unwrap();
    desk.ok("create archive a");
    let serving = desk.serve("a --control doors");
    let mut put = Serving::start_saying(&mut desk.command("put a one content"), "--control DIR");
    put.wait_for(&format!("a is served by process {}", serving.pid()));
    put.wait_for("which has no control socket");
    assert!(serving.terminate().0.success());
    assert!(put.end().0.success());
    assert!(desk.ok("ls a").contains("one"));
}

#[test]
fn rule_10_who_only_looks_for_a_server_makes_no_place_for_it() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let mut command = Command::new("strace");
    command.args([
        "-f",
        "-e",
        "trace=mkdir,mkdirat",
        env!("CARGO_BIN_EXE_onefold"),
        "volume",
        "list",
        "a",
    ]);
    let said =
        command.current_dir(desk.path(".")).env_remove("RUNTIME_DIRECTORY").output().unwrap();
    let calls = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success() && !calls.contains("mkdir"), "{calls}");
}

#[test]
fn rule_10_a_long_directory_holds_a_control_socket() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let doors = format!("{}/{}", "long".repeat(30), "longer".repeat(20));
    fs::create_dir(desk.path(&"long".repeat(30))).unwrap();
    let serving = desk.serve(&format!("a --control {doors}"));
    desk.ok(&format!("volume create a w --size 1M --control {doors}"));
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_10_a_directory_that_others_may_enter_holds_no_control_socket() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let open = desk.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    desk.fails("serve a --control open", 1, &["open", "chmod 700"]);
    // A place that nobody asked for by name costs the commands only.
    let mut command = desk.command("serve a");
    let serving = Serving::start(command.env("RUNTIME_DIRECTORY", &open));
    assert!(serving.log().contains("takes no commands while it serves"), "{}", serving.log());
    assert_eq!(control_sockets(&open), [] as [PathBuf; 0]);
    desk.fails(
        "volume create a w --size 1M",
        1,
        &["a is in use by another process", "no control socket"],
    );
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_10_a_server_starts_though_somebody_has_the_name_that_older_ones_took() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let name = format!("onefold-control-{}", control_name(&desk, "a"));
    let _squatter =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let serving = desk.serve("a");
    desk.ok("volume create a w --size 1M");
    assert!(serving.terminate().0.success());
}

#[test]
#[ignore = "needs root"]
fn rule_10_root_of_another_mount_namespace_reaches_no_server() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a");
    let mut command = Command::new("unshare");
    let script = format!(
        "mount -t tmpfs none {} && exec {} volume delete a v",
        desk.runtime().display(),
        env!("CARGO_BIN_EXE_onefold")
    );
    command
        .args(["-m", "sh", "-c", &script])
        .current_dir(desk.path("."))
        .env("RUNTIME_DIRECTORY", desk.runtime());
    let said = command.output().unwrap();
    assert!(
        !said.status.success()
            && String::from_utf8_lossy(&said.stderr).contains("in use by another process"),
        "{said:?}"
    );
    assert_eq!(desk.ok("volume list a"), " 64.0 MiB  v\n");
    assert!(serving.terminate().0.success());
}

#[test]
#[ignore = "needs root"]
fn rule_10_a_squatter_is_neither_served_nor_spoken_to() {
    let (desk, street) = (Desk::new(), Street::new());
    desk.store_with_volume("a");
    let home = street.home("home", STRANGER);
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    // No server puts its socket into the directory of somebody else.
    desk.fails(&format!("serve a --control {}", home.display()), 1, &["belongs to user 61234"]);
    // A verb speaks to nobody who does not own the store: neither in the stranger's directory, nor
    // to his socket in one of ours.
    let socket = home.join(format!("{}.ctl", control_name(&desk, "a")));
    let mut python = street.program(STRANGER, Path::new("python3"));
    let script = "import socket,sys,time; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); \
                  s.listen(); print(flush=True); s.accept(); print('spoken to')";
    let mut squatter =
        python.args(["-c", script]).arg(&socket).stdout(Stdio::piped()).spawn().unwrap();
    while fs::symlink_metadata(&socket).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    desk.ok(&format!("volume list a --control {}", home.display()));
    chown(&home, Some(0), Some(0)).unwrap();
    desk.fails(
        &format!("volume list a --control {}", home.display()),
        1,
        &["a process that does not own a"],
    );
    squatter.wait().unwrap();
    // And the holder of the store's lock puts its own socket in the place of that.
    let serving = desk.serve(&format!("a --control {}", home.display()));
    desk.ok(&format!("volume create a w --size 1M --control {}", home.display()));
    assert!(serving.terminate().0.success());
}

/// A program of a user that listens where a server of that user would, says lines without end to
/// whoever connects, and says once on its own standard output that it was spoken to.
const TALKER: &str = "import socket,sys,time
s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()
while True:
    c,_=s.accept(); print('spoken to', flush=True)
    try:
        while True:
            c.sendall(sys.argv[2].encode()+b'\\n'); time.sleep(0.2)
    except OSError: pass";

#[test]
#[ignore = "needs root"]
fn rule_10_root_believes_no_server_of_another_user_without_being_told_to() {
    let (desk, street) = (Desk::new(), Street::new());
    desk.store_with_volume("a");
    chown(desk.path("a"), Some(STRANGER), Some(STRANGER)).unwrap();
    // Where the session manager of a user makes its directory.
    let home = PathBuf::from(format!("/run/user/{STRANGER}"));
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(home.join("onefold")).unwrap();
    for directory in [home.clone(), home.join("onefold")] {
        chown(&directory, Some(STRANGER), Some(STRANGER)).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let socket = home.join("onefold").join(format!("{}.ctl", control_name(&desk, "a")));
    let mut python = street.program(STRANGER, Path::new("python3"));
    let line = r#"{"answer":"progress","what":"\u001b]0;owned\u0007","done":1,"total":2}"#;
    let mut talker =
        python.args(["-c", TALKER]).arg(&socket).arg(line).stdout(Stdio::piped()).spawn().unwrap();
    while fs::symlink_metadata(&socket).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // Not asked, it is not spoken to; asked for its number it is not listened to for long, and what
    // it says does not reach the terminal.
    assert_eq!(desk.ok("volume list a"), " 64.0 MiB  v\n");
    let locked = |owner: &[&str]| {
        let mut command = Command::new("flock");
        command
            .args(["-x", "a", "timeout", "60", env!("CARGO_BIN_EXE_onefold"), "check", "a"])
            .args(owner)
            .current_dir(desk.path("."));
        let said = command.env("RUNTIME_DIRECTORY", desk.runtime()).output().unwrap();
        let sentence = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            said.status.code() == Some(1) && sentence.contains("in use by another process"),
            "{sentence}"
        );
        assert!(!sentence.contains('\u{1b}'), "{sentence}");
        sentence
    };
    let owner = STRANGER.to_string();
    let sentence = locked(&[]);
    assert!(sentence.contains(&format!("add --owner {owner}")), "{sentence}");
    locked(&["--owner", &owner]);
    talker.kill().unwrap();
    talker.wait().unwrap();
    let mut heard = String::new();
    talker.stdout.take().unwrap().read_to_string(&mut heard).unwrap();
    assert!(heard.starts_with("spoken to"), "with --owner it is asked");
    fs::remove_dir_all(&home).unwrap();
}

#[test]
fn rule_11_no_tcp_address_is_served_without_being_insisted_on() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    for address in ["tcp:127.0.0.1:0", "tcp:[::1]:0", "tcp:0.0.0.0:0"] {
        let mut command = Command::new("timeout");
        command
            .args(["20", env!("CARGO_BIN_EXE_onefold"), "serve", "a", "--nbd", address])
            .current_dir(desk.path("."));
        command.env("RUNTIME_DIRECTORY", desk.runtime());
        refused(&mut command);
    }
    let serving = desk.serve("a --nbd tcp:127.0.0.1:0 --insecure");
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_11_no_tcp_socket_is_taken_over_without_being_insisted_on() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // The shell hands the socket over as descriptor 3, and its own number as that of the process.
    let script = format!(
        "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {} serve a",
        env!("CARGO_BIN_EXE_onefold")
    );
    let mut command = Command::new("timeout");
    command
        .args(["20", "sh", "-c", &script])
        .current_dir(desk.path("."))
        .env("RUNTIME_DIRECTORY", desk.runtime());
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    refused(&mut command);
}

/// Runs it: it ends with a sentence about TCP, as a wrong command line does.
fn refused(command: &mut Command) {
    let said = command.output().unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(2), "{command:?}: {said:?}");
    assert!(
        error.contains("--insecure") && error.contains("--tls") && error.contains("unix:"),
        "{error}"
    );
}

#[test]
fn rule_14_a_full_store_answers_a_right_guess_like_a_wrong_one() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    desk.ok("volume create a victim --size 64M");
    desk.ok("volume create a attacker --size 256M");
    fs::write(desk.path("data"), noise(9, 96 << 20)).unwrap();
    let fill = format!("write -s {} 0 96M", desk.path("data").display());
    let serving = desk.serve("a");
    qemu_io(&desk.uri("a", "victim"), &["write -P 0x47 0 4k", "flush"]);
    let answers = || {
        assert!(
            !try_qemu_io(&desk.uri("a", "attacker"), &[&fill]).out.contains("wrote 100663296/")
        );
        [0x46, 0x47].map(|guess| {
            let said =
                try_qemu_io(&desk.uri("a", "attacker"), &[&format!("write -P {guess:#x} 200M 4k")]);
            said.out.contains("wrote 4096/4096")
        })
    };
    // The free space at which writes are refused may be drawn anew in between.
    assert!((0..3).any(|_| answers() == [false, false]), "a right guess was taken each time");
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_14_a_volume_with_a_quota_fills_itself_alone_and_learns_nothing() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    desk.ok("volume create a victim --size 64M");
    desk.ok("volume create a attacker --size 1G --quota 8M");
    fs::write(desk.path("data"), noise(9, 96 << 20)).unwrap();
    let data = desk.path("data").display().to_string();
    let serving = desk.serve("a");
    let (victim, attacker) = (desk.uri("a", "victim"), desk.uri("a", "attacker"));
    qemu_io(&victim, &["write -P 0x47 0 4k", "flush"]);
    assert!(
        !try_qemu_io(&attacker, &[&format!("write -s {data} 0 96M")]).out.contains("wrote 100")
    );
    let taken = |at: &str, guess: u8| {
        let said = try_qemu_io(&attacker, &[&format!("write -P {guess:#x} {at} 4k")]);
        said.out.contains("wrote 4096/4096")
    };
    assert_eq!([0x46, 0x47].map(|guess| taken("200M", guess)), [false; 2]);
    // The right guess takes as much room as the wrong one, and leaves as little to the next block.
    for guess in [0x46, 0x47] {
        qemu_io(&attacker, &["discard 0 4k", "flush"]);
        assert!(taken("0", guess));
        assert!(!taken("200M", 0x48), "{guess:#x}");
    }
    qemu_io(&victim, &[&format!("write -s {data} 1M 16M"), "flush"]);
    assert!(serving.terminate().0.success());
}

#[test]
fn rule_14_data_that_lies_far_apart_takes_no_more_than_its_quota() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    desk.ok("volume create a victim --size 64M");
    desk.ok("volume create a attacker --size 1T --quota 4M");
    let serving = desk.serve("a");
    let (victim, attacker) = (desk.uri("a", "victim"), desk.uri("a", "attacker"));
    qemu_io(&victim, &["write -P 0x47 0 1M", "flush"]);
    let tables = || desk.status("a")["space"]["table_bytes"].as_u64().unwrap();
    let before = tables();
    let each = |round: u64, what: &str, bytes: &str| -> Vec<String> {
        let at = |n: u64| format!("{what} {}M {bytes}", 2 * (round * 200 + n));
        (0..200).map(at).chain(["flush".to_owned()]).collect()
    };
    let run = |commands: Vec<String>| {
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        try_qemu_io(&attacker, &commands).out.matches("wrote 4096/4096").count()
    };
    // A block, and then zeroes that are to be kept, address after address.
    for round in 0..8 {
        assert_eq!(run(each(round, "write -P 0x48", "4k")), 200, "round {round}");
        assert_eq!(run(each(round, "write -z", "4k")), 200, "round {round}");
    }
    // Each of the 1600 left a page of the map.
    let grown = tables().saturating_sub(before);
    assert!(grown < 3 << 20, "the tables grew by {grown} bytes");
    // Blocks alone: each takes a page, and 80 pages are free.
    let taken: usize = (0..4).map(|round| run(each(round, "write -P 0x49", "4k"))).sum();
    assert!((500..560).contains(&taken), "{taken} blocks were taken");
    let said = desk.ok("status a");
    assert!(
        said.contains("of its quota of 4.00 MiB, ") && said.contains("pages of its map"),
        "{said}"
    );
    fs::write(desk.path("data"), noise(9, 40 << 20)).unwrap();
    let data = desk.path("data").display().to_string();
    qemu_io(&victim, &[&format!("write -s {data} 1M 40M"), "flush"]);
    assert!(serving.terminate().0.success());
    desk.ok("check a");
}

/// A client without a library: it opens volumes as often as asked for, and keeps the connections,
/// on the first of them asking for their status all the time.
const CROWD: &str = r#"
import os, socket, struct, sys, threading, time
path, name, idle, flood = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), int(sys.argv[4])
def connect():
    s = socket.socket(socket.AF_UNIX); s.connect(path); s.recv(18, socket.MSG_WAITALL)
    s.sendall(struct.pack('>I', 3) + b'IHAVEOPT' + struct.pack('>II', 8, 0)); s.recv(20, socket.MSG_WAITALL)
    q = b'base:allocation'
    data = struct.pack('>I', len(name)) + name + struct.pack('>II', 1, len(q)) + q
    s.sendall(b'IHAVEOPT' + struct.pack('>II', 10, len(data)) + data)
    data = struct.pack('>I', len(name)) + name + struct.pack('>H', 0)
    s.sendall(b'IHAVEOPT' + struct.pack('>II', 7, len(data)) + data)
    time.sleep(0.05); s.recv(4096)
    return s
def ask(s):
    def drain():
        while s.recv(65536): pass
    threading.Thread(target=drain, daemon=True).start()
    while True: s.sendall(struct.pack('>IHHQQI', 0x25609513, 0, 7, 1, 0, 1 << 20) * 64)
all = []
try:
    while len(all) < idle + flood: all.append(connect())
except OSError: pass # All places are taken.
assert len(all) >= idle
for s in all[:flood]: threading.Thread(target=ask, args=(s,), daemon=True).start()
print('there', file=sys.stderr, flush=True)
time.sleep(600)
"#;

#[test]
#[ignore = "needs root"]
fn rule_12_a_peer_that_has_all_places_keeps_no_other_out() {
    let (desk, street) = (Desk::new(), Street::new());
    desk.store_with_volume("a");
    desk.ok("volume create a his --size 64M");
    fs::write(desk.path("access"), format!("uid:{STRANGER} write his\nuser:root write v\n"))
        .unwrap();
    let door = street.path("door.sock");
    let serving = desk
        .serve(&format!("a --memory 64M --access access --nbd unix:{},mode=0666", door.display()));
    let mut crowd = street.program(STRANGER, Path::new("python3"));
    let crowd = Serving::start_saying(
        crowd.args(["-c", CROWD]).arg(&door).args(["his", "34", "8"]),
        "there",
    );
    let uri = format!("nbd+unix:///v?socket={}", door.display());
    for round in 0..5 {
        qemu_io(
            &uri,
            &[&format!("write -P {round} 0 1M"), "flush", &format!("read -P {round} 0 1M")],
        );
    }
    drop(crowd);
    assert!(serving.terminate().0.success());
}

/// A client without a right, who leaves descriptors in his connections before they are looked at: of
/// sockets that wait for their unsent bytes when the last reference is closed.
const LEAVER: &str = r#"
import array, socket, struct, sys, threading, time
path, kept, sent = sys.argv[1], [], 0
def lingering():
    l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(1)
    c = socket.socket(); c.connect(l.getsockname()); kept.append((l, l.accept()))
    c.setblocking(False)
    try:
        while True: c.send(b'x' * 65536)
    except BlockingIOError: pass
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 100000))
    return c
for turn in range(60):
    c = lingering()
    others = [socket.socket(socket.AF_UNIX) for _ in range(40)]
    n = socket.socket(socket.AF_UNIX)
    try:
        for o in others: o.connect(path)
        n.connect(path)
        n.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [c.fileno()]))])
        sent += 1
    except OSError: pass
    # It may be the last reference.
    threading.Thread(target=c.close, daemon=True).start()
    for o in others: o.close()
    if sent >= 8: break
print('left', file=sys.stderr, flush=True)
time.sleep(600)
"#;

/// Hands a socket over to a server, for every user, and takes the kernel's help away that the server
/// asks for.
const OLDER: &str = r#"
import os, socket, sys, time
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); s.listen(64)
if os.fork() == 0:
    if os.fork(): os._exit(0)
    try:
        while s.getsockopt(socket.SOL_SOCKET, 83): time.sleep(0.02)
        s.setsockopt(socket.SOL_SOCKET, 83, 1)
    except OSError: time.sleep(2) # The kernel is an older one.
    print('as on an older kernel', file=sys.stderr, flush=True)
    os._exit(0)
os.wait()
os.dup2(s.fileno(), 3); os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"#;

#[test]
#[ignore = "needs root"]
fn rule_12_a_stranger_who_leaves_descriptors_holds_up_nobody() {
    for older in [false, true] {
        let (desk, street) = (Desk::new(), Street::new());
        desk.store_with_volume("a");
        fs::write(desk.path("access"), "user:root write v\n").unwrap();
        let door = street.path("door.sock");
        let serving = match older {
            false => {
                let nbd = format!("--nbd unix:{},mode=0666", door.display());
                desk.serve(&format!("a --access access {nbd}"))
            }
            true => {
                let mut command = Command::new("python3");
                command.args(["-c", OLDER]).arg(&door).arg(env!("CARGO_BIN_EXE_onefold"));
                command.args(["serve", "a", "--access", "access"]).current_dir(desk.path("."));
                command.env("RUNTIME_DIRECTORY", desk.runtime());
                Serving::start_saying(&mut command, "as on an older kernel")
            }
        };
        let mut leaver = street.program(STRANGER, Path::new("python3"));
        let leaver = Serving::start_saying(leaver.args(["-c", LEAVER]).arg(&door), "left");
        let mut asks = Command::new("timeout");
        asks.args(["-s", "KILL", "20", "nbdinfo", "--size"]);
        let said = asks.arg(format!("nbd+unix:///v?socket={}", door.display())).output().unwrap();
        assert!(said.status.success(), "older: {older}: {said:?}");
        let begun = Instant::now();
        assert!(serving.terminate().0.success(), "older: {older}");
        assert!(begun.elapsed() < Duration::from_secs(10), "older: {older}");
        drop(leaver);
    }
}

#[test]
#[ignore = "needs root"]
fn rule_13_a_peer_sees_and_changes_what_it_has_a_right_to() {
    let (desk, street) = (Desk::new(), Street::new());
    desk.store_with_volume("a");
    desk.ok("volume create a his --size 64M");
    desk.ok("volume create a shown --size 64M");
    let door = street.path("door.sock");
    let nbdinfo = |user: u32, rest: &[&str]| {
        let mut command = street.program(user, Path::new("nbdinfo"));
        let said = command.args(rest).output().unwrap();
        (
            said.status.success(),
            String::from_utf8_lossy(&said.stdout).into_owned(),
            String::from_utf8_lossy(&said.stderr).into_owned(),
        )
    };
    let uri = |volume: &str| format!("nbd+unix:///{volume}?socket={}", door.display());
    // Without a file, others see nothing, though they can connect.
    let serving = desk.serve(&format!("a --nbd unix:{},mode=0666", door.display()));
    assert!(!nbdinfo(STRANGER, &["--size", &uri("v")]).0 && nbdinfo(0, &["--size", &uri("v")]).0);
    assert!(!nbdinfo(STRANGER, &["--list", &uri("")]).1.contains("export="));
    assert!(serving.terminate().0.success());

    fs::write(
        desk.path("access"),
        format!("uid:{STRANGER} write his\nuid:{STRANGER} read shown\n"),
    )
    .unwrap();
    let serving = desk.serve(&format!("a --access access --nbd unix:{},mode=0666", door.display()));
    let list = nbdinfo(STRANGER, &["--list", &uri("")]).1;
    assert!(
        list.contains("\"his\"") && list.contains("\"shown\"") && !list.contains("\"v\""),
        "{list}"
    );
    let (forbidden, missing) =
        (nbdinfo(STRANGER, &["--size", &uri("v")]), nbdinfo(STRANGER, &["--size", &uri("w")]));
    assert!(!forbidden.0 && forbidden.2.contains("'v'"), "{forbidden:?}");
    assert_eq!(forbidden.2.replace("'v'", "'w'").replace("/v?", "/w?"), missing.2);
    assert!(
        nbdinfo(STRANGER, &["--is", "readonly", &uri("shown")]).0
            && !nbdinfo(STRANGER, &["--is", "readonly", &uri("his")]).0
    );
    // Root has no line, and so no right.
    assert!(!nbdinfo(0, &["--size", &uri("v")]).0);
    assert!(serving.terminate().0.success());
    desk.fails("serve a --access nowhere", 1, &["nowhere"]);
}

#[test]
fn rule_19_the_service_is_exposed_to_little() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let unit = fs::read_to_string(packaging.join("onefold@.service")).unwrap();
    for line in [
        "User=onefold",
        "RuntimeDirectory=onefold/%i",
        "RuntimeDirectoryMode=0700",
        "DevicePolicy=closed",
        "PrivateNetwork=yes",
        "LimitCORE=0",
    ] {
        assert!(unit.lines().any(|found| found == line), "the unit has no {line}");
    }
    assert!(
        fs::read_to_string(packaging.join("onefold.sysusers.conf")).unwrap().contains("u onefold ")
    );
    let nightly = fs::read_to_string(packaging.join("onefold-nightly@.service")).unwrap();
    assert_eq!(
        confinement(&unit),
        confinement(&nightly),
        "both services have the same confinement"
    );
    let desk = Desk::new();
    for unit in ["onefold@.service", "onefold-nightly@.service", "onefold-keep@.service"] {
        // The most that it may have, in tenths.
        let arguments = ["security", "--offline=yes", "--threshold=15", "--no-pager"];
        analyze(&arguments, &packaging.join(unit));
    }
    for unit in [
        "onefold@.socket",
        "onefold@.service",
        "onefold-nightly@.timer",
        "onefold-nightly@.service",
        "onefold-backup@.timer",
        "onefold-backup@.service",
        "onefold-keep@.timer",
        "onefold-keep@.service",
        "onefold-gateway@.service",
        "onefold-worker@.service",
    ] {
        // The command need not be installed where this is tried.
        let text = fs::read_to_string(packaging.join(unit)).unwrap();
        let text = text.replace("ExecStart=/usr/bin/", "ExecStart=/bin/true ");
        fs::write(desk.path(unit), text).unwrap();
    }
    let backup = fs::read_to_string(desk.path("onefold-backup@.service")).unwrap();
    let place = "=TMPDIR=%C/onefold-backup/";
    assert!(backup.contains(place), "the names of large directories need a place");
    // It reads all that belongs to anybody, as root. What hides something from it, or makes it a mount of
    // its own, would be missing in snapshots.
    for hides in ["ProtectHome=", "ProtectKernelModules=", "PrivateTmp=", "InaccessiblePaths="] {
        assert!(!backup.lines().any(|line| line.starts_with(hides)), "{hides} hides files");
    }
    let arguments = ["security", "--offline=yes", "--threshold=22", "--no-pager"];
    analyze(&arguments, &packaging.join("onefold-backup@.service"));
    // These need the network on which Ceph is.
    for unit in ["onefold-gateway@.service", "onefold-worker@.service"] {
        let arguments = ["security", "--offline=yes", "--threshold=28", "--no-pager"];
        analyze(&arguments, &packaging.join(unit));
    }
    for unit in [
        "onefold@.socket",
        "onefold-nightly@.timer",
        "onefold-backup@.timer",
        "onefold-keep@.timer",
        "onefold-gateway@.service",
        "onefold-worker@.service",
    ] {
        analyze(&["verify", "--man=no"], &desk.path(unit));
    }
}

/// The settings of a unit that confine it: from its writable paths to its limits.
fn confinement(unit: &str) -> Vec<&str> {
    let settings = unit.lines().skip_while(|line| !line.starts_with("ReadWritePaths="));
    settings.take_while(|line| !line.is_empty()).collect()
}

/// systemd finds nothing to say against a unit, where it is installed.
fn analyze(arguments: &[&str], unit: &Path) {
    match Command::new("systemd-analyze").args(arguments).arg(unit).output() {
        Ok(said) => {
            let errors = String::from_utf8_lossy(&said.stderr);
            let all = format!("{}{errors}", String::from_utf8_lossy(&said.stdout));
            // Of an unknown setting it only says that it ignores it.
            assert!(said.status.success() && !errors.contains("ignoring"), "{all}");
        }
        Err(error) => println!("not tried, since systemd-analyze does not run: {error}"),
    }
}

#[test]
fn rule_48_an_audit_log_tells_who_did_what_and_that_nobody_changed_it() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let own = rustix::process::geteuid().as_raw();
    fs::write(desk.path("access"), format!("uid:{own} write v\n")).unwrap();
    let serving = desk.serve("a --audit log --access access --nbd unix:s");
    let uri = |volume: &str| format!("nbd+unix:///{volume}?socket={}", desk.path("s").display());
    qemu_io(&uri("v"), &["write -P 7 0 64k", "flush"]);
    assert!(!try_qemu_io(&uri("secret"), &["read 0 4k"]).status.success());
    desk.ok("volume create a other --size 64M");
    desk.ok("volume list a");
    desk.fails("volume create a other --size 64M", 1, &["other"]);
    desk.fails("serve a --audit log", 1, &["another process writes this audit log"]);
    let text = || fs::read_to_string(desk.path("log")).unwrap();
    assert!(serving.terminate().0.success());
    let lines: Vec<serde_json::Value> =
        text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<String> = lines
        .iter()
        .map(|line| {
            let word = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            [word("event"), word("who"), word("volume"), word("right")].join(" ").trim().to_owned()
        })
        .collect();
    let who = format!("uid:{own}");
    for wanted in [
        "serving",
        &format!("opened {who} v write"),
        &format!("closed {who} v"),
        &format!("refused {who} secret"),
        "ended",
    ] {
        // A client that is refused may ask again.
        assert!(told.iter().any(|line| line == wanted), "{wanted}: {told:#?}");
    }
    let commands: Vec<_> = lines.iter().filter(|line| line["event"] == "command").collect();
    assert_eq!(commands.len(), 2, "a list is not told: {commands:#?}");
    assert!(commands[0]["answer"] == "done" && commands[0]["asked"]["name"] == "other");
    assert!(commands[1]["answer"].as_str().unwrap().contains("other"));
    assert_eq!(fs::metadata(desk.path("log")).unwrap().permissions().mode() & 0o777, 0o600);

    // The next server goes on with it.
    assert!(desk.serve("a --audit log").terminate().0.success());
    let said = desk.ok("audit log");
    assert!(said.contains("each follows the one before"), "{said}");
    let head = said.lines().last().unwrap().strip_prefix("last ").unwrap().to_owned();
    desk.ok(&format!("audit log --head {head}"));
    let whole = text();
    fs::write(desk.path("log"), whole.replacen("secret", "public", 1)).unwrap();
    desk.fails("audit log", 1, &["log: line ", "somebody changed"]);
    let shorter = &whole[..whole.trim_end().rfind('\n').unwrap() + 1];
    fs::write(desk.path("log"), shorter).unwrap();
    desk.ok("audit log");
    desk.fails(&format!("audit log --head {head}"), 1, &["cut off"]);
    fs::write(desk.path("log"), whole).unwrap();

    // Whoever may write to it could write what happened.
    fs::set_permissions(desk.path("log"), fs::Permissions::from_mode(0o666)).unwrap();
    desk.fails("serve a --audit log", 1, &["others may open this audit log", "chmod 600"]);
}
