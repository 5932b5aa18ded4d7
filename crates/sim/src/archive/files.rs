//! Virtual files: volatile contents and names over durable ones, and what a power failure or a kill leaves.
//!
//! A write changes what reads see and joins the file's unsynced changes; a sync makes the file durable. A name that is made or removed joins the
//! unsynced names. When the power fails, any part of what is unsynced persists: each 512-byte sector of a write, each change of a length, each name.
//! A sync that fails drops the data that it should have written, as page caches do: reads may see it for a while, later syncs succeed without it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::Mutex;

use crate::{reach::Reach, rng::Rng};

const SECTOR: usize = 512;
const PAGE: u64 = 4096;

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
    Punch(u64, u64),
}

#[derive(Clone, Default)]
struct Node {
    durable: Vec<u8>,
    view: Vec<u8>,
    unsynced: Vec<Change>,
    /// Pages that take space, behind the end too.
    pages: BTreeSet<u64>,
    /// The same as of the last sync.
    durable_pages: BTreeSet<u64>,
    /// Reads see data that a failed sync dropped, until they leave the memory.
    stale: bool,
}

impl Node {
    /// A sync failed: what was written is clean in memory, and nowhere else. Reads see it as long as it is not evicted.
    fn drop_unsynced(&mut self, evicted: bool, sized: bool) {
        self.unsynced.retain(|change| !matches!(change, Change::Write(..)));
        if sized {
            // The file's length was in the journal already.
            self.unsynced.push(Change::Length(self.view.len() as u64));
        }
        self.stale = true;
        if evicted {
            self.evict();
        }
    }

    /// Reads see the medium, and what is to be written to it.
    fn evict(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.view.clone_from(&self.durable);
            self.unsynced.iter().for_each(|change| do_change(&mut self.view, change));
        }
    }
}

/// All files, and what is to go wrong.
struct State {
    nodes: BTreeMap<u64, Node>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    unsynced_names: Vec<(String, Option<u64>)>,
    next: u64,
    locks: BTreeMap<String, Vec<(u64, Hold)>>,
    rng: Rng,
    /// The power fails, or the process is killed, inside the call that changes something and comes after so many others.
    crash_in: Option<u64>,
    down: bool,
    /// A call of this kind fails after so many others.
    fail_in: Option<(bool, u64)>,
    failed: bool,
    /// A sync of a file fails after so many others.
    sync_fails_in: Option<u64>,
    /// Chance for what a failed sync leaves; the other draws stay what they are.
    aside: Rng,
    capacity: Option<u64>,
    trace: u64,
    reach: Reach,
}

/// Files in memory that crash on demand.
#[derive(Clone)]
pub struct VirtualFiles(Arc<Mutex<State>>);

fn power_failed() -> Error {
    Error::new(Kind::Io, "the power failed")
}

impl VirtualFiles {
    /// No files.
    #[must_use]
    pub fn new(rng: Rng) -> VirtualFiles {
        let aside = Rng::new(rng.clone().next() ^ 0x7379_6e63_5f66_6169);
        VirtualFiles(Arc::new(Mutex::new(State {
            nodes: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            next: 1,
            locks: BTreeMap::new(),
            rng,
            crash_in: None,
            down: false,
            fail_in: None,
            failed: false,
            sync_fails_in: None,
            aside,
            capacity: None,
            trace: 0,
            reach: Reach::default(),
        })))
    }

    /// Lets the call that changes something and comes after `calls` others be the last one.
    pub fn arm_crash(&self, calls: u64) {
        self.0.lock().crash_in = Some(calls);
    }

    /// Takes the crash back.
    pub fn disarm(&self) {
        let mut state = self.0.lock();
        (state.crash_in, state.fail_in, state.sync_fails_in) = (None, None, None);
    }

    /// Lets a sync of a file's data fail after so many others.
    pub fn arm_failed_sync(&self, syncs: u64) {
        self.0.lock().sync_fails_in = Some(syncs);
    }

    /// Lets a sync, or a write, fail after so many others.
    pub fn arm_failure(&self, sync: bool, calls: u64) {
        self.0.lock().fail_in = Some((sync, calls));
    }

    /// True when a call failed by a fault since the last look.
    pub fn take_failed(&self) -> bool {
        std::mem::take(&mut self.0.lock().failed)
    }

