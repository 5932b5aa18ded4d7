//! What an operator of a block store must see to.

use std::time::Duration;

use onefold::parts::witness::UNTOLD;
use onefold_console::{failure::one_line, size::Size};

use crate::report::{Report, Space, Witness, receiving};

/// A store with less than one part in so many free is nearly full.
const PART: u64 = 50;

/// How long the newest state may be unknown to the witness: several tellings failed by then.
const UNTOLD_MAX: Duration = Duration::from_secs(120);

/// What needs an operator; `min_free` is how many bytes must be free.
pub(super) fn problems(report: &Report, min_free: Option<u64>) -> Vec<String> {
    let stopped = report.stopped.iter().map(|reason| format!("it only reads: {reason}"));
    let witness = report.server.iter().filter_map(|server| untold(server.witness.as_ref()?));
    let cut_off = report.receives.iter().filter_map(receiving::problem);
    stopped.chain(room(&report.space, min_free)).chain(witness).chain(cut_off).collect()
}

/// The sentence about a witness that does not learn the newest state: nobody would notice a rollback to the
/// state that it knows.
fn untold(witness: &Witness) -> Option<String> {
    let behind = Duration::from_secs(witness.behind_seconds);
    (behind >= UNTOLD_MAX).then(|| {
        let why = witness.failure.as_deref().unwrap_or("it takes too long to answer");
        let behind = humantime::format_duration(behind);
        format!("{UNTOLD}, for {behind}: {}", one_line(why))
    })
}

/// Too little space, in the store or on the file system of its file.
fn room(space: &Space, min_free: Option<u64>) -> Vec<String> {
    let least = min_free.unwrap_or(space.usable_bytes / PART);
    let mut told = Vec::new();
    if space.free_bytes < least {
        told.push(format!(
            "{} of {} are free, and writes that find no space fail: delete or trim what nobody \
             needs, or run onefold grow",
            Size(space.free_bytes),
            Size(space.usable_bytes)
        ));
    }
    if let (Some(has), Some(free)) = (space.host_bytes, space.host_free_bytes) {
        // What the file has is used again before it grows.
        let used = space.usable_bytes.saturating_sub(space.free_bytes);
        let can_hold = free.saturating_add(has.saturating_sub(used));
        if can_hold < least && can_hold < space.free_bytes {
            told.push(format!(
                "the file system of the store has {} free, so that {} of the {} that the store calls \
                 free can't be written",
                Size(free),
                Size(space.free_bytes - can_hold),
                Size(space.free_bytes)
            ));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_43_a_witness_that_does_not_learn_the_newest_state_is_told() {
        let witness = |behind_seconds, failure: Option<&str>| Witness {
            behind_seconds,
            failure: failure.map(str::to_owned),
            ..Witness::default()
        };
        assert_eq!(untold(&witness(119, Some("no route"))), None);
        let told = untold(&witness(130, Some("no \u{1b}route"))).unwrap();
        assert!(told.contains("2m 10s") && told.contains("route"), "{told}");
        assert!(!told.contains('\u{1b}'));
        assert!(untold(&witness(130, None)).is_some());
    }

    #[test]
    fn a_full_store_and_a_full_host_are_told() {
        let space = |free_bytes, host_bytes, host_free_bytes| Space {
            usable_bytes: 1000,
            free_bytes,
            host_bytes,
            host_free_bytes,
            ..Space::default()
        };
        assert!(room(&space(20, None, None), None).is_empty());
        assert!(room(&space(19, None, None), None)[0].contains("onefold grow"));
        assert_eq!(room(&space(100, None, None), Some(101)).len(), 1);
        // A file that has all its space needs none of its host.
        assert!(room(&space(900, Some(1000), Some(0)), None).is_empty());
        let told = room(&space(900, Some(105), Some(3)), None);
        assert!(told.len() == 1 && told[0].contains("892 bytes of the 900 bytes"), "{told:?}");
    }
}
