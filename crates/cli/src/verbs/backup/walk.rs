//! A walk below the roots, told to a snapshot that is made: entries in order, content of files
//! that changed, and what the parent has of the others.

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
    fs::File,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use onefold_archive::{
    ATTRIBUTES_INLINE, Attributes, Event, FileMap, FoundInParent, Identity, LEVELS_MAX, SnapshotId,
    Stat, TreeEntry, TreeFeeder, TreeWhat, encode_attributes,
};
use onefold_backend::{
    random::random_bytes,
    spared::{self, Spared},
    sparse::next_data,
    tree::{Found, Looked, Options, Place, Selection, Walk},
};
use onefold_console::size::counted;
use onefold_core::{Error, Kind, Result, tree::What};
use parking_lot::Mutex;

use super::{
    reread::is_due,
    roots::{self, Root},
    settled::{Matching, Now, Settled, Trust, stat_of},
};
use crate::verbs::exclude::{self, Exclude};

/// Longest path below a root, in bytes.
const PATH_MAX: usize = 16 << 10;

/// Most files with several names that are remembered; of more, each name counts as a file.
const LINKED_MAX: usize = 1 << 20;

/// Bytes of the list of what was left out.
const LIST_MAX: usize = 1 << 20;

/// How often a file is read again that changed while it was read.
const READ_AGAIN: u32 = 2;

/// The rules of a walk.
pub(super) struct Rules {
    pub(super) roots: Vec<Root>,
    /// What is left out below each root.
    pub(super) excludes: Vec<Exclude>,
    pub(super) selection: exclude::Options,
    /// Files are read although their times say that they are the parent's.
    pub(super) read_all: bool,
    /// Each file is read again in so many days; 0 for never.
    pub(super) reread_days: u64,
    /// What counts where times of change and inode numbers may mean nothing.
    pub(super) matching: Option<Matching>,
    /// Directories and small files that are asked for at once before they are read.
    pub(super) readers: usize,
    /// The time between two checkpoints.
    pub(super) checkpoint_every: Duration,
    /// Nothing is stored: what would be is counted.
    pub(super) dry: bool,
    /// Files are read.
    pub(super) reads: bool,
}

/// Counts of a walk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Files taken over from the parent, unread.
    pub(super) unchanged: u64,
    /// Files that were read, and their bytes.
    pub(super) read: u64,
    pub(super) read_bytes: u64,
    /// Entries, and the bytes of all files.
    pub(super) entries: u64,
    pub(super) bytes: u64,
    /// Paths that could not be read, whole or in part.
    pub(super) left_out: u64,
    /// Paths that had gone when the walk came to them.
    pub(super) vanished: u64,
    /// Files that changed each time while they were read.
    pub(super) restless: u64,
    /// Files that were read again and have another content than before, although nothing says that they
    /// changed.
    pub(super) silent: u64,
    /// Paths that a rule left out.
    pub(super) excluded: u64,
}

impl Counts {
    /// The sentence on files that have another content although nothing says that they changed.
    pub(super) fn silent_changes(&self) -> String {
        format!(
            "{} had another content than before when read again, although nothing says that it changed: \
             the messages above name it",
            counted(self.silent, "file")
        )
    }

