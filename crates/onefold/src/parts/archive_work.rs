//! The backup volumes of an archive at work: a thread writes back what clients wrote, and another
//! one commits and renews.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use onefold_archive::{ArchiveExports, Ingest, Volumes};
use onefold_core::{Error, Result};

use super::archive_dir::now;

/// The time between two looks at the work that is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Volumes with their two threads.
pub struct ArchiveWork {
    volumes: Arc<Volumes>,
    exports: Arc<ArchiveExports>,
    /// Dropped to end the tending thread.
    stop: Option<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl ArchiveWork {
    /// Puts the volumes of the archive's ingesting process to work.
    ///
    /// # Errors
    /// `Io` when no thread can be started.
    pub fn start(ingest: &Arc<Ingest>) -> Result<ArchiveWork> {
        let volumes = Volumes::new(ingest, now());
        let exports = Arc::new(ArchiveExports(volumes.clone()));
        let (stop, stopped) = mpsc::channel();
        let mut work = ArchiveWork { volumes, exports, stop: Some(stop), threads: Vec::new() };
        let writing_back = work.volumes.clone();
        work.spawn("drain", move || writing_back.run_write_back())?;
        let tended = work.volumes.clone();
        work.spawn("volumes", move || tend(&tended, &stopped))?;
        Ok(work)
    }

    fn spawn(&mut self, name: &str, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(job);
        self.threads
            .push(thread.map_err(|e| Error::from_io("cannot start a thread for the volumes", e))?);
        Ok(())
    }

    /// The volumes.
    #[must_use]
    pub fn volumes(&self) -> &Arc<Volumes> {
        &self.volumes
    }

    /// The same for servers.
    #[must_use]
    pub fn exports(&self) -> &Arc<ArchiveExports> {
        &self.exports
    }

    /// Ends the threads, makes everything durable and gives the ingesting process up. What a write-back
    /// lost is told to the log.
    ///
    /// # Errors
    /// The reason when the volumes stopped, and those of the system.
    pub fn close(mut self) -> Result<()> {
        self.end();
        let closed = self.volumes.close();
        log_losses(&self.volumes);
        closed
    }

    fn end(&mut self) {
        drop(self.stop.take());
        self.volumes.stop();
        // Their panics, if any, were printed.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Drop for ArchiveWork {
    /// Leaves the volumes as after a crash, which loses nothing that was flushed.
    fn drop(&mut self) {
        self.end();
    }
}

/// Commits and renews until the other side of `ended` is gone. Why the volumes stopped is said
/// once.
fn tend(volumes: &Volumes, ended: &mpsc::Receiver<()>) {
    let mut told = false;
    while ended
        .recv_timeout(LOOK_EVERY)
        .is_err_and(|error| error == mpsc::RecvTimeoutError::Timeout)
    {
        match volumes.tend(now()) {
            Ok(()) => {}
            Err(error) if told => tracing::debug!("{error}"),
            Err(error) => tracing::warn!("{error}"),
        }
        log_losses(volumes);
        if let Some(reason) = volumes.stopped()
            && !std::mem::replace(&mut told, true)
        {
            tracing::error!("{reason}; reads go on");
        }
    }
}

/// Tells the log each loss once, whichever client or thread met it.
fn log_losses(volumes: &Volumes) {
    for loss in volumes.take_losses() {
        tracing::warn!("{}; what was written to a part of the block is lost", loss.error);
    }
}
