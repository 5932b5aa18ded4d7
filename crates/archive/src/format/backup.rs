//! Snapshots of directories in the catalogue.

use std::fmt;

use onefold_core::{Fingerprint, Result};

use super::{
    bytes::{Reader, Writer, corrupt},
    domain::{FIRST_DOMAIN, OF_DOMAIN, other_domain},
    tree_node::{Top, TreeNodeRef},
};

/// Bytes of a text of a snapshot at most.
pub(crate) const TEXT_MAX: usize = 4096;

/// Paths and tags of a snapshot at most.
pub const TEXTS_MAX: usize = 1024;

/// Bytes of texts that any snapshot may have.
const TEXTS_FREE: u64 = 4 << 10;

/// Bytes beyond these that the texts of all snapshots of an archive have: processes hold them in
/// memory.
pub(crate) const TEXTS_IN_ALL: u64 = 32 << 20;

/// Memory of a text beside its bytes.
const TEXT_MEMORY: u64 = 32;

/// The id of a snapshot, drawn by chance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SnapshotId(pub [u8; 16]);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SnapshotId({self})")
    }
}

/// How much of what it should have a snapshot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Completeness {
    /// All of it.
    Whole,
    /// Something could not be read, and was left out.
    Partial,
    /// Less than half of the entries or bytes of the last whole one of its set.
    Shrunk,
    /// No snapshot: what a backup that is under way, or was killed, has so far. No list shows it;
    /// the next backup of its set takes over from it, and it goes when that one is whole.
    Checkpoint,
}

/// From where the content of a snapshot came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A backup read it, and took unchanged pages and files over from a parent.
    Read(Option<SnapshotId>),
    /// It is a copy of a snapshot of another archive whose root has this fingerprint there.
    Copied(Fingerprint),
}

/// A snapshot in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The set that it belongs to: snapshots of the same directories, one after the other.
    pub set: String,
    /// The number of its domain.
    pub domain: u32,
    /// The name of the host.
    pub host: String,
    /// The id of the machine; zero for none.
    pub machine: [u8; 16],
    /// The directories and files that were asked for.
    pub paths: Vec<Vec<u8>>,
    /// Words by which it is found.
    pub tags: Vec<String>,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// When it was committed, by the clock of the process that appended it.
    pub ended: u64,
    /// From where its content came.
    pub origin: Origin,
    /// Its root.
    pub root: TreeNodeRef,
    /// The stat pages of the root directory.
    pub stats: Option<Top>,
    /// Entries of all directories.
    pub entries: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of containers that it added to the archive.
    pub added: u64,
    /// How much could not be read and was left out.
    pub left_out: u64,
    /// How much it has.
    pub completeness: Completeness,
    /// Set when it was forgotten: the time by the clock of the process that forgot it, and the time
    /// when a collection saw that first.
    pub forgotten: Option<(u64, Option<u64>)>,
}

impl Snapshot {
    /// Bytes of its texts beyond those that any snapshot may have.
    pub(crate) fn long_texts(&self) -> u64 {
        let texts = [self.set.len(), self.host.len()].into_iter();
        let texts = texts.chain(self.paths.iter().map(Vec::len));
        let all = texts.chain(self.tags.iter().map(String::len));
        all.map(|bytes| bytes as u64 + TEXT_MEMORY).sum::<u64>().saturating_sub(TEXTS_FREE)
    }

