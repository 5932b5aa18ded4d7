//! `onefold check`, `scrub` and `repair` of a store of the cluster engine.

use onefold_cluster::{Report, Scrub, Settings};
use serde_json::json;

use onefold::parts::cluster_store::{Opened, Url};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::counted,
};

/// Compares maps and references, and mends what is wrong between them; damage of data is told.
pub(crate) fn repair(store: &Url, answer: Answer) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    let mut scrub = Scrub::new(opened.session.clone(), true)?;
    while scrub.step()? {}
    let report = scrub.report();
    if answer.json {
        output::json(&found(report, report.damage.is_empty()))?;
        return damaged(store, report.damage.len());
    }
    looked_at(report);
    output::line(format_args!(
        "repaired    {} stale and {} missing references, {} unused chunks, {} restored chunks, {} \
         unlisted objects, {} orphans",
        report.stale,
        report.added,
        report.collected,
        report.restored,
        report.listed,
        report.orphans
    ));
    if report.left > 0 {
        output::line(format_args!(
            "note: {} orphans are left, which take space and do no harm; repair again removes more",
            report.left
        ));
    }
    report.damage.iter().for_each(output::line);
    damaged(store, report.damage.len())
}

/// Compares maps and references, and with `data` all chunks with their names; changes nothing.
pub(crate) fn look(store: &Url, data: bool, answer: Answer) -> Result<(), Failure> {
    let opened = Opened::look(store)?;
    let mut scrub = Scrub::look(opened.session.clone(), data)?;
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
            (report.restored, "missing chunks whose objects still have the content"),
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
            "{store} lacks references or chunks; `onefold repair` restores them from other places"
        ))),
    }
}

/// A report for programs.
fn found(report: &Report, well: bool) -> serde_json::Value {
    json!({
        "objects": report.objects, "chunks": report.chunks, "references": report.references,
        "stale_references": report.stale,
        "added_references": report.added, "collected_chunks": report.collected,
        "restored_chunks": report.restored,
        "listed_objects": report.listed, "orphans": report.orphans,
        "orphans_left": report.left, "problems": report.damage,
        "well": well,
    })
}

fn looked_at(report: &Report) {
    output::line(format_args!(
        "looked at   {}, {}, {}",
        counted(report.objects, "object"),
        counted(report.chunks, "chunk"),
        counted(report.references, "reference")
    ));
}

fn damaged(store: &Url, places: usize) -> Result<(), Failure> {
    match places {
        0 => Ok(()),
        n => Err(Failure::new(format!("{store} is damaged in {}", counted(n as u64, "place")))),
    }
}
