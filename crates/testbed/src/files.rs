//! Virtual files: volatile contents and names over durable ones, and what a power failure or a kill
//! leaves.
//!
//! A write changes what reads see and joins the file's unsynced changes; a sync makes the file
//! durable. A name that is made or removed joins the unsynced names. When the power fails, any part
//! of what is unsynced persists: each 512-byte sector of a write, each change of a length, each
//! name. A sync that was begun ends some time later, and covers what was written before it began: a
//! power failure before its end leaves any part of that. A sync that fails drops the data that it
//! should have written, as page caches do: reads may see it for a while, later syncs succeed without
//! it.

mod late;
mod mount;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, PendingSync, Result};
use parking_lot::Mutex;

use self::late::Late;
pub use self::mount::{Mount, MountCopy};
use crate::{Reach, Rng};

const SECTOR: usize = 512;
const PAGE: u64 = 4096;

/// The names of the files that a program keeps, as far as faults distinguish them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    /// The beginnings of the names of files that a misdirected write may land in.
    pub metadata: &'static [&'static str],
    /// The name of the file that holds one thing in two places. A write to one of them never lands
    /// in the other, and [`mend`](VirtualFiles::mend) leaves one that was lost as it is.
    pub twice: &'static str,
}

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
    Punch(u64, u64),
}

/// Bytes, and what damaged ones of them should be.
#[derive(Clone, Default)]
struct Bytes {
    data: Vec<u8>,
    hurt: BTreeMap<usize, u8>,
}

impl Bytes {
    /// Applies a change. Bytes that are overwritten are no longer damaged.
    fn change(&mut self, change: &Change) {
        do_change(&mut self.data, change);
        let gone = match change {
            Change::Write(at, data) => *at as usize..*at as usize + data.len(),
            Change::Length(bytes) => *bytes as usize..usize::MAX,
            Change::Punch(at, bytes) => *at as usize..(*at + *bytes) as usize,
        };
        if !self.hurt.is_empty() {
            self.hurt.retain(|at, _| !gone.contains(at));
        }
    }

    /// Something else stands here from now on.
    fn damage(&mut self, at: usize, data: &[u8]) {
        if self.data.len() < at + data.len() {
            self.data.resize(at + data.len(), 0);
        }
        for (at, &byte) in
            (at..).zip(data).filter(|(at, byte)| self.data[*at] != **byte).collect::<Vec<_>>()
        {
            let right = std::mem::replace(&mut self.data[at], byte);
            self.hurt.entry(at).or_insert(right);
        }
    }

    fn mend(&mut self) {
        for (at, right) in std::mem::take(&mut self.hurt) {
            self.data[at] = right;
        }
    }
}

#[derive(Clone, Default)]
struct Node {
    durable: Bytes,
    view: Bytes,
    /// Changes with their numbers, and by which open file they were made.
    unsynced: Vec<(u64, u64, Change)>,
    /// Changes so far.
    changes: u64,
    /// Syncs that failed.
    failures: u64,
    /// Syncs that were begun and are not over.
    begun: u64,
    /// Pages that take space, behind the end too.
    pages: BTreeSet<u64>,
    /// The same as of the last sync.
    durable_pages: BTreeSet<u64>,
    /// Reads see data that a failed sync dropped, until they leave the memory.
    stale: bool,
}

impl Node {
    /// A sync failed: what was written is clean in memory, and nowhere else. Reads see it as long
    /// as it is not evicted.
    fn drop_unsynced(&mut self, upto: u64, evicted: bool, sized: bool) {
        self.failures += 1;
        self.unsynced
            .retain(|(number, _, change)| *number > upto || !matches!(change, Change::Write(..)));
        if sized {
            // The file's length was in the journal already.
            let length = Change::Length(self.view.data.len() as u64);
            self.unsynced.push((self.changes, 0, length));
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
            self.unsynced.iter().for_each(|(_, _, change)| self.view.change(change));
        }
    }

    /// What was changed up to this number is durable.
    fn make_durable(&mut self, upto: u64) {
        let all = std::mem::take(&mut self.unsynced);
        for (number, by, change) in all {
            if number <= upto {
                self.durable.change(&change);
            } else {
                self.unsynced.push((number, by, change));
            }
        }
        self.durable_pages.clone_from(&self.pages);
    }
}

