//! A toy store for the simulator's own tests: a log in two halves, all contents in memory. Small
//! enough to be right at sight, and with bugs that can be planted.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, BlockRef, Class, Clock, Disk, Error, Extent, ExtentKind, Kind,
    Pba, Read, Result, Run, Ticket, VolumeId, VolumeInfo, checksum,
};
use onefold_sim::block::subject::{Ack, Report, Step, StoreOptions, Subject};
use onefold_testbed::VirtualDisk;
use parking_lot::Mutex;

const SKIPPED_FLUSH: usize = 0;
const TORN_BELIEVED: usize = 1;
const EARLY_TICKET: usize = 2;
const STALE_BELIEVED: usize = 3;
const SUPER_TOO_EARLY: usize = 4;
const FLUSH_RETRIED: usize = 5;
const TRIM_OVER_WRITE: usize = 6;
const SPACE_LOST: usize = 7;
const RECOVERY_UNFLUSHED: usize = 8;

const MAGIC: u64 = 0x746f_795f_6c6f_6721;
const FRAME_CHANGES: usize = 16;
const BLOCK: u64 = BLOCK_BYTES as u64;

#[derive(Clone)]
enum Change {
    Put(u32, u64, Arc<[u8; BLOCK_BYTES]>),
    Clear(u32, u64, u64),
    Catalogue(String),
}

#[derive(Default)]
struct State {
    bug: Option<usize>,
    names: BTreeMap<u32, (String, u64)>,
    next_id: u32,
    map: BTreeMap<(u32, u64), Arc<[u8; BLOCK_BYTES]>>,
    lost: usize,
    open: Vec<Change>,
    ticket: u64,
    closed: VecDeque<(u64, Vec<Change>)>,
    prepared: VecDeque<(u64, Vec<Change>)>,
    written: VecDeque<u64>,
    durable: u64,
    half: u64,
    at: u64,
    chain: u64,
    epoch: u64,
    failed: Option<Error>,
}

pub(crate) struct Toy {
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
}

