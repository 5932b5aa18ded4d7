//! `onefold forget` and `onefold undelete`: snapshots out of lists, by name or by a policy, and
//! back.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use jiff::tz::TimeZone;
use onefold_archive::{Settings, Snapshot, SnapshotId, Tables};
use onefold_core::{Error, Kind};
use serde_json::json;

use super::{
    archive_at,
    keeping::{
        clones::{CloneOfVolume, clones},
        file::PolicyFile,
        period::period,
        policy::{Policy, Terms, Verdict},
        retention::Judged,
    },
    snapshots, volume,
};
use crate::report::archive::ArchiveServer;
use onefold::parts::{
    archive_dir::{ArchiveDir, now},
    control::{Client, Request},
    operator::warn,
};
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
///
/// With --clones policies judge read-only clones of volumes instead: those that are called VOLUME@WORD
/// are the set VOLUME. What they do not keep is deleted at once, and `undelete` does not bring it back.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold forget backups --keep-daily 7 --keep-weekly 5 --keep-yearly 10 --dry-run\n  \
                  onefold forget backups --set web1 --keep-last 30 --keep-tag audit\n  \
                  onefold forget backups --policy /etc/onefold/policy.toml\n  \
                  onefold forget backups --clones --set disk1 --keep-daily 7 --dry-run\n  \
                  onefold forget backups 3fa94c11")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// Snapshots: SET~N, SET@DATE, or digits of an id
    #[arg(conflicts_with_all = ["set", "host"])]
    snapshots: Vec<String>,

    /// Only of this set
    #[arg(long, value_name = "NAME")]
    set: Option<String>,

    /// Only of this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Judges read-only clones of volumes, called VOLUME@WORD, by the set VOLUME; deletes those that
    /// the policy does not keep
    #[arg(long, conflicts_with_all = ["snapshots", "host"])]
    clones: bool,

    #[command(flatten)]
    keep: Keep,

    /// Policies for sets by their names, from a TOML file, as `serve --maintenance` has them. A set
    /// that none fits stays, and is named
    #[arg(long, value_name = "FILE", conflicts_with = "snapshots")]
    policy: Option<PathBuf>,

    /// For archives that clients can only add to: the first snapshot of each period counts, too,
    /// beside the last, and --keep-last is refused. Chosen by itself while the archive is served so, and
    /// where keys have roles
    #[arg(long)]
    append_only: bool,

    /// Lets a policy take more than half of a set, or trust a clock that is 30 days ahead
    #[arg(long)]
    force: bool,

    /// Says what would be kept and why, and changes nothing
    #[arg(short = 'n', long)]
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

    /// Keeps all of the last time, like 48h, 14d or 6M: s, min, h, d, w, M for months, y
    #[arg(long, value_name = "TIME", value_parser = period)]
    keep_within: Option<Duration>,

    /// Keeps those with this word; of several with commas between, those with all
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
    let directory = archive_at(&options.store, snapshots::NONE)?;
    let archive = directory.open(Settings::default())?;
    let tables = archive.refresh()?;
    let policy = options.keep.policy();
    let by_policy = options.policy.is_some() || !policy.is_empty();
    let judged = match (options.snapshots.is_empty(), by_policy) {
        (true, false) => {
            return Err(Failure::usage("name snapshots, or say with --keep-… what is kept"));
        }
        (false, true) => {
            return Err(Failure::usage("name snapshots, or give a policy, and not both"));
        }
        (false, false) => named(&tables, &options.snapshots)?,
        (true, true) if options.clones => {
            drop(archive);
            return forget_clones(options, &directory, &clones(&tables), &policy);
        }
        (true, true) => by_policies(options, &directory, &tables, &policy)?,
    };
    let gone = judged.gone();
    let listed = tables.snapshots.listed().map(|snapshot| Shown { snapshot, name: None });
    // Told once it is so: a put key forgets nothing.
    if !options.dry_run && !gone.is_empty() {
        onefold_archive::forget(&archive, &gone, now())?;
    }
    tell(options, listed, &judged)?;
    all_done(&judged)
}