/// A write that the next sync of its file loses, and perhaps where it goes instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The write arrives nowhere.
    Lost,
    /// The write arrives somewhere else.
    Misdirected,
}

/// Bytes on the medium that are not what they should be.
#[derive(Default)]
struct Damage {
    /// Reads of them fail; else they give what is there.
    is_unreadable: bool,
    /// Files of which damaged bytes were read.
    met: BTreeSet<u64>,
    /// Of some file, at any time.
    ever_met: bool,
    /// A write goes wrong with the sync of a file that comes after so many others of files whose
    /// names begin so.
    armed: Option<(Wrong, String, u64)>,
}

/// A write that goes wrong.
struct WrongWrite {
    at: usize,
    before: Vec<u8>,
    data: Vec<u8>,
    how: Wrong,
}

/// All files, and what is to go wrong.
struct State {
    layout: Layout,
    damage: Damage,
    /// The file with two places, when it is one of its writes that goes wrong.
    stays_lost: Option<String>,
    /// Files whose changes are durable at once.
    write_through: BTreeSet<u64>,
    nodes: BTreeMap<u64, Node>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    unsynced_names: Vec<(String, Option<u64>)>,
    next: u64,
    /// Files that are open, and how many ever were.
    open: BTreeSet<u64>,
    opened: u64,
    locks: BTreeMap<String, Vec<(u64, Hold)>>,
    rng: Rng,
    /// The power fails, or the process is killed, inside the call that changes something and comes
    /// after so many others.
    crash_in: Option<u64>,
    down: bool,
    /// A call of this kind fails after so many others.
    fail_in: Option<(bool, u64)>,
    failed: bool,
    /// A sync of a file fails after so many others.
    sync_fails_in: Option<u64>,
    /// Chance for what a failed sync leaves; the other draws stay what they are.
    aside: Rng,
    late: Late,
    /// Decides when a sync that was begun is over: in so many of a hundred looks.
    pace: Rng,
    paced: u64,
    capacity: Option<u64>,
    /// Files whose names begin so are watched for reads that begin or end inside of a step, and the first
    /// such read.
    steps: Option<(String, u64)>,
    odd_read: Option<String>,
    trace: u64,
    reach: Reach,
}

/// Files in memory that crash on demand.
#[derive(Clone)]
pub struct VirtualFiles(Arc<Mutex<State>>);

/// The directory of a file, with its slash; empty for files of the only one.
fn directory(name: &str) -> &str {
    name.rfind('/').map_or("", |slash| &name[..=slash])
}

/// A file's name in its directory.
fn file_name(name: &str) -> &str {
    &name[directory(name).len()..]
}

fn power_failed() -> Error {
    Error::new(Kind::Io, "the power failed")
}

