//! The keys of a sealed store change, and whoever holds its disk attacks them.
//!
//! The model knows which secrets open the store. A change that was cut off may be there or not. At rest,
//! old and forged key areas are put in place of the true ones, on copies of the disk: a secret that was
//! removed must not open by them, and no forged copy may replace a good one. No block may show what was
//! stored or that it equals another one, and no counter of a key may meet two contents, though all
//! processes draw the same random numbers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Block, BlockRef, Class, Disk, Pba, Result, Run, checksum};
use onefold_seal::{AREA_BYTES, DurableState, KeyArea, observer};
use onefold_testbed::{Rng, VirtualDisk, content::ZEROES, disk::Image};

use crate::{
    block::{
        keys::{OWNER, add, secret},
        run::Sim,
        subject::Subject,
    },
    checker::{Checker, Failure},
};

/// The first blocks of the two copies of the key area.
const AREAS: [u64; 2] = [1, 9];

/// Blocks of a copy.
const AREA_BLOCKS: u64 = (AREA_BYTES / 4096) as u64;

/// States that a crash may leave ahead of the newest one that was seen: a twin, and a checkpoint with its
/// twin.
const STATES_AHEAD: u64 = 3;

/// States that a change of keys makes durable: one in each superblock.
pub(super) const STATES_OF_CHANGE: u64 = 2;

/// States of opening and closing the store before: a checkpoint with its twin of recovery, and of the end.
pub(super) const STATES_OF_OPENING: u64 = 4;

/// Which secrets open the store.
pub(crate) struct Secrets {
    rng: Rng,
    opens: BTreeSet<u8>,
    /// Those that were removed, with a key area from before.
    removed: BTreeMap<u8, [Vec<u8>; 2]>,
    next: u8,
    /// Blocks of the disk that clients wrote as their data.
    copied: BTreeSet<u64>,
    /// Where states are drawn from, which no other draw comes from.
    states: Rng,
    /// The newest state of the store that was durable.
    seen: DurableState,
    /// States that changes of keys, which tell nobody here, may have made durable since.
    untold: u64,
    /// An image of the disk, and the newest state that it may hold but for those of a crash.
    older: Option<(Image, u64)>,
}

impl Secrets {
    pub(crate) fn new(seed: u64) -> Secrets {
        Secrets {
            rng: Rng::new(seed ^ 0x7365_6372_6574_7300),
            opens: BTreeSet::from([OWNER]),
            removed: BTreeMap::new(),
            next: OWNER + 1,
            copied: BTreeSet::new(),
            states: Rng::new(seed ^ 0x7374_6174_6573_0000),
            seen: DurableState::default(),
            untold: 0,
            older: None,
        }
    }

    /// The store says that a state of it is durable.
    pub(crate) fn saw(&mut self, state: DurableState) {
        if state.sequence >= self.seen.sequence {
            self.seen = state;
        }
        self.untold = 0;
    }

    /// Keys are changed, which makes these many states durable at most.
    pub(super) fn untold(&mut self, states: u64) {
        self.untold += states;
    }

    /// A client writes these bytes, which it saw on the disk.
    pub(super) fn copied(&mut self, bytes: &[u8; 4096]) {
        self.copied.insert(checksum::fast(7, bytes));
    }
}

pub(super) fn breach(what: impl Into<String>) -> Failure {
    Failure::new(Checker::Secrecy, what.into())
}

/// Both copies of the key area.
pub(super) fn areas(view: &Image) -> [Vec<u8>; 2] {
    AREAS.map(|first| {
        let block = |at| view.get(at).map_or([0; 4096], |bytes| **bytes);
        (first..first + AREA_BLOCKS).flat_map(block).collect()
    })
}

pub(super) fn put(disk: &VirtualDisk, copy: usize, bytes: &[u8]) -> Result<()> {
    let mut blocks = Block::zeroed_vec(AREA_BLOCKS as usize);
    blocks
        .iter_mut()
        .zip(bytes.chunks_exact(4096))
        .for_each(|(block, bytes)| block.0.copy_from_slice(bytes));
    let blocks: Vec<BlockRef<'_>> =
        blocks.iter().map(|block| BlockRef { block, class: Class::Super }).collect();
    disk.write(&[Run { at: Pba(AREAS[copy]), blocks: &blocks }])?;
    disk.flush()
}

