//! The block engine as a subject: the real engine, its steps called in the order in which the
//! product's threads call them.

use std::{cell::Cell, sync::Arc, time::Duration};

use onefold_block::{
    Engine, Format, Idleness, Mark, NewVolume, Settings, Tidying,
    format::{
        Identity,
        geometry::Geometry,
        superblock::{Fixed, SchemeName},
    },
    schedule::{Background, Event, Facts, Next},
};
use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Clock, Disk, Error, Kind, Lba, Result, VolumeId, block,
};
use onefold_testbed::VirtualClock;

use super::{Choice, Scheme, Subject, Tally};

/// The volume of every store.
const VOLUME: &str = "volume";

/// A store of the block engine.
pub(crate) struct Store {
    engine: Engine,
    clock: Arc<VirtualClock>,
    volume: VolumeId,
    /// The scheme makes checkpoints by itself. The ideal does not, but its memory is as limited as
    /// that of the others.
    tables: bool,
    schedule: Cell<Background>,
}

/// A store that was opened again, and how its recovery went.
pub(crate) struct Recovered {
    pub(crate) store: Store,
    /// Zones that were scanned for records.
    pub(crate) zones: u64,
    /// Newer records that were believed, and those whose block was not there.
    pub(crate) believed: u64,
    pub(crate) refused: u64,
}

impl Store {
    /// Makes a store of `device_blocks` blocks, and opens it.
    pub(crate) fn make(
        choice: &Choice,
        volume_blocks: u64,
        device_blocks: u64,
        device: Arc<dyn Disk>,
        clock: Arc<VirtualClock>,
    ) -> Result<Store> {
        let scheme = match choice.scheme {
            Scheme::Thin => SchemeName::Thin,
            Scheme::Ordered => SchemeName::Ordered,
            Scheme::Cow => SchemeName::Cow,
            Scheme::Ideal => SchemeName::Ideal,
            Scheme::OrderMerge => SchemeName::OrderMerge,
            Scheme::Original => {
                return Err(Error::new(
                    Kind::Unsupported,
                    format!("the engine does not have the scheme '{}'", choice.scheme),
                ));
            }
        };
        // The same store in every run: its id and secret take part in what is written.
        let Choice { leftover, layout, zone_blocks, .. } = *choice;
        let format = Format {
            scheme,
            leftover,
            layout,
            zone_blocks,
            ..Format::new([1; 16], [2; 32], device_blocks)
        };
        Engine::format(&*device, &format)?;
        let engine = Engine::open(device, clock.clone(), settings(choice))?;
        let (volume, _) = engine.create_volume_with(
            VOLUME,
            volume_blocks,
            NewVolume { no_dedup: choice.no_dedup.clone(), ..NewVolume::default() },
        )?;
        let store = Store {
            tables: !engine.fixed().scheme.loses_everything(),
            engine,
            clock,
            volume,
            schedule: Cell::default(),
        };
        store.finish()?;
        // Learns where space is, which a store that was just made knows at once.
        while store.engine.idle_step(Idleness::Short)? {}
        Ok(store)
    }

    /// Opens what a crash left.
    pub(crate) fn open(
        choice: &Choice,
        device: Arc<dyn Disk>,
        clock: Arc<VirtualClock>,
    ) -> Result<Recovered> {
        let engine = Engine::open(device, clock.clone(), settings(choice))?;
        let reached = engine.reached();
        let count =
            |branch| reached.iter().find(|(known, _)| *known == branch).map_or(0, |&(_, n)| n);
        let (zones, believed, refused) =
            (count(Mark::ZoneScanned), count(Mark::NewerBelieved), count(Mark::NewerFallsBack));
        let volume = engine.find_volume(VOLUME)?;
        let store = Store {
            tables: !engine.fixed().scheme.loses_everything(),
            engine,
            clock,
            volume,
            schedule: Cell::default(),
        };
        Ok(Recovered { store, zones, believed, refused })
    }

    /// Closes the store cleanly.
    pub(crate) fn close(&self) -> Result<()> {
        self.engine.close()
    }

    /// Where things lie.
    pub(crate) fn geometry(&self) -> Geometry {
        self.engine.fixed().geometry
    }

    /// By what its blocks are known.
    pub(crate) fn identity(&self) -> Identity {
        let Fixed { id, secret, algorithm, .. } = *self.engine.fixed();
        Identity::new(id, secret, algorithm)
    }

    /// Does what the product's background thread would do, had clients been quiet for so long.
    pub(crate) fn work_after(&self, quiet: Duration) -> Result<()> {
        let now = self.clock.now();
        self.happened(now.saturating_sub(quiet), Event::Request);
        while self.background()?.is_some_and(|at| at <= now) {}
        Ok(())
    }

    fn happened(&self, at: Duration, event: Event) {
        let mut schedule = self.schedule.get();
        schedule.happened(at, event);
        self.schedule.set(schedule);
    }

    /// Runs steps that the schedule decides, until it waits. Of idle work that disturbs clients
    /// only one, and returns that more is due now.
    fn run(&self, pressure: bool) -> Result<Option<Duration>> {
        let now = self.clock.now();
        self.happened(now, Event::Elapsed);
        loop {
            let facts = Facts::of(&self.engine, pressure);
            match self.schedule.get().next(now, &facts) {
                Next::Run(step) => {
                    let event = step.run(&self.engine)?;
                    self.happened(now, event);
                    if matches!(event, Event::Idle(Idleness::Short | Idleness::Long, true)) {
                        return Ok(Some(now));
                    }
                }
                Next::WaitUntil(at) => return Ok(Some(at)),
                Next::WaitForEvent => return Ok(None),
            }
        }
    }
}

impl Subject for Store {
    fn write(&self, first: Lba, blocks: &[Block], taken: &mut usize) -> Result<()> {
        let mut bytes = (*taken * BLOCK_BYTES) as u64;
        let done = self.engine.write_from(
            self.volume,
            first.0 * BLOCK_BYTES as u64,
            block::bytes(blocks),
            &mut bytes,
        );
        *taken = bytes as usize / BLOCK_BYTES;
        done.map(|_| ())
    }

    fn drop_blocks(&self, first: Lba, blocks: u64, keep_zeroes: bool) -> Result<()> {
        let (offset, bytes) = (first.0 * BLOCK_BYTES as u64, blocks * BLOCK_BYTES as u64);
        if keep_zeroes {
            self.engine.write_zeroes(self.volume, offset, bytes, true, &mut 0)?;
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
        if !self.tables {
            return self.engine.checkpoint();
        }
        self.run(true).map(|_| ())
    }

    fn requested(&self) {
        self.happened(self.clock.now(), Event::Request);
    }

    fn background(&self) -> Result<Option<Duration>> {
        self.run(false)
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

    fn stored_blocks(&self) -> Option<u64> {
        let status = self.engine.status();
        Some(status.live_blocks + status.table_blocks)
    }

    fn unflushed_blocks(&self) -> usize {
        self.engine.settings().unflushed_blocks
    }

    fn window_blocks(&self) -> usize {
        self.engine.settings().window_blocks
    }
}

fn settings(choice: &Choice) -> Settings {
    let settings = Settings {
        persistence: choice.persistence,
        delay: choice.delay,
        // The papers know no moves.
        tidying: Tidying::Records,
        ..Settings::for_memory(choice.memory_bytes)
    };
    Settings { window_blocks: choice.window_blocks.unwrap_or(settings.window_blocks), ..settings }
}
