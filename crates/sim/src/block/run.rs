//! One run: lives of a store, each ended by a crash, and what must be true after each.
//!
//! A life is opened by recovery (which may crash, several times in a row), is checked against the
//! model, serves requests between which the engine's steps come in any order, and ends inside a
//! call to the disk, between two calls, or by a fault that stops the store. The last one ends in an
//! orderly way, and the verifier finds nothing.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Class, Clock, Disk, Error, Kind, VolumeId};
use onefold_testbed::{Fault, Reach, Rng, VirtualClock, VirtualDisk};

use crate::{
    block::{
        actors::{Bounds, Growing, Rotations, Secrets, Tenants, Transfer},
        model::{Key, Model},
        params::{Op, Params, Profile, churn},
        subject::{Report, Schedules, Step, Subject},
    },
    checker::{Checker, Failure},
};

/// Why a life ended.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Something is wrong: the run is over.
    Failed(Failure),
    /// The power failed.
    Down,
    /// A fault stopped the store, as it should.
    Ended,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// The result of a part of a life.
pub(crate) type Flow<T> = Result<T, Stop>;

/// A run of one seed.
pub(crate) struct Sim<S: Subject> {
    pub(crate) params: Params,
    pub(crate) rng: Rng,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) disk: Arc<VirtualDisk>,
    pub(crate) model: Model,
    pub(crate) store: Option<S>,
    /// The product's schedule, in the scheduled profile.
    pub(crate) schedules: Schedules,
    pub(crate) reach: Reach,
    /// Acts that were asked for: the number that says when they are done, and what they make.
    pub(crate) asked: Option<(u64, Vec<VolumeId>)>,
    /// The snapshot that is being sent and received.
    pub(crate) transfer: Option<Transfer>,
    /// The snapshots that were sent, by the names that they have where they were received.
    pub(crate) sent: BTreeMap<String, Key>,
    /// Who opens a sealed store.
    pub(crate) secrets: Option<Secrets>,
    /// Which domains a sealed store has, if it gets any besides the first.
    pub(crate) tenants: Option<Tenants>,
    /// How data keys change, if they do.
    pub(crate) rotations: Option<Rotations>,
    /// Which limits domains have, if they get some.
    pub(crate) bounds: Option<Bounds>,
    /// A growth that was asked for.
    pub(crate) growing: Option<Growing>,
    /// Where the rot of what maps share is drawn from, which no other draw comes from.
    rot: Rng,
    /// Where it is drawn from when somebody reads all in order, and what changes then.
    pub(crate) readers: Rng,
    /// Requests so far, of a run that fills, discards and rewrites in turns.
    moments: u64,
    /// Single blocks that could not be read.
    pub(crate) refused_reads: u64,
    loud: bool,
}

/// Steps of idle work or of a drive after which an engine that still has some is stuck.
pub(crate) const STEP_LIMIT: u64 = 20_000;

impl<S: Subject> Sim<S> {
    /// The run that `params` describe; `loud` prints what happens.
    pub(crate) fn new(params: Params, loud: bool) -> Sim<S> {
        let mut rng = Rng::new(params.seed);
        let rot = Rng::new(params.seed ^ 0x726f_7473_0000_0115);
        let readers = Rng::new(params.seed ^ 0x7265_6164_6572_0115);
        onefold_seal::observer::begin();
        let secrets = (S::SEALS && params.options.sealed).then(|| Secrets::new(params.seed));
        let tenants = secrets.as_ref().filter(|_| params.options.domains > 0);
        let tenants = tenants.map(|_| Tenants::new(params.seed));
        let rotating = secrets.as_ref().filter(|_| params.options.data_keys);
        let rotations = rotating.map(|_| Rotations::new(params.seed));
        let limited = tenants.as_ref().filter(|_| params.options.domain_limits);
        let bounds = limited.map(|_| Bounds::new(params.seed));
        let clock = Arc::new(VirtualClock::default());
        let disk =
            Arc::new(VirtualDisk::new(params.options.disk_blocks, Arc::clone(&clock), rng.fork()));
        Sim {
            params,
            rng,
            clock,
            disk,
            model: Model::default(),
            store: None,
            schedules: Schedules::default(),
            reach: Reach::default(),
            asked: None,
            transfer: None,
            sent: BTreeMap::new(),
            secrets,
            tenants,
            rotations,
            bounds,
            growing: None,
            rot,
            readers,
            moments: 0,
            refused_reads: 0,
            loud,
        }
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.loud {
            println!("  [{:016x}] {}", self.disk.trace(), what());
        }
    }

