//! Trees of snapshots, read: entries by path, directories in order, content of files.
//!
//! Each node is compared with the fingerprint by which its parent names it, so that no node is its
//! own child, whoever wrote it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use onefold_core::{Error, Fingerprint, Kind, Result};

use crate::{
    format::{
        Address,
        backup::Snapshot,
        bytes::{Reader as Fields, Writer, corrupt},
        damage::is_damage,
        recipe::Part,
        tree_node::{
            ATTRIBUTES_BYTES, Attributes, FileMap, IndexEntry, Key, Root, Stat, Top, TreeEntry,
            TreeNode, TreeNodeRef, TreeWhat,
        },
    },
    operations_log::{Archive, Domain, is_there},
    stream::{Content, Reader, Verify},
    tables::Tables,
};

/// Attributes of an entry at most.
const ATTRIBUTES_MAX: usize = 32 << 10;

/// Pages of a file map at most of which it is remembered whether they have data.
const GAPS_MAX: usize = 1 << 20;

/// Names and values of extended attributes.
type Named = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads trees. What it reads is not freed as long as this value lives.
pub struct TreeReader {
    reader: Reader,
}

impl TreeReader {
    /// A reader of the archive as of now.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(archive: &Arc<Archive>) -> Result<TreeReader> {
        Ok(TreeReader { reader: Reader::new(archive)? })
    }

    /// The archive as of the beginning.
    #[must_use]
    pub fn tables(&self) -> &Arc<Tables> {
        self.reader.tables()
    }

    /// A node, verified.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the system.
    pub fn node(&mut self, node: &TreeNodeRef) -> Result<TreeNode> {
        let domain = self.reader.domain_at(node.address)?;
        let bytes = self.reader.piece(node.address)?;
        if !domain.is_of(bytes, &node.fingerprint) {
            let (slot, container) = (node.address.slot, node.address.container);
            return Err(corrupt(format!(
                "node {slot} of container {container} is not the one that was stored"
            )));
        }
        TreeNode::decode(bytes)
    }

    /// The chunks of a run with their lengths; no content is read.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the system.
    pub(super) fn chunks_of(
        &mut self,
        first: Address,
        fingerprints: &[Fingerprint],
    ) -> Result<Vec<(Fingerprint, u32)>> {
        self.reader.chunks_of(first, fingerprints)
    }

    /// The domain of the snapshot whose root was read last.
    ///
    /// # Errors
    /// The errors of reading the key area. `Denied`: the key area and the log are not of one time.
    pub fn domain(&self) -> Result<Arc<Domain>> {
        self.reader.domain()
    }

    /// The seed of the checksums by which the nodes of its trees end.
    ///
    /// # Errors
    /// As [`domain`](Self::domain).
    pub(crate) fn borders(&self) -> Result<u64> {
        Ok(self.domain()?.borders)
    }

    /// The archive that it reads.
    pub(super) fn archive(&self) -> &Archive {
        self.reader.archive()
    }

    /// From now on all that is read must be of the snapshot's domain.
    ///
    /// # Errors
    /// `Denied`: the domain was erased, or its key is not there.
    pub fn enter(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.reader.enter(snapshot.domain).map_err(|error| {
            error.context(format!("a snapshot of set '{}'", snapshot.set.escape_debug()))
        })
    }

    /// Looks whether the root of a snapshot lies in the snapshot's domain, and enters none: for whoever
    /// reads snapshots of several domains at once.
    ///
    /// # Errors
    /// `Denied`: the domain was erased. `Corrupt`: the root lies in another one.
    pub fn proves_domain(&self, snapshot: &Snapshot) -> Result<()> {
        is_there(self.tables(), snapshot.domain)?;
        let home = self.tables().places(snapshot.root.address.container).next().transpose()?;
        match home {
            Some(home) if home.stored.domain != snapshot.domain => {
                Err(corrupt("the root of a snapshot lies in another domain"))
            }
            _ => Ok(()),
        }
    }

    /// The root of a snapshot. From now on all that is read must be of its domain.
    ///
    /// # Errors
    /// `Denied`: its domain was erased, or the key of that is not there. As [`node`](Self::node).
    pub fn root(&mut self, snapshot: &Snapshot) -> Result<Root> {
        self.enter(snapshot)?;
        match self.node(&snapshot.root)? {
            TreeNode::Root(root) => Ok(*root),
            _ => Err(corrupt("the root of a snapshot is none")),
        }
    }

    /// The entry at a path, with `/` between the parts, of which `.` means nothing; the root directory for
    /// an empty one.
    ///
    /// # Errors
    /// `NotFound`, and as [`node`](Self::node).
    pub fn find(&mut self, snapshot: &Snapshot, path: &[u8]) -> Result<TreeEntry> {
        let mut entry = self.root(snapshot)?.directory;
        let parts = path.split(|&byte| byte == b'/');
        for part in parts.filter(|part| !matches!(*part, b"" | b".")) {
            let found = match entry.what {
                TreeWhat::Directory(Some(top)) => self.find_in(&top, part)?,
                _ => None,
            };
            entry = found.ok_or_else(|| {
                let path = String::from_utf8_lossy(path);
                Error::new(Kind::NotFound, format!("there is no '{}'", path.escape_debug()))
            })?;
        }
        Ok(entry)
    }

    /// The entry of this name in a directory.
    fn find_in(&mut self, top: &Top, name: &[u8]) -> Result<Option<TreeEntry>> {
        let (mut level, mut at) = (top.levels, top.node);
        while level > 0 {
            let entries = self.index(level, &at)?;
            let before = |entry: &IndexEntry| match &entry.key {
                Key::Name(first) => first.as_slice() <= name,
                Key::Sum(_) => false,
            };
            let n = entries.partition_point(before);
            let Some(entry) = n.checked_sub(1).and_then(|n| entries.get(n)) else {
                return Ok(None);
            };
            (level, at) = (level - 1, entry.node);
        }
        let entries = self.directory(&at)?;
        let found = entries.binary_search_by(|entry| entry.name.as_slice().cmp(name));
        Ok(found.ok().and_then(|n| entries.into_iter().nth(n)))
    }

    pub(super) fn index(&mut self, level: u8, node: &TreeNodeRef) -> Result<Vec<IndexEntry>> {
        match self.node(node)? {
            TreeNode::Index(found, entries) if found == level => Ok(entries),
            _ => Err(corrupt("an index page is none")),
        }
    }

    /// The pages that an index page names.
    pub(super) fn below(&mut self, level: u8, node: &TreeNodeRef) -> Result<Vec<TreeNodeRef>> {
        Ok(self.index(level, node)?.into_iter().map(|entry| entry.node).collect())
    }

    fn directory(&mut self, node: &TreeNodeRef) -> Result<Vec<TreeEntry>> {
        match self.node(node)? {
            TreeNode::Directory(entries) => Ok(entries),
            _ => Err(corrupt("a page of a directory is none")),
        }
    }

    fn stats(&mut self, node: &TreeNodeRef) -> Result<Vec<Stat>> {
        match self.node(node)? {
            TreeNode::Stats(stats) => Ok(stats),
            _ => Err(corrupt("a stat page is none")),
        }
    }

    pub(super) fn file_map(&mut self, node: &TreeNodeRef) -> Result<Vec<Part>> {
        match self.node(node)? {
            TreeNode::FileMap(parts) => Ok(parts),
            _ => Err(corrupt("a page of a file map is none")),
        }
    }

    /// Bytes of a file's content that are no zeroes and no holes. Each index page is read once,
    /// however often it is named.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    pub fn data_bytes(&mut self, map: &FileMap) -> Result<u64> {
        match map {
            FileMap::Inline(parts) => Ok(data(parts)),
            FileMap::Pages(top) => self.data_below(top.levels, &top.node, &mut HashMap::new()),
        }
    }

    /// Those below a page of a file map. Pages lie as many levels deep as a top can say.
    fn data_below(
        &mut self,
        level: u8,
        node: &TreeNodeRef,
        known: &mut HashMap<TreeNodeRef, u64>,
    ) -> Result<u64> {
        if level == 0 {
            return self.file_map(node).map(|parts| data(&parts));
        }
        if let Some(&bytes) = known.get(node) {
            return Ok(bytes);
        }
        let mut sum = 0u64;
        for entry in self.index(level, node)? {
            sum = sum.saturating_add(self.data_below(level - 1, &entry.node, known)?);
        }
        known.insert(*node, sum);
        Ok(sum)
    }

    /// The content of a file from its beginning, in order; `bytes` of it, or it is damaged. Zeroes and
    /// holes come together as in [`map_pages`](Self::map_pages).
    ///
    /// # Errors
    /// `Corrupt` where data is damaged, and those of `each` and the system.
    pub fn read(
        &mut self,
        bytes: u64,
        map: &FileMap,
        verify: Verify,
        each: &mut dyn FnMut(Content<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut left = bytes;
        let mut counted = |content: Content<'_>| {
            let n = match content {
                Content::Bytes(bytes) => bytes.len() as u64,
                Content::Zeroes(n) | Content::Hole(n) => n,
            };
            left = left.checked_sub(n).ok_or_else(too_much)?;
            each(content)
        };
        match map {
            FileMap::Inline(parts) => self.parts(parts, verify, &mut counted)?,
            FileMap::Pages(top) => {
                let (mut pages, mut gaps) = (Pages::new(Some(*top)), Gaps::default());
                while let Some(parts) = pages.next_of_file(self, &mut gaps)? {
                    self.parts(&parts, verify, &mut counted)?;
                }
            }
        }
        match left {
            0 => Ok(()),
            _ => Err(corrupt("a file has less content than its length")),
        }
    }

    /// The parts of a file's content, page by page, each with its first byte in the file; they must
    /// have `bytes` bytes in sum. `each` is told when a page ends, too. Pages that have nothing but
    /// zeroes and holes may come as one part, so that a few of them that are named again and again cost
    /// no more than they are.
    ///
    /// # Errors
    /// As [`node`](Self::node), and those of `each`.
    pub fn map_pages(
        &mut self,
        bytes: u64,
        map: &FileMap,
        each: &mut dyn FnMut(&mut TreeReader, Vec<(u64, Part)>) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0u64;
        let mut page = |reader: &mut TreeReader, parts: Vec<Part>| {
            let mut all = Vec::with_capacity(parts.len());
            for part in parts {
                let n = match &part {
                    Part::Run { bytes, .. } => u64::from(*bytes),
                    Part::Zeroes(bytes) | Part::Hole(bytes) => *bytes,
                    Part::End(_) | Part::Slice { .. } => {
                        return Err(corrupt("a file has a part that no file has"));
                    }
                };
                all.push((at, part));
                at = at
                    .checked_add(n)
                    .filter(|&end| end <= bytes)
                    .ok_or_else(|| corrupt("a file has more content than its length"))?;
            }
            each(reader, all)
        };
        match map {
            FileMap::Inline(parts) => page(self, parts.clone())?,
            FileMap::Pages(top) => {
                let (mut pages, mut gaps) = (Pages::new(Some(*top)), Gaps::default());
                while let Some(parts) = pages.next_of_file(self, &mut gaps)? {
                    page(self, parts)?;
                }
            }
        }
        match at == bytes {
            true => Ok(()),
            false => Err(corrupt("a file has less content than its length")),
        }
    }

    fn parts(
        &mut self,
        parts: &[Part],
        verify: Verify,
        each: &mut dyn FnMut(Content<'_>) -> Result<()>,
    ) -> Result<()> {
        for part in parts {
            match part {
                Part::Run { first, bytes, fingerprints } => {
                    self.reader.run(*first, *bytes, fingerprints, verify, each)?;
                }
                Part::Zeroes(bytes) => each(Content::Zeroes(*bytes))?,
                Part::Hole(bytes) => each(Content::Hole(*bytes))?,
                Part::End(_) | Part::Slice { .. } => {
                    return Err(corrupt("a file has a part that no file has"));
                }
            }
        }
        Ok(())
    }

    /// The attributes of an entry.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn attributes(&mut self, entry: &TreeEntry) -> Result<Named> {
        match &entry.attributes {
            Attributes::Inline(all) => Ok(all.clone()),
            Attributes::Stored(bytes, map) => {
                if *bytes > ATTRIBUTES_BYTES {
                    return Err(corrupt("an entry can't have so many attributes"));
                }
                let mut all = Vec::new();
                self.read(*bytes, map, Verify::Chunks, &mut |content| {
                    match content {
                        Content::Bytes(bytes) => all.extend_from_slice(bytes),
                        Content::Zeroes(n) | Content::Hole(n) => {
                            all.resize(all.len() + n as usize, 0);
                        }
                    }
                    Ok(())
                })?;
                attributes_of(&all)
            }
        }
    }
}

