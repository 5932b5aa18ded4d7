//! One seed: parameters, what the processes do in turn, crashes, and the comparison with the model.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_archive::{
    Archive, Collection, CollectionOptions as Options, Cutting, Format, KeySource, Nodes, Reader,
    Rule, Session, Settings, Spread, StreamWriter, VOLUME_BLOCK_BYTES, Writing,
};
use onefold_core::{Algorithm, Error, Files, Kind};
use onefold_testbed::{Reach, Rng, VirtualFiles, files::Mount};

use super::{
    actors::{
        data_keys::DataKeys,
        domains::Places,
        heads::Heads,
        index_disk::IndexDisk,
        keys::Sealed,
        put_back::Taken,
        server::Serving,
        snapshots::{Backing, Tree},
        upgrades::Upgraded,
    },
    checks::damage::LAYOUT,
    model::{Disk, Snapshots, Unsure},
    params::{Medium, Params, Profile},
};
use crate::checker::{Checker, Failure};

pub(super) type Flow = Result<(), Stop>;

/// What a container may have more than its size: its last chunk, and its metadata.
const CHUNKS_BYTES: u64 = 16 << 10;

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

pub(super) struct Putting {
    pub(super) archive: Arc<Archive>,
    pub(super) session: Session,
    pub(super) writer: StreamWriter,
    pub(super) cutting: Cutting,
    pub(super) writing: Writing,
    pub(super) name: String,
    pub(super) content: Arc<Vec<u8>>,
    pub(super) fed: usize,
    /// Nothing of it may be new: its content is there already.
    pub(super) known: bool,
    /// The serving process puts the stream.
    pub(super) served: bool,
}

pub(super) struct Reading {
    pub(super) reader: Reader,
    pub(super) name: String,
    pub(super) content: Arc<Vec<u8>>,
}

#[derive(Default)]
pub(super) struct Actors {
    pub(super) putting: Option<Box<Putting>>,
    pub(super) backing: Option<Box<Backing>>,
    pub(super) serving: Option<Serving>,
    pub(super) readings: Vec<Reading>,
    pub(super) collection: Option<(Arc<Archive>, Box<Collection>)>,
    /// The last collection counts all references anew.
    pub(super) recounts: bool,
    pub(super) admin: Option<Arc<Archive>>,
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
    /// The snapshots of the model, and the tree of which the next one is made.
    pub(super) kept: Snapshots,
    /// Checkpoints of backups, and the trees that these were of.
    pub(super) checkpoints: BTreeMap<[u8; 16], Arc<Tree>>,
    pub(super) tree: Tree,
    pub(super) changes: u64,
    pub(super) unsure: Option<Unsure>,
    /// Chunks that are whole were noted as damaged: what came since may have been stored again.
    pub(super) noted: bool,
    pub(super) now: u64,
    pub(super) mounts: Vec<Mount>,
    /// Nodes that are gone, outdated or rotten: never more than parity.
    pub(super) bad: BTreeSet<usize>,
    /// The bad node of which metadata is damaged, in this life.
    pub(super) ill: Option<usize>,
    /// Bad nodes that rotted.
    pub(super) rotten: BTreeSet<usize>,
    /// Directories that are being filled, and how many there were.
    pub(super) filling: BTreeMap<usize, Mount>,
    pub(super) mounted: usize,
    /// Something rotted: errors are right answers from now on.
    pub(super) damaged: bool,
    pub(super) pool: Vec<Vec<u8>>,
    /// The content of the stream that was removed last.
    pub(super) gone: Option<Arc<Vec<u8>>>,
    /// For moves that leave the draws of all others as they are.
    pub(super) aside: Rng,
    /// For snapshots, likewise.
    pub(super) trees_rng: Rng,
    /// Restores, so that all other draws are as without them.
    pub(super) restores_rng: Rng,
    /// Clones of volumes, likewise.
    pub(super) clones_rng: Rng,
    /// Background replays, likewise.
    pub(super) replay_rng: Rng,
    /// Recounts, likewise.
    pub(super) recounts_rng: Rng,
    /// Upgrades, likewise, and how far they are.
    pub(super) upgrade_rng: Rng,
    pub(super) upgraded: Upgraded,
    /// The keys of a sealed archive.
    pub(super) sealed: Option<Sealed>,
    /// The domains beside the first one of a sealed archive.
    pub(super) places: Option<Places>,
    /// Changes of the data keys of a sealed archive.
    pub(super) data_keys: Option<DataKeys>,
    /// The clients of a sealed archive that remember its head, where nothing rots.
    pub(super) heads: Option<Heads>,
    /// What whoever holds its files took, to put it back later.
    pub(super) taken: Option<Taken>,
    /// For what the medium does, likewise.
    pub(super) faults: Rng,
    /// The disk of the chunk index, when it has one of its own.
    pub(super) index_disk: Option<IndexDisk>,
    /// A new chunk had a fingerprint by a data key that was before the newest one.
    pub(super) by_older: bool,
    /// A process was told that a sync failed.
    pub(super) sync_failed: bool,
    /// A power failure left one place of the label cut off, and the medium damaged the label before it
    /// was written anew.
    pub(super) label_was_torn: bool,
    /// An error named damage that nothing makes good.
    pub(super) refused: bool,
    /// Containers have numbers below this in this life.
    pub(super) numbers: Option<u64>,
    /// The changes that a process counts at once, where it is another one.
    pub(super) portion: Option<usize>,
    pub(super) reach: Reach,
}

