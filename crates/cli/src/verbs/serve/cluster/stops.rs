//! What ends a server of a cluster store: signals, and errors after which nothing is taken from it any more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use onefold_backend::{
    rados,
    signals::{StopSignals, end_now},
};
use onefold_core::Error;

use super::way_back::{WayBack, Why};

/// How long after a signal a server that stands by may wait for a cluster. It has no clients, and another one may
/// stop it anywhere: the table of `cluster/gateway.rs` has what becomes of a takeover under way.
const STANDING_MOST: Duration = Duration::from_secs(5);

/// How long after a signal, and after the last reply of the cluster, one that serves waits for the next one.
/// Nothing that it acknowledged is lost when it ends before it detached its volumes: the next server looks
/// through them.
const SILENT_MOST: Duration = Duration::from_secs(90);

/// How long after a signal it waits in all, less than the service manager.
const SERVING_MOST: Duration = Duration::from_secs(4 * 60);

/// So long before either the command of `--on-replaced` runs though the volumes are not detached: clients must not
/// find this host any more.
const GO_BACK: Duration = Duration::from_secs(30);

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
    way_back: WayBack,
}

impl Stops {
    /// Takes signals from now on. With `bounded` the process ends after some time even when the store does not
    /// answer.
    pub(super) fn install(bounded: bool) -> Result<Stops, Error> {
        let mut signals = StopSignals::install()?;
        let (end, ended) = mpsc::channel();
        let serves = Arc::new(AtomicBool::new(false));
        let way_back = WayBack::default();
        let (signalled, serving, back) = (end.clone(), serves.clone(), way_back.clone());
        let waiting = std::thread::Builder::new().name("signals".into()).spawn(move || {
            signals.wait();
            let begun = Instant::now();
            let _ = signalled.send(None);
            // Until the end of the process, so that a second signal ends it at once.
            loop {
                std::thread::sleep(LOOK);
                if bounded {
                    end_in_time(begun.elapsed(), serving.load(Relaxed), &back);
                }
            }
        });
        waiting.map_err(|e| Error::from_io("cannot start a thread for signals", e))?;
        Ok(Stops { end, ended, serves, way_back })
    }

    /// Says that this server has clients, or will soon, or has none any more.
    pub(super) fn serves(&self, serves: bool) {
        self.serves.store(serves, Relaxed);
    }

    /// The command of `--on-replaced`, which is run, too, when the process has to end without its cluster.
    pub(super) fn way_back(&self) -> &WayBack {
        &self.way_back
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

/// What is to be done about an end that takes long.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    GoBack,
    End,
}

/// What is due so long after a signal, and after the later of it and the last reply of the cluster.
fn due(since: Duration, silent: Duration, serves: bool) -> Due {
    let passed = |less: Duration| since >= SERVING_MOST - less || silent >= SILENT_MOST - less;
    match serves {
        false if since >= STANDING_MOST => Due::End,
        true if passed(Duration::ZERO) => Due::End,
        true if passed(GO_BACK) => Due::GoBack,
        _ => Due::Nothing,
    }
}

/// Ends the process when it has not ended in time after a signal. Its other threads wait for the cluster, so that
/// nothing of the end is done by them.
fn end_in_time(since: Duration, serves: bool, way_back: &WayBack) {
    let silent = rados::last_reply().map_or(since, |replied| replied.elapsed().min(since));
    match due(since, silent, serves) {
        Due::Nothing => {}
        Due::GoBack => way_back.go(Why::Asked),
        Due::End if serves => {
            // After a long sleep of the host this may be the first look.
            way_back.go(Why::Asked);
            let why = match silent >= SILENT_MOST {
                true => "the cluster does not answer",
                false => "volumes are still being closed 4 min after the signal",
            };
            tracing::error!(
                "{why}; ending without detaching volumes. What was acknowledged is durable, and the next \
                 server looks through them"
            );
            end_now(1);
        }
        Due::End => {
            tracing::info!("the cluster does not answer; ending without it");
            end_now(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_serves_goes_back_before_it_ends_without_its_cluster() {
        let at = |since, silent, serves| {
            due(Duration::from_secs(since), Duration::from_secs(silent), serves)
        };
        assert_eq!([at(4, 4, false), at(5, 0, false)], [Due::Nothing, Due::End]);
        let silent = [59, 60, 89, 90].map(|seconds| at(seconds, seconds, true));
        assert_eq!(silent, [Due::Nothing, Due::GoBack, Due::GoBack, Due::End]);
        // The cluster answers, and there is much to do.
        let slow = [209, 210, 239, 240].map(|seconds| at(seconds, 1, true));
        assert_eq!(slow, silent);
        assert_eq!(at(120, 89, true), Due::GoBack);
    }
}
