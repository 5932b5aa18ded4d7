//! The data keys that took the place of older ones, as far as the log names them.

use onefold_core::Result;

use super::persistent::Map;
use crate::format::{
    ContainerId,
    bytes::{Reader, Writer, corrupt},
    data_keys::{Kept, Rotation},
    record::ENTRY_MEMORY,
};

/// Changes of the data key of one domain at most: one a week for 19 years. What was stored before all of them is
/// hashed by each key that was there since, and the kept keys of each stay in the log and in memory.
pub(crate) const CHANGES_MAX: u32 = 1024;

/// State of the data key before a change: the key area has it.
const THERE: u8 = 0;
/// The key area has it, and the log has its kept keys.
const KEPT: u8 = 1;
/// The key area lost it: it was erased.
const ERASED: u8 = 2;

/// The data keys that took the place of older ones, of domains that were not erased.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataKeys {
    /// By domain and generation.
    all: Map<(u32, u32), KeyChange>,
}

/// A data key took the place of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyChange {
    pub(crate) rotation: Rotation,
    /// The kept keys of the key before, sealed, once the log has them: before that key is erased.
    pub(crate) kept: Option<Box<Kept>>,
    /// The key before was erased.
    pub(crate) erased: bool,
}

impl DataKeys {
    /// Each, and whether the key before it was erased; in the order of domains and generations.
    pub fn all(&self) -> impl Iterator<Item = (&Rotation, bool)> {
        self.changes().map(|change| (&change.rotation, change.erased))
    }

    /// The same, with the kept keys of the keys before.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &KeyChange> {
        self.all.values()
    }

    /// The newest one of a domain.
    pub(crate) fn newest_change(&self, domain: u32) -> Option<&KeyChange> {
        self.newest_upto(domain, u32::MAX)
    }

    /// The newest one of a domain that is not above this generation.
    fn newest_upto(&self, domain: u32, generation: u32) -> Option<&KeyChange> {
        let (_, change) = self.all.at_most(&(domain, generation))?;
        Some(change).filter(|change| change.rotation.domain == domain)
    }

    /// The changes of a domain, the newest one first.
    fn of_domain(&self, domain: u32) -> impl Iterator<Item = &KeyChange> {
        std::iter::successors(self.newest_change(domain), move |change| {
            self.newest_upto(domain, change.rotation.generation.checked_sub(1)?)
        })
    }

    /// The newest one of a domain, and whether the key before it was erased.
    pub(crate) fn newest(&self, domain: u32) -> Option<(&Rotation, bool)> {
        self.newest_change(domain).map(|change| (&change.rotation, change.erased))
    }

    /// The generation of the data key that a container of a domain is under.
    #[must_use]
    pub fn generation_of(&self, domain: u32, container: ContainerId) -> u32 {
        let mut under = self.of_domain(domain).filter(|change| change.rotation.from <= container);
        under.next().map_or(0, |change| change.rotation.generation)
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.u32(self.all.len() as u32);
        for change in self.changes() {
            change.rotation.encode(w);
            match (&change.kept, change.erased) {
                (None, _) => w.u8(THERE),
                (Some(kept), false) => w.u8(KEPT).raw(&kept[..]),
                (Some(kept), true) => w.u8(ERASED).raw(&kept[..]),
            };
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<DataKeys> {
        let mut keys = DataKeys::default();
        for _ in 0..r.count(Rotation::BYTES + 1, ENTRY_MEMORY + size_of::<Kept>())? {
            let rotation = Rotation::decode(r)?;
            let Rotation { domain, generation, .. } = rotation;
            keys.rotate(rotation)?;
            let state = r.u8()?;
            match state {
                THERE => continue,
                KEPT | ERASED => keys.keep((domain, generation), Box::new(r.array()?))?,
                _ => return Err(corrupt("what became of a data key can't be true")),
            }
            if state == ERASED {
                keys.erase(domain, generation)?;
            }
        }
        Ok(keys)
    }

    /// Adds a change as somebody else's program might.
    #[cfg(test)]
    pub(super) fn insert_unchecked(&mut self, change: KeyChange) {
        self.all.insert((change.rotation.domain, change.rotation.generation), change);
    }

    pub(super) fn rotate(&mut self, rotation: Rotation) -> Result<()> {
        let newest = self.newest(rotation.domain);
        let follows = match newest {
            None => rotation.generation == 1,
            Some((before, erased)) => {
                erased
                    && before.generation.checked_add(1) == Some(rotation.generation)
                    && before.from <= rotation.from
            }
        };
        if !follows {
            return Err(corrupt("the log changes a data key out of order"));
        }
        if rotation.generation > CHANGES_MAX {
            return Err(corrupt("the log changes a data key more often than it can be"));
        }
        let change = KeyChange { rotation, kept: None, erased: false };
        self.all.insert((rotation.domain, rotation.generation), change);
        Ok(())
    }

    /// Notes the kept keys of the key before this generation of a domain.
    pub(super) fn keep(&mut self, (domain, generation): (u32, u32), kept: Box<Kept>) -> Result<()> {
        let newest = self.newest_change(domain);
        match newest.filter(|newest| newest.rotation.generation == generation) {
            Some(KeyChange { rotation, kept: None, erased: false }) => {
                let change = KeyChange { rotation: *rotation, kept: Some(kept), erased: false };
                self.all.insert((domain, generation), change);
                Ok(())
            }
            _ => Err(corrupt("the log keeps something of a data key that it can't be of")),
        }
    }

    pub(super) fn erase(&mut self, domain: u32, generation: u32) -> Result<()> {
        let newest = self.newest_change(domain);
        match newest.filter(|newest| newest.rotation.generation == generation) {
            Some(KeyChange { rotation, kept: kept @ Some(_), .. }) => {
                let change = KeyChange { rotation: *rotation, kept: kept.clone(), erased: true };
                self.all.insert((domain, generation), change);
                Ok(())
            }
            _ => Err(corrupt(
                "the log erases a data key that there is not, or of which nothing stays",
            )),
        }
    }

    /// Forgets the changes of a domain that was erased.
    pub(super) fn forget(&mut self, domain: u32) {
        let of_domain = self.of_domain(domain);
        let gone: Vec<u32> = of_domain.map(|change| change.rotation.generation).collect();
        for generation in gone {
            self.all.remove(&(domain, generation));
        }
    }
}
