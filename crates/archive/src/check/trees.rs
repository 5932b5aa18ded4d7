//! Trees of all snapshots, in a check.

use onefold_core::{Error, Fingerprint, Result};

use super::{Checking, Found, Progress};
use crate::{
    format::{
        Address,
        backup::Snapshot,
        damage::is_damage,
        tree_node::{TreeNode, TreeNodeRef},
    },
    operations_log::is_erased,
    tree::{Judged, TreeSource, Trees, untrue},
};

impl TreeSource for Checking {
    fn node(&mut self, at: &TreeNodeRef) -> Result<Option<(TreeNode, bool)>> {
        // A node that is noted as damaged may be readable, and then its children are looked at.
        let is_whole = self.found.has(at.address, &at.fingerprint)?;
        match self.trees.node(at) {
            Err(error) if is_damage(&error) => Ok(None),
            node => node.map(|node| Some((node, is_whole))),
        }
    }

    fn has(&mut self, at: Address, of: &Fingerprint) -> Result<bool> {
        self.found.has(at, of)
    }

    fn borders(&self) -> Result<u64> {
        self.trees.borders()
    }
}

impl Checking {
    /// Looks at the trees of all snapshots, listed and forgotten.
    pub(super) fn snapshots(&mut self, progress: &mut Progress<'_>) -> Result<()> {
        let tables = self.found.tables.clone();
        let (total, mut trees) = (tables.snapshots.len() as u64, Trees::default());
        let mut strict = Trees::default();
        for snapshot in tables.snapshots.values() {
            if is_erased(&self.found.archive, snapshot.domain) {
                self.found.report.erased.snapshots += 1;
                self.found.report.erased.domains.insert(snapshot.domain);
                continue;
            }
            self.trees.enter(snapshot)?;
            self.found.report.snapshots += 1;
            let name = format!("snapshot {} of set '{}'", snapshot.id, snapshot.set.escape_debug());
            if let Some(why) = self.is_untrue(&mut strict, snapshot)? {
                self.found.report.untrue(format!("{name}: {why}"));
                continue;
            }
            let looked = trees.look(self, snapshot.root).and_then(|mut known| {
                let Some(stats) = &snapshot.stats else { return Ok(known) };
                // Lost stat pages cost no content: the next backup reads the files again.
                let below = trees.look(self, stats.node)?;
                if below.lost == 0 {
                    below.is_stats(stats.levels)?;
                }
                let lost = known.lost.saturating_add(below.lost);
                known.lost = lost;
                Ok(known)
            });
            match looked {
                Ok(known) if known.lost == 0 => {
                    if let Err(why) = known.is_root_of(snapshot) {
                        self.found.report.problem(format!("{name}: {why}"));
                    }
                }
                Ok(Judged { lost, .. }) => {
                    self.found.report.hit_snapshots.insert(snapshot.id.to_string());
                    self.found.report.problem(format!("{name} lost {lost} chunks or pages"));
                }
                Err(error) if is_damage(&error) => {
                    self.found.report.hit_snapshots.insert(snapshot.id.to_string());
                    self.found.report.problem(format!("{name}: {error}"));
                }
                Err(error) => return Err(error),
            }
            progress("snapshots", self.found.report.snapshots, total);
        }
        Ok(())
    }

    /// Why a snapshot of a put key that manage has not looked through is not what it says; `None` for one that
    /// is, and for all others. What a put key says is no damage.
    fn is_untrue(&self, strict: &mut Trees, snapshot: &Snapshot) -> Result<Option<Error>> {
        let Found { archive, tables, container_reader, .. } = &self.found;
        let roles = tables.roles.as_ref();
        if roles.and_then(|roles| roles.unproven.maker(snapshot.id)).is_none() {
            return Ok(None);
        }
        untrue(archive, tables, container_reader, strict, snapshot)
    }
}
