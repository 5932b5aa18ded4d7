//! What a put or a backup of a directory leaves out.
//!
//! Patterns are those of gitignore, with one difference on the command line and in files that are
//! named there: a pattern with a `/` within it names the end of a path, as one without does. One
//! that begins with `/` counts from the directory that is stored, or is a path of the whole system.
//! The last pattern that matches decides, and `!` takes out of what patterns before it name. The
//! content of a directory that is left out is left out too.
//!
//! A file `.onefoldignore` has patterns for what lies beside and below it, exactly as gitignore has
//! them. Patterns of the command line go before, then those of the directory that is nearest.

mod patterns;

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use onefold::parts::archive_dir::ArchiveDir;
use onefold_backend::{
    process::thread_cpu_time,
    tree::{Looked, Selection},
};
use onefold_console::{
    failure::Failure,
    size::{Size, counted},
};
use onefold_core::Error;

use patterns::{Builder, Patterns, letters, shown, too_long, weight};

/// The name of files with patterns for their directory.
const RULES: &str = ".onefoldignore";

/// Longest such file that counts, in bytes. More patterns would slow all of the walk.
const RULES_BYTES: usize = 64 << 10;

/// Bytes of those that count at one place: each takes memory, a hundred times its bytes and more.
const NESTED_BYTES: usize = 128 << 10;

/// Bytes of those of one user that count in a walk: they take time, a second for some 64 KiB. Root
/// has no limit.
const USERS_BYTES: usize = 2 << 20;

/// Time that the patterns of one user may take in a walk, and for each path that is compared with them
/// beside. Those that people write take a few microseconds a path; some with many stars take half a second.
/// Root has no limit.
const USERS_TIME: Duration = Duration::from_secs(10);
const USERS_TIME_A_PATH: Duration = Duration::from_micros(50);

/// Bytes of a file of patterns that is named on the command line, at most.
const GIVEN_BYTES: u64 = 256 << 10;

/// The options that choose what of a directory is stored.
#[derive(Clone, Debug, Default, Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Leaves out what matches a pattern: a name or the end of a path; with a first / a path from
    /// the directory or from the root of the system; with a last / directories only; with a first !
    /// what earlier patterns leave out is stored. Patterns may have *, ?, [a-z] and **
    #[arg(short = 'e', long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<OsString>,

    /// Reads patterns from a file, one a line, without empty lines and lines that begin with #
    #[arg(long, value_name = "FILE")]
    pub(crate) exclude_from: Vec<PathBuf>,

    /// Leaves out the content of cache directories, which have a file CACHEDIR.TAG; that file is
    /// stored
    #[arg(long)]
    pub(crate) exclude_caches: bool,

    /// Leaves out the content of directories that have a file of this name; that file is stored
    #[arg(long, value_name = "NAME")]
    pub(crate) exclude_if_present: Vec<OsString>,

    /// Leaves out files of more bytes
    #[arg(long, value_name = "SIZE")]
    pub(crate) exclude_larger: Option<Size>,

    /// Leaves out what has the attribute "no dump" (chattr +d)
    #[arg(long)]
    pub(crate) exclude_nodump: bool,

    /// Takes no account of the patterns in files .onefoldignore
    #[arg(long)]
    pub(crate) no_ignore_files: bool,

    /// Stays on the file systems of the directories, and stores an empty directory for each mount
    /// point
    #[arg(short = 'x', long)]
    pub(crate) one_file_system: bool,
}

impl Options {
    /// True when one of them is given.
    pub(crate) fn are_given(&self) -> bool {
        let lists = !self.exclude.is_empty()
            || !self.exclude_from.is_empty()
            || !self.exclude_if_present.is_empty();
        let switches =
            [self.exclude_caches, self.exclude_nodump, self.no_ignore_files, self.one_file_system];
        lists || self.exclude_larger.is_some() || switches.contains(&true)
    }

    /// How a walk takes account of them.
    pub(crate) fn of_walk(&self) -> onefold_backend::tree::Options {
        onefold_backend::tree::Options {
            one_file_system: self.one_file_system,
            without_caches: self.exclude_caches,
            without_nodump: self.exclude_nodump,
            ..onefold_backend::tree::Options::default()
        }
    }
}