/// An old key area with a higher number, by somebody who has no key.
fn forged(old: &[u8], id: &[u8; 16]) -> Vec<u8> {
    let mut bytes = old.to_vec();
    bytes[32..40].copy_from_slice(&1_000_000u64.to_le_bytes());
    let mut seed = [0; 8];
    seed.copy_from_slice(&id[..8]);
    let sum = checksum::fast(u64::from_le_bytes(seed), &bytes[..AREA_BYTES - 8]);
    bytes[AREA_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

impl<S: Subject> Sim<S> {
    /// While nobody works on a sealed store: what its disk shows, who opens it, and who does not although
    /// they change its keys.
    pub(crate) fn at_rest(&mut self) -> std::result::Result<(), Failure> {
        if self.secrets.is_none() {
            return Ok(());
        }
        observer::seen().map_err(breach)?;
        if self.disk.damage() > 0 || !self.disk.unflushed().is_empty() {
            return Ok(());
        }
        self.look_at_blocks()?;
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        if secrets.rng.percent(25) {
            self.change_keys()?;
        }
        self.change_domains()?;
        self.change_data_keys()?;
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        if secrets.rng.percent(25) {
            self.attack_keys()?;
        }
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        if secrets.rng.percent(25) {
            self.erase_keys()?;
        }
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        if secrets.states.percent(40) {
            self.put_back()?;
        }
        Ok(())
    }

    /// Whoever saw the newest durable state opens the store, and no older image of it.
    fn put_back(&mut self) -> std::result::Result<(), Failure> {
        let copy = self.copy_of_disk();
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        let seen = secrets.seen;
        let older = secrets.older.take_if(|(_, then)| *then + STATES_AHEAD < seen.sequence);
        if secrets.older.is_none() {
            secrets.older = Some((copy.view(), seen.sequence + secrets.untold));
        }
        if !self.opens_for(&copy, (OWNER, Some(seen)))? {
            return Err(breach("who saw what was durable is told that the store is an older one"));
        }
        let Some((image, _)) = older else { return Ok(()) };
        let blocks = self.blocks_wanted();
        let older = Arc::new(VirtualDisk::from_image(image, blocks, Arc::default(), Rng::new(0)));
        if self.opens_for(&older, (OWNER, Some(seen)))? {
            return Err(breach("an older image of the store was taken"));
        }
        self.reach.hit("secrecy: an older image was refused");
        Ok(())
    }

    /// No block shows what was stored, or that it equals another one.
    fn look_at_blocks(&mut self) -> std::result::Result<(), Failure> {
        let view = self.disk.view();
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for at in view.written() {
            let Some(bytes) = view.get(at) else { continue };
            if AREAS.iter().any(|&first| (first..first + AREA_BLOCKS).contains(&at)) {
                continue;
            }
            let sum = checksum::fast(7, &bytes[..]);
            let seen_before = self.secrets.as_ref().is_some_and(|one| one.copied.contains(&sum));
            let found = self.model.contents.find(bytes).filter(|&content| content != ZEROES);
            if found.is_some() && !seen_before {
                return Err(breach(format!("block {at} shows what was stored")));
            }
            if bytes.iter().all(|&byte| byte == 0) {
                continue;
            }
            if let Some(other) = seen.insert(sum, at) {
                return Err(breach(format!("blocks {other} and {at} show that they are equal")));
            }
        }
        self.reach.hit("secrecy: no block showed what was stored");
        Ok(())
    }

    /// A copy of the disk, on which nothing fails.
    pub(super) fn copy_of_disk(&self) -> Arc<VirtualDisk> {
        self.copy_with(0)
    }

    /// The same; after a crash it keeps what this seed says.
    fn copy_with(&self, seed: u64) -> Arc<VirtualDisk> {
        let blocks = self.blocks_wanted();
        Arc::new(VirtualDisk::from_image(self.disk.view(), blocks, Arc::default(), Rng::new(seed)))
    }

    /// True when a secret opens the store on a disk.
    pub(super) fn opens(
        &self,
        disk: &Arc<VirtualDisk>,
        byte: u8,
    ) -> std::result::Result<bool, Failure> {
        self.opens_for(disk, (byte, None))
    }

    /// True when a secret opens the store on a disk, for somebody who may have seen a state of it.
    fn opens_for(
        &self,
        disk: &Arc<VirtualDisk>,
        who: (u8, Option<DurableState>),
    ) -> std::result::Result<bool, Failure> {
        let disk: Arc<dyn Disk> = Arc::clone(disk) as Arc<dyn Disk>;
        S::opens(disk, Arc::clone(&self.clock) as _, &self.params.options, who)
            .map_err(|error| breach(format!("the store can't be opened: {error:?}")))
    }

    /// A slot comes or goes, perhaps with a crash in the middle.
    fn change_keys(&mut self) -> std::result::Result<(), Failure> {
        let before = areas(&self.disk.view());
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        let guests: Vec<u8> = secrets.opens.iter().copied().filter(|&one| one != OWNER).collect();
        let gone = secrets
            .rng
            .pick(&guests)
            .copied()
            .filter(|_| guests.len() > 2 || secrets.rng.percent(50));
        let byte = gone.unwrap_or(secrets.next);
        let crash = secrets.rng.percent(40).then(|| secrets.rng.below(9));
        secrets.untold(STATES_OF_CHANGE);
        if gone.is_none() {
            secrets.next += 1;
        }
        if let Some(calls) = crash {
            self.disk.arm_crash(calls);
        }
        let changed = S::change_keys(&*self.disk, &self.params.options, &mut |keys, random| {
            if gone.is_none() {
                return add(keys, byte, random);
            }
            // Slots do not tell whose they are: the one that this secret opens.
            let area = KeyArea::decode(&before[0]).or_else(|_| KeyArea::decode(&before[1]))?;
            let found = area.root(&secret(byte), 0)?;
            found.map_or(Ok(()), |(number, _)| keys.remove_slot(number))
        });
        let cut_off = self.disk.is_down();
        self.disk.disarm_crash();
        if cut_off {
            self.disk.power_cycle();
            self.reach.hit("crash: in a change of keys");
        } else if let Err(error) = changed {
            return Err(Failure::new(Checker::Unexplained, format!("keys: {error:?}")));
        }
        let copy = self.copy_of_disk();
        if !self.opens(&copy, OWNER)? {
            return Err(breach("the owner can't open after a change of keys"));
        }
        let now = areas(&copy.view());
        if now[0] != now[1] || !cut_off && areas(&self.disk.view()) != now {
            return Err(breach("a change of keys left two different copies"));
        }
        let opens = self.opens(&copy, byte)?;
        if !cut_off && opens != gone.is_none() {
            return Err(breach(format!("secret {byte} was changed, and opens: {opens}")));
        }
        // The only copy with a change that was cut off may rot before the next opening writes the other.
        let is_ended = areas(&self.disk.view()) == now;
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        if opens {
            secrets.opens.insert(byte);
            self.reach.hit("secrecy: a slot was added");
        } else if secrets.opens.remove(&byte) && is_ended {
            secrets.removed.insert(byte, before);
            self.reach.hit("secrecy: a slot was removed");
        }
        Ok(())
    }

    /// On a copy of the disk the keys are destroyed, perhaps with a crash in the middle: whoever opens it
    /// next either has the keys as they were, or ends the erasure.
    fn erase_keys(&mut self) -> std::result::Result<(), Failure> {
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        let crash = secrets.rng.percent(80).then(|| secrets.rng.below(7));
        let seed = secrets.rng.next();
        let copy = self.copy_with(seed);
        if !self.opens(&copy, OWNER)? {
            return Err(breach("the owner can't open the store"));
        }
        let before = areas(&copy.view());
        if let Some(calls) = crash {
            copy.arm_crash(calls);
        }
        let erased = S::erase_keys(&*copy, &self.params.options);
        let cut_off = copy.is_down();
        copy.disarm_crash();
        match erased {
            _ if cut_off => {
                copy.power_cycle();
                self.reach.hit("crash: in an erasure of keys");
            }
            Err(error) => {
                return Err(Failure::new(Checker::Unexplained, format!("keys: {error:?}")));
            }
            Ok(()) => {}
        }
        let opens = self.opens(&copy, OWNER)?;
        let now = areas(&copy.view());
        if opens && !(cut_off && now == before) {
            return Err(breach("the store opens after its keys were destroyed"));
        }
        if !opens && now.iter().any(|bytes| KeyArea::decode(bytes).is_ok()) {
            return Err(breach("a copy of the keys is left after they were destroyed"));
        }
        self.reach.hit(match opens {
            true => "secrecy: an erasure that was cut off changed nothing",
            false => "secrecy: keys were destroyed",
        });
        Ok(())
    }

    /// Puts old and forged key areas in place of the true ones.
    fn attack_keys(&mut self) -> std::result::Result<(), Failure> {
        let id = self.params.options.id;
        let copy = self.copy_of_disk();
        if !self.opens(&copy, OWNER)? {
            return Err(breach("the owner can't open the store"));
        }
        let good = areas(&copy.view());
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        let removed: Vec<u8> = secrets.removed.keys().copied().collect();
        let Some(&byte) = secrets.rng.pick(&removed) else { return Ok(()) };
        let (how, place) = (secrets.rng.below(3), secrets.rng.below(2) as usize);
        let Some(old) = secrets.removed.get(&byte).cloned() else { return Ok(()) };
        let done = match how {
            0 => put(&copy, 0, &old[0]).and_then(|()| put(&copy, 1, &old[0])),
            1 => put(&copy, place, &old[0]),
            _ => put(&copy, place, &forged(&old[0], &id)),
        };
        done.map_err(|error| breach(format!("{error:?}")))?;
        if self.opens(&copy, byte)? {
            return Err(breach(format!("a removed secret opens by an old key area ({how})")));
        }
        match how {
            0 => self.reach.hit("secrecy: an old key area was refused"),
            1 => {
                if !self.opens(&copy, OWNER)? {
                    return Err(breach("an old copy of the key area locks the owner out"));
                }
                self.reach.hit("secrecy: an old copy of the key area was mended");
            }
            _ => {
                if self.opens(&copy, OWNER)? {
                    return Err(breach("a forged key area was taken"));
                }
                if areas(&copy.view())[1 - place] != good[1 - place] {
                    return Err(breach("a forged key area replaced the good one"));
                }
                self.reach.hit("secrecy: a forged key area was refused");
            }
        }
        Ok(())
    }
}
