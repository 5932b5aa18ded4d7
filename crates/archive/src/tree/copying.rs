//! A snapshot of another archive, told as a walk through directories would tell it: entries in their order,
//! content of files, and what the archive that it goes to has of them already.
//!
//! Nothing of the other archive is believed. Its nodes and chunks are read by the ordinary readers, which compare
//! fingerprints; its entries go through the builder of trees, which refuses what no directory has; and it
//! has no more entries and bytes than its root says, so that a few pages that name each other again and again
//! end. Addresses of the other archive mean nothing here: no event has one.
//!
//! | content | how it comes over |
//! |---|---|
//! | of a file that the snapshot before has too, with the same map in the other archive | taken over from the copy of that snapshot, unread |
//! | of a file that a checkpoint of this same copy has | taken over from there, unread |
//! | chunks that are here, by their fingerprints, in archives of one secret | named, unread |
//! | all else | read, verified, and cut and looked up like what a backup reads |

use std::{collections::HashMap, sync::Arc};

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::{
    backup::TreeFeeder,
    builder::Event,
    parent::{Found, Parents},
    reader::{Entries, PAGES_HELD, TreeReader, encode_attributes},
    same_content::same_content,
};
use crate::{
    format::{
        Address,
        backup::{Snapshot, SnapshotId},
        bytes::{Writer, corrupt},
        listing::LEVELS_MAX,
        recipe::Part,
        tree_node::{Attributes, FileMap, Root, Stat, TreeEntry, TreeWhat},
    },
    operations_log::Archive,
    rules::Rule,
    stream::{Content, StoredChunk, Verify},
};

/// First names of files with several that are remembered; of more, each name is a file of its own.
const LINKS_MAX: usize = 1 << 20;

/// Where a copy goes.
pub trait CopySink {
    /// Content.
    ///
    /// # Errors
    /// It can't be stored.
    fn bytes(&mut self, bytes: &[u8]) -> Result<()>;

    /// Zeroes of the file at hand.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    fn zeroes(&mut self, bytes: u64) -> Result<()>;

    /// A hole of the file at hand.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    fn hole(&mut self, bytes: u64) -> Result<()>;

    /// An event, behind the content that was given so far.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    fn event(&mut self, event: Event) -> Result<()>;

    /// Between two entries: what there is so far becomes a checkpoint of this id.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    fn checkpoint(&mut self, id: SnapshotId) -> Result<()>;

    /// Content of so many bytes is taken over unread.
    fn skip(&mut self, bytes: u64);

    /// Where the archive has chunks of these fingerprints, and their bytes, by what it says itself.
    ///
    /// # Errors
    /// Errors of the system.
    fn stored(&mut self, of: &[Fingerprint]) -> Result<Vec<Option<StoredChunk>>>;

    /// The trees of the checkpoint and of the copy of the snapshot before, beside the walk.
    fn parents(&mut self) -> &mut Parents;
}

impl CopySink for TreeFeeder<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        TreeFeeder::bytes(self, bytes)
    }

    fn zeroes(&mut self, bytes: u64) -> Result<()> {
        TreeFeeder::zeroes(self, bytes)
    }

    fn hole(&mut self, bytes: u64) -> Result<()> {
        TreeFeeder::hole(self, bytes)
    }

    fn event(&mut self, event: Event) -> Result<()> {
        TreeFeeder::event(self, event)
    }

    fn checkpoint(&mut self, id: SnapshotId) -> Result<()> {
        TreeFeeder::checkpoint(self, id)
    }

    fn skip(&mut self, bytes: u64) {
        TreeFeeder::skip(self, bytes);
    }

    fn stored(&mut self, of: &[Fingerprint]) -> Result<Vec<Option<StoredChunk>>> {
        TreeFeeder::stored(self, of)
    }

    fn parents(&mut self) -> &mut Parents {
        &mut self.parents
    }
}

