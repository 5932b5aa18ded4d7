//! The parameters of a run, which its seed draws before it begins; they are printed when it fails.

use std::{collections::BTreeMap, time::Duration};

use onefold_core::Algorithm;
use onefold_testbed::{Fault, Rng, content::Palette};

use crate::block::subject::{Moving, Sharing, StoreOptions, Tight};

/// The theme of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Power failures only.
    Crashes,
    /// More data than the store holds, and trims.
    FullStore,
    /// Writes and flushes that fail.
    StopFaults,
    /// Reads that fail once.
    ReadFaults,
    /// Rot, misdirection, lost writes, blocks that can't be read.
    Damage,
    /// A host that has no space for a store that grows.
    HostFull,
    /// A small store that is filled, discarded and rewritten over and over.
    Churn,
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A few whole blocks.
    Write,
    /// A long run of whole blocks.
    LongWrite,
    /// Any bytes.
    Unaligned,
    /// A short range, of any alignment.
    Trim,
    /// A range that may span the volume.
    LongTrim,
    /// As a trim, or to be kept as zeroes.
    Zeroes,
    /// A read of a few ranges.
    Read,
    /// A question for extents.
    Extents,
    /// A flush of all.
    Flush,
    /// A write that is waited for.
    Fua,
    /// A change of the catalogue.
    Verb,
    /// A write of what looks like the store's own metadata.
    Forge,
    /// A jump of the clock.
    Clock,
    /// Nothing for long enough that all background work is done.
    Idle,
    /// A request that is wrong.
    Wrong,
}

