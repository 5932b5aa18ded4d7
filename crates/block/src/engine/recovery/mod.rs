//! Opening a store, after a clean shutdown or a crash (ThinDedup II-B, with the rules that make it
//! safe).
//!
//! 1. *flush*: what is read from here on is on the medium. A superblock that is damaged is written
//!    anew, as the twin of the one that is not; *flush*.
//! 2. Superblock, zone list, the carriers in the listed zones, and the leftover table. Copies of
//!    list pages are brought level; *flush*, if one was written.
//! 3. Records up to the durable window are believed. A newer one is believed only if the block that
//!    it names hashes to its fingerprint; otherwise the mapping before it stands, whose block was
//!    never reused, since reuse needs a checkpoint that holds a newer record.
//! 4. Believed newer records are appended again, in their order, in windows of the next epoch;
//!    *flush*.
//! 5. *superblock* with the next epoch and the cut: nothing newer than the durable window is looked
//!    at again; *flush*; its twin; *flush*.
//! 6. The records stay in the active overlay; the store serves.
//!
//! | crash after | what is found |
//! |---|---|
//! | 1–3 | the same as before |
//! | 4 | the old superblock: carriers of the next epoch are ignored, and the old ones are all still there, since nothing they name is free |
//! | 5 | the new superblock: the appended windows are durable and complete |

mod append;
mod open;
mod scan;
mod space;
mod verify;
mod zone_list;

use std::sync::Arc;

use onefold_core::{Error, Kind, Result};

use self::{space::overlay_of, zone_list::newest_entries};
use super::{Engine, Snapshot, checkpoint::Reason, loss};
use crate::{
    coverage::Mark,
    format::{
        record::{Record, WindowNumber},
        superblock::{self, Cut},
        zone_list::Entry,
    },
    overlay::Overlay,
    settings::PlantedBug,
    window::Window,
};

pub(crate) use self::open::read_superblock;
pub(super) use self::scan::Found;

/// Records whose publishing takes longer than to start a thread for it.
const RECORDS_WORTH_A_THREAD: usize = 10_000;

