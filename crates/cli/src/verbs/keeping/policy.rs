//! Which snapshots of a set are kept: the newest of each period, and guards that no rule empties a
//! set.
//!
//! In each period the newest *whole* snapshot counts. Partial ones count apart, so that a path that
//! can never be read is not without snapshots. Shrunk ones, those that are dated in the future, and
//! those that are dated before an older one of their set neither count nor go.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{Timestamp, ToSpan, Zoned, tz::TimeZone};
use onefold_archive::{Completeness, Snapshot, SnapshotId};
use onefold_core::{Error, Kind, Result};

use crate::verbs::snapshots::has_tag;

/// How many periods of each kind are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::verbs) struct Policy {
    pub(in crate::verbs) last: u64,
    pub(in crate::verbs) hourly: u64,
    pub(in crate::verbs) daily: u64,
    pub(in crate::verbs) weekly: u64,
    pub(in crate::verbs) monthly: u64,
    pub(in crate::verbs) yearly: u64,
    /// Seconds within which all are kept.
    pub(in crate::verbs) within: u64,
    /// Snapshots with one of these words are kept.
    pub(in crate::verbs) tags: Vec<String>,
}

/// By which clock a policy counts, and whom it trusts.
#[derive(Clone, Debug)]
pub(in crate::verbs) struct Terms {
    /// Seconds since 1970.
    pub(in crate::verbs) now: u64,
    /// By which days begin.
    pub(in crate::verbs) zone: TimeZone,
    /// Clients add snapshots that nobody else looked at: the first of each period counts too, as
    /// who stole a client's key may spoil all that come after it.
    pub(in crate::verbs) append_only: bool,
}

impl Terms {
    fn zoned(&self, seconds: u64) -> Option<Zoned> {
        let seconds = i64::try_from(seconds).ok()?;
        Some(Timestamp::from_second(seconds).ok()?.to_zoned(self.zone.clone()))
    }
}

/// A policy's verdict on a snapshot, with its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Verdict {
    /// It is kept, for these reasons.
    Kept(Vec<String>),
    /// It neither counts nor goes.
    LeftAlone(&'static str),
    /// It goes.
    Goes,
}

impl Policy {
    /// True when it keeps nothing.
    pub(in crate::verbs) fn is_empty(&self) -> bool {
        *self == Policy::default()
    }

    /// Refuses what lets clients push good snapshots out by adding more.
    pub(in crate::verbs) fn check_append_only(&self) -> Result<()> {
        match self.last {
            0 => Ok(()),
            _ => Err(Error::new(
                Kind::InvalidInput,
                "the last N are no policy where clients can only add: a stolen key adds N bad ones; \
                 keep hourly to yearly ones, or all within a time",
            )),
        }
    }

    /// Judges the snapshots of one set, in the order in which they were made.
    pub(in crate::verbs) fn judge(
        &self,
        set: &[&Snapshot],
        terms: &Terms,
    ) -> BTreeMap<SnapshotId, Verdict> {
        let mut verdicts = BTreeMap::new();
        let mut counting = Vec::new();
        let mut newest = 0;
        for snapshot in set {
            let alone = if snapshot.completeness == Completeness::Shrunk {
                Some("it is shrunk")
            } else if snapshot.ended > terms.now {
                Some("it is dated in the future")
            } else if snapshot.ended < newest {
                Some("it is dated before an older one")
            } else {
                None
            };
            match alone {
                Some(why) => drop(verdicts.insert(snapshot.id, Verdict::LeftAlone(why))),
                None => {
                    newest = snapshot.ended;
                    counting.push(*snapshot);
                }
            }
        }
        for is_whole in [true, false] {
            let of_kind = counting
                .iter()
                .copied()
                .filter(|snapshot| (snapshot.completeness == Completeness::Whole) == is_whole);
            self.judge_some(&of_kind.collect::<Vec<_>>(), terms, &mut verdicts);
        }
        verdicts
    }