/// Bytes of parts that are no zeroes and no holes.
fn data(parts: &[Part]) -> u64 {
    let bytes = parts.iter().map(|part| match part {
        Part::Run { bytes, .. } => u64::from(*bytes),
        _ => 0,
    });
    bytes.fold(0, u64::saturating_add)
}

pub(super) fn too_much() -> Error {
    corrupt("a file has more content than its length")
}

/// The bytes of stored attributes.
#[must_use]
pub fn encode_attributes(all: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut w = Writer::default();
    w.u32(all.len() as u32);
    for (name, value) in all {
        w.bytes(name).bytes(value);
    }
    w.0
}

/// The attributes that bytes stand for.
///
/// # Errors
/// `Corrupt`.
pub fn attributes_of(bytes: &[u8]) -> Result<Named> {
    let r = &mut Fields(bytes, None);
    let count = r.count(8, 0)?;
    if count > ATTRIBUTES_MAX {
        return Err(corrupt("an entry can't have so many attributes"));
    }
    let all = (0..count)
        .map(|_| Ok((r.bytes()?.to_vec(), r.bytes()?.to_vec())))
        .collect::<Result<_>>()?;
    r.end()?;
    Ok(all)
}

/// The pages of one directory, without those that are not wanted, nor index pages that lead to none.
pub struct DirectoryPages {
    pages: Pages,
    /// The last name that was given.
    last: Vec<u8>,
    /// The page that was given last.
    given: Option<TreeNodeRef>,
}

