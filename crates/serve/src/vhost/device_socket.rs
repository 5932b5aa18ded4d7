//! The socket of a device: one client at a time has the volume behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use onefold_core::Volume;
use parking_lot::Mutex;

use super::room::Share;

/// Time between two lines of the log about one device: its guest decides how often there is a reason.
const SAID_AGAIN: Duration = Duration::from_secs(10);

/// A device for clients of one socket.
pub(crate) struct DeviceSocket {
    /// The name of its volume; another one when somebody renames it.
    name: Mutex<String>,
    taken: AtomicBool,
    /// Room for the memory of its guest.
    share: Arc<Share>,
    said: Mutex<Option<Instant>>,
}

/// The device, as the only client has it.
pub(crate) struct Taken(Arc<DeviceSocket>);

impl DeviceSocket {
    /// That of the volume with this name.
    pub(crate) fn new(name: &str, share: Arc<Share>) -> DeviceSocket {
        DeviceSocket {
            name: Mutex::new(name.to_owned()),
            taken: AtomicBool::new(false),
            share,
            said: Mutex::new(None),
        }
    }

    /// Takes the device for a client; nothing when another one has it.
    pub(crate) fn take(self: &Arc<DeviceSocket>) -> Option<Taken> {
        let free = self.taken.compare_exchange(false, true, SeqCst, SeqCst).is_ok();
        free.then(|| Taken(self.clone()))
    }
}

impl Taken {
    /// The name of its volume now.
    pub(crate) fn name(&self) -> String {
        self.0.name.lock().clone()
    }

    /// Room for the memory of its guest.
    pub(crate) fn share(&self) -> &Arc<Share> {
        &self.0.share
    }

    /// Keeps the name that the volume has, for the next client.
    pub(crate) fn follow(&self, volume: &dyn Volume) {
        if let Some(name) = volume.current_name() {
            *self.0.name.lock() = name;
        }
    }

    /// Writes a line to the log, unless there was one a moment ago.
    pub(crate) fn say(&self, sentence: &str) {
        let mut said = self.0.said.lock();
        if said.is_none_or(|at| at.elapsed() >= SAID_AGAIN) {
            *said = Some(Instant::now());
            let name = self.name();
            tracing::warn!("vhost device of '{}': {sentence}", name.escape_debug());
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.taken.store(false, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_has_the_device_at_a_time() {
        let share = Arc::new(super::super::Room::default()).share();
        let device = Arc::new(DeviceSocket::new("vm1", share));
        let taken = device.take().unwrap();
        assert!(device.take().is_none());
        assert_eq!(taken.name(), "vm1");
        drop(taken);
        assert!(device.take().is_some());
    }
}
