//! The state behind a virtual disk: what each call does to the view, the durable image and the
//! unflushed writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use onefold_core::{BLOCK_BYTES, Class, Error, Kind, Pba, Read, Result, Run, checksum};

use super::{
    Bytes, Image, SECTOR_BYTES, SECTORS, Snapshot, Unflushed, crash,
    fault::{Call, Fault, Plan},
    image,
};
use crate::{Reach, Rng, VirtualClock};

/// A sector that holds what it must not.
#[derive(Clone)]
pub(super) struct Wound {
    sector: usize,
    bytes: [u8; SECTOR_BYTES],
}

/// The state of a virtual disk.
pub(super) struct State {
    pub(super) blocks: u64,
    pub(super) durable: Image,
    pub(super) view: Image,
    pub(super) unflushed: Vec<Unflushed>,
    /// Write calls since the disk was made.
    pub(super) calls: u64,
    /// The write call in which the power failed.
    pub(super) under_way: Option<u64>,
    /// Calls that change something until the power fails.
    pub(super) crash_in: Option<u64>,
    pub(super) down: bool,
    pub(super) plan: Plan,
    pub(super) bad: BTreeSet<u64>,
    /// While the host is full, blocks that were never written can't be.
    pub(super) host_full: bool,
    /// Ranges that were allocated, and their ends.
    pub(super) allocated: Vec<(u64, u64)>,
    /// The class of the last write to each block.
    pub(super) classes: BTreeMap<u64, Class>,
    /// A write or flush of this session has failed.
    pub(super) failed: bool,
    /// Writes and flushes that came after the first failure of the session.
    pub(super) calls_after_failure: u64,
    /// A fault that damages has happened since the disk was made.
    pub(super) damage: u64,
    /// Sectors with wrong bytes, by block: they rotted, or a lost or misdirected write left them.
    /// Damage lasts while a block holds them.
    pub(super) wounds: BTreeMap<u64, Vec<Wound>>,
    /// Blocks that were read, and those of them that were damaged or that a fault of that read
    /// met; since the last [`forget_reads`](State::forget_reads).
    pub(super) met: BTreeSet<u64>,
    /// A read since then met a fault that the next one does not meet.
    pub(super) met_transient: bool,
    /// The same as `met` since the session began.
    pub(super) met_in_session: BTreeSet<u64>,
    /// A read failed or was misdirected since the power was cycled.
    pub(super) read_faults: u64,
    /// Blocks read in this session.
    pub(super) blocks_read: u64,
    /// Breaches of the disk's contract by the engine.
    pub(super) abuse: Vec<String>,
    pub(super) recording: Option<Vec<Snapshot>>,
    pub(super) rng: Rng,
    pub(super) trace: u64,
    pub(super) reach: Reach,
}

impl State {
    pub(super) fn new(durable: Image, blocks: u64, rng: Rng) -> State {
        State {
            blocks,
            view: durable.clone(),
            durable,
            unflushed: Vec::new(),
            calls: 0,
            under_way: None,
            crash_in: None,
            down: false,
            plan: Plan::default(),
            bad: BTreeSet::new(),
            host_full: false,
            allocated: Vec::new(),
            classes: BTreeMap::new(),
            failed: false,
            calls_after_failure: 0,
            damage: 0,
            wounds: BTreeMap::new(),
            met: BTreeSet::new(),
            met_transient: false,
            met_in_session: BTreeSet::new(),
            read_faults: 0,
            blocks_read: 0,
            abuse: Vec::new(),
            recording: None,
            rng,
            trace: 0,
            reach: Reach::default(),
        }
    }

