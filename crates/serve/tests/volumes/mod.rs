//! Volumes in memory, for tests: sparse blocks of known kinds, and everything that a test wants to
//! count or to break.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use onefold_core::{
    Attempt, BLOCK_BYTES, Block, BlockRead, Changes, Error, Exports, Extent, ExtentKind, Kind,
    Result, Ticket, Volume, VolumeInfo, VolumeLimits,
};
use parking_lot::Mutex;

const BLOCK: u64 = BLOCK_BYTES as u64;

#[derive(Clone)]
enum Content {
    Data(Box<Block>),
    Zero,
}

/// Blocks that are absent are holes.
#[derive(Default)]
struct State {
    blocks: BTreeMap<u64, Content>,
    ticket: u64,
    durable: u64,
    /// Full: new blocks find no room.
    full: bool,
    /// Reads of this block fail.
    bad: Option<u64>,
    /// Set by a test: nothing can be written any more.
    stopped: bool,
    /// Set by a test: changes wait for room.
    no_room: bool,
    wakers: Vec<Waker>,
}

/// A volume in memory. Tickets count changes; waiting and flushing makes the changes durable.
pub(crate) struct MemoryVolume {
    pub(crate) size: AtomicU64,
    state: Mutex<State>,
    /// Calls of `flush`.
    pub(crate) flushes: AtomicU64,
    /// Calls of `wait`.
    pub(crate) waits: AtomicU64,
    /// Calls of `read`, which are batches.
    pub(crate) read_batches: AtomicU64,
    /// When that many calls of `read` have been made, reads fail; zero for never.
    pub(crate) fail_after: AtomicU64,
    /// Calls of `prefetch`.
    pub(crate) prefetches: AtomicU64,
    /// What changed, once the volume may be read ahead.
    changes: OnceLock<Changes>,
    /// Somebody may change it whom it does not know of.
    pub(crate) unsure: AtomicBool,
    /// Threads of a connection that wait beside each other.
    pub(crate) beside: AtomicU64,
    /// Calls of `read_ahead`.
    pub(crate) ahead: AtomicU64,
    /// Bytes that were read ahead and asked for.
    pub(crate) asked_bytes: AtomicU64,
    /// Microseconds that a batch of reads takes.
    pub(crate) read_us: AtomicU64,
    /// Microseconds that a flush or a wait takes.
    pub(crate) flush_us: AtomicU64,
    /// Calls of `extents`.
    pub(crate) statuses: AtomicU64,
    /// Microseconds that the status of a range takes.
    pub(crate) status_us: AtomicU64,
    /// The status of a range stands still while it is set.
    pub(crate) hold_status: AtomicBool,
    /// Flushes and waits stand still while it is set.
    pub(crate) hold: AtomicBool,
    /// Reads, waits and flushes panic: a bug in an engine.
    pub(crate) panic: AtomicBool,
    /// Clients may hear of changes only when they are durable.
    pub(crate) late: AtomicBool,
    /// Waits for tickets up to this one fail, and neither flushes nor later tickets do: each ticket tells of its
    /// own failure.
    pub(crate) refused: AtomicU64,
    /// The name that it got when it was renamed.
    pub(crate) renamed: Mutex<Option<String>>,
}

impl MemoryVolume {
    pub(crate) fn new(size: u64) -> Arc<MemoryVolume> {
        Arc::new(MemoryVolume {
            size: AtomicU64::new(size),
            state: Mutex::default(),
            flushes: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            read_batches: AtomicU64::new(0),
            fail_after: AtomicU64::new(0),
            prefetches: AtomicU64::new(0),
            changes: OnceLock::new(),
            unsure: AtomicBool::new(false),
            beside: AtomicU64::new(1),
            ahead: AtomicU64::new(0),
            asked_bytes: AtomicU64::new(0),
            read_us: AtomicU64::new(0),
            flush_us: AtomicU64::new(0),
            statuses: AtomicU64::new(0),
            status_us: AtomicU64::new(0),
            hold_status: AtomicBool::new(false),
            hold: AtomicBool::new(false),
            panic: AtomicBool::new(false),
            late: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            renamed: Mutex::default(),
        })
    }

