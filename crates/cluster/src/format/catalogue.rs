//! The catalogue: the format of the store, and the names of its volumes and objects.

use onefold_core::{Error, Kind, Result, object::PoolKind};

use super::{BLOCK, CHUNK_MAX, OBJECT_MAX, corrupt, least_cut};

/// The object that says what the store is.
pub(crate) const CATALOGUE: &str = "catalogue";

/// Its key of the format.
pub(crate) const FORMAT: &[u8] = b"format";

/// The version of the format.
const VERSION: u16 = 1;

const MAGIC: &[u8; 8] = b"ONEFOLDC";

/// The feature of volumes that are cut by their content: maps change their cuts.
const VOLUMES_BY_CONTENT: u64 = 1;

/// The feature of names that were changed: an older version would take what is half renamed for
/// damage, and a renamed volume for nobody's.
const RENAMES: u64 = 2;

/// The feature of snapshots: an older version would take layers for what nobody needs, and would read zeroes
/// where a volume inherits.
const LAYERS: u64 = 8;

/// The feature of stamps in the parents of volumes: an older version would take such a parent for damage.
const STAMPED_PARENTS: u64 = 16;

/// The feature of snapshots that are received from another store: an older version would take what comes of one for
/// nobody's, and would let clients write to a replica.
const RECEIVED: u64 = 32;

/// The feature of stores that are sealed at rest.
const SEALED: u64 = 4;

/// The features that this version knows.
const KNOWN: u64 = VOLUMES_BY_CONTENT | RENAMES | SEALED | LAYERS | STAMPED_PARENTS | RECEIVED;

/// Most chunks of an object that is cut by its content. Runs that end at places never written, and
/// places not cut yet, can add a third more; a map holds 256.
const CUTS_MAX: u32 = 192;

/// How bytes that are put are cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of the chunk size.
    Static,
    /// At places that the content decides, of the chunk size on average.
    Content,
}

/// The format of a store, fixed when the store is made, but for `renames`, `layers`, `stamped_parents` and `received`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The store's id.
    pub id: [u8; 16],
    /// The key of the hashes that name chunks.
    pub secret: [u8; 32],
    /// Bytes of a chunk of a volume: 16, 32 or 64 KiB.
    pub chunk_bytes: u32,
    /// Bytes of a metadata object.
    pub object_bytes: u32,
    /// Objects of the dirty list, and of the names.
    pub shards: u16,
    /// How objects that are put are cut.
    pub cut: Cut,
    /// How volumes are cut; by content it is at multiples of 4 KiB.
    pub volume_cut: Cut,
    /// Chunks are compressed where that saves space.
    pub compress: bool,
    /// Names of volumes or objects were changed, for the first time or later.
    pub renames: bool,
    /// Volumes had snapshots or clones, for the first time or later.
    pub layers: bool,
    /// The parents of volumes have stamps, or some of them.
    pub stamped_parents: bool,
    /// Snapshots were received from another store, for the first time or later.
    pub received: bool,
    /// The store is sealed at rest; its secret is zero.
    pub sealed: bool,
    /// The kind of the chunk pool.
    pub chunks: PoolKind,
}

impl Format {
    /// The usual one with chunks of 32 KiB.
    #[must_use]
    pub fn new(id: [u8; 16], secret: [u8; 32], chunks: PoolKind) -> Format {
        Format {
            id,
            secret,
            chunk_bytes: 32 << 10,
            object_bytes: OBJECT_MAX,
            shards: 256,
            cut: Cut::Content,
            volume_cut: Cut::Static,
            compress: true,
            renames: false,
            layers: false,
            stamped_parents: false,
            received: false,
            sealed: false,
            chunks,
        }
    }

    /// Checks its numbers.
    ///
    /// # Errors
    /// `InvalidInput` with a sentence.
    pub fn check(&self) -> Result<()> {
        let chunk = self.chunk_bytes;
        let fits = chunk.is_multiple_of(BLOCK)
            && (BLOCK..=CHUNK_MAX).contains(&chunk)
            && (chunk..=OBJECT_MAX).contains(&self.object_bytes)
            && self.object_bytes.is_multiple_of(chunk);
        let entries = self.object_bytes / chunk.max(1);
        if !fits || entries > 256 || !(1..=256).contains(&self.shards) {
            return Err(Error::new(
                Kind::InvalidInput,
                "chunks have 16, 32 or 64 KiB, and divide the object",
            ));
        }
        if self.volume_cut == Cut::Content && self.object_bytes / least_cut(chunk) > CUTS_MAX {
            return Err(Error::new(
                Kind::InvalidInput,
                "volumes that are cut by their content need chunks of 32 or 64 KiB",
            ));
        }
        Ok(())
    }

