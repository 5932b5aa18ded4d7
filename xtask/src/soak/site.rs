//! A store of one of the engines, its server, and what operators do to it.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::{
    cleanup::Scratch,
    clients,
    nbd::Client,
    product::{Build, Onefold, Server, path},
    program::run,
};

/// Longest that verifying a store may take: it has what clients wrote for an hour, on a busy machine.
const CHECK_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Block,
    Archive,
    Cluster,
}

impl Engine {
    pub(super) const ALL: [Engine; 3] = [Engine::Block, Engine::Archive, Engine::Cluster];

    pub(super) fn name(self) -> &'static str {
        match self {
            Engine::Block => "block",
            Engine::Archive => "archive",
            Engine::Cluster => "cluster",
        }
    }

    pub(super) fn named(name: &str) -> Option<Engine> {
        Engine::ALL.into_iter().find(|engine| engine.name() == name)
    }

    /// Bytes of the large volume.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Engine::Block => 1 << 40,
            Engine::Archive => 1 << 36,
            Engine::Cluster => 1 << 34,
        }
    }

    fn create(self, store: &str) -> Vec<&str> {
        match self {
            Engine::Block => {
                vec!["create", "block", store, "--size", "64G", "--preallocate", "none"]
            }
            Engine::Archive => vec!["create", "archive", store],
            Engine::Cluster => vec!["create", "cluster", store],
        }
    }

    /// A folder has no control socket: its volumes are managed while it is not served, and have no
    /// other names.
    fn is_managed_while_served(self) -> bool {
        self != Engine::Cluster
    }
}

/// The store, and its server.
pub(super) struct Site {
    engine: Engine,
    onefold: Onefold,
    scratch: Scratch,
    store: PathBuf,
    socket: PathBuf,
    server: Option<Server>,
}

impl Site {
    pub(super) fn new(engine: Engine) -> Result<Site> {
        let onefold = Onefold::build(Build::Test)?;
        let scratch = Scratch::new("soak")?;
        let (store, socket) = (scratch.file("store"), scratch.file("soak.sock"));
        onefold.verb(engine.create(path(&store)))?;
        let site = Site { engine, onefold, scratch, store, socket, server: None };
        site.volume("create", "large", &["--size", &engine.bytes().to_string()])?;
        site.volume("create", "fs", &["--size", "2G"])?;
        let mut site = site;
        site.start()?;
        Ok(site)
    }

    fn volume(&self, verb: &str, name: &str, more: &[&str]) -> Result<()> {
        let words = [&["volume", verb, path(&self.store), name], more].concat();
        self.onefold.verb(words).map(|_| ())
    }

    fn start(&mut self) -> Result<()> {
        let listener = format!("unix:{}", path(&self.socket));
        self.server = Some(self.onefold.serve_to(
            path(&self.store),
            &self.scratch.file("server.log"),
            &[listener],
            &[],
        )?);
        Ok(())
    }

    pub(super) fn connect(&self) -> Result<Client> {
        Client::connect(&self.socket, "large")
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        self.server.take().context("the server does not run")?.kill();
        self.start()
    }

    pub(super) fn restart(&mut self) -> Result<()> {
        self.server.take().context("the server does not run")?.stop()?;
        self.start()
    }

    /// Another volume is made, resized, renamed and deleted.
    pub(super) fn volumes(&mut self, turn: u64) -> Result<()> {
        let served = self.engine.is_managed_while_served();
        if !served {
            return Ok(());
        }
        let name = format!("other{turn}");
        self.volume("create", &name, &["--size", "1G"])?;
        Client::connect(&self.socket, &name)?
            .write_all([(0, &[7; 65536][..]), (1 << 29, &[8; 4096][..])].into_iter())?;
        self.volume("resize", &name, &["--size", "256M", "--force"])?;
        self.volume("resize", &name, &["--size", "2G"])?;
        self.volume("rename", &name, &["renamed"])?;
        let mut client = Client::connect(&self.socket, "renamed")?;
        client.read_range(1 << 29, 4096, |_, found| {
            ensure!(found.iter().all(|byte| *byte == 0), "what was cut off is there again");
            Ok(())
        })?;
        client.disconnect()?;
        self.volume("delete", "renamed", &["--force"])
    }

    /// A file system is made, filled, half emptied, trimmed and checked.
    pub(super) fn file_system(&mut self) -> Result<()> {
        clients::churn_file_system(self.scratch.path(), &self.socket, "fs")
    }

    /// Asks for the status, where the server has a control socket.
    pub(super) fn status(&mut self) -> Result<()> {
        if self.engine.is_managed_while_served() {
            self.onefold.verb(["status", path(&self.store), "--json"])?;
        }
        Ok(())
    }

    /// Ends the server and verifies the store.
    pub(super) fn check(&mut self) -> Result<()> {
        self.server.take().context("the server does not run")?.stop()?;
        let verb = match self.engine {
            Engine::Cluster => "repair",
            _ => "check",
        };
        run(self.onefold.command([verb, path(&self.store)]), CHECK_LIMIT).map(|_| ())
    }
}
