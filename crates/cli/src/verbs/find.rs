//! `onefold find`: in which snapshots a file is.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    vec::IntoIter,
};

use clap::Args;
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use onefold_archive::{
    DirectoryPages, Identity, LEVELS_MAX, PAGES_HELD, Snapshot, Top, TreeEntry, TreeReader,
    TreeWhat, is_domain_erased,
};
use onefold_core::{Error, Fingerprint, Kind, Result};
use serde_json::json;

use super::{archive_at, snapshots};
use onefold_console::{
    failure::Failure,
    output,
    size::{Size, counted},
};

/// Finds files and directories in all snapshots of an archive
///
/// Each version of what is found is shown once, with the newest snapshot that has it, as long as there are
/// no more than 900,000 versions. A page that several snapshots share is read once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold find backups fstab\n  \
                  onefold find backups '*.key' /home/ann/notes.txt --set web1")]
pub(crate) struct Options {
    /// The archive
    store: PathBuf,

    /// A name or the end of a path; with a first / a whole path; with a last / directories only.
    /// Patterns may have *, ?, [a-z] and **
    #[arg(required = true)]
    patterns: Vec<String>,

    /// Only in snapshots of this set
    #[arg(long, value_name = "NAME")]
    set: Option<String>,

    /// Only in snapshots of this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Memory for the archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// Prints a line of JSON for each, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// Pages, directories and versions that a search remembers at most of each kind: about 70 MiB in sum.
const REMEMBERED_MAX: usize = 7 << 17;

/// Finds them.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (mut all, mut directories) = (GlobSetBuilder::new(), GlobSetBuilder::new());
    for pattern in &options.patterns {
        let set = if pattern.ends_with('/') { &mut directories } else { &mut all };
        set.add(glob(pattern)?);
    }
    let built =
        |set: GlobSetBuilder| set.build().map_err(|e| Failure::usage(format!("the patterns: {e}")));
    let (all, directories) = (built(all)?, built(directories)?);
    let archive = archive_at(&options.store, snapshots::NONE)?.open_to_read(options.memory.0)?;
    let mut reader = TreeReader::new(&archive)?;
    let tables = reader.tables().clone();
    let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|name| name == has);
    let mut finding = Finding {
        all,
        directories,
        identity: archive.label().identity(),
        names_deep: names_deep(&options.patterns),
        hits: 0,
        snapshot: 0,
        seen: HashMap::new(),
        without: HashSet::new(),
        shown: HashSet::new(),
        json: options.json,
    };
    let mut unread = 0;
    for snapshot in tables.snapshots.listed().rev() {
        if !is(&options.set, &snapshot.set) || !is(&options.host, &snapshot.host) {
            continue;
        }
        if is_domain_erased(&archive, snapshot.domain) {
            continue;
        }
        match finding.look(&mut reader, snapshot) {
            // A damaged or hostile one hides nothing that others have.
            Err(error) if error.kind() == Kind::Corrupt => {
                let id = snapshots::short(snapshot.id);
                tracing::warn!("snapshot {id} can't be looked through to its end: {error}");
                unread += 1;
            }
            looked => looked?,
        }
    }
    if unread > 0 {
        let some = counted(unread, "snapshot");
        return Err(Failure::in_part(format!("{some} could not be looked through to the end")));
    }
    if finding.shown.is_empty() {
        return Err(Failure::new("no snapshot has it"));
    }
    Ok(())
}

/// A pattern of names or of ends of paths.
fn glob(pattern: &str) -> Result<Glob, Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("the pattern '{pattern}' can't be used: {why}"))
    };
    let name = pattern.trim_end_matches('/');
    if name.is_empty() {
        return Err(wrong(&"it names nothing"));
    }
    let whole = name.strip_prefix('/').map_or_else(|| format!("**/{name}"), str::to_owned);
    GlobBuilder::new(&whole)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|e| wrong(e.kind()))
}