/// All of a file of patterns or paths, which is named on the command line.
///
/// # Errors
/// As [`given`].
pub(super) fn given_file(file: &Path, most: u64, of: &str) -> Result<Vec<u8>, Failure> {
    given(std::fs::File::open(file), file, most, of)
}

/// All that is read of `file`, once it is open.
///
/// # Errors
/// It can't be read, or has more bytes than `most`.
pub(super) fn given(
    opened: std::io::Result<impl Read>,
    file: &Path,
    most: u64,
    of: &str,
) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let read = opened.and_then(|opened| opened.take(most + 1).read_to_end(&mut text));
    read.map_err(|e| Error::from_io(format_args!("{} can't be read", file.display()), e))?;
    match text.len() as u64 > most {
        true => {
            Err(Failure::usage(format!("{} has more than {most} bytes of {of}", file.display())))
        }
        false => Ok(text),
    }
}

/// The patterns of a directory, by its path below the root.
#[derive(Clone, Debug)]
struct Rules {
    directory: Vec<u8>,
    patterns: Patterns,
    bytes: usize,
    user: u32,
}

/// The costs of a user's patterns so far.
#[derive(Clone, Debug, Default)]
struct Spent {
    bytes: usize,
    time: Duration,
    paths: u32,
    /// They took too long, and count for nothing any more.
    is_over: bool,
}

/// What of a tree is left out.
#[derive(Clone, Debug)]
pub(crate) struct Exclude {
    /// The tree's root from the root of the system, without the first `/`.
    root: PathBuf,
    /// Patterns of the command line, from the root of the system.
    given: Patterns,
    /// Patterns of the directories that lead to where the walk is.
    found: Vec<Rules>,
    of_users: HashMap<u32, Spent>,
    /// See [`USERS_TIME`].
    users_time: Duration,
    tags: Vec<OsString>,
    larger: Option<u64>,
    reads_files: bool,
    /// The directories of the archive that the tree goes into, by device and inode.
    archive: Vec<(u64, u64)>,
}

impl Exclude {
    /// What the options leave out of the tree below a root.
    ///
    /// # Errors
    /// A pattern that can't be used, and a file of patterns that can't be read.
    pub(crate) fn new(root: &Path, options: &Options) -> Result<Exclude, Failure> {
        let root = std::path::absolute(root).map_err(|e| {
            Error::from_io(format_args!("the whole path of {} can't be found", root.display()), e)
        })?;
        let root = root.strip_prefix("/").map_or_else(|_| root.clone(), Path::to_owned);
        let mut builder = Builder::new();
        let mut add = |pattern: &str| -> Result<(), Failure> {
            for line in lines_of(&root, pattern)? {
                builder.add_line(&line).map_err(|e| wrong(pattern, &e))?;
            }
            Ok(())
        };
        for pattern in &options.exclude {
            let pattern = letters(pattern.as_bytes());
            let is_comment = pattern.starts_with('#');
            add(&if is_comment { format!("\\{pattern}") } else { pattern })?;
        }
        for file in &options.exclude_from {
            let text = letters(&given_file(file, GIVEN_BYTES, "patterns")?);
            let lines = text.lines().map(str::trim);
            lines
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .try_for_each(&mut add)?;
        }
        let given = builder
            .build()
            .map_err(|e| Failure::usage(format!("the patterns of what is left out: {e}")))?;
        Ok(Exclude {
            root,
            given,
            found: Vec::new(),
            of_users: HashMap::new(),
            users_time: USERS_TIME,
            tags: options.exclude_if_present.clone(),
            larger: options.exclude_larger.map(|size| size.0),
            reads_files: !options.no_ignore_files,
            archive: Vec::new(),
        })
    }

    /// Leaves out the directories of an archive, which grows while it stores what is in them.
    pub(crate) fn without(self, archive: &ArchiveDir) -> Exclude {
        Exclude { archive: archive.identities(), ..self }
    }

