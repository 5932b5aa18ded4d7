//! What an operator of a block store must see to.

use onefold_console::size::Size;

use crate::report::{Report, Space, receiving};

/// A store with less than one part in so many free is nearly full.
const PART: u64 = 50;

/// What needs an operator; `min_free` is how many bytes must be free.
pub(super) fn problems(report: &Report, min_free: Option<u64>) -> Vec<String> {
    let stopped = report.stopped.iter().map(|reason| format!("it only reads: {reason}"));
    let cut_off = report.receives.iter().filter_map(receiving::problem);
    stopped.chain(room(&report.space, min_free)).chain(cut_off).collect()
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
