//! A store that is sealed at rest ([decision
//! 64](../../../docs/decisions/0064-sealed-clusters.md)): what stands between the engine and the object
//! store. The engine's keys, values, names and data go in, and only sealed ones come out.
//!
//! | module | what |
//! |---|---|
//! | this one | the working keys, and how each kind of thing is sealed and opened |
//! | [`hashing`] | the hashes that the engine asks for, in plain stores too |
//! | [`store`] | the object store as the engine sees it, over the one that has sealed objects |
//! | [`keys`] | the key area: who is asked for the key, which copy counts, changes of keys |
//!
//! *Invariant:* equal stays equal. Keys, values and names are sealed by AES-256-GCM-SIV with a nonce that
//! is a keyed hash of their place, so that operations go on comparing them.
//!
//! *Invariant:* CTR seals only bytes whose keyed hash is in the counter. That hash is in the map entry,
//! which the same operation sets.

#[cfg(feature = "planted-bugs")]
mod broken;
pub(crate) mod hashing;
pub(crate) mod keys;
pub(crate) mod store;

use onefold_core::{Error, Kind, Result, hex_digits};
use onefold_seal::{
    CtrKey, GcmKey, Gear, Keys, Secret, SivKey, TAG_BYTES, Use, block_counter, content_nonce,
    digest,
};

use crate::{
    format::{
        BLOCK, CHUNK_MAX, Chunk, ObjectId,
        catalogue::CATALOGUE,
        corrupt,
        key::{self, sevens, unsevens},
    },
    rules::Rule,
    settings::Settings,
};

/// Keys and values of names are filled up to multiples of this.
const NAME_STEP: usize = 32;

/// Bytes of the attribute of a chunk object, as the engine knows it.
const HEAD_BYTES: usize = 5;

/// Bytes of that attribute that are sealed: how many bytes are stored, and the engine's.
const HEAD_SEALED: usize = 4 + HEAD_BYTES;

/// Bytes of a nonce of GCM.
const NONCE_BYTES: usize = 12;

/// Bytes that the name of a chunk object stands for: hash, length and copy.
const CHUNK_NAME: usize = 32 + 3 + 1;

/// The working keys of a sealed store, and what they seal.
pub struct Sealing {
    values: SivKey,
    names: SivKey,
    nonces: Secret,
    chunk_names: Secret,
    chunks: Secret,
    chunk_nonces: Secret,
    blocks: Secret,
    sums: Secret,
    cuts: u64,
    gear: Gear,
    settings: Settings,
}

fn damaged(object: &str) -> Error {
    corrupt(format_args!("object {object} is damaged, or somebody changed it"))
}

fn tag_of(bytes: &[u8]) -> Option<(&[u8], [u8; TAG_BYTES])> {
    let (sealed, tag) = bytes.split_at_checked(bytes.len().checked_sub(TAG_BYTES)?)?;
    Some((sealed, tag.try_into().ok()?))
}

/// Bytes behind their number, filled up with zeroes.
fn filled(bytes: &[u8]) -> Vec<u8> {
    let mut all = (bytes.len() as u16).to_le_bytes().to_vec();
    all.extend(bytes);
    all.resize(all.len().next_multiple_of(NAME_STEP), 0);
    all
}

/// What [`filled`] was given.
fn unfilled(bytes: &[u8]) -> Option<Vec<u8>> {
    let (length, rest) = bytes.split_at_checked(2)?;
    let length = usize::from(u16::from_le_bytes(length.try_into().ok()?));
    rest.get(..length).map(<[u8]>::to_vec)
}

/// True for the shards of names.
fn has_names(object: &str) -> bool {
    object.starts_with("n.")
}

/// Bytes at the front of a key that stay as they are; `None` when all of it does. Names, references and
/// attempts are sealed. Offsets and numbers are not: the host of the store sees which objects change.
fn plain_part(object: &str, key: &[u8]) -> Option<usize> {
    match object.as_bytes().first()? {
        b'n' if has_names(object) && matches!(key.first(), Some(b'n' | b'y')) && key.len() > 1 => {
            Some(1)
        }
        b'c' | b'a' if object.as_bytes().get(1) == Some(&b'.') => {
            key.first().filter(|byte| **byte >= 0x80).map(|_| 0)
        }
        _ => None,
    }
}

