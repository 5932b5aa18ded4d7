//! A log of who did what at a server, whose lines prove that none before them was changed.
//!
//! Each line is one object of JSON, and its `before` is the SHA-256 of the line before it, without the
//! line's end. Whoever changes, removes or inserts a line has to write all later lines anew, and the hash of
//! the last one, which an operator can keep elsewhere, differs then (rule 48 of SECURITY.md).
//!
//! *Durability:* a line is given to the system before [`AuditLog::note`] returns. A line survives the end of
//! the server; a power cut may take the last ones.
//!
//! *Readers:* a user who may read a log can hold up writes to it, by a read past the cache into memory that a
//! program of that user serves and never fills: such a read keeps the lock of the file. No signal ends a write
//! that waits for it, and the process keeps all of its locks. So a log that others may read is refused.
//!
//! *Threads:* a disk may hold up a write, too. So each log has a thread that writes, and all other threads wait
//! for two seconds at most until their line is written.

mod accounts;
mod among;
mod lines;

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::{File, Metadata, OpenOptions},
    io::{BufRead, Read, Write},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
        net::UnixDatagram,
    },
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::{Instant, SystemTime},
};

use onefold_core::{Error, Kind, Result, letters::said_in_json};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde_json::{Map, Value};

use accounts::Accounts;
use among::{Among, note_alone};
use lines::{BEFORE, NOTHING, PATIENCE, hash, last_line, not_locked, whole};

pub use accounts::{LINES, LINES_A_SECOND};

/// Bytes of a line at most: a longer one is not written, and counts as lost.
const LINE_MAX: usize = 16 << 10;

/// The socket of the journal.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Longest time of a line, as text.
const TIME_MAX: usize = 40;

/// Lines that wait to be written at most. No server has so many threads with something to tell at one time.
const WAITING: usize = 1024;

/// A log that one process writes at a time ([`file`](AuditLog::file)), or several, line by line
/// ([`shared_file`](AuditLog::shared_file)).
pub struct AuditLog {
    shared: Arc<Shared>,
    /// A file beside the log, locked as long as this process writes the log; `None` in a shared log. No
    /// other user may open this file, while whoever may read the log could lock the log. A write that hangs
    /// keeps the log, and not this lock.
    lock: Mutex<Option<File>>,
}

/// The queue between the threads that have lines and the one that writes.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    came: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Line>,
    /// The number of the last line that came.
    number: u64,
    /// Since when a line is being written.
    writing: Option<Instant>,
    /// Lines that found no room, or that their threads gave up before the writing began, since the last line
    /// that was begun.
    lost: u64,
    /// The hash of the last line that was written.
    head: String,
    has_ended: bool,
}

/// A line that waits to be written.
struct Line {
    number: u64,
    fields: Map<String, Value>,
    of: Option<Of>,
    /// Gets the result, if a thread waits for it.
    answer: Option<mpsc::SyncSender<Result<()>>>,
}

/// The client that a line is about, and whose budget it takes.
pub struct Of {
    /// The client's name.
    pub who: String,
    /// The kind of the line. Each kind has a budget of its own.
    pub kind: &'static str,
    /// Lines about the client that were left out before this one, as of a budget of the caller's.
    pub left_out: u64,
}

struct State {
    to: To,
    /// The hash of the last line, in hexadecimal digits.
    before: String,
    /// Lines that could not be written since the last one.
    lost: u64,
    /// The accounts of clients, of a log that has them in no lock.
    accounts: Accounts,
}

enum To {
    File {
        path: PathBuf,
        file: File,
        /// The file ends within a line.
        torn: bool,
        /// Other processes write it too.
        among: Option<Among>,
    },
    Journal(UnixDatagram),
}

impl AuditLog {
    /// Goes on with the log in a file. A missing file is made, for this user alone. When somebody renames the
    /// file later, as programs that rotate logs do, the next line begins a new file.
    ///
    /// # Errors
    /// `Denied`: the file is another user's, or others may read it or write to it. `Busy`: another process
    /// writes the log. `InvalidInput`: the path is no regular file, or the file has more than 1 MiB and does not end as
    /// an audit log does. The errors of the system.
    pub fn file(path: &Path) -> Result<AuditLog> {
        let path = std::path::absolute(path).map_err(|e| Error::from_io(path.display(), e))?;
        let lock = lock(&path)?;
        let file = open(&path)?;
        let (before, torn) = last_line(&path, &file)?;
        AuditLog::new(To::File { path, file, torn, among: None }, before, Some(lock))
    }

