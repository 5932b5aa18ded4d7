//! `onefold restore`: files and directories out of a snapshot.

mod wanted;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use onefold_archive::{
    Archive, Content, Entries, Snapshot, TreeEntry, TreeReader, TreeWhat, Verify,
};
use onefold_backend::{
    room::room,
    tree::{Choices, Restorer, write_part},
};
use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, IN_PART, What},
};
use serde_json::json;

use self::wanted::{Takes, Wanted};
use super::{
    archive_at,
    get::{left_out, listing, space::fits, tell},
    snapshots,
};
use onefold_console::{
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, counted, grouped},
};

/// Restores files and directories of a snapshot below a directory
///
/// Paths are those in the snapshot, and patterns with *, ?, [a-z] and **; without one, all of it is
/// restored. Each file comes back below DIR with its whole path. Each chunk is compared with its
/// fingerprint. A file of which a chunk is lost gets the end `.damaged`, the rest is restored, and
/// the exit status is 3. The verb writes nothing outside DIR, and goes through no symbolic link.
/// When it ends, everything that it restored is durable.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold restore backups web1 -C out\n  \
                  onefold restore backups web1~1 /etc/fstab '/home/**/*.odt' -C out\n  \
                  onefold restore backups web1@2026-11-22 / -C /mnt/new --preserve-privileged")]
pub(crate) struct Options {
    /// The archive
    store: PathBuf,

    /// The snapshot: SET, SET~N for the Nth before the newest, SET@DATE, or digits of its id
    snapshot: String,

    /// Paths and patterns
    paths: Vec<String>,

    /// The directory below which they are restored
    #[arg(short = 'C', long, value_name = "DIR")]
    directory: PathBuf,

    /// Replaces files that have the name of a restored one, and restores into directories that
    /// exist. Without it, a name that exists is an error
    #[arg(long)]
    in_place: bool,

    /// Restores set-id and sticky bits, devices, and the attributes of the system (security.*,
    /// trusted.*) too
    #[arg(long)]
    preserve_privileged: bool,

    /// Compares groups of chunks with their checksums only
    #[arg(long)]
    no_verify: bool,

    /// Memory for the archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// Most files with several names that are remembered.
const LINKED_MAX: usize = 1 << 20;

/// Restores them.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let archive = archive_at(&options.store, snapshots::NONE)?.open_to_read(options.memory.0)?;
    let mut reader = TreeReader::new(&archive)?;
    let tables = reader.tables().clone();
    let snapshot = snapshots::named(&tables, &options.snapshot)?;
    let wanted = Wanted::new(&options.paths)?;
    let mut sizes = Sizes::new(&options.directory, false);
    walk(&mut reader, snapshot, &wanted, &mut sizes)?;
    wanted.all_found()?;
    if sizes.fit().is_err() {
        // Holes take no space; to leave them out, the maps of long files are read.
        let mut exact = Sizes::new(&options.directory, true);
        walk(&mut reader, snapshot, &wanted, &mut exact)?;
        exact.fit()?;
    }
    let choices = Choices { in_place: options.in_place, privileged: options.preserve_privileged };
    let mut writing = Writing {
        restorer: Restorer::new(&options.directory, choices)?,
        pending: Vec::new(),
        first: HashMap::new(),
        verify: if options.no_verify { Verify::Groups } else { Verify::Chunks },
        bar: Progress::new("restoring"),
        total: sizes.bytes,
        bytes: 0,
        entries: 0,
        damaged: 0,
        in_part: 0,
    };
    walk(&mut reader, snapshot, &wanted, &mut writing)?;
    writing.restorer.made_all()?;
    // The directories may be more than memory holds: they are looked at once more.
    let mut finishing = Finishing { restorer: writing.restorer, pending: Vec::new() };
    walk(&mut reader, snapshot, &wanted, &mut finishing)?;
    let done = Done {
        left_out: finishing.restorer.end()?,
        entries: writing.entries,
        bytes: writing.bytes,
        damaged: writing.damaged,
        in_part: writing.in_part,
    };
    tell(&done.left_out);
    if options.json {
        output::json(&json!({
            "snapshot": snapshot.id.to_string(),
            "entries": done.entries,
            "bytes": done.bytes,
            "damaged": done.damaged,
            "in_part": done.in_part,
            "left_out": left_out(&done.left_out),
        }))?;
    } else {
        output::line(format_args!(
            "restored {} entries, {}, of snapshot {}",
            grouped(done.entries),
            Size(done.bytes),
            snapshots::short(snapshot.id)
        ));
    }
    match (done.damaged, done.in_part) {
        (0, 0) => Ok(()),
        (0, n) => Err(Failure::in_part(format!(
            "{} restored in part only: more was not stored",
            counted(n, "file")
        ))),
        (n, _) => Err(Failure::in_part(format!(
            "{} could not be restored whole, and ends with .damaged",
            counted(n, "file")
        ))),
    }
}

