//! The data keys that took the place of older ones, as far as the log names them.

use onefold_core::Result;

use super::persistent::Map;
use crate::format::{
    ContainerId,
    bytes::{Reader, Writer, corrupt},
    data_keys::{Kept, Rotation},
    record::ENTRY_MEMORY,
};

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
        self.changes().filter(|change| change.rotation.domain == domain).last()
    }

    /// The newest one of a domain, and whether the key before it was erased.
    pub(crate) fn newest(&self, domain: u32) -> Option<(&Rotation, bool)> {
        self.newest_change(domain).map(|change| (&change.rotation, change.erased))
    }

    /// The generation of the data key that a container of a domain is under.
    #[must_use]
    pub fn generation_of(&self, domain: u32, container: ContainerId) -> u32 {
        let of_domain = self.all().filter(|(rotation, _)| rotation.domain == domain);
        let under = of_domain.filter(|(rotation, _)| rotation.from <= container);
        under.last().map_or(0, |(rotation, _)| rotation.generation)
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
        let of_domain = self.all().filter(|(rotation, _)| rotation.domain == domain);
        let gone: Vec<u32> = of_domain.map(|(rotation, _)| rotation.generation).collect();
        for generation in gone {
            self.all.remove(&(domain, generation));
        }
    }
}
