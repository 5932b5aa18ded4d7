//! Nodes: the pages that a snapshot's tree is made of. Each is a piece in a container of recipes,
//! and names its children by address and fingerprint.
//!
//! | node | what |
//! |---|---|
//! | directory page | entries of one directory, in the order of their names |
//! | file map page | the chunks, zeroes and holes of one file, in their order |
//! | stat page | inode numbers and change times of the entries of one directory, in their order |
//! | index page | pages below it, or index pages, each with what comes first in it |
//! | root | the root directory, and totals |

use onefold_core::{Fingerprint, Result, tree::memory_of};

use super::{
    bytes::{Reader, Writer, corrupt},
    listing::NOBODY,
    recipe::{Part, encode as encode_part, next_part},
};
use crate::format::{Address, ContainerId};

/// Bytes of a node at most.
pub(crate) const NODE_BYTES: usize = 64 << 10;

/// Levels of index pages at most: each has at least two children.
pub(crate) const INDEX_LEVELS_MAX: u8 = 40;

/// Bytes of an entry's attributes that stand in the directory page; more are content of their own.
pub const ATTRIBUTES_INLINE: usize = 1 << 10;

/// Chunks of a file that stand in the directory page at most.
pub(crate) const INLINE_CHUNKS: usize = 16;

/// Chunks, runs of zeroes and holes of a file that stand in the directory page at most.
pub(crate) const INLINE_PARTS: usize = 48;

/// Bytes of a name.
const NAME_MAX: usize = 255;

/// Bytes of the target of a symbolic link.
const TARGET_MAX: usize = 16 << 10;

/// Bytes of an entry's attributes at most.
pub(crate) const ATTRIBUTES_BYTES: u64 = 8 << 20;

const DIRECTORY: u8 = 1;
const FILE_MAP: u8 = 2;
const STATS: u8 = 3;
const INDEX: u8 = 4;
const ROOT: u8 = 5;

/// Where a node lies, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeNodeRef {
    /// Its address.
    pub address: Address,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
}

impl TreeNodeRef {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.raw(&self.address.container.0.to_le_bytes()[..5])
            .u16(self.address.slot)
            .raw(&self.fingerprint.0);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<TreeNodeRef> {
        let mut number = [0; 8];
        number[..5].copy_from_slice(r.take(5)?);
        let container = ContainerId(u64::from_le_bytes(number));
        let address = Address { container, slot: r.u16()? };
        Ok(TreeNodeRef { address, fingerprint: Fingerprint(r.array()?) })
    }
}

/// The top of pages of one kind: a page, or index pages above many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top {
    /// Levels of index pages; 0 when the node is a page itself.
    pub levels: u8,
    /// The node.
    pub node: TreeNodeRef,
}

impl Top {
    fn encode(&self, w: &mut Writer) {
        self.node.encode(w.u8(self.levels));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Top> {
        let levels = r.u8()?;
        if levels > INDEX_LEVELS_MAX {
            return Err(corrupt("a tree of index pages can't be so deep"));
        }
        Ok(Top { levels, node: TreeNodeRef::decode(r)? })
    }
}

/// The content of a file: what it has one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileMap {
    /// Few parts, which stand where the map stands.
    Inline(Vec<Part>),
    /// Pages of them.
    Pages(Top),
}

impl Default for FileMap {
    fn default() -> FileMap {
        FileMap::Inline(Vec::new())
    }
}

impl FileMap {
    pub(crate) fn encode(&self, w: &mut Writer) {
        match self {
            FileMap::Inline(parts) => {
                let mut inline = Writer::default();
                parts.iter().for_each(|part| encode_part(part, &mut inline));
                w.u8(1).u16(inline.0.len() as u16).raw(&inline.0);
            }
            FileMap::Pages(top) => top.encode(w.u8(2)),
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<FileMap> {
        match r.u8()? {
            1 => {
                let bytes = usize::from(r.u16()?);
                Ok(FileMap::Inline(file_parts(r.take(bytes)?)?))
            }
            2 => Ok(FileMap::Pages(Top::decode(r)?)),
            _ => Err(corrupt("a file has content of an unknown form")),
        }
    }
}

/// Extended attributes of an entry: encoded names and values, where they stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// Names and values.
    Inline(Vec<(Vec<u8>, Vec<u8>)>),
    /// Many: so many bytes, which are stored as those of a file are.
    Stored(u64, FileMap),
}

impl Attributes {
    /// About how many bytes of memory they take, beside the pages of those that are stored.
    #[must_use]
    pub fn memory(&self) -> usize {
        match self {
            Attributes::Inline(all) => memory_of(all),
            Attributes::Stored(..) => 0,
        }
    }
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes::Inline(Vec::new())
    }
}