impl VirtualFiles {
    /// No files.
    #[must_use]
    pub fn new(layout: Layout, rng: Rng) -> VirtualFiles {
        let aside = Rng::new(rng.clone().next() ^ 0x7379_6e63_5f66_6169);
        let mut pace = Rng::new(rng.clone().next() ^ 0x7379_6e63_5f70_6163);
        VirtualFiles(Arc::new(Mutex::new(State {
            layout,
            damage: Damage::default(),
            stays_lost: None,
            write_through: BTreeSet::new(),
            nodes: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            next: 1,
            open: BTreeSet::new(),
            opened: 0,
            locks: BTreeMap::new(),
            rng,
            crash_in: None,
            down: false,
            fail_in: None,
            failed: false,
            sync_fails_in: None,
            aside,
            late: Late::default(),
            paced: [5, 30, 80][pace.below(3) as usize],
            pace,
            capacity: None,
            steps: None,
            odd_read: None,
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

    /// Watches files whose names begin so for reads that begin or end inside of a step of so many bytes.
    pub fn watch_steps(&self, prefix: &str, step: u64) {
        self.0.lock().steps = Some((prefix.to_owned(), step));
    }

    /// The first such read since the last call.
    #[must_use]
    pub fn take_odd_read(&self) -> Option<String> {
        self.0.lock().odd_read.take()
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
    fn sync_names_of(&self, prefix: &str) -> Result<()> {
        let mut state = self.0.lock();
        if state.change(b"names", true)? {
            return Err(power_failed());
        }
        let (these, others) = std::mem::take(&mut state.unsynced_names)
            .into_iter()
            .partition(|(name, _)| name.starts_with(prefix));
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
        let ids: Vec<u64> = state
            .names
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, &id)| id)
            .collect();
        let Some(&id) = state.rng.clone().pick(&ids) else { return false };
        let mut rng = state.rng.fork();
        let Some(node) = state.nodes.get_mut(&id).filter(|node| !node.view.data.is_empty()) else {
            return false;
        };
        let (at, bit) = (rng.below(node.view.data.len() as u64) as usize, 1 << rng.below(8));
        for bytes in [&mut node.view, &mut node.durable] {
            if let Some(byte) = bytes.data.get(at).copied() {
                bytes.damage(at, &[byte ^ bit]);
            }
        }
        state.reach.hit("fault: rot");
        true
    }

    /// A bit of some file whose name begins so flips, or with `unreadable` a sector of it can't be
    /// read; `pick` chooses. False when there is none.
    pub fn damage(&self, prefix: &str, unreadable: bool, pick: &mut Rng) -> bool {
        let mut state = self.0.lock();
        let state = &mut *state;
        let ids: Vec<u64> = state
            .names
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, &id)| id)
            .collect();
        let Some(node) = pick
            .pick(&ids)
            .and_then(|id| state.nodes.get_mut(id))
            .filter(|node| !node.durable.data.is_empty())
        else {
            return false;
        };
        node.stale |= true;
        node.evict();
        let at = pick.below(node.durable.data.len() as u64) as usize;
        let range = if unreadable {
            at / SECTOR * SECTOR..(at / SECTOR * SECTOR + SECTOR).min(node.durable.data.len())
        } else {
            at..at + 1
        };
        let flip = if unreadable { u8::MAX } else { 1 << pick.below(8) };
        for bytes in [&mut node.durable, &mut node.view] {
            let range = range.start.min(bytes.data.len())..range.end.min(bytes.data.len());
            let other: Vec<u8> = bytes.data[range.clone()].iter().map(|byte| byte ^ flip).collect();
            bytes.damage(range.start, &other);
        }
        // Changes that were not synced come after the damage, and are whole.
        node.unsynced.iter().for_each(|(_, _, change)| node.view.change(change));
        state.damage.is_unreadable = unreadable;
        state.reach.hit(if unreadable {
            "fault: a sector can't be read"
        } else {
            "fault: rot of metadata"
        });
        true
    }

    /// Lets a write to a file whose name begins so go wrong, with the sync that comes after so many
    /// others of such files.
    pub fn arm_wrong_write(&self, how: Wrong, prefix: &str, syncs: u64) {
        let mut state = self.0.lock();
        state.damage.armed = Some((how, prefix.to_owned(), syncs));
        state.stays_lost = (file_name(prefix) == state.layout.twice).then(|| prefix.to_owned());
    }

    /// Puts back what should be there, wherever nothing else was written since.
    pub fn mend(&self) {
        let mut state = self.0.lock();
        let state = &mut *state;
        state.damage = Damage::default();
        // Nothing needs the place that was lost, so it does not come back.
        let lost = state.stays_lost.as_ref().and_then(|name| state.names.get(name));
        for (id, node) in &mut state.nodes {
            if lost == Some(id) {
                (node.durable.hurt, node.view.hurt) = Default::default();
            }
            node.durable.mend();
            node.view.mend();
        }
    }

    /// The number of pages of a file in which bytes are damaged; 0 when there is no such file.
    #[must_use]
    pub fn damaged_pages(&self, name: &str) -> usize {
        let state = self.0.lock();
        let node = state.names.get(name).and_then(|id| state.nodes.get(id));
        let pages: BTreeSet<u64> = node
            .iter()
            .flat_map(|node| node.view.hurt.keys())
            .map(|at| *at as u64 / PAGE)
            .collect();
        pages.len()
    }

    /// True when bytes are not what they should be.
    #[must_use]
    pub fn is_hurt(&self) -> bool {
        self.0
            .lock()
            .nodes
            .values()
            .any(|node| !(node.durable.hurt.is_empty() && node.view.hurt.is_empty()))
    }

    /// Makes the files of this name durable, now and with each later change, as if time passed.
    pub fn write_through(&self, file: &str) {
        let mut state = self.0.lock();
        let state = &mut *state;
        let is_it = |(name, _): &(&String, &u64)| file_name(name) == file;
        state.write_through = state.names.iter().filter(is_it).map(|(_, &id)| id).collect();
        for id in &state.write_through {
            let Some(node) = state.nodes.get_mut(id) else { continue };
            node.make_durable(u64::MAX);
        }
    }

    /// The most bytes of writes that one file whose name begins so, as it is open, has and that are
    /// not durable.
    #[must_use]
    pub fn most_unsynced(&self, prefix: &str) -> u64 {
        let state = self.0.lock();
        let mut most = 0;
        for (_, id) in state.names.iter().filter(|(name, _)| name.starts_with(prefix)) {
            let mut bytes = BTreeMap::<u64, u64>::new();
            for (_, by, change) in state.nodes.get(id).iter().flat_map(|node| &node.unsynced) {
                if let Change::Write(_, data) = change
                    && state.open.contains(by)
                {
                    *bytes.entry(*by).or_default() += data.len() as u64;
                }
            }
            most = bytes.into_values().fold(most, u64::max);
        }
        most
    }

    /// Forgets which damaged bytes were read; true when ever some were.
    pub fn forget_met(&self) -> bool {
        let damage = &mut self.0.lock().damage;
        damage.ever_met |= !damage.met.is_empty();
        damage.met.clear();
        damage.ever_met
    }

    /// The files of which damaged bytes were read since the damage.
    #[must_use]
    pub fn met(&self) -> Vec<String> {
        let state = self.0.lock();
        state
            .names
            .iter()
            .filter(|(_, id)| state.damage.met.contains(id))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The hash of all calls.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.0.lock().trace
    }

    /// The coverage marks reached so far.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.0.lock().reach.clone()
    }
}

impl State {
    fn fold(&mut self, bytes: &[u8]) {
        self.trace = bytes.iter().fold(self.trace, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5)
        });
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

