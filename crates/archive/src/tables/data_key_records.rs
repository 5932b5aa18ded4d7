//! The records about data keys, applied, and what is under an older one.

use onefold_core::Result;

use super::{containers::Found, state::Tables};
use crate::format::{bytes::corrupt, data_keys::Rotation, domain::FIRST_DOMAIN};

impl Tables {
    pub(super) fn rotate_data_key(&mut self, rotation: Rotation) -> Result<()> {
        if !self.has_data_keys || (rotation.domain != FIRST_DOMAIN && !self.has_domains) {
            return Err(corrupt(
                "the log changes a data key, and the archive has none that changes",
            ));
        }
        // All that is numbered from now on is under the new key, and nothing else.
        if rotation.from.0 != self.next_id {
            return Err(corrupt(
                "the log changes a data key for other containers than those to come",
            ));
        }
        self.data_keys.rotate(rotation)
    }

    pub(super) fn erase_data_key(&mut self, domain: u32, generation: u32) -> Result<()> {
        self.data_keys.erase(domain, generation)
    }

    /// True when a container is under a data key that another one took the place of.
    #[must_use]
    pub fn is_under_older(&self, container: &Found) -> bool {
        let stored = &container.stored;
        self.domain_has_older(stored.domain) && {
            let newest = self.data_keys.newest(stored.domain);
            newest.is_some_and(|(newest, _)| stored.id < newest.from)
        }
    }

    /// True when a domain has two data keys.
    #[must_use]
    pub fn domain_has_older(&self, domain: u32) -> bool {
        !self.domains.erased.contains_key(&domain)
            && self.data_keys.newest(domain).is_some_and(|(_, erased)| !erased)
    }

    /// The domains that have two data keys.
    pub(crate) fn with_older(&self) -> impl Iterator<Item = &Rotation> {
        let two = self.data_keys.all().filter(|(_, erased)| !erased);
        two.map(|(rotation, _)| rotation)
            .filter(|rotation| !self.domains.erased.contains_key(&rotation.domain))
    }
}
