//! A good store as an image, ways to damage it, and checksums made right again over the damage.
//!
//! Offsets are those of `docs/format.md`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, OnceLock},
};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Engine, Settings,
    format::{Identity, VERSION, VERSION_FEATURES, VERSION_KEYED, geometry::SUPERBLOCKS},
};
use onefold_core::{
    Algorithm, BLOCK_BYTES, Block, BlockRead, Disk, Kind, Lba, Pba, Read, Result, Ticket, VolumeId,
    checksum,
};

use crate::{
    decoders::{format, identity},
    memory::ImageDisk,
    mutator::Random,
};

/// Blocks of the store.
const BLOCKS: u64 = 96 * 16;

/// Its volumes, in blocks.
pub(crate) const VOLUMES: [(&str, u64); 2] = [("one", 500), ("two", 200)];

/// The content that a block of a volume had at some time.
type Content = [u8; BLOCK_BYTES];

/// A store as it was left, and what it must give.
pub(crate) struct Image {
    /// Its blocks.
    pub(crate) blocks: &'static [Block],
    /// Content of each block that is not all zero.
    pub(crate) now: BTreeMap<(usize, u64), Content>,
    /// Every content that a block ever had, besides zeroes.
    pub(crate) ever: BTreeMap<(usize, u64), Vec<Content>>,
    /// Blocks with metadata.
    metadata: Vec<u64>,
    /// Blocks with anything.
    written: Vec<u64>,
}

/// The store as a crash left it, and as a clean shutdown did; and both with snapshots.
pub(crate) fn images() -> &'static [Image; 4] {
    static IMAGES: OnceLock<[Image; 4]> = OnceLock::new();
    IMAGES.get_or_init(|| {
        [build(false, false), build(true, false), build(false, true), build(true, true)]
    })
}

/// Settings under which the store makes checkpoints soon.
pub(crate) fn settings() -> Settings {
    Settings {
        records_max: 600,
        window_blocks: 24,
        unflushed_blocks: 96,
        index_memory: 1 << 18,
        page_memory: 1 << 20,
        ..Settings::for_memory(32 << 20)
    }
}

/// Makes a change, running the engine's steps when it asks for them.
pub(crate) fn persevere(
    engine: &Engine,
    mut change: impl FnMut() -> Result<Ticket>,
) -> Result<Ticket> {
    for _ in 0..8 {
        match change() {
            Err(error) if error.kind() == Kind::Busy => {
                engine.flush()?;
                engine.checkpoint()?;
            }
            other => return other,
        }
    }
    change()
}

/// Content number `n`: some compress, some do not.
pub(crate) fn content(n: u64) -> Content {
    let mut random = Random::new(n);
    let mut bytes = [0; BLOCK_BYTES];
    let end = if n.is_multiple_of(3) { BLOCK_BYTES } else { 3000 };
    bytes[..end].iter_mut().for_each(|byte| *byte = random.next() as u8);
    bytes
}

/// One block of a volume.
pub(crate) fn read(engine: &Engine, volume: VolumeId, lba: u64) -> Result<Content> {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [BlockRead { first: Lba(lba), into: &mut blocks, result: Ok(()) }];
    engine.read(volume, &mut reads);
    let [read] = reads;
    read.result?;
    Ok(blocks[0].0)
}

fn build(clean: bool, copies: bool) -> Image {
    match try_build(clean, copies) {
        Ok(image) => image,
        Err(error) => panic!("the example store can't be made: {error}"),
    }
}