    /// The write of a file's sync that goes wrong, when it is its turn.
    fn wrong_write(&mut self, id: u64, upto: u64) -> Option<WrongWrite> {
        let (how, prefix, syncs) = self.damage.armed.as_mut()?;
        let is_it = self.names.iter().any(|(name, of)| *of == id && name.starts_with(&**prefix));
        let node = self.nodes.get(&id).filter(|_| is_it)?;
        *syncs = syncs.checked_sub(1).unwrap_or_default();
        if *syncs > 0 {
            return None;
        }
        let writes: Vec<(usize, &Vec<u8>)> = node
            .unsynced
            .iter()
            .filter(|(number, ..)| *number <= upto)
            .filter_map(|(_, _, change)| match change {
                Change::Write(at, data) if !data.is_empty() => Some((*at as usize, data)),
                _ => None,
            })
            .collect();
        let &(at, data) = self.aside.pick(&writes)?;
        let old = node.durable.data.get(at..).unwrap_or_default();
        let mut before = old[..old.len().min(data.len())].to_vec();
        before.resize(data.len(), 0);
        let (data, how) = (data.clone(), *how);
        self.damage.armed = None;
        Some(WrongWrite { at, before, data, how })
    }

    /// The medium has what it had; memory has what was written, until it is evicted.
    fn write_wrongly(&mut self, id: u64, wrong: WrongWrite) {
        let WrongWrite { at, before, data, how } = wrong;
        let evicted = self.aside.percent(50);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.durable.damage(at, &before);
        node.stale = true;
        if evicted {
            node.evict();
        }
        self.reach.hit(if how == Wrong::Lost {
            "fault: a write was lost"
        } else {
            "fault: a write was misdirected"
        });
        if how == Wrong::Lost {
            return;
        }
        // The write lands at a page of the same file, or of another file of metadata on the disk.
        let written = self.names.iter().find(|(_, of)| **of == id).map(|(name, _)| name.as_str());
        let disk = written.map(directory).unwrap_or_default().to_owned();
        let may = |name: &str| {
            name.strip_prefix(&*disk).is_some_and(|name| {
                self.layout.metadata.iter().any(|prefix| name.starts_with(prefix))
            })
        };
        let others: Vec<u64> =
            self.names.iter().filter(|(name, _)| may(name)).map(|(_, &id)| id).collect();
        let to = if self.aside.percent(50) { Some(id) } else { self.aside.pick(&others).copied() };
        // The other place of a file with two is the copy of the one that was missed.
        let twice = self.names.get(&format!("{disk}{}", self.layout.twice)).copied();
        if to == twice && twice == Some(id) {
            return;
        }
        let Some(node) = to.and_then(|id| self.nodes.get_mut(&id)) else { return };
        let pages = node.durable.data.len().div_ceil(PAGE as usize);
        let to = (self.aside.below(pages as u64) * PAGE) as usize;
        if node.durable.data.len() <= to {
            return;
        }
        let room = node.durable.data.len() - to;
        node.durable.damage(to, &data[..data.len().min(room)]);
        node.stale = true;
        if evicted {
            node.evict();
        }
    }

