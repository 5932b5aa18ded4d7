//! The product as its users have it: the command, stores, and servers on sockets.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    machine,
    nbd::Client,
    program::{Running, cargo, describe, run, spawn},
};

/// Longest that a build may take: on two busy processors the first one took more than twenty minutes.
pub(crate) const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Longest that a command without a server may take.
const VERB_LIMIT: Duration = Duration::from_secs(300);

/// Longest that a server may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Longest that a server may take to end cleanly.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The command `onefold`.
#[derive(Clone)]
pub(crate) struct Onefold {
    binary: PathBuf,
    /// Variables that its processes get beside ours.
    environment: Vec<(String, String)>,
}

/// How the command is built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// With assertions and overflow checks, as the tests are.
    Test,
    /// As users get it.
    Release,
}

/// The packages that the tests build, as every step names them to cargo. Crates that others provide
/// get the features that all packages of one run ask for together: a run that names one package
/// alone compiles most of them, and all of ours, once more.
pub(crate) const TESTED: [&str; 3] = ["--workspace", "--exclude", "onefold-sim"];

/// Builds a package, and returns where its command is.
pub(crate) fn built(package: &str, command: &str, build: Build) -> Result<PathBuf> {
    let arguments = match build {
        Build::Release => vec!["--release", "--package", package],
        // With an example cargo counts what tests alone depend on, as it does when it builds tests.
        Build::Test => [&TESTED[..], &["--bin", command, "--example", "null"]].concat(),
    };
    run(cargo([&["build", "--quiet", "--locked"], &arguments[..]].concat()), BUILD_LIMIT)?;
    let profile = if build == Build::Release { "release" } else { "debug" };
    let binary = builds().join(profile).join(command);
    ensure!(binary.exists(), "{} was not built", binary.display());
    Ok(binary)
}

/// The folder of builds.
pub(crate) fn builds() -> PathBuf {
    machine::root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

impl Onefold {
    /// Builds the command; with the variable `ONEFOLD`, takes the one that it names instead.
    pub(crate) fn build(build: Build) -> Result<Onefold> {
        if let Some(binary) = std::env::var_os("ONEFOLD").map(PathBuf::from) {
            ensure!(binary.exists(), "there is no {}", binary.display());
            return Ok(Onefold::at(binary));
        }
        Ok(Onefold::at(built("onefold-cli", "onefold", build)?))
    }

    /// The laboratory's command, `onefold-lab`.
    pub(crate) fn laboratory(build: Build) -> Result<Onefold> {
        Ok(Onefold::at(built("onefold-papers", "onefold-lab", build)?))
    }

    /// Its servers take commands in a directory of the build's, and leave nothing elsewhere.
    fn at(binary: PathBuf) -> Onefold {
        Onefold {
            binary,
            environment: vec![(
                "RUNTIME_DIRECTORY".to_owned(),
                path(&runtime_directory()).to_owned(),
            )],
        }
    }

    /// The same command with a variable in its environment.
    pub(crate) fn with(&self, variable: &str, value: &str) -> Onefold {
        let mut other = self.clone();
        other.environment.push((variable.to_owned(), value.to_owned()));
        other
    }

    /// Where it is.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// A command line of it.
    pub(crate) fn command<I: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = I>,
    ) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .stdin(Stdio::null())
            .args(arguments)
            .envs(self.environment.iter().map(|(variable, value)| (variable, value)));
        command
    }

    /// Runs a verb to its end and returns what it printed.
    pub(crate) fn verb<I: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = I>,
    ) -> Result<String> {
        run(self.command(arguments), VERB_LIMIT)
    }

    /// Creates a store with volumes.
    pub(crate) fn create(
        &self,
        store: &Path,
        size: &str,
        more: &[&str],
        volumes: &[(&str, String)],
    ) -> Result<()> {
        let store = path(store);
        self.verb([&["create", "block", store, "--size", size], more].concat())?;
        for (name, size) in volumes {
            self.verb(["volume", "create", store, name, "--size", size])?;
        }
        Ok(())
    }

    /// The answer of `status --json`.
    pub(crate) fn status(&self, store: &Path) -> Result<Value> {
        let mut command = self.command(["status", path(store), "--json"]);
        command.stderr(Stdio::null());
        let output = command.output().context("onefold status")?;
        ensure!(output.status.success(), "onefold status failed ({})", output.status);
        serde_json::from_slice(&output.stdout).context("onefold status --json")
    }

    /// Verifies a store that is not served.
    pub(crate) fn check(&self, store: &Path) -> Result<String> {
        self.verb(["check", path(store)])
    }

    /// Serves a store, and returns when it answers. The server's output goes to a file beside the
    /// store.
    pub(crate) fn serve(
        &self,
        store: &Path,
        listeners: &[String],
        more: &[&str],
    ) -> Result<Server> {
        self.serve_to(path(store), &store.with_extension("log"), listeners, more)
    }

    /// The same for a store that is no file, with a file for what the server prints.
    pub(crate) fn serve_to(
        &self,
        store: &str,
        log: &Path,
        listeners: &[String],
        more: &[&str],
    ) -> Result<Server> {
        let log = log.to_owned();
        let mut command = self.command(["serve", store]);
        for listener in listeners {
            command.args(["--nbd", listener]);
        }
        let of_network = listeners.iter().any(|listener| listener.starts_with("tcp:"));
        if of_network && !more.contains(&"--tls") {
            command.arg("--insecure");
        }
        command.args(more);
        let file = fs::OpenOptions::new().create(true).append(true).open(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let what = describe(&command);
        let running = spawn(&mut command)?;
        let mut server = Server { running, log, what };
        for listener in listeners {
            server.wait_for(listener)?;
        }
        Ok(server)
    }
}