    /// True when nothing works until [`power_cycle`](Self::power_cycle) or [`kill`](Self::kill).
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.0.lock().down
    }

    /// Bytes that may be taken.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().capacity = bytes;
    }

    /// Bytes that are taken.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// The power fails and comes back.
    pub fn power_cycle(&self) {
        self.0.lock().power_cycle();
    }

    /// All processes are killed, the power stays on: what is unsynced stays in memory.
    pub fn kill(&self) {
        let mut state = self.0.lock();
        state.reach.hit("processes killed, power stays");
        let evicted = state.aside.percent(50);
        state.nodes.values_mut().filter(|_| evicted).for_each(Node::evict);
        (state.down, state.crash_in, state.fail_in) = (false, None, None);
        assert!(state.locks.values().all(Vec::is_empty), "a process is still there");
    }

    /// Makes names durable that begin so.
    ///
    /// # Errors
    /// As [`sync_names`](Files::sync_names).
    pub fn sync_names_of(&self, prefix: &str) -> Result<()> {
        let mut state = self.0.lock();
        if state.change(b"names", true)? {
            return Err(power_failed());
        }
        let (these, others) = std::mem::take(&mut state.unsynced_names).into_iter().partition(|(name, _)| name.starts_with(prefix));
        state.unsynced_names = others;
        for (name, id) in Vec::<(String, Option<u64>)>::from_iter(these) {
            match id {
                Some(id) => state.durable_names.insert(name, id),
                None => state.durable_names.remove(&name),
            };
        }
        Ok(())
    }

    /// A bit of a byte of a file whose name begins so rots; false when there is none.
    pub fn rot(&self, prefix: &str) -> bool {
        let mut state = self.0.lock();
        let ids: Vec<u64> = state.names.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, &id)| id).collect();
        let Some(&id) = state.rng.clone().pick(&ids) else { return false };
        let mut rng = state.rng.fork();
        let Some(node) = state.nodes.get_mut(&id).filter(|node| !node.view.is_empty()) else { return false };
        let (at, bit) = (rng.below(node.view.len() as u64) as usize, 1 << rng.below(8));
        node.view[at] ^= bit;
        if let Some(byte) = node.durable.get_mut(at) {
            *byte ^= bit;
        }
        state.reach.hit("fault: rot");
        true
    }

    /// The hash of all calls.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.0.lock().trace
    }

    /// What has happened.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.0.lock().reach.clone()
    }
}

