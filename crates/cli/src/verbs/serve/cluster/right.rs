//! What a server has to give back at its end, however it ends: its volumes, what a command of the operator did at
//! the takeover, and the right to serve.

use onefold::parts::{
    cluster_store::Backing,
    cluster_work::{ClusterWork, Heart},
};
use onefold_console::failure::Failure;
use onefold_core::Error;

use super::{hook::Hook, stops::End};

/// Why a server serves no more, as its command finds it in `ONEFOLD_WHY`.
#[derive(Clone, Copy)]
pub(super) enum Why {
    /// Another one took over.
    Replaced,
    /// A signal came.
    Asked,
    /// It failed.
    Failed,
}

impl Why {
    fn word(self) -> &'static str {
        match self {
            Why::Replaced => "replaced",
            Why::Asked => "asked",
            Why::Failed => "failed",
        }
    }
}

/// The volumes at work, and the right to serve. Dropped, as after an error at the start, it detaches the volumes
/// and lets another server take over: that one need not wait for the lease, and shuts nobody out.
#[derive(Default)]
pub(super) struct Right {
    pub(super) work: Option<ClusterWork>,
    pub(super) heart: Option<Heart>,
    /// The command of `--on-replaced`, once a takeover began.
    pub(super) way_back: Option<Hook>,
}

impl Right {
    /// Runs the command of `--on-replaced`, once for each takeover. When it fails the log says so, and all else
    /// goes on.
    pub(super) fn go_back(&mut self, why: Why) {
        let Some(mut hook) = self.way_back.take() else { return };
        hook.variables.push(("ONEFOLD_WHY", why.word().to_owned()));
        // The server is ending already: nothing ends the command before its time is over.
        let mut waits = |time| {
            std::thread::sleep(time);
            None
        };
        if let Err(error) = hook.run(&mut waits) {
            tracing::error!("{error}");
        }
    }

    /// Detaches the volumes, runs the command, and then lets another server take over.
    ///
    /// # Errors
    /// When the volumes can't be detached, or the store takes no more writes.
    pub(super) fn close(&mut self, backing: &Backing, end: End) -> Result<End, Failure> {
        if matches!(end, End::Lost(_)) {
            // The other server has clients already.
            self.go_back(Why::Replaced);
        }
        let (work, heart) = (self.work.take(), self.heart.take());
        let closed = work.map_or(Ok(()), ClusterWork::close);
        self.go_back(Why::Asked);
        if let End::Lost(error) = end {
            return Ok(End::Lost(error));
        }
        if let Some(error) = backing.stopped().map(taken_no_more) {
            return Err(error.into());
        }
        closed?;
        heart.map_or(Ok(()), Heart::give_up)?;
        Ok(End::Asked)
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        let (work, heart) = (self.work.take(), self.heart.take());
        let closed = work.map_or(Ok(()), ClusterWork::close);
        self.go_back(Why::Failed);
        // The cause of the end says more. A volume that is still open is its server's: then the right ends
        // when the beats do.
        if let (Ok(()), Some(heart)) = (closed, heart) {
            let _ = heart.fail();
        }
    }
}

/// The error of a folder that takes no more writes.
pub(super) fn taken_no_more(error: Error) -> Error {
    error.context("the store takes no more writes until it is opened again")
}
