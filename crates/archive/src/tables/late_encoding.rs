//! The tables' state for late encoding: how long counts have stood still, and where the chunks of
//! containers that were encoded late lie.
//!
//! *Versions* are the puts that were committed. A container is of the version that was put when it
//! was listed. Its counts changed last when a recipe or mapping that names chunks of it came or
//! went; the collector finds that out when it counts, so that it may be known late. Nothing but the
//! time of encoding depends on it.

use std::collections::BTreeSet;

use onefold_core::{Error, Result};

use super::{container::Container, containers::Found, state::Tables};
use crate::format::{
    ContainerId,
    bytes::{Reader, Writer, corrupt},
    class::{Class, Rad},
    container::ContainerKind,
    record::{Stored, class_of},
};

/// Containers over which the chunks of one may be spread: as many as a round of late encoding
/// makes.
pub const PLACES_MAX: usize = 24;

impl Tables {
    /// Containers that stand replicated and whose counts have stood still for the delay; none
    /// unless they are of enough versions. `all` looks at neither. Containers that no recipe
    /// names yet wait when they were listed behind `partial`, in seconds since 1970.
    ///
    /// # Errors
    /// As [`Containers::get`](super::Containers::get).
    pub fn due_for_encoding(
        &self,
        rad: Option<Rad>,
        all: bool,
        partial: u64,
    ) -> Result<Vec<ContainerId>> {
        let Some(rad) = rad.filter(|_| self.sums().replicated().1 > 0) else {
            return Ok(Vec::new());
        };
        let stood = |container: &Container| {
            all || self.versions.saturating_sub(container.changed) >= u64::from(rad.delay)
        };
        let is_due = |container: &Found| {
            let id = container.stored.id;
            container.stored.kind == ContainerKind::Data
                && self.class(&container.stored.place).0 == Class::Replicated
                && container.logged <= self.counted
                && self.unfinished.get(&id).is_none_or(|at| *at <= partial)
                && stood(container)
        };
        let (mut found, mut versions) = (Vec::new(), BTreeSet::new());
        for container in &self.containers {
            let container = container?;
            if is_due(&container) {
                found.push(container.stored.id);
                versions.insert(container.born);
            }
        }
        let enough = all || versions.len() as u64 >= u64::from(rad.batch);
        Ok(if enough { found } else { Vec::new() })
    }

    /// Applies that containers were encoded late.
    pub(crate) fn apply_late_encoded(
        &mut self,
        from: &[ContainerId],
        to: Vec<(Stored, Vec<ContainerId>)>,
    ) -> Result<()> {
        let (mut known, mut logged, mut born, mut changed) = (BTreeSet::new(), 0, 0, 0);
        for id in from {
            let old = self.containers.get(id)?.ok_or_else(|| {
                corrupt(format!("the log settles container {id}, which is not there"))
            })?;
            known.extend(old.numbers());
            (logged, born, changed) =
                (logged.max(old.logged), born.max(old.born), changed.max(old.changed));
            drop(old);
            self.wait_to_be_freed(*id, self.epoch)?;
        }
        if to.is_empty() || to.len() > PLACES_MAX {
            return Err(corrupt(format!("the log settles containers in {} places", to.len())));
        }
        // Once for all places: the first change behind a snapshot is never too much.
        self.derived.moved.add(to.iter().map(|(_, of)| of.len()).sum())?;
        for (stored, of) in to {
            let id = stored.id;
            let of: BTreeSet<ContainerId> = of.into_iter().collect();
            if of.is_empty() || !of.is_subset(&known) {
                return Err(corrupt(format!(
                    "container {id} has chunks of containers that were not settled"
                )));
            }
            let (chunks, bytes) = (u64::from(stored.chunks), u64::from(stored.raw_bytes));
            let written = self.list(stored, logged, born)?;
            let write_cost = &mut self.write_cost;
            write_cost.encode_bytes = write_cost.encode_bytes.saturating_add(written);
            write_cost.encoded_chunks = write_cost.encoded_chunks.saturating_add(chunks);
            write_cost.encoded_chunk_bytes = write_cost.encoded_chunk_bytes.saturating_add(bytes);
            for &of in &of {
                self.moved_to.change(of, |places| places.push(id));
            }
            self.containers.change(&id, |container| {
                (container.merged, container.changed) = (of.into_iter().collect(), changed);
            })?;
        }
        Ok(())
    }

    /// The part of a snapshot that only archives with late encoding have.
    pub(crate) fn encode_late(&self, w: &mut Writer) {
        if !self.late {
            return;
        }
        w.u64(self.versions);
        for segment in self.segments.values() {
            w.u8(segment.class.code()).u8(segment.data);
        }
        // Leaves have these of their containers.
        if !self.leaves {
            for container in self.containers.loaded() {
                w.u64(container.born).u64(container.changed);
            }
        }
        for difference in self.differences.iter() {
            w.u64(difference.at);
        }
    }