/// Which snapshot is copied, and what both archives have of it.
pub struct Copying<'a> {
    /// The archive that it comes from.
    pub from: &'a Arc<Archive>,
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// The snapshot before it, of which the archive that it goes to has a copy.
    pub before: Option<&'a Snapshot>,
    /// The first of the sink's [parents](CopySink::parents) is a checkpoint of this copy; that of the
    /// snapshot before follows.
    pub has_checkpoint: bool,
    /// Both archives compute fingerprints by one secret.
    pub shares: bool,
}

/// Why a copy of a snapshot ended.
#[derive(Debug)]
pub struct CopyFailure {
    /// The reason.
    pub error: Error,
    /// The snapshot could not be read where it is; else it could not be stored.
    pub at_source: bool,
    /// The snapshot was forgotten and collected since it was chosen. Other errors can have the same kind: files
    /// of an archive that are lost are not found either.
    pub is_gone: bool,
}

impl CopyFailure {
    /// The other archive can't be read.
    #[must_use]
    pub fn at_source(error: Error) -> CopyFailure {
        CopyFailure { error, at_source: true, is_gone: false }
    }

    /// It can't be stored.
    #[must_use]
    pub fn at_target(error: Error) -> CopyFailure {
        CopyFailure { error, at_source: false, is_gone: false }
    }
}

/// What was read and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Bytes of content that were read.
    pub read: u64,
    /// Bytes of files that were taken over from an earlier copy, and of chunks that were here.
    pub taken_over: u64,
}

impl Copying<'_> {
    /// Tells a snapshot to a sink, to its end. `due` is asked after each entry, and gives the id of a checkpoint
    /// when one is due.
    ///
    /// # Errors
    /// At the source with `is_gone`: the snapshot is gone since it was chosen; `Corrupt`: it can't be read, or is not what
    /// its root says. It can't be stored.
    pub fn tell(
        &self,
        sink: &mut dyn CopySink,
        due: &mut dyn FnMut() -> Option<SnapshotId>,
    ) -> Result<CopyCounts, CopyFailure> {
        let at_source = CopyFailure::at_source;
        let reader = TreeReader::new(self.from).map_err(at_source)?;
        // A copy of many goes on for days. What the reader sees stays as long as it reads.
        if reader.tables().snapshots.get(self.snapshot.id).is_err() {
            let why = "the snapshot was forgotten and collected since it was chosen";
            let gone = at_source(Error::new(Kind::NotFound, why));
            return Err(CopyFailure { is_gone: true, ..gone });
        }
        let before: Vec<&Snapshot> = self.before.into_iter().collect();
        let before = Parents::new(self.from, &before).map_err(at_source)?;
        let to = To { sink, has_failed: false, counts: CopyCounts::default() };
        let mut walk = Walk { copying: self, reader, before, to, due, links: HashMap::new() };
        let told = walk.all();
        let To { has_failed, counts, .. } = walk.to;
        told.map(|()| counts)
            .map_err(|error| CopyFailure { at_source: !has_failed, ..at_source(error) })
    }
}

/// The sink, and whether it failed.
struct To<'a> {
    sink: &'a mut dyn CopySink,
    has_failed: bool,
    counts: CopyCounts,
}

impl To<'_> {
    fn does<T>(&mut self, act: impl FnOnce(&mut dyn CopySink) -> Result<T>) -> Result<T> {
        let done = act(self.sink);
        self.has_failed |= done.is_err();
        done
    }

    fn event(&mut self, event: Event) -> Result<()> {
        self.does(|sink| sink.event(event))
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.counts.read = self.counts.read.saturating_add(bytes.len() as u64);
        self.does(|sink| sink.bytes(bytes))
    }
}

struct Walk<'a, 'b> {
    copying: &'b Copying<'b>,
    reader: TreeReader,
    /// The snapshot before, in the other archive.
    before: Parents,
    to: To<'a>,
    due: &'a mut dyn FnMut() -> Option<SnapshotId>,
    /// What the first names of files with several have, as a hash.
    links: HashMap<u64, [u8; 32]>,
}

/// Entries and bytes that may still come.
struct Left {
    entries: u64,
    bytes: u64,
}

impl Left {
    fn of(root: &Root) -> Left {
        Left { entries: root.entries, bytes: root.bytes }
    }