/// How many names at the end of a directory's path decide what is found below it; `None` when all do.
fn names_deep(patterns: &[String]) -> Option<usize> {
    let slashes = |pattern: &String| {
        // What is in brackets and braces, and two stars, may reach across names.
        let reaches = ["[", "{", "**", "\\"].iter().any(|sign| pattern.contains(sign));
        let name = pattern.trim_end_matches('/');
        (!reaches && !name.starts_with('/')).then(|| name.matches('/').count())
    };
    patterns.iter().map(slashes).try_fold(0, |most, slashes| Some(most.max(slashes?)))
}

struct Finding {
    all: GlobSet,
    directories: GlobSet,
    identity: Identity,
    /// See [`names_deep`].
    names_deep: Option<usize>,
    /// Entries that were found, and pages that may have some and were passed over.
    hits: u64,
    /// Of the snapshots that are looked through, the one at hand.
    snapshot: u32,
    /// Pages that were looked at, with the path of their directory, and in which snapshot.
    seen: HashMap<(Fingerprint, u64), u32>,
    /// Directories below which nothing was found, with what decides of their paths.
    without: HashSet<(Fingerprint, u64)>,
    /// Versions of entries that were shown.
    shown: HashSet<u64>,
    json: bool,
}

/// A directory on the way to where the search is.
struct Directory {
    /// Bytes of its path.
    path: usize,
    /// The checksum of its path.
    at: u64,
    /// What is remembered of it when nothing is found below it, and how much was found before it.
    known_by: Option<(Fingerprint, u64)>,
    hits_before: u64,
    pages: DirectoryPages,
    /// What is still to be looked at of the page at hand.
    entries: IntoIter<TreeEntry>,
    /// The last name of it that was looked at, when the rest of the page is not held.
    rests_behind: Option<Vec<u8>>,
}

/// Lets the directory that lies so many levels above a path give the rest of its page back.
fn directory_rests(open: &mut [Directory], path: &[u8]) {
    let n = open.len() - PAGES_HELD;
    let end = open.get(n + 1).map_or(path.len(), |below| below.path);
    let directory = &mut open[n];
    directory.pages.rest();
    if directory.entries.len() > 0 {
        let from = directory.path + usize::from(directory.path > 0);
        directory.rests_behind = Some(path[from..end].to_vec());
        directory.entries = Vec::new().into_iter();
    }
}

