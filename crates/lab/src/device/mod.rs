//! Devices in virtual time: a [`Disk`] whose work takes the time of a model, and nobody's.
//!
//! A device does one thing after the other: what it is asked for begins when the clock says now, or
//! when it is done with what came before. No call waits. A caller that wants to wait for the device
//! lets the clock pass until [`Device::busy_until`]: so the replay decides what a client waits for
//! and what happens behind its back, and the same run takes the same virtual time on every machine.
//!
//! | model | what it is | file |
//! |---|---|---|
//! | `ssd-p` | the ThinDedup paper's SSD, fitted to its figures | [`fitted`] |
//! | `hdd-p` | the paper's hard disk, fitted likewise | [`fitted`] |
//! | `hdd-m` | the mechanics of a hard disk like the paper's: an honesty check | [`mechanical`] |
//! | `nvme-plp` | a data-centre drive whose cache survives power loss | [`nvme`] |
//! | `real:PATH` | a file: its time is measured, and put together with virtual time | here |

mod fitted;
mod mechanical;
mod nvme;

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_backend::{FileDisk, Preallocate, new_file::Spot};
use onefold_core::{BlockRef, Class, Clock, Disk, Error, Kind, Pba, Read, Result, Run};
use onefold_testbed::VirtualClock;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::medium::Medium;

/// How long things take on a device. Times are those at which the device begins, since a rotating
/// disk cares.
pub(crate) trait Model: Send {
    /// Takes blocks into the cache.
    fn write(&mut self, begin: Duration, runs: &[Run<'_>]) -> Duration;
    /// Writes a run durably, and nothing else.
    fn write_durable(&mut self, begin: Duration, run: &Run<'_>) -> Duration;
    /// Makes all that is in the cache durable; called only when something was written since the
    /// last time.
    fn flush(&mut self, begin: Duration) -> Duration;
    /// Reads blocks.
    fn read(&mut self, begin: Duration, at: Pba, blocks: u64) -> Duration;
}

/// Which device, as it is written on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The SSD of ThinDedup's paper.
    SsdP,
    /// Its hard disk.
    HddP,
    /// A hard disk by its mechanics.
    HddM,
    /// An NVMe drive with power-loss protection.
    NvmePlp,
    /// A new file of this path, which vanishes afterwards.
    Real(PathBuf),
}

impl DeviceKind {
    /// All models.
    pub const MODELS: [DeviceKind; 4] =
        [DeviceKind::SsdP, DeviceKind::HddP, DeviceKind::HddM, DeviceKind::NvmePlp];

    /// True when the model was fitted to a paper's figures: what comes out proves nothing about
    /// devices.
    #[must_use]
    pub fn is_fitted(&self) -> bool {
        matches!(self, DeviceKind::SsdP | DeviceKind::HddP)
    }

    /// A device of this kind with `blocks` blocks.
    ///
    /// # Errors
    /// `InvalidInput` when the kind is not made so large; for a file, that it exists already and
    /// those of the system.
    pub fn open(&self, blocks: u64, clock: Arc<VirtualClock>) -> Result<Arc<Device>> {
        let model: Box<dyn Model> = match self {
            DeviceKind::SsdP => Box::new(fitted::Ssd),
            DeviceKind::HddP => Box::<fitted::Hdd>::default(),
            DeviceKind::HddM if blocks > mechanical::BLOCKS => {
                let message = format!(
                    "{self} has {} blocks of 4 KiB, and {blocks} are needed",
                    mechanical::BLOCKS
                );
                return Err(Error::new(Kind::InvalidInput, message));
            }
            DeviceKind::HddM => Box::<mechanical::Hdd>::default(),
            DeviceKind::NvmePlp => Box::new(nvme::Nvme),
            DeviceKind::Real(path) => return real(path, blocks, clock),
        };
        Ok(Arc::new(Device::new(Arc::new(Medium::new(blocks)), clock, Some(model), None)))
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceKind::SsdP => f.write_str("ssd-p"),
            DeviceKind::HddP => f.write_str("hdd-p"),
            DeviceKind::HddM => f.write_str("hdd-m"),
            DeviceKind::NvmePlp => f.write_str("nvme-plp"),
            DeviceKind::Real(path) => write!(f, "real:{}", path.display()),
        }
    }
}

impl FromStr for DeviceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<DeviceKind> {
        if let Some(path) = text.strip_prefix("real:").filter(|path| !path.is_empty()) {
            return Ok(DeviceKind::Real(path.into()));
        }
        DeviceKind::MODELS.into_iter().find(|kind| kind.to_string() == text).ok_or_else(|| {
            Error::new(
                Kind::InvalidInput,
                format!(
                    "no device '{text}': one of ssd-p, hdd-p, \
                hdd-m, nvme-plp, or real:PATH for a new file"
                ),
            )
        })
    }
}

