//! Serving volumes to other programs.

use std::{path::Path, time::Duration};

use onefold_backend::random::random_bytes;
use onefold_core::Result;
use onefold_serve::nbd::{self, Limits};

use crate::store::{Engine, Store};

/// How long clients may take to go when a server stops.
const CLIENT_GRACE: Duration = Duration::from_secs(5);

/// A server that speaks NBD, until it is stopped or dropped.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("backups");
/// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
/// let store = onefold::Store::open(&path)?;
/// store.create_volume("disk1", 1 << 30)?;
/// let server: onefold::Server = store.serve(folder.path().join("nbd.sock"))?;
/// assert!(folder.path().join("nbd.sock").exists());
/// server.stop()?;
/// store.close()?;
/// # Ok::<(), onefold::Error>(())
/// ```
pub struct Server {
    server: nbd::Server,
}

impl Store {
    /// Serves all volumes over NBD on the UNIX socket `path`, which only this user may use. The
    /// store must stay open until the server was stopped.
    ///
    /// # Errors
    /// `Exists`, `Denied`, `Io`: the socket can't be made. `Busy`: another process puts into the
    /// archive.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// let store = onefold::Store::open(&path)?;
    /// let server = store.serve(folder.path().join("nbd.sock"))?;
    /// // Clients connect to nbd+unix:///NAME?socket=…/nbd.sock.
    /// server.stop()?;
    /// store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn serve(&self, path: impl AsRef<Path>) -> Result<Server> {
        if let Engine::Block(store) = &self.engine {
            // Nobody learns from a full store what another volume holds.
            store.store().engine().keep_tenants_apart(random_bytes()?);
        }
        let mut server = nbd::Server::new(self.exports()?, Limits::default());
        server.add_unix(path.as_ref())?;
        server.start()?;
        Ok(Server { server })
    }
}

impl Server {
    /// Answers what has arrived, lets clients go, and removes the socket.
    ///
    /// # Errors
    /// `Busy`: a request is still at work.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("cluster");
    /// # onefold::create_cluster(&path)?;
    /// let store = onefold::Store::open(&path)?;
    /// store.serve(folder.path().join("nbd.sock"))?.stop()?;
    /// assert!(!folder.path().join("nbd.sock").exists());
    /// store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn stop(self) -> Result<()> {
        self.server.stop(CLIENT_GRACE)
    }
}