impl DirectoryPages {
    /// The pages below `top`.
    #[must_use]
    pub fn new(top: Option<Top>) -> DirectoryPages {
        DirectoryPages { pages: Pages::new(top), last: Vec::new(), given: None }
    }

    /// The entries of the next page of which `wants` says so, by its fingerprint; it is asked for
    /// index pages too.
    ///
    /// # Errors
    /// As [`TreeReader::node`].
    pub fn next(
        &mut self,
        reader: &mut TreeReader,
        wants: &mut dyn FnMut(&Fingerprint) -> bool,
    ) -> Result<Option<Vec<TreeEntry>>> {
        while let Some((level, node)) = self.pages.take(reader)? {
            if !wants(&node.fingerprint) {
                continue;
            }
            if level == 0 {
                let entries = reader.directory(&node)?;
                if entries.first().is_some_and(|first| first.name <= self.last) {
                    return Err(out_of_order());
                }
                if let Some(last) = entries.last() {
                    self.last.clone_from(&last.name);
                }
                self.given = Some(node);
                return Ok(Some(entries));
            }
            self.pages.expand(level, &node, reader)?;
        }
        Ok(None)
    }

    /// Gives the memory of index pages back until [`next`](Self::next) is called, which reads them again.
    pub fn rest(&mut self) {
        self.pages.rest();
    }