    /// As [`file`](Self::file), for processes that write one log at the same time: a process locks the log
    /// for each line, which then follows the last line of all of them. Opening waits for no process that
    /// writes a line.
    ///
    /// # Errors
    /// As [`file`](Self::file). `Busy`: a server writes the log alone, and did so for two seconds.
    pub fn shared_file(path: &Path) -> Result<AuditLog> {
        let path = std::path::absolute(path).map_err(|e| Error::from_io(path.display(), e))?;
        let among = Some(Among::new(&path, open_lock(&path)?)?);
        let file = open(&path)?;
        // Another process may be writing: the first line looks for the last one anew.
        let (before, torn) = last_line(&path, &file)?;
        AuditLog::new(To::File { path, file, torn, among }, before, None)
    }

    /// Writes to the journal of the system, as `ONEFOLD_AUDIT=1`. In each process the chain of lines begins
    /// anew.
    ///
    /// # Errors
    /// The errors of the system, as when no journal listens.
    pub fn journal() -> Result<AuditLog> {
        AuditLog::journal_at(Path::new(JOURNAL))
    }

    fn journal_at(path: &Path) -> Result<AuditLog> {
        let failed = |e| Error::from_io(format!("the journal at {}", path.display()), e);
        let socket = UnixDatagram::unbound().map_err(failed)?;
        socket.connect(path).map_err(failed)?;
        AuditLog::new(To::Journal(socket), NOTHING.to_owned(), None)
    }

    fn new(to: To, before: String, lock: Option<File>) -> Result<AuditLog> {
        let shared = Arc::new(Shared::default());
        shared.queue.lock().head.clone_from(&before);
        let state = State { to, before, lost: 0, accounts: Accounts::default() };
        let of_thread = shared.clone();
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || of_thread.write(state))
            .map_err(|e| Error::from_io("the thread of the audit log", e))?;
        Ok(AuditLog { shared, lock: Mutex::new(lock) })
    }

    /// Writes a line with these fields, the time, and the hash of the line before it.
    ///
    /// # Errors
    /// `InvalidInput`: the line has more than 16 KiB. `Busy`: the line was not written within two seconds,
    /// perhaps because one before it was not, or too many lines wait. The errors of the system. After each
    /// error the next line says in `lost` how many are missing before it.
    pub fn note(&self, fields: Map<String, Value>) -> Result<()> {
        self.note_and_wait(fields, None)
    }

    /// As [`note`](Self::note), for a line about a client that may be at work in other processes, too: all of
    /// its lines of one kind take one budget, of [`LINES`] at once and [`LINES_A_SECOND`] beyond, which lies in
    /// the lock of a [`shared_file`](Self::shared_file). A line beyond it is left out, and that is no error. The
    /// field `unsaid` of the next line about the client has the number of lines that were left out; if none
    /// comes for a minute, a line of its own has it, behind the next line about anybody.
    ///
    /// # Errors
    /// As [`note`](Self::note).
    pub fn note_within(&self, of: Of, fields: Map<String, Value>) -> Result<()> {
        self.note_and_wait(fields, Some(of))
    }

    fn note_and_wait(&self, fields: Map<String, Value>, of: Option<Of>) -> Result<()> {
        let (answer, answered) = mpsc::sync_channel(1);
        let number = self.line_up(fields, of, Some(answer))?;
        if let Ok(written) = answered.recv_timeout(PATIENCE) {
            return written;
        }
        let mut queue = self.shared.queue.lock();
        let waiting = queue.lines.len();
        queue.lines.retain(|line| line.number != number);
        // A line whose writing began may still arrive, and is not counted as lost.
        queue.lost += (waiting - queue.lines.len()) as u64;
        drop(queue);
        answered.try_recv().unwrap_or_else(|_| Err(hanging()))
    }

    /// As [`note`](Self::note), for a thread that must not wait: the line is written later, or `lost` of
    /// the next one counts it.
    ///
    /// # Errors
    /// `Busy`: a write has taken two seconds, or 1024 lines wait.
    pub fn note_later(&self, fields: Map<String, Value>) -> Result<()> {
        self.line_up(fields, None, None).map(|_| ())
    }

    /// Gives a line a number, and hands it to the thread that writes.
    fn line_up(
        &self,
        fields: Map<String, Value>,
        of: Option<Of>,
        answer: Option<mpsc::SyncSender<Result<()>>>,
    ) -> Result<u64> {
        let mut queue = self.shared.queue.lock();
        let hangs = queue.writing.is_some_and(|since| since.elapsed() >= PATIENCE);
        if hangs || queue.lines.len() >= WAITING {
            queue.lost += 1;
            return Err(hanging());
        }
        queue.number += 1;
        let number = queue.number;
        queue.lines.push_back(Line { number, fields, of, answer });
        self.shared.came.notify_one();
        Ok(number)
    }

    /// Lets another process write the log from now on, also while a write of this process hangs. Such a write
    /// ends with the process.
    pub fn end(&self) {
        self.lock.lock().take();
    }

    /// The hash of the last line, in hexadecimal digits.
    #[must_use]
    pub fn head(&self) -> String {
        self.shared.queue.lock().head.clone()
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.shared.queue.lock().has_ended = true;
        self.shared.came.notify_one();
    }
}