    /// From now on it says what changes, and so may be read ahead.
    pub(crate) fn says_what_changes(&self) {
        self.changes.get_or_init(Changes::default);
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// Changes that are tried wait until there is room again, and those that wait are woken then.
    pub(crate) fn set_room(&self, room: bool) {
        let mut state = self.state.lock();
        state.no_room = !room;
        if room {
            std::mem::take(&mut state.wakers).into_iter().for_each(Waker::wake);
        }
    }

    /// Front ends that wait to be woken.
    pub(crate) fn awaited(&self) -> usize {
        self.state.lock().wakers.len()
    }

    /// Tries a change.
    fn tried(&self, change: impl FnOnce() -> Result<Ticket>) -> Result<Poll<Ticket>> {
        let no_room = self.state.lock().no_room;
        match no_room {
            true => Ok(Poll::Pending),
            false => change().map(Poll::Ready),
        }
    }

    pub(crate) fn set_bad(&self, block: Option<u64>) {
        self.state.lock().bad = block;
    }

    pub(crate) fn set_stopped(&self) {
        self.state.lock().stopped = true;
    }

    /// Changes that are not durable.
    pub(crate) fn volatile(&self) -> u64 {
        let state = self.state.lock();
        state.ticket - state.durable
    }

    /// All bytes of a range, straight from memory.
    pub(crate) fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        let state = self.state.lock();
        let mut bytes = Vec::with_capacity(length);
        let mut at = offset;
        while bytes.len() < length {
            let within = (at % BLOCK) as usize;
            let n = (BLOCK_BYTES - within).min(length - bytes.len());
            match state.blocks.get(&(at / BLOCK)) {
                Some(Content::Data(block)) => bytes.extend_from_slice(&block.0[within..within + n]),
                _ => bytes.resize(bytes.len() + n, 0),
            }
            at += n as u64;
        }
        bytes
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(Error::new(
                Kind::InvalidInput,
                "beyond the end: the server must not ask for this",
            )),
        }
    }

    fn change(
        &self,
        mut offset: u64,
        bytes: u64,
        new: Option<&dyn Fn(u64) -> u8>,
        whole: Option<Content>,
    ) -> Result<Ticket> {
        self.check(offset, bytes)?;
        let blocks = offset / BLOCK..(offset + bytes).div_ceil(BLOCK);
        let _change = self.changes.get().map(|changes| changes.begin(blocks));
        let mut state = self.state.lock();
        if state.stopped {
            return Err(Error::new(Kind::Stopped, "the store stopped after a failed write"));
        }
        let (start, end) = (offset, offset + bytes);
        while offset < end {
            let (block, within) = (offset / BLOCK, offset % BLOCK);
            let n = (BLOCK - within).min(end - offset);
            if n == BLOCK && new.is_none() {
                match &whole {
                    Some(content) => drop(state.blocks.insert(block, content.clone())),
                    None => drop(state.blocks.remove(&block)),
                }
            } else {
                if state.full
                    && new.is_some()
                    && !matches!(state.blocks.get(&block), Some(Content::Data(_)))
                {
                    return Err(Error::new(Kind::NoSpace, "the store is full"));
                }
                let absent = !matches!(state.blocks.get(&block), Some(Content::Data(_)));
                if absent && new.is_none() {
                    offset += n;
                    continue;
                }
                if absent {
                    state.blocks.insert(block, Content::Data(Block::zeroed()));
                }
                if let Some(Content::Data(data)) = state.blocks.get_mut(&block) {
                    for i in 0..n {
                        data.0[(within + i) as usize] =
                            new.map_or(0, |new| new(offset + i - start));
                    }
                }
            }
            offset += n;
        }
        state.ticket += 1;
        Ok(Ticket(state.ticket))
    }

    fn settle(&self, ticket: Option<u64>) -> Result<()> {
        assert!(!self.panic.load(SeqCst), "a planted bug");
        let ticket = ticket.unwrap_or(self.state.lock().ticket);
        while self.hold.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        match self.flush_us.load(SeqCst) {
            0 => {}
            us => std::thread::sleep(Duration::from_micros(us)),
        }
        let mut state = self.state.lock();
        if state.stopped {
            return Err(Error::new(Kind::Stopped, "the store stopped after a failed write"));
        }
        state.durable = state.durable.max(ticket);
        Ok(())
    }
}

impl Volume for MemoryVolume {
    fn size(&self) -> u64 {
        self.size.load(SeqCst)
    }

    fn current_name(&self) -> Option<String> {
        self.renamed.lock().clone()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        assert!(!self.panic.load(SeqCst), "a planted bug");
        let before = self.read_batches.fetch_add(1, SeqCst);
        let fail_after = self.fail_after.load(SeqCst);
        std::thread::sleep(Duration::from_micros(self.read_us.load(SeqCst)));
        let state = self.state.lock();
        for read in reads {
            if fail_after > 0 && before >= fail_after {
                read.result = Err(Error::new(Kind::Io, "the disk is gone"));
                continue;
            }
            for (i, into) in read.into.iter_mut().enumerate() {
                let at = read.first.0 + i as u64;
                if (at + 1) * BLOCK > self.size().next_multiple_of(BLOCK) {
                    read.result = Err(Error::new(
                        Kind::InvalidInput,
                        "beyond the end: the server must not ask for this",
                    ));
                    break;
                }
                if state.bad == Some(at) {
                    read.result =
                        Err(Error::new(Kind::Corrupt, format!("block {at} fails its checksum")));
                    break;
                }
                match state.blocks.get(&at) {
                    Some(Content::Data(block)) => into.0 = block.0,
                    _ => into.0.fill(0),
                }
            }
        }
    }

    fn changes(&self) -> Option<&Changes> {
        self.changes.get().filter(|_| !self.unsure.load(SeqCst))
    }