    /// Applies a change to what reads see, when there is room.
    fn apply(&mut self, id: u64, by: u64, change: Change) -> Result<()> {
        if let (Change::Write(at, data), Some(capacity)) = (&change, self.capacity) {
            let node = &self.nodes[&id];
            let new = (at / PAGE..(at + data.len() as u64).div_ceil(PAGE))
                .filter(|page| !node.pages.contains(page))
                .count() as u64;
            if new > 0 && self.used() + new * PAGE > capacity {
                self.reach.hit("fault: disk full");
                return Err(Error::new(Kind::NoSpace, "the disk is full"));
            }
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.view.change(&change);
            match &change {
                Change::Write(at, data) => {
                    node.pages.extend(at / PAGE..(at + data.len() as u64).div_ceil(PAGE))
                }
                Change::Length(bytes) => node.pages.retain(|page| page * PAGE < *bytes),
                Change::Punch(at, bytes) => {
                    node.pages.retain(|page| page * PAGE < *at || (page + 1) * PAGE > at + bytes)
                }
            }
            if self.write_through.contains(&id) {
                node.durable.change(&change);
            } else {
                node.changes += 1;
                node.unsynced.push((node.changes, by, change));
            }
        }
        Ok(())
    }

    /// A sync of a file ends, which covers its changes up to a number.
    fn sync(&mut self, id: u64, upto: u64) -> Result<()> {
        match self
            .change(&id.to_le_bytes(), true)
            .and_then(|crash| self.sync_may_fail().map(|()| crash))
        {
            Ok(false) => {}
            Ok(true) => return Err(power_failed()),
            Err(error) if self.down => return Err(error),
            Err(error) => {
                let (evicted, sized) = (self.aside.percent(50), self.aside.percent(50));
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.drop_unsynced(upto, evicted, sized);
                }
                return Err(error);
            }
        }
        let wrong = self.wrong_write(id, upto);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.make_durable(upto);
        }
        if let Some(wrong) = wrong {
            self.write_wrongly(id, wrong);
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
            if std::mem::take(&mut node.begun) > 0 && !node.unsynced.is_empty() {
                self.reach.hit("crash: a sync was under way");
            }
            for (_, _, change) in node.unsynced.drain(..) {
                n += 1;
                match &change {
                    Change::Write(at, data) => {
                        let (mut at, mut rest) = (*at as usize, &data[..]);
                        while !rest.is_empty() {
                            let (part, later) = rest.split_at(rest.len().min(SECTOR - at % SECTOR));
                            if keep(n) {
                                durable.change(&Change::Write(at as u64, part.to_vec()));
                            }
                            (at, rest) = (at + part.len(), later);
                        }
                    }
                    other if keep(n) => durable.change(other),
                    _ => {}
                }
            }
            node.view = durable.clone();
            node.durable = durable;
            node.stale = false;
            node.pages = node
                .durable_pages
                .iter()
                .copied()
                .chain(0..(node.view.data.len() as u64).div_ceil(PAGE))
                .collect();
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
        if crash { Err(power_failed()) } else { Ok(VirtualFile::open(self, &mut state, id)) }
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        let mut state = self.0.lock();
        if state.down {
            return Err(power_failed());
        }
        let id = *state
            .names
            .get(name)
            .ok_or_else(|| Error::new(Kind::NotFound, format!("{name} is not there")))?;
        Ok(VirtualFile::open(self, &mut state, id))
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
    /// Which of the open files it is.
    number: u64,
}

impl Drop for VirtualFile {
    fn drop(&mut self) {
        self.files.0.lock().open.remove(&self.number);
    }
}

