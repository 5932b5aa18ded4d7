//! A domain of an archive, opened: what is deduplicated together has a key of its own, from which its
//! fingerprints, its cuts, the ends of its tree nodes and the keys of its containers come. So nothing is
//! shared between two of them. A plain archive is one domain.

use onefold_core::{Fingerprint, Fingerprinter, Result};

use crate::{
    chunking::{Cuts, Gear},
    format::{
        Identity,
        domain::FIRST_DOMAIN,
        label::Label,
        sealing::{DomainSealing, Sealing},
    },
};

/// A domain, opened: what streams in it are cut and fingerprinted by.
pub struct Domain {
    number: u32,
    pub(crate) fingerprinter: Fingerprinter,
    /// Those of older data keys, the newest one first: what was stored by them keeps its fingerprints.
    older: Vec<Fingerprinter>,
    /// The generation of the data key that it is by.
    generation: u32,
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

    /// True when these bytes have this fingerprint, by the data key of now or by one that was before it.
    #[must_use]
    pub fn is_of(&self, bytes: &[u8], fingerprint: &Fingerprint) -> bool {
        self.fingerprinter.bytes(bytes) == *fingerprint || self.is_of_older(bytes, fingerprint)
    }

    /// True when these bytes have this fingerprint by a data key that was before the one of now.
    #[must_use]
    pub fn is_of_older(&self, bytes: &[u8], fingerprint: &Fingerprint) -> bool {
        self.older.iter().any(|older| older.bytes(bytes) == *fingerprint)
    }

    /// The generation of its data key, and how many older ones it knows.
    pub(super) fn versions(&self) -> (u32, usize) {
        (self.generation, self.older.len())
    }

    /// The first one of an archive with this label.
    pub(super) fn first(label: &Label, identity: &Identity) -> Result<Domain> {
        match identity.sealing() {
            Some(sealing) => {
                // The log is not read yet.
                let keys = match label.data_keys {
                    true => sealing.domain_by_key_area(FIRST_DOMAIN)?,
                    false => sealing.domain(FIRST_DOMAIN)?,
                };
                Ok(Domain::of(label, identity, (sealing, &*keys)))
            }
            None => Ok(Domain {
                number: FIRST_DOMAIN,
                fingerprinter: Fingerprinter::new(label.fingerprint, &label.secret),
                older: Vec::new(),
                generation: 0,
                cuts: label.chunking.into(),
                borders: identity.key,
            }),
        }
    }

    pub(super) fn of(
        label: &Label,
        identity: &Identity,
        (sealing, keys): (&Sealing, &DomainSealing),
    ) -> Domain {
        let mut older = Vec::new();
        sealing.older_fingerprints(keys.number(), &mut |key| {
            older.push(Fingerprinter::new(label.fingerprint, key.expose()));
        });
        // Tree nodes end where they ended before the key was changed.
        let borders = sealing.borders(keys.number()).or(keys.borders());
        Domain {
            number: keys.number(),
            fingerprinter: Fingerprinter::new(label.fingerprint, keys.fingerprints().expose()),
            older,
            generation: keys.generation(),
            cuts: Cuts::keyed(label.chunking, Gear::new(keys.cuts())),
            borders: borders.unwrap_or(identity.key),
        }
    }
}

impl From<&Domain> for Cuts {
    /// As the domain's streams are cut.
    fn from(domain: &Domain) -> Cuts {
        domain.cuts.clone()
    }
}