/// Something in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// Its name: no empty one, no `.` or `..`, no slash and no zero byte. The root has none.
    pub name: Vec<u8>,
    /// The kind of the entry.
    pub what: TreeWhat,
    /// Permission bits, with set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of its content, in seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanoseconds: u32,
    /// The number of the file of which this is one of several names; 0 for none.
    pub link: u64,
    /// Something of it was left out: bytes of a file that could not be read, or entries of a
    /// directory: unreadable ones, and those of excluded paths, caches and mount points.
    pub is_in_part: bool,
    /// Its extended attributes.
    pub attributes: Attributes,
}

/// Kinds of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeWhat {
    /// A directory, and the pages of its entries; `None` when it is empty.
    Directory(Option<Top>),
    /// A file: its length, and its content.
    File(u64, FileMap),
    /// A symbolic link, and its target.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice(u64),
    /// A block device.
    BlockDevice(u64),
}

/// The facts by which a file is known to be unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stat {
    /// The inode number.
    pub inode: u64,
    /// Time of the last change of the file or of what is told of it, in seconds since 1970.
    pub changed_seconds: i64,
    /// And nanoseconds.
    pub changed_nanoseconds: u32,
    /// False when the time may not have moved with the last change: it was too fresh when the file
    /// was read.
    pub is_settled: bool,
    /// Of a directory: the stat pages of its entries.
    pub pages: Option<Top>,
}

/// A page below an index page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The page.
    pub node: TreeNodeRef,
    /// Of directory pages the first name; of others the sum of what is in it: bytes of a file,
    /// entries of a stat page.
    pub key: Key,
}

/// See [`IndexEntry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The first name.
    Name(Vec<u8>),
    /// How much.
    Sum(u64),
}

/// The root of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The root directory; its name is empty.
    pub directory: TreeEntry,
    /// Entries in all directories, the root too.
    pub entries: u64,
    /// Bytes of all files; one with several names counts once for each.
    pub bytes: u64,
    /// How much was left out since it could not be read.
    pub left_out: u64,
    /// Bytes of the list of what was left out, and where it is stored: a line each.
    pub list: (u64, FileMap),
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeNode {
    /// Entries of one directory, in strictly ascending order of their names.
    Directory(Vec<TreeEntry>),
    /// Content of one file.
    FileMap(Vec<Part>),
    /// Entries of one directory, in the order of their names.
    Stats(Vec<Stat>),
    /// Pages below, and on which level it is: 1 above pages.
    Index(u8, Vec<IndexEntry>),
    /// The root.
    Root(Box<Root>),
}

/// Something that a tree node names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// A node.
    TreeNode(TreeNodeRef),
    /// Chunks of one container, slot after slot, by their fingerprints.
    Chunks(Address, &'a [Fingerprint]),
}

