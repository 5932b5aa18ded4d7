//! What a server of the cluster engine shows of its store, from a look every few seconds: a page
//! waits for no answer of the cluster.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use onefold_cluster::{ClusterExports, Session};
use onefold_core::{Error, Exports, Result};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::options::Options;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(10);

/// Keys of a report, from the last look that succeeded.
type Last = Arc<Mutex<Option<Map<String, Value>>>>;

/// The thread that looks.
pub(super) struct Looked {
    last: Last,
    /// Dropped to end the thread.
    alive: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Looked {
    /// Looks now and then, when anybody can ask for figures.
    ///
    /// # Errors
    /// `Io` when no thread can be started.
    pub(super) fn start(
        options: &Options,
        session: &Arc<Session>,
        exports: &Arc<ClusterExports>,
    ) -> Result<Looked> {
        let last = Last::default();
        let mut looked = Looked { last: last.clone(), alive: None, thread: None };
        if options.http.is_empty() {
            return Ok(looked);
        }
        let (alive, ended) = mpsc::channel::<()>();
        let (session, exports) = (session.clone(), exports.clone());
        let look_on = move || {
            loop {
                match look(&session, &exports) {
                    Ok(found) => *last.lock() = Some(found),
                    Err(error) => tracing::debug!("the store's figures can't be read: {error}"),
                }
                if ended.recv_timeout(EVERY) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("figures".into())
            .spawn(look_on)
            .map_err(|e| Error::from_io("cannot start a thread for figures", e))?;
        (looked.alive, looked.thread) = (Some(alive), Some(thread));
        Ok(looked)
    }

    /// The keys of the last look.
    pub(super) fn last(&self) -> Last {
        self.last.clone()
    }

    /// Ends the thread.
    pub(super) fn stop(mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            // Its panic, if any, was printed.
            let _ = thread.join();
        }
    }
}

fn look(session: &Session, exports: &ClusterExports) -> Result<Map<String, Value>> {
    let (space, backlog, volumes) = (session.space()?, session.backlog()?, exports.list());
    let bytes: u64 = volumes.iter().map(|volume| volume.size).sum();
    let served: Vec<Value> =
        volumes.iter().map(|volume| json!({ "name": volume.name, "bytes": volume.size })).collect();
    let found = json!({
        "volumes": served.len(),
        "volume_bytes": bytes,
        "served": served,
        "backlog": backlog,
        "used_bytes": space.used,
        "total_bytes": space.total,
        "free_bytes": space.total.saturating_sub(space.used),
    });
    Ok(found.as_object().cloned().unwrap_or_default())
}