fn corrupt(what: &str) -> Error {
    Error::new(Kind::Corrupt, what)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn half_blocks(disk: &dyn Disk) -> u64 {
    disk.blocks() / 2 - 2
}

fn read(disk: &dyn Disk, at: u64, n: u64) -> Result<Vec<u8>> {
    let mut blocks = Block::zeroed_vec(n as usize);
    let mut reads = [Read::new(Pba(at), &mut blocks)];
    disk.read(&mut reads);
    let [one] = reads;
    one.result?;
    Ok(onefold_core::block::bytes(&blocks).to_vec())
}

fn write(disk: &dyn Disk, at: u64, bytes: &[u8]) -> Result<()> {
    let mut blocks = Block::zeroed_vec(bytes.len().div_ceil(BLOCK_BYTES));
    onefold_core::block::bytes_mut(&mut blocks)[..bytes.len()].copy_from_slice(bytes);
    let refs: Vec<BlockRef<'_>> =
        blocks.iter().map(|block| BlockRef { block, class: Class::Data }).collect();
    disk.write(&[Run { at: Pba(at), blocks: &refs }])
}

/// Superblock: magic, epoch, half, checksum. Two places by turns.
fn write_super(disk: &dyn Disk, epoch: u64, half: u64) -> Result<()> {
    let mut bytes = [MAGIC, epoch, half].map(u64::to_le_bytes).concat();
    bytes.extend(checksum::fast(2, &bytes).to_le_bytes());
    write(disk, epoch % 2, &bytes)
}

fn read_super(disk: &dyn Disk) -> Result<(u64, u64)> {
    let both = [read(disk, 0, 1)?, read(disk, 1, 1)?];
    let whole = both.iter().filter(|bytes| {
        number(bytes, 0) == MAGIC && number(bytes, 24) == checksum::fast(2, &bytes[..24])
    });
    whole.map(|bytes| (number(bytes, 8), number(bytes, 16))).max().ok_or(corrupt("no superblock"))
}

/// Frame: magic, chain, epoch, bytes, checksum; changes; all padded to whole blocks.
fn frame(chain: u64, epoch: u64, changes: &[Change]) -> (Vec<u8>, u64) {
    let mut body = Vec::new();
    let mut put = |kind: u64, volume: u32, a: u64, b: u64, data: &[u8]| {
        body.extend([kind, u64::from(volume), a, b].map(u64::to_le_bytes).concat());
        body.extend(data);
    };
    for change in changes {
        match change {
            Change::Put(volume, lba, data) => put(1, *volume, *lba, BLOCK, &data[..]),
            Change::Clear(volume, first, end) => put(2, *volume, *first, *end, &[]),
            Change::Catalogue(text) => put(3, 0, 0, text.len() as u64, text.as_bytes()),
        }
    }
    let mut bytes = [MAGIC, chain, epoch, body.len() as u64].map(u64::to_le_bytes).concat();
    let sum = checksum::fast(checksum::fast(3, &bytes), &body);
    bytes.extend(sum.to_le_bytes());
    bytes.extend(body);
    (bytes, sum)
}

impl State {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(volume, lba, data) if data[..] == [0; BLOCK_BYTES] => {
                drop(self.map.remove(&(*volume, *lba)))
            }
            Change::Put(volume, lba, data) => {
                drop(self.map.insert((*volume, *lba), Arc::clone(data)))
            }
            Change::Clear(volume, first, end) => {
                let gone: Vec<(u32, u64)> = self
                    .map
                    .range((*volume, *first)..(*volume, *end))
                    .map(|(key, _)| *key)
                    .collect();
                self.lost += if self.bug == Some(SPACE_LOST) { gone.len() } else { 0 };
                gone.iter().for_each(|key| drop(self.map.remove(key)));
            }
            Change::Catalogue(text) => {
                let mut words = text.split(' ');
                self.next_id = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                let rest: Vec<&str> = words.collect();
                let row = |row: &[&str]| {
                    Some((row[0].parse().ok()?, (row[1].to_owned(), row[2].parse().ok()?)))
                };
                self.names = rest.chunks_exact(3).filter_map(row).collect();
            }
        }
    }

    fn catalogue(&self) -> Change {
        let rows = self.names.iter().map(|(id, (name, size))| format!(" {id} {name} {size}"));
        Change::Catalogue(format!("{}{}", self.next_id, rows.collect::<String>()))
    }

    /// Writes frames to the log, without a flush.
    fn append(&mut self, disk: &dyn Disk, changes: &[Change]) -> Result<()> {
        for part in changes.chunks(FRAME_CHANGES) {
            let (bytes, sum) = frame(self.chain, self.epoch, part);
            write(disk, self.at, &bytes)?;
            self.at += (bytes.len() as u64).div_ceil(BLOCK);
            self.chain = sum;
        }
        Ok(())
    }

    fn room(&self, disk: &dyn Disk) -> u64 {
        2 + (self.half + 1) * half_blocks(disk) - self.at
    }

    /// Writes all that is live to the other half and makes it the log.
    fn compact(&mut self, disk: &dyn Disk) -> Result<()> {
        self.half = 1 - self.half;
        self.epoch += 1;
        (self.at, self.chain) = (2 + self.half * half_blocks(disk), self.epoch);
        let mut all = vec![self.catalogue()];
        all.extend(
            self.map
                .iter()
                .map(|((volume, lba), data)| Change::Put(*volume, *lba, Arc::clone(data))),
        );
        self.append(disk, &all)?;
        if self.bug != Some(SUPER_TOO_EARLY) {
            disk.flush()?;
        }
        write_super(disk, self.epoch, self.half)?;
        disk.flush()
    }

    /// Reads the log back.
    fn replay(&mut self, disk: &dyn Disk) -> Result<()> {
        (self.epoch, self.half) = read_super(disk)?;
        let end = 2 + (self.half + 1) * half_blocks(disk);
        (self.at, self.chain) = (2 + self.half * half_blocks(disk), self.epoch);
        while self.at < end {
            let head = read(disk, self.at, 1)?;
            let (chain, bytes, sum) = (number(&head, 8), number(&head, 24), number(&head, 32));
            let blocks = (bytes.min(1 << 40) + 40).div_ceil(BLOCK);
            let chained = chain == self.chain || self.bug == Some(STALE_BELIEVED);
            if number(&head, 0) != MAGIC || !chained || self.at + blocks > end {
                break;
            }
            let all = read(disk, self.at, blocks)?;
            let body = &all[40..40 + bytes as usize];
            if sum != checksum::fast(checksum::fast(3, &head[..32]), body)
                && self.bug != Some(TORN_BELIEVED)
            {
                break;
            }
            self.replay_frame(body);
            self.at += blocks;
            self.chain = sum;
        }
        Ok(())
    }

    fn replay_frame(&mut self, body: &[u8]) {
        let (mut at, mut late) = (0, Vec::new());
        while at + 32 <= body.len() {
            let [kind, volume, a, b] = [0, 8, 16, 24].map(|skip| number(body, at + skip));
            at += 32;
            let data = body.get(at..at + if kind == 2 { 0 } else { b as usize }).unwrap_or(&[]);
            at += data.len();
            match kind {
                1 => self.apply(&Change::Put(
                    volume as u32,
                    a,
                    Arc::new(data.try_into().unwrap_or([0; BLOCK_BYTES])),
                )),
                2 if self.bug == Some(TRIM_OVER_WRITE) => {
                    late.push(Change::Clear(volume as u32, a, b))
                }
                2 => self.apply(&Change::Clear(volume as u32, a, b)),
                _ => self.apply(&Change::Catalogue(String::from_utf8_lossy(data).into_owned())),
            }
        }
        late.iter().for_each(|change| self.apply(change));
    }

    fn step(&mut self, disk: &dyn Disk, step: Step) -> Result<bool> {
        match step {
            Step::Close if !self.open.is_empty() => {
                self.closed.push_back((self.ticket, std::mem::take(&mut self.open)));
                self.ticket += 1;
            }
            Step::Prepare => match self.closed.pop_front() {
                Some(window) => self.prepared.push_back(window),
                None => return Ok(false),
            },
            Step::Write => {
                let Some((ticket, changes)) = self.prepared.pop_front() else { return Ok(false) };
                for part in changes.chunks(FRAME_CHANGES) {
                    if self.room(disk) < FRAME_CHANGES as u64 + 3 {
                        self.compact(disk)?;
                    }
                    self.append(disk, part)?;
                }
                self.written.push_back(ticket);
                if self.bug == Some(EARLY_TICKET) {
                    self.durable = ticket;
                }
            }
            Step::Settle if !self.written.is_empty() => {
                if self.bug != Some(SKIPPED_FLUSH) {
                    let result = disk.flush();
                    if self.bug == Some(FLUSH_RETRIED) && result.is_err() {
                        disk.flush()?;
                    } else {
                        result?;
                    }
                }
                self.durable = self.written.drain(..).next_back().unwrap_or(self.durable);
            }
            Step::Checkpoint
                if self.room(disk) < half_blocks(disk) / 4
                    && self.map.len() as u64 <= half_blocks(disk) / 2 =>
            {
                self.compact(disk)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Toy {
    /// Runs `with` unless the store has stopped; stops it when that fails by the disk.
    fn guard<T>(&self, with: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(Error::new(Kind::Stopped, format!("stopped: {error}")));
        }
        let result = with(&mut state);
        if let Err(error) = &result
            && !matches!(
                error.kind(),
                Kind::Busy | Kind::NoSpace | Kind::InvalidInput | Kind::NotFound | Kind::Exists
            )
        {
            state.failed = Some(error.clone());
        }
        result
    }

    fn change(
        &self,
        volume: VolumeId,
        offset: u64,
        bytes: u64,
        data: Option<&[u8]>,
    ) -> Result<Ticket> {
        let budget = half_blocks(&*self.disk) as usize / 2;
        self.guard(|state| {
            let size =
                state.names.get(&volume.0).ok_or(Error::new(Kind::NotFound, "no such volume"))?.1;
            let end = offset
                .checked_add(bytes)
                .filter(|end| *end <= size)
                .ok_or(Error::new(Kind::InvalidInput, "beyond the end"))?;
            if state.closed.len() > 8 {
                return Err(Error::new(Kind::Busy, "too many windows"));
            }
            if data.is_some()
                && state.map.len() + state.lost + bytes as usize / BLOCK_BYTES + 2 > budget
            {
                return Err(Error::new(Kind::NoSpace, "full"));
            }
            let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
            let mut changes = Vec::new();
            if data.is_none() && first < last {
                changes.push(Change::Clear(volume.0, first, last));
            }
            for lba in offset / BLOCK..end.div_ceil(BLOCK) {
                if data.is_none() && (first..last).contains(&lba) {
                    continue;
                }
                let mut block =
                    state.map.get(&(volume.0, lba)).map_or([0; BLOCK_BYTES], |block| **block);
                let (from, to) = (offset.max(lba * BLOCK), end.min((lba + 1) * BLOCK));
                let part = &mut block[(from - lba * BLOCK) as usize..(to - lba * BLOCK) as usize];
                match data {
                    Some(data) => part
                        .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]),
                    None => part.fill(0),
                }
                changes.push(Change::Put(volume.0, lba, Arc::new(block)));
            }
            changes.iter().for_each(|change| state.apply(change));
            state.open.extend(changes);
            Ok(Ticket(state.ticket))
        })
    }

    fn verb(&self, change: impl FnOnce(&mut State) -> Result<VolumeId>) -> Result<(VolumeId, Ack)> {
        self.guard(|state| {
            let id = change(state)?;
            let catalogue = state.catalogue();
            state.open.push(catalogue);
            Ok((id, Ack::Later(Ticket(state.ticket))))
        })
    }
}