impl Op {
    /// All of them, as [`Params::mix`] weighs them.
    pub const ALL: [Op; 15] = [
        Op::Write,
        Op::LongWrite,
        Op::Unaligned,
        Op::Trim,
        Op::LongTrim,
        Op::Zeroes,
        Op::Read,
        Op::Extents,
        Op::Flush,
        Op::Fua,
        Op::Verb,
        Op::Forge,
        Op::Clock,
        Op::Idle,
        Op::Wrong,
    ];
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub struct Params {
    /// The seed.
    pub seed: u64,
    /// The theme of the run.
    pub profile: Profile,
    /// The store.
    pub options: StoreOptions,
    /// Volumes at the start.
    pub volumes: u64,
    /// Blocks of a volume.
    pub volume_blocks: u64,
    /// Where clients write: first block and length.
    pub spots: Vec<(u64, u64)>,
    /// The contents that clients write.
    pub palette: Palette,
    /// Weights of [`Op::ALL`].
    pub mix: [u32; 15],
    /// Weights of [`Step::ALL`](crate::subject::Step::ALL) between two requests.
    pub steps: [u32; 7],
    /// Steps between two requests, in hundredths.
    pub steps_per_op: u64,
    /// Lives of the store: each ends with a crash.
    pub rounds: u64,
    /// Requests in a life, at most.
    pub ops: u64,
    /// A life ends inside one of so many calls that change the disk.
    pub crash_within: u64,
    /// Chance that the next recovery crashes too, in percent.
    pub recovery_crash: u64,
    /// Crashes in a row during recovery, at most.
    pub depth: u64,
    /// The longest time between two requests.
    pub pace: Duration,
    /// Faults of a life.
    pub faults: Vec<Fault>,
    /// Chance that all is read at once after a recovery, in percent.
    pub verify_at_once: u64,
    /// The product's schedule decides the steps. No seed draws it.
    pub scheduled: bool,
}

impl Params {
    /// The parameters that belong to `seed`; with `scheme`, an index of
    /// [`Subject::SCHEMES`](crate::subject::Subject::SCHEMES), those of that scheme.
    #[must_use]
    pub fn draw(seed: u64, scheme: Option<usize>) -> Params {
        let rng = &mut Rng::new(seed ^ 0x6f6e_6566_6f6c_6400);
        let (profiles, weights): (Vec<Profile>, Vec<u32>) = PROFILES.into_iter().unzip();
        let profile = profiles[rng.weighted(&weights)];
        let mut options = store_options(rng, profile);
        // Of its own source, and such that the seeds that are kept stay what they were.
        let apart = &mut Rng::new(seed ^ 0x6d65_7267_6500_0412);
        if apart.percent(22) {
            (options.scheme, options.delay_ms) = (3, [0, 30_000, 30_000][apart.below(3) as usize]);
        }
        if let Some(scheme) = scheme {
            (options.scheme, options.delay_ms) =
                (scheme, if scheme == 3 { [0, 30_000, 30_000][(seed % 3) as usize] } else { 0 });
        }
        let volumes = rng.within(1, 3);
        let volume_blocks = [64, 200, 1024, 70_000, 1 << 22][rng.weighted(&[2, 2, 3, 2, 1])];
        let room = if matches!(profile, Profile::FullStore | Profile::Churn) {
            options.disk_blocks * 5 / 4
        } else {
            options.disk_blocks / [8, 5, 3, 2][rng.below(4) as usize]
        };
        // Scattered over many pages of the map, what is discarded is more than one checkpoint works
        // through. In place, leaves stay once they are made, and are few in a small store.
        let most = if profile == Profile::Churn && options.scheme != 3 { 60 } else { 3 };
        let spots = spots(rng, volume_blocks, (room / volumes).max(4), most);
        if apart.percent(15) {
            let &(start, blocks) = &spots[apart.below(spots.len() as u64) as usize];
            options.critical = (start, blocks.div_ceil(2));
        }
        options.tight = tight(&mut Rng::new(seed ^ 0x7469_6768_7400_0b40), profile);
        options.near_ends =
            options.tight.volumes.is_none() && Rng::new(seed ^ 0x656e_6473_0000_0d4d).percent(8);
        options.references = references(seed, profile);
        options.snapshots = sharing(seed, &options);
        if let Some(sharing) = &mut options.snapshots {
            sharing.replicates =
                profile != Profile::Damage && !options.near_ends && replicates(seed);
            sharing.rots = profile == Profile::Damage && rots(seed);
            sharing.loses = sharing.replicates && loses(seed);
            // More ranges wait for it.
            sharing.slow_ranges |= sharing.rots;
            sharing.crowds = crowds(seed) && !options.near_ends;
            sharing.slow_ranges |= sharing.crowds;
        }
        options.grows = grows(seed);
        options.sealed = sealed(seed, &options);
        options.domains = domains(seed, &options, profile);
        options.quotas = quotas(seed, &options, profile);
        options.free_map_pages = free_map_pages(seed, &options);
        options.domain_limits = domain_limits(seed, &options);
        options.data_keys = data_keys(seed, &options, profile);
        options.moves = moves(seed, &options);
        options.released = released(seed);
        options.limits = limits(&mut Rng::new(seed ^ 0x6c69_6d69_7473_8859), profile);
        if options.snapshots.is_some_and(|sharing| sharing.crowds) {
            options.limits[0] = Some(12);
        }
        let percent = |rng: &mut Rng, choices: [u64; 4]| choices[rng.below(4) as usize];
        let palette = Palette {
            duplicates: if matches!(profile, Profile::FullStore | Profile::Churn) {
                10
            } else {
                percent(rng, [0, 20, 50, 85])
            },
            zeroes: percent(rng, [0, 0, 5, 25]),
            compressible: percent(rng, [0, 50, 80, 100]),
            siblings: percent(rng, [0, 5, 20, 60]),
        };
        let rounds = rng.within(2, 8);
        let ops = [10, 30, 100, 250][rng.weighted(&[2, 4, 4, 2])];
        let drawn = Params {
            seed,
            profile,
            volumes,
            volume_blocks,
            spots,
            palette,
            mix: mix(rng, profile),
            steps: steps(rng),
            steps_per_op: [20, 70, 150, 300, 600][rng.weighted(&[1, 2, 3, 3, 2])],
            rounds,
            ops,
            crash_within: [3, 15, 60, 300][rng.weighted(&[2, 4, 4, 2])],
            recovery_crash: [0, 20, 50, 90][rng.weighted(&[2, 3, 3, 2])],
            depth: rng.within(1, 4),
            pace: Duration::from_micros([0, 300, 20_000, 3_000_000][rng.weighted(&[2, 3, 3, 2])]),
            faults: faults(
                rng,
                profile,
                options.leftover_table || options.scheme == 1 || options.scheme == 3,
            ),
            verify_at_once: [0, 70, 100][rng.weighted(&[1, 2, 3])],
            scheduled: false,
            options,
        };
        drawn.copying().with_quotas().pressed().moving()
    }

