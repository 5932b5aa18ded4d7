//! The medium damages what it holds: bits flip, sectors can't be read, writes are lost or land
//! elsewhere.
//!
//! The simulated medium knows its damaged bytes one by one, and they are put right at the end of a
//! life: afterwards nothing may be missing. Until then all that does not depend on damaged bytes
//! must be as it was, and an error must name what is damaged.

use onefold_archive::{FoundLabel, Label};
use onefold_core::{Error, Files, Kind};
use onefold_testbed::files::{Layout, Wrong};

use crate::{
    archive::{
        actors::index_disk::NAME,
        model::{Disks, Known, Unsure},
        params::Medium,
        run::{Actors, Sim, Stop},
    },
    checker::{Checker, Failure},
};

/// Parts without a second copy, and what an error calls them: the log; the first snapshot, which
/// has none before it; and counts, which are made anew when they are damaged before a collection
/// begins.
const SINGLE: [(&str, &str); 4] = [
    ("log-", "operations log"),
    ("snapshot-", "snapshot 1:"),
    ("snapshot-", "snapshot-0000000001"),
    ("counts-", "usage counts"),
];

/// The beginnings of the names of files that hold no data of streams.
const METADATA: [&str; 8] =
    ["label", "snapshot-", "log-", INDEX, "counts-", "maps", "vouched", "tables"];

/// The beginning of the names of the files of the chunk index.
const INDEX: &str = "index-";

/// How many of them an archive has whose tables have no leaves.
const WITHOUT_LEAVES: usize = METADATA.len() - 1;

/// Bytes of one of the two places of a label.
const PLACE_BYTES: usize = 4096;

/// What the medium knows of an archive's files.
pub(crate) const LAYOUT: Layout = Layout { metadata: &METADATA, twice: "label" };

impl Sim {
    /// A file of metadata is damaged, now or with a write to come.
    pub(crate) fn damage_metadata(&mut self) {
        let medium = self.params.medium;
        let Some(prefix) = self.next_damaged_file() else { return };
        let wrong = match medium {
            Medium::Rot | Medium::Unreadable => None,
            Medium::LostWrites => Some(Wrong::Lost),
            Medium::MisdirectedWrites => Some(Wrong::Misdirected),
            Medium::Good | Medium::FailedSyncs => return,
        };
        // Damage of the log's end is noticed by what is vouched for, once that is on the medium.
        self.files.write_through("vouched");
        self.label_was_torn &= self.label_is_torn();
        match wrong {
            Some(how) => self.files.arm_wrong_write(how, &prefix, self.faults.below(4)),
            None if self.files.damage(&prefix, medium == Medium::Unreadable, &mut self.faults) => {}
            None => return,
        }
        self.say(|| format!("{medium:?} of {prefix}"));
    }

    /// The beginning of the name of the file to be damaged; of several nodes a good one, as long as
    /// so many may be bad, with a copy of the metadata. It counts as bad from then on.
    fn next_damaged_file(&mut self) -> Option<String> {
        let Some((_, n, k)) = self.params.spread else {
            if self.hits_label() {
                return Some("label".to_owned());
            }
            let file = self.faults.below(WITHOUT_LEAVES as u64) as usize;
            let file = self.or_leaves(METADATA[file]);
            let elsewhere = self.params.index_disk && file == INDEX;
            return Some(if elsewhere { format!("{NAME}/{file}") } else { file.to_owned() });
        };
        if !self.params.medium.damages() || self.bad.len() >= n - k {
            return None;
        }
        let copies: Vec<usize> =
            (0..=2 * (n - k)).filter(|node| !self.bad.contains(node)).collect();
        let node = *self.faults.pick(&copies)?;
        let file = self.faults.below(WITHOUT_LEAVES as u64 + 1) as usize;
        let file = if file == WITHOUT_LEAVES { "node" } else { METADATA[file] };
        let file = self.or_leaves(file);
        self.bad.insert(node);
        self.ill = Some(node);
        Some(format!("{}{file}", self.mounts[node].prefix()))
    }

    /// Two times in five the leaves of tables, where the archive has them.
    fn or_leaves(&mut self, other: &'static str) -> &'static str {
        if self.upgraded.kinds.leaves && self.faults.percent(40) { "tables" } else { other }
    }

    /// True for an error that names damage of which there is no second copy.
    pub(crate) fn is_told(&self, error: &Error) -> bool {
        if !matches!(error.kind(), Kind::Corrupt | Kind::Io) || self.files.is_down() {
            return false;
        }
        let met = self.files.met();
        let message = error.to_string();
        let is_met = |prefix: &str| met.iter().any(|name| name.starts_with(prefix));
        let single = SINGLE.iter().any(|(prefix, called)| is_met(prefix) && message.contains(called))
            // A sector that can't be read is named by its file. Counts that were there when a collection began may go bad under it.
            || ["log-", "counts-"].iter().any(|file| is_met(file) && message.contains(file));
        // One write that lands elsewhere damages two places at once.
        let both = self.params.medium == Medium::MisdirectedWrites
            && (is_met("snapshot-") && message.contains("snapshot")
                || self.files.damaged_pages("maps") > 1 && message.contains("lost the page")
                || self.files.damaged_pages("tables") > 1 && message.contains("both copies"));
        single
            || both
            || (message.contains("both places of the label")
                && (self.files.damaged_pages("label") > 1
                    || self.label_was_torn && self.files.damaged_pages("label") == 1))
    }

    /// True when one of the places of a label is not whole. A power failure may leave one so; the
    /// first process that changes the archive then writes the label anew.
    pub(crate) fn label_is_torn(&self) -> bool {
        let mut bytes = vec![0; 2 * PLACE_BYTES];
        let read = self.files.open("label").and_then(|file| file.read_at(0, &mut bytes));
        let is_whole = |place| matches!(Label::decode(place), FoundLabel::Good(_));
        read.is_ok() && !bytes.chunks(PLACE_BYTES).all(is_whole)
    }

    /// After a crash, on a medium that is damaged: what is there is right, and what is not is
    /// named. Then the damage is put right.
    pub(crate) fn look_at_damage(
        &mut self,
        (unsure, known, disks): (Option<Unsure>, Known, Disks),
    ) -> Result<(), Failure> {
        if !self.params.medium.damages() {
            return Ok(());
        }
        if self.files.is_hurt() {
            self.reach.hit("a damaged archive was looked at");
        }
        let looked = self.look();
        if self.shows_no_change_since(&known) {
            // The medium, once put right, may still show the change that was under way.
            self.unsure = unsure;
        }
        match looked {
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::Down) if !self.refused => {
                return Err(Failure::new(Checker::Progress, "it does not open"));
            }
            Ok(()) if self.files.is_hurt() => self.reach.hit("damage of metadata cost nothing"),
            _ => {}
        }
        if self.files.is_hurt() {
            self.expect_later_versions(&disks);
        }
        self.actors = Actors::default();
        self.files.mend();
        self.ill = None;
        self.refused = false;
        Ok(())
    }

    /// The medium, once put right, may show unflushed writes that damage of the log hid: each block
    /// may have the version that was found, or a later one of those that it had before.
    fn expect_later_versions(&mut self, before: &Disks) {
        for (name, disk) in &mut self.disks {
            let Some(was) = before.get(name) else { continue };
            for (cell, was) in disk.cells.iter_mut().zip(&was.cells) {
                // With several versions nobody found out which one it has.
                let [(found, _)] = cell[..] else { continue };
                if let Some(from) = was.iter().position(|version| version.0 == found) {
                    *cell = was[from..].to_vec();
                }
            }
        }
    }
}
