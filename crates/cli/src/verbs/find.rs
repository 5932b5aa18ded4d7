//! `onefold find`: in which snapshots a file is.

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
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

use super::{archive_at, get::listing::changed, named, snapshots};
use onefold_console::{
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, counted},
};

/// Finds files and directories in all snapshots of an archive
///
/// Each version of what is found is shown once, with the newest snapshot that has it, as long as there are
/// no more than 900,000 versions. A page that several snapshots share is read once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold find backups fstab\n  \
                  onefold find backups '*.key' /home/ann/notes.txt --set web1\n  \
                  onefold find backups 'photo[1].jpg' --exact")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// A name or the end of a path; with a first / or ./ a whole path; with a last / directories only.
    /// Patterns may have *, ?, [a-z] and **, and find files that are called so themselves. Names may be
    /// written as this verb shows them, with \xff for a byte that is no text
    #[arg(required = true)]
    patterns: Vec<OsString>,

    /// Takes names and paths as they are: none is a pattern
    #[arg(long)]
    exact: bool,

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
    let (mut all, mut directories) = (Sought::default(), Sought::default());
    for typed in &options.patterns {
        let typed = typed.as_bytes();
        let sought = if typed.ends_with(b"/") { &mut directories } else { &mut all };
        sought.add(typed, options.exact)?;
    }
    let names_deep = all.names_deep().zip(directories.names_deep()).map(|(a, b)| a.max(b));
    let (all, directories) = (all.built()?, directories.built()?);
    let archive = archive_at(&options.store, snapshots::NONE)?.open_to_read(options.memory.0)?;
    let mut reader = TreeReader::new(&archive)?;
    let tables = reader.tables().clone();
    let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|name| name == has);
    let wanted = |snapshot: &Snapshot| {
        is(&options.set, &snapshot.set)
            && is(&options.host, &snapshot.host)
            && !is_domain_erased(&archive, snapshot.domain)
    };
    let listed = || tables.snapshots.listed().rev().filter(|snapshot| wanted(snapshot));
    if listed().next().is_none() && (options.set.is_some() || options.host.is_some()) {
        let of = (options.set.as_deref(), options.host.as_deref());
        let all: Vec<&Snapshot> = tables.snapshots.listed().collect();
        return Err(Failure::new(snapshots::none_of("snapshot", of, &all)));
    }
    let entries = listed().map(|snapshot| snapshot.entries).fold(0, u64::saturating_add);
    let mut finding = Finding {
        all,
        directories,
        identity: archive.label().identity(),
        names_deep,
        hits: 0,
        snapshot: 0,
        seen: HashMap::new(),
        without: HashSet::new(),
        shown: HashSet::new(),
        json: options.json,
        bar: Progress::of_lines("looking through the snapshots", "entries"),
        passed: 0,
        entries,
    };
    let mut unread = 0;
    for snapshot in listed() {
        match finding.look(&mut reader, snapshot) {
            // A damaged or hostile one hides nothing that others have.
            Err(error) if error.kind() == Kind::Corrupt => {
                let id = snapshots::short(snapshot.id);
                tracing::warn!("snapshot {id} can't be looked through to its end: {error}");
                unread += 1;
            }
            looked => looked?,
        }
        finding.passed = finding.passed.saturating_add(snapshot.entries);
    }
    finding.bar.set(finding.passed, finding.entries);
    let is_found = !finding.shown.is_empty();
    drop(finding);
    if unread > 0 {
        let some = counted(unread, "snapshot");
        return Err(Failure::in_part(format!("{some} could not be looked through to the end")));
    }
    if !is_found {
        return Err(Failure::new(not_found(options)));
    }
    Ok(())
}

/// Says that nothing was found, and how what was typed is matched where that may be why.
fn not_found(options: &Options) -> String {
    let typed = || options.patterns.iter().map(|typed| typed.as_bytes());
    let is_pattern = |typed: &[u8]| typed.iter().any(|byte| named::SIGNS.contains(byte));
    let hint = if typed().any(|typed| typed.starts_with(b"/") || typed.starts_with(b"./")) {
        "; what begins with / or ./ is a whole path, as in '/home/**/*.odt': without that it is a name or \
         the end of a path, as in '*.odt'"
    } else if !options.exact && typed().any(is_pattern) {
        "; a pattern is a whole name, or the end of a path from one name on, as '*.odt' or 'notes/*': * \
         stands for no /, and ** for names too"
    } else {
        "; a name is a whole name: '*note*' finds all that have it within"
    };
    format!("no snapshot has it{hint}")
}