    fn read_ahead(&self, reads: &mut [BlockRead<'_>]) {
        self.read(reads);
        self.ahead.fetch_add(1, SeqCst);
    }

    fn was_read_ahead(&self, _: u64, bytes: u64) {
        self.asked_bytes.fetch_add(bytes, SeqCst);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.change(offset, data.len() as u64, Some(&|i| data[i as usize]), None)
    }

    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket> {
        self.change(offset, bytes, None, None)
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, keep: bool) -> Result<Ticket> {
        self.change(offset, bytes, None, keep.then_some(Content::Zero))
    }

    fn try_write(&self, offset: u64, data: &[u8], _: &mut Attempt) -> Result<Poll<Ticket>> {
        self.tried(|| self.write(offset, data))
    }

    fn try_trim(&self, offset: u64, bytes: u64, _: &mut Attempt) -> Result<Poll<Ticket>> {
        self.tried(|| self.trim(offset, bytes))
    }

    fn try_zeroes(
        &self,
        offset: u64,
        bytes: u64,
        keep: bool,
        _: &mut Attempt,
    ) -> Result<Poll<Ticket>> {
        self.tried(|| self.write_zeroes(offset, bytes, keep))
    }

    fn acknowledges_late(&self) -> bool {
        self.late.load(SeqCst)
    }

    fn waits_beside(&self) -> usize {
        self.beside.load(SeqCst) as usize
    }

    fn on_progress(&self, waker: &Waker) {
        self.state.lock().wakers.push(waker.clone());
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.waits.fetch_add(1, SeqCst);
        self.settle(Some(ticket.0))?;
        match ticket.0 <= self.refused.load(SeqCst) {
            true => Err(Error::new(Kind::NoSpace, "there was no room")),
            false => Ok(()),
        }
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, SeqCst);
        self.settle(None)
    }

    fn extents(&self, mut offset: u64, bytes: u64, limit: usize) -> Result<Vec<Extent>> {
        self.check(offset, bytes)?;
        self.statuses.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_micros(self.status_us.load(SeqCst)));
        while self.hold_status.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let state = self.state.lock();
        let end = offset + bytes;
        let mut extents: Vec<Extent> = Vec::new();
        while offset < end {
            let (kind, until) = match state.blocks.get(&(offset / BLOCK)) {
                Some(Content::Data(_)) => (ExtentKind::Data, (offset / BLOCK + 1) * BLOCK),
                Some(Content::Zero) => (ExtentKind::Zero, (offset / BLOCK + 1) * BLOCK),
                None => {
                    let next = state.blocks.range(offset / BLOCK..).next();
                    (ExtentKind::Hole, next.map_or(end, |(block, _)| block * BLOCK))
                }
            };
            let n = until.min(end) - offset;
            let full = extents.len() == limit;
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.bytes += n,
                _ if full => break,
                _ => extents.push(Extent { bytes: n, kind }),
            }
            offset += n;
        }
        Ok(extents)
    }

    fn prefetch(&self, offset: u64, bytes: u64) -> Result<()> {
        self.prefetches.fetch_add(1, SeqCst);
        self.check(offset, bytes)
    }
}

/// Named volumes in memory.
#[derive(Default)]
pub(crate) struct MemoryExports(
    BTreeMap<String, Arc<MemoryVolume>>,
    pub(crate) BTreeMap<String, VolumeLimits>,
);

impl MemoryExports {
    /// One volume of `size` bytes, called `disk`.
    pub(crate) fn one(size: u64) -> (Arc<MemoryExports>, Arc<MemoryVolume>) {
        let volume = MemoryVolume::new(size);
        (MemoryExports::of([("disk".to_owned(), volume.clone())]), volume)
    }

    pub(crate) fn of(
        volumes: impl IntoIterator<Item = (String, Arc<MemoryVolume>)>,
    ) -> Arc<MemoryExports> {
        Arc::new(MemoryExports(volumes.into_iter().collect(), BTreeMap::new()))
    }

    /// The same, of which `name` has limits.
    pub(crate) fn limited(
        volumes: impl IntoIterator<Item = (String, Arc<MemoryVolume>)>,
        name: &str,
        limits: VolumeLimits,
    ) -> Arc<MemoryExports> {
        let limits = BTreeMap::from([(name.to_owned(), limits)]);
        Arc::new(MemoryExports(volumes.into_iter().collect(), limits))
    }
}

impl Exports for MemoryExports {
    fn list(&self) -> Vec<VolumeInfo> {
        self.0
            .iter()
            .map(|(name, volume)| VolumeInfo { name: name.clone(), size: volume.size() })
            .collect()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>> {
        let volume = self
            .0
            .get(name)
            .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no volume {name:?}")))?;
        Ok(volume.clone())
    }

    fn shared_name(&self, name: &str) -> String {
        name.split_inclusive('@').next().unwrap_or(name).to_owned()
    }

    fn limits(&self, name: &str) -> Option<VolumeLimits> {
        Some(self.1.get(name).copied().unwrap_or_default())
    }
}