fn go_into(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

impl Finding {
    /// Looks through a snapshot in the order of its paths. Of the last directories on the way to where
    /// it is, it holds one page each, and reads that of others again: a path is held once, however many
    /// directories lie below it.
    fn look(&mut self, reader: &mut TreeReader, snapshot: &Snapshot) -> Result<()> {
        let TreeWhat::Directory(top) = reader.root(snapshot)?.directory.what else { return Ok(()) };
        let mut path = Vec::new();
        self.snapshot += 1;
        let mut open = vec![self.directory(&path, top)];
        let mut left = snapshot.entries;
        while let Some(directory) = open.last_mut() {
            path.truncate(directory.path);
            if let Some(name) = directory.rests_behind.take() {
                let mut entries = directory.pages.again(reader)?;
                entries.retain(|entry| entry.name > name);
                directory.entries = self.wanted(&path, entries);
            }
            let Some(entry) = directory.entries.next() else {
                let Directory { pages, at, .. } = directory;
                let Finding { seen, hits, snapshot: now, .. } = self;
                let wants = &mut |page: &Fingerprint| {
                    let key = (*page, *at);
                    let before = seen.get(&key).copied();
                    // Of one directory the other copy of it counts.
                    *hits += u64::from(before.is_some_and(|before| before != *now));
                    if before.is_none() && seen.len() < REMEMBERED_MAX {
                        seen.insert(key, *now);
                    }
                    before.is_none()
                };
                let Some(entries) = pages.next(reader, wants)? else {
                    if let Some(Directory { known_by: Some(known), hits_before, .. }) = open.pop()
                        && hits_before == self.hits
                    {
                        // A tree that doubles at each level is looked through level by level.
                        if self.without.len() >= REMEMBERED_MAX {
                            self.without.clear();
                        }
                        self.without.insert(known);
                    }
                    continue;
                };
                // A tree that doubles at each level has more entries than its root says.
                left = left.checked_sub(entries.len() as u64).ok_or_else(|| {
                    Error::new(Kind::Corrupt, "a snapshot has more than its root says")
                })?;
                directory.entries = self.wanted(&path, entries);
                continue;
            };
            go_into(&mut path, &entry.name);
            if self.hits(&path, &entry) {
                self.hits += 1;
                self.show(snapshot, &path, &entry);
            }
            if let TreeWhat::Directory(top) = entry.what {
                if self.known_by(&path, top).is_some_and(|known| self.without.contains(&known)) {
                    continue;
                }
                if open.len() > LEVELS_MAX {
                    return Err(Error::new(Kind::Corrupt, "a snapshot has too many levels"));
                }
                if open.len() >= PAGES_HELD {
                    directory_rests(&mut open, &path);
                }
                open.push(self.directory(&path, top));
            }
        }
        Ok(())
    }

    fn directory(&self, path: &[u8], top: Option<Top>) -> Directory {
        Directory {
            path: path.len(),
            at: self.identity.checksum(path),
            known_by: self.known_by(path, top),
            hits_before: self.hits,
            pages: DirectoryPages::new(top),
            entries: Vec::new().into_iter(),
            rests_behind: None,
        }
    }

    /// What decides whether something is found below a directory.
    fn known_by(&self, path: &[u8], top: Option<Top>) -> Option<(Fingerprint, u64)> {
        let names = path.split(|&byte| byte == b'/').rev();
        let last = names.take(self.names_deep.unwrap_or(usize::MAX)).map(|name| name.len() + 1);
        let bytes = path.len().min(last.sum());
        let decides = self.identity.checksum(&path[path.len() - bytes..]);
        Some((top?.node.fingerprint, decides))
    }

    /// Those that are found, and directories.
    fn wanted(&self, directory: &[u8], mut entries: Vec<TreeEntry>) -> IntoIter<TreeEntry> {
        let mut path = directory.to_vec();
        entries.retain(|entry| {
            path.truncate(directory.len());
            go_into(&mut path, &entry.name);
            matches!(entry.what, TreeWhat::Directory(_)) || self.hits(&path, entry)
        });
        entries.shrink_to_fit();
        entries.into_iter()
    }

    fn hits(&self, path: &[u8], entry: &TreeEntry) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let is_directory = matches!(entry.what, TreeWhat::Directory(_));
        self.all.is_match(path) || is_directory && self.directories.is_match(path)
    }

    fn show(&mut self, snapshot: &Snapshot, path: &[u8], entry: &TreeEntry) {
        let (bytes, what) = match &entry.what {
            TreeWhat::File(bytes, _) => (*bytes, "file"),
            TreeWhat::Directory(_) => (0, "directory"),
            TreeWhat::Symlink(_) => (0, "link"),
            _ => (0, "other"),
        };
        // A directory is one version as long as what is told of itself is the same.
        let version = match &entry.what {
            TreeWhat::Directory(_) => format!("{path:?} {} {}", entry.seconds, entry.nanoseconds),
            _ => format!("{path:?} {entry:?}"),
        };
        let version = self.identity.checksum(version.as_bytes());
        if self.shown.contains(&version) {
            return;
        }
        if self.shown.len() < REMEMBERED_MAX {
            self.shown.insert(version);
        }
        let path = String::from_utf8_lossy(path);
        if self.json {
            output::json_line(&json!({
                "path": path,
                "snapshot": snapshot.id.to_string(),
                "set": snapshot.set,
                "host": snapshot.host,
                "kind": what,
                "bytes": bytes,
                "changed": entry.seconds,
            }));
            return;
        }
        let changed = u64::try_from(entry.seconds)
            .map_or_else(|_| entry.seconds.to_string(), snapshots::shown);
        let size = match entry.what {
            TreeWhat::File(..) => Size(bytes).to_string(),
            _ => String::new(),
        };
        output::line(format_args!(
            "{}  {}  {}  {changed}  {size:>9}  /{}",
            snapshots::short(snapshot.id),
            snapshots::shown(snapshot.ended),
            snapshot.set.escape_debug(),
            path.escape_debug(),
        ));
    }
}