    /// All of it; and when damage has met the store, what it has cost.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        self.lives()?;
        if self.disk.damage() > 0 { self.audit() } else { Ok(()) }
    }

    fn lives(&mut self) -> Result<(), Failure> {
        if !self.make()? {
            return Ok(());
        }
        for round in 0..self.params.rounds {
            self.say(|| format!("life {round}"));
            match self.life() {
                Ok(()) => {}
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Down) => {}
                Err(Stop::Ended) => self.stopped()?,
            }
            self.contract()?;
            if !self.reopen(true)? {
                return Ok(());
            }
        }
        self.last_life()
    }

    /// Formats the disk, sometimes with a crash in it, and opens the store.
    fn make(&mut self) -> Result<bool, Failure> {
        if self.rng.once_in(12) {
            self.disk.arm_crash(self.rng.below(6));
            let _ = S::format(&*self.disk, &self.params.options);
            self.disk.power_cycle();
            self.reach.hit("crash: in format");
            // A half-made store must be refused or work; it must not hurt the next format.
            let _ = self.open_store();
            self.store = None;
            self.disk.next_session();
        }
        if let Err(error) = S::format(&*self.disk, &self.params.options) {
            return Err(Failure::new(Checker::Unexplained, format!("format: {error:?}")));
        }
        let crash = self.rng.percent(50);
        self.reopen(crash)
    }

    fn open_store(&mut self) -> Result<(), Error> {
        let disk: Arc<dyn Disk> = Arc::clone(&self.disk) as Arc<dyn Disk>;
        let clock: Arc<dyn Clock> = Arc::clone(&self.clock) as Arc<dyn Clock>;
        self.store = Some(S::open(disk, clock, &self.params.options)?);
        self.schedules = Schedules::default();
        self.asked = None;
        Ok(())
    }

    /// The store is gone; what it reached is counted.
    pub(crate) fn let_go(&mut self) -> Option<S> {
        let store = self.store.take()?;
        if let Some(transfer) = &mut self.transfer {
            transfer.cut_off();
        }
        if let Some(secrets) = &mut self.secrets {
            store.durable_state().into_iter().for_each(|state| secrets.saw(state));
        }
        store.reached().into_iter().for_each(|(what, n)| self.reach.add(what, n));
        Some(store)
    }

    /// Power fails (unless `crash` is false: the store was closed), recovery, and all that must be
    /// true after it. False when damage keeps the store from being opened.
    fn reopen(&mut self, crash: bool) -> Result<bool, Failure> {
        self.let_go();
        // A superblock that is only in the cache is what a killed process leaves at its worst.
        let killed = if self.disk.caches(Class::Super) { 60 } else { 20 };
        if crash && self.rng.percent(killed) {
            self.disk.kill();
        } else if crash {
            self.disk.power_cycle();
        } else {
            self.disk.next_session();
        }
        self.sideways()?;
        self.at_rest()?;
        self.rot_copy();
        self.rot_shared();
        let mut depth = 0;
        loop {
            if self.rng.once_in(3) {
                self.clock.set(std::time::Duration::from_millis(self.rng.below(100_000)));
            }
            // Writes that a killed process left in the cache can be read, and are not durable: a
            // power failure now is the worst.
            let cached = depth == 0 && !self.disk.unflushed().is_empty();
            if cached && self.rng.percent(80) {
                self.disk.arm_crash(1 + self.rng.below(3));
            } else if depth < self.params.depth && self.rng.percent(self.params.recovery_crash) {
                self.disk.arm_crash([0, 1, 2, 4, 8][self.rng.below(5) as usize]);
            }
            if depth == 0 {
                self.arm_recovery();
            }
            let opened = self.open_store();
            self.say(|| format!("open: {:?}", opened.as_ref().err()));
            depth += 1;
            if self.disk.is_down() {
                self.reach.hit(
                    [
                        "crash: in recovery",
                        "crash: in recovery, twice",
                        "crash: in recovery, three times and more",
                    ][depth.min(3) as usize - 1],
                );
                self.store = None;
                if self.rng.percent(20) {
                    self.disk.kill();
                } else {
                    self.disk.power_cycle();
                }
                continue;
            }
            self.disk.disarm_crash();
            match opened {
                Ok(()) if self.disk.has_failed() => {
                    return Err(Failure::new(
                        Checker::FailStop,
                        "recovery went on after a failed write or flush".to_owned(),
                    ));
                }
                Ok(()) => break,
                Err(_) if self.disk.damage() > 0 => {
                    self.reach.hit("damage: store refused");
                    return Ok(false);
                }
                Err(_) if (self.disk.read_faults() > 0 || self.disk.has_failed()) && depth < 12 => {
                    self.disk.power_cycle()
                }
                Err(error) => {
                    return Err(Failure::new(
                        Checker::Unexplained,
                        format!("the store can't be opened: {error:?}"),
                    ));
                }
            }
        }
        self.disk.disarm();
        self.recovered()
    }

    /// Faults that meet the recovery.
    fn arm_recovery(&mut self) {
        let (fault, percent) = match self.params.profile {
            Profile::ReadFaults => (Fault::ReadOnce, 30),
            Profile::StopFaults => {
                (self.params.faults.first().copied().unwrap_or(Fault::WriteError), 20)
            }
            Profile::Damage if self.rng.percent(30) => return self.disk.rot(),
            _ => return,
        };
        if self.rng.percent(percent) {
            self.disk.arm(fault, self.rng.below(12));
        }
    }

    /// Checks the store after recovery. False when damage has cost a change of the catalogue: then
    /// the model can't follow.
    fn recovered(&mut self) -> Result<bool, Failure> {
        self.resolve_size()?;
        let (read, bound) = (self.disk.blocks_read(), S::recovery_bound(&self.params.options));
        if read > bound {
            return Err(Failure::new(
                Checker::RecoveryCost,
                format!("recovery read {read} blocks; the bound is {bound}"),
            ));
        }
        self.model.damage = self.disk.damage();
        self.model.restart();
        let Some(store) = &self.store else { return Ok(false) };
        if self.params.options.quotas {
            self.model.resolve_quotas(|id| store.quota(id).0)?;
        }
        self.resolve_limits()?;
        let Some(store) = &self.store else { return Ok(false) };
        let listed = match store.volumes() {
            Ok(volumes) => self.model.resolve(&volumes),
            Err(error) => Err(Failure::new(
                Checker::Volumes,
                format!("the volumes can't be listed: {error:?}"),
            )),
        };
        if let Err(failure) = listed {
            if self.disk.damage() == 0 {
                return Err(failure);
            }
            self.reach.hit("damage: catalogue");
            return Ok(false);
        }
        self.settle_stop(Sim::bury)?;
        if self.rng.percent(self.params.verify_at_once) {
            self.settle_stop(Sim::verify)?;
        }
        Ok(true)
    }

    /// Lets only a failure through: for parts in which an end of the life is explained or harmless.
    fn settle_stop(&mut self, part: impl FnOnce(&mut Self) -> Flow<()>) -> Result<(), Failure> {
        match part(self) {
            Err(Stop::Failed(failure)) => Err(failure),
            _ => Ok(()),
        }
    }

    /// Blocks that a copy of the disk needs: a growth may have become true.
    pub(crate) fn blocks_wanted(&self) -> u64 {
        let now = self.params.options.disk_blocks;
        self.growing.map_or(now, |growing| growing.blocks.max(now))
    }

    /// On a copy of the crashed disk: what must hold there already; then, now and then, recovery,
    /// close, and the verifier; sometimes on a disk that is smaller than it was.
    fn sideways(&mut self) -> Result<(), Failure> {
        if self.disk.damage() == 0 && S::tables_hold_at_any_time(&self.params.options) {
            let copy = VirtualDisk::from_image(
                self.disk.view(),
                self.blocks_wanted(),
                Arc::default(),
                Rng::new(0),
            );
            self.reach.hit("verifier: of what a crash left");
            self.judge_report(S::truth(&Arc::new(copy), &self.params.options))?;
        }
        if self.rng.percent(96) || self.disk.damage() > 0 {
            return Ok(());
        }
        let clock = Arc::new(VirtualClock::default());
        let blocks = self.blocks_wanted();
        let copy = Arc::new(VirtualDisk::from_image(
            self.disk.view(),
            blocks,
            Arc::clone(&clock),
            self.rng.fork(),
        ));
        let open = |blocks: u64| {
            copy.set_blocks(blocks);
            S::open(
                Arc::clone(&copy) as Arc<dyn Disk>,
                Arc::clone(&clock) as Arc<dyn Clock>,
                &self.params.options,
            )
        };
        if self.growing.is_none() && self.rng.percent(30) {
            self.reach.hit("fault: device smaller than formatted");
            if open(blocks - self.rng.within(1, blocks / 2)).is_ok() {
                return Err(Failure::new(
                    Checker::NoPanic,
                    "a store on a disk that is smaller than formatted was opened".to_owned(),
                ));
            }
            if !copy.take_abuse().is_empty() {
                return Err(Failure::new(
                    Checker::DiskContract,
                    "I/O beyond the end of a disk that shrank".to_owned(),
                ));
            }
        }
        let closed = open(blocks).and_then(S::close);
        if let Err(error) = closed {
            return Err(Failure::new(
                Checker::Unexplained,
                format!("open and close of a copy: {error:?}"),
            ));
        }
        copy.next_session();
        self.reach.hit("verifier: after recovery");
        self.verifier(&copy)?;
        self.read_again(&copy, None).map(|_| ())
    }

    /// One of two copies rots, sometimes. While something is unflushed the other copy may be torn
    /// yet.
    fn rot_copy(&mut self) {
        if self.rng.percent(85) || self.disk.damage() > 0 || !self.disk.unflushed().is_empty() {
            return;
        }
        let copies = S::copies(&self.disk, &self.params.options);
        if let Some(&(at, what)) = self.rng.pick(&copies) {
            self.reach.hit(what);
            self.say(|| format!("{what}: block {at}"));
            self.disk.rot_copy(at);
        }
    }

    /// Some of what maps share rots: counts may become too high, and writes may stop, but nothing
    /// else may be lost.
    fn rot_shared(&mut self) {
        let rots = self.params.options.snapshots.is_some_and(|sharing| sharing.rots);
        if !rots || !self.disk.unflushed().is_empty() || !self.rot.percent(80) {
            return;
        }
        let mut pages = S::shared_pages(&self.disk, &self.params.options);
        let mut kinds: Vec<&str> = pages.iter().map(|(_, what)| *what).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let kind = self.rot.pick(&kinds).copied();
        pages.retain(|(_, what)| Some(*what) == kind);
        if let Some(&(at, what)) = self.rot.pick(&pages) {
            self.reach.hit(what);
            self.say(|| format!("{what}: block {at}"));
            self.disk.rot_block(at);
        }
    }

    fn verifier(&self, disk: &Arc<VirtualDisk>) -> Result<(), Failure> {
        self.judge_report(S::check(disk, &self.params.options))
    }

    fn judge_report(&self, report: Result<Report, Error>) -> Result<(), Failure> {
        let report = report.map_err(|error| {
            Failure::new(Checker::StoreCheck, format!("the verifier failed: {error:?}"))
        })?;
        if let Some(problem) = report.problems.first() {
            let counts = report
                .problems
                .iter()
                .any(|problem| problem.contains("reference") || problem.contains("count"));
            let checker = if counts { Checker::ReferenceCounts } else { Checker::StoreCheck };
            return Err(Failure::new(
                checker,
                format!("{problem} (and {} more)", report.problems.len() - 1),
            ));
        }
        let bound = S::leak_bound(&self.params.options);
        if report.leaked > bound {
            return Err(Failure::new(
                Checker::ReferenceCounts,
                format!("{} blocks leaked; the bound is {bound}", report.leaked),
            ));
        }
        Ok(())
    }

    /// Requests and steps until the power fails.
    fn life(&mut self) -> Flow<()> {
        if self.rng.percent(90) {
            self.disk.arm_crash(self.rng.below(self.params.crash_within));
        }
        for index in 0..self.params.faults.len() {
            self.disk.arm(self.params.faults[index], self.rng.below(self.params.crash_within * 2));
        }
        for _ in 0..self.rng.within(0, self.params.ops) {
            self.moment()?;
        }
        Ok(())
    }

    /// One request, some steps, some time.
    fn moment(&mut self) -> Flow<()> {
        if self.model.volumes().len() < self.params.volumes as usize {
            self.create_volume()?;
        }
        if self.params.profile == Profile::HostFull && self.rng.once_in(10) {
            self.disk.set_host_full(self.rng.percent(50));
        }
        if self.params.options.grows && self.rng.once_in(15) {
            self.grow()?;
        }
        self.limit_domains()?;
        let mut mix = self.params.mix;
        if self.params.profile == Profile::Churn {
            self.moments += 1;
            mix = churn(self.moments);
        }
        let op = Op::ALL[self.rng.weighted(&mix)];
        self.request(op)?;
        self.read_in_order()?;
        self.steps()?;
        let pace = self.params.pace.as_nanos() as u64;
        self.clock.advance(std::time::Duration::from_nanos(self.rng.below(pace + 1)));
        Ok(())
    }

    /// Checks a store that a fault has stopped.
    fn stopped(&mut self) -> Result<(), Failure> {
        self.reach.hit("store stopped by a fault");
        if !self.disk.has_failed() {
            return Ok(());
        }
        self.disk.disarm();
        self.disk.disarm_crash();
        let Some(store) = &self.store else { return Ok(()) };
        let durable = store.durable();
        let fail = |message: &str| Err(Failure::new(Checker::FailStop, message.to_owned()));
        if let Some(volume) = self.model.volumes().values().next() {
            let (id, lba) = (volume.id, self.rng.below(volume.blocks));
            // A write may still be taken into a window by an engine that has not looked; it must
            // never become durable.
            let _ = store.write(id, lba * 4096, &[1; 4096], &mut 0);
            if store.flush(id).is_ok() {
                return fail("a flush succeeded after a failed write or flush");
            }
        }
        for step in Step::ALL {
            let _ = store.step(step);
        }
        if store.durable() != durable {
            return fail("changes were acknowledged after a failed write or flush");
        }
        match self.disk.calls_after_failure() {
            0 => Ok(()),
            n => fail(&format!("{n} writes and flushes were tried after the first failure")),
        }
    }

    /// The disk was used as its contract says.
    fn contract(&self) -> Result<(), Failure> {
        match self.disk.take_abuse().first() {
            Some(abuse) => Err(Failure::new(Checker::DiskContract, abuse.clone())),
            None => Ok(()),
        }
    }

    /// No faults any more: it works, it closes (perhaps not at the first try), and all of it is
    /// right.
    fn last_life(&mut self) -> Result<(), Failure> {
        self.disk.set_host_full(false);
        let mut closed = false;
        for _ in 0..2 {
            self.settle_stop(Sim::last_requests)?;
            if self.rng.once_in(3) {
                self.disk.arm_crash(self.rng.below(8));
            }
            let result = self.let_go().map(S::close);
            self.say(|| format!("close: {result:?}"));
            closed = !self.disk.is_down();
            if let (true, Some(Err(error))) = (closed, &result) {
                if self.disk.damage() > 0 {
                    return Ok(());
                }
                return Err(Failure::new(Checker::Unexplained, format!("close: {error:?}")));
            }
            self.disk.disarm_crash();
            if closed {
                break;
            }
            self.reach.hit("crash: in close");
            self.params.recovery_crash = 0;
            if !self.reopen(true)? {
                return Ok(());
            }
        }
        if closed && self.disk.damage() == 0 {
            self.disk.next_session();
            self.verifier(&self.disk)?;
            self.reach.hit("verifier: after close");
        }
        if closed {
            let (disk, model) = (Arc::clone(&self.disk), self.model.clone());
            self.read_again(&disk, Some(&model))?;
        }
        self.params.verify_at_once = 100;
        let crash = !closed || self.rng.percent(50);
        self.reopen(crash)?;
        self.contract()
    }

    /// Requests without a crash; then all is flushed, or the close finds windows that are not.
    fn last_requests(&mut self) -> Flow<()> {
        self.verify()?;
        for _ in 0..self.rng.below(20) {
            self.moment()?;
        }
        self.disk.set_host_full(false);
        if self.params.options.snapshots.is_some() && self.rng.percent(30) {
            return self.all_goes();
        }
        if self.rng.percent(50) { self.idle() } else { Ok(()) }
    }

    /// True when this session met damage of a table, or a fault of its read: what can't be read
    /// can't be changed either.
    fn met_metadata(&self) -> bool {
        self.disk.met_in_session().iter().any(|&at| self.disk.class_of(at) == Some(Class::Table))
    }

    /// Says whether an error ends the life, or is a failure since nothing explains it.
    pub(crate) fn judge(&mut self, what: &str, error: &Error) -> Stop {
        self.say(|| format!("{what}: {error:?}"));
        if self.disk.is_down() {
            Stop::Down
        } else if error.kind() == Kind::Stopped && !self.disk.has_failed() && !self.met_metadata() {
            Failure::new(
                Checker::DamageSpreads,
                format!("no write or flush has failed, and yet: {what}: {error:?}"),
            )
            .into()
        } else if self.disk.has_failed() || self.disk.damage() > 0 || self.disk.read_faults() > 0 {
            Stop::Ended
        } else if error.kind() == Kind::NoSpace {
            Failure::new(Checker::SpaceReserved, format!("{what}: {error:?}")).into()
        } else {
            Failure::new(Checker::Unexplained, format!("{what}: {error:?}")).into()
        }
    }
}
