//! Archives on other hosts, reached over `ssh`: what their addresses mean, and the connections.
//!
//! An address is `ssh://[user@]host[:port]/directory`, or `…/~/directory` for one below the home of the
//! user there. The program `ssh`, or the one that `ONEFOLD_SSH` names, starts `onefold accept` at the
//! other end. It asks nobody for a password. A connection lasts until [`end`], for all that this process
//! does with the archive.
//!
//! *Trust:* an address may come from a file that somebody else wrote. No part of it can be an option of
//! `ssh`, or a command of a shell here or there.

use std::{
    collections::HashMap,
    ffi::OsString,
    fmt,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use onefold_archive::{is_archive_file, is_commit_lock, is_epoch_lock};
use onefold_core::{Error, Kind, Result};
use onefold_remote::{Greeting, PATIENCE, RemoteFiles, connect_for};
use parking_lot::Mutex;

use super::operator::warn;

/// How addresses begin.
const SCHEME: &str = "ssh://";

/// The beginning of a directory below the home of the user there.
const HOME: &str = "/~/";

/// Names the program that connects.
const PROGRAM: &str = "ONEFOLD_SSH";

/// Arguments of the program, but for the address and the command.
const OPTIONS: [&str; 13] = [
    "-T",
    "-a",
    "-x",
    "-o",
    "BatchMode=yes",
    "-o",
    "LogLevel=ERROR",
    "-o",
    "ConnectTimeout=30",
    "-o",
    "ServerAliveInterval=60",
    "-o",
    "ServerAliveCountMax=5",
];

/// How commands for the other end begin.
const COMMAND: &str = "onefold accept ";

/// Asks the other end to make the archive's directory.
const NEW: &str = "--new ";

/// Most bytes of a directory's path.
const DIRECTORY_MAX: usize = 4096;

/// Most bytes of a line of the other end that are shown, and most lines.
const LINE_MAX: usize = 1000;
const LINES_MAX: usize = 50;

/// How long the other end has to do what was asked when a connection ends.
const END_WAIT: Duration = Duration::from_secs(30);

/// How long the other end has for its first word, with the time that connecting takes.
const GREETING_WAIT: Duration = Duration::from_secs(180);

/// The exit status of a shell that does not find a command.
const NO_COMMAND: i32 = 127;

/// True for an address of another host.
#[must_use]
pub fn is_address(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(SCHEME.as_bytes())
}

/// Where an archive is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Address {
    user: Option<String>,
    host: String,
    port: Option<u16>,
    /// An absolute path, or one that begins with `./` for the home of the user.
    directory: String,
}

impl Address {
    fn of(path: &Path) -> Result<Address> {
        let shown = path.display();
        let wrong = |why: &str| {
            let why = format!("{shown} is no address like ssh://user@host:22/directory: {why}");
            Error::new(Kind::InvalidInput, why)
        };
        let rest = path.to_str().and_then(|text| text.strip_prefix(SCHEME));
        let rest = rest.ok_or_else(|| wrong("it is no text"))?;
        let at = rest.find('/').ok_or_else(|| wrong("it has no directory"))?;
        let (at_whom, directory) = rest.split_at(at);
        let (user, at_where) = match at_whom.rsplit_once('@') {
            Some((user, at_where)) => (Some(user), at_where),
            None => (None, at_whom),
        };
        let port_of = |text: &str| match text.strip_prefix(':') {
            None if text.is_empty() => Ok(None),
            port => {
                let port = port.and_then(|port| port.parse().ok()).filter(|port| *port > 0);
                port.map(Some).ok_or_else(|| wrong("the port is no number"))
            }
        };
        let (host, port) = match at_where.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port_of(port)?),
            None => {
                let end = at_where.find(':').unwrap_or(at_where.len());
                (&at_where[..end], port_of(&at_where[end..])?)
            }
        };
        // Whoever configures ssh may have it give both to a shell.
        let is_plain = |text: &str, more: &str| {
            let may_be =
                |c: char| c.is_ascii_alphanumeric() || "._-".contains(c) || more.contains(c);
            !text.is_empty() && !text.starts_with('-') && text.chars().all(may_be)
        };
        if !is_plain(host, ":%") {
            return Err(wrong("a host has letters, digits, dots and hyphens"));
        }
        if user.is_some_and(|user| !is_plain(user, "")) {
            return Err(wrong("a user has letters, digits, dots and hyphens"));
        }
        let directory = match directory.strip_prefix(HOME) {
            Some(below) => format!("./{below}"),
            None => directory.to_owned(),
        };
        if matches!(&*directory, "/" | "./") || directory.len() > DIRECTORY_MAX {
            return Err(wrong("it has no directory"));
        }
        if directory.chars().any(char::is_control) {
            return Err(wrong("its directory has control characters"));
        }
        Ok(Address { user: user.map(str::to_owned), host: host.to_owned(), port, directory })
    }

    /// The command for the other end, as a shell reads it.
    fn command(&self, new: bool) -> String {
        let new = if new { NEW } else { "" };
        format!("{COMMAND}{new}{}", quoted(&self.directory))
    }

    /// The program with all that it is told.
    fn program(&self, new: bool) -> Command {
        let program = std::env::var_os(PROGRAM).filter(|program| !program.is_empty());
        let mut command = Command::new(program.unwrap_or_else(|| OsString::from("ssh")));
        command.args(OPTIONS);
        if let Some(port) = self.port {
            command.args(["-p", &port.to_string()]);
        }
        if let Some(user) = &self.user {
            command.args(["-l", user]);
        }
        command.args(["--", &self.host, &self.command(new)]);
        // A signal of the terminal is for this process, which ends the connection when it is done.
        command.process_group(0);
        command
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        match self.directory.strip_prefix("./") {
            Some(below) => write!(f, "{HOME}{below}"),
            None => f.write_str(&self.directory),
        }
    }
}

