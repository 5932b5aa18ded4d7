//! One seed: parameters, what the processes do in turn, crashes, and the comparison with the model.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_archive::{
    Archive, Chunking, Compression, Format, PlantedBug, Rad, Settings, check,
    collect::{Collection, Options},
    format::record::Shape,
    get::{Content, Reader, Verify},
    nodes::{
        Nodes, Spread,
        label::Absent,
        rebuild::{Replacement, repair, replace},
    },
    put::{Cutting, Ended, Session, Stower, Writing},
    settings::VOLUME_BLOCK_BYTES,
};
use onefold_core::{Error, Files, Kind};

use super::{
    files::VirtualFiles,
    mount::Mount,
    rad,
    volumes::{Disk, Serving},
};
use crate::{
    checker::{Checker, Failure},
    reach::Reach,
    rng::Rng,
    runner::guarded,
};

/// What a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Power failures and kills.
    Crashes,
    /// Rot in data: errors are right answers, wrong content is not.
    Damage,
    /// A disk that gets full.
    FullDisk,
    /// Writes and syncs that fail.
    StopFaults,
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub struct Params {
    /// The seed.
    pub seed: u64,
    /// What the run is about.
    pub profile: Profile,
    /// How streams are cut.
    pub chunking: Chunking,
    /// How containers are compressed.
    pub compression: Compression,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of a container.
    pub container_bytes: usize,
    /// Bytes between two syncs.
    pub sync_bytes: u64,
    /// Bytes of log before a snapshot.
    pub log_bytes: u64,
    /// Entries of the auxiliary index.
    pub auxiliary_entries: usize,
    /// Collection runs.
    pub collects: bool,
    /// The archive has volumes, and is served now and then.
    pub serves: bool,
    /// Seconds that unfinished containers are spared.
    pub keep_partial: u64,
    /// Lives.
    pub rounds: u64,
    /// Moves in a life.
    pub moves: u64,
    /// A life ends inside one of so many calls.
    pub crash_within: u64,
    /// The share of crashes that are kills, in percent.
    pub kills: u64,
    /// Nodes, and shards of a container with and without parity; nothing for one directory.
    pub spread: Option<(usize, usize, usize)>,
    /// Late encoding.
    pub late: Option<Rad>,
    /// The planted bug.
    pub bug: Option<usize>,
}

impl Params {
    /// The parameters that belong to `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Params {
        let rng = &mut Rng::new(seed ^ 0x6172_6368_6976_6500);
        let choose = |rng: &mut Rng, choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        let profile = [Profile::Crashes, Profile::Damage, Profile::FullDisk, Profile::StopFaults][rng.weighted(&[12, 2, 2, 1])];
        let params = Params {
            seed,
            profile,
            chunking: [Chunking::FastCdc(1024), Chunking::Rabin(1024), Chunking::Static(1024)][rng.weighted(&[3, 1, 2])],
            compression: [Compression::None, Compression::Lz4, Compression::Zstd][rng.below(3) as usize],
            segment_bytes: choose(rng, &[16 << 10, 64 << 10, 256 << 10]),
            container_bytes: choose(rng, &[4 << 10, 8 << 10, 16 << 10]) as usize,
            sync_bytes: choose(rng, &[8 << 10, 32 << 10, 1 << 20]),
            log_bytes: choose(rng, &[1 << 10, 4 << 10, 64 << 10]),
            auxiliary_entries: choose(rng, &[4, 16, 64, 1000]) as usize,
            collects: rng.percent(70),
            keep_partial: choose(rng, &[0, 0, 5, 1000]),
            rounds: rng.within(2, 6),
            moves: choose(rng, &[15, 40, 100, 200]),
            crash_within: choose(rng, &[10, 40, 150, 500]),
            kills: choose(rng, &[0, 30, 60]),
            spread: None,
            late: None,
            bug: None,
            serves: rng.percent(40),
        };
        if profile == Profile::Crashes && rng.percent(35) {
            let spread = [(3, 3, 2), (4, 3, 2), (5, 5, 3), (6, 5, 3)][rng.below(4) as usize];
            let late = rad::draw(seed, spread);
            // What is settled was put, counted and condemned before: a life must be long enough for it.
            let crash_within = params.crash_within * if late.is_some() { 8 } else { 1 };
            return Params { spread: Some(spread), late, moves: params.moves.min(100), crash_within, ..params };
        }
        if profile == Profile::Damage {
            // Rot matters where collection copies what rotted, and what is compressed does not expand.
            return Params { collects: true, compression: Compression::None, moves: params.moves.max(100), crash_within: 1_000, ..params };
        }
        params
    }
}

/// How one seed ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was run.
    pub params: Params,
    /// What was found.
    pub failure: Option<Failure>,
    /// The hash of all calls.
    pub trace: u64,
    /// What was reached.
    pub reach: Reach,
}