    pub(super) fn fold(&mut self, value: u64) {
        self.trace = (self.trace.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    pub(super) fn power_cycle(&mut self, masks: &[u8]) {
        let unflushed = std::mem::take(&mut self.unflushed);
        for (index, write) in unflushed.iter().enumerate() {
            let mask = masks.get(index).copied().unwrap_or(0);
            self.reach.hit(match mask {
                0 => "crash: block lost",
                u8::MAX => "crash: block kept",
                _ => "crash: block torn",
            });
            self.fold(u64::from(mask));
            self.durable.merge(write.at, &write.bytes, mask);
        }
        self.view = self.durable.clone();
        self.crash_in = None;
        self.reach.hit(if self.down { "crash: inside a call" } else { "crash: between calls" });
        self.next_session();
    }

    pub(super) fn kill(&mut self) {
        let under_way = self.under_way.take();
        for mut write in std::mem::take(&mut self.unflushed) {
            if Some(write.call) == under_way {
                // The write under way is not in the view yet.
                let mask = if self.rng.percent(70) {
                    u8::MAX * (self.rng.below(2) as u8)
                } else {
                    self.rng.next() as u8
                };
                if mask == 0 {
                    continue;
                }
                write.bytes = image::torn(self.view.get(write.at), &write.bytes, mask);
                self.view.set(write.at, Arc::clone(&write.bytes));
            }
            self.unflushed.push(write);
        }
        self.crash_in = None;
        self.reach.hit("process killed, power stays");
        self.next_session();
    }

    pub(super) fn next_session(&mut self) {
        if self.failed {
            // Whoever opens the disk anew sees what is there, not what a cache kept of a flush that
            // failed.
            self.view = self.durable.clone();
            for write in &self.unflushed {
                self.view.set(write.at, Arc::clone(&write.bytes));
            }
        }
        self.down = false;
        self.under_way = None;
        self.failed = false;
        self.calls_after_failure = 0;
        self.met.clear();
        self.met_in_session.clear();
        self.read_faults = 0;
        self.blocks_read = 0;
        self.plan.clear();
    }

    /// Begins every call: its trace, its crash, its fault.
    pub(super) fn begin(&mut self, call: Call, clock: &VirtualClock) -> Result<Option<Fault>> {
        if self.down {
            return Err(power_failed());
        }
        self.fold(call as u64);
        if call != Call::Read {
            if self.failed && call != Call::Allocate {
                self.calls_after_failure += 1;
            }
            match &mut self.crash_in {
                Some(0) => self.down = true,
                Some(left) => *left -= 1,
                None => {}
            }
        }
        let Some(fault) = self.plan.take(call) else { return Ok(None) };
        self.fold(fault as u64 + 100);
        self.reach.hit(fault.name());
        self.damage += u64::from(fault.damages());
        match fault {
            Fault::Slow => clock.advance(Duration::from_millis(self.rng.within(1, 30_000))),
            Fault::Rot => self.rot(),
            fault => return Ok(Some(fault)),
        }
        Ok(None)
    }

    /// Damages one block that was written before; each class of blocks is hit as often as the
    /// others.
    pub(super) fn rot(&mut self) {
        // Most of the pages that were written are of no use any more.
        let classes =
            [Class::Data, Class::Carrier, Class::Table, Class::Table, Class::Table, Class::Super];
        let class = classes[self.rng.below(6) as usize];
        let of_class = |state: &State, at: &u64| state.classes.get(at) == Some(&class);
        let mut written: Vec<u64> =
            self.durable.written().filter(|at| of_class(self, at)).collect();
        if written.is_empty() {
            written = self.durable.written().collect();
        }
        let Some(&at) = self.rng.pick(&written) else { return };
        self.reach.hit(match self.classes.get(&at) {
            Some(Class::Carrier) => "rot: carrier",
            Some(Class::Table) => "rot: table",
            Some(Class::Super) => "rot: superblock",
            _ => "rot: data",
        });
        self.rot_at(at);
    }

    /// Flips a bit of a block, or turns a sector of it into noise.
    pub(super) fn rot_at(&mut self, at: u64) {
        let Some(old) = self.durable.get(at) else { return };
        let mut bytes = **old;
        if self.rng.percent(60) {
            bytes[self.rng.below(BLOCK_BYTES as u64) as usize] ^= 1 << self.rng.below(8);
        } else {
            let sector = self.rng.below(SECTORS as u64) as usize;
            self.rng.fill(&mut bytes[sector * SECTOR_BYTES..][..SECTOR_BYTES]);
        }
        let old = Arc::clone(old);
        let bytes = Arc::new(bytes);
        self.wound(at, &bytes, &old);
        self.durable.set(at, Arc::clone(&bytes));
        if self.unflushed.iter().all(|write| write.at != at) {
            self.view.set(at, bytes);
        }
    }

    /// The block at `at` holds `wrong` where it must hold `right`.
    fn wound(&mut self, at: u64, wrong: &[u8; BLOCK_BYTES], right: &[u8; BLOCK_BYTES]) {
        let sectors =
            wrong.chunks_exact(SECTOR_BYTES).zip(right.chunks_exact(SECTOR_BYTES)).enumerate();
        for (sector, (wrong, _)) in sectors.filter(|(_, (wrong, right))| wrong != right) {
            let mut bytes = [0; SECTOR_BYTES];
            bytes.copy_from_slice(wrong);
            self.wounds.entry(at).or_default().push(Wound { sector, bytes });
        }
    }

    /// The block at `at` as reads see it.
    fn seen(&self, at: u64) -> [u8; BLOCK_BYTES] {
        self.view.get(at).map_or([0; BLOCK_BYTES], |bytes| **bytes)
    }

    /// True when the block can't be read, or holds anything of what it must not.
    pub(super) fn is_damaged(&self, at: u64) -> bool {
        let holds = |wounds: &Vec<Wound>| {
            let seen = self.seen(at);
            wounds
                .iter()
                .any(|wound| seen[wound.sector * SECTOR_BYTES..][..SECTOR_BYTES] == wound.bytes)
        };
        self.bad.contains(&at) || self.wounds.get(&at).is_some_and(holds)
    }

    /// The blocks that are damaged now.
    pub(super) fn damaged(&self) -> BTreeSet<u64> {
        let candidates = self.wounds.keys().chain(&self.bad).copied();
        candidates.filter(|&at| self.is_damaged(at)).collect()
    }

    /// Takes over the damage of another disk of the same content.
    pub(super) fn inherit(&mut self, other: &State) {
        self.wounds = other.wounds.clone();
        self.bad = other.bad.clone();
        self.classes = other.classes.clone();
        self.damage = other.damage;
    }

    /// Damage that a read meets explains what comes of it.
    fn meet(&mut self, at: u64) {
        self.met.insert(at);
        self.met_in_session.insert(at);
    }

    /// Reports a range that the disk does not have.
    pub(super) fn bounds(&mut self, at: Pba, blocks: u64, what: &str) -> Result<()> {
        if at.0.checked_add(blocks).is_some_and(|end| end <= self.blocks) {
            return Ok(());
        }
        let message =
            format!("{what} of {blocks} blocks at {at} on a disk of {} blocks", self.blocks);
        self.abuse.push(message.clone());
        Err(Error::new(Kind::InvalidInput, message))
    }

    pub(super) fn read(&mut self, read: &mut Read<'_>, fault: Option<Fault>) -> Result<()> {
        let n = read.into.len() as u64;
        self.bounds(read.at, n, "read")?;
        self.fold(read.at.0);
        self.fold(n);
        self.blocks_read += n;
        let hit = self.rng.below(n);
        if fault == Some(Fault::ReadForGood) {
            self.bad.insert(read.at.0 + hit);
        }
        for at in read.at.0..read.at.0 + n {
            let once = matches!(fault, Some(Fault::ReadOnce | Fault::MisdirectedRead))
                && at == read.at.0 + hit;
            self.met_transient |= once;
            if once || self.is_damaged(at) {
                self.meet(at);
            }
        }
        let bad = self.bad.range(read.at.0..read.at.0 + n).next();
        if fault == Some(Fault::ReadOnce) || bad.is_some() {
            self.read_faults += 1;
            return Err(Error::new(
                Kind::Io,
                format!(
                    "read of block {} failed (simulated)",
                    bad.copied().unwrap_or(read.at.0 + hit)
                ),
            ));
        }
        for (index, block) in read.into.iter_mut().enumerate() {
            let mut at = read.at.0 + index as u64;
            if fault == Some(Fault::MisdirectedRead) && index as u64 == hit {
                self.read_faults += 1;
                at = self.other_than(at);
            }
            match self.view.get(at) {
                Some(bytes) => block.0 = **bytes,
                None => block.0.fill(0),
            }
        }
        Ok(())
    }

    /// Another address, most often near.
    pub(super) fn other_than(&mut self, at: u64) -> u64 {
        let other = if self.rng.percent(70) {
            (at + self.rng.within(1, 16)) % self.blocks
        } else {
            self.rng.below(self.blocks)
        };
        if other == at { (at + 1) % self.blocks } else { other }
    }

    pub(super) fn write(
        &mut self,
        runs: &[Run<'_>],
        durable: bool,
        fault: Option<Fault>,
    ) -> Result<()> {
        let mut blocks = Vec::new();
        for run in runs {
            self.bounds(run.at, run.blocks.len() as u64, "write")?;
            for (at, one) in (run.at.0..).zip(run.blocks) {
                self.fold(at);
                self.fold(checksum::fast(one.class as u64, &one.block.0));
                blocks.push((at, Arc::new(one.block.0)));
                self.classes.insert(at, one.class);
            }
        }
        self.once_each(&blocks);
        if self.host_full && blocks.iter().any(|(at, _)| self.needs_space(*at)) {
            self.reach.hit("host full: write refused");
            return Err(host_full());
        }
        let call = self.calls;
        self.calls += 1;
        let writes = |blocks: &[(u64, Bytes)]| -> Vec<Unflushed> {
            blocks
                .iter()
                .map(|(at, bytes)| Unflushed { call, at: *at, bytes: Arc::clone(bytes) })
                .collect()
        };
        if let Some(recording) = &mut self.recording {
            let unflushed = self.unflushed.iter().cloned().chain(writes(&blocks)).collect();
            recording.push(Snapshot { durable: self.durable.clone(), unflushed, call });
        }
        if self.down {
            self.reach.hit(if durable { "crash: in a durable write" } else { "crash: in a write" });
            self.unflushed.extend(writes(&blocks));
            self.under_way = Some(call);
            return Err(power_failed());
        }
        match fault {
            Some(Fault::WriteError | Fault::NoSpaceWrite) => {
                return Err(self.fail_write(&blocks, call, fault));
            }
            Some(Fault::LostWrite) => {
                let lost = self.rng.below(blocks.len() as u64) as usize;
                let lost = if self.rng.percent(50) {
                    std::mem::take(&mut blocks)
                } else {
                    vec![blocks.remove(lost)]
                };
                for (at, right) in lost {
                    let old = self.seen(at);
                    self.wound(at, &old, &right);
                }
            }
            Some(Fault::MisdirectedWrite) => {
                let moved = self.rng.below(blocks.len() as u64) as usize;
                let from = blocks[moved].0;
                let to = self.other_than(from);
                let wrong = Arc::clone(&blocks[moved].1);
                let (old, other) = (self.seen(from), self.seen(to));
                self.wound(from, &old, &wrong);
                self.wound(to, &wrong, &other);
                blocks[moved].0 = to;
            }
            _ => {}
        }
        for (at, bytes) in &blocks {
            self.bad.remove(at);
            self.view.set(*at, Arc::clone(bytes));
        }
        if durable {
            // Earlier writes of these blocks returned before this call began, so they can't reach
            // the medium after it.
            let own: BTreeSet<u64> = blocks.iter().map(|(at, _)| *at).collect();
            self.unflushed.retain(|write| !own.contains(&write.at));
            blocks.into_iter().for_each(|(at, bytes)| self.durable.set(at, bytes));
        } else {
            self.unflushed.extend(writes(&blocks));
        }
        Ok(())
    }

    /// True when the host has to find space before the block can be written.
    pub(super) fn needs_space(&self, at: u64) -> bool {
        self.view.get(at).is_none()
            && !self.allocated.iter().any(|(first, end)| (*first..*end).contains(&at))
    }

    /// Reports a batch that writes one block twice, as its order is not defined.
    pub(super) fn once_each(&mut self, blocks: &[(u64, Bytes)]) {
        let mut seen = BTreeSet::new();
        if let Some((at, _)) = blocks.iter().find(|(at, _)| !seen.insert(*at)) {
            self.abuse.push(format!("block {at} is written twice in one batch"));
        }
    }

    /// A write that fails leaves any of its blocks old, new or torn.
    pub(super) fn fail_write(
        &mut self,
        blocks: &[(u64, Bytes)],
        call: u64,
        fault: Option<Fault>,
    ) -> Error {
        for (at, bytes) in blocks {
            let mask = match self.rng.below(3) {
                0 => 0,
                1 => u8::MAX,
                _ => self.rng.next() as u8,
            };
            if mask != 0 {
                let bytes = image::torn(self.view.get(*at), bytes, mask);
                self.view.set(*at, Arc::clone(&bytes));
                self.unflushed.push(Unflushed { call, at: *at, bytes });
            }
        }
        self.failed = true;
        if fault == Some(Fault::NoSpaceWrite) {
            host_full()
        } else {
            Error::new(Kind::Io, "write failed (simulated)")
        }
    }

    pub(super) fn flush(&mut self, fault: Option<Fault>) -> Result<()> {
        if self.down {
            self.reach.hit("crash: in a flush");
            return Err(power_failed());
        }
        let unflushed = std::mem::take(&mut self.unflushed);
        if fault == Some(Fault::FlushError) {
            let masks = crash::masks(&unflushed, &mut self.rng);
            for (write, mask) in unflushed.iter().zip(masks) {
                self.durable.merge(write.at, &write.bytes, mask);
            }
            if self.rng.percent(50) {
                self.view = self.durable.clone(); // else reads go on to see what is lost, as a page cache shows it
            }
            self.failed = true;
            return Err(Error::new(Kind::Io, "flush failed (simulated)"));
        }
        unflushed.into_iter().for_each(|write| self.durable.set(write.at, write.bytes));
        Ok(())
    }
}

pub(super) fn power_failed() -> Error {
    Error::new(Kind::Io, "the power failed (simulated)")
}

pub(super) fn host_full() -> Error {
    Error::new(Kind::NoSpace, "no space left on the host (simulated)")
}