/// One word of a shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A request of another end, as its command says it.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    /// The directory is to be made.
    pub new: bool,
    /// The directory.
    pub directory: String,
}

/// Understands the command that this program sends to the other end; `None` for any other one.
#[must_use]
pub fn asked(command: &str) -> Option<Asked> {
    let rest = command.strip_prefix(COMMAND)?;
    let (new, word) = rest.strip_prefix(NEW).map_or((false, rest), |word| (true, word));
    let directory = word.strip_prefix('\'')?.strip_suffix('\'')?.replace(r"'\''", "'");
    (quoted(&directory) == word).then_some(Asked { new, directory })
}

/// A connection to an archive's directory on another host.
pub(super) struct Far {
    address: Address,
    files: RemoteFiles,
    greeting: Greeting,
    child: Arc<Mutex<Child>>,
}

impl Far {
    /// Its files.
    pub(super) fn files(&self) -> &RemoteFiles {
        &self.files
    }

    /// The other end's word on what may be done.
    pub(super) fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    fn open(address: Address, new: bool) -> Result<Far> {
        let mut command = address.program(new);
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |e| Error::from_io(format!("{address} can't be reached by {program}"), e);
        let mut child = command.spawn().map_err(failed)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(Error::new(Kind::Io, format!("{program} has no pipes")));
        };
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (of_thread, host) = (heard.clone(), address.host.clone());
        let listen = move || hear(errors, &of_thread, &host);
        let thread =
            std::thread::Builder::new().name("ssh".into()).spawn(listen).map_err(failed)?;
        let child = Arc::new(Mutex::new(child));
        let of_watch = child.clone();
        // Its streams end with it.
        let give_up = Box::new(move || drop(of_watch.lock().kill()));
        match greeted((output, input), &address, GREETING_WAIT, give_up) {
            Ok((files, greeting)) => {
                let lines = std::mem::take(&mut *heard.lock()).lines;
                heard.lock().is_shown = true;
                lines.iter().for_each(|line| warn(line));
                Ok(Far { address, files, greeting, child })
            }
            Err(error) => {
                // It may have said nothing, and be there.
                let status = ended(&mut child.lock(), Duration::from_secs(5));
                if error.kind() != Kind::NotFound || error.to_string() != "nobody answers" {
                    return Err(named(&address, error));
                }
                // All lines are there when the program has ended.
                let _ = thread.join();
                Err(unreachable(&address, &program, status, &heard.lock().lines))
            }
        }
    }

    /// Ends the connection, and waits until the other end has given up its locks.
    fn end(&self) {
        tracing::debug!("{}: {} requests", self.address, self.files.requests());
        self.files.hang_up();
        ended(&mut self.child.lock(), END_WAIT);
    }
}

