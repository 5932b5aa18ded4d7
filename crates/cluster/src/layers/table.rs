//! The snapshots of volumes: a table in the header of each.

use std::{collections::BTreeSet, time::Duration};

use onefold_core::{
    Result,
    object::{ObjectName, Read, ReadPart, Refusal},
};

use crate::{
    format::{
        catalogue::{CATALOGUE, FORMAT, Format, Named, What},
        corrupt, key,
    },
    kernel::Kernel,
    names::Names,
    replies::failed,
    volume::header,
};

/// Keys of the table of snapshots, by the numbers of their layers.
const SNAPSHOT: u8 = b's';

/// Most snapshots of a volume.
pub(super) const SNAPSHOTS_MAX: usize = 256;

/// Bytes of the value of a snapshot before its name: size and time.
const HEAD_BYTES: usize = 16;

/// Headers that are read together.
const HEADERS: usize = 64;

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The volume that it is one of.
    pub volume: String,
    /// The name of the snapshot, without its volume's.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// When it was made, since 1970.
    pub made: Duration,
    /// The number of its layer.
    pub(super) id: u64,
}

impl Snapshot {
    /// The volume's name, @ and the snapshot's.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}@{}", self.volume, self.name)
    }

    /// True when it is the snapshot whose layer has this number.
    #[must_use]
    pub fn is_of(&self, id: u64) -> bool {
        self.id == id
    }

    /// What its layer is like, for those who attach it.
    pub(crate) fn named(&self) -> Named {
        Named { what: What::Volume, id: self.id, bytes: self.bytes, pieces: 0, moves: 0 }
    }

    pub(super) fn pair(&self) -> (Vec<u8>, Vec<u8>) {
        let mut value = self.bytes.to_le_bytes().to_vec();
        let made = u64::try_from(self.made.as_nanos()).unwrap_or(u64::MAX);
        value.extend(made.to_le_bytes());
        value.extend(self.name.as_bytes());
        (key::numbered(SNAPSHOT, self.id), value)
    }

    fn parse(volume: &str, key: &[u8], value: &[u8]) -> Result<Option<Snapshot>, Refusal> {
        let Some(id) = key::parse_numbered(SNAPSHOT, key) else { return Ok(None) };
        let bad = || {
            let volume = volume.escape_debug();
            Refusal::Failed(corrupt(format_args!("a snapshot of volume '{volume}' is damaged")))
        };
        let (head, name) = value.split_at_checked(HEAD_BYTES).ok_or_else(bad)?;
        let number = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes);
        Ok(Some(Snapshot {
            volume: volume.to_owned(),
            name: String::from_utf8(name.to_vec()).map_err(|_| bad())?,
            bytes: number(0).map_err(|_| bad())?,
            made: Duration::from_nanos(number(8).map_err(|_| bad())?),
            id,
        }))
    }
}

/// True when volumes have layers, or had: read anew unless it was known when the store was opened.
fn has_layers(kernel: &Kernel) -> Result<bool, Refusal> {
    if kernel.format().layers {
        return Ok(true);
    }
    let value = kernel.read_value(&ObjectName::metadata(CATALOGUE), FORMAT)?;
    Format::decode(&value).map(|format| format.layers).map_err(Refusal::Failed)
}

/// The numbers of the layers that stay.
pub(super) fn kept_layers(kernel: &Kernel) -> Result<BTreeSet<u64>> {
    let mut kept = BTreeSet::new();
    if has_layers(kernel).map_err(|why| failed("the catalogue can't be read", why))? {
        Names::of(kernel).each_record(&mut |record| {
            kept.extend(record.is_kept().then_some(record.named.id));
        })?;
    }
    Ok(kept)
}

pub(super) fn snapshots_of(
    kernel: &Kernel,
    volumes: &[(String, Named)],
    kept: &BTreeSet<u64>,
) -> Result<Vec<Snapshot>> {
    let mut all = Vec::new();
    for some in volumes.chunks(HEADERS) {
        let read = |(_, named): &(String, Named)| Read {
            object: header::name(named.id),
            parts: vec![ReadPart::Page(vec![SNAPSHOT], 2 * SNAPSHOTS_MAX)],
        };
        let answers = kernel.read_all(&some.iter().map(read).collect::<Vec<_>>());
        for ((name, _), answer) in some.iter().zip(answers) {
            let say = |refusal| {
                let name = name.escape_debug();
                failed(format_args!("the snapshots of volume '{name}'"), refusal)
            };
            let answer = match answer {
                Err(Refusal::Missing) => continue,
                other => other.map_err(say)?,
            };
            let mut found = Vec::new();
            for (key, value) in answer.pairs(0).0 {
                found.extend(Snapshot::parse(name, key, value).map_err(say)?);
            }
            found.retain(|snapshot| kept.contains(&snapshot.id));
            found.sort_by_key(|snapshot| (snapshot.made, snapshot.id));
            all.extend(found);
        }
    }
    Ok(all)
}

/// The snapshots of one volume, the oldest first.
pub(crate) fn snapshots_of_one(
    kernel: &Kernel,
    name: &str,
    named: &Named,
) -> Result<Vec<Snapshot>> {
    let kept = kept_layers(kernel)?;
    if kept.is_empty() {
        return Ok(Vec::new());
    }
    snapshots_of(kernel, &[(name.to_owned(), *named)], &kept)
}