impl TreeNode {
    /// The bytes; [`NODE_BYTES`] at most when the caller cut pages so.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            TreeNode::Directory(entries) => {
                w.u8(DIRECTORY);
                entries.iter().for_each(|entry| entry.encode(&mut w));
            }
            TreeNode::FileMap(parts) => {
                w.u8(FILE_MAP);
                parts.iter().for_each(|part| encode_part(part, &mut w));
            }
            TreeNode::Stats(stats) => {
                w.u8(STATS);
                stats.iter().for_each(|stat| stat.encode(&mut w));
            }
            TreeNode::Index(level, entries) => {
                w.u8(INDEX).u8(*level);
                entries.iter().for_each(|entry| entry.encode(&mut w));
            }
            TreeNode::Root(root) => {
                w.u8(ROOT);
                root.directory.encode(&mut w);
                w.u64(root.entries).u64(root.bytes).u64(root.left_out).u64(root.list.0);
                root.list.1.encode(&mut w);
            }
        }
        w.0
    }

    /// Reads a node, whoever wrote it. No page is empty, and pages below an index page are in order,
    /// each with something in it.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<TreeNode> {
        if bytes.len() > NODE_BYTES {
            return Err(corrupt("a node can't be so long"));
        }
        let r = &mut Reader(bytes, None);
        Ok(match r.u8()? {
            DIRECTORY => {
                let mut entries: Vec<TreeEntry> = Vec::new();
                while !r.0.is_empty() {
                    let entry = TreeEntry::decode(r)?;
                    if !is_name(&entry.name)
                        || entries.last().is_some_and(|last| last.name >= entry.name)
                    {
                        return Err(corrupt("a directory has names that can't be true"));
                    }
                    entries.push(entry);
                }
                refuse_empty(entries.is_empty())?;
                TreeNode::Directory(entries)
            }
            FILE_MAP => {
                let parts = file_parts(std::mem::take(&mut r.0))?;
                refuse_empty(content_bytes(&parts) == 0)?;
                TreeNode::FileMap(parts)
            }
            STATS => {
                let mut stats = Vec::new();
                while !r.0.is_empty() {
                    stats.push(Stat::decode(r)?);
                }
                refuse_empty(stats.is_empty())?;
                TreeNode::Stats(stats)
            }
            INDEX => {
                let level = r.u8()?;
                if level == 0 || level > INDEX_LEVELS_MAX {
                    return Err(corrupt("an index page has a level that can't be true"));
                }
                let mut entries: Vec<IndexEntry> = Vec::new();
                while !r.0.is_empty() {
                    let entry = IndexEntry::decode(r)?;
                    let follows = match (entries.last().map(|last| &last.key), &entry.key) {
                        (None, Key::Name(name)) => is_name(name),
                        (Some(Key::Name(last)), Key::Name(name)) => last < name && is_name(name),
                        (None | Some(Key::Sum(_)), Key::Sum(sum)) => *sum > 0,
                        _ => false,
                    };
                    if !follows {
                        return Err(corrupt("an index page has pages out of order, or empty ones"));
                    }
                    entries.push(entry);
                }
                refuse_empty(entries.is_empty())?;
                TreeNode::Index(level, entries)
            }
            ROOT => {
                let directory = TreeEntry::decode(r)?;
                if !directory.name.is_empty() || !matches!(directory.what, TreeWhat::Directory(_)) {
                    return Err(corrupt("the root of a snapshot is no directory"));
                }
                let (entries, bytes, left_out) = (r.u64()?, r.u64()?, r.u64()?);
                let list = (r.u64()?, FileMap::decode(r)?);
                r.end()?;
                TreeNode::Root(Box::new(Root { directory, entries, bytes, left_out, list }))
            }
            other => return Err(corrupt(format!("a node of unknown kind {other}"))),
        })
    }

    /// Tells of all that it names, in order.
    pub fn named<'a>(&'a self, each: &mut dyn FnMut(Named<'a>)) {
        match self {
            TreeNode::Directory(entries) => entries.iter().for_each(|entry| entry.named(each)),
            TreeNode::FileMap(parts) => chunks(parts, each),
            TreeNode::Stats(stats) => {
                stats.iter().filter_map(|stat| stat.pages).for_each(|top| each(top.into()));
            }
            TreeNode::Index(_, entries) => {
                entries.iter().for_each(|entry| each(Named::TreeNode(entry.node)));
            }
            TreeNode::Root(root) => {
                root.directory.named(each);
                map(&root.list.1, each);
            }
        }
    }
}

impl From<Top> for Named<'_> {
    fn from(top: Top) -> Self {
        Named::TreeNode(top.node)
    }
}