impl Sealing {
    /// From the open keys of the store.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses. `Denied`: the store's data have no key any more.
    pub(crate) fn new(keys: &Keys, settings: &Settings) -> Result<Sealing> {
        let domain = keys.domain(0);
        let domain =
            domain.ok_or_else(|| Error::new(Kind::Denied, "the key of the data is gone"))?;
        let cuts = domain.derive(Use::CUTS);
        Ok(Sealing {
            values: SivKey::new(&keys.store_key(Use::CLUSTER_VALUES))?,
            names: SivKey::new(&keys.store_key(Use::CLUSTER_NAMES))?,
            nonces: keys.store_key(Use::CLUSTER_NONCES),
            chunk_names: domain.derive(Use::FINGERPRINTS),
            chunks: domain.derive(Use::CLUSTER_CHUNKS),
            chunk_nonces: domain.derive(Use::CLUSTER_CHUNK_NONCES),
            blocks: domain.derive(Use::CLUSTER_BLOCKS),
            sums: domain.derive(Use::CLUSTER_SUMS),
            cuts: u64::from_le_bytes(first8(&digest(&cuts, &[b"cluster"]))),
            gear: Gear::new(&cuts),
            settings: Settings { keys: Default::default(), ..settings.clone() },
        })
    }

    /// As [`new`](Self::new), for simulators and tests.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[cfg(feature = "planted-bugs")]
    pub fn of(keys: &Keys, settings: &Settings) -> Result<Sealing> {
        Sealing::new(keys, settings)
    }

    fn keeps(&self, rule: Rule) -> bool {
        self.settings.keeps(rule)
    }

    /// The key of the hashes that name chunks.
    pub(crate) fn chunk_secret(&self) -> &[u8; 32] {
        self.chunk_names.expose()
    }

