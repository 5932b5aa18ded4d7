//! Memory that is used again: buffers of batches and containers, which would else be mapped, cleared and unmapped once for each few megabytes.

use parking_lot::Mutex;

/// Buffers kept at most: as many as can be on their way through a put's queues.
const KEPT_MAX: usize = 8;

/// Buffers that nobody uses.
#[derive(Default)]
pub(crate) struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// A buffer, with whatever was in it; perhaps an empty one.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut all = self.0.lock();
        if all.len() < KEPT_MAX && buffer.capacity() > 0 {
            all.push(buffer);
        }
    }
}