    /// The value of the catalogue.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut value = MAGIC.to_vec();
        value.extend(VERSION.to_le_bytes());
        let by_content = if self.volume_cut == Cut::Content { VOLUMES_BY_CONTENT } else { 0 };
        let renames = if self.renames { RENAMES } else { 0 };
        let sealed = if self.sealed { SEALED } else { 0 };
        let layers = if self.layers { LAYERS } else { 0 };
        let stamped = if self.stamped_parents { STAMPED_PARENTS } else { 0 };
        let received = if self.received { RECEIVED } else { 0 };
        let features = by_content | renames | sealed | layers | stamped | received;
        value.extend(features.to_le_bytes());
        // No feature exists yet that an older version may ignore when it only reads.
        value.extend([0; 8]);
        value.extend(self.id);
        value.extend(self.secret);
        value.extend(self.chunk_bytes.to_le_bytes());
        value.extend(self.object_bytes.to_le_bytes());
        value.extend(self.shards.to_le_bytes());
        value.push(u8::from(self.cut == Cut::Content));
        value.push(u8::from(self.compress));
        value.push(u8::from(self.chunks == PoolKind::Erasure));
        value
    }

    /// Decodes the format from its value in the catalogue.
    ///
    /// # Errors
    /// `Corrupt`: the value is damaged. `Unsupported`: a newer version wrote it.
    pub fn decode(value: &[u8]) -> Result<Format> {
        let bad = || corrupt("the catalogue of the store is damaged");
        let array = |at: usize, bytes: usize| value.get(at..at + bytes).ok_or_else(bad);
        if array(0, 8)? != MAGIC {
            return Err(bad());
        }
        let version = u16::from_le_bytes(array(8, 2)?.try_into().map_err(|_| bad())?);
        let features = u64::from_le_bytes(array(10, 8)?.try_into().map_err(|_| bad())?);
        if version != VERSION
            || features & !KNOWN != 0
            || array(18, 8)?.iter().any(|byte| *byte != 0)
        {
            return Err(Error::new(
                Kind::Unsupported,
                format!("the store was made by a newer version (format {version})"),
            ));
        }
        let number = |at: usize| -> Result<u32> {
            Ok(u32::from_le_bytes(array(at, 4)?.try_into().map_err(|_| bad())?))
        };
        let flag = |at: usize| -> Result<bool> { Ok(*value.get(at).ok_or_else(bad)? != 0) };
        let format = Format {
            id: array(26, 16)?.try_into().map_err(|_| bad())?,
            secret: array(42, 32)?.try_into().map_err(|_| bad())?,
            chunk_bytes: number(74)?,
            object_bytes: number(78)?,
            shards: u16::from_le_bytes(array(82, 2)?.try_into().map_err(|_| bad())?),
            cut: if flag(84)? { Cut::Content } else { Cut::Static },
            volume_cut: if features & VOLUMES_BY_CONTENT == 0 { Cut::Static } else { Cut::Content },
            compress: flag(85)?,
            renames: features & RENAMES != 0,
            layers: features & LAYERS != 0,
            stamped_parents: features & STAMPED_PARENTS != 0,
            received: features & RECEIVED != 0,
            sealed: features & SEALED != 0,
            chunks: if flag(86)? { PoolKind::Erasure } else { PoolKind::Replicated },
        };
        format.check().map_err(|_| bad())?;
        Ok(format)
    }
}

/// The kind of thing that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A volume.
    Volume,
    /// An object that was put.
    Put,
}

/// Bytes of a volume, at most: the bitmap in its header has 65,536 keys then.
pub(crate) const VOLUME_MAX: u64 = 128 << 40;

/// A name's value, or what is left to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// A volume or an object that was put.
    pub what: What,
    /// The number: the `volume` of its metadata objects.
    pub id: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// How many objects an object that was put has; how often a volume was resized or renamed.
    pub pieces: u64,
    /// How often an object that was put was renamed; 0 for a volume.
    pub moves: u64,
}

/// Bytes of a value without the count of renames, which only a renamed object has.
const PLAIN_BYTES: usize = 25;

