//! The tree of a snapshot, built from what a walk says and from the places of chunks, in their
//! order.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::{
    borders,
    file_map::FileMapWriter,
    levels::{Levels, Store},
    links::Links,
};
use crate::{
    format::{
        Address,
        backup::SnapshotId,
        bytes::Writer,
        listing::LEVELS_MAX,
        recipe::Part,
        tree_node::{
            Attributes, FileMap, INLINE_CHUNKS, Key, Root, Stat, TOO_LONG, Top, TreeEntry,
            TreeNode, TreeNodeRef, TreeWhat, fits, is_name,
        },
    },
    operations_log::{Archive, Domain},
    rules::Rule,
    stream::{PieceWriter, Target},
};

/// Pages of the parent snapshot that a page may be equal to, and where they lie.
pub type Known = HashMap<Fingerprint, Address>;

/// Known pages of one directory or file that are looked for, at most; others are written anew.
pub(super) const KNOWN_OF_ONE: usize = 1 << 17;

/// Known pages of all directories that are open, at most. Of what lies deeper none are remembered, and
/// its pages are written anew: a client may name the same pages at each level.
const KNOWN_MAX: usize = 1 << 19;

/// Bytes of pages that wait for more entries, in all directories that are open, at most. A directory that
/// is entered beyond it is there in part, without its entries.
const PENDING_BYTES: usize = 16 << 20;

/// Bytes of memory of the attributes of all directories that are open, at most. One that is entered beyond
/// it is there in part, without its attributes.
const ATTRIBUTES_BYTES: usize = 8 << 20;

/// How many bytes a checkpoint may write for each that came since the last one, and how many at once in any
/// case: a checkpoint writes the pages of all directories that are open.
const CHECKPOINT_SHARE: u64 = 4;
const CHECKPOINT_BYTES: u64 = 256 << 10;

/// A message of a walk, behind the chunks that belong to it.
#[derive(Debug)]
pub enum Event {
    /// A directory, which comes with its entries. Chunks before it are its attributes, when these
    /// are [stored](Attributes::Stored); its pages are filled in when it is left.
    Enter(TreeEntry, Stat, Known),
    /// The end of the directory that was entered last. True when something in it was left out.
    Leave(bool),
    /// The pages that the parent has of the content that comes now.
    Known(Known),
    /// Content that the archive has, chunk by chunk: where each is, its fingerprint, and its bytes.
    Chunks(Vec<(Address, Fingerprint, u32)>),
    /// The content that was given so far is forgotten: it is read again.
    Discard,
    /// Attributes of the next entry end here.
    Attributes,
    /// A file, the content of which ends here, or which is taken over from the parent.
    File(TreeEntry, Stat, Option<(u64, FileMap)>),
    /// An entry without content.
    Other(TreeEntry, Stat),
    /// Another name of the entry with the same link number, which came before.
    Link(TreeEntry, Stat),
    /// Between two entries: what there is so far becomes a tree, the checkpoint of this id, for
    /// [`TreeBuilder::take_checkpoint`].
    Checkpoint(SnapshotId),
    /// The end. The content before it is the list of what was left out: so many entries.
    End(u64),
}

impl Event {
    /// About how many bytes of memory it takes while it waits for its mark.
    pub(super) fn memory(&self) -> u64 {
        let pages = |known: &Known| known.len() * 2 * size_of::<(Fingerprint, Address)>();
        let entry = |entry: &TreeEntry| entry.attributes.memory();
        let more = match self {
            Event::Enter(of, _, known) => of.name.len() + entry(of) + pages(known),
            Event::Known(known) => pages(known),
            Event::Chunks(all) => size_of_val(&all[..]),
            Event::File(of, _, taken) => {
                let parts = match taken {
                    Some((_, FileMap::Inline(parts))) => {
                        parts.len() * size_of::<Part>() + INLINE_CHUNKS * 16
                    }
                    _ => 0,
                };
                of.name.len() + entry(of) + parts
            }
            Event::Other(of, _) | Event::Link(of, _) => of.name.len() + entry(of),
            _ => 0,
        };
        (size_of::<Event>() + more) as u64
    }
}