    /// The entries of the page that was given last, read again: nobody has to hold them while a walk
    /// is deep below.
    ///
    /// # Errors
    /// As [`TreeReader::node`].
    pub fn again(&self, reader: &mut TreeReader) -> Result<Vec<TreeEntry>> {
        self.given.map_or_else(|| Ok(Vec::new()), |node| reader.directory(&node))
    }
}

fn out_of_order() -> Error {
    corrupt("the names of a directory are out of order")
}

/// Pages below an index page, or the topmost page.
struct Level {
    /// Nothing for the topmost page.
    of: Option<TreeNodeRef>,
    /// That of the pages.
    level: u8,
    /// Pages that were given.
    given: usize,
    /// Nothing while it rests.
    pages: Option<Vec<TreeNodeRef>>,
}

/// Bytes of pages that have no data; a hole when they are holes alone.
#[derive(Clone, Copy)]
struct Gap {
    bytes: u64,
    is_hole: bool,
}

impl Gap {
    fn part(self) -> Part {
        if self.is_hole { Part::Hole(self.bytes) } else { Part::Zeroes(self.bytes) }
    }

    fn and(self, next: Gap) -> Gap {
        let bytes = self.bytes.saturating_add(next.bytes);
        Gap { bytes, is_hole: self.is_hole && next.is_hole }
    }