    /// The same, with changes of the catalogue often enough that maps are copied.
    fn copying(mut self) -> Params {
        let Some(sharing) = self.options.snapshots else { return self };
        let weigh = |mix: &mut [u32; 15], op: Op, least: u32| {
            let at = Op::ALL.iter().position(|&one| one == op).unwrap_or_default();
            mix[at] = mix[at].max(least);
        };
        weigh(&mut self.mix, Op::Verb, 8);
        self.ops = self.ops.max(30);
        if sharing.replicates {
            weigh(&mut self.mix, Op::Verb, 30);
            self.ops = self.ops.max(50);
        }
        if sharing.slow_ranges {
            weigh(&mut self.mix, Op::LongTrim, 10);
            self.volume_blocks = self.volume_blocks.max(1200);
            self.spots = (0..4).map(|n| (n * 300, 6)).collect();
        }
        if sharing.crowds {
            // A range over many leaves waits for as many checkpoints.
            self.volume_blocks = CROWDED_LEAVES * 300;
            self.spots = (0..CROWDED_LEAVES).map(|n| (n * 300, 8)).collect();
            if sharing.replicates {
                // Lives long enough that one snapshot is sent after another.
                weigh(&mut self.mix, Op::Verb, 60);
                (self.volumes, self.crash_within) = (1, 300);
                self.ops = self.ops.max(120);
            }
        }
        if sharing.few_contents {
            self.palette.duplicates = 95;
            self.spots.truncate(2);
            self.spots.iter_mut().for_each(|spot| spot.1 = spot.1.min(6));
            weigh(&mut self.mix, Op::Verb, 20);
            weigh(&mut self.mix, Op::Write, 60);
            (self.steps, self.steps_per_op) = ([3, 3, 1, 3, 3, 4, 0], 300);
            self.volumes = 1;
        }
        self
    }

    /// The same, with changes of the catalogue often enough that volumes get quotas.
    fn with_quotas(mut self) -> Params {
        if self.options.quotas || self.options.domain_limits {
            let at = |op: Op| Op::ALL.iter().position(|&one| one == op).unwrap_or_default();
            self.mix[at(Op::Verb)] = self.mix[at(Op::Verb)].max(8);
            self.ops = self.ops.max(30);
        }
        if self.options.free_map_pages.is_some() && self.volume_blocks <= 1024 {
            // Blocks that lie apart: each group has a page of the map.
            self.volume_blocks = self.volume_blocks.max(48 * 300);
            self.spots = (0..48).map(|n| (n * 300, 1)).collect();
        }
        self
    }

    /// The same, with idle work often enough that blocks are moved.
    fn moving(mut self) -> Params {
        if self.options.moves.is_some() {
            let (tidy, checkpoint) = (6, 5);
            let usual = self.steps[tidy];
            self.steps[tidy] = usual.max(3);
            self.steps[checkpoint] = self.steps[checkpoint].max(1);
            self.steps_per_op = self.steps_per_op.max(150);
        }
        if self.options.moves.is_some_and(|moves| moves.pack_ms.is_some()) {
            // Blocks that shrink, and are not all duplicates of others.
            self.palette.compressible = self.palette.compressible.max(80);
            self.palette.duplicates = self.palette.duplicates.min(50);
            // It comes after all else that a pause does.
            (self.steps[6], self.steps_per_op) = (12, self.steps_per_op.max(600));
            let idle = Op::ALL.iter().position(|&one| one == Op::Idle).unwrap_or_default();
            self.mix[idle] = self.mix[idle].max(3);
        }
        self
    }

