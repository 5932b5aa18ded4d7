//! What `serve --audit` writes: who opened which volume, who was refused, and which commands came.
//!
//! A client that comes again and again fills no disk: each has so many lines at once, and one a second, and
//! as many of its own for what it opened and closed, which refusals can't use up. What it did beyond is
//! counted in its next line, or in a line of its own a minute later, or when the server ends. No line
//! names content or keys.

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_backend::audit::AuditLog;
use onefold_core::Result;
use onefold_serve::{
    audit::{Audit, Event, Who},
    nbd::{Peer, Right},
};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use onefold::parts::control::{Heard, Request};

use crate::verbs::budget::Budget;

/// Clients whose lines are counted, each for itself; more share one count.
const CLIENTS: usize = 1024;

/// How long a count of lines that were not written waits for the next line of its client.
const COUNT_AFTER: Duration = Duration::from_secs(60);

/// How often the server's log tells that lines can't be written.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Bytes of a command that a line holds at most.
const COMMAND_MAX: usize = 4096;

/// The audit log of a server.
pub(super) struct Auditor {
    log: AuditLog,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    budgets: HashMap<(String, Of), Budget>,
    told: Option<Instant>,
}

/// A budget of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    /// Lines of what it reached: a volume that was opened or closed, a command.
    Uses,
    /// Lines of what it was refused.
    Refusals,
}

/// Whether a thread goes on before its line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    ForTheDisk,
    ForNothing,
}

impl Auditor {
    /// Opens the log at a path, or the journal of the system.
    ///
    /// # Errors
    /// As [`AuditLog::file`] and [`AuditLog::journal`].
    pub(super) fn open(to: &Path) -> Result<Arc<Auditor>> {
        let log = match to.to_str() {
            Some("journal") => AuditLog::journal()?,
            _ => AuditLog::file(to)?,
        };
        Ok(Arc::new(Auditor { log, state: Mutex::default() }))
    }

    /// The server works on this store from now on, or ends.
    pub(super) fn tells(&self, event: &str, store: &str) {
        self.count(Duration::ZERO, Waits::ForTheDisk);
        let more = [("store", json!(store)), ("process", json!(std::process::id()))];
        self.write(fields(event, more), Waits::ForTheDisk);
    }

    /// Lets another server write the log, also while a write to it hangs.
    pub(super) fn end(&self) {
        self.log.end();
    }

    /// What the control socket tells of commands.
    pub(super) fn heard(self: &Arc<Auditor>) -> Heard {
        let auditor = self.clone();
        Arc::new(move |uid, request, answer| auditor.command(uid, request, answer))
    }

    fn command(&self, uid: Option<u32>, request: &Request, answer: &Result<Value>) {
        if request.only_looks() {
            return;
        }
        let who = Who::of(uid.map_or(Peer::Unknown, Peer::User)).to_string();
        let mut asked = serde_json::to_value(request).unwrap_or_default();
        if asked.to_string().len() > COMMAND_MAX {
            asked = json!({ "ask": asked.get("ask"), "bytes": asked.to_string().len() });
        }
        let answer = match answer {
            Ok(_) => "done".to_owned(),
            Err(error) => error.to_string().chars().take(1000).collect(),
        };
        let line = fields("command", [("asked", asked), ("answer", json!(answer))]);
        self.say(&who, Of::Uses, line, Waits::ForTheDisk);
    }

    /// Writes how many lines were not written of clients that were silent for this long since.
    fn count(&self, after: Duration, waits: Waits) {
        let due: Vec<(String, u64)> = {
            let (mut state, now) = (self.state.lock(), Instant::now());
            let silent = state.budgets.iter_mut().filter(|(_, budget)| {
                budget.silent.is_some_and(|since| now.saturating_duration_since(since) >= after)
            });
            silent.map(|((who, _), budget)| (who.clone(), budget.counted())).collect()
        };
        for (who, unsaid) in due {
            let who = if who.is_empty() { "others" } else { &who };
            self.write(fields("unsaid", [("who", json!(who)), ("unsaid", json!(unsaid))]), waits);
        }
    }

