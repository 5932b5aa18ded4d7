//! Files in a bucket, and their locks, which are this process's own: other processes that write are kept out by
//! joining, and readers see one state.

use std::sync::Arc;

use onefold_core::{Error, File, Files, Hold, Kind, Lock, PendingSync, Result};

use crate::{
    format::{PACK_MAX, Record, frame_name, is_name, pack_id},
    reads::{Keeps, Place},
    shared::{Closed, Core, Open, Role, Shared},
    state::{Extent, Inode, Pack},
};

/// Records at which there is a frame although nobody asked for one.
pub(crate) const PENDING_MAX: usize = 100_000;

/// Files of containers: almost all that an archive has.
const BULK: &str = "segment-";

/// The files of an archive that lies in a bucket.
#[derive(Clone)]
pub struct BucketFiles(pub(crate) Arc<Shared>);

impl Files for BucketFiles {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.0.core.lock().state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let mut core = self.0.core.lock();
        core.writer()?;
        if !is_name(name) {
            return Err(Error::new(Kind::InvalidInput, format!("{name:?} is no file's name")));
        }
        if core.state.names.contains_key(name) {
            return Err(Error::new(Kind::Exists, format!("{name} is there already")));
        }
        let inode = core.state.next_inode;
        core.state.create(inode, name)?;
        core.pending.push(Record::Create { inode, name: name.to_owned() });
        self.0.commit_if_full(core)?;
        Ok(self.file(inode))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        let core = self.0.core.lock();
        let inode = core.state.names.get(name).copied();
        let inode = inode.ok_or_else(|| no_file(name))?;
        Ok(self.file(inode))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut core = self.0.core.lock();
        core.writer()?;
        let inode = core.state.names.get(name).copied().ok_or_else(|| no_file(name))?;
        let removed = core.state.remove(inode)?;
        core.unlinked.insert(inode, removed);
        core.pending.push(Record::Remove { inode });
        self.0.commit_if_full(core)
    }

    fn sync_names(&self) -> Result<()> {
        self.0.commit()
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        if !self.0.core.lock().state.names.contains_key(name) {
            return Err(no_file(name));
        }
        let mut locks = self.0.locks.lock();
        loop {
            let held = locks.entry(name.to_owned()).or_default();
            if held.allows(hold) {
                match hold {
                    Hold::Shared => held.shared += 1,
                    Hold::Alone => held.alone = true,
                }
                let (shared, name) = (self.0.clone(), name.to_owned());
                return Ok(Box::new(HeldLock { shared, name, hold }));
            }
            if !wait {
                return Err(Error::new(Kind::Busy, format!("{name} is locked")));
            }
            self.0.unlocked.wait(&mut locks);
        }
    }
}

fn no_file(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no file {name}"))
}

struct HeldLock {
    shared: Arc<Shared>,
    name: String,
    hold: Hold,
}

impl Lock for HeldLock {}

impl Drop for HeldLock {
    fn drop(&mut self) {
        let mut locks = self.shared.locks.lock();
        if let Some(held) = locks.get_mut(&self.name) {
            match self.hold {
                Hold::Shared => held.shared = held.shared.saturating_sub(1),
                Hold::Alone => held.alone = false,
            }
        }
        drop(locks);
        self.shared.unlocked.notify_all();
    }
}

impl BucketFiles {
    fn file(&self, inode: u64) -> Arc<dyn File> {
        Arc::new(BucketFile { shared: self.0.clone(), inode })
    }
}

struct BucketFile {
    shared: Arc<Shared>,
    inode: u64,
}

/// A part of a read.
enum Part {
    /// It was in memory, or is a hole.
    There,
    /// It is in the store.
    Fetched { from: usize, to: usize, place: Place },
}

impl File for BucketFile {
    fn bytes(&self) -> Result<u64> {
        self.shared.core.lock().inode(self.inode).map(|inode| inode.bytes)
    }

