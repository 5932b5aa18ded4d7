//! The clients that people use, against the product from outside: libnbd's tools, qemu's, fio, and
//! real file systems.

mod archive;
mod file_system;
pub(crate) mod iscsi;
mod tls;
mod tools;

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    cleanup::Scratch,
    product::{Build, Onefold, Server},
    test::Tally,
};

/// Longest that one client may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// The ways in which metadata is kept that are not the default, as options of `onefold create`.
pub(crate) const SCHEMES: [(&str, &[&str]); 4] = [
    ("thin, tables in place", &["--leftover", "table", "--layout", "split"]),
    ("ordered", &["--scheme", "ordered"]),
    ("cow", &["--scheme", "cow"]),
    ("ordermerge", &["--scheme", "ordermerge"]),
];

pub(crate) use file_system::{Attached, Kind, churn as churn_file_system};

/// A store of its own for a few checks, served on both kinds of socket.
pub(crate) struct Served {
    /// The command.
    pub(crate) onefold: Onefold,
    /// Where files may lie; removed at the end.
    pub(crate) scratch: Scratch,
    /// The store.
    pub(crate) store: PathBuf,
    /// The UNIX socket.
    pub(crate) socket: PathBuf,
    /// The TCP address.
    pub(crate) address: String,
    server: Option<Server>,
}

impl Served {
    /// Creates a store with volumes, and serves it. `options` are those of `onefold create`, beside
    /// its size.
    pub(crate) fn new(
        name: &str,
        store_size: &str,
        options: &[&str],
        volumes: &[(&str, &str)],
    ) -> Result<Served> {
        let onefold = Onefold::build(Build::Test)?;
        let scratch = Scratch::new(name)?;
        let store = scratch.file("onefold.store");
        let volumes: Vec<(&str, String)> =
            volumes.iter().map(|&(name, size)| (name, size.to_owned())).collect();
        onefold.create(
            &store,
            store_size,
            &[&["--preallocate", "none"], options].concat(),
            &volumes,
        )?;
        let socket = scratch.file("onefold.sock");
        // A port that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut served = Served { onefold, scratch, store, socket, address, server: None };
        served.start()?;
        Ok(served)
    }

    /// Serves the store, which must not be served.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.start_with(&[])
    }

    /// The same with more options of `onefold serve`.
    pub(crate) fn start_with(&mut self, more: &[&str]) -> Result<()> {
        let listeners =
            [format!("unix:{}", self.socket.display()), format!("tcp:{}", self.address)];
        self.server = Some(self.onefold.serve(&self.store, &listeners, more)?);
        Ok(())
    }

    /// Ends the server cleanly.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.server.take().context("the server does not run")?.stop()
    }

    /// Ends the server with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.server.take().context("the server does not run")?.kill();
        Ok(())
    }

    /// Ends the server cleanly, and verifies the whole store.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.stop()?;
        ensure!(!self.socket.exists(), "the server left its socket behind");
        self.onefold.check(&self.store).map(|_| ())
    }

    /// A file beside the store.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.scratch.file(name)
    }

    /// The URI of a volume on each kind of socket.
    pub(crate) fn uris(&self, volume: &str) -> [(&'static str, String); 2] {
        [
            ("unix", crate::product::uri(&self.socket, volume)),
            ("tcp", format!("nbd://{}/{volume}", self.address)),
        ]
    }
}

/// Runs a check, prints how it went, and counts it.
pub(crate) fn check(tally: &mut Tally, name: &str, run: impl FnOnce() -> Result<()>) {
    let begun = Instant::now();
    match run() {
        Ok(()) => {
            tally.passed += 1;
            println!("    {name}: ok ({:.1} s)", begun.elapsed().as_secs_f64());
        }
        Err(error) => {
            tally.failed += 1;
            println!("    {name}: FAILED: {error:#}");
        }
    }
}

/// libnbd, qemu and fio, each on UNIX and TCP sockets; on a served archive; and by TLS.
pub(crate) fn tools() -> Result<Tally> {
    let mut tally = tools::run()?;
    archive::run(&mut tally)?;
    tls::run(&mut tally)?;
    Ok(tally)
}

/// ext4 and XFS over nbdfuse and a loop device, and a volume by iSCSI, with a server that is killed.
pub(crate) fn file_systems() -> Result<Tally> {
    let mut tally = file_system::run()?;
    iscsi::run(&mut tally);
    Ok(tally)
}

/// Bytes of which no two blocks are the same, with a hole in the second quarter; the last quarter
/// repeats the first.
pub(crate) fn sample(file: &Path, bytes: usize) -> Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut sample: Vec<u8> = Vec::with_capacity(bytes);
    for _ in 0..bytes / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sample.extend_from_slice(&state.to_le_bytes());
    }
    sample[bytes / 4..bytes / 2].fill(0);
    sample.copy_within(..bytes / 4, bytes / 4 * 3);
    std::fs::write(file, sample).with_context(|| format!("writing {}", file.display()))
}