/// Waits for the greeting of the other end. The program still runs when that did not come.
fn greeted(
    (output, input): (ChildStdout, ChildStdin),
    address: &Address,
    wait: Duration,
    give_up: Box<dyn Fn() + Send>,
) -> Result<(RemoteFiles, Greeting)> {
    let (tell, told) = mpsc::channel();
    let shown = address.to_string();
    let take = move || {
        let (output, input) = (Box::new(output), Box::new(input));
        // Processes hold these for moments. The locks of those who write may be held for hours.
        let may_last = |name: &str| !is_commit_lock(name) && !is_epoch_lock(name);
        let bounds = (PATIENCE, give_up, may_last as fn(&str) -> bool);
        let greeted = connect_for(output, input, &shown, is_archive_file, bounds);
        // Who gave up ends the program, and the stream with it.
        let _ = tell.send(greeted);
    };
    let failed = |e| Error::from_io("can't wait for the other host", e);
    std::thread::Builder::new().name("greeting".into()).spawn(take).map_err(failed)?;
    told.recv_timeout(wait).unwrap_or_else(|_| {
        let why = format!("{address} said nothing for {} seconds", wait.as_secs());
        Err(Error::new(Kind::Io, why))
    })
}

/// The error with the address in front, unless it has it.
fn named(address: &Address, error: Error) -> Error {
    let shown = address.to_string();
    if error.to_string().contains(&shown) { error } else { error.context(shown) }
}