    fn take(&mut self, bytes: u64) -> Result<()> {
        let left = self.entries.checked_sub(1).zip(self.bytes.checked_sub(bytes));
        (self.entries, self.bytes) = left.ok_or_else(other_totals)?;
        Ok(())
    }
}

fn other_totals() -> Error {
    corrupt("a snapshot has more or less than its root says")
}

impl Walk<'_, '_> {
    fn all(&mut self) -> Result<()> {
        let snapshot = self.copying.snapshot;
        let root = self.reader.root(snapshot)?;
        if (root.entries, root.bytes) != (snapshot.entries, snapshot.bytes) {
            return Err(other_totals());
        }
        let mut left = Left::of(&root);
        left.take(0)?;
        let (found, mut known) = self.to.sink.parents().take_root();
        let more = self.to.does(|sink| sink.parents().enter(&found))?;
        known.extend(more);
        let (found, _) = self.before.take_root();
        self.before.enter(&found)?;
        let TreeWhat::Directory(top) = root.directory.what else { return Err(other_totals()) };
        let mut directory = bare(&root.directory, TreeWhat::Directory(None));
        self.attributes(&root.directory, &mut directory)?;
        self.to.event(Event::Enter(directory, Stat::default(), known))?;
        let mut open = vec![(Entries::new(top, snapshot.stats), root.directory.is_in_part)];
        while let Some((entries, is_in_part)) = open.last_mut() {
            let Some((entry, stat)) = entries.next(&mut self.reader)? else {
                let is_in_part = *is_in_part;
                open.pop();
                if !open.is_empty() {
                    self.leave(is_in_part)?;
                }
                continue;
            };
            let bytes = if let TreeWhat::File(bytes, _) = entry.what { bytes } else { 0 };
            left.take(bytes)?;
            if let TreeWhat::Directory(top) = entry.what {
                if open.len() > LEVELS_MAX {
                    return Err(corrupt("a snapshot has too many directories in each other"));
                }
                let below = Entries::new(top, stat.and_then(|stat| stat.pages));
                let is_in_part = entry.is_in_part;
                self.enter(&entry)?;
                open.push((below, is_in_part));
                let above = open.len().checked_sub(PAGES_HELD + 1).and_then(|n| open.get_mut(n));
                above.into_iter().for_each(|(entries, _)| entries.rest());
            } else {
                self.entry(&entry)?;
            }
            if let Some(id) = (self.due)() {
                self.to.does(|sink| sink.checkpoint(id))?;
            }
        }
        if left.entries > 0 || left.bytes > 0 {
            return Err(other_totals());
        }
        let (bytes, list) = root.list;
        self.content(bytes, &list)?;
        self.to.event(Event::End(root.left_out))
    }

    fn enter(&mut self, entry: &TreeEntry) -> Result<()> {
        let name = &entry.name;
        let found = self.to.does(|sink| sink.parents().find(name))?;
        let known = self.to.does(|sink| sink.parents().enter(&found))?;
        let found = self.before.find(name)?;
        self.before.enter(&found)?;
        let mut directory = bare(entry, TreeWhat::Directory(None));
        self.attributes(entry, &mut directory)?;
        self.to.event(Event::Enter(directory, Stat::default(), known))
    }

    fn leave(&mut self, is_in_part: bool) -> Result<()> {
        self.to.sink.parents().leave();
        self.before.leave();
        self.to.event(Event::Leave(is_in_part))
    }

