//! `onefold snapshots`: the snapshots of an archive; and how they are named.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use clap::Args;
use jiff::{
    Timestamp, ToSpan, Zoned,
    civil::{Date, Time},
    tz::TimeZone,
};
use onefold_archive::{
    Archive, Completeness, Origin, Snapshot, SnapshotId, Tables, is_domain_erased,
};
use onefold_core::{Error, Kind, Result};
use serde_json::{Value, json};

use super::{
    archive_at,
    keeping::clones::{CloneOfVolume, clones},
};
use onefold::parts::{archive_dir::now, operator::warn};
use onefold_console::{
    failure::Failure,
    output,
    size::{Size, duration},
};

/// Digits of an id that are shown, and that name a snapshot at least.
pub(super) const SHOWN_DIGITS: usize = 8;
pub(super) const LEAST_DIGITS: usize = 4;

/// Sets that a message names at most.
const SETS_SHOWN: usize = 4;

/// Lists the snapshots of an archive, the oldest first
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold snapshots backups\n  \
                  onefold snapshots backups --set web1 --json\n  \
                  onefold snapshots backups --forgotten")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// Only those of this set
    #[arg(long, value_name = "NAME")]
    set: Option<String>,

    /// Only those of this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Only those with this word; of several with commas between, those with all
    #[arg(long, value_name = "WORD")]
    tag: Option<String>,

    /// Lists snapshots that were forgotten and are kept for a while
    #[arg(long)]
    forgotten: bool,

    /// Lists read-only clones of volumes, called VOLUME@WORD, which are the set VOLUME
    #[arg(long, conflicts_with_all = ["host", "tag", "forgotten"])]
    clones: bool,

    /// Memory for the archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// Lists them.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let archive = archive_at(&options.store, NONE)?.open_to_read(options.memory.0)?;
    let tables = archive.tables();
    let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|name| name == has);
    if options.clones {
        let all = clones(&tables).into_iter();
        return list_clones(
            all.filter(|clone| is(&options.set, &clone.snapshot.set)),
            options.json,
        );
    }
    let ended = || {
        let all = tables.snapshots.values();
        all.filter(|snapshot| snapshot.completeness != Completeness::Checkpoint)
            .filter(|snapshot| snapshot.forgotten.is_some() == options.forgotten)
    };
    let all: Vec<&Snapshot> = ended()
        .filter(|snapshot| is(&options.set, &snapshot.set) && is(&options.host, &snapshot.host))
        .filter(|snapshot| options.tag.as_ref().is_none_or(|tag| has_tag(snapshot, tag)))
        .collect();
    let is_filtered = options.set.is_some() || options.host.is_some() || options.tag.is_some();
    if all.is_empty() && is_filtered {
        let what = if options.forgotten { "forgotten snapshot" } else { "snapshot" };
        let tagged = options
            .tag
            .as_ref()
            .map_or_else(String::new, |tag| format!(" with the tag '{}'", tag.escape_debug()));
        let of = (options.set.as_deref(), options.host.as_deref());
        warn(&none_of(&format!("{what}{tagged}"), of, &ended().collect::<Vec<_>>()));
    }
    if options.json {
        let line = |snapshot: &Snapshot| {
            let mut line = json(snapshot);
            line["erased"] = is_domain_erased(&archive, snapshot.domain).into();
            line
        };
        return output::json(&all.iter().copied().map(line).collect::<Vec<_>>());
    }
    if all.is_empty() && !is_filtered {
        output::line("no snapshots");
    }
    for snapshot in all {
        let age = duration(now().saturating_sub(snapshot.ended));
        let mark = match snapshot.completeness {
            Completeness::Whole => "",
            Completeness::Partial => "  partial",
            Completeness::Shrunk => "  shrunk",
            Completeness::Checkpoint => "  unfinished",
        };
        output::line(format_args!(
            "{}  {}  {age:>8} ago  {:>9}  {:>9} added  {}  {}{}{mark}{}",
            short(snapshot.id),
            shown(snapshot.ended),
            Size(snapshot.bytes).to_string(),
            Size(snapshot.added).to_string(),
            snapshot.host.escape_debug(),
            snapshot.set.escape_debug(),
            snapshot
                .tags
                .iter()
                .map(|tag| format!("  #{}", tag.escape_debug()))
                .collect::<String>(),
            domain_mark(&archive, snapshot.domain),
        ));
    }
    Ok(())
}

