//! Shards of names: which shard has a name, and the keys of a shard.
//!
//! | key | what |
//! |---|---|
//! | `n` and a name | the volume or object that the name stands for, or an arrival |
//! | `x` and a number | the record of a volume or object without a name |
//! | `y` and a name | the name has an arrival |
//! | `z` and a number | the departure of a volume or object from a name in this shard |
//! | `c` | how many records the shard ever had |
//! | `r` | how many steps of renames the shard counted |

use onefold_core::{
    Error, Kind, Result,
    object::{ObjectName, ReadPart, Refusal},
};

use crate::{format::key, kernel::Kernel};

pub(super) const NAME: u8 = b'n';
pub(super) const RECORD: u8 = b'x';
pub(super) const ARRIVING: u8 = b'y';
pub(super) const LEFT: u8 = b'z';

/// How many records a shard ever had.
pub(super) const COUNT: &[u8] = b"c";

/// How many steps of renames a shard counted: arrivals, and names that were left.
pub(super) const STEPS: &[u8] = b"r";

/// Most bytes of a name.
const NAME_MAX: usize = 255;

/// Keys and their values.
pub(super) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

pub(super) fn name_key(name: &str) -> Vec<u8> {
    [&[NAME], name.as_bytes()].concat()
}

pub(super) fn arriving_key(name: &str) -> Vec<u8> {
    [&[ARRIVING], name.as_bytes()].concat()
}

pub(super) fn left_key(id: u64) -> Vec<u8> {
    key::numbered(LEFT, id)
}

pub(super) fn valid(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a name has 1 to {NAME_MAX} bytes and no control characters"),
        ));
    }
    Ok(())
}

/// The number of the shard that a name is in.
pub(super) fn number_of(kernel: &Kernel, name: &str) -> u64 {
    kernel.hashing().name_number(name) % u64::from(kernel.format().shards)
}

/// The shard that a name is in.
pub(super) fn shard_of(kernel: &Kernel, name: &str) -> ObjectName {
    ObjectName::metadata(format!("n.{:02x}", number_of(kernel, name)))
}

/// All shards.
pub(super) fn shards(kernel: &Kernel) -> Vec<ObjectName> {
    (0..kernel.format().shards)
        .map(|shard| ObjectName::metadata(format!("n.{shard:02x}")))
        .collect()
}

/// Keys of a shard with their values, where they exist; `None` when the shard does not.
pub(super) fn values(
    kernel: &Kernel,
    shard: &ObjectName,
    keys: Vec<Vec<u8>>,
) -> Result<Option<Pairs>, Refusal> {
    match kernel.read_one(shard, vec![ReadPart::Keys(keys)]) {
        Ok(answer) => Ok(Some(answer.pairs(0).0.to_vec())),
        Err(Refusal::Missing) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// The value of a key that was read.
pub(super) fn value_of(pairs: &Pairs, key: &[u8]) -> Option<Vec<u8>> {
    pairs.iter().find(|(found, _)| found == key).map(|(_, value)| value.clone())
}

/// The value of a name.
pub(super) fn name_value(kernel: &Kernel, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let key = name_key(name);
    let pairs = values(kernel, &shard_of(kernel, name), vec![key.clone()])?;
    Ok(pairs.and_then(|pairs| value_of(&pairs, &key)))
}

/// One more than a count of a shard. A count that is absent stands for 0.
pub(super) fn one_more(count: &[u8]) -> Vec<u8> {
    let next = count.try_into().map_or(1, |bytes| u64::from_le_bytes(bytes).wrapping_add(1));
    next.to_le_bytes().to_vec()
}