fn chunks<'a>(parts: &'a [Part], each: &mut dyn FnMut(Named<'a>)) {
    for part in parts {
        if let Part::Run { first, fingerprints, .. } = part {
            each(Named::Chunks(*first, fingerprints));
        }
    }
}

fn map<'a>(map: &'a FileMap, each: &mut dyn FnMut(Named<'a>)) {
    match map {
        FileMap::Inline(parts) => chunks(parts, each),
        FileMap::Pages(top) => each((*top).into()),
    }
}

impl TreeEntry {
    fn named<'a>(&'a self, each: &mut dyn FnMut(Named<'a>)) {
        if let Attributes::Stored(_, stored) = &self.attributes {
            map(stored, each);
        }
        match &self.what {
            TreeWhat::Directory(Some(top)) => each((*top).into()),
            TreeWhat::File(_, content) => map(content, each),
            _ => {}
        }
    }

    /// The reason why no directory can have this entry; `None` when one can. Whoever makes entries
    /// asks before a tree is given one, which ends with an error else. Content that is added later
    /// is not looked at.
    #[must_use]
    pub fn refusal(&self) -> Option<&'static str> {
        if !is_name(&self.name) {
            return Some("its name is empty, too long, or has bytes that no name has");
        }
        let mut w = Writer::default();
        self.encode(&mut w);
        self.flaw().or_else(|| (!fits(w.0.len())).then_some(TOO_LONG))
    }

    /// The reason why an entry with this name, or a root without one, can't be true.
    pub(crate) fn flaw(&self) -> Option<&'static str> {
        if self.mode > 0o7777 {
            return Some("its mode has bits that no mode has");
        }
        if self.nanoseconds >= 1_000_000_000 {
            return Some("its time has more nanoseconds than a second");
        }
        if [self.uid, self.gid].contains(&NOBODY) {
            return Some("its owner or group is none");
        }
        match &self.attributes {
            Attributes::Stored(bytes, _) if *bytes > ATTRIBUTES_BYTES => {
                return Some("it has too many attributes");
            }
            _ => {}
        }
        match &self.what {
            TreeWhat::Symlink(target)
                if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) =>
            {
                Some("its target is empty, too long, or has a zero byte")
            }
            _ => None,
        }
    }

    /// Appends the bytes.
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u16(self.name.len() as u16).raw(&self.name);
        w.u8(self.what.code()).u8(u8::from(self.is_in_part));
        w.u32(self.mode)
            .u32(self.uid)
            .u32(self.gid)
            .u64(self.seconds as u64)
            .u32(self.nanoseconds)
            .u64(self.link);
        match &self.attributes {
            Attributes::Inline(all) => {
                w.u8(1).u16(all.len() as u16);
                for (name, value) in all {
                    w.u16(name.len() as u16).raw(name).u16(value.len() as u16).raw(value);
                }
            }
            Attributes::Stored(bytes, content) => content.encode(w.u8(2).u64(*bytes)),
        }
        self.what.encode_behind_its_kind(w);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<TreeEntry> {
        let length = usize::from(r.u16()?);
        let name = r.take(length)?.to_vec();
        let (code, flags) = (r.u8()?, r.u8()?);
        let (mode, uid, gid) = (r.u32()?, r.u32()?, r.u32()?);
        let (seconds, nanoseconds, link) = (r.u64()? as i64, r.u32()?, r.u64()?);
        if flags > 1 {
            return Err(corrupt("an entry of a directory has marks that can't be true"));
        }
        let attributes = match r.u8()? {
            1 => {
                let count = r.u16()?;
                let mut all = Vec::new();
                for _ in 0..count {
                    let length = usize::from(r.u16()?);
                    let name = r.take(length)?.to_vec();
                    let length = usize::from(r.u16()?);
                    all.push((name, r.take(length)?.to_vec()));
                }
                Attributes::Inline(all)
            }
            2 => Attributes::Stored(r.u64()?, FileMap::decode(r)?),
            _ => return Err(corrupt("an entry has attributes of an unknown form")),
        };
        let what = TreeWhat::decode_of(code, r)?;
        let is_in_part = flags == 1;
        let entry = TreeEntry {
            name,
            what,
            mode,
            uid,
            gid,
            seconds,
            nanoseconds,
            link,
            is_in_part,
            attributes,
        };
        match entry.flaw() {
            Some(flaw) => Err(corrupt(format!("an entry of a directory can't be true: {flaw}"))),
            None => Ok(entry),
        }
    }
}

