//! What a dry run tells: what a backup would read, and by how much the archive would grow.

use onefold_archive::Growth;
use onefold_console::{
    failure::Failure,
    output,
    size::{Size, counted, grouped},
};

use super::walk::Counts;

/// How far a dry run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum DryRun {
    /// It looks at names, sizes and times
    Walk,
    /// It reads what a backup would read
    Read,
}

/// Tells it.
///
/// # Errors
/// Something could not be read, or has another content although nothing says that it changed.
pub(super) fn tell(counts: &Counts, growth: Option<Growth>, json: bool) -> Result<(), Failure> {
    if json {
        let mut report = serde_json::json!({
            "entries": counts.entries,
            "bytes": counts.bytes,
            "files_to_read": counts.read,
            "bytes_to_read": counts.read_bytes,
            "files_unchanged": counts.unchanged,
            "excluded": counts.excluded,
            "left_out": counts.left_out,
            "vanished": counts.vanished,
        });
        if let Some(growth) = growth {
            report["new_bytes"] = growth.new_bytes.into();
            report["added_bytes"] = growth.bytes.into();
            report["silent_changes"] = counts.silent.into();
        }
        output::json(&report)?;
    } else {
        output::line(format_args!(
            "a backup would have {}, {}; it would read {} of {}, and take {} over unread{}; nothing \
             was stored",
            counted(counts.entries, "entry"),
            Size(counts.bytes),
            counted(counts.read, "file"),
            Size(counts.read_bytes),
            grouped(counts.unchanged),
            growth.map_or_else(String::new, |growth| format!(
                "; the archive would grow by {}",
                Size(growth.bytes)
            )),
        ));
    }
    match (counts.left_out, counts.silent) {
        (0, 0) => Ok(()),
        (0, _) => Err(Failure::in_part(counts.silent_changes())),
        (n, _) => Err(Failure::in_part(format!("{} could not be read", counted(n, "path")))),
    }
}
