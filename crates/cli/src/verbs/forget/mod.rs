//! `onefold forget` and `onefold undelete`: snapshots out of lists, by name or by a policy, and
//! back.

mod policy;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::Args;
use onefold_archive::{Settings, Snapshot, SnapshotId, Tables};
use onefold_core::{Error, Kind};
use serde_json::json;

use self::policy::{Policy, Verdict, guard};
use super::{archive_at, snapshots};
use onefold::parts::archive_dir::now;
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::counted,
};

/// Forgets snapshots of an archive: those that are named, or those that a policy does not keep
///
/// A forgotten snapshot is out of lists, and `onefold undelete` brings it back until `onefold gc`
/// removes it: a week after the first gc that saw it. A policy counts for each set of each host
/// apart, in the time zone of this host. Of each period it keeps the newest whole snapshot, and of
/// partial ones as many again. Shrunk snapshots, and those whose dates can't be true, stay. A policy
/// never takes the last whole snapshot of a set.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold forget backups --keep-daily 7 --keep-weekly 5 --keep-yearly 10 --dry-run\n  \
                  onefold forget backups --set web1 --keep-last 30 --keep-tag audit\n  \
                  onefold forget backups 3fa94c11")]
pub(crate) struct Options {
    /// The archive
    store: PathBuf,

    /// Snapshots: SET, SET~N, SET@DATE, or digits of an id
    #[arg(conflicts_with_all = ["set", "host"])]
    snapshots: Vec<String>,

    /// Only of this set
    #[arg(long, value_name = "NAME")]
    set: Option<String>,

    /// Only of this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    #[command(flatten)]
    keep: Keep,

    /// Lets a policy take more than half of a set, or trust a clock that is 30 days ahead
    #[arg(long)]
    force: bool,

    /// Says what would be kept and why, and changes nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    answer: Answer,
}

/// The snapshots that a policy keeps.
#[derive(Clone, Debug, Args)]
struct Keep {
    /// Keeps the last N
    #[arg(long, default_value_t = 0, value_name = "N")]
    keep_last: u64,

    /// Keeps the last one of each of N hours
    #[arg(long, default_value_t = 0, value_name = "N")]
    keep_hourly: u64,

    /// Keeps the last one of each of N days
    #[arg(long, default_value_t = 0, value_name = "N")]
    keep_daily: u64,

    /// Keeps the last one of each of N weeks
    #[arg(long, default_value_t = 0, value_name = "N")]
    keep_weekly: u64,

    /// Keeps the last one of each of N months
    #[arg(long, default_value_t = 0, value_name = "N")]
    keep_monthly: u64,

    /// Keeps the last one of each of N years
    #[arg(long, default_value_t = 0, value_name = "N")]
    keep_yearly: u64,

    /// Keeps all of the last time, like 48h or 14d
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    keep_within: Option<Duration>,

    /// Keeps those with this word
    #[arg(long, value_name = "WORD")]
    keep_tag: Vec<String>,
}

impl Keep {
    fn policy(&self) -> Policy {
        Policy {
            last: self.keep_last,
            hourly: self.keep_hourly,
            daily: self.keep_daily,
            weekly: self.keep_weekly,
            monthly: self.keep_monthly,
            yearly: self.keep_yearly,
            within: self.keep_within.map_or(0, |time| time.as_secs()),
            tags: self.keep_tag.clone(),
        }
    }
}

/// Forgets them.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let archive = archive_at(&options.store, snapshots::NONE)?.open(Settings::default())?;
    let tables = archive.refresh()?;
    let policy = options.keep.policy();
    let (verdicts, wrong) = match (options.snapshots.is_empty(), policy.is_empty()) {
        (true, true) => {
            return Err(Failure::usage("name snapshots, or say with --keep-… what is kept"));
        }
        (false, false) => {
            return Err(Failure::usage("name snapshots, or give a policy, and not both"));
        }
        (false, true) => (named(&tables, &options.snapshots)?, Vec::new()),
        (true, false) => judged(&tables, options, &policy),
    };
    let gone: Vec<SnapshotId> = verdicts
        .iter()
        .filter(|(_, verdict)| **verdict == Verdict::Goes)
        .map(|(id, _)| *id)
        .collect();
    tell(options, &tables, &verdicts)?;
    if !options.dry_run && !gone.is_empty() {
        onefold_archive::forget(&archive, &gone, now())?;
    }
    match wrong.first() {
        None => Ok(()),
        Some(first) => Err(Failure::new(first.clone())),
    }
}