impl Named {
    /// The value of a name.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut value = self.encode_plain();
        if self.moves > 0 {
            value.extend(self.moves.to_le_bytes());
        }
        value
    }

    /// The value without the count of renames.
    pub(crate) fn encode_plain(&self) -> Vec<u8> {
        let mut value = vec![u8::from(self.what == What::Put) + 1];
        [self.id, self.bytes, self.pieces]
            .iter()
            .for_each(|number| value.extend(number.to_le_bytes()));
        value
    }

    /// Decodes the value of a name.
    ///
    /// # Errors
    /// `Corrupt`: the value is damaged.
    pub fn decode(value: &[u8]) -> Result<Named> {
        let (plain, moves) = value.split_at_checked(PLAIN_BYTES).ok_or_else(damaged)?;
        let mut named = Named::decode_plain(plain)?.0;
        if !moves.is_empty() {
            named.moves = u64::from_le_bytes(moves.try_into().map_err(|_| damaged())?);
            if named.moves == 0 || named.what == What::Volume {
                return Err(damaged());
            }
        }
        Ok(named)
    }

    /// Decodes a value without a count of renames, and returns what follows it.
    pub(crate) fn decode_plain(value: &[u8]) -> Result<(Named, &[u8])> {
        let (plain, rest) = value.split_at_checked(PLAIN_BYTES).ok_or_else(damaged)?;
        let number = |at: usize| -> Result<u64> {
            Ok(u64::from_le_bytes(
                plain.get(at..at + 8).ok_or_else(damaged)?.try_into().map_err(|_| damaged())?,
            ))
        };
        let what = match plain.first() {
            Some(1) => What::Volume,
            Some(2) => What::Put,
            _ => return Err(damaged()),
        };
        let named =
            Named { what, id: number(1)?, bytes: number(9)?, pieces: number(17)?, moves: 0 };
        if what == What::Volume && named.bytes > VOLUME_MAX {
            return Err(damaged());
        }
        Ok((named, rest))
    }

    /// The value that it has after one more change of its name or, for a volume, its size. No value
    /// of one number comes back, under no name.
    pub(crate) fn counted(self) -> Result<Named> {
        let next = |count: u64| count.checked_add(1).ok_or_else(damaged);
        Ok(match self.what {
            What::Volume => Named { pieces: next(self.pieces)?, ..self },
            What::Put => Named { moves: next(self.moves)?, ..self },
        })
    }
}

fn damaged() -> Error {
    corrupt("a name in the catalogue is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_comes_back_and_a_newer_one_is_refused() {
        let by_content = Format {
            volume_cut: Cut::Content,
            ..Format::new([1; 16], [2; 32], PoolKind::Replicated)
        };
        assert_eq!(Format::decode(&by_content.encode()).unwrap(), by_content);
        assert!(
            by_content.check().is_ok()
                && Format { chunk_bytes: 16 << 10, ..by_content }.check().is_err()
        );
        let format = Format::new([1; 16], [2; 32], PoolKind::Erasure);
        let value = format.encode();
        assert_eq!(Format::decode(&value).unwrap(), format);
        for (at, kind) in [
            (0, Kind::Corrupt),
            (8, Kind::Unsupported),
            (12, Kind::Unsupported),
            (75, Kind::Corrupt),
        ] {
            let mut other = value.clone();
            other[at] ^= 0x81;
            assert_eq!(Format::decode(&other).unwrap_err().kind(), kind, "byte {at}");
        }
        assert!((0..value.len()).all(|length| Format::decode(&value[..length]).is_err()));
        let renames = Format { renames: true, ..format };
        assert_eq!(Format::decode(&renames.encode()).unwrap(), renames);
        let named = Named { what: What::Put, id: 5, bytes: 6, pieces: 7, moves: 0 };
        assert_eq!(Named::decode(&named.encode()).unwrap(), named);
        let renamed = named.counted().unwrap();
        assert_eq!((named.encode().len(), renamed.encode().len()), (25, 33));
        assert_eq!(Named::decode(&renamed.encode()).unwrap(), renamed);
        assert!(Named::decode(&[&named.encode()[..], &[0; 8]].concat()).is_err());
    }

    #[test]
    fn rule_09_objects_without_bytes_are_damage() {
        let format = Format::new([1; 16], [2; 32], PoolKind::Replicated);
        for (object_bytes, is_one) in [(0, false), (32 << 10, true), (OBJECT_MAX, true)] {
            let value = Format { object_bytes, ..format.clone() }.encode();
            assert_eq!(Format::decode(&value).is_ok(), is_one, "{object_bytes}");
        }
    }
}
