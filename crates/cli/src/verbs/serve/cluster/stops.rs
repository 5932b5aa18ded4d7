//! What ends a server of a cluster store: signals, and errors after which nothing is taken from it any more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use onefold_backend::signals::{StopSignals, end_now};
use onefold_core::Error;

/// How long after a signal a server that stands by may wait for a cluster. It has no clients, and another one may
/// stop it anywhere: the table of `cluster/gateway.rs` has what becomes of a takeover under way.
const STANDING_MOST: Duration = Duration::from_secs(5);

/// The same for one that serves. Nothing that it acknowledged is lost when it ends before it detached its
/// volumes: the next server looks through them.
const SERVING_MOST: Duration = Duration::from_secs(90);

/// Between two looks whether that time is over.
const LOOK: Duration = Duration::from_millis(100);

/// How a server ended.
pub(super) enum End {
    /// By a signal.
    Asked,
    /// Nothing of it is applied any more.
    Lost(Error),
}

/// Signals, and errors after which nothing is taken from this server any more.
pub(super) struct Stops {
    end: mpsc::Sender<Option<Error>>,
    ended: mpsc::Receiver<Option<Error>>,
    serves: Arc<AtomicBool>,
}

impl Stops {
    /// Takes signals from now on. With `bounded` the process ends after some time even when the store does not
    /// answer.
    pub(super) fn install(bounded: bool) -> Result<Stops, Error> {
        let mut signals = StopSignals::install()?;
        let (end, ended) = mpsc::channel();
        let serves = Arc::new(AtomicBool::new(false));
        let (signalled, serving) = (end.clone(), serves.clone());
        let waiting = std::thread::Builder::new().name("signals".into()).spawn(move || {
            signals.wait();
            let begun = Instant::now();
            let _ = signalled.send(None);
            // Until the end of the process, so that a second signal ends it at once.
            loop {
                std::thread::sleep(LOOK);
                if bounded {
                    end_in_time(begun, serving.load(Relaxed));
                }
            }
        });
        waiting.map_err(|e| Error::from_io("cannot start a thread for signals", e))?;
        Ok(Stops { end, ended, serves })
    }

    /// Says that this server has clients, or will soon, or has none any more.
    pub(super) fn serves(&self, serves: bool) {
        self.serves.store(serves, Relaxed);
    }

    /// Where one says that nothing is taken from this server any more. The other side is gone only when the
    /// server is ending anyway.
    pub(super) fn lost(&self) -> impl FnOnce(Error) + Send + 'static {
        let end = self.end.clone();
        move |error| {
            let _ = end.send(Some(error));
        }
    }

    /// True when a signal came; errors that came before are forgotten.
    pub(super) fn is_asked(&self) -> bool {
        self.ended.try_iter().any(|ended| ended.is_none())
    }

    /// Waits so long for an end.
    pub(super) fn within(&self, time: Duration) -> Option<End> {
        let ended = self.ended.recv_timeout(time).ok()?;
        Some(ended.map_or(End::Asked, End::Lost))
    }
}

/// Ends the process when it has not ended in time after a signal. Its other threads wait for the cluster, so that
/// nothing of the end is done by them.
fn end_in_time(begun: Instant, serves: bool) {
    match serves {
        false if begun.elapsed() >= STANDING_MOST => {
            tracing::info!("the cluster does not answer; ending without it");
            end_now(0);
        }
        true if begun.elapsed() >= SERVING_MOST => {
            tracing::error!(
                "the cluster does not answer; ending without detaching volumes. What was acknowledged is \
                 durable, and the next server looks through them"
            );
            end_now(1);
        }
        _ => {}
    }
}
