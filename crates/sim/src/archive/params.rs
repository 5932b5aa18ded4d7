//! Draws all parameters of a run from its seed, before it begins.

use onefold_archive::{Chunking, Compression, Kinds, Rad};
use onefold_testbed::Rng;

/// The kind of faults that a run injects.
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

/// The faults of the medium, beside those of the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Nothing.
    Good,
    /// Syncs fail, and drop what they should have written.
    FailedSyncs,
    /// Bits flip.
    Rot,
    /// Sectors can't be read.
    Unreadable,
    /// A write that was synced never arrives.
    LostWrites,
    /// A write that was synced arrives somewhere else.
    MisdirectedWrites,
}

/// KiB that no stream of a run has.
pub(crate) const ALL_AT_ONCE: u32 = 1024;

/// More trimmed ranges than volumes of a run have.
const TRIMMED_MANY: usize = 64 << 10;

/// So few that a second merge in one log comes to it.
const MOVED_FEW: u64 = 2;

/// The line behind the kept seeds that are older than limits of trims and of numbers.
const NEWER_THAN_LIMITS: &str = "# The seeds below draw limits of trims and of numbers.";

/// The line of the kept seeds behind which clones of volumes are drawn.
const NEWER_THAN_CLONES: &str = "# The seeds below draw clones of volumes.";

/// The line behind the kept seeds that are older than snapshots of directories.
const NEWER_THAN_TREES: &str = "# The seeds below draw snapshots of directories.";

/// The line behind the kept seeds that are older than background replays.
const NEWER_THAN_REPLAYS: &str = "# The seeds below draw background replays.";

/// The line behind the kept seeds that are older than disks of the chunk index.
const NEWER_THAN_INDEX_DISKS: &str = "# The seeds below draw disks of the chunk index.";

/// The line behind the kept seeds that are older than leaves of tables.
const NEWER_THAN_LEAVES: &str = "# The seeds below draw leaves of tables.";

/// The line behind the kept seeds that are older than leaves that are read on demand.
const NEWER_THAN_ON_DEMAND: &str = "# The seeds below draw leaves that are read on demand.";

/// The line behind the kept seeds that are older than frames of counts that come late.
const NEWER_THAN_LATE_COUNTS: &str = "# The seeds below draw frames of counts that come late.";

/// The line behind the kept seeds that are older than upgrades.
const NEWER_THAN_UPGRADES: &str = "# The seeds below draw upgrades.";

/// The line behind the kept seeds that are older than usage counts in pages, and than recounts after an
/// older condemnation.
const NEWER_THAN_COUNT_PAGES: &str = "# The seeds below draw usage counts in pages.";

/// The line behind the kept seeds that are older than chunks that are encoded at once.
const NEWER_THAN_GATHERED: &str = "# The seeds below draw chunks that are encoded at once.";

/// The line behind the kept seeds that are older than files of sealed archives that are put back, and
/// than disks of a sealed chunk index.
const NEWER_THAN_PUT_BACK: &str = "# The seeds below draw files that are put back.";

/// The line behind the kept seeds that are older than domains.
const NEWER_THAN_DOMAINS: &str = "# The seeds below draw domains.";

/// The line behind the kept seeds that are older than heads.
const NEWER_THAN_HEADS: &str = "# The seeds below draw heads.";

/// The line behind the kept seeds that are older than changes of data keys.
const NEWER_THAN_DATA_KEYS: &str = "# The seeds below draw changes of data keys.";

/// The line behind the kept seeds that are older than lives with many changes of data keys.
const NEWER_THAN_OFTEN: &str = "# The seeds below draw data keys that change often.";

/// The line behind the kept seeds that are older than volumes in domains.
const NEWER_THAN_VOLUME_DOMAINS: &str = "# The seeds below draw volumes in domains.";

/// The line behind the kept seeds that are older than containers of few lengths.
const NEWER_THAN_PADDING: &str = "# The seeds below draw containers of few lengths.";
/// The line behind the kept seeds that are older than checkpoints by leaves of volumes' maps.
const NEWER_THAN_CHANGED_MAPS: &str = "# The seeds below draw checkpoints by leaves of maps.";