impl TreeWhat {
    fn code(&self) -> u8 {
        match self {
            TreeWhat::Directory(_) => 1,
            TreeWhat::File(..) => 2,
            TreeWhat::Symlink(_) => 3,
            TreeWhat::Fifo => 5,
            TreeWhat::Socket => 6,
            TreeWhat::CharacterDevice(_) => 7,
            TreeWhat::BlockDevice(_) => 8,
        }
    }

    /// Appends the bytes, with the kind first.
    pub(crate) fn encode(&self, w: &mut Writer) {
        self.encode_behind_its_kind(w.u8(self.code()));
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<TreeWhat> {
        let code = r.u8()?;
        TreeWhat::decode_of(code, r)
    }

    fn encode_behind_its_kind(&self, w: &mut Writer) {
        match self {
            TreeWhat::Directory(top) => match top {
                Some(top) => top.encode(w.u8(1)),
                None => {
                    w.u8(0);
                }
            },
            TreeWhat::File(bytes, content) => content.encode(w.u64(*bytes)),
            TreeWhat::Symlink(target) => {
                w.bytes(target);
            }
            TreeWhat::Fifo | TreeWhat::Socket => {}
            TreeWhat::CharacterDevice(device) | TreeWhat::BlockDevice(device) => {
                w.u64(*device);
            }
        }
    }

    fn decode_of(code: u8, r: &mut Reader<'_>) -> Result<TreeWhat> {
        Ok(match code {
            1 => TreeWhat::Directory(match r.u8()? {
                0 => None,
                1 => Some(Top::decode(r)?),
                _ => return Err(corrupt("a directory has pages of an unknown form")),
            }),
            2 => TreeWhat::File(r.u64()?, FileMap::decode(r)?),
            3 => TreeWhat::Symlink(r.bytes()?.to_vec()),
            5 => TreeWhat::Fifo,
            6 => TreeWhat::Socket,
            7 => TreeWhat::CharacterDevice(r.u64()?),
            8 => TreeWhat::BlockDevice(r.u64()?),
            other => return Err(corrupt(format!("an entry of unknown kind {other}"))),
        })
    }
}

impl Stat {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u8(u8::from(self.is_settled) | u8::from(self.pages.is_some()) << 1)
            .u64(self.inode)
            .u64(self.changed_seconds as u64)
            .u32(self.changed_nanoseconds);
        if let Some(top) = &self.pages {
            top.encode(w);
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Stat> {
        let flags = r.u8()?;
        if flags > 3 {
            return Err(corrupt("a stat page has marks that can't be true"));
        }
        Ok(Stat {
            inode: r.u64()?,
            changed_seconds: r.u64()? as i64,
            changed_nanoseconds: r.u32()?,
            is_settled: flags & 1 != 0,
            pages: if flags & 2 != 0 { Some(Top::decode(r)?) } else { None },
        })
    }
}

impl IndexEntry {
    pub(crate) fn encode(&self, w: &mut Writer) {
        self.node.encode(w);
        match &self.key {
            Key::Name(name) => w.u8(1).u16(name.len() as u16).raw(name),
            Key::Sum(sum) => w.u8(2).u64(*sum),
        };
    }

