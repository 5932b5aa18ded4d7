//! Secrets on their way in: key files, programs, credentials of the service manager, and what keeps them
//! out of core dumps.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::{
        fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use onefold_core::{Error, Kind, Result, hex_digits};
use onefold_seal::Random;
use parking_lot::Mutex;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    new_file::NewFile,
    program::{Role, answer_of, read_short},
    random::random_bytes,
};

/// Chance of the system.
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        for part in into.chunks_mut(64) {
            let bytes = Zeroizing::new(random_bytes::<64>()?);
            part.copy_from_slice(&bytes[..part.len()]);
        }
        Ok(())
    }
}

/// The content of a file that only its owner may read, and who is this user or root.
///
/// # Errors
/// `Denied`: others may read it, or it is somebody else's. `InvalidInput`: it is no file, or longer than
/// a key. Those of the system.
pub fn key_file(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    read_key(path, 0o077)
}

/// The same, of a credential in the directory of a service manager: systemd gives the service's user a file
/// of root's by a list of rights, whose mask stands where a mode has the rights of a group.
///
/// # Errors
/// As [`key_file`].
pub fn credential_file(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    read_key(path, 0o037)
}

/// Reads a key, unless its mode has one of the rights that others must not have.
fn read_key(path: &Path, others: u32) -> Result<Zeroizing<Vec<u8>>> {
    let wrong = |kind, why: &str| Error::new(kind, format!("{}: {why}", path.display()));
    let calm = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(calm.bits() as i32).open(path);
    let file = opened.map_err(|e| Error::from_io(path.display(), e))?;
    let metadata = file.metadata().map_err(|e| Error::from_io(path.display(), e))?;
    if !metadata.is_file() {
        return Err(wrong(Kind::InvalidInput, "a key file is a regular file"));
    }
    if metadata.mode() & others != 0 {
        let why = "others may read this key file: `chmod 600` it";
        return Err(wrong(Kind::Denied, why));
    }
    if ![rustix::process::geteuid().as_raw(), 0].contains(&metadata.uid()) {
        return Err(wrong(Kind::Denied, "this key file belongs to another user"));
    }
    read_short(file, &path.display().to_string())
}

/// Makes a key file, which only its owner may read; durable on return.
///
/// # Errors
/// `Exists`, and those of the system.
pub fn new_key_file(path: &Path, text: &str) -> Result<()> {
    let new = NewFile::create(path)?;
    new.file().write_all(text.as_bytes()).map_err(|e| Error::from_io(path.display(), e))?;
    new.publish()
}

/// A descriptor that this process got from the one that started it, and that gives a passphrase: the
/// first line. It is read once, and closed then. No program that this process starts gets it.
pub struct GivenWords {
    name: String,
    words: Mutex<Words>,
}

enum Words {
    Unread(OwnedFd),
    Read(Zeroizing<Vec<u8>>),
    Failed,
}

impl GivenWords {
    /// Takes the descriptor, before this process starts another one. Nothing is read yet. Standard input
    /// is empty from then on, if this is it.
    ///
    /// # Errors
    /// `InvalidInput`: there is no such descriptor, or it is none that this process was given.
    pub fn take(descriptor: RawFd) -> Result<GivenWords> {
        let name = format!("descriptor {descriptor}");
        let wrong = |why: &str| Error::new(Kind::InvalidInput, format!("{name} {why}"));
        let failed = |errno: rustix::io::Errno| wrong(&format!("can't be read: {errno}"));
        if descriptor < 0 || [1, 2].contains(&descriptor) {
            return Err(wrong("is none that gives a passphrase"));
        }
        #[allow(unsafe_code, reason = "a number of the command line becomes a descriptor")]
        // SAFETY: it is used for calls of the kernel only, which refuse a number that is not open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let flags = fcntl_getfd(borrowed).map_err(failed)?;
        let owned = if descriptor == 0 {
            let own = fcntl_dupfd_cloexec(borrowed, 3).map_err(failed)?;
            let nothing = File::open("/dev/null").map_err(|e| Error::from_io("/dev/null", e))?;
            rustix::stdio::dup2_stdin(&nothing).map_err(failed)?;
            own
        } else {
            // All that this process opens is closed in programs that it starts.
            if flags.contains(FdFlags::CLOEXEC) {
                return Err(wrong("was not given to this process"));
            }
            fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC).map_err(failed)?;
            #[allow(unsafe_code, reason = "as above")]
            // SAFETY: it is open, and was so when this process began, since nothing that the process
            // opens lacks the flag; and it has the flag now, so nobody takes it twice.
            unsafe {
                OwnedFd::from_raw_fd(descriptor)
            }
        };
        Ok(GivenWords { name, words: Mutex::new(Words::Unread(owned)) })
    }

    /// The words. Only the first call reads.
    ///
    /// # Errors
    /// `InvalidInput`: it gives too much, or nothing. Those of the system.
    pub fn words(&self) -> Result<Zeroizing<Vec<u8>>> {
        let mut words = self.words.lock();
        let unread = match &*words {
            Words::Unread(_) => std::mem::replace(&mut *words, Words::Failed),
            _ => Words::Failed,
        };
        if let Words::Unread(descriptor) = unread {
            let mut line = read_short(File::from(descriptor), &self.name)?;
            let end = line.iter().position(|&byte| byte == b'\n').unwrap_or(line.len());
            line[end..].zeroize();
            line.truncate(end);
            *words = Words::Read(line);
        }
        match &*words {
            Words::Read(line) if !line.is_empty() => Ok(line.clone()),
            _ => {
                let why = format!("{} gives no passphrase", self.name);
                Err(Error::new(Kind::InvalidInput, why))
            }
        }
    }
}

