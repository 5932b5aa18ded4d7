//! Domains of an archive made and erased.
//!
//! | a crash of an erasure | leaves |
//! |---|---|
//! | before the first copy of the key area is durable | the domain |
//! | later, before both are | no domain for whoever opens the archive; whoever opens it to write writes the other copy, and the frame |
//! | before the frame that says it | the same, with both copies written |

use onefold_core::{Error, Kind, Result};

use super::{
    archive::Archive,
    domains::{plain, renew, sealing_of},
    key_changes::{change_and_append, change_keys},
    upgrade::upgrade_to,
};
use crate::{
    format::{
        domain::{DOMAINS_END, FIRST_DOMAIN},
        label::Kinds,
        record::Record,
    },
    rules::Rule,
};

/// Lets an archive have domains beside its first one, and gives it all features that an upgrade gives, on
/// which they build: programs from before these refuse it then. False
/// when it could have them before. Durable on return. This value changes and shows nothing more: the
/// archive must be opened again.
///
/// # Errors
/// `InvalidInput`: the archive is plain, or encodes chunks late, which puts several domains together.
/// Those of [`upgrade`](super::upgrade()).
pub fn allow_domains(archive: &Archive) -> Result<bool> {
    if archive.identity.sealing().is_none() {
        return Err(plain());
    }
    if archive.label.late.is_some() {
        let why = "the archive encodes chunks late, and has one domain";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    if archive.label.roles {
        let why = "the archive has keys with roles, and one domain";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    if archive.label.domains {
        return Ok(false);
    }
    let kinds = Kinds { domains: true, ..archive.label.kinds() }.upgraded(true);
    upgrade_to(archive, kinds, &mut |_, _| ())
}

/// Makes a domain with a key of its own; gives its number. Durable on return.
///
/// # Errors
/// `Exists`, `InvalidInput`: the name is taken or does not fit, or the archive can't have domains before
/// [`allow_domains`]. `NoSpace`: there are 64, or all numbers were used. Errors of the system.
pub fn create_domain(archive: &Archive, name: &str) -> Result<u32> {
    needs_feature(archive)?;
    let mut made = FIRST_DOMAIN;
    let last = archive.refresh()?.domains.last;
    change_keys(archive, |keys, random| {
        // An older key area that was accepted may know of less.
        keys.saw_domain(last);
        made = keys.add_domain(name, random)?;
        if made >= DOMAINS_END {
            return Err(Error::new(Kind::NoSpace, "all numbers of domains were used"));
        }
        Ok(())
    })?;
    let sealing = sealing_of(archive)?;
    renew(archive, sealing)?;
    Ok(made)
}

/// Erases a domain: its key is dropped, the key that wraps the others is renewed, and both copies of the
/// key area are overwritten, each durable before the next; then a frame says so. Nobody reads what was in
/// it by this archive any more, and `gc` frees its containers. After a crash in between, whoever opens the
/// archive to write ends it.
///
/// # Errors
/// `NotFound`; `InvalidInput`: it is the first one. Errors of the system, after which it is erased or not.
pub fn erase_domain(archive: &Archive, number: u32) -> Result<()> {
    needs_feature(archive)?;
    if number == FIRST_DOMAIN {
        let why = "the domain that the archive began with has the key of its chunk index: `onefold key \
                   erase` destroys the whole archive";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    let both = archive.keeps(Rule::ErasedInBothCopies);
    let records = vec![Record::DomainErased { number }];
    change_and_append(archive, records, both, |keys, random| keys.erase_domain(number, random))
}

fn needs_feature(archive: &Archive) -> Result<()> {
    if archive.label.domains {
        return Ok(());
    }
    let why = "the archive has one domain: `onefold domain create` makes others";
    Err(Error::new(Kind::InvalidInput, why))
}