impl Engine {
    /// Steps 2 to 6.
    pub(super) fn recover(&self) -> Result<()> {
        let snapshot = self.state.lock().snapshot.clone();
        let geometry = self.fixed.geometry;
        let pages = self.recover_zone_list()?;
        let told = pages.iter().map(|page| page.durable).max().unwrap_or_default();
        let oldest = snapshot.state.oldest_generation;
        let entries: Vec<Entry> = newest_entries(geometry, &pages)?
            .into_iter()
            .filter(|entry| entry.generation >= oldest)
            .collect();
        if self.in_place() {
            return self.recover_in_place(&snapshot, pages, &entries);
        }
        self.coverage.add(Mark::ZoneScanned, entries.len());
        let (void, mut carriers): (Vec<Found>, Vec<Found>) =
            self.scan(&entries, &snapshot.state)?.into_iter().partition(|found| found.void);
        // Whichever thread found them; their records are in order then.
        carriers.sort_by_key(|found| (found.header.window, found.header.position));

        self.coverage.add(Mark::VoidCarrier, void.len());
        let leftover = self.read_leftover(&snapshot.state)?;
        let mut known = snapshot.state.clone();
        if self.settings.has(PlantedBug::LeftoverVoid) {
            known.cuts.clear();
        }
        self.coverage
            .add(Mark::LeftoverRecord, usize::from(leftover.records(&known).next().is_some()));

        let committed = snapshot.state.committed;
        let told = told.max(leftover.durable(&known.cuts));
        let durable = carriers
            .iter()
            .map(|found| found.header.durable)
            .chain([told, snapshot.state.durable])
            .max()
            .unwrap_or_default();
        // Void carriers count here: those of a recovery that crashed bear the epoch that this one
        // will bring, so its windows must be others.
        let windows = carriers.iter().chain(&void).map(|found| found.header.window);
        let seen = windows
            .chain([durable, snapshot.state.last_window, leftover.seen()])
            .max()
            .unwrap_or_default();
        let lost = self.judge_missing(
            &mut carriers,
            &snapshot.state,
            durable,
            &leftover.carriers(&known.cuts, durable),
        )?;
        {
            let mut preparer = self.preparing.lock();
            leftover.hand_over(
                &known,
                durable,
                self.settings.accept_loss,
                &mut preparer.leftover,
            )?;
            let with_carriers = carriers
                .iter()
                .map(|found| found.header.window)
                .filter(|&window| window <= durable);
            preparer.carriers_through = with_carriers.max().unwrap_or_default();
        }

        let mut records: Vec<Record> =
            carriers.iter().flat_map(|found| found.records.iter().copied()).collect();
        let in_carriers = records.len();
        records.extend(
            leftover
                .records(&known)
                .filter(|record| !loss::among(&lost, WindowNumber::of(record.timestamp))),
        );
        self.note_in_index(records[in_carriers..].iter());
        records.sort_by_key(|record| record.timestamp);
        // Both places of a leftover page may hold a record.
        records.dedup_by_key(|record| record.timestamp);
        let newer = records.split_off(
            records.partition_point(|record| WindowNumber::of(record.timestamp) <= durable),
        );
        let verified = self.whole_story(&snapshot, &records, self.verify_newer(newer)?)?;
        let heard = verified.len();
        let mut verified = verify::newest_alone(verified);
        self.coverage.add(Mark::Superseded, heard - verified.len());
        if !lost.is_empty() {
            self.clip(&snapshot, &mut records, &mut verified)?;
        }

        // What is published, and which space is in use, have nothing to do with each other.
        let space =
            || self.recover_space(&snapshot, pages, entries, &carriers, &records, &verified);
        let (pins, overlay) = if records.len() < RECORDS_WORTH_A_THREAD {
            (space()?, overlay_of(&records, &verified))
        } else {
            std::thread::scope(|scope| {
                let overlay = scope.spawn(|| overlay_of(&records, &verified));
                Ok((
                    space()?,
                    overlay.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                ))
            })?
        };
        self.state.lock().active = Overlay { pins, ..overlay };
        self.adopt_changes(&snapshot, &records)?;
        {
            let mut state = self.state.lock();
            state.active.carriers = carriers.len() as u64;
            state.durable = seen.max(committed);
            state.acknowledged = state.durable;
            state.open = Window::new(seen.next());
        }
        let mut cuts = snapshot.state.cuts.clone();
        // Without carriers of this epoch, and no window beyond the durable one, there is nothing to
        // void.
        let of_this_epoch = carriers.iter().any(|found| found.header.epoch == snapshot.state.epoch);
        if (of_this_epoch || seen != durable) && !self.settings.has(PlantedBug::DroppedReturns) {
            cuts.push(Cut { epoch: snapshot.state.epoch, window: durable, resume: seen.next() });
        }
        // A crash before the end of that checkpoint leaves the superblock as it is, however often
        // it happens.
        if cuts.len() > self.settings.limits.cuts && !self.settings.has(PlantedBug::CutsUnlimited) {
            self.coverage.hit(Mark::CutsFull);
            return self.commit_recovered(&snapshot, &verified);
        }
        if !self.append_again(&verified)? {
            self.coverage.hit(Mark::NoRoomToAppend);
            return self.commit_recovered(&snapshot, &verified);
        }
        self.write_next_epoch(&snapshot, cuts)
    }

    /// Steps 4 and 5 when no block is left to append to, or the superblock has no room for another
    /// cut: a checkpoint takes the records, and its superblock is that of the next epoch.
    fn commit_recovered(&self, snapshot: &Snapshot, verified: &[Record]) -> Result<()> {
        let number = self.state.lock().open.number;
        let records: Vec<Record> = verified
            .iter()
            .zip(0..)
            .map(|(record, n)| Record { timestamp: number.timestamp(n), ..*record })
            .collect();
        self.publish_recovered(snapshot, &records)?;
        {
            let mut state = self.state.lock();
            state.open = Window::new(number.next());
            state.active.last = number;
            state.durable = number;
            state.acknowledged = number;
            state.epoch += 1;
        }
        self.checkpoint_to_end(Reason::Forced).map(|_| ())
    }

    /// Writes the superblock of the next epoch, and its twin, each with a flush.
    pub(crate) fn write_next_epoch(&self, snapshot: &Snapshot, cuts: Vec<Cut>) -> Result<()> {
        if cuts.len() > self.settings.limits.cuts {
            return Err(Error::new(Kind::Corrupt, "too many recoveries to remember"));
        }
        let (durable, last) = {
            let state = self.state.lock();
            (state.durable, WindowNumber(state.open.number.0 - 1))
        };
        let risen = Snapshot {
            state: superblock::State {
                sequence: snapshot.state.sequence + 2,
                epoch: snapshot.state.epoch + 1,
                clean: false,
                durable,
                last_window: last,
                cuts,
                ..snapshot.state.clone()
            },
            volumes: snapshot.volumes.clone(),
            discards: snapshot.discards.clone(),
        };
        for before in [1, 0] {
            self.write_superblock(&risen, before)?;
            self.disk.flush()?;
        }
        let mut state = self.state.lock();
        state.epoch = risen.state.epoch;
        state.snapshot = Arc::new(risen);
        Ok(())
    }
}