/// Takes the entries of a walk through a snapshot.
trait Visitor {
    /// An entry, at this path. Directories come before what is in them.
    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) -> Result<()>;

    /// A directory that only leads to what is wanted; what is in it comes, or nothing of it.
    fn way(&mut self, _: &mut TreeReader, _: &[u8], _: &TreeEntry) {}
}

/// Walks through what is wanted of a snapshot, in order; only nodes on the way there are read.
fn walk(
    reader: &mut TreeReader,
    snapshot: &Snapshot,
    wanted: &Wanted,
    visitor: &mut dyn Visitor,
) -> Result<()> {
    struct Open {
        path: Vec<u8>,
        entries: Entries,
        all: bool,
    }
    let root = reader.root(snapshot)?;
    let TreeWhat::Directory(top) = root.directory.what else { return Ok(()) };
    let all = wanted.takes(b"") == Takes::All;
    let mut open = vec![Open { path: Vec::new(), entries: Entries::new(top, None), all }];
    let mut seen = 1u64;
    while let Some(level) = open.last_mut() {
        let Some((entry, _)) = level.entries.next(reader)? else {
            open.pop();
            continue;
        };
        let mut path = level.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&entry.name);
        let takes = if level.all { Takes::All } else { wanted.takes(&path) };
        // A tree that doubles at each level has more entries than its root says.
        seen += 1;
        if seen > snapshot.entries || open.len() > onefold_archive::LEVELS_MAX {
            return Err(Error::new(Kind::Corrupt, "the snapshot has more than its root says"));
        }
        match takes {
            Takes::Nothing => continue,
            Takes::All => visitor.entry(reader, &path, &entry)?,
            Takes::Below => visitor.way(reader, &path, &entry),
        }
        if let TreeWhat::Directory(top) = entry.what {
            let all = takes == Takes::All;
            open.push(Open { path, entries: Entries::new(top, None), all });
        }
    }
    Ok(())
}

/// How much is wanted.
struct Sizes<'a> {
    directory: &'a Path,
    entries: u64,
    bytes: u64,
    /// The most entries that there is room for.
    most: Option<u64>,
    /// Zeroes and holes of files do not count.
    exact: bool,
}

impl Sizes<'_> {
    fn new(directory: &Path, exact: bool) -> Sizes<'_> {
        Sizes { directory, entries: 0, bytes: 0, most: None, exact }
    }

    fn fit(&self) -> Result<()> {
        fits(self.directory, self.bytes, self.entries)
    }
}

impl Visitor for Sizes<'_> {
    fn entry(&mut self, reader: &mut TreeReader, _: &[u8], entry: &TreeEntry) -> Result<()> {
        self.entries += 1;
        if let TreeWhat::File(bytes, map) = &entry.what {
            let bytes = if self.exact { reader.data_bytes(map)? } else { *bytes };
            self.bytes = self.bytes.saturating_add(bytes);
        }
        // Few pages may stand for more entries than any disk has room for.
        let most = match self.most {
            Some(most) => most,
            None => *self.most.insert(room(self.directory)?.files.unwrap_or(u64::MAX)),
        };
        if self.entries > most { self.fit() } else { Ok(()) }
    }
}

/// Writes what is wanted.
struct Writing {
    restorer: Restorer,
    /// Directories that lead to what is wanted, and are not made yet.
    pending: Vec<Entry>,
    /// The path of the first restored name of a file with several.
    first: HashMap<u64, Vec<u8>>,
    verify: Verify,
    bar: Progress,
    total: u64,
    bytes: u64,
    entries: u64,
    damaged: u64,
    in_part: u64,
}

/// The outcome of a restore.
struct Done {
    left_out: onefold_backend::tree::LeftOut,
    entries: u64,
    bytes: u64,
    damaged: u64,
    in_part: u64,
}