/// True when a snapshot has a word, or each of several with commas between.
pub(super) fn has_tag(snapshot: &Snapshot, tag: &str) -> bool {
    let has = |tag: &str| snapshot.tags.iter().any(|one| one == tag);
    // Older versions took a word with commas for one.
    has(tag) || tag.split(',').all(has)
}

/// Names the domain that something belongs to, unless it is the one that each archive begins with, and
/// tells when it was erased.
pub(super) fn domain_mark(archive: &Archive, domain: u32) -> String {
    match domain {
        0 => String::new(),
        domain if is_domain_erased(archive, domain) => format!("  domain {domain}, erased"),
        domain => format!("  domain {domain}"),
    }
}

/// Lists read-only clones of volumes.
fn list_clones(all: impl Iterator<Item = CloneOfVolume>, as_json: bool) -> Result<(), Failure> {
    let all: Vec<CloneOfVolume> = all.collect();
    if as_json {
        let line = |CloneOfVolume { name, snapshot }: &CloneOfVolume| {
            json!({ "volume": name, "set": snapshot.set, "created": snapshot.ended,
                    "mapped_bytes": snapshot.bytes })
        };
        return output::json(&all.iter().map(line).collect::<Vec<_>>());
    }
    if all.is_empty() {
        output::line("no read-only clones that are called VOLUME@WORD");
    }
    for CloneOfVolume { name, snapshot } in all {
        let age = duration(now().saturating_sub(snapshot.ended));
        output::line(format_args!(
            "{}  {age:>8} ago  {:>9}  {}",
            shown(snapshot.ended),
            Size(snapshot.bytes).to_string(),
            name.escape_debug()
        ));
    }
    Ok(())
}

/// Why a store of another engine has none.
pub(super) const NONE: &str = "it has no snapshots of directories";

/// The beginning of an id.
pub(super) fn short(id: SnapshotId) -> String {
    id.to_string()[..SHOWN_DIGITS].to_owned()
}

/// A time in the zone of this host.
pub(super) fn shown(seconds: u64) -> String {
    zoned(seconds).map_or_else(
        || Duration::from_secs(seconds).as_secs().to_string(),
        |time| time.strftime("%Y-%m-%d %H:%M").to_string(),
    )
}

/// A time in the zone of this host.
pub(super) fn zoned(seconds: u64) -> Option<Zoned> {
    let seconds = i64::try_from(seconds).ok()?;
    Some(Timestamp::from_second(seconds).ok()?.to_zoned(TimeZone::system()))
}

/// A snapshot, as programs get it.
pub(super) fn json(snapshot: &Snapshot) -> Value {
    let path = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
    json!({
        "id": snapshot.id.to_string(),
        "set": snapshot.set,
        "domain": snapshot.domain,
        "host": snapshot.host,
        "machine": (snapshot.machine != [0; 16]).then(|| SnapshotId(snapshot.machine).to_string()),
        "paths": snapshot.paths.iter().map(path).collect::<Vec<_>>(),
        "tags": snapshot.tags,
        "began": snapshot.began,
        "ended": snapshot.ended,
        "parent": match snapshot.origin {
            Origin::Read(parent) => parent.map(|id| id.to_string()),
            Origin::Copied(_) => None,
        },
        "copied": matches!(snapshot.origin, Origin::Copied(_)),
        "entries": snapshot.entries,
        "bytes": snapshot.bytes,
        "added_bytes": snapshot.added,
        "left_out": snapshot.left_out,
        "state": match snapshot.completeness {
            Completeness::Whole => "whole",
            Completeness::Partial => "partial",
            Completeness::Shrunk => "shrunk",
            Completeness::Checkpoint => "unfinished",
        },
        "forgotten": snapshot.forgotten.map(|(at, _)| at),
    })
}

