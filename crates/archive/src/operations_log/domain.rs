//! A domain of an archive, opened: what is deduplicated together has a key of its own, from which its
//! fingerprints, its cuts, the ends of its tree nodes and the keys of its containers come. So nothing is
//! shared between two of them. A plain archive is one domain.

use onefold_core::{Fingerprinter, Result};

use crate::{
    chunking::{Cuts, Gear},
    format::{Identity, domain::FIRST_DOMAIN, label::Label, sealing::DomainSealing},
};

/// A domain, opened: what streams in it are cut and fingerprinted by.
pub struct Domain {
    number: u32,
    pub(crate) fingerprinter: Fingerprinter,
    cuts: Cuts,
    /// Seeds the checksums by which tree nodes end.
    pub(crate) borders: u64,
}

impl Domain {
    /// Its number; 0 for the one that each archive begins with, and for a plain archive.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The first one of an archive with this label.
    pub(super) fn first(label: &Label, identity: &Identity) -> Result<Domain> {
        match identity.sealing() {
            Some(sealing) => Ok(Domain::of(label, identity, &*sealing.domain(FIRST_DOMAIN)?)),
            None => Ok(Domain {
                number: FIRST_DOMAIN,
                fingerprinter: Fingerprinter::new(label.fingerprint, &label.secret),
                cuts: label.chunking.into(),
                borders: identity.key,
            }),
        }
    }

    pub(super) fn of(label: &Label, identity: &Identity, keys: &DomainSealing) -> Domain {
        Domain {
            number: keys.number(),
            fingerprinter: Fingerprinter::new(label.fingerprint, keys.fingerprints().expose()),
            cuts: Cuts::keyed(label.chunking, Gear::new(keys.cuts())),
            borders: keys.borders().unwrap_or(identity.key),
        }
    }
}

impl From<&Domain> for Cuts {
    /// As the domain's streams are cut.
    fn from(domain: &Domain) -> Cuts {
        domain.cuts.clone()
    }
}