impl Shared {
    /// Writes the lines that come, until the log is dropped.
    fn write(&self, mut state: State) {
        let mut queue = self.queue.lock();
        loop {
            let Some(line) = queue.lines.pop_front() else {
                if queue.has_ended {
                    return;
                }
                self.came.wait(&mut queue);
                continue;
            };
            queue.writing = Some(Instant::now());
            state.lost += std::mem::take(&mut queue.lost);
            let written = MutexGuard::unlocked(&mut queue, || state.write(line.fields, line.of));
            state.lost += u64::from(written.is_err());
            queue.writing = None;
            queue.head.clone_from(&state.before);
            if let Some(answer) = line.answer {
                // The thread that waited may have given up.
                let _ = answer.send(written);
            }
        }
    }
}

fn hanging() -> Error {
    let why = "a write to it hangs: its disk does, or a program that reads it holds it up";
    Error::new(Kind::Busy, why)
}

impl State {
    /// Writes a line, between those of other processes if there are any, if the budget of its client has one.
    fn write(&mut self, fields: Map<String, Value>, of: Option<Of>) -> Result<()> {
        if let To::File { among: Some(among), .. } = &self.to {
            among.take()?;
        }
        let written = match of {
            Some(of) => self.write_within(fields, &of),
            None => self.write_one(fields),
        };
        if let To::File { among: Some(among), .. } = &self.to {
            among.give_back();
        }
        written
    }

    fn write_within(&mut self, mut fields: Map<String, Value>, of: &Of) -> Result<()> {
        let now = accounts::now();
        let mut accounts = match &self.to {
            To::File { among: Some(among), .. } => among.accounts(),
            _ => std::mem::take(&mut self.accounts),
        };
        let unsaid = accounts.take(&of.who, of.kind, of.left_out, now);
        let due = accounts.due(now);
        // First: a line that no account has would fill a disk.
        let mut written = self.keep(accounts.clone());
        let all = unsaid.map(|unsaid| {
            if unsaid > 0 {
                fields.insert("unsaid".to_owned(), unsaid.into());
            }
            (of.who.clone(), unsaid, fields)
        });
        let counts = due.into_iter().map(|(who, unsaid)| {
            let shown = if who.is_empty() { "others" } else { &who };
            let fields =
                [("event", "unsaid".into()), ("who", shown.into()), ("unsaid", unsaid.into())];
            let fields = fields.map(|(name, value): (&str, Value)| (name.to_owned(), value));
            (who, unsaid, Map::from_iter(fields))
        });
        let mut untold = false;
        for (who, unsaid, fields) in all.into_iter().chain(counts) {
            if written.is_ok() {
                written = self.write_one(fields);
            }
            if written.is_err() {
                accounts.leave_out(&who, unsaid, now);
                untold |= unsaid > 0;
            }
        }
        if untold {
            self.keep(accounts)?;
        }
        written
    }

    fn keep(&mut self, accounts: Accounts) -> Result<()> {
        match &self.to {
            To::File { among: Some(among), .. } => among.keep(&accounts),
            _ => {
                self.accounts = accounts;
                Ok(())
            }
        }
    }

    /// Writes a line; other processes wait meanwhile.
    fn write_one(&mut self, fields: Map<String, Value>) -> Result<()> {
        let written = self.write_next(fields);
        if let To::File { file, among: Some(among), .. } = &mut self.to {
            match &written {
                Ok(()) => among.wrote(file, &self.before),
                Err(_) => among.failed(),
            }
        }
        written
    }