/// Runs one seed; `loud` prints what happens.
#[must_use]
pub fn run_seed(seed: u64, bug: Option<usize>, loud: bool) -> Outcome {
    run_params(Params { bug, ..Params::draw(seed) }, loud)
}

/// Runs what `params` say.
#[must_use]
pub fn run_params(params: Params, loud: bool) -> Outcome {
    let mut sim = Sim::new(params.clone(), loud);
    let failure = guarded(|| sim.run()).err();
    sim.actors = Actors::default();
    let mut reach = std::mem::take(&mut sim.reach);
    reach.merge(&sim.files.reach());
    Outcome { params, failure, trace: sim.files.trace(), reach }
}

pub(super) type Flow = Result<(), Stop>;

/// Why a life ends.
pub(super) enum Stop {
    /// Crash, kill, or a failed call.
    Down,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// A change that was under way when its process died.
#[derive(Clone, Debug)]
pub(super) enum Unsure {
    Put(String, Arc<Vec<u8>>),
    Remove(String),
    Rename(String, String),
    /// Its blocks afterwards.
    VolumeSize(String, usize),
    VolumeName(String, String),
}

pub(super) struct Putting {
    archive: Arc<Archive>,
    session: Session,
    stower: Stower,
    cutting: Cutting,
    writing: Writing,
    name: String,
    content: Arc<Vec<u8>>,
    fed: usize,
    /// Nothing of it may be new: its content is there already.
    known: bool,
    /// It is a stream of the serving process.
    pub(super) served: bool,
}

struct Reading {
    reader: Reader,
    name: String,
    content: Arc<Vec<u8>>,
}

#[derive(Default)]
pub(super) struct Actors {
    pub(super) putting: Option<Box<Putting>>,
    pub(super) serving: Option<Serving>,
    readings: Vec<Reading>,
    collection: Option<(Arc<Archive>, Box<Collection>)>,
    admin: Option<Arc<Archive>>,
}

pub(super) struct Sim {
    pub(super) params: Params,
    pub(super) loud: bool,
    pub(super) rng: Rng,
    pub(super) files: VirtualFiles,
    pub(super) actors: Actors,
    pub(super) streams: BTreeMap<String, Arc<Vec<u8>>>,
    /// The volumes of the model, and how many changes of them there were.
    pub(super) disks: BTreeMap<String, Disk>,
    pub(super) changes: u64,
    pub(super) unsure: Option<Unsure>,
    pub(super) now: u64,
    mounts: Vec<Mount>,
    /// Nodes that are gone, outdated or rotten: never more than parity.
    bad: BTreeSet<usize>,
    /// Those of them that rotted.
    rotten: BTreeSet<usize>,
    /// Directories that are being filled, and how many there were.
    filling: BTreeMap<usize, Mount>,
    mounted: usize,
    /// Something rotted: errors are right answers from now on.
    pub(super) damaged: bool,
    pub(super) pool: Vec<Vec<u8>>,
    pub(super) reach: Reach,
}

impl Sim {
    fn new(params: Params, loud: bool) -> Sim {
        let mut rng = Rng::new(params.seed);
        let files = VirtualFiles::new(rng.fork());
        let mut pool = Vec::new();
        for _ in 0..12 {
            let mut piece = vec![0; rng.within(1_000, 9_000) as usize];
            rng.fill(&mut piece);
            pool.push(piece);
        }
        pool.push(vec![0; 20_000]);
        pool.push(vec![b'x'; 5_000]);
        Sim {
            params,
            loud,
            rng,
            files,
            actors: Actors::default(),
            streams: BTreeMap::new(),
            disks: BTreeMap::new(),
            changes: 0,
            unsure: None,
            now: 1_000,
            mounts: Vec::new(),
            bad: BTreeSet::new(),
            rotten: BTreeSet::new(),
            filling: BTreeMap::new(),
            mounted: 0,
            damaged: false,
            pool,
            reach: Reach::default(),
        }
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.loud {
            println!("{}", what());
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            auxiliary_entries: self.params.auxiliary_entries,
            cached_containers: 4,
            page_cache_bytes: 0,
            sync_bytes: self.params.sync_bytes,
            container_bytes: self.params.container_bytes,
            log_bytes: self.params.log_bytes,
            log_ahead_bytes: 128 << 10,
            count_slots: 20,
            ahead_bytes: 16 << 10,
            dirty_bytes: 8 * VOLUME_BLOCK_BYTES,
            bug: self.params.bug.map(|bug| PlantedBug::ALL[bug].1),
            ..Settings::default()
        }
    }

    pub(super) fn open(&mut self, writes: bool) -> Result<Arc<Archive>, Stop> {
        self.open_nodes(writes).map(|(archive, _)| archive)
    }

