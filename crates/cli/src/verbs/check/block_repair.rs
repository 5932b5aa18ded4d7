//! `onefold repair` of a block store: what follows with certainty from what is left is restored.

use std::{collections::BTreeMap, sync::Arc};

use onefold_backend::MonotonicClock;
use onefold_block::{
    MEMORY_MIN, Settings,
    check::{Repaired, look_with, repair_within},
};
use onefold_core::{BLOCK_BYTES, Disk, VolumeId};
use serde_json::json;

use super::report::{checked, counts, show};
use onefold::parts::store_file::StoreFile;
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::{Size, counted, grouped},
};

/// Repairs the store, and tells what was done and what is left.
pub(in crate::verbs) fn run(file: &StoreFile, memory: u64, answer: Answer) -> Result<(), Failure> {
    let shown = file.path().display();
    let keeper = file.claim()?;
    let disk = keeper.disk();
    let bar = Progress::new("repairing");
    let settings = Settings { keys: file.keys(), ..Settings::for_memory(MEMORY_MIN.max(memory)) };
    let repaired =
        repair_within(&disk, Arc::new(MonotonicClock::new()), &settings, memory, &mut |progress| {
            show(&bar, "repairing", &progress)
        });
    drop(bar);
    let repaired = repaired.map_err(|e| Failure::new(format!("{shown}: {e}")))?;
    let names = names(file, &disk);
    if answer.json {
        let volume =
            |id: VolumeId| names.get(&id).cloned().unwrap_or_else(|| format!("number {id}"));
        let lost: Vec<_> = repaired
            .lost
            .iter()
            .map(|&(id, lba, blocks)| {
                let block = BLOCK_BYTES as u64;
                json!({
                    "volume": volume(id), "offset": lba.0 * block, "bytes": blocks * block,
                })
            })
            .collect();
        output::json(&json!({
            "restored": repaired.restored, "lost": lost, "lost_addresses": repaired.lost_addresses,
            "left": repaired.left,
            "after": checked(&repaired.after),
        }))?;
    } else {
        tell(&repaired, &names);
    }
    let lost = repaired.lost_addresses > 0 || !repaired.lost_windows.is_empty();
    match (repaired.left.is_empty() && repaired.after.is_well(), lost) {
        (true, false) => {
            if !answer.json {
                output::line(format_args!("{shown} is well"));
            }
            Ok(())
        }
        (true, true) => Err(Failure::new(format!("{shown} is whole again, but data is lost"))),
        (false, _) => Err(Failure::new(format!(
            "{shown} is still damaged: {}",
            counted(repaired.left.len() as u64, "problem")
        ))),
    }
}

/// The volumes by their numbers, when the store can be opened by now.
fn names(file: &StoreFile, disk: &Arc<dyn Disk>) -> BTreeMap<VolumeId, String> {
    look_with(disk, &file.keys())
        .map(|engine| engine.volumes().into_iter().map(|(id, volume)| (id, volume.name)).collect())
        .unwrap_or_default()
}

fn tell(repaired: &Repaired, names: &BTreeMap<VolumeId, String>) {
    repaired.restored.iter().for_each(|what| output::line(format_args!("restored: {what}")));
    let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES as u64);
    let mut told = 0;
    for &(id, lba, blocks) in &repaired.lost {
        let volume = names
            .get(&id)
            .map_or_else(|| format!("number {id}"), |name| format!("'{}'", name.escape_debug()));
        output::line(format_args!(
            "lost: volume {volume}, {} at {}",
            Size(bytes(blocks)),
            bytes(lba.0)
        ));
        told += blocks;
    }
    if repaired.lost_addresses > told {
        output::line(format_args!("lost: {} more", Size(bytes(repaired.lost_addresses - told))));
    }
    if repaired.lost_addresses > 0 {
        output::line(format_args!(
            "note: lost blocks read as errors until a client writes them again ({} addresses)",
            grouped(repaired.lost_addresses)
        ));
    }
    repaired.left.iter().for_each(|what| output::line(format_args!("problem: {what}")));
    counts(&repaired.after);
}