    fn write_next(&mut self, fields: Map<String, Value>) -> Result<()> {
        self.follow()?;
        if let To::File { path, file, torn, among: Some(among) } = &mut self.to {
            (self.before, *torn) = among.last(path, file, &self.before)?;
        }
        let mut line = Map::new();
        let now = humantime::format_rfc3339_micros(SystemTime::now());
        line.insert("time".to_owned(), now.to_string().into());
        line.extend(fields);
        if self.lost > 0 {
            line.insert("lost".to_owned(), self.lost.into());
        }
        line.insert(BEFORE.to_owned(), self.before.clone().into());
        // Clients choose names, and people look at the log on terminals.
        let text = said_in_json(&Value::Object(line).to_string());
        if text.len() > LINE_MAX {
            return Err(Error::new(Kind::InvalidInput, format!("a line has {} bytes", text.len())));
        }
        match &mut self.to {
            To::File { path, file, torn, .. } => {
                let whole = [if *torn { "\n" } else { "" }, &text, "\n"].concat();
                // In one call: a process that ends leaves all of it or nothing.
                let written = file.write_all(whole.as_bytes());
                if let Err(e) = written {
                    let error = Error::from_io(path.display(), e);
                    // A full disk may have taken a part of it.
                    if let Ok((before, is_torn)) = last_line(path, file) {
                        (self.before, *torn) = (before, is_torn);
                    }
                    return Err(error);
                }
                *torn = false;
            }
            To::Journal(socket) => {
                let fields = "PRIORITY=5\nSYSLOG_IDENTIFIER=onefold\nONEFOLD_AUDIT=1\nMESSAGE=";
                let entry = [fields, &text, "\n"].concat();
                socket.send(entry.as_bytes()).map_err(|e| Error::from_io("the journal", e))?;
            }
        }
        self.before = hash(text.as_bytes());
        self.lost = 0;
        Ok(())
    }

    /// Begins a new file when the path names another file than the open one, or none.
    fn follow(&mut self) -> Result<()> {
        let To::File { path, file, torn, .. } = &mut self.to else { return Ok(()) };
        let failed = |e| Error::from_io(path.display(), e);
        let open_one = file.metadata().map_err(failed)?;
        is_private(path, &open_one)?;
        match std::fs::symlink_metadata(&path) {
            Ok(there) if (there.dev(), there.ino()) == (open_one.dev(), open_one.ino()) => Ok(()),
            Ok(_) | Err(_) => {
                // The lines go on from those of the old file, also where others stand in the new one:
                // reading it tells where these were put in.
                let begun = open(path).and_then(|new| Ok((last_line(path, &new)?.1, new)));
                match begun {
                    Ok((is_torn, new)) => (*torn, *file) = (is_torn, new),
                    // The old one takes the lines, whatever its name is by now.
                    Err(error) => tracing::warn!("the audit log goes on in its old file: {error}"),
                }
                Ok(())
            }
        }
    }
}

/// Opens a log to add to it.
fn open(path: &Path) -> Result<File> {
    let failed = |e| Error::from_io(path.display(), e);
    let wrong = |kind, why: &str| Error::new(kind, format!("{}: {why}", path.display()));
    let calm = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600).custom_flags(calm.bits() as i32);
    let file = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let what = if metadata.file_type().is_fifo() { "a pipe" } else { "no regular file" };
        return Err(wrong(
            Kind::InvalidInput,
            &format!("an audit log is a file, and this is {what}"),
        ));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(wrong(Kind::Denied, "this audit log belongs to another user"));
    }
    is_private(path, &metadata).map(|()| file)
}

/// Makes sure that nobody but its user may read a log or write to it, also by a list of rights, whose mask is
/// the group's part of the mode.
fn is_private(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let shown = path.display();
    let why = "others may open this audit log, and who reads it can hold its server up for ever";
    Err(Error::new(
        Kind::Denied,
        format!("{shown}: {why}; make it its user's alone: chmod 600 {shown}"),
    ))
}

/// Locks a log against other servers.
fn lock(path: &Path) -> Result<File> {
    let file = open_lock(path)?;
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    locked.map_err(|errno| not_locked(path, errno))?;
    note_alone(&file).map_err(|e| Error::from_io(path.display(), e))?;
    Ok(file)
}