/// A device on a new file. Nothing that exists is ever overwritten.
fn real(path: &Path, blocks: u64, clock: Arc<VirtualClock>) -> Result<Arc<Device>> {
    if path.symlink_metadata().is_ok() {
        return Err(Error::new(
            Kind::Exists,
            format!("{} exists already: a laboratory's file is a new one", path.display()),
        ));
    }
    let spot = Spot::of(path)?;
    let disk = FileDisk::create(path, Some(blocks), Preallocate::Reserve, &mut |_, _| {})?;
    Ok(Arc::new(Device::new(Arc::new(disk), clock, None, Some(spot))))
}

/// Blocks of a zone, as ThinDedup's paper counts them.
const ZONE_BLOCKS: u64 = 1024;

/// The requests to a device since it was made, in blocks of 4 KiB or plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Blocks of clients, written as they are.
    pub data_blocks: u64,
    /// Blocks that hold records, with a client's block or alone.
    pub carrier_blocks: u64,
    /// Pages of tables.
    pub table_blocks: u64,
    /// Superblocks.
    pub super_blocks: u64,
    /// Runs of consecutive blocks written.
    pub runs: u64,
    /// Flushes, and durable writes, which count as one.
    pub flushes: u64,
    /// Durable writes among them.
    pub durable_writes: u64,
    /// Blocks read.
    pub read_blocks: u64,
}

impl Counts {
    /// Blocks written, of all classes.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.data_blocks + self.carrier_blocks + self.table_blocks + self.super_blocks
    }

    /// The counts since `earlier` was taken from the same device.
    #[must_use]
    pub fn since(&self, earlier: &Counts) -> Counts {
        between!(
            earlier,
            self,
            Counts {
                data_blocks,
                carrier_blocks,
                table_blocks,
                super_blocks,
                runs,
                flushes,
                durable_writes,
                read_blocks
            }
        )
    }

    fn write(&mut self, blocks: &[BlockRef<'_>]) {
        self.runs += 1;
        for block in blocks {
            match block.class {
                Class::Data => self.data_blocks += 1,
                Class::Carrier => self.carrier_blocks += 1,
                Class::Table => self.table_blocks += 1,
                Class::Super => self.super_blocks += 1,
            }
        }
    }
}

/// True for what a scheme writes for itself and not into the run of a window.
pub(crate) fn is_metadata(class: Class) -> bool {
    matches!(class, Class::Table | Class::Super)
}

/// A disk in virtual time.
pub struct Device {
    medium: Arc<dyn Disk>,
    clock: Arc<VirtualClock>,
    state: Mutex<State>,
    /// The file that vanishes with the device.
    file: Option<Spot>,
}

struct State {
    /// None when times are measured.
    model: Option<Box<dyn Model>>,
    busy_until: Duration,
    /// Something was written that no flush covers.
    dirty: bool,
    counts: Counts,
    /// Zones of 4 MiB in which data lie, and whether records lie there, too.
    zones: HashMap<u64, bool>,
}