/// A sync that was begun.
struct VirtualSync {
    files: VirtualFiles,
    id: u64,
    /// The last change that it covers.
    upto: u64,
    /// Syncs of the file that had failed before it began.
    failures: u64,
}

impl PendingSync for VirtualSync {
    fn is_over(&self) -> bool {
        let mut state = self.files.0.lock();
        let paced = state.paced;
        state.pace.percent(paced)
    }

    fn wait(self: Box<Self>) -> Result<()> {
        let mut state = self.files.0.lock();
        let failures = state.nodes.get(&self.id).map_or(self.failures, |node| node.failures);
        let synced = state.sync(self.id, self.upto);
        if let Some(node) = state.nodes.get_mut(&self.id) {
            node.begun = node.begun.saturating_sub(1);
        }
        // Another sync may have been told of what this one lost.
        if synced.is_ok() && failures != self.failures {
            state.failed = true;
            return Err(Error::new(Kind::Io, "the disk failed"));
        }
        synced
    }
}

impl VirtualFile {
    fn open(files: &VirtualFiles, state: &mut State, id: u64) -> Arc<VirtualFile> {
        state.opened += 1;
        state.open.insert(state.opened);
        Arc::new(VirtualFile { files: files.clone(), id, number: state.opened })
    }

    fn change(&self, what: u64, change: Change) -> Result<()> {
        let mut state = self.files.0.lock();
        let mut told = what.to_le_bytes().to_vec();
        if let Change::Write(at, data) = &change
            && state.comes_late(self.id, *at, data)
        {
            return Err(power_failed());
        }
        if let Change::Write(_, data) = &change {
            told.extend_from_slice(data);
        }
        let crash = state.change(&told, false)?;
        state.apply(self.id, self.number, change)?;
        if crash { Err(power_failed()) } else { Ok(()) }
    }
}

impl File for VirtualFile {
    fn bytes(&self) -> Result<u64> {
        let state = self.files.0.lock();
        if state.down {
            Err(power_failed())
        } else {
            Ok(state.nodes.get(&self.id).map_or(0, |node| node.view.data.len() as u64))
        }
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let mut state = self.files.0.lock();
        if state.down {
            return Err(power_failed());
        }
        let State { nodes, names, damage, steps, odd_read, .. } = &mut *state;
        let is_odd = |(_, step): &(String, u64)| {
            !at.is_multiple_of(*step) || !(into.len() as u64).is_multiple_of(*step)
        };
        if let Some((prefix, _)) = steps.as_ref().filter(|steps| is_odd(steps))
            && let Some((name, _)) =
                names.iter().find(|(name, id)| **id == self.id && name.starts_with(&**prefix))
        {
            odd_read.get_or_insert(format!("{} bytes at {at} of {name}", into.len()));
        }
        let Some(view) = nodes.get(&self.id).map(|node| &node.view) else { return Ok(0) };
        let from = view.data.get(at as usize..).unwrap_or_default();
        let n = from.len().min(into.len());
        into[..n].copy_from_slice(&from[..n]);
        if view.hurt.range(at as usize..at as usize + n).next().is_some() {
            damage.met.insert(self.id);
            if damage.is_unreadable {
                let name =
                    names.iter().find(|(_, id)| **id == self.id).map_or("a file", |(name, _)| name);
                return Err(Error::new(Kind::Io, format!("{name}: the disk can't read a sector")));
            }
        }
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
        self.files.0.lock().sync(self.id, u64::MAX)
    }

    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        let mut state = self.files.0.lock();
        let (mut upto, mut failures) = (0, 0);
        if let Some(node) = state.nodes.get_mut(&self.id) {
            (upto, failures) = (node.changes, node.failures);
            node.begun += 1;
        }
        drop(state);
        Box::new(VirtualSync { files: self.files.clone(), id: self.id, upto, failures })
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
        let new: Vec<u64> = (at / PAGE..(at + bytes).div_ceil(PAGE))
            .filter(|page| !node.pages.contains(page))
            .collect();
        if capacity
            .is_some_and(|capacity| !new.is_empty() && used + new.len() as u64 * PAGE > capacity)
        {
            return Err(Error::new(Kind::NoSpace, "the disk is full"));
        }
        node.pages.extend(new);
        Ok(())
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.change(at, Change::Punch(at, bytes))
    }
}
