//! A server as the system around it sees it: started by a service manager, stopped by signals.
//!
//! These tests need processes of their own with one thread at their start, which a test harness
//! does not give. So this file is a plain program. Without a role it is the tests, and each test
//! starts it again with a role, as the server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt,
        unix::{
            net::{SocketAddr, UnixDatagram, UnixListener, UnixStream},
            process::ExitStatusExt,
        },
    },
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use onefold_backend::{
    signals::{Stop, StopSignals},
    systemd::Service,
};
use onefold_core::Kind;
use rustix::process::{Pid, Signal, kill_process};

fn main() {
    match env::args().nth(1).as_deref() {
        Some("role-activated") => activated(),
        Some("role-threaded") => threaded(),
        Some("role-stoppable") => stoppable(),
        _ => {
            let tests: [(&str, fn()); 6] = [
                (
                    "sockets_of_the_service_manager_are_taken_and_its_variables_removed",
                    sockets_are_taken,
                ),
                ("what_was_meant_for_another_process_is_left_alone", other_pid_is_left_alone),
                ("descriptors_that_are_no_sockets_are_refused", no_sockets_are_refused),
                ("nothing_is_taken_while_other_threads_run", nothing_with_threads),
                ("a_signal_stops_and_a_broken_pipe_does_not", a_signal_stops),
                ("a_second_signal_ends_the_process_at_once", a_second_signal_ends),
            ];
            println!("\nrunning {} tests", tests.len());
            for (name, test) in tests {
                test();
                println!("test {name} ... ok");
            }
            println!("\ntest result: ok. {} passed\n", tests.len());
        }
    }
}

/// Takes what it is given, and reports it.
fn activated() {
    match Service::take() {
        Ok(service) => {
            let left = env::vars()
                .filter(|(name, _)| name.starts_with("LISTEN_") || name == "NOTIFY_SOCKET")
                .count();
            let names: Vec<String> =
                service.sockets.iter().map(|socket| socket.name.clone()).collect();
            service.notifier.ready(&format!("{names:?}\nleft {left}")).unwrap();
            println!("{names:?} left {left}");
            for socket in service.sockets {
                let (mut stream, _) = UnixListener::from(socket.fd).accept().unwrap();
                stream.write_all(b"served").unwrap();
            }
            service.notifier.stopping().unwrap();
        }
        Err(error) => println!("{:?}", error.kind()),
    }
}

fn threaded() {
    std::thread::scope(|scope| {
        let (keep, end) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || end.recv());
        println!("{:?}", Service::take().unwrap_err().kind());
        drop(keep);
    });
}

fn stoppable() {
    let mut signals = StopSignals::install().unwrap();
    let (gone, here) = UnixStream::pair().unwrap();
    drop(here);
    println!("broken pipe: {:?}", rustix::io::write(&gone, b"x").unwrap_err().kind());
    println!("{}", if signals.wait() == Stop::Terminate { "terminate" } else { "interrupt" });
    if env::args().nth(2).is_some() {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Starts this program in a role, by way of a shell that makes standard input descriptor 3 and
/// names its own process.
fn by_service_manager(pid: &str, fds: &str, stdin: Stdio) -> Command {
    let mut command = Command::new("sh");
    let script = format!("exec 3<&0; LISTEN_PID={pid} exec \"$0\" \"$1\"");
    command.args(["-c", &script]).arg(env::current_exe().unwrap()).arg("role-activated");
    command
        .env("LISTEN_FDS", fds)
        .env("LISTEN_FDNAMES", "nbd:other")
        .stdin(stdin)
        .stdout(Stdio::piped());
    command
}

fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn sockets_are_taken() {
    let name = format!("onefold-test-{}", std::process::id());
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
    let notifications = [
        (
            format!("@{name}"),
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
        ),
        (path.to_str().unwrap().to_owned(), UnixDatagram::bind(&path).unwrap()),
    ];
    for (address, notified) in notifications {
        let hello = SocketAddr::from_abstract_name(format!("{name}-listen")).unwrap();
        let listener = UnixListener::bind_addr(&hello).unwrap();
        let mut command = by_service_manager("$$", "1", OwnedFd::from(listener).into());
        let server = command.env("NOTIFY_SOCKET", address).spawn().unwrap();
        // The command holds a copy of the listener.
        drop(command);
        let mut served = String::new();
        UnixStream::connect_addr(&hello).unwrap().read_to_string(&mut served).unwrap();
        assert_eq!(served, "served");
        let said = String::from_utf8(server.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(said, "[\"nbd\"] left 0\n");
        let mut message = [0; 200];
        for expected in ["READY=1\nSTATUS=[\"nbd\"] left 0", "STOPPING=1"] {
            let n = notified.recv(&mut message).unwrap();
            assert_eq!(std::str::from_utf8(&message[..n]).unwrap(), expected);
        }
    }
    std::fs::remove_file(path).unwrap();
}

fn other_pid_is_left_alone() {
    for pid in ["1", "x", ""] {
        assert_eq!(output(by_service_manager(pid, "1", Stdio::null())), "[] left 0\n");
    }
}

fn no_sockets_are_refused() {
    assert_eq!(
        output(by_service_manager("$$", "1", Stdio::null())),
        format!("{:?}\n", Kind::InvalidInput)
    );
    for fds in ["-1", "65", "4294967296", "x", ""] {
        assert_eq!(
            output(by_service_manager("$$", fds, Stdio::null())),
            format!("{:?}\n", Kind::InvalidInput)
        );
    }
    assert_eq!(output(by_service_manager("$$", "0", Stdio::null())), "[] left 0\n");
}

fn nothing_with_threads() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.arg("role-threaded").env("LISTEN_FDS", "1");
    assert_eq!(output(command), format!("{:?}\n", Kind::Busy));
}

/// A server that waits for a signal, and the lines that it says.
fn start_stoppable(arguments: &[&str]) -> (Child, impl FnMut() -> String) {
    let mut command = Command::new(env::current_exe().unwrap());
    let mut server =
        command.arg("role-stoppable").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut line = move || lines.next().unwrap().unwrap();
    assert_eq!(line(), "broken pipe: BrokenPipe");
    (server, line)
}

fn send(server: &Child, signal: Signal) {
    kill_process(Pid::from_child(server), signal).unwrap();
}

fn a_signal_stops() {
    for (signal, said) in [(Signal::TERM, "terminate"), (Signal::INT, "interrupt")] {
        let (mut server, mut line) = start_stoppable(&[]);
        send(&server, signal);
        assert_eq!(line(), said);
        assert_eq!(server.wait().unwrap(), ExitStatus::from_raw(0));
    }
}

fn a_second_signal_ends() {
    for (first, second) in
        [(Signal::INT, Signal::INT), (Signal::TERM, Signal::TERM), (Signal::TERM, Signal::INT)]
    {
        let (mut server, mut line) = start_stoppable(&["slow"]);
        send(&server, first);
        line();
        send(&server, second);
        assert_eq!(server.wait().unwrap().code(), Some(130));
    }
}
