//! Pages and content of trees, cached, for several threads.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_archive::{
    Address, Archive, Content, FileMap, IndexEntry, Key, Part, Snapshot, Tables, Top, TreeEntry,
    TreeNode, TreeNodeRef, TreeReader, Verify,
};
use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};

/// How long a reader stays in its epoch.
const STAYS: Duration = Duration::from_secs(1);

/// Most bytes of the chunks of one run: no container has more.
const RUN_BYTES: u32 = 16 << 20;

/// Reads trees.
pub(crate) struct Trees {
    archive: Arc<Archive>,
    /// Readers that nobody uses at the moment, and when they were made.
    idle: Mutex<Vec<(Instant, TreeReader)>>,
    nodes: Cache<TreeNodeRef, Arc<TreeNode>, Pages>,
    /// Chunks that lie one behind the other, by the first one's address.
    runs: Cache<(Address, u32), Arc<Vec<u8>>, Bytes>,
}

#[derive(Clone)]
struct Pages;

impl Weighter<TreeNodeRef, Arc<TreeNode>> for Pages {
    fn weight(&self, _: &TreeNodeRef, node: &Arc<TreeNode>) -> u64 {
        // What an entry takes in memory, with its name and a few chunks.
        match &**node {
            TreeNode::Directory(entries) => 256 + entries.iter().map(entry_bytes).sum::<u64>(),
            TreeNode::Index(_, entries) => 256 + 100 * entries.len() as u64,
            TreeNode::FileMap(parts) => 256 + parts.iter().map(part_bytes).sum::<u64>(),
            TreeNode::Stats(_) | TreeNode::Root(_) => 1024,
        }
    }
}

fn entry_bytes(entry: &TreeEntry) -> u64 {
    400 + entry.attributes.memory() as u64
}

