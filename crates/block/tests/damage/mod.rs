//! Stores with everything in them, and ways to damage them.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Engine, Format, Settings,
    format::{
        Identity,
        geometry::SUPERBLOCKS,
        page::{self, PageId, Pointer, Table},
        superblock::{Found, Leftover, Root, SchemeName, Superblock},
    },
};
use onefold_core::{
    Block, BlockRead, BlockRef, Class, Disk, Error, Kind, Lba, Pba, Read, Result, Run, Ticket,
    VolumeId,
};

pub const ZONES: u64 = 640;
pub const ZONE_BLOCKS: u64 = 16;

/// What the volumes hold.
pub type Model = BTreeMap<(String, u64), [u8; 4096]>;

pub fn settings() -> Settings {
    Settings {
        records_max: 4000,
        window_blocks: 32,
        unflushed_blocks: 128,
        ..Settings::for_memory(32 << 20)
    }
}

pub fn open(disk: &Arc<MemoryDisk>) -> Result<Engine> {
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings())
}

/// Bytes that compress (most) or do not (one in three).
pub fn content(n: u64) -> [u8; 4096] {
    let mut block = [0; 4096];
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let end = if n.is_multiple_of(3) { 4096 } else { 2800 };
    for byte in &mut block[..end] {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    block
}

pub fn persevere(engine: &Engine, mut change: impl FnMut() -> Result<Ticket>) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::time::Instant::now() < until {
        match change() {
            Err(e) if e.kind() == Kind::Busy => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
                // A reader may be in the way.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            other => {
                other.unwrap();
                return;
            }
        }
    }
    panic!("busy for ever");
}

/// A store at work, and what it must hold.
pub struct Subject {
    pub disk: Arc<MemoryDisk>,
    pub engine: Engine,
    pub model: Model,
}

impl Subject {
    pub fn new() -> Subject {
        Subject::formatted(Leftover::Log, SchemeName::Thin)
    }

    /// Ten volumes in a store with `leftover = table`.
    pub fn with_leftover_table() -> Subject {
        let mut subject = Subject::formatted(Leftover::Table, SchemeName::Thin);
        for n in 0..10 {
            subject.create(&format!("volume {n}"), 2000 + n);
        }
        subject.engine.flush().unwrap();
        subject.engine.checkpoint().unwrap();
        subject
    }

    fn formatted(leftover: Leftover, scheme: SchemeName) -> Subject {
        let disk = Arc::new(MemoryDisk::new(ZONES * ZONE_BLOCKS));
        let format = Format {
            zone_blocks: ZONE_BLOCKS as u32,
            leftover,
            scheme,
            ..Format::new([1; 16], [2; 32], ZONES * ZONE_BLOCKS)
        };
        Engine::format(&*disk, &format).unwrap();
        let engine = open(&disk).unwrap();
        Subject { disk, engine, model: Model::new() }
    }

    pub fn write(&mut self, volume: &str, lba: u64, n: u64) {
        let id = self.engine.find_volume(volume).unwrap();
        let data = content(n);
        persevere(&self.engine, || self.engine.write(id, lba * 4096, &data));
        self.model.insert((volume.into(), lba), data);
    }

    pub fn zero(&mut self, volume: &str, lba: u64, blocks: u64, keep: bool) {
        let id = self.engine.find_volume(volume).unwrap();
        persevere(&self.engine, || {
            self.engine.write_zeroes(id, lba * 4096, blocks * 4096, keep, &mut 0)
        });
        for lba in lba..lba + blocks {
            self.model.remove(&(volume.into(), lba));
        }
    }

    pub fn create(&mut self, volume: &str, blocks: u64) {
        persevere(&self.engine, || {
            self.engine.create_volume(volume, blocks).map(|(_, ticket)| ticket)
        });
    }

