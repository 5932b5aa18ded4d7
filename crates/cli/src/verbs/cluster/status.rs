//! `onefold cluster status` and `scrub`.

use std::time::{Duration, Instant};

use onefold_cluster::{Published, Report, Scrub, Session, Sessions, Settings};
use serde_json::json;

use onefold::parts::cluster_store::{Opened, Url};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::Size,
};

/// How long `status` looks at what servers and workers do, in seconds: each says something every
/// second, idle workers every three.
const LOOK_MIN: f64 = 2.0;
const LOOK_MAX: f64 = 4.0;

/// What `status` shows.
pub(crate) fn status(store: &Url, as_json: bool) -> Result<(), Failure> {
    let opened = Opened::look(store)?;
    let (before, begun) = (opened.session.published()?, Instant::now());
    let status = opened.session.status()?;
    let (sessions, seconds) = look_on(&opened.session, &before, begun)?;
    let (operations, bytes) =
        (sessions.operations as f64 / seconds, sessions.bytes as f64 / seconds);
    let overhead = status.map_bytes + status.reference_bytes;
    let stored = status.cached_bytes + status.chunk_bytes;
    let saved = if status.logical_bytes == 0 {
        0.0
    } else {
        100.0 - 100.0 * stored as f64 / status.logical_bytes as f64
    };
    if as_json {
        let value = json!({
            "volumes": status.volumes, "volume_bytes": status.volume_bytes, "puts": status.puts, "put_bytes": status.put_bytes,
            "objects": status.objects, "entries": status.entries, "logical_bytes": status.logical_bytes,
            "cached_bytes": status.cached_bytes, "dirty_bytes": status.dirty_bytes, "chunks": status.chunks,
            "chunk_bytes": status.chunk_bytes, "map_bytes": status.map_bytes, "reference_bytes": status.reference_bytes,
            "clean_cached_bytes": status.cached_bytes - status.dirty_bytes, "servers": sessions.servers, "workers": sessions.workers, "silent_sessions": sessions.silent,
            "operations_per_second": operations, "bytes_per_second": bytes, "backlog": status.backlog,
            "operations_without_reply": sessions.unknown, "attempts": status.attempts, "stale_references": status.stale_references,
            "used_bytes": status.space.used, "total_bytes": status.space.total, "saved_percent": saved,
        });
        return output::json(&value);
    }
    output::line(format_args!("volumes     {} of {}", status.volumes, Size(status.volume_bytes)));
    output::line(format_args!("put         {} of {}", status.puts, Size(status.put_bytes)));
    output::line(format_args!(
        "content     {} in {} entries of {} objects",
        Size(status.logical_bytes),
        status.entries,
        status.objects
    ));
    output::line(format_args!(
        "stored      {} in {} chunks, {} in objects",
        Size(status.chunk_bytes),
        status.chunks,
        Size(status.cached_bytes)
    ));
    output::line(format_args!("saved       {saved:.1} %"));
    output::line(format_args!(
        "to do       {} in {} objects",
        Size(status.dirty_bytes),
        status.backlog
    ));
    output::line(format_args!(
        "cached      {} that are chunks, too",
        Size(status.cached_bytes - status.dirty_bytes)
    ));
    output::line(format_args!(
        "overhead    {} of maps, {} of references",
        Size(status.map_bytes),
        Size(overhead - status.map_bytes)
    ));
    output::line(format_args!(
        "at work     {} servers and {} workers{}; clients do {operations:.0} operations and {} a second",
        sessions.servers,
        sessions.workers,
        if sessions.silent == 0 {
            String::new()
        } else {
            format!(" ({} said nothing just now)", sessions.silent)
        },
        Size(bytes as u64)
    ));
    output::line(format_args!(
        "no reply    to {} operations of these: what became of them is looked up before more is written there",
        sessions.unknown
    ));
    if status.stale_references > 0 {
        output::line(format_args!(
            "left behind {} references that killed servers or workers made: workers drop them, half a minute after they were left",
            status.stale_references
        ));
    }
    output::line(format_args!(
        "space       {} used of {}",
        Size(status.space.used),
        Size(status.space.total)
    ));
    Ok(())
}

/// What servers and workers do, and in how many seconds: until all have said something twice, two
/// seconds at least and four at most.
fn look_on(
    session: &Session,
    before: &Published,
    begun: Instant,
) -> Result<(Sessions, f64), Failure> {
    loop {
        let sessions = session.published()?.since(before);
        let passed = begun.elapsed().as_secs_f64().max(0.001);
        if before.is_empty() || passed >= LOOK_MAX || passed >= LOOK_MIN && sessions.silent == 0 {
            return Ok((sessions, passed));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Compares maps and references, and when `deep` the data with its names.
pub(crate) fn scrub(store: &Url, deep: bool, answer: Answer) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    let mut scrub = Scrub::new(opened.session.clone(), deep)?;
    while scrub.step()? {}
    let report = scrub.report();
    if answer.json {
        output::json(&found(report, report.damage.is_empty()))?;
        return damaged(store, report.damage.len());
    }
    looked_at(report);
    output::line(format_args!(
        "repaired    {} stale and {} missing references, {} unused chunks, {} restored chunks, {} unlisted objects, {} orphans",
        report.stale,
        report.added,
        report.collected,
        report.restored,
        report.listed,
        report.orphans
    ));
    report.damage.iter().for_each(output::line);
    damaged(store, report.damage.len())
}

/// Compares the same, and changes nothing.
pub(crate) fn check(store: &Url, answer: Answer) -> Result<(), Failure> {
    let opened = Opened::look(store)?;
    let mut scrub = Scrub::look(opened.session.clone(), false)?;
    while scrub.step()? {}
    let report = scrub.report();
    let lacking = report.added + report.restored;
    let well = lacking == 0 && report.damage.is_empty();
    if answer.json {
        output::json(&found(report, well))?;
    } else {
        looked_at(report);
        let left = [
            (report.stale, "stale references"),
            (report.collected, "unused chunks"),
            (report.listed, "unlisted objects"),
            (report.orphans, "orphans"),
        ];
        for (count, what) in left.iter().filter(|(count, _)| *count > 0) {
            output::line(format_args!("note: {count} {what}, which take space and do no harm"));
        }
        for (count, what) in [
            (report.added, "missing references"),
            (report.restored, "missing chunks that stand in their objects, too"),
        ] {
            (count > 0).then(|| output::line(format_args!("problem: {count} {what}")));
        }
        report.damage.iter().for_each(|line| output::line(format_args!("problem: {line}")));
        well.then(|| output::line(format_args!("{store} is well")));
    }
    match (well, lacking) {
        (true, _) => Ok(()),
        (false, 0) => damaged(store, report.damage.len()),
        _ => Err(Failure::new(format!(
            "{store} lacks references or chunks; `onefold check --repair` puts back what stands elsewhere"
        ))),
    }
}

/// A report for programs.
fn found(report: &Report, well: bool) -> serde_json::Value {
    json!({
        "objects": report.objects, "chunks": report.chunks, "references": report.references, "stale_references": report.stale,
        "added_references": report.added, "collected_chunks": report.collected, "restored_chunks": report.restored,
        "listed_objects": report.listed, "orphans": report.orphans, "problems": report.damage, "well": well,
    })
}

fn looked_at(report: &Report) {
    output::line(format_args!(
        "looked at   {} objects, {} chunks, {} references",
        report.objects, report.chunks, report.references
    ));
}

fn damaged(store: &Url, places: usize) -> Result<(), Failure> {
    match places {
        0 => Ok(()),
        n => Err(Failure::new(format!("{store} is damaged in {n} places"))),
    }
}