/// A name, or the end of a path; a whole path if it is set.
struct Name {
    bytes: Vec<u8>,
    is_whole: bool,
}

impl Name {
    fn is_of(&self, path: &[u8]) -> bool {
        path.strip_suffix(&*self.bytes)
            .is_some_and(|before| before.is_empty() || !self.is_whole && before.ends_with(b"/"))
    }
}

/// Names and patterns that are looked for.
#[derive(Default)]
struct Sought {
    names: Vec<Name>,
    patterns: Vec<String>,
    globs: GlobSet,
}

impl Sought {
    fn add(&mut self, typed: &[u8], exact: bool) -> Result<(), Failure> {
        let wrong = |why: &str| {
            let shown = named::shown(typed);
            Failure::usage(format!("the pattern '{shown}' can't be used: {why}"))
        };
        let plain = named::plain(typed);
        if plain.is_empty() {
            return Err(wrong("it names nothing"));
        }
        let is_whole = typed.starts_with(b"/") || typed.starts_with(b"./");
        if let Some(bytes) = named::bytes(&plain) {
            self.names.push(Name { bytes: named::plain(&bytes), is_whole });
        }
        if !exact && plain.iter().any(|byte| named::SIGNS.contains(byte)) {
            let pattern = std::str::from_utf8(&plain).map_err(|_| wrong("it is no UTF-8"))?;
            let pattern = if is_whole { pattern.to_owned() } else { format!("**/{pattern}") };
            glob(&pattern).map_err(|error| wrong(&error.kind().to_string()))?;
            self.patterns.push(pattern);
        }
        self.names.push(Name { bytes: plain, is_whole });
        Ok(())
    }

    fn built(mut self) -> Result<Sought, Failure> {
        let wrong = |e: globset::Error| Failure::usage(format!("the patterns: {e}"));
        let mut set = GlobSetBuilder::new();
        for pattern in &self.patterns {
            set.add(glob(pattern).map_err(wrong)?);
        }
        self.globs = set.build().map_err(wrong)?;
        Ok(self)
    }

    fn is_match(&self, path: &[u8]) -> bool {
        self.names.iter().any(|name| name.is_of(path))
            || self.globs.is_match(Path::new(OsStr::from_bytes(path)))
    }

    /// How many names at the end of a directory's path decide what is found below it; `None` when all do.
    fn names_deep(&self) -> Option<usize> {
        let of_name = |name: &Name| {
            let slashes = name.bytes.iter().filter(|&&byte| byte == b'/').count();
            (!name.is_whole).then_some(slashes)
        };
        let of_pattern = |pattern: &String| {
            let name = pattern.strip_prefix("**/")?;
            // Brackets, braces and two stars may reach across names.
            let reaches = ["[", "{", "**", "\\"].iter().any(|sign| name.contains(sign));
            (!reaches).then(|| name.matches('/').count())
        };
        let names = self.names.iter().map(of_name);
        let mut all = names.chain(self.patterns.iter().map(of_pattern));
        all.try_fold(0, |most, slashes| Some(most.max(slashes?)))
    }
}

/// A pattern of paths.
fn glob(pattern: &str) -> std::result::Result<Glob, globset::Error> {
    GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build()
}

struct Finding {
    all: Sought,
    directories: Sought,
    identity: Identity,
    /// See [`Sought::names_deep`].
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
    bar: Progress,
    /// Entries of the snapshots that were looked through, and of all.
    passed: u64,
    entries: u64,
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
                let looked_at = snapshot.entries.saturating_sub(left);
                self.bar.set(self.passed.saturating_add(looked_at), self.entries);
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
        let path = &named::whole(path);
        if self.json {
            let mut line = json!({
                "path": String::from_utf8_lossy(path),
                "snapshot": snapshot.id.to_string(),
                "set": snapshot.set,
                "host": snapshot.host,
                "kind": what,
                "bytes": bytes,
                "changed": entry.seconds,
            });
            if let Some(path) = named::escaped(path) {
                line["escaped"] = path.into();
            }
            self.bar.beside(|| output::json_line(&line));
            return;
        }
        let changed = changed(entry.seconds);
        let size = match entry.what {
            TreeWhat::File(..) => Size(bytes).to_string(),
            _ => String::new(),
        };
        let line = format!(
            "{}  {}  {}  {changed}  {size:>9}  {}",
            snapshots::short(snapshot.id),
            snapshots::shown(snapshot.ended),
            snapshot.set.escape_debug(),
            named::shown(path),
        );
        self.bar.beside(|| output::line(line));
    }
}
