//! The tools, each with its defaults, and the commands of each for what an administrator does.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    machine,
    product::{Onefold, path},
    program::program,
};

/// A backup program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Onefold,
    Restic,
    Rustic,
    Borg,
    Borg2,
}

/// All of them, ours first.
pub(super) const ALL: [Kind; 5] =
    [Kind::Onefold, Kind::Restic, Kind::Rustic, Kind::Borg, Kind::Borg2];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

impl Kind {
    pub(super) fn program(self) -> &'static str {
        match self {
            Kind::Onefold => "onefold",
            Kind::Restic => "restic",
            Kind::Rustic => "rustic",
            Kind::Borg => "borg",
            Kind::Borg2 => "borg2",
        }
    }

    /// True when it can be run.
    pub(super) fn is_here(self) -> bool {
        self == Kind::Onefold || machine::find(self.program()).is_some()
    }

    /// Where to get it.
    pub(super) fn whence(self) -> &'static str {
        match self {
            Kind::Rustic => "`cargo install rustic-rs --locked` has it",
            Kind::Borg2 => {
                "a beta: `pip install borgbackup[llfuse]==2.0.0b19` into an environment of its own has \
                 it, as `borg`; a link to it is called `borg2`"
            }
            _ => "Debian's packages restic and borgbackup have it",
        }
    }
}

/// A program with a repository of its own.
pub(super) struct Tool {
    pub(super) kind: Kind,
    /// Its repository, which `create` makes.
    pub(super) repository: PathBuf,
    /// Its caches and settings.
    home: PathBuf,
    onefold: Onefold,
}

impl Tool {
    /// A tool whose repository and caches lie below `place`.
    pub(super) fn new(kind: Kind, onefold: &Onefold, place: &Path) -> Tool {
        let home = place.join(format!("home-{kind}"));
        Tool {
            kind,
            repository: place.join(format!("repository-{kind}")),
            home,
            onefold: onefold.clone(),
        }
    }

    /// Makes an empty repository; one that is there, and the caches of it, are removed first.
    pub(super) fn create(&self) -> anyhow::Result<Command> {
        for directory in [&self.repository, &self.home] {
            let _ = fs::remove_dir_all(directory);
        }
        fs::create_dir_all(&self.home)?;
        let at = path(&self.repository);
        Ok(match self.kind {
            Kind::Onefold => self.command(&["create", "archive", at]),
            Kind::Restic | Kind::Rustic => self.command(&["init"]),
            Kind::Borg => self.command(&["init", "--encryption", "none", at]),
            Kind::Borg2 => self.command(&["repo-create", "--encryption", "none"]),
        })
    }

    /// Stores a directory as the snapshot `night`.
    pub(super) fn backup(&self, tree: &Path, night: usize) -> Command {
        let at = path(&self.repository);
        match self.kind {
            Kind::Onefold => self.command(&["backup", at, path(tree), "--set", "nights"]),
            Kind::Restic | Kind::Rustic => self.command(&["backup", path(tree)]),
            Kind::Borg => self.command(&["create", &format!("{at}::{night}"), path(tree)]),
            Kind::Borg2 => self.command(&["create", &format!("night{night:03}"), path(tree)]),
        }
    }

    /// Restores `what`, a file or a directory of the newest snapshot, which is `night`, below `to`;
    /// with `to` as `/`, in the place that it came from.
    pub(super) fn restore(&self, what: &Path, to: &Path, night: usize) -> Command {
        let (at, what, to) = (path(&self.repository), path(what), path(to));
        match self.kind {
            Kind::Onefold => {
                let mut command = self.command(&["restore", at, "nights", what, "-C", to]);
                if to == "/" {
                    command.arg("--in-place");
                }
                command
            }
            Kind::Restic => self.command(&["restore", "latest", "--target", to, "--include", what]),
            Kind::Rustic => {
                // It restores what a directory holds, and a file into a directory.
                let to = if to == "/" { what.to_owned() } else { format!("{to}/it") };
                self.command(&["restore", &format!("latest:{what}"), &to])
            }
            Kind::Borg | Kind::Borg2 => {
                let archive = match self.kind {
                    Kind::Borg => format!("{at}::{night}"),
                    _ => format!("night{night:03}"),
                };
                let mut command =
                    self.command(&["extract", &archive, what.trim_start_matches('/')]);
                command.current_dir(to);
                command
            }
        }
    }