impl State {
    fn fold(&mut self, bytes: &[u8]) {
        self.trace = bytes.iter().fold(self.trace, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5));
    }

    fn used(&self) -> u64 {
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        let pages = |id: &u64| self.nodes.get(id).map_or(0, |node| node.pages.len() as u64);
        named.iter().map(pages).sum::<u64>() * PAGE
    }

    /// Before a call that changes something: true when the power fails in it.
    fn change(&mut self, what: &[u8], sync: bool) -> Result<bool> {
        if self.down {
            return Err(power_failed());
        }
        self.fold(what);
        if let Some((wanted, calls)) = &mut self.fail_in
            && *wanted == sync
        {
            if *calls == 0 {
                (self.fail_in, self.failed) = (None, true);
                self.reach.hit(if sync { "fault: sync error" } else { "fault: write error" });
                return Err(Error::new(Kind::Io, "the disk failed"));
            }
            *calls -= 1;
        }
        match &mut self.crash_in {
            Some(0) => {
                self.down = true;
                self.reach.hit(if sync { "crash: in a sync" } else { "crash: in a change" });
                Ok(true)
            }
            Some(calls) => {
                *calls -= 1;
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Before a sync of a file: its data may be what the disk does not take.
    fn sync_may_fail(&mut self) -> Result<()> {
        match &mut self.sync_fails_in {
            Some(0) if !self.down => {
                (self.sync_fails_in, self.failed) = (None, true);
                self.reach.hit("fault: a sync dropped data");
                Err(Error::new(Kind::Io, "the disk failed"))
            }
            Some(syncs) => {
                *syncs = syncs.saturating_sub(1);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Applies a change to what reads see, when there is room.
    fn apply(&mut self, id: u64, change: Change) -> Result<()> {
        if let (Change::Write(at, data), Some(capacity)) = (&change, self.capacity) {
            let node = &self.nodes[&id];
            let new = (at / PAGE..(at + data.len() as u64).div_ceil(PAGE)).filter(|page| !node.pages.contains(page)).count() as u64;
            if new > 0 && self.used() + new * PAGE > capacity {
                self.reach.hit("fault: disk full");
                return Err(Error::new(Kind::NoSpace, "the disk is full"));
            }
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            do_change(&mut node.view, &change);
            match &change {
                Change::Write(at, data) => node.pages.extend(at / PAGE..(at + data.len() as u64).div_ceil(PAGE)),
                Change::Length(bytes) => node.pages.retain(|page| page * PAGE < *bytes),
                Change::Punch(at, bytes) => node.pages.retain(|page| page * PAGE < *at || (page + 1) * PAGE > at + bytes),
            }
            node.unsynced.push(change);
        }
        Ok(())
    }

    fn power_cycle(&mut self) {
        assert!(self.locks.values().all(Vec::is_empty), "a process is still there");
        let shape = self.rng.below(6);
        let salt = self.rng.next();
        let rng = &mut self.rng;
        let mut keep = |one: u64| match shape {
            0 => false,
            1 => true,
            // Each change wholly kept or lost.
            2 => Rng::new(salt ^ one).percent(50),
            3 => rng.percent(85),
            _ => rng.percent(50),
        };
        let mut n = 0;
        for node in self.nodes.values_mut() {
            let mut durable = std::mem::take(&mut node.durable);
            for change in node.unsynced.drain(..) {
                n += 1;
                match &change {
                    Change::Write(at, data) => {
                        let (mut at, mut rest) = (*at as usize, &data[..]);
                        while !rest.is_empty() {
                            let (part, later) = rest.split_at(rest.len().min(SECTOR - at % SECTOR));
                            if keep(n) {
                                do_change(&mut durable, &Change::Write(at as u64, part.to_vec()));
                            }
                            (at, rest) = (at + part.len(), later);
                        }
                    }
                    other if keep(n) => do_change(&mut durable, other),
                    _ => {}
                }
            }
            node.view = durable.clone();
            node.durable = durable;
            node.stale = false;
            node.pages = node.durable_pages.iter().copied().chain(0..(node.view.len() as u64).div_ceil(PAGE)).collect();
        }
        for (name, id) in std::mem::take(&mut self.unsynced_names) {
            n += 1;
            if keep(n) {
                match id {
                    Some(id) => self.durable_names.insert(name, id),
                    None => self.durable_names.remove(&name),
                };
            }
        }
        self.names = self.durable_names.clone();
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.nodes.retain(|id, _| named.contains(id));
        (self.down, self.crash_in, self.fail_in) = (false, None, None);
        self.reach.hit("power failure");
    }
}

fn do_change(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(at, data) => {
            let end = *at as usize + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at as usize..end].copy_from_slice(data);
        }
        Change::Length(length) => bytes.resize(*length as usize, 0),
        Change::Punch(at, length) => {
            let end = ((at + length) as usize).min(bytes.len());
            if (*at as usize) < end {
                bytes[*at as usize..end].fill(0);
            }
        }
    }
}

impl Files for VirtualFiles {
    fn names(&self) -> Result<Vec<String>> {
        let state = self.0.lock();
        if state.down { Err(power_failed()) } else { Ok(state.names.keys().cloned().collect()) }
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let mut state = self.0.lock();
        if state.names.contains_key(name) {
            return Err(Error::new(Kind::Exists, format!("{name} is there")));
        }
        let crash = state.change(name.as_bytes(), false)?;
        let id = state.next;
        state.next += 1;
        state.nodes.insert(id, Node::default());
        state.names.insert(name.to_owned(), id);
        state.unsynced_names.push((name.to_owned(), Some(id)));
        if crash { Err(power_failed()) } else { Ok(Arc::new(VirtualFile { files: self.clone(), id })) }
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        let state = self.0.lock();
        if state.down {
            return Err(power_failed());
        }
        let id = *state.names.get(name).ok_or_else(|| Error::new(Kind::NotFound, format!("{name} is not there")))?;
        Ok(Arc::new(VirtualFile { files: self.clone(), id }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut state = self.0.lock();
        if !state.names.contains_key(name) {
            return Err(Error::new(Kind::NotFound, format!("{name} is not there")));
        }
        let crash = state.change(name.as_bytes(), false)?;
        state.names.remove(name);
        state.unsynced_names.push((name.to_owned(), None));
        if crash { Err(power_failed()) } else { Ok(()) }
    }

    fn sync_names(&self) -> Result<()> {
        let mut state = self.0.lock();
        if state.change(b"names", true)? {
            return Err(power_failed());
        }
        state.durable_names = state.names.clone();
        state.unsynced_names.clear();
        Ok(())
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        let mut state = self.0.lock();
        if state.down {
            return Err(power_failed());
        }
        let holders = state.locks.entry(name.to_owned()).or_default();
        let free = holders.iter().all(|(_, held)| hold == Hold::Shared && *held == Hold::Shared);
        if !free {
            assert!(!wait, "one thread would wait for itself: {name}");
            return Err(Error::new(Kind::Busy, format!("{name} is locked")));
        }
        let id = state.next;
        state.next += 1;
        state.locks.entry(name.to_owned()).or_default().push((id, hold));
        Ok(Box::new(VirtualLock { files: self.clone(), name: name.to_owned(), id }))
    }
}

struct VirtualLock {
    files: VirtualFiles,
    name: String,
    id: u64,
}

impl Lock for VirtualLock {}

impl Drop for VirtualLock {
    fn drop(&mut self) {
        if let Some(holders) = self.files.0.lock().locks.get_mut(&self.name) {
            holders.retain(|(id, _)| *id != self.id);
        }
    }
}

struct VirtualFile {
    files: VirtualFiles,
    id: u64,
}

impl VirtualFile {
    fn change(&self, what: u64, change: Change) -> Result<()> {
        let mut state = self.files.0.lock();
        let mut told = what.to_le_bytes().to_vec();
        if let Change::Write(_, data) = &change {
            told.extend_from_slice(data);
        }
        let crash = state.change(&told, false)?;
        state.apply(self.id, change)?;
        if crash { Err(power_failed()) } else { Ok(()) }
    }
}

impl File for VirtualFile {
    fn bytes(&self) -> Result<u64> {
        let state = self.files.0.lock();
        if state.down { Err(power_failed()) } else { Ok(state.nodes.get(&self.id).map_or(0, |node| node.view.len() as u64)) }
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let state = self.files.0.lock();
        if state.down {
            return Err(power_failed());
        }
        let view = state.nodes.get(&self.id).map_or(&[][..], |node| &node.view);
        let from = view.get(at as usize..).unwrap_or_default();
        let n = from.len().min(into.len());
        into[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }

    fn read_from_medium(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        if let Some(node) = self.files.0.lock().nodes.get_mut(&self.id) {
            node.evict();
        }
        self.read_at(at, into)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.change(at, Change::Write(at, data.to_vec()))
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.files.0.lock();
        match state.change(&self.id.to_le_bytes(), true).and_then(|crash| state.sync_may_fail().map(|()| crash)) {
            Ok(false) => {}
            Ok(true) => return Err(power_failed()),
            Err(error) if state.down => return Err(error),
            Err(error) => {
                let (evicted, sized) = (state.aside.percent(50), state.aside.percent(50));
                if let Some(node) = state.nodes.get_mut(&self.id) {
                    node.drop_unsynced(evicted, sized);
                }
                return Err(error);
            }
        }
        if let Some(node) = state.nodes.get_mut(&self.id) {
            for change in node.unsynced.drain(..) {
                do_change(&mut node.durable, &change);
            }
            node.durable_pages.clone_from(&node.pages);
        }
        Ok(())
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.change(bytes, Change::Length(bytes))
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        let mut state = self.files.0.lock();
        if state.down {
            return Err(power_failed());
        }
        let (used, capacity) = (state.used(), state.capacity);
        let Some(node) = state.nodes.get_mut(&self.id) else { return Ok(()) };
        let new: Vec<u64> = (at / PAGE..(at + bytes).div_ceil(PAGE)).filter(|page| !node.pages.contains(page)).collect();
        if capacity.is_some_and(|capacity| !new.is_empty() && used + new.len() as u64 * PAGE > capacity) {
            return Err(Error::new(Kind::NoSpace, "the disk is full"));
        }
        node.pages.extend(new);
        Ok(())
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.change(at, Change::Punch(at, bytes))
    }
}

#[cfg(test)]
mod tests {
    use onefold_archive::{Archive, Format, PlantedBug, Settings};

    use super::*;

    /// A volume is created; its process is killed inside the call `crash`, a reader looks, and the power fails: was it shown, and is it there?
    fn shown_and_there(seed: u64, crash: u64, bug: Option<PlantedBug>) -> (bool, bool) {
        let files = VirtualFiles::new(Rng::new(seed));
        let open = |writes| {
            let settings = Settings { bug, ..Settings::default() };
            Archive::open(Arc::new(files.clone()), writes, settings).unwrap()
        };
        let has = |archive: &Archive| archive.tables().volume("v").is_ok();
        Archive::create(&files, &Format { reserve_bytes: 0, ..Format::new([7; 16], [8; 32], [9; 16]) }).unwrap();
        let archive = open(true);
        files.arm_crash(crash);
        let _ = archive.create_volume("v", 4, 1_000);
        drop(archive);
        files.kill();
        let shown = has(&open(false));
        files.power_cycle();
        (shown, has(&open(true)))
    }

    fn vanished(bug: Option<PlantedBug>) -> (u32, u32) {
        let (mut shown, mut vanished) = (0, 0);
        for (seed, crash) in (0..20).flat_map(|seed| (0..8).map(move |crash| (seed, crash))) {
            let (was_shown, is_there) = shown_and_there(seed, crash, bug);
            shown += u32::from(was_shown);
            vanished += u32::from(was_shown && !is_there);
        }
        (shown, vanished)
    }

    #[test]
    fn rule_01_what_a_reader_showed_does_not_vanish_with_the_power() {
        let (shown, gone) = vanished(None);
        assert!(shown > 20 && gone == 0, "{gone} of {shown}");
        assert!(vanished(Some(PlantedBug::TailReadEarly)).1 > 0);
    }
}