    fn open_nodes(&mut self, writes: bool) -> Result<(Arc<Archive>, Option<Arc<Nodes>>), Stop> {
        let nodes = match self.params.spread {
            Some(_) => {
                let mounts = self.mounts.iter().map(|mount| Some(Arc::new(mount.clone()) as Arc<dyn Files>)).collect();
                match Nodes::open_with(mounts, self.rng.percent(60), &self.settings()) {
                    Ok(nodes) => Some(Arc::new(nodes)),
                    Err(error) => return Err(self.judge("open", &error)),
                }
            }
            None => None,
        };
        let files: Arc<dyn Files> = match &nodes {
            Some(nodes) => nodes.clone(),
            None => Arc::new(self.files.clone()),
        };
        match Archive::open(files, writes, self.settings()) {
            Ok(archive) => Ok((Arc::new(archive), nodes)),
            Err(error) => Err(self.judge("open", &error)),
        }
    }

    /// Puts and collections may say that too few nodes are there.
    fn excuses(&self, what: &str) -> bool {
        !self.bad.is_empty() && matches!(what, "put" | "begin" | "gc" | "abandon" | "write" | "wait" | "zero" | "flush" | "tend" | "close")
    }

    /// What an error means: the end of the life, or a failure that nothing explains.
    pub(super) fn judge(&mut self, what: &str, error: &Error) -> Stop {
        self.say(|| format!("{what}: {error:?}"));
        if self.files.is_down() || self.files.take_failed() || self.damaged || self.excuses(what) {
            return Stop::Down;
        }
        let checker = if error.kind() == Kind::NoSpace { Checker::SpaceReserved } else { Checker::Unexplained };
        Failure::new(checker, format!("{what}: {error:?}")).into()
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut format = Format::new([7; 16], [8; 32], [9; 16]);
        (format.chunking, format.compression) = (self.params.chunking, self.params.compression);
        (format.segment_bytes, format.reserve_bytes, format.late) = (self.params.segment_bytes, 256 << 10, self.params.late);
        let created = match self.params.spread {
            None => Archive::create(&self.files, &format),
            Some((count, n, k)) => {
                self.mounts = (0..count).map(|node| Mount::new(&self.files, &format!("n{node}"))).collect();
                let mounts = self.mounts.iter().map(|mount| Arc::new(mount.clone()) as Arc<dyn Files>).collect();
                let spread = Spread { n, k, ids: (0..count).map(|node| [node as u8 + 1; 16]).collect() };
                Nodes::create(mounts, &spread, format.id, format.secret).and_then(|nodes| Archive::create(&nodes, &format))
            }
        };
        created.map_err(|e| Failure::new(Checker::Unexplained, format!("create: {e:?}")))?;
        for round in 0..self.params.rounds {
            self.say(|| format!("life {round}"));
            match self.life() {
                Ok(()) | Err(Stop::Down) => {}
                Err(Stop::Failed(failure)) => return Err(failure),
            }
            self.crash();
            // Recovery may crash too.
            for _ in 0..3 {
                if self.rng.percent(30) {
                    self.files.arm_crash(self.rng.below(6));
                    if let Err(Stop::Failed(failure)) = self.look() {
                        return Err(failure);
                    }
                    if self.files.is_down() {
                        self.reach.hit("crash: in recovery");
                    }
                    self.crash();
                }
            }
            match self.look() {
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Down) if !self.damaged => return Err(Failure::new(Checker::Progress, "it does not open")),
                _ => {}
            }
            self.actors = Actors::default();
        }
        self.end()
    }

    /// All processes end at once, and perhaps the power fails.
    fn crash(&mut self) {
        self.actors = Actors::default();
        if self.rng.percent(self.params.kills) {
            self.files.kill();
        } else {
            self.files.power_cycle();
        }
        self.files.disarm();
        let _ = self.files.take_failed();
    }

    fn life(&mut self) -> Flow {
        self.files.arm_crash(self.rng.below(self.params.crash_within));
        if self.params.profile == Profile::StopFaults {
            self.files.arm_failure(self.rng.percent(50), self.rng.below(100));
        }
        if self.params.profile == Profile::FullDisk {
            self.files.set_capacity(Some(self.files.used() + self.rng.within(20, 200) * 1024));
        }
        for _ in 0..self.params.moves {
            self.now += self.rng.below(3);
            self.one_move()?;
        }
        self.files.set_capacity(None);
        Ok(())
    }

    fn one_move(&mut self) -> Flow {
        let collects = u32::from(self.params.collects);
        let rots = if self.params.profile == Profile::Damage { 4 } else { 0 };
        let nodes = if self.params.spread.is_some() { 4 } else { 0 };
        let serves = if self.params.serves { 30 } else { 0 };
        match self.rng.weighted(&[20, 4, 2, 3, 8 * collects, 1, rots, nodes, serves, rots]) {
            0 => self.put_move(),
            1 => self.read_move(),
            2 => self.remove(),
            3 => self.look_at_names(),
            4 => {
                // Late encoding is the last step of many.
                let more = if self.params.late.is_some() { self.rng.below(8) } else { 0 };
                (0..=more).try_for_each(|_| self.collect_move())
            }
            5 => self.rename(),
            7 => self.node_move(),
            8 => self.volume_move(),
            9 => self.heal_move(),
            _ => {
                self.damaged |= self.files.rot("segment-");
                Ok(())
            }
        }
    }

