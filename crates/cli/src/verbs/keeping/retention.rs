//! The verdicts of policies on all sets of an archive.

use std::collections::BTreeMap;

use onefold_archive::{Snapshot, SnapshotId, Tables};

use super::policy::{Policy, Terms, Verdict, guard};

/// What policies say of the snapshots that they are asked about.
#[derive(Debug, Default)]
pub(in crate::verbs) struct Judged {
    pub(in crate::verbs) verdicts: BTreeMap<SnapshotId, Verdict>,
    /// A sentence for each set that stays as it is although a policy would take something.
    pub(in crate::verbs) guarded: Vec<String>,
    /// What the policies of these sets say: nobody follows it.
    pub(in crate::verbs) held_back: BTreeMap<SnapshotId, Verdict>,
    /// Sets that no policy fits: all of them is kept.
    pub(in crate::verbs) unmatched: Vec<String>,
}

impl Judged {
    /// Judges each set of each host that `policy_of` knows a policy for, of the listed snapshots
    /// that are `wanted`. `force` lets a policy take more than half of a set, or trust a clock that
    /// is far ahead.
    pub(in crate::verbs) fn new(
        tables: &Tables,
        wanted: &dyn Fn(&Snapshot) -> bool,
        policy_of: &dyn Fn(&str, &str) -> Option<Policy>,
        terms: &Terms,
        force: bool,
    ) -> Judged {
        let listed = tables.snapshots.listed().filter(|snapshot| wanted(snapshot));
        Judged::of(listed, policy_of, terms, force)
    }

    /// The same for some snapshots, in the order in which they were made.
    pub(in crate::verbs) fn of<'a>(
        snapshots: impl Iterator<Item = &'a Snapshot>,
        policy_of: &dyn Fn(&str, &str) -> Option<Policy>,
        terms: &Terms,
        force: bool,
    ) -> Judged {
        let mut sets: BTreeMap<(&str, &str), Vec<&Snapshot>> = BTreeMap::new();
        for snapshot in snapshots {
            sets.entry((&snapshot.host, &snapshot.set)).or_default().push(snapshot);
        }
        let mut judged = Judged::default();
        for ((host, set), snapshots) in sets {
            let of = if host.is_empty() {
                String::new()
            } else {
                format!(" of {}", host.escape_debug())
            };
            let name = format!("set '{}'{of}", set.escape_debug());
            let Some(policy) = policy_of(host, set) else {
                judged.unmatched.push(name);
                continue;
            };
            let verdicts = policy.judge(&snapshots, terms);
            match guard(&snapshots, &verdicts, terms, force) {
                Ok(()) => judged.verdicts.extend(verdicts),
                Err(why) => {
                    judged.guarded.push(format!("{name} stays as it is: {why}"));
                    judged.held_back.extend(verdicts);
                }
            }
        }
        judged
    }

    /// The snapshots that go.
    pub(in crate::verbs) fn gone(&self) -> Vec<SnapshotId> {
        let goes = self.verdicts.iter().filter(|(_, verdict)| **verdict == Verdict::Goes);
        goes.map(|(id, _)| *id).collect()
    }
}
