//! Nodes go, come back, rot, and are replaced or mended.

use std::sync::Arc;

use onefold_archive::{
    Absent, Archive, Nodes, Replacement, repair_units as repair, replace_nodes as replace,
};
use onefold_core::Files;
use onefold_testbed::files::Mount;

use crate::{
    archive::run::{Actors, Flow, Sim, Stop},
    checker::{Checker, Failure},
};

impl Sim {
    /// A node goes, comes back, rots, is replaced or mended.
    pub(crate) fn node_move(&mut self) -> Flow {
        let Some((count, n, k)) = self.params.spread else { return Ok(()) };
        if self.bad.is_empty() && self.rng.percent(15) {
            return self.too_many(n - k);
        }
        let good: Vec<usize> = (0..count).filter(|node| !self.bad.contains(node)).collect();
        if self.bad.len() < n - k && self.rng.percent(60) {
            let Some(&node) = self.rng.pick(&good) else { return Ok(()) };
            if self.rng.percent(20) {
                self.say(|| format!("an empty directory is in place of node {node}"));
                self.reach.hit("an empty mount point");
                self.mounted += 1;
                self.mounts[node] = Mount::new(&self.files, &format!("e{}", self.mounted));
                self.bad.insert(node);
            } else if self.rng.percent(70) {
                self.say(|| format!("node {node} is gone"));
                self.reach.hit("a node was lost");
                self.mounts[node].set_gone(true);
                self.bad.insert(node);
            } else {
                let prefix = format!("{}segment-", self.mounts[node].prefix());
                let rotten =
                    (0..self.rng.within(1, 20)).filter(|_| self.files.rot(&prefix)).count();
                if rotten > 0 {
                    self.say(|| format!("node {node} rots in {rotten} places"));
                    self.rotten.insert(node);
                    self.bad.insert(node);
                }
            }
            return Ok(());
        }
        // What is damaged stays so until the life ends.
        let bad: Vec<usize> =
            self.bad.iter().copied().filter(|node| self.ill != Some(*node)).collect();
        match self.rng.pick(&bad) {
            Some(&node) => self.repair_node(node),
            None => Ok(()),
        }
    }

    /// More nodes go than may be lost: nothing is changed then, and nothing is forgotten when they
    /// come back.
    pub(crate) fn too_many(&mut self, parity: usize) -> Flow {
        self.actors = Actors::default();
        let mut copies: Vec<usize> = (0..=2 * parity).collect();
        while copies.len() > parity {
            let n = self.rng.below(copies.len() as u64) as usize;
            copies.swap_remove(n);
        }
        let names: Vec<String> = self.streams.keys().cloned().collect();
        let (Some(name), false) = (self.rng.pick(&names).cloned(), copies.is_empty()) else {
            return Ok(());
        };
        let set_gone = |sim: &Sim, gone: &dyn Fn(usize) -> bool| {
            (0..=2 * parity).for_each(|node| sim.mounts[node].set_gone(gone(node)))
        };
        set_gone(self, &|node| !copies.contains(&node));
        let removed = {
            let mounts = self
                .mounts
                .iter()
                .map(|mount| Some(Arc::new(mount.clone()) as Arc<dyn Files>))
                .collect();
            let nodes = Nodes::open_with(mounts, false, &self.settings());
            nodes
                .and_then(|nodes| Archive::open_on_nodes(Arc::new(nodes), true, self.settings()))
                .and_then(|archive| archive.remove(&name))
        };
        self.reach.hit("too many nodes were lost");
        if removed.is_ok() {
            self.streams.remove(&name);
        }
        set_gone(self, &|node| copies.contains(&node));
        let others = if removed.is_ok() { self.look_at_names() } else { Ok(()) };
        set_gone(self, &|_| false);
        if self.files.is_down() { Err(Stop::Down) } else { others }
    }

    /// Brings a bad node back, replaces it, or mends it.
    pub(crate) fn repair_node(&mut self, node: usize) -> Flow {
        // Filling waits for puts and collections, which here are of the same thread. Processes that
        // saw a node fail leave it out.
        if self.actors.putting.is_some() || self.actors.collection.is_some() {
            return Ok(());
        }
        self.actors = Actors::default();
        if self.mounts[node].is_gone() && self.rng.percent(60) {
            self.mounts[node].set_gone(false);
        }
        let (archive, nodes) = self.open_nodes(true)?;
        let Some(nodes) = nodes else { return Ok(()) };
        let count = self.mounted;
        if let Some((_, why)) = nodes.absent().into_iter().find(|(absent, _)| *absent == node) {
            self.say(|| format!("node {node} is replaced: {why}"));
            self.reach.hit(if why == Absent::Outdated {
                "a node that came back was outdated"
            } else {
                "a node was replaced"
            });
            let to = self
                .filling
                .entry(node)
                .or_insert_with(|| Mount::new(&self.files, &format!("r{count}")))
                .clone();
            self.mounted += 1;
            let replacement = Replacement {
                number: node,
                files: Arc::new(to.clone()),
                id: [100 + count as u8; 16],
            };
            match replace(&archive, &nodes, &replacement, &mut |_, _| {}) {
                Ok(_) => {
                    self.mounts[node] = to;
                    self.filling.remove(&node);
                    self.rotten.remove(&node);
                    self.bad.remove(&node);
                    self.actors.admin = None;
                }
                Err(error) => return Err(self.judge("replace", &error)),
            }
            return Ok(());
        }
        match repair(&archive, &nodes, true, &mut |_, _| {}) {
            Ok(done) if done.lost_containers == 0 => {
                if done.units.repaired_units > 0 {
                    self.reach.hit("rot was mended");
                }
                if done.units.bad_units > 0 && self.rotten.is_empty() && self.bad.len() == 1 {
                    let message =
                        format!("node {node} counts, and lacks {} units", done.units.bad_units);
                    return Err(Failure::new(Checker::DurableSurvives, message).into());
                }
                if !self.mounts[node].is_gone() {
                    self.rotten.remove(&node);
                    self.bad.remove(&node);
                }
                Ok(())
            }
            Ok(done) => Err(Failure::new(Checker::DurableSurvives, format!("{done:?}")).into()),
            Err(error) => Err(self.judge("repair", &error)),
        }
    }
}
