//! The object store as the engine sees it, over one that has sealed objects only.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use onefold_core::{
    Error, Kind,
    object::{
        Change, Guard, Held, Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadPart,
        ReadResult, Refusal, Seen, Space, Version, Write,
    },
};

use super::{Sealing, damaged, entry_offset};
use crate::format::{
    BLOCK, CHUNK_MAX, Chunk, MAP_PAGE, OBJECT_MAX, ObjectId,
    catalogue::{CATALOGUE, FORMAT},
    corrupt,
    entry::Entry,
    key::HEAD,
};
#[cfg(feature = "planted-bugs")]
use crate::rules::Rule;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// One session of a sealed store.
pub(crate) struct SealedStore {
    inner: Arc<dyn ObjectStore>,
    sealing: Arc<Sealing>,
}

/// True for the value that everybody reads: what kind of store it is.
fn is_readable(object: &str, key: &[u8]) -> bool {
    object == CATALOGUE && key == FORMAT
}

/// What is asked of the store for one read of the engine's.
struct Asked {
    read: Read,
    /// The part with the map of a metadata object whose data is read.
    map: Option<usize>,
    /// The parts with attribute and data of a chunk object of which one is read.
    chunk: Option<(Chunk, usize, usize)>,
}

impl Sealing {
    fn value_in(&self, object: &str, key: &[u8], value: &[u8]) -> Result<Vec<u8>, Error> {
        if is_readable(object, key) && !value.is_empty() {
            return Ok([value, &self.prove(object, key, value)?].concat());
        }
        self.seal_value(object, key, value)
    }

    fn value_out(&self, object: &str, key: &[u8], value: &[u8]) -> Result<Vec<u8>, Error> {
        if is_readable(object, key) && !value.is_empty() {
            let (bytes, tag) = super::tag_of(value).ok_or_else(|| damaged(object))?;
            if self.prove(object, key, bytes)? != tag {
                return Err(damaged(object));
            }
            return Ok(bytes.to_vec());
        }
        self.open_value(object, key, value)
    }

