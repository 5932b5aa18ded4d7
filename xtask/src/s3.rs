//! The step `s3`: archives in a bucket, against a server that speaks the protocol of S3, on the loopback
//! address.
//!
//! The server is moto, a Python package, in an environment of its own below `target`. `xtask/moto.txt` names it
//! and all that it needs, with their versions and hashes: nothing else is installed.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    machine,
    program::{Running, cargo, run, spawn},
    test::Tally,
    tests::counted,
};

/// Longest that installing the server may take.
const INSTALL: Duration = Duration::from_secs(600);

/// Longest that it may take to answer.
const UP: Duration = Duration::from_secs(60);

/// The bucket.
const BUCKET: &str = "onefold-test";

/// What is installed.
const PACKAGES: &str = "xtask/moto.txt";

fn environment() -> PathBuf {
    machine::root().join("target").join("moto")
}

/// The server's program, of the versions that are named now.
fn installed() -> Result<PathBuf> {
    let wanted = fs::read_to_string(machine::root().join(PACKAGES)).context(PACKAGES)?;
    // Written last, so that an installation that was cut off is begun anew.
    let done = environment().join("installed.txt");
    if fs::read_to_string(&done).ok().as_ref() != Some(&wanted) {
        let mut make = Command::new("python3");
        make.args(["-m", "venv", "--clear"]).arg(environment());
        run(make, INSTALL).context("python3 -m venv")?;
        let mut install = Command::new(environment().join("bin").join("python"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        install.args(["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement"]);
        install.arg(machine::root().join(PACKAGES));
        run(install, INSTALL).context("installing moto")?;
        fs::write(&done, &wanted).context("the note of what is installed")?;
    }
    Ok(environment().join("bin").join("moto_server"))
}

/// A server with one bucket.
struct Server {
    _running: Running,
    port: u16,
}

impl Server {
    fn start() -> Result<Server> {
        let server = installed()?;
        // The port is free now; another process that takes it meanwhile makes the step fail.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(server);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let running = spawn(&mut command)?;
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(begun.elapsed() < UP, "the server of S3 does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        let server = Server { _running: running, port };
        server.make_bucket()?;
        Ok(server)
    }

    fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn make_bucket(&self) -> Result<()> {
        let mut python = Command::new(environment().join("bin").join("python"));
        let script = "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1])\
                      .create_bucket(Bucket=sys.argv[2])";
        python.args(["-c", script, &self.address(), BUCKET]);
        self.describe(&mut python);
        match run(python, UP) {
            Ok(_) => Ok(()),
            Err(error) => bail!("the bucket can't be made: {error:#}"),
        }
    }

    /// Tells a program where the server is, and credentials that it takes.
    fn describe(&self, command: &mut Command) {
        command
            .env("AWS_ENDPOINT_URL", self.address())
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_ACCESS_KEY_ID", "onefold")
            .env("AWS_SECRET_ACCESS_KEY", "onefold-secret")
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .env("AWS_REGION", "us-east-1")
            .env("ONEFOLD_S3", BUCKET);
    }
}

/// Runs the tests of stores and those of the command against the server.
pub(crate) fn step() -> Result<Tally> {
    let server = Server::start()?;
    // One build for both: with the command the crate has its feature s3.
    let mut command =
        cargo(["test", "--quiet", "--locked", "-p", "onefold-cli", "-p", "onefold-bucket"]);
    command.args(["--test", "buckets", "--test", "s3"]);
    server.describe(&mut command);
    counted(command)
}
