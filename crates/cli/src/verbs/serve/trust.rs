//! The files that say who may use a server, and the signal at which it reads them again.
//!
//! At SIGHUP the server reads the files of `--tls` and of `--access` again; if one can't be read, all stays
//! as it was. Then the connections end that would not be let in any more. Without such files SIGHUP leaves a
//! service alone, and ends a server on a terminal.

use std::{path::Path, sync::Arc};

use onefold::parts::control::Heard;
use onefold_backend::signals::Hangups;
use onefold_console::access::{Access, Usual};
use onefold_core::{Error, Result};
use onefold_serve::{
    nbd::{Rights, Watch},
    tls::Credentials,
};
use parking_lot::Mutex;

use super::{append_only::ReadOnly, auditor::Auditor};

/// The files that say who may do what, as the whole server uses them.
#[derive(Clone)]
pub(super) struct Trust {
    pub(super) credentials: Option<Arc<Credentials>>,
    access: Option<Arc<Access>>,
    /// SIGHUP, where there are files to be read again, and in a service. Elsewhere the signal may say
    /// that the terminal is gone, and is not taken. Until [`follow_hangups`](Trust::follow_hangups) takes
    /// this, a SIGHUP waits, and does not end a service that opens its store.
    hangups: Arc<Mutex<Option<Hangups>>>,
    /// The connections of the server at work; one that stands by again makes another server.
    watch: Arc<Mutex<Option<Watch>>>,
    /// The log of `--audit`, which tells who did what.
    pub(super) audit: Option<Arc<Auditor>>,
}

impl Trust {
    /// Reads the files of `--tls` and `--access`, and opens the log of `--audit`.
    ///
    /// # Errors
    /// As [`Credentials::read`], [`Access::read`] and [`Auditor::open`].
    pub(super) fn read(
        tls: Option<&Path>,
        access: Option<&Path>,
        audit: Option<&Path>,
        in_service: bool,
    ) -> Result<Trust> {
        let audit = audit.map(Auditor::open).transpose()?;
        let credentials = tls.map(Credentials::read).transpose()?;
        let access = access.map(Access::read).transpose()?;
        let (credentials, access) = (credentials.map(Arc::new), access.map(Arc::new));
        let reads = credentials.is_some() || access.is_some() || in_service;
        let hangups = reads.then(Hangups::install).transpose()?;
        let hangups = Arc::new(Mutex::new(hangups));
        Ok(Trust { credentials, access, hangups, watch: Arc::default(), audit })
    }

    /// The listener that writes commands to the audit log, if there is one.
    pub(super) fn heard(&self) -> Option<Heard> {
        self.audit.as_ref().map(Auditor::heard)
    }

    /// Writes to the audit log, if there is one, what the server does with a store.
    pub(super) fn tells(&self, event: &str, store: &Path) {
        if let Some(audit) = &self.audit {
            audit.tells(event, &store.display().to_string());
        }
    }

    /// Writes to the audit log that the server ended its work on a store. Another server may write the
    /// log from now on.
    pub(super) fn ended(&self, store: &Path) {
        self.tells("ended", store);
        if let Some(audit) = &self.audit {
            audit.end();
        }
    }

    /// The rights of clients.
    pub(super) fn rights(&self, append_only: bool) -> Arc<dyn Rights> {
        let rights: Arc<dyn Rights> = match &self.access {
            Some(access) => access.clone(),
            None => Arc::new(Usual::default()),
        };
        if append_only { Arc::new(ReadOnly(rights)) } else { rights }
    }

    /// Starts a thread that reads the files again at each SIGHUP, and ends connections of clients who
    /// lost their right.
    ///
    /// # Errors
    /// `Io`: no thread can be started.
    pub(super) fn follow_hangups(&self, watch: Watch) -> Result<()> {
        *self.watch.lock() = Some(watch);
        let Some(mut hangups) = self.hangups.lock().take() else { return Ok(()) };
        let trust = self.clone();
        let follow = move || {
            loop {
                hangups.wait();
                match trust.read_again() {
                    Ok(()) => tracing::info!("read the rights again: SIGHUP"),
                    Err(error) => tracing::error!("the rights stay as they were: {error}"),
                }
                if let Some(watch) = trust.watch.lock().as_ref() {
                    watch.look_again();
                }
            }
        };
        std::thread::Builder::new()
            .name("rights".to_owned())
            .spawn(follow)
            .map(drop)
            .map_err(|error| Error::from_io("cannot start a thread", error))
    }

    /// Reads the files again for a server that begins to listen after a while; when one can't be read, all stays
    /// as it was.
    pub(super) fn read_before_listening(&self) {
        if let Err(error) = self.read_again() {
            tracing::error!("the rights stay as they were: {error}");
        }
    }

    fn read_again(&self) -> Result<()> {
        // All of it or nothing, as far as reading goes.
        let access = self.access.as_ref().map(|access| access.read_again()).transpose()?;
        if let Some(credentials) = &self.credentials {
            credentials.reload()?;
        }
        if let (Some(access), Some(read)) = (&self.access, access) {
            access.replace(read);
        }
        Ok(())
    }
}
