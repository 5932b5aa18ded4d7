//! Which records that are newer than the durable window count, and what they mean without the rest of theirs.

use std::collections::BTreeSet;

use onefold_core::{Block, Error, Fingerprint, Kind, Lba, Pba, Read, Result, VolumeId};

use super::scan::SCAN_BLOCKS;
use crate::{
    engine::{Engine, Snapshot, catalogue::apply_catalogue},
    format::{
        carrier::Carrier,
        catalogue::{CatalogueChange, VOLUME_BLOCKS_MAX},
        record::{Change, Record, WindowNumber},
    },
    settings::PlantedBug,
    window::ranges::{Ranges, Span},
};

impl Engine {
    /// What the believed records mean when parts of their windows are missing: records of volumes that were never made, or of addresses that
    /// they never got, go; and a volume that shrank or went takes its blocks along although the range that says so may be lost.
    pub(super) fn whole_story(&self, snapshot: &Snapshot, durable: &[Record], believed: Vec<Record>) -> Result<Vec<Record>> {
        let mut volumes = snapshot.volumes.clone();
        for record in durable {
            if let Change::Catalogue { pba, fingerprint } = record.change {
                apply_catalogue(&mut volumes, &[self.read_change(pba, &fingerprint)?]);
            }
        }
        let mut story = Vec::with_capacity(believed.len());
        for record in believed {
            let Change::Catalogue { pba, fingerprint } = record.change else {
                let room = volumes.get(&record.volume).map_or(0, |volume| volume.blocks.saturating_sub(record.lba.0));
                let change = match record.change {
                    Change::Range { blocks, keep } => Change::Range { blocks: blocks.min(room), keep },
                    change => change,
                };
                if room > 0 {
                    story.push(Record { change, ..record });
                }
                continue;
            };
            let change = self.read_change(pba, &fingerprint)?;
            let end = match &change {
                CatalogueChange::Create { .. } => None,
                CatalogueChange::Rename { id, .. } => volumes.get(id).map(|_| (*id, VOLUME_BLOCKS_MAX)),
                CatalogueChange::Resize { id, blocks } => volumes.get(id).map(|_| (*id, *blocks)),
                CatalogueChange::Delete { id } => volumes.get(id).map(|_| (*id, 0)),
            };
            if end.is_none() && !matches!(change, CatalogueChange::Create { .. }) {
                continue;
            }
            story.push(record);
            if let Some((volume, end)) = end.filter(|&(_, end)| end < VOLUME_BLOCKS_MAX) {
                let change = Change::Range { blocks: VOLUME_BLOCKS_MAX - end, keep: false };
                story.push(Record { volume, lba: Lba(end), change, ..record });
            }
            apply_catalogue(&mut volumes, &[change]);
        }
        Ok(story)
    }

    /// The newer records whose block is there: it hashes to their fingerprint. Ranges are believed with their carrier.
    pub(super) fn believe(&self, newer: Vec<Record>) -> Result<Vec<Record>> {
        if self.settings.has(PlantedBug::BelievedUnseen) {
            return Ok(newer);
        }
        let blocks = self.fixed.geometry.blocks();
        let mut believed = Vec::with_capacity(newer.len());
        for batch in newer.chunks(SCAN_BLOCKS) {
            let named: Vec<(usize, Pba, bool, Fingerprint)> = batch
                .iter()
                .enumerate()
                .filter_map(|(n, record)| match record.change {
                    Change::Block { pba, carried, fingerprint } => Some((n, pba, carried, fingerprint)),
                    Change::Catalogue { pba, fingerprint } => Some((n, pba, true, fingerprint)),
                    Change::Range { .. } => None,
                })
                .filter(|&(_, pba, ..)| pba.0 < blocks)
                .collect();
            let mut buffer = Block::zeroed_vec(named.len());
            let mut reads: Vec<Read<'_>> = named.iter().zip(buffer.chunks_mut(1)).map(|(named, into)| Read::new(named.1, into)).collect();
            self.disk.read(&mut reads);
            let mut good: BTreeSet<usize> = (0..batch.len()).filter(|&n| matches!(batch[n].change, Change::Range { .. })).collect();
            reads.into_iter().try_for_each(|read| read.result.map_err(|e| e.context("recovery")))?;
            for (&(n, pba, carried, fingerprint), block) in named.iter().zip(&buffer) {
                if self.hashes_to(block, pba, carried, &fingerprint) {
                    good.insert(n);
                }
            }
            believed.extend(good.into_iter().map(|n| batch[n]));
        }
        Ok(believed)
    }

    fn hashes_to(&self, raw: &Block, pba: Pba, carried: bool, fingerprint: &Fingerprint) -> bool {
        if !carried {
            return self.identity.fingerprinter.one(raw) == *fingerprint;
        }
        let mut expanded = Block::zeroed();
        Carrier::proven(&self.identity, raw, pba)
            .is_some_and(|carrier| carrier.expand(&mut expanded).is_ok() && self.identity.fingerprinter.one(&expanded) == *fingerprint)
    }

    pub(in crate::engine) fn read_change(&self, pba: Pba, fingerprint: &Fingerprint) -> Result<CatalogueChange> {
        let mut buffer = Block::zeroed_vec(1);
        let mut read = [Read::new(pba, &mut buffer)];
        self.disk.read(&mut read);
        let [read] = read;
        read.result?;
        let mut content = Block::zeroed();
        let carrier = Carrier::proven(&self.identity, &buffer[0], pba)
            .ok_or_else(|| Error::new(Kind::Corrupt, format!("the carrier at block {pba}, which changes the catalogue, is damaged")))?;
        carrier.expand(&mut content)?;
        if self.identity.fingerprinter.one(&content) != *fingerprint {
            return Err(Error::new(Kind::Corrupt, format!("the change of the catalogue at block {pba} is damaged")));
        }
        CatalogueChange::decode(&content)
    }
}

/// The records without those that later ones supersede, so that they can share windows: in a window blocks are newer than ranges.
pub(super) fn newest_alone(records: Vec<Record>) -> Vec<Record> {
    let mut written: BTreeSet<(VolumeId, Lba)> = BTreeSet::new();
    let mut dropped = Ranges::default();
    let mut kept: Vec<Record> = Vec::with_capacity(records.len());
    for record in records.into_iter().rev() {
        let keep = match record.change {
            Change::Block { .. } => dropped.get(record.volume, record.lba.0).is_none() && written.insert((record.volume, record.lba)),
            Change::Range { blocks, keep } => {
                let span = Span { end: record.lba.0 + blocks, keep, window: WindowNumber(0) };
                dropped.insert(record.volume, record.lba.0, span);
                true
            }
            Change::Catalogue { .. } => true,
        };
        if keep {
            kept.push(record);
        }
    }
    kept.reverse();
    kept.sort_by_key(|record| match record.change {
        Change::Catalogue { .. } => 0,
        Change::Range { .. } => 1,
        Change::Block { .. } => 2,
    });
    kept
}