/// The line behind the kept seeds that are older than sealed archives.
const NEWER_THAN_SEALED: &str = "# The seeds below draw sealed archives.";

impl Medium {
    const DAMAGING: [Medium; 4] =
        [Medium::Rot, Medium::Unreadable, Medium::LostWrites, Medium::MisdirectedWrites];

    /// True when bytes on the medium become others than they should be.
    #[must_use]
    pub fn damages(self) -> bool {
        !matches!(self, Medium::Good | Medium::FailedSyncs)
    }

    /// Two archives of five on several nodes have nodes of which metadata gets damaged.
    fn of_nodes(seed: u64) -> Medium {
        let rng = &mut Rng::new(seed ^ 0x6e6f_6465_735f_6d65);
        if rng.percent(40) { Medium::DAMAGING[rng.below(4) as usize] } else { Medium::Good }
    }

    fn draw(seed: u64) -> Medium {
        let rng = &mut Rng::new(seed ^ 0x6d65_6469_756d_2e2e);
        match rng.below(10) {
            0..3 => Medium::Good,
            3..6 => Medium::DAMAGING[rng.below(4) as usize],
            _ => Medium::FailedSyncs,
        }
    }
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub struct Params {
    /// The seed.
    pub seed: u64,
    /// The kind of faults.
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
    /// Bytes that may be written and not durable.
    pub unsynced_bytes: u64,
    /// Bytes that are durable and not listed, at most.
    pub list_bytes: u64,
    /// Bytes of log before a snapshot.
    pub log_bytes: u64,
    /// Numbers of containers that the merges of one log move, at most.
    pub moved_max: u64,
    /// Trimmed ranges of volumes that wait, at most.
    pub trimmed_max: usize,
    /// Containers have numbers below this, while faults last.
    pub container_numbers: Option<u64>,
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
    /// There are snapshots of directories; drawn from a source of its own.
    pub trees: bool,
    /// Volumes are cloned; drawn from a source of its own.
    pub clones: bool,
    /// Seconds that forgotten snapshots are kept.
    pub trash: u64,
    /// A checkpoint writes the leaves of the tables that changed; of so many entries at most. Drawn
    /// from a source of its own.
    pub leaves: Option<usize>,
    /// Servers replay in the background; drawn from a source of its own.
    pub replays: bool,
    /// Where there are leaves: those of the container table are read when they are looked at, and so
    /// many bytes of them are kept. Drawn from a source of its own.
    pub on_demand: Option<u64>,
    /// The chunk index is on a disk of its own, which may fail; drawn from a source of its own.
    pub index_disk: bool,
    /// Collectors die with the frames of their counts on the way; drawn from a source of its own.
    pub late_counts: bool,
    /// The kinds of tables with which an archive begins that is upgraded later to all others; drawn
    /// from a source of its own.
    pub older: Option<Kinds>,
    /// Usage counts are in pages of so many containers, which lie in so many files at most; drawn from
    /// a source of its own.
    pub count_pages: Option<(u64, usize)>,
    /// Once in a run all references are counted anew after an older condemnation; drawn from a source of
    /// its own.
    pub old_condemnation: bool,
    /// The archive is sealed; drawn from a source of its own.
    pub sealed: bool,
    /// Containers of a sealed archive take few lengths; drawn from a source of its own.
    pub pads: bool,
    /// A sealed archive keeps heads; drawn from a source of its own.
    pub heads: bool,
    /// Domains of a sealed archive beside the first one; drawn from a source of its own.
    pub domains: u8,
    /// Volumes are of these domains, too.
    pub volume_domains: bool,
    /// Leaves of volumes' maps that may have changed before a checkpoint, where these are few.
    pub changed_maps: Option<usize>,
    /// Data keys of a sealed archive change; drawn from a source of its own.
    pub data_keys: bool,
    /// They change often, and so much is written again: puts list early what they store, are killed, and what they
    /// leave is kept for others. Drawn from a source of its own.
    pub data_keys_often: bool,
    /// Whoever holds the files of a sealed archive puts older ones back; drawn from a source of its own.
    pub puts_back: bool,
    /// Nodes, and shards of a container with and without parity; nothing for one directory.
    pub spread: Option<(usize, usize, usize)>,
    /// Encoding by reference counts, late or at once.
    pub late: Option<Rad>,
    /// The faults of the medium, drawn from a source of its own, so that all other draws are as
    /// without them.
    pub medium: Medium,
    /// The planted bug.
    pub bug: Option<usize>,
}

impl Params {
    /// One archive in four comes to this limit, and draws it from a source of its own.
    fn moved_max(seed: u64) -> u64 {
        let rng = &mut Rng::new(seed ^ 0x6d65_7267_6573_5f2e);
        if rng.percent(25) { MOVED_FEW } else { 2 << 20 }
    }

