//! The lines of `accept --audit`: who came with which right, which files of the archive a client made and
//! removed, which requests were refused, and sums at the end.
//!
//! Several processes write one log, each line as a whole. A client has 64 lines of each kind at
//! once and one a second beyond these, in all of its connections; further acts are counted, and the next line has
//! their number. Each connection has a [`Budget`] of its own, too, so that a flood waits for no lock. No line
//! has content or keys: names are those of the archive's files, and texts of a client are shortened and
//! escaped. If a line can't be written, the next one says so, and the client learns nothing of it.

use std::{
    net::IpAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use onefold_backend::{
    audit::{AuditLog, Of},
    peer::own_uid,
};
use onefold_console::failure::one_line;
use onefold_core::Result;
use onefold_remote::{Act, Right};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::verbs::budget::Budget;

/// The variable in which `sshd` tells where the client is.
const CONNECTION: &str = "SSH_CONNECTION";

/// Characters of a text of the client's that a line holds at most.
const TEXT_MAX: usize = 200;

/// Kinds of lines, each of which has a budget: what a client is refused hides neither when it came nor which files it
/// made.
const CONNECTIONS: &str = "connections";
const FILES: &str = "files";
const REFUSALS: &str = "refusals";

/// Characters of the name that the operator gave at most.
const NAME_MAX: usize = 64;

/// The log of one connection; without `--audit` nothing is written.
#[derive(Clone, Default)]
pub(super) struct Audited(Option<Arc<Connection>>);

struct Connection {
    log: AuditLog,
    /// The client's name, for its budget.
    called: String,
    who: Map<String, Value>,
    /// Of this connection alone, so that a flood waits for no lock of the log.
    budget: Mutex<Budget>,
    sums: Sums,
    has_ended: Mutex<bool>,
}

/// Sums over all that the client did.
#[derive(Default)]
struct Sums {
    created: AtomicU64,
    removed: AtomicU64,
    resized: AtomicU64,
    refused: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    freed_bytes: AtomicU64,
}

/// Understands a name that the operator gives to a client.
pub(super) fn name(text: &str) -> std::result::Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    match !text.is_empty() && text.len() <= NAME_MAX && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err(format!("a name has 1 to {NAME_MAX} letters, digits, dots and hyphens")),
    }
}

impl Audited {
    /// Opens the log, or the journal of the system, for a client whom the operator may call by a name.
    ///
    /// # Errors
    /// As [`AuditLog::shared_file`] and [`AuditLog::journal`].
    pub(super) fn open(to: Option<&Path>, called: Option<&str>, store: &Path) -> Result<Audited> {
        let Some(to) = to else { return Ok(Audited::default()) };
        let log = match to.to_str() {
            Some("journal") => AuditLog::journal()?,
            _ => AuditLog::shared_file(to)?,
        };
        let mut who = Map::new();
        let called = called.map_or_else(user, str::to_owned);
        who.insert("who".to_owned(), json!(called));
        if let Some(address) = std::env::var(CONNECTION).ok().and_then(|text| address(&text)) {
            who.insert("address".to_owned(), json!(address));
        }
        who.insert("user".to_owned(), json!(user()));
        who.insert("store".to_owned(), json!(short(&store.display().to_string())));
        who.insert("process".to_owned(), json!(std::process::id()));
        Ok(Audited(Some(Arc::new(Connection {
            log,
            called,
            who,
            budget: Mutex::new(Budget::new(Instant::now())),
            sums: Sums::default(),
            has_ended: Mutex::new(false),
        }))))
    }

    /// Writes that the client was let in, with this right, and whether it may create the archive.
    pub(super) fn accepted(&self, right: Right, new: bool) {
        let right = match right {
            Right::Read => "read",
            Right::Put => "put",
            Right::Manage => "manage",
        };
        self.whole("accepted", CONNECTIONS, &[("right", json!(right)), ("new", json!(new))]);
    }

    /// Writes that the client was sent away, and why.
    pub(super) fn sent_away(&self, why: &str) {
        self.whole("sent-away", REFUSALS, &[("why", json!(short(why)))]);
    }

    /// Counts an act of the client, and writes a line about it if the act and the budget call for one.
    pub(super) fn hear(&self, act: Act<'_>) {
        let Some(connection) = &self.0 else { return };
        let sums = &connection.sums;
        let (sum, by) = match act {
            Act::Created(_) => (&sums.created, 1),
            Act::Removed(_) => (&sums.removed, 1),
            Act::Refused(..) => (&sums.refused, 1),
            Act::Resized => (&sums.resized, 1),
            Act::Read(bytes) => (&sums.read_bytes, bytes),
            Act::Wrote(bytes) => (&sums.written_bytes, bytes),
            Act::Freed(bytes) => (&sums.freed_bytes, bytes),
        };
        sum.fetch_add(by, Relaxed);
        let (event, asked, file) = match act {
            Act::Created(file) => ("created", None, Some(file)),
            Act::Removed(file) => ("removed", None, Some(file)),
            Act::Refused(asked, file) => ("refused", Some(asked), file),
            _ => return,
        };
        let kind = if matches!(act, Act::Refused(..)) { REFUSALS } else { FILES };
        let mut budget = connection.budget.lock();
        if let Some(left_out) = budget.takes(Instant::now()) {
            let asked = asked.map(|asked| ("asked", json!(asked)));
            let file = file.map(|file| ("file", json!(short(file))));
            let fields: Vec<_> = asked.into_iter().chain(file).collect();
            connection.write(event, kind, &fields, left_out);
        }
    }