    /// Of parts, if none of them has data.
    fn of(parts: &[Part]) -> Option<Gap> {
        let mut all = Gap { bytes: 0, is_hole: true };
        for part in parts {
            all = all.and(match part {
                Part::Zeroes(bytes) => Gap { bytes: *bytes, is_hole: false },
                Part::Hole(bytes) => Gap { bytes: *bytes, is_hole: true },
                _ => return None,
            });
        }
        Some(all)
    }
}

/// Which pages of a file map have no data, as far as that was looked at.
///
/// A hole costs nothing, and one page can be named again and again: a few of them make a file of more
/// holes than anybody can pass one by one.
#[derive(Default)]
struct Gaps {
    known: HashMap<TreeNodeRef, Option<Gap>>,
}

impl Gaps {
    fn know(&mut self, node: TreeNodeRef, gap: Option<Gap>) {
        if self.known.len() >= GAPS_MAX {
            self.known.clear();
        }
        self.known.insert(node, gap);
    }

    /// The zeroes and holes below an index page of this level, when there is nothing else; it is looked
    /// through for that up to the first page with data. Of a page what is known.
    fn below(
        &mut self,
        reader: &mut TreeReader,
        level: u8,
        node: &TreeNodeRef,
    ) -> Result<Option<Gap>> {
        match (self.known.get(node), level) {
            (Some(known), _) => Ok(*known),
            (None, 0) => Ok(None),
            (None, _) => self.look(reader, level, node),
        }
    }

    /// Each page once. Pages lie as many levels deep as a top can say.
    fn look(
        &mut self,
        reader: &mut TreeReader,
        level: u8,
        node: &TreeNodeRef,
    ) -> Result<Option<Gap>> {
        if let Some(known) = self.known.get(node) {
            return Ok(*known);
        }
        let gap = match self.look_at(reader, level, node) {
            // The damage is told where the page is read.
            Err(error) if is_damage(&error) => None,
            gap => gap?,
        };
        self.know(*node, gap);
        Ok(gap)
    }

    fn look_at(
        &mut self,
        reader: &mut TreeReader,
        level: u8,
        node: &TreeNodeRef,
    ) -> Result<Option<Gap>> {
        if level == 0 {
            return Ok(Gap::of(&reader.file_map(node)?));
        }
        let mut all = Gap { bytes: 0, is_hole: true };
        for page in reader.below(level, node)? {
            let Some(gap) = self.look(reader, level - 1, &page)? else { return Ok(None) };
            all = all.and(gap);
        }
        Ok(Some(all))
    }
}

