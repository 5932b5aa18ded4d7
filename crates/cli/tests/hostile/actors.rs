//! Other users of the machine.
#![allow(dead_code, reason = "each module uses its own part")]

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

/// A user who owns nothing that the tests make as root, and is nobody else's overflow id.
pub(crate) const STRANGER: u32 = 61_234;

/// A directory that every user can enter, with a copy of the command that every user can run.
pub(crate) struct Street {
    dir: tempfile::TempDir,
}

impl Street {
    pub(crate) fn new() -> Street {
        let dir = tempfile::Builder::new().prefix("onefold-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let command = dir.path().join("onefold");
        // By another process: a child that is started meanwhile would hold our copy open for
        // writing, and then it can't be run.
        assert!(
            Command::new("cp")
                .arg(env!("CARGO_BIN_EXE_onefold"))
                .arg(&command)
                .status()
                .unwrap()
                .success()
        );
        fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
        Street { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a directory that belongs to a user.
    pub(crate) fn home(&self, name: &str, user: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(user), Some(user)).unwrap();
        path
    }

    /// The command `onefold`, run here as a user.
    pub(crate) fn onefold(&self, user: u32, arguments: &str) -> Command {
        let mut command = self.program(user, &self.path("onefold"));
        command.args(arguments.split_whitespace());
        command
    }

    /// Any program, run here as a user without groups.
    pub(crate) fn program(&self, user: u32, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).uid(user).gid(user).env("HOME", self.dir.path());
        for name in [
            "RUST_LOG",
            "JOURNAL_STREAM",
            "NOTIFY_SOCKET",
            "LISTEN_FDS",
            "XDG_RUNTIME_DIR",
            "RUNTIME_DIRECTORY",
        ] {
            command.env_remove(name);
        }
        command
    }
}
