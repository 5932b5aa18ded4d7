//! The volumes of a cluster store at work: leases are renewed, and what is due is done, by a thread
//! of their own.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use onefold_cluster::{ClusterExports, Gateway, Mode, Session};
use onefold_core::{Error, Kind, Result};

/// Between two looks for work on the volumes that are open.
const TEND: Duration = Duration::from_millis(200);

/// The locks on volumes are renewed so often in a lease.
const RENEWALS: u32 = 3;

/// Between two tries after an error.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Volumes with the thread that tends them.
pub struct ClusterWork {
    exports: Arc<ClusterExports>,
    /// Dropped to end the thread.
    stop: Option<mpsc::Sender<()>>,
    tender: Option<JoinHandle<()>>,
}

impl ClusterWork {
    /// Puts the volumes to work. `fenced` hears of the error after which the cluster takes nothing
    /// from this session any more.
    ///
    /// # Errors
    /// `Io` when no thread can be started.
    pub fn start(
        session: Arc<Session>,
        mode: Mode,
        fenced: impl FnOnce(Error) + Send + 'static,
    ) -> Result<ClusterWork> {
        let renew = session.volume_lease() / RENEWALS;
        let exports = Arc::new(ClusterExports::new(session, mode));
        let (stop, stopped) = mpsc::channel();
        let tended = exports.clone();
        let tender = std::thread::Builder::new().name("volumes".into()).spawn(move || {
            if let Err(error) = tend(&tended, renew, &stopped) {
                fenced(error);
            }
        });
        let tender =
            tender.map_err(|e| Error::from_io("cannot start a thread for the volumes", e))?;
        Ok(ClusterWork { exports, stop: Some(stop), tender: Some(tender) })
    }

    /// The volumes.
    #[must_use]
    pub fn exports(&self) -> &Arc<ClusterExports> {
        &self.exports
    }

    /// Ends the thread; volumes stay attached.
    pub fn stop_tending(&mut self) {
        drop(self.stop.take());
        if let Some(tender) = self.tender.take() {
            // Its panic, if any, was printed.
            let _ = tender.join();
        }
    }

    /// Makes everything durable and detaches the volumes.
    ///
    /// # Errors
    /// The errors of the cluster.
    pub fn close(mut self) -> Result<()> {
        self.stop_tending();
        self.exports.close()
    }
}

impl Drop for ClusterWork {
    fn drop(&mut self) {
        self.stop_tending();
    }
}

/// Between two signs of life of a server that others stand by for.
const BEAT: Duration = Duration::from_secs(1);

/// The right to serve a store that others stand by for, shown by a thread of its own: nothing else keeps it
/// waiting.
pub struct Heart {
    gateway: Arc<Gateway>,
    /// Dropped to end the thread.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    /// Begins to show that this session lives. `replaced` hears of the error after which another one serves.
    ///
    /// # Errors
    /// `Io` when no thread can be started.
    pub fn start(gateway: Gateway, replaced: impl FnOnce(Error) + Send + 'static) -> Result<Heart> {
        let gateway = Arc::new(gateway);
        let (stop, stopped) = mpsc::channel::<()>();
        let beats = gateway.clone();
        let beat = move || {
            let goes_on = || stopped.recv_timeout(BEAT) == Err(mpsc::RecvTimeoutError::Timeout);
            while goes_on() {
                match beats.beat() {
                    Ok(()) => {}
                    Err(error) if error.kind() == Kind::Stopped => return replaced(error),
                    Err(error) => tracing::warn!("{error}"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("sign of life".into()).spawn(beat);
        let thread =
            thread.map_err(|e| Error::from_io("cannot start a thread for signs of life", e))?;
        Ok(Heart { gateway, stop: Some(stop), thread: Some(thread) })
    }

    /// Clients are served: takeovers that failed before count no more.
    pub fn settle(&self) {
        self.gateway.settle();
    }

    /// Lets another server take over at once, after an orderly end; all volumes are closed.
    ///
    /// # Errors
    /// The store's.
    pub fn give_up(mut self) -> Result<()> {
        self.end();
        self.gateway.give_up()
    }

    /// Lets another server take over although this one had to end; all volumes are closed.
    ///
    /// # Errors
    /// The store's.
    pub fn fail(mut self) -> Result<()> {
        self.end();
        self.gateway.fail()
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic, if any, was printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.end();
    }
}

/// Does what is due for volumes that are open, until the other side of `stopped` is gone, or an
/// error after which nothing is taken from us any more.
fn tend(exports: &ClusterExports, renew: Duration, stopped: &mpsc::Receiver<()>) -> Result<()> {
    let mut renewed = Instant::now();
    let mut pause = TEND;
    let mut published = Instant::now();
    while stopped.recv_timeout(pause).is_err_and(|error| error == mpsc::RecvTimeoutError::Timeout) {
        let mut due = || -> Result<bool> {
            // A volume whose lock is lost keeps the others from nothing.
            let mut kept = Ok(());
            if renewed.elapsed() >= renew {
                kept = exports.renew();
                if kept.is_ok() {
                    renewed = Instant::now();
                }
            }
            if published.elapsed() >= Duration::from_secs(1) {
                exports.publish();
                published = Instant::now();
            }
            let more = exports.tend();
            kept.and(more)
        };
        pause = match due() {
            Ok(true) => Duration::ZERO,
            Ok(false) => TEND,
            Err(error) if error.kind() == Kind::NoSpace => TEND,
            Err(error) if error.kind() == Kind::Stopped => return Err(error),
            Err(error) => {
                tracing::warn!("{error}");
                TRY_AGAIN
            }
        };
    }
    Ok(())
}