    /// True when what is at a path below the root is left out.
    pub(crate) fn takes(&mut self, path: &[u8], looked: &Looked) -> bool {
        if looked.is_directory && self.archive.contains(&looked.identity) {
            let shown = Path::new("/").join(&self.root).join(OsStr::from_bytes(path));
            tracing::warn!("{}: the archive itself is left out", shown.display());
            return true;
        }
        if self.larger.is_some_and(|most| looked.bytes > most) {
            return true;
        }
        self.found.retain(|rules| below(&rules.directory, path).is_some());
        let of_path = Path::new(OsStr::from_bytes(path));
        if !self.given.is_empty() {
            let decided = self.given.leave_out(&self.root.join(of_path), looked.is_directory);
            if let Some(leaves_out) = decided {
                return leaves_out;
            }
        }
        let (mut decided, mut too_slow) = (None, None);
        for rules in self.found.iter().rev() {
            let Some(rest) = below(&rules.directory, path) else { continue };
            let rest = Path::new(OsStr::from_bytes(rest));
            let begun = thread_cpu_time();
            decided = rules.patterns.leave_out(rest, looked.is_directory);
            let spent = self.of_users.entry(rules.user).or_default();
            (spent.time, spent.paths) =
                (spent.time + (thread_cpu_time() - begun), spent.paths.saturating_add(1));
            let may = USERS_TIME_A_PATH.saturating_mul(spent.paths).saturating_add(self.users_time);
            if rules.user != 0 && spent.time > may {
                spent.is_over = true;
                too_slow = Some(rules.user);
            }
            if decided.is_some() {
                break;
            }
        }
        if let Some(user) = too_slow {
            tracing::warn!(
                "the patterns of user {user} in files {RULES} take too much time, and are not taken \
                 account of from here on: {}",
                Path::new("/").join(&self.root).join(of_path).display()
            );
            self.found.retain(|rules| rules.user != user);
        }
        decided.unwrap_or(false)
    }
}

impl Selection for Exclude {
    fn wants(&mut self, path: &[u8], looked: &Looked) -> bool {
        !self.takes(path, looked)
    }

    fn tags(&self) -> &[OsString] {
        &self.tags
    }

    fn rules(&self) -> Option<(&OsStr, usize)> {
        self.reads_files.then_some((OsStr::new(RULES), RULES_BYTES))
    }

    fn add_rules(&mut self, directory: &[u8], user: u32, text: Option<Vec<u8>>) {
        let told =
            || Path::new("/").join(&self.root).join(OsStr::from_bytes(directory)).join(RULES);
        let Some(text) = text else {
            tracing::warn!(
                "{}: it has more than {RULES_BYTES} bytes, and is not taken account of",
                told().display()
            );
            return;
        };
        self.found.retain(|rules| below(&rules.directory, directory).is_some());
        let nested: usize = self.found.iter().map(|rules| rules.bytes).sum();
        let bytes = weight(&text);
        if nested + bytes > NESTED_BYTES {
            tracing::warn!(
                "{}: it and those above it have more than {NESTED_BYTES} bytes, and it is not taken \
                 account of",
                told().display()
            );
            return;
        }
        let spent = self.of_users.entry(user).or_default();
        if spent.is_over {
            return;
        }
        let before = spent.bytes;
        spent.bytes = before.saturating_add(bytes);
        if user != 0 && spent.bytes > USERS_BYTES {
            if before <= USERS_BYTES {
                tracing::warn!(
                    "{}: user {user} has more than {USERS_BYTES} bytes of such files; this one, and \
                     all later ones, are not taken account of",
                    told().display()
                );
            }
            return;
        }
        let mut builder = Builder::new();
        let (mut mistakes, mut first) = (0, None);
        for line in text.split(|&byte| byte == b'\n') {
            // Who wrote the file is not who runs the backup: a mistake costs that line alone, and the log
            // one line for all of them.
            let line = letters(line);
            let added = match line_never(&line).or_else(|| too_long(&line)) {
                Some(why) => Err(why),
                None => builder.add_line(&line),
            };
            if let Err(why) = added {
                mistakes += 1;
                first.get_or_insert(why);
            }
        }
        if let Some(first) = first {
            tracing::warn!(
                "{}: {} can't be used, the first since: {first}",
                told().display(),
                counted(mistakes, "line")
            );
        }
        match builder.build() {
            Ok(patterns) if patterns.is_empty() => {}
            Ok(patterns) => {
                self.found.push(Rules { directory: directory.to_vec(), patterns, bytes, user });
            }
            Err(why) => {
                tracing::warn!("{}: it is not taken account of: {why}", told().display());
            }
        }
    }
}