    /// The same, with requests and steps that come to the limit that is low.
    fn pressed(mut self) -> Params {
        let tight = self.options.tight;
        if tight == Tight::default() {
            return self;
        }
        (self.ops, self.crash_within) = (self.ops.max(100), 300);
        if tight.volumes.is_some() {
            // Volumes of several leaves of the map, of which a checkpoint works through one.
            self.options.limits[0] = Some(64);
            (self.volume_blocks, self.spots) = (1200, (0..4).map(|n| (n * 300, 2)).collect());
            self.mix = weights(&[(Op::Write, 30), (Op::Verb, 30), (Op::Read, 4), (Op::Flush, 2)]);
            self.steps = [3, 3, 0, 3, 2, 2, 0];
        } else if tight.carriers.is_some() {
            // Small windows, and no checkpoint but the one that is asked for.
            self.options.window_blocks = self.options.window_blocks.min(4);
            self.options.record_limit = 1 << 20;
            self.palette.compressible = 100;
            self.steps = [5, 5, 1, 5, 2, 0, 0];
        } else if tight.flights.is_some() {
            // Windows that are closed, and not prepared.
            self.mix = weights(&[(Op::Write, 10), (Op::Trim, 60), (Op::Read, 4), (Op::Flush, 1)]);
            (self.steps, self.steps_per_op) = ([6, 0, 0, 0, 0, 0, 0], 150);
        } else {
            // Ranges that do not touch, and windows that stay open.
            self.options.window_blocks = 128;
            (self.volume_blocks, self.spots) = (1024, vec![(0, 1024)]);
            self.mix = weights(&[(Op::Write, 5), (Op::Trim, 60), (Op::Read, 4), (Op::Flush, 1)]);
            self.steps_per_op = 20;
        }
        self
    }
}

/// These requests, and no others.
fn weights(wanted: &[(Op, u32)]) -> [u32; 15] {
    Op::ALL.map(|op| wanted.iter().find(|(one, _)| *one == op).map_or(0, |&(_, weight)| weight))
}

impl Params {
    /// Parameters that are smaller in one respect each.
    #[must_use]
    pub fn smaller(&self) -> Vec<Params> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Params)| {
            let mut params = self.clone();
            change(&mut params);
            all.push(params);
        };
        if self.rounds > 1 {
            with(&|params| params.rounds = 1);
            with(&|params| params.rounds -= 1);
        }
        if self.ops > 1 {
            with(&|params| params.ops /= 2);
            with(&|params| params.ops -= 1);
        }
        for index in (0..self.mix.len()).filter(|&index| self.mix[index] != 0) {
            with(&|params| params.mix[index] = 0);
        }
        if self.volumes > 1 {
            with(&|params| params.volumes = 1);
        }
        if self.recovery_crash > 0 {
            with(&|params| params.recovery_crash = 0);
        }
        if !self.faults.is_empty() {
            with(&|params| params.faults.truncate(params.faults.len() - 1));
        }
        if self.spots.len() > 1 {
            with(&|params| params.spots.truncate(params.spots.len() - 1));
        }
        all
    }
}

/// Themes of runs, and how often each is drawn.
const PROFILES: [(Profile, u32); 7] = [
    (Profile::Crashes, 50),
    (Profile::FullStore, 14),
    (Profile::StopFaults, 10),
    (Profile::ReadFaults, 4),
    (Profile::Damage, 11),
    (Profile::HostFull, 4),
    (Profile::Churn, 7),
];

fn store_options(rng: &mut Rng, profile: Profile) -> StoreOptions {
    let zone_blocks = [16, 16, 32, 64][rng.below(4) as usize];
    let zones = match profile {
        Profile::FullStore => rng.within(24, 48),
        Profile::Churn => rng.within(20, 32),
        _ => rng.within(32, 96),
    };
    let fingerprint = [Algorithm::Blake3, Algorithm::HmacSha256, Algorithm::Sha1, Algorithm::Md5]
        [rng.weighted(&[8, 1, 1, 1])];
    let verify_bytes = fingerprint.needs_bytes() || rng.percent(20);
    let mut id = [0; 16];
    let mut secret = [0; 32];
    rng.fill(&mut id);
    rng.fill(&mut secret);
    StoreOptions {
        disk_blocks: zones * u64::from(zone_blocks),
        zone_blocks,
        id,
        secret,
        fingerprint,
        verify_bytes,
        // A run with damage needs a fingerprint that notices it.
        weak_fingerprint: verify_bytes && rng.percent(25) && profile != Profile::Damage,
        layout_split: rng.percent(20),
        leftover_table: rng.percent(25),
        scheme: rng.weighted(&[4, 1, 1]),
        delay_ms: 0,
        grow: profile == Profile::HostFull || rng.percent(15),
        strong: rng.percent(20),
        // With the least, the index goes to disk.
        memory: [1 << 13, 1 << 15, 1 << 20, 16 << 20][rng.below(4) as usize],
        window_blocks: [1, 2, 4, 8, 32, 128][rng.below(6) as usize],
        record_limit: [64, 256, 2048, 1 << 20][rng.below(4) as usize],
        zone_limit: [3, 6, 128][rng.weighted(&[1, 2, 3])],
        critical: (0, 0),
        no_room: rng.percent(4),
        limits: [None; 2],
        tight: Tight::default(),
        references: None,
        near_ends: false,
        snapshots: None,
        grows: false,
        sealed: false,
        domains: 0,
        quotas: false,
        free_map_pages: None,
        domain_limits: false,
        data_keys: false,
        generations: BTreeMap::new(),
        moves: None,
        released: None,
        bug: None,
    }
}