/// Where the servers of this run take commands.
pub(crate) fn runtime_directory() -> PathBuf {
    std::env::temp_dir().join(format!("onefold-xtask-{}", rustix::process::geteuid().as_raw()))
}

/// A path as text; ours have no other characters.
pub(crate) fn path(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// A server at work. Dropping it kills it.
pub(crate) struct Server {
    running: Running,
    log: PathBuf,
    what: String,
}

impl Server {
    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.running.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    fn wait_for(&mut self, listener: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            let there = match listener.split_once(':') {
                Some(("unix", path)) => std::os::unix::net::UnixStream::connect(path).is_ok(),
                Some(("tcp", address)) => std::net::TcpStream::connect(address).is_ok(),
                _ => bail!("a listener is unix:PATH or tcp:ADDRESS, not '{listener}'"),
            };
            if there {
                return Ok(());
            }
            if let Some(status) = self.running.wait(Duration::ZERO)? {
                bail!("{} ended at once ({status}):\n{}", self.what, self.said());
            }
            ensure!(
                begun.elapsed() < START_LIMIT,
                "{} does not answer on {listener}:\n{}",
                self.what,
                self.said()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until it ends by itself.
    pub(crate) fn ended(&mut self, limit: Duration) -> Result<std::process::ExitStatus> {
        self.running
            .wait(limit)?
            .with_context(|| format!("{} does not end:\n{}", self.what, self.said()))
    }

    /// The output so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it with SIGKILL, whatever it is doing.
    pub(crate) fn kill(mut self) {
        self.running.kill();
    }

    /// Ends it cleanly with SIGTERM.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.end()
    }

    /// The same, of one that is about to be replaced.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.running.signal(Signal::TERM);
        match self.running.wait(STOP_LIMIT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{} ended with {status}:\n{}", self.what, self.said()),
            None => bail!("{} does not end on SIGTERM:\n{}", self.what, self.said()),
        }
    }
}

/// The URI of a volume behind a UNIX socket.
pub(crate) fn uri(socket: &Path, volume: &str) -> String {
    format!("nbd+unix:///{volume}?socket={}", socket.display())
}

/// Compares a volume with a file, byte by byte, through our own client.
pub(crate) fn compare(socket: &Path, volume: &str, file: &Path) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let mut client = Client::connect(socket, volume)?;
    let image = fs::File::open(file)?;
    let bytes = image.metadata()?.len();
    ensure!(bytes <= client.size(), "the volume is smaller than the image");
    let mut expected = vec![0; crate::nbd::REQUEST_BYTES];
    client.read_all(bytes, |offset, found| {
        let expected = &mut expected[..found.len()];
        image.read_exact_at(expected, offset)?;
        if found == expected {
            return Ok(());
        }
        match found.iter().zip(&*expected).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => bail!(
                "volume '{volume}' differs from {} at byte {}",
                file.display(),
                offset + at as u64
            ),
        }
    })?;
    client.disconnect()
}
