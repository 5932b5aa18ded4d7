//! `onefold diff`: what changed between two snapshots.

use std::path::PathBuf;

use clap::Args;
use onefold_archive::{Change, TreeEntry, TreeReader, TreeWhat, diff};
use serde_json::json;

use super::{archive_at, named, snapshots};
use onefold_console::{
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, grouped},
};

/// Lists what differs between two snapshots
///
/// A line begins with + for what only the second snapshot has, - for what only the first one has, M
/// where kind or content differ, and U where only mode, owner, times, attributes or links do.
/// Directories and pages that are equal in both are not read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold diff backups web1~1 web1\n  \
                  onefold diff backups web1@2026-11-22 web1 --json")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// The first snapshot: SET, SET~N for the Nth before the newest, SET@DATE, or digits of its id
    before: String,

    /// The second snapshot
    after: String,

    /// Memory for the archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// Prints a line of JSON for each difference, and one for all of them, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// How much there is of each kind.
#[derive(Default)]
struct Sums {
    added: u64,
    removed: u64,
    content: u64,
    attributes: u64,
    added_bytes: u64,
    removed_bytes: u64,
}

/// Lists them.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let archive = archive_at(&options.store, snapshots::NONE)?.open_to_read(options.memory.0)?;
    let mut reader = TreeReader::new(&archive)?;
    let tables = reader.tables().clone();
    let before = snapshots::named(&tables, &options.before)?;
    let after = snapshots::named(&tables, &options.after)?;
    let mut sums = Sums::default();
    let bar = Progress::of_lines("comparing", "entries");
    diff(
        &mut reader,
        before,
        after,
        &mut |done, most| bar.set(done, most),
        &mut |path, change| {
            let ((mark, word), path) = (sums.add(&change), &named::whole(path));
            bar.beside(|| match options.json {
                true => {
                    let mut line = json!({ "change": word, "path": String::from_utf8_lossy(path) });
                    if let Some(path) = named::escaped(path) {
                        line["escaped"] = path.into();
                    }
                    output::json_line(&line);
                }
                false => output::line(format_args!("{mark} {}", named::shown(path))),
            });
            Ok(())
        },
    )?;
    drop(bar);
    if options.json {
        output::json_line(&json!({
            "added": sums.added,
            "removed": sums.removed,
            "content_changed": sums.content,
            "only_attributes_changed": sums.attributes,
            "added_bytes": sums.added_bytes,
            "removed_bytes": sums.removed_bytes,
        }));
        return Ok(());
    }
    output::line(format_args!(
        "{} added ({}), {} removed ({}), {} with other content, {} otherwise changed",
        grouped(sums.added),
        Size(sums.added_bytes),
        grouped(sums.removed),
        Size(sums.removed_bytes),
        grouped(sums.content),
        grouped(sums.attributes),
    ));
    Ok(())
}

impl Sums {
    /// Counts a difference. Holes make the sums of bytes as large as anybody likes.
    fn add(&mut self, change: &Change) -> (char, &'static str) {
        match change {
            Change::Added(entry) => {
                self.added += 1;
                self.added_bytes = self.added_bytes.saturating_add(bytes(entry));
                ('+', "added")
            }
            Change::Removed(entry) => {
                self.removed += 1;
                self.removed_bytes = self.removed_bytes.saturating_add(bytes(entry));
                ('-', "removed")
            }
            Change::Content(..) => {
                self.content += 1;
                ('M', "content")
            }
            Change::Told(..) => {
                self.attributes += 1;
                ('U', "attributes")
            }
        }
    }
}

fn bytes(entry: &TreeEntry) -> u64 {
    if let TreeWhat::File(bytes, _) = entry.what { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use onefold_archive::{Attributes, FileMap};

    use super::*;

    #[test]
    fn rule_09_holes_make_no_sum_of_differences_small() {
        let entry = TreeEntry {
            name: b"hole".to_vec(),
            what: TreeWhat::File(1 << 63, FileMap::default()),
            mode: 0o644,
            uid: 0,
            gid: 0,
            seconds: 0,
            nanoseconds: 0,
            link: 0,
            is_in_part: false,
            attributes: Attributes::default(),
        };
        let mut sums = Sums::default();
        for _ in 0..3 {
            sums.add(&Change::Added(entry.clone()));
            sums.add(&Change::Removed(entry.clone()));
        }
        assert_eq!((sums.added_bytes, sums.removed_bytes), (u64::MAX, u64::MAX));
    }
}