/// The listed snapshot that a text names: `SET`, the newest of a set; `SET~2`, the second before
/// it; `SET@2026-11-22`, the newest that was there at the end of that day, or of a minute or second of
/// it (`SET@2026-11-22T14:30`); or four digits or more of an id. A set that several hosts have is this
/// host's, or that of the host which stands before it (`web1:SET`).
///
/// Whoever may add snapshots chooses how sets are called, so a text that names two snapshots is refused.
/// All digits of an id name that snapshot alone; and a set comes before fewer digits than are shown.
///
/// # Errors
/// `NotFound`; `InvalidInput` when it may be two, several ids begin so, or several hosts have the set and
/// this is none of them.
pub(super) fn named<'a>(tables: &'a Tables, text: &str) -> Result<&'a Snapshot> {
    let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let sets_called = |set: &str| sets_called(tables, set, &here);
    let of_id = by_id(tables.snapshots.listed(), text);
    if let Some(Ok(snapshot)) = of_id
        && snapshot.id.to_string() == text
    {
        return Ok(snapshot);
    }
    let of_name = sets_called(text)?;
    let mut found: Vec<&Snapshot> = of_name.iter().filter_map(|set| set.last().copied()).collect();
    if let Some((set, before)) = text.rsplit_once('~')
        && let Ok(before) = before.parse::<usize>()
    {
        let sets = sets_called(set)?;
        found.extend(sets.iter().filter_map(|set| set.iter().rev().nth(before).copied()));
    }
    if let Some((set, day)) = text.rsplit_once('@')
        && let Some(end) = end_of(day, &TimeZone::system())
    {
        let before = |snapshot: &&&Snapshot| i64::try_from(snapshot.ended).is_ok_and(|at| at < end);
        let sets = sets_called(set)?;
        // An old snapshot that was copied by its name stands behind newer ones.
        let last = |set: &Vec<&'a Snapshot>| {
            set.iter().filter(before).max_by_key(|snapshot| snapshot.ended).copied()
        };
        found.extend(sets.iter().filter_map(last));
    }
    match of_id {
        Some(of_id) if found.is_empty() || text.len() >= SHOWN_DIGITS => found.push(of_id?),
        _ => {}
    }
    found.dedup_by_key(|snapshot| snapshot.id);
    match found[..] {
        [one] => {
            let of_name =
                of_name.iter().find(|set| set.last().is_some_and(|last| last.id == one.id));
            of_name.into_iter().for_each(|set| note_shrunk(one, set));
            Ok(one)
        }
        [] => {
            let is_stream = tables.streams.contains_key(text);
            let text = text.escape_debug();
            if is_stream {
                let what = format!(
                    "there is no snapshot '{text}', but a stream: `onefold get` restores it, `onefold rm` \
                     removes it"
                );
                return Err(Error::new(Kind::NotFound, what));
            }
            let sets = match sets_shown(tables) {
                None => {
                    return Err(Error::new(
                        Kind::NotFound,
                        format!(
                            "there is no snapshot '{text}', and no other: `onefold backup` makes one"
                        ),
                    ));
                }
                Some(sets) => sets,
            };
            let what = format!(
                "there is no snapshot '{text}': name a set ({sets}) for its newest one, SET~N, SET@DATE, \
                 or {LEAST_DIGITS} digits or more of an id; `onefold snapshots` lists them"
            );
            Err(Error::new(Kind::NotFound, what))
        }
        [one, other, ..] => {
            let shown = |one: &Snapshot| format!("{} of set '{}'", one.id, one.set.escape_debug());
            let what = format!(
                "'{}' may be snapshot {} or {}: say all digits of its id",
                text.escape_debug(),
                shown(one),
                shown(other)
            );
            Err(Error::new(Kind::InvalidInput, what))
        }
    }
}