fn taken(state: &State, name: &str) -> Result<()> {
    if state.names.values().any(|row| row.0 == name) {
        Err(Error::new(Kind::Exists, "the name is taken"))
    } else {
        Ok(())
    }
}

impl Subject for Toy {
    const BUGS: &'static [&'static str] = &[
        "skipped flush",
        "torn frame believed",
        "acknowledged early",
        "stale frame believed",
        "superblock before its log",
        "flush retried",
        "trim over a later write",
        "space lost",
        "recovery without its flush",
    ];
    const NOTICES_DAMAGE: bool = false;

    fn format(disk: &dyn Disk, _options: &StoreOptions) -> Result<()> {
        disk.allocate(Pba(0), disk.blocks())?;
        let mut state =
            State { epoch: read_super(disk).map_or(0, |before| before.0 + 1), ..State::default() };
        state.compact(disk)
    }

    fn open(disk: Arc<dyn Disk>, _clock: Arc<dyn Clock>, options: &StoreOptions) -> Result<Toy> {
        if disk.blocks() < options.disk_blocks {
            return Err(corrupt("the disk is smaller than formatted"));
        }
        let mut state = State { bug: options.bug, ticket: 1, ..State::default() };
        state.replay(&*disk)?;
        if options.bug != Some(RECOVERY_UNFLUSHED) {
            // A new life begins in the other half, so that nothing left of the old log can follow
            // it.
            disk.flush()?;
            state.compact(&*disk)?;
        }
        Ok(Toy { disk, state: Mutex::new(state) })
    }

    fn volumes(&self) -> Result<Vec<(VolumeId, VolumeInfo)>> {
        let state = self.state.lock();
        Ok(state
            .names
            .iter()
            .map(|(id, (name, size))| {
                (VolumeId(*id), VolumeInfo { name: name.clone(), size: *size })
            })
            .collect())
    }

    fn create_volume(&self, name: &str, size: u64) -> Result<(VolumeId, Ack)> {
        self.verb(|state| {
            taken(state, name)?;
            state.next_id += 1;
            state.names.insert(state.next_id, (name.to_owned(), size));
            Ok(VolumeId(state.next_id))
        })
    }

    fn resize_volume(&self, volume: VolumeId, size: u64) -> Result<Ack> {
        let resize = self.verb(|state| {
            state.names.entry(volume.0).and_modify(|row| row.1 = size);
            let clear = Change::Clear(volume.0, size / BLOCK, u64::MAX);
            state.apply(&clear);
            state.open.push(clear);
            Ok(volume)
        });
        resize.map(|done| done.1)
    }

    fn rename_volume(&self, volume: VolumeId, name: &str) -> Result<Ack> {
        let rename = self.verb(|state| {
            taken(state, name)?;
            state.names.entry(volume.0).and_modify(|row| row.0 = name.to_owned());
            Ok(volume)
        });
        rename.map(|done| done.1)
    }

    fn delete_volume(&self, volume: VolumeId) -> Result<Ack> {
        let delete = self.verb(|state| {
            state.names.remove(&volume.0);
            let clear = Change::Clear(volume.0, 0, u64::MAX);
            state.apply(&clear);
            state.open.push(clear);
            Ok(volume)
        });
        delete.map(|done| done.1)
    }

    fn write(
        &self,
        volume: VolumeId,
        offset: u64,
        data: &[u8],
        _taken: &mut u64,
    ) -> Result<Ticket> {
        self.change(volume, offset, data.len() as u64, Some(data))
    }

    fn trim(&self, volume: VolumeId, offset: u64, bytes: u64) -> Result<Ticket> {
        self.change(volume, offset, bytes, None)
    }

    fn write_zeroes(
        &self,
        volume: VolumeId,
        offset: u64,
        bytes: u64,
        _keep: bool,
        _taken: &mut u64,
    ) -> Result<Ticket> {
        self.change(volume, offset, bytes, None)
    }

    fn read(&self, volume: VolumeId, reads: &mut [BlockRead<'_>]) {
        let state = self.state.lock();
        for read in reads {
            for (lba, block) in (read.first.0..).zip(read.into.iter_mut()) {
                block.0 = state.map.get(&(volume.0, lba)).map_or([0; BLOCK_BYTES], |block| **block);
            }
        }
    }

    fn extents(
        &self,
        volume: VolumeId,
        offset: u64,
        bytes: u64,
        limit: usize,
    ) -> Result<Vec<Extent>> {
        let state = self.state.lock();
        let mut extents: Vec<Extent> = Vec::new();
        for lba in offset / BLOCK..((offset + bytes) / BLOCK).min(offset / BLOCK + 1000) {
            let kind = if state.map.contains_key(&(volume.0, lba)) {
                ExtentKind::Data
            } else {
                ExtentKind::Hole
            };
            let full = extents.len() == limit;
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.bytes += BLOCK,
                _ if full => break,
                _ => extents.push(Extent { bytes: BLOCK, kind }),
            }
        }
        Ok(extents)
    }

    fn step(&self, step: Step) -> Result<bool> {
        self.guard(|state| {
            let result = state.step(&*self.disk, step);
            state.failed = result.as_ref().err().cloned();
            result
        })
    }

    fn durable(&self) -> Ticket {
        Ticket(self.state.lock().durable)
    }

    fn flush(&self, _volume: VolumeId) -> Result<()> {
        loop {
            let mut moved = false;
            for step in Step::DURABLE {
                moved |= self.step(step)?;
            }
            if !moved {
                return Ok(());
            }
        }
    }

    fn close(self) -> Result<()> {
        self.flush(VolumeId(0))
    }

    fn check(disk: &Arc<VirtualDisk>, _options: &StoreOptions) -> Result<Report> {
        let mut state = State::default();
        state.replay(&**disk)?;
        Ok(Report::default())
    }

    fn roomy(_options: &StoreOptions) -> u64 {
        1
    }
}
