//! The data keys that took the place of older ones, as far as the log names them.

use onefold_core::Result;

use super::persistent::Map;
use crate::format::{
    ContainerId,
    bytes::{Reader, Writer, corrupt},
    data_keys::Rotation,
    record::ENTRY_MEMORY,
};

/// The data keys that took the place of older ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataKeys {
    /// By domain and generation; true once the key before was erased.
    all: Map<(u32, u32), (Rotation, bool)>,
}

impl DataKeys {
    /// Each, and whether the key before it was erased; in the order of domains and generations.
    pub fn all(&self) -> impl Iterator<Item = (&Rotation, bool)> {
        self.all.values().map(|(rotation, erased)| (rotation, *erased))
    }

    /// The newest one of a domain, and whether the key before it was erased.
    pub(crate) fn newest(&self, domain: u32) -> Option<(&Rotation, bool)> {
        self.all().filter(|(rotation, _)| rotation.domain == domain).last()
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
        for (rotation, erased) in self.all() {
            rotation.encode(w);
            w.u8(u8::from(erased));
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<DataKeys> {
        let mut keys = DataKeys::default();
        for _ in 0..r.count(Rotation::BYTES + 1, ENTRY_MEMORY)? {
            let (rotation, erased) = (Rotation::decode(r)?, r.u8()? != 0);
            keys.rotate(rotation.clone())?;
            if erased {
                keys.erase(rotation.domain, rotation.generation)?;
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
        self.all.insert((rotation.domain, rotation.generation), (rotation, false));
        Ok(())
    }

    pub(super) fn erase(&mut self, domain: u32, generation: u32) -> Result<()> {
        let newest = self.newest(domain).filter(|(newest, _)| newest.generation == generation);
        let Some((rotation, _)) = newest else {
            return Err(corrupt("the log erases a data key that there is not"));
        };
        let rotation = rotation.clone();
        self.all.insert((domain, generation), (rotation, true));
        Ok(())
    }
}