impl Sim {
    pub(super) fn new(params: Params, loud: bool) -> Sim {
        let mut rng = Rng::new(params.seed);
        let files = VirtualFiles::new(LAYOUT, rng.fork());
        let aside = Rng::new(params.seed ^ 0x6e6f_7465_645f_726f);
        let faults = Rng::new(params.seed ^ 0x6661_756c_745f_6d65);
        let trees_rng = Rng::new(params.seed ^ 0x736e_6170_7368_6f74);
        let restores_rng = Rng::new(params.seed ^ 0x7265_7374_6f72_6573);
        let clones_rng = Rng::new(params.seed ^ 0x636c_6f6e_655f_6f66);
        let replay_rng = Rng::new(params.seed ^ 0x7265_706c_6179_5f6f);
        let index_disk = params.index_disk.then(|| IndexDisk::new(&files, params.seed));
        let recounts_rng = Rng::new(params.seed ^ 0x7265_636f_756e_7473);
        let upgrade_rng = Rng::new(params.seed ^ 0x7570_6772_6164_655f);
        let upgraded = Upgraded::of(params.kinds());
        let sealed = params.sealed.then(|| Sealed::new(params.seed));
        let places = (params.domains > 0).then(|| Places::new(params.seed, params.domains));
        let data_keys = params.data_keys.then(|| DataKeys::new(params.seed));
        let heads = (params.sealed && params.keeps_all()).then(|| Heads::new(params.seed));
        let taken = params.puts_back.then(|| Taken::new(params.seed));
        if params.sealed {
            files.watch_steps("segment-", 4096);
        }
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
            kept: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            tree: Tree::new(),
            trees_rng,
            restores_rng,
            clones_rng,
            replay_rng,
            recounts_rng,
            upgrade_rng,
            upgraded,
            sealed,
            places,
            data_keys,
            heads,
            taken,
            changes: 0,
            unsure: None,
            noted: false,
            now: 1_000,
            mounts: Vec::new(),
            bad: BTreeSet::new(),
            ill: None,
            rotten: BTreeSet::new(),
            filling: BTreeMap::new(),
            mounted: 0,
            damaged: false,
            label_was_torn: false,
            pool,
            gone: None,
            aside,
            faults,
            index_disk,
            by_older: false,
            sync_failed: false,
            refused: false,
            numbers: None,
            portion: None,
            reach: Reach::default(),
        }
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.loud {
            println!("{}", what());
        }
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            auxiliary_entries: self.params.auxiliary_entries,
            cached_containers: 4,
            page_cache_bytes: 0,
            sync_bytes: self.params.sync_bytes,
            unsynced_bytes: self.params.unsynced_bytes,
            list_bytes: self.params.list_bytes,
            container_bytes: self.params.container_bytes,
            log_bytes: self.params.log_bytes,
            moved_max: self.params.moved_max,
            zeroed_ranges: self.params.trimmed_max,
            container_numbers: self.numbers.unwrap_or(1 << 40),
            log_ahead_bytes: 128 << 10,
            count_slots: 20,
            // Some archives count a few at a time.
            count_portion: self.portion.unwrap_or(match self.params.seed % 8 {
                5 => 3,
                _ => 64 << 10,
            }),
            // Most portions of a background replay are smaller than what is due.
            index_portion: [3, 10, 40, 1000][(self.params.seed / 8 % 4) as usize],
            leaf_portion: [1, 3, 10, 64][(self.params.seed / 32 % 4) as usize],
            ahead_bytes: 16 << 10,
            dirty_bytes: 8 * VOLUME_BLOCK_BYTES,
            // Some read most blocks of which a part is written.
            patched_parts: [64, 8, 3][(self.params.seed / 128 % 3) as usize],
            count_page: self.params.count_pages.map_or(512, |(page, _)| page),
            count_files: self.params.count_pages.map_or(32, |(_, files)| files),
            leaf_entries: self.params.leaves.unwrap_or(512),
            // Some archives come to a checkpoint by the leaves that changed.
            changed_leaves: if self.params.seed % 8 == 3 { 4 } else { 1024 },
            // Some by leaves of volumes' maps.
            changed_maps: self.params.changed_maps.unwrap_or(4096),
            map_portion: if self.params.changed_maps.is_some() { 1 } else { 512 },
            leaf_bytes: self.params.on_demand.unwrap_or(64 << 20),
            opener: match self.params.sealed {
                true => self.heads.as_ref().map_or_else(|| Sealed::opener(None), Heads::opener),
                false => KeySource::default(),
            },
            broken: self.params.bug.map(|bug| Rule::BUGS[bug].1),
            ..Settings::default()
        }
    }

    pub(super) fn open(&mut self, writes: bool) -> Result<Arc<Archive>, Stop> {
        self.open_nodes(writes).map(|(archive, _)| archive)
    }

    pub(super) fn open_nodes(
        &mut self,
        writes: bool,
    ) -> Result<(Arc<Archive>, Option<Arc<Nodes>>), Stop> {
        // Readers do not trust the archive, and have a limit.
        let memory = if writes { u64::MAX } else { 1 << 40 };
        let settings = Settings { memory, ..self.settings() };
        let nodes = match self.params.spread {
            Some(_) => {
                let mounts = self
                    .mounts
                    .iter()
                    .map(|mount| Some(Arc::new(mount.clone()) as Arc<dyn Files>))
                    .collect();
                match Nodes::open_with(mounts, self.rng.percent(60), &self.settings()) {
                    Ok(nodes) => {
                        if !nodes.absent().is_empty() {
                            self.say(|| format!("absent: {:?}", nodes.absent()));
                        }
                        Some(Arc::new(nodes))
                    }
                    Err(error) => return Err(self.judge("open", &error)),
                }
            }
            None => None,
        };
        let opened = match &nodes {
            Some(nodes) => Archive::open_on_nodes(nodes.clone(), writes, settings),
            None => {
                let directories = self.index_disk.as_mut().map(IndexDisk::directories);
                let files = Arc::new(self.files.clone());
                Archive::open_with_index(files, directories.unwrap_or_default(), writes, settings)
            }
        };
        match opened {
            Ok(archive) => {
                self.look_at_kinds(archive.label().kinds())?;
                Ok((Arc::new(archive), nodes))
            }
            Err(error) => Err(self.judge("open", &error)),
        }
    }

    /// Puts and collections may say that too few nodes are there.
    pub(super) fn excuses(&self, what: &str) -> bool {
        !self.bad.is_empty()
            && matches!(
                what,
                "put"
                    | "begin"
                    | "gc"
                    | "abandon"
                    | "write"
                    | "wait"
                    | "zero"
                    | "flush"
                    | "tend"
                    | "close"
                    | "clone volume"
                    | "replay"
                    | "upgrade"
            )
    }

    /// True when there are no more numbers for containers, in this life.
    pub(super) fn is_out_of_numbers(&mut self, error: &Error) -> bool {
        let is = self.numbers.is_some() && error.to_string().contains("no container numbers left");
        if is {
            self.reach.hit("container numbers ran out");
        }
        is
    }

    /// Decides whether an error ends the life or is a failure that nothing explains.
    pub(super) fn judge(&mut self, what: &str, error: &Error) -> Stop {
        self.say(|| format!("{what}: {error:?}"));
        if self.is_told(error) {
            self.reach.hit("damage of metadata was told");
            self.refused = true;
            return Stop::Down;
        }
        if self.is_outdated(error) {
            return Stop::Down;
        }
        if self.is_out_of_numbers(error) {
            return Stop::Down;
        }
        let failed = self.files.take_failed();
        self.sync_failed |= failed && self.params.medium == Medium::FailedSyncs;
        if self.files.is_down() || failed || self.damaged || self.excuses(what) {
            return Stop::Down;
        }
        let checker = if error.kind() == Kind::NoSpace {
            Checker::SpaceReserved
        } else {
            Checker::Unexplained
        };
        Failure::new(checker, format!("{what}: {error:?}")).into()
    }

    pub(super) fn run(&mut self) -> Result<(), Failure> {
        let mut format = Format::new([7; 16], [8; 32], [9; 16]);
        (format.chunking, format.compression) = (self.params.chunking, self.params.compression);
        let kinds = self.upgraded.kinds;
        (format.trees, format.clones) = (kinds.trees, kinds.clones);
        (format.leaves, format.on_demand) = (kinds.leaves, kinds.on_demand);
        (format.counts_in_pages, format.heads) = (kinds.counts_in_pages, kinds.heads);
        format.pads = self.params.pads;
        if self.params.seed % 16 == 9 {
            format.fingerprint = Algorithm::HmacSha256;
        }
        (format.segment_bytes, format.reserve_bytes, format.late) =
            (self.params.segment_bytes, 256 << 10, self.params.late);
        let created = match self.params.spread {
            None if self.params.sealed => Sealed::create(&self.files, &format),
            None => Archive::create(&self.files, &format),
            Some((count, n, k)) => {
                self.mounts =
                    (0..count).map(|node| Mount::new(&self.files, &format!("n{node}"))).collect();
                let mounts = self
                    .mounts
                    .iter()
                    .map(|mount| Arc::new(mount.clone()) as Arc<dyn Files>)
                    .collect();
                let spread = Spread {
                    n,
                    k,
                    ids: (0..count).map(|node| [node as u8 + 1; 16]).collect(),
                    listed: false,
                };
                Nodes::create(mounts, &spread, format.id, format.secret)
                    .and_then(|nodes| Archive::create_on_nodes(&nodes, &format))
            }
        };
        created.map_err(|e| Failure::new(Checker::Unexplained, format!("create: {e:?}")))?;
        match self.make_domains().and_then(|()| self.allow_data_keys()) {
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::Down) => return Err(Failure::new(Checker::Progress, "no domain is made")),
            Ok(()) => {}
        }
        for round in 0..self.params.rounds {
            self.say(|| format!("life {round}"));
            match self.life() {
                Ok(()) | Err(Stop::Down) => {}
                Err(Stop::Failed(failure)) => return Err(failure),
            }
            self.numbers = None;
            self.crash();
            self.take_maps();
            let under_way = (self.unsure.clone(), self.known(), self.disks.clone());
            if self.aside.percent(60) {
                match self.look_as_reader() {
                    Err(Stop::Failed(failure)) => return Err(failure),
                    Err(Stop::Down) if !self.damaged && !self.refused => {
                        return Err(Failure::new(Checker::Progress, "no reader opens it"));
                    }
                    _ => self.lose_power(),
                }
            }
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
            self.look_at_damage(under_way)?;
            if let Err(Stop::Failed(failure)) = self.look_at_keys() {
                return Err(failure);
            }
            match self.look() {
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Down) if !self.damaged => {
                    return Err(Failure::new(Checker::Progress, "it does not open"));
                }
                _ => {}
            }
            self.actors = Actors::default();
            match self.late_counts() {
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Down) => {
                    return Err(Failure::new(Checker::Progress, "no collection begins"));
                }
                Ok(()) => self.actors = Actors::default(),
            }
            match self.old_condemnation() {
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Down) => {
                    return Err(Failure::new(Checker::Progress, "nothing is put and collected"));
                }
                Ok(()) => {}
            }
            match self.put_back().and_then(|()| self.put_whole_back()) {
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Down) => {
                    return Err(Failure::new(
                        Checker::Progress,
                        "it does not open after an attack",
                    ));
                }
                Ok(()) => self.actors = Actors::default(),
            }
            self.look_at_reads()?;
        }
        self.end()?;
        self.look_at_reads()
    }

    /// The power fails, whatever is under way.
    pub(super) fn lose_power(&mut self) {
        self.actors = Actors::default();
        self.files.power_cycle();
        self.files.disarm();
        let _ = self.files.take_failed();
    }

    /// All processes end at once, and perhaps the power fails.
    pub(super) fn crash(&mut self) {
        self.actors = Actors::default();
        if self.rng.percent(self.params.kills) {
            self.files.kill();
        } else {
            self.files.power_cycle();
        }
        self.files.disarm();
        self.files.disarm_late_write();
        let _ = self.files.take_failed();
        self.sync_failed = false;
        self.change_index_disk();
    }

    pub(super) fn life(&mut self) -> Flow {
        if let Some(most) = self.params.container_numbers {
            // What is past them already stays, and nothing is added.
            self.numbers = Some(most.max(self.open(false)?.tables().next_id));
        }
        self.files.arm_crash(self.rng.below(self.params.crash_within));
        if self.params.profile == Profile::StopFaults {
            self.files.arm_failure(self.rng.percent(50), self.rng.below(100));
        }
        if self.params.profile == Profile::FullDisk {
            // Leaves take whole pages: a checkpoint of the smallest tables takes 24 KiB.
            let pages = if self.params.leaves.is_some() { 96 } else { 0 };
            let room = (self.rng.within(20, 200) + pages) * 1024;
            self.files.set_capacity(Some(self.files.used() + room));
        }
        self.arm_medium();
        self.label_was_torn = self.params.medium.damages() && self.label_is_torn();
        self.die_at_checkpoint();
        let damaging = self.faults.below(self.params.moves.min(self.params.crash_within));
        for n in 0..self.params.moves {
            if n == damaging {
                self.damage_metadata();
            }
            self.now += self.rng.below(3);
            self.index_disk_move();
            let upgraded = self.upgrade_move(n == 0);
            let moved = upgraded.and_then(|()| self.key_move()).and_then(|()| self.domain_move());
            let moved = moved.and_then(|()| self.data_key_move());
            match moved.and_then(|()| self.replay_move()).and_then(|()| self.one_move()) {
                Err(Stop::Down) if self.sync_failed && !self.files.is_down() => {
                    self.begin_again()?
                }
                moved => moved?,
            }
            self.look_at_syncs()?;
            self.look_at_numbers()?;
            if self.by_older {
                let message = "a new chunk has a fingerprint by an older data key";
                return Err(Failure::new(Checker::Secrecy, message).into());
            }
        }
        self.files.set_capacity(None);
        Ok(())
    }

    /// No put writes much more than may be written and not durable: the bound, and a container.
    fn look_at_syncs(&self) -> Result<(), Failure> {
        let most = self.params.unsynced_bytes + self.params.container_bytes as u64 + CHUNKS_BYTES;
        let found =
            if self.params.spread.is_some() { 0 } else { self.files.most_unsynced("segment-") };
        if found <= most {
            return Ok(());
        }
        let what = format!("{found} bytes of a segment are not durable, and {most} may be");
        Err(Failure::new(Checker::Limits, what))
    }

    /// No process takes numbers for containers beyond those that there are.
    fn look_at_numbers(&self) -> Result<(), Failure> {
        let Some(most) = self.numbers else { return Ok(()) };
        let Actors { putting, serving, collection, admin, .. } = &self.actors;
        let archives = putting.iter().map(|putting| &putting.archive);
        let archives = archives.chain(serving.iter().map(|serving| &serving.archive));
        let mut archives =
            archives.chain(collection.iter().map(|(archive, _)| archive)).chain(admin);
        match archives.find(|archive| archive.tables().next_id > most) {
            None => Ok(()),
            Some(archive) => {
                let next = archive.tables().next_id;
                let what = format!("the next container is {next}, and {most} is the end");
                Err(Failure::new(Checker::Limits, what))
            }
        }
    }

    /// Faults that leave the draws of all others as they are.
    pub(super) fn arm_medium(&mut self) {
        if self.params.medium == Medium::FailedSyncs {
            self.files.arm_failed_sync(self.faults.below(25));
        }
    }

    /// A sync failed, and the processes that were told so ended. Others begin and go on with what
    /// is there, which may be in memory only.
    pub(super) fn begin_again(&mut self) -> Flow {
        self.sync_failed = false;
        self.actors = Actors::default();
        if self.faults.percent(30) {
            // A reader's own sync succeeds, and tells it nothing.
            self.look_as_reader()?;
            self.reach.hit("a reader looked after a failed sync");
            self.lose_power();
        }
        self.look()?;
        self.reach.hit("others went on after a failed sync");
        self.arm_medium();
        Ok(())
    }

    pub(super) fn one_move(&mut self) -> Flow {
        if self.upgraded.kinds.trees && self.trees_rng.percent(40) {
            return self.tree_move();
        }
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
            9 => self.repair_move(),
            _ => {
                self.damaged |= self.files.rot("segment-");
                // Collections that move what rotted a moment ago.
                (0..4).try_for_each(|_| self.collect_move())
            }
        }
    }

    pub(super) fn admin(&mut self) -> Result<Arc<Archive>, Stop> {
        if let Some(archive) = &self.actors.admin {
            return Ok(archive.clone());
        }
        let archive = self.open(true)?;
        self.actors.admin = Some(archive.clone());
        self.upgraded.knows_old = false;
        Ok(archive)
    }

    /// When faults stop, it works again: everything is removed and collected, and nothing is left.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        let ended = match self.last() {
            Ok(()) => Ok(()),
            Err(Stop::Failed(failure)) => Err(failure),
            Err(Stop::Down) if self.damaged => Ok(()),
            Err(Stop::Down) => {
                Err(Failure::new(Checker::Progress, "it does not work although nothing fails"))
            }
        };
        self.actors = Actors::default();
        ended
    }

    pub(super) fn last(&mut self) -> Flow {
        self.files.set_capacity(None);
        self.mend_index_disk();
        self.actors = Actors::default();
        while let Some(&node) = self.bad.first() {
            self.repair_node(node)?;
        }
        self.upgrade_at_last()?;
        for _ in 0..30 {
            self.put_move()?;
            self.read_move()?;
            if self.params.serves {
                self.volume_move()?;
            }
            self.replay_move()?;
        }
        self.replay_all()?;
        self.actors = Actors::default();
        self.look()?;
        self.encode_all()?;
        self.reseal_all()?;
        for name in self.disks.keys().cloned().collect::<Vec<_>>() {
            let archive = self.admin()?;
            archive.delete_volume(&name).map_err(|e| self.judge("delete", &e))?;
            self.disks.remove(&name);
        }
        if self.upgraded.kinds.trees {
            self.forget_all()?;
        }
        self.remove_erased()?;
        for name in self.streams.keys().cloned().collect::<Vec<_>>() {
            let archive = self.admin()?;
            archive.remove(&name).map_err(|e| self.judge("remove", &e))?;
            self.streams.remove(&name);
        }
        self.actors = Actors::default();
        self.now += 10_000;
        for _ in 0..2 {
            let archive = self.open(true)?;
            let options = Options {
                now: self.now,
                keep_partial: 0,
                trash: 0,
                wait: false,
                reserve_bytes: 256 << 10,
                encode_all: false,
                doubts_clock: false,
            };
            let collected = Collection::begin(&archive, options)
                .and_then(|collection| collection.run(&mut |_| {}));
            collected.map_err(|e| self.judge("gc", &e))?;
        }
        let archive = self.open(true)?;
        let tables = archive.tables();
        if !self.damaged
            && (tables.sums().all().bytes > 0
                || tables.segments.len() > self.segments_left()
                || !tables.waiting_to_be_freed.is_empty())
        {
            let left: Vec<_> =
                tables.containers.iter().flatten().map(|found| found.stored.id).collect();
            return Err(Failure::new(
                Checker::ReferenceCounts,
                format!("containers {left:?} are left of nothing"),
            )
            .into());
        }
        self.reach.hit("everything was collected");
        Ok(())
    }
}
