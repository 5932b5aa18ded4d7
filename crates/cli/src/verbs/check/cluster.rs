//! `onefold check`, `scrub` and `repair` of a store of the cluster engine.

use std::{path::Path, time::Duration};

use onefold_cluster::{Place, Report, Scrub, Session, Settings, Stage};
use onefold_core::hex::hex_digits;
use serde_json::{Value, json};

use crate::verbs::portion::{self, Pace, Portion};
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
    if report.misnamed > 0 {
        output::line(
            "note: what was said of the server at work was none; servers that stand by go on",
        );
    }
    report.damage.iter().for_each(output::line);
    damaged(store, report.damage.len())
}

/// Compares maps and references, and with `data` all chunks with their names; changes nothing.
pub(crate) fn look(store: &Url, data: bool, answer: Answer) -> Result<(), Failure> {
    let opened = Opened::look(store)?;
    let mut scrub = Scrub::look(opened.session.clone(), data)?;
    while scrub.step()? {}
    looked(store, scrub.report(), true, answer)
}

/// The same with `data`, as much of it as the portion says.
pub(crate) fn look_on(
    store: &Url,
    portion: &Portion,
    time: Option<Duration>,
    answer: Answer,
) -> Result<(), Failure> {
    let opened = Opened::look(store)?;
    let mut scrub = Scrub::look(opened.session.clone(), true)?;
    let of = Cursor { file: portion.cursor.as_deref(), session: &opened.session };
    if let Some(place) = of.read()? {
        scrub = scrub.from(place);
    }
    let mut pace = Pace::begin(portion, time);
    let mut more = scrub.step()?;
    while more && !pace.is_over() {
        pace.hold(scrub.read_bytes());
        if pace.keeps() {
            of.write(&scrub)?;
        }
        more = scrub.step()?;
    }
    of.write(&scrub)?;
    looked(store, scrub.report(), scrub.place().is_none(), answer)
}

/// The file that says how far a scrub of this store is.
struct Cursor<'a> {
    file: Option<&'a Path>,
    session: &'a Session,
}

impl Cursor<'_> {
    const STAGES: [(&'static str, Stage); 3] =
        [("metadata", Stage::Metadata), ("chunks", Stage::Chunks), ("names", Stage::Names)];

    fn read(&self) -> Result<Option<Place>, Failure> {
        let Some(file) = self.file else { return Ok(None) };
        let Some(bytes) = portion::read(file)? else { return Ok(None) };
        let place = || -> Option<Place> {
            let value: Value = serde_json::from_slice(&bytes).ok()?;
            let stage = value["stage"].as_str()?;
            let of_store = value["scrub_of_store"] == hex_digits(self.session.format().id);
            let (_, stage) = Cursor::STAGES.into_iter().find(|(name, _)| *name == stage)?;
            let after = value["after"].as_str().map(str::to_owned);
            of_store.then_some(Place { stage, after })
        };
        place().map(Some).ok_or_else(|| portion::is_none(file))
    }

    /// Writes the place of the scrub, or removes the file when it is at its end.
    fn write(&self, scrub: &Scrub) -> Result<(), Failure> {
        let Some(file) = self.file else { return Ok(()) };
        let Some(place) = scrub.place() else { return portion::remove(file) };
        let stage = Cursor::STAGES.into_iter().find(|(_, stage)| *stage == place.stage);
        let value = json!({
            "scrub_of_store": hex_digits(self.session.format().id),
            "stage": stage.map(|(name, _)| name), "after": place.after,
        });
        portion::write(file, format!("{value:#}\n").as_bytes())
    }
}

fn looked(store: &Url, report: &Report, ended: bool, answer: Answer) -> Result<(), Failure> {
    let lacking = report.added + report.restored;
    let well = lacking + report.misnamed == 0 && report.damage.is_empty();
    if answer.json {
        let mut found = found(report, well);
        found["ended"] = ended.into();
        output::json(&found)?;
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
        if report.misnamed > 0 {
            output::line(
                "problem: what is named as the server at work is none, and keeps servers that stand by \
                 waiting; `onefold repair` removes that",
            );
        }
        report.damage.iter().for_each(|line| output::line(format_args!("problem: {line}")));
        match (well, ended) {
            (true, true) => output::line(format_args!("{store} is well")),
            (true, false) => output::line("what was looked at is well; the next scrub goes on"),
            (false, _) => {}
        }
    }
    match (well, lacking) {
        (true, _) => Ok(()),
        (false, 0) => damaged(store, report.damage.len() + report.misnamed as usize),
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
        "orphans_left": report.left, "misnamed_servers": report.misnamed,
        "problems": report.damage,
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
