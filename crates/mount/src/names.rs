//! The names of sets and snapshots as directories.

use std::collections::BTreeMap;

use jiff::{Timestamp, tz::TimeZone};
use onefold_archive::{Snapshot, SnapshotId, Tables};

/// The link to the newest snapshot of a set.
pub(crate) const LATEST: &str = "latest";

/// The snapshots that can be read: those of erased domains are none.
fn readable(tables: &Tables) -> impl DoubleEndedIterator<Item = &Snapshot> {
    let is_there = |one: &&Snapshot| !tables.domains.erased.contains_key(&one.domain);
    tables.snapshots.listed().filter(is_there)
}

/// The sets, by the names of their directories: a set that is called like a path has `_` for each
/// slash, and a number where two would have the same name.
pub(crate) fn sets(tables: &Tables) -> BTreeMap<String, String> {
    directories(readable(tables).map(|one| one.set.as_str()).collect())
}

fn directories(mut sets: Vec<&str>) -> BTreeMap<String, String> {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    // Clients that may add snapshots choose the names of sets: each set gets its own name before others get
    // one that is like it.
    sets.sort_unstable_by_key(|set| (plain(set) != *set, *set));
    sets.dedup();
    // Behind the last number that a name was given: who makes many sets of one name does not have all
    // numbers tried for each of them.
    let mut given: BTreeMap<String, u64> = BTreeMap::new();
    for set in sets {
        let plain = plain(set);
        let mut name = plain.clone();
        while names.contains_key(&name) {
            let next = given.entry(plain.clone()).or_insert(2);
            name = format!("{plain}-{next}");
            *next += 1;
        }
        names.insert(name, set.to_owned());
    }
    names
}

/// The name of a set as far as a directory can have it.
fn plain(set: &str) -> String {
    let plain = match set {
        // Nobody stores such a one, and one in a crafted archive would hide all others.
        "" => "_".to_owned(),
        "." | ".." => set.replace('.', "_"),
        set => set.replace('/', "_"),
    };
    plain.chars().take(200).collect()
}

/// The snapshots of a set by the names of their directories: their times, and the beginning of the
/// id where two are of the same second.
pub(crate) fn snapshots(tables: &Tables, set: &str) -> BTreeMap<String, SnapshotId> {
    let mut names = BTreeMap::new();
    for snapshot in readable(tables).filter(|snapshot| snapshot.set == set) {
        let name = time(snapshot);
        let name = match names.contains_key(&name) {
            true => format!("{name}_{}", snapshot.id),
            false => name,
        };
        names.insert(name, snapshot.id);
    }
    names
}

/// The newest snapshot of a set.
pub(crate) fn newest(tables: &Tables, set: &str) -> Option<SnapshotId> {
    Some(readable(tables).rfind(|snapshot| snapshot.set == set)?.id)
}

/// The name of a snapshot of a set.
pub(crate) fn name_of(tables: &Tables, set: &str, id: SnapshotId) -> Option<String> {
    snapshots(tables, set).into_iter().find(|(_, other)| *other == id).map(|(name, _)| name)
}

fn time(snapshot: &Snapshot) -> String {
    let seconds = i64::try_from(snapshot.ended).ok();
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(
        || snapshot.id.to_string(),
        |time| time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d_%H-%M-%S").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_21_a_set_that_is_called_like_a_path_takes_no_other_ones_directory() {
        let names = directories(vec!["web/1", "web_1", "web_1-2", "..", "__", "web/1", "a", ""]);
        for (name, set) in [
            ("web_1", "web_1"),
            ("web_1-2", "web_1-2"),
            ("web_1-3", "web/1"),
            ("__", "__"),
            ("_", ""),
        ] {
            assert_eq!(names.get(name).map(String::as_str), Some(set), "{name}");
        }
        assert_eq!(names.len(), 7);
    }

    /// Clients that may add snapshots choose the names of sets, and each look at the directory of all sets
    /// asks for these.
    #[test]
    fn rule_09_many_sets_of_one_name_cost_no_more_than_they_are() {
        const SETS: usize = 20_000;
        let same: Vec<String> = (0..SETS).map(|n| format!("{}{n}", "a".repeat(200))).collect();
        let begun = std::time::Instant::now();
        let names = directories(same.iter().map(String::as_str).collect());
        assert_eq!(names.len(), SETS);
        assert!(names.contains_key(&format!("{}-{SETS}", "a".repeat(200))));
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}