/// The program that gives a key.
const GIVES_KEY: Role = Role { does: "gives a key", gives: "key", wait: Duration::from_secs(30) };

/// The output of a program that gives a key, and that gets `request` on standard input.
///
/// # Errors
/// As [`answer_of`].
pub fn key_from_command(program: &Path, request: &str) -> Result<Zeroizing<Vec<u8>>> {
    answer_of(program, request, &GIVES_KEY)
}

/// Where the service manager puts the credential of the store with this id; `None` outside a service.
#[must_use]
pub fn credential(id: &[u8; 16]) -> Option<PathBuf> {
    let directory = std::env::var_os("CREDENTIALS_DIRECTORY")?;
    let id = hex_digits(id);
    Some(Path::new(&directory).join(format!("onefold.{id}")))
}

/// True when the service manager gives the credential of some store.
#[must_use]
pub fn has_credentials() -> bool {
    let given = std::env::var_os("CREDENTIALS_DIRECTORY").map(std::fs::read_dir);
    let mut names = given.and_then(Result::ok).into_iter().flatten().flatten();
    names.any(|entry| entry.file_name().as_encoded_bytes().starts_with(b"onefold."))
}

/// Bytes of memory that this process may use: the machine's, or the limit of its control group where
/// that is less; as little as a slot may assume where the system does not tell.
#[must_use]
pub fn machine_memory() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let limit = |group: &Path| {
        let path = Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    // The limits of the groups above hold as well.
    let limits = Path::new(group).ancestors().filter_map(limit);
    limits.min().map_or_else(whole_memory, |limit| limit.min(whole_memory()))
}

/// Bytes of memory that this process can have: those of the machine and of its groups, and no more
/// addresses than it may use.
#[must_use]
pub fn process_memory() -> u64 {
    let addresses = rustix::process::getrlimit(rustix::process::Resource::As).current;
    machine_memory().min(addresses.unwrap_or(u64::MAX))
}

fn whole_memory() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(256 << 20, |kib| kib << 10)
}