    /// A node goes, comes back, rots, is replaced or mended.
    fn node_move(&mut self) -> Flow {
        let Some((count, n, k)) = self.params.spread else { return Ok(()) };
        if self.bad.is_empty() && self.rng.percent(15) {
            return self.too_many(n - k);
        }
        let good: Vec<usize> = (0..count).filter(|node| !self.bad.contains(node)).collect();
        if self.bad.len() < n - k && self.rng.percent(60) {
            let Some(&node) = self.rng.pick(&good) else { return Ok(()) };
            if self.rng.percent(20) {
                self.say(|| format!("an empty directory is in place of node {node}"));
                self.reach.hit("an empty mount point");
                self.mounted += 1;
                self.mounts[node] = Mount::new(&self.files, &format!("e{}", self.mounted));
                self.bad.insert(node);
            } else if self.rng.percent(70) {
                self.say(|| format!("node {node} is gone"));
                self.reach.hit("a node was lost");
                self.mounts[node].set_gone(true);
                self.bad.insert(node);
            } else {
                let prefix = format!("{}segment-", self.mounts[node].prefix());
                let rotten = (0..self.rng.within(1, 20)).filter(|_| self.files.rot(&prefix)).count();
                if rotten > 0 {
                    self.say(|| format!("node {node} rots in {rotten} places"));
                    self.rotten.insert(node);
                    self.bad.insert(node);
                }
            }
            return Ok(());
        }
        let bad: Vec<usize> = self.bad.iter().copied().collect();
        match self.rng.pick(&bad) {
            Some(&node) => self.heal(node),
            None => Ok(()),
        }
    }

    /// More nodes go than may be lost: nothing is changed then, and nothing is forgotten when they come back.
    fn too_many(&mut self, parity: usize) -> Flow {
        self.actors = Actors::default();
        let mut copies: Vec<usize> = (0..=2 * parity).collect();
        while copies.len() > parity {
            let n = self.rng.below(copies.len() as u64) as usize;
            copies.swap_remove(n);
        }
        let names: Vec<String> = self.streams.keys().cloned().collect();
        let (Some(name), false) = (self.rng.pick(&names).cloned(), copies.is_empty()) else { return Ok(()) };
        let set_gone = |sim: &Sim, gone: &dyn Fn(usize) -> bool| (0..=2 * parity).for_each(|node| sim.mounts[node].set_gone(gone(node)));
        set_gone(self, &|node| !copies.contains(&node));
        let removed = {
            let mounts = self.mounts.iter().map(|mount| Some(Arc::new(mount.clone()) as Arc<dyn Files>)).collect();
            let nodes = Nodes::open_with(mounts, false, &self.settings());
            nodes.and_then(|nodes| Archive::open(Arc::new(nodes), true, self.settings())).and_then(|archive| archive.remove(&name))
        };
        self.reach.hit("too many nodes were lost");
        if removed.is_ok() {
            self.streams.remove(&name);
        }
        set_gone(self, &|node| copies.contains(&node));
        let others = if removed.is_ok() { self.look_at_names() } else { Ok(()) };
        set_gone(self, &|_| false);
        if self.files.is_down() { Err(Stop::Down) } else { others }
    }

    /// Brings a bad node back, replaces it, or mends it.
    fn heal(&mut self, node: usize) -> Flow {
        // Filling waits for puts and collections, which here are of the same thread. Processes that saw a node fail leave it out.
        if self.actors.putting.is_some() || self.actors.collection.is_some() {
            return Ok(());
        }
        self.actors = Actors::default();
        if self.mounts[node].is_gone() && self.rng.percent(60) {
            self.mounts[node].set_gone(false);
        }
        let (archive, nodes) = self.open_nodes(true)?;
        let Some(nodes) = nodes else { return Ok(()) };
        let count = self.mounted;
        if let Some((_, why)) = nodes.absent().into_iter().find(|(absent, _)| *absent == node) {
            self.say(|| format!("node {node} is replaced: {why}"));
            self.reach.hit(if why == Absent::Outdated { "a node that came back was outdated" } else { "a node was replaced" });
            let to = self.filling.entry(node).or_insert_with(|| Mount::new(&self.files, &format!("r{count}"))).clone();
            self.mounted += 1;
            let replacement = Replacement { number: node, files: Arc::new(to.clone()), id: [100 + count as u8; 16] };
            match replace(&archive, &nodes, &replacement, &mut |_, _| {}) {
                Ok(_) => {
                    self.mounts[node] = to;
                    self.filling.remove(&node);
                    self.rotten.remove(&node);
                    self.bad.remove(&node);
                    self.actors.admin = None;
                }
                Err(error) => return Err(self.judge("replace", &error)),
            }
            return Ok(());
        }
        match repair(&archive, &nodes, &mut |_, _| {}) {
            Ok(done) if done.lost_containers == 0 => {
                if done.units.repaired_units > 0 {
                    self.reach.hit("rot was mended");
                }
                if done.units.bad_units > 0 && self.rotten.is_empty() && self.bad.len() == 1 {
                    let message = format!("node {node} counts, and lacks {} units", done.units.bad_units);
                    return Err(Failure::new(Checker::DurableSurvives, message).into());
                }
                if !self.mounts[node].is_gone() {
                    self.rotten.remove(&node);
                    self.bad.remove(&node);
                }
                Ok(())
            }
            Ok(done) => Err(Failure::new(Checker::DurableSurvives, format!("{done:?}")).into()),
            Err(error) => Err(self.judge("repair", &error)),
        }
    }