/// One to `most` ranges of a volume, its ends preferred, of `room` blocks together at most.
fn spots(rng: &mut Rng, volume_blocks: u64, room: u64, most: u64) -> Vec<(u64, u64)> {
    let n = rng.within(1, most);
    let length = (room / n).clamp(1, (volume_blocks / n).max(1));
    let length = if rng.percent(40) { length.min(rng.within(1, 12)) } else { length };
    (0..n)
        .map(|_| {
            let last = volume_blocks - length;
            let first = match rng.below(3) {
                0 => 0,
                1 => last,
                _ => rng.within(0, last),
            };
            (first, length)
        })
        .collect()
}

/// Limits so low that a run comes to them, drawn from a source of their own: all other seeds stay
/// what they were, those that are kept among them.
fn limits(rng: &mut Rng, profile: Profile) -> [Option<u64>; 2] {
    // Where space is short, checkpoints leave discards.
    let crowded = matches!(profile, Profile::FullStore | Profile::Churn);
    let mut tiny =
        |percent, choices: [u64; 3]| rng.percent(percent).then(|| choices[rng.below(3) as usize]);
    [tiny(if crowded { 30 } else { 2 }, [2, 3, 8]), tiny(4, [1, 1, 2])]
}

/// From how many references on counts stay, from a source of its own; no kept seed draws it.
fn references(seed: u64, profile: Profile) -> Option<u32> {
    let rng = &mut Rng::new(seed ^ 0x6d61_6e79_0000_0001);
    let wanted = rng.percent(6) && profile != Profile::Damage;
    let most = [2, 3, 5][rng.below(3) as usize];
    (wanted && !is_kept(include_str!("../../seeds/block.txt"), seed)).then_some(most)
}

/// Behind this line of the list of kept seeds are those whose stores have snapshots.
const WITH_SNAPSHOTS: &str = "# With snapshots";

/// Behind this one are those that may send and receive snapshots.
const WITH_REPLICAS: &str = "# With replicas";

/// Whether maps are copied, from a source of its own. The seeds that were kept before there were
/// snapshots stay what they were.
fn sharing(seed: u64, options: &StoreOptions) -> Option<Sharing> {
    let before = include_str!("../../seeds/block.txt").split(WITH_SNAPSHOTS).next().unwrap_or("");
    let kept = is_kept(before, seed);
    let rng = &mut Rng::new(seed ^ 0x736e_6170_7368_6f74);
    let wanted = rng.percent(30) && options.scheme != 3 && options.tight.volumes.is_none();
    (wanted && !kept).then(|| Sharing {
        snapshots: [1, 3, 4096, 4096][rng.below(4) as usize],
        moments: [1, 2, 4][rng.below(3) as usize],
        leaving: [0, 0, 2, 4096][rng.below(4) as usize],
        slow_ranges: rng.percent(40),
        few_contents: rng.percent(30),
        crowds: false,
        replicates: false,
        rots: false,
        loses: false,
    })
}

/// Whether snapshots are sent and received, from a source of its own; all seeds that were kept before
/// stay what they were.
fn replicates(seed: u64) -> bool {
    let before = include_str!("../../seeds/block.txt").split(WITH_REPLICAS).next().unwrap_or("");
    Rng::new(seed ^ 0x7265_706c_6963_6173).percent(40) && !is_kept(before, seed)
}

/// Behind this line of the list of kept seeds are those in which senders skip damage.
const WITH_LOSSES: &str = "# With lost blocks";

/// Whether senders skip damage, from a source of its own. The seeds that were kept before stay what
/// they were.
fn loses(seed: u64) -> bool {
    let before = include_str!("../../seeds/block.txt").split(WITH_LOSSES).next().unwrap_or("");
    Rng::new(seed ^ 0x6c6f_7365_7300_0036).percent(50) && !is_kept(before, seed)
}

/// Leaves of the map of a volume whose clients crowd acts out.
const CROWDED_LEAVES: u64 = 12;

/// Behind this line of the list of kept seeds are those in which clients crowd acts out.
const WITH_CROWDS: &str = "# With crowds";

