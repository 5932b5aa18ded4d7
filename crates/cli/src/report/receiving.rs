//! A snapshot that is being received, for people.

use std::time::{SystemTime, UNIX_EPOCH};

use onefold::parts::control::ReceiveLine;
use onefold_console::size::{Size, duration};

/// How long nothing may come before an operator is to look, in seconds.
const QUIET_MOST: u64 = 2 * 24 * 3600;

/// Seconds since something came; `None` while somebody sends, and of a server that does not say.
fn quiet(receive: &ReceiveLine) -> Option<u64> {
    if receive.at_work || receive.heard_ms == 0 {
        return None;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(now.as_secs().saturating_sub(receive.heard_ms / 1000))
}

/// What an operator does with what nobody goes on with.
pub(crate) const GIVE_UP_DAMAGED: &str =
    "`onefold receive STORE --expire 9999` gives up what is damaged";

/// How far it is, how old, and what an operator can do.
pub(crate) fn shown(receive: &ReceiveLine) -> String {
    if let Some(damage) = &receive.damage {
        let (name, damage) = (receive.name.escape_debug(), damage.escape_debug());
        return format!("'{name}' is damaged ({damage}): {GIVE_UP_DAMAGED}");
    }
    let so_far = format!(
        "'{}': {} of {}",
        receive.name.escape_debug(),
        Size(receive.received_bytes),
        Size(receive.bytes)
    );
    match quiet(receive) {
        None => so_far,
        Some(seconds) => format!(
            "{so_far}, nothing came for {}: go on by `onefold send … --resume TOKEN`, where `onefold \
             receive STORE {volume} --token` prints the token, or give it up by `onefold receive STORE \
             {volume} --abort`",
            duration(seconds),
            volume = quoted(receive.volume()),
        ),
    }
}

/// A name for a command line. The sender chose it.
fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+-".contains(c);
    if name.chars().all(is_plain) && !name.starts_with('-') {
        return name.to_owned();
    }
    format!("'{}'", name.escape_debug().to_string().replace('\'', "'\\''"))
}

/// The sentence for an operator when nothing came for long.
pub(crate) fn problem(receive: &ReceiveLine) -> Option<String> {
    quiet(receive)
        .filter(|&seconds| seconds >= QUIET_MOST)
        .map(|_| format!("a snapshot was not received to its end, {}", shown(receive)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_that_a_sender_chose_is_a_command_when_it_is_copied() {
        assert_eq!(quoted("vm1"), "vm1");
        assert_eq!(quoted("x; touch pwned #"), "'x; touch pwned #'");
        assert_eq!(quoted("a'$(b)"), r"'a\'\''$(b)'");
        assert_eq!(quoted("-rf"), "'-rf'");
    }
}