    fn occupied(&self) -> Result<u64> {
        let core = self.shared.core.lock();
        Ok(core.inode(self.inode)?.extents.values().map(|extent| extent.bytes).sum())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let (parts, bytes) = {
            let core = self.shared.core.lock();
            let inode = core.inode(self.inode)?;
            let there = inode.bytes.saturating_sub(at).min(into.len() as u64) as usize;
            (parts_of(&core, inode, at, &mut into[..there]), there)
        };
        for part in parts {
            if let Part::Fetched { from, to, place } = part {
                self.shared.cache.read(&self.shared.log, &place, &mut into[from..to])?;
            }
        }
        Ok(bytes)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.write_parts(at, &[data])
    }

    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let full = if bytes >= self.shared.log.settings.large {
            let whole = parts.concat();
            // Hashed before others are kept waiting.
            let pieces = whole.chunks(PACK_MAX).map(|p| (p.to_vec(), *blake3::hash(p).as_bytes()));
            let pieces: Vec<_> = pieces.collect();
            let mut core = self.shared.core.lock();
            core.must_be_there(self.inode)?;
            let mut at = at;
            for (piece, sum) in pieces {
                let length = piece.len() as u64;
                core.write_alone(self.inode, at, piece, sum)?;
                at += length;
            }
            core.pending.len() > PENDING_MAX
        } else if bytes > 0 {
            let mut core = self.shared.core.lock();
            core.must_be_there(self.inode)?;
            core.write_short(self.inode, at, &parts.concat(), self.shared.log.settings.small_max)?;
            core.pending.len() > PENDING_MAX
        } else {
            return Ok(());
        };
        self.shared.sent_on()?;
        if full { self.shared.commit() } else { Ok(()) }
    }

    fn sync(&self) -> Result<()> {
        self.shared.commit()
    }

    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        let core = self.shared.core.lock();
        let packs = core.fresh.keys().copied().collect();
        drop(core);
        Box::new(PendingCommit { shared: self.shared.clone(), packs })
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        let mut core = self.shared.core.lock();
        core.writer()?;
        core.must_be_there(self.inode)?;
        core.state.resize(self.inode, bytes)?;
        core.pending.push(Record::Size { inode: self.inode, bytes });
        self.shared.commit_if_full(core)
    }

    fn reserve(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        let mut core = self.shared.core.lock();
        core.writer()?;
        core.must_be_there(self.inode)?;
        core.state.punch(self.inode, at, bytes)?;
        core.pending.push(Record::Punch { inode: self.inode, at, bytes });
        self.shared.commit_if_full(core)
    }
}

/// Packs on their way, and the frame that follows them.
struct PendingCommit {
    shared: Arc<Shared>,
    packs: Vec<(u64, u64)>,
}

impl PendingSync for PendingCommit {
    fn is_over(&self) -> bool {
        let core = self.shared.core.lock();
        core.failed.is_some() || !self.packs.iter().any(|id| core.fresh.contains_key(id))
    }

    fn wait(self: Box<Self>) -> Result<()> {
        self.shared.commit()
    }
}

impl Core {
    /// A write that has a pack for itself.
    fn write_alone(&mut self, inode: u64, at: u64, bytes: Vec<u8>, sum: [u8; 32]) -> Result<()> {
        let (writer, secret) = (self.writer()?, self.is_secret(inode));
        let number = self.number();
        let length = bytes.len() as u32;
        let pack = Pack { bytes: length, sum, live: 0, secret, inline: None };
        self.state.add_pack((writer, number), pack)?;
        self.put(
            inode,
            at,
            Extent { bytes: u64::from(length), pack: (writer, number), pack_at: 0 },
        )?;
        self.closed.push(Closed { number, bytes: length, sum, secret });
        self.enqueue((writer, number), secret, bytes);
        Ok(())
    }

    /// A write that shares a pack with others, as long as that has no more bytes than `most`.
    pub(crate) fn write_short(
        &mut self,
        inode: u64,
        at: u64,
        bytes: &[u8],
        most: usize,
    ) -> Result<()> {
        let (writer, secret) = (self.writer()?, self.is_secret(inode));
        let slot = usize::from(secret);
        if self.open[slot].as_ref().is_some_and(|open| open.bytes.len() + bytes.len() > most)
            && let Some(open) = self.open[slot].take()
        {
            let closed = self.close(writer, &open, secret);
            self.closed.push(closed);
            self.enqueue((writer, open.number), secret, open.bytes);
        }
        if self.open[slot].is_none() {
            let number = self.number();
            self.state.add_pack((writer, number), Pack { secret, ..Pack::default() })?;
            self.open[slot] = Some(Open { number, bytes: Vec::new() });
        }
        let Some(open) = &mut self.open[slot] else { return Ok(()) };
        let pack_at = open.bytes.len() as u32;
        open.bytes.extend_from_slice(bytes);
        let pack = (writer, open.number);
        self.put(inode, at, Extent { bytes: bytes.len() as u64, pack, pack_at })
    }