    pub(crate) fn decode_late(&mut self, r: &mut Reader<'_>) -> Result<()> {
        if !self.late {
            return Ok(());
        }
        self.versions = r.counter()?;
        self.segments.try_change_all(|segment| {
            (segment.class, segment.data) = class_of(r)?;
            Ok::<_, Error>(())
        })?;
        if !self.leaves {
            self.containers.change_all(|container| {
                (container.born, container.changed) = (r.u64()?, r.u64()?);
                Ok(())
            })?;
        }
        self.differences.try_change_all(|difference| {
            difference.at = r.u64()?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::label::Kinds;
    use crate::format::record::{Owner, Place, Record};

    fn stored(id: u64, segment: u32) -> Stored {
        let place = Place { segment, at: id * 65_536, bytes: 5_000, meta_bytes: 200 };
        Stored {
            id: ContainerId(id),
            kind: ContainerKind::Data,
            domain: 0,
            chunks: 2,
            raw_bytes: 6_000,
            place,
        }
    }

    /// Two containers that stand replicated, in segment 1; segment 2 is for cold chunks.
    fn replicated() -> Tables {
        let mut tables = Tables {
            next_id: 1,
            next_segment: 1,
            epoch: 1,
            ..Tables::new([6, 4, 2], Kinds { late: true, ..Kinds::default() })
        };
        let reserved = |segment, class| Record::Reserved {
            owner: Owner::Ingest,
            first: ContainerId(1),
            count: 100,
            segment: Some(segment),
            class,
        };
        let records = vec![
            reserved(1, (Class::Replicated, 1)),
            reserved(2, (Class::Cold, 4)),
            Record::Finished { containers: vec![stored(1, 1), stored(2, 1)], finished: Vec::new() },
        ];
        tables.apply(1, records).unwrap();
        tables
    }

    fn encoded(from: &[u64], to: Vec<(Stored, Vec<u64>)>) -> Vec<Record> {
        let ids = |all: &[u64]| all.iter().map(|&id| ContainerId(id)).collect();
        vec![Record::LateEncoded {
            from: ids(from),
            to: to.into_iter().map(|(stored, of)| (stored, ids(&of))).collect(),
        }]
    }

    #[test]
    fn a_late_encoded_container_is_found_where_its_chunks_went() {
        let mut tables = replicated();
        // 8 KiB in units, three times.
        assert_eq!(
            (tables.write_cost.upload_bytes, tables.sums().replicated()),
            (2 * 3 * 8192, (2 * 3 * 8192, 2))
        );
        let records = encoded(&[1, 2], vec![(stored(10, 2), vec![1, 2]), (stored(11, 2), vec![2])]);
        let records = Record::decode_all(&Record::encode_all(&records)).unwrap();
        tables.apply(2, records).unwrap();
        let places = |tables: &Tables, id| {
            tables
                .places(ContainerId(id))
                .map(|container| container.unwrap().stored.id.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (places(&tables, 1), places(&tables, 2), places(&tables, 10)),
            (vec![10], vec![10, 11], vec![10])
        );
        // A row of four units, and two of parity.
        assert_eq!(
            (
                tables.write_cost.encode_bytes,
                tables.sums().replicated(),
                tables.waiting_to_be_freed.len()
            ),
            (2 * 6 * 4096, (0, 0), 2)
        );
        let read =
            Tables::decode(&tables.encode(), [6, 4, 2], Kinds { late: true, ..Kinds::default() })
                .unwrap();
        assert_eq!(Tables { write_cost: tables.write_cost, ..read }, tables);
        assert!(Tables::decode(&tables.encode(), [6, 4, 2], Kinds::default()).is_err());
        for end in 0..tables.encode().len() {
            assert!(
                Tables::decode(
                    &tables.encode()[..end],
                    [6, 4, 2],
                    Kinds { late: true, ..Kinds::default() }
                )
                .is_err(),
                "{end}"
            );
        }
        // A merge brings both places together, and what goes is gone.
        tables
            .apply(
                3,
                vec![Record::Merged {
                    from: vec![ContainerId(10), ContainerId(11)],
                    to: stored(12, 2),
                }],
            )
            .unwrap();
        assert_eq!((places(&tables, 1), places(&tables, 2)), (vec![12], vec![12]));
        tables
            .apply(
                4,
                vec![Record::Dropped { containers: vec![ContainerId(12)], spared: Vec::new() }],
            )
            .unwrap();
        assert!(tables.moved_to.is_empty() && tables.containers.is_empty());
    }

    #[test]
    fn what_can_not_be_true_is_refused() {
        let many = (0..=PLACES_MAX as u64).map(|n| (stored(10 + n, 2), vec![1])).collect();
        for (from, to) in [
            (vec![1], Vec::new()),
            (vec![1], vec![(stored(10, 2), vec![])]),
            (vec![1], vec![(stored(10, 2), vec![2])]),
            (vec![1, 1], vec![(stored(10, 2), vec![1])]),
            (vec![3], vec![(stored(10, 2), vec![3])]),
            (vec![1], vec![(stored(2, 2), vec![1])]),
            (vec![1], vec![(stored(10, 9), vec![1])]),
            (vec![1], many),
        ] {
            let what = format!("{from:?} {to:?}");
            assert!(replicated().apply(2, encoded(&from, to)).is_err(), "{what}");
        }
        let class = (Class::Hot, 2);
        let reserved = vec![Record::Reserved {
            owner: Owner::Ingest,
            first: ContainerId(1),
            count: 1,
            segment: Some(1),
            class,
        }];
        assert!(Tables::new([6, 4, 2], Kinds::default()).apply(1, reserved).is_err());
        for bytes in [
            &[21, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9, 2][..],
            &[22, 255, 255, 255, 255],
            &[23, 255, 255, 255, 255],
        ] {
            assert!(Record::decode_all(bytes).is_err(), "{bytes:?}");
        }
    }
}