/// A finished tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built {
    /// Its root.
    pub root: TreeNodeRef,
    /// The stat pages of the root directory.
    pub stats: Option<Top>,
    /// Entries of all directories.
    pub entries: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// How much was left out.
    pub left_out: u64,
    /// Pages that were written.
    pub pages: u64,
    /// Pages that the parent had.
    pub pages_taken: u64,
}

/// A directory that was entered and not left.
#[derive(Clone)]
struct Open {
    entry: TreeEntry,
    stat: Stat,
    known: Arc<Known>,
    page: Writer,
    stats: Writer,
    entries: u64,
    /// The first name of the page, with its hash.
    first: Option<(Vec<u8>, u64)>,
    last: Vec<u8>,
    levels: Levels,
    stat_levels: Levels,
}

/// Builds the tree. Feed it with chunks as a target of a session, and with an event for each mark.
pub struct TreeBuilder {
    domain: Arc<Domain>,
    by_content: bool,
    events: VecDeque<Event>,
    /// Bytes of memory of the events.
    events_bytes: u64,
    open: Vec<Open>,
    /// Known pages of those that are open.
    held: usize,
    /// Bytes of their pages that wait for more entries.
    pending: usize,
    /// Bytes of memory of their attributes.
    attributes_bytes: usize,
    /// Bytes of content and of events since the last checkpoint.
    fed: u64,
    /// Directories that were entered, and are not stored: the first of them is open, without entries.
    skipped: usize,
    content: FileMapWriter,
    /// Stored attributes of the next entry.
    attributes: Option<(u64, FileMap)>,
    links: Links,
    /// Names that were left out here: their first names are not remembered.
    left_out: u64,
    entries: u64,
    bytes: u64,
    pages: u64,
    pages_taken: u64,
    built: Option<Built>,
    checkpoint: Option<(SnapshotId, Built)>,
    /// The parent's pages of the content that comes now.
    known: Known,
}

impl TreeBuilder {
    /// A builder for a tree in a domain of this archive.
    #[must_use]
    pub fn new(archive: &Archive, domain: &Arc<Domain>) -> TreeBuilder {
        TreeBuilder {
            domain: domain.clone(),
            by_content: archive.keeps(Rule::PagesEndByContent),
            events: VecDeque::new(),
            events_bytes: 0,
            open: Vec::new(),
            held: 0,
            pending: 0,
            attributes_bytes: 0,
            fed: 0,
            skipped: 0,
            content: FileMapWriter::default(),
            attributes: None,
            links: Links::default(),
            left_out: 0,
            entries: 0,
            bytes: 0,
            pages: 0,
            pages_taken: 0,
            built: None,
            checkpoint: None,
            known: Known::new(),
        }
    }

    /// The event of the next mark.
    pub fn expect(&mut self, event: Event) {
        self.events_bytes += event.memory();
        self.fed = self.fed.saturating_add(event.memory());
        self.events.push_back(event);
    }

    /// The finished tree.
    ///
    /// # Errors
    /// `Stopped` when the last event was not the end: the walk failed, and has the reason.
    pub fn built(&self) -> Result<Built> {
        self.built.ok_or_else(|| Error::new(Kind::Stopped, "a snapshot ends before its end"))
    }

    /// The tree of the last checkpoint, once.
    pub fn take_checkpoint(&mut self) -> Option<(SnapshotId, Built)> {
        self.checkpoint.take()
    }

