//! Quotas: a volume maps no more than its quota, and is refused nothing before it does.

use onefold_core::{BLOCK_BYTES, Error, Kind};
use onefold_testbed::content::ZEROES;

use super::client::Change;
use crate::{
    block::{
        engine::FAR,
        model::{Key, LEVELS_MAX},
        run::{Flow, Sim},
        subject::Subject,
    },
    checker::{Checker, Failure},
};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Whether a volume has reached its quota, which says so in its words.
pub(super) fn is_of_quota(error: &Error) -> bool {
    error.kind() == Kind::NoSpace && error.to_string().contains("quota")
}

impl<S: Subject> Sim<S> {
    /// The pages of a volume's map, at least and at most.
    pub(super) fn map_pages(&self, key: Key) -> (u64, u64) {
        self.model.map_pages(key, if self.params.options.near_ends { FAR } else { 0 })
    }

    /// The pages of maps that a quota does not charge, as decision 99 has it.
    pub(super) fn free_map_pages(&self, quota: u64) -> u64 {
        self.params.options.free_map_pages.unwrap_or(64) + quota / 64
    }

    /// A quota that clients reach soon, or have passed already, or none.
    pub(super) fn draw_quota(&mut self, key: Key) -> u64 {
        let pages = self.map_pages(key).0;
        let most = self.model.mapped(key).1 + pages.saturating_sub(self.free_map_pages(0));
        match self.rng.below(8) {
            0 => 0,
            1 => 1,
            2 => self.rng.within(1, most.max(1)),
            3 => most.max(1),
            _ => most + self.rng.within(1, 12),
        }
    }

    /// The blocks of a write to a volume with a quota that are certainly not mapped.
    pub(super) fn holes(&self, key: Key, offset: u64, change: Change<'_>) -> Vec<u64> {
        let Change::Write(data) = change else { return Vec::new() };
        if self.model.quota(key) == 0 {
            return Vec::new();
        }
        let end = offset + data.len() as u64;
        let all = offset / BLOCK..end.div_ceil(BLOCK);
        all.filter(|&lba| self.model.is_hole(key, lba)).collect()
    }

    /// A write was taken that began with `holes`: did it pass the quota?
    pub(super) fn within_quota(&self, key: Key, holes: &[u64]) -> Flow<()> {
        let (quota, mapped) = (self.model.quota(key), self.model.mapped(key).0);
        let leaves = self.map_pages(key).0;
        let least = mapped + leaves.saturating_sub(self.free_map_pages(quota));
        let filled = |&lba: &u64| !self.model.live(key, lba).contains(&ZEROES);
        if quota > 0 && least > quota && holes.iter().any(filled) {
            let what = format!(
                "a write was taken by which volume {key} has {mapped} blocks in {leaves} leaves of {quota}"
            );
            return Err(Failure::new(Checker::Quota, what).into());
        }
        Ok(())
    }

    /// A change was refused because of a quota: was it reached, and needed?
    pub(super) fn refused_by_quota(
        &mut self,
        key: Key,
        offset: u64,
        change: Change<'_>,
    ) -> Flow<()> {
        let fail = |what: String| Err(Failure::new(Checker::Quota, what).into());
        let Change::Write(data) = change else {
            return fail(format!("a quota refuses what needs no block: {change:?}"));
        };
        let (first, end) = (offset / BLOCK, (offset + data.len() as u64).div_ceil(BLOCK));
        self.read(key, &[(first, end - first)])?;
        let (quota, mapped) = (self.model.quota(key), self.model.mapped(key).1);
        // The refused block may need a page on each level, and one more where the map grows taller.
        let pages = self.map_pages(key).1 + 2 * LEVELS_MAX;
        let most = mapped + pages.saturating_sub(self.free_map_pages(quota));
        if most < quota || quota == 0 {
            return fail(format!(
                "volume {key} has {mapped} blocks in {pages} pages of {quota}, and refuses a write"
            ));
        }
        let needs = |lba: u64| {
            let (from, to) =
                ((lba * BLOCK).max(offset), ((lba + 1) * BLOCK).min(offset + data.len() as u64));
            let part = &data[(from - offset) as usize..(to - offset) as usize];
            // A block that is lost is not mapped.
            let is_open =
                self.model.live(key, lba).contains(&ZEROES) || self.model.may_be_lost(key, lba);
            is_open && part.iter().any(|&byte| byte != 0)
        };
        if !(first..end).any(needs) {
            return fail(format!(
                "volume {key} refuses what it has mapped, blocks {first} to {end}"
            ));
        }
        self.reach.hit("quota: a write refused");
        if mapped < quota {
            self.reach.hit("quota: a write refused for the pages of the map");
        }
        Ok(())
    }

    /// After idle work the store counts as many mapped blocks as the model.
    pub(crate) fn count_mapped(&self) -> Flow<()> {
        let Some(store) = self.store.as_ref().filter(|_| self.params.options.quotas) else {
            return Ok(());
        };
        for (&key, volume) in self.model.volumes().iter().filter(|(_, one)| one.of.is_none()) {
            let (least, most) = self.model.mapped(key);
            let (_, Some(mapped)) = store.quota(volume.id) else { continue };
            // A map that could not be read when it was counted counts as full.
            let unread = self.disk.damage() > 0 || self.disk.read_faults() > 0;
            let (leaves, pages) = self.map_pages(key);
            let found = store.map_pages(volume.id).filter(|_| !unread);
            if let Some(found) = found.filter(|found| !(leaves..=pages).contains(found)) {
                let what = format!(
                    "the map of volume {key} is said to have {found} pages, and has {leaves} to {pages}"
                );
                return Err(Failure::new(Checker::Quota, what).into());
            }
            let most = if unread { volume.blocks } else { most };
            if !(least..=most).contains(&mapped) {
                let what = format!(
                    "volume {key} is said to map {mapped} blocks, and maps {least} to {most}"
                );
                return Err(Failure::new(Checker::Quota, what).into());
            }
        }
        Ok(())
    }
}
