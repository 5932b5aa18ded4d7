//! Patterns of what a put or a backup leaves out.
//!
//! A pattern names a file or directory by the end of its path: `*.o`, `node_modules`,
//! `target/debug`. One that begins with `/` counts from the directory that is stored, or is a path
//! of the whole system; one that ends with `/` names directories only. `*`, `?` and `[a-z]` stand
//! for parts of a name, `**` for any directories, `{a,b}` for one of several. The content of a
//! directory that is left out is left out too.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use onefold_console::failure::Failure;
use onefold_core::Error;

/// The patterns of paths that are left out of a tree.
pub(crate) struct Exclude {
    /// The tree's root from the root of the system, without the first `/`.
    root: PathBuf,
    all: GlobSet,
    directories: GlobSet,
}

impl Exclude {
    /// Patterns of the command line, and those of files: one a line, without empty lines and those
    /// that begin with `#`.
    pub(crate) fn new(
        root: &Path,
        patterns: &[String],
        files: &[PathBuf],
    ) -> Result<Exclude, Failure> {
        let (mut all, mut directories) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        let mut add = |pattern: &str| -> Result<(), Failure> {
            let builder = if pattern.ends_with('/') { &mut directories } else { &mut all };
            builder.add(glob(pattern)?);
            Ok(())
        };
        patterns.iter().try_for_each(|pattern| add(pattern))?;
        for file in files {
            let text =
                std::fs::read_to_string(file).map_err(|e| Error::from_io(file.display(), e))?;
            let lines = text
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines.into_iter().try_for_each(&mut add)?;
        }
        let root = std::path::absolute(root).map_err(|e| Error::from_io(root.display(), e))?;
        let root = root.strip_prefix("/").map_or_else(|_| root.clone(), Path::to_owned);
        let built = |set: GlobSetBuilder| {
            set.build()
                .map_err(|e| Failure::usage(format!("the patterns of what is left out: {e}")))
        };
        Ok(Exclude { root, all: built(all)?, directories: built(directories)? })
    }

    /// True when what is at a path below the root is left out.
    pub(crate) fn takes(&self, path: &[u8], is_directory: bool) -> bool {
        if self.all.is_empty() && self.directories.is_empty() {
            return false;
        }
        let below = Path::new(OsStr::from_bytes(path));
        let whole = self.root.join(below);
        let hit = |set: &GlobSet| set.is_match(below) || set.is_match(&whole);
        hit(&self.all) || (is_directory && hit(&self.directories))
    }
}

pub(super) fn glob(pattern: &str) -> Result<globset::Glob, Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("the pattern '{pattern}' can't be used: {why}"))
    };
    let name = pattern.trim_end_matches('/');
    if name.is_empty() {
        return Err(wrong(&"it names nothing"));
    }
    if pattern.starts_with('!') {
        return Err(wrong(&"there are no exceptions; \\! is the character"));
    }
    let whole = name.strip_prefix('/').map_or_else(|| format!("**/{name}"), str::to_owned);
    GlobBuilder::new(&whole)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|e| wrong(e.kind()))
}