fn named(tables: &Tables, texts: &[String]) -> Result<BTreeMap<SnapshotId, Verdict>, Failure> {
    let id = |text: &String| Ok((snapshots::named(tables, text)?.id, Verdict::Goes));
    texts.iter().map(id).collect()
}

/// The policy's verdicts on each set, and the sets from which it takes nothing.
fn judged(
    tables: &Tables,
    options: &Options,
    policy: &Policy,
) -> (BTreeMap<SnapshotId, Verdict>, Vec<String>) {
    let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|name| name == has);
    let mut sets: BTreeMap<(&str, &str), Vec<&Snapshot>> = BTreeMap::new();
    for snapshot in tables.snapshots.listed() {
        if is(&options.set, &snapshot.set) && is(&options.host, &snapshot.host) {
            sets.entry((&snapshot.host, &snapshot.set)).or_default().push(snapshot);
        }
    }
    let (mut all, mut wrong) = (BTreeMap::new(), Vec::new());
    for ((host, set), snapshots) in sets {
        let verdicts = policy.judge(&snapshots, now());
        match guard(&snapshots, &verdicts, now(), options.force) {
            Ok(()) => all.extend(verdicts),
            Err(why) => wrong.push(format!(
                "set '{}' of {} stays as it is: {why}",
                set.escape_debug(),
                host.escape_debug()
            )),
        }
    }
    (all, wrong)
}

fn tell(
    options: &Options,
    tables: &Tables,
    verdicts: &BTreeMap<SnapshotId, Verdict>,
) -> Result<(), Failure> {
    let of = |verdict: &Verdict| match verdict {
        Verdict::Kept(why) => ("kept", why.join(", ")),
        Verdict::LeftAlone(why) => ("left alone", (*why).to_owned()),
        Verdict::Goes if options.dry_run => ("would go", String::new()),
        Verdict::Goes => ("forgotten", String::new()),
    };
    let listed = tables
        .snapshots
        .listed()
        .filter_map(|snapshot| verdicts.get(&snapshot.id).map(|verdict| (snapshot, of(verdict))));
    if options.answer.json {
        let line = |(snapshot, (verdict, why)): (&Snapshot, (&str, String))| {
            json!({ "id": snapshot.id.to_string(), "set": snapshot.set, "host": snapshot.host,
                    "verdict": verdict.replace(' ', "_"), "reasons": why })
        };
        return output::json(&listed.map(line).collect::<Vec<_>>());
    }
    let mut gone = 0;
    for (snapshot, (verdict, why)) in listed {
        gone += u64::from(verdicts.get(&snapshot.id) == Some(&Verdict::Goes));
        let why = if why.is_empty() { why } else { format!(": {why}") };
        output::line(format_args!(
            "{}  {}  {}  {verdict}{why}",
            snapshots::short(snapshot.id),
            snapshots::shown(snapshot.ended),
            snapshot.set.escape_debug()
        ));
    }
    let done = if options.dry_run { "would be forgotten" } else { "forgotten" };
    output::line(format_args!("{} {done}", counted(gone, "snapshot")));
    Ok(())
}

/// Brings forgotten snapshots back, until a gc has removed them
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold undelete backups 3fa94c11")]
pub(crate) struct UndeleteOptions {
    /// The archive
    store: PathBuf,

    /// Digits of their ids, which `onefold snapshots --forgotten` shows
    #[arg(required = true)]
    snapshots: Vec<String>,

    #[command(flatten)]
    answer: Answer,
}

/// Brings them back.
pub(crate) fn undelete(options: &UndeleteOptions) -> Result<(), Failure> {
    let archive = archive_at(&options.store, snapshots::NONE)?.open(Settings::default())?;
    let tables = archive.refresh()?;
    let forgotten = || tables.snapshots.forgotten();
    let find = |text: &String| {
        let none = || {
            let text = text.escape_debug();
            let what = format!(
                "no forgotten snapshot has an id that begins with '{text}': `onefold snapshots \
                 --forgotten` lists those that are left"
            );
            Err(Error::new(Kind::NotFound, what))
        };
        snapshots::by_id(forgotten(), text).unwrap_or_else(none).map(|snapshot| snapshot.id)
    };
    let ids: Vec<SnapshotId> = options.snapshots.iter().map(find).collect::<Result<_, _>>()?;
    onefold_archive::undelete(&archive, &ids)?;
    let shown: Vec<String> = ids.iter().map(ToString::to_string).collect();
    options.answer.tell(
        &json!({ "undeleted": shown }),
        format_args!("{} in lists again", counted(ids.len() as u64, "snapshot")),
    )
}