impl State {
    fn write(&mut self, run: &Run<'_>) {
        self.counts.write(run.blocks);
        for (at, block) in (run.at.0..).zip(run.blocks) {
            if matches!(block.class, Class::Data | Class::Carrier) {
                *self.zones.entry(at / ZONE_BLOCKS).or_default() |= block.class == Class::Carrier;
            }
        }
    }
}

impl Device {
    fn new(
        medium: Arc<dyn Disk>,
        clock: Arc<VirtualClock>,
        model: Option<Box<dyn Model>>,
        file: Option<Spot>,
    ) -> Device {
        let state = State {
            model,
            busy_until: Duration::ZERO,
            dirty: false,
            counts: Counts::default(),
            zones: HashMap::new(),
        };
        Device { medium, clock, state: Mutex::new(state), file }
    }

    /// When everything asked for so far is done.
    #[must_use]
    pub fn busy_until(&self) -> Duration {
        self.state.lock().busy_until.max(self.clock.now())
    }

    /// The requests so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Zones of 4 MiB in which clients' blocks lie, and those of them in which records lie, too.
    #[must_use]
    pub(crate) fn zones(&self) -> (u64, u64) {
        let zones = &self.state.lock().zones;
        (zones.len() as u64, zones.values().filter(|&&carrier| carrier).count() as u64)
    }

    /// Puts blocks on the medium that nobody counts or waits for: what a trim leaves.
    pub(crate) fn forget(&self, run: &Run<'_>) -> Result<()> {
        self.medium.write(&[*run])
    }

    /// Does something on the medium, and lets the device be busy for as long as it takes.
    fn work<T>(
        &self,
        work: impl FnOnce(&dyn Disk) -> T,
        take: impl FnOnce(&mut State),
        price: impl FnOnce(&mut dyn Model, Duration) -> Duration,
    ) -> T {
        let mut state = self.state.lock();
        let real = Instant::now();
        let done = work(&*self.medium);
        let measured = real.elapsed();
        take(&mut state);
        let begin = state.busy_until.max(self.clock.now());
        let cost = state.model.as_mut().map_or(measured, |model| price(&mut **model, begin));
        state.busy_until = begin + cost;
        done
    }
}