    /// In every other archive one or two trimmed ranges of volumes may wait; in one of seven of one
    /// directory, where nothing rots, there are few numbers of containers. From a source of its own;
    /// none of the kept seeds that are older.
    fn limited(self) -> Params {
        let rng = &mut Rng::new(self.seed ^ 0x6c69_6d69_7473_2e2e);
        let trimmed_max = [1, 2, TRIMMED_MANY, TRIMMED_MANY][rng.below(4) as usize];
        let numbers = 1 + 1024 * [2, 4, 8][rng.below(3) as usize];
        let may_end = matches!(self.profile, Profile::Crashes | Profile::FullDisk)
            && !self.medium.damages()
            && self.spread.is_none();
        let container_numbers = (rng.percent(14) && may_end).then_some(numbers);
        let found = include_str!("../../seeds/archive-bugs.txt").lines();
        let found = found.take_while(|line| *line != NEWER_THAN_LIMITS);
        let mut found = found.flat_map(str::split_whitespace);
        if is_older(self.seed, NEWER_THAN_LIMITS) || found.any(|word| word.parse() == Ok(self.seed))
        {
            return self;
        }
        Params { trimmed_max, container_numbers, ..self }
    }

    /// How much may be written and not durable, and durable and not listed: in most archives a few
    /// containers. From a source of its own.
    fn syncs(seed: u64) -> (u64, u64) {
        let rng = &mut Rng::new(seed ^ 0x7379_6e63_735f_2e2e);
        let unsynced = [4 << 10, 16 << 10, 64 << 10, 4 << 20][rng.below(4) as usize];
        (unsynced, [1 << 10, 16 << 10, 64 << 10, 16 << 20][rng.below(4) as usize])
    }

    /// One archive in three has snapshots; none of the kept seeds that are older than snapshots.
    fn trees(seed: u64) -> (bool, u64) {
        let rng = &mut Rng::new(seed ^ 0x7472_6565_735f_2e2e);
        let trees = rng.percent(35) && !is_older(seed, NEWER_THAN_TREES);
        (trees, [0, 5, 50][rng.below(3) as usize])
    }

    /// One archive in eight has checkpoints by few changed leaves of volumes' maps; none of the kept seeds
    /// that are older.
    fn changed_maps(seed: u64) -> Option<usize> {
        let rng = &mut Rng::new(seed ^ 0x6d61_7073_5f2e_2e2e);
        let (is_drawn, most) = (rng.percent(12), rng.below(3) as usize);
        let is_new =
            !is_older(seed, NEWER_THAN_CHANGED_MAPS) && !found_another_bug(seed, &MAP_BUGS);
        (is_drawn && is_new).then_some(most)
    }

    /// Every other archive has clones of volumes; none of the kept seeds that are older than clones.
    fn clones(seed: u64) -> bool {
        let rng = &mut Rng::new(seed ^ 0x636c_6f6e_6573_2e2e);
        rng.percent(50) && !is_older(seed, NEWER_THAN_CLONES)
    }

    /// One archive in two has leaves of tables, most of them small ones; none of the kept seeds that
    /// are older than leaves.
    fn leaves(seed: u64) -> Option<usize> {
        let rng = &mut Rng::new(seed ^ 0x6c65_6176_6573_2e2e);
        let entries = [2, 2, 4, 8, 512][rng.below(5) as usize];
        (rng.percent(50) && !is_older(seed, NEWER_THAN_LEAVES)).then_some(entries)
    }