fn named(tables: &Tables, texts: &[String]) -> Result<Judged, Failure> {
    let id = |text: &String| {
        let snapshot = snapshots::named(tables, text)?;
        let of_host = text.strip_prefix(&snapshot.host).and_then(|rest| rest.strip_prefix(':'));
        if [Some(text.as_str()), of_host].contains(&Some(&snapshot.set)) {
            let (text, set) = (text.escape_debug(), snapshot.set.escape_debug());
            let host = match of_host {
                Some(_) => format!("--host '{}' ", snapshot.host.escape_debug()),
                None => String::new(),
            };
            let which = format!(
                "'{text}' is a set: '{text}~0' names its newest snapshot, and `{host}--set '{set}' \
                 --keep-…` says what is kept of it"
            );
            return Err(Error::new(Kind::InvalidInput, which));
        }
        Ok((snapshot.id, Verdict::Goes))
    };
    let verdicts = texts.iter().map(id).collect::<Result<_, _>>()?;
    Ok(Judged { verdicts, ..Judged::default() })
}

/// What the policy of the command line says, or those of a file.
fn by_policies(
    options: &Options,
    directory: &ArchiveDir,
    tables: &Tables,
    policy: &Policy,
) -> Result<Judged, Failure> {
    let all: Vec<_> = tables.snapshots.listed().collect();
    judge(options, (directory, tables.roles.is_some()), &all, policy)
}

/// Deletes read-only clones of volumes that the policies do not keep, by the server where there is one.
/// One that a client has open stays.
fn forget_clones(
    options: &Options,
    directory: &ArchiveDir,
    all: &[CloneOfVolume],
    policy: &Policy,
) -> Result<(), Failure> {
    let snapshots: Vec<&Snapshot> = all.iter().map(|clone| &clone.snapshot).collect();
    let judged = judge(options, (directory, false), &snapshots, policy)?;
    let gone = judged.gone();
    let (mut failed, mut kept_open) = (None, Vec::new());
    for clone in all.iter().filter(|clone| gone.contains(&clone.snapshot.id) && !options.dry_run) {
        let request = Request::VolumeDelete { name: clone.name.clone(), force: false };
        if let Err(error) = volume::archive::change(directory, &request) {
            kept_open.push(clone.snapshot.id);
            failed = failed.or(Some(error));
        }
    }
    let shown =
        all.iter().map(|clone| Shown { snapshot: &clone.snapshot, name: Some(&clone.name) });
    tell(options, shown.filter(|one| !kept_open.contains(&one.snapshot.id)), &judged)?;
    failed.map_or_else(|| all_done(&judged), Err)
}

/// Errors when sets stay as they are although the policy would take something of them; each is named.
fn all_done(judged: &Judged) -> Result<(), Failure> {
    match judged.guarded.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(judged.guarded.join("; "))),
    }
}

/// What the policies say of these snapshots, the oldest first; of an archive whose keys have roles or not.
fn judge(
    options: &Options,
    (directory, has_roles): (&ArchiveDir, bool),
    all: &[&Snapshot],
    policy: &Policy,
) -> Result<Judged, Failure> {
    let file = options.policy.as_deref().map(PolicyFile::read).transpose()?;
    if file.is_some() && !policy.is_empty() {
        return Err(Failure::usage("give --policy, or --keep-…, and not both"));
    }
    // Put keys only add, and so does whoever took one.
    let append_only = options.append_only
        || has_roles
        || file.as_ref().is_some_and(|file| file.append_only)
        || may_be_append_only(directory)?;
    let zone = file.as_ref().map_or_else(TimeZone::system, |file| file.zone.clone());
    let terms = Terms { now: now(), zone, append_only };
    let policy_of = |host: &str, set: &str| match &file {
        Some(file) => file.policy(host, set),
        None => Some(policy.clone()),
    };
    let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|name| name == has);
    let wanted =
        |snapshot: &Snapshot| is(&options.set, &snapshot.set) && is(&options.host, &snapshot.host);
    let wanted = || all.iter().copied().filter(|snapshot| wanted(snapshot));
    // A policy that finds nothing to judge for years is a slip of the pen that nobody sees.
    if let (Some(set), None, None) = (&options.set, &file, wanted().next())
        && !all.is_empty()
    {
        let what = if options.clones { "read-only clone of a volume" } else { "snapshot" };
        let of = (Some(&**set), options.host.as_deref());
        return Err(Failure::new(snapshots::none_of(what, of, all)));
    }
    if append_only {
        let of = |snapshot: &Snapshot| policy_of(&snapshot.host, &snapshot.set);
        wanted().filter_map(of).try_for_each(|policy| policy.check_append_only())?;
    }
    Ok(Judged::of(wanted(), &policy_of, &terms, options.force))
}