    /// Judges whole ones, or partial ones.
    fn judge_some(
        &self,
        some: &[&Snapshot],
        terms: &Terms,
        verdicts: &mut BTreeMap<SnapshotId, Verdict>,
    ) {
        let mut kept: BTreeMap<SnapshotId, Vec<String>> = BTreeMap::new();
        let mut keep = |snapshot: &Snapshot, why: String| {
            kept.entry(snapshot.id).or_default().push(why);
        };
        let newest_first = || some.iter().rev().copied();
        newest_first()
            .take(usize::try_from(self.last).unwrap_or(usize::MAX))
            .for_each(|snapshot| keep(snapshot, "last".into()));
        type Period = fn(&Zoned) -> String;
        let periods: [(u64, &str, Period); 5] = [
            (self.hourly, "hourly", |at| at.strftime("%Y-%m-%d %H %z").to_string()),
            (self.daily, "daily", |at| at.strftime("%Y-%m-%d").to_string()),
            (self.weekly, "weekly", |at| {
                let week = at.date().iso_week_date();
                format!("{}-W{:02}", week.year(), week.week())
            }),
            (self.monthly, "monthly", |at| at.strftime("%Y-%m").to_string()),
            (self.yearly, "yearly", |at| at.strftime("%Y").to_string()),
        ];
        for (count, name, period) in periods {
            let (mut kept, mut left) = (None, count);
            for (snapshot, at) in
                newest_first().filter_map(|one| Some((one, terms.zoned(one.ended)?)))
            {
                let this = Some(period(&at));
                if kept == this {
                    continue;
                }
                if left == 0 {
                    break;
                }
                keep(snapshot, format!("{name} {}", this.as_deref().unwrap_or_default()));
                (kept, left) = (this, left - 1);
            }
            if !terms.append_only {
                continue;
            }
            // As many periods again, each by its first snapshot.
            let (mut open, mut left): (Option<(String, &Snapshot)>, u64) = (None, count);
            for (snapshot, at) in
                newest_first().filter_map(|one| Some((one, terms.zoned(one.ended)?)))
            {
                let this = period(&at);
                if open.as_ref().is_some_and(|(of, _)| *of != this) {
                    left = left.saturating_sub(1);
                    if let Some((of, first)) = open.take() {
                        keep(first, format!("first of {name} {of}"));
                    }
                }
                if left == 0 {
                    break;
                }
                open = Some((this, snapshot));
            }
            if let Some((of, first)) = open {
                keep(first, format!("first of {name} {of}"));
            }
        }
        for snapshot in some {
            if self.within > 0 && snapshot.ended.saturating_add(self.within) > terms.now {
                keep(snapshot, "within".into());
            }
            if let Some(tag) = self.tags.iter().find(|tag| has_tag(snapshot, tag)) {
                keep(snapshot, format!("tag {tag}"));
            }
        }
        for snapshot in some {
            let verdict = kept.remove(&snapshot.id).map_or(Verdict::Goes, Verdict::Kept);
            verdicts.insert(snapshot.id, verdict);
        }
    }
}