    /// A file of so many bytes was read. Holes make their sum as large as anybody likes.
    fn add(&mut self, bytes: u64) {
        self.read_bytes = self.read_bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// So many files after one that was not in the system's cache are fetched before they are read.
const COLD_FOR: u32 = 256;

/// After a file that was in the cache, so many are believed to be in it too: the question costs a system
/// call.
const WARM_FOR: u32 = 7;

/// So many files that follow one another are read before any is fetched: of a directory in which little
/// changed, nearly all would be fetched for nothing.
const IN_A_ROW: u32 = 3;

/// How deep below a root the directories are from which something was left out by a rule since the
/// walk gave its last entry, and how much. Each of them leads to that entry.
type InPart = Arc<Mutex<(HashSet<usize>, u64)>>;

/// Notes from which directories something is left out.
struct Noting {
    exclude: Exclude,
    /// A single file that is asked for, by its name.
    only: Option<Vec<u8>>,
    in_part: InPart,
}

impl Selection for Noting {
    fn may_want(&mut self, path: &[u8]) -> bool {
        let looked = Looked { is_directory: false, bytes: 0, identity: (0, 0) };
        self.only.as_ref().map_or_else(|| !self.exclude.takes(path, &looked), |only| path == only)
    }

    fn wants(&mut self, path: &[u8], looked: &Looked) -> bool {
        if let Some(only) = &self.only {
            return path == only;
        }
        if !self.exclude.takes(path, looked) {
            return true;
        }
        let (directories, count) = &mut *self.in_part.lock();
        directories.insert(path.iter().filter(|&&byte| byte == b'/').count());
        *count += 1;
        false
    }

    fn tags(&self) -> &[OsString] {
        self.exclude.tags()
    }

    fn rules(&self) -> Option<(&OsStr, usize)> {
        self.exclude.rules().filter(|_| self.only.is_none())
    }

    fn add_rules(&mut self, directory: &[u8], user: u32, text: Option<Vec<u8>>) {
        self.exclude.add_rules(directory, user, text);
    }
}

/// Whether files are worth fetching before they are read: several that follow one another were read,
/// and one of the last of them was not in the system's cache.
#[derive(Default)]
struct Cold {
    /// Files that were read since one was taken over.
    in_a_row: u32,
    /// What the last file was that was looked at.
    is_cold: bool,
    /// Files for which it still holds without looking.
    believed: u32,
}

impl Cold {
    /// Judges before a file is read. What was fetched in time is in the cache, so one that is not counts
    /// for many.
    fn is_next(&mut self, file: &File) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.believed = match self.believed.checked_sub(1) {
            Some(left) => left,
            None => {
                self.is_cold = spared::is_cold(file);
                if self.is_cold { COLD_FOR } else { WARM_FOR }
            }
        };
        self.is_cold && self.in_a_row > IN_A_ROW
    }
}

pub(super) struct Teller<'a, 'f> {
    cold: Cold,
    rules: &'a Rules,
    feeder: &'a mut TreeFeeder<'f>,
    identity: Identity,
    settled: Settled,
    /// Paths of the directories that are open, from the root of the system, and whether something
    /// of them was left out.
    open: Vec<(Vec<u8>, bool)>,
    /// The bytes of files with several names, by their number, when nothing is stored: a snapshot counts
    /// them once for each name.
    linked: HashMap<u64, u64>,
    list: Vec<u8>,
    now: Duration,
    /// When the parents began, in seconds since 1970: what was due by then they have read again.
    since: u64,
    checkpoint_due: Instant,
    pub(super) counts: Counts,
}

impl<'a, 'f> Teller<'a, 'f> {
    pub(super) fn new(
        rules: &'a Rules,
        feeder: &'a mut TreeFeeder<'f>,
        identity: Identity,
        since: u64,
    ) -> Teller<'a, 'f> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Teller {
            cold: Cold::default(),
            rules,
            feeder,
            identity,
            settled: Settled::new(rules.matching),
            open: Vec::new(),
            linked: HashMap::new(),
            list: Vec::new(),
            now,
            since,
            checkpoint_due: Instant::now() + rules.checkpoint_every,
            counts: Counts::default(),
        }
    }

    /// Tells of all roots, and of what was left out.
    pub(super) fn all(&mut self) -> Result<()> {
        self.root()?;
        for (root, exclude) in self.rules.roots.iter().zip(&self.rules.excludes) {
            self.below(root, exclude)?;
        }
        self.leave_to(1)?;
        self.feeder.bytes(&std::mem::take(&mut self.list))?;
        self.feeder.event(Event::End(self.counts.left_out))
    }

    /// Enters the root of the system, which has nothing but what leads to the roots.
    fn root(&mut self) -> Result<()> {
        let (found, mut known) = self.feeder.parents.take_root();
        known.extend(self.feeder.parents.enter(&found)?);
        let mut entry = roots::on_the_way(Path::new("/"));
        // A backup of the whole system tells it again, with its attributes.
        entry.name.clear();
        entry.is_in_part = !self.rules.roots.iter().any(Root::is_all);
        self.open.push((Vec::new(), false));
        self.counts.entries += 1;
        self.feeder.event(Event::Enter(entry, Stat::default(), known))
    }