    /// An open pack gets no more bytes: the state has its length and its hash.
    pub(crate) fn close(&mut self, writer: u64, open: &Open, secret: bool) -> Closed {
        let (bytes, sum) = (open.bytes.len() as u32, *blake3::hash(&open.bytes).as_bytes());
        if let Some(pack) = self.state.packs.get_mut(&(writer, open.number)) {
            (pack.bytes, pack.sum) = (bytes, sum);
        }
        Closed { number: open.number, bytes, sum, secret }
    }

    fn put(&mut self, inode: u64, at: u64, extent: Extent) -> Result<()> {
        self.state.put(inode, at, extent)?;
        let length = extent.bytes as u32;
        // One record for what follows in the file and in its pack.
        if let Some(Record::Extent { inode: of, at: start, bytes, pack, pack_at }) =
            self.pending.last_mut()
            && (*of, *pack) == (inode, extent.pack.1)
            && *start + u64::from(*bytes) == at
            && *pack_at + *bytes == extent.pack_at
        {
            *bytes += length;
            return Ok(());
        }
        let (pack, pack_at) = (extent.pack.1, extent.pack_at);
        self.pending.push(Record::Extent { inode, at, bytes: length, pack, pack_at });
        Ok(())
    }
}

/// Where the bytes of a range are; those in memory are copied, and holes are zeroes.
fn parts_of(core: &Core, inode: &Inode, at: u64, into: &mut [u8]) -> Vec<Part> {
    into.fill(0);
    let end = at + into.len() as u64;
    let first = inode.extents.range(..=at).next_back().map_or(at, |(start, _)| *start);
    let mut parts = Vec::new();
    for (start, extent) in inode.extents.range(first..end) {
        let (from, to) = ((*start).max(at), (start + extent.bytes).min(end));
        if from < to {
            let piece = &mut into[(from - at) as usize..(to - at) as usize];
            let inner = u64::from(extent.pack_at) + (from - start);
            let keeps = match inode.name.starts_with(BULK) {
                true => Keeps::Short,
                false => Keeps::All,
            };
            parts.push(part(core, extent.pack, inner, (piece, keeps), (from - at) as usize));
        }
    }
    parts
}

fn part(
    core: &Core,
    id: (u64, u64),
    inner: u64,
    (piece, keeps): (&mut [u8], Keeps),
    from: usize,
) -> Part {
    let range = inner as usize..inner as usize + piece.len();
    // Numbers are a writer's own: a pack of an earlier one may have the number of one that is open.
    let is_own = core.role == Role::Writes(id.0);
    let open = core.open.iter().flatten().find(|open| is_own && open.number == id.1);
    let in_memory = match open {
        Some(open) => open.bytes.get(range),
        None => core.fresh.get(&id).and_then(|bytes| bytes.get(range)),
    };
    if let Some(bytes) = in_memory {
        piece.copy_from_slice(bytes);
        return Part::There;
    }
    let pack: Option<&Pack> = core.state.packs.get(&id).or_else(|| core.past.get(&id));
    let place = match pack.and_then(|pack| Some((pack.inline?, pack.bytes))) {
        Some(((frame, start), bytes)) => {
            let start = u64::from(start);
            let within = (start, start + u64::from(bytes));
            Place {
                name: frame_name(frame),
                at: start + inner,
                within,
                total: None,
                frame: Some(frame),
                sum: pack.map(|pack| pack.sum),
                keeps,
            }
        }
        None => {
            let (plain, keys) = (pack_id(id, false), pack_id(id, true));
            let secret = match pack {
                Some(pack) => pack.secret,
                None => core.state.dropped.contains_key(&keys),
            };
            let object = if secret { keys } else { plain };
            let (name, of) = (object.to_string(), core.state.dropped.get(&object));
            let dropped = of.map(|dropped| dropped.bytes);
            let total = pack.map(|pack| u64::from(pack.bytes)).or(dropped);
            let within = (0, total.unwrap_or(inner + piece.len() as u64));
            let sum = pack.map(|pack| pack.sum);
            let keeps = if secret { Keeps::Nothing } else { keeps };
            Place { name, at: inner, within, total, frame: None, sum, keeps }
        }
    };
    Part::Fetched { from, to: from + piece.len(), place }
}