    /// Two archives of three are replayed in the background while they are served; none of the kept
    /// seeds that are older than that.
    fn replays(seed: u64) -> bool {
        let rng = &mut Rng::new(seed ^ 0x7265_706c_6179_2e2e);
        rng.percent(67) && !is_older(seed, NEWER_THAN_REPLAYS)
    }

    /// Three of four archives with leaves read those of the container table on demand, and keep few
    /// of them or none, so that they read them again and again; none of the kept seeds that are older
    /// than that.
    fn on_demand(seed: u64) -> Option<u64> {
        let rng = &mut Rng::new(seed ^ 0x6f6e_5f64_656d_616e);
        let bytes = [0, 0, 1 << 10, 4 << 10, 64 << 20][rng.below(5) as usize];
        (rng.percent(75) && !is_older(seed, NEWER_THAN_ON_DEMAND)).then_some(bytes)
    }

    /// One archive of one directory in four has its chunk index on a disk of its own; none of the kept
    /// seeds that are older than that.
    fn index_disk(seed: u64) -> bool {
        let rng = &mut Rng::new(seed ^ 0x696e_6465_7820_6469);
        rng.percent(25) && !is_older(seed, NEWER_THAN_INDEX_DISKS)
    }

    /// One archive of one directory in five is sealed; none of the kept seeds that are older than that,
    /// nor of those that found a planted bug which has nothing to do with it.
    fn sealed(seed: u64) -> bool {
        let rng = &mut Rng::new(seed ^ 0x7365_616c_6564_5f3f);
        rng.percent(20)
            && !is_older(seed, NEWER_THAN_SEALED)
            && !found_another_bug(seed, &SEALED_BUGS)
    }

    /// Four sealed archives of five, where nothing rots, and no frame comes late; none of the kept seeds
    /// that are older than that.
    fn puts_back(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x7075_745f_6261_636b);
        let is_plain = self.profile == Profile::Crashes && !self.medium.damages();
        rng.percent(80) && !is_older(self.seed, NEWER_THAN_PUT_BACK) && is_plain && self.sealed
    }

    /// Nine of ten sealed archives have one to three domains more, where nothing rots and no disk is full;
    /// none of the kept seeds that are older than that, nor of those that found a planted bug which has
    /// nothing to do with it.
    fn domains(&self) -> u8 {
        let rng = &mut Rng::new(self.seed ^ 0x646f_6d61_696e_733f);
        let (is_drawn, count) = (rng.percent(90), 1 + rng.below(3) as u8);
        let is_plain = self.profile == Profile::Crashes && self.medium == Medium::Good;
        let is_new =
            !is_older(self.seed, NEWER_THAN_DOMAINS) && !found_another_bug(self.seed, &DOMAIN_BUGS);
        if is_drawn && is_plain && is_new && self.sealed { count } else { 0 }
    }

