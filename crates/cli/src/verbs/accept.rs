//! `onefold accept`: the end of an ssh connection where an archive is.

mod audit;
mod ends;

use std::{
    fs::{self, File},
    io::{self, BufReader, IsTerminal},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum};
use onefold_archive::{
    Additions, TURNS, find_label, is_archive_file, is_commit_lock, is_epoch_lock, is_node,
    is_unfinished, may_be_node,
};
use onefold_backend::{Directory, Making, room::room};
use onefold_core::{Error, Files, Kind, Result};
use onefold_remote::{Greeting, Offer, Pulse, Right, Stay, answer, refuse};
use parking_lot::Mutex;

use self::{
    audit::Audited,
    ends::{Ends, Reason, Stream},
};
use onefold::parts::{
    Found,
    address::is_away,
    archive_dir::ArchiveDir,
    far::{Asked, asked},
    operator::word,
};
use onefold_console::failure::Failure;

/// Lets another host use an archive of this one, over an ssh connection
///
/// Nobody types this: ssh starts it when a verb on another host has an address like
/// ssh://user@host/directory. It uses standard input and output, opens the one directory and nothing
/// else, and knows no key of the archive. As the command of a key in ~/.ssh/authorized_keys, with
/// `restrict`, it is all that the owner of that key can do. Locks end with the connection.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold accept /srv/backups\n  \
                  onefold accept /srv/backups --right read\n  \
                  onefold accept /srv/backups --right put\n  \
                  onefold accept /srv/backups --audit /var/log/onefold/accepted --as host1\n\n\
                  A line of authorized_keys:\n  \
                  command=\"onefold accept /srv/backups --new\",restrict ssh-ed25519 AAAA… host1")]
pub(crate) struct Options {
    /// The archive's directory
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// Makes the directory when the other host creates the archive
    #[arg(long)]
    new: bool,

    /// What the other host may do
    #[arg(long, value_enum, default_value = "manage", value_name = "RIGHT")]
    right: RightName,

    /// File, or 'journal', that gets a line for this connection, each file of the archive that it makes or
    /// removes, each request that is refused, and its end. Connections to any archives of this user may
    /// write one file at the same time. Each line names the hash of the one before it, and `onefold audit`
    /// proves that none was changed
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,

    /// How the lines of --audit call the other host. Without it they name this user alone, as several
    /// keys may be this user's
    #[arg(long = "as", value_name = "NAME", requires = "audit", value_parser = audit::name)]
    called: Option<String>,

    /// Ends the connection when the other host says nothing for this time, as when it has vanished. It
    /// says something every 5 minutes
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration, value_name = "TIME")]
    idle: Duration,
}

/// A right of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RightName {
    /// Look at everything, and change nothing
    Read,
    /// Look at everything, and add what a put key may add (`onefold key grant`); take nothing away
    Put,
    /// All that the owner of the directory may do
    Manage,
}

/// The variable in which `sshd` tells what the other host asked for, where it runs another command.
const ORIGINAL: &str = "SSH_ORIGINAL_COMMAND";

/// How often the other host is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many times the idle time a lock may be held by who may only read.
const LOCK_TIMES: u32 = 24;

/// How long who may only read may have a lock for which writers wait; less when the idle time is shorter.
/// A turn is as long: a writer that waits comes in within two of them.
const BRIEF: Duration = Duration::from_secs(10);

/// The same for who may only add, who also writes a change while he has it: 16 MiB at most.
const BRIEF_OF_PUT: Duration = Duration::from_secs(60);

/// How long a turn is waited for. Those before it take part for 20 s while they wait, and then have the lock
/// for a minute at most.
const TURN_PATIENCE: Duration = Duration::from_secs(180);

/// How long the end of a connection waits for requests that are being done, as one that waits for a lock.
const GRACE: Duration = Duration::from_secs(5);

