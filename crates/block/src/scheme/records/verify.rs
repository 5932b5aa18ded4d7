//! Which records that are newer than the durable window count, and what they mean without the rest
//! of theirs.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Block, Error, Fingerprint, Kind, Lba, Pba, Read, Result, VolumeId};

use crate::{
    coverage::Mark,
    format::{
        FIRST_DOMAIN,
        carrier::Carrier,
        catalogue::{CatalogueChange, VOLUME_BLOCKS_MAX, Volume},
        record::{Change, Record, WindowNumber},
    },
    kernel::{Kernel, apply_catalogue},
    overlay::Tables,
    rules::Rule,
    window::ranges::{Ranges, Span},
};

/// Blocks that are read and hashed together.
const BLOCKS: usize = 2048;

/// A block that a record names.
struct Named {
    /// The record.
    n: usize,
    pba: Pba,
    carried: bool,
    fingerprint: Fingerprint,
    /// The domain of its volume.
    domain: u32,
}

impl Named {
    fn of(n: usize, record: &Record, domains: &Domains) -> Option<Named> {
        match record.change {
            Change::Block { pba, carried, fingerprint } => {
                Some(Named { n, pba, carried, fingerprint, domain: domains.of(record.volume) })
            }
            Change::Catalogue { pba, fingerprint } => {
                Some(Named { n, pba, carried: true, fingerprint, domain: FIRST_DOMAIN })
            }
            Change::Range { .. } => None,
        }
    }
}

/// The domains of the volumes that records name, those that are not of the first one.
pub(super) struct Domains(BTreeMap<VolumeId, u32>);

impl Domains {
    /// As the tables and the changes of the catalogue among all records say.
    pub(super) fn told(kernel: &Kernel, tables: &Tables, all: &[&[Record]]) -> Result<Domains> {
        let mut domains = BTreeMap::new();
        if tables.state.next_domain == 0 || !kernel.keeps(Rule::RecoveryByDomain) {
            return Ok(Domains(domains));
        }
        let of = |volume: &Volume| (volume.domain != FIRST_DOMAIN).then_some(volume.domain);
        domains.extend(tables.volumes.iter().filter_map(|(id, volume)| Some((*id, of(volume)?))));
        for record in all.iter().copied().flatten() {
            let Change::Catalogue { pba, fingerprint } = record.change else { continue };
            match read_change(kernel, pba, &fingerprint) {
                Ok(CatalogueChange::Create { id, domain, .. }) if domain != FIRST_DOMAIN => {
                    domains.insert(id, domain);
                }
                // One that is not whole is not believed later on.
                Err(error) if error.kind() != Kind::Corrupt => return Err(error),
                _ => {}
            }
        }
        Ok(Domains(domains))
    }

    fn of(&self, volume: VolumeId) -> u32 {
        self.0.get(&volume).copied().unwrap_or(FIRST_DOMAIN)
    }
}

/// The meaning of the verified records when parts of their windows are missing: records of volumes
/// that were never made, or of addresses that they never got, go; and a volume that shrank
/// or went takes its blocks along although the range that says so may be lost.
pub(crate) fn whole_story(
    kernel: &Kernel,
    tables: &Tables,
    durable: &[Record],
    verified: Vec<Record>,
) -> Result<Vec<Record>> {
    let mut volumes = tables.volumes.clone();
    for record in durable {
        if let Change::Catalogue { pba, fingerprint } = record.change {
            apply_catalogue(&mut volumes, &[read_change(kernel, pba, &fingerprint)?]);
        }
    }
    let mut story = Vec::with_capacity(verified.len());
    for record in verified {
        let Change::Catalogue { pba, fingerprint } = record.change else {
            let room = volumes
                .get(&record.volume)
                .map_or(0, |volume| volume.blocks.saturating_sub(record.lba.0));
            let change = match record.change {
                Change::Range { blocks, keep } => Change::Range { blocks: blocks.min(room), keep },
                change => change,
            };
            if change != record.change && room > 0 {
                kernel.coverage.hit(Mark::RangeClipped);
            }
            if room > 0 {
                story.push(Record { change, ..record });
            } else {
                kernel.coverage.hit(Mark::RecordWithoutVolume);
            }
            continue;
        };
        let change = read_change(kernel, pba, &fingerprint)?;
        let end = match &change {
            CatalogueChange::Create { .. } => None,
            CatalogueChange::Rename { id, .. } | CatalogueChange::Settings { id, .. } => {
                volumes.get(id).map(|_| (*id, VOLUME_BLOCKS_MAX))
            }
            CatalogueChange::Resize { id, blocks } => volumes.get(id).map(|_| (*id, *blocks)),
            CatalogueChange::Delete { id } => volumes.get(id).map(|_| (*id, 0)),
        };
        if end.is_none() && !matches!(change, CatalogueChange::Create { .. }) {
            continue;
        }
        kernel.coverage.hit(Mark::CatalogueAgain);
        story.push(record);
        if let Some((volume, end)) = end.filter(|&(_, end)| end < VOLUME_BLOCKS_MAX) {
            kernel.coverage.hit(Mark::TailDropped);
            let change = Change::Range { blocks: VOLUME_BLOCKS_MAX - end, keep: false };
            story.push(Record { volume, lba: Lba(end), change, ..record });
        }
        apply_catalogue(&mut volumes, &[change]);
    }
    Ok(story)
}

