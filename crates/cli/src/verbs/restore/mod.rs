//! `onefold restore`: files and directories out of a snapshot.

mod aside;
mod dry;
mod finishing;
mod gaps;
mod listing;
mod options;
mod paths;
mod sizes;
mod slots;
mod tiny;
mod walk;
mod wanted;
mod writing;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use onefold_archive::{Archive, Snapshot, TreeReader, Verify};
use onefold_backend::tree::{Choices, LeftOut, Restorer, Sweep, Swept};
use serde_json::json;

pub(super) use self::listing::{list, problems};
pub(crate) use self::options::Options;
use self::{
    aside::Aside,
    finishing::{Finishing, Surplus},
    sizes::Sizes,
    walk::{Pending, Visitor, walk},
    wanted::{Takes, Wanted},
    writing::{Manner, Writing},
};
use super::{
    archive_at,
    get::{left_out, tell},
    snapshots,
};
use onefold_console::{
    failure::Failure,
    output,
    size::{Size, counted, grouped},
};

/// Restores them.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let directory = archive_at(&options.store, snapshots::NONE)?;
    let archive = directory.open_to_read(options.memory.0)?;
    let spared = directory.identities();
    let mut reader = TreeReader::new(&archive)?;
    let tables = reader.tables().clone();
    let snapshot = snapshots::named(&tables, &options.snapshot)?;
    let mut is_there = |path: &[u8]| reader.find(snapshot, path).is_ok();
    let wanted = Wanted::new(&options.paths, options.exact, &mut is_there)?;
    let mut sizes = Sizes::new(&options.directory, options.in_place, false);
    walk(&mut reader, snapshot, &wanted, &mut sizes)?;
    wanted.all_found()?;
    if sizes.fit().is_err() {
        // Holes take no space; to leave them out, the maps of long files are read.
        let mut exact = Sizes::new(&options.directory, options.in_place, true);
        walk(&mut reader, snapshot, &wanted, &mut exact)?;
        exact.fit()?;
    }
    let surplus = surplus(options, &spared, &mut reader, snapshot, &wanted)?;
    if options.dry_run {
        return dry::tell(options, &mut reader, snapshot, &wanted, &sizes, surplus);
    }
    let aside = if options.atomic { Some(Aside::new(&options.directory)?) } else { None };
    let (in_place, privileged) = (options.in_place, options.preserve_privileged);
    let choices = Choices { in_place, privileged, spared };
    let restorer = match &aside {
        Some(aside) => aside.restorer(choices)?,
        None => Restorer::new(&options.directory, choices)?,
    };
    let what = (snapshot, &wanted);
    let done = match (write(options, restorer, &archive, &mut reader, what, sizes), &aside) {
        (Err(failure), Some(aside)) => {
            aside.leave();
            return Err(failure);
        }
        (done, _) => done?,
    };
    match aside {
        Some(aside) if done.damaged + done.refused > 0 => aside.leave(),
        Some(aside) => aside.finish()?,
        None => {}
    }
    report(options, snapshot, &done)
}

/// Counts what is to be removed, and refuses when that is more than half of what is there.
fn surplus(
    options: &Options,
    spared: &[(u64, u64)],
    reader: &mut TreeReader,
    snapshot: &Snapshot,
    wanted: &Wanted,
) -> Result<Swept, Failure> {
    if !options.delete {
        return Ok(Swept::default());
    }
    let Some(sweep) = Sweep::new(&options.directory, spared)? else { return Ok(Swept::default()) };
    let shows = options.dry_run && !options.json;
    let mut surplus = Surplus { sweep, swept: Swept::default(), shows };
    if wanted.takes(b"") == Takes::All {
        let root = reader.root(snapshot)?.directory;
        surplus.entry(reader, b"", &root)?;
    }
    walk(reader, snapshot, wanted, &mut surplus)?;
    let swept = surplus.swept;
    let Swept { there, surplus, .. } = swept;
    if surplus > there / 2 && !options.force {
        return Err(Failure::new(format!(
            "--delete would remove {} of {} entries below {}, more than half: is it the right \
             directory? --force removes them, and --dry-run names them",
            grouped(surplus),
            grouped(there),
            options.directory.display()
        )));
    }
    Ok(swept)
}