    /// True when this is a copy of a snapshot of another archive with this root.
    pub(crate) fn is_copy_of(&self, root: &TreeNodeRef) -> bool {
        self.origin == Origin::Copied(root.fingerprint)
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        w.raw(&self.id.0).bytes(self.set.as_bytes()).bytes(self.host.as_bytes());
        w.raw(&self.machine).u32(self.paths.len() as u32);
        self.paths.iter().for_each(|path| {
            w.bytes(path);
        });
        w.u32(self.tags.len() as u32);
        self.tags.iter().for_each(|tag| {
            w.bytes(tag.as_bytes());
        });
        w.u64(self.began).u64(self.ended);
        match &self.origin {
            Origin::Read(None) => w.u8(0).raw(&[0; 16]),
            Origin::Read(Some(parent)) => w.u8(1).raw(&parent.0),
            Origin::Copied(root) => w.u8(2).raw(&root.0),
        };
        self.root.encode(w);
        match &self.stats {
            Some(top) => top.node.encode(w.u8(1).u8(top.levels)),
            None => {
                w.u8(0);
            }
        }
        w.u64(self.entries).u64(self.bytes).u64(self.added).u64(self.left_out);
        let completeness = match self.completeness {
            Completeness::Whole => 0,
            Completeness::Partial => 1,
            Completeness::Shrunk => 2,
            Completeness::Checkpoint => 3,
        };
        match self.domain {
            FIRST_DOMAIN => w.u8(completeness),
            domain => w.u8(completeness | OF_DOMAIN).u32(domain),
        };
        match self.forgotten {
            None => w.u8(0),
            Some((at, None)) => w.u8(1).u64(at),
            Some((at, Some(seen))) => w.u8(2).u64(at).u64(seen),
        };
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Snapshot> {
        let id = SnapshotId(r.array()?);
        let (set, host, machine) = (text(r)?, text(r)?, r.array()?);
        let count = texts(r)?;
        let paths = (0..count)
            .map(|_| {
                let path = r.bytes()?;
                if path.len() > 4 * TEXT_MAX {
                    return Err(corrupt("a path of a snapshot can't be so long"));
                }
                Ok(path.to_vec())
            })
            .collect::<Result<_>>()?;
        let count = texts(r)?;
        let tags = (0..count).map(|_| text(r)).collect::<Result<_>>()?;
        let (began, ended) = (r.u64()?, r.u64()?);
        let origin = match (r.u8()?, r.array()?) {
            (1, parent) => Origin::Read(Some(SnapshotId(parent))),
            (2, root) => Origin::Copied(Fingerprint(root)),
            _ => Origin::Read(None),
        };
        let root = TreeNodeRef::decode(r)?;
        let stats = match r.u8()? {
            0 => None,
            1 => Some(Top { levels: r.u8()?, node: TreeNodeRef::decode(r)? }),
            _ => return Err(corrupt("a snapshot has stat pages of an unknown form")),
        };
        let (entries, bytes, added, left_out) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let code = r.u8()?;
        let completeness = match code & !OF_DOMAIN {
            0 => Completeness::Whole,
            1 => Completeness::Partial,
            2 => Completeness::Shrunk,
            3 => Completeness::Checkpoint,
            _ => return Err(corrupt("a snapshot has a state that this version does not know")),
        };
        let domain = if code & OF_DOMAIN == 0 { FIRST_DOMAIN } else { other_domain(r.u32()?)? };
        let forgotten = match r.u8()? {
            0 => None,
            1 => Some((r.u64()?, None)),
            2 => Some((r.u64()?, Some(r.u64()?))),
            _ => return Err(corrupt("a snapshot was forgotten in an unknown form")),
        };
        // Nobody undeletes it.
        if completeness == Completeness::Checkpoint && forgotten.is_none() {
            return Err(corrupt("a checkpoint of a backup is listed"));
        }
        Ok(Snapshot {
            id,
            set,
            domain,
            host,
            machine,
            paths,
            tags,
            began,
            ended,
            origin,
            root,
            stats,
            entries,
            bytes,
            added,
            left_out,
            completeness,
            forgotten,
        })
    }
}

fn texts(r: &mut Reader<'_>) -> Result<usize> {
    let count = r.count(4, 64)?;
    if count > TEXTS_MAX {
        return Err(corrupt("a snapshot can't have so many paths or tags"));
    }
    Ok(count)
}

fn text(r: &mut Reader<'_>) -> Result<String> {
    let text = r.text()?;
    if text.len() > TEXT_MAX || text.chars().any(char::is_control) {
        return Err(corrupt("a snapshot has a text that can't be true"));
    }
    Ok(text)
}