    /// Two of three archives with domains serve volumes in them; none of the kept seeds that are older than that,
    /// nor of those that found a planted bug which has nothing to do with it.
    fn volume_domains(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x766f_6c75_6d65_735f);
        rng.percent(67)
            && self.domains > 0
            && !is_older(self.seed, NEWER_THAN_VOLUME_DOMAINS)
            && !found_another_bug(self.seed, &["volume-in-first-domain", "container-unpadded"])
    }

    /// Nine sealed archives of ten change data keys, where nothing rots and no disk is full; none of the kept
    /// seeds that are older than that, nor of those that found a planted bug which has nothing to do with it.
    fn data_keys(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x6461_7461_5f6b_3f3f);
        let is_plain = self.profile == Profile::Crashes && !self.medium.damages();
        let is_new = !is_older(self.seed, NEWER_THAN_DATA_KEYS)
            && !found_another_bug(self.seed, &DATA_KEY_BUGS);
        rng.percent(90) && is_plain && is_new && self.sealed && self.older.is_none()
    }

    /// Half of those change them often; none of the kept seeds that are older than that.
    fn data_keys_often(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x6f66_7465_6e5f_6b3f);
        let found = ["data-key-erased-early", "volume-in-first-domain", "container-unpadded"];
        rng.percent(50)
            && !is_older(self.seed, NEWER_THAN_OFTEN)
            && !found_another_bug(self.seed, &found)
    }

    /// Every other sealed archive pads, and has containers of so many steps that this matters; none of the kept seeds
    /// that are older than that, nor of those that found a planted bug which has nothing to do with it.
    fn pads(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x7061_6464_6564_2e2e);
        rng.percent(50)
            && self.sealed
            && !is_older(self.seed, NEWER_THAN_PADDING)
            && !found_another_bug(self.seed, &["container-unpadded"])
    }

    /// Four sealed archives of five keep heads; none of the kept seeds that are older than that, nor of those
    /// that found a planted bug which has nothing to do with it.
    fn heads(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x6865_6164_735f_2e2e);
        rng.percent(80) && self.sealed && self.attacks_heads()
    }

    /// Whole archives are put back.
    #[must_use]
    pub fn attacks_heads(&self) -> bool {
        !is_older(self.seed, NEWER_THAN_HEADS) && !found_another_bug(self.seed, &HEAD_BUGS)
    }

    /// What was durable once stays, but for what a client or a power cut takes.
    #[must_use]
    pub fn keeps_all(&self) -> bool {
        self.profile != Profile::Damage && !self.medium.damages()
    }

    /// One sealed archive in three has its chunk index on a disk of its own; none of the kept seeds that
    /// are older than that.
    fn sealed_index_disk(seed: u64) -> bool {
        let rng = &mut Rng::new(seed ^ 0x7365_616c_6564_6978);
        rng.percent(33) && !is_older(seed, NEWER_THAN_PUT_BACK)
    }

    /// Every other archive, where a collection writes no other frame before that of its counts, and
    /// nothing rots; none of the kept seeds that are older than that.
    fn late_counts(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x6c61_7465_5f63_6f75);
        let is_plain = self.profile == Profile::Crashes && !self.medium.damages();
        let is_drawn = rng.percent(50) && !is_older(self.seed, NEWER_THAN_LATE_COUNTS);
        is_drawn && is_plain && self.collects && !self.trees && self.spread.is_none()
    }

    /// Two archives of three have usage counts in pages, most of them tiny; none of the kept seeds that
    /// are older than that.
    fn count_pages(seed: u64) -> Option<(u64, usize)> {
        let rng = &mut Rng::new(seed ^ 0x636f_756e_745f_7067);
        let page = [1, 1, 2, 4, 512][rng.below(5) as usize];
        let files = [2, 3, 8, 32][rng.below(4) as usize];
        (rng.percent(67) && !is_older(seed, NEWER_THAN_COUNT_PAGES)).then_some((page, files))
    }

    /// One archive in four of one directory, where nothing rots; none of the kept seeds that are older
    /// than that.
    fn old_condemnation(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x6f6c_645f_636f_6e64);
        let is_plain = self.profile == Profile::Crashes && self.medium == Medium::Good;
        let is_drawn = rng.percent(25) && !is_older(self.seed, NEWER_THAN_COUNT_PAGES);
        is_drawn && is_plain && self.collects && self.spread.is_none()
    }

    /// One archive in eight is of an older program, and upgraded: of the first, of one with snapshots
    /// of directories, of one with clones, or of one with leaves; none of those that come to many
    /// snapshots of the tables, and of the kept seeds that are older than upgrades.
    fn older(seed: u64) -> Option<Kinds> {
        let rng = &mut Rng::new(seed ^ 0x7570_6772_6164_6573);
        let features = rng.below(4);
        let older = Kinds {
            trees: features > 0,
            clones: features > 1,
            leaves: features > 2,
            ..Kinds::default()
        };
        (rng.percent(14) && seed % 8 != 2 && !is_older(seed, NEWER_THAN_UPGRADES)).then_some(older)
    }

    /// The kinds of tables with which the archive begins.
    #[must_use]
    pub fn kinds(&self) -> Kinds {
        let kinds = self.older.unwrap_or(Kinds {
            late: false,
            trees: self.trees,
            leaves: self.leaves.is_some(),
            on_demand: self.leaves.is_some() && self.on_demand.is_some(),
            clones: self.clones,
            counts_in_pages: self.count_pages.is_some(),
            domains: false,
            volume_domains: false,
            heads: self.heads,
            roles: false,
            data_keys: false,
        });
        Kinds { late: self.late.is_some(), ..kinds }
    }

    /// Parameters that are smaller in one respect each.
    #[must_use]
    pub fn smaller(&self) -> Vec<Params> {
        let with = |change: &dyn Fn(&mut Params)| {
            let mut params = self.clone();
            change(&mut params);
            params
        };
        let mut all = Vec::new();
        if self.rounds > 1 {
            all.push(with(&|params| params.rounds = 1));
            all.push(with(&|params| params.rounds -= 1));
        }
        if self.moves > 1 {
            all.push(with(&|params| params.moves /= 2));
            all.push(with(&|params| params.moves -= 1));
        }
        if self.older.is_some() {
            all.push(with(&|params| params.older = None));
        }
        if self.serves {
            all.push(with(&|params| params.serves = false));
        }
        if self.trees {
            all.push(with(&|params| params.trees = false));
        }
        if self.replays {
            all.push(with(&|params| params.replays = false));
        }
        if self.index_disk {
            all.push(with(&|params| params.index_disk = false));
        }
        if self.sealed {
            all.push(with(&|params| {
                (params.sealed, params.heads, params.pads) = (false, false, false);
                (params.puts_back, params.domains) = (false, 0);
                params.volume_domains = false;
                (params.data_keys, params.data_keys_often) = (false, false);
            }));
        }
        if self.pads {
            all.push(with(&|params| params.pads = false));
        }
        if self.heads {
            all.push(with(&|params| params.heads = false));
        }
        if self.data_keys {
            all.push(with(&|params| {
                (params.data_keys, params.data_keys_often) = (false, false);
            }));
        }
        if self.domains > 0 {
            all.push(with(&|params| {
                params.domains -= 1;
                params.volume_domains &= params.domains > 0;
            }));
        }
        if self.puts_back {
            all.push(with(&|params| params.puts_back = false));
        }
        if self.leaves.is_some() {
            all.push(with(&|params| params.leaves = None));
        }
        if self.on_demand.is_some() {
            all.push(with(&|params| params.on_demand = None));
        }
        if self.collects {
            all.push(with(&|params| params.collects = false));
        }
        if self.late_counts {
            all.push(with(&|params| params.late_counts = false));
        }
        if self.count_pages.is_some() {
            all.push(with(&|params| params.count_pages = None));
        }
        if self.old_condemnation {
            all.push(with(&|params| params.old_condemnation = false));
        }
        all
    }

    /// The parameters that belong to `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Params {
        Params::draw_common(seed).limited()
    }

    fn draw_common(seed: u64) -> Params {
        let rng = &mut Rng::new(seed ^ 0x6172_6368_6976_6500);
        let choose =
            |rng: &mut Rng, choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        let older = Params::older(seed);
        let (trees, trash) = Params::trees(seed);
        let trees = trees || older.is_some();
        let (unsynced_bytes, list_bytes) = Params::syncs(seed);
        let profile = [Profile::Crashes, Profile::Damage, Profile::FullDisk, Profile::StopFaults]
            [rng.weighted(&[12, 2, 2, 1])];
        let clones = Params::clones(seed) || older.is_some();
        let leaves = Params::leaves(seed).or(older.map(|_| 4));
        let on_demand = leaves.and_then(|_| Params::on_demand(seed)).or(older.map(|_| 1 << 10));
        // Some of them come to many snapshots of the tables, so that pages of maps are used again.
        let many_snapshots = clones && seed % 8 == 2;
        let mut params = Params {
            seed,
            profile,
            chunking: [Chunking::FastCdc(1024), Chunking::Rabin(1024), Chunking::Static(1024)]
                [rng.weighted(&[3, 1, 2])],
            compression: [Compression::None, Compression::Lz4, Compression::Zstd]
                [rng.below(3) as usize],
            segment_bytes: choose(rng, &[16 << 10, 64 << 10, 256 << 10]),
            container_bytes: choose(rng, &[4 << 10, 8 << 10, 16 << 10]) as usize,
            sync_bytes: choose(rng, &[8 << 10, 32 << 10, 1 << 20]),
            unsynced_bytes,
            list_bytes,
            log_bytes: choose(rng, &[1 << 10, 4 << 10, 64 << 10]),
            moved_max: Params::moved_max(seed),
            trimmed_max: TRIMMED_MANY,
            container_numbers: None,
            auxiliary_entries: choose(rng, &[4, 16, 64, 1000]) as usize,
            collects: rng.percent(70),
            keep_partial: choose(rng, &[0, 0, 5, 1000]),
            rounds: rng.within(2, 6),
            moves: choose(rng, &[15, 40, 100, 200]),
            crash_within: choose(rng, &[10, 40, 150, 500]),
            kills: choose(rng, &[0, 30, 60]),
            spread: None,
            late: None,
            medium: Some(Medium::draw(seed))
                .filter(|medium| profile == Profile::Crashes || !medium.damages())
                .unwrap_or(Medium::Good),
            bug: None,
            serves: rng.percent(40),
            trees,
            clones,
            trash,
            leaves,
            replays: Params::replays(seed),
            on_demand,
            late_counts: false,
            count_pages: Params::count_pages(seed).or(older.map(|_| (2, 3))),
            old_condemnation: false,
            older,
            index_disk: Params::index_disk(seed),
            sealed: Params::sealed(seed),
            pads: false,
            heads: false,
            domains: 0,
            volume_domains: false,
            changed_maps: Params::changed_maps(seed),
            data_keys: false,
            data_keys_often: false,
            puts_back: false,
        };
        if many_snapshots {
            (params.serves, params.log_bytes) = (true, 1 << 10);
        }
        if profile == Profile::Crashes && rng.percent(35) {
            let spread = [(3, 3, 2), (4, 3, 2), (5, 5, 3), (6, 5, 3)][rng.below(4) as usize];
            let late = late_encoding(seed, spread);
            // Chunks are put, counted and condemned before they are encoded late: a life must be
            // long enough for all of it.
            let crash_within = params.crash_within * if late.is_some() { 8 } else { 1 };
            let medium = Medium::of_nodes(seed);
            return Params {
                spread: Some(spread),
                index_disk: false,
                sealed: false,
                late,
                medium,
                moves: params.moves.min(100),
                crash_within,
                ..params
            };
        }
        // Rabin's cuts have no key, and are refused.
        params.sealed &= !matches!(params.chunking, Chunking::Rabin(_));
        if params.sealed {
            params.index_disk = Params::sealed_index_disk(seed);
        }
        params.heads = params.heads();
        params.puts_back = params.puts_back();
        params.domains = params.domains();
        params.volume_domains = params.volume_domains();
        params.serves |= params.volume_domains;
        params.data_keys = params.data_keys();
        if params.data_keys && params.data_keys_often() {
            params.data_keys_often = true;
            (params.list_bytes, params.container_bytes) = (1 << 10, 4 << 10);
            (params.sync_bytes, params.keep_partial) = (8 << 10, 1000);
        }
        params.pads = params.pads();
        if params.pads && !params.data_keys_often {
            params.container_bytes = 64 << 10;
        }
        params.late_counts = params.late_counts() && !params.puts_back;
        params.old_condemnation = params.old_condemnation();
        if profile == Profile::Damage {
            // Rot matters where collection copies what rotted, and what is compressed does not
            // expand.
            return Params {
                collects: true,
                compression: Compression::None,
                moves: params.moves.max(100),
                crash_within: 1_000,
                ..params
            };
        }
        params
    }
}