/// The outcome of a restore.
struct Done {
    left_out: LeftOut,
    swept: Swept,
    entries: u64,
    bytes: u64,
    kept: u64,
    damaged: u64,
    in_part: u64,
    /// Entries that could not be restored here, or not finished.
    refused: u64,
}

fn write(
    options: &Options,
    restorer: Restorer,
    archive: &Arc<Archive>,
    reader: &mut TreeReader,
    (snapshot, wanted): (&Snapshot, &Wanted),
    sizes: Sizes<'_>,
) -> Result<Done, Failure> {
    let manner = Manner {
        verify: if options.no_verify { Verify::Groups } else { Verify::Chunks },
        in_place: options.in_place,
        memory: usize::try_from(options.window.0).unwrap_or(usize::MAX),
    };
    let mut writing = Writing::new(archive, reader, restorer, manner, (sizes.names, sizes.bytes))?;
    let walked = walk(reader, snapshot, wanted, &mut writing);
    let written = walked.and_then(|()| writing.write());
    if let Err(error) = written.and_then(|()| writing.restorer.made_all()) {
        writing.slots.give_up();
        return Err(error.into());
    }
    let Writing { restorer, slots, entries, .. } = writing;
    // The directories may be more than memory holds: they are looked at once more.
    let sweep = options.delete.then(|| restorer.sweep()).transpose()?;
    let (pending, swept) = (Pending::default(), Swept::default());
    let has_refused = slots.counts.refused.load(Relaxed) > 0;
    let mut finishing = Finishing { restorer, pending, sweep, swept, has_refused, unfinished: 0 };
    walk(reader, snapshot, wanted, &mut finishing)?;
    if wanted.takes(b"") == Takes::All {
        let root = reader.root(snapshot)?.directory;
        finishing.root(reader, &root)?;
    }
    let counts = &slots.counts;
    Ok(Done {
        refused: counts.refused.load(Relaxed) + finishing.unfinished,
        swept: finishing.swept,
        left_out: finishing.restorer.end()?,
        entries,
        bytes: counts.bytes.load(Relaxed),
        kept: counts.kept.load(Relaxed),
        damaged: counts.damaged.load(Relaxed),
        in_part: counts.in_part.load(Relaxed),
    })
}

fn report(options: &Options, snapshot: &Snapshot, done: &Done) -> Result<(), Failure> {
    if options.json {
        output::json(&json!({
            "snapshot": snapshot.id.to_string(),
            "entries": done.entries,
            "bytes": done.bytes,
            "bytes_there_before": done.kept,
            "removed": done.swept.surplus,
            "damaged": done.damaged,
            "in_part": done.in_part,
            "not_restored": done.refused,
            "left_out": left_out(&done.left_out),
        }))?;
    } else {
        let mut also = String::new();
        if options.in_place {
            also += &format!("; {} were there before", Size(done.kept));
        }
        if options.delete {
            also += &format!("; {} removed", counted(done.swept.surplus, "entry"));
        }
        output::line(format_args!(
            "restored {}, {}, of snapshot {}{also}",
            counted(done.entries, "entry"),
            Size(done.bytes),
            snapshots::short(snapshot.id)
        ));
    }
    if done.swept.spared > 0 {
        let n = counted(done.swept.spared, "directory");
        tracing::warn!(
            "not removed: {n} on other mounts or of the archive itself, or with such below"
        );
    }
    tell(&done.left_out, options.preserve_privileged);
    if done.refused > 0 {
        return Err(Failure::in_part(format!(
            "the messages above name {} that could not be restored here",
            counted(done.refused, "path")
        )));
    }
    match (done.damaged, done.in_part) {
        (0, 0) => Ok(()),
        (0, n) => Err(Failure::in_part(format!(
            "{} restored in part only: more was not stored",
            counted(n, "file")
        ))),
        (n, _) => Err(Failure::in_part(format!(
            "{} could not be restored whole: {} with .damaged",
            counted(n, "file"),
            if n == 1 { "its name ends" } else { "their names end" }
        ))),
    }
}