    fn content(&mut self) -> Arc<Vec<u8>> {
        let mut content = Vec::new();
        for _ in 0..self.rng.below(10) {
            if self.rng.percent(25) {
                let mut fresh = vec![0; self.rng.within(1, 6_000) as usize];
                self.rng.fill(&mut fresh);
                content.extend(fresh);
            } else if let Some(piece) = self.rng.pick(&self.pool) {
                content.extend_from_slice(piece);
            }
        }
        Arc::new(content)
    }

    fn put_move(&mut self) -> Flow {
        let Some(mut putting) = self.actors.putting.take() else { return self.begin_put() };
        if putting.fed < putting.content.len() {
            let done = self.feed(&mut putting);
            return self.after_put(putting, done, false);
        }
        if self.rng.percent(10) {
            // The process is killed; what it wrote stays.
            self.say(|| format!("put of {} killed", putting.name));
            self.reach.hit("a put killed");
            return Ok(());
        }
        let done = self.finish(&mut putting);
        self.after_put(putting, done, true)
    }

    fn after_put(&mut self, mut putting: Box<Putting>, done: Result<(), Error>, last: bool) -> Flow {
        match done {
            Ok(()) if last => {
                self.say(|| format!("put {} of {} bytes", putting.name, putting.content.len()));
                self.unsure = None;
                self.streams.insert(putting.name.clone(), putting.content.clone());
                if putting.known && putting.session.new_bytes > 0 {
                    let message = format!("{} bytes of {} were stored again", putting.session.new_bytes, putting.name);
                    return Err(Failure::new(Checker::DuplicatesFound, message).into());
                }
                Ok(())
            }
            Ok(()) => {
                self.actors.putting = Some(putting);
                Ok(())
            }
            Err(error) if error.kind() == Kind::NoSpace && self.params.profile == Profile::FullDisk && !self.files.is_down() => {
                self.say(|| "put: the disk is full".into());
                self.reach.hit("a put met a full disk");
                self.unsure = None;
                putting.stower.abandon();
                if self.files.is_down() { Err(Stop::Down) } else { Ok(()) }
            }
            Err(error) => {
                if !last {
                    self.unsure = None;
                }
                Err(self.judge("put", &error))
            }
        }
    }

    fn begin_put(&mut self) -> Flow {
        let served = self.actors.serving.as_ref().map(|serving| (serving.archive.clone(), serving.ingest.clone()));
        let is_served = served.is_some();
        let (archive, session) = match served {
            Some((archive, ingest)) => {
                if self.rng.percent(10) {
                    let other = self.open(true)?;
                    match Session::begin(&other, false) {
                        Err(error) if error.kind() == Kind::Busy => self.reach.hit("a second ingesting process was sent away"),
                        Err(error) => return Err(self.judge("begin", &error)),
                        Ok(_) => return Err(Failure::new(Checker::Unexplained, "two processes ingest at once").into()),
                    }
                }
                self.reach.hit("a put into a served archive");
                (archive, Session::on(&ingest))
            }
            None => {
                let archive = self.open(true)?;
                let session = Session::begin(&archive, false);
                (archive, session)
            }
        };
        let session = match session {
            Err(error) => return Err(self.judge("begin", &error)),
            Ok(session) => session,
        };
        let stower = Stower::new(&session, self.now);
        // What is there already must be found, when nothing was ever collected or damaged.
        let names: Vec<String> = self.streams.keys().cloned().collect();
        let simple = !self.params.collects && matches!(self.params.profile, Profile::Crashes);
        let known = if simple && self.rng.percent(40) { self.rng.pick(&names).cloned() } else { None };
        let content = match &known {
            Some(name) => self.streams[name].clone(),
            None => self.content(),
        };
        let name = format!("s{}", self.rng.below(6));
        let cutting = Cutting::new(archive.label().chunking);
        self.actors.putting = Some(Box::new(Putting {
            archive,
            session,
            stower,
            cutting,
            writing: Writing::default(),
            name,
            content,
            fed: 0,
            known: known.is_some(),
            served: is_served,
        }));
        Ok(())
    }

