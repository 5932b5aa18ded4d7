//! The parameters of a run. Its seed decides them before it begins; a run that fails prints them.

use std::time::Duration;

use onefold_cluster::{Cut, Dedup, Format, Rule, Settings, format::PENDING_MAX};
use onefold_core::object::PoolKind;
use onefold_testbed::Rng;

use super::sealed;

/// The fewest bytes of a chunk that is cut by its content.
const LEAST_CUT: u32 = 2048;

/// The line behind the kept seeds that are older than limits of drops and of bytes.
const NEWER_THAN_LIMITS: &str = "# The seeds below draw limits of drops and of bytes.";

/// The line behind the kept seeds that are older than snapshots.
const NEWER_THAN_SNAPSHOTS: &str = "# The seeds below take snapshots.";

/// The line behind the kept seeds that are older than layers that go together.
const NEWER_THAN_STACKS: &str = "# The seeds below delete snapshots together.";

/// The line behind the kept seeds that are older than snapshots of volumes in use.
const NEWER_THAN_LIVE: &str = "# The seeds below take snapshots of volumes in use.";

/// The line behind the kept seeds that are older than receives.
const NEWER_THAN_RECEIVES: &str = "# The seeds below receive snapshots.";

/// All parameters of a run.
#[derive(Clone, Debug)]
pub struct Params {
    /// The seed.
    pub seed: u64,
    /// The kind of the chunk pool.
    pub chunks: PoolKind,
    /// Volumes.
    pub volumes: usize,
    /// Bytes of a volume.
    pub volume_bytes: u64,
    /// Bytes of a metadata object.
    pub object_bytes: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Shards of the names, and of the dirty list.
    pub shards: u16,
    /// Clients that compete for each volume.
    pub clients: usize,
    /// Workers.
    pub workers: usize,
    /// An actor puts objects.
    pub puts: bool,
    /// An actor scrubs beside the clients.
    pub scrubs: bool,
    /// Different contents of chunks that clients write again and again.
    pub palette: u32,
    /// Writes that have one of these contents, in percent.
    pub duplicates: u64,
    /// Events until all actors calm down.
    pub events: u64,
    /// Operations whose reply is lost, in thousandths.
    pub unknown: u64,
    /// Operations of which a copy comes late, in thousandths.
    pub copies: u64,
    /// Events at which a late copy comes, in thousandths.
    pub late: u64,
    /// Events at which an actor is killed, in thousandths.
    pub kills: u64,
    /// Events at which an actor is stopped or continued, in thousandths.
    pub stops: u64,
    /// Events at which the time jumps, in thousandths.
    pub jumps: u64,
    /// Operations that find the store full, in thousandths.
    pub full: u64,
    /// Most milliseconds between two clocks.
    pub drift: u64,
    /// Most names or keys on a page of a listing.
    pub page: usize,
    /// Milliseconds that an object must be unchanged before it is deduplicated.
    pub cold: u64,
    /// Seconds of the last minute with a read of a chunk that make it hot; 0 for never.
    pub hit_count: u32,
    /// Chunks that are kept although they are clean.
    pub cached: u64,
    /// References at which a chunk gets more copies.
    pub spread_at: usize,
    /// Most long trims that have not reached all their objects.
    pub discards_max: usize,
    /// Pending drops that an object may be left with when a change is decided.
    pub pending_max: usize,
    /// Most bytes of writes that wait.
    pub waiting_bytes: usize,
    /// Most maps that a client remembers.
    pub known_objects: usize,
    /// The store loses a metadata object in the end.
    pub loss: bool,
    /// Clients that deduplicate inline, in percent; as many deduplicate flush-through.
    pub own_dedup: u64,
    /// Volumes are cut by their content.
    pub content: bool,
    /// The store says now and then that it recovers.
    pub recovers: bool,
    /// Calls of a client before it begins anew with another session.
    pub calls: u64,
    /// Late copies come when all objects are clean, and not before.
    pub late_last: bool,
    /// Reads and trims also come between writes that wait together.
    pub mixed: bool,
    /// An actor resizes the last volume, deletes it, and makes it anew.
    pub steward: bool,
    /// The run has no faults, and no actor is in another one's way.
    pub tidy: bool,
    /// In the end a chunk object goes bad.
    pub decay: bool,
    /// In the end a clock is set back.
    pub set_back: bool,
    /// An actor renames volumes and objects.
    pub renames: bool,
    /// The store is sealed at rest.
    pub sealed: bool,
    /// The clients are servers that stand by for each other.
    pub gateways: bool,
    /// An actor takes snapshots and clones.
    pub snapshots: bool,
    /// It deletes several snapshots of a volume at one time, and several workers delete what they held.
    pub stacks: bool,
    /// A client takes snapshots of the volume that it writes to, and clones of it.
    pub live: bool,
    /// An actor sends snapshots to a volume of the same store.
    pub receives: bool,
    /// Events at which the clock of a server is set, in thousandths.
    pub sets: u64,
    /// The planted bug, by its index.
    pub bug: Option<usize>,
}