impl Disk for Device {
    fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        let asked: Vec<(Pba, u64)> =
            reads.iter().map(|read| (read.at, read.into.len() as u64)).collect();
        self.work(
            |medium| medium.read(reads),
            |state| {
                state.counts.read_blocks += asked.iter().map(|&(_, blocks)| blocks).sum::<u64>()
            },
            |model, begin| {
                asked.iter().fold(Duration::ZERO, |spent, &(at, blocks)| {
                    spent + model.read(begin + spent, at, blocks)
                })
            },
        );
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        let count = |state: &mut State| {
            runs.iter().for_each(|run| state.write(run));
            state.dirty |= !runs.is_empty();
        };
        self.work(|medium| medium.write(runs), count, |model, begin| model.write(begin, runs))
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        let count = |state: &mut State| {
            state.write(run);
            state.counts.flushes += 1;
            state.counts.durable_writes += 1;
        };
        self.work(
            |medium| medium.write_durable(run),
            count,
            |model, begin| model.write_durable(begin, run),
        )
    }

    fn flush(&self) -> Result<()> {
        let mut dirty = true;
        let count = |state: &mut State| {
            state.counts.flushes += 1;
            dirty = std::mem::take(&mut state.dirty);
        };
        // The models were made from flushes after writes; one that has nothing to do takes no time
        // worth telling.
        let dirty_before = self.state.lock().dirty;
        let price = |model: &mut dyn Model, begin| {
            if dirty_before { model.flush(begin) } else { Duration::ZERO }
        };
        self.work(|medium| medium.flush(), count, price)
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.medium.allocate(at, blocks)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A file that can't be removed takes space and does no other harm; a destructor can't
        // report it.
        self.file.iter().for_each(|file| file.take_back(false));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use onefold_core::Block;

    use super::*;

    /// Microseconds that `work` keeps a model busy for, from a device that does nothing else.
    pub(crate) struct Bench {
        pub(crate) clock: Arc<VirtualClock>,
        pub(crate) device: Arc<Device>,
    }

    impl Bench {
        pub(crate) fn new(kind: &DeviceKind, blocks: u64) -> Bench {
            let clock = Arc::new(VirtualClock::default());
            let device = kind.open(blocks, clock.clone()).unwrap();
            Bench { clock, device }
        }

        /// Writes blocks of a class, each run from its address on.
        pub(crate) fn write(&self, class: Class, runs: &[(u64, usize)]) {
            let block = Block::zeroed();
            let refs: Vec<Vec<BlockRef<'_>>> =
                runs.iter().map(|&(_, n)| vec![BlockRef { block: &block, class }; n]).collect();
            let runs: Vec<Run<'_>> = runs
                .iter()
                .zip(&refs)
                .map(|(&(at, _), blocks)| Run { at: Pba(at), blocks })
                .collect();
            self.device.write(&runs).unwrap();
        }

        pub(crate) fn write_durable(&self, class: Class, at: u64, blocks: usize) {
            let block = Block::zeroed();
            let refs = vec![BlockRef { block: &block, class }; blocks];
            self.device.write_durable(&Run { at: Pba(at), blocks: &refs }).unwrap();
        }

        /// Milliseconds from now until the device is done; waits for it.
        pub(crate) fn wait(&self) -> f64 {
            let (now, then) = (self.clock.now(), self.device.busy_until());
            self.clock.advance_to(then);
            (then - now).as_secs_f64() * 1e3
        }
    }

    #[test]
    fn devices_are_known_by_name() {
        for kind in DeviceKind::MODELS {
            assert_eq!(kind.to_string().parse::<DeviceKind>().unwrap(), kind);
        }
        assert_eq!("real:/a/b".parse::<DeviceKind>().unwrap(), DeviceKind::Real("/a/b".into()));
        for wrong in ["", "real:", "ssd", "hdd-x"] {
            assert!(wrong.parse::<DeviceKind>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn work_queues_up_and_nobody_waits() {
        let bench = Bench::new(&DeviceKind::SsdP, 100);
        bench.write(Class::Data, &[(0, 10)]);
        bench.device.flush().unwrap();
        bench.write(Class::Table, &[(20, 5)]);
        assert_eq!(bench.clock.now(), Duration::ZERO);
        assert!((bench.wait() - (10.0 * 0.02 + 3.9 + 5.0 * 0.02)).abs() < 1e-9);
        assert_eq!(bench.wait(), 0.0);
        // An idle device begins when it is asked.
        bench.clock.advance_to(Duration::from_secs(9));
        bench.device.flush().unwrap();
        assert_eq!(bench.device.busy_until(), Duration::from_micros(9_003_900));
        bench.device.flush().unwrap();
        assert_eq!(bench.device.busy_until(), Duration::from_micros(9_003_900));
        let counts = bench.device.counts();
        assert_eq!(
            (
                counts.data_blocks,
                counts.table_blocks,
                counts.flushes,
                counts.runs,
                counts.written()
            ),
            (10, 5, 3, 2, 15)
        );
    }

    #[test]
    fn a_file_is_new_and_vanishes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let bench = Bench::new(&DeviceKind::Real(path.clone()), 1024);
        bench.write(Class::Data, &[(0, 10)]);
        bench.device.flush().unwrap();
        assert!(bench.wait() > 0.0);
        let again = DeviceKind::Real(path.clone()).open(1024, bench.clock.clone());
        assert_eq!(again.err().map(|error| error.kind()), Some(Kind::Exists));
        drop(bench);
        assert!(!path.exists());
    }
}