/// From now on this process leaves no core dump, and no process of the same user reads its memory.
///
/// # Errors
/// Those of the system.
pub fn no_dumps() -> Result<()> {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};
    let failed = |errno: rustix::io::Errno| Error::from_io("core dumps", errno.into());
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).map_err(failed)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{
            fd::{AsRawFd, IntoRawFd},
            unix::fs::PermissionsExt,
        },
        time::Instant,
    };

    use super::*;

    #[test]
    fn rule_23_a_key_file_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        new_key_file(&path, "secret\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(&**key_file(&path).unwrap(), b"secret\n");
        assert_eq!(new_key_file(&path, "other").unwrap_err().kind(), Kind::Exists);
        File::open(&path).unwrap().set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(key_file(&path).unwrap_err().kind(), Kind::Denied);
        // The mask of a list of rights stands where a mode has the rights of a group.
        for (mode, may) in [(0o440, true), (0o400, true), (0o460, false), (0o444, false)] {
            File::open(&path).unwrap().set_permissions(fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(credential_file(&path).is_ok(), may, "{mode:o}");
            assert_eq!(key_file(&path).is_ok(), mode == 0o400, "{mode:o}");
        }
        assert_eq!(key_file(folder.path()).unwrap_err().kind(), Kind::InvalidInput);
        let long = folder.path().join("long");
        new_key_file(&long, &"x".repeat(5000)).unwrap();
        assert_eq!(key_file(&long).unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(key_file(&folder.path().join("none")).unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn rule_23_a_program_gives_a_key_without_shell_and_environment() {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            File::open(&path).unwrap().set_permissions(fs::Permissions::from_mode(0o700)).unwrap();
            path
        };
        let echo = program("echo", "cat; echo \"$HOME\"");
        assert_eq!(&**key_from_command(&echo, "request ").unwrap(), b"request \n");
        let fails = program("fails", "echo key; exit 3");
        assert_eq!(key_from_command(&fails, "").unwrap_err().kind(), Kind::Io);
        let much = program("much", "head -c 100000 /dev/zero");
        assert!(key_from_command(&much, "").is_err());
        let stays = program("stays", "echo key; exec >/dev/null; sleep 60");
        let wait = Duration::from_millis(300);
        let within = |wait| Role { wait, ..GIVES_KEY };
        assert_eq!(answer_of(&stays, "", &within(wait)).unwrap_err().kind(), Kind::Io);
        assert!(key_from_command(&folder.path().join("none"), "").is_err());
        // Not a program that it started either.
        for (name, rest) in [("leaves", "exit 0"), ("waits", "wait")] {
            let number = folder.path().join("number");
            let text = format!("sleep 600 & echo $! >{}; {rest}", number.display());
            let wait = Duration::from_secs(3);
            let error = answer_of(&program(name, &text), "", &within(wait)).unwrap_err();
            assert_eq!(error.kind(), Kind::Io);
            let number = fs::read_to_string(&number).unwrap().trim().to_owned();
            let state = || fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
            let until = Instant::now() + Duration::from_secs(10);
            while !state().is_empty() && !state().contains(") Z ") {
                assert!(Instant::now() < until, "what {name} started runs on: {}", state());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    #[test]
    fn rule_23_a_program_that_gives_a_key_gets_no_descriptor_but_the_standard_ones() {
        let folder = tempfile::tempdir().unwrap();
        let given = File::open("/dev/zero").unwrap();
        fcntl_setfd(&given, FdFlags::empty()).unwrap();
        let path = folder.path().join("lists");
        fs::write(&path, "#!/bin/sh\nfor one in /proc/$$/fd/*; do readlink $one; done\nexit 0\n")
            .unwrap();
        File::open(&path).unwrap().set_permissions(fs::Permissions::from_mode(0o700)).unwrap();
        let lists = key_from_command(&path, "").unwrap();
        let lists = String::from_utf8_lossy(&lists).into_owned();
        assert!(lists.contains("pipe:") && !lists.contains("/dev/zero"), "{lists}");
    }

    #[test]
    #[ignore = "needs root: another user's link and directory"]
    #[allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]
    fn rule_23_nobody_else_puts_another_program_in_the_place_of_one_that_gives_a_key() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
        let others = |path: &Path| std::os::unix::fs::lchown(path, Some(1000), Some(1000)).unwrap();
        for directory in [&ours, &theirs, &theirs.join("bin")] {
            fs::create_dir(directory).unwrap();
        }
        for directory in [&ours, &theirs.join("bin")] {
            let program = directory.join("kms");
            fs::write(&program, "#!/bin/sh\necho key\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        }
        std::os::unix::fs::symlink("../ours/kms", theirs.join("link")).unwrap();
        std::os::unix::fs::symlink("kms", ours.join("link")).unwrap();
        others(&theirs.join("link"));
        others(&theirs);
        for path in ["theirs/link", "theirs/bin/kms"] {
            let error = key_from_command(&folder.path().join(path), "").unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "{path}: {error}");
        }
        for path in ["ours/kms", "ours/link"] {
            assert_eq!(&**key_from_command(&folder.path().join(path), "").unwrap(), b"key\n");
        }
    }

    #[test]
    fn rule_23_a_program_that_gives_a_key_is_named_by_its_whole_path() {
        for name in ["sh", "./sh", "bin/sh"] {
            let error = key_from_command(Path::new(name), "").unwrap_err();
            assert!(error.kind() == Kind::InvalidInput && error.to_string().contains("whole path"));
        }
    }

    #[test]
    fn rule_23_a_passphrase_is_the_first_line_of_a_descriptor_which_is_closed_then() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let mut writer = File::from(writer);
        writer.write_all(b"correct horse\nrest").unwrap();
        // One of this process's own is none that it was given.
        assert!(GivenWords::take(reader.as_raw_fd()).is_err());
        let given = rustix::io::dup(&reader).unwrap().into_raw_fd();
        drop(reader);
        let words = GivenWords::take(given).unwrap();
        assert!(GivenWords::take(given).is_err(), "no program that is started gets it");
        let other = File::from(rustix::io::dup(&writer).unwrap());
        drop(writer);
        let mut writer = other;
        let reading = std::thread::spawn(move || (words.words(), words));
        // It is read until nobody writes any more, or more came than a passphrase has; then nobody has
        // its other side.
        let error = loop {
            if let Err(error) = writer.write_all(&[b'.'; 512]) {
                break error;
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        let (too_much, words) = reading.join().unwrap();
        assert_eq!(too_much.unwrap_err().kind(), Kind::InvalidInput);
        assert!(words.words().is_err());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words");
        fs::write(&path, "correct horse\nrest").unwrap();
        let given = rustix::io::dup(File::open(&path).unwrap()).unwrap().into_raw_fd();
        let words = GivenWords::take(given).unwrap();
        for _ in 0..2 {
            assert_eq!(&**words.words().unwrap(), b"correct horse");
        }
        for none in [-1, 1, 2, 999_999] {
            assert!(GivenWords::take(none).is_err());
        }
    }
}