    fn feed(&mut self, putting: &mut Putting) -> Result<(), Error> {
        let Putting { archive, session, stower, cutting, writing, content, fed, .. } = putting;
        let n = (self.rng.within(1, 12_000) as usize).min(content.len() - *fed);
        let mut rest = &content[*fed..*fed + n];
        *fed += n;
        while !rest.is_empty() {
            let room = cutting.room();
            let part = rest.len().min(room.len());
            room[..part].copy_from_slice(&rest[..part]);
            rest = &rest[part..];
            if let Some(mut batch) = cutting.advance(part) {
                batch.fingerprint(archive);
                session.take(&batch, writing, &mut |open| stower.stow(open))?;
            }
        }
        // Batches are larger than these streams: what can be cut is stored now and then.
        if self.rng.percent(30) {
            let mut batch = cutting.some();
            batch.fingerprint(archive);
            session.take(&batch, writing, &mut |open| stower.stow(open))?;
        }
        if stower.must_import() {
            self.reach.hit("imported under way");
            stower.import(true)?;
        }
        Ok(())
    }

    fn finish(&mut self, putting: &mut Putting) -> Result<(), Error> {
        let Putting { archive, session, stower, cutting, writing, name, content, .. } = putting;
        let mut batch = cutting.end();
        batch.fingerprint(archive);
        session.take(&batch, writing, &mut |open| stower.stow(open))?;
        let data = session.end_recipe(std::mem::take(writing), &mut |open| stower.stow(open))?;
        session.seal(&mut |open| stower.stow(open))?;
        self.unsure = Some(Unsure::Put(name.clone(), content.clone()));
        stower.commit(Ended { name: name.clone(), shape: Shape::Bytes, created: self.now, data, listing: Vec::new() })?;
        // It is acknowledged from here on.
        self.streams.insert(name.clone(), content.clone());
        self.unsure = None;
        if self.rng.percent(70) && stower.import(true)? {
            self.reach.hit("imported at the end");
        }
        stower.close()
    }

    fn read_move(&mut self) -> Flow {
        if self.actors.readings.is_empty() || (self.actors.readings.len() < 3 && self.rng.percent(40)) {
            let names: Vec<String> = self.streams.keys().cloned().collect();
            let Some(name) = self.rng.pick(&names).cloned() else { return Ok(()) };
            let archive = self.open(true)?;
            match Reader::new(&archive) {
                Ok(reader) => {
                    let content = self.streams[&name].clone();
                    self.actors.readings.push(Reading { reader, name, content });
                    Ok(())
                }
                Err(error) => Err(self.judge("reader", &error)),
            }
        } else {
            let n = self.rng.below(self.actors.readings.len() as u64) as usize;
            let Reading { mut reader, name, content } = self.actors.readings.swap_remove(n);
            self.reach.hit("a reader read what it had opened");
            self.compare(&mut reader, &name, &content)
        }
    }

    fn compare(&mut self, reader: &mut Reader, name: &str, content: &[u8]) -> Flow {
        let mut bytes = Vec::new();
        let read = reader.stream(name).and_then(|stream| {
            reader.read(&stream.recipe, Verify::Groups, &mut |part| {
                match part {
                    Content::Bytes(part) => bytes.extend_from_slice(part),
                    Content::Zeroes(n) => bytes.resize(bytes.len() + n as usize, 0),
                }
                Ok(())
            })
        });
        match read {
            Ok(()) if bytes == content => Ok(()),
            Ok(()) => Err(Failure::new(Checker::NeverWrong, format!("stream {name} has other bytes")).into()),
            Err(error) if error.kind() == Kind::Corrupt && self.damaged => {
                self.reach.hit("damage was told");
                Ok(())
            }
            Err(error) if self.files.is_down() => Err(self.judge("read", &error)),
            Err(error) => Err(Failure::new(Checker::DurableSurvives, format!("stream {name}: {error:?}")).into()),
        }
    }

    pub(super) fn admin(&mut self) -> Result<Arc<Archive>, Stop> {
        if let Some(archive) = &self.actors.admin {
            return Ok(archive.clone());
        }
        let archive = self.open(true)?;
        self.actors.admin = Some(archive.clone());
        Ok(archive)
    }

    fn remove(&mut self) -> Flow {
        let names: Vec<String> = self.streams.keys().cloned().collect();
        let Some(name) = self.rng.pick(&names).cloned() else { return Ok(()) };
        let archive = self.admin()?;
        self.unsure = Some(Unsure::Remove(name.clone()));
        match archive.remove(&name) {
            Ok(()) => {
                self.say(|| format!("removed {name}"));
                self.streams.remove(&name);
                self.unsure = None;
                Ok(())
            }
            Err(error) => Err(self.judge("remove", &error)),
        }
    }