/// Encoding by reference counts for half of the archives on several nodes: delay, batch and codes by chance.
fn late_encoding(seed: u64, (nodes, n, k): (usize, usize, usize)) -> Option<Rad> {
    let rng = &mut Rng::new(seed ^ 0x7261_645f_6c61_7465);
    if rng.percent(50) {
        return None;
    }
    let most = nodes - (n - k);
    let cold = rng.within(2, most as u64);
    let baseline = rng.within(2, cold);
    let hot = rng.within(2, baseline);
    let late = Rad {
        delay: rng.below(3) as u32,
        batch: rng.within(1, 2) as u32,
        classes: [cold as u8, baseline as u8, hot as u8],
        gathers: 0,
    };
    let gathers = gathers(seed);
    Some(if gathers > 0 { Rad { delay: 0, batch: 1, gathers, ..late } } else { late })
}

/// Half of them encode at once, when they have so many KiB: a part of a stream, or all of it. From a
/// source of its own; none of the kept seeds that are older.
fn gathers(seed: u64) -> u32 {
    let rng = &mut Rng::new(seed ^ 0x6761_7468_6572_2e2e);
    let gathers = [4, 8, 24, ALL_AT_ONCE][rng.below(4) as usize];
    if rng.percent(50) && !is_older(seed, NEWER_THAN_GATHERED) { gathers } else { 0 }
}