    /// An entry that is no directory. What the other archive says of inode and time of change is not stored: a backup
    /// that takes the copy for the last snapshot of its host reads all files.
    fn entry(&mut self, entry: &TreeEntry) -> Result<()> {
        let stat = Stat::default();
        let TreeWhat::File(bytes, map) = &entry.what else {
            let mut other = bare(entry, entry.what.clone());
            self.attributes(entry, &mut other)?;
            return self.to.event(Event::Other(other, stat));
        };
        let mut file = bare(entry, TreeWhat::File(0, FileMap::default()));
        let is_further_name = entry.link != 0 && !self.is_first(entry.link, &entry.what);
        if is_further_name {
            self.attributes(entry, &mut file)?;
            self.skip(*bytes);
            return self.to.event(Event::Link(file, stat));
        }
        let found = self.to.does(|sink| sink.parents().find(&entry.name))?;
        let taken = self.taken(entry, *bytes, map, &found)?;
        self.attributes(entry, &mut file)?;
        if let Some(taken) = taken {
            self.skip(*bytes);
            return self.to.event(Event::File(file, stat, Some((*bytes, taken))));
        }
        let known = self.to.does(|sink| sink.parents().pages_of(&found))?;
        if !known.is_empty() {
            self.to.event(Event::Known(known))?;
        }
        self.content(*bytes, map)?;
        self.to.event(Event::File(file, stat, None))
    }

    fn skip(&mut self, bytes: u64) {
        self.to.counts.taken_over = self.to.counts.taken_over.saturating_add(bytes);
        self.to.sink.skip(bytes);
    }

    /// False for another name of what came before, with the same content.
    fn is_first(&mut self, link: u64, what: &TreeWhat) -> bool {
        let mut w = Writer::default();
        what.encode(&mut w);
        let hash = *blake3::hash(&w.0).as_bytes();
        match self.links.get(&link) {
            Some(before) => *before != hash,
            None if self.links.len() >= LINKS_MAX => true,
            None => {
                self.links.insert(link, hash);
                true
            }
        }
    }

    /// The content of a file as it is stored here, if it is known to be the same: that of a checkpoint of this
    /// copy, or of the copy of the snapshot before, where the other archive has one map of both.
    fn taken(
        &mut self,
        entry: &TreeEntry,
        bytes: u64,
        map: &FileMap,
        found: &[Found],
    ) -> Result<Option<FileMap>> {
        let earlier = self.before.find(&entry.name)?.pop();
        let has_checkpoint = usize::from(self.copying.has_checkpoint);
        // A collection may have taken one of them since they were chosen: nobody knows which the others are.
        if found.len() != has_checkpoint + usize::from(self.copying.before.is_some()) {
            return Ok(None);
        }
        let (of_checkpoint, of_before) = found.split_at(has_checkpoint);
        let is_long =
            |here: &TreeEntry| matches!(here.what, TreeWhat::File(here, _) if here == bytes);
        if !of_checkpoint.is_empty() {
            let is_it = |here: &TreeEntry, _: &Stat| {
                let times = |it: &TreeEntry| (it.seconds, it.nanoseconds, it.is_in_part);
                is_long(here) && times(here) == times(entry)
            };
            let sound = self.to.does(|sink| sink.parents().first_sound(of_checkpoint, is_it))?;
            if let Some(TreeEntry { what: TreeWhat::File(_, map), .. }) = sound {
                return Ok(Some(map));
            }
        }
        let Some(TreeEntry { what: TreeWhat::File(of_earlier, in_earlier), .. }) =
            earlier.and_then(|found| found.entry)
        else {
            return Ok(None);
        };
        let is_same = of_earlier == bytes
            && (in_earlier == *map || same_content(&mut self.reader, bytes, [map, &in_earlier])?);
        if !is_same || of_before.is_empty() {
            return Ok(None);
        }
        let mut behind = vec![Found::default(); of_checkpoint.len()];
        behind.extend_from_slice(of_before);
        let sound =
            self.to.does(|sink| sink.parents().first_sound(&behind, |here, _| is_long(here)))?;
        Ok(sound.and_then(|found| match found.what {
            TreeWhat::File(_, map) => Some(map),
            _ => None,
        }))
    }

    /// Gives the attributes of an entry to the one that is told.
    fn attributes(&mut self, entry: &TreeEntry, told: &mut TreeEntry) -> Result<()> {
        match &entry.attributes {
            Attributes::Inline(_) => {
                told.attributes = entry.attributes.clone();
                Ok(())
            }
            Attributes::Stored(..) => {
                let all = self.reader.attributes(entry)?;
                self.to.bytes(&encode_attributes(&all))?;
                self.to.event(Event::Attributes)
            }
        }
    }