    /// Goes to the directory above `root`, then tells of `root` and all below it.
    fn below(&mut self, root: &Root, exclude: &Exclude) -> Result<()> {
        let in_part = InPart::default();
        let (mut walk, is_single) = match self.begin(root, exclude, &in_part) {
            Ok(begun) => begun,
            // Without its only root there is no snapshot. Of several, one whose user removes or replaces it
            // keeps no other from theirs.
            Err(error) if self.rules.roots.len() == 1 => return Err(error),
            Err(error) => {
                self.left_out(&error);
                return Ok(());
            }
        };
        let parts: Vec<&[u8]> = root.stored_as.iter().skip(1).map(|part| part.as_bytes()).collect();
        let above = parts.len().saturating_sub(1);
        let shared = self.shared(&parts[..above]);
        self.leave_to(1 + shared)?;
        for n in shared..above {
            let path: PathBuf = Path::new("/").join(OsStr::from_bytes(&parts[..=n].join(&b'/')));
            let entry = roots::on_the_way(&path);
            self.enter(entry, Stat::default())?;
        }
        let depth = self.open.len();
        // The root of the system was entered before.
        let base = if root.is_all() { 0 } else { depth };
        while let Some(found) = walk.next() {
            match found {
                Ok(found) if is_single && found.entry.path.is_empty() => {}
                Ok(found) if is_single => self.entry(&root.stored_as, found, &mut walk)?,
                Ok(found) => {
                    // The content of a directory comes directly behind it.
                    let levels = match found.entry.path.is_empty() {
                        true => 0,
                        false => found.entry.path.split(|&byte| byte == b'/').count(),
                    };
                    self.mark(base, &in_part);
                    if !(root.is_all() && levels == 0) {
                        self.leave_to(base + levels)?;
                        let path = match levels {
                            0 => root.stored_as.clone(),
                            _ => root.stored_as.join(OsStr::from_bytes(&found.entry.path)),
                        };
                        self.entry(&path, found, &mut walk)?;
                    }
                }
                Err(error) => self.left_out(&error),
            }
            self.checkpoint()?;
        }
        self.mark(base, &in_part);
        self.counts.vanished += walk.vanished();
        self.leave_to(depth.max(1))
    }

    /// Begins the walk of a root; true for that of a single file, through its directory.
    fn begin(&self, root: &Root, exclude: &Exclude, in_part: &InPart) -> Result<(Walk, bool)> {
        let place = Place::of(&root.at, false)??;
        let (place, at, only) = match place.is_directory() {
            true => (place, &*root.at, None),
            false => {
                let above = root.at.parent().unwrap_or(&root.at);
                let name = root.at.file_name().map(|name| name.as_bytes().to_vec());
                (Place::of(above, false)??, above, name)
            }
        };
        let is_single = only.is_some();
        Ok((Walk::at(place, at, self.options(root, exclude, only, in_part))?, is_single))
    }

    /// Makes what there is so far a checkpoint, when it is time.
    fn checkpoint(&mut self) -> Result<()> {
        if Instant::now() < self.checkpoint_due || self.rules.dry {
            return Ok(());
        }
        self.checkpoint_due = Instant::now() + self.rules.checkpoint_every;
        self.feeder.checkpoint(SnapshotId(random_bytes()?))
    }

    /// How many of the directories that are open lead to this path.
    fn shared(&self, parts: &[&[u8]]) -> usize {
        let open = self.open.iter().skip(1);
        open.zip(parts)
            .take_while(|((path, _), part)| {
                path.rsplit(|&byte| byte == b'/').next() == Some(**part)
            })
            .count()
    }

