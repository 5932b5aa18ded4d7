//! An upgrade: an archive of an older program gets the kinds of tables that a new one has. No data is
//! written again, and no change of the log.
//!
//! *Crash argument:* two snapshots with the tables of the new kinds are durable, each with an empty
//! log, before a place of the label names the second one. Before that the label names what it named,
//! and nothing of it was changed. From the first place on, the archive is of the new kinds: where its
//! last snapshot is damaged, the first one of the two takes its place, and needs no other kinds. The
//! other place of the label names the old snapshot until it is written too. Should the first place be
//! lost by then, the archive is the old one, and lacks nothing: nobody appends to the new log before
//! both places have the new kinds ([`make_label_durable`]).
//!
//! *Others:* nobody is in an epoch or holds another lock. Processes that have the archive open and are
//! idle know the old kinds. They look at the label before anything else, and end at the new one.

use onefold_core::{Error, Hold, Kind, Lock, Result};

use super::{
    archive::{Archive, label_now},
    heads,
    label::{make_label_durable, record_synced},
    next_log::NextLog,
    position::LogPosition,
    snapshot::write_snapshot,
};
use crate::{
    format::{
        label::{Kinds, Label},
        names::{
            COLLECTOR, EPOCHS, IMPORTER, LABEL, WRITER, fresh, log_name, numbered, snapshot_name,
        },
    },
    leaf_file::LEAVES,
    rules::Rule,
    tables::{Tables, write_leaves},
};

/// The locks of an archive, and who holds them.
const LOCKS: [(&str, &str); 5] = [
    (WRITER, "a put, a backup, a server or an upgrade"),
    (COLLECTOR, "a gc or a repair"),
    (IMPORTER, "an import into the chunk index"),
    (EPOCHS[0], "a reader"),
    (EPOCHS[1], "a reader"),
];

/// The features that an upgrade gives to an archive with this label, in words; none when it has all
/// that need no data written again.
#[must_use]
pub fn features_to_come(label: &Label) -> Vec<&'static str> {
    let (has, gets) = (label.kinds(), label.kinds().upgraded(label.sealed.is_some()));
    let all = [
        (has.trees, gets.trees, "snapshots of directories"),
        (has.leaves, gets.leaves, "checkpoints that write what changed of the tables"),
        (has.on_demand, gets.on_demand, "containers that are looked up when they are needed"),
        (has.clones, gets.clones, "clones of volumes"),
        (
            has.counts_in_pages,
            gets.counts_in_pages,
            "usage counts in pages, of which counting writes those that changed",
        ),
        (has.volume_domains, gets.volume_domains, "volumes in domains"),
        (has.heads, gets.heads, "proof that the archive goes on from where it was seen earlier"),
    ];
    all.into_iter().filter(|(has, gets, _)| !has && *gets).map(|(_, _, feature)| feature).collect()
}

/// Gives the archive all features that `create` sets and that need no data written again; programs
/// from before these refuse it then. False when it had all of them. Durable on return. This value
/// changes and shows nothing more: the archive must be opened again.
///
/// # Errors
/// `Busy`: somebody puts, reads, serves or collects. `NoSpace`: the disk has no room for the tables;
/// the archive is as before. `InvalidInput` when it was opened for reading. Otherwise the errors of a
/// change, and after these the archive is the old one or the new one.
pub fn upgrade(archive: &Archive) -> Result<bool> {
    upgrade_telling(archive, &mut |_, _| ())
}

/// The same; `told` hears how many containers were written to new tables, of how many at most. Each
/// counts twice, as its copies are written one after the other.
///
/// # Errors
/// As [`upgrade`].
pub fn upgrade_telling(archive: &Archive, told: &mut dyn FnMut(u64, u64)) -> Result<bool> {
    let kinds = archive.label.kinds().upgraded(archive.label.sealed.is_some());
    upgrade_to(archive, kinds, told)
}

/// The same for these kinds of tables.
pub(super) fn upgrade_to(
    archive: &Archive,
    kinds: Kinds,
    told: &mut dyn FnMut(u64, u64),
) -> Result<bool> {
    if !archive.writes {
        return Err(Error::new(Kind::InvalidInput, "the archive was opened for reading only"));
    }
    let is_new = archive.label.kinds() == kinds;
    let _locks = if is_new { Vec::new() } else { alone(archive, &LOCKS, "an upgrade")? };
    let (mut position, _lock) = archive.locked()?;
    if let Some(reason) = &position.stopped {
        return Err(Error::new(Kind::Stopped, format!("an earlier failure: {reason}")));
    }
    archive.replay_new_frames(&mut position)?;
    // Also where an earlier upgrade did not come to the second place.
    make_label_durable(archive, &mut position)?;
    if is_new {
        remove_older(archive, position.snapshot)?;
        return Ok(false);
    }
    let is_unknown = NextLog::of(archive, &mut position).await_unknown_snapshot()?;
    match write_tables(archive, &position, kinds, told) {
        Err(error) if error.kind() == Kind::NoSpace => {
            give_up(archive, &position, is_unknown)?;
            let why =
                "the disk has no room for tables with more features, and the archive is as before";
            return Err(Error::new(Kind::NoSpace, format!("{why}: {error}")));
        }
        Err(error) => return Err(position.stopped.insert(error).clone()),
        Ok(()) => {}
    }
    let snapshot = position.snapshot + 2;
    let labelled = write_labels(archive, &position, snapshot, kinds);
    position.stopped = Some(labelled.clone().err().unwrap_or_else(upgraded_meanwhile));
    labelled?;
    record_synced(archive, position.tables.sequence, snapshot)?;
    remove_older(archive, snapshot)?;
    Ok(true)
}

