//! `onefold key rotate --data` of a block store.

use std::{path::Path, sync::Arc};

use onefold_backend::MonotonicClock;
use onefold_block::{DomainListed, Settings, StillOlder, finish_data_key, rotate_data_key};
use onefold_core::{Disk, Error, Kind, Result};
use serde_json::json;

use crate::verbs::domain::block::domains;
use onefold::parts::store_file::StoreFile;
use onefold_console::{failure::Failure, output::Answer, size::counted};

/// Memory for writing again what is under an older key: by the index in it what is stored under the new key is
/// found.
const MEMORY: u64 = 256 << 20;

/// The domains of a block store that have two data keys.
pub(super) fn older(file: &StoreFile) -> Result<Vec<DomainListed>> {
    Ok(domains(file)?.into_iter().filter(|one| one.has_older).collect())
}

/// A domain with two data keys, for lists.
pub(super) fn older_words(store: &Path, one: &DomainListed) -> String {
    format!(
        "domain {} has two data keys; onefold key rotate {} --data --finish ends that",
        one.number,
        store.display()
    )
}

/// Gives a domain another data key, or ends that.
pub(super) fn rotate(
    store: &Path,
    file: &StoreFile,
    (domain, finish): (Option<&str>, bool),
    answer: &Answer,
) -> std::result::Result<(), Failure> {
    let in_store = |error: Error| error.context(store.display());
    // A name that is not there changes nothing.
    let all = domains(file).map_err(in_store)?;
    let called = |one: &&DomainListed| match domain {
        Some(name) => !name.is_empty() && one.name.as_deref() == Some(name),
        None => one.number == 0,
    };
    let found = all.iter().find(called).ok_or_else(|| {
        let name = domain.unwrap_or_default().escape_debug();
        let why = format!("there is no domain '{name}'; onefold domain list shows all");
        in_store(Error::new(Kind::NotFound, why))
    })?;
    let number = found.number;
    let keeper = file.claim()?;
    let disk: Arc<dyn Disk> = keeper.disk();
    let clock = Arc::new(MonotonicClock::new());
    let settings = Settings { keys: file.keys(), ..Settings::for_memory(MEMORY) };
    let which =
        domain.map_or_else(String::new, |name| format!("domain '{}' of ", name.escape_debug()));
    let shown = store.display().to_string();
    if !finish {
        let generation = rotate_data_key(&disk, clock, &settings, number).map_err(in_store)?;
        let others = match file.key_area()?.slots().count().saturating_sub(1) as u64 {
            0 => String::new(),
            others => format!(
                ". {} can open the new one, too: `onefold key rotate --drop-others` comes first when one of them is in \
                 wrong hands",
                counted(others, "other slot")
            ),
        };
        let words = format_args!(
            "{which}{} has a new data key; what is under the older one is written again while the store is \
             served, and by `onefold key rotate {} --data --finish`, which erases that key. Copies of the keys \
             from before do not have the new one: make new ones{others}",
            store.display(),
            store.display()
        );
        let report = json!({
            "store": shown, "domain": number, "name": domain, "generation": generation,
        });
        return answer.tell(&report, words);
    }
    if let Some(left) = finish_data_key(&disk, clock, &settings, number).map_err(in_store)? {
        let kept = kept_by(&left).join("; ");
        return Err(Failure::new(format!("{}: the older data key stays: {kept}", store.display())));
    }
    let words = format_args!(
        "{which}{} has one data key: nothing is under the older one, which is erased, and what is free was overwritten",
        store.display()
    );
    let report = json!({
        "store": shown, "domain": number, "name": domain, "generation": found.generation, "finished": true,
    });
    answer.tell(&report, words)
}

/// What keeps an older data key, a clause each.
fn kept_by(left: &StillOlder) -> Vec<String> {
    let StillOlder { leaves, receiving, leaving, hindered } = *left;
    let mut kept = Vec::new();
    if leaves > receiving {
        let parts = counted(leaves - receiving, "part");
        kept.push(format!("{parts} of volumes and snapshots may need it"));
    }
    if receiving > 0 {
        let parts = counted(receiving, "part");
        kept.push(format!(
            "{parts} are of what is being received: let that end, or delete it (`onefold snapshot list` shows it)"
        ));
    }
    if leaving > 0 || hindered.by_leftovers {
        kept.push(
            "what was deleted is not taken apart yet: serve the store for a while, or repair what `onefold check` finds"
                .to_owned(),
        );
    }
    let told = [
        (hindered.by_damage, "something is damaged: `onefold scrub` and `onefold check` name it"),
        (
            hindered.by_versions,
            "more than 4,096 snapshots and clones have a part of a volume each in their own version: delete some",
        ),
        (hindered.by_room, "the store has no room for copies: make it larger, or delete something"),
        (hindered.by_trims, "trims are not done yet: serve the store for a while"),
        (
            hindered.by_counts,
            "a page of something deleted could not be read, and blocks that nobody names are held for used: \
             `onefold repair` counts them anew",
        ),
    ];
    kept.extend(told.iter().filter(|(is_so, _)| *is_so).map(|(_, words)| (*words).to_owned()));
    kept
}