impl Params {
    /// The parameters of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Params {
        let [decay, set_back] = draw_ends(seed);
        let params =
            Params { discards_max: draw_limit(seed), decay, set_back, ..Params::draw_common(seed) };
        let params = if is_wild(seed) { params.wild() } else { params };
        let params = if has_renames(seed) { params.renaming() } else { params };
        let params = if is_kept(seed) { params } else { params.limited() };
        let params = if has_gateways(seed) { params.standing_by() } else { params };
        let params = if has_snapshots(seed) { params.with_snapshots() } else { params };
        let params = if has_stacks(seed) { params.with_stacks() } else { params };
        let params = if is_live(seed) { params.live() } else { params };
        let params = if has_receives(seed) { params.receiving() } else { params };
        Params { sealed: is_sealed(seed), ..params }
    }

    /// Draws the parameters of seeds in which servers stand by for each other, from a source of their own.
    /// Nobody else writes to volumes there, or shuts a server out.
    fn standing_by(self) -> Params {
        if self.renames || self.tidy || self.late_last {
            return self;
        }
        let rng = &mut Rng::new(self.seed ^ 0x6f6e_6566_6f6c_6407);
        let mut of = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        let volumes = self.volumes - usize::from(self.steward);
        let (clients, workers) = (of(&[2, 3]) as usize, of(&[0, 1]) as usize);
        let puts = of(&[0, 0, 1]) == 1;
        // An object that is put has more chunks than one of a volume, and its drops must be able to wait.
        let entries = if puts { self.object_bytes / LEAST_CUT } else { 0 };
        Params {
            gateways: true,
            volumes,
            steward: false,
            clients,
            workers,
            scrubs: false,
            puts,
            pending_max: self.pending_max.max(entries as usize),
            calls: of(&[60, 300, 300]),
            events: of(&[6000, 12_000, 20_000]),
            kills: of(&[0, 1, 2]),
            stops: of(&[1, 2, 5]),
            jumps: of(&[0, 0, 1]),
            sets: of(&[0, 2, 10]),
            full: 0,
            unknown: of(&[0, 10, 50]),
            mixed: true,
            ..self
        }
    }

    /// Draws the parameters of seeds in which an actor takes snapshots, from a source of their own.
    fn with_snapshots(self) -> Params {
        if self.renames || self.gateways || self.tidy || self.late_last {
            return self;
        }
        let rng = &mut Rng::new(self.seed ^ 0x6f6e_6566_6f6c_6408);
        let mut of = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        Params {
            snapshots: true,
            volumes: of(&[1, 1, 2]) as usize,
            steward: false,
            clients: 1,
            workers: of(&[1, 2]) as usize,
            calls: of(&[20, 60]),
            events: of(&[4000, 8000]),
            kills: of(&[0, 1, 3]),
            ..self
        }
    }

    /// Draws the parameters of seeds in which a client takes snapshots of its volume, from a source of their own.
    fn live(self) -> Params {
        if !self.snapshots {
            return self;
        }
        let rng = &mut Rng::new(self.seed ^ 0x6f6e_6566_6f6c_640a);
        let mut of = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        Params {
            live: true,
            mixed: true,
            calls: of(&[60, 120]),
            clients: of(&[1, 1, 2]) as usize,
            events: of(&[6000, 12_000]),
            full: of(&[0, 40]),
            unknown: of(&[10, 150, 300]),
            ..self
        }
    }

    /// Draws the parameters of seeds in which snapshots are sent and received, from a source of their own.
    fn receiving(self) -> Params {
        if !self.snapshots {
            return self;
        }
        let rng = &mut Rng::new(self.seed ^ 0x6f6e_6566_6f6c_640b);
        let mut of = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        Params {
            receives: true,
            live: true,
            mixed: true,
            volumes: 1,
            volume_bytes: u64::from(self.object_bytes) * of(&[1, 3, 6]),
            clients: 1,
            workers: of(&[1, 2]) as usize,
            scrubs: of(&[0, 0, 1]) == 1,
            calls: of(&[60, 120]),
            events: of(&[16_000, 30_000]),
            puts: false,
            kills: of(&[0, 0, 1, 2]),
            stops: of(&[0, 2]),
            jumps: of(&[0, 1]),
            full: of(&[0, 0, 0, 20]),
            unknown: of(&[0, 10, 50, 150]),
            copies: of(&[0, 20, 100]),
            ..self
        }
    }

    /// Draws the parameters of seeds in which layers over each other go together, from a source of their own.
    fn with_stacks(self) -> Params {
        if !self.snapshots {
            return self;
        }
        let rng = &mut Rng::new(self.seed ^ 0x6f6e_6566_6f6c_6409);
        let mut of = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        Params {
            stacks: true,
            volumes: 1,
            volume_bytes: u64::from(self.object_bytes) * of(&[8, 16]),
            calls: of(&[4, 12]),
            workers: of(&[2, 3]) as usize,
            events: of(&[6000, 12_000]),
            scrubs: false,
            puts: false,
            kills: of(&[0, 1]),
            stops: of(&[0, 2]),
            jumps: of(&[0, 3]),
            unknown: of(&[0, 10]),
            ..self
        }
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
        if self.events > 1 {
            all.push(with(&|params| params.events /= 2));
            all.push(with(&|params| params.events -= params.events.div_ceil(10)));
        }
        if self.clients > 1 {
            all.push(with(&|params| params.clients = 1));
        }
        if self.workers > 1 {
            all.push(with(&|params| params.workers = 1));
        }
        let faults: [fn(&mut Params) -> &mut u64; 7] = [
            |params| &mut params.unknown,
            |params| &mut params.copies,
            |params| &mut params.late,
            |params| &mut params.kills,
            |params| &mut params.stops,
            |params| &mut params.jumps,
            |params| &mut params.full,
        ];
        for fault in faults {
            if *fault(&mut self.clone()) > 0 {
                all.push(with(&|params| *fault(params) = 0));
            }
        }
        all
    }

    /// Draws limits that are tiny in some seeds, from a source of their own: as many pending drops as
    /// an object has entries, and writes of a block or two.
    fn limited(self) -> Params {
        let rng = &mut Rng::new(self.seed ^ 0x6f6e_6566_6f6c_6405);
        let mut of = |choices: &[usize]| choices[rng.below(choices.len() as u64) as usize];
        // What is cut by its content has more chunks than what is cut at equal lengths.
        let least = if self.content || self.puts { LEAST_CUT } else { self.chunk_bytes };
        let entries = (self.object_bytes / least) as usize;
        Params {
            pending_max: of(&[entries, self.pending_max]),
            waiting_bytes: of(&[8 << 10, 32 << 10, self.waiting_bytes]),
            ..self
        }
    }

    /// Draws the parameters of seeds in which an actor renames.
    fn renaming(self) -> Params {
        let rng = &mut Rng::new(self.seed ^ 0x6f6e_6566_6f6c_6406);
        let mut of = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        let volumes = self.volumes - usize::from(self.steward);
        let common = Params {
            renames: true,
            puts: true,
            mixed: true,
            steward: false,
            volumes,
            shards: of(&[1, 2, 4, 4]) as u16,
            ..self
        };
        if common.tidy {
            return common;
        }
        Params {
            unknown: of(&[0, 10, 50]),
            copies: of(&[20, 150]),
            late: if common.late_last { 0 } else { of(&[30, 100]) },
            ..common
        }
    }

    /// Draws the parameters of two seeds in five from a source of their own. So the kept seeds stay
    /// what they were.
    fn wild(self) -> Params {
        let rng = &mut Rng::new(self.seed ^ 0x6f6e_6566_6f6c_6402);
        let mut of = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        let steward = of(&[0, 1]) == 1;
        let object_bytes =
            if self.content { self.chunk_bytes * of(&[8, 16]) as u32 } else { self.object_bytes };
        Params {
            object_bytes,
            volume_bytes: if self.content {
                u64::from(object_bytes) * of(&[1, 2])
            } else {
                self.volume_bytes
            },
            volumes: self.volumes + usize::from(steward),
            stops: of(&[0, 1, 5]),
            calls: of(&[60, 300]),
            mixed: true,
            steward,
            ..self
        }
        .late_last(of(&[0, 0, 1]) == 1 || self.content && of(&[0, 1]) == 1)
        .tidied(of(&[0, 0, 0, 0, 0, 1]) == 1)
    }

    /// Late copies come when all objects are clean. The store applies no copy of a fenced session,
    /// so no session is fenced.
    fn late_last(self, last: bool) -> Params {
        if !last {
            return self;
        }
        Params {
            late_last: true,
            late: 0,
            clients: 1,
            calls: 1000,
            kills: 0,
            copies: self.copies.max(150),
            ..self
        }
    }

    /// A run without faults, in which no actor is in another one's way. Then no actor may fail, and
    /// a scrub may find nothing but false references.
    fn tidied(self, tidy: bool) -> Params {
        if !tidy {
            return self;
        }
        let volumes = self.volumes - usize::from(self.steward);
        Params {
            volumes,
            steward: false,
            clients: 1,
            unknown: 0,
            copies: 0,
            late: 0,
            kills: 0,
            stops: 0,
            jumps: 0,
            full: 0,
            tidy: true,
            ..self
        }
    }

    fn draw_common(seed: u64) -> Params {
        let rng = &mut Rng::new(seed ^ 0x6f6e_6566_6f6c_6401);
        let mut of = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        let chunk_bytes = of(&[8192, 8192, 16384]) as u32;
        let object_bytes = chunk_bytes * of(&[1, 2, 4]) as u32;
        Params {
            seed,
            chunks: if of(&[0, 0, 1]) == 1 { PoolKind::Erasure } else { PoolKind::Replicated },
            volumes: of(&[1, 2, 2]) as usize,
            volume_bytes: u64::from(object_bytes) * of(&[1, 3, 6]),
            object_bytes,
            chunk_bytes,
            shards: of(&[1, 2, 4]) as u16,
            clients: of(&[1, 1, 2]) as usize,
            workers: of(&[1, 2, 3]) as usize,
            puts: of(&[0, 0, 1]) == 1,
            scrubs: of(&[0, 1, 1]) == 1,
            palette: of(&[1, 2, 4]) as u32,
            duplicates: of(&[20, 60, 90]),
            events: of(&[1500, 3000, 6000]),
            unknown: of(&[0, 10, 50, 150]),
            copies: of(&[0, 20, 150]),
            late: of(&[5, 30, 100]),
            kills: of(&[0, 3, 8]),
            stops: of(&[0, 5, 20]),
            jumps: of(&[0, 3, 20]),
            full: of(&[0, 0, 0, 30]),
            drift: of(&[0, 0, 3000]),
            page: of(&[2, 5, 1000]) as usize,
            cold: of(&[0, 0, 20]),
            hit_count: of(&[0, 1, 2]) as u32,
            cached: of(&[1, 3]),
            spread_at: of(&[2, 4, 8192]) as usize,
            known_objects: of(&[1, 2, 64]) as usize,
            discards_max: usize::MAX,
            pending_max: PENDING_MAX,
            waiting_bytes: 32 << 20,
            loss: of(&[0, 0, 0, 1]) == 1,
            own_dedup: of(&[0, 0, 20, 45]),
            content: of(&[0, 0, 1]) == 1,
            recovers: of(&[0, 0, 0, 1]) == 1,
            calls: 60,
            late_last: false,
            mixed: false,
            steward: false,
            tidy: false,
            decay: false,
            set_back: false,
            renames: false,
            sealed: false,
            gateways: false,
            snapshots: false,
            stacks: false,
            live: false,
            receives: false,
            sets: 0,
            bug: None,
        }
    }

    /// True when no actor is away for longer than a lease, so that leases keep workers apart.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        self.jumps == 0 && self.stops == 0 && self.kills == 0
    }

    /// True in one seed of nine, none of which had been kept when this came. Deletions then read the listing of the
    /// pool.
    fn lists(&self) -> bool {
        self.seed % 9 == 5
    }

    /// True when scrubs go on in other sessions, and names are also listed by pages.
    #[must_use]
    pub fn in_portions(&self) -> bool {
        self.lists()
    }

    /// The settings of a session.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            // Threads of its own would run beside the order of the seed.
            renews_aside: false,
            tries: 12,
            dedup: Dedup::PostProcessing,
            cold: Duration::from_millis(self.cold),
            lease: Duration::from_secs(30),
            volume_lease: if self.gateways {
                Duration::from_secs(1)
            } else {
                Duration::from_secs(30)
            },
            gateway_lease: Duration::from_secs(1),
            pause: Duration::from_millis(10),
            spread_at: self.spread_at,
            count_one_in: 1,
            direct_objects: 1,
            looked_for_max: if self.lists() { 0 } else { 1 << 14 },
            discards_max: self.discards_max,
            pending_max: self.pending_max,
            waiting_bytes: self.waiting_bytes,
            hit_count: self.hit_count,
            cache_bytes: u64::from(self.chunk_bytes) * self.cached,
            known_objects: self.known_objects,
            objects_per_step: 2,
            batch_bytes: if self.seed.is_multiple_of(5) {
                self.chunk_bytes.into()
            } else {
                8 << 20
            },
            cursor_blocks: 2,
            keys: sealed::source(self),
            broken: self.bug.map(|bug| Rule::BUGS[bug].1),
        }
    }

    /// The format of the store.
    #[must_use]
    pub fn format(&self) -> Format {
        Format {
            chunk_bytes: self.chunk_bytes,
            object_bytes: self.object_bytes,
            shards: self.shards,
            cut: if self.seed.is_multiple_of(2) { Cut::Static } else { Cut::Content },
            volume_cut: if self.content { Cut::Content } else { Cut::Static },
            compress: self.seed.is_multiple_of(3),
            ..Format::new([1; 16], [2; 32], self.chunks)
        }
    }
}