/// Whether clients trim whenever an act waits for room, from a source of its own. The seeds that were
/// kept before stay what they were.
fn crowds(seed: u64) -> bool {
    let before = include_str!("../../seeds/block.txt").split(WITH_CROWDS).next().unwrap_or("");
    Rng::new(seed ^ 0x6372_6f77_6473_0028).percent(30) && !is_kept(before, seed)
}

/// Behind this line of the list of kept seeds are those in which what maps share rots.
const WITH_SHARED_ROT: &str = "# With rot of what is shared";

/// Whether what maps share rots, from a source of its own. The seeds that were kept before stay what
/// they were.
fn rots(seed: u64) -> bool {
    let before = include_str!("../../seeds/block.txt").split(WITH_SHARED_ROT).next().unwrap_or("");
    Rng::new(seed ^ 0x726f_7473_0000_0008).percent(90) && !is_kept(before, seed)
}

/// Behind this line of the list of kept seeds are those whose stores grow.
const WITH_GROWTH: &str = "# With growth";

/// Whether the store grows, from a source of its own. The seeds that were kept before stores grew
/// stay what they were.
fn grows(seed: u64) -> bool {
    let before = include_str!("../../seeds/block.txt").split(WITH_GROWTH).next().unwrap_or("");
    Rng::new(seed ^ 0x6772_6f77_7468_0c29).percent(20) && !is_kept(before, seed)
}

/// Behind this line of the lists of kept seeds are those whose stores may be sealed.
const WITH_SEALS: &str = "# With sealed stores";

/// Whether the store is sealed, from a source of its own. The seeds that were kept before stay what
/// they were, also those that found planted bugs.
fn sealed(seed: u64, options: &StoreOptions) -> bool {
    // What goes with encryption.
    let may_be = matches!(options.scheme, 0 | 2)
        && !options.leftover_table
        && !options.weak_fingerprint
        && !options.fingerprint.needs_bytes();
    Rng::new(seed ^ 0x7365_616c_6564_0033).percent(40)
        && may_be
        && !is_kept_before(WITH_SEALS, seed)
}

/// Behind this line of the lists of kept seeds are those whose stores may have domains.
const WITH_DOMAINS: &str = "# With domains";

/// How many domains are made in a sealed store, from a source of its own. The seeds that were kept before
/// stay what they were, also those that found planted bugs. Whoever makes and erases one works on a disk
/// without faults.
fn domains(seed: u64, options: &StoreOptions, profile: Profile) -> u32 {
    let rng = &mut Rng::new(seed ^ 0x646f_6d61_696e_0072);
    let calm = matches!(profile, Profile::Crashes | Profile::FullStore | Profile::Churn);
    let may_have = calm && options.sealed && !is_kept_before(WITH_DOMAINS, seed);
    let wanted = rng.percent(60) && may_have;
    if wanted { [1, 2, 5][rng.below(3) as usize] } else { 0 }
}

/// Behind this line of the lists of kept seeds are those whose volumes may have quotas.
const WITH_QUOTAS: &str = "# With quotas";

/// Whether volumes get quotas, from a source of its own. The seeds that were kept before stay what they
/// were, also those that found planted bugs.
fn quotas(seed: u64, options: &StoreOptions, profile: Profile) -> bool {
    // Leaves that change in place have no quotas; damage makes what is mapped uncertain.
    let may_have = options.scheme != 3 && profile != Profile::Damage;
    Rng::new(seed ^ 0x7175_6f74_6173_0081).percent(25)
        && may_have
        && !is_kept_before(WITH_QUOTAS, seed)
}

/// Behind this line of the lists of kept seeds are those whose quotas may charge the pages of maps.
const WITH_MAP_PAGES: &str = "# With map pages in quotas";

/// So few pages of a map that quotas charge others, from a source of its own; `None` where the usual number
/// stays. The seeds that were kept before stay what they were.
fn free_map_pages(seed: u64, options: &StoreOptions) -> Option<u64> {
    let rng = &mut Rng::new(seed ^ 0x7061_6765_735f_0099);
    let wanted = rng.percent(60) && options.quotas && !is_kept_before(WITH_MAP_PAGES, seed);
    wanted.then(|| [0, 1, 3][rng.below(3) as usize])
}

/// Behind this line of the lists of kept seeds are those whose domains may have limits.
const WITH_DOMAIN_LIMITS: &str = "# With limits of domains";