impl Visitor for Writing {
    fn way(&mut self, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) {
        pend(&mut self.pending, reader, path, entry);
    }

    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], node: &TreeEntry) -> Result<()> {
        for above in leading(&mut self.pending, path) {
            self.restorer.make(&above)?;
        }
        let mut entry = plain(reader, path, node)?;
        if node.link != 0 {
            match self.first.get(&node.link) {
                Some(first) => entry.what = What::HardLink { target: first.clone() },
                None if self.first.len() < LINKED_MAX => {
                    self.first.insert(node.link, path.to_vec());
                }
                // Further names are files of their own.
                None => {}
            }
        }
        self.entries += 1;
        let Some(file) = self.restorer.make(&entry)? else { return Ok(()) };
        let TreeWhat::File(bytes, map) = &node.what else { return Ok(()) };
        let mut at = 0;
        let Writing { bar, bytes: done, total, verify, .. } = self;
        let read = reader.read(*bytes, map, *verify, &mut |content| {
            let n = match content {
                Content::Bytes(part) => {
                    write_part(&file, at, part)?;
                    part.len() as u64
                }
                // The file has a hole there already.
                Content::Zeroes(n) | Content::Hole(n) => n,
            };
            at += n;
            *done += n;
            bar.set(*done, *total);
            Ok(())
        });
        match read {
            Ok(()) => {
                if node.is_in_part {
                    let path = String::from_utf8_lossy(path);
                    tracing::warn!("'{path}' could not be read to its end when it was stored");
                    self.in_part += 1;
                }
                self.restorer.finish_file(&entry, &file)
            }
            Err(error) if error.kind() == Kind::Corrupt => {
                let named = self.restorer.damaged(&entry)?;
                let shown = String::from_utf8_lossy(&named);
                tracing::warn!("'{shown}' lacks what is lost: {error}");
                self.damaged += 1;
                // Further names of it would be names of nothing whole.
                self.first.retain(|_, first| first[..] != *path);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Finishes the directories of what was restored.
struct Finishing {
    restorer: Restorer,
    pending: Vec<Entry>,
}

impl Visitor for Finishing {
    fn way(&mut self, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) {
        pend(&mut self.pending, reader, path, entry);
    }

    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], node: &TreeEntry) -> Result<()> {
        for above in leading(&mut self.pending, path) {
            self.restorer.finish(&above)?;
        }
        match node.what {
            TreeWhat::Directory(_) => self.restorer.finish(&plain(reader, path, node)?),
            _ => Ok(()),
        }
    }
}

/// Adds a directory to those that wait for something to be wanted below them.
fn pend(pending: &mut Vec<Entry>, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) {
    *pending = leading(pending, path);
    if let (TreeWhat::Directory(_), Ok(entry)) = (&entry.what, plain(reader, path, entry)) {
        pending.push(entry);
    }
}

/// The pending directories that lead to a path; the others lead to nothing.
fn leading(pending: &mut Vec<Entry>, path: &[u8]) -> Vec<Entry> {
    let leads = |above: &Entry| {
        path.strip_prefix(&above.path[..]).is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    std::mem::take(pending).into_iter().filter(leads).collect()
}

/// Lists what is in a directory of a snapshot, or all of the snapshot.
pub(super) fn list(archive: &Arc<Archive>, text: &str, path: Option<&str>) -> Result<(), Failure> {
    let mut reader = TreeReader::new(archive)?;
    let tables = reader.tables().clone();
    let snapshot = snapshots::named(&tables, text)?;
    let Some(path) = path else {
        return Ok(walk(&mut reader, snapshot, &Wanted::new(&[])?, &mut Listing)?);
    };
    let entry = reader.find(snapshot, path.as_bytes())?;
    let TreeWhat::Directory(top) = entry.what else {
        listing::show(&plain(&mut reader, &entry.name, &entry)?);
        return Ok(());
    };
    let mut entries = Entries::new(top, None);
    while let Some((entry, _)) = entries.next(&mut reader)? {
        listing::show(&plain(&mut reader, &entry.name, &entry)?);
    }
    Ok(())
}

/// Shows all entries.
struct Listing;

impl Visitor for Listing {
    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) -> Result<()> {
        listing::show(&plain(reader, path, entry)?);
        Ok(())
    }
}

/// An entry as the restorer wants it.
pub(super) fn plain(reader: &mut TreeReader, path: &[u8], node: &TreeEntry) -> Result<Entry> {
    let what = match &node.what {
        TreeWhat::Directory(_) => What::Directory,
        TreeWhat::File(bytes, _) => What::File { bytes: *bytes, data: Vec::new() },
        TreeWhat::Symlink(target) => What::Symlink { target: target.clone() },
        TreeWhat::Fifo => What::Fifo,
        TreeWhat::Socket => What::Socket,
        TreeWhat::CharacterDevice(device) => What::CharacterDevice(*device),
        TreeWhat::BlockDevice(device) => What::BlockDevice(*device),
    };
    let in_part = node.is_in_part && matches!(what, What::File { .. });
    Ok(Entry {
        path: path.to_vec(),
        what,
        mode: node.mode | if in_part { IN_PART } else { 0 },
        uid: node.uid,
        gid: node.gid,
        seconds: node.seconds,
        nanoseconds: node.nanoseconds,
        attributes: reader.attributes(node)?,
    })
}