/// Opens the lock of a log: a file beside it that is this user's alone.
fn open_lock(path: &Path) -> Result<File> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".lock");
    let at = path.with_file_name(name);
    let failed = |e| Error::from_io(at.display(), e);
    let wrong = |kind, why: &str| Error::new(kind, format!("{}: {why}", at.display()));
    let calm = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let opened = options.mode(0o600).custom_flags(calm.bits() as i32).open(&at);
    let file = opened.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !is_own || metadata.mode() & 0o077 != 0 {
        let why = "the lock of an audit log is a file that its user alone may open";
        return Err(wrong(Kind::Denied, why));
    }
    Ok(file)
}

/// The findings of reading a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Lines.
    pub lines: u64,
    /// The hash that the first line names; of zeroes alone where the log begins.
    pub begins_after: Option<String>,
    /// The hash of the last line.
    pub head: Option<String>,
    /// Lines that servers say they could not write.
    pub lost: u64,
    /// Lines that a crash or a full disk cut off, and others that no server wrote; these prove nothing.
    pub torn: u64,
    /// Times of the first and of the last line.
    pub times: Option<(String, String)>,
    /// True when a line has the hash that was looked for.
    pub met: bool,
    looked_for: Option<String>,
}

impl Verified {
    /// The findings before anything was read; `met` tells later whether a line has this hash.
    #[must_use]
    pub fn looking_for(hash: Option<String>) -> Verified {
        Verified { looked_for: hash.map(|hash| hash.to_lowercase()), ..Verified::default() }
    }

    /// True when the log begins with its first line.
    #[must_use]
    pub fn is_from_the_beginning(&self) -> bool {
        self.begins_after.as_deref().is_none_or(|hash| hash == NOTHING)
    }

