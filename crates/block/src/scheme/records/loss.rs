//! Durable windows whose records are missing: the medium lost them, for a crash can't.
//!
//! Opening such a store would silently bring back what its addresses held before, so it is refused.
//! A repair may accept the loss (`Settings::accept_loss`): the windows are void as a whole, since
//! half of one could delete a volume and keep its blocks.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Error, Kind, Result};

use super::{scan::Found, verify::read_change};
use crate::{
    format::{
        record::{Change, Record, WindowNumber},
        superblock::{Leftover, State},
    },
    kernel::{Kernel, WindowRange, apply_catalogue},
    overlay::Tables,
};

/// Every carrier of every durable window that no checkpoint holds must be there. Returns the
/// windows that are not complete, when losing them is accepted; their carriers are dropped.
pub(super) fn judge_missing(
    kernel: &Kernel,
    carriers: &mut Vec<Found>,
    state: &State,
    durable: WindowNumber,
    told: &BTreeSet<WindowNumber>,
) -> Result<Vec<WindowRange>> {
    let missing = missing(
        carriers,
        state,
        durable,
        (kernel.fixed.leftover == Leftover::Table).then_some(told),
    );
    let Some(&(first, last)) = missing.first() else { return Ok(missing) };
    if !kernel.settings.accept_loss {
        let which = if first == last {
            format!("window {first}")
        } else {
            format!("windows {first} to {last}")
        };
        let message = format!(
            "the records of {which}, durable before, are missing or damaged: the medium lost them; \
             `onefold repair` opens the store without them"
        );
        return Err(Error::new(Kind::Corrupt, message));
    }
    carriers.retain(|found| !among(&missing, found.header.window));
    kernel.lost.lock().extend(missing.iter().copied());
    Ok(missing)
}

/// Drops records that make no sense without the lost ones: of volumes that were never made, or
/// beyond their end.
pub(crate) fn clip(
    kernel: &Kernel,
    tables: &Tables,
    records: &mut Vec<Record>,
    verified: &mut Vec<Record>,
) -> Result<()> {
    let mut volumes = tables.volumes.clone();
    for record in records.iter().chain(&*verified) {
        if let Change::Catalogue { pba, fingerprint } = record.change {
            apply_catalogue(&mut volumes, &[read_change(kernel, pba, &fingerprint)?]);
        }
    }
    let makes_sense = |record: &Record| match record.change {
        Change::Block { .. } => {
            volumes.get(&record.volume).is_some_and(|volume| record.lba.0 < volume.blocks)
        }
        Change::Range { .. } => volumes.contains_key(&record.volume),
        Change::Catalogue { .. } => true,
    };
    records.retain(makes_sense);
    verified.retain(makes_sense);
    Ok(())
}

/// True when a window is one of these.
pub(super) fn among(windows: &[WindowRange], window: WindowNumber) -> bool {
    windows.iter().any(|&(first, last)| (first..=last).contains(&window))
}

/// The durable windows of which carriers are missing. `told` are windows that have carriers, as the
/// leftover table says: with it a window may have none, so that only those are missed that
/// something names: the table, or the next window with carriers.
fn missing(
    carriers: &[Found],
    state: &State,
    durable: WindowNumber,
    told: Option<&BTreeSet<WindowNumber>>,
) -> Vec<WindowRange> {
    struct Seen {
        carriers: u16,
        positions: BTreeSet<u16>,
        before: WindowNumber,
    }
    let mut windows: BTreeMap<WindowNumber, Seen> = BTreeMap::new();
    for Found { header, .. } in carriers {
        let seen = windows.entry(header.window);
        let seen = seen.or_insert(Seen {
            carriers: header.carriers,
            positions: BTreeSet::new(),
            before: header.before,
        });
        seen.carriers = header.carriers;
        seen.positions.insert(header.position);
    }
    let whole = |seen: &Seen| seen.positions.len() == usize::from(seen.carriers);
    if let Some(told) = told {
        let named = windows
            .values()
            .map(|seen| seen.before)
            .chain(told.iter().copied())
            .chain(windows.keys().copied());
        let missing: BTreeSet<WindowNumber> = named
            .filter(|window| {
                (state.committed.next()..=durable).contains(window)
                    && !windows.get(window).is_some_and(whole)
            })
            .collect();
        return missing.into_iter().map(|window| (window, window)).collect();
    }
    windows.retain(|_, seen| whole(seen));
    // Windows between a cut and the epoch after it were void.
    let mut expected = Vec::new();
    let mut from = state.committed.next();
    for cut in &state.cuts {
        expected.push((from, cut.window));
        from = from.max(cut.resume);
    }
    expected.push((from, durable));
    let mut missing = Vec::new();
    for (mut from, to) in expected.into_iter().filter(|&(from, to)| from <= to) {
        for &complete in windows.range(from..=to).map(|(window, _)| window) {
            if from < complete {
                missing.push((from, WindowNumber(complete.0 - 1)));
            }
            from = complete.next();
        }
        if from <= to {
            missing.push((from, to));
        }
    }
    missing
}
