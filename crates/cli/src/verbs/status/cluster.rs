//! `onefold status` of a store of the cluster engine.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use onefold_cluster::{Look, Published, Session, Sessions, Status, server_at_work};
use onefold_core::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::verbs::cluster::titles;
use onefold::parts::{
    cluster_store::{Opened, Url},
    control::Request,
};
use onefold_console::{
    failure::Failure,
    output,
    size::{Size, counted, grouped},
};

/// How long `status` looks at what servers and workers do, in seconds: each says something every
/// second. All that `status` reads is read meanwhile.
const LOOK_MIN: f64 = 1.2;
const LOOK_MAX: f64 = 1.8;

/// Objects whose maps are read where there are more: a second's work for a cluster of a few disks.
const SAMPLE: u64 = 4096;

/// Other objects each time.
fn sample() -> Look {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Look::Sample { objects: SAMPLE, seed: now.as_nanos() as u64 }
}

/// The figures that `status` shows of a store: a server of a folder sends them as they are.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::verbs) struct Shown {
    /// With `--json`.
    report: Value,
    /// As text.
    lines: Vec<String>,
    /// The damage.
    problems: Vec<String>,
    /// What needs an operator besides, but for too little space.
    others: Vec<String>,
    space: Space,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Space {
    total: u64,
    used: u64,
}

/// Looks at a store, or has its server look.
fn shown(store: &Url, exact: bool) -> Result<Shown, Failure> {
    if let Some(mut server) = store.server()? {
        if exact {
            return Err(Failure::new(format!(
                "{store} is served, and --exact reads all of it: ask without, or stop the server"
            )));
        }
        return Ok(server.ask(&Request::Status)?);
    }
    Ok(look(&Opened::look(store)?.session, exact)?)
}

/// What needs an operator.
pub(super) fn needs_operator(store: &Url, min_free: Option<u64>) -> Result<Vec<String>, Failure> {
    let Shown { mut problems, others, space, .. } = shown(store, false)?;
    let free = space.total.saturating_sub(space.used);
    let wanted = min_free.unwrap_or(space.total / 50);
    if free < wanted {
        problems.push(format!("{} are free, and {} should be", Size(free), Size(wanted)));
    }
    problems.extend(others);
    Ok(problems)
}

/// The report of `status`.
pub(super) fn show(store: &Url, exact: bool, as_json: bool) -> Result<(), Failure> {
    let shown = shown(store, exact)?;
    match as_json {
        true => output::json(&shown.report)?,
        false => shown.lines.iter().for_each(output::line),
    }
    told(store, &shown.problems)
}