    /// Reads the lines that follow, of a file or of the next file of the same log.
    ///
    /// # Errors
    /// `Corrupt`: a line does not follow the one before it, has no time, or is too long; the error has its
    /// number. The errors of the system.
    pub fn read(&mut self, mut from: impl BufRead) -> Result<()> {
        let mut line = Vec::new();
        let mut number = 0u64;
        loop {
            line.clear();
            let most = LINE_MAX as u64 + 2;
            (&mut from)
                .take(most)
                .read_until(b'\n', &mut line)
                .map_err(|e| Error::from_io("reading it", e))?;
            if line.is_empty() {
                return Ok(());
            }
            number += 1;
            let wrong = |why: &str| Error::new(Kind::Corrupt, format!("line {number} {why}"));
            if line.len() as u64 == most && line.last() != Some(&b'\n') {
                return Err(wrong("is longer than any of an audit log"));
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            self.learn(text, wrong)?;
        }
    }

    fn learn(&mut self, text: &[u8], wrong: impl Fn(&str) -> Error) -> Result<()> {
        let Some(fields) = whole(text) else {
            self.torn += 1;
            return Ok(());
        };
        let field = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let before = field(BEFORE);
        match &self.head {
            Some(head) if head != before => {
                let why = "does not follow the line before it: somebody changed, removed or inserted lines";
                return Err(wrong(why));
            }
            Some(_) => {}
            None => self.begins_after = Some(before.to_owned()),
        }
        let time = field("time").to_owned();
        // The time is shown on a terminal.
        if time.is_empty()
            || time.len() > TIME_MAX
            || !time.bytes().all(|byte| byte.is_ascii_digit() || b"-:.+TZ".contains(&byte))
        {
            return Err(wrong("has no time"));
        }
        let first = self.times.take().map_or_else(|| time.clone(), |(first, _)| first);
        self.times = Some((first, time));
        let lost = fields.get("lost").and_then(Value::as_u64).unwrap_or(0);
        self.lost = self.lost.saturating_add(lost);
        self.lines += 1;
        self.head = Some(hash(text));
        self.met |= self.looked_for.is_some() && self.head == self.looked_for;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use std::time::Duration;

    use super::*;

    fn event(n: u64) -> Map<String, Value> {
        Map::from_iter([("event".to_owned(), n.into())])
    }

    fn set_mode(path: &Path, mode: u32) {
        let file = File::open(path).unwrap();
        file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A log in a journal that nobody reads yet.
    fn journal() -> (tempfile::TempDir, UnixDatagram, AuditLog) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let journal = UnixDatagram::bind(&socket).unwrap();
        let log = AuditLog::journal_at(&socket).unwrap();
        (folder, journal, log)
    }

    /// Takes a line from a journal.
    fn receive(journal: &UnixDatagram, verified: &mut Verified) {
        let mut entry = vec![0; 4096];
        let bytes = journal.recv(&mut entry).unwrap();
        let entry = String::from_utf8(entry[..bytes].to_vec()).unwrap();
        verified.read(entry.split_once("MESSAGE=").unwrap().1.as_bytes()).unwrap();
    }

    fn read(path: &Path) -> Result<Verified> {
        let mut verified = Verified::default();
        verified.read(&fs::read(path).unwrap()[..])?;
        Ok(verified)
    }

    #[test]
    fn rule_48_lines_follow_each_other_over_restarts_and_a_line_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let log = AuditLog::file(&path).unwrap();
        (0..3).for_each(|n| log.note(event(n)).unwrap());
        assert_eq!(AuditLog::file(&path).map(drop).unwrap_err().kind(), Kind::Busy);
        drop(log);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"time\":\"20").unwrap();
        let log = AuditLog::file(&path).unwrap();
        (3..5).for_each(|n| log.note(event(n)).unwrap());
        let verified = read(&path).unwrap();
        assert_eq!((verified.lines, verified.torn, verified.lost), (5, 1, 0));
        assert!(verified.is_from_the_beginning());
        assert_eq!(verified.head, Some(log.head()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn rule_48_several_writers_of_one_log_make_one_chain_also_when_it_is_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        // Each has its own descriptors, as processes have.
        let write = |many: u64| {
            let log = AuditLog::shared_file(&path).unwrap();
            (0..many).for_each(|n| log.note(event(n)).unwrap());
        };
        let all =
            || std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| write(50)))));
        all();
        let log = AuditLog::shared_file(&path).unwrap();
        log.note(event(0)).unwrap();
        let old = folder.path().join("audit.1");
        fs::rename(&path, &old).unwrap();
        // One that begins after the renaming, and one that was there before.
        write(1);
        log.note(event(1)).unwrap();
        all();
        let mut verified = read(&old).unwrap();
        assert_eq!((verified.lines, verified.is_from_the_beginning()), (201, true));
        verified.read(&fs::read(&path).unwrap()[..]).unwrap();
        assert_eq!((verified.lines, verified.torn, verified.lost), (403, 0, 0));
        // A server writes its log alone.
        let alone = AuditLog::file(&path).unwrap();
        assert_eq!(AuditLog::shared_file(&path).map(drop).unwrap_err().kind(), Kind::Busy);
        drop(alone);
    }

    #[test]
    fn rule_48_a_line_that_was_changed_removed_or_inserted_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let log = AuditLog::file(&path).unwrap();
        (0..4).for_each(|n| log.note(event(n)).unwrap());
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let changed = lines[1].replace("\"event\":1", "\"event\":7");
        for forged in [
            vec![lines[0], &changed, lines[2], lines[3]],
            vec![lines[0], lines[2], lines[3]],
            vec![lines[0], lines[1], lines[1], lines[2], lines[3]],
            vec![lines[0], lines[2], lines[1], lines[3]],
        ] {
            fs::write(&path, forged.join("\n")).unwrap();
            let error = read(&path).unwrap_err();
            assert!(
                error.kind() == Kind::Corrupt && error.to_string().contains("line "),
                "{error}"
            );
        }
        // The end alone proves itself only by its hash.
        fs::write(&path, lines[..3].join("\n")).unwrap();
        assert_ne!(read(&path).unwrap().head, Some(log.head()));
    }

    #[test]
    fn rule_48_a_log_that_was_renamed_goes_on_in_a_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let log = AuditLog::file(&path).unwrap();
        (0..3).for_each(|n| log.note(event(n)).unwrap());
        let old = folder.path().join("audit.1");
        fs::rename(&path, &old).unwrap();
        (3..5).for_each(|n| log.note(event(n)).unwrap());
        let mut verified = read(&old).unwrap();
        assert_eq!(verified.lines, 3);
        verified.read(&fs::read(&path).unwrap()[..]).unwrap();
        assert_eq!((verified.lines, verified.head), (5, Some(log.head())));
        assert!(!read(&path).unwrap().is_from_the_beginning());
    }

    #[test]
    fn rule_48_who_may_read_a_log_holds_up_no_server_and_loses_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        fs::write(&path, "").unwrap();
        set_mode(&path, 0o600);
        let reader = File::open(&path).unwrap();
        flock(&reader, FlockOperation::LockShared).unwrap();
        let log = AuditLog::file(&path).unwrap();
        log.note(event(0)).unwrap();
        assert_eq!(fs::metadata(path.with_file_name(".audit.lock")).unwrap().mode() & 0o777, 0o600);
        // The log was renamed, and a directory stands in its place.
        fs::rename(&path, folder.path().join("audit.1")).unwrap();
        fs::create_dir(&path).unwrap();
        log.note(event(1)).unwrap();
        fs::remove_dir(&path).unwrap();
        log.note(event(2)).unwrap();
        let mut verified = read(&folder.path().join("audit.1")).unwrap();
        assert_eq!(verified.lines, 2);
        verified.read(&fs::read(&path).unwrap()[..]).unwrap();
        assert_eq!((verified.lines, verified.lost), (3, 0));
    }

    #[test]
    fn rule_48_a_write_that_hangs_holds_up_nobody_and_its_lines_are_counted() {
        let (_folder, journal, log) = journal();
        // Nobody reads: the socket takes some, and then waits.
        let begun = Instant::now();
        let mut noted = 0;
        while log.note(event(noted)).is_ok() {
            noted += 1;
        }
        assert!(log.note(event(noted)).is_err(), "it is known to hang");
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(20), "{waited:?}");
        // The log goes on: the thread writes the line that hung, and those after it were lost.
        let mut verified = Verified::default();
        let mut receive = || receive(&journal, &mut verified);
        (0..=noted).for_each(|_| receive());
        let deadline = Instant::now() + Duration::from_secs(10);
        while log.note(event(noted)).is_err() {
            assert!(Instant::now() < deadline);
        }
        receive();
        assert_eq!(verified.lines, noted + 2);
        assert!(verified.lost >= 1, "{verified:?}");
        assert_eq!(verified.head, Some(log.head()));
    }

    #[test]
    fn rule_48_a_thread_that_must_not_wait_does_not_while_a_write_hangs() {
        let (_folder, journal, log) = journal();
        let begun = Instant::now();
        let mut noted: u64 = 0;
        while log.note_later(event(noted)).is_ok() {
            noted += 1;
        }
        let waited = begun.elapsed();
        assert!(waited < PATIENCE, "{waited:?}");
        assert!(noted >= WAITING as u64);
        let mut verified = Verified::default();
        let mut receive = || receive(&journal, &mut verified);
        (0..noted).for_each(|_| receive());
        log.note(event(noted)).unwrap();
        receive();
        assert_eq!((verified.lines, verified.lost), (noted + 1, 1));
    }

    #[test]
    fn rule_48_lines_that_could_not_be_written_are_counted_in_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let log = AuditLog::file(&path).unwrap();
        log.note(event(0)).unwrap();
        let long = Map::from_iter([("event".to_owned(), "x".repeat(LINE_MAX).into())]);
        assert!(log.note(long.clone()).is_err() && log.note(long).is_err());
        log.note(event(1)).unwrap();
        let verified = read(&path).unwrap();
        assert_eq!((verified.lines, verified.lost), (2, 2));
    }

    #[test]
    fn rule_48_a_log_is_a_file_of_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        fs::write(&path, "").unwrap();
        for mode in [0o622, 0o640, 0o604, 0o660] {
            set_mode(&path, mode);
            assert_eq!(AuditLog::file(&path).map(drop).unwrap_err().kind(), Kind::Denied);
            assert_eq!(AuditLog::shared_file(&path).map(drop).unwrap_err().kind(), Kind::Denied);
        }
        // Also one that others get the right to read later.
        set_mode(&path, 0o600);
        let log = AuditLog::file(&path).unwrap();
        log.note(event(0)).unwrap();
        set_mode(&path, 0o640);
        let error = log.note(event(1)).unwrap_err().to_string();
        assert!(error.contains(&format!("chmod 600 {}", path.display())), "{error}");
        set_mode(&path, 0o600);
        log.note(event(2)).unwrap();
        drop(log);
        let verified = read(&path).unwrap();
        assert_eq!((verified.lines, verified.lost), (2, 1));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(AuditLog::file(&link).is_err());
        assert_eq!(
            AuditLog::file(Path::new("/dev/null")).map(drop).unwrap_err().kind(),
            Kind::InvalidInput
        );
    }

    #[test]
    fn rule_48_a_process_that_keeps_the_lock_of_a_shared_log_keeps_no_other_from_opening_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        AuditLog::shared_file(&path).unwrap().note(event(0)).unwrap();
        let lock = File::open(path.with_file_name(".audit.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let log = AuditLog::shared_file(&path).unwrap();
        assert_eq!(log.note(event(1)).unwrap_err().kind(), Kind::Busy);
        assert_eq!(log.note(event(2)).unwrap_err().kind(), Kind::Busy);
        flock(&lock, FlockOperation::Unlock).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while log.note(event(3)).is_err() {
            assert!(Instant::now() < deadline);
        }
        // The line whose writing had begun came; the one behind it did not, and is counted.
        let verified = read(&path).unwrap();
        assert_eq!((verified.lines, verified.torn), (3, 0));
        assert!(verified.lost >= 1);
        // One that a server wrote alone, and was killed.
        note_alone(
            &OpenOptions::new().write(true).open(path.with_file_name(".audit.lock")).unwrap(),
        )
        .unwrap();
        let of = || Of { who: "a".into(), kind: "x", left_out: 0 };
        AuditLog::shared_file(&path).unwrap().note_within(of(), event(4)).unwrap();
        assert_eq!(read(&path).unwrap().lines, 4);
    }

    #[test]
    fn rule_48_a_client_has_one_budget_in_all_processes_that_write_a_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let of = |who: &str, left_out| Of { who: who.to_owned(), kind: "x", left_out };
        for _ in 0..50 {
            let log = AuditLog::shared_file(&path).unwrap();
            (0..10).for_each(|n| log.note_within(of("a", 1), event(n)).unwrap());
        }
        let log = AuditLog::shared_file(&path).unwrap();
        log.note_within(of("b", 0), event(0)).unwrap();
        // A minute of silence.
        let To::File { among: Some(among), .. } = shared(&path) else { unreachable!() };
        among.take().unwrap();
        let kept = among.accounts().to_text().replace("\"since\":1", "\"since\":-1");
        among.keep(&Accounts::from_text(kept.as_bytes())).unwrap();
        among.give_back();
        log.note_within(of("b", 0), event(1)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let unsaid: u64 = lines.iter().filter_map(|line| line["unsaid"].as_u64()).sum();
        let written = lines.iter().filter(|line| line["event"].is_u64()).count() as u64 - 2;
        assert!((64..100).contains(&written), "{written}");
        assert_eq!(written + unsaid, 2 * 500);
        assert_eq!(
            (&lines.last().unwrap()["who"], &lines.last().unwrap()["event"]),
            (&"a".into(), &"unsaid".into())
        );
        assert_eq!(read(&path).unwrap().torn, 0);
    }

    fn shared(path: &Path) -> To {
        let among = Some(Among::new(path, open_lock(path).unwrap()).unwrap());
        To::File { path: path.to_owned(), file: open(path).unwrap(), torn: false, among }
    }

    #[test]
    fn rule_48_a_log_of_somebody_elses_making_shows_no_terminal_codes_and_no_wrong_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let line = |time: &str, before: &str| {
            format!("{{\"before\":\"{before}\",\"time\":\"{time}\",\"lost\":{}}}", u64::MAX)
        };
        let first = line("2026-11-27T01:02:03.456789Z", NOTHING);
        let second = line("2026-11-27T01:02:04Z", &hash(first.as_bytes()));
        fs::write(&path, format!("{first}\n{second}\n")).unwrap();
        let verified = read(&path).unwrap();
        assert_eq!((verified.lines, verified.lost), (2, u64::MAX));
        for time in ["", "\\u001b[31m", "2026-11-27 01:02", &"1".repeat(41)] {
            fs::write(&path, line(time, NOTHING)).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.to_string().contains("no time"), "{error}");
        }
    }

    #[test]
    fn rule_48_the_journal_gets_the_same_lines() {
        let (_folder, journal, log) = journal();
        let mut verified = Verified::default();
        for n in 0..3 {
            log.note(event(n)).unwrap();
            let mut entry = vec![0; 4096];
            let bytes = journal.recv(&mut entry).unwrap();
            let entry = String::from_utf8(entry[..bytes].to_vec()).unwrap();
            assert!(entry.contains("ONEFOLD_AUDIT=1\n"));
            verified.read(entry.split_once("MESSAGE=").unwrap().1.as_bytes()).unwrap();
        }
        assert_eq!((verified.lines, verified.head), (3, Some(log.head())));
    }
}
