//! Making a store larger, for those who use an engine.

use onefold_core::Result;

use crate::{Engine, engine::growth};

/// The size of an engine's store.
pub struct Growth<'e>(&'e Engine);

impl<'e> Growth<'e> {
    /// That of an engine.
    #[must_use]
    pub fn of(engine: &'e Engine) -> Growth<'e> {
        Growth(engine)
    }

    /// The blocks of the store, those of its superblocks and its zone list among them.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.kernel.geometry().blocks()
    }

    /// Asks that the store has `blocks` blocks, rounded down to whole zones; without, all that its
    /// disk has. Takes the room from the host, which may take long. The store is larger, durably,
    /// once [`done`](Self::done) has reached the number that is returned, to which checkpoints lead:
    /// that is so at once when it has the size already.
    ///
    /// # Errors
    /// `InvalidInput` (smaller than it is, larger than the device or than 4 PiB, or so little more
    /// that nothing would be gained), `NoSpace` (the host is full, and nothing has changed),
    /// `Unsupported` (the disk does not grow), `Busy` (another growth is under way: run steps, then
    /// ask again), `Stopped`, `Io`.
    pub fn ask(&self, blocks: Option<u64>) -> Result<u64> {
        growth::ask(&self.0.kernel, &*self.0.scheme, blocks)
    }

    /// The number of the last growth that is durable.
    #[must_use]
    pub fn done(&self) -> u64 {
        growth::grown(&self.0.kernel)
    }
}
