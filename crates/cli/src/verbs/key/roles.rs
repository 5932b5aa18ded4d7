//! `onefold key grant|revoke|roles`: keys with roles, of an archive.

use std::{path::Path, sync::Arc};

use clap::ValueEnum;
use onefold_archive::{
    Archive, PutKey, READER_BYTES, Role, Settings, add_put_key, read_key, remove_put_key,
};
use onefold_backend::secrets::new_key_file;
use onefold_core::{Error, Kind};
use onefold_seal::RoleKey;
use serde_json::{Value, json};

use crate::verbs::archive_at;
use onefold_console::{failure::Failure, output::Answer};

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Granted {
    /// Add snapshots to its sets
    Put,
    /// Restore
    Read,
}

/// What is said of stores that have no such keys.
const NONE: &str = "its keys have no roles";

fn shown(store: &Path) -> String {
    store.display().to_string()
}

fn open(store: &Path) -> Result<Arc<Archive>, Failure> {
    Ok(archive_at(store, NONE)?.open(Settings::default())?)
}

/// Makes a key.
pub(super) fn grant(
    store: &Path,
    role: Granted,
    to: &Path,
    (name, sets): (&str, &[String]),
    answer: &Answer,
) -> Result<(), Failure> {
    match role {
        Granted::Put if sets.is_empty() => {
            return Err(Failure::usage(
                "name the sets that the key may add snapshots to, with --set",
            ));
        }
        Granted::Read if !sets.is_empty() => {
            return Err(Failure::usage("a read key opens all sets: leave out --set"));
        }
        _ => {}
    }
    let archive = open(store)?;
    let keep = |key: &RoleKey| new_key_file(to, &key.text());
    let number = match role {
        Granted::Put => Some(add_put_key(&archive, name, sets, keep)?),
        Granted::Read => {
            keep(&read_key(&archive, name)?)?;
            None
        }
    };
    let report = json!({
        "store": shown(store), "file": to.display().to_string(), "name": name, "sets": sets,
        "role": if role == Granted::Put { "put" } else { "read" }, "number": number,
    });
    let words = match number {
        Some(number) => format!(
            "{} has put key {number} ('{}'), which adds snapshots to {}",
            to.display(),
            name.escape_debug(),
            listed(sets)
        ),
        None => format!(
            "{} has a read key ('{}'): who has it reads all of {}, for ever",
            to.display(),
            name.escape_debug(),
            store.display()
        ),
    };
    answer.tell(&report, format_args!("{words}"))
}

fn listed(sets: &[String]) -> String {
    sets.iter().map(|set| format!("'{}'", set.escape_debug())).collect::<Vec<_>>().join(", ")
}

/// Removes a put key.
pub(super) fn revoke(store: &Path, number: u32, answer: &Answer) -> Result<(), Failure> {
    let archive = open(store)?;
    remove_put_key(&archive, number)?;
    let report = json!({ "store": shown(store), "removed": number });
    answer.tell(&report, format_args!("put key {number} of {} is removed", store.display()))
}

/// Shows the role of the key, and all put keys.
pub(super) fn list(store: &Path, answer: &Answer) -> Result<(), Failure> {
    let archive = archive_at(store, NONE)?.open_to_read(READER_BYTES)?;
    let tables = archive.tables();
    let (Some(role), Some(roles)) = (archive.role(), &tables.roles) else {
        let why = format!("{}: the keys of this archive have no roles", store.display());
        return Err(Error::new(Kind::InvalidInput, why).into());
    };
    let role = match role {
        Role::Manage => "manage".to_owned(),
        Role::Read => "read".to_owned(),
        Role::Put(number) => format!("put, number {number}"),
    };
    let row = |(number, key): (&u32, &PutKey)| -> Value {
        json!({
            "number": number, "name": key.name, "sets": key.sets, "removed": key.is_removed,
            "refused_changes": key.refused,
        })
    };
    let rows: Vec<Value> = roles.keys.iter().map(row).collect();
    let words = |(number, key): (&u32, &PutKey)| {
        let removed = if key.is_removed { ", removed" } else { "" };
        let refused = match key.refused {
            0 => String::new(),
            n => format!("; {n} changes that it may not make were passed over"),
        };
        let (name, sets) = (key.name.escape_debug(), listed(&key.sets));
        format!("\n{number:>4}  {name}{removed}: adds to {sets}{refused}")
    };
    let lines: String = roles.keys.iter().map(words).collect();
    let strangers = match roles.refused {
        0 => String::new(),
        n => format!("\n{n} changes that nobody signed who is known were passed over"),
    };
    let report = json!({
        "store": shown(store), "role": role, "put_keys": rows,
        "unsigned_changes": roles.refused, "unproven_snapshots": roles.unproven.len(),
    });
    answer.tell(&report, format_args!("this key's role: {role}{lines}{strangers}"))
}