/// Answers until the other host ends the connection.
pub(crate) fn run(options: &Options) -> std::result::Result<(), Failure> {
    let (input, output) = (io::stdin(), io::stdout());
    if input.is_terminal() || output.is_terminal() {
        return Err(Failure::usage(
            "ssh starts this for a verb on another host, which has an address like \
             ssh://user@host/directory",
        ));
    }
    let failed = |e| Error::from_io("no standard input and output", e);
    let input = File::from(input.as_fd().try_clone_to_owned().map_err(failed)?);
    let mut output = File::from(output.as_fd().try_clone_to_owned().map_err(failed)?);
    let audited =
        Audited::open(options.audit.as_deref(), options.called.as_deref(), &options.store);
    let audited = match audited {
        Ok(audited) => audited,
        Err(error) => {
            let error = error.context("the audit log of this host");
            refuse(&mut output, &error).map_err(failed)?;
            return Err(error.into());
        }
    };
    let new = NewDirectory::of(options);
    let (offer, greeting) = match offered(options, &audited) {
        Ok((offer, greeting, making)) => {
            *new.making.lock() = making;
            (offer, greeting)
        }
        Err(error) => {
            new.end();
            audited.sent_away(&error.to_string());
            refuse(&mut output, &error).map_err(failed)?;
            return Err(error.into());
        }
    };
    let (pulse, ends) = (Pulse::default(), Ends::new()?);
    audited.accepted(greeting.right, new.path.is_some());
    let watch = Watch {
        pulse: pulse.clone(),
        idle: options.idle,
        right: greeting.right,
        ends: ends.clone(),
        new: new.clone(),
        audited: audited.clone(),
    };
    std::thread::Builder::new().name("idle".into()).spawn(move || watch.run()).map_err(failed)?;
    let input = BufReader::new(Stream::input(input, &ends));
    let output = Stream::output(output, &ends).map_err(failed)?;
    // The archive's files and locks are closed behind this: the lines of the log may hang.
    let answered = answer(offer, &greeting, input, Box::new(output), &pulse);
    new.end();
    if let Some(Reason { why, told }) = ends.reason() {
        audited.ended(why);
        return Err(Failure::new(told.clone()));
    }
    match &answered {
        Ok(()) => audited.ended("the other host ended it"),
        Err(error) => audited.ended(&error.to_string()),
    }
    Ok(answered?)
}

/// A directory that this process makes, so that the other host can create an archive in it.
#[derive(Clone)]
struct NewDirectory {
    path: Option<PathBuf>,
    /// Says to other processes that this one is at it, until [`end`](Self::end).
    making: Arc<Mutex<Option<Making>>>,
}

impl NewDirectory {
    fn of(options: &Options) -> NewDirectory {
        let is_new = options.store.symlink_metadata().is_err() && makes(options).unwrap_or(false);
        NewDirectory { path: is_new.then(|| options.store.clone()), making: Arc::default() }
    }

    /// Removes it when no archive came of it: a label is written last. Where something else is left, it
    /// stays for its user to look at.
    fn end(&self) {
        let mut making = self.making.lock().take();
        let Some(path) = &self.path else { return };
        let Ok(files) = Directory::open_as(path, true, word()) else { return };
        // Another process may have made it meanwhile, and be at work in it.
        if making.is_none() {
            making = match files.making() {
                Ok(making) => making,
                Err(_) => return,
            };
        }
        let is_new = find_label(&files).is_err_and(|error| error.kind() == Kind::NotFound);
        // A node that is being filled is filled on by the next connection.
        if !is_new || may_be_node(&files) {
            return;
        }
        let own =
            files.names().unwrap_or_default().into_iter().filter(|name| is_archive_file(name));
        own.for_each(|name| drop(files.remove(&name)));
        let _ = fs::remove_dir(path);
        drop(making);
    }
}

/// The archive's files, and what is said of them; what a killed creation left is removed for a new one.
fn offered(options: &Options, audited: &Audited) -> Result<(Offer, Greeting, Option<Making>)> {
    let store = &options.store;
    if is_away(store) {
        let why = format!("{} is not on this host", store.display());
        return Err(Error::new(Kind::InvalidInput, why));
    }
    let new = makes(options)?;
    let offer = |files: Directory, right: Right| {
        let at = store.clone();
        let free_bytes = Box::new(move || room(&at).map(|room| room.bytes));
        let files = Arc::new(files);
        let of_turns = files.clone();
        let audited = audited.clone();
        let (files, brief): (Arc<dyn Files>, _) = match right {
            Right::Put => (Arc::new(Additions::new(files)), BRIEF_OF_PUT),
            _ => (files, BRIEF),
        };
        Offer {
            files,
            is_own: is_archive_file,
            reader_lock,
            brief: brief.min(options.idle),
            turn: Box::new(move || of_turns.turn(TURNS, turn, TURN_PATIENCE)),
            free_bytes,
            heard: Box::new(move |act| audited.hear(act)),
        }
    };
    if new {
        let (files, making) = Directory::create_over(store, word(), is_unfinished)?;
        return Ok((offer(files, Right::Manage), Greeting::of(Right::Manage), making));
    }
    let files = Directory::open_as(store, false, word());
    if files.map_or(Ok(false), |files| is_node(&files))? {
        let (files, right, bar) = match options.right {
            RightName::Read => (Directory::open_as(store, false, word())?, Right::Read, None),
            RightName::Manage => all_rights(store)?,
            RightName::Put => {
                let why = "this is a node of an archive: whoever stores on it can take away";
                return Err(Error::new(Kind::Unsupported, why));
            }
        };
        return Ok((offer(files, right), Greeting { bar, ..Greeting::of(right) }, None));
    }
    let Found::Archive(archive) = Found::at(store)? else {
        let why = format!("{} is no archive: only they are used from other hosts", store.display());
        return Err(Error::new(Kind::Unsupported, why));
    };
    lies_here(&archive)?;
    let server = served(&archive);
    let (files, right, bar) = match options.right {
        RightName::Read => (Directory::open_as(store, false, word())?, Right::Read, None),
        RightName::Put => {
            let files = Directory::open_as(store, true, word())?;
            if !find_label(&files)?.roles {
                let why = "the keys of this archive have no roles, and whoever stores into it can take away: \
                           `onefold create archive --roles` makes one for --right put";
                return Err(Error::new(Kind::Unsupported, why));
            }
            (files, Right::Put, None)
        }
        RightName::Manage => all_rights(store)?,
    };
    Ok((offer(files, right), Greeting { right, bar, server }, None))
}