/// Planted bugs that only sealed archives meet.
const SEALED_BUGS: [&str; 22] = [
    "key-area-unproven",
    "lower-key-area",
    "one-key-area",
    "older-keys-taken",
    "salt-by-chance-alone",
    "keys-copied-unproven",
    "plaintext-written",
    "other-counts-believed",
    "sealed-read-exactly",
    "erased-in-one-copy",
    "fingerprints-of-another-domain",
    "listed-in-another-domain",
    "head-not-compared",
    "head-noted-early",
    "head-noted-before-label",
    "hashes-unwritten",
    "data-key-changed-beside-others",
    "fingerprints-of-older-key",
    "data-key-change-unended",
    "data-key-erased-early",
    "volume-in-first-domain",
    "container-unpadded",
];

/// Planted bugs that only archives meet whose data keys change, and later ones, whose kept seeds draw such changes.
const DATA_KEY_BUGS: [&str; 7] = [
    "data-key-changed-beside-others",
    "fingerprints-of-older-key",
    "data-key-change-unended",
    "data-key-erased-early",
    "volume-in-first-domain",
    "container-unpadded",
    "head-noted-before-label",
];

/// Planted bugs that only archives with heads meet, and later ones, whose kept seeds draw heads.
const HEAD_BUGS: [&str; 6] = [
    "head-not-compared",
    "head-noted-early",
    "hashes-unwritten",
    "volume-in-first-domain",
    "container-unpadded",
    "head-noted-before-label",
];

