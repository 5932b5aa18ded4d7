//! Shared by the tests of the command: a directory on a real disk, the command, a server, and NBD
//! clients.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take that is not expected to take long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory that vanishes, with a command at hand.
pub(crate) struct Desk {
    dir: Arc<tempfile::TempDir>,
    /// The command's name.
    name: &'static str,
    /// What stands in for ssh.
    ssh: Option<PathBuf>,
}

/// The output of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Desk {
    /// A desk for `onefold`.
    pub(crate) fn new() -> Desk {
        // Names of sockets are short, so directories are too; the disk is that of the build.
        let dir = tempfile::Builder::new().prefix("o").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        Desk { dir: Arc::new(dir.unwrap()), name: "onefold", ssh: None }
    }

    /// The same directory with another command of this build.
    pub(crate) fn with(&self, name: &'static str) -> Desk {
        Desk { dir: self.dir.clone(), name, ssh: self.ssh.clone() }
    }

    /// The same directory, with a script in place of ssh. It finds the command of this build, all that it
    /// is told as `$@`, and the command for the other end as `$last`.
    pub(crate) fn by_ssh(&self, name: &str, script: &str) -> Desk {
        let path = self.path(name);
        let folder = self.binary().parent().unwrap().display().to_string();
        let head = format!("#!/bin/sh\nPATH={folder}:$PATH\nfor last; do :; done\n");
        std::fs::write(&path, format!("{head}{script}\n")).unwrap();
        // The file is this test's own.
        let made = Command::new("chmod").arg("755").arg(&path).status().unwrap();
        assert!(made.success());
        Desk { dir: self.dir.clone(), name: self.name, ssh: Some(path) }
    }

    /// Tests lie in a folder below that of the commands.
    fn binary(&self) -> PathBuf {
        let test = std::env::current_exe().unwrap();
        let binary = test.parent().unwrap().parent().unwrap().join(self.name);
        assert!(binary.exists(), "{} is missing: cargo build first", binary.display());
        binary
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(self.binary());
        command.args(arguments.split_whitespace()).current_dir(self.dir.path());
        for name in ["RUST_LOG", "JOURNAL_STREAM", "NOTIFY_SOCKET", "LISTEN_FDS"] {
            command.env_remove(name);
        }
        command.env("RUNTIME_DIRECTORY", self.runtime());
        if let Some(ssh) = &self.ssh {
            command.env("ONEFOLD_SSH", ssh);
        }
        // What the command remembers outlives no desk.
        command.env_remove("STATE_DIRECTORY").env("XDG_STATE_HOME", self.path("state"));
        command.env_remove("CACHE_DIRECTORY").env("XDG_CACHE_HOME", self.path("cache"));
        command
    }

    /// Where servers of this desk take commands.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.path("run")
    }

    /// Runs the command as somebody who may read only what modes allow, which root may not be; `None`
    /// when it can't be run so.
    pub(crate) fn run_obeying_modes(&self, arguments: &str) -> Option<Said> {
        if !rustix::process::geteuid().is_root() {
            return Some(self.run(arguments));
        }
        let mut command = self.command(arguments);
        let own: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut without = Command::new("setpriv");
        without.arg("--bounding-set=-dac_override,-dac_read_search").arg(command.get_program());
        without.args(own).current_dir(self.dir.path());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => without.env(name, value),
                None => without.env_remove(name),
            };
        }
        command = without;
        let output = command.output().ok()?;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Some(Said { status: output.status, out: text(output.stdout), err: text(output.stderr) })
    }

    /// Runs the command with arguments that have no spaces.
    pub(crate) fn run(&self, arguments: &str) -> Said {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { status: output.status, out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs it, and it succeeds.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &str) -> String {
        let said = self.run(arguments);
        assert!(said.status.success(), "{} {arguments}: {said:?}", self.name);
        // On a busy machine a verb takes long enough to tell how far it is.
        let progress = |line: &str| {
            line.ends_with(" left") || line.ends_with("/s") || line.starts_with("{\"progress\":")
        };
        let words: Vec<&str> = said.err.lines().filter(|line| !progress(line)).collect();
        assert!(words.is_empty(), "{} {arguments}: {words:?}", self.name);
        said.out
    }

    /// Runs it, and it fails with this status and one sentence, which says all of `says`.
    #[track_caller]
    pub(crate) fn fails(&self, arguments: &str, status: i32, says: &[&str]) -> Said {
        let said = self.run(arguments);
        assert_eq!(said.status.code(), Some(status), "{} {arguments}: {said:?}", self.name);
        assert_eq!(said.err.lines().count(), 1, "{} {arguments}: {}", self.name, said.err);
        assert!(said.err.starts_with(&format!("{}: ", self.name)), "{}", said.err);
        for part in says {
            assert!(
                said.err.contains(part),
                "{} {arguments}: no '{part}' in: {}",
                self.name,
                said.err
            );
        }
        said
    }

    /// The status as JSON.
    pub(crate) fn status(&self, store: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(&format!("status {store} --json"))).unwrap()
    }

    /// A store with a volume `v` of 64 MiB.
    pub(crate) fn store_with_volume(&self, store: &str) {
        self.ok(&format!("create block {store} --size 64M --preallocate none"));
        self.ok(&format!("volume create {store} v --size 64M"));
    }

    /// Serves a store, and waits until it is ready.
    #[track_caller]
    pub(crate) fn serve(&self, arguments: &str) -> Serving {
        let mut command = self.command(&format!("serve {arguments}"));
        Serving::start(&mut command)
    }

    /// A volume at the usual socket of a store.
    pub(crate) fn uri(&self, store: &str, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.path(&format!("{store}.sock")).display())
    }
}