/// Looks at a store for a second or two.
pub(in crate::verbs) fn look(session: &Session, exact: bool) -> Result<Shown, Error> {
    let (before, begun) = (session.published()?, Instant::now());
    let status = session.status_by(if exact { Look::Whole } else { sample() })?;
    let (sessions, seconds) = look_on(session, &before, begun)?;
    let (operations, bytes) =
        (sessions.operations as f64 / seconds, sessions.bytes as f64 / seconds);
    let problems = problems(session, &status);
    let stored = status.cached_bytes + status.chunk_bytes;
    let saved = if status.logical_bytes == 0 {
        0.0
    } else {
        100.0 - 100.0 * stored as f64 / status.logical_bytes as f64
    };
    let report = json!({
        "engine": "cluster", "encrypted": session.format().sealed, "volumes": status.volumes, "volume_bytes": status.volume_bytes, "puts": status.puts,
        "put_bytes": status.put_bytes,
        "objects": status.objects, "entries": status.entries,
        "logical_bytes": status.logical_bytes,
        "cached_bytes": status.cached_bytes, "dirty_bytes": status.dirty_bytes,
        "chunks": status.chunks,
        "chunk_bytes": status.chunk_bytes, "map_bytes": status.map_bytes,
        "reference_bytes": status.reference_bytes,
        "clean_cached_bytes": status.cached_bytes.saturating_sub(status.dirty_bytes),
        "servers": sessions.servers, "workers": sessions.workers,
        "silent_sessions": sessions.silent,
        "server_at_work": server_at_work(session)?,
        "operations_per_second": operations, "bytes_per_second": bytes,
        "backlog": status.backlog,
        "operations_without_reply": sessions.unknown, "attempts": status.attempts,
        "stale_references": status.stale_references,
        "used_bytes": status.space.used, "total_bytes": status.space.total,
        "saved_percent": saved,
        "sampled": status.sampled.map(|sampled| json!({
            "read_objects": sampled.read, "of_objects": sampled.of,
            "objects_bound": sampled.objects, "entries_bound": sampled.entries,
            "logical_bytes_bound": sampled.logical_bytes,
            "cached_bytes_bound": sampled.cached_bytes,
            "dirty_bytes_bound": sampled.dirty_bytes,
            "backlog_bound": sampled.backlog,
            "chunks_bound": sampled.chunks, "chunk_bytes_bound": sampled.chunk_bytes,
        })),
        "problems": problems,
    });
    let mut lines = Vec::new();
    let mut line = |text: std::fmt::Arguments<'_>| lines.push(text.to_string());
    let together = |count: u64, bytes: u64| match count {
        0 => "none".to_owned(),
        count => format!("{count}, {} together", Size(bytes)),
    };
    let bounds = status.sampled.unwrap_or_default();
    let about = |bytes: u64, bound: u64| match bound {
        0 => Size(bytes).to_string(),
        bound => format!("about {} (± {})", Size(bytes), Size(bound)),
    };
    let some = |count: u64, bound: u64, what: &str| match bound {
        0 => counted(count, what),
        bound => format!("about {} (± {})", counted(count, what), grouped(bound)),
    };
    let encryption = match session.format().sealed {
        true => "encrypted (experimental)",
        false => "not encrypted",
    };
    line(format_args!("volumes     {}", together(status.volumes, status.volume_bytes)));
    line(format_args!("streams     {}", together(status.puts, status.put_bytes)));
    line(format_args!(
        "content     {} in {} of {}",
        about(status.logical_bytes, bounds.logical_bytes),
        some(status.entries, bounds.entries, "entry"),
        some(status.objects, bounds.objects, "object")
    ));
    line(format_args!(
        "stored      {} in {}, {} in objects",
        about(status.chunk_bytes, bounds.chunk_bytes),
        some(status.chunks, bounds.chunks, "chunk"),
        about(status.cached_bytes, bounds.cached_bytes)
    ));
    line(format_args!("saved       {saved:.1} %"));
    line(format_args!(
        "to do       {} in {}",
        about(status.dirty_bytes, bounds.dirty_bytes),
        some(status.backlog, bounds.backlog, "object")
    ));
    line(format_args!(
        "cached      {} kept beside the chunks of the same content",
        Size(status.cached_bytes.saturating_sub(status.dirty_bytes))
    ));
    line(format_args!(
        "overhead    {} of maps, {} of references",
        Size(status.map_bytes),
        Size(status.reference_bytes)
    ));
    line(format_args!(
        "at work     {} and {}{}; clients do {operations:.0} operations and {} a second",
        counted(sessions.servers, "server"),
        counted(sessions.workers, "worker"),
        if sessions.silent == 0 {
            String::new()
        } else {
            format!(" ({} of these did not report just now)", sessions.silent)
        },
        Size(bytes as u64)
    ));
    if let Some(server) = server_at_work(session)? {
        line(format_args!("served by   {server}; servers with --standby wait for it"));
    }
    line(format_args!(
        "no reply    to {} of these; each session looks up the result before it writes there again",
        counted(sessions.unknown, "operation")
    ));
    if status.stale_references > 0 {
        line(format_args!(
            "left behind {} by killed servers or workers; workers drop them after half a minute",
            counted(status.stale_references, "reference")
        ));
    }
    line(format_args!(
        "space       {} used of {}",
        Size(status.space.used),
        Size(status.space.total)
    ));
    line(format_args!("encryption  {encryption}"));
    if let Some(sampled) = status.sampled {
        line(format_args!(
            "sampled     {} of {} were looked at{}; the truth lies within ± with 95 %; --exact counts all",
            grouped(sampled.read),
            counted(sampled.of, "object"),
            if sampled.chunks == 0 { ", and the object store counts chunks" } else { "" }
        ));
    }
    problems.iter().for_each(|problem| line(format_args!("problem: {problem}")));
    let mut others = Vec::new();
    if sessions.silent > 0 {
        let silent = counted(sessions.silent, "server or worker");
        others.push(format!("{silent} did not report just now"));
    }
    if status.backlog > 0 && sessions.workers == 0 {
        let objects = counted(status.backlog, "object");
        others.push(format!("no worker deduplicates {objects}: run `onefold worker`"));
    }
    let space = Space { total: status.space.total, used: status.space.used };
    Ok(Shown { report, lines, problems, others, space })
}

/// Sentences about all that is damaged.
fn problems(session: &Session, status: &Status) -> Vec<String> {
    let titles = titles(session, status.damaged.iter().map(|(object, _)| *object));
    let mut all: Vec<String> = status
        .damaged
        .iter()
        .zip(titles)
        .map(|((_, why), title)| format!("{title}: {why}"))
        .collect();
    if status.damaged_objects > all.len() as u64 {
        all.push(format!("and {} more objects", status.damaged_objects - all.len() as u64));
    }
    all.extend(status.unread.iter().cloned());
    all
}

/// The end of a status that lacks what is damaged.
fn told(store: &Url, problems: &[String]) -> Result<(), Failure> {
    match problems.len() {
        0 => Ok(()),
        _ => Err(Failure::in_part(format!(
            "{store} is damaged: the figures lack what can't be read; `onefold check` tells more"
        ))),
    }
}

/// The rates of servers and workers, and the seconds that they cover: until all have said something
/// something else, for a second at least and two at most.
fn look_on(
    session: &Session,
    before: &Published,
    begun: Instant,
) -> Result<(Sessions, f64), Error> {
    loop {
        let sessions = session.published()?.since(before);
        let passed = begun.elapsed().as_secs_f64().max(0.001);
        if before.is_empty() || passed >= LOOK_MAX || passed >= LOOK_MIN && sessions.silent == 0 {
            return Ok((sessions, passed));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