    fn options(
        &self,
        root: &Root,
        exclude: &Exclude,
        only: Option<Vec<u8>>,
        in_part: &InPart,
    ) -> Options {
        let noting = Noting { exclude: exclude.clone(), only, in_part: in_part.clone() };
        Options {
            // Readers count levels from the root of the system.
            levels_max: LEVELS_MAX.saturating_sub(root.stored_as.iter().count()),
            path_max: PATH_MAX,
            linked_max: LINKED_MAX,
            opens_late: true,
            selection: Some(Box::new(noting)),
            entered: root.entered(),
            readers: self.rules.readers,
            ..self.rules.selection.of_walk()
        }
    }

    /// Marks the directories that are open, and from which a rule left something out; the root of the
    /// walk is the one of number `base`.
    fn mark(&mut self, base: usize, in_part: &InPart) {
        let (directories, count) = &mut *in_part.lock();
        self.counts.excluded += std::mem::take(count);
        for depth in directories.drain() {
            if let Some((_, is_in_part)) = self.open.get_mut(base + depth) {
                *is_in_part = true;
            }
        }
    }

    fn left_out(&mut self, error: &Error) {
        tracing::warn!("left out: {error}");
        self.counts.left_out += 1;
        self.note(&error.to_string());
        if let Some((_, is_in_part)) = self.open.last_mut() {
            *is_in_part = true;
        }
    }