/// The error of a name that no stream has, with what to do when it is a snapshot's.
pub(super) fn hinted(error: Error, tables: &Tables, name: &str, what_to_do: &str) -> Error {
    if error.kind() != Kind::NotFound || named(tables, name).is_err() {
        return error;
    }
    Error::new(Kind::NotFound, format!("{error}; it names a snapshot: {what_to_do}"))
}

/// Some names of sets, for a message; `None` where there is no snapshot.
fn sets_shown(tables: &Tables) -> Option<String> {
    let all: BTreeSet<&str> = tables.snapshots.listed().map(|one| &*one.set).collect();
    let shown: Vec<String> =
        all.iter().take(SETS_SHOWN).map(|set| set.escape_debug().to_string()).collect();
    let more = if all.len() > shown.len() { ", …" } else { "" };
    (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
}

/// Says that no snapshot is of a set and a host, and which of them have names like these.
pub(super) fn none_of(
    what: &str,
    (set, host): (Option<&str>, Option<&str>),
    all: &[&Snapshot],
) -> String {
    let hosts = || all.iter().map(|snapshot| &*snapshot.host);
    let of_host = all.iter().filter(|snapshot| host.is_none_or(|host| host == snapshot.host));
    let sets: Vec<&str> = of_host.map(|snapshot| &*snapshot.set).collect();
    // Names like one that is there would say that it is not.
    let there = match (set, host) {
        (_, Some(host)) if hosts().all(|one| one != host) => near(host, hosts()),
        (Some(set), _) if !sets.contains(&set) => near(set, sets.into_iter()),
        _ => Vec::new(),
    };
    let of = |word: &str, name: Option<&str>| {
        name.map_or_else(String::new, |name| format!(" of {word} '{}'", name.escape_debug()))
    };
    let there = match there.is_empty() {
        true => String::new(),
        false => format!(": there is {}", there.join(", ")),
    };
    format!("there is no {what}{}{}{there}", of("a set", set), of("host", host))
}

/// Some names of sets, those first that are most like `set`: one is part of the other, or they begin alike.
pub(super) fn near<'a>(set: &str, all: impl Iterator<Item = &'a str>) -> Vec<String> {
    let wanted = set.to_lowercase();
    let unlike = |name: &&str| {
        let name = name.to_lowercase();
        let alike = wanted.chars().zip(name.chars()).take_while(|(one, other)| one == other);
        let is_part = wanted.contains(&name) || name.contains(&wanted);
        (!is_part, std::cmp::Reverse(alike.count()))
    };
    let mut all: Vec<&str> = all.collect::<BTreeSet<_>>().into_iter().collect();
    all.sort_by_cached_key(unlike);
    all.iter().take(SETS_SHOWN).map(|set| format!("'{}'", set.escape_debug())).collect()
}

/// The sets that a text names, each with its snapshots of one host: the set that is called so, of the only
/// host that has it, or of this; and the one of the host that stands before its name.
fn sets_called<'a>(tables: &'a Tables, text: &str, here: &str) -> Result<Vec<Vec<&'a Snapshot>>> {
    let listed = || tables.snapshots.listed();
    let mut sets = Vec::new();
    if let Some((host, set)) = text.split_once(':') {
        let is_it = |snapshot: &&Snapshot| snapshot.host == host && snapshot.set == set;
        sets.push(listed().filter(is_it).collect());
    }
    let all: Vec<&Snapshot> = listed().filter(|snapshot| snapshot.set == text).collect();
    let hosts: BTreeSet<&str> = all.iter().map(|snapshot| snapshot.host.as_str()).collect();
    if hosts.len() <= 1 {
        sets.push(all);
    } else if hosts.contains(here) {
        sets.push(all.into_iter().filter(|snapshot| snapshot.host == here).collect());
    } else {
        let hosts: Vec<String> = hosts.iter().map(|host| host.escape_debug().to_string()).collect();
        return Err(Error::new(
            Kind::InvalidInput,
            format!(
                "several hosts have the set '{}', and this is none of them: say HOST:SET, with one of {}",
                text.escape_debug(),
                hosts.join(", ")
            ),
        ));
    }
    sets.retain(|set: &Vec<&Snapshot>| !set.is_empty());
    Ok(sets)
}