/// True when a server that takes additions alone says so, and when there is a server that can't be
/// asked: its socket may be elsewhere, or answer nothing.
fn may_be_append_only(directory: &ArchiveDir) -> Result<bool, Failure> {
    // A server on another host can't be asked from here, and may be one that takes additions alone.
    if directory.is_far() {
        let Err(error) = directory.server() else { return Ok(false) };
        warn(&format!(
            "{error}: until then the policy counts as for an archive that clients only add to, as by \
             --append-only"
        ));
        return Ok(true);
    }
    let asked = |mut server: Client| server.ask::<ArchiveServer>(&Request::Status);
    let why = match directory.server().and_then(|server| server.map(asked).transpose()) {
        Ok(Some(status)) => return Ok(status.append_only),
        Ok(None) => match directory.unseen_server()?.filter(|server| server.is_sure) {
            None => return Ok(false),
            Some(server) => server.to_string(),
        },
        Err(error) => error.to_string(),
    };
    warn(&format!(
        "{why}: the policy counts as for an archive that clients only add to, as by --append-only; if \
         its server was started with --control DIR, say the same here"
    ));
    Ok(true)
}

/// A snapshot of a list, or a clone with its name.
struct Shown<'a> {
    snapshot: &'a Snapshot,
    name: Option<&'a str>,
}

fn tell<'a>(
    options: &Options,
    all: impl Iterator<Item = Shown<'a>>,
    judged: &Judged,
) -> Result<(), Failure> {
    let of = |verdict: &Verdict, is_held_back: bool| match verdict {
        Verdict::Kept(why) => ("kept", why.join(", ")),
        Verdict::LeftAlone(why) => ("left alone", (*why).to_owned()),
        Verdict::Goes if is_held_back => ("held back", "the policy would take it".to_owned()),
        Verdict::Goes if options.dry_run => ("would go", String::new()),
        Verdict::Goes if options.clones => ("deleted", String::new()),
        Verdict::Goes => ("forgotten", String::new()),
    };
    let listed = all.filter_map(|shown| {
        let id = shown.snapshot.id;
        let followed = judged.verdicts.get(&id).map(|verdict| of(verdict, false));
        let held_back = || judged.held_back.get(&id).map(|verdict| of(verdict, true));
        Some((shown, followed.or_else(held_back)?))
    });
    if options.answer.json {
        let line = |(Shown { snapshot, name }, (verdict, why)): (Shown<'_>, (&str, String))| {
            let verdict = verdict.replace(' ', "_");
            match name {
                Some(name) => json!({ "volume": name, "set": snapshot.set, "verdict": verdict,
                                      "reasons": why }),
                None => json!({ "id": snapshot.id.to_string(), "set": snapshot.set,
                                "host": snapshot.host, "verdict": verdict, "reasons": why }),
            }
        };
        return output::json(&listed.map(line).collect::<Vec<_>>());
    }
    let (mut gone, mut held_back) = (0, 0);
    for (Shown { snapshot, name }, (verdict, why)) in listed {
        gone += u64::from(judged.verdicts.get(&snapshot.id) == Some(&Verdict::Goes));
        held_back += u64::from(judged.held_back.get(&snapshot.id) == Some(&Verdict::Goes));
        let why = if why.is_empty() { why } else { format!(": {why}") };
        output::line(format_args!(
            "{}  {}  {}  {verdict}{why}",
            name.map_or_else(
                || snapshots::short(snapshot.id),
                |name| name.escape_debug().to_string()
            ),
            snapshots::shown(snapshot.ended),
            snapshot.set.escape_debug()
        ));
    }
    for set in &judged.unmatched {
        output::line(format_args!("{set}: kept, no policy fits it"));
    }
    let done = match (options.dry_run, options.clones) {
        (true, false) => "would be forgotten",
        (false, false) => "forgotten",
        (true, true) => "would be deleted",
        (false, true) => "deleted",
    };
    let what = if options.clones { "clone" } else { "snapshot" };
    let and = match held_back {
        0 => String::new(),
        n => format!(", {} held back", counted(n, what)),
    };
    output::line(format_args!("{} {done}{and}", counted(gone, what)));
    Ok(())
}

/// Brings forgotten snapshots back, until a gc has removed them
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold undelete backups 3fa94c11")]
pub(crate) struct UndeleteOptions {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
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
            let is_short = text.len() < snapshots::LEAST_DIGITS;
            let text = text.escape_debug();
            if is_short {
                let what = format!(
                    "'{text}' is too short for an id: give {} digits or more",
                    snapshots::LEAST_DIGITS
                );
                return Err(Error::new(Kind::InvalidInput, what));
            }
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