    /// Adds a line to the list of the snapshot. The name of a file may have ends of lines of its own.
    fn note(&mut self, line: &str) {
        if self.list.len() + line.len() >= LIST_MAX {
            return;
        }
        for c in line.chars() {
            match c.is_control() {
                true => self.list.extend(c.escape_default().map(|c| c as u8)),
                false => self.list.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        self.list.push(b'\n');
    }

    /// A file has another content than before, although nothing says that it changed.
    fn changed_silently(&mut self, path: &Path) {
        self.counts.silent += 1;
        let line = format!(
            "{}: its content is not that of the last snapshot, although its size, inode number and times \
             are the same",
            path.display()
        );
        tracing::warn!("{line}: see what changed it, or whether the disk did");
        self.note(&line);
    }

    /// Leaves directories until so many are open.
    fn leave_to(&mut self, depth: usize) -> Result<()> {
        while self.open.len() > depth.max(1)
            && let Some((_, is_in_part)) = self.open.pop()
        {
            self.feeder.parents.leave();
            self.feeder.event(Event::Leave(is_in_part))?;
        }
        Ok(())
    }

    fn enter(&mut self, entry: TreeEntry, stat: Stat) -> Result<()> {
        let found = self.feeder.parents.find(&entry.name)?;
        let known = self.feeder.parents.enter(&found)?;
        self.counts.entries += 1;
        let above = self.open.last().map(|(path, _)| path.clone()).unwrap_or_default();
        self.open.push(([&above[..], b"/", &entry.name].concat(), false));
        self.feeder.event(Event::Enter(entry, stat, known))
    }

    /// Tells of an entry in the directory that is open, which is stored under this path; the walk
    /// gave it last.
    fn entry(&mut self, path: &Path, mut found: Found, walk: &mut Walk) -> Result<()> {
        let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        if let What::File { bytes, .. } = found.entry.what {
            let before = self.feeder.parents.find(&name)?;
            if self.settled.is_new(found.device) {
                if !self.open(&mut found, walk) {
                    return Ok(());
                }
                if let Some(file) = &found.file {
                    self.settled.ask(found.device, file);
                }
            }
            if let Some(known) = self.unchanged(&before, &found, path, bytes)? {
                self.cold = Cold::default();
                return self.taken_over(known, &found, bytes, path);
            }
            if !self.open(&mut found, walk) {
                return Ok(());
            }
            if self.rules.reads
                && let Some(file) = &found.file
                && self.cold.is_next(file)
            {
                walk.fetch_ahead();
            }
            return self.file(found, name, path, &before);
        }
        if !self.open(&mut found, walk) {
            return Ok(());
        }
        let (mut node, stat) = self.told(&mut found, name, path)?;
        node.what = match std::mem::replace(&mut found.entry.what, What::Fifo) {
            What::Directory => {
                // The walk gives no directory that a snapshot can't have.
                node.what = TreeWhat::Directory(None);
                if let Some(user) = found.mounted_by {
                    self.counts.excluded += 1;
                    tracing::warn!(
                        "{}: user {user} mounted a file system of his own there; what is in it is \
                         left out",
                        path.display()
                    );
                }
                self.enter(node, stat)?;
                // A restore with removals must know that there was more.
                if let Some((_, is_in_part)) = self.open.last_mut() {
                    *is_in_part |= found.is_in_part;
                }
                return Ok(());
            }
            What::HardLink { target } => {
                let path = path.as_os_str().as_bytes();
                let root = &path[..path.len().saturating_sub(found.entry.path.len())];
                node.link = self.link(&[root, &target].concat());
                self.feeder.parents.find(&node.name)?;
                self.counts.entries += 1;
                let bytes = self.linked.get(&node.link).copied().unwrap_or(0);
                self.counts.bytes = self.counts.bytes.saturating_add(bytes);
                return self.feeder.event(Event::Link(node, stat));
            }
            What::File { .. } => return Ok(()),
            What::Symlink { target } => TreeWhat::Symlink(target),
            What::Fifo => TreeWhat::Fifo,
            What::Socket => TreeWhat::Socket,
            What::CharacterDevice(device) => TreeWhat::CharacterDevice(device),
            What::BlockDevice(device) => TreeWhat::BlockDevice(device),
        };
        if let Some(why) = node.refusal() {
            let sentence = format!("{}: {why}", path.display());
            self.left_out(&Error::new(Kind::Unsupported, sentence));
            return Ok(());
        }
        self.feeder.parents.find(&node.name)?;
        self.counts.entries += 1;
        self.feeder.event(Event::Other(node, stat))
    }

    /// Opens what the walk gave last; false when that can't be, or when it has vanished.
    fn open(&mut self, found: &mut Found, walk: &mut Walk) -> bool {
        match walk.open(found) {
            Ok(true) => return true,
            Ok(false) => self.counts.vanished += 1,
            Err(error) => self.left_out(&error),
        }
        false
    }

    /// What is told of any entry. Its attributes are told first, when they are many.
    fn told(&mut self, found: &mut Found, name: Vec<u8>, path: &Path) -> Result<(TreeEntry, Stat)> {
        if let Some(error) = found.lacks.take() {
            self.left_out(&error);
        }
        let entry = &mut found.entry;
        let mut node = TreeEntry {
            name,
            what: TreeWhat::Fifo,
            mode: entry.mode & 0o7777,
            uid: entry.uid,
            gid: entry.gid,
            seconds: entry.seconds,
            nanoseconds: entry.nanoseconds,
            link: 0,
            is_in_part: false,
            attributes: Attributes::default(),
        };
        self.attributes(&mut node, std::mem::take(&mut entry.attributes))?;
        if found.linked.is_some() {
            node.link = self.link(path.as_os_str().as_bytes());
        }
        Ok((node, stat_of(found)))
    }

    /// A file that the parent has, unread.
    fn taken_over(
        &mut self,
        known: TreeEntry,
        found: &Found,
        bytes: u64,
        path: &Path,
    ) -> Result<()> {
        let TreeWhat::File(_, map) = known.what else { return Ok(()) };
        let (entry, stat) = (&found.entry, Stat { is_settled: true, ..stat_of(found) });
        let first = path.as_os_str().as_bytes();
        let link = if found.linked.is_some() { self.link(first) } else { 0 };
        let node = TreeEntry {
            what: TreeWhat::File(0, FileMap::default()),
            mode: entry.mode & 0o7777,
            uid: entry.uid,
            gid: entry.gid,
            link,
            ..known
        };
        self.counts.unchanged += 1;
        self.counts.entries += 1;
        self.counts.bytes = self.counts.bytes.saturating_add(bytes);
        self.keep_linked(link, bytes);
        self.feeder.skip(bytes);
        self.feeder.event(Event::File(node, stat, Some((bytes, map))))
    }

    /// Remembers the bytes of a file that may have further names.
    fn keep_linked(&mut self, link: u64, bytes: u64) {
        if self.rules.dry && link != 0 {
            self.linked.insert(link, bytes);
        }
    }

    /// A number for all names of a file, from the first one. Nobody who lacks the archive's secret
    /// chooses names that have one number.
    fn link(&self, first: &[u8]) -> u64 {
        self.identity.checksum(first).max(1)
    }

    fn attributes(&mut self, node: &mut TreeEntry, all: Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
        let encoded = encode_attributes(&all);
        if encoded.len() <= ATTRIBUTES_INLINE {
            node.attributes = Attributes::Inline(all);
            return Ok(());
        }
        self.feeder.bytes(&encoded)?;
        self.feeder.event(Event::Attributes)
    }

    /// Reads a file.
    fn file(
        &mut self,
        mut found: Found,
        name: Vec<u8>,
        path: &Path,
        before: &[FoundInParent],
    ) -> Result<()> {
        let Some(file) = found.file.take() else { return Ok(()) };
        let What::File { bytes, .. } = found.entry.what else { return Ok(()) };
        let now = Now::of(&found, bytes);
        let (mut node, mut stat) = self.told(&mut found, name, path)?;
        node.what = TreeWhat::File(0, FileMap::default());
        self.counts.read += 1;
        self.counts.entries += 1;
        if !self.rules.reads {
            match file.metadata() {
                Ok(metadata) => {
                    self.counts.add(metadata.len());
                    self.keep_linked(node.link, metadata.len());
                }
                Err(e) => self.left_out(&roots::unseen(path, e)),
            }
            return Ok(());
        }
        let trust = self.settled.ask(found.device, &file);
        let compare = |feeder: &mut TreeFeeder<'_>| match trust {
            Some(Trust { matching, .. }) => {
                feeder.compare(before, |entry, known| now.is_same(entry, known, matching))
            }
            None => Ok(()),
        };
        compare(self.feeder)?;
        if self.feeder.only_compares()? {
            let found = self.still_the_same(&file, &node, &stat, (trust, bytes))?;
            if let Some((map, is_settled)) = found {
                stat.is_settled = is_settled;
                self.counts.add(bytes);
                self.keep_linked(node.link, bytes);
                return self.feeder.event(Event::File(node, stat, Some((bytes, map))));
            }
            compare(self.feeder)?;
        }
        let known = self.feeder.parents.pages_of(before)?;
        if !known.is_empty() {
            self.feeder.event(Event::Known(known))?;
        }
        let (mut tries, mut length) = (0, bytes);
        loop {
            let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // The length belongs to the time of change that is compared.
            let read = self.read(&file, length)?;
            let differed = self.feeder.differed();
            let after = match file.metadata() {
                Ok(after) => after,
                // What was read of it counts, like that of a file that fails while it is read.
                Err(e) => {
                    node.is_in_part = true;
                    self.left_out(&roots::unseen(path, e));
                    self.counts.add(bytes);
                    return self.feeder.event(Event::File(node, stat, None));
                }
            };
            let changed = (stat.changed_seconds, stat.changed_nanoseconds);
            let written = (node.seconds, node.nanoseconds);
            (stat.changed_seconds, stat.changed_nanoseconds) =
                (after.ctime(), whole(after.ctime_nsec()));
            (node.seconds, node.nanoseconds) = (after.mtime(), whole(after.mtime_nsec()));
            let (time, last) = match trust {
                Some(trust) if !trust.matching.ctime => (written, (node.seconds, node.nanoseconds)),
                _ => (changed, (stat.changed_seconds, stat.changed_nanoseconds)),
            };
            // Of a file that is being cut off the length changes before the times do.
            let same = time == last && after.len() == length;
            match read {
                Some(error) => {
                    node.is_in_part = true;
                    self.left_out(&error.context(path.display()));
                }
                None if !same && tries < READ_AGAIN => {
                    (tries, length) = (tries + 1, after.len());
                    self.feeder.event(Event::Discard)?;
                    continue;
                }
                None if !same => {
                    self.counts.restless += 1;
                    let line =
                        format!("{}: it changed each time while it was read", path.display());
                    tracing::warn!("{line}");
                    self.note(&line);
                }
                None => {
                    if differed && tries == 0 && after.len() == bytes {
                        self.changed_silently(path);
                    }
                    stat.is_settled =
                        trust.is_some_and(|trust| trust.is_settled(began, time, last));
                }
            }
            self.counts.add(after.len());
            self.keep_linked(node.link, after.len());
            return self.feeder.event(Event::File(node, stat, None));
        }
    }

    /// Reads a file that would be stored again although it is there, since a data key was changed; gives what is
    /// stored of it, when that is the same and the file did not change meanwhile, and whether it is settled.
    fn still_the_same(
        &mut self,
        file: &File,
        node: &TreeEntry,
        stat: &Stat,
        (trust, bytes): (Option<Trust>, u64),
    ) -> Result<Option<(FileMap, bool)>> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let read = self.read(file, bytes)?;
        let same = self.feeder.same()?;
        let Ok(after) = file.metadata() else { return Ok(None) };
        let changed = (after.ctime(), whole(after.ctime_nsec()));
        let written = (after.mtime(), whole(after.mtime_nsec()));
        let is_as_it_was = changed == (stat.changed_seconds, stat.changed_nanoseconds)
            && written == (node.seconds, node.nanoseconds)
            && after.len() == bytes;
        if read.is_some() || !is_as_it_was {
            return Ok(None);
        }
        let time = match trust {
            Some(trust) if !trust.matching.ctime => written,
            _ => changed,
        };
        let is_settled = trust.is_some_and(|trust| trust.is_settled(began, time, time));
        Ok(same.map(|map| (map, is_settled)))
    }