/// The rest of a path that lies below a directory; both are below the root, which is empty.
fn below<'a>(directory: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    match directory {
        b"" => Some(path),
        directory => path.strip_prefix(directory)?.strip_prefix(b"/"),
    }
}

/// The lines of gitignore, from the root of the system, that a pattern of the command line stands
/// for.
///
/// Patterns, and what is made of them, are text whose letters may stand for bytes.
fn lines_of(root: &Path, pattern: &str) -> Result<Vec<String>, Failure> {
    let (sign, plain) = match pattern.strip_prefix('!') {
        Some(plain) => ("!", plain),
        None => ("", pattern),
    };
    let name = plain.trim_end_matches('/');
    if name.is_empty() {
        return Err(wrong(pattern, &"it names nothing"));
    }
    if let Some(why) = names_never(name) {
        return Err(wrong(pattern, &why));
    }
    Ok(match name.contains('/') {
        false => vec![pattern.to_owned()],
        true if plain.starts_with('/') => {
            let root = escaped(root.as_os_str());
            let of_root = if root.is_empty() { String::new() } else { format!("/{root}") };
            vec![format!("{sign}{plain}"), format!("{sign}{of_root}{plain}")]
        }
        true => vec![format!("{sign}**/{plain}")],
    })
}

/// Why a pattern matches no path at all, if it does not: paths have no names `.` and `..`, and no empty
/// ones.
fn names_never(name: &str) -> Option<String> {
    let below = name.strip_prefix('/').unwrap_or(name);
    if let Some(rest) = name.strip_prefix("./").map(|rest| rest.trim_start_matches('/')) {
        return Some(format!(
            "no path has a name '.': '/{rest}' is the one in the directory itself, and '{rest}' \
             any that ends so"
        ));
    }
    let no_name = below.split('/').find(|part| matches!(*part, "" | "." | ".."))?;
    Some(format!("no path has a name '{no_name}'"))
}

/// Why a line of a file `.onefoldignore` matches no path at all, if it does not. As in gitignore, a line
/// may be empty or a comment, and spaces at its end count for nothing.
fn line_never(line: &str) -> Option<String> {
    let line = line.trim_end();
    let plain = line.strip_prefix('!').unwrap_or(line);
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let name = plain.trim_end_matches('/');
    let why = match name.is_empty() {
        true => Some("it names nothing".to_owned()),
        false => names_never(name),
    };
    why.map(|why| shown(&format!("'{line}': {why}")))
}

/// A path as a pattern that matches only itself.
fn escaped(path: &OsStr) -> String {
    let mut all = String::new();
    for letter in letters(path.as_bytes()).chars() {
        if "*?[]{}\\!# ".contains(letter) {
            all.push('\\');
        }
        all.push(letter);
    }
    all
}