    /// One volume with so many different blocks that their index goes to disk.
    pub fn with_index() -> Subject {
        let mut subject = Subject::new();
        let settings = Settings { index_memory: 16 << 10, records_max: 3000, ..settings() };
        subject.engine =
            Engine::open(subject.disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap();
        subject.create("volume 0", 8000);
        for n in 0..8000 {
            subject.write("volume 0", n, n * 3 + 1);
        }
        subject.engine.flush().unwrap();
        subject.engine.checkpoint().unwrap();
        subject
    }

    /// Ten volumes; one with data, duplicates, zeroes and holes, over several checkpoints. Every
    /// table has inner pages.
    pub fn filled() -> Subject {
        Subject::new().fill()
    }

    /// The same with leaves in place.
    pub fn filled_in_place() -> Subject {
        Subject::formatted(Leftover::Log, SchemeName::OrderMerge).fill()
    }

    fn fill(self) -> Subject {
        let mut subject = self;
        for n in 0..10 {
            subject.create(&format!("volume {n}"), 2000 + n);
        }
        for n in 0..1000 {
            subject.write("volume 5", n, 30_000 + n * 3);
        }
        for round in 0..3 {
            for n in 0..400 {
                subject.write("volume 0", (n * 7 + round) % 1900, (n * 3 + round * 50) % 500);
            }
            subject.zero("volume 0", 100 + round * 10, 40, true);
            subject.zero("volume 0", 300, 100 + round, false);
            subject.engine.flush().unwrap();
            subject.engine.checkpoint().unwrap();
        }
        for n in 0..30 {
            subject.write("volume 7", n * 60, n % 10);
        }
        subject.engine.flush().unwrap();
        subject
    }

    /// With a long range of which a part is still to be applied; not shut down.
    pub fn with_pending_discards(mut self) -> Subject {
        let far = 288 * 1500;
        self.create("sparse", far);
        for leaf in 0..1500 {
            self.write("sparse", leaf * 288 + leaf % 288, leaf % 20);
        }
        self.engine.flush().unwrap();
        self.engine.checkpoint().unwrap();
        // More leaves than one checkpoint works through in a store of this size.
        self.zero("sparse", 10, far - 20, false);
        self.engine.flush().unwrap();
        self.engine.checkpoint().unwrap();
        self
    }

    /// A filled store with two snapshots and a clone, changed since.
    pub fn with_snapshots() -> Subject {
        let mut subject = Subject::filled();
        for round in 0..2 {
            let volume = subject.engine.find_volume("volume 0").unwrap();
            let acts = Acts::of(&subject.engine);
            let (_, asked) = acts.snapshot(&[(volume, format!("s{round}"))], 1).unwrap();
            while acts.done() < asked.number {
                subject.engine.flush().unwrap();
                subject.engine.checkpoint().unwrap();
            }
            for n in 0..100 {
                subject.write("volume 0", n * 13 % 1900, 700 + n + round);
            }
            subject.engine.flush().unwrap();
            subject.engine.checkpoint().unwrap();
        }
        subject
    }

    /// The same with a clone of the first snapshot, changed since; that snapshot is deleted. With
    /// `waits` the checkpoints that would hand over what it left behind have not come yet.
    pub fn with_clone(waits: bool) -> Subject {
        let mut subject = Subject::with_snapshots();
        let snapshot = subject.engine.find_volume("volume 0@s0").unwrap();
        let (_, asked) = Acts::of(&subject.engine).clone_volume(snapshot, "clone", 1).unwrap();
        while Acts::of(&subject.engine).done() < asked.number {
            subject.engine.flush().unwrap();
            subject.engine.checkpoint().unwrap();
        }
        let clone = subject.engine.find_volume("clone").unwrap();
        for lba in 0..2000 {
            let data = read(&subject.engine, clone, lba).unwrap();
            subject.model.insert(("clone".into(), lba), data);
        }
        for n in 0..30 {
            subject.write("clone", n * 17 % 300, 900 + n);
        }
        subject.engine.flush().unwrap();
        subject.engine.checkpoint().unwrap();
        persevere(&subject.engine, || subject.engine.delete_volume(snapshot));
        for _ in 0..if waits { 1 } else { 5 } {
            subject.engine.flush().unwrap();
            subject.engine.checkpoint().unwrap();
        }
        subject
    }

    /// Shuts down cleanly.
    pub fn closed(self) -> (Arc<MemoryDisk>, Model) {
        self.engine.close().unwrap();
        (self.disk, self.model)
    }

    /// Stops at once, as a kill does: what was written stays, nothing more comes.
    pub fn killed(self) -> (Arc<MemoryDisk>, Model) {
        (self.disk, self.model)
    }
}

/// Reads one block of a volume.
pub fn read(engine: &Engine, volume: VolumeId, lba: u64) -> Result<[u8; 4096]> {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [BlockRead { first: Lba(lba), into: &mut blocks, result: Ok(()) }];
    engine.read(volume, &mut reads);
    let [read] = reads;
    read.result?;
    Ok(blocks[0].0)
}

/// The first addresses of the maps of a store with snapshots: `None` where a read fails.
pub fn contents(disk: &Arc<MemoryDisk>, maps: &[&str]) -> Vec<Vec<Option<[u8; 4096]>>> {
    let engine = open(&copy(disk)).unwrap();
    let of = |name: &&str| {
        let id = engine.find_volume(name).unwrap();
        (0..2000).map(|lba| read(&engine, id, lba).ok()).collect()
    };
    maps.iter().map(of).collect()
}

/// Asserts that the store holds exactly the model.
pub fn assert_holds(disk: &Arc<MemoryDisk>, model: &Model) {
    let copy = copy(disk);
    let engine = open(&copy).unwrap();
    for (id, volume) in engine.volumes() {
        // Volumes that nothing was written to are only sampled.
        let step = if model.keys().any(|(name, _)| *name == volume.name) { 1 } else { 131 };
        for lba in (0..volume.blocks.min(2200)).step_by(step) {
            let expected = model.get(&(volume.name.clone(), lba)).copied().unwrap_or([0; 4096]);
            assert!(read(&engine, id, lba).unwrap() == expected, "{}, block {lba}", volume.name);
        }
    }
}

pub fn copy(disk: &MemoryDisk) -> Arc<MemoryDisk> {
    let new = MemoryDisk::new(disk.blocks());
    for at in 0..disk.blocks() {
        let block = get(disk, Pba(at));
        if !block.is_zero() {
            put(&new, Pba(at), &block);
        }
    }
    Arc::new(new)
}

pub fn get(disk: &MemoryDisk, at: Pba) -> Block {
    let mut blocks = Block::zeroed_vec(1);
    let mut read = [Read::new(at, &mut blocks)];
    disk.read(&mut read);
    let [read] = read;
    read.result.unwrap();
    blocks.swap_remove(0)
}

pub fn put(disk: &MemoryDisk, at: Pba, block: &Block) {
    disk.write(&[Run { at, blocks: &[BlockRef { block, class: Class::Data }] }]).unwrap();
}

pub fn flip(disk: &MemoryDisk, at: Pba, bit: usize) {
    let mut block = get(disk, at);
    block.0[bit / 8] ^= 1 << (bit % 8);
    put(disk, at, &block);
}

/// Bits spread over a block, all of its header's words among them.
pub fn bits() -> impl Iterator<Item = usize> {
    (0..16).map(|n| n * 32 + n).chain((0..12).map(|n| 512 + n * 2711 + n)).chain([4096 * 8 - 1])
}

pub fn superblock(disk: &MemoryDisk) -> Superblock {
    let decode =
        |place: u32| match Superblock::decode(&get(disk, SUPERBLOCKS[place as usize]), place) {
            Found::Good(superblock) => Some(*superblock),
            _ => None,
        };
    [decode(0), decode(1)]
        .into_iter()
        .flatten()
        .max_by_key(|superblock| superblock.state.sequence)
        .unwrap()
}

pub fn identity(superblock: &Superblock) -> Identity {
    Identity::new(superblock.fixed.id, superblock.fixed.secret, superblock.fixed.algorithm)
}

/// All pages of a tree.
pub fn pages(disk: &MemoryDisk, table: Table, volume: u32, root: &Root) -> Vec<(PageId, Pointer)> {
    let mut all = Vec::new();
    if root.height > 0 {
        below(
            disk,
            PageId { table, volume, level: root.height - 1, index: 0 },
            root.page,
            &mut all,
        );
    }
    all
}

fn below(disk: &MemoryDisk, id: PageId, pointer: Pointer, all: &mut Vec<(PageId, Pointer)>) {
    all.push((id, pointer));
    let page = get(disk, pointer.address);
    for slot in (0..page::FANOUT).filter(|_| id.level > 0) {
        let child = page::pointer(&page, slot);
        if !child.is_none() {
            below(
                disk,
                PageId { level: id.level - 1, index: id.index * page::FANOUT + slot, ..id },
                child,
                all,
            );
        }
    }
}

/// Changes a page and makes every checksum above it right again.
pub fn forge(
    disk: &MemoryDisk,
    root: &Root,
    id: PageId,
    change: &mut dyn FnMut(&mut Block),
) -> Root {
    let top = PageId { level: root.height - 1, index: 0, ..id };
    Root { page: forge_below(disk, top, root.page, id, change), ..*root }
}

fn forge_below(
    disk: &MemoryDisk,
    at: PageId,
    pointer: Pointer,
    id: PageId,
    change: &mut dyn FnMut(&mut Block),
) -> Pointer {
    let mut page = get(disk, pointer.address);
    if at == id {
        change(&mut page);
    } else {
        let index = id.index / page::FANOUT.pow(u32::from(at.level - 1 - id.level));
        let child = PageId { level: at.level - 1, index, ..at };
        let slot = index % page::FANOUT;
        let new = forge_below(disk, child, page::pointer(&page, slot), id, change);
        page::set_pointer(&mut page, slot, &new);
    }
    let own = identity(&superblock(disk));
    let new = page::seal(&own, at, pointer.address, pointer.birth, &mut page).unwrap();
    put(disk, pointer.address, &page);
    new
}

/// Changes the newest superblock, checksum included; after a clean shutdown its twin as well.
pub fn forge_superblock(disk: &MemoryDisk, change: impl FnOnce(&mut Superblock)) {
    let mut newest = superblock(disk);
    change(&mut newest);
    for _ in 0..=u8::from(newest.state.clean) {
        let place = (newest.state.sequence % 2) as usize;
        put(disk, SUPERBLOCKS[place], &newest.encode(place as u32));
        newest.state.sequence = newest.state.sequence.wrapping_sub(1);
    }
}

/// A table's root, of the map of the volume number `volume`.
pub fn root(disk: &MemoryDisk, table: Table, volume: u32) -> Root {
    let superblock = superblock(disk);
    match table {
        Table::References => superblock.state.references,
        Table::Fingerprints => superblock.state.fingerprints,
        Table::Zones => superblock.state.zones,
        Table::Catalogue => superblock.state.catalogue,
        Table::Discards => superblock.state.pending,
        Table::Index => superblock.state.index,
        Table::Shares => superblock.state.shares,
        Table::Maps => superblock.state.catalogue,
        Table::Map => {
            let slot = u64::from(volume) - 1;
            let leaf = pages(disk, Table::Catalogue, 0, &superblock.state.catalogue)
                .into_iter()
                .find(|(id, _)| id.level == 0 && id.index == slot / 8)
                .unwrap();
            onefold_block::format::catalogue::Volume::get(&get(disk, leaf.1.address), slot % 8)
                .unwrap()
                .map
        }
    }
}

/// A disk that takes only so many writes, like a machine that loses power during a repair.
pub struct Dying {
    disk: Arc<MemoryDisk>,
    left: AtomicU64,
}

impl Dying {
    pub fn new(disk: &Arc<MemoryDisk>, writes: u64) -> Dying {
        Dying { disk: disk.clone(), left: AtomicU64::new(writes) }
    }
}

impl Disk for Dying {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }
    fn read(&self, reads: &mut [Read<'_>]) {
        self.disk.read(reads);
    }
    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        if self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_err()
        {
            return Err(Error::new(Kind::Io, "no power"));
        }
        self.disk.write(runs)
    }
    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.write(std::slice::from_ref(run))
    }
    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }
    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.disk.allocate(at, blocks)
    }
}