/// Draws a limit that is tiny in some seeds, so that runs reach it. The limit has a source of its
/// own, so that all else of a seed stays as it was.
fn draw_limit(seed: u64) -> usize {
    [1, 2, 64][Rng::new(seed ^ 0x6f6e_6566_6f6c_6403).below(3) as usize]
}

/// Draws the faults that come when all objects are clean, each in one seed of four. They have a
/// source of their own for the same reason.
fn draw_ends(seed: u64) -> [bool; 2] {
    let rng = &mut Rng::new(seed ^ 0x6f6e_6566_6f6c_6404);
    [(); 2].map(|()| rng.below(4) == 0)
}

/// True for seeds that were kept before limits were drawn for all others: they stay as they were.
fn is_kept(seed: u64) -> bool {
    let found = include_str!("../../seeds/cluster-bugs.txt").lines();
    let found = found.take_while(|line| *line != NEWER_THAN_LIMITS);
    let kept = include_str!("../../seeds/cluster.txt").lines();
    let kept = kept.take_while(|line| *line != NEWER_THAN_LIMITS);
    let kept = kept.filter_map(|line| line.split('#').next());
    found.chain(kept).flat_map(str::split_whitespace).any(|word| word.parse() == Ok(seed))
}

/// True for seeds in which an actor renames: one of seven, without the first 300, and without those
/// that were kept before.
fn has_renames(seed: u64) -> bool {
    seed >= 300 && seed % 7 == 2
}