/// A directory with all rights to it that this user has, and why these are not all.
fn all_rights(store: &Path) -> Result<(Directory, Right, Option<String>)> {
    Ok(match Directory::open_as(store, true, word()) {
        Ok(files) => (files, Right::Manage, None),
        // Somebody else's, or on a file system that takes no writes.
        Err(error) => {
            (Directory::open_as(store, false, word())?, Right::Read, Some(error.to_string()))
        }
    })
}

/// The locks that a reader needs.
fn reader_lock(name: &str) -> Option<Stay> {
    match (is_epoch_lock(name), is_commit_lock(name)) {
        (true, _) => Some(Stay::Long),
        (_, true) => Some(Stay::Brief),
        _ => None,
    }
}

/// The number of the present turn of the locks for which writers wait.
fn turn() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(1, |since| since.as_secs() / BRIEF.as_secs() + 1)
}

/// Errors when the archive lies in more than its directory.
fn lies_here(archive: &ArchiveDir) -> Result<()> {
    let why = match (archive.has_nodes(), archive.index_directory()) {
        (true, _) => "its nodes are in other directories",
        (false, Some(_)) => "its chunk index is in another directory",
        (false, None) => return Ok(()),
    };
    let shown = archive.path().display();
    let why = format!("{shown} can't be used from other hosts yet: {why}");
    Err(Error::new(Kind::Unsupported, why))
}

/// True when the directory is to be made. The other host's own command counts for that alone, and is
/// refused unless it asks for this directory.
fn makes(options: &Options) -> Result<bool> {
    let Some(original) = std::env::var_os(ORIGINAL) else { return Ok(options.new) };
    let denied = |why: String| Err(Error::new(Kind::Denied, why));
    let Some(Asked { new, directory }) = original.to_str().and_then(asked) else {
        return denied("this key is for archives of Onefold, and for no other command".into());
    };
    if !is_same(Path::new(&directory), &options.store) {
        let (shown, has) = (directory.escape_debug(), options.store.display());
        return denied(format!("this key is for {has} on this host, and not for {shown}"));
    }
    match (new, options.new, options.right) {
        (false, ..) => Ok(false),
        (true, true, RightName::Manage) => Ok(true),
        (true, ..) => denied("this key makes no archive: its command needs --new for that".into()),
    }
}

/// True for two paths of one directory, which may be still to be made.
fn is_same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    matches!((whole(one), whole(other)), (Ok(one), Ok(other)) if one == other)
}

/// A sentence about the server of the archive, if it has one.
fn served(archive: &ArchiveDir) -> Option<String> {
    match archive.server() {
        Ok(Some(mut server)) => Some(match server.pid() {
            Ok(pid) => format!("process {pid} serves it there; stop that first, or do it there"),
            Err(_) => "a process serves it there; stop that first, or do it there".to_owned(),
        }),
        Ok(None) => {
            let unseen = archive.unseen_server().unwrap_or_default();
            unseen.map(|server| format!("{server}; stop that first, or do it there"))
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Ends the connection, and its locks with it, when the other host is silent for too long.
struct Watch {
    pulse: Pulse,
    idle: Duration,
    right: Right,
    ends: Ends,
    new: NewDirectory,
    audited: Audited,
}

impl Watch {
    fn run(&self) {
        let Reason { why, told } = self.reason();
        self.ends.end(Reason { why, told: told.clone() });
        // The thread that answers closes the archive's files, writes to the log, and ends the process.
        std::thread::sleep(GRACE);
        // A request is still being done. It stops in the middle, as when the process is killed.
        self.new.end();
        self.audited.ended(why);
        // Its status says that it failed.
        let _ = Failure::new(told).tell("onefold");
        std::process::exit(1);
    }

    /// Waits until the connection is to end; gives the reason.
    fn reason(&self) -> Reason {
        loop {
            std::thread::sleep(LOOK_EVERY.min(self.idle));
            if self.pulse.is_over() {
                let why = "the other host kept a lock for which writers wait";
                return Reason { why, told: why.to_owned() };
            }
            let holds_on = || self.pulse.longest_lock() >= self.idle * LOCK_TIMES;
            let why = match self.pulse.silence() >= self.idle {
                true => "the other host was silent for too long",
                false if self.right == Right::Read && holds_on() => {
                    "the other host held a lock for too long"
                }
                false => continue,
            };
            let idle = humantime::format_duration(self.idle);
            return Reason { why, told: format!("{why} (--idle {idle})") };
        }
    }
}
