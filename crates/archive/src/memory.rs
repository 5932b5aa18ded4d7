//! Memory that is used again: buffers of batches and containers, which would else be mapped, cleared and unmapped once for each few megabytes.

use parking_lot::Mutex;

/// Buffers kept at most: as many as can be on their way through a put's queues.
const KEPT_MAX: usize = 8;

/// Buffers that nobody uses.
pub(crate) struct Spare {
    buffers: Mutex<Vec<Vec<u8>>>,
    most: usize,
}

impl Default for Spare {
    fn default() -> Spare {
        Spare::keeping(KEPT_MAX)
    }
}

impl Spare {
    /// Keeps so many at most.
    pub(crate) fn keeping(most: usize) -> Spare {
        Spare { buffers: Mutex::default(), most }
    }

    /// A buffer, with whatever was in it; perhaps an empty one.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut all = self.buffers.lock();
        if all.len() < self.most && buffer.capacity() > 0 {
            all.push(buffer);
        }
    }
}