    /// Shows snapshots in the directory `on`, until it is ended; `None` when it cannot.
    pub(super) fn mount(&self, on: &Path, night: usize) -> Option<Command> {
        let (at, on) = (path(&self.repository), path(on));
        match self.kind {
            Kind::Onefold => Some(self.command(&["mount", at, on, "--snapshot", "nights"])),
            Kind::Restic => Some(self.command(&["mount", on])),
            // The package of the registry is built without it.
            Kind::Rustic => None,
            Kind::Borg => Some(self.command(&["mount", "-f", &format!("{at}::{night}"), on])),
            Kind::Borg2 => {
                Some(self.command(&["mount", "-f", "-a", &format!("night{night:03}"), on]))
            }
        }
    }

    /// Where a directory of the newest snapshot is below the directory of `mount`.
    pub(super) fn in_mount(&self, on: &Path, tree: &Path) -> PathBuf {
        let tree = tree.strip_prefix("/").unwrap_or(tree);
        match self.kind {
            Kind::Restic => on.join("snapshots/latest").join(tree),
            Kind::Borg2 => {
                let mut shown = fs::read_dir(on).into_iter().flatten().flatten();
                shown.next().map_or_else(|| on.to_owned(), |archive| archive.path()).join(tree)
            }
            _ => on.join(tree),
        }
    }

    /// Removes the oldest `gone` snapshots and keeps `kept`, and gives their space back.
    pub(super) fn forget(&self, gone: usize, kept: usize) -> Vec<Command> {
        let (at, kept) = (path(&self.repository), &kept.to_string());
        match self.kind {
            Kind::Onefold => vec![
                self.command(&["forget", at, "--set", "nights", "--keep-last", kept, "--force"]),
                self.command(&["gc", at, "--trash", "0"]),
            ],
            Kind::Restic => vec![self.command(&["forget", "--keep-last", kept, "--prune"])],
            Kind::Rustic => {
                vec![self.command(&["forget", "--keep-last", kept, "--prune", "--instant-delete"])]
            }
            Kind::Borg => vec![
                self.command(&["delete", "--first", &gone.to_string(), at]),
                self.command(&["compact", at]),
            ],
            Kind::Borg2 => {
                vec![self.command(&["prune", "--keep-last", kept]), self.command(&["compact"])]
            }
        }
    }

    /// Verifies all but the data.
    pub(super) fn check(&self) -> Command {
        let at = path(&self.repository);
        match self.kind {
            Kind::Onefold => self.command(&["check", at]),
            Kind::Restic | Kind::Rustic => self.command(&["check"]),
            Kind::Borg => self.command(&["check", "--archives-only", at]),
            Kind::Borg2 => self.command(&["check", "--archives-only"]),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match self.kind {
            Kind::Onefold => return self.onefold.command(arguments),
            other => program(other.program()),
        };
        // `HOME` and the rest of its family decide where the tools keep their caches.
        command
            .env("HOME", &self.home)
            .env("XDG_CACHE_HOME", self.home.join("cache"))
            .env("XDG_CONFIG_HOME", self.home.join("config"));
        match self.kind {
            Kind::Restic => {
                command.env("RESTIC_PASSWORD", "bench").args([
                    "--quiet",
                    "--repo",
                    path(&self.repository),
                ]);
            }
            Kind::Rustic => {
                command.env("RUSTIC_PASSWORD", "bench").args([
                    "--no-progress",
                    "--repository",
                    path(&self.repository),
                ]);
            }
            _ => {
                command
                    .env("BORG_BASE_DIR", &self.home)
                    .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes")
                    .env("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes");
                if self.kind == Kind::Borg2 {
                    command.env("BORG_REPO", &self.repository);
                }
            }
        }
        command.args(arguments);
        command
    }
}