    /// Opens keys and values of an object.
    ///
    /// # Errors
    /// `Corrupt`: one of them was not sealed for this object.
    pub fn open_pairs(&self, object: &str, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Pairs, Error> {
        let open = |(key, value): &(Vec<u8>, Vec<u8>)| {
            let key = self.open_key(object, key)?;
            let value = self.value_out(object, &key, value)?;
            Ok((key, value))
        };
        pairs.iter().map(open).collect()
    }

    /// Opens the bytes of a metadata object that begin at a multiple of 4 KiB, by the entries of its
    /// map. What no entry has stays as it is.
    ///
    /// # Errors
    /// `Corrupt`: a block is not the one that its entry names.
    pub fn open_data(
        &self,
        object: ObjectId,
        entries: &BTreeMap<u32, Entry>,
        at: u32,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let end = at + bytes.len() as u32;
        for (offset, entry) in entries.range(..end) {
            let blocks = (0..entry.length.div_ceil(BLOCK)).filter(|n| entry.mask >> n & 1 == 1);
            for block in blocks {
                let (start, sum) = (offset + block * BLOCK, entry.sums.get(block));
                if start < at || start >= end {
                    continue;
                }
                let from = (start - at) as usize;
                let opened = match bytes.get_mut(from..from + BLOCK as usize) {
                    Some(content) => self.open_block(object, start / BLOCK, sum, content)?,
                    None => sum == 0,
                };
                if !opened {
                    return Err(corrupt(format_args!(
                        "the block at {start} of object {object} is damaged"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The map entries among keys and values.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn entries(
        object: &str,
        pairs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<BTreeMap<u32, Entry>, Error> {
        let decode = |(key, value): &(Vec<u8>, Vec<u8>)| {
            let (id, offset) = entry_offset(object, key)?;
            Some(Entry::decode(id, offset, value).map(|entry| (offset, entry)))
        };
        pairs.iter().filter_map(decode).collect()
    }

    /// The operation that does the same on sealed objects.
    pub(crate) fn seal_write(&self, op: &Write) -> Result<Write, Error> {
        let object = op.object.name.as_str();
        let guard = |guard: &Guard| {
            Ok(match guard {
                Guard::Omap(key, value) => {
                    Guard::Omap(self.seal_key(object, key)?, self.value_in(object, key, value)?)
                }
                other => other.clone(),
            })
        };
        let sets = op.changes.iter().filter_map(|change| match change {
            Change::SetOmap(pairs) => Some(pairs.as_slice()),
            _ => None,
        });
        let entries = Sealing::entries(object, &sets.flatten().cloned().collect::<Vec<_>>())?;
        let head = op.changes.iter().find_map(|change| match change {
            Change::SetXattr(HEAD, head) => Some(head.as_slice()),
            _ => None,
        });
        let mut changes = Vec::new();
        for change in &op.changes {
            changes.extend(match change {
                Change::SetOmap(pairs) => {
                    let seal = |(key, value): &(Vec<u8>, Vec<u8>)| {
                        Ok((self.seal_key(object, key)?, self.value_in(object, key, value)?))
                    };
                    vec![Change::SetOmap(pairs.iter().map(seal).collect::<Result<_, Error>>()?)]
                }
                Change::DropOmap(keys) => {
                    let keys = keys.iter().map(|key| self.seal_key(object, key));
                    vec![Change::DropOmap(keys.collect::<Result<_, Error>>()?)]
                }
                Change::Write(at, bytes) => {
                    vec![Change::Write(*at, self.seal_data(object, &entries, *at, bytes)?)]
                }
                Change::Full(bytes) => match (Chunk::parse(object), head) {
                    (Some(chunk), Some(head)) => {
                        let (head, data) = self.seal_chunk(&chunk, head, bytes)?;
                        vec![Change::Full(data), Change::SetXattr(HEAD, head)]
                    }
                    _ => vec![Change::Full(self.seal_data(object, &entries, 0, bytes)?)],
                },
                // The last block of a chunk is a whole one.
                Change::Zero(at, bytes) => {
                    let end = (at + bytes).next_multiple_of(BLOCK.into());
                    vec![Change::Zero(*at, end - at)]
                }
                // It is set with the data.
                Change::SetXattr(HEAD, _) => Vec::new(),
                other => vec![other.clone()],
            });
        }
        Ok(Write {
            object: self.name_in(&op.object)?,
            guards: op.guards.iter().map(guard).collect::<Result<_, Error>>()?,
            changes,
        })
    }

    /// Seals whole blocks by the sums that entries of the same operation have. Without them nobody could
    /// read the blocks, so the operation is refused.
    fn seal_data(
        &self,
        object: &str,
        entries: &BTreeMap<u32, Entry>,
        at: u64,
        bytes: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let refused = |why: &str| Error::new(Kind::Io, format!("object {object}: {why}"));
        let id = ObjectId::parse(object).ok_or_else(|| refused("it has no data"))?;
        let first = (at / u64::from(BLOCK)) as u32;
        if !at.is_multiple_of(BLOCK.into()) || !bytes.len().is_multiple_of(BLOCK as usize) {
            return Err(refused("a block is written in part"));
        }
        let sum_of = |block: u32| {
            let at = block * BLOCK;
            let (offset, entry) = entries.range(..=at).next_back()?;
            let within = (at - offset) / BLOCK;
            let stands = at < offset + entry.length && entry.mask >> within & 1 == 1;
            Some(entry.sums.get(within)).filter(|sum| stands && *sum != 0)
        };
        let blocks = (bytes.len() / BLOCK as usize) as u32;
        let sums: Option<Vec<u64>> = (first..first + blocks).map(sum_of).collect();
        let sums = sums.ok_or_else(|| refused("a block has no entry in the same operation"))?;
        let mut bytes = bytes.to_vec();
        self.seal_blocks(id, first, &sums, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn name_in(&self, object: &ObjectName) -> Result<ObjectName, Error> {
        Ok(ObjectName { pool: object.pool, name: self.seal_name(&object.name)? })
    }
}

impl SealedStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, sealing: Arc<Sealing>) -> SealedStore {
        SealedStore { inner, sealing }
    }

    fn asked(&self, op: &Read) -> Result<Asked, Error> {
        let object = op.object.name.as_str();
        let mut parts = Vec::with_capacity(op.parts.len() + 1);
        let reads_data = op.parts.iter().any(|part| matches!(part, ReadPart::Data(..)));
        let reads_head = op.parts.contains(&ReadPart::Xattr(HEAD));
        for part in &op.parts {
            parts.push(match part {
                ReadPart::Keys(keys) => {
                    let keys = keys.iter().map(|key| self.sealing.seal_key(object, key));
                    ReadPart::Keys(keys.collect::<Result<_, Error>>()?)
                }
                ReadPart::Page(after, most) => {
                    ReadPart::Page(self.sealing.seal_key(object, after)?, *most)
                }
                ReadPart::Data(at, bytes) if ObjectId::parse(object).is_some() => {
                    let (start, end) = blocks_around(*at, *bytes);
                    ReadPart::Data(start, end - start)
                }
                other => other.clone(),
            });
        }
        let mut asked = Asked { read: op.clone(), map: None, chunk: None };
        if ObjectId::parse(object).is_some() && reads_data {
            let whole = |part: &ReadPart| *part == ReadPart::Page(Vec::new(), MAP_PAGE);
            asked.map = Some(parts.iter().position(whole).unwrap_or(parts.len()));
            if asked.map == Some(parts.len()) {
                parts.push(ReadPart::Page(Vec::new(), MAP_PAGE));
            }
        }
        if let Some(chunk) = Chunk::parse(object).filter(|_| reads_data || reads_head) {
            let mut place = |found: Option<usize>, part: ReadPart| {
                found.unwrap_or_else(|| {
                    parts.push(part);
                    parts.len() - 1
                })
            };
            let head = op.parts.iter().position(|part| *part == ReadPart::Xattr(HEAD));
            let data = op.parts.iter().position(|part| matches!(part, ReadPart::Data(..)));
            let head = place(head, ReadPart::Xattr(HEAD));
            let data = place(data, ReadPart::Data(0, 2 * u64::from(CHUNK_MAX)));
            parts[data] = ReadPart::Data(0, 2 * u64::from(CHUNK_MAX));
            asked.chunk = Some((chunk, head, data));
        }
        asked.read = Read { object: self.sealing.name_in(&op.object)?, parts };
        Ok(asked)
    }

    fn opened(&self, op: &Read, asked: &Asked, answer: ReadResult) -> Result<ReadResult, Error> {
        let object = op.object.name.as_str();
        let mut seen = Vec::with_capacity(op.parts.len());
        let map = match (asked.map, ObjectId::parse(object)) {
            (Some(at), Some(id)) => {
                let pairs = self.sealing.open_pairs(object, answer.pairs(at).0)?;
                Some((id, Sealing::entries(object, &pairs)?))
            }
            _ => None,
        };
        let chunk = match asked.chunk {
            Some((chunk, head, data)) => {
                let head = answer.xattr(head).ok_or_else(|| damaged(object))?;
                Some(self.sealing.open_chunk(&chunk, head, answer.data(data))?)
            }
            None => None,
        };
        for (n, part) in op.parts.iter().enumerate() {
            let one = answer.seen.get(n).cloned().unwrap_or(Seen::Data(Vec::new()));
            seen.push(match (part, one, &map, &chunk) {
                (ReadPart::Keys(_), Seen::Pairs { pairs, more }, ..) => {
                    let mut pairs = self.sealing.open_pairs(object, &pairs)?;
                    pairs.sort();
                    Seen::Pairs { pairs, more }
                }
                (ReadPart::Page(..), Seen::Pairs { pairs, more }, ..) => {
                    Seen::Pairs { pairs: self.sealing.open_pairs(object, &pairs)?, more }
                }
                (ReadPart::Data(at, bytes), Seen::Data(mut data), Some((id, entries)), _) => {
                    let (start, end) = blocks_around(*at, *bytes);
                    let there = data.len();
                    // A block that should be there and is cut off is damage, and no zeroes.
                    let end = end.min(OBJECT_MAX.into()).max(start);
                    data.resize(there.max((end - start) as usize), 0);
                    self.sealing.open_data(*id, entries, start as u32, &mut data)?;
                    data.truncate(there);
                    let from = ((at - start) as usize).min(data.len());
                    let to = (from as u64).saturating_add(*bytes).min(data.len() as u64) as usize;
                    Seen::Data(data[from..to].to_vec())
                }
                (ReadPart::Data(at, bytes), _, _, Some((_, body))) => {
                    let from = (*at).min(body.len() as u64) as usize;
                    let to = at.saturating_add(*bytes).min(body.len() as u64) as usize;
                    Seen::Data(body[from..to].to_vec())
                }
                (ReadPart::Xattr(HEAD), _, _, Some((head, _))) => Seen::Xattr(Some(head.clone())),
                (_, one, ..) => one,
            });
        }
        Ok(ReadResult { version: answer.version, seen })
    }
}

/// The whole blocks around a range.
fn blocks_around(at: u64, bytes: u64) -> (u64, u64) {
    let block = u64::from(BLOCK);
    (at / block * block, at.saturating_add(bytes).div_ceil(block).saturating_mul(block))
}

/// Does what those that could be translated ask for, and keeps the order of all.
fn each<S, T>(
    asked: &[Result<S, Error>],
    send: impl FnOnce(Vec<&S>) -> Vec<Result<T, Refusal>>,
) -> Vec<Result<T, Refusal>> {
    let mut answers = send(asked.iter().flatten().collect()).into_iter();
    let one = |asked: &Result<S, Error>| match asked {
        Ok(_) => answers.next().unwrap_or(Err(Refusal::Unknown)),
        Err(error) => Err(Refusal::Failed(error.clone())),
    };
    asked.iter().map(one).collect()
}

impl ObjectStore for SealedStore {
    fn kind(&self, pool: Pool) -> PoolKind {
        self.inner.kind(pool)
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let sealed: Vec<Result<Write, Error>> =
            batch.iter().map(|op| self.sealing.seal_write(op)).collect();
        #[cfg(feature = "planted-bugs")]
        if !self.sealing.keeps(Rule::SumsSetWithTheirBlocks) {
            return super::broken::write_apart(&*self.inner, &sealed);
        }
        each(&sealed, |some| self.inner.write(&some.into_iter().cloned().collect::<Vec<_>>()))
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let asked: Vec<Result<Asked, Error>> = batch.iter().map(|op| self.asked(op)).collect();
        let answers = each(&asked, |some| {
            self.inner.read(&some.into_iter().map(|one| one.read.clone()).collect::<Vec<_>>())
        });
        let open = |((op, asked), answer): ((&Read, &Result<Asked, Error>), _)| {
            let answer: ReadResult = answer?;
            let asked = asked.as_ref().map_err(|error| Refusal::Failed(error.clone()))?;
            self.opened(op, asked, answer).map_err(Refusal::Failed)
        };
        batch.iter().zip(&asked).zip(answers).map(open).collect()
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        let mut page = self.inner.list(pool, from, most)?;
        for name in &mut page.names {
            *name = self.sealing.open_name(name);
        }
        Ok(page)
    }

    fn lists_by_name(&self) -> bool {
        self.inner.lists_by_name()
    }

    fn keep_place(&self, pool: Pool, from: &str) -> Option<String> {
        self.inner.keep_place(pool, from)
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.inner.lock(object, lock, cookie, lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.inner.unlock(object, lock, cookie)
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        self.inner.holder(object, lock)
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.inner.break_lock(object, lock, holder)
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.inner.fence(identity)
    }

    fn may_fence(&self) -> Result<(), Refusal> {
        self.inner.may_fence()
    }

    fn is_identity(&self, text: &str) -> bool {
        self.inner.is_identity(text)
    }

    fn time(&self) -> Duration {
        self.inner.time()
    }

    fn monotonic(&self) -> Duration {
        self.inner.monotonic()
    }

    fn is_exclusive(&self) -> bool {
        self.inner.is_exclusive()
    }

    fn batches(&self) -> usize {
        self.inner.batches()
    }

    fn recovers(&self) -> bool {
        self.inner.recovers()
    }

    fn held(&self, pool: Pool) -> Result<Option<Held>, Refusal> {
        self.inner.held(pool)
    }

    fn space(&self) -> Result<Space, Refusal> {
        self.inner.space()
    }
}