/// True for seeds in which servers stand by for each other: one of thirteen, without the first 300, and without
/// those that were kept before.
fn has_gateways(seed: u64) -> bool {
    seed >= 300 && seed % 13 == 6 && !KEPT_BEFORE_GATEWAYS.contains(&seed)
}

/// True for seeds in which an actor takes snapshots: one of six, without the first 300, and without
/// those that were kept before.
fn has_snapshots(seed: u64) -> bool {
    seed >= 300 && seed % 6 == 4 && !is_kept_before(seed, NEWER_THAN_SNAPSHOTS)
}

/// True for seeds that had been kept, each with a planted bug or a fault, when this line came.
fn is_kept_before(seed: u64, line: &str) -> bool {
    let found = include_str!("../../seeds/cluster-bugs.txt").lines();
    let found = found.take_while(|found| *found != line);
    let kept = include_str!("../../seeds/cluster.txt").lines();
    let kept = kept.take_while(|found| *found != line);
    let kept = kept.filter_map(|line| line.split('#').next());
    found.chain(kept).flat_map(str::split_whitespace).any(|word| word.parse() == Ok(seed))
}

/// True for seeds in which layers over each other go together: one of four in which an actor takes snapshots,
/// without those that were kept before.
fn has_stacks(seed: u64) -> bool {
    has_snapshots(seed) && seed / 6 % 4 == 1 && !is_kept_before(seed, NEWER_THAN_STACKS)
}

/// True for seeds in which a client takes snapshots of its volume: one of four in which an actor takes snapshots,
/// without those that were kept before.
fn is_live(seed: u64) -> bool {
    has_snapshots(seed) && seed / 6 % 4 == 2 && !is_kept_before(seed, NEWER_THAN_LIVE)
}

/// True for seeds in which snapshots are received: one of four in which an actor takes snapshots, without those that
/// were kept before.
fn has_receives(seed: u64) -> bool {
    has_snapshots(seed) && seed / 6 % 4 == 3 && !is_kept_before(seed, NEWER_THAN_RECEIVES)
}

/// Seeds of that kind that had been kept, each with a planted bug or a fault, when servers began to stand by.
const KEPT_BEFORE_GATEWAYS: [u64; 4] = [448, 773, 786, 4244];

/// True for seeds whose store is sealed at rest: one of eleven, without the first 300, and without those
/// that were kept before.
fn is_sealed(seed: u64) -> bool {
    seed >= 300 && seed % 11 == 7 && !is_kept(seed)
}

/// True for two seeds of five, to which later parameters apply. The other three are as they were
/// when some of them were kept.
fn is_wild(seed: u64) -> bool {
    matches!(seed % 5, 0 | 2)
}
