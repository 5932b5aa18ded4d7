//! How many lines of an audit log may be about each client, over all of its connections.
//!
//! A client has lines of several kinds, each with a budget of its own, so that lines of one kind leave no lines of
//! another out. A line that is left out is counted. The next line about that client tells the number; if none came
//! for a minute, a line of its own behind the next one about anybody does.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value, json};

/// Lines of one kind about one client at once.
pub const LINES: f64 = 64.0;

/// Lines of one kind about one client that are added a second, up to [`LINES`].
pub const LINES_A_SECOND: f64 = 1.0;

/// Clients that have accounts of their own; more share one, without a name.
const CLIENTS: usize = 1024;

/// Seconds that a count of lines that were left out waits for the next line of its client.
const COUNT_AFTER: f64 = 60.0;

/// Counts that are told behind one line at most.
const TOLD_AT_ONCE: usize = 16;

/// The accounts of all clients, by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Accounts(BTreeMap<String, Account>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Account {
    /// By the kind: how many lines were left, and when, in seconds since 1970.
    left: BTreeMap<String, (f64, f64)>,
    /// Lines that were left out, and that no line has told of yet.
    unsaid: u64,
    /// Since when there are such lines.
    since: f64,
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The lines that are left of `lines` that were left at `at`. A clock that was put back adds none.
fn grown((lines, at): (f64, f64), now: f64) -> f64 {
    (lines + (now - at).max(0.0) * LINES_A_SECOND).clamp(0.0, LINES)
}

impl Accounts {
    /// Takes a line of a kind about a client, of whom `more` lines were left out before. `Some` if it may be written,
    /// with the number of lines that were left out since the last one; `None`, and counts the line, if none is left.
    pub(super) fn take(&mut self, who: &str, kind: &str, more: u64, now: f64) -> Option<u64> {
        if self.0.len() >= CLIENTS && !self.0.contains_key(who) {
            self.0.retain(|_, account| !account.is_rested(now));
        }
        let who = if self.0.len() >= CLIENTS && !self.0.contains_key(who) { "" } else { who };
        let account = self.0.entry(who.to_owned()).or_default();
        account.leave_out(more, now);
        let lines = account.left.get(kind).map_or(LINES, |left| grown(*left, now));
        if lines < 1.0 {
            account.left.insert(kind.to_owned(), (lines, now));
            account.leave_out(1, now);
            return None;
        }
        account.left.insert(kind.to_owned(), (lines - 1.0, now));
        Some(std::mem::take(&mut account.unsaid))
    }

    /// Counts lines about a client that were left out, or could not be told of.
    pub(super) fn leave_out(&mut self, who: &str, lines: u64, now: f64) {
        if lines > 0 {
            self.0.entry(who.to_owned()).or_default().leave_out(lines, now);
        }
    }

    /// The clients about whom no line came for a minute that told how many were left out, and these numbers, which
    /// count as told.
    pub(super) fn due(&mut self, now: f64) -> Vec<(String, u64)> {
        let is_due = |account: &Account| account.unsaid > 0 && now - account.since >= COUNT_AFTER;
        let due = self.0.iter_mut().filter(|(_, account)| is_due(account));
        due.take(TOLD_AT_ONCE)
            .map(|(who, account)| (who.clone(), std::mem::take(&mut account.unsaid)))
            .collect()
    }

    /// One line of JSON, without the accounts that say nothing.
    pub(super) fn to_text(&self) -> String {
        let now = now();
        let fields = self.0.iter().filter(|(_, account)| !account.is_rested(now));
        let fields = fields.map(|(who, account)| {
            let left = account.left.iter().map(|(kind, left)| (kind.clone(), json!(left)));
            let left: Map<String, Value> = left.collect();
            let value = json!({ "left": left, "unsaid": account.unsaid, "since": account.since });
            (who.clone(), value)
        });
        Value::Object(fields.collect()).to_string()
    }

    /// Reads what [`to_text`](Self::to_text) wrote; anything else is no accounts.
    pub(super) fn from_text(text: &[u8]) -> Accounts {
        let Ok(Value::Object(fields)) = serde_json::from_slice(text) else {
            return Accounts::default();
        };
        let account = |value: &Value| {
            let pair = |left: &Value| Some((left.get(0)?.as_f64()?, left.get(1)?.as_f64()?));
            let left = value.get("left")?.as_object()?.iter();
            let left = left.map(|(kind, left)| Some((kind.clone(), pair(left)?)));
            Some(Account {
                left: left.collect::<Option<_>>()?,
                unsaid: value.get("unsaid")?.as_u64()?,
                since: value.get("since")?.as_f64()?,
            })
        };
        let all = fields.iter().take(CLIENTS + 1);
        Accounts(all.filter_map(|(who, value)| Some((who.clone(), account(value)?))).collect())
    }
}

impl Account {
    fn leave_out(&mut self, lines: u64, now: f64) {
        if self.unsaid == 0 && lines > 0 {
            self.since = now;
        }
        self.unsaid = self.unsaid.saturating_add(lines);
    }

    /// True when the client has all of its lines again, and nothing is left to tell.
    fn is_rested(&self, now: f64) -> bool {
        self.unsaid == 0 && self.left.values().all(|left| grown(*left, now) >= LINES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_outlives_its_connection_and_tells_what_was_left_out() {
        let (mut accounts, begin) = (Accounts::default(), now());
        let said = (0..100).filter(|_| accounts.take("a", "x", 0, begin).is_some()).count();
        assert_eq!(said, 64);
        let mut accounts = Accounts::from_text(accounts.to_text().as_bytes());
        assert_eq!(accounts.take("a", "x", 7, begin), None);
        assert_eq!(accounts.take("b", "x", 0, begin), Some(0));
        // Another kind of the client's has lines, and tells.
        assert_eq!(accounts.take("a", "y", 0, begin), Some(44));
        assert_eq!(accounts.take("a", "x", 0, begin), None);
        assert!(accounts.due(begin + 59.0).is_empty());
        assert_eq!(accounts.due(begin + 60.0), [("a".to_owned(), 1)]);
        assert!(accounts.due(begin + 1e6).is_empty());
        // A clock that was put back adds none.
        assert_eq!(accounts.take("a", "x", 0, begin - 1e6), None);
        for wrong in
            ["", "x", "[]", "{\"a\":{}}", "{\"a\":{\"left\":{\"x\":1},\"unsaid\":0,\"since\":0}}"]
        {
            assert_eq!(Accounts::from_text(wrong.as_bytes()), Accounts::default());
        }
    }

    #[test]
    fn accounts_of_many_clients_are_bounded() {
        let (mut accounts, begin) = (Accounts::default(), now());
        for n in 0..5000 {
            assert_eq!(
                accounts.take(&format!("client-{n}"), "x", 0, begin).is_some(),
                n < 1024 + 64
            );
        }
        assert_eq!(accounts.0.len(), CLIENTS + 1);
    }
}