    /// Writes that the connection ended, why, and the sums. Only the first call writes.
    pub(super) fn ended(&self, why: &str) {
        let Some(connection) = &self.0 else { return };
        if std::mem::replace(&mut *connection.has_ended.lock(), true) {
            return;
        }
        let sums = &connection.sums;
        let all = [
            ("created", &sums.created),
            ("removed", &sums.removed),
            ("resized", &sums.resized),
            ("refused", &sums.refused),
            ("read_bytes", &sums.read_bytes),
            ("written_bytes", &sums.written_bytes),
            ("freed_bytes", &sums.freed_bytes),
        ];
        let mut fields = vec![("why", json!(short(why)))];
        fields.extend(all.map(|(name, sum)| (name, json!(sum.load(Relaxed)))));
        self.whole("ended", CONNECTIONS, &fields);
    }

    /// Writes a line about the connection as a whole.
    fn whole(&self, event: &str, kind: &'static str, fields: &[(&str, Value)]) {
        if let Some(connection) = &self.0 {
            let left_out = connection.budget.lock().counted();
            connection.write(event, kind, fields, left_out);
        }
    }
}

impl Connection {
    /// Writes a line, if the budget of the client has one of its kind, in all connections together.
    fn write(&self, event: &str, kind: &'static str, fields: &[(&str, Value)], left_out: u64) {
        let mut line = Map::new();
        line.insert("event".to_owned(), json!(event));
        line.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        line.extend(self.who.clone());
        let of = Of { who: self.called.clone(), kind, left_out };
        // The next line says how many are missing. Standard error is the client's.
        let _ = self.log.note_within(of, line);
    }
}

fn user() -> String {
    format!("uid:{}", own_uid())
}

/// A text of the client's, for a line.
fn short(text: &str) -> String {
    one_line(&text.chars().take(TEXT_MAX).collect::<String>())
}

/// Where the client is, in the words of `sshd`.
fn address(connection: &str) -> Option<String> {
    let mut words = connection.split(' ');
    let address: IpAddr = words.next()?.parse().ok()?;
    let port: u16 = words.next()?.parse().ok()?;
    Some(std::net::SocketAddr::new(address, port).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_48_a_client_forges_no_line_and_fills_no_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audited = Audited::open(Some(&path), Some("host1"), Path::new("/srv/a")).unwrap();
        audited.accepted(Right::Read, false);
        let forged = format!("x\n{{\"event\":\"ended\"}}\u{1b}[2J{}", "y".repeat(1 << 20));
        for _ in 0..10_000 {
            audited.hear(Act::Refused("remove", Some(&forged)));
        }
        audited.hear(Act::Wrote(7));
        audited.ended("the client ended it");
        audited.ended("again");
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(text.len() < 100_000 && !text.contains('\u{1b}') && !text.contains("\\u001b"));
        let refused = lines.iter().filter(|line| line["event"] == "refused").count() as u64;
        let unsaid: u64 = lines.iter().filter_map(|line| line["unsaid"].as_u64()).sum();
        assert!(refused >= 64 && refused + unsaid == 10_000, "{refused} {unsaid}");
        assert_eq!(lines.iter().filter(|line| line["event"] == "ended").count(), 1);
        let last = lines.last().unwrap();
        assert_eq!((&last["refused"], &last["written_bytes"]), (&json!(10_000), &json!(7)));
        assert!(lines.iter().all(|line| line["who"] == "host1"));
    }

    #[test]
    fn an_address_is_what_sshd_says_or_none() {
        assert_eq!(address("192.0.2.7 50000 192.0.2.1 22").unwrap(), "192.0.2.7:50000");
        assert_eq!(address("2001:db8::1 5 ::1 22").unwrap(), "[2001:db8::1]:5");
        for wrong in ["", "host 1 2 3", "192.0.2.7", "192.0.2.7 x", "192.0.2.7 70000 a b"] {
            assert_eq!(address(wrong), None);
        }
        assert!(name("host1.example").is_ok());
        for wrong in ["", "a b", "a\n", "é", &"x".repeat(65)] {
            assert!(name(wrong).is_err());
        }
    }
}
