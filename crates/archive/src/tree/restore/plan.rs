//! Where the chunks of a window lie: runs become ranges of groups.

use std::{collections::HashMap, sync::Arc};

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::ledger::Ledger;
use crate::{
    container::{ChunkReader, ContainerReader},
    format::{
        Address, ContainerId,
        container::{Chunk, Group, Metadata},
        damage::is_damage,
    },
    tables::{Container, Tables},
};

/// Chunks of one container, slot after slot, that go to a file from byte `at` on.
pub(super) struct Run {
    pub(super) first: Address,
    /// Bytes of all.
    pub(super) bytes: u32,
    pub(super) file: usize,
    pub(super) at: u64,
    /// Their fingerprints among those of the window.
    pub(super) fingerprints: std::ops::Range<usize>,
}

/// A chunk that goes to a file.
pub(super) struct Range {
    /// Its group, by its number in the plan.
    pub(super) group: u32,
    /// Its first byte in the expanded group.
    pub(super) from: u32,
    pub(super) bytes: u32,
    pub(super) file: usize,
    /// The first byte in the file.
    pub(super) at: u64,
    pub(super) fingerprint: Fingerprint,
}

impl Range {
    /// Its bytes in the expanded group.
    pub(super) fn span(&self) -> std::ops::Range<usize> {
        self.from as usize..self.from as usize + self.bytes as usize
    }
}

/// A group, and where it lies.
pub(super) struct GroupAt {
    pub(super) container: ContainerId,
    pub(super) segment: u32,
    pub(super) at: u64,
    pub(super) group: Group,
    /// Its number in the container, and what knows how it is opened.
    pub(super) number: usize,
    pub(super) metadata: Arc<Metadata>,
}

/// Ranges, and the groups that they are in.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) groups: Vec<GroupAt>,
    pub(super) ranges: Vec<Range>,
}

/// Looks chunks up.
pub(super) struct Planner<'a> {
    pub(super) tables: &'a Tables,
    pub(super) container_reader: &'a ContainerReader,
    pub(super) chunk_reader: &'a mut ChunkReader,
    pub(super) ledger: &'a Ledger,
    numbers: HashMap<(ContainerId, u8), u32>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        tables: &'a Tables,
        container_reader: &'a ContainerReader,
        chunk_reader: &'a mut ChunkReader,
        ledger: &'a Ledger,
    ) -> Planner<'a> {
        let (numbers, plan) = (HashMap::new(), Plan::default());
        Planner { tables, container_reader, chunk_reader, ledger, numbers, plan }
    }

    /// The plan of these runs, in the order of places as far as that is known before containers are
    /// looked at: so each one's metadata is read once.
    pub(super) fn plan(mut self, runs: &mut [Run], fingerprints: &[Fingerprint]) -> Result<Plan> {
        runs.sort_by_cached_key(|run| {
            // What can't be looked up now is told when the run is planned.
            let home = self.tables.places(run.first.container).next().and_then(Result::ok);
            let place = home.map(|home| (home.stored.place.segment, home.stored.place.at));
            (place, run.first)
        });
        for run in &*runs {
            match self.run(run, &fingerprints[run.fingerprints.clone()]) {
                Err(error) if is_damage(&error) => self.ledger.lose(run.file, error),
                other => other?,
            }
        }
        Ok(self.plan)
    }

    /// The ranges of a run, as far as they are there.
    fn run(&mut self, run: &Run, fingerprints: &[Fingerprint]) -> Result<()> {
        let corrupt = |slot: usize, what: &str| {
            let container = run.first.container;
            Error::new(Kind::Corrupt, format!("chunk {slot} of container {container} {what}"))
        };
        let (mut slot, mut at) = (usize::from(run.first.slot), run.at);
        let mut expected = fingerprints.iter().peekable();
        while expected.peek().is_some() {
            let address = u16::try_from(slot).map(|slot| Address { slot, ..run.first });
            let lost = || corrupt(slot, "is not there");
            let address = address.map_err(|_| lost())?;
            let found = self.chunk_reader.find(self.tables, self.container_reader, address)?;
            let (container, metadata, n) = found.ok_or_else(lost)?;
            for chunk in &metadata.chunks[n..] {
                let address = (chunk.first.container, usize::from(chunk.first.slot));
                if address != (run.first.container, slot) {
                    break;
                }
                let Some(fingerprint) = expected.next() else { break };
                if chunk.fingerprint != *fingerprint {
                    return Err(corrupt(slot, "is not the one that was stored"));
                }
                // The file's length was checked with these bytes.
                if at + u64::from(chunk.bytes) > run.at + u64::from(run.bytes) {
                    return Err(other_bytes());
                }
                self.range(run.file, at, &container, &metadata, chunk)?;
                at += u64::from(chunk.bytes);
                slot += 1;
            }
        }
        if at == run.at + u64::from(run.bytes) { Ok(()) } else { Err(other_bytes()) }
    }

    fn range(
        &mut self,
        file: usize,
        at: u64,
        container: &Container,
        metadata: &Arc<Metadata>,
        chunk: &Chunk,
    ) -> Result<()> {
        let place = &container.stored.place;
        let (plan, key) = (&mut self.plan, (metadata.id, chunk.group));
        let group = match self.numbers.get(&key) {
            Some(number) => *number,
            None => {
                let group = metadata.groups.get(usize::from(chunk.group)).copied();
                let group = group.ok_or_else(other_bytes)?;
                let number = u32::try_from(plan.groups.len()).map_err(|_| other_bytes())?;
                plan.groups.push(GroupAt {
                    container: metadata.id,
                    segment: place.segment,
                    at: place.at + u64::from(group.at),
                    group,
                    number: usize::from(chunk.group),
                    metadata: metadata.clone(),
                });
                self.numbers.insert(key, number);
                number
            }
        };
        let Chunk { at: from, bytes, fingerprint, .. } = *chunk;
        plan.ranges.push(Range { group, from, bytes, file, at, fingerprint });
        self.ledger.wait(file, 1);
        Ok(())
    }
}

fn other_bytes() -> Error {
    Error::new(Kind::Corrupt, "the content of a file has other bytes than its chunks")
}

impl Plan {
    /// Brings the ranges into the order of their places.
    pub(super) fn sort(&mut self) {
        let groups = &self.groups;
        let mut order: Vec<u32> = (0..groups.len() as u32).collect();
        let place = |n: u32| groups.get(n as usize).map(|group| (group.segment, group.at));
        order.sort_unstable_by_key(|&n| place(n));
        let mut ranks = vec![0; order.len()];
        for (rank, &n) in order.iter().enumerate() {
            ranks[n as usize] = rank as u32;
        }
        let rank = |range: &Range| ranks.get(range.group as usize).copied();
        self.ranges.sort_unstable_by_key(|range| (rank(range), range.from, range.file, range.at));
    }
}