    fn rename(&mut self) -> Flow {
        let names: Vec<String> = self.streams.keys().cloned().collect();
        let Some(name) = self.rng.pick(&names).cloned() else { return Ok(()) };
        let to = format!("s{}", self.rng.below(6));
        if self.streams.contains_key(&to) {
            return Ok(());
        }
        let archive = self.admin()?;
        self.unsure = Some(Unsure::Rename(name.clone(), to.clone()));
        match archive.rename(&name, &to) {
            Ok(()) => {
                if let Some(content) = self.streams.remove(&name) {
                    self.streams.insert(to, content);
                }
                self.unsure = None;
                Ok(())
            }
            Err(error) => Err(self.judge("rename", &error)),
        }
    }

    fn collect_move(&mut self) -> Flow {
        let (archive, mut collection) = match self.actors.collection.take() {
            Some(running) => running,
            None => {
                let archive = self.open(true)?;
                let options = Options {
                    now: self.now,
                    keep_partial: self.params.keep_partial,
                    wait: false,
                    reserve_bytes: 256 << 10,
                    settle_all: self.params.late.is_some() && self.rng.percent(20),
                };
                match Collection::begin(&archive, options) {
                    Ok(collection) => (archive, Box::new(collection)),
                    Err(error) => return Err(self.judge("gc", &error)),
                }
            }
        };
        if self.rng.percent(3) {
            self.reach.hit("a collector killed");
            return Ok(());
        }
        let before = collection.done.settled;
        let stepped = collection.step();
        if collection.done.settled > before {
            self.reach.hit("containers settled");
        }
        match stepped {
            Ok(true) => {
                self.actors.collection = Some((archive, collection));
                Ok(())
            }
            Ok(false) => {
                self.say(|| format!("collected: {:?}", collection.done));
                for (what, n) in [
                    ("containers dropped", collection.done.dropped),
                    ("containers merged", collection.done.merged),
                    ("a damaged container stayed", collection.done.damaged),
                    ("places held back by readers", collection.done.held_back),
                    ("collection waits for older puts", u64::from(collection.done.waits)),
                ] {
                    if n > 0 {
                        self.reach.hit(what);
                    }
                }
                Ok(())
            }
            Err(error) => Err(self.judge("gc", &error)),
        }
    }

    /// The names are those of the model.
    fn look_at_names(&mut self) -> Flow {
        let reads_only = self.rng.percent(20);
        let archive = if reads_only { self.open(false)? } else { self.admin()? };
        let tables = match archive.refresh() {
            Ok(tables) => tables,
            Err(error) => return Err(self.judge("refresh", &error)),
        };
        let found: Vec<&String> = tables.streams.keys().collect();
        let expected: Vec<&String> = self.streams.keys().collect();
        if found != expected {
            return Err(Failure::new(Checker::DurableSurvives, format!("streams {found:?} instead of {expected:?}")).into());
        }
        Ok(())
    }

    /// After a crash: what was under way is there or not, all else is as it was.
    fn look(&mut self) -> Flow {
        let archive = self.open(true)?;
        let mut reader = match Reader::new(&archive) {
            Ok(reader) => reader,
            Err(error) => return Err(self.judge("reader", &error)),
        };
        self.resolve(&mut reader)?;
        let found: Vec<String> = reader.tables().streams.keys().cloned().collect();
        let expected: Vec<String> = self.streams.keys().cloned().collect();
        if found != expected {
            return Err(Failure::new(Checker::DurableSurvives, format!("after a crash streams {found:?} instead of {expected:?}")).into());
        }
        for (name, content) in self.streams.clone() {
            self.compare(&mut reader, &name, &content)?;
        }
        self.look_at_volumes(&archive)?;
        rad::look_at_places(&archive.tables(), self.params.late.is_some())?;
        if !self.damaged {
            match check::check(&archive, true, &mut |_, _, _| {}) {
                Ok(report) if report.is_well() => {}
                Ok(report) => return Err(Failure::new(Checker::StoreCheck, report.problems.join("; ")).into()),
                Err(error) => return Err(self.judge("check", &error)),
            }
            self.reach.hit("checked after a crash");
        }
        Ok(())
    }