fn part_bytes(part: &Part) -> u64 {
    match part {
        Part::Run { fingerprints, .. } => 64 + 16 * fingerprints.len() as u64,
        _ => 64,
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<(Address, u32), Arc<Vec<u8>>> for Bytes {
    fn weight(&self, _: &(Address, u32), bytes: &Arc<Vec<u8>>) -> u64 {
        256 + bytes.len() as u64
    }
}

/// A page, and where in it an entry stands.
pub(crate) type Place = (TreeNodeRef, u32);

/// The entries of a directory, one after the other, and again from any that was given before.
pub(crate) struct Walk {
    wanted: Vec<(u8, TreeNodeRef)>,
    /// The pages that were met, and the number of the first entry of each.
    met: Vec<(u64, TreeNodeRef)>,
    /// How many entries these have.
    known: u64,
    /// The last name of these.
    last: Vec<u8>,
    /// The number of the next entry.
    next: u64,
    /// The page of the last one, with its place among those that were met.
    page: Option<(usize, Arc<TreeNode>)>,
}

impl Trees {
    /// With caches of so many bytes together.
    pub(crate) fn new(archive: &Arc<Archive>, cached: u64) -> Trees {
        let half = cached / 2;
        Trees {
            archive: archive.clone(),
            idle: Mutex::default(),
            nodes: Cache::with_weighter(4096, half, Pages),
            runs: Cache::with_weighter(64, half, Bytes),
        }
    }

    /// The archive as it is now, or was a second ago.
    pub(crate) fn tables(&self) -> Result<Arc<Tables>> {
        self.with(|reader| Ok(reader.tables().clone()))
    }

    /// Lets readers go that nobody has used for a while.
    pub(crate) fn rest(&self) {
        self.idle.lock().retain(|(made, _)| made.elapsed() < STAYS);
    }

    fn with<T>(&self, work: impl FnOnce(&mut TreeReader) -> Result<T>) -> Result<T> {
        self.rest();
        let idle = self.idle.lock().pop();
        let (made, mut reader) = match idle {
            Some(idle) => idle,
            None => (Instant::now(), TreeReader::new(&self.archive)?),
        };
        let done = work(&mut reader);
        self.idle.lock().push((made, reader));
        done
    }

    /// Does `work` with what lies at an address; `Stale` when a collection has removed that.
    fn at<T>(
        &self,
        address: Address,
        work: impl FnOnce(&mut TreeReader) -> Result<T>,
    ) -> Result<T> {
        self.with(|reader| {
            let tables = reader.tables().clone();
            work(reader).map_err(|error| match tables.places(address.container).next() {
                None => Error::new(Kind::Stopped, "the snapshot is gone"),
                Some(_) => error,
            })
        })
    }

    /// The root directory of a snapshot, and a number that no other one has.
    pub(crate) fn root(&self, snapshot: &Snapshot) -> Result<TreeEntry> {
        self.at(snapshot.root.address, |reader| reader.proves_domain(snapshot))?;
        match &*self.node(&snapshot.root)? {
            TreeNode::Root(root) => Ok(root.directory.clone()),
            _ => Err(Error::new(Kind::Corrupt, "the root of a snapshot is none")),
        }
    }

    fn node(&self, node: &TreeNodeRef) -> Result<Arc<TreeNode>> {
        if let Some(found) = self.nodes.get(node) {
            return Ok(found);
        }
        let read = self.at(node.address, |reader| reader.node(node))?;
        let read = Arc::new(read);
        self.nodes.insert(*node, read.clone());
        Ok(read)
    }

    /// The entry at a place.
    pub(crate) fn entry(&self, (page, index): &Place) -> Result<TreeEntry> {
        match &*self.node(page)? {
            TreeNode::Directory(entries) => entries.get(*index as usize).cloned(),
            _ => None,
        }
        .ok_or_else(|| Error::new(Kind::Corrupt, "a page of a directory is none"))
    }

    /// The entry of this name in a directory.
    pub(crate) fn find(&self, top: &Top, name: &[u8]) -> Result<Option<(Place, TreeEntry)>> {
        let (mut level, mut at) = (top.levels, top.node);
        while level > 0 {
            let node = self.node(&at)?;
            let entries = index(&node, level)?;
            let before = |entry: &IndexEntry| match &entry.key {
                Key::Name(first) => first.as_slice() <= name,
                Key::Sum(_) => false,
            };
            let Some(n) = entries.partition_point(before).checked_sub(1) else { return Ok(None) };
            let Some(entry) = entries.get(n) else { return Ok(None) };
            (level, at) = (level - 1, entry.node);
        }
        let node = self.node(&at)?;
        let TreeNode::Directory(entries) = &*node else {
            return Err(Error::new(Kind::Corrupt, "a page of a directory is none"));
        };
        let found = entries.binary_search_by(|entry| entry.name.as_slice().cmp(name));
        Ok(found.ok().map(|n| ((at, n as u32), entries[n].clone())))
    }

    /// Bytes of a file from `offset` on; fewer at its end.
    pub(crate) fn read(
        &self,
        bytes: u64,
        map: &FileMap,
        offset: u64,
        size: u64,
    ) -> Result<Vec<u8>> {
        let end = bytes.min(offset.saturating_add(size));
        let mut out = Vec::with_capacity(end.saturating_sub(offset) as usize);
        match map {
            FileMap::Inline(parts) => self.copy(parts, 0, offset, end, &mut out)?,
            FileMap::Pages(top) => self.copy_pages(bytes, top, offset, end, &mut out)?,
        }
        if out.len() as u64 != end.saturating_sub(offset) {
            return Err(Error::new(Kind::Corrupt, "a file has less content than its length"));
        }
        Ok(out)
    }

    /// Copies what is between `from` and `end` of a file of so many bytes, the pages of which are
    /// below `top`. Each page has what is said of it above, so that no more pages are read than there
    /// are bytes to copy, on each level.
    fn copy_pages(
        &self,
        bytes: u64,
        top: &Top,
        from: u64,
        end: u64,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let mut wanted = vec![(top.levels, top.node, 0u64, bytes)];
        while let Some((level, node, mut begins, bytes)) = wanted.pop() {
            let node = self.node(&node)?;
            let said = begins.saturating_add(bytes);
            if level == 0 {
                let TreeNode::FileMap(parts) = &*node else {
                    return Err(Error::new(Kind::Corrupt, "a page of a file map is none"));
                };
                self.copy(parts, begins, from, end, out)?;
                begins = parts.iter().map(Part::bytes).fold(begins, u64::saturating_add);
            } else {
                let mut hit = Vec::new();
                for entry in index(&node, level)? {
                    let Key::Sum(bytes) = entry.key else { continue };
                    let ends: u64 = bytes.saturating_add(begins);
                    if ends > from && begins < end {
                        hit.push((level - 1, entry.node, begins, bytes));
                    }
                    begins = ends;
                }
                wanted.extend(hit.into_iter().rev());
            }
            if begins != said {
                let why = "a page of a file map has other bytes than is said of it";
                return Err(Error::new(Kind::Corrupt, why));
            }
        }
        Ok(())
    }

    /// Copies what is between `from` and `end` of the parts, the first of which begins at `at`.
    fn copy(
        &self,
        parts: &[Part],
        mut at: u64,
        from: u64,
        end: u64,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        for part in parts {
            let ends = at.saturating_add(part.bytes());
            let (first, last) = (at.max(from), ends.min(end));
            if first < last {
                match part {
                    Part::Run { .. } => {
                        let run = self.run(part)?;
                        let range = (first - at) as usize..(last - at) as usize;
                        out.extend_from_slice(run.get(range).unwrap_or_default());
                    }
                    _ => out.resize(out.len() + (last - first) as usize, 0),
                }
            }
            at = ends;
        }
        Ok(())
    }

    /// The bytes of a run, verified.
    fn run(&self, part: &Part) -> Result<Arc<Vec<u8>>> {
        let Part::Run { first, bytes, .. } = part else { return Ok(Arc::default()) };
        if let Some(found) = self.runs.get(&(*first, *bytes)) {
            return Ok(found);
        }
        if *bytes > RUN_BYTES {
            return Err(Error::new(Kind::Corrupt, "a run of chunks can't be so long"));
        }
        let map = FileMap::Inline(vec![part.clone()]);
        let mut run = Vec::with_capacity(*bytes as usize);
        self.at(*first, |reader| {
            reader.read(u64::from(*bytes), &map, Verify::Chunks, &mut |content| {
                if let Content::Bytes(bytes) = content {
                    run.extend_from_slice(bytes);
                }
                Ok(())
            })
        })?;
        let run = Arc::new(run);
        self.runs.insert((*first, *bytes), run.clone());
        Ok(run)
    }

    /// The attributes of an entry.
    pub(crate) fn attributes(&self, entry: &TreeEntry) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.with(|reader| reader.attributes(entry))
    }
}

fn index(node: &TreeNode, level: u8) -> Result<&[IndexEntry]> {
    match node {
        TreeNode::Index(found, entries) if *found == level => Ok(entries),
        _ => Err(Error::new(Kind::Corrupt, "an index page is none")),
    }
}

impl Walk {
    pub(crate) fn new(top: Option<Top>) -> Walk {
        let wanted = top.iter().map(|top| (top.levels, top.node)).collect();
        Walk { wanted, met: Vec::new(), known: 0, last: Vec::new(), next: 0, page: None }
    }

    /// The number of the next entry.
    pub(crate) fn at(&self) -> u64 {
        self.next
    }

    /// Goes on at an entry that was given before. Behind them all nobody was told of a place: that
    /// is the end.
    pub(crate) fn seek(&mut self, at: u64) {
        if at > self.known {
            self.wanted.clear();
        }
        self.next = at;
    }

    /// Holds no page until the next entry is asked for.
    pub(crate) fn let_go(&mut self) {
        self.page = None;
    }

    /// The next entry.
    pub(crate) fn next(&mut self, trees: &Trees) -> Result<Option<(Place, TreeEntry)>> {
        while self.next >= self.known {
            if !self.meet(trees)? {
                return Ok(None);
            }
        }
        let n = self.met.partition_point(|(first, _)| *first <= self.next) - 1;
        let (first, node) = self.met[n];
        let page = match &self.page {
            Some((of, page)) if *of == n => page.clone(),
            _ => trees.node(&node)?,
        };
        let index = self.next - first;
        let entry = match &*page {
            TreeNode::Directory(entries) => entries.get(index as usize).cloned(),
            _ => None,
        };
        let entry =
            entry.ok_or_else(|| Error::new(Kind::Corrupt, "a page of a directory is none"))?;
        self.page = Some((n, page));
        self.next += 1;
        Ok(Some(((node, index as u32), entry)))
    }

    /// Meets the next page; false behind the last one.
    fn meet(&mut self, trees: &Trees) -> Result<bool> {
        while let Some((level, node)) = self.wanted.pop() {
            let page = trees.node(&node)?;
            let TreeNode::Directory(entries) = &*page else {
                let below = index(&page, level)?;
                self.wanted.extend(below.iter().rev().map(|entry| (level - 1, entry.node)));
                continue;
            };
            let (Some(first), Some(last)) = (entries.first(), entries.last()) else { continue };
            // A few index pages can lead to one page more often than anybody can list it.
            if level > 0 || first.name <= self.last {
                let why = "the pages of a directory are out of order";
                return Err(Error::new(Kind::Corrupt, why));
            }
            self.last.clone_from(&last.name);
            self.met.push((self.known, node));
            self.known += entries.len() as u64;
            return Ok(true);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use onefold_archive::{Attributes, ContainerId, TreeWhat};
    use onefold_core::Fingerprint;

    use super::*;

    #[test]
    fn rule_09_a_cached_page_weighs_what_its_attributes_take() {
        let weight = |attributes: usize| {
            let attributes = vec![(Vec::new(), Vec::new()); attributes];
            let entry = TreeEntry {
                name: b"name".to_vec(),
                what: TreeWhat::Fifo,
                mode: 0,
                uid: 0,
                gid: 0,
                seconds: 0,
                nanoseconds: 0,
                link: 0,
                is_in_part: false,
                attributes: Attributes::Inline(attributes),
            };
            let address = Address { container: ContainerId(1), slot: 0 };
            let node = TreeNodeRef { address, fingerprint: Fingerprint([0; 16]) };
            Pages.weight(&node, &Arc::new(TreeNode::Directory(vec![entry])))
        };
        let taken = size_of::<(Vec<u8>, Vec<u8>)>() as u64;
        assert!(weight(10_000) - weight(0) >= 10_000 * taken);
    }
}