/// The error of a process that knows the archive's older kinds of tables.
pub(super) fn upgraded_meanwhile() -> Error {
    let why = "the archive was upgraded meanwhile, and this process knows it as it was before: begin again";
    Error::new(Kind::Stopped, why)
}

/// Takes the locks of all who store, collect or import, without waiting.
pub(super) fn without_writers(archive: &Archive, act: &str) -> Result<Vec<Box<dyn Lock>>> {
    alone(archive, &LOCKS[..3], act)
}

/// Takes these locks without waiting, for an act that needs the archive alone.
fn alone(archive: &Archive, locks: &[(&str, &str)], act: &str) -> Result<Vec<Box<dyn Lock>>> {
    let lock = |(name, holder): &(&str, &str)| {
        archive.files.lock(name, Hold::Alone, false).map_err(|error| match error.kind() {
            Kind::Busy => {
                let what = format!("{holder} works on the archive, and {act} needs it alone");
                Error::new(Kind::Busy, format!("{what}: {error}"))
            }
            _ => error,
        })
    };
    locks.iter().map(lock).collect()
}

/// Writes the next two snapshots, both with the tables of these kinds, and empty logs behind them.
/// Durable on return, and named by nothing.
fn write_tables(
    archive: &Archive,
    position: &LogPosition,
    kinds: Kinds,
    told: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let (files, identity, number) = (&*archive.files, &archive.identity, position.snapshot + 1);
    let Kinds {
        trees,
        leaves,
        on_demand,
        clones,
        domains,
        heads,
        late: _,
        data_keys,
        volume_domains,
        counts_in_pages: _,
        roles: _,
    } = kinds;
    let tables = Tables::clone(&position.tables);
    if tables.heads {
        heads::write(files, tables.sequence, &position.hashes)?;
    }
    let head = match heads && !tables.heads {
        true => heads::beginning(identity, tables.sequence, tables.chain),
        false => tables.head,
    };
    let tables = Tables { heads, head, ..tables };
    let tables = Tables { has_domains: domains, has_data_keys: data_keys, ..tables };
    let tables = Tables { has_volume_domains: volume_domains, ..tables };
    let mut tables = Tables { trees, leaves, on_demand, clones, ..tables };
    tables.volumes.write_maps(files, identity, number, &archive.settings)?;
    write_leaves(files, identity, &archive.settings, number, &mut tables, told)?;
    for number in [number, number + 1] {
        write_snapshot(files, identity, number, &tables)?;
        let log = fresh(files, &log_name(number))?;
        if number > position.snapshot + 1 {
            log.reserve(0, archive.settings.log_ahead_bytes)?;
        }
        log.sync()?;
    }
    files.sync_names()
}

/// Names the second of the new snapshots in both places of the label, one after the other.
fn write_labels(
    archive: &Archive,
    position: &LogPosition,
    snapshot: u64,
    kinds: Kinds,
) -> Result<()> {
    let Kinds {
        trees,
        leaves,
        on_demand,
        clones,
        counts_in_pages,
        domains,
        heads,
        data_keys,
        volume_domains,
        late: _,
        roles: _,
    } = kinds;
    let file = archive.files.open(LABEL)?;
    let places = if archive.keeps(Rule::BothPlacesUpgraded) { 2 } else { 1 };
    for place in 1..=places {
        let generation = position.generation + place;
        let label = Label {
            generation,
            snapshot,
            trees,
            leaves,
            on_demand,
            clones,
            counts_in_pages,
            domains,
            heads,
            data_keys,
            volume_domains,
            ..label_now(archive)
        };
        file.write_at(label.place(), &label.encode(&archive.identity)?)?;
        file.sync()?;
        archive.files.confirm()?;
    }
    Ok(())
}

/// Gives the space back that an upgrade took which had no room to its end. No label names it. A next
/// snapshot that nobody knows keeps its name, as when a checkpoint has no room.
fn give_up(archive: &Archive, position: &LogPosition, is_unknown: bool) -> Result<()> {
    for number in [position.snapshot + 1, position.snapshot + 2] {
        let name = snapshot_name(number);
        if is_unknown && number == position.snapshot + 1 {
            archive.files.open(&name)?.set_bytes(0)?;
        } else {
            remove(archive, &name)?;
        }
        remove(archive, &log_name(number))?;
    }
    if position.tables.leaves {
        position.tables.leaf_file.cut(&*archive.files)
    } else {
        remove(archive, LEAVES)
    }
}

/// Removes snapshots and logs that are older than the one before snapshot `number`: a crash may have
/// left some.
fn remove_older(archive: &Archive, number: u64) -> Result<()> {
    let is_older =
        |name: &String| numbered(name).is_some_and(|other| other.saturating_add(1) < number);
    let older = archive.files.names()?;
    older.iter().filter(|name| is_older(name)).try_for_each(|name| remove(archive, name))
}

fn remove(archive: &Archive, name: &str) -> Result<()> {
    match archive.files.remove(name) {
        Err(error) if error.kind() != Kind::NotFound => Err(error),
        _ => Ok(()),
    }
}
