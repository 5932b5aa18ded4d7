//! The tools, and how each is told to create a repository, to store and to restore.

use std::{fmt, path::Path, process::Command};

use crate::{
    machine,
    product::{Onefold, path},
    program::program,
};

/// A program with its settings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    Onefold(Ours),
    /// Its chunks are 1 MiB on average.
    Restic {
        compression: &'static str,
    },
    /// A repository of restic's, with chunks as there.
    Rustic {
        level: &'static str,
    },
    Borg {
        compression: &'static str,
        chunks: &'static str,
    },
}

/// How ours is set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ours {
    pub(super) compress: &'static str,
    pub(super) level: &'static str,
    pub(super) chunking: &'static str,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tool::Onefold(Ours { compress: "zstd", level, chunking }) => {
                write!(f, "onefold zstd {level}, {chunking}")
            }
            Tool::Onefold(ours) => write!(f, "onefold {}, {}", ours.compress, ours.chunking),
            Tool::Restic { compression } => write!(f, "restic {compression}, 1 MiB"),
            Tool::Rustic { level } => write!(f, "rustic zstd {level}, 1 MiB"),
            Tool::Borg { compression, chunks } => write!(f, "borg {compression}, {chunks}"),
        }
    }
}

impl Tool {
    fn program(self) -> &'static str {
        match self {
            Tool::Onefold(_) => "onefold",
            Tool::Restic { .. } => "restic",
            Tool::Rustic { .. } => "rustic",
            Tool::Borg { .. } => "borg",
        }
    }

    /// True when it can be run.
    pub(super) fn is_here(self) -> bool {
        matches!(self, Tool::Onefold(_)) || machine::find(self.program()).is_some()
    }

    /// Where to get it.
    pub(super) fn whence(self) -> &'static str {
        match self {
            Tool::Rustic { .. } => "`cargo install rustic-rs --locked` has it",
            _ => "Debian's packages restic and borgbackup have it",
        }
    }

    pub(super) fn create(self, onefold: &Onefold, repository: &Path) -> Command {
        let at = path(repository);
        match self {
            Tool::Onefold(ours) => onefold.command([
                "create",
                "archive",
                at,
                "--compress",
                ours.compress,
                "--chunking",
                ours.chunking,
            ]),
            Tool::Restic { .. } => restic(repository, &["init"]),
            Tool::Rustic { level } => rustic(repository, &["init", "--set-compression", level]),
            Tool::Borg { .. } => borg(&["init", "--encryption", "none", at]),
        }
    }

    pub(super) fn put(
        self,
        onefold: &Onefold,
        repository: &Path,
        version: &Path,
        n: usize,
    ) -> Command {
        let (name, at) = (format!("v{n}"), path(repository));
        match self {
            Tool::Onefold(ours) => {
                onefold.command(["put", at, &name, path(version), "--level", ours.level])
            }
            Tool::Restic { compression } => {
                restic(repository, &["--compression", compression, "backup", path(version)])
            }
            Tool::Rustic { .. } => rustic(repository, &["backup", path(version)]),
            Tool::Borg { compression, chunks } => borg(&[
                "create",
                "--compression",
                compression,
                "--chunker-params",
                chunks,
                &format!("{at}::{name}"),
                path(version),
            ]),
        }
    }

    /// Restores the second version to standard output. All but ours always verify.
    pub(super) fn get(
        self,
        onefold: &Onefold,
        repository: &Path,
        version: &Path,
        verify: bool,
    ) -> Command {
        match self {
            Tool::Onefold(_) => {
                let mut command = onefold.command(["get", path(repository), "v1"]);
                command.args(verify.then_some("--verify"));
                command
            }
            Tool::Restic { .. } => restic(repository, &["dump", "latest", path(version)]),
            Tool::Rustic { .. } => {
                rustic(repository, &["dump", &format!("latest:{}", path(version))])
            }
            Tool::Borg { .. } => {
                borg(&["extract", "--stdout", &format!("{}::v1", path(repository))])
            }
        }
    }
}

fn restic(repository: &Path, arguments: &[&str]) -> Command {
    let mut command = program("restic");
    command
        .env("RESTIC_PASSWORD", "bench")
        .args(["--quiet", "--no-cache", "--repo", path(repository)])
        .args(arguments);
    command
}

fn rustic(repository: &Path, arguments: &[&str]) -> Command {
    let mut command = program("rustic");
    command
        .env("RUSTIC_PASSWORD", "bench")
        .args(["--no-cache", "--no-progress", "--repository", path(repository)])
        .args(arguments);
    command
}

fn borg(arguments: &[&str]) -> Command {
    let mut command = program("borg");
    command
        .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes")
        .env("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes")
        .args(arguments);
    command
}
