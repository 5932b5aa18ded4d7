//! The block engine as a subject: the real engine, its steps called in the order in which the product's threads call them.

use std::{cell::Cell, sync::Arc, time::Duration};

use onefold_block::{CheckpointStep, Engine, Format, Leisure, Settings, format::superblock::SchemeName};
use onefold_core::{BLOCK_BYTES, Block, BlockRead, Clock, Error, Kind, Lba, Result, VolumeId, block};

use super::{Choice, Quiet, Scheme, Subject, Tally, device_blocks};
use crate::{VirtualClock, device::Device};

/// How long a checkpoint waits for a window's flush before it flushes by itself; the product's.
const RIDE_WAIT: Duration = Duration::from_millis(200);

/// A store of the block engine.
pub(super) struct Store {
    engine: Engine,
    clock: Arc<VirtualClock>,
    volume: VolumeId,
    /// The scheme makes checkpoints by itself. The ideal does not, but its memory is as limited as that of the others.
    tables: bool,
    /// Since when a checkpoint waits for a flush.
    asked: Cell<Option<Duration>>,
}

impl Store {
    pub(super) fn open(choice: &Choice, volume_blocks: u64, device: Arc<Device>, clock: Arc<VirtualClock>) -> Result<Store> {
        let scheme = match choice.scheme {
            Scheme::Thin => SchemeName::Thin,
            Scheme::Ordered => SchemeName::Ordered,
            Scheme::Cow => SchemeName::Cow,
            Scheme::Ideal => SchemeName::Ideal,
            Scheme::OrderMerge => SchemeName::OrderMerge,
            Scheme::Original => {
                return Err(Error::new(Kind::Unsupported, format!("the engine does not have the scheme '{}'", choice.scheme)));
            }
        };
        // The same store in every run: its id and secret take part in what is written.
        let format = Format {
            scheme,
            leftover: choice.leftover,
            layout: choice.layout,
            ..Format::new([1; 16], [2; 32], device_blocks(volume_blocks))
        };
        Engine::format(&*device, &format)?;
        let mut settings = Settings { persistence: choice.persistence, delay: choice.delay, ..Settings::for_memory(choice.memory_bytes) };
        settings.window_blocks = choice.window_blocks.unwrap_or(settings.window_blocks);
        let engine = Engine::open(device, clock.clone(), settings)?;
        let (volume, _) = engine.create_volume("volume", volume_blocks)?;
        let tables = scheme != SchemeName::Ideal;
        let store = Store { engine, clock, volume, tables, asked: Cell::new(None) };
        store.finish()?;
        // Learns where space is, which a store that was just made knows at once.
        store.background(Quiet::Short)?;
        Ok(store)
    }

    /// Steps of a checkpoint, as far as they need no flush of their own.
    fn checkpoint(&self, alone: bool) -> Result<()> {
        loop {
            match self.engine.checkpoint_step()? {
                CheckpointStep::Advanced if self.engine.checkpoint_running() => self.asked.set(None),
                CheckpointStep::NeedsFlush => {
                    let now = self.clock.now();
                    let since = self.asked.get().unwrap_or(now);
                    self.asked.set(Some(since));
                    if !alone && now.saturating_sub(since) <= RIDE_WAIT {
                        return Ok(());
                    }
                    self.engine.settle()?;
                }
                CheckpointStep::Advanced | CheckpointStep::Idle | CheckpointStep::NeedsReaders => return Ok(()),
            }
        }
    }
}

impl Subject for Store {
    fn write(&self, first: Lba, blocks: &[Block], taken: &mut usize) -> Result<()> {
        let mut bytes = (*taken * BLOCK_BYTES) as u64;
        let done = self.engine.write_from(self.volume, first.0 * BLOCK_BYTES as u64, block::bytes(blocks), &mut bytes);
        *taken = bytes as usize / BLOCK_BYTES;
        done.map(|_| ())
    }

    fn drop_blocks(&self, first: Lba, blocks: u64, keep_zeroes: bool) -> Result<()> {
        let (offset, bytes) = (first.0 * BLOCK_BYTES as u64, blocks * BLOCK_BYTES as u64);
        if keep_zeroes {
            self.engine.write_zeroes(self.volume, offset, bytes, true)?;
        } else {
            self.engine.trim(self.volume, offset, bytes)?;
        }
        Ok(())
    }

    fn read(&self, first: Lba, into: &mut [Block]) -> Result<()> {
        let mut reads = [BlockRead { first, into, result: Ok(()) }];
        self.engine.read(self.volume, &mut reads);
        let [read] = reads;
        read.result
    }

    fn write_out(&self) -> Result<()> {
        while self.engine.prepare_window()? {
            self.engine.write_window()?;
        }
        Ok(())
    }

    fn commit(&self) -> Result<()> {
        self.engine.flush()
    }

    fn make_room(&self) -> Result<()> {
        self.engine.flush()?;
        if self.engine.checkpoint_due() || self.engine.checkpoint_running() || !self.tables {
            self.engine.checkpoint()?;
        }
        Ok(())
    }

    fn background(&self, quiet: Quiet) -> Result<()> {
        if self.engine.checkpoint_running() || self.engine.checkpoint_due() || quiet == Quiet::Long && self.engine.checkpoint_useful() {
            self.checkpoint(quiet > Quiet::No)?;
        }
        if quiet > Quiet::No {
            while self.engine.tidy_step(Leisure::Short)? {}
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        self.engine.flush()?;
        while self.engine.checkpoint_useful() || self.engine.checkpoint_running() {
            self.engine.checkpoint()?;
        }
        Ok(())
    }

    fn tally(&self) -> Tally {
        let counts = self.engine.counts();
        Tally {
            windows: counts.windows,
            records: counts.records,
            hidden_records: counts.hidden_records,
            record_blocks: counts.record_blocks,
            duplicate_blocks: counts.duplicate_blocks,
            in_place_blocks: counts.in_place_blocks,
            delayed_blocks: counts.delayed_blocks,
            zero_blocks: counts.zero_blocks,
            checkpoint_blocks: counts.checkpoint_blocks + counts.super_blocks,
            leftover_records: counts.leftover_records,
            leftover_blocks: counts.leftover_blocks,
            checkpoints: counts.checkpoints,
        }
    }

    fn unflushed_blocks(&self) -> usize {
        self.engine.settings().unflushed_blocks
    }

    fn window_blocks(&self) -> usize {
        self.engine.settings().window_blocks
    }
}
