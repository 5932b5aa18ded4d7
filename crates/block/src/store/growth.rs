//! Making a served store larger.

use onefold_core::Result;

use super::Store;
use crate::Growth;

impl Store {
    /// Makes the store `bytes` bytes large, rounded down to whole zones of 4 MiB; without, as large
    /// as its device is by now, or its file, if that was made longer. Clients go on meanwhile.
    /// Durable on return. Returns the size, which is that of before when the store has it already.
    ///
    /// # Errors
    /// `InvalidInput` for a smaller size, one beyond the device or beyond 4 PiB, or one that gains
    /// nothing; `NoSpace` when the host is full, and nothing has changed; `Unsupported`, `Stopped`,
    /// `Io`.
    pub fn grow(&self, bytes: Option<u64>) -> Result<u64> {
        let growth = Growth::of(&self.engine);
        let number = self.changes().make(|| growth.ask(bytes.map(|bytes| bytes / 4096)))?;
        while growth.done() < number {
            let seen = self.commit.progress();
            self.engine.checkpoint()?;
            self.commit.advance();
            if growth.done() < number {
                // A checkpoint is under way, and waits for a reader.
                self.commit.wait_for_progress(seen + 1, super::ROOM_WAIT);
            }
        }
        Ok(growth.blocks() * 4096)
    }
}
