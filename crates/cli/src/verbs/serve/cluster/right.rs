//! What a server has to give back at its end, however it ends: its volumes, what a command of the operator did at
//! the takeover, and the right to serve.

use onefold::parts::{
    cluster_store::Backing,
    cluster_work::{ClusterWork, Heart},
};
use onefold_console::failure::Failure;
use onefold_core::Error;

use super::{
    stops::End,
    way_back::{WayBack, Why},
};

/// The volumes at work, and the right to serve. Dropped, as after an error at the start, it detaches the volumes
/// and lets another server take over: that one need not wait for the lease, and shuts nobody out.
pub(super) struct Right {
    pub(super) work: Option<ClusterWork>,
    pub(super) heart: Option<Heart>,
    pub(super) way_back: WayBack,
}

impl Right {
    /// Runs the command, detaches the volumes, and then lets another server take over. Clients are gone, and the
    /// command waits for no cluster.
    ///
    /// # Errors
    /// When the volumes can't be detached, or the store takes no more writes.
    pub(super) fn close(&mut self, backing: &Backing, end: End) -> Result<End, Failure> {
        self.way_back.go(match end {
            End::Lost(_) => Why::Replaced,
            End::Asked => Why::Asked,
        });
        let (work, heart) = (self.work.take(), self.heart.take());
        let closed = work.map_or(Ok(()), ClusterWork::close);
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
        self.way_back.go(Why::Failed);
        let (work, heart) = (self.work.take(), self.heart.take());
        let closed = work.map_or(Ok(()), ClusterWork::close);
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