/// The newer records whose block is there: it hashes to their fingerprint. Ranges are believed
/// with their carrier. Records of a domain that was erased are not believed: nobody can tell whether
/// their blocks are there, or read them.
pub(super) fn verify_newer(
    kernel: &Kernel,
    newer: Vec<Record>,
    domains: &Domains,
) -> Result<Vec<Record>> {
    let mut good: Vec<bool> =
        newer.iter().map(|record| matches!(record.change, Change::Range { .. })).collect();
    let ranges = good.iter().filter(|good| **good).count();
    let mut named: Vec<Named> =
        (0..).zip(&newer).filter_map(|(n, record)| Named::of(n, record, domains)).collect();
    named.retain(|named| {
        named.pba.0 < kernel.geometry().blocks() && kernel.identity.has_domain(named.domain)
    });
    // Neighbours are read together.
    named.sort_by_key(|named| named.pba);
    for batch in named.chunks(BLOCKS) {
        let mut buffer = Block::zeroed_vec(batch.len());
        let mut reads: Vec<Read<'_>> = Vec::new();
        let mut free = &mut buffer[..];
        for run in batch.chunk_by(|one, other| one.pba.plus(1) == other.pba) {
            let (into, left) = free.split_at_mut(run.len());
            reads.push(Read::new(run[0].pba, into));
            free = left;
        }
        kernel.disk.read(&mut reads);
        reads.into_iter().try_for_each(|read| read.result.map_err(|e| e.context("recovery")))?;
        let expanded =
            batch.iter().zip(&mut buffer).map(|(named, block)| open_in_place(kernel, named, block));
        let whole: Vec<bool> = expanded.collect::<Result<_>>()?;
        let of: Vec<u32> = batch.iter().map(|named| named.domain).collect();
        let found = kernel.identity.fingerprints(&of, &buffer.iter().collect::<Vec<_>>())?;
        for ((named, whole), found) in batch.iter().zip(whole).zip(found) {
            good[named.n] = whole && found.agrees(&named.fingerprint);
        }
    }
    let verified: Vec<Record> =
        newer.iter().zip(&good).filter(|(_, good)| **good).map(|(record, _)| *record).collect();
    kernel.coverage.add(Mark::RangeBelieved, ranges);
    kernel.coverage.add(Mark::NewerBelieved, verified.len() - ranges);
    kernel.coverage.add(Mark::NewerFallsBack, newer.len() - verified.len());
    Ok(verified)
}

/// Opens a raw block of a sealed store, and puts what a carrier carries in its place. False when it is
/// no carrier, or damaged.
fn open_in_place(kernel: &Kernel, named: &Named, block: &mut Block) -> Result<bool> {
    let Named { pba, carried, fingerprint, domain, .. } = named;
    if !carried {
        kernel.identity.open_raw(*domain, fingerprint.prefix(), *pba, block)?;
        return Ok(true);
    }
    let mut content = Block::zeroed();
    let carrier = Carrier::proven(&kernel.identity, block, *pba);
    let whole = carrier
        .is_some_and(|carrier| carrier.expand(*domain, fingerprint.prefix(), &mut content).is_ok());
    block.0 = content.0;
    Ok(whole)
}

pub(crate) fn read_change(
    kernel: &Kernel,
    pba: Pba,
    fingerprint: &Fingerprint,
) -> Result<CatalogueChange> {
    let mut buffer = Block::zeroed_vec(1);
    let mut read = [Read::new(pba, &mut buffer)];
    kernel.disk.read(&mut read);
    let [read] = read;
    read.result?;
    let mut content = Block::zeroed();
    let carrier = Carrier::proven(&kernel.identity, &buffer[0], pba).ok_or_else(|| {
        Error::new(
            Kind::Corrupt,
            format!("the carrier at block {pba}, which changes the catalogue, is damaged"),
        )
    })?;
    carrier.expand(FIRST_DOMAIN, fingerprint.prefix(), &mut content)?;
    if kernel.identity.fingerprinter.one(&content) != *fingerprint {
        return Err(Error::new(
            Kind::Corrupt,
            format!("the change of the catalogue at block {pba} is damaged"),
        ));
    }
    CatalogueChange::decode(&content)
}

/// The records without those that later ones supersede, so that they can share windows: in a window
/// blocks are newer than ranges.
pub(super) fn newest_alone(records: Vec<Record>) -> Vec<Record> {
    let mut written: BTreeSet<(VolumeId, Lba)> = BTreeSet::new();
    let mut dropped = Ranges::default();
    let mut kept: Vec<Record> = Vec::with_capacity(records.len());
    for record in records.into_iter().rev() {
        let keep = match record.change {
            Change::Block { .. } => {
                dropped.get(record.volume, record.lba.0).is_none()
                    && written.insert((record.volume, record.lba))
            }
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