    /// Gives content of so many bytes, page by page.
    fn content(&mut self, bytes: u64, map: &FileMap) -> Result<()> {
        let (to, shares) = (&mut self.to, self.copying.shares);
        self.reader.map_pages(bytes, map, &mut |reader, parts| {
            parts.into_iter().try_for_each(|(_, part)| match part {
                Part::Run { first, bytes, fingerprints } => {
                    run(reader, to, shares, (first, bytes, &fingerprints))
                }
                Part::Zeroes(bytes) => to.does(|sink| sink.zeroes(bytes)),
                Part::Hole(bytes) => to.does(|sink| sink.hole(bytes)),
                Part::End(_) | Part::Slice { .. } => {
                    Err(corrupt("a file has a part that no file has"))
                }
            })
        })
    }
}

/// An entry without what names places of the other archive.
fn bare(entry: &TreeEntry, what: TreeWhat) -> TreeEntry {
    TreeEntry { what, attributes: Attributes::default(), ..entry.clone() }
}

/// Gives the chunks of a run: those that are here by their places, the others by their bytes.
fn run(
    reader: &mut TreeReader,
    to: &mut To<'_>,
    shares: bool,
    (first, bytes, fingerprints): (Address, u32, &[Fingerprint]),
) -> Result<()> {
    let here = match shares {
        true => to.does(|sink| sink.stored(fingerprints))?,
        false => Vec::new(),
    };
    if here.iter().all(Option::is_none) {
        return read(reader, to, (first, bytes, fingerprints));
    }
    let chunks = reader.chunks_of(first, fingerprints)?;
    let sum = |chunks: &[(Fingerprint, u32)]| chunks.iter().map(|it| u64::from(it.1)).sum::<u64>();
    if sum(&chunks) != u64::from(bytes) {
        return Err(corrupt("a file has other bytes than its chunks"));
    }
    // One that is of another length here is read: its fingerprint tells who lies.
    let is_it = |(here, of): (Option<StoredChunk>, &(Fingerprint, u32))| {
        here.filter(|(_, bytes)| *bytes == of.1)
    };
    let here: Vec<Option<StoredChunk>> = here.into_iter().zip(&chunks).map(is_it).collect();
    let mut at = 0;
    for group in here.chunk_by(|one, other| one.is_some() == other.is_some()) {
        let of = &chunks[at..at + group.len()];
        let bytes = sum(of) as u32;
        if group.first().is_some_and(Option::is_some) {
            to.counts.taken_over = to.counts.taken_over.saturating_add(u64::from(bytes));
            let named = group.iter().zip(of).filter_map(|(here, of)| {
                let (address, bytes) = (*here)?;
                Some((address, of.0, bytes))
            });
            to.event(Event::Chunks(named.collect()))?;
        } else {
            let slot = u16::try_from(at).ok().and_then(|n| first.slot.checked_add(n));
            let slot = slot.ok_or_else(|| corrupt("a run has more chunks than a container"))?;
            let of: Vec<Fingerprint> = of.iter().map(|it| it.0).collect();
            read(reader, to, (Address { slot, ..first }, bytes, &of))?;
        }
        at += group.len();
    }
    Ok(())
}

/// Reads chunks where they come from; each is compared with its fingerprint.
fn read(
    reader: &mut TreeReader,
    to: &mut To<'_>,
    (first, bytes, fingerprints): (Address, u32, &[Fingerprint]),
) -> Result<()> {
    let verify = match reader.archive().keeps(Rule::CopiedVerified) {
        true => Verify::Chunks,
        false => Verify::Groups,
    };
    let run = Part::Run { first, bytes, fingerprints: fingerprints.to_vec() };
    let map = FileMap::Inline(vec![run]);
    reader.read(u64::from(bytes), &map, verify, &mut |content| match content {
        Content::Bytes(bytes) => to.bytes(bytes),
        Content::Zeroes(bytes) | Content::Hole(bytes) => to.does(|sink| sink.zeroes(bytes)),
    })
}