    fn resolve(&mut self, reader: &mut Reader) -> Flow {
        let Some(unsure) = self.unsure.take() else { return Ok(()) };
        let tables = reader.tables().clone();
        match &unsure {
            Unsure::Put(name, content) => {
                // New or old: told apart by what is read, when both have the name.
                let is_new = match tables.streams.get(name) {
                    None => false,
                    Some(stream) => {
                        let mut bytes = Vec::new();
                        let read = reader.read(&stream.recipe, Verify::Groups, &mut |part| {
                            match part {
                                Content::Bytes(part) => bytes.extend_from_slice(part),
                                Content::Zeroes(n) => bytes.resize(bytes.len() + n as usize, 0),
                            }
                            Ok(())
                        });
                        if read.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt) && self.damaged {
                            bytes.clone_from(content);
                            bytes.truncate(stream.bytes as usize);
                        } else if let Err(error) = read {
                            let ended = self.judge("read", &error);
                            self.unsure = Some(unsure);
                            return Err(ended);
                        }
                        bytes == **content
                    }
                };
                if is_new {
                    self.reach.hit("a put was there without its acknowledgement");
                    self.streams.insert(name.clone(), content.clone());
                }
            }
            Unsure::Remove(name) => {
                if !tables.streams.contains_key(name) {
                    self.streams.remove(name);
                }
            }
            Unsure::VolumeSize(name, after) => match tables.volume(name) {
                Err(_) => drop(self.disks.remove(name)),
                Ok((_, volume)) if volume.blocks() == *after as u64 => {
                    self.disks.entry(name.clone()).or_insert_with(|| Disk::new(*after)).resize(*after);
                }
                Ok(_) => {}
            },
            Unsure::VolumeName(from, to) => {
                if tables.volume(from).is_err()
                    && let Some(disk) = self.disks.remove(from)
                {
                    self.disks.insert(to.clone(), disk);
                }
            }
            Unsure::Rename(from, to) => {
                if !tables.streams.contains_key(from)
                    && let Some(content) = self.streams.remove(from)
                {
                    self.streams.insert(to.clone(), content);
                }
            }
        }
        Ok(())
    }

    /// The last segments of each owner and class stay.
    fn segments_left(&self) -> usize {
        if self.params.late.is_some() { 7 } else { 2 }
    }

    /// When nothing fails, all that stands replicated can be encoded, and is what it was.
    fn settle_all(&mut self) -> Flow {
        if self.params.late.is_none() {
            return Ok(());
        }
        for _ in 0..2 {
            let archive = self.open(true)?;
            let options = Options { now: self.now, keep_partial: 0, wait: false, reserve_bytes: 256 << 10, settle_all: true };
            let collected = Collection::begin(&archive, options).and_then(|collection| collection.run(&mut |_| {}));
            collected.map_err(|e| self.judge("gc", &e))?;
        }
        let left = self.open(true)?.tables().replicated();
        if left.1 > 0 {
            return Err(Failure::new(Checker::Progress, format!("{} containers stand replicated for ever", left.1)).into());
        }
        self.look()
    }

    /// When faults stop, it works again: everything is removed and collected, and nothing is left.
    fn end(&mut self) -> Result<(), Failure> {
        let ended = match self.last() {
            Ok(()) => Ok(()),
            Err(Stop::Failed(failure)) => Err(failure),
            Err(Stop::Down) if self.damaged => Ok(()),
            Err(Stop::Down) => Err(Failure::new(Checker::Progress, "it does not work although nothing fails")),
        };
        self.actors = Actors::default();
        ended
    }

    fn last(&mut self) -> Flow {
        self.files.set_capacity(None);
        self.actors = Actors::default();
        while let Some(&node) = self.bad.first() {
            self.heal(node)?;
        }
        for _ in 0..30 {
            self.put_move()?;
            self.read_move()?;
            if self.params.serves {
                self.volume_move()?;
            }
        }
        self.actors = Actors::default();
        self.look()?;
        self.settle_all()?;
        for name in self.disks.keys().cloned().collect::<Vec<_>>() {
            let archive = self.admin()?;
            archive.delete_volume(&name).map_err(|e| self.judge("delete", &e))?;
            self.disks.remove(&name);
        }
        for name in self.streams.keys().cloned().collect::<Vec<_>>() {
            let archive = self.admin()?;
            archive.remove(&name).map_err(|e| self.judge("remove", &e))?;
            self.streams.remove(&name);
        }
        self.actors = Actors::default();
        self.now += 10_000;
        for _ in 0..2 {
            let archive = self.open(true)?;
            let options = Options { now: self.now, keep_partial: 0, wait: false, reserve_bytes: 256 << 10, settle_all: false };
            let collected = Collection::begin(&archive, options).and_then(|collection| collection.run(&mut |_| {}));
            collected.map_err(|e| self.judge("gc", &e))?;
        }
        let archive = self.open(true)?;
        let tables = archive.tables();
        if !self.damaged && (tables.stored_bytes() > 0 || tables.segments.len() > self.segments_left() || !tables.leaving.is_empty()) {
            let left: Vec<_> = tables.containers.keys().collect();
            return Err(Failure::new(Checker::ReferenceCounts, format!("containers {left:?} are left of nothing")).into());
        }
        self.reach.hit("everything was collected");
        Ok(())
    }
}