/// The pages below a top, in order; index pages are read as they are met.
#[derive(Default)]
pub(super) struct Pages {
    levels: Vec<Level>,
    /// What is not given again.
    met: Option<HashSet<TreeNodeRef>>,
}

impl Pages {
    /// Each as often as it is named: the caller ends when there are more of them than the root of
    /// the snapshot or the length of the file says.
    pub(super) fn new(top: Option<Top>) -> Pages {
        let level =
            |top: Top| Level { of: None, level: top.levels, given: 0, pages: Some(vec![top.node]) };
        Pages { levels: top.into_iter().map(level).collect(), met: None }
    }

    /// Each once: a few index pages can lead to one page more often than anybody can look at it.
    pub(super) fn once(top: Option<Top>) -> Pages {
        Pages { met: Some(HashSet::new()), ..Pages::new(top) }
    }

    /// The level and the place of what comes next: a page, or an index page.
    fn ahead(&mut self, reader: &mut TreeReader) -> Result<Option<(u8, TreeNodeRef)>> {
        while let Some(mut last) = self.levels.pop() {
            let pages = match (last.pages.take(), last.of) {
                (Some(pages), _) => pages,
                (None, Some(of)) => reader.below(last.level + 1, &of)?,
                (None, None) => Vec::new(),
            };
            if let Some(&node) = pages.get(last.given) {
                let level = last.level;
                last.pages = Some(pages);
                self.levels.push(last);
                return Ok(Some((level, node)));
            }
        }
        Ok(None)
    }

    /// What [`ahead`](Self::ahead) gave is given.
    fn pass(&mut self) {
        if let Some(last) = self.levels.last_mut() {
            last.given += 1;
        }
    }

    /// The level and the place of what comes next, once.
    fn take(&mut self, reader: &mut TreeReader) -> Result<Option<(u8, TreeNodeRef)>> {
        while let Some((level, node)) = self.ahead(reader)? {
            self.pass();
            if self.met.as_mut().is_none_or(|met| met.insert(node)) {
                return Ok(Some((level, node)));
            }
        }
        Ok(None)
    }

    pub(super) fn next(&mut self, reader: &mut TreeReader) -> Result<Option<TreeNodeRef>> {
        while let Some((level, node)) = self.take(reader)? {
            if level == 0 {
                return Ok(Some(node));
            }
            self.expand(level, &node, reader)?;
        }
        Ok(None)
    }

    /// The parts of the next page of a file's content. All that pages without data have is one part.
    fn next_of_file(
        &mut self,
        reader: &mut TreeReader,
        gaps: &mut Gaps,
    ) -> Result<Option<Vec<Part>>> {
        while let Some((level, node)) = self.take(reader)? {
            if let Some(gap) = gaps.below(reader, level, &node)? {
                return Ok(Some(vec![gap.part()]));
            }
            if level == 0 {
                let parts = reader.file_map(&node)?;
                let gap = Gap::of(&parts);
                gaps.know(node, gap);
                return Ok(Some(gap.map_or(parts, |gap| vec![gap.part()])));
            }
            self.expand(level, &node, reader)?;
        }
        Ok(None)
    }

    /// The next page that can be read, index pages too.
    pub(super) fn next_readable(&mut self, reader: &mut TreeReader) -> Result<Option<TreeNodeRef>> {
        let Some((level, node)) = self.take(reader)? else { return Ok(None) };
        match level {
            0 => drop(reader.node(&node)?),
            _ => self.expand(level, &node, reader)?,
        }
        Ok(Some(node))
    }

    fn expand(&mut self, level: u8, node: &TreeNodeRef, reader: &mut TreeReader) -> Result<()> {
        let pages = Some(reader.below(level, node)?);
        self.levels.push(Level { of: Some(*node), level: level - 1, given: 0, pages });
        Ok(())
    }