fn wrong(pattern: &str, why: &dyn std::fmt::Display) -> Failure {
    let (pattern, why) = (shown(pattern), shown(&why.to_string()));
    Failure::usage(format!("the pattern '{pattern}' can't be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: Looked = Looked { is_directory: true, bytes: 0, identity: (1, 1) };
    const FILE: Looked = Looked { is_directory: false, bytes: 10, identity: (1, 2) };

    fn exclude(patterns: &[&str]) -> Exclude {
        let exclude = patterns.iter().map(|&pattern| pattern.into()).collect();
        Exclude::new(Path::new("/home/x y[1]"), &Options { exclude, ..Options::default() }).unwrap()
    }

    #[test]
    fn rule_14_patterns_and_paths_are_bytes() {
        let pattern = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        let all = vec![pattern(b"a\xffb"), pattern(b"/only\xfe"), pattern(b"x/y")];
        let mut options = Options { exclude: all, ..Options::default() };
        let root = pattern(b"/home/\xff*[1]");
        let mut one = Exclude::new(Path::new(&root), &options).unwrap();
        let mut takes = |path: &[u8]| one.takes(path, &FILE);
        assert!(takes(b"a\xffb") && takes(b"sub/a\xffb") && !takes(b"a\xfeb"));
        assert!(takes(b"only\xfe") && !takes(b"sub/only\xfe") && takes(b"d/x/y"));
        // A path from the directory, and one of the whole system, with a root of such bytes.
        options.exclude = vec![pattern(b"/tmp"), pattern(b"/home/\xff\\*\\[1\\]/whole")];
        let mut one = Exclude::new(Path::new(&root), &options).unwrap();
        let mut takes = |path: &[u8]| one.takes(path, &FILE);
        assert!(takes(b"tmp") && !takes(b"sub/tmp") && takes(b"whole") && !takes(b"sub/whole"));
        let mut one = exclude(&[]);
        one.add_rules(b"d\xfd", 7, Some(b"*.log\n\xff\n!\xffkeep.log\n./\xff\n".to_vec()));
        let mut takes = |path: &[u8]| one.takes(path, &FILE);
        assert!(takes(b"d\xfd/\xff") && takes(b"d\xfd/x.log") && !takes(b"d\xfd/\xfe"));
        assert!(!takes(b"d\xfd/\xffkeep.log") && !takes(b"d\xfc/\xff"));
        // Such bytes are told as they are shown elsewhere.
        options.exclude = vec![pattern(b"./\xff")];
        let refused = Exclude::new(Path::new("/"), &options).unwrap_err();
        assert!(format!("{refused:?}").contains("\\xff"), "{refused:?}");
    }

    #[test]
    fn the_last_pattern_that_matches_decides() {
        let mut one = exclude(&["*.o", "!/keep.o", "target/debug", "/top/", "#hash"]);
        let mut takes = |path: &str, looked| one.takes(path.as_bytes(), &looked);
        assert!(takes("a.o", FILE) && takes("deep/a.o", FILE) && !takes("a.c", FILE));
        assert!(!takes("keep.o", FILE) && takes("deep/keep.o", FILE));
        assert!(takes("target/debug", FILE) && takes("deep/target/debug", DIRECTORY));
        assert!(takes("top", DIRECTORY) && !takes("top", FILE) && !takes("deep/top", DIRECTORY));
        assert!(takes("#hash", FILE));
        let mut whole = exclude(&["/home/x y\\[1\\]/a"]);
        assert!(whole.takes(b"a", &FILE) && !whole.takes(b"b/a", &FILE));
        let mut large = exclude(&[]);
        large.larger = Some(9);
        assert!(large.takes(b"a", &FILE) && !large.takes(b"a", &DIRECTORY));
    }

    #[test]
    fn a_pattern_that_can_match_nothing_is_told() {
        let lines = |pattern| lines_of(Path::new("srv"), pattern);
        for pattern in ["./x", "./x/", "!./x", ".//x", "a/./b", "../x", "a//b", "/./x", "..", "."] {
            assert!(lines(pattern).is_err(), "{pattern}");
        }
        for pattern in ["x", "/x", "a/b", ".x", "..x/", "**/x", "!/a/*", "x/", "..."] {
            assert!(lines(pattern).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn a_line_of_a_directory_that_can_match_nothing_is_told() {
        for line in ["./x", "!./x/", "../x", "a/./b", "a//b", "//x", "..", "./ ", "/", "!", "!/"] {
            assert!(line_never(line).is_some(), "{line}");
        }
        for line in
            ["", "  ", "# ./x", "x", "/x", "a/b", ".x", "**/x", "!/a/*", "x/", "...", "x \r"]
        {
            assert!(line_never(line).is_none(), "{line}");
        }
    }

    #[test]
    fn rules_of_a_directory_count_in_it_alone_and_after_those_that_were_given() {
        let mut one = exclude(&["!given"]);
        let rules = |text: &str| Some(text.as_bytes().to_vec());
        one.add_rules(b"", 7, rules("*.log\ngiven\n/only\na/b\n"));
        let mut takes = |path: &str| one.takes(path.as_bytes(), &FILE);
        assert!(takes("x.log") && !takes("given") && takes("only") && takes("a/b"));
        one.add_rules(b"sub", 7, rules("!keep.log\n[\n"));
        let mut takes = |path: &str| one.takes(path.as_bytes(), &FILE);
        assert!(!takes("sub/keep.log") && takes("sub/x.log") && !takes("sub/only"));
        assert!(!takes("sub/a/b"));
        // The walk left `sub`.
        assert!(takes("keep.log") && takes("subs/keep.log"));
    }

    #[test]
    fn rule_07_patterns_with_bytes_count_for_more_as_each_is_looked_at_by_itself() {
        let mut one = exclude(&[]);
        one.add_rules(b"", 7, Some(b"\xff\n".repeat(60)));
        assert!(one.takes(b"\xff", &FILE));
        // With those above it there would be too many.
        one.add_rules(b"d", 7, Some(b"\xfe\n".repeat(10)));
        assert!(one.takes(b"d/\xff", &FILE) && !one.takes(b"d/\xfe", &FILE));
        let mut one = exclude(&[]);
        one.add_rules(b"", 7, Some(b"\xff\n".repeat(30_000)));
        assert!(one.found.is_empty());
        // A long line counts for nothing, and others do.
        let line = [b"\xff*".repeat(600), b"\n\xff\n".to_vec()].concat();
        one.add_rules(b"", 7, Some(line));
        assert!(one.takes(b"\xff", &FILE) && !one.takes(&b"\xff".repeat(700), &FILE));
    }

    #[test]
    fn rule_07_patterns_of_a_user_have_a_limit_at_each_place_and_in_the_walk() {
        let text = |bytes: usize| Some(vec![b'a'; bytes]);
        let mut one = exclude(&[]);
        let mut at = Vec::new();
        for level in 0..100 {
            one.add_rules(&at, 7, text(10_000));
            let bytes: usize = one.found.iter().map(|rules| rules.bytes).sum();
            assert!(bytes <= NESTED_BYTES && (level > 12 || bytes == 10_000 * (level + 1)));
            at.extend_from_slice(if level == 0 { b"d" } else { b"/d" });
        }
        let mut one = exclude(&[]);
        for n in 0..100 {
            let directory = format!("{n:03}");
            one.add_rules(directory.as_bytes(), 7, text(60_000));
            assert_eq!(one.found.len(), usize::from(n < 34), "{n}");
            // Root has no limit.
            one.add_rules(directory.as_bytes(), 0, text(10));
            assert_eq!(one.found.len(), 1, "{n}");
        }
        // Another user has his own.
        one.add_rules(b"bob", 8, text(10));
        assert!(one.takes(b"bob/aaaaaaaaaa", &FILE));
    }

    #[test]
    fn rule_07_patterns_that_take_too_much_time_count_for_nothing() {
        let mut one = exclude(&[]);
        one.users_time = Duration::ZERO;
        let slow: String =
            (0..100).map(|n| format!("**/a/{}Z{n}\n", "*/".repeat(100 + n))).collect();
        one.add_rules(b"", 0, Some(b"*.of_root\n".to_vec()));
        one.add_rules(b"a", 7, Some(slow.into_bytes()));
        one.add_rules(b"a/a", 8, Some(b"*.of_another\n".to_vec()));
        let deep = "a/".repeat(300);
        let path = |name: &str| format!("{deep}{name}").into_bytes();
        assert!(!one.takes(&path("x"), &FILE));
        assert_eq!(one.found.iter().map(|rules| rules.user).collect::<Vec<_>>(), [0, 8]);
        assert!(one.takes(&path("x.of_root"), &FILE) && one.takes(&path("x.of_another"), &FILE));
        one.add_rules(b"a/a/a", 7, Some(b"*.later\n".to_vec()));
        assert!(!one.takes(&path("x.later"), &FILE));
    }

    #[test]
    fn rule_07_a_file_of_patterns_has_a_limit() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("patterns");
        let mut options = Options { exclude_from: vec![file.clone()], ..Options::default() };
        let built = |bytes: u64| {
            std::fs::write(&file, vec![b'#'; bytes as usize]).unwrap();
            Exclude::new(Path::new("/"), &options).map(drop)
        };
        assert!(built(GIVEN_BYTES).is_ok());
        let refused = format!("{:?}", built(GIVEN_BYTES + 1).unwrap_err());
        assert!(refused.contains("262144 bytes of patterns"), "{refused}");
        // A device that never ends is not read to its end.
        options.exclude_from = vec!["/dev/zero".into()];
        assert!(Exclude::new(Path::new("/"), &options).is_err());
    }
}