/// Waits for the program, and stops it if that takes too long.
fn ended(child: &mut Child, wait: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begun.elapsed() < wait => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// Why nobody answered, as far as the program and the other end said.
fn unreachable(
    address: &Address,
    program: &str,
    status: Option<ExitStatus>,
    lines: &[String],
) -> Error {
    let code = status.and_then(|status| status.code());
    let why = match (lines, code) {
        (_, Some(NO_COMMAND)) => {
            format!("{} has no command `onefold` for this user", address.host)
        }
        ([], Some(code)) => format!("{program} ended with status {code}"),
        ([], None) => format!("{program} said nothing"),
        (lines, _) => {
            let last: Vec<&str> = lines.iter().rev().take(3).rev().map(|line| &**line).collect();
            last.join("; ")
        }
    };
    Error::new(Kind::Io, format!("{address} can't be reached: {why}"))
}

/// Lines of the other end, and of the program.
#[derive(Default)]
struct Heard {
    lines: Vec<String>,
    /// Each is shown when it comes.
    is_shown: bool,
}

/// Takes lines until there are no more.
fn hear(errors: ChildStderr, heard: &Mutex<Heard>, host: &str) {
    let mut errors = BufReader::new(errors);
    let mut count = 0;
    loop {
        let mut line = Vec::new();
        match errors.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let line: String = String::from_utf8_lossy(&line).chars().map(plain).collect();
        count += 1;
        if line.trim().is_empty() || count > LINES_MAX {
            continue;
        }
        let line = format!("{host}: {}", line.trim());
        let mut heard = heard.lock();
        match heard.is_shown {
            true => {
                drop(heard);
                warn(&line);
            }
            false => heard.lines.push(line),
        }
    }
}

static CONNECTIONS: Mutex<Option<HashMap<Address, Arc<Far>>>> = Mutex::new(None);

/// Errors unless it is an address.
///
/// # Errors
/// `InvalidInput`, with what is wrong.
pub(super) fn check(path: &Path) -> Result<()> {
    Address::of(path).map(drop)
}

/// The connection to the archive at an address; one that this process has is used again.
///
/// # Errors
/// `InvalidInput` for what is no address, `Io` when it can't be reached, and why the other end refuses.
pub(super) fn reach(path: &Path) -> Result<Arc<Far>> {
    reach_or_make(path, false)
}

/// The same for an archive that is to be made: its directory is new or empty.
///
/// # Errors
/// As [`reach`], and `Exists` when something is in it.
pub(super) fn make(path: &Path) -> Result<Arc<Far>> {
    reach_or_make(path, true)
}

fn reach_or_make(path: &Path, new: bool) -> Result<Arc<Far>> {
    let address = Address::of(path)?;
    let mut connections = CONNECTIONS.lock();
    let all = connections.get_or_insert_default();
    // One that lives carries locks, and what has them goes on.
    match all.get(&address).filter(|far| !far.files.has_ended()) {
        Some(_) if new => {
            let why = format!("{address} is not empty: this process uses what is there");
            return Err(Error::new(Kind::Exists, why));
        }
        Some(far) => return Ok(far.clone()),
        None => {}
    }
    if let Some(before) = all.remove(&address) {
        before.end();
    }
    let far = Arc::new(Far::open(address.clone(), new)?);
    all.insert(address, far.clone());
    Ok(far)
}

/// Ends all connections; what still uses one fails.
pub fn end() {
    let all = CONNECTIONS.lock().take().unwrap_or_default();
    all.values().for_each(|far| far.end());
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::of(Path::new(text)).unwrap()
    }

    fn arguments(text: &str, new: bool) -> Vec<String> {
        let command = address(text).program(new);
        command.get_args().skip(OPTIONS.len()).map(|word| word.to_string_lossy().into()).collect()
    }

    #[test]
    fn a_host_that_says_nothing_is_not_waited_for_without_end() {
        let mut silent = Command::new("cat");
        silent.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = silent.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let wait = Duration::from_millis(1);
        let error = greeted((output, input), &address("ssh://vault/srv"), wait, Box::new(|| ()));
        let error = error.err().unwrap();
        assert_eq!(error.kind(), Kind::Io);
        assert!(error.to_string().contains("ssh://vault/srv said nothing"), "{error}");
        ended(&mut child, Duration::ZERO);
    }

    #[test]
    fn addresses_are_understood_and_shown_as_they_were_typed() {
        for text in [
            "ssh://vault/srv/backups",
            "ssh://root@vault.example.org:2222/srv/my backups",
            "ssh://[fe80::1%eth0]:22/srv",
            "ssh://a_b@10.0.0.1/~/backups",
        ] {
            assert_eq!(address(text).to_string(), text);
        }
        assert_eq!(
            arguments("ssh://root@vault:2222/srv/a b", true),
            ["-p", "2222", "-l", "root", "--", "vault", "onefold accept --new '/srv/a b'"]
        );
        assert_eq!(arguments("ssh://[::1]/~/-x", false), ["--", "::1", "onefold accept './-x'"]);
    }

    #[test]
    fn rule_46_no_part_of_an_address_is_an_option_or_a_command() {
        for text in [
            "ssh://",
            "ssh://host",
            "ssh://host/",
            "ssh://host/~/",
            "ssh:///srv",
            "ssh://-oProxyCommand=id/srv",
            "ssh://-host/srv",
            "ssh://-luser@host/srv",
            "ssh://@host/srv",
            "ssh://$(id)@host/srv",
            "ssh://host;id/srv",
            "ssh://host`id`/srv",
            "ssh://user name@host/srv",
            "ssh://host:0/srv",
            "ssh://host:-1/srv",
            "ssh://host:22x/srv",
            "ssh://host:/srv",
            "ssh://[::1]x/srv",
            "ssh://host/a\nb",
            "ssh://host/a\u{1b}[2J",
        ] {
            let error = Address::of(Path::new(text)).err();
            assert_eq!(error.map(|error| error.kind()), Some(Kind::InvalidInput), "{text:?}");
        }
        let there = "ssh://host/'; touch x; echo '";
        assert_eq!(
            arguments(there, false).last().unwrap(),
            r"onefold accept '/'\''; touch x; echo '\'''"
        );
    }

    #[test]
    fn rule_46_the_other_end_understands_what_is_sent_and_nothing_else() {
        for text in ["ssh://h/srv/a b", "ssh://h/~/it's", "ssh://h/''", r"ssh://h/a\'b"] {
            for new in [false, true] {
                let address = address(text);
                let directory = address.directory.clone();
                assert_eq!(asked(&address.command(new)), Some(Asked { new, directory }));
            }
        }
        for other in [
            "",
            "id",
            "onefold accept",
            "onefold accept ",
            "onefold accept /srv",
            "onefold accept '",
            "onefold accept '/srv' --right manage",
            "onefold accept '/srv'; id",
            "onefold accept '/srv'; echo '",
            "onefold accept --right manage '/srv'",
            "onefold gc '/srv'",
        ] {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}