    fn apply(&mut self, event: Event, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        if self.built.is_some() {
            return Err(misplaced("something comes behind the end of a snapshot"));
        }
        match event {
            Event::Enter(mut entry, stat, known) => {
                self.take_attributes(&mut entry);
                let is_named = match self.open.is_empty() {
                    true => entry.name.is_empty(),
                    false => is_name(&entry.name),
                };
                if !is_named {
                    return Err(misplaced("a directory has a name that none has"));
                }
                if let Some(why) = entry.flaw() {
                    return Err(refused(&entry, why));
                }
                if self.open.len() + self.skipped > LEVELS_MAX {
                    return Err(refused(&entry, "it has too many directories above it"));
                }
                if self.skipped > 0 {
                    self.skipped += 1;
                    return Ok(());
                }
                if self.pending > PENDING_BYTES {
                    (entry.is_in_part, self.skipped) = (true, 1);
                    self.left_out += 1;
                }
                self.entries += u64::from(!self.open.is_empty());
                let fits = self.held.saturating_add(known.len()) <= KNOWN_MAX;
                let known = if fits { known } else { Known::new() };
                self.held += known.len();
                let attributes = entry.attributes.memory();
                if self.attributes_bytes.saturating_add(attributes) > ATTRIBUTES_BYTES {
                    (entry.attributes, entry.is_in_part) = (Attributes::default(), true);
                    self.left_out += 1;
                }
                self.attributes_bytes += entry.attributes.memory();
                self.open.push(Open::new(entry, stat, known));
                Ok(())
            }
            Event::Leave(_) if self.skipped > 1 => {
                self.skipped -= 1;
                Ok(())
            }
            Event::Leave(is_in_part) => {
                self.skipped = 0;
                // The root is left by the end.
                let Some(open) = self.open.pop().filter(|_| !self.open.is_empty()) else {
                    return Err(misplaced("the root of a snapshot is left"));
                };
                self.held -= open.known.len();
                self.attributes_bytes -= open.entry.attributes.memory();
                let (entry, stat) = self.close(open, is_in_part, write_piece)?;
                self.push(&entry, &stat, write_piece)
            }
            Event::Known(known) => {
                self.known = known;
                Ok(())
            }
            Event::Chunks(all) => {
                for (address, fingerprint, bytes) in all {
                    self.chunk(address, fingerprint, bytes, write_piece)?;
                }
                Ok(())
            }
            Event::Discard => {
                self.content = FileMapWriter::default();
                Ok(())
            }
            Event::Attributes => {
                self.attributes = Some(self.end_content(write_piece)?);
                Ok(())
            }
            Event::File(mut entry, stat, taken) => {
                let content = match taken {
                    Some(taken) => taken,
                    None => self.end_content(write_piece)?,
                };
                self.count(0, content.0);
                entry.what = TreeWhat::File(content.0, content.1);
                self.entry(entry, &stat, write_piece)
            }
            Event::Other(entry, stat) => self.entry(entry, &stat, write_piece),
            Event::Link(mut entry, stat) => {
                entry.what = match self.links.find(entry.link)? {
                    Some(what) => what,
                    None if self.links.is_full => return self.leave_out(),
                    None => return Err(misplaced("a link comes before its file")),
                };
                if let TreeWhat::File(bytes, _) = &entry.what {
                    self.count(0, *bytes);
                }
                self.entry(entry, &stat, write_piece)
            }
            Event::Checkpoint(id) => self.so_far(id, write_piece),
            Event::End(left_out) => self.end(left_out, write_piece),
        }
    }

