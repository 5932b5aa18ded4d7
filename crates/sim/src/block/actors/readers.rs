//! Who reads all in order, as a backup does. What it finds scattered is handed over to moving, and may be
//! old by the time at which it is moved.

use onefold_core::BLOCK_BYTES;

use super::client::{Change, READ_BLOCKS};
use crate::block::{
    model::Key,
    run::{Flow, Sim},
    subject::{Step, Subject},
};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Steps of a checkpoint, each with a flush, after which it is at its end.
const CHECKPOINT_STEPS: usize = 6;

impl<S: Subject> Sim<S> {
    /// Now and then somebody reads all volumes in order. Mostly clients change some of what was read at
    /// once, a checkpoint has that, and blocks move.
    pub(crate) fn read_in_order(&mut self) -> Flow<()> {
        let wanted = self.params.options.moves.is_some_and(|moves| moves.readers);
        if !wanted || !self.readers.once_in(10) {
            return Ok(());
        }
        self.reach.hit("somebody reads all in order");
        for key in self.model.volumes().keys().copied().collect::<Vec<Key>>() {
            for (start, length) in self.params.spots.clone() {
                let blocks = self.model.volumes().get(&key).map_or(0, |volume| volume.blocks);
                let end = (start + length).min(blocks);
                for first in (start..end).step_by(READ_BLOCKS as usize) {
                    self.read(key, &[(first, READ_BLOCKS.min(end - first))])?;
                }
            }
        }
        if self.readers.percent(70) {
            self.change_what_was_read()?;
        }
        Ok(())
    }

    fn change_what_was_read(&mut self) -> Flow<()> {
        for _ in 0..self.readers.within(1, 4) {
            let keys = self.model.writable();
            let Some(&key) = self.readers.pick(&keys) else { return Ok(()) };
            let blocks = self.model.volumes().get(&key).map_or(1, |volume| volume.blocks);
            let Some(&(start, length)) = self.readers.pick(&self.params.spots) else { break };
            let lba = (start + self.readers.below(length)).min(blocks - 1);
            let content = self.params.palette.draw(&mut self.model.contents, &mut self.readers);
            let data = self.model.contents.bytes(content).to_vec();
            self.change(key, lba * BLOCK, Change::Write(&data))?;
        }
        if self.params.scheduled {
            return Ok(());
        }
        self.flush()?;
        for _ in 0..CHECKPOINT_STEPS {
            self.step(Step::Checkpoint)?;
            self.step(Step::Settle)?;
        }
        for _ in 0..self.readers.within(1, 12) {
            self.step(Step::Tidy)?;
        }
        Ok(())
    }
}