/// A server, killed when it is forgotten.
pub(crate) struct Serving {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Serving {
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Serving {
        Serving::start_saying(command, "serving ")
    }

    /// Starts something that says this when it is ready.
    #[track_caller]
    pub(crate) fn start_saying(command: &mut Command, ready: &str) -> Serving {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let kept = log.clone();
        let reader = std::thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).unwrap_or(0) > 0 {
                kept.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        let mut serving = Serving { child, log, reader: Some(reader) };
        serving.wait_for(ready);
        serving
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the log says something.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        let begun = Instant::now();
        while !self.log().contains(text) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "no '{text}' ({ended:?}): {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it in order; gives its status and log.
    #[track_caller]
    pub(crate) fn terminate(self) -> (ExitStatus, String) {
        self.signal(Signal::TERM);
        self.end()
    }

    /// Ends it as a crash would.
    #[track_caller]
    pub(crate) fn kill(self) {
        self.signal(Signal::KILL);
        self.end();
    }

    #[track_caller]
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        };
        self.reader.take().unwrap().join().unwrap();
        (status, self.log())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `qemu-io` commands on a volume; all of them succeed.
#[track_caller]
pub(crate) fn qemu_io(uri: &str, commands: &[&str]) -> String {
    let said = try_qemu_io(uri, commands);
    let failed = ["failed", "error", "Could not", "can't"]
        .iter()
        .any(|word| said.out.contains(word) || said.err.contains(word));
    assert!(said.status.success() && !failed, "{commands:?}: {said:?}");
    said.out
}

/// Runs `qemu-io` commands on a volume.
pub(crate) fn try_qemu_io(uri: &str, commands: &[&str]) -> Said {
    let mut command = Command::new("timeout");
    command.args(["60", "qemu-io", "-f", "raw", "-t", "none"]);
    commands.iter().for_each(|text| {
        command.args(["-c", text]);
    });
    let output = command.arg(uri).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Said { status: output.status, out: text(output.stdout), err: text(output.stderr) }
}

/// Changes bytes of a file in place.
pub(crate) fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Bytes that look alike nowhere.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(bytes).collect()
}

/// Ends a mount. A file that another thread of this test had open may live on for a moment in a program
/// that it starts, between its fork and its exec; so a mount that is busy is tried again.
pub(crate) fn unmount(at: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = rustix::mount::unmount(at, rustix::mount::UnmountFlags::NOFOLLOW) {
        let is_busy = error == rustix::io::Errno::BUSY && Instant::now() < deadline;
        assert!(is_busy, "{}: {error}", at.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All that a reader gives.
pub(crate) fn drain(mut from: impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}

/// Runs a `create` of the command at `onefold` as root on a file system with too little room: it fails, leaves nothing, and works once
/// there is more. Returns what it said.
pub(crate) fn leaves_nothing_on_a_full_disk(onefold: &str, create: &str) -> String {
    let desk = Desk::new();
    let small = desk.path("small");
    std::fs::create_dir(&small).unwrap();
    // In a mount namespace of its own.
    let script = format!(
        "mount -t tmpfs -o size=256k none '{0}' && chmod 700 '{0}' && cd '{0}' || exit 9
         {onefold} {create} && exit 8
         ls -A
         mount -o remount,size=4g '{0}' || exit 7
         exec {onefold} {create} --json >/dev/null",
        small.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let said = command.current_dir(desk.path("")).output().unwrap();
    let [out, err] =
        [&said.stdout, &said.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert_eq!((said.status.code(), &*out), (Some(0), ""), "{create}: {err}");
    err
}