    fn decode(r: &mut Reader<'_>) -> Result<IndexEntry> {
        let node = TreeNodeRef::decode(r)?;
        let key = match r.u8()? {
            1 => {
                let length = usize::from(r.u16()?);
                Key::Name(r.take(length)?.to_vec())
            }
            2 => Key::Sum(r.u64()?),
            _ => return Err(corrupt("an index page has an entry of an unknown form")),
        };
        Ok(IndexEntry { node, key })
    }
}

/// Refuses a page without anything in it: what is empty has no pages, and a few index pages could
/// lead to the same empty page more often than anybody can read it.
fn refuse_empty(is_empty: bool) -> Result<()> {
    if is_empty { Err(corrupt("a page is empty")) } else { Ok(()) }
}

/// The parts of a file map: chunks, zeroes, holes.
fn file_parts(bytes: &[u8]) -> Result<Vec<Part>> {
    let r = &mut Reader(bytes, None);
    let mut parts = Vec::new();
    while !r.0.is_empty() {
        let part = next_part(r)?;
        if !matches!(part, Part::Run { .. } | Part::Zeroes(_) | Part::Hole(_)) {
            return Err(corrupt("a file has a part that no file has"));
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Bytes that all parts stand for.
pub(crate) fn content_bytes(parts: &[Part]) -> u64 {
    parts.iter().map(Part::bytes).fold(0, u64::saturating_add)
}

/// True when a page has room for an entry of so many bytes, behind its kind.
pub(crate) fn fits(bytes: usize) -> bool {
    bytes < NODE_BYTES
}

/// See [`TreeEntry::refusal`].
pub(crate) const TOO_LONG: &str = "it has more attributes and content than a page has room for";

/// A name that an entry can have.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_ref(n: u8) -> TreeNodeRef {
        let address = Address { container: ContainerId(u64::from(n) << 30), slot: u16::from(n) };
        TreeNodeRef { address, fingerprint: Fingerprint([n; 16]) }
    }

    fn entry(name: &str, what: TreeWhat) -> TreeEntry {
        TreeEntry {
            name: name.into(),
            what,
            mode: 0o4755,
            uid: 1,
            gid: 2,
            seconds: -7,
            nanoseconds: 8,
            link: 9,
            is_in_part: true,
            attributes: Attributes::Inline(vec![(b"user.a".to_vec(), vec![0, 1])]),
        }
    }

    fn all() -> Vec<TreeNode> {
        let top = Top { levels: 2, node: node_ref(3) };
        let run = Part::Run {
            first: node_ref(1).address,
            bytes: 700,
            fingerprints: vec![Fingerprint([4; 16]), Fingerprint([5; 16])],
        };
        let parts = vec![run, Part::Hole(9), Part::Zeroes(1 << 40)];
        let mut stored = entry("b", TreeWhat::Directory(None));
        stored.attributes = Attributes::Stored(5000, FileMap::Inline(parts.clone()));
        let mut root = entry("", TreeWhat::Directory(Some(top)));
        root.is_in_part = false;
        let key = |key| IndexEntry { node: node_ref(6), key };
        vec![
            TreeNode::Directory(vec![
                entry("a", TreeWhat::Directory(Some(top))),
                stored,
                entry("c", TreeWhat::File(5, FileMap::Inline(parts.clone()))),
                entry("d", TreeWhat::File(1 << 40, FileMap::Pages(top))),
                entry("e", TreeWhat::Symlink(b"/x".to_vec())),
                entry("f", TreeWhat::Fifo),
                entry("g", TreeWhat::Socket),
                entry("h", TreeWhat::CharacterDevice(7)),
                entry("i", TreeWhat::BlockDevice(8)),
            ]),
            TreeNode::FileMap(parts.clone()),
            TreeNode::Stats(vec![
                Stat::default(),
                Stat { inode: 5, is_settled: true, pages: Some(top), ..Stat::default() },
            ]),
            TreeNode::Index(3, vec![key(Key::Name(b"a".to_vec())), key(Key::Name(b"b".to_vec()))]),
            TreeNode::Index(1, vec![key(Key::Sum(70)), key(Key::Sum(1))]),
            TreeNode::Root(Box::new(Root {
                directory: root,
                entries: 3,
                bytes: 4,
                left_out: 5,
                list: (6, FileMap::Inline(parts)),
            })),
        ]
    }

    #[test]
    fn nodes_are_read_as_they_were_written() {
        for node in all() {
            let bytes = node.encode();
            assert_eq!(TreeNode::decode(&bytes).unwrap(), node);
            for n in 0..bytes.len() {
                // A cut may fall between two entries; it never reads beyond.
                let _ = TreeNode::decode(&bytes[..n]);
            }
        }
    }

    #[test]
    fn a_node_tells_of_all_that_it_names() {
        let (all, mut named) = (all(), Vec::new());
        all.iter().for_each(|node| node.named(&mut |what| named.push(what)));
        let nodes = named.iter().filter(|what| matches!(what, Named::TreeNode(_))).count();
        let chunks: usize =
            named.iter().map(|what| if let Named::Chunks(_, n) = what { n.len() } else { 0 }).sum();
        assert_eq!((nodes, chunks), (2 + 1 + 4 + 1, 2 * (2 + 1 + 1)));
    }

    #[test]
    fn rule_09_no_page_is_empty_and_no_index_page_leads_to_one_page_twice() {
        let index = |keys: Vec<Key>| {
            let entry = |key| IndexEntry { node: node_ref(6), key };
            TreeNode::Index(2, keys.into_iter().map(entry).collect())
        };
        let name = |name: &str| Key::Name(name.into());
        let bad = [
            TreeNode::Directory(Vec::new()),
            TreeNode::FileMap(Vec::new()),
            TreeNode::FileMap(vec![Part::Hole(0), Part::Zeroes(0)]),
            TreeNode::Stats(Vec::new()),
            index(Vec::new()),
            index(vec![name("a"), name("a")]),
            index(vec![name("b"), name("a")]),
            index(vec![name("")]),
            index(vec![Key::Sum(1), Key::Sum(0)]),
            index(vec![Key::Sum(1), name("a")]),
            index(vec![name("a"), Key::Sum(1)]),
        ];
        for node in bad {
            assert!(TreeNode::decode(&node.encode()).is_err(), "{node:?}");
        }
    }

    #[test]
    fn rule_07_an_entry_is_refused_before_it_is_written_when_it_would_not_be_read() {
        let good = entry("a", TreeWhat::Symlink(b"x".to_vec()));
        assert_eq!(good.refusal(), None);
        let of = |change: &dyn Fn(&mut TreeEntry)| {
            let mut entry = good.clone();
            change(&mut entry);
            entry
        };
        let many = (0..70).map(|_| (vec![b'a'; 255], vec![0; 1000])).collect();
        let bad = [
            of(&|entry| entry.name = vec![b'n'; 300]),
            of(&|entry| entry.name = b"a/b".to_vec()),
            of(&|entry| entry.nanoseconds = 1_073_741_823),
            of(&|entry| entry.mode = 0o10_000),
            of(&|entry| entry.uid = u32::MAX),
            of(&|entry| entry.gid = u32::MAX),
            of(&|entry| entry.what = TreeWhat::Symlink(Vec::new())),
            of(&|entry| entry.what = TreeWhat::Symlink(vec![b'x'; TARGET_MAX + 1])),
            of(&|entry| entry.what = TreeWhat::Symlink(b"a\0".to_vec())),
            of(&|entry| entry.attributes = Attributes::Stored(9 << 20, FileMap::default())),
            of(&|entry| entry.attributes = Attributes::Inline(Clone::clone(&many))),
        ];
        for entry in bad {
            assert!(entry.refusal().is_some(), "{entry:?}");
            let page = TreeNode::Directory(vec![entry]);
            assert!(TreeNode::decode(&page.encode()).is_err(), "{page:?}");
        }
    }

    #[test]
    fn rule_05_no_name_leads_out_of_its_directory() {
        for bad in ["", ".", "..", "a/b", "/", "a\0"] {
            let node = TreeNode::Directory(vec![entry(bad, TreeWhat::Fifo)]);
            assert!(TreeNode::decode(&node.encode()).is_err(), "{bad:?}");
        }
        for twice in [["a", "a"], ["b", "a"]] {
            let node = TreeNode::Directory(twice.map(|name| entry(name, TreeWhat::Fifo)).to_vec());
            assert!(TreeNode::decode(&node.encode()).is_err(), "{twice:?}");
        }
    }
}