/// Whether domains get limits, from a source of its own. The seeds that were kept before stay what they
/// were, also those that found planted bugs.
fn domain_limits(seed: u64, options: &StoreOptions) -> bool {
    Rng::new(seed ^ 0x6c69_6d69_7465_6404).percent(75)
        && options.domains > 0
        && matches!(options.scheme, 0 | 2)
        && !is_kept_before(WITH_DOMAIN_LIMITS, seed)
}

/// Behind this line of the lists of kept seeds are those whose data keys may change.
const WITH_DATA_KEYS: &str = "# With data keys";

/// Whether data keys change, from a source of its own. The seeds that were kept before stay what they were, also
/// those that found planted bugs. Whoever changes one works on a disk without faults.
fn data_keys(seed: u64, options: &StoreOptions, profile: Profile) -> bool {
    let calm = matches!(profile, Profile::Crashes | Profile::FullStore | Profile::Churn);
    Rng::new(seed ^ 0x6461_7461_6b65_0094).percent(50)
        && calm
        && options.sealed
        && !is_kept_before(WITH_DATA_KEYS, seed)
}

/// Behind this line of the lists of kept seeds are those whose stores may move blocks.
const WITH_MOVES: &str = "# With moves";

/// Whether blocks are moved, from a source of its own. In the stores of the seeds that were kept before
/// they are written again by records, as with leaves in place.
fn moves(seed: u64, options: &StoreOptions) -> Option<Moving> {
    let rng = &mut Rng::new(seed ^ 0x6d6f_7665_7300_0085);
    let wanted = rng.percent(60) && options.scheme != 3;
    let moving = Moving {
        blocks_a_run: [2, 2, 4, 16][rng.below(4) as usize],
        settled_ms: [0, 0, 0, 1_000][rng.below(4) as usize],
        step: move_step(seed),
        readers: readers(seed),
        pack_ms: packing(seed, options),
    };
    (wanted && !is_kept_before(WITH_MOVES, seed)).then_some(moving)
}

/// Behind this line of the lists of kept seeds are those in which cold blocks are packed.
const WITH_PACKS: &str = "# With packs";

/// How long blocks lie still before they are packed, from a source of its own. The seeds that were kept before
/// stay what they were.
fn packing(seed: u64, options: &StoreOptions) -> Option<u64> {
    let rng = &mut Rng::new(seed ^ 0x7061_636b_7300_0101);
    let wanted = rng.percent(50) && !options.sealed;
    let after = [0, 0, 0, 1_000][rng.below(4) as usize];
    (wanted && !is_kept_before(WITH_PACKS, seed)).then_some(after)
}

/// Behind this line of the lists of kept seeds are those in which somebody reads all in order, or few blocks
/// move or are released in a step.
const WITH_READERS: &str = "# With readers in order";

/// Whether somebody reads all in order now and then, from a source of its own. The seeds that were kept
/// before stay what they were.
fn readers(seed: u64) -> bool {
    Rng::new(seed ^ 0x7265_6164_6572_0095).percent(50) && !is_kept_before(WITH_READERS, seed)
}

/// How many blocks a step of a checkpoint releases, from a source of its own.
fn released(seed: u64) -> Option<usize> {
    let rng = &mut Rng::new(seed ^ 0x7265_6c65_6173_0095);
    let wanted = rng.percent(40) && !is_kept_before(WITH_READERS, seed);
    wanted.then(|| [1, 4, 20][rng.below(3) as usize])
}

/// How many blocks a step of moving copies, from a source of its own.
fn move_step(seed: u64) -> Option<usize> {
    let rng = &mut Rng::new(seed ^ 0x6d6f_7665_7374_0095);
    let wanted = rng.percent(30) && !is_kept_before(WITH_READERS, seed);
    wanted.then(|| [1, 4, 16][rng.below(3) as usize])
}

/// True for a seed that was kept, or found a planted bug, before this line was written.
///
/// # Panics
///
/// Panics where a list has no such line: all its seeds would be older.
fn is_kept_before(line: &str, seed: u64) -> bool {
    let older = |list: &'static str| match list.split_once(line) {
        Some((older, _)) => older,
        None => panic!("a list of kept seeds of block stores has no line '{line}'"),
    };
    let found = older(include_str!("../../seeds/block-bugs.txt")).lines();
    is_kept(older(include_str!("../../seeds/block.txt")), seed)
        || found
            .filter(|line| !line.starts_with('#'))
            .flat_map(|line| line.split_whitespace().skip(1))
            .any(|word| word.parse() == Ok(seed))
}

