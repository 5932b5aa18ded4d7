//! Numbers of containers, from ranges that the log reserves, and the segment that an owner fills.

use std::sync::Arc;

use onefold_core::{Error, Kind, Result};

use crate::{
    format::{
        ContainerId,
        class::Class,
        record::{Owner, Record},
    },
    operations_log::Archive,
    rules::Rule,
    settings::ID_RANGE,
    tables::Tables,
};

/// Gives container ids to one owner.
pub(crate) struct Ids {
    archive: Arc<Archive>,
    owner: Owner,
    next: u64,
    end: u64,
}

impl Ids {
    pub(crate) fn new(archive: Arc<Archive>, owner: Owner) -> Ids {
        Ids { archive, owner, next: 0, end: 0 }
    }

    /// The next id; now and then a range is recorded for it.
    pub(crate) fn next(&mut self) -> Result<ContainerId> {
        if self.next == self.end {
            self.reserve_ids()?;
        }
        self.next += 1;
        Ok(ContainerId(self.next - 1))
    }

    fn reserve_ids(&mut self) -> Result<()> {
        let mut first = 0;
        let (owner, segment_bytes) = (self.owner, self.archive.label().segment_bytes);
        let several = self.archive.label().spread[0] > 1;
        let count = if self.archive.keeps(Rule::IdRangeDurableFirst) { ID_RANGE } else { 0 };
        self.archive.commit(self.owner == Owner::Collector, |tables| {
            first = tables.next_id;
            if first + ID_RANGE > self.archive.settings.container_numbers
                && self.archive.keeps(Rule::ContainerNumbersLimited)
            {
                return Err(Error::new(Kind::NoSpace, "the archive has no container numbers left"));
            }
            // The first range brings the first segment along; on several nodes one is used by
            // whoever reserved it only.
            let room = several
                || last_segment(&self.archive, tables, owner, Class::Plain)
                    .is_some_and(|(_, end)| end < segment_bytes);
            let segment = (!room).then_some(tables.next_segment);
            Ok(vec![Record::Reserved {
                owner,
                first: ContainerId(first),
                count,
                segment,
                class: (Class::Plain, 0),
            }])
        })?;
        (self.next, self.end) = (first, first + ID_RANGE);
        Ok(())
    }
}

/// The segment of a class that this owner appends to, and where. `None` also when the last one was taken by
/// another key than this process has.
pub(crate) fn last_segment(
    archive: &Archive,
    tables: &Tables,
    owner: Owner,
    class: Class,
) -> Option<(u32, u64)> {
    tables
        .segments
        .iter()
        .rev()
        .find(|(_, segment)| segment.owner == owner && segment.class == class)
        .filter(|(n, _)| archive.took(tables, **n))
        .map(|(&n, segment)| (n, segment.end))
}