    fn entry(
        &mut self,
        mut entry: TreeEntry,
        stat: &Stat,
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<()> {
        self.take_attributes(&mut entry);
        if entry.link != 0 && !self.links.keep(entry.link, &entry.what) {
            entry.link = 0;
        }
        self.count(1, 0);
        self.push(&entry, stat, write_piece)
    }

    /// Counts what is stored.
    fn count(&mut self, entries: u64, bytes: u64) {
        if self.skipped == 0 {
            self.entries += entries;
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    /// Leaves out a further name of a file whose first name is not remembered: the directory is there
    /// in part.
    fn leave_out(&mut self) -> Result<()> {
        let Some(open) = self.open.last_mut() else {
            return Err(misplaced("an entry comes before its directory"));
        };
        open.entry.is_in_part = true;
        self.left_out += 1;
        self.attributes = None;
        Ok(())
    }

    fn take_attributes(&mut self, entry: &mut TreeEntry) {
        if let Some((bytes, content)) = self.attributes.take() {
            entry.attributes = Attributes::Stored(bytes, content);
        }
    }

    /// Ends the content that was fed.
    fn end_content(&mut self, write_piece: &mut PieceWriter<'_>) -> Result<(u64, FileMap)> {
        let content = std::mem::take(&mut self.content);
        let known = std::mem::take(&mut self.known);
        content.end(&mut |page| self.store(page, &known, write_piece))
    }

    /// Appends an entry to the directory that is open.
    fn push(
        &mut self,
        entry: &TreeEntry,
        stat: &Stat,
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<()> {
        if self.skipped > 0 {
            return Ok(());
        }
        let Some(mut open) = self.open.pop() else {
            return Err(misplaced("an entry comes before its directory"));
        };
        let pushed = self.push_to(&mut open, entry, stat, write_piece);
        self.open.push(open);
        pushed
    }

    fn push_to(
        &mut self,
        open: &mut Open,
        entry: &TreeEntry,
        stat: &Stat,
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<()> {
        if open.last >= entry.name || !is_name(&entry.name) {
            return Err(misplaced("entries of a directory come out of order, or have no names"));
        }
        let mut bytes = Writer::default();
        entry.encode(&mut bytes);
        let too_long = (!fits(bytes.0.len())).then_some(TOO_LONG);
        if let Some(why) = entry.flaw().or(too_long) {
            return Err(refused(entry, why));
        }
        let mut stat_bytes = Writer::default();
        stat.encode(&mut stat_bytes);
        let is_full = borders::is_full(open.page.0.len(), bytes.0.len())
            || borders::is_full(open.stats.0.len(), stat_bytes.0.len());
        if is_full {
            self.close_page(open, write_piece)?;
        }
        let hash = borders::of_name(self.domain.borders, &entry.name);
        open.first.get_or_insert_with(|| (entry.name.clone(), hash));
        open.last.clone_from(&entry.name);
        open.page.raw(&bytes.0);
        open.stats.raw(&stat_bytes.0);
        self.pending += bytes.0.len() + stat_bytes.0.len();
        open.entries += 1;
        let ends = match self.by_content {
            true => borders::ends(hash, 0),
            false => open.entries == 3,
        };
        if ends { self.close_page(open, write_piece) } else { Ok(()) }
    }

    fn close_page(&mut self, open: &mut Open, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        if open.entries == 0 {
            return Ok(());
        }
        let Some((name, hash)) = open.first.take() else { return Ok(()) };
        let waited = open.pending();
        let (page, stats) = (open.page.take(DIRECTORY), open.stats.take(STATS));
        self.pending -= waited;
        let entries = std::mem::take(&mut open.entries);
        let Open { known, levels, stat_levels, .. } = open;
        let store: &mut Store<'_> = &mut |page| self.store(page, known, write_piece);
        let node = store(page)?;
        levels.push(node, Key::Name(name), hash, store)?;
        let node = store(stats)?;
        stat_levels.push(node, Key::Sum(entries), hash, store)?;
        open.first = None;
        Ok(())
    }

    /// Writes the last pages of a directory; gives its entry, and its stat.
    fn close(
        &mut self,
        mut open: Open,
        is_in_part: bool,
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<(TreeEntry, Stat)> {
        self.close_page(&mut open, write_piece)?;
        let Open { mut entry, mut stat, known, levels, stat_levels, .. } = open;
        let store: &mut Store<'_> = &mut |page| self.store(page, &known, write_piece);
        entry.what = TreeWhat::Directory(levels.end(store)?);
        stat.pages = stat_levels.end(store)?;
        entry.is_in_part |= is_in_part;
        Ok((entry, stat))
    }

    fn end(&mut self, left_out: u64, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        let list = self.end_content(write_piece)?;
        let root = self.open.pop().filter(|_| self.open.is_empty());
        let root = root.ok_or_else(|| misplaced("a snapshot ends within a directory"))?;
        self.built = Some(self.close_root(root, left_out, list, write_piece)?);
        Ok(())
    }

    /// Makes a tree of what there is so far, as if all open directories ended here.
    fn so_far(&mut self, id: SnapshotId, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        let pending = self.pending;
        let may = self.fed.saturating_mul(CHECKPOINT_SHARE).saturating_add(CHECKPOINT_BYTES);
        if pending as u64 > may {
            // It would write too much: the next one counts.
            return Ok(());
        }
        self.fed = 0;
        let mut open = self.open.clone();
        while let Some(last) = open.pop() {
            if let Some(above) = open.last_mut() {
                let (entry, stat) = self.close(last, true, write_piece)?;
                self.push_to(above, &entry, &stat, write_piece)?;
            } else {
                let none = (0, FileMap::default());
                let built = self.close_root(last, 0, none, write_piece)?;
                self.checkpoint = Some((id, built));
            }
        }
        // All is open as before.
        self.pending = pending;
        Ok(())
    }

    fn close_root(
        &mut self,
        root: Open,
        left_out: u64,
        list: (u64, FileMap),
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<Built> {
        let root_known = root.known.clone();
        let (directory, stat) = self.close(root, false, write_piece)?;
        let entries = self.entries + 1;
        let left_out = left_out.saturating_add(self.left_out);
        let root = Root { directory, entries, bytes: self.bytes, left_out, list };
        let root = TreeNode::Root(Box::new(root)).encode();
        if !fits(root.len()) {
            return Err(misplaced(
                "the root of a snapshot has more attributes than a page has room for",
            ));
        }
        let root = self.store(root, &root_known, write_piece)?;
        let (pages, pages_taken) = (self.pages, self.pages_taken);
        let (stats, bytes) = (stat.pages, self.bytes);
        Ok(Built { root, stats, entries, bytes, left_out, pages, pages_taken })
    }

    /// Names the page of the parent that is equal, or writes one.
    fn store(
        &mut self,
        page: Vec<u8>,
        known: &Known,
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<TreeNodeRef> {
        let fingerprint = self.domain.fingerprinter.bytes(&page);
        if let Some(&address) = known.get(&fingerprint) {
            self.pages_taken += 1;
            return Ok(TreeNodeRef { address, fingerprint });
        }
        self.pages += 1;
        Ok(TreeNodeRef { address: write_piece(page)?, fingerprint })
    }

    fn with_content(
        &mut self,
        write_piece: &mut PieceWriter<'_>,
        add: impl FnOnce(&mut FileMapWriter, &mut Store<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut content = std::mem::take(&mut self.content);
        let known = std::mem::take(&mut self.known);
        let done = add(&mut content, &mut |page| self.store(page, &known, write_piece));
        (self.content, self.known) = (content, known);
        done
    }
}

/// The kinds of the pages, which come first in them.
const DIRECTORY: u8 = 1;
const STATS: u8 = 3;

impl Open {
    fn new(entry: TreeEntry, stat: Stat, known: Known) -> Open {
        Open {
            entry,
            stat,
            known: Arc::new(known),
            page: Writer(vec![DIRECTORY]),
            stats: Writer(vec![STATS]),
            entries: 0,
            first: None,
            last: Vec::new(),
            levels: Levels::default(),
            stat_levels: Levels::default(),
        }
    }

    /// Bytes that wait for more entries.
    fn pending(&self) -> usize {
        // Each page begins with its kind.
        self.page.0.len() + self.stats.0.len() - 2
    }
}

impl Writer {
    /// Takes a page, and begins the next one.
    fn take(&mut self, kind: u8) -> Vec<u8> {
        std::mem::replace(&mut self.0, vec![kind])
    }
}

fn refused(entry: &TreeEntry, why: &str) -> Error {
    let name = String::from_utf8_lossy(&entry.name);
    misplaced(&format!("'{}' can't be stored: {why}", name.escape_debug()))
}

fn misplaced(what: &str) -> Error {
    Error::new(Kind::InvalidInput, what)
}

impl Target for TreeBuilder {
    fn chunk(
        &mut self,
        address: Address,
        fingerprint: Fingerprint,
        bytes: u32,
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<()> {
        self.fed = self.fed.saturating_add(u64::from(bytes));
        self.with_content(write_piece, |content, store| {
            content.chunk(address, fingerprint, bytes, store)
        })
    }

    fn zeroes(&mut self, bytes: u64, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        self.with_content(write_piece, |content, store| content.zeroes(bytes, store))
    }

    fn hole(&mut self, bytes: u64, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        self.with_content(write_piece, |content, store| content.hole(bytes, store))
    }

    fn mark(&mut self, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        let event = self.events.pop_front().ok_or_else(|| misplaced("a mark says nothing"))?;
        self.events_bytes = self.events_bytes.saturating_sub(event.memory());
        self.apply(event, write_piece)
    }

    fn waiting(&self) -> u64 {
        self.events_bytes
    }
}