/// Says that the newest snapshot of a set lacks most of what the last whole one has.
fn note_shrunk(newest: &Snapshot, of_set: &[&Snapshot]) {
    if newest.completeness != Completeness::Shrunk {
        return;
    }
    let whole = of_set.iter().rfind(|snapshot| snapshot.completeness == Completeness::Whole);
    if let Some(whole) = whole {
        tracing::warn!(
            "snapshot {} is marked as shrunk; the last whole one is {}",
            short(newest.id),
            short(whole.id)
        );
    }
}

/// Where a day, or a minute or a second of a day, ends: in seconds since 1970. As in lists and pages
/// (`2026-11-22 14:30`), or as in mounts (`2026-11-22_14-30-05`). `None` for anything else.
fn end_of(text: &str, zone: &TimeZone) -> Option<i64> {
    const DAY_LENGTH: usize = "2026-11-22".len();
    let (day, time) = (text.get(..DAY_LENGTH)?.parse::<Date>().ok()?, text.get(DAY_LENGTH..)?);
    if time.is_empty() {
        return Some(
            day.checked_add(1.day()).ok()?.to_zoned(zone.clone()).ok()?.timestamp().as_second(),
        );
    }
    let time = time.strip_prefix(['T', ' ', '_'])?;
    let parts: Vec<i8> = time
        .split([':', '-'])
        .map(|part| part.parse().ok().filter(|_| part.len() == 2))
        .collect::<Option<_>>()?;
    let (hour, minute, second, length) = match parts[..] {
        [hour, minute] => (hour, minute, 0, 60),
        [hour, minute, second] => (hour, minute, second, 1),
        _ => return None,
    };
    let at = day.to_datetime(Time::new(hour, minute, second, 0).ok()?);
    Some(at.to_zoned(zone.clone()).ok()?.timestamp().as_second() + length)
}

/// The only one of some snapshots whose id begins so; `None` when there is none.
pub(super) fn by_id<'a>(
    all: impl Iterator<Item = &'a Snapshot>,
    text: &str,
) -> Option<Result<&'a Snapshot>> {
    if text.len() < LEAST_DIGITS {
        return None;
    }
    let mut found = all.filter(|snapshot| snapshot.id.to_string().starts_with(text));
    let first = found.next()?;
    Some(match found.next() {
        None => Ok(first),
        Some(_) => Err(Error::new(
            Kind::InvalidInput,
            format!("several ids begin with '{}': type more of it", text.escape_debug()),
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_with_names_alike_come_first() {
        let all = ["shop", "mail", "web2", "web1", "old-Web", "db", "web1"];
        assert_eq!(near("web", all.into_iter()), ["'web1'", "'web2'", "'old-Web'", "'db'"]);
        assert_eq!(near("mial", all.into_iter())[0], "'mail'");
    }

    #[test]
    fn a_moment_is_a_day_a_minute_or_a_second_and_nothing_else() {
        let end = |text: &str| end_of(text, &TimeZone::UTC);
        // Midnight after the 22nd.
        assert_eq!(end("2026-11-22"), Some(1_795_392_000));
        assert_eq!(end("2026-11-22T14:30"), Some(1_795_392_000 - 34_200 + 60));
        assert_eq!(end("2026-11-22 14:30:05"), Some(1_795_392_000 - 34_200 + 6));
        assert_eq!(end("2026-11-22_14-30-05"), end("2026-11-22 14:30:05"));
        for wrong in
            ["2026-11-22x", "2026-11-22T", "2026-11-22T14", "2026-11-22T25:00", "2026-1-2", ""]
        {
            assert_eq!(end(wrong), None, "{wrong}");
        }
    }
}