    /// What a parent has of a file, when it is the same and whole.
    fn unchanged(
        &mut self,
        before: &[FoundInParent],
        found: &Found,
        path: &Path,
        bytes: u64,
    ) -> Result<Option<TreeEntry>> {
        let Some(trust) = self.settled.trust(found.device) else { return Ok(None) };
        if self.rules.read_all || self.is_due(path) {
            return Ok(None);
        }
        let now = Now::of(found, bytes);
        let is_same = |entry: &TreeEntry, known: &Stat| {
            !entry.is_in_part && now.is_same(entry, known, trust.matching)
        };
        self.feeder.parents.first_sound(before, is_same)
    }

    /// True when a file is read again, although nothing changed.
    fn is_due(&self, path: &Path) -> bool {
        let of_path = self.identity.checksum(path.as_os_str().as_bytes());
        is_due(of_path, self.rules.reread_days, self.since, self.now.as_secs())
    }

    /// Gives all of a file, its holes without reading them; an error is one of reading it.
    fn read(&mut self, file: &File, bytes: u64) -> Result<Option<Error>> {
        let (mut at, mut spared) = (0, Spared::new(file, bytes));
        loop {
            let (start, end) = match next_data(file, at, bytes) {
                Ok(Some(range)) => range,
                Ok(None) => (bytes, bytes),
                Err(error) => return Ok(Some(error)),
            };
            if start > at {
                self.feeder.hole(start - at)?;
            }
            at = start;
            if at >= bytes {
                return Ok(None);
            }
            while at < end {
                let mut failed = None;
                let n = self.feeder.fill(|room| {
                    let most = room.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                    loop {
                        match spared.read_at(&mut room[..most], at) {
                            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                            Err(e) => {
                                failed = Some(Error::from_io("it can't be read", e));
                                return Ok(0);
                            }
                            Ok(n) => return Ok(n),
                        }
                    }
                })?;
                if failed.is_some() {
                    return Ok(failed);
                }
                if n == 0 {
                    // The file was cut off meanwhile: its length is what was read.
                    return Ok(None);
                }
                at += n as u64;
            }
        }
    }
}

/// The nanoseconds of a time; a damaged or hostile file system tells of more than a second has.
fn whole(nanoseconds: i64) -> u32 {
    nanoseconds.clamp(0, 999_999_999) as u32
}