    /// Gives memory back: index pages are read again.
    fn rest(&mut self) {
        for level in self.levels.iter_mut().filter(|level| level.of.is_some()) {
            level.pages = None;
        }
    }

    /// Passes over the pages that come next in both.
    fn pass_equal(&mut self, other: &mut Pages, reader: &mut TreeReader) -> Result<()> {
        while let (Some((level, node)), Some((of_other, in_other))) =
            (self.ahead(reader)?, other.ahead(reader)?)
        {
            if level == of_other && node.fingerprint == in_other.fingerprint {
                self.pass();
                other.pass();
            } else if level > 0 && level >= of_other {
                self.pass();
                self.expand(level, &node, reader)?;
            } else if of_other > 0 {
                other.pass();
                other.expand(of_other, &in_other, reader)?;
            } else {
                break;
            }
        }
        Ok(())
    }
}

/// Directories above the one at hand of which a walk holds the page; those above [rest](Entries::rest).
pub const PAGES_HELD: usize = 32;

/// The entries of a directory in the order of their names, with their stats where there are stat
/// pages.
#[derive(Default)]
pub struct Entries {
    pages: Pages,
    stat_pages: Pages,
    entries: std::vec::IntoIter<TreeEntry>,
    stats: std::vec::IntoIter<Stat>,
    last: Vec<u8>,
    /// The page that the entries are of.
    page: Option<TreeNodeRef>,
    /// The rest of its entries is not held.
    rests: bool,
}

impl Entries {
    /// The entries below `top`.
    #[must_use]
    pub fn new(top: Option<Top>, stats: Option<Top>) -> Entries {
        let (pages, stat_pages) = (Pages::new(top), Pages::new(stats));
        Entries { pages, stat_pages, ..Entries::default() }
    }

    /// The next one.
    ///
    /// # Errors
    /// As [`TreeReader::node`].
    pub fn next(&mut self, reader: &mut TreeReader) -> Result<Option<(TreeEntry, Option<Stat>)>> {
        if let Some(page) = self.page.filter(|_| self.rests) {
            let mut entries = reader.directory(&page)?;
            entries.drain(..entries.partition_point(|entry| entry.name <= self.last));
            (self.entries, self.rests) = (entries.into_iter(), false);
        }
        loop {
            if let Some(entry) = self.entries.next() {
                if entry.name <= self.last {
                    return Err(out_of_order());
                }
                self.last.clone_from(&entry.name);
                return Ok(Some((entry, self.stat(reader)?)));
            }
            let Some(node) = self.pages.next(reader)? else { return Ok(None) };
            self.entries = reader.directory(&node)?.into_iter();
            self.page = Some(node);
        }
    }

    /// Gives the memory of its page back until [`next`](Self::next) is called, which reads the page
    /// again. For the directories that a walk deep below them comes back to: of a page of 64 KiB a
    /// process holds several times as many bytes.
    pub fn rest(&mut self) {
        if self.entries.len() > 0 {
            (self.entries, self.rests) = (Vec::new().into_iter(), true);
        }
        self.pages.rest();
        self.stat_pages.rest();
    }

    /// Passes over entries that come next in both, as far as whole pages are equal; only for
    /// entries without stat pages.
    pub(super) fn pass_equal(
        &mut self,
        other: &mut Entries,
        reader: &mut TreeReader,
    ) -> Result<()> {
        match self.entries.len() + other.entries.len() {
            0 if !self.rests && !other.rests => self.pages.pass_equal(&mut other.pages, reader),
            _ => Ok(()),
        }
    }

    fn stat(&mut self, reader: &mut TreeReader) -> Result<Option<Stat>> {
        loop {
            if let Some(stat) = self.stats.next() {
                return Ok(Some(stat));
            }
            let Some(node) = self.stat_pages.next(reader)? else { return Ok(None) };
            self.stats = reader.stats(&node)?.into_iter();
        }
    }
}
