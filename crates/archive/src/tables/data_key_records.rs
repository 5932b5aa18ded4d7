//! The records about data keys, applied, and what is under an older one.

use onefold_core::{Error, Kind, Result};

use super::{containers::Found, state::Tables};
use crate::format::{bytes::corrupt, data_keys::Rotation, domain::FIRST_DOMAIN, record::Record};

/// The tables after a domain got another data key.
pub(super) fn rotate_data_key(tables: &mut Tables, rotation: Rotation) -> Result<()> {
    if !tables.has_data_keys || (rotation.domain != FIRST_DOMAIN && !tables.has_domains) {
        return Err(corrupt("the log changes a data key, and the archive has none that changes"));
    }
    if tables.domains.erased.contains_key(&rotation.domain) {
        return Err(corrupt("the log changes a data key of a domain that was erased"));
    }
    // All that is numbered from now on is under the new key, and nothing else.
    if rotation.from.0 != tables.next_id {
        return Err(corrupt("the log changes a data key for other containers than those to come"));
    }
    tables.data_keys.rotate(rotation)
}

/// True when a container is under a data key that another one took the place of.
#[must_use]
pub fn is_under_older(tables: &Tables, container: &Found) -> bool {
    let stored = &container.stored;
    domain_has_older(tables, stored.domain) && {
        let newest = tables.data_keys.newest(stored.domain);
        newest.is_some_and(|(newest, _)| stored.id < newest.from)
    }
}

/// Errors when records list a new container whose number is from before its domain's data key was changed: it
/// would be taken for one that is under the older key. Merges list theirs by numbers that they took since.
///
/// # Errors
/// `Stopped`.
pub(crate) fn refuse_numbers_of_before(tables: &Tables, records: &[Record]) -> Result<()> {
    for record in records {
        let (Record::Unfinished { containers, .. }
        | Record::Put { containers, .. }
        | Record::Finished { containers, .. }
        | Record::SnapshotMade { containers, .. }) = record
        else {
            continue;
        };
        for stored in containers {
            let newest = tables.data_keys.newest(stored.domain);
            if newest.is_some_and(|(newest, _)| stored.id < newest.from) {
                let why = format!(
                    "the data key of domain {} was changed while this was stored: store it again",
                    stored.domain
                );
                return Err(Error::new(Kind::Stopped, why));
            }
        }
    }
    Ok(())
}

/// True when a domain has two data keys.
#[must_use]
pub fn domain_has_older(tables: &Tables, domain: u32) -> bool {
    tables.data_keys.newest(domain).is_some_and(|(_, erased)| !erased)
}

/// The domains that have two data keys.
pub(crate) fn with_older(tables: &Tables) -> impl Iterator<Item = &Rotation> {
    tables.data_keys.all().filter(|(_, erased)| !erased).map(|(rotation, _)| rotation)
}

#[cfg(test)]
mod tests {
    use super::super::data_keys::{CHANGES_MAX, DataKeys, KeyChange};
    use super::*;
    use onefold_seal::TAG_BYTES;

    use crate::format::{
        ContainerId,
        bytes::{Reader, Writer},
        data_keys::KEPT_BYTES,
        label::Kinds,
    };

    fn rotated(domain: u32, generation: u32, from: u64) -> Record {
        let from = ContainerId(from);
        Record::DataKeyRotated(Rotation { domain, generation, from, index: 0 })
    }

    fn kept(domain: u32, generation: u32) -> Record {
        Record::DataKeyKept { domain, generation, kept: Box::new([7; KEPT_BYTES + TAG_BYTES]) }
    }

    #[test]
    fn rule_24_data_keys_change_one_after_the_other() {
        let kinds = Kinds { data_keys: true, ..Kinds::default().upgraded(true) };
        let begin = || Tables { next_id: 5, epoch: 1, ..Tables::new([1, 1, 0], kinds) };
        let erased = |generation| Record::DataKeyErased { domain: 0, generation };
        let taken = |records: Vec<Record>| {
            let mut tables = begin();
            tables.apply(1, records).map(|()| tables)
        };
        let good = vec![rotated(0, 1, 5), kept(0, 1), erased(1), rotated(0, 2, 5)];
        let tables = taken(good.clone()).unwrap();
        assert!(domain_has_older(&tables, 0));
        assert_eq!(tables.data_keys.generation_of(0, ContainerId(4)), 0);
        assert_eq!(tables.data_keys.generation_of(0, ContainerId(5)), 2);
        let again = Tables::decode(&tables.encode(), [1, 1, 0], kinds);
        // Leaves that nobody reads here are no part of it.
        assert!(again.is_err() || again.is_ok_and(|again| again.data_keys == tables.data_keys));
        for bad in [
            vec![rotated(0, 2, 5)],
            vec![rotated(0, 1, 4)],
            vec![rotated(0, 1, 6)],
            vec![rotated(0, 1, 5), rotated(0, 2, 5)],
            vec![rotated(0, 1, 5), kept(0, 1), rotated(0, 2, 5)],
            vec![kept(0, 1)],
            vec![rotated(0, 1, 5), kept(0, 2)],
            vec![rotated(0, 1, 5), kept(0, 1), kept(0, 1)],
            vec![rotated(0, 1, 5), erased(1)],
            vec![erased(1)],
            vec![rotated(0, 1, 5), kept(0, 1), erased(2)],
            vec![rotated(1, 1, 5)],
        ] {
            assert!(taken(bad.clone()).is_err(), "{bad:?}");
        }
        // Kept keys come through a snapshot.
        for upto in 1..=good.len() {
            let tables = taken(good[..upto].to_vec()).unwrap();
            let mut w = Writer(Vec::new());
            tables.data_keys.encode(&mut w);
            assert_eq!(DataKeys::decode(&mut Reader(&w.0, None)).unwrap(), tables.data_keys);
        }
        // Each is one of a bounded number, also in a snapshot that somebody else wrote.
        let mut many = begin();
        for generation in 1..=CHANGES_MAX {
            let erased = Record::DataKeyErased { domain: 0, generation };
            many.apply(1, vec![rotated(0, generation, 5), kept(0, generation), erased]).unwrap();
        }
        assert_eq!(many.data_keys.generation_of(0, ContainerId(5)), CHANGES_MAX);
        let mut w = Writer(Vec::new());
        many.data_keys.encode(&mut w);
        assert!(DataKeys::decode(&mut Reader(&w.0, None)).is_ok());
        assert!(many.apply(1, vec![rotated(0, CHANGES_MAX + 1, 5)]).is_err());
        let more = KeyChange {
            rotation: Rotation {
                domain: 0,
                generation: CHANGES_MAX + 1,
                from: ContainerId(5),
                index: 0,
            },
            kept: None,
            erased: false,
        };
        many.data_keys.insert_unchecked(more);
        let mut w = Writer(Vec::new());
        many.data_keys.encode(&mut w);
        assert!(DataKeys::decode(&mut Reader(&w.0, None)).is_err());
        let mut plain = Tables { next_id: 5, ..Tables::new([1, 1, 0], Kinds::default()) };
        assert!(plain.apply(1, vec![rotated(0, 1, 5)]).is_err());
    }
}