    /// The key of the cuts of volumes.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts
    }

    /// What cuts streams.
    pub(crate) fn gear(&self) -> &Gear {
        &self.gear
    }

    /// The number from which the shard of a name follows.
    pub(crate) fn name_number(&self, name: &str) -> u64 {
        u64::from_le_bytes(first8(&digest(&self.nonces, &[b"shard", name.as_bytes()])))
    }

    fn nonce(&self, parts: &[&[u8]]) -> [u8; NONCE_BYTES] {
        content_nonce(&self.nonces, parts)
    }

    /// Where a value is: its object and key, for its nonce and its tag.
    fn place<'a>(&self, object: &'a str, key: &'a [u8]) -> [&'a [u8]; 2] {
        // The catalogue was made before anybody broke a rule.
        match self.keeps(Rule::ValuesSealedForTheirPlace) || object == CATALOGUE {
            true => [object.as_bytes(), key],
            false => [b"", b""],
        }
    }

    /// Seals the value of a key. An empty one, which is that of an absent key, stays empty.
    pub(crate) fn seal_value(&self, object: &str, key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        if value.is_empty() {
            return Ok(Vec::new());
        }
        let [object_part, key_part] = self.place(object, key);
        let mut bytes = if has_names(object) { filled(value) } else { value.to_vec() };
        let nonce = self.nonce(&[b"value", object_part, key_part]);
        let beside = [object_part, &[0], key_part].concat();
        let tag = self.values.seal_at(nonce, &beside, &mut bytes)?;
        bytes.extend(tag);
        Ok(bytes)
    }

    /// Opens the value of a key.
    ///
    /// # Errors
    /// `Corrupt`: it was not sealed for this place.
    pub fn open_value(&self, object: &str, key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        if value.is_empty() {
            return Ok(Vec::new());
        }
        let [object_part, key_part] = self.place(object, key);
        let (bytes, tag) = tag_of(value).ok_or_else(|| damaged(object))?;
        let mut bytes = bytes.to_vec();
        let nonce = self.nonce(&[b"value", object_part, key_part]);
        let beside = [object_part, &[0], key_part].concat();
        if !self.values.open_at(nonce, &beside, &mut bytes, &tag) {
            return Err(damaged(object));
        }
        match has_names(object) {
            true => unfilled(&bytes).ok_or_else(|| damaged(object)),
            false => Ok(bytes),
        }
    }

    /// The tag that proves bytes which everybody can read.
    pub(crate) fn prove(&self, object: &str, key: &[u8], bytes: &[u8]) -> Result<[u8; TAG_BYTES]> {
        let beside = [object.as_bytes(), &[0], key, &[0], bytes].concat();
        self.values.seal_at(self.nonce(&[b"proof", object.as_bytes(), key]), &beside, &mut [])
    }

    /// Seals a key, as far as keys of the object are sealed.
    pub(crate) fn seal_key(&self, object: &str, key: &[u8]) -> Result<Vec<u8>> {
        let Some(plain) = plain_part(object, key) else { return Ok(key.to_vec()) };
        if has_names(object) && !self.keeps(Rule::NamesSealed) {
            return Ok(key.to_vec());
        }
        let (front, rest) = key.split_at(plain);
        let mut bytes = if has_names(object) { filled(rest) } else { rest.to_vec() };
        let beside = [object.as_bytes(), &[0], front].concat();
        let tag = self.names.seal_at(
            self.nonce(&[b"key", object.as_bytes(), front]),
            &beside,
            &mut bytes,
        )?;
        bytes.extend(tag);
        Ok([front, &sevens(&bytes)].concat())
    }

    /// Opens a key.
    ///
    /// # Errors
    /// `Corrupt`: it was not sealed for this object.
    pub fn open_key(&self, object: &str, key: &[u8]) -> Result<Vec<u8>> {
        let Some(plain) = plain_part(object, key) else { return Ok(key.to_vec()) };
        if has_names(object) && !self.keeps(Rule::NamesSealed) {
            return Ok(key.to_vec());
        }
        let (front, rest) = key.split_at(plain);
        let opened = unsevens(rest, rest.len() * 7 / 8).and_then(|bytes| {
            let (bytes, tag) = tag_of(&bytes)?;
            let mut bytes = bytes.to_vec();
            let beside = [object.as_bytes(), &[0], front].concat();
            let nonce = self.nonce(&[b"key", object.as_bytes(), front]);
            let is_ours = self.names.open_at(nonce, &beside, &mut bytes, &tag);
            let rest = if has_names(object) { unfilled(&bytes) } else { Some(bytes) };
            rest.filter(|_| is_ours)
        });
        opened.map(|rest| [front, &rest].concat()).ok_or_else(|| damaged(object))
    }

    /// The name of an object in the store: those of chunks are sealed, so that nobody sees how long a
    /// chunk is.
    pub fn seal_name(&self, name: &str) -> Result<String> {
        let Some(chunk) = Chunk::parse(name) else { return Ok(name.to_owned()) };
        let mut bytes = chunk.id.hash.to_vec();
        bytes.extend(&chunk.id.length.to_le_bytes()[..3]);
        bytes.push(chunk.copy);
        let tag = self.names.seal_at(self.nonce(&[b"chunk"]), b"chunk", &mut bytes)?;
        bytes.extend(tag);
        let hex = hex_digits(bytes);
        Ok(format!("c.0.{hex}"))
    }

    /// The engine's name of an object of the store. A name that was not sealed here stays as it is, and
    /// the engine does not know it.
    #[must_use]
    pub fn open_name(&self, name: &str) -> String {
        let open = || {
            let hex = name.strip_prefix("c.0.")?;
            let digits = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            if hex.len() != 2 * (CHUNK_NAME + TAG_BYTES) || !hex.bytes().all(digits) {
                return None;
            }
            let bytes =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
            let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().ok()?;
            let (bytes, tag) = tag_of(&bytes)?;
            let mut bytes = bytes.to_vec();
            if !self.names.open_at(self.nonce(&[b"chunk"]), b"chunk", &mut bytes, &tag) {
                return None;
            }
            let length = u32::from_le_bytes([bytes[32], bytes[33], bytes[34], 0]);
            let id = crate::format::ChunkId { hash: bytes[..32].try_into().ok()?, length };
            Some(Chunk { id, copy: bytes[35] }.name())
        };
        open().unwrap_or_else(|| name.to_owned())
    }

    fn chunk_key(&self, chunk: &Chunk) -> Result<GcmKey> {
        let of = [&chunk.id.hash[..], &chunk.id.length.to_le_bytes()];
        GcmKey::new(&Secret::take(&mut digest(&self.chunks, &of)))
    }

    /// Seals the attribute and the data of a chunk object.
    fn seal_chunk(&self, chunk: &Chunk, head: &[u8], body: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend(head);
        bytes.resize(HEAD_SEALED, 0);
        bytes.extend(body);
        if self.keeps(Rule::ChunksFilledUp) {
            let blocks = body.len().next_multiple_of(BLOCK as usize);
            bytes.resize(HEAD_SEALED + blocks, 0);
        }
        let name = chunk.name();
        let nonce = content_nonce(&self.chunk_nonces, &[name.as_bytes(), &bytes]);
        let tag = self.chunk_key(chunk)?.seal(nonce, name.as_bytes(), &mut bytes)?;
        let data = bytes.split_off(HEAD_SEALED);
        Ok(([&nonce[..], &bytes, &tag].concat(), data))
    }

    /// Opens the attribute and the data of a chunk object.
    ///
    /// # Errors
    /// `Corrupt`: they were not sealed for this chunk.
    pub fn open_chunk(
        &self,
        chunk: &Chunk,
        head: &[u8],
        data: &[u8],
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let name = chunk.name();
        let bad = || corrupt(format_args!("chunk {name} is damaged"));
        if head.len() != NONCE_BYTES + HEAD_SEALED + TAG_BYTES
            || data.len() > 2 * CHUNK_MAX as usize
        {
            return Err(bad());
        }
        let (nonce, rest) = head.split_at(NONCE_BYTES);
        let (front, tag) = rest.split_at(HEAD_SEALED);
        let mut bytes = [front, data].concat();
        let nonce = nonce.try_into().map_err(|_| bad())?;
        let tag = tag.try_into().map_err(|_| bad())?;
        if !self.chunk_key(chunk)?.open(nonce, name.as_bytes(), &mut bytes, &tag) {
            return Err(bad());
        }
        let stored = u32::from_le_bytes(bytes[..4].try_into().map_err(|_| bad())?) as usize;
        let body = bytes.get(HEAD_SEALED..HEAD_SEALED + stored).ok_or_else(bad)?.to_vec();
        Ok((bytes[4..HEAD_SEALED].to_vec(), body))
    }

    /// The sum of a block of 4 KiB that stands in a metadata object; never 0.
    pub(crate) fn sum(&self, object: ObjectId, block: u32, content: &[u8]) -> u64 {
        let parts = [&object.bytes()[..], &block.to_le_bytes(), content];
        u64::from_le_bytes(first8(&digest(&self.sums, &parts))).max(1)
    }

    fn block_key(&self, object: ObjectId) -> Result<CtrKey> {
        CtrKey::new(&Secret::take(&mut digest(&self.blocks, &[&object.bytes()])))
    }

    fn counter(&self, block: u32, sum: u64) -> [u8; 16] {
        block_counter(if self.keeps(Rule::CountersHaveSum) { sum } else { 0 }, block.into())
    }

    /// Seals blocks of an object, whose sums their map entry has.
    fn seal_blocks(
        &self,
        object: ObjectId,
        first: u32,
        sums: &[u64],
        bytes: &mut [u8],
    ) -> Result<()> {
        if !self.keeps(Rule::BlocksSealed) {
            return Ok(());
        }
        let key = self.block_key(object)?;
        for ((number, content), sum) in (first..).zip(bytes.chunks_mut(BLOCK as usize)).zip(sums) {
            debug_assert_eq!(*sum, self.sum(object, number, content), "block {number}");
            key.seal(self.counter(number, *sum), content)?;
        }
        Ok(())
    }

    /// Opens one block by its sum; false when it is not what was sealed. A trimmed block has the sum 0: it
    /// is zeroes, whatever is stored in its place.
    pub(crate) fn open_block(
        &self,
        object: ObjectId,
        block: u32,
        sum: u64,
        bytes: &mut [u8],
    ) -> Result<bool> {
        if sum == 0 {
            if self.keeps(Rule::TrimmedBlocksZeroed) {
                bytes.fill(0);
            }
            return Ok(true);
        }
        if self.keeps(Rule::BlocksSealed) {
            self.block_key(object)?.open(self.counter(block, sum), bytes)?;
        }
        let is_ours = self.sum(object, block, bytes) == sum;
        Ok(is_ours || !self.keeps(Rule::StandingBlocksCompared))
    }
}

fn first8(bytes: &[u8; 32]) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    first
}

/// The offset of the map entry that a key of a metadata object stands for.
fn entry_offset(object: &str, key: &[u8]) -> Option<(ObjectId, u32)> {
    Some((ObjectId::parse(object)?, key::offset(key)?))
}