/// Refuses what would empty a set, or remove more than half of it, or trusts a clock that is far
/// ahead. `force` allows the last two. Where a policy of days or hours keeps something, days are
/// counted instead of snapshots: of a backup each hour most go, and no day does.
pub(in crate::verbs) fn guard(
    set: &[&Snapshot],
    verdicts: &BTreeMap<SnapshotId, Verdict>,
    terms: &Terms,
    force: bool,
) -> Result<(), String> {
    let now = terms.now;
    let goes = |snapshot: &&&Snapshot| verdicts.get(&snapshot.id) == Some(&Verdict::Goes);
    let gone = set.iter().filter(goes).count();
    let whole = |snapshot: &&&Snapshot| snapshot.completeness == Completeness::Whole;
    if set.iter().any(|snapshot| whole(&snapshot)) && set.iter().filter(whole).all(|s| goes(&s)) {
        return Err("it would lose its last whole snapshot".into());
    }
    if force {
        return Ok(());
    }
    let day = |snapshot: &Snapshot| terms.zoned(snapshot.ended).map(|at| at.date());
    let by_period = |snapshot: &&&Snapshot| match verdicts.get(&snapshot.id) {
        Some(Verdict::Kept(why)) => {
            why.iter().any(|why| why.starts_with("daily") || why.starts_with("hourly"))
        }
        _ => false,
    };
    let days: BTreeSet<_> = set.iter().filter(by_period).filter_map(|one| day(one)).collect();
    let (lost, counted, what) = if days.is_empty() {
        (gone, set.len(), "snapshots")
    } else {
        let all: BTreeSet<_> = set.iter().filter_map(|one| day(one)).collect();
        let of_gone: BTreeSet<_> = set.iter().filter(goes).filter_map(|one| day(one)).collect();
        let stay: BTreeSet<_> =
            set.iter().filter(|one| !goes(one)).filter_map(|one| day(one)).collect();
        (of_gone.difference(&stay).count(), all.len(), "days with snapshots")
    };
    if lost > 1 && lost * 2 > counted {
        return Err(format!("{lost} of its {counted} {what} would go; --force lets them"));
    }
    let newest = set.iter().map(|snapshot| snapshot.ended).max().unwrap_or(now);
    let ahead = terms.zoned(newest).and_then(|at| at.checked_add(30.days()).ok());
    let is_ahead = ahead.is_some_and(|limit| {
        i64::try_from(now).is_ok_and(|now| now > limit.timestamp().as_second())
    });
    if gone > 0 && is_ahead {
        return Err(
            "its newest snapshot is more than 30 days old by this host's clock; --force trusts the \
             clock"
                .into(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use onefold_archive::{Address, ContainerId, Origin, TreeNodeRef};
    use onefold_core::Fingerprint;

    use super::*;

    const DAY: u64 = 86_400;
    /// Noon of a day that is no day of a change of clocks anywhere.
    const NOW: u64 = 1_795_608_000;

    fn snapshot(n: u8, ended: u64) -> Snapshot {
        let address = Address { container: ContainerId(1), slot: 0 };
        Snapshot {
            id: SnapshotId([n; 16]),
            set: "s".into(),
            domain: 0,
            host: String::new(),
            machine: [0; 16],
            paths: Vec::new(),
            tags: Vec::new(),
            began: ended,
            ended,
            origin: Origin::Read(None),
            root: TreeNodeRef { address, fingerprint: Fingerprint([0; 16]) },
            stats: None,
            entries: 1,
            bytes: 0,
            added: 0,
            left_out: 0,
            completeness: Completeness::Whole,
            forgotten: None,
        }
    }

    fn terms(now: u64, append_only: bool) -> Terms {
        Terms { now, zone: TimeZone::UTC, append_only }
    }

    fn kept(policy: &Policy, all: &[Snapshot]) -> Vec<u8> {
        kept_on(policy, all, &terms(NOW, false))
    }

    fn kept_on(policy: &Policy, all: &[Snapshot], terms: &Terms) -> Vec<u8> {
        let all: Vec<&Snapshot> = all.iter().collect();
        let verdicts = policy.judge(&all, terms);
        let kept = |id: &SnapshotId| matches!(verdicts[id], Verdict::Kept(_));
        all.iter().map(|snapshot| snapshot.id).filter(kept).map(|id| id.0[0]).collect()
    }

    #[test]
    fn the_newest_of_each_period_is_kept() {
        // Two a day for ten days, the oldest first.
        let all: Vec<Snapshot> =
            (0..20u8).map(|n| snapshot(n, NOW - (19 - u64::from(n)) * DAY / 2)).collect();
        assert_eq!(kept(&Policy { last: 3, ..Policy::default() }, &all), [17, 18, 19]);
        assert_eq!(kept(&Policy { daily: 3, ..Policy::default() }, &all).len(), 3);
        assert!(kept(&Policy { daily: 3, ..Policy::default() }, &all).contains(&19));
        let weekly = kept(&Policy { weekly: 5, ..Policy::default() }, &all);
        assert!((2..=3).contains(&weekly.len()), "{weekly:?}");
        let within = Policy { within: DAY, ..Policy::default() };
        assert_eq!(kept(&within, &all), [18, 19]);
        let mut tagged = all;
        tagged[4].tags.push("audit".into());
        let tags = Policy { tags: vec!["audit".into()], ..Policy::default() };
        assert_eq!(kept(&tags, &tagged), [4]);
    }

    #[test]
    fn a_stolen_key_takes_no_snapshots_place() {
        // One in each of nine nights, then a hundred bad ones in one hour of the tenth day.
        let mut all: Vec<Snapshot> =
            (0..10u8).map(|n| snapshot(n, NOW - (9 - u64::from(n)) * DAY - 12 * 3600)).collect();
        all.extend((100..200u8).map(|n| snapshot(n, NOW - 3600 + u64::from(n))));
        let policy = Policy { daily: 5, ..Policy::default() };
        let trusting = kept(&policy, &all);
        let wary = kept_on(&policy, &all, &terms(NOW, true));
        // The last day has its bad one, and its first one too.
        assert!(wary.contains(&9) && wary.contains(&199), "{wary:?}");
        assert!(!trusting.contains(&9) && trusting.contains(&199), "{trusting:?}");
        assert!([5, 6, 7, 8].iter().all(|n| wary.contains(n)), "{wary:?}");
        assert!(Policy { last: 1, ..Policy::default() }.check_append_only().is_err());
        assert!(policy.check_append_only().is_ok());
    }

    #[test]
    fn days_begin_by_the_zone_of_the_policy() {
        // Half an hour before and after midnight in Berlin, which is one day in UTC.
        let midnight = 1_795_561_200;
        let all = [snapshot(1, midnight - 1800), snapshot(2, midnight + 1800)];
        let policy = Policy { daily: 2, ..Policy::default() };
        let berlin = Terms { zone: TimeZone::get("Europe/Berlin").unwrap(), ..terms(NOW, false) };
        assert_eq!(kept_on(&policy, &all, &berlin), [1, 2]);
        assert_eq!(kept_on(&policy, &all, &terms(NOW, false)), [2]);
    }

    #[test]
    fn a_partial_snapshot_takes_no_whole_ones_place() {
        let mut all = [snapshot(1, NOW - 20), snapshot(2, NOW - 10)];
        all[1].completeness = Completeness::Partial;
        assert_eq!(kept(&Policy { daily: 1, ..Policy::default() }, &all), [1, 2]);
    }

    #[test]
    fn what_no_clock_can_judge_is_left_alone() {
        let mut all = [
            snapshot(1, NOW - 100),
            snapshot(2, NOW - 50),
            snapshot(3, NOW + 5),
            snapshot(4, NOW - 70),
        ];
        all[1].completeness = Completeness::Shrunk;
        let all: Vec<&Snapshot> = all.iter().collect();
        let verdicts = Policy { last: 1, ..Policy::default() }.judge(&all, &terms(NOW, false));
        assert!(matches!(verdicts[&all[1].id], Verdict::LeftAlone(_)));
        assert!(matches!(verdicts[&all[2].id], Verdict::LeftAlone(_)));
        assert!(matches!(verdicts[&all[3].id], Verdict::Kept(_)));
        assert!(matches!(verdicts[&all[0].id], Verdict::Goes));
    }

    #[test]
    fn a_backup_each_hour_is_thinned_out_without_force() {
        // Eight days, each with a snapshot an hour; the guard judges the days.
        let all: Vec<Snapshot> =
            (0..192u8).map(|n| snapshot(n, NOW - (191 - u64::from(n)) * 3600)).collect();
        let all: Vec<&Snapshot> = all.iter().collect();
        let guarded = |policy: &Policy| {
            let terms = terms(NOW, false);
            guard(&all, &policy.judge(&all, &terms), &terms, false)
        };
        assert_eq!(guarded(&Policy { daily: 7, ..Policy::default() }), Ok(()));
        // Most of the days, and most of the snapshots, are refused as before.
        assert!(guarded(&Policy { daily: 2, ..Policy::default() }).is_err());
        assert!(guarded(&Policy { last: 7, ..Policy::default() }).is_err());
        assert!(guarded(&Policy { monthly: 1, ..Policy::default() }).is_err());
    }

    #[test]
    fn no_policy_empties_a_set() {
        let all = [snapshot(1, NOW - 30), snapshot(2, NOW - 20), snapshot(3, NOW - 10)];
        let all: Vec<&Snapshot> = all.iter().collect();
        let gone = |ids: &[usize]| {
            ids.iter().map(|&n| (all[n].id, Verdict::Goes)).collect::<BTreeMap<_, _>>()
        };
        assert!(guard(&all, &gone(&[0]), &terms(NOW, false), false).is_ok());
        assert!(guard(&all, &gone(&[0, 1]), &terms(NOW, false), false).is_err());
        assert!(guard(&all, &gone(&[0, 1]), &terms(NOW, false), true).is_ok());
        assert!(guard(&all, &gone(&[0, 1, 2]), &terms(NOW, false), true).is_err());
        assert!(guard(&all, &gone(&[0]), &terms(NOW + 40 * DAY, false), false).is_err());
        assert!(guard(&all, &gone(&[0]), &terms(NOW + 40 * DAY, false), true).is_ok());
    }
}
