//! How far a check is, and what it found, for people and programs.

use onefold_block::check::{self, Phase, Report};
use onefold_console::{
    output,
    progress::Progress,
    size::{Size, counted},
};
use onefold_core::BLOCK_BYTES;
use serde_json::json;

/// Shows how far a check, repair or scrub is.
pub(in crate::verbs) fn show(bar: &Progress, doing: &str, progress: &check::Progress) {
    let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES as u64);
    bar.stage(&format!("{doing} {}", progress.what));
    match progress.what {
        // Counted in volumes.
        Phase::Names => bar.set(0, 0),
        _ => bar.set(bytes(progress.done), bytes(progress.total)),
    }
}

/// A check's report, for programs.
pub(super) fn checked(report: &Report) -> serde_json::Value {
    json!({
        "volumes": report.volumes, "live_blocks": report.live_blocks,
        "mapped_blocks": report.mapped_blocks, "used_blocks": report.used_blocks,
        "table_pages": report.pages, "carriers": report.carriers, "packs": report.packs,
        "packed_blocks": report.fragments, "clean": report.clean,
        "leaked_blocks": report.leaked_blocks,
        "saturated_blocks": report.saturated_blocks, "lost_addresses": report.lost_addresses,
        "shared_critical": report.shared_critical,
        "pending_discards": report.pending_discards, "notes": report.notes,
        "problems_found": report.problems_found,
        "problems": report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "well": report.is_well(),
    })
}

/// The content of the store, and facts that a person may want to know although they are not wrong.
pub(super) fn counts(report: &Report) {
    let size = |blocks: u64| Size(blocks * BLOCK_BYTES as u64);
    output::line(format_args!(
        "{} with {}, stored in {}; {}, {}",
        counted(report.volumes, "volume"),
        size(report.mapped_blocks),
        size(report.live_blocks),
        counted(report.pages, "table page"),
        counted(report.carriers, "carrier")
    ));
    if report.packs > 0 {
        output::line(format_args!(
            "{} with {}, packed together",
            counted(report.packs, "pack"),
            size(report.fragments)
        ));
    }
    if !report.clean {
        output::line(
            "note: the store was not closed in order; the check covers the result of recovery too",
        );
    }
    let notes = [
        (report.leaked_blocks, "in use that nothing names", "block"),
        (report.saturated_blocks, "with more references than can be counted", "block"),
        (
            report.shared_critical,
            "in critical ranges and shared all the same, since before these were set",
            "block",
        ),
        (report.pending_discards, "still to be freed", "dropped range"),
        (
            report.lost_addresses,
            "lost before: they read as errors until they are written or trimmed",
            "block",
        ),
    ];
    for (number, what, of) in notes.iter().filter(|(number, ..)| *number > 0) {
        output::line(format_args!("note: {} {what}", counted(*number, of)));
    }
    report.notes.iter().for_each(|note| output::line(format_args!("note: {note}")));
}