/// Planted bugs that only archives with domains meet, and a later one, whose kept seed draws domains.
const DOMAIN_BUGS: [&str; 6] = [
    "erased-in-one-copy",
    "fingerprints-of-another-domain",
    "listed-in-another-domain",
    "volume-in-first-domain",
    "container-unpadded",
    "head-noted-before-label",
];

/// The bug that few changed leaves of maps find, and a later one.
const MAP_BUGS: [&str; 2] = ["map-checkpoint-put-off", "head-noted-before-label"];

/// True for a kept seed that found another planted bug than these.
fn found_another_bug(seed: u64, these: &[&str]) -> bool {
    let kept = include_str!("../../seeds/archive-bugs.txt").lines();
    let mut lines = kept.map(str::split_whitespace);
    lines.any(|mut words| {
        let is_other = words.next().is_some_and(|name| !these.contains(&name));
        is_other && words.any(|word| word.parse() == Ok(seed))
    })
}

/// True for a kept seed that stands before this line.
///
/// # Panics
///
/// Panics where the list has no such line: all kept seeds would be older.
fn is_older(seed: u64, line: &str) -> bool {
    let kept = include_str!("../../seeds/archive.txt");
    let Some((older, _)) = kept.split_once(line) else {
        panic!("the kept seeds of archives have no line '{line}'");
    };
    older
        .lines()
        .any(|line| line.split('#').next().is_some_and(|kept| kept.trim().parse() == Ok(seed)))
}