    /// Writes a line about a client, within its budget.
    fn say(&self, who: &str, of: Of, mut line: Map<String, Value>, waits: Waits) {
        self.count(COUNT_AFTER, waits);
        let unsaid = {
            let (mut state, now) = (self.state.lock(), Instant::now());
            let budgets = &mut state.budgets;
            let mut key = (who.to_owned(), of);
            if budgets.len() >= CLIENTS && !budgets.contains_key(&key) {
                budgets.retain(|_, budget| !budget.is_rested(now));
            }
            if budgets.len() >= CLIENTS && !budgets.contains_key(&key) {
                key.0.clear();
            }
            let budget = budgets.entry(key).or_insert_with(|| Budget::new(now));
            match budget.takes(now) {
                Some(unsaid) => unsaid,
                None => return,
            }
        };
        line.insert("who".to_owned(), json!(who));
        if unsaid > 0 {
            line.insert("unsaid".to_owned(), json!(unsaid));
        }
        self.write(line, waits);
    }

    fn write(&self, line: Map<String, Value>, waits: Waits) {
        let written = match waits {
            Waits::ForTheDisk => self.log.note(line),
            Waits::ForNothing => self.log.note_later(line),
        };
        let Err(error) = written else { return };
        let mut state = self.state.lock();
        if state.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            state.told = Some(Instant::now());
            tracing::error!("the audit log misses lines: {error}");
        }
    }
}

fn fields<const N: usize>(event: &str, more: [(&str, Value); N]) -> Map<String, Value> {
    let event = ("event".to_owned(), json!(event));
    let more = more.into_iter().map(|(name, value)| (name.to_owned(), value));
    std::iter::once(event).chain(more).collect()
}

impl Audit for Auditor {
    fn hear(&self, who: &Who, event: Event<'_>) {
        let of = match event {
            Event::Opened { .. } | Event::Closed { .. } | Event::Pages { allowed: true } => {
                Of::Uses
            }
            Event::Refused { .. } | Event::SentAway { .. } | Event::Pages { .. } => Of::Refusals,
        };
        let line = match event {
            Event::Opened { connection, volume, right } => {
                let right = if right == Right::Write { "write" } else { "read" };
                let more = [
                    ("connection", json!(connection)),
                    ("volume", json!(volume)),
                    ("right", json!(right)),
                ];
                fields("opened", more)
            }
            Event::Closed { connection, volume, cut } => {
                let more = [
                    ("connection", json!(connection)),
                    ("volume", json!(volume)),
                    ("by", json!(if cut { "server" } else { "client" })),
                ];
                fields("closed", more)
            }
            Event::Refused { volume } => fields("refused", [("volume", json!(volume))]),
            Event::SentAway { why } => fields("sent-away", [("why", json!(why))]),
            Event::Pages { allowed } => fields("pages", [("allowed", json!(allowed))]),
        };
        // The thread that welcomes clients sends away, and nobody waits for an answer then.
        let waits = match event {
            Event::SentAway { .. } => Waits::ForNothing,
            _ => Waits::ForTheDisk,
        };
        self.say(&who.to_string(), of, line, waits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_48_a_client_that_comes_again_and_again_fills_no_disk_and_hides_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let auditor = Auditor::open(&path).unwrap();
        let flood = Who::of(Peer::User(7));
        for _ in 0..10_000 {
            auditor.hear(&flood, Event::Refused { volume: "vm1" });
        }
        auditor.hear(&Who::of(Peer::User(8)), Event::Refused { volume: "vm2" });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().count();
        assert!((65..=80).contains(&lines), "{lines}");
        let last = text.lines().last().unwrap();
        assert!(last.contains("\"uid:8\"") && last.contains("vm2"), "{last}");
    }

    #[test]
    fn rule_48_a_client_that_was_refused_often_hides_nothing_that_it_opens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let auditor = Auditor::open(&path).unwrap();
        let client = Who::of(Peer::User(7));
        for _ in 0..1000 {
            auditor.hear(&client, Event::Refused { volume: "b" });
        }
        auditor.hear(&client, Event::Opened { connection: 1, volume: "c", right: Right::Read });
        let text = std::fs::read_to_string(&path).unwrap();
        let last = text.lines().last().unwrap();
        assert!(last.contains("opened") && last.contains("\"c\""), "{last}");
        // The end of the server tells how many lines were not written.
        auditor.tells("ended", "store");
        let text = std::fs::read_to_string(&path).unwrap();
        let unsaid = |line: &str| -> u64 {
            serde_json::from_str::<Value>(line).unwrap()["unsaid"].as_u64().unwrap_or(0)
        };
        let refused = text.lines().filter(|line| line.contains("refused")).count() as u64;
        assert_eq!(refused + text.lines().map(unsaid).sum::<u64>(), 1000);
        assert!(text.lines().last().unwrap().contains("ended"));
    }
}
