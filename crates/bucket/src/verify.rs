//! The listing of a bucket compared with what its log says.

use std::collections::BTreeMap;

use onefold_core::Result;

use crate::{
    format::{Id, Sort},
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

/// The objects of a folder whose names `meant` takes. All others are somebody else's: a store without folders
/// lists what is below another archive's prefix too.
pub(crate) fn listed<T: Ord>(
    log: &Log,
    folder: &str,
    meant: impl Fn(&str) -> Option<T>,
) -> Result<BTreeMap<T, u64>> {
    let mut all = BTreeMap::new();
    log.list(folder, folder, &mut |one| {
        all.extend(meant(&one.name).map(|what| (what, one.bytes)));
        false
    })?;
    Ok(all)
}

impl Bucket {
    /// The names of all packs and tables that the log needs.
    #[must_use]
    pub fn needed(&self) -> std::collections::BTreeSet<String> {
        let core = self.shared.core.lock();
        let packs = core.state.packs.iter().filter(|(_, pack)| pack.inline.is_none());
        let packs = packs.map(|(id, pack)| pack.id(*id).to_string());
        packs.chain(core.state.table.map(|table| table.id.to_string())).collect()
    }

    /// Compares the listing with the log, by names and lengths; no data is read.
    ///
    /// # Errors
    /// The store's.
    pub fn differences(&self) -> Result<Vec<Difference>> {
        // Packs of this process are no loss while they are on their way.
        self.shared.commit()?;
        let log = &self.shared.log;
        let needed: BTreeMap<Id, u64> = {
            let core = self.shared.core.lock();
            let packs = core.state.packs.iter().filter(|(_, pack)| pack.inline.is_none());
            let mut needed: BTreeMap<Id, u64> =
                packs.map(|(id, pack)| (pack.id(*id), u64::from(pack.bytes))).collect();
            needed.extend(core.state.table.map(|table| (table.id, table.bytes)));
            needed
        };
        let mut there = BTreeMap::new();
        for sort in Sort::ALL {
            there.extend(listed(log, sort.folder(), Id::parse)?);
        }
        let judged = needed.into_iter().filter_map(|(id, bytes)| match there.get(&id) {
            None => Some(Difference::Lost(id.to_string())),
            Some(found) if *found != bytes => {
                Some(Difference::Length(id.to_string(), *found, bytes))
            }
            Some(_) => None,
        });
        Ok(judged.collect())
    }
}
