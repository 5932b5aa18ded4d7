//! The volumes of a cluster store as clients of its server find them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use onefold_cluster::ClusterExports;
use onefold_core::{Error, Exports, Kind, Volume, VolumeInfo, VolumeLimits};
use parking_lot::Mutex;

/// How long a client waits for a volume, where servers stand by: one without `--standby` may have it, which
/// may have renewed its right just now, and as long again for a cluster that is slow.
const STANDBY: Duration = Duration::from_secs(20);

/// Between two looks whether another server still has a volume.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Time between two lines of the log about rights that this server lacks.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// The volumes, for clients. When this server lacks the right to one, its log says so, too: the
/// operator who can change rights does not see what clients are told.
pub(super) struct Told {
    exports: Arc<ClusterExports>,
    /// When the log said so last: clients decide how often they ask.
    said: Mutex<Option<Instant>>,
    /// How long a client waits for a volume that another server writes.
    patience: Duration,
    stopping: Arc<AtomicBool>,
}

impl Told {
    /// With `standby` clients wait for volumes that another server still has, until `stopping` is set.
    pub(super) fn new(
        exports: &Arc<ClusterExports>,
        standby: bool,
        stopping: &Arc<AtomicBool>,
    ) -> Told {
        Told {
            exports: exports.clone(),
            said: Mutex::default(),
            patience: if standby { STANDBY } else { Duration::ZERO },
            stopping: stopping.clone(),
        }
    }

    /// Opens a volume, which another server may still write for a while.
    fn open_in_time(&self, name: &str) -> Result<Arc<dyn Volume>, Error> {
        let begun = Instant::now();
        loop {
            match self.exports.open(name) {
                Err(error)
                    if error.kind() == Kind::Busy
                        && begun.elapsed() < self.patience
                        && !self.stopping.load(Relaxed) =>
                {
                    std::thread::sleep(LOOK_AGAIN);
                }
                opened => {
                    if opened.is_ok() && begun.elapsed() >= LOOK_AGAIN {
                        tracing::info!(
                            "took volume '{}', after {:.1} s",
                            name.escape_debug(),
                            begun.elapsed().as_secs_f64()
                        );
                    }
                    return opened;
                }
            }
        }
    }
}

impl Exports for Told {
    fn list(&self) -> Vec<VolumeInfo> {
        self.exports.list()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>, Error> {
        self.open_in_time(name).inspect_err(|error| {
            let mut said = self.said.lock();
            if error.kind() == Kind::Denied && said.is_none_or(|at| at.elapsed() >= SAID_AGAIN) {
                *said = Some(Instant::now());
                tracing::warn!("{error}");
            }
        })
    }

    fn shared_name(&self, name: &str) -> String {
        self.exports.shared_name(name)
    }

    fn limits(&self, name: &str) -> Option<VolumeLimits> {
        self.exports.limits(name)
    }
}