fn try_build(clean: bool, copies: bool) -> Result<Image> {
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    Engine::format(&*disk, &format(BLOCKS))?;
    let engine = Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings())?;
    let mut ids = Vec::new();
    for (name, blocks) in VOLUMES {
        ids.push(engine.create_volume(name, blocks)?.0);
    }
    let mut now: BTreeMap<(usize, u64), Content> = BTreeMap::new();
    let mut ever: BTreeMap<(usize, u64), Vec<Content>> = BTreeMap::new();
    let mut random = Random::new(77);
    for step in 0..900 {
        let volume = random.below(2);
        let blocks = VOLUMES[volume].1;
        let lba = random.next() % blocks;
        match random.below(24) {
            0 => {
                let count = (1 + random.next() % 30).min(blocks - lba);
                persevere(&engine, || engine.trim(ids[volume], lba * 4096, count * 4096))?;
                now.retain(|&(of, at), _| of != volume || !(lba..lba + count).contains(&at));
            }
            1 => engine.flush()?,
            _ => {
                let data = content(random.next() % 200);
                persevere(&engine, || engine.write(ids[volume], lba * 4096, &data))?;
                now.insert((volume, lba), data);
                ever.entry((volume, lba)).or_default().push(data);
            }
        }
        if copies && step % 350 == 100 {
            let wanted = [(ids[0], format!("s{step}"))];
            Acts::of(&engine).snapshot(&wanted, step)?;
        }
        if step % 350 == 349 {
            engine.flush()?;
            engine.checkpoint()?;
        }
    }
    engine.flush()?;
    if clean {
        engine.close()?;
    } else {
        // Otherwise the last window could be lost by the damage of one block: nothing yet says that
        // it was durable.
        while engine.idle_step(onefold_block::Idleness::Long)? {}
    }
    let mut blocks = Block::zeroed_vec(BLOCKS as usize);
    let mut reads = [Read::new(Pba(0), &mut blocks)];
    disk.read(&mut reads);
    let [read] = reads;
    read.result?;
    let numbered = || (0..BLOCKS).zip(&blocks);
    let metadata = numbered().filter(|(_, block)| is_metadata(block)).map(|(at, _)| at).collect();
    let written = numbered().filter(|(_, block)| !block.is_zero()).map(|(at, _)| at).collect();
    Ok(Image { metadata, written, now, ever, blocks: Box::leak(blocks.into_boxed_slice()) })
}

fn magic(block: &Block) -> [u8; 4] {
    std::array::from_fn(|n| block.0[n])
}

fn is_metadata(block: &Block) -> bool {
    [b"ONEF", b"OFz1", b"OFc1", b"OFp1"].contains(&&magic(block))
}

/// The blocks of the images that begin like this: examples for decoders.
pub(crate) fn blocks_of_kind(kind: &[u8; 4]) -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = images()
        .iter()
        .flat_map(|image| image.blocks)
        .filter(|block| magic(block) == *kind)
        .map(|block| block.0.to_vec())
        .collect();
    found.dedup();
    // Spread over all that there are.
    let step = found.len().div_ceil(40).max(1);
    found.into_iter().step_by(step).collect()
}

/// The damage that an input does to an image.
pub(crate) struct Damage {
    /// The image that it is done to.
    pub(crate) image: &'static Image,
    /// Blocks that are different from the image.
    pub(crate) changed: HashMap<u64, Block>,
    /// Blocks of the disk.
    pub(crate) blocks: u64,
}

/// Bytes of one step of damage: what, which block, where in it, a value, another block.
const STEP_BYTES: usize = 8;

/// Most steps.
const STEPS_MAX: usize = 24;

impl Damage {
    /// The damage that an input describes; with `repaired`, the checksums over it are right again.
    pub(crate) fn from_input(data: &[u8], repaired: bool) -> Damage {
        let (first, steps) = data.split_first().unwrap_or((&0, &[]));
        let image = &images()[usize::from(first & 3)];
        let mut damage = Damage { image, changed: HashMap::new(), blocks: BLOCKS };
        for step in steps.chunks_exact(STEP_BYTES).take(STEPS_MAX) {
            damage.step(step, repaired);
        }
        damage.changed.retain(|&at, block| image.blocks[at as usize].0 != block.0);
        damage
    }

    /// The damaged disk.
    pub(crate) fn disk(self) -> ImageDisk {
        ImageDisk::new(self.image.blocks, self.blocks, self.changed)
    }

    fn get(&self, at: u64) -> Block {
        self.changed.get(&at).unwrap_or(&self.image.blocks[at as usize]).clone()
    }

    fn step(&mut self, step: &[u8], repaired: bool) {
        let number = |n: usize| usize::from(u16::from_le_bytes([step[n], step[n + 1]]));
        let pick = |places: &[u64], n: usize| places[n % places.len()];
        // Half of the steps go to metadata, an eighth to the superblocks.
        let at = match step[0] >> 5 {
            0 => SUPERBLOCKS[number(1) % 2].0,
            1..=4 => pick(&self.image.metadata, number(1)),
            _ => pick(&self.image.written, number(1)),
        };
        let offset = number(3) % BLOCK_BYTES;
        let (value, other) = (step[5], number(6));
        let mut block = self.get(at);
        match step[0] & 0x0f {
            0..=3 => block.0[offset] ^= value | 1,
            4 | 5 => block.0[offset] = value,
            6..=8 => {
                let number = [0, 1, u64::MAX, 1 << 63, 1 << 40, 1 << 32, BLOCKS, u64::from(value)]
                    [other % 8];
                let end = (offset + [1, 2, 4, 8][other / 8 % 4]).min(BLOCK_BYTES);
                block.0[offset..end].copy_from_slice(&number.to_le_bytes()[..end - offset]);
            }
            9 => block.0.fill(0),
            10 | 11 => block = self.get(pick(&self.image.written, other)),
            12 => block.0[offset / 512 * 512..].fill(0),
            13 => {
                let donor = self.get(pick(&self.image.metadata, other));
                let sector = offset / 512 * 512;
                block.0[sector..sector + 512].copy_from_slice(&donor.0[sector..sector + 512]);
            }
            14 => block.0[offset..].rotate_left(usize::from(value) % (BLOCK_BYTES - offset)),
            _ => {
                if other % 4 == 0 {
                    self.blocks = (number(3) as u64).min(BLOCKS);
                }
            }
        }
        self.put(at, block, repaired);
    }