/// True when a list of kept seeds has this one.
fn is_kept(list: &str, seed: u64) -> bool {
    let mut first = list.lines().filter_map(|line| line.split_whitespace().next());
    first.any(|first| first.parse() == Ok(seed))
}

/// More of them, from another source, such that no seed that is kept draws one.
fn tight(rng: &mut Rng, profile: Profile) -> Tight {
    let mut tight = Tight::default();
    let kind = rng.below(24);
    let least = rng.below(3) as usize;
    match kind {
        // Damaged stores are not judged by limits, and churn has requests of its own.
        _ if matches!(profile, Profile::Damage | Profile::Churn) => {}
        0..=2 => tight.volumes = Some([4, 6, 8][least]),
        3 => tight.carriers = Some([4, 8, 24][least]),
        4 => tight.flights = Some([1, 2, 3][least]),
        5 => tight.ranges = Some([1, 2, 4][least]),
        _ => {}
    }
    tight
}

fn mix(rng: &mut Rng, profile: Profile) -> [u32; 15] {
    //          write long unal trim ltrim zero read ext flush fua verb forge clock idle wrong
    let usual = [30, 6, 8, 6, 1, 4, 10, 3, 6, 6, 2, 2, 2, 1, 1];
    let mut mix = match profile {
        Profile::FullStore => [30, 40, 4, 3, 1, 2, 8, 2, 4, 3, 1, 0, 1, 1, 1],
        _ => usual,
    };
    // Each seed leans to some requests and leaves others out.
    for weight in mix.iter_mut().skip(1) {
        *weight *= [0, 1, 1, 1, 4][rng.below(5) as usize];
    }
    mix
}

/// Weights of the request number `n` of a run that fills, discards and rewrites.
pub(crate) fn churn(n: u64) -> [u32; 15] {
    match n / 10 % 4 {
        //   write long unal trim ltrim zero read ext flush fua verb forge clock idle wrong
        0 => [5, 30, 0, 0, 0, 0, 2, 1, 2, 1, 0, 0, 0, 0, 0],
        1 => [2, 2, 1, 8, 20, 8, 2, 2, 4, 1, 4, 0, 0, 3, 0],
        2 => [20, 10, 4, 1, 0, 2, 4, 1, 4, 3, 0, 0, 1, 2, 0],
        _ => [10, 10, 2, 6, 4, 6, 4, 1, 4, 2, 1, 0, 1, 1, 0],
    }
}

fn steps(rng: &mut Rng) -> [u32; 7] {
    match rng.below(4) {
        0 => [3, 3, 0, 3, 1, 1, 0], // windows overlap
        1 => [1, 3, 1, 3, 3, 0, 0], // as a server under load, without checkpoints
        2 => [2, 2, 1, 2, 2, 6, 2], // checkpoints and idle work all the time
        _ => std::array::from_fn(|_| [0, 1, 2, 5][rng.below(4) as usize]),
    }
}

/// Pages that are written in place can't tell that a write was lost, or went elsewhere: the
/// documents say so.
fn faults(rng: &mut Rng, profile: Profile, in_place: bool) -> Vec<Fault> {
    let choices: &[Fault] = match profile {
        Profile::Crashes | Profile::FullStore | Profile::Churn => &[Fault::Slow],
        Profile::StopFaults => &[Fault::WriteError, Fault::FlushError, Fault::NoSpaceWrite],
        Profile::ReadFaults => &[Fault::ReadOnce],
        Profile::Damage if in_place => &[Fault::Rot, Fault::MisdirectedRead, Fault::ReadForGood],
        Profile::Damage => &[
            Fault::Rot,
            Fault::MisdirectedWrite,
            Fault::LostWrite,
            Fault::MisdirectedRead,
            Fault::ReadForGood,
        ],
        Profile::HostFull => &[Fault::NoSpaceAllocate],
    };
    let n = match profile {
        Profile::Crashes | Profile::FullStore | Profile::Churn => rng.below(2),
        Profile::ReadFaults => rng.within(1, 4),
        Profile::Damage => rng.within(1, 2),
        _ => 1,
    };
    (0..n).filter_map(|_| rng.pick(choices).copied()).collect()
}
