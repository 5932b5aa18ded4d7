//! The listing of a bucket compared with what its log says.

use std::collections::BTreeMap;

use onefold_core::Result;

use crate::{
    format::{Id, Sort, pack_name},
    log::Log,
    writer::Bucket,
};

/// A difference between log and listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// An object that the log needs is not there.
    Lost(String),
    /// An object has another length: its name, the length, and that of the log.
    Length(String, u64, u64),
}

/// All objects of a folder.
pub(crate) fn listed(log: &Log, folder: &str) -> Result<BTreeMap<String, u64>> {
    let (mut all, mut after) = (BTreeMap::new(), folder.to_owned());
    loop {
        let some = log.ask(&mut || log.objects.list(folder, &after))?;
        let Some(last) = some.last() else { return Ok(all) };
        if last.name <= after {
            return Ok(all);
        }
        after.clone_from(&last.name);
        all.extend(some.into_iter().map(|one| (one.name, one.bytes)));
    }
}

impl Bucket {
    /// The names of all packs and tables that the log needs.
    #[must_use]
    pub fn needed(&self) -> std::collections::BTreeSet<String> {
        let core = self.shared.core.lock();
        let packs = core.state.packs.iter().filter(|(_, pack)| pack.inline.is_none());
        let packs = packs.map(|(id, _)| pack_name(*id));
        packs.chain(core.state.table.map(|table| table.id.to_string())).collect()
    }

    /// Compares the listing with the log, by names and lengths; no data is read.
    ///
    /// # Errors
    /// Those of the store.
    pub fn differences(&self) -> Result<Vec<Difference>> {
        // What this process has written is no loss while it is on its way.
        self.shared.commit()?;
        let log = &self.shared.log;
        let needed: BTreeMap<String, u64> = {
            let core = self.shared.core.lock();
            let packs = core.state.packs.iter().filter(|(_, pack)| pack.inline.is_none());
            let mut needed: BTreeMap<String, u64> =
                packs.map(|(id, pack)| (pack_name(*id), u64::from(pack.bytes))).collect();
            needed.extend(core.state.table.map(|table| (table.id.to_string(), table.bytes)));
            needed
        };
        let mut there = listed(log, Sort::Pack.folder())?;
        there.extend(listed(log, Sort::Table.folder())?);
        there.retain(|name, _| Id::parse(name).is_some());
        let judged = needed.into_iter().filter_map(|(name, bytes)| match there.get(&name) {
            None => Some(Difference::Lost(name)),
            Some(found) if *found != bytes => Some(Difference::Length(name, *found, bytes)),
            Some(_) => None,
        });
        Ok(judged.collect())
    }
}