    /// Sets a block, and with `repaired` every checksum that depends on it.
    fn put(&mut self, at: u64, mut block: Block, repaired: bool) {
        if !repaired {
            self.changed.insert(at, block);
            return;
        }
        let before = self.get(at);
        repair(&identity(), &mut block);
        let mut wait = vec![(at, before, block)];
        let mut seen = BTreeSet::new();
        while let Some((at, before, block)) = wait.pop() {
            let is_page = magic(&before) == *b"OFp1";
            let (old, new) = (pointer_to(&before), pointer_to(&block));
            self.changed.insert(at, block);
            if !is_page || old == new || !seen.insert(at) {
                continue;
            }
            for &parent in &self.image.metadata {
                let before = self.get(parent);
                let mut after = before.clone();
                let mut changed = false;
                for n in 0..=BLOCK_BYTES - old.len() {
                    // Address first: it differs almost everywhere.
                    if after.0[n..n + 8] == old[..8] && after.0[n..n + old.len()] == old {
                        after.0[n..n + old.len()].copy_from_slice(&new);
                        changed = true;
                    }
                }
                if changed && parent != at {
                    repair(&identity(), &mut after);
                    wait.push((parent, before, after));
                }
            }
        }
    }
}

/// The pointer to a page as its parent keeps it: address, birth, checksum.
fn pointer_to(page: &Block) -> [u8; 24] {
    std::array::from_fn(|n| page.0[32 + n])
}

/// Makes the checksum of a metadata block right, and returns that of a table page. Other blocks are
/// left as they are.
pub(crate) fn repair(identity: &Identity, block: &mut Block) -> Option<u64> {
    match &magic(block) {
        b"ONEF" => repair_superblock(block),
        b"OFz1" => {
            block.0[8..16].copy_from_slice(&identity.id.to_le_bytes());
            block.0[56..64].fill(0);
            let sum = checksum::fast(identity.key, &block.0);
            block.0[56..64].copy_from_slice(&sum.to_le_bytes());
        }
        b"OFc1" => {
            block.0[8..16].copy_from_slice(&identity.id.to_le_bytes());
            block.0[64..80].fill(0);
            let sum = checksum::forgery_proof(&identity.secret, &block.0);
            block.0[64..80].copy_from_slice(&sum);
        }
        b"OFp1" => {
            block.0[16..24].copy_from_slice(&identity.id.to_le_bytes());
            block.0[48..56].fill(0);
            let sum = checksum::fast(identity.key, &block.0);
            block.0[48..56].copy_from_slice(&sum.to_le_bytes());
            return Some(sum);
        }
        _ => {}
    }
    None
}

/// Makes a block a superblock whose checksum is right.
pub(crate) fn repair_superblock(block: &mut Block) {
    block.0[..8].copy_from_slice(b"ONEFOLD\0");
    let version = if block.0[1192..1200] != [0; 8] {
        VERSION_FEATURES
    } else if block.0[88] == Algorithm::HmacSha256.code() {
        VERSION_KEYED
    } else {
        VERSION
    };
    block.0[8..12].copy_from_slice(&version.to_le_bytes());
    block.0[16..24].fill(0);
    let sum = checksum::fast(u64::from(version), &block.0);
    block.0[16..24].copy_from_slice(&sum.to_le_bytes());
}

/// Inputs to begin with: single steps of each kind, and a few of several.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let mut random = Random::new(5);
    let mut examples = vec![vec![0], vec![1]];
    for n in 0..64u8 {
        let steps = if n < 48 { 1 } else { 3 };
        let mut example = vec![n & 1];
        for _ in 0..steps {
            example.extend((0..STEP_BYTES).map(|_| random.next() as u8));
        }
        example[1] = n.rotate_left(3) ^ n;
        examples.push(example);
    }
    examples
}
